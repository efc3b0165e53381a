"""Series in a real browser: the heat map, the sparklines, the charts and the findings, driven as a person does it."""

from __future__ import annotations

from base64 import b64encode

import numpy as np
import pytest
from browser.conftest import new_context
from browser.driving import (
    active,
    box,
    choose,
    in_a_theme,
    labels,
    open_menu,
    opened,
    readout,
    row,
    scroll_to,
    search,
    settled,
    violations,
)
from sample_series import EXPLODES_FROM, NAN_FROM, WIDTH, layers, leaf, run
from sample_trees import deep

import treeviz
from treeviz.tree.series import FindingMark, Histograms, Series
from treeviz.views.html.bundle import module_text
from treeviz.views.html.page import fragment
from treeviz.views.html.page import page as as_page
from treeviz.views.html.payload import pack
from treeviz.views.view import View

# The pixels of the heat map at a place of the row on the screen, 0 to 1 from its left edge: as red, green, blue, alpha.
PIXEL = """([id, part]) => {
    const inside = document.querySelector('.treeviz').shadowRoot;
    const canvas = inside.querySelector('.heat-map canvas');
    const element = inside.querySelector('#' + id);
    const y = (element.getBoundingClientRect().top - canvas.getBoundingClientRect().top + 6) * devicePixelRatio;
    return [...canvas.getContext('2d').getImageData(Math.floor(part * (canvas.width - 1)), Math.floor(y), 1, 1).data];
}"""


@pytest.fixture
def shown(open_page):
    """`shown(table, series, …)` opens the page of a table with series, with all its rows open."""

    def show(table=None, series=None, *, columns=("bytes",), depth=9, scalars=(), **window):
        table = layers() if table is None else table
        series = run(table) if series is None else series
        view = View(table, table.chosen(columns), series=series, depth=depth, scalars=scalars)
        return opened(open_page(as_page(view), **window))

    return show


def heat(page):
    return page.get_by_role("slider", name="Heat map")


def pixel(page, number: int, part: float) -> list[int]:
    return settled(page).evaluate(PIXEL, [f"row{number}", part])


def brightness(page, number: int, part: float) -> float:
    red, green, blue, alpha = pixel(page, number, part)
    assert alpha == 255
    return 0.2126 * red + 0.7152 * green + 0.0724 * blue


def hover(page, number: int, part: float):
    """Move the mouse to a row's strip."""
    strip, area = box(page, f"#row{number}"), box(page, ".heat-map")
    page.mouse.move(area["x"] + part * area["width"], strip["y"] + strip["height"] / 2)


def scalar(name: str, peak: int) -> Series:
    """A number of each of 1,000 steps, with a finding at its peak."""
    steps = np.arange(1000)
    values = np.where(steps == peak, 8.0, 1.0)[None]
    mark = FindingMark(0, peak, "spike", "It jumped.")
    return Series(name, name, steps, steps, values, np.zeros((1, 1000), bool), log=False, marks=(mark,))


def flag(chart) -> float:
    """Where the finding of a scalar is drawn, of 1,000."""
    return float(chart.locator(".mark").get_attribute("d").removeprefix("M").split()[0])


def heads(page) -> list[float]:
    """How far the scalars and the titles of the columns are below the upper edge of the rows."""
    top = box(page, ".scroller")["y"]
    return [box(page, ".scalars")["y"] - top, box(page, ".head button")["y"] - top]


@pytest.fixture(scope="module")
def parts(chromium):
    context = new_context(chromium)
    page = context.new_page()
    script = f"{module_text('series')}\nwindow.parts = {{unpack, Series, PALETTE}};"
    page.set_content(f"<script type=module>{script}</script>")
    page.wait_for_function("() => window.parts")
    yield page
    context.close()


# What the front end works out for itself


