"""The thread of a view that follows a run: how long it goes on, and what it keeps."""

from __future__ import annotations

import gc
import threading
import weakref

from treeviz.steps.recording.recorder import Ticker


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
