"""Python's runtime: locks that survive a fork, threads, garbage collection, a lazy import of JAX, private names."""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import queue
import re
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from threading import RLock
from types import CodeType, ModuleType
from typing import Any, Generic, NamedTuple, TypeVar, overload

T = TypeVar("T")


class computed_once(Generic[T]):
    """An attribute that is computed on first use, like `functools.cached_property` but without a lock.

    Before Python 3.12, `cached_property` holds one lock for all objects of a class, so a child that is forked while a
    thread computes would wait forever. Here two threads may both compute; the first result stays.
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
    """A reentrant lock that is free in a forked child even if another thread of the parent held it."""

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
        if self._lock.acquire(blocking=False):  # it was free, or the thread that forked holds it
            self._lock.release()
        else:
            self._lock = threading.RLock()


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_locks):
        lock.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Ticker:
    """Calls a method repeatedly in a thread, until it returns None; then it can be started again.

    Holds only a weak reference to the method's object: the thread ends when the object is freed.

    Args:
      tick: A method that returns the seconds until its next call, or None to end the thread.
      first_s: Seconds until the first call.
      lock: Held during each call. If its holder sees `is_running`, another call will follow.
    """

    def __init__(
        self, tick: Callable[[], float | None], *, first_s: float, lock: AbstractContextManager[Any], name: str
    ) -> None:
        self._tick = weakref.WeakMethod(tick)
        self._first_s, self._lock, self._name = first_s, lock, name
        self._is_stopped = False
        # Has no lock that could be held when the process forks.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
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

    def _run(self) -> None:
        wait_s: float | None = self._first_s
        while wait_s is not None:
            with contextlib.suppress(queue.Empty):
                self._wake.get(timeout=wait_s)
            if self._is_stopped:
                return
            with self._lock:
                tick = self._tick()
                wait_s = None if tick is None else tick()
                del tick
                if wait_s is None:
                    self._thread = None


# Garbage collection

_NEVER = 1 << 30  # collections of generation 1 before one of generation 2


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause garbage collection, which among 100,000 new objects takes as long as making them and frees nothing.

    So many new objects would trigger a collection, at times a full one: 0.4 s with 200,000 arrays in the process. Here
    only the new objects are searched; a full collection remains due later.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if gc.get_threshold()[0]:  # 0 turns it off, too
                gc.collect(0)
            gc.enable()


@contextmanager
def full_searches_put_off() -> Iterator[None]:
    """Collect only new objects: tracing and lowering a program triggers many full collections of the whole process.

    Each takes some 0.1 s with JAX and two more libraries loaded.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(*thresholds[:2], _NEVER)
    try:
        yield
    finally:
        if gc.get_threshold()[2] == _NEVER != thresholds[2]:  # else another thread paused it, or someone set it
            gc.set_threshold(*thresholds)


# Import JAX on first use: it takes a second and 170 MB, and showing a file needs none of it

_lock = RLock()


class _LazyModule(ModuleType):
    """A module that is not yet executed. `importlib.util.LazyLoader` executes it at its second import (Python 3.11)."""

    def __getattr__(self, name: str) -> Any:
        with _lock:
            if type(self) is _LazyModule:
                self.__class__ = ModuleType  # type: ignore[bad-argument-type]
                spec: Any = self.__spec__
                self.__path__ = spec.submodule_search_locations
                spec.loader.exec_module(self)
        return getattr(self, name)


def import_jax_later() -> None:
    """Make `import jax` do nothing until JAX is used. Only for a process of our own."""
    spec = None if "jax" in sys.modules else find_spec("jax")
    if spec is not None:
        module = sys.modules["jax"] = module_from_spec(spec)
        del module.__path__  # so that importing `jax.numpy` executes the module
        module.__class__ = _LazyModule


def jax_is_imported() -> bool:
    """Whether JAX was executed; if not, there are no JAX arrays and no registered classes."""
    return type(sys.modules.get("jax")) is not _LazyModule


