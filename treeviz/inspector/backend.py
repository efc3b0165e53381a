"""What a live widget asks Python for: the inspector, numbers and key paths of rows, and buckets that it missed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from treeviz.steps.findings.finding import Thresholds
from treeviz.tree.from_paths import steps_of
from treeviz.tree.key_paths import follow, occurrence, parse_key
from treeviz.tree.layers import part_of, row_for_jax
from treeviz.views.tree_view import TreeView

if TYPE_CHECKING:
    from treeviz.inspector.runs import Runs
    from treeviz.views.widget.backend import Replaced


class Inspector(Protocol):
    """What the live view needs of a `GradientInspector`."""

    name: str
    thresholds: Thresholds
    _runs: Runs

    def render(self) -> TreeView: ...


class Panel(Protocol):
    """What the backend needs of a `LivePanel`."""

    def resend(self) -> None: ...
    def close(self) -> None: ...


class LiveBackend:
    """The backend of a widget that follows an inspector.

    Attributes:
      view: What the widget shows.

    Args:
      inspector: Referred to weakly, since it may hold arrays, which a view must not keep alive.
    """

    def __init__(self, inspector: weakref.ref[Inspector], panel: Panel, view: TreeView) -> None:
        self._inspector, self.panel, self.view = inspector, panel, view

    @property
    def tree(self) -> Any:
        """The inspector."""
        inspector = self._inspector()
        if inspector is None:
            raise ReferenceError("live: the inspector is gone.")
        return inspector

    def replace(self, tree: Any, trees: Mapping[str, Any]) -> Replaced:
        raise TypeError("live: this widget follows an inspector; treeviz.explore() shows trees.")

    def nodes(self, rows: Sequence[int]) -> list[Any]:
        """The newest numbers of these rows, by the names of the columns."""
        table = self.view.table
        return [{name: table[row][name] for name in table.columns} for row in rows]

    def paths(self, rows: Sequence[int]) -> list[tuple]:
        """JAX's key paths; of a layer, that of its array."""
        table = self.view.table
        paths = [table.path(row_for_jax(table, row)) for row in rows]
        steps = ([step for key in path for step in steps_of(key.keystr)] for path in paths)
        return [tuple(parse_key(step, otherwise=step) for step in path) for path in steps]

    def where(self, tree: Any, rows: Sequence[int]) -> list[Any]:
        """The nodes of another tree at the places of the rows."""
        table = self.view.table
        return [part_of(table, row, follow(tree, self.paths([row])[0], self._occurrences(row))) for row in rows]

    def _occurrences(self, row: int) -> list[int]:
        found = []
        while row > 0:
            found.append(occurrence(self.view.table, row))
            row = int(self.view.table.parent[row])
        return found[::-1]

    def answer(
        self, operation: str, numbers: Sequence[int], is_cancelled: Callable[[], bool]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Answer a request of the page.

        "whole" without a number sends all buckets again, because the page missed some. With a number it does nothing:
        the page only tests whether Python answers.
        """
        if operation == "whole" and not numbers and not is_cancelled():
            self.panel.resend()
        return {"sections": []}, []

    def close(self) -> None:
        self.panel.close()
