"""Objects that are leaves for JAX, as text: functions, fields and items, and the arrays that JAX cannot see in them.

Runs no code of the object's class.
"""

from __future__ import annotations

import functools
import gc
import os
import types
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import PurePath
from typing import Any, NamedTuple

import jax
import numpy as np

from treeviz.tree.facts import Note
from treeviz.tree.keys import MISSING, stored_attributes
from treeviz.tree.text import (
    VALUE_LIMIT,
    array_bytes,
    array_text,
    bracket,
    bytes_text,
    class_attribute,
    class_name,
    function_name,
    guarded,
    has_base,
    inner_text,
    is_function,
    is_jaxpr,
    module_name,
    mro,
    namespace,
    plain_repr,
    qualified_name,
    unboxed,
    value_text,
    visible,
)

# Functions as leaves and as pytrees: name, file, line and captured values

_MAX_WRAPPERS = 16


def describe_function(function: Any) -> str:
    """ "relu  jax/_src/nn/functions.py:93", "grad of loss  demo/train.py:12"; without a place if not in Python."""
    jaxpr = _jaxpr(function)
    if jaxpr is not None and (traced := guarded(lambda: _traced(jaxpr), lambda _: "")):
        return traced
    transformations, inner = unwrapped(unboxed(function))
    name, code = transformations + function_name(inner), code_of(inner)
    return name if code is None else f"{name}  {_short_path(code.co_filename)}:{code.co_firstlineno}"


def _jaxpr(function: Any) -> Any:
    """The jaxpr in a function that JAX made, such as the result of `jax.linearize`; None for others."""
    function = unboxed(function)
    if not has_base(type(function), functools.partial):
        return None
    arguments = functools.partial.args.__get__(function)
    return next((argument for argument in arguments[:4] if is_jaxpr(type(argument))), None)


def _traced(jaxpr: Any) -> str:
    """ "linearize of loss  demo/train.py:12"; "" if this jax does not say."""
    info = jaxpr.debug_info
    name, _, place = info.func_src_info.partition(" at ")
    return f"{info.traced_for} of {visible(name, 80)}  {_short_path(place)}" if place else ""


def _short_path(path: str) -> str:
    return visible("/".join(PurePath(path).parts[-2:]), 80)


def captured(function: Any) -> tuple[tuple[str, str], ...]:
    """(name, text) of each captured value, such as "float32[3] (12 B)" for an array."""
    jaxpr = _jaxpr(function)
    if jaxpr is not None:
        return (("jaxpr", value_text(jaxpr)),)
    values = [(visible(name), value, array_text(value)) for name, value in captured_values(function)]
    as_array = lambda value, array: f"{array} ({bytes_text(array_bytes(value))})"  # noqa: E731
    return tuple([(name, value_text(x) if array is None else as_array(x, array)) for name, x, array in values])


def captured_values(function: Any) -> list[tuple[str, Any]]:
    """(name, value) of closure variables, a partial's arguments, and a method's self."""
    values: list[tuple[str, Any]] = []
    for _ in range(8):
        function = unboxed(function)
        if type(function) is types.MethodType:
            values.append(("self", function.__self__))
            function = function.__func__
        if has_base(type(function), functools.partial):
            values += [(f"argument {i}", value) for i, value in enumerate(functools.partial.args.__get__(function))]
            values += list(functools.partial.keywords.__get__(function).items())
            function = unboxed(functools.partial.func.__get__(function))
        code, cells = code_of(function, unwrap=False), getattr(function, "__closure__", None) or ()
        inner = guarded(lambda function=function: getattr(function, "__wrapped__", None), lambda _: None)
        if code is not None and (inner is None or not is_code_of_jax(code)):
            contents = (guarded(lambda cell=cell: cell.cell_contents, lambda _: "(not set yet)") for cell in cells)
            pairs = zip(code.co_freevars, contents, strict=False)
            values += [(name, value) for name, value in pairs if inner is None or value is not inner]
        if inner is None:
            break
        function = inner
    return values[:32]


def code_of(function: Any, unwrap: bool = True) -> types.CodeType | None:
    """The code object of a Python function, through partials and wrappers; None for others."""
    for _ in range(16):
        function = unboxed(function)
        if has_base(type(function), functools.partial):
            function = functools.partial.func.__get__(function)
            continue
        inner = unwrapped(function)[1] if unwrap else function
        if inner is function:
            break
        function = inner
    code = guarded(lambda: getattr(function, "__code__", None), lambda _: None)
    return code if type(code) is types.CodeType else None


def unwrapped(function: Any) -> tuple[str, Any]:
    """("grad of vmap of ", f) for `jax.grad(jax.vmap(f))`: JAX's transformations, and the innermost function."""
    names = ""
    for _ in range(_MAX_WRAPPERS):
        inner = guarded(lambda function=function: getattr(function, "__wrapped__", None), lambda _: None)
        if inner is None:
            break
        name = guarded(lambda function=function: _transformation(function), lambda _: "")
        names += f"{name} of " if name else ""
        function = inner
    return names, function


