"""ONE FILE PER LIBRARY: what treeviz knows about other people's trees.

A file is imported when its library has been imported by somebody else, never before.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import jax
import numpy as np

from treeviz.tree.looks import Describer, describes
from treeviz.tree.quote import guarded

# The library, which has to be there -> our file about it.
ADAPTERS = {
    "equinox": "equinox",
    "flax": "flax",
    "flax.linen": "flax_linen",
    "flax.nnx": "flax_nnx",
    "optax": "optax",
    "penzai": "penzai",
    "pytreeclass": "pytreeclass",
    "tensorflow": "tensorflow",
    "torch": "torch",
}
_loaded: set[str] = set()
_waiting: list[tuple[str, tuple[str, ...], Describer]] = []  # for modules that are not imported yet


def load() -> None:
    """Let the libraries that this process uses say how their nodes and leaves look."""
    for library, adapter in ADAPTERS.items():
        if adapter not in _loaded and _contents(library) is not None:
            import_module(f"treeviz.integrations.{adapter}")
            _loaded.add(adapter)
    for entry in _waiting[:]:
        module, names, describer = entry
        contents = _contents(module)
        if contents is not None and entry in _waiting:
            _waiting.remove(entry)
            _register(contents, names, describer)


def describes_from(module: str, *names: str) -> Callable[[Describer], Describer]:
    """`describes` for classes of a library, as soon as somebody has imported their module.

    Names that its installed version does not have are left out.
    """

    def register(describer: Describer) -> Describer:
        contents = _contents(module)
        if contents is None:
            _waiting.append((module, names, describer))
        else:
            _register(contents, names, describer)
        return describer

    return register


def array_facts(array: Any) -> dict[str, Any]:
    """The shape, dtype and bytes of an array in a leaf that is no array itself, as keywords of `Look`."""
    if not isinstance(array, (jax.Array, np.ndarray, jax.ShapeDtypeStruct)):
        return {}
    n_bytes = guarded(lambda: math.prod(array.shape) * array.dtype.itemsize, lambda _: 0)
    return {"shape": tuple(array.shape), "dtype": str(array.dtype), "bytes": n_bytes}


def _register(contents: dict[str, Any], names: tuple[str, ...], describer: Describer) -> None:
    describes(*(contents[name] for name in names if isinstance(contents.get(name), type)))(describer)


def _contents(module: str) -> dict[str, Any] | None:
    """What a module defines, or None: nobody imported it, its import still runs, or it waits for its first use."""
    found = sys.modules.get(module)
    if found is None or type(found).__name__ == "_LazyModule":
        return None
    contents = object.__getattribute__(found, "__dict__")
    return None if getattr(contents.get("__spec__"), "_initializing", False) else contents
