"""The one front end, as text: the modules of `assets/` joined into one, with the stylesheet in it."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64encode
from functools import cache
from pathlib import Path

_ASSETS = Path(__file__).with_name("assets")
# Each after those that it imports.
_MODULES = (
    "numbers.js",
    "payload.js",
    "globs.js",
    "words.js",
    "query.js",
    "rows.js",
    "dom.js",
    "detail.js",
    "grid.js",
    "view.js",
    "keys.js",
    "toolbar.js",
    "treeviz.js",
)
# What pages with series have in addition: before the module that uses what they add.
_SERIES_MODULES = (
    "series.js",
    "colours.js",
    "sparks.js",
    "chart.js",
    "distribution.js",
    "heat.js",
    "panel.js",
    "history.js",
)
# What the explorer has in addition to both. The last one is what anywidget loads.
_WIDGET_MODULES = (
    "find_row.js",
    "traits.js",
    "requests.js",
    "carry.js",
    "drill.js",
    "live_series.js",
    "live.js",
    "live_picture.js",
    "live_panel.js",
    "widget.js",
)
_EXPORTS = ("export function mount(", "export default ")


@cache
def module_text(*, series: bool = False) -> str:
    """The front end as one ES module that exports `mount`.

    Args:
      series: With what shows series: sparklines, the heat map and charts.
    """
    if series:
        return _joined(("treeviz.css", "series.css"), (*_MODULES, *_SERIES_MODULES))
    return _joined(("treeviz.css",), _MODULES)


@cache
def widget_module_text() -> str:
    """The explorer as one ES module, whose default export is an anywidget."""
    return _joined(
        ("treeviz.css", "series.css", "widget.css", "drill.css", "live.css"),
        (*_MODULES, *_SERIES_MODULES, *_WIDGET_MODULES),
    )


@cache
def packed_widget_module() -> str:
    """The same, deflated, as a module that unpacks it: a third of its size. Every widget sends it."""
    return f"const PACKED = {json.dumps(_packed(widget_module_text()))};\n{_joinable('widget_loader.js')}"


@cache
def page_module_text(*, series: bool = False) -> str:
    """The same, and it brings the views of the page that it is in to life."""
    return module_text(series=series) + _joinable("page.js")


@cache
def packed_page_module(*, series: bool = False) -> str:
    """`page_module_text`, deflated, in base64: a third of its size. The loader unpacks it."""
    return _packed(page_module_text(series=series))


@cache
def loader_text() -> str:
    """The script that unpacks the front end and runs it."""
    return _joinable("loader.js")


@cache
def stand_in_text() -> str:
    """The script of a page that is shown where no widget comes."""
    return _joinable("stand_in.js")


def _joined(stylesheets: tuple[str, ...], modules: tuple[str, ...]) -> str:
    styles = f"const STYLES = {json.dumps(''.join(map(_stylesheet_text, stylesheets)))};\n"
    return styles + "".join(map(_joinable, modules))


def _packed(text: str) -> str:
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    return b64encode(deflate.compress(text.encode()) + deflate.flush()).decode()


def _stylesheet_text(name: str) -> str:
    text = (_ASSETS / name).read_text("utf-8")
    text = re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL))
    return re.sub(r" ?([{};,]) ?", r"\1", text).strip()


def _joinable(name: str) -> str:
    """A module without imports (what it needs stands before it), comments and indentation.

    Nothing here knows JavaScript, so our modules have line comments on lines of their own, imports on one
    line each, no text that spans lines, and no text with the start of a block comment in it.
    """
    text = (_ASSETS / name).read_text("utf-8")
    text = re.sub(r"/\*\*.*?\*/", "", text, flags=re.DOTALL)
    lines = (line.strip() for line in text.splitlines())
    kept = [line for line in lines if line and not line.startswith(("//", "import "))]
    return "\n".join(line if line.startswith(_EXPORTS) else line.removeprefix("export ") for line in kept) + "\n"
