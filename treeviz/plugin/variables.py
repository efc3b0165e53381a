"""The variables pane of a debugger: trees, arrays and tracers by their shapes and dtypes, in place of their values.

pydevd, which debugs in VS Code, JupyterLab and PyCharm, finds the two providers by `pydevd_plugin_treeviz.py`. They do
nothing until the program that is debugged has imported JAX, and import no JAX themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type, FunctionType, ModuleType)
_OF_ARRAYS = ("aval", "shape", "dtype", "size", "nbytes", "weak_type", "sharding", "committed")


class Summaries:
    """What stands beside a variable's name: pydevd's `StrPresentationProvider`.

        {'w': Array([[0.1, …    becomes    dict · 2 leaves · 16 elements · 64 B · float32 100 %

    Walks at most 10,000 rows or 50 ms of each tree, and reads no value. All else is shown as without it.

    Args:
      has_another: Whether another provider presents a class, which then stays as it is.
    """

    def __init__(self, has_another: Callable[[type, str], bool] = lambda cls, name: False) -> None:
        self._has_another = has_another

    def can_provide(self, type_object: Any, type_name: str) -> bool:
        # pydevd asks once for each class; the class may be registered, and JAX be imported, later
        is_class = isinstance(type_object, type) and not issubclass(type_object, _PLAIN)
        return is_class and not self._has_another(type_object, type_name)

    def get_str(self, val: Any) -> str | None:
        return _guarded(lambda: _line(val))

    def get_str_in_context(self, val: Any, context: str) -> str | None:
        """In the debugger's console the first rows of a tree, and the values of an array; to copy, all as it is."""
        if context == "clipboard":
            return None
        return self.get_str(val) if context != "repl" else _guarded(lambda: _rows(val))


class ArrayFacts:
    """What an array of JAX or a tracer opens to: pydevd's `TypeResolveProvider`.

    The attributes that cost nothing. By itself pydevd reads all that there are: `x.T` computes, and adds to a trace.
    """

    def can_provide(self, type_object: Any, type_name: str) -> bool:
        jax = _jax()
        return jax is not None and issubclass(type_object, (jax.Array, jax.core.Tracer))

    def get_dictionary(self, var: Any) -> dict[str, Any]:
        found = {name: _guarded(lambda name=name: getattr(var, name)) for name in _OF_ARRAYS}
        return {name: value for name, value in found.items() if value is not None}

    def resolve(self, var: Any, attribute: str) -> Any:
        return self.get_dictionary(var).get(attribute)


def _jax() -> Any:
    """JAX, or None while it is not imported as a whole: a program may have stopped in the midst of that."""
    jax = sys.modules.get("jax")
    return None if jax is None or getattr(jax.__spec__, "_initializing", False) else jax


def _guarded(call: Callable[[], Any]) -> Any:
    try:
        return call() if _jax() is not None else None
    except Exception:  # a pane has no place for a word on it: pydevd shows what it would without us
        return None


def _line(value: Any) -> str | None:
    import numpy as np

    from treeviz.plugin.shown import is_tree
    from treeviz.prepare import scanned
    from treeviz.tree.describers import Budget
    from treeviz.views.text.cells import type_text

    jax = _jax()
    is_array = isinstance(value, (jax.Array, jax.core.Tracer, jax.ShapeDtypeStruct, np.ndarray))
    if not is_array and not is_tree(value):
        return None
    table, _ = scanned(value, None, "tree", Budget(10_000, 0.05))
    return " · ".join([type_text(table[0].facts), *([] if is_array else table.headline)])


def _rows(value: Any) -> str | None:
    from treeviz.plugin.shown import is_tree
    from treeviz.plugin.trees_in_pdb import tree_text

    return tree_text(value) if is_tree(value) else None
