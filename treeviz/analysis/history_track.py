"""One statistic of some leaves over time: the newest steps exactly, older ones in buckets, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

MOST_EXACT, MOST_BUCKETS = 1 << 16, 1 << 11
FEWEST_EXACT, FEWEST_BUCKETS = 8, 4


class Series(NamedTuple):
    """A statistic over time: k entries, each of one step or of a bucket of neighbours, in order.

    Attributes:
      first, until: int64[k]: the first and the last step of each entry; the same for one of a single step.
      n: int64[k]: how many steps were recorded in it.
      low, high, latest: [k, …]: the least, the greatest and the last value of each leaf in it. Of a count the least is
        not kept: low is high then.
      total: int64[k, …]: the sum, if the statistic is a count; else None.
    """

    first: np.ndarray
    until: np.ndarray
    n: np.ndarray
    low: np.ndarray
    high: np.ndarray
    latest: np.ndarray
    total: np.ndarray | None


class Track:
    """Values of one shape, appended step by step.

    When the exact rows are full, the oldest is folded into the newest bucket. When the buckets are full, every two
    neighbours become one, and each then holds twice as many steps. So an append costs the same however long the run.

    Args:
      shape: Of what one step adds: (leaves,), or (leaves, bins).
      dtype: int64 for counts, which are summed, or float64, whose least is kept.
      max_bytes: What all arrays together may take; there is always room for some steps.
    """

    def __init__(self, shape: tuple[int, ...], dtype: type, max_bytes: int) -> None:
        self.shape, self.is_count = shape, dtype is np.int64
        n_bytes = 8 * int(np.prod(shape, dtype=np.int64))
        n_exact = min(max(max_bytes // 2 // (n_bytes + 8), FEWEST_EXACT), MOST_EXACT)
        n_buckets = min(max(max_bytes // 2 // (3 * n_bytes + 24), FEWEST_BUCKETS), MOST_BUCKETS) // 2 * 2
        # Untouched memory is not taken yet, so a short run takes little.
        self.exact_steps = np.empty(n_exact, np.int64)
        self.exact = np.empty((n_exact, *shape), dtype)
        self.oldest = self.n_exact = 0
        self.buckets = np.empty((3, n_buckets, *shape), dtype)  # low (of a count: total), high, latest
        self.bucket_steps = np.empty((3, n_buckets), np.int64)  # first, until, n
        self.n_buckets = 0
        self.bucket_width = 1

    def __len__(self) -> int:
        """How many entries `series` has."""
        return self.n_buckets + self.n_exact

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in (self.exact_steps, self.exact, self.buckets, self.bucket_steps))

    def append(self, step: int, values: np.ndarray) -> None:
        size = len(self.exact_steps)
        if self.n_exact == size:
            self._fold(self.oldest)
            self.oldest = (self.oldest + 1) % size
            self.n_exact -= 1
        place = (self.oldest + self.n_exact) % size
        self.exact[place] = values
        self.exact_steps[place] = step
        self.n_exact += 1

    def _fold(self, place: int) -> None:
        step, values, at = self.exact_steps[place], self.exact[place], self.n_buckets - 1
        if at < 0 or self.bucket_steps[2, at] >= self.bucket_width:
            if self.n_buckets == self.bucket_steps.shape[1]:
                self._halve()
            at = self.n_buckets
            self.n_buckets += 1
            self.buckets[:, at] = values
            self.bucket_steps[:, at] = step, step, 1
            return
        low, high, latest = self.buckets[:, at]
        if self.is_count:
            _add(low, values, out=low)
        else:
            np.fmin(low, values, out=low)
        np.fmax(high, values, out=high)
        latest[...] = values
        self.bucket_steps[1, at] = step
        self.bucket_steps[2, at] += 1

    def _halve(self) -> None:
        half = self.n_buckets // 2
        groups = np.arange(0, self.n_buckets, 2)
        self.buckets[:, :half], self.bucket_steps[:, :half] = _merged(
            self.buckets, self.bucket_steps, groups, self.is_count
        )
        self.n_buckets = half
        self.bucket_width *= 2

    def restore(self, arrays: Sequence[np.ndarray], bucket_width: int) -> None:
        """Take up what was saved; the oldest goes into buckets if there is less room now."""
        exact_steps, exact, bucket_steps, buckets = arrays
        n, k = len(exact_steps), bucket_steps.shape[1]
        if exact.shape != (n, *self.shape) or buckets.shape != (3, k, *self.shape) or k > self.bucket_steps.shape[1]:
            raise ValueError(f"arrays of {exact.shape} and {buckets.shape} do not belong to leaves of {self.shape}")
        self.n_buckets, self.bucket_width = k, bucket_width
        self.bucket_steps[:, :k], self.buckets[:, :k] = bucket_steps, buckets
        for step, values in zip(exact_steps, exact, strict=True):
            self.append(step, values)

    def series(self, first: int | None = None, until: int | None = None, resolution: int | None = None) -> Series:
        """What was recorded from step `first` to step `until`, in at most `resolution` entries."""
        is_in, is_exact_in = np.ones(self.n_buckets, bool), np.ones(self.n_exact, bool)
        order = self._order()
        steps, exact_steps = self.bucket_steps[:, : self.n_buckets], self.exact_steps[order]
        if first is not None:
            is_in, is_exact_in = is_in & (steps[1] >= first), is_exact_in & (exact_steps >= first)
        if until is not None:
            is_in, is_exact_in = is_in & (steps[0] <= until), is_exact_in & (exact_steps <= until)
        return self._entries(np.flatnonzero(is_in), order[is_exact_in], resolution)

    @property
    def n_steps(self) -> int:
        """How many steps were appended."""
        return int(self.bucket_steps[2, : self.n_buckets].sum()) + self.n_exact

    def newest(self, n: int) -> Series:
        """The last `n` steps that were appended, at the cost of these. The first entry may hold earlier ones, too."""
        n_exact = min(n, self.n_exact)
        n_in_newest = np.cumsum(self.bucket_steps[2, : self.n_buckets][::-1])
        n_buckets = min(int(np.searchsorted(n_in_newest, n - n_exact)) + 1, self.n_buckets) if n > n_exact else 0
        return self._entries(np.arange(self.n_buckets - n_buckets, self.n_buckets), self._order(n_exact))

    def _order(self, n: int | None = None) -> np.ndarray:
        """Where the newest exact rows stand."""
        n = self.n_exact if n is None else n
        return (self.oldest + np.arange(self.n_exact - n, self.n_exact)) % len(self.exact_steps)

    def _entries(self, buckets: np.ndarray, places: np.ndarray, resolution: int | None = None) -> Series:
        exact_steps = self.exact_steps[places]
        exact = np.broadcast_to(self.exact[places], (3, exact_steps.size, *self.shape))
        values = np.concatenate([self.buckets[:, buckets], exact], axis=1)
        steps = np.stack([exact_steps, exact_steps, np.ones_like(exact_steps)])
        steps = np.concatenate([self.bucket_steps[:, buckets], steps], axis=1)
        if resolution is not None and steps.shape[1] > max(resolution, 1):
            groups = np.linspace(0, steps.shape[1], max(resolution, 1), endpoint=False).astype(np.intp)
            values, steps = _merged(values, steps, groups, self.is_count)
        low, high, latest = values
        return Series(
            steps[0], steps[1], steps[2], high if self.is_count else low, high, latest, low if self.is_count else None
        )

    def latest(self) -> tuple[int, np.ndarray] | None:
        """The newest step and its values."""
        if not self.n_exact:
            return None
        place = (self.oldest + self.n_exact - 1) % len(self.exact_steps)
        return int(self.exact_steps[place]), self.exact[place].copy()


def _add(total: np.ndarray, values: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """The sum of counts, of which -1 stands for no number."""
    return np.maximum(np.add(total, values, out=out), -1, out=out)


def _merged(values: np.ndarray, steps: np.ndarray, groups: np.ndarray, is_count: bool):
    """Entries joined: a group begins at each of `groups`, of which none is empty."""
    ends = np.append(groups[1:], steps.shape[1]) - 1
    if is_count:
        low = np.maximum(np.add.reduceat(values[0], groups, axis=0), -1)
    else:
        low = np.fmin.reduceat(values[0], groups, axis=0)
    joined = np.stack([low, np.fmax.reduceat(values[1], groups, axis=0), values[2][ends]])
    return joined, np.stack([steps[0][groups], steps[1][ends], np.add.reduceat(steps[2], groups)])
