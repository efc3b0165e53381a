"""The page of a diff in a real browser: what differs is open, what is the same opens on a click, kinds filter rows."""

from __future__ import annotations

import numpy as np
import pytest
from browser.driving import choose, copied, labels, opened, row, search, settled, status, violations

import treeviz as tv


def layer(scale: float = 1.0) -> dict:
    return {"mlp": {"b": np.zeros(4, np.float32), "w": np.full((4, 4), scale, np.float32)}, "norm": np.ones(4)}


@pytest.fixture
def page(open_page):
    left = {"head": np.ones(3), "layers": [layer() for _ in range(8)], "step": 3}
    right = {"head": np.ones(4), "layers": [layer() for _ in range(8)], "step": 4}
    right["layers"][5] = layer(2.0)
    return opened(open_page(tv.diff(left, right).html(), height=1200))


def test_what_differs_is_open_and_what_is_the_same_is_one_row_with_its_count(page):
    assert labels(page) == [
        *("tree", "head", "layers", "[0…4] ×5", "[5]", "mlp", "b", "w", "norm", "[6]", "[7]", "step"),
    ]
    same = page.locator(".row", has_text="×5")
    assert "the same · 15 leaves" in same.inner_text() and same.get_attribute("aria-expanded") == "false"
    cells = row(page, "head").locator(".cell").all_inner_texts()
    assert cells[1].endswith("shape") and cells[2:4] == ["(3,)", "(4,)"]


@pytest.mark.parametrize("width", [390, 960])
def test_a_sign_before_the_name_says_what_differs_at_any_width(open_page, width):
    left, right = {"a": np.ones(3), "b": np.ones(2), "c": 1}, {"a": np.zeros(3), "c": 1, "d": np.ones(5)}
    page = opened(open_page(tv.diff(left, right).html(), width=width))
    signs = {name: row(page, name).locator(".key").get_attribute("data-glyph") for name in "abcd"}
    assert signs == {"a": "≠", "b": "−", "c": "#", "d": "+"}
    drawn = row(page, "a").locator(".key").evaluate("key => getComputedStyle(key, '::before').content")
    assert drawn.startswith('"≠"')
    assert page.locator(".headline span").all_inner_texts() == ["3 differences", "1 leaf is the same"]
    assert {text[:9] for text in page.locator(".kinds button").all_inner_texts()} == {
        "− missing",
        "+ extra 1",
        "≠ value 1",
    }


def test_what_is_the_same_opens_on_a_click_and_has_its_own_paths(page):
    page.locator(".row", has_text="×5").locator(".badge").click()
    assert labels(page)[3:9] == ["[0]", "[1]", "[2]", "[3]", "[4]", "[5]"]
    row(page, "[3]").dblclick()
    assert labels(page)[6:9] == ["[3]", "mlp", "norm"]
    page.locator(".row", has_text="norm").first.click()
    page.locator(".row", has_text="norm").first.hover()
    assert copied(page, lambda: page.keyboard.press("Control+c")) == "tree['layers'][3]['norm']"
    choose(page, "View", "Collapse all")
    choose(page, "View", "Expand all")
    assert labels(page).count("norm") == 8


def test_the_keyboard_opens_what_is_the_same(page):
    page.locator(".row", has_text="×5").locator(".key").click()
    assert "are the same in both trees" in settled(page).locator(".note").inner_text()
    page.locator(".tree").press("ArrowRight")
    assert labels(page)[3:5] == ["[0]", "[1]"]


def test_badges_filter_by_kind_and_say_so_in_the_search_language(page):
    badges = page.locator(".kinds button")
    assert badges.all_inner_texts() == ["≠ shape 1", "≠ value 2"]
    badges.nth(1).click()
    assert labels(page) == ["tree", "layers", "[5]", "mlp", "w", "step"]
    badges.nth(0).click()
    assert page.get_by_role("searchbox").input_value() == 'diff:"value" | diff:"shape"'
    assert status(page).endswith("3 matches")
    assert [each.get_attribute("aria-pressed") for each in badges.all()] == ["true", "true"]
    search(page, "is:changed")
    assert status(page).endswith("3 matches")
    assert [each.get_attribute("aria-pressed") for each in badges.all()] == ["false", "false"]


def test_the_details_of_a_difference_have_the_numbers_and_magnitudes_of_both_sides(page):
    row(page, "w").click()
    detail = settled(page).locator(".detail").inner_text()
    for text in ("1 at [0, 0]", "there in the first", "16 of 16", "NaN in the other"):
        assert text in detail
    assert page.locator(".sides svg").count() == 2
    assert page.locator(".sides figcaption").inner_text() == "log₂|x|: first above, other below"
    assert violations(page) == []


def test_the_details_of_many_differences_say_what_the_notes_say(open_page):
    random = np.random.default_rng(0)
    left = {f"layer{i}": [random.normal(size=shape) for shape in ((4, 4), (7,), (2, 3, 2))] for i in range(12)}
    right = {name: [1.5 * each for each in layer] for name, layer in left.items()}
    view = tv.diff({**left, "steps": 3, "text": "a {0} b"}, {**right, "steps": 4, "text": '"1"'})
    page = open_page(view.html(), height=1400)
    choose(page, "View", "Expand all")
    page.get_by_role("button", name="into one row").click()
    for path in ("['layer0'][0]", "['layer5'][1]", "['layer11'][2]", "['steps']", "['text']"):
        (at,) = [at for at, each in enumerate(view.table) if each.keystr == path]
        page.locator(f"#row{at} .key").click()
        shown = settled(page).locator(".detail .note").inner_text()
        (note,) = view.table.notes[at]
        for text in (note.text, *(text for pair in note.details for text in pair)):
            assert text in shown


def test_layers_that_differ_alike_are_one_row_as_in_the_text_and_nan_is_the_greatest_difference(open_page):
    left = [{"w": np.zeros((4, 4), np.float32)} for _ in range(12)]
    right = [{"w": np.full((4, 4), 1 + i, np.float32)} for i in range(12)]
    right[3]["w"] = np.full((4, 4), np.nan, np.float32)
    right[7]["w"] = np.full((4, 4), np.inf, np.float32)
    del right[5]["w"]
    view = tv.diff(left, right)
    page = opened(open_page(view.html(), width=1200, height=900))
    names = [line.lstrip("├└─│ ").split("  ")[0] for line in view.text().splitlines()[2:]]
    assert labels(page) == names == ["tree", "[0…11] ×10", "w", "[3]", "w", "[5]", "w"]
    cells = [row(page, name).locator(".cell").all_inner_texts()[-4:] for name in ("tree", "[0…11] ×10")]
    assert cells == [["", "", "NaN/Inf", "176"], ["", "", "1–inf", "160"]]
    assert row(page, "w").first.locator(".cell").all_inner_texts()[2:4] == ["0", "1, 2, …"]
    page.get_by_role("button", name="max |Δ|").click()
    assert [name for name in labels(page)[1:] if name != "w"][:4] == ["[3]", "[7]", "[11]", "[10]"]
    page.get_by_role("button", name="max |Δ|").click()
    assert [name for name in labels(page)[1:] if name != "w"][-3:] == ["[3]", "[5]", "[7]"]
