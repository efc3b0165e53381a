"""The file that follows a run: never in the way of the run, soon whole again, and never that of another run."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from pathlib import Path

import pytest
from small_disk import Disk

from treeviz.steps.measure import MeasuredTree
from treeviz.steps.recording.history import History
from treeviz.steps.recording.history_file import LONGEST_WAIT_S, journal_of, keep, load, save


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def source(name="grads", n_leaves=3) -> MeasuredTree:
    paths = tuple(f"[{i}]" for i in range(n_leaves))
    return MeasuredTree(name, paths, (1,) * n_leaves, ("float32",) * n_leaves, (True,) * n_leaves, ("",) * n_leaves)


def train(history: History, *steps: int) -> None:
    for step in steps:
        history.append(step, {"grads": {"norm": [step, 1.0, 2.0], "nonfinite": [0, 0, step]}})


def kept(path: Path, *steps: int, clock: Clock | None = None) -> History:
    history = History([source()])
    train(history, *steps)
    assert keep(history, path, clock=clock or Clock()) == path
    return history


def steps_in(path: Path) -> list[int]:
    history = load(path)
    assert not history.damage
    return history.steps().tolist()


# A disk that is full, or fails


@pytest.mark.parametrize("n_left", [0, 1, 7, 60, 150])
def test_a_step_that_was_half_written_is_written_whole_as_soon_as_there_is_room(tmp_path, disk: Disk, n_left, caplog):
    clock = Clock()
    history = kept(tmp_path / "a.treeviz", 0, clock=clock)
    disk.n_left = n_left
    train(history, 1, 2, 3)
    assert steps_in_spite_of_damage(tmp_path / "a.treeviz") == [0, 1, 2, 3][: 1 + n_left // 130]
    n_lacking, why = history.journal.lacks(history)
    assert (n_lacking, why) == (3 - n_left // 130, "No space left on device")
    disk.n_left = 10_000
    train(history, 4)
    assert history.journal.lacks(history)[0] == n_lacking + 1  # it does not try at each step
    clock.now += LONGEST_WAIT_S
    train(history, 5, 6)
    assert history.journal.lacks(history) == (0, "")
    assert steps_in(tmp_path / "a.treeviz") == [0, 1, 2, 3, 4, 5, 6]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and record.name == "treeviz"
    assert record.message == (
        f"keep: {tmp_path}/a.treeviz cannot be written: No space left on device. The run goes on with its numbers in "
        "memory, and writing is tried again; the inspector's view says what the file lacks."
    )


def steps_in_spite_of_damage(path: Path) -> list[int]:
    return load(path).steps().tolist()


def test_a_disk_that_stays_full_is_tried_less_and_less_often(tmp_path, disk: Disk):
    clock = Clock()
    history = kept(tmp_path / "a.treeviz", clock=clock)
    disk.n_left = 0
    for step in range(1000):
        clock.now = float(step)
        train(history, step)
    assert 15 <= disk.n_failed <= 60 and len(history) == 1000
    disk.n_left = 1 << 30
    history.journal.catch_up(history)
    assert len(load(tmp_path / "a.treeviz")) in (0, 1000)
    history.journal.catch_up(history, now=True)
    assert steps_in(tmp_path / "a.treeviz") == list(range(1000))


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE])
def test_whatever_the_disk_raises_the_run_has_its_numbers(tmp_path, disk: Disk, error):
    history = kept(tmp_path / "a.treeviz", 0)
    disk.error, disk.n_left = error, 20
    train(history, 1, 2)
    assert history.steps().tolist() == [0, 1, 2]
    disk.n_left = 10_000
    save(history, tmp_path / "a.treeviz")
    assert history.journal.lacks(history) == (0, "")
    train(history, 3)
    assert steps_in(tmp_path / "a.treeviz") == [0, 1, 2, 3]


def remove_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def remove_files(path: Path) -> None:
    path.unlink()
    journal_of(path).unlink()


def remove_journal(path: Path) -> None:
    journal_of(path).unlink()


@pytest.mark.parametrize("remove", [remove_folder, remove_files, Path.unlink, remove_journal])
def test_a_file_that_is_deleted_during_the_run_is_written_again(tmp_path, remove, caplog):
    clock, path = Clock(), tmp_path / "runs" / "a.treeviz"
    path.parent.mkdir()
    history = kept(path, 0, clock=clock)
    remove(path)
    clock.now += 1.0
    train(history, 1)
    assert history.journal.lacks(history) == (1, "No such file or directory")
    path.parent.mkdir(exist_ok=True)
    clock.now += 1.0
    train(history, 2)
    assert steps_in(path) == [0, 1, 2] and history.journal.lacks(history) == (0, "")
    assert [record.getMessage()[:5] for record in caplog.records] == ["keep:"]


def test_where_the_whole_history_no_longer_fits_the_journal_that_is_there_stays(tmp_path, disk: Disk):
    history = kept(tmp_path / "a.treeviz", 0, 1)
    train(history, 2)
    disk.n_left = 50
    history.add_source(source("later"), 1000)
    train(history, 3)
    assert steps_in(tmp_path / "a.treeviz") == [0, 1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.treeviz", "a.treeviz.journal"]


# From the first moment on


def test_the_file_is_there_before_the_first_step_and_trees_that_are_seen_later_are_in_it(tmp_path):
    history = History([], 0)
    keep(history, tmp_path / "a.treeviz")
    assert len(load(tmp_path / "a.treeviz")) == 0
    history.add_source(source(), 10_000)
    train(history, 0)
    history.add_source(source("critic", 2), 10_000)
    train(history, 1)
    history.append(2, {"critic": {"norm": [5.0, 6.0]}})
    loaded = load(tmp_path / "a.treeviz")
    assert loaded.steps().tolist() == [0, 1] and loaded.values("critic").latest.tolist() == [[5.0, 6.0]]
    assert loaded.sources == history.sources and not loaded.damage


@pytest.mark.parametrize(
    ("place", "error"),
    [("gone/a.treeviz", FileNotFoundError), ("file/a.treeviz", NotADirectoryError), ("folder", IsADirectoryError)],
)
def test_where_no_file_can_be_it_raises_at_once(tmp_path, place, error):
    (tmp_path / "file").write_text("a file")
    (tmp_path / "folder").mkdir()
    history = History([source()])
    with pytest.raises(error, match=place.partition("/")[0]):
        keep(history, tmp_path / place)
    assert history.journal is None
    train(history, 0)


def test_on_a_disk_that_is_full_it_raises_at_once_and_leaves_nothing_behind(tmp_path, disk: Disk):
    disk.n_left = 30
    history = History([source()])
    with pytest.raises(OSError, match="No space left on device"):
        keep(history, tmp_path / "a.treeviz")
    assert list(tmp_path.iterdir()) == [] and history.journal is None


# Other runs


@pytest.mark.parametrize("content", ["a run", "damaged", "something else", "nothing", "moved", "a pipe"])
def test_a_file_that_is_not_of_this_run_stays_and_this_one_takes_a_new_name(tmp_path, content):
    path = tmp_path / "a.treeviz"
    train(kept(path, 0), 1)  # which then crashed
    if content == "damaged":
        path.write_bytes(path.read_bytes()[:-40])
    if content in ("something else", "nothing"):
        path.write_text("my notes" if content == "something else" else "")
    if content in ("moved", "a pipe"):  # without its journal
        path.unlink()
    if content == "a pipe":  # to read it is to wait for a writer
        os.mkfifo(path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if not file.is_fifo()}
    history = History([source()])
    assert keep(history, path) == tmp_path / "a-2.treeviz"
    train(history, 7)
    assert steps_in(tmp_path / "a-2.treeviz") == [7]
    assert keep(History([source()]), path) == tmp_path / "a-3.treeviz"
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_a_loaded_history_continues_its_file(tmp_path):
    path = tmp_path / "a.treeviz"
    train(kept(path, 0), 1)
    history = load(path)
    assert keep(history, path) == path
    train(history, 2)
    assert steps_in(path) == [0, 1, 2]
    assert keep(history, path) == path  # once more
    assert keep(history, tmp_path / "b.treeviz") == tmp_path / "b.treeviz"
    train(history, 3)
    assert steps_in(path) == [0, 1, 2] and steps_in(tmp_path / "b.treeviz") == [0, 1, 2, 3]


def test_of_two_that_continue_one_file_the_second_takes_a_new_name(tmp_path):
    path = tmp_path / "a.treeviz"
    train(kept(path, 0), 1)
    one, two = load(path), load(path)
    assert keep(one, path) == path and keep(two, path) == tmp_path / "a-2.treeviz"
    train(one, 10)
    train(two, 20)
    assert steps_in(path) == [0, 1, 10] and steps_in(tmp_path / "a-2.treeviz") == [0, 1, 20]


def test_a_history_that_lacks_steps_of_the_file_does_not_continue_it(tmp_path):
    path = tmp_path / "a.treeviz"
    writer = kept(path, 0)
    early = load(path)
    train(writer, 1)
    assert keep(early, path) == tmp_path / "a-2.treeviz"


@pytest.mark.parametrize("how", ["keep", "save"])
def test_a_run_whose_file_another_takes_goes_on_under_a_new_name_and_loses_nothing(tmp_path, how, caplog):
    clock, path = Clock(), tmp_path / "a.treeviz"
    history = kept(path, 0, clock=clock)
    other = load(path) if how == "keep" else kept(tmp_path / "other.treeviz", 50)
    (keep if how == "keep" else save)(other, path)
    train(history, 1)
    clock.now += 1.0
    train(history, 2)
    train(other, 100)
    train(history, 3)
    assert steps_in(tmp_path / "a-2.treeviz") == [0, 1, 2, 3] == history.steps().tolist()
    assert steps_in(path) == ([0, 100] if how == "keep" else [50])
    assert [record.getMessage() for record in caplog.records] == [
        f"keep: {path} now belongs to another run; this one continues in {tmp_path}/a-2.treeviz."
    ]
