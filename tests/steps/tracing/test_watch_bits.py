"""Training with `watch` gives the very bits of training without it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pairs import all_pairs
from small_models import MODELS
from watched import Recorder, copies, same_bytes

from treeviz.steps.tracing.watch import watch

N_STEPS = 30


def adam(lr=1e-2, b1=0.9, b2=0.999):
    def init(params):
        return jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params), jnp.zeros((), jnp.int32)

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

    return (lambda params: jax.tree.map(jnp.zeros_like, params)), update


OPTIMIZERS = {"momentum": momentum, "adam": adam}


@pytest.mark.oldest_jax
@all_pairs(
    updates={"": False, "updates": True},
    model=MODELS,
    optimizer=OPTIMIZERS,
    dtype={"float32": jnp.float32, "bfloat16": jnp.bfloat16},
    donated={"kept": False, "donated": True},
)
def test_parameters_after_thirty_watched_steps_are_those_of_the_plain_step_bit_for_bit(
    updates, model, optimizer, dtype, donated
):
    params, apply, x, y = model()
    init, update = optimizer()
    params = jax.tree.map(lambda p: jnp.asarray(p, dtype), params)
    x, y = jnp.asarray(x, dtype if x.dtype == np.float32 else x.dtype), jnp.asarray(y, dtype)

    def loss(params, x, y):
        return jnp.mean((apply(params, x) - y) ** 2)

    def step(params, state, x, y):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        return *update(params, grads, state), value

    step = jax.jit(step, donate_argnums=(0, 1) if donated else ())
    seen = Recorder()
    watched = watch(step, seen, updates=updates)
    start = params, init(params)
    mine, yours = copies(start), copies(start)
    for number in range(N_STEPS):
        *mine, my_loss = watched(*mine, x, y)
        *yours, your_loss = step(*yours, x, y)
        assert same_bytes((mine, my_loss), (yours, your_loss)), f"step {number}"
    assert watched.trouble == ""
    assert seen.steps == list(range(N_STEPS))
    assert np.isfinite(seen.norms()).all()
    assert seen.names() == (["grads", "params", "updates"] if updates else ["grads"])
