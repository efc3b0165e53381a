"""`GradientInspector`: every door into it, compared with gradients that were computed apart."""

from __future__ import annotations

import gc
import inspect
import itertools
import os
import subprocess
import threading
import weakref
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import pythons
from compiling import quick_environment
from watched import copies, init_mlp_params, loss_fn, mlp_data, same_bytes, true_norms, update_mlp

import treeviz as tv
from treeviz.steps.recording import recorder
from treeviz.steps.recording.decode import Arrived

pytestmark = pytest.mark.oldest_jax

x, y = mlp_data()
grads_of_loss = jax.jit(jax.grad(loss_fn))
PATHS = "[0]['biases']", "[0]['weights']"


def norms_apart(params, n_steps: int) -> np.ndarray:
    """[steps, leaves] in float64: of the gradients at each step of plain training."""
    norms = []
    for _ in range(n_steps):
        norms.append(true_norms(grads_of_loss(params, x, y)))
        params = update_mlp_jitted(params, x, y)
    return np.array(norms)


update_mlp_jitted = jax.jit(update_mlp)


def train(step, params, n_steps: int):
    for _ in range(n_steps):
        params = step(params, x, y)
    return params


def norms_in(inspector, source="grads") -> np.ndarray:
    return inspector.history.values(source, "norm").latest


# Doors


@pytest.mark.optimized
def test_watch_shows_every_norm_of_every_step_and_changes_nothing(layer):
    inspector = tv.GradientInspector()
    after = train(inspector.watch(jax.jit(update_mlp)), layer, 70)
    np.testing.assert_allclose(norms_in(inspector), norms_apart(layer, 70), rtol=2e-5)
    assert inspector.history.sources["grads"].paths == PATHS
    assert inspector.history.steps().tolist() == list(range(70))
    assert same_bytes(after, train(update_mlp_jitted, layer, 70))
    assert inspector.n_dropped == 0


def test_every_tenth_step_is_inspected_and_a_histogram_now_and_then(layer):
    inspector = tv.GradientInspector(every=10, heavy_every=20)
    train(inspector.watch(jax.jit(update_mlp)), layer, 41)
    assert inspector.history.steps().tolist() == [0, 10, 20, 30, 40]
    np.testing.assert_allclose(norms_in(inspector), norms_apart(layer, 41)[::10], rtol=2e-5)
    assert inspector.history.steps("grads", "histogram").tolist() == [0, 20, 40]


def test_record_takes_what_measure_gave(layer):
    inspector = tv.GradientInspector()

    @jax.jit
    def update(params, x, y):
        grads = jax.grad(loss_fn)(params, x, y)
        updates = jax.tree.map(lambda g: -0.01 * g, grads)
        after = jax.tree.map(jnp.add, params, updates)
        return after, tv.measure(params=params, grads=grads, updates=updates)

    params = layer
    for step in range(5):
        before = params
        params, measurement = update(params, x, y)
        inspector.record(measurement, step=10 * step)
    assert inspector.history.steps().tolist() == [0, 10, 20, 30, 40]
    np.testing.assert_allclose(norms_in(inspector)[-1], true_norms(grads_of_loss(before, x, y)), rtol=2e-5)
    np.testing.assert_allclose(norms_in(inspector, "params")[-1], true_norms(before), rtol=2e-5)
    ratio = inspector.history.ratio("updates", "params").latest[-1]
    np.testing.assert_allclose(ratio, 0.01 * true_norms(grads_of_loss(before, x, y)) / true_norms(before), rtol=1e-4)


@pytest.mark.parametrize("door", ["watch", "record"])
def test_the_steps_of_a_scan_are_inner_steps_of_its_call(door, layer):
    inspector = tv.GradientInspector()

    @jax.jit
    def four_updates(params):
        def body(params, _):
            grads = jax.grad(loss_fn)(params, x, y)
            return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), tv.measure(grads=grads)

        return jax.lax.scan(body, params, length=4)

    params = layer
    step = inspector.watch(four_updates) if door == "watch" else four_updates
    for _ in range(3):
        params, measurement = step(params)
        if door == "record":
            inspector.record(measurement)
    grads = inspector.history.values()
    assert grads.until.tolist() == [0] * 4 + [1] * 4 + [2] * 4 and grads.inner[1].tolist() == [0, 1, 2, 3] * 3
    np.testing.assert_allclose(norms_in(inspector), norms_apart(layer, 12), rtol=2e-5)


