"""Steps with NaN or Inf that were left out, as those are in which the gradients of a scaled loss overflow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from treeviz.steps.findings.searched import Searched
from treeviz.steps.names import kind_of

MOST_IN_A_ROW = 16  # a loss scale that is halved each time falls by 65,536
OF_A_LOSS_SCALE = (
    "These are the gradients of a scaled loss: a dynamic loss scale grows until they overflow, and leaves out such a "
    "step on purpose. If more than a few steps in a hundred are struck, look at its growth, and at these batches."
)


@dataclass(frozen=True)
class LeftOut:
    """Steps with NaN or Inf which the parameters have not got.

    Attributes:
      n_steps: How many there are. How many there are in all is not said: a text that changes with each step is news.
      since: The first step after them; None: the newest are some of them.
      is_meant: The loss is scaled, by a number that the step computes or is given.
    """

    n_steps: int
    since: int | None
    is_meant: bool

    @property
    def text(self) -> str:
        """What follows a sentence on the first of them."""
        more = f" In all, {self.n_steps} steps were struck." if self.n_steps > 1 else ""
        then = "" if self.is_meant else ": it seems that the update was left out"
        return more + (f" From step {self.since} on all were finite again{then}." if self.since is not None else "")


def left_out(tree: Searched) -> LeftOut | None:
    """The steps with NaN or Inf in gradients; None if these are there to stay, or may be.

    While the newest steps have them, they count as left out if the loss is scaled, and they are few.
    """
    if kind_of(tree.name) != "grads":
        return None
    timeline, is_meant = tree.history.values(tree.name, "nonfinite"), any(tree.source.unscaled)
    is_bad = np.asarray((timeline.high > 0).any(axis=1))
    last = int(np.flatnonzero(is_bad)[-1])
    after = last + 1 < len(is_bad)
    n_newest = int(timeline.n[np.flatnonzero(~is_bad).max(initial=-1) + 1 :].sum())
    if not after and (not is_meant or n_newest > MOST_IN_A_ROW):
        return None
    since = int(timeline.first[last + 1]) if after else None
    return LeftOut(int(timeline.n[is_bad].sum()), since, is_meant)
