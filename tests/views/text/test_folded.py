"""Repeats in text, pictures and plain HTML: one row for many, and what it says of all of them."""

import json
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import treeviz
from treeviz.tree.series import FindingMark, Series
from treeviz.views.html.page import outline
from treeviz.views.text.rows import folded, open_first
from treeviz.views.text.text import text
from treeviz.views.view import View

OPEN = json.loads((Path(__file__).parents[2] / "open_cases.json").read_text("utf-8"))
layer = st.sampled_from([{"w": np.ones(3), "b": np.ones(2)}, {"w": np.ones(3), "b": [np.ones(2)] * 3}, 1.0, [None]])
trees = st.lists(st.one_of(layer, st.lists(layer, max_size=5)), max_size=8)


def layers(n=12):
    return {"layers": [{"b": np.zeros(2, np.float32), "w": np.full((2, 2), 1 + i, np.float32)} for i in range(n)]}


def test_a_row_says_how_many_it_stands_for_their_sum_and_the_range_of_their_values():
    tree = {**layers(), "head": np.full(2, 0.5, np.float32)}
    tree["layers"][7]["w"][0, 1] = np.nan
    tree["layers"][9]["w"] *= 100
    view = treeviz.render(tree, stats=True, columns=["bytes", "rms", "nan"])
    assert view.text(width=100) == textwrap.dedent("""\
        tree · 25 leaves · 74 elements · 296 B · float32 100 % · NaN in 1 leaf · no Inf
                                              bytes                 rms  NaN
        tree              dict                296 B  ████████     234.1    1
        ├─ head           float32[2] numpy      8 B  ▎              0.5    0
        └─ layers         list                288 B  ███████▊     237.4    1
           ├─ [0…11] ×11  dict · 24 B each    264 B  ███████▏  0.82–820    0  [9] rms: 170 × the median
           │  ├─ b        float32[2] numpy      8 B  ▎                0    0
           │  └─ w        float32[2,2] numpy   16 B  ▍           1–1000    0
           └─ [7]         dict                 24 B  ▋            6.197    1
              ├─ b        float32[2] numpy      8 B  ▎                0    0
              └─ w        float32[2,2] numpy   16 B  ▍                8    1  NaN: 1 of 4 values""")


def test_a_note_about_some_of_many_says_of_how_many():
    shared = np.ones(3)
    lines = treeviz.render([{"a": np.ones(2), "b": shared} for _ in range(5)] + [shared]).text().splitlines()
    assert lines[-2].endswith("  shared") and lines[-1].endswith("shared with [0]['b']")
    lines = treeviz.render([{"a": np.ones(2), "b": np.ones(3)} for _ in range(5)] + [[shared] * 2]).text().splitlines()
    assert not any("shared" in line for line in lines[:-2])


def test_llama_3_70b_fits_one_screen():
    def linear(*shape):
        return {"weight": jax.ShapeDtypeStruct(shape, jnp.bfloat16)}

    names = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    block = {"norm": linear(8192), **{name: linear(8192, 1024) for name in names}}
    model = {"embed": linear(128256, 8192), "layers": [block] * 80, "norm": linear(8192)}
    lines = treeviz.render(model).text(width=100).splitlines()
    assert len(lines) <= 50 and any("[0…79] ×80" in line and "· 8 leaves ·" in line for line in lines)
    assert len(treeviz.render(model).text(fold=False).splitlines()) > 80 * 16
    assert "[0…79] ×80" in outline(treeviz.render(model))


@settings(deadline=None)
@given(trees)
def test_totals_stay_those_of_the_whole(tree):
    view = treeviz.render(tree)
    few = folded(view)
    for column, whole in zip(few.columns, view.columns, strict=True):
        rolled, of_whole = few.table.rolled(column), view.table.rolled(whole)
        assert rolled[0] == of_whole[0]
        for row in few.table:
            inside = [child.number for child in row.children]
            own = 0 if row.is_leaf or "×" in row.label else rolled[row.number] - sum(rolled[inside])
            assert own == 0


