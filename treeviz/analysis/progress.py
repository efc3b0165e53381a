"""How far a run is and how fast it goes: numbers that a clock and a history give."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from treeviz.analysis.history_track import Track

_RATE_S = 10.0  # over which the speed is measured


class Progress:
    """Hears of each measurement when it comes and of each step when it is read, and says how the run goes.

    A run begins with the first measurement after all before it were settled.

    Args:
      total: How many steps the loop will make.
      clock: In seconds.
    """

    def __init__(self, total: int | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.n_arrived = 0  # measurements
        self._total, self._clock = total, clock
        self._n_settled = 0
        self._n_before = 0  # steps, when this run began
        self._began = self._arrived = clock()
        self._first_step: int | None = None
        self._speed: deque[tuple[float, int]] = deque()

    def arrive(self) -> None:
        """Something was measured."""
        self._arrived = self._clock()
        if self.is_settled:
            self._began = self._arrived
        self.n_arrived += 1

    @property
    def is_settled(self) -> bool:
        """Whether nothing was measured since."""
        return self.n_arrived == self._n_settled

    @property
    def quiet_s(self) -> float:
        """Since something was measured."""
        return self._clock() - self._arrived

    def is_ahead(self, steps: Track) -> bool:
        """Whether steps of this run were read."""
        return steps.n_steps > self._n_before

    def begin(self, steps: Track) -> None:
        """The first steps of a run were read."""
        self._first_step = int(steps.newest(steps.n_steps - self._n_before).first.min())
        self._speed.clear()

    def count(self, newest: int) -> None:
        """Steps were read, up to this one."""
        now = self._arrived
        self._speed.append((now, newest))
        while len(self._speed) > 2 and now - self._speed[0][0] > _RATE_S:
            self._speed.popleft()

    def end(self, steps: Track, n_arrived: int | None = None) -> None:
        """These steps are all there are; what comes now belongs to the next run.

        Args:
          n_arrived: How many measurements are among them; by default all that arrived.
        """
        self._n_before = steps.n_steps
        self._n_settled = self.n_arrived if n_arrived is None else n_arrived

    def numbers(self, is_running: bool) -> dict[str, int | float | None]:
        """ "total" and "elapsed" seconds; the newest "step", how many are "done", and their "rate" a second, if known.

        Args:
          is_running: The speed is that of the last ten seconds, and not that of the whole run.
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
