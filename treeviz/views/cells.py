"""What the cells of a row say, in words and signs: its type, its numbers, its badges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from treeviz.tree.column import Column
from treeviz.tree.numbers import bytes_text, count_text, number_text, percent_text
from treeviz.tree.quote import aval_text, visible
from treeviz.tree.rollup import rolled_up
from treeviz.tree.series import Series
from treeviz.tree.table import Facts, Note, TreeTable
from treeviz.views import terminal
from treeviz.views.sparks import ASCII_BAD, UNICODE_BAD, last_texts, sparklines
from treeviz.views.terminal import Glyphs, cut, display_width

Part = tuple[str, str]  # a style (an ANSI sequence, or "") and a text
WRITE: dict[str, Callable[[float], str]] = {"count": count_text, "bytes": bytes_text, "number": number_text}

_SAID = ("key", "type", "kind", "shape", "dtype")  # columns of labels that every line repeats anyway
_N_BARS = 8
_N_SIGNS = 12  # of a sparkline
_LABEL, _STATIC = 32, 500  # most characters of a label, of all static fields
_N_PATH = 12  # keys of a path in a badge
_N_INSIDE = 3
# kinds whose type says nothing that "float32[3]" and the kind do not say
_PLAIN = {
    "array": ("jax.Array",),
    "numpy": ("np.ndarray", "ndarray"),
    "abstract": ("ShapeDtypeStruct", "ShapedArray"),
    "deleted": ("jax.Array",),
}
_PLAIN_KINDS = ("key", "float0", "tracer", "ref", "scalar")
_TRUISMS = ("array", "key", "float0", "scalar")  # kinds that the rest of the cell says
_NOTE_STYLES = {"error": terminal.RED, "cycle": terminal.RED, "hides": terminal.YELLOW, "partial": terminal.YELLOW}


class Cells(NamedTuple):
    """A column of texts that are equally wide, one for each row that is shown."""

    title: str
    width: int
    texts: list[str]
    is_extra: bool = False  # may be left out where there is little room


def what_it_is(facts: Facts) -> str:
    """ "dict", "float32[768,768]", "~float32[]", "int32[3] numpy", "float 0.1", "Param bfloat16[8]"."""
    if facts.kind == "none":
        return "None"
    value = f" {facts.text}" if is_value(facts) else ""
    if facts.shape is None:
        return facts.type + value
    aval = ("~" if facts.weak else "") + aval_text(facts.shape, facts.dtype)
    is_boxed = facts.module != ""  # the class is that of a box, such as a Param
    if is_boxed or not (facts.kind in _PLAIN_KINDS or facts.type in _PLAIN.get(facts.kind, ())):
        aval = f"{facts.type} {aval}"
    return (aval if facts.kind in _TRUISMS else f"{aval} {facts.kind}") + value


def is_value(facts: Facts) -> bool:
    """Whether the text is a short value that stands with the type."""
    return facts.kind == "scalar" and 0 < len(facts.text) <= 24


def fact_parts(facts: Facts) -> list[Part]:
    """The text and the static fields."""
    parts = []
    if facts.text and not is_value(facts):
        parts.append((terminal.DIM, facts.text))
    if facts.static:
        static = ", ".join(f"{name}={value}" for name, value in facts.static)
        parts.append((terminal.DIM, static if len(static) <= _STATIC else static[: _STATIC - 1] + "…"))
    return parts


def note_part(table: TreeTable, note: Note) -> Part:
    """A badge: "shared with ['wte']", "cycle to ['a'][0]", "error: ValueError: …"."""
    if note.row >= 0 and note.kind in ("shared", "cycle"):
        words = f"{'shared with' if note.kind == 'shared' else 'cycle to'} {_path_text(table, note.row)}"
    else:
        words = f"error: {note.text}" if note.kind == "error" else note.text
    if note.details:
        inside = [f"{name} {what}" for name, what in note.details[:_N_INSIDE]]
        words += f": {', '.join(inside)}{', …' if len(note.details) > _N_INSIDE else ''}"
    return _NOTE_STYLES.get(note.kind, terminal.CYAN), words


def _path_text(table: TreeTable, row: int) -> str:
    keys = []
    while row > 0 and len(keys) < _N_PATH:
        keys.append(table.key(row).keystr)
        row = int(table.parent[row])
    return ("…" if row > 0 else "" if keys else table.name) + "".join(reversed(keys))


def what_cells(table: TreeTable, rows: np.ndarray, glyphs: Glyphs) -> Cells:
    """What each row is."""
    codes = table.fact_codes[rows]
    texts = [""] * len(table.facts)
    for code in set(codes.tolist()):
        texts[code] = glyphs.fit(what_it_is(table.facts[code]))
    return _left("", texts, codes)


def columns_of_cells(table: TreeTable, columns: Sequence[Column], rows: np.ndarray, glyphs: Glyphs) -> list[Cells]:
    """The cells of the columns; behind each of bytes that add up, their share as a bar and as a percentage."""
    cells = []
    for column in columns:
        if column.format == "label":
            if column.name not in _SAID:
                cells.append(_labels(column, rows, glyphs))
        elif column.format == "histogram":
            cells.append(_charts(table, column, rows, glyphs))
        else:
            values = rolled_up(table, column)
            levels, codes = np.unique(values[rows], return_inverse=True)
            cells.append(_numbers(column, levels, codes))
            if column.format == "bytes" and column.rollup == "sum" and values[0] > 0:
                cells += [*_shares(levels, codes, values[0], glyphs)]
    return cells


def series_cells(series: Sequence[Series], rows: np.ndarray, glyphs: Glyphs) -> list[Cells]:
    """The last value and the sparkline of the first series."""
    if not series:
        return []
    main, everything = series[0], np.arange(len(rows))
    bad = ASCII_BAD if glyphs.dots.isascii() else UNICODE_BAD
    sparks = sparklines(main, rows, _N_SIGNS, bars=glyphs.heights[1:], bad=bad)
    title = glyphs.fit(cut(visible(main.title), _LABEL))
    return [_right(title, last_texts(main, rows), everything), _left("", sparks, everything)]


def _numbers(column: Column, levels: np.ndarray, codes: np.ndarray) -> Cells:
    write = WRITE[column.format]
    # NaN is nothing to say. So is a sum of nothing; but a float column says which zeros were counted.
    nothing = 0 if column.rollup == "sum" and column.format != "number" and levels.dtype.kind in "iu" else None
    texts = ["" if level != level or level == nothing else write(level) for level in levels.tolist()]
    return _right(column.title, texts, codes)


def _right(title: str, texts: list[str], codes: np.ndarray, is_extra: bool = False) -> Cells:
    width = max(display_width(title), max(map(len, texts)))
    return Cells(_padded(title, width, True), width, _take([text.rjust(width) for text in texts], codes), is_extra)


def _left(title: str, texts: list[str], codes: np.ndarray) -> Cells:
    width = max(display_width(title), *map(display_width, texts))
    return Cells(_padded(title, width), width, _take([_padded(text, width) for text in texts], codes))


def narrowed(cells: Cells, width: int, glyphs: Glyphs) -> Cells:
    """The same cells in fewer columns."""
    if width >= cells.width:
        return cells
    texts = {text: _padded(cut(text.rstrip(), width, glyphs.dots), width) for text in set(cells.texts)}
    return Cells(_padded(cut(cells.title.rstrip(), width), width), width, [texts[text] for text in cells.texts])


def _shares(levels: np.ndarray, codes: np.ndarray, whole: float, glyphs: Glyphs) -> tuple[Cells, Cells]:
    bars = [_bar(level / whole, glyphs) for level in levels.tolist()]
    percents = [percent_text(level, whole) for level in levels.tolist()]
    return Cells(" " * _N_BARS, _N_BARS, _take(bars, codes), True), _right("", percents, codes, True)


def _bar(share: float, glyphs: Glyphs) -> str:
    n_steps = len(glyphs.eighths)
    n_whole, rest = divmod(round(min(1.0, max(0.0, share)) * _N_BARS * n_steps), n_steps)
    return (glyphs.eighths[-1] * n_whole + glyphs.eighths[rest - 1 : rest]).ljust(_N_BARS)


def _labels(column: Column, rows: np.ndarray, glyphs: Glyphs) -> Cells:
    codes = rows if column.codes is None else column.codes[rows]
    texts = [""] * len(column.levels)
    for code in set(codes.tolist()):
        texts[code] = glyphs.fit(cut(str(column.levels[code]), _LABEL))
    return _left(column.title, texts, codes)


def _charts(table: TreeTable, column: Column, rows: np.ndarray, glyphs: Glyphs) -> Cells:
    """A chart of eight bars; all rows show the same range of bins."""
    levels = np.asarray(column.levels, dtype=np.float64)
    counts = np.nan_to_num(rolled_up(table, replace(column, levels=levels))[rows])
    used = np.flatnonzero(counts.any(axis=0))
    if len(used):
        counts = counts[:, used[0] : used[-1] + 1]
    n_bins = counts.shape[1]
    n_bars = min(_N_BARS, n_bins)
    starts = np.arange(n_bars) * n_bins // max(1, n_bars)
    bars = np.add.reduceat(counts, starts, axis=1) if n_bars else counts
    highest = bars.max(axis=1, keepdims=True, initial=0)
    heights = np.ceil((len(glyphs.heights) - 1) * np.divide(bars, highest, out=np.zeros_like(bars), where=highest > 0))
    texts = ["".join([glyphs.heights[h] for h in row]) for row in heights.astype(int).tolist()]
    width = max(display_width(column.title), n_bars)
    return Cells(_padded(column.title, width), width, [text.ljust(width) for text in texts])


def _take(texts: list[str], codes: np.ndarray) -> list[str]:
    return list(map(texts.__getitem__, codes.tolist()))


def _padded(text: str, width: int, right: bool = False) -> str:
    blank = " " * (width - display_width(text))
    return blank + text if right else text + blank
