"""The live panel in a real JupyterLab: loops that block, threads, tasks, what ends them, and what stays."""

from __future__ import annotations

import contextlib
import re

import nbformat
import pytest
from browser.driving import settled
from browser.jupyter import NOT_OURS, PATIENCE_S, Lab, run_all_cells, save, write_notebook
from browser.kernels import INSTALLED, IPYKERNELS, use_ipykernel

pytest.importorskip("anywidget")

SETUP = """
import asyncio, signal, sys, threading, time
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np, treeviz as tv
params = {"layers": [{"w": jnp.ones((3, 4)), "b": jnp.zeros(4)} for _ in range(3)], "embed": jnp.ones((10, 4))}

@jax.jit
def measured(scale):
    return tv.measure(grads=jax.tree.map(lambda leaf: (leaf + 1) * scale, params))

def steps(inspector, until=""):
    for n in range(100_000):
        if until and Path(until).exists():
            return
        inspector.record(measured(jnp.float32(np.nan if n == 5 else 1 / (n + 1))))
        yield n

def new():
    return tv.GradientInspector(name="net")
"""
BLOCKING = """
blocking = new()
print("before")
with blocking.live(total=100) as panel:
    for n in steps(blocking, "stop blocking"):
        time.sleep(0.05)
        print(f"bar {n % 2}", end="\\r", file=sys.stderr)
print("\\nafter", len(blocking.history) - n)
"""
RAISING = """
raising = new()
try:
    with raising.live(total=100):
        for n in steps(raising):
            if n == 40:
                raise ValueError
except ValueError:
    pass
"""
INTERRUPTED = """
interrupted = new()
try:
    with interrupted.live():
        for n in steps(interrupted):
            if n == 40:
                signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    pass
"""
UNTHROTTLED = """
unthrottled = new()
measurement = jax.block_until_ready(measured(jnp.float32(1)))
panel = unthrottled.explore(total=20_000)
display(panel)
for _ in range(20_000):
    unthrottled.record(measurement)
"""
TASK = """
task = new()
with task.live(total=60):
    for n in steps(task):
        await asyncio.sleep(0.001)
        if n == 59:
            break
"""
THREAD = """
threaded = new()
panel = threaded.explore()
def loop():
    for n in steps(threaded, "stop thread"):
        time.sleep(0.05)
thread = threading.Thread(target=loop, daemon=True)
thread.start()
panel
"""
SECOND_VIEW = "panel"


@pytest.fixture(scope="module", params=IPYKERNELS)
def lab(request, tmp_path_factory):
    pytest.importorskip("jupyterlab")
    if request.param == INSTALLED:
        yield request.getfixturevalue("jupyterlab")
        return
    folder = tmp_path_factory.mktemp("lab")
    use_ipykernel(request.param, folder)
    with Lab(folder) as lab:
        kernel = lab._ask("kernelspecs")["kernelspecs"]["python3"]["spec"]["display_name"]
        assert request.param == kernel.split()[-1]
        yield lab


@pytest.fixture
def open_in(lab, lab_window):
    """`open_in(*cells)` opens a notebook with these; at the end nothing may have gone wrong there."""
    watches = []
    with contextlib.ExitStack() as windows:

        def open_window(*cells: str, name: str = "live.ipynb"):
            if cells:
                write_notebook(lab, name, SETUP, *cells)
            windows.callback(lab.end_kernels)
            page, watch = windows.enter_context(lab_window(lab, name, 1600))
            watches.append(watch)
            return page

        yield open_window
    for watch in watches:
        assert [trouble for trouble in watch.taken() if not NOT_OURS.search(trouble)] == []


def start_all_cells(page) -> None:
    page.wait_for_function(
        "() => window.jupyterapp.shell.currentWidget.context.sessionContext.session?.kernel?.status === 'idle'",
        timeout=1000 * PATIENCE_S,
    )
    page.evaluate("() => void window.jupyterapp.commands.execute('notebook:run-all-cells')")


def is_busy(page) -> bool:
    """Whether a cell runs. The kernel's status is no help: it is idle whenever a message was answered."""
    return page.evaluate(
        """() => window.jupyterapp.shell.currentWidget.content.widgets
            .some((cell) => cell.model.executionState === 'running')"""
    )


def state(page, number: int = 0):
    return page.locator(".live .state").nth(number)


def step(page, number: int = 0) -> int:
    """The step that a panel says it is at."""
    words = page.locator(".live .text").nth(number).inner_text()
    found = re.search(r"step ([\d,]+)", words)
    assert found, words
    return int(found[1].replace(",", ""))


def wait_until_running(page) -> None:
    page.locator(".live[data-state=running] .text", has_text=re.compile(r"step [1-9][\d,]")).first.wait_for(
        timeout=1000 * PATIENCE_S
    )


