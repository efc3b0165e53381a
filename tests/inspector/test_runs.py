"""Cells that are run again: a watched step stays so, a new definition begins a run, and each run is told apart."""

from __future__ import annotations

import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import treeviz as tv
from treeviz.inspector.runs import MOST_EARLIER

pytestmark = pytest.mark.oldest_jax

DEFINITION = """
    @jax.jit
    def update(w):
        return w - RATE * jax.grad(lambda w: jnp.sum(w**2))(w)
"""
TRAIN = """
    w = jnp.ones(4)
    for _ in range(N):
        w = watched(w)
"""


class Notebook:
    """Runs cells, each compiled anew, in one namespace."""

    def __init__(self, **options) -> None:
        self.inspector = tv.GradientInspector(**options)
        self.names = {"jax": jax, "jnp": jnp, "tv": tv, "inspector": self.inspector, "RATE": 0.1, "N": 3}

    def run(self, *cells: str, **names) -> None:
        self.names.update(names)
        for cell in cells:
            exec(compile(textwrap.dedent(cell), "cell", "exec"), self.names)

    @property
    def steps(self) -> dict[str, list[int]]:
        return {name: self.inspector.history.steps(name).tolist() for name in self.inspector.history.sources}


WATCH = "watched = inspector.watch(update)"


def test_watching_again_gives_the_same_and_the_steps_go_on():
    notebook = Notebook()
    notebook.run(DEFINITION, WATCH, TRAIN)
    first = notebook.names["watched"]
    notebook.run("update = watched", WATCH, TRAIN)
    assert notebook.names["watched"] is first
    notebook.run("update = update.step", WATCH, TRAIN)
    assert notebook.names["watched"] is first
    assert notebook.steps == {"grads": list(range(9))} and notebook.inspector.earlier_runs == []


def test_a_step_that_another_inspector_watches_is_watched_as_itself():
    old, new = Notebook(), Notebook()
    old.run(DEFINITION, WATCH, TRAIN)
    new.run("watched = inspector.watch(update)", TRAIN, update=old.names["watched"])
    assert new.steps == old.steps == {"grads": [0, 1, 2]}


def test_a_definition_that_is_run_again_begins_a_run_that_is_shown_and_the_one_before_is_kept():
    notebook = Notebook(run="by hand")
    notebook.run(DEFINITION, WATCH, TRAIN)
    notebook.run(DEFINITION, WATCH, TRAIN, RATE=0.2, N=2)
    (before,) = notebook.inspector.earlier_runs
    np.testing.assert_allclose(before.values("grads", "norm").latest[:, 0], 4 * 0.8 ** np.arange(3), rtol=1e-6)
    assert notebook.steps == {"grads": [0, 1]}
    np.testing.assert_allclose(
        notebook.inspector.history.values("grads", "norm").latest[:, 0], 4 * 0.6 ** np.arange(2), rtol=1e-6
    )
    for run, told in ((0, "run by hand #2 · 2 steps"), (-1, "run by hand · 3 steps")):
        assert told in notebook.inspector.render(run=run).text()
    assert "inspector.render(run=-1) shows the previous one" in " ".join(notebook.inspector.notes)
    with pytest.raises(LookupError):
        notebook.inspector.render(run=-2)
    assert before.run != notebook.inspector.history.run


@pytest.mark.parametrize("order", ["ab", "ba", "b"])
def test_two_steps_that_are_defined_again_keep_their_names(order):
    def cell(name):
        return f"{DEFINITION.replace('update', f'update_{name}')}\n    watched_{name} = inspector.watch(update_{name})"

    train = "for _ in range(3): watched_a(jnp.ones(2)); watched_b(jnp.ones(3))"
    notebook = Notebook()
    notebook.run(cell("a"), cell("b"), train)
    notebook.run(*map(cell, order), train)
    assert notebook.steps == {f"grads of update_{k}": [0, 1, 2] for k in "ab"}
    assert [source.sizes for source in notebook.inspector.history.sources.values()] == [(2,), (3,)]
    assert len(notebook.inspector.earlier_runs) == 1


def test_two_steps_of_one_factory_are_two_steps_and_both_again_are_one_run():
    notebook = Notebook()
    factory = (
        "def make():\n    " + "\n    ".join(textwrap.dedent(DEFINITION).strip().split("\n")) + "\n    return update"
    )
    both = "a, b, c = inspector.watch(make()), inspector.watch(make()), inspector.watch(make())"
    train = "for _ in range(2): a(jnp.ones(2)); b(jnp.ones(3)); c(jnp.ones(4))"
    notebook.run(factory)
    for n_before in (0, 1, 2):
        notebook.run(both, train)
        assert notebook.steps == {f"grads of {name}": [0, 1] for name in ("update", "update 2", "update 3")}
        assert len(notebook.inspector.earlier_runs) == n_before


