"""What a call was given that raised in compiled code, where no frame has its arguments: told from the caller's.

The part of the source that raised is parsed, and names, constant subscripts and stored attributes in it are looked up
in the variables of the frame. Nothing of it is run.
"""

from __future__ import annotations

import ast
import linecache
import types
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import jax
import numpy as np

from treeviz.explainer.frames import Answer, is_of_jax
from treeviz.explainer.leaves import what
from treeviz.tree.attributes import MISSING, stored_items
from treeviz.tree.safe_repr import guarded
from treeviz.tree.walk import scan

_DELETED = ("deleted or donated", "has been deleted")  # in the message
_NOT_EVALUATED_HERE = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_CONTAINERS = (dict, list, tuple)


def of_deleted(error: Exception) -> Answer:
    """The arrays that were deleted, or donated, among what the expression that raised is about."""
    message = error.args[0] if isinstance(error, ValueError | RuntimeError) and error.args else None
    if type(message) is not str or not any(text in message for text in _DELETED):
        return "", ()
    return "arrays that were deleted, or donated to a call before", [
        f"{name}{path}: {what(leaf)}" for name, tree in _given(error) for path, leaf in _deleted(tree)
    ]


def _deleted(tree: Any) -> Iterator[tuple[str, Any]]:
    table, nodes = scan(tree)  # it may be any object, and contain itself
    keystr = table.keystrs()
    for row in np.flatnonzero(table.is_leaf).tolist():
        leaf = nodes[row]
        if isinstance(leaf, jax.Array) and guarded(leaf.is_deleted, lambda _: False):
            yield keystr(row), leaf


def _given(error: Exception) -> Iterator[tuple[str, Any]]:
    """What stands in the expression that raised, and what it is: "params['w']"."""
    trace, last = error.__traceback__, None
    while trace is not None and not is_of_jax(trace.tb_frame):
        last, trace = trace, trace.tb_next
    source = None if last is None else _source(last.tb_frame.f_code, last.tb_lasti)
    if last is None or source is None:
        return
    variables = {**last.tb_frame.f_globals, **last.tb_frame.f_locals}
    seen: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(source, mode="eval").body]
    while waiting:
        node = waiting.pop()
        found = _value(node, variables)
        if found is not MISSING:
            name = ast.unparse(node)
            if name not in seen:
                yield name, found
            seen.add(name)
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


def _value(node: ast.AST, variables: Mapping[str, Any]) -> Any:
    """What an expression is, if that can be told without running code."""
    if isinstance(node, ast.Name):
        return variables.get(node.id, MISSING)
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, variables)
        return MISSING if owner is MISSING else stored_items(owner).get(node.attr, MISSING)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        owner = _value(node.value, variables)
        if type(owner) in _CONTAINERS:
            return guarded(lambda: owner[node.slice.value], lambda _: MISSING)  # type: ignore[union-attr]
    return MISSING
