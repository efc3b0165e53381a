"""The first rows of a view as a picture: shapes positioned in pixels."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

import numpy as np

from treeviz.tree.facts import Facts
from treeviz.tree.kinds import KINDS
from treeviz.tree.safe_repr import visible
from treeviz.tree.table import TreeTable
from treeviz.views.picture.columns import GLYPHS, CellColumn, SparklineColumn
from treeviz.views.picture.shapes import GAP, ROW, Box, Line, Picture, Shape, Text, width_of
from treeviz.views.text.brief import in_brief
from treeviz.views.text.cells import fact_parts, note_part, type_cells
from treeviz.views.text.first_rows import first_rows
from treeviz.views.text.folded import folded
from treeviz.views.text.guides import LeftOut, guides, key_labels
from treeviz.views.text.sparklines import marks_by_row, marks_inside, steps_text, times_text
from treeviz.views.text.terminal import cut, display_width
from treeviz.views.view import View

MAX_ROWS = 80
LEVEL, MARGIN = 16, 14  # pixels
_MAX_LEVELS = 24
_KEY, _TYPE, _DETAIL, _LINE = 72, 56, 56, 110  # most characters of a key, a type, a badge, a line above the tree

_BADGE_ROLES = {"error": "bad", "cycle": "bad", "hides": "bad", "info": "dim"}
IN_EVERY_ROW = ("key", "type", "kind", "shape", "dtype")  # columns that a row shows anyway

Badge = tuple[str, str]  # a text and a role


def draw(view: View, *, max_rows: int = MAX_ROWS) -> Picture:
    """The first `max_rows` rows, the first ones of every subtree, each with its key, its type and the columns.

    The cells are those of the text view. Each row shows the last value and a sparkline of the first series; badges show
    the findings of all series.
    """
    view = folded(in_brief(view))
    table = view.table
    truncated = first_rows(view, max_rows, view.depth)
    rows, codes = truncated.rows, table.fact_codes[truncated.rows].tolist()
    labels = [cut(label, _KEY) for label in key_labels(table, rows, _MAX_LEVELS, GLYPHS)[0]]
    types = [cut(type_.rstrip(), _TYPE) for type_ in type_cells(table, rows, GLYPHS).texts]
    left_out = LeftOut(table, view.columns, truncated, GLYPHS.dots)
    omitted = {shown: left_out.text(shown) for shown in left_out.closed.tolist()}
    badges = list(row_badges(view, rows, omitted))

    headline = _headline(table, [times_text(each) for each in view.series[:1]])
    top = MARGIN + ROW * len(headline) + ROW // 2  # of the titles
    indents = (LEVEL * np.minimum(table.depth[rows], _MAX_LEVELS + 2)).tolist()
    type_x = MARGIN + max(i + width_of(label) for i, label in zip(indents, labels, strict=True)) + GAP
    columns, details_x = _columns(view, rows, type_x + max(map(width_of, types)) + GAP)
    titles = [Text(MARGIN, top + 15, "name", "dim"), Text(type_x, top + 15, "type", "dim")]
    titles += [column.title(top + 15) for column in columns]

    shapes: list[Shape] = []
    for i, line in enumerate(headline):
        shapes.append(Text(MARGIN, MARGIN + i * ROW + 15, line, "dim" if i else "ink", is_bold=not i))
    y, right = top, max(map(width_of, headline)) + MARGIN
    for prefix, shown, is_row in guides(table, truncated, _MAX_LEVELS, GLYPHS):
        y += ROW
        shapes += _guide_lines(prefix, y)
        start = MARGIN + LEVEL * min(len(prefix) // 3, _MAX_LEVELS + 2)
        if not is_row:
            line = Text(start, y + 15, left_out.text(shown), "dim")
            shapes.append(line)
            right = max(right, _right(line))
            continue
        facts = table.facts[codes[shown]]
        shapes.append(
            Text(start, y + 15, labels[shown], "ink", is_bold=not (facts.is_leaf or KINDS[facts.kind].group == "part"))
        )
        shapes.append(Text(type_x, y + 15, types[shown], _role(facts)))
        for column in columns:
            shapes += column.shapes(shown, y)
        details = list(_details(badges[shown], omitted.get(shown), facts, details_x, y))
        shapes += details
        right = max([right, details_x - GAP, *map(_right, details)])
    width, height = int(right) + MARGIN, y + ROW + MARGIN
    behind: list[Shape] = [
        Box(0, 0, width, height, "paper"),
        Box(0, top, width, ROW, "raised"),
        Line(0, top + ROW, width, top + ROW, "line"),
    ]
    return Picture(view.title, width, height, [*behind, *titles, *shapes])


def _columns(view: View, rows: np.ndarray, x: float) -> tuple[list[SparklineColumn | CellColumn], float]:
    """The columns from `x` on, and the x after the last one."""
    columns: list[SparklineColumn | CellColumn] = [SparklineColumn(each, rows) for each in view.series[:1]]
    columns += [
        CellColumn(view.table, column, rows) for column in view.columns_beside if column.name not in IN_EVERY_ROW
    ]
    for column in columns:
        column.x, x = x, x + column.width + GAP
    return columns, x


def row_badges(view: View, rows: np.ndarray, closed: Container[int]) -> Iterator[list[Badge]]:
    """The notes and findings of each row, and for a closed node the number of findings inside."""
    found, inside = marks_by_row(view.series), marks_inside(view.table, view.series, rows)
    for shown, row in enumerate(rows.tolist()):
        notes = view.table.notes.get(row, ())
        badges = [(note_part(view.table, note)[1], _BADGE_ROLES.get(note.kind, "warm")) for note in notes]
        for series, mark in found.get(row, ()):
            text = f"{mark.kind} at {steps_text(series, mark.column)}"
            badges.append((text, _BADGE_ROLES.get(mark.severity, "warm")))
        if shown in closed and inside[shown]:
            badges.append((inside[shown], "warm"))
        yield badges


def _headline(table: TreeTable, more: Sequence[str] = ()) -> list[str]:
    """The name, the headline in as many lines as needed, and `more` lines."""
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
    kind = KINDS[facts.kind]
    if kind.group == "trouble" or facts.kind == "deleted":
        return "bad"
    if kind.is_abstract:
        return "violet"
    if kind.group == "part":
        return "dim"
    return "ink" if facts.is_leaf else "accent"


def _guide_lines(prefix: str, y: int) -> Iterator[Text | Line]:
    """The guide of a row as lines: those of its ancestors, and its own branch."""
    half = y + ROW / 2
    above, own = prefix[:-3], prefix[-3:]
    n = 0
    while above[3 * n : 3 * n + 3] in (GLYPHS.bar, GLYPHS.blank):
        x = MARGIN + LEVEL * n + 5
        if above[3 * n] == "|":
            yield Line(x, y, x, y + ROW, "line")
        n += 1
    if own:
        x = MARGIN + LEVEL * n + 5
        number = above[3 * n :].strip()
        if number:  # too deep to be drawn: its depth
            yield Text(x, y + 15, number, "dim")
            return
        yield Line(x, y, x, half if own == GLYPHS.last else y + ROW, "line")
        yield Line(x, half, x + LEVEL - 8, half, "line")


def _details(badges: Iterable[Badge], omitted: str | None, facts: Facts, x: float, y: int) -> Iterator[Text | Box]:
    """The end of a row: badges, the number of omitted children, the text and the static fields."""
    room = 2 * _DETAIL
    for badge, role in badges:
        badge = cut(badge, min(_DETAIL, room))
        width = width_of(badge) + 12
        if room > 0:
            yield Box(x + 0.5, y + 3.5, width, ROW - 7, role, 7, False)
            yield Text(x + 6, y + 15, badge, role)
        x, room = x + width + 8, room - len(badge)
    for part in (omitted, *(part for _, part in fact_parts(facts))):
        part = cut(part or "", min(_DETAIL, room))
        if part and room > 0:
            yield Text(x, y + 15, part, "dim")
            x, room = x + width_of(part) + GAP, room - len(part)
