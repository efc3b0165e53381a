"""Roll a column up: the value of every subtree."""

from __future__ import annotations

import numpy as np

from treeviz.tree.column import Rollup

REDUCE = {"max": np.fmax, "min": np.fmin, "any": np.logical_or, "sum": np.add, "norm": np.hypot}


def roll(depth: np.ndarray, parent: np.ndarray, end: np.ndarray, values: np.ndarray, rule: Rollup) -> np.ndarray:
    """Give every node of a tree the value of its subtree.

    Linear in the rows; all rules but the sum of whole numbers also cost time for each level of depth.

    Args:
      depth, parent, end: int32[n_rows], as in `treeviz.TreeTable`.
      values: [n_rows], or [n_rows, k] for k columns at once: the rows' own values.
      rule: "sum"; "max", "min"; "any"; "norm", the root of the sum of squares. NaN means no value, and is skipped; the
        result is NaN where no row of the subtree has a value. "none" and "given" return `values` itself.

    Returns:
      The shape of `values`; int64 for sums of whole numbers, float64 for other sums and norms.
    """
    if rule in ("none", "given"):
        return values
    if rule == "sum" and values.dtype.kind in "iub":
        before = np.zeros((len(values) + 1, *values.shape[1:]), dtype=np.int64)
        np.cumsum(values, axis=0, out=before[1:])
        return before[end] - before[:-1]
    with np.errstate(all="ignore"):  # a sum may overflow to infinity
        if rule not in ("sum", "norm"):
            return _by_level(depth, parent, values, REDUCE[rule])
        missing = np.isnan(values)
        own = np.where(missing, 0.0, np.abs(values) if rule == "norm" else values).astype(np.float64, copy=False)
        rolled = _by_level(depth, parent, own, REDUCE[rule])
        if missing.any():
            rolled[~_by_level(depth, parent, ~missing, np.logical_or)] = np.nan
    return rolled


def _by_level(depth: np.ndarray, parent: np.ndarray, values: np.ndarray, reduce: np.ufunc) -> np.ndarray:
    """Join each row's value to its parent's, the deepest level first."""
    rolled = values.copy()
    by_depth = np.argsort(depth, kind="stable")
    levels = np.searchsorted(depth[by_depth], np.arange(1, int(depth.max(initial=0)) + 2))
    for start, stop in zip(levels[-2::-1], levels[:0:-1], strict=True):
        rows = by_depth[start:stop]
        parents = parent[rows]
        is_first = np.ones(len(rows), bool)
        is_first[1:] = parents[1:] != parents[:-1]
        first = np.flatnonzero(is_first)
        heads = parents[first]
        rolled[heads] = reduce(rolled[heads], reduce.reduceat(rolled[rows], first))
    return rolled
