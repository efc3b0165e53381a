"""Clipping in nearly every step is a finding, where gradients were measured before and after it, and where not."""

import numpy as np
import pytest
from norm_runs import N_STEPS, Run, mlp, source

from treeviz.steps.findings.find import findings
from treeviz.steps.recording.history import History


def test_gradients_that_are_always_clipped_are_found():
    run = Run()
    run.grads /= np.sqrt((run.grads**2).sum(axis=1, keepdims=True))
    (found,) = run.findings()
    assert found.kind == "clipping" and dict(found.numbers)["norm"] == pytest.approx(1)


def before_and_after(change, n_steps=N_STEPS, **how) -> History:
    """Gradients, and what `change` makes of their [steps, leaves] norms, as if measured before and after it."""
    run = Run(n_steps=n_steps)
    after = change(run.grads)
    history = History([source("grads", mlp()), source("changed", mlp())], **how)
    for step in range(n_steps):
        norms = {"grads": run.grads[step], "changed": after[step]}
        history.append(step, {name: {"norm": norm, "max_abs": norm / 9} for name, norm in norms.items()})
    return history


def clipped_at(bound: float):
    def clipped(grads):
        root = np.sqrt((grads**2).sum(axis=1, keepdims=True))
        return grads * np.minimum(1, bound / root)

    return clipped


def root_quantile(part: float) -> float:
    return float(np.quantile(np.sqrt((Run().grads ** 2).sum(axis=1)), part))


def test_gradients_measured_before_and_after_clipping_tell_how_often_it_acts_and_by_how_much():
    bound = root_quantile(0.02)
    (found,) = findings(before_and_after(clipped_at(bound)))
    root = np.sqrt((Run().grads ** 2).sum(axis=1))
    numbers = dict(found.numbers)
    assert (found.kind, found.source, found.path, found.first, found.until) == ("clipping", "changed", "", 0, 299)
    assert numbers["part of steps"] == np.mean(root > bound) == 0.98
    assert numbers["norm"] == pytest.approx(bound, rel=1e-9)
    assert numbers["norm before"] == pytest.approx(np.median(root[root > bound]))
    assert found.sentence.startswith("Clipping makes changed smaller than grads in 98% of the steps")
    assert f"raise it to about {np.quantile(root, 0.9):.2g}" in found.advice


def test_the_larger_half_of_a_run_clipped_is_no_finding_and_neither_is_what_is_no_clipping():
    assert findings(before_and_after(clipped_at(root_quantile(0.5)))) == []
    assert findings(before_and_after(lambda grads: grads)) == []
    assert findings(before_and_after(lambda grads: 1e-3 * grads)) == []
    noise = np.exp(np.random.default_rng(5).normal(0, 0.3, (N_STEPS, 24)))
    assert findings(before_and_after(lambda grads: 1e-2 * grads * noise)) == []  # as Adam does


@pytest.mark.parametrize("by", ["numbers", "leaves", "parameters"])
def test_other_ways_of_clipping_are_compared_too(by):
    def clipped(grads):
        if by == "numbers":  # optax.clip
            return np.minimum(grads, grads.min(axis=1, initial=np.inf).min() * 3)
        if by == "leaves":  # optax.clip_by_block_rms
            return np.minimum(grads, np.quantile(grads, 0.1, axis=0))
        return np.minimum(grads, np.median(grads) * (1 + 1e-4 * np.arange(24) + 1e-3 * np.arange(N_STEPS)[:, None]))

    (found,) = [f for f in findings(before_and_after(clipped)) if f.kind == "clipping"]
    assert found.source == "changed" and dict(found.numbers)["part of steps"] > 0.95


def test_gradients_that_are_always_the_same_are_not_taken_for_clipped_ones():
    run = Run()
    run.grads[:] = run.grads[0]
    assert run.findings() == []


@pytest.mark.parametrize("names", [["['w']"], ["['w']", "['b']"]], ids=["one leaf", "two leaves"])
@pytest.mark.parametrize("per_step", [1e-9, 1e-7, 1e-6, 2e-6, 1e-5])
def test_gradients_that_hardly_change_at_a_tiny_learning_rate_are_not_taken_for_clipped_ones(per_step, names):
    history = History([source("grads", dict.fromkeys(names, 64))])
    rounding = np.random.default_rng(0).normal(0, 1e-7, (60, len(names)))
    for step in range(60):  # as under full-batch descent: all fall slowly, each at its own pace
        norms = np.array([1.0, 0.7])[: len(names)] * (1 - step * per_step * np.array([1.0, 2.0])[: len(names)])
        norms += rounding[step]
        history.append(step, {"grads": {"norm": norms, "max_abs": norms / 5, "nonfinite": 0 * norms}})
    assert findings(history) == []


def test_scaling_by_a_number_is_no_clipping_where_gradients_hardly_change():
    def slow(step):
        return 1 - 1e-6 * step * np.arange(1, 25)

    history = History([source("grads", mlp()), source("changed", mlp())])
    for step in range(60):
        history.append(step, {name: {"norm": f * slow(step)} for name, f in (("grads", 1.0), ("changed", 1e-3))})
    assert findings(history) == []


def test_a_norm_that_is_made_the_same_in_each_step_may_be_normalised():
    run = Run()
    (found,) = findings(before_and_after(clipped_at(1e-3)))
    assert found.sentence.startswith("Clipping, or a normalisation, makes changed smaller than grads in 100%")
    assert found.advice.startswith("If it is clipping, ")
    run.grads /= np.sqrt((run.grads**2).sum(axis=1, keepdims=True))
    (found,) = run.findings()
    assert found.sentence.endswith("they are always clipped, or normalised.")


