"""Series over steps: what is packed, and what text and plain HTML say of them."""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hostile_objects import EVIL_TEXTS
from sample_series import NAN_FROM, layers, leaf, run
from sample_trees import SAMPLES

import treeviz
from treeviz.tree.series import FindingMark, Histograms, Series, thinned
from treeviz.views.html.bundle import module_text, readable
from treeviz.views.html.page import fragment, outline, page
from treeviz.views.html.payload import MAX_CELLS as HISTOGRAM_CELLS
from treeviz.views.html.payload import MAX_COLUMNS, MAX_MARKS, MIN_COLUMNS, pack, pack_histograms, pack_series
from treeviz.views.text.cells import sparklines
from treeviz.views.text.terminal import ASCII, UNICODE
from treeviz.views.text.text import text
from treeviz.views.tree_view import TreeView
from treeviz.views.view import View


def series_of(values, *, log: bool = True, bad=None, **more) -> Series:
    values = np.atleast_2d(np.asarray(values, np.float32))
    steps = np.arange(values.shape[1])
    bad = np.isinf(values) if bad is None else np.atleast_2d(bad)
    return Series("x", "x", steps, steps, values, bad, log=log, **more)


def unpacked(series: Series):
    """The header of a packed series, and its values as the front end reads them."""
    buffers = []

    def add(array):
        buffers.append(array)
        return len(buffers) - 1

    (spec,) = pack_series([series], add)
    codes = np.cumsum(buffers[spec["codes"]], axis=1, dtype=buffers[spec["codes"]].dtype)
    places = buffers[spec["start"]][:, None] + (codes.astype(float) - 2) * buffers[spec["step"]][:, None]
    with np.errstate(all="ignore"):
        values = 10**places if spec["log"] else places
    return spec, np.where(codes == 0, np.nan, np.where(codes == 1, 0, values)), buffers


# The payload


@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("sign", [1, -1])
def test_packed_values_are_those_of_the_series_to_four_digits(log, sign):
    values = sign * 10 ** np.random.default_rng(0).uniform(-3, 1, (20, 50))
    _, told, _ = unpacked(series_of(values, log=log))
    span = np.ptp(values, axis=1, keepdims=True)
    is_log = log and sign > 0
    assert (np.abs(told - values) < (4e-4 * np.abs(values) if is_log else 3e-5 * span)).all()


def test_in_a_page_of_many_cells_a_value_takes_a_byte_and_is_within_four_percent():
    values = 10 ** np.random.default_rng(0).uniform(-3, 0, (1000, 400))
    spec, told, buffers = unpacked(series_of(values))
    assert buffers[spec["codes"]].dtype == np.uint8
    np.testing.assert_allclose(told, values, rtol=0.04)


@pytest.mark.parametrize("log", [True, False])
def test_zeros_nothing_and_extremes_survive(log):
    values = [0, np.nan, 1e-30, 1e30, np.inf, -np.inf, 0, 1]
    with np.errstate(all="raise"):
        spec, told, buffers = unpacked(series_of(values, log=False) if not log else series_of(np.abs(values)))
    expected = np.array([0, np.nan, 1e-30, 1e30, np.nan, np.nan, 0, 1])
    np.testing.assert_allclose(told[0], expected, rtol=2e-3, atol=0 if log else 1e26)
    assert buffers[spec["bad"]][0].tolist() == [False] * 4 + [True] * 2 + [False] * 2


@pytest.mark.parametrize("values", [[np.nan] * 3, [0, 0, 0], [5, 5, 5], [np.inf] * 3], ids=str)
def test_a_row_that_does_not_change_is_packed(values):
    with np.errstate(all="raise"):
        _, told, _ = unpacked(series_of(values))
    np.testing.assert_allclose(told[0], np.where(np.isfinite(values), values, np.nan), rtol=1e-6)


