"""Parameters and updates that are measured beside a step now and then, with no wish expressed."""

from __future__ import annotations

import threading
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from watched import true_norms

import treeviz as tv
from treeviz.steps.measure import numbers_of
from treeviz.steps.tracing import instrumented as param_sampling
from treeviz.steps.tracing.instrumented import next_sampled
from treeviz.steps.tracing.watch import watch

pytestmark = [pytest.mark.oldest_jax, pytest.mark.gpu]

rng = np.random.default_rng(0)
PARAMS = {  # larger than what is looked at in each step
    "layers": {"w": rng.normal(size=(3, 48, 48)) / 7, "b": rng.normal(size=(3, 48)) / 9},
    "out": rng.normal(size=(48, 96)) / 7,
}
X = jax.device_put(rng.normal(size=(4, 48)))


def new_params():
    return jax.device_put(PARAMS)


@partial(jax.jit, donate_argnums=0, static_argnames="activation")
def step(params, x, rate, is_held, activation=jnp.tanh):
    def loss(params):
        def layer(x, layer):
            return activation(x @ layer["w"] + layer["b"][None]), None

        return jnp.mean((jax.lax.scan(layer, x, params["layers"])[0] @ params["out"] - 1) ** 2)

    grads = jax.grad(loss)(params)
    new = jax.tree.map(lambda p, g: p - rate * g, params, grads)
    return {**new, "out": jnp.where(is_held, params["out"], new["out"])}, loss(params)


def trained(rate: float, is_held: bool, n_steps: int = 150):
    inspector, params = tv.GradientInspector(), new_params()
    watched = inspector.watch(step)
    for _ in range(n_steps):
        params, _ = watched(params, X, rate, is_held, activation=jnp.tanh)
    return inspector


def test_a_healthy_run_has_no_numbers_beside_its_gradients():
    inspector = trained(1e-2, False)
    assert [*inspector.history.sources] == ["grads"] and not inspector.findings


def test_a_large_parameter_that_never_changes_is_found_with_no_wish_expressed():
    inspector = trained(1e-2, True)
    (found,) = inspector.findings
    assert (found.kind, found.source, found.path, found.first, found.until) == ("frozen", "updates", "['out']", 0, 149)
    assert inspector.history.last("params")[0] == 149


@pytest.mark.parametrize(
    ("donates", "given"),
    [(False, jax.device_put), (True, jax.device_put), (False, lambda params: params)],
    ids=["arguments stay", "arguments are donated", "arrays of NumPy"],
)
@pytest.mark.parametrize(("rate", "kinds"), [(1e-3, []), (10.0, ["ratio"])], ids=["usual rate", "rate of ten"])
def test_first_updates_that_sweep_the_parameters_away_are_told_before_what_comes_of_it(rate, kinds, donates, given):
    optax = pytest.importorskip("optax")
    tx = optax.adam(rate)

    def step(params, state):
        def loss(params):
            return jnp.mean((jnp.tanh(X @ params["w"]) @ params["out"] + X @ params["zeros"] - 1) ** 2)

        updates, state = tx.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state

    inspector = tv.GradientInspector()
    watched = inspector.watch(jax.jit(step, donate_argnums=(0, 1) if donates else ()))
    w, out = (np.array(x) for x in (PARAMS["layers"]["w"][0], PARAMS["out"]))
    params = given({"w": w, "out": out, "zeros": np.zeros_like(out)})
    state, first = tx.init(params), np.sqrt((w**2).sum() + (out**2).sum())
    for _ in range(60):
        params, state = watched(params, state)
    assert [found.kind for found in inspector.findings][:1] == kinds
    if kinds:
        found = inspector.findings[0]
        assert (found.path, found.first, found.until, found.severity) == ("", 0, 0, "warning")
        assert dict(found.numbers)["ratio"] == pytest.approx(rate * np.sqrt(w.size + out.size) / first, rel=1e-3)


def test_a_rate_that_is_far_too_small_is_found_with_no_wish_expressed():
    (found,) = trained(1e-6, False).findings
    assert (found.kind, found.path) == ("ratio", "")


@pytest.mark.parametrize("is_on_host", [True, False], ids=["host memory", "elsewhere"])
def test_what_is_seen_beside_a_step_is_what_its_parameters_were_and_how_far_they_moved(is_on_host, monkeypatch):
    monkeypatch.setattr(param_sampling, "lies_on_host", lambda x: is_on_host)
    monkeypatch.setattr(param_sampling, "FIRST", 4)
    beside, truths, params = {}, [], new_params()

    def record(measurement, number):
        if measurement.sampled_params is not None:
            beside[number] = numbers_of(measurement.sampled_params)

    watched = watch(step, record)
    for _ in range(4):
        before = jax.tree.map(np.array, params)
        params, _ = watched(params, X, 1e-2, False, activation=jnp.tanh)
        truths.append((before, jax.tree.map(lambda a, b: np.array(a) - b, params, before)))
        for thread in threading.enumerate():
            if thread.name == "treeviz compilation":  # of what is needed elsewhere
                thread.join()
    assert [*beside] == ([0, 3] if is_on_host else [1, 3])  # elsewhere once it is compiled
    for number, found in beside.items():
        for name, tree in zip(("params", "updates"), truths[number], strict=True):
            layers = [{k: v[i] for k, v in tree["layers"].items()} for i in range(3)]
            truth = [
                *(norm for key in "bw" for norm in true_norms([layer[key] for layer in layers])),
                *true_norms([tree["out"]]),
            ]
            np.testing.assert_allclose(found[name]["norm"], truth, rtol=1e-5)


