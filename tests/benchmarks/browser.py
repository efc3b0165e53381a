"""What a page costs the browser: CPU time of Chromium's main thread, and elements in the document.

CPU time is `TaskDuration` of the DevTools protocol in its time domain `threadTicks`, which does not count what
other processes do to the machine. A page is ready, and an operation is over, when the main thread has been idle
for a while and the number of nodes stays the same; what the same wait costs when nothing is done is taken off.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from shutil import which
from statistics import median
from typing import Any, NamedTuple

from peers import BLANK
from playwright.sync_api import Browser, CDPSession, Page, sync_playwright
from python_side import LIMIT_S, not_finished

CHROMIUM = os.environ.get("TREEVIZ_CHROMIUM") or which("chromium-headless-shell") or which("chromium")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
VIEWPORT = {"width": 1200, "height": 900}
WORD = "kernel"  # what is typed into the search box
N_LOADS, N_TOGGLES = 3, 6
LONG_S = 2.0  # a page that takes longer is loaded once, and toggled twice
HOPELESS_S = 20.0  # and one that takes longer than this is only loaded
POLL_S, N_IDLE_POLLS, IDLE_S = 0.1, 3, 0.004

# Every element of the document, those in shadow trees too.
COUNT = """() => {
  let n = 0;
  for (const roots = [document]; roots.length; ) {
    const elements = roots.pop().querySelectorAll("*");
    n += elements.length;
    for (const element of elements) if (element.shadowRoot) roots.push(element.shadowRoot);
  }
  return n;
}"""
# The middle of the arrow of the first node below the root that can be closed, or opened.
ARROW = {
    "treeviz": """() => {
      const inside = document.querySelector("[data-treeviz]").shadowRoot;
      const rows = inside.querySelectorAll("[role=treeitem][aria-expanded]");
      const row = rows[1] ?? rows[0];
      const box = row.getBoundingClientRect();
      const indent = parseFloat(getComputedStyle(row.firstChild).paddingLeft); // a wheel has other names for --indent
      return [box.x + indent + 5, box.y + box.height / 2];
    }""",
    "treescope": """() => {
      const inside = [...document.querySelectorAll("*")].find((element) => element.shadowRoot).shadowRoot;
      const boxes = [];
      for (const label of inside.querySelectorAll("label")) {
        const box = label.getBoundingClientRect();
        if (box.width) boxes.push(box);
        if (boxes.length > 1) break;
      }
      const box = boxes[1] ?? boxes[0];
      return [box.x + box.width / 2, box.y + box.height / 2];
    }""",
}
IS_READY = {
    "treeviz": """() => !!document.querySelector("[data-treeviz]")?.shadowRoot?.querySelector("[role=treeitem]")""",
    "treescope": """() => [...document.querySelectorAll("*")]
      .some((element) => element.shadowRoot?.querySelector("input"))""",
}
# The button is in a menu, which is made when it opens.
OPEN_MENU = """async () => {
  const { shadowRoot } = document.querySelector("[data-treeviz]") ?? {};
  shadowRoot?.querySelector("summary[title=View], summary[title^=Levels]")?.click();
  await new Promise((resolve) => setTimeout(resolve, 100));
}"""
EXPAND_ALL = {
    "treeviz": """() => [...document.querySelector("[data-treeviz]").shadowRoot.querySelectorAll("button")]
      .find((button) => [button.ariaLabel, button.textContent].includes("Expand all")).click()""",
    # It has no such button; this is what one would do.
    "treescope": """() => {
      const inside = [...document.querySelectorAll("*")].find((element) => element.shadowRoot).shadowRoot;
      for (const box of inside.querySelectorAll("input.foldable_node_toggle")) box.checked = true;
    }""",
}
# Click on the title of a column, which sorts by it; a second click sorts the other way. That of the names is the first.
SORT = """(title) => [...document.querySelector("[data-treeviz]").shadowRoot.querySelectorAll(".head button")]
  .find((button) => title === "name" || button.textContent.startsWith(title)).click()"""
TO_TOP = """() => { document.querySelector("[data-treeviz]").shadowRoot.querySelector(".scroller").scrollTop = 0; }"""
SORTS = ("bytes", "bytes", "name")
IS_OVER = """() => new Promise((over) => requestAnimationFrame(() => requestAnimationFrame(over)))"""
SEARCH = """() => {
  const inside = document.querySelector("[data-treeviz]").shadowRoot;
  inside.querySelector("input[type=search]").focus();
}"""


class PageFigures(NamedTuple):
    """What a page cost. NaN where there is no such thing.

    Attributes:
      ready_s: From the navigation on, over a blank page.
      elements: On open.
      toggle_s: The median of closing and opening the first node below the root.
      expand_all_s: All of the tree.
      sort_s: All of the open tree by bytes, the largest first.
      sort_again_s: By bytes the other way: a second click.
      sort_names_s: By name.
      keystroke_s: In the search box: the median over a word.
      slowest_keystroke_s: And the slowest one of it.
      toggle_full_s: As `toggle_s`, after all has been expanded: the screen is full of rows before and after.
      trouble: What went wrong; then there is no figure.
    """

    ready_s: float = float("nan")
    elements: float = float("nan")
    toggle_s: float = float("nan")
    expand_all_s: float = float("nan")
    sort_s: float = float("nan")
    sort_again_s: float = float("nan")
    sort_names_s: float = float("nan")
    keystroke_s: float = float("nan")
    slowest_keystroke_s: float = float("nan")
    toggle_full_s: float = float("nan")
    trouble: str = ""


class Bench:
    """A browser in a process of its own, which ends with it when a page takes too long, and is started anew.

    A page that keeps its main thread busy answers nothing, not even the question for its metrics.

    Attributes:
      blank_s: The main thread's CPU time for a blank page.
    """

    def __init__(self, folder: Path, limit_s: float) -> None:
        self._folder, self._limit_s = folder, limit_s
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        self._here, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there, self._here, self._folder))
        self._process.start()
        there.close()
        self.blank_s: float = self._here.recv()

    def measure(self, file: Path, tool: str) -> PageFigures:
        """Load a page a few times, and work with it."""
        self._here.send((file, tool))
        if self._here.poll(self._limit_s):
            return self._here.recv()
        self._process.kill()  # Playwright's driver sees that, and ends the browser
        self._process.join()
        self._start()
        return PageFigures(trouble=not_finished(self._limit_s))

    def close(self) -> None:
        self._here.close()
        self._process.join()


def _serve(there: Connection, here: Connection, folder: Path) -> None:
    """Measure the pages that come through the pipe, until its other end is closed."""
    here.close()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        pages = _Pages(browser, folder)
        there.send(pages.blank_s)
        while True:
            try:
                file, tool = there.recv()
            except EOFError:
                break
            there.send(pages.measure(file, tool))
        browser.close()


class _Pages:
    """A browser and what it spends on a blank page.

    Attributes:
      blank_s: The main thread's CPU time for a blank page.
    """

    def __init__(self, browser: Browser, folder: Path) -> None:
        self._browser = browser
        self._blank = folder / "blank.html"
        self._blank.write_text(BLANK, "utf-8")
        self.blank_s = min(self._load(self._blank, "blank")[0] for _ in range(N_LOADS + 2))

    def measure(self, file: Path, tool: str) -> PageFigures:
        """Load a page a few times, and work with it."""
        try:
            return self._measure(file, tool.split(",")[0])
        except Exception as error:
            return PageFigures(trouble=f"{type(error).__name__}: {str(error).splitlines()[0]}"[:90])

    def _measure(self, file: Path, kind: str) -> PageFigures:
        loads, page, meter = [], None, None
        while len(loads) < N_LOADS and sum(loads) < LONG_S:
            spent, page, meter = self._load(file, kind, page)
            loads.append(spent)
        assert page is not None and meter is not None
        ready_s = min(loads) - self.blank_s
        n_elements = page.evaluate(COUNT)
        if ready_s > HOPELESS_S:
            page.context.close()
            return PageFigures(ready_s, n_elements)
        is_long = ready_s > LONG_S

        def toggle_s() -> float:
            x, y = page.evaluate(ARROW[kind])
            page.mouse.move(x, y)
            return meter.spent(lambda: page.mouse.click(x, y))

        toggles = [toggle_s() for _ in range(2 if is_long else N_TOGGLES)]
        page.evaluate(OPEN_MENU)
        expand_all_s = meter.spent(lambda: page.evaluate(EXPAND_ALL[kind]))
        sorts, keystrokes, full = [float("nan")] * len(SORTS), [float("nan")], float("nan")
        if kind == "treeviz":
            page.evaluate(TO_TOP)
            full = median([toggle_s() for _ in range(2 if is_long else N_TOGGLES)])
            sorts = [meter.spent(lambda title=title: page.evaluate(SORT, title)) for title in SORTS]
            for _ in range(2):  # the third click ends it
                page.evaluate(SORT, SORTS[-1])
            meter.wait()
            page.evaluate(SEARCH)
            meter.wait()
            keyboard = page.keyboard
            keystrokes = [meter.spent(lambda key=key: keyboard.press(key)) for key in WORD]
        page.context.close()
        return PageFigures(
            ready_s, n_elements, median(toggles), expand_all_s, *sorts, median(keystrokes), max(keystrokes), full
        )

    def _load(self, file: Path, kind: str, before: Page | None = None) -> tuple[float, Page, Meter]:
        """A page in a process of its own, when it is ready."""
        if before is not None:
            before.context.close()
        page = self._browser.new_context(viewport=VIEWPORT).new_page()  # type: ignore[arg-type]
        page.set_default_timeout(0)  # whoever waits for the figures has a limit
        page.goto(self._blank.as_uri())
        meter = Meter(page)
        start = meter.now()[0]
        page.goto(file.as_uri(), wait_until="commit")
        spent = meter.wait() - start
        if kind in IS_READY:
            while not page.evaluate(IS_READY[kind]):
                spent = meter.wait() - start
        else:
            page.context.close()
        return spent, page, meter


class Meter:
    """The main thread's CPU time of a page."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._session: CDPSession = page.context.new_cdp_session(page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})
        self._idle_s: float | None = None

    def now(self) -> tuple[float, float]:
        """The CPU time up to now, and how many nodes there are."""
        metrics = self._session.send("Performance.getMetrics")["metrics"]
        values: dict[str, Any] = {metric["name"]: metric["value"] for metric in metrics}
        return values["TaskDuration"], values["Nodes"]

    def wait(self) -> float:
        """Wait until the main thread is idle; the CPU time up to then."""
        n_idle, before = 0, self.now()
        while n_idle < N_IDLE_POLLS:
            time.sleep(POLL_S)
            now = self.now()
            n_idle = n_idle + 1 if now[0] - before[0] < IDLE_S and now[1] == before[1] else 0
            before = now
        return before[0]

    def spent(self, operation: Callable[[], Any]) -> float:
        """What an operation costs until the screen shows what it did."""
        if self._idle_s is None:
            self.wait()
            self._idle_s = min(self._spent(lambda: None) for _ in range(3))
        return max(0.0, self._spent(operation) - self._idle_s)

    def _spent(self, operation: Callable[[], Any]) -> float:
        start = self.now()[0]
        operation()
        self._page.evaluate(IS_OVER)
        return self.wait() - start


@contextmanager
def open_bench(folder: Path, limit_s: float = LIMIT_S) -> Iterator[Bench]:
    bench = Bench(folder, limit_s)
    try:
        yield bench
    finally:
        bench.close()
