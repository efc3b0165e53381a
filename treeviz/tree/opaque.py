"""What an object holds that is a leaf for JAX: its fields and items, and the arrays that JAX cannot see.

Runs no code of the object's class.
"""

from __future__ import annotations

import gc
import types
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from treeviz.tree.functions import captured_values
from treeviz.tree.keys import MISSING, stored_attributes
from treeviz.tree.safe_repr import (
    array_bytes,
    array_text,
    class_attribute,
    class_name,
    guarded,
    has_base,
    is_function,
    module_name,
    mro,
    namespace,
    value_text,
    visible,
)

MAX_OBJECTS = 10_000  # that one search looks at
_MAX_NAMED = 32  # arrays whose path is told
_MAX_ITEMS = 300
_MAX_PLANS = 4096
_NOTHING_INSIDE = (str, bytes, bytearray, int, float, complex, type(None), type, types.ModuleType, types.CodeType)
_ATOMS = frozenset(map(id, (*_NOTHING_INSIDE, bool)))
_ABSTRACT = ("ShapeDtypeStruct", "ShapedArray", "ArgInfo", "AbstractRef")  # of JAX: no values
_VIEWS = tuple(map(type, ({}.keys(), {}.values(), {}.items())))
_SEQUENCES = (list, tuple, set, frozenset, deque, *_VIEWS)


class Found(NamedTuple):
    """The arrays inside an object.

    Attributes:
      named: (path, "float32[3,4]") of the first ones, shallowest first.
      n_arrays, n_bytes: Of all that were found.
      n_objects: How many objects were looked at.
      is_all: Whether the search has seen everything inside.
    """

    named: tuple[tuple[str, str], ...] = ()
    n_arrays: int = 0
    n_bytes: int = 0
    n_objects: int = 0
    is_all: bool = True

    @property
    def details(self) -> tuple[tuple[str, str], ...]:
        """`named`, and how many more there are."""
        n_more = self.n_arrays - len(self.named)
        return (*self.named, ("…", f"{n_more:,} more")) if n_more else self.named


class _Plan(NamedTuple):
    """How to look into the objects of a class."""

    cls: weakref.ref
    is_empty: bool  # nothing inside
    may_be_array: bool
    is_closed: bool  # of JAX or NumPy: its contents are no data of the user's
    is_function: bool
    container: type | None  # the builtin container that it is
    names: tuple[str, ...] | None  # of the fields of a named tuple
    is_exception: bool
    slots: tuple[tuple[str, Any], ...]


_plans: dict[int, _Plan] = {}  # by the class's id: a metaclass may have no usable hash


def _plan_of(cls: type) -> _Plan:
    plan = _plans.get(id(cls))
    if plan is None or plan.cls() is not cls:
        if len(_plans) >= _MAX_PLANS:
            _plans.clear()
        plan = _plans[id(cls)] = _new_plan(cls)
    return plan


def _new_plan(cls: type) -> _Plan:
    library = module_name(cls).partition(".")[0]
    names = _field_names(cls) if has_base(cls, tuple) else None
    containers = () if names is not None else (dict, *_SEQUENCES, types.MappingProxyType)
    return _Plan(
        weakref.ref(cls),
        is_empty=has_base(cls, *_NOTHING_INSIDE),
        may_be_array=has_base(cls, np.ndarray) or library in ("jax", "jaxlib", "torch", "tensorflow"),
        is_closed=library in ("jax", "jaxlib", "numpy"),
        is_function=is_function(cls),
        container=next((base for base in containers if has_base(cls, base)), None),
        names=names,
        is_exception=has_base(cls, BaseException),
        slots=tuple(_slots(cls)),
    )


def arrays_inside(value: Any, max_objects: int = MAX_OBJECTS) -> Found:
    """The arrays that an object refers to; see `arrays_in`."""
    if _plan_of(type(value)).is_empty:
        return Found()
    return arrays_in(guarded(lambda: _within(value, max_objects), lambda _: []), max_objects)


