"""Which variable does not fit a Linen model: it has another shape than its layer makes, or is not there."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from treeviz.explainer.frames import Answer, frames_of, is_of_jax, is_of_python
from treeviz.explainer.leaves import what
from treeviz.tree.safe_repr import class_name

_ERRORS = {"ScopeParamShapeError", "ScopeParamNotFoundError", "ScopeCollectionNotFound", "ScopeVariableNotFoundError"}
_NO_COLLECTIONS = {"ApplyScopeInvalidVariablesTypeError", "ApplyScopeInvalidVariablesStructureError"}
_WITHIN = "/flax/core/scope.py", "/flax/linen/module.py"
_MOST_KEYS = 6


def of_scope(error: BaseException) -> Answer:
    cls = type(error)
    if cls.__module__ != "flax.errors":
        return "", ()
    frames = frames_of(error)
    if cls.__name__ in _NO_COLLECTIONS:
        return "the variables are no dict of collections", [*_no_collections(_given(frames))]
    of = frames[-1].f_locals
    if cls.__name__ == "ModifyScopeVariableError":
        path = _keystr([of["col"], *of["self"].path, of["name"]])
        return "apply cannot change the variables", [f"{path}: pass mutable=[{of['col']!r}] to apply, which returns it"]
    if cls.__name__ not in _ERRORS:
        return "", ()
    keys = [of.get("col", "params"), *of["self"].path, of["name"]]
    inputs = _inputs(frames)
    if cls.__name__ == "ScopeParamShapeError":
        line = f"{_keystr(keys)}: {what(of['val'])}: the layer makes it {np.shape(of['abs_val'])} for its input"
        return "the parameters are of a model with other shapes", [line, *inputs]
    return "the model needs what is not in the variables", [_missing(_given(frames), keys), *inputs]


def _given(frames: Sequence[types.FrameType]) -> Mapping[str, Any]:
    """The variables of the innermost `apply`."""
    return next(found for frame in reversed(frames) if isinstance(found := frame.f_locals.get("variables"), Mapping))


def _no_collections(given: Mapping[str, Any]) -> Iterator[str]:
    within = given.get("params")
    if isinstance(within, Mapping) and "params" in within:
        yield "['params']['params']: the variables are inside once more: pass what is in ['params']"
    for name, each in given.items():
        if not isinstance(each, Mapping):
            yield f"[{name!r}]: {what(each)} in place of a collection: pass {{'params': variables}}"


def _missing(given: Mapping[str, Any], keys: Sequence[str]) -> str:
    where = f"{_keystr(keys)}: not in the variables"
    if not given.get(keys[0]):
        if _reaches(given, keys[1:]):
            return f"{where}, which belong into it: pass {{{keys[0]!r}: variables}}"
        return f"{where}, which have only {_names(given)}"
    for i in range(1, len(keys)):
        node = given
        for key in keys[:i]:
            node = node[key]
        if not isinstance(node, Mapping) or keys[i] not in node:
            if not isinstance(node, Mapping):
                return f"{_keystr(keys[:i])}: {what(node)}, and no layer with {_keystr(keys[i:])}"
            return f"{_keystr(keys[: i + 1])}: {_keystr(keys[:i])} has only {_names(node) or 'nothing'}"
    return where


def _reaches(node: Any, keys: Sequence[str]) -> bool:
    for key in keys:
        if not isinstance(node, Mapping) or key not in node:
            return False
        node = node[key]
    return True


def _names(node: Mapping[str, Any]) -> str:
    more = f" and {len(node) - _MOST_KEYS:,} more" if len(node) > _MOST_KEYS else ""
    return ", ".join(map(repr, [*node][:_MOST_KEYS])) + more


def _keystr(keys: Sequence[str]) -> str:
    return "".join(f"[{key!r}]" for key in keys)


def _inputs(frames: Sequence[types.FrameType]) -> list[str]:
    """The arrays that the layer was called with."""
    for frame in reversed(frames):
        file = frame.f_code.co_filename.replace("\\", "/")
        if not file.endswith(_WITHIN) and not is_of_jax(frame) and not is_of_python(frame):
            names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
            layer = class_name(type(frame.f_locals[names[0]])) if names and names[0] in frame.f_locals else ""
            arrays = [(name, frame.f_locals.get(name)) for name in names[1:]]
            return [
                f"{name} of {layer}: {what(array)}"
                for name, array in arrays
                if isinstance(array, jax.Array | np.ndarray)
            ]
    return []