def test_values_of_a_series_are_read_as_they_were_packed(parts):
    table = layers()
    (norm, ratio) = run(table)
    told = parts.evaluate(
        """async (text) => {
            const tree = await parts.unpack(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)));
            return tree.header.series.map((spec) => {
                const series = new parts.Series(spec, tree.buffers);
                const rows = Array.from({ length: tree.n }, (_, row) => row);
                const columns = Array.from({ length: series.n }, (_, column) => column);
                const cells = (ask) => rows.map((row) => columns.map((column) => ask(row, column)));
                return [cells((...at) => String(series.value(...at))), cells((...at) => series.isBad(...at)),
                    cells((...at) => series.band(...at).map((place) => series.valueAt(place)))];
            });
        }""",
        b64encode(pack(View(table, [], series=[norm, ratio]))).decode(),
    )
    for series, (values, bad, bands) in zip((norm, ratio), told, strict=True):
        values = np.array(values, float)
        np.testing.assert_allclose(values, series.values, rtol=1e-3)
        np.testing.assert_array_equal(np.array(bad), series.bad)
        if series.low is not None:
            low, high = np.moveaxis(np.array(bands, float), 2, 0)
            known = ~series.bad & (series.values > 0)
            assert (low <= series.low * 1.001)[known].all() and (high >= series.high * 0.999)[known].all()
            reach = np.ptp(np.log10(series.values[known]))
            assert (np.log10(high[known] / series.high[known]) < 0.1 * max(reach, 1)).all()


def test_the_lightness_of_the_colours_grows_evenly(parts):
    palette = np.array(parts.evaluate("() => [...parts.PALETTE]"))
    red, green, blue = (((palette >> shift) & 255) / 255 for shift in (0, 8, 16))
    linear = [np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4) for x in (red, green, blue)]
    lightness = 116 * np.cbrt(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0724 * linear[2]) - 16
    steps = np.diff(lightness)
    assert (steps > -0.3).all() and lightness[-1] - lightness[0] > 60


# The heat map


@pytest.mark.parametrize(("n", "apart", "told"), [(3, 50, ["50", "100", "200"]), (40, 1234, None)])
def test_steps_with_gaps_between_them_as_of_checkpoints_are_told_where_they_are(shown, n, apart, told):
    table = layers()
    steps = np.array([50, 100, 200]) if n == 3 else apart * np.arange(1, n + 1)
    values = np.ones((len(table), n), np.float32)
    page = shown(table, (Series("drift", "drift", steps, steps, values, np.zeros(values.shape, bool)),))
    labels = page.locator(".axis span")
    places = labels.evaluate_all("(labels) => labels.map((label) => label.getBoundingClientRect().left)")
    found = [int(text.replace(",", "")) for text in labels.all_inner_texts()]
    assert len(found) >= 3 and set(found) <= set(steps.tolist()) and min(np.diff(places)) > 50
    assert told is None or labels.all_inner_texts() == told


def test_the_heat_map_has_a_strip_for_every_row_and_lighter_is_more(shown, shots):
    page = shown()
    table = layers()
    up, embed = leaf(table, "layers/1/up"), leaf(table, "embed")
    assert brightness(page, up, 0.9) > 180 > brightness(page, up, 0.1)
    assert brightness(page, embed, 0.02) > brightness(page, embed, 0.98)
    assert box(page, ".heat-map")["y"] == box(page, "#row0")["y"]
    assert box(page, ".heat-map")["height"] == 24 * page.locator(".row").count()
    shots(page, "series.png")


def test_what_is_not_finite_is_hatched_and_what_is_zero_is_a_dotted_line(shown):
    page = shown()
    table = layers()
    strip = """([id, from, to]) => {
        const inside = document.querySelector('.treeviz').shadowRoot;
        const canvas = inside.querySelector('.heat-map canvas');
        const box = inside.querySelector('#' + id).getBoundingClientRect();
        const top = Math.round(box.top - canvas.getBoundingClientRect().top);
        const width = Math.floor((to - from) * canvas.width);
        const { data } = canvas.getContext('2d').getImageData(Math.floor(from * canvas.width), top + 2, width, 14);
        const seen = new Set();
        for (let at = 0; at < data.length; at += 4) seen.add([...data.slice(at, at + 4)].join());
        return [...seen];
    }"""
    hatched = page.evaluate(strip, [f"row{leaf(table, 'layers/2/down')}", NAN_FROM / 100 + 0.05, 0.99])
    assert "253,236,235,255" in hatched and "197,34,31,255" in hatched
    line = page.evaluate(strip, [f"row{leaf(table, 'layers/0/bias')}", 0.3, 0.9])
    assert len(line) > 1 and "0,0,0,0" in line


def test_a_single_cell_that_is_not_finite_is_seen_among_many(shown):
    table = layers()
    (series,) = run(table, 500, healthy=True)[:1]
    series.bad[5, 250] = True
    page = shown(table, [series])
    clean = shown(table, run(table, 500, healthy=True)[:1])
    for name, wanted in ((page, True), (clean, False)):
        reds = [pixel(name, 5, 0.5 + i / 1000) for i in range(-6, 7)]
        assert any(red > 150 > green + 50 for red, green, *_ in reds) == wanted


