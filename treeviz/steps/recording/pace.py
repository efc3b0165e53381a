"""When the measurements that wait are read: in large batches, or soon, where something waits for their numbers."""

from __future__ import annotations

import time

BATCH = 64  # measurements that are read together, the first time
LARGE_BATCH, LARGE_BYTES = 512, 1 << 22  # later, if they fit: a reading takes as long to begin as for some 100 of them
AHEAD = 16  # newer measurements, which the device may not have finished
SOON = 8  # measurements that wait where numbers are wanted soon
_EACH, _SHARE = 64, 0.02  # readings before which each measurement is read at once; the share of the time for later ones


class Pace:
    """Reads of what waits, by how much waits and what reading has cost.

    Attributes:
      batch: How many measurements are read together, at least.

    Args:
      at_once: Read each measurement as soon as it is ready; in a long run, as often as 2 % of the time allow, or when
        so many wait. 0: in batches.
    """

    def __init__(self, at_once: int) -> None:
        self.batch, self._most = (1, at_once) if at_once else (BATCH, BATCH + AHEAD)
        self._n_reads, self._began, self._again = 0, 0.0, 0.0

    def is_due(self, n_waiting: int) -> bool:
        """Whether to read now."""
        if self.batch > 1:
            return n_waiting >= self._most
        self._began = time.monotonic()
        return n_waiting >= self._most or self._began >= self._again

    def has_seen(self, n_bytes: int, *, kept: bool) -> None:
        """Read in larger batches from now on, if measurements are small and not kept, since a crash loses a batch."""
        if self.batch > 1:
            self.batch = BATCH if kept else max(min(LARGE_BYTES // max(n_bytes, 1), LARGE_BATCH), BATCH)
            self._most = self.batch + AHEAD

    def has_read(self) -> None:
        """Take the time until the next reading from that since `is_due`."""
        self._n_reads += 1
        if self._n_reads > _EACH:
            now = time.monotonic()
            self._again = now + (now - self._began) / _SHARE
