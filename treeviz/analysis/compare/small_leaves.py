"""Compare small leaves of two trees many at once: one by one they would take some 50 µs each in calls of NumPy."""

from __future__ import annotations

import io
import math
import weakref
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate, chain
from typing import Any, NamedTuple

import jax
import numpy as np

from treeviz.analysis.compare.elements import Elements, Gap, Index, compare_elements, gap_of
from treeviz.analysis.stats.host import holds_numbers, host_view
from treeviz.tree.facts import Facts

_SMALL = 1 << 14  # bytes of an array
_MOST = 1 << 16  # elements that are compared at once, which takes some 100 bytes for each
_NUMBERS = {cls.__name__: np.dtype(cls) for cls in (bool, int, float, complex)}


class How(NamedTuple):
    """How the leaves of some facts are read; those that are read alike are read together.

    Attributes:
      kind: "numpy", "array" or "scalar", as of the facts.
      dtype: Its name; of a Python number, that of the type.
    """

    kind: str
    dtype: str


def how_read(facts: Facts) -> How | None:
    """None for leaves that are not small arrays of numbers in host memory, nor plain Python numbers."""
    if facts.kind == "scalar":
        return How("scalar", facts.type) if facts.weak and facts.type in _NUMBERS else None
    where = facts.sharding
    is_near = where is not None and where.n_devices == 1 and where.platform == "cpu" and facts.kind == "array"
    if not (facts.elements > 0 and 0 < facts.bytes <= _SMALL):
        return None
    return How(facts.kind, facts.dtype) if is_near or (facts.kind, facts.type) == ("numpy", "np.ndarray") else None


