"""Agree among the processes of a distributed run, through JAX's coordinator, from which call on a step is measured."""

from __future__ import annotations

import atexit
import threading
import time
import warnings
from collections import Counter
from typing import Any

import jax

from treeviz.steps.tracing.jax_private import TO_COMPARE_PROCESSES, distributed_state
from treeviz.tree.runtime import Lock, missing_names, warn_of_missing, why_missing

GRACE_S = 1.0  # that the first call waits for the others, so that it is measured where all watch
JOIN_S = 10.0  # after the first call: how long to wait for all processes to watch, while the loop goes on
_ANSWER_S = 60.0  # for the threads of processes that watch the step
_LOOK_MS = 200  # how often a thread checks whether Python ends

_n_asked: Counter[str] = Counter()  # by the name of a step
_unmeasured: set[ProcessConsensus] = set()  # of steps without a measurement, of which the user does not know why


class ProcessConsensus:
    """Whether all processes of a distributed run watch a step with the same settings, and from which call on.

    A thread of each process asks the coordinator, not the devices, and answers for its process: a loop goes on
    unmeasured until all watch, and then waits only for their threads. So it cannot hang where a process never watches.

    Attributes:
      why_not: Why the step is not to be measured, the same in each process; empty if it is, or if that is open.
      notes: Of a step whose first calls were not measured, why, and from which one on it is.

    Args:
      step: The step, whose name is the same in all processes.
      answer: What must be the same in all.
      newest: The number of the newest call.
    """

    def __init__(self, step: Any, answer: str, newest: int) -> None:
        self._step = f"{getattr(step, '__module__', '')}.{getattr(step, '__qualname__', '')}"
        self._answer, self._newest = answer, newest
        self.why_not = ""
        self.notes: tuple[str, ...] = ()
        self._lock, self._settled = Lock(), threading.Event()
        self._from: int | None = None  # what this process has proposed: no earlier call is left to be measured
        self._start = newest + 1
        self._called_at: float | None = None
        self._has_missed = False
        self._thread: threading.Thread | None = None
        self._begin()

    def measures(self, number: int) -> bool:
        """Whether the call of this number, which is about to run, is measured in all processes."""
        if self._called_at is None:
            missing = why_missing(missing_names(TO_COMPARE_PROCESSES))
            if missing and jax.process_count() > 1:
                self.why_not = missing
            elif missing:
                warn_of_missing(TO_COMPARE_PROCESSES, stacklevel=4)
            self._begin()
            self._called_at = time.monotonic()
            if self._thread is None:
                self._from = self._start
                self._settled.set()
            self._settled.wait(GRACE_S)
        with self._lock:
            is_open = self._from is None
            self._newest = max(self._newest, number) if is_open else self._newest
        if not is_open:
            self._settled.wait()
            is_measured = number >= self._start and not self.why_not
            if is_measured or self.why_not:
                _unmeasured.discard(self)
            if is_measured:
                if self._has_missed:
                    self.notes = (*self.notes, f"all processes watch it from step {number} on.")
                return True
        self._has_missed = True
        self.notes = ("not measured as long as not all processes watch it.",)
        return False

    def _begin(self) -> None:
        """Ask the other processes, if there are any by now."""
        state = distributed_state()
        if state is None or self._thread is not None:
            return
        self._client, self._me, self._n_processes = state.client, state.process_id, state.num_processes
        self._question = f"treeviz/{self._step}/{_n_asked[self._step]}"
        _n_asked[self._step] += 1
        _unmeasured.add(self)
        self._thread = threading.Thread(target=self._settle, name="treeviz consensus")
        self._thread.start()

    def _settle(self) -> None:
        try:
            why, proposed = self._others_differ(), list[str]()
            if not why:
                with self._lock:
                    self._from = self._newest + 1
                self._tell(f"from/{self._me}", str(self._from))
                until = time.monotonic() + _ANSWER_S
                proposed = [self._asked(f"from/{i}", until) for i in range(self._n_processes)]
                silent = [i for i, options in enumerate(proposed) if not options]
                why = f"process {silent[0]} does not answer" if silent else ""
            decision = why or f"from {max(map(int, proposed))}"
            try:  # the first decision is that of all, so that none runs what another has given up
                self._tell("decision", decision)
            except Exception:
                others_decision = self._asked("decision", time.monotonic() + _ANSWER_S)
                decision = others_decision or why or "the processes cannot be compared"
            if decision.startswith("from "):
                self._start = int(decision.removeprefix("from "))
            else:
                self.why_not = decision
                if self._from is None:
                    self._tell(f"from/{self._me}", "0")  # so that one that watches later does not wait
        except Exception as error:
            cannot = f"the processes cannot be compared ({type(error).__name__}: {error})"
            self.why_not = self.why_not or cannot
        finally:
            with self._lock:
                self._from = self._start
            self._settled.set()

    def _others_differ(self) -> str:
        """Wait until all processes watch the step with the same settings, and return "", or why they do not."""
        self._tell(f"watched/{self._me}", self._answer)
        for process in range(self._n_processes):
            their_options = self._asked(f"watched/{process}", None)
            if not their_options and (self._called_at is None or time.monotonic() < self._called_at + JOIN_S):
                return f"process {process} had not watched this step when the coordinator was last asked"
            if not their_options:
                first = f"its first call in process {self._me}"
                return f"process {process} did not watch this step within {JOIN_S:g} s of {first}"
            if their_options != self._answer:
                return f"process {process} watches it with {their_options}, process {self._me} with {self._answer}"
        return ""

    def _tell(self, key: str, value: str) -> None:
        self._client.key_value_set(f"{self._question}/{key}", value)

    def _asked(self, key: str, until: float | None) -> str:
        """The answer of a process, or "" after this time; None: some time after the first call."""
        while True:
            try:
                return self._client.blocking_key_value_get(f"{self._question}/{key}", _LOOK_MS)
            except RuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):  # the coordinator has ended, or jax.distributed.shutdown()
                    return ""
            called_at = self._called_at
            end = until if until is not None else None if called_at is None else called_at + JOIN_S
            if (end is not None and time.monotonic() > end) or not threading.main_thread().is_alive():
                return ""

    def tell(self) -> None:
        """Warn that nothing was measured of the calls, and why: the run has ended before it was known."""
        if self._has_missed:
            why = self.why_not or f"all processes watch it from step {self._start} on"
            name = self._step.rpartition(".")[2]
            warnings.warn(
                f"watch: no call of `{name}` was measured: {why}. All processes must watch it in the same way; one "
                "of them may save or show it.",
                RuntimeWarning,
                stacklevel=2,
            )


@atexit.register  # when the threads have ended
def _tell_what_is_unmeasured() -> None:
    for consensus in [*_unmeasured]:
        consensus.tell()