def _transformation(wrapper: Any) -> str:
    """The public function of JAX that made a wrapper; "" for other wrappers."""
    code = wrapper.__code__
    if code.co_qualname.startswith("api_boundary."):  # around every function that JAX returns
        cells = dict(zip(code.co_freevars, wrapper.__closure__, strict=True))
        code = cells["fun"].cell_contents.__code__
    name, _, is_local = code.co_qualname.lstrip("_").partition(".<locals>.")
    is_known = is_local and is_code_of_jax(code) and (name in vars(jax) or name in vars(jax.numpy))
    return name if is_known else ""


def is_code_of_jax(code: types.CodeType) -> bool:
    return code.co_filename.startswith(os.path.dirname(jax.__file__) + os.sep)


MAX_OBJECTS = 10_000  # visited in one search
_MAX_NAMED = 32  # arrays listed with their path
_MAX_ITEMS = 300
_MAX_PLANS = 4096
_NOTHING_INSIDE = (str, bytes, bytearray, int, float, complex, type(None), type, types.ModuleType, types.CodeType)
_ATOMS = frozenset(map(id, (*_NOTHING_INSIDE, bool)))
_ABSTRACT = ("ShapeDtypeStruct", "ShapedArray", "ArgInfo", "AbstractRef")  # JAX classes without values
_VIEWS = tuple(map(type, ({}.keys(), {}.values(), {}.items())))
_SEQUENCES = (list, tuple, set, frozenset, deque, *_VIEWS)


class Found(NamedTuple):
    """The arrays inside an object."""

    named: tuple[tuple[str, str], ...] = ()  # (path, "float32[3,4]") of the first arrays, shallowest first
    n_arrays: int = 0
    n_bytes: int = 0  # of all arrays found
    n_objects: int = 0  # visited
    is_all: bool = True  # whether the search visited everything inside

    @property
    def details(self) -> tuple[tuple[str, str], ...]:
        """`named`, and the number of further arrays."""
        n_more = self.n_arrays - len(self.named)
        return (*self.named, ("…", f"{n_more:,} more")) if n_more else self.named


class _Plan(NamedTuple):
    cls: weakref.ref
    is_empty: bool  # no contents
    may_be_array: bool
    is_closed: bool  # of JAX or NumPy: its contents are not the user's data
    is_function: bool
    container: type | None  # its builtin container class
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
    arrays, seen = list[tuple[str, str]](), set[int]()
    n_arrays = n_bytes = n_objects = 0
    level, path, queue = named, "", deque()
    while True:
        for step, value in level:
            if n_objects == max_objects:
                return Found(tuple(arrays), n_arrays, n_bytes, n_objects, False)
            n_objects += 1
            cls = type(value)
            if id(cls) in _ATOMS or id(value) in seen or (plan := _plan_of(cls)).is_empty:
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
    """At most `n + 1` contents of an object, or what a function captured."""
    if _plan_of(type(value)).is_function:
        return [(step_to(name), inner) for name, inner in captured_values(value)]
    return contents(value, n + 1)


def step_to(name: str) -> str:
    """ ".name", "[3]", "(argument 0)"."""
    name = visible(name, 80)
    return f".{name}" if name.isidentifier() else name if name.startswith("[") else f"({name})"


def contents(value: Any, most: int = _MAX_ITEMS) -> list[tuple[str, Any]]:
    """(".name" or "[key]", value) of attributes, slots and first items; none for objects of JAX and NumPy."""
    if _plan_of(type(value)).is_closed:
        return []
    pairs = [*items(value, most)[0], *[(f".{name}", inner) for name, inner in attributes(value)]]
    return pairs[:most]


def items(value: Any, most: int) -> tuple[Sequence[tuple[str, Any]], int | None]:
    """("[key]", value) of the first items of a builtin container or its subclass, and of how many; None for others."""
    container = _plan_of(type(value)).container
    if container is None:
        return (), None
    if container is types.MappingProxyType:
        (value,) = gc.get_referents(value)  # its methods would call those of the mapping
        return items(value, most)
    if container is dict:
        pairs = list(islice(dict.items(value), most))
        return [(f"[{value_text(key, 40)}]", inner) for key, inner in pairs], dict.__len__(value)
    some = list(islice(container.__iter__(value), most))
    return [(f"[{i}]", inner) for i, inner in enumerate(some)], container.__len__(value)


def attributes(value: Any) -> list[tuple[str, Any]]:
    """(name, value) of the stored attributes, of slots that are set, and of the fields of a named tuple."""
    plan = _plan_of(type(value))
    pairs: list[tuple[str, Any]] = []
    if plan.names is not None:
        pairs += zip(plan.names, tuple.__iter__(value), strict=False)
    if plan.is_exception:
        pairs.append(("args", BaseException.args.__get__(value)))  # type: ignore[attr-defined]
    stored = stored_attributes(value)
    pairs += [(visible(name, 40), inner) for name, inner in list(stored.items()) if has_base(type(name), str)]
    slots = ((name, guarded(lambda slot=slot: slot.__get__(value), lambda _: MISSING)) for name, slot in plan.slots)
    return pairs + [(name, inner) for name, inner in slots if inner is not MISSING]


