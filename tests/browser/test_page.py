"""The page in a real browser, driven as a person does it."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import runpy
from base64 import b64encode
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import jax
import numpy as np
import pytest
from browser.conftest import Watch, new_context
from browser.driving import (
    active,
    answer,
    box,
    choose,
    copied,
    copy_path,
    in_a_theme,
    in_sight,
    labels,
    open_menu,
    opened,
    row,
    scroll_to,
    search,
    settled,
    status,
    violations,
)
from hostile_objects import EVIL_TEXTS
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from PIL import Image
from query_trees import TREES
from sample_trees import SAMPLES

import treeviz
from treeviz.tree.facts import Column
from treeviz.tree.repeats import fold, mirrors
from treeviz.tree.text import number_text
from treeviz.views.html.bundle import module_text
from treeviz.views.html.page import page as as_page
from treeviz.views.html.payload import pack
from treeviz.views.view import View

TESTS = Path(__file__).parents[1]
CASES = json.loads((TESTS / "query_cases.json").read_text("utf-8"))
FOLDS = json.loads((TESTS / "fold_cases.json").read_text("utf-8"))
OPEN = json.loads((TESTS / "open_cases.json").read_text("utf-8"))
PAIRS = runpy.run_path(str(TESTS / "tree" / "test_text.py"))  # numbers beside their texts
IN_VIEW = "document.querySelector('.treeviz').shadowRoot"
PARTS = "unpack, matches, WordIndex, Rows, Folds, differingRuns, countText, bytesText, numberText, mount"


def model(n_layers: int = 3):
    """A small model: rows 0 params, 1 embed, 2 layers, 3 [0], 4 attn, …"""
    rng = np.random.default_rng(0)

    def layer(i):  # of other sizes: none is folded
        return {
            "attn": {"kernel": rng.normal(size=(8, 8)).astype(np.float32), "bias": np.zeros(8, np.float32)},
            "mlp": {"kernel": rng.normal(size=(8, 32)).astype(np.float32), "bias": np.ones(32 + i, np.float32)},
        }

    return {"embed": np.zeros((100, 8), np.float32), "layers": [layer(i) for i in range(n_layers)], "norm": None}


@pytest.fixture
def shown(open_page):
    """`shown(tree, …)` opens the page of a tree, with all its rows open if it is small."""

    def show(tree, *, stats: bool = False, check=False, columns=None, depth=9, name="params", values=None, **window):
        view = treeviz.render(tree, name=name, stats=stats, check=check, columns=columns, depth=depth)
        page = open_page(as_page(View(view.table, view.columns, depth=depth, values=values)), **window)
        return opened(page)

    return show


@pytest.fixture(scope="module")
def parts(chromium):
    """The front end's own functions, on a page where nothing is shown."""
    context = new_context(chromium)
    page = context.new_page()
    page.set_content(
        f"<div id=host></div><script type=module>{module_text('diff')}\nwindow.parts = {{{PARTS}}};</script>"
    )
    page.wait_for_function("() => window.parts")
    page.evaluate(
        """() => { window.load = async (text) =>
            window.tree = await parts.unpack(Uint8Array.from(atob(text), (c) => c.charCodeAt(0))) }"""
    )
    yield page
    context.close()


@pytest.mark.parametrize("case", FOLDS, ids=[case["what"] for case in FOLDS])
def test_runs_of_alike_siblings_are_those_of_the_rule(parts, case):
    table = treeviz.diff(case["tree"], case["other"]).table if "other" in case else treeviz.walk(case["tree"])
    found = parts.evaluate(
        """async ([text, wrong, nan]) => {
            await load(text);
            if (tree.facts.differs) tree.header.diff = { runs: () => parts.differingRuns(tree) };
            const { runs, isHidden } = new parts.Folds({ tree, unfolded: new Set(), isFolding: true }, wrong, nan);
            const folded = [...runs].sort(([a], [b]) => a - b).map(([, { label, rows }]) => ({ label, rows }));
            return { folded, shown: [...isHidden.keys()].filter((row) => !isHidden[row]) };
        }""",
        [b64encode(pack(View(table, []))).decode(), case.get("wrong", []), case.get("nan", [])],
    )
    # The page closes a mirror, where a text leaves its rows out.
    inside = {row for like in mirrors(table) for row in range(like + 1, table.end[like])}
    assert [row for row in found["shown"] if row not in inside] == [row for row in case["shown"] if row not in inside]
    assert found["folded"] == case["folded"]


def test_a_folded_row_tells_of_what_is_wrong_in_those_that_do_not_stand_out_of_it(shown):
    layers = [{"w": np.ones(3)} for _ in range(12)]
    for number in (2, 4, 6, 8, 10):
        layers[number]["w"][1] = np.nan
    page = shown({"layers": layers}, stats=True)
    assert labels(page)[2:] == ["[0…11] ×9", "w", *(label for number in (2, 4, 6) for label in (f"[{number}]", "w"))]
    inside = settled(page).locator(".row", has=page.locator(".key", has_text="w")).first
    assert "2 of 9" in inside.inner_text()


def test_an_inherited_spec_is_dim_and_a_bracket_has_the_color_of_the_spec(open_page):
    args = ({"w": np.ones(3), "b": np.ones(3)}, np.ones(3))
    page = opened(open_page(treeviz.overlay((0, None), args).html()))
    assert settled(page).locator(".row .cell.dim").all_inner_texts() == ["0 ← [0]"] * 2
    cells = page.locator(".row .cell", has_text=re.compile("^(0.*|None)$")).all()
    edges = [cell.evaluate("(cell) => getComputedStyle(cell).borderLeft") for cell in cells]
    assert [cell.inner_text() for cell in cells] == ["0", "0 ← [0]", "0 ← [0]", "None"]
    assert len({*edges[:3]}) == 1 and edges[0] != edges[3] and edges[0].startswith("3px solid oklch")
    page.set_viewport_size({"width": 220, "height": 500})
    name, spec = box(page, "#row2 .key"), box(page, "#row2 .edge")
    assert "sliding" in page.locator(".scroller").get_attribute("class")
    assert name["x"] + name["width"] <= spec["x"], "names that stay in place do not cover it"
    assert page.locator(".row .cell.edge").count() == 4
    assert violations(page) == []


def test_what_is_open_first_is_what_holds_the_most(parts):
    for case in OPEN:
        table = treeviz.walk(case["tree"])
        n_leaves = np.array([facts.leaves for facts in table.facts])[table.fact_codes]
        opened = parts.evaluate(
            """async ([text, weights, nRows]) => {
                await load(text);
                const rows = new parts.Rows(tree);
                rows.isFolding = false;
                rows.openFirst(weights, nRows);
                return [...rows.open.keys()].filter((row) => rows.open[row]);
            }""",
            [b64encode(pack(View(table, []))).decode(), table.roll(n_leaves, "sum").tolist(), case["n_rows"]],
        )
        assert opened == case["open"], case["what"]


def test_folds_are_those_of_python_for_every_small_tree(parts):
    tables = {name: treeviz.walk(make()) for name, make in SAMPLES.items()}
    tables = {name: table for name, table in tables.items() if len(table) <= 2_000}
    told = answer(
        parts,
        """async (texts) => {
            const told = [];
            for (const text of texts) {
                await load(text);
                const { isHidden, runs } = new parts.Folds({ tree, unfolded: new Set(), isFolding: true }, [], []);
                const labels = [...runs.values()].map(({ label }) => label);
                told.push([[...isHidden.keys()].filter((row) => !isHidden[row]), labels.sort()]);
            }
            return told;
        }""",
        [b64encode(pack(View(table, []))).decode() for table in tables.values()],
    )
    for (name, table), rows in zip(tables.items(), told, strict=True):
        found = fold(table)
        inside = [row for like in mirrors(table) for row in range(like + 1, table.end[like])]
        shown = set(rows[0]) - set(inside)  # the page closes a mirror, where a text leaves its rows out
        assert sorted(shown) == found.rows.tolist() and len(rows[0]) - len(shown) <= len(inside), name
        assert set(rows[1]) >= {run.label for run in found.runs.values()}, name


def test_fields_that_are_none_are_one_line_and_dicts_can_be_as_they_were_written(shown):
    tree = {"rate": np.float32(0.91), "scale": np.array(2.5), "a": None, "c": None, "b": None, "e": [None]}
    page = shown(tree)
    assert labels(page) == ["params", "e", "[0]", "rate", "scale"]
    types = settled(page).locator(".window .row .type").all_inner_texts()
    assert types[3:] == ["float32[] 0.91", "float64[] numpy 2.5"]
    open_menu(page, "View")
    page.get_by_role("checkbox", name="Insertion order").check()
    assert labels(page) == ["params", "rate", "scale", "e", "[0]"], "what is None stays below"
    page.get_by_role("button", name="3 fields are None").click()
    assert labels(page) == ["params", "rate", "scale", "a", "c", "b", "e", "[0]"]
    assert page.get_by_role("button", name="3 fields are None").is_hidden()
    open_menu(page, "View")
    page.get_by_role("checkbox", name="None fields").uncheck()
    page.get_by_role("checkbox", name="Insertion order").uncheck()
    assert labels(page) == ["params", "e", "[0]", "rate", "scale"]
    search(page, "None")
    assert labels(page)[1:4] == ["a", "b", "c"], "a search finds them"