def compare_small(
    left: Sequence[Any],
    right: Sequence[Any],
    shapes: Sequence[Index],
    of: np.ndarray,
    how: tuple[How, How],
    rtol: float,
    atol: float,
) -> tuple[list[Part], np.ndarray]:
    """Compare leaves in pairs of one shape; those that differ, and the indices of those that cannot be read.

    The values are copied: a JAX array that has a view cannot be donated.

    Args:
      of: int[n]: the index in `shapes` of each pair.
    """
    sizes = np.array([*map(math.prod, shapes)], np.int64)[of]
    ends = [*(np.flatnonzero(np.diff(np.cumsum(sizes) // _MOST)) + 1).tolist(), len(sizes)]
    waiting = [*zip([0, *ends], ends, strict=False)]
    parts, unread = [], []
    while waiting:
        start, end = waiting.pop()
        cut, n = slice(start, end), int(sizes[start:end].sum())
        a, b = (_values(leaves[cut], each, n) for leaves, each in zip((left, right), how, strict=True))
        if a is not None and b is not None:
            part = _compared(np.arange(start, end), a, b, sizes[cut], shapes, of[cut], rtol, atol)
            parts += [part] if part else []
        elif end - start > 1:
            middle = (start + end) // 2
            waiting += [(start, middle), (middle, end)]
        else:
            unread.append(start)
    return parts, np.array(unread, np.int64)


def _values(leaves: Sequence[Any], how: How, n: int) -> np.ndarray | None:
    """The values of leaves one after the other; None where one of them is not what its facts say, or cannot be read."""
    try:
        if how.kind == "scalar":
            dtype = _NUMBERS[how.dtype]
            found = np.fromiter(leaves, dtype, n) if _are_all(leaves, type(dtype.type(0).item())) else None
        elif how.kind == "numpy":
            found = np.concatenate(leaves, axis=None) if _are_all(leaves, np.ndarray) else None
        else:
            found = _values_of_jax(leaves, leaves[0].dtype)
    except Exception:  # a number beyond int64, an array that was deleted meanwhile
        return None
    return found if found is not None and found.size == n and holds_numbers(found.dtype) else None


def _are_all(leaves: Sequence[Any], cls: type) -> bool:
    return {*map(id, map(type, leaves))} == {id(cls)}  # by id: a metaclass may override ==


def _values_of_jax(leaves: Sequence[Any], dtype: np.dtype) -> np.ndarray:
    if dtype.isbuiltin == 1:  # by the buffer protocol, which other dtypes do not have
        copied = io.BytesIO()
        copied.writelines(leaves)  # one by one: each view is dropped while it is in the cache of the processor
        return np.frombuffer(copied.getbuffer(), dtype)
    view = np.asarray if _leaves_no_copy(dtype) else host_view
    with jax.transfer_guard_device_to_host("allow"):
        return np.concatenate([view(leaf).reshape(-1) for leaf in leaves])


@cache
def _leaves_no_copy(dtype: np.dtype) -> bool:
    """Whether `np.asarray` keeps nothing on a JAX array of the dtype; it does in jax 0.4.36, and of int4."""
    array = jax.device_put(np.zeros(1, dtype), jax.local_devices(backend="cpu")[0])
    view = weakref.ref(np.asarray(array))
    return view() is None


def _compared(
    rows: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    sizes: np.ndarray,
    shapes: Sequence[Index],
    of: np.ndarray,
    rtol: float,
    atol: float,
) -> Part | None:
    """Compare pieces of flat arrays; None if none of them differ."""
    if a.dtype == b.dtype:
        bits = a.view(np.uint8) != b.view(np.uint8)
        if not bits.any():
            return None
        other = np.logical_or.reduceat(bits, _starts(sizes) * a.itemsize)
        if not other.all():
            a, b = (each[np.repeat(other, sizes)] for each in (a, b))
            rows, sizes, of = rows[other], sizes[other], of[other]
    starts = _starts(sizes)
    found = compare_elements(a, b, starts, rtol, atol)
    differ = np.flatnonzero((found.n_outside > 0) | (found.n_nan > 0))
    if not len(differ):
        return None
    found = Elements(*[each[differ] for each in found])
    where = starts[differ] + np.where(found.n_outside > 0, found.at, 0)
    return Part(
        rows[differ],
        sizes[differ],
        found._replace(max_rel=np.fmax(found.max_rel, 0.0)),
        a[where].tolist(),
        b[where].tolist(),
        shapes,
        of[differ],
        _turned(a, b, starts[differ], shapes, of[differ]),
    )


def _starts(sizes: np.ndarray) -> np.ndarray:
    return np.append(0, np.cumsum(sizes[:-1], dtype=np.intp))


def _turned(a: np.ndarray, b: np.ndarray, starts: np.ndarray, shapes: Sequence[Index], of: np.ndarray) -> set[int]:
    """Of which pieces the right array is the left one transposed."""
    steps = np.array([*map(_step, shapes)])[of]
    is_near = (steps >= 0) & (a[starts + np.maximum(steps, 0)] == b[starts + (steps > 0)])
    turned = set[int]()
    for i in np.flatnonzero(is_near).tolist():
        shape = shapes[of[i]]
        cut = slice(starts[i], starts[i] + math.prod(shape))
        if np.array_equal(a[cut].reshape(shape).T, b[cut].reshape(shape)):
            turned.add(i)
    return turned


def _step(shape: Index) -> int:
    """How far the first two elements of the last axis lie apart in a transpose; -1 where that has another shape."""
    if len(shape) < 2 or shape != shape[::-1]:
        return -1
    return math.prod(shape[1:]) if shape[0] > 1 else 0


class Part(NamedTuple):
    """Leaves that differ: a number for each, as in a `Gap`, and the index of its shape in `shapes`."""

    rows: np.ndarray
    n: np.ndarray
    numbers: Elements
    left: list[Any]
    right: list[Any]
    shapes: Sequence[Index]
    of: np.ndarray
    turned: set[int]


class Gaps(Mapping[int, Gap]):
    """How leaves differ, by row: of small ones numbers in arrays, and a `Gap` where one is asked for."""

    def __init__(self, own: dict[int, Gap], parts: Sequence[Part]) -> None:
        self._own, self._parts = own, parts
        self._ends = [*accumulate(len(part.rows) for part in parts)]
        rows = chain.from_iterable(part.rows.tolist() for part in parts)
        self._places = {row: i for i, row in enumerate(rows)}

    def __len__(self) -> int:
        return len(self._own) + len(self._places)

    def __iter__(self) -> Iterator[int]:
        yield from self._own
        yield from self._places

    def __getitem__(self, row: int) -> Gap:
        if row not in self._places:
            return self._own[row]
        at = bisect(self._ends, self._places[row])
        part, i = self._parts[at], self._places[row] - self._ends[at]  # from its end
        numbers = Elements._make(each[i].item() for each in part.numbers)
        gap = gap_of(numbers, int(part.n[i]), (part.left[i], part.right[i]), part.shapes[part.of[i]])
        gap.is_transpose = i + len(part.rows) in part.turned
        return gap

    def numbers(self) -> GapNumbers:
        own = list(self._own.values())
        rows = [np.fromiter(self._own, np.int64, len(own)), *(part.rows for part in self._parts)]
        of_parts = [
            np.concatenate(
                [
                    np.array([getattr(gap, name) for gap in own], dtype),
                    *(getattr(part.numbers, name) for part in self._parts),
                ]
            )
            for name, dtype in (("n_outside", np.int64), ("n_nan", np.int64), ("max_abs", float), ("max_rel", float))
        ]
        return GapNumbers(np.concatenate(rows), *of_parts)


class GapNumbers(NamedTuple):
    """Of each row with a gap, in no order; see `Gap`."""

    rows: np.ndarray
    n_outside: np.ndarray
    n_nan: np.ndarray
    max_abs: np.ndarray
    max_rel: np.ndarray
