"""What a step trains, known from its trace. `wild/moved.py` compares published steps with what really moves."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec
from watched import on_devices

import treeviz as tv

pytestmark = pytest.mark.oldest_jax
X = np.ones((8, 3), np.float32)


def layer():
    return {"w": np.ones((3, 3), np.float32), "b": np.ones(3, np.float32)}


PARAMS = {"body": layer(), "head": layer()}


def dense(layer, x):
    return x @ layer["w"] + layer["b"][None]


def loss(params, x):
    return jnp.mean(dense(params["head"], jnp.tanh(dense(params["body"], x))) ** 2)


def sgd(params, grads):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def noted(view):
    return [view.table[row].keystr for row in view.table.notes]


# Whole steps

halved = jax.custom_vjp(lambda w: w)
halved.defvjp(lambda w: (w, None), lambda _, g: (g / 2,))


def with_custom_vjp(p, x):
    return loss({**p, "body": jax.tree.map(halved, p["body"])}, x)


def accumulating(p, x):
    def add(total, x):
        return jax.tree.map(jnp.add, total, jax.grad(loss)(p, x)), None

    grads, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, p), x.reshape(4, 2, 3))
    return sgd(p, jax.tree.map(lambda g: g / 4, grads))


def epoch(p, x):
    return lax.scan(lambda p, x: (sgd(p, jax.grad(loss)(p, x)), None), p, x.reshape(4, 2, 3))[0]


def in_branches(p, x):
    return lax.cond(x[0, 0] > 0, lambda p: dense(p["body"], x).sum(), lambda p: dense(p["head"], x).sum(), p)


def flattened(p, x):
    vector, unflatten = ravel_pytree(p)
    return unflatten(vector - 0.1 * jax.grad(lambda v: loss(unflatten(v), x))(vector))


def data_parallel(p, x):
    def step(p, x):
        return sgd(p, jax.tree.map(lambda g: lax.pmean(g, "i"), jax.grad(loss)(p, x)))

    return on_devices(step, "i", (PartitionSpec(), PartitionSpec("i")), PartitionSpec())(p, x)


STEPS = {
    "by hand": lambda p, x: sgd(p, jax.grad(loss)(p, x)),
    "jitted": jax.jit(lambda p, x: (sgd(p, jax.grad(loss)(p, x)), loss(p, x))),
    "with an aux": lambda p, x: sgd(p, jax.grad(lambda p: (loss(p, x), {"n": x.sum()}), has_aux=True)(p)[0]),
    "of a vjp": lambda p, x: sgd(p, jax.vjp(lambda p: loss(p, x), p)[1](1.0)[0]),
    "with a checkpoint": lambda p, x: sgd(p, jax.grad(jax.checkpoint(loss))(p, x)),
    "with a custom_vjp": lambda p, x: sgd(p, jax.grad(with_custom_vjp)(p, x)),
    "of each example": lambda p, x: sgd(
        p, jax.tree.map(lambda g: g.mean(0), jax.vmap(jax.grad(loss), (None, 0))(p, x[:, None]))
    ),
    "accumulated in a scan": accumulating,
    "an epoch": epoch,
    "a loop": lambda p, x: lax.fori_loop(0, 3, lambda _, p: sgd(p, jax.grad(loss)(p, x)), p),
    "branches": lambda p, x: sgd(p, jax.grad(in_branches)(p, x)),
    "flattened": flattened,
    "on several devices": data_parallel,
}


@pytest.mark.parametrize("name", STEPS)
def test_a_healthy_step_trains_all_and_nothing_is_noted(name):
    view = tv.trained(STEPS[name], PARAMS, X)
    assert view.summary == "all 24 parameters are trained"
    assert view.untrained == {}
    assert [*view.table.notes] == []
    by_mean = ("of each example", "accumulated in a scan", "flattened", "on several devices")  # or as one vector
    assert ("learning rate 0.1" in view.table.headline) == (name not in by_mean)
    assert sorted(view.trained) == ["p['body']['b']", "p['body']['w']", "p['head']['b']", "p['head']['w']"]


def test_a_pmapped_step_with_types_alone():
    stacked = jax.eval_shape(lambda: jax.tree.map(lambda p: jnp.stack([p]), (PARAMS, X)))
    step = jax.pmap(lambda p, x: sgd(p, jax.tree.map(lambda g: lax.pmean(g, "i"), jax.grad(loss)(p, x))), "i")
    assert tv.trained(step, *stacked).summary == "all 24 parameters are trained"


def test_a_watched_step_is_asked_as_the_step_itself():
    watched = tv.GradientInspector().watch(STEPS["jitted"])
    assert tv.trained(watched, PARAMS, X).summary == "all 24 parameters are trained"


def test_a_key_is_no_number():
    step = lambda p, key, x: sgd(p, jax.grad(loss)(p, x + jax.random.uniform(key)))
    assert tv.trained(step, PARAMS, jax.random.key(0), X).summary == "all 24 parameters are trained"


class Trainer:
    def step(self, params, x):
        return sgd(params, jax.grad(loss)(params, x))


def test_methods_and_partial_functions_are_opened():
    assert tv.trained(Trainer().step, PARAMS, X).trained[0] == "params['body']['b']"
    assert tv.trained(functools.partial(jax.jit(STEPS["by hand"]), PARAMS), X).trained[0] == "p['body']['b']"


# What no gradient reaches


def stopping(p, x):
    hidden = x @ lax.stop_gradient(p["stopped"])  # stopped here
    hidden = hidden @ jnp.round(p["rounded"])  # rounded here
    hidden = hidden @ p["cast"].astype(int).astype(jnp.float32)  # cast here
    hidden = hidden @ (p["compared"] > 0)  # compared here
    masked = jnp.where(np.zeros((3, 3), bool), p["masked"], 1.0)
    return jnp.mean((hidden @ p["used"] @ masked) ** 2) + 0.0 * jnp.sin(p["zero"]).sum()


STOPPED = {
    name: layer()["w"] for name in ("stopped", "rounded", "cast", "compared", "masked", "used", "zero", "unused")
}


def test_what_stops_a_gradient_is_named_with_its_line():
    view = tv.trained(lambda p, x: sgd(p, jax.grad(stopping)(p, x)), STOPPED, X)
    assert view.trained == ["p['used']"]
    lines = Path(__file__).read_text().split("\n")
    place = {
        word: f" at {Path(__file__).name}:{i}"
        for i, line in enumerate(lines, 1)
        for word in re.findall(r"# (\w+) here", line)
    }
    assert view.untrained == {
        "p['stopped']": f"stop_gradient{place['stopped']}",
        "p['rounded']": f"round{place['rounded']}",
        "p['cast']": f"cast to int32{place['cast']}",
        "p['compared']": f"comparison{place['compared']}",
        "p['masked']": "unused by the loss",
        "p['unused']": "unused by the loss",
        "p['zero']": "unused by the loss",
    }
    assert view.summary == "9 of 72 parameters are trained: all `used`; 7 leaves get no gradient"


def low_rank(lora, base, x):
    for name in base:
        x = x @ (base[name]["kernel"] + lora[name]["lora_a"] @ lora[name]["lora_b"])
    return jnp.sum(x**2)


BASE = {f"layer_{i}": {"kernel": np.ones((3, 3), np.float32)} for i in range(3)}
LORA = {name: {"lora_a": np.ones((3, 2), np.float32), "lora_b": np.zeros((2, 3), np.float32)} for name in BASE}
MERGED = {name: {**BASE[name], **LORA[name]} for name in BASE}


def test_the_frozen_part_of_a_model_in_another_argument_counts():
    step = jax.jit(lambda lora, base, x: sgd(lora, jax.grad(low_rank)(lora, base, x)), donate_argnums=(0, 1))
    view = tv.trained(step, LORA, BASE, X)
    assert view.summary == "36 of 63 parameters are trained: all `lora_*`"
    assert {*view.untrained.values()} == {"no gradient is taken"}
    assert "3 donated and not returned" in view.table.headline
    assert noted(view) == [f"['base']['{name}']['kernel']" for name in BASE]


def test_a_run_with_adapters_that_trains_all_says_so():  # maxtext#5092, torchtitan#3438
    def step(params, x):
        return sgd(params, jax.grad(lambda p: low_rank(p, p, x))(params))

    assert tv.trained(step, MERGED, X).summary == "all 63 parameters are trained"

    def stopped(p, x):
        adapters = {k: {**v, "lora_a": lax.stop_gradient(v["lora_a"])} for k, v in p.items()}
        return low_rank(adapters, jax.tree.map(lax.stop_gradient, p), x)

    view = tv.trained(lambda p, x: sgd(p, jax.grad(stopped)(p, x)), MERGED, X)
    assert view.summary == "18 of 63 parameters are trained: all `lora_b`; 3 `kernel` and 3 `lora_a` get no gradient"
    assert [row.keystr for row in view.find("trained:stop_gradient key:lora_a")] == [f"['{k}']['lora_a']" for k in BASE]


def test_with_respect_to_a_part_of_the_parameters():
    def step(params, x):
        grads = jax.grad(lambda head: loss({**params, "head": head}, x))(params["head"])
        return {**params, "head": sgd(params["head"], grads)}

    view = tv.trained(step, PARAMS, X)
    assert view.summary == "12 of 24 parameters are trained: all `head`"
    assert view.table.name == "params"


def test_batch_statistics_that_stay_are_no_parameters():
    def step(state, x):
        scaled = lambda p: loss(p, x * state["batch_stats"]["mean"][None])
        return {**state, "params": sgd(state["params"], jax.grad(scaled)(state["params"]))}

    view = tv.trained(step, {"params": PARAMS, "batch_stats": {"mean": np.ones(3, np.float32)}}, X)
    assert view.summary == "all 24 parameters are trained"
    assert "1 batch statistic returned unchanged" in view.table.headline


def test_a_moving_average_is_no_parameter():
    def step(params, ema, x):
        params = sgd(params, jax.grad(lambda p: loss(p, x) + loss(ema, x))(params))
        return params, jax.tree.map(lambda e, p: 0.9 * e + 0.1 * p, ema, params)

    assert tv.trained(step, PARAMS, PARAMS, X).summary == "all 24 parameters are trained"


# Optimizers


def decayed(p, x):
    return jax.tree.map(lambda p, g: p * (1 - 0.1 * 0.01) - 0.1 * g, p, jax.grad(stopping)(p, x))


def decayed_in_a_loop(p, x):
    grown = lax.fori_loop(0, 3, lambda _, x: 1.001 * x, x)
    return lax.fori_loop(0, 3, lambda _, p: decayed(p, grown), p)


@pytest.mark.parametrize("step", [decayed, decayed_in_a_loop])
def test_a_parameter_that_only_decays(step):
    view = tv.trained(step, STOPPED, X)
    assert view.trained == ["p['used']"]
    assert "7 leaves only decay" in view.summary
    assert {note.text for notes in view.table.notes.values() for note in notes} == {"decays by 0.1 % a step"}
    used = next(row for row in view.table.leaves if row.keystr == "['used']")
    assert view.table.columns["lr"][used.number] == pytest.approx(0.1)
    assert view.table.columns["decay"][used.number] == pytest.approx(0.01, rel=1e-3)


def momentum_without_a_gradient(p, moments, x):
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, jax.grad(stopping)(p, x))
    return jax.tree.map(lambda p, m: p - 0.1 * m, p, moments), moments


def test_moments_without_a_gradient_move_nothing():
    view = tv.trained(momentum_without_a_gradient, STOPPED, STOPPED, X)
    assert view.trained == ["p['used']"]
    assert "decay" not in view.summary


def test_a_schedule_that_starts_at_zero_needs_the_count():
    def step(p, count, x):
        rate = jnp.minimum(count / 100, 1.0) * 1e-3
        grads = jax.grad(loss)(p, x)
        return jax.tree.map(lambda p, g: p - rate * (g / (jnp.abs(g) + 1e-8)), p, grads), count + 1

    def view(count):
        return tv.trained(step, PARAMS, count, X)

    start = view(np.zeros((), np.float32))
    assert start.summary == "all 24 parameters are trained"
    assert start.table.headline[1].startswith("4 of 4 updates are 0 at this step")
    assert view(np.full((), 50, np.float32)).table.headline[1] == "learning rate 0.0005"
    abstract = view(jax.ShapeDtypeStruct((), np.float32)).table
    assert abstract.headline == (start.summary, "learning rate unknown: the step computes it from count")


def clipped(p, x):
    grads = jax.grad(loss)(p, x)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    grads = jax.tree.map(lambda g: g / jnp.maximum(norm, 1.0), grads)
    return {"body": p["body"], "head": sgd(p["head"], grads["head"])}


def test_the_clipped_norm_names_what_is_not_trained():  # maxtext#5285
    view = tv.trained(clipped, PARAMS, X)
    assert view.summary == "12 of 24 parameters are trained: all `head`; 2 leaves in `body` get a zero update"
    norm = "the norm by which gradients are scaled or clipped includes 2 leaves not trained, 50 % of its elements"
    assert norm in view.table.headline


# With Optax


def optax_step(tx):
    import optax

    def step(p, state, x):
        grads = jax.grad(loss)(p, x)
        updates, state = tx.update(grads, state, p)
        return optax.apply_updates(p, updates), state

    return step


def labelled(optax, head):
    return optax.multi_transform({"train": head, "freeze": optax.set_to_zero()}, {"body": "freeze", "head": "train"})


def a_rate_for_each(optax, *rates):
    """As in optax#1101: a chain of masked optimizers, each with a schedule."""
    schedules = [optax.exponential_decay(rate, 1, 0.9) for rate in rates]
    masks = {"body": True, "head": False}, {"body": False, "head": True}
    return optax.chain(
        *[
            optax.masked(optax.inject_hyperparams(optax.adam)(learning_rate=lambda n, s=s: s(n)), mask)
            for s, mask in zip(schedules, masks, strict=True)
        ]
    )


