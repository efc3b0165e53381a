"""A window on the values of an array along two of its axes. Only the window is copied."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

import jax
import numpy as np

from treeviz.analysis.stats.host import host_view, lies_on_host
from treeviz.tree.sharding import why_unreduced
from treeviz.tree.stored import Stored

MOST = 64  # rows, and columns
MOST_NAMED = 8  # devices of other processes


class Window(NamedTuple):
    """A part of an array.

    Attributes:
      values: [rows, columns]. An array with one axis is laid out in rows of 64.
      is_here: bool of the same shape: False beyond the end of the array, and for parts in another process.
      axes: The axis of the rows and that of the columns, -1 where there is none.
      starts: The first index along every axis.
      sizes: The extent along every axis.
      devices: The devices that the values were read from.
      elsewhere: The devices of other processes that hold the missing values.
    """

    values: np.ndarray
    is_here: np.ndarray
    axes: tuple[int, int]
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    devices: tuple[str, ...]
    elsewhere: tuple[str, ...]


def window(array: jax.Array | np.ndarray | Stored, axes: Sequence[int] = (), starts: Sequence[int] = ()) -> Window:
    """The part of an array from `starts` on: 64 × 64 along two axes, of size 1 along the others.

    A sharded array is not gathered: the overlap of each shard with the window is sliced on its device and
    transferred. Costs one small transfer for each such shard.

    Args:
      axes: The axes of the rows and the columns; by default the last two.
      starts: One for every axis; reduced where the window would extend beyond the end.

    Raises:
      ValueError: The array has no such axes, or `starts` has another length than its shape.
    """
    n = len(array.shape)
    rows, columns = axes or (n - 2 if n > 1 else -1, n - 1)
    known = range(n)
    if rows == columns != -1 or (rows not in known) != (n < 2) or (columns not in known) != (n < 1):
        raise ValueError(f"window: an array with {n} axes has no rows along {rows} and columns along {columns}.")
    starts = starts or [0] * n
    if len(starts) != n:
        raise ValueError(f"window: {len(starts)} starts are not one for each of {n} axes.")
    most = [MOST if axis in (rows, columns) else 1 for axis in known]
    if n == 1:
        most = [MOST * MOST]
    sizes = tuple(min(size, longest) for size, longest in zip(array.shape, most, strict=True))
    ends = [max(size - length, 0) for size, length in zip(array.shape, sizes, strict=True)]
    starts = tuple(min(max(start, 0), end) for start, end in zip(starts, ends, strict=True))

    values, is_here, devices, elsewhere = _read(array, starts, sizes)
    order = [axis for axis in known if axis not in (rows, columns)] + [axis for axis in (rows, columns) if axis >= 0]
    values, is_here = (in_rows(part.transpose(order)) for part in (values, is_here))
    return Window(values, is_here, (rows, columns), starts, sizes, devices, elsewhere)


def _read(array: Any, starts: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, tuple, tuple]:
    if not isinstance(array, jax.Array):
        place = tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))
        if type(array) is Stored:
            return array.part(place) if 0 not in sizes else np.empty(sizes, array.dtype), np.ones(sizes, bool), (), ()
        return np.array(np.ndarray.view(array, np.ndarray)[place]), np.ones(sizes, bool), (), ()
    if why := why_unreduced(array.sharding):
        raise ValueError(f"window: the array is {why}.")
    values, is_here, devices = np.zeros(sizes, array.dtype), np.zeros(sizes, bool), []
    for shard in array.addressable_shards:
        place, inside = _common(shard.index, array.shape, starts, sizes)
        if _is_empty(place) or is_here[place].all():
            continue
        values[place], is_here[place] = _copied(shard.data, inside), True
        devices.append(_name(shard.device))
    elsewhere = ()
    if not is_here.all():
        sharding = array.sharding
        parts = sharding.devices_indices_map(array.shape).items()
        others = (each for each in parts if each[0] not in sharding.addressable_devices)
        elsewhere = (_name(each) for each, i in others if not _is_empty(_common(i, array.shape, starts, sizes)[0]))
    return values, is_here, tuple(devices), tuple(islice(elsewhere, MOST_NAMED))


def _name(device: Any) -> str:
    return f"{device.platform}:{device.id}"


def _is_empty(place: tuple[slice, ...]) -> bool:
    return any(part.start >= part.stop for part in place)


def _common(index: Any, shape: Any, starts: Any, sizes: Any) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """The overlap of a shard and the window: its slices in the window, and in the shard."""
    place, inside = [], []
    for part, length, start, size in zip(index, shape, starts, sizes, strict=True):
        low, high, _ = part.indices(length)
        first, last = max(low, start), min(high, start + size)
        place.append(slice(first - start, last - start))
        inside.append(slice(first - low, last - low))
    return tuple(place), tuple(inside)


def _copied(shard: jax.Array, inside: tuple[slice, ...]) -> np.ndarray:
    if lies_on_host(shard):
        return np.array(host_view(shard)[inside])

    from treeviz.analysis.stats.device import fetch, undisturbed

    (device,) = shard.sharding.device_set
    with undisturbed(), jax.default_device(device):
        # The starts are arguments, not constants, so that moving a slider compiles nothing.
        starts = [np.int64(part.start) for part in inside]
        part = jax.lax.dynamic_slice(shard, starts, [part.stop - part.start for part in inside])
    return fetch([part])[0]


def in_rows(part: np.ndarray) -> np.ndarray:
    """The part as two axes; a long vector is wrapped into rows and padded with zeros."""
    if part.ndim == 1 and part.size > MOST:
        n_rows = math.ceil(part.size / MOST)
        return np.concatenate([part, np.zeros(n_rows * MOST - part.size, part.dtype)]).reshape(n_rows, MOST)
    if part.ndim < 2:
        return part.reshape(1, part.size)
    return part.reshape(part.shape[-2:])
