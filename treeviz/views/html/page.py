"""Write a view as HTML: a fragment for a notebook cell or a whole document, with as many rows as fit."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from hashlib import sha256
from html import escape
from typing import Any

import numpy as np

from treeviz.tree.facts import Column, Facts, Note
from treeviz.tree.keys import Key
from treeviz.tree.series import Series
from treeviz.tree.table import REDUCE, TreeTable
from treeviz.tree.text import count_text
from treeviz.views.html.bundle import as_text, packed_text, script
from treeviz.views.html.payload import FORMAT, hidden_value, pack
from treeviz.views.text.cells import (
    BAD,
    WRITE,
    columns_of_cells,
    fact_parts,
    last_texts,
    mark_text,
    marks_inside,
    note_part,
    scalar_texts,
    span_texts,
    sparklines,
    times_text,
    type_text,
)
from treeviz.views.text.rows import first_rows, open_first, truncate
from treeviz.views.text.terminal import UNICODE
from treeviz.views.text.text import in_brief
from treeviz.views.view import View

# Fit a page: keep the first rows of every subtree, and sum up the others in placeholders

MAX_BYTES = 2_330_000  # base 91 adds 23 %, static rows and front end 0.1 MB: a page has at most 3 MB
_MANY = 50_000  # distinct keys or values of a column. Packing all takes a second, so an eighth is tried first


def pack_within(view: View, packed: bytes | None = None) -> bytes:
    """`pack(view)` with as many rows as fit into `MAX_BYTES`, or all rows if `view.whole`.

    Args:
      packed: `pack(view)`, if already computed.
    """
    table, n_all = view.table, len(view.table)
    n_distinct = max(map(len, (table.keys, *[column.levels for column in table.columns.values()])))
    n_rows = n_all if view.whole or packed is not None or n_distinct <= _MANY else n_all // 8
    packed = pack(with_first_rows(view, n_rows)) if packed is None else packed
    while len(packed) < 0.7 * MAX_BYTES and n_rows < n_all:
        n_rows = min(int(n_rows * 0.9 * MAX_BYTES / len(packed)), n_all)
        packed = pack(with_first_rows(view, n_rows))
    while len(packed) > MAX_BYTES and n_rows > 1 and not view.whole:
        n_rows = int(n_rows * min(0.8, 0.9 * MAX_BYTES / len(packed)))
        packed = pack(with_first_rows(view, n_rows))
    return packed


def with_first_rows(view: View, n_rows: int) -> View:
    """The view with about `n_rows` rows. Totals still count the whole tree."""
    if n_rows >= len(view.table):
        return view
    cut = _Cut(view.table, n_rows)
    columns = {column.name: cut.column(column) for column in (*view.columns, *view.table.columns.values())}
    # The views of an inspector have no `whole`.
    table = cut.table("" if view.series else ": whole=True has all, however large")
    table = replace(table, columns={name: columns[name] for name in view.table.columns})
    return View(
        table,
        [columns[column.name] for column in view.columns],
        depth=view.depth,
        values={int(cut.new[row]): html for row, html in (view.values or {}).items() if cut.new[row] >= 0},
        series=[cut.series(series) for series in view.series],
        histograms=[replace(histogram, counts=cut.rows(histogram.counts, 0)) for histogram in view.histograms],
        diff=None if view.diff is None else cut.diff(view.diff),
    )


class _Cut:
    """The rows of a table to keep, and a placeholder after the last kept child of a node for its other children.

    Attributes:
      new: int[n_rows + 1]: the new number of each row; -1 if left out.
    """

    def __init__(self, table: TreeTable, n_rows: int) -> None:
        self._table = table
        self._rows, n_left_out, _ = truncate(table, max(n_rows, 1))
        self._nodes = self._rows[n_left_out > 0]
        self._n_left_out = n_left_out[n_left_out > 0].tolist()
        first_left_out = np.arange(1, len(table) + 1)  # the first row below each row that is left out
        np.maximum.at(first_left_out, table.parent[self._rows[1:]], table.end[self._rows[1:]])
        self._ranges = np.stack([first_left_out[self._nodes], table.end[self._nodes]], axis=1).ravel()
        places = np.concatenate([self._rows, table.end[self._nodes]])
        self._depth = np.concatenate([table.depth[self._rows], table.depth[self._nodes] + 1])
        # At the end of a subtree, the deepest placeholder comes first, and the next row after all placeholders.
        self._order = np.lexsort((np.where(np.arange(len(places)) < len(self._rows), 1, -self._depth), places))
        self.new = np.full(len(table) + 1, -1)
        self.new[self._rows], self._places = np.split(np.argsort(self._order), [len(self._rows)])
        self._codes: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def table(self, hint: str) -> TreeTable:
        table, order = self._table, self._order
        parent = np.concatenate([self.new[table.parent[self._rows]], self.new[self._nodes]])[order]
        end = np.arange(1, len(order) + 1)
        for row in range(len(order) - 1, 0, -1):
            end[parent[row]] = max(end[parent[row]], end[row])
        by_parent = np.argsort(parent, kind="stable")
        position = np.empty(len(order), np.int32)
        position[by_parent] = np.arange(len(order)) - np.searchsorted(parent[by_parent], parent[by_parent])
        used, keys = np.unique(np.append(0, table.key_codes[self._rows]), return_inverse=True)
        keys = np.append(keys[1:], np.full(len(self._nodes), len(used)))[order]
        kept, facts = self._coded(table.fact_codes)
        texts = [f"{n:,} more" for n in self._n_left_out]
        notes = {
            int(self.new[row]): tuple([n._replace(row=int(self.new[n.row])) if n.row >= 0 else n for n in row_notes])
            for row, row_notes in table.notes.items()
            if self.new[row] >= 0
        }
        for row, text in zip(self._places.tolist(), texts, strict=True):
            notes[row] = (Note("more", f"{text}, which did not fit into this page"),)
        n_missing = len(table) - len(self._rows)
        missing = f"{n_missing:,} of {len(table):,} rows are not in this page{hint}"
        return TreeTable(
            name=table.name,
            depth=self._depth[order].astype(np.int32),
            parent=parent.astype(np.int32),
            end=end.astype(np.int32),
            position=position,
            key_codes=keys.astype(np.int32),
            keys=(*(table.keys[code] for code in used.tolist()), Key("…", "", "…", ())),
            fact_codes=facts,
            facts=(*(table.facts[code] for code in kept.tolist()), *(Facts("more", "", False, text=t) for t in texts)),
            notes=dict(sorted(notes.items())),
            headline=(*table.headline, missing),
        )

    def column(self, column: Column) -> Column:
        used, codes = (self._rows, None) if column.codes is None else self._coded(column.codes)
        if column.format == "label":
            levels = [*(column.levels[code] for code in used.tolist()), *[""] * len(self._nodes)]
            if codes is None:
                levels = [levels[i] for i in self._order.tolist()]
            return replace(column, levels=levels, codes=codes)
        levels = np.concatenate([np.asarray(column.levels)[used], self._left_out(column)])
        return replace(column, levels=levels[self._order] if codes is None else levels, codes=codes)

    def rows(self, values: np.ndarray, placeholders: Any) -> np.ndarray:
        """The values of the kept rows, and of the placeholders: one value, or one for each."""
        added = np.broadcast_to(np.asarray(placeholders, values.dtype), (len(self._nodes), *values.shape[1:]))
        return np.concatenate([values[self._rows], added])[self._order]

    def series(self, series: Series) -> Series:
        """The series of the kept rows. A placeholder has no values, only the bad steps and findings of its rows."""
        new_row = self.new.copy()
        for row, start, end in zip(self._places.tolist(), *self._ranges.reshape(-1, 2).T.tolist(), strict=True):
            new_row[start:end] = row
        bad = np.append(series.bad, series.bad[:1], axis=0)
        return replace(
            series,
            values=self.rows(series.values, np.nan),
            low=None if series.low is None else self.rows(series.low, np.nan),
            high=None if series.high is None else self.rows(series.high, np.nan),
            bad=self.rows(series.bad, np.logical_or.reduceat(bad, self._ranges)[::2]),
            marks=tuple([mark._replace(row=int(new_row[mark.row])) for mark in series.marks]),
        )

    def diff(self, diff: Mapping[str, Any]) -> dict[str, Any]:
        bars = {int(self.new[row]): bars for row, bars in diff["bars"].items() if self.new[row] >= 0}
        return {**diff, "open": None, "bars": bars}

    def _coded(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The old codes still in use, and the new code of each row. Every placeholder has its own code."""
        if id(codes) not in self._codes:
            used, new = np.unique(codes[self._rows], return_inverse=True)
            new = np.append(new, len(used) + np.arange(len(self._nodes)))[self._order].astype(np.int32)
            self._codes[id(codes)] = used, new
        return self._codes[id(codes)]

    def _left_out(self, column: Column) -> np.ndarray:
        """The value of each placeholder in the column: a reduction over its rows."""
        levels = np.asarray(column.levels)
        if column.format == "histogram":
            return np.zeros((len(self._nodes), *levels.shape[1:]), levels.dtype)
        if column.rollup in ("none", "given"):
            return np.full(len(self._nodes), np.nan)
        values = column.values
        if column.rollup in ("sum", "norm"):
            values = np.where(np.isnan(values), 0, values)
        with np.errstate(all="ignore"):
            return REDUCE[column.rollup].reduceat(np.append(values, values[:1]), self._ranges)[::2]


