"""Value statistics of every leaf and subtree: min, max, mean, spread, zeros, NaN, infinities and magnitudes.

Statistics ignore NaN and infinities; those are counted separately. Statistics of complex arrays are those of
the magnitudes |z|; a number with a NaN part counts as NaN. Counts are exact, and a denormal number does not count
as zero (XLA flushes denormals on the CPU, so `x == 0` finds more there). The rest is computed in float64, on a TPU in
float32; integers beyond 2**53 are rounded to float64.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
from jax import lax

from treeviz.tree.describers import WHOLE, Budget, Stopwatch, array_inside
from treeviz.tree.facts import KINDS, Column, Facts, Format, Note
from treeviz.tree.layers import axis_of
from treeviz.tree.leaves import why_unreduced
from treeviz.tree.series import FIRST_EXPONENT, N_BINS
from treeviz.tree.stored import Refused, Stored
from treeviz.tree.table import TreeTable
from treeviz.tree.text import class_name, counted, error_text, guarded, has_base, module_name, number_text, visible
from treeviz.tree.tracers import Tracer

# Summaries of sets of numbers: computed on the host or on the array's device, and merged from parts

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
    moments, counts = zip(*parts, strict=True)
    return parts[0] if len(parts) == 1 else Summaries(np.concatenate(moments, axis=1), np.concatenate(counts))


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
    """A zero-copy view of a single-device array. The array cannot be donated while it exists: delete it at once."""
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
    """Start the reduction of a single-device array, or of each layer along an axis. Returns uint32[...] on the device
    for `summary_of_bits`, and whether it contains float64.
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
    newest: Any = jax if hasattr(jax, "enable_x64") else jax.experimental  # jax < 0.8
    with (
        jax.ensure_compile_time_eval(),
        newest.enable_x64(True),
        jax.debug_nans(False),
        jax.debug_infs(False),
        jax.disable_jit(False),
        jax.check_tracer_leaks(False),  # type: ignore[attr-defined]
        jax.transfer_guard("allow"),
        jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
        contextlib.ExitStack() as stack,
    ):
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


# Read the values of leaves, each array where it is

NOT_READ = "not read: the statistics"  # the beginning of the reason
NOT_SCANNED, UNREADABLE = "not scanned: ", "could not be read: "  # likewise, of a limit and of an error
_CHECK_EVERY_S = 0.02


