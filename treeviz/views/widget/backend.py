"""The backend of a `TreeWidget`: the widget handles rows, the backend the nodes of the tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

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
        ...

    def nodes(self, rows: Sequence[int]) -> list[Any]:
        """The objects of the rows; raises ReferenceError if one was freed."""
        ...

    def paths(self, rows: Sequence[int]) -> list[tuple]:
        """The JAX key paths of the rows."""
        ...

    def where(self, tree: Any, rows: Sequence[int]) -> list[Any]:
        """The nodes of another tree of the same structure at these rows; raises LookupError if there are none."""
        ...

    def answer(
        self, operation: str, numbers: Sequence[int], is_cancelled: Callable[[], bool]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Answer a request of the page: JSON, and binary buffers. `operation` is one of `requests.OPERATIONS`."""
        ...

    def close(self) -> None:
        """Release the tree."""
        ...
