"""A real Chromium, and pages in it that fail the test if anything goes wrong in them.

TREEVIZ_CHROMIUM names another browser. Without one these tests are skipped, but not in CI. Debian's headless shell is
the same Chromium without windows and menus, which nobody sees here: it takes a quarter less time.
TREEVIZ_SLOW_BROWSER=8 makes the browser eight times as slow, and what a page does in its frames, or unpacks, late: a
test that does not wait for what it reads fails there, as it would on a slow machine on a bad day.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

NAMES = ("chromium-headless-shell", "chromium", "google-chrome")
CHROMIUM = os.environ.get("TREEVIZ_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), "")
PLAYWRIGHT = "playwright.sync_api"
ARGUMENTS = (
    "--no-sandbox",  # also as root, in a container
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-color-profile=srgb",
)
TIMEOUT_MS = 60_000  # for what takes a moment: the machine may be slow, and busy
SLOWNESS = float(os.environ.get("TREEVIZ_SLOW_BROWSER") or 1)
LATE_MS = 15 * SLOWNESS
OURS = ("file:", "data:", "blob:", "about:", "http://127.0.0.1:", "ws://127.0.0.1:", "http://localhost:")


@pytest.fixture(scope="session")
def chromium() -> Iterator:
    """The browser, started once."""
    is_needed = os.environ.get("CI") == "true"
    playwright = importlib.import_module(PLAYWRIGHT) if is_needed else pytest.importorskip(PLAYWRIGHT)
    if not Path(CHROMIUM).is_file():
        if is_needed:
            pytest.fail("there is no Chromium: install one, or name it in TREEVIZ_CHROMIUM")
        pytest.skip("there is no Chromium; TREEVIZ_CHROMIUM may name one")
    playwright.expect.set_options(timeout=TIMEOUT_MS)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def jupyterlab(tmp_path_factory) -> Iterator:
    """The JupyterLab of this process. Test files put notebooks of different names in it, and end their kernels."""
    pytest.importorskip("jupyterlab")
    from browser.jupyter import Lab

    with Lab(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture(scope="session")
def lab_window(chromium) -> Callable:
    """`with lab_window(lab, name, height) as (page, watch)` opens a notebook in a window that has no other.

    A window is kept for the next notebook of the same server: a Lab takes three seconds to load.
    """
    from browser.jupyter import close_notebooks, open_notebook

    free: dict[str, list] = {}

    @contextlib.contextmanager
    def open_window(lab, name: str, height: int):
        of_lab = free.setdefault(lab.address, [])
        page, watch = of_lab.pop() if of_lab else new_window(chromium)
        page.set_viewport_size({"width": 1280, "height": height})
        open_notebook(page, lab, name)
        watch.is_on = True
        yield page, watch
        watch.is_on = False  # a Lab complains of a notebook that is closed while its kernel starts or ends
        if page.is_closed():
            page.context.close()
        else:
            close_notebooks(page)
            of_lab.append((page, watch))

    return open_window


def new_context(browser, **options):
    """A window of its own, with time for what its pages do. The one place where windows are opened."""
    context = browser.new_context(**options)
    context.set_default_timeout(TIMEOUT_MS)
    script = script_of("unpacking.js") + script_of("swapping.js")
    if SLOWNESS > 1:
        script = f"{{ const LATE_MS = {LATE_MS}; {script_of('late_frames.js')} }}\n{script}"
        context.on("page", slow_down)
    context.add_init_script(script)
    return context


def script_of(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")


def slow_down(page) -> None:
    page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": SLOWNESS})


class Watch:
    """What went wrong in the pages of a context: errors, and requests to anywhere but this machine."""

    def __init__(self, context) -> None:
        self.troubles: list[str] = []
        self.is_on = True
        context.on("console", self._on_console)
        context.on("weberror", lambda error: self._add(f"page error: {error.error}"))
        context.on("request", self._on_request)
        context.route(lambda url: not url.startswith(OURS), lambda route: route.abort())

    def _add(self, trouble: str) -> None:
        if self.is_on:
            self.troubles.append(trouble)

    def taken(self) -> list[str]:
        """What there is, which is not there any more."""
        troubles, self.troubles = self.troubles, []
        return troubles

    def _on_console(self, message) -> None:
        if message.type == "error":
            self._add(f"console: {message.text} ({message.location.get('url', '')})")

    def _on_request(self, request) -> None:
        if not request.url.startswith(OURS):
            self._add(f"request: {request.url}")


def new_window(browser, **options):
    """A page in a window of its own, and what goes wrong there."""
    clipboard = ["clipboard-read", "clipboard-write"]
    context = new_context(browser, reduced_motion="reduce", permissions=clipboard, **options)
    return context.new_page(), Watch(context)


@pytest.fixture(scope="session")
def free_windows() -> dict[str, list]:
    """Windows for the next test, by what is in the head of their page: to open one takes longer than most tests."""
    return {}


@pytest.fixture
def open_page(chromium, free_windows, tmp_path) -> Iterator[Callable]:
    """`open_page(html, width=…, dark=…)` shows a document; at the end nothing may have gone wrong there.

    Where a window shows one that has the same head, and so the same content security policy, and all else in <main>, it
    takes that one's place (swapping.js). A test of what the browser makes of the document itself, or one that changes
    what is not in <main>, asks for `alone=True`. Options of the context, as in
    `open_page(html, java_script_enabled=False)`, take a new window.
    """
    used = []

    def open_html(html: str, *, width: int = 1200, height: int = 760, dark: bool = False, alone=False, **options):
        head = "" if alone or options or "<main>" not in html else html.partition("<title>")[0]
        free = free_windows.get(head) or free_windows.get("")
        has_head = bool(head and free_windows.get(head))
        page, watch = free.pop() if free and not options else new_window(chromium, **options)
        used.append((page, watch, None if options else head))
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme="dark" if dark else "light", media="null", forced_colors="null")
        if has_head:
            page.evaluate("(html) => swap(html)", html)
        else:
            file = tmp_path / f"page{len(used)}.html"
            file.write_text(html, encoding="utf-8")
            page.goto(file.as_uri())
        return page

    yield open_html
    for page, watch, head in used:
        if head is None or page.is_closed():
            page.context.close()
        else:
            page.evaluate("() => swap('<main></main>')") if head else page.goto("about:blank")
            page.mouse.move(-1, -1)
            free_windows.setdefault(head, []).append((page, watch))
        assert watch.taken() == []
