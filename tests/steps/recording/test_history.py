"""Histories: exact where steps are recent, bounded where they are old, and the same after a file."""

import io
import json
import os
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeviz.steps.measure import MeasuredTree
from treeviz.steps.recording.history import History, Track, main_source
from treeviz.steps.recording.history_file import keep, load, save


def source(name="grads", n_leaves=3) -> MeasuredTree:
    ones = (1,) * n_leaves
    return MeasuredTree(
        name, tuple(f"[{i}]" for i in range(n_leaves)), ones, ("float32",) * n_leaves, (True,) * n_leaves
    )


def filled(n_steps: int, **how) -> tuple[History, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    norms, bad = rng.lognormal(size=(n_steps, 3)), rng.integers(0, 5, (n_steps, 3))
    history = History([source()], **how)
    for step in range(n_steps):
        history.append(step, {"grads": {"norm": norms[step], "nonfinite": bad[step]}})
    return history, norms, bad


def test_recent_steps_are_exact():
    history, norms, bad = filled(100)
    series = history.values("grads", "finite_norm")
    np.testing.assert_array_equal(series.low, norms)
    np.testing.assert_array_equal(series.until, np.arange(100))
    np.testing.assert_array_equal(history.values("grads", "nonfinite", 1).total, bad[:, 1])
    step, numbers = history.last()
    assert step == 99 and numbers["finite_norm"].tolist() == norms[99].tolist()
    shown = np.where(bad > 0, np.nan, norms)  # no norm, least of all that of nothing, stands for values that are NaN
    np.testing.assert_array_equal(history.values("grads", "norm").latest, shown)
    np.testing.assert_array_equal(history.values("grads", "rms", 1).low, shown[:, 1])
    np.testing.assert_array_equal(numbers["norm"], shown[99])
    np.testing.assert_array_equal(np.isnan(history.ratio("grads", "grads").latest), bad > 0)


def test_without_memory_the_newest_eight_steps_and_two_to_four_buckets_are_there():
    history, norms, bad = filled(100, max_bytes=0)
    series = history.values("grads", "finite_norm")
    np.testing.assert_array_equal(series.latest[-8:], norms[-8:])
    assert np.isnan(history.values("grads", "norm").latest[-8:]).tolist() == (bad[-8:] > 0).tolist()
    assert (series.n[-8:] == 1).all() and 2 <= len(series.n) - 8 <= 4 and series.n.sum() == 100


@given(n_steps=st.integers(1, 3000), max_bytes=st.integers(0, 20_000), together=st.integers(1, 100))
def test_buckets_hold_the_least_the_greatest_the_last_and_the_sum_of_their_steps(n_steps, max_bytes, together):
    rng = np.random.default_rng(n_steps)
    values = rng.standard_normal((n_steps, 2))
    counts = rng.integers(0, 9, (n_steps, 2))
    floats, whole = Track((2,), np.float64, max_bytes), Track((2,), np.int64, max_bytes)
    for first in range(0, n_steps, together):
        steps = range(first, min(first + together, n_steps))
        floats.extend([step * 10 for step in steps], values[first : steps.stop])
        whole.extend([step * 10 for step in steps], counts[first : steps.stop])
    for track, truth in ((floats, values), (whole, counts)):
        series = track.timeline()
        assert series.n.sum() == n_steps and series.first[0] == 0 and series.until[-1] == 10 * (n_steps - 1)
        starts = np.concatenate([[0], np.cumsum(series.n)[:-1]])
        np.testing.assert_array_equal(series.first, starts * 10)
        np.testing.assert_array_equal(series.high, np.maximum.reduceat(truth, starts))
        np.testing.assert_array_equal(series.latest, truth[starts + series.n - 1])
        if track.is_count:
            np.testing.assert_array_equal(series.total, np.add.reduceat(truth, starts))
        else:
            np.testing.assert_array_equal(series.low, np.minimum.reduceat(truth, starts))
        assert track.nbytes <= max(max_bytes, 800)


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
    for max_bytes, numbers, most in (
        (64_000_000, every | values["grads"], 64_000_000),
        (0, every | values["grads"], 12_000 * n),  # as the docstring of GradientInspector says
        (0, values["grads"], 500 * n),
    ):
        history = History([source(n_leaves=n)], max_bytes=max_bytes)
        history.append(0, {"grads": numbers})
        assert history.nbytes <= most


def test_a_range_and_a_resolution_can_be_asked_for():
    history, norms, _ = filled(500)
    series = history.values("grads", "finite_norm", first=100, until=199)
    np.testing.assert_array_equal(series.latest, norms[100:200])
    series = history.values("grads", "finite_norm", 2, resolution=7)
    assert len(series.n) == 7 and series.n.sum() == 500
    assert series.high.max() == norms[:, 2].max() and series.low.min() == norms[:, 2].min()


def test_gradients_of_a_branch_that_is_rarely_taken_are_not_shown_first():
    """As those of L-BFGS: after its first step the gradient comes from the line search."""
    history = History([source(), source("grads #2")])
    for step in range(3):
        numbers = (
            {"norm": np.full(3, np.nan), "nonfinite": np.full(3, -1)},
            {"norm": np.ones(3), "nonfinite": np.zeros(3)},
        )
        history.append(step, {"grads": numbers[step == 0], "grads #2": numbers[step != 0]})
        assert main_source(history) == ("grads" if step < 2 else "grads #2")


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
    save(history, tmp_path / "a.tvh")
    loaded = load(tmp_path / "a.tvh")
    assert loaded.sources == history.sources and len(loaded) == n_steps
    for statistic in ("norm", "nonfinite", "mean"):
        for a, b in zip(history.values("grads", statistic), loaded.values("grads", statistic), strict=True):
            np.testing.assert_array_equal(a, b)
    assert [path.name for path in tmp_path.iterdir()] == ["a.tvh"]


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path, monkeypatch):
    """The umask is the whole process's: files that other threads make at the time keep theirs."""
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask was set"))
    (tmp_path / "other").touch()
    save(filled(1)[0], tmp_path / "a.tvh")
    assert (tmp_path / "a.tvh").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_numpy_and_a_zip_program_read_the_file(tmp_path):
    save(filled(20)[0], tmp_path / "a.tvh")
    header = json.loads(zipfile.ZipFile(tmp_path / "a.tvh").read("header.json"))
    assert header["format"] == "treeviz-history" and header["sources"][0]["paths"] == ["[0]", "[1]", "[2]"]
    with np.load(tmp_path / "a.tvh") as arrays:
        assert arrays["0/exact"].shape == (20, 3)


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 cut"])
def test_what_is_no_history_is_refused(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(ValueError, match="is not a run that this version of treeviz can read"):
        load(tmp_path / "a")


def rewritten(path: Path, change: Callable[[str, bytes], bytes], compression=zipfile.ZIP_DEFLATED) -> Path:
    """The archive with other contents."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in contents.items():
            archive.writestr(name, change(name, content))
    return path


def with_header(**fields) -> Callable[[str, bytes], bytes]:
    return lambda name, content: json.dumps(json.loads(content) | fields).encode() if name[0] == "h" else content


def with_shape(*shape: int) -> Callable[[str, bytes], bytes]:
    """An array says that it has another shape."""

    def change(name: str, content: bytes) -> bytes:
        if name != "0/exact_steps.npy":
            return content
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "<i8", "fortran_order": False, "shape": shape})
        return header.getvalue() + content[128:]

    return change


SOURCES = [{"name": "grads", "paths": ["a"], "sizes": [1], "dtypes": ["float32"], "has_number": [True]}]


@pytest.mark.parametrize(
    "change",
    [
        with_header(max_bytes="much"),
        with_header(max_bytes=1e400),
        with_header(sources=None),
        with_header(sources=[SOURCES[0] | {"sizes": []}]),
        with_header(sources=[SOURCES[0] | {"sizes": ["x"]}]),
        with_header(sources=[SOURCES[0] | {"paths": [None]}]),
        with_header(sources=[SOURCES[0] | {"shapes": [[3]]}]),
        with_header(tracks=[{"source": "grads", "statistic": "norm"}]),
        with_header(tracks=[{"source": "params", "statistic": "norm", "bucket_width": 1}]),
        with_header(tracks=[{"source": "grads", "statistic": "norm", "bucket_width": 1}] * 9),
        *(with_header(n_appended=n) for n in (2**63, 2**63 - 1, -1, 9)),
        with_header(tracks=[{"source": "grads", "statistic": "norm", "bucket_width": 0}]),
        with_header(scalars={"n_appended": 2**63, "tracks": [], "batches": []}),
        with_header(version="2"),
        with_header(inner=[1 << 31, "micro-batch"]),
        with_header(format=3),
        with_shape(1_000_000_000),
        with_shape(9),
        with_shape(-10),
        with_shape(1, 10),
        lambda name, content: content[:-8] if name.endswith("exact.npy") else content,
        lambda name, content: content.replace(b"<f8", b"|O8") if name.endswith("exact.npy") else content,
        lambda name, content: content.replace(b"(", b"[" * 9) if name.endswith("exact.npy") else content,
        lambda name, content: b"[" * 100_000 if name[0] == "h" else content,
        lambda name, content: content + bytes(1 << 25) if name == "0/exact.npy" else content,
    ],
)
def test_whatever_is_damaged_load_says_that_it_is_no_history(tmp_path, change):
    save(filled(10, max_bytes=10_000)[0], tmp_path / "a.tvh")
    path = rewritten(tmp_path / "a.tvh", change)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"a\.tvh is not a run that this version of treeviz can read: "):
        load(path)
    assert tracemalloc.get_traced_memory()[1] < 20_000_000  # however much the file says that it holds
    tracemalloc.stop()


def test_a_small_file_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    save(filled(10, max_bytes=10_000)[0], tmp_path / "a.tvh")
    monkeypatch.setattr("treeviz.steps.recording.history_file._MOST_ALWAYS", 1 << 20)
    path = rewritten(tmp_path / "a.tvh", lambda name, content: content + bytes((name[0] == "0") << 24))
    with pytest.raises(ValueError, match=r"it would take 67,\d+,\d+ bytes of memory"):
        load(path)

    monkeypatch.setattr("treeviz.tree.files.MOST_TOKENS", 10)
    with pytest.raises(ValueError, match="values and brackets; 10 is the most that is read"):
        load(rewritten(path, lambda _, content: content.rstrip(b"\0")))


def test_a_file_of_arrays_is_told_what_shows_it(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.ones(3))
    with pytest.raises(ValueError, match=r"a\.npz is not a run .*: it holds no run; `treeviz show` shows"):
        load(tmp_path / "a.npz")


def test_a_journal_that_is_no_file_is_not_waited_for(tmp_path):
    save(filled(10)[0], tmp_path / "a.tvh")
    os.mkfifo(tmp_path / "a.tvh.journal")
    assert load(tmp_path / "a.tvh").n_records


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressions_whose_size_is_not_known_beforehand_are_refused(tmp_path, compression):
    save(filled(10)[0], tmp_path / "a.tvh")
    with pytest.raises(ValueError, match="is not a run"):
        load(rewritten(tmp_path / "a.tvh", lambda _, content: content, compression))


@pytest.mark.parametrize("field", ["flag_bits", "extract_version", "compress_type", "header_offset", "date_time"])
def test_a_directory_that_lies_is_a_damaged_file(tmp_path, field):
    save(filled(10)[0], tmp_path / "a.tvh")
    content = bytearray((tmp_path / "a.tvh").read_bytes())
    at = content.rindex(b"PK\1\2")  # of the last array; see `zipfile`
    offset = {"flag_bits": 8, "extract_version": 6, "compress_type": 10, "header_offset": 42, "date_time": 12}[field]
    content[at + offset : at + offset + 2] = b"\xff\xff"
    (tmp_path / "a.tvh").write_bytes(content)
    try:
        load(tmp_path / "a.tvh")
    except ValueError as error:
        assert "is not a run" in str(error)


def test_a_file_that_is_not_there_or_may_not_be_read_is_another_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "gone")
    with pytest.raises(IsADirectoryError):
        load(tmp_path)


def test_a_cut_file_is_refused_and_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "a.tvh"
    history = filled(10)[0]
    save(history, file)
    whole = file.read_bytes()
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="is not a run"):
        load(tmp_path / "cut")
    monkeypatch.setattr(np.lib.format, "write_array", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save(history, file)
    assert file.read_bytes() == whole and sorted(path.name for path in tmp_path.iterdir()) == ["a.tvh", "cut"]


def test_a_crash_loses_nothing_that_was_appended(tmp_path):
    file = tmp_path / "a.tvh"
    history = filled(10)[0]
    keep(history, file)
    for step in range(10, 30):
        history.append(step, {"grads": {"norm": [step, 1.0, 2.0], "nonfinite": [0, 0, step]}})
    loaded = load(file)  # as if the process had ended here
    assert len(loaded) == 30 and loaded.last()[0] == 29
    for a, b in zip(history.values(), loaded.values(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_record_that_was_cut_or_damaged_ends_the_journal(tmp_path):
    file, journal = tmp_path / "a.tvh", tmp_path / "a.tvh.journal"
    history = History([source()])
    keep(history, file)
    ends = []
    for step in range(5):
        history.append(step, {"grads": {"norm": [step, 1.0, 2.0]}})
        ends.append(journal.stat().st_size)
    whole = journal.read_bytes()
    for cut in range(ends[3] + 1, ends[4]):
        journal.write_bytes(whole[:cut])
        assert len(load(file)) == 4
        assert (
            load(file).damage
            == f"The last {cut - ends[3]} bytes of {journal} cannot be read: the steps in them are missing."
        )
    damaged = bytearray(whole)
    damaged[ends[2] + 20] ^= 1
    journal.write_bytes(damaged)
    assert len(load(file)) == 3


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b'{"n": 1, "step": 1, "arrays": [["params", "norm"]]}', 24),
        (b'{"n": 1, "step": 1, "arrays": [["grads", "median"]]}', 24),
        (b'{"n": 1, "step": 1, "arrays": [["grads", "norm"]]}', 23),
        (b'{"n": 3, "step": 1, "arrays": [["grads", "norm"]]}', 24),
        (b'{"n": 1, "step": 1e999, "arrays": [["grads", "norm"]]}', 24),
        (b'{"n": 1, "step": 9223372036854775808, "arrays": [["grads", "norm"]]}', 24),
        (b"[" * 10_000, 0),
        (b"\xff", 0),
        (b"{}", 0),
    ],
)
def test_a_record_that_is_not_understood_ends_the_journal(tmp_path, head, body):
    file, journal = tmp_path / "a.tvh", tmp_path / "a.tvh.journal"
    history = History([source()])
    keep(history, file)
    history.append(0, {"grads": {"norm": [1.0, 1.0, 2.0]}})
    data = struct.pack("<II", len(head), body) + head + bytes(body)
    with open(journal, "ab") as stream:
        stream.write(data + struct.pack("<I", zlib.crc32(data)))
    loaded = load(file)
    assert len(loaded) == 1 and loaded.damage.startswith(f"The last {len(data) + 4:,} bytes of ")
    save(loaded, tmp_path / "b.tvh")
    assert len(load(tmp_path / "b.tvh")) == 1


@pytest.mark.parametrize("lengths", [(0xFFFFFFFF, 0xFFFFFFFF), (0, 0xFFFFFFF0), (1 << 31, 1)])
def test_a_damaged_length_takes_no_memory(tmp_path, lengths):
    file, journal = tmp_path / "a.tvh", tmp_path / "a.tvh.journal"
    history = History([source()])
    keep(history, file)
    with open(journal, "ab") as stream:
        stream.write(struct.pack("<II", *lengths) + bytes(100))
    tracemalloc.start()
    assert load(file).damage.startswith("The last 108 bytes of ")
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()


def test_saving_takes_the_journal_in_and_another_runs_journal_is_left_alone(tmp_path):
    file, journal = tmp_path / "a.tvh", tmp_path / "a.tvh.journal"
    history = History([source()])
    keep(history, file)
    history.append(0, {"grads": {"norm": [1.0, 2.0, 3.0]}})
    size = journal.stat().st_size
    save(history, file)
    assert journal.stat().st_size < size and len(load(file)) == 1
    history.append(1, {"grads": {"norm": [1.0, 2.0, 3.0]}})
    assert len(load(file)) == 2
    other = filled(1)[0]
    save(other, file)
    assert len(load(file)) == 1


def test_a_journal_does_not_grow_without_bounds(tmp_path):
    history = History([source(n_leaves=2000)], max_bytes=100_000)
    keep(history, tmp_path / "a.tvh")
    for step in range(200):
        history.append(step, {"grads": {"norm": np.ones(2000)}})
    assert (tmp_path / "a.tvh.journal").stat().st_size < 1_200_000
    assert len(load(tmp_path / "a.tvh")) == 200


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_a_track_continues_with_more_buckets_than_it_has_room_for(dtype):
    large, small = Track((3,), dtype, 20_000), Track((3,), dtype, 1_000)
    values = np.random.default_rng(0).integers(0, 99, (2000, 3)).astype(dtype)
    large.extend(range(2000), values)
    small.restore(large.arrays(), large.bucket_width)
    assert large.n_buckets > len(small) and small.n_steps == 2000
    series = small.timeline()
    np.testing.assert_array_equal(series.high.max(axis=0), values.max(axis=0))
    np.testing.assert_array_equal(series.latest[-1], values[-1])
    if dtype is np.int64:
        np.testing.assert_array_equal(series.total.sum(axis=0), values.sum(axis=0))
    else:
        np.testing.assert_array_equal(series.low.min(axis=0), values.min(axis=0))
