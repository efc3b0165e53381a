"""Norms of subtrees: compared with optax where that is right, and right where it is not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from treeviz.steps.measure import measure, numbers_of
from treeviz.steps.series import gradient_columns
from treeviz.tree.walk import walk


def table_of(tree, **others):
    numbers = numbers_of(measure(grads=tree, **others))
    table = walk(tree)
    return table.with_columns(*gradient_columns(table, numbers))


def grads():
    rng = np.random.default_rng(0)
    layers = [{"w": jnp.asarray(rng.standard_normal((30, 40)), jnp.float32), "b": jnp.ones(40)} for _ in range(3)]
    return {"layers": layers, "head": jnp.full(7, 0.5)}


def test_the_root_is_the_global_norm():
    optax = pytest.importorskip("optax")
    table = table_of(grads())
    assert table[0]["grads_norm"] == pytest.approx(float(optax.tree.norm(grads())), rel=1e-6)


def test_every_subtree_has_the_root_of_the_sum_of_squares():
    tree = grads()
    table = table_of(tree)
    (row,) = table.find("layers/1")[:1]
    flat = np.concatenate([np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(tree["layers"][1])])
    assert row["grads_norm"] == pytest.approx(np.linalg.norm(flat), rel=1e-6)


@pytest.mark.optimized
def test_the_root_is_right_where_float16_sums_are_infinite():
    tree = {"a": jnp.full((1000, 300), 17, jnp.float16), "b": jnp.full(5, 1e20), "c": jnp.arange(3)}
    assert table_of({"a": tree["a"]})[0]["grads_norm"] == pytest.approx(17 * np.sqrt(300_000), rel=1e-6)
    assert table_of(tree)[0]["grads_norm"] == pytest.approx(1e20 * np.sqrt(5), rel=1e-6)


def test_counts_add_up_and_ratios_are_those_of_the_subtrees():
    tree = {"a": jnp.array([1.0, np.nan, np.inf]), "b": {"c": jnp.array([np.nan]), "i": jnp.arange(3)}}
    table = table_of(tree, params=jax.tree.map(lambda x: jnp.full_like(x, 2), tree))
    assert table[0]["grads_nonfinite"] == 3
    assert np.isnan(table[0]["grads_ratio"])
    finite = {"a": jnp.array([1.0, 2.0, 2.0]), "b": {"c": jnp.array([0.0]), "i": jnp.arange(3)}}
    table = table_of(finite, params=jax.tree.map(lambda x: jnp.full_like(x, 2), finite))
    assert table[0]["grads_nonfinite"] == 0
    assert table[0]["grads_ratio"] == pytest.approx(3 / 4)


def test_what_is_not_finite_has_no_norm_and_neither_has_what_it_is_in():
    tree = {"a": {"x": jnp.array([3.0, np.nan]), "y": jnp.array([4.0])}, "b": jnp.array([5.0])}
    table = table_of(tree)
    norms = table.rolled(table.columns["grads_norm"])
    greatest = table.rolled(table.columns["grads_max_abs"])
    by_path = {row.keystr: (norms[row.number], greatest[row.number]) for row in table}
    known = {path: pair for path, pair in by_path.items() if not np.isnan(pair).any()}
    assert known == {"['a']['y']": (4, 4), "['b']": (5, 5)}
    assert all(np.isnan(by_path[path]).all() for path in ("", "['a']", "['a']['x']"))
    assert [row.keystr for row in table if table.columns["grads_norm"].bad[row.number]] == ["", "['a']", "['a']['x']"]


def test_parameters_that_are_zero_have_no_ratio():
    tree = {"a": jnp.ones(3), "b": jnp.ones(2)}
    table = table_of(tree, params={"a": jnp.zeros(3), "b": jnp.full(2, 4.0)})
    ratio = table.rolled(table.columns["grads_ratio"])
    np.testing.assert_allclose(ratio, [np.sqrt(5 / 32), np.nan, 1 / 4], rtol=1e-6)


def test_a_tree_with_other_leaves_is_refused():
    table = walk([1.0, 2.0])
    with pytest.raises(ValueError, match=r"grads has .* leaves, but tree has 2"):
        gradient_columns(table, numbers_of(measure(grads=[1.0])))