class Scan:
    """Reads leaves, each object once. `read` returns a leaf's number."""

    def __init__(self, max_elements: int, on_host: Callable[[jax.Array], bool], budget: Budget):
        self.reasons: dict[int, str] = {}  # why a leaf has no statistics, or a remark on how they were computed
        self.unread: set[int] = set()  # the leaves without statistics
        self.late = ""  # why arrays in host memory are no longer read
        self._budget, self._elapsed, self._check_at = budget, Stopwatch(), perf_counter()
        self._max_elements = max_elements
        self._on_host = on_host
        self._seen: dict[int | tuple[int, Any], int] = {}
        self._n_leaves = 0
        self._pile = Pile()
        self._large: list[tuple[int, Summaries]] = []
        self._launched: list[tuple[int, jax.Array, jax.Array, bool]] = []  # leaf or first layer, array, the bits, wide
        self._readers: dict[int, Callable[[int, Any], str | None] | None] = {}

    def read(self, leaf: Any, facts: Facts, layers: tuple[int, int] | None = None) -> int | None:
        """Read a leaf or the array in it, or each of its (axis, number of) layers; or start its reduction.

        Returns the number of the leaf or of its first layer; None for a leaf that is neither an array nor a number.
        """
        cls = type(leaf)
        if id(cls) not in self._readers:
            self._readers[id(cls)] = self._reader(cls)
        reader, array, why_not = self._readers[id(cls)], leaf, KINDS[facts.kind].no_values
        if reader is None and facts.is_leaf and facts.shape is not None:
            array = array_inside(leaf)
            reader = self._reader(type(array))
            why_not = KINDS["tensor"].no_values if facts.kind in ("variable", "opaque") else why_not
        if reader is None and not why_not:
            return None
        key = id(leaf) if layers is None else (id(leaf), layers)
        if key in self._seen:
            return self._seen[key]
        n = 1 if layers is None else layers[1]
        owner = self._seen[key] = self._n_leaves
        self._n_leaves += n
        self._check_time()
        try:
            reason = f"no statistics: it has no {n:,} layers"
            if reader is None or layers is None:
                reason = why_not if reader is None else reader(owner, array)
            else:
                array = np.asarray(array) if type(array) is Stored else array
                read: Any = self._reader(type(array))
                if read in (self._read_jax_array, self._read_array) and array.shape[layers[0] :][:1] == (n,):
                    reason = read(owner, array, layers[0])
        except Refused as error:
            reason = f"{NOT_SCANNED}{error}"
        except Exception as error:
            reason = _trouble(leaf, error)
        if reason:
            for number in range(owner, owner + n):
                self._give_up(number, reason)
        return owner

    def _check_time(self) -> None:
        if (now := perf_counter()) >= self._check_at:
            self._check_at = now + _CHECK_EVERY_S
            if self._elapsed() > self._budget.read_s:
                self.late = f"{NOT_READ} take more than {self._budget.read_s:g} s{self._budget.hint}"

    def finish(self) -> Summaries:
        """Wait for the reductions. Returns the summary of every leaf, by number."""
        self._pile.flush()
        self._fetch()
        owners = np.array([*self._pile.owners, *(owner for owner, _ in self._large)], np.intp)
        parts = join([*self._pile.parts, *(part for _, part in self._large)] or [nothing(0)])
        self._pile.parts.clear()  # frees 300 bytes a leaf before the copies below
        self._large.clear()
        self._readers.clear()  # breaks a reference cycle with this scan
        numbers = np.arange(self._n_leaves)
        if np.array_equal(owners, numbers):
            return parts
        order = np.argsort(owners, kind="stable")
        start, stop = np.searchsorted(owners[order], numbers), np.searchsorted(owners[order], numbers, "right")
        return over_ranges(Summaries(parts.moments[:, order], parts.counts[order]), start, stop)

    def _give_up(self, owner: int, reason: str) -> None:
        self.reasons[owner] = reason
        self.unread.add(owner)

    def _reader(self, cls: type) -> Callable[[int, Any], str | None] | None:
        """The function that reads leaves of the class; it returns a reason if it cannot."""
        if has_base(cls, Tracer):
            return lambda owner, leaf: KINDS["tracer"].no_values
        if has_base(cls, jax.ShapeDtypeStruct):
            return lambda owner, leaf: KINDS["shape only"].no_values
        # In jax 0.4.36 the class of arrays is not a subclass of jax.Array.
        if has_base(cls, jax.Array) or (class_name(cls) == "ArrayImpl" and module_name(cls).startswith("jaxlib")):
            return self._read_jax_array
        if has_base(cls, np.ma.MaskedArray):
            return self._read_masked_array
        if has_base(cls, np.ndarray):
            return self._read_array
        if has_base(cls, np.generic):
            return lambda owner, scalar: self._read_array(owner, np.asarray(np.generic.__array__(scalar)))
        if cls is Stored:
            return self._read_stored
        for number in (int, float):  # bool is an int
            if has_base(cls, number):
                return lambda owner, leaf, number=number: self._pile.add(owner, number.__float__(leaf))
        if has_base(cls, complex):
            return lambda owner, leaf: self._pile.add(owner, complex.__abs__(leaf))
        return None

    def _read_masked_array(self, owner: int, array: np.ma.MaskedArray) -> str | None:
        self.reasons[owner] = "the mask is ignored: the statistics cover all its data"
        return self._read_array(owner, array)

    def _read_array(self, owner: int, array: np.ndarray, axis: int | None = None) -> str | None:
        """Read an array, or each of its layers along an axis."""
        if self.late:
            return self.late
        array = np.ndarray.view(array, np.ndarray)
        if axis is not None:
            return self._read_each(enumerate(np.split(array, array.shape[axis], axis), owner))
        if not holds_numbers(array.dtype):
            if array.dtype == jax.dtypes.float0:
                return KINDS["float0"].no_values
            return f"no statistics: dtype {visible(str(array.dtype), 80)} holds no numbers"
        if why := self._too_many(once(array)[0][0].size):
            return why
        if array.size == 0:
            self._large.append((owner, nothing(1)))
        elif array.size > SMALL:
            self._large.append((owner, summary_of_array(array)))
        elif array.dtype.kind == "c":
            self._pile.add(owner, as_float64(array))
        else:
            self._pile.add(owner, array.reshape(-1))
        return None

    def _read_stored(self, owner: int, stored: Stored) -> str | None:
        if why := self._too_many(stored.size):
            return why
        self._large.append((owner, nothing(1)))
        return self._read_each((owner, chunk) for chunk in stored.chunks())

    def _read_each(self, parts: Iterable[tuple[int, np.ndarray]]) -> str | None:
        for owner, part in parts:
            self._check_time()
            if reason := self._read_array(owner, part):
                return reason
        return None

    def _too_many(self, n: int) -> str:
        return f"{NOT_SCANNED}{n:,} elements are more than {self._max_elements:,}" if n > self._max_elements else ""

    def _read_jax_array(self, owner: int, array: jax.Array, axis: int | None = None) -> str | None:
        if array.is_deleted():
            return KINDS["deleted"].no_values
        if jnp.issubdtype(array.dtype, jax.dtypes.extended):
            return KINDS["key"].no_values
        sharding = array.sharding
        if not sharding.is_fully_addressable:
            return "no statistics: part of it is in another process"
        if why := why_unreduced(sharding):
            return why
        if len(sharding.device_set) == 1 or sharding.is_fully_replicated:
            shards = [(owner, array.addressable_data(0) if len(sharding.device_set) > 1 else array)]
        else:
            shards = [
                (owner + (0 if axis is None else part.index[axis].start or 0), part.data)
                for part in array.addressable_shards
                if part.replica_id == 0
            ]
        if array.size == 0 or self._on_host(array):
            reasons = (self._read_array(first, host_view(shard), axis) for first, shard in shards)
            return self._too_many(array.size) or next(filter(None, reasons), None)

        if max(shard.size for _, shard in shards) > MAX_ELEMENTS:
            return f"{NOT_SCANNED}{array.size:,} elements are too many for one device"
        for first, shard in shards:
            self._launched.append((first, array, *launch(shard, axis)))
        return None

    def _fetch(self) -> None:
        if not self._launched:
            return

        fetched = guarded(lambda: fetch([bits for _, _, bits, _ in self._launched]), lambda _: None)
        for i, (owner, array, bits, wide) in enumerate(self._launched):
            try:
                own = fetch([bits])[0] if fetched is None else fetched[i]  # one failed: one at a time to find it
                self._large.extend(enumerate([summary_of_bits(x, wide) for x in np.atleast_2d(own)], owner))
            except Exception as error:
                self._give_up(owner, _trouble(array, error))
        self._launched.clear()


