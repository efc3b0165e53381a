"""What an optimizer receives of a gradient, and which gradient the measured one is."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from watched import same_bytes

import treeviz as tv
from treeviz.steps.measure import measure
from treeviz.steps.reduce import scaled_rows
from treeviz.steps.statistics import HISTOGRAM, LIGHT, unpack
from treeviz.steps.tracing.optimizer_input import OptimizerInputs
from treeviz.steps.tracing.primitives import sow

pytestmark = pytest.mark.oldest_jax

rng = np.random.default_rng(0)
PARAMS = jax.device_put({"b": np.zeros(3), "w": rng.normal(size=(4, 3))})
X = jax.device_put(rng.normal(size=(6, 4)))


def loss(params, x):
    return jnp.mean((x @ params["w"] + params["b"][None] - 1) ** 2)


def global_norm(tree):
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))


def clipped(grads, most=0.5):
    """As optax.clip_by_global_norm."""
    norm = global_norm(grads)
    return jax.tree.map(lambda g: lax.select(norm < most, g, (g / norm) * most), grads)


def momentum(params, grads, mu):
    mu = jax.tree.map(lambda m, g: 0.9 * m + g, mu, grads)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, mu), mu


def loss_scaled(params, mu, x, scale):
    """As flax.training.dynamic_scale."""
    grads = jax.grad(lambda params: scale * loss(params, x))(params)
    return momentum(params, clipped(jax.tree.map(lambda g: g / scale, grads)), mu)


def scaled_by_a_constant(params, mu, x, scale):
    """As jmp.StaticLossScale."""
    scaled = jax.value_and_grad(lambda params: 2.0**15 * loss(params, x))
    _, grads = scaled(params)
    return momentum(params, clipped(jax.tree.map(lambda g: g * 2.0**-15, grads)), mu)


def scaled_in_a_jit(params, mu, x, scale):
    grads = jax.jit(jax.grad(lambda params: loss(params, x) * 1024.0))(params)
    return momentum(params, jax.tree.map(lambda g: g / 1024, grads), mu)


def accumulated(params, mu, x, scale):
    def add(total, x):
        return jax.tree.map(jnp.add, total, jax.grad(loss)(params, x)), None

    total, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, params), x.reshape(3, 2, 4))
    return momentum(params, jax.tree.map(lambda g: g / 3, total), mu)


def per_token(params, mu, x, scale):
    """As MaxText: the sum of all micro-batches is divided by the number of their tokens, if there are any."""

    def add(total, x):
        grads, n = jax.tree.map(jnp.add, total, (jax.grad(loss)(params, x), jnp.sum(x > 0)))
        return (grads, n), None

    (total, n), _ = lax.scan(add, (jax.tree.map(jnp.zeros_like, params), 0), x.reshape(3, 2, 4))
    return momentum(params, jax.tree.map(lambda g: jnp.where(n > 0, g / n, jnp.zeros_like(g)), total), mu)


def per_example(params, mu, x, scale):
    """As optax.per_example_global_norm_clip."""
    grads = jax.vmap(jax.grad(loss), (None, 0))(params, x[:, None])
    by = jnp.minimum(0.5 / jax.vmap(global_norm)(grads), 1.0)
    return momentum(params, jax.tree.map(lambda g: jnp.tensordot(by, g, 1), grads), mu)


def over_calls(params, mu, x, scale):
    """As optax.MultiSteps, in the call of that number."""

    def add(grads, mu):
        return jax.tree.map(lambda m, g: m + (g - m) / scale, mu, grads)

    return params, lax.cond(scale < 0, lambda grads, mu: mu, add, jax.grad(loss)(params, x), mu)


CASES = {
    "unscaled": (loss_scaled, "before unscaling", "unscaled, clipped or scaled by its norm"),
    "scaled by a constant": (scaled_by_a_constant, "before unscaling", "unscaled, clipped or scaled by its norm"),
    "scaled in a jit": (scaled_in_a_jit, "before unscaling", "unscaled"),
    "accumulated": (accumulated, "of each micro-batch", "averaged over micro-batches"),
    "per token": (per_token, "of each micro-batch", "summed over micro-batches, divided by a scalar"),
    "over calls": (over_calls, "of each call", "averaged over the calls so far"),
    "per example": (per_example, "of each example", "clipped or scaled by its norm, summed over examples"),
}


@pytest.mark.parametrize(("step", "label", "how"), CASES.values(), ids=CASES)
def test_the_norm_of_what_the_optimizer_receives_is_measured_beside_a_labelled_gradient(step, label, how):
    inspector, mu = tv.GradientInspector(), jax.tree.map(jnp.zeros_like, PARAMS)
    _, mu = inspector.watch(jax.jit(step))(PARAMS, mu, X, jnp.float32(65536))
    received = [np.linalg.norm(m) for m in jax.tree.leaves(mu)]  # the first step of the momentum is what it receives
    np.testing.assert_allclose(inspector.history.last("received")[1]["norm"], received, rtol=1e-5)
    assert not np.isclose(inspector.history.last("grads")[1]["norm"][1], received[1], rtol=0.1)
    (note,) = inspector.notes
    assert note == f"grads is the gradient {label}; received is what the optimizer receives: {how}."
    view = inspector.render()
    assert f"gradients {label}" in view.table.headline
    np.testing.assert_allclose(view.find("w")[0]["received_norm"], received[1], rtol=1e-5)
    assert [series.name for series in view.series][1] == "received.norm"


def test_a_gradient_that_is_clipped_says_so_and_how_to_measure_what_is_received():
    inspector = tv.GradientInspector()
    inspector.watch(jax.jit(lambda params, x: clipped(jax.grad(loss)(params, x))))(PARAMS, X)
    (note,) = inspector.notes
    assert note.startswith("grads is the gradient before clipping or scaling by the norm; GradientInspector(updates=")
    assert "gradients before clipping or scaling by the norm" in inspector.render().table.headline


def received_in(step, *args):
    """What is received of each gradient in a step that is given a function like `jax.grad`."""

    def grad(f):
        return lambda params, *args: sow("grads", jax.grad(f)(params, *args), jax.tree.leaves(params))

    plan = OptimizerInputs(jax.make_jaxpr(lambda *args: step(grad, *args))(*args))
    return (
        [what.transforms for trees in plan.received_by_jaxpr.values() for what in trees.values()],
        bool(plan.unscaled),
        bool(plan.clipped),
    )


def moments(params, grads, mu):
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mu, grads)
    nu = jax.tree.map(lambda g: 0.001 * g * g, grads)
    return jax.tree.map(lambda p, m, v: p - m / jnp.sqrt(v), params, mu, nu), mu


def descend(params, grads, mu):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), mu


def in_a_branch(params, grads, mu):
    return lax.cond(
        X[0, 0] > 0,
        lambda grads: moments(params, jax.tree.map(lambda g: g / 7, grads), mu),
        lambda _: (params, mu),
        grads,
    )


SUM, MEAN = "summed over micro-batches", "averaged over micro-batches"
SCALED = {  # each gradient in the sum, the sum, the optimizer -> what that receives, or what nothing is said of
    "a sum": (lambda g: g, lambda g: g, moments, SUM),
    "a sum times a rate": (lambda g: g, lambda g: g, descend, SUM),
    "a mean": (lambda g: g, lambda g: g / 3, moments, MEAN),
    "a mean, made in the sum": (lambda g: g / 3, lambda g: g, moments, MEAN),
    "weights": (lambda g: g * 0.5, lambda g: g, moments, "weighted and summed over micro-batches"),
    "another divisor": (lambda g: g, lambda g: g / 32, moments, f"{SUM}, divided by 32"),
    "its inverse": (lambda g: g, lambda g: 0.03125 * g, moments, f"{SUM}, times 0.03125"),
    "a divisor before a rate": (lambda g: g, lambda g: g / 32, descend, f"{SUM}, divided by 32"),
    "a divisor before a momentum": (lambda g: g, lambda g: g / 32, momentum, f"{SUM}, divided by 32"),
    "an inverse before a rate": (lambda g: g, lambda g: 0.03125 * g, descend, None),
    "what may be a coefficient": (lambda g: g, lambda g: 0.1 * g, momentum, None),
    "a divisor in a branch": (lambda g: g, lambda g: g, in_a_branch, None),
}


@pytest.mark.parametrize(("each", "total", "update", "how"), SCALED.values(), ids=SCALED)
def test_of_a_sum_that_is_scaled_that_is_told_which_the_optimizer_receives_or_nothing(each, total, update, how):
    def step(grad, params, mu, xs):
        def add(sums, x):
            return jax.tree.map(lambda c, g: c + each(g), sums, grad(loss)(params, x)), None

        sums, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, params), xs)
        sums = jax.tree.map(total, sums)
        return update(params, sums, mu), global_norm(sums)  # what is computed of it beside is no use of it

    found, *_ = received_in(step, PARAMS, PARAMS, X.reshape(3, 2, 4))
    assert found == ([] if how is None else [tuple(how.split(", "))])


def test_gradients_that_the_step_adds_to_those_of_earlier_calls_are_those_of_a_call():
    """As tunix: a branch that divides the sum updates the parameters."""

    def step(params, sums, mu, x):
        sums = jax.tree.map(jnp.add, sums, jax.grad(loss)(params, x))
        return in_a_branch(params, sums, mu), sums

    inspector = tv.GradientInspector()
    inspector.watch(jax.jit(step))(PARAMS, PARAMS, PARAMS, X)
    assert inspector.notes == ["grads is the gradient of each call."] and [*inspector.history.sources] == ["grads"]


def test_what_may_be_the_optimizers_own_arithmetic_is_not_taken_for_a_scale_of_the_gradient():
    def bf16(params):
        return jax.tree.map(lambda p: p.astype(jnp.bfloat16).astype(jnp.float32), params)

    def with_rate(params, grads, rate):
        return jax.tree.map(lambda p, g: p + -rate * g, params, grads)

    steps = [
        lambda grad, p, x, rate: with_rate(p, grad(loss)(p, x), 0.1),
        lambda grad, p, x, rate: with_rate(p, grad(loss)(p, x), rate),
        lambda grad, p, x, rate: with_rate(p, jax.tree.map(lambda g: g / rate, grad(loss)(p, x)), 0.1),
        lambda grad, p, x, rate: with_rate(p, jax.tree.map(lambda g: g + 0.1 * g * g, grad(loss)(p, x)), 0.1),
        lambda grad, p, x, rate: jax.tree.map(lambda g: jnp.where(jnp.isnan(g), 0.0, g), grad(loss)(p, x)),
        lambda grad, p, x, rate: lax.cond(
            rate > 0, lambda p, g: jax.tree.map(jnp.add, p, g), lambda p, g: p, p, grad(loss)(p, x)
        ),
        # steps of training, and not micro-batches
        lambda grad, p, x, rate: lax.scan(lambda p, x: (with_rate(p, grad(loss)(p, x), 0.1), None), p, x[:, None]),
        lambda grad, p, x, rate: lax.scan(lambda p, x: (with_rate(p, grad(loss)(bf16(p), x), -1), None), p, x[:, None]),
    ]
    for step in steps:
        assert received_in(step, PARAMS, X, jnp.float32(0.1)) == ([], False, False)


def adam(params, grads, mu):
    return momentum(params, jax.tree.map(lambda g: 0.1 * g, grads), mu)


NO_SCALES = {  # what the loss and its gradient are multiplied with, and what is done with that
    "a learning rate": (128.0, 1 / 128, lambda p, g, mu: (jax.tree.map(jnp.subtract, p, g), mu)),
    "the coefficient of a moment": (10.0, 0.1, momentum),
    "other powers of two": (128.0, 1 / 64, momentum),
    "none": (128.0, 1.0, adam),
}


@pytest.mark.parametrize(("scale", "by", "update"), NO_SCALES.values(), ids=NO_SCALES)
def test_a_constant_that_does_not_undo_that_of_the_loss_or_is_a_rate_is_no_scale(scale, by, update):
    def step(params, mu, x):
        grads = jax.grad(lambda params: scale * loss(params, x))(params)
        return update(params, jax.tree.map(lambda g: by * g, grads), mu)

    inspector, mu = tv.GradientInspector(), jax.tree.map(jnp.zeros_like, PARAMS)
    inspector.watch(jax.jit(step))(PARAMS, mu, X)
    assert (*inspector.notes, *inspector.history.sources) == ("grads",)


COMPLEX = {  # what is done with gradients, and whether it is measured
    "a rate": (lambda g, scale: 0.1 * g, False),
    "an imaginary rate": (lambda g, scale: 1j * g, False),
    "unscaled": (lambda g, scale: g / scale, True),
}


@pytest.mark.parametrize(("by", "is_received"), COMPLEX.values(), ids=COMPLEX)
def test_complex_gradients_times_a_constant_or_a_scale_are_measured(by, is_received):
    def step(params, mu, scale):
        grads = jax.grad(lambda params: scale * jnp.sum(jnp.abs(params) ** 2))(params)
        return params - 1e-3 * by(grads, scale), by(grads, scale)

    inspector, params = tv.GradientInspector(), jnp.array([3 + 4j, 1j], jnp.complex64)
    _, received = inspector.watch(jax.jit(step))(params, params, jnp.float32(8))
    np.testing.assert_allclose(inspector.history.last("grads")[1]["norm"], 16 * np.sqrt(26), rtol=1e-6)
    assert ("received" in inspector.history.sources) is is_received
    if is_received:
        of_received = inspector.history.last("received")[1]["norm"]
        np.testing.assert_allclose(of_received, np.linalg.norm(received), rtol=1e-6)


def test_a_clip_is_one_of_all_leaves_or_none():
    def one_leaf(grad, params, x):
        grads = grad(loss)(params, x)
        return {**grads, "w": grads["w"] * jnp.minimum(1.0, 1 / jnp.linalg.norm(grads["w"]))}

    def each_leaf(grad, params, x):
        return jax.tree.map(lambda g: g / jnp.linalg.norm(g), grad(loss)(params, x))

    def each_number(grad, params, x):
        return jax.tree.map(lambda g: jnp.clip(g, -1, 1), grad(loss)(params, x))

    assert received_in(one_leaf, PARAMS, X) == ([], False, False)

    def each_column(grad, params, x):  # as optax.adaptive_grad_clip
        grads, norms = grad(loss)(params, x), lambda g: jnp.broadcast_to(jnp.linalg.norm(g, axis=0), g.shape)
        return jax.tree.map(lambda g: jnp.where(norms(g) < 1, g, g * (1 / norms(g))), grads)

    for step in (each_leaf, each_number, each_column):
        assert received_in(step, PARAMS, X) == ([], False, True)
    assert received_in(lambda grad, *args: clipped(grad(loss)(*args)), PARAMS, X) == (
        [("clipped or scaled by its norm",)],
        False,
        True,
    )


@jax.jit
def rows_times(x, factor):
    rows = jnp.concatenate([measure(x=[x[i : i + 1]], statistics=HISTOGRAM).packed["x"] for i in range(3)])
    return scaled_rows(rows, HISTOGRAM, factor)


@pytest.mark.parametrize("factor", [65536.0, -1 / 65536, 2e-38, 3e38, 0.0, np.inf])
def test_packed_rows_are_scaled_like_their_numbers(factor):
    x = np.array([3e-30, -4.0, 5e20], np.float32)
    found = unpack(np.asarray(rows_times(x, np.float32(factor))), LIGHT)
    if np.isfinite(factor):
        truth = np.abs(x.astype(np.float64) * np.float64(np.float32(factor)))
        np.testing.assert_allclose(found["norm"], truth, rtol=1e-6)
        np.testing.assert_allclose(found["max_abs"], truth, rtol=1e-6)
    assert found["nonfinite"].tolist() == [int(not np.isfinite(factor))] * 3


@pytest.mark.optimized
@pytest.mark.skipif(jax.__version_info__ < (0, 5), reason="there, measuring each member of a vmap may change bits")
@pytest.mark.parametrize("how", ["mean", "weighted"])
def test_measuring_what_is_received_changes_no_bit(how):
    rng = np.random.default_rng(1)
    params = {"w": rng.normal(size=(17, 64)) / 4, "head": rng.normal(size=(64, 1)) / 8}
    params = jax.tree.map(lambda p: jnp.asarray(p, jnp.float32), params)
    x, y = (jnp.asarray(rng.normal(size=(32, 1, n)), jnp.float32) for n in (17, 1))

    def loss(params, x, y):
        return jnp.mean((jnp.tanh(x @ params["w"]) @ params["head"] - y) ** 2)

    @jax.jit
    def step(params, mu, nu):
        grads = jax.vmap(jax.grad(loss), (None, 0, 0))(params, x, y)
        by = jnp.minimum(0.1 / jax.vmap(global_norm)(grads), 1.0)
        one = (lambda g: g.mean(0)) if how == "mean" else (lambda g: jnp.tensordot(by, g, 1) / 32)
        grads = jax.tree.map(one, grads)
        mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mu, grads)
        nu = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, nu, grads)
        params = jax.tree.map(lambda p, m, v: p - 0.01 * m / (jnp.sqrt(v) + 1e-8), params, mu, nu)
        return params, mu, nu

    inspector = tv.GradientInspector()
    watched, zeros = inspector.watch(step), jax.tree.map(jnp.zeros_like, params)
    plain = mine = params, zeros, zeros
    for _ in range(4):
        plain, mine = step(*plain), watched(*mine)
    assert same_bytes(plain, mine) and "received" in inspector.history.sources