# Private names of other libraries that treeviz uses, and what is lost if a release lacks one


class PrivateName(NamedTuple):
    """A name that is not in the public API of its library.

    Attributes:
      where: "module:name.attribute". "f()" is the function that `f` returns, "f.<locals>.g" one defined in `f`,
        "f.<globals>.g" a global name in the code of `f`. " or " separates the places in different releases.
      lost: What does not work without it, to be read after "treeviz: ".
    """

    where: str
    lost: str

    @property
    def library(self) -> str:
        return self.where.partition(":")[0].partition(".")[0]

    @property
    def public_module(self) -> str:
        """The public module; if it is not imported, the name is not needed."""
        return re.sub(r"\._.*", "", self.where.partition(":")[0])

    def __str__(self) -> str:
        places = [place.replace(":", ".").partition(".<globals>.") for place in self.where.split(" or ")]
        return " or ".join([f"{name} in {function}" if name else function for function, _, name in places])

    def is_missing(self) -> bool:
        """Whether the installed library lacks this name in all places."""
        return not any(_exists(place) for place in self.where.split(" or "))


def missing_names(table: Iterable[PrivateName]) -> list[PrivateName]:
    """The names of a table that the installed libraries lack."""
    return [name for name in table if name.is_missing()]


def why_missing(missing: Sequence[PrivateName]) -> str:
    """ "jax 0.99 has no jax._src.api.vjp: steps are not watched", or "" if nothing is missing."""
    if not missing:
        return ""
    library = missing[0].library
    version = getattr(sys.modules.get(library), "__version__", "")
    places = ", ".join(map(str, missing))
    lost = "; ".join(dict.fromkeys(name.lost for name in missing))
    return f"{' '.join(filter(None, (library, version)))} has no {places}: {lost}"


_warned: set[str] = set()


def warn_of_missing(table: Iterable[PrivateName], stacklevel: int = 2) -> None:
    """Warn once per process about what is lost if the installed library lacks a name of this table."""
    text = why_missing(missing_names(table))
    if text and text not in _warned:
        _warned.add(text)
        warnings.warn(f"treeviz: {text}", RuntimeWarning, stacklevel=stacklevel + 1)


def names_in_code(function: Any) -> tuple[set[str], set[str]]:
    """The global names and attributes in a function's code, and the names of the functions defined within it."""
    codes, names = [getattr(function, "__wrapped__", function).__code__], set[str]()
    for code in codes:  # which grows
        names.update(code.co_names)
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return names, {code.co_name for code in codes[1:]}


def _exists(place: str) -> bool:
    module, _, path = place.partition(":")
    try:
        value: Any = import_module(module)
        steps = iter(path.split(".") if path else ())
        for step in steps:
            if step in ("<globals>", "<locals>"):
                names, functions = names_in_code(value)
                return next(steps) in (names if step == "<globals>" else functions)
            if step.endswith("()"):
                value = getattr(value, step[:-2])(lambda x: x)
            elif isinstance(value, type) and any(step in inspect.get_annotations(base) for base in value.__mro__):
                return True  # a dataclass field without a default is no class attribute
            else:
                value = getattr(value, step)
    except Exception:  # an unknown release may raise anything
        return False
    return True


# Source files that are notebook cells or installed. The only module that detects IPython; it never imports it.


def ipython_shell() -> Any | None:
    """The IPython shell of this process, or None."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None


def cell_of(file: str) -> str:
    """The name of a cell in IPython's own tracebacks, "Cell In[3]"; "" if the file is not a cell."""
    label = getattr(getattr(ipython_shell(), "compile", None), "format_code_name", lambda _: None)(file)
    return " ".join(label) if label else ""


def is_installed(file: str) -> bool:
    """Whether a file belongs to an installed package."""
    return "-packages/" in file.replace("\\", "/")
