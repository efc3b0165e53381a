"""The rows of one table in another, matched by key path. The front end does the same in `assets/widget/transfer.js`."""

from __future__ import annotations

import numpy as np

from treeviz.tree.table import TreeTable


def matched_rows(before: TreeTable, after: TreeTable) -> np.ndarray:
    """int[len(before)]: the row of `after` with the same key path, or -1."""
    rows = np.full(len(before), -1, dtype=np.int64)
    if (
        np.array_equal(before.depth, after.depth)
        and np.array_equal(before.key_codes, after.key_codes)
        and before.keys == after.keys
    ):
        return np.arange(len(before))
    rows[0] = 0
    for row in range(len(before)):
        there = int(rows[row])
        if there < 0 or before.end[row] == row + 1:
            continue
        places: dict[str, list[int]] = {}  # repeated keys are matched in order
        for below in after.children(there):
            places.setdefault(after.key(below).keystr, []).append(below)
        for below in before.children(row):
            found = places.get(before.key(below).keystr)
            if found:
                rows[below] = found.pop(0)
    return rows