def test_the_heat_map_follows_folding_sorting_searching_and_scrolling(shown):
    page = shown(layers(40), height=620)
    table = layers(40)
    up = leaf(table, "layers/1/up")

    def is_aligned(number: int) -> bool:
        return brightness(page, number, 0.9) > 180

    scroll_to(page, 90)
    assert is_aligned(up) and not is_aligned(up + 1)
    scroll_to(page, 0)
    search(page, "1/up")
    assert labels(page)[-1] == "up" and is_aligned(up)
    search(page, "")
    page.locator(".head .sparkline").click()
    scroll_to(page, 0)
    assert labels(page)[:2] == ["params", "layers"]
    assert labels(page)[2:4] == ["[2]", "down"]
    choose(page, "View", "Collapse all")
    assert labels(page) == ["params"]
    assert box(page, ".heat-map")["height"] == 24


def test_an_ancestor_that_stays_in_sight_is_one_line(shown):
    page = shown(layers(40), height=620)
    scroll_to(page, 90)
    above = page.locator(".above .row").last
    tops = above.evaluate("(row) => [...row.children].map((cell) => cell.getBoundingClientRect().top)")
    assert len(tops) == page.locator(".head .cell").count() > 2 and len(set(tops)) == 1
    in_row = page.locator(".window .row").last.locator(".cell").last.bounding_box()
    assert above.locator(".cell").last.bounding_box()["x"] == in_row["x"]


def test_hovering_reads_a_cell_out_in_words(shown):
    page = shown()
    table = layers()
    hover(page, leaf(table, "layers/1/up"), 0.505)
    assert readout(page).startswith("['layers'][1]['up'] · grads norm ")
    assert readout(page).endswith("· steps 500 to 509")
    value = float(readout(page).split()[4].rstrip(","))
    assert value == pytest.approx(run(table)[0].values[leaf(table, "layers/1/up"), 50], rel=1e-3)
    hover(page, leaf(table, "layers/2/down"), 0.805)
    assert readout(page) == "['layers'][2]['down'] · grads norm not finite · steps 800 to 809"
    hover(page, leaf(table, "layers/0/bias"), 0.8)
    assert "grads norm 0 ·" in readout(page)
    assert page.locator(".readout").get_attribute("aria-live") == "polite"
    assert page.locator(".at-step").is_visible()
    page.mouse.move(5, 5)
    assert readout(page) == ""


def test_the_keyboard_reads_the_heat_map(shown):
    page = shown()
    heat(page).focus()
    steps = [
        ("Home", "steps 0 to 9", "params"), ("ArrowRight", "steps 10 to 19", "params"),
        ("ArrowLeft", "steps 0 to 9", "params"),
        ("ArrowDown", "steps 0 to 9", "['embed']"), ("End", "steps 990 to 999", "['embed']"),
        ("PageUp", "steps 890 to 899", "['embed']"), ("ArrowUp", "steps 890 to 899", "params"),
    ]  # fmt: skip
    for key, at, path in steps:
        page.keyboard.press(key)
        assert readout(page).startswith(f"{path} ·") and readout(page).endswith(at), key
        assert heat(page).get_attribute("aria-valuetext") == readout(page)
    # The slider says its value itself: it is not said twice.
    assert page.locator(".readout").get_attribute("aria-live") == "off"
    page.keyboard.press("Enter")
    assert settled(page).locator(".detail .title").inner_text() == "params"
    page.keyboard.press("Escape")
    assert page.locator(".tree").evaluate("(tree) => tree.getRootNode().activeElement === tree")


def test_a_click_on_a_strip_chooses_its_row(shown):
    page = shown()
    hover(page, leaf(layers(), "layers/1/up"), 0.5)
    page.mouse.down()
    page.mouse.up()
    assert active(page) == "up"
    assert settled(page).locator(".detail .title").inner_text() == "up"


