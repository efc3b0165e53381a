"""Histories: exact where steps are recent, bounded where they are old, and the same after a file."""

import json
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeviz.analysis.gradients import Source
from treeviz.analysis.history import History
from treeviz.analysis.history_track import Track

pytestmark = pytest.mark.oldest_jax


def source(name="grads", n_leaves=3) -> Source:
    ones = (1,) * n_leaves
    return Source(name, tuple(f"[{i}]" for i in range(n_leaves)), ones, ("float32",) * n_leaves, (True,) * n_leaves)


def filled(n_steps: int, **how) -> tuple[History, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    norms, bad = rng.lognormal(size=(n_steps, 3)), rng.integers(0, 5, (n_steps, 3))
    history = History([source()], **how)
    for step in range(n_steps):
        history.append(step, {"grads": {"norm": norms[step], "nonfinite": bad[step]}})
    return history, norms, bad


def test_recent_steps_are_exact():
    history, norms, bad = filled(100)
    series = history.values("grads", "norm")
    np.testing.assert_array_equal(series.low, norms)
    np.testing.assert_array_equal(series.until, np.arange(100))
    np.testing.assert_array_equal(history.values("grads", "nonfinite", 1).total, bad[:, 1])
    step, numbers = history.last()
    assert step == 99 and numbers["norm"].tolist() == norms[99].tolist()


@given(n_steps=st.integers(1, 3000), max_bytes=st.integers(0, 20_000))
def test_buckets_hold_the_least_the_greatest_the_last_and_the_sum_of_their_steps(n_steps, max_bytes):
    rng = np.random.default_rng(n_steps)
    values = rng.standard_normal((n_steps, 2))
    counts = rng.integers(0, 9, (n_steps, 2))
    floats, whole = Track((2,), np.float64, max_bytes), Track((2,), np.int64, max_bytes)
    for step in range(n_steps):
        floats.append(step * 10, values[step])
        whole.append(step * 10, counts[step])
    for track, truth in ((floats, values), (whole, counts)):
        series = track.series()
        assert series.n.sum() == n_steps and series.first[0] == 0 and series.until[-1] == 10 * (n_steps - 1)
        starts = np.concatenate([[0], np.cumsum(series.n)[:-1]])
        np.testing.assert_array_equal(series.first, starts * 10)
        np.testing.assert_array_equal(series.high, np.maximum.reduceat(truth, starts))
        np.testing.assert_array_equal(series.latest, truth[starts + series.n - 1])
        if track.is_count:
            np.testing.assert_array_equal(series.total, np.add.reduceat(truth, starts))
        else:
            np.testing.assert_array_equal(series.low, np.minimum.reduceat(truth, starts))
        assert track.nbytes <= max(max_bytes, 600)


def test_memory_is_bounded_for_a_thousand_leaves_and_the_steps_are_all_accounted_for():
    n = 1000
    history = History([source(name, n) for name in ("grads", "params", "updates")], max_bytes=8_000_000)
    values = {
        name: {"norm": np.ones(n), "max_abs": np.ones(n), "nonfinite": np.zeros(n, int)} for name in history.sources
    }
    for step in range(3000):
        history.append(step, values)
    assert history.nbytes <= 8_000_000
    series = history.values("updates", "nonfinite")
    assert series.n.sum() == 3000 and series.until[-1] == 2999
    every = {"mean": np.ones(n), "zeros": np.ones(n), "nan": np.ones(n), "posinf": np.ones(n), "neginf": np.ones(n)}
    every |= {"histogram": np.ones((n, 64)), "cosine": np.ones(n)}
    history = History([source(n_leaves=n)], max_bytes=64_000_000)
    history.append(0, {"grads": every | values["grads"]})
    assert history.nbytes <= 64_000_000


def test_a_range_and_a_resolution_can_be_asked_for():
    history, norms, _ = filled(500)
    series = history.values("grads", "norm", first=100, until=199)
    np.testing.assert_array_equal(series.latest, norms[100:200])
    series = history.values("grads", "norm", 2, resolution=7)
    assert len(series.n) == 7 and series.n.sum() == 500
    assert series.high.max() == norms[:, 2].max() and series.low.min() == norms[:, 2].min()


def test_leaves_without_numbers_stay_without():
    history = History([source()], max_bytes=0)
    for step in range(500):
        history.append(step, {"grads": {"norm": [1.0, np.nan, 2.0], "nonfinite": [0, -1, 1]}})
    assert np.isnan(history.values("grads", "norm").low[:, 1]).all()
    assert (history.values("grads", "nonfinite").total[:, 1] == -1).all()
    assert history.worst() == [2, 0, 1]


def test_ratios_are_those_of_the_norms():
    history = History([source("params"), source("updates")])
    for step in range(5):
        history.append(step, {"params": {"norm": [2.0, 0, 4]}, "updates": {"norm": [1.0, 1, step]}})
    ratio = history.ratio("updates", "params")
    np.testing.assert_array_equal(ratio.latest[:, 0], 0.5)
    np.testing.assert_array_equal(ratio.latest[:, 2], np.arange(5) / 4)
    assert history.ratio("grads", "params") is None


def test_what_does_not_belong_is_refused_with_its_name():
    history = History([source()])
    with pytest.raises(ValueError, match=r"no source 'params'; there are 'grads'"):
        history.append(0, {"params": {}})
    with pytest.raises(ValueError, match=r"grads norm of step 3 is \(2,\), not \(3,\)"):
        history.append(3, {"grads": {"norm": [1.0, 2.0]}})
    with pytest.raises(ValueError, match="no statistic 'median'"):
        history.append(0, {"grads": {"median": [1.0, 2.0, 3.0]}})


@pytest.mark.parametrize("n_steps", [0, 5, 5000])
def test_a_file_holds_all_of_it(tmp_path, n_steps):
    history = filled(n_steps, max_bytes=50_000)[0]
    history.save(tmp_path / "a.tvh")
    loaded = History.load(tmp_path / "a.tvh")
    assert loaded.sources == history.sources and len(loaded) == n_steps
    for statistic in ("norm", "nonfinite", "mean"):
        for a, b in zip(history.values("grads", statistic), loaded.values("grads", statistic), strict=True):
            np.testing.assert_array_equal(a, b)
    assert [path.name for path in tmp_path.iterdir()] == ["a.tvh"]


def test_numpy_and_a_zip_program_read_the_file(tmp_path):
    filled(20)[0].save(tmp_path / "a.tvh")
    header = json.loads(zipfile.ZipFile(tmp_path / "a.tvh").read("header.json"))
    assert header["format"] == "treeviz-history" and header["sources"][0]["paths"] == ["[0]", "[1]", "[2]"]
    with np.load(tmp_path / "a.tvh") as arrays:
        assert arrays["0/exact"].shape == (20, 3)


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 cut"])
def test_what_is_no_history_is_refused(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(ValueError, match="is no history that this version of treeviz can read"):
        History.load(tmp_path / "a")


def test_a_cut_file_is_refused_and_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "a.tvh"
    history = filled(10)[0]
    history.save(file)
    whole = file.read_bytes()
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="is no history"):
        History.load(tmp_path / "cut")
    monkeypatch.setattr(np.lib.format, "write_array", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        history.save(file)
    assert file.read_bytes() == whole and sorted(path.name for path in tmp_path.iterdir()) == ["a.tvh", "cut"]


def test_a_crash_loses_nothing_that_was_appended(tmp_path):
    file = tmp_path / "a.tvh"
    history = filled(10)[0]
    history.keep(file)
    for step in range(10, 30):
        history.append(step, {"grads": {"norm": [step, 1.0, 2.0], "nonfinite": [0, 0, step]}})
    loaded = History.load(file)  # as if the process had ended here
    assert len(loaded) == 30 and loaded.last()[0] == 29
    for a, b in zip(history.values(), loaded.values(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_record_that_was_cut_or_damaged_ends_the_journal(tmp_path):
    file, journal = tmp_path / "a.tvh", tmp_path / "a.tvh.journal"
    history = History([source()])
    history.keep(file)
    ends = []
    for step in range(5):
        history.append(step, {"grads": {"norm": [step, 1.0, 2.0]}})
        ends.append(journal.stat().st_size)
    whole = journal.read_bytes()
    for cut in range(ends[3] + 1, ends[4]):
        journal.write_bytes(whole[:cut])
        assert len(History.load(file)) == 4
    damaged = bytearray(whole)
    damaged[ends[2] + 20] ^= 1
    journal.write_bytes(damaged)
    assert len(History.load(file)) == 3


def test_saving_takes_the_journal_in_and_another_runs_journal_is_left_alone(tmp_path):
    file, journal = tmp_path / "a.tvh", tmp_path / "a.tvh.journal"
    history = History([source()])
    history.keep(file)
    history.append(0, {"grads": {"norm": [1.0, 2.0, 3.0]}})
    size = journal.stat().st_size
    history.save(file)
    assert journal.stat().st_size < size and len(History.load(file)) == 1
    history.append(1, {"grads": {"norm": [1.0, 2.0, 3.0]}})
    assert len(History.load(file)) == 2
    other = filled(1)[0]
    other.save(file)
    assert len(History.load(file)) == 1


def test_a_journal_does_not_grow_without_bounds(tmp_path):
    history = History([source(n_leaves=2000)], max_bytes=100_000)
    history.keep(tmp_path / "a.tvh")
    for step in range(200):
        history.append(step, {"grads": {"norm": np.ones(2000)}})
    assert (tmp_path / "a.tvh.journal").stat().st_size < 1_200_000
    assert len(History.load(tmp_path / "a.tvh")) == 200
