"""A page that would be too large shows the first rows of every subtree, and says what it leaves out."""

from __future__ import annotations

import numpy as np
import pytest
from test_samples import check_table, packed

import treeviz
from treeviz.tree.series import FindingMark, Histograms, Series
from treeviz.tree.walk import walk
from treeviz.views.html import page as fit
from treeviz.views.html.payload import pack
from treeviz.views.view import View

RNG = np.random.default_rng(0)
WIDE = {f"{RNG.integers(2**60):x}": [np.full(3, i), 0.5] for i in range(400)}


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(fit, "MAX_BYTES", 4_000)


@pytest.mark.parametrize(("stats", "many"), [(False, 50_000), (True, 50_000), (False, 500), (True, 500)])
def test_a_page_keeps_to_its_size_and_counts_the_rows_that_it_leaves_out(small, stats, many, monkeypatch):
    monkeypatch.setattr(fit, "_MANY", many)
    view = treeviz.render(WIDE, stats=stats)
    assert len(pack(view)) > 4_000 >= len(fit.pack_within(view)) > 2_000
    header, _ = packed(view.html())
    n_rows = header["buffers"][header["rows"][0]][1]
    assert 1_201 > n_rows > 20
    assert " of 1,201 rows are not in this page: whole=True has all" in header["headline"][-1]
    assert len(view.table) == 1_201  # the view itself has all


def test_a_keyword_puts_everything_into_the_page(small):
    view = treeviz.render(WIDE, whole=True)
    assert packed(view.html())[0]["headline"] == list(view.table.headline)


def test_a_page_that_fits_has_all_rows_though_some_of_them_are_tried_first(monkeypatch):
    monkeypatch.setattr(fit, "_MANY", 500)
    view = treeviz.render(WIDE)
    assert fit.pack_within(view) == pack(view)


def test_rows_that_do_not_fit_leave_what_was_bad_and_found_in_them_at_the_placeholder():
    table = treeviz.walk({"a": [0.5] * 20, "b": 0.5})
    values = RNG.uniform(1, 2, (len(table), 5)).astype(np.float32)
    bad = np.zeros(values.shape, bool)
    bad[15, 2] = bad[1, 2] = bad[0, 2] = True
    marks = (FindingMark(15, 2, "nonfinite", "NaN"), FindingMark(22, 3, "exploding", "large"))
    steps = np.arange(5)
    series = Series("grads.norm", "norm", steps, steps, values, bad, low=values - 1, marks=marks)
    histograms = Histograms("bins", "bins", steps, steps, values[:, :, None], np.array([0.0, 1.0]))
    some = fit.with_first_rows(View(table, series=[series], histograms=[histograms]), 8)
    check_table(some.table)
    (cut,), rows = some.series, {row.keystr: row.number for row in some.table if row.kind != "more"}
    (placeholder,) = [row.number for row in some.table if row.kind == "more"]
    assert len(some.table) == len(rows) + 1 == len(cut.values) and "whole" not in some.table.headline[-1]
    for row in table:
        if row.keystr in rows:
            for before, after in (
                (series.values, cut.values),
                (series.low, cut.low),
                (bad, cut.bad),
                (values[:, :, None], some.histograms[0].counts),
            ):
                np.testing.assert_array_equal(after[rows[row.keystr]], before[row.number])
    assert np.isnan(cut.values[placeholder]).all() and cut.bad[placeholder].tolist() == [
        False,
        False,
        True,
        *[False] * 2,
    ]
    assert [mark.row for mark in cut.marks] == [placeholder, rows["['b']"]]


def _mixed():
    shared = {"w": np.zeros((2, 3)), "b": [1.0, None, ()]}
    return {"wide": [shared] * 30, "deep": [[[[[np.ones(3)]]], 2.0], 3.0], "leaf": np.ones(2), "z": [shared, {"x": 1}]}


@pytest.mark.parametrize("n_rows", [1, 2, 5, 12, 40, 100])
def test_the_rows_that_are_kept_are_a_tree_with_the_totals_of_the_whole(n_rows):
    view = treeviz.render(_mixed())
    table = view.table
    some = fit.with_first_rows(view, n_rows).table
    check_table(some)
    assert some[0].label == table.name and len(some) <= 2 * n_rows
    whole = {row.keystr: row for row in table}
    kept = [row for row in some if row.kind != "more"]
    assert 1 <= len(kept) < len(table)
    for row in kept:
        before = whole[row.keystr]
        for column in ("elements", "bytes", "leaves", "dtype", "kind"):
            assert row[column] == before[column]
        assert [note.kind for note in row.notes] == [note.kind for note in before.notes]
    left_out = [int(row.facts.text.split()[0]) for row in some if row.kind == "more"]
    assert all(n > 0 for n in left_out)
    assert all(len(list(row.children)) for row in kept if len(list(whole[row.keystr].children)))


@pytest.mark.parametrize(("rule", "join"), [("sum", np.nansum), ("max", np.nanmax), ("min", np.nanmin)])
def test_columns_of_every_rule_keep_their_totals(rule, join):
    values = [np.nan, *RNG.normal(size=499)]
    tree = {"a": list(range(250)), "b": [[i] for i in range(250, 500)]}
    view = treeviz.render(tree, columns=[treeviz.column(lambda i: values[i], rollup=rule, title="x", format="number")])
    some = fit.with_first_rows(view, 20).table
    np.testing.assert_allclose(some[0]["x"], join(values), rtol=1e-12)
    np.testing.assert_allclose([row["x"] for row in some if row.depth == 1], [join(values[:250]), join(values[250:])])


def test_what_is_said_of_thousands_of_rows_is_sent_once():
    table = walk([{"a": [0, 1, 2], "b": [1, 2]} for _ in range(3_000)], max_rows=10_000)
    assert len(table.notes) > 3_000
    assert len(pack(View(table, []))) < 2_000
