"""Gradients measured within an optax chain."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from treeviz.integrations.optax import inspect_gradients
from treeviz.steps.measure import find_measurements, numbers_of
from treeviz.steps.statistics import FULL

optax = pytest.importorskip("optax")


def params():
    return {"w": jnp.linspace(-1, 1, 12).reshape(3, 4), "b": jnp.ones(4)}


def loss(params, x):
    return jnp.sum((x @ params["w"] + params["b"][None]) ** 2)


def chain(*, statistics=FULL):
    return optax.chain(
        inspect_gradients("grads", statistics=statistics),
        optax.clip_by_global_norm(0.5),
        inspect_gradients("clipped", statistics=statistics),
        optax.adam(1e-2),
    )


def train(optimizer, n_steps=3, **how):
    @jax.jit
    def update(params, state, x):
        grads = jax.grad(loss)(params, x)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, grads

    p, state = params(), optimizer.init(params())
    grads = None
    for step in range(n_steps):
        p, state, grads = update(p, state, jnp.full((2, 3), step + 1.0))
    return p, state, grads


def test_gradients_are_measured_before_and_after_clipping():
    _, state, grads = train(chain())
    before, after = find_measurements(state)
    norms = numbers_of(before)["grads"]["norm"]
    truth = [np.linalg.norm(np.asarray(grads[k], np.float64)) for k in ("b", "w")]
    np.testing.assert_allclose(norms, truth, rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(numbers_of(after)["clipped"]["norm"]), 0.5, rtol=1e-6)
    assert before.sources[0].paths == ("['b']", "['w']")


def test_the_parameters_are_those_of_the_chain_without_it():
    with_it = train(chain())[0]
    without = train(optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-2)))[0]
    assert jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(a, b), with_it, without))


def test_the_state_keeps_its_structure_and_its_types_from_the_first_step_on():
    optimizer = chain()
    state = optimizer.init(params())
    _, after = jax.jit(optimizer.update)(params(), state, params())
    assert jax.tree.structure(state) == jax.tree.structure(after)
    kind = lambda tree: [(x.shape, x.dtype) for x in jax.tree.leaves(tree)]
    assert kind(state) == kind(after)
    assert np.all(numbers_of(find_measurements(state)[0])["grads"]["norm"] == 0)


def test_it_works_in_a_scan_and_under_vmap_and_with_eval_shape():
    optimizer = chain()

    def step(carry, x):
        p, state = carry
        updates, state = optimizer.update(jax.grad(loss)(p, x), state, p)
        return (optax.apply_updates(p, updates), state), find_measurements(state)[0]

    xs = jnp.ones((5, 2, 3))
    (_, state), stacked = jax.jit(lambda: jax.lax.scan(step, (params(), optimizer.init(params())), xs))()
    assert numbers_of(stacked)["grads"]["norm"].shape == (5, 2)
    np.testing.assert_array_equal(
        numbers_of(stacked)["grads"]["norm"][-1], numbers_of(find_measurements(state)[0])["grads"]["norm"]
    )
    scaled = jax.vmap(lambda s: optimizer.init(jax.tree.map(lambda p: p * s, params())))
    many = jax.jit(scaled)(jnp.arange(3.0))
    assert find_measurements(many)[0].packed["grads"].shape[:2] == (3, 2)
    jax.eval_shape(optimizer.init, params())


def test_masked_and_partitioned_chains_are_searched():
    optimizer = optax.masked(inspect_gradients(), {"w": True, "b": False})
    _, state = optimizer.update(params(), optimizer.init(params()), params())
    (found,) = find_measurements(state)
    assert found.sources[0].paths == ("['w']",)
