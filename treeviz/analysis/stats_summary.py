"""What is said of a set of numbers, made from values and merged from parts. Pure NumPy, no loop over sets."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

N_BINS = 64
FIRST_EXPONENT = -40  # bin i counts 2**(i-40) <= |x| < 2**(i-39); the ends are open
ZEROS, NAN, POSINF, NEGINF, BINS = 0, 1, 2, 3, 4  # the columns of `Summaries.counts`

# The bin of every sign and exponent of a float64: its highest 12 bits.
_BIN_OF_HIGH_BITS = np.clip(np.arange(4096) % 2048 - 1023 - FIRST_EXPONENT, 0, N_BINS - 1)


class Summaries(NamedTuple):
    """What is said of each of k sets of numbers.

    Attributes:
      moments: float64[5, k]: how many numbers are finite; their mean, standard deviation, least, greatest.
      counts: int64[k, 4 + N_BINS]: zeros, NaN, +Inf, -Inf, and the histogram of the finite, non-zero ones.
    """

    moments: np.ndarray
    counts: np.ndarray


def nothing(n_sets: int) -> Summaries:
    """The summaries of empty sets."""
    moments = np.zeros((5, n_sets))
    moments[3], moments[4] = np.inf, -np.inf
    return Summaries(moments, np.zeros((n_sets, BINS + N_BINS), np.int64))


def join(parts: list[Summaries]) -> Summaries:
    """The sets of all parts, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return Summaries(np.concatenate([p.moments for p in parts], axis=1), np.concatenate([p.counts for p in parts]))


def summarise(values: np.ndarray, starts: np.ndarray) -> Summaries:
    """The summary of each stretch of `values`: one begins at every one of `starts`, and none is empty.

    Two passes in float64, so that neither large nor nearly equal numbers lose digits. Overwrites `values`.
    """
    sizes = np.diff(starts, append=values.size)
    moments, counts = summaries = nothing(starts.size)
    counts[:, ZEROS] = _count(values == 0, starts)
    bins = _bins(values, starts)

    total = np.add.reduceat(values, starts)
    finite = None
    if not np.isfinite(total).all():  # something is not finite, or the sum is too large
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
    if (((peak > 1e140) | (peak < 1e-140)) & (peak > 0)).any():  # their squares would not be float64
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
    # not np.dot: it wakes the threads of the BLAS, which rounds differently with each number of them
    return np.einsum("i,i->", values, values)[None]


def _bins(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """int64[k, N_BINS]: how often each power of two occurs. Zeros are in some bin; so is what is not finite."""
    high_bits = (values.view(np.uint64) >> np.uint64(52)).view(np.intp)
    if starts.size == 1:
        by_high_bits = np.bincount(high_bits, minlength=4096)
        return np.bincount(_BIN_OF_HIGH_BITS, by_high_bits, N_BINS).astype(np.int64)[None]
    bins = _BIN_OF_HIGH_BITS[high_bits]
    bins += np.repeat(np.arange(0, starts.size * N_BINS, N_BINS), np.diff(starts, append=values.size))
    return np.bincount(bins, minlength=starts.size * N_BINS).reshape(-1, N_BINS)


def merge(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The moments of the unions of sets: Chan, Golub and LeVeque's parallel variance, as roots that cannot overflow."""
    n = a[0] + b[0]
    share_a, share_b = a[0] / np.maximum(n, 1), b[0] / np.maximum(n, 1)
    between = np.sqrt(share_a * share_b)
    std = np.hypot(np.hypot(a[2] * np.sqrt(share_a), b[2] * np.sqrt(share_b)), b[1] * between - a[1] * between)
    mean = a[1] * share_a + b[1] * share_b
    return np.stack([n, mean, std, np.minimum(a[3], b[3]), np.maximum(a[4], b[4])])


def over_ranges(sets: Summaries, start: np.ndarray, stop: np.ndarray) -> Summaries:
    """The summary of the union of the sets `start[i] : stop[i]`, for every i.

    Costs n log n, however the ranges lie: unions of 1, 2, 4, … neighbours are made once, and each range is
    put together from at most one of each size. Counts are exact.
    """
    before = np.concatenate([np.zeros((1, sets.counts.shape[1]), np.int64), np.cumsum(sets.counts, axis=0)])
    moments = nothing(start.size).moments
    position, length, step, unions = start.copy(), stop - start, 1, sets.moments
    while True:
        take = np.flatnonzero(length & step)
        moments[:, take] = merge(moments[:, take], unions[:, position[take]])
        position[take] += step
        if 2 * step > length.max(initial=0):
            return Summaries(moments, before[stop] - before[start])
        unions = merge(unions[:, :-step], unions[:, step:])
        step *= 2


def union(sets: Summaries) -> Summaries:
    """The summary of the union of all sets."""
    n_sets = len(sets.counts)
    if n_sets == 1:
        return sets
    moments = over_ranges(Summaries(sets.moments, sets.counts[:, :0]), np.array([0]), np.array([n_sets])).moments
    return Summaries(moments, sets.counts.sum(axis=0, keepdims=True))
