"""What has no hash of a call of `jax.jit` that failed: a static argument, a part of one, or static data of a node."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import jax
import numpy as np

from treeviz.checker import check_tree
from treeviz.explainer.caller import failed_expression, given, value_of
from treeviz.explainer.frames import Answer, calls_in_jax
from treeviz.explainer.leaves import what
from treeviz.tree.attributes import MISSING, stored_attribute
from treeviz.tree.safe_repr import class_name, guarded, mro

_STATIC = "static arguments"
_METADATA = "metadata fields of pytree"
_REMEDIES = {
    list: "make it a tuple",
    dict: "make it a tuple of its items, or a frozen dataclass",
    set: "make it a frozenset",
}


def of_hashes(error: BaseException) -> Answer:
    message = error.args[0] if isinstance(error, ValueError) and error.args else None
    if type(message) is str and "on-hashable" in message and _STATIC in message:
        return "a static argument of jit must have a hash", [
            f"{name}{path}: {_what(value)}: {_remedy(value)}"
            for name, each in _static_arguments(error)
            for path, value in _without_hash(each)
        ]
    if type(message) is str and _METADATA in message:
        found = {
            f"{name}{each.path}: {each.sentence}"
            for name, tree in given(error)
            for each in guarded(lambda tree=tree: _of_static_data(tree), lambda _: ())
        }
        return "jit compares static data, which must have a hash", sorted(found)
    return "", ()


def _of_static_data(tree: Any) -> list[Any]:
    found = check_tree(tree, for_="jit", values=False, roundtrip=False, ignore=())
    return [each for each in found if each.code in ("T101", "T102", "T103")]


def _static_arguments(error: BaseException) -> Iterator[tuple[str, Any]]:
    of = next((call.variables for call in calls_in_jax(error) if call.function == "_infer_params"), None)
    if of is not None:
        yield from _static_of(of["ji"], of["args"], of["kwargs"])
        return
    call, variables = failed_expression(error)
    if not isinstance(call, ast.Call):
        return
    if any(isinstance(each, ast.Starred) for each in call.args):
        return
    function, bound = _called(call.func, variables)
    info = _written(call.func) if function is MISSING else _pickled(function)
    if info is not None:
        args = [*bound, *(_argument(each, variables) for each in call.args)]
        kwargs = {each.arg: _argument(each.value, variables) for each in call.keywords if each.arg}
        yield from _static_of(info, args, kwargs)


def _pickled(function: Any) -> Any:
    """The static arguments of a jitted function, as pickle sees them.

    `jax_private` knows them, too, but JAX traces each function once more after its import.
    """
    if type(function) is not type(jax.jit(_pickled)):
        return None
    state: Any = function.__getstate__()
    return types.SimpleNamespace(static_argnums=state["static_argnums"], static_argnames=state["static_argnames"])


def _written(node: ast.AST) -> Any:
    """The static arguments of `jax.jit(f, static_argnums=1)(…)`."""
    options = {each.arg: each.value for each in node.keywords} if isinstance(node, ast.Call) else {}
    given = [options.get(name) for name in ("static_argnums", "static_argnames")]
    found = [() if each is None else ast.literal_eval(each) for each in given]
    numbers, names = (each if isinstance(each, tuple | list) else (each,) for each in found)
    return types.SimpleNamespace(static_argnums=numbers, static_argnames=names)


def _static_of(info: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for i in sorted({i % len(args) for i in info.static_argnums if -len(args) <= i < len(args)}):
        yield f"argument {i}", args[i]
    for name in info.static_argnames:
        if name in kwargs:
            yield f"argument {name}", kwargs[name]


def _called(node: ast.AST, variables: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """A function, and the object that it is a method of."""
    found = value_of(node, variables)
    if found is MISSING and isinstance(node, ast.Attribute):
        owner = value_of(node.value, variables)
        if owner is not MISSING and not isinstance(owner, type):
            methods = [vars(base)[node.attr] for base in mro(type(owner)) if node.attr in vars(base)]
            return methods[0] if methods else MISSING, [owner]
    return found, []


def _argument(node: ast.AST, variables: Mapping[str, Any]) -> Any:
    """What an argument is: a variable, or what is written out."""
    found = value_of(node, variables)
    return guarded(lambda: ast.literal_eval(node), lambda _: None) if found is MISSING else found


def _without_hash(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of an object without a hash by which it has none, told from classes alone: no `__hash__` runs."""
    waiting = [("", value)]
    while waiting:
        path, each = waiting.pop()
        cls = type(each)
        if cls.__hash__ is None or isinstance(each, jax.Array):
            yield path, each
        elif cls.__hash__ is tuple.__hash__:
            names = [f".{name}" for name in getattr(cls, "_fields", ())] or [f"[{i}]" for i in range(len(each))]
            waiting += [(path + name, part) for name, part in zip(names, tuple.__iter__(each), strict=True)][::-1]
        elif isinstance(each, types.MethodType):
            waiting.append((f"{path}.__self__", each.__self__))
        elif is_dataclass(cls) and _is_generated(cls.__hash__):
            hashed = [field for field in fields(cls) if (field.compare if field.hash is None else field.hash)]
            values = [(field.name, stored_attribute(each, field.name)) for field in hashed]
            waiting += [(f"{path}.{name}", part) for name, part in values if part is not MISSING][::-1]


def _is_generated(method: Any) -> bool:
    return getattr(getattr(method, "__code__", None), "co_filename", "") == "<string>"


def _what(value: Any) -> str:
    is_known = type(value) in _REMEDIES or isinstance(value, jax.Array | np.ndarray)
    return what(value) if is_known else class_name(type(value))


def _remedy(value: Any) -> str:
    if isinstance(value, jax.Array | np.ndarray):
        return "pass it as an argument that is not static"
    if type(value) in _REMEDIES:
        return _REMEDIES[type(value)]
    name = class_name(type(value))
    if is_dataclass(type(value)):
        return f"@dataclasses.dataclass(frozen=True) on {name}"
    return f"give {name} __hash__ and __eq__"
