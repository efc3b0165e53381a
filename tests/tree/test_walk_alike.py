"""Siblings that are alike are walked at once, and give the rows that they give one by one."""

from __future__ import annotations

import functools
import random
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_trees import LEAVES, random_tree
from sample_nodes import Layer, Point
from sample_trees import SAMPLES

from treeviz.tree.describers import Budget
from treeviz.tree.walk import SimilarSiblings, scan

pytestmark = pytest.mark.oldest_jax
OVER_DEVICES = jax.sharding.NamedSharding(
    jax.sharding.Mesh(np.array(jax.devices()[:2]), "x"), jax.sharding.PartitionSpec("x")
)
BOUNDED = Budget(4_000)  # more rows than these trees have, but for those that contain themselves
FIELDS = ("depth", "parent", "end", "position", "key_codes", "fact_codes", "keys", "facts", "notes")


@pytest.fixture
def n_taken(monkeypatch):
    """The numbers of rows that were added at once."""
    numbers, take = [], SimilarSiblings.add_similar

    def taken(alike, above, row, room):
        before = len(alike._rows.nodes)
        n_expected = take(alike, above, row, room)
        numbers.append(len(alike._rows.nodes) - before)
        return n_expected

    monkeypatch.setattr(SimilarSiblings, "add_similar", taken)
    return numbers


def assert_same_rows(tree, budget: Budget = Budget()) -> None:  # noqa: B008
    another, others = scan(tree, budget=budget)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimilarSiblings, "add_similar", lambda *_: 0)
        one, nodes = scan(tree, budget=budget)
    assert len(nodes) == len(others)
    assert all(a is b or str(a) == str(b) for a, b in zip(nodes, others, strict=True))  # a wrapper is made anew
    for name in FIELDS:
        a, b = getattr(one, name), getattr(another, name)
        assert a.dtype == b.dtype and a.tolist() == b.tolist() if isinstance(a, np.ndarray) else a == b, name


@functools.partial(jax.tree_util.register_dataclass, data_fields=["w", "b"], meta_fields=["name"])
@dataclass
class Norm:
    w: Any
    b: Any
    name: Any


def layer(i: int = 0):
    norm = Norm(np.ones(3), {"on": 0.0}, "rms")
    attn = {"q": np.ones((4, 4)), "k": jnp.ones(4)}
    return {"attn": attn, "mlp": (float(i), 2), "none": None, "empty": (), "norm": norm}


def test_layers_are_walked_at_once(n_taken):
    layers = [layer(i) for i in range(100)]
    assert_same_rows(layers)
    assert max(n_taken) == 99 * len(scan(layer())[0])
    assert_same_rows({f"layer_{i}": each for i, each in enumerate(layers)})
    assert sum(n_taken) == 2 * max(n_taken)


@pytest.mark.parametrize("at", [1, 2, 18, 22, 23])
@pytest.mark.parametrize(
    "change",
    [
        lambda each: each.pop("none"),
        lambda each: each.update(z=1),
        lambda each: each.update(none=0),
        lambda each: each.update(empty=(1,)),
        lambda each: each.update(empty=[]),
        lambda each: each.update(mlp=[1.0, 2]),
        lambda each: each.update(mlp=Point(1.0, 2)),
        lambda each: each.update(mlp=(True, 2)),
        lambda each: each.update(mlp=(-0.0, 10**400)),
        lambda each: each.update(attn=OrderedDict(each["attn"])),
        lambda each: each.update(attn=defaultdict(list, each["attn"])),
        lambda each: each.update(attn={"Q": each["attn"]["q"], "k": each["attn"]["k"]}),
        lambda each: each["attn"].update(q=np.ones((4, 5), np.float16)),
        lambda each: each["attn"].update(k=jnp.ones((2, 3), jnp.int32)),
        lambda each: each["attn"]["k"].delete(),
        lambda each: each["attn"].update(k=jax.lax.broadcast(jnp.asarray(1.0), (4,))),
        lambda each: each["attn"].update(k=jax.device_put(each["attn"]["k"], jax.devices()[0])),
        lambda each: each["attn"].update(k=jax.device_put(each["attn"]["k"], jax.devices()[1])),
        lambda each: each["attn"].update(k=jax.device_put(each["attn"]["k"], OVER_DEVICES)),
        lambda each: vars(each["norm"]).update(name="another"),
        lambda each: vars(each["norm"]).update(name=np.ones(2)),
        lambda each: vars(each["norm"]).update(b=1),
        lambda each: vars(each["norm"]).update(w=each["norm"].b),
        lambda each: vars(each["norm"]).pop("b"),
        lambda each: vars(each["norm"]).update(name={"a": 1}),
        lambda each: each.update({1: each.pop("none")}),
        lambda each: each.update(none=each),
        lambda each: each.update(empty=each["attn"]),
    ],
)
def test_a_sibling_that_is_not_alike_is_walked_as_ever(at, change):
    layers = [layer(i) for i in range(24)]
    change(layers[at])
    assert_same_rows(layers, BOUNDED)
    assert_same_rows([[*layers], {str(i): each for i, each in enumerate(layers)}], BOUNDED)  # all occur twice


