"""The explorer: the page's view on a model that Python and the browser share. Two comm models, whatever the size."""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import anywidget
import ipywidgets
import numpy as np
import traitlets

from treeviz.tree.quote import visible
from treeviz.tree.table import TreeTable
from treeviz.views.front_end import packed_widget_module
from treeviz.views.notebook import outputs_share_a_page, publish, shell_of_notebook, shows_html
from treeviz.views.requests import MOST_SELECTED, is_small, read_request
from treeviz.views.rows import first_open, path_name, row_of_path
from treeviz.views.tree_view import TreeView

MOST_EXPANDED = 2_000
LINES_KEPT = 200
_FROM_THE_PAGE = ("expanded", "query", "selection", "value")  # each may depend on those before it
_logger = logging.getLogger("treeviz")


class Replaced(NamedTuple):
    """What a new tree changed."""

    rows: np.ndarray  # int[n_rows before]: where each row is now; -1: gone
    changed: np.ndarray  # the rows of leaves that are not what they were
    n_added: int  # leaves
    n_gone: int


class Source(Protocol):
    """What stands behind the view: the widget knows rows, its source knows what they stand for."""

    view: TreeView
    tree: Any

    def replace(self, tree: Any, trees: Mapping[str, Any]) -> Replaced: ...
    def nodes(self, rows: Sequence[int]) -> list[Any]: ...
    def paths(self, rows: Sequence[int]) -> list[tuple]: ...
    def answer(
        self, operation: str, numbers: Sequence[int], is_cancelled: Callable[[], bool]
    ) -> tuple[dict[str, Any], list[bytes]]: ...
    def close(self) -> None: ...


class _Sync(threading.local):
    """What ipywidgets notes while it takes or sends a change: one for each thread, so that no two mix theirs up."""

    def __init__(self) -> None:
        self.from_the_page: dict[str, Any] = {}
        self.is_held = False
        self.held: set[str] = set()


