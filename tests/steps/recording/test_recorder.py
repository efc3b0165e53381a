"""The recorder: its pace, its ticker, and what it writes at the end of the process."""

from __future__ import annotations

import gc
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import treeviz as tv
from treeviz.steps.recording import recorder as at_the_end
from treeviz.steps.recording import recorder as pace
from treeviz.steps.recording.decode import Arrived
from treeviz.steps.recording.recorder import AHEAD, BATCH, LARGE_BATCH, LARGE_BYTES, SOON, Pace, Ticker


@jax.jit
def step(w, x):
    return w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)


@pytest.fixture
def run(monkeypatch):
    """Run five steps of which the last is NaN, on a device that is slow, and return the inspector."""
    monkeypatch.setattr(Arrived, "is_ready", lambda self: False)

    def run(**how) -> tv.GradientInspector:
        inspector = tv.GradientInspector(**how)
        watched, w = inspector.watch(step), jnp.ones((3, 2))
        for i in range(5):
            w = watched(w, np.full((4, 3), np.nan if i == 4 else 1, np.float32))
        return inspector

    yield run
    at_the_end._ownerless.clear()


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_finding_of_the_last_step_is_told_when_python_ends(run, is_gone):
    found = []
    inspector = run(on_finding=found.append)
    if is_gone:
        del inspector
        gc.collect()
    assert found == []
    at_the_end._at_exit()
    assert [(each.kind, each.first) for each in found] == [("nonfinite", 4)]
    at_the_end._at_exit()
    assert len(found) == 1


def test_a_run_that_would_have_been_stopped_warns_of_it(run):
    inspector = run(raise_on="nonfinite")
    with pytest.warns(RuntimeWarning, match="would have been stopped: nonfinite: grads had .* at step 4"):
        at_the_end._at_exit()
    assert inspector.n_dropped == 0


def test_what_an_inspector_has_left_is_told_before_the_next_begins(run):
    found = []
    recorder = run(on_finding=found.append)._recorder
    at_the_end._on_owner_freed(recorder)  # as the garbage collector calls it, sooner or later
    assert found == []
    tv.GradientInspector(on_finding=print)
    assert [(each.kind, each.first) for each in found] == [("nonfinite", 4)]


@pytest.mark.parametrize("is_ready", [True, False])
def test_one_of_several_processes_tells_what_is_ready_and_waits_for_nothing(run, monkeypatch, is_ready):
    found = []
    inspector = run(on_finding=found.append)
    monkeypatch.setattr(Arrived, "is_ready", lambda self: is_ready)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    at_the_end._at_exit()
    assert [(each.kind, each.first) for each in found] == [("nonfinite", 4)] * is_ready
    assert inspector.n_dropped == 0


# How soon measurements are read.


def test_what_is_wanted_soon_is_read_at_once_and_in_a_long_run_when_its_share_of_the_time_or_of_the_room_is_up(
    monkeypatch,
):
    now = 1.0
    monkeypatch.setattr(pace.time, "monotonic", lambda: now)
    of_run = Pace(SOON)
    for _ in range(65):
        assert of_run.is_due(1)
        now += 1e-3
        of_run.has_read()
    now += 0.049  # a reading of 1 ms, which is 2 % of 50 ms
    assert not of_run.is_due(SOON - 1) and of_run.is_due(SOON)
    now += 0.002
    assert of_run.is_due(1) and not Pace(0).is_due(79) and Pace(0).is_due(80)


def test_after_the_first_reading_small_measurements_are_read_in_larger_batches_and_large_ones_are_not():
    small, medium, large, wanted = Pace(0), Pace(0), Pace(0), Pace(SOON)
    small.adapt_batch(LARGE_BYTES // LARGE_BATCH, kept=False)
    medium.adapt_batch(LARGE_BYTES // 100, kept=False)
    large.adapt_batch(LARGE_BYTES // BATCH + 1, kept=False)
    wanted.adapt_batch(4, kept=False)
    assert [each.batch for each in (small, medium, large)] == [LARGE_BATCH, 100, BATCH]
    assert not small.is_due(LARGE_BATCH + AHEAD - 1) and small.is_due(LARGE_BATCH + AHEAD)
    assert large.is_due(BATCH + AHEAD) and wanted.is_due(1)
    small.adapt_batch(4, kept=True)  # a crash would lose more
    assert small.is_due(BATCH + AHEAD)


# The thread of a view that follows a run: how long it goes on, and what it keeps.


class Bell:
    """Rings so many times."""

    def __init__(self, n: int, first_s: float = 0.0) -> None:
        self.n = n
        self.lock = threading.RLock()
        self.has_rung = threading.Event()
        self.ticker = Ticker(self.ring, first_s=first_s, lock=self.lock, name="bell")

    def ring(self) -> float | None:
        self.n -= 1
        self.has_rung.set()
        return 0.0 if self.n > 0 else None


def thread_of(ticker: Ticker) -> threading.Thread:
    assert ticker._thread is not None
    return ticker._thread


def test_it_goes_on_until_nothing_is_due_and_may_begin_again():
    bell = Bell(5)
    for _ in range(2):
        with bell.lock:  # so that it is there to be waited for
            bell.ticker.start()
            thread = thread_of(bell.ticker)
        thread.join()
        assert bell.n == 0 and not bell.ticker.is_running
        bell.n = 5


def test_two_starts_are_one_thread():
    bell = Bell(1)
    with bell.lock:
        bell.ticker.start()
        thread = thread_of(bell.ticker)
        bell.ticker.start()
        assert thread_of(bell.ticker) is thread
    thread.join()
    assert bell.n == 0


def test_what_is_stopped_never_begins_again():
    bell = Bell(1, first_s=1000)
    bell.ticker.start()
    thread = thread_of(bell.ticker)
    bell.ticker.stop()
    thread.join()
    bell.ticker.start()
    assert thread_of(bell.ticker) is thread and bell.n == 1


def test_the_thread_keeps_nothing_alive_and_ends_when_nobody_is_left():
    bell = Bell(10**9)
    bell.ticker.start()
    thread, left = thread_of(bell.ticker), weakref.ref(bell)
    bell.has_rung.wait()
    del bell
    gc.collect()
    thread.join()
    assert left() is None
