"""Registered nodes: what is static, what was dropped, what a closure captured, what a describer says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import tree_util
from sample_nodes import AdamState, Layer, Registered, Slotted, Static, Validating, WithAux
from sample_trees import module_level_function

import treeviz

pytestmark = pytest.mark.oldest_jax


def static(tree: Any) -> dict[str, str]:
    return dict(treeviz.walk(tree)[0].facts.static)


def test_data_static_and_dropped_fields_of_a_dataclass_are_told_apart():
    layer = Layer("apple", jnp.ones(2), units=7)
    layer.cache = "what is forgotten"
    table = treeviz.walk(layer)
    assert [row.keystr for row in table] == ["", ".w", ".b"]
    assert static(layer) == {"name": "'apple'", "units": "7", "cache (dropped)": "'what is forgotten'"}
    # as JAX does it
    leaves, treedef = tree_util.tree_flatten(layer)
    assert tree_util.tree_unflatten(treedef, leaves).name == "apple"
    assert tree_util.tree_unflatten(treedef, leaves).cache is None


def test_fields_marked_as_static_are_static():
    @tree_util.register_dataclass
    @dataclass
    class Marked:
        w: Any
        mode: str = field(default="fast", metadata={"static": True})

    assert static(Marked(1.0)) == {"mode": "'fast'"}
    assert [row.keystr for row in treeviz.walk(Marked(1.0)).leaves] == [".w"]


def test_static_fields_in_slots_are_read():
    assert static(Slotted(jnp.ones(2), axis=3)) == {"axis": "3"}


def test_auxiliary_data_without_names_is_shown_raw():
    assert static(WithAux(1.0)) == {"aux": "('aux!', 7)"}
    assert static(Registered(1.0, 2.0)) == {}


def test_arrays_in_static_data_are_described_and_not_printed():
    assert static(Layer("n", 1.0, units=np.arange(3)))["units"] == "int64[3]"  # type: ignore[arg-type]


def test_a_static_node_has_no_leaves_and_shows_its_value():
    (row,) = treeviz.walk(Static("add"))
    assert (row.kind, row["leaves"], row.facts.text) == ("static", 0, "'add'")


def test_a_partial_shows_its_function_and_its_arguments_are_its_children():
    partial = tree_util.Partial(module_level_function, jnp.ones(2), k=np.ones(3))
    table = treeviz.walk({"f": partial})
    node = table[1]
    line = module_level_function.__code__.co_firstlineno
    assert node.kind == "closure"
    assert node.facts.text == f"module_level_function  tests/sample_trees.py:{line}"
    assert [row.dtype for row in table.leaves] == ["float32", "float64"]
    assert node["bytes"] == 2 * 4 + 3 * 8


def test_a_named_tuple_is_one():
    assert treeviz.walk(AdamState(1, 2, 3))[0].kind == "namedtuple"


def test_nothing_of_the_users_is_unflattened():
    tree = Validating(jnp.ones(2))  # whose constructor takes arrays alone
    assert "Validating" in treeviz.render(tree, stats=True).text()


def test_auxiliary_data_that_raises_leaves_the_children_alone():
    class Hostile:
        __eq__ = __hash__ = __len__ = __bool__ = __repr__ = None

    class Node:
        pass

    tree_util.register_pytree_node(Node, lambda _: ((1.0,), Hostile()), lambda _, kids: Node())
    table = treeviz.walk(Node())
    assert len(list(table.leaves)) == 1
    assert not table.notes


def test_a_class_of_the_users_own_can_say_how_it_looks():
    class Quantity:
        def __init__(self, value, unit):
            self.value, self.unit = value, unit

    tree_util.register_pytree_node(Quantity, lambda q: ((q.value,), q.unit), lambda unit, kids: Quantity(*kids, unit))

    @treeviz.describes(Quantity)
    def _(quantity):
        if quantity.unit is None:
            raise ValueError("no unit")
        return treeviz.Look(type="Quantity<b>", text=f"in {quantity.unit}\x00", static=(("unit", quantity.unit),))

    table = treeviz.walk([Quantity(jnp.ones(2), "m"), Quantity(1.0, None)])
    assert (table[1].type, table[1].facts.text, table[1].facts.static) == (
        "Quantity<b>",
        r"in m\x00",
        (("unit", "'m'"),),
    )
    assert [row.keystr for row in table.leaves] == ["[0][<flat index 0>]", "[1][<flat index 0>]"]
    (note,) = table[3].notes
    assert (note.kind, "ValueError: no unit" in note.text) == ("error", True)
