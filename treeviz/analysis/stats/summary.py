"""Summaries of sets of numbers: computed from values, and merged from parts. Pure NumPy, without loops over sets."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

N_BINS = 64
_AT_ONCE = 1 << 20  # counts to sum up
FIRST_EXPONENT = -40  # bin i counts 2**(i-40) <= |x| < 2**(i-39); the ends are open
ZEROS, NAN, POSINF, NEGINF, BINS = 0, 1, 2, 3, 4  # the columns of `Summaries.counts`

# The bin of every sign and exponent of a float64: its highest 12 bits.
_BIN_OF_HIGH_BITS = np.clip(np.arange(4096) % 2048 - 1023 - FIRST_EXPONENT, 0, N_BINS - 1)


class Summaries(NamedTuple):
    """The statistics of each of k sets of numbers.

    Attributes:
      moments: float64[5, k]: the number of finite values; their mean, standard deviation, minimum, maximum.
      counts: int64[k, 4 + N_BINS], or uint32 where all fit: zeros, NaN, +Inf, -Inf, and the histogram of the finite,
        non-zero ones.
    """

    moments: np.ndarray
    counts: np.ndarray


def nothing(n_sets: int) -> Summaries:
    """The summaries of empty sets."""
    moments = np.zeros((5, n_sets))
    moments[3], moments[4] = np.inf, -np.inf
    return Summaries(moments, np.zeros((n_sets, BINS + N_BINS), np.int64))


def join(parts: list[Summaries]) -> Summaries:
    """Concatenate the sets of all parts."""
    if len(parts) == 1:
        return parts[0]
    return Summaries(np.concatenate([p.moments for p in parts], axis=1), np.concatenate([p.counts for p in parts]))


def summarise(values: np.ndarray, starts: np.ndarray) -> Summaries:
    """Summarise consecutive segments of `values`; each begins at one of `starts`, and none is empty.

    Two passes in float64, so that neither large nor nearly equal numbers lose digits. Overwrites `values`.
    """
    sizes = np.diff(starts, append=values.size)
    moments, counts = summaries = nothing(starts.size)
    counts[:, ZEROS] = _count(values == 0, starts)
    bins = _bins(values, starts)

    total = np.add.reduceat(values, starts)
    finite = None
    if not np.isfinite(total).all():  # a NaN or an infinity, or the sum overflows
        finite = np.isfinite(values)
        counts[:, NAN] = _count(np.isnan(values), starts)
        counts[:, POSINF] = _count(values == np.inf, starts)
        counts[:, NEGINF] = _count(values == -np.inf, starts)
        moments[3] = np.minimum.reduceat(np.where(finite, values, np.inf), starts)
        moments[4] = np.maximum.reduceat(np.where(finite, values, -np.inf), starts)
        values = np.where(finite, values, 0.0)
    else:
        moments[3] = np.minimum.reduceat(values, starts)
        moments[4] = np.maximum.reduceat(values, starts)
    n_outside = counts[:, NAN : NEGINF + 1].sum(axis=1)
    bins[:, -1] -= n_outside
    bins[:, 0] = sizes - n_outside - counts[:, ZEROS] - bins[:, 1:].sum(axis=1)
    counts[:, BINS:] = bins

    n = moments[0] = sizes - n_outside
    n_or_1 = np.maximum(n, 1)
    peak = np.where(n > 0, np.maximum(np.abs(moments[3]), np.abs(moments[4])), 0.0)
    scale = None
    if (((peak > 1e140) | (peak < 1e-140)) & (peak > 0)).any():  # their squares would overflow or underflow
        scale = np.frexp(peak)[1]
        values = np.ldexp(values, np.repeat(-scale, sizes))
    if scale is not None or finite is not None:
        total = np.add.reduceat(values, starts)
    mean = total / n_or_1
    values -= mean[0] if starts.size == 1 else np.repeat(mean, sizes)
    if finite is not None:
        values *= finite
    variance = _sum_of_squares(values, starts) / n_or_1
    moments[1], moments[2] = mean, np.sqrt(variance)
    if scale is not None:
        moments[1:3] = np.ldexp(moments[1:3], scale)
    return summaries


def _count(mask: np.ndarray, starts: np.ndarray):
    return np.count_nonzero(mask) if starts.size == 1 else np.add.reduceat(mask, starts, dtype=np.int64)


def _sum_of_squares(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    if starts.size > 1:
        return np.add.reduceat(values * values, starts)
    # Not np.dot: it uses BLAS threads, and its rounding depends on their number.
    return np.einsum("i,i->", values, values)[None]


def _bins(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """int64[k, N_BINS]: the count of each power of two. Zeros, NaN and infinities are counted in an end bin."""
    high_bits = (values.view(np.uint64) >> np.uint64(52)).view(np.intp)
    if starts.size == 1:
        by_high_bits = np.bincount(high_bits, minlength=4096)
        return np.bincount(_BIN_OF_HIGH_BITS, by_high_bits, N_BINS).astype(np.int64)[None]
    bins = _BIN_OF_HIGH_BITS[high_bits]
    bins += np.repeat(np.arange(0, starts.size * N_BINS, N_BINS), np.diff(starts, append=values.size))
    return np.bincount(bins, minlength=starts.size * N_BINS).reshape(-1, N_BINS)


def merge(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The moments of unions of sets: the parallel variance of Chan, Golub and LeVeque (1979).

    It uses standard deviations in place of sums of squares, which could overflow.
    """
    n = a[0] + b[0]
    share_a, share_b = a[0] / np.maximum(n, 1), b[0] / np.maximum(n, 1)
    between = np.sqrt(share_a * share_b)
    std = np.hypot(np.hypot(a[2] * np.sqrt(share_a), b[2] * np.sqrt(share_b)), b[1] * between - a[1] * between)
    mean = a[1] * share_a + b[1] * share_b
    return np.stack([n, mean, std, np.minimum(a[3], b[3]), np.maximum(a[4], b[4])])


