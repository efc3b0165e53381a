"""`treeviz doctor`: versions and environment, for a bug report."""

from __future__ import annotations

import re
import sys

import jax
import pytest

import treeviz
from treeviz.cli import doctor, main
from treeviz.cli.output import DIFFERENT
from treeviz.tree.tested_jax import TESTED_JAX, TESTED_PYTHON, newer_than_tested


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
        "problem: treeviz also provides the import name treeviz: pip uninstall treeviz",
        "problem: anywidget is not installed",
    ]


def doctor_with_jax(version, monkeypatch, capsys):
    other_version = doctor._version
    monkeypatch.setattr(doctor, "_distributions", lambda: ["jax-treeviz"])
    monkeypatch.setattr(doctor, "_version", lambda name: version if name == "jax" else other_version(name))
    status = main(["doctor"])
    return status, capsys.readouterr().out.splitlines()


def test_a_jax_newer_than_any_tested_is_noted_and_is_no_problem(monkeypatch, capsys):
    status, lines = doctor_with_jax("987.0.0", monkeypatch, capsys)
    tested = f"jax {TESTED_JAX[0]} to {TESTED_JAX[-1]}"
    assert status == 0
    assert lines[-1] == f"note: jax 987.0.0 is newer than any that treeviz was tested with ({tested})"


@pytest.mark.parametrize("version", TESTED_JAX)
def test_of_a_tested_jax_the_doctor_says_only_that(version, monkeypatch, capsys):
    status, lines = doctor_with_jax(version, monkeypatch, capsys)
    assert status == 0 and not any(line.startswith("note: ") for line in lines)
    assert [line.split(maxsplit=2)[2] for line in lines if line.startswith("tested with")] == [
        f"jax {', '.join(TESTED_JAX)}; Python {', '.join(TESTED_PYTHON)}"
    ]


def test_a_treescope_that_fails_is_noted_and_is_no_problem_since_only_pictures_need_it(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_distributions", lambda: ["jax-treeviz"])
    monkeypatch.setitem(sys.modules, "treescope", None)
    assert main(["doctor"]) == 0
    (note,) = [line for line in capsys.readouterr().out.splitlines() if "cannot" in line]
    assert re.fullmatch(
        r"note: treescope \S+ cannot be imported: ModuleNotFoundError: .*\. "
        "Only pictures of values need it: treeviz draws arrays itself",
        note,
    )
    monkeypatch.undo()
    assert doctor._treescope_problem() == ""


@pytest.mark.oldest_jax
def test_releases_and_pre_releases_of_jax_are_compared_as_versions():
    from packaging.version import Version

    tested = [*map(Version, TESTED_JAX)]
    assert tested == sorted(tested)
    next_minor = f"{tested[-1].major}.{tested[-1].minor + 1}"
    for ending in ("", ".0", ".0rc1", ".0.dev20301231", ".1+local"):
        assert Version(next_minor + ending) > tested[-1] and newer_than_tested(next_minor + ending)
        assert newer_than_tested(TESTED_JAX[-1] + ".1" + ending)
    for version in [*TESTED_JAX, "0.9.2", "0.10.10", f"{TESTED_JAX[-1]}.0", f"{TESTED_JAX[-1]}.dev0+g1234", ""]:
        assert not newer_than_tested(version)
