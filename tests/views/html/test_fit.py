"""A page that would be too large shows the first rows of every subtree, and says what it leaves out."""

from __future__ import annotations

import numpy as np
import pytest
from test_samples import check_table, packed

import treeviz
from treeviz.views.html import fit
from treeviz.views.html.payload import pack

RNG = np.random.default_rng(0)
WIDE = {f"{RNG.integers(2**60):x}": [np.full(3, i), 0.5] for i in range(400)}


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(fit, "MAX_BYTES", 4_000)


@pytest.mark.parametrize("stats", [False, True])
def test_a_page_keeps_to_its_size_and_counts_the_rows_that_it_leaves_out(small, stats):
    view = treeviz.render(WIDE, stats=stats)
    assert len(pack(view)) > 4_000 >= len(fit.pack_within(view))
    header = packed(view.html())
    n_rows = header["buffers"][header["depth"]][1]
    assert 1_201 > n_rows > 20
    assert " of 1,201 rows are not in this page: whole=True has all" in header["headline"][-1]
    assert len(view.table) == 1_201  # the view itself has all


def test_a_keyword_puts_everything_into_the_page(small):
    view = treeviz.render(WIDE, whole=True)
    assert packed(view.html())["headline"] == list(view.table.headline)


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
