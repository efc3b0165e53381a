"""A view as an aligned tree of text, for terminals and .txt files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from treeviz.tree.column import INHERITED
from treeviz.tree.safe_repr import visible
from treeviz.tree.table import TreeTable
from treeviz.views.text import terminal
from treeviz.views.text.brief import in_brief
from treeviz.views.text.cells import (
    Cells,
    bare_width,
    bracketed,
    columns_of_cells,
    narrowed,
    series_cells,
    type_cells,
    without_origins,
)
from treeviz.views.text.details import GAP, SIGN, Details, in_full
from treeviz.views.text.first_rows import first_rows
from treeviz.views.text.folded import folded
from treeviz.views.text.guides import LeftOut, guides, key_labels
from treeviz.views.text.outliers import outlier_lines
from treeviz.views.text.sparklines import BAD
from treeviz.views.text.terminal import BOLD, CYAN, DIM, RED, RESET, Glyphs, cut, cut_inside, display_width
from treeviz.views.text.truncate import longest_within
from treeviz.views.view import View

MAX_LEVELS = 40  # of indentation; deeper rows show their depth as a number
# Where the width is limited: the least columns of a key, a type, the details; of a label behind a long guide
_KEY, _TYPE, _DETAILS = 16, 12, 20
_LABEL = 10
_ASKED, _SHORT = 2, 28  # columns that were asked for; the columns of a type that is shortened beside them
_TRIM = 6  # columns that a type gives up for the last column beside it
_HEADLINE = 500  # characters of a part
_TROUBLE, _TROUBLE_WANTS = 14, 30  # the least and the preferred columns of details that report a problem, else a fifth
_SHORTEST_LINE = 4  # characters, with its end
_UNLIMITED_KEY = 60  # without a limit, a longer key shifts the rest of its line


def text(
    view: View,
    *,
    width: int | None = None,
    max_rows: int | None = None,
    color: bool = False,
    glyphs: Glyphs = terminal.UNICODE,
    fold: bool = False,
    budget: int | None = None,
) -> str:
    """The tree as text, a line for each row: its key, its type, the view's columns, badges and static fields.

    The first line sums up the tree. Columns that repeat the type, the shape or the dtype are left out. Each line shows
    the last value and a sparkline of the first series, whose outliers ("worst leaves") are listed below the tree.
    Rows deeper than `view.depth` are not shown. Costs a few µs a row, linear in the number of rows
    at any depth.

    Args:
      width: The most columns of a line. None: no limit.
      max_rows: The most lines of rows: see `first_rows`. None: all.
      color: Write ANSI colours; see `terminal_color`.
      glyphs: The characters to draw with; see `glyphs_of`.
      fold: Show a run of alike siblings as one row; see `treeviz.views.text.folded`.
      budget: The most characters: as many rows as fit, but never less than the headline and the root.
    """
    brief = in_brief(view)
    brief = folded(brief) if fold else brief

    def drawn(n_rows: int | None) -> str:
        return "\n".join(_drawn(view, brief, width, n_rows, color, glyphs))

    if budget is None:
        return drawn(max_rows)
    most = min(len(brief.table), max_rows or len(brief.table), 1 + budget // _SHORTEST_LINE)
    return longest_within(budget, most, drawn)


def lines(view: View, width: int | None = None) -> Iterator[str]:
    """The lines of `text`, one after the other: those of 100,000 leaves would take 60 MB."""
    return _drawn(view, in_brief(view), width, None, False, terminal.UNICODE)


def _drawn(
    whole: View, view: View, width: int | None, max_rows: int | None, color: bool, glyphs: Glyphs
) -> Iterator[str]:
    """The lines of a view in brief. Its outliers are those of the whole one."""
    table, series = view.table, view.series
    truncated = first_rows(view, max_rows, view.depth)
    n_levels = MAX_LEVELS
    labels, key_widths = key_labels(table, truncated.rows, n_levels, glyphs)
    left_out = LeftOut(table, view.columns, truncated, glyphs.dots)
    details = Details(table, truncated, left_out, series, glyphs)
    beside = filter(_says_something, columns_of_cells(table, view.columns_beside, truncated.rows, glyphs, width))
    cells = [
        type_cells(table, truncated.rows, glyphs),
        *series_cells(series, truncated.rows, glyphs),
        *(bracketed(each, glyphs) for each in beside),
    ]
    room = _room(width, max(key_widths), cells, details, glyphs)
    if max(key_widths) > room.key and width is not None:
        n_levels = min(MAX_LEVELS, max(1, (room.key - _LABEL) // len(glyphs.bar)))
        labels, key_widths = key_labels(table, truncated.rows, n_levels, glyphs)
    siblings = _siblings(table, truncated.rows) if max(key_widths) > room.key else []

    head = _headline(table, width, glyphs)
    if any(cell.title.strip() for cell in room.cells):
        head.append(GAP.join([" " * room.key, *(cell.title for cell in room.cells)]).rstrip())
    for i, line in enumerate(head):
        yield f"{DIM if i else BOLD}{line}{RESET}" if color else line
    is_leaf = (table.is_leaf | table.is_layer)[truncated.rows].tolist()
    middles = _middles(room, is_leaf, color)
    endings = details.texts(room.details, color)
    for prefix, shown, is_row in guides(table, truncated, n_levels, glyphs):
        if not is_row:
            line = cut(prefix + left_out.text(shown), room.line, glyphs.dots)
            yield f"{DIM}{line}{RESET}" if color else line
            continue
        label, blank = labels[shown], room.key - key_widths[shown]
        if blank < 0 and width is not None:
            others = [labels[sibling] for sibling in siblings[shown]]
            prefix, label = _shortened(prefix, label, room.key, glyphs, others)
            blank = room.key - display_width(prefix + label)
        if color:
            prefix = f"{DIM}{prefix}{RESET}" if prefix else ""
            label = label if is_leaf[shown] else f"{BOLD}{label}{RESET}"
        ending = endings[shown]
        line = f"{prefix}{label}{' ' * blank}{next(middles)}{ending}"
        yield line if ending else line.rstrip()
    yield from in_full(table, truncated, details.cut_badges, room.line, color, glyphs)
    if series:
        yield from outlier_lines(whole.table, whole.series, glyphs, width=width, color=color)


def _says_something(cells: Cells) -> bool:
    return any(text and not text.isspace() for text in cells.texts)


def _headline(table: TreeTable, width: int | None, glyphs: Glyphs) -> list[str]:
    """The name and the headline of the tree, in as many lines as needed."""
    lines: list[str] = []
    for part in (table.name, *table.headline):
        part = glyphs.fit(visible(part, _HEADLINE))
        longer = f"{lines[-1]}{glyphs.separator}{part}" if lines else part
        if lines and (width is None or display_width(longer) <= width):
            lines[-1] = longer
        else:
            lines.append(part)
    if width is None:
        return lines
    return [cut(piece, width, glyphs.dots) for line in lines for piece in terminal.wrapped(line, width, "")]


class _Room(NamedTuple):
    """How the width of a line is divided."""

    line: int
    key: int
    cells: list[Cells]
    details: int


def _room(width: int | None, key: int, cells: list[Cells], details: Details, glyphs: Glyphs) -> _Room:
    """Divide the width: names first, then types, then columns, then details.

    No name is cut, and no indentation given up, while a column of sizes stands. Of the columns those of sizes go first,
    then the last one of the least urgent. What was asked for, the first column or the series, stays: names that do not
    fit beside it and short types get 45 % of the width, and what is left. No other column goes for a name that is cut
    anyway.
    """
    if width is None:
        return _Room(2**31, min(key, _UNLIMITED_KEY), cells, 2**31)

    def left(key: int) -> int:
        """The columns that the cells leave for the details."""
        return width - key - sum([len(GAP) + cell.width for cell in cells]) - len(GAP)

    none = -len(GAP)
    sign = len(SIGN) if details.any_trouble else none
    wanted = min(details.width, _TROUBLE_WANTS if details.any_trouble else _DETAILS) if details.width else none
    trouble = min(details.width, _TROUBLE_WANTS, max(_TROUBLE, width // 5, details.values))
    needed = max(details.inside, trouble if details.any_trouble else none)
    type_ = min(cells[0].width, max(2 * _TYPE, width * 45 // 100))
    least = min(type_, _SHORT, bare_width(cells[0]))
    asked = [cell for cell in cells[1:] if not (cell.is_size or cell.is_extra)]
    if len({cell.name for cell in asked}) == len(asked) and not any(cell.is_label for cell in asked):  # no curves
        asked.sort(key=_urgency, reverse=True)
    kept = sum([len(GAP) + cell.width for cell in asked if cell.name == asked[0].name])
    most = width - least - kept - needed - 2 * len(GAP)
    names = min(key, max(_KEY, width * 45 // 100, most if key <= most or not asked else 0))
    while left(names) < wanted and any(cell.is_extra for cell in cells):
        last = max(i for i, cell in enumerate(cells) if cell.is_extra)
        cells = cells[:last] + cells[last + 1 :]
    if left(names) < needed:
        cells = [narrowed(cells[0], type_, glyphs), *cells[1:]]
    for i, cell in enumerate(cells):
        if left(names) < wanted:
            cells[i] = without_origins(cell, wanted - left(names), glyphs)
    while len(cells) > 1 and left(names) < needed:
        sizes = [cell for cell in cells[1:] if cell.is_size]
        short = cells[0].width - needed + left(names)
        shortest = max(_TYPE, cells[0].width - _TRIM) if len(cells) == 2 else width
        if short >= (shortest if sizes or len(cells) > 1 + _ASKED else least):
            cells = [narrowed(cells[0], short, glyphs), *cells[1:]]
            break
        elements = [cell for cell in sizes if cell.name == "elements"]  # the shapes say as much
        last = [*cells, *(sizes if len(sizes) < len(cells) - 1 else []), *elements][-1]
        if last in asked and not last.is_label:
            numbers = [cell for cell in reversed(cells) if cell in asked and not cell.is_label]
            last = min(numbers, key=lambda cell: (cell.name == asked[0].name, _urgency(cell)))
        narrow = last.width - (needed - left(names))
        shorter = [narrowed(last, narrow, glyphs)] if last.is_label and narrow >= _TYPE else []
        if not shorter and asked and (last.is_label or last.name == asked[0].name):
            cells = [narrowed(cells[0], least, glyphs), *cells[1:]]
            if last.is_label and 0 < (over := sign - left(names)) <= last.width - _TYPE:
                cells[cells.index(last)] = narrowed(last, last.width - over, glyphs)
            if left(names) >= sign:  # lines below the tree say in full what is cut of the details
                needed = min(needed, left(names))
                break
        cells = [*(cell for cell in cells if cell is not last), *shorter]
    key = min(key, max(names, names + left(names) - needed), width)
    missing = needed - left(key)
    if missing > 0:
        cells = [narrowed(cells[0], max(_TYPE, cells[0].width - missing), glyphs), *cells[1:]]
    missing = none - left(key)
    if missing > 0:  # too narrow for anything but keys
        cells = [narrowed(cells[0], cells[0].width - missing, glyphs)] if cells[0].width - missing > 0 else []
    return _Room(width, key, cells, max(0, left(key)))


def _urgency(cell: Cells) -> int:
    """Which of several numbers of values matter most: how many are not finite, then magnitudes."""
    return 2 if "NaN" in cell.title or "Inf" in cell.title else int("rms" in cell.title)


def _middles(room: _Room, is_leaf: list[bool], color: bool) -> Iterator[str]:
    """The text of each row between the key and the details: the type and the columns."""
    texts = [cell.texts for cell in room.cells]
    if color and texts:
        types = zip(texts[0], is_leaf, strict=True)
        texts[0] = [type_ if leaf else f"{CYAN}{type_}{RESET}" for type_, leaf in types]
        for i, cell in enumerate(room.cells[1:], 1):
            styles = cell.styles or [""] * len(cell.texts)
            texts[i] = [_colored(text, style) for text, style in zip(cell.texts, styles, strict=True)]
    return (GAP + GAP.join(row) for row in zip(*texts, strict=True)) if texts else iter([""] * len(is_leaf))


def _colored(text: str, style: str) -> str:
    """A cell in its color, or in which NaN is red, and what is inherited dim."""
    style = style or (DIM if INHERITED in text else "")
    return f"{style}{text}{RESET}" if style else text.replace(BAD, f"{RED}{BAD}{RESET}")


def _siblings(table: TreeTable, rows: np.ndarray) -> list[list[int]]:
    """The row before and the row after each among its siblings, or itself, as indices into the rows."""
    parents = table.parent[rows]
    order = np.argsort(parents, kind="stable")
    is_next = parents[order[1:]] == parents[order[:-1]]
    beside = np.stack([np.arange(len(rows))] * 2, axis=1)
    beside[order[1:][is_next], 0] = order[:-1][is_next]
    beside[order[:-1][is_next], 1] = order[1:][is_next]
    return beside.tolist()


def _shortened(prefix: str, label: str, width: int, glyphs: Glyphs, others: list[str]) -> tuple[str, str]:
    """The guide and the key in at most `width` columns; keeps the end of a long guide, and what differs from others."""
    room = max(min(4, display_width(label)), width - len(prefix))
    prefix = prefix if len(prefix) + room <= width else prefix[max(0, len(prefix) - width + room) :]
    return prefix, cut_inside(label, width - len(prefix), glyphs.dots, others)