def _trouble(leaf: Any, error: Exception) -> str:
    is_deleted = guarded(lambda: isinstance(leaf, jax.Array) and leaf.is_deleted(), lambda _: False)
    return "deleted while it was read" if is_deleted else f"{UNREADABLE}{error_text(error)}"


# Statistics that are the same in every row: words in the headline instead of columns

_ABSENT = {"nan": "no NaN", "inf": "no Inf", "zeros": "no zeros"}
_NUMBERS = ("min", "max", "mean", "std", "rms")


def uniform_statistics(table: TreeTable) -> dict[str, str]:
    """A text for each column of statistics that is the same in every row: {"nan": "all finite", "min": "min 0"}; empty
    if a leaf with values was not read.
    """
    from treeviz.tree.query import unread

    if "nan" not in table.columns or unread(table).any():
        return {}
    texts = {name: text for name, text in _ABSENT.items() if table.columns[name].values[0] == 0}
    is_finite = {"nan", "inf"} <= texts.keys()
    if is_finite:
        texts |= dict.fromkeys(("nan", "inf"), "all finite")
    least, greatest = (float(table.columns[name].values[0]) for name in ("min", "max"))
    is_known = least == 0 or not any(facts.dtype.startswith("complex") for facts in table.facts)  # complex: magnitudes
    sizes = table.rolled(table.columns["elements"])
    if least == greatest and is_known and sizes[0] > 1:
        text = f"all {'' if is_finite else 'other '}values are {number_text(least)}"
        text = text if least or not is_finite else "all zeros"
        return texts | dict.fromkeys(("zeros", *_NUMBERS, "histogram"), text)
    has_count = ~np.isnan(table.columns["nan"].values) & (sizes > 0)
    for name in _NUMBERS:
        values = table.columns[name].values
        has_number = ~np.isnan(values)
        numbers = values[has_number]
        is_several = np.count_nonzero(has_number & table.is_leaf) > 1 and not (~has_number & has_count).any()
        if is_several and np.all(numbers == numbers[0]):
            texts[name] = f"{name} {number_text(numbers[0])}"
    return texts


