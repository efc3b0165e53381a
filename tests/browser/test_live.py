"""The live panel in a real browser, its kernel being this process: what comes is drawn, in bounded memory."""

from __future__ import annotations

from base64 import b64encode

import numpy as np
import pytest
from browser.conftest import new_context
from browser.driving import answer, box, choose, in_a_theme, labels, readout, row, settled, violations
from browser.fake_kernel import PAGE, FakeKernel
from live_runs import PATHS, Run

from treeviz.views.html.bundle import widget_module_text

pytest.importorskip("anywidget")


# What the page works out for itself


@pytest.fixture(scope="module")
def parts(chromium):
    context = new_context(chromium)
    page = context.new_page()
    names = "LiveSeries, RollUp, unpack"
    page.set_content(f"<script type=module>{widget_module_text()}\nwindow.parts = {{{names}}};</script>")
    page.wait_for_function("() => window.parts")
    yield page
    context.close()


GROW = """async ([packed, messages]) => {
    const bytes = (text) => new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
    const tree = await parts.unpack(bytes(packed));
    const rollUp = new parts.RollUp(tree);
    const about = { name: 'grads.norm', title: 'norm', digits: 4 };
    const all = [false, true].map((scrolls) => new parts.LiveSeries(about, tree.n, scrolls));
    let most = 0;
    for (const [n, buffers] of messages) {
        const columns = rollUp.read(n, buffers.map(bytes));
        for (const series of all) series.add(columns);
        most = Math.max(most, all[0].n);
    }
    const cells = (series, part) => Array.from({ length: series.n }, (_, column) =>
        Array.from({ length: tree.n }, (_, row) => String(part[row * series.stride + column])));
    const told = (series) => ({ n: series.n, most, room: series.stride,
        first: [...series.first].slice(0, series.n), last: [...series.last].slice(0, series.n),
        steps: [...series.steps].slice(0, series.n), latest: cells(series, series.latest),
        low: cells(series, series.low), high: cells(series, series.high), bad: cells(series, series.bad) });
    return all.map(told);
}"""


@pytest.mark.parametrize("every_s", [0.2, 0.0005])
def test_columns_are_joined_as_numpy_would_and_never_more_than_there_is_room_for(parts, every_s):
    run = Run()
    run.listen()
    run.step(1)
    run.step(700 if every_s > 0.1 else 3000, every_s=every_s)  # of more columns than there is room for, each is joined
    run.step(20, every_s=every_s, bad=2)
    run.step(5, every_s=every_s)
    run.panel.send_updates()
    messages = [
        [message["n"], [b64encode(part).decode() for part in parts]] for message, parts in run.sent if message["n"]
    ]
    whole, newest = answer(parts, GROW, [b64encode(run.panel.backend.view.packed).decode(), messages])
    run.widget.close()
    assert whole["most"] <= whole["room"] <= 512

    table = run.panel.backend.view.table
    leaves = np.flatnonzero(table.is_leaf)
    squares, bad = np.zeros((len(run.norms), len(table))), np.zeros((len(run.norms), len(table)), bool)
    squares[:, leaves], bad[:, leaves] = np.array(run.norms, np.float32).astype(float) ** 2, run.bad
    for below in range(len(table) - 1, 0, -1):
        squares[:, table.parent[below]] += squares[:, below]
        bad[:, table.parent[below]] |= bad[:, below]
    norms = np.sqrt(squares)
    for told in (whole, newest):
        first, last = np.array(told["first"], int), np.array(told["last"], int)
        assert last[-1] == len(norms) - 1
        np.testing.assert_array_equal(first[1:], last[:-1] + 1)
        np.testing.assert_array_equal(told["steps"], last - first + 1)
        for i, (start, stop) in enumerate(zip(first, last + 1, strict=True)):
            np.testing.assert_allclose(np.array(told["latest"][i], float), norms[stop - 1], rtol=1e-6)
            np.testing.assert_array_equal(np.array(told["bad"][i], int), bad[start:stop].any(axis=0))
            low, high = np.array(told["low"][i], float), np.array(told["high"][i], float)
            own = table.is_leaf
            np.testing.assert_allclose(low[own], norms[start:stop].min(axis=0)[own], rtol=1e-6)
            np.testing.assert_allclose(high[own], norms[start:stop].max(axis=0)[own], rtol=1e-6)
            # of a node: what leaves had in columns that were joined by Python need not have been in one step
            assert (low <= norms[start:stop].min(axis=0) * 1.000001).all()
            assert (high >= norms[start:stop].max(axis=0) * 0.999999).all()
    assert whole["first"][0] == 1
    assert newest["first"][0] > 1 and newest["n"] >= 64


