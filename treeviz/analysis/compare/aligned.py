"""The rows of two trees side by side: each with its counterpart, in one depth-first order."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from treeviz.analysis.compare.nodes import MAPPINGS
from treeviz.tree.safe_repr import qualified_name
from treeviz.tree.table import TreeTable

NONE = -1


class Side(NamedTuple):
    """A tree that is compared: its table, and the node or leaf of each row."""

    table: TreeTable
    nodes: list[Any]

    def cls(self, row: int) -> type:
        return type(self.nodes[row])


class Aligned(NamedTuple):
    """The rows of both trees in one depth-first order.

    Attributes:
      left, right: int[n]: the row of each tree, or -1 where it has no counterpart.
      depth, parent, end: int32[n], as of a `TreeTable`.
    """

    left: np.ndarray
    right: np.ndarray
    depth: np.ndarray
    parent: np.ndarray
    end: np.ndarray


def align(left: Side, right: Side) -> Aligned:
    """Align children by their keys, repeated ones in order; nodes of types that have nothing in common stay apart.

    What the second tree alone has stands after the children of the first. Linear in the rows.
    """
    a, b = left.table, right.table
    if a.keys == b.keys and all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in ("depth", "key_codes", "position")
    ):
        rows = np.arange(len(a))
        to_ask = (a.end - rows > 1) & ~(same_facts(a, b, rows, rows) & is_builtin(a)[rows])
        if all(is_comparable(left, right, row, row) for row in np.flatnonzero(to_ask).tolist()):
            return Aligned(rows, rows, a.depth, a.parent, a.end)
    return _Aligner(left, right).run()


class _Aligner:
    def __init__(self, left: Side, right: Side) -> None:
        self._left, self._right = left, right
        self._rows: list[tuple[int, int]] = []
        self._depths: list[int] = []
        self._parents: list[int] = []

    def run(self) -> Aligned:
        stack: list[tuple[int, int, int]] = [(0, 0, NONE)]  # left, right, the aligned row of the parent
        while stack:
            left, right, parent = stack.pop()
            at = len(self._rows)
            self._rows.append((left, right))
            self._parents.append(parent)
            self._depths.append(self._depths[parent] + 1 if parent >= 0 else 0)
            if left != NONE and right != NONE and not is_comparable(self._left, self._right, left, right):
                below = [(row, NONE) for row in self._left.table.children(left)]
            else:
                below = self._pairs(left, right)
            stack += [(mine, other, at) for mine, other in reversed(below)]
        rows = np.array(self._rows, dtype=np.int64).reshape(-1, 2)
        depth, parents = np.array(self._depths, dtype=np.int32), np.array(self._parents, dtype=np.int32)
        return Aligned(rows[:, 0], rows[:, 1], depth, parents, _ends(parents))

    def _pairs(self, left: int, right: int) -> list[tuple[int, int]]:
        a, b = self._left.table, self._right.table
        if left == NONE:
            return [(NONE, row) for row in b.children(right)]
        mine = a.children(left)
        if right == NONE:
            return [(row, NONE) for row in mine]
        waiting: dict[str, list[int]] = {}
        for row in b.children(right):
            waiting.setdefault(b.key(row).keystr, []).append(row)
        pairs = []
        for row in mine:
            same = waiting.get(a.key(row).keystr)
            pairs.append((row, same.pop(0) if same else NONE))
        return pairs + [(NONE, row) for rows in waiting.values() for row in rows]


def same_facts(left: TreeTable, right: TreeTable, mine: np.ndarray, other: np.ndarray) -> np.ndarray:
    """bool[n]: whether rows have the same facts, of rows that both trees have."""
    code_of = {facts: code for code, facts in enumerate(left.facts)}
    codes = np.array([code_of.get(facts, -1) for facts in right.facts])
    return left.fact_codes[mine] == codes[right.fact_codes[other]]


def is_builtin(table: TreeTable) -> np.ndarray:
    """bool[n]: the rows of dicts, lists and tuples, and of no other class, not even one of their name."""
    kinds = [facts.kind == facts.type and facts.kind in ("dict", "list", "tuple") for facts in table.facts]
    return np.array(kinds, bool)[table.fact_codes]


def is_comparable(left: Side, right: Side, mine: int, other: int) -> bool:
    """Whether the children of two nodes are compared: of one class or of one name, two sequences, or two mappings."""
    a, b = left.cls(mine), right.cls(other)
    if a is b:
        return True
    if any(a in kind and b in kind for kind in ((list, tuple), MAPPINGS)):
        return True
    return qualified_name(a) == qualified_name(b)


def _ends(parents: np.ndarray) -> np.ndarray:
    """int32[n]: where each subtree ends, of rows in depth-first order."""
    sizes = np.ones(len(parents), dtype=np.int32)
    for row in range(len(parents) - 1, 0, -1):
        sizes[parents[row]] += sizes[row]
    return np.arange(len(parents), dtype=np.int32) + sizes
