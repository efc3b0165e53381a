"""The inputs of the newest steps, so that one that went wrong can be run again."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from treeviz.analysis.recorder import StopTraining

if TYPE_CHECKING:
    from treeviz.analysis.culprit import Culprit

Key = tuple[str, int]  # which step function, and the number of its call


class Inputs(NamedTuple):
    """What a step was called with.

    Attributes:
      step: The function.
      number: The number of the step.
      args, kwargs: Copies.
    """

    step: Callable
    number: int
    args: tuple
    kwargs: dict[str, Any]


class Step(Protocol):
    """A watched step; see `treeviz.watching.Watched`."""

    before: Callable[[int, Callable[[], tuple[tuple, dict]]], None] | None

    @property
    def __wrapped__(self) -> Callable: ...


class KeptInputs:
    """Keeps the inputs of the newest steps, until one is known to be bad: then its inputs alone.

    Attributes:
      bad: The inputs of the first step whose gradients were not finite; None as long as there is none.
    """

    def __init__(self, most: int) -> None:
        self.bad: Inputs | None = None
        self._most = most
        self._kept: dict[Key, Inputs] = {}
        self._unread: set[Key] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def newest_first(self) -> list[Inputs]:
        """The bad step's, or else those of the newest steps."""
        with self._lock:
            return list(reversed(self._kept.values())) if self.bad is None else [self.bad]

    def follow(self, step: Step, suffix: str, read: Callable[[], None]) -> None:
        """From now on keep the inputs of a step, as long as there is memory for them; `read` as in `keep`.

        Args:
          suffix: Which step function; as the recorder has it in the key of a call.
        """

        def before(number: int, copies: Callable[[], tuple[tuple, dict]]) -> None:
            try:
                self.keep((suffix, number), lambda: Inputs(step.__wrapped__, number, *copies()), read)
            except StopTraining:
                raise
            except Exception as error:
                step.before = None
                said = f"{type(error).__name__}: {error}"
                warnings.warn(f"inspector: inputs are not kept any more, {said}", RuntimeWarning, stacklevel=4)

        step.before = before

    def keep(self, key: Key, inputs: Callable[[], Inputs], read: Callable[[], None]) -> None:
        """Keep the inputs of a step that is about to run, in place of the oldest that was read.

        Args:
          inputs: Makes the copies; is not called when there is a bad step already.
          read: Called when there is no room: reads what was measured.
        """
        if self.bad is not None:
            return
        if len(self._unread) >= self._most:
            read()
        with self._lock:
            while len(self._kept) >= self._most:
                # a step that raised tells nothing, and is never read
                oldest = next((key for key in self._kept if key not in self._unread), next(iter(self._kept)))
                self._forget(oldest)
            if self.bad is None:
                self._kept[key] = inputs()
                self._unread.add(key)

    def seen(self, key: Key, is_bad: bool) -> None:
        """The numbers of a step are read."""
        with self._lock:
            self._unread.discard(key)
            if is_bad and self.bad is None:
                self.bad = self._kept.get(key)
                self._kept.clear()
                self._unread.clear()

    def _forget(self, key: Key) -> None:
        del self._kept[key]
        self._unread.discard(key)


def hunt_in_kept(kept: KeptInputs | None, step: int | None = None) -> Culprit | None:
    """Run kept steps again and name what went wrong in one of them; None if nothing did.

    Args:
      kept: None: nothing is kept.
      step: The number of a step; also what reaches none of its results is named then. None: the step whose gradients
        are known to be bad; if there is none, the newest ones, one after the other, until one has a result that is not
        finite although what went into it is.

    Raises:
      LookupError: No inputs are kept, or not those of that step any more.
      CannotHunt: A step cannot be run in this way.
    """
    from treeviz.analysis.hunt import hunt_in

    if kept is None:
        raise LookupError(
            "hunt: no inputs were kept. Run again with GradientInspector(keep_inputs=True), or call "
            "treeviz.analysis.hunt.hunt(step, *args) with inputs that you have."
        )
    known = kept.newest_first
    chosen = [inputs for inputs in known if step is None or inputs.number == step]
    if step is not None and not chosen:
        there = ", ".join(str(inputs.number) for inputs in reversed(known)) or "none yet"
        raise LookupError(
            f"hunt: the inputs of step {step} are not kept. There are those of: {there}. Of the inspected steps the "
            "newest are kept, and once a gradient was not finite only those of that step; GradientInspector("
            "keep_inputs=10) keeps ten."
        )
    found: Culprit | None = None
    for inputs in chosen:
        # What a healthy step drops is its own affair.
        only_results = step is None and kept.bad is None
        culprit = hunt_in(inputs.step, inputs.args, inputs.kwargs, only_results=only_results)
        if culprit is not None:
            found = replace(culprit, step=inputs.number)
        if found is not None and (culprit is None or culprit.direction != "input"):
            break  # else the step before may have made it
    return found
