"""Summaries of sets of numbers: computed on the host or on the array's device, and merged from parts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
from jax import lax

from treeviz.tree.series import FIRST_EXPONENT, N_BINS

_AT_ONCE = 1 << 20  # counts summed at a time
ZEROS, NAN, POSINF, NEGINF, BINS = 0, 1, 2, 3, 4  # the columns of `Summaries.counts`

# The bin of every sign and exponent of a float64: its highest 12 bits.
_BIN_OF_HIGH_BITS = np.clip(np.arange(4096) % 2048 - 1023 - FIRST_EXPONENT, 0, N_BINS - 1)


class Summaries(NamedTuple):
    """The statistics of each of k sets of numbers."""

    moments: np.ndarray  # float64[5, k]: the number of finite values; their mean, standard deviation, minimum, maximum
    # int64[k, 4 + N_BINS], or uint32 if all fit: zeros, NaN, +Inf, -Inf, the histogram of the finite, non-zero values
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
    finite, for_least, for_greatest = None, values, values
    if not np.isfinite(total).all():  # a NaN or an infinity, or the sum overflows
        finite = np.isfinite(values)
        for column, mask in ((NAN, np.isnan(values)), (POSINF, values == np.inf), (NEGINF, values == -np.inf)):
            counts[:, column] = _count(mask, starts)
        for_least, for_greatest = np.where(finite, values, np.inf), np.where(finite, values, -np.inf)
        values = np.where(finite, values, 0.0)
    moments[3], moments[4] = np.minimum.reduceat(for_least, starts), np.maximum.reduceat(for_greatest, starts)
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
    # Not np.dot: it uses BLAS threads, and its rounding depends on their number.
    is_one = starts.size == 1
    squares = np.einsum("i,i->", values, values)[None] if is_one else np.add.reduceat(values * values, starts)
    moments[1], moments[2] = mean, np.sqrt(squares / n_or_1)
    if scale is not None:
        moments[1:3] = np.ldexp(moments[1:3], scale)
    return summaries


def _count(mask: np.ndarray, starts: np.ndarray):
    return np.count_nonzero(mask) if starts.size == 1 else np.add.reduceat(mask, starts, dtype=np.int64)


def _bins(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """int64[k, N_BINS]: the count of each power of two. Zeros and non-finite values are counted in the end bins."""
    high_bits = (values.view(np.uint64) >> np.uint64(52)).view(np.intp)
    if starts.size == 1:
        by_high_bits = np.bincount(high_bits, minlength=4096)
        return np.bincount(_BIN_OF_HIGH_BITS, by_high_bits, N_BINS).astype(np.int64)[None]
    bins = _BIN_OF_HIGH_BITS[high_bits]
    bins += np.repeat(np.arange(0, starts.size * N_BINS, N_BINS), np.diff(starts, append=values.size))
    return np.bincount(bins, minlength=starts.size * N_BINS).reshape(-1, N_BINS)


def merge(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The moments of unions of sets: the parallel variance of Chan, Golub and LeVeque (1979).

    Uses standard deviations rather than sums of squares, which could overflow.
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
    """The sums of `counts[start[i] : stop[i]]`, computed a few columns at a time to save memory."""
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


# Arrays in host memory: NumPy on views of the values, in small chunks

CHUNK = 1 << 16  # elements, so that a chunk in float64 fits into the cache
SMALL = 1 << 12  # elements: smaller arrays are concatenated and summarised together
_ONE = np.zeros(1, np.intp)


def holds_numbers(dtype: np.dtype) -> bool:
    """Whether NumPy can convert the dtype to float64: bfloat16, float8 and int4 too."""
    return dtype.kind in "biufc" or (dtype.kind == "V" and np.can_cast(dtype, np.float64))


def lies_on_host(array: jax.Array) -> bool:
    """Whether the array is in this host's memory: on the CPU backend, or offloaded to pinned memory."""
    sharding = array.sharding
    return (sharding.memory_kind or "").endswith("_host") or next(iter(sharding.device_set)).platform == "cpu"


