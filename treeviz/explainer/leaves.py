"""The leaves of a tree in a line of an explanation: what each is, and what to do with those that are no arrays."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import tree_util

from treeviz.integrations.hijax import describer_of_hijax
from treeviz.tree.attributes import stored_attribute
from treeviz.tree.safe_repr import array_text, class_name, guarded, module_name, value_text


def leaves_of(tree: Any) -> list[tuple[str, Any]]:
    return [(tree_util.keystr(path), leaf) for path, leaf in tree_util.tree_flatten_with_path(tree)[0]]


def what(leaf: Any) -> str:
    leaf = unwrapped(leaf)
    return guarded(lambda: array_text(leaf), lambda _: None) or f"{class_name(type(leaf))} {value_text(leaf, 40)}"


def is_wrapper(leaf: Any) -> bool:
    """Whether it stands for a leaf while `equinox.tree_at` calls functions of the user's."""
    return type(leaf).__name__ == "_LeafWrapper" and type(leaf).__module__.startswith("equinox")


def unwrapped(leaf: Any) -> Any:
    return stored_attribute(leaf, "value") if is_wrapper(leaf) else leaf


def is_array(leaf: Any) -> bool:
    return isinstance(leaf, bool | int | float | complex) or (
        hasattr(leaf, "dtype") and hasattr(leaf, "shape") and getattr(leaf.dtype, "kind", "f") not in "OSUM"
    )


def is_of_jax(leaf: Any) -> bool:
    """Whether `jit` takes it: an array, a number, or a value of a hijax type."""
    return is_array(leaf) or describer_of_hijax(type(leaf)) is not None


def is_ref(leaf: Any) -> bool:
    """Whether it is a mutable reference, or one that is traced."""
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
