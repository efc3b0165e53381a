"""Registered nodes: what is static, what was dropped, what a closure captured, what a describer says."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import tree_util
from sample_nodes import AdamState, Layer, Registered, Slotted, Special, Static, Validating, WithAux
from sample_trees import SAMPLES, module_level_function, scale

import treeviz
from treeviz.tree.describe import NodeFacts
from treeviz.tree.level import flatten_of

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


@pytest.mark.parametrize(
    "values",
    [
        (1, True, 1.0, "1", np.int64(1), (1,), (True,), (1.0,)),
        (0, False, 0.0, -0.0, None, "", ()),
        (float("nan"), -float("nan"), float("inf"), "nan"),
        ([1], [1, 2], [1]),
        tuple(range(300)),
    ],
    ids=["ones", "zeros", "NaN", "lists", "many"],
)
def test_nodes_of_a_class_share_no_static_value_that_reads_differently(values):
    table = treeviz.walk([Layer("n", 1.0, units=value) for value in values])
    nodes = [row for row in table if row.type == "Layer"]
    assert [dict(row.facts.static)["units"] for row in nodes] == [repr(value) for value in values]


def test_classes_without_static_fields_keep_their_names():
    def new(name: str) -> Any:
        return tree_util.register_dataclass(dataclass(type(name, (), {"__annotations__": {"w": float}, "w": 0.0})))

    table = treeviz.walk([new("First")(), new("Second")()])
    assert [row.type for row in table if row.depth == 1] == ["First", "Second"]


@pytest.mark.parametrize("name", SAMPLES)
def test_describing_nodes_that_look_alike_once_changes_nothing(name, monkeypatch):
    tree = SAMPLES[name]()
    table = treeviz.walk([tree, tree])
    monkeypatch.setattr(NodeFacts, "_sharing_key", lambda *_: (None, []))
    each = treeviz.walk([tree, tree])
    assert [row.facts for row in table] == [row.facts for row in each]


def test_no_static_value_is_asked_for_its_hash_or_whether_it_is_equal():
    class Deaf:
        def __eq__(self, _):
            raise AssertionError

        def __hash__(self):
            raise AssertionError

    deaf = Deaf()
    table = treeviz.walk([Layer("n", 1.0, units=each) for each in (deaf, Deaf(), deaf)])  # type: ignore[arg-type]
    assert len({row.facts.static for row in table if row.type == "Layer"}) == 1  # the name of the class
    assert not any(table.notes.values())


@pytest.mark.parametrize(
    "node", [Layer("n", 1.0), Validating(jnp.ones(2)), WithAux(1.0), Registered(1.0, 2.0), Static("s")]
)
def test_both_ways_to_take_a_level_give_the_same(node):
    (pairs, aux), (slow_pairs, slow_aux) = flatten_of(type(node))(node), flatten_of(tuple)(node)  # type: ignore[misc]
    assert [(key, id(child)) for key, child in pairs] == [(key, id(child)) for key, child in slow_pairs]
    assert aux is slow_aux or aux == slow_aux


def test_auxiliary_data_without_names_is_shown_raw():
    assert static(WithAux(1.0)) == {"aux": "('aux!', 7)"}
    assert static(Registered(1.0, 2.0)) == {}


def test_arrays_in_static_data_are_described_and_not_printed():
    assert static(Layer("n", 1.0, units=np.arange(3)))["units"] == "int64[3]"  # type: ignore[arg-type]


def hidden(tree: Any) -> tuple[str, dict[str, str]]:
    (note,) = (note for note in treeviz.walk(tree)[0].notes if note.kind == "hidden")
    return note.text, dict(note.details)


def layer(units: Any) -> Layer:
    return Layer("n", 1.0, units=units)


@pytest.mark.parametrize(
    ("node", "where", "inside"),
    [
        (layer(np.arange(3)), "static data", {".units": "int64[3]"}),
        (layer(({"k": [np.arange(3)]},)), "static data", {".units[0]['k'][0]": "int64[3]"}),
        (layer(Special(np.arange(3), 1)), "static data", {".units.x": "int64[3]"}),
        (layer(partial(max, np.arange(3))), "static data", {".units(argument 0)": "int64[3]"}),
        (WithAux(1.0, label=np.arange(3)), "static data", {".aux[0]": "int64[3]"}),
        (tree_util.Partial(partial(max, np.arange(3))), "a function", {"(argument 0)": "int64[3]"}),
        (tree_util.Partial(tree_util.Partial(max, k=np.arange(3))), "a function", {".k": "int64[3]"}),
        (tree_util.Partial(scale(np.arange(3))), "a function", {".factor": "int64[3]"}),
    ],
)
def test_arrays_in_static_data_get_a_badge_with_their_bytes(node, where, inside):
    text = f"1 hidden array (24 B) in {where}: jit raises or compiles again when it changes"
    assert hidden(node) == (text, inside)


def test_every_node_with_the_same_array_in_its_static_data_gets_the_badge():
    table, units = (np.arange(3), np.arange(3))
    rows = [row for row in treeviz.walk([layer(table), layer(table), layer(units), layer(3)]) if row.type == "Layer"]
    assert [[note.kind for note in row.notes if note.kind == "hidden"] for row in rows] == [["hidden"]] * 3 + [[]]


def test_static_data_without_arrays_gets_no_badge():
    for node in (layer(jax.ShapeDtypeStruct((2,), np.float32)), layer(np.float32(1)), layer(scale(2.0)), Static("s")):
        assert not treeviz.walk(node)[0].notes


class Tag:
    """As the tags, axes and units of libraries: known by its `repr`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<{self.name}\n  tag at 0x7f00>"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Tag("symmetric"), "<symmetric tag>"),
        ((Tag("a"), 2), "(<a tag>, 2)"),
        ([{"k": (Tag("a"),)}], "[{'k': (<a tag>,)}]"),
        ({Tag("a"): Tag("b")}, "{<a tag>: <b tag>}"),
        (frozenset({Tag("b"), Tag("a")}), "frozenset({<a tag>, <b tag>})"),
        ((jax.nn.relu, Layer), "(relu, sample_nodes.Layer)"),
        ((slice(1, 2), range(3)), "(slice(1, 2, None), range(0, 3))"),
    ],
)
def test_static_values_are_written_as_their_class_writes_them_also_inside_containers(value, text):
    assert static(layer(value))["units"] == text


