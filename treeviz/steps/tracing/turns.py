"""What a watched step keeps of its calls: which of them may be inspected, and what was told."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable
from typing import Any

from treeviz.steps.tracing.compile_ahead import CompileAhead
from treeviz.tree.safe_repr import printable_lines


class Turns:
    """Counts the calls of a step, and runs those that are not inspected: this is all that these take time for.

    Attributes:
      numbers, newest: The numbers of the next calls, and of the newest; before any, one below the first.
      period: Only calls whose numbers it divides may be inspected.
      step: Runs the step itself.
    """

    def __init__(self, first: int, every: int, heavy_every: int) -> None:
        self.period = math.gcd(every, heavy_every)
        self.count_from(first)

    def count_from(self, first: int) -> None:
        self.numbers, self.newest = itertools.count(first), first - 1

    def run(self, step: Callable, ahead: CompileAhead | None) -> None:
        """Run this step from now on, whose first call waits for the thread that compiles it."""
        self.step = step
        if ahead is not None:

            def first(*args: Any, **kwargs: Any) -> Any:
                ahead.wait()
                self.step = step
                return step(*args, **kwargs)

            self.step = first


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
