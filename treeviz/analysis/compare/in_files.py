"""Compare the values of two arrays, of which at least one is in a file, a piece at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from treeviz.analysis.compare.values import CannotCompare, Gap, Index, compare_block, count_nan, parts_of
from treeviz.analysis.stats.host import holds_numbers, host_view
from treeviz.tree.stored import CHUNK, Stored


def compare_stored(left: Any, right: Any, *, rtol: float = 0.0, atol: float = 0.0) -> Gap:
    """Compare two arrays of one shape as flat pieces, in the order of the file; see `compare_arrays`.

    Raises:
      CannotCompare: One of them holds no numbers, or is partly in another process.
    """
    gap = Gap(int(np.prod(left.shape, dtype=np.int64)))
    order = _order(left, right)
    start = n_nan = 0
    for a, b in pieces_of_both(left, right):
        n_nan += count_nan(a) if compare_block(gap, a, b, (start,), rtol, atol) else 0
        start += len(a)
    gap.at, gap.nan_at = (_index(at, left.shape, order) for at in (gap.at, gap.nan_at))
    gap.nan_left += n_nan
    gap.nan_right += n_nan
    return gap


def compare_stored_layers(left: Any, right: Any, axis: int, *, rtol: float = 0.0, atol: float = 0.0) -> list[Gap]:
    """How two arrays differ in each of the layers along an axis, without the places; see `compare_stored`."""
    n, sizes = left.shape[axis], left.shape[axis + 1 :] if _order(left, right) == "C" else left.shape[:axis]
    gaps, start = [Gap(0) for _ in range(n)], 0
    for a, b in pieces_of_both(left, right):
        if not compare_block(Gap(0), a, b, (0,), rtol, atol):
            layers = np.arange(start, start + len(a)) // math.prod(sizes) % n
            by_layer = np.argsort(layers, kind="stable")
            found, starts = np.unique(layers[by_layer], return_index=True)
            for i, at in zip(found.tolist(), np.split(by_layer, starts[1:]), strict=True):
                compare_block(gaps[i], a[at], b[at], (0,), rtol, atol)
        start += len(a)
    return gaps


def pieces_of_both(left: Any, right: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The values of two arrays of one shape as flat pieces of equal lengths, in the order of the file if one is in it.

    Raises:
      CannotCompare: One of them holds no numbers, or is partly in another process.
    """
    order = _order(left, right)
    return _side_by_side(_pieces(left, order), _pieces(right, order))


def _order(left: Any, right: Any) -> str:
    return next((each.order for each in (left, right) if type(each) is Stored), "C")


def _pieces(array: Any, order: str) -> Iterator[np.ndarray]:
    """The values as flat arrays, in an order."""
    if type(array) is Stored:
        if not holds_numbers(array.dtype):
            raise CannotCompare(f"dtype {array.dtype} holds no numbers")
        if array.order == order:
            yield from array.chunks()
            return
        array = np.asarray(array)
    whole = np.atleast_1d(_whole(array))
    if order == "F":
        whole = whole.T
    n_rows = max(1, CHUNK // max(1, whole[:1].nbytes))
    for i in range(0, len(whole), n_rows):
        yield whole[i : i + n_rows].reshape(-1)


def _whole(array: Any) -> np.ndarray:
    """An array in memory as one of NumPy; a view where it lies on the host in one part."""
    parts = [(start, part if isinstance(part, np.ndarray) else host_view(part)) for start, part in parts_of(array)]
    if len(parts) == 1:
        return parts[0][1]
    whole = np.empty(array.shape, parts[0][1].dtype)
    for start, part in parts:
        whole[tuple(slice(at, at + size) for at, size in zip(start, part.shape, strict=True))] = part
    return whole


def _side_by_side(left: Iterator[np.ndarray], right: Iterator[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pieces of both, cut where either ends."""
    a = b = np.empty(0)
    while True:
        a, b = (rest if len(rest) else next(pieces, None) for pieces, rest in ((left, a), (right, b)))
        if a is None or b is None:
            return
        n = min(len(a), len(b))
        yield a[:n], b[:n]
        a, b = a[n:], b[n:]


def _index(flat: Index, shape: Index, order: str) -> Index:
    return tuple(map(int, np.unravel_index(flat[0], shape, order))) if flat else ()  # type: ignore[call-overload]
