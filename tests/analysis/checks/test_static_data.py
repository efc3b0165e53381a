"""What a node keeps in the treedef is judged as JAX compares it."""

from __future__ import annotations

import functools
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sample_nodes import Layer, Point, Special

import treeviz as tv

pytestmark = pytest.mark.oldest_jax


@dataclass
class Compared:
    x: Any
    cache: Any = field(default=None, compare=False)


@dataclass(frozen=True, eq=False)
class ByIdentity:
    x: Any


class ByName:
    def __init__(self, x):
        self.x, self.name = x, "n"

    def __eq__(self, other):
        return type(other) is ByName and self.name == other.name

    def __hash__(self):
        return hash(self.name)


STATIC: dict[str, tuple[Any, str]] = {
    "array": (lambda: np.arange(3), "error"),
    "empty array": (lambda: jnp.ones((0, 2)), "error"),
    "tuple": (lambda: ("a", (1, jnp.ones(2))), "error"),
    "dict in list": (lambda: [{"a": np.ones(2)}], "error"),
    "deque": (lambda: deque([np.ones(2)]), "error"),
    "named tuple": (lambda: Point(np.ones(2), 1), "error"),
    "read-only dict": (lambda: MappingProxyType({"a": np.ones(2)}), "error"),
    "dataclass": (lambda: Compared(np.ones(2)), "error"),
    "dataclass in an object": (lambda: Special(Compared(np.ones(2)), 1), "warning"),
    "field that is not compared": (lambda: Compared(1, ByName(np.ones(2))), "info"),
    "array of one number": (lambda: np.ones(1), "warning"),
    "dataclass without ==": (lambda: ByIdentity(np.ones(2)), "warning"),
    "object": (lambda: Special(np.ones(2), 1), "warning"),
    "object with ==": (lambda: (1, ByName(np.ones(2))), "info"),
    "function": (lambda: functools.partial(np.add, np.ones(2)), "info"),
}


@pytest.mark.parametrize("name", STATIC)
def test_an_array_in_static_data_is_an_error_exactly_where_comparing_it_raises(name):
    make, level = STATIC[name]
    tree = [Layer("n", 1.0, units=make())]
    (finding,) = [each for each in tv.check(tree, for_="jit") if each.code == "T101"]
    assert (finding.level, finding.path) == (level, "[0]")
    with pytest.raises(ValueError) if level == "error" else nullcontext():  # as jit compares them
        _ = jax.tree.structure(tree) == jax.tree.structure([Layer("n", 1.0, units=make())])
    if level == "warning":
        assert [(each.code, each.level) for each in tv.check(tree)] == [("T101", "info")]


first = lambda x, y: x


class Mapped:
    """Its auxiliary data is a mapping of fields."""

    def __init__(self, x, label):
        self.x, self.label = x, label


jax.tree_util.register_pytree_node(
    Mapped, lambda m: ((m.x,), MappingProxyType({"label": m.label})), lambda aux, xs: Mapped(*xs, **aux)
)


def test_functions_and_nan_are_found_in_containers_and_below_partial_functions():
    static = {"a": (1, functools.partial(first, 1)), "b": [float("nan")]}
    found = tv.check(Layer("n", 1.0, units=static))  # type: ignore[arg-type]
    assert [(each.code, each.sentence) for each in found if each.code != "T102"] == [
        ("T103", "the static field units holds NaN: each new one compiles again"),
        ("T104", "the static field units holds the local function <lambda>, equal only to itself"),
    ]
    endless: list[Any] = []
    endless.append(endless)
    assert [each.code for each in tv.check(Layer("n", 1.0, units=endless))] == ["T102"]  # type: ignore[arg-type]


def test_a_field_in_auxiliary_data_that_is_a_mapping_is_named_by_the_fix():
    (found,) = tv.check(Mapped(1.0, np.ones(2)))
    assert found.code == "T101" and "self.label" in found.fix
