"""The first rows of a view as a picture: shapes positioned in pixels."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Sequence

import numpy as np

from treeviz.tree.facts import Facts
from treeviz.tree.kinds import KINDS
from treeviz.tree.safe_repr import visible
from treeviz.tree.table import TreeTable
from treeviz.views.picture.columns import GLYPHS, CellColumn, SparklineColumn
from treeviz.views.picture.heat_map import WIDTH as HEAT_WIDTH
from treeviz.views.picture.heat_map import HeatMapColumn
from treeviz.views.picture.scalars import ScalarLines
from treeviz.views.picture.shapes import CHARACTER, FONT, GAP, ROW, Box, Line, Picture, Shape, Text, width_of
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

_BADGE_ROLES = {"error": "bad", "cycle": "bad", "hidden": "bad", "info": "dim"}
IN_EVERY_ROW = ("key", "type", "kind", "shape", "dtype")  # columns that a row shows anyway

_POINTS = 7  # the height of text on paper
_PARTS = ((_KEY, 0.34), (_TYPE, 0.3), (_LINE, 0.9))  # of the width on paper, for keys, types and the headline
_DETAILS_PART, _BESIDE_HEAT = 0.45, 0.3  # at most for badges, which say what a difference is; beside a heat map
_MOST_SAID = 5  # findings and notes in the description

AnyColumn = SparklineColumn | CellColumn | HeatMapColumn
Badge = tuple[str, str]  # a text and a role


def draw(view: View, *, max_rows: int = MAX_ROWS, inches: float | None = None) -> Picture:
    """The first `max_rows` rows, the first ones of every subtree, each with its key, its type and the columns.

    The cells are those of the text view. Each row shows the last value and a sparkline of the first series; badges show
    the findings of all series; beside them stands a heat map of it.

    Args:
      inches: The width on paper, where text is 7 points high: names and details are cut, and columns that do not fit
        are left out.
    """
    scalars, view = view.scalars, folded(in_brief(view))
    room = math.inf if inches is None else int(inches * 72 / _POINTS * FONT)
    table = view.table
    truncated = first_rows(view, max_rows, view.depth)
    rows, codes = truncated.rows, table.fact_codes[truncated.rows].tolist()
    n_key, n_type, n_line = (int(min(most, room * part / CHARACTER)) for most, part in _PARTS)
    labels = [cut(label, n_key) for label in key_labels(table, rows, _MAX_LEVELS, GLYPHS)[0]]
    types = [cut(type_.rstrip(), n_type) for type_ in type_cells(table, rows, GLYPHS).texts]
    left_out = LeftOut(table, view.columns, truncated, GLYPHS.dots)
    omitted = {shown: left_out.text(shown) for shown in left_out.closed.tolist()}
    badges = list(row_badges(view, rows, omitted))

    headline = _headline(table, [times_text(each) for each in view.series[:1]], n_line)
    top = MARGIN + ROW * len(headline) + ROW // 2  # of the titles
    indents = (LEVEL * np.minimum(table.depth[rows], _MAX_LEVELS + 2)).tolist()
    type_x = MARGIN + max(i + width_of(label) for i, label in zip(indents, labels, strict=True)) + GAP
    widest = max((width_of(text) + GAP for row in badges for text, _ in row), default=0)
    until = room - MARGIN - min(widest, (_BESIDE_HEAT if view.series else _DETAILS_PART) * room)
    columns, details_x = _columns(view, rows, type_x + max(map(width_of, types)) + GAP, until)
    heat_maps = [column for column in columns if isinstance(column, HeatMapColumn)]
    above = [ScalarLines(scalars, column) for column in heat_maps]
    behind: list[Shape] = [shape for lines in above for shape in lines.shapes(MARGIN, top)]
    top += sum(lines.height for lines in above)
    titles = [Text(MARGIN, top + 15, "name", "dim"), Text(type_x, top + 15, "type", "dim")]
    for column in columns:
        titles += column.title(top + 15) if isinstance(column, HeatMapColumn) else [column.title(top + 15)]

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
        n_details = int(min(2 * _DETAIL, (room - MARGIN - details_x) / CHARACTER - 2))
        details = list(_details(badges[shown], omitted.get(shown), facts, details_x, y, n_details))
        shapes += details
        right = max([right, details_x - GAP, *map(_right, details)])
    for column in heat_maps:
        y += ROW
        shapes += column.legend(y)
    width, height = int(right) + MARGIN if inches is None else int(room), y + ROW + MARGIN
    behind = [
        Box(0, 0, width, height, "paper"),
        *behind,
        Box(0, top, width, ROW, "raised"),
        Line(0, top + ROW, width, top + ROW, "line"),
    ]
    described = _description(view, len(rows), [each.words for each in (*heat_maps, *above)])
    return Picture(view.title, width, height, [*behind, *titles, *shapes], described, inches)


def _description(view: View, n_rows: int, of_heat_maps: list[str]) -> str:
    """What is to be seen, in words: the headline, how much of the tree, and what is marked in it first."""
    table = view.table
    notes = [
        f"{table[row].path or table.name}: {note_part(table, note).text}"
        for row, some in table.notes.items()
        for note in some
    ]
    marks = [f"{mark.kind}: {mark.text}" for series in view.series for mark in series.marks]
    said = [*marks, *notes]
    more = [f"and {len(said) - _MOST_SAID} more"] if len(said) > _MOST_SAID else []
    what = f"{n_rows} of {len(table)} rows of a tree, with their types and sizes."
    parts = [f"{', '.join(table.headline).rstrip('.')}.", what, *of_heat_maps, "; ".join([*said[:_MOST_SAID], *more])]
    return visible(" ".join(filter(None, parts)), 2000)


def _columns(view: View, rows: np.ndarray, x: float, room: float) -> tuple[list[AnyColumn], float]:
    """The columns from `x` on that end before `room`, and the x after the last one."""
    columns: list[AnyColumn] = [SparklineColumn(each, rows) for each in view.series[:1]]
    beside = [column for column in view.columns_beside if column.name not in IN_EVERY_ROW]
    columns += [cells for column in beside if not (cells := CellColumn(view.table, column, rows)).is_empty]
    heat_maps = [HeatMapColumn(each, rows, min(HEAT_WIDTH, max(room - x, 0))) for each in view.series[:1]]
    room -= sum(each.width + GAP for each in heat_maps)
    fitting: list[AnyColumn] = []
    for column in columns:
        if x + column.width > room:
            break
        column.x, x = x, x + column.width + GAP
        fitting.append(column)
    for column in heat_maps:
        column.x, x = x, x + column.width + GAP
    return [*fitting, *heat_maps], x


def row_badges(view: View, rows: np.ndarray, closed: Container[int]) -> Iterator[list[Badge]]:
    """The notes and findings of each row, and for a closed node the number of findings inside."""
    found, inside = marks_by_row(view.series), marks_inside(view.table, view.series, rows)
    for shown, row in enumerate(rows.tolist()):
        notes = view.table.notes.get(row, ())
        badges = [(note_part(view.table, note).text, _BADGE_ROLES.get(note.kind, "warm")) for note in notes]
        for series, mark in found.get(row, ()):
            text = f"{mark.kind} at {steps_text(series, mark.column)}"
            badges.append((text, _BADGE_ROLES.get(mark.severity, "warm")))
        if shown in closed and inside[shown]:
            badges.append((inside[shown], "warm"))
        yield badges


def _headline(table: TreeTable, more: Sequence[str], n_line: int) -> list[str]:
    """The name, the headline in as many lines as needed, and `more` lines."""
    lines = [cut(visible(table.name), n_line), ""]
    for part in table.headline:
        longer = f"{lines[-1]} · {part}" if lines[-1] else part
        if display_width(longer) <= n_line:
            lines[-1] = longer
        else:
            lines.append(cut(part, n_line))
    return [line for line in (*lines, *(cut(visible(line), n_line) for line in more)) if line]


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


def _details(
    badges: Iterable[Badge], omitted: str | None, facts: Facts, x: float, y: int, room: int
) -> Iterator[Text | Box]:
    """The end of a row: badges, the number of omitted children, the text and the static fields."""
    for badge, role in badges:
        badge = cut(badge, min(_DETAIL, room))
        width = width_of(badge) + 12
        if room > 0:
            yield Box(x + 0.5, y + 3.5, width, ROW - 7, role, 7, False)
            yield Text(x + 6, y + 15, badge, role)
        x, room = x + width + 8, room - len(badge)
    for part in (omitted, *(part.text for part in fact_parts(facts))):
        part = cut(part or "", min(_DETAIL, room))
        if part and room > 0:
            yield Text(x, y + 15, part, "dim")
            x, room = x + width_of(part) + GAP, room - len(part)
