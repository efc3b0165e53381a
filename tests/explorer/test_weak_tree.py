"""A tree that nobody holds for the explorer's sake: its nodes and key paths are those of `jax.tree_util`, or gone."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import tree_util
from sample_nodes import Keyed, Layer, OddKey, Registered, WithAux
from sample_trees import SAMPLES

from treeviz.explorer import WeakTree
from treeviz.tree.paths import dict_key, follow, keys_to, parse_key
from treeviz.tree.walk import scan

pytestmark = pytest.mark.oldest_jax

Point = namedtuple("Point", "x y")

# Those that JAX flattens, and within its budget of recursion.
FLAT = [
    name
    for name in SAMPLES
    if not any(word in name for word in ("itself", "2**40", "levels", "raise", "exits", "unsortable", "hash", "opaque"))
]


def said(path: tuple) -> list[tuple[type, Any]]:
    """Keys of somebody's own class are never equal, and JAX writes their `str`."""
    return [(type(key), str(key) if type(key) is OddKey else key) for key in path]


def weakly(tree: Any, **options: Any) -> WeakTree:
    table, nodes = scan(tree)
    return WeakTree(table, nodes, **options)


def rows_of_leaves(tree: Any) -> list[int]:
    return np.flatnonzero(scan(tree)[0].is_leaf).tolist()


def all_nodes(tree: Any) -> list[tuple[tuple, Any]]:
    """Every node and leaf, depth first, with its key path: by JAX alone."""
    found, waiting = [], [((), tree)]
    while waiting:
        path, node = waiting.pop()
        found.append((path, node))
        called: list[int] = []
        pairs, treedef = tree_util.tree_flatten_with_path(
            node, is_leaf=lambda _, called=called: called.append(0) or len(called) > 1
        )
        if treedef.node_data() is not None:
            waiting += reversed([((*path, *keys), child) for keys, child in pairs])
    return found


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("name", FLAT)
def test_leaves_and_their_paths_are_those_that_jax_gives(name, keep):
    tree = SAMPLES[name]()
    rows = rows_of_leaves(tree)
    expected = tree_util.tree_flatten_with_path(tree)[0]
    if len(rows) != len(expected):
        pytest.skip("not all of it is shown as JAX sees it")
    weak = weakly(tree, keep=keep)
    assert [said(weak.path(row)) for row in rows[:200]] == [said(path) for path, _ in expected[:200]]
    assert list(map(id, weak.nodes(rows[:200]))) == [id(leaf) for _, leaf in expected[:200]]


def sample() -> dict:
    return {
        "list": [jnp.ones(1), (jnp.ones(2), None)],
        "point": Point({"b": jnp.ones(3), "a": np.ones(1)}, []),
        "ordered": OrderedDict(z=jnp.ones(1), a={"x": 1}),
        "default": defaultdict(list, w=jnp.ones(1)),
        "keyed": Keyed({"in": jnp.ones(1)}, [jnp.ones(2)], (1,)),
        "aux": WithAux([jnp.ones(1)], {"a": 1}),
        "registered": Registered([1.5], {"a": "text"}),
    }


def test_every_node_and_its_path_is_that_which_jax_gives():
    tree = sample()
    expected = all_nodes(tree)
    weak = weakly(tree)
    rows = list(range(len(expected)))
    assert len(scan(tree)[0]) == len(expected)
    assert [said(weak.path(row)) for row in rows] == [said(path) for path, _ in expected]
    for node, (path, truth) in zip(weak.nodes(rows), expected, strict=True):
        assert node is truth, path


def test_a_path_followed_leads_to_the_node_that_jax_has_there():
    tree = sample()
    for path, node in all_nodes(tree):
        assert follow(tree, path) is node


def test_the_same_path_is_followed_in_another_tree():
    tree = sample()
    other = jax.tree.map(lambda leaf: [leaf], tree)
    for path, leaf in tree_util.tree_flatten_with_path(tree)[0]:
        found = follow(other, path)
        assert type(found) is list and found[0] is leaf


@pytest.mark.parametrize(
    ("tree", "path", "said"),
    [
        ({"a": 1}, "b", r"at the root a dict has no \['b'\]: KeyError"),
        ({"a": [1]}, "a1", r"at \['a'\] a list has no \[1\]: IndexError"),
        ({"a": 5}, "a1", r"at \['a'\] a int has no \[1\]: TypeError"),
        (Registered(1, 2), "9", "at the root a Registered has no"),
    ],
)
def test_what_a_path_does_not_lead_to_is_said_with_the_place(tree, path, said):
    keys = {
        "b": (tree_util.DictKey("b"),),
        "a1": (tree_util.DictKey("a"), tree_util.SequenceKey(1)),
        "9": (tree_util.FlattenedIndexKey(9),),
    }
    with pytest.raises(LookupError, match=said):
        follow(tree, keys[path])


def test_an_attribute_that_raises_is_no_place():
    class Bad:
        @property
        def w(self):
            raise RuntimeError("no")

    with pytest.raises(LookupError, match=r"a Bad has no \.w: RuntimeError"):
        follow(Bad(), [tree_util.GetAttrKey("w")])


def test_the_keys_to_a_child_are_those_that_jax_gives_it():
    for node in sample().values():
        called: list[int] = []
        pairs, _ = tree_util.tree_flatten_with_path(
            node, is_leaf=lambda _, called=called: called.append(0) or len(called) > 1
        )
        for position, (path, child) in enumerate(pairs):
            keys = keys_to(node, position, lambda below, child=child: below is child)
            assert said(keys) == said(path)


