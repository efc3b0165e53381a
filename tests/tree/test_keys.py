"""Keys as text: as JAX writes them, whatever their length, and never blank."""

from __future__ import annotations

from typing import Any

import pytest
from jax import tree_util

import treeviz

pytestmark = pytest.mark.oldest_jax


class Named:
    """A node with one child under a key of any kind."""

    def __init__(self, key: Any) -> None:
        self.key = key


class Text:
    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


tree_util.register_pytree_with_keys(Named, lambda n: ([(n.key, 1.0)], None), lambda _, kids: Named(None))

LONG = "layer_" * 500
KEYS = [
    LONG,
    LONG.encode(),
    10**300,
    -(10**25),
    tuple(range(200)),
    frozenset(range(100)),
    ("a" * 300, 3),
    "",
    " ",
    "'\"",
]


@pytest.mark.parametrize("key", KEYS, ids=lambda key: f"{type(key).__name__} of {len(str(key))}")
def test_the_key_path_of_a_dict_is_that_of_jax(key):
    (row,) = treeviz.walk({key: 1.0}).leaves
    ((path, _),) = tree_util.tree_flatten_with_path({key: 1.0})[0]
    assert row.keystr == tree_util.keystr(path)
    assert len(row.label) < 250
    assert eval(row.expression, {"tree": {key: 1.0}, "treeviz": treeviz}) == 1.0


@pytest.mark.parametrize("key", [tree_util.GetAttrKey(LONG), tree_util.DictKey(LONG), Text(LONG), Text("")], ids=str)
def test_the_key_path_of_a_custom_node_is_that_of_jax(key):
    (row,) = treeviz.walk(Named(key)).leaves
    ((path, _),) = tree_util.tree_flatten_with_path(Named(key))[0]
    assert row.keystr == tree_util.keystr(path)
    assert 0 < len(row.label) < 250


def test_a_key_of_a_million_characters_is_cut():
    (row,) = treeviz.walk({"x" * 10**6: 1.0}).leaves
    assert len(row.keystr) < 10_100
    assert row.keystr.endswith("x…]")


def test_characters_that_cannot_be_printed_are_escaped_in_a_key_path():
    (row,) = treeviz.walk(Named(tree_util.GetAttrKey("a\x1b[31m"))).leaves
    assert row.keystr == r".a\x1b[31m"


@pytest.mark.parametrize("blank", ["", " ", "  ", "\u2800", "\u3164", "\u200b", "\xa0", "\t\n", " end", "end "])
@pytest.mark.parametrize("of", [str, tree_util.GetAttrKey, Text])
def test_a_key_that_would_be_blank_or_hide_its_ends_is_in_quotes_or_escaped(blank, of):
    tree = {blank: 1.0} if of is str else Named(of(blank))
    label = treeviz.walk(tree)[1].label
    assert label.removeprefix(".") == (f"'{blank}'" if blank.isprintable() else blank.encode("unicode_escape").decode())


def test_a_blank_key_is_in_every_view():
    view = treeviz.render({"": 1.0, "a": 2.0})
    assert "├─ ''  float 1.0" in view.text()
    assert "    '': float 1.0\n" in view.html()


def test_a_tree_without_a_name_is_called_a_tree():
    assert treeviz.walk([1.0], name="")[1].expression == "tree[0]"


@pytest.mark.oldest_jax
def test_dicts_with_the_keys_of_others_in_another_order_or_of_another_type_have_their_own():
    orders = [("b", "a", "c"), ("c", "a", "b"), ("b", "a", "c"), (1, 0), (True, False), (0, 1), (1, 0), (1.0, 0.0)]
    apart = ["".join(["long", "er"]), "longer", "a"]  # two objects for one text
    tree = [{key: (i, key) for key in keys} for i, keys in enumerate(orders)]
    tree += [{apart[0]: 1, "a": 2}, {apart[1]: 3, "a": 4}, {"a": 5, apart[0]: 6}, {"a": 7}, {}]
    flat, _ = tree_util.tree_flatten_with_path(tree)
    rows = [*treeviz.walk(tree).leaves]
    assert [row.keystr for row in rows] == [tree_util.keystr(path) for path, _ in flat]
    assert [row.facts.text for row in rows] == [repr(leaf) for _, leaf in flat]


@pytest.mark.oldest_jax
def test_a_dict_that_grew_between_two_that_are_alike_has_all_its_keys():
    tree = [{"b": 1, "a": 2}, {"b": 3, "a": 4, "c": 5}, {"b": 6, "a": 7}]
    for budget in (3, 5, 7, 100):
        leaves = [row.keystr for row in treeviz.tree.walk.walk(tree, max_rows=budget).leaves]
        assert set(leaves) <= {tree_util.keystr(path) for path, _ in tree_util.tree_flatten_with_path(tree)[0]}