@pytest.mark.parametrize("descending", [False, True])
def test_siblings_are_sorted_as_python_sorts_them_however_many(parts, descending):
    tree = {str(n): [[0.5]] * n for n in (1, 2, 19, 20, 21, 22, 90)}
    table = treeviz.walk(tree)
    random = np.random.default_rng(0)
    values = random.choice([np.nan, *range(9)], len(table))

    def place(row):
        return (True, 0) if np.isnan(values[row]) else (False, -values[row] if descending else values[row])

    def in_order(row):
        children = sorted((at for at in range(row + 1, table.end[row]) if table.parent[at] == row), key=place)
        return [row, *(each for child in children for each in in_order(child))]

    order = parts.evaluate(
        """async ([text, values, descending]) => {
            await load(text);
            const rows = new parts.Rows(tree);
            rows.sort(Float64Array.from(values), descending);
            return [...rows.order].map((row, at) => (rows.place[row] === at ? row : -1));
        }""",
        [b64encode(pack(View(table, []))).decode(), values.tolist(), descending],
    )
    assert order == in_order(0)


def load(parts, table):
    parts.evaluate("(text) => load(text).then(() => {})", packed_text(table))


def packed_text(table) -> str:
    return b64encode(pack(View(table, list(table.columns.values())))).decode()


packed_tree = functools.cache(lambda name: packed_text(TREES[name]()))


# What the front end works out for itself


def test_a_view_that_opens_rolls_up_only_the_columns_that_it_shows(parts):
    table = treeviz.render({"layers": [{"w": np.ones(3)}] * 40}, stats=True).table
    load(parts, table)
    packed = pack(View(table, [table.columns[name] for name in ("bytes", "rms")]))
    read = parts.evaluate(
        """async (text) => {
            const column = Object.getPrototypeOf(tree.columns[0]);
            const values = Object.getOwnPropertyDescriptor(column, 'values');
            const read = new Set();
            const get = function () { return read.add(this.name), values.get.call(this) };
            Object.defineProperty(column, 'values', { ...values, get });
            const host = document.body.appendChild(document.createElement('div'));
            const end = parts.mount(host, Uint8Array.from(atob(text), (c) => c.charCodeAt(0)));
            while (!host.shadowRoot?.querySelector('.row')) await new Promise(requestAnimationFrame);
            end();
            host.remove();
            Object.defineProperty(column, 'values', values);
            return [...read];
        }""",
        b64encode(packed).decode(),
    )
    assert {"bytes", "rms"} <= {*read}
    assert {*read} & {"kind", "shape", "dtype", "zeros", "min"} == set()


