"""Import JAX when it is first used: that takes a second and 170 MB, and to show what is in a file needs none of it."""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec
from threading import RLock
from types import ModuleType
from typing import Any

_lock = RLock()


class _Later(ModuleType):
    """A module that is not yet executed. `importlib.util.LazyLoader` executes it at its second import (Python 3.11)."""

    def __getattr__(self, name: str) -> Any:
        with _lock:
            if type(self) is _Later:
                self.__class__ = ModuleType  # type: ignore[bad-argument-type]
                spec: Any = self.__spec__
                self.__path__ = spec.submodule_search_locations
                spec.loader.exec_module(self)
        return getattr(self, name)


def import_jax_later() -> None:
    """Let `import jax` in this process, which is to be our own, do nothing until something of it is used."""
    spec = None if "jax" in sys.modules else find_spec("jax")
    if spec is not None:
        module = sys.modules["jax"] = module_from_spec(spec)
        del module.__path__  # the import of `jax.numpy` asks for it
        module.__class__ = _Later


def jax_is_imported() -> bool:
    """Whether JAX was executed: before, there are no arrays of JAX, and no registered classes."""
    return type(sys.modules.get("jax")) is not _Later
