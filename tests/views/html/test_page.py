"""The page as text: what stands in it before any script runs, and what its policy lets run."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from html import unescape
from html.parser import HTMLParser

import jax
import numpy as np
import pytest
from hostile_objects import EVIL_TEXTS
from hypothesis import given
from hypothesis import strategies as st
from query_trees import TREES

import treeviz
from treeviz.tree.repeats import fold
from treeviz.tree.text import number_text
from treeviz.views.html.bundle import module_text, script
from treeviz.views.html.page import MAX_NESTING, Markup, attribute, outline, page, text
from treeviz.views.view import View

VOID = {"meta", "br", "img", "input"}


class Reader(HTMLParser):
    """Checks that all tags are closed; collects the text outside scripts."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.texts: list[str] = []
        self.most_open = 0
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        self.most_open = max(self.most_open, self.open.count("details"))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["script"]:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


def gpt2(n_layers: int = 12, d: int = 768):
    def array(*shape: int):
        return jax.ShapeDtypeStruct(shape, np.float32)

    def dense(n: int, m: int):
        return {"w": array(n, m), "b": array(m)}

    def norm():
        return {"g": array(d), "b": array(d)}

    def layer(number: int):
        return {
            "ln_1": norm(),
            "attn": {"c_attn": dense(d, 3 * d), "c_proj": dense(d, d)},
            "ln_2": norm() if number % 2 else None,  # no two neighbors are alike
            "mlp": {"c_fc": dense(d, 4 * d), "c_proj": dense(4 * d, d)},
        }

    layers = [layer(i) for i in range(n_layers)]
    return {"wte": array(50257, d), "wpe": array(1024, d), "h": layers, "ln_f": norm()}


def plain(tree, **options) -> str:
    view = treeviz.render(tree, **options)
    return outline(View(view.table, view.columns, depth=options.get("depth")))


def lines(html: str) -> list[str]:
    """The outline's lines as a person sees them, with the arrows as a margin."""
    return Reader(html.replace("<summary>", "▾ ").replace("</summary>", "\n")).text.splitlines()


def test_plain_rows_are_an_indented_outline():
    tree = {"w": np.zeros((3, 4), np.float32), "layers": [{"b": 1.5}, None], "e": ()}
    assert lines(plain(tree, name="params")) == [
        "params · 2 leaves · 12 parameters · 48 B · float32 100 %",
        "name: type, elements, bytes",
        "▾ params: dict · 2 leaves, 12, 48 B",
        "    e: tuple",
        "▾   layers: list",
        "▾     [0]: dict",
        "        b: float 1.5",
        "      [1]: None",
        "    w: float32[3,4] numpy, 12, 48 B",
    ]


MANY = {f"k{i}": np.zeros(3 + i % 2) for i in range(5_000)}  # no two neighbors are alike
NESTED = [[[1.0, 2.0] * 15, [2.0, 1.0] * 15] * 15, [[2.0] * 2, [1.0, 2.0] * 15] * 15] * 15


@pytest.mark.parametrize(
    ("tree", "stats"),
    [(gpt2(), False), (gpt2(100, 8192), False), (MANY, False), (MANY, True), (NESTED, False), (NESTED, True)],
)
def test_plain_rows_are_three_hundred_at_most_and_below_twenty_kilobytes(tree, stats):
    html = plain(tree, stats=stats)
    table = treeviz.walk(tree)
    n_rows = len(table) - fold(table).n_blank
    n_lines = len(lines(html))
    assert min(n_rows, 300) <= n_lines <= 320
    assert len(html.encode()) / n_lines < 20_000 / 300


def one_bad_leaf(bad: float, n_leaves: int = 300):
    tree = {f"w{i}": np.ones((3, 4)) for i in range(n_leaves)}
    tree["w7"][0, 1] = bad
    return {"params": tree}


@pytest.mark.parametrize(("bad", "word"), [(np.nan, "NaN"), (np.inf, "±Inf"), (-np.inf, "±Inf")])
def test_a_value_that_is_not_finite_is_told_without_scripts_in_the_headline_in_its_row_and_above(bad, word):
    html = plain(one_bad_leaf(bad), stats=True)
    shown = lines(html)
    others = f"no {'Inf' if word == 'NaN' else 'NaN'}, all other values are 1"
    assert shown[0].endswith(f" · {word} in 1 leaf · {others}")
    (row,) = [line for line in shown if line.startswith("      w7: ")]
    assert f"{word}: 1 of 12 values, {word} 1" in row
    assert all(f", {word} 1" in line for line in shown[2:4])
    assert sum(word in line for line in shown) == 4
    assert set(re.findall(r"<(\w+)", html)) <= {"pre", "b", "i", "details", "summary"} and "var(" not in html
    assert word not in Reader(plain(one_bad_leaf(bad))).text


