"""Measurements that were read together, on their way into the history."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from treeviz.steps.recording.decode import Arrived, ReadSteps
from treeviz.steps.recording.history import History
from treeviz.steps.recording.sections import Sections


class Batch(NamedTuple):
    """Measurements that were read together. If an interrupt comes, the next reading goes on with what is left of them.

    Attributes:
      arrived: The measurements, which were the oldest of those that wait.
      read: Their numbers.
      n_before: How many steps the history had before them.
      n_dropped: How many measurements are lost, with those of this batch that could not be read.
    """

    arrived: list[Arrived]
    read: list[ReadSteps]
    n_before: int
    n_dropped: int

    def put_into(self, history: History, sections: Sections, max_bytes: int) -> Iterator[tuple[int, ValueError]]:
        """Add what the history does not have yet; `read` then has its names. Gives how many steps failed, and why."""
        history.finish()
        n_done = len(history) - self.n_before
        for place, steps in enumerate(self.read):
            n = len(steps.steps)
            if n_done < n:
                try:
                    placed = sections.place(steps, history)
                    history.add_sources(placed.sources, max_bytes)
                    left = placed.part(n_done) if n_done else placed
                    history.extend(left.steps, left.numbers)
                    self.read[place] = placed
                except ValueError as error:
                    self.read[place] = steps.part(0, n_done)
                    yield n - n_done, error
            n_done = max(n_done - n, 0)

    @property
    def calls(self) -> Iterator[tuple[tuple[str, int], list[int], list[int]]]:
        """Of each call, its suffix and number, the numbers of its steps, and of those with a NaN or Inf."""
        of_calls = [
            (each.suffix, call, step, bad)
            for each in self.read
            for bad in [each.bad_steps]
            for call, step in zip(each.calls, each.steps, strict=True)
        ]
        for call, group in groupby(of_calls, key=itemgetter(0, 1)):
            steps = [(step, bad) for *_, step, bad in group]
            yield call, [step for step, _ in steps], [step for step, bad in steps if step in bad]
