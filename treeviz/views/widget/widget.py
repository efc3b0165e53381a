"""TreeWidget: the page in a notebook, with state that Python and the browser share, through two comm models."""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import anywidget
import ipywidgets
import numpy as np
import traitlets

from treeviz.tree.runtime import PrivateName, warn_of_missing
from treeviz.tree.table import TreeTable
from treeviz.tree.text import visible
from treeviz.views.html.bundle import packed_widget_module
from treeviz.views.view import outputs_share_a_page, publish, shell_of_notebook, shows_html
from treeviz.views.widget.backend import (
    MOST_EXPANDED,
    Backend,
    answered,
    open_paths,
    path_name,
    read_request,
    row_of_path,
)

# The messages that a page may send: changes of four traits, and requests of an operation with integers

FROM_THE_PAGE = ("expanded", "query", "selection", "value")  # traits, in order of dependency
FROM_PYTHON = ("answer", "append", "log")  # messages that the page only receives
MOST_SELECTED = 10_000
LONGEST_TEXT = 100_000  # characters of a path or a query


def is_message(message: Any) -> bool:
    """Whether a comm message has the form of our page's messages."""
    try:
        data = message["content"]["data"]
        method, _ = data["method"], message["buffers"]
        if method == "update":
            return isinstance(data["state"], dict) and not data.get("buffer_paths")
        return method == "request_state" or (method == "custom" and "content" in data)
    except (KeyError, TypeError, AttributeError):
        return False


def is_small(name: str, value: Any) -> bool:
    """Whether the page may set the trait to a value of this type and size."""
    if name in ("query", "value"):
        return isinstance(value, str) and len(value) <= LONGEST_TEXT
    if isinstance(value, list) and len(value) <= MOST_SELECTED:
        return sum(len(part) if isinstance(part, str) else 1 for part in value) <= 10 * LONGEST_TEXT
    return False


# The private names of ipywidgets that the widget overrides or uses, and the consequence if one is missing

_MIXED_UP = "what two threads set in a widget at the same time may be lost"
PRIVATE = (
    *(PrivateName(f"ipywidgets:Widget.{n}", _MIXED_UP) for n in ("_property_lock", "_holding_sync", "_states_to_send")),
    PrivateName("ipywidgets:Widget._handle_msg", "messages of the page are not checked before ipywidgets reads them"),
    PrivateName("ipywidgets:Widget._msg_callbacks", "a closed widget keeps its callback for messages"),
)


class _State(threading.local):
    """The state of ipywidgets while it receives or sends a change, separate for each thread."""

    def __init__(self) -> None:
        self.from_the_page: dict[str, Any] = {}
        self.is_holding = False
        self.to_send: set[str] = set()


def _of_thread(name: str) -> Any:
    return property(
        lambda self: getattr(self._thread_state, name), lambda self, value: setattr(self._thread_state, name, value)
    )


class ThreadSafeWidget(anywidget.AnyWidget, ipywidgets.ValueWidget):
    """A widget whose traits several threads may set, such as a training loop and the handler of page messages.

    ipywidgets 8 stores in attributes of the widget which values came from the page and which are delayed. If threads
    shared them, a change by one thread would be sent late or never. In a release without these names, the properties
    are unused, and the widget is as safe as other ipywidgets.
    """

    def __init__(self, **traits: Any) -> None:
        warn_of_missing(PRIVATE)
        self._thread_state = _State()
        super().__init__(**traits)

    _property_lock = _of_thread("from_the_page")
    _holding_sync = _of_thread("is_holding")
    _states_to_send = _of_thread("to_send")

    @contextmanager
    def hold_trait_notifications(self) -> Iterator[None]:
        """Do not hold notifications: traitlets would hold those of all threads, and lose changes by others."""
        yield

    def notify_change(self, change: Any) -> None:
        """Send a change and its consequences as one, since the echo of a partial one would overwrite newer state."""
        with self.hold_sync():
            super().notify_change(change)

    def set_dependent(self, name: str, value: Any) -> None:
        """Set a trait that depends on another; not sent if the page set that one, since it has computed this, too."""
        if self._thread_state.from_the_page:
            self._thread_state.from_the_page.setdefault(name, value)
        self.set_trait(name, value)

    def close(self) -> None:
        """Close the comm, and release all callbacks. A closed widget can still be displayed, as text."""
        layout = self.layout
        super().close()
        vars(self).pop("_repr_mimebundle_", None)  # ipywidgets 8 sets it to None
        layout.close()
        self.unobserve_all()
        callbacks = getattr(self, "_msg_callbacks", None)
        if callbacks is not None:
            callbacks.callbacks.clear()


# Check the messages of the page; answer them, or drop and log them

LINES_KEPT = 200
# The first invalid messages are all logged, here and in the page; then only the 32nd, the 64th, … Answering every one
# could become an endless exchange.
LOGGED_AT_FIRST = 16
_logger = logging.getLogger("treeviz")


