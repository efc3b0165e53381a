"""Join the modules of `assets/` and their stylesheets into one ES module.

A bundle holds its entry modules and all modules that they import, each after its imports, and the stylesheets in the
folders of these modules. A checkout joins them on demand. `.hatch_build.py` minifies the bundles of a wheel, which
makes pages a fifth smaller.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Any

_ASSETS = Path(__file__).with_name("assets")
# Modules that register themselves in `additions` of view.js are entries, too, since nothing imports them.
# In the order that deflates best. In one scope, only what runs when a module is loaded has to come after its imports.
_TREE = (
    *("tree/globs.js", "tree/query.js", "tree/numbers.js", "tree/tree.js", "tree/word_index.js", "tree/rows.js"),
    *("tree/folds.js", "tree/search.js", "tree/detail.js", "tree/cells.js", "tree/dom.js", "tree/view.js"),
    *("tree/copying.js", "tree/toolbar.js", "tree/sorting.js", "tree/keyboard.js", "tree/columns.js", "tree/grid.js"),
    *("tree/mount.js", "tree/exporting.js"),
)
_VALUES = (*_TREE, "values/values.js")
_SERIES = (*_VALUES, "series/series_view.js")
_DIFF = (*_TREE, "findings/findings.js", "diff/diff.js")
_CHECKED = (*_DIFF, "values/values.js")
_DRAWN = (*_CHECKED, "drawn/drawing.js")  # for values that treescope cannot draw
# The entry modules of a page, by `View.part`.
PARTS = {"": _TREE, "values": _VALUES, "series": _SERIES, "diff": _DIFF, "checked": _CHECKED, "drawn": _DRAWN}
_WIDGET = (*_SERIES, "diff/diff.js", "widget/details.js", "widget/widget.js")  # anywidget loads the last one
_SITE = ("serve/site.js",)  # the pages of `treeviz serve`, which show a run by the widget's module
_EXPORTS = ("export function mount(", "export default ")
_IMPORT = re.compile(r'^import .*"(\..*\.js)";$', re.MULTILINE)


@cache
def module_text(part: str = "") -> str:
    """The front end as one ES module that exports `mount`.

    Args:
      part: What to add to the tree. "values": histograms, bars of norms, numbers side by side. "series": these,
        sparklines, the heat map and charts. "diff": differences and findings. "checked": these and
        values. "drawn": all of "checked", and drawings of values that treescope cannot draw.
    """
    return _joined(PARTS[part])


@cache
def widget_module_text() -> str:
    """The explorer as one ES module; the default export is an anywidget."""
    return _joined(_WIDGET)


@cache
def packed_widget_module() -> str:
    """A module that unpacks and exports the explorer; every widget sends it."""
    return f"const PACKED = {json.dumps(packed_text('widget'))};\n{script('widget_loader')}"


BUNDLES = (*PARTS, "widget", "site", "page_loader", "widget_loader", "fallback")


def readable(bundle: str) -> str:
    """One of `BUNDLES`, from the assets in this checkout. A page's bundle is a script that defines no global names."""
    if bundle in ("widget", "site"):
        return widget_module_text() if bundle == "widget" else _joined(_SITE)
    if bundle not in PARTS:
        text = "".join(map(_joinable, modules_in_order([f"load/{bundle}.js"])))
        return f"{{{text}}}" if bundle == "page_loader" else text  # a minifier shortens all names in a block
    text = (module_text(bundle) + _joinable("load/page.js")).replace("export function mount(", "function mount(")
    return f"(() => {{{text}}})()"


@cache
def deflated(bundle: str) -> bytes:
    """A bundle, deflated: the wheel's file, or else joined from the assets."""
    try:
        return packed_file(bundle).read_bytes()
    except OSError:
        deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
        return deflate.compress(readable(bundle).encode()) + deflate.flush()


def packed_file(bundle: str) -> Path:
    """The file in a wheel that `.hatch_build.py` writes for a bundle."""
    return _ASSETS / "packed" / f"{bundle or 'tree'}.deflated"


