"""Rules about what a node keeps in the treedef: it is compared and hashed at every call of a jitted function."""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

import jax
import numpy as np
from jax import tree_util

from treeviz.analysis.checks.equality import comparison
from treeviz.analysis.checks.fixes import as_child, aux_attributes
from treeviz.analysis.checks.rule import MIB, Checked, Found, rule
from treeviz.tree.attributes import MISSING, stored_attribute
from treeviz.tree.aux_data import DROPPED
from treeviz.tree.facts import Facts
from treeviz.tree.functions import captured_values
from treeviz.tree.level import one_level
from treeviz.tree.numbers import bytes_text
from treeviz.tree.opaque import arrays_in, step_to
from treeviz.tree.safe_repr import array_bytes, class_name, function_name, guarded, has_base, module_name, unboxed
from treeviz.tree.source_lines import is_installed
from treeviz.tree.static import LOST

_HASHED = frozenset(map(id, (str, int, float, bool, type(None))))  # by id: a metaclass may override ==
_OPENED = (tuple, list, dict, functools.partial)
_MAX_ITEMS = 100  # of a static field that are looked at
_MAX_WRAPPERS = 16
_MAX_OBJECTS = 2_000  # that are searched for arrays behind one function


@rule("T101", "error")
def array_in_static_data(checked: Checked) -> Iterator[Found]:
    """An array is in a static field, or in a list, dict or object there.

    JAX compares static data with `==` at each call of a jitted function. The first call passes. The next one with
    another array raises "The truth value of an array is ambiguous" or "Exception raised while checking equality of
    metadata", without a path; and with the same array, changed in place, it runs the old program (jax#28659). Make
    the field a child, or keep a tuple of numbers. Arrays in an object that JAX can compare do not raise, but each
    object that is not equal compiles again: info if its class defines `==`, or if it is a function or comes from an
    installed library, else a warning for `jit`, `grad` or a state.
    """
    for row, note in checked.noted("hidden"):
        facts = checked.facts(row)
        if facts.is_leaf or facts.kind == "closure" or LOST in note.text:
            continue
        where = "".join(f" {path} {what}" for path, what in note.details[:1])
        text = f"{note.text.partition(':')[0]}:{where}"
        node = checked.nodes[row]
        how = comparison(guarded(lambda node=node: (one_level(node)[1] or (None, None))[1], lambda _: None))
        if how == "arrays":
            yield Found(row, text, as_child(node), note=note)
        else:
            is_quiet = how != "identity" or checked.use == "any" or _is_of_library(type(node))
            yield Found(row, f"{text}, {_COMPARED[how]}", "", "info" if is_quiet else "warning", note)


_COMPARED = {
    "identity": "which jit compares as a whole: each new one compiles again, and a change in place is not seen",
    "own": "which jit compares by the == of its class: what is not equal compiles again",
    "function": "of a function, which is equal only to itself: each new one compiles again",
}


@rule("T102", "warning")
def mutable_static_data(checked: Checked) -> Iterator[Found]:
    """A static field is a list, a dict, a set, or another object that cannot be hashed.

    JAX asks for static data that can be hashed. Where the object changes in place, a jitted function does not see it
    and runs the old program: what it compiled for is compared with the same object. Where it does not change, it is
    harmless. A warning if the tree is for `jit`, `grad` or a state, and else an info; for nodes of installed libraries
    an info, and else nothing.
    """
    for rows, node, fields in _static_nodes(checked):
        is_of_library = _is_of_library(type(node))
        if is_of_library and checked.use == "any":
            continue
        level = "info" if is_of_library or checked.use == "any" else None
        if any(note.kind == "hidden" for note in checked.table.notes.get(rows[0], ())):
            continue
        for name, value in fields:
            if _is_unhashable(value):
                what = f"the static field {name} is a {class_name(type(value))}, which cannot be hashed"
                fix = _hashable_fix(f"self.{name}", value, class_name(type(node)))
                for row in rows:
                    yield Found(row, f"{what}: a jitted function does not see it change in place", fix, level)


def _is_of_library(cls: type) -> bool:
    """Whether the class is from an installed package, whose authors know what they keep."""
    file = guarded(lambda: sys.modules[module_name(cls)].__file__, lambda _: None)
    return type(file) is str and is_installed(file)


def _is_unhashable(value: Any) -> bool:
    """Slices aside, which do not change, but have a hash from Python 3.12 on alone."""
    if id(type(value)) in _HASHED:
        return False
    if type(value) is slice:
        return _is_unhashable((value.start, value.stop, value.step))
    if not guarded(lambda: hash(value) is None, lambda _: True):
        return False
    return type(value) is not tuple or guarded(lambda: any(map(_is_unhashable, value)), lambda _: True)


def _hashable_fix(place: str, value: Any, owner: str) -> str:
    """Python that keeps the same as something that has a hash; "" where that depends on the class of the value."""
    if has_base(type(value), list, set, dict):
        items = f"{place}.items()" if has_base(type(value), dict) else place
        return f"{place} = tuple({items})  # in {owner}"
    can_freeze = guarded(lambda: is_dataclass(type(value)) and type(value).__hash__ is None, lambda _: False)
    name = class_name(type(value))
    return f"{name} = dataclasses.dataclass(frozen=True)({name})" if can_freeze else ""


@rule("T103", "warning")
def nan_in_static_data(checked: Checked) -> Iterator[Found]:
    """A static field is NaN.

    NaN is not equal to itself, so that a jitted function traces and compiles again for each node with another NaN
    object.
    """
    for rows, _, fields in _static_nodes(checked):
        for name, value in fields:
            if any(type(each) in (float, np.float64, np.float32) and each != each for each in _items(value)):
                for row in rows:
                    yield Found(
                        row,
                        f"the static field {name} {_is(value)} NaN: each new one compiles again",
                        f"self.{name} = None",
                    )


