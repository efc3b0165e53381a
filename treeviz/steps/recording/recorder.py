"""The recorder: measurements and scalars wait until they are computed, and are read in batches into a history."""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import os
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax.core import Tracer

from treeviz.steps.recording.decode import Arrived, ReadSteps, counts_of, is_ready, n_inner_steps, read
from treeviz.steps.recording.history import MOST_IDS, MOST_NAMES, History, ScalarRow, Sections
from treeviz.steps.recording.history import Batch as BatchOfStep
from treeviz.steps.recording.history_file import keep
from treeviz.steps.statistics import StopTraining, kind_of, name_of_result, result_kind
from treeviz.tree.runtime import Lock, Ticker, computed_once
from treeviz.tree.text import class_name, printable

# When waiting measurements are read: in large batches, or soon if something needs their numbers

BATCH = 64  # measurements that are read together at first
LARGE_BATCH, LARGE_BYTES = 512, 1 << 22  # later, if they fit: a read has a fixed cost, that of some 100 measurements
AHEAD = 16  # newer measurements, which may still be computing
SOON = 8  # waiting measurements if numbers are needed soon
_EACH, _SHARE = 64, 0.02  # the number of reads without a time limit; then their share of the time


class Pace:
    """Decides when to read waiting measurements, by their number and by the cost of earlier reads.

    With `at_once`, when each is ready; in a long run as often as 2 % of the time allows, or when so many wait.
    """

    def __init__(self, at_once: int) -> None:
        # The least number of measurements that are read together, and the most that wait.
        self.batch, self._most = (1, at_once) if at_once else (BATCH, BATCH + AHEAD)
        self._n_reads, self._began, self._again = 0, 0.0, 0.0

    def is_due(self, n_waiting: int) -> bool:
        if self.batch > 1:
            return n_waiting >= self._most
        self._began = time.monotonic()
        return n_waiting >= self._most or self._began >= self._again

    def adapt_batch(self, n_bytes: int, *, kept: bool) -> None:
        """Use larger batches if measurements are small and not kept in a file, where a crash would lose a batch."""
        if self.batch > 1:
            self.batch = BATCH if kept else max(min(LARGE_BYTES // max(n_bytes, 1), LARGE_BATCH), BATCH)
            self._most = self.batch + AHEAD

    def has_read(self) -> None:
        """Set the time of the next read by the duration since `is_due`."""
        self._n_reads += 1
        if self._n_reads > _EACH:
            ended = time.monotonic()
            self._again = ended + (ended - self._began) / _SHARE


# Parameters that no update has changed, if each inspected step compares their new values

FIRST_REPORT = 32  # in inspected steps; the next report is after twice as many


class Unchanged:
    """Finds parameters that never changed; reports them as a tree of zeros at steps 32, 64, …, and if one changes."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, np.ndarray]] = {}  # by suffix: the number of steps, and which never changed
        self._done: set[str] = set()  # suffixes of steps whose parameters have all changed

    def report(self, arrived: Sequence[Arrived], read: list[ReadSteps]) -> None:
        """Update from measurements, and add reports to the steps that were read from them."""
        followed = [measured for measured in arrived if measured.suffix not in self._done]
        were_read = {(steps.suffix, step) for steps in read if followed for step in steps.steps}
        for measured in followed:
            if measured.suffix in self._done or (measured.suffix, measured.step) not in were_read:
                continue
            n_before, before = self._known.get(measured.suffix, (0, None))
            end, counts = 0, None
            for tree in measured.measurement.results:
                first, end = end, end + len(tree.paths)
                if result_kind(tree.name) != "parameter":
                    continue
                counts = counts_of(measured.measurement) if counts is None else counts
                unchanged = counts[first:end] >> 31 == 0
                if before is not None and len(before) == len(unchanged):
                    unchanged &= before
                self._known[measured.suffix] = n_before + 1, unchanged
                self._done |= set() if unchanged.any() else {measured.suffix}
                is_due = n_before + 1 >= FIRST_REPORT and n_before & (n_before + 1) == 0 and unchanged.any()
                has_changed = before is not None and not np.array_equal(unchanged, before)
                if is_due or (n_before >= FIRST_REPORT and has_changed):
                    name = printable(name_of_result("unchanged") + measured.suffix)
                    zeros = {name: {"zeros": np.where(unchanged, tree.sizes, 0)[None]}}
                    read.append(ReadSteps([measured.step], [-1], measured.suffix, [tree._replace(name=name)], zeros))


# The user's scalars: checked at once, read when they are computed

MOST_WAITING_SCALARS = 4096  # if more wait, the oldest are dropped


class ArrivedScalars(NamedTuple):
    """Scalars that the user recorded, which may still be computing."""

    step: int  # the number of the step
    call: Arrived | None  # the measurement of this call, whose inner steps an array may be of; or None
    values: Mapping[str, Any]
    batch: Any

    @property
    def arrays(self) -> list[Any]:
        return [*self.values.values(), self.batch]

    def is_ready(self) -> bool:
        return all(is_ready(array) for array in self.arrays if isinstance(array, jax.Array) and not array.is_deleted())

    def row(self) -> ScalarRow:
        """The values as a row of a history. Waits for the device."""
        values = {name: np.asarray(value, np.float64).reshape(-1) for name, value in self.values.items()}
        values = {name: array for name, array in values.items() if len(array)}
        weight, batch = next((float(array[-1]) for array in values.values()), 0.0), None  # the first is the loss
        weight = weight if math.isfinite(weight) else math.inf
        if isinstance(self.batch, str):
            batch = BatchOfStep(self.batch, 0, weight)
        elif self.batch is not None:
            ids = np.asarray(self.batch).reshape(-1)
            batch = BatchOfStep(ids[:MOST_IDS].astype(np.int64), len(ids), weight)
        return ScalarRow(self.step, values, batch, 1 if self.call is None else n_inner_steps(self.call))


def _checked(name: str, value: Any) -> Any:
    """Check a scalar. Returns a device array unchanged, anything else as a copy, float64[n]."""
    prefix = f"record_scalars: {name} is"
    if isinstance(value, Tracer):
        raise TypeError(f"{prefix} traced. Call record_scalars outside the jitted step, with what the step returns.")
    shape = getattr(value, "shape", ())
    if len(shape) > 1:
        raise ValueError(
            f"{prefix} an array of {shape}. Give a number, as its mean, or the values of the last n steps."
        )
    array = value if isinstance(value, jax.Array) else np.array(value)
    if not _is_real(array.dtype):
        raise TypeError(f"{prefix} a {class_name(type(value))} of {array.dtype}, not a real number.")
    return array if array is value else array.astype(np.float64).reshape(-1)


@functools.cache
def _is_real(dtype: Any) -> bool:
    return any(jax.numpy.issubdtype(dtype, kind) for kind in (np.floating, np.integer, np.bool_))


def _checked_batch(batch: Any) -> Any:
    """Check a batch as `_checked` does a scalar; a text stays one."""
    if isinstance(batch, Tracer):
        raise TypeError("record_scalars: batch is traced. Call record_scalars outside the jitted step.")
    if isinstance(batch, str):
        return printable(batch[:MOST_IDS])
    if isinstance(batch, list | tuple) and any(isinstance(element, str) for element in batch[:1]):
        return printable(", ".join(map(str, batch[:MOST_IDS]))[:MOST_IDS])
    ids = batch if isinstance(batch, jax.Array) else np.array(batch)
    if not jax.numpy.issubdtype(ids.dtype, np.integer):
        raise TypeError(f"record_scalars: batch is {ids.dtype}. Give the ids of its examples, as int32[n], or a text.")
    return ids


# Listeners to new numbers


class Listener(Protocol):
    """Follows a run, e.g. for a widget. Its methods run in the threads that record and read."""

    def arrived(self) -> bool:
        """A measurement has arrived. Returns whether to read now what is ready."""
        ...

    def was_read(self) -> None:
        """The history has new numbers. Called under the lock of the reader."""
        ...


# Adding measurements to the history


class Batch(NamedTuple):
    """Measurements that were read together. After an interrupt, the next read continues with the rest of them."""

    arrived: list[Arrived]  # the measurements, the oldest of the waiting ones
    read: list[ReadSteps]  # their numbers
    n_before: int  # the number of steps in the history before them
    n_dropped: int  # the number of lost measurements, including those of this batch

    def put_into(self, history: History, sections: Sections, max_bytes: int) -> Iterator[tuple[int, ValueError]]:
        """Add the missing steps, and update the names in `read`. Yields the number of failed steps and the reason."""
        history.finish()
        n_done = len(history) - self.n_before
        for i, steps in enumerate(self.read):
            n = len(steps.steps)
            if n_done < n:
                try:
                    placed = sections.place(steps, history)
                    history.add_sources(placed.sources, max_bytes)
                    remaining = placed.part(n_done) if n_done else placed
                    history.extend(remaining.steps, remaining.numbers, remaining.inner)
                    self.read[i] = placed
                except ValueError as error:
                    self.read[i] = steps.part(0, n_done)
                    yield n - n_done, error
            n_done = max(n_done - n, 0)

    @property
    def calls(self) -> Iterator[tuple[tuple[str, int], bool]]:
        """Yield each call's (suffix, number), and whether it has non-finite values."""
        bad = {(steps.suffix, step) for steps in self.read for step in steps.bad_steps}
        for call in dict.fromkeys((steps.suffix, step) for steps in self.read for step in steps.steps):
            yield call, call in bad


MOST_WAITING = 1024  # if none of them is ready, the oldest is dropped
MOST_LATE = 16  # unread measurements in a loop with an alarm
KEPT_WITHIN_S = 1.0  # from ready to read, so that a measurement is soon in the file


class Recorder:
    """Enqueues measurements without waiting for them, reads them later in batches, and keeps a history.

    Several threads may call `take`; one of them reads.

    Args:
      on_call: Called for each call that was read, with its (suffix, number), and whether it has non-finite values.
      alarm: A `treeviz.steps.findings.find.Alarm`, or None. Called last after each read, since it may raise.
      at_once: The most waiting measurements if each is read as soon as it is ready, see `Pace`; 0: read in batches.
      most_late: `take` waits for the device while more measurements than this are unread; None: it never waits.
    """

    def __init__(
        self,
        max_bytes: int,
        *,
        members: str = "joined",
        on_call: Callable[[tuple[str, int], bool], None] | None = None,
        alarm: Any = None,
        at_once: int = 0,
        most_late: int | None = None,
    ) -> None:
        self._max_bytes, self._members = max_bytes, members
        self._on_call, self._alarm = on_call, alarm
        self._pace = Pace(at_once)
        self._most_late = most_late
        self.reading = Lock()  # held while measurements are read
        self.listeners: tuple[Listener, ...] = ()  # that follow the run
        self._may_raise = True
        self._path: Path | None = None  # the argument of `keep`
        self._begin()
        self._ticker: Ticker | None = None
        _alive.add(self)

    def _begin(self) -> None:
        self.history = History([], 0)
        self.n_dropped = 0  # measurements whose step failed, or that came faster than they could be read
        self._waiting: deque[Arrived] = deque()
        self._newest: Arrived | None = None  # the last one that arrived
        self._scalars: deque[ArrivedScalars] = deque()  # separate, since a slow one must not delay measurements
        self._scalar_names: set[str] = set()
        self._losses: deque[ScalarRow] = deque()  # that steps returned, until it is known which the user records
        self._bad_scalars: set[str] = set()  # names of non-finite scalars
        self._n_dropped_scalars = 0
        self._sections = Sections()
        self._unchanged = Unchanged()
        self._has_unsearched = False  # whether the alarm has not searched some numbers
        self._unfinished: Batch | None = None
        if self._alarm is not None:
            self._alarm.begin()

    def begin(self, name: str = "") -> History:
        """Begin a run, in a new file of `keep`, and drop unread measurements. Returns the previous history."""
        with self.reading:
            before = self.history
            self._begin()
            self.history.name, self.history.tree = name, before.tree
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
        return len(self._waiting)

    @property
    def is_empty(self) -> bool:
        return not self.history and not self._waiting

    def take(self, arrived: Arrived) -> None:
        """Enqueue a measurement; read earlier ones if they are ready."""
        self.put(arrived)
        self._newest, waiting = arrived, self._waiting
        is_wanted = self.listeners and True in [listener.arrived() for listener in self.listeners]
        if (self._pace.is_due(len(waiting)) or is_wanted) and self.reading.acquire(blocking=False):
            try:
                self._read_what_is_there(1 if is_wanted else self._pace.batch)
                if self._most_late is not None and len(waiting) > self._most_late and not arrived.is_ready():
                    # A user's callback, whose numbers are ready, must not wait here: the device may be waiting for it.
                    self._read(len(waiting) - self._most_late, is_flush=False)
            finally:
                self._pace.has_read()
                self.reading.release()

    def put(self, arrived: Arrived | ArrivedScalars) -> None:
        """Enqueue a measurement of any step; it is read with later ones, or at a flush."""
        if self._copies_early:
            with jax.transfer_guard_device_to_host("allow"):
                for array in arrived.arrays:
                    if isinstance(array, jax.Array):
                        array.copy_to_host_async()
        if isinstance(arrived, ArrivedScalars):
            self._scalars.append(arrived)
        else:
            self._waiting.append(arrived)

    def take_scalars(self, step: int, values: Mapping[str, Any], batch: Any, *, is_call: bool) -> None:
        """Enqueue scalars, which are read with measurements or when many wait; `is_call`: of the newest call."""
        self._scalar_names |= values.keys()
        if len(self._scalar_names) > MOST_NAMES:
            raise ValueError(f"record_scalars: there are more than {MOST_NAMES} names; the newest: {sorted(values)}.")
        checked = {printable(name): _checked(name, value) for name, value in values.items()}
        batch = None if batch is None else _checked_batch(batch)
        self.put(ArrivedScalars(step, self._newest if is_call else None, checked, batch))
        if len(self._scalars) > MOST_WAITING_SCALARS:
            self._scalars.popleft()
            self._n_dropped_scalars += 1
        if len(self._scalars) >= BATCH + AHEAD and not self._waiting and self.reading.acquire(blocking=False):
            try:
                self._notify([], is_flush=False)
            finally:
                self.reading.release()

    @computed_once
    def _copies_early(self) -> bool:
        return jax.default_backend() != "cpu"  # on CPU, arrays are already in host memory

    def read_what_is_ready(self, *, may_raise: bool = False) -> None:
        """Read what is ready, without waiting. With `may_raise`, report findings now, else at the next read."""
        with self.reading:
            try:
                self._may_raise = may_raise
                self._read_what_is_there(1)
                self._notify([], is_flush=False)
            finally:
                self._may_raise = True

    def _read_what_is_there(self, batch: int) -> None:
        self._finish()
        if len(waiting := self._waiting) < batch:
            return
        if waiting[batch - 1].is_ready():
            n_waiting = len(waiting)  # no iterator, since other threads append meanwhile
            n_ready = next((n for n in range(batch, n_waiting) if not waiting[n].is_ready()), n_waiting)
            self._read(n_ready, is_flush=False)
        elif len(waiting) >= MOST_WAITING:
            self._unfinished = Batch([waiting[0]], [], len(self.history), self.n_dropped + 1)
            self._finish()

    def flush(self, retry: bool = False) -> None:
        """Read all measurements; waits for running steps. With `retry`, also write a file that failed before."""
        with self.reading:
            self._finish()
            for _ in range(2):  # the alarm may have added measurements
                self._read(len(self._waiting))
            if self.history.journal is not None:
                self.history.journal.catch_up(self.history, now=retry)

    def _read(self, n: int, is_flush: bool = True) -> None:
        arrived = [self._waiting[k] for k in range(n)]
        if arrived:
            self._pace.adapt_batch(arrived[-1].n_bytes, kept=self.history.journal is not None)
        steps, n_failed = [], 0
        try:
            steps += read(arrived, members=self._members)
        except RuntimeError:  # a step failed, or its arrays were deleted; the others can be read
            steps.clear()
            for measurement in arrived:
                try:
                    steps += read([measurement], members=self._members)
                except RuntimeError:
                    n_failed += 1
        self._unchanged.report(arrived, steps)
        self._unfinished = Batch(arrived, steps, len(self.history), self.n_dropped + n_failed)
        self._finish(is_flush)

    def _finish(self, is_flush: bool = False) -> None:
        """Add a batch to the history, or the rest of an interrupted one: no part of this is done twice."""
        batch = self._unfinished
        if batch is None:
            return
        for measurement in batch.arrived:
            if self._waiting and self._waiting[0] is measurement:
                self._waiting.popleft()
        self.n_dropped = max(self.n_dropped, batch.n_dropped)
        failed = [*batch.put_into(self.history, self._sections, self._max_bytes)]
        self.n_dropped += sum(n for n, _ in failed)
        for arrived in batch.arrived[-1:]:  # the program says what its inner steps are, and how it orders the leaves
            labels = {watch.label for watch in arrived.watches.values() if kind_of(watch.source.name) == "grads"}
            if labels and all("micro-batch" in label for label in labels):
                self.history.scalars.inner = self.history.inner._replace(noun="micro-batch")
            for name, attribution in arrived.watches.items() if self._members == "joined" else ():
                if attribution.forward:
                    name = printable(name + arrived.suffix)
                    self.history.forward[name + self._sections.of(name, self.history)] = attribution.forward
        if self._on_call is not None:
            for call, is_bad in batch.calls:
                self._on_call(call, is_bad)
        self._unfinished = None
        losses = [loss for steps in batch.read for loss in steps.losses]
        self._losses += [ScalarRow(step, values, None, n_inner) for step, values, n_inner in losses]
        for _, error in failed[-1:]:
            warnings.warn(f"inspector: a step was not recorded: {error}", RuntimeWarning, stacklevel=2)
        self._notify(batch.read, is_flush)

    def _notify(self, read: list[ReadSteps], is_flush: bool) -> None:
        """Read scalars, and notify the listeners and the alarm of these and of new steps; the alarm may raise."""
        self._has_unsearched |= self._read_scalars(wait=is_flush)
        if read:
            for listener in self.listeners:
                listener.was_read()
        if self._alarm is None or not (read or self._has_unsearched):
            return
        self._has_unsearched = not self._may_raise
        if self._has_unsearched:
            return self._alarm.postpone()
        bad = self._bad_scalars.union(*(steps.bad_sources for steps in read))
        self._has_unsearched = not self._alarm.was_read(self.history, bad, is_flush=is_flush)

    def _read_scalars(self, wait: bool) -> bool:
        """Add ready scalars to the history, with `wait` all of them. Returns whether there were any."""
        waiting, rows = self._scalars, list[ScalarRow]()
        if waiting:
            with jax.transfer_guard("allow"):  # entered once, since it takes as long as a read
                while waiting and (wait or waiting[0].is_ready()):
                    try:
                        rows.append(waiting.popleft().row())
                    except RuntimeError:  # a step failed, or an array was donated
                        self._n_dropped_scalars += 1
        newest = -1 if wait or self._newest is None else self._newest.step
        while self._losses and self._losses[0].step != newest:  # the user may be about to record that of the newest
            row = self._losses.popleft()
            values = {name: value for name, value in row.values.items() if name not in self._scalar_names}
            rows += [row._replace(values=values)] if values else []
        self._bad_scalars |= self.history.append_scalars(rows) if rows else set()
        return bool(rows)

    def keep(self, path: Path) -> Path:
        """Write each new step to a file, at most a second after it is ready. Returns the file's path."""
        with self.reading:
            self._path, path = path, keep(self.history, path)
        if self._ticker is None:
            self._ticker = Ticker(self._tick, first_s=KEPT_WITHIN_S, lock=self.reading, name="treeviz keep")
            self._ticker.start()
            atexit.register(close_at_exit, weakref.ref(self))  # while JAX can still return the last steps
        return path

    def _tick(self) -> float:
        with contextlib.suppress(Exception):  # the loop's own reading reports it
            self.read_what_is_ready()
        if self.history.journal is not None:
            self.history.journal.catch_up(self.history)
        return KEPT_WITHIN_S

    def close(self) -> None:
        """Read all measurements, and write them to the file of `keep` with no later retry."""
        with self.reading:
            if self._ticker is not None:
                self._ticker.stop()
            with contextlib.suppress(Exception):  # a failed step has been reported
                self.flush()
            if self.history.journal is not None:
                self.history.journal.catch_up(self.history, now=True)

    @property
    def lost(self) -> list[str]:
        """Headline notes: how many measurements were lost, and how many steps the file of `keep` lacks, and why."""
        lost = [f"{self.n_dropped:,} step{'s' * (self.n_dropped != 1)} not shown"] if self.n_dropped else []
        n = self._n_dropped_scalars
        lost += [f"scalars of {n:,} step{'s' * (n != 1)} not shown"] if n else []
        if self.history.journal is not None:
            n, reason = self.history.journal.lacks(self.history)
            noun = f"{'record' if self.history.scalars else 'step'}{'s' * (n != 1)}"
            lost += [f"{n:,} {noun} not in {self.history.journal.path.name}: {reason}"] if n else []
        return lost

    def after_fork(self) -> None:
        """Keep only the history in a forked process, which has no device. The parent reads the rest."""
        self._waiting, self._scalars, self._losses = deque(), deque(), deque()
        self._unfinished = self._ticker = None
        self.listeners = ()


def close_at_exit(reference: weakref.ref[Any]) -> None:
    if (still_alive := reference()) is not None:
        still_alive.close()


_alive: weakref.WeakSet[Recorder] = weakref.WeakSet()


def _after_fork() -> None:
    for recorder in list(_alive):
        recorder.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

# Findings in unread measurements, when an inspector is freed or Python exits

_followed: weakref.WeakSet[Recorder] = weakref.WeakSet()
_ownerless: list[Recorder] = []  # recorders with unread measurements, whose owners were freed


def flush_at_exit(owner: Any, recorder: Recorder) -> None:
    """Report the findings in unread measurements when Python exits, even if the owner was freed before."""
    while _ownerless:
        _flush_and_report(_ownerless.pop())
    _followed.add(recorder)
    weakref.finalize(owner, _on_owner_freed, recorder)


def _on_owner_freed(recorder: Recorder) -> None:
    if len(recorder):  # not read here, since the garbage collector may run anywhere
        _ownerless.append(recorder)


@atexit.register  # runs before JAX's own handler, which is older, so the last steps can still be read
def _at_exit() -> None:
    for recorder in [*_followed]:
        _flush_and_report(recorder)
    _ownerless.clear()  # they are in _followed, too


def _flush_and_report(recorder: Recorder) -> None:
    if recorder.is_empty:
        return
    try:
        if jax.process_count() == 1:
            recorder.flush()
        else:  # a step that waits for a failed process would never end
            recorder.read_what_is_ready(may_raise=True)
    except StopTraining as error:
        warnings.warn(
            f"inspector: the run has ended, and would have been stopped: {error}", RuntimeWarning, stacklevel=2
        )
    except RuntimeError:  # a failed step has been reported
        return