ALL = "all 24 parameters are trained"
HALF = "12 of 24 parameters are trained: all `head`; 2 leaves in `body` get a zero update"
NONE = "none of 24 parameters is trained; 4 leaves get a zero update"
FROZEN = {"body": True, "head": False}
# An optimizer with a learning rate, the summary, what is not known of its rate and decay, and its schedule at step 3.
OPTIMIZERS = {
    "adamw": (lambda o, r: o.adamw(r, weight_decay=0.1), ALL, "", 1),
    "momentum": (lambda o, r: o.sgd(r, momentum=0.9), ALL, "", 1),
    "decay before": (lambda o, r: o.chain(o.add_decayed_weights(0.1), o.sgd(r)), ALL, "", 1),
    "a schedule": (lambda o, r: o.adamw(o.linear_schedule(r, r / 2, 6), mask=FROZEN), ALL, "", 0.75),
    "hyperparameters": (lambda o, r: o.inject_hyperparams(o.adamw)(r, weight_decay=0.1), ALL, "", 1),
    "a clipped norm": (lambda o, r: o.chain(o.clip_by_global_norm(1), o.sgd(r)), ALL, "", 1),
    "the size of a leaf": (lambda o, r: o.adafactor(r, min_dim_size_to_factor=2), ALL, "decay", 1),
    "signs": (lambda o, r: o.lion(r, weight_decay=0.1), ALL, "", 1),
    "rectified": (lambda o, r: o.radam(r), ALL, "", 1),
    "of each layer": (lambda o, r: o.lars(r, weight_decay=0.1), ALL, "decay", 1),
    "contributed": (lambda o, r: o.contrib.ademamix(r, weight_decay=0.1), ALL, "", 1),
    "without a rate": (lambda o, r: o.contrib.dadapt_adamw(), ALL, "lr", 1),
    "if finite": (lambda o, r: o.apply_if_finite(o.adamw(r, weight_decay=0.1), 5), ALL, "", 1),
    "every fourth": (lambda o, r: o.MultiSteps(o.adamw(r, weight_decay=0.1), 4), ALL, "", 1),
    "not now": (lambda o, r: o.MultiSteps(o.adam(r), 5), ALL, "", 1),
    "labels": (lambda o, r: labelled(o, o.adamw(r, weight_decay=0)), HALF, "", 1),
    "a mask": (lambda o, r: o.chain(o.adam(r), o.masked(o.set_to_zero(), FROZEN)), HALF, "", 1),
    "zero rates": (lambda o, r: a_rate_for_each(o, 0.0, 0.0), NONE, "", 1),
    "a zero rate": (lambda o, r: a_rate_for_each(o, 0.0, r), HALF, "", 0.9**3),
    "two rates": (lambda o, r: a_rate_for_each(o, r, r / 2), ALL, "", [0.9**3, 0.9**3 / 2]),
}


