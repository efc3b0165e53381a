"""The explorer in other hosts than JupyterLab: Notebook 7, Voilà, marimo, and a page that nbconvert made."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from browser.conftest import Watch, new_context
from browser.driving import settled
from browser.jupyter import PATIENCE_S, errors_in_cells, open_notebook, run_all_cells, write_notebook
from browser.server import Server
from notebooks import executed

pytest.importorskip("anywidget")

# Notebook 7.6 looks for settings of its own that are not there, also in an empty notebook, and for the files of the Lab
# that serves it; Voilà 0.5 for an extension.
NOT_OURS = re.compile(
    r"favicon|ResizeObserver loop|was preloaded|/lsp/status|lab-extension|reading 'schema'|filebrowser:open-path"
)
# What their templates ask the network for; it is not let through.
OF_THE_TEMPLATE = re.compile(r"https://(cdn\.jsdelivr\.net/npm/@fortawesome|cdnjs\.cloudflare\.com/ajax/libs)/")
DEMO = Path(__file__).parents[2] / "demos" / "03_explore.ipynb"

TESTS = str(Path(__file__).parents[1])

SETUP = """
import jax.numpy as jnp
import treeviz as tv
layers = [{"w": jnp.ones((3, 4)), "b": jnp.zeros(4)} for _ in range(3)]
params = {"layers": layers, "embed": jnp.ones((10, 4))}
"""
EXPLORE = """
import ipywidgets
widget = tv.explore(params, name="params")
heard = ipywidgets.Label("heard nothing")
def hear(change):
    (node,) = widget.selected
    heard.value = f"heard {change.new}: {node is params['embed']}"
widget.observe(hear, "value")
display(widget, heard)
"""
IN_MARIMO = f"""
import marimo
app = marimo.App()

@app.cell
def _():
    import marimo as mo
    {SETUP.strip().replace(chr(10), chr(10) + "    ")}
    return mo, params, tv

@app.cell
def _(mo, params, tv):
    widget = mo.ui.anywidget(tv.explore(params, name="params"))
    widget
    return (widget,)

@app.cell
def _(mo, params, widget):
    is_it = [node is params["embed"] for node in widget.selected]
    mo.plain_text(f"heard {{widget.value['value'] or 'nothing'}}: {{is_it}}")
    return

@app.cell
def _(mo, tv):
    import sys
    sys.path.insert(0, {TESTS!r})
    from thirty_values import wrong_in_this_notebook
    wrong = wrong_in_this_notebook()
    tv.register_as_default()
    mo.plain_text(f"displayed wrongly: {{wrong}}")
    return (wrong,)

@app.cell
def _(params, wrong):
    wrong
    params
    return
"""


@pytest.fixture
def open_window(chromium):
    """A new page; at the end nothing may have gone wrong there, nor been asked of the network by anything of ours."""
    opened = []

    def open_page():
        context = new_context(chromium, viewport={"width": 1280, "height": 1000}, reduced_motion="reduce")
        context.set_default_timeout(1000 * PATIENCE_S)
        opened.append((context, Watch(context)))
        return context.new_page()

    yield open_page
    for context, watch in opened:
        context.close()
        troubles = [trouble for trouble in watch.troubles if not NOT_OURS.search(trouble)]
        assert [trouble for trouble in troubles if not OF_THE_TEMPLATE.search(trouble)] == []


def check_explorer(page, heard: str) -> None:
    """It is a widget, it searches, and Python hears which row is clicked, and has the very array of it."""
    explorer = page.locator("[data-treeviz-widget]")
    rows = explorer.get_by_role("tree").get_by_role("treeitem")
    rows.first.wait_for()
    settled(page)
    search = explorer.get_by_role("searchbox")
    search.fill("embed")
    explorer.get_by_text("1 of 1 match").wait_for()
    search.fill("")
    settled(page)
    page.get_by_text(re.compile(r"^heard nothing")).wait_for()
    explorer.get_by_role("treeitem", name="embed").click()
    page.get_by_text(heard, exact=True).wait_for()
    explorer.get_by_text("params['embed']", exact=True).first.wait_for()


@pytest.fixture(scope="module")
def lab(jupyterlab):
    write_notebook(jupyterlab, "hosted.ipynb", SETUP, EXPLORE, "tv.render(params)")
    yield jupyterlab
    jupyterlab.end_kernels()


def test_notebook_7_hears_what_is_clicked(lab, open_window, shots):
    pytest.importorskip("notebook")
    page = open_window()
    open_notebook(page, lab, "hosted.ipynb", "notebooks")
    run_all_cells(page)
    assert errors_in_cells(page) == []
    check_explorer(page, "heard ['embed']: True")
    page.get_by_role("tree").nth(1).wait_for()
    shots(page, "hosts-notebook.png")
    page.close()


def test_voila_hears_what_is_clicked(lab, open_window, shots):
    pytest.importorskip("voila")
    page = open_window()
    page.goto(lab.url("hosted.ipynb", "voila/render"))
    check_explorer(page, "heard ['embed']: True")
    page.get_by_role("tree").nth(1).wait_for()
    shots(page, "hosts-voila.png")
    page.close()


# A locator does not look into frames: what it finds is in the page itself.
def test_marimo_shows_it_inline_and_runs_the_cells_that_depend_on_it_and_trees_without_a_call(
    open_window, tmp_path, shots
):
    pytest.importorskip("marimo")
    file = tmp_path / "explore.py"
    file.write_text(IN_MARIMO)
    options = ["--headless", "--no-token", "--skip-update-check", "--host", "127.0.0.1", "--port", "{port}"]
    arguments = ["--quiet", "edit", str(file), *options]
    (tmp_path / "config" / "marimo").mkdir(parents=True)
    (tmp_path / "config" / "marimo" / "marimo.toml").write_text("[runtime]\nauto_instantiate = true\n")
    with Server(tmp_path, "marimo", arguments, ready="health") as marimo:
        page = open_window()
        page.goto(marimo.address)
        check_explorer(page, "heard ['embed']: [True]")
        page.get_by_text("displayed wrongly: []", exact=True).wait_for()
        of_params = page.frame_locator("iframe[src*='@file']").get_by_role("tree")
        of_params.get_by_role("treeitem", name="params").first.wait_for()
        shots(page, "hosts-marimo.png")
        page.close()


@pytest.mark.filterwarnings("default")  # of the kernel's client, not ours
def test_the_page_that_nbconvert_makes_of_the_demo_is_read_and_searched_offline(
    open_window, tmp_path, tmp_path_factory, shots
):
    exporters = pytest.importorskip("nbconvert.exporters")
    for library in ("equinox", "optax"):
        pytest.importorskip(library)
    notebook = executed(DEMO, tmp_path_factory)
    html, _ = exporters.HTMLExporter().from_notebook_node(notebook)
    file = tmp_path / "explore.html"
    file.write_text(html, encoding="utf-8")
    page = open_window()
    page.goto(file.as_uri())
    tree = page.get_by_role("tree")
    tree.wait_for()
    settled(page)
    tree.get_by_role("treeitem", name="embed").first.wait_for()
    search = page.get_by_role("searchbox")
    search.fill("attention output_proj weight")
    page.get_by_text("1 of 2 matches").wait_for()
    settled(page)
    tree.get_by_role("treeitem", name="weight").first.click()
    page.get_by_text("model.blocks[0].attention.output_proj.weight").first.wait_for()
    shots(page, "hosts-nbconvert.png")
