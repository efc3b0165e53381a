"""Small leaves of several trees, and small results, reduced in one pass to rows of partial sums, which NumPy adds up.

XLA CPU compiles and starts each kernel apart: this takes three for all of them, where sums that are finished on the
device take three for each tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from treeviz.steps.older_jax import barrier
from treeviz.steps.reduce import (
    HUGE_FROM,
    INFINITY,
    SMALL_BELOW,
    TOGETHER,
    USUAL_FROM,
    as_real,
    bits_of,
    in_ranges,
    is_sharded,
    magnitude,
    padded,
    reduced_together,
)
from treeviz.steps.statistics import EXPONENT_ZERO, LIGHT, RANGE_AT, SHIFT, n_words

_LENGTHS = [1 << n for n in range(10, 4, -1)]  # of a row
_LONG = 1 << 11  # elements
_IN_RANGE = np.eye(3) + np.eye(3, k=-1) * 2.0 ** (-2 * SHIFT)  # what each sum of squares is in the scale of each range
_WORDS = 9  # of a row: of three sums, maxima and counts, of which the last two are equal


def is_partial(leaf: Any, axis: int | None) -> bool:
    """Whether a leaf of a traced program may be reduced here."""
    return axis is None and leaf.dtype.itemsize <= 4 and leaf.size < SMALL_BELOW and not is_sharded(leaf)


class Rows(NamedTuple):
    """How many rows there are of each leaf, of each result, and of each result whose value before is known.

    Attributes:
      compared: Those results.
    """

    of_leaves: tuple[int, ...] = ()
    of_results: tuple[int, ...] = ()
    compared: tuple[int, ...] = ()

    @property
    def n_rows(self) -> tuple[int, ...]:
        return *self.of_leaves, *self.of_results, *(self.of_results[i] for i in self.compared)

    @property
    def n_words(self) -> int:
        return _WORDS * sum(self.n_rows)


def partial_sums(
    leaves: Sequence[jax.Array], new: Sequence[jax.Array], old: Sequence[jax.Array | None]
) -> tuple[jax.Array, Rows]:
    """uint32[words]: of leaves, and of results, whose bits are given, and those before; and their rows.

    Traceable. As for `reduce_leaves`, a barrier keeps XLA from changing the program around it.
    """
    pairs = {i: (x, before) for i, (x, before) in enumerate(zip(new, old, strict=True)) if before is not None}
    sizes = [x.size for x in (*leaves, *new)]
    length = _row_length([*sizes, *(new[i].size for i in pairs)])
    groups = [
        [bits_of(as_real(barrier(lax.stop_gradient(leaf)))) for leaf in leaves],
        [_bits_of_float32(x) for x in new],
        [lax.ne(x, before) for x, before in pairs.values()],
    ]
    block = _concatenated([block for group in groups for block in _blocks(group, length)])
    sums, peaks, counts = reduced_together(_terms(block), (2,))
    words = lax.concatenate([lax.expand_dims(x, (0,)) for x in (bits_of(sums), peaks, counts)], 0)
    n_rows = [-(-n // length) for n in sizes]
    rows = Rows(tuple(n_rows[: len(leaves)]), tuple(n_rows[len(leaves) :]), tuple(pairs))
    return lax.reshape(words, (words.size,)), rows


def _row_length(sizes: Sequence[int]) -> int:
    """With few rows, each of which is added up in NumPy, and little padding."""

    def cost(length: int) -> float:
        n_rows = sum(-(-n // length) for n in sizes)
        return n_rows + (n_rows * length - sum(sizes)) / 24

    return min(_LENGTHS, key=cost)


def _blocks(values: Sequence[jax.Array], length: int) -> Iterator[jax.Array]:
    """float32[rows, length] of values in their order, one for each that is long.

    What is concatenated within a block XLA CPU copies one by one, but compiles in a fraction of the time.
    """
    for is_long, run in groupby(values, key=lambda x: x.size >= _LONG):
        for group in [[x] for x in run] if is_long else [list(run)]:
            yield _as_float(padded(group, length))


def _concatenated(blocks: Sequence[jax.Array]) -> jax.Array:
    parts = [lax.concatenate(blocks[i : i + TOGETHER], 0) for i in range(0, len(blocks), TOGETHER)]
    return lax.concatenate([barrier(part) for part in parts], 0) if len(parts) > 1 else parts[0]


def _bits_of_float32(bits: jax.Array) -> jax.Array:
    """uint32: those of float32, with the NaN and infinities of float64, if that is what they are of."""
    if bits.dtype == np.uint32:
        return bits
    x = lax.bitcast_convert_type(bits, np.float64)
    return bits_of(lax.convert_element_type(lax.select(lax.is_finite(x), lax.full_like(x, 0), x), np.float32))


def _as_float(x: jax.Array) -> jax.Array:
    return lax.convert_element_type(x, np.float32) if x.dtype == bool else lax.bitcast_convert_type(x, np.float32)


def _terms(block: jax.Array) -> list[tuple[str, jax.Array]]:
    """Those of `in_ranges`, where the count of the numbers that are not finite has 2**16 for each NaN besides."""
    size = magnitude(block)
    squares, peak, (how, bad) = in_ranges(block, size)
    is_nan = lax.gt(lax.broadcast_in_dim(size, bad.shape, (0, 2)), lax.full_like(bad, INFINITY))
    n_nan = lax.select(is_nan, lax.full_like(bad, 1 << 16), lax.full_like(bad, 0))
    return [squares, peak, (how, lax.add(bad, n_nan))]


class _Places(NamedTuple):
    """Where the rows of each leaf, result and result before begin; worked out once, since each step is added up."""

    n_words: int
    n_leaf_rows: int
    of_leaves: np.ndarray
    of_all: np.ndarray


@cache
def _places(rows: Rows) -> _Places:
    starts = np.array([0, *accumulate(rows.n_rows)][:-1], np.intp)
    return _Places(rows.n_words, sum(rows.of_leaves), starts[: len(rows.of_leaves)], starts)


def added_up(words: np.ndarray, rows: Rows) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Of words[..., n]: the packed rows of `LIGHT`, uint32[..., leaves, 4], and the words of the results.

    uint32[..., results], as `treeviz.steps.tracing.results` explains them. None for no leaves, and for no results.
    """
    n_words, n_leaf_rows, of_leaves, of_all = _places(rows)
    words = np.ascontiguousarray(words[..., :n_words]).reshape(*words.shape[:-1], 3, -1, 3)
    peaks = np.maximum.reduceat(words[..., 1, :, 0], of_all, -1)
    counts = np.add.reduceat(words[..., 2, :, 0], of_all, -1, np.uint32)
    n, packed = len(of_leaves), None
    if n:
        sums = np.add.reduceat(words[..., 0, :n_leaf_rows, :].view(np.float32), of_leaves, -2, np.float64)
        packed = _packed(sums, peaks[..., :n], counts[..., :n] & np.uint32(0xFFFF))
    return packed, _counts(counts[..., n:], peaks[..., n:], rows) if rows.of_results else None


def _packed(sums: np.ndarray, peak: np.ndarray, n_bad: np.ndarray) -> np.ndarray:
    of = (peak >= USUAL_FROM).astype(np.uint32) + (peak >= HUGE_FROM)
    packed = np.empty((*of.shape, n_words(LIGHT)), np.uint32)
    packed[..., 0] = np.uint32(EXPONENT_ZERO) | of << np.uint32(RANGE_AT)
    packed[..., 1] = (sums * _IN_RANGE[of]).sum(-1).astype(np.float32).view(np.uint32)
    packed[..., 2], packed[..., 3] = peak, n_bad
    return packed


def _counts(counts: np.ndarray, peaks: np.ndarray, rows: Rows) -> np.ndarray:
    n = len(rows.of_results)
    found = (counts[..., :n] << np.uint32(16)) + (counts[..., :n] >> np.uint32(16))
    if rows.compared:
        found[..., rows.compared] |= np.minimum(peaks[..., n:], 1) << np.uint32(31)
    return found