def host_view(shard: jax.Array) -> np.ndarray:
    """A zero-copy view of a single-device array, which leaves no cached copy on the array.

    The array cannot be donated while the view exists, so delete it at once.
    """
    dtype = shard.dtype
    if dtype.isbuiltin == 1 and next(iter(shard.sharding.device_set)).platform == "cpu":
        return np.asarray(memoryview(shard))  # type: ignore[arg-type]  # jax.Array has the buffer protocol
    # `np.asarray(shard)` may copy, and caches the copy on the array forever (int4; in jax 0.4.36 also a view of
    # bfloat16, which blocks donation), so it is called on another array with the same buffer.
    with jax.transfer_guard_device_to_host("allow"):
        return np.asarray(jax.make_array_from_single_device_arrays(shard.shape, shard.sharding, [shard]))


def once(*arrays: np.ndarray) -> tuple[list[np.ndarray], int]:
    """Arrays of one shape, without repeats along axes that all broadcast (stride 0), and the number of repeats."""
    views, n_repeats = list(arrays), 1
    for axis, size in enumerate(views[0].shape):
        if size > 1 and not any(view.strides[axis] for view in views):
            n_repeats *= size
            views = [view[(slice(None),) * axis + (slice(1),)] for view in views]
    return views, n_repeats


def summary_of_array(array: np.ndarray) -> Summaries:
    """The summary of any array of numbers. Copies at most one chunk at a time."""
    (array,), n_repeats = once(array)
    parts = [summarise(as_float64(chunk), _ONE) for chunk in _chunks(array)]
    if not parts:
        return nothing(1)
    moments, counts = union(join(parts))
    if n_repeats > 1:
        moments[0] *= n_repeats
        counts = counts * n_repeats
    return Summaries(moments, counts)


def as_float64(values: np.ndarray) -> np.ndarray:
    """A flat float64 copy of the values, or of the magnitudes of complex values."""
    if values.dtype.kind != "c":
        return values.astype(np.float64).reshape(-1)
    # 1e308 + 1e308j is finite, but its magnitude overflows; a complex NaN may have an infinite part.
    values = values.astype(np.complex128).reshape(-1)
    magnitudes = np.abs(values)
    if not np.isfinite(magnitudes).all():
        magnitudes[np.isfinite(values)] = np.minimum(magnitudes[np.isfinite(values)], np.finfo(np.float64).max)
        magnitudes[np.isnan(values)] = np.nan
    return magnitudes


def _chunks(array: np.ndarray) -> Iterator[np.ndarray]:
    """The elements in memory order, a chunk at a time; contiguous arrays are not copied."""
    if array.flags.c_contiguous or array.flags.f_contiguous:
        flat = array.reshape(-1, order="A")
        for start in range(0, flat.size, CHUNK):
            yield flat[start : start + CHUNK]
    else:
        flags = ["external_loop", "buffered", "zerosize_ok"]
        yield from np.nditer(array, flags, order="K", buffersize=CHUNK)  # type: ignore[call-overload]


class Pile:
    """Small arrays, concatenated in float64, to be summarised together."""

    def __init__(self):
        self.owners: list[int] = []  # for each summary in `parts`, the `owner` that was added with its values
        self.parts: list[Summaries] = []
        self._values = np.empty(CHUNK)
        self._starts: list[int] = []
        self._n_values = 0

    def add(self, owner: int, values) -> None:
        """Add a number, or a non-empty array of at most `SMALL` numbers."""
        n_values = getattr(values, "size", 1)
        if self._n_values + n_values > CHUNK or len(self._starts) >= 1024:
            self.flush()
        stop = self._n_values + n_values
        self._values[self._n_values : stop] = values
        self._starts.append(self._n_values)
        self.owners.append(owner)
        self._n_values = stop

    def flush(self) -> None:
        if self._starts:
            moments, counts = summarise(self._values[: self._n_values], np.array(self._starts, np.intp))
            counts = counts.astype(np.uint32)  # because trees may have 100,000 leaves
            self.parts.append(Summaries(moments, counts))
        self._starts, self._n_values = [], 0


