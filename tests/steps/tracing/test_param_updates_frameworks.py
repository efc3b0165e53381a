"""`watch(updates=True)` on steps of optax, Flax and Equinox: what it measures is what they change."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from watched import copies, same_bytes, started, true_norms, watch, with_numbers

rng = np.random.default_rng(0)
x, y = jax.device_put((rng.normal(size=(9, 3)), rng.normal(size=(9, 2))))
NAMES = ["grads", "params", "updates"]


def norms_of_change(old, new):
    return true_norms(jax.tree.map(lambda a, b: np.asarray(b, np.float64) - np.asarray(a, np.float64), old, new))


def check(seen, old, new, at=-1):
    assert [name for name in seen.names(at) if name not in ("received", "losses of the step")] == NAMES
    np.testing.assert_allclose(seen.norms("params", at), true_norms(old), rtol=2e-5)
    np.testing.assert_allclose(seen.norms("updates", at), norms_of_change(old, new), rtol=2e-5)


def loss(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["w"] + params["b"][None]) - y) ** 2)


def optimizers():
    optax = pytest.importorskip("optax")
    schedule = optax.warmup_cosine_decay_schedule(1e-3, 1e-2, 3, 10)
    return {
        "sgd": optax.sgd(0.1),
        "momentum": optax.sgd(0.1, momentum=0.9, nesterov=True),
        "undamped": optax.chain(optax.trace(1.0), optax.scale(-1.0)),
        "adam": optax.adam(1e-2),
        "adamw": optax.adamw(schedule, weight_decay=0.1),
        "decay in the gradients": optax.chain(optax.add_decayed_weights(0.5), optax.adam(1e-2)),
        "clipped": optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-2)),
        "lamb": optax.lamb(1e-2),
        "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=2),
        "every second": optax.MultiSteps(optax.adam(1e-2), 2),
        "ema of updates": optax.chain(optax.adam(1e-2), optax.ema(0.9)),
        "lookahead of scale": optax.chain(optax.scale_by_rss(), optax.scale(-0.1)),
        "finite only": optax.apply_if_finite(optax.adam(1e-2), 3),
        "part": optax.multi_transform({"a": optax.adam(1e-2), "b": optax.set_to_zero()}, {"w": "a", "b": "b"}),
    }


PRECISE = ("momentum", "finite only")  # for these two, bits are compared as XLA compiles for a user
OPTIMIZERS = [
    *("sgd", "undamped", "adamw", "decay in the gradients", "clipped", "lamb", "adafactor", "every second"),
    *("ema of updates", "lookahead of scale", "part"),
]

SAID = {"every second": "of each call", "clipped": "is the gradient before clipping"}


@pytest.mark.parametrize(
    ("order", "name"),
    [
        *(pytest.param("params first", name, marks=pytest.mark.optimized) for name in PRECISE),
        *(("params first", name) for name in OPTIMIZERS),
        *(("state first", name) for name in ("momentum", "undamped", "adam", "every second")),
    ],
)
def test_whatever_the_optimizer_the_updates_are_what_it_adds(name, order, seen):
    optax = pytest.importorskip("optax")
    tx = optimizers()[name]

    def step(params, state, average):
        updates, state = tx.update(jax.grad(loss)(params, x, y), state, params)
        params = optax.apply_updates(params, updates)
        if order == "params first":
            return params, state, average
        return optax.incremental_update(params, average, 0.1), state, params

    step = jax.jit(step)
    params = jax.device_put({"w": rng.normal(size=(3, 2)), "b": np.ones(2)})
    state, average = started(tx.init, params), params
    watched = watch(step, seen, updates=True)
    for _ in range(3):
        got = watched(params, state, average)
        assert name not in PRECISE or same_bytes(got, step(params, state, average))
        new, average = (got[0], got[2]) if order == "params first" else (got[2], got[0])
        check(seen, params, new)
        params, state = new, got[1]
    assert watched.trouble == "" and len(watched.notes) == (name in SAID)
    assert all(SAID[name] in note for note in watched.notes)


@pytest.mark.parametrize("donated", [(), pytest.param((0,), marks=pytest.mark.optimized)], ids=["kept", "donated"])
def test_of_a_linen_train_state_the_parameters_are_measured(donated, seen):
    linen = pytest.importorskip("flax.linen")
    optax = pytest.importorskip("optax")
    from flax.training.train_state import TrainState

    class WithAverage(TrainState):
        average: object = None

    model = linen.Dense(2)
    params = {"bias": np.zeros(2, np.float32), "kernel": rng.normal(size=(3, 2)).astype(np.float32)}

    def of(params):
        return jnp.mean((model.apply({"params": params}, x) - y) ** 2)

    @functools.partial(jax.jit, donate_argnums=donated)
    def step(state):
        value, gradients = jax.value_and_grad(of)(state.params)
        state = state.apply_gradients(grads=gradients)
        return state.replace(average=optax.incremental_update(state.params, state.average, 0.4)), value

    mine, yours = (
        WithAverage.create(
            apply_fn=model.apply,
            params=jax.device_put(params),
            tx=optax.adamw(1e-2),
            average=jax.device_put(params),
        )
        for _ in range(2)
    )
    watched = watch(step, seen, updates=True)
    for _ in range(3):
        old = jax.tree.map(lambda p: np.array(p, copy=True), mine.params)
        (mine, _), (yours, _) = watched(mine), step(yours)
        check(seen, old, mine.params)
    assert same_bytes(mine, yours)
    assert watched.watches["updates"].owner == "state.params"


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize("donate", ["none", "all"])
def test_of_an_equinox_step_the_models_arrays_are_measured(donate, seen):
    eqx = pytest.importorskip("equinox")
    optax = pytest.importorskip("optax")
    model = with_numbers(eqx.filter_eval_shape(lambda: eqx.nn.MLP(3, 2, 8, 1, key=jax.random.key(0))))
    optimizer = optax.sgd(1e-2, momentum=0.9)

    @eqx.filter_jit(donate=donate)
    def step(model, opt_state, x, y):
        of = eqx.filter_value_and_grad(lambda model, x, y: jnp.mean((jax.vmap(model)(x) - y) ** 2))
        value, gradients = of(model, x, y)
        updates, opt_state = optimizer.update(gradients, opt_state, model)
        return eqx.apply_updates(model, updates), opt_state, value

    state = started(optimizer.init, eqx.filter(model, eqx.is_array))
    watched = watch(step, seen, updates=True)
    for _ in range(3):
        old = jax.tree.map(lambda p: np.array(p, copy=True), eqx.filter(model, eqx.is_array))
        model, state, _ = watched(model, state, *copies((x, y)))
        check(seen, old, eqx.filter(model, eqx.is_array))
    assert watched.trouble == "" and watched.notes == ()
    assert seen.paths("updates") == tuple(f".layers[{i}].{name}" for i in range(2) for name in ("weight", "bias"))


@pytest.mark.parametrize(("name", "options"), [("momentum", {"graph": False}), ("adamw", {})], ids=str)
def test_of_an_nnx_step_the_models_parameters_are_measured(name, options, seen):
    nnx = pytest.importorskip("flax.nnx")
    tx = optimizers()[name]

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(3, 8, rngs=rngs)
            self.last = nnx.Linear(8, 2, rngs=rngs)

        def __call__(self, x):
            return self.last(nnx.tanh(self.first(x)))

    @functools.partial(nnx.jit, **options)
    def step(model, optimizer, x, y):
        value, gradients = nnx.value_and_grad(lambda m: jnp.mean((m(x) - y) ** 2))(model)
        optimizer.update(model, gradients)
        return value

    numbers = with_numbers(nnx.state(model := nnx.eval_shape(lambda: Model(nnx.Rngs(0)))))
    nnx.update(model, numbers)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    watched = watch(step, seen, updates=True)
    for _ in range(3):
        old = jax.tree.map(lambda p: np.array(p, copy=True), jax.tree.leaves(nnx.state(model, nnx.Param)))
        watched(model, optimizer, x, y)
        check(seen, old, jax.tree.leaves(nnx.state(model, nnx.Param)))
    assert watched.trouble == "" and watched.notes == ()
    assert watched.watches["updates"].forward[-1].startswith("['last']")