def test_a_definition_that_is_corrected_before_its_first_step_takes_the_place_of_the_other():
    notebook = Notebook()
    notebook.run(DEFINITION, WATCH, DEFINITION, WATCH, TRAIN)
    assert notebook.steps == {"grads": [0, 1, 2]} and notebook.inspector.earlier_runs == []


def test_two_lambdas_are_two_steps():
    inspector = tv.GradientInspector()
    step = inspector.watch(jax.jit(lambda w: jax.grad(lambda w: jnp.sum(w**2))(w)))
    other = inspector.watch(jax.jit(lambda w: jax.grad(lambda w: jnp.sum(w**3))(w)))
    step(jnp.ones(2)), other(jnp.ones(2))
    assert list(inspector.history.sources) == ["grads of <lambda>", "grads of <lambda> 2"]


def test_of_the_runs_before_only_the_newest_are_kept():
    notebook = Notebook()
    for n in range(MOST_EARLIER + 3):
        notebook.run(DEFINITION, WATCH, TRAIN, N=n + 1)
    assert [len(history) for history in notebook.inspector.earlier_runs] == [3, 4, 5, 6]


def test_reset_forgets_all_steps_and_counts_from_zero():
    notebook = Notebook(every=2)
    notebook.run(DEFINITION, WATCH, TRAIN)
    notebook.inspector.record(tv.measure(mine=[jnp.ones(2)]))
    notebook.inspector.reset()
    assert repr(notebook.inspector) == "GradientInspector: nothing was measured yet"
    notebook.run(TRAIN)
    notebook.inspector.record(tv.measure(mine=[jnp.ones(2)]))
    assert notebook.steps == {"grads": [0, 2], "mine": [0]} and notebook.inspector.earlier_runs == []


def test_steps_are_counted_on_from_that_of_a_checkpoint():
    notebook = Notebook(every=2)
    notebook.run(DEFINITION, WATCH, TRAIN)
    notebook.inspector.count_from(40)
    notebook.run(TRAIN)
    notebook.inspector.record(tv.measure(mine=[jnp.ones(2)]))
    assert notebook.steps == {"grads": [0, 2, 40, 42], "mine": [40]}
    with pytest.raises(ValueError, match="step 42 is not after step 42, the newest"):
        notebook.inspector.count_from(42)


def test_a_finding_of_a_new_run_is_told_again_and_its_inputs_are_kept():
    told = []
    notebook = Notebook(on_finding=told.append, keep_inputs=True)
    bad = DEFINITION.replace("w**2", "jnp.log(w - 1)")
    for _ in range(2):
        notebook.run(bad, WATCH, TRAIN)
        notebook.inspector.flush()
    assert [finding.kind for finding in told] == ["nonfinite"] * 2 and len(notebook.inspector.findings) == 1
    assert notebook.inspector.locate_nan().step == 0


def test_a_run_that_was_to_be_stopped_may_be_run_again():
    notebook = Notebook(raise_on="nonfinite")
    notebook.run(DEFINITION.replace("w**2", "jnp.log(w - 1)"), WATCH)
    with pytest.raises(tv.StopTraining):
        notebook.run(TRAIN + "\n    inspector.flush()")
    notebook.run(DEFINITION, WATCH, TRAIN)
    assert notebook.steps == {"grads": [0, 1, 2]} and not notebook.inspector.findings


def test_each_run_has_a_file_of_its_own_with_its_name(tmp_path):
    notebook = Notebook(run="a")
    notebook.inspector.keep(tmp_path / "run.treeviz")
    for n in (1, 2, 3):
        notebook.run(DEFINITION, WATCH, TRAIN, N=n)
    notebook.inspector.reset(run="last")
    notebook.run(TRAIN)
    notebook.inspector.flush()
    runs = [tv.GradientInspector.load(tmp_path / f"run{n}.treeviz").history for n in ("", "-2", "-3", "-4")]
    assert [(len(run), run.name) for run in runs] == [(1, "a"), (2, "a #2"), (3, "a #3"), (3, "last")]
    inspector = tv.GradientInspector.load(tmp_path / "run.treeviz", run="first")
    assert "run first" in inspector.render().table.headline