def test_parameters_that_were_donated_before_they_were_read_are_copied_from_then_on(monkeypatch):
    monkeypatch.setattr(param_sampling, "FIRST", 2)
    beside, w, x, n_read = [], jnp.ones((64, 64)), jnp.ones((2, 64)), []

    def whole(array):
        n_read.append(array)
        if len(n_read) == 1:
            raise RuntimeError("Array has been deleted")
        return np.asarray(array)

    monkeypatch.setattr("treeviz.steps.tracing.instrumented.whole", whole)
    watched = watch(jax.jit(descended), lambda measurement, _: beside.append(measurement.sampled_params))
    given = watched(w, x)
    with pytest.raises(RuntimeError, match="were deleted"):
        numbers_of(beside[0])
    w = watched(given, x)
    assert numbers_of(beside[1])["params"]["norm"][0] == pytest.approx(np.linalg.norm(given))
    assert all(read is not given and read is not w for read in n_read[1:])


def test_samples_become_rarer():
    due = [call for call in range(1, 2100) if next_sampled(call - 1) == call]
    assert due == [1, 5, 50, 100, 150, 200, 250, 500, 1000, 2000]
    after = {call: next_sampled(call) for call in (0, 1, 4, 5, 49, 50, 249, 250, 999, 1000)}
    assert after == {0: 1, 1: 5, 4: 5, 5: 50, 49: 50, 50: 100, 249: 250, 250: 500, 999: 1000, 1000: 2000}


def test_float16_gradients_that_have_lost_their_digits_underflow_with_no_wish_expressed():
    inspector = tv.GradientInspector()
    w, x = jnp.ones((8, 8), jnp.float16), jnp.ones((2, 8), jnp.float16)
    tiny = inspector.watch(jax.jit(lambda w, x: w - jax.grad(lambda w: jnp.mean(x @ w) * jnp.float16(1e-5))(w)))
    for _ in range(20):
        w = tiny(w, x)
    (found,) = inspector.findings
    assert (found.kind, found.source) == ("underflow", "grads")


def descended(w, x):
    return w - 1e-3 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)


def in_a_loop(w, x):
    return jax.lax.scan(lambda w, _: (descended(w, x), None), w, None, 2)[0]


def accumulated_in_a_scan(w, x):
    total, _ = jax.lax.scan(lambda total, x: (total + (w - descended(w, x)), None), jnp.zeros_like(w), x)
    return w - 1e-4 * total


def averaged_in_a_map(w, x):
    return w - 1e-4 * jax.lax.map(lambda x: w - descended(w, x), x).mean(0)


@pytest.mark.parametrize("step", [accumulated_in_a_scan, averaged_in_a_map])
def test_parameters_whose_gradients_alone_are_accumulated_in_a_loop_are_looked_at(step):
    n_calls, n_parts, inspector = 110, 4, tv.GradientInspector()
    w, batches = jnp.ones((64, 32)), np.random.default_rng(0).normal(size=(n_calls, n_parts, 4, 64))
    watched = inspector.watch(jax.jit(step))
    for x in batches:
        w = watched(w, jnp.asarray(x, w.dtype))
    found = inspector.findings
    assert [(each.kind, each.source) for each in found if each.severity != "info"] == [("ratio", "updates")]
    steps = inspector.history.values("updates", "norm").until
    assert steps.tolist() == [call - 1 for call in (1, 5, 50, 100)]
    assert not any("parameters is not measured" in note for note in inspector.notes)


@pytest.mark.parametrize(
    ("step", "why", "options"),
    [
        (in_a_loop, "they change in a loop inside the step", {}),
        (jax.vmap(descended, (0, None)), "they belong to the members of an ensemble", {}),
        (descended, "copies of what the step donates would take", {}),
        (descended, "exact=True", {"exact": True}),
    ],
)
def test_where_parameters_are_not_looked_at_a_note_says_so(step, why, options, monkeypatch):
    monkeypatch.setattr(param_sampling, "FIRST", 2)
    full = SimpleNamespace(memory_stats=lambda: {"bytes_limit": 100, "peak_bytes_in_use": 92})
    monkeypatch.setattr(jax, "local_devices", lambda: [full])
    inspector = tv.GradientInspector()
    watched = inspector.watch(jax.jit(step, donate_argnums=0), **options)
    w, x = jnp.ones((2, 3, 3)) if "ensemble" in why else jnp.ones((3, 3)), jnp.ones((2, 3))
    for _ in range(2):
        w = watched(w, x)
    inspector.flush()
    (note,) = [note for note in inspector.notes if "is not measured" in note]
    assert f"is not measured: {why}" in note and "GradientInspector(updates=True)" in note