def ensemble(n: int):
    members = [init_mlp_params([1, 8]) for _ in range(n)]
    members = [jax.tree.map(lambda p, k=k: p * (1.0 + k), member) for k, member in enumerate(members)]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *members)


def member_norms(params, n: int) -> np.ndarray:
    """[members, leaves]"""
    return np.array([true_norms(grads_of_loss(jax.tree.map(lambda p, k=k: p[k], params), x, y)) for k in range(n)])


@pytest.mark.parametrize("members", ["joined", "each"])
def test_an_empty_batch_has_a_gradient_of_zero_and_takes_no_other_step_along(members):
    @jax.jit
    def step(w, x):
        return w - jax.vmap(jax.grad(lambda w, x: jnp.sum((x * w) ** 2)), (None, 0))(w, x).sum(0)

    inspector = tv.GradientInspector(members=members)
    watched, w = inspector.watch(step), jnp.ones(3)
    assert jnp.array_equal(watched(w, jnp.ones((0, 3))), w)
    watched(w, jnp.ones((1, 3)))
    norms = [norm for run in inspector.history.sources for norm in inspector.history.values(run, "norm").latest.ravel()]
    assert max(norms) == pytest.approx(np.sqrt(12)) and min(norms) == 0


@pytest.mark.parametrize("door", ["watch", "record"])
def test_an_ensemble_is_joined_into_one_norm_or_has_a_leaf_per_member(door):
    params = ensemble(3)
    apart = member_norms(params, 3)
    for members in ("joined", "each"):
        inspector = tv.GradientInspector(members=members)
        if door == "watch":
            inspector.watch(jax.jit(jax.vmap(update_mlp, in_axes=(0, None, None))))(params, x, y)
        else:
            measured = jax.jit(jax.vmap(lambda p: tv.measure(grads=jax.grad(loss_fn)(p, x, y))))(params)
            if measured.packed["grads"].ndim == 3:  # one axis in front is taken for that of a loop
                measured = jax.tree.map(lambda packed: packed[None], measured)
            inspector.record(measured)
        expected = np.sqrt((apart**2).sum(axis=0)) if members == "joined" else apart.T.ravel()
        np.testing.assert_allclose(norms_in(inspector)[-1], expected, rtol=2e-5)
        paths = inspector.history.sources["grads"].paths
        assert paths == (PATHS if members == "joined" else tuple(f"{path}[{k}]" for path in PATHS for k in range(3)))
        is_told = members == "joined" and door == "watch"
        assert ("norms joined over vmapped members" in str(inspector.render())) == is_told
        assert ('members="each"' in str(inspector.notes)) == is_told
        assert repr(inspector.render())


def test_members_that_nobody_knows_are_refused():
    with pytest.raises(ValueError, match="members='all': use 'joined' or 'each'"):
        tv.GradientInspector(members="all")


def test_an_optimizers_state_tells_of_gradients_before_and_after_clipping_and_may_be_donated(layer):
    optax = pytest.importorskip("optax")
    optimizer = optax.chain(
        tv.inspect_gradients("grads"), optax.clip_by_global_norm(0.1), tv.inspect_gradients("clipped"), optax.sgd(0.01)
    )

    @partial(jax.jit, donate_argnums=(0, 1))
    def update(params, state):
        updates, state = optimizer.update(jax.grad(loss_fn)(params, x, y), state, params)
        return optax.apply_updates(params, updates), state

    inspector = tv.GradientInspector()
    params = copies(layer)
    state = optimizer.init(params)
    apart = []
    for _ in range(60):
        apart.append(true_norms(grads_of_loss(params, x, y)))
        params, state = update(params, state)
        inspector.record(state)
    assert inspector.n_dropped == 0
    np.testing.assert_allclose(norms_in(inspector), apart, rtol=2e-5)
    scale = np.minimum(1, 0.1 / np.linalg.norm(apart, axis=1))[:, None]
    np.testing.assert_allclose(norms_in(inspector, "clipped"), apart * scale, rtol=1e-4)
    assert len(inspector.history) == 60


def test_a_tree_without_a_measurement_is_refused_with_what_would_do(layer):
    with pytest.raises(ValueError, match=r"record: this list has no measurement\. Pass the result of treeviz\.measure"):
        tv.GradientInspector().record(layer)


