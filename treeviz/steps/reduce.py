"""Reductions of leaves to statistics, on the device and inside the user's step."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import accumulate

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from treeviz.analysis.stats.summary import FIRST_EXPONENT, N_BINS
from treeviz.steps.barrier import barrier
from treeviz.steps.older_jax import concatenated
from treeviz.steps.statistics import EXPONENT_ZERO, HUGE, LIGHT, NO_NUMBER, RANGE_AT, SHIFT, USUAL, n_words

_UP, _DOWN = np.float32(2.0**SHIFT), np.float32(2.0**-SHIFT)
USUAL_FROM, HUGE_FROM = (np.float32(limit).view(np.uint32) for limit in (2.0**-60, 2.0**47))
INFINITY = np.float32(np.inf).view(np.uint32)

SMALL_BELOW = 1 << 15  # elements: smaller leaves are reduced together
_SHORTEST = 8  # XLA CPU makes NaN of joined reductions of an array of one element (jax 0.4.36 to 0.10.2)
_ROW = 1 << 10  # elements of a row into which long vectors are broken
TOGETHER = 8  # leaves that are joined in one kernel
_PADDING = 1 << 12  # elements, or rows, of padding that any block of small leaves may have


def reduce_leaves(
    leaves: Sequence[jax.Array | None], statistics: tuple[str, ...], axes: tuple[int | None, ...] = ()
) -> jax.Array:
    """uint32[rows, n_words]: the packed row of each leaf, or of each of its layers; None is a leaf without numbers.

    Traceable under every transformation. A barrier keeps XLA from changing the program around it. The result is bits,
    so `jax_debug_nans` does not check it.

    Args:
      axes: Of the layers, for each leaf; None: it has none.
    """
    return _rows(list(leaves), statistics, jax.default_backend() == "cpu", axes or (None,) * len(leaves))


@partial(jax.jit, static_argnums=(1, 2, 3))  # outside a trace, single operations would be slow
def _rows(
    leaves: list[jax.Array | None], statistics: tuple[str, ...], is_cpu: bool, axes: tuple[int | None, ...]
) -> jax.Array:
    numbers = {
        i: as_real(barrier(lax.stop_gradient(jnp.asarray(leaf)))) for i, leaf in enumerate(leaves) if leaf is not None
    }
    n_rows = [1 if axis is None else numbers[i].shape[axis] for i, axis in enumerate(axes)]
    first = list(accumulate(n_rows, initial=0))
    rows, order, small = [], [], {}
    for i, x in numbers.items():
        axis = axes[i]
        if axis is None and x.size < SMALL_BELOW and not is_sharded(x):
            small.setdefault((x.dtype, getattr(_type_of(x), "vma", None)), []).append(i)
        else:
            is_usual = _has_usual_squares(jnp.result_type(leaves[i]))
            sizes = (x.size // n_rows[i],) * n_rows[i]
            x = _in_rows(x[None] if axis is None else jnp.moveaxis(x, axis, 0))
            rows.append(_rows_of(x, sizes, is_usual, statistics, is_cpu))
            order.extend(range(first[i], first[i + 1]))
    for group in small.values():
        sizes = {i: numbers[i].size for i in group}
        in_rows = is_cpu and jax.__version_info__ >= (0, 5) and numbers[group[0]].dtype == jnp.float32
        length = _row_length(sizes.values()) if in_rows else 1
        for members in blocks(group, [-(-size // length) for size in sizes.values()]):
            members.sort(key=lambda i: (-sizes[i], i))
            of_members = tuple(sizes[i] for i in members)
            counts = tuple(-(-size // length) for size in of_members) if in_rows else None
            block = padded([numbers[i] for i in members], length if in_rows else max(*of_members, _SHORTEST))
            rows.append(_rows_of(block, of_members, block.dtype == jnp.float64, statistics, is_cpu, counts))
            order.extend(first[i] for i in members)
    without = [first[i] for i, leaf in enumerate(leaves) if leaf is None]
    nothing = np.zeros((len(without), n_words(statistics)), np.uint32)
    nothing[:, 0] = NO_NUMBER
    has_layers = any(axis is not None for axis in axes)
    together = (concatenated if has_layers else jnp.concatenate)([*rows, nothing])
    order = np.array([*order, *without], np.int32)
    if (np.diff(order) == 1).all() and jax.device_count() == 1:  # else XLA would leave the rows on several devices
        return together
    return together.at[order.argsort().astype(np.int32)].get(mode="promise_in_bounds")


def _in_rows(x: jax.Array) -> jax.Array:
    """x[k, …] with rows of one length for each of the k: sums of rows keep more digits than one long sum."""
    x = lax.squeeze(x, [axis for axis, size in enumerate(x.shape) if size == 1 and axis])
    k, n = x.shape[0], x.size // x.shape[0]
    if is_sharded(x) or (x.ndim > 2 and n >= SMALL_BELOW):
        return x if x.ndim > 1 else lax.expand_dims(x, (1,))
    length = -(-n // _ROW) * _ROW if n > _ROW else max(n, _SHORTEST)
    x = lax.pad(lax.reshape(x, (k, n)), np.zeros((), x.dtype), [(0, 0, 0), (0, length - n, 0)])
    return lax.reshape(x, (k, length // _ROW, _ROW)) if length > _ROW else x


def _type_of(x: jax.Array):
    return jax.typeof(x) if hasattr(jax, "typeof") else None  # jax < 0.6


def is_sharded(x: jax.Array) -> bool:
    """Whether the type has a sharding, as in explicit meshes. Such an array cannot be reshaped freely."""
    sharding = getattr(_type_of(x), "sharding", None)
    return any(axis is not None for axis in getattr(sharding, "spec", ()))


def blocks(leaves: Sequence[int], sizes: Sequence[int]) -> Iterator[list[int]]:
    """Split leaves into blocks with little padding. The rows of a block are as long as its longest leaf."""
    block: list[int] = []
    longest = n_used = n_wasted = 0
    for size, leaf in sorted(zip(sizes, leaves, strict=True), key=lambda pair: (-pair[0], pair[1])):
        if block and n_wasted + longest - size > n_used + _PADDING:
            yield block
            block = []
        if not block:
            longest, n_used, n_wasted = size, 0, 0
        block.append(leaf)
        n_used += size
        n_wasted += longest - size
    yield block


def _row_length(sizes: Collection[int]) -> int:
    """The length of the rows into which leaves are broken: the longest with little padding that a leaf can fill."""
    length, longest = _ROW, max(sizes)
    while length // 2 >= max(longest, _SHORTEST):
        length //= 2
    while length > _SHORTEST and sum(-size % length for size in sizes) > sum(sizes) // 4 + _PADDING:
        length //= 2
    return length


def padded(leaves: Sequence[jax.Array], length: int) -> jax.Array:
    """[k, length]: each leaf begins a row and is padded with zeros."""
    rows = [lax.reshape(x, (x.size,)) for x in leaves]
    rows = [lax.pad(x, np.zeros((), x.dtype), [(0, -x.size % length, 0)]) if x.size % length else x for x in rows]
    if jax.__version_info__ < (0, 5):  # leaves sharded over a part of a mesh have wrong sums if concatenated
        return jnp.stack(rows)
    # XLA CPU makes one kernel of a few leaves, but a kernel for each leaf if all are concatenated at once.
    parts = [lax.concatenate(rows[i : i + TOGETHER], 0) for i in range(0, len(rows), TOGETHER)]
    return (lax.concatenate([barrier(part) for part in parts], 0) if len(parts) > 1 else parts[0]).reshape(-1, length)


@partial(jax.jit, static_argnums=(1, 2, 3, 4, 5))  # traced and lowered once for all leaves of a shape
def _rows_of(
    x: jax.Array,
    sizes: tuple[int, ...],
    has_usual_squares: bool,
    statistics: tuple[str, ...],
    is_cpu: bool,
    counts: tuple[int, ...] | None = None,
) -> jax.Array:
    """uint32[k, n_words]: the packed rows of x[k, …], where each leaf has `sizes[k]` numbers and is padded with zeros.

    Args:
      counts: How many rows of x[n, …] each leaf has; None: one.
    """
    values, exponent = _scaled(x) if x.dtype == jnp.float64 else (x, np.int32(0))
    bits = magnitude(values)
    reduced = partial(_reduced, is_cpu=is_cpu, counts=counts)

    def sum_of_squares(start, stop, scale) -> tuple[str, jax.Array]:
        return "sum", jnp.square(jnp.where(bits - start < stop - start, values, np.float32(0)) * scale)

    peak_of = ("max", jnp.where(bits < INFINITY, bits, np.uint32(0)))
    nonfinite_of = ("sum", _ones(bits >= INFINITY))
    usual_range = USUAL_FROM, HUGE_FROM, np.float32(1)
    is_light = not set(statistics) - set(LIGHT)
    of, scale = jnp.full(len(sizes), USUAL, jnp.uint32), np.float32(1)
    if has_usual_squares:
        squares, peak, nonfinite = reduced([sum_of_squares(*usual_range), peak_of, nonfinite_of])
    elif is_cpu and counts is None:  # a second pass compiles and runs faster than three ranges
        peak, top = reduced([peak_of, ("max", bits)])  # two at once: see `_reduced`
        peak = lax.select(top < INFINITY, top, peak)
        scale, exponent, peak = _of_peak(peak)
        scale = lax.expand_dims(scale, range(1, x.ndim))
        squares, nonfinite = reduced([sum_of_squares(np.uint32(0), INFINITY, scale), nonfinite_of])
    else:
        if is_cpu:
            (tiny, usual, huge), (peak, *_), (nonfinite, *_) = (y.T for y in reduced(in_ranges(values, bits)))
        else:
            tiny_of = sum_of_squares(np.uint32(0), USUAL_FROM, _UP)
            huge_of = sum_of_squares(HUGE_FROM, INFINITY, _DOWN)
            terms = [sum_of_squares(*usual_range), tiny_of, huge_of, peak_of, nonfinite_of]
            usual, tiny, huge, peak, nonfinite = reduced(terms)
        of = _ones(peak >= USUAL_FROM) + _ones(peak >= HUGE_FROM)
        squares = _chosen(of, tiny, usual + _lower(tiny), huge + _lower(usual))
        if not is_light:
            scale = _chosen(of, _UP, np.float32(1), _DOWN)
            scale = scale if counts is None else scale[np.repeat(np.arange(len(counts)), counts)]
            scale = lax.expand_dims(scale, range(1, x.ndim))

    packed = {"norm": bits_of(squares), "max_abs": peak, "nonfinite": nonfinite}
    if not is_light:
        total, zeros, *n_of = reduced(
            [
                ("sum", jnp.where(bits < INFINITY, values, np.float32(0)) * scale),
                ("sum", _ones(magnitude(x) == 0)),
                ("sum", _ones(bits > INFINITY)),
                ("sum", _ones(values == np.float32(np.inf))),
                ("sum", _ones(values == np.float32(-np.inf))),
            ]
        )
        n = np.array(sizes, np.uint32)
        n_padded = np.array(counts or 1, np.uint32) * np.uint32(math.prod(x.shape[1:]))
        n_finite = jnp.maximum(n - nonfinite, np.uint32(1))
        packed["mean"] = bits_of(total / n_finite.astype(jnp.float32))
        packed["zeros"] = zeros - (n_padded - n)
        packed.update(zip(("nan", "posinf", "neginf"), n_of, strict=True))
    first = (exponent + np.int32(EXPONENT_ZERO)).astype(jnp.uint32) | (of << np.uint32(RANGE_AT))
    columns = [jnp.broadcast_to(first, peak.shape), *(packed[name] for name in statistics if name != "histogram")]
    rows = jnp.stack(columns, axis=1)
    return jnp.concatenate([rows, _histogram(x, reduced)], axis=1) if "histogram" in statistics else rows


def in_ranges(x: jax.Array, bits: jax.Array) -> list[tuple[str, jax.Array]]:
    """Terms [n, 3, …] of x[n, …]: the squares in each range; the magnitudes and the non-finite mask, repeated.

    XLA CPU makes one loop of them, since only one is a sum of floats. It compiles fast, and runs fast on few numbers.
    """
    shape = (x.shape[0], 3, x.shape[1])
    starts, stops = np.array([[0, USUAL_FROM, HUGE_FROM], [USUAL_FROM, HUGE_FROM, INFINITY]], np.uint32)
    scales = np.array([_UP, 1, _DOWN], np.float32)
    starts, lengths, scales = (lax.broadcast_in_dim(y, shape, (1,)) for y in (starts, stops - starts, scales))
    x, bits = (lax.broadcast_in_dim(y, shape, (0, 2)) for y in (x, bits))
    is_finite = lax.lt(bits, lax.full_like(bits, INFINITY))  # in `lax`, which traces in half the time
    in_range = lax.select(lax.lt(lax.sub(bits, starts), lengths), x, lax.full_like(x, 0))
    return [
        ("sum", lax.square(lax.mul(in_range, scales))),
        ("max", lax.select(is_finite, bits, lax.full_like(bits, 0))),
        ("sum", _ones(lax.bitwise_not(is_finite))),
    ]


def _of_peak(peak: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """2**-exponent as float32, the exponent, and the bits of the largest magnitude times 2**-exponent."""
    biased = lax.clamp(np.uint32(1), peak >> np.uint32(23), np.uint32(253))
    biased = lax.select(
        peak < np.uint32(1 << 23), jnp.full_like(biased, 127), biased
    )  # denormal numbers stay as they are
    scale = lax.bitcast_convert_type((np.uint32(254) - biased) << np.uint32(23), jnp.float32)
    return scale, biased.astype(jnp.int32) - 127, peak - ((biased - np.uint32(127)) << np.uint32(23))


def _lower(sum_of_squares: jax.Array) -> jax.Array:
    """The sum of squares in the scale of the next range: times 2**-160, by the exponent, since that is no float32."""
    bits, shift = bits_of(sum_of_squares), np.uint32((2 * SHIFT) << 23)
    lowered = lax.bitcast_convert_type(bits - shift, jnp.float32)
    return jnp.where(bits >= shift + np.uint32(1 << 23), lowered, np.float32(0))


def as_real(x: jax.Array) -> jax.Array:
    """float32 or float64 with the values of x, or their magnitudes if x is complex."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        size = jnp.abs(x)
        size = jnp.where(jnp.isfinite(x), jnp.minimum(size, jnp.finfo(size.dtype).max), size)
        return jnp.where(jnp.isnan(x), np.array(np.nan, size.dtype), size)
    return x if x.dtype == jnp.float64 else x.astype(jnp.float32)


