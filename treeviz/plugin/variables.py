"""The variables pane of a debugger: shapes and dtypes of trees, arrays and tracers instead of their values.

pydevd, the debugger of VS Code, JupyterLab and PyCharm, finds the two providers through `pydevd_plugin_treeviz.py`.
They do nothing until the debugged program has imported JAX, and import no JAX themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type, FunctionType, ModuleType)
_ARRAY_ATTRIBUTES = ("aval", "shape", "dtype", "size", "nbytes", "weak_type", "sharding", "committed")


class Summaries:
    """The text next to a variable's name: pydevd's `StrPresentationProvider`.

        {'w': Array([[0.1, …    becomes    dict · 2 leaves · 16 elements · 64 B · float32 100 %

    Walks at most 10,000 rows or 50 ms of each tree, and reads no values. Other variables are shown as usual.
    `has_another` returns whether another provider presents a class, which then takes precedence.
    """

    def __init__(self, has_another: Callable[[type, str], bool] = lambda cls, name: False) -> None:
        self._has_another = has_another

    def can_provide(self, type_object: Any, type_name: str) -> bool:
        # pydevd asks once per class, perhaps before the class is registered or JAX is imported.
        is_class = isinstance(type_object, type) and not issubclass(type_object, _PLAIN)
        return is_class and not self._has_another(type_object, type_name)

    def get_str(self, val: Any) -> str | None:
        return _guarded(lambda: _line(val))

    def get_str_in_context(self, val: Any, context: str) -> str | None:
        """The first rows of a tree in the debug console. Arrays there, and copies to the clipboard, are unchanged."""
        if context == "repl":
            return _guarded(lambda: _rows(val))
        return None if context == "clipboard" else self.get_str(val)


class ArrayFacts:
    """The attributes shown for a JAX array or tracer: pydevd's `TypeResolveProvider`.

    Only attributes that cost nothing. pydevd by itself reads every attribute: `x.T` computes, and adds to a trace.
    """

    def can_provide(self, type_object: Any, type_name: str) -> bool:
        jax = _jax()
        return jax is not None and issubclass(type_object, (jax.Array, jax.core.Tracer))

    def get_dictionary(self, var: Any) -> dict[str, Any]:
        values = {name: _guarded(lambda name=name: getattr(var, name)) for name in _ARRAY_ATTRIBUTES}
        return {name: value for name, value in values.items() if value is not None}

    def resolve(self, var: Any, attribute: str) -> Any:
        return self.get_dictionary(var).get(attribute)


def _jax() -> Any:
    """The jax module; None until it is fully imported, since a program may stop during the import."""
    jax = sys.modules.get("jax")
    return None if jax is None or getattr(jax.__spec__, "_initializing", False) else jax


def _guarded(call: Callable[[], Any]) -> Any:
    try:
        return call() if _jax() is not None else None
    except Exception:  # the pane cannot show an error; pydevd then shows the variable as usual
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
    from treeviz.plugin.shown import is_tree, tree_text

    return tree_text(value) if is_tree(value) else None
