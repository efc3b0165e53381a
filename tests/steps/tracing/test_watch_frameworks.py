"""`watch` on the steps of neural-network libraries, jitted by their own `jit`."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from watched import copies, same_bytes, started, watch, with_numbers

from treeviz.steps.tracing.watch import CannotWatch

rng = np.random.default_rng(0)
# as many bytes as no result has, so that none is put in their place
x, y = jax.device_put((rng.normal(size=(9, 3)), rng.normal(size=(9, 2))))


# --- Equinox ---


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize("donate", ["none", pytest.param("all", marks=pytest.mark.optimized), "all-except-first"])
def test_an_equinox_step_shows_the_models_gradients(donate, seen):
    eqx = pytest.importorskip("equinox")
    optax = pytest.importorskip("optax")
    model = with_numbers(eqx.filter_eval_shape(lambda: eqx.nn.MLP(3, 2, 8, 1, key=jax.random.key(0))))
    optimizer = optax.sgd(1e-2, momentum=0.9)
    start = model, started(optimizer.init, eqx.filter(model, eqx.is_array))

    def loss(model, x, y):
        return jnp.mean((jax.vmap(model)(x) - y) ** 2)

    @eqx.filter_jit(donate=donate)
    def step(state, x, y):
        model, opt_state = state
        value, gradients = eqx.filter_value_and_grad(loss)(model, x, y)
        updates, opt_state = optimizer.update(gradients, opt_state, model)
        return (eqx.apply_updates(model, updates), opt_state), value

    def fresh():
        return copies((start, x, y))

    gradients = eqx.filter_jit(eqx.filter_grad(loss))(model, x, y)
    watched = watch(step, seen)
    mine, yours = fresh(), fresh()
    after, expected = watched(*mine), step(*yours)
    seen.check(gradients)
    assert seen.paths() == tuple(f".layers[{i}].{name}" for i in range(2) for name in ("weight", "bias"))
    assert same_bytes(*(eqx.filter(tree, eqx.is_array) for tree in (after, expected)))
    arrays = [eqx.filter(tree, eqx.is_array) for tree in (mine, yours)]
    deleted = [[leaf.is_deleted() for leaf in jax.tree.leaves(tree)] for tree in arrays]
    assert deleted[0] == deleted[1]
    assert any(deleted[0]) == (donate == "all")
    assert watched.trouble == ""


def test_an_equinox_steps_methods_stay(seen):
    eqx = pytest.importorskip("equinox")
    step = eqx.filter_jit(lambda model, x: eqx.filter_grad(lambda m: jnp.sum(m(x[0])))(model))
    model = with_numbers(eqx.filter_eval_shape(lambda: eqx.nn.Linear(3, 2, key=jax.random.key(0))))
    watched = watch(step, seen)
    with pytest.warns(RuntimeWarning, match="nothing is measured when that is compiled and called"):
        assert watched.lower(model, x).as_text() == step.lower(model, x).as_text()
    watched(model, x)
    assert seen.steps == [0]
    with pytest.raises(CannotWatch, match="the step is compiled ahead of time"):
        watch(step.lower(model, x).compile(), seen)


@pytest.mark.optimized
def test_exact_leaves_an_equinox_step_as_it_is(seen):
    eqx = pytest.importorskip("equinox")
    model = with_numbers(eqx.filter_eval_shape(lambda: eqx.nn.Linear(3, 2, key=jax.random.key(0))))
    gradient = eqx.filter_jit(eqx.filter_grad(lambda m: jnp.sum(jax.vmap(m)(x) ** 2)))

    @eqx.filter_jit(donate="all-except-first")
    def step(x, model):
        return eqx.apply_updates(model, jax.tree.map(lambda g: -g, gradient(model)))

    expected = step(x, copies(model))
    true = gradient(model)
    assert same_bytes(watch(step, seen, exact=True)(x, model), expected)
    seen.check(true)


# --- Flax ---


def close(left, right):
    return all(map(functools.partial(np.allclose, rtol=1e-5), jax.tree.leaves(left), jax.tree.leaves(right)))


def nnx_model():
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(3, 8, rngs=rngs)
            self.norm = nnx.BatchNorm(8, rngs=rngs)
            self.last = nnx.Linear(8, 2, rngs=rngs)

        def __call__(self, x):
            return self.last(nnx.relu(self.norm(self.first(x))))

    state = with_numbers(nnx.state(model := nnx.eval_shape(lambda: Model(nnx.Rngs(0)))))
    nnx.update(model, state)
    return model


def nnx_loss(model, x, y):
    return jnp.mean((model(x) - y) ** 2)


def nnx_gradients(model, x, y):
    from flax import nnx

    return nnx.jit(nnx.grad(nnx_loss))(model, x, y)


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize(
    ("options", "exact"),
    [({"graph": False}, False), ({"donate_argnums": (0, 1)}, False), ({"donate_argnums": (0, 1)}, True)],
    ids=["tree", "donated", "exact"],
)
def test_an_nnx_step_shows_the_models_gradients_and_changes_the_model_as_before(options, exact, seen):
    nnx = pytest.importorskip("flax.nnx")
    optax = pytest.importorskip("optax")

    @functools.partial(nnx.jit, **options)
    def step(model, optimizer, x, y):
        value, gradients = nnx.value_and_grad(nnx_loss)(model, x, y)
        optimizer.update(model, gradients)
        return value

    model, other = nnx_model(), nnx_model()
    optimizers = [nnx.Optimizer(m, optax.sgd(1e-2, momentum=0.9), wrt=nnx.Param) for m in (model, other)]
    watched = watch(step, seen, exact=exact)
    for i in range(3):
        gradients = nnx_gradients(nnx.clone(model), x, y)
        mine, yours = watched(model, optimizers[0], x, y), step(other, optimizers[1], x, y)
        # A moment of the batch norm's scale differs in its last digit: XLA rounds where the gradient ends another way.
        states = [nnx.state(tree) for tree in (model, other, *optimizers)]
        same = same_bytes if exact else close
        assert same(mine, yours) and same(states[0], states[1]) and same(states[2], states[3])
        np.testing.assert_allclose(
            seen.norms(at=i)[1:], [np.linalg.norm(g) for g in jax.tree.leaves(gradients)][1:], rtol=1e-4
        )  # that of the bias before the batch norm is zero, but for rounding
    assert seen.paths() == (
        *("['first']['bias']", "['first']['kernel']", "['last']['bias']", "['last']['kernel']"),
        *("['norm']['bias']", "['norm']['scale']"),
    )
    assert watched.trouble == ""
    assert watched.watches["grads"].owner == "model"


def test_a_step_with_a_cached_model_is_refused_with_the_order_that_works(seen):
    nnx = pytest.importorskip("flax.nnx")
    if not hasattr(nnx, "set_graph_updates"):
        pytest.skip("the modes of this Flax have other names")

    @nnx.jit(graph=True, graph_updates=True)
    def step(model, x, y):
        gradients = nnx.grad(nnx_loss)(model, x, y)
        nnx.update(model, jax.tree.map(lambda p, g: p - 0.1 * g, nnx.state(model, nnx.Param), gradients))

    model = nnx_model()
    with nnx.set_graph_mode(True), nnx.set_graph_updates(True):
        with pytest.raises(CannotWatch, match=r"nnx\.cached_partial\(inspector\.watch\(step\), model, \.\.\.\)"):
            watch(nnx.cached_partial(step, model), seen)
        cached = nnx.cached_partial(watch(step, seen), model)
    for _ in range(2):
        gradients = nnx_gradients(nnx.clone(model), x, y)
        cached(x, y)
        np.testing.assert_allclose(
            seen.norms()[1:], [np.linalg.norm(g) for g in jax.tree.leaves(gradients)][1:], rtol=1e-4
        )


def test_a_linen_train_state_shows_the_gradients_of_its_parameters(seen):
    linen = pytest.importorskip("flax.linen")
    optax = pytest.importorskip("optax")
    from flax.training.train_state import TrainState

    model = linen.Dense(2)
    params = {"bias": np.zeros(2, np.float32), "kernel": rng.normal(size=(3, 2)).astype(np.float32)}
    tx = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-2))

    def loss(params, x, y):
        return jnp.mean((model.apply({"params": params}, x) - y) ** 2), {"n": 1.0}

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state, x, y):
        (value, _), gradients = jax.value_and_grad(loss, has_aux=True)(state.params, x, y)
        return state.apply_gradients(grads=gradients), value

    mine, yours = (TrainState.create(apply_fn=model.apply, params=jax.device_put(params), tx=tx) for _ in range(2))
    gradients_of = jax.jit(jax.grad(loss, has_aux=True))
    watched = watch(step, seen)
    for i in range(3):
        gradients = gradients_of(mine.params, x, y)[0]
        mine, yours = watched(mine, x, y)[0], step(yours, x, y)[0]
        seen.check(gradients, at=i)
    assert same_bytes(mine, yours)
    assert watched.watches["grads"].owner == "state.params"
    assert seen.paths() == ("['bias']", "['kernel']")


@pytest.mark.optimized
def test_an_optax_chain_with_schedule_and_clipping_stays_as_it_is(seen):
    optax = pytest.importorskip("optax")
    tx = optax.chain(optax.clip(0.01), optax.adam(optax.cosine_decay_schedule(1e-2, 10)))
    params = jax.device_put({"w": np.ones((3, 2), np.float32)})

    def loss(params):
        return jnp.mean((x @ params["w"] - y) ** 2)

    @jax.jit
    def step(params, state):
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    watched = watch(step, seen)
    mine = yours = params, started(tx.init, params)
    gradients_of = jax.jit(jax.grad(loss))
    first = gradients_of(params)
    for i in range(4):
        gradients = gradients_of(mine[0])
        mine, yours = watched(*mine), step(*yours)
        seen.check(gradients, at=i)
    assert same_bytes(mine, yours)
    np.testing.assert_allclose(seen.norms(at=0)[0], np.linalg.norm(first["w"]), rtol=1e-6)