class TreeWidget(anywidget.AnyWidget, ipywidgets.ValueWidget):
    """A tree to click through, which Python hears; see `treeviz.explore`.

    Attributes:
      value: The key path of the selected row as `jax.tree_util.keystr` writes it; the tree's name: the root; "": none.
      selection: The numbers of the selected rows; the last one is that of `value`.
      query: What is searched for.
      expanded: The key paths of the open nodes, parents before children, at most 2,000 of them.

    All four can be observed, linked (`ipywidgets.jslink` works while the kernel is busy) and set.
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

    _source: Source | None = None

    def __init__(self, source: Source, status: dict[str, Any] | None = None) -> None:
        self._source = source
        self._sync = _Sync()
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._cancelled: deque[int] = deque(maxlen=LINES_KEPT)
        self._is_displayed = False
        self._page_is_old = False
        view = source.view
        super().__init__(
            _packed=view.packed,
            _token=secrets.token_hex(8),
            _live=status or {},
            expanded=_open_paths(view),
        )
        self.on_msg(TreeWidget._take_message)

    # What people ask for

    @property
    def table(self) -> TreeTable:
        """The `TreeTable` that is shown."""
        return self._open_source.view.table

    @property
    def tree(self) -> Any:
        """The tree that is shown. Set it to show another one: rows that are in both stay open, selected and in place.

        Raises:
          ReferenceError: It has been freed, since the widget keeps nothing alive.
        """
        return self._open_source.tree

    @tree.setter
    def tree(self, tree: Any) -> None:
        self.replace(tree)

    def replace(self, tree: Any, /, **trees: Any) -> None:
        """Show another tree, with others beside it as in `treeviz.explore`; see `tree`."""
        source = self._open_source
        replaced = source.replace(tree, trees)
        selected = self.selection
        moved = [int(replaced.rows[row]) for row in selected if row < len(replaced.rows)]
        numbers = [len(replaced.changed), replaced.n_added, replaced.n_gone, *replaced.changed]
        with self.hold_sync():
            self._changes = np.array(numbers, dtype="<u4").tobytes()
            self._packed = source.view.packed
            self._version += 1
            rows = [row for row in moved if row >= 0]
            if rows != selected:  # else what another thread selects meanwhile stands
                self.selection = rows
            if selected:
                self.value = path_name(self.table, rows[-1]) if rows else ""
        self._renew_page()

    def follow(self, status: dict[str, Any], *, renewed: bool = False, is_another: bool = False) -> None:
        """Say how the run goes that the source follows.

        Args:
          renewed: The source's view is a new one.
          is_another: Its table has other rows.
        """
        with self.hold_sync():
            self._live = status
            if renewed:
                self._changes = b""
                self._packed = self._open_source.view.packed
                self._version += 1
            if is_another:
                value, self.selection = self.value, []
                self.value = value
                self._follow_value(None)  # what was to be gone to may be there now
                self.expanded = _open_paths(self._open_source.view)

    @property
    def selected(self) -> list[Any]:
        """The very nodes and leaves that are selected.

        Raises:
          ReferenceError: One of them has been freed, since the widget keeps nothing alive.
        """
        return self._open_source.nodes(self.selection)

    @property
    def selected_paths(self) -> list[tuple]:
        """The key paths of the selected rows, as `jax.tree_util.tree_map_with_path` gives them.

        jax.tree_util.tree_map_with_path(lambda path, leaf: path in widget.selected_paths, params)   # a mask
        """
        return self._open_source.paths(self.selection)

    @property
    def selected_expressions(self) -> list[str]:
        """Python for each of the selected rows: "params['layers'][0]['w']"."""
        return [self.table[row].expression for row in self.selection]

    def where(self, tree: Any) -> tuple:
        """What stands in `tree`, or in another tree of its structure, where rows are selected here.

        equinox.tree_at(widget.where, model, replace_fn=jnp.zeros_like)
        """
        from treeviz.tree.follow import follow

        return tuple(follow(tree, path) for path in self.selected_paths)

    @property
    def logged(self) -> list[str]:
        """What went wrong in this widget, the last 200 lines; the logger "treeviz" has them all."""
        return list(self._lines)

    def close(self) -> None:
        """Take the widget away, and let go of everything."""
        source, self._source = self._source, None
        if source is None:
            return
        self._page_is_old = False
        layout = self.layout
        super().close()
        del self._repr_mimebundle_  # ipywidgets puts None in its place, and a closed widget can still be displayed
        layout.close()
        source.close()
        self.unobserve_all()
        self._msg_callbacks.callbacks.clear()
        self._packed = self._changes = b""

    @property
    def _open_source(self) -> Source:
        source = self._source
        if source is None:
            raise ReferenceError("explore: this widget was closed, and has let go of its tree.")
        return source

    # The traits

    @traitlets.validate("selection")
    def _known_rows(self, proposal: Any) -> list[int]:
        wanted, n = proposal["value"], len(self.table) if self._source is not None else 0
        rows = list(dict.fromkeys(int(row) for row in wanted if 0 <= row < n))[-MOST_SELECTED:]
        if len(rows) < len(set(wanted)):
            self._log(
                f"selection: of {len(wanted)} rows {len(set(wanted)) - len(rows)} are none of this tree's, or too many"
            )
        return rows

    @traitlets.validate("expanded")
    def _few_paths(self, proposal: Any) -> list[str]:
        return proposal["value"][:MOST_EXPANDED]

    def notify_change(self, change: Any) -> None:
        """One message says all that follows from a change: of half of it the page would tell us, in answer, the other
        half, and while the kernel is busy that is an old one when it is heard."""
        with self.hold_sync():
            super().notify_change(change)

    @traitlets.observe("selection")
    def _follow_selection(self, change: Any) -> None:
        """Whichever of the two was set, the other says the same."""
        rows = self.selection  # read once: another thread may set it
        if self._source is not None:
            self.value = path_name(self.table, rows[-1]) if rows else ""

    @traitlets.observe("value")
    def _follow_value(self, change: Any) -> None:
        rows = self.selection  # read once: another thread may set it
        if self._source is None or (rows and path_name(self.table, rows[-1]) == self.value):
            return
        row = row_of_path(self.table, self.value) if self.value else None
        if row is not None:
            self.selection = [row]
        elif not self.value:
            self.selection = []
        else:
            self._log(
                f"value: there is no {self.value[:200]} in {self.table.name}", tell=False
            )  # the page says so itself

    # Several threads may change the traits: that of a loop, and that of what the page says

    @property
    def _property_lock(self) -> dict[str, Any]:
        return self._sync.from_the_page

    @_property_lock.setter
    def _property_lock(self, properties: dict[str, Any]) -> None:
        self._sync.from_the_page = properties

    @property
    def _holding_sync(self) -> bool:
        return self._sync.is_held

    @_holding_sync.setter
    def _holding_sync(self, is_held: bool) -> None:
        self._sync.is_held = is_held

    @property
    def _states_to_send(self) -> set[str]:
        return self._sync.held

    @contextmanager
    def hold_trait_notifications(self) -> Iterator[None]:
        """Nothing is held: traitlets would hold it for every thread, and lose what another one set meanwhile."""
        yield

    # Messages

    def _handle_msg(self, msg: Any) -> None:
        """What came over the comm, if it is what our page sends."""
        try:
            data = msg["content"]["data"]
            method, _ = data["method"], msg["buffers"]
            is_ours = method == "request_state" or (
                isinstance(data["state"], dict) and not data.get("buffer_paths")
                if method == "update"
                else method == "custom" and "content" in data
            )
        except (KeyError, TypeError, AttributeError):
            is_ours = False
        if is_ours:
            super()._handle_msg(msg)
        else:
            self._log("dropped from the page: a message that is none of ours")

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """What the page changed. It may change these four, and only to what they can be."""
        kept = {name: sync_data[name] for name in _FROM_THE_PAGE if is_small(name, sync_data.get(name))}
        for name in sync_data:
            if name not in kept and (name not in self.keys or getattr(self, name) != sync_data[name]):
                self._log(f"dropped from the page: a value for {str(name)[:50]!r}")
        if kept:
            try:
                super().set_state(kept)
            except traitlets.TraitError as error:
                self._log(f"dropped from the page: {str(error)[:200]}")

    def _take_message(self, content: Any, buffers: Any) -> None:
        """A request of the page: an operation of a fixed set, and integers."""
        if isinstance(content, dict) and content.get("do") in ("focus", "blur"):
            return
        request = read_request(content, buffers)
        if isinstance(request, str):
            self._log(f"dropped from the page: {request}")
            return
        operation, number, version, numbers = request
        if operation == "cancel":
            self._cancelled.extend(numbers[:1])
            return
        if self._source is None:
            return
        if version != self._version or (numbers and not 0 <= numbers[0] < len(self.table)):
            self.send({"op": "answer", "id": number, "stale": True})
            return
        answer, parts = {}, []
        try:
            answer, parts = self._source.answer(operation, numbers, lambda: number in self._cancelled)
        except Exception as error:
            self._log(f"{operation} of row {numbers[:1]}: {type(error).__name__}: {str(error)[:500]}")
            answer = {"error": f"{type(error).__name__}: {str(error)[:500]}"}
        self.send({**answer, "op": "answer", "id": number}, parts)

    def tell(self, message: dict[str, Any], buffers: Sequence[bytes] = ()) -> None:
        """Send the page something that it did not ask for; `view.told` has what is done with it, by `message["op"]`."""
        self.send(message, list(buffers))

    def _log(self, line: str, *, tell: bool = True) -> None:
        line = visible(line, 1000)
        self._lines.append(line)
        _logger.warning("explore: %s", line)
        if tell and self.comm is not None:
            self.send({"op": "log", "text": line})

    # How it is displayed

    def _repr_mimebundle_(self, include=None, exclude=None, **kwargs) -> Any:
        if self._source is None:
            return {"text/plain": repr(self)}, {}
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        still = {} if not shows_html() else {"text/html": self._source.view._repr_html_}
        still["text/plain"] = self._text
        data = {kind: part for kind, part in data.items() if kind not in still}
        wanted = [kind for kind in (*data, *still) if (not include or kind in include) and kind not in (exclude or ())]
        return {kind: still[kind]() if kind in still else data[kind] for kind in wanted}, metadata

    def _ipython_display_(self) -> None:
        """The widget, and beside it the page, which shows itself only where no widget comes."""
        if shell_of_notebook() is None or self._source is None or not outputs_share_a_page():
            publish(*self._repr_mimebundle_())
            return
        data, metadata = self._repr_mimebundle_(exclude={"text/html", "text/plain"})
        # Where the widget is not shown, this part is to be empty: the page is in the next one.
        publish({**data, "text/html": "", "text/plain": repr(self)}, metadata)
        publish(self._page(), {}, display_id=self._token)
        self._is_displayed = True

    def _page(self) -> dict[str, str]:
        view = self._open_source.view
        return {"text/html": view.stand_in(self._token), "text/plain": self._text()}

    def _text(self) -> str:
        return self._open_source.view._repr_mimebundle_(include={"text/plain"})["text/plain"]

    def _renew_page(self) -> None:
        """Once the cell has run, the page in the notebook shows what the widget shows."""
        shell = shell_of_notebook()
        if shell is None or not self._is_displayed or self._page_is_old:
            return
        self._page_is_old = True

        def renew() -> None:
            shell.events.unregister("post_execute", renew)
            if self._page_is_old:
                self.renew_page()

        shell.events.register("post_execute", renew)

    def renew_page(self) -> None:
        """The page in the notebook shows what the widget shows."""
        if self._is_displayed and self._source is not None and shell_of_notebook() is not None:
            publish(self._page(), {}, display_id=self._token, update=True)
        self._page_is_old = False

    def __repr__(self) -> str:
        if self._source is None:
            return "explore: closed"
        return f"explore: {' · '.join((self.table.name, *self.table.headline))}"


def _open_paths(view: TreeView) -> list[str]:
    return [path_name(view.table, row) for row in first_open(view.table, view.depth, MOST_EXPANDED)]
