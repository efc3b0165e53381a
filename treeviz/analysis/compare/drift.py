"""How far the leaves of several checkpoints have moved from the first of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from treeviz.analysis.compare.aligned import NONE, Side, align
from treeviz.analysis.compare.in_files import pieces_of_both
from treeviz.analysis.compare.values import CannotCompare
from treeviz.tree.series import Series

_PLAIN = (bool, int, float, complex, str)  # compared by their text: NaN is NaN
_ABSENT = object()


class Drift(NamedTuple):
    """How far every row has moved.

    Attributes:
      series: The norm of the change relative to the norm in the first tree, and the norm of the change, in each of the
        other trees. A row whose first norm is zero has no relative one.
      from_zero: How far the leaves have moved at last, as a norm, whose first norm is zero, by row.
      n_moved: The number of leaves that differ in any of them.
      n_same: The number of leaves that were compared in all of them and never differ.
      n_left_out: The number of leaves that are missing, of another shape or not to be read in one of them.
    """

    series: tuple[Series, Series]
    from_zero: dict[int, float]
    n_moved: int
    n_same: int
    n_left_out: int


def drift(first: Side, others: Iterable[Side], steps: Sequence[int]) -> Drift:
    """Compare several trees with the first, leaf by leaf in float64; one of them is read at a time.

    Args:
      others: The other trees.
      steps: The step of each of them.
    """
    table = first.table
    shape = len(table), len(steps)
    changes, sizes = np.full(shape, np.nan), np.full(shape, np.nan)
    bad = np.zeros(shape, bool)
    leaves, n_more = [row.number for row in table.leaves], 0
    known, moved = np.zeros((2, len(leaves), len(steps)), bool)
    for i, other in enumerate(others):
        aligned = align(first, other)
        at = dict(zip(aligned.left.tolist(), aligned.right.tolist(), strict=True))
        n_more = max(n_more, int(other.table.is_leaf[aligned.right[aligned.left == NONE]].sum()))
        for n, row in enumerate(leaves):
            mine, theirs = first.nodes[row], _ABSENT if at.get(row, NONE) == NONE else other.nodes[at[row]]
            if table[row].shape is None:
                known[n, i] = type(mine) in _PLAIN and theirs is not _ABSENT
                moved[n, i] = known[n, i] and (type(theirs) is not type(mine) or repr(theirs) != repr(mine))
                continue
            changes[row, i], sizes[row, i], bad[row, i] = _squares(mine, theirs)
            known[n, i], moved[n, i] = not math.isnan(changes[row, i]), changes[row, i] > 0 or bad[row, i]
    is_whole, moved = known.all(axis=1), moved.any(axis=1)
    change, size = (np.sqrt(_summed(table, squares)) for squares in (changes, sizes))
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(size > 0, change / size, np.where(change == 0, 0.0, np.nan))
    at = np.array(steps, np.int64)
    bad = table.roll(bad, "any")
    relative, change = (np.minimum(each, np.finfo(np.float32).max).astype(np.float32) for each in (relative, change))
    series = (
        Series("drift", "change ÷ first", at, at, relative, bad, unit="ratio of L2 norms"),
        Series("change", "norm of the change", at, at, change, bad, unit="L2 norm"),
    )
    at_last = {row: float(change[row, -1]) for row in leaves}
    from_zero = {row: norm for row, norm in at_last.items() if norm > 0 and math.isnan(relative[row, -1])}
    return Drift(series, from_zero, int(moved.sum()), int((is_whole & ~moved).sum()), int((~is_whole).sum()) + n_more)


def _squares(mine: Any, theirs: Any) -> tuple[float, float, bool]:
    """The sums of squares of the change and of the first array, and whether a value is not finite; NaN if unknown."""
    if getattr(theirs, "shape", None) != mine.shape:
        return math.nan, math.nan, False
    change = size = 0.0
    is_bad = False
    try:
        for a, b in pieces_of_both(mine, theirs):
            wide = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
            a, b = a.astype(wide), b.astype(wide)
            finite = np.isfinite(a) & np.isfinite(b)
            if not finite.all():
                is_bad, a, b = True, a[finite], b[finite]
            change += float(np.vdot(b - a, b - a).real)
            size += float(np.vdot(a, a).real)
    except CannotCompare:
        return math.nan, math.nan, False
    return change, size, is_bad


def _summed(table: Any, squares: np.ndarray) -> np.ndarray:
    """The sums over subtrees; NaN where nothing is known."""
    sums = table.roll(np.where(np.isnan(squares), 0.0, squares), "sum")
    return np.where(table.roll(~np.isnan(squares), "any"), sums, np.nan)
