"""`watch` on steps that train in a loop of their own: a row for each inner step where their number is known."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from watched import loss_fn, mlp_data, same_bytes, true_norms, update_mlp

from treeviz.steps.tracing.jitted import tap
from treeviz.steps.tracing.watch import watch

pytestmark = pytest.mark.oldest_jax

x, y = mlp_data()
grads_of_loss = jax.jit(jax.grad(loss_fn))
one_step = jax.jit(update_mlp)


def history(params, n_steps):
    """The true norms at each step, and the parameters after."""
    rows = []
    for _ in range(n_steps):
        rows.append(true_norms(grads_of_loss(params, x, y)))
        params = one_step(params, x, y)
    return np.array(rows), params


def scan(params):
    return lax.scan(lambda p, _: (update_mlp(p, x, y), None), params, None, length=4)[0]


def scan_over_batches(params):
    batches = jnp.stack([x] * 4), jnp.stack([y] * 4)
    return lax.scan(lambda p, batch: (update_mlp(p, *batch), loss_fn(p, *batch)), params, batches)


def unrolled_scan(params):
    return lax.scan(lambda p, _: (update_mlp(p, x, y), None), params, None, length=4, unroll=2)[0]


def fori_loop(params):
    return lax.fori_loop(0, 4, lambda _, p: update_mlp(p, x, y), params)


def scan_in_a_jit_in_a_scan(params):
    two = jax.jit(lambda p: lax.scan(lambda p, _: (one_step(p, x, y), None), p, None, length=2)[0])
    return lax.scan(lambda p, _: (two(p), None), params, None, length=2)[0]


def scan_with_checkpoint(params):
    return lax.scan(lambda p, _: (jax.checkpoint(update_mlp)(p, x, y), None), params, None, length=4)[0]


@pytest.mark.parametrize(
    "loop",
    [
        *(pytest.param(loop, marks=pytest.mark.optimized) for loop in (scan, scan_with_checkpoint)),
        *(scan_over_batches, unrolled_scan, fori_loop, scan_in_a_jit_in_a_scan),
    ],
)
def test_a_loop_of_known_length_has_a_row_for_each_inner_step(loop, layer, seen):
    step = jax.jit(loop)
    watched = watch(step, seen)
    after = watched(layer)
    assert watched.trouble == ""
    rows, _ = history(layer, 4)
    axes = watched.watches["grads"].axes
    assert {axis.kind for axis in axes} == {"step"}
    assert np.prod([axis.size for axis in axes]) == 4
    np.testing.assert_allclose(seen.norms().reshape(rows.shape), rows, rtol=5e-5)
    assert watched.watches["grads"].owner == "params"
    assert same_bytes(after, step(layer))


def test_a_reversed_scan_has_its_rows_where_its_results_are(layer, seen):
    scales = jnp.arange(1.0, 5.0)
    step = jax.jit(lambda p: lax.scan(lambda p, s: (update_mlp(p, x, y * s), s), p, scales, reverse=True))
    watch(step, seen)(layer)
    params, rows = layer, {}
    for i in reversed(range(4)):
        rows[i] = true_norms(grads_of_loss(params, x, y * scales[i]))
        params = one_step(params, x, y * scales[i])
    np.testing.assert_allclose(seen.norms(), [rows[i] for i in range(4)], rtol=5e-5)


def test_a_while_loop_shows_its_last_step(layer, seen):
    @jax.jit
    def step(params, n):
        return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, update_mlp(s[1], x, y)), (0, params))[1]

    watched = watch(step, seen)
    after = watched(layer, 3)
    rows, _ = history(layer, 3)
    seen.check(grads_of_loss(one_step(one_step(layer, x, y), x, y), x, y), rtol=5e-5)
    np.testing.assert_allclose(seen.norms(), rows[-1], rtol=5e-5)
    assert same_bytes(after, step(layer, 3))
    watched(layer, 0)
    assert np.isnan(seen.norms()).all()
    assert watched.notes == (
        "grads: in a while loop, only the last iteration is measured, since their number is unknown. "
        "lax.scan, or lax.fori_loop with constant bounds, measures every iteration.",
    )


def test_a_while_loop_of_members_shows_the_last_step_of_each(layer, seen):
    @jax.jit
    @jax.vmap
    def step(n, scale):
        params = jax.tree.map(lambda p: p * scale, layer)
        return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, update_mlp(s[1], x, y)), (0, params))[1]

    arguments = np.array([3, 1]), np.array([1, 1.1], np.float32)
    after = watch(step, seen)(*arguments)
    rows = [
        history(jax.tree.map(lambda p, scale=scale: p * scale, layer), n)[0][-1]
        for n, scale in zip(*arguments, strict=True)
    ]
    np.testing.assert_allclose(seen.norms(), rows, rtol=5e-5)
    assert same_bytes(after, step(*arguments))


@pytest.mark.optimized
def test_accumulated_gradients_show_each_micro_batch(layer, seen):
    micro = x.reshape(4, 4, 1), y.reshape(4, 4, 1)

    @jax.jit
    def step(params, x, y):
        def add(total, batch):
            return jax.tree.map(jnp.add, total, jax.grad(loss_fn)(params, *batch)), None

        total, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, params), (x, y))
        return jax.tree.map(lambda p, g: p - 0.01 * g / 4, params, total)

    watched = watch(step, seen)
    after = watched(layer, *micro)
    rows = [true_norms(grads_of_loss(layer, micro[0][i], micro[1][i])) for i in range(4)]
    np.testing.assert_allclose(seen.norms(), rows, rtol=5e-5)
    assert watched.watches["grads"].owner == "params"
    assert same_bytes(after, step(layer, *micro))


def test_an_ensemble_in_a_loop_has_rows_of_steps_and_members(layer, seen):
    ensemble = jax.tree.map(lambda p: jnp.stack([p, p * 0.5]), layer)
    step = jax.jit(jax.vmap(scan))
    watched = watch(step, seen)
    after = watched(ensemble)
    assert [axis[:2] for axis in watched.watches["grads"].axes] == [("step", 4), ("member", 2)]
    for member in range(2):
        rows, _ = history(jax.tree.map(lambda p: p[member], ensemble), 4)
        np.testing.assert_allclose(seen.norms()[:, member], rows, rtol=5e-5)
    assert same_bytes(after, step(ensemble))


@pytest.mark.optimized
def test_layers_in_a_scan_have_a_row_for_each_tapped_activation(seen):
    layers = jnp.stack([jnp.eye(3) * s for s in (1.0, 0.5, 2.0)])
    start = jnp.ones((1, 3))

    def loss(layers):
        def layer(h, w):
            return tap(jnp.tanh(tap(h, "flows back", cotangent=True) @ w), "hidden"), None

        return jnp.sum(lax.scan(jax.checkpoint(layer), start, layers)[0])

    step = jax.jit(lambda layers: layers - jax.grad(loss)(layers))
    watched = watch(step, seen)
    after = watched(layers)
    h, hidden = start, []
    for w in layers:
        h = jnp.tanh(h @ w)
        hidden.append(h)
    np.testing.assert_allclose(seen.norms("hidden")[:, 0], [np.linalg.norm(h) for h in hidden], rtol=1e-5)
    assert seen.norms("flows back").shape == (3, 1)
    seen.check(list(jax.grad(loss)(layers)))  # by layer, too
    assert same_bytes(after, step(layers))
