"""The backend of an explorer of a diff: the leaves of all trees by weak reference, and their details one by one."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jax.tree_util import FlattenedIndexKey, SequenceKey

from treeviz.analysis.details.sections import (
    Budget,
    Part,
    Section,
    detail_parts,
    has_values,
    plain_array,
    statistics,
    text,
)
from treeviz.analysis.details.window import window
from treeviz.explorer.explored import MOST_STORED, drawn_section, window_section
from treeviz.tree.key_paths import dict_key, follow, parse_key
from treeviz.tree.safe_repr import guarded
from treeviz.tree.table import matched_rows
from treeviz.views.tree_view import TreeView
from treeviz.views.widget.backend import Replaced

_BEFORE = 8  # elements that a window shows before the greatest difference
_PLAIN = frozenset(map(id, (bool, int, float, complex, str, bytes)))  # by id: a metaclass may override ==


class Leaves:
    """The leaves of a tree by weak reference.

    Args:
      rows, nodes: A row of the table of a diff, in order, and the leaf that stands there.
    """

    def __init__(self, rows: np.ndarray, nodes: Sequence[Any]) -> None:
        self._rows = rows
        try:
            self._held: list[Any] = [*map(weakref.ref, nodes)]
        except TypeError:  # of what has no reference
            self._held = [node if id(type(node)) in _PLAIN else _reference(node) for node in nodes]

    def __contains__(self, row: int) -> bool:
        return bool(self._held[self._at(row)])

    def __getitem__(self, row: int) -> Any:
        """The leaf of a row; ReferenceError if it has been freed."""
        (held,) = self._held[self._at(row)]
        leaf = held if id(type(held)) in _PLAIN else held()
        if leaf is None:
            raise ReferenceError("it has been freed: nothing else held it")
        return leaf

    def _at(self, row: int) -> slice:
        """Where a row stands among the others; nothing if it does not."""
        return slice(*(int(np.searchsorted(self._rows, row, side)) for side in ("left", "right")))


def _reference(node: Any) -> Callable[[], Any]:
    return guarded(lambda: weakref.ref(node), lambda _: _unknown)


def _unknown() -> None:
    """In place of a reference to what has none."""


class DiffView(TreeView):
    """A view of what differs between trees, and their leaves, for the explorer.

    Attributes:
      leaves: Those of each tree, the first one's first.
    """

    leaves: Sequence[Leaves]

    def place(self, row: int) -> tuple[int, ...]:
        """The index of the greatest difference in the arrays of a row; () if there is none."""
        raise NotImplementedError


class ExploredDiff:
    """The backend of a widget that shows a diff."""

    def __init__(self, view: DiffView) -> None:
        self.view: TreeView = view
        self._diff = view

    @property
    def tree(self) -> Any:
        return self.view

    def nodes(self, rows: Sequence[int]) -> list[Any]:
        """The leaf of each row in the first tree that has it; None for a node.

        Raises:
          ReferenceError: One of them has been freed.
        """
        return [next((leaves[row] for leaves in self._diff.leaves if row in leaves), None) for row in rows]

    def paths(self, rows: Sequence[int]) -> list[tuple]:
        """JAX's key paths."""
        return [tuple(self._keys_to(row)) for row in rows]

    def where(self, tree: Any, rows: Sequence[int]) -> list[Any]:
        return [follow(tree, path) for path in self.paths(rows)]

    def replace(self, tree: Any, trees: Mapping[str, Any]) -> Replaced:
        """Show another diff; the rows with other differences changed."""
        if not issubclass(type(tree), DiffView) or trees:
            raise TypeError("explore: this widget shows a diff: widget.tree = treeviz.diff(before, after)")
        before = self.view.table
        self.view = self._diff = tree
        table, rows = tree.table, matched_rows(before, tree.table)
        stayed = np.flatnonzero(rows >= 0)
        changed = [int(rows[row]) for row in stayed if before[int(row)].notes != table[int(rows[row])].notes]
        n_stayed = int(np.sum(table.is_leaf[rows[stayed]] & before.is_leaf[stayed]))
        n_added, n_gone = int(table.is_leaf.sum()) - n_stayed, int(before.is_leaf.sum()) - n_stayed
        return Replaced(rows, np.array(sorted(changed), dtype=np.uint32), n_added, n_gone)

    def answer(
        self, operation: str, numbers: Sequence[int], is_cancelled: Callable[[], bool]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Answer a request of the page, whose numbers are the row and, but for "detail", the tree and the arguments.

        The tree after the last stands for what the second has more than the first.
        """
        parts: Iterator[Part] = iter(())
        budget = Budget(is_cancelled)
        match operation, *numbers:
            case "detail", row:
                parts = self._details(row, budget)
            case "slice", row, side, *where:
                parts = iter([lambda: self._window(row, side, where[:2], where[2:])])
            case "statistics", row, side:
                parts = iter([lambda: statistics(self._leaf(row, side), most_elements=MOST_STORED)])
        return {"sections": budget.gather(parts)}, []

    def close(self) -> None:
        """Nothing is held."""

    def _leaf(self, row: int, side: int) -> Any:
        return self._diff.leaves[side][row]

    def _keys_to(self, row: int) -> list[Any]:
        keys, table = [], self.view.table
        while row > 0:
            above, position = table[int(table.parent[row])], int(table.position[row])
            int_key = dict_key if above.kind == "dict" else SequenceKey
            keys.append(parse_key(table.key(row).keystr, otherwise=FlattenedIndexKey(position), int_key=int_key))
            row = above.number
        return keys[::-1]

    def _names(self) -> list[str]:
        n = len(self._diff.leaves)
        return (
            [*self.view.diff["names"]] if n == 2 and self.view.diff else ["first", *(f"tree {i}" for i in range(1, n))]
        )

    def _details(self, row: int, budget: Budget) -> Iterator[Part]:
        sides = [side for side, leaves in enumerate(self._diff.leaves) if row in leaves]
        if self.view.table[row]["diff"] == "same":
            sides = sides[:1]
        elif sides == [0, 1]:
            yield lambda: self._window(row, 2)
        for side in sides:
            yield from self._side(row, side, budget)

    def _side(self, row: int, side: int, budget: Budget) -> Iterator[Part]:
        name = self._names()[side]
        try:
            leaf = self._leaf(row, side)
        except ReferenceError as error:
            gone = text(f"{name}: {error}", "gone")
            yield lambda: [gone]
            return
        if has_values(leaf):
            yield lambda: self._window(row, side)
            yield lambda: [_of(side, each) for each in statistics(leaf)]
        else:
            yield lambda: [text(f"{name}:")]
            yield from detail_parts(leaf, self.view.table[row].kind, budget, stats=False)

    def _window(self, row: int, side: int, axes: Sequence[int] = (), starts: Sequence[int] = ()) -> list[Section]:
        """A part of an array, with the greatest difference in it unless the reader has chosen another."""
        names, place = self._names(), self._diff.place(row)
        if side == len(names):
            sections, title = self._gap(row, axes, starts or _around(place)), f"{names[1]} - {names[0]}"
        else:
            leaf, title = self._leaf(row, side), names[side]
            sections = window_section(leaf, axes, starts or _around(place))
        return [_of(side, {**each, "title": title}) for each in sections]

    def _gap(self, row: int, axes: Sequence[int], starts: Sequence[int]) -> list[Section]:
        """What the second tree has more than the first, in a part of their arrays."""
        from treeviz.integrations.treescope import is_drawable

        pair = [plain_array(self._leaf(row, side)) for side in (0, 1)]
        if not all(map(has_values, pair)) or not all(map(is_drawable, pair)) or pair[0].shape != pair[1].shape:
            return []
        first, other = (window(each, axes, starts) for each in pair)
        wide = np.complex128 if "c" in (first.values.dtype.kind, other.values.dtype.kind) else np.float64
        values = other.values.astype(wide) - first.values.astype(wide)
        gap = other._replace(values=values, is_here=first.is_here & other.is_here)
        return [drawn_section(gap, pair[0].shape, str(np.dtype(wide)))]


def _of(side: int, section: Section) -> Section:
    """A section whose own requests name the tree."""
    return {**section, "arguments": [side]} if section["kind"] in ("window", "button") else section


def _around(place: Sequence[int]) -> tuple[int, ...]:
    return tuple(max(0, at - _BEFORE) for at in place)