def third_step(tx):
    return jax.tree.map(lambda x: x + 3 if x.dtype == np.int32 else x, tx.init(PARAMS))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rates_and_decays_are_those_of_a_call_of_the_update_of_optax(name):
    optax = pytest.importorskip("optax")
    make, summary, unknown, schedule = OPTIMIZERS[name]
    view = tv.trained(optax_step(make(optax, 1e-2)), PARAMS, third_step(make(optax, 1e-2)), X)
    assert view.summary == summary

    @jax.jit
    @jax.vmap
    def updates(rate, times):
        params, tx = jax.tree.map(lambda p: times * p, PARAMS), make(optax, rate)
        updates, _ = tx.update(jax.tree.map(lambda p: 0.1 * p, PARAMS), third_step(tx), params)
        return [updates[part]["w"][0, 0] for part in PARAMS]

    update, of_rate_1, of_twice = np.transpose(updates(np.array([1e-2, 1, 1e-2]), np.array([1.0, 1, 2])))
    rates = update / np.where(update, of_rate_1, np.nan) * schedule
    rows = [view.find(f"key:w {part}")[0].number for part in PARAMS]
    for column, expected in {"lr": rates, "decay": (update - of_twice) / rates}.items():
        expected = np.nan if column in unknown else expected
        np.testing.assert_allclose(view.table.columns[column][rows], expected, rtol=1e-3, atol=1e-5)


