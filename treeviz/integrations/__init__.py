"""One file per library: it describes the library's nodes and leaves, and unwraps its jitted steps.

`load` imports our file for each library that the process has imported, and never imports a library. Other packages add
files through entry points of the group "treeviz.adapters": see CONTRIBUTING.md.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import jax
import numpy as np

from treeviz.tree.describers import Describer, describes
from treeviz.tree.runtime import PrivateName, jax_is_imported, warn_of_missing
from treeviz.tree.text import error_text, guarded, module_name, value_text

_GROUP = "treeviz.adapters"
_HIJAX = "jax.experimental.hijax"
# Each library has a file in this folder, named by the last part of its name.
ADAPTERS = (
    *("aqt", "brainstate", "chex", "coordax", "equinox", "flax", "haliax", "jax.example_libraries.optimizers", "keras"),
    *("optax", "pandas", "penzai", "pytreeclass", "qwix", "saiunit", "tensorflow", "torch", "xarray"),
    _HIJAX,
)
_loaded: set[str] = set()
_entry_points: list[Any] | None = None  # entry points whose library is not imported yet; None if not searched for
_unchecked_names: dict[str, tuple[PrivateName, ...]] = {}  # private names of loaded libraries, not checked yet
_deferred: list[tuple[str, tuple[str, ...], Describer]] = []  # for modules that are not imported yet


def load() -> None:
    """Import our files about the libraries that this process has imported; warn once about missing private names.

    Called before every walk and `watch`, since a library may be imported later; with nothing new it takes microseconds.
    """
    for library in ADAPTERS:
        if library in sys.modules and library not in _loaded and _contents(library) is not None:
            file = import_module(f"treeviz.integrations.{library.rpartition('.')[2]}")
            _unchecked_names[library] = getattr(file, "TO_DESCRIBE", ())
            _loaded.add(library)
    _load_entry_points()
    for library, names in list(_unchecked_names.items()):
        if all(_contents(name.public_module) for name in names):
            warn_of_missing(_unchecked_names.pop(library))
    for entry in _deferred[:]:
        module, names, describer = entry
        contents = _contents(module)
        if contents is not None and entry in _deferred:
            _deferred.remove(entry)
            _register(contents, names, describer)


def _load_entry_points() -> None:
    """Import the adapters of other packages whose libraries are imported; warn if one fails."""
    global _entry_points
    if _entry_points is None:
        if not jax_is_imported():  # showing a file needs no registered classes
            return
        from importlib.metadata import distributions

        # Not `entry_points(group=…)`, which takes 20 ms to parse those of all packages.
        having = [package for package in distributions() if _GROUP in (package.read_text("entry_points.txt") or "")]
        packages = {package.name: package for package in reversed(having)}  # the first on the path counts
        entries = (entry for package in packages.values() for entry in package.entry_points)
        _entry_points = [entry for entry in entries if entry.group == _GROUP]
    for entry in [entry for entry in _entry_points if _contents(entry.name) is not None]:
        _entry_points.remove(entry)
        if text := guarded(lambda entry=entry: entry.load() and "", error_text):  # it may even exit
            text = f"the adapter {entry.value} failed with {text}: {entry.name} is shown without it"
            warnings.warn(f"treeviz: {text}", RuntimeWarning, stacklevel=4)


def describes_from(module: str, *names: str) -> Callable[[Describer], Describer]:
    """Like `describes`, for classes of a library, once their module is imported; those that it lacks are left out."""

    def register(describer: Describer) -> Describer:
        contents = _contents(module)
        if contents is None:
            _deferred.append((module, names, describer))
        else:
            _register(contents, names, describer)
        return describer

    return register


def array_facts(array: Any) -> dict[str, Any]:
    """The keywords of `Description` for an array inside a leaf that is not itself an array."""
    if not isinstance(array, (jax.Array, np.ndarray, jax.ShapeDtypeStruct)):
        return {}
    n_bytes = guarded(lambda: math.prod(array.shape) * array.dtype.itemsize, lambda _: 0)
    sharding = guarded(lambda: getattr(array, "sharding", None), lambda _: None)
    facts = {"shape": tuple(array.shape), "dtype": str(array.dtype), "bytes": n_bytes, "sharding": sharding}
    return {**facts, "array": array}


def quantized_text(values: Any, *scales: Any, qtype: Any = None) -> str:
    """The text of a quantized array: "int8[3,4] × scale float32[3,1], 8 bits"; `qtype` if it is not their dtype."""
    if not hasattr(values, "dtype"):  # None, or a placeholder of JAX
        return ""
    dtype = np.dtype(values.dtype if qtype is None else qtype)
    bits = (jax.numpy.iinfo if jax.numpy.issubdtype(dtype, np.integer) else jax.numpy.finfo)(dtype).bits
    return " × scale ".join(map(value_text, (values, *scales))) + f", {bits} bits"


Opens = Callable[[Any, str], tuple[Any, str] | None]
_opens: list[Opens] = []


def opens(function: Opens) -> Opens:
    """Register a function that returns the tree in an object that JAX does not flatten, and Python that gets it."""
    _opens.append(function)
    return function


def opened(tree: Any, name: str) -> tuple[Any, str]:
    """The tree in a model or in a checkpoint's metadata, and the Python expression for it, starting with `name`."""
    if module_name(type(tree)).partition(".")[0] == "orbax":
        from treeviz.integrations.orbax import tree_of_metadata

        return tree_of_metadata(tree, name)
    found = [guarded(partial(open_it, tree, name), lambda _: None) for open_it in _opens]
    return next(filter(None, found), (tree, name))


def not_installed(error: ImportError, extra: str) -> ImportError:
    """The error to raise if a library that a file format needs is not installed."""
    return ImportError(f'{error.name or error} is not installed: pip install "jax-treeviz[{extra}]"', name=error.name)


def _register(contents: dict[str, Any], names: tuple[str, ...], describer: Describer) -> None:
    describes(*(contents[name] for name in names if isinstance(contents.get(name), type)))(describer)


def _contents(module: str) -> dict[str, Any] | None:
    """The names in a module; None if it is not imported, still being imported, or lazy and unused."""
    module_object = sys.modules.get(module)
    if module_object is None or type(module_object).__name__ == "_LazyModule":
        return None
    contents = object.__getattribute__(module_object, "__dict__")
    return None if getattr(contents.get("__spec__"), "_initializing", False) else contents
