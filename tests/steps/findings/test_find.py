"""Findings in whole runs: one where a fault is planted, none where there is none, and the alarm while a run goes on."""

import contextlib
import itertools
import re
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from norm_runs import N_STEPS, Run, mlp, source, transformer

import treeviz as tv
from treeviz.steps.findings import find as alarm
from treeviz.steps.findings.find import Alarm, findings
from treeviz.steps.findings.finding import Finding, Thresholds
from treeviz.steps.findings.norms import jumps_of
from treeviz.steps.measure import MeasuredTree, Measurement
from treeviz.steps.recording.decode import Arrived
from treeviz.steps.recording.history import History, ScalarRow
from treeviz.steps.recording.history_file import load, save
from treeviz.steps.recording.recorder import MOST_LATE, Recorder
from treeviz.steps.statistics import LIGHT, StopTraining


def kinds(found: list[Finding]) -> set[str]:
    return {finding.kind for finding in found}


@pytest.mark.parametrize("paths", [mlp(), transformer()], ids=["mlp", "transformer"])
@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_said_of_a_healthy_run(paths, seed):
    assert Run(paths, seed=seed).findings() == []


@pytest.mark.parametrize("max_bytes", [20_000, 200_000])
def test_nothing_is_said_of_a_healthy_run_in_little_memory(max_bytes):
    assert findings(Run(n_steps=2000).history(max_bytes=max_bytes)) == []


def test_nothing_is_said_of_the_first_steps():
    assert Run(n_steps=10).findings() == []


def test_nothing_is_said_of_warm_up_and_decay():
    run = Run()
    steps = np.arange(N_STEPS)[:, None]
    run.updates *= np.minimum(steps / 100, 1) * (1 + np.cos(np.pi * steps / N_STEPS)) / 2
    run.grads *= np.where(steps < 30, 3.0, 1.0)
    assert run.findings() == []


def test_nothing_is_said_of_a_sparse_embedding_or_a_rare_expert():
    run = Run(transformer())
    run.grads[:, 0] *= 0.02
    rare = np.random.default_rng(1).random(N_STEPS) > 0.15
    run.grads[rare, 5] = 0
    assert run.findings() == []


def test_nothing_is_said_of_a_norm_that_grows_sixtyfold_in_42_steps():
    run = Run()
    run.grads[200:242] *= 60 ** (np.arange(42) / 42)[:, None]
    run.grads[242:] *= 60
    assert run.findings() == []


def test_nothing_is_said_of_loss_scaling_and_of_a_lora_whose_first_gradients_are_zero():
    run = Run()
    run.grads *= 2.0**15
    run.grads[0, ::2] = 0
    assert run.findings() == []


def test_the_leaf_that_is_not_finite_first_in_the_backward_pass_is_named_with_those_it_spread_to():
    run = Run()
    run.bad[140, 2:18] = 7
    run.bad[141:, :] = 9
    (found,) = run.findings()
    assert (found.kind, found.source, found.first, found.until) == ("nonfinite", "grads", 140, 299)
    assert found.path == "['layers'][8]['w']"
    assert dict(found.numbers) == {"numbers": 7, "leaves at first": 16, "leaves in all": 24}
    assert found.leaves[0] == 17 and sorted(found.leaves) == list(range(24))
    assert "7 non-finite values at step 140" in found.sentence


def test_layer_10_comes_after_layer_2_whatever_the_order_of_the_leaves():
    paths = {f"['layer_{i}']": 10 for i in (0, 1, 10, 11, 2, 3)}  # as a dict sorts them
    run = Run(paths)
    run.bad[50:, [2, 4]] = 1
    assert run.findings(kinds=["nonfinite"])[0].path == "['layer_10']"
    forward = ["['layer_10']", "['layer_2']"]
    assert run.findings(kinds=["nonfinite"], forward=forward)[0].path == "['layer_2']"


def test_a_nonfinite_step_is_found_after_it_went_into_a_bucket():
    run = Run(n_steps=5000)
    run.bad[7, 3] = 2
    history = run.history(max_bytes=100_000)
    assert history.values("grads", "nonfinite").n[0] > 1
    (found,) = findings(history)
    assert found.kind == "nonfinite" and found.path == "['layers'][1]['w']"
    assert found.first <= 7 <= found.until and "between steps" in found.sentence