def test_a_measurement_whose_buffers_were_taken_is_counted_as_dropped(layer):
    inspector = tv.GradientInspector()
    measure = jax.jit(lambda p: tv.measure(grads=p))
    for step in range(3):
        measurement = measure(layer)
        inspector.record(measurement)
        if step == 1:
            measurement.packed["grads"].delete()
    assert inspector.history.steps().tolist() == [0, 2]
    assert inspector.n_dropped == 1
    assert "1 step not shown" in repr(inspector)


def test_two_watched_steps_tell_one_inspector_under_names_of_their_own(layer):
    inspector = tv.GradientInspector()

    def update_critic(params, x, y):
        return jax.tree.map(lambda p, g: p + 0.1 * g, params, jax.grad(loss_fn)(params, x, y))

    generator, critic = inspector.watch(jax.jit(update_mlp)), inspector.watch(jax.jit(update_critic))
    params = layer
    for _ in range(3):
        params = generator(params, x, y)
        before = params
        params = critic(params, x, y)
    assert list(inspector.history.sources) == ["grads of update_mlp", "grads of update_critic"]
    of_critic = norms_in(inspector, "grads of update_critic")
    np.testing.assert_allclose(of_critic[-1], true_norms(grads_of_loss(before, x, y)), rtol=2e-5)
    assert "grads of update_critic, 1 of 2 trees" in repr(inspector.render("grads of update_critic"))
    (note,) = inspector.notes
    assert note.endswith("inspector.render(name) shows another: 'grads of update_critic'.")


# What it tells, and when


def explode(params, x, y):
    return jax.tree.map(lambda p, g: p - 1e4 * g, params, jax.grad(loss_fn)(params, x, y))


@pytest.mark.parametrize("raise_on", ["nonfinite", {"nonfinite"}])
def test_a_run_stops_with_the_first_leaf_that_is_not_finite(raise_on, layer):
    inspector = tv.GradientInspector(raise_on=raise_on)
    step = inspector.watch(jax.jit(explode))
    with pytest.raises(
        tv.StopTraining, match=r"nonfinite: New parameters .* The training diverged: the norm had grown"
    ):
        train(step, layer, 100)
    first = inspector.findings[0].first
    params = train(jax.jit(explode), layer, first)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves((params, grads_of_loss(params, x, y))))
    assert not all(np.isfinite(p).all() for p in jax.tree.leaves(explode(params, x, y)))


def test_a_kind_of_finding_that_there_is_not_is_refused_with_those_that_there_are():
    for raise_on in ("nan", {"nan"}, ["nonfinite", "nan"]):
        with pytest.raises(
            ValueError, match=r"raise_on: there is no kind of finding 'nan'; there are 'nonfinite', 'ex"
        ):
            tv.GradientInspector(raise_on=raise_on)


def test_a_finding_is_told_once(layer):
    told = []
    inspector = tv.GradientInspector(on_finding=told.append)
    step = inspector.watch(jax.jit(explode))
    params = train(step, layer, 200)
    assert "nonfinite" in {finding.kind for finding in told}  # without anybody asking
    inspector.flush()
    train(step, params, 10)
    inspector.flush()
    assert sum(finding.kind == "nonfinite" for finding in told) == 1


def test_findings_are_printed_below_the_tree_and_errors_are_red(layer, monkeypatch):
    inspector = tv.GradientInspector()
    train(inspector.watch(jax.jit(explode)), layer, 30)
    lines = str(inspector).splitlines()
    assert lines[0].startswith("params · 2 leaves · 30 steps · step 29 · ")
    assert any("worst leaves" in line for line in lines)
    assert str(inspector.findings[0]) in str(inspector).replace("\n   ", "")
    assert inspector._repr_mimebundle_()["text/plain"] == str(inspector) and "\x1b" not in str(inspector)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    finding = inspector.findings[0]
    assert f"\x1b[31m  {finding.kind}: " in str(inspector) and f"\x1b[31merror: {finding.sentence[:20]}" in str(
        inspector
    )


def test_before_the_first_step_it_says_so():
    inspector = tv.GradientInspector()
    assert repr(inspector) == "GradientInspector: nothing was measured yet"
    assert inspector._repr_mimebundle_() == {"text/plain": repr(inspector)}
    with pytest.raises(
        LookupError, match=r"nothing was measured yet\. Call the step that watch\(\) returned, or record"
    ):
        inspector.findings


@pytest.mark.optimized
def test_verify_says_that_not_a_bit_changes(layer):
    inspector = tv.GradientInspector()
    step = jax.jit(update_mlp)
    verification = inspector.verify(step, layer, x, y)
    assert verification and str(verification) == "The same bytes in all 2 leaves of 5 runs."
    assert inspector.verify(inspector.watch(step), layer, x, y)
    assert repr(inspector) == "GradientInspector: nothing was measured yet"


