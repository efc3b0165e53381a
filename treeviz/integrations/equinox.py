"""Equinox: modules, methods and wrappers, states by name, tied weights; and the steps of `filter_jit`."""

from __future__ import annotations

import functools
import sys
from dataclasses import fields
from typing import Any
from weakref import WeakKeyDictionary

import jax
from jax.tree_util import GetAttrKey

from treeviz.analysis.facts import host_scalar
from treeviz.integrations import describes_from
from treeviz.steps.compiles.forecast import TracedStep, trace_of_arrays, traces
from treeviz.steps.tracing.jitted import (
    JittedStep,
    LibraryMoved,
    Make,
    around_wrapper,
    is_jitted,
    is_of,
    made_by_pmap,
    tidies,
    unwraps,
)
from treeviz.tree.describers import Description
from treeviz.tree.keys import stored_attribute
from treeviz.tree.level import knows_child_keys
from treeviz.tree.opaque import describe_function
from treeviz.tree.runtime import PrivateName, why_missing
from treeviz.tree.text import class_attribute, class_name, guarded, has_base, is_any, value_text

_sources: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # placeholder -> the expression that it stands for

_UNNAMED_SHARED = "a node that equinox.nn.Shared has taken out does not say what it stands for"
_UNNAMED_INDEX = "an equinox.nn.StateIndex does not say which state it stands for"
TO_WATCH = (PrivateName("equinox:filter_jit()._cached", "the jax.jit inside equinox.filter_jit is not found"),)
TO_DESCRIBE = (
    PrivateName(
        "equinox._module:BoundMethod or equinox._module._prebuilt:BoundMethod",
        "a bound method does not say which function it is",
    ),
    PrivateName("equinox.nn:State.__init__.<globals>._state", "the values of an equinox.nn.State have no names"),
    *(PrivateName(f"equinox.nn:StateIndex.{name}", _UNNAMED_INDEX) for name in ("marker", "init")),
    *(PrivateName(f"equinox.nn:Shared.{name}", _UNNAMED_SHARED) for name in ("pytree", "where", "get")),
    PrivateName("equinox.nn._shared:SharedNode", _UNNAMED_SHARED),
    PrivateName("equinox._enum:EnumerationItem", "an item of an equinox.Enumeration does not show its name"),
)
PRIVATE = (*TO_WATCH, *TO_DESCRIBE)


@describes_from("equinox", "Module")
def module(node: Any) -> Description:
    return _module_description(type(node))


@functools.lru_cache(maxsize=1024)
def _module_description(cls: type) -> Description:
    is_wrapper = class_attribute(cls, "__wrapped__") is not None  # filter_jit, filter_vmap, …
    # The treedef of a module without fields has a marker of Equinox instead of static data.
    fields = class_attribute(cls, "__dataclass_fields__")
    return Description("closure" if is_wrapper else "module", static=None if fields else ())


@describes_from("equinox", "Partial")
def partial(node: Any) -> Description:
    return Description("closure")


@describes_from("equinox._module", "BoundMethod")
@describes_from("equinox._module._prebuilt", "BoundMethod")
def bound_method(node: Any) -> Description:
    return Description("closure", text=describe_function(stored_attribute(node, "__func__")), static=())


@describes_from("equinox.nn", "StateIndex")
def state_index(node: Any) -> Description:
    marker = stored_attribute(node, "marker")
    named = isinstance(marker, (str, int))
    text = f"of the state {value_text(marker)}" if named else "not named yet: see eqx.nn.make_with_state"
    if class_name(type(stored_attribute(node, "init"))) == "_Sentinel":  # the value is in the State
        return Description("static", text=text, static=(), hide=frozenset({"init"}))
    return Description("node", text=text, static=())


@describes_from("equinox.nn", "State")
def state(node: Any) -> Description:
    if not isinstance(values := stored_attribute(node, "_state"), dict):
        return Description("node")
    return Description("node", static=(), labels=[key if type(key) is str else value_text(key) for key in values])


