"""Check the messages of the page; answer them, or drop and log them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

import traitlets

from treeviz.tree.safe_repr import visible
from treeviz.views.widget.backend import Backend
from treeviz.views.widget.ipywidgets_private import ThreadSafeWidget
from treeviz.views.widget.requests import FROM_PYTHON, FROM_THE_PAGE, is_message, is_small, read_request

LINES_KEPT = 200
# Of so many wrong messages each is logged, and told to the page; then the 32nd, the 64th, … An answer to every one
# would let two sides that answer each other go on for ever.
TOLD_AT_MOST = 16
_logger = logging.getLogger("treeviz")


class PageWidget(ThreadSafeWidget):
    """A widget that accepts from its page only what `requests` allows."""

    _version: Any  # a trait: the number of trees shown before
    _backend: Backend | None = None

    def __init__(self, **traits: Any) -> None:
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._cancelled: deque[int] = deque(maxlen=LINES_KEPT)
        self._n_wrong = 0
        super().__init__(**traits)
        self.on_msg(PageWidget._take_request)  # not a bound method, which would keep the widget alive

    @property
    def _open_backend(self) -> Backend:
        backend = self._backend
        if backend is None:
            raise ReferenceError("explore: this widget was closed, and has let go of its tree.")
        return backend

    @property
    def logged(self) -> list[str]:
        """The last 200 problems of this widget, which the logger "treeviz" gets, too. Of bad messages of the page the
        first 16, and then fewer and fewer.
        """
        return list(self._lines)

    def send_message(self, message: dict[str, Any], buffers: Sequence[bytes] = ()) -> None:
        """Send an unrequested message; the handler `view.handlers[message["op"]]` of the page gets it."""
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

    def _is_valid(self, message: Any) -> bool:
        is_valid = is_message(message)
        if not is_valid:
            self._drop("a message that is none of ours")
        return is_valid

    def _take_request(self, content: Any, buffers: Any) -> None:
        """Answer a request of the page with the same number."""
        if isinstance(content, dict) and content.get("do") in ("focus", "blur"):
            return  # ipywidgets' own
        if isinstance(content, dict) and content.get("op") in FROM_PYTHON:
            self._drop("an echo of what it was sent", to_page=False)
            return
        request = read_request(content, buffers)
        if isinstance(request, str):
            self._drop(request)
            return
        operation, number, version, numbers = request
        backend = self._backend
        if operation == "cancel":
            self._cancelled.extend(numbers[:1])
        elif backend is not None:
            if version != self._version or (numbers and not 0 <= numbers[0] < len(backend.view.table)):
                self.send({"op": "answer", "id": number, "stale": True})
                return
            answer, parts = {}, []
            try:
                answer, parts = backend.answer(operation, numbers, lambda: number in self._cancelled)
            except Exception as error:
                self._log(f"{operation} of row {numbers[:1]}: {type(error).__name__}: {str(error)[:500]}")
                answer = {"error": f"{type(error).__name__}: {str(error)[:500]}"}
            self.send({**answer, "op": "answer", "id": number}, parts)

    def _drop(self, what: str, *, to_page: bool = True) -> None:
        self._log_seldom(f"dropped from the page: {what}", to_page=to_page)

    def _log_seldom(self, line: str, *, to_page: bool = True) -> None:
        """Log a line about a message of the page that is wrong."""
        self._n_wrong = n = self._n_wrong + 1
        if n <= TOLD_AT_MOST or n & (n - 1) == 0:
            self._log(f"{line} ({n:,} until now)" if n > TOLD_AT_MOST else line, to_page=to_page)

    def _log(self, line: str, *, to_page: bool = True) -> None:
        """Log a line here, in the logger and, with `to_page`, in the page."""
        line = visible(line, 1000)
        self._lines.append(line)
        _logger.warning("explore: %s", line)
        if to_page and self.comm is not None:
            self.send({"op": "log", "text": line})
