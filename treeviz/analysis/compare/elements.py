"""Compare the elements of flat arrays: of one piece, or of many at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Index = tuple[int, ...]
_ONE = np.zeros(1, np.intp)
_COUNTS = ("n_outside", "n_nan", "nan_left", "nan_right")  # of elements


@dataclass
class Gap:
    """How the values of two arrays differ.

    Attributes:
      n: The number of elements.
      n_outside: Of the elements that are NaN in neither, those with |left - right| > atol + rtol * |right|.
      max_abs, at, left, right: The greatest |left - right|, its index, and the two values there.
      max_rel: The greatest |left - right| / |right|.
      n_nan: The elements that are NaN in one of them alone, and `nan_at` the first of them.
      nan_left, nan_right: The number of NaN in each.
      is_transpose: The right array is the left one transposed.
    """

    n: int
    n_outside: int = 0
    max_abs: float = 0.0
    at: Index = ()
    left: Any = None
    right: Any = None
    max_rel: float = 0.0
    n_nan: int = 0
    nan_at: Index = ()
    nan_left: int = 0
    nan_right: int = 0
    is_transpose: bool = False

    def take(self, other: Gap) -> None:
        """Add what was found in another part of the arrays."""
        if other.n_outside and (not self.n_outside or other.max_abs > self.max_abs):
            self.max_abs, self.at, self.left, self.right = other.max_abs, other.at, other.left, other.right
        self.nan_at = self.nan_at if self.n_nan else other.nan_at
        self.max_rel = max(self.max_rel, other.max_rel)
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def repeat(self, n: int) -> None:
        """Count all as if the arrays were `n` times as long, with the same elements again."""
        for name in ("n", *_COUNTS):
            setattr(self, name, getattr(self, name) * n)


class Elements(NamedTuple):
    """How flat arrays differ, a number for each piece, or the numbers of one; see `Gap`. Indices are those in it."""

    n_outside: Any
    max_abs: Any
    at: Any
    max_rel: Any
    n_nan: Any
    nan_at: Any
    nan_left: Any
    nan_right: Any

    def of_each(self) -> Iterator[Elements]:
        """The numbers of each piece."""
        return map(Elements._make, zip(*[each.tolist() for each in self], strict=True))


def gap_of(numbers: Elements, n: int, values: tuple[Any, Any], shape: Index) -> Gap:
    """The gap of a piece of `n` elements, which had this shape.

    Args:
      values: Those with the greatest distance.
    """
    n_outside, max_abs, at, max_rel, n_nan, nan_at, nan_left, nan_right = numbers
    where = index_in(shape, nan_at) if n_nan else ()
    if not n_outside:
        return Gap(n, n_nan=n_nan, nan_at=where, nan_left=nan_left, nan_right=nan_right)
    of_values = index_in(shape, at), *values, max(0.0, max_rel)  # 0 in place of NaN
    return Gap(n, n_outside, max_abs, *of_values, n_nan, where, nan_left, nan_right)


def compare_elements(
    a: np.ndarray, b: np.ndarray, starts: np.ndarray = _ONE, rtol: float = 0.0, atol: float = 0.0
) -> Elements:
    """Compare flat arrays of one length piece by piece.

    Args:
      starts: Where each piece begins; none is empty.
    """
    none = np.zeros(len(starts), np.int64)
    n_nan, nan_at, nan_left, nan_right = none, none, none, none
    n_outside, at, max_abs, max_rel = none, none, np.zeros(len(starts)), np.zeros(len(starts))
    with np.errstate(all="ignore"):  # a NaN of bfloat16 may signal
        if a.dtype.kind in "biu" and b.dtype.kind in "biu":
            distance, size = _distance_of_integers(a, b), np.abs(b.astype(np.float64))
            differ = distance != 0
        else:
            wide = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
            mine, other = a.astype(wide), b.astype(wide)
            are_nan = np.isnan(mine), np.isnan(other)
            nan_left, nan_right = (_count(each, starts) for each in are_nan)
            distance, size = np.where(mine == other, 0.0, np.abs(mine - other)), np.abs(other)
            differ = distance != 0
            if nan_left.any() or nan_right.any():
                differ &= ~(are_nan[0] | are_nan[1])
                alone = are_nan[0] != are_nan[1]
                n_nan, nan_at = _count(alone, starts), _first(alone, starts)
        outside = ~(distance <= atol + rtol * size) & differ
        n_outside = _count(outside, starts)
        if n_outside.any():
            ranked = np.where(outside, distance, -1.0)
            max_abs = _greatest(ranked, starts)
            of_all = max_abs if len(starts) == 1 else np.repeat(max_abs, np.diff(starts, append=len(a)))
            at = _first((ranked == of_all) | np.isnan(ranked), starts)  # a NaN of infinite complex numbers is first
            max_rel = _greatest(np.divide(distance, size, out=np.zeros(len(a)), where=outside), starts)
    return Elements(n_outside, max_abs, at, max_rel, n_nan, nan_at, nan_left, nan_right)


def _count(mask: np.ndarray, starts: np.ndarray) -> np.ndarray:
    if len(starts) == 1:  # in a tenth of the time
        return np.array([np.count_nonzero(mask)])
    return np.add.reduceat(mask, starts, dtype=np.int64)


def _greatest(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    return np.maximum.reduceat(values, starts) if len(starts) > 1 else np.array([np.max(values)])


def _first(mask: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The index of the first True of each piece; any number where there is none."""
    if len(starts) == 1:
        return np.array([np.argmax(mask)])
    hits = np.append(np.flatnonzero(mask), len(mask))
    return hits[np.searchsorted(hits, starts)] - starts


def index_in(shape: Index, flat: int) -> Index:
    """`np.unravel_index` for one index, in a tenth of the time."""
    index = []
    for size in reversed(shape):
        flat, i = divmod(flat, size)
        index.append(i)
    return tuple(reversed(index))


def _distance_of_integers(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """|a - b|, exact below 2**53 whatever the dtypes, and never 0 where they differ."""
    if {a.dtype.kind, b.dtype.kind} <= {"b", "u"} or {a.dtype.kind, b.dtype.kind} <= {"b", "i"}:
        wide = np.uint64 if "u" in (a.dtype.kind, b.dtype.kind) else np.int64
        mine, other = a.astype(wide), b.astype(wide)
        with np.errstate(over="ignore"):
            return np.where(mine > other, mine - other, other - mine).view(np.uint64).astype(np.float64)
    differs = a != b
    return np.where(differs, np.maximum(np.abs(a.astype(np.float64) - b.astype(np.float64)), 1.0), 0.0)
