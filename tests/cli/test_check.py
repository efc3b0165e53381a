"""`treeviz check FILE`: what is wrong with the tree in a file."""

from __future__ import annotations

import json

import numpy as np

from treeviz.cli import main
from treeviz.cli.output import DIFFERENT, TROUBLE


def test_check_says_what_is_wrong_and_the_status_whether_an_error_is_among_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savez("good.npz", w=np.ones(2, np.float32))
    assert main(["check", "good.npz"]) == 0
    assert capsys.readouterr().out == "no finding\n"
    np.savez("params.npz", w=np.array([np.nan, 1], np.float32), v=np.zeros(2))
    assert main(["check", "--values", "params.npz", "--ignore", "T141"]) == DIFFERENT
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "T140 error at ['w']: 1 NaN among 2 values"
    assert lines[2] == "T203 info at ['v']: JAX makes float64 float32"
    assert main(["check", "params.npz", "--values", "--github"]) == DIFFERENT
    assert "| `['v']` | info | T203 | JAX makes float64 float32 |" in capsys.readouterr().out
    assert main(["check", "params.npz", "--values", "--json"]) == DIFFERENT
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert ("T203", "['v']") in [(each["code"], each["path"]) for each in findings]


def test_a_rule_is_explained_by_its_code(capsys):
    assert main(["check", "--explain", "t101"]) == 0
    assert capsys.readouterr().out.startswith("T101 (error)\n\nAn array is in a static field")
    assert main(["check", "--explain", "T999"]) == TROUBLE


def test_a_file_may_be_called_check(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "check").touch()
    assert main(["./check"]) == TROUBLE
    assert capsys.readouterr().err.startswith("treeviz: check: ")
