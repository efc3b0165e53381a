"""The values of an array in the detail of its row: a frame that draws, and reaches nothing."""

from __future__ import annotations

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jax.numpy as jnp
import numpy as np
import pytest
from browser.conftest import new_context
from browser.driving import row, settled, violations

import treeviz
from treeviz.integrations.treescope import array_pictures
from treeviz.tree.walk import scan
from treeviz.views.html.page import page as page_of
from treeviz.views.view import View

EVIL = "</script></iframe><script>top.hurt = 1</script><img src=x onerror='top.hurt = 1'>"


def frame_of(page, name: str):
    row(page, name).click(position={"x": 60, "y": 8})  # the name: at the end of a long one is a button
    page.keyboard.press("Enter")
    page.locator("iframe").wait_for()
    return page.locator("iframe").element_handle().content_frame()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_values_are_drawn_in_a_frame_of_a_saved_page(open_page, shots, dark):
    values = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
    page = open_page(
        treeviz.render({EVIL: 1, "weights": values}, name="model", values=True).html(), dark=dark, alone=True
    )
    frame = frame_of(page, "weights")
    frame.wait_for_selector("canvas", state="attached")
    frame.wait_for_function(
        "document.querySelector('treescope-container').shadowRoot.querySelector('canvas').width > 50"
    )
    frame.wait_for_function(  # treescope paints in one of the next frames: a gradient, of many colours
        """() => {
          const canvas = document.querySelector('treescope-container').shadowRoot.querySelector('canvas');
          const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
          const colours = Array.from({ length: data.length / 4 }, (_, i) => data.slice(4 * i, 4 * i + 4).join());
          return new Set(colours).size > 100;
        }"""
    )
    shots(page, f"values-{'dark' if dark else 'light'}.png")
    assert page.evaluate("window.hurt") is None


# What is drawn: the size of the canvas, the number of its colors, and the color of a pixel in some cells of 7 pixels.
CANVAS = """(canvas, cells) => {
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const at = (x, y) => [...data.slice(4 * (y * canvas.width + x), 4 * (y * canvas.width + x) + 3)];
  const colors = new Set(Array.from({ length: data.length / 4 }, (_, i) => data.slice(4 * i, 4 * i + 3).join()));
  const found = cells.map(([row, column, x = 0, y = 0]) => at(7 * column + x, 7 * row + y));
  return [canvas.width, canvas.height, colors.size, found];
}"""


@pytest.mark.parametrize(("width", "dark"), [(960, False), (480, True)])
def test_where_treescope_fails_the_page_draws_values_a_legend_and_one_note(open_page, shots, monkeypatch, width, dark):
    monkeypatch.setitem(sys.modules, "treescope", None)
    signed = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
    signed[0, 1:6] = np.nan, np.inf, np.inf, -np.inf, 5
    tree = {EVIL: 1, "signed": signed, "unsigned": np.arange(100) * 2, "zero": jnp.float32(0)}
    page = open_page(treeviz.render(tree, name="model", values=True).html(), width=width, dark=dark, alone=True)

    def looked_at(name: str):
        row(page, name).click(position={"x": 60, "y": 8})
        if not page.locator(".detail").count():
            page.keyboard.press("Enter")
        return settled(page).locator(".detail .drawn")

    drawn = looked_at("signed")
    assert page.locator("iframe").count() == 0 and drawn.count() == 1
    canvas = drawn.locator("> canvas")
    cells = [[0, 0], [32, 0], [63, 63], [0, 1], [0, 1, 3, 3], [0, 2], [0, 4]]
    *size, n_colors, found = canvas.evaluate(CANVAS, cells)
    blue, zero, orange, cross_around, cross, infinite, negative = found
    assert size == [7 * 64, 7 * 64] and n_colors > 20
    assert blue[2] > blue[0] and orange[0] > orange[2] and min(zero) > 240
    assert cross_around == [0xB3, 0x26, 0x1E] and cross == [255] * 3
    assert infinite == [179, 79, 0] and negative == [11, 79, 191]
    legend = drawn.locator(".legend")
    limit = f"{3 * np.sqrt(np.mean(np.square(signed[np.isfinite(signed)], dtype=np.float64))):.4g}"
    spans = legend.locator("span:has(canvas)").all_inner_texts()
    assert [text.strip() for text in spans] == ["1 NaN", "2 +Inf", "1 -Inf", f"1 above {limit}"]
    assert legend.inner_text().startswith(f"-{limit}") and legend.locator(".colors").is_visible()
    label = canvas.get_attribute("aria-label")
    assert label.startswith("float32[64,64]: colors from -") and "1 NaN, 2 +Inf, 1 -Inf" in label
    note = drawn.locator("p").all_inner_texts()
    assert len(note) == 1 and "cannot be imported: ModuleNotFoundError" in note[0]
    assert violations(page) == []
    box = canvas.bounding_box()
    canvas.hover(position={"x": box["width"] * 10.5 / 64, "y": box["height"] * 3.5 / 64})
    assert drawn.locator(".at").inner_text() == f"[3,10] {signed[3, 10]:.4g}"
    shots(page, f"drawn-{width}-{'dark' if dark else 'light'}.png")
    drawn = looked_at("unsigned")
    *size, n_colors, (first, last, beyond) = drawn.locator("> canvas").evaluate(CANVAS, [[0, 0], [1, 35], [1, 36]])
    assert size == [7 * 64, 7 * 2] and first == [0x44, 0x01, 0x54] and last[0] > 200
    assert beyond == [0, 0, 0], "nothing is drawn behind the last element"
    assert drawn.locator(".legend").inner_text().split()[:2] == ["0", "198"]
    assert looked_at("zero").locator("> canvas").evaluate(CANVAS, [])[:2] == [7, 7]
    assert page.evaluate("window.hurt") is None


