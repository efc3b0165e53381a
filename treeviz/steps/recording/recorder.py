"""From the device to the history: measurements wait until they are computed, and are read in batches."""

from __future__ import annotations

import atexit
import contextlib
import os
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from treeviz.steps.recording.batch import Batch
from treeviz.steps.recording.decode import Arrived, ReadSteps, read
from treeviz.steps.recording.history import History
from treeviz.steps.recording.journal import keep
from treeviz.steps.recording.listeners import Alarm, Listener
from treeviz.steps.recording.pace import AHEAD, BATCH, Pace
from treeviz.steps.recording.sections import Sections
from treeviz.steps.recording.ticker import Ticker
from treeviz.steps.recording.unchanged import Unchanged
from treeviz.steps.recording.waiting_scalars import WaitingScalars
from treeviz.tree.forks import Lock, computed_once
from treeviz.tree.safe_repr import printable

MOST_WAITING = 1024  # if none of these is ready, the oldest is dropped
MOST_LATE = 16  # unread measurements that a loop with an alarm may have
KEPT_WITHIN_S = 1.0  # after which a measurement that is ready is read, so that it is in the file


class Recorder:
    """Takes measurements in without waiting for them, reads them later in batches, and keeps a history.

    `take` may be called from several threads; one of them reads.

    Attributes:
      history: What was read; without sources and steps before the first.
      n_dropped: The number of lost measurements: their step failed, or they came faster than they could be read.
      listeners: Those that follow the run.

    Args:
      max_bytes: The memory of the history.
      members: As `treeviz.steps.recording.decode.read` takes it.
      on_call: Called for each call that was read: with its suffix and number, the numbers of its steps, and of those
        with a NaN or Inf.
      alarm: Called last after each reading, since it may raise.
      at_once: Of measurements that may wait where each is read as soon as it is ready: see `Pace`; 0: read batches.
      most_late: `take` waits for the device while more measurements than these are unread; None: it never waits.
    """

    def __init__(
        self,
        max_bytes: int,
        *,
        members: str = "joined",
        on_call: Callable[[tuple[str, int], list[int], list[int]], None] | None = None,
        alarm: Alarm | None = None,
        at_once: int = 0,
        most_late: int | None = None,
    ) -> None:
        self._max_bytes, self._members = max_bytes, members
        self._on_call, self._alarm = on_call, alarm
        self._pace = Pace(at_once)
        self._most_late = most_late
        self._reading = Lock()
        self.listeners: tuple[Listener, ...] = ()
        self._may_raise = True
        self._path: Path | None = None  # that `keep` was given
        self._begin()
        self._ticker: Ticker | None = None
        _alive.add(self)

    def _begin(self) -> None:
        self.history = History([], 0)
        self.n_dropped = 0
        self._waiting: deque[Arrived] = deque()
        self._newest: Arrived | None = None  # that was taken in
        self._scalars = WaitingScalars()
        self._sections = Sections()
        self._unchanged = Unchanged()
        self._has_untold = False  # numbers that the alarm has not searched
        self._unfinished: Batch | None = None
        if self._alarm is not None:
            self._alarm.begin()

    def begin(self, name: str = "") -> History:
        """Begin a run, in a new file of `keep`, and forget what is not read yet. Returns the history before."""
        with self._reading:
            before = self.history
            self._begin()
            self.history.name = name
            journal, before.journal = before.journal, None
            if journal is not None:
                journal.catch_up(before, now=True)
                journal.close()
                try:
                    keep(self.history, self._path or journal.path)
                except OSError as error:
                    warnings.warn(f"keep: the new run is not written to a file: {error}", RuntimeWarning, stacklevel=4)
        return before

    def __len__(self) -> int:
        """How many measurements are not read yet."""
        return len(self._waiting)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was measured yet."""
        return not self.history and not self._waiting

    def take(self, arrived: Arrived) -> None:
        """Take a measurement in; read earlier ones if they are ready."""
        self.put(arrived)
        self._newest, waiting = arrived, self._waiting
        is_wanted = self.listeners and True in [listener.arrived() for listener in self.listeners]
        if (self._pace.is_due(len(waiting)) or is_wanted) and self._reading.acquire(blocking=False):
            try:
                self._read_what_is_there(1 if is_wanted else self._pace.batch)
                if self._most_late is not None and len(waiting) > self._most_late and not arrived.is_ready():
                    # A callback, whose numbers are ready, must not wait here: the device may be waiting for it.
                    self._read(len(waiting) - self._most_late, is_flush=False)
            finally:
                self._pace.has_read()
                self._reading.release()

    def put(self, arrived: Arrived) -> None:
        """Take a measurement in that is no newer than those before; it is read with later ones, or at a flush."""
        if self._copies_early:
            with jax.transfer_guard_device_to_host("allow"):
                for array in jax.tree.leaves(arrived.measurement):
                    if isinstance(array, jax.Array):
                        array.copy_to_host_async()
        self._waiting.append(arrived)

    def take_scalars(self, step: int, values: Mapping[str, Any], batch: Any, *, is_call: bool) -> None:
        """Take scalars in, without waiting for them. They are read together with measurements, or when many wait.

        Args:
          step: The number of the step, or with `is_call` that of the call.

        Raises:
          TypeError, ValueError: They are no scalars.
        """
        of = self._newest if is_call else None
        self._scalars.take(step, of, values, batch, copies_early=self._copies_early)
        if len(self._scalars) >= BATCH + AHEAD and not self._waiting and self._reading.acquire(blocking=False):
            try:
                self._tell([], is_flush=False)
            finally:
                self._reading.release()

    @computed_once
    def _copies_early(self) -> bool:
        return jax.default_backend() != "cpu"  # on CPU, arrays are in host memory already

    @property
    def reading(self) -> contextlib.AbstractContextManager:
        """A lock that is held while measurements are read."""
        return self._reading

    def read_what_is_ready(self, *, tells: bool = False) -> None:
        """Read what can be read without waiting for the device; unless `tells`, findings are told at the next read."""
        with self._reading:
            try:
                self._may_raise = tells
                self._read_what_is_there(1)
                self._tell([], is_flush=False)
            finally:
                self._may_raise = True

    def _read_what_is_there(self, batch: int) -> None:
        self._finish()
        if len(waiting := self._waiting) < batch:
            return
        if waiting[batch - 1].is_ready():
            n_waiting = len(waiting)  # not an iterator: other threads append meanwhile
            n_ready = next((n for n in range(batch, n_waiting) if not waiting[n].is_ready()), n_waiting)
            self._read(n_ready, is_flush=False)
        elif len(waiting) >= MOST_WAITING:
            self._unfinished = Batch([waiting[0]], [], len(self.history), self.n_dropped + 1)
            self._finish()

    def flush(self) -> None:
        """Read everything that has been measured; waits for the steps that still run."""
        with self._reading:
            self._finish()
            for _ in range(2):  # the alarm may have asked for more
                self._read(len(self._waiting))
            if self.history.journal is not None:
                self.history.journal.catch_up(self.history)

    def _read(self, n: int, is_flush: bool = True) -> None:
        arrived = [self._waiting[k] for k in range(n)]
        if arrived:
            self._pace.has_seen(arrived[-1].n_bytes, kept=self.history.journal is not None)
        try:
            steps, n_failed = list(read(arrived, members=self._members)), 0
        except RuntimeError:  # a step failed, or its arrays are deleted; the others are good
            steps, n_failed = self._read_one_by_one(arrived)
        self._unchanged.tell(arrived, steps)
        self._unfinished = Batch(arrived, steps, len(self.history), self.n_dropped + n_failed)
        self._finish(is_flush)

    def _finish(self, is_flush: bool = False) -> None:
        """Put a batch into the history, or what an interrupt has left of one: nothing here is done twice."""
        batch = self._unfinished
        if batch is None:
            return
        for each in batch.arrived:
            if self._waiting and self._waiting[0] is each:
                self._waiting.popleft()
        self.n_dropped = max(self.n_dropped, batch.n_dropped)
        failed = [*batch.put_into(self.history, self._sections, self._max_bytes)]
        self.n_dropped += sum(n for n, _ in failed)
        if self._members == "joined" and batch.arrived:
            self._learn_forward(batch.arrived[-1])
        if self._on_call is not None:
            for call, steps, bad in batch.calls:
                self._on_call(call, steps, bad)
        self._unfinished = None
        for _, error in failed[-1:]:
            warnings.warn(f"inspector: a step was not recorded: {error}", RuntimeWarning, stacklevel=2)
        self._tell(batch.read, is_flush)

    def _tell(self, read: list[ReadSteps], is_flush: bool) -> None:
        """Read scalars, and tell the listeners and the alarm of them and of new steps; the alarm may raise."""
        self._has_untold |= self._scalars.read_into(self.history, wait=is_flush)
        if read:
            for listener in self.listeners:
                listener.was_read()
        if self._alarm is None or not (read or self._has_untold):
            return
        self._has_untold = not self._may_raise
        if self._has_untold:
            return self._alarm.postpone()
        bad = self._scalars.bad.union(*(steps.bad_sources for steps in read))
        self._has_untold = not self._alarm.was_read(self.history, bad, is_flush=is_flush)

    def _read_one_by_one(self, arrived: list[Arrived]) -> tuple[list[ReadSteps], int]:
        steps, n_failed = [], 0
        for each in arrived:
            try:
                steps += read([each], members=self._members)
            except RuntimeError:
                n_failed += 1
        return steps, n_failed

    def _learn_forward(self, row_of: Arrived) -> None:
        for name, watched in row_of.watches.items():
            if watched.forward:
                name = printable(name + row_of.suffix)
                self.history.forward[name + self._sections.of(name, self.history)] = watched.forward

    def keep(self, path: Path) -> Path:
        """Write each further step to a file, at most a second after its numbers are ready. Returns the file's path.

        Raises:
          OSError: The file cannot be written.
        """
        with self._reading:
            self._path, path = path, keep(self.history, path)
        if self._ticker is None:
            self._ticker = Ticker(self._tick, first_s=KEPT_WITHIN_S, lock=self._reading, name="treeviz keep")
            self._ticker.start()
            atexit.register(_close_at_exit, weakref.ref(self))  # while JAX can still return the last steps
        return path

    def _tick(self) -> float:
        with contextlib.suppress(Exception):  # the loop's own reading reports it
            self.read_what_is_ready()
        if self.history.journal is not None:
            self.history.journal.catch_up(self.history)
        return KEPT_WITHIN_S

    def close(self) -> None:
        """Read all, and write it to the file of `keep` now or never."""
        with self._reading:
            if self._ticker is not None:
                self._ticker.stop()
            with contextlib.suppress(Exception):  # a failed step has been reported
                self.flush()
            if self.history.journal is not None:
                self.history.journal.catch_up(self.history, now=True)

    @property
    def lost(self) -> list[str]:
        """How many measurements were lost, and how many steps the file of `keep` lacks, and why; for a headline."""
        lost = [f"{self.n_dropped:,} step{'s' * (self.n_dropped != 1)} not shown"] if self.n_dropped else []
        n = self._scalars.n_dropped
        lost += [f"scalars of {n:,} step{'s' * (n != 1)} not shown"] if n else []
        if self.history.journal is not None:
            n, why = self.history.journal.lacks(self.history)
            what = "record" if self.history.scalars else "step"
            lost += [f"{n:,} {what}{'s' * (n != 1)} not in {self.history.journal.path.name}: {why}"] if n else []
        return lost

    def after_fork(self) -> None:
        """Keep the history in a forked child, which has no device. Unread measurements belong to the parent."""
        self._waiting, self._scalars = deque(), WaitingScalars()
        self._unfinished = self._ticker = None
        self.listeners = ()


def _close_at_exit(reference: weakref.ref) -> None:
    recorder = reference()
    if recorder is not None:
        recorder.close()


_alive: weakref.WeakSet[Recorder] = weakref.WeakSet()


def _after_fork() -> None:
    for recorder in list(_alive):
        recorder.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
