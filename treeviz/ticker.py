"""A thread that does what is due, as long as something is and somebody wants it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


class Ticker:
    """Calls a method again and again, until it says that nothing is due any more; then it may be started again.

    It keeps nothing alive: the thread ends when nobody has the object of the method any more.

    Args:
      tick: A method. It says in how many seconds to call it again, or None: the thread may end.
      first_s: When to call it first.
      lock: Is held while the method is called. Who holds it and finds the thread running knows that it will be called.
    """

    def __init__(
        self, tick: Callable[[], float | None], *, first_s: float, lock: AbstractContextManager[Any], name: str
    ) -> None:
        self._tick = weakref.WeakMethod(tick)
        self._first_s, self._lock, self._name = first_s, lock, name
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        """Begin, if it has not begun and was not stopped."""
        with self._lock:
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._run, daemon=True, name=self._name)
                self._thread.start()

    def stop(self) -> None:
        """End, at once unless the method is being called, and for good."""
        self._stopped.set()

    def _run(self) -> None:
        wait_s: float | None = self._first_s
        while wait_s is not None and not self._stopped.wait(wait_s):
            with self._lock:
                tick = self._tick()
                wait_s = None if tick is None else tick()
                del tick
                if wait_s is None:
                    self._thread = None
