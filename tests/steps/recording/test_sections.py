"""A tree that changes during a run: no step is lost, and the newest tree is shown."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import treeviz as tv
from treeviz.steps.measure import MeasuredTree, Measurement
from treeviz.steps.recording.history import MOST_SECTIONS, main_source
from treeviz.steps.statistics import LIGHT

pytestmark = pytest.mark.oldest_jax


def measurement(**trees: list[int]) -> Measurement:
    """Of trees whose leaves are all ones, by their sizes."""
    sources = [
        MeasuredTree(name, tuple(f"[{i}]" for i in range(len(sizes))), tuple(sizes), ("float32",) * len(sizes),
                     (True,) * len(sizes), tuple(map(str, sizes)))
        for name, sizes in sorted(trees.items())
    ]  # fmt: skip
    one = np.float32(1).view(np.uint32)
    packed = {
        name: np.array([[1 << 14 | 1 << 16, one, one, 0]] * len(sizes), np.uint32) for name, sizes in trees.items()
    }
    return Measurement(packed, sources, LIGHT)


def recorded(*measurements: Measurement) -> tv.GradientInspector:
    inspector = tv.GradientInspector()
    for each in measurements:
        inspector.record(each)
    return inspector


def steps_of(inspector: tv.GradientInspector) -> dict[str, list[int]]:
    return {name: inspector.history.steps(name).tolist() for name in inspector.history.sources}


def test_a_layer_that_is_added_begins_a_section_that_is_shown_and_every_step_is_there():
    @jax.jit
    def update(params):
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(lambda p: sum(jnp.sum(w**2) for w in p))(params))

    inspector = tv.GradientInspector(updates=True)
    watched, params = inspector.watch(update), [jnp.ones(3)]
    for step in range(5):
        if step == 3:
            params = [*params, jnp.full(2, 4.0)]
        params = watched(params)
    assert steps_of(inspector)["grads"] == [0, 1, 2] and steps_of(inspector)["grads since step 3"] == [3, 4]
    norms = [[2 * 3**0.5 * 0.8**3, 2 * 32**0.5], [2 * 3**0.5 * 0.8**4, 1.6 * 32**0.5]]
    np.testing.assert_allclose(inspector.history.values("grads since step 3", "norm").latest, norms, rtol=1e-6)
    assert inspector.history.has_ratio("updates since step 3", "params since step 3")
    view = inspector.render()
    assert len(view.table) == 3 and "another tree since step 3" in view.text()
    assert {"grads norm", "updates ÷ params"} <= {column.title for column in view.columns}
    assert len(inspector.render("grads").table) == 2 and inspector.n_dropped == 0
    assert inspector.notes == [
        "grads: leaves were added, removed or reshaped, so there are 2 trees: 'grads' (steps 0 to 2), "
        "'grads since step 3' (steps 3 to 4). The last one is shown; inspector.render(name) shows another."
    ]
    assert inspector.notes[0] in str(inspector).replace("\n ", "")


def test_other_shapes_begin_a_section_with_their_sizes():
    history = recorded(measurement(grads=[4, 2]), measurement(grads=[9, 2])).history
    assert history.sources["grads since step 1"].sizes == (9, 2) and main_source(history) == "grads since step 1"


def test_two_models_that_take_turns_have_a_section_each():
    turns = [measurement(grads=[4]), measurement(grads=[4, 2])] * 3
    assert steps_of(recorded(*turns)) == {"grads": [0, 2, 4], "grads since step 1": [1, 3, 5]}


def test_parameters_that_are_measured_later_are_in_the_section_of_their_gradients():
    light, heavy = {"grads": [4, 2]}, {"grads": [4, 2], "params": [4, 2], "updates": [4, 2]}
    before = measurement(grads=[4], params=[4], updates=[4])
    history = recorded(before, measurement(**light), measurement(**heavy), before).history
    assert history.steps("params since step 1").tolist() == [2] and history.steps("params").tolist() == [0, 3]
    assert history.has_ratio("updates since step 1", "params since step 1")


def test_only_the_tree_that_changes_begins_a_section_and_an_activation_may_have_any_batch():
    a, b = ({"grads": [4], "grads of critic": [n], "hidden": [n]} for n in (4, 5))
    assert steps_of(recorded(measurement(**a), measurement(**b))) == {
        "grads": [0, 1],
        "grads of critic": [0],
        "hidden": [0, 1],
        "grads of critic since step 1": [1],
    }


def test_a_tree_that_always_changes_costs_a_warning_and_its_steps_and_the_inspector_is_printed():
    inspector = recorded(*(measurement(grads=[1 + n], loss=[1]) for n in range(MOST_SECTIONS + 3)))
    with pytest.warns(RuntimeWarning, match="a step was not recorded: grads has had 16 other structures before"):
        inspector.flush()
    assert inspector.n_dropped == 3 and "3 steps not shown" in repr(inspector)


def test_a_file_holds_the_sections_and_a_loaded_run_goes_on_in_them(tmp_path):
    a, b = measurement(grads=[4]), measurement(grads=[4, 2])
    inspector = recorded(a)
    inspector.keep(tmp_path / "run.treeviz")
    for each in (b, b):
        inspector.record(each)
    inspector.flush()
    loaded = tv.GradientInspector.load(tmp_path / "run.treeviz")
    for each in (b, a):
        loaded.record(each)
    assert steps_of(loaded) == {"grads": [0, 4], "grads since step 1": [1, 2, 3]}
    (note,) = inspector.notes
    assert loaded.notes == [note.replace("0 to 0", "0 to 4").replace("to 2)", "to 3)")]


def test_what_was_found_before_the_tree_changed_is_not_marked_in_the_new_one():
    bad = measurement(grads=[4])
    bad.packed["grads"][0, 3] = 2
    inspector = recorded(bad, measurement(grads=[5]))
    assert [finding.source for finding in inspector.findings] == ["grads"]
    assert [len(inspector.render(name).series[0].marks) for name in (None, "grads")] == [0, 1]


def test_a_section_that_begins_at_the_same_step_again_has_a_name_of_its_own():
    inspector = tv.GradientInspector()
    for n in range(4):
        inspector.record(measurement(grads=[1 + n]), step=0)
    names = ["grads", "grads since step 0", "grads since step 0 again", "grads since step 0 again again"]
    assert list(inspector.history.sources) == names