@pytest.mark.parametrize("n", [1, 2, 7, 100, 511])
@pytest.mark.parametrize("n_columns", [1, 3, 12])
def test_thinned_columns_sum_up_those_that_they_stand_for(n, n_columns):
    rng = np.random.default_rng(n)
    values = rng.normal(size=(5, n))
    values[rng.random(values.shape) < 0.3] = np.nan
    bad = rng.random(values.shape) < 0.05
    marks = tuple(FindingMark(0, column, "kind", "text") for column in range(n))
    thin = thinned(series_of(values, bad=bad, marks=marks, log=False), n_columns)
    assert thin.values.shape[1] <= n_columns
    assert thin.first_steps[0] == 0 and thin.last_steps[-1] == n - 1
    np.testing.assert_array_equal(thin.first_steps[1:], thin.last_steps[:-1] + 1)
    low = values if thin.low is None else thin.low
    high = values if thin.high is None else thin.high
    for column, (first, last) in enumerate(zip(thin.first_steps, thin.last_steps, strict=True)):
        for row in range(5):
            part = np.float32(values[row, first : last + 1])
            known = part[~np.isnan(part)]
            if not len(known):
                assert np.isnan([thin.values[row, column], low[row, column], high[row, column]]).all()
            else:
                assert thin.values[row, column] == known[-1]
                np.testing.assert_allclose([low[row, column], high[row, column]], [known.min(), known.max()])
            assert thin.bad[row, column] == bad[row, first : last + 1].any()
    for mark, step in zip(thin.marks, range(n), strict=True):
        assert thin.first_steps[mark.column] <= step <= thin.last_steps[mark.column]


def test_a_page_has_a_bound_however_long_the_run():
    long = series_of(np.ones((30, 20_000)), marks=tuple(FindingMark(0, i, "kind", "text") for i in range(5_000)))
    spec, _, _ = unpacked(long)
    assert spec["n"] <= MAX_COLUMNS
    assert len(spec["marks"]) == MAX_MARKS and spec["n_marks"] == 5_000
    spec, _, _ = unpacked(series_of(np.ones((60_000, 300))))
    assert spec["n"] <= MIN_COLUMNS


def test_a_page_of_a_thousand_leaves_and_four_hundred_columns_is_below_a_megabyte():
    table = layers(125)
    assert int(table.is_leaf.sum()) >= 1000
    series = run(table, 400)
    assert unpacked(series[0])[0]["n"] == 400
    assert len(page(View(table, [], series=series))) < 1_000_000


def test_pages_without_series_bring_nothing_for_them():
    table = layers()
    assert page(View(table, [], series=())) == page(View(table, []))
    empty = series_of(np.zeros((len(table), 0)))
    assert page(View(table, [], series=[empty])) == page(View(table, []))
    assert text(View(table, [], series=[empty])) == text(View(table, []))
    header = zlib.decompress(pack(View(table, [])), -15)
    assert "series" not in json.loads(header[4 : 4 + int.from_bytes(header[:4], "little")])
    assert "class HeatMap" not in module_text() and "class HeatMap" in module_text("series")


def test_the_same_series_give_the_same_page():
    assert page(View(layers(), [], series=run(layers()))) == page(View(layers(), [], series=run(layers())))


def test_the_front_end_of_series_is_a_module_as_the_other():
    module = readable("series")
    assert not re.search(r"^\s*(import|//)|/\*\*", module, re.MULTILINE)
    assert "</script" not in module


def test_a_script_without_the_modules_for_series_leaves_pages_with_series_alone():
    table = layers()
    assert 'data-treeviz="7"' in fragment(View(table, []))
    assert 'data-treeviz="7 values"' in fragment(View(table, [], values={1: ""}))
    assert 'data-treeviz="7 values"' in treeviz.render([np.ones(2)], stats=True).html()
    assert 'data-treeviz="7 series"' in fragment(View(table, [], series=run(table)))


# Text


def test_a_sparkline_goes_from_the_least_to_the_greatest():
    assert sparklines(series_of([1, 10, 100, 1000]), np.array([0]), 4) == ["▁▃▆█"]
    assert sparklines(series_of([0, 1, 2, 7], log=False), np.array([0]), 4) == ["▁▂▃█"]
    assert sparklines(series_of([1000, 100, 10, 1]), np.array([0]), 2) == ["█▁"]


def test_a_sparkline_says_zero_nothing_and_not_finite_by_shape():
    values = [0, np.nan, 1, np.nan, np.inf, 10]
    bad = [False, False, False, True, True, False]
    with np.errstate(all="raise"):
        assert sparklines(series_of(values, bad=bad), np.array([0]), 6) == ["▁ ▁××█"]


def test_a_spike_between_others_is_seen_however_few_signs_there_are():
    values = np.ones(1000)
    values[503] = 1e6
    (spark,) = sparklines(series_of(values), np.array([0]), 10)
    assert spark == "▁▁▁▁▁█▁▁▁▁"
    joined = replace(
        series_of([1, 1, 1]), low=np.ones((1, 3)), high=np.array([[1, 1e6, 1]])
    )  # as a history joins steps
    assert sparklines(joined, np.array([0]), 10) == ["▁█▁"]


