"""Rows by key path. The browser does the same in assets/widget/sync.js and assets/tree/rows.js."""

from __future__ import annotations

import numpy as np

from treeviz.tree.table import TreeTable

_ROWS_AT_FIRST = 30  # the most rows that the levels open at first may show


def path_name(table: TreeTable, row: int) -> str:
    """The key path as `jax.tree_util.keystr` writes it; the tree's name for the root."""
    return table[row].keystr or table.name


def row_of_path(table: TreeTable, text: str) -> int | None:
    """The first row with this key path, or None."""
    if text in ("", table.name):
        return 0
    waiting = [(0, 0)]
    while waiting:
        above, at = waiting.pop()
        below = []
        row, end = above + 1, int(table.end[above])
        while row < end:
            keystr = table.key(row).keystr
            if keystr and text.startswith(keystr, at):
                if at + len(keystr) == len(text):
                    return row
                below.append((row, at + len(keystr)))
            row = int(table.end[row])
        waiting += reversed(below)
    return None


def first_open(table: TreeTable, depth: int | None, most: int) -> list[int]:
    """The first `most` of the initially open nodes: those above `depth`, by default as many levels as fit."""
    if depth is None:
        n_shown = np.cumsum(np.bincount(table.depth))
        depth = max(1, int(np.searchsorted(n_shown, _ROWS_AT_FIRST, side="right")) - 1)
    is_node = table.end > np.arange(len(table)) + 1
    return [int(row) for row in np.flatnonzero(is_node & (table.depth < depth))[:most]]
