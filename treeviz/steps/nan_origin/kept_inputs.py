"""Copies of the inputs of the newest steps, to run a bad step again."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from treeviz.steps.nan_origin.locate import locate_nan_in
from treeviz.steps.nan_origin.report import NanOrigin
from treeviz.steps.stop import StopTraining
from treeviz.tree.forks import Lock
from treeviz.tree.safe_repr import error_text

Key = tuple[str, int]  # which step function, and the number of its call


class Inputs(NamedTuple):
    """The arguments of a call of a step.

    Attributes:
      step: The function.
      number: The number of the call.
      args, kwargs: Copies.
      steps: The numbers of its inner steps in the history, once they were read: several if the call is a loop.
      bad_steps: Those with NaN or Inf in gradients, loss or parameters.
    """

    step: Callable
    number: int
    args: tuple
    kwargs: dict[str, Any]
    steps: Sequence[int] = ()
    bad_steps: Sequence[int] = ()

    @property
    def numbers(self) -> str:
        """ "14", or "10 to 14"."""
        first, last = (self.steps[0], self.steps[-1]) if self.steps else (self.number, self.number)
        return str(first) if first == last else f"{first} to {last}"

    def has(self, step: int) -> bool:
        return step in (self.steps or (self.number,))

    @property
    def reported_step(self) -> int:
        """The first bad step, else the last: to that belong numbers that the call has once."""
        return [*self.bad_steps[:1], *self.steps[-1:], self.number][0]


class Step(Protocol):
    """A watched step; see `treeviz.steps.tracing.watch.Watched`."""

    @property
    def __wrapped__(self) -> Callable: ...

    def call_before(self, before: Callable[[int, Callable[[], tuple[tuple, dict]]], None] | None) -> None: ...


class KeptInputs:
    """Keeps the inputs of the newest steps. Once a step is known to be bad, its inputs alone are kept.

    Attributes:
      most: How many are kept.
      bad: The inputs of the first step with NaN or Inf in gradients, loss or parameters; None as long as there is none.
    """

    def __init__(self, most: int) -> None:
        self.bad: Inputs | None = None
        self.most = most
        self._kept: dict[Key, Inputs] = {}
        self._unread: set[Key] = set()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def newest_first(self) -> list[Inputs]:
        """The inputs of the bad step, or else those of the newest steps."""
        with self._lock:
            return list(reversed(self._kept.values())) if self.bad is None else [self.bad]

    def follow(self, step: Step, suffix: Callable[[], str], read: Callable[[], None]) -> None:
        """Keep the inputs of a step from now on, until that raises; `read` as in `keep`.

        Args:
          suffix: The name of the step function in the keys of its calls.
        """

        def before(number: int, copies: Callable[[], tuple[tuple, dict]]) -> None:
            try:
                self.keep((suffix(), number), lambda: Inputs(step.__wrapped__, number, *copies()), read)
            except StopTraining:
                raise
            except Exception as error:
                step.call_before(None)
                text = f"inspector: inputs are not kept any more, {error_text(error)}"
                warnings.warn(text, RuntimeWarning, stacklevel=4)

        step.call_before(before)

    def keep(self, key: Key, inputs: Callable[[], Inputs], read: Callable[[], None]) -> None:
        """Keep the inputs of a step that is about to run, in place of the oldest that was read.

        Args:
          inputs: Makes the copies; is not called when there is a bad step already.
          read: Called when there is no room: reads what was measured.
        """
        if self.bad is not None:
            return
        if len(self._unread) >= self.most:
            read()
        with self._lock:
            while len(self._kept) >= self.most:
                # A step that raised has no measurement, so its key stays unread.
                oldest = next((key for key in self._kept if key not in self._unread), next(iter(self._kept)))
                self._forget(oldest)
            if self.bad is None:
                self._kept[key] = inputs()
                self._unread.add(key)

    def seen(self, key: Key, steps: Sequence[int], bad_steps: Sequence[int]) -> None:
        """Record that the numbers of a call were read; see `Inputs`."""
        with self._lock:
            self._unread.discard(key)
            if key in self._kept:
                self._kept[key] = self._kept[key]._replace(steps=steps, bad_steps=bad_steps)
            if bad_steps and self.bad is None:
                self.bad = self._kept.get(key)
                self._kept.clear()
                self._unread.clear()

    def clear(self) -> None:
        """Keep none of the inputs until now."""
        with self._lock:
            self.bad = None
            self._kept.clear()
            self._unread.clear()

    def _forget(self, key: Key) -> None:
        del self._kept[key]
        self._unread.discard(key)


def locate_nan_in_kept(kept: KeptInputs | None, step: int | None = None) -> NanOrigin | None:
    """Run kept steps again, and report the origin of the first NaN or Inf; None if there is none.

    Args:
      kept: None: no inputs are kept.
      step: The number of a step, or of an inner one of a call that is a loop; NaN that reaches none of its results is
        reported, too. None: the step that is known to be bad; if there is none, the newest steps, one after the other,
        until one has finite inputs and a result that is not finite.

    Raises:
      LookupError: No inputs are kept, or not those of that step any more.
      CannotLocateNan: A step cannot be replayed.
    """
    if kept is None:
        raise LookupError(
            "locate_nan: no inputs were kept. Run again with GradientInspector(keep_inputs=True), or call "
            "treeviz.steps.nan_origin.locate.locate_nan(step, *args) with inputs that you have."
        )
    known = kept.newest_first
    chosen = [inputs for inputs in known if step is None or inputs.has(step)]
    if step is not None and not chosen:
        there = ", ".join(inputs.numbers for inputs in reversed(known)) or "none yet"
        raise LookupError(
            f"locate_nan: the inputs of step {step} are not kept. There are those of: {there}. Of the inspected steps "
            "the newest are kept, and after one with NaN or infinities only those of that step; GradientInspector("
            "keep_inputs=10) keeps ten."
        )
    found: NanOrigin | None = None
    for inputs in chosen:
        # A healthy step may compute a NaN that it does not use.
        only_results = step is None and kept.bad is None
        origin = locate_nan_in(inputs.step, inputs.args, inputs.kwargs, only_results=only_results)
        if origin is not None:
            found = replace(origin, step=inputs.reported_step)
        if found is not None and (origin is None or origin.direction != "input"):
            break  # a bad input may come from the step before
    return found
