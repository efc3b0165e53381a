"""A result of a step that is not finite while all gradients are: a loss, a parameter that an update made, a metric."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import treeviz as tv
from treeviz.steps.findings.find import findings
from treeviz.steps.findings.finding import Thresholds

pytestmark = pytest.mark.oldest_jax


def update(params, x, offset, rate, n_done):
    """A loss whose offset reaches no gradient, an update that divides by a rate, and the mean of what was done."""

    def loss(params):
        return jnp.mean((x @ params["w"] + params["b"][None]) ** 2) + jnp.log(offset)

    value, grads = jax.value_and_grad(loss)(params)
    params = jax.tree.map(lambda p, g: p - 0.01 * g / rate, params, grads)
    return params, {"cost": value, "return": jnp.where(n_done > 0, 1.0, 0.0) / n_done}


inspector = tv.GradientInspector(keep_inputs=True, raise_on="nonfinite", thresholds=Thresholds(fewest_steps=5))
watched = inspector.watch(jax.jit(update))


def train(n_steps: int = 12, **bad):
    """The findings of a run that gets another number at some steps: offset={7: -1.0}."""
    inspector.reset()
    params = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
    for step in range(n_steps):
        numbers = [jnp.float32(bad.get(name, {}).get(step, 1.0)) for name in ("offset", "rate", "n_done")]
        params, _ = watched(params, bad.get("x", {}).get(step, jnp.ones((4, 3))), *numbers)
    return inspector.findings


def stopped(**bad) -> str:
    with pytest.raises(tv.StopTraining) as stop:
        train(**bad)
    return str(stop.value)


def test_a_healthy_run_has_gradients_only_and_nothing_is_said_of_it():
    assert train() == []
    assert list(inspector.history.sources) == ["grads"]


@pytest.mark.parametrize(("offset", "what"), [(-1.0, "NaN"), (0.0, "infinite")])
def test_a_loss_that_is_not_finite_while_gradients_are_stops_the_run_and_its_operation_is_located(offset, what):
    told = stopped(offset={7: offset})
    assert told.startswith(f"nonfinite: The loss, [1]['cost'], was {what} at step 7, while all gradients were finite: ")
    (found,) = findings(inspector.history)
    assert (found.severity, found.source, found.path, found.first) == ("error", "loss result", "[1]['cost']", 7)
    origin = inspector.locate_nan()
    assert origin is not None and (origin.primitive, origin.step) == ("log", 7)


def test_a_nan_that_an_update_makes_of_finite_gradients_is_told_with_the_parameters_and_not_again_with_what_follows():
    told = stopped(rate={5: 0.0, 6: 0.0}, x={5: jnp.zeros((4, 3))})
    says = "nonfinite: New parameters (['b'], ['w']) were NaN at step 5, while all gradients were finite: "
    says += "the update made them NaN"
    assert told.startswith(f"{says}. Look at what the optimizer divides by, as in g / norm(g)")
    assert "nonfinite" in inspector.history.statistics("parameter result")
    (found,) = findings(inspector.history)
    assert (found.path, found.leaves) == ("['b']", (0, 1))
    assert stopped(rate={0: np.nan}).startswith(f"{says.replace('step 5', 'step 0')}, or they were before the first")


def test_a_metric_that_is_nan_at_first_is_information_and_stops_nothing():
    (found,) = train(n_done={0: 0.0, 1: 0.0})
    assert (found.kind, found.severity, found.path, found.first, found.until) == (
        "result",
        "info",
        "[1]['return']",
        0,
        1,
    )
    assert found.sentence.startswith("A result of the step, [1]['return'], was NaN at step 0, and in 2 inspected steps")
    assert inspector._inputs is not None and inspector._inputs.bad is None


def test_a_metric_that_becomes_nan_and_stays_it_is_a_warning():
    (found,) = train(n_done=dict.fromkeys(range(6, 12), 0.0))
    assert (found.kind, found.severity, found.first) == ("result", "warning", 6)
    (found,) = train(n_done=dict.fromkeys(range(6, 11), 0.0))
    assert found.severity == "info"  # it is finite again


def test_results_that_nan_gradients_have_ruined_are_no_findings_of_their_own():
    stopped(x={7: jnp.full((4, 3), jnp.nan)}, n_done={8: 0.0})
    assert [found.source for found in findings(inspector.history)] == ["grads"]


def test_parameters_that_no_update_changes_are_found_after_32_steps_and_not_those_that_change_later():
    still = dict.fromkeys(range(32), np.inf)
    (found,) = train(32, rate=still)
    assert (found.kind, found.severity, found.path, found.first, found.until) == ("frozen", "warning", "", 0, 31)
    assert found.sentence == "All parameters got no update in steps 0 to 31, though there is a gradient."
    assert train(31, rate=still) == [] and list(inspector.history.sources) == ["grads"]
    assert train(33, rate=still) == []


def test_what_was_found_of_results_is_shown_saved_and_loaded(tmp_path):
    stopped(offset={7: -1.0})
    text = inspector.render().text()
    assert "error: The loss, [1]['cost'], was NaN at step 7" in text
    (series,) = inspector.render().series
    assert [(mark.row, mark.kind) for mark in series.marks] == [(0, "nonfinite")]
    assert "cost" in inspector.render("loss result").text()
    loaded = tv.GradientInspector.load(inspector.save(tmp_path / "run.treeviz"))
    assert [found.sentence for found in loaded.findings] == [found.sentence for found in findings(inspector.history)]


@pytest.mark.parametrize("factor", [2.0, 10.0, 1e4])
def test_a_run_that_diverged_is_told_once_by_its_loss_and_since_when(factor):
    """Under descent that makes a parameter larger in each step, by this factor, however long it takes."""

    @jax.jit
    def step(w):
        value, g = jax.value_and_grad(lambda w: (w**2).sum())(w)
        return w - (1 + factor) / 2 * g, value

    inspector, w = tv.GradientInspector(), jnp.ones(2)
    watched = inspector.watch(step)
    while np.isfinite(w).any():
        w, _ = watched(w)
    watched(w)
    (found,) = (each for each in inspector.findings if each.kind == "nonfinite")
    assert (found.kind, found.source) == ("nonfinite", "loss result")
    assert " The training diverged: the norm had grown " in found.sentence and "a lower learning rate" in found.advice


@pytest.mark.parametrize("bad", ["a high plateau", "one old spike", "nothing"])
def test_a_run_whose_norm_does_not_grow_at_its_end_is_not_told_to_diverge(bad):
    inspector = tv.GradientInspector()
    watched = inspector.watch(jax.jit(jax.value_and_grad(lambda w, x, y: (w * x).sum() + y)))
    for i in range(60):
        is_large = i >= 15 if bad == "a high plateau" else i == 15 if bad == "one old spike" else False
        watched(
            jnp.ones(2),
            np.float32([1, 2]) * (300 if is_large else 1) * (1 + i % 3),
            np.float32(np.inf if i == 50 else 0),
        )
    found = next(each for each in inspector.findings if each.kind == "nonfinite")
    assert found.first == 50 and "diverged" not in found.sentence
    assert "beyond the largest of its dtype" in found.advice