def test_steps_are_chosen_by_dragging_and_by_number_and_scalars_are_over_the_same(shown, shots):
    page = shown(scalars=[scalar("loss", 501), scalar("lr", 998)])
    lines, charts = page.locator(".scalar"), page.locator(".axis .chart")
    assert [line.split() for line in lines.all_inner_texts()] == [
        ["loss", "1", "1", "to", "8"],
        ["lr", "1", "1", "to", "8"],
    ]
    assert flag(charts.first) == pytest.approx(501, abs=0.6) and heads(page) == [0, 52], "the titles are below them"
    hover(page, 1, 0.305)
    page.mouse.down()
    hover(page, 1, 0.5)
    hover(page, 1, 0.605)
    band, whole = box(page, ".heat-map .band"), box(page, ".heat-map")
    assert band["width"] / whole["width"] == pytest.approx(0.31, abs=0.01)
    assert readout(page) == "steps 300 to 609"
    hover(page, 1, 0.5005)
    assert lines.first.inner_text().split()[1] == "8", "the value at the step under the pointer"
    hover(page, 1, 0.605)
    legend = page.locator(".legend").inner_text()
    page.mouse.up()
    assert page.locator(".heat-map .band").is_hidden()
    assert readout(page).endswith(" · steps 480 to 489"), "what is under the pointer now, not which steps were chosen"
    assert settled(page).locator(".legend").inner_text() != legend, "the colors are those of the steps that are seen"
    assert page.locator(".axis span").all_inner_texts() == ["300", "350", "400", "450", "500", "550"], "round steps"
    assert flag(charts.first) == pytest.approx(1000 * 201 / 310, abs=2), "at the same place as in the heat map"
    first, last = page.get_by_role("spinbutton", name="From step"), page.get_by_role("spinbutton", name="To step")
    assert (first.input_value(), last.input_value()) == ("300", "609")
    hover(page, 1, 0.001)
    assert "steps 300 to 309" in readout(page)
    last.fill("399")
    last.press("Enter")
    assert last.input_value() == "399"
    shots(page, "zoomed.png")
    page.get_by_role("button", name="All steps").click()
    assert (first.input_value(), last.input_value()) == ("0", "999")
    assert page.get_by_role("button", name="All steps").is_hidden()
    first.fill("100000")
    first.press("Enter")
    assert (first.input_value(), last.input_value()) == ("990", "999")


def test_another_series_can_be_looked_at(shown):
    page = shown()
    page.get_by_role("combobox", name="Series").select_option("grads ÷ params")
    assert page.locator(".head .sparkline").inner_text() == "grads ÷ params, log scale"
    hover(page, 1, 0.5)
    assert " · grads ÷ params " in readout(page)


def test_on_a_phone_the_sparkline_and_the_last_value_are_in_sight(shown):
    page = shown(width=480)
    place = box(page, ".head .sparkline")
    assert place["x"] + place["width"] < 480 and page.get_by_role("combobox", name="Colors").is_hidden()
    assert settled(page).locator(".head button").all_inner_texts()[-2:] == ["type", "bytes"]
    # The choices are in the menu that has all, and the strip of a row in its details.
    open_menu(page, "More")
    page.get_by_role("combobox", name="Colors").select_option("relative to median")
    page.keyboard.press("Escape")
    assert page.get_by_role("combobox", name="Colors").is_hidden()
    page.locator(".window .row").nth(1).click()
    assert settled(page).locator(".strip-of-row canvas").bounding_box()["width"] > 400


def test_beside_a_curve_a_type_has_its_dtype_or_is_out_of_sight(shown):
    page, rooms = shown(width=400), {}
    for width in range(400, 560, 20):
        page.set_viewport_size({"width": width, "height": 760})
        rooms[width] = width - 8 - box(page, ".head .type")["x"]
    assert all(room < 12 or room >= len("float32[") * 7.83 for room in rooms.values()), rooms


def test_curves_have_the_scale_that_is_chosen_and_say_so(shown):
    page = shown()
    row(page, "embed").click()

    def curve():
        return settled(page).locator(".sparklines").evaluate("(canvas) => canvas.toDataURL()")

    captions, before = page.locator(".over-time figcaption"), curve()
    assert captions.first.inner_text().endswith(", log scale")
    title = page.locator(".head .sparkline")
    assert title.inner_text() == "grads norm, log scale"
    page.get_by_role("checkbox", name="log").uncheck()
    assert curve() != before
    assert not [text for text in captions.all_inner_texts() if "log" in text]
    assert title.inner_text() == "grads norm"


