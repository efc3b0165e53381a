"""What Python says of the row that is looked at, in a real browser whose kernel is this process."""

from __future__ import annotations

import gc
import io
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from browser.driving import in_a_theme, row, settled, violations
from browser.fake_kernel import PAGE, FakeKernel
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from PIL import Image

import treeviz as tv

pytest.importorskip("anywidget")
pytest.importorskip("treescope")

EVIL = "</script></iframe><script>window.hurt = 1</script><img src=x onerror='window.hurt = 1'>\u202e"


class Config:
    """What a leaf hides.

    Its second paragraph.
    """

    def __init__(self):
        self.weights = jnp.ones((3, 4))
        self.options = {EVIL: [1, 2, {"rate": 0.1}], "more": {"table": np.zeros(5)}}


def scaled(factor):
    def scale(x):
        return x * factor  # <b>as it is</b>

    return scale


def tree() -> dict:
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    values = jnp.arange(70 * 80 * 90, dtype=jnp.float32).reshape(70, 80, 90)
    return {
        "cube": values,
        "function": partial(scaled(jnp.ones(7)), jnp.ones(2)),
        "opaque": Config(),
        "sharded": jax.device_put(
            np.arange(64.0, dtype=np.float32).reshape(8, 8), NamedSharding(mesh, PartitionSpec("data", "model"))
        ),
        "weights": np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64),
    }


@pytest.fixture
def explore(open_page):
    made = []

    def show(tree, *, width: int = 1200, dark: bool = False) -> FakeKernel:
        widget = tv.explore(tree)
        made.extend((widget, tree))
        kernel = FakeKernel(open_page(PAGE, width=width, height=900, dark=dark), widget)
        kernel.show()
        return kernel

    yield show
    for widget in made[::2]:
        widget.close()


def looked_at(kernel, name: str):
    """What Python says of a row, when it has said it."""
    row(kernel.page, name).click()
    kernel.rest()
    pane = kernel.page.locator(".details")
    pane.locator("*").first.wait_for(state="attached")
    return pane


DETAILS = {"fromShadowDom": [".treeviz", ".side"]}


@pytest.mark.parametrize("width", [1200, 420])
def test_nobody_is_left_out(explore, shots, width):
    kernel = explore(tree(), width=width)
    for number, name in enumerate(("weights", "sharded", "function", "opaque", "cube")):
        theme = in_a_theme(kernel.page, number, width == 420)
        pane = looked_at(kernel, name)
        pane.get_by_role("button", name="what keeps").click()
        kernel.rest()
        kernel.page.locator(".side").evaluate("element => { element.style.maxHeight = 'none' }")
        found = violations(kernel.page, DETAILS if number else None)  # all else is as it was for the first row
        shots(settled(kernel.page), f"details-{name}-{width}-{theme}.png", full_page=True)
        assert found == []