class Loud:
    def __init__(self, inside: Any) -> None:
        self.inside = inside

    def __repr__(self) -> str:
        raise AssertionError("the values of an array would be fetched")


@pytest.mark.parametrize(
    "inside", [jnp.ones(2), [Special({"k": jnp.ones(2)}, 1)], partial(max, jnp.ones(2)), list(range(2000))]
)
def test_an_object_that_refers_to_arrays_or_to_too_much_is_written_by_its_fields(inside):
    text = static(layer((Loud(inside),)))["units"]
    assert text.startswith("(Loud(inside=")


def test_a_repr_that_raises_or_is_endless_to_read_is_none():
    class Raises:
        x = 1
        __repr__ = None

    class Long:
        def __repr__(self):
            return "<b>" * 1_000_000

    assert static(layer(Raises()))["units"].endswith("Raises>")
    assert len(static(layer(Long()))["units"]) == 120


def test_programs_are_written_on_one_line_and_long_ones_are_counted():
    def chain(x):
        for _ in range(200):
            x = x + 1.0
        return x

    text = static(layer(jax.make_jaxpr(lambda x: (x + 1.0) * 2.0)(1.0)))["units"]
    assert "let b" in text and "\\n" not in text
    assert static(layer(jax.make_jaxpr(chain)(1.0)))["units"] == "a jaxpr of 200 equations"


@pytest.mark.parametrize(
    "node",
    [
        tree_util.Partial(partial(module_level_function, 1)),
        tree_util.Partial(tree_util.Partial(module_level_function), 1),
    ],
)
def test_a_partial_of_a_partial_shows_the_function(node):
    line = module_level_function.__code__.co_firstlineno
    assert treeviz.walk(node)[0].facts.text == f"partial(module_level_function, …)  tests/sample_trees.py:{line}"


def test_a_linearized_function_shows_what_was_linearized_and_its_residuals_are_children():
    def loss(x):
        return jnp.sin(x) * 2.0

    table = treeviz.walk(jax.linearize(loss, jnp.ones(3))[1])
    facts = table[0].facts
    if hasattr(jax.make_jaxpr(loss)(1.0).jaxpr, "debug_info") and jax.__version_info__ >= (0, 5):
        assert facts.text == f"linearize of loss  tree/test_nodes.py:{loss.__code__.co_firstlineno}"
    assert [name for name, _ in facts.static] == ["jaxpr"]
    assert table[0]["bytes"] >= 12


def test_a_static_node_has_no_leaves_and_shows_its_value():
    (row,) = treeviz.walk(Static("add"))
    assert (row.kind, row["leaves"], row.facts.text) == ("static", 0, "'add'")


def test_a_partial_shows_its_function_and_its_arguments_are_its_children():
    table = treeviz.walk({"f": tree_util.Partial(module_level_function, jnp.ones(2), k=np.ones(3))})
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
        return treeviz.Description(
            type="Quantity<b>", text=f"in {quantity.unit}\x00", static=(("unit", quantity.unit),)
        )

    table = treeviz.walk([Quantity(jnp.ones(2), "m"), Quantity(1.0, None)])
    assert (table[1].type, table[1].facts.text, table[1].facts.static) == (
        "Quantity<b>",
        r"in m\x00",
        (("unit", "'m'"),),
    )
    assert [row.keystr for row in table.leaves] == ["[0][<flat index 0>]", "[1][<flat index 0>]"]
    (note,) = table[3].notes
    assert (note.kind, "ValueError: no unit" in note.text) == ("error", True)