def test_the_scale_can_be_linear_and_the_legend_says_its_numbers(shown):
    page = shown()
    legend = page.locator(".legend")
    assert "not finite" in legend.inner_text() and "zero" in legend.inner_text()
    before = page.locator(".colors").get_attribute("aria-label")
    assert before.endswith(", light, log scale")
    embed = leaf(layers(), "embed")
    light = brightness(page, embed, 0.9)
    page.get_by_role("checkbox", name="log").uncheck()
    assert page.locator(".colors").get_attribute("aria-label").endswith(", light")
    assert brightness(page, embed, 0.9) < light


def test_colors_can_be_relative_to_the_median_of_each_row(shown):
    page = shown()
    embed, up = leaf(layers(), "embed"), leaf(layers(), "layers/1/up")
    apart = abs(brightness(page, embed, 0.3) - brightness(page, leaf(layers(), "layers/0/q"), 0.3))
    page.get_by_role("combobox", name="Colors").select_option("relative to median")
    assert "relative to the median" in page.locator(".colors").get_attribute("aria-label")
    assert "×" in page.locator(".legend").inner_text()
    together = abs(brightness(page, embed, 0.3) - brightness(page, leaf(layers(), "layers/0/q"), 0.3))
    assert together < 30 < apart, "rows of other sizes look alike at the same part of their course"
    assert brightness(page, up, 0.95) < 180 < brightness(page, up, 0.3), "at the median it is pale"


def test_a_print_begins_with_the_legend_and_the_findings(shown):
    page = shown()
    page.emulate_media(media="print")
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    assert settled(page).locator(".legend").is_visible() and page.get_by_role("searchbox").is_hidden()
    assert page.locator(".printed .finding").count() == 3
    assert box(page, ".printed")["y"] < box(page, ".head")["y"]
    tree, strip = box(page, ".tree"), page.locator(".row canvas").nth(1).bounding_box()
    assert tree["x"] + tree["width"] <= strip["x"] + 1, "nothing is covered"
    assert box(page, ".axis")["x"] == pytest.approx(strip["x"], abs=1)


def test_no_canvas_clears_the_paper_of_what_was_printed_before_it(shown):
    page = shown(alone=True)
    page.evaluate("() => { CanvasRenderingContext2D.prototype.clearRect = () => { window.isCleared = true } }")
    page.emulate_media(media="print")
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    assert settled(page).locator(".printed .finding").count() == 3
    assert not page.evaluate("() => window.isCleared"), "Chromium prints what a canvas was told, also to clear"


def test_a_linear_series_cannot_be_made_logarithmic(shown):
    table = layers()
    values = np.random.default_rng(0).normal(size=(len(table), 20)).astype(np.float32)
    steps = np.arange(20)
    page = shown(table, [Series("cosine", "cosine", steps, steps, values, np.zeros(values.shape, bool), log=False)])
    assert page.get_by_role("checkbox", name="log").is_disabled()
    hover(page, 3, 0.5)
    assert float(readout(page).split(" · cosine ")[1].split()[0]) == pytest.approx(values[3, 10], rel=2e-3)


# Charts, findings


def test_the_detail_of_a_row_shows_its_series_over_time(shown, shots):
    page = shown()
    row(page, "down").nth(2).click()
    detail = page.locator(".detail")
    assert detail.locator("svg.chart").count() == 2
    assert detail.locator(".band").first.get_attribute("d").startswith("M")
    crosses = detail.locator("path.bad").first.get_attribute("d")
    assert crosses.count("M") > 5
    label = detail.get_by_role("img", name="grads norm of down").get_attribute("aria-label")
    assert "not finite from steps 600 to 609 on" in label
    detail.get_by_text("last values").click()
    cells = detail.get_by_role("row")
    assert cells.nth(1).inner_text().split("\t") == ["steps 990 to 999", "not finite", "not finite"]
    shots(page, "chart.png")
    settled(page)
    detail.locator("svg.chart").first.hover(position={"x": 200, "y": 40})
    assert readout(page).startswith("['layers'][2]['down']")
    assert page.locator(".over-time .readout").is_visible()
    row(page, "bias").first.click()
    settled(page)
    assert "0 at steps 0 to 9, 0 at steps 990 to 999" in detail.locator("svg.chart").first.get_attribute("aria-label")


