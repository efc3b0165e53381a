"""The demo notebook in a real JupyterLab: run it, drill in, and reopen it where nobody trusts it."""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path

import pytest
from browser.driving import copied, copy_path, opened, settled
from browser.jupyter import NOT_OURS, copy_untrusted, errors_in_cells, n_cells, run_all_cells, save, set_theme
from notebooks import check_views, read

NOTEBOOK = Path(__file__).parents[2] / "demos" / "01_see_a_model.ipynb"


@pytest.fixture(scope="module")
def lab(jupyterlab):
    shutil.copy(NOTEBOOK, jupyterlab.root)
    yield jupyterlab
    jupyterlab.end_kernels()


@pytest.fixture(scope="module")
def open_alone(lab, lab_window):
    """`open_alone(name)` opens a notebook in place of the one before, where nothing may have gone wrong."""
    with contextlib.ExitStack() as window:

        def open_notebook(name: str):
            window.close()
            page, watch = window.enter_context(lab_window(lab, name, 1000))
            window.callback(check, watch)
            return page

        yield open_notebook


def check(watch) -> None:
    assert [trouble for trouble in watch.taken() if not NOT_OURS.search(trouble)] == []


@pytest.fixture(scope="module")
def page(open_alone):
    """The demo notebook with all of its cells run."""
    page = open_alone(NOTEBOOK.name)
    run_all_cells(page)
    assert errors_in_cells(page) == []
    return opened(page, 2)


def first_tree(page):
    tree = page.get_by_role("tree").first
    tree.scroll_into_view_if_needed()
    settled(page)
    return tree


def test_the_demo_shows_trees_that_close_and_open(page, shots):
    tree = first_tree(page)
    rows = tree.get_by_role("treeitem")
    shots(page, "lab-light.png")
    n_rows = rows.count()
    assert n_rows > 3
    rows.first.click(position={"x": 10, "y": 10})
    tree.locator("[role=treeitem][aria-expanded=false]").first.wait_for()
    settled(page)
    assert rows.count() == 1
    assert rows.first.get_attribute("aria-expanded") == "false"
    tree.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    rows.nth(n_rows - 1).wait_for()


def test_the_search_box_counts_what_it_finds(page):
    search = page.get_by_role("searchbox").first
    search.fill("dtype:f32")
    page.get_by_text(re.compile(r"\d+ match")).first.wait_for()
    search.fill("no such thing")
    page.get_by_text(re.compile("^Nothing matches")).first.wait_for()
    search.fill("")


def test_no_shortcut_of_the_notebook_fires_in_the_tree(page):
    before = n_cells(page)
    first_tree(page).focus()
    for key in ["b", "a", "x", "d", "d", "ArrowDown", "Enter", "m", "y"]:
        page.keyboard.press(key)
    assert n_cells(settled(page)) == before
    assert page.evaluate("() => document.activeElement.closest('.jp-OutputArea') !== null")


def test_a_key_that_means_nothing_in_the_tree_is_the_notebooks(page):
    count = """() => window.jupyterapp.shell.currentWidget.content.widgets
        .map(cell => cell.model.executionCount ?? 0).reduce((a, b) => Math.max(a, b), 0)"""
    before = page.evaluate(count)
    first_tree(page).focus()
    with page.expect_request(lambda request: request.method == "PUT" and NOTEBOOK.name in request.url):
        page.keyboard.press("Control+s")
    page.keyboard.press("Shift+Enter")
    page.wait_for_function(f"before => ({count})() > before", arg=before)
    opened(page, 2)


def test_a_row_copies_python_that_leads_to_it(page):
    tree = first_tree(page)
    tree.get_by_role("treeitem").nth(1).click()
    python = copied(settled(page), lambda: copy_path(page))
    assert re.match(r"\w+[\[.]", python)


def test_two_outputs_share_no_id_and_leave_no_global(page):
    ids = page.evaluate(
        """() => [...document.querySelectorAll('.treeviz')].map(
          host => [host, host.shadowRoot].map(root => [...root.querySelectorAll('[id]')].map(e => e.id)))"""
    )
    assert len(ids) > 1
    for outside, inside in ids:
        assert outside == []
        assert len(inside) == len(set(inside))
    assert page.evaluate("() => Object.keys(window).filter(name => /treeviz|tv_/i.test(name))") == []


def test_dark_follows_jupyterlab(page, shots):
    color = "() => getComputedStyle(document.querySelector('.treeviz').shadowRoot.querySelector('[role=tree]')).color"
    light = page.evaluate(color)
    set_theme(page, "JupyterLab Dark")
    page.wait_for_function(f"light => ({color})() !== light", arg=light)
    first_tree(page)
    shots(page, "lab-dark.png")
    set_theme(page, "JupyterLab Light")


WRONG = f"""import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from thirty_values import wrong_in_this_notebook
print(wrong_in_this_notebook())"""
RUN = """async (code) => {
  const { kernel } = window.jupyterapp.shell.currentWidget.context.sessionContext.session;
  const future = kernel.requestExecute({ code, store_history: false });
  const said = [];
  future.onIOPub = ({ content }) => said.push(content.text ?? content.evalue ?? '');
  await future.done;
  return said.join('');
}"""


def test_trees_are_displayed_without_a_call_and_all_else_as_before_with_treescope_and_without(page):
    assert page.evaluate(RUN, WRONG) == "[]\n"


def test_a_saved_notebook_has_every_view_as_a_page_and_as_text_and_untrusted_its_first_rows(
    page, lab, open_alone, shots
):
    save(page)
    check_views(read(lab.root / NOTEBOOK.name))
    untrusted = open_alone(copy_untrusted(lab, NOTEBOOK.name))
    details = untrusted.locator(".jp-OutputArea details").first
    details.wait_for()
    settled(untrusted)
    assert untrusted.get_by_role("tree").count() == 0, "a script ran in a notebook that nobody trusts"
    text = untrusted.locator(".jp-OutputArea").first.inner_text() + details.inner_text()
    assert "float32[" in text and "leaves" in text
    shots(untrusted, "lab-untrusted.png")
