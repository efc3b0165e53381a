"""What README.md shows: its code runs, its texts are what the code prints, and its commands install what is there."""

from __future__ import annotations

import re
import tomllib

import jax
import pytest
from readme import README, as_it_runs

from treeviz.tree.tested_jax import TESTED_JAX

HOUSE = README.parent
TEXT = README.read_text("utf-8")


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the texts name the device")
def test_the_code_runs_from_top_to_bottom_and_prints_the_texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    with jax.numpy_rank_promotion("allow"):
        assert as_it_runs(TEXT, scope) == TEXT
    assert len(scope["inspector"].history) == 40
    assert (tmp_path / "gradients.html").exists()


def test_it_is_short_and_links_to_what_is_there():
    assert len(TEXT.splitlines()) <= 150
    linked = set(re.findall(r"""(?:\]\(|src(?:set)?=")(?!https:)([^)"]+)""", TEXT))
    assert {"docs/picture-dark.png", "docs/pytrees.md"} <= linked
    assert [link for link in linked if not (HOUSE / link).exists()] == []


def test_the_commands_install_what_the_project_defines():
    project = tomllib.loads((HOUSE / "pyproject.toml").read_text("utf-8"))["project"]
    assert "install '.[test]'" in TEXT and "test" in project["optional-dependencies"]
    assert f"Python {project['requires-python'].removeprefix('>=')} or later, and jax {TESTED_JAX[0]} or later" in TEXT
    assert f"jax>={TESTED_JAX[0]}" in project["dependencies"]
    assert "treeviz" in project["scripts"] and f"pip install {project['name']}" in TEXT
