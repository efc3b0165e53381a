"""Join the modules of `assets/` and their stylesheets into one ES module.

A bundle holds its entry modules and all that they import, each after its imports, and the stylesheets of the folders
that the modules come from.
"""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64encode
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from posixpath import dirname, join, normpath

import numpy as np

# Bytes as text in a page: 6.8 bits in a byte of UTF-8, where base64 holds 6.

# Of three bytes of UTF-8, two and one: the share of each character and a first and last one. The first are ideographs
# and the syllables of Korean, the second follow the control characters; " " and "!" stand for two of the third.
_SHARES = np.array([1, 112, 12_600])
_FIRST = np.array([0x3400, 0xA1, ord("#")])
_LAST = np.array([0xD7A3, 0x7FF, ord("~")])
_INSTEAD = {ord("<"): ord(" "), ord("\\"): ord("!")}
_BEGIN = 0xA0  # of a chunk
_ENDS = np.cumsum(_SHARES * (_LAST + 1 - _FIRST))
_STARTS = np.append(0, _ENDS[:-1])
_TOTAL = int(_ENDS[-1])
_CLASS_ENDS: list[int] = _ENDS.tolist()
_CLASSES = [*zip(*(each.tolist() for each in (_STARTS, _SHARES, _FIRST)), strict=True)]
_LAST_OF_TWO_AND_ONE: list[int] = _LAST[1:].tolist()
_CHUNK = 512  # bytes; each costs four more
_MANY = 64 * _CHUNK


def in_characters(data: bytes) -> str:
    """The text that load/page_loader.js reads. Where the bytes are many, chunks of them are taken side by side."""
    n_chunked = len(data) - len(data) % _CHUNK if len(data) >= _MANY else 0
    side_by_side = _of_chunks(np.frombuffer(data, np.uint8, n_chunked).reshape(-1, _CHUNK).astype(np.int64))
    codes = np.append(side_by_side, _of_chunk(data[n_chunked:]))
    for code, instead in _INSTEAD.items():
        codes[codes == code] = instead
    return codes.astype("<u2").tobytes().decode("utf-16-le")


def _of_chunk(data: bytes) -> list[int]:
    codes, state = [_BEGIN], 1
    for byte in data:
        while state >= _TOTAL:
            code, state = _next(state)
            codes.append(code)
        state = state << 8 | byte
    while state:
        code, state = _next(state)
        codes.append(code)
    return codes


def _next(state: int) -> tuple[int, int]:
    above, place = divmod(state, _TOTAL)
    start, share, first = _CLASSES[bisect_right(_CLASS_ENDS, place)]
    code, below = divmod(place - start, share)
    return first + code, share * above + below


def _of_chunks(chunks: np.ndarray) -> np.ndarray:
    """The same for int[n_chunks, n_bytes], one after the other."""
    n_chunks, n_bytes = chunks.shape
    lanes, state, n_read = np.arange(n_chunks), np.ones(n_chunks, np.int64), np.zeros(n_chunks, np.int64)
    steps = [np.full(n_chunks, _BEGIN)]
    while state.any():
        while True:
            (hungry,) = np.nonzero((state < _TOTAL) & (n_read < n_bytes))
            if not len(hungry):
                break
            state[hungry] = state[hungry] << 8 | chunks[lanes[hungry], n_read[hungry]]
            n_read[hungry] += 1
        above, place = np.divmod(state, _TOTAL)
        kind = np.searchsorted(_ENDS, place, "right")
        code, below = np.divmod(place - _STARTS[kind], _SHARES[kind])
        steps.append(np.where(state > 0, _FIRST[kind] + code, 0))
        state = _SHARES[kind] * above + below
    codes = np.transpose(steps)
    return codes[codes > 0]


def from_characters(text: str) -> bytes:
    """The bytes that `in_characters` made a text of."""
    back = {instead: code for code, instead in _INSTEAD.items()}
    data, state = bytearray(), 0
    for code in map(ord, reversed(text)):
        if code == _BEGIN:
            while state > 1:
                data.append(state & 255)
                state >>= 8
            state = 0
            continue
        code = back.get(code, code)
        start, share, first = _CLASSES[sum(code <= last for last in _LAST_OF_TWO_AND_ONE)]
        while state >= share << 8:
            data.append(state & 255)
            state >>= 8
        above, below = divmod(state, share)
        state = _TOTAL * above + start + share * (code - first) + below
    return bytes(reversed(data))


_ASSETS = Path(__file__).with_name("assets")
# No module imports those that register themselves in `additions` of view.js: they are entries, too.
_TREE = ("tree/mount.js",)
_VALUES = (*_TREE, "values/values.js")
_SERIES = (*_VALUES, "series/series_view.js")
_DIFF = (*_VALUES, "findings/findings.js", "diff/diff.js")
PARTS = {"": _TREE, "values": _VALUES, "series": _SERIES, "diff": _DIFF}  # of the front end of a page, by `View.part`
# Where treescope cannot draw; not packed ahead, since that is rare.
_RARE = {"drawn": (*_DIFF, "drawn/drawing.js")}
_WIDGET = (*_SERIES, "diff/diff.js", "widget/details.js", "widget/widget.js")  # anywidget loads the last one
_EXPORTS = ("export function mount(", "export default ")
_IMPORT = re.compile(r'^import .*"(\..*\.js)";$', re.MULTILINE)


