"""The ends of the lines of a tree as text: badges, values, static fields; and below the tree what had no room there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from treeviz.tree.facts import Note
from treeviz.tree.kinds import KINDS
from treeviz.tree.safe_repr import visible
from treeviz.tree.series import Series
from treeviz.tree.table import TreeTable
from treeviz.views.text import terminal
from treeviz.views.text.cells import Part, fact_parts, note_part, path_text
from treeviz.views.text.guides import LeftOut
from treeviz.views.text.sparklines import marks_inside
from treeviz.views.text.terminal import DIM, RED, RESET, YELLOW, Glyphs, cut, display_width
from treeviz.views.text.truncate import Truncated

GAP = "  "
SIGN = "!"  # of a problem that has no room in its line, and is told below the tree
_LEAST = 6  # columns of a part that is cut
_LONGEST = 500  # characters of a line below the tree
_MOST_IN_FULL, _WIDE_ENOUGH = 12, 40  # lines of badges below the tree, and the columns that they need


class Details:
    """The ends of the lines: badges, the number of omitted children, values, static fields."""

    def __init__(
        self, table: TreeTable, truncated: Truncated, left_out: LeftOut, series: Sequence[Series], glyphs: Glyphs
    ) -> None:
        self._glyphs = glyphs
        self._codes = table.fact_codes[truncated.rows].tolist()
        self._parts = {code: fact_parts(table.facts[code]) for code in set(self._codes)}
        self._badges: dict[int, list[Part]] = {}
        self.cut_badges: dict[Part, list[int]] = {}  # those that had no room, with the indices of their rows
        for shown, part in _badges(table, truncated, left_out, series):
            self._badges.setdefault(shown, []).append(part)
        self.inside = max([display_width(left_out.inside(i)) for i in left_out.closed.tolist()], default=-len(GAP))
        self.any_trouble = any(part.style in (RED, YELLOW) for badges in self._badges.values() for part in badges)
        self.values = max((len(part.brief) for badges in self._badges.values() for part in badges), default=0)
        texts = [*self._parts.values(), *(b + self._parts[self._codes[row]] for row, b in self._badges.items())]
        self.width = max((sum(len(GAP) + len(part.text) for part in parts) - len(GAP) for parts in texts), default=0)

    def texts(self, width: int, color: bool) -> list[str]:
        """The details of each shown row, with the gap before them, or ""."""
        written = {code: self._write(parts, width, color) for code, parts in self._parts.items()}
        texts = [written[code] for code in self._codes]
        with_badges: dict[tuple, str] = {}
        for shown, badges in self._badges.items():
            key = (self._codes[shown], *badges)
            if key not in with_badges:
                with_badges[key] = self._write([*badges, *self._parts[key[0]]], width, color)
            texts[shown] = with_badges[key]
            for part in badges:
                if part.style != DIM and self._glyphs.fit(part.brief or part.text) not in texts[shown]:
                    self.cut_badges.setdefault(part, []).append(shown)
        return texts

    def _write(self, parts: list[Part], width: int, color: bool) -> str:
        texts = []
        for style, text, brief in parts:
            gap = len(GAP) if texts else 0
            whole = self._glyphs.fit(text)
            whole = self._glyphs.fit(brief) if brief and display_width(whole) > width - gap else whole
            text = cut(whole, width - gap, self._glyphs.dots)
            if not text or (text != whole and width - gap < _LEAST):
                if style in (RED, YELLOW) and not texts and width > 0:
                    texts = [f"{style}{SIGN}{RESET}" if color else SIGN]
                break
            width -= gap + display_width(text)
            texts.append(f"{style}{text}{RESET}" if color and style else text)
        return GAP + GAP.join(texts) if texts else ""


def in_full(
    table: TreeTable, truncated: Truncated, cut_badges: dict[Part, list[int]], width: int, color: bool, glyphs: Glyphs
) -> list[str]:
    """The badges that had no room in their lines, below the tree: each once, with its first row."""
    lines: list[str] = []
    for i, ((style, text, _), shown) in enumerate(cut_badges.items()):
        path = path_text(table, int(truncated.rows[shown[0]]))
        more = f" and {len(shown) - 1:,} more" if len(shown) > 1 else ""
        said = glyphs.fit(visible(f"{path}{more}: {text}", _LONGEST))
        pieces = terminal.folded(said, width, GAP) if width >= _WIDE_ENOUGH else []
        if len(lines) + len(pieces) >= _MOST_IN_FULL:
            return [*lines, f"{glyphs.dots} {len(cut_badges) - i:,} more"]
        pieces = [cut(piece, width, glyphs.dots) for piece in pieces]
        lines += [f"{style}{piece}{RESET}" for piece in pieces] if color and style else pieces
    return lines


def _badges(
    table: TreeTable, truncated: Truncated, left_out: LeftOut, series: Sequence[Series]
) -> Iterator[tuple[int, Part]]:
    """Pairs of an index into the shown rows and a badge."""
    noted = np.fromiter(table.notes, dtype=np.int64, count=len(table.notes))
    where = np.searchsorted(truncated.rows, noted)
    parts: dict[Note, Part] = {}
    for row, shown in zip(noted.tolist(), where.tolist(), strict=True):
        if shown == len(truncated.rows) or truncated.rows[shown] != row:
            continue
        repeated = "more" if table.facts[table.fact_codes[row]].kind == "more" else None  # its type shows the same
        for note in table.notes[row]:
            if note.kind != repeated:
                if note not in parts:
                    parts[note] = note_part(table, note)
                yield shown, parts[note]
    found_inside = marks_inside(table, series, truncated.rows[left_out.closed])
    for shown, found in zip(left_out.closed.tolist(), found_inside, strict=True):
        if found:
            yield shown, Part(YELLOW, found)
        yield shown, Part(DIM, left_out.inside(shown))
    may_be_empty = np.array([KINDS[facts.kind].is_container for facts in table.facts])[table.fact_codes[truncated.rows]]
    is_empty = table.end[truncated.rows] == truncated.rows + 1
    for shown in np.flatnonzero(may_be_empty & is_empty).tolist():
        if truncated.rows[shown] not in table.notes:
            yield shown, Part(DIM, "empty")
