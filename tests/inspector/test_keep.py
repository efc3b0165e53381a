"""`GradientInspector.keep`: a run and its file, whatever happens to either."""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Callable
from copy import copy, deepcopy
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from packed import packed_measurement
from small_disk import Disk

import treeviz as tv
from treeviz.steps.recording import recorder
from treeviz.steps.recording.history_file import Followed, load

pytestmark = pytest.mark.oldest_jax


def train(inspector: tv.GradientInspector, *steps: int, bad: int = -1) -> None:
    for step in steps:
        inspector.record(packed_measurement(step, n_nonfinite=int(step == bad)), step=step)


def steps_of(inspector: tv.GradientInspector) -> list[int]:
    return inspector.history.steps().tolist()


# A disk that is full


@pytest.mark.parametrize("n_left", [0, 50, 400])
def test_a_full_disk_leaves_the_inspector_what_it_is_and_is_named_in_its_view(tmp_path, monkeypatch, n_left, caplog):
    disk, told = Disk(monkeypatch), []
    inspector = tv.GradientInspector(raise_on={"nonfinite"}, on_finding=told.append)
    path = inspector.keep(tmp_path / "run.treeviz")
    train(inspector, 0, 1)
    disk.n_left = n_left
    with pytest.raises(tv.StopTraining, match="at step 5"):
        train(inspector, *range(2, 20), bad=5)
    assert [finding.first for finding in told] == [5] == [finding.first for finding in inspector.findings]
    assert steps_of(inspector) == [0, 1, 2, 3, 4, 5] and inspector.n_dropped == 0
    n_lacking = 6 - len(load(path))
    assert n_lacking > 0 and len(caplog.records) == 1
    followed = Followed(path)  # as from another terminal, or by a server
    assert followed.update() == (True, "") and len(followed.history) == 6 - n_lacking
    assert f"{n_lacking} step{'s' * (n_lacking > 1)} not in run.treeviz: No space left on device" in str(inspector)
    assert "not in run.treeviz" in inspector.render()._repr_html_()
    logger = logging.getLogger("treeviz")  # as in a plain script, where Python writes warnings to stderr
    assert logger.propagate and not logger.handlers and logger.isEnabledFor(logging.WARNING)
    disk.n_left = 1 << 20
    inspector.flush() if n_left else inspector._recorder.close()  # the latter at the end of the program
    assert steps_of(tv.GradientInspector.load(path)) == [0, 1, 2, 3, 4, 5]
    assert followed.update() == (True, "") and len(followed.history) == 6
    assert "not in" not in str(inspector)


# Within a second


def test_slow_steps_are_in_the_file_though_too_few_wait_to_be_read_together(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "KEPT_WITHIN_S", 0.0)
    inspector, is_written = tv.GradientInspector(), threading.Event()
    path = inspector.keep(tmp_path / "run.treeviz")
    journal = inspector._recorder.history.journal
    assert journal is not None
    write = journal.write
    monkeypatch.setattr(journal, "write", lambda *args: (write(*args), is_written.set()))
    for step in range(3):
        is_written.clear()
        train(inspector, step)
        assert is_written.wait(60)
        assert load(path).steps().tolist() == list(range(step + 1))
    inspector._recorder.close()


def test_a_finding_in_steps_that_were_read_for_the_file_is_told_by_the_loop(tmp_path):
    told = []
    inspector = tv.GradientInspector(on_finding=told.append)
    inspector.keep(tmp_path / "run.treeviz")
    recorder = inspector._recorder
    with recorder.reading:  # so that the loop cannot read
        thread = threading.Thread(target=train, args=(inspector, 0, 1), kwargs={"bad": 1})
        thread.start()
        thread.join()
        recorder._tick()
    assert len(recorder) == 0 and not told
    inspector.flush()
    assert [finding.first for finding in told] == [1]