def test_an_exploding_norm_is_found():
    run = Run()
    run.grads[250:] *= 10 ** np.linspace(0, 6, 50)[:, None]
    found = {finding.kind: finding for finding in run.findings()}
    assert 250 < found["exploding"].first < 290 and found["exploding"].until == 299


def test_a_vanishing_leaf_is_found_and_named():
    run = Run()
    run.grads[:, 1] *= 1e-8
    found = {finding.kind: finding for finding in run.findings()}
    assert found["vanishing"].path == run.paths[1]


@pytest.mark.parametrize(("since", "says"), [(0, "always"), (100, "from step 100 on")])
def test_a_dead_leaf_is_found_with_its_first_step(since, says):
    run = Run()
    run.grads[since:, 5] = 0
    (found,) = run.findings()
    assert (found.kind, found.path, found.first) == ("dead", run.paths[5], since)
    assert says in found.sentence
    assert found.advice.startswith("Other leaves of its layer have gradients, so its input may be zero.")


def test_gradients_that_are_all_zero_are_one_finding():
    run = Run()
    run.grads[:] = 0
    (found,) = run.findings()
    assert (found.kind, found.path) == ("dead", "")


def test_most_leaves_without_a_gradient_are_an_error_unless_that_is_expected_or_another_loss_trains_them():
    run = Run()
    run.grads[:, :14] = 0
    (found,) = run.findings()
    assert (found.severity, found.path, len(found.leaves)) == ("error", "['layers'][6]['w']", 14)
    expected = Thresholds(expected_frozen=[f"layers/{i}" for i in range(7)])
    assert run.findings(thresholds=expected) == []
    run.sources.append(source("grads #2", mlp()))
    history = run.history()
    for step in range(N_STEPS, N_STEPS + 60):
        norms = {"norm": np.ones(24), "nonfinite": np.zeros(24, np.int64)}
        history.append(step, {"grads #2": norms})
    assert [found.severity for found in findings(history)] == ["warning"]


def test_leaves_that_die_at_other_steps_or_places_are_findings_of_their_own():
    run = Run()
    run.grads[100:, :8] = 0  # layers 0 to 3
    run.grads[102:, 13] = 0  # the weights of layer 6
    run.grads[200:, 16:20] = 0  # layers 8 and 9
    assert [(f.kind, f.path, f.first, len(f.leaves)) for f in run.findings()] == [
        ("dead", "['layers'][3]['w']", 100, 8),
        ("dead", "['layers'][6]['w']", 102, 1),
        ("dead", "['layers'][9]['w']", 200, 4),
    ]
    assert "the first of them in the backward pass" in run.findings()[0].advice


def test_the_same_leaf_of_many_layers_is_one_dead_finding():
    run = Run()
    run.grads[:, ::2] = 0
    (found,) = run.findings()
    assert (found.kind, found.path, found.leaves[0], sorted(found.leaves)) == (
        "dead",
        "['layers'][11]['b']",
        22,
        list(range(0, 24, 2)),
    )


def test_what_a_nan_brings_about_is_not_told_and_what_comes_after_it_is():
    run = Run()
    run.bad[30, 23] = 1
    run.grads[100:, 5] = 0
    assert [f.kind for f in run.findings()] == ["nonfinite", "dead"]
    run.bad[30:, 23] = 1
    assert [f.kind for f in run.findings()] == ["nonfinite"]
    assert run.findings(kinds=["dead"]) == []


def test_the_second_gradient_of_a_step_comes_before_the_tenth():
    names = ["grads", "grads #10", "grads #2"]
    history = History([source(name, mlp()) for name in names])
    for step in range(60):
        history.append(step, {name: {"norm": np.zeros(24), "nonfinite": np.zeros(24)} for name in names})
    assert [f.source for f in findings(history)] == ["grads", "grads #2", "grads #10"]


def test_a_layer_that_vanishes_alone_is_one_finding_and_no_imbalance_beside_it():
    run = Run()
    run.grads[:, 6:8] *= 1e-8
    (found,) = run.findings()
    assert (found.kind, found.path, found.leaves) == ("vanishing", "['layers'][3]['w']", (7, 6))
    assert "the median of all leaves; so is the leaf before it." in found.sentence


