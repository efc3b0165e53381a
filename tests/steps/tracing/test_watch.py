"""`watch`: the gradients inside a jitted step, seen and measured, and the step as it was."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import threading
import time
import weakref
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import grad, value_and_grad
from jax.experimental import io_callback
from watched import (
    Recorder,
    beside,
    copies,
    loss_fn,
    mlp_data,
    same_bytes,
    true_norms,
    update_mlp,
)

from treeviz.steps.statistics import FULL, unpack
from treeviz.steps.tracing import instrumented
from treeviz.steps.tracing.jitted import tap
from treeviz.steps.tracing.verify import compare
from treeviz.steps.tracing.watch import CannotWatch, watch

pytestmark = [pytest.mark.oldest_jax, pytest.mark.gpu]

made_before = jax.value_and_grad(loss_fn)
grads_of_loss = jax.jit(jax.grad(loss_fn))


x, y = mlp_data()


def descend(params, gradients):
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradients)


def test_the_documentations_mlp_shows_its_gradients_at_every_step_unchanged(seen, mlp):
    update = watch(jax.jit(update_mlp), seen)
    params = mlp
    for step in range(5):
        gradients = grads_of_loss(params, x, y)
        params = update(params, x, y)
        seen.check(gradients)
        assert seen.steps[-1] == step
    assert seen.paths() == tuple(f"[{i}]['{name}']" for i in range(2) for name in ("biases", "weights"))
    assert update.watches["grads"].owner == "params"
    assert update.trouble == ""


@jax.custom_jvp
def with_own_derivative(p, x, y):
    return descend(p, jax.grad(loss_fn)(p, x, y))


with_own_derivative.defjvp(lambda primals, tangents: (with_own_derivative(*primals), tangents[0]))

STEPS = {
    "grad": lambda p, x, y: descend(p, jax.grad(loss_fn)(p, x, y)),
    "grad imported by name": lambda p, x, y: descend(p, grad(loss_fn)(p, x, y)),
    "value_and_grad imported by name": lambda p, x, y: descend(p, value_and_grad(loss_fn)(p, x, y)[1]),
    "value_and_grad made before": lambda p, x, y: descend(p, made_before(p, x, y)[1]),
    "gradients in a jit of their own": lambda p, x, y: descend(p, grads_of_loss(p, x, y)),
    "has_aux": lambda p, x, y: descend(p, jax.grad(lambda p: (loss_fn(p, x, y), {"n": x}), has_aux=True)(p)[0]),
    "vjp": lambda p, x, y: descend(p, jax.vjp(lambda p: loss_fn(p, x, y), p)[1](jnp.ones(()))[0]),
    "a copy of the parameters": lambda p, x, y: descend(p, jax.grad(loss_fn)(jax.tree.map(lambda p: p + 0.0, p), x, y)),
    "checkpoint": lambda p, x, y: descend(p, jax.grad(jax.checkpoint(loss_fn))(p, x, y)),
    "in a checkpoint": jax.checkpoint(lambda p, x, y: descend(p, jax.grad(loss_fn)(p, x, y))),
    "in a function with a derivative of its own": with_own_derivative,
    "a taken branch": lambda p, x, y: jax.lax.cond(
        x[0, 0] < 0, lambda p: descend(p, jax.grad(loss_fn)(p, x, y)), lambda p: p, p
    ),
    "a gradient of a gradient": lambda p, x, y: descend(
        p, jax.grad(lambda p: loss_fn(p, x, y) + 0 * jnp.sum(jax.grad(lambda x: loss_fn(p, x, y))(x) ** 2))(p)
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_gradients_are_seen_however_they_are_taken(name, seen, layer, monkeypatch):
    step = jax.jit(STEPS[name])
    beside(step, monkeypatch)
    watched = watch(step, seen)
    after, plain = watched(layer, x, y)
    assert watched.trouble == ""
    seen.check(grads_of_loss(layer, x, y))
    assert seen.paths() == ("[0]['biases']", "[0]['weights']")
    assert same_bytes(after, plain)


def test_a_step_that_was_compiled_before_is_watched_and_not_compiled_again(seen, layer):
    step = jax.jit(lambda p, x, y: update_mlp(p, x, y))
    step(layer, x, y)
    grads_of_loss(layer, x, y)
    watched = watch(step, seen)
    watched(layer, x, y)
    seen.check(grads_of_loss(layer, x, y))
    assert step._cache_size() == 1


def test_the_gradients_of_a_branch_that_is_not_taken_have_no_number(seen, layer):
    step = jax.jit(STEPS["a taken branch"])
    watch(step, seen)(layer, x + 10, y)
    assert np.isnan(seen.norms()).all()


def test_two_networks_of_one_shape_are_told_apart(seen, layer):
    @jax.jit
    def step(generator, discriminator, x, y):
        of_generator = jax.grad(lambda g: loss_fn(g, x, y))(generator)
        of_discriminator = jax.grad(lambda d: loss_fn(d, x, -y))(discriminator)
        return descend(generator, of_generator), descend(discriminator, of_discriminator)

    other = jax.tree.map(lambda p: p * 0.5, layer)
    watched = watch(step, seen)
    watched(layer, other, x, y)
    seen.check(grads_of_loss(layer, x, y), "grads of generator")
    seen.check(grads_of_loss(other, x, -y), "grads of discriminator")
    assert {name: w.owner for name, w in watched.watches.items()} == {
        "grads of generator": "generator",
        "grads of discriminator": "discriminator",
    }


def test_micro_batches_written_out_have_a_name_each(seen, layer):
    @jax.jit
    def step(params, x, y):
        first, second = (jax.grad(loss_fn)(params, x[i::2], y[i::2]) for i in range(2))
        return descend(params, jax.tree.map(lambda a, b: (a + b) / 2, first, second))

    watch(step, seen)(layer, x, y)
    seen.check(grads_of_loss(layer, x[::2], y[::2]), "grads")
    seen.check(grads_of_loss(layer, x[1::2], y[1::2]), "grads #2")


def test_the_gradients_that_train_come_first_and_those_that_only_weigh_them_are_named_after_their_loss(seen):
    """As in a PINN: the gradients of two terms have norms, the inverses of which weigh the terms of the loss."""
    params, t = {"b": jnp.ones(1), "w": jnp.arange(1.0, 4.0)}, jnp.arange(3.0)

    def residual(params, t):
        return jnp.sum((params["w"] * t - params["b"]) ** 2)

    def boundary(params):
        return jnp.sum(params["w"] ** 3)

    def norm(tree):
        return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))

    @jax.jit
    def step(params, t):
        by = 1 / norm(jax.grad(residual)(params, t)), 1 / norm(jax.grad(boundary)(params))
        grads = jax.grad(lambda p: by[0] * residual(p, t) + by[1] * boundary(p))(params)
        return descend(params, grads), norm(jax.grad(residual, 1)(params, t))

    watch(step, seen)(params, t)
    assert seen.names() == ["grads", "grads (boundary)", "grads (residual)", "grads (residual) of t"]
    terms = jax.jit(lambda params, t: (jax.grad(residual)(params, t), jax.grad(boundary)(params)))(params, t)
    seen.check(terms[0], "grads (residual)")
    seen.check(terms[1], "grads (boundary)")
    by = [np.linalg.norm(true_norms(term)) for term in terms]
    seen.check(jax.tree.map(lambda a, b: np.array(a) / by[0] + np.array(b) / by[1], *terms))


def test_parameters_deep_in_an_argument_are_named_by_their_place(seen, layer):
    @jax.jit
    def step(state, batch):
        return {
            "step": state["step"] + 1,
            "params": descend(state["params"], jax.grad(loss_fn)(state["params"], *batch)),
        }

    watched = watch(step, seen)
    watched({"step": 0, "params": layer}, batch=(x, y))
    seen.check(grads_of_loss(layer, x, y))
    assert watched.watches["grads"].owner == "state['params']"


def test_low_precision_copies_and_a_scaled_loss_are_the_gradients_of_the_parameters(seen, layer):
    scale = 1024.0

    def scaled_loss(params, x, y):
        return loss_fn(params, x.astype(jnp.bfloat16), y.astype(jnp.bfloat16)).astype(jnp.float32) * scale

    @jax.jit
    def step(params, x, y):
        low = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
        gradients = jax.grad(scaled_loss)(low, x, y)
        return descend(params, jax.tree.map(lambda g: g.astype(jnp.float32) / scale, gradients))

    watched = watch(step, seen)
    watched(layer, x, y)
    low = jax.tree.map(lambda p: p.astype(jnp.bfloat16), layer)
    seen.check(jax.jit(jax.grad(scaled_loss))(low, x, y))
    assert watched.watches["grads"].owner == "params"
    assert set(watched.watches["grads"].source.dtypes) == {"bfloat16"}


def test_the_members_of_an_ensemble_have_a_row_each(seen, layer):
    ensemble = jax.tree.map(lambda p: np.stack([p, p * 0.5, -p]), layer)
    step = jax.jit(jax.vmap(update_mlp, in_axes=(0, None, None)))
    watched = watch(step, seen)
    after = watched(ensemble, x, y)
    members = [jax.tree.map(lambda p: p[i], ensemble) for i in range(3)]
    np.testing.assert_allclose(seen.norms(), [true_norms(grads_of_loss(m, x, y)) for m in members], rtol=2e-5)
    assert [axis[:2] for axis in watched.watches["grads"].axes] == [("member", 3)]
    assert same_bytes(after, step(ensemble, x, y))


def test_a_float0_or_an_integer_has_its_row_and_no_number(seen):
    @jax.jit
    def step(params, x):
        gradients = jax.grad(lambda p: jnp.sum(p["w"] * x) ** 2, allow_int=True)(params)
        return {"n": params["n"] + 1, "w": params["w"] - gradients["w"]}

    params = {"n": jnp.arange(3), "w": jnp.ones(4)}
    watch(step, seen)(params, jnp.arange(4.0))
    assert seen.paths() == ("['n']", "['w']")
    np.testing.assert_allclose(seen.norms(), [np.nan, 12 * np.linalg.norm(np.arange(4.0))], rtol=1e-6)


def test_every_and_heavy_every_choose_the_steps(seen, layer):
    watched = watch(jax.jit(update_mlp), seen, every=2, heavy_every=3, statistics=FULL)
    for _ in range(7):
        watched(layer, x, y)
    assert seen.steps == [0, 2, 3, 4, 6]
    assert ["histogram" in m.statistics for m in seen.measurements] == [True, False, True, False, True]
    numbers = unpack(np.array(seen.measurements[1].packed["grads"]), FULL)
    gradients = jax.tree.leaves(grads_of_loss(layer, x, y))
    np.testing.assert_allclose(numbers["mean"], [np.mean(np.float64(g)) for g in gradients], rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(numbers["zeros"], [np.sum(np.array(g) == 0) for g in gradients])


def test_neither_every_nor_heavy_every_need_divide_the_other(seen, layer):
    watched = watch(jax.jit(update_mlp), seen, every=4, heavy_every=6, statistics=FULL)
    for _ in range(13):
        watched(layer, x, y)
    assert seen.steps == [0, 4, 6, 8, 12] and watched.newest == 12
    assert ["histogram" in m.statistics for m in seen.measurements] == [True, False, True, False, True]


@pytest.mark.parametrize("around", [lambda step: step, jax.jit], ids=["plain", "in jit"])
def test_of_several_losses_of_all_networks_only_the_gradients_that_are_used_have_numbers(seen, around):
    params = {"actor": jnp.arange(1.0, 4.0), "critic": jnp.arange(2.0, 4.0), "held": jnp.ones(2)}
    losses = {
        "actor": lambda p: jnp.sum(p["actor"] ** 2) * p["critic"][0],
        "critic": lambda p: jnp.sum(p["critic"] ** 3),
    }

    @jax.jit
    @around
    def step(params):
        grads = {name: jax.grad(loss)(params)[name] for name, loss in losses.items()}
        return {name: p - grads[name] if name in grads else p for name, p in params.items()}

    after = watch(step, seen)(params)
    assert same_bytes(after, step(params))
    norms = [seen.norms(name) for name in seen.names()]
    of_actor, of_critic = (np.linalg.norm(jax.jit(jax.grad(losses[name]))(params)[name]) for name in losses)
    # That of "held" is used by nothing either, but no other gradient belongs to it: it may have been forgotten.
    np.testing.assert_allclose(norms, [[of_actor, np.nan, 0], [np.nan, of_critic, 0]], rtol=1e-6)


def test_what_is_not_inspected_runs_the_step_itself(layer, seen):
    step = jax.jit(lambda p, x, y: update_mlp(p, x, y))
    watched = watch(step, seen, every=10)
    watched(layer, x, y)
    assert step._cache_size() == 0
    watched(layer, x, y)
    assert step._cache_size() == 1
    assert seen.steps == [0]


class Compiles:
    """Counts the programs that are compiled and the functions that are traced."""

    def __init__(self):
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._on)

    def _on(self, event, duration, **_):
        self.count += event == "/jax/core/compile/backend_compile_duration"


@pytest.fixture(scope="module")
def compiles():
    return Compiles()


def test_one_more_program_is_compiled_for_each_signature_and_none_after(seen, layer, compiles):
    traced = []

    @jax.jit
    def step(params, x, y):
        traced.append(x.shape)
        return update_mlp(params, x, y)

    watched = watch(step, seen, every=2)
    short = x[:8], y[:8]
    before = compiles.count
    for _ in range(6):
        watched(layer, x, y)
    jax.block_until_ready(seen.measurements)
    assert compiles.count - before == 2
    assert len(traced) == 2
    for _ in range(6):
        watched(layer, *short)
    assert compiles.count - before == 4
    assert traced == [x.shape] * 2 + [x[:8].shape] * 2


def test_donated_arguments_are_deleted_as_the_step_deletes_them(seen, layer):
    step = jax.jit(update_mlp, donate_argnums=0)
    watched = watch(step, seen)
    gradients = grads_of_loss(layer, x, y)
    mine, yours = copies(layer), copies(layer)
    after, expected = watched(mine, x, y), step(yours, x, y)
    assert [p.is_deleted() for p in jax.tree.leaves(mine)] == [p.is_deleted() for p in jax.tree.leaves(yours)]
    assert all(p.is_deleted() for p in jax.tree.leaves(mine))
    assert not x.is_deleted()
    assert same_bytes(after, expected)
    seen.check(gradients)


def test_no_buffer_is_kept_alive(layer):
    watched = watch(jax.jit(update_mlp), lambda *_: None)
    after = watched(copies(layer), x, y)
    alive = [weakref.ref(p) for p in jax.tree.leaves(after)]
    del after
    for _ in range(200):  # the runtime lets go of them a moment later
        gc.collect()
        if not any(ref() is not None for ref in alive):
            return
        time.sleep(0.05)
    pytest.fail(f"{sum(ref() is not None for ref in alive)} arrays are kept")


def test_no_tracer_leaks(layer, seen):
    with jax.checking_leaks():
        watch(jax.jit(update_mlp), seen)(layer, x, y)
        watch(jax.jit(STEPS["in a checkpoint"]), seen)(layer, x, y)
    assert len(seen.steps) == 2


def test_static_arguments_keywords_and_defaults_stay(seen, layer):
    @partial(jax.jit, static_argnums=(3,), static_argnames=("flavour",))
    def step(params, x, y, rate=0.5, *, flavour="plain"):
        assert type(rate) is float and type(flavour) is str
        return jax.tree.map(lambda p, g: p - rate * g, params, jax.grad(loss_fn)(params, x, y))

    watched = watch(step, seen)
    for call in (
        lambda f: f(layer, x, y),
        lambda f: f(layer, x, y, 0.25),
        lambda f: f(layer, y=y, x=x, flavour="other"),
    ):
        assert same_bytes(call(watched), call(step))
        seen.check(grads_of_loss(layer, x, y))
    assert watched.trouble == ""
    assert len(seen.steps) == 3


def test_no_search_for_cycles_goes_through_a_trace_while_it_is_reaped(monkeypatch, seen, layer):
    searches, reap_ = [], instrumented.reap

    def reap(*args, **kwargs):
        searches.append(gc.isenabled())
        return reap_(*args, **kwargs)

    monkeypatch.setattr(instrumented, "reap", reap)
    watch(jax.jit(update_mlp), seen)(layer, x, y)
    assert searches == [False] and gc.isenabled()


def test_name_signature_and_the_methods_of_the_step_stay(seen, layer):
    step = jax.jit(update_mlp, inline=True, keep_unused=True)
    watched = watch(step, seen)
    assert watched.__name__ == "update_mlp"
    assert watched.__wrapped__ is update_mlp
    assert inspect.signature(watched) == inspect.signature(step)
    with pytest.warns(RuntimeWarning, match=r"`update_mlp`\.lower returns the plain step: nothing is measured"):
        assert watched.lower(layer, x, y).as_text() == step.lower(layer, x, y).as_text()
    assert str(watched.trace(layer, x, y).jaxpr) == str(step.trace(layer, x, y).jaxpr)
    assert watched.eval_shape(layer, x, y) == step.eval_shape(layer, x, y)
    watched(layer, x, y)
    watched.clear_cache()
    assert seen.steps == [0]


def test_a_step_that_is_a_method_is_watched(seen, layer):
    class Trainer:
        rate = 0.5

        @partial(jax.jit, static_argnums=0)
        def step(self, params, x, y):
            return jax.tree.map(lambda p, g: p - self.rate * g, params, jax.grad(loss_fn)(params, x, y))

    trainer = Trainer()
    after = watch(trainer.step, seen)(layer, x, y)
    seen.check(grads_of_loss(layer, x, y))
    assert same_bytes(after, trainer.step(layer, x, y))


def test_a_partial_of_a_step_is_watched(seen, layer):
    step = functools.partial(jax.jit(update_mlp), x=x, y=y)
    assert same_bytes(watch(step, seen)(layer), step(layer))
    seen.check(grads_of_loss(layer, x, y))


def test_exact_runs_the_untouched_step(seen, layer):
    step = jax.jit(lambda p, x, y: update_mlp(p, x, y), donate_argnums=0)
    watched = watch(step, seen, exact=True)
    gradients = grads_of_loss(layer, x, y)
    mine = copies(layer)
    after = watched(mine, x, y)
    seen.check(gradients)
    assert step._cache_size() == 1
    assert all(p.is_deleted() for p in jax.tree.leaves(mine))
    assert same_bytes(after, step(copies(layer), x, y))


@pytest.mark.optimized
def test_verify_compares_byte_for_byte_and_leaves_the_arguments_alone(mlp, seen):
    watched = watch(jax.jit(update_mlp, donate_argnums=0), seen)
    verification = watched.verify(mlp, x, y)
    assert verification
    assert str(verification) == "The same bytes in all 4 leaves of 5 runs."
    assert not any(p.is_deleted() for p in jax.tree.leaves(mlp))
    assert seen.steps == []


def test_verify_says_which_leaves_differ():
    left = {"a": jnp.arange(4.0), "b": jnp.ones(3), "key": jax.random.key(1)}
    right = {"a": jnp.array([0.0, 1.0, 2.5, 3.0]), "b": jnp.ones(3), "key": jax.random.key(2)}
    verification = compare(left, right)
    assert not verification
    assert str(verification).startswith(
        "2 of 3 leaves differ:\n  ['a']: 1 of 4 elements differ, by 0.5 at most\n  ['key']: 1 of 2 elements"
    )
    assert "exact=True" in str(verification)


# --- what can go wrong ---


def test_an_ahead_of_time_compiled_step_is_refused_with_a_way_out(layer, seen):
    compiled = jax.jit(update_mlp).lower(layer, x, y).compile()
    with pytest.raises(
        CannotWatch, match=r"compiled ahead of time(.|\n)*return \.\.\., tv\.measure\(params=params, grads=grads\)"
    ):
        watch(compiled, seen)


def test_a_step_that_is_not_jitted_is_refused_with_a_way_out(seen):
    with pytest.raises(
        CannotWatch, match=r"`update_mlp` was not returned by jax\.jit(.|\n)*inspector\.watch\(jax\.jit\(step\)\)"
    ):
        watch(update_mlp, seen)
    with pytest.raises(CannotWatch, match="expected a jitted function, got int"):
        watch(3, seen)  # type: ignore[arg-type]


def test_a_step_without_gradients_runs_and_says_so_once(layer, seen):
    step = jax.jit(lambda params: jax.tree.map(lambda p: p + 1, params))
    watched = watch(step, seen)
    with pytest.warns(RuntimeWarning, match=r"this step computes no gradient(.|\n)*tv\.measure"):
        after = watched(layer)
    assert same_bytes(after, step(layer))
    watched(layer)
    assert "no gradient" in watched.trouble
    assert seen.steps == []


def test_gradients_that_cannot_be_led_out_leave_the_step_running(layer, seen, monkeypatch):
    from treeviz.steps.tracing import reap as reap_rules

    monkeypatch.setitem(reap_rules.RULES, "scan", None)
    step = jax.jit(lambda p: jax.lax.scan(lambda p, _: (update_mlp(p, x, y), None), p, None, length=3)[0])
    watched = watch(step, seen)
    with pytest.warns(RuntimeWarning, match="inside `scan`"):
        after = watched(layer)
    assert same_bytes(after, step(layer))


def test_an_error_of_the_step_is_the_users_own(layer, seen):
    watched = watch(jax.jit(update_mlp), seen)
    with pytest.raises(TypeError) as plain:
        jax.jit(update_mlp)(layer, x, "text")
    with pytest.raises(TypeError) as watched_error:
        watched(layer, x, "text")
    assert str(watched_error.value) == str(plain.value)
    assert "During" not in str(watched_error.value) and not isinstance(watched_error.value.__cause__, RuntimeError)
    watched(layer, x, y)
    assert seen.steps == [1]
    assert watched.trouble == ""


def test_a_step_that_fails_while_it_runs_has_its_effects_once(layer, seen):
    happened = []

    def log(loss, i):
        happened.append(int(i))
        if i == 1:
            raise OSError("the disk is full")

    def step(params, i):
        loss, gradients = value_and_grad(loss_fn)(params, x, y)
        io_callback(log, None, loss, i)
        return descend(params, gradients)

    watched = watch(jax.jit(step), seen)
    for i in range(3):
        with pytest.raises(jax.errors.JaxRuntimeError) if i == 1 else contextlib.nullcontext():
            jax.block_until_ready(watched(layer, i))
            jax.effects_barrier()
    assert happened == [0, 1, 2]
    assert watched.trouble == ""


def test_an_error_of_the_recorder_is_warned_of_once(layer):
    def record(measurement, step):
        raise ZeroDivisionError("a bug")

    watched = watch(jax.jit(update_mlp), record)
    with pytest.warns(RuntimeWarning, match="recording step 0 raised ZeroDivisionError: a bug"):
        watched(layer, x, y)
    watched(layer, x, y)


def test_ctrl_c_passes(layer):
    def record(measurement, step):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch(jax.jit(update_mlp), record)(layer, x, y)


def test_a_release_of_jax_that_moved_the_name_is_told_with_a_way_out(monkeypatch, seen, layer):
    from jax._src import api

    step = jax.jit(update_mlp)
    expected = step(layer, x, y)
    with monkeypatch.context() as patch:
        patch.setattr(api, "value_and_grad", lambda fun: fun)
        warning = rf"is not watched: jax {jax.__version__} has no .*value_and_grad(.|\n)*tv\.measure"
        with pytest.warns(RuntimeWarning, match=warning) as caught:
            watched = watch(step, seen)
        assert len(caught) == 1
    assert same_bytes(watched(layer, x, y), expected)
    assert seen.steps == []
    with pytest.raises(CannotWatch, match="has no"):
        watched.verify(layer, x, y)


def test_after_a_step_jax_is_as_it_was(layer, seen):
    from jax._src import api

    names = ["vjp", "_vjp", "_vjp3_bwd"]
    before = [getattr(api, name, None) for name in names]
    watch(jax.jit(update_mlp), seen)(layer, x, y)
    assert [getattr(api, name, None) for name in names] == before
    with pytest.raises(TypeError):
        watch(jax.jit(update_mlp), seen)(layer, x, "text")
    assert [getattr(api, name, None) for name in names] == before


def test_inside_another_program_the_step_is_plain_and_one_warning_says_what_to_watch(layer, seen):
    watched = watch(jax.jit(update_mlp), seen)
    with pytest.warns(RuntimeWarning, match=r"`update_mlp` is called inside another(.*)Watch the outer function"):
        after = jax.jit(lambda p: watched(p, x, y))(layer)
    assert same_bytes(after, jax.jit(lambda p: update_mlp(p, x, y))(layer))
    assert seen.steps == []
    jax.eval_shape(jax.grad(lambda p: sum(jnp.sum(leaf) for leaf in jax.tree.leaves(watched(p, x, y)))), layer)


@pytest.mark.parametrize("exact", [False, True])
def test_inside_a_watched_program_a_watched_step_is_seen_once(exact, layer, seen):
    inner = watch(jax.jit(update_mlp), Recorder(), exact=exact)
    watch(jax.jit(lambda p: jax.lax.scan(lambda p, _: (inner(p, x, y), None), p, length=3)), seen)(layer)
    assert seen.names() == ["grads"] and seen.norms().shape == (3, 2)
    np.testing.assert_allclose(seen.norms()[0], true_norms(grads_of_loss(layer, x, y)), rtol=2e-5)


def test_without_jit_the_gradients_are_seen_too(layer, seen):
    w = layer[0]["weights"]
    with jax.disable_jit():
        watch(jax.jit(lambda w: w - 0.1 * jax.grad(lambda w: jnp.sum(w**2))(w)), seen)(w)
    seen.check(2 * np.array(w))


@pytest.mark.parametrize(
    "flag", ["jax_debug_nans", "jax_debug_infs", "jax_enable_x64", "jax_check_tracer_leaks", "jax_debug_key_reuse"]
)
def test_under_a_flag_of_jax_the_numbers_are_the_same(flag, layer, seen):
    before = getattr(jax.config, flag)
    jax.config.update(flag, True)
    try:
        watched = watch(jax.jit(update_mlp), seen)
        watched(layer, x, y)
        assert watched.trouble == ""
    finally:
        jax.config.update(flag, before)
    seen.check(grads_of_loss(layer, x, y))


def test_gradients_that_are_not_finite_do_not_set_off_debug_nans(seen):
    step = jax.jit(lambda p, x: p + 0 * jnp.nan_to_num(jax.grad(lambda p: jnp.sum(jnp.sqrt(p * x)))(p)))
    with jax.debug_nans(True):
        watched = watch(step, seen)
        watched(jnp.zeros(3), jnp.zeros(3))
    assert watched.trouble == ""
    numbers = unpack(np.array(seen.measurements[0].packed["grads"]), seen.measurements[0].statistics)
    assert numbers["nonfinite"].tolist() == [3]


def test_threads_watch_at_the_same_time(layer):
    recorders = [Recorder() for _ in range(4)]
    barrier = threading.Barrier(4)
    scaled = [jax.tree.map(lambda p, s=s: p * s, layer) for s in (1.0, 0.5, 0.25, 2.0)]

    def run(i):
        watched = watch(jax.jit(lambda p, x, y: update_mlp(p, x, y)), recorders[i])
        barrier.wait()
        for _ in range(3):
            watched(scaled[i], x, y)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    for recorder, params in zip(recorders, scaled, strict=True):
        assert len(recorder.steps) == 3
        recorder.check(grads_of_loss(params, x, y))


# --- taps ---


def hidden_loss(params, x, y):
    hidden = jax.nn.relu(x @ params[0]["weights"] + params[0]["biases"][None])
    hidden = tap({"h": hidden}, "hidden")["h"]
    hidden = tap(hidden, "into hidden", cotangent=True)
    return jnp.mean((hidden @ params[1]["weights"] - y) ** 2)


@pytest.mark.optimized
@pytest.mark.parametrize(
    "around", [lambda f: f, lambda f: jax.jit(jax.checkpoint(f))], ids=["plain", "jit and checkpoint"]
)
def test_a_tap_tells_of_activations_and_of_what_flows_back(around, mlp, seen, monkeypatch):
    step = jax.jit(lambda params, x, y: descend(params, jax.grad(around(hidden_loss))(params, x, y)))

    def apart(mlp, x, y):
        hidden = jax.nn.relu(x @ mlp[0]["weights"] + mlp[0]["biases"][None])
        return hidden, jax.grad(lambda h: jnp.mean((h @ mlp[1]["weights"] - y) ** 2))(hidden), step(mlp, x, y)

    beside(apart, monkeypatch)
    watched = watch(step, seen)
    after, (hidden, back, plain) = watched(mlp, x, y)
    assert seen.names() == ["grads", "hidden", "into hidden"]
    seen.check(hidden, "hidden")
    seen.check(back, "into hidden")
    assert seen.paths("hidden") == ("['h']",)
    assert same_bytes(after, plain)


@pytest.mark.parametrize(
    ("name", "jit"),
    [("grads", True), ("updates", False), ("grads of params", True)],
    ids=["grads", "updates, without jit", "grads of params"],
)
def test_a_tap_with_the_name_of_a_gradient_leaves_it_to_the_gradient(name, jit, layer, seen):
    def loss(params):
        return jnp.sum(tap(params[0]["weights"], name) ** 2)

    watched = watch(jax.jit(jax.grad(loss)), seen)
    with jax.disable_jit(not jit):
        watched(layer)
    norms = {name: norms for at in range(len(seen.steps)) for name, norms in seen.all_norms(at).items()}
    assert sorted(norms) == ["grads", f"tap {name}"]
    weights = np.linalg.norm(layer[0]["weights"])
    np.testing.assert_allclose(norms[f"tap {name}"], [weights], rtol=2e-5)
    np.testing.assert_allclose(norms["grads"].max(), 2 * weights, rtol=2e-5)


@pytest.mark.parametrize("cotangent", [False, True], ids=["values", "cotangents"])
def test_a_tapped_tree_may_hold_anything_and_what_has_no_number_has_a_row(cotangent, seen):
    def loss(w, i):
        tapped = tap({"h": w * 2, "i": i, "name": "text"}, "mixed", cotangent=cotangent)
        assert tapped["name"] == "text"
        return jnp.sum(tapped["h"] ** 2) * tapped["i"][1]

    watched = watch(jax.jit(jax.grad(loss)), seen)
    after = watched(jnp.ones(3), jnp.arange(2))
    assert watched.trouble == "" and after.tolist() == [8.0] * 3
    (source,) = (w.source for w in watched.watches.values() if w.source.name == "mixed")
    assert source.paths == ("['h']", "['i']", "['name']") and source.dtypes == ("float32", "int32", "")
    np.testing.assert_allclose(seen.all_norms(0)["mixed"], [np.sqrt(3) * (4 if cotangent else 2), np.nan, np.nan])


def test_outside_a_watched_step_a_tap_does_nothing(mlp):
    tree = {"a": jnp.ones(3)}
    assert tap(tree, "a") is tree
    assert "treeviz" not in str(jax.make_jaxpr(hidden_loss)(mlp, x, y))