# What a reader sees


@pytest.fixture
def live(open_page):
    """`live(…)` shows the panel of a run in a page: the run, and the kernel that carries what they say."""
    runs = []

    def show(*, places: str = "a", steps: int = 0, width: int = 1200, **options):
        run = Run(**options)
        runs.append(run)
        kernel = FakeKernel(open_page(PAGE, width=width), run.widget)
        for place in places:
            kernel.show(0, place)
        run.step(steps)
        drawn(kernel)
        return run, kernel

    yield show
    for run in runs:
        run.widget.close()


def drawn(kernel):
    """The page, when all that was told is drawn."""
    kernel.rest()
    return settled(kernel.page)


def words(page) -> str:
    return settled(page).locator(".live .text").first.inner_text()


def state(page) -> str:
    return settled(page).locator(".live .state").first.inner_text()


def last_column(page) -> str:
    """What a reader hears of the newest column of the heat map."""
    page.get_by_role("slider", name="Heat map").first.focus()
    page.keyboard.press("End")
    return readout(page)


def test_one_line_waits_for_the_first_step_and_becomes_the_tree(live):
    run, kernel = live()
    page = drawn(kernel)
    assert page.locator(".headline").inner_text() == "net\nwaiting for the first step"
    assert not page.get_by_role("tree").is_visible()
    run.step(1)
    page = drawn(kernel)
    assert page.get_by_role("tree").is_visible()
    assert labels(page)[:4] == ["net", "layers", "[0]", "b"]
    assert "waiting" not in page.locator(".headline").inner_text()


def test_what_is_measured_is_drawn_and_read(live):
    run, kernel = live(steps=1, total=400, width=1500)
    run.scalars = "lr", "loss"
    run.step(300)
    page = drawn(kernel)
    assert state(page) == "running"
    lines = page.locator(".scalar")
    assert lines.count() == page.locator(".axis .chart").count() == 2, "they have curves"
    drawn_until = int(lines.last.get_attribute("title").rpartition(" ")[2].replace(",", ""))
    shown, true = float(lines.last.locator("b").inner_text()), run.norms[drawn_until][0]
    assert drawn_until > 200 and shown == pytest.approx(true, rel=1e-2)
    heads = settled(page).locator(".head button").first.bounding_box()["y"]
    assert heads - lines.first.bounding_box()["y"] > 50, "the titles of the columns are below them"
    assert words(page).startswith("step ") and " of 400 · 100 steps/s · 0:01 left" in words(page)
    run.clock.now += 1
    run.panel.send_updates()
    page = drawn(kernel)
    norm = np.float32(run.norms[-1][1])
    cell = row(page, "w").first.locator(".sparkline").inner_text()
    assert float(cell) == pytest.approx(norm, rel=1e-3)
    row(page, "w").first.click()
    assert last_column(page).endswith("· step 300") and readout(page).startswith("['layers'][0]['w']")
    assert page.locator(".detail svg.chart").count() == 2, "the whole run, and the newest steps"


def test_findings_come_as_badges_and_crosses(live):
    run, kernel = live(steps=100)
    page = drawn(kernel)
    assert not page.locator(".findings").is_visible()
    run.step(30, bad=1)
    page = drawn(kernel)
    assert "nonfinite" in row(page, "w").first.get_attribute("aria-label")
    page.locator(".findings > summary").click()
    page.locator(".finding").first.click()
    assert "not finite" in readout(page)
    run.panel.finish("done")
    kernel.rest()
    state = page.locator(".live[data-state=done][data-severity=error] .state")
    assert state.inner_text() == "finished with errors"
    assert state.evaluate("(element) => getComputedStyle(element, '::before').content") == '"✕" / ""'


