"""Random trees: the walk agrees with `jax.tree_util`, and every expression leads to its node."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import tree_util
from sample_nodes import AdamState, Keyed, Layer, Node, Point, Registered, Repeated, Slotted, Static, WithAux
from test_samples import check_table

import treeviz
from treeviz.analysis.facts import is_first
from treeviz.tree.walk import scan
from treeviz.tree.walk import walk as walk_within

pytestmark = pytest.mark.oldest_jax

# The strings and arrays have an identity that `is` can tell.
leaves = st.one_of(
    st.floats(),
    st.integers(),
    st.builds(lambda n: np.ones((n, 2), np.float32), st.integers(0, 3)),
    st.builds(object),
    st.text(max_size=4),
)
text_keys = st.text(max_size=3) | st.sampled_from(["w", "b", "it's", 'say "x"', "a.b", "\n", "0", "\ud800"])
key_types = st.sampled_from(
    [text_keys, st.integers(-3, 12), st.binary(max_size=2), st.tuples(st.integers(0, 2), st.text(max_size=1))]
)


def nodes(children: st.SearchStrategy) -> st.SearchStrategy:
    lists = st.lists(children, max_size=4)
    dicts = key_types.flatmap(lambda keys: st.dictionaries(keys, children, max_size=4))
    return st.one_of(
        lists,
        lists.map(tuple),
        dicts,
        dicts.map(OrderedDict),
        dicts.map(lambda d: defaultdict(list, d)),
        st.builds(Point, children, children),
        st.builds(AdamState, children, children, children),
        st.builds(Registered, children, children),
        st.builds(lambda kids: WithAux(*kids), lists),
        st.builds(Keyed, children, children, children),
        st.builds(lambda kids: Repeated(*kids), lists),
        st.builds(Node, children),
        st.builds(Layer, st.text(max_size=3), children, children),
        st.builds(Slotted, children),
        st.builds(
            lambda kids, more: tree_util.Partial(len, *kids, **more),
            lists,
            st.dictionaries(st.sampled_from("xyz"), children, max_size=2),
        ),
        # the same object in two places
        children.map(lambda child: [child, {"again": child}]),
    )


trees = st.recursive(leaves | st.none() | st.just(Static("s")), nodes, max_leaves=50)


@settings(max_examples=4 * settings().max_examples)
@given(trees)
def test_leaves_and_paths_and_their_order_are_those_of_jax(tree):
    flat, treedef = tree_util.tree_flatten_with_path(tree)
    table, nodes = scan(tree)
    check_table(table)
    rows = np.flatnonzero(table.is_leaf)
    assert [id(nodes[row]) for row in rows] == [id(leaf) for _, leaf in flat]
    assert [table[row].keystr for row in rows] == [tree_util.keystr(path) for path, _ in flat]
    assert treedef.num_nodes == len(table)


@given(trees)
def test_a_subtree_has_the_leaves_that_jax_counts_in_it(tree):
    table, nodes = scan(tree)
    for row in table:
        n_leaves = len(tree_util.tree_leaves(nodes[row.number]))
        assert int(table.is_leaf[row.number : row.end].sum()) == n_leaves


@given(trees)
def test_sizes_of_a_subtree_are_those_of_its_arrays(tree):
    table = treeviz.walk(tree)
    nodes = scan(tree)[1]
    for row, node in zip(table, nodes, strict=True):
        arrays = [leaf for leaf in tree_util.tree_leaves(node) if isinstance(leaf, np.ndarray)]
        assert row["bytes"] == sum(a.nbytes for a in arrays)
        assert row["elements"] == sum(a.size for a in arrays)
        assert row["leaves"] == len(tree_util.tree_leaves(node))


@settings(max_examples=4 * settings().max_examples)
@given(trees)
def test_every_expression_evaluates_to_the_very_node(tree):
    table, nodes = scan(tree, name="tree")
    for row, node in zip(table, nodes, strict=True):
        assert eval(row.expression, {"treeviz": treeviz, "tree": tree}) is node, row.expression


@given(trees, st.sampled_from([list, dict, tuple, Point, Layer, Node, np.ndarray, type(None)]))
def test_is_leaf_means_what_it_means_to_jax(tree, cls):
    def is_leaf(node: Any) -> bool:
        return type(node) is cls

    table, nodes = scan(tree, is_leaf=is_leaf)
    assert [id(nodes[row]) for row in np.flatnonzero(table.is_leaf)] == [
        id(leaf) for leaf in tree_util.tree_leaves(tree, is_leaf=is_leaf)
    ]


@given(trees)
def test_a_treedef_has_the_nodes_of_its_tree(tree):
    table, of_treedef = treeviz.walk(tree), treeviz.walk(jax.tree_util.tree_structure(tree))
    assert of_treedef.depth.tolist() == table.depth.tolist()
    assert of_treedef.is_leaf.tolist() == table.is_leaf.tolist()
    assert [row.type for row in of_treedef if not row.is_leaf] == [row.type for row in table if not row.is_leaf]


@given(trees, st.integers(1, 40))
def test_a_budget_keeps_the_table_within_it_and_counts_what_is_left_out(tree, max_rows):
    whole, table = treeviz.walk(tree), walk_within(tree, max_rows=max_rows)
    check_table(table)
    more = [row for row in table if row.kind == "more"]
    assert len(table) <= max(max_rows, 1) + len(more)
    assert bool(more) == (len(whole) > max_rows)


@given(trees)
def test_what_is_shared_is_what_stands_in_two_places(tree):
    table, nodes = scan(tree)
    arrays = [id(node) for row, node in zip(table, nodes, strict=True) if row.kind == "numpy"]
    unique = sum({id(a): a.nbytes for a in nodes if isinstance(a, np.ndarray)}.values())
    summed = treeviz.walk(tree)
    first = is_first(summed)
    assert int(summed.columns["bytes"].values[first].sum()) == unique
    assert len(set(arrays)) == int((first & np.array([row.kind == "numpy" for row in table])).sum())


@given(trees)
def test_text_and_page_of_a_random_tree_come_out(tree):
    view = treeviz.render(tree, depth=3)
    assert repr(view) and view.text().encode() and view.html().encode()
