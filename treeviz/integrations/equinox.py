"""Equinox: modules, methods and wrappers that are pytrees, state by name, weights that are tied."""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from treeviz.integrations import describes_from
from treeviz.tree.functions import describe_function
from treeviz.tree.keys import stored_attribute
from treeviz.tree.looks import Look
from treeviz.tree.quote import class_name, guarded, mro, value_text

_sources: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # a placeholder -> what it stands for


@describes_from("equinox", "Module")
def module(node: Any) -> Look:
    return _module_look(type(node))


@lru_cache(maxsize=1024)
def _module_look(cls: type) -> Look:
    is_wrapper = any("__wrapped__" in base.__dict__ for base in mro(cls))  # filter_jit, filter_vmap, …
    return Look("closure" if is_wrapper else "module")


@describes_from("equinox", "Partial")
def partial(node: Any) -> Look:
    return Look("closure")


@describes_from("equinox._module", "BoundMethod")
@describes_from("equinox._module._prebuilt", "BoundMethod")
def bound_method(node: Any) -> Look:
    return Look("closure", text=describe_function(stored_attribute(node, "__func__")), static=())


@describes_from("equinox.nn", "StateIndex")
def state_index(node: Any) -> Look:
    marker = stored_attribute(node, "marker")
    named = isinstance(marker, (str, int))
    text = f"of the state {value_text(marker)}" if named else "not named yet: see eqx.nn.make_with_state"
    if class_name(type(stored_attribute(node, "init"))) == "_Sentinel":  # the value is in the State
        return Look("static", text=text, static=(), hide=frozenset({"init"}))
    return Look("node", text=text, static=())


@describes_from("equinox.nn", "State")
def state(node: Any) -> Look:
    values = stored_attribute(node, "_state")
    if not isinstance(values, dict):
        return Look("node")
    return Look("node", static=(), labels=[key if type(key) is str else value_text(key) for key in values])


@describes_from("equinox.nn", "Shared")
def shared(node: Any) -> Look:
    pytree, where, get = (stored_attribute(node, name) for name in ("pytree", "where", "get"))
    source = guarded(lambda: get(_Path("pytree")), lambda _: None)
    placeholders = guarded(lambda: where(pytree), lambda _: ())
    single = type(placeholders) not in (list, tuple)
    placeholders, sources = ([placeholders], [source]) if single else (placeholders, source)
    for i, placeholder in enumerate(placeholders):
        if class_name(type(placeholder)) == "SharedNode":
            path = guarded(lambda i=i: sources[i], lambda _: None)
            _sources[placeholder] = path.text if type(path) is _Path else f"what {describe_function(get)} returns"
    return Look("module")


@describes_from("equinox.nn._shared", "SharedNode")
def shared_node(leaf: Any) -> Look:
    return Look(text=f"stands for {_sources.get(leaf, 'a shared node')}", transparent=True)


class _Path:
    """Writes down which attributes and items a function asks for, so that no array is touched."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __getattr__(self, name: str) -> _Path:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Path(f"{self.text}.{name}")

    def __getitem__(self, key: Any) -> _Path:
        if type(key) not in (int, str):
            raise TypeError("no path")
        return _Path(f"{self.text}[{key!r}]")

    __iter__ = None