@cache
def packed_text(bundle: str) -> str:
    """A deflated bundle as text, for the loaders."""
    return as_text(deflated(bundle))


def as_text(data: bytes) -> str:
    """Bytes in base 91, as `load/base91.js` reads them: two characters have 13 bits; in base64 they have 12."""
    import numpy as np  # the build hook runs this file without NumPy

    words = np.zeros((-(-8 * len(data) // 13), 16), np.uint8)  # the bits of each
    bits = np.unpackbits(np.frombuffer(data + b"\0\0", np.uint8), bitorder="little")
    words[:, :13] = bits[: 13 * len(words)].reshape(-1, 13)
    pairs = _pairs_of_characters()[np.packbits(words, bitorder="little").view("<u2")]
    return pairs.tobytes()[: -(-16 * len(data) // 13)].decode()


@cache
def _pairs_of_characters() -> Any:
    """The characters of each word of 13 bits."""
    import numpy as np

    # They need no escape in a script of a page and in JSON. Those of &, < and a backslash stand elsewhere.
    digits = np.array([{38: 32, 60: 33, 92: 126}.get(code, code) for code in range(35, 126)], np.uint16)
    return (digits + (digits[:, None] << 8)).ravel().astype("<u2")


@cache
def script(bundle: str) -> str:
    """A bundle as text."""
    return zlib.decompress(deflated(bundle), -15).decode()


def modules_in_order(entries: Sequence[str], assets: Path = _ASSETS) -> list[str]:
    """The entries in their order, and before each the other modules that it imports (depth-first, post-order).

    Raises:
      ValueError: An import cycle.
    """
    order: dict[str, None] = {}

    def visit(name: str, importers: tuple[str, ...]) -> None:
        if name in importers:
            raise ValueError(f"modules import each other: {' -> '.join((*importers[importers.index(name) :], name))}")
        if name not in order:
            # Visiting the last import first places related modules closer together: bundles deflate 1% better.
            for imported in reversed(_IMPORT.findall((assets / name).read_text("utf-8"))):
                if (path := normpath(join(dirname(name), imported))) not in entries:
                    visit(path, (*importers, name))
            order[name] = None

    for entry in entries:
        visit(entry, ())
    return list(order)


def _joined(entries: Sequence[str]) -> str:
    modules = modules_in_order(entries)
    folders = dict.fromkeys(map(dirname, modules))
    stylesheets = (path for folder in folders for path in sorted((_ASSETS / folder).glob("*.css")))
    styles = f"const STYLES = {json.dumps(''.join(map(_stylesheet_text, stylesheets)))};\n"
    return "".join(map(_joinable, modules)) + styles


def _stylesheet_text(path: Path) -> str:
    text = re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", "", path.read_text("utf-8"), flags=re.DOTALL))
    text = re.sub(r'="([a-z]+)"]', r"=\1]", text)  # the value of an attribute
    # The selectors need no `.treeviz` inside the shadow root of a view.
    return (
        re.sub(r" ?([{};,>~!]) ?|: ", lambda match: match[1] or ":", text.replace(".treeviz {", ".treeviz{"))
        .replace(".treeviz ", "")
        .replace(";}", "}")
        .strip()
    )


def _joinable(name: str) -> str:
    """A module without imports (which precede it), comments, indentation, and line breaks inside statements.

    This is not a JavaScript parser: our modules have line comments on separate lines, one import per line, and no
    strings that span lines or contain the start of a block comment.
    """
    text = (_ASSETS / name).read_text("utf-8")
    text = re.sub(r"/\*\*.*?\*/", "", text, flags=re.DOTALL)
    lines = (line.strip() for line in text.splitlines())
    kept = [line for line in lines if line and not line.startswith(("//", "import "))]
    joined = "\n".join(line if line.startswith(_EXPORTS) else line.removeprefix("export ") for line in kept) + "\n"
    return re.sub(r"([;{,(])\n", r"\1", joined)