class PageWidget(ThreadSafeWidget):
    """A widget that accepts from its page only what requests may ask, and displays itself."""

    _version: Any  # trait: the number of trees shown before
    _token: Any  # trait: identifies the widget for the fallback page
    _backend: Backend | None = None
    _is_displayed = _fallback_is_old = False

    def __init__(self, **traits: Any) -> None:
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._cancelled: deque[int] = deque(maxlen=LINES_KEPT)
        self._n_wrong = 0
        super().__init__(**traits)
        self.on_msg(PageWidget._take_request)  # not a bound method, which would keep the widget alive

    @property
    def _open_backend(self) -> Backend:
        if (backend := self._backend) is None:
            raise ReferenceError("explore: this widget is closed and no longer holds its tree.")
        return backend

    @property
    def logged(self) -> list[str]:
        """The last 200 problems of this widget, which are also sent to the logger "treeviz". After the first 16
        invalid messages of the page, only the 32nd, the 64th, … are included.
        """
        return list(self._lines)

    def send_message(self, message: dict[str, Any], buffers: Sequence[bytes] = ()) -> None:
        """Send an unrequested message to the page's handler `view.handlers[message["op"]]`."""
        self.send(message, list(buffers))

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """Apply the changes that the page may make; log the others."""
        kept = {name: sync_data[name] for name in FROM_THE_PAGE if is_small(name, sync_data.get(name))}
        for name in sync_data:
            if name not in kept and (name not in self.keys or getattr(self, name) != sync_data[name]):
                self._drop(f"a value for {str(name)[:50]!r}")
        if kept:
            try:
                super().set_state(kept)
            except traitlets.TraitError as error:
                self._drop(str(error)[:200])

    def _handle_msg(self, msg: Any) -> None:
        if is_message(msg):
            super()._handle_msg(msg)
        else:
            self._drop("a message that is none of ours")

    def _take_request(self, content: Any, buffers: Any) -> None:
        if isinstance(content, dict) and content.get("do") in ("focus", "blur"):
            return  # ipywidgets' own
        if isinstance(content, dict) and content.get("op") in FROM_PYTHON:
            self._drop("an echo of what it was sent", to_page=False)
            return
        request = read_request(content, buffers)
        if isinstance(request, str):
            self._drop(request)
            return
        if request.operation == "cancel":
            self._cancelled.extend(request.numbers[:1])
        elif (backend := self._backend) is not None:
            answer, parts = answered(backend, self._version, request, lambda: request.id in self._cancelled)
            if "error" in answer:
                self._log(f"{request.operation} of row {request.numbers[:1]}: {answer['error']}")
            self.send(answer, parts)

    def _drop(self, description: str, *, to_page: bool = True) -> None:
        self._log_seldom(f"dropped from the page: {description}", to_page=to_page)

    def _log_seldom(self, line: str, *, to_page: bool = True) -> None:
        """Log a line about an invalid message of the page, less often if there are many."""
        self._n_wrong = n = self._n_wrong + 1
        if n <= LOGGED_AT_FIRST or n & (n - 1) == 0:
            self._log(f"{line} ({n:,} until now)" if n > LOGGED_AT_FIRST else line, to_page=to_page)

    def _log(self, line: str, *, to_page: bool = True) -> None:
        """Log a line here, in the logger and, with `to_page`, in the page."""
        line = visible(line, 1000)
        self._lines.append(line)
        _logger.warning("explore: %s", line)
        if to_page and self.comm is not None:
            self.send({"op": "log", "text": line})

    # Display it, and a fallback page for hosts that do not show widgets

    def _repr_mimebundle_(self, include=None, exclude=None, **kwargs) -> Any:
        if self._backend is None:
            return {"text/plain": repr(self)}, {}
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        static = {} if not shows_html() else {"text/html": self._backend.view._repr_html_}
        static["text/plain"] = self._text
        data = {kind: part for kind, part in data.items() if kind not in static}
        wanted = [kind for kind in (*data, *static) if (not include or kind in include) and kind not in (exclude or ())]
        return {kind: static[kind]() if kind in static else data[kind] for kind in wanted}, metadata

    def _ipython_display_(self) -> None:
        """Publish the widget and, as a second output, its fallback page, which can be updated later."""
        if shell_of_notebook() is None or self._backend is None or not outputs_share_a_page():
            publish(*self._repr_mimebundle_())
            return
        data, metadata = self._repr_mimebundle_(exclude={"text/html", "text/plain"})
        # With empty HTML, a host without widgets shows only the second output.
        publish({**data, "text/html": "", "text/plain": repr(self)}, metadata)
        publish(self._fallback(), {}, display_id=self._token)
        self._is_displayed = True

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        """The view, since widgets do not work in the output of treescope."""
        if self._backend is None:
            return NotImplemented
        return self._backend.view.__treescope_repr__(path, subtree_renderer)

    def renew_page(self) -> None:
        """Update the fallback page in the notebook to the widget's tree."""
        if self._is_displayed and self._backend is not None and shell_of_notebook() is not None:
            publish(self._fallback(), {}, display_id=self._token, update=True)
        self._fallback_is_old = False

    def _renew_page_after_cell(self) -> None:
        """Update the fallback page once, after the cell has run."""
        shell = shell_of_notebook()
        if shell is None or not self._is_displayed or self._fallback_is_old:
            return
        self._fallback_is_old = True

        def renew() -> None:
            shell.events.unregister("post_execute", renew)
            if self._fallback_is_old:
                self.renew_page()

        shell.events.register("post_execute", renew)

    def _fallback(self) -> dict[str, str]:
        return {"text/html": self._open_backend.view.fallback(self._token), "text/plain": self._text()}

    def _text(self) -> str:
        return self._open_backend.view._repr_mimebundle_(include={"text/plain"})["text/plain"]

    def __repr__(self) -> str:
        return "explore: closed" if self._backend is None else f"explore: {self._backend.view.title}"


