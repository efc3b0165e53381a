"""Findings that lie in closed nodes, in a real browser: counted in the row, and a click away."""

from __future__ import annotations

import numpy as np
import pytest
from browser.driving import active, opened, readout, settled
from sample_series import NAN_FROM, layers, leaf, run

import treeviz
from treeviz.views.html.page import page as as_page
from treeviz.views.view import View


class Opaque:
    def __init__(self):
        self.items = np.zeros(3)


@pytest.fixture
def closed(open_page):
    """The page of a table with series, with only the root open."""
    table = layers()
    page = open_page(as_page(View(table, table.chosen(("bytes",)), series=run(table), depth=1)))
    return opened(page)


def badges(page) -> dict[str, str]:
    found = settled(page).locator(".row:has(.badge.inside)").all()
    return {row.locator(".key").inner_text(): row.locator(".badge.inside").inner_text() for row in found}


def test_a_closed_node_says_how_many_findings_are_inside_and_an_open_one_leaves_it_to_its_rows(closed):
    assert badges(closed) == {"layers": "⚠3"}
    assert "3 findings inside" in closed.locator(".row", has=closed.locator(".inside")).get_attribute("aria-label")
    closed.locator(".tree").press("ArrowDown")
    closed.locator(".tree").press("ArrowDown")
    closed.locator(".tree").press("ArrowRight")
    closed.locator(".row", has_text="[3]").wait_for()
    assert badges(closed) == {f"[{i}]": "⚠1" for i in range(3)}


def test_a_click_on_the_badge_opens_the_way_to_the_worst_of_them_and_reads_it(closed):
    closed.locator(".badge.inside").click()
    settled(closed)
    down = leaf(layers(), "layers/2/down")
    row = closed.locator(f"#row{down}")
    row.wait_for()
    assert row.get_attribute("aria-selected") == "true"
    assert f"steps {10 * NAN_FROM} to" in readout(closed)
    assert badges(closed) == {"[0]": "⚠1", "[1]": "⚠1"}
    closed.get_by_role("treeitem", name="[1]").locator(".badge.inside").click()
    settled(closed)
    assert closed.locator(f"#row{leaf(layers(), 'layers/1/up')}").get_attribute("aria-selected") == "true"


def test_findings_of_a_check_are_signs_with_their_number_and_the_sentences_on_hover(open_page):
    layers = [{"b": np.zeros(3), "w": np.ones((2, 2), np.float32)} for _ in range(6)]
    layers[4]["w"] = layers[4]["w"] * np.float32("nan")
    tree = {"act": np.tanh, "layers": layers, "replay": Opaque()}
    page = opened(open_page(treeviz.render(tree, check="jit", stats=True, depth=2).html()))

    def signs() -> dict[str, str]:
        rows = settled(page).locator(".window .row:has(.cell.findings .badge)").all()
        return {row.locator(".key").inner_text(): row.locator(".cell.findings").inner_text() for row in rows}

    before = signs()
    assert before.keys() == {"act", "[0…5] ×5", "[4]", "replay"}
    assert before["act"].startswith("✕") and before["[4]"].startswith("⚠")
    assert "T1" in page.get_by_role("treeitem", name="act").locator(".badge").get_attribute("title")
    replay = page.get_by_role("treeitem", name="replay")
    assert replay.locator(".type .badge").inner_text() == "hidden array: .items float64[3]"
    replay.click()
    assert "T100" in settled(page).locator(".detail").inner_text()
    page.get_by_role("button", name="findings", exact=True).click()
    assert next(iter(signs())) == "act"
    page.get_by_role("treeitem", name="[4]").locator(".badge").click()
    assert active(page) == "w"


def test_without_findings_there_is_no_such_badge(open_page):
    table = layers()
    page = open_page(as_page(View(table, [], series=run(table, healthy=True), depth=1)))
    opened(page)
    assert badges(page) == {}
