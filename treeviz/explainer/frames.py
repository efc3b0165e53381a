"""Read an error's traceback: the calls inside JAX, their variables, and the values in the user's expression."""

from __future__ import annotations

import ast
import linecache
import os
import re
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
    """A call of a function inside JAX, or inside a library around it.

    Attributes:
      function: Name of the function: "tree_map".
      variables: Local variables of the call, by name.
      error: The exception it raised.
      library: "optax"; "" for JAX.
    """

    function: str
    variables: dict[str, Any]
    error: BaseException
    library: str = ""


Calls = Sequence[Call]  # the call that failed, then its callers
Answer = tuple[str, Sequence[Any]]  # a title, and a line for each leaf


def calls_in_jax(error: BaseException) -> list[Call]:
    """The calls in JAX and in libraries that raised `error` or one of its causes, innermost first.

    Callers of user code are left out, except the library functions in `_AROUND_CODE`.
    """
    calls: list[Call] = []
    for cause in _chain(error):
        is_inside_jax = True
        for frame in reversed(frames_of(cause)):
            library = "" if is_of_jax(frame) else _library(frame)
            name = frame.f_code.co_name
            if library is not None and (is_inside_jax or (library, name) in _AROUND_CODE):
                variables = guarded(lambda frame=frame: dict(frame.f_locals), lambda _: {})
                calls.append(Call(name, variables, cause, library))
            elif library is None and not is_of_python(frame):
                is_inside_jax = False
    return calls


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    pending = [error]
    while pending:
        current = pending.pop()
        if id(current) not in seen:
            seen.add(id(current))
            yield current
            pending += [other for other in (current.__context__, current.__cause__) if other is not None]


def frames_of(error: BaseException) -> list[types.FrameType]:
    """The frames of the traceback, outermost first."""
    frames, trace = [], error.__traceback__
    while trace is not None and len(frames) < _MOST:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    return frames


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
    return "/jax/_src/" in frame.f_code.co_filename.replace("\\", "/")


def _library(frame: types.FrameType) -> str | None:
    match = _LIBRARIES.search(frame.f_code.co_filename.replace("\\", "/"))
    return match[match.lastindex or 0] if match else None


def is_of_python(frame: types.FrameType) -> bool:
    """Whether the frame is in the standard library: JAX and Orbax call themselves through it."""
    path = frame.f_code.co_filename
    return path.startswith(_STDLIB) and "-packages" not in path


# Leaves in an explanation: their paths, their descriptions, and advice for leaves that are not arrays.


def leaves_of(tree: Any) -> list[tuple[str, Any]]:
    return [(keystr(path), leaf) for path, leaf in tree_util.tree_flatten_with_path(tree)[0]]


def describe_value(leaf: Any) -> str:
    leaf = unwrapped(leaf)
    return guarded(lambda: array_text(leaf), lambda _: None) or f"{class_name(type(leaf))} {value_text(leaf, 40)}"


def is_tree_at_wrapper(leaf: Any) -> bool:
    """Whether `equinox.tree_at` passes this object to user functions in place of a leaf."""
    return type(leaf).__name__ == "_LeafWrapper" and type(leaf).__module__.startswith("equinox")


def unwrapped(leaf: Any) -> Any:
    return stored_attribute(leaf, "value") if is_tree_at_wrapper(leaf) else leaf


def is_array(leaf: Any) -> bool:
    return isinstance(leaf, bool | int | float | complex) or (
        hasattr(leaf, "dtype") and hasattr(leaf, "shape") and getattr(leaf.dtype, "kind", "f") not in "OSUM"
    )


def is_jit_value(leaf: Any) -> bool:
    """Whether `jit` accepts the leaf: an array, a number, or a value of a hijax type."""
    return is_array(leaf) or describer_of_hijax(type(leaf)) is not None


def is_ref(leaf: Any) -> bool:
    """Whether the leaf is a mutable reference or a tracer of one."""
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
        return "", ()
    if any(text in message for text in _DELETED):
        deleted = [(name, leaf) for name, leaf in _arrays(error) if guarded(leaf.is_deleted, lambda _: False)]
        return "arrays that were deleted, or donated to an earlier call", [
            f"{name}: {describe_value(leaf)}" for name, leaf in dict(deleted).items()
        ]
    if any(text in message for text in _TWICE):
        return "arrays that are passed twice and donated once", [*_twice(_arrays(error))]
    return "", ()


def names_of(error: BaseException) -> dict[int, str]:
    """Maps the id of each array in the expression that raised to its name there: "state['w']"."""
    names: dict[int, str] = {}
    for name, leaf in _arrays(error):
        names.setdefault(id(leaf), name)
    return names


def is_from_library(error: Exception) -> bool:
    """Whether a library called JAX, so that the arguments are not the user's trees."""
    last = _last_before(error, is_of_jax)
    return last is not None and _is_installed(last.tb_frame)


def _twice(arrays: Iterable[tuple[str, Any]]) -> Iterator[str]:
    first: dict[int, str] = {}
    for name, leaf in arrays:
        buffer = guarded(leaf.unsafe_buffer_pointer, lambda _, leaf=leaf: id(leaf))
        if buffer in first:
            yield f"{name}: {describe_value(leaf)}, {'given twice' if first[buffer] == name else f'as {first[buffer]}'}"
        first.setdefault(buffer, name)


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
    source = None if last is None else _source(last.tb_frame.f_code, last.tb_lasti)
    if last is None or source is None:
        return None, {}
    return ast.parse(source, mode="eval").body, {**last.tb_frame.f_globals, **last.tb_frame.f_locals}


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


def _source(code: types.CodeType, instruction: int) -> str | None:
    """The source text of one bytecode instruction."""
    start, end, first, last = next(islice(code.co_positions(), instruction // 2, None), (None,) * 4)
    if start is None or end is None or first is None or last is None:
        return None
    lines = [linecache.getline(code.co_filename, n).encode() for n in range(start, end + 1)]
    lines[-1] = lines[-1][:last]
    lines[0] = lines[0][first:]
    return f"({b''.join(lines).decode()})"


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
