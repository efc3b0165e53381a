"""Which stored attribute of a node is which of its children, told by identity."""

from __future__ import annotations

import enum
import types
from collections import namedtuple
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np

from treeviz.tree.safe_repr import guarded, has_base, mro

_MAX_ATTRIBUTES = 1000
# One object may stand for all equal ones, so identity says nothing.
_INTERNED = (type(None), bool, int, str, bytes, type, enum.Enum, np.dtype, type(Ellipsis), type(NotImplemented))
MISSING = object()
_TUPLE_FIELD = type(namedtuple("_", "field").field)  # type: ignore[attr-defined]


def is_interned(cls: type) -> bool:
    """Whether equal objects of the class may be one object, though nobody shares them on purpose."""
    return has_base(cls, *_INTERNED)


def attribute_of_each(node: Any, children: Sequence[Any]) -> list[str]:
    """For each child the name of the attribute that is this very object, or "" where that is not certain.

    Of several such attributes the only public one is named.
    """
    names: dict[int, list[str]] = {}
    for name, value in stored_items(node).items():
        names.setdefault(id(value), []).append(name)
    are_sure = (id(child) in names and not is_interned(type(child)) for child in children)
    return [_only(node, names[id(child)]) if is_sure else "" for child, is_sure in zip(children, are_sure, strict=True)]


def stored_items(node: Any) -> dict[str, Any]:
    """The first stored attributes, slots and fields of a named tuple. Runs no code of the class."""
    items = islice(stored_attributes(node).copy().items(), _MAX_ATTRIBUTES)
    found = {name: value for name, value in items if type(name) is str}
    for base in mro(type(node)):
        for name, descriptor in list(type.__dict__["__dict__"].__get__(base).items()):
            if type(descriptor) in (types.MemberDescriptorType, _TUPLE_FIELD) and name not in found:
                found[name] = guarded(lambda descriptor=descriptor: descriptor.__get__(node), lambda _: MISSING)
    return found


def _only(node: Any, names: list[str]) -> str:
    if len(names) > 1:
        names = [name for name in names if not name.startswith("_")]
    if len(names) != 1:
        return ""
    is_shadowed = any(has_base(type(base.__dict__.get(names[0])), property) for base in mro(type(node)))
    return "" if is_shadowed else names[0]


def stored_attributes(node: Any) -> dict[str, Any]:
    """The `__dict__` of an object; slots are not included."""
    try:
        stored = object.__getattribute__(node, "__dict__")
    except KeyboardInterrupt:
        raise
    except BaseException:  # missing, or shadowed by a property
        return {}
    return stored if type(stored) is dict else {}


def stored_attribute(node: Any, name: str) -> Any:
    """The value of a stored attribute: an instance attribute, a slot or a field of a named tuple.

    Never runs a property or a `__getattr__`. MISSING if there is none.
    """
    found = stored_attributes(node).get(name, MISSING)
    if found is not MISSING:
        return found
    for cls in mro(type(node)):
        descriptor: Any = cls.__dict__.get(name)
        if type(descriptor) in (types.MemberDescriptorType, _TUPLE_FIELD):
            return guarded(lambda descriptor=descriptor: descriptor.__get__(node), lambda _: MISSING)
    return MISSING