def test_a_value_that_hardly_changes_is_a_line_in_the_middle():
    (spark,) = sparklines(series_of([1.0, 1.01, 0.99, 1.0]), np.array([0]), 4)
    assert set(spark) <= set("▄▅")


def test_text_has_the_last_value_and_a_sparkline_in_every_line_and_the_worst_leaves_below():
    table = treeviz.walk({"a": np.zeros(2), "b": np.zeros(2), "c": np.zeros(2)}, name="params")
    values = [[9, 9, 9, 9], [1, 2, 4, 8], [np.nan] * 4, [5, 5, 5, 5]]
    bad = np.array([[False] * 4] * 4)
    values[2][0], bad[2, 1:] = 1, True
    mark = FindingMark(1, 3, "exploding", "exploding: It doubles every step.")
    series = replace(series_of(values, bad=bad), title="grads norm", marks=(mark,))
    assert text(View(table, [], series=[series])).split("\n") == [
        "params · 3 leaves · 6 parameters · 48 B · float64 100 %",
        "                          grads norm  log scale",
        "params  dict                       9  ▅▅▅▅",
        "├─ a    float64[2] numpy           8  ▁▃▆█",
        "├─ b    float64[2] numpy     NaN/Inf  ▅×××",
        "└─ c    float64[2] numpy           5  ▅▅▅▅",
        "worst leaves by grads norm, steps 0 to 3",
        "  ['b']  NaN/Inf  ▅×××  not finite since step 1",
        "  ['a']        8  ▁▃▆█  exploding at step 3: It doubles every step.",
    ]


def test_a_leaf_that_is_finite_again_is_not_said_to_be_bad_since():
    table = treeviz.walk({"a": np.zeros(2), "b": np.zeros(2)}, name="params")
    bad = np.array([[False] * 4, [False, True, False, False], [False, True, True, True]])
    shown = text(View(table, [], series=[series_of([[9, 9, 9, 9]] * 3, bad=bad)]))
    assert "▅×▅▅  not finite at step 1" in shown and "▅×××  not finite since step 1" in shown


def test_the_worst_leaves_are_those_that_went_wrong_first_then_those_with_findings_then_the_outliers():
    table = layers()
    shown = text(View(table, [], series=run(table))).partition("worst leaves")[2].split("\n")[1:]
    assert [re.match(r"  (\S+)", line)[1] for line in shown[:3]] == [
        "['layers'][2]['down']",
        "['layers'][1]['up']",
        "['layers'][0]['bias']",
    ]
    assert f"nonfinite at steps {10 * NAN_FROM} to" in shown[0] and "exploding" in shown[1] and "dead" in shown[2]
    assert len(shown) == 3  # the others differ from layer to layer


def test_without_findings_only_a_few_leaves_that_are_far_from_the_others_stand_out():
    table = treeviz.walk({key: np.zeros(2) for key in "abcdefgh"})

    def below(*last: float) -> list[str]:
        values = np.array([[np.nan] * 4, *([[1, 1, 1, value] for value in last])])
        return text(View(table, [], series=[series_of(values)])).split("\n")[11:]

    assert below(1, 1, 2, 3, 4, 1, 1, 1) == below(1, 20, 1, 20, 1, 20, 1, 1) == []
    assert below(1, 1, 20, 3, 4, 1, 1, 0) == [
        "leaves that stand out by x, steps 0 to 3",
        "  ['h']   0  ▅▅▅▁  zero",
        "  ['c']  20  ▁▁▁█  20 × the median",
    ]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_no_line_is_wider_than_asked(width, glyphs):
    table = layers()
    shown = text(View(table, list(table.columns.values()), series=run(table)), width=width, glyphs=glyphs)
    assert max(map(len, shown.split("\n"))) <= width
    assert shown.isascii() or glyphs is UNICODE


def test_a_node_that_is_not_opened_says_how_many_findings_are_inside():
    table = layers()
    lines = text(View(table, [], series=run(table), depth=1)).split("\n")
    (line,) = [line for line in lines if "layers" in line and "list" in line]
    assert line.endswith("⚠3  … 4 inside")
    assert "finding" not in text(View(table, [], series=run(table))).partition("worst leaves")[0]