# The first bad step, again


@partial(jax.jit, donate_argnums=0)
def fails_later(params, batch):
    def loss(params):
        inside = batch @ params["w"]
        return jnp.sum(jnp.sqrt(inside))  # here

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


def test_locate_nan_names_the_line_of_the_first_bad_step_though_its_inputs_were_donated():
    inspector = tv.GradientInspector(keep_inputs=True)
    step = inspector.watch(fails_later)
    params = {"w": jnp.ones(3)}
    for _ in range(40):
        params = step(params, jnp.ones((2, 3)))
    origin = inspector.locate_nan()
    assert "sqrt" in str(origin) and "# here" in str(origin) and Path(__file__).name in str(origin)
    found = next(finding for finding in inspector.findings if finding.kind == "nonfinite")
    assert inspector._inputs.bad.number == found.first
    assert found.sentence.endswith(f"Origin: {origin.text}") and found.advice == origin.advice
    assert found.sentence[:90] in inspector.render().table.headline[-1]
    assert "locate_nan" not in inspector.render().table.headline[-1]


def test_locate_nan_goes_through_an_equinox_step_and_its_donated_model():
    eqx = pytest.importorskip("equinox")

    @eqx.filter_jit(donate="all")
    def step(model, batch):
        grads = eqx.filter_grad(lambda model: jnp.sum(jnp.sqrt(jax.vmap(model)(batch))))(model)  # here
        return eqx.apply_updates(model, jax.tree.map(lambda g: -10.0 * g, grads))

    inspector = tv.GradientInspector(keep_inputs=True)
    watched = inspector.watch(step)
    shapes = eqx.filter_eval_shape(lambda: eqx.nn.Linear(3, 1, key=jax.random.key(0)))
    model = jax.tree.map(lambda x: jax.device_put(np.ones(x.shape, x.dtype)), shapes)
    batch = np.ones((4, 3), np.float32)
    for _ in range(10):
        model = watched(model, jax.device_put(batch))
    origin = str(inspector.locate_nan())
    assert "sqrt" in origin and "# here" in origin


def test_inputs_are_kept_of_the_newest_steps_and_freed_when_newer_ones_come(layer):
    inspector = tv.GradientInspector(keep_inputs=2)
    step = inspector.watch(jax.jit(update_mlp))
    kept = []
    keep = inspector._inputs.keep

    def spy(key, inputs, read):
        def seen():
            made = inputs()
            kept.extend(weakref.ref(leaf) for leaf in jax.tree.leaves(made.args))
            return made

        keep(key, seen, read)
        assert len(inspector._inputs) <= 2

    inspector._inputs.keep = spy
    train(step, layer, 20)
    inspector.flush()
    gc.collect()
    assert [reference() is None for reference in kept] == [True] * 18 * 4 + [False] * 2 * 4
    assert inspector.locate_nan() is None


@pytest.mark.filterwarnings("ignore:watch. `update_mlp` is called inside")
def test_of_a_step_inside_another_program_no_inputs_are_kept_since_they_have_no_values(layer):
    inspector = tv.GradientInspector(keep_inputs=True)
    step = inspector.watch(jax.jit(update_mlp))
    with jax.checking_leaks():
        jax.jit(lambda params: step(params, x, y))(layer)
    assert len(inspector._inputs) == 0


@jax.jit
def reports_nan(params, batch):
    grads = jax.grad(lambda params: jnp.sum(batch @ params["w"]))(params)
    report = jnp.log(jnp.sum(batch))  # report
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), report


def run_with_reports(n_steps: int, bad: set[int], **how):
    inspector = tv.GradientInspector(keep_inputs=True, **how)
    step, params = inspector.watch(reports_nan), {"w": jnp.ones(3)}
    for number in range(n_steps):
        params, _ = step(params, jnp.ones((2, 3)) * (-1 if number in bad else 1))
    return inspector


def test_locate_nan_finds_a_loss_that_is_not_finite_though_all_gradients_are():
    inspector = run_with_reports(20, {17})
    assert [finding.source for finding in inspector.findings] == ["scalar result"]
    origin = inspector.locate_nan()
    assert origin is not None
    assert (origin.primitive, origin.step, origin.source) == ("log", 17, inspect_line(reports_nan, "# report"))
    assert "That was in step 17." in str(origin)
    assert inspector.locate_nan(17) == origin


