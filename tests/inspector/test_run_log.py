"""What an experiment logger hears of a run: every number under its name, never in the way of a step."""

from __future__ import annotations

import gc
import logging
import types

import numpy as np
import pytest

import treeviz as tv
from treeviz.inspector.run_log import LAST_S, RunLog

GRADS = {"layers": [{"w": np.arange(6.0, dtype=np.float32).reshape(2, 3)}], "b": np.ones(4, np.float32)}


def measured(factor: float = 1.0) -> object:
    grads = {"layers": [{"w": factor * GRADS["layers"][0]["w"]}], "b": GRADS["b"]}
    return tv.measure(grads=grads, params=GRADS, updates=grads, statistics=tv.HISTOGRAM)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_function_gets_norms_ratios_and_counts_by_path_also_of_a_run_that_fails():
    inspector, rows = tv.GradientInspector(), {}
    with pytest.raises(ZeroDivisionError), inspector.log_to(rows.__setitem__, every=1) as log:
        for factor in (1.0, 2.0, float("nan")):
            inspector.record(measured(factor))
        raise ZeroDivisionError
    assert list(rows) == [0, 1, 2] and log.n_logged == 3 and log.n_left_out == 0
    w, b = np.linalg.norm(GRADS["layers"][0]["w"]), 2.0
    for step, factor in ((0, 1.0), (1, 2.0)):
        assert rows[step]["grads norm/layers/0/w"] == pytest.approx(factor * w)
        assert rows[step]["grads norm/b"] == pytest.approx(b)
        assert rows[step]["grads norm"] == pytest.approx(np.hypot(factor * w, b))
        assert rows[step]["updates ratio/layers/0/w"] == pytest.approx(factor)
        assert rows[step]["grads max_abs"] == 5 * factor and rows[step]["grads nonfinite"] == 0
    assert np.isnan(rows[2]["grads norm/layers/0/w"]) and np.isnan(rows[2]["grads norm"])
    assert rows[2]["grads norm/b"] == pytest.approx(b) and rows[2]["grads nonfinite"] == 6
    assert np.isnan(rows[2]["grads max_abs"])


def test_a_new_run_and_each_second_step_are_logged_under_their_numbers():
    inspector, steps = tv.GradientInspector(), []
    with inspector.log_to(lambda step, _: steps.append(step), every=2) as log:
        for _ in range(5):
            inspector.record(measured())
        inspector.reset()
        for _ in range(3):
            inspector.record(measured())
    assert steps == [0, 2, 4, 0, 2]
    log.close()  # again
    assert repr(log) == "RunLog(5 steps logged)"


def test_a_log_that_nobody_closes_is_complete_when_python_ends(monkeypatch):
    at_exit, steps = [], []
    monkeypatch.setattr("atexit.register", lambda *call: at_exit.append(call))
    inspector = tv.GradientInspector()
    inspector.log_to(lambda step, _: steps.append(step), every=1)
    for _ in range(5):
        inspector.record(measured())
    gc.collect()
    for function, *arguments in at_exit:
        function(*arguments)
    assert steps == [0, 1, 2, 3, 4]


def test_a_slow_logger_gets_no_more_steps_than_its_share_of_the_time_with_the_newest():
    inspector, clock, steps = tv.GradientInspector(), Clock(), []

    def slow(step: int, _: object) -> None:
        steps.append(step)
        clock.now += 0.25

    log = RunLog(inspector._recorder, slow, every=None, thresholds=inspector.thresholds, clock=clock)
    log._ticker.stop()  # only this test tells it when
    for _ in range(40):
        inspector.record(measured())
    inspector.flush()
    wait_s = log._tick()
    assert steps == [0, 39] and wait_s == pytest.approx(0.5 / 0.05)
    clock.now += wait_s
    for _ in range(40):
        inspector.record(measured())
    log.close()
    assert len(steps) == 2 + LAST_S / 0.25 and steps[-1] == 79
    assert log.n_left_out == 80 - len(steps) and "70 left out" in repr(log)


def test_a_logger_that_raises_costs_one_warning_and_no_step(caplog):
    inspector, n_calls = tv.GradientInspector(), []

    def broken(step: int, _: object) -> None:
        n_calls.append(step)
        raise OSError("disk full")

    with caplog.at_level(logging.WARNING, "treeviz"), inspector.log_to(broken) as log:
        for _ in range(3):
            inspector.record(measured())
            inspector.flush()
            log._tick()
    assert n_calls == [0, 1, 2] and len(inspector.history) == 3 and repr(log) == "RunLog(0 steps logged, 3 left out)"
    assert [record.message.count("disk full") for record in caplog.records] == [1]


def test_tensorboard_reads_the_numbers_histograms_and_findings(tmp_path):
    writer = pytest.importorskip("tensorboardX").SummaryWriter(str(tmp_path))
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator").EventAccumulator
    inspector = tv.GradientInspector()
    with inspector.log_to(writer, every=1):
        for factor in (1.0, 4.0, float("nan")):
            inspector.record(measured(factor))
    writer.close()
    read = accumulator(str(tmp_path), size_guidance={"histograms": 0}).Reload()
    norms = [(each.step, each.value) for each in read.Scalars("grads_norm/layers/0/w")]
    assert norms == [(0, pytest.approx(55**0.5)), (1, pytest.approx(4 * 55**0.5))], "one for each is no NaN"
    assert np.isnan([each.value for each in read.Scalars("grads_norm")]).tolist() == [False, False, True]
    histogram = read.Histograms("grads log2/layers/0/w")[1].histogram_value
    counts = dict(zip(histogram.bucket_limit, histogram.bucket, strict=True))
    assert [counts[limit] for limit in (3, 4, 5)] == [1, 2, 2], "4 is below 2**3; 8 and 12; 16 and 20"
    (text,) = read.Tensors("findings/text_summary")
    assert text.step == 2 and b"6 non-finite values" in text.tensor_proto.string_val[0]


def test_runs_of_libraries_get_numbers_by_the_methods_that_they_document(monkeypatch):
    """Each stands for the library, with the arguments of its methods; the real ones were tried by hand."""
    heard = []

    def stand_in(library: str, **methods):
        cls = type("Run", (), {"__module__": f"{library}.sdk", **methods})
        module = types.ModuleType(library)
        vars(module).update(Histogram=dict, Distribution=dict)
        monkeypatch.setitem(__import__("sys").modules, library, module)
        return cls()

    wandb = stand_in(
        "wandb",
        define_metric=lambda self, name, step_metric=None, hidden=None: heard.append((name, step_metric)),
        log=lambda self, row, step=None, commit=None: heard.append((row["treeviz step"], step, commit)),
        alert=lambda self, title, text, level: heard.append((title, level)),
    )
    aim = stand_in(
        "aim",
        track=lambda self, value, name=None, step=None: heard.append((name, step)),
        log_error=lambda self, text: heard.append(text[:9]),
    )
    for target in (wandb, aim):
        inspector = tv.GradientInspector()
        with inspector.log_to(target):
            inspector.record(measured(float("nan")))
    assert ("grads norm/*", "treeviz step") in heard and (0, None, False) in heard
    assert ("nonfinite at step 0", "ERROR") in heard
    assert ("grads norm/layers/0/w", 0) in heard and ("grads log2/b", 0) in heard and "nonfinite" in heard


def test_what_is_no_logger_is_refused():
    inspector = tv.GradientInspector()
    with pytest.raises(TypeError, match="int is not a known logger"):
        inspector.log_to(3)
    with pytest.raises(ValueError, match="every=0"):
        inspector.log_to(print, every=0)
