"""Pytree nodes of every make: registered in each of JAX's ways, and in ways that JAX did not think of."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
from jax import tree_util

Point = NamedTuple("Point", [("x", Any), ("y", Any)])  # noqa: UP014 (that it is one line)


class AdamState(NamedTuple):
    count: Any
    mu: Any
    nu: Any


class Special:
    """As in JAX's documentation; not registered."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x = x
        self.y = y


class Registered(Special):
    """Registered without keys and without auxiliary data."""


tree_util.register_pytree_node(Registered, lambda r: ((r.x, r.y), None), lambda _, kids: Registered(*kids))


@tree_util.register_pytree_node_class
class WithAux:
    """Registered as a class, with auxiliary data."""

    def __init__(self, *children: Any, label: str = "aux!") -> None:
        self.children = children
        self.label = label

    def tree_flatten(self):
        return self.children, (self.label, 7)

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children, label=aux[0])


class Keyed:
    """Registered with keys: an attribute, an item, and one of its own making."""

    def __init__(self, weight: Any, item: Any, odd: Any) -> None:
        self.weight = weight
        self.items = {"z": item}
        self.odd = odd


class OddKey:
    """A key type of somebody's own: JAX writes its `str`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"<{self.name}>"


def _flatten_keyed(k: Keyed):
    keys = tree_util.GetAttrKey("weight"), tree_util.DictKey("z"), OddKey("odd")
    return list(zip(keys, (k.weight, k.items["z"], k.odd), strict=True)), None


tree_util.register_pytree_with_keys(Keyed, _flatten_keyed, lambda _, kids: Keyed(*kids))


@tree_util.register_pytree_with_keys_class
class Repeated:
    """Gives all of its children the same key."""

    def __init__(self, *children: Any) -> None:
        self.children = children

    def tree_flatten_with_keys(self):
        return [(tree_util.GetAttrKey("dup"), kid) for kid in self.children], None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


@tree_util.register_pytree_with_keys_class
class Node:
    """One child, which may be the node itself."""

    def __init__(self, child: Any = None) -> None:
        self.child = child

    def tree_flatten_with_keys(self):
        return [(tree_util.GetAttrKey("child"), self.child)], None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


@functools.partial(
    tree_util.register_dataclass, data_fields=["w", "b"], meta_fields=["name", "units"], drop_fields=["cache"]
)
@dataclass
class Layer:
    name: str
    w: Any
    b: Any = None
    units: int = 3
    cache: Any = field(default=None, init=False)


@functools.partial(tree_util.register_dataclass, data_fields=["scale"], meta_fields=["axis"])
@dataclass(slots=True)
class Slotted:
    scale: Any
    axis: int = 0


@tree_util.register_static
class Static(str):
    """A node without leaves: all of it is in the treedef."""


class Raises:
    """Its flatten function raises what it is told to."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _raise(node: Raises):
    raise node.error


tree_util.register_pytree_node(Raises, _raise, lambda _, kids: None)


class Forever:
    """Every look inside makes a new one: a tree without end."""


tree_util.register_pytree_node(Forever, lambda _: ((Forever(), 1.0), None), lambda _, kids: Forever())


class Validating:
    """Its constructor takes nothing but arrays, so nobody may unflatten it with anything else."""

    def __init__(self, a: Any) -> None:
        if not isinstance(a, jax.Array):
            raise TypeError(f"an array, please, and no {type(a).__name__}")
        self.a = a


tree_util.register_pytree_node(Validating, lambda v: ((v.a,), None), lambda _, kids: Validating(*kids))