def test_colour_changes_no_character():
    table = layers()
    coloured = text(View(table, [], series=run(table)), width=100, color=True)
    assert re.sub(r"\x1b\[\d+m", "", coloured) == text(View(table, [], series=run(table)), width=100)


# Plain HTML


def test_plain_rows_say_the_last_value_the_history_and_the_first_findings():
    table = layers()
    html = outline(View(table, [], series=run(table)))
    assert "grads norm at steps 990 to 999 and since steps 0 to 9" in html
    assert "<b>nonfinite</b> ['layers'][2]['down'], steps 600 to 609: 16 of 16 elements are NaN" in html
    assert re.search(r"down: float32\[4,4\] numpy, NaN/Inf [▁-█]+×{5,}", html)
    assert set(re.findall(r"<(\w+)", html)) <= {"pre", "b", "i", "details", "summary"}


def test_plain_rows_that_are_closed_say_how_many_findings_are_inside():
    table = layers(12)  # too many to be all open at first
    html = outline(View(table, [], series=run(table)))
    counted = re.findall(r"<details><summary>\s*\[(\d+)\]: [^\n]* <b>⚠(\d+)</b>", html)
    assert counted == [("2", "1")]
    assert html.count("<b>⚠") == 1
    few = layers()
    assert "<b>⚠" not in outline(View(few, [], series=run(few)))  # all open
    shallow = outline(View(few, [], series=run(few), depth=1))
    assert re.search(r"\n\s*layers: list[^\n]*<b>⚠3</b>", shallow)
    assert "<b>⚠" not in outline(View(table, [], series=run(table, healthy=True)))


def test_plain_rows_with_series_stay_bounded():
    table = layers(125)
    assert len(outline(View(table, [], series=run(table))).encode()) < 45_000


@pytest.mark.parametrize("evil", EVIL_TEXTS.values(), ids=EVIL_TEXTS)
def test_evil_titles_kinds_and_findings_are_texts(evil):
    table = layers(1)
    series = [
        replace(run(table, healthy=True)[0], name=evil, title=evil or "x", marks=(FindingMark(1, 2, evil, evil),))
    ]
    html = page(View(table, [], series=series))
    html.encode()
    assert html.count("<script") == page(View(table, [])).count("<script")
    lines = text(View(table, [], series=series)).split("\n")
    assert len(lines) == len(text(View(table, [], series=run(table, healthy=True))).split("\n")) + len(
        ["worst", "leaf"]
    )


@pytest.mark.parametrize("name", sorted(set(SAMPLES) - {"5,000 levels of lists", "3,000 children"}))
def test_every_tree_can_have_series(name):
    table = treeviz.walk(SAMPLES[name]())
    values = np.random.default_rng(0).uniform(size=(len(table), 5))
    values[~table.is_leaf] = np.nan
    view = TreeView(table, [], series=[series_of(values)])
    assert len(view.text(fold=False).split("\n")) >= len(table)
    assert "treeviz" in view.html()
    assert view.html() == TreeView(table, [], series=[series_of(values)]).html()


def test_a_view_hands_its_series_on():
    table = layers()
    series = run(table)
    view = TreeView(table, [], series=series)
    assert "worst leaves" in view.text() and "worst leaves" in repr(view)
    assert view.html() == page(View(table, [], series=series))
    assert view._repr_html_() == fragment(View(table, [], series=series))
    assert view.series == tuple(series) and leaf(table, "layers/2/down") in {mark.row for mark in view.series[0].marks}


def test_histograms_over_time_are_packed_in_bounded_space():
    counts = np.random.default_rng(0).integers(0, 9, (500, 300, 64))
    counts[:, :, :10] = counts[:, :, 40:] = 0
    steps = np.arange(300)
    histograms = Histograms("h", "h", steps, steps, counts, 2.0 ** np.arange(65))
    buffers = []
    (spec,) = pack_histograms([histograms], lambda array: buffers.append(array) or len(buffers) - 1)
    assert spec["n_bins"] == 30 and spec["edges"] == [2.0**10, 2.0**40]
    heights = buffers[spec["heights"]]
    assert heights.size <= HISTOGRAM_CELLS and heights.dtype == np.uint8
    width = int(np.diff(buffers[spec["first"]])[0])
    joined = counts[7, :width, 10:40].sum(0)
    np.testing.assert_array_equal(heights[7, 0], np.ceil(15 * joined / joined.max()))
    empty = Histograms("h", "h", steps, steps, counts * 0, 2.0 ** np.arange(65))
    assert pack_histograms([empty], buffers.append) == []