@pytest.mark.parametrize("dark", [False, True])
def test_values_have_the_background_of_the_theme_around_them(explore, dark):
    kernel = explore(tree(), width=1200, dark=dark)
    frame = looked_at(kernel, "weights").locator("iframe")
    shown = Image.open(io.BytesIO(frame.screenshot())).convert("L")
    assert (shown.getpixel((shown.width // 2, shown.height - 8)) < 80) == dark


def caption(kernel) -> str:
    """What the frame of values says it shows."""
    return kernel.page.frame_locator(".details iframe").locator("p").inner_text()


def asked(kernel, operation: str) -> list[list[int]]:
    messages = [message["content"] for message in kernel.sent[0] if message["method"] == "custom"]
    return [content["numbers"] for content in messages if content["op"] == operation]


def test_sliders_go_through_an_array_by_keyboard_and_by_mouse(explore):
    kernel = explore(tree())
    pane = looked_at(kernel, "cube")
    assert caption(kernel) == "[0, 0:64, 0:64] float32"
    slider = pane.get_by_role("slider", name="axis 0")
    slider.focus()
    for _ in range(3):
        kernel.page.keyboard.press("ArrowRight")
    kernel.until(lambda: caption(kernel) == "[3, 0:64, 0:64] float32")
    slider.press("End")
    kernel.until(lambda: caption(kernel) == "[69, 0:64, 0:64] float32")
    assert pane.get_by_role("spinbutton", name="axis 0").input_value() == "69"
    box = slider.bounding_box()
    kernel.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    kernel.until(lambda: not caption(kernel).startswith("[69"))
    assert 25 < int(slider.input_value()) < 45
    pane.get_by_role("spinbutton", name="axis 2 from").fill("20")
    kernel.until(lambda: caption(kernel) == f"[{slider.input_value()}, 0:64, 20:84] float32")
    pane.get_by_role("spinbutton", name="axis 2 from").fill("-5")
    kernel.until(lambda: caption(kernel) == f"[{slider.input_value()}, 0:64, 0:64] float32")
    assert settled(kernel.page).locator(".row[aria-selected=true] .key").inner_text() == "cube"


def test_any_two_axes_are_rows_and_columns(explore):
    kernel = explore(tree())
    pane = looked_at(kernel, "cube")
    pane.get_by_role("combobox", name="rows").select_option("axis 0 (70)")
    kernel.until(lambda: caption(kernel) == "[0:64, 0, 0:64] float32")
    assert pane.get_by_role("combobox", name="rows").evaluate("e => e === e.getRootNode().activeElement")
    pane.get_by_role("combobox", name="columns").select_option("axis 0 (70)")
    kernel.until(lambda: asked(kernel, "slice")[-1][1:3] == [2, 0])
    kernel.rest()
    pane.get_by_role("slider", name="axis 1", exact=True).press("End")
    kernel.until(lambda: caption(kernel) == "[0:64, 79, 0:64] float32")
    assert all(type(number) is int for numbers in asked(kernel, "slice") for number in numbers)


def test_a_quick_hand_on_a_slider_asks_for_its_last_place(explore):
    kernel = explore(tree())
    slider = looked_at(kernel, "cube").get_by_role("slider", name="axis 0")
    slider.evaluate(
        "e => { for (let i = 1; i <= 40; i++) { e.value = i; e.dispatchEvent(new Event('input')) } }",
    )
    kernel.until(lambda: caption(kernel).startswith("[40,"))
    assert [numbers[3] for numbers in asked(kernel, "slice")] == [1, 40]


def test_a_sharded_array_says_which_device_holds_what(explore):
    kernel = explore(tree())
    pane = looked_at(kernel, "sharded")
    cells = pane.locator(".shards > div")
    assert cells.count() == 8
    assert cells.nth(3).inner_text().split("\n") == ["cpu:3", "[2:4, 4:8]"]
    assert "from cpu:0, cpu:1" in caption(kernel)


def test_a_function_shows_its_text_and_what_it_captured(explore):
    pane = looked_at(explore(tree()), "function")
    assert pane.locator("pre").inner_text() == "def scale(x):\n    return x * factor  # <b>as it is</b>"
    assert pane.locator(".outline li").all_inner_texts() == ["argument 0float32[2]", "factorfloat32[7]"]


def test_an_opaque_leaf_shows_what_is_inside_as_text(explore):
    kernel = explore(tree())
    assert row(kernel.page, "opaque").locator(".badge").inner_text() == "2 hidden arrays: .weights float32[3,4]"
    pane = looked_at(kernel, "opaque")
    assert row(kernel.page, "opaque").locator(".badge").inner_text() == "2 hidden arrays", "less beside its details"
    lines = pane.locator(".outline li")
    assert lines.first.inner_text() == ".weightsfloat32[3,4]"
    assert any("<script>window.hurt" in line for line in lines.all_inner_texts())
    assert "What a leaf hides." in pane.inner_text()
    assert kernel.page.evaluate("window.hurt") is None


def test_who_holds_it_is_asked_by_a_click_alone(explore):
    kernel = explore(tree())
    pane = looked_at(kernel, "weights")
    assert asked(kernel, "referrers") == []
    pane.get_by_role("button", name="what keeps this in memory?").click()
    kernel.until(lambda: "held by" in pane.inner_text())
    assert "['weights']" in pane.inner_text() and len(asked(kernel, "referrers")) == 1


def test_statistics_of_a_huge_array_are_asked_by_a_click_alone(explore):
    pane = looked_at(kernel := explore({"huge": np.broadcast_to(np.float32(2), (60_000_000,))}), "huge")
    button = pane.get_by_role("button", name="compute the statistics of 60.0 M elements")
    button.click()
    kernel.until(lambda: "rms" in pane.inner_text())
    assert button.count() == 0


def test_an_array_that_was_freed_is_said_to_be(explore):
    held = {"w": jnp.ones(3)}
    kernel = explore(held)
    held.clear()
    gc.collect()
    assert "was freed" in looked_at(kernel, "w").inner_text()


def test_a_donated_array_is_said_to_be_deleted_and_so_are_its_slices(explore):
    held = {"gone": jnp.ones((2, 3)), "going": jnp.ones((100, 3))}
    kernel = explore(held)
    held["gone"].delete()
    pane = looked_at(kernel, "gone")
    assert "deleted or donated" in pane.inner_text() and pane.locator("iframe").count() == 0
    pane = looked_at(kernel, "going")
    held["going"].delete()
    pane.get_by_role("slider", name="axis 0 from").press("End")
    kernel.until(lambda: pane.get_by_text("it has no values").is_visible())


def test_an_error_is_said_where_the_answer_would_be(explore, monkeypatch):
    kernel = explore(tree())

    def fail(*_):
        raise RuntimeError(EVIL)

    monkeypatch.setattr(kernel.widgets[0]._backend, "answer", fail)
    pane = looked_at(kernel, "weights")
    assert "RuntimeError: </script>" in pane.inner_text()
    assert kernel.page.evaluate("window.hurt") is None
    assert kernel.widgets[0].logged


def test_the_row_that_was_left_is_not_waited_for(explore):
    kernel = explore(tree())
    for name in ("weights", "function", "opaque"):
        row(kernel.page, name).click()
    settled(kernel.page)
    kernel.rest()
    kernel.page.locator(".details .outline").wait_for()
    assert [numbers[0] for numbers in asked(kernel, "detail")] == [5, 3]
    assert len(asked(kernel, "cancel")) == 1
    assert "float32[3,4]" in kernel.page.locator(".details").inner_text()


def test_an_answer_that_comes_late_or_twice_changes_nothing(explore):
    kernel = explore(tree())
    looked_at(kernel, "weights")
    numbers = [message["content"]["id"] for message in kernel.sent[0] if message["method"] == "custom"]
    looked_at(kernel, "function").locator("pre").wait_for()
    for number in numbers:
        answer = {"op": "answer", "id": number, "sections": [{"kind": "text", "text": "late"}]}
        kernel.page.evaluate("content => fake.send(0, content, [])", answer)
    assert "late" not in settled(kernel.page).locator(".details").inner_text()


def test_while_python_is_busy_the_reader_is_told(explore):
    kernel = explore(tree())
    kernel.page.evaluate(
        """() => {
            window.said = [];
            const { detailPlace } = fake.views[0];
            const listen = () => said.push(detailPlace.querySelector('.details')?.textContent);
            new MutationObserver(listen).observe(detailPlace, { childList: true, subtree: true, characterData: true });
        }"""
    )
    row(kernel.page, "weights").click()
    pane = kernel.page.locator(".details")
    pane.get_by_text("the kernel is busy or stopped").wait_for()
    assert kernel.page.evaluate("said.includes('reading…')")
    kernel.rest()
    pane.get_by_text("rms").wait_for()
    assert "no answer" not in pane.inner_text()


def test_sections_of_kinds_that_are_not_known_are_left_out(explore, monkeypatch):
    kernel = explore(tree())
    sections = [{"kind": "constructor"}, {"kind": "unheard of", "title": "x"}, {"kind": "text", "text": EVIL}]
    monkeypatch.setattr(kernel.widgets[0]._backend, "answer", lambda *_: ({"sections": sections}, []))
    pane = looked_at(kernel, "weights")
    assert pane.locator("> *").count() == 1 and "</iframe>" in pane.inner_text()


def test_frames_are_taken_away_with_the_row(explore):
    kernel = explore(tree())
    looked_at(kernel, "weights").locator("iframe").wait_for()
    looked_at(kernel, "cube").locator("iframe").wait_for()
    kernel.until(lambda: len(kernel.page.frames) == 2)
    assert kernel.page.locator("iframe").get_attribute("sandbox") == "allow-scripts"
    kernel.page.keyboard.press("Escape")
    kernel.page.locator("iframe").wait_for(state="detached")


def test_a_row_of_a_diff_has_the_values_of_both_sides_and_sliders_for_each(explore):
    left = {
        **{f"a{i}": np.ones(2) for i in range(4)},
        "w": np.linspace(-1, 1, 80 * 80, dtype=np.float32).reshape(80, 80),
    }
    right = {**left, "w": left["w"].copy()}
    right["w"][70, 3] = 5
    kernel = explore(tv.diff(left, right))
    pane = looked_at(kernel, "w")
    assert pane.locator(".section").all_inner_texts()[:3] == ["other - first", "first", "values"]
    parts = pane.get_by_role("group", name="values")
    assert parts.count() == 3 and "max |Δ|" in settled(kernel.page).locator(".detail").inner_text()
    parts.nth(2).get_by_role("spinbutton").first.fill("2")
    kernel.rest()
    assert "slice" in [message.get("content", {}).get("op") for message in kernel.sent[0]]
    assert "[2:66" in parts.nth(2).locator("iframe").get_attribute("srcdoc")
    kernel.page.locator(".row", has_text="×4").locator(".badge").click()
    kernel.rest()
    assert kernel.widgets[0].value == "['w']" and row(kernel.page, "a3").count() == 1


def broken(monkeypatch) -> None:
    import treescope

    monkeypatch.setattr(treescope, "render_array", lambda *_, **__: np.no_such_name)


@pytest.mark.parametrize(("width", "dark"), [(960, False), (480, True)])
def test_where_treescope_fails_values_are_drawn_and_sliders_go_through_them(explore, shots, monkeypatch, width, dark):
    broken(monkeypatch)
    kernel = explore(tree(), width=width, dark=dark)
    pane = looked_at(kernel, "cube")
    drawn = pane.locator(".drawn")
    assert drawn.locator("figcaption").inner_text() == "[0, 0:64, 0:64] float32"
    assert drawn.locator("> canvas").evaluate("canvas => [canvas.width, canvas.height]") == [448, 448]
    assert "cannot draw this: AttributeError: module 'numpy' has no attribute" in drawn.locator(".why").inner_text()
    assert not pane.locator("iframe").is_visible()
    slider = pane.get_by_role("slider", name="axis 0")
    slider.focus()
    slider.press("End")
    kernel.until(lambda: drawn.locator("figcaption").inner_text() == "[69, 0:64, 0:64] float32")
    low, high = 69 * 80 * 90, 69 * 80 * 90 + 63 * 90 + 63
    assert drawn.locator(".legend").inner_text().split() == [str(low), f"{high:.0f}"] and drawn.count() == 1
    drawn.locator("> canvas").hover(position={"x": 2, "y": 2})
    assert drawn.locator(".at").inner_text() == f"[69,0,0] {low}"
    assert violations(kernel.page) == []
    shots(settled(kernel.page), f"drawn-cube-{width}-{'dark' if dark else 'light'}.png")


def test_where_treescope_fails_a_diff_draws_both_sides_and_says_once_why(explore, monkeypatch):
    broken(monkeypatch)
    left, right = {"w": np.zeros((9, 9))}, {"w": np.ones((9, 9))}
    kernel = explore(tv.diff(left, right))
    pane = looked_at(kernel, "w")
    assert pane.locator(".drawn > canvas").count() == 3
    assert [each.is_visible() for each in pane.locator(".why").all()] == [True, False, False]
