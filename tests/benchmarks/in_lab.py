"""One way to show a tree, in a JupyterLab and a Chromium of its own: how long it takes, and what it makes.

    python tests/benchmarks/in_lab.py treeviz 10000
    python tests/benchmarks/in_lab.py render 10000    # the page of `treeviz.render`, until its first row

The last line that it prints is JSON. Whoever runs it may end it: its server and its browser end with it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import nbformat
from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).parent
sys.path[0] = str(HERE.parent)  # not this folder: its browser.py would hide the package of that name

from browser.conftest import ARGUMENTS, CHROMIUM  # noqa: E402
from browser.jupyter import Lab, errors_in_cells, open_notebook, run_all_cells  # noqa: E402

SHOW = (HERE / "in_lab.js").read_text("utf-8")
N_TIMES = 3
LONG_MS = 5000  # what takes longer is shown once
SEARCH = "attention query kernel"
FOUND = "match"

TREE = """
import sys, time
sys.path.insert(0, {here!r})
from ipywidgets.widgets.widget import _instances as models
from trees import layers, numpy_zeros
heard = []
def hear(change):
    heard.append(1000 * time.time())
"""
TOOLS = {
    "treeviz": """
import treeviz
def shown(tree):
    widget = treeviz.explore(tree, depth=2)
    widget.observe(hear, "value")
    return widget
""",
    "render": """
import treeviz
class shown:
    def __init__(self, tree):
        self.view = treeviz.render(tree, depth=2)
    def _ipython_display_(self):
        display(self.view)
    def close(self):
        pass
""",
    "ipytree": """
from ipytree import Node, Tree
def node(name, tree):
    if isinstance(tree, dict):
        return Node(name, [node(key, child) for key, child in tree.items()], opened=name == "params")
    if isinstance(tree, list):
        return Node(name, [node(f"[{i}]", child) for i, child in enumerate(tree)], opened=False)
    return Node(f"{name} {tree.dtype}{list(tree.shape)}")
def shown(tree):
    widget = Tree([node("params", tree["params"])])
    widget.observe(hear, "selected_nodes")
    return widget
""",
    "accordion": """
import ipywidgets
def box(tree):
    if not isinstance(tree, (dict, list)):
        return ipywidgets.Label(f"{tree.dtype}{list(tree.shape)}")
    children = tree.items() if isinstance(tree, dict) else ((f"[{i}]", child) for i, child in enumerate(tree))
    titles, boxes = zip(*((name, box(child)) for name, child in children))
    return ipywidgets.Accordion(boxes, titles=titles)
def shown(tree):
    widget = box(tree["params"])
    widget.observe(hear, "selected_index")
    return widget
""",
    "treescope": """
import treescope
class shown:
    def __init__(self, tree):
        self.tree = tree
    def _ipython_display_(self):
        treescope.display(self.tree)
    def close(self):
        pass
""",
}
# The first one makes a notebook load what it has to load once.
WARM_UP = "widget = shown(layers(20, numpy_zeros, 4)); display(widget); widget.close()"
CELL = """display(begun := shown(tree))"""
IN_KERNEL = """async (code) => {
  const { kernel } = window.jupyterapp.shell.currentWidget.context.sessionContext.session;
  const future = kernel.requestExecute({ code, store_history: false }, true);
  let said = '';
  future.onIOPub = ({ header, content }) => {
    if (header.msg_type === 'stream' && content.name === 'stdout') said += content.text;
    if (header.msg_type === 'error') said += content.traceback.join('\\n');
  };
  await future.done;
  return said.trim();
}"""


def measure(tool: str, n_leaves: int) -> dict[str, Any]:
    """Milliseconds, and counts; what a tool does not have is left out."""
    folder = Path(tempfile.mkdtemp())
    with Lab(folder / "lab") as lab, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        page = browser.new_context(viewport={"width": 1200, "height": 1000}).new_page()
        page.set_default_timeout(0)  # whoever waits for the figures has a limit
        notebook = nbformat.v4.new_notebook()
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        cells = [TREE.format(here=str(HERE)) + TOOLS[tool], WARM_UP]
        notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
        nbformat.write(notebook, lab.root / "bench.ipynb")
        open_notebook(page, lab, "bench.ipynb")
        run_all_cells(page)
        assert errors_in_cells(page) == [], errors_in_cells(page)
        figures = _measure(page, tool, n_leaves)
        page.close()
        browser.close()
    return figures


def _measure(page: Page, tool: str, n_leaves: int) -> dict[str, Any]:
    def python(code: str) -> str:
        return page.evaluate(IN_KERNEL, code)

    page.evaluate(SHOW)
    python(f"tree = layers({n_leaves}, numpy_zeros, 4); n_before = len(models)")
    page.evaluate(
        """(source) => {
            const notebook = window.jupyterapp.shell.currentWidget.content;
            notebook.model.sharedModel.addCell({ cell_type: 'code', source });
        }""",
        CELL,
    )
    shown: list[float] = []
    while len(shown) < N_TIMES and sum(shown) < LONG_MS:
        if shown:
            python("begun.close(); begun = None")
        shown.append(page.evaluate("tool => bench.show(tool)", tool))
        if len(shown) == 1:
            n_models = int(python("print(len(models) - n_before)"))
    figures: dict[str, Any] = {"interactive": min(shown), "n_models": n_models}
    if tool == "render":
        return figures
    counts = [page.evaluate("() => bench.n_elements()")]
    before = "import time; start = time.perf_counter(); other = shown(tree); took = time.perf_counter() - start"
    if tool != "treescope":  # which makes nothing before it displays
        figures["python"] = 1000 * float(python(f"{before}; other.close(); del other; print(took)"))

    toggles: list[float] = []
    while len(toggles) < 2 * N_TIMES and sum(toggles) < LONG_MS:
        place = page.evaluate("tool => bench.place(tool, 'arrow')", tool)
        page.evaluate("tool => bench.arm_toggle(tool)", tool)
        page.mouse.click(*place)
        toggles.append(page.evaluate("() => bench.over"))
        page.wait_for_timeout(300)
        counts.append(page.evaluate("() => bench.n_elements()"))
    figures["expand"] = median(toggles[::2])
    if tool != "treescope":
        python("heard.clear()")
        heard: list[float] = []
        for _ in range(N_TIMES):
            place = page.evaluate("tool => bench.place(tool, 'selectable')", tool)
            page.evaluate("() => bench.arm('pointerdown', () => true)")
            page.mouse.click(*place)
            page.evaluate("() => bench.over")
            page.wait_for_timeout(1000)
            until = python("print(heard[-1] if heard else 'nothing')")
            if until == "nothing":
                break
            heard.append(float(until) - page.evaluate("() => bench.at"))
            python("heard.clear()")
            page.keyboard.press("ArrowUp" if tool == "treeviz" else "Escape")
            page.wait_for_timeout(1000)
            python("heard.clear()")
        if heard:
            figures["selection"] = median(heard)
        counts.append(page.evaluate("() => bench.n_elements()"))
    figures["n_elements"] = max(counts)
    if tool == "treeviz":
        searches = []
        for word in SEARCH.split():
            box = page.get_by_role("searchbox").last  # the page of the first one, which is closed, may stand before it
            box.fill("")
            page.wait_for_timeout(500)
            box.focus()
            page.evaluate("said => bench.arm_search(said)", FOUND)
            page.keyboard.insert_text(word)
            searches.append(page.evaluate("() => bench.over"))
        figures["search"] = max(searches)
    return figures


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