# Escape text for HTML: one function for each context


_SPECIAL = re.compile("[&<>\ud800-\udfff]")


class Markup(str):
    """HTML that treeviz built, which is not escaped again."""

    __slots__ = ()


def text(content: str) -> Markup:
    """Text between two tags."""
    if type(content) is Markup:
        return content
    return Markup(escape(_encodable(content), quote=False) if _SPECIAL.search(content) else str.__str__(content))


def attribute(value: str) -> Markup:
    """The value of an attribute, between its quotes."""
    return Markup(escape(_encodable(value)).replace("\n", "&#10;"))


def _encodable(content: str) -> str:
    """The text with lone surrogates, which UTF-8 cannot encode, as escape sequences."""
    return str.__str__(content).encode("utf-8", "backslashreplace").decode()


# The first rows as static HTML, for hosts that run no scripts

MAX_LINES = 316
MAX_NESTING = 60  # browsers nest a few hundred levels; a narrow screen fits fewer
_LONG = 80  # characters
_N_PLAIN = 2  # columns of numbers whose values have no title
_N_BYTES = 19_500  # of all static rows; further columns are added up to this size
_N_CHARACTERS = 12  # of a sparkline
_N_FINDINGS = 8
_STYLE = "font:13px/1.5 ui-monospace,Menlo,Consolas,monospace;overflow-x:auto"


