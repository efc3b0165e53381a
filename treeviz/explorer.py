"""What stands behind an explorer: the tree, held weakly, and what is found out about it when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from treeviz.analysis.detail import (
    Budget,
    Part,
    Section,
    detail_parts,
    holders_button,
    holders_section,
    is_array,
    plain_array,
    statistics,
    text,
)
from treeviz.analysis.detail_window import window
from treeviz.tree.held import HeldTree
from treeviz.tree.table import TreeTable
from treeviz.views.tree_view import TreeView
from treeviz.views.widget import Replaced

Look = Callable[[Any, Mapping[str, Any]], tuple[TreeView, list[Any]]]

_SAYS_ALL = frozenset(
    {"dict", "list", "tuple", "none", "scalar", "string", "more", "repeat", "cycle", "error", "placeholder"}
)
MOST_STORED = 2**40  # elements that are looked at on request


class Explored:
    """A tree that is explored. Nothing of it stays alive because of it, unless `keep` is true.

    Args:
      look: Walks a tree, with other trees beside it: its view, and the node or leaf of each row.
    """

    def __init__(self, tree: Any, look: Look, *, trees: Mapping[str, Any], keep: bool = False) -> None:
        self._look = look
        self._keep = keep
        self.view, things = look(tree, trees)
        self._held = HeldTree(self.view.table, things, keep=keep)

    @property
    def tree(self) -> Any:
        return self.nodes([0])[0]

    def nodes(self, rows: Sequence[int]) -> list[Any]:
        """The very nodes of these rows; ReferenceError: one has been freed."""
        return self._held.nodes(rows)

    def paths(self, rows: Sequence[int]) -> list[tuple]:
        return [self._held.path(row) for row in rows]

    def replace(self, tree: Any, trees: Mapping[str, Any]) -> Replaced:
        """Look at another tree in this one's place, and say what is different."""
        before, held = self.view.table, self._held
        self.view, things = self._look(tree, trees)
        table = self.view.table
        rows = matched_rows(before, table)
        stayed = np.flatnonzero(rows >= 0)
        changed = [
            int(rows[row])
            for row in stayed
            if table.is_leaf[rows[row]] and _is_another(before, held, int(row), table, things, int(rows[row]))
        ]
        n_stayed = int(np.sum(table.is_leaf[rows[stayed]] & before.is_leaf[stayed]))
        self._held = HeldTree(table, things, keep=self._keep)
        n_added, n_gone = int(table.is_leaf.sum()) - n_stayed, int(before.is_leaf.sum()) - n_stayed
        return Replaced(rows, np.array(sorted(changed), dtype=np.uint32), n_added, n_gone)

    def answer(
        self, operation: str, numbers: Sequence[int], is_cancelled: Callable[[], bool]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """What the page asked for: plain data, and bytes beside it.

        Args:
          operation: One of `treeviz.views.requests.OPERATIONS`.
          numbers: The row first.
          is_cancelled: Whether the page has lost its interest; it may hear of that late, or not at all.
        """
        if operation not in ("detail", "slice", "statistics", "holders") or not numbers:
            return {"sections": []}, []
        row = numbers[0]
        facts = self.view.table[row].facts
        budget = Budget(is_cancelled)
        # Lists, tuples and dicts have to be looked for, and there is nothing to say of one but who holds it.
        if operation == "detail" and facts.kind in _SAYS_ALL:
            return {"sections": holders_button(facts.kind)}, []
        try:
            (thing,) = self._held.nodes([row])
        except ReferenceError as error:
            return {"sections": [text(str(error), "gone")]}, []
        if operation == "slice":
            parts: Iterable[Part] = [lambda: _window_section(thing, numbers[1:3], numbers[3:])]
        elif operation == "statistics":
            parts = [lambda: statistics(thing, most_elements=MOST_STORED)]
        elif operation == "holders":
            parts = [lambda: holders_section(thing, budget)]
        else:
            has_stats = "rms" in self.view.table.columns
            parts = chain(
                [lambda: _window_section(thing)],
                detail_parts(thing, facts.kind, budget, stats=not has_stats),
                [lambda: holders_button(facts.kind)],
            )
        return {"sections": budget.gather(parts)}, []

    def close(self) -> None:
        self._held = HeldTree(self.view.table, [])


def _window_section(thing: Any, axes: Sequence[int] = (), starts: Sequence[int] = ()) -> list[Section]:
    """A part of an array, drawn, and what the page needs to ask for another part."""
    from treeviz.integrations.treescope import is_drawable, window_picture

    if not is_array(thing) or not is_drawable(thing := plain_array(thing)):
        return []
    part = window(thing, axes, starts)
    html, height = window_picture(part, str(thing.dtype))
    return [
        {
            "kind": "window",
            "shape": list(thing.shape),
            "axes": part.axes,
            "starts": part.starts,
            "sizes": part.sizes,
            "html": html,
            "height": height,
        }
    ]


def matched_rows(before: TreeTable, after: TreeTable) -> np.ndarray:
    """For each row its row in the other table, matched by key path; -1: it is not there."""
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
        places: dict[str, list[int]] = {}  # keys may repeat: the first goes with the first
        for below in _children(after, there):
            places.setdefault(after.key(below).keystr, []).append(below)
        for below in _children(before, row):
            found = places.get(before.key(below).keystr)
            if found:
                rows[below] = found.pop(0)
    return rows


def _children(table: TreeTable, row: int) -> list[int]:
    children, below, end = [], row + 1, int(table.end[row])
    while below < end:
        children.append(below)
        below = int(table.end[below])
    return children


def _is_another(before: TreeTable, held: HeldTree, row: int, after: TreeTable, things: list[Any], there: int) -> bool:
    """Whether a leaf is another object, or looks different."""
    facts, now = before[row].facts, after[there].facts
    if facts != now:
        return True
    thing, old = things[there], held.peek(row)
    if thing is old:
        return False
    return not held.is_plain(row) or type(old) is not type(thing) or bool(old != thing)