def headline(texts: dict[str, str]) -> list[str]:
    """The texts, joined for the headline: ["all finite", "min 0, max 1 in every row"]."""
    numbers = [text for name, text in texts.items() if text.startswith(f"{name} ")]
    others = dict.fromkeys(text for text in texts.values() if text not in numbers)
    return [", ".join(others)] * bool(others) + [f"{', '.join(numbers)} in every row"] * bool(numbers)


def value_statistics(
    table: TreeTable,
    nodes: Sequence[object],
    *,
    max_elements: int = 10**9,
    budget: Budget = WHOLE,
    _on_host: Callable[[jax.Array], bool] = lies_on_host,
) -> tuple[tuple[Column, ...], dict[int, str]]:
    """The columns `VALUE_STATISTICS` of every leaf and subtree; and the reasons of arrays without statistics, by row.

    Each array is read in place: on the host in chunks without compiling, on an accelerator by one program per
    shape and dtype, a sharded array shard by shard; then all results are transferred at once. No host copy
    stays cached on an array, and arrays that are not fully addressable are not read. An array that occurs several
    times is read once and counts each time; a subtree that the walk skipped counts at its first occurrence. The layers
    of an array that is open into them are read one by one; the array has the union of their statistics. Costs about
    4 ns an element on the host, 5 µs a small array. Host arrays with more than `max_elements`, and those for which the
    budget's `read_s` is not enough, are not read.
    """
    scan = Scan(max_elements, _on_host, budget)
    rows, owners, arrays_read = [], [], []
    with np.errstate(all="ignore"):
        is_last = table.end == np.arange(1, len(table) + 1)
        chosen = np.flatnonzero(table.is_leaf | (is_last & ~table.is_layer))
        of_chosen = (values.tolist() for values in (chosen, table.end[chosen], table.fact_codes[chosen]))
        for row, end, code in zip(*of_chosen, strict=True):
            layers = (axis_of(table, row + 1), end - row - 1) if end > row + 1 else None
            owner = scan.read(nodes[row], table.facts[code], layers)
            if owner is None:
                continue
            arrays_read.append((row, owner))
            rows += [row] if layers is None else range(row + 1, end)
            owners += [owner] if layers is None else range(owner, owner + end - row - 1)
        columns = _columns(table, rows, owners, scan)
        notes = {row: scan.reasons[owner] for row, owner in arrays_read if owner in scan.reasons}
    return columns, notes