def inspect_line(function, part: str) -> str:
    (line,) = [line.strip() for line in inspect.getsource(inspect.unwrap(function)).split("\n") if part in line]
    return line


def test_of_a_step_whose_inputs_are_gone_locate_nan_says_which_there_are():
    inspector = run_with_reports(20, set())
    assert inspector.locate_nan() is None and inspector.locate_nan(step=18) is None
    with pytest.raises(LookupError, match=r"the inputs of step 3 are not kept, only those of: 16, 17, 18, 19\."):
        inspector.locate_nan(3)
    inspector = run_with_reports(20, set(), every=5)
    with pytest.raises(LookupError, match=r"only those of: 0, 5, 10, 15\."):
        inspector.locate_nan(3)


def test_of_a_loop_inside_a_step_locate_nan_and_the_findings_count_the_same_calls():
    @jax.jit
    def five_updates(w, batches):
        def body(w, batch):
            loss, grads = jax.value_and_grad(lambda w: jnp.sum(jnp.sqrt(w * batch)))(w)
            return w - 0.1 * grads, loss

        return jax.lax.scan(body, w, batches)

    inspector = tv.GradientInspector(keep_inputs=2)
    step, w = inspector.watch(five_updates), jnp.ones(2)
    for batches in jnp.ones((15, 2)).at[13, 1].set(-1.0).reshape(3, 5, 2):
        w, _ = step(w, batches)
    loss = inspector.history.scalars.values("loss")  # which nobody records
    assert loss.until.tolist() == [0] * 5 + [1] * 5 + [2] * 5 and loss.inner[1].tolist() == [0, 1, 2, 3, 4] * 3
    assert loss.latest[0] == 2 and np.isnan(loss.latest).tolist() == [False] * 13 + [True] * 2
    origin = inspector.locate_nan()
    assert origin is not None
    assert (origin.step, origin.iterations) == (2, (("scan", 3),))
    found = next(finding for finding in inspector.findings if finding.kind == "nonfinite")
    assert (found.first, found.first_inner) == (2, 3) and "at call 2, inner step 3." in found.sentence
    assert inspector.locate_nan(2) == origin
    with pytest.raises(LookupError, match=r"the inputs of step 1 are not kept, only those of: 2\."):
        inspector.locate_nan(1)


def test_from_a_step_that_was_given_a_nan_locate_nan_goes_back_to_the_one_that_made_it():
    @jax.jit
    def step(params, scale):
        grads = jax.grad(lambda w: jnp.sum(jnp.where(w > 0, w, 1.0)))(params["w"])  # finite whatever w is
        return {"w": params["w"] + grads, "scale": params["scale"] / scale}

    inspector = tv.GradientInspector(keep_inputs=True)
    watched, params = inspector.watch(step), {"w": jnp.ones(3), "scale": jnp.zeros(2)}
    for number in range(10):
        params = watched(params, jnp.array(0.0 if number == 7 else 1.0))
    assert not inspector.findings
    origin = inspector.locate_nan()
    assert origin is not None
    assert (origin.primitive, origin.direction, origin.step) == ("div", "forward", 7)
    origin = inspector.locate_nan(9)
    assert origin is not None and (origin.direction, origin.argument) == ("input", "params['scale']")


def test_a_nan_that_a_healthy_step_is_given_on_purpose_and_drops_is_nobodys_fault():
    @jax.jit
    def step(w, labels):
        return w - jax.grad(lambda w: jnp.sum(jnp.where(jnp.isnan(labels), 0.0, w)))(w)

    inspector = tv.GradientInspector(keep_inputs=2)
    watched, w = inspector.watch(step), jnp.ones(3)
    for _ in range(5):
        w = watched(w, jnp.array([1.0, jnp.nan, 2.0]))
    assert inspector.locate_nan() is None


def test_without_inputs_locate_nan_says_how_to_keep_them(layer):
    inspector = tv.GradientInspector()
    train(inspector.watch(jax.jit(explode)), layer, 30)
    with pytest.raises(
        LookupError, match=r"no inputs were kept\. Run again with GradientInspector\(keep_inputs=True\)"
    ):
        inspector.locate_nan()


# Files


