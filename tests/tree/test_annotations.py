# ruff: noqa: F722, F821, UP037
"""The axes, sizes and dtypes that jaxtyping's annotations name, as asked for in jaxtyping#242, #290, #334 and #377."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import treeviz as tv

pytest.importorskip("jaxtyping")
from jaxtyping import Array, Float, Int, Shaped


@jax.tree_util.register_dataclass
@dataclass
class Batch:
    x: Float[Array, "batch seq"]  # as text, since annotations of this file are not evaluated
    ids: Int[Array, "batch seq"] | None = None
    mask: Shaped[Array, "*more #seq 3"] | None = None
    other: Unknown[Array, "batch"] = None
    n: int = field(default=3, metadata={"static": True})


class State(NamedTuple):
    h: Float[Array, "batch hidden=8"]
    c: Float[Array, "..."]


def found(tree: Any, use: Any = "any") -> list[str]:
    return [f"{finding.path}: {finding.sentence}" for finding in tv.check(tree, for_=use) if finding.code == "T118"]


def test_the_names_of_axes_are_shown_searched_and_in_the_json():
    tree = {"batch": Batch(np.ones((2, 3), np.float32), mask=np.ones((7, 5, 4, 3), bool)), "plain": np.ones(2)}
    view = tv.render(tree)
    assert "float32[batch 2, seq 3]" in view.text() and "bool[7, 5, seq 4, 3]" in view.text()
    assert [row.keystr for row in view.table.find("axis:seq")] == ["['batch'].x", "['batch'].mask"]
    assert [row["axes"] for row in json.loads(view.json())["rows"] if "axes" in row] == [
        ["batch", "seq"],
        ["", "", "seq", ""],
    ]
    abstract = jax.eval_shape(lambda: State(jnp.ones((2, 8)), jnp.ones(3)))
    assert tv.render(abstract).table[1].facts.axes == ("batch", "")


@pytest.mark.parametrize(
    ("tree", "sentences"),
    [
        (Batch(np.ones((2, 3), np.float32), np.ones((2, 3), int)), []),
        (
            [Batch(np.ones((2, 3), np.float32)), Batch(np.ones((4, 5), np.float32))],
            [],  # a name stands for one size in one object
        ),
        (
            Batch(np.ones((2, 3), np.float32), np.ones((2, 4), int)),
            [".ids: axis seq has size 4, and 3 in .x"],
        ),
        (
            Batch(np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)),
            [".ids: float32[2,3] in a field of Int['batch seq']: its dtype is float32"],
        ),
        (
            Batch(np.ones(2, np.float32), np.ones((2, 3), int)),
            [".x: float32[2] in a field of Float['batch seq']: 1 axis"],
        ),
        (Batch(np.ones((2, 3), np.float32), mask=np.ones((1, 3))), []),
        (
            Batch(np.ones((2, 3), np.float32), mask=np.ones((3, 4))),
            [".mask: float64[3,4] in a field of Shaped['*more #seq 3']: an axis of size 3 has 4"],
        ),
        (
            State(np.ones((2, 7), np.float32), np.ones(0, np.float32)),
            [".h: float32[2,7] in a field of Float['batch hidden=8']: an axis of size 8 has 7"],
        ),
        (Batch(np.ones((9, 2, 3), np.float32), np.ones((9, 2, 3), int)), []),  # as vmap makes it
        (Batch(True), []),  # a mask of the same class
    ],
)
def test_what_does_not_fit_an_annotation_is_found(tree, sentences):
    assert found(tree) == sentences
    assert {each.level for each in tv.check(tree, for_="jit") if each.code == "T118"} <= {"warning"}


def test_a_stack_has_names_for_the_axes_of_one_of_its_objects():
    stack = Batch(np.ones((9, 2, 3), np.float32), np.ones((9, 2, 3), int))
    assert tv.render(stack).table[1].facts.axes == ("", "batch", "seq")


def test_a_difference_and_a_mismatch_name_the_axis():
    batch, other = (Batch(np.ones((2, n), np.float32), np.ones((2, 3), int)) for n in (3, 4))
    (difference,) = tv.diff(batch, other).differences
    assert str(difference) == ".x: shape: (batch 2, seq 3) → (batch 2, seq 4)"
    specs = Batch(*[jax.sharding.PartitionSpec(None, "x")] * 2)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",))
    found = tv.overlay(specs, batch, use="shardings", mesh=mesh).differences
    assert str(found[0]) == ".x: size: axis 1 (seq) has 3 (not divisible by 2 of 'x')"
    args = ({"x": Batch(np.ones((2, 3), np.float32)), "y": [np.ones(4)] * 2},)
    (found,) = tv.overlay(({"x": 1, "y": 0},), args, use="in_axes").differences
    assert str(found).startswith("[0]['x'].x: size: axis 1 (seq) has 3 (2 leaves have 4")
