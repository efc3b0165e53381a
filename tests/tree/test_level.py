"""A bare PyTreeDef: names where it is certain whose they are, and JAX's flat indices elsewhere."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from jax import tree_util
from sample_nodes import Layer, Point, Registered, Repeated, Slotted

import treeviz

pytestmark = pytest.mark.oldest_jax


class Swapped(NamedTuple):
    x: Any
    y: Any


class Packed(NamedTuple):
    x: Any
    y: Any


class Raising(NamedTuple):
    x: Any
    y: Any


def _flatten_raising(node: Raising):
    return (node.y + 1, node.x), None


@dataclass
class Reversed:
    a: Any
    b: Any


def register(cls: Any, flatten: Any) -> None:
    tree_util.register_pytree_node(cls, flatten, lambda _, kids: None)


register(Swapped, lambda node: ((node.y, node.x), None))
register(Packed, lambda node: ((node.y, node.x), "packed"))
register(Raising, _flatten_raising)
tree_util.register_dataclass(Reversed, ["b", "a"], [])


def paths(tree: Any) -> list[str]:
    return [row.keystr for row in treeviz.walk(tree_util.tree_structure(tree)).leaves]


@pytest.mark.parametrize(
    "tree",
    [
        {"b": 1, "a": [1, (2, 3)]},
        OrderedDict(b=1, a=2),
        defaultdict(int, b=1, a=2),
        Point(1, {"k": Point(2, 3)}),
        Swapped(1, 2),
        Packed(1, [2]),
        Registered(1, 2),
    ],
    ids=lambda tree: type(tree).__name__,
)
def test_the_paths_of_a_treedef_are_those_of_its_trees(tree):
    assert paths(tree) == [tree_util.keystr(path) for path, _ in tree_util.tree_flatten_with_path(tree)[0]]


@pytest.mark.parametrize(
    "tree",
    [Reversed(1, 2), Layer("n", 1, 2), Slotted(1), Repeated(1, 2), Raising(1, 2)],
    ids=lambda t: type(t).__name__,
)
def test_names_that_a_treedef_does_not_have_are_not_guessed(tree):
    n = tree_util.tree_structure(tree).num_leaves
    assert paths(tree) == [f"[<flat index {i}>]" for i in range(n)]
