"""Views and runs as plain Python values, for data frames."""

from __future__ import annotations

import numpy as np
import pytest
from norm_runs import Run

import treeviz
from treeviz.inspector.exported import to_records

pytestmark = pytest.mark.oldest_jax


def test_a_view_has_a_record_for_each_row_with_its_columns():
    tree = {"layer": [np.full((2, 3), 2.0, np.float32)], "name": "a"}
    root, layer, w, name = treeviz.render(tree, columns=["mean", "dtype"], stats=True).to_records()
    assert (w["path"], w["type"], w["shape"], w["dtype"], w["leaf"]) == (
        "['layer'][0]",
        "np.ndarray",
        (2, 3),
        "float32",
        True,
    )
    assert (w["elements"], w["bytes"], w["mean"]) == (6, 24, 2.0) and type(w["elements"]) is int
    assert root["elements"] == layer["elements"] == 6 and np.isnan(name["mean"])


def test_a_data_frame_is_made_of_the_records():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(treeviz.render({"a": np.ones(3), "b": np.ones(4)}).to_records())
    assert frame.set_index("path").bytes.to_dict() == {"": 56, "['a']": 24, "['b']": 32}


def test_a_run_has_a_record_for_each_leaf_and_step_and_merged_steps_say_so():
    run = Run({"['a']": 10, "['b']": 20}, n_steps=40)
    run.bad[3, 1] = 2
    records = to_records(run.history(), "grads")
    assert len(records) == 80
    assert records[7] == {"first_step": 3, "step": 3, "path": "['b']", "norm": run.grads[3, 1], "nonfinite": 2}
    merged = to_records(run.history(max_bytes=1), "grads")
    assert merged[0]["first_step"] == 0 < merged[0]["step"]
    assert sum(each["nonfinite"] for each in merged) == 2
