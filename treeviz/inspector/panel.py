"""Keep a widget up to date with a run: send it updates, and at the end the final view."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from treeviz.inspector.backend import Inspector, LiveBackend
from treeviz.inspector.messages import RunMessages
from treeviz.inspector.updates import SHARE, Throttle
from treeviz.inspector.views import waiting_view
from treeviz.steps.recording.history import main_source
from treeviz.steps.recording.recorder import Recorder
from treeviz.steps.recording.ticker import Ticker
from treeviz.steps.stop import StopTraining
from treeviz.tree.safe_repr import error_text
from treeviz.views.notebook import shell_of_notebook
from treeviz.views.tree_view import TreeView

if TYPE_CHECKING:
    from treeviz.views.widget.widget import TreeWidget

QUIET_S = 0.5  # without a new measurement, after which the remaining steps are read and sent
AT_REST_S = 5.0  # without a new measurement, after which the final view is made
_logger = logging.getLogger("treeviz")


class LivePanel:
    """Keeps a widget up to date with an inspector, from whichever thread reads the measurements.

    The page first shows one line. After the first step it is sent the tree, then buckets of new steps as they are read,
    and when no more come, or the notebook's cell has run, the final view, which is what a notebook saves.

    Args:
      total: How many steps the loop makes, if known.
      clock, cpu_clock: In seconds; the second one counts the CPU time of this thread.
    """

    def __init__(
        self,
        inspector: Inspector,
        recorder: Recorder,
        *,
        total: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        # Both may hold arrays, which a view must not keep alive.
        self._inspector, self._recorder = weakref.ref(inspector), weakref.ref(recorder)
        self._reading = recorder.reading
        self._clock, self._cpu_clock = clock, cpu_clock
        self._throttle = Throttle(clock=clock)
        self._messages = RunMessages(
            inspector.name,
            self._recorder,
            thresholds=inspector.thresholds,
            total=total,
            clock=clock,
            cpu_clock=cpu_clock,
            first_called=self._first_called,
        )
        self._calls = inspector._runs.calls()  # before the run
        self._progress = self._messages.progress
        self.backend = LiveBackend(self._inspector, self, waiting_view(inspector.name))
        self._widget: TreeWidget | None = None
        self._finish_again = 0.0  # the earliest time for the next final view
        self._in_cell = False
        self._shell_thread = threading.get_ident()
        self._ticker = Ticker(self._tick, first_s=QUIET_S, lock=self._reading, name="treeviz live")
        self._is_closed = False

    def begin(self) -> TreeWidget:
        """Make the widget, which follows the run from now on."""
        from treeviz.views.widget.widget import TreeWidget  # imported here, so that other scripts load no widgets

        recorder = self._recorder()
        if recorder is None:
            raise ReferenceError("live: the inspector is gone.")
        with self._reading:
            with contextlib.suppress(StopTraining):
                recorder.flush()  # what was measured before is not of this run
            if recorder.history:
                self._show_final("still")
                self._progress.end(recorder.history.tracks[main_source(recorder.history), "norm"])
            self._widget = TreeWidget(self.backend, self._messages.status())
            recorder.listeners = (*recorder.listeners, self)
        shell = shell_of_notebook()
        if shell is not None:
            shell.events.register("post_run_cell", self._after_cell)
        return self._widget

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
        """Send the page what is new. The caller holds the recorder's lock."""
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
        """Send the page everything again, since it missed a message."""
        with self._reading:
            recorder = self._recorder()
            if recorder is None or not recorder.history or self._widget is None:
                return
            is_running = self._messages.state == "running"
            self._show(self._messages.tree_so_far(recorder.history) if is_running else self.backend.view)

    def _show(self, view: TreeView) -> None:
        is_another, self.backend.view = len(view.table) != len(self.backend.view.table), view
        if self._widget is not None:
            self._widget.follow(self._messages.status(), renewed=True, is_another=is_another)

    # At the end of a run, or when it pauses

    def finish(self, state: str = "still", reason: str = "", *, is_over: bool = True) -> None:
        """Read all that was measured, and show the final view.

        Args:
          is_over: The next measurement begins another run, whose steps are counted from one.

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
        if newest is not None and self._progress.is_ahead(steps):
            if self._messages.state != "running":
                self._messages.begin(source, history)
            self._progress.count(newest[0] if inspector is None else inspector._runs.last_called(source, newest[0]))
        self._show_final(state, reason)
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
        """Show what `render` shows."""
        inspector = self._inspector()
        view = self.backend.view if inspector is None else inspector.render()
        self._messages.end(state, reason)
        self._show(view)

    def _tick(self) -> float | None:
        """Do what is due. Returns the seconds until the next call, or None: the thread may end."""
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
            return None if self._progress.is_finished else QUIET_S  # more may have arrived meanwhile

    def _after_cell(self, *_: object) -> None:
        """When a cell has run, show its measurements, so that they are saved with the notebook."""
        is_in_cell, self._in_cell = self._in_cell, False
        if is_in_cell or (not self._progress.is_finished and self._clock() >= self._finish_again):
            self.finish(is_over=is_in_cell)  # a thread may go on

    def _try_to(self, what: str, do: Callable[[], None]) -> None:
        """Call `do`; log its errors, since a view must not stop a run."""
        try:
            do()
        except StopTraining:
            raise
        except Exception as error:
            _logger.warning("live: could not %s: %s", what, error_text(error))

    def detach(self) -> None:
        """Stop following the run. The widget stays as it is."""
        self._is_closed = True
        self._ticker.stop()
        recorder = self._recorder()
        if recorder is not None:
            recorder.listeners = tuple(each for each in recorder.listeners if each is not self)
        shell = shell_of_notebook()
        if shell is not None and self._after_cell in shell.events.callbacks["post_run_cell"]:
            shell.events.unregister("post_run_cell", self._after_cell)

    def close(self) -> None:
        """Stop following the run, and release the widget."""
        self.detach()
        self._widget = None