def test_a_pause_lets_the_picture_stand_still_and_nothing_is_lost(live):
    run, kernel = live(steps=50)
    page = drawn(kernel)
    page.get_by_role("button", name="pause").click()
    before = last_column(page)
    run.step(200)
    page = drawn(kernel)
    assert last_column(page) == before and state(page) == "paused"
    run.panel.finish("done")
    page = drawn(kernel)
    assert last_column(page) == before
    page.get_by_role("button", name="resume").click()
    kernel.rest()
    page.locator(".live[data-state=done]").wait_for()
    assert "step 249" in last_column(page)


def test_two_views_agree_and_one_that_comes_late_knows_all(live):
    run, kernel = live(steps=1)
    run.step(400)
    kernel.rest()
    kernel.show(0, "b")
    run.step(100)
    run.clock.now += 1
    run.panel.send_updates()
    page = drawn(kernel)
    told = []
    for place in "ab":
        slider = page.locator(f"#{place}").get_by_role("slider", name="Heat map")
        slider.focus()
        slider.press("Home")
        first = slider.get_attribute("aria-valuetext")
        slider.press("End")
        told.append((first, slider.get_attribute("aria-valuetext"), slider.get_attribute("aria-valuemax")))
    assert told[0] == told[1] and told[0][0].endswith("· step 0") and told[0][1].endswith("· step 500")
    assert not [m for m in kernel.sent[0] if m["method"] == "custom" and m["content"].get("op") == "whole"]


def test_columns_that_did_not_come_are_asked_for_and_come(live):
    run, kernel = live(steps=50)
    drawn(kernel)
    kernel._boxes[0].clear()
    run.step(50)
    kernel._boxes[0].clear()  # as if the page had been away
    run.step(50)
    kernel.until(lambda: any(m["content"].get("op") == "whole" for m in kernel.sent[0] if m["method"] == "custom"))
    run.step(20)
    page = drawn(kernel)
    slider = page.get_by_role("slider", name="Heat map")
    slider.focus()
    slider.press("Home")
    assert readout(page).endswith("· step 0")
    steps = page.evaluate(
        "() => [...fake.views.at(-1).seriesView.series.first].slice(0, fake.views.at(-1).seriesView.series.n)"
    )
    assert steps[:110] == list(range(110))
    assert page.locator(".notice").inner_text() == ""


def test_a_kernel_that_is_busy_is_said_to_be(live):
    run, kernel = live(steps=50)
    drawn(kernel)
    run.step(50)
    kernel._boxes[0].clear()
    run.step(50)
    told, kernel._boxes[0][:] = kernel._boxes[0][:], []
    for message, buffers in told:
        kernel._to_page(0, message, [bytes(part) for part in buffers])
    page = kernel.page
    page.locator(".notice", has_text="the kernel is busy").wait_for()
    assert state(page) == "running" and "step 1" in last_column(page), "what came is shown"
    kernel.rest()
    page.locator(".notice", has_text="the kernel is busy").wait_for(state="detached")


def test_a_pinned_row_stays_in_sight(live):
    run, kernel = live(steps=50)
    page = drawn(kernel)
    row(page, "w").nth(1).click()
    page.get_by_role("button", name="pin row").click()
    pin = page.locator(".pin")
    assert pin.count() == 1 and "['layers'][1]['w']" in pin.inner_text()
    assert page.get_by_role("button", name="unpin row").count() == 1
    run.step(100)
    run.clock.now += 1
    run.panel.send_updates()
    page = drawn(kernel)
    assert float(pin.locator(".value").inner_text()) == pytest.approx(run.norms[-1][3], rel=1e-3)
    choose(page, "View", "Collapse all")
    run.panel.finish()
    page = drawn(kernel)
    assert pin.count() == 1, "the whole picture keeps it"
    pin.locator(".where").click()
    assert settled(page).locator(".row[aria-selected=true] .key").inner_text() == "w"
    pin.locator(".away").click()
    assert settled(page).locator(".pin").count() == 0


def test_steps_that_were_chosen_and_the_order_stay_while_more_come(live):
    run, kernel = live(steps=200)
    page = drawn(kernel)
    page.get_by_role("spinbutton", name="From step").fill("50")
    page.get_by_role("spinbutton", name="To step").fill("99")
    page.get_by_role("spinbutton", name="To step").press("Enter")
    run.step(200)
    page = drawn(kernel)
    assert page.get_by_role("spinbutton", name="To step").input_value() == "99"
    page.locator(".head .sparkline").click()
    order = labels(page)
    run.panel.finish()
    page = drawn(kernel)
    assert page.get_by_role("spinbutton", name="From step").input_value() == "50"
    assert "descending" in page.locator(".head .sparkline").get_attribute("aria-label")
    assert sorted(labels(page)) == sorted(order)


