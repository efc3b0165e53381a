"""A run or a checkpoint in a file, as the pages of a browser show it: what a widget is in a notebook."""

from __future__ import annotations

import atexit
import contextlib
import json
import re
import secrets
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

from treeviz.inspector.panel import LivePanel, Throttle
from treeviz.inspector.views import compare_runs, whole_view
from treeviz.steps.findings.find import findings
from treeviz.steps.findings.finding import Thresholds
from treeviz.steps.recording.history import History, main_source
from treeviz.steps.recording.history_file import Copied, Followed
from treeviz.views.tree_view import TreeView
from treeviz.views.widget.backend import Backend, answered, open_paths, read_request

_SHARE = 0.3  # of the time of a process that does nothing else

Publish = Callable[[str, Mapping[str, Any], Sequence[bytes]], None]
"""Sends an event to all pages: its kind, its content as JSON, and binary buffers. Called from any thread."""


class Pages:
    """The pages that show the tree of a backend, each with its selection. `complete` adds to the status of a run."""

    def __init__(
        self,
        backend: Backend,
        status: dict[str, Any],
        publish: Publish,
        complete: Callable[[dict[str, Any]], dict[str, Any]] = dict,
    ) -> None:
        self.version, self._status, self._token = 0, status, secrets.token_hex(8)  # the first counts trees
        self._backend, self._publish, self._complete = backend, publish, complete
        self._cancelled: deque[int] = deque(maxlen=100)

    def follow(self, status: dict[str, Any], *, renewed: bool = False, is_another: bool = False) -> None:
        self._status = status
        self.version += renewed
        self._publish("tree" if renewed else "status", {"version": self.version, "status": self._complete(status)}, ())

    def renew(self, status: dict[str, Any]) -> None:
        """Give the view to the next page; those that are here have what is new."""
        self._status, self.version = status, self.version + 1

    def send_message(self, message: dict[str, Any], buffers: Sequence[bytes] = ()) -> None:
        self._publish("message", message, buffers)

    def renew_page(self) -> None:
        """Nothing: only a notebook keeps a page."""

    def content(self) -> bytes:
        """The tree in the format of the front end, after a line of JSON with the other traits of a widget."""
        view = self._backend.view
        live, expanded = self._complete(self._status), open_paths(view)
        traits = {"_version": self.version, "_live": live, "_token": self._token, "expanded": expanded}
        return json.dumps(traits).encode() + b"\n" + view.packed

    def answer(self, content: Any) -> tuple[dict[str, Any], list[bytes]] | None:
        """Answer a request of a page by JSON and buffers, or None; ValueError if it is none."""
        request = read_request(content)
        if isinstance(request, str):
            raise ValueError(request)
        if request.operation == "cancel":
            self._cancelled.extend(request.numbers[:1])
            return None
        return answered(self._backend, self.version, request, lambda: request.id in self._cancelled)


class _Recorder:
    """What a live panel uses of a `Recorder`, for a run that another process writes."""

    n_dropped = 0

    def __init__(self, followed: Followed) -> None:
        self.reading, self.listeners = threading.RLock(), ()
        self.trouble = ""
        self._followed, self._nothing = followed, History([])

    @property
    def history(self) -> History:
        return self._followed.history or self._nothing

    @property
    def path(self) -> Path:
        return self._followed.path

    @property
    def written(self) -> float:
        return self._followed.written

    def __len__(self) -> int:  # measurements under way
        return 0

    def read_what_is_ready(self) -> bool:
        is_new, self.trouble = self._followed.update()
        return is_new

    flush = read_what_is_ready


class _Inspector:
    """What a live panel uses of a `GradientInspector`. Each recorded call is taken for a measured one."""

    def __init__(self, recorder: _Recorder) -> None:
        self.thresholds, self._recorder, self._runs = Thresholds(), recorder, self

    @property
    def name(self) -> str:
        return self._recorder.history.tree or "params"

    def render(self) -> TreeView:
        history = self._recorder.history
        return whole_view(history, self.name, findings(history, thresholds=self.thresholds))

    def calls(self) -> Mapping[Any, int]:
        return {}

    def last_called(self, source: str, newest: int) -> int:
        return newest

    def first_called(self, source: str, first: int, before: Mapping[Any, int]) -> int:
        return first


class _Served:
    """What pages show."""

    _pages: Pages

    def content(self) -> bytes:
        return self._pages.content()

    def answer(self, content: Any) -> tuple[dict[str, Any], list[bytes]] | None:
        return self._pages.answer(content)


