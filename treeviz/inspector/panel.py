"""The live view of a run: its widget's backend, updates to the page, progress, and the final view."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from treeviz.inspector.views import newest_scalars, running_view, waiting_view
from treeviz.steps.findings.find import findings
from treeviz.steps.findings.finding import Finding, Thresholds
from treeviz.steps.recording.history import History, Track, main_source, occurs_in
from treeviz.steps.series import as_float32, is_of_step, position_of, scalar_series, table_of_source
from treeviz.steps.statistics import StopTraining
from treeviz.tree.layers import part_of, row_for_jax
from treeviz.tree.paths import follow, occurrence, parse_key, steps_of
from treeviz.tree.runtime import Ticker
from treeviz.tree.series import InnerSteps, merged
from treeviz.tree.text import error_text
from treeviz.views.html.payload import pack_series
from treeviz.views.tree_view import TreeView
from treeviz.views.view import shell_of_notebook

if TYPE_CHECKING:
    from treeviz.views.widget.backend import Replaced
    from treeviz.views.widget.widget import TreeWidget


# The backend of a live widget


class Inspector(Protocol):
    """The part of `GradientInspector` that the live view uses."""

    thresholds: Thresholds
    _runs: Any  # which calls of the watched steps were measured: `calls`, `last_called` and `first_called` of `Runs`

    @property
    def name(self) -> str: ...
    def render(self) -> TreeView: ...


class Recording(Protocol):
    """The part of a `Recorder` that the live view uses."""

    listeners: Any

    @property
    def reading(self) -> Any: ...
    @property
    def n_dropped(self) -> int: ...
    @property
    def history(self) -> History: ...
    def __len__(self) -> int: ...
    def flush(self) -> Any: ...
    def read_what_is_ready(self) -> Any: ...


class Shown(Protocol):
    """What shows the run to its readers: a widget, or the pages of a server."""

    def follow(self, status: dict[str, Any], *, renewed: bool = False, is_another: bool = False) -> None: ...
    def send_message(self, message: dict[str, Any], buffers: Sequence[bytes] = ()) -> None: ...
    def renew_page(self) -> None: ...


class LiveBackend:
    """Answers the requests of a widget that follows an inspector, and shows a view."""

    def __init__(self, inspector: weakref.ref[Inspector], panel: LivePanel, view: TreeView) -> None:
        # A view must not keep the inspector's arrays alive.
        self._inspector, self.panel, self.view = inspector, panel, view

    @property
    def tree(self) -> Any:
        inspector = self._inspector()
        if inspector is None:
            raise ReferenceError("live: the inspector is gone.")
        return inspector

    def replace(self, tree: Any, trees: Mapping[str, Any]) -> Replaced:
        raise TypeError("live: this widget follows an inspector; treeviz.explore() shows trees.")

    def nodes(self, rows: Sequence[int]) -> list[Any]:
        """The newest numbers of these rows, by column name."""
        table = self.view.table
        return [{name: table[row][name] for name in table.columns} for row in rows]

    def paths(self, rows: Sequence[int]) -> list[tuple]:
        """JAX's key paths; for a layer, the path of its array."""
        table = self.view.table
        paths = [table.path(row_for_jax(table, row)) for row in rows]
        steps = ([step for key in path for step in steps_of(key.keystr)] for path in paths)
        return [tuple(parse_key(step, otherwise=step) for step in path) for path in steps]

    def where(self, tree: Any, rows: Sequence[int]) -> list[Any]:
        """The nodes of another tree at the paths of the rows."""
        table = self.view.table
        parts = []
        for row, path in zip(rows, self.paths(rows), strict=True):
            occurrences, ancestor = [], row
            while ancestor > 0:
                occurrences.append(occurrence(table, ancestor))
                ancestor = int(table.parent[ancestor])
            parts.append(part_of(table, row, follow(tree, path, occurrences[::-1])))
        return parts

    def answer(
        self, operation: str, numbers: Sequence[int], is_cancelled: Callable[[], bool]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Answer a request of the page: "whole" resends all buckets; with a number the page only tests Python."""
        if operation == "whole" and not numbers and not is_cancelled():
            self.panel.resend()
        return {"sections": []}, []

    def close(self) -> None:
        self.panel.close()


ShownT = TypeVar("ShownT", bound=Shown)

# What is new in a history since the last message, and how often to send it

MOST_PER_S = 8
SHARE = 0.02  # of wall time, for updates
MOST_BUCKETS, _MOST_NORMS = 16, 1 << 17  # per message; norms of all leaves and buckets
MOST_FINDINGS = 50
MOST_CURVES, _MOST_POINTS = 6, 128  # scalars that a page shows, and buckets per scalar: some 3 kB per curve


class Throttle:
    """Limits the rate of updates, and the share of the time that they use."""

    def __init__(
        self, most_per_s: float = MOST_PER_S, share: float = SHARE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._least_s, self._share, self._clock = 1 / most_per_s, share, clock
        self._due = -np.inf
        self._cost_s = 0.0

    def is_due(self) -> bool:
        return self._clock() >= self._due

    @property
    def wait_s(self) -> float:
        return max(0.0, self._due - self._clock())

    def spent(self, cost_s: float, n_others: int = 0) -> None:
        """Record the cost of an update; the next is delayed so that all use at most `share` of the time."""
        self._cost_s = max(cost_s, (self._cost_s + cost_s) / 2)
        self._due = self._clock() + max(self._least_s, self._cost_s * (n_others + 1) / self._share)


class Buckets(NamedTuple):
    """Norms of all leaves in k consecutive time buckets."""

    first: np.ndarray  # int64[k]: the position of its first step, see `InnerSteps`
    until: np.ndarray  # int64[k]: the position of its last step
    n: np.ndarray  # int64[k]: its number of recorded steps
    latest: np.ndarray  # float32[k, leaves]: the last norm in it, as are the least and the greatest
    low: np.ndarray
    high: np.ndarray
    bad: np.ndarray  # bool[k, leaves]: whether it has a non-finite value

    def buffers(self) -> list[bytes]:
        """Little-endian bytes: first, until and n as float64; bad as one bit per leaf; then latest (and unless each
        bucket holds one step, low and high) as float32."""
        norms = (self.latest,) if (self.n == 1).all() else (self.latest, self.low, self.high)
        return [
            *(part.astype("<f8").tobytes() for part in (self.first, self.until, self.n)),
            np.packbits(self.bad, axis=1, bitorder="little").tobytes(),
            *(part.astype("<f4").tobytes() for part in norms),
        ]


# The progress and the speed of a run, from a clock and the steps of a history

_RATE_S = 10.0  # over which the speed is measured


def checked_total(total: float | None) -> int | None:
    """Return the number of steps of a run; None if it is unknown. ValueError if it is not a whole number."""
    try:
        if total is None or (int(total) == total and total >= 0):
            return None if total is None else int(total)
    except (TypeError, ValueError, OverflowError):  # int(nan), for example
        pass
    raise ValueError(f"total={total!r}: pass the number of steps of the run, such as total=1000, or None.")


class Progress:
    """Progress of a run, which begins with the first measurement after `end`. It may `rest` for any time and resume."""

    def __init__(self, total: float | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.n_arrived = 0  # measurements
        self._total, self._clock = checked_total(total), clock
        self._n_finished = 0  # measurements of runs that have ended
        self._n_before = 0  # steps when this run began
        self._began = self._arrived = clock()
        self._first_step: int | None = None
        self._rests = False
        self._speed: deque[tuple[float, int]] = deque()

    def arrive(self) -> None:
        self._arrived = self._clock()
        if self.is_finished and not self._rests:
            self._began = self._arrived
        self.n_arrived += 1

    @property
    def is_finished(self) -> bool:
        """Whether no measurement has arrived since the run ended or paused."""
        return self.n_arrived == self._n_finished

    @property
    def is_complete(self) -> bool:
        """Whether all steps of the loop were read, if their number is known."""
        return self._total is not None and (self.numbers(is_running=False).get("done") or 0) >= self._total

    @property
    def quiet_s(self) -> float:
        return self._clock() - self._arrived

    def n_new(self, steps: Track) -> int:
        """How many steps of this run were read. A tree that changed since the last run has its own track."""
        n = steps.n_steps - self._n_before
        return n if n >= 0 else steps.n_steps

    def begin(self, steps: Track, first_called: Callable[[int], int] = lambda first: first) -> None:
        """Record that the first steps of a run, or after a rest, were read; `first_called` as of `Runs`."""
        first = first_called(int(steps.newest(self.n_new(steps)).first.min()))
        # A tree that changed meanwhile has its own track.
        self._first_step = first if not self._rests or self._first_step is None else min(first, self._first_step)
        self._rests = False
        self._speed.clear()

    def count(self, newest: int) -> None:
        """Record that the steps up to `newest` were read."""
        now = self._arrived
        self._speed.append((now, newest))
        while len(self._speed) > 2 and now - self._speed[0][0] > _RATE_S:
            self._speed.popleft()

    def end(self, steps: Track, n_arrived: int | None = None) -> None:
        """End the run, of which `n_arrived` measurements are in `steps`; later ones belong to the next run."""
        self._n_before, self._rests = steps.n_steps, False
        self._n_finished = self.n_arrived if n_arrived is None else n_arrived

    def rest(self, steps: Track, n_arrived: int) -> bool:
        """Record that the run pauses. Returns whether this ends the run, because all its steps are done."""
        if self.is_complete:
            self.end(steps, n_arrived)
        else:
            self._n_finished, self._rests = n_arrived, True
        return not self._rests

    def numbers(self, is_running: bool) -> dict[str, int | float | None]:
        """The "total", the "elapsed" seconds and, if known, "step", "done" and "rate" (in a run, of the last 10 s)."""
        until = self._clock() if is_running else self._arrived
        numbers: dict[str, int | float | None] = {"total": self._total, "elapsed": round(until - self._began, 3)}
        if self._speed and self._first_step is not None:
            (began_s, first_step), (ended_s, newest) = self._speed[0], self._speed[-1]
            if not is_running:
                began_s, first_step, ended_s = self._began, self._first_step - 1, until
            numbers["step"] = newest
            numbers["done"] = newest - self._first_step + 1
            if ended_s > began_s and newest > first_step:
                numbers["rate"] = (newest - first_step) / (ended_s - began_s)
        return numbers


# The messages to a page that follows a run

# in messages; the findings are repeated for a page that missed them while the kernel was busy
FINDINGS_EVERY = 16


class RunMessages:
    """Composes the messages to a page during a run: first the tree, then new buckets, findings and curves.

    Findings are searched, and curves sent, at most once a second and for at most a quarter of `share` each.
    """

    def __init__(
        self,
        recorder: weakref.ref[Recording],
        *,
        thresholds: Thresholds,
        total: int | None,
        clock: Callable[[], float],
        cpu_clock: Callable[[], float],
        first_called: Callable[[str, int], int],
        share: float = SHARE,
    ) -> None:
        self.progress = Progress(total, clock=clock)
        self.state = "waiting"  # before the first step; then "running", and after the run "still", "done" or "stopped"
        self._recorder, self._thresholds = recorder, thresholds
        self._cpu_clock, self._first_called = cpu_clock, first_called
        self._reason = ""  # why the run stopped
        self._findings: list[Finding] = []
        self._marks: list[list] = []  # [row, position, kind, text, severity] of the findings in the main source
        self._search, self._curves = (Throttle(most_per_s=1, share=share / 4, clock=clock) for _ in range(2))
        self._tree: tuple[weakref.ref[History], str, InnerSteps] | None = None  # which tree the page has
        self._n_steps = self._n_scalars = 0  # steps, and rows of scalars, that the page has
        self._sequence = 0
        self._n_bad_leaves = 0

    def status(self) -> dict[str, Any]:
        """The fields of every message, which the line above the tree shows."""
        recorder = self._recorder()
        return {
            "sequence": self._sequence,
            "state": self.state,
            "why": self._reason,
            "dropped": 0 if recorder is None else recorder.n_dropped,
            "scalars": [] if recorder is None else newest_scalars(recorder.history),
            **self.progress.numbers(is_running=self.state == "running"),
        }

    def can_append(self, history: History) -> bool:
        """Whether the page already has the tree of this run, and its structure has not changed."""
        return self.state == "running" and self._tree == _tree_of(history)

    def tree_so_far(self, history: History) -> TreeView:
        """Return the tree with all steps so far. The next `append` begins after them."""
        before, self._tree = self._tree, _tree_of(history)
        source = self._tree[1]
        if self.state != "running":
            self.begin(source, history)
            self.state, self._reason = "running", ""
        self._poll_findings(history, now=self._tree != before)
        self.progress.count(history.last(source)[0])
        self._sequence += 1
        self._n_steps, self._n_scalars = history.tracks[source, "norm"].n_steps, history.scalars.n_appended
        return self.view(history)

    def view(self, history: History) -> TreeView:
        return running_view(history, history.tree, self._findings)

    def begin(self, source: str, history: History) -> None:
        self.progress.begin(history.tracks[source, "norm"], lambda first: self._first_called(source, first))

    def append(self, history: History) -> tuple[dict[str, Any], list[bytes]] | None:
        """Return a message with everything new since the last one, and its buffers. None if nothing is new."""
        buckets = self._new_buckets(history)
        is_worse = False
        if buckets is not None:
            self.progress.count(history.inner.split(buckets.until.max())[0])
            n_bad = int(buckets.bad.any(axis=0).sum())
            is_worse, self._n_bad_leaves = n_bad > self._n_bad_leaves, max(n_bad, self._n_bad_leaves)
        has_new_findings = self._poll_findings(history, now=is_worse)
        curves = self._new_curves(history)
        if buckets is None and curves is None and not has_new_findings:
            return None
        # If an interrupt prevents the sending, the page sees the gap in the sequence and requests all buckets.
        self._sequence += 1
        message = {"op": "append", "n": 0 if buckets is None else len(buckets.n), **self.status()}
        if has_new_findings or self._sequence % FINDINGS_EVERY == 0:
            message["findings"] = self._marks
        if curves is not None:
            message["curves"] = curves
        return message, [] if buckets is None else buckets.buffers()

    def end(self, state: str, reason: str = "") -> None:
        """Record that the run is complete or paused; the final view is sent next."""
        self._sequence += 1
        self.state, self._reason = state, reason
        self._n_bad_leaves = 0

    def _new_buckets(self, history: History) -> Buckets | None:
        """The norms that the page lacks; None if it has all. The cost depends on the new steps only, not on the run."""
        assert self._tree is not None
        source = self._tree[1]
        track, counts = history.tracks[source, "norm"], history.tracks.get((source, "nonfinite"))
        n_new = track.n_steps - self._n_steps
        if n_new <= 0:
            return None
        steps = track.newest(n_new, history.inner)
        self._n_steps += n_new
        bad = np.isinf(steps.high)
        if counts is not None:
            bad |= occurs_in(counts.newest(n_new, history.inner), steps)
        most = min(MOST_BUCKETS, max(1, _MOST_NORMS // bad.shape[1]))
        starts = np.arange(0, len(steps.n), -(-len(steps.n) // most))
        low, high, latest = map(as_float32, merged(steps.low, steps.high, steps.latest, starts))
        first, until = steps.begins[starts], steps.ends[np.append(starts[1:], len(steps.n)) - 1]
        n, bad = np.add.reduceat(steps.n, starts), np.logical_or.reduceat(bad, starts, axis=0)
        return Buckets(first, until, n, latest, low, high, bad)

    def _poll_findings(self, history: History, *, now: bool) -> bool:
        """Search for findings if a search is due, or if `now`. Returns whether they changed."""
        if not (now or self._search.is_due()):
            return False
        before, marks = self._cpu_clock(), self._marks
        self._findings = findings(history, thresholds=self._thresholds)
        self._search.spent(self._cpu_clock() - before)
        source = main_source(history)
        leaves = table_of_source(history, source, history.tree).measured.tolist()
        self._marks = []
        for finding in [x for x in self._findings if x.source == source or is_of_step(x)][:MOST_FINDINGS]:
            row = 0 if finding.leaf < 0 or is_of_step(finding) else leaves[finding.leaf]
            text = f"{finding.sentence} {finding.advice}"[:1000]
            self._marks.append([row, position_of(finding, history), finding.kind, text, finding.severity])
        return self._marks != marks

    def _new_curves(self, history: History) -> dict[str, list] | None:
        """The headers of the curves and their arrays, as from `pack_series`; None if nothing is new or due."""
        is_new = bool(history.scalars) and self._n_scalars != history.scalars.n_appended
        if not is_new or not self._curves.is_due():
            return None
        before, arrays = self._cpu_clock(), []
        self._n_scalars = history.scalars.n_appended

        def add(array: np.ndarray) -> int:
            arrays.append((array * 1).ravel().tolist())
            return len(arrays) - 1

        packed = pack_series(scalar_series(history, self._findings, _MOST_POINTS, MOST_CURVES), add)
        self._curves.spent(self._cpu_clock() - before)
        return {"series": packed, "arrays": arrays}


def _tree_of(history: History) -> tuple[weakref.ref[History], str, InnerSteps]:
    """The main tree of a history, which is another object for another run."""
    source = main_source(history)
    return weakref.ref(history), source, history.numbering(source)


QUIET_S = 0.5  # without a new measurement, then the remaining steps are read and sent
AT_REST_S = 5.0  # without a new measurement, then the final view is shown
_logger = logging.getLogger("treeviz")


class LivePanel:
    """Keeps a widget up to date with an inspector, from any thread that reads measurements.

    The page first shows one line. After the first step it receives the tree, then buckets of new steps as they are
    read, and when no more arrive, or the notebook's cell has run, the final view, which the notebook saves.
    """

    def __init__(
        self,
        inspector: Inspector,
        recorder: Recording,
        *,
        total: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
        share: float = SHARE,
    ) -> None:
        # A view must not keep the arrays of either alive.
        self._inspector, self._recorder = weakref.ref(inspector), weakref.ref(recorder)
        self._reading = recorder.reading
        self._clock, self._cpu_clock = clock, cpu_clock
        self._throttle = Throttle(share=share, clock=clock)
        settings: dict[str, Any] = {"total": total, "clock": clock, "cpu_clock": cpu_clock, "share": share}
        settings |= {"thresholds": inspector.thresholds, "first_called": self._first_called}
        self._messages = RunMessages(self._recorder, **settings)
        self._calls = inspector._runs.calls()  # before the run
        self._progress = self._messages.progress
        self.backend = LiveBackend(self._inspector, self, waiting_view(inspector.name))
        self._widget: Shown | None = None
        self._viewed = 0  # the number of the last message that the view has
        self._finish_again = 0.0  # the earliest time for the next final view
        self._in_cell = False
        self._shell_thread = threading.get_ident()
        self._ticker = Ticker(self._tick, first_s=QUIET_S, lock=self._reading, name="treeviz live")
        self._is_closed = False

    def begin(self) -> TreeWidget:
        """Create the widget, which follows the run from now on."""
        # Imported here, so that other scripts do not load the widget stack.
        from treeviz.views.widget.widget import TreeWidget

        return self.show_in(TreeWidget)

    def show_in(self, make: Callable[[LiveBackend, dict[str, Any]], ShownT]) -> ShownT:
        """Create what shows the run from now on, given the backend and the status of the run."""
        recorder = self._recorder()
        if recorder is None:
            raise ReferenceError("live: the inspector is gone.")
        with self._reading:
            with contextlib.suppress(StopTraining):
                recorder.flush()  # earlier measurements are not part of this run
            if recorder.history:
                self._show_final("still")
                self._progress.end(recorder.history.tracks[main_source(recorder.history), "norm"])
            self._widget = shown = make(self.backend, self._messages.status())
            recorder.listeners = (*recorder.listeners, self)
        shell = shell_of_notebook()
        if shell is not None:
            shell.events.register("post_run_cell", self._after_cell)
        return shown

    # A listener of the recorder

    def arrived(self) -> bool:
        self._progress.arrive()
        if threading.get_ident() == self._shell_thread:
            self._in_cell = True
        if not self._ticker.is_running:
            self._ticker.start()
        return self._throttle.is_due()

    def was_read(self) -> None:
        if self._throttle.is_due():
            self._try_to("follow the run", self.send_updates)

    # During the run

    def send_updates(self) -> None:
        """Send new steps and findings to the page. The caller holds the recorder's lock."""
        recorder, widget = self._recorder(), self._widget
        if recorder is None or not recorder.history or widget is None:
            return
        before = self._cpu_clock()
        if not self._messages.can_append(recorder.history):
            self._show(self._messages.tree_so_far(recorder.history))
        elif (message := self._messages.append(recorder.history)) is not None:
            widget.send_message(*message)
        self._throttle.spent(self._cpu_clock() - before, len(recorder.listeners) - 1)

    def resend(self) -> None:
        """Resend everything, since the page missed a message."""
        with self._reading:
            recorder = self._recorder()
            if recorder is None or not recorder.history or self._widget is None:
                return
            is_running = self._messages.state == "running"
            self._show(self._messages.tree_so_far(recorder.history) if is_running else self.backend.view)

    def renew(self) -> dict[str, Any] | None:
        """Add what was sent to the view, for a page that comes later. Returns the status then; None if it has all."""
        recorder = self._recorder()
        if recorder is None or not self._messages.can_append(recorder.history):
            return None
        self.send_updates()
        status = self._messages.status()
        if status["sequence"] == self._viewed:
            return None
        self.backend.view, self._viewed = self._messages.view(recorder.history), status["sequence"]
        return status

    def _show(self, view: TreeView) -> None:
        is_another, self.backend.view = len(view.table) != len(self.backend.view.table), view
        self._viewed = self._messages.status()["sequence"]
        if self._widget is not None:
            self._widget.follow(self._messages.status(), renewed=True, is_another=is_another)

    # At the end of a run, or when it pauses

    def finish(self, state: str = "still", reason: str = "", *, is_over: bool = True) -> None:
        """Read all measurements, and show the final view; if it `is_over`, the next measurement begins another run."""
        recorder = self._recorder()
        if recorder is None or self._is_closed:
            return
        with self._reading:
            try:
                self._try_to("read the last steps", recorder.flush)
            finally:
                self._try_to("show the whole run", lambda: self._finish(state, reason, is_over))

    def _finish(self, state: str, reason: str, is_over: bool) -> None:
        widget, recorder = self._widget, self._recorder()
        if widget is None or recorder is None or not recorder.history:
            return
        n_arrived, before = self._progress.n_arrived, self._cpu_clock()
        history = recorder.history
        source, inspector = main_source(history), self._inspector()
        steps = history.tracks[source, "norm"]
        newest = steps.latest()
        if newest is not None and self._progress.n_new(steps) > 0:
            if self._messages.state != "running":
                self._messages.begin(source, history)
            self._progress.count(newest[0] if inspector is None else inspector._runs.last_called(source, newest[0]))
        self._show_final("done" if state == "still" and self._progress.is_complete else state, reason)
        widget.renew_page()
        if is_over:
            self._progress.end(steps, n_arrived)
        if (is_over or self._progress.rest(steps, n_arrived)) and inspector is not None:
            self._calls = inspector._runs.calls()
        self._finish_again = self._clock() + (self._cpu_clock() - before) / SHARE

    def _first_called(self, source: str, first: int) -> int:
        inspector = self._inspector()
        return first if inspector is None else inspector._runs.first_called(source, first, self._calls)

    def _show_final(self, state: str, reason: str = "") -> None:
        inspector = self._inspector()
        view = self.backend.view if inspector is None else inspector.render()
        self._messages.end(state, reason)
        self._show(view)

    def _tick(self) -> float | None:
        """Read, send and show whatever is due. Returns the seconds until the next call; None ends the thread."""
        quiet_s = self._progress.quiet_s
        with self._reading:
            recorder = self._recorder()
            if self._is_closed or recorder is None or self._progress.is_finished:
                return None
            if quiet_s < QUIET_S:
                return QUIET_S - quiet_s
            self._try_to("read the last steps", recorder.read_what_is_ready)
            if not self._throttle.is_due():
                return max(self._throttle.wait_s, 0.05)
            self._try_to("send the last steps", self.send_updates)
            wait_s = max(AT_REST_S - quiet_s, self._finish_again - self._clock())
            if wait_s > 0 or len(recorder):
                return max(wait_s, QUIET_S)
            self._try_to("show the whole run", lambda: self._finish("still", "", is_over=False))
            return None if self._progress.is_finished else QUIET_S  # measurements may have arrived meanwhile

    def _after_cell(self, *_: object) -> None:
        """Show the measurements of a finished cell, so that they are saved with the notebook."""
        is_in_cell, self._in_cell = self._in_cell, False
        if is_in_cell or (not self._progress.is_finished and self._clock() >= self._finish_again):
            self.finish(is_over=is_in_cell)  # a thread may continue the run

    def _try_to(self, action: str, function: Callable[[], None]) -> None:
        """Call `function`; log its errors, since a view must not stop a run."""
        try:
            function()
        except StopTraining:
            raise
        except Exception as error:
            _logger.warning("live: could not %s: %s", action, error_text(error))

    def detach(self) -> None:
        """Stop following the run. The widget keeps its last view."""
        self._is_closed = True
        self._ticker.stop()
        recorder = self._recorder()
        if recorder is not None:
            recorder.listeners = tuple(listener for listener in recorder.listeners if listener is not self)
        shell = shell_of_notebook()
        if shell is not None and self._after_cell in shell.events.callbacks["post_run_cell"]:
            shell.events.unregister("post_run_cell", self._after_cell)

    def close(self) -> None:
        self.detach()
        self._widget = None
