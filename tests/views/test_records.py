"""Views and runs as plain Python values, for data frames."""

from __future__ import annotations

import numpy as np
import pytest
from norm_runs import Run

import treeviz
from treeviz.inspector.inspector import to_frame
from treeviz.tree.frame import data_frame
from treeviz.tree.frame import records as records_of

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
    records = [*records_of(to_frame(run.history(), "grads"))]
    assert len(records) == 80
    norms = {"norm": pytest.approx(np.nan, nan_ok=True), "finite_norm": run.grads[3, 1]}
    assert records[7] == {"first_step": 3, "step": 3, "path": "['b']", **norms, "nonfinite": 2}
    assert records[8]["norm"] == records[8]["finite_norm"] == run.grads[4, 0]
    merged = [*records_of(to_frame(run.history(max_bytes=1), "grads"))]
    assert merged[0]["first_step"] == 0 < merged[0]["step"]
    assert sum(each["nonfinite"] for each in merged) == 2


def test_views_series_and_runs_are_data_frames_with_the_values_of_the_records():
    pytest.importorskip("pandas")

    def rows(of, *what) -> list[dict]:
        return of.to_pandas(*what).to_dict("records")

    view = treeviz.render({"a": np.ones(3), "b": 2}, stats=True)
    np.testing.assert_equal(rows(view), view.to_records())
    run = Run({"['a']": 10, "['b']": 20}, n_steps=40)
    inspector = treeviz.GradientInspector()
    inspector._recorder.history = run.history()
    for step in (1, 3):
        inspector.record_scalars(step, loss=step / 2, **({"n": step} if step > 1 else {}))
    assert rows(inspector, "grads") == inspector.to_records()
    first, second = rows(inspector, "scalars")
    assert first["loss"] == 0.5 and np.isnan(first["n"]) and second["n"] == 3.0
    norms = [row for row in rows(inspector.render(), "grads.norm") if row["path"] == "['b']"]
    assert [row["step"] for row in norms] == list(range(40)) and not norms[3]["nonfinite"]
    np.testing.assert_allclose([row["value"] for row in norms], run.grads[:, 1], rtol=1e-6)
    with pytest.raises(LookupError, match=r"no series 'loss'; there are 'grads\.norm'"):
        inspector.render().to_pandas("loss")


def test_pandas_writes_the_table_that_save_does_not(tmp_path):
    inspector = treeviz.GradientInspector(statistics=treeviz.HISTOGRAM)
    inspector.record(treeviz.measure(grads={"w": np.ones(3)}, statistics=treeviz.HISTOGRAM), step=0)
    for of in (treeviz.render({"a": np.ones(3), "b": 2}, stats=True), inspector):
        for suffix in ("csv", "feather", "jsonl", "parquet"):
            with pytest.raises(ValueError, match=r"treeviz writes \.html, .* write \.to_pandas\(\)\.to_") as raised:
                of.save(tmp_path / f"run.{suffix}")
            instead = f"of{str(raised.value).rpartition(' write ')[2]}"
            if suffix in ("csv", "jsonl"):  # the others need pyarrow
                pytest.importorskip("pandas")
                eval(instead)
                assert "['w']" in (tmp_path / f"run.{suffix}").read_text() or of is not inspector


def test_counts_that_were_not_measured_are_missing_not_zero():
    run = Run({"['a']": 10}, n_steps=3)
    history = run.history()
    history.append(3, {"grads": {"norm": np.ones(1)}})
    frame = to_frame(history, "grads")
    assert frame["nonfinite"].mask.tolist() == [False] * 3 + [True]
    assert "nonfinite" not in [*records_of(to_frame(history, "grads"))][3]
    pytest.importorskip("pandas")
    assert data_frame(frame)["nonfinite"].isna().tolist() == [False] * 3 + [True]