def test_a_saved_history_is_loaded_and_goes_on(layer, tmp_path):
    inspector = tv.GradientInspector(name="mlp")
    params = train(inspector.watch(jax.jit(update_mlp)), layer, 5)
    assert inspector.save(tmp_path / "run.treeviz") == tmp_path / "run.treeviz"
    again = tv.GradientInspector.load(tmp_path / "run.treeviz", name="mlp")
    assert repr(again) == repr(inspector)
    again.record(jax.jit(lambda p: tv.measure(grads=jax.grad(loss_fn)(p, x, y)))(params), step=5)
    np.testing.assert_allclose(norms_in(again), norms_apart(layer, 6), rtol=2e-5)


def test_steps_are_counted_on_from_a_loaded_history(layer, tmp_path):
    inspector = tv.GradientInspector()
    params = train(inspector.watch(jax.jit(update_mlp)), layer, 5)
    path = inspector.save(tmp_path / "run.treeviz")
    watching, recording = tv.GradientInspector.load(path, every=3), tv.GradientInspector.load(path)
    train(watching.watch(jax.jit(update_mlp)), params, 5)
    assert watching.history.steps().tolist() == [0, 1, 2, 3, 4, 6, 9]
    measurement = jax.jit(lambda p: tv.measure(grads=p))(params)
    recording.record(measurement)
    recording.record(measurement, step=100)
    assert recording.history.steps().tolist() == [0, 1, 2, 3, 4, 5, 100]


@pytest.mark.parametrize("suffix", [".html", ".txt", ".json", ".svg"])
def test_it_is_saved_as_a_view(suffix, layer, tmp_path):
    inspector = tv.GradientInspector()
    train(inspector.watch(jax.jit(update_mlp)), layer, 5)
    text = inspector.save(tmp_path / f"x{suffix}").read_text("utf-8")
    assert "weights" in text and "grads norm" in text


def test_nothing_can_be_rendered_or_saved_before_the_first_step_or_with_another_suffix(tmp_path):
    inspector = tv.GradientInspector()
    for ask in (
        inspector.render,
        lambda: inspector.save(tmp_path / "x.html"),
        lambda: inspector.save(tmp_path / "x.treeviz"),
    ):
        with pytest.raises(LookupError, match="nothing was measured yet"):
            ask()
    inspector.record(tv.measure(grads=np.ones(2, np.float32)))
    with pytest.raises(ValueError, match="treeviz writes"):
        inspector.save(tmp_path / "x.pdf")
    assert not list(tmp_path.iterdir())


def test_what_on_finding_raises_reaches_record_and_is_a_warning_of_a_watched_step():
    def update(w):
        return w - jax.grad(lambda w: jnp.sum(jnp.log(w)))(w)

    inspector = tv.GradientInspector(on_finding=lambda _: 1 / 0)
    watched = inspector.watch(jax.jit(update))
    with pytest.warns(RuntimeWarning, match="ZeroDivisionError"):
        for _ in range(2 * recorder.MOST_LATE):
            watched(jnp.zeros(2))
    inspector = tv.GradientInspector(on_finding=lambda _: 1 / 0)
    bad = jax.block_until_ready(tv.measure(grads=np.full(2, np.nan, np.float32)))
    with pytest.raises(ZeroDivisionError):
        inspector.record(bad)


PROGRAM = """
import os, sys
sys.path.insert(0, sys.argv[1])
import jax
from watched import *
import treeviz as tv
x, y = mlp_data()
params = init_mlp_params([1, 8])
inspector = tv.GradientInspector()
update = inspector.watch(jax.jit(update_mlp))
"""


def run(program: str, *arguments: str) -> str:
    arguments = "-W", "error", "-c", PROGRAM + program, str(Path(__file__).parents[1]), *arguments
    command = [*pythons.command("jax"), *arguments]
    folder, env = Path(tv.__file__).parents[1], quick_environment()
    finished = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=folder, env=env)
    assert finished.returncode in (0, 9), finished.stderr
    assert finished.stderr == ""
    return finished.stdout


def test_a_crash_loses_no_more_than_the_unread_steps(tmp_path):
    path = tmp_path / "run.treeviz"
    run(
        """
inspector.keep(sys.argv[2])
for step in range(300):
    params = update(params, x, y)
    if step % 50 == 0: jax.block_until_ready(params)
os._exit(9)
""",
        str(path),
    )
    norms = norms_in(tv.GradientInspector.load(path))
    assert len(norms) > 200
    np.testing.assert_allclose(norms, norms_apart(init_mlp_params([1, 8]), len(norms)), rtol=2e-5)


