"""`treeviz check FILE`: what is wrong with the tree in a file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import treeviz.views.exports
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
    assert lines[2] == "T203 info at ['v']: JAX converts float64 to float32"
    assert main(["check", "params.npz", "--values", "--github"]) == DIFFERENT
    assert "| `['v']` | info | T203 | JAX converts float64 to float32 |" in capsys.readouterr().out
    assert (
        main(["check", "params.npz", "--values", "--github", "--html", "found.html", "--text", "found.txt"])
        == DIFFERENT
    )
    printed = capsys.readouterr()
    assert printed.out.startswith("### params.npz: ") and printed.err == "Wrote found.html\nWrote found.txt\n"
    assert "T140: 1 NaN among 2 values" in Path("found.html").read_text("utf-8")
    assert Path("found.txt").read_text("utf-8").startswith("T140 error at ['w']: 1 NaN among 2 values\n")


def test_the_findings_are_json_beside_the_rows_as_the_schema_says(tmp_path, monkeypatch, capsys):
    jsonschema = pytest.importorskip("jsonschema")
    monkeypatch.chdir(tmp_path)
    np.savez("params.npz", w=np.array([np.nan, 1], np.float32), v=np.zeros(2))
    assert main(["check", "params.npz", "--values", "--json", "-"]) == DIFFERENT
    document = json.loads(capsys.readouterr().out)
    found = document["findings"]
    assert ("T203", "['v']") in [(each["code"], each["path"]) for each in found]
    assert [document["rows"][each["row"]]["keystr"] for each in found] == [each["path"] for each in found]
    schema = json.loads(Path(treeviz.views.exports.__file__).with_name("schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator(schema).validate(document)
    assert set(document) <= set(schema["properties"])


def test_a_rule_is_explained_by_its_code(capsys):
    assert main(["check", "--explain", "t101"]) == 0
    assert capsys.readouterr().out.startswith("T101 (error)\n\nAn array is in a static field")
    assert main(["check", "--explain", "T999"]) == TROUBLE


def test_a_file_may_be_called_check(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "check").touch()
    assert main(["./check"]) == TROUBLE
    assert capsys.readouterr().err.startswith("treeviz: check: ")
