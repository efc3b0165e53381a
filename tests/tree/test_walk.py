"""What the walk finds in a tree, node by node, and what it says where JAX would fail."""

from __future__ import annotations

import tracemalloc
from collections import OrderedDict, defaultdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import tree_util
from sample_nodes import AdamState, Forever, Keyed, Layer, Node, Point, Raises, Repeated, Special, WithAux
from sample_trees import dag, deep

import treeviz
from treeviz.tree.walk import walk as walk_within

pytestmark = [pytest.mark.oldest_jax, pytest.mark.gpu]


def keystrs(tree, **options) -> list[str]:
    return [row.keystr for row in treeviz.walk(tree, **options)]


def notes(table, kind: str) -> dict[str, str]:
    return {row.keystr: note.text for row in table for note in row.notes if note.kind == kind}


def test_dict_keys_come_in_the_order_in_which_jax_flattens_and_not_in_that_of_insertion():
    assert keystrs({"b": 2.0, "a": 3.0}) == ["", "['a']", "['b']"]
    assert keystrs(defaultdict(list, b=2.0, a=3.0)) == ["", "['a']", "['b']"]
    assert keystrs(OrderedDict(b=2.0, a=3.0)) == ["", "['b']", "['a']"]


def test_fields_of_a_namedtuple_have_their_own_names():
    # JAX's own messages call every one of them `.count` (jax#39297)
    assert keystrs(AdamState(1, {"w": 2}, 3)) == ["", ".count", ".mu", ".mu['w']", ".nu"]


def test_none_and_empty_containers_are_rows_without_leaves():
    table = treeviz.walk({"a": (), "b": [], "c": {}, "d": None})
    assert [(row.kind, row["leaves"]) for row in table] == [
        ("dict", 0),
        ("tuple", 0),
        ("list", 0),
        ("dict", 0),
        ("none", 0),
    ]
    assert jax.tree_util.tree_leaves({"a": (), "b": [], "c": {}, "d": None}) == []


def test_a_lone_leaf_is_a_tree():
    (row,) = treeviz.walk(jnp.ones(3), name="x")
    assert (row.is_leaf, row.label, row.keystr, row.expression) == (True, "x", "", "x")


def test_is_leaf_makes_leaves_of_nodes():
    table = treeviz.walk([None, None, (1, 2)], is_leaf=lambda x: x is None)
    assert [(row.keystr, row.is_leaf) for row in table][:3] == [("", False), ("[0]", True), ("[1]", True)]
    assert len(list(table.leaves)) == 4


def test_an_is_leaf_that_raises_is_an_error_in_the_row_where_it_raised():
    def is_leaf(x):
        return x["no such key"] if isinstance(x, dict) else False

    table = treeviz.walk([{"a": 1.0}, 2.0], is_leaf=is_leaf)
    assert notes(table, "error") == {"[0]": "is_leaf raised here: KeyError: 'no such key'"}
    assert len(list(table.leaves)) == 2


def test_is_leaf_is_not_asked_about_leaves_twice():
    asked = []
    treeviz.walk([1, (2, 3)], is_leaf=lambda x: bool(asked.append(x)))
    assert len(asked) == len({id(x) for x in asked})


def test_keys_that_cannot_be_sorted_are_an_error_with_the_children_in_the_order_of_insertion():
    table = treeviz.walk({"x": {1: 1.0, "a": 2.0}})
    assert keystrs({"x": {1: 1.0, "a": 2.0}}) == ["", "['x']", "['x'][1]", "['x']['a']"]
    text = notes(table, "error")["['x']"]
    assert text.startswith("JAX cannot flatten this dict: its keys (int, str) cannot be sorted: TypeError:")
    assert table[2].expression == "tree['x'][1]"


def test_a_flatten_function_that_raises_is_an_error_in_its_row_and_the_rest_goes_on():
    table = treeviz.walk({"bad": Raises(ValueError("no")), "good": 1.0})
    assert notes(table, "error") == {"['bad']": "flattening this node raised: ValueError: no"}
    assert table[2].keystr == "['good']"


@pytest.mark.parametrize("walk", [treeviz.walk, treeviz.render])
def test_ctrl_c_in_a_flatten_function_passes_through(walk):
    with pytest.raises(KeyboardInterrupt):
        walk([Raises(KeyboardInterrupt())])