def test_the_file_is_looked_after_every_second(tmp_path, monkeypatch):
    waited: list[float] = []

    def ticker(tick, first_s, **_):
        return SimpleNamespace(start=lambda: waited.extend((first_s, tick())), stop=lambda: None)

    monkeypatch.setattr(recorder, "Ticker", ticker)
    tv.GradientInspector().keep(tmp_path / "run.treeviz")
    assert waited == [1.0, 1.0]


def test_what_of_a_loaded_file_cannot_be_read_is_a_note(tmp_path):
    inspector = tv.GradientInspector()
    path = inspector.keep(tmp_path / "run.treeviz")
    train(inspector, 0, 1)
    inspector.flush()
    journal = path.with_name("run.treeviz.journal")
    journal.write_bytes(journal.read_bytes()[:-5])
    again = tv.GradientInspector.load(path)
    (note,) = again.notes
    assert steps_of(again) == [0] and "run.treeviz.journal cannot be read" in note


def test_there_is_no_thread_before_keep_and_none_after_the_inspector(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "KEPT_WITHIN_S", 0.0)
    before = set(threading.enumerate())
    inspector = tv.GradientInspector()
    train(inspector, *range(100))
    assert set(threading.enumerate()) == before
    inspector.keep(tmp_path / "run.treeviz")
    (thread,) = set(threading.enumerate()) - before
    del inspector
    thread.join()


def test_keep_may_be_called_again_while_another_thread_records(tmp_path):
    inspector = tv.GradientInspector(on_finding=lambda _: None)  # so that each step is read at once
    inspector.keep(tmp_path / "0.treeviz")
    errors: list[BaseException] = []

    def go_on() -> None:
        try:
            train(inspector, *range(500))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=go_on)
    thread.start()
    for n in range(1, 10):
        inspector.keep(tmp_path / f"{n // 2}.treeviz")
    thread.join()
    inspector.flush()
    assert errors == [] and steps_of(inspector) == list(range(500)) and not inspector._recorder.lost
    assert load(tmp_path / "4.treeviz").steps().tolist() == list(range(500))


# Names


def test_a_second_run_of_the_same_program_leaves_the_first_ones_file_alone(tmp_path):
    path = tmp_path / "run.treeviz"

    def program(*steps: int) -> tuple[tv.GradientInspector, Path]:
        inspector = tv.GradientInspector()
        kept = inspector.keep(str(path))
        train(inspector, *steps)
        inspector.flush()
        return inspector, kept

    crashed, first = program(0, 1, 2)
    with pytest.warns(UserWarning) as warned:
        _, second = program(7, 8)
    assert (first, second) == (path, tmp_path / "run-2.treeviz")
    assert str(warned[0].message) == (
        f"keep: {path} is not of this run and stays unchanged; this run is kept in {second}. To continue what is in a "
        f"file, begin with GradientInspector.load('{path}')."
    )
    assert warned[0].filename == __file__
    assert steps_of(tv.GradientInspector.load(first)) == steps_of(crashed) == [0, 1, 2]
    assert steps_of(tv.GradientInspector.load(second)) == [7, 8]


def test_a_run_that_crashed_before_its_first_step_is_continued_in_its_file(tmp_path):
    path = tmp_path / "run.treeviz"
    tv.GradientInspector().keep(path)
    inspector = tv.GradientInspector.load(path)
    assert repr(inspector) == "GradientInspector: nothing was measured yet"
    assert inspector.keep(path) == path
    train(inspector, 0)
    inspector.flush()
    assert steps_of(tv.GradientInspector.load(path)) == [0]


# Other ways out


@pytest.mark.parametrize("take", [pickle.dumps, copy, deepcopy, partial(pickle.dumps, protocol=1)])
def test_an_inspector_is_not_pickled_and_says_what_does_instead(take: Callable):
    inspector = tv.GradientInspector()
    train(inspector, 0)
    with pytest.raises(
        TypeError, match=r"inspector\.save\('run\.treeviz'\).* GradientInspector\.load\('run\.treeviz'\)"
    ):
        take(inspector)
