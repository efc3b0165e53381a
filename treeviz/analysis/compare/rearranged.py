"""Structure that was rearranged, not changed: renamed, moved, or a list of layers against one stack of them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np

from treeviz.analysis.compare.aligned import NONE, Side
from treeviz.analysis.compare.difference import Difference, Differences
from treeviz.analysis.compare.tree_diff import Found
from treeviz.tree.table import TreeTable

_STRUCTURAL = ("missing", "extra", "type", "none", "leaf")
_LEAST_LEAVES = 2  # of a subtree that is looked for elsewhere: a single leaf has its like in many places


def with_hints(left: Side, right: Side, found: Found) -> Found:
    """The differences with what they may come from, where the structure of a subtree tells it."""
    if not any(each.kind in _STRUCTURAL for each in found.differences):
        return found
    hints = _Hints(left.table, right.table, found)
    differences = Differences(
        replace(each, hint=each.hint or hints.of(at, each)) if each.kind in _STRUCTURAL else each
        for at, each in zip(found.rows, found.differences, strict=True)
    )
    return found._replace(differences=differences)


class _Hints:
    def __init__(self, left: TreeTable, right: TreeTable, found: Found) -> None:
        self._left, self._right, self._aligned = left, right, found.aligned
        prints: dict[Any, int] = {}
        self._prints = [fingerprints(table, prints) for table in (left, right)]
        self._unmatched: list[dict[int, list[int]]] = []
        for table, own, other, codes in (
            (left, self._aligned.left, self._aligned.right, self._prints[0]),
            (right, self._aligned.right, self._aligned.left, self._prints[1]),
        ):
            is_matched = np.zeros(len(table), bool)
            is_matched[own[(own != NONE) & (other != NONE)]] = True
            is_matched[self._rows_of(found, own)] = False
            rows: dict[int, list[int]] = defaultdict(list)
            for row in np.flatnonzero(~is_matched).tolist():
                rows[codes[row]].append(row)
            self._unmatched.append(rows)

    def _rows_of(self, found: Found, own: np.ndarray) -> list[int]:
        """The rows of one tree whose counterpart is another thing."""
        pairs = zip(found.rows, found.differences, strict=True)
        return [int(own[at]) for at, each in pairs if each.kind in _STRUCTURAL and own[at] != NONE]

    def of(self, at: int, difference: Difference) -> str:
        mine, other = int(self._aligned.left[at]), int(self._aligned.right[at])
        if mine != NONE and other != NONE:
            stacked = self._stacked(mine, other, difference.path)
            if stacked:
                return stacked
        if mine != NONE:
            return self._elsewhere(0, mine, other)
        return self._elsewhere(1, other, mine)

    def _elsewhere(self, side: int, row: int, counterpart: int) -> str:
        """Where the other tree has the same subtree without a counterpart."""
        own, other = (self._left, self._right)[:: 1 if side == 0 else -1]
        n_leaves = np.count_nonzero(own.is_leaf[row : own.end[row]])
        print_ = self._prints[side][row]
        places = [each for each in self._unmatched[1 - side].get(print_, ()) if each != counterpart]
        parent = int(own.parent[row])
        if not n_leaves or not places or parent < 0:
            return ""
        above = self._match_of(side, parent)
        siblings = [each for each in places if int(other.parent[each]) == above]
        rivals = [each for each in self._unmatched[side][print_] if int(own.parent[each]) == parent]
        if counterpart == NONE and len(siblings) == 1 and len(rivals) == 1:
            return f"renamed {'to' if side == 0 else 'from'} {other.key(siblings[0]).keystr}?"
        if len(places) != 1 or n_leaves < _LEAST_LEAVES:
            return ""
        return f"the same structure stands at {other[places[0]].keystr} in the {'other' if side == 0 else 'first'}"

    def _match_of(self, side: int, row: int) -> int:
        own, other = (self._aligned.left, self._aligned.right)[:: 1 if side == 0 else -1]
        at = np.flatnonzero(own == row)
        return int(other[at[0]]) if len(at) else NONE

    def _stacked(self, mine: int, other: int, path: str) -> str:
        """Whether one of the two is a list of layers, and the other one stack of them."""
        for side, (row, table), (one, stack) in (
            ("first", (mine, self._left), (other, self._right)),
            ("other", (other, self._right), (mine, self._left)),
        ):
            layers = table.children(row)
            if len(layers) > 1 and is_stack_of(stack, one, table, layers):
                there = "other" if side == "first" else "first"
                return (
                    f"{len(layers)} layers in the {side}, and a stack of them in the {there}, as made by "
                    "jax.tree.map(lambda *xs: jnp.stack(xs), *layers)"
                )
        return ""


def is_stack_of(stack: TreeTable, row: int, table: TreeTable, layers: list[int]) -> bool:
    """Whether a subtree has the structure of each layer, with their number as the first axis of every array."""
    n = len(layers)
    if n < 2:
        return False
    size = int(table.end[layers[0]]) - layers[0]
    if int(stack.end[row]) - row != size or any(int(table.end[each]) - each != size for each in layers):
        return False
    for i in range(size):
        facts = stack.facts[stack.fact_codes[row + i]]
        key = stack.key(row + i).segment if i else ""
        for each in layers:
            one = table.facts[table.fact_codes[each + i]]
            if (i and table.key(each + i).segment != key) or one.is_leaf != facts.is_leaf:
                return False
            if one.is_leaf and (one.shape is None or facts.shape != (n, *one.shape) or one.dtype != facts.dtype):
                return False
    return bool(stack.is_leaf[row : row + size].any())


def fingerprints(table: TreeTable, known: dict[Any, int]) -> list[int]:
    """A code of each row's subtree, its own key aside: equal for equal types, keys, shapes and dtypes, in all trees."""
    codes = [0] * len(table)
    own = [(f.shape, f.dtype, "" if f.shape else f.type) if f.is_leaf else f.type for f in table.facts]
    ends, of = table.end.tolist(), table.fact_codes.tolist()
    for row in range(len(table) - 1, -1, -1):
        below, child = [], row + 1
        while child < ends[row]:
            below.append((table.key(child).segment, codes[child]))
            child = ends[child]
        codes[row] = known.setdefault((own[of[row]], *below), len(known))
    return codes
