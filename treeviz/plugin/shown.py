"""Which values are displayed as trees; all others keep the display that they have."""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict, deque
from typing import Any

import jax
import numpy as np

from treeviz.tree.level import one_level
from treeviz.tree.safe_repr import error_text
from treeviz.tree.stored import Stored

_BUILTIN = (dict, list, tuple, OrderedDict, defaultdict, deque)
_ARRAYS = (jax.Array, np.ndarray, jax.ShapeDtypeStruct, Stored)
_OWN_DISPLAY = ("_ipython_display_", "_repr_mimebundle_", "_repr_html_")
_MOST_LOOKED_AT = 1000  # children


def is_shown(value: Any) -> bool:
    """Whether a value is a tree, and of a class without a display of its own."""
    return is_tree(value) and not any(callable(getattr(type(value), name, None)) for name in _OWN_DISPLAY)


def is_tree(value: Any) -> bool:
    """Whether a value is a node of a registered class, or a builtin container with an array or such a node in it.

    A bare array is none, and no container of plain values is. Looks at 1,000 values at most, whatever the container
    holds; runs the flatten functions of registered classes.
    """
    waiting, n_seen = deque([value]), 0
    while waiting and n_seen < _MOST_LOOKED_AT:
        node = waiting.popleft()
        n_seen += 1
        if _is_registered(node) or (n_seen > 1 and isinstance(node, _ARRAYS)):
            return True
        if type(node) in _BUILTIN or _is_namedtuple(node):
            inside = list(node.values()) if isinstance(node, dict) else list(node)
            waiting.extend(inside[: _MOST_LOOKED_AT - n_seen])
    return False


def name_of(value: Any, variables: dict[str, Any]) -> str:
    """The user's variable that holds the value, so that copied expressions can be run."""
    for name, other in list(variables.items()):
        if other is value and not name.startswith("_"):
            return name
    return "tree"


def _is_registered(node: Any) -> bool:
    if node is None or type(node) in _BUILTIN or _is_namedtuple(node) or isinstance(node, _ARRAYS):
        return False
    return one_level(node)[1] is not None


def _is_namedtuple(node: Any) -> bool:
    return isinstance(node, tuple) and isinstance(getattr(type(node), "_fields", None), tuple)


def tell(what: str, error: Exception) -> None:
    """Say in a line on standard error that a display failed, so that all stays as it was."""
    print(f"treeviz: {what}, since it failed with {error_text(error)}", file=sys.stderr)
