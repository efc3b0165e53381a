"""`treeviz doctor`: the versions and the surroundings that a bug report needs."""

from __future__ import annotations

import jax

import treeviz
from treeviz.cli import doctor, main
from treeviz.cli.output import DIFFERENT


def test_versions_and_surroundings_are_printed(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_distributions", lambda: ["jax-treeviz"])
    assert main(["doctor"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["treeviz"].startswith(f"{treeviz.__version__} in ") and lines["jax"] == jax.__version__


def test_another_package_of_the_same_name_and_one_that_is_missing_are_problems(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_distributions", lambda: ["jax-treeviz", "treeviz"])
    version = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: "" if name == "anywidget" else version(name))
    assert main(["doctor"]) == DIFFERENT
    problems = [line for line in capsys.readouterr().out.splitlines() if line.startswith("problem: ")]
    assert problems == [
        "problem: treeviz provides an import name treeviz, too: pip uninstall treeviz",
        "problem: anywidget is not installed",
    ]
