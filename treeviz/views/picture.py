"""The first rows of a table as a picture: shapes with places in pixels, and those as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from treeviz.tree.column import Column
from treeviz.tree.kinds import TROUBLE_KINDS
from treeviz.tree.quote import visible
from treeviz.tree.rollup import rolled_up
from treeviz.tree.table import Facts, TreeTable
from treeviz.views.branches import LeftOut, branches, key_labels
from treeviz.views.cells import columns_of_cells, fact_parts, note_part, what_cells
from treeviz.views.choice import choose
from treeviz.views.escape import attribute
from treeviz.views.escape import text as escaped
from treeviz.views.terminal import Glyphs, cut, display_width

MAX_ROWS = 80
FONT = 13
CHARACTER = 8  # at least the width of a character: 0.60 of the size in most fonts, rounded up by some programs
ROW, LEVEL, GAP, MARGIN = 22, 16, 18, 14
_MAX_LEVELS = 24
_KEY, _WHAT, _DETAIL, _LINE = 44, 40, 56, 110  # most characters of a key, a type, a badge, a line above the tree

# role -> its colour in light and in dark; those of the page
COLORS = {
    "paper": ("#ffffff", "#16181c"),
    "raised": ("#f6f7f9", "#1b1e23"),
    "ink": ("#1b1f24", "#e3e6ea"),
    "dim": ("#5b6470", "#a3acb8"),
    "line": ("#d9dde3", "#3a4049"),
    "bar": ("#e2ebf9", "#2b3a52"),
    "accent": ("#0b57d0", "#8ab4f8"),
    "violet": ("#6b3fa0", "#cbaaf5"),
    "warm": ("#9a3412", "#ffb68c"),
    "bad": ("#b3261e", "#ff9a92"),
}
_SIGNS = Glyphs("+--", "`--", "|  ", "   ", "…", " · ", "▏▎▍▌▋▊▉█", " ▁▂▃▄▅▆▇█")
_NOTE_ROLES = {"error": "bad", "cycle": "bad", "hides": "bad", "info": "dim"}
_NOT_BEFORE = ("key", "type", "kind", "shape", "dtype")


class Text(NamedTuple):
    """A line of text; `y` is its baseline. `anchor` is "start" or "end"."""

    x: float
    y: float
    text: str
    role: str
    anchor: str = "start"
    is_bold: bool = False


class Box(NamedTuple):
    """A rectangle, filled, or only its border."""

    x: float
    y: float
    width: float
    height: float
    role: str
    radius: float = 0
    is_filled: bool = True


class Line(NamedTuple):
    x1: float
    y1: float
    x2: float
    y2: float
    role: str


class Picture(NamedTuple):
    """Shapes, the first ones behind the others."""

    title: str
    width: int
    height: int
    shapes: list[Text | Box | Line]


def draw(table: TreeTable, columns: Sequence[Column], *, depth: int | None = None, max_rows: int = MAX_ROWS) -> Picture:
    """The first `max_rows` rows, of every subtree the first ones, each with its key, what it is, and the columns."""
    choice = choose(table, max_rows, depth)
    rows, codes = choice.rows, table.fact_codes[choice.rows].tolist()
    labels = [cut(label, _KEY) for label in key_labels(table, rows, _MAX_LEVELS, _SIGNS)[0]]
    left_out = LeftOut(table, columns, choice, _SIGNS.dots)
    whats = [cut(what.rstrip(), _WHAT) for what in what_cells(table, rows, _SIGNS).texts]
    heads = _headline(table)

    # where what begins
    indents = (LEVEL * np.minimum(table.depth[rows], _MAX_LEVELS + 2)).tolist()
    x = MARGIN + max(i + _width(label) for i, label in zip(indents, labels, strict=True)) + GAP
    what_x, x = x, x + max(map(_width, whats)) + GAP
    top = MARGIN + ROW * len(heads) + ROW // 2
    first = top + ROW
    shapes: list[Text | Box | Line] = []
    for i, head in enumerate(heads):
        shapes.append(Text(MARGIN, MARGIN + i * ROW + 15, head, "dim" if i else "ink", is_bold=not i))
    titles: list[Text] = [Text(MARGIN, top + 15, "key", "dim"), Text(what_x, top + 15, "type", "dim")]
    cells = [_ColumnOfCells(table, column, rows) for column in columns if column.name not in _NOT_BEFORE]
    for cell in cells:
        cell.x, x = x, x + cell.width + GAP
        titles.append(cell.title(top + 15))
    details_x = x

    n_lines, right = 0, max(_width(head) for head in heads) + MARGIN
    notes_left = {shown: left_out.text(shown) for shown in left_out.closed.tolist()}
    for prefix, shown, is_row in branches(table, choice, _MAX_LEVELS, _SIGNS):
        y = first + ROW * n_lines
        n_lines += 1
        shapes += _guides(prefix, y)
        start = MARGIN + LEVEL * min(len(prefix) // 3, _MAX_LEVELS + 2)
        if not is_row:
            shapes.append(Text(start, y + 15, left_out.text(shown), "dim"))
            right = max(right, start + _width(left_out.text(shown)))
            continue
        row, facts = int(rows[shown]), table.facts[codes[shown]]
        shapes.append(Text(start, y + 15, labels[shown], "ink", is_bold=not facts.is_leaf))
        shapes.append(Text(what_x, y + 15, whats[shown], _role(facts)))
        for cell in cells:
            shapes += cell.shapes(shown, y)
        details = list(_details(table, row, facts, notes_left.get(shown), details_x, y))
        shapes += details
        right = max([right, details_x - GAP, *(_right(shape) for shape in details)])
    width, height = int(right) + MARGIN, first + ROW * n_lines + MARGIN
    behind: list[Text | Box | Line] = [
        Box(0, 0, width, height, "paper"),
        Box(0, top, width, ROW, "raised"),
        Line(0, top + ROW, width, top + ROW, "line"),
    ]
    return Picture(_title(table), width, height, [*behind, *titles, *shapes])


def svg(picture: Picture) -> str:
    """The picture as SVG, which follows the reader's choice of light or dark. It asks the network for nothing."""
    dark = "".join(f".{role}{{fill:{color}}}.{role}-line{{stroke:{color}}}" for role, (_, color) in COLORS.items())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{picture.width}" height="{picture.height}" '
        f'viewBox="0 0 {picture.width} {picture.height}" role="img" xml:space="preserve" font-size="{FONT}" '
        "font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace\">",
        f"<title>{escaped(_printable(picture.title))}</title>",
        f"<style>@media (prefers-color-scheme:dark){{{dark}}}</style>",
        *map(_element, picture.shapes),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _element(shape: Text | Box | Line) -> str:
    """The light colours are attributes, which every program that reads SVG knows; dark ones are in the style."""
    light = COLORS[shape.role][0]
    if isinstance(shape, Line):
        places = f'x1="{shape.x1:g}" y1="{shape.y1:g}" x2="{shape.x2:g}" y2="{shape.y2:g}"'
        return f'<line {places} class="{shape.role}-line" stroke="{light}"/>'
    if isinstance(shape, Box):
        places = f'x="{shape.x:g}" y="{shape.y:g}" width="{shape.width:g}" height="{shape.height:g}"'
        color = f'class="{shape.role}" fill="{light}"'
        if not shape.is_filled:
            color = f'class="{shape.role}-line" stroke="{light}" fill="none"'
        radius = f'rx="{shape.radius:g}" ' if shape.radius else ""
        return f"<rect {places} {radius}{color}/>"
    how = ' text-anchor="end"' if shape.anchor == "end" else ""
    how += ' font-weight="bold"' if shape.is_bold else ""
    content = escaped(_printable(shape.text))
    return f'<text x="{shape.x:g}" y="{shape.y:g}" class="{attribute(shape.role)}" fill="{light}"{how}>{content}</text>'