def outline(view: View) -> Markup:
    """The first rows of every subtree as nested <details>, at most `MAX_LINES` lines.

    Each row shows the first two columns of numbers, the last value and sparkline of the first series, and as many
    other columns with their titles as fit into `_N_BYTES`. The first findings are listed above the rows.
    Rows deeper than `view.depth` are left out.
    """
    findings = "".join(_findings(view.table, view.series))
    view = in_brief(view, fold=True)
    table, series = view.table, view.series
    depth = MAX_NESTING if view.depth is None else min(view.depth, MAX_NESTING)
    rows, n_left_out, _ = first_rows(view, MAX_LINES, depth)
    shown = view.columns_without_last_value
    plain = [column for column in shown if column.format in WRITE][:_N_PLAIN]
    titles = ", ".join(["type", *[times_text(first) for first in series[:1]], *[column.title for column in plain]])
    summaries = "".join([f" · {text(summary)}" for summary in table.headline])
    start = f'<pre style="{_STYLE}"><b>{text(_short(table.name))}</b>{summaries}\n<i>name: {text(titles)}'
    lines, left_out, end = _lines(view, rows, n_left_out.tolist(), plain), "", "</pre>"
    if view.footer:
        end = f"<i>{view.footer}</i>\n{end}"
    if len(rows) < len(table):
        end = f"… {count_text(len(table) - len(rows))} of {count_text(len(table))} rows are not shown here.\n{end}"
    if others := [column for column in shown if column not in plain]:
        size = len("".join([start, "</i>\n", findings, *map("".join, lines), end]).encode())
        further, left_out = _further(table, others, rows, _N_BYTES - size)
        lines = [(line + content, after) for (line, after), content in zip(lines, further, strict=True)]
    return Markup("".join([start, left_out, "</i>\n", findings, *map("".join, lines), end]))


def _further(table: TreeTable, columns: Sequence[Column], rows: np.ndarray, room: int) -> tuple[list[str], str]:
    """The text of each row for the columns that fit into `room` bytes, and a text that names the other columns.

    Counts of zero are left out. A sum to which all leaves add the same is shown at nodes only.
    """
    texts, left_out = [""] * len(rows), []
    is_leaf = table.is_leaf[rows].tolist()
    is_leaf[0] = False
    for column in columns:
        for cell in columns_of_cells(table, [column], rows, UNICODE)[:1]:
            values = [value.rstrip() if column.format == "histogram" else value.strip() for value in cell.texts]
            leaf_values = {value for value, leaf in zip(values, is_leaf, strict=True) if leaf}
            are_identical = column.rollup == "sum" and len(leaf_values) == 1
            if column.format in ("count", "bytes"):
                values = ["" if value in ("0", "0 B") else value for value in values]
            title = text(cell.title.strip())
            added = [
                f", {title} {text(value)}" if value and not (are_identical and leaf) else ""
                for value, leaf in zip(values, is_leaf, strict=True)
            ]
            size = len("".join(added).encode())
            if size > room:
                left_out.append(title)
                continue
            room -= size
            texts = list(map("".join, zip(texts, added, strict=True)))
    return texts, f"; only in the page: {', '.join(left_out)}" if left_out else ""