def arrays_in(named: Iterable[tuple[str, Any]], max_objects: int = MAX_OBJECTS) -> Found:
    """The arrays that the values are or refer to, breadth first.

    Follows stored attributes, slots, the contents of the builtin containers, and what functions captured.
    """
    arrays: list[tuple[str, str]] = []
    n_arrays = n_bytes = n_objects = 0
    seen: set[int] = set()
    level, path, queue = named, "", deque()
    while True:
        for step, value in level:
            if n_objects == max_objects:
                return Found(tuple(arrays), n_arrays, n_bytes, n_objects, False)
            n_objects += 1
            cls = type(value)
            if id(cls) in _ATOMS or id(value) in seen:
                continue
            plan = _plan_of(cls)
            if plan.is_empty:
                continue
            seen.add(id(value))
            text = array_text(value) if plan.may_be_array else None
            if text is None:
                queue.append((path + step, value))
            elif class_name(cls) not in _ABSTRACT:
                n_arrays += 1
                n_bytes += array_bytes(value)
                if len(arrays) < _MAX_NAMED:
                    arrays.append((visible(path + step), text))
        if not queue:
            return Found(tuple(arrays), n_arrays, n_bytes, n_objects)
        path, value = queue.popleft()
        n_left = max_objects - n_objects
        level = guarded(lambda value=value, n_left=n_left: _within(value, n_left), lambda _: [])


def _within(value: Any, n: int) -> Sequence[tuple[str, Any]]:
    """The contents of an object, one more than `n` at most; what a function captured."""
    if _plan_of(type(value)).is_function:
        return [(step_to(name), inner) for name, inner in captured_values(value)]
    return contents(value, n + 1)


def step_to(name: str) -> str:
    """ ".name", "[3]", "(argument 0)"."""
    name = visible(name, 80)
    return f".{name}" if name.isidentifier() else name if name.startswith("[") else f"({name})"


def contents(value: Any, most: int = _MAX_ITEMS) -> list[tuple[str, Any]]:
    """(".name" or "[key]", value) of an object's attributes and slots, and of the first items of a builtin container.

    Objects of JAX and NumPy have none.
    """
    if _plan_of(type(value)).is_closed:
        return []
    found = [*items(value, most)[0], *[(f".{name}", inner) for name, inner in attributes(value)]]
    return found[:most]


def items(value: Any, most: int) -> tuple[Sequence[tuple[str, Any]], int | None]:
    """("[key]", value) of the first items of a builtin container or its subclass, and the number of all.

    None instead of the number: it is no such container.
    """
    container = _plan_of(type(value)).container
    if container is None:
        return (), None
    if container is types.MappingProxyType:
        (value,) = gc.get_referents(value)  # its methods would run those of the mapping
        return items(value, most)
    if container is dict:
        pairs = list(islice(dict.items(value), most))
        return [(f"[{value_text(key, 40)}]", inner) for key, inner in pairs], dict.__len__(value)
    first = list(islice(container.__iter__(value), most))
    return [(f"[{i}]", inner) for i, inner in enumerate(first)], container.__len__(value)


def attributes(value: Any) -> list[tuple[str, Any]]:
    """(name, value) of the stored attributes, of slots that are set, and of the fields of a named tuple."""
    plan = _plan_of(type(value))
    found: list[tuple[str, Any]] = []
    if plan.names is not None:
        found += zip(plan.names, tuple.__iter__(value), strict=False)
    if plan.is_exception:
        found.append(("args", BaseException.args.__get__(value)))  # type: ignore[attr-defined]
    stored = stored_attributes(value)
    found += [(visible(name, 40), inner) for name, inner in list(stored.items()) if has_base(type(name), str)]
    for name, slot in plan.slots:
        inner = guarded(lambda slot=slot: slot.__get__(value), lambda _: MISSING)
        if inner is not MISSING:
            found.append((name, inner))
    return found


def _slots(cls: type) -> Iterator[tuple[str, Any]]:
    """The name and the descriptor of each slot, those of bases first, in the order of `__slots__`."""
    for base in reversed(mro(cls)):
        inside = {} if module_name(base) == "builtins" else namespace(base)
        names = [name for name, slot in list(inside.items()) if type(slot) is types.MemberDescriptorType]
        declared: Any = inside.get("__slots__")
        if type(declared) is tuple and all(type(name) is str for name in declared):
            order = {name: i for i, name in enumerate(declared)}
            names.sort(key=lambda name, order=order: order.get(name, len(order)))
        yield from ((visible(name, 40), inside[name]) for name in names)


def _field_names(cls: type) -> tuple[str, ...] | None:
    """The field names of a named tuple's class, else None."""
    names = class_attribute(cls, "_fields")
    return tuple(visible(name, 40) for name in names if has_base(type(name), str)) if type(names) is tuple else None