# Arrays on an accelerator: one program per shape and dtype, on the device of the array

_NO_MESH = jax.sharding.Mesh(np.empty((), object), ())
_MOST_ELEMENTS_AT_ONCE = 1 << 16  # elements
MAX_ELEMENTS = 2**32 - 1  # of one shard: counts are uint32


def launch(shard: jax.Array, axis: int | None = None) -> tuple[jax.Array, bool]:
    """Start the reduction of a single-device array, or of each of its layers along an axis, without waiting for it.

    Returns:
      uint32[...] or uint32[layers, ...] on the same device, for `summary_of_bits`, and whether it contains float64.
    """
    (device,) = shard.sharding.device_set
    wide = has_float64(device)
    with undisturbed(), jax.default_device(device):
        return (_reduced(shard, wide=wide) if axis is None else _reduced_layers(shard, axis=axis, wide=wide)), wide


def has_float64(device) -> bool:
    return device.platform != "tpu"


def fetch(arrays: list[jax.Array]) -> list[np.ndarray]:
    """Copy the arrays to the host in one transfer."""
    with undisturbed():
        return jax.device_get(arrays)


def part_of(array: Any, starts: np.ndarray, sizes: list[int]) -> Any:
    """A part of an array in host memory as a view, or of one on a single device as a copy there."""
    if isinstance(array, np.ndarray):
        return array[tuple(slice(start, start + size) for start, size in zip(starts.tolist(), sizes, strict=True))]
    (device,) = array.sharding.device_set
    with undisturbed(), jax.default_device(device):
        # The starts are arguments, not constants, so that another part of this size compiles nothing.
        return lax.dynamic_slice(array, [np.int64(start) for start in starts], sizes)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Run with JAX's default settings and outside of any trace, in this thread, whatever the user has set."""
    newest = jax if hasattr(jax, "enable_x64") else jax.experimental  # jax < 0.8
    with contextlib.ExitStack() as stack:
        for context in (
            jax.ensure_compile_time_eval(),
            newest.enable_x64(True),  # type: ignore[attr-defined]
            jax.debug_nans(False),
            jax.debug_infs(False),
            jax.disable_jit(False),
            jax.check_tracer_leaks(False),  # type: ignore[attr-defined]
            jax.transfer_guard("allow"),
            jax.numpy_rank_promotion("allow"),
            jax.numpy_dtype_promotion("standard"),
        ):
            stack.enter_context(context)
        if hasattr(jax, "set_mesh"):  # inside a mesh, JAX rejects arrays on a subset of its devices
            with contextlib.suppress(ValueError):  # a mesh cannot be left while something is traced
                stack.enter_context(jax.set_mesh(_NO_MESH))
        yield


@partial(jax.jit, static_argnames="wide")
def _reduced(x: jax.Array, *, wide: bool) -> jax.Array:
    """uint32[...]: the moments and the counts of x as bits, which `jax_debug_nans` ignores."""
    # Constants are NumPy arrays: under `ensure_compile_time_eval` each JAX constant would compile a program.
    values = _real(x, wide)
    n_mantissa, bias, word = (52, 1023, np.uint64) if values.dtype == jnp.float64 else (23, 127, np.uint32)
    # Tests use the bits, since XLA may flush denormal numbers to zero.
    bits = lax.bitcast_convert_type(values, word)
    magnitude = (bits << 1) >> 1
    infinity = word((2 * bias + 1) << n_mantissa)
    finite, zero = magnitude < infinity, magnitude == 0
    exponent = (magnitude >> n_mantissa).astype(jnp.int32)

    bins = jnp.clip(exponent - (bias + FIRST_EXPONENT), 0, N_BINS - 1)
    bins = jnp.where(finite & ~zero, bins, -1)
    is_negative = (magnitude == infinity) & (bits != infinity)
    masks = (zero, magnitude > infinity, bits == infinity, is_negative, finite)
    counts = jnp.concatenate([jnp.stack([*map(_device_count, masks)]), _histogram(bins)])
    # Values are scaled by a power of two before they are summed, so that no square overflows or underflows.
    top = jnp.clip(jnp.max(jnp.where(finite, exponent, 0)), 1, 2 * bias - 1)
    scale = lax.bitcast_convert_type((2 * bias - top).astype(word) << n_mantissa, values.dtype)
    wider = jnp.float64 if wide else jnp.float32
    scaled = jnp.where(finite, values * scale, 0).astype(wider)
    n = jnp.maximum(counts[4], 1).astype(wider)
    mean = jnp.sum(scaled) / n
    std = jnp.sqrt(jnp.sum(jnp.where(finite, scaled - mean, 0) ** 2) / n)
    least = jnp.min(jnp.where(finite, values, jnp.inf))
    greatest = jnp.max(jnp.where(finite, values, -jnp.inf))
    floats = jnp.stack([mean, std, least.astype(wider), greatest.astype(wider)])
    exponent_of_scale = (top - bias).astype(jnp.uint32)
    return jnp.concatenate([lax.bitcast_convert_type(floats, jnp.uint32).reshape(-1), exponent_of_scale[None], counts])


