"""Choose which rows to show when there is no room for all."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treeviz.tree.table import TreeTable

_FEW = 4  # children that a node shows where not every node can show some
_NEAR = 0.9  # of the room, and it is well used


class Choice(NamedTuple):
    """The rows that are shown, in the tree's order.

    Of every node that is shown, the first children are, or all, or none.

    Attributes:
      rows: int[n_shown].
      n_left_out: int[n_shown]: how many of its children each of them does not show.
    """

    rows: np.ndarray
    n_left_out: np.ndarray


def choose(table: TreeTable, max_rows: int | None = None, max_depth: int | None = None) -> Choice:
    """The first rows of everything: level by level, and the same number of children for every node.

    Where a level would leave nothing for those below it, it gets half of the room. A node that shows some
    of its children needs a row more, to say how many it does not; these are counted in `max_rows`.
    """
    n_children = np.bincount(table.parent[1:], minlength=len(table))
    if max_depth is None:
        rows = np.arange(len(table))
    else:
        rows = np.flatnonzero(table.depth <= max_depth)
    if max_rows is not None and len(rows) > max_rows:
        levels = _Levels(table, n_children, max_rows, max_depth)
        tries = [levels.fill(share) for share in (0.5, 0.7, 0.85, 1.0)]
        most = max(n_lines for n_lines, _ in tries)
        rows = next(chosen for n_lines, chosen in tries if n_lines >= _NEAR * most)
    n_shown = np.bincount(table.parent[rows[1:]], minlength=len(table))
    return Choice(rows, (n_children - n_shown)[rows])


class _Levels(NamedTuple):
    table: TreeTable
    n_children: np.ndarray
    max_rows: int
    max_depth: int | None

    def fill(self, share: float) -> tuple[int, np.ndarray]:
        """How many lines it takes, and the rows, if a level gets at most this share of the room."""
        n_lines, depth = 1, 0
        level, chosen = np.array([0]), [np.array([0])]
        while len(level) and n_lines < self.max_rows and (self.max_depth is None or depth < self.max_depth):
            n_inside = self.n_children[level]
            room = self.max_rows - n_lines
            if bool(np.any(self.table.end[level] - level - 1 > n_inside)):  # there is a level below the next
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
    """How many of its children each node shows, if together they have `room` lines.

    A node with more than it shows takes a line more, so one child more than the limit is shown as well.
    """

    def n_lines(limit: int) -> int:
        return int(np.minimum(n_inside, limit + 1).sum())

    if n_inside.sum() <= room:
        return n_inside
    low, high = 0, int(n_inside.max())
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if n_lines(middle) <= room else (low, middle)
    if low < 2:  # a child or none for each says little: the first nodes show some
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
