"""Tell an experiment logger of the steps of a run, from a thread of its own."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

from treeviz.analysis.stats.summary import FIRST_EXPONENT
from treeviz.inspector.looked import Looked
from treeviz.inspector.new_steps import NewSteps, Step
from treeviz.integrations.loggers import logger_of
from treeviz.steps.findings.alarm import Alarm
from treeviz.steps.findings.finding import Finding, Thresholds
from treeviz.steps.recording.recorder import Recorder
from treeviz.steps.recording.ticker import Ticker
from treeviz.tree.forks import Lock
from treeviz.tree.safe_repr import error_text

SHARE = 0.05  # of the time, for deliveries that may leave out steps
LAST_S = 2.0  # for the last delivery, which may leave out steps, too
_logger = logging.getLogger("treeviz")


class RunLog:
    """Logs the steps of an inspector until it is closed, or the program ends; see `GradientInspector.log_to`.

    Attributes:
      n_logged: How many steps were logged.
      n_left_out: How many came faster than the logger takes them, or were refused by it.
    """

    def __init__(
        self,
        recorder: Recorder,
        target: Any,
        *,
        every: int | None,
        thresholds: Thresholds,
        looked: Looked | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if every is not None and every < 1:
            raise ValueError(f"log_to: every={every!r}: give a positive number of steps, or None.")
        self.n_logged = self.n_left_out = 0
        self._recorder, self._logger, self._new = recorder, logger_of(target), NewSteps()
        self._every, self._clock = every, clock
        self._history = recorder.history  # if a new run has begun, the end of this one is logged first
        self._found: list[Finding] = []
        self._alarm = Alarm(thresholds, on_finding=self._found.append)
        self._looked = looked
        if looked is not None:
            self._alarm.awaits = looked.explains
        self._cost_s: float | None = None  # of the newest step that was logged
        self._delivered, self._has_warned, self._is_closed = clock(), False, False
        self._process, self._delivering = os.getpid(), Lock()
        self._ticker = Ticker(
            self._tick, first_s=self._logger.every_s, lock=contextlib.nullcontext(), name="treeviz log"
        )
        self._ticker.start()
        atexit.register(_close_at_exit, weakref.ref(self))

    def close(self) -> None:
        """Read and log the steps that are left; waits for those that still run. Close it before its writer."""
        if os.getpid() != self._process or self._is_closed:
            return
        self._is_closed = True
        self._ticker.stop()
        with contextlib.suppress(Exception):  # a failed step, or StopTraining, has been reported
            self._recorder.flush()
            if self._looked is not None and self._looked.explain(self._recorder.history):
                self._recorder.flush()
        self._deliver(is_last=True)

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        left_out = f", {self.n_left_out:,} left out" if self.n_left_out else ""
        return f"RunLog({self.n_logged:,} steps logged{left_out})"

    def _tick(self) -> float:
        with contextlib.suppress(Exception):  # the loop's own reading reports it
            self._recorder.read_what_is_ready()
        began = self._clock()
        self._deliver(is_last=False)
        return max(self._logger.every_s, (self._clock() - began) / SHARE)

    def _deliver(self, *, is_last: bool) -> None:
        """Log what was read since the last time. The logger is called while the run reads on, so it may be slow."""
        with self._delivering:
            with self._recorder.reading:
                new_steps = [
                    self._new.of(history) for history in dict.fromkeys((self._history, self._recorder.history))
                ]
                if self._history is not self._recorder.history:
                    self._history = self._recorder.history
                    self._alarm.begin()
                if self._history:
                    self._alarm.was_read(self._history, set(), is_flush=is_last)
            try:
                for steps in new_steps:
                    self._log(steps, max(SHARE * (self._clock() - self._delivered), LAST_S if is_last else 0.0))
                while self._found:
                    finding = self._found.pop(0)
                    if finding.severity != "info":
                        self._logger.tell(finding)
                self._logger.flush()
            except Exception as error:  # whatever it is, the run goes on
                if not self._has_warned:
                    _logger.warning("log_to: %s; the run goes on without what it refused.", error_text(error))
                self._has_warned = True
            self._delivered = self._clock()

    def _log(self, steps: dict[int, Step], room_s: float) -> None:
        waiting = sorted(step for step in steps if self._every is None or step % self._every == 0)
        self.n_left_out += len(waiting)  # until they are logged
        if self._logger.takes_newest:
            waiting = waiting[-1:]
        if self._every is None and waiting:
            if self._cost_s is None:
                self._log_step(waiting.pop(0), steps)  # tells what one costs
            n = min(len(waiting), max(1, int(room_s / max(self._cost_s or 0.0, 1e-6))))
            waiting = [waiting[-1 - i * len(waiting) // n] for i in reversed(range(n))]
        for step in waiting:
            self._log_step(step, steps)

    def _log_step(self, step: int, steps: dict[int, Step]) -> None:
        began = self._clock()
        self._logger.log(step, steps[step].numbers, steps[step].histograms, FIRST_EXPONENT)
        self._cost_s = self._clock() - began
        self.n_left_out -= 1
        self.n_logged += 1


def _close_at_exit(reference: weakref.ref[RunLog]) -> None:
    log = reference()
    if log is not None:
        log.close()