def test_plain_rows_show_the_columns_that_were_asked_for_and_name_those_that_do_not_fit():
    rng = np.random.default_rng(0)
    tree = {"w": rng.normal(size=(3, 4)), "b": np.zeros(3)}
    row = next(line for line in lines(plain(tree, stats=True)) if line.startswith("    w: "))
    for name in ("min", "max", "mean", "std"):
        assert f", {name} {number_text(getattr(np, name)(tree['w']))}" in row
    asked = plain(tree, columns=[np.size, treeviz.column(lambda x: "<b>" + x.dtype.name, title="as text"), np.ndim])
    assert "    w: float64[3,4] numpy, 12, 2, as text <b>float64" in lines(asked)
    many = {f"w{i}": rng.normal(size=4 + i % 2) for i in range(1_000)}
    html = plain(many, stats=True)
    left_out = lines(html)[1].partition("; only in the page: ")[2].split(", ")
    assert {"mean", "std", "rms"} & set(left_out) and not {"NaN", "min"} & set(left_out)
    assert len(html.encode()) < 20_000 and ", min " in html and f", {left_out[0]} " not in html


def test_plain_rows_say_how_many_they_leave_out():
    shown = lines(plain(list(range(5_000))))
    assert shown[-2:] == ["    … 4,686 more", "… 4,686 of 5,001 rows are not shown here."]


def test_plain_rows_go_as_deep_as_asked():
    assert lines(plain([[[1.0], 2.0]], depth=1))[2:] == [
        "▾ tree: list · 1 · 2 leaves",
        "    [0]: list · 2 leaves, 2 inside",
        "… 3 of 5 rows are not shown here.",
    ]


def test_a_tree_of_many_levels_is_not_nested_without_end():
    tree = 1.0
    for _ in range(20_000):
        tree = [tree]
    assert Reader(plain(tree)).most_open <= MAX_NESTING


def test_errors_cycles_and_badges_are_said_in_words():
    cycle: list = [1.0]
    cycle.append(cycle)
    shared = np.zeros(3)
    html = plain({"c": cycle, "s": (shared, shared), "o": {1, 2}})
    assert "cycle" in Reader(html).text and "shared with" in Reader(html).text


def test_plain_rows_hold_nothing_that_a_sanitiser_drops():
    html = plain(gpt2())
    assert set(re.findall(r"<(\w+)", html)) <= {"pre", "b", "i", "details", "summary"}
    assert set(re.findall(r"\s([\w-]+)=", re.sub(r">[^<]*<", "><", html))) <= {"style"}
    assert "var(" not in html


@pytest.mark.parametrize("evil", EVIL_TEXTS.values(), ids=EVIL_TEXTS)
def test_evil_texts_are_texts(evil):
    view = treeviz.render({evil: evil, "x": [evil]}, name=evil or "tree")
    html = view.html()
    Reader(html)
    html.encode()
    assert html.count("<script") == treeviz.render([1]).html().count("<script")


def test_two_pages_of_a_tree_are_the_same_to_the_byte():
    assert treeviz.render(gpt2()).html() == treeviz.render(gpt2()).html()


def test_the_policy_of_a_page_names_the_scripts_that_may_run_and_nothing_else():
    html = treeviz.render(gpt2()).html()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    rules = dict(rule.strip().split(" ", 1) for rule in unescape(policy).split(";"))
    assert rules.pop("script-src").split() == [
        f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"
        for content in (script("page_loader"), script(""))
    ]
    assert rules == {"default-src": "'none'", "style-src": "'unsafe-inline'", "img-src": "data:"}
    assert f"<script type=module>{script('page_loader')}</script>" in html


def test_pictures_of_values_bring_their_own_scripts_into_the_policy():
    table = TREES["model"]()
    html = page(View(table, [], values={1: "<script>let a = 1</script>", 2: "<p>two</p>"}))
    assert b64encode(sha256(b"let a = 1").digest()).decode() in html
    assert "let a = 1" not in html
    assert "unsafe-eval" not in html
    assert "'unsafe-eval'" in unescape(page(View(table, [], values={1: "<script>new Function('')</script>"})))


def test_the_front_end_is_one_module_without_imports_or_comments():
    module = module_text()
    assert not re.search(r"^\s*(import|//)|/\*\*", module, re.MULTILINE)
    assert re.findall(r"\bexport [^;]*?\{", module) == ["export function mount(host, payload) {"]
    scripts = script("") + script("page_loader")
    assert "</script" not in scripts and "<!--" not in scripts


def test_a_document_without_a_title_is_called_by_its_headline():
    table = TREES["model"]()
    assert "<title>params" in page(View(table, []))
    assert "<title>a &lt;b&gt;</title>" in page(View(table, []), title="a <b>")


@given(st.text())
def test_escaped_text_is_what_it_was(content):
    shown = content.encode("utf-8", "backslashreplace").decode()
    assert unescape(text(content)) == unescape(attribute(content)) == shown.replace("\r", "\r")
    assert not set(text(content)) & set("<>")
    assert not set(attribute(content)) & set("<>\"'")


def test_markup_is_not_escaped_again():
    assert text(Markup("<br>")) == "<br>"
    assert text("<br>") == "&lt;br&gt;"
