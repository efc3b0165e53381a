"""The explorer in a real JupyterLab: what Python hears, what needs no kernel, and what stands where no widget can."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable

import nbformat
import pytest
from browser.conftest import TIMEOUT_MS, new_window
from browser.driving import settled, violations
from browser.jupyter import (
    NOT_OURS,
    copy_untrusted,
    errors_in_cells,
    n_cells,
    open_notebook,
    run_all_cells,
    save,
    set_theme,
    write_notebook,
)

pytest.importorskip("anywidget")

MODEL_NOT_FOUND = re.compile(r"widget model not found")
NO_BLOB = re.compile(r"blob:|jupyterlab-manager")  # and what the widget manager says of it
SETUP = """
import jax, jax.numpy as jnp, numpy as np, time, ipywidgets, treeviz as tv
layers = [{"w": jnp.ones((3, 4)), "b": jnp.zeros(4)} for _ in range(3)]
params = {"layers": layers, "embed": jnp.ones((10, 4))}
one = tv.explore(params, name="params")
other = tv.explore(params, name="other")
heard = []
one.observe(lambda change: heard.append(change.new), "value")
"""
MANY = """
n_before = len(ipywidgets.Widget.get_manager_state()["state"])
many = [tv.explore({f"leaf{i}": jnp.ones(i + 1)}) for i in range(20)]
n_models = len(ipywidgets.Widget.get_manager_state()["state"]) - n_before
for each in many:
    display(each)
