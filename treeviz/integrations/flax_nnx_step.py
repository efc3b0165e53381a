"""A step that `flax.nnx.jit` made: the `jax.jit` inside it, and copies of the modules that it changes in place."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable
from typing import Any

import jax

from treeviz.integrations.jax_internals import is_jitted


def nnx_jitted(step: Any) -> tuple[Any, Callable] | None:
    """What `jax.jit` gave inside an `nnx.jit`, and how to make the same wrapper around another."""
    jitted: Any = getattr(step, "jitted_fn", None)
    if type(step).__module__.partition(".")[0] != "flax" or not is_jitted(jitted):
        return None

    def with_other(make: Callable[[Callable], Callable]) -> Any:
        other = copy.copy(step)
        function = jitted.__wrapped__
        if hasattr(function, "ctxtag"):  # by which the traced function finds its wrapper
            function = copy.copy(function)
            function.ctxtag = other
        other.jitted_fn = make(function)
        return other

    return jitted, with_other


def tidy_path(path: str) -> str:
    """The path of a parameter in its model: neither the split state that NNX differentiates, nor the box it lies in."""
    return re.sub(r"^((?:\[\d+\])?)\.states\[\d+\]", r"\1", path).removesuffix(".value")


def cloned(tree: Any, copy_array: Callable[[Any], Any]) -> Any:
    """A copy of a tree with NNX modules in it, those that are shared still shared."""
    nnx = sys.modules["flax.nnx"]
    graph, state = nnx.split(tree)
    return nnx.merge(graph, jax.tree.map(copy_array, state))
