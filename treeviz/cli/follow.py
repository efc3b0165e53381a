"""`treeviz grads RUN --follow`: a run while it is written, in a terminal, or its new findings as lines."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from treeviz.cli.output import SAME, is_terminal, one_line, print_error, print_text, run_at
from treeviz.cli.show import with_run_options
from treeviz.steps.recording.history_file import Followed

if TYPE_CHECKING:
    from treeviz.steps.findings.finding import Finding
    from treeviz.views.text.text import Drawn
    from treeviz.views.tree_view import TreeView

LEAST_S, SHARE = 0.25, 0.2  # between two pictures; of the time that is spent on them
_EXCLUDED = ("find", "sort", "top", "html", "json", "text", "svg", "png", "md", "mmd", "width", "open", "github")
_INCLUDED = "--tree, --total, --depth and --columns"
_NARROW = 100  # columns; half of what is beyond them goes to the sparklines
_QUIET_S = 10.0  # without a step, if steps came faster than this; else five times their usual distance


def run(options: argparse.Namespace) -> int:
    """Follow a run until the user ends it; piped, until step `--total`."""
    if options.other is not None or any(getattr(options, name) not in (None, False) for name in _EXCLUDED):
        raise ValueError(f"--follow shows one run as it is written; it goes with {_INCLUDED}")
    if is_terminal() and sys.stdin is not None and sys.stdin.isatty():
        from treeviz.integrations import not_installed

        try:
            from treeviz.integrations.textual import show
        except ImportError as error:
            raise not_installed(error, "follow") from error
        show(RunScreen(Followed(run_at(options.run_file)), options), least_s=LEAST_S, share=SHARE)
        return SAME
    for line in new_findings(Followed(run_at(options.run_file)), options.total):
        print_text(line)
        sys.stdout.flush()
    return SAME


def new_findings(
    followed: Followed,
    total: int | None = None,
    *,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """Each new finding in a line, until step `total`, or without an end. What is waited for goes to standard error."""
    from treeviz.steps.findings.find import Alarm
    from treeviz.steps.findings.finding import Thresholds

    found: list[Finding] = []
    alarm = Alarm(Thresholds(), on_finding=found.append)
    run = said = ""
    while True:
        began = clock()
        is_new, trouble = followed.update()
        if trouble and trouble != said:
            print_error(trouble)
        said, history = trouble, followed.history
        if is_new and history:
            if history.run != run:
                if run:
                    print_error(f"follows {one_line(followed.path)} now")
                run = history.run
                alarm.begin()
            alarm.was_read(history, set(), is_flush=True)
            for finding in found:
                yield one_line(f"{finding.severity}: {finding.sentence} {finding.advice}")
            found.clear()
            if total is not None and _newest(history) + 1 >= total:
                return
        sleep(max(LEAST_S, (clock() - began) * (1 / SHARE - 1)))


def _newest(history) -> int:
    from treeviz.steps.recording.history import main_source

    return history.last(main_source(history))[0]


class RunScreen:
    """What a terminal shows of a run: made anew with new steps; of a `query` the rows that match, and those above."""

    def __init__(
        self,
        followed: Followed,
        options: argparse.Namespace,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        from treeviz.inspector.panel import Progress

        self.query = self._wrong_query = ""  # why the query, as typed so far, is none
        self._followed, self._options, self._now, self._trouble = followed, options, now, ""
        self._findings: list[Finding] = []
        self._view: TreeView | None = None
        self._is_open = np.zeros(0, bool)
        self._new_progress: Callable[[], Progress] = lambda: Progress(options.total, clock=clock)
        self._run, self._progress = "", self._new_progress()

    def update(self) -> bool:
        """Read the file. Returns whether there are new steps."""
        from treeviz.inspector.views import whole_view
        from treeviz.steps.findings.find import findings
        from treeviz.steps.findings.finding import Thresholds
        from treeviz.views.text.rows import open_first

        is_new, self._trouble = self._followed.update()
        history = self._followed.history
        if not is_new or not history:
            return False
        self._count(history)
        self._findings = findings(history, thresholds=Thresholds())
        try:
            view = whole_view(history, history.tree, self._findings, source=self._options.tree)
            view = with_run_options(view, self._options)
        except ValueError as error:  # a tree or a column that is not there, or not yet
            self._trouble = one_line(error)
            return False
        before, self._view = self._view, view
        if before is None or not np.array_equal(before.table.end, view.table.end):
            self._is_open = open_first(view)
        return True

    def _count(self, history) -> None:
        from treeviz.steps.recording.history import main_source

        source = main_source(history)
        if history.run != self._run:
            self._run, self._progress = history.run, self._new_progress()
        self._progress.arrive()
        if self._progress.n_arrived == 1:
            self._progress.begin(history.tracks[source, history.statistics(source)[0]])
        self._progress.count(history.last(source)[0])

    def drawn(self, width: int) -> tuple[list[str], list[tuple[int, str]], list[str]]:
        """The lines above the rows, the lines of rows, with their numbers, and what did not fit into them."""
        from treeviz.views.text.rows import Truncated
        from treeviz.views.text.terminal import UNICODE
        from treeviz.views.text.text import drawn, in_brief

        if self._view is None:
            return [self._trouble or "waiting for the first step"], [], []
        rows, n_left_out = self._rows()
        sparkline = max(12, (width - _NARROW) // 2)
        made: Drawn = drawn(in_brief(self._view), Truncated(rows, n_left_out, {}), width, True, UNICODE, sparkline)
        return made.head, [*made.rows], [*made.foot()]

    def _rows(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows that are shown, and how many children of each are not."""
        assert self._view is not None
        table, matches, self._wrong_query = self._view.table, None, ""
        try:
            matches = self._view.find(self.query) if self.query else None
        except ValueError as error:
            self._wrong_query = one_line(error)
        if matches is not None:
            is_shown = np.zeros(len(table), bool)
            is_shown[[match.number for match in matches]] = is_shown[0] = True
            is_shown = table.roll(is_shown, "any")  # and what is above them
        else:
            closed = (~self._is_open & (table.end > np.arange(len(table)) + 1)).nonzero()[0]
            ends = np.zeros(len(table) + 1, int)
            np.add.at(ends, closed + 1, 1)
            np.subtract.at(ends, table.end[closed], 1)
            is_shown = ends[:-1].cumsum() == 0
        rows = is_shown.nonzero()[0]
        return rows, np.bincount(table.parent[1:][~is_shown[1:]], minlength=len(table))[rows]

    def turn(self, row: int, is_open: bool | None = None) -> int:
        """Open or close a node; None: the other of both. Returns the row to select: the first child of what is open
        already, the parent of what is closed, or of a leaf.
        """
        if self._view is None or self.query:
            return row
        table = self._view.table
        is_node = table.end[row] > row + 1
        if is_open is not None and (not is_node or self._is_open[row] == is_open):
            return min(row + 1, int(table.end[row]) - 1) if is_open else max(0, int(table.parent[row]))
        if is_node:
            self._is_open[row] = not self._is_open[row]
        return row

    def next_problem(self, row: int) -> int:
        """Open what is above the next row with a finding, and return that row; the same row if there is none."""
        from treeviz.views.text.rows import nan_rows, wrong_rows

        if self._view is None:
            return row
        wrong = sorted({*wrong_rows(self._view), *nan_rows(self._view)})
        row = next((at for at in wrong if at > row), wrong[0] if wrong else row)
        at = int(self._view.table.parent[row])
        while at >= 0:
            self._is_open[at] = True
            at = int(self._view.table.parent[at]) if at else -1
        return row

    def problems(self) -> list[str]:
        """The worst findings, as lines."""
        from treeviz.inspector.views import finding_lines

        return finding_lines(self._findings, (), color=True) or ["no findings"]

    def status(self) -> str:
        """How far the run is, how fast, and when it was last written; or what is wrong with the query."""
        if self._view is None or self._wrong_query:
            return self._wrong_query
        numbers = self._progress.numbers(is_running=True)
        step, done, rate, total = (numbers.get(name) for name in ("step", "done", "rate", "total"))
        parts = [] if step is None else [f"step {step:,}" + (f" of {total:,}" if total and step <= total else "")]
        if rate:
            parts.append(f"{rate:,.1f} steps/s" if rate >= 1 else f"{1 / rate:,.1f} s per step")
            if total and done is not None and done < total:
                parts.append(f"{_duration((total - done) / rate)} left")
        quiet = self._now() - self._followed.written
        if quiet > max(_QUIET_S, 5 / rate if rate else 0.0):
            parts.append(f"nothing was written for {_duration(quiet)}")
        return " · ".join([*parts, *([self._trouble] if self._trouble else [])])


def _duration(seconds: float) -> str:
    """ "48 s", "12 min", "3 h 20 min", "2 d 4 h"."""
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    if minutes < 100:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"
