"""Findings are reported during a run, and end it in time."""

import contextlib
import itertools
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import treeviz as tv
from treeviz.steps.findings import find as alarm
from treeviz.steps.findings.find import Alarm
from treeviz.steps.findings.finding import Thresholds
from treeviz.steps.measure import MeasuredTree, Measurement
from treeviz.steps.recording.decode import Arrived
from treeviz.steps.recording.history import History
from treeviz.steps.recording.recorder import MOST_LATE, Recorder
from treeviz.steps.statistics import LIGHT, StopTraining

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
    with pytest.raises(StopTraining, match=r"nonfinite: grads\['x'\] had 1 number that is NaN or infinite at step 7"):
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
