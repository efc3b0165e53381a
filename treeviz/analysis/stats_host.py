"""Value statistics of what lies in the memory of this host: NumPy on the values where they lie, in small chunks."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import numpy as np

from treeviz.analysis.stats_summary import Summaries, join, nothing, summarise, union

CHUNK = 1 << 16  # elements: the float64 of a chunk stay in the cache
SMALL = 1 << 12  # smaller arrays are laid end to end and summarised together
_ONE = np.zeros(1, np.intp)


def holds_numbers(dtype: np.dtype) -> bool:
    """Whether NumPy can turn values of the dtype into float64: bfloat16, float8 and int4 too."""
    return dtype.kind in "biufc" or (dtype.kind == "V" and np.can_cast(dtype, np.float64))


def lies_on_host(array: jax.Array) -> bool:
    """Whether the array is in this host's memory: on the CPU backend, or offloaded to pinned memory."""
    sharding = array.sharding
    return (sharding.memory_kind or "").endswith("_host") or next(iter(sharding.device_set)).platform == "cpu"


def host_view(shard: jax.Array) -> np.ndarray:
    """The values of a single-device array, where they lie; nothing stays on the array.

    Donation waits for the view to go, so it is to be dropped at once.
    """
    dtype = shard.dtype
    if dtype.isbuiltin == 1 and next(iter(shard.sharding.device_set)).platform == "cpu":
        return np.asarray(memoryview(shard))  # type: ignore[arg-type]  # jax.Array has the buffer protocol
    # `np.asarray(shard)` may copy and leaves the copy on the array for ever (int4; in jax 0.4.36 also a
    # view of bfloat16 that blocks donation), so it is asked of another array on the same buffer.
    with jax.transfer_guard_device_to_host("allow"):
        return np.asarray(jax.make_array_from_single_device_arrays(shard.shape, shard.sharding, [shard]))


def n_stored(array: np.ndarray) -> int:
    """How many elements have to be read: what was broadcast is read once."""
    n = 1
    for size, stride in zip(array.shape, array.strides, strict=True):
        n *= size if stride else min(size, 1)
    return n


def summary_of_array(array: np.ndarray) -> Summaries:
    """The summary of any array of numbers, without a copy of more than a chunk."""
    n_repeats = 1
    for axis, (size, stride) in enumerate(zip(array.shape, array.strides, strict=True)):
        if stride == 0 and size > 1:
            n_repeats *= size
            array = array[(slice(None),) * axis + (slice(1),)]
    parts = [summarise(as_float64(chunk), _ONE) for chunk in _chunks(array)]
    if not parts:
        return nothing(1)
    moments, counts = union(join(parts))
    if n_repeats > 1:
        moments[0] *= n_repeats
        counts = counts * n_repeats
    return Summaries(moments, counts)


def as_float64(values: np.ndarray) -> np.ndarray:
    """A flat float64 copy: of the magnitudes, if the values are complex."""
    if values.dtype.kind != "c":
        return values.astype(np.float64).reshape(-1)
    # 1e308 + 1e308j is finite, and its magnitude is not; a complex NaN may have an infinite part
    values = values.astype(np.complex128).reshape(-1)
    magnitudes = np.abs(values)
    if not np.isfinite(magnitudes).all():
        magnitudes[np.isfinite(values)] = np.minimum(magnitudes[np.isfinite(values)], np.finfo(np.float64).max)
        magnitudes[np.isnan(values)] = np.nan
    return magnitudes


def _chunks(array: np.ndarray) -> Iterator[np.ndarray]:
    """The elements in the order in which they lie, a chunk at a time; not copied, if they lie side by side."""
    if array.flags.c_contiguous or array.flags.f_contiguous:
        flat = array.reshape(-1, order="A")
        for start in range(0, flat.size, CHUNK):
            yield flat[start : start + CHUNK]
    else:
        flags = ["external_loop", "buffered", "zerosize_ok"]
        yield from np.nditer(array, flags, order="K", buffersize=CHUNK)  # type: ignore[call-overload]


class Pile:
    """Small arrays, laid end to end in float64, to be summarised together.

    Attributes:
      owners: For each summary in `parts`, in order, what was given with its values.
    """

    def __init__(self):
        self.owners: list[int] = []
        self.parts: list[Summaries] = []
        self._values = np.empty(CHUNK)
        self._starts: list[int] = []
        self._n_values = 0

    def add(self, owner: int, values) -> None:
        """A number, or a non-empty array of at most `SMALL` numbers."""
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
            self.parts.append(summarise(self._values[: self._n_values], np.array(self._starts, np.intp)))
        self._starts, self._n_values = [], 0
