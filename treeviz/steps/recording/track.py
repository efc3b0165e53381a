"""One statistic over time: the newest steps exactly, older ones in buckets, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from treeviz.tree.series import merged

MOST_EXACT, MOST_BUCKETS = 1 << 16, 1 << 11
FEWEST_EXACT, FEWEST_BUCKETS = 8, 4


class Timeline(NamedTuple):
    """A statistic over time: k entries, each of one step or of a bucket of neighbours, in order.

    Attributes:
      first, until: int64[k]: the first and the last step of each entry; the same for one of a single step.
      n: int64[k]: how many steps were recorded in it.
      low, high, latest: [k, …]: the least, the greatest and the last value of each leaf in it. For a count the least
        is not kept, and low equals high.
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
    neighbours become one, and each then holds twice as many steps. So an append takes constant time on average. An
    interrupt may end it anywhere: what has begun is completed by `settle`, which the next append calls.

    Args:
      shape: The shape of the values of one step: (leaves,), or (leaves, bins).
      dtype: int64 for counts, which are summed, or float64, whose least is kept.
      max_bytes: The memory of all arrays; there is always room for 8 steps and 4 buckets.
    """

    def __init__(self, shape: tuple[int, ...], dtype: type, max_bytes: int) -> None:
        self.shape, self.is_count = shape, dtype is np.int64
        n_bytes = 8 * int(np.prod(shape, dtype=np.int64))
        n_exact = min(max(max_bytes // 2 // (n_bytes + 8), FEWEST_EXACT), MOST_EXACT)
        n_buckets = min(max(max_bytes // 2 // (3 * n_bytes + 24), FEWEST_BUCKETS), MOST_BUCKETS) // 2 * 2
        # The system commits memory at the first write, so a short run takes little.
        self.exact_steps = np.empty(n_exact, np.int64)
        self.exact = np.empty((n_exact, *shape), dtype)
        self.oldest = self.n_exact = self.n_folded = 0
        self.buckets = np.empty((3, n_buckets, *shape), dtype)  # low (of a count: total), high, latest
        self.bucket_steps = np.empty((3, n_buckets), np.int64)  # first, until, n
        self.n_buckets = 0
        self.bucket_width = 1
        self._change: tuple[Callable[..., None], tuple] | None = None  # that has begun

    def __len__(self) -> int:
        """How many entries `timeline` has."""
        return self.n_buckets + self.n_exact

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in (self.exact_steps, self.exact, self.buckets, self.bucket_steps))

    def extend(self, steps: Sequence[int] | np.ndarray, values: np.ndarray) -> None:
        """Append the values of some steps: [steps, *shape]."""
        if self._change is not None:
            self.settle()
        size, n_done = len(self.exact_steps), 0
        while n_done < len(steps):
            if self.n_exact == size:
                self._fold()
            place = (self.oldest + self.n_exact) % size
            n = min(len(steps) - n_done, size - self.n_exact, size - place)
            self.exact[place : place + n] = values[n_done : n_done + n]
            self.exact_steps[place : place + n] = steps[n_done : n_done + n]
            self.n_exact += n  # only now the steps are there
            n_done += n

    def settle(self) -> None:
        """Complete a change that an interrupt has ended. Making a change twice is the same as once."""
        if self._change is not None:
            change, arguments = self._change
            change(self, *arguments)
            self._change = None

    def _make(self, change: Callable[..., None], *arguments: Any) -> None:
        self._change = change, arguments
        self.settle()

    def _fold(self) -> None:
        """Move the oldest exact row into a bucket."""
        at, n, total = self.n_buckets - 1, 1, None
        if at < 0 or self.bucket_steps[2, at] >= self.bucket_width:
            if self.n_buckets == self.bucket_steps.shape[1]:
                self._halve()
            at = self.n_buckets
        else:
            n = self.bucket_steps[2, at] + 1
            total = _add(self.buckets[0, at], self.exact[self.oldest]) if self.is_count else None
        self._make(Track._move, self.oldest, at, n, total, self.n_folded + 1)

    def _move(self, place: int, at: int, n: np.int64 | int, total: np.ndarray | None, n_folded: int) -> None:
        """Move an exact row into a bucket, as the n-th step in it; for a count, `total` is the sum then."""
        values, step, size = self.exact[place], self.exact_steps[place], len(self.exact_steps)
        if n == 1:
            self.buckets[:, at] = values
            self.bucket_steps[:, at] = step, step, 1
        else:
            low, high, latest = self.buckets[:, at]
            if total is None:
                np.fmin(low, values, out=low)
            else:
                low[...] = total
            np.fmax(high, values, out=high)
            latest[...] = values
            self.bucket_steps[1, at] = step
            self.bucket_steps[2, at] = n
        self.n_buckets = at + 1
        self.oldest, self.n_exact, self.n_folded = (place + 1) % size, size - 1, n_folded

    def _halve(self) -> None:
        groups = np.arange(0, self.n_buckets, 2)
        values, steps = _merged(self.buckets, self.bucket_steps, groups, self.is_count)
        self._make(Track._set_buckets, values, steps, 2 * self.bucket_width)

    def _set_buckets(self, values: np.ndarray, steps: np.ndarray, bucket_width: int) -> None:
        n = steps.shape[1]
        self.buckets[:, :n], self.bucket_steps[:, :n] = values, steps
        self.n_buckets, self.bucket_width = n, bucket_width

    def arrays(self) -> tuple[np.ndarray, ...]:
        """What `restore` takes."""
        order, k = self._order(), self.n_buckets
        return self.exact_steps[order], self.exact[order], self.bucket_steps[:, :k], self.buckets[:, :k]

    def restore(self, arrays: Sequence[np.ndarray], bucket_width: int) -> None:
        """Continue with saved arrays. If there is less room now, buckets are merged."""
        exact_steps, exact, bucket_steps, buckets = arrays
        n, k = len(exact_steps), bucket_steps.shape[1]
        if exact.shape != (n, *self.shape) or buckets.shape != (3, k, *self.shape):
            raise ValueError(f"arrays of {exact.shape} and {buckets.shape} do not belong to leaves of {self.shape}")
        while k > self.bucket_steps.shape[1]:  # its share of the memory was larger when the file was written
            buckets, bucket_steps = _merged(buckets, bucket_steps, np.arange(0, k, 2), self.is_count)
            k, bucket_width = bucket_steps.shape[1], bucket_width * 2
        self._set_buckets(buckets, bucket_steps, bucket_width)
        self.n_folded = int(bucket_steps[2].sum())
        self.extend(exact_steps, exact)

    def timeline(self, first: int | None = None, until: int | None = None, resolution: int | None = None) -> Timeline:
        """The steps from `first` to `until`, in at most `resolution` entries."""
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
        return self.n_folded + self.n_exact

    def entry_steps(self) -> np.ndarray:
        """int64[3, k]: the first step, the last, and how many, of each entry of `timeline`."""
        exact_steps = self.exact_steps[self._order()]
        of_exact = np.stack([exact_steps, exact_steps, np.ones_like(exact_steps)])
        return np.concatenate([self.bucket_steps[:, : self.n_buckets], of_exact], axis=1)

    def newest(self, n: int) -> Timeline:
        """The last `n` steps; the first entry may hold earlier ones too. The cost depends on `n` only."""
        n_exact = min(n, self.n_exact)
        n_in_newest = np.cumsum(self.bucket_steps[2, : self.n_buckets][::-1])
        n_buckets = min(int(np.searchsorted(n_in_newest, n - n_exact)) + 1, self.n_buckets) if n > n_exact else 0
        return self._entries(np.arange(self.n_buckets - n_buckets, self.n_buckets), self._order(n_exact))

    def _order(self, n: int | None = None) -> np.ndarray:
        """The places of the newest exact rows."""
        n = self.n_exact if n is None else n
        return (self.oldest + np.arange(self.n_exact - n, self.n_exact)) % len(self.exact_steps)

    def _entries(self, buckets: np.ndarray, places: np.ndarray, resolution: int | None = None) -> Timeline:
        exact_steps = self.exact_steps[places]
        exact = np.broadcast_to(self.exact[places], (3, exact_steps.size, *self.shape))
        values = np.concatenate([self.buckets[:, buckets], exact], axis=1)
        steps = np.stack([exact_steps, exact_steps, np.ones_like(exact_steps)])
        steps = np.concatenate([self.bucket_steps[:, buckets], steps], axis=1)
        if resolution is not None and steps.shape[1] > max(resolution, 1):
            groups = np.linspace(0, steps.shape[1], max(resolution, 1), endpoint=False).astype(np.intp)
            values, steps = _merged(values, steps, groups, self.is_count)
        low, high, latest = values
        return Timeline(
            steps[0], steps[1], steps[2], high if self.is_count else low, high, latest, low if self.is_count else None
        )

    def latest(self) -> tuple[int, np.ndarray] | None:
        """The newest step and its values."""
        if not self.n_exact:
            return None
        place = (self.oldest + self.n_exact - 1) % len(self.exact_steps)
        return int(self.exact_steps[place]), self.exact[place].copy()


def _add(total: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The sum of counts; -1 is a leaf without numbers."""
    added = np.add(total, values)
    return np.maximum(added, -1, out=added)


def _merged(values: np.ndarray, steps: np.ndarray, groups: np.ndarray, is_count: bool):
    """Merge entries into groups, which begin at `groups` and are not empty."""
    ends = np.append(groups[1:], steps.shape[1]) - 1
    low, high, latest = merged(values[0], values[1], values[2], groups)
    if is_count:  # totals are in the place of low
        low = np.maximum(np.add.reduceat(values[0], groups, axis=0), -1)
    return np.stack([low, high, latest]), np.stack(
        [steps[0][groups], steps[1][ends], np.add.reduceat(steps[2], groups)]
    )


def occurs_in(counts: Timeline, entries: Timeline) -> np.ndarray:
    """bool[k, leaves]: whether a count was above zero during each of `entries`, whose buckets may differ."""
    if np.array_equal(counts.first, entries.first) and np.array_equal(counts.until, entries.until):
        return counts.high > 0
    n_before = np.concatenate([np.zeros((1, counts.high.shape[1]), np.int64), np.cumsum(counts.high > 0, axis=0)])
    start = np.searchsorted(counts.until, entries.first)
    stop = np.maximum(np.searchsorted(counts.first, entries.until, side="right"), start)
    return n_before[stop] > n_before[start]