def _findings(table: TreeTable, series: Sequence[Series]) -> Iterator[str]:
    """The first findings, one line each."""
    marks = [(source, mark) for source in series for mark in source.marks]
    for source, mark in marks[:_N_FINDINGS]:
        path = table[mark.row].keystr or table.name
        place = f"{path if len(path) <= _LONG else '…' + path[1 - _LONG :]}, {source.steps_text(mark.column)}"
        yield f"<b>{text(_short(mark.kind))}</b> {text(place)}: {text(_short(mark_text(mark), 200))}\n"
    if len(marks) > _N_FINDINGS:
        yield f"… {count_text(len(marks) - _N_FINDINGS)} more findings\n"


def _lines(view: View, rows: np.ndarray, n_left_out: list[int], numeric: Sequence[Column]) -> list[tuple[str, str]]:
    """The line of each row, and what follows it; lines without an arrow are indented to match.

    The line of a node with rows below it is the <summary> of its <details>.
    """
    table, series = view.table, view.series
    columns = (table.depth, table.end, table.fact_codes, table.key_codes, table.position)
    depths, ends, codes, key_codes, positions = [column[rows].tolist() for column in columns]
    opened = open_first(view)[rows].tolist()
    facts = {}
    for code in set(codes):
        parts = (type_text(table.facts[code]), *[part.text for part in fact_parts(table.facts[code])])
        facts[code] = text(" ".join(map(_short, parts)))
    labels = {code: text(_short(table.keys[code].label)) for code in set(key_codes)}
    texts = (scalar_texts(table, rows), _history(series, rows), _numbers(table, rows, numeric))
    numbers = list(map("".join, zip(*texts, strict=True)))
    counts_inside = marks_inside(table, series, rows)
    chosen, lines = rows.tolist(), list[tuple[str, str]]()
    inside: list[tuple[int, str]] = []  # the end of each open node's subtree, and its closing markup
    for i, row in enumerate(chosen):
        closing = ""
        while inside and inside[-1][0] <= row:
            closing += inside.pop()[1]
        indent, code = "  " * depths[i], key_codes[i]
        label = (labels[code] if code else f"[{positions[i]}]") if row else text(_short(table.name))
        line = f"{indent}{label}: {facts[codes[i]]}{numbers[i]}"
        after = ""
        for note in table.notes.get(row, ()):
            after += f" <b>{text(_short(note_part(table, note).text, 200))}</b>"
        has_rows = i + 1 < len(chosen) and chosen[i + 1] < ends[i]
        is_open = has_rows and opened[i]
        if counts_inside[i] and not is_open:
            after += f" <b>{counts_inside[i]}</b>"
        if has_rows:
            lines.append((f"{closing}<details{' open' if is_open else ''}><summary>{line}{after}", "</summary>"))
            more = f"    {indent}… {count_text(n_left_out[i])} more\n" if n_left_out[i] else ""
            inside.append((ends[i], f"{more}</details>"))
        else:
            n_inside = f", {count_text(n_left_out[i])} inside" if n_left_out[i] else ""
            lines.append((f"{closing}  {line}{n_inside}{after}", "\n"))
    line, after = lines.pop()
    return [*lines, (line, "".join([after, *[markup for _, markup in reversed(inside)]]))]


def _numbers(table: TreeTable, rows: np.ndarray, columns: Sequence[Column]) -> list[str]:
    """The numbers of each row as text."""
    texts = [[""] * len(rows)]
    for column in columns:
        write, hidden = WRITE[column.format], hidden_value(column)
        values = table.rolled(column)[rows].astype(np.float64, copy=False).tolist()
        known = {x: "" if x != x or x == hidden else f", {write(x)}" for x in set(values)}
        written = [known[x] for x in values]
        for i, span in span_texts(column.spans, rows, write):
            written[i] = f", {span}"
        for i in [] if column.bad is None else np.flatnonzero(column.bad[rows]).tolist():
            written[i] = f", {BAD}"
        texts.append(written)
    return list(map("".join, zip(*texts, strict=True)))


