"""What users of optax see."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
from agreement import outline, row_at, text_of, walk_and_compare

optax = pytest.importorskip("optax", reason="needs optax")

PARAMS = {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}


def test_the_state_of_adamw_names_its_fields_and_keeps_empty_states():
    table = walk_and_compare(optax.adamw(1e-3).init(PARAMS))
    assert outline(table) == [
        "t tuple tuple",
        "  [0] namedtuple ScaleByAdamState",
        "    .count array jax.Array",
        "    .mu dict dict",
        "      b array jax.Array",
        "      w array jax.Array",
        "    .nu dict dict",
        "      b array jax.Array",
        "      w array jax.Array",
        "  [1] namedtuple EmptyState",
        "  [2] namedtuple EmptyState",
    ]
    assert row_at(table, "[0].nu['w']").expression == "t[0].nu['w']"
    assert row_at(table, "[1]").facts.leaves == 0


def test_what_a_mask_took_out_is_shown_as_masked_out():
    state = optax.masked(optax.sgd(0.1, momentum=0.9), {"w": True, "b": False}).init(PARAMS)
    table = walk_and_compare(state)
    masked = row_at(table, ".inner_state[0].trace['b']")
    assert (masked.kind, masked.type, masked.facts.text, masked.facts.static) == (
        "namedtuple",
        "MaskedNode",
        "masked out",
        (),
    )
    assert masked.facts.leaves == 0
    assert "MaskedNode" in text_of(state) and "masked out" in text_of(state)


TRANSFORMATIONS = {
    "partition": lambda: optax.partition({"a": optax.adam(1e-3), "z": optax.set_to_zero()}, {"w": "a", "b": "z"}),
    "MultiSteps": lambda: optax.MultiSteps(optax.adam(1e-3), 4),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adam)(optax.linear_schedule(1.0, 0.0, 10)),
    "chain": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.lion(1e-3)),
    "apply_if_finite": lambda: optax.apply_if_finite(optax.sgd(0.1), 3),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_nested_states_are_walked_by_field_names_without_static_noise(name):
    table = walk_and_compare(TRANSFORMATIONS[name]().init(PARAMS))
    nodes = [row for row in table if row.kind == "namedtuple"]
    assert nodes and all(row.facts.static == () for row in nodes)


def test_the_fields_of_a_transformation_are_functions():
    table = walk_and_compare(optax.adam(1e-3))
    assert [(row.label, row.kind) for row in table] == [
        ("t", "namedtuple"),
        (".init", "function"),
        (".update", "function"),
    ]
