"""Objects of unknown classes as text: by their fields, or by their own `repr` where no array can be in it."""

from __future__ import annotations

import types
from typing import Any

from treeviz.tree.opaque import arrays_inside, attributes, items
from treeviz.tree.safe_repr import (
    VALUE_LIMIT,
    bracket,
    class_name,
    guarded,
    has_base,
    inner_text,
    mro,
    namespace,
    plain_repr,
    qualified_name,
    value_text,
)

_MAX_DEPTH = 3
_MAX_OBJECTS = 1000  # that an object may refer to if its own `repr` is to be called


def object_text(value: Any, limit: int = VALUE_LIMIT, depth: int = 0) -> str:
    """ "Config(lr=0.1, layers=[…])": the fields, or the items of a container. Runs no code of the class."""
    cls = type(value)
    name = class_name(cls)
    if depth > _MAX_DEPTH:
        return f"{name}(…)"
    some, n = items(value, limit // 3)
    if n is not None:
        is_mapping = has_base(cls, dict, types.MappingProxyType)
        texts = (
            f"{key[1:-1]}: {text}" if is_mapping else text
            for key, text in ((key, _inner(inner, limit, depth)) for key, inner in some)
        )
        before, after = ("({", "})") if is_mapping else ("([", "])")
        return bracket(f"{name}{before}", texts, n, after, limit)
    named = fields(value)
    if not named:
        return f"<{qualified_name(cls)}>"
    return bracket(f"{name}(", (f"{key}={_inner(inner, limit, depth)}" for key, inner in named), len(named), ")", limit)


def _inner(value: Any, limit: int, depth: int) -> str:
    text = inner_text(value, limit // 2, depth + 1, object_text)
    return text if len(text) <= limit // 2 else text[: limit // 2 - 1] + "…"


def fields(value: Any) -> list[tuple[str, Any]]:
    """The attributes of an object, public ones first, without those that Python or a library keeps for itself."""
    named = [(name, inner) for name, inner in attributes(value) if not name.startswith("__")]
    return sorted(named, key=lambda pair: pair[0].startswith("_"))


def own_text(value: Any, limit: int = VALUE_LIMIT, depth: int = 0) -> str:
    """The class's own `repr` if it defines one and the object refers to no array, else `object_text`."""
    owner = next(base for base in mro(type(value)) if "__repr__" in namespace(base))
    if owner is not object:
        found = arrays_inside(value, _MAX_OBJECTS)
        if found.is_all and not found.n_arrays:
            return guarded(lambda: plain_repr(value, limit), lambda _: object_text(value, limit, depth))
    return object_text(value, limit, depth)


def static_text(value: Any) -> str:
    """As `value_text`; objects of unknown classes, also inside tuples, dicts and sets, by their own `repr`."""
    return value_text(value, of_object=own_text)
