"""The messages to a page that follows a run, and the state that each of them carries."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from treeviz.inspector.progress import Progress
from treeviz.inspector.updates import CurveUpdates, FindingUpdates, NormUpdates
from treeviz.inspector.views import newest_scalars, running_view
from treeviz.steps.findings.finding import Thresholds
from treeviz.steps.recording.history import History, main_source
from treeviz.steps.recording.recorder import Recorder
from treeviz.views.tree_view import TreeView

# messages; so often the findings are repeated, for a page that missed them while the kernel was busy
FINDINGS_EVERY = 16


class RunMessages:
    """Makes the messages to a page during a run: first the tree, then new buckets and findings.

    Attributes:
      progress: How far the run is.
      state: "waiting" before the first step, "running", and after the run "still", "done" or "stopped".

    Args:
      name: The name of the tree.
      recorder: Referred to weakly, since it holds arrays, which a view must not keep alive.
      thresholds: The limits beyond which numbers become findings.
      total: How many steps the loop makes, if known.
      clock, cpu_clock: In seconds; the second one counts the CPU time of this thread.
      first_called: The number of the first call in this run, by the source and the number of the first inspected one.
    """

    def __init__(
        self,
        name: str,
        recorder: weakref.ref[Recorder],
        *,
        thresholds: Thresholds,
        total: int | None,
        clock: Callable[[], float],
        cpu_clock: Callable[[], float],
        first_called: Callable[[str, int], int],
    ) -> None:
        self._first_called = first_called
        self.progress = Progress(total, clock=clock)
        self.state = "waiting"
        self._name, self._recorder, self._thresholds = name, recorder, thresholds
        self._reason = ""  # why the run stopped
        self._findings = FindingUpdates(name, clock=clock, cpu_clock=cpu_clock)
        self._curves = CurveUpdates(clock=clock, cpu_clock=cpu_clock)
        self._norms: NormUpdates | None = None
        self._sequence = 0
        self._n_bad_leaves = 0

    def status(self) -> dict[str, Any]:
        """The fields that every message has: what the line above the tree shows."""
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
        """Whether the page has the tree of this run already, and that has not changed."""
        norms = self._norms
        return self.state == "running" and norms is not None and norms.is_of(history, main_source(history))

    def tree_so_far(self, history: History) -> TreeView:
        """The tree with all steps until now. The next `append` begins after them."""
        source = main_source(history)
        if self._norms is None or not self._norms.is_of(history, source):
            self._norms = NormUpdates(history, source)
        if self.state != "running":
            self.begin(source, history)
            self.state, self._reason = "running", ""
        self._poll_findings(history, now=True)
        self.progress.count(history.last(source)[0])
        view = running_view(history, self._name, self._findings.found)
        self._sequence += 1
        self._norms.skip(history)
        self._curves.skip(history)
        return view

    def begin(self, source: str, history: History) -> None:
        """Record that the first steps of the run were read."""
        self.progress.begin(history.tracks[source, "norm"], lambda first: self._first_called(source, first))

    def append(self, history: History) -> tuple[dict[str, Any], list[bytes]] | None:
        """The message with what is new since the last one, and its buffers. None: nothing is new."""
        assert self._norms is not None
        buckets = self._norms.take(history)
        is_worse = False
        if buckets is not None:
            self.progress.count(int(buckets.until.max()))
            n_bad = int(buckets.bad.any(axis=0).sum())
            is_worse, self._n_bad_leaves = n_bad > self._n_bad_leaves, max(n_bad, self._n_bad_leaves)
        has_new_findings = self._poll_findings(history, now=is_worse)
        curves = self._curves.take(history, self._findings.found)
        if buckets is None and curves is None and not has_new_findings:
            return None
        # An interrupt between here and the sending leaves a gap in the sequence, and the page asks for all buckets.
        self._sequence += 1
        message = {"op": "append", "n": 0 if buckets is None else len(buckets.n), **self.status()}
        if has_new_findings or self._sequence % FINDINGS_EVERY == 0:
            message["findings"] = self._findings.marks
        if curves is not None:
            message["curves"] = curves
        return message, [] if buckets is None else buckets.buffers()

    def end(self, state: str, reason: str = "") -> None:
        """Record that the run is complete or paused: the final view is sent next."""
        self._sequence += 1
        self.state, self._reason = state, reason
        self._n_bad_leaves = 0

    def _poll_findings(self, history: History, *, now: bool = False) -> bool:
        """Whether the findings differ from those that were sent."""
        recorder = self._recorder()
        return recorder is not None and self._findings.poll(history, self._thresholds, now=now)
