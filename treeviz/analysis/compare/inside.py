"""Where two static values differ inside: the fields of a dataclass, the items of a dict, the elements of a tuple."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, NamedTuple

from treeviz.tree.attributes import stored_items
from treeviz.tree.safe_repr import guarded, has_base, is_jaxpr, value_text

_DEEPEST = 6  # attributes of attributes
_MOST = 2_000  # pairs that are compared
_MOST_TOLD = 10
_CLOSED = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)


class Part(NamedTuple):
    """What two values hold in one place.

    Attributes:
      name: The Python that leads to it, "static_fields['axis']"; "" is the value itself.
      key: The last key or attribute of it, or None.
    """

    name: str
    key: Any
    left: Any
    right: Any


def parts_that_differ(left: Any, right: Any, are_same: Callable[[Any, Any], bool]) -> list[Part]:
    """The first of the innermost parts that differ of two values that do; none if no part does.

    Runs no code of their classes but what `are_same` runs. Values that hold themselves are opened a few levels deep.
    """
    found, n_left = list[Part](), _MOST
    waiting = [(Part("", None, left, right), 0)]
    while waiting and n_left and len(found) < _MOST_TOLD:
        part, depth = waiting.pop()
        held = [_held(each) for each in part[2:]] if depth < _DEEPEST and type(part.left) is type(part.right) else []
        below = _pairs(part, *held) if held else []
        n_left -= min(n_left, len(below))
        unlike = [each for each in below[:n_left] if not are_same(each.left, each.right)]
        if unlike:
            waiting += [(each, depth + 1) for each in reversed(unlike)]
        elif depth:
            found.append(part)
    return found


def _held(each: Any) -> dict[Any, Any]:
    """What a value holds, by index, key or name of the attribute; nothing if it is too much."""
    cls = type(each)
    if is_jaxpr(cls):  # equal to itself alone, and read as a whole: the variables of each trace are new
        return {}
    if cls is list or cls is tuple:
        held = dict(enumerate(each[: _MOST + 1]))
    elif cls is dict:
        held = dict(each) if len(each) <= _MOST else {}
    else:
        held = {} if has_base(cls, *_CLOSED) else guarded(lambda: stored_items(each), lambda _: {})
    return held if len(held) <= _MOST else {}


def _pairs(part: Part, mine: dict[Any, Any], other: dict[Any, Any]) -> list[Part]:
    """What both hold in each place; nothing where the places are not the same."""
    if guarded(lambda: mine.keys() != other.keys(), lambda _: True):
        return []
    is_object = type(part.left) not in (list, tuple, dict)
    names = [f".{key}" if is_object else f"[{value_text(key, 40)}]" for key in mine]
    return [
        Part((part.name + name).removeprefix("."), key, value, other[key])
        for name, (key, value) in zip(names, mine.items(), strict=True)
    ]