def test_findings_are_badges_and_a_list_that_leads_to_them(shown, shots):
    page = shown(depth=1)
    page.get_by_text("Findings (3)").click()
    listed = page.locator(".finding")
    listed.first.wait_for()
    assert [text.split(" ")[0] for text in listed.all_inner_texts()] == ["nonfinite", "exploding", "dead"]
    shots(page, "findings.png")
    listed.nth(1).click()
    assert active(page) == "up" and "up" in labels(page)
    assert f"steps {WIDTH * (EXPLODES_FROM + 9)} to" in readout(page)
    assert heat(page).evaluate("(element) => element.getRootNode().activeElement === element")
    assert listed.first.is_hidden()
    badge = page.locator(f"#row{leaf(layers(), 'layers/1/up')} .badge")
    assert badge.get_attribute("data-note") == "exploding"
    assert "The norm grows" in badge.get_attribute("title")
    assert "The norm grows" in page.locator(".detail .note").inner_text()


def test_findings_of_the_same_steps_are_one_event(shown):
    table = layers()
    norm, ratio = run(table)
    down, up, bias = norm.marks
    page = shown(table, [Series(**{**vars(norm), "marks": (down, up, bias._replace(column=down.column))}), ratio])
    page.get_by_text("Findings (3)").click()
    page.locator(".finding").first.wait_for()
    assert page.locator(".findings p").all_inner_texts() == ["steps 600 to 609: 2 findings"]
    kinds = [text.split()[0] for text in page.locator(".finding").all_inner_texts()]
    assert kinds == ["nonfinite", "dead", "exploding"]
    page.locator(".finding").nth(1).get_by_text("show").click()
    assert active(page) == "bias"


def test_a_finding_outside_of_the_chosen_steps_brings_them_all_back(shown):
    page = shown()
    page.get_by_role("spinbutton", name="To step").fill("99")
    page.get_by_role("spinbutton", name="To step").press("Enter")
    page.get_by_text("Findings (3)").click()
    page.locator(".finding").first.click()
    assert page.get_by_role("spinbutton", name="To step").input_value() == "999"


def test_a_finding_in_another_series_shows_that_series(shown):
    table = layers()
    norm, ratio = run(table, healthy=True)
    mark = FindingMark(5, 10, "ratio", "Far from 1e-3.")
    page = shown(table, [norm, Series(**{**vars(ratio), "marks": (mark,)})])
    page.get_by_text("Findings (1)").click()
    page.locator(".finding").click()
    assert " · grads ÷ params" in readout(page)


def test_the_color_of_a_finding_is_that_of_its_severity_whatever_its_kind(shown):
    table = layers()
    norm, _ = run(table, healthy=True)
    marks = tuple(
        FindingMark(row, 3, kind, f"{kind}.", severity)
        for row, (kind, severity) in enumerate([("melting", "error"), ("cooling", "warning"), ("mild", "info")], 1)
    )
    page = shown(table, [Series(**{**vars(norm), "marks": marks})])

    def color(element):
        return element.evaluate("(element) => getComputedStyle(element).color")

    def has_red_flag(page):
        return page.locator(".heat-map canvas").evaluate(
            """(canvas) => {
              const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
              return data.some((_, i) => i % 4 === 0 && data[i] === 197 && data[i + 1] === 34 && data[i + 2] === 31);
            }"""
        )

    of_theme = {"bad": "rgb(197, 34, 31)", "warm": "rgb(154, 74, 0)", "dim": "rgb(99, 107, 118)"}
    settled(page)
    assert color(page.get_by_text("Findings (3)")) == of_theme["bad"]
    page.get_by_text("Findings (3)").click()
    settled(page)
    for places in (page.locator(".row .badge:not(.inside)"), page.locator(".finding .badge")):
        assert [color(places.nth(i)) for i in range(3)] == list(of_theme.values())
    assert has_red_flag(page)
    page = shown(table, [Series(**{**vars(norm), "marks": marks[2:]})])
    assert color(settled(page).get_by_text("Findings (1)")) == of_theme["dim"]
    assert not has_red_flag(page)
    page.locator(f"#row{marks[2].row}").click()
    mark = settled(page).locator(".chart .mark")
    assert mark.evaluate("(element) => getComputedStyle(element).stroke") == of_theme["dim"]


def test_a_run_without_findings_has_no_list_of_them(shown):
    page = shown(series=run(layers(), healthy=True))
    assert not page.locator(".findings").is_visible()


# Its surroundings