def test_the_newest_steps_scroll(live):
    run, kernel = live(steps=1)
    for _ in range(40):
        run.step(13)
    page = drawn(kernel)
    page.get_by_role("combobox", name="Series").select_option("grads norm, newest steps")
    first = settled(page).locator(".axis span").first.inner_text()
    run.step(200)
    page = drawn(kernel)
    assert int(page.locator(".axis span").first.inner_text()) > int(first) > 0
    assert page.get_by_role("combobox", name="Series").input_value() == "grads norm, newest steps"


def test_the_picture_is_saved_as_a_file(live, tmp_path):
    run, kernel = live(steps=120)
    run.clock.now += 1
    run.panel.send_updates()
    page = drawn(kernel)
    with page.expect_download() as download:
        choose(page, "Export", "Picture (PNG)")
    path = tmp_path / "picture.png"
    download.value.save_as(path)
    assert download.value.suggested_filename == "net.png"
    image = path.read_bytes()
    width, height = (int.from_bytes(image[at : at + 4], "big") for at in (16, 20))
    area = box(page, ".heat-map")
    assert image[:8] == b"\x89PNG\r\n\x1a\n" and width > area["width"] and height > area["height"]
    assert box(page, ".tree")["y"] - box(page, ".headline")["y"] <= 120, "above the first row"
    page.set_viewport_size({"width": 480, "height": 760})
    state, text, headline = (box(settled(page), place) for place in (".state", ".live .text", ".headline"))
    assert state["width"] > 60 and headline["height"] <= 60
    assert text["y"] + text["height"] <= headline["y"] + headline["height"]


def test_a_row_that_is_clicked_is_heard_in_python_and_if_that_is_later_the_panel_says_so(live):
    run, kernel = live(steps=50)
    page = drawn(kernel)
    row(page, "b").first.click()
    page.locator(".notice", has_text="Python gets the selection when the cell is done").wait_for()
    assert page.locator("svg.chart").count() == 2, "what is shown needs no answer"
    kernel.until(lambda: run.widget.value == PATHS[0])
    page = drawn(kernel)
    assert page.locator(".notice").inner_text() == ""
    version = run.widget._version
    row(page, "w").first.click()
    kernel.until(lambda: run.widget.value == PATHS[1])
    drawn(kernel)
    assert run.widget._version == version, "nothing was sent anew"


def test_a_million_steps_fit(live):
    run, kernel = live(steps=1)
    columns = 16
    for start in range(1, 1_000_000, 6250 * columns):
        first = start + 6250.0 * np.arange(columns)
        parts = [first, first + 6249, np.full(columns, 6250.0)]
        norms = np.full((columns, len(PATHS)), 0.5, "<f4")
        buffers = [*(p.astype("<f8").tobytes() for p in parts), bytes(columns), *(norms.tobytes() for _ in range(3))]
        run.panel._messages._sequence += 1
        run.widget.send_message({"op": "append", "n": columns, **run.panel._messages.status()}, buffers)
    for _ in range(40):
        run.step(20)
    page = drawn(kernel)
    series = page.evaluate("() => fake.views.at(-1).seriesView.all.map((s) => [s.n, s.stride, s.latest.length])")
    assert all(n <= stride <= 512 and cells == stride * 14 for n, stride, cells in series)
    assert page.evaluate("() => document.querySelector('.treeviz').shadowRoot.querySelectorAll('*').length") < 600


@pytest.mark.parametrize("width", [1200, 420])
def test_nobody_is_left_out_of_a_run(live, shots, width):
    run, kernel = live(steps=200, width=width, total=1000)
    run.scalars = "learning rate", "loss"
    run.step(40, bad=1)
    run.step(120)
    page = drawn(kernel)
    row(page, "w").first.click()
    page.get_by_role("button", name="pin row").click()
    for number, name in enumerate(("running", "stopped")):
        theme = in_a_theme(page, number, width == 420)
        shots(page, f"live-{name}-{width}-{theme}.png")
        assert violations(page) == []
        run.panel.finish("stopped", "KeyboardInterrupt")
        page = drawn(kernel)
