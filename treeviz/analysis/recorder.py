"""From the device to the history: measurements wait until they are computed, and are then read together."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection
from operator import attrgetter
from pathlib import Path
from typing import Protocol

import jax

from treeviz.analysis.findings import Finding, Thresholds, findings
from treeviz.analysis.gradients import Source
from treeviz.analysis.history import History
from treeviz.analysis.recorded import Arrived, Row, read

BATCH = 64  # measurements that are read together
AHEAD = 16  # newer ones, that a loop may have started and the device not finished
MOST_WAITING = 1024  # of which none is ready: the device is far behind, and the oldest are dropped
_LOOKING = 0.02  # of the time may be spent on looking for findings while the run goes on


class StopTraining(Exception):
    """What a recorder raises to end the run: it alone reaches the loop that calls the step."""


class Listener(Protocol):
    """Who follows a run. What it is asked and told costs the loop time, and nothing that it does may stop it."""

    def arrived(self) -> bool:
        """A measurement was taken in. Whether it wants to know what can be read without waiting."""
        ...

    def was_read(self) -> None:
        """The history has new numbers. No other thread reads meanwhile."""
        ...


class Recorder:
    """Takes measurements in without waiting for them, and keeps what they say.

    `take` may be called from several threads; one of them reads.

    Attributes:
      history: What was read; None before the first.
      n_dropped: How many measurements were lost, because they came faster than they could be read.
      forward: For the name of a source, the paths of its leaves in the order in which the step uses them.
      listeners: Who follows the run.

    Args:
      on_call: Called with the call of a step that was read, as `Row` has it, and whether it was bad: not all finite.
      on_finding: Called with each finding once.
      raise_on: Findings of these kinds end the run.
      at_once: Read each measurement as soon as it is there, not in batches.
    """

    def __init__(
        self,
        max_bytes: int,
        thresholds: Thresholds,
        *,
        members: str = "joined",
        on_call: Callable[[tuple[str, int], bool], None] | None = None,
        on_finding: Callable[[Finding], None] | None = None,
        raise_on: Collection[str] = (),
        at_once: bool = False,
    ) -> None:
        self.history: History | None = None
        self.n_dropped = 0
        self.forward: dict[str, tuple[str, ...]] = {}
        self.thresholds = thresholds
        self._max_bytes = max_bytes
        self._members = members
        self._on_call, self._on_finding = on_call, on_finding
        self._raise_on = frozenset(raise_on)
        self._batch, self._ahead = (1, 0) if at_once else (BATCH, AHEAD)
        self._waiting: deque[Arrived] = deque()
        self._reading = threading.RLock()
        self.listeners: tuple[Listener, ...] = ()
        self._copies_early: bool | None = None
        self._told: set[tuple] = set()
        self._bad: set[str] = set()
        self._look_again = 0.0
        self._tells_later = False
        self._journal: Path | None = None
        _alive.add(self)

    def __len__(self) -> int:
        """How many measurements are not read yet."""
        return len(self._waiting)

    def take(self, arrived: Arrived) -> None:
        """Take a measurement in; reads earlier ones if they are there."""
        if self._copies_early is None:  # where arrays are in the host's memory there is nothing to copy
            self._copies_early = jax.default_backend() != "cpu"
        if self._copies_early:
            for words in arrived.measurement.words.values():
                if isinstance(words, jax.Array):
                    words.copy_to_host_async()
        waiting = self._waiting
        waiting.append(arrived)
        is_wanted = False
        for listener in self.listeners:
            is_wanted |= listener.arrived()
        if (is_wanted or len(waiting) >= self._batch + self._ahead) and self._reading.acquire(blocking=False):
            try:
                self._read_what_is_there(1 if is_wanted else self._batch)
            finally:
                self._reading.release()

    @property
    def reading(self) -> contextlib.AbstractContextManager:
        """Held while something is read."""
        return self._reading

    def read_what_is_ready(self) -> None:
        """Read what can be read without waiting for the device. Whoever reads next tells of findings, and may stop."""
        with self._reading:
            self._tells_later = True
            try:
                self._read_what_is_there(1)
            finally:
                self._tells_later = False

    def _read_what_is_there(self, batch: int) -> None:
        waiting = self._waiting
        if len(waiting) < batch:
            return
        if waiting[batch - 1].is_ready():
            ready = list(itertools.takewhile(Arrived.is_ready, itertools.islice(waiting, batch - 1, None)))
            self._read(batch - 1 + len(ready), patiently=True)
        elif len(waiting) >= MOST_WAITING:
            waiting.popleft()
            self.n_dropped += 1

    def flush(self) -> None:
        """Read everything that has been measured; waits for the steps that still run."""
        with self._reading:
            self._read(len(self._waiting))

    def _read(self, n: int, patiently: bool = False) -> None:
        arrived = list(itertools.islice(self._waiting, n))
        try:
            rows, n_failed = list(read(arrived, members=self._members)), 0
        except RuntimeError:  # a step failed, or its words are deleted: those of the others are good
            rows, n_failed = self._read_one_by_one(arrived)
        for _ in arrived:  # only now, so that an interrupted reading loses nothing
            self._waiting.popleft()
        self.n_dropped += n_failed
        if self._members == "joined" and arrived:
            self._learn_forward(arrived[-1])
        for row in rows:
            self._history_of(row.sources).append(row.step, row.numbers)
        if rows:
            for listener in self.listeners:
                listener.was_read()
        if self._on_call is not None:
            for call, of_call in itertools.groupby(rows, attrgetter("call")):
                self._on_call(call, any(row.bad_sources for row in of_call))
        if rows and self._tells_later:
            self._look_again = 0.0
        elif rows and (self._raise_on or self._on_finding):
            bad = set().union(*(row.bad_sources for row in rows))
            self._tell(patiently and bad <= self._bad)
            self._bad |= bad

    def _read_one_by_one(self, arrived: list[Arrived]) -> tuple[list[Row], int]:
        rows, n_failed = [], 0
        for each in arrived:
            try:
                rows += read([each], members=self._members)
            except RuntimeError:
                n_failed += 1
        return rows, n_failed

    def _history_of(self, sources: list[Source]) -> History:
        if self.history is None:
            # half of the memory is for sources that are seen later: another step, another tap
            self.history = History(sources, self._max_bytes // 2)
            if self._journal is not None:
                self.history.keep(self._journal)
        new = [source for source in sources if source.name not in self.history.sources]
        room = self._max_bytes - self.history.max_bytes
        for source in new:  # the same for each, so that their ratios are known as long as they are
            self.history.add_source(source, room // 2 // len(new))
        return self.history

    def _learn_forward(self, row_of: Arrived) -> None:
        for name, watched in row_of.watches.items():
            if watched.forward:
                self.forward[name + row_of.suffix] = watched.forward

    def _tell(self, patiently: bool) -> None:
        """Tell of new findings. `patiently`: not if it would take more than its part of the time."""
        if patiently and time.monotonic() < self._look_again:
            return
        assert self.history is not None
        before = time.monotonic()
        kinds = None if self._on_finding else sorted(self._raise_on)
        found = findings(self.history, thresholds=self.thresholds, kinds=kinds, forward=self.forward)
        now = time.monotonic()
        self._look_again = now + (now - before) / _LOOKING
        for finding in found:
            what = (finding.kind, finding.source, finding.path, finding.first)
            if what in self._told:
                continue
            self._told.add(what)
            if self._on_finding is not None:
                self._on_finding(finding)
            if finding.kind in self._raise_on:
                raise StopTraining(str(finding))

    def keep(self, path: Path) -> None:
        """Write to a file whatever is read from now on."""
        self._journal = path
        if self.history is not None:
            self.history.keep(path)
        import atexit

        atexit.register(_flush_at_exit, weakref.ref(self))  # while JAX can still be asked for the last steps

    def after_fork(self) -> None:
        """In a child, which has no device: what was read is there, what was not belongs to the parent."""
        self._reading = threading.RLock()
        self._waiting = deque()
        self.listeners = ()


def _flush_at_exit(reference: weakref.ref) -> None:
    recorder = reference()
    if recorder is not None:
        with contextlib.suppress(Exception):  # a step that failed has been heard of
            recorder.flush()


_alive: weakref.WeakSet[Recorder] = weakref.WeakSet()


def _after_fork() -> None:
    for recorder in list(_alive):
        recorder.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