def _slots(cls: type) -> Iterator[tuple[str, Any]]:
    """The name and descriptor of each slot, bases first, in the order of `__slots__`."""
    for base in reversed(mro(cls)):
        inside = {} if module_name(base) == "builtins" else namespace(base)
        names = [name for name, slot in list(inside.items()) if type(slot) is types.MemberDescriptorType]
        declared: Any = inside.get("__slots__")
        if type(declared) is tuple and all(type(name) is str for name in declared):
            order = {name: i for i, name in enumerate(declared)}
            names.sort(key=lambda name, order=order: order.get(name, len(order)))
        yield from ((visible(name, 40), inside[name]) for name in names)


def _field_names(cls: type) -> tuple[str, ...] | None:
    names = class_attribute(cls, "_fields")
    return tuple(visible(name, 40) for name in names if has_base(type(name), str)) if type(names) is tuple else None


# Objects of unknown classes as text: their fields, or their own `repr` if it cannot contain an array

_MAX_DEPTH = 3
_MAX_OBJECTS = 1000  # an object that refers to more is never shown by its own `repr`


def object_text(value: Any, limit: int = VALUE_LIMIT, depth: int = 0) -> str:
    """ "Config(lr=0.1, layers=[…])": the fields, or the items of a container. Runs no code of the class."""
    cls = type(value)
    name = class_name(cls)
    if depth > _MAX_DEPTH:
        return f"{name}(…)"
    shown, n = items(value, limit // 3)
    if n is not None:
        is_mapping = has_base(cls, dict, types.MappingProxyType)
        texts = (f"{key[1:-1]}: " * is_mapping + _inner(inner, limit, depth) for key, inner in shown)
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
    """The attributes of an object, public ones first, without dunder attributes."""
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
    """Like `value_text`, but shows objects of unknown classes, even in containers, by their own `repr`."""
    return value_text(value, of_object=own_text)


# Search the opaque leaves of a walk, within one budget for all of them

MAX_FIELDS = 16
_IN_AVAL = ("shape", "dtype", "_aval")  # what the type of an array-like leaf shows
_MAX_VALUE = 60  # characters
_MAX_TEXT = 600  # characters of one leaf
_WALK_TEXT = 400_000  # characters of all leaves
_WALK_OBJECTS = 200_000  # visited in all leaves
_LEAST_OBJECTS = 32  # visited in every leaf


class Inside:
    """Searches the opaque leaves of one walk."""

    def __init__(self) -> None:
        self._characters_left = _WALK_TEXT
        self._objects_left = _WALK_OBJECTS

    def note(self, leaf: Any) -> Note | None:
        """The arrays that a leaf hides from JAX. A leaf may use an eighth of the remaining budget."""
        found = arrays_inside(leaf, max(_LEAST_OBJECTS, self._objects_left // 8))
        self._objects_left = max(0, self._objects_left - found.n_objects)
        if found.n_arrays:
            text = f"{hidden(found)}: {class_name(type(leaf))} is not registered as a pytree node"
            return Note("hidden", text + stopped(found), details=found.details)
        text = f"no array among the first {found.n_objects:,} objects inside; the others were not searched"
        return None if found.is_all else Note("info", text)

    def fields(self, leaf: Any, is_array_like: bool = False) -> tuple[tuple[str, str], ...]:
        """(name, text) of the first items and fields of a leaf. Runs no code of its class."""
        return guarded(lambda: self._fields(leaf, _IN_AVAL if is_array_like else ()), lambda _: ())

    def _fields(self, leaf: Any, shown: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
        shown_items, n_items = items(leaf, MAX_FIELDS)
        others = [pair for pair in fields(leaf) if pair[0] not in shown]
        texts, until = list[tuple[str, str]](), self._characters_left - min(_MAX_TEXT, self._characters_left)
        for name, value in [*shown_items, *others][:MAX_FIELDS]:
            if self._characters_left <= until:
                break
            texts.append((name, value_text(value, _MAX_VALUE, object_text)))
            self._characters_left -= len(name) + len(texts[-1][1])
        n_more = (n_items or 0) + len(others) - len(texts)
        return (*texts, ("…", f"{n_more:,} more")) if n_more > 0 else tuple(texts)


def hidden(found: Found) -> str:
    """ "at least 2 hidden arrays (4.0 kB)"."""
    size = f" ({bytes_text(found.n_bytes)})" if found.n_bytes else ""
    at_least = "" if found.is_all else "at least "
    return f"{at_least}{found.n_arrays:,} hidden array{'s' * (found.n_arrays > 1)}{size}"


def stopped(found: Found) -> str:
    """Where an incomplete search stopped; "" if it was complete."""
    return "" if found.is_all else f" (the search stopped after {found.n_objects:,} objects)"
