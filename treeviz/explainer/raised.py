"""What a function in `jax.tree.map`, or JAX itself, was called with when it raised. It is read from the frames."""

from __future__ import annotations

import ast
import operator
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from inspect import CO_VARARGS
from typing import Any

import jax
import numpy as np
from jax import tree_util

from treeviz.api import check_tree
from treeviz.explainer.frames import (
    Answer,
    calls_in_jax,
    failed_expression,
    frames_of,
    given,
    is_of_jax,
    is_of_python,
    value_of,
    what,
)
from treeviz.tree.keys import MISSING, stored_attribute
from treeviz.tree.level import one_level
from treeviz.tree.runtime import is_installed
from treeviz.tree.text import class_name, guarded, has_base, mro
from treeviz.tree.walk import scan

_MAPS = "tree_map", "tree_map_with_path"
_OF_THE_BOX = ".value", "._value", ".raw_value"  # of a variable of NNX, behind its name
_MOST_VARIABLES = 300


def of_mapped(error: BaseException) -> Answer:
    """The leaf for which the function of `jax.tree.map` raised."""
    frames = frames_of(error)
    i = _mapped(frames)
    if i is None:
        return "", ()
    around, of = frames[i - 1].f_locals, frames[i].f_locals
    found = _place(around, of, with_path=frames[i - 1].f_code.co_name == _MAPS[1])
    if found is None:
        return "", ()
    path, leaves = found
    file = next((each.f_code.co_filename for each in reversed(frames[:i]) if _is_outside(each)), "")
    title = "the function that jax.tree.map calls raised"
    if is_installed(file):  # the tree may be one that only the library knows
        if not path:  # a single leaf, which says nothing of where
            return "", ()
        title = f"in {_package(file)}, {title}"
    return title, [f"{path or 'the root'}: {' and '.join(map(what, leaves))}"]


def is_direct(error: BaseException) -> bool:
    """Whether the function that `jax.tree.map` calls did so itself, and nothing that it calls."""
    frames = frames_of(error)
    i = _mapped(frames)
    return i is not None and sum(map(_is_outside, frames[i + 1 :])) < 2


def _mapped(frames: Sequence[types.FrameType]) -> int | None:
    """Which frame is that of the innermost loop over leaves."""
    for i in reversed(range(1, len(frames))):
        names = frames[i - 1].f_code.co_name, frames[i].f_code.co_name
        if names[0] in _MAPS and names[1] == "<genexpr>" and is_of_jax(frames[i]) and is_of_jax(frames[i - 1]):
            return i
    return None


def _place(around: Mapping[str, Any], of: Mapping[str, Any], with_path: bool) -> tuple[str, Sequence[Any]] | None:
    if with_path:
        return tree_util.keystr(of["xs"][0]), of["xs"][1:]
    leaves, of_each = around["leaves"], of[".0"].__reduce__()[1]
    n = len(leaves) - operator.length_hint(of_each[0]) - 1
    if leaves[n] is not of["xs"][0]:
        return None
    return _path_of(n, around["tree"], around["treedef"]), of["xs"]


def _path_of(n: int, node: Any, treedef: Any) -> str:
    """The path of the leaf of this number: the nodes on the way to it are flattened again, and no others."""
    path = []
    while treedef.node_data() is not None:
        below = treedef.children()
        i = 0
        while n >= below[i].num_leaves:
            n, i = n - below[i].num_leaves, i + 1
        (key,), node = one_level(node)[0][i]
        path.append(key)
        treedef = below[i]
    return tree_util.keystr(tuple(path))


def _package(file: str) -> str:
    return file.replace("\\", "/").rpartition("-packages/")[2].partition("/")[0].removesuffix(".py")


def of_operands(error: BaseException) -> Answer:
    """Where the arrays lie that JAX could not take together: in the tree of a variable, as a layer of a model."""
    if not isinstance(error, TypeError | ValueError):
        return "", ()
    frames = frames_of(error)
    last = next((i for i in reversed(range(len(frames))) if _is_outside(frames[i])), len(frames))
    if last >= len(frames) - 1 or not is_of_jax(frames[last + 1]):
        return "", ()
    arrays = {id(array): array for array in _arrays_of(_arguments(frames[last + 1]))}
    if not arrays:
        return "", ()
    places = _places(arrays, [frame for frame in frames[: last + 1] if _is_outside(frame)])
    if not any("".join(paths) for _, paths in places.values()):
        return "", ()
    names = {each: _named(*places[each]) if each in places else "a computed array" for each in arrays}
    return "the arrays of the call that failed", [f"{names[each]}: {what(array)}" for each, array in arrays.items()]


