"""The rows of two trees side by side: each with its counterpart, in one depth-first order."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np

from treeviz.analysis.compare.nodes import MAPPINGS, open_registered
from treeviz.tree.forks import computed_once
from treeviz.tree.safe_repr import qualified_name
from treeviz.tree.table import TreeTable, children_of
from treeviz.tree.treedef import is_treedef

NONE = -1
_FEW_LEVELS = 16
_FIRST = 16  # siblings that are asked for at once; four times as many after those that are alike
_INDEX = re.compile(r"\[(0|[1-9][0-9]{0,8})\]")
_SEQUENCES, _MAPPINGS = set(map(id, (list, tuple))), set(map(id, MAPPINGS))  # a metaclass may override ==


class Side(NamedTuple):
    """A tree that is compared: its table, and the node or leaf of each row."""

    table: TreeTable
    nodes: list[Any]

    def cls(self, row: int) -> type:
        """The class of a node or leaf; in a bare treedef that of the node which the treedef stands for."""
        node = self.nodes[row]
        return node.node_data()[0] if self._is_bare(row) else type(node)

    def aux(self, row: int) -> Any:
        """The auxiliary data of a node of a registered class. Runs its flatten function."""
        node = self.nodes[row]
        return node.node_data()[1] if self._is_bare(row) else open_registered(node).aux

    def keys(self, row: int) -> list[Any]:
        """The keys of a mapping."""
        node = self.nodes[row]
        if not self._is_bare(row):
            return list(node)
        cls, aux = node.node_data()
        return list(aux[1] if cls is defaultdict else aux)

    def default_factory(self, row: int) -> Any:
        """That of a mapping; None if it has none."""
        node = self.nodes[row]
        if not self._is_bare(row):
            return getattr(node, "default_factory", None)
        cls, aux = node.node_data()
        return aux[0] if cls is defaultdict else None

    def _is_bare(self, row: int) -> bool:
        return is_treedef(self.nodes[row]) and not self.table.is_leaf[row]


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


class _Alike:
    """Which subtrees have the same keys and the same facts in two tables.

    Rows are compared all at once with those that stand so many rows further in the other table, for a few such numbers.
    """

    _MOST = 16

    def __init__(self, left: TreeTable, right: TreeTable, ends: tuple[list[int], list[int]]) -> None:
        self._left, self._right, self._ends = left, right, ends
        code_of = {key: code for code, key in enumerate(left.keys)}
        self._key_codes = np.array([code_of.get(key, -1) for key in right.keys])[right.key_codes]
        self._counts: dict[int, list[int]] = {}  # by how much further: the alike rows before each row

    def is_subtree(self, mine: int, other: int) -> bool:
        """Whether all that is below two rows is alike, and they have the same facts."""
        further, end = other - mine, self._ends[0][mine]
        if self._ends[1][other] != end + further:
            return False
        if further not in self._counts:
            if len(self._counts) == self._MOST:
                return False
            self._counts[further] = self._count(further)
        counts = self._counts[further]
        return counts[end] - counts[mine] == end - mine

    def _count(self, further: int) -> list[int]:
        a, b = self._left, self._right
        rows = np.arange(max(0, -further), min(len(a), len(b) - further))
        others = rows + further
        alike = np.zeros(len(a) + 1, np.int64)
        alike[rows + 1] = (
            (a.depth[rows] == b.depth[others])
            & (a.key_codes[rows] == self._key_codes[others])
            & ((a.position[rows] == b.position[others]) | (a.key_codes[rows] != 0))
            & same_facts(a, b, rows, others)
        )
        return np.cumsum(alike).tolist()


class _Again:
    """Which subtrees of one tree are like that of the sibling before, its key aside: in keys, facts and classes."""

    _MOST = 8

    def __init__(self, side: Side, ends: list[int]) -> None:
        self._table, self._nodes, self._ends = side.table, side.nodes, ends
        self._codes = side.table.fact_codes.tolist()
        self._counts: dict[int, np.ndarray] = {}  # by how many rows each has: the rows before that are like the last

    def is_like(self, before: int, row: int) -> bool:
        """Whether a row is the next sibling of another, and like it."""
        size = row - before
        if self._ends[before] != row or self._ends[row] != row + size:
            return False
        if self._codes[before] != self._codes[row] or type(self._nodes[before]) is not type(self._nodes[row]):
            return False
        if size not in self._counts:
            if len(self._counts) == self._MOST:
                return False
            self._counts[size] = self._count(size)
        counts = self._counts[size]
        return bool(counts[row] - counts[before + 1] == size - 1)

    def n_like(self, row: int, size: int) -> int:
        """How many next siblings of a row of a size that `is_like` was asked for are each like the one before."""
        table, counts, n, n_tried = self._table, self._counts[size], 0, _FIRST
        while True:
            next_ = np.arange(row + (n + 1) * size, min(row + (n + n_tried) * size, len(table) - size) + 1, size)
            last, ends = next_ - size, table.end
            is_like = (
                (ends[last] == next_) & (ends[next_] == next_ + size) & (counts[next_] - counts[last + 1] == size - 1)
            )
            for each in (table.fact_codes, self._classes):
                is_like &= each[last] == each[next_]
            n_alike = len(is_like) if is_like.all() else int(is_like.argmin())
            n += n_alike
            if n_alike < n_tried:
                return n
            n_tried *= 4

    @computed_once
    def _classes(self) -> np.ndarray:
        return np.fromiter(map(id, map(type, self._nodes)), np.int64, len(self._nodes))

    def _count(self, size: int) -> np.ndarray:
        table, n = self._table, len(self._nodes)
        like = np.zeros(n + 1, np.int64)
        of = (table.depth, table.key_codes, table.fact_codes, self._classes)
        like[1 : n - size + 1] = np.logical_and.reduce([each[size:] == each[: n - size] for each in of]) & (
            (table.position[size:] == table.position[: n - size]) | (table.key_codes[size:] != 0)
        )
        return np.cumsum(like)


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
        self._ends = left.table.end.tolist(), right.table.end.tolist()
        self._alike = _Alike(left.table, right.table, self._ends)
        self._again = _Again(left, self._ends[0]), _Again(right, self._ends[1])
        self._names = _names(left.table, right.table)
        self._above, self._deep = left.table.parent.tolist(), left.table.depth.tolist()
        self._rows: tuple[list[int], list[int]] = [], []
        self._depths: list[int] = []
        self._parents: list[int] = []

    def run(self) -> Aligned:
        stack: list[tuple[int, int, int]] = [(0, 0, NONE)]  # left, right, the aligned row of the parent
        (lefts, rights), depths, parents = self._rows, self._depths, self._parents
        last: dict[int, int] = {}  # by the aligned row of the parent: that of its child that was aligned before
        while stack:
            left, right, parent = stack.pop()
            at = len(depths)
            if left != NONE != right and parent in last and self._is_again(last[parent], left, right):
                last[parent] = self._repeat(last[parent], left, right, parent, stack)
                continue
            lefts.append(left)
            rights.append(right)
            parents.append(parent)
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
            if NONE in (left, right):
                stack += reversed(self._alone(left, right, at))
                continue
            if self._alike.is_subtree(left, right):
                self._take(left, right, at, parent, stack)
                continue
            if is_comparable(self._left, self._right, left, right):
                stack += reversed([(*pair, at) for pair in self._pairs(left, right)])
            else:
                stack += reversed(self._alone(left, NONE, at))
            last[parent] = at
        left_rows, right_rows = (np.array(rows, np.int64) for rows in self._rows)
        depth = np.array(depths, np.int32)
        return Aligned(left_rows, right_rows, depth, np.array(parents, np.int32), _ends(depth, parents))

    def _is_again(self, at: int, left: int, right: int) -> bool:
        """Whether the pair that was aligned from a row on was such a pair, too."""
        lefts, rights = self._rows
        return self._again[0].is_like(lefts[at], left) and self._again[1].is_like(rights[at], right)

    def _repeat(self, first: int, left: int, right: int, parent: int, stack: list[tuple[int, int, int]]) -> int:
        """Add a pair, and the next siblings, as the pair before was aligned; returns the row of the last."""
        at, n = len(self._depths), 1
        sizes = [own - rows[first] for own, rows in zip((left, right), self._rows, strict=True)]
        most = 1 + min(
            again.n_like(row, size) for again, row, size in zip(self._again, (left, right), sizes, strict=True)
        )
        while n < most and stack and stack[-1] == (left + n * sizes[0], right + n * sizes[1], parent):
            stack.pop()
            n += 1
        times = np.arange(1, n + 1)[:, None]
        for rows, size in zip(self._rows, sizes, strict=True):
            before = np.array(rows[first:])
            rows += np.where(before == NONE, NONE, before + times * size).ravel().tolist()
        above = np.array(self._parents[first:])
        self._parents += np.where(above == parent, parent, above + times * (at - first)).ravel().tolist()
        self._depths += self._depths[first:] * n
        return at + (n - 1) * (at - first)

    def _take(self, left: int, right: int, at: int, parent: int, stack: list[tuple[int, int, int]]) -> None:
        """Add what is below a pair of rows that is the same in both, and the next siblings that are the same."""
        ends, others = self._ends
        end, other = ends[left], others[right]
        while stack and stack[-1] == (end, other, parent) and self._alike.is_subtree(end, other):
            end, other = ends[end], others[other]
            stack.pop()
        own, further = self._above[left], at - left
        self._rows[0].extend(range(left + 1, end))
        self._rows[1].extend(range(right + 1, other))
        self._parents += [parent if above == own else above + further for above in self._above[left + 1 : end]]
        self._depths += self._deep[left + 1 : end]

    def _alone(self, left: int, right: int, at: int) -> list[tuple[int, int, int]]:
        """The children of a row without a counterpart."""
        if right == NONE:
            return [(row, NONE, at) for row in children_of(self._ends[0], left)]
        return [(NONE, row, at) for row in children_of(self._ends[1], right)]

    def _pairs(self, left: int, right: int) -> list[tuple[int, int]]:
        rows = [children_of(ends, row) for ends, row in zip(self._ends, (left, right), strict=True)]
        mine, theirs = ([names[row] for row in of] for names, of in zip(self._names, rows, strict=True))
        if mine == theirs:
            return list(zip(*rows, strict=True))
        waiting: dict[int, list[int]] = {}
        for name, row in zip(theirs, rows[1], strict=True):
            waiting.setdefault(name, []).append(row)
        pairs = []
        for name, row in zip(mine, rows[0], strict=True):
            same = waiting.get(name)
            pairs.append((row, same.pop(0) if same else NONE))
        return pairs + [(NONE, row) for rows in waiting.values() for row in rows]


def _names(*tables: TreeTable) -> list[list[int]]:
    """A number for the key of each row: the same where `keystr` writes the same. That of an index is negative."""
    known: dict[str, int] = {}
    names = []
    for table in tables:
        indices = [_INDEX.fullmatch(key.keystr) for key in table.keys]
        of_key = [
            ~int(index[1]) if index else known.setdefault(key.keystr, len(known))
            for key, index in zip(table.keys, indices, strict=True)
        ]
        names.append(np.where(table.key_codes == 0, ~table.position, np.array(of_key)[table.key_codes]).tolist())
    return names


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
    if id(a) in _SEQUENCES and id(b) in _SEQUENCES:
        return True
    if _is_mapping(left, mine) and _is_mapping(right, other):
        return True
    return qualified_name(a) == qualified_name(b)


def _is_mapping(side: Side, row: int) -> bool:
    """Whether a node is a dict, or has children with keys as those of one: a mapping of a library."""
    table = side.table
    keys = [table.key(child).keystr for child in table.children(row)]
    return id(side.cls(row)) in _MAPPINGS or (bool(keys) and all(key.startswith("['") for key in keys))


def _ends(depth: np.ndarray, parents: list[int]) -> np.ndarray:
    """int32[n]: where each subtree ends, of rows in depth-first order."""
    if depth.max() <= _FEW_LEVELS:
        ends = np.full(len(depth), len(depth), np.int32)
        for level in range(int(depth.max()) + 1):
            rows = np.flatnonzero(depth <= level)
            own = np.flatnonzero(depth[rows[:-1]] == level)
            ends[rows[own]] = rows[own + 1]
        return ends
    sizes = [1] * len(parents)
    for row in range(len(parents) - 1, 0, -1):
        sizes[parents[row]] += sizes[row]
    return np.arange(len(parents), dtype=np.int32) + np.array(sizes, np.int32)
