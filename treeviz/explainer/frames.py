"""Read an error's traceback: the calls inside JAX, their variables, and the values in the user's expression."""

from __future__ import annotations

import ast
import linecache
import os
import re
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from treeviz.integrations.hijax import describer_of_hijax
from treeviz.tree.keys import MISSING, keystr, stored_attribute, stored_items
from treeviz.tree.runtime import is_installed
from treeviz.tree.text import array_text, class_name, guarded, is_any, module_name, value_text
from treeviz.tree.walk import scan

_MOST = 1_000  # frames
_STDLIB = os.path.dirname(os.__file__)
_LIBRARIES = re.compile(  # modules that restore or update trees
    r"/(?:(flax)/(?:serialization|struct|core/frozen_dict|nnx/(?:graph|pytree|object|module|helpers)\w*)"
    r"|(orbax)/checkpoint/.*|(equinox)/_(?:serialisation|tree)|(optax)/.*)\.py"
)
# These call user functions, which see only a part of the tree or select one.
_AROUND_CODE = {("flax", "from_state_dict"), ("equinox", "tree_at")}


class Call(NamedTuple):
    """A call of a function inside JAX, or inside a library around it."""

    function: str  # "tree_map"
    variables: dict[str, Any]  # local ones
    error: BaseException  # that it raised
    library: str = ""  # "optax"; "" for JAX


Variables = dict[str, Any]  # of the call that failed
Calls = Sequence[Call]  # that call, then its callers
# A title, and a line for each leaf. What explains an error may raise, and then has no answer.
Answer = tuple[str, Sequence[Any]]
NO_ANSWER: Answer = "", ()


def calls_in_jax(error: BaseException) -> list[Call]:
    """The calls in JAX and libraries that raised `error` or its causes, innermost first; none around user code."""
    calls: list[Call] = []
    seen: set[int] = set()
    pending = [error]
    while pending:
        cause = pending.pop()
        if id(cause) in seen:
            continue
        seen.add(id(cause))
        pending += [other for other in (cause.__context__, cause.__cause__) if other is not None]
        is_inside_jax = True
        for frame in reversed(frames_of(cause)):
            match = _LIBRARIES.search(file_of(frame))
            library = "" if is_of_jax(frame) else match[match.lastindex or 0] if match else None
            name = frame.f_code.co_name
            if library is not None and (is_inside_jax or (library, name) in _AROUND_CODE):
                variables = guarded(lambda frame=frame: dict(frame.f_locals), lambda _: {})
                calls.append(Call(name, variables, cause, library))
            elif library is None and not is_of_python(frame):
                is_inside_jax = False
    return calls


def frames_of(error: BaseException) -> list[types.FrameType]:
    """The frames of the traceback, outermost first."""
    return [frame for frame, _ in islice(traceback.walk_tb(error.__traceback__), _MOST)]


