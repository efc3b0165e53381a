"""A widget that follows a run: what stands behind it, and when it is told what is new."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from treeviz.analysis.history import History
from treeviz.analysis.live import SHARE, FindingNews, News, Throttle, main_source
from treeviz.analysis.progress import Progress
from treeviz.analysis.recorder import Recorder, StopTraining
from treeviz.gradient_view import running_view, waiting_view
from treeviz.ticker import Ticker
from treeviz.tree.follow import key_written
from treeviz.views.notebook import shell_of_notebook
from treeviz.views.tree_view import TreeView

if TYPE_CHECKING:
    from treeviz.inspector import GradientInspector
    from treeviz.views.widget import Replaced, TreeWidget

QUIET_S = 0.5  # after the last measurement what was not told yet is told
AT_REST_S = 5.0  # and then the whole picture is made
FINDINGS_EVERY = 16  # messages: a page that came late, while the kernel is busy, hears of them too
_logger = logging.getLogger("treeviz")


class LivePanel:
    """What stands behind a widget that follows an inspector: it is told what is new, from whichever thread reads it.

    The page first shows one line. When something was measured it is sent the tree (`running`), then columns as they are
    read, and when nothing comes any more the whole picture, which is what a notebook keeps.

    Args:
      total: How many steps the loop will make.
      clock, cpu_clock: In seconds; the second one counts what this thread does.
    """

    def __init__(
        self,
        inspector: GradientInspector,
        recorder: Recorder,
        *,
        total: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        # The inspector may hold arrays, and the recorder does: neither stays alive because of a view.
        self._inspector = weakref.ref(inspector)
        self._recorder = weakref.ref(recorder)
        self._name = inspector.name
        self._reading = recorder.reading
        self._clock, self._cpu_clock = clock, cpu_clock
        self._progress = Progress(total, clock=clock)
        self._throttle = Throttle(clock=clock)
        self._findings = FindingNews(inspector.name, clock=clock, cpu_clock=cpu_clock)
        self._news: News | None = None
        self._sequence = 0
        self._state, self._why = "waiting", ""
        self._n_bad = 0  # leaves
        self._settle_again = 0.0
        self._in_cell = False
        self._shell_thread = threading.get_ident()
        self._ticker = Ticker(self._tick, first_s=QUIET_S, lock=self._reading, name="treeviz live")
        self._is_closed = False
        self.view = waiting_view(inspector.name)
        self._widget: TreeWidget | None = None

    def begin(self) -> TreeWidget:
        """The widget; from now on it follows the run."""
        from treeviz.views.widget import TreeWidget  # a script that shows nothing loads no widgets

        recorder = self._open_recorder
        with self._reading:
            if recorder.history is not None:
                self._show_whole("still")
                self._progress.end(recorder.history.tracks[main_source(recorder.history), "norm"])
            self._widget = TreeWidget(self, self._status())
            recorder.listeners = (*recorder.listeners, self)
        shell = shell_of_notebook()
        if shell is not None:
            shell.events.register("post_run_cell", self._after_cell)
        return self._widget

    # The recorder

    def arrived(self) -> bool:
        self._progress.arrive()
        if threading.get_ident() == self._shell_thread:
            self._in_cell = True
        if not self._ticker.is_running:
            self._ticker.start()
        return self._throttle.is_due()

    def was_read(self) -> None:
        if self._throttle.is_due():
            self._try_to("follow the run", self._tell)

    def _tell(self) -> None:
        """Send what is new. The lock is held."""
        recorder, widget = self._recorder(), self._widget
        if recorder is None or recorder.history is None or widget is None:
            return
        before = self._cpu_clock()
        if self._news is None or self._state != "running":
            self._show_running(recorder.history)
        else:
            self._append(recorder.history, self._news, widget)
        self._throttle.spent(self._cpu_clock() - before, len(recorder.listeners) - 1)

    def _append(self, history: History, news: News, widget: TreeWidget) -> None:
        columns = news.take(history)
        is_worse = False
        if columns is not None:
            self._progress.count(int(columns.until.max()))
            n_bad = int(columns.bad.any(axis=0).sum())
            is_worse, self._n_bad = n_bad > self._n_bad, max(n_bad, self._n_bad)
        has_new_findings = self._look_for_findings(history, now=is_worse)
        if columns is None and not has_new_findings:
            return
        self._sequence += 1  # an interrupt from here on leaves a gap, and the page asks
        message = {"op": "append", "n": 0 if columns is None else len(columns.n), **self._status()}
        if has_new_findings or self._sequence % FINDINGS_EVERY == 0:
            message["findings"] = self._findings.marks
        widget.tell(message, [] if columns is None else columns.buffers())

    def _show_running(self, history: History) -> None:
        """The tree with what was measured until now, in which columns will be appended."""
        source = main_source(history)
        if self._news is None or self._news.source != source:
            self._news = News(source)
        if self._state != "running":
            self._progress.begin(history.tracks[source, "norm"])
            self._state, self._why = "running", ""
        self._look_for_findings(history, now=True)
        self._progress.count(history.last(source)[0])
        view = running_view(history, self._name, self._findings.found)
        self._sequence += 1
        self._news.skip(history)
        self._show(view)

    def _show(self, view: TreeView) -> None:
        is_another, self.view = len(view.table) != len(self.view.table), view
        if self._widget is not None:
            self._widget.follow(self._status(), renewed=True, is_another=is_another)

    def _show_whole(self, state: str, why: str = "") -> None:
        """All that is known, as `render` shows it."""
        inspector = self._inspector()
        view = self.view if inspector is None else inspector.render()
        self._sequence += 1
        self._state, self._why = state, why
        self._show(view)

    def _look_for_findings(self, history: History, *, now: bool = False) -> bool:
        """Whether there are others than were told."""
        recorder = self._recorder()
        return recorder is not None and self._findings.look(history, recorder.thresholds, recorder.forward, now=now)

    def _status(self) -> dict[str, Any]:
        """What the line above the tree says."""
        recorder = self._recorder()
        return {
            "sequence": self._sequence,
            "state": self._state,
            "why": self._why,
            "dropped": 0 if recorder is None else recorder.n_dropped,
            **self._progress.numbers(is_running=self._state == "running"),
        }

    # When nothing comes any more

    def _tick(self) -> float | None:
        """What is due now; in how many seconds to look again, or None: the thread may end."""
        quiet_s = self._progress.quiet_s
        with self._reading:
            recorder = self._recorder()
            if self._is_closed or recorder is None or self._progress.is_settled:
                return None
            if quiet_s < QUIET_S:
                return QUIET_S - quiet_s
            self._try_to("read the last steps", recorder.read_what_is_ready)
            if not self._throttle.is_due():
                return max(self._throttle.wait_s, 0.05)
            self._try_to("tell of the last steps", self._tell)
            wait_s = max(AT_REST_S - quiet_s, self._settle_again - self._clock())
            if wait_s > 0 or len(recorder):
                return max(wait_s, QUIET_S)
            self._try_to("show the whole run", lambda: self._settle("still"))
            return None if self._progress.is_settled else QUIET_S  # more may have come meanwhile

    def _after_cell(self, *_: object) -> None:
        """A cell has run: what it measured is shown, and kept with the notebook."""
        is_in_cell, self._in_cell = self._in_cell, False
        if not self._progress.is_settled and (is_in_cell or self._clock() >= self._settle_again):
            self.settle()

    def settle(self, state: str = "still", why: str = "") -> None:
        """Read all that was measured, and show the whole picture.

        Raises:
          StopTraining: As `flush` of the inspector may.
        """
        recorder = self._recorder()
        if recorder is None or self._is_closed:
            return
        with self._reading:
            try:
                self._try_to("read the last steps", recorder.flush)
            finally:
                self._try_to("show the whole run", lambda: self._settle(state, why))

    def _settle(self, state: str, why: str = "") -> None:
        widget, recorder = self._widget, self._recorder()
        if widget is None or recorder is None or recorder.history is None:
            return
        n_arrived, before = self._progress.n_arrived, self._cpu_clock()
        history = recorder.history
        steps = history.tracks[main_source(history), "norm"]
        newest = steps.latest()
        if newest is not None and self._progress.is_ahead(steps):
            if self._state != "running":
                self._progress.begin(steps)
            self._progress.count(newest[0])
        self._show_whole(state, why)
        widget.renew_page()
        self._progress.end(steps, n_arrived)
        self._n_bad = 0
        self._settle_again = self._clock() + (self._cpu_clock() - before) / SHARE

    def _try_to(self, what: str, do: Callable[[], None]) -> None:
        """A run is not stopped by its view."""
        try:
            do()
        except StopTraining:
            raise
        except Exception as error:
            _logger.warning("live: could not %s: %s: %s", what, type(error).__name__, error)

    # What the widget asks

    @property
    def _open_recorder(self) -> Recorder:
        recorder = self._recorder()
        if recorder is None:
            raise ReferenceError("live: the inspector is gone.")
        return recorder

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
        """What was measured last in these rows: by the names of the columns."""
        table = self.view.table
        return [{name: table[row][name] for name in table.columns} for row in rows]

    def paths(self, rows: Sequence[int]) -> list[tuple]:
        return [tuple(key_written(key.keystr) for key in self.view.table.path(row)) for row in rows]

    def answer(
        self, operation: str, numbers: Sequence[int], is_cancelled: Callable[[], bool]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """ "whole": all columns, since some did not reach the page; with a number: nothing, but Python is there."""
        if operation == "whole" and not numbers and not is_cancelled():
            with self._reading:
                recorder, widget = self._recorder(), self._widget
                if recorder is not None and recorder.history is not None and widget is not None:
                    if self._state == "running":
                        self._show_running(recorder.history)
                    else:
                        self._show(self.view)
        return {"sections": []}, []

    def detach(self) -> None:
        """Follow no longer. What is shown stays."""
        self._is_closed = True
        self._ticker.stop()
        recorder = self._recorder()
        if recorder is not None:
            recorder.listeners = tuple(each for each in recorder.listeners if each is not self)
        shell = shell_of_notebook()
        if shell is not None and self._after_cell in shell.events.callbacks["post_run_cell"]:
            shell.events.unregister("post_run_cell", self._after_cell)

    def close(self) -> None:
        """Follow no longer, and let go of the widget."""
        self.detach()
        self._widget = None
