"""Which rows of a view are shown if there is no room for all, and which nodes are open at first."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from treeviz.tree.column import Column
from treeviz.views.text.truncate import Truncated, truncate
from treeviz.views.view import View

N_OPEN = 25  # rows that are visible at first
_ERRORS = ("error", "cycle", "hidden", "differs", "warning")  # kinds of notes


def first_rows(view: View, max_rows: int | None, max_depth: int | None) -> Truncated:
    """The rows that are shown: those with a finding, an error or NaN, and the largest leaf, before all others."""
    table = view.table
    if max_rows is None or len(table) <= max_rows:
        return truncate(table, max_rows, max_depth)
    weights = _weights(view)
    leaves = table.measured
    largest = leaves[np.argmax(weights[leaves])].tolist() if len(leaves) else 0
    return truncate(table, max_rows, max_depth, weights=weights, kept=[*wrong_rows(view), *nan_rows(view), largest])


def open_first(view: View, n_rows: int = N_OPEN) -> np.ndarray:
    """bool[n_rows of the table]: the nodes that are open at first.

    The root is. Then, as long as fewer than `n_rows` rows below it are visible, the closed node that holds the most
    bytes opens: of equal ones the first; in a tree without bytes the one with the most leaves; with a `view.depth`, all
    nodes above that depth, and no others. `tests/open_cases.json` has examples.
    """
    table, is_open = view.table, np.zeros(len(view.table), bool)
    if view.depth is not None:
        return table.depth < view.depth
    weights, heap, n_visible = _weights(view), [(0.0, 0)], 0
    while heap and n_visible < n_rows:
        _, node = heappop(heap)
        is_open[node] = True
        children = table.children(node)
        n_visible += len(children)
        for child in children:
            if table.end[child] > child + 1:
                heappush(heap, (-float(weights[child]), child))
    return is_open


def wrong_rows(view: View) -> list[int]:
    """The rows with a finding or an error, each once, worst first: findings in their order, then errors by row."""
    found = [mark.row for each in view.series for mark in each.marks if mark.severity != "info"]
    return list(dict.fromkeys([*found, *_noted(view, *_ERRORS)]))


def nan_rows(view: View) -> list[int]:
    """The rows with NaN or infinities, each once."""
    bad = [column.bad for column in view.columns if column.bad is not None]
    bad += [each.bad.any(axis=1) for each in view.series]
    bad += [column.values > 0 for column in view.columns if column.name.endswith(".nonfinite")]  # of another tree
    return list(
        dict.fromkeys([*_noted(view, "nonfinite"), *(row for each in bad for row in np.flatnonzero(each).tolist())])
    )


def _noted(view: View, *kinds: str) -> list[int]:
    return sorted([row for row, notes in view.table.notes.items() for note in notes if note.kind in kinds])


def sizes_of(view: View) -> Column | None:
    """The column of bytes."""
    columns = (*view.columns, *view.table.columns.values())
    return next((column for column in columns if column.format == "bytes" and column.rollup == "sum"), None)


def _weights(view: View) -> np.ndarray:
    """[n_rows]: the bytes of each subtree; the leaves, if there are none."""
    sizes = sizes_of(view)
    if sizes is not None and (weights := view.table.rolled(sizes))[0] > 0:
        return np.nan_to_num(weights)
    leaves = np.array([facts.leaves for facts in view.table.facts], np.int64)
    return view.table.roll(leaves[view.table.fact_codes], "sum")