def _printable(content: str) -> str:
    """XML has no control characters, not even as escapes."""
    return visible(content, 2000)


def _title(table: TreeTable) -> str:
    return " · ".join((table.name, *table.headline))


def _headline(table: TreeTable) -> list[str]:
    """The name, and the summary in as many lines as it takes."""
    lines = [cut(visible(table.name), _LINE), ""]
    for part in table.headline:
        longer = f"{lines[-1]} · {part}" if lines[-1] else part
        if display_width(longer) <= _LINE:
            lines[-1] = longer
        else:
            lines.append(cut(part, _LINE))
    return [line for line in lines if line]


def _width(content: str) -> float:
    return CHARACTER * display_width(content)


def _right(shape: Text | Box | Line) -> float:
    return (
        shape.x + (shape.width if isinstance(shape, Box) else _width(shape.text)) if not isinstance(shape, Line) else 0
    )


def _role(facts: Facts) -> str:
    if facts.kind in TROUBLE_KINDS or facts.kind == "deleted":
        return "bad"
    if facts.kind in ("abstract", "tracer", "placeholder"):
        return "violet"
    return "ink" if facts.is_leaf else "accent"


def _guides(prefix: str, y: int) -> Iterator[Text | Line]:
    """The lines of the branches above the row, and its own."""
    half = y + ROW / 2
    above, own = prefix[:-3], prefix[-3:]
    n = 0
    while above[3 * n : 3 * n + 3] in (_SIGNS.bar, _SIGNS.blank):
        x = MARGIN + LEVEL * n + 5
        if above[3 * n] == "|":
            yield Line(x, y, x, y + ROW, "line")
        n += 1
    if own:
        x = MARGIN + LEVEL * n + 5
        number = above[3 * n :].strip()
        if number:  # too deep to be drawn: its level
            yield Text(x, y + 15, number, "dim")
            return
        yield Line(x, y, x, half if own == _SIGNS.last else y + ROW, "line")
        yield Line(x, half, x + LEVEL - 8, half, "line")