def test_a_cycle_is_a_row_that_says_where_it_leads():
    tree: dict = {"layers": [1.0]}
    tree["layers"].append(tree)
    node = Node()
    node.child = [node]
    table = treeviz.walk({"plain": tree, "custom": node})
    cycles = {row.keystr: (row.kind, table[row.notes[0].row].keystr) for row in table if row.kind == "cycle"}
    assert cycles == {
        "['plain']['layers'][1]": ("cycle", "['plain']"),
        "['custom'].child[0]": ("cycle", "['custom']"),
    }


def test_the_same_object_beside_itself_is_no_cycle():
    block = [1.0]
    table = treeviz.walk({"a": block, "b": {"c": block}})
    assert not any(row.kind == "cycle" for row in table)


@pytest.mark.large
def test_200_000_levels_are_a_deep_table():
    table = treeviz.walk(deep(200_000))
    assert len(table) == 200_001
    assert table.depth[-1] == 200_000
    assert table.is_leaf.sum() == 1
    assert table[0]["leaves"] == 1
    assert len(table[200_000].keystr) == 200_000 * len("[0]")


def test_the_paths_of_a_deep_tree_take_no_memory_by_the_square_of_its_depth():
    tree: Any = {"w": 1.0}
    for _ in range(500):
        tree = {"next": tree, "w": [1.0]}
    table = treeviz.walk(tree)
    keystr = table.keystrs()
    tracemalloc.start()
    for row in range(len(table)):
        keystr(row)
    n_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert n_bytes < 100_000  # all paths have 1 MB
    for row in (*range(0, len(table), 101), 5, 750, 751):
        assert keystr(row) == table[row].keystr


@pytest.mark.large
def test_20_000_levels_of_custom_nodes_are_a_deep_table():
    assert len(treeviz.walk(deep(20_000, Node))) == 20_001


def test_a_tree_with_2_to_the_40_paths_is_bounded_and_its_totals_are_not_guessed():
    table = treeviz.walk(dag(40))
    assert len(table) < 1_000_000
    assert any(row.kind == "repeat" for row in table)
    assert table[0]["leaves"] == 2**40
    assert table[0]["bytes"] == 2**40 * 8
    assert treeviz.walk(dag(4))[0]["leaves"] == 2**4
    assert len(treeviz.walk(dag(4))) == 2**6 - 1 - 2**4  # no budget: every path has its rows


@pytest.mark.large
def test_a_dict_with_100_000_keys_is_one_table():
    table = treeviz.walk(dict.fromkeys(range(100_000), 0.5))
    assert len(table) == 100_001
    assert table[99_999].keystr == "[99998]"


def test_a_tree_without_an_end_is_cut_and_says_so():
    table = walk_within(Forever(), max_rows=1_000)
    assert len(table) <= 1_001
    assert any(row.kind == "more" for row in table)


@pytest.mark.parametrize("max_rows", [100, 5_000], ids=["in a second pass", "of what was walked"])
def test_a_budget_is_shared_fairly_among_siblings(max_rows):
    tree = {"a": [0.0] * 5_000, "b": {"c": [0.0] * 3_000, "d": 1.0}, "e": [0.0] * 3}
    table = walk_within(tree, max_rows=max_rows)
    shown = {row.keystr: row.end - row.number for row in table if row.depth == 1}
    assert len(table) <= max_rows + 1
    assert shown["['a']"] > 20 and shown["['b']"] > 20
    assert shown["['e']"] == 4  # small siblings are whole
    left_out = {row.parent.keystr: row.notes[0].text for row in table if row.kind == "more"}
    assert left_out.keys() == {"['a']", "['b']['c']"}
    n_shown = sum(1 for row in table if row.keystr.startswith("['a']["))
    n_left_out = 5_000 - n_shown
    assert (
        left_out["['a']"]
        == f"{n_left_out:,} more children were left out: the budget is {max_rows:,} rows and 250,000 levels"
    )


def test_a_bare_treedef_is_a_tree_of_placeholders():
    tree = {"a": [1, (2, None)], "p": Point(1, 2), "d": defaultdict(list, x=1), "o": OrderedDict(z=1, y=2)}
    table, of_tree = treeviz.walk(tree_util.tree_structure(tree)), treeviz.walk(tree)
    assert [row.keystr for row in table] == [row.keystr for row in of_tree]
    assert {row.type for row in table.leaves} == {"*"}
    assert [row.type for row in table if not row.is_leaf] == [row.type for row in of_tree if not row.is_leaf]


