"""The magnitudes of both sides of a leaf whose values differ, as two histograms of one scale."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from treeviz.analysis.stats.columns import value_statistics
from treeviz.analysis.stats.host import lies_on_host
from treeviz.analysis.stats.summary import FIRST_EXPONENT
from treeviz.tree.walk import scan

MOST = 64  # leaves
MOST_ELEMENTS = 4_000_000  # of all of them: 4 ns each

Bars = tuple[int, list[int], list[int]]  # the power of two of the first bin, and the heights, 0 to 255, of each side


def magnitudes(pairs: Iterable[tuple[int, Any, Any]]) -> dict[int, Bars]:
    """Histograms of the first pairs of arrays in host memory, by row; none of those of no numbers.

    Args:
      pairs: The row and the arrays.
    """
    arrays, rows, n_left = [], [], MOST_ELEMENTS
    for row, *pair in pairs:
        if len(rows) == MOST:
            break
        size = sum(math.prod(each.shape) for each in pair) if all(map(_is_on_host, pair)) else MOST_ELEMENTS + 1
        if size <= n_left:
            arrays += pair
            rows.append(row)
            n_left -= size
    if not rows:
        return {}
    table, nodes = scan(arrays)
    columns, _ = value_statistics(table, nodes)
    counts = next(column.values for column in columns if column.name == "histogram")[1:]
    bars = {
        row: _bars(np.nan_to_num(left), np.nan_to_num(right))
        for row, left, right in zip(rows, counts[::2], counts[1::2], strict=True)
    }
    return {row: each for row, each in bars.items() if each is not None}


def _is_on_host(array: Any) -> bool:
    return isinstance(array, np.ndarray) or (hasattr(array, "sharding") and lies_on_host(array))


def _bars(left: np.ndarray, right: np.ndarray) -> Bars | None:
    used = np.flatnonzero(left + right)
    if not len(used):
        return None
    first, end = int(used[0]), int(used[-1]) + 1
    most = max(left.max(), right.max())
    sides = [np.ceil(255 * counts[first:end] / most).astype(int).tolist() for counts in (left, right)]
    return first + FIRST_EXPONENT, *sides
