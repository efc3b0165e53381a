"""Which calls of a watched step may be inspected: this is all that the others take time for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from treeviz.steps.tracing.twins import Twins


class Turns:
    """Counts the calls of a step, and runs those that are not inspected.

    Attributes:
      numbers, newest: The numbers of the next calls, and of the newest; before any, one below the first.
      period: Only calls whose numbers it divides may be inspected.
      step: Runs the step itself.
      twins: The programs that inspect it; None: it cannot be watched.
    """

    def __init__(self, first: int, every: int, heavy_every: int) -> None:
        self.period = math.gcd(every, heavy_every)
        self.count_from(first)

    def count_from(self, first: int) -> None:
        self.numbers, self.newest = itertools.count(first), first - 1

    def run(self, step: Callable, twins: Twins | None) -> None:
        """Run this step from now on, whose first call waits for the thread that compiles it."""
        self.step, self.twins = step, twins
        ahead = None if twins is None else twins.ahead
        if ahead is not None:

            def first(*args: Any, **kwargs: Any) -> Any:
                ahead.wait()
                self.step = step
                return step(*args, **kwargs)

            self.step = first
