"""Faults of activations are found with their layer and step; healthy runs have none."""

from __future__ import annotations

import numpy as np
import pytest
from norm_runs import ActivationRun as Run

from treeviz.inspector.views import whole_view
from treeviz.tree.query import find

FROM = 40


def said(run: Run, **how) -> list[tuple[str, str, str, int]]:
    return [(found.kind, found.source, found.path, found.first) for found in run.findings(**how)]


@pytest.mark.parametrize("n_examples", [1, 2, 32])
def test_healthy_runs_have_none(n_examples):
    for seed in range(3):
        assert said(Run(seed=seed, n_examples=n_examples)) == []


def test_without_lists_of_units_their_number_must_be_steady():
    for n_examples in (1, 2, 32):
        run = Run(n_examples=n_examples)
        run.LISTED = 0
        assert said(run) == []
        run.is_dead |= np.random.default_rng(1).random(run.is_dead.shape) < 0.9  # sparse, but not the same units
        assert said(run) == []
    run = Run()
    run.LISTED = 0
    run.is_dead[FROM:, [run.at["['l2']['w']"], run.at["['l3']['w']"]], 10:60] = True
    (found,) = run.findings()
    assert found.sentence.startswith("50 of 64 units that ['l2']['w'] reads are zero for every example since step 40.")


def test_few_dead_units_are_usual():
    run = Run()
    run.is_dead[:, :, :30] = True
    assert said(run) == []


def test_dead_units_are_named_by_the_leaf_that_reads_them():
    run = Run()
    run.is_dead[FROM:, run.at["['l3']['w']"], 10:60] = True
    (found,) = run.findings()
    assert (found.kind, found.source, found.path, found.first) == ("dead", "inputs", "['l3']['w']", FROM)
    assert found.sentence == (
        "50 of 64 units (10, 11, 12, 13, 14, 15, 16, 17, …) that ['l3']['w'] reads are zero for every example since "
        "step 40."
    )
    assert "after ['l2']['b']" in found.advice
    table = whole_view(run.history(), "run", [found]).table
    assert find(table, "dead:>40")[-1].keystr == "['l3']['w']"


def test_units_that_are_zero_in_the_data_are_no_dead_ones():
    run = Run()
    run.is_dead[:, run.at["['l0']['w']"]] = True
    run.forward.remove("['embed']")
    assert said(run) == []


def test_a_dead_layer_is_named_where_the_gradients_are_lost():
    run = Run()
    lost = [run.at[f"['l{i}']['{key}']"] for i in range(3) for key in "wb"] + [
        run.at["['embed']"],
        run.at["['l3']['w']"],
    ]
    run.grads[FROM:, lost] = 0.0
    run.is_dead[FROM:, run.at["['l3']['w']"]] = True
    run.levels["inputs"][FROM:, run.at["['l3']['w']"]] = 0.0
    (found,) = run.findings()
    assert (found.kind, found.source, found.first) == ("dead", "grads", FROM)
    assert "All units between ['l2']['b'] and ['l3']['w'] are zero for every example" in found.advice
    assert "tv.tap" not in found.advice


def test_features_that_are_equal_in_all_examples():
    run = Run()
    run.constant[FROM:, [run.at[f"['l{i}']['w']"] for i in (3, 4, 5)]] = run.N_UNITS
    assert said(run) == [("collapsed", "inputs", "['l3']['w']", FROM)]


def test_saturated_units():
    run = Run()
    run.levels["inputs"][FROM:, run.at["['l2']['w']"]] = 0.98
    run.largest[FROM:, run.at["['l2']['w']"]] = 1.0
    assert said(run) == [("saturated", "inputs", "['l2']['w']", FROM)]


@pytest.mark.parametrize(("factor", "verb"), [(10.0, "grow"), (0.1, "vanish")])
def test_a_signal_that_grows_or_vanishes_with_depth(factor, verb):
    run = Run()
    for i in range(run.N_LAYERS):
        run.levels["inputs"][:, run.at[f"['l{i}']['w']"]] *= factor**i
    (found,) = run.findings()
    assert (found.kind, found.source, found.path) == ("signal", "inputs", "['l5']['w']")
    assert f"Activations {verb} " in found.sentence and "-fold with depth" in found.sentence


def test_rows_of_an_embedding_that_are_not_read_are_information():
    run = Run()
    run.rows_read[:] = 12
    (found,) = run.findings()
    assert (found.kind, found.path, found.severity) == ("unread", "['embed']", "info")
    assert found.sentence == "Each of 10 inspected steps reads 12 of 1,000 rows of ['embed']."
    run.unread = np.arange(3, 11)
    (found,) = run.findings()
    assert found.sentence.endswith(" rows of ['embed']. Not among them: 3, 4, 5, 6, 7, 8, 9, 10, ….")
    table = whole_view(run.history(), "run", [found]).table
    assert find(table, "['embed']")[0]["inputs_unread_rows"] == "3, 4, 5, 6, 7, 8, 9, 10 …"


@pytest.mark.parametrize("role", ["inputs", "outputs"])
def test_the_first_activation_that_is_not_finite_is_the_cause(role):
    run = Run()
    after = [run.at[path] for path in run.forward[run.forward.index("['l2']['w']") :]]
    for each in ("inputs", "outputs"):
        run.bad[each][FROM:, after] = 5
    if role == "outputs":
        run.bad["inputs"][:, run.at["['l2']['w']"]] = 0
    run.bad["grads"][FROM:] = 7
    assert said(run) == [("nonfinite", role, "['l2']['w']", FROM)]
    assert said(run, kinds="nonfinite") == [("nonfinite", role, "['l2']['w']", FROM)]


def test_infinity_that_reaches_no_gradient_is_no_fault():
    run = Run()
    run.bad["outputs"][:, 3] = 5  # a mask in front of a softmax
    assert said(run) == []
    run.bad["grads"][FROM:] = 7
    assert said(run)[0][:2] == ("nonfinite", "grads")
    run.bad["inputs"][FROM:, run.at["['l4']['b']"]] = 1
    assert said(run) == [("nonfinite", "inputs", "['l4']['b']", FROM)]


def test_unrolled_networks_read_a_state_of_zeros_first():
    run = Run()
    run.is_dead[:, run.at["['l3']['w']"]] = True
    run.dead_in_other_use = np.where(run.is_weight, 3, -1)
    assert said(run) == []
    run.dead_in_other_use[run.at["['l3']['w']"]] = run.N_UNITS
    run.levels["inputs"][:, run.at["['l3']['w']"]] = 0.0
    assert said(run) == [("dead", "inputs", "['l3']['w']", 0)]