class ServedRun(_Served):
    """A run that is followed in its file; `poll` reads what is new, and sends it to the pages."""

    def __init__(self, file: Path | Copied, publish: Publish) -> None:
        self._recorder = _Recorder(Followed(file))
        self._inspector = _Inspector(self._recorder)
        self._panel = LivePanel(self._inspector, self._recorder, share=_SHARE)
        self._pages = self._panel.show_in(lambda backend, status: Pages(backend, status, publish, self._complete))

    def _complete(self, status: dict[str, Any]) -> dict[str, Any]:
        """The status with the newest step, also of a run that has ended, and when the file was written."""
        history = self._recorder.history
        newest = {"step": history.last(main_source(history))[0]} if history else {}
        return {**newest, **status, "written": self._recorder.written}

    def poll(self) -> str:
        """Read what is new. Returns why nothing can be read, if so."""
        with self._recorder.reading:
            if self._recorder.read_what_is_ready() and self._recorder.history:
                for listener in self._recorder.listeners:
                    listener.arrived()
                    listener.was_read()
        return self._recorder.trouble

    @property
    def path(self) -> Path:
        return self._recorder.path

    @contextlib.contextmanager
    def read(self) -> Iterator[History]:
        """The run as it is now; no other thread adds to it meanwhile."""
        with self._recorder.reading:
            self.poll()
            yield self._recorder.history

    def content(self) -> bytes:
        with self._recorder.reading:
            if (status := self._panel.renew()) is not None:
                self._pages.renew(status)
            return self._pages.content()

    def close(self) -> None:
        self._panel.close()


class TwoServedRuns(_Served):
    """Two runs side by side, which are followed in their files. Rows have no details."""

    def __init__(self, files: Sequence[Path | Copied], names: tuple[str, str], publish: Publish) -> None:
        self._followed, self._names = [*map(Followed, files)], names
        self._throttle, self._is_new, self._lock = Throttle(share=_SHARE), True, threading.Lock()
        for followed in self._followed:
            followed.read()
        self._shown: Any = SimpleNamespace(view=self._compared(), answer=lambda *_: ({"sections": []}, []))
        self._pages = Pages(self._shown, {}, publish)

    def _compared(self) -> TreeView:
        before, (left, right) = time.thread_time(), (followed.history or History([]) for followed in self._followed)
        try:
            return compare_runs(left, right, self._names).view
        finally:
            self._is_new = False
            self._throttle.spent(time.thread_time() - before)

    def poll(self) -> str:
        with self._lock:
            news, troubles = zip(*[followed.update() for followed in self._followed], strict=True)
            self._is_new |= any(news)
            if self._is_new and self._throttle.is_due():
                try:
                    self._shown.view = self._compared()
                    self._pages.follow({}, renewed=True)
                except ValueError as error:
                    troubles = (str(error),)
            return " · ".join(filter(None, troubles))

    def content(self) -> bytes:
        with self._lock:
            return self._pages.content()

    def close(self) -> None:
        """Nothing is open."""


class Server:
    """A process that serves a run; see `GradientInspector.serve`.

    Attributes:
      url: The address of the run. Whoever has it can read the run.
    """

    def __init__(self, path: Path, port: int | None) -> None:
        self._reading: threading.Thread | None = None
        command = [sys.executable, "-P", "-m", "treeviz", "serve", str(path.absolute()), "--until-eof"]
        command += [] if port is None else ["--port", str(port)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stderr=pipe, stdout=subprocess.DEVNULL, text=True)
        assert self._process.stderr is not None
        said = self._process.stderr.readline()
        found = re.search(r"http://\S+", said)
        if found is None:
            reason = " ".join((said + self._process.stderr.read()).split())[-500:]
            self.close()
            raise OSError(f"serve: the server did not start: {reason}")
        self.url = found[0].replace("/?", f"/at/{quote(path.name)}?")
        print(f"Serving at {self.url}")
        # What it writes later is read, or it would wait for a reader.
        self._reading = threading.Thread(target=deque, args=(self._process.stderr, 0), daemon=True)
        self._reading.start()
        atexit.register(self.close)

    def close(self) -> None:
        atexit.unregister(self.close)
        self._process.kill()
        self._process.wait()
        if self._reading is not None:
            self._reading.join()
        for pipe in filter(None, (self._process.stdin, self._process.stderr)):
            pipe.close()

    def __repr__(self) -> str:
        return f"Server({self.url})"


class ServedTree(_Served):
    """A checkpoint, whose arrays are read when a page asks for their values."""

    def __init__(self, backend: Backend) -> None:
        self._backend, self._pages = backend, Pages(backend, {}, lambda *_: None)

    def poll(self) -> str:
        return ""

    def close(self) -> None:
        self._backend.close()
