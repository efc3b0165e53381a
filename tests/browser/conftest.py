"""A real Chromium, and pages in it that fail the test if anything goes wrong in them.

TREEVIZ_CHROMIUM names another browser. Without one these tests are skipped, but not in CI.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

CHROMIUM = os.environ.get("TREEVIZ_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome") or ""
ARGUMENTS = (
    "--no-sandbox",  # also as root, in a container
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-color-profile=srgb",
)
OURS = ("file:", "data:", "blob:", "about:", "http://127.0.0.1:", "ws://127.0.0.1:", "http://localhost:")


@pytest.fixture(scope="session")
def chromium() -> Iterator:
    """The browser, started once."""
    playwright = pytest.importorskip("playwright.sync_api")
    if not Path(CHROMIUM).is_file():
        if os.environ.get("CI") == "true":
            pytest.fail("there is no Chromium: install one, or name it in TREEVIZ_CHROMIUM")
        pytest.skip("there is no Chromium; TREEVIZ_CHROMIUM may name one")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield browser
        browser.close()


class Watch:
    """What went wrong in the pages of a context: errors, and requests to anywhere but this machine."""

    def __init__(self, context) -> None:
        self.troubles: list[str] = []
        context.on("console", self._on_console)
        context.on("weberror", lambda error: self.troubles.append(f"page error: {error.error}"))
        context.on("request", self._on_request)
        context.route(lambda url: not url.startswith(OURS), lambda route: route.abort())

    def _on_console(self, message) -> None:
        if message.type == "error":
            self.troubles.append(f"console: {message.text} ({message.location.get('url', '')})")

    def _on_request(self, request) -> None:
        if not request.url.startswith(OURS):
            self.troubles.append(f"request: {request.url}")


@pytest.fixture
def open_page(chromium, tmp_path) -> Iterator[Callable]:
    """`open_page(html, width=…, dark=…, **of_the_context)` shows a document; at the end nothing may have gone wrong."""
    watched = []

    def open_html(html: str, *, width: int = 1200, height: int = 700, dark: bool = False, **options):
        options = {"reduced_motion": "reduce", "permissions": ["clipboard-read", "clipboard-write"], **options}
        context = chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", **options
        )
        context.set_default_timeout(10_000)
        watch = Watch(context)
        watched.append((context, watch))
        file = tmp_path / f"page{len(watched)}.html"
        file.write_text(html, encoding="utf-8")
        page = context.new_page()
        page.goto(file.as_uri())
        return page

    yield open_html
    for context, watch in watched:
        context.close()
        assert watch.troubles == []
