"""One file per library: how its nodes and leaves are described, and how its jitted steps are taken apart.

`load` imports the file of each library that the process has imported already, and never imports a library. Other
packages bring files of their own by entry points of the group "treeviz.adapters": see CONTRIBUTING.md.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import jax
import numpy as np

from treeviz.tree.describers import Describer, describes
from treeviz.tree.runtime import PrivateName, jax_is_imported, warn_of_missing
from treeviz.tree.text import error_text, guarded, module_name

_GROUP = "treeviz.adapters"
_HIJAX = "jax.experimental.hijax"
# Libraries; each has a file of its last name in this folder.
ADAPTERS = ("chex", "equinox", "flax", "optax", "pandas", "penzai", "pytreeclass", "tensorflow", "torch", _HIJAX)
_loaded: set[str] = set()
_of_others: list[Any] | None = None  # entry points whose library is not imported yet; None: not looked for
_private: dict[str, tuple[PrivateName, ...]] = {}  # of libraries loaded, not checked yet
_waiting: list[tuple[str, tuple[str, ...], Describer]] = []  # for modules that are not imported yet


def load() -> None:
    """Import our files about the libraries that this process has imported; warn once about missing private names.

    Called before every walk and `watch`, since a library may be imported after treeviz. A call with nothing new takes
    some microseconds.
    """
    for library in ADAPTERS:
        if library not in _loaded and _contents(library) is not None:
            file = import_module(f"treeviz.integrations.{library.rpartition('.')[2]}")
            _private[library] = getattr(file, "TO_DESCRIBE", ())
            _loaded.add(library)
    _load_those_of_others()
    for library, names in list(_private.items()):
        if all(_contents(name.public_module) for name in names):
            warn_of_missing(_private.pop(library))
    for entry in _waiting[:]:
        module, names, describer = entry
        contents = _contents(module)
        if contents is not None and entry in _waiting:
            _waiting.remove(entry)
            _register(contents, names, describer)


def _load_those_of_others() -> None:
    """Import the adapters that other packages bring, each once its library is imported; one that fails is warned of."""
    global _of_others
    if _of_others is None:
        if not jax_is_imported():  # a file is shown: what JAX knows is not asked
            return
        from importlib.metadata import distributions

        # Not `entry_points(group=…)`, which takes 20 ms to parse those of all packages.
        having = [each for each in distributions() if _GROUP in (each.read_text("entry_points.txt") or "")]
        packages = {each.name: each for each in reversed(having)}  # of one name the first on the path counts
        _of_others = [entry for each in packages.values() for entry in each.entry_points if entry.group == _GROUP]
    for entry in [each for each in _of_others if _contents(each.name) is not None]:
        _of_others.remove(entry)
        try:
            entry.load()
        except Exception as error:
            text = f"the adapter {entry.value} failed with {error_text(error)}: {entry.name} is shown without it"
            warnings.warn(f"treeviz: {text}", RuntimeWarning, stacklevel=4)


def describes_from(module: str, *names: str) -> Callable[[Describer], Describer]:
    """Like `describes`, for classes of a library, once their module is imported.

    Names that the installed version lacks are left out.
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
    """An array in a leaf that is no array, and its facts, as keywords of `Description`."""
    if not isinstance(array, (jax.Array, np.ndarray, jax.ShapeDtypeStruct)):
        return {}
    n_bytes = guarded(lambda: math.prod(array.shape) * array.dtype.itemsize, lambda _: 0)
    sharding = guarded(lambda: getattr(array, "sharding", None), lambda _: None)
    facts = {"shape": tuple(array.shape), "dtype": str(array.dtype), "bytes": n_bytes, "sharding": sharding}
    return {**facts, "array": array}


def opened(tree: Any, name: str) -> tuple[Any, str]:
    """The tree in the metadata of a checkpoint, and the Python that gets there from `name`."""
    if module_name(type(tree)).partition(".")[0] != "orbax":
        return tree, name
    from treeviz.integrations.orbax import tree_of_metadata

    return tree_of_metadata(tree, name)


def not_installed(error: ImportError, extra: str) -> ImportError:
    """The error to raise where a library that a file format needs is not installed."""
    return ImportError(f'{error.name or error} is not installed: pip install "jax-treeviz[{extra}]"', name=error.name)


def _register(contents: dict[str, Any], names: tuple[str, ...], describer: Describer) -> None:
    describes(*(contents[name] for name in names if isinstance(contents.get(name), type)))(describer)


def _contents(module: str) -> dict[str, Any] | None:
    """The names in a module; None if it is not imported, still being imported, or lazy and unused."""
    found = sys.modules.get(module)
    if found is None or type(found).__name__ == "_LazyModule":
        return None
    contents = object.__getattribute__(found, "__dict__")
    return None if getattr(contents.get("__spec__"), "_initializing", False) else contents