ESTIMATED = {
    "prodigy": lambda o: o.contrib.prodigy(weight_decay=0.1),
    "dadapt": lambda o: o.contrib.dadapt_adamw(),
    "mechanize": lambda o: o.contrib.mechanize(o.adam(1e-2)),
    "schedule_free": lambda o: o.contrib.schedule_free_adamw(1e-2),
}


@pytest.mark.parametrize("name", ESTIMATED)
def test_a_rate_that_an_optimizer_estimates_is_unknown_for_a_reason(name):
    tx = ESTIMATED[name](pytest.importorskip("optax"))
    view = tv.trained(optax_step(tx), PARAMS, tx.init(PARAMS), X)
    many = "no single number multiplies the update"
    reason = many if name == "schedule_free" else "the step computes it from gradients"
    assert view.table.headline == (ALL, f"learning rate unknown: {reason}")


def test_what_a_mask_leaves_out_only_decays_if_all_leaves_decay_afterwards():  # optax#271
    optax = pytest.importorskip("optax")
    head = optax.masked(optax.scale_by_adam(), {"body": False, "head": True})  # with MaskedNode in its state
    tx = optax.chain(
        head, optax.masked(optax.set_to_zero(), FROZEN), optax.add_decayed_weights(0.1), optax.scale(-0.01)
    )
    view = tv.trained(optax_step(tx), PARAMS, tx.init(PARAMS), X)
    assert view.summary == "12 of 24 parameters are trained: all `head`; 2 leaves in `body` only decay"
    assert {note.text for notes in view.table.notes.values() for note in notes} == {"decays by 0.1 % a step"}
    assert noted(view) == ["['body']['b']", "['body']['w']"]