def _scaled(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """float32[k, …]: x / 2**exponent; and int32[k]: the exponents of the largest finite magnitudes."""
    bits = magnitude(x)
    finite = jnp.where(bits < np.float64(np.inf).view(np.uint64), bits, np.uint64(0))
    peak = jnp.max(finite, axis=tuple(range(1, x.ndim)))
    exponent = jnp.clip((peak >> 52).astype(jnp.int32) - 1023, -1000, 1000)
    scale = lax.bitcast_convert_type((1023 - exponent).astype(jnp.uint64) << 52, jnp.float64)
    return (x * lax.expand_dims(scale, range(1, x.ndim))).astype(jnp.float32), exponent


def _has_usual_squares(dtype) -> bool:
    if dtype.itemsize > 4 or jnp.issubdtype(dtype, jnp.complexfloating):
        return dtype in (jnp.float64, jnp.complex128)  # these have been scaled
    info = jnp.finfo(dtype)
    return float(info.max) < 2.0**47 and float(info.smallest_subnormal) >= 2.0**-60


def magnitude(x: jax.Array) -> jax.Array:
    """The bits of |x|, which sort like |x|: integers compare fast, and denormal numbers are not zero."""
    word = np.uint64 if x.dtype == jnp.float64 else np.uint32
    return lax.bitcast_convert_type(x, word) & word(np.iinfo(word).max >> 1)


def bits_of(x: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(x, jnp.uint32)


def _ones(mask: jax.Array) -> jax.Array:
    return mask.astype(jnp.uint32)


def _chosen(of: jax.Array, tiny, usual, huge) -> jax.Array:
    return jnp.where(of == HUGE, huge, jnp.where(of == USUAL, usual, tiny))


def _reduced(
    terms: Sequence[tuple[str, jax.Array]], is_cpu: bool, counts: Sequence[int] | None = None
) -> list[jax.Array]:
    """[k] for each term: its sums or maxima over all axes but the first.

    Args:
      counts: How many rows each leaf has: reduce the last axis, then these rows.
    """
    shape = terms[0][1].shape
    axes = tuple(range(1, len(shape)))
    if not is_cpu:  # XLA fuses these into one pass; `jnp.sum` of uint32 would be uint64 with x64
        return [jnp.sum(x, axes, dtype=x.dtype) if how == "sum" else jnp.max(x, axes) for how, x in terms]
    # XLA CPU makes one fast loop of several reductions if they are one operation with at most one sum of floats
    # (jax 0.10.2: 0.15 ns an element, else 1.2 ns), and compiles it in half the time of a single reduction.
    # It adds numbers one by one, so rows are summed first to keep digits.
    results, others = list(reduced_together(terms, axes[-1:])), axes[:-1]
    if counts is not None:
        others = (1,) if max(counts) > 1 else ()
        results = [_by_leaf(x, counts) for x in results] if others else results
    if others:
        results = list(reduced_together([(how, x) for (how, _), x in zip(terms, results, strict=True)], others))
    return results


def _by_leaf(x: jax.Array, counts: Sequence[int]) -> jax.Array:
    """[k, m, …] of x[n, …]: the rows of each leaf, padded with zeros."""
    ends = np.cumsum(counts)
    which = np.arange(max(counts)) + (ends - counts)[:, None]
    which = np.where(which < ends[:, None], which, ends[-1]).astype(np.int32)
    with_zeros = lax.pad(x, np.zeros((), x.dtype), [(0, 1, 0), *[(0, 0, 0)] * (x.ndim - 1)])
    return with_zeros.at[which].get(mode="promise_in_bounds")


def reduced_together(terms: Sequence[tuple[str, jax.Array]], axes: Sequence[int]) -> Sequence[jax.Array]:
    joins = [lax.add if how == "sum" else lax.max for how, _ in terms]
    start = tuple(np.zeros((), x.dtype) for _, x in terms)
    join = lambda left, right: tuple(f(a, b) for f, a, b in zip(joins, left, right, strict=True))  # noqa: E731
    return lax.reduce(tuple(x for _, x in terms), start, join, axes)


def _histogram(x: jax.Array, reduced: Callable) -> jax.Array:
    """uint32[k, N_BINS]: how often each power of two occurs. Zeros and non-finite numbers are left out."""
    bits = magnitude(x)
    n_mantissa, bias, word = (52, 1023, np.uint64) if x.dtype == jnp.float64 else (23, 127, np.uint32)
    finite = jnp.where(bits < word((2 * bias + 1) << n_mantissa), bits, word(0))
    starts = [word(1), *(word((bias + FIRST_EXPONENT + i) << n_mantissa) for i in range(1, N_BINS))]
    # Count the numbers in each bin or above, 16 bins at a time: a fast loop without an array of bins x numbers.
    above = []
    for first in range(0, N_BINS, 16):
        above += reduced([("sum", _ones(finite >= start)) for start in starts[first : first + 16]])
    above = jnp.stack([*above, jnp.zeros_like(above[0])], axis=1)
    return above[:, :-1] - above[:, 1:]
