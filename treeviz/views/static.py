"""The first rows of a table as plain HTML, for where no script runs.

Untrusted notebooks, mail and the previews of forges drop scripts, styles, ids, classes and ARIA, and any
style with `var()` in it. What is left is nested <details>, so that is what this is made of. The colours are
the host's own, so that it reads on any background.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np

from treeviz.tree.column import Column
from treeviz.tree.numbers import bytes_text, count_text, number_text
from treeviz.tree.rollup import rolled_up
from treeviz.tree.series import Series
from treeviz.tree.table import Facts, Note, TreeTable
from treeviz.views.cells import fact_parts, note_part, what_it_is
from treeviz.views.choice import choose
from treeviz.views.escape import Markup, text
from treeviz.views.payload import blank
from treeviz.views.sparks import last_texts, mark_text, marks_inside, sparklines, steps_text, times_text, with_steps

MAX_LINES = 316
MAX_NESTING = 60  # browsers stop at some hundred levels, and narrow screens much earlier
_N_OPEN = 40  # rows that are in sight at first
_LONG = 80  # characters
_N_NUMBERS = 2  # columns
_N_SIGNS = 12  # of a sparkline
_N_FINDINGS = 8
_STYLE = "font-family:ui-monospace,Menlo,Consolas,monospace;font-size:13px;line-height:1.5;overflow-x:auto"
_WRITE: dict[str, Callable[[float], str]] = {"count": count_text, "bytes": bytes_text, "number": number_text}


def outline(
    table: TreeTable, columns: Sequence[Column], *, depth: int | None = None, series: Sequence[Series] = ()
) -> Markup:
    """The table's first rows as nested <details>: at most `MAX_LINES` lines, shared fairly among the nodes.

    Args:
      columns: The first two with numbers are written behind each row.
      depth: Show no row that is deeper.
      series: The first one is written behind each row, as its last value and a sparkline of text; above the
        rows stand the first findings.
    """
    series = with_steps(series)
    rows, n_left_out = choose(table, MAX_LINES, MAX_NESTING if depth is None else min(depth, MAX_NESTING))
    numeric = [column for column in columns if column.format in _WRITE][:_N_NUMBERS]
    titles = ", ".join(["type", *(times_text(each) for each in series[:1]), *(column.title for column in numeric)])
    parts = [
        f'<pre style="{_STYLE}"><b>{text(_short(table.name))}</b>',
        *(f" · {text(summary)}" for summary in table.headline),
        f"\n<i>key: {text(titles)}</i>\n",
        *_findings(table, series),
        *_lines(table, rows, n_left_out.tolist(), numeric, series),
    ]
    if len(rows) < len(table):
        parts.append(f"… {count_text(len(table) - len(rows))} of {count_text(len(table))} rows are not shown here.\n")
    parts.append("</pre>")
    return Markup("".join(parts))


def _findings(table: TreeTable, series: Sequence[Series]) -> Iterator[str]:
    """What was found first, a line each."""
    marks = [(each, mark) for each in series for mark in each.marks]
    for each, mark in marks[:_N_FINDINGS]:
        path = table[mark.row].keystr or table.name
        where = f"{path if len(path) <= _LONG else '…' + path[1 - _LONG :]}, {steps_text(each, mark.column)}"
        yield f"<b>{text(_short(mark.kind))}</b> {text(where)}: {text(_short(mark_text(mark), 200))}\n"
    if len(marks) > _N_FINDINGS:
        yield f"… {count_text(len(marks) - _N_FINDINGS)} more findings\n"


def _lines(
    table: TreeTable, rows: np.ndarray, n_left_out: list[int], numeric: Sequence[Column], series: Sequence[Series]
) -> Iterator[str]:
    """One line for each row; that of a node is the summary of what is inside. The arrows stand in a margin."""
    depths, ends, codes = table.depth[rows].tolist(), table.end[rows].tolist(), table.fact_codes[rows].tolist()
    n_open = _n_open_levels(table.depth[rows])
    facts = {code: _facts_text(table.facts[code]) for code in set(codes)}
    label = cache(lambda label: text(_short(label)))
    numbers = list(map("".join, zip(_history(series, rows), _numbers(table, rows, numeric), strict=True)))
    found_inside = marks_inside(table, series, rows)
    chosen = rows.tolist()
    inside: list[tuple[int, str]] = []  # the nodes whose children are shown: the end, and what closes them
    for i, row in enumerate(chosen):
        while inside and inside[-1][0] <= row:
            yield inside.pop()[1]
        indent = "  " * depths[i]
        line = f"{indent}{label(table.key(row).label if row else table.name)}: {facts[codes[i]]}{numbers[i]}"
        if row in table.notes:
            line += "".join([_note(table, note) for note in table.notes[row]])
        shows_some = i + 1 < len(chosen) and chosen[i + 1] < ends[i]
        is_open = shows_some and depths[i] < n_open
        if found_inside[i] and not is_open:
            line += f" <b>{found_inside[i]}</b>"
        if shows_some:
            yield f"<details{' open' if is_open else ''}><summary>{line}</summary>"
            more = f"    {indent}… {count_text(n_left_out[i])} more\n" if n_left_out[i] else ""
            inside.append((ends[i], f"{more}</details>"))
        else:
            yield f"  {line}{f', {count_text(n_left_out[i])} inside' if n_left_out[i] else ''}\n"
    while inside:
        yield inside.pop()[1]


def _n_open_levels(depths: np.ndarray) -> int:
    """How many levels of nodes are open at first."""
    return max(1, int(np.searchsorted(np.cumsum(np.bincount(depths)), _N_OPEN, side="right")) - 1)


def _numbers(table: TreeTable, rows: np.ndarray, columns: Sequence[Column]) -> list[str]:
    """What is written behind each of the rows."""
    texts = []
    for column in columns:
        write = cache(_WRITE[column.format])
        values = rolled_up(table, column)[rows].astype(np.float64, copy=False)
        nothing = blank(column)
        texts.append(["" if x != x or x == nothing else f", {write(x)}" for x in values.tolist()])
    return list(map("".join, zip(*texts, strict=True))) if texts else [""] * len(rows)


def _history(series: Sequence[Series], rows: np.ndarray) -> list[str]:
    """The last value of each of the rows in the first series, and how it came to that."""
    if not series:
        return [""] * len(rows)
    pairs = zip(last_texts(series[0], rows), sparklines(series[0], rows, _N_SIGNS), strict=True)
    return [f", {' '.join(filter(None, (last, spark)))}" if last or spark.strip() else "" for last, spark in pairs]


def _facts_text(facts: Facts) -> Markup:
    return text(" ".join([_short(what_it_is(facts)), *(_short(part) for _, part in fact_parts(facts))]))


def _note(table: TreeTable, note: Note) -> str:
    return f" <b>{text(_short(note_part(table, note)[1], 200))}</b>"


def _short(content: str, limit: int = _LONG) -> str:
    return content if len(content) <= limit else f"{content[: limit - 1]}…"
