"""The backend of a `TreeWidget`: the widget handles rows, the backend the nodes of the tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from treeviz.tree.table import TreeTable
from treeviz.views.tree_view import TreeView


class Replaced(NamedTuple):
    """The changes when one tree replaced another."""

    rows: np.ndarray  # int[n_rows before]: the new row of each old row; -1 if removed
    changed: np.ndarray  # int[n_changed]: the new rows of leaves that differ
    n_added: int  # leaves
    n_gone: int


class Backend(Protocol):
    view: TreeView

    @property
    def tree(self) -> Any: ...

    def replace(self, tree: Any, trees: Mapping[str, Any]) -> Replaced:
        """Show another tree, with the columns of other trees, by name."""

    def nodes(self, rows: Sequence[int]) -> list[Any]:
        """The objects of the rows; raises ReferenceError if one was freed."""

    def paths(self, rows: Sequence[int]) -> list[tuple]:
        """The JAX key paths of the rows."""

    def where(self, tree: Any, rows: Sequence[int]) -> list[Any]:
        """The nodes of another tree of the same structure at these rows; raises LookupError if there are none."""

    def answer(
        self, operation: str, numbers: Sequence[int], is_cancelled: Callable[[], bool]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Answer a request of the page: JSON, and binary buffers. `operation` is one of `OPERATIONS`."""

    def close(self) -> None:
        """Release the tree."""


# The requests of a page, and their answers

OPERATIONS = frozenset({"detail", "slice", "statistics", "referrers", "treescope", "whole"})
MOST_NUMBERS = 64  # of a request


class Request(NamedTuple):
    """An operation on a row of a tree, or "cancel"."""

    operation: str
    id: int
    version: int  # of the tree that the page shows
    numbers: list[int]  # the row first


def read_request(content: Any, buffers: Any = ()) -> Request | str:
    """The request in a message of the page; or why it is invalid."""
    if not isinstance(content, dict) or set(content) != {"op", "id", "version", "numbers"} or buffers:
        return "a message that is not a request"
    operation, numbers = content["op"], content["numbers"]
    if not isinstance(operation, str) or operation not in OPERATIONS | {"cancel"}:
        return "a request for something unknown"
    if not isinstance(numbers, list) or len(numbers) > MOST_NUMBERS:
        return f"{operation} with too much, or with no list"
    whole = [content["id"], content["version"], *numbers]
    if not all(type(number) is int and abs(number) < 2**53 for number in whole):
        return f"{operation} with something else than integers"
    return Request(operation, content["id"], content["version"], numbers)


def answered(
    backend: Backend, version: int, request: Request, is_cancelled: Callable[[], bool]
) -> tuple[dict[str, Any], list[bytes]]:
    """The answer to a request, with its number: JSON, with an "error" if it failed, and binary buffers."""
    operation, number, asked, numbers = request
    answer: dict[str, Any] = {"stale": True}
    parts: list[bytes] = []
    if asked == version and not (numbers and not 0 <= numbers[0] < len(backend.view.table)):
        try:
            answer, parts = backend.answer(operation, numbers, is_cancelled)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {str(error)[:500]}"}
    return {**answer, "op": "answer", "id": number}, parts


# Rows by key path, as in assets/widget/sync.js and assets/tree/rows.js

_ROWS_AT_FIRST = 30  # rows that the initially open levels may show
MOST_EXPANDED = 2_000  # nodes whose state Python knows


def path_name(table: TreeTable, row: int) -> str:
    """The key path as `jax.tree_util.keystr` writes it; the tree's name for the root."""
    return table[row].keystr or table.name


def row_of_path(table: TreeTable, text: str) -> int | None:
    """The first row with this key path, or None."""
    if text in ("", table.name):
        return 0
    waiting = [(0, 0)]
    while waiting:
        node, offset = waiting.pop()
        children = []
        for row in table.children(node):
            keystr = table.key(row).keystr
            if keystr and text.startswith(keystr, offset):
                if offset + len(keystr) == len(text):
                    return row
                children.append((row, offset + len(keystr)))
        waiting += reversed(children)
    return None


def first_open(table: TreeTable, depth: int | None, most: int) -> list[int]:
    """The first `most` of the initially open nodes: those above `depth`, by default as many levels as fit."""
    if depth is None:
        n_shown = np.cumsum(np.bincount(table.depth))
        depth = max(1, int(np.searchsorted(n_shown, _ROWS_AT_FIRST, side="right")) - 1)
    is_node = table.end > np.arange(len(table)) + 1
    return [int(row) for row in np.flatnonzero(is_node & (table.depth < depth))[:most]]


def open_paths(view: TreeView) -> list[str]:
    """The key paths of the initially open nodes."""
    rows = (view.diff or {}).get("open") or first_open(view.table, view.depth, MOST_EXPANDED)
    return [path_name(view.table, row) for row in rows]