def test_committed_arrays_on_another_device_are_told_apart():
    placed = [jax.device_put(jnp.ones(4), jax.devices()[i == 20]) for i in range(100)]
    assert_same_rows([{"a": each} for each in placed])


def test_keys_that_are_equal_and_not_the_same_are_told_apart():
    class Text(str):
        def __str__(self):
            return "another"

    assert_same_rows([{"a": 1}] + [{Text("a"): 2} for _ in range(50)])
    assert_same_rows([{1: 1.0}, *({True: 1.0} for _ in range(50))])


@pytest.mark.parametrize("values", [[0.0, -0.0], [1, 2], [1.5, float("nan")], [1j, 1 - 0j], ["a", "b"], [True, False]])
def test_numbers_and_strings_that_are_not_the_same_have_facts_of_their_own(values):
    assert_same_rows([{"x": values[i % 2], "y": values[i % 3 == 0]} for i in range(60)])


def test_facts_that_are_new_come_in_the_order_of_the_rows():
    assert_same_rows([{"a": np.ones(i % 7), "b": np.ones((2, i % 5))} for i in range(80)])


@pytest.mark.parametrize("max_rows", [30, 300, 620, 700, 1_300])
def test_a_budget_holds(max_rows):
    assert_same_rows([layer(i) for i in range(100)], Budget(max_rows))
    assert_same_rows([[layer(i) for i in range(30)] for _ in range(4)], Budget(max_rows))


@pytest.mark.parametrize("name", [name for name in SAMPLES if "level" not in name and "deep" not in name])
def test_strange_trees_that_stand_side_by_side(name):
    make = SAMPLES[name]
    if len(scan(make(), budget=Budget(2_000))[0]) < 200:
        assert_same_rows([make() for _ in range(10)], BOUNDED)
        assert_same_rows([make()] * 10, BOUNDED)
        assert_same_rows([{"a": np.ones(3), "b": (i, 1.0)} for i in range(10)] + [make() for _ in range(9)], BOUNDED)


def test_random_siblings(request):
    rng = random.Random(0)
    leaves = [*LEAVES, np.zeros(3, np.float16), jnp.ones(2), np.float32(2), jax.ShapeDtypeStruct((2,), np.float32)]
    for _ in range(40 // request.config.option.one_case_in):
        kinds = [rng.getrandbits(30) for _ in range(rng.randrange(1, 4))]
        seeds = sorted(rng.choices(kinds, k=60)) if rng.random() < 0.7 else rng.choices(kinds, k=30)
        make = lambda seed: random_tree(random.Random(seed), 3, leaves)
        siblings = [make(seed) for seed in seeds]
        tree = siblings if rng.random() < 0.5 else {f"k{i}": each for i, each in enumerate(siblings)}
        assert_same_rows(rng.choice([tree, [tree, 1], Layer("x", tree, tree)]))
