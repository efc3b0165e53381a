"""TreeWidget: the page with a model that Python and the browser share. It needs two comm models for any tree."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import traitlets

from treeviz.tree.table import TreeTable
from treeviz.views.html.bundle import packed_widget_module
from treeviz.views.tree_view import TreeView
from treeviz.views.widget.backend import Backend
from treeviz.views.widget.display import DisplayedWidget
from treeviz.views.widget.paths import first_open, path_name, row_of_path
from treeviz.views.widget.requests import MOST_SELECTED

MOST_EXPANDED = 2_000


class TreeWidget(DisplayedWidget):
    """An interactive tree whose state Python can read, set and observe; see `treeviz.explore`.

        widget = treeviz.explore({"layers": [{"w": jnp.ones((3, 4))}]})
        widget.value = "['layers'][0]['w']"

    Attributes:
      value: The key path of the selected row, as `jax.tree_util.keystr` writes it; the tree's name for the root; "" if
        none is selected. A path that is not in the tree may be set: then `selection` stays as it was.
      selection: The numbers of the selected rows; the last one is the row of `value`.
      query: The text of the search box.
      expanded: The key paths of the open nodes, parents before children; at most 2,000.

    All four can be observed, linked (`ipywidgets.jslink` works while the kernel is busy) and set, from any thread.
    """

    _esm = packed_widget_module()
    _packed = traitlets.Bytes().tag(sync=True)
    _changes = traitlets.Bytes().tag(sync=True)
    _version = traitlets.Int().tag(sync=True)
    _token = traitlets.Unicode().tag(sync=True)
    _live = traitlets.Dict().tag(sync=True)
    value = traitlets.Unicode().tag(sync=True)
    selection = traitlets.List(traitlets.Int()).tag(sync=True)
    query = traitlets.Unicode().tag(sync=True)
    expanded = traitlets.List(traitlets.Unicode()).tag(sync=True)

    def __init__(self, backend: Backend, status: dict[str, Any] | None = None) -> None:
        self._backend = backend
        view = backend.view
        super().__init__(
            _packed=view.packed,
            _token=secrets.token_hex(8),
            _live=status or {},
            expanded=_open_paths(view),
        )

    @property
    def table(self) -> TreeTable:
        """The `TreeTable` that is shown."""
        return self._open_backend.view.table

    @property
    def tree(self) -> Any:
        """The tree that is shown. Set it to show another: rows that are in both stay open, selected and in place.

        Raises:
          ReferenceError: The tree has been freed; the widget does not keep it alive.
        """
        return self._open_backend.tree

    @tree.setter
    def tree(self, tree: Any) -> None:
        self.replace(tree)

    def replace(self, tree: Any, /, **trees: Any) -> None:
        """Show another tree, with columns of other trees as in `treeviz.explore`; see `tree`."""
        backend = self._open_backend
        replaced = backend.replace(tree, trees)
        selected = self.selection
        moved = [int(replaced.rows[row]) for row in selected if row < len(replaced.rows)]
        numbers = [len(replaced.changed), replaced.n_added, replaced.n_gone, *replaced.changed]
        with self.hold_sync():
            self._changes = np.array(numbers, dtype="<u4").tobytes()
            self._packed = backend.view.packed
            self._version += 1
            rows = [row for row in moved if row >= 0]
            if rows != selected:  # else keep what another thread selects
                self.selection = rows
            if selected:
                self.value = path_name(self.table, rows[-1]) if rows else ""
        self._renew_page_after_cell()

    def follow(self, status: dict[str, Any], *, renewed: bool = False, is_another: bool = False) -> None:
        """Show the status of the run that the backend follows.

        Args:
          renewed: The backend has a new view.
          is_another: The new view has other rows.
        """
        with self.hold_sync():
            self._live = status
            if renewed:
                self._changes = b""
                self._packed = self._open_backend.view.packed
                self._version += 1
            if is_another:
                value, self.selection = self.value, []
                self.value = value
                self._follow_value(None)  # the row of `value` may exist now
                self.expanded = _open_paths(self._open_backend.view)

    @property
    def selected(self) -> list[Any]:
        """The selected nodes and leaves: the objects themselves, not copies.

        Raises:
          ReferenceError: One of them has been freed; the widget does not keep them alive.
        """
        return self._open_backend.nodes(self.selection)

    @property
    def selected_paths(self) -> list[tuple]:
        """The key paths of the selected rows, as `jax.tree_util.tree_map_with_path` gives them.

        jax.tree_util.tree_map_with_path(lambda path, leaf: path in widget.selected_paths, params)   # a mask
        """
        return self._open_backend.paths(self.selection)

    @property
    def selected_expressions(self) -> list[str]:
        """A Python expression for each selected row: "params['layers'][0]['w']"."""
        return [self.table[row].expression for row in self.selection]

    def where(self, tree: Any) -> tuple:
        """The parts of another tree of the same structure at the selected rows.

        equinox.tree_at(widget.where, model, replace_fn=jnp.zeros_like)
        """
        return tuple(self._open_backend.where(tree, self.selection))

    def close(self) -> None:
        """Remove the widget from the page, and release the tree and all observers."""
        backend, self._backend = self._backend, None
        if backend is None:
            return
        self._fallback_is_old = False
        super().close()
        backend.close()
        self._packed = self._changes = b""

    @traitlets.validate("selection")
    def _known_rows(self, proposal: Any) -> list[int]:
        wanted, n = proposal["value"], len(self.table) if self._backend is not None else 0
        rows = list(dict.fromkeys(int(row) for row in wanted if 0 <= row < n))[-MOST_SELECTED:]
        if len(rows) < len(set(wanted)):
            self._log_seldom(
                f"selection: of {len(wanted)} rows {len(set(wanted)) - len(rows)} are none of this tree's, or too many"
            )
        return rows

    @traitlets.validate("expanded")
    def _few_paths(self, proposal: Any) -> list[str]:
        return proposal["value"][:MOST_EXPANDED]

    @traitlets.observe("selection")
    def _follow_selection(self, change: Any) -> None:
        """Keep `selection` and `value` consistent, whichever was set."""
        rows = self.selection  # read once: another thread may set it
        if self._backend is not None:
            self.set_what_follows("value", path_name(self.table, rows[-1]) if rows else "")

    @traitlets.observe("value")
    def _follow_value(self, change: Any) -> None:
        rows = self.selection  # read once: another thread may set it
        if self._backend is None or (rows and path_name(self.table, rows[-1]) == self.value):
            return
        row = row_of_path(self.table, self.value) if self.value else None
        if row is not None or not self.value:
            self.set_what_follows("selection", [] if row is None else [row])
        else:
            # The page reports this itself.
            self._log(f"value: there is no {self.value[:200]} in {self.table.name}", to_page=False)


def _open_paths(view: TreeView) -> list[str]:
    rows = (view.diff or {}).get("open") or first_open(view.table, view.depth, MOST_EXPANDED)
    return [path_name(view.table, row) for row in rows]
