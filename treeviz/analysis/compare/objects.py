"""Compare two leaves that are neither arrays nor numbers: texts, functions, and objects of other classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from treeviz.analysis.compare.elements import Gap
from treeviz.analysis.compare.nodes import Finding
from treeviz.analysis.compare.values import gap_texts
from treeviz.tree.attributes import stored_items
from treeviz.tree.safe_repr import array_text, class_attribute, guarded, value_text

_DEEPEST = 4  # attributes of attributes
_MOST = 60  # attributes of an object: the others would not be seen

Compare = Callable[[Any, Any], Gap | str | None]


def compare_objects(left: Any, right: Any, are_functions: bool, compare: Compare) -> Finding | None:
    """How two leaves differ; None if they are equal.

    Objects of a class without an `==` of its own, which are equal to themselves alone, are compared by what they hold.

    Args:
      compare: Of two arrays of one shape: how they differ, why this is not known, or None.
    """
    if _are_equal(left, right):
        return None
    hint, cls = "functions are compared by identity" if are_functions else "", type(left)
    if cls is type(right) and not are_functions and class_attribute(cls, "__eq__") is object.__eq__:
        mine, other = _held(left), _held(right)
        if mine and mine.keys() == other.keys():
            hint = _first_told(mine, other, "", compare, _DEEPEST)
            if not hint:
                return None
    return "value", value_text(left, 60), value_text(right, 60), hint


def _are_equal(left: Any, right: Any) -> bool:
    return left is right or guarded(lambda: type(left) is type(right) and bool(left == right), lambda _: False)


def _held(each: Any) -> dict[str, Any]:
    """What an object holds, by the Python that leads to it; nothing if it is too much. Runs no code of its class."""
    if type(each) is list or type(each) is tuple:
        held = {f"[{i}]": value for i, value in enumerate(each[: _MOST + 1])}
    elif type(each) is dict:
        held = {f"[{value_text(key)}]": value for key, value in each.items()} if len(each) <= _MOST else {}
    else:
        held = {f".{name}": value for name, value in guarded(lambda: stored_items(each), lambda _: {}).items()}
    return held if len(held) <= _MOST else {}


def _first_told(mine: dict[str, Any], other: dict[str, Any], above: str, compare: Compare, deepest: int) -> str:
    told = (_told(mine[name], other[name], above + name, compare, deepest) for name in mine)
    return next(filter(None, told), "")


def _told(a: Any, b: Any, name: str, compare: Compare, deepest: int) -> str:
    """How two things that objects hold differ: ".w: 1 → 2 (at [0]; 1 of 3 differ)"; "" if they are the same."""
    if guarded(lambda: all(isinstance(each, jax.Array | np.ndarray) for each in (a, b)), lambda _: False):
        texts = [array_text(each) or "" for each in (a, b)]
        found = compare(a, b) if texts[0] == texts[1] else " → ".join(texts)
        if found is None or isinstance(found, str):
            return f"{name}: {found}" if found else ""
        (_, left, right, hint), *_ = gap_texts(found)
        return f"{name}: {' → '.join(filter(None, (left, right)))}" + f" ({hint})" * bool(hint)
    if _are_equal(a, b):
        return ""
    mine, other = _held(a), _held(b)
    if type(a) is type(b) and mine and mine.keys() == other.keys() and deepest:
        return _first_told(mine, other, name, compare, deepest - 1)
    return f"{name}: {value_text(a, 40)} → {value_text(b, 40)}"
