"""What is told of a watched step: notes that stay, and warnings, each once."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from treeviz.tree.safe_repr import printable_lines

if TYPE_CHECKING:
    from treeviz.steps.tracing.verify import Verification


class Remarks:
    """What is told of a watched step.

    Attributes:
      step: Its name, as it is said in a sentence.
      notes: What is not measured besides the gradients, and why.
    """

    def __init__(self, step: Any) -> None:
        self.step = f"`{getattr(step, '__name__', 'step')}`"
        self.notes: tuple[str, ...] = ()
        self._warned: set[str] = set()  # of what

    def note(self, *notes: str) -> None:
        self.notes = tuple(dict.fromkeys((*self.notes, *notes)))

    def note_not_compared(self, n_bytes: int) -> None:
        self.note(
            f"{self.step}: whether measuring changes bits was not compared, since the copies would take "
            f"{n_bytes / 2**30:.2g} GiB of a device. inspector.verify() compares, before a run."
        )

    def note_other_bits(self, found: Verification, goes_apart: bool) -> None:
        text = (
            f"{self.step}: measuring changes bits. Of {found.n_leaves} results {len(found.differences)} differ from "
            f"those of the step itself for the same arguments: {found.differences[0]}. "
        )
        what_now = (
            "From now on the untouched step runs, and is measured in a second run."
            if goes_apart
            else "watch(step, exact=True) rules it out, for about twice the time of an inspected step. A step that "
            "does not repeat itself differs, too: inspector.verify() tells."
        )
        self.note(text + what_now)

    def warn_once(self, about: str, text: str, stacklevel: int = 4) -> None:
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(printable_lines(f"watch: {text}"), RuntimeWarning, stacklevel=stacklevel)

    def warn_inside(self) -> None:
        self.warn_once(
            "inside",
            f"{self.step} is called inside another jitted or transformed function, which its numbers cannot leave: "
            "nothing is measured in these calls. Watch the outer function instead, inspector.watch(jax.jit(outer)), "
            "which sees all gradients inside it; or return tv.measure(grads=grads) from it for inspector.record().",
            stacklevel=5,
        )
