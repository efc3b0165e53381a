"""Choose the rows to show if the number of lines is limited."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treeviz.tree.table import TreeTable

_FEW = 4  # children of a node, if not every node can show some
_GOOD_FILL = 0.9  # of the most lines that any share fills


class Truncated(NamedTuple):
    """The rows that are shown, in the tree's order. A shown node shows all, the first few or none of its children.

    Attributes:
      rows: int[n_shown].
      n_left_out: int[n_shown]: the number of omitted children of each.
    """

    rows: np.ndarray
    n_left_out: np.ndarray


def truncate(table: TreeTable, max_rows: int | None = None, max_depth: int | None = None) -> Truncated:
    """The first rows of every subtree: level by level, the same number of children for every node.

    A level takes only a share of the remaining lines, so that deeper levels are shown, too. `max_rows` includes the
    line "… 12 more" of a node that shows some of its children.
    """
    n_children = np.bincount(table.parent[1:], minlength=len(table))
    if max_depth is None:
        rows = np.arange(len(table))
    else:
        rows = np.flatnonzero(table.depth <= max_depth)
    if max_rows is not None and len(rows) > max_rows:
        levels = _Levels(table, n_children, max_rows, max_depth)
        tries: list[tuple[int, np.ndarray]] = []
        for share in (0.5, 0.7, 0.85, 1.0):
            tries.append(levels.fill(share))
            if tries[-1][0] >= _GOOD_FILL * max_rows:  # each takes seconds if there are 100,000 levels
                break
        most = max(n_lines for n_lines, _ in tries)
        rows = next(chosen for n_lines, chosen in tries if n_lines >= _GOOD_FILL * most)
    n_shown = np.bincount(table.parent[rows[1:]], minlength=len(table))
    return Truncated(rows, (n_children - n_shown)[rows])


class _Levels(NamedTuple):
    table: TreeTable
    n_children: np.ndarray
    max_rows: int
    max_depth: int | None

    def fill(self, share: float) -> tuple[int, np.ndarray]:
        """The number of lines, and the rows, if each level takes at most this share of the remaining lines."""
        n_lines, depth = 1, 0
        level, chosen = np.array([0]), [np.array([0])]
        while len(level) and n_lines < self.max_rows and (self.max_depth is None or depth < self.max_depth):
            n_inside = self.n_children[level]
            room = self.max_rows - n_lines
            if bool(np.any(self.table.end[level] - level - 1 > n_inside)):  # the level below has children itself
                room = max(1, int(room * share))
            n_each = _shared(n_inside, room)
            n_lines += int(n_each.sum() + np.count_nonzero((n_each > 0) & (n_each < n_inside)))
            children = self._first_children(level, n_each)
            chosen.append(children)
            level, depth = children[self.n_children[children] > 0], depth + 1
        return n_lines, np.sort(np.concatenate(chosen))

    def _first_children(self, nodes: np.ndarray, n_each: np.ndarray) -> np.ndarray:
        end, children = self.table.end, []
        for node, n in zip(nodes.tolist(), n_each.tolist(), strict=True):
            child = node + 1
            for _ in range(n):
                children.append(child)
                child = int(end[child])
        return np.array(children, dtype=int)


def _shared(n_inside: np.ndarray, room: int) -> np.ndarray:
    """The number of children that each node shows, in at most `room` lines together.

    Omitted children take one line, so a node with a single child above the limit shows it.
    """

    def n_lines(limit: int) -> int:
        return int(np.minimum(n_inside, limit + 1).sum())

    if n_inside.sum() <= room:
        return n_inside
    low, high = 0, int(n_inside.max())
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if n_lines(middle) <= room else (low, middle)
    if low < 2:  # some children of the first nodes are better than one of each
        n_each = np.zeros_like(n_inside)
        before = np.cumsum(np.minimum(n_inside, _FEW + 1))
        whole = before <= room
        n_each[whole] = np.where(n_inside[whole] > _FEW + 1, _FEW, n_inside[whole])
        if not whole[0]:
            n_each[0] = room - 1
        return n_each
    rest = room - n_lines(low)
    limits = np.full_like(n_inside, low)
    limits[np.flatnonzero(n_inside > low + 1)[:rest]] += 1
    return np.where(n_inside > limits + 1, limits, n_inside)