def test_what_a_mask_leaves_out_gets_its_gradient_added():  # optax#159, transformers#11936
    optax = pytest.importorskip("optax")
    tx = optax.masked(optax.sgd(0.1), {"body": False, "head": True})
    view = tv.trained(optax_step(tx), PARAMS, tx.init(PARAMS), X)
    assert "2 leaves without an optimizer: the gradient itself is added" in view.table.headline
    assert noted(view) == ["['body']['b']", "['body']['w']"]


# With other libraries


def test_a_train_state_of_flax_shows_its_parameters():
    optax, train_state = pytest.importorskip("optax"), pytest.importorskip("flax.training.train_state")
    state = train_state.TrainState.create(apply_fn=None, params=PARAMS, tx=optax.adam(1e-3))
    step = jax.jit(lambda state, x: state.apply_gradients(grads=jax.grad(loss)(state.params, x)))
    view = tv.trained(step, state, X)
    assert view.table.name == "state.params"
    assert view.summary == "all 24 parameters are trained"
    assert view.table.headline[1] == "learning rate 0.001"


def test_a_filter_of_nnx():
    nnx, optax = pytest.importorskip("flax.nnx"), pytest.importorskip("optax")

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.a, self.b = nnx.LoRALinear(3, 4, lora_rank=2, rngs=rngs), nnx.Linear(4, 1, rngs=rngs)
            self.norm = nnx.BatchNorm(4, rngs=rngs)

        def __call__(self, x):
            return self.b(self.norm(self.a(x)))

    if not hasattr(Model, "_pytree__nodes"):
        pytest.skip("before Flax 0.12 its modules are no pytrees")
    wrt = nnx.LoRAParam
    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=wrt)

    @nnx.jit
    def step(model, optimizer, x):
        grads = nnx.grad(lambda model: jnp.mean(model(x) ** 2), argnums=nnx.DiffState(0, wrt))(model)
        optimizer.update(model, grads)

    assert tv.trained(step, model, optimizer, X).summary == "14 of 43 parameters are trained: all `lora_*`"


