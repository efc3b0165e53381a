"""The backend of a `TreeWidget`: the widget knows rows, its backend their nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from treeviz.views.tree_view import TreeView


class Replaced(NamedTuple):
    """What changed when a tree replaced another."""

    rows: np.ndarray  # int[n_rows before]: the new row of each old one; -1 if it is gone
    changed: np.ndarray  # int[n_changed]: the new rows of leaves that differ
    n_added: int  # leaves
    n_gone: int


class Backend(Protocol):
    view: TreeView

    @property
    def tree(self) -> Any: ...

    def replace(self, tree: Any, trees: Mapping[str, Any]) -> Replaced:
        """Show another tree, with the columns of other trees, by name."""
        ...

    def nodes(self, rows: Sequence[int]) -> list[Any]:
        """The objects of the rows; ReferenceError if one has been freed."""
        ...

    def paths(self, rows: Sequence[int]) -> list[tuple]:
        """The JAX key paths of the rows."""
        ...

    def where(self, tree: Any, rows: Sequence[int]) -> list[Any]:
        """The nodes of another tree of the same structure at the places of the rows; LookupError if there are none."""
        ...

    def answer(
        self, operation: str, numbers: Sequence[int], is_cancelled: Callable[[], bool]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Answer a request of the page: JSON, and binary buffers. `operation` is one of `requests.OPERATIONS`."""
        ...

    def close(self) -> None:
        """Release the tree."""
        ...
