"""The backend of an explorer: a tree by weak reference, and the details of its rows on request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from treeviz.analysis.details.sections import (
    Budget,
    Part,
    Section,
    detail_parts,
    has_values,
    plain_array,
    referrers_button,
    referrers_section,
    statistics,
    text,
    treescope_button,
)
from treeviz.analysis.details.window import Window, window
from treeviz.analysis.devices import bytes_by_device
from treeviz.explorer.weak_tree import WeakTree
from treeviz.tree.kinds import KINDS
from treeviz.tree.layers import part_of, row_for_jax
from treeviz.tree.table import TreeTable, matched_rows
from treeviz.views.tree_view import TreeView
from treeviz.views.widget.backend import Replaced

MakeView = Callable[[Any, Mapping[str, Any]], tuple[TreeView, list[Any]]]

MOST_STORED = 2**40  # elements that are read on request


class Explored:
    """The backend of a widget that shows a tree.

    Args:
      make_view: Walks a tree and the other trees of a call. Returns the view, and the node or leaf of each row.
      trees: The other trees by name.
      keep: Keep the tree alive; otherwise it is referred to weakly.
    """

    def __init__(self, tree: Any, make_view: MakeView, *, trees: Mapping[str, Any], keep: bool = False) -> None:
        self._make_view = make_view
        self._keep = keep
        self.view, nodes = make_view(tree, trees)
        self._weak_tree = WeakTree(self.view.table, nodes, keep=keep)

    @property
    def tree(self) -> Any:
        return self.nodes([0])[0]

    def nodes(self, rows: Sequence[int]) -> list[Any]:
        """The nodes of these rows, the same objects that were given; of a layer, that part of its array.

        Raises:
          ReferenceError: One of them has been freed.
        """
        return [part_of(self.view.table, row, x) for row, x in zip(rows, self._weak_tree.nodes(rows), strict=True)]

    def paths(self, rows: Sequence[int]) -> list[tuple]:
        """JAX's key paths; of a layer, that of its array."""
        return [self._weak_tree.path(row_for_jax(self.view.table, row)) for row in rows]

    def where(self, tree: Any, rows: Sequence[int]) -> list[Any]:
        table = self.view.table
        return [part_of(table, row, self._weak_tree.follow(tree, row_for_jax(table, row))) for row in rows]

    def replace(self, tree: Any, trees: Mapping[str, Any]) -> Replaced:
        """Show another tree. Returns which rows it shares with the one before, and which leaves differ."""
        before, weak_tree = self.view.table, self._weak_tree
        self.view, nodes = self._make_view(tree, trees)
        table = self.view.table
        rows = matched_rows(before, table)
        stayed = np.flatnonzero(rows >= 0)
        changed = [
            int(rows[row])
            for row in stayed
            if table.is_leaf[rows[row]] and _is_another(before, weak_tree, int(row), table, nodes, int(rows[row]))
        ]
        n_stayed = int(np.sum(table.is_leaf[rows[stayed]] & before.is_leaf[stayed]))
        self._weak_tree = WeakTree(table, nodes, keep=self._keep)
        n_added, n_gone = int(table.is_leaf.sum()) - n_stayed, int(before.is_leaf.sum()) - n_stayed
        return Replaced(rows, np.array(sorted(changed), dtype=np.uint32), n_added, n_gone)

    def answer(
        self, operation: str, numbers: Sequence[int], is_cancelled: Callable[[], bool]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Answer a request of the page, in plain data and buffers.

        Args:
          operation: One of `treeviz.views.widget.requests.OPERATIONS`.
          numbers: The row, then the arguments of the operation.
          is_cancelled: Whether the page has cancelled the request. It may become true late, or never.
        """
        if not numbers:
            return {"sections": []}, []
        row = numbers[0]
        kind = self.view.table[row].facts.kind
        budget = Budget(is_cancelled)
        # A list, tuple or dict is not searched for: its only detail is its referrers.
        if operation == "detail" and KINDS[kind].is_self_evident:
            return {"sections": [*_device_section(self.view.table, row), *referrers_button(kind)]}, []
        try:
            (node,) = self._weak_tree.nodes([row])
        except ReferenceError as error:
            return {"sections": [text(str(error), "gone")]}, []
        parts = self._parts(operation, numbers[1:], node, kind, budget)
        before = [lambda: _device_section(self.view.table, row)] if operation == "detail" else []
        return {"sections": budget.gather(chain(before, parts))}, []

    def _parts(self, operation: str, numbers: Sequence[int], node: Any, kind: str, budget: Budget) -> Iterable[Part]:
        """The parts of the answer to each operation; none for an operation of other backends.

        Args:
          numbers: The arguments of the operation.
        """
        match operation:
            case "detail":
                has_stats = "rms" in self.view.table.columns
                return chain(
                    [lambda: window_section(node)],
                    detail_parts(node, kind, budget, stats=not has_stats),
                    [lambda: treescope_button(kind)],
                    [lambda: referrers_button(kind)],
                )
            case "slice":
                return [lambda: window_section(node, numbers[:2], numbers[2:])]
            case "statistics":
                return [lambda: statistics(node, most_elements=MOST_STORED)]
            case "treescope":
                return [lambda: treescope_section(node)]
            case "referrers":
                return [lambda: referrers_section(node, budget)]
        return []

    def close(self) -> None:
        self._weak_tree = WeakTree(self.view.table, [])


def _device_section(table: TreeTable, row: int) -> list[Section]:
    """What each device holds of a subtree, where they differ."""
    pairs = bytes_by_device(table, row)
    return [{"kind": "pairs", "title": "bytes on each device", "pairs": pairs}] if pairs else []


def window_section(node: Any, axes: Sequence[int] = (), starts: Sequence[int] = ()) -> list[Section]:
    """A picture of a part of an array, and what the page needs to request another part."""
    from treeviz.integrations.treescope import is_drawable

    if not has_values(node) or not is_drawable(node := plain_array(node)):
        return []
    return [drawn_section(window(node, axes, starts), node.shape, str(node.dtype))]


def treescope_section(node: Any) -> list[Section]:
    """An object as treescope shows it."""
    from treeviz.integrations.treescope import object_or_reason

    html, reason = object_or_reason(node)
    if reason:
        return [text(reason, "bad")]
    facts: Section = {"kind": "window", "shape": [], "axes": [], "starts": [], "sizes": [], "height": 240}
    return [{**facts, "html": html} if html else text("There is too much inside for one answer.")]


def drawn_section(part: Window, shape: Sequence[int], dtype: str) -> Section:
    """A window of an array as a section."""
    from treeviz.integrations.treescope import window_picture

    return {
        "kind": "window",
        "shape": list(shape),
        "axes": part.axes,
        "starts": part.starts,
        "sizes": part.sizes,
        **window_picture(part, dtype),
    }


def _is_another(
    before: TreeTable, weak_tree: WeakTree, row: int, after: TreeTable, nodes: list[Any], there: int
) -> bool:
    """Whether a leaf is another object, or has other facts."""
    facts, now = before[row].facts, after[there].facts
    if facts != now:
        return True
    node, old = nodes[there], weak_tree.peek(row)
    if node is old:
        return False
    return not weak_tree.is_plain(row) or type(old) is not type(node) or bool(old != node)
