"""Leaves of several trees, and small results, reduced in one pass to rows of partial sums, which NumPy adds up.

XLA CPU compiles and starts each kernel apart. Here small leaves and results are copied into one array, which compiles
in no time as long as nothing is computed meanwhile, and one kernel reduces it; each long leaf has one more. Squares are
added in float64, where those of float32 are neither too large nor too small; JAX needs no other x64 for it.

XLA CPU divides a kernel among threads, and waking one takes as long as reducing 200,000 numbers. A kernel with more
operations than bytes is divided from some 3,700 numbers on (`parallel_task_assignment.cc`), one with fewer from half a
megabyte on. What is read counts once for each slice of it (`FusionParameterReadBytes` in `hlo_cost_analysis.cc`). So
some counts are of a slice of the array that is a row longer than the one whose squares are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import accumulate, chain
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from treeviz.steps.barrier import barrier
from treeviz.steps.reduce import (
    HUGE_FROM,
    SMALL_BELOW,
    TOGETHER,
    USUAL_FROM,
    as_real,
    bits_of,
    blocks,
    is_sharded,
    magnitude,
)
from treeviz.steps.statistics import EXPONENT_ZERO, LIGHT, RANGE_AT, SHIFT, n_words

_LENGTHS = [1 << n for n in range(9, 4, -1)]  # of a row
N_BITS = 10  # of each of the three counts that share a word: more than the numbers of a row
_COUNT = np.uint32((1 << N_BITS) - 1)
_LONG_ROWS = [*range(64, 15, -1), *range(65, 257)]  # into how many rows a long leaf may be broken, the best first
_MANY = 128  # arrays in one
_IN_ROWS_FROM = 1 << 16  # elements, for which a second thread pays
_TO_RANGE = np.ldexp(1.0, [2 * SHIFT, 0, -2 * SHIFT])  # squares in the scale of each range


def is_partial(leaf: Any, axis: int | None) -> bool:
    """Whether a leaf of a traced program may be reduced here; of layers, those of a long leaf along its first axis."""
    if axis not in (None, 0) or leaf.dtype.itemsize > 4 or is_sharded(leaf):
        return False
    if not _is_long(leaf):
        return axis is None
    return _n_long_rows(leaf.size, 1 if axis is None else leaf.shape[0]) > 0


def _is_long(leaf: Any) -> bool:
    return leaf.size >= SMALL_BELOW


def _n_long_rows(size: int, n_layers: int) -> int:
    """Into how many rows each layer of a long leaf is broken; 0: into none without a rest."""
    if size < _IN_ROWS_FROM or n_layers >= min(_LONG_ROWS):
        return 1
    return next((n for n in _LONG_ROWS if not size // n_layers % n), 0)


class Rows(NamedTuple):
    """How many rows there are of each result, each small leaf, each result before, and each long leaf, in this order.

    Each layer of a long leaf counts as a leaf. Results before have no sums.

    Attributes:
      results: The order of the results: those that are compared come first.
      leaves: The order of the leaves.
      are_numbers: Each row is a number as it is, and no row is of zeros, as `treeviz.steps.few_numbers` returns it.
    """

    of_results: tuple[int, ...] = ()
    of_small: tuple[int, ...] = ()
    of_old: tuple[int, ...] = ()
    of_long: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    leaves: tuple[int, ...] = ()
    are_numbers: bool = False

    @property
    def n_rows(self) -> tuple[int, ...]:
        return *self.of_results, *self.of_small, *self.of_long


def partial_sums(
    leaves: Sequence[jax.Array],
    new: Sequence[jax.Array],
    old: Sequence[jax.Array | None],
    n_layers: Sequence[int] = (),
) -> tuple[list[jax.Array], list[jax.Array], Rows]:
    """Of leaves, and of results, whose bits are given, and those before: several float64, several uint32, and the rows.

    Traceable. As for `reduce_leaves`, a barrier keeps XLA from changing the program around it. The float64 are the sums
    of rows; the uint32 their largest magnitudes, and then the counts.

    Args:
      n_layers: Of each leaf, along its first axis, or 1; empty: none has layers. Each counts as a leaf.
    """
    n_layers = n_layers or (1,) * len(leaves)
    order = sorted(range(len(leaves)), key=lambda i: _is_long(leaves[i]))
    of_leaves = [as_real(barrier(flat(leaves[i]))) for i in order]
    small, long = ([x for x in of_leaves if _is_long(x) is is_long] for is_long in (False, True))
    results = sorted(range(len(new)), key=lambda i: old[i] is None)
    before = [as_float32(x) for i in results if (x := old[i]) is not None]
    after = [as_float32(new[i]) for i in results]
    n_of_small, n_of_long = ([n_layers[i] for i in part] for part in (order[: len(small)], order[len(small) :]))
    each = [(x.size // n, n) for x, n in zip(small, n_of_small, strict=True)]
    length = _row_length([*((x.size, 1) for x in (*after, *before)), *each]) if after or small else 0
    zeros = [_zeros(length)] if length else []  # between which lie all rows that are reduced
    groups = (before or zeros, after, [*map(_padded, small, n_of_small, [length] * len(small))], zeros)
    n_rows = [tuple((x.size + _n_padding(x.size, length)) // length for x in group) for group in groups]
    of_small = tuple(chain(*((k // n,) * n for k, n in zip(n_rows[2], n_of_small, strict=True))))
    of_old = n_rows[0] if before else ()
    of_layers = [(_n_long_rows(x.size, n),) * n for x, n in zip(long, n_of_long, strict=True)]
    first = [0, *accumulate(n_layers)]
    entries = tuple(chain(*(range(first[i], first[i + 1]) for i in order)))
    rows = Rows(n_rows[1], of_small, of_old, tuple(chain(*of_layers)), tuple(results), entries)
    parts = [_sums_of_small(list(chain(*groups)), length, rows)] if length else []
    parts += [_sums_of_long(x, sum(n)) for x, n in zip(long, of_layers, strict=True)]
    sums, peaks, counts = zip(*parts, strict=True)
    return [*sums], [*peaks, *counts], rows


def packed_rows(leaves: Sequence[jax.Array], n_layers: Sequence[int] = ()) -> jax.Array:
    """uint32[leaves, 4]: the packed rows of `LIGHT`, with the partial sums added up where they are. Traceable."""
    parts, words, rows = partial_sums(leaves, (), (), n_layers)
    n_rows = rows.n_rows
    ends, sums, together = np.cumsum(n_rows), joined_arrays(parts), joined_arrays(words)
    peaks, counts = (lax.slice_in_dim(together, n, n + ends[-1]) for n in (0, ends[-1]))
    arrays = [lax.concatenate([x, lax.full_like(x, 0, shape=(1,))], 0) for x in (sums, peaks, counts)]
    parts, order = [], []
    for block in map(sorted, blocks(range(len(ends)), n_rows)):
        n = np.array(n_rows)[block, None]
        which = np.arange(n.max()) + ends[block, None] - n
        which = np.where(which < ends[block, None], which, ends[-1]).astype(np.int32)
        parts.append(_added_up([x.at[which].get(mode="promise_in_bounds") for x in arrays]))
        order += [rows.leaves[i] for i in block]
    squares, peaks, counts = map(joined_arrays, zip(*parts, strict=True))
    of = lax.add(_ones(_is_at_least(peaks, USUAL_FROM)), _ones(_is_at_least(peaks, HUGE_FROM)))
    root = lax.select_n(of.astype(np.int32), *(jnp.full_like(peaks, 2.0**e, np.float32) for e in (SHIFT, 0, -SHIFT)))
    scale = lax.square(_as_float64(root))
    squares = lax.convert_element_type(lax.mul(squares, scale), np.float32)
    first = lax.bitwise_or(lax.shift_left(of, np.uint32(RANGE_AT)), np.uint32(EXPONENT_ZERO))
    packed = jnp.stack([first, bits_of(squares), peaks, counts], 1)
    return packed if order == sorted(order) else packed.at[np.argsort(order)].get(mode="promise_in_bounds")


def flat(x: jax.Array) -> jax.Array:
    """For a barrier: what is reshaped after it would be a kernel if it was reshaped before, too."""
    return lax.reshape(lax.stop_gradient(x), (x.size,))


def joined_arrays(arrays: Sequence[jax.Array]) -> jax.Array:
    """They are copied, for which XLA CPU compiles next to nothing, if nothing is computed of or with them."""
    return lax.concatenate(arrays, 0) if len(arrays) > 1 else arrays[0]


def copied_together(parts: Sequence[Any]) -> jax.Array:
    """One array, for which nothing is computed while it is copied."""
    if len(parts) > _MANY:  # each would be computed in a kernel of its own; of a few at a time XLA CPU makes one
        parts = [barrier(joined_arrays(parts[i : i + TOGETHER])) for i in range(0, len(parts), TOGETHER)]
    return barrier(joined_arrays(parts))  # else XLA would join the arrays again for each slice of it


def _row_length(sizes: Sequence[tuple[int, int]]) -> int:
    """With few rows, each of which is added up in NumPy, and little padding, for sizes and how often each occurs."""

    def cost(length: int) -> float:
        n_rows = sum(-(-size // length) * n for size, n in sizes)
        return n_rows + (n_rows * length - sum(size * n for size, n in sizes)) / 24

    return min(_LENGTHS, key=cost)


def _n_padding(size: int, length: int) -> int:
    """How many zeros complete the last row: none, or at least two; see `_zeros`."""
    n = -size % length
    return n + length if n == 1 else n


def _padded(x: jax.Array, n_layers: int, length: int) -> jax.Array:
    """A leaf whose layers, if there are several, end with the last row of each."""
    n = 0 if n_layers == 1 else _n_padding(x.size // n_layers, length)
    if not n:
        return x
    zeros = lax.broadcast_in_dim(_zeros(n), (n_layers, n), (1,))
    return flat(lax.concatenate([lax.reshape(x, (n_layers, x.size // n_layers)), zeros], 1))


def _zeros(n: int) -> np.ndarray:
    """Of both signs: XLA would make a kernel of numbers that are all equal, as it would of `lax.pad`."""
    return np.array([-0.0, *[0.0] * (n - 1)], np.float32)


def _sums_of_small(values: Sequence[Any], length: int, rows: Rows) -> Sequence[jax.Array]:
    """The sums, largest magnitudes and counts of rows, also of NaN, and of what the first rows have otherwise.

    These are of use for results alone, but XLA CPU makes one quick loop only of what is done alike for all rows.
    """
    zeros = {n: _zeros(n) for x in values if (n := _n_padding(x.size, length))}
    parts: list[Any] = []
    for x in values:
        n = _n_padding(x.size, length)
        parts += [x, zeros[n]] if n else [x]
    block = copied_together(parts)
    n_before, n_rows = sum(rows.of_old) or 1, sum(rows.of_results) + sum(rows.of_small)

    def rows_of(x: jax.Array, start: int, n: int = n_rows) -> jax.Array:
        return lax.slice_in_dim(x, start * length, (start + n) * length)

    numbers, is_finite = rows_of(block, n_before), rows_of(lax.is_finite(block), n_before)
    longer = rows_of(block, n_before, n_rows + 1)
    none, one, one_nan, one_changed = (
        lax.full_like(numbers, n, np.uint32) for n in (0, 1, 1 | 1 << N_BITS, 1 << 2 * N_BITS)
    )
    if not rows.results:
        counts = lax.select(rows_of(lax.is_finite(longer), 0), none, one)
    else:
        bad = lax.select(rows_of(lax.ne(longer, longer), 0), one_nan, one)
        has_changed = lax.ne(bits_of(numbers), bits_of(rows_of(block, 0)))
        counts = lax.select(is_finite, lax.select(has_changed, one_changed, none) if rows.of_old else none, bad)
    return _sums(is_finite, numbers, counts, n_rows)


@partial(jax.jit, static_argnums=1)  # traced and lowered once for all leaves of a shape
def _sums_of_long(x: jax.Array, n_rows: int) -> Sequence[jax.Array]:
    is_finite = lax.is_finite(x)
    return _sums(is_finite, x, _ones(lax.bitwise_not(is_finite)), n_rows)


def _sums(is_finite: jax.Array, numbers: jax.Array, counts: jax.Array, n_rows: int) -> Sequence[jax.Array]:
    """One operation, of which XLA CPU makes one loop, since only one of its sums is of floats.

    Rows are made last: XLA moves a reshape behind one operation at a time, and simplifies the whole program after each.
    """
    finite = lax.select(is_finite, numbers, lax.full_like(numbers, 0))
    terms = lax.square(_as_float64(finite)), magnitude(finite), counts
    return _added_up([lax.reshape(x, (n_rows, x.size // n_rows)) for x in terms])


def _added_up(arrays: Sequence[jax.Array]) -> Sequence[jax.Array]:
    """The sums, largest magnitudes and counts of the rows of [rows, n]."""
    starts = _as_float64(jnp.float32(0)), np.uint32(0), np.uint32(0)
    return lax.reduce(tuple(arrays), starts, _together, (1,))


def _together(left: Sequence[jax.Array], right: Sequence[jax.Array]) -> Sequence[jax.Array]:
    joins: list[Callable] = [lax.add, lax.max, lax.add]
    return tuple(join(a, b) for join, a, b in zip(joins, left, right, strict=True))


def _as_float64(x: jax.Array) -> jax.Array:
    """Also where `jax_enable_x64` is off, and functions of JAX would give float32."""
    return lax.convert_element_type_p.bind(x, new_dtype=np.dtype(np.float64), weak_type=False, sharding=None)


def as_float32(bits: jax.Array) -> jax.Array:
    """With these bits; of those of float64 with its NaN and infinities."""
    if bits.dtype == np.uint32:
        return lax.bitcast_convert_type(bits, np.float32)
    x = lax.bitcast_convert_type(bits, np.float64)
    return lax.convert_element_type(lax.select(lax.is_finite(x), lax.full_like(x, 0), x), np.float32)


def _is_at_least(size: jax.Array, limit: Any) -> jax.Array:
    return lax.ge(size, lax.full_like(size, limit))


def _ones(mask: jax.Array) -> jax.Array:
    one = lax.full_like(mask, 1, np.uint32)
    return lax.select(mask, one, lax.full_like(one, 0))


class _Places(NamedTuple):
    """Where the rows of each array begin, and how many are of results, or small, whose words hold three counts.

    Worked out once.
    """

    starts: np.ndarray
    n_result_rows: int
    n_short_rows: int


@cache
def _places(rows: Rows) -> _Places:
    starts, n_result_rows = np.array([0, *accumulate(rows.n_rows)][:-1], np.intp), sum(rows.of_results)
    return _Places(starts, n_result_rows, n_result_rows + sum(rows.of_small))


def added_up(sums: np.ndarray, words: np.ndarray, rows: Rows) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Of sums[..., rows] and words[..., n]: the packed rows of `LIGHT`, uint32[..., leaves, 4], and what results have.

    That is uint32[..., results], as `treeviz.steps.tracing.results` explains it. None for no leaves, or no results.
    """
    n = sums.shape[-1]
    return rows_added_up(sums, words[..., :n], words[..., n : 2 * n].copy(), rows)


