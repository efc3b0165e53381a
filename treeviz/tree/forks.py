"""Attributes and locks that a forked child can use, whatever the threads of its parent were doing."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class computed_once(Generic[T]):
    """An attribute that is computed by its first use, as `functools.cached_property`, but without a lock.

    Before Python 3.12, `cached_property` holds one lock for all objects of a class: a child that is forked while a
    thread computes would wait for ever. Here two threads may both compute; the first result stays.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> computed_once[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else instance.__dict__.setdefault(self._name, self._compute(instance))


class Lock:
    """A reentrant lock that is free in a forked child if another thread of the parent held it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def acquire(self, *, blocking: bool = True) -> bool:
        return self._lock.acquire(blocking)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def after_fork(self) -> None:
        if self._lock.acquire(blocking=False):  # it was free, or belongs to the thread that forked
            self._lock.release()
        else:
            self._lock = threading.RLock()


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_locks):
        lock.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