def test_a_layer_of_which_all_gradients_are_large_is_one_imbalance():
    run = Run()
    run.grads[:, 6:8] *= 1e5
    found = [finding for finding in run.findings() if finding.kind == "imbalance"]
    assert [sorted(finding.leaves) for finding in found] == [[6, 7]] and "the median of these layers" in found[
        0
    ].sentence


def test_the_bias_of_a_layer_with_large_inputs_is_not_taken_for_rounding_error():
    run = Run()
    run.grads[:, 1] *= 1e6  # the weights of the first layer
    assert "redundant" not in kinds(run.findings())


def test_a_nan_that_begins_in_what_the_optimizer_receives_explains_the_gradients_that_follow():
    run, history = Run(n_steps=40), History([source("grads", mlp()), source("received", mlp())])
    for step in range(40):
        numbers = {"norm": run.grads[step], "nonfinite": np.full(24, step > 30)}
        received = numbers | {"nonfinite": np.full(24, step >= 30)}
        history.append(step, {"grads": numbers, "received": received})
    (found,) = findings(history)
    assert (found.kind, found.source, found.first) == ("nonfinite", "received", 30)


def test_a_leaf_that_is_all_nan_is_not_dead():
    run = Run()
    run.grads[:, 5], run.bad[:, 5] = 0, 128
    assert kinds(run.findings()) == {"nonfinite"}


def test_a_frozen_leaf_is_found():
    run = Run()
    run.updates[:, 4] = 0
    (found,) = run.findings()
    assert (found.kind, found.source, found.path) == ("frozen", "updates", run.paths[4])
    assert run.findings(thresholds=Thresholds(expected_frozen="layers/2/b")) == []


def test_parameters_that_drift_apart_on_devices_are_an_error_first(tmp_path):
    run = Run()
    run.grads[:, 3] = 0
    run.sources[0] = run.sources[0]._replace(drifts=(True,) * 24)
    save(run.history(), tmp_path / "run.treeviz")
    found = findings(load(tmp_path / "run.treeviz"))[0]
    assert (found.kind, found.severity, len(found.leaves)) == ("drift", "error", 24)
    assert found.sentence.startswith(
        "The parameters drift apart on the devices: each changes its copy of ['layers'][0…11]"
    )


@pytest.mark.parametrize("is_dead", [False, True])
def test_leaves_that_the_optimizer_freezes_are_information_once_in_one_line(is_dead, tmp_path):
    run = Run()
    is_weight = tuple(path.endswith("['w']") for path in run.paths)
    run.sources[0] = run.sources[0]._replace(frozen=is_weight)
    run.updates[:, is_weight] = 0
    run.grads[:, is_weight] *= not is_dead
    save(run.history(), tmp_path / "run.treeviz")
    (found,) = findings(load(tmp_path / "run.treeviz"))
    assert (found.kind, found.severity, found.source, len(found.leaves)) == ("frozen", "info", "grads", 12)
    assert found.sentence == "12 of 24 leaves are frozen: the step never changes ['layers'][0…11]['w'] ×12."
    run.sources[0] = run.sources[0]._replace(frozen=(True,) * 24)  # as by a learning rate of zero
    run.grads[:], run.updates[:] = 1, 0
    (found,) = run.findings()
    assert (found.severity, found.path) == ("warning", "") and "a learning rate of zero" in found.advice


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_updates_that_are_lost_in_rounding_are_not_blamed_on_a_mask(dtype):
    run = Run(dtype=dtype)
    run.updates[:, 1::2] = 0
    run.updates[:, 0] = 1e-4 * run.params[:, 0]  # nearly lost: of the same cause
    (found,) = run.findings()
    assert (found.kind, found.path, len(found.leaves)) == ("frozen", "['layers'][0]['w']", 12)
    assert ("bfloat16 rounds away a change below 2**-9 of the value" in found.sentence) == (dtype == "bfloat16")
    assert ("float32 master weights" in found.advice) == (dtype == "bfloat16") != ("a mask" in found.advice)


