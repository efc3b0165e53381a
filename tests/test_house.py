"""What holds for the project as a whole, whatever is built inside."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from runs_in_files import Training

import treeviz
from treeviz.integrations import ADAPTERS
from treeviz.tree.tested_jax import TESTED_JAX, TESTED_PYTHON
from treeviz.views.html.bundle import BUNDLES, packed_file

HOUSE = Path(__file__).parents[1]
ROOMS = HOUSE / "treeviz"
ASSETS = sorted(path for path in (ROOMS / "views" / "html" / "assets").rglob("*") if path.is_file())

NOTEBOOK = {"IPython", "anywidget", "ipywidgets", "traitlets", "treescope"}
OPTIONAL = {name for name in ADAPTERS if not name.startswith("jax")} | {"haiku", "orbax", "tensorboard"}
HEAVY = NOTEBOOK | OPTIONAL | {"matplotlib", "PIL"}


def fresh_python(program: str) -> str:
    """What `program` prints in an interpreter of its own, warnings being errors."""
    command = [sys.executable, "-W", "error", "-c", program]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parent).stdout


_USE = "import jax, treeviz; jax.numpy.ones(3); repr(treeviz.render([1.0])); print(*sys.modules)"


@pytest.mark.oldest_jax
def test_looking_at_a_tree_loads_no_optional_library_and_no_part_of_a_notebook_and_the_command_no_jax(tmp_path):
    np.savez(tmp_path / "m.npz", a=np.ones(3))
    Training(run := tmp_path / "run.treeviz").go_on(60)
    show = f"from treeviz.cli import main; main([{str(tmp_path / 'm.npz')!r}])"
    follow = f"main(['grads', {str(run)!r}, '--follow', '--total', '60'])"
    serve = f"from treeviz.cli.site import Site, Path; Site([Path({str(run)!r})]).open('run.treeviz', print).content()"
    program = f"import sys; {show}; {follow}; {serve}; print(*sys.modules); {_USE}"
    *shown, finding, first, last = fresh_python(program).splitlines()
    assert shown[-1].split()[:3] == ["└─", "a", "float64[3]"] and finding.startswith("error: 6 of 6 leaves")
    assert "jaxlib" not in first.split()
    loaded = set(last.split())
    assert {"treeviz.api", "jax.numpy", "jaxlib"} <= loaded
    assert loaded & HEAVY == set()


@pytest.mark.oldest_jax
def test_import_treeviz_leaves_the_process_as_it_was():
    program = """
import logging, signal, sys, threading, warnings, jax, numpy as np

def state():
    python = sys.getrecursionlimit(), sys.get_int_max_str_digits(), sys.displayhook, sys.excepthook, warnings.filters[:]
    outside = threading.active_count(), signal.getsignal(signal.SIGINT), logging.root.handlers[:]
    return python, outside, np.get_printoptions(), np.geterr(), dict(jax.config.values)

before = state()
import treeviz.api
print(before == state(), jax._src.xla_bridge.backends_are_initialized())
"""
    assert fresh_python(program).split() == ["True", "False"]


@pytest.mark.oldest_jax
def test_every_public_name_says_what_it_is_for():
    public = {name: getattr(treeviz, name) for name in dir(treeviz) if not name.startswith("_")}
    assert "GradientInspector" in public
    silent = [name for name, value in public.items() if not inspect.ismodule(value) and not inspect.getdoc(value)]
    assert silent == []


def test_a_name_that_is_not_there_is_said_as_python_says_it():
    with pytest.raises(AttributeError, match="module 'treeviz' has no attribute 'GradientInspecter'"):
        treeviz.GradientInspecter


_PAGE = 34_000  # bytes of a page without leaves, and without its static rows


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    if built := os.environ.get("TREEVIZ_WHEEL"):  # .ci/run has made it
        return Path(built)
    pytest.importorskip("minify", reason="tdewolff-minify is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, check=True, capture_output=True, cwd=HOUSE)
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_the_wheel_holds_the_whole_package_the_front_end_minified_and_nothing_else(wheel):
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    minified = {f"treeviz/views/html/assets/packed/{packed_file(bundle).name}" for bundle in BUNDLES}
    others = ROOMS / "views" / "schema.json", ROOMS / "py.typed"
    sources = {path.relative_to(HOUSE).as_posix() for path in [*ROOMS.rglob("*.py"), *ASSETS, *others]}
    moved = "treeviz/plugin/pydevd_plugin_treeviz.py", "pydevd_plugins/extensions/pydevd_plugin_treeviz.py"
    assert packed == sources ^ set(moved) | minified
    assert wheel.stat().st_size < 1_300_000, "something that is no source has come in"


def test_pages_of_the_wheel_are_small(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    program = f"""
import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(HOUSE / "tests")!r}, {str(HOUSE / "tests/views/html")!r}]
import json, numpy as np, treeviz
from test_page import gpt2
from treeviz.views.html.bundle import packed_text
from treeviz.views.html.page import outline