def without_hidden(trace: types.TracebackType | None) -> types.TracebackType | None:
    """The traceback without JAX's own frames, as JAX filters it by default."""
    visible = []
    while trace is not None:
        if not is_of_jax(trace.tb_frame):
            visible.append(trace)
        trace = trace.tb_next
    rebuilt = None
    for entry in reversed(visible):
        rebuilt = types.TracebackType(rebuilt, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return rebuilt


def is_of_jax(frame: types.FrameType) -> bool:
    return "/jax/_src/" in file_of(frame)


def file_of(frame: types.FrameType) -> str:
    return frame.f_code.co_filename.replace("\\", "/")


def is_of_python(frame: types.FrameType) -> bool:
    """Whether the frame is in the standard library: JAX and Orbax call themselves through it."""
    path = frame.f_code.co_filename
    return path.startswith(_STDLIB) and "-packages" not in path


# Leaves in an explanation: their paths, their descriptions, and advice for leaves that are not arrays.


def leaves_of(tree: Any, name: str = "") -> list[tuple[str, Any]]:
    return [(name + keystr(path), leaf) for path, leaf in tree_util.tree_flatten_with_path(tree)[0]]


def leaves_of_arguments(args: Iterable[Any], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    trees = {f"argument {i}": arg for i, arg in enumerate(args)} | kwargs
    return [leaf for name, tree in trees.items() for leaf in leaves_of(tree, name)]


def describe_value(leaf: Any) -> str:
    leaf = unwrapped(leaf)
    return guarded(lambda: array_text(leaf), lambda _: None) or f"{class_name(type(leaf))} {value_text(leaf, 40)}"


def is_tree_at_wrapper(leaf: Any) -> bool:
    """Whether `equinox.tree_at` passes this object to user functions in place of a leaf."""
    return type(leaf).__name__ == "_LeafWrapper" and type(leaf).__module__.startswith("equinox")


def unwrapped(leaf: Any) -> Any:
    return stored_attribute(leaf, "value") if is_tree_at_wrapper(leaf) else leaf


def is_array(leaf: Any) -> bool:
    if isinstance(leaf, bool | int | float | complex):
        return True
    return hasattr(leaf, "dtype") and hasattr(leaf, "shape") and getattr(leaf.dtype, "kind", "f") not in "OSUM"


def is_jit_value(leaf: Any) -> bool:
    """Whether `jit` accepts the leaf: an array, a number, or a value of a hijax type."""
    return is_array(leaf) or describer_of_hijax(type(leaf)) is not None


def refused(leaves: Iterable[tuple[str, Any]], accepts: Callable[[Any], bool] = is_jit_value) -> list[str]:
    """A line for each leaf that is not accepted, with advice."""
    return [f"{path}: {describe_value(leaf)}: {remedy(leaf)}" for path, leaf in leaves if not accepts(leaf)]


def is_ref(leaf: Any) -> bool:
    names = class_name(type(leaf)), class_name(type(getattr(leaf, "aval", None)))
    return module_name(type(leaf)).startswith("jax") and (names[0] == "Ref" or names[1] == "AbstractRef")


def is_inexact(leaf: Any) -> bool:
    return not isinstance(leaf, bool | int) and is_array(leaf) and jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)


def remedy(leaf: Any) -> str:
    if isinstance(leaf, str):
        return "make it static (static_argnames, or a meta field of the class), or take it out of the tree"
    if isinstance(leaf, np.ndarray | np.generic):
        return "convert it to numbers, make it static, or take it out"
    if callable(leaf):
        return "make it static, or partition the tree (eqx.filter_jit does)"
    return "register its class as a pytree node, make it static, or take it out"


# Errors from compiled code: no frame holds the arguments, so they are read from the caller's expression.

_DELETED = ("deleted or donated", "has been deleted")  # in the message
_TWICE = ("same buffer twice", "previously donated in the same call")
_NOT_EVALUATED_HERE = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_CONTAINERS = (dict, list, tuple)


def explain_buffers(error: Exception) -> Answer:
    """The deleted arrays, or the arrays passed twice, in the expression that raised."""
    message = error.args[0] if isinstance(error, ValueError | RuntimeError) and error.args else None
    if type(message) is not str:
        return NO_ANSWER
    if any(text in message for text in _DELETED):
        deleted = [(name, leaf) for name, leaf in _arrays(error) if guarded(leaf.is_deleted, lambda _: False)]
        lines = [f"{name}: {describe_value(leaf)}" for name, leaf in dict(deleted).items()]
        return "arrays that were deleted, or donated to an earlier call", lines
    if not any(text in message for text in _TWICE):
        return NO_ANSWER
    first: dict[int, str] = {}
    lines = []
    for name, leaf in _arrays(error):
        buffer = guarded(leaf.unsafe_buffer_pointer, lambda _, leaf=leaf: id(leaf))
        if buffer in first:
            other = "given twice" if first[buffer] == name else f"as {first[buffer]}"
            lines.append(f"{name}: {describe_value(leaf)}, {other}")
        first.setdefault(buffer, name)
    return "arrays that are passed twice and donated once", lines


def names_of(error: BaseException) -> dict[int, str]:
    """Maps the id of each array in the expression that raised to its name there: "state['w']"."""
    return {id(leaf): name for name, leaf in reversed([*_arrays(error)])}


def is_from_library(error: Exception) -> bool:
    """Whether a library called JAX, so that the arguments are not the user's trees."""
    last = _last_before(error, is_of_jax)
    return last is not None and _is_installed(last.tb_frame)


def _arrays(error: BaseException) -> Iterator[tuple[str, Any]]:
    for name, tree in expression_values(error):
        table, nodes = scan(tree)  # the object may contain itself
        keystr_of = table.keystrs()
        for row in np.flatnonzero(table.is_leaf).tolist():
            if isinstance(nodes[row], jax.Array):
                yield name + keystr_of(row), nodes[row]


def _last_before(error: BaseException, is_inside: Callable[[types.FrameType], bool]) -> types.TracebackType | None:
    trace, last = error.__traceback__, None
    while trace is not None and not is_inside(trace.tb_frame):
        last, trace = trace, trace.tb_next
    return last


def _is_installed(frame: types.FrameType) -> bool:
    return is_installed(frame.f_code.co_filename)


def failed_expression(error: BaseException) -> tuple[ast.AST | None, Mapping[str, Any]]:
    """The user's expression that raised, and the variables in its scope."""
    last = _last_before(error, _is_installed) or _last_before(error, is_of_jax)
    if last is None:
        return None, {}
    frame = last.tb_frame
    file, positions = frame.f_code.co_filename, frame.f_code.co_positions()
    start, end, first, stop = next(islice(positions, last.tb_lasti // 2, None), (None,) * 4)
    if start is None or end is None or first is None or stop is None:
        return None, {}
    lines = [linecache.getline(file, n).encode() for n in range(start, end + 1)]
    lines[-1] = lines[-1][:stop]
    lines[0] = lines[0][first:]
    source = f"({b''.join(lines).decode()})"
    return ast.parse(source, mode="eval").body, {**frame.f_globals, **frame.f_locals}


def expression_values(error: BaseException) -> Iterator[tuple[str, Any]]:
    """The names and values in the expression that raised: ("params['w']", array)."""
    expression, variables = failed_expression(error)
    pending = [] if expression is None else [expression]
    while pending:
        node = pending.pop()
        value = value_of(node, variables)
        if value is not MISSING:
            yield ast.unparse(node), value
        elif not isinstance(node, _NOT_EVALUATED_HERE):
            pending += reversed([*ast.iter_child_nodes(node)])


def value_of(node: ast.AST, variables: Mapping[str, Any]) -> Any:
    """The value of an expression, MISSING if it cannot be read without running code."""
    if isinstance(node, ast.Name):
        return variables.get(node.id, MISSING)
    if isinstance(node, ast.Attribute):
        owner = value_of(node.value, variables)
        return MISSING if owner is MISSING else stored_items(owner).get(node.attr, MISSING)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        owner = value_of(node.value, variables)
        if is_any(type(owner), _CONTAINERS):
            return guarded(lambda: owner[node.slice.value], lambda _: MISSING)  # type: ignore[union-attr]
    return MISSING