@pytest.mark.parametrize("width", [320, 900])
def test_no_accessibility_rule_is_broken(shown, shots, width):
    page = shown(width=width, height=480)  # of few rows: each is like another one
    for number, there in enumerate(("plain", "detailed", "listed")):
        if there == "detailed":
            row(page, "bias").first.click()
            page.get_by_text("last values").click()
        if there == "listed":
            page.get_by_text("Findings (3)").click()
            page.locator(".finding").first.wait_for()
        theme = in_a_theme(page, number, width // 600)
        shots(page, f"series-{there}-{width}-{theme}.png")
        assert violations(page) == [], (there, theme)


@pytest.mark.parametrize("widths", [(320, 360, 390), (699, 500)])
def test_a_narrow_window_keeps_the_sparkline_and_drops_the_heat_map(shown, widths):
    page = shown(width=widths[0])
    for width in widths:
        page.set_viewport_size({"width": width, "height": 760})
        assert settled(page).locator(".heat-map").is_hidden() and page.locator(".legend").is_hidden()
        assert page.locator(".head .sparkline").is_visible() and page.locator(".sparklines").is_visible()
        line = box(page, ".sparklines")
        assert width < 360 or line["x"] + line["width"] <= width, "in sight before anything is scrolled"
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    page.get_by_text("Findings (3)").click()
    page.locator(".finding").first.click()
    assert active(page).endswith("down")
    assert readout(page) == "", "it would cover rows, and the details have the curves"


def test_few_elements_are_in_the_document_however_many_leaves(shown):
    page = shown(layers(125), width=2000, height=1100)
    n_elements = page.evaluate(
        """() => document.querySelectorAll('*').length
            + document.querySelector('.treeviz').shadowRoot.querySelectorAll('*').length"""
    )
    assert n_elements <= 600


def test_sparklines_stand_in_their_column_until_it_is_hidden(shown):
    page = shown()
    head, lines = box(page, ".head .sparkline"), box(page, ".sparklines")
    assert head["x"] == pytest.approx(lines["x"], abs=1) and lines["width"] < head["width"]
    number = page.locator(f"#row{leaf(layers(), 'embed')} .sparkline").inner_text()
    assert float(number) > 0, "the last value stands beside its line"
    assert lines["y"] == box(page, ".row")["y"]
    page.set_viewport_size({"width": 1200, "height": 300})
    scroll_to(page, 24 * 4)
    covered = page.locator(".above .row").first.evaluate("(row) => parseFloat(getComputedStyle(row, '::after').width)")
    assert covered == box(page, ".heat-map")["width"], "no strip of another row stands beside an ancestor"
    open_menu(page, "View")
    page.get_by_role("checkbox", name="grads norm").uncheck()
    assert settled(page).locator(".sparklines").is_hidden()
    page.get_by_role("checkbox", name="heat map").uncheck()
    assert settled(page).locator(".heat-map").is_hidden()


def test_the_theme_and_forced_colours_are_followed(shown, shots):
    page = shown()
    hatched = leaf(layers(), "layers/2/down")
    at = [pixel(page, hatched, 0.995 - i / 200) for i in range(4)]
    assert any(red > 150 > green + 50 for red, green, *_ in at)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("() => document.querySelector('.treeviz').shadowRoot.querySelector('.treeviz.dark')")
    assert all(sum(pixel(page, hatched, 0.995 - i / 200)[:3]) < 700 for i in range(4))
    page.emulate_media(forced_colors="active")
    shots(page, "forced.png")


def test_all_rows_stay_where_a_host_hides_the_view_while_it_changes_its_theme(shown):
    page = shown()
    n_rows = page.locator(".window .row").count()
    # As JupyterLab does: it is hidden when the theme is read, and shown again before the next frame.
    page.evaluate("""async () => {
        const host = document.querySelector('.treeviz');
        host.style.display = 'none';
        host.shadowRoot.querySelector('.treeviz').classList.toggle('dark');
        await null;
        host.style.display = '';
    }""")
    assert settled(page).locator(".window .row").count() == n_rows > 1


def test_on_paper_stand_the_strips_of_all_rows(shown, shots):
    page = shown(layers(10))
    page.emulate_media(media="print")
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    n_rows = len(layers(10))
    assert settled(page).locator(".row").count() == n_rows
    assert page.locator(".heat-map canvas").is_hidden() and page.locator(".sparklines").is_hidden(), (
        "they have no pages"
    )
    for i in (0, n_rows - 1):
        beside = (
            page.locator(".row")
            .nth(i)
            .evaluate(
                """(row) => {
                const places = [row, ...row.querySelectorAll("canvas"), row.getRootNode().querySelector(".axis")];
                return places.map((element) => element.getBoundingClientRect().toJSON());
            }"""
            )
        )
        assert [place["y"] for place in beside[1:3]] == [beside[0]["y"]] * 2
        assert beside[2]["x"] == pytest.approx(beside[3]["x"], abs=1)
    shots(page, "print.png", full_page=True)
    page.evaluate("() => dispatchEvent(new Event('afterprint'))")
    assert settled(page).locator(".row canvas").count() == 0


def test_pages_with_and_without_series_stand_in_one_document(open_page):
    table = layers()
    html = fragment(View(table, [])) + fragment(View(table, [], series=run(table))) + fragment(View(table, []))
    page = open_page(f"<!DOCTYPE html><title>t</title>{html}")
    opened(page, 3)
    assert page.locator(".heat-map").count() == 1


def test_where_most_values_are_alike_the_scale_reaches_to_those_that_differ(shown):
    table = layers(1)
    values = np.ones((len(table), 10), np.float32)
    values[3:5, 5:] = [[0.1], [3]]
    steps = np.arange(10)
    page = shown(table, [Series("x", "x", steps, steps, values, np.zeros(values.shape, bool))])
    assert [word for word in page.locator(".legend").inner_text().split() if word in ("0.1", "1", "3")] == ["0.1", "3"]
    assert brightness(page, 3, 0.9) < brightness(page, 2, 0.9) < brightness(page, 4, 0.9)


def test_one_step_and_one_leaf_are_enough(shown):
    table = layers(1)
    values = np.ones((len(table), 1), np.float32)
    page = shown(table, [Series("x", "x", np.array([7]), np.array([7]), values, np.zeros(values.shape, bool))])
    hover(page, 2, 0.5)
    assert readout(page).endswith("· x 1 · step 7")
    row(page, "embed").click()
    assert settled(page).locator("svg.chart").count() == 1


def test_the_detail_of_a_row_shows_how_its_values_were_distributed(open_page, shots):
    table = layers(1)
    steps, edges = np.arange(30), 2.0 ** np.arange(-20, -3)
    counts = np.zeros((len(table), 30, 16))
    counts[1, :, 3] = 5
    counts[1, 15:, 12] = 10
    histograms = Histograms("grads.histogram", "magnitudes of the gradient", steps, steps, counts, edges)
    page = open_page(as_page(View(table, [], series=run(table, healthy=True), histograms=[histograms], depth=9)))
    opened(page)
    row(page, "embed").click()
    drawing = page.get_by_role("img", name="magnitudes of the gradient")
    assert "7.6e-6 (below) to 0.0078 (above), steps 0 to 29" in drawing.get_attribute("aria-label")
    lit = drawing.evaluate(
        """(canvas) => {
            const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
            const at = (x, y) => [...data.slice(4 * (y * canvas.width + x), 4 * (y * canvas.width + x) + 4)];
            return [canvas.height, at(3, 0)[3], at(3, 9)[0], at(20, 0)[0], at(20, 9)[3]];
        }"""
    )
    assert lit[:3] == [10, 0, lit[3]] and lit[4] == 255
    shots(page, "distribution.png")
    row(page, "q").click()
    settled(page)
    assert drawing.count() == 0


def test_many_rows_can_be_printed(shown):
    table = layers(230)
    page = shown(table, run(table, 4, healthy=True))
    page.emulate_media(media="print")
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    n_rows = settled(page).locator(".row").count()
    assert n_rows == 2000
    strips = page.locator(".row").nth(n_rows - 1).locator("canvas")
    assert strips.count() == 2 and all(strip.bounding_box()["height"] == 24 for strip in strips.all())
    for strip in strips.all():
        assert strip.evaluate(
            """(canvas) => {
                const { width, height } = canvas;
                return canvas.getContext('2d').getImageData(0, 0, width, height).data.some(Boolean);
            }"""
        )


def test_a_row_of_twenty_thousand_levels_is_read_quickly(shown):
    table = treeviz.walk(deep(20_000))
    values = np.ones((len(table), 4), np.float32)
    steps = np.arange(4)
    page = shown(table, [Series("x", "x", steps, steps, values, np.zeros(values.shape, bool))], columns=())
    choose(page, "View", "Expand all")
    page.locator(".tree").focus()
    page.keyboard.press("End")
    heat(page).focus()
    page.keyboard.press("Home")
    assert readout(page) == "…" + "[0]" * 12 + " · x 1 · step 0"
