"""The magnitudes of both sides of a leaf whose values differ, as two histograms of one scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from treeviz.analysis.stats.columns import value_statistics
from treeviz.analysis.stats.host import lies_on_host
from treeviz.analysis.stats.summary import FIRST_EXPONENT
from treeviz.tree.walk import scan

MOST = 64  # leaves
MOST_ELEMENTS = 4_000_000  # of all of them: 4 ns each

Bars = tuple[int, list[int], list[int]]  # the power of two of the first bin, and the heights, 0 to 255, of each side


def magnitudes(pairs: Sequence[tuple[Any, Any]]) -> list[Bars | None]:
    """Histograms of the first pairs of arrays in host memory; None for those not read, or of no numbers."""
    arrays, of, n_left = [], [], MOST_ELEMENTS
    for i, pair in enumerate(pairs):
        is_read = len(of) < MOST and all(map(_is_on_host, pair))
        size = sum(math.prod(each.shape) for each in pair) if is_read else 0
        if is_read and size <= n_left:
            arrays += pair
            of.append(i)
            n_left -= size
    found: list[Bars | None] = [None] * len(pairs)
    if of:
        table, nodes = scan(arrays)
        columns, _ = value_statistics(table, nodes)
        counts = next(column.values for column in columns if column.name == "histogram")[1:]
        for i, left, right in zip(of, counts[::2], counts[1::2], strict=True):
            found[i] = _bars(np.nan_to_num(left), np.nan_to_num(right))
    return found


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
