"""Functions inside wrappers: what JAX's transformations were applied to, and what decorators decorate."""

from __future__ import annotations

import os
import types
from typing import Any

import jax

from treeviz.tree.safe_repr import guarded

_MAX_WRAPPERS = 16


def unwrapped(function: Any) -> tuple[str, Any]:
    """("grad of vmap of ", f) for `jax.grad(jax.vmap(f))`: JAX's transformations, and the innermost function."""
    names = ""
    for _ in range(_MAX_WRAPPERS):
        inner = guarded(lambda function=function: getattr(function, "__wrapped__", None), lambda _: None)
        if inner is None:
            break
        name = guarded(lambda function=function: _transformation(function), lambda _: "")
        names += f"{name} of " if name else ""
        function = inner
    return names, function


def _transformation(wrapper: Any) -> str:
    """The public function of JAX that made a wrapper; "" for wrappers of others."""
    code = wrapper.__code__
    if code.co_qualname.startswith("api_boundary."):  # around every function that JAX returns
        cells = dict(zip(code.co_freevars, wrapper.__closure__, strict=True))
        code = cells["fun"].cell_contents.__code__
    name, _, is_local = code.co_qualname.lstrip("_").partition(".<locals>.")
    is_known = is_local and is_code_of_jax(code) and (name in vars(jax) or name in vars(jax.numpy))
    return name if is_known else ""


def is_code_of_jax(code: types.CodeType) -> bool:
    return code.co_filename.startswith(os.path.dirname(jax.__file__) + os.sep)
