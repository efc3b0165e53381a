"""What is zero for any arguments is known to be zero, in loops and calls too; numbers that happen to be are not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec
from watched import on_devices

from treeviz.steps.tracing.domains import drifting_arguments, frozen_arguments, structural_zeros
from treeviz.steps.tracing.primitives import sow

pytestmark = pytest.mark.oldest_jax
X = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)


def scanned(p, x):
    def body(carry, w):
        h, unused = carry
        return (jnp.tanh(h @ w[0]), unused), None

    return lax.scan(body, (x, p["carried"]), (p["used"][None], p["unused"][None]))[0][0].sum()


def in_a_branch(p, x):
    return lax.cond(x[0, 0] > 0, lambda p: (p["used"] * p["one"] * x).sum(), lambda p: (p["used"] * x).sum(), p)


@jax.custom_vjp
def half(x):
    return x / 2


half.defvjp(lambda x: (x / 2, None), lambda _, g: (g / 2,))

# A loss of parameters and X, and the parameters on which it depends.
LOSSES = {
    "unused": (lambda p, x: (p["used"] @ x).sum(), {"used"}),
    "stopped": (lambda p, x: (p["used"] @ x @ lax.stop_gradient(p["stopped"])).sum(), {"used"}),
    "rounded": (lambda p, x: (p["used"] * x + jnp.round(p["round"]) + (p["compared"] > 0)).sum(), {"used"}),
    "times zero": (lambda p, x: (p["used"] * x).sum() + 0.0 * jnp.sin(p["sine"] @ p["other"]).sum(), {"used"}),
    "the other term": (lambda p, x: jnp.concatenate([p["used"] * x, lax.stop_gradient(p["no"])]).sum(), {"used"}),
    "zero by its numbers": (lambda p, x: jax.nn.relu(p["used"] - 100).sum(), {"used"}),
    "of a jit": (lambda p, x: jax.jit(lambda p: (p["used"] @ x).sum())(p), {"used"}),
    "of a checkpoint": (lambda p, x: jax.checkpoint(lambda p: jnp.sin(p["used"] @ x).sum())(p), {"used"}),
    "of a vmap": (lambda p, x: jax.vmap(lambda row: row @ p["used"])(x).sum(), {"used"}),
    "of a rule": (lambda p, x: half(p["used"]).sum(), {"used"}),
    "of a scan": (scanned, {"used"}),
    "of a branch": (in_a_branch, {"used", "one"}),
    "in terms that cancel": (lambda p, x: (p["used"] * x + p["one"]).mean() - (x + p["one"]).mean(), {"used"}),
    "in terms that do not": (lambda p, x: (x + p["one"]).mean() - 2 * (x + p["one"]).mean(), {"one"}),
    "of a difference": (lambda p, x: jnp.abs(p["used"] - p["one"] * x).mean(), {"used", "one"}),
    "by gathers": (lambda p, x: p["used"][jnp.array([2, 0])].sum() + p["used"][0, 1], {"used"}),
}
NAMES = ("used", "unused", "stopped", "round", "compared", "sine", "other", "no", "one", "carried")


def zeros_of(loss):
    """The parameters whose gradient is known to be zero, and those whose gradient is zero here."""
    params = {name: jnp.asarray(X) for name in sorted(NAMES)}

    def step(params, x):
        return sow("grads", jax.grad(loss)(params, x))

    program = jax.make_jaxpr(step)(params, X)
    (places,) = structural_zeros(program).values()
    grads = jax.grad(loss)(params, X)
    return {sorted(NAMES)[i] for i in places}, {name for name in NAMES if not grads[name].any()}


@pytest.mark.parametrize("name", LOSSES)
def test_what_the_loss_does_not_depend_on_is_known_and_nothing_else(name):
    loss, depends = LOSSES[name]
    known, zero = zeros_of(loss)
    assert known == {*NAMES} - depends
    assert known <= zero


def test_it_is_known_of_gradients_in_a_training_loop_whose_moments_begin_as_zeros():
    def loss(p, x):
        return jnp.sum((x @ p["used"]) ** 2)

    def train(params, x):
        def body(carry, _):
            params, moments = carry
            grads = sow("grads", jax.grad(loss)(params, x))
            moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
            return (jax.tree.map(lambda p, m: p - 0.1 * m, params, moments), moments), None

        return lax.scan(body, (params, jax.tree.map(jnp.zeros_like, params)), length=3)[0]

    (places,) = structural_zeros(jax.make_jaxpr(train)({"a": X, "used": X}, X)).values()
    assert places == {0}


def test_a_loop_that_passes_values_on_for_many_turns_is_followed_for_a_few():
    def train(params, x):
        def body(carry, _):
            grads = sow("grads", jax.grad(lambda p: jnp.sum(p * carry[-1]))(params))
            return (x, *carry[:-1]), grads.sum()

        return lax.scan(body, (jnp.zeros_like(x),) * 9, length=20)

    assert structural_zeros(jax.make_jaxpr(train)(X, X)) == {}


# Steps of parameters p and a rate, of which p["a"] is frozen, and those of which it is not.
FREEZES = {
    "as it is": lambda p, rate: p,
    "with an update of zeros": lambda p, rate: {"a": (p["a"] + jnp.zeros_like(p["a"])).astype(p["a"].dtype)},
    "with a gradient times zero": lambda p, rate: {"a": p["a"] - 0.0 * jnp.sin(p["a"])},
    "on a condition": lambda p, rate: {"a": jnp.where(rate > 0, p["a"] + 0.0, p["a"])},
    "of a jit in a branch": lambda p, rate: lax.cond(rate > 0, jax.jit(lambda p: {"a": p["a"] + 0.0}), lambda p: p, p),
}
CHANGES = {
    "by an update": lambda p, rate: {"a": p["a"] - rate * jnp.sin(p["a"])},
    "on a condition": lambda p, rate: {"a": jnp.where(rate > 0, p["a"] - 0.1, p["a"])},
    "by weight decay": lambda p, rate: {"a": p["a"] * (1 - rate)},
    "by clipping": lambda p, rate: {"a": jnp.clip(p["a"], -1, 1)},
    "and is kept, too": lambda p, rate: (p, {"a": p["a"] - rate}),
    "and is in an average": lambda p, rate: {"a": 0.99 * p["a"] + 0.01 * jnp.cos(p["a"])},
}


@pytest.mark.parametrize("step", FREEZES.values(), ids=FREEZES)
def test_a_parameter_that_a_step_returns_for_any_numbers_is_known_to_be_frozen(step):
    assert frozen_arguments(jax.make_jaxpr(step)({"a": X}, 0.1)) == {0}


@pytest.mark.parametrize("step", CHANGES.values(), ids=CHANGES)
def test_a_parameter_that_may_change_is_not_known_to_be_frozen(step):
    assert frozen_arguments(jax.make_jaxpr(step)({"a": X}, 0.1)) == set()


# The parameters that one step of a `shard_map` over "i" returns, and whether these drift apart on the devices.
DRIFTS = {
    "of each device": (lambda p, g: p - 0.1 * g, True),
    "of each device, in a loop": (lambda p, g: lax.fori_loop(0, 3, lambda _, p: p - 0.1 * jnp.sin(g), p), True),
    "of each device, after a mean of the others": (lambda p, g: p - lax.pmean(0.1, "i") * g, True),
    "mean": (lambda p, g: p - 0.1 * lax.pmean(g, "i"), False),
    "mean, in a loop": (lambda p, g: lax.fori_loop(0, 3, lambda _, p: p - 0.1 * lax.psum(g, "i"), p), False),
    "gathered": (lambda p, g: p - 0.1 * lax.all_gather(g, "i").sum(0), False),
    "largest": (lambda p, g: p - 0.1 * lax.pmax(g, "i"), False),
    "of no device": (lambda p, g: p * 0.9, False),
}


@pytest.mark.parametrize(("step", "drifts"), DRIFTS.values(), ids=DRIFTS)
def test_parameters_to_which_each_device_adds_its_own_gradient_drift_apart(step, drifts):
    def whole(p, x):
        return step(p["a"], jax.grad(lambda a: jnp.sum(jnp.sin(a * x)))(p["a"]))

    x = np.ones((2, 3), np.float32)
    of_devices = on_devices(whole, "i", (PartitionSpec(), PartitionSpec("i")), PartitionSpec())
    assert drifting_arguments(jax.make_jaxpr(jax.jit(of_devices))({"a": X}, x)) == ({0} if drifts else set())


def test_a_part_of_the_parameters_on_each_device_may_differ():
    of_devices = on_devices(lambda p, x: p - 0.1 * x, "i", (PartitionSpec("i"),) * 2, PartitionSpec("i"))
    assert drifting_arguments(jax.make_jaxpr(of_devices)(X[:2], X[:2])) == set()