@pytest.mark.parametrize("is_clipped", [False, True])
def test_a_single_leaf_is_clipped_if_its_norm_stays_and_its_largest_number_does_not(is_clipped):
    history = History([source("grads", {"['w']": 64})])
    largest = np.random.default_rng(0).uniform(0.2, 0.6, N_STEPS) if is_clipped else np.full(N_STEPS, 0.4)
    for step in range(N_STEPS):
        history.append(step, {"grads": {"norm": [1.0], "max_abs": [largest[step]], "nonfinite": [0]}})
    assert [found.kind for found in findings(history)] == ["clipping"] * is_clipped


def test_clipping_is_compared_in_a_long_run_and_in_optax_own():
    assert [f.kind for f in findings(before_and_after(clipped_at(1e-3), 3000, max_bytes=100_000))] == ["clipping"]
    optax, jax, tv = (pytest.importorskip(name) for name in ("optax", "jax", "treeviz"))
    optimizer = optax.chain(
        tv.inspect_gradients("grads"), optax.clip_by_global_norm(0.5), tv.inspect_gradients("clipped"), optax.sgd(1e-3)
    )
    params = {"w": np.ones((8, 8), np.float32), "b": np.ones(8, np.float32)}
    state, update, inspector = optimizer.init(params), jax.jit(optimizer.update), tv.GradientInspector()
    rng = np.random.default_rng(0)
    for step in range(60):
        grads = {name: rng.normal(size=x.shape).astype(np.float32) for name, x in params.items()}
        state = update(grads, state, params)[1]
        inspector.record(state, step)
    (found,) = inspector.findings
    assert (found.kind, found.source) == ("clipping", "clipped")
    assert dict(found.numbers)["norm"] == pytest.approx(0.5, rel=1e-4)
    assert dict(found.numbers)["part of steps"] == 1


@pytest.mark.parametrize(("bound", "kinds"), [(0.5, ["clipping"]), (1e3, [])])
def test_what_the_optimizer_of_a_watched_step_receives_tells_that_it_is_always_clipped(bound, kinds):
    optax, jax, tv = (pytest.importorskip(name) for name in ("optax", "jax", "treeviz"))
    tx = optax.chain(optax.clip_by_global_norm(bound), optax.adam(1e-3))

    @jax.jit
    def step(params, state, x):
        def loss(params):
            return ((jax.numpy.tanh(x @ params["w"]) @ params["out"] - 3 * x[:, 0]) ** 2).mean()

        updates, state = tx.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state

    inspector, rng = tv.GradientInspector(updates=True), np.random.default_rng(0)
    params = jax.device_put({"w": rng.normal(size=(8, 16)) / 3, "out": rng.normal(size=16)})
    watched, state = inspector.watch(step), tx.init(params)
    for _ in range(40):
        params, state = watched(params, state, rng.normal(size=(32, 8)))
    assert [found.kind for found in inspector.findings if found.severity != "info"] == kinds
    if kinds:
        (found,) = inspector.findings
        assert (found.source, dict(found.numbers)["norm"]) == ("received", pytest.approx(bound, rel=1e-4))


@pytest.mark.parametrize("is_inspected", [False, True], ids=["tapped", "inspected"])
def test_clipping_that_a_tap_or_an_inspecting_transformation_shows_is_told_once(is_inspected):
    optax, jax, tv = (pytest.importorskip(name) for name in ("optax", "jax", "treeviz"))
    clip, adam = optax.clip_by_global_norm(0.5), optax.adam(1e-3)
    inspect = [tv.inspect_gradients("clipped")] if is_inspected else []
    tx = optax.chain(clip, *inspect, adam) if is_inspected else adam

    @jax.jit
    def step(params, state, x):
        def loss(params):
            return ((jax.numpy.tanh(x @ params["w"]) @ params["out"] - 3 * x[:, 0]) ** 2).mean()

        grads = jax.grad(loss)(params)
        if not is_inspected:
            grads = tv.tap(clip.update(grads, clip.init(params))[0], "clipped")
        updates, state = tx.update(grads, state)
        return optax.apply_updates(params, updates), state

    inspector, rng = tv.GradientInspector(updates=True), np.random.default_rng(0)
    params = jax.device_put({"w": rng.normal(size=(8, 16)) / 3, "out": rng.normal(size=16)})
    watched, state = inspector.watch(step), tx.init(params)
    for _ in range(40):
        params, state = watched(params, state, rng.normal(size=(32, 8)))
    assert [found.kind for found in inspector.findings if found.severity != "info"] == ["clipping"]


def test_the_bound_of_a_sum_of_micro_batches_is_not_compared_with_the_norm_of_each():
    run, history = Run(n_steps=160), History([source("grads", mlp()), source("received", mlp())])
    sums = clipped_at(1e-3)(run.grads.reshape(40, 4, -1).sum(1) / 50)
    for step in range(160):
        norms = {"grads": run.grads[step]} | ({"received": sums[step // 4]} if step % 4 == 3 else {})
        history.append(step, {name: {"norm": norm, "max_abs": norm / 9} for name, norm in norms.items()})
    (found,) = findings(history)
    assert (found.kind, found.source) == ("clipping", "received")
    assert found.sentence.startswith("The norm of received was 0.001 in ") and "norm before" not in dict(found.numbers)
