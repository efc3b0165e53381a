"""Value statistics of arrays in host memory: NumPy on views of the values, in small chunks."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import numpy as np

from treeviz.analysis.stats.summary import Summaries, join, nothing, summarise, union

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
    """Arrays of one shape without the repeats that all have along broadcast axes (stride 0), and how many these are."""
    found, n_repeats = list(arrays), 1
    for axis, size in enumerate(found[0].shape):
        if size > 1 and not any(each.strides[axis] for each in found):
            n_repeats *= size
            found = [each[(slice(None),) * axis + (slice(1),)] for each in found]
    return found, n_repeats


def summary_of_array(array: np.ndarray) -> Summaries:
    """The summary of any array of numbers; copies at most a chunk at a time."""
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
    """A flat float64 copy of the values; of complex values their magnitudes."""
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
    """Small arrays, concatenated in float64, to be summarised together.

    Attributes:
      owners: For each summary in `parts`, in order, the `owner` that was added with its values.
    """

    def __init__(self):
        self.owners: list[int] = []
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
            self.parts.append(Summaries(moments, counts.astype(np.uint32)))  # a tree may have 100,000 small leaves
        self._starts, self._n_values = [], 0