class TreeWidget(PageWidget):
    """An interactive tree whose state Python can read, set and observe; see `treeviz.explore`.

        widget = treeviz.explore({"layers": [{"w": jnp.ones((3, 4))}]})
        widget.value = "['layers'][0]['w']"

    Attributes:
      value: The key path of the selected row, as `jax.tree_util.keystr` writes it; the tree's name for the root; "" if
        none is selected. Setting a path that is not in the tree does not change `selection`.
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
        token, expanded = secrets.token_hex(8), open_paths(view)
        super().__init__(_packed=view.packed, _token=token, _live=status or {}, expanded=expanded)

    @property
    def table(self) -> TreeTable:
        """The displayed `TreeTable`."""
        return self._open_backend.view.table

    @property
    def tree(self) -> Any:
        """The displayed tree. Set it to show another tree: rows in both trees stay open, selected and in place.

        Raises:
          ReferenceError: The tree was freed; the widget does not keep it alive.
        """
        return self._open_backend.tree

    @tree.setter
    def tree(self, tree: Any) -> None:
        self.replace(tree)

    def replace(self, tree: Any, /, **trees: Any) -> None:
        """Show another tree, with columns for other trees as in `treeviz.explore`; see `tree`."""
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
            if rows != selected:  # otherwise keep a selection by another thread
                self.selection = rows
            if selected:
                self.value = path_name(self.table, rows[-1]) if rows else ""
        self._renew_page_after_cell()

    def follow(self, status: dict[str, Any], *, renewed: bool = False, is_another: bool = False) -> None:
        """Show the status of the run that the backend follows; `renewed`: it has a new view; `is_another`: new rows."""
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
                self.expanded = open_paths(self._open_backend.view)

    @property
    def selected(self) -> list[Any]:
        """The selected nodes and leaves: the objects themselves, not copies.

        Raises:
          ReferenceError: One of them was freed; the widget does not keep them alive.
        """
        return self._open_backend.nodes(self.selection)

    @property
    def selected_paths(self) -> list[tuple]:
        """The key paths of the selected rows, as `jax.tree_util.tree_map_with_path` passes them.

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
        if backend is not None:
            self._fallback_is_old = False
            super().close()
            backend.close()
            self._packed = self._changes = b""

    @traitlets.validate("selection")
    def _known_rows(self, proposal: Any) -> list[int]:
        wanted, n = proposal["value"], len(self.table) if self._backend is not None else 0
        rows = list(dict.fromkeys(int(row) for row in wanted if 0 <= row < n))[-MOST_SELECTED:]
        if n_missing := len(set(wanted)) - len(rows):
            self._log_seldom(f"selection: of {len(wanted)} rows {n_missing} are not in this tree, or too many")
        return rows

    @traitlets.validate("expanded")
    def _few_paths(self, proposal: Any) -> list[str]:
        return proposal["value"][:MOST_EXPANDED]

    @traitlets.observe("selection")
    def _follow_selection(self, change: Any) -> None:
        rows = self.selection  # read once: another thread may set it
        if self._backend is not None:
            self.set_dependent("value", path_name(self.table, rows[-1]) if rows else "")

    @traitlets.observe("value")
    def _follow_value(self, change: Any) -> None:
        rows = self.selection  # read once: another thread may set it
        if self._backend is None or (rows and path_name(self.table, rows[-1]) == self.value):
            return
        row = row_of_path(self.table, self.value) if self.value else None
        if row is not None or not self.value:
            self.set_dependent("selection", [] if row is None else [row])
        else:
            # The page itself reports this.
            self._log(f"value: there is no {self.value[:200]} in {self.table.name}", to_page=False)