def test_a_treedef_inside_a_tree_is_a_leaf_as_it_is_to_jax():
    table = treeviz.walk([tree_util.tree_structure([1, 2])])
    assert len(table) == 2
    assert "PyTreeDef" in table[1].facts.text


def test_custom_keys_are_written_as_jax_writes_them():
    tree = Keyed(1.0, [2.0], 3.0)
    assert keystrs(tree)[1:] == [".weight", "['z']", "['z'][0]", "<odd>"]
    leaves, _ = tree_util.tree_flatten_with_path(tree)
    assert [row.keystr for row in treeviz.walk(tree).leaves] == [tree_util.keystr(path) for path, _ in leaves]


@pytest.mark.parametrize("name", ["lambda", "\ufb01", "a b", "0", "", "x\n"])
def test_an_attribute_that_python_cannot_write_is_reached_by_position(name):
    class Odd:
        pass

    def flatten(odd):
        return [(tree_util.GetAttrKey(name), vars(odd)[name])], None

    tree_util.register_pytree_with_keys(Odd, flatten, lambda _, kids: Odd())
    tree = Odd()
    vars(tree)[name] = leaf = object()
    row = treeviz.walk(tree)[1]
    assert row.expression == "treeviz.child(tree, 0)"
    assert eval(row.expression) is leaf


def test_a_node_without_keys_is_reached_by_position():
    tree = {"n": WithAux(1.0, [2.0])}
    row = treeviz.walk(tree)[3]
    assert row.keystr == "['n'][<flat index 1>]"
    assert row.expression == "treeviz.child(tree['n'], 1)"
    assert treeviz.child(tree["n"], 1) is tree["n"].children[1]


def test_a_node_that_repeats_a_key_keeps_its_children_apart():
    table = treeviz.walk(Repeated(1.0, 2.0))
    assert [row.keystr for row in table] == ["", ".dup", ".dup"]
    assert [row.expression for row in table][1:] == ["treeviz.child(tree, 0)", "treeviz.child(tree, 1)"]


def test_child_flattens_the_node_once():
    flattened: list[int] = []

    class Counted:
        pass

    tree_util.register_pytree_node(Counted, lambda _: (flattened.append(1) or (1.0, 2.0), None), lambda *_: Counted())
    assert treeviz.child(Counted(), 1) == 2.0 and flattened == [1]


@pytest.mark.parametrize(
    ("tree", "position", "error", "message"),
    [
        (1.0, 0, TypeError, "child: JAX sees a leaf here, a float, which has no children."),
        ([1], 1, IndexError, "child: a list with 1 children has no child 1."),
        ([1], -1, IndexError, "child: a list with 1 children has no child -1."),
    ],
)
def test_child_says_what_is_wrong(tree, position, error, message):
    with pytest.raises(error) as raised:
        treeviz.child(tree, position)
    assert str(raised.value) == message


def test_rows_know_their_parent_and_children():
    table = treeviz.walk({"a": [1.0, (2.0,)], "b": 3.0}, name="params")
    a = table[1]
    assert [child.keystr for child in a.children] == ["['a'][0]", "['a'][1]"]
    assert a.parent.number == 0 and table[0].parent is None
    assert [child.label for child in table[0].children] == ["a", "b"]
    assert table[4].path == "a/1/0"
    assert table[-1].expression == "params['b']"
    assert repr(table[-1]) == "Row(5, params['b']:  float)"


def test_a_table_keeps_nothing_of_the_tree_alive():
    import gc
    import weakref

    leaf, node = np.ones(3), Special(1, 2)
    tree = WithAux(leaf, node, Layer("n", jnp.ones(2)))
    alive = [weakref.ref(leaf), weakref.ref(node), weakref.ref(tree.children[2].w), weakref.ref(tree)]
    gc.disable()  # large arrays are not to wait for it
    try:
        table = treeviz.walk(tree)
        del leaf, node, tree
        assert [ref() for ref in alive] == [None] * 4
    finally:
        gc.enable()
    assert len(table) == 6
