"""How far a run is and how fast it goes, from a clock and the steps of a history."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from treeviz.steps.recording.track import Track

_RATE_S = 10.0  # over which the speed is measured


def checked_total(total: float | None) -> int | None:
    """The number of steps of a run; None if it is not known.

    Raises:
      ValueError: It is no whole number.
    """
    try:
        if total is None or (int(total) == total and total >= 0):
            return None if total is None else int(total)
    except (TypeError, ValueError, OverflowError):  # such as of NaN
        pass
    raise ValueError(f"total={total!r}: give the number of steps of the run, such as total=1000, or None.")


class Progress:
    """Progress of a run: `arrive` records each measurement, `count` each reading of steps.

    A run begins with the first measurement after `end`. It may `rest`, however long, and go on.

    Args:
      total: How many steps the loop makes, if known.
      clock: In seconds.
    """

    def __init__(self, total: float | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.n_arrived = 0  # measurements
        self._total, self._clock = checked_total(total), clock
        self._n_finished = 0  # measurements of the runs that have ended
        self._n_before = 0  # steps, when this run began
        self._began = self._arrived = clock()
        self._first_step: int | None = None
        self._rests = False
        self._speed: deque[tuple[float, int]] = deque()

    def arrive(self) -> None:
        """Record that a measurement has arrived."""
        self._arrived = self._clock()
        if self.is_finished and not self._rests:
            self._began = self._arrived
        self.n_arrived += 1

    @property
    def is_finished(self) -> bool:
        """Whether no measurement has arrived since the run ended, or came to rest."""
        return self.n_arrived == self._n_finished

    @property
    def quiet_s(self) -> float:
        """Seconds since the last measurement."""
        return self._clock() - self._arrived

    def is_ahead(self, steps: Track) -> bool:
        """Whether steps of this run were read."""
        return self._n_new(steps) > 0

    def _n_new(self, steps: Track) -> int:
        """How many steps of this run were read. A tree that has changed since the last run has steps of its own."""
        n = steps.n_steps - self._n_before
        return n if n >= 0 else steps.n_steps

    def begin(self, steps: Track, called: Callable[[int], int] = lambda first: first) -> None:
        """Record that the first steps of a run were read, or those after a rest.

        Args:
          called: The number of the first step, which may not be inspected, by that of the first inspected one.
        """
        first = called(int(steps.newest(self._n_new(steps)).first.min()))
        # A tree that has changed meanwhile has steps of its own.
        self._first_step = first if not self._rests or self._first_step is None else min(first, self._first_step)
        self._rests = False
        self._speed.clear()

    def count(self, newest: int) -> None:
        """Record that the steps up to `newest` were read."""
        now = self._arrived
        self._speed.append((now, newest))
        while len(self._speed) > 2 and now - self._speed[0][0] > _RATE_S:
            self._speed.popleft()

    def end(self, steps: Track, n_arrived: int | None = None) -> None:
        """End the run; later measurements belong to the next one.

        Args:
          n_arrived: The number of measurements in `steps`; by default all that have arrived.
        """
        self._n_before, self._rests = steps.n_steps, False
        self._n_finished = self.n_arrived if n_arrived is None else n_arrived

    def rest(self, steps: Track, n_arrived: int) -> bool:
        """Record that nothing comes for a while. Returns whether it ends the run, as if its steps are all done.

        Args:
          n_arrived: As for `end`.
        """
        if self._total is not None and (self.numbers(is_running=False).get("done") or 0) >= self._total:
            self.end(steps, n_arrived)
        else:
            self._n_finished, self._rests = n_arrived, True
        return not self._rests

    def numbers(self, is_running: bool) -> dict[str, int | float | None]:
        """The "total" steps and "elapsed" seconds; if known the newest "step", steps "done", and "rate" per second.

        Args:
          is_running: Give the rate of the last ten seconds, not of the whole run.
        """
        until = self._clock() if is_running else self._arrived
        numbers: dict[str, int | float | None] = {"total": self._total, "elapsed": round(until - self._began, 3)}
        if self._speed and self._first_step is not None:
            (then, at_first), (now, newest) = self._speed[0], self._speed[-1]
            if not is_running:
                then, at_first, now = self._began, self._first_step - 1, until
            numbers["step"] = newest
            numbers["done"] = newest - self._first_step + 1
            if now > then and newest > at_first:
                numbers["rate"] = (newest - at_first) / (now - then)
        return numbers
