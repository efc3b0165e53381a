"""How much of a tree is looked at, and for how long."""

from __future__ import annotations

from math import inf
from time import perf_counter, thread_time
from typing import NamedTuple


class Budget(NamedTuple):
    """What looking at a tree may cost.

    Attributes:
      max_rows: The most rows. Siblings share them fairly.
      walk_s: How long the walk may take before it is done again with fewer rows, in half of that time or the rest.
      read_s: How long the values of arrays in host memory may be read.
      hint: How the user gets more: the end of the message about what was left out.
    """

    max_rows: int = 2_000_000
    walk_s: float = inf
    read_s: float = inf
    hint: str = ""


WHOLE = Budget()
# So many rows, all different, take 1 s to walk, 1 s to read, 1.5 s to pack into a page, and 250 MB.
DISPLAY = Budget(100_000, 2.0, 2.5, "; whole=True shows more")


class Overflow(Exception):
    """The tree is larger than the budget, or takes longer."""


class Stopwatch:
    """The seconds since it was made, of this thread's work.

    A busy machine is no reason to show less, so the CPU's time counts; of the clock's a twentieth, for code that waits.
    """

    def __init__(self) -> None:
        self._cpu, self._clock = thread_time(), perf_counter()

    def __call__(self) -> float:
        return max(thread_time() - self._cpu, (perf_counter() - self._clock) / 20)