@pytest.mark.parametrize(
    ("write", "pairs"),
    [("countText", PAIRS["COUNTS"]), ("bytesText", PAIRS["BYTES"]), ("numberText", PAIRS["NUMBERS"])],
)
def test_numbers_are_written_as_in_the_terminal(parts, write, pairs):
    sent = [repr(float(number)).replace("inf", "Infinity").replace("nan", "NaN") for number, _ in pairs]
    written = parts.evaluate(f"(numbers) => numbers.map((text) => parts.{write}(+text))", sent)
    assert written == [text for _, text in pairs]


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_paths_places_and_totals_of_every_tree_are_those_of_the_table(parts, name):
    table = treeviz.walk(SAMPLES[name]())
    load(parts, table)
    rows = range(len(table)) if len(table) < 2_000 else range(0, len(table), len(table) // 20)
    told = answer(
        parts,
        """(rows) => rows.map((row) => [tree.parent[row], tree.end[row], tree.position[row], tree.label(row),
            tree.keystr(row), tree.expression(row)])""",
        list(rows),
    )
    for number, (parent, end, position, label, keystr, expression) in zip(rows, told, strict=True):
        assert [parent, end, position] == [int(a[number]) for a in (table.parent, table.end, table.position)]
        assert (label, keystr, expression) == (table[number].label, table[number].keystr, table[number].expression)
    for column in table.columns.values():
        if column.format in ("count", "bytes"):
            np.testing.assert_allclose(values_of(parts, column.name), table.rolled(column).astype(float), rtol=1e-6)


def values_of(parts, name: str) -> np.ndarray:
    told = parts.evaluate("(name) => [...tree.columns.find((column) => column.name === name).values].map(String)", name)
    return np.array(told, dtype=float)


@pytest.mark.parametrize("rollup", ["sum", "max", "min", "any", "norm", "given", "none"])
@pytest.mark.parametrize("missing", [False, True])
def test_roll_ups_are_those_of_the_table(parts, rollup, missing):
    table = treeviz.walk(model())
    own = np.random.default_rng(0).normal(size=len(table))
    own[own < -1] = np.nan if missing else 0
    if rollup == "any":
        own = own > 1
    column = Column("x", "x", own, format="number", rollup=rollup)
    load(parts, table.with_columns(column))
    told, expected = values_of(parts, "x"), table.rolled(column).astype(float)
    if rollup in ("max", "min", "given"):  # sent in the digits that are shown
        assert list(map(number_text, told)) == list(map(number_text, expected))
    else:
        np.testing.assert_allclose(told, expected, rtol=1e-6, atol=1e-12)


def test_a_sum_of_whole_numbers_is_exact_also_where_a_number_elsewhere_is_huge(parts):
    table = treeviz.walk(model())
    own = np.where(np.arange(len(table)) == len(table) - 1, 1e300, table.is_leaf)
    column = Column("x", "x", own, format="count", rollup="sum")
    load(parts, table.with_columns(column))
    assert values_of(parts, "x").tolist() == table.rolled(column).tolist()


@pytest.mark.parametrize("tree", dict.fromkeys(case["tree"] for case in CASES))
def test_the_search_box_reads_the_same_language_as_python(parts, tree):
    expected = {case["query"]: case for case in CASES if case["tree"] == tree}
    found = parts.evaluate(
        """async ([text, queries]) => {
            await load(text);
            const words = new parts.WordIndex(tree);
            return queries.map(query => {
                try {
                    return [...parts.matches(tree, words, query)].flatMap((hit, row) => hit ? [row] : []);
                } catch (error) {
                    return error.message;
                }
            });
        }""",
        [packed_tree(tree), [*expected]],
    )
    said = dict(zip(expected, found, strict=True))
    assert {query: rows for query, rows in said.items() if not isinstance(rows, str)} == {
        query: case["rows"] for query, case in expected.items() if "rows" in case
    }
    for query, case in expected.items():
        assert "near" not in case or f"Did you mean {case['near']}?" in said[query]


@pytest.mark.parametrize(
    "name", ["5,000 levels of lists", "2,000 levels of dicts", "3,000 children", "every kind of leaf"]
)
def test_every_tree_is_searched_as_python_searches_it(parts, name):
    table = treeviz.walk(SAMPLES[name]())
    load(parts, table)
    for query in ("a", "0][0", "down/leaf", "**/leaf", "k1*", "-float", "dtype:float", "parameters:>0"):
        found = parts.evaluate(
            "(query) => parts.matches(tree, new parts.WordIndex(tree), query)"
            ".reduce((sum, hit, row) => sum + hit * (row + 1), 0)",
            query,
        )
        assert found == sum(row.number + 1 for row in table.find(query)), query


# The page


def test_a_page_opens_with_the_first_levels_and_few_elements(shown, shots):
    page = shown(model(), depth=None)
    assert labels(page)[:3] == ["params", "embed", "layers"]
    assert page.locator(".headline").inner_text().startswith("params\n13 leaves\n")
    assert page.locator("#row2 .type").inner_text().split("\n") == ["list", "· 3 · 12 leaves"]
    name = page.locator("#row1").get_attribute("aria-label")
    assert name == "embed, float32[100,8] numpy, elements 800, bytes 3.2 kB", "the row's name says what is seen"
    shots(page, "page.png")


@pytest.mark.parametrize("name", ["3,000 children", "5,000 levels of lists"])
def test_a_page_holds_few_elements_however_large_the_tree(shown, name):
    page = shown(SAMPLES[name](), depth=None, width=2000, height=1100)
    choose(page, "View", "Expand all")
    n_elements = settled(page).evaluate(
        """() => document.querySelectorAll('*').length
            + document.querySelector('.treeviz').shadowRoot.querySelectorAll('*').length"""
    )
    assert n_elements <= 600
    page.locator(".tree").focus()
    page.keyboard.press("End")
    n_rows = len(treeviz.walk(SAMPLES[name]()))
    assert settled(page).locator(".row.active").get_attribute("id") == f"row{n_rows - 1}"


def test_a_million_rows_can_be_scrolled_from_end_to_end(open_page):
    n = 1_000_000
    table = treeviz.walk([1.0])
    ones = np.ones(n + 1, np.int32)
    depth = ones.copy()
    depth[0] = 0
    codes = ones.copy()
    codes[0] = table.fact_codes[0]
    codes[1:] = table.fact_codes[1]
    many = treeviz.tree.table.TreeTable(
        "many",
        depth,
        depth - 1,
        np.arange(1, n + 2, dtype=np.int32),
        np.arange(-1, n, dtype=np.int32),
        depth * 0,
        table.keys,
        codes,
        table.facts,
    )
    many.end[0] = n + 1
    many.position[0] = 0
    page = open_page(as_page(View(many, [])))
    opened(page)
    assert labels(page) == ["many", "[0…999999] ×1,000,000"]
    page.get_by_role("button", name="Collapse identical").click()
    assert labels(page)[:3] == ["many", "[0]", "[1]"]
    scroll_to(page, 10**9)
    assert labels(page)[-1] == "[999999]"
    page.locator(".tree").focus()
    page.keyboard.press("End")
    for there in range(999_998, 999_990, -1):
        page.keyboard.press("ArrowUp")
        assert active(page) == f"[{there}]"
    page.keyboard.press("Home")
    page.keyboard.press("PageDown")
    page.mouse.move(300, 300)
    before = labels(page)[0]
    page.mouse.wheel(0, 220)
    page.wait_for_function(  # the mouse does not wait for what it rolls
        "(before) => document.querySelector('.treeviz').shadowRoot.querySelector('.row .key').textContent !== before",
        arg=before,
    )
    assert row(page, "[30]").first.is_visible()


def test_the_arrow_of_a_node_opens_and_closes_it(shown):
    page = shown(model(), depth=1)
    assert labels(page) == ["params", "embed", "layers", "norm"]
    item = row(page, "layers")
    assert item.get_attribute("aria-expanded") == "false"
    item.click(position={"x": 26, "y": 11})
    assert labels(page) == ["params", "embed", "layers", "[0]", "[1]", "[2]", "norm"]
    assert item.get_attribute("aria-expanded") == "true"
    row(page, "[1]").dblclick()
    assert labels(page)[4:7] == ["[1]", "attn", "mlp"]
    item.click(position={"x": 26, "y": 11})
    assert labels(page) == ["params", "embed", "layers", "norm"]


def test_rows_that_stay_as_they_are_are_not_drawn_anew(shown):
    page = shown(model(), depth=1)
    page.locator(".window").evaluate(
        """element => {
            window.changed = new Set();
            const note = records => records.forEach(({ target }) => window.changed.add(target.closest('.row')?.id));
            const all = { subtree: true, childList: true, attributes: true, characterData: true };
            new MutationObserver(note).observe(element, all);
        }"""
    )
    row(page, "layers").click(position={"x": 26, "y": 11})
    assert labels(page) == ["params", "embed", "layers", "[0]", "[1]", "[2]", "norm"]
    opened = page.evaluate("() => [...window.changed]")
    # The root was active, and the window has new rows; those between them, and below, are as they were.
    assert {"row0", "row2", None} <= {*opened} and not {"row1", "row15"} & {*opened}, opened
    row(page, "layers").click(position={"x": 26, "y": 11})
    page.evaluate("() => window.changed.clear()")
    row(page, "layers").click(position={"x": 26, "y": 11})
    assert labels(page) == ["params", "embed", "layers", "[0]", "[1]", "[2]", "norm"]
    assert {*page.evaluate("() => [...window.changed]")} == {"row2", None}


def test_a_press_is_a_click_though_the_window_changes_before_the_button_is_let_go(shown):
    page = shown(model(), depth=1)
    place = box(page, "#row2")
    page.mouse.move(place["x"] + 100, place["y"] + 11)
    page.mouse.down()
    page.set_viewport_size({"width": 1190, "height": 690})
    settled(page)
    page.mouse.up()
    assert active(page) == "layers"


def test_levels_open_together(shown):
    page = shown(model(), depth=1)
    open_menu(page, "View")
    page.get_by_role("combobox", name="Expand to level").select_option("2")
    assert len(labels(page)) == 7
    choose(page, "View", "Expand all")
    assert len(labels(page)) == len(treeviz.walk(model()))
    choose(page, "View", "Collapse all")
    assert labels(page) == ["params"]


def test_the_keyboard_walks_through_the_tree(shown):
    page = shown(model(), depth=1)
    page.locator(".tree").focus()
    steps = [
        ("ArrowDown", "embed"), ("ArrowDown", "layers"), ("ArrowRight", "layers"), ("ArrowRight", "[0]"),
        ("ArrowRight", "[0]"), ("ArrowRight", "attn"), ("ArrowRight", "attn"), ("ArrowRight", "bias"),
        ("ArrowUp", "attn"), ("ArrowLeft", "attn"), ("ArrowLeft", "[0]"), ("ArrowLeft", "[0]"), ("ArrowLeft", "layers"),
        ("End", "norm"), ("Home", "params"), ("PageDown", "norm"), ("PageUp", "params"),
        ("l", "layers"), ("Enter", "layers"), ("n", "norm"), ("e", "embed"),
    ]  # fmt: skip
    for key, there in steps:
        page.keyboard.press(key)
        assert active(page) == there, key
    assert labels(page) == ["params", "embed", "layers", "norm"]


def test_a_star_opens_all_siblings(shown):
    page = shown(model(), depth=2)
    row(page, "[1]").click()
    page.keyboard.press("*")
    assert labels(page).count("attn") == 3


def test_several_rows_can_be_selected(shown):
    page = shown(model(), depth=2)

    def selected() -> list[str]:
        return settled(page).locator(".row[aria-selected=true] .key").all_inner_texts()

    row(page, "[0]").click()
    row(page, "[2]").click(modifiers=["Shift"])
    assert selected() == ["[0]", "[1]", "[2]"]
    row(page, "[1]").click(modifiers=["Control"])
    row(page, "embed").click(modifiers=["Control"])
    assert selected() == ["embed", "[0]", "[2]"]
    python = copied(page, lambda: copy_path(page))
    assert python == "params['embed']\nparams['layers'][0]\nparams['layers'][2]"
    row(page, "norm").click()
    page.keyboard.press("Shift+ArrowUp")
    page.keyboard.press("Shift+ArrowUp")
    assert selected() == ["[1]", "[2]", "norm"]
    page.keyboard.press("Control+Home")
    page.keyboard.press(" ")
    assert selected() == ["params", "[1]", "[2]", "norm"]


def test_folded_rows_are_selected_with_all_for_which_they_stand_by_any_click(shown):
    page = shown({"layers": [{"w": np.ones(3), "b": np.ones(2)} for _ in range(4)]})
    row(page, "w").click()
    assert len(copied(page, lambda: copy_path(page)).splitlines()) == 4
    row(page, "b").click(modifiers=["Control"])
    assert len(copied(page, lambda: copy_path(page)).splitlines()) == 8
    row(page, "w").click(modifiers=["Control"])
    assert {path[-5:] for path in copied(page, lambda: copy_path(page)).splitlines()} == {"['b']"}
    row(page, "b").click()
    row(page, "w").click(modifiers=["Shift"])
    assert len(copied(page, lambda: copy_path(page)).splitlines()) == 8


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_what_is_seen_is_saved_as_a_picture(shown, tmp_path, dark):
    page = shown(model(), dark=dark, width=700, height=300, stats=True)
    scroll_to(page, 66)
    page.locator(".scroller").evaluate("(element) => { element.scrollLeft = 200 }")
    seen = labels(page)
    saved = {}
    for form in ("SVG", "PNG"):
        with page.expect_download() as download:
            choose(page, "Export", f"Picture ({form})")
        saved[form] = tmp_path / f"saved.{form.lower()}"
        download.value.save_as(saved[form])
    text = ElementTree.parse(saved["SVG"])
    inside = "".join(text.getroot().itertext())
    assert all(label in inside for label in seen) and "Export" not in inside
    assert "translate: -200px -66px" in saved["SVG"].read_text("utf-8"), "sideways, too"
    picture = Image.open(saved["PNG"]).convert("L")
    assert picture.width == 2 * (700 - 16) and 300 < picture.height < 600
    assert (picture.getpixel((picture.width - 60, 20)) < 80) == dark


def test_the_copied_path_evaluates_to_the_leaf(shown):
    params = model()
    page = shown(params)
    page.get_by_text("Copy", exact=True).click()
    page.get_by_role("button", name="Python: params").wait_for()
    assert page.get_by_role("button", name="key path:").count() == 0, "that of the root is empty"
    row(page, "kernel").nth(3).click()
    assert eval(copied(page, lambda: page.keyboard.press("Control+c"))) is params["layers"][1]["mlp"]["kernel"]
    keystr = copied(page, lambda: copy_path(page, "key path"))
    assert keystr == "['layers'][1]['mlp']['kernel']"
    row(page, "norm").locator(".key").hover()
    assert row(page, "norm").locator(".key").get_attribute("title") == "params['norm']"
    assert copied(page, page.locator(".copier").click) == "params['norm']"


def test_the_name_that_a_file_has_for_an_array_is_copied(shown, tmp_path):
    names = [f"model.layers.{i}.self_attn.q_proj.weight" for i in range(2)]
    np.savez(tmp_path / "m.npz", **dict.fromkeys(names, np.ones((2, 3))))
    page = shown(treeviz.read(tmp_path / "m.npz"))
    row(page, "weight").nth(1).click()
    assert copied(page, lambda: copy_path(page, "name in the file")) == names[1]


def test_a_path_is_copied_without_the_clipboard_interface(shown):
    page = shown(model(), alone=True)
    page.evaluate("() => Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    row(page, "embed").click()
    copied(page, lambda: page.keyboard.press("Control+c"))
    page.keyboard.press("/")
    page.keyboard.press("Control+v")
    page.wait_for_function(  # the clipboard is asked in its own time
        "(text) => document.querySelector('.treeviz').shadowRoot.querySelector('[type=search]').value === text",
        arg="params['embed']",
    )


def test_a_click_on_an_arrow_or_with_shift_puts_no_caret_into_a_text_and_keys_go_on_from_its_row(shown):
    page = shown(model(), depth=1)
    caret = "() => getSelection().type"
    row(page, "embed").click(modifiers=["Shift"])
    page.keyboard.press("ArrowDown")
    assert (page.evaluate(caret), active(page)) == ("None", "layers")
    row(page, "layers").click(position={"x": 27, "y": 11})
    page.keyboard.press("ArrowDown")
    assert (page.evaluate(caret), active(page)) == ("None", "[0]")


def test_a_search_shows_what_it_finds_and_what_is_above(shown, shots):
    page = shown(model(), depth=1)
    search(page, "mlp/kernel")
    assert labels(page) == ["params", "layers", *[label for i in range(3) for label in (f"[{i}]", "mlp", "kernel")]]
    assert settled(page).locator(".row.hit .key").all_inner_texts() == ["kernel"] * 3
    assert status(page) == "1 of 3 matches"
    shots(page, "search.png")
    found = labels(page)
    search(page, "dtype:f33 kernel")
    assert (labels(page), status(page)) == (
        found,
        "Nothing matches dtype:f33 kernel. Did you mean dtype:f32 kernel (6)?",
    )
    assert page.locator(".stale .row").count() == len(found), "what was found before stays, gray"
    page.get_by_role("button", name="dtype:f32 kernel").click()
    assert status(page) == "2 of 6 matches"
    search(page, "nothing")
    assert status(page) == "Nothing matches nothing."
    search(page, "")
    assert (labels(page), status(page)) == (["params", "embed", "layers", "norm"], "")


def test_a_folded_row_names_the_outlier_as_the_text_does_and_its_details_say_the_sum_and_the_ranges(shown):
    tree = [{"w": np.full((3, 3), 1.0 + 999 * (i == 5)), "b": np.zeros(3)} for i in range(12)]
    said = "[5] rms: 1000 × the median"
    assert said in treeviz.render(tree, stats=True).text()
    page = shown(tree, stats=True, depth=2)
    row(page, "[0…11] ×12").click()
    detail = page.locator(".detail")
    assert detail.locator("dt:text-is('bytes') + dd").inner_text() == "1.2 kB"
    assert detail.locator("dt:text-is('max') + dd").inner_text() == "1–1000"
    assert not {"devices", "bytes/device"} & {*detail.locator("dt").all_inner_texts()}, "says nothing"
    page.get_by_title(said).click()
    assert active(page) == "[5]" and "[4]" in labels(page)


def test_a_folded_row_does_not_say_of_all_what_is_of_the_first(shown):
    page = shown(SAMPLES["layers that know their numbers"](), depth=1)
    assert labels(page) == ["params", "[0…11] ×12", "[12]"]
    assert ["layer 0" in text for text in settled(page).locator(".window .row .type").all_inner_texts()] == [False] * 3
    page.get_by_text("unfold", exact=True).click()
    assert "layer 3" in row(page, "[3]").inner_text()


def test_a_folded_row_without_a_value_is_as_empty_as_those_that_it_stands_for(shown):
    none = treeviz.Column("none", "none", np.full(13, np.nan), format="bytes", rollup="sum")
    page = shown([{"w": np.ones(3)}] * 6, columns=[none])
    assert labels(page) == ["params", "[0…5] ×6", "w"]
    assert not any(text.endswith(" B") for text in page.locator(".tree [data-row]").all_inner_texts())


@pytest.mark.parametrize("width", [480, 740])
def test_no_type_is_cut_while_a_number_stands_and_no_button_has_a_line_of_its_own(shown, width):
    layer = {"MultiHeadDotProductAttention_0": {"kernel": np.ones((32, 4, 8)), "bias": np.ones(32)}, "scale": (1.5,)}
    page = shown(
        {f"encoderblock_{i}": layer for i in range(4)} | {"count": np.ones(3, np.int32)}, stats=True, width=width
    )
    cut = """(parts) => parts.filter((part) => part.scrollWidth > part.clientWidth + 1 ||
        part.getBoundingClientRect().right > part.closest('.scroller').getBoundingClientRect().right)
        .map((part) => part.textContent)"""
    assert settled(page).locator(".window .type :is(.what, .badge)").evaluate_all(cut) == []
    assert page.get_by_text("unfold", exact=True).is_visible()
    tops = [
        box["y"] for box in (each.bounding_box() for each in page.locator(".tools button, .tools summary").all()) if box
    ]
    assert tops.count(max(tops)) > 1


@pytest.mark.parametrize("width", [480, 960])
def test_no_row_moves_when_a_search_begins_finds_nothing_or_ends(shown, width):
    page = shown(model(), width=width, stats=True)
    before = box(page, ".tree")["y"]
    for query in ("kernel", "kernal", "is:something", ""):
        search(page, query)
        assert box(page, ".tree")["y"] == before, query


def test_the_inside_of_what_a_search_finds_can_be_opened(shown):
    page = shown(model(), depth=1)
    search(page, "key:attn")
    assert labels(page)[-1] == "attn"
    row(page, "attn").last.dblclick()
    assert labels(page)[-3:] == ["attn", "bias", "kernel"]


def test_enter_goes_from_match_to_match(shown):
    page = shown(model(), depth=1)
    page.locator(".tree").focus()
    page.keyboard.press("/")
    page.keyboard.type("mlp/bias")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert status(page) == "3 of 3 matches"
    page.keyboard.press("Enter")
    assert status(page) == "1 of 3 matches"
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("F3")
    page.keyboard.press("Shift+F3")
    assert status(page) == "3 of 3 matches"
    page.keyboard.press("Escape")
    assert page.get_by_role("searchbox").input_value() == ""
    assert active(page) == "bias"
    page.locator(".headline").click()
    page.evaluate("() => document.activeElement.blur()")
    page.keyboard.press("Control+f")
    assert page.get_by_role("searchbox").evaluate("(box) => box.getRootNode().activeElement === box")


def test_without_the_filter_a_search_goes_through_the_whole_tree(shown):
    page = shown(model(), depth=1)
    search(page, "mlp/kernel")
    page.get_by_role("checkbox", name="only matches").uncheck()
    assert "embed" in labels(page)
    page.get_by_role("button", name="Next match").click()
    assert status(page) == "2 of 3 matches"
    assert labels(page).count("attn") == 2


def test_a_query_that_cannot_be_read_is_explained_beside_the_box(shown):
    page = shown(model())
    for query in ("bytes:>", '"open', "nosuch:1", "is:nothing", "shape:x", "mean:>1", "nan"):
        search(page, query)
        assert page.locator("output.error").inner_text().endswith((".", ")", "768")), query
        assert page.get_by_role("searchbox").get_attribute("aria-invalid") == "true", query
        assert len(labels(page)) > 5, query
        search(page, "")
        assert page.locator("output.error").count() == 0


def test_a_word_after_is_that_does_not_exist_names_the_nearest_one(shown):
    page = shown(model())
    search(page, "is:share")
    assert page.locator("output.error").inner_text() == "No is:share. Did you mean shared?"


def test_a_click_on_a_title_sorts_siblings(shown):
    page = shown({"a": np.zeros(2), "b": [np.zeros(5), np.zeros(9)], "c": np.zeros(3), "d": None}, depth=2)
    title = page.locator(".head").get_by_role("button", name="bytes", exact=False).first
    title.click()
    assert labels(page) == ["params", "b", "[1]", "[0]", "c", "a", "d"]
    assert title.get_attribute("aria-label") == "bytes, sorted descending"
    title.click()
    assert labels(page) == ["params", "d", "a", "c", "b", "[0]", "[1]"]
    title.click()
    assert labels(page) == ["params", "a", "b", "[0]", "[1]", "c", "d"]
    keys = page.locator(".head").get_by_role("button", name="name")
    title.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert page.locator(".head [tabindex='0']").all_inner_texts() == ["name"], "the titles are one tab stop"
    page.keyboard.press("Enter")
    keys.click()
    assert labels(page) == ["params", "d", "c", "b", "[1]", "[0]", "a"]


def test_a_sorted_tree_is_searched_and_walked_in_its_new_order(shown):
    page = shown({"a": np.zeros(2), "b": [np.zeros(5), np.zeros(9)], "c": np.zeros(3)}, depth=2)
    page.locator(".head .bytes").click()
    search(page, "float64")
    assert labels(page) == ["params", "b", "[1]", "[0]", "c", "a"]
    page.get_by_role("searchbox").press("Enter")
    assert status(page) == "2 of 4 matches"
    page.locator(".tree").focus()
    page.keyboard.press("End")
    assert active(page) == "a"


def test_columns_can_be_hidden_and_shown(shown):
    page = shown(model(), stats=True, columns=["bytes"])
    assert settled(page).locator(".head button").all_inner_texts() == ["name", "type", "bytes"]
    open_menu(page, "View")
    page.get_by_role("checkbox", name="rms").check()
    page.get_by_role("checkbox", name="bytes", exact=True).uncheck()
    assert settled(page).locator(".head button").all_inner_texts() == ["name", "type", "rms"]
    assert page.locator(".row .number").first.inner_text() != ""
    bars = page.locator(".row .number").evaluate_all(
        "(cells) => cells.map((cell) => [+cell.textContent, parseFloat(cell.style.backgroundSize)])"
    )
    assert max(bars)[1] == 100 and sorted(bars) == sorted(bars, key=lambda bar: bar[1]), "the largest is seen"


def test_the_detail_of_a_row_says_everything_about_it(shown, shots):
    page = shown({"w": np.array([1.0, np.nan, 4.0]), "n": 1}, stats=True)
    row(page, "w").click()
    detail = settled(page).locator(".detail")
    said = detail.inner_text()
    for text in ("params['w']", "(3,)", "float64", "24 B", "numpy (a leaf)", "rms"):
        assert text in said, text
    assert detail.locator("figure path").count() == 1
    detail.locator("summary", has_text="Copy").click()
    assert copied(page, detail.get_by_role("button", name="Python:").click) == "params['w']"
    assert detail.locator(".ticks span").all_inner_texts() == ["0", "1", "3"], "1 and 4, by their powers of two"
    assert "+Inf" not in said and "leaves" not in said, "what says nothing is left out"
    shots(page, "detail.png")
    detail.locator(".crumbs").get_by_role("button", name="params").click()
    assert active(page) == "params"
    page.locator(".tree").focus()
    page.keyboard.press("Escape")
    settled(page)
    assert detail.count() == 0
    search(page, "nan")
    assert (status(page), active(page)) == ("1 of 1 match", "w"), "what holds it is in sight, and no match"


def test_the_detail_has_the_numbers_of_a_parameter_and_its_gradient_side_by_side(open_page, shots):
    params = {"w": np.array([3.0, 4.0]), "b": np.zeros(2)}
    grads = {"w": np.array([0.3, 0.4]), "b": np.zeros(2)}
    page = opened(open_page(treeviz.render(params, grads=grads, stats=True, name="params").html()))
    row(page, "w").click()
    cells = settled(page).locator(".beside tr").evaluate_all("(rows) => rows.map((row) => row.innerText.split('\\t'))")
    assert cells[0] == ["", "params", "grads"]
    by_name = {name: rest for name, *rest in cells[1:]}
    assert (
        by_name["rms"] == ["3.536", "0.3536"] and by_name["norm"] == ["", "0.5"] and by_name["÷ params"] == ["", "0.1"]
    )
    assert "NaN/Inf" not in by_name


def test_many_numbers_side_by_side_are_scrolled_with_the_details_also_from_the_keyboard(open_page):
    optax = pytest.importorskip("optax")
    params = {"w": np.array([3.0, 4.0]), "b": np.zeros(2)}
    view = treeviz.render(params, grads=params, opt_state=optax.adam(1e-3).init(params), stats=True, name="parameters")
    page = opened(open_page(view.html(), width=1400))
    row(page, "w").click()
    assert settled(page).locator(".beside tr").first.locator("th").count() == 4 and violations(page) == []


def test_what_is_selected_is_copied_as_a_mask_and_so_are_all_matches(shown):
    params = {**model(), "odd": {'a"b\n': np.zeros(2), "é": np.ones(3)}}
    page = shown(params)

    def mask():
        page.locator(".tools summary", has_text="Copy").click()
        code = copied(page, lambda: page.get_by_role("button", name="mask:").click())
        return [
            jax.tree_util.keystr(p)
            for p, is_in in jax.tree_util.tree_leaves_with_path(eval(code, {"jax": jax, "params": params}))
            if is_in
        ]

    row(page, "embed").click()
    scroll_to(page, 10**4)
    in_sight(page, "é").click(modifiers=["Control"])
    assert mask() == ["['embed']", "['odd']['é']"]
    in_sight(page, "odd").click(modifiers=["Control"])
    assert mask() == ["['embed']", "['odd']['a\"b\\n']", "['odd']['é']"]
    search(page, "attn/kernel")
    page.get_by_role("button", name="Select all matches").click()
    assert mask() == [f"['layers'][{i}]['attn']['kernel']" for i in range(3)]
    page.locator(".tools summary", has_text="Copy").click()
    paths = copied(page, lambda: page.get_by_role("button", name="all matches: 3 paths").click())
    assert all(eval(path) is params["layers"][i]["attn"]["kernel"] for i, path in enumerate(paths.splitlines()))
    search(page, "embed")
    page.locator(".tools summary", has_text="Copy").click()
    one = settled(page).locator(".menu .link", has_text="all matches").inner_text()
    assert one == "all matches: params['embed']", "one match is its path"
    # A menu that is gone before its event comes: the window watches for errors.
    page.locator(".tools .menu").first.evaluate("""(menu) => {
        menu.open = !menu.open;
        menu.remove();
        return new Promise((resolve) => menu.addEventListener("toggle", () => requestAnimationFrame(resolve)));
    }""")


def test_what_an_opaque_leaf_holds_is_shown_in_its_row_and_its_detail(shown):
    page = shown({"config": SimpleNamespace(lr=0.1, name="</script>")})
    within = row(page, "config").locator(".within")
    assert within.inner_text() == "· lr=0.1 · name='</script>'" and within.bounding_box()["width"] > 100
    row(page, "config").click()
    said = settled(page).locator(".detail").inner_text()
    assert re.search(r"inside \(invisible to JAX\)\s+lr\s+0\.1\s+name\s+'</script>'", said)


@pytest.mark.skipif(len(jax.devices()) < 8, reason="needs eight devices")
def test_the_detail_of_an_array_names_its_devices_and_has_no_empty_numbers(shown):
    places = [NamedSharding(Mesh(np.array(jax.devices()[i : i + 2]), ("x",)), PartitionSpec("x")) for i in (2, 4)]
    tree = {f"w{i}": jax.device_put(np.ones((2, i + 1), np.float32), place) for i, place in enumerate(places)}
    page = shown({**tree, "host": np.ones(3)})
    said = {}
    for name in ("w0", "host", "params"):
        row(page, name).click()
        lines = settled(page).locator(".detail dl").first.locator("dt, dd").all_inner_texts()
        said[name] = dict(zip(lines[::2], lines[1::2], strict=True))
    assert (said["w0"]["devices"], said["w0"]["bytes/device"]) == ("cpu:2–3 (x=2)", "4 B")
    assert said["host"]["host"] == "24 B" and "bytes/device" not in said["host"]
    assert said["params"]["spread"] == "4 B on cpu:2–3, 8 B on cpu:4–5" and said["params"]["devices"] == "4"


def test_a_shared_leaf_leads_to_where_it_was_first(shown):
    w = np.zeros(4)
    page = shown({"first": {"w": w}, "second": {"w": w}}, depth=1)
    row(page, "second").dblclick()
    row(page, "w").click()
    page.locator(".detail").get_by_role("button", name="go to params['first']['w']").click()
    assert settled(page).locator(".detail code").first.inner_text() == "params['first']['w']"
    assert labels(page) == ["params", "first", "w", "second", "w"]


def test_values_run_in_a_sandbox(shown):
    script = "here.textContent = 'drawn'; try { parent.document.title = 'broken' } catch {}"
    html = f"<p id=here>before</p><script>{script}</script>"
    page = shown(model(), values={1: html})
    title = page.title()
    row(page, "embed").click()
    page.frame_locator("iframe").get_by_text("drawn").wait_for()
    assert page.title() == title


def test_keys_typed_in_the_view_stay_in_it(shown):
    page = shown(model())
    page.evaluate("() => { window.heard = []; document.addEventListener('keydown', (event) => heard.push(event.key)) }")
    page.locator(".tree").focus()
    page.keyboard.type("b*/x")
    page.keyboard.press("Enter")
    page.locator(".tree").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Control+c")
    page.keyboard.press("/")
    page.keyboard.press("Control+a")
    assert page.evaluate("() => heard") == ["Control", "Control"]
    page.locator(".tree").focus()
    for key in ("Control+s", "Shift+Enter", "Alt+Enter", "F5"):
        page.evaluate("() => { heard.length = 0; document.addEventListener('keydown', (e) => e.preventDefault()) }")
        page.keyboard.press(key)
        assert page.evaluate("() => heard").pop() == key.split("+")[-1], "what means nothing here is the notebook's"
    page.locator("div.treeviz[data-lm-suppress-shortcuts=true]").wait_for(state="attached")


@pytest.mark.parametrize("width", [320, 900])
def test_no_accessibility_rule_is_broken(shown, shots, width):
    tree = {**model(1), "o": {1, 2}, "t": "text", "k": [np.zeros(3)] * 2}
    page = shown(tree, stats=True, check=True, width=width)
    for number, there in enumerate(("plain", "searched", "detailed", "columns")):
        if there == "searched":
            search(page, "kernel")
        if there == "detailed":
            row(page, "kernel").first.click()
        if there == "columns":
            open_menu(page, "View")
            page.get_by_role("checkbox", name="bytes", exact=True).wait_for()
        theme = in_a_theme(page, number, width // 600)
        shots(page, f"{there}-{width}-{theme}.png")
        assert violations(page) == [], (there, theme)


def test_names_are_whole_and_what_does_not_fit_is_to_their_right(shown):
    page = shown(model(), width=480)
    titles = ["name", "type", "elements", "bytes"]
    assert settled(page).locator(".head button").all_inner_texts() == ["name", "type", "bytes"]
    assert box(page, ".tools")["height"] <= 70, "two lines"
    end = box(page, "#row1 .bytes")
    assert end["x"] + end["width"] <= 480 and page.get_by_role("button", name=" ›").is_hidden()
    open_menu(page, "View")
    page.get_by_role("checkbox", name="elements").check()
    assert settled(page).locator(".head button").all_inner_texts() == titles
    cut = "(parts) => parts.filter((part) => part.scrollWidth > part.clientWidth).map((part) => part.textContent)"
    assert page.locator(".row .key, .row .type > *, .scroller").evaluate_all(cut) == []
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 480
    page.set_viewport_size({"width": 400, "height": 700})
    before = box(page, "#row1 .key")["x"], box(page, "#row1 .bytes")["x"]
    page.get_by_role("button", name=" ›").click()
    after = box(page, "#row1 .key")["x"], box(page, "#row1 .bytes")["x"]
    assert after[0] == before[0] and after[1] < before[1]
    page.set_viewport_size({"width": 1200, "height": 700})
    page.wait_for_function(
        "() => [...document.querySelector('.treeviz').shadowRoot.querySelectorAll('button')]"
        ".some((button) => button.textContent.endsWith(' ›') && button.hidden)"
    )
    row(page, "embed").click()
    assert settled(page).locator(".head button").all_inner_texts() == titles, "details take no column away"


def moved():
    tree = model()
    tree["layers"][1]["attn"]["bias"][3] = 2.5
    return tree


def with_extra(key, value=1.0):
    return moved() | {key: np.full(3, value)}


def with_counts():
    """As of what a step costs: large arrays, and numbers that are no sizes."""
    table = treeviz.walk({f"layer{i}": {"kernel": jax.ShapeDtypeStruct((128_256, 8192), "float32")} for i in range(3)})
    names = ("forward", "backward", "kept", "moved")
    counts = [Column(name, name, np.full(len(table), 1e9), format="count", rollup="max") for name in names]
    return View(table.with_columns(*counts), counts)


ASKED = {
    "counts": (with_counts, ["forward"]),
    "other trees": (lambda: treeviz.render(model(), grads=model(), stats=True), ["rms"]),
    "statistics": (lambda: treeviz.render(model(), stats=True), ["rms"]),
    "statistics with a NaN": (lambda: treeviz.render(with_extra("e", np.nan), stats=True), ["NaN"]),
    "in_axes": (
        lambda: treeviz.overlay(
            ({"embed": None, "layers": {"attn": 0, "mlp": None}, "norm": None},),
            (dict(model(), layers=model()["layers"][0]),),
        ),
        ["in_axes"],
    ),
    "differences": (lambda: treeviz.diff(model(), moved()), ["diff", "first", "other"]),
    "several trees": (
        lambda: treeviz.diff(model(), *(with_extra(f"embedding_of_positions_{i}") for i in (1, 2))),
        ["tree 1", "tree 2"],
    ),
}


@pytest.mark.parametrize("what", ASKED)
def test_what_was_asked_for_comes_first_where_not_all_columns_fit(open_page, what):
    make, asked = ASKED[what]
    view = make()
    page = opened(open_page(as_page(view) if type(view) is View else view.html(), width=480))
    heads = page.locator(".head button")
    titles = heads.all_inner_texts()
    first = ["type", *asked] if asked[0] in ("rms", "NaN", "forward") else [*asked, "type"]
    assert titles[: len(first) + 1] == ["name", *first], "numbers stand behind the type, words before it"
    if asked[0] == "diff":
        assert "value" in row(page, "bias").locator(".cell").all_inner_texts(), "there is no room for the badge"
        titles.remove("diff")
    assert box(page, f".head button:nth-child({titles.index(asked[-1]) + 1}) i")["x"] < 475
    clipped = page.locator(".row .what").evaluate_all(
        """(parts) => parts.filter((part) => part.getBoundingClientRect().right > 474)
            .filter((part) => part.getBoundingClientRect().left < 470).map((part) => part.textContent)"""
    )
    assert clipped == [], "a type that is cut ends in dots, for a part of a shape would be read as another shape"
    page.set_viewport_size({"width": 1400, "height": 700})
    page.wait_for_function(f"() => {IN_VIEW}.querySelector('.head').children[1].textContent === 'type'")
    assert sorted(settled(page).locator(".head button").all_inner_texts()) == sorted(
        titles + ["elements"] * what.startswith("statistics")
    )


def test_a_mismatch_has_a_mark_on_a_phone_also_where_it_is_in_a_closed_node(open_page):
    tree = model()
    tree["layers"][1]["attn"]["bias"] = np.ones(7)
    spec = {"embed": None, "layers": [{"attn": 0, "mlp": None}] * 3, "norm": None}
    page = opened(open_page(treeviz.overlay((spec,), (tree,)).html(), width=480))
    assert page.locator(".headline .bad").all_inner_texts() == ["1 mismatch: 1 size"]
    titles = page.locator(".head button").all_inner_texts()
    assert titles.index("in_axes") == 2 and box(page, ".head button:nth-child(3) i")["x"] < 470
    open_menu(page, "View")
    page.get_by_role("combobox", name="Expand to level").select_option("1")
    settled(page).locator(".row .badge.inside").first.click()
    marks = settled(page).locator(".row .cell.findings .badge:not(.inside)")
    assert marks.all_inner_texts() == ["size"] and "axis 0 has 7" in (marks.first.get_attribute("title") or "")


def test_a_column_that_the_reader_chooses_comes_into_sight_on_a_phone(shown):
    page = shown(model(), width=400)
    open_menu(page, "View")
    page.get_by_role("checkbox", name="dtype").check()
    end = box(page, "#row1 .label")
    assert end["x"] + end["width"] < 400 and page.get_by_role("button", name="+1 ›").is_visible()


def test_a_view_is_as_wide_as_its_columns_and_has_its_details_beside_them(shown):
    page = shown(model(), width=1920)
    columns = box(page, ".scroller")
    assert columns["width"] < 1100 and box(page, ".tools")["width"] == pytest.approx(columns["width"], abs=1)
    row(page, "embed").click()
    assert box(page, ".scroller") == pytest.approx(columns, abs=1)
    assert columns["x"] + columns["width"] <= box(page, ".side")["x"] + 1
    assert box(page, ".side")["width"] > 500
    for width in (700, 1300):
        page.set_viewport_size({"width": width, "height": 700})
        page.wait_for_function(
            "(width) => { const root = document.querySelector('.treeviz').shadowRoot.querySelector('.treeviz');"
            "return Math.abs(width - 16 - root.offsetWidth) < 2 }",
            arg=width,
        )


def test_a_static_field_that_no_row_has_room_for_makes_no_type_wide(shown):
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Trained:
        params: dict
        short: str = dataclasses.field(default="s", metadata={"static": True})
        long: str = dataclasses.field(default="l" * 200, metadata={"static": True})

    page = shown(Trained(model()), width=1400)
    assert "short='s'" in row(page, "params").first.inner_text()
    numbers, frame = box(page, ".head .bytes"), box(page, ".tools")
    # The type has what is left, so that numbers end where the frame does, which is as wide as that of any tree.
    assert 0 <= frame["x"] + frame["width"] - numbers["x"] - numbers["width"] < 40 and frame["width"] < 1100


def test_the_chosen_row_stays_in_sight_though_its_details_are_longer_than_those_before(shown):
    tree = {f"a{i:02}": i for i in range(14)} | {"b": {"c": np.ones((2, 3), np.float32)}} | {"d": list(range(9))}
    page = shown(tree, stats=True, width=480, height=1000)
    row(page, "a01").click()
    height = box(page, ".side")["height"]
    for _ in range(14):
        page.keyboard.press("ArrowDown")
        place, rows = box(page, ".window .row.active"), box(page, ".scroller")
        assert rows["y"] <= place["y"] and place["y"] + place["height"] <= rows["y"] + rows["height"] + 1
    assert box(page, ".side")["height"] > height


def test_on_a_phone_the_details_have_the_same_room_below_few_rows_and_many(shown):
    heights = []
    for n in (20, 2000):
        page = shown([np.float32(i) for i in range(n)], width=480, depth=1)
        row(page, "[3]").click()
        heights.append(box(page, ".side")["height"])
    assert heights[0] == pytest.approx(heights[1], abs=1) and heights[0] > 150


@pytest.mark.parametrize("widths", [(390, 740, 1400), (480, 960)])
def test_no_column_of_numbers_goes_for_a_name_that_is_cut_anyway(shown, widths):
    page = shown({"x" * 300: np.ones(3), "b": {"other": np.zeros(2)}}, stats=True, width=widths[0])
    for width in widths:
        page.set_viewport_size({"width": width, "height": 760})
        view, numbers = box(page, ".scroller"), settled(page).locator(".head :is(.bytes, .number)").all()
        ends = [place["x"] + place["width"] for place in (each.bounding_box() for each in numbers) if place]
        assert sum(end <= view["x"] + view["width"] for end in ends) >= min(4, width // 390), width
    page.locator(".window .row .key", has_text="xx").hover()
    key = settled(page).locator(".window .row .key", has_text="xx")
    name, path = key.get_attribute("title").split("\n")
    assert re.fullmatch(r"x{150,}… \(300 characters\)", name) and path == "treeviz.child(params, 1)"
    assert len(key.inner_text()) < len(name)


def test_the_range_of_numbers_that_differ_little_is_no_single_number(shown):
    tree = {"layers": [{"w": np.array([0.0, i]), "v": np.full(2, 2.0)} for i in (1.001, 1.002, 1.004)], "b": np.ones(1)}
    page = shown(tree, stats=True, width=1400)
    titles, texts = page.locator(".head button").all_inner_texts(), row(page, "w").locator(".cell").all_inner_texts()
    cells = dict(zip(titles, texts, strict=True))
    assert (cells["min"], cells["max"]) == ("0", "1.001–1.004"), "four digits where two would be the same"
    assert "1.001–1.004" in treeviz.render(tree, stats=True).text()


def test_a_part_of_the_headline_is_on_one_line_if_it_fits(shown):
    page = shown(model(), stats=True, width=300)
    for width in range(300, 700, 20):
        page.set_viewport_size({"width": width, "height": 760})
        parts = settled(page).locator(".headline span")
        heights = parts.evaluate_all("(parts) => parts.map((part) => part.getBoundingClientRect().height)")
        assert len(heights) > 1 and {*heights} == {heights[0]} and heights[0] < 30, width


def test_the_tools_take_one_line_at_every_width(shown):
    layer = {"kernel": np.ones((3, 4)), "bias": np.ones(3)}
    page = shown({f"layer_{i}": layer for i in range(4)} | {"head": np.ones(3)}, stats=True, width=360)
    for width in (360, 390, 480):
        settled(page).set_viewport_size({"width": width, "height": 760})
        assert settled(page).get_by_role("button", name="›").is_visible(), width
        assert page.get_by_text("unfold", exact=True).is_visible(), width
        assert box(page, ".tools")["height"] <= 3 + 28 + 6 + 1, width


@pytest.mark.parametrize("width", [390, 480])
def test_names_that_begin_and_end_alike_are_cut_so_that_they_differ(shown, width):
    names = [
        f"https://storage.example.com/checkpoints/experiment_{i}/of/a/run/part-00001-of-00010.npz" for i in range(9)
    ]
    page = shown({name: {"w": np.ones(i + 1)} for i, name in enumerate(names)}, width=width)
    cut = page.locator(".window .row .key", has_text="…")
    assert [re.search(r"_(\d)/", text)[1] for text in cut.all_inner_texts()] == [*"012345678"]
    number = """(keys) => keys.map((key) => {
        const [range, text, at] = [new Range(), key.firstChild, key.textContent.search(/_\\d/)];
        range.setStart(text, at + 1), range.setEnd(text, at + 2);
        return range.getBoundingClientRect().right <= key.getBoundingClientRect().right - 12;
    })"""
    assert cut.evaluate_all(number) == [True] * 9


def test_names_that_are_fitted_leave_room_to_scroll_the_other_columns_through(shown):
    page = shown({"n" * 200: np.ones(3), "b": np.ones(2)}, stats=True, width=900)
    page.locator(".head .key i").dblclick()
    more = page.get_by_role("button", name="›")
    for _ in range(20):
        if more.is_visible():
            more.click()
            settled(page)
    assert not more.is_visible()
    view, last, names = box(page, ".scroller"), settled(page).locator(".head button").last, box(page, "#row0 .key")
    end = last.bounding_box()
    assert names["x"] + names["width"] <= end["x"] and end["x"] + end["width"] <= view["x"] + view["width"] + 1


def test_an_edge_is_dragged_and_a_double_click_fits_its_column(shown):
    page = shown(model())
    edge, names = page.locator(".head .key i"), labels(page)
    width = box(page, "#row0 .key")["width"]
    place = edge.bounding_box()
    page.mouse.move(place["x"] + 4, place["y"] + 9)
    page.mouse.down()
    page.mouse.move(place["x"] + 104, place["y"] + 9)
    page.mouse.up()
    assert box(page, "#row0 .key")["width"] == pytest.approx(width + 100, abs=1), "it stays under the pointer"
    edge.dblclick()
    assert box(page, "#row0 .key")["width"] == pytest.approx(width, abs=16)
    assert labels(page) == names, "nothing was sorted"


def test_the_ancestors_of_the_rows_on_the_screen_stay_in_sight(shown):
    page = shown(model(6), height=400)
    assert page.locator(".above .key").all_inner_texts() == []
    scroll_to(page, 24 * 11)
    assert page.locator(".above .key").all_inner_texts() == ["layers", "[1]", "attn"]
    place = box(page, ".above")
    page.mouse.click(place["x"] + 60, place["y"] + 11)
    assert active(page) == "layers" and box(page, ".row.active")["y"] >= place["y"]
    page.locator(".tree").focus()
    page.keyboard.press("End")
    for _ in range(30):
        page.keyboard.press("ArrowUp")
    covered = box(page, ".above .row:last-child")
    assert box(page, ".window .row.active")["y"] >= covered["y"] + covered["height"] - 1


def test_what_stands_under_the_pointer_is_whole(shown):
    weight = np.ones((2, 3), np.float32)
    page = shown({"a": weight, "b": {"tied": weight}}, width=1400)
    badge = row(page, "tied").locator(".badge").get_attribute("title")
    assert badge == "the same object as ['a']", "a sentence, with its end"
    titles = [each.get_attribute("title") for each in page.locator(".head .number, .head .bytes").all()]
    assert titles and all(re.search(r"\nSort by \w+ \(Shift: leaves only\)$", title) for title in titles)
    assert page.get_by_role("button", name="›").count() == 0
    settled(page).set_viewport_size({"width": 360, "height": 600})
    assert settled(page).get_by_role("button", name="›").get_attribute("title") == "More columns to the right: 1"
    page.set_viewport_size({"width": 112, "height": 600})
    assert (
        len({each["y"] for each in [title.bounding_box() for title in settled(page).locator(".head button").all()]})
        == 1
    )


def test_dark_follows_the_host(shown):
    page = shown(model())
    root = page.locator("div.treeviz").last
    assert "dark" not in root.get_attribute("class")
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("() => document.querySelector('.treeviz').shadowRoot.querySelector('.treeviz.dark')")


def test_an_edge_is_dragged_on_where_columns_stand_before_the_type(open_page):
    page = opened(open_page(treeviz.diff(model(), moved()).html(), width=480))
    titles = settled(page).locator(".head button").all_inner_texts()
    assert titles.index("type") > 1 and page.get_by_role("button", name="›").is_visible()
    width = box(page, ".head .key")["width"]
    edge = box(page, ".head .key i")
    x, y = edge["x"] + 4, edge["y"] + 8
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 120, y, steps=6)
    page.mouse.up()
    assert box(page, ".head .key")["width"] == pytest.approx(width + 120, abs=1)
    assert settled(page).locator(".head button").all_inner_texts() == titles


def test_a_print_is_light_and_begins_with_what_a_check_has_found(shown):
    a = jax.numpy.ones(3)
    page = shown({"a": a, "b": np.ones(3), "c": np.array([object()]), "d": {"e": a}}, check=True, dark=True)
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    found = settled(page).locator(".printed p").all_inner_texts()
    texts = ["['b']: T203: JAX converts float64 to float32", "['c']: T130: dtype object is not a valid JAX type"]
    assert found[:2] == [f"info params{text}" for text in texts]
    assert found[2:] == ["shared params['d']['e']: T211: the same object as params['a']"], "it has no link on paper"
    assert box(page, ".printed")["y"] < box(page, ".head")["y"] and box(page, ".printed")["height"] > 20
    assert page.locator(".treeviz.dark").count() == 0
    page.evaluate("() => dispatchEvent(new Event('afterprint'))")
    assert page.locator(".treeviz.dark").count() == 1
    page.emulate_media(media="screen", color_scheme="dark")
    assert page.locator(".printed").is_hidden()


def test_on_paper_stand_all_rows_in_sight(shown):
    page = shown(list(range(500)), depth=1)
    page.emulate_media(media="print")
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    assert settled(page).locator(".row").count() == 501
    assert page.locator(".tools").is_hidden()
    page.emulate_media(media="screen")
    page.evaluate("() => dispatchEvent(new Event('afterprint'))")
    assert settled(page).locator(".row").count() < 60


def test_on_paper_guides_bars_and_lines_are_printed_also_where_backgrounds_are_not(shown):
    page = shown(model(), stats=True)
    on_screen = (
        settled(page).locator(".window .key").first.evaluate("(cell) => getComputedStyle(cell).printColorAdjust")
    )
    page.emulate_media(media="print")
    on_paper = (
        settled(page)
        .locator(".window .cell")
        .evaluate_all("(cells) => [...new Set(cells.map((cell) => getComputedStyle(cell).printColorAdjust))]")
    )
    assert on_screen == "economy" and on_paper == ["exact"]


def test_on_paper_each_column_is_whole_or_left_out(shown):
    page = shown(model(), stats=True)
    assert page.locator(".head button").count() > 9
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert 6 < settled(page).locator(".head button").count() < 11
    view, last = box(page, "div.treeviz div.treeviz"), box(page, ".head button:last-child")
    edge = 12  # of a title, to drag
    assert last["x"] + last["width"] - edge <= view["x"] + view["width"] <= 1060


# The page's surroundings


def test_a_column_of_words_is_as_wide_as_those_of_open_rows_wherever_the_reader_scrolls(shown):
    def word(x):
        return "a word that is long" if x.size == 1 else "a"

    tree = {f"w{i:02}": np.zeros(2 + i) for i in range(60)} | {"x": {"closed": np.zeros(1)}}
    window = {"viewport": {"width": 480, "height": 300}}
    page = shown(tree, columns=[treeviz.column(word, title="word")], depth=1, **window)

    def width():
        return settled(page).locator(".head .cell.label").bounding_box()["width"]

    before = width()
    page.locator(".scroller").evaluate("scroller => scroller.scrollTo(0, 9999)")
    assert width() == before
    page.locator(".tree").press("End")
    page.keyboard.press("Escape")  # the details take room
    assert width() == before
    page.locator(".tree").press("ArrowRight")
    long = settled(page).locator(".window .cell.label", has_text="long").last
    assert long.evaluate("(cell) => cell.scrollWidth <= cell.clientWidth")


def test_without_scripts_the_plain_rows_stand(open_page, shots):
    view = treeviz.render(model(), name="params")
    page = open_page(view.html(), java_script_enabled=False)
    assert page.locator("summary", has_text="params: dict").is_visible()
    shots(page, "plain.png")


def test_what_cannot_start_says_so_and_leaves_the_plain_rows(open_page):
    html = treeviz.render(model()).html()
    broken = re.sub(r"(text/plain>)[^<]{40}", r"\1" + "A" * 40, html)
    page = open_page(broken, alone=True)
    page.get_by_text("The view cannot start: its data is damaged.").wait_for()
    page.locator("summary", has_text="tree: dict").wait_for()


def test_an_old_browser_shows_the_plain_rows_and_says_why(open_page):
    html = treeviz.render(model()).html()
    page = open_page(
        re.sub(r'<meta http-equiv="Content-Security[^>]*>', "<script>delete window.DecompressionStream</script>", html),
        alone=True,
    )
    page.get_by_text("The view cannot start (old browser").wait_for()
    page.locator("summary", has_text="tree: dict").wait_for()


def test_the_plain_rows_do_not_flash_up_before_the_view_and_stand_where_none_comes(open_page):
    look = "self.first = getComputedStyle(document.querySelector('pre')).display"
    look = f"<script>addEventListener('DOMContentLoaded', () => ({look}))</script>"
    html = re.sub(r'<meta http-equiv="Content-Security[^>]*>', look, treeviz.render(model()).html())
    page = open_page(html.replace("type=text/treeviz", "type=text/lost"), alone=True)
    page.locator("summary", has_text="tree: dict").wait_for()
    assert page.evaluate("first") == "none"


def test_one_output_shown_twice_and_another_are_three_views(open_page):
    one, other = (treeviz.render(tree, name=name)._repr_html_() for name, tree in (("one", model()), ("other", [1])))
    page = open_page(f"<!DOCTYPE html><title>t</title>{one}{one}{other}<p style=height:2000px>")
    opened(page, 3)
    assert page.locator(".headline b").all_inner_texts() == ["one", "one", "other"]
    tools, few = page.locator(".few > .tools"), page.locator(".few")
    assert box(page, ".few")["height"] == 1 + 28 + 26 + 2 * 24 + 1, "the headline, the titles and the rows"
    assert tools.evaluate("(tools) => getComputedStyle(tools).opacity") == "0"
    few.hover()
    assert tools.evaluate("(tools) => getComputedStyle(tools).opacity") == "1"
    page.get_by_role("tree").first.hover()
    page.mouse.wheel(0, 500)
    page.wait_for_function(
        "() => document.querySelector('.treeviz').shadowRoot.querySelector('.scroller').scrollTop > 0"
    )
    page.mouse.wheel(0, 50)
    page.wait_for_function("() => scrollY > 0")  # at the end of the view the notebook scrolls on
    row(page, "layers").last.dblclick()
    assert labels(page).count("attn") in (3, 6, 9)
    ids = page.evaluate("() => [...document.querySelectorAll('[id]')].map((element) => element.id)")
    assert ids == []


def test_the_tools_of_a_few_rows_are_one_line_above_them_on_a_phone(open_page):
    page = opened(open_page(f"<!DOCTYPE html><title>t</title>{treeviz.render([1])._repr_html_()}", width=360))
    assert box(page, ".few > .tools")["height"] < 30 < box(page, ".head")["y"]


def test_an_output_leaves_no_global_and_no_style_behind_and_is_saved_as_a_page(open_page, tmp_path):
    output = treeviz.render(model())._repr_html_()
    page = open_page(
        f"<!DOCTYPE html><title>t</title><script>window.before = Object.keys(window)</script><div>{output}</div>"
    )
    opened(page)
    assert page.evaluate("() => Object.keys(window).filter((name) => !before.includes(name))") == ["before"]
    assert page.evaluate("() => document.styleSheets.length + document.adoptedStyleSheets.length") == 0
    seen = labels(page)
    with page.expect_download() as download:
        choose(page, "Export", "Page (HTML)")
    download.value.save_as(tmp_path / "saved.html")
    page.goto((tmp_path / "saved.html").as_uri())
    assert labels(opened(page))[: len(seen)] == seen and page.title() == "tree"
    open_menu(page, "Export")
    assert page.get_by_role("button", name="Page (HTML)").count() == 0, "it is one"


def test_taking_a_view_away_puts_back_what_stood_there(parts):
    packed = b64encode(pack(View(treeviz.walk(model()), []))).decode()
    told = parts.evaluate(
        """async (text) => {
            const host = document.getElementById('host');
            host.innerHTML = '<p>before</p>';
            const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
            const has_rows = (host) => !!host.shadowRoot?.querySelector('.row');
            const shows = () => [host.innerText, has_rows(host)];
            const frame = () => new Promise(requestAnimationFrame);
            const told = [];
            for (let i = 0; i < 2; i++) {
                const unmount = parts.mount(host, Promise.resolve(bytes));
                while (!has_rows(host)) await frame();
                told.push(shows());
                unmount(); told.push(shows());
            }
            parts.mount(host, bytes)();
            // What was mounted before another view would be there by the time that the other one is.
            const other = document.body.appendChild(document.createElement('div'));
            parts.mount(other, bytes);
            while (!has_rows(other)) await frame();
            told.push(shows());
            return told;
        }""",
        packed,
    )
    assert told == [["", True], ["before", False], ["", True], ["before", False], ["before", False]]


@pytest.mark.parametrize("stats", [False, True])
def test_nothing_in_a_hostile_tree_runs(shown, stats):
    evil = {text: {"value": text, "in a list": [text]} for text in EVIL_TEXTS.values()}
    evil["hidden"] = type("<img src=x onerror=alert(1)>", (), {"__module__": "</script><script>alert(2)</script>"})()
    page = shown(evil, name="</title><script>alert(3)</script>", stats=stats, depth=3, alone=True)
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    page.locator(".tree").focus()
    for _ in range(len(labels(page))):
        page.keyboard.press("ArrowDown")
    search(page, "<img")
    assert settled(page).locator(".row.hit").count() >= 2
    assert page.locator("img, script[src]").count() == 0


@pytest.fixture(scope="module")
def window(chromium):
    """One window for many views, and what went wrong in it. It is small: nobody looks at what is drawn."""
    context = new_context(chromium, viewport={"width": 800, "height": 400})
    watch = Watch(context)
    yield context.new_page(), watch
    context.close()


MOUNT = f"""<!DOCTYPE html><title>t</title><script type=module>{module_text()}
    window.show = (text) => {{
        window.end?.();
        document.querySelector(".treeviz")?.remove();
        const host = document.body.appendChild(document.createElement("div"));
        [host.className, host.dataset.page] = ["treeviz", ""];
        window.end = mount(host, Uint8Array.from(atob(text), (c) => c.charCodeAt(0)));
    }};</script>"""


@pytest.mark.parametrize("name", sorted(SAMPLES, key=lambda name: ("evil" in name, name)))
def test_every_tree_opens(window, tmp_path, name):
    page, watch = window
    view = treeviz.render(SAMPLES[name](), depth=2)
    if "evil" in name:  # what could break out of a page is in one of its own
        page.goto(view.save(tmp_path / "tree.html").as_uri())
    else:
        if not page.evaluate("() => 'show' in window"):
            page.set_content(MOUNT)
            page.wait_for_function("() => window.show")
        page.evaluate("(text) => show(text)", b64encode(pack(view)).decode())
    opened(page)
    assert page.evaluate(f"() => {IN_VIEW}.querySelector('.row .key').textContent") == "tree"
    for part in (
        ".row:last-child",
        "summary[title=View]",
        ".menu[open] button",
    ):  # to find them by locators takes as long as the page
        place = page.evaluate(f"(part) => {IN_VIEW}.querySelector(part).getBoundingClientRect().toJSON()", part)
        page.mouse.click(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
        settled(page)
    assert watch.troubles == []


def test_a_page_of_much_data_shows_all_of_it(shown):
    rng = np.random.default_rng(0)
    tree = {f"{number:016x}": np.ones(2) for number in rng.integers(0, 2**60, 6000)}
    data = pack(treeviz.render(tree))
    assert len(data) > 40_000  # so that it is made text of in chunks
    page = shown(tree, alone=True)
    for name in min(tree), max(tree):
        search(page, name)
        assert labels(page) == ["params", name]