size = lambda view: len(view.html().encode()) - len(outline(view.brief).encode())
small = size(treeviz.render([np.zeros(3)])), size(treeviz.render(gpt2()))
many = size(treeviz.render([{{"w": np.zeros((i % 50, 3)), "b": 1.0}} for i in range(10_000)]))
with_statistics = size(treeviz.render([np.zeros(3)], stats=True))
print(json.dumps([treeviz.__file__, *small, many, with_statistics, len(packed_text("series")) - len(packed_text(""))]))
"""
    file, one, of_gpt2, many, with_statistics, series = json.loads(fresh_python(program))
    assert Path(file).is_relative_to(tmp_path)
    assert one <= _PAGE + 14 and of_gpt2 <= _PAGE + 14 * 148 and many <= _PAGE + 14 * 20_000
    assert with_statistics <= _PAGE + 2_500
    # What charts and scalars cost; a library of charts has some fifty thousand bytes before it is packed.
    assert series < 17_500


@pytest.fixture(scope="module")
def syntax() -> list[tuple[str, list[ast.AST]]]:
    """The nodes of each file of the package."""
    return [(path.name, list(ast.walk(ast.parse(path.read_text("utf-8"))))) for path in ROOMS.rglob("*.py")]


def test_jax_private_modules_are_touched_in_one_file_at_most(syntax):
    def touches(nodes: list[ast.AST]) -> bool:
        modules = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        modules += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        attributes = [node.attr for node in nodes if isinstance(node, ast.Attribute)]
        return any(module.startswith("jax._src") for module in modules) or "_src" in attributes

    assert len([file for file, nodes in syntax if touches(nodes)]) <= 1


def test_no_code_of_a_metaclass_or_a_key_runs_unguarded(syntax):
    """That of `type(x) in classes` and `jax.tree_util.keystr`: use `is_any` and `treeviz.tree.keys.keystr`."""

    def runs_it(node: ast.AST) -> bool:
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            return isinstance(node.left, ast.Call) and getattr(node.left.func, "id", "") == "type"
        is_keystr = isinstance(node, ast.Attribute) and node.attr == "keystr"
        return is_keystr and "tree_util" in (getattr(node.value, "id", ""), getattr(node.value, "attr", ""))

    assert [f"{file}:{node.lineno}" for file, nodes in syntax for node in nodes if runs_it(node)] == []


@pytest.mark.parametrize("asset", ASSETS, ids=lambda path: path.name)
def test_the_front_end_asks_the_network_for_nothing_and_takes_no_data_for_code(asset):
    text = re.sub(r"^\s*(//|/?\*).*$", "", asset.read_text("utf-8"), flags=re.MULTILINE)  # comments may cite
    text = text.replace("http://www.w3.org/", "")  # the names of namespaces
    sinks = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|new Function|\beval\("
    addresses = r"https?://|@import|url\((?!['\"]?(?:data:|#))|\bfetch\(|XMLHttpRequest|WebSocket|EventSource"
    if asset.parent.name == "serve":  # its server alone, as the policy of its pages demands, too
        addresses = r"https?://|@import|url\(|XMLHttpRequest|WebSocket"
    assert re.findall(f"{sinks}|{addresses}", text) == []


def test_the_package_and_the_changelog_tell_of_this_version():
    changelog = (HOUSE / "CHANGELOG.md").read_text("utf-8")
    project = (HOUSE / "pyproject.toml").read_text("utf-8")
    (version,) = re.findall(r'^version = "(.*)"$', project, re.MULTILINE)
    assert version == treeviz.__version__
    assert f"## [{version}]" in changelog


_ODD = (  # what no colleague says
    r"\b(struck|in vain|looked at|that is no(?! longer)|is told|told|alike|hears|otherwise than|(is|are) wanted"
    r"|stands? (at|in|elsewhere|beside|below|above)|lies? (on|in|elsewhere|there|where)|which is no|(is|be) had)\b"
)


def test_texts_for_users_are_in_plain_words(syntax):
    """Those of the documentation, and all texts and docstrings of the package."""
    texts = [
        HOUSE / "README.md",
        HOUSE / "CHANGELOG.md",
        *(HOUSE / "docs").rglob("*.md"),
        *(HOUSE / "demos").glob("*.ipynb"),
    ]
    found = {text.name: words for text in texts if (words := re.findall(_ODD, text.read_text("utf-8")))}
    for file, nodes in syntax:
        strings = [node for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        found |= {f"{file}:{node.lineno}": words for node in strings if (words := re.findall(_ODD, node.value))}
    assert found == {}


def test_the_files_for_github_are_yaml_and_ask_for_what_a_report_needs():
    yaml = pytest.importorskip("yaml")
    files = {path.name: yaml.safe_load(path.read_text("utf-8")) for path in (HOUSE / ".github").rglob("*.yml")}
    for name in ("bug.yml", "wish.yml"):
        assert any("python -m treeviz doctor" in each["attributes"]["label"] for each in files[name]["body"])
    jobs = files["publish.yml"]["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}  # trusted publishing: there is no token
    assert jobs["publish"]["environment"]["url"] == "https://pypi.org/project/jax-treeviz/"
    scripts = re.findall(r"\btests/\w+\.sh", str(jobs["build"]))
    assert scripts and all((HOUSE / script).exists() for script in scripts)
    check = files["check.yml"]
    assert {"push", "pull_request", "schedule"} == set(check[True])  # YAML reads `on` so
    assert check["jobs"]["check"]["permissions"] == {"contents": "read"}


def test_the_versions_that_are_tested_are_the_same_wherever_they_stand():
    oldest, between, for_3_11, newest = TESTED_JAX
    project = (HOUSE / "pyproject.toml").read_text("utf-8")
    constraints = (HOUSE / ".ci" / "constraints.txt").read_text("utf-8")
    assert f'"jaxlib>={oldest}"' in project  # test_readme.py compares jax
    for name in ("jax", "jaxlib"):
        pins = re.findall(rf"^{name}==(\S+) ; (.*)$", constraints, re.MULTILINE)
        assert pins == [(for_3_11, "python_full_version < '3.12'"), (newest, "python_full_version >= '3.12'")]

    readme = " ".join((HOUSE / "README.md").read_text("utf-8").split())
    first, last = TESTED_PYTHON
    beside = f"on Python {first} with jax {for_3_11}, {between} and {oldest}"
    assert f"the tests run on Python {last} with jax {newest}, and {beside}" in readme
    assert f"jax {oldest} to {newest}" in (HOUSE / "docs" / "index.md").read_text("utf-8")
    contributing = (HOUSE / "CONTRIBUTING.md").read_text("utf-8").split()
    assert {oldest, between, for_3_11} <= {word.strip(",.") for word in contributing}

    supported = re.findall(r"Python :: (3\.\d+)", project)
    (tried,) = re.findall(r"python_of (3\.\S+ .*)\) \|\| python=", (HOUSE / ".ci" / "run").read_text("utf-8"))
    assert tried.split() == supported[::-1]
    matrix = (HOUSE / ".github" / "workflows" / "check.yml").read_text("utf-8")
    assert f"python: {supported[1:]}".replace("'", '"') in matrix


def test_ci_fails_and_says_what_to_install_where_no_python_has_a_current_jax(tmp_path):
    """Nor where a newer one is there in name only, as a shim of pyenv is."""
    shim, old = (
        'echo "pyenv: not found" >&2; exit 127',
        'case "$*" in *pip*) echo "$0";; --version) echo Python 3.11.7;; *) exit 1;; esac',
    )
    for name, does in {"python3.14": shim, "python3.13": shim, "python3.12": shim, "python3.11": old}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "dirname").symlink_to("/usr/bin/dirname")
    command = ["/bin/bash", str(HOUSE / ".ci" / "run")]
    ran = subprocess.run(command, env={"PATH": str(tmp_path), "HOME": str(tmp_path)}, capture_output=True, text=True)
    assert ran.returncode == 1 and "pyenv: not found" not in ran.stderr
    assert "The newest Python here is Python 3.11.7" in ran.stdout and "install Python 3.12 or later" in ran.stdout
