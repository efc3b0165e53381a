"""The bars of histograms that a page sends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from treeviz.tree.column import Column
from treeviz.tree.table import TreeTable

_HIGHEST = 51  # a fifth of a bar of the front end, which draws it 90 pixels high
_AT_ONCE = 1 << 14  # histograms


def bars(table: TreeTable, column: Column) -> tuple[np.ndarray, dict[str, Any]]:
    """uint8[n_bins, n_rows]: the heights of the bars in the bins that are used; and what the front end needs besides.

    A bar is 0 to `_HIGHEST` relative to the highest; one that is not empty has at least 1.
    """
    levels, codes = np.asarray(column.levels), column.codes
    if column.rollup not in ("none", "given"):
        levels, codes = table.rolled(replace(column, levels=levels.astype(np.float64))), None
    heights = np.empty(levels.shape, np.uint8)
    for first in range(0, len(levels), _AT_ONCE):  # not all at once: they are 64 times as many numbers as other columns
        heights[first : first + _AT_ONCE] = _heights(levels[first : first + _AT_ONCE].astype(np.float64))
    used = np.flatnonzero(heights.any(axis=0))
    bins = slice(int(used[0]), int(used[-1]) + 1) if len(used) else slice(0, 0)
    heights = heights[:, bins] if codes is None else heights[codes, bins]
    spec = {"n_bins": heights.shape[1], "first_bin": bins.start + column.first_bin}
    return np.ascontiguousarray(heights.T), spec


def _heights(counts: np.ndarray) -> np.ndarray:
    counts = np.nan_to_num(counts, nan=0.0, posinf=0.0)
    highest = counts.max(axis=1, keepdims=True, initial=0)
    share = np.divide(counts, highest, out=np.zeros_like(counts), where=highest > 0)
    return np.ceil(_HIGHEST * share).astype(np.uint8)
