"""The front end as one module: what a bundle holds, and in which order."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from treeviz.tree.facts import KINDS
from treeviz.views.html import bundle
from treeviz.views.html.bundle import module_text, modules_in_order, script
from treeviz.views.html.payload import _SIGNS, FORMAT

ASSETS = Path(bundle.__file__).with_name("assets")
HOUSE = Path(__file__).parents[3]


def write(folder: Path, **modules: str) -> Path:
    for name, imports in modules.items():
        lines = [f'import {{ x }} from "./{other}.js";' for other in imports.split()]
        (folder / f"{name}.js").write_text("\n".join([*lines, f"export const {name} = 1;"]))
    return folder


def test_a_module_comes_after_those_that_it_imports_and_once(tmp_path):
    assets = write(tmp_path, a="b c", b="d", c="d", d="", unused="a")
    order = modules_in_order(["a.js"], assets)
    assert sorted(order) == ["a.js", "b.js", "c.js", "d.js"]
    assert order[0] == "d.js" and order[-1] == "a.js"
    assert modules_in_order(["d.js", "a.js"], assets)[0] == "d.js"


def test_modules_that_import_each_other_are_an_error_that_names_them(tmp_path):
    assets = write(tmp_path, a="b", b="c", c="b")
    with pytest.raises(ValueError, match=r"modules import each other: b\.js -> c\.js -> b\.js"):
        modules_in_order(["a.js"], assets)


def test_every_module_and_stylesheet_is_in_a_bundle():
    loaders = {f"load/{name}.js" for name in ("base91", "fallback", "page", "page_loader", "widget_loader")}
    modules = {*modules_in_order(bundle._WIDGET), *modules_in_order(bundle._SITE)}
    assert modules | loaders == {path.relative_to(ASSETS).as_posix() for path in ASSETS.rglob("*.js")}
    folders = {Path(name).parent.as_posix() for name in modules}
    assert {path.relative_to(ASSETS).parent.as_posix() for path in ASSETS.rglob("*.css")} <= folders


@pytest.mark.parametrize("entries", [bundle._WIDGET, bundle._SITE], ids=["widget", "site"])
def test_the_modules_of_a_bundle_declare_each_name_once(entries):
    """They are joined into one scope."""
    texts = [(ASSETS / name).read_text("utf-8") for name in modules_in_order(entries)]
    declaration = re.compile(r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)", re.MULTILINE)
    declared = [name for text in texts for name in declaration.findall(text)]
    assert len(declared) > 10 and [name for name in declared if declared.count(name) > 1] == []


def test_a_page_without_series_or_values_has_neither_their_modules_nor_their_styles():
    assert {Path(name).parent.name for name in modules_in_order(bundle._TREE)} == {"tree"}
    assert {Path(name).parent.name for name in modules_in_order(bundle._VALUES)} == {"tree", "values"}
    assert "figcaption" not in module_text() and "figcaption" in module_text("values")
    assert "class HeatMap" not in module_text() and "class HeatMap" in module_text("series")


def test_the_loader_of_a_page_has_the_number_of_its_format():
    assert f'["treeviz {FORMAT}"]' in script("page_loader")


def test_every_kind_of_row_has_a_sign_of_its_own():
    assert _SIGNS.keys() == KINDS.keys()
    squares = {"module", "array", "numpy", "stored"}
    assert {kind for kind, sign in _SIGNS.items() if not sign.split(" ")[0]} == squares
    assert len({_SIGNS[kind] for kind in KINDS.keys() - squares}) == len(KINDS) - len(squares)


HOOK = runpy.run_path(str(HOUSE / ".hatch_build.py"))


def test_what_a_wheel_shortens_is_nothing_that_python_sends_and_no_key_of_a_text():
    ours = {*HOOK["OURS"].split()}
    package = HOUSE / "treeviz"
    sent = (package / "views" / "html" / "payload.py").read_text("utf-8")
    assert not ours & {*re.findall(r"[\"'](\w+)[\"']", sent)} and len(ours) > 50
    of_messages = [
        *package.glob("views/html/*.py"),
        *package.glob("views/widget/*.py"),
        *package.glob("inspector/*.py"),
    ]
    for path in (package / "analysis" / "details.py", package / "explorer.py", package / "differ.py", *of_messages):
        assert not ours & {*re.findall(r"[\"'](\w+)[\"']: ", path.read_text("utf-8"))}, path
    for path in {*ASSETS.rglob("*.js")} - {ASSETS / "serve" / "site.js"}:  # which is only minified
        text = re.sub(r"/\*.*?\*/|^ *//.*?$", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        assert not ours & {*re.findall(r"\bdataset\.(\w+)|\[\"(\w+)\"]", text)}, path
        for attributes in re.findall(r"\bh\(\s*\"[a-z]+\",\s*\{([^{}]*)", text):
            assert not ours & {*re.findall(r"(?<![\w-])(\w+):", attributes)}, path


def test_a_wheel_shortens_words_in_code_and_leaves_texts_as_they_are():
    for code, short in (
        ("x.tree = `tree ${{ a: view.tree, b: `${tree}}` }} tree`", "x.t = `tree ${{ a: view.t, b: `${t}}` }} tree`"),
        ("""/[/"]tree/.test("tree'") ? 'tree"' : tree / 2""", """/[/"]tree/.test("tree'") ? 'tree"' : t / 2"""),
        ("return /tree/ + tree / 2 / tree", "return /tree/ + t / 2 / t"),
    ):
        assert "".join(HOOK["in_code"](f"\n{code}", {"tree": "t"})) == f"\n{short}"