def test_a_partitioned_model_of_equinox():
    eqx = pytest.importorskip("equinox")
    mlp = eqx.nn.MLP(3, 1, 8, 2, key=jax.random.key(0))
    is_trained = eqx.tree_at(lambda m: m.layers[-1], jax.tree.map(lambda _: False, mlp), replace=True)

    @eqx.filter_jit
    def step(trainable, frozen, x):
        def loss(trainable):
            return jnp.mean(jax.vmap(eqx.combine(trainable, frozen))(x) ** 2)

        return sgd(trainable, eqx.filter_grad(loss)(trainable))

    view = tv.trained(step, *eqx.partition(mlp, is_trained), X)
    assert view.summary == "9 of 113 parameters are trained: all `trainable`"
    assert view.trained == ["trainable.layers[2].weight", "trainable.layers[2].bias"]


# What cannot be known


def test_a_step_that_is_none():
    with pytest.raises(ValueError, match="computes no gradient"):
        tv.trained(loss, PARAMS, X)
    with pytest.raises(TypeError, match="expected a function, got dict"):
        tv.trained(PARAMS, X)
    with pytest.raises(ValueError, match="of none of its arguments"):
        tv.trained(lambda x: jax.grad(loss)(PARAMS, x), X)
    with pytest.raises(KeyError, match="lost"):  # the step's own
        tv.trained(lambda p, x: p["lost"], PARAMS, X)


def test_gradients_without_new_parameters_are_not_known():
    view = tv.trained(lambda p, x: jax.grad(loss)(p, x), PARAMS, X)
    assert {*view.untrained.values()} == {"no result is its new value"}
    assert view.summary == "none of 24 parameters is trained; 4 leaves are not known"


def test_as_text():
    params = jax.tree.map(jnp.asarray, {"head": layer(), "old": {"w": layer()["w"]}})
    step = lambda p, x: {
        **p,
        "head": sgd(p["head"], jax.grad(lambda h: jnp.sum(dense(h, x @ p["old"]["w"])))(p["head"])),
    }
    assert tv.trained(step, params, X).text(width=80) == (
        "p · 12 of 21 parameters are trained: all `head` · learning rate 0.1\n"
        "                       trained                    lr  trained elements  elements\n"
        "p        dict                                                       12        21\n"
        "├─ head  dict                                                       12        12\n"
        "│  ├─ b  float32[3]    yes                       0.1                 3         3\n"
        "│  └─ w  float32[3,3]  yes                       0.1                 9         9\n"
        "└─ old   dict                                                        0         9\n"
        "   └─ w  float32[3,3]  no: no gradient is taken                      0         9"
    )