@partial(jax.jit, static_argnames=("axis", "wide"))
def _reduced_layers(x: jax.Array, *, axis: int, wide: bool) -> jax.Array:
    reduce_layer = lambda i: _reduced(lax.dynamic_index_in_dim(x, i, axis, keepdims=False), wide=wide)  # noqa: E731
    bits = np.zeros((x.shape[axis], *jax.eval_shape(reduce_layer, 0).shape), np.uint32)
    return lax.fori_loop(0, x.shape[axis], lambda i, bits: bits.at[i].set(reduce_layer(i)), bits)


def _real(x: jax.Array, wide: bool) -> jax.Array:
    """float32 or float64 with the values of x, or their magnitudes if x is complex."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        values = jnp.abs(x.astype(jnp.complex128) if wide else x)
        limit = jnp.finfo(values.dtype).max
        values = jnp.where(jnp.isfinite(x), jnp.minimum(values, limit), values)
        return jnp.where(jnp.isnan(x), jnp.nan, values)
    exact_in_float32 = x.dtype == jnp.float32 or x.dtype.itemsize < 4
    return x.astype(jnp.float64 if wide and not exact_in_float32 else jnp.float32)


def _histogram(bins: jax.Array) -> jax.Array:
    every_bin = np.arange(N_BINS, dtype=np.int32)
    if bins.size > _MOST_ELEMENTS_AT_ONCE:  # one pass per bin: bins × elements would be too large
        fill = lambda index, counts: counts.at[index].set(_device_count(bins == index))  # noqa: E731
        return lax.fori_loop(0, N_BINS, fill, np.zeros(N_BINS, np.uint32))
    is_in_bin = bins[None] == every_bin.reshape(N_BINS, *(1,) * bins.ndim)
    return jnp.sum(is_in_bin, axis=tuple(range(1, is_in_bin.ndim)), dtype=jnp.uint32)


def _device_count(mask: jax.Array) -> jax.Array:
    return jnp.sum(mask, dtype=jnp.uint32)


def summary_of_bits(bits: np.ndarray, wide: bool) -> Summaries:
    """Decode the result of `launch`."""
    n_words = 8 if wide else 4
    mean, std, least, greatest = bits[:n_words].view(np.float64 if wide else np.float32).astype(np.float64)
    exponent = bits[n_words : n_words + 1].view(np.int32)[0]
    counts_and_n = bits[n_words + 1 :].astype(np.int64)
    moments, counts = summary = nothing(1)
    n = counts_and_n[NEGINF + 1]
    if n:
        moments[:, 0] = n, np.ldexp(mean, exponent), np.ldexp(std, exponent), least, greatest
    counts[0, : NEGINF + 1] = counts_and_n[: NEGINF + 1]
    counts[0, BINS:] = counts_and_n[NEGINF + 2 :]
    return summary
