"""What keeps a tree map, or a stack of trees, from working."""

from __future__ import annotations

import random
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from own_thread import in_a_thread
from random_trees import changed, random_tree
from sample_nodes import Layer, Static
from sample_trees import SAMPLES

import treeviz as tv
from treeviz.analysis.compare.map_mismatch import map_mismatches

pytestmark = pytest.mark.oldest_jax


def maps(*trees: Any, is_leaf: Any) -> bool:
    try:
        treedef = jax.tree.structure(trees[0], is_leaf=is_leaf)
        for tree in trees[1:]:
            treedef.flatten_up_to(tree)
    except (ValueError, TypeError, KeyError):
        return False
    return True


@pytest.mark.parametrize("seed", range(10))
@in_a_thread
def test_there_is_a_mismatch_exactly_where_jax_refuses(seed):
    rng = random.Random(seed)
    outcomes = []
    for _ in range(600):
        tree = random_tree(rng, 4)
        others = [changed(rng, tree) for _ in range(rng.choice([1, 1, 2]))]
        is_leaf = rng.choice([None, None, lambda x: x is None, lambda x: isinstance(x, tuple)])
        found = map_mismatches(tree, *others, is_leaf=is_leaf)
        outcomes.append(maps(tree, *others, is_leaf=is_leaf))
        assert (not found) == outcomes[-1], f"{tree}\n{others}\n{found}"
    assert 100 < sum(outcomes) < 500


# What stands in the way of stacking trees: as in `jax.tree.map(lambda *x: jnp.stack(x), *trees)`.


NUMBERS = [1, 2.0, True]
ARRAYS = [np.ones(2), np.ones(2, np.int8), np.ones((2, 1))]
LEAVES = [*NUMBERS, *ARRAYS, "text", None, Static("s"), Static("t"), (), {}]


def lines(trees: list[Any]) -> list[str]:
    return str(tv.stackable(trees)).split("\n")


def test_what_differs_from_the_first_layer_is_told_by_tree():
    layer = {"w": np.ones((4, 4), np.float32), "b": np.ones(4, np.float32)}
    half = {**layer, "b": np.ones(4, ml_dtypes.bfloat16)}
    assert lines([layer, half, {**layer, "w": np.ones((4, 8), np.float32)}]) == [
        "tree 1: ['b']: dtype: float32 → bfloat16 (stacked, both are float32)",
        "tree 2: ['w']: shape: (4, 4) → (4, 8)",
    ]
    assert tv.stackable([layer] * 3) == [] == tv.stackable([jax.eval_shape(lambda: layer)] * 2)


def test_structure_and_static_fields_stand_in_the_way():
    assert lines([[Layer("a", 1, 2), (1, 2)], [Layer("b", 1, 2), (1, 2, 3)]]) == [
        "[0]: static: name = 'a' → 'b'",
        "[1]: length: 2 children → 3 children",
    ]
    assert lines([{"a": 1.0, "b": None}, {"a": [1.0], "b": 2.0}]) == [
        "['a']: leaf: a leaf: float 1.0 → a node: list of 1",
        "['b']: none: None → float 2.0",
    ]


def test_leaves_that_are_no_arrays_stand_in_the_way_even_alone():
    gone = jnp.ones(2)
    gone.delete()
    assert lines([{"act": "relu", "w": gone}]) == [
        "['act']: python type: str 'relu' (neither an array nor a number)",
        "['w']: deleted: float32[2] (donated?)",
    ]
    assert lines([[1.0], ["a"]]) == ["[0]: python type: float 1.0 → str 'a' (neither an array nor a number)"]


def test_arrays_that_jax_does_not_take_are_called_arrays():
    assert lines([np.ones(2, ">f4"), np.ma.masked_array([1.0])])[0].endswith(">f4[2] (JAX does not accept it)")
    with pytest.raises(TypeError):
        jnp.stack([np.ones(2, ">f4")])


def test_dtypes_that_jax_does_not_promote_are_refused():
    (found,) = tv.stackable([np.ones(2, ml_dtypes.float8_e4m3fn), np.ones(2, np.float32)])
    assert found.hint == "jnp.stack refuses them"
    (found,) = tv.stackable([jax.random.key(0), np.uint32(0)])
    assert found.hint == "jnp.stack refuses them"


@pytest.mark.parametrize("trees", [{"a": 1}, [], 1.0, "ab"])
def test_one_tree_in_place_of_a_list_is_an_error(trees):
    with pytest.raises(TypeError, match="a list of trees"):
        tv.stackable(trees)


def outcome_of_stacking(trees: list[Any]) -> str:
    """What `jax.tree.map(lambda *x: jnp.stack(x), *trees)` does, without a program for each combination of shapes."""
    try:
        treedef = jax.tree.structure(trees[0])
        columns = list(zip(*(treedef.flatten_up_to(tree) for tree in trees), strict=True))
    except (ValueError, TypeError, KeyError):
        return "fails"
    outcome = "stacks"
    for leaves in columns:
        if (
            not all(isinstance(leaf, np.ndarray | int | float) for leaf in leaves)
            or len(set(map(np.shape, leaves))) > 1
        ):
            return "fails"
        if len({jax.dtypes.canonicalize_dtype(np.result_type(leaf)) for leaf in leaves}) > 1:
            outcome = "converts"
    return outcome


@pytest.mark.parametrize("seed", range(4))
@in_a_thread
def test_there_is_an_entry_exactly_where_stacking_fails_or_converts(seed):
    rng = random.Random(seed)
    outcomes = []
    for _ in range(400):
        leaves = rng.choice([NUMBERS, LEAVES])
        tree = random_tree(rng, 3, leaves)
        trees = [tree, *(changed(rng, tree, leaves) for _ in range(rng.choice([0, 1, 1, 2])))]
        found = tv.stackable(trees)
        outcomes.append(outcome_of_stacking(trees))
        kinds = {each.kind for each in found}
        told = "stacks" if not kinds else "converts" if kinds == {"dtype"} else "fails"
        assert told == outcomes[-1], f"{trees}\n{found}"
    assert all(outcomes.count(each) > 3 for each in ("stacks", "converts", "fails")), outcomes


@pytest.mark.parametrize("name", ["every kind of leaf", "NumPy arrays", "narrow dtypes", "PRNG keys", "Python scalars"])
def test_leaves_of_every_kind_are_judged_as_jax_does(name):
    for leaf in jax.tree.leaves(SAMPLES[name]()):
        is_deleted = isinstance(leaf, jax.Array) and leaf.is_deleted()
        if is_deleted or (isinstance(leaf, np.generic) and leaf.dtype.kind in "MSUV") or type(leaf) is int:
            continue  # eval_shape takes the first two, which jnp.stack refuses; an int may be too large
        try:
            stacks = bool(jax.eval_shape(lambda x: jnp.stack([x, x]), leaf).shape)
        except (TypeError, ValueError):
            stacks = False
        assert (not tv.stackable([leaf, leaf])) == stacks, repr(leaf)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_tree_is_looked_at(name):
    tree = SAMPLES[name]()
    tv.stackable([tree, tree])


def test_of_several_trees_that_cannot_be_stacked_the_one_that_differs_is_named():
    layers = [{"w": np.ones((4, 4))}, {"w": np.ones((4, 4))}, {"w": np.ones((4, 8))}]
    assert str(tv.stackable(layers)) == "tree 2: ['w']: shape: (4, 4) → (4, 8)"
