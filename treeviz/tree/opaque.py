"""Look into an opaque leaf for arrays that JAX cannot see there."""

from __future__ import annotations

import types
from collections import deque
from itertools import islice
from typing import Any

from treeviz.tree.functions import is_function
from treeviz.tree.quote import array_text, guarded, has_base, module_name, mro, value_text, visible

_MAX_DEPTH = 4
_MAX_OBJECTS = 300
_MAX_FOUND = 32
_NOTHING_INSIDE = (str, bytes, bytearray, int, float, complex, bool, type(None), type, types.ModuleType, types.CodeType)


def arrays_inside(leaf: Any) -> tuple[tuple[str, str], ...]:
    """(path, "float32[3,4]") of the arrays that hang off an object, nearest first.

    Follows stored attributes, slots and the contents of the builtin containers. Runs no code of the
    object's class.
    """
    found: list[tuple[str, str]] = []
    seen, queue = {id(leaf)}, deque([("", leaf, 0)])
    n_objects = 0
    while queue and n_objects < _MAX_OBJECTS and len(found) < _MAX_FOUND:
        path, value, depth = queue.popleft()
        n_objects += 1
        for step, inner in guarded(lambda value=value: contents(value), lambda _: []):
            if id(inner) in seen or has_base(type(inner), *_NOTHING_INSIDE):
                continue
            seen.add(id(inner))
            text = array_text(inner)
            if text is not None:
                found.append((path + step, text))
            elif depth + 1 < _MAX_DEPTH and not is_function(type(inner)):
                queue.append((path + step, inner, depth + 1))
    return tuple(found[:_MAX_FOUND])


def contents(value: Any) -> list[tuple[str, Any]]:
    """(".name" or "[key]", what is there) of an object: its attributes, slots, and what a builtin container holds.

    Runs no code of the object's class.
    """
    bases = mro(type(value))
    if module_name(type(value)).partition(".")[0] in ("jax", "jaxlib", "numpy"):
        return []
    found: list[tuple[str, Any]] = []
    if has_base(type(value), dict):
        found += [(f"[{value_text(key, 40)}]", inner) for key, inner in islice(dict.items(value), _MAX_OBJECTS)]
    for sequence in (list, tuple, set, frozenset, deque):
        if has_base(type(value), sequence):
            found += [(f"[{i}]", inner) for i, inner in enumerate(islice(sequence.__iter__(value), _MAX_OBJECTS))]
    attributes = guarded(lambda: object.__getattribute__(value, "__dict__"), lambda _: None)
    if type(attributes) is dict:
        found += [(f".{visible(str(name), 40)}", inner) for name, inner in list(attributes.items())[:_MAX_OBJECTS]]
    for base in bases:
        for name, descriptor in list(type.__dict__["__dict__"].__get__(base).items()):
            if type(descriptor) is types.MemberDescriptorType and module_name(base) != "builtins":
                inner = guarded(lambda descriptor=descriptor: descriptor.__get__(value), lambda _: None)
                found.append((f".{visible(name, 40)}", inner))
    return found