def test_what_is_kept_is_whole_when_the_interpreter_ends(tmp_path):
    path = tmp_path / "run.treeviz"
    run("inspector.keep(sys.argv[2])\nfor _ in range(45): params = update(params, x, y)", str(path))
    inspector = tv.GradientInspector.load(path)
    assert inspector.history.steps().tolist() == list(range(45))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_sees_what_was_read_and_does_not_hang(tmp_path):
    said = run(
        """
import warnings
warnings.simplefilter("ignore")  # of Python and JAX, about fork
for _ in range(40): params = update(params, x, y)
inspector.flush()
for _ in range(5): params = update(params, x, y)
if os.fork() == 0:
    print(len(inspector.history), "in the child", flush=True)
    os._exit(0)
os.wait()
print(len(inspector.history), "in the parent")
"""
    )
    assert said.split("\n")[:2] == ["40 in the child", "45 in the parent"]


# Under strain


def test_a_step_is_kept_that_another_thread_records_while_one_reads(layer, monkeypatch):
    inspector = tv.GradientInspector()
    measured = jax.block_until_ready(jax.jit(lambda p: tv.measure(grads=jax.grad(loss_fn)(p, x, y)))(layer))
    is_ready, n_others = Arrived.is_ready, itertools.count()

    def record_meanwhile(arrived):
        thread = threading.Thread(target=inspector.record, args=(measured,), kwargs={"step": 1000 + next(n_others)})
        thread.start()
        thread.join()
        return is_ready(arrived)

    monkeypatch.setattr(Arrived, "is_ready", record_meanwhile)
    for step in range(100):
        inspector.record(measured, step=step)
    monkeypatch.undo()
    steps = inspector.history.steps().tolist()
    assert sorted(steps) == [*range(100), *(1000 + k for k in range(next(n_others)))]
    assert max(steps) > 1000


