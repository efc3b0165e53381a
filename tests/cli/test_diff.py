"""`treeviz diff`: every difference between two files; the drift of every leaf over more."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import treeviz as tv
from treeviz.analysis.compare.aligned import Side
from treeviz.analysis.compare.merged import drift
from treeviz.cli import main
from treeviz.cli.output import DIFFERENT, TROUBLE
from treeviz.prepare import scanned


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """Save arrays by name, as `saved("a.npz", {"layers.0.w": …})`."""
    monkeypatch.chdir(tmp_path)
    return lambda name, arrays: np.savez(tmp_path / name, **arrays) or name


def test_two_files_are_compared_and_the_status_says_whether_they_differ(saved, capsys):
    a = saved("a.npz", {"x.w": np.arange(6, dtype=np.float32), "x.b": np.zeros(2)})
    b = saved("b.npz", {"x.w": np.arange(6, dtype=np.float32) + np.eye(6, dtype=np.float32)[3], "x.b": np.zeros(3)})
    assert main(["diff", a, a]) == 0
    assert "no difference" in capsys.readouterr().out
    assert main(["diff", a, b, "--json", "-"]) == DIFFERENT
    found = json.loads(capsys.readouterr().out)["differences"]
    assert [(each["path"], each["kind"]) for each in found] == [("['x']['b']", "shape"), ("['x']['w']", "value")]
    assert main(["diff", a, b, "--no-values", "--json", "-"]) == DIFFERENT
    assert len(json.loads(capsys.readouterr().out)["differences"]) == 1
    assert main(["diff", a, b, "--github", "--html", "out.html"]) == DIFFERENT
    assert capsys.readouterr().out.startswith("### ") and Path("out.html").stat().st_size > 10_000
    assert main(["diff", a]) == TROUBLE
    renamed = saved("c.npz", {"v.kernel": np.arange(6, dtype=np.float32), "v.bias": np.zeros(2)})
    assert main(["diff", a, renamed]) == main(["diff", b, renamed, "--only-values"]) == DIFFERENT
    assert main(["diff", a, renamed, "--only-values"]) == 0
    assert "same values under other names: 2 of 2 arrays" in capsys.readouterr().out


def test_a_file_without_names_is_compared_in_the_tree_that_like_names_with_one_that_has_them(saved, capsys):
    a = saved("a.npz", {"0.w": np.ones(3), "0.b": np.zeros(2)})
    with open("b.eqx", "wb") as file:
        for array in (np.zeros(2), np.ones(3)):
            np.save(file, array)
    Path("a_model_for_like.py").write_text("import numpy as np\ntree = [{'b': np.ones(2), 'w': np.ones(3)}]\n")
    assert main(["diff", a, "b.eqx", "--like", "a_model_for_like:tree"]) == 0
    assert "no difference · 2 leaves are the same" in capsys.readouterr().out


@pytest.mark.parametrize("order", ["C", "F"])
def test_the_layers_of_a_stack_that_differ_are_named(saved, capsys, order):
    """Also of one that stands column by column in its file."""
    of_all, other = np.zeros((5, 3, 2), order=order), np.zeros((5, 3, 2), order=order)
    other[1, 0, 1], other[3, 2] = np.nan, 7
    files = saved("a.npz", {"layers.w": of_all}), saved("b.npz", {"layers.w": other})
    assert main(["diff", *files, "--stacked", "layers/*"]) == DIFFERENT
    assert "layers 1, 3 of 5" in capsys.readouterr().out
    (along_last,) = tv.diff(*map(tv.read, files), stacked={"w": 2}, atol=8).differences
    assert "layer 1 of 2" in along_last.hint
    assert main(["diff", *files, "--stacked", "layer/*"]) == TROUBLE
    assert "treeviz a.npz --find 'layer/*' lists what has" in capsys.readouterr().err
    assert main(["diff", *files, files[0], "--stacked", "layers/*"]) == TROUBLE


def test_what_differs_is_listed_by_a_column_by_a_query_and_the_first_of_it(saved, capsys):
    arrays = {"own": np.zeros(3), "b.bias": np.ones(3), "c.bias": np.zeros(2)}
    before = saved("before.npz", arrays)
    after = saved("after.npz", arrays | {"b.bias": np.full(3, 2.0), "c.bias": np.array([0.0, 5.0])})

    def listed(*options):
        assert main(["diff", before, after, *options]) == DIFFERENT
        return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]

    b, c = (
        "tree['b']['bias'] value: 1 → 2 (at [0]; 3 of 3 differ)",
        "tree['c']['bias'] value: 0 → 5 (at [1]; 1 of 2 differ)",
    )
    assert listed("--sort", "delta") == [f"5 {c}", f"1 {b}"]
    assert listed("--sort", "delta", "--top", "1") == [f"5 {c}"]
    changes = {"own": np.array([0, np.nan, 0]), "b.bias": np.full(3, 9.0), "c.bias": np.array([np.nan, 5.0])}
    assert main(["diff", before, saved("nan.npz", changes), "--sort", "delta"]) == DIFFERENT  # a NaN is the greatest
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert rows == [["NaN/Inf", "tree['c']['bias']"], ["NaN/Inf", "tree['own']"], ["8", "tree['b']['bias']"]]
    assert listed("--top", "1") == [b]
    assert listed("--find", "own") == ["tree['own'] the same"]
    assert main(["diff", before, before, "--top", "3"]) == 0
    assert main(["diff", before, before, "--sort", "delta"]) == 0 and capsys.readouterr().out == ""
    assert main(["diff", before, before, "--sort", "delt"]) == TROUBLE
    assert main(["diff", before, before, after, "--top", "3"]) == TROUBLE
    assert main(["diff", before, after, "--find", "nan"]) == TROUBLE
    assert "diff:nan" in capsys.readouterr().err


def test_an_array_that_cannot_be_read_is_not_taken_for_the_same(saved, capsys):
    a, b = (saved(f"{name}.npz", {"v": np.zeros(2), "w": np.ones(9_000)}) for name in "ab")
    Path(b).write_bytes(Path(b).read_bytes().replace(np.ones(9_000).tobytes(), np.zeros(9_000).tobytes()))
    assert main(["diff", a, b]) == TROUBLE
    printed = capsys.readouterr()
    assert "not compared further in 1 place: comparing them raised BadZipFile: Bad CRC-32" in printed.out
    assert printed.err.startswith("treeviz: not compared: ['w']: comparing them raised BadZipFile")
    assert main(["diff", a, b, "--no-values"]) == 0
    assert main(["diff", saved("c.npz", {"v": np.ones(2), "w": np.ones(9_000)}), b]) == DIFFERENT
    assert main(["diff", a, b, a]) == DIFFERENT and "1 leaf never moved" in capsys.readouterr().out
    assert main(["diff", *[saved("o.npz", {"o": np.array([{}], object)})] * 2]) == 0
    assert main(["check", b]) == 0 and main(["check", b, "--values"]) == DIFFERENT
    assert "T142 error at ['w']: could not be read: BadZipFile" in capsys.readouterr().out


def test_over_several_checkpoints_the_drift_of_every_leaf_is_a_series_by_step(saved, capsys):
    def arrays(step: int) -> dict:
        return {"w": np.full((3, 4), 2.0 + step, np.float32), "frozen": np.ones(5), "zero": np.full(4, step / 10)}

    files = [saved(f"step_{step}.npz", arrays(step)) for step in (0, 2, 10)]
    saved("step_5.npz", arrays(5) | {"w": np.full((3, 4), np.nan, np.float32)})
    shuffled = [files[2], files[0], "step_5.npz", files[1]]  # as a shell sorts names
    assert main(["diff", *shuffled, "--json", "-"]) == DIFFERENT
    found = json.loads(capsys.readouterr().out)
    drift, change = found["series"]
    row = {each["key"]: each["number"] for each in found["rows"]}
    assert drift["first_steps"] == [2, 5, 10]
    assert drift["values"][row["['w']"]] == [1, 0, 5] and drift["nonfinite"][row["['w']"]] == [1]
    assert drift["values"][row["['frozen']"]] == [0, 0, 0]
    assert drift["values"][row["['zero']"]] == [None] * 3, "relative to a norm of zero"
    assert change["values"][row["['zero']"]] == pytest.approx([0.4, 1, 2])
    told = {each["key"]: each["notes"] for each in found["rows"] if "notes" in each}
    assert told == {"['zero']": [{"kind": "info", "text": "from zeros by 2"}]}
    assert found["headline"][-3:] == ["4 checkpoints", "2 leaves moved since step 0", "1 leaf never moved"]


def test_checkpoints_that_never_move_are_the_same_and_what_is_not_in_all_is_counted(saved, capsys):
    files = [saved(f"{name}.npz", {"w": np.ones(3)}) for name in "abc"]
    assert main(["diff", *files]) == 0
    files.append(saved("d.npz", {"w": np.ones(4), "more": np.ones(1)}))
    assert main(["diff", *files]) == DIFFERENT
    assert "2 leaves not compared: missing in one, of another shape, or unreadable" in capsys.readouterr().out
    sides = [Side(*scanned({"w": np.ones(3), "loss": loss, "note": "x"}, None, "tree")) for loss in (1.5, 1.25)]
    found = drift(sides[0], sides[1:], [1])
    assert (found.n_moved, found.n_same, found.n_left_out) == (1, 2, 0)
