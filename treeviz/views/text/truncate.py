"""Choose the rows to show if the number of lines or of characters is limited."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from treeviz.tree.table import TreeTable

_FEW = 4  # children of a node, if not every node can show some
_GOOD_FILL = 0.9  # of the most lines that any share fills


class Truncated(NamedTuple):
    """The rows that are shown, in the tree's order. A shown node shows all, the first few or none of its children,
    and those of them that are kept or lead to one that is.

    Attributes:
      rows: int[n_shown].
      n_left_out: int[n_shown]: the number of omitted children of each.
    """

    rows: np.ndarray
    n_left_out: np.ndarray


def truncate(
    table: TreeTable,
    max_rows: int | None = None,
    max_depth: int | None = None,
    *,
    weights: np.ndarray | None = None,
    kept: Iterable[int] = (),
) -> Truncated:
    """The first rows of every subtree: level by level, the same number of children for every node.

    A level takes only a share of the remaining lines, so that deeper levels are shown, too. `max_rows` includes the
    line "… 12 more" of a node that shows some of its children.

    Args:
      weights: [n_rows]: of two nodes the heavier one opens first, if there is no room for both.
      kept: Rows that are shown before all others, the first ones if a third of the lines has no room for all.
    """
    n_children = np.bincount(table.parent[1:], minlength=len(table))
    if max_depth is None:
        rows = np.arange(len(table))
    else:
        rows = np.flatnonzero(table.depth <= max_depth)
    if max_rows is not None and len(rows) > max_rows:
        paths = _paths(table, kept, max_rows // 3, max_depth)
        room = max_rows
        while True:
            chosen = _Levels(table, n_children, room, max_depth, weights).choice()
            rows = np.union1d(chosen, paths)
            excess = _n_lines(table, n_children, rows) - max_rows
            if excess <= 0 or room == 1:
                break
            room = max(1, room - excess)
    n_shown = np.bincount(table.parent[rows[1:]], minlength=len(table))
    return Truncated(rows, (n_children - n_shown)[rows])


def _paths(table: TreeTable, kept: Iterable[int], most: int, max_depth: int | None) -> np.ndarray:
    """The rows to keep and those above them, at most so many."""
    found: set[int] = set()
    for row in kept:
        if table.depth[row] > 10 * most:
            continue
        path = []
        while row > 0 and row not in found:
            path.append(row)
            row = int(table.parent[row])
        path = [row for row in path if max_depth is None or table.depth[row] <= max_depth]
        if len(found) + len(path) > most:
            break
        found.update(path)
    return np.array(sorted(found), dtype=int)


def _n_lines(table: TreeTable, n_children: np.ndarray, rows: np.ndarray) -> int:
    n_shown = np.bincount(table.parent[rows[1:]], minlength=len(table))
    return len(rows) + int(np.count_nonzero((n_shown > 0) & (n_shown < n_children)))


class _Levels(NamedTuple):
    table: TreeTable
    n_children: np.ndarray
    max_rows: int
    max_depth: int | None
    weights: np.ndarray | None = None

    def choice(self) -> np.ndarray:
        """The rows that fill the lines well and leave most of them to deep levels."""
        tries: list[tuple[int, np.ndarray]] = []
        for share in (0.5, 0.7, 0.85, 1.0):
            tries.append(self.fill(share))
            if tries[-1][0] >= _GOOD_FILL * self.max_rows:  # each takes seconds if there are 100,000 levels
                break
        most = max(n_lines for n_lines, _ in tries)
        return next(chosen for n_lines, chosen in tries if n_lines >= _GOOD_FILL * most)

    def fill(self, share: float) -> tuple[int, np.ndarray]:
        """The number of lines, and the rows, if each level takes at most this share of the remaining lines."""
        n_lines, depth = 1, 0
        level, chosen = np.array([0]), [np.array([0])]
        while len(level) and n_lines < self.max_rows and (self.max_depth is None or depth < self.max_depth):
            n_inside = self.n_children[level]
            room = self.max_rows - n_lines
            if bool(np.any(self.table.end[level] - level - 1 > n_inside)):  # the level below has children itself
                room = max(1, int(room * share))
            if self.weights is not None:
                level = level[np.argsort(-self.weights[level], kind="stable")]
                n_inside = self.n_children[level]
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


def longest_within(budget: int, most: int, text_of: Callable[[int], str]) -> str:
    """The text of the most rows that has no more than `budget` characters, or that of one row if none has.

    Bisects the number of rows, 1 to `most`. More rows may be shorter, as when a column no longer fits: the text that
    is returned fits, but another might have held a few rows more.
    """
    best, low, high = text_of(1), 2, most
    while low <= high:
        n_rows = (low + high) // 2
        if len(candidate := text_of(n_rows)) <= budget:
            best, low = candidate, n_rows + 1
        else:
            high = n_rows - 1
    return best