def test_children_that_are_one_object_keep_their_own_keys():
    leaf = jnp.ones(1)
    for node in Layer("", leaf, leaf), Point(leaf, leaf), Registered(leaf, leaf), WithAux(leaf, leaf, leaf):
        weak = weakly(node)
        expected = [path for path, _ in tree_util.tree_flatten_with_path(node)[0]]
        assert [weak.path(row) for row in rows_of_leaves(node)] == expected


def test_the_keys_through_a_box_that_holds_one_thing_are_those_of_both():
    leaf = jnp.ones(1)
    node = {"w": Registered(leaf, ())}  # a box with two children is no box
    boxed = {"w": WithAux(leaf)}
    path = tree_util.tree_flatten_with_path(boxed)[0][0][0]
    assert keys_to(boxed, 0, lambda below: below is leaf) == path
    assert keys_to(node, 0, lambda below: below is leaf) == (tree_util.DictKey("w"),)


@pytest.mark.parametrize("key", ["a", 7, -1, True, (1, "a"), b"b", 1.5, None, "it's", '"', "\n"])
def test_the_key_that_a_text_speaks_of_is_read_as_python_reads_it(key):
    (path, _), *_ = tree_util.tree_flatten_with_path({key: 1})[0]
    read = parse_key(tree_util.keystr(path), otherwise=None, int_key=dict_key)
    assert read == path[0] and type(read.key) is type(key)


@pytest.mark.parametrize(
    "tree", [{"a": 1}, {None: 1}, {"it's": 1}, {(1, "a"): 1}, [1], tree_util.GetAttrKey("w")], ids=repr
)
def test_a_key_is_read_from_what_jax_writes_for_it(tree):
    key = tree if isinstance(tree, tree_util.GetAttrKey) else tree_util.tree_flatten_with_path(tree)[0][0][0][0]
    assert parse_key(tree_util.keystr((key,)), otherwise=None) == key


def test_a_text_that_jax_writes_for_no_key_is_what_the_caller_says():
    for text in "", "[", "[a]", "[1, 2]", "<flat index 3>", "[<flat index x>]", "{}", "[" * 100:
        assert parse_key(text, otherwise=text) == text
    assert parse_key(".w", otherwise=None) == tree_util.GetAttrKey("w")
    assert parse_key("[<flat index 3>]", otherwise=None) == tree_util.FlattenedIndexKey(3)


def test_nothing_stays_alive_and_paths_are_known_to_the_end():
    tree = sample()
    expected = [path for path, _ in all_nodes(tree)]
    arrays = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array | np.ndarray)]
    refs = [weakref.ref(array) for array in arrays]
    weak = weakly(tree)
    del tree, arrays
    gc.collect()
    assert [ref() for ref in refs] == [None] * len(refs)
    for row, path in enumerate(expected):
        if not any(type(key) is tree_util.FlattenedIndexKey for key in path) and path[:1] != (
            tree_util.DictKey("keyed"),
        ):
            assert weak.path(row) == path
    with pytest.raises(ReferenceError, match=r"explore: the array at tree.* was freed"):
        weak.nodes([2])
    with pytest.raises(ReferenceError):
        weak.nodes([0])


def test_numbers_texts_and_none_are_remembered_as_they_are():
    weak = weakly([1, 2.5, "text", b"b", None, True, 1j])
    assert weak.nodes(range(1, 8)) == [1, 2.5, "text", b"b", None, True, 1j]
    assert [weak.is_plain(row) for row in range(8)] == [False] + [True] * 7


def test_a_node_that_has_gone_from_its_place_is_not_another_one_there():
    arrays = [jnp.ones(i + 1) for i in range(3)]
    tree = [{"w": arrays[0]}, {"w": arrays[1]}]
    weak = weakly(tree)
    tree[0] = {"w": arrays[2]}
    gc.collect()
    (node,) = weak.nodes([1])
    assert node["w"] is arrays[0], "the array lives, so the dict that held it can be made again"
    assert node is not tree[0]


def test_a_node_of_a_class_that_cannot_be_made_again_is_freed():
    array = jnp.ones(1)

    class Slots:
        __slots__ = ("w",)

    tree_util.register_pytree_node(Slots, lambda slots: ((slots.w,), None), lambda _, kids: None)
    node = Slots()
    node.w = array
    weak = weakly([node])
    assert weak.nodes([1]) == [node]
    del node
    gc.collect()
    with pytest.raises(ReferenceError, match="was freed"):
        weak.nodes([1])


def test_flatten_functions_that_raise_later_are_no_trouble():
    class Moody:
        """Flattens once."""

        def __init__(self, w):
            self.w, self.n = [w], 0

    def flatten(moody):
        moody.n += 1
        if moody.n > 3:
            raise RuntimeError("enough")
        return (moody.w,), None

    tree_util.register_pytree_node(Moody, flatten, lambda _, kids: None)
    array = jnp.ones(1)
    tree = Moody(array)
    weak = weakly(tree)
    tree.n = 10
    assert weak.nodes([0, 2])[0] is tree
    assert weak.nodes([2]) == [array] and weak.nodes([1])[0][0] is array
    assert len(weak.path(2)) == 2


def test_weak_references_that_a_class_forbids_are_no_trouble():
    class Forbids:
        __slots__ = ()

        def __reduce__(self):
            raise RuntimeError

    node = Forbids()
    weak = weakly([node, jnp.ones(1)])
    assert weak.nodes([1]) == [node]
