"""Roll a column up: give every node what its subtree adds up to."""

from __future__ import annotations

import numpy as np

from treeviz.tree.column import Column, Rollup
from treeviz.tree.table import TreeTable

_REDUCE = {"max": np.fmax, "min": np.fmin, "any": np.logical_or}


def rolled_up(table: TreeTable, column: Column) -> np.ndarray:
    """[n_rows]: the column's value for every row, nodes included.

    Linear in the rows; all but whole-number sums also pay for every level of depth.
    """
    values = column.values
    return values if column.format == "label" else roll(table, values, column.rollup)


def roll(table: TreeTable, values: np.ndarray, rollup: Rollup) -> np.ndarray:
    """The same for values without a column: [n_rows], or [n_rows, k] for k columns at once."""
    if rollup in ("none", "given"):
        return values
    if rollup == "sum" and values.dtype.kind in "iub":
        before = np.zeros((len(values) + 1, *values.shape[1:]), dtype=np.int64)
        np.cumsum(values, axis=0, out=before[1:])
        return before[table.end] - before[:-1]
    if rollup == "sum":
        return _by_level(table, values.astype(np.float64), np.add, 0.0)
    if rollup == "norm":
        norms = np.sqrt(_by_level(table, np.square(values, dtype=np.float64), np.add, 0.0))
        norms[~_by_level(table, ~np.isnan(values), np.logical_or)] = np.nan  # nothing below has a norm
        return norms
    return _by_level(table, values, _REDUCE[rollup])


def _by_level(table: TreeTable, values: np.ndarray, reduce: np.ufunc, missing=None) -> np.ndarray:
    """Deepest level first, each row's value is joined to its parent's."""
    rolled = values.copy()
    if missing is not None:
        rolled[np.isnan(rolled)] = missing
    by_depth = np.argsort(table.depth, kind="stable")
    levels = np.searchsorted(table.depth[by_depth], np.arange(1, int(table.depth.max(initial=0)) + 2))
    for start, stop in zip(levels[-2::-1], levels[:0:-1], strict=True):
        rows = by_depth[start:stop]
        parents = table.parent[rows]
        first = np.flatnonzero(np.diff(parents, prepend=-2))
        heads = parents[first]
        rolled[heads] = reduce(rolled[heads], reduce.reduceat(rolled[rows], first))
    return rolled
