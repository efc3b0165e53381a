"""The first lines of text and page say what went wrong, and what to call."""

import json
import re

import numpy as np
import pytest

import treeviz as tv
from treeviz.inspector.views import diagnosis, whole_view
from treeviz.steps.findings.finding import Finding
from treeviz.steps.measure import MeasuredTree
from treeviz.steps.recording.history import History


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
    call = "inspector.locate_nan() names the operation that made it."
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
    headline = whole_view(history, "grads", []).table.headline
    trained = [each for each in headline if "trained" in each]
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