WRITE_IN_PIECES = """async (html) => {
  const frame = document.body.appendChild(document.createElement('iframe'));
  frame.contentDocument.open();
  for (const piece of html.split(/(?<=octet-stream['"]>)/)) {
    frame.contentDocument.write(piece);
    await new Promise((resume) => setTimeout(resume, 20));
  }
  frame.contentDocument.close();
}"""


def test_the_values_are_drawn_though_the_parser_pauses_before_a_script(open_page):
    table, nodes = scan({"weights": np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)})
    page = open_page("<body></body>")
    page.evaluate(WRITE_IN_PIECES, array_pictures(table, nodes)[1])
    page.frames[1].wait_for_selector("canvas", state="attached")


def test_a_view_in_treescopes_output_is_the_whole_view_in_a_frame_that_is_large_enough(open_page, shots):
    treescope = pytest.importorskip("treescope")
    view = treeviz.render({EVIL: 1, "weights": jnp.ones((4, 4))}, name="model")
    page = open_page(treescope.render_to_html({"view": view, "after": 1}))
    frame = page.frame_locator("iframe").first
    frame.get_by_role("treeitem", name="weights").click()
    shots(page, "in-treescope.png")
    box = page.locator("iframe").first.bounding_box()
    assert box["width"] >= 900 and 300 <= box["height"] <= 700
    assert page.evaluate("window.hurt") is None


TRIES = """<body><script>
  window.reached = [];
  const attempt = (name, run) => { try { run(); reached.push(name); } catch {} };
  attempt('parent', () => parent.document.title);
  attempt('storage', () => localStorage.length);
  attempt('cookie', () => document.cookie);
  attempt('top', () => { top.location = 'SERVER/top'; });
  attempt('popup', () => { if (!open('SERVER/popup')) throw 0; });
  window.done = Promise.allSettled([
    fetch('SERVER/fetch', { mode: 'no-cors' }),
    new Promise((done) => { Object.assign(new Image(), { onload: done, onerror: done }).src = 'SERVER/image'; }),
  ]).then(() => true);
</script></body>"""


@pytest.fixture
def server():
    """The address of a server on this machine, what it was asked for, and who says so."""
    asked: list[str] = []
    is_asked = threading.Condition()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            with is_asked:
                asked.append(self.path)
                is_asked.notify_all()
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}", asked, is_asked
        http.shutdown()
        thread.join()


def test_a_script_in_the_frame_reaches_neither_the_page_nor_the_network(chromium, tmp_path, server):
    address, asked, is_asked = server
    table = treeviz.walk({"a": jnp.ones(3)}, name=EVIL)
    tries = TRIES.replace("SERVER", address)
    (tmp_path / "page.html").write_text(page_of(View(table, values={1: tries})), encoding="utf-8")
    context = new_context(chromium)
    page = context.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    frame = frame_of(page, "a, float32[3]")
    frame.wait_for_function("window.done")
    assert frame.evaluate("[window.reached, origin]") == [[], "null"]
    take_away = f"() => {{ location = '{address}/away' }}"
    page.evaluate(
        """() => document.addEventListener('securitypolicyviolation', ({ effectiveDirective }) => {
            window.refused = effectiveDirective;
        })"""
    )
    frame.evaluate(take_away)
    page.wait_for_function("() => window.refused === 'frame-src'")
    assert asked == []
    assert page.url == (tmp_path / "page.html").as_uri()
    # The same script does all that where nothing holds it back.
    (tmp_path / "free.html").write_text(tries.replace("top.location", "window.x"), encoding="utf-8")
    page.goto((tmp_path / "free.html").as_uri())
    page.evaluate("window.done")
    page.evaluate(take_away)
    with is_asked:
        assert is_asked.wait_for(lambda: {"/fetch", "/image", "/away"} <= set(asked), timeout=60)
    context.close()