def rows_added_up(
    sums: np.ndarray, peaks: np.ndarray, counts: np.ndarray, rows: Rows
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """As `added_up`, of the largest magnitudes, and of counts, which are overwritten."""
    starts, n_result_rows, n_short_rows = _places(rows)
    n_results, packed, found = len(rows.results), None, None
    of_results = counts[..., :n_result_rows]
    n_nan, n_changed = of_results >> np.uint32(N_BITS) & _COUNT, of_results >> np.uint32(2 * N_BITS)
    counts[..., :n_short_rows] &= _COUNT
    n_bad = np.add.reduceat(counts, starts, -1, np.uint32)
    if rows.leaves:
        peaks = np.maximum.reduceat(peaks, starts, -1)[..., n_results:]
        of = (peaks >= USUAL_FROM).astype(np.uint32) + (peaks >= HUGE_FROM)
        squares = np.add.reduceat(sums, starts, -1)[..., n_results:] * _TO_RANGE[of]
        first = np.uint32(EXPONENT_ZERO) | of << np.uint32(RANGE_AT)
        packed = np.empty((*of.shape, n_words(LIGHT)), np.uint32)
        columns = first, squares.astype(np.float32).view(np.uint32), peaks, n_bad[..., n_results:]
        packed[..., rows.leaves, :] = np.stack(columns, -1)
    if rows.results:
        begins, n_old = starts[:n_results], len(rows.of_old)
        values = n_bad[..., : len(begins)] << np.uint32(16) | np.add.reduceat(n_nan, begins, -1, np.uint32)
        has_changed = np.logical_or.reduceat(n_changed, begins, -1)[..., :n_old]
        has_changed |= n_bad[..., :n_old] > 0
        values[..., :n_old] |= has_changed.astype(np.uint32) << np.uint32(31)
        found = np.empty_like(values)
        found[..., rows.results] = values
    return packed, found