def marked(table, *rows):
    values = np.arange(1, 2 * len(table) + 1, dtype=np.float32).reshape(-1, 2)
    steps = np.arange(2)
    marks = tuple(FindingMark(row, 1, "exploding", "It grows.") for row in rows)
    return Series("grads.norm", "norm", steps, steps, values, np.zeros_like(values, bool), marks=marks)


def test_what_has_a_finding_stands_out_and_more_than_three_are_counted():
    table = treeviz.walk(layers())
    rows = [row.number for row in table if row.label == "w"]
    shown = text(View(table, [], series=[marked(table, rows[7])]), fold=True)
    assert "├─ [0…11] ×11" in shown and "└─ [7]" in shown
    assert shown.index("[0…11]") < shown.index("[7]")
    shown = text(View(table, [], series=[marked(table, *rows[:2:-1])]), fold=True)
    assert "[0…8] ×9" in shown and "⚠6" in shown and "─ [11]" in shown and "─ [8]" not in shown


def test_a_row_has_the_highest_sparkline_of_all_and_the_range_of_their_last_values():
    table = treeviz.walk([1.0, 1.0, 1.0])
    few = folded(View(table, [], series=[marked(table)]))
    assert few.series[0].values.tolist() == [[1, 2], [7, 8]]
    assert "4–8" in text(few)


def test_the_largest_leaf_and_the_leaf_with_nan_are_shown_whatever_is_left_out():
    tree = {f"k{i}": np.zeros(3 + i % 2) for i in range(500)}
    tree |= {"k77": np.array([np.nan, 1.0]), "k99": np.zeros(1000)}
    shown = treeviz.render(tree, stats=True).text(max_rows=20)
    assert "├─ k77 " in shown and "├─ k99 " in shown and len(shown.splitlines()) == 22
    nested = {f"n{i}": {f"k{j}": np.zeros(3 + (i + j) % 2) for j in range(20)} for i in range(30)}
    nested["n17"]["k13"] = np.zeros(5000)
    assert "└─ k13 " in treeviz.render(nested).text(max_rows=20) or "├─ k13 " in treeviz.render(nested).text(
        max_rows=20
    )


@pytest.mark.parametrize("case", OPEN, ids=[case["what"] for case in OPEN])
def test_what_is_open_first_is_told_by_the_cases(case):
    view = View(treeviz.walk(case["tree"]), [])
    assert np.flatnonzero(open_first(view, case["n_rows"])).tolist() == case["open"]


def test_what_holds_the_bytes_is_open_first():
    tree = {"large": {"w": np.zeros(100), "small": [1.0, 2.0]}, "tiny": [np.zeros(3), 1.0], "none": [1.0, 2.0]}
    view = treeviz.render(tree)
    opened = [view.table[row].label for row in np.flatnonzero(open_first(view, 5)).tolist()]
    assert opened == ["tree", "large"]
    assert open_first(replace_depth(view, 1)).tolist() == (view.table.depth < 1).tolist()


def replace_depth(view, depth):
    return View(view.table, view.columns, depth=depth)


@pytest.mark.parametrize("budget", [0, 300, 1500, 9999])
def test_a_text_with_a_budget_keeps_the_headline_and_what_went_wrong_and_folds_layers(budget):
    layer = {"w": np.ones((3, 4), np.float32), "b": np.ones(4, np.float32)}
    bad = {**layer, "b": np.array([1, np.nan, 1, 1], np.float32)}
    view = treeviz.render({f"part{i}": [layer] * 9 for i in range(7)} | {"z": [layer, layer, bad]}, stats=True)
    least, shown = view.text(max_rows=1), view.text(budget=budget)
    assert len(shown) <= max(budget, len(least))
    assert shown.split("\n")[0] == least.split("\n")[0]
    if budget >= 1500:
        assert "×9" in shown and "float32[4]" in shown[shown.index("z ") :]
    if budget == 9999:
        assert shown == view.text()
