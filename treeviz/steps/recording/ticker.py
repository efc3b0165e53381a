"""A thread that calls a method repeatedly until nothing is due."""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


class Ticker:
    """Calls a method repeatedly in a thread, until it returns None; then it can be started again.

    The method's object is referred to weakly: the thread ends when that object is freed.

    Args:
      tick: A method that returns the seconds until its next call, or None to end the thread.
      first_s: Seconds until the first call.
      lock: Held during each call. If the holder of the lock sees `is_running`, another call is certain to come.
    """

    def __init__(
        self, tick: Callable[[], float | None], *, first_s: float, lock: AbstractContextManager[Any], name: str
    ) -> None:
        self._tick = weakref.WeakMethod(tick)
        self._first_s, self._lock, self._name = first_s, lock, name
        self._is_stopped = False
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()  # no lock that a forked child could find held
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        """Start the thread, unless it runs or was stopped."""
        with self._lock:
            if self._thread is None and not self._is_stopped:
                self._thread = threading.Thread(target=self._run, daemon=True, name=self._name)
                self._thread.start()

    def stop(self) -> None:
        """End the thread for good: at once, or after the call that is in progress."""
        self._is_stopped = True
        self._wake.put(None)

    def _stops_within(self, wait_s: float) -> bool:
        with contextlib.suppress(queue.Empty):
            self._wake.get(timeout=wait_s)
        return self._is_stopped

    def _run(self) -> None:
        wait_s: float | None = self._first_s
        while wait_s is not None and not self._stops_within(wait_s):
            with self._lock:
                tick = self._tick()
                wait_s = None if tick is None else tick()
                del tick
                if wait_s is None:
                    self._thread = None
