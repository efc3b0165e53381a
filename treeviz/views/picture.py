"""The first rows of a table as a picture: shapes with places in pixels, and those as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from treeviz.tree.column import Column
from treeviz.tree.kinds import TROUBLE_KINDS
from treeviz.tree.quote import visible
from treeviz.tree.series import Series
from treeviz.tree.table import Facts, TreeTable
from treeviz.views.branches import LeftOut, branches, key_labels
from treeviz.views.cells import fact_parts, note_part, what_cells
from treeviz.views.choice import choose
from treeviz.views.escape import attribute
from treeviz.views.escape import text as escaped
from treeviz.views.picture_cells import SIGNS, ColumnOfCells, ColumnOfSparks
from treeviz.views.shapes import COLORS, FONT, GAP, ROW, Box, Curve, Line, Picture, Shape, Text, width_of
from treeviz.views.sparks import marks_by_row, marks_inside, steps_text, times_text, with_steps
from treeviz.views.terminal import cut, display_width

MAX_ROWS = 80
LEVEL, MARGIN = 16, 14
_MAX_LEVELS = 24
_KEY, _WHAT, _DETAIL, _LINE = 44, 40, 56, 110  # most characters of a key, a type, a badge, a line above the tree

_NOTE_ROLES = {"error": "bad", "cycle": "bad", "hides": "bad", "info": "dim", "nonfinite": "bad", "exploding": "bad"}
_NOT_BEFORE = ("key", "type", "kind", "shape", "dtype")


def draw(
    table: TreeTable,
    columns: Sequence[Column],
    series: Sequence[Series] = (),
    *,
    depth: int | None = None,
    max_rows: int = MAX_ROWS,
) -> Picture:
    """The first `max_rows` rows, of every subtree the first ones, each with its key, what it is, and the columns.

    Of the first of the series each row has the last value and a sparkline; what was found in any stands as a badge.
    """
    series = with_steps(series)
    choice = choose(table, max_rows, depth)
    rows, codes = choice.rows, table.fact_codes[choice.rows].tolist()
    labels = [cut(label, _KEY) for label in key_labels(table, rows, _MAX_LEVELS, SIGNS)[0]]
    left_out = LeftOut(table, columns, choice, SIGNS.dots)
    whats = [cut(what.rstrip(), _WHAT) for what in what_cells(table, rows, SIGNS).texts]
    heads = _headline(table, [times_text(each) for each in series[:1]])

    # where what begins
    indents = (LEVEL * np.minimum(table.depth[rows], _MAX_LEVELS + 2)).tolist()
    x = MARGIN + max(i + width_of(label) for i, label in zip(indents, labels, strict=True)) + GAP
    what_x, x = x, x + max(map(width_of, whats)) + GAP
    top = MARGIN + ROW * len(heads) + ROW // 2
    first = top + ROW
    shapes: list[Shape] = []
    for i, head in enumerate(heads):
        shapes.append(Text(MARGIN, MARGIN + i * ROW + 15, head, "dim" if i else "ink", is_bold=not i))
    titles: list[Text] = [Text(MARGIN, top + 15, "key", "dim"), Text(what_x, top + 15, "type", "dim")]
    cells: list[ColumnOfSparks | ColumnOfCells] = [ColumnOfSparks(each, rows) for each in series[:1]]
    cells += [ColumnOfCells(table, column, rows) for column in columns if column.name not in _NOT_BEFORE]
    for cell in cells:
        cell.x, x = x, x + cell.width + GAP
        titles.append(cell.title(top + 15))
    found = marks_by_row(series)
    inside = marks_inside(table, series, rows)
    details_x = x

    n_lines, right = 0, max(width_of(head) for head in heads) + MARGIN
    notes_left = {shown: left_out.text(shown) for shown in left_out.closed.tolist()}
    for prefix, shown, is_row in branches(table, choice, _MAX_LEVELS, SIGNS):
        y = first + ROW * n_lines
        n_lines += 1
        shapes += _guides(prefix, y)
        start = MARGIN + LEVEL * min(len(prefix) // 3, _MAX_LEVELS + 2)
        if not is_row:
            shapes.append(Text(start, y + 15, left_out.text(shown), "dim"))
            right = max(right, start + width_of(left_out.text(shown)))
            continue
        row, facts = int(rows[shown]), table.facts[codes[shown]]
        shapes.append(Text(start, y + 15, labels[shown], "ink", is_bold=not facts.is_leaf))
        shapes.append(Text(what_x, y + 15, whats[shown], _role(facts)))
        for cell in cells:
            shapes += cell.shapes(shown, y)
        badges = [note_part(table, note)[1] for note in table.notes.get(row, ())]
        roles = [_NOTE_ROLES.get(note.kind, "warm") for note in table.notes.get(row, ())]
        for each, mark in found.get(row, ()):
            badges.append(f"{mark.kind} at {steps_text(each, mark.column)}")
            roles.append(_NOTE_ROLES.get(mark.kind, "warm"))
        if shown in notes_left and inside[shown]:
            badges.append(inside[shown])
            roles.append("warm")
        details = list(_details(list(zip(badges, roles, strict=True)), facts, notes_left.get(shown), details_x, y))
        shapes += details
        right = max([right, details_x - GAP, *(_right(shape) for shape in details)])
    width, height = int(right) + MARGIN, first + ROW * n_lines + MARGIN
    behind: list[Shape] = [
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


def _element(shape: Shape) -> str:
    """The light colours are attributes, which every program that reads SVG knows; dark ones are in the style."""
    light = COLORS[shape.role][0]
    if isinstance(shape, Curve):
        path = "".join("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in line) for line in shape.lines)
        return f'<path d="{path}" class="{shape.role}-line" stroke="{light}" stroke-width="1.2" fill="none"/>'
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


def _headline(table: TreeTable, more: Sequence[str] = ()) -> list[str]:
    """The name, the summary in as many lines as it takes, and more lines."""
    lines = [cut(visible(table.name), _LINE), ""]
    for part in table.headline:
        longer = f"{lines[-1]} · {part}" if lines[-1] else part
        if display_width(longer) <= _LINE:
            lines[-1] = longer
        else:
            lines.append(cut(part, _LINE))
    return [line for line in (*lines, *(cut(visible(line), _LINE) for line in more)) if line]


def _right(shape: Text | Box) -> float:
    return shape.x + (shape.width if isinstance(shape, Box) else width_of(shape.text))


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
    while above[3 * n : 3 * n + 3] in (SIGNS.bar, SIGNS.blank):
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
        yield Line(x, y, x, half if own == SIGNS.last else y + ROW, "line")
        yield Line(x, half, x + LEVEL - 8, half, "line")


def _details(
    badges: list[tuple[str, str]], facts: Facts, left_out: str | None, x: float, y: int
) -> Iterator[Text | Box]:
    """Badges in their roles, the number of children that are not shown, the text and the static fields."""
    room = 2 * _DETAIL
    for words, role in badges:
        words = cut(words, min(_DETAIL, room))
        width = width_of(words) + 12
        if room > 0:
            yield Box(x + 0.5, y + 3.5, width, ROW - 7, role, 7, False)
            yield Text(x + 6, y + 15, words, role)
        x, room = x + width + 8, room - len(words)
    for words in (left_out, *(words for _, words in fact_parts(facts))):
        words = cut(words or "", min(_DETAIL, room))
        if words and room > 0:
            yield Text(x, y + 15, words, "dim")
            x, room = x + width_of(words) + GAP, room - len(words)