@describes_from("equinox.nn", "Shared")
def shared(node: Any) -> Description:
    pytree, where, get = (stored_attribute(node, name) for name in ("pytree", "where", "get"))
    source = guarded(lambda: get(_Path("pytree")), lambda _: None)
    placeholders = guarded(lambda: where(pytree), lambda _: ())
    single = not is_any(type(placeholders), (list, tuple))
    placeholders, sources = ([placeholders], [source]) if single else (placeholders, source)
    for i, placeholder in enumerate(placeholders):
        if class_name(type(placeholder)) == "SharedNode":
            path = guarded(lambda i=i: sources[i], lambda _: None)
            _sources[placeholder] = path.text if type(path) is _Path else f"what {describe_function(get)} returns"
    return Description("module")


@describes_from("equinox.nn._shared", "SharedNode")
def shared_node(leaf: Any) -> Description:
    return Description(text=f"stands for {_sources.get(leaf, 'a shared node')}", transparent=True)


@describes_from("equinox._enum", "EnumerationItem")
def enumeration_item(node: Any) -> Description:
    enumeration, value = (stored_attribute(node, name) for name in ("_enumeration", "_value"))
    number = guarded(lambda: host_scalar(value), lambda _: "")  # of a batch of items there is none
    names = (name for name, item in enumeration._name_to_item.items() if host_scalar(item._value) == number)
    return Description("node", type=class_name(enumeration), text=next(names, ""), static=(), inline=True)


@knows_child_keys
def child_keys(cls: type, aux: Any) -> list[Any] | None:
    """The keys of a module's children in a bare treedef. Equinox registers all modules in the same way."""
    if not has_base(cls, sys.modules["equinox"].Module):
        return None
    return [GetAttrKey(field.name) for field in fields(cls) if not field.metadata.get("static", False)]


class _Path:
    """Records which attributes and items a function reads, without touching an array."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __getattr__(self, name: str) -> _Path:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Path(f"{self.text}.{name}")

    def __getitem__(self, key: Any) -> _Path:
        if not is_any(type(key), (int, str)):
            raise TypeError("no path")
        return _Path(f"{self.text}[{key!r}]")

    __iter__ = None


@unwraps("equinox")
def unwrap_filter_jit(step: Any) -> JittedStep | None:
    """Unwrap a step from `equinox.filter_jit`; for one from `filter_pmap`, raise an error that shows the conversion."""
    if not is_of("equinox", step):
        return None
    jitted: Any = getattr(step, "_cached", None)
    if not is_jitted(jitted):
        if type(step) is type(sys.modules["equinox"].filter_jit(unwrap_filter_jit)):
            raise LibraryMoved(why_missing(TO_WATCH))
        if "Pmap" in type(step).__name__:
            raise made_by_pmap(step, "equinox.filter_pmap", "equinox.filter_jit(equinox.filter_vmap")
        return None

    def with_other(make: Make) -> Any:
        other = object.__new__(type(step))  # a frozen dataclass
        for name, value in vars(step).items():
            object.__setattr__(other, name, value)
        object.__setattr__(other, "_cached", make(jitted.__wrapped__))
        return other

    around = functools.partial(around_wrapper, with_other)
    return JittedStep(step, jitted, around, result_path=_result_path, static_numbers=True)


@traces
def trace_filter_jit(step: Any, args: tuple, kwargs: dict[str, Any]) -> TracedStep | None:
    """Trace a step from `equinox.filter_jit`, for which every leaf that is not an array is static."""
    if not is_of("equinox", step) or not is_jitted(getattr(step, "_cached", None)):
        return None
    is_array = lambda x: isinstance(x, jax.ShapeDtypeStruct) or sys.modules["equinox"].is_array(x)  # noqa: E731
    return trace_of_arrays(step.__wrapped__, step, args, kwargs, is_array)


def _result_path(path: str) -> str:
    """The path in the step's result: `filter_jit` returns the arrays of the results in [1]."""
    return path.removeprefix("[1]")


tidies("equinox._jit", result_path=_result_path)
