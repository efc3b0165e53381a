"""A table as an aligned tree of text, for the terminal and for files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from treeviz.tree.column import Column
from treeviz.tree.quote import visible
from treeviz.tree.series import Series
from treeviz.tree.table import Note, TreeTable
from treeviz.views import terminal
from treeviz.views.branches import LeftOut, branches, key_labels
from treeviz.views.cells import (
    Cells,
    Part,
    columns_of_cells,
    fact_parts,
    narrowed,
    note_part,
    series_cells,
    what_cells,
)
from treeviz.views.choice import Choice, choose
from treeviz.views.sparks import marks_inside, with_steps
from treeviz.views.terminal import BOLD, CYAN, DIM, RED, RESET, YELLOW, Glyphs, cut, display_width
from treeviz.views.worst import worst_text

MAX_LEVELS = 40  # that are drawn as indentation; deeper rows say their level
_GAP = "  "
_KEY, _WHAT, _DETAILS = 16, 12, 20  # columns that they keep where the width is limited
_LABEL = 10  # and a label, where its branch is too long
_TROUBLE, _TROUBLE_WANTS = 14, 30  # the same for details that say what is wrong; and what they would like
_FILE_KEY = 60  # where it is not, a longer key pushes its line to the right
_MAY_BE_EMPTY = ("dict", "list", "tuple", "namedtuple", "node", "module")


def text(
    table: TreeTable,
    columns: Sequence[Column],
    *,
    series: Sequence[Series] = (),
    width: int | None = None,
    max_rows: int | None = None,
    depth: int | None = None,
    color: bool = False,
    ascii: bool = False,
) -> str:
    """The tree, a line for each row: its key, what it is, the columns, and what is worth knowing.

    The first line sums up the tree. Costs a few µs a row, linear however deep the tree is.

    Args:
      columns: Shown in this order. Those that say what stands in every line anyway (the type, the shape,
        the dtype) are left out.
      series: The first one is shown in every line, as its last value and a sparkline; below the tree stand
        the worst leaves.
      width: No line is wider. None: as wide as it takes.
      max_rows: At most so many lines of rows, of every subtree the first ones. None: all.
      depth: Show no row that is deeper.
      color: With ANSI colours, see `terminal_color`.
      ascii: With nothing but ASCII, see `terminal_ascii`.
    """
    glyphs = terminal.ASCII if ascii else terminal.UNICODE
    series = with_steps(series)
    choice = choose(table, max_rows, depth)
    n_levels = MAX_LEVELS
    labels, key_widths = key_labels(table, choice.rows, n_levels, glyphs)
    left_out = LeftOut(table, columns, choice, glyphs.dots)
    details = _Details(table, choice, left_out, series, glyphs)
    cells = [
        what_cells(table, choice.rows, glyphs),
        *series_cells(series, choice.rows, glyphs),
        *columns_of_cells(table, columns, choice.rows, glyphs),
    ]
    room = _room(width, max(key_widths), cells, details, glyphs)
    if max(key_widths) > room.key and width is not None:
        n_levels = min(MAX_LEVELS, max(1, (room.key - _LABEL) // len(glyphs.bar)))
        labels, key_widths = key_labels(table, choice.rows, n_levels, glyphs)

    lines = _headline(table, width, glyphs)
    if any(cell.title.strip() for cell in room.cells):
        lines.append(_GAP.join([" " * room.key, *(cell.title for cell in room.cells)]).rstrip())
    if color:
        lines = [f"{DIM if i else BOLD}{line}{RESET}" for i, line in enumerate(lines)]
    is_leaf = table.is_leaf[choice.rows].tolist()
    middles = _middles(room, is_leaf, color)
    endings = details.texts(room.details, color)
    for prefix, shown, is_row in branches(table, choice, n_levels, glyphs):
        if not is_row:
            line = cut(prefix + left_out.text(shown), room.line, glyphs.dots)
            lines.append(f"{DIM}{line}{RESET}" if color else line)
            continue
        label, blank = labels[shown], room.key - key_widths[shown]
        if blank < 0 and width is not None:
            prefix, label = _shortened(prefix, label, room.key, glyphs)
            blank = room.key - display_width(prefix + label)
        if color:
            prefix = f"{DIM}{prefix}{RESET}" if prefix else ""
            label = label if is_leaf[shown] else f"{BOLD}{label}{RESET}"
        ending = endings[shown]
        line = f"{prefix}{label}{' ' * blank}{middles[shown]}{ending}"
        lines.append(line if ending else line.rstrip())
    if series:
        lines.extend(worst_text(table, series, glyphs, width=width, color=color))
    return "\n".join(lines)


def _headline(table: TreeTable, width: int | None, glyphs: Glyphs) -> list[str]:
    """The summary, in as many lines as it takes."""
    lines: list[str] = []
    for part in (table.name, *table.headline):
        part = glyphs.fit(visible(part))
        longer = f"{lines[-1]}{glyphs.separator}{part}" if lines else part
        if lines and (width is None or display_width(longer) <= width):
            lines[-1] = longer
        else:
            lines.append(part)
    return lines if width is None else [cut(line, width, glyphs.dots) for line in lines]


class _Room(NamedTuple):
    """How many columns there are for what."""

    line: int
    key: int
    cells: list[Cells]
    details: int


def _room(width: int | None, key: int, cells: list[Cells], details: _Details, glyphs: Glyphs) -> _Room:
    """Where it is narrow the extras go first, then the key gets shorter, then the type, then columns go."""
    if width is None:
        return _Room(2**31, min(key, _FILE_KEY), cells, 2**31)

    def left(key: int) -> int:
        """What the cells leave for the details."""
        return width - key - sum([len(_GAP) + cell.width for cell in cells]) - len(_GAP)

    none = -len(_GAP)
    wanted = min(details.width, _TROUBLE_WANTS if details.any_trouble else _DETAILS) if details.width else none
    needed = _TROUBLE if details.any_trouble else none
    comfortable = min(key, max(_KEY, width * 2 // 5))
    while left(comfortable) < wanted and any(cell.is_extra for cell in cells):
        last = max(i for i, cell in enumerate(cells) if cell.is_extra)
        cells = cells[:last] + cells[last + 1 :]
    key = min(key, max(comfortable, key + left(key) - wanted))
    key = min(key, max(_KEY, key + left(key) - none), width)
    if left(key) < needed:
        cells = [narrowed(cells[0], max(2 * _WHAT, width // 3), glyphs), *cells[1:]]
    while len(cells) > 1 and left(key) < needed:
        cells = cells[:-1]
    missing = needed - left(key)
    if missing > 0:
        cells = [narrowed(cells[0], max(_WHAT, cells[0].width - missing), glyphs), *cells[1:]]
    missing = none - left(key)
    if missing > 0:  # too narrow for anything but keys
        cells = [narrowed(cells[0], cells[0].width - missing, glyphs)] if cells[0].width - missing > 0 else []
    return _Room(width, key, cells, max(0, left(key)))


def _middles(room: _Room, is_leaf: list[bool], color: bool) -> list[str]:
    """What stands between the key and the details of each row."""
    texts = [cell.texts for cell in room.cells]
    if color and texts:
        whats = zip(texts[0], is_leaf, strict=True)
        texts[0] = [what if leaf else f"{CYAN}{what}{RESET}" for what, leaf in whats]
    return [_GAP + _GAP.join(row) for row in zip(*texts, strict=True)] if texts else [""] * len(is_leaf)


def _shortened(prefix: str, label: str, width: int, glyphs: Glyphs) -> tuple[str, str]:
    """The branch and the key in at most `width` columns; of a deep branch its end is what matters."""
    room = max(min(4, display_width(label)), width - len(prefix))
    prefix = prefix if len(prefix) + room <= width else prefix[max(0, len(prefix) - width + room) :]
    return prefix, cut(label, width - len(prefix), glyphs.dots)


class _Details:
    """The end of the line: badges, what was left out, values, static fields."""

    def __init__(
        self, table: TreeTable, choice: Choice, left_out: LeftOut, series: Sequence[Series], glyphs: Glyphs
    ) -> None:
        self._glyphs = glyphs
        self._codes = table.fact_codes[choice.rows].tolist()
        self._parts = {code: fact_parts(table.facts[code]) for code in set(self._codes)}
        self._badges: dict[int, list[Part]] = {}
        for shown, part in _badges(table, choice, left_out, series):
            self._badges.setdefault(shown, []).append(part)
        self.any_trouble = any(style in (RED, YELLOW) for badges in self._badges.values() for style, _ in badges)
        texts = [*self._parts.values(), *(b + self._parts[self._codes[row]] for row, b in self._badges.items())]
        self.width = max((sum(len(_GAP) + len(text) for _, text in parts) - len(_GAP) for parts in texts), default=0)

    def texts(self, width: int, color: bool) -> list[str]:
        """Of each row that is shown, with the gap before it; "" where there is nothing to say."""
        written = {code: self._write(parts, width, color) for code, parts in self._parts.items()}
        texts = [written[code] for code in self._codes]
        with_badges: dict[tuple, str] = {}
        for shown, badges in self._badges.items():
            key = (self._codes[shown], *badges)
            if key not in with_badges:
                with_badges[key] = self._write([*badges, *self._parts[key[0]]], width, color)
            texts[shown] = with_badges[key]
        return texts

    def _write(self, parts: list[Part], width: int, color: bool) -> str:
        texts = []
        for style, text in parts:
            gap = len(_GAP) if texts else 0
            text = cut(self._glyphs.fit(text), width - gap, self._glyphs.dots)
            if not text:
                break
            width -= gap + display_width(text)
            texts.append(f"{style}{text}{RESET}" if color and style else text)
        return _GAP + _GAP.join(texts) if texts else ""


def _badges(
    table: TreeTable, choice: Choice, left_out: LeftOut, series: Sequence[Series]
) -> Iterator[tuple[int, Part]]:
    """(which of the rows that are shown, its badge)."""
    noted = np.fromiter(table.notes, dtype=np.int64, count=len(table.notes))
    where = np.searchsorted(choice.rows, noted)
    parts: dict[Note, Part] = {}
    for row, shown in zip(noted.tolist(), where.tolist(), strict=True):
        if shown == len(choice.rows) or choice.rows[shown] != row:
            continue
        told = "more" if table.facts[table.fact_codes[row]].kind == "more" else None
        for note in table.notes[row]:
            if note.kind != told:
                if note not in parts:
                    parts[note] = note_part(table, note)
                yield shown, parts[note]
    found_inside = marks_inside(table, series, choice.rows[left_out.closed])
    for shown, found in zip(left_out.closed.tolist(), found_inside, strict=True):
        if found:
            yield shown, (YELLOW, found)
        yield shown, (DIM, left_out.inside(shown))
    may_be_empty = np.array([facts.kind in _MAY_BE_EMPTY for facts in table.facts])[table.fact_codes[choice.rows]]
    is_empty = table.end[choice.rows] == choice.rows + 1
    for shown in np.flatnonzero(may_be_empty & is_empty).tolist():
        if choice.rows[shown] not in table.notes:
            yield shown, (DIM, "empty")
