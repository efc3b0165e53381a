"""An adapter that another package brings, as CONTRIBUTING.md shows one."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from pathlib import Path

import jax.numpy as jnp
import pytest

import treeviz
from treeviz import integrations

pytestmark = pytest.mark.oldest_jax
PAGE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text("utf-8")
FILES = dict(re.findall(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put the package of the page where Python finds packages; with another file if one is given."""

    def install(name: str = "", text: str = ""):
        for file, content in (FILES | ({name: text} if name else {})).items():
            path = tmp_path / file
            path.parent.mkdir(exist_ok=True)
            path.write_text(content)
        entries = tomllib.loads(FILES["pyproject.toml"])["project"]["entry-points"]
        metadata = tmp_path / "plumbing-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: plumbing\nVersion: 1.0\n")
        lines = [f"[{group}]\n{name} = {value}\n" for group, of in entries.items() for name, value in of.items()]
        (metadata / "entry_points.txt").write_text("".join(lines))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(integrations, "_entry_points", None)

    yield install
    for module in [module for module in sys.modules if module.partition(".")[0] == "plumbing"]:
        del sys.modules[module]


def test_the_adapter_of_the_page_describes_its_library_once_that_is_imported(install):
    install()
    treeviz.walk([jnp.ones(1)])
    assert "plumbing" not in sys.modules
    plumbing = importlib.import_module("plumbing")
    assert "plumbing.for_treeviz" not in sys.modules
    tree = {"main": plumbing.Pipe(jnp.ones(2), plumbing.Tank(jnp.ones((3, 4))), 15)}
    table = treeviz.walk(tree)
    assert [(row.label, row.kind, row.type, row.facts.text, row.shape) for row in table][1:] == [
        ("main", "module", "Pipe", "15 mm", None),
        ("inner", "array", "jax.Array", "", (2,)),
        ("outer", "tensor", "Tank", "", (3, 4)),
    ]
    assert table[3]["bytes"] == 48 and eval(table[3].expression, {"tree": tree}) is tree["main"].outer


@pytest.mark.parametrize(
    ("text", "error"), [("1 / 0", "ZeroDivisionError: division by zero"), ("raise SystemExit(3)", "SystemExit: 3")]
)
def test_an_adapter_that_fails_is_warned_of_once_and_trees_are_shown_without_it(install, text, error):
    install("plumbing/for_treeviz.py", text)
    plumbing = importlib.import_module("plumbing")
    tree = [plumbing.Pipe(1, 2, 15)]
    told = f"the adapter plumbing.for_treeviz failed with {error}: plumbing is shown without it"
    with pytest.warns(RuntimeWarning, match=told):
        assert len(treeviz.walk(tree)) == 4
    assert len(treeviz.walk(tree)) == 4  # a second warning would be an error