@pytest.mark.parametrize("n_learning", [0, 2])
def test_two_factors_of_zero_are_the_cause_of_gradients_of_zero(n_learning):
    run = Run({f"['l{i}']['{name}']": 64 for i in range(4) for name in ("lora_a", "lora_b")})
    run.sources = [tree._replace(shapes=("8,8",) * 8) for tree in run.sources]
    for numbers in (run.grads, run.updates, run.params):
        numbers[:, n_learning:] = 0
    (found,) = run.findings()
    assert (found.kind, found.severity) == ("dead", "error")
    first = "['l0']" if not n_learning else "['l1']"
    assert found.advice.startswith(f"{first}['lora_a'] and {first}['lora_b'] are both zero, so neither has a gradient")


def test_all_leaves_that_a_mask_froze_are_listed_under_the_paths_of_the_user():
    names = ("query", "key", "out", "gate", "up", "down", "norm")
    run = Run({f".layers[{i}].{name}.value": 64 for i in range(6) for name in names} | {".head.value": 64, ".a.b": 64})
    frozen = [not path.startswith(".layers[1]") and "norm" not in path and path != ".a.b" for path in run.paths]
    run.sources[0] = run.sources[0]._replace(frozen=tuple(frozen))
    run.updates[:, frozen] = 0
    (found,) = run.findings()
    parts = ", ".join(f".layers[0, 2, 3, 4, 5].{name} ×5" for name in names[:-1])
    assert found.sentence == f"31 of 44 leaves are frozen: the step never changes {parts}, .head."
    assert found.path == ".layers[0].query"
    run.grads[200] *= 1000
    assert not any(".value" in str(each) + each.path for each in run.findings())


def test_many_spikes_are_one_finding_that_leads_to_the_highest():
    run = Run()
    run.grads[40:300:25] *= 100
    run.grads[190] *= 3
    (found,) = run.findings()
    assert (found.kind, found.path, found.first, found.until) == ("spike", "", 40, 290)
    assert "at step 190" in found.sentence and "It jumped at 11 steps in all" in found.sentence


def test_large_numbers_are_written_in_a_sentence_as_in_columns():
    run = Run()
    run.grads[200] *= 1e9
    (found,) = run.findings()
    assert re.search(r"jumped to \d\S*e\d+ at step 200, [\d.]+e\d+× its median", found.sentence), found.sentence


def test_a_spike_is_found_in_the_leaf_and_in_the_tree():
    run = Run()
    run.grads[200, 7] *= 500
    run.grads[220] *= 100
    found = [finding for finding in run.findings() if finding.kind == "spike"]
    assert [f.path for f in found if f.path in ("", run.paths[7])]
    assert any(f.first == 200 for f in found)
    assert any(f.path == "" and f.until == 220 for f in found)
    assert kinds(run.findings()) == {"spike"}