def _named(name: str, paths: Sequence[str]) -> str:
    """With a second place, where one array lies in several."""
    return " and ".join(name + path for path in paths[:2]) + (" …" if len(paths) > 2 else "")


def _is_outside(frame: types.FrameType) -> bool:
    return not is_of_jax(frame) and not is_of_python(frame)


def _arguments(frame: types.FrameType) -> Iterator[Any]:
    code, of = frame.f_code, frame.f_locals
    n = code.co_argcount + code.co_kwonlyargcount
    yield from (of[name] for name in code.co_varnames[:n] if name in of)
    if code.co_flags & CO_VARARGS:
        yield from of.get(code.co_varnames[n], ())


def _arrays_of(values: Iterable[Any]) -> Iterator[Any]:
    """Also those in a list, as `jnp.concatenate` takes them. Of trees, as `jit` takes them, other answers know more."""
    for value in values:
        for each in value if type(value) in (list, tuple) else (value,):
            if guarded(lambda each=each: isinstance(each, jax.Array | np.ndarray), lambda _: False):
                yield each


def _places(arrays: Mapping[int, Any], frames: Sequence[types.FrameType]) -> dict[int, tuple[str, list[str]]]:
    """Of each array the variable, and its paths in it; those in a tree of the user's come first."""
    owner = _self_of(frames[-1])
    plain: dict[int, tuple[str, list[str]]] = {}
    of_owner: dict[int, tuple[str, list[str]]] = {}
    of_each: list[tuple[bool, str, Any]] = []
    for frame in sorted(frames, key=lambda frame: is_installed(frame.f_code.co_filename)):  # stable
        for name, value in [*frame.f_locals.items()][:_MOST_VARIABLES]:
            if id(value) in arrays:
                plain[id(value)] = name, [""]  # the innermost has the name that the call has
            elif not has_base(type(value), types.ModuleType, types.FunctionType, type):
                of_each.append((is_installed(frame.f_code.co_filename), name, value))
            if owner is not None and value is owner:
                of_owner.setdefault(id(value), (name, [""]))
    found: dict[int, tuple[str, list[str]]] = {}
    seen: set[int] = set()
    wanted = {*arrays, id(owner)}
    for is_of_library, name, value in of_each:
        if id(value) in seen or tree_util.all_leaves((value,)):
            continue
        seen.add(id(value))
        # A library hands on what it calls a function with: "args[0]" is a worse name than that in the function.
        known = {*found, *plain} if is_of_library and type(value) in (tuple, list, dict) else found.keys()
        for each, paths in _paths_in(value, wanted - known).items():
            found[each] = name, paths
    found = {**of_owner, **found}
    if owner is not None:
        _add_copies(found, arrays, owner, frames[-1].f_locals)
    return {each: place for each, place in {**plain, **found}.items() if each in arrays}


def _paths_in(tree: Any, wanted: set[int]) -> dict[int, list[str]]:
    table, nodes = scan(tree)
    rows = [row for row, node in enumerate(nodes) if id(node) in wanted] if len(nodes) > 1 else []
    keystr, found = table.keystrs(), {}
    for row in rows:
        path = keystr(row)
        path = next((path.removesuffix(end) for end in _OF_THE_BOX if path.endswith(end)), path)
        found.setdefault(id(nodes[row]), []).append(path)
    return found


def _self_of(frame: types.FrameType) -> Any:
    names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
    return frame.f_locals.get(names[0]) if names else None


def _add_copies(found: dict, arrays: Mapping[int, Any], owner: Any, variables: Mapping[str, Any]) -> None:
    """Variables of a method that are the attribute of their name, in another dtype, say, but of its shape."""
    own = found.get(id(owner))
    for name, value in variables.items():
        stored = stored_attribute(owner, name) if id(value) in arrays and id(value) not in found else MISSING
        if own is not None and stored is not MISSING:
            leaves = guarded(lambda stored=stored: tree_util.tree_leaves(stored), lambda _: [])
            if len(leaves) == 1 and getattr(leaves[0], "shape", None) == value.shape:
                found[id(value)] = own[0], [f"{path}.{name}" for path in own[1]]


# What has no hash of a call of `jax.jit` that failed: a static argument, a part of one, or static data of a node.

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
