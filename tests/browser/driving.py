"""What a person does in a page, and what they see when it has come to rest.

A view answers some things in a later frame: scrolling, a search, a change of size. So nothing is
read off a page at once: every function here waits first, and `settled(page)` stands before what a test reads itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

AT_REST = Path(__file__).with_name("at_rest.js").read_text("utf-8")
READY = ".treeviz .row"


def settled(page) -> Any:
    """The page, when its views have come to rest."""
    page.evaluate(AT_REST)
    return page


def opened(page, n_views: int = 1) -> Any:
    """The page, when all of its views are there, and so many at least."""
    page.wait_for_function(
        """(n_views) => {
            const hosts = [...document.querySelectorAll('.treeviz')];
            return hosts.length >= n_views && hosts.every((host) => host.shadowRoot?.querySelector('.row'));
        }""",
        arg=n_views,
    )
    return settled(page)


def in_a_theme(page, *choices: int) -> str:
    """Show the page in the light or in the dark, so that of all combinations half are tried, in which every two meet.

    Args:
      choices: Which one was chosen of each other kind, by its number.
    """
    theme = "dark" if sum(choices) % 2 else "light"
    page.emulate_media(color_scheme=theme)
    settled(page)
    return theme


def answer(page, ask: str, question: Any = None) -> Any:
    """What a function in the page gives, as JSON: a large answer takes Playwright a multiple of that."""
    script = f"async (text) => JSON.stringify(await ({ask})(JSON.parse(text)))"
    return json.loads(page.evaluate(script, json.dumps(question)))


def labels(page) -> list[str]:
    return settled(page).locator(".window .row .key").all_inner_texts()


def active(page) -> str:
    """The key of the row that the keyboard is at."""
    return settled(page).evaluate(
        """() => {
            const tree = document.querySelector('.treeviz').shadowRoot.querySelector('.tree');
            const id = tree.getAttribute('aria-activedescendant');
            return tree.querySelector(`#${id} .key`).textContent;
        }"""
    )


def row(page, label: str):
    """The rows with a label: the first part of their names, which hold their numbers, too."""
    return settled(page).get_by_role("treeitem", name=re.compile(f"^{re.escape(label)}(,|$)"))


def in_sight(page, label: str):
    """The same, scrolled into view first: a row that is scrolled out of sight leaves the document."""
    row(page, label).scroll_into_view_if_needed()
    return row(page, label)


def status(page) -> str:
    return settled(page).locator("output").inner_text()


def readout(page) -> str:
    return settled(page).locator(".readout").inner_text()


def box(page, selector: str) -> dict[str, float]:
    """Where the first such element is, in pixels: x, y, width, height."""
    return settled(page).locator(selector).first.bounding_box()


def search(page, query: str):
    page.get_by_role("searchbox").fill(query)
    settled(page)


def open_menu(page, name: str):
    """Open a menu of the toolbar, or the one that a narrow view has."""
    menus = settled(page).locator(".tools summary")
    menu = menus.filter(has_text=name).first
    (menu if menu.is_visible() else menus.filter(has_text="⋯").first).click()


def choose(page, menu: str, name: str):
    """Choose an entry of a menu of the toolbar."""
    open_menu(page, menu)
    page.get_by_role("button", name=name, exact=True).click()


def copy_path(page, form: str = "Python"):
    """Choose in the menu of the first view in what form the paths of its selected rows are copied."""
    page.locator("summary", has_text="Copy").first.click()
    page.get_by_role("button", name=f"{form}:").first.click()


def scroll_to(page, top: int):
    page.locator(".scroller").evaluate("(element, top) => { element.scrollTop = top }", top)
    settled(page)


def violations(page, where: str | dict | None = None) -> list:
    """The rules of accessibility that are broken below a selector of axe, or anywhere, and three elements of each."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(axe.axe_script)
    return page.evaluate(
        """async (where) => { // what is not broken stays in the page: it is a hundred times as much
            const { violations } = await axe.run(where ?? document, { resultTypes: ['violations'] });
            return violations.map(({ id, nodes }) => [id, nodes.slice(0, 3).map((node) => node.html)]);
        }""",
        where,
    )


def copied(page, act: Callable[[], object]) -> str:
    """What `act` puts on the clipboard. The view says so when it is there, and for a moment only."""
    page.evaluate(
        """() => {
            const output = document.querySelector('.treeviz').shadowRoot.querySelector('output');
            output.textContent = ''; // what was said of the copy before
            window.is_copied = false;
            new MutationObserver(() => { window.is_copied ||= output.textContent === 'copied' })
                .observe(output, { childList: true });
        }"""
    )
    act()
    page.wait_for_function("() => window.is_copied")
    return page.evaluate("() => navigator.clipboard?.readText()")
