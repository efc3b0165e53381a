"""The first rows of a view as static HTML, for hosts that run no script.

Untrusted notebooks, mail and the previews of code forges remove scripts, style sheets, ids, classes and ARIA, and any
style with `var()` in it. Nested <details> remain, so the rows are made of them. Colours are the host's, which are
readable on its background.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

from treeviz.tree.column import Column
from treeviz.tree.facts import Facts, Note
from treeviz.tree.numbers import count_text
from treeviz.tree.series import Series
from treeviz.tree.table import TreeTable
from treeviz.views.html.escape import Markup, text
from treeviz.views.html.payload import hidden_value
from treeviz.views.text.brief import in_brief
from treeviz.views.text.cells import WRITE, columns_of_cells, fact_parts, note_part, type_text
from treeviz.views.text.first_rows import first_rows, open_first
from treeviz.views.text.folded import folded
from treeviz.views.text.sparklines import (
    BAD,
    last_texts,
    mark_text,
    marks_inside,
    span_texts,
    sparklines,
    steps_text,
    times_text,
)
from treeviz.views.text.terminal import UNICODE
from treeviz.views.view import View

MAX_LINES = 316
MAX_NESTING = 60  # browsers nest a few hundred levels; a narrow screen fits fewer
_LONG = 80  # characters
_N_PLAIN = 2  # columns of numbers without their titles
_N_BYTES = 19_500  # of the whole part, up to which further columns are shown
_N_CHARACTERS = 12  # of a sparkline
_N_FINDINGS = 8
_STYLE = "font:13px/1.5 ui-monospace,Menlo,Consolas,monospace;overflow-x:auto"


def outline(view: View) -> Markup:
    """The first rows as nested <details>: at most `MAX_LINES` lines, the first ones of every subtree.

    Each row shows the first two columns with numbers, the last value and a sparkline of the first series, and as many
    of the other columns as fit into `_N_BYTES`, with their titles. The first findings are listed above the rows.
    Rows deeper than `view.depth` are not shown.
    """
    findings = list(_findings(view.table, view.series))
    view = folded(in_brief(view))
    table, series = view.table, view.series
    depth = MAX_NESTING if view.depth is None else min(view.depth, MAX_NESTING)
    rows, n_left_out = first_rows(view, MAX_LINES, depth)
    plain = [column for column in view.columns_beside if column.format in WRITE][:_N_PLAIN]
    titles = ", ".join(["type", *(times_text(each) for each in series[:1]), *(column.title for column in plain)])
    parts = [
        f'<pre style="{_STYLE}"><b>{text(_short(table.name))}</b>',
        *(f" · {text(summary)}" for summary in table.headline),
        f"\n<i>name: {text(titles)}",
        left_out := _Slot(),
        "</i>\n",
        *findings,
        *_lines(view, rows, n_left_out.tolist(), plain),
    ]
    if len(rows) < len(table):
        parts.append(f"… {count_text(len(table) - len(rows))} of {count_text(len(table))} rows are not shown here.\n")
    parts.append("</pre>")
    if others := [column for column in view.columns_beside if column not in plain]:
        room = _N_BYTES - len("".join([part for part in parts if type(part) is str]).encode())
        further, left_out.text = _further(table, others, rows, room)
        slots = [part for part in parts if type(part) is _Slot and part is not left_out]
        for slot, content in zip(slots, further, strict=True):
            slot.text = content
    return Markup("".join(map(str, parts)))


class _Slot:
    """A place that is filled when it is known how much else there is."""

    text = ""

    def __str__(self) -> str:
        return self.text


def _further(table: TreeTable, columns: Sequence[Column], rows: np.ndarray, room: int) -> tuple[list[str], str]:
    """The text of each row for the columns that fit into `room` bytes; and which do not fit.

    Counts of zero are not shown; a sum to which all leaves add the same is shown at the nodes only.
    """
    texts, left_out = [""] * len(rows), []
    is_leaf = table.is_leaf[rows].tolist()
    is_leaf[0] = False
    for column in columns:
        for cell in columns_of_cells(table, [column], rows, UNICODE)[:1]:
            values = [value.rstrip() if column.format == "histogram" else value.strip() for value in cell.texts]
            of_leaves = {value for value, leaf in zip(values, is_leaf, strict=True) if leaf}
            are_alike = column.rollup == "sum" and len(of_leaves) == 1
            if column.format in ("count", "bytes"):
                values = ["" if value in ("0", "0 B") else value for value in values]
            title = text(cell.title.strip())
            shown = [
                f", {title} {text(value)}" if value and not (are_alike and leaf) else ""
                for value, leaf in zip(values, is_leaf, strict=True)
            ]
            size = len("".join(shown).encode())
            if size > room:
                left_out.append(title)
                continue
            room -= size
            texts = list(map("".join, zip(texts, shown, strict=True)))
    return texts, f"; only in the page: {', '.join(left_out)}" if left_out else ""


def _findings(table: TreeTable, series: Sequence[Series]) -> Iterator[str]:
    """The first findings, a line each."""
    marks = [(each, mark) for each in series for mark in each.marks]
    for each, mark in marks[:_N_FINDINGS]:
        path = table[mark.row].keystr or table.name
        where = f"{path if len(path) <= _LONG else '…' + path[1 - _LONG :]}, {steps_text(each, mark.column)}"
        yield f"<b>{text(_short(mark.kind))}</b> {text(where)}: {text(_short(mark_text(mark), 200))}\n"
    if len(marks) > _N_FINDINGS:
        yield f"… {count_text(len(marks) - _N_FINDINGS)} more findings\n"


def _lines(view: View, rows: np.ndarray, n_left_out: list[int], numeric: Sequence[Column]) -> Iterator[str | _Slot]:
    """One line for each row, with a slot for further columns. Arrows have a margin.

    The line of an open node is the <summary> of its <details>.
    """
    table, series = view.table, view.series
    depths, ends, codes = table.depth[rows].tolist(), table.end[rows].tolist(), table.fact_codes[rows].tolist()
    opened = open_first(view)[rows].tolist()
    facts = {code: _facts_text(table.facts[code]) for code in set(codes)}
    label = cache(lambda label: text(_short(label)))
    numbers = list(map("".join, zip(_history(series, rows), _numbers(table, rows, numeric), strict=True)))
    found_inside = marks_inside(table, series, rows)
    chosen = rows.tolist()
    inside: list[tuple[int, str]] = []  # of each open node: the end of its subtree, and its closing markup
    for i, row in enumerate(chosen):
        while inside and inside[-1][0] <= row:
            yield inside.pop()[1]
        indent = "  " * depths[i]
        line = f"{indent}{label(table.key(row).label if row else table.name)}: {facts[codes[i]]}{numbers[i]}"
        after = "".join([_note(table, note) for note in table.notes[row]]) if row in table.notes else ""
        shows_some = i + 1 < len(chosen) and chosen[i + 1] < ends[i]
        is_open = shows_some and opened[i]
        if found_inside[i] and not is_open:
            after += f" <b>{found_inside[i]}</b>"
        if shows_some:
            yield from (f"<details{' open' if is_open else ''}><summary>{line}{after}", _Slot(), "</summary>")
            more = f"    {indent}… {count_text(n_left_out[i])} more\n" if n_left_out[i] else ""
            inside.append((ends[i], f"{more}</details>"))
        else:
            n_inside = f", {count_text(n_left_out[i])} inside" if n_left_out[i] else ""
            yield from (f"  {line}{n_inside}{after}", _Slot(), "\n")
    while inside:
        yield inside.pop()[1]


def _numbers(table: TreeTable, rows: np.ndarray, columns: Sequence[Column]) -> list[str]:
    """The text of each row's numbers."""
    texts = []
    for column in columns:
        write = cache(WRITE[column.format])
        values = table.rolled(column)[rows].astype(np.float64, copy=False)
        hidden = hidden_value(column)
        is_bad = [False] * len(rows) if column.bad is None else column.bad[rows].tolist()
        written = ["" if x != x or x == hidden else f", {write(x)}" for x in values.tolist()]
        for i, span in span_texts(column.spans, rows, write):
            written[i] = f", {span}"
        texts.append([f", {BAD}" if bad else content for content, bad in zip(written, is_bad, strict=True)])
    return list(map("".join, zip(*texts, strict=True))) if texts else [""] * len(rows)


def _history(series: Sequence[Series], rows: np.ndarray) -> list[str]:
    """The last value and the sparkline of each row in the first series."""
    if not series:
        return [""] * len(rows)
    pairs = zip(last_texts(series[0], rows), sparklines(series[0], rows, _N_CHARACTERS), strict=True)
    return [f", {' '.join(filter(None, (last, spark)))}" if last or spark.strip() else "" for last, spark in pairs]


def _facts_text(facts: Facts) -> Markup:
    return text(" ".join([_short(type_text(facts)), *(_short(part.text) for part in fact_parts(facts))]))


def _note(table: TreeTable, note: Note) -> str:
    return f" <b>{text(_short(note_part(table, note).text, 200))}</b>"


def _short(content: str, limit: int = _LONG) -> str:
    return content if len(content) <= limit else f"{content[: limit - 1]}…"