@cache
def module_text(part: str = "") -> str:
    """The front end as one ES module that exports `mount`.

    Args:
      part: Include what a page with "values" needs: histograms, bars of norms, numbers side by side; with "series":
        also sparklines, the heat map and charts; with "diff": what differences and findings need; with "drawn": that
        and the drawings of values that treescope cannot draw.
    """
    return _joined((PARTS | _RARE)[part])


@cache
def widget_module_text() -> str:
    """The explorer as one ES module, whose default export is an anywidget."""
    return _joined(_WIDGET)


@cache
def packed_widget_module() -> str:
    """A module that unpacks and exports the explorer: a third of its size. Every widget sends it."""
    packed = b64encode(_deflated(widget_module_text())).decode()
    return f"const PACKED = {json.dumps(packed)};\n{_joinable('load/widget_loader.js')}"


@cache
def page_module_text(part: str = "") -> str:
    """The front end of a page, as the loader unpacks it."""
    return zlib.decompress(from_characters(packed_page_module(part)), -15).decode()


@cache
def packed_page_module(part: str = "") -> str:
    """The front end of a page, deflated, as text: a third of its size.

    `.ci/pack_pages.py` has made it a fifth smaller still; after a change in `assets/` it is packed here.
    """
    readable = readable_page_module(part)
    return _packed_ahead(packed_file(part), readable) or in_characters(_deflated(readable))


def _packed_ahead(file: Path, readable: str) -> str:
    """What was made of a text ahead; "" if it was made of another one."""
    try:
        first, _, packed = file.read_text("utf-8").partition("\n")
    except OSError:
        return ""
    return packed if first == stamp(readable) else ""


def packed_file(part: str = "") -> Path:
    """What is packed ahead, below the `stamp` of the text that it was made from."""
    return _ASSETS / "packed" / f"{part}_page.txt".lstrip("_")


def packed_loader_file() -> Path:
    return _ASSETS / "packed" / "page_loader.txt"


def stamp(readable: str) -> str:
    return f"Made by .ci/pack_pages.py from the text with sha256 {sha256(readable.encode()).hexdigest()}"


@cache
def readable_page_module(part: str = "") -> str:
    """`module_text`, and the code that mounts the views of its page, as a script that leaves no names behind."""
    text = (module_text(part) + _joinable("load/page.js")).replace("export function mount(", "function mount(")
    return f"(() => {{{text}}})()"


@cache
def loader_text() -> str:
    """The script that unpacks the front end and runs it."""
    readable = readable_loader_text()
    return _packed_ahead(packed_loader_file(), readable) or readable


def readable_loader_text() -> str:
    return _joinable("load/page_loader.js")


@cache
def fallback_text() -> str:
    """The script that shows the fallback page if the widget does not appear."""
    return _joinable("load/fallback.js")


def modules_in_order(entries: Sequence[str], assets: Path = _ASSETS) -> list[str]:
    """The entries and all that they import, each after its imports: a depth-first walk in post-order.

    Raises:
      ValueError: An import cycle.
    """
    order: dict[str, None] = {}

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            raise ValueError(f"modules import each other: {' -> '.join((*above[above.index(name) :], name))}")
        if name not in order:
            # From the last import to the first, related modules are closer: the bundles deflate 1 % better.
            for imported in reversed(_IMPORT.findall((assets / name).read_text("utf-8"))):
                visit(normpath(join(dirname(name), imported)), (*above, name))
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


def _deflated(text: str) -> bytes:
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    return deflate.compress(text.encode()) + deflate.flush()


def _stylesheet_text(path: Path) -> str:
    text = re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", "", path.read_text("utf-8"), flags=re.DOTALL))
    text = re.sub(r'="([a-z]+)"]', r"=\1]", text)  # the value of an attribute
    # In the shadow root of a view nothing else is in reach of the selectors.
    return (
        re.sub(r" ?([{};,>~!]) ?|: ", lambda found: found[1] or ":", text.replace(".treeviz {", ".treeviz{"))
        .replace(".treeviz ", "")
        .replace(";}", "}")
        .strip()
    )


def _joinable(name: str) -> str:
    """A module without its imports (they precede it), comments, indentation, and breaks that end no statement.

    This is no JavaScript parser: our modules have line comments on lines of their own, one import per line, no string
    over several lines, and no string that contains the start of a block comment.
    """
    text = (_ASSETS / name).read_text("utf-8")
    text = re.sub(r"/\*\*.*?\*/", "", text, flags=re.DOTALL)
    lines = (line.strip() for line in text.splitlines())
    kept = [line for line in lines if line and not line.startswith(("//", "import "))]
    joined = "\n".join(line if line.startswith(_EXPORTS) else line.removeprefix("export ") for line in kept) + "\n"
    return re.sub(r"([;{,(])\n", r"\1", joined)
