"""Training with `watch` gives the very bits of training without it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import convolution, mlp, residual, transformer
from watched import Recorder, same_bytes, true_norms

from treeviz.steps.statistics import LIGHT
from treeviz.steps.tracing.instrumented import instrumented
from treeviz.steps.tracing.jitted import jit_options
from treeviz.steps.tracing.watch import watch

pytestmark = pytest.mark.optimized
N_STEPS = 10


def zeros_like(tree):
    """By NumPy, since of `jnp.zeros_like` each shape is a program to compile."""
    return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), tree)


def adam(lr=1e-2, b1=0.9, b2=0.999):
    def init(params):
        return zeros_like(params), zeros_like(params), np.zeros((), np.int32)

    def update(params, grads, state):
        mu, nu, n = state
        n = n + 1
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, mu, grads)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, nu, grads)
        c1, c2 = 1 - b1 ** n.astype(jnp.float32), 1 - b2 ** n.astype(jnp.float32)

        def moved(p, m, v):
            return (p - lr * (m / c1.astype(p.dtype)) / (jnp.sqrt(v / c2.astype(p.dtype)) + 1e-6)).astype(p.dtype)

        new = jax.tree.map(moved, params, mu, nu)
        return new, (mu, nu, n)

    return init, update


def momentum(lr=1e-2):
    def update(params, grads, state):
        state = jax.tree.map(lambda m, g: 0.9 * m + g, state, grads)
        return jax.tree.map(lambda p, m: p - lr * m, params, state), state

    return zeros_like, update


# Nearly every two values of two options meet, and the large models have the options that are compiled quickly. An RNN
# is among the kinds of step in test_kinds_of_step.py.
CASES = [
    (mlp, adam, jnp.bfloat16, True, True),
    (convolution, momentum, jnp.float32, True, False),
    (residual, momentum, jnp.bfloat16, False, False),
    (transformer, momentum, jnp.float32, False, True),
]


@pytest.mark.oldest_jax
@pytest.mark.parametrize(
    ("model", "optimizer", "dtype", "updates", "donated"), CASES, ids=[c[0].__name__ for c in CASES]
)
def test_parameters_after_ten_watched_steps_are_those_of_the_plain_step_bit_for_bit(
    model, optimizer, dtype, updates, donated
):
    params, apply, x, y = model()
    init, update = optimizer()
    params, x, y = jax.tree.map(lambda x: x.astype(dtype) if x.dtype == np.float32 else x, (params, x, y))

    def loss(params, x, y):
        return jnp.mean((apply(params, x) - y) ** 2)

    def step(params, state, x, y):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        return *update(params, grads, state), value

    step = jax.jit(step, donate_argnums=(0, 1) if donated else ())
    seen = Recorder()
    watched = watch(step, seen, updates=updates)
    start = params, init(params)
    mine, yours = (jax.device_put(jax.tree.map(np.array, start)) for _ in range(2))
    for number in range(N_STEPS):
        *mine, my_loss = watched(*mine, x, y)
        *yours, your_loss = step(*yours, x, y)
        assert same_bytes((mine, my_loss), (yours, your_loss)), f"step {number}"
    assert watched.trouble == ""
    assert seen.steps == list(range(N_STEPS))
    assert np.isfinite(seen.norms()).all()
    assert set(seen.names()) - {"losses of the step"} == ({"grads", "params", "updates"} if updates else {"grads"})


def _normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def one_output():
    """A critic, a regressor, a binary classifier."""
    params = {
        "w": _normal(0, 8, 64) / 3,
        "b": np.zeros(64, np.float32),
        "out": _normal(1, 64, 1) / 8,
        "c": _normal(2, 1),
    }

    def loss(params, x, y):
        hidden = jnp.tanh(x @ params["w"] + params["b"][None])
        return jnp.mean(((hidden @ params["out"] + params["c"][None])[:, 0] - y) ** 2)

    return params, jax.grad(loss), _normal(3, 32, 8), _normal(4, 32)


def one_output_of_each_example():
    """Weights of (outputs, inputs), as in Equinox."""
    params = {"w": _normal(0, 1, 16) / 4, "b": _normal(2, 1)}

    def loss(params, x, y):
        return jnp.mean((jax.vmap(lambda x: jax.nn.sigmoid(params["w"] @ x + params["b"]))(x) - y) ** 2)

    return params, jax.grad(loss), _normal(3, 32, 16), _normal(4, 32, 1)


def clipped_gradients_of_each_example():
    params = {"w": _normal(0, 8, 16) / 3, "out": _normal(1, 16, 4) / 4}

    def loss(params, x, y):
        logits = jnp.tanh(x[None] @ params["w"]) @ params["out"]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[None, None], axis=1)[0, 0]

    gradient_of_each = jax.vmap(jax.grad(loss), (None, 0, 0))

    def gradient(params, x, y):
        grads = gradient_of_each(params, x, y)
        norms = jnp.sqrt(sum(jnp.sum(g * g, (1, 2)) for g in grads.values()))
        return jax.tree.map(lambda g: jnp.mean(g / jnp.maximum(norms, 1)[:, None, None], 0), grads)

    return params, gradient, _normal(3, 8, 8), np.arange(8, dtype=np.int32) % 4, gradient_of_each


def embedding_used_twice():
    params = {"embed": _normal(0, 20, 16) / 4}

    def loss(params, x, y):
        hidden = jnp.tanh(params["embed"][x] * params["embed"][x[::-1]])
        return jnp.mean((hidden @ params["embed"].T - y[:, None]) ** 2)

    return params, jax.grad(loss), np.arange(32, dtype=np.int32) * 7 % 20, _normal(1, 32)


@pytest.mark.oldest_jax
@pytest.mark.parametrize(
    "case", [one_output, one_output_of_each_example, clipped_gradients_of_each_example, embedding_used_twice]
)
def test_gradients_that_xla_merges_with_the_update_are_measured_without_changing_a_bit(case):
    params, gradient, x, y, *measured = case()

    @jax.jit
    def step(params, moments, x, y):
        grads = gradient(params, x, y)
        mu = jax.tree.map(lambda g, m: (1 - 0.9) * g + 0.9 * m, grads, moments[0])
        nu = jax.tree.map(lambda g, v: (1 - 0.999) * g**2 + 0.999 * v, grads, moments[1])
        return jax.tree.map(lambda p, m, v: p + -1e-3 * (m / (jnp.sqrt(v) + 1e-8)), params, mu, nu), (mu, nu)

    zeros = zeros_like(params)
    watched = watch(step, seen := Recorder())
    mine = yours = params, (zeros, zeros)
    moments = []
    for number in range(6):
        mine, yours = watched(*mine, x, y), step(*yours, x, y)
        assert same_bytes(mine, yours), f"step {number}"
        moments.append(yours[1][0])
    assert seen.steps == list(range(6))
    norms = np.linalg.norm(np.atleast_2d(seen.norms(at=0)), axis=0)  # over the members of a vmap
    true = [true_norms(jax.jit(of_each)(params, x, y)) for of_each in measured] or [true_norms(moments[0]) / (1 - 0.9)]
    np.testing.assert_allclose(norms, true[0], rtol=2e-5)


@pytest.mark.oldest_jax
def test_no_product_of_matrices_is_computed_again_for_the_measurement():
    params = {"place": _normal(0, 6, 16), "w": _normal(1, 16, 16), "out": _normal(2, 16, 16)}

    @jax.jit
    def step(params, x):
        return jax.grad(lambda p: jnp.mean((jnp.tanh((x + p["place"][None]) @ p["w"]) @ p["out"]) ** 2))(params)

    instrumented_step = instrumented(step.__wrapped__, jit_options(step), LIGHT)
    plain, measured = (
        f.lower(params, _normal(3, 1, 6, 16)).as_text().count("dot_general") for f in (step, instrumented_step)
    )
    assert plain == measured == 6
