"""The first lines of text and page say what went wrong, and what to call."""

import json
import re

import numpy as np
import pytest

import treeviz as tv
from treeviz.inspector.views import compare_runs, diagnosis, whole_view
from treeviz.steps.findings.finding import Finding
from treeviz.steps.measure import MeasuredTree, source_of
from treeviz.steps.recording.history import History, ScalarRow


def inspector(n_bad: int, **options) -> tv.GradientInspector:
    """The inspector of three steps of which the last has NaN in some of four leaves."""
    inspector = tv.GradientInspector(**options)
    for step in range(3):
        bad = n_bad if step == 2 else 0
        grads = {f"layer{i}": np.full(3, np.nan if i < bad else 1, np.float32) for i in range(4)}
        inspector.record(tv.measure(grads=grads))
    return inspector


@pytest.mark.parametrize("keeps_inputs", [False, True])
def test_the_first_lines_say_what_is_not_finite_and_how_to_find_the_operation(keeps_inputs, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    view = inspector(4, keep_inputs=keeps_inputs).render()
    call = "inspector.locate_nan() names the operation that produced it."
    how = call if keeps_inputs else f"With GradientInspector(keep_inputs=True), {call}"
    said = f"error: 4 of 4 leaves of grads were NaN or infinite at step 2. {how}"
    lines = view.text(width=60).splitlines()
    assert lines[0].endswith("1 finding") and max(map(len, lines[:5])) <= 60
    assert " ".join(lines[1:5]).startswith(said)
    assert view.table.headline[-1] == said and said in view.html()


@pytest.mark.parametrize(("name", "frozen"), [("lora_a", ()), ("lora_a", (True, False)), ("w", ())])
def test_the_headline_says_what_is_trained_where_some_is_frozen_or_would_be(name, frozen):
    source = MeasuredTree("grads", (f"['{name}']", "['v']"), (2, 2), ("float32",) * 2, (True,) * 2, frozen=frozen)
    history = History([source])
    history.append(0, {"grads": {"norm": np.ones(2), "nonfinite": np.zeros(2, np.int64)}})
    table = whole_view(history, "grads", []).table
    trained = [each for each in table.headline if "trained" in each]
    shown = [table.columns["trained"][row.number] for row in table.leaves] if "trained" in table.columns else []
    assert shown == (["returned unchanged", "yes"] if frozen else [])
    assert trained == (["1 of 2 leaves are trained"] if frozen else ["all 2 leaves are trained"] * (name == "lora_a"))


def test_a_leaf_that_is_struck_alone_is_named_first():
    said = inspector(1).render().table.headline[-1]
    assert said.startswith("error: grads['layer0'] had 3 non-finite values at step 2.")


def test_a_value_that_is_not_finite_is_drawn_in_every_view():
    view = inspector(1).render()
    (row,) = view.find("layer0")
    columns = [column for column in view.columns if column.bad is not None and column.bad[row.number]]
    assert [column.name for column in columns] == ["grads_norm", "grads_max_abs"]
    said = [line for line in view.text().splitlines() if "layer0  " in line]
    assert said[0].count("NaN/Inf") == len(columns), "the norm once, beside its sparkline"
    assert json.loads(view.json())["rows"][row.number]["values"]["grads_norm"] == "NaN"
    drawn = [shape for shape in view.picture().shapes if getattr(shape, "text", "") == "NaN/Inf"]
    assert len(drawn) == 2 * said[0].count("NaN/Inf") and {shape.role for shape in drawn} == {"bad"}
    assert len(re.findall(r"layer0: float32\[3\].*NaN/Inf.*NaN/Inf", view.html())) == 1


def test_a_run_in_which_nothing_is_wrong_has_no_diagnosis():
    assert inspector(0).render().table.headline[-1] == "0 findings"
    information = Finding("redundant", "grads", "['b']", 0, 0, 9, (), "It is zero.", "Leave it.", severity="info")
    assert diagnosis([information], keeps_inputs=False) == diagnosis([], keeps_inputs=True) == []


def a_run_in_micro_batches(n_calls: int, factor: float = 1.0) -> tv.GradientInspector:
    """Calls of 8 micro-batches each. From call 5 on norms have the factor; in call 9, micro-batch 6 has a NaN."""
    inspector = tv.GradientInspector()
    history = inspector._recorder.history
    history.add_sources([source_of([np.ones(2, np.float32)], name) for name in ("grads", "params")], 1 << 20)
    for call in range(n_calls):
        norm, bad = np.full((8, 1), factor if call >= 5 else 1.0), np.zeros((8, 1), np.int64)
        bad[6] = call == 9
        history.extend([call] * 8, {"grads": {"norm": norm, "nonfinite": bad}}, range(8))
        history.append(call, {"params": {"norm": np.ones(1), "nonfinite": np.zeros(1, np.int64)}})
        history.append_scalars([ScalarRow(call, {"loss": np.arange(8.0), "lr": np.ones(1)}, None, n_inner=8)])
    history.scalars.inner = history.inner._replace(noun="micro-batch")
    return inspector


def test_a_step_is_a_call_and_a_micro_batch_its_second_number_wherever_it_is_shown(tmp_path):
    inspector = a_run_in_micro_batches(16)
    (found,) = inspector.findings
    assert (found.first, found.first_inner, found.until, found.until_inner) == (9, 6, 9, 6)
    assert "at call 9, micro-batch 6." in found.sentence
    inspector.save(tmp_path / "run.treeviz")
    for shown in (inspector, tv.GradientInspector.load(tmp_path / "run.treeviz")):
        view = shown.render()
        assert {"128 micro-batches", "call 15, micro-batch 7"} <= {*view.table.headline}
        assert "by grads norm, call 0, micro-batch 0 to call 15, micro-batch 7" in str(shown)
        assert "step" not in " ".join(view.table.headline)
        rows = shown.to_records()
        assert len(rows) == 128 and {"step": 9, "inner": 6, "nonfinite": 1}.items() <= rows[78].items()
        assert "inner" not in shown.to_records("params")[0]
        series = json.loads(view.json())["series"][0]
        assert (series["last_steps"][78], series["last_inner"][78], len(series["marks"])) == (9, 6, 1)
        assert series["marks"][0]["place"] == 78 and shown.render("params").series[0].steps_text(-1) == "call 15"
        assert [each.steps_text(0) for each in view.scalars] == ["call 0, micro-batch 0", "call 0"]
        assert "call 0, micro-batch 0" in view.save(tmp_path / "run.svg").read_text()
    logged = {}
    with inspector.log_to(logged.__setitem__, every=1):
        pass
    assert list(logged) == list(range(16)), "one row for each call"
    assert logged[9]["grads nonfinite"] == 1 and np.isnan(logged[9]["grads norm"]) and logged[10]["scalars/loss"] == 7
    other = a_run_in_micro_batches(9, 1.5)
    runs = compare_runs(inspector.history, other.history, ("a", "b"))
    assert runs.parting is not None and (runs.parting.step, runs.parting.when) == (5, "call 5, micro-batch 0")
    assert "72 micro-batches compared, until call 8, micro-batch 7" in runs.view.table.headline