@rule("T104", "info")
def local_function_in_static_data(checked: Checked) -> Iterator[Found]:
    """A static function is a lambda, or was defined inside a function.

    Functions are equal only to themselves. A node that is made anew with a new lambda at each step compiles each time;
    one that is made once is fine. Functions of installed libraries are not named.
    """
    for rows, _, fields in _static_nodes(checked):
        for name, value in fields:
            for each in _items(value):
                if type(each) is types.FunctionType and _is_local(each):
                    text = f"the local function {function_name(each)}, equal only to itself"
                    for row in rows:
                        yield Found(row, f"the static field {name} {_is(value)} {text}")


def _is_local(function: types.FunctionType) -> bool:
    is_local = "<lambda>" in function.__qualname__ or "<locals>" in function.__qualname__
    return is_local and not is_installed(function.__code__.co_filename)


@rule("T105", "warning")
def function_with_large_arrays(checked: Checked) -> Iterator[Found]:
    """A function captured arrays of 1 MiB or more, or uses global ones.

    They are constants of the program: JAX may copy them into each version that it compiles, compiling may take longer,
    and a new array under the same name is not seen. As arguments, `jax.tree_util.Partial(f, array)`, they are children.
    """
    for row in checked.rows(lambda facts: facts.kind in ("function", "closure")):
        node = checked.nodes[row]
        function = node if checked.facts(row).is_leaf else _function_in(node)
        if function is not None:
            yield from _large(row, "", function)
    for rows, _, fields in _static_nodes(checked):
        for name, value in fields:
            if type(value) in (types.FunctionType, types.MethodType):
                for found in list(_large(rows[0], f"in the static field {name}, ", value)):
                    yield from (found._replace(row=row) for row in rows)


def _function_in(node: Any) -> Any:
    return guarded(lambda: node.func, lambda _: None) if has_base(type(node), tree_util.Partial) else None


def _large(row: int, where: str, function: Any) -> Iterator[Found]:
    captured = guarded(lambda: captured_values(function), lambda _: [])
    found = arrays_in(((step_to(name), value) for name, value in [*captured, *_globals(function)]), _MAX_OBJECTS)
    if found.n_bytes >= MIB:
        name, array = found.named[0]
        size = f"refers to {bytes_text(found.n_bytes)} of arrays, constants of what is compiled"
        text = f"{where}{function_name(function)} {size}: {name.strip('.()')} {array}"
        yield Found(row, text, "jax.tree_util.Partial(f, array)  # with f(array, x)")


def _globals(function: Any) -> list[tuple[str, Any]]:
    """(name, value) of the arrays of 1 MiB or more that the code of a function loads by global names."""
    for _ in range(_MAX_WRAPPERS):
        inner = guarded(lambda function=function: _inside(unboxed(function)), lambda _: None)
        if inner is None:
            break
        function = inner
    if type(function) is not types.FunctionType:
        return []
    code, scope = function.__code__, function.__globals__
    large = [name for name in code.co_names if isinstance(scope.get(name), jax.Array | np.ndarray)]
    large = [name for name in large if array_bytes(scope[name]) >= MIB]
    return [(name, scope[name]) for name in large if name in _loaded_globals(code)]


def _inside(function: Any) -> Any:
    """What a partial, a method or a wrapper calls; None for others."""
    if has_base(type(function), functools.partial):
        return functools.partial.func.__get__(function)
    return function.__func__ if type(function) is types.MethodType else getattr(function, "__wrapped__", None)


@functools.lru_cache(maxsize=256)
def _loaded_globals(code: types.CodeType) -> frozenset[str]:
    return frozenset(each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL")


def _is(value: Any) -> str:
    return "holds" if type(value) in _OPENED else "is"


def _items(value: Any) -> list[Any]:
    """The value, or what is in it: in plain containers, and what partial functions call."""
    if type(value) not in _OPENED:
        return [value]
    found, waiting = [], [value]
    for each in waiting:  # which grows
        if type(each) is functools.partial:
            waiting.append(each.func)
        elif type(each) is dict:
            waiting += list(each.values())[:_MAX_ITEMS]
        elif type(each) in (tuple, list):
            waiting += each[:_MAX_ITEMS]
        else:
            found.append(each)
        if len(waiting) > _MAX_ITEMS:
            del waiting[_MAX_ITEMS:]
    return found


Static = tuple[list[int], Any, list[tuple[str, Any]]]


def _static_nodes(checked: Checked) -> list[Static]:
    """The nodes with static data: the rows that share their facts, the first node, and its static fields."""
    if "static" not in checked.cache:
        alike: dict[int, list[int]] = {}
        for row in checked.rows(lambda f: not f.is_leaf and bool(f.module) and bool(f.static)):
            alike.setdefault(int(checked.table.fact_codes[row]), []).append(row)
        checked.cache["static"] = [
            (rows, checked.nodes[rows[0]], _fields(checked.nodes[rows[0]], checked.facts(rows[0])))
            for rows in alike.values()
        ]
    return checked.cache["static"]


def _fields(node: Any, facts: Facts) -> list[tuple[str, Any]]:
    """(name, value) of the static fields; of auxiliary data without names, the attributes that are part of it."""
    names = [name for name, _ in facts.static if not name.endswith(DROPPED)]
    if any(name.startswith("aux") for name in names):
        return aux_attributes(node)
    return [(name, value) for name in names if (value := stored_attribute(node, name)) is not MISSING]
