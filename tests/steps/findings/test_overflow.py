"""Steps in which a scaled loss overflows are left out on purpose; NaN that stay are an error all the same."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import treeviz as tv

BAD, N_STEPS = 12, 50
LARGEST = np.float32(2.0**10)  # of a scale at which no gradient overflows
rng = np.random.default_rng(0)
PARAMS = {"w": rng.normal(size=(8, 4)).astype(np.float32), "out": rng.normal(size=(4, 1)).astype(np.float32)}


@jax.jit
def step(params, scale, bound, x):
    """As with a dynamic loss scale: a step with NaN or Inf is left out, and the scale halved."""

    def loss(params):
        return scale * jnp.mean((jnp.tanh(x @ params["w"]) @ params["out"] - x[:, :1]) ** 2)

    grads = jax.tree.map(lambda g: g / scale, jax.grad(overflows(loss))(params))
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    is_finite = jnp.isfinite(norm)
    grads = jax.tree.map(lambda g: g * jnp.minimum(1, bound / norm), grads)
    params = jax.tree.map(lambda p, g: jnp.where(is_finite, p - 0.01 * g, p), params, grads)
    return params, jnp.where(is_finite, scale * 1.25, scale / 2)


def overflows(loss):
    """The same loss, whose gradient is infinite where it is large."""

    @jax.custom_vjp
    def through(params):
        return params

    def backward(_, gradients):
        return (jax.tree.map(lambda g: jnp.where(jnp.abs(g) < LARGEST, g, jnp.inf), gradients),)

    through.defvjp(lambda params: (params, None), backward)
    return lambda params: loss(through(params))


@pytest.fixture(scope="module")
def watched():
    inspector = tv.GradientInspector()
    return inspector, inspector.watch(step)


def trained(watched, *, scale=512.0, bound=np.inf, change=lambda i, params, x: (params, x)):
    inspector, run = watched
    inspector.reset()
    params, scale, bound = PARAMS, np.float32(scale), np.float32(bound)
    for i in range(N_STEPS):
        params, x = change(i, params, np.random.default_rng(i).normal(size=(16, 8)).astype(np.float32))
        params, scale = run(params, scale, bound, x)
    return inspector


def nonfinite(inspector) -> list[tv.Finding]:
    return [found for found in inspector.findings if found.kind == "nonfinite"]


@pytest.mark.parametrize("scale", [512.0, 2.0**14], ids=["as it grows", "from the first step on"])
def test_a_scaled_loss_that_overflows_now_and_then_is_no_fault(watched, scale):
    inspector = trained(watched, scale=scale)
    (found,) = nonfinite(inspector)
    assert [found for found in inspector.findings if found.severity != "info"] == []
    assert found.severity == "info" and "dynamic loss scale" in found.advice
    bad = inspector.history.values("grads", "nonfinite").high.any(axis=1)
    assert 3 < bad.sum() < N_STEPS / 2 and found.first == bad.argmax()
    assert f"{bad.sum()} steps are affected in total." in found.sentence


def test_what_is_known_of_a_scaled_loss_is_saved_with_the_run(watched, tmp_path):
    inspector = trained(watched)
    inspector.save(tmp_path / "run.treeviz")
    again = tv.GradientInspector.load(tmp_path / "run.treeviz")
    assert [(found.kind, found.severity) for found in again.findings] == [("nonfinite", "info")]
    assert again.history.sources == inspector.history.sources


def test_parameters_of_a_scaled_loss_that_are_lost_are_an_error(watched):
    def lost(i, params, x):
        return (jax.tree.map(lambda p: p * np.float32(np.nan), params) if i == BAD else params), x

    (found,) = nonfinite(trained(watched, scale=1.0, change=lost))
    assert (found.severity, found.first) == ("error", BAD)


def test_a_run_with_a_scaled_loss_is_stopped_where_it_is_lost_and_not_before():
    inspector = tv.GradientInspector(raise_on="nonfinite")
    run, params, scale = inspector.watch(step), PARAMS, np.float32(512)
    with pytest.raises(tv.StopTraining):
        for i in range(100):
            if i == 40:
                params = jax.tree.map(lambda p: p * np.float32(np.nan), params)
            params, scale = run(params, scale, np.float32(np.inf), np.ones((16, 8), np.float32))
    assert 55 <= i < 80


def test_a_step_with_nan_that_was_left_out_without_a_scale_says_so_and_is_an_error_still():
    @jax.jit
    def guarded(params, x):
        grads = jax.grad(lambda p: jnp.mean((jnp.tanh(x @ p["w"]) @ p["out"] - x[:, :1]) ** 2))(params)
        is_finite = jnp.all(jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]))
        return jax.tree.map(lambda p, g: jnp.where(is_finite, p - 0.01 * g, p), params, grads)

    inspector = tv.GradientInspector()
    run, params = inspector.watch(guarded), PARAMS
    for i in range(N_STEPS):
        x = np.random.default_rng(i).normal(size=(16, 8)).astype(np.float32)
        params = run(params, x * np.float32(np.nan) if i == BAD else x)
    (found,) = nonfinite(inspector)
    assert (found.severity, found.first) == ("error", BAD)
    assert f"From step {BAD + 1} on, all are finite again" in found.sentence


def test_clipping_of_gradients_that_are_unscaled_before_is_told_without_the_norms_of_those_that_are_not(watched):
    inspector = trained(watched, scale=256.0, bound=0.05)
    (found,) = (found for found in inspector.findings if found.kind == "clipping")
    assert (found.source, dict(found.numbers)["norm"]) == ("received", pytest.approx(0.05, rel=1e-3))
    assert "norm before" not in dict(found.numbers)