def _details(table: TreeTable, row: int, facts: Facts, left_out: str | None, x: float, y: int) -> Iterator[Text | Box]:
    """Badges, the number of children that are not shown, the text and the static fields."""
    room = 2 * _DETAIL
    for note in table.notes.get(row, ()):
        words = cut(note_part(table, note)[1], min(_DETAIL, room))
        width, role = _width(words) + 12, _NOTE_ROLES.get(note.kind, "warm")
        if room > 0:
            yield Box(x + 0.5, y + 3.5, width, ROW - 7, role, 7, False)
            yield Text(x + 6, y + 15, words, role)
        x, room = x + width + 8, room - len(words)
    for words in (left_out, *(words for _, words in fact_parts(facts))):
        words = cut(words or "", min(_DETAIL, room))
        if words and room > 0:
            yield Text(x, y + 15, words, "dim")
            x, room = x + _width(words) + GAP, room - len(words)


class _ColumnOfCells:
    """The cells of one column, and behind those of bytes their share of the whole."""

    def __init__(self, table: TreeTable, column: Column, rows: np.ndarray) -> None:
        self.x = 0.0
        cells = columns_of_cells(table, [column], rows, _SIGNS)[0]
        self.width = CHARACTER * cells.width
        self._title, self._texts = cells.title.strip(), cells.texts
        self._is_chart = column.format == "histogram"
        self._is_right = column.format not in ("histogram", "label")
        self._shares: np.ndarray | None = None
        if column.format == "bytes" and column.rollup == "sum":
            values = rolled_up(table, column)
            self._shares = values[rows] / max(1, int(values[0]))
            self.width = max(self.width, 9 * CHARACTER)

    def title(self, y: float) -> Text:
        return self._text(self._title, y, "dim")

    def shapes(self, shown: int, y: int) -> Iterator[Text | Box]:
        if self._is_chart:
            for i, sign in enumerate(self._texts[shown]):
                height = 2 * _SIGNS.heights.index(sign)
                if height:
                    yield Box(self.x + i * CHARACTER, y + 19 - height, CHARACTER - 1, height, "accent")
            return
        if self._shares is not None and self._shares[shown] > 0:
            width = (self.width + 8) * min(1.0, float(self._shares[shown]))
            yield Box(self.x + self.width + 4 - width, y + 3, width, ROW - 6, "bar")
        content = self._texts[shown].strip()
        if content:
            yield self._text(content, y + 15, "ink")

    def _text(self, content: str, y: float, role: str) -> Text:
        x = self.x + self.width if self._is_right else self.x
        return Text(x, y, content, role, "end" if self._is_right else "start")
