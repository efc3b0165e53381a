"""Chex: the children of its dataclasses, which are sorted by name."""

from __future__ import annotations

from typing import Any

from jax.tree_util import GetAttrKey

from treeviz.tree.level import knows_child_keys


@knows_child_keys
def child_keys(cls: type, aux: Any) -> list[Any] | None:
    """The keys of the children of a chex.dataclass in a bare treedef, whose auxiliary data are their names."""
    made_by = getattr(cls.__dict__.get("to_tuple"), "__module__", None)
    return [GetAttrKey(name) for name in aux] if str(made_by).partition(".")[0] == "chex" else None