def over_ranges(sets: Summaries, start: np.ndarray, stop: np.ndarray) -> Summaries:
    """The summary of the union of the sets `start[i] : stop[i]`, for every i.

    Costs n log n for any ranges: unions of 1, 2, 4, … neighbours are computed once, and each range is composed of at
    most one of each size. Counts are exact.
    """
    moments = nothing(start.size).moments
    position, length, step, unions = start.copy(), stop - start, 1, sets.moments
    while True:
        take = np.flatnonzero(length & step)
        moments[:, take] = merge(moments[:, take], unions[:, position[take]])
        position[take] += step
        if 2 * step > length.max(initial=0):
            return Summaries(moments, _counts_over_ranges(sets.counts, start, stop))
        unions = merge(unions[:, :-step], unions[:, step:])
        step *= 2


def _counts_over_ranges(counts: np.ndarray, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """The sums of `counts[start[i] : stop[i]]`. A few columns at a time, to need little memory."""
    n_sets, n_columns = counts.shape
    is_narrow = counts.sum(dtype=np.int64) < 2**32
    sums = np.empty((start.size, n_columns), np.uint32 if is_narrow else np.int64)
    ones, others = np.flatnonzero(stop - start == 1), np.flatnonzero(stop - start != 1)
    n_at_once = max(1, _AT_ONCE // (n_sets + start.size + 1))
    for first in range(0, n_columns, n_at_once):
        some = slice(first, first + n_at_once)
        before = np.zeros((n_sets + 1, counts[:, some].shape[1]), np.int64)
        np.cumsum(counts[:, some], axis=0, out=before[1:])
        sums[ones, some] = counts[start[ones], some]
        sums[others, some] = before[stop[others]] - before[start[others]]
    return sums


def union(sets: Summaries) -> Summaries:
    """The summary of the union of all sets."""
    n_sets = len(sets.counts)
    if n_sets == 1:
        return sets
    moments = over_ranges(Summaries(sets.moments, sets.counts[:, :0]), np.array([0]), np.array([n_sets])).moments
    return Summaries(moments, sets.counts.sum(axis=0, keepdims=True))
