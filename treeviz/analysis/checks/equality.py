"""How JAX compares static data that holds arrays: what happens where `==` meets them."""

from __future__ import annotations

import types
from collections import deque
from typing import Any, Literal

import jax
import numpy as np

from treeviz.tree.opaque import arrays_in, contents
from treeviz.tree.safe_repr import class_attribute, guarded, has_base, is_function

How = Literal["arrays", "identity", "own", "function"]
_MAX_OBJECTS = 2_000  # that are looked at in the static data of one node
_CONTAINERS = (list, tuple, dict, deque, types.MappingProxyType)
_GENERATED = ("<string>", "<attrs generated")  # where dataclasses and attrs compile the methods that they write


def comparison(aux: Any) -> How:
    """What `==` of auxiliary data that holds arrays compares; runs no code of the user's.

    Returns:
      "arrays": the arrays, whose `==` has no truth value. They are in containers, or in fields of dataclasses.
      "identity": objects that are equal only to themselves. "own": objects whose class has an `==` of its own.
      "function": functions, which captured the arrays. The first of these that is found.
    """
    found: set[How] = set()
    waiting, seen = deque([aux]), set[int]()
    while waiting and len(seen) < _MAX_OBJECTS:
        value = waiting.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        cls = type(value)
        if has_base(cls, np.ndarray) or isinstance(value, jax.Array):
            found.add("arrays" if guarded(lambda value=value: value.size != 1, lambda _: True) else "identity")
        elif _is_compared_by_contents(cls):
            skipped = _not_compared(cls)
            waiting += [inner for path, inner in contents(value, _MAX_OBJECTS) if path not in skipped]
        elif arrays_in([("", value)], _MAX_OBJECTS).n_arrays:
            is_own = class_attribute(cls, "__eq__") is not object.__eq__
            found.add("function" if is_function(cls) else "own" if is_own else "identity")
    order: tuple[How, ...] = ("arrays", "identity", "own")
    return next((how for how in order if how in found), "function" if found else "own")


def _is_compared_by_contents(cls: type) -> bool:
    equal = class_attribute(cls, "__eq__")
    if type(equal) is types.FunctionType:
        return equal.__code__.co_filename.startswith(_GENERATED)
    return has_base(cls, *_CONTAINERS)


def _not_compared(cls: type) -> set[str]:
    """The fields of a dataclass that its `==` leaves out, as paths: {".cache"}."""
    fields = class_attribute(cls, "__dataclass_fields__", {})
    return guarded(lambda: {f".{name}" for name, each in fields.items() if not each.compare}, lambda _: set())
