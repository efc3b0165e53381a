"""Reductions of leaves to statistics, on the device and inside the user's step."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache, partial
from itertools import accumulate, chain
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, tree_util
from jax.custom_batching import custom_vmap

from treeviz.steps.statistics import (
    EXPONENT_ZERO,
    HUGE,
    LIGHT,
    LIGHT_OF_ACTIVATIONS,
    NO_COUNT,
    NO_NUMBER,
    RANGE_AT,
    SHIFT,
    STATISTICS,
    USUAL,
    Axes,
    n_words,
)
from treeviz.tree.series import FIRST_EXPONENT, N_BINS

# A barrier between a step and what is measured of it, so that measuring changes nothing of how the step is computed.

try:
    from jaxlib.mlir.dialects.stablehlo import CustomCallOp
except ImportError:
    CustomCallOp = None
try:  # used since jax 0.7
    from jaxlib.mlir.dialects.sdy import PropagationBarrierOp, PropagationDirection
except ImportError:
    PropagationBarrierOp = PropagationDirection = None

_unfused = lax.optimization_barrier
if jax.__version_info__ < (0, 5):  # it has no batching rule
    _unfused = custom_vmap(lax.optimization_barrier)

    @_unfused.def_vmap
    def _(_, in_batched, x):
        return _unfused(x), in_batched[0]


def barrier(tree: Any) -> Any:
    """The same arrays, for what is measured of them. Traceable, and works under every transformation."""
    tree = _unfused(tree)
    if jax.device_count() == 1:
        return tree
    if _forward_p is None:
        _warn()
        return tree
    return jax.tree.map(_forward_p.bind, tree)


def _forward() -> Any:
    """An identity, as a primitive: where a result lies does not depend on who uses it. None if JAX has moved."""
    try:
        from jax.extend.core import Primitive
        from jax.interpreters import ad, batching, mlir

        forward_p = Primitive("treeviz_forward")
        forward_p.def_impl(lambda x: x)
        forward_p.def_abstract_eval(lambda aval: aval)
        ad.primitive_jvps[forward_p] = lambda primals, tangents: (forward_p.bind(*primals), tangents[0])
        batching.primitive_batchers[forward_p] = lambda operands, dims: (forward_p.bind(*operands), dims[0])
        mlir.register_lowering(forward_p, _lowered)
        if not hasattr(jax, "shard_map"):  # jax 0.4: there must be a rule for axes over which a result is replicated
            from jax.experimental import shard_map

            shard_map.register_check(forward_p)(lambda mesh, replicated: replicated)  # type: ignore[attr-defined]
            shard_map.register_norewrite(forward_p)  # type: ignore[attr-defined]
    except (ImportError, AttributeError):
        return None
    return forward_p


def _lowered(ctx: Any, x: Any) -> list[Any]:
    """In a program of several devices, but for a `shard_map`, whose results lie as it says."""
    if getattr(ctx.module_context.axis_context, "num_devices", 1) == 1:
        return [x]
    if getattr(jax.config, "jax_use_shardy_partitioner", False):  # the default since jax 0.7
        if PropagationBarrierOp is not None and PropagationDirection is not None:
            return [PropagationBarrierOp(x, PropagationDirection.FORWARD).result]
    elif CustomCallOp is not None:
        return [CustomCallOp([x.type], [x], call_target_name="ShardBarrierFrom").result]
    _warn()
    return [x]


def _warn() -> None:
    warnings.warn(
        f"jax {jax.__version__} has no barrier for shardings that treeviz knows: on several devices, results of a "
        "measured step may be placed differently.", RuntimeWarning, stacklevel=3
    )  # fmt: skip


_forward_p = _forward()

# Operations that are wrong or incomplete before jax 0.5.


def concatenated(rows: Sequence[Any]) -> jax.Array:
    """The rows of uint32[k, n_words] arrays, which may be sharded over a part of a mesh."""
    if jax.__version_info__ >= (0, 5):
        return jnp.concatenate(rows)
    n, at, joined = sum(map(len, rows)), 0, np.uint32(0)
    for part in rows:  # `concatenate` would sum what the other part of the mesh repeats
        joined |= lax.pad(part, np.uint32(0), [(at, n - at - len(part), 0), (0, 0, 0)])
        at += len(part)
    return jnp.asarray(joined)


# Packed rows of numbers that are multiplied by a scalar.


def scaled_rows(rows: jax.Array, statistics: tuple[str, ...], factor: jax.Array) -> jax.Array:
    """uint32[..., words] of those `statistics` that are in `LIGHT`, of the numbers times a factor.

    Args:
      factor: float32[]. If it is not finite, at least one of the numbers of a leaf is not.
    """
    fraction, exponent = jnp.frexp(jnp.abs(factor))
    is_finite = jnp.isfinite(factor)
    fraction, exponent = (jnp.where(is_finite, x, jnp.zeros_like(x)) for x in (fraction, exponent))
    first = rows[..., 0]
    words, at = [jnp.where(first == np.uint32(NO_NUMBER), first, first + exponent.astype(jnp.uint32))], 1
    for name in statistics:
        word, at = rows[..., at], at + (STATISTICS[name].n_bins or 1)
        if name == "nonfinite":
            words.append(jnp.where(is_finite, word, jnp.maximum(word, np.uint32(1))))
        elif name in LIGHT:
            by = fraction * fraction if name == "norm" else fraction  # the word of a norm is the sum of squares
            words.append(lax.bitcast_convert_type(lax.bitcast_convert_type(word, jnp.float32) * by, jnp.uint32))
    return jnp.stack(words, axis=-1)


# The cosine between successive gradients.


@partial(jax.jit, static_argnums=2)
def cosines(
    leaves: list[jax.Array | None], others: list[jax.Array | None], axes: tuple[int | None, ...] = ()
) -> jax.Array:
    """uint32[rows, 1]: the bits of the cosine of two leaves, or of each of their layers; NaN if one is None or zero.

    Non-finite numbers count as zeros. The axes are those of `reduce_leaves`.
    """
    packed: list[jax.Array | np.ndarray] = [np.zeros((0, 1), np.float32)]
    for a, b, axis in zip(leaves, others, axes or (None,) * len(leaves), strict=True):
        if a is None or b is None:
            packed.append(np.full((1, 1), np.nan, np.float32))
        else:
            packed.append(_cosine(a, b)[None] if axis is None else jax.vmap(_cosine, axis)(a, b))
    return lax.bitcast_convert_type(jnp.concatenate(packed), jnp.uint32)


def _cosine(a: jax.Array, b: jax.Array) -> jax.Array:
    def scaled_by_peak(x: jax.Array) -> list[jax.Array]:
        """The real part, and the imaginary one if there is one, as float32, divided by the largest magnitude."""
        parts = [x.real, x.imag] if jnp.issubdtype(x.dtype, jnp.complexfloating) else [x]
        parts = [jnp.where(jnp.isfinite(x), x if x.dtype == jnp.float64 else x.astype(jnp.float32), 0) for x in parts]
        peak = jnp.max(jnp.stack([jnp.max(jnp.abs(x)) for x in parts]))
        down, up = (np.array(2.0**shift, peak.dtype) for shift in (-100, 100))
        once = jnp.where(peak > up, down, jnp.where(peak < down, up, np.array(1, peak.dtype)))
        again = once * peak
        return [(x * once / jnp.where(again > 0, again, np.array(1, peak.dtype))).astype(jnp.float32) for x in parts]

    left, right = (scaled_by_peak(barrier(lax.stop_gradient(jnp.asarray(x)))) for x in (a, b))
    dot = jnp.sum(jnp.stack([jnp.sum(x * y) for x, y in zip(left, right, strict=False)]))
    squares = [jnp.sum(jnp.stack([jnp.sum(x * x) for x in parts])) for parts in (left, right)]
    squares = squares[0] * squares[1]
    return jnp.where(squares > 0, dot / jnp.sqrt(jnp.where(squares > 0, squares, 1)), np.float32(np.nan))[None]


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
    given = [(i, leaf) for i, leaf in enumerate(leaves) if leaf is not None]
    numbers = {i: as_real(barrier(lax.stop_gradient(jnp.asarray(leaf)))) for i, leaf in given}
    n_rows = [1 if axis is None else numbers[i].shape[axis] for i, axis in enumerate(axes)]
    first = list(accumulate(n_rows, initial=0))
    rows, order, small = [], [], {}
    for i, x in numbers.items():
        axis = axes[i]
        if axis is None and x.size < SMALL_BELOW and not is_sharded(x):
            small.setdefault((x.dtype, getattr(type_of(x), "vma", None)), []).append(i)
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
            of_members = tuple([sizes[i] for i in members])
            counts = tuple([-(-size // length) for size in of_members]) if in_rows else None
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


def type_of(x: jax.Array):
    return jax.typeof(x) if hasattr(jax, "typeof") else None  # jax < 0.6


def spec_of(aval: Any) -> tuple[Any, ...]:
    """How a type is sharded, which only types in explicit meshes say."""
    return tuple(getattr(getattr(aval, "sharding", None), "spec", ()))


def is_sharded(x: jax.Array) -> bool:
    """Whether the type has a sharding, as in explicit meshes. Such an array cannot be reshaped freely."""
    return any(spec_of(type_of(x)))


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
    nonfinite_of = ("sum", as_words(bits >= INFINITY))
    usual_range = USUAL_FROM, HUGE_FROM, np.float32(1)
    is_light = not set(statistics) - set(LIGHT)
    range_code, scale = jnp.full(len(sizes), USUAL, jnp.uint32), np.float32(1)
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
        range_code = as_words(peak >= USUAL_FROM) + as_words(peak >= HUGE_FROM)
        squares = _chosen(range_code, tiny, usual + _lower(tiny), huge + _lower(usual))
        if not is_light:
            scale = _chosen(range_code, _UP, np.float32(1), _DOWN)
            scale = scale if counts is None else scale[np.repeat(np.arange(len(counts)), counts)]
            scale = lax.expand_dims(scale, range(1, x.ndim))

    packed = {"norm": bits_of(squares), "max_abs": peak, "nonfinite": nonfinite}
    if not is_light:
        total, zeros, *n_of = reduced(
            [
                ("sum", jnp.where(bits < INFINITY, values, np.float32(0)) * scale),
                ("sum", as_words(magnitude(x) == 0)),
                ("sum", as_words(bits > INFINITY)),
                ("sum", as_words(values == np.float32(np.inf))),
                ("sum", as_words(values == np.float32(-np.inf))),
            ]
        )
        n = np.array(sizes, np.uint32)
        n_padded = np.array(counts or 1, np.uint32) * np.uint32(math.prod(x.shape[1:]))
        n_finite = jnp.maximum(n - nonfinite, np.uint32(1))
        packed["mean"] = bits_of(total / n_finite.astype(jnp.float32))
        packed["zeros"] = zeros - (n_padded - n)
        packed.update(zip(("nan", "posinf", "neginf"), n_of, strict=True))
    first = (exponent + np.int32(EXPONENT_ZERO)).astype(jnp.uint32) | (range_code << np.uint32(RANGE_AT))
    columns = [jnp.broadcast_to(first, peak.shape), *[packed[name] for name in statistics if name != "histogram"]]
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
        ("sum", as_words(lax.bitwise_not(is_finite))),
    ]


def _of_peak(peak: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """2**-exponent as float32, the exponent, and the bits of the largest magnitude times 2**-exponent."""
    biased = lax.clamp(np.uint32(1), peak >> np.uint32(23), np.uint32(253))
    # Denormal numbers stay as they are.
    biased = lax.select(peak < np.uint32(1 << 23), jnp.full_like(biased, 127), biased)
    scale = lax.bitcast_convert_type((np.uint32(254) - biased) << np.uint32(23), jnp.float32)
    return scale, biased.astype(jnp.int32) - 127, peak - ((biased - np.uint32(127)) << np.uint32(23))


def _lower(sum_of_squares: jax.Array) -> jax.Array:
    """The sum of squares in the scale of the next range: times 2**-160, by the exponent, as no float32 holds it."""
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


def as_words(mask: jax.Array) -> jax.Array:
    return lax.convert_element_type(mask, np.uint32)


def _chosen(range_code: jax.Array, tiny, usual, huge) -> jax.Array:
    return jnp.where(range_code == HUGE, huge, jnp.where(range_code == USUAL, usual, tiny))


def _reduced(
    terms: Sequence[tuple[str, jax.Array]], is_cpu: bool, counts: Sequence[int] | None = None
) -> list[jax.Array]:
    """[k] for each term: its sums or maxima over all axes but the first; with counts, of the rows of each leaf."""
    shape = terms[0][1].shape
    axes = tuple(range(1, len(shape)))
    if not is_cpu:  # XLA fuses these into one pass; `jnp.sum` of uint32 would be uint64 with x64
        return [jnp.sum(x, axes, dtype=x.dtype) if operation == "sum" else jnp.max(x, axes) for operation, x in terms]
    # XLA CPU makes one fast loop of several reductions if they are one operation with at most one sum of floats
    # (jax 0.10.2: 0.15 ns an element, else 1.2 ns), and compiles it in half the time of a single reduction.
    # It adds numbers one by one, so rows are summed first to keep digits.
    results, others = list(reduced_together(terms, axes[-1:])), axes[:-1]
    if counts is not None:
        others = (1,) if max(counts) > 1 else ()
        results = [_by_leaf(x, counts) for x in results] if others else results
    if others:
        operations = [operation for operation, _ in terms]
        results = [*reduced_together([*zip(operations, results, strict=True)], others)]
    return results


def _by_leaf(x: jax.Array, counts: Sequence[int]) -> jax.Array:
    """[k, m, …] of x[n, …]: the rows of each leaf, padded with zeros."""
    ends = np.cumsum(counts)
    which = np.arange(max(counts)) + (ends - counts)[:, None]
    which = np.where(which < ends[:, None], which, ends[-1]).astype(np.int32)
    with_zeros = lax.pad(x, np.zeros((), x.dtype), [(0, 1, 0), *[(0, 0, 0)] * (x.ndim - 1)])
    return with_zeros.at[which].get(mode="promise_in_bounds")


def reduced_together(terms: Sequence[tuple[str, jax.Array]], axes: Sequence[int]) -> Sequence[jax.Array]:
    joins = [lax.add if operation == "sum" else lax.max for operation, _ in terms]

    def join(left: Sequence[jax.Array], right: Sequence[jax.Array]) -> tuple[jax.Array, ...]:  # JAX keeps it
        return tuple([f(a, b) for f, a, b in zip(joins, left, right, strict=True)])

    zeros = [_as_float64(jnp.float32(0)) if x.dtype == np.float64 else np.zeros((), x.dtype) for _, x in terms]
    return lax.reduce(tuple([x for _, x in terms]), tuple(zeros), join, tuple(axes))


def _histogram(x: jax.Array, reduced: Callable) -> jax.Array:
    """uint32[k, N_BINS]: how often each power of two occurs. Zeros and non-finite numbers are left out."""
    bits = magnitude(x)
    n_mantissa, bias, word = (52, 1023, np.uint64) if x.dtype == jnp.float64 else (23, 127, np.uint32)
    finite = jnp.where(bits < word((2 * bias + 1) << n_mantissa), bits, word(0))
    starts = [word(1), *[word((bias + FIRST_EXPONENT + i) << n_mantissa) for i in range(1, N_BINS)]]
    # Count the numbers in each bin or above, 16 bins at a time: a fast loop without an array of bins x numbers.
    above = []
    for first in range(0, N_BINS, 16):
        above += reduced([("sum", as_words(finite >= start)) for start in starts[first : first + 16]])
    above = jnp.stack([*above, jnp.zeros_like(above[0])], axis=1)
    return above[:, :-1] - above[:, 1:]


# Values that go into a parameter or come out of it. Each is reduced to a few rows, and the rows of all values together.

_N_ROWS = 64
_FEWEST = 1 << 12  # numbers whose sums XLA CPU leaves to a library, which compiles next to nothing
_HALF = np.uint32(1 << 16)  # two counts share a word


class ActivationParts(NamedTuple):
    """What a value is reduced to, before `activation_rows`. Words of counts are missing for a value without them.

    Attributes:
      rows: Of rows that the value is broken into: the sums of squares, in float64, the largest magnitudes, and the
        counts of non-finite numbers and, times 2**16, of zeros; None: `words` has all.
      light: In place of all others, float32 sums over all axes but those of the features, or the last one: of squares,
        and of ones for numbers that are not zero, if there are features.
    """

    words: dict[str, jax.Array]
    rows: tuple[jax.Array, ...] | None = None
    n_padded: int = 0
    light: tuple[jax.Array, ...] = ()

    @property
    def length(self) -> int:
        """Parts are given to `activation_rows` in the order of these, the longest first."""
        return max([x.size for x in self.light], default=_N_ROWS * (self.rows is not None))


def activation_parts(
    x: jax.Array, statistics: tuple[str, ...], features: tuple[int, ...] | None = None, n_rows: int | None = None
) -> ActivationParts:
    """Reduce a value, of which the caller has taken care that XLA does not merge the reduction with the step.

    Args:
      statistics: Those of `statistics_of_activations`.
      features: The axes of the features, of which those are counted that are zero or the same in all examples.
      n_rows: x holds indices of so many rows, and nothing but the rows that are read is counted.
    """
    if statistics == LIGHT_OF_ACTIVATIONS:
        nothing = jnp.zeros(1, jnp.float32)
        return ActivationParts({}, light=(nothing,) if n_rows is not None else _light_activation(x, features))
    words, rows = _activation(x, statistics, features, n_rows, jax.default_backend() == "cpu")
    return ActivationParts(words, rows or None, -x.size % _N_ROWS)


@partial(jax.jit, static_argnums=1)  # traced and lowered once for all values of a shape
def _light_activation(x: jax.Array, features: tuple[int, ...] | None) -> tuple[jax.Array, ...]:
    x = as_real(lax.stop_gradient(x))
    kept = range(x.ndim)[-1:] if features is None else features
    others, n = tuple(axis for axis in range(x.ndim) if axis not in kept), math.prod([x.shape[axis] for axis in kept])
    if x.size < _FEWEST and not is_sharded(x):
        x, others = _rows_with_zeros([barrier(flat(lax.transpose(x, (*others, *kept))))], n), (0,)
    terms = [lax.square(x), *([] if features is None else [lax.abs(lax.sign(x))])]
    sums = [lax.reduce(term, np.zeros((), x.dtype), lax.add, others) for term in terms]
    if is_sharded(x):  # so many numbers, with this sum, that are not zero: these can be joined with those of others
        n_live, sums = jnp.sum(lax.sign(sums[-1])), [jnp.sum(y) for y in sums]
        sums[1:] = [jnp.where(np.arange(n) < n_live, y / n_live, 0) for y in sums[1:]]
    return tuple([lax.convert_element_type(lax.reshape(y, (y.size,)), np.float32) for y in sums])


def _rows_with_zeros(parts: Sequence[Any], length: int) -> jax.Array:
    """The parts as rows of a length, and so many rows of zeros that XLA CPU leaves sums of rows to a library."""
    lacking = max(-(-_FEWEST // length) * length - sum([x.size for x in parts]), 0)
    zeros = [_zeros(lacking).astype(parts[0].dtype)] if lacking else []
    return copied_together([*parts, *zeros]).reshape(-1, length)


def _light_rows(parts: Sequence[ActivationParts]) -> jax.Array:
    """uint32[values, 3]: bits of float32, as `unpack_activations` reads them."""
    rows = []
    for group in blocks(range(len(parts)), [part.length for part in parts]):
        members, length = [parts[i].light for i in group], parts[group[0]].length
        lines: list[Any] = []
        for xs in [xs[i:][:1] for i in (0, 1) for xs in members]:
            lines += [*xs, *([_zeros(n)] if (n := length - sum([x.size for x in xs])) else [])]
        block = _rows_with_zeros(lines, length)
        both = [lax.reduce(x, np.float32(0), lax.add, (1,)) for x in (block, lax.abs(lax.sign(block)))]
        starts = (0, 0), (0, len(members)), (1, len(members))
        rows.append([lax.slice_in_dim(both[which], start, start + len(members)) for which, start in starts])
    columns = [joined_arrays(column) for column in zip(*rows, strict=True)]
    return bits_of(lax.concatenate([lax.expand_dims(column, (1,)) for column in columns], 1))


@partial(jax.jit, static_argnums=(1, 2, 3, 4))  # traced and lowered once for all values of a shape
def _activation(x, statistics, features, n_rows, is_cpu) -> tuple[dict[str, jax.Array], tuple[jax.Array, ...]]:
    x, words = lax.stop_gradient(x), dict[str, jax.Array]()
    if n_rows is not None:
        is_read = jnp.zeros(n_rows, jnp.uint32).at[x.reshape(-1)].set(np.uint32(1), mode="drop")
        return {"rows_read": jnp.sum(is_read, dtype=jnp.uint32), "unread_at": _first_of(is_read == 0)}, ()
    x = as_real(x)
    if features is not None:
        others = tuple(axis for axis in range(x.ndim) if axis not in features)
        is_dead = magnitude(jnp.max(jnp.abs(x), others)) == 0  # a maximum of floats is a fast loop
        words["dead"] = jnp.sum(as_words(is_dead), dtype=jnp.uint32)
        words["constant"] = jnp.sum(as_words(jnp.max(x, others) == jnp.min(x, others)), dtype=jnp.uint32)
        if not is_sharded(is_dead):  # of sharded ones `jnp.nonzero` lists none
            # The order of the contracted axes is that of the weight.
            words["dead_at"] = _first_of(jnp.transpose(is_dead, [sorted(features).index(axis) for axis in features]))
    if not (is_cpu and has_float64_sums() and x.dtype == jnp.float32 and x.size < _N_ROWS * _HALF) or is_sharded(x):
        zeros = jnp.sum(as_words(magnitude(x) == 0), dtype=jnp.uint32)
        whole = _rows_of(_in_rows(x[None]), (x.size,), _has_usual_squares(x.dtype), LIGHT, is_cpu)[0]
        return {**words, **dict(zip(("first", *LIGHT), whole, strict=True)), "zeros": zeros}, ()
    n_padded = -x.size % _N_ROWS
    x = lax.reshape(x, (x.size,))
    x = lax.pad(x, np.float32(0), [(0, n_padded, 0)]) if n_padded else x
    is_finite = lax.is_finite(x)
    finite = lax.select(is_finite, x, lax.full_like(x, 0))
    zeros = lax.shift_left(as_words(magnitude(x) == 0), np.uint32(16))
    counts = lax.select(is_finite, zeros, lax.full_like(zeros, 1))
    terms = [("sum", lax.square(_as_float64(finite))), ("max", magnitude(finite)), ("sum", counts)]
    terms = [(operation, lax.reshape(term, (_N_ROWS, x.size // _N_ROWS))) for operation, term in terms]
    return words, tuple(reduced_together(terms, (1,)))


def _first_of(mask: jax.Array) -> jax.Array:
    """The first places, counted from 1, in a row of statistics; then zeros."""
    places = jnp.nonzero(mask.reshape(-1), size=STATISTICS["dead_at"].n_bins, fill_value=-1)[0]
    return places.astype(jnp.uint32) + np.uint32(1)


def activation_rows(parts: Sequence[ActivationParts], statistics: tuple[str, ...]) -> jax.Array:
    """uint32[values, n_words]: the packed rows of values, for `statistics_of_activations`; those in rows come first."""
    if statistics == LIGHT_OF_ACTIVATIONS:
        return _light_rows(parts)
    in_rows = [part for part in parts if part.rows is not None]
    others, together = parts[len(in_rows) :], dict[str, jax.Array]()
    if in_rows:
        of_values = zip(*[part.rows or () for part in in_rows], strict=True)
        blocks_of = [lax.reshape(copied_together(rows), (len(in_rows), _N_ROWS)) for rows in of_values]
        sums, peaks, counts = blocks_of
        both = counts & (_HALF - np.uint32(1)), lax.shift_right_logical(counts, np.uint32(16))
        terms = [*zip(("sum", "max", "sum", "sum"), (sums, peaks, *both), strict=True)]
        squares, peak, nonfinite, zeros = reduced_together(terms, (1,))
        range_code = as_words(peak >= USUAL_FROM) + as_words(peak >= HUGE_FROM)
        up, down, one = (_as_float64(lax.full_like(peak, scale, np.float32)) for scale in (_UP, _DOWN, 1))
        scale = lax.select(range_code == HUGE, down, lax.select(range_code == USUAL, one, up))
        squares = lax.convert_element_type(lax.mul(lax.mul(squares, scale), scale), np.float32)
        zeros -= np.array([part.n_padded for part in in_rows], np.uint32)
        first = np.uint32(EXPONENT_ZERO) | range_code << np.uint32(RANGE_AT)
        together = {"first": first, "norm": bits_of(squares), "max_abs": peak, "nonfinite": nonfinite, "zeros": zeros}
    columns = []
    for name in ("first", *statistics):
        n = 1 if name == "first" else STATISTICS[name].n_bins or 1
        missing = np.full(n, EXPONENT_ZERO if name == "first" else NO_COUNT, np.uint32)
        own = [jnp.reshape(part.words.get(name, missing), (1, n)) for part in (others if name in together else parts)]
        columns.append(jnp.concatenate([together[name][:, None], *own] if name in together else own))
    return jnp.concatenate(columns, axis=1)


# Leaves of several trees, and small results, reduced in one pass to rows of partial sums, which NumPy adds up.

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
    return _n_long_rows(leaf.size, 1 if axis is None else leaf.shape[0]) > 0 if _is_long(leaf) else axis is None


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
    """

    of_results: tuple[int, ...] = ()
    of_small: tuple[int, ...] = ()
    of_old: tuple[int, ...] = ()
    of_long: tuple[int, ...] = ()
    results: tuple[int, ...] = ()  # the order of the results: those that are compared come first
    leaves: tuple[int, ...] = ()  # the order of the leaves
    are_numbers: bool = False  # each row is a number as it is, and no row is of zeros

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
    small_rows = [(x.size // n, n) for x, n in zip(small, n_of_small, strict=True)]
    length = _partial_row_length([*[(x.size, 1) for x in (*after, *before)], *small_rows]) if after or small else 0
    zeros = [_zeros(length)] if length else []  # between which lie all rows that are reduced
    groups = (before or zeros, after, [*map(_padded, small, n_of_small, [length] * len(small))], zeros)
    n_rows = [tuple((x.size + _n_padding(x.size, length)) // length for x in group) for group in groups]
    of_small = tuple(chain(*[(k // n,) * n for k, n in zip(n_rows[2], n_of_small, strict=True)]))
    of_old = n_rows[0] if before else ()
    of_layers = [(_n_long_rows(x.size, n),) * n for x, n in zip(long, n_of_long, strict=True)]
    first = [0, *accumulate(n_layers)]
    entries = tuple(chain(*[range(first[i], first[i + 1]) for i in order]))
    rows = Rows(n_rows[1], of_small, of_old, tuple(chain(*of_layers)), tuple(results), entries)
    parts = [_sums_of_small(list(chain(*groups)), length, rows)] if length else []
    parts += [_sums_of_long(x, sum(n)) for x, n in zip(long, of_layers, strict=True)]
    sums, peaks, counts = zip(*parts, strict=True)
    return [*sums], [*peaks, *counts], rows


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


def _partial_row_length(sizes: Sequence[tuple[int, int]]) -> int:
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

    Only results need these, but XLA CPU makes one quick loop only of what is done in the same way for all rows.
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
    is_finite, (none, one) = lax.is_finite(x), (lax.full_like(x, n, np.uint32) for n in (0, 1))
    return _sums(is_finite, x, lax.select(is_finite, none, one), n_rows)


def _sums(is_finite: jax.Array, numbers: jax.Array, counts: jax.Array, n_rows: int) -> Sequence[jax.Array]:
    """One operation, of which XLA CPU makes one loop, since only one of its sums is of floats.

    Rows are made last: XLA moves a reshape behind one operation at a time, and simplifies the whole program after each.
    """
    finite = lax.select(is_finite, numbers, lax.full_like(numbers, 0))
    terms = lax.square(_as_float64(finite)), magnitude(finite), counts
    starts = _as_float64(jnp.float32(0)), np.uint32(0), np.uint32(0)

    def join(left: Sequence[jax.Array], right: Sequence[jax.Array]) -> Sequence[jax.Array]:
        return lax.add(left[0], right[0]), lax.max(left[1], right[1]), lax.add(left[2], right[2])

    return lax.reduce(tuple(lax.reshape(x, (n_rows, x.size // n_rows)) for x in terms), starts, join, (1,))


def has_float64_sums() -> bool:
    """Before jax 0.7.2 no operation without x64 may sum float64."""
    return jax.__version_info__ >= (0, 7, 2)


def _as_float64(x: jax.Array) -> jax.Array:
    """Also where `jax_enable_x64` is off, and functions of JAX would give float32."""
    return lax.convert_element_type_p.bind(x, new_dtype=np.dtype(np.float64), weak_type=False, sharding=None)


def as_float32(bits: jax.Array) -> jax.Array:
    """With these bits; of those of float64 with its NaN and infinities."""
    if bits.dtype == np.uint32:
        return lax.bitcast_convert_type(bits, np.float32)
    x = lax.bitcast_convert_type(bits, np.float64)
    return lax.convert_element_type(lax.select(lax.is_finite(x), lax.full_like(x, 0), x), np.float32)


@cache
def _places(rows: Rows) -> tuple[np.ndarray, int, int]:
    """Where the rows of each array begin, and how many are of results, or small, whose words hold three counts."""
    starts, n_result_rows = np.array([0, *accumulate(rows.n_rows)][:-1], np.intp), sum(rows.of_results)
    return starts, n_result_rows, n_result_rows + sum(rows.of_small)


def added_up(sums: np.ndarray, words: np.ndarray, rows: Rows) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Of sums[..., rows] and words[..., n]: the packed rows of `LIGHT`, uint32[..., leaves, 4], and what results have.

    That is uint32[..., results], as `instrumented.count_in_results` packs it. None for no leaves, or no results.
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
        range_code = (peaks >= USUAL_FROM).astype(np.uint32) + (peaks >= HUGE_FROM)
        squares = np.add.reduceat(sums, starts, -1)[..., n_results:] * _TO_RANGE[range_code]
        first = np.uint32(EXPONENT_ZERO) | range_code << np.uint32(RANGE_AT)
        packed = np.empty((*range_code.shape, n_words(LIGHT)), np.uint32)
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


# Few numbers leave a program as they are, and NumPy measures them: a kernel is dearer to compile than they to read.

MOST_NUMBERS = 1 << 10  # of all arrays; to copy and to measure one takes some 10 ns, in every step


def numbers_as_they_are(
    leaves: Sequence[jax.Array],
    new: Sequence[jax.Array],
    old: Sequence[jax.Array | None],
    n_layers: Sequence[int] = (),
) -> tuple[list[jax.Array], list[jax.Array], Rows]:
    """As `partial_sums`, of few numbers: no float64, and the bits of leaves, results and those before."""
    n_layers = n_layers or (1,) * len(leaves)
    results = sorted(range(len(new)), key=lambda i: old[i] is None)
    before = [as_float32(x) for i in results if (x := old[i]) is not None]
    groups = [as_float32(new[i]) for i in results], [as_real(barrier(flat(x))) for x in leaves], before
    of_results, _, of_old = (tuple([x.size for x in group]) for group in groups)
    of_leaves = tuple(chain(*[(x.size // n,) * n for x, n in zip(groups[1], n_layers, strict=True)]))
    rows = Rows(of_results, of_leaves, of_old, (), tuple(results), tuple(range(len(of_leaves))), are_numbers=True)
    return [], [bits_of(copied_together([x for group in groups for x in group]))], rows


def measured(bits: np.ndarray, rows: Rows) -> tuple[np.ndarray | None, np.ndarray | None]:
    """As `added_up`, of bits[..., numbers]."""
    n, n_results, n_old = sum(rows.n_rows), sum(rows.of_results), sum(rows.of_old)
    bits, before = bits[..., :n], bits[..., n:]
    size = bits & np.uint32(0x7FFFFFFF)
    is_bad = size >= INFINITY
    numbers = np.where(is_bad, np.float32(0), np.ascontiguousarray(bits).view(np.float32)).astype(np.float64)
    counts = is_bad.astype(np.uint32)
    counts[..., :n_results] += (size[..., :n_results] > INFINITY).astype(np.uint32) << np.uint32(N_BITS)
    counts[..., :n_old] += (bits[..., :n_old] != before).astype(np.uint32) << np.uint32(2 * N_BITS)
    size[is_bad] = 0
    return rows_added_up(np.square(numbers, out=numbers), size, counts, rows)


# Trees whose leaves are measured when the whole program has been traced: together, and the same on each device.

NOTHING = np.array([NO_NUMBER, 0, 0, 0], np.uint32)  # the packed row of a leaf without numbers


class BatchSlice(NamedTuple):
    """One of several leaves that are computed together, as one array [leaves, …]."""

    together: jax.Array
    place: int

    def alone(self) -> jax.Array:
        return lax.index_in_dim(self.together, self.place, keepdims=False)


class Unreduced(NamedTuple):
    """A tree that is measured together with others, when the whole program has been traced."""

    leaves: Sequence[jax.Array | BatchSlice | None]
    axes: Axes

    def divided(self) -> Divided:
        axes = self.axes or (None,) * len(self.leaves)
        partial: dict[int, tuple[jax.Array, int, list[int]]] = {}  # with the number of leaves or layers, and their rows
        others: list[jax.Array | None] = []
        n_rows, pairs = 0, [*zip(self.leaves, axes, strict=True)]
        apart = {id(x.together) for x, axis in pairs if isinstance(x, BatchSlice) and axis is not None}
        for i, (x, axis) in enumerate(pairs):
            if isinstance(x, BatchSlice) and id(x.together) not in apart:
                partial.setdefault(-id(x.together), (x.together, len(x.together), []))[2].append(n_rows)
                x, n = None, 1
            else:
                x = x.alone() if isinstance(x, BatchSlice) else x
                n = 1 if x is None or axis is None else x.shape[axis]
                if x is not None and is_partial(x, axis):
                    partial[i], x = (x, n, [*range(n_rows, n_rows + n)]), None
            others.append(x)
            n_rows += n
        arrays, n_layers, rows = zip(*partial.values(), strict=True) if partial else ((), (), ())
        packed = None if all(x is None for x in others) else reduce_leaves(others, LIGHT, axes)
        return Divided([*arrays], [*n_layers], (*itertools.chain(*rows),), packed, (n_rows, n_words(LIGHT)))

    def per_device(self) -> Any:
        """Inside a `shard_map`: the partial sums of this device; the packed rows, if there are none."""
        partial, n_layers, entries, packed, shape = self.divided()
        if not partial:
            return packed
        sums, words, rows = partial_sums(partial, (), (), n_layers)
        arrays = [joined_arrays(sums), joined_arrays(words), *([] if packed is None else [packed])]
        return PerDevice(tuple(arrays), Summed(rows, entries, shape))


class Divided(NamedTuple):
    """A tree, of which some leaves, with so many layers, are for `partial_sums`, which makes some of its rows."""

    leaves: list[jax.Array]
    n_layers: list[int]
    entries: tuple[int, ...]
    packed: jax.Array | None  # all packed rows with those of the other leaves, if there are any
    shape: tuple[int, ...]  # of all packed rows


class Summed(NamedTuple):
    """How the partial sums of a tree lie that each device of a `shard_map` makes."""

    rows: Rows
    entries: tuple[int, ...]  # the packed rows that are made of them, in their order
    shape: tuple[int, ...]  # of all packed rows of a device
    is_alike: bool = False  # all devices have the same


@tree_util.register_pytree_node_class
class PerDevice(NamedTuple):
    """The partial sums of a tree that each device of a `shard_map` makes, which are added up on the host.

    A pytree of arrays. Outside, those of the devices follow one another along the first axis: of a further axis of
    devices XLA CPU would make a kernel.
    """

    arrays: tuple[Any, ...]  # float64[rows], uint32[…]; and the packed rows of the other leaves, if there are any
    summed: Summed

    def replicated(self) -> PerDevice:
        """The same, where all devices have measured the same."""
        return PerDevice(self.arrays, self.summed._replace(is_alike=True))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the packed rows."""
        n_devices = self.arrays[0].size // sum(self.summed.rows.n_rows)
        return self.summed.shape if self.summed.is_alike else (n_devices, *self.summed.shape)

    def tree_flatten(self):
        return self.arrays, self.summed

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(tuple(children), aux)
