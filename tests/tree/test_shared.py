"""The same object in two places: badged, and counted once in unique totals."""

from __future__ import annotations

import datetime
import enum
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sample_nodes import Layer, Special, Static
from sample_trees import dag, shared

import treeviz

pytestmark = pytest.mark.oldest_jax


def badges(tree) -> dict[str, str]:
    """Where a row says that it stands elsewhere too, and where it says it was first."""
    table = treeviz.walk(tree)
    return {
        row.keystr: note.text if note.row < 0 else table[note.row].keystr
        for row in table
        for note in row.notes
        if note.kind == "shared"
    }


def test_a_leaf_that_stands_in_two_places_says_where_it_was_met_first():
    w = jnp.ones(3)
    assert badges({"embed": w, "head": w, "other": jnp.ones(3)}) == {
        "['embed']": "occurs in 2 places",
        "['head']": "['embed']",
    }


def test_a_subtree_has_one_badge_and_what_is_in_it_none():
    block = Layer("n", np.ones(2), np.ones(3))
    assert badges([block, block, block]) == {"[0]": "occurs in 3 places", "[1]": "[0]", "[2]": "[0]"}


def test_a_leaf_of_a_shared_subtree_may_stand_elsewhere_too():
    assert badges(shared()) == {
        "['embed']": "occurs in 2 places",
        "['head']": "['embed']",
        "['blocks'][0]": "occurs in 2 places",
        "['blocks'][1]": "['blocks'][0]",
        "['blocks'][0]['k']": "occurs in 2 places",
        "['twice'][0]": "['blocks'][0]['k']",
    }


def test_what_python_shares_by_itself_has_no_badge():
    assert badges([None, None, 1, 1, "a", "a", (), (), True, True, 0.5, 0.5, (1, 2), (1, 2), len, len]) == {}


def type_name(value) -> str:
    return type(value).__name__


class Color(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    "constant",
    [
        jax.sharding.PartitionSpec(),
        jax.sharding.PartitionSpec("data"),
        jax.devices()[0],
        jax.sharding.SingleDeviceSharding(jax.devices()[0]),
        int,
        Layer,
        jnp.float32,
        Color.RED,
        np.dtype("float32"),
        ...,
        range(3),
        slice(2),
        frozenset([1]),
        datetime.date(2020, 1, 1),
        pathlib.PurePath("a"),
        np,
        Static("relu"),
    ],
    ids=type_name,
)
def test_an_object_that_cannot_change_has_no_badge(constant):
    assert badges([constant, constant, {"again": constant}]) == {}


@pytest.mark.parametrize("mutable", [Special(1, 2), {1}, object(), np.random.default_rng(0), [[]]], ids=type_name)
def test_an_object_that_can_change_has_a_badge(mutable):
    assert badges([mutable, mutable]) == {"[0]": "occurs in 2 places", "[1]": "[0]"}


def test_unique_totals_count_what_is_shared_once():
    headline = treeviz.walk(shared()).headline
    assert headline[:3] == ("7 leaves (3 unique)", "47 elements (22 unique)", "224 B (100 B unique)")


def test_totals_of_a_tree_without_shared_leaves_are_said_once():
    assert treeviz.walk([jnp.ones(2), jnp.ones(2)]).headline[0] == "2 leaves"


def test_a_repeated_subtree_is_counted_and_not_repeated():
    table = treeviz.walk(dag(40))
    repeats = [row for row in table if row.kind == "repeat"]
    assert repeats and all(row["leaves"] == row.facts.leaves > 0 for row in repeats)
    assert table.headline[0].endswith("(1 unique)")
