"""Ctrl-C, wherever it comes, loses no measurement and counts none twice."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from interrupts import interrupted_everywhere
from packed import SOURCE, STATISTICS, packed_measurement

import treeviz.steps.recording
from treeviz.steps.recording.decode import Arrived
from treeviz.steps.recording.history import History
from treeviz.steps.recording.history_file import keep, load, save
from treeviz.steps.recording.recorder import Recorder

RECORDING = Path(treeviz.steps.recording.__file__).parent
N_BEFORE, N = 12, 2  # with so little memory, the next steps halve the number of buckets, begin one, and fill it


def measured(step: int) -> Arrived:
    return Arrived(packed_measurement(step, n_nonfinite=int(step % 3 == 0)), step)


def contents(history: History) -> list:
    """All that a history says, to be compared."""
    timelines = [history.values("grads", statistic) for statistic in (*STATISTICS, "finite_norm")]
    return [
        repr(part.tolist() if isinstance(part, np.ndarray) else part) for timeline in timelines for part in timeline
    ]


def waiting(recorder: Recorder, steps: range) -> Recorder:
    recorder._waiting.extend(map(measured, steps))
    return recorder


def test_wherever_an_interrupt_ends_a_reading_the_next_one_completes_it():
    calls = []

    def recorder_that_has_begun() -> Recorder:
        recorder = waiting(Recorder(0, on_call=lambda *call: calls.append(call)), range(N_BEFORE))
        recorder.flush()
        calls.clear()
        return waiting(recorder, range(N_BEFORE, N_BEFORE + N))

    expected = recorder_that_has_begun()
    expected.flush()
    assert expected.history.values("grads").n.tolist() == [2, 2, 2, *[1] * 8]
    for recorder in interrupted_everywhere(recorder_that_has_begun, Recorder.flush, RECORDING):
        recorder.flush()
        assert contents(recorder.history) == contents(expected.history)
        assert len(recorder.history) == N_BEFORE + N and recorder.n_dropped == len(recorder) == 0
        assert {(n, is_bad) for (_, n), is_bad in calls} == {(k, k % 3 == 0) for k in (12, 13)}


def test_a_measurement_is_recorded_once_if_the_call_that_took_it_was_interrupted_and_others_are_all_there():
    def recorder_of_a_loop() -> Recorder:
        return Recorder(100_000, at_once=True)

    def train(recorder: Recorder) -> None:
        for step in range(2):
            recorder.take(measured(step))

    for recorder in interrupted_everywhere(recorder_of_a_loop, train, RECORDING):
        recorder.take(measured(9))
        recorder.flush()
        steps = recorder.history.steps().tolist()
        assert steps in ([9], [0, 9], [0, 1, 9]) and recorder.n_dropped == len(recorder) == 0


def test_a_step_that_the_device_is_too_slow_for_is_dropped_and_counted_once(monkeypatch):
    monkeypatch.setattr("treeviz.steps.recording.recorder.MOST_WAITING", 2)
    monkeypatch.setattr(Arrived, "is_ready", lambda arrived: arrived.step != 0)

    def recorder_that_waits() -> Recorder:
        return waiting(Recorder(100_000), range(3))

    for recorder in interrupted_everywhere(recorder_that_waits, Recorder.read_what_is_ready, RECORDING):
        recorder.flush()
        steps = recorder.history.steps().tolist()
        assert (steps, recorder.n_dropped) in (([0, 1, 2], 0), ([1, 2], 1))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of files that Python has to close
def test_a_file_that_follows_the_run_is_whole_again_after_the_next_step(tmp_path):
    numbers = itertools.count()

    def append(history: History, step: int) -> None:
        history.append(step, {"grads": {"norm": [step, 1.0]}})

    def kept_history() -> History:
        history = History([SOURCE])
        keep(history, tmp_path / f"{next(numbers)}.treeviz")
        append(history, 0)
        return history

    def go_on(history: History) -> None:
        append(history, 1)
        save(history, history.journal.path)
        append(history, 2)

    for history in interrupted_everywhere(kept_history, go_on, RECORDING):
        append(history, 3)
        loaded = load(history.journal.path)
        assert loaded.steps().tolist() == history.steps().tolist() and not loaded.damage
        history.journal.close()