def test_layers_of_one_kind_that_differ_by_orders_of_magnitude_are_found():
    run = Run()
    run.grads *= (10 ** (-np.arange(24) // 2 * 0.4))[None]
    found = [finding for finding in run.findings() if finding.kind == "imbalance"]
    assert {"['layers'][0]['w']", "['layers'][0]['b']"} & {finding.path for finding in found}


@pytest.mark.parametrize(("factor", "advice"), [(1e3, "Lower"), (1e-4, "Raise")])
def test_an_update_ratio_far_from_a_thousandth_is_found(factor, advice):
    run = Run()
    run.updates *= factor
    (found,) = run.findings()
    assert (found.kind, found.path) == ("ratio", "") and advice in found.advice


def test_nothing_is_said_of_large_updates_of_small_vectors_which_may_have_started_at_zero():
    run = Run({"['mean']": 2, "['log_std']": 2})
    run.sources = [source._replace(shapes=("2", "2")) for source in run.sources]
    run.updates *= 100
    assert run.findings() == []


def test_parameters_that_never_move_make_no_ratio_too_small():
    run = Run()
    run.grads[:, 3:] = run.updates[:, 3:] = 0
    run.params[:, 3:] *= 1e4
    assert kinds(run.findings()) == {"dead"}


def test_float16_gradients_near_their_smallest_numbers_are_found():
    run = Run(dtype="float16")
    run.histogram = np.zeros((24, 64), np.int64)
    run.histogram[:, 30] = 90  # 2**-10
    run.histogram[3, 20] = 10  # 2**-20, below 2**-14
    (found,) = run.findings()
    assert (found.kind, found.path) == ("underflow", run.paths[3])
    assert dict(found.numbers) == {"part": 0.1}


def test_updates_that_bfloat16_parameters_cannot_take_are_found():
    run = Run(dtype="bfloat16")
    run.updates *= 0.1
    assert kinds(run.findings()) == {"underflow"}


def test_the_worst_comes_first_and_of_one_kind_the_one_further_beyond_its_threshold():
    run = Run()
    run.grads[:, [2, 6]] *= 1e-2  # so that the whole tree's norm tells nothing of them
    run.grads[220, 2] *= 300
    run.grads[200, 6] *= 3000
    run.grads[:, 5] = 0
    run.updates[:, 4] = 0
    run.updates[:, 9] *= 1e4
    run.bad[20, 2], run.bad[10, 11] = 1, 1
    found = run.findings()
    order = ["nonfinite", "dead", "frozen", "ratio"]
    assert [f.kind for f in found if f.kind != "spike"] == order
    spikes = [f for f in found if f.kind == "spike"]
    assert spikes and min(map(found.index, spikes)) > order.index("frozen")
    assert [f.times for f in spikes] == sorted((f.times for f in spikes), reverse=True)
    assert [f.leaf for f in spikes] == [6, 2]


def test_what_is_not_finite_first_comes_first_whatever_its_source():
    run = Run()
    history = History(run.sources)
    for step in range(30):
        bad = {
            name: np.full(24, int(step >= since)) for name, since in (("grads", 20), ("params", 10), ("updates", 15))
        }
        history.append(step, {name: {"norm": run.grads[step], "nonfinite": bad[name]} for name in bad})
    found = [f for f in findings(history) if f.kind == "nonfinite"]
    assert [(f.source, f.first) for f in found] == [("params", 10), ("updates", 15), ("grads", 20)]


def test_a_tree_that_does_not_train_at_all_comes_before_a_dead_leaf():
    run = Run()
    run.grads[:, 5] = 0
    run.updates[:] = 0
    assert [(f.kind, f.leaf) for f in run.findings()] == [("frozen", -1), ("dead", 5)]


@pytest.mark.parametrize("seed", range(20))
def test_jumps_are_above_the_trend_of_the_fifty_entries_before_each_twenty_five_and_the_median_of_the_last_eight(seed):
    rng = np.random.default_rng(seed)
    norms = rng.lognormal(0, 0.2, (int(rng.integers(1, 400)), 5))
    norms *= 10.0 ** np.where(rng.random(norms.shape) < 0.03, rng.integers(1, 4, norms.shape), 0)
    norms[rng.random(norms.shape) < 0.2] = rng.choice([0, np.nan, np.inf])
    expected = np.zeros_like(norms)
    for start in range(20, len(norms), 25):
        for leaf in range(5):
            known = {at: np.log10(x) for at, x in enumerate(norms[:, leaf]) if 0 < x < np.inf}
            before = {at: known[at] for at in range(start - 50, start) if at in known}
            if len(before) < 20:
                continue
            steps = [known[at] - known[at - 10] for at in range(start - 40, start) if {at, at - 10} <= before.keys()]
            slope = np.median(steps) / 10 if steps else 0
            level = np.array([x - slope * (at - start) for at, x in before.items()])
            least = max(1, 8 * 1.4826 * np.median(np.abs(level - np.median(level))))
            for at in sorted(known.keys() & range(start, start + 25)):
                near = [known[i] for i in range(at - 8, at) if i in known]
                jump = known[at] - np.median(near) if near else 0
                if known[at] - np.median(level) - slope * (at - start) > least and jump > least:
                    expected[at, leaf] = jump
    with np.errstate(all="raise"):
        np.testing.assert_allclose(jumps_of(norms, Thresholds()), expected)


@pytest.mark.parametrize("noise", [0, 0.03, 0.1, 0.2, 0.3])
@pytest.mark.parametrize("fall", [0, 0.01, 0.02, 0.04, 0.06])
def test_a_loss_that_jumps_while_it_falls_is_found_and_200_healthy_curves_do_not_jump(fall, noise):
    thresholds, steps = Thresholds(spike=1.5), np.arange(300)
    shapes = [(1 - fall) ** steps, 0.2 + (1 - fall) ** steps, (1 + steps) ** (-20 * fall)]
    shapes.append(0.5 + 0.4 * np.cos(steps / 25) * (1 - fall) ** steps)
    curves = np.stack([shape for shape in shapes for _ in range(50)], axis=1)
    curves *= np.exp(np.random.default_rng(0).normal(0, noise, curves.shape))
    assert not jumps_of(curves, thresholds).any()
    found = jumps_of(np.concatenate([curves[:60, :50], 100 * curves[60:61, :50]]), thresholds)
    assert np.mean(found[60] > 0) >= 0.95


@pytest.mark.parametrize(
    ("until", "says"), [(N_STEPS, "Look at the learning rate"), (155, "whether the optimizer's state was lost")]
)
def test_updates_that_jump_while_gradients_do_not_come_of_the_rate_or_a_lost_state_and_explain_what_follows(
    until, says
):
    run = Run()
    run.updates[150:until] *= 5
    run.grads[160] *= 1000
    (found,) = run.findings()
    assert (found.kind, found.source, found.first) == ("ratio", "updates", 150) and says in found.advice
    assert re.match(
        r"The updates jumped to [45]\S*× their median at step 150, while the gradients did not", found.sentence
    )
    run.grads[150:] *= 50
    assert "ratio" not in kinds(run.findings())


def test_nothing_is_said_of_updates_that_jump_every_few_steps_by_more_each_time():
    run = Run(n_steps=30)
    run.updates[4::5] *= np.linspace(3, 4, 6)[:, None]  # as of sharpness-aware minimization, optax.contrib.sam
    assert run.findings() == []


def test_a_lost_state_is_found_though_the_first_updates_and_gradients_just_before_were_as_large():
    run = Run()
    run.updates[:4] *= 6  # as Adam's
    run.updates[40:44] *= 5
    run.grads[36:41:4] *= 3
    (found,) = run.findings()
    assert (found.kind, found.first) == ("ratio", 40) and "state was lost" in found.advice


def test_updates_that_end_with_a_schedule_are_told_with_the_step_and_not_as_a_small_ratio():
    run = Run()
    run.updates[120:] *= 1e-9
    (found,) = run.findings()
    assert (found.kind, found.source, found.first, found.until) == ("frozen", "updates", 120, N_STEPS - 1)
    assert found.sentence == "No update changed params since step 120, though there is a gradient."
    run.updates[-1] = run.params[-1] * 1e-3
    assert "frozen" not in kinds(run.findings())


def test_a_bad_batch_is_one_finding_whatever_jumps_with_it():
    run = Run()
    run.sources.append(source("hidden", {".h": 64}))
    run.grads[200] *= 1000
    history = run.history()
    for step in range(N_STEPS):
        jump = 100 if step == 200 else 1
        history.append(N_STEPS + step, {"hidden": {"norm": np.full(1, 2.0 * jump), "nonfinite": np.zeros(1, np.int64)}})
        history.append_scalars([ScalarRow(step, {"loss": np.full(1, 3.0 * jump)}, None)])
    first, second = findings(history)
    assert (first.kind, first.source, first.first) == ("spike", "grads", 200)
    assert first.sentence.endswith(" The loss jumped to 300, too.")
    assert (second.source, second.advice) == ("hidden", "Look at that step's batch.")
    del history.sources["updates"]
    assert "at the learning rate: GradientInspector(updates=True)" in findings(history)[0].advice


def test_thresholds_are_arguments():
    run = Run()
    assert kinds(run.findings(thresholds=Thresholds(ratio_high=1e-4))) == {"ratio"}


def test_every_finding_says_what_to_try():
    run = Run()
    run.bad[140:, 2:18] = 7
    run.grads[:, 5] = 0
    for finding in run.findings():
        assert finding.sentence.endswith(".") and finding.advice.endswith(".")
        assert finding.first <= finding.until


def test_what_is_not_finite_or_explodes_is_an_error_and_the_rest_are_warnings():
    exploding, struck, dead = Run(), Run(), Run()
    exploding.grads[-20:] *= 1e4
    struck.bad[20, 3] = 1
    dead.grads[100:, 3] = 0
    found = [*exploding.findings(), *struck.findings(), *dead.findings()]
    assert {f.kind for f in found if f.severity == "error"} == {"nonfinite", "exploding"}
    assert {f.severity for f in found if f.kind == "dead"} == {"warning"}


# Findings are reported during a run, and end it in time.


SOURCE = MeasuredTree("grads", ("['x']",), (2,), ("float32",), (True,))


class NeverReady:
    """Packed numbers of a step that the device has not finished: to read them is to wait for it."""

    def __init__(self, n_nonfinite: int) -> None:
        one = np.float32(1).view(np.uint32)
        self.packed = np.array([[1 << 14 | 1 << 16, one, one, n_nonfinite]], np.uint32)
        self.shape = self.packed.shape
        self.ndim = 2

    def is_ready(self) -> bool:
        return False

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return self.packed


def arrived(step: int, n_nonfinite: int = 0) -> Arrived:
    return Arrived(Measurement({"grads": NeverReady(n_nonfinite)}, [SOURCE], LIGHT), step)


def test_a_bad_step_ends_the_run_at_most_so_many_steps_later_however_far_the_loop_is_ahead_of_the_device():
    recorder = Recorder(1_000_000, alarm=Alarm(Thresholds(), raise_on={"nonfinite"}), at_once=True, most_late=MOST_LATE)
    step = 0
    with pytest.raises(StopTraining, match=r"nonfinite: grads\['x'\] had 1 non-finite value at step 7"):
        for step in range(100):
            recorder.take(arrived(step, n_nonfinite=int(step == 7)))
    assert step == 7 + MOST_LATE


@pytest.mark.parametrize(("is_ready", "n_late"), [(True, 0), (False, MOST_LATE)])
@pytest.mark.parametrize("raise_on", [set(), {"nonfinite"}])
def test_a_finding_is_told_as_soon_as_a_run_that_it_ends_would_end(monkeypatch, raise_on, is_ready, n_late):
    monkeypatch.setattr(NeverReady, "is_ready", lambda _: is_ready)
    told: list = []
    inspector, step = tv.GradientInspector(on_finding=told.append, raise_on=raise_on), 0
    with pytest.raises(StopTraining) if raise_on else contextlib.nullcontext():
        while not told:
            inspector.record(arrived(step, n_nonfinite=int(step == 5)).measurement, step=step)
            step += not told
    assert step == 5 + n_late and [finding.first for finding in told] == [5]


def test_without_an_alarm_a_loop_never_waits():
    recorder = Recorder(1_000_000, at_once=True)
    for step in range(100):
        recorder.take(arrived(step))
    assert len(recorder) == 100 and not recorder.history


def test_each_finding_is_reported_once():
    reported = []
    recorder = Recorder(1_000_000, alarm=Alarm(Thresholds(), on_finding=reported.append))
    for step in range(3):
        recorder.take(arrived(step, n_nonfinite=1))
        recorder.flush()
    assert [(finding.kind, finding.first) for finding in reported] == [("nonfinite", 0)]


def told_of(norms, nonfinite, max_bytes: int) -> list[tuple[str, str, int]]:
    """What an alarm tells that searches after each step of a tree of two leaves: kind, path and first step."""
    source = MeasuredTree("grads", ("['a']", "['b']"), (2, 2), ("float32",) * 2, (True,) * 2)
    history, told = History([source], max_bytes), []
    alarm = Alarm(Thresholds(), on_finding=told.append)
    for step, numbers in enumerate(zip(norms, nonfinite, strict=True)):
        history.append(step, {"grads": dict(zip(("norm", "nonfinite"), numbers, strict=True))})
        alarm.was_read(history, set(), is_flush=True)
    return [(finding.kind, finding.path, finding.first) for finding in told]


def test_a_finding_is_told_once_though_its_steps_go_into_buckets_that_double():
    norms, nonfinite = np.random.default_rng(0).uniform(1, 2, (300, 2)), np.zeros((300, 2), np.int64)
    norms[32:, 1] = 0
    nonfinite[7, 0] = nonfinite[9, 1] = 1  # in one bucket later, where the last leaf comes first in the backward pass
    assert told_of(norms, nonfinite, max_bytes=0) == [("nonfinite", "['a']", 7), ("dead", "['b']", 32)]


def test_each_bad_batch_is_told_whichever_was_the_worse():
    norms = np.random.default_rng(0).uniform(1, 2, (90, 2))
    norms[[30, 50, 70]] *= [[30], [300], [100]]
    told = told_of(norms, np.zeros((90, 2), np.int64), max_bytes=64_000_000)
    assert told == [("spike", "", 30), ("spike", "", 50), ("spike", "", 70)]


def test_what_ends_and_begins_anew_is_told_again():
    norms = np.random.default_rng(0).uniform(1, 2, (80, 2))
    norms[30:40], norms[60:70] = 1000 * norms[30:40], 1000 * norms[60:70]
    told = told_of(norms, np.zeros((80, 2), np.int64), max_bytes=64_000_000)
    assert [first for kind, _, first in told if kind == "exploding"] == [30, 60]


VIEWS = {
    "flush": tv.GradientInspector.flush,
    "history": lambda inspector: inspector.history,
    "findings": lambda inspector: inspector.findings,
    "render": tv.GradientInspector.render,
    "print": str,
}


@pytest.mark.parametrize("read", VIEWS.values(), ids=VIEWS)
def test_whatever_reads_the_rest_ends_the_run(read):
    inspector = tv.GradientInspector(raise_on="nonfinite")
    inspector.record(arrived(0, n_nonfinite=1).measurement)
    with pytest.raises(StopTraining):
        read(inspector)


def test_an_inspector_has_thresholds_of_its_own():
    told: list = []
    patient, hasty = (
        tv.GradientInspector(),
        tv.GradientInspector(thresholds=Thresholds(fewest_steps=3), on_finding=told.append),
    )
    zeros = tv.measure(grads=np.zeros(2, np.float32))
    for inspector in (patient, hasty):
        for _ in range(3):
            inspector.record(zeros)
    assert patient.findings == [] and [finding.kind for finding in hasty.findings] == ["dead"]
    assert told == hasty.findings


def test_what_the_search_had_no_time_for_is_told_when_the_rest_is_read(monkeypatch):
    monkeypatch.setattr(alarm, "time", SimpleNamespace(monotonic=itertools.count().__next__))
    told: list = []
    inspector = tv.GradientInspector(thresholds=Thresholds(fewest_steps=3), on_finding=told.append)
    zeros = tv.measure(grads=np.zeros(2, np.float32))
    for _ in range(3):
        inspector.record(jax.block_until_ready(zeros))
    assert len(inspector._recorder) == 0 and told == []
    inspector.flush()
    assert [finding.kind for finding in told] == ["dead"]


def test_the_search_takes_its_share_of_the_time(monkeypatch):
    now, searches = [0.0], []

    def search(*_, **__):
        searches.append(now[0])
        now[0] += 0.1
        return []

    monkeypatch.setattr(alarm, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(alarm, "findings", search)
    watcher = Alarm(Thresholds(), on_finding=print)
    for _ in range(1000):
        now[0] += 0.1
        watcher.was_read(History([SOURCE]), set(), is_flush=False)
    assert len(searches) > 10 and 0.1 * (len(searches) - 1) <= 0.02 * now[0]


def test_what_was_read_where_nothing_may_be_raised_is_reported_at_the_next_read():
    recorder = Recorder(1_000_000, alarm=Alarm(Thresholds(), raise_on={"nonfinite"}), at_once=True)
    bad = arrived(0, n_nonfinite=1)
    bad.measurement.packed["grads"].is_ready = lambda: True
    recorder.take(arrived(-1))
    recorder.flush()
    recorder._waiting.append(bad)
    recorder.read_what_is_ready()
    with pytest.raises(StopTraining):
        recorder.take(arrived(1))
        recorder.flush()
