"""A tree that is rebuilt from its key paths has the leaves, paths and totals of the tree itself."""

import jax
import numpy as np
import optax
import pytest

from treeviz.tree.facts import Facts
from treeviz.tree.paths import table_of_paths
from treeviz.tree.walk import walk

TREES = {
    "nested": lambda: {
        "a": [np.ones(2), (np.ones(3), {"b": np.ones(1)})],
        "it's": {"x]y": 1.0, "": 2.0, "q\"'\\": 3.0},
    },
    "optax": lambda: optax.adam(1e-3).init({"w": np.ones(2), "b": np.ones(3)}),
    "numbers as keys": lambda: {1: 2.0, 10: {(1, 2): 3.0}},
    "a leaf": lambda: np.ones(3),
    "flat": lambda: [1.0, 2.0, 3.0],
}


@pytest.mark.parametrize("make", TREES.values(), ids=TREES)
def test_the_leaves_have_their_paths_and_order(make):
    leaves = list(walk(make()).leaves)
    table = table_of_paths("tree", [leaf.keystr for leaf in leaves], [leaf.facts for leaf in leaves])
    again = list(table.leaves)
    assert [leaf.keystr for leaf in again] == [leaf.keystr for leaf in leaves]
    assert [leaf.depth for leaf in again] == [leaf.depth for leaf in leaves]
    assert [leaf.facts for leaf in again] == [leaf.facts for leaf in leaves]
    assert len(table[0].table) >= len(leaves)
    for row in table:
        assert [child.parent.number for child in row.children] == [row.number] * len(list(row.children))


def test_a_key_of_somebodys_own_stays_in_one_piece():
    table = table_of_paths("t", ["['a']<1>.x", "['a']<2>"], [Facts("array", "", True, 1), Facts("array", "", True, 1)])
    assert [row.keystr for row in table] == ["", "['a']", "['a']<1>.x", "['a']<2>"]


def test_an_expression_of_a_rebuilt_row_leads_to_its_leaf():
    tree = {"a": [1.0, {"b": 2.0}]}
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    table = table_of_paths("tree", paths, [Facts("scalar", "float", True, 1)] * 2)
    assert [eval(leaf.expression, {"tree": tree}) for leaf in table.leaves] == [1.0, 2.0]


def test_a_variable_is_one_row_as_in_a_walk_and_its_layers_are_below_it():
    array, layer = Facts("array", "", True, 1), Facts("layer", "", False)
    paths = ["['a']['kernel'].value[0]", "['a']['kernel'].value[1]", "['a']['bias'].raw_value", ".key.w", ".value"]
    table = table_of_paths("t", paths, [layer, layer, array, array, array])
    assert [(row.path, row.keystr, row.label) for row in table][2:] == [
        ("a/kernel", "['a']['kernel'].value", "kernel"),
        ("a/kernel/0", paths[0], "[0]"),
        ("a/kernel/1", paths[1], "[1]"),
        ("a/bias", paths[2], "bias"),
        ("key", ".key", ".key"),
        ("key/w", ".key.w", ".w"),
        ("value", ".value", ".value"),
    ]


def test_a_field_with_the_name_value_beside_others_is_a_row():
    paths = [".attn.key", ".attn.value", "['a'].value.w"]
    table = table_of_paths("t", paths, [Facts("array", "", True, 1)] * 3)
    assert [row.keystr for row in table] == ["", ".attn", *paths[:2], "['a']", "['a'].value", paths[2]]