def _history(series: Sequence[Series], rows: np.ndarray) -> list[str]:
    """The last value and the sparkline of each row in the first series."""
    if not series:
        return [""] * len(rows)
    pairs = zip(last_texts(series[0], rows), sparklines(series[0], rows, _N_CHARACTERS), strict=True)
    return [f", {' '.join(filter(None, (last, spark)))}" if last or spark.strip() else "" for last, spark in pairs]


def _short(content: str, limit: int = _LONG) -> str:
    return content if len(content) <= limit else f"{content[: limit - 1]}…"


_KEEP_KEYS = 'data-lm-suppress-shortcuts="true"'  # the notebook ignores keys pressed in the static rows
_N_IN_TITLE = 3  # parts; a browser tab shows less: "tree · 148 leaves · 124.4 M elements · 497.8 MB"
# The static rows appear after a second, so that they do not flash before the view; without scripts immediately.
_UNTIL_RUN = "@media(scripting){pre{animation:a 1s}@keyframes a{0%,to{display:none}}}"
_SCRIPT = re.compile(r"<script\s*>(.*?)</script\s*>", re.DOTALL | re.IGNORECASE)


def fragment(view: View) -> str:
    """The first rows as static HTML, with the script and the data that turn them into the interactive page.

    The static rows are at most `view.depth` deep. Series are shown as sparklines, a heat map and charts.
    """
    return _host(view, pack_within(view), f"{_KEEP_KEYS} data-treeviz") + _script(view.part)


def page(view: View, *, title: str = "") -> str:
    """The view as a self-contained document.

    Its content security policy allows no requests, and only the scripts of the front end and of `view.values`.

    Args:
      title: The document's title; by default the tree's name and the start of its headline.
    """
    title = title or " · ".join((view.table.name, *view.table.headline[:_N_IN_TITLE]))
    policy = f"default-src 'none';style-src 'unsafe-inline';img-src data:;{_script_policy(view)}"
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        "<meta name=viewport content=width=device-width>"
        f"<style>:root{{color-scheme:light dark}}{_UNTIL_RUN}</style>"
    )
    host = _host(view, pack_within(view), "data-page data-treeviz")
    return (
        # HTML needs no tags around head and body.
        f"<!DOCTYPE html>\n<html lang=en><meta charset=utf-8>{head}"
        f"<title>{text(title)}</title>\n"
        f"<main>{host}</main>{_script(view.part)}</html>\n"
    )


def fallback(view: View, packed: bytes, *, token: str) -> str:
    """The HTML that a notebook stores with a widget, shown only if the widget with this token does not appear.

    Args:
      packed: `pack(view)`, which the widget needs, too.
    """
    host = _host(view, pack_within(view, packed), f"{_KEEP_KEYS} data-treeviz-waiting")
    return (
        f'<div data-treeviz-fallback="{attribute(token)}">{host}<script type="text/treeviz-waiting">'
        f'{packed_text(view.part)}</script><script type="text/treeviz-loader">{script("page_loader")}</script>'
        f"<script>{script('fallback')}</script></div>"
    )


def _host(view: View, packed: bytes, attributes: str) -> str:
    """The element that the front end replaces, with the static rows and the packed table.

    The last attribute's value names the modules that it needs; a script without them ignores the element.
    """
    needs = f"{FORMAT} {view.part}".strip()
    return (
        f'<div class="treeviz" {attributes}="{needs}">'
        f"{outline(view.brief)}<script type=text/plain>{as_text(packed)}</script></div>"
    )


@cache
def _script(part: str) -> Markup:
    loader = f"<script type=module>{script('page_loader')}</script>"
    return Markup(f"<script type=text/treeviz>{packed_text(part)}</script>{loader}")


@cache
def _script_hash(content: str) -> str:
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"


def _script_policy(view: View) -> str:
    """Allow the front end and the scripts of `view.values`, whose sandboxed frames inherit the policy."""
    documents = [html for html in (view.values or {}).values() if isinstance(html, str)]
    scripts = dict.fromkeys(code for html in documents for code in _SCRIPT.findall(html) if code)
    builds_functions = any("new Function" in code for code in scripts)
    hashes = map(_script_hash, (script("page_loader"), script(view.part), *scripts))
    return " ".join(["script-src", *hashes, *(["'unsafe-eval'"] if builds_functions else [])])