def test_threads_may_train_at_the_same_time(layer):
    inspector = tv.GradientInspector()
    measure = jax.jit(lambda p: tv.measure(grads=jax.grad(loss_fn)(p, x, y)))
    measure(layer)
    ready = threading.Barrier(4)

    def record(k):
        ready.wait()
        for step in range(100):
            inspector.record(measure(layer), step=1000 * k + step)

    threads = [threading.Thread(target=record, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    steps = inspector.history.steps().tolist()
    assert sorted(steps) == [1000 * k + step for k in range(4) for step in range(100)]
    assert inspector.n_dropped == 0


def test_ctrl_c_goes_through_and_no_step_is_lost(layer, monkeypatch):
    inspector = tv.GradientInspector()
    step = inspector.watch(jax.jit(update_mlp))
    params = train(step, layer, 10)
    with monkeypatch.context() as patched:

        def interrupted(*_, **__):
            raise KeyboardInterrupt

        patched.setattr(recorder, "read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            inspector.flush()
    train(step, params, 10)
    assert inspector.history.steps().tolist() == list(range(20))


def test_an_inspector_that_nobody_has_any_more_is_gone(layer):
    inspector = tv.GradientInspector()
    step = inspector.watch(jax.jit(update_mlp))
    train(step, layer, 3)
    reference = weakref.ref(inspector._recorder)
    for thread in threading.enumerate():
        if thread.name == "treeviz params":  # at the parameters, which may still go on
            thread.join()
    del inspector, step
    gc.collect()
    assert reference() is None


def test_no_flag_of_jax_comes_in_the_way(layer):
    inspector = tv.GradientInspector()
    step = inspector.watch(jax.jit(explode))
    with jax.transfer_guard("disallow_explicit"), jax.debug_nans(False), jax.checking_leaks():
        train(step, layer, 30)
        assert "nonfinite" in {finding.kind for finding in inspector.findings}


def test_a_tapped_activation_is_a_source_of_its_own(mlp):
    @jax.jit
    def step(params, x, y):
        def loss(params):
            h = tv.tap(jax.nn.relu(x @ params[0]["weights"] + params[0]["biases"][None]), "hidden")
            return jnp.mean((h @ params[1]["weights"] - 1) ** 2)

        return jax.tree.map(lambda p, g: p - 0.01 * g, params, jax.grad(loss)(params))

    inspector = tv.GradientInspector()
    inspector.watch(step)(mlp, x, y)
    hidden = jax.nn.relu(x @ mlp[0]["weights"] + mlp[0]["biases"][None])
    np.testing.assert_allclose(norms_in(inspector, "hidden")[0], true_norms(hidden), rtol=2e-5)


# Parameters and updates


def test_the_ratio_of_updates_to_parameters_is_known_from_the_unchanged_step(layer):
    inspector = tv.GradientInspector(updates=True)
    step = inspector.watch(jax.jit(update_mlp))
    params, truth = layer, []
    for _ in range(3):
        new = step(params, x, y)
        changes = jax.tree.map(lambda a, b: np.asarray(b, np.float64) - np.asarray(a, np.float64), params, new)
        truth.append(true_norms(changes) / true_norms(params))
        params = new
    np.testing.assert_allclose(inspector.history.ratio("updates", "params").latest, truth, rtol=2e-5)
    view = inspector.render()
    assert [series.name for series in view.series] == ["grads.norm", "updates.ratio", "grads.ratio"]
    leaf = next(iter(view.table.leaves))
    assert leaf["updates_ratio"] == pytest.approx(truth[-1][0], rel=1e-4)
    assert "updates ÷ params" in repr(inspector) and not inspector.notes


def test_ratios_of_the_newest_heavy_step_are_shown_in_the_others(layer):
    inspector = tv.GradientInspector(heavy_every=2)
    train(inspector.watch(jax.jit(update_mlp)), layer, 4)
    assert inspector.history.steps("updates").tolist() == [0, 2]
    table = inspector.render().table
    assert "updates_ratio" in table.columns and "grads_ratio" not in table.columns
    ratio = inspector.history.ratio("updates", "params").latest[-1]
    np.testing.assert_allclose([leaf["updates_ratio"] for leaf in table.leaves], ratio, rtol=1e-6)


def test_updates_that_are_far_too_large_are_found_by_watch_for_each_of_two_networks(layer):
    inspector = tv.GradientInspector(updates=True)

    @jax.jit
    def step(generator, discriminator):
        of_generator = jax.grad(lambda g: loss_fn(g, x, y))(generator)
        of_discriminator = jax.grad(lambda d: loss_fn(d, x, -y))(discriminator)
        small, large = (
            jax.tree.map(lambda p, g, r=rate: p - r * g, params, gradients)
            for rate, params, gradients in ((1e-3, generator, of_generator), (1e4, discriminator, of_discriminator))
        )
        return small, jax.tree.map(lambda p: jnp.clip(p, -1, 1), large)

    watched = inspector.watch(step)
    generator, discriminator = layer, jax.tree.map(lambda p: p * 0.5, layer)
    for _ in range(25):
        generator, _ = watched(generator, discriminator)
    ratios = [finding for finding in inspector.findings if finding.kind == "ratio"]
    assert [(finding.source, finding.path) for finding in ratios] == [("updates of discriminator", "")]
    assert "Lower the learning rate" in ratios[0].advice
    assert [s.name for s in inspector.render("grads of discriminator").series][1] == "updates of discriminator.ratio"


def test_what_is_not_measured_is_said_below_the_tree(layer):
    inspector = tv.GradientInspector(updates=True)
    step = inspector.watch(jax.jit(lambda params: jax.grad(loss_fn)(params, x, y)))
    step(layer)
    (note,) = inspector.notes
    assert note.startswith("updates are not measured: no result of the step is for sure the new params[0]")
    assert note[:40] in repr(inspector)


def test_the_first_bad_leaf_in_backward_order_is_told_by_the_order_of_use_not_of_keys():
    params = {"z first": jnp.ones(3), "m second": jnp.ones(3), "a last": jnp.ones(3)}

    @jax.jit
    def step(params, x):
        def loss(p):
            return jnp.sum(jnp.sqrt(x * p["z first"] * p["m second"]) * p["a last"] * jnp.sqrt(x))

        return jax.tree.map(lambda p, g: p - 0 * g, params, jax.grad(loss)(params))

    heard = []
    inspector = tv.GradientInspector(on_finding=heard.append)
    watched = inspector.watch(step)
    watched(params, jnp.ones(3))
    watched(params, jnp.zeros(3))  # the derivative of the first square root
    first = next(finding for finding in inspector.findings if finding.kind == "nonfinite")
    assert first.path == "['m second']"
    assert "the model uses it last" in first.advice
    assert [f.path for f in heard if f.kind == "nonfinite"] == ["['m second']"]


def test_parameters_that_gradients_have_ruined_are_no_finding_of_their_own(layer):
    inspector = tv.GradientInspector(updates=True)
    watched = inspector.watch(jax.jit(update_mlp))
    params = watched(layer, x, y)
    params = watched(params, x * np.inf, y)
    watched(params, x, y)
    nonfinite = [finding.source for finding in inspector.findings if finding.kind == "nonfinite"]
    assert nonfinite == ["grads"]