def select(page, name: str) -> None:
    """Click a row until it is selected: a click is lost where its view is replaced between press and release."""
    row, chosen = (page.get_by_role("treeitem", name=name, **how).first for how in ({}, {"selected": True}))
    for _ in range(20):
        row.click()
        if chosen.is_visible():
            return
    raise AssertionError(f"{name} cannot be selected")


def wait_until_idle(page) -> None:
    page.wait_for_function(
        """() => {
            const notebook = window.jupyterapp.shell.currentWidget;
            const cells = notebook.content.widgets
                .filter((cell) => cell.model.type === 'code' && cell.model.sharedModel.source);
            return cells.every((cell) => cell.model.executionCount != null && cell.model.executionState !== 'running');
        }""",
        timeout=1000 * PATIENCE_S,
    )


def outputs(lab: Lab, cell: int, name: str = "live.ipynb") -> list:
    return nbformat.read(lab.root / name, as_version=4).cells[cell].outputs


def page_in(output) -> str:
    return output.get("data", {}).get("text/html", "")


def test_a_loop_that_blocks_the_kernel_is_seen_and_its_end_is_kept(lab, open_in, shots):
    page = open_in(BLOCKING)
    start_all_cells(page)
    wait_until_running(page)
    assert is_busy(page)
    before = step(page)
    page.wait_for_function(
        "(before) => +document.querySelector('.jp-OutputArea .treeviz').shadowRoot.querySelector('.text')"
        ".textContent.match(/step ([\\d,]+)/)[1].replaceAll(',', '') > before",
        arg=before,
    )
    # It need not come to rest while the loop runs: what is to be there is waited for.
    select(page, "embed")
    page.locator("svg.chart").first.wait_for()
    page.get_by_role("button", name="pin row").click()
    page.locator(".pin").wait_for()
    page.get_by_role("button", name="pause").click()
    page.get_by_role("button", name="resume").click()
    named = page.get_by_role("treeitem", name=re.compile("nonfinite"))
    named.or_(page.get_by_text(re.compile(r"findings \([1-9]"))).first.wait_for()
    shots(page, "live-running.png")
    assert is_busy(page)
    (lab.root / "stop blocking").touch()
    page.locator(".live[data-state=done]").wait_for(timeout=1000 * PATIENCE_S)
    wait_until_idle(page)
    settled(page)
    assert page.locator(".pin").count() == 1, "what was chosen stays"
    save(page)
    said = outputs(lab, 1)
    printed = {
        name: "".join(o.text for o in said if o.output_type == "stream" and o.name == name)
        for name in ("stdout", "stderr")
    }
    assert printed["stdout"] == "before\n\nafter 1\n"
    assert re.fullmatch(r"(bar \d\r?)*", printed["stderr"])
    (kept,) = [page_in(o) for o in said if "data-treeviz-fallback" in page_in(o)]
    assert "nonfinite" in kept and "waiting for the first step" not in kept
    shots(page, "live-done.png")


def test_what_ends_a_loop_is_said_and_the_picture_is_whole(lab, open_in):
    page = open_in(RAISING, INTERRUPTED, UNTHROTTLED, TASK)
    run_all_cells(page)
    said = ("stopped by ValueError", "stopped by KeyboardInterrupt", "finished", "finished with errors")
    for number, (text, last) in enumerate(zip(said, (41, 40, 20_000, 60), strict=True)):
        page.locator(".live").nth(number).locator(".state", has_text=text).wait_for(timeout=1000 * PATIENCE_S)
        settled(page)
        assert state(page, number).inner_text() == text and step(page, number) == last
    save(page)
    for cell, last in ((1, 40), (2, 40), (3, 19_999), (4, 59)):
        (kept,) = [page_in(o) for o in outputs(lab, cell) if "data-treeviz-fallback" in page_in(o)]
        assert f"step {last:,}" in kept


def test_two_views_of_a_run_in_a_thread_agree_and_a_page_that_comes_anew_gets_all_of_it(lab, open_in, shots):
    page = open_in(THREAD, SECOND_VIEW, name="thread.ipynb")
    start_all_cells(page)
    page.locator(".live[data-state=running]").nth(1).wait_for(timeout=1000 * PATIENCE_S)
    wait_until_running(page)
    save(page)
    page.reload()
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=1000 * PATIENCE_S)
    page.locator(".live[data-state=running]").nth(1).wait_for(timeout=1000 * PATIENCE_S)
    wait_until_running(page)
    (lab.root / "stop thread").touch()
    page.locator(".live[data-state=still]").nth(1).wait_for(timeout=1000 * PATIENCE_S)
    settled(page)
    assert step(page, 0) == step(page, 1) > 0
    hosts = page.locator(".treeviz[data-treeviz-widget]").all()
    first = [host.locator(".axis span").first.inner_text() for host in hosts]
    assert first == ["0", "0"], "what came before the page did is there"
    shots(page, "live-thread.png")
