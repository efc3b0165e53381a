"""What a call was given that raised in compiled code, where no frame has its arguments: told from the caller's.

The part of the source that raised is parsed, and names, constant subscripts and stored attributes in it are looked up
in the variables of the frame. Nothing of it is run.
"""

from __future__ import annotations

import ast
import linecache
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import jax
import numpy as np

from treeviz.explainer.frames import Answer, is_of_jax
from treeviz.explainer.leaves import what
from treeviz.tree.attributes import MISSING, stored_items
from treeviz.tree.safe_repr import guarded
from treeviz.tree.source_lines import is_installed
from treeviz.tree.walk import scan

_DELETED = ("deleted or donated", "has been deleted")  # in the message
_TWICE = ("same buffer twice", "previously donated in the same call")
_NOT_EVALUATED_HERE = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_CONTAINERS = (dict, list, tuple)


def of_buffers(error: Exception) -> Answer:
    """The arrays that were deleted, or are given twice, among what the expression that raised is about."""
    message = error.args[0] if isinstance(error, ValueError | RuntimeError) and error.args else None
    if type(message) is not str:
        return "", ()
    if any(text in message for text in _DELETED):
        deleted = [(name, leaf) for name, leaf in _arrays(error) if guarded(leaf.is_deleted, lambda _: False)]
        return "arrays that were deleted, or donated to a call before", [
            f"{name}: {what(leaf)}" for name, leaf in dict(deleted).items()
        ]
    if any(text in message for text in _TWICE):
        return "arrays that are given twice, of which one is donated", [*_twice(_arrays(error))]
    return "", ()


def names_of(error: BaseException) -> dict[int, str]:
    """By its id, what each array in the expression that raised is called there: "state['w']"."""
    names: dict[int, str] = {}
    for name, leaf in _arrays(error):
        names.setdefault(id(leaf), name)
    return names


def is_from_library(error: Exception) -> bool:
    """Whether a library called JAX, whose arguments are then none of the user's trees."""
    last = _last_before(error, is_of_jax)
    return last is not None and _is_installed(last.tb_frame)


def _twice(arrays: Iterable[tuple[str, Any]]) -> Iterator[str]:
    first: dict[int, str] = {}
    for name, leaf in arrays:
        buffer = guarded(leaf.unsafe_buffer_pointer, lambda _, leaf=leaf: id(leaf))
        if buffer in first:
            yield f"{name}: {what(leaf)}, {'given twice' if first[buffer] == name else f'as {first[buffer]}'}"
        first.setdefault(buffer, name)


def _arrays(error: BaseException) -> Iterator[tuple[str, Any]]:
    for name, tree in given(error):
        table, nodes = scan(tree)  # it may be any object, and contain itself
        keystr = table.keystrs()
        for row in np.flatnonzero(table.is_leaf).tolist():
            if isinstance(nodes[row], jax.Array):
                yield name + keystr(row), nodes[row]


def _last_before(error: BaseException, is_inside: Callable[[types.FrameType], bool]) -> types.TracebackType | None:
    trace, last = error.__traceback__, None
    while trace is not None and not is_inside(trace.tb_frame):
        last, trace = trace, trace.tb_next
    return last


def _is_installed(frame: types.FrameType) -> bool:
    return is_installed(frame.f_code.co_filename)


def failed_expression(error: BaseException) -> tuple[ast.AST | None, Mapping[str, Any]]:
    """The expression of the user's that raised, and the variables around it."""
    last = _last_before(error, _is_installed) or _last_before(error, is_of_jax)
    source = None if last is None else _source(last.tb_frame.f_code, last.tb_lasti)
    if last is None or source is None:
        return None, {}
    return ast.parse(source, mode="eval").body, {**last.tb_frame.f_globals, **last.tb_frame.f_locals}


def given(error: BaseException) -> Iterator[tuple[str, Any]]:
    """What stands in the expression that raised, and what it is: "params['w']"."""
    expression, variables = failed_expression(error)
    waiting = [] if expression is None else [expression]
    while waiting:
        node = waiting.pop()
        found = value_of(node, variables)
        if found is not MISSING:
            yield ast.unparse(node), found
        elif not isinstance(node, _NOT_EVALUATED_HERE):
            waiting += reversed([*ast.iter_child_nodes(node)])


def _source(code: types.CodeType, instruction: int) -> str | None:
    """The part of the source that an instruction was made of."""
    start, end, first, last = next(islice(code.co_positions(), instruction // 2, None), (None,) * 4)
    if start is None or end is None or first is None or last is None:
        return None
    lines = [linecache.getline(code.co_filename, n).encode() for n in range(start, end + 1)]
    lines[-1] = lines[-1][:last]
    lines[0] = lines[0][first:]
    return f"({b''.join(lines).decode()})"


def value_of(node: ast.AST, variables: Mapping[str, Any]) -> Any:
    """What an expression is, if that can be told without running code."""
    if isinstance(node, ast.Name):
        return variables.get(node.id, MISSING)
    if isinstance(node, ast.Attribute):
        owner = value_of(node.value, variables)
        return MISSING if owner is MISSING else stored_items(owner).get(node.attr, MISSING)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        owner = value_of(node.value, variables)
        if type(owner) in _CONTAINERS:
            return guarded(lambda: owner[node.slice.value], lambda _: MISSING)  # type: ignore[union-attr]
    return MISSING