"""
FED = 'ipywidgets.interactive_output(lambda path: print("the path is", path or "none"), {"path": one})'
RUN = """async (code) => {
  const kernel = window.jupyterapp.shell.currentWidget.context.sessionContext.session.kernel;
  const future = kernel.requestExecute({ code, store_history: false }, true);
  let said = '';
  future.onIOPub = (message) => {
    if (message.header.msg_type === 'stream') said += message.content.text;
    if (message.header.msg_type === 'error') said += message.content.traceback.join('\\n');
  };
  await future.done;
  return said.trim();
}"""


def python(page, code: str) -> str:
    return page.evaluate(RUN, code)


def until(page, expression: str, expected: str) -> None:
    """Wait until Python prints that."""
    end = time.monotonic() + TIMEOUT_MS / 1000
    while (said := python(page, f"print({expression})")) != expected:
        assert time.monotonic() < end, said


@pytest.fixture(scope="module")
def lab(jupyterlab):
    write_notebook(jupyterlab, "explore.ipynb", SETUP, "one", "other", "")
    write_notebook(jupyterlab, "many.ipynb", SETUP, MANY, "display(one)\ndisplay(one)", FED)
    write_notebook(jupyterlab, "strict.ipynb", SETUP, "one")
    yield jupyterlab
    jupyterlab.end_kernels()


@pytest.fixture(scope="module")
def open_alone(lab, lab_window):
    """`open_alone(name)` opens a notebook in place of the one before, where nothing may have gone wrong until then."""
    with contextlib.ExitStack() as window:

        def open_notebook(name: str, expected: re.Pattern = NOT_OURS, after_closing: Callable = lambda: None):
            window.close()
            after_closing()
            page, watch = window.enter_context(lab_window(lab, name, 1400))
            window.callback(check, watch, expected)
            return page

        yield open_notebook


def check(watch, expected: re.Pattern) -> None:
    troubles = [trouble for trouble in watch.taken() if not NOT_OURS.search(trouble)]
    assert [trouble for trouble in troubles if not expected.search(trouble)] == []


@pytest.fixture(scope="module")
def page(open_alone):
    page = open_alone("explore.ipynb")
    run_all_cells(page)
    assert errors_in_cells(page) == []
    for i in range(2):
        page.get_by_role("tree").nth(i).wait_for()
    return settled(page)


def rows(page, name: str, i: int = 0):
    return page.get_by_role("tree").nth(i).get_by_role("treeitem", name=name)


def status_of(page, i: int):
    return page.locator("[data-treeviz-widget]").nth(i).locator("output").first


def begin_to_be_busy(page) -> None:
    page.evaluate(
        """(code) => {
            const { kernel } = window.jupyterapp.shell.currentWidget.context.sessionContext.session;
            const future = kernel.requestExecute({ code, store_history: false }, true);
            const begun = new Promise((resolve) => {
                future.onIOPub = (message) => message.content.execution_state === "busy" && resolve();
            });
            window.busy = future.done;
            return begun;
        }""",
        "import pathlib\nfor _ in range(3000):\n  if pathlib.Path('done').exists(): break\n  time.sleep(0.02)",
    )


def be_busy_no_more(page) -> None:
    page.evaluate(
        "() => window.jupyterapp.serviceManager.contents.save('done', { type: 'file', format: 'text', content: '' })"
    )
    page.evaluate("() => window.busy")
    python(page, "import os; os.remove('done')")


def wait_for_status(page, status: str) -> None:
    page.wait_for_function(
        """(status) => window.jupyterapp.shell.currentWidget.context.sessionContext.session.kernel.status === status""",
        arg=status,
    )


def test_what_is_selected_is_seen_in_python(page, shots):
    rows(page, "embed").click()
    until(page, "one.value", "['embed']")
    assert python(page, "print(one.selected[0] is params['embed'], heard, one.logged)") == "True [\"['embed']\"] []"
    shots(page, "explore-light.png")


def test_python_moves_the_view(page):
    python(page, "one.query = 'embed'")
    page.get_by_text("1 of 1 match").first.wait_for()
    python(page, "one.query = ''; one.value = \"['layers'][1]['w']\"")
    page.get_by_role("tree").first.locator("[aria-selected=true] .key", has_text="w").wait_for()


def test_python_says_on_demand_what_is_in_an_array_and_who_holds_it(page, shots):
    python(page, "one.value = \"['embed']\"")
    pane = page.locator(".details").first
    pane.get_by_text("rms").wait_for()
    caption = pane.frame_locator("iframe").locator("p")
    assert caption.inner_text() == "[0:10, 0:4] float32"
    pane.get_by_role("button", name="what keeps this in memory?").click()
    pane.get_by_text("params['embed']", exact=True).wait_for()
    shots(settled(page), "explore-details.png")
    assert python(page, "print(params['embed']._npy_value, one.logged)") == "None []"


def test_two_models_carry_an_explorer(page):
    code = "before = len(ipywidgets.Widget.get_manager_state()['state']); third = tv.explore(params)\n"
    code += "print(len(ipywidgets.Widget.get_manager_state()['state']) - before); third.close()\n"
    code += "print(len(ipywidgets.Widget.get_manager_state()['state']) - before)"
    assert python(page, code).split() == ["2", "0"]


def test_no_shortcut_of_the_notebook_fires_in_the_explorer(page):
    before = n_cells(page)
    page.get_by_role("tree").first.focus()
    for key in ["b", "a", "x", "d", "d", "ArrowDown", "Enter", "m", "y"]:
        page.keyboard.press(key)
    assert n_cells(settled(page)) == before
    assert page.evaluate("() => document.activeElement.closest('.jp-OutputArea') !== null")


def test_linked_explorers_move_together_and_search_while_the_kernel_is_busy(page):
    python(page, "link = [ipywidgets.jslink((one, name), (other, name)) for name in ('value', 'query')]")
    # The links are there when the second has taken what the first one has.
    page.get_by_role("tree").nth(1).locator("[aria-selected=true] .key", has_text="w").wait_for()
    begin_to_be_busy(page)
    rows(page, "embed").click()
    page.get_by_role("tree").nth(1).locator("[aria-selected=true] .key", has_text="embed").wait_for()
    page.get_by_role("searchbox").nth(1).fill("layers")
    page.get_by_text(re.compile("of 10 matches")).first.wait_for()
    assert page.get_by_role("searchbox").first.input_value() == "layers"
    page.get_by_role("searchbox").nth(1).fill("")
    be_busy_no_more(page)
    until(page, "other.value", "['embed']")
    python(page, "[each.unlink() for each in link]")


def test_a_new_tree_keeps_the_place_and_says_what_changed(page):
    python(page, "one.value = \"['layers'][2]['w']\"; params2 = {**params, 'new': 1}; one.tree = params2")
    page.locator("output", has_text="1 added").wait_for()
    assert page.get_by_role("tree").first.locator("[aria-selected=true] .key").inner_text() == "w"
    assert python(page, "print(one.value, one.selected[0] is params2['layers'][2]['w'])") == "['layers'][2]['w'] True"


def test_the_explorer_reads_well_in_the_dark(page, shots):
    for theme in "JupyterLab Dark", "JupyterLab Light":
        set_theme(page, theme)
        page.wait_for_function(
            """is_dark => document.querySelector('[data-treeviz-widget]').shadowRoot
                .querySelector('.treeviz').classList.contains('dark') === is_dark""",
            arg="Dark" in theme,
        )
        shots(settled(page), f"explore-{theme.split()[1].lower()}.png")
        assert violations(page, "[data-treeviz-widget]") == []


def test_a_closed_explorer_is_gone(page):
    python(page, "third = tv.explore([1, 2], name='third')")
    assert python(page, "third.close(); print(repr(third))") == "explore: closed"
    python(page, "other.close()")
    page.get_by_role("tree").nth(1).wait_for(state="detached")


def test_a_saved_notebook_holds_one_page_for_each_and_shows_it_when_nobody_trusts_it_or_no_kernel_answers(
    page, lab, open_alone, shots
):
    begin_to_be_busy(page)
    save(page)
    be_busy_no_more(page)
    saved = nbformat.read(lab.root / "explore.ipynb", 4)
    outputs = [output.data for cell in saved.cells for output in cell.outputs]
    assert [len(data.get("text/html", "")) > 0 for data in outputs] == [False, True, False, True]
    assert "treeviz" in outputs[1]["text/html"] and len(outputs[1]["text/html"]) < 60_000
    untrusted = open_alone(copy_untrusted(lab, "explore.ipynb"))
    untrusted.locator(".jp-OutputArea details").first.wait_for()
    assert untrusted.get_by_role("tree").count() == 0, "a script ran in a notebook that nobody trusts"
    assert "embed" in untrusted.locator(".jp-OutputArea:has(details)").first.inner_text()
    shots(untrusted, "explore-untrusted.png")
    alone = open_alone("explore.ipynb", MODEL_NOT_FOUND, after_closing=lab.end_kernels)
    alone.get_by_text("Saved view. Run the cell to explore live.").first.wait_for()
    for message in alone.get_by_text("model not found").all():
        assert not message.is_visible(), "the saved view stands in the place of the widget"
    alone.get_by_role("tree").first.wait_for()
    alone.get_by_role("searchbox").first.fill("embed")
    alone.get_by_text(re.compile("1 match|1 of 1")).first.wait_for()
    shots(alone, "explore-no-kernel.png")


def test_where_the_policy_forbids_blob_the_page_stands_and_says_why(lab, chromium, shots):
    def forbid(route) -> None:
        answer = route.fetch()
        policy = "script-src 'self' 'unsafe-inline' 'unsafe-eval'"
        route.fulfill(response=answer, headers={**answer.headers, "content-security-policy": policy})

    page, watch = new_window(chromium, viewport={"width": 1280, "height": 1400})
    page.route(lambda url: url == lab.url("strict.ipynb"), forbid)
    page.context.grant_permissions(["local-network-access"])  # Chromium does not know from where such a page came
    open_notebook(page, lab, "strict.ipynb")
    run_all_cells(page)
    page.get_by_text("forbids blob:").wait_for()
    page.get_by_role("tree").wait_for()
    rows(settled(page), "embed").click()
    page.get_by_text("params['embed']").first.wait_for()
    shots(page, "explore-no-blob.png")
    page.context.close()
    check(watch, NO_BLOB)


@pytest.fixture(scope="module")
def crowd(open_alone):
    """Twenty explorers, another one twice, and a function that is fed with what is selected in it."""
    page = open_alone("many.ipynb")
    run_all_cells(page)
    assert errors_in_cells(page) == []
    for i in range(22):
        page.get_by_role("tree").nth(i).wait_for()
    return settled(page)


def test_twenty_explorers_on_a_page_have_forty_models_and_each_hears_for_itself(crowd):
    assert python(crowd, "print(n_models)") == "40"
    for i in 19, 7, 0:
        rows(crowd, f"leaf{i},", i).click()
        until(crowd, f"many[{i}].value", f"['leaf{i}']")
    assert python(crowd, "print([i for i in range(20) if many[i].value])") == "[0, 7, 19]"
    python(crowd, "for each in many: each.query = 'leaf'")
    for i in range(20):
        crowd.get_by_role("tree").nth(i).locator(".row .key", has_text=f"leaf{i}").wait_for()
        status_of(crowd, i).filter(has_text="1 match").wait_for()


def test_an_explorer_that_is_shown_twice_agrees_with_itself_and_feeds_a_function(crowd):
    first, second = (crowd.get_by_role("tree").nth(i) for i in (20, 21))
    crowd.get_by_text("the path is none").wait_for()
    first.get_by_role("treeitem", name="embed").click()
    second.locator("[aria-selected=true] .key", has_text="embed").wait_for()
    crowd.get_by_text("the path is ['embed']").wait_for()
    second.get_by_role("treeitem", name="layers").click()
    second.press("ArrowLeft")
    first.locator("[aria-expanded=false] .key", has_text="layers").wait_for()
    until(crowd, "\"['layers']\" in one.expanded", "False")
    crowd.get_by_role("searchbox").nth(21).fill("dtype:f32")
    first.page.wait_for_function(
        "() => document.querySelectorAll('[data-treeviz-widget]')[20].shadowRoot.querySelector('input').value !== ''"
    )
    until(crowd, "one.query", "dtype:f32")
    python(crowd, "one.query = ''; one.expanded = ['params', \"['layers']\"]")
    for tree in first, second:
        tree.get_by_role("treeitem", name="[2]").wait_for()


def test_when_the_kernel_is_restarted_explorers_stay_usable_and_say_so(crowd, shots):
    page = crowd
    page.evaluate("() => window.jupyterapp.shell.currentWidget.context.sessionContext.session.kernel.restart()")
    wait_for_status(page, "idle")
    rows(page, "embed", 20).click()
    status = status_of(page, 20)
    status.filter(has_text=re.compile("the kernel is busy or stopped|Python does not hear")).wait_for()
    page.get_by_role("tree").nth(20).locator("[aria-selected=true] .key", has_text="embed").wait_for()
    page.get_by_role("searchbox").nth(20).fill("layers/*/w")
    status.filter(has_text="3 matches").wait_for()
    shots(settled(page), "explore-restarted.png")
    run_all_cells(page)
    assert errors_in_cells(page) == []
    rows(page, "embed", 20).click()
    until(page, "one.value", "['embed']")