def _columns(table: TreeTable, rows_read: list[int], owners_read: list[int], scan: Scan) -> tuple[Column, ...]:
    """The columns, rolled up. Rows with the same leaves below them share a level."""
    leaves = scan.finish()
    has_values = [i for i, owner in enumerate(owners_read) if owner not in scan.unread]
    rows, owners = np.array(rows_read, np.intp)[has_values], np.array(owners_read, np.intp)[has_values]
    start, stop = np.searchsorted(rows, np.arange(len(table))), np.searchsorted(rows, table.end)
    stop = np.maximum(start, stop)
    n_ends = len(rows) + 1
    ranges, codes = np.unique(np.where(start == stop, 0, start * n_ends + stop), return_inverse=True)
    start, stop = ranges // n_ends, ranges % n_ends
    if not np.array_equal(owners, np.arange(len(leaves.counts))):
        leaves = Summaries(leaves.moments[:, owners], leaves.counts[owners])
    moments, counts = over_ranges(leaves, start, stop)
    del leaves  # frees as much memory as the counts take
    mean, std, least, greatest = np.where(moments[0] > 0, moments[1:], np.nan)
    zeros, nan, posinf, neginf = np.where(stop > start, counts[:, :BINS].T.astype(np.float64), np.nan)
    histograms, is_empty = counts[:, BINS:], stop == start
    if is_empty.any():
        histograms = histograms.astype(np.float32 if histograms.max(initial=0) < 2**24 else np.float64)
        histograms[is_empty] = np.nan
    codes = codes.astype(np.int32)  # one array, so that it is packed once

    def column(name: str, title: str, levels: np.ndarray, help: str, format: Format = "number") -> Column:
        return Column(name, title, levels, codes, format, "given", help, first_bin=FIRST_EXPONENT)

    return (
        column("min", "min", least, "the smallest finite value; of complex arrays: magnitude"),
        column("max", "max", greatest, "the largest finite value; of complex arrays: magnitude"),
        column("mean", "mean", mean, "the mean of the finite values; of complex arrays: of the magnitudes"),
        column("std", "std", std, "the standard deviation of the finite values (divided by n, as np.std)"),
        column("rms", "rms", np.hypot(mean, std), "the root of the mean square of the finite values"),
        column("zeros", "zeros", zeros, "the number of zeros; denormal numbers do not count", "count"),
        column("nan", "NaN", nan, "the number of NaN values", "count"),
        column("inf", "±Inf", posinf + neginf, "the number of infinite values", "count"),
        column("posinf", "+Inf", posinf, "how many values are +Inf", "count"),
        column("neginf", "-Inf", neginf, "how many values are -Inf", "count"),
        column("histogram", "magnitudes", histograms, "log₂|x| of the finite values that are not 0", "histogram"),
    )


# Non-finite values, in the headline and in the row of each leaf


def not_finite(
    table: TreeTable, *, is_whole: bool, others: bool = False
) -> tuple[list[str], dict[int, tuple[Note, ...]]]:
    """Texts for the headline ("NaN in 3 leaves", "≥" unless `is_whole`), and a note for each leaf ("NaN: 3 of 12")."""
    texts = uniform_statistics(table) if is_whole else {}
    in_headline = {name: text for name, text in texts.items() if not others or name in ("nan", "inf")}
    rows = np.flatnonzero(table.is_leaf | table.is_layer)
    counts = [np.nan_to_num(table.columns[name].values[rows]).astype(np.int64) for name in ("nan", "inf")]
    parts: list[str] = []
    for name, n_bad in zip(("NaN", "±Inf"), counts, strict=True):
        if n := int(np.count_nonzero(n_bad[table.is_leaf[rows]])):
            parts.append(f"{name} in {'' if is_whole else '≥ '}{counted(n, 'leaf', 'leaves')}")
    parts += [part + f" in {table.name}" * others for part in headline(in_headline)]
    bad = np.flatnonzero(counts[0] + counts[1])
    notes: dict[int, tuple[Note, ...]] = {
        row: (Note("nonfinite", _sentence(math.prod(table[row].shape or ()), n_nan, n_inf)),)
        for row, n_nan, n_inf in zip(*(values[bad].tolist() for values in (rows, *counts)), strict=True)
    }
    return parts, notes


def _sentence(n: int, n_nan: int, n_inf: int) -> str:
    """ "NaN: 3 of 12 values, ±Inf: 1 of 12 values"."""
    counts = {word: count for word, count in (("NaN", n_nan), ("±Inf", n_inf)) if count}
    if n == 1:
        return ", ".join(f"the value is {word}" for word in counts)
    return ", ".join(f"{word}: {count:,} of {n:,} values" for word, count in counts.items())
