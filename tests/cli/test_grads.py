"""`treeviz grads RUN [RUN2]`: the gradients of a run, or where two runs diverge."""

from __future__ import annotations

import json

import numpy as np
import pytest
from norm_runs import Run, source

from treeviz import GradientInspector
from treeviz.cli import main
from treeviz.cli.output import DIFFERENT, TROUBLE
from treeviz.steps.recording.history import ScalarRow
from treeviz.steps.recording.history_file import save

PATHS = {"['a']": 100, "['b']['w']": 1000, "['b']['v']": 10}


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """Save a run that a function has bent, under a name."""
    monkeypatch.chdir(tmp_path)

    def save_run(name: str, bend=lambda run: None, paths=PATHS) -> str:
        run = Run(dict(paths), n_steps=40)
        bend(run)
        save(run.history(), tmp_path / name)
        return name

    return save_run


def test_the_gradients_of_a_run_are_shown(saved, capsys):
    assert main(["grads", saved("run.treeviz"), "--json", "run.json"]) == 0
    printed = capsys.readouterr()
    assert "40 steps" in printed.out and printed.err == "Wrote run.json\n"
    assert main(["grads", "run.treeviz", "--tree", "act0"]) == TROUBLE
    trees = "'grads', 'params', 'updates'"
    assert capsys.readouterr().err == f"treeviz: there is no tree 'act0' in this run; there are {trees}.\n"
    with open("run.json") as file:
        assert json.load(file)["series"][0]["name"] == "grads.norm"
    assert main(["run.treeviz", "--find", "b/v"]) == 0
    assert capsys.readouterr().out.startswith("params['b']['v']")
    assert main(["run.treeviz", "--depth", "1", "--columns", "grads_nonfinite"]) == 0
    printed = capsys.readouterr().out
    assert "1 inside" not in printed and "2 inside" in printed and "max |x|" not in printed
    assert main(["grads", "run.treeviz", "--depth", "1", "--columns", "grads_nonfinite"]) == 0
    assert capsys.readouterr().out == printed
    assert main(["grads", "run.treeviz", "--sort", "grads_norm", "--top", "1"]) == 0
    assert capsys.readouterr().out.count("\n") == 1
    assert main(["grads", "run.treeviz", "run.treeviz", "--find", "b/v"]) == 0
    assert capsys.readouterr().out.startswith("grads['b']['v']")
    assert main(["run.treeviz", "--stats"]) == TROUBLE
    assert capsys.readouterr().err.startswith("treeviz: run.treeviz is a recorded run: --stats")


def test_of_two_runs_the_first_step_and_leaf_that_differ_are_named(saved, capsys):
    def bend(run: Run) -> None:
        run.grads[7:, 1] *= 1 + 1e-6
        run.grads[20:, 2] *= 3
        run.bad[30, 0] = 1

    first, other = saved("a.treeviz"), saved("b.treeviz", bend)
    assert main(["grads", first, first]) == 0
    assert capsys.readouterr().out == "the two runs are equal · 3 leaves · 40 steps compared, until step 39\n"
    assert main(["grads", first, other, "--json", "-"]) == DIFFERENT
    found = json.loads(capsys.readouterr().out)
    assert any(line.startswith("they part at step 7: ['b']['w'], norm ") for line in found["headline"])
    assert any(line.startswith("more than 1 % at step 20: ['b']['v'], norm ") for line in found["headline"])
    ratio, _ = found["series"]
    row = {each["keystr"]: each["number"] for each in found["rows"]}
    assert ratio["values"][row["['b']['v']"]][19:22] == [1, 3, 3]
    assert ratio["nonfinite"][row["['a']"]] == ratio["nonfinite"][0] == [30]
    assert [mark["place"] for mark in ratio["marks"]] == [7]
    named = GradientInspector.load(first, run="lr 3e-4").save("named.treeviz")
    assert main(["grads", str(named), other]) == DIFFERENT
    assert "norm, b ÷ lr 3e-4" in capsys.readouterr().out


def test_two_runs_are_compared_by_their_losses_the_sizes_of_their_updates_and_any_tree(tmp_path, capsys):
    def save_run(name: str, factor: float) -> str:
        run = Run(dict(PATHS), n_steps=9)
        run.updates[4:] *= factor
        run.sources.append(source("act0", {"": 1}))
        history = run.history()
        for step in range(9):  # a tap, whose one leaf is not one of the three parameters
            history.append(step, {"act0": {"norm": [1.0 + factor * (step > 6)], "nonfinite": [0]}})
            history.append_scalars([ScalarRow(step, {"loss": np.array([2.0 - factor * (step > 5)])}, None)])
        save(history, tmp_path / name)
        return str(tmp_path / name)

    files = save_run("a.treeviz", 1.0), save_run("b.treeviz", 2.0)
    assert main(["grads", files[0], "--tree", "act0"]) == 0
    assert "act0 norm" in capsys.readouterr().out
    assert main(["grads", *files, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "loss parts at step 6: 1 and 0" in found["headline"] and "no norm differs" in found["headline"]
    assert "the two runs are equal" not in found["headline"]
    assert [each["name"] for each in found["series"]] == ["norm.ratio", "updates.ratio"]
    assert found["series"][1]["values"][0] == [1] * 4 + [2] * 5
    assert main(["grads", *files, "--tree", "act0"]) == DIFFERENT
    assert "they part at step 7: the root, norm 2 and 3" in capsys.readouterr().out


def test_what_one_of_two_runs_has_alone_is_counted_and_nothing_in_common_is_trouble(saved, capsys):
    smaller = saved("a.treeviz", paths={"['a']": 100})
    assert main(["grads", saved("b.treeviz"), smaller]) == DIFFERENT  # the run's random numbers are others
    assert "2 leaves of b alone" in capsys.readouterr().out
    assert main(["grads", saved("c.treeviz", paths={"['z']": 100}), smaller]) == TROUBLE
    assert "no measured leaf in common" in capsys.readouterr().err


def test_a_run_without_a_step_is_trouble_that_says_so(saved, tmp_path, capsys):
    GradientInspector().keep(tmp_path / "empty.treeviz")
    for arguments in (["grads", "empty.treeviz"], ["empty.treeviz"], ["grads", saved("run.treeviz"), "empty.treeviz"]):
        assert main(arguments) == TROUBLE
        assert capsys.readouterr().err.startswith("treeviz: empty.treeviz: no step was measured in this run yet; ")
