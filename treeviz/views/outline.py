"""A small tree for documents: a table in Markdown, a diagram in Mermaid."""

from __future__ import annotations

import re
from typing import NamedTuple

from treeviz.tree.kinds import KINDS
from treeviz.tree.safe_repr import visible
from treeviz.views.picture.columns import GLYPHS
from treeviz.views.picture.draw import IN_EVERY_ROW, row_badges
from treeviz.views.text.brief import in_brief
from treeviz.views.text.cells import columns_of_cells, type_cells
from treeviz.views.text.first_rows import first_rows
from treeviz.views.text.folded import folded
from treeviz.views.text.guides import LeftOut, guides, key_labels
from treeviz.views.view import View

MAX_ROWS = 60
_LONGEST = 200  # characters of a name, a type, a note
_IN_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|~$&#])")


class _Line(NamedTuple):
    """A row, or what is left out below one.

    Attributes:
      parent: The number of the line above it in the tree; -1 at the root.
    """

    depth: int
    parent: int
    name: str
    type: str
    cells: list[str]
    notes: list[str]
    is_leaf: bool


def markdown(view: View, max_rows: int = MAX_ROWS) -> str:
    """The first rows as a table of GitHub's Markdown, below the headline."""
    titles, lines = _outline(view, max_rows)
    has_notes = any(line.notes for line in lines)
    heads = ["name", "type", *map(_plain, titles), *(["notes"] if has_notes else [])]
    rows = [heads, [":--", ":--", *["--:"] * len(titles), *([":--"] if has_notes else [])]]
    for line in lines:
        name = "&emsp;" * line.depth + (_plain(line.name) if line.is_leaf else f"**{_plain(line.name)}**")
        rows.append(
            [name, *map(_plain, (line.type, *line.cells)), *([_plain(", ".join(line.notes))] if has_notes else [])]
        )
    headline = " · ".join((f"**{_plain(view.table.name)}**", *map(_plain, view.table.headline)))
    return "\n".join([headline, "", *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def mermaid(view: View, max_rows: int = MAX_ROWS) -> str:
    """The first rows as a flow chart of Mermaid, which GitHub and notebooks draw, with a title for screen readers."""
    _, lines = _outline(view, max_rows)
    title, *headline = (_quoted(visible(part, _LONGEST)) for part in (view.table.name, *view.table.headline))
    parts = ["flowchart LR", f"  accTitle: {title}", f"  accDescr: {' · '.join(headline)}"]
    for i, line in enumerate(lines):
        label = "<br>".join(map(_quoted, filter(None, (line.name, line.type, *line.notes))))
        parts.append(f'  n{i}["{label}"]' if line.is_leaf else f'  n{i}(["{label}"])')
        if line.parent >= 0:
            parts.append(f"  n{line.parent} --> n{i}")
    marked = [f"n{i}" for i, line in enumerate(lines) if line.notes]
    if marked:
        parts += [f"  class {','.join(marked)} noted", "  classDef noted stroke:#b3261e,stroke-width:2px"]
    return "\n".join(parts) + "\n"


def _outline(view: View, max_rows: int) -> tuple[list[str], list[_Line]]:
    """The titles of the columns, and the lines that a picture shows."""
    view = folded(in_brief(view))
    table = view.table
    truncated = first_rows(view, max_rows, view.depth)
    rows = truncated.rows
    left_out = LeftOut(table, view.columns, truncated, GLYPHS.dots)
    omitted = {shown: left_out.text(shown) for shown in left_out.closed.tolist()}
    columns = [column for column in view.columns if column.name not in IN_EVERY_ROW]
    # without bars and shares, whose columns have no title
    cells = [cells for cells in columns_of_cells(table, columns, rows, GLYPHS) if cells.title.strip()]
    labels = key_labels(table, rows, len(table), GLYPHS)[0]
    types = type_cells(table, rows, GLYPHS).texts
    badges = list(row_badges(view, rows, omitted))
    lines: list[_Line] = []
    numbers: dict[int, int] = {}  # of the lines of rows
    for _, shown, is_row in guides(table, truncated, 0, GLYPHS):
        row = int(rows[shown])
        depth, parent = int(table.depth[row]), numbers.get(int(table.parent[row]), -1)
        if not is_row:
            lines.append(_Line(depth + 1, numbers[row], left_out.text(shown), "", [""] * len(cells), [], True))
            continue
        numbers[row] = len(lines)
        facts = table[row].facts
        notes = [*(text for text, _ in badges[shown]), *([omitted[shown]] if shown in omitted else [])]
        texts = [cell.texts[shown].strip() for cell in cells]
        is_leaf = facts.is_leaf or KINDS[facts.kind].group == "part"
        lines.append(_Line(depth, parent, labels[shown], types[shown].strip(), texts, notes, is_leaf))
    return [cell.title.strip() for cell in cells], lines


def _plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    return _IN_MARKDOWN.sub(r"\\\1", visible(text, _LONGEST))


def _quoted(text: str) -> str:
    """Text between the quotation marks of a label, where Mermaid reads entities with # in place of &."""
    return re.sub(r"[^\w .,:×·…\[\]()/+-]", lambda found: f"#{ord(found[0])};", visible(text, _LONGEST))
