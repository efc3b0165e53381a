"""`record_scalars`: a loss, a learning rate and a batch beside the gradients of each step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from packed import SOURCE, STATISTICS, packed_measurement

import treeviz as tv
from treeviz.steps.measure import Measurement
from treeviz.steps.recording import history as scalars
from treeviz.steps.recording.recorder import ArrivedScalars

pytestmark = pytest.mark.oldest_jax


def trained(losses, inspector: tv.GradientInspector | None = None, *, bad: int = -1) -> tv.GradientInspector:
    """A run with these losses, each of a batch of two."""
    inspector = inspector or tv.GradientInspector()
    for step, loss in enumerate(losses):
        inspector.record(packed_measurement(0, n_nonfinite=int(step == bad)))
        inspector.record_scalars(loss=loss, lr=0.1, batch=np.array([[step], [step + 1000]]))
    return inspector


def noise(n: int) -> np.ndarray:
    return 2.5 + 0.05 * np.random.default_rng(0).standard_normal(n)


# Which steps


def test_scalars_belong_to_the_step_that_was_called_last_whatever_their_type():
    inspector = tv.GradientInspector(every=2)

    @inspector.watch
    @jax.jit
    def update(w):
        loss, grads = jax.value_and_grad(lambda w: jnp.sum(w**2))(w)
        return w - grads, loss

    w = jnp.ones(2)
    for step in range(4):
        w, _ = update(w)  # the loss that the user records is taken, not this one
        inspector.record_scalars(loss=jnp.bfloat16(step), lr=step, is_last=np.array([step == 3]), x=np.float32(step))
    assert inspector.to_records("scalars") == [
        {"first_step": step, "step": step, "loss": step, "lr": step, "is_last": step == 3, "x": step}
        for step in range(4)
    ], "also of calls that were not inspected"
    inspector.reset()
    inspector.record_scalars(loss=1.0)
    inspector.record_scalars(loss=1.0)
    inspector.record_scalars(100, loss=1.0)
    inspector.flush()
    assert inspector._recorder.history.scalars.values("loss").until.tolist() == [0, 1, 100], "counted before any call"


def test_a_call_of_several_inner_steps_has_a_value_for_each_or_for_the_last():
    rows = np.stack([packed_measurement(i).packed["grads"] for i in range(3)])
    inspector = tv.GradientInspector()
    for call in range(2):
        inspector.record(Measurement({"grads": rows}, [SOURCE], STATISTICS))
        inspector.record_scalars(loss=jnp.arange(3.0) + 3 * call, lr=call)
    history = inspector.history
    loss, lr = (history.scalars.values(name) for name in ("loss", "lr"))
    assert history.steps().tolist() == loss.until.tolist() == [0, 0, 0, 1, 1, 1]
    assert history.values().inner[1].tolist() == loss.inner[1].tolist() == [0, 1, 2] * 2
    assert loss.latest.tolist() == [0, 1, 2, 3, 4, 5] and loss.steps_text(4) == "call 1, inner step 1"
    assert [lr.steps_text(entry) for entry in range(2)] == ["call 0", "call 1"], "one for the call"


def test_no_device_is_waited_for_until_all_is_asked_for(monkeypatch):
    inspector = tv.GradientInspector()
    monkeypatch.setattr(ArrivedScalars, "is_ready", lambda self: False)
    trained(jnp.ones(200), inspector)
    assert not inspector._recorder.history.scalars and len(inspector._recorder.history) > 0
    assert inspector.history.scalars.n_appended == 200 and not inspector._recorder._scalars


def test_scalars_that_cannot_be_read_are_counted_and_the_others_are_there():
    inspector = trained(noise(3))
    lost = jnp.ones(())
    inspector.record_scalars(loss=lost)
    lost.delete()
    assert inspector.history.scalars.n_appended == 3 and "scalars of 1 step not shown" in str(inspector)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"loss": np.ones((2, 2))}, ValueError, r"loss is an array of \(2, 2\)"),
        ({"loss": "low"}, TypeError, "loss is a str of <U3, not a real number"),
        ({"loss": jnp.complex64(1j)}, TypeError, "of complex64, not a real number"),
        ({"loss": 1.0, "batch": np.ones(3)}, TypeError, "batch is float64"),
        ({f"loss {i}": 1.0 for i in range(65)}, ValueError, "more than 64 names"),
    ],
)
def test_what_is_no_scalar_is_refused(given, error, message):
    with pytest.raises(error, match=message):
        tv.GradientInspector().record_scalars(**given)


def test_a_traced_scalar_is_refused_with_what_to_do():
    inspector = tv.GradientInspector()
    with pytest.raises(TypeError, match=r"loss is traced\. Call record_scalars outside the jitted step"):
        jax.eval_shape(lambda x: inspector.record_scalars(loss=x), 1.0)


# What they mean


def test_a_loss_that_jumps_is_found_with_its_batch_once():
    losses, told = noise(120), []
    losses[80] = 4.5
    inspector = trained(losses, tv.GradientInspector(on_finding=told.append))
    (finding,) = inspector.findings
    assert (finding.kind, finding.source, finding.path, finding.first) == ("spike", "scalars", "loss", 80)
    assert "The loss jumped to 4.5 at step 80, 1." in finding.sentence
    assert dict(finding.numbers)["times"] == pytest.approx(4.5 / np.median(losses[30:80]), rel=0.02)
    assert finding.sentence.endswith(" The batch was 80, 1080.") and told == [finding]
    view = inspector.render()
    assert [(mark.row, mark.column) for mark in view.series[0].marks] == [(0, 80)]
    assert [(mark.row, mark.column) for mark in view.scalars[0].marks] == [(0, 80)]
    assert "loss 2.5" in view.text() and "lr 0.1" in view.text()


@pytest.mark.parametrize("of", ["heavy tails", "negative", "falling", "a constant", "a metric"])
def test_losses_of_ordinary_runs_do_not_jump(of):
    rng = np.random.default_rng(1)
    losses = {
        "heavy tails": np.exp(rng.laplace(0, 0.2, 400)),
        "negative": rng.standard_normal(400) - 3,
        "falling": 10 ** (-np.arange(400) / 50 + 0.1 * rng.standard_normal(400)),
        "a constant": np.ones(400),
        "a metric": noise(400),
    }[of]
    inspector = tv.GradientInspector()
    inspector.record(packed_measurement(0))
    for step, loss in enumerate(losses):
        inspector.record_scalars(step, **{"accuracy" if of == "a metric" else "loss": loss})
    inspector.record_scalars(400, **({"accuracy": 1e6} if of == "a metric" else {"loss": losses[-1]}))
    assert not inspector.findings


def test_a_negative_loss_that_jumps_is_found_too():
    inspector = tv.GradientInspector()
    inspector.record(packed_measurement(0))
    for step, loss in enumerate([*(noise(60) - 12.5), 20.0]):
        inspector.record_scalars(step, elbo_loss=loss)
    assert "The elbo_loss jumped to 20 at step 60 from a median of -10" in inspector.findings[0].sentence


def test_a_loss_that_is_nan_stops_the_run_unless_the_gradients_say_it_first():
    with pytest.raises(tv.StopTraining, match=r"loss was not finite at step 3. The batch was 3, 1003\."):
        trained([1.0, 1.0, 1.0, jnp.nan], tv.GradientInspector(raise_on="nonfinite")).flush()
    first, *others = trained([1.0, 1.0, 1.0, jnp.nan], bad=3).findings
    assert first.source == "grads" and not others and "The batch was 3, 1003." in first.sentence


# Where they go


def test_files_and_a_journal_have_all_of_them_again(tmp_path):
    losses = [*noise(5), np.nan, np.inf, -np.inf]
    inspector = tv.GradientInspector()
    path = inspector.keep(tmp_path / "run.treeviz")
    trained(losses, inspector)
    inspector.record_scalars(loss=1.0, batch=["a.png", "b.png"])
    inspector.flush()
    inspector.save(tmp_path / "saved.treeviz")
    for file in (path, tmp_path / "saved.treeviz"):  # with a journal and without
        loaded = tv.GradientInspector.load(file)
        np.testing.assert_equal(loaded.to_records("scalars"), inspector.to_records("scalars"))
        assert len(loaded.history) == 8 and loaded.history.scalars.n_appended == 9
        assert loaded.history.scalars.batches[3].ids.tolist() == [3, 1003]
        assert loaded.history.scalars.batches[7].ids == "a.png, b.png"
        assert loaded.findings == inspector.findings
    trained([1.0], loaded)
    assert loaded.history.scalars.values("loss").until[-1] == 8, "counted on"
    inspector._recorder.close()


def test_of_a_long_run_the_batches_of_large_losses_are_kept(monkeypatch):
    monkeypatch.setattr(scalars, "_BATCHES_BYTES", 4_000)
    losses = noise(400)
    losses[100] = 9.0
    kept = trained(losses).history.scalars.batches
    assert 100 in kept and 399 in kept and 200 not in kept and 10 < len(kept) < 40


def test_loggers_get_them_in_a_section_of_their_own():
    inspector, rows = tv.GradientInspector(), {}
    with inspector.log_to(rows.__setitem__, every=1):
        trained([1.0, 2.0], inspector)
    assert [rows[step]["scalars/loss"] for step in (0, 1)] == [1.0, 2.0]
