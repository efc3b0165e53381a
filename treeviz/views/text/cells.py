"""The cells of a row as text: its type, columns, badges and sparklines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from treeviz.tree.facts import INHERITED, KINDS, SCALARS, Column, Facts, Note
from treeviz.tree.series import FindingMark, Series, thinned
from treeviz.tree.table import TreeTable
from treeviz.tree.text import LABEL_LIMIT, aval_text, bytes_text, count_text, number_text, percent_text, visible
from treeviz.views.text import terminal
from treeviz.views.text.terminal import Glyphs, cut, display_width

# Sparklines: the series of a row in a few characters; texts about series

UNICODE_BAD, ASCII_BAD = "×", "!"
BAD = "NaN/Inf"  # in place of a number
BARS = "▁▂▃▄▅▆▇█"
_TITLE = 80  # characters at most


def sparklines(
    series: Series, rows: np.ndarray, n_characters: int, *, bars: str = BARS, bad: str = UNICODE_BAD
) -> list[str]:
    """At most `n_characters` characters for each row: bars, or `bad` for NaN and Inf.

    A bar shows the highest value in its steps, so that no spike is lost. Each row has its own scale, from its lowest
    to its highest value. A nearly constant row is drawn in the middle.
    """
    heights, is_zero, is_bad = shapes_of(series, rows, n_characters)
    places = np.nan_to_num(heights * (len(bars) - 1)).round().astype(int)
    characters = np.array(list(bars), dtype=object)[places]
    characters[np.isnan(heights)] = " "
    characters[is_zero] = bars[0]
    characters[is_bad] = bad
    return ["".join(line) for line in characters.tolist()]


class Shapes(NamedTuple):
    """The sparklines of some rows, for text and pictures: [rows, columns] each."""

    heights: np.ndarray  # from 0 (the row's lowest value) to 1 (its highest); NaN without a value
    is_zero: np.ndarray  # the value is zero on a logarithmic scale
    is_bad: np.ndarray  # the value is NaN or Inf


def shapes_of(series: Series, rows: np.ndarray, n_columns: int) -> Shapes:
    """The sparklines of `rows` in at most `n_columns` columns, each as high as the highest value in its steps."""
    thin = thinned(series_of(series, rows), n_columns)
    values = (thin.values if thin.high is None else thin.high).astype(np.float64)
    is_bad = thin.bad | np.isinf(values)
    is_zero = values == 0
    known = np.isfinite(values) & ~is_bad
    if thin.log:
        known &= values > 0
        values = np.log10(values, out=np.zeros(values.shape), where=known)
    shown = np.where(known, values, np.nan)
    low = np.fmin.reduce(shown, axis=1, initial=np.inf)[:, None]
    high = np.fmax.reduce(shown, axis=1, initial=-np.inf)[:, None]
    # The scale spans at least a tenth of a decade or a tenth of the value, so that noise does not fill it.
    least = 0.1 if thin.log else 0.1 * np.where(np.isfinite(high), np.abs(high), 1.0)
    with np.errstate(all="ignore"):
        heights = (shown - (low + high) / 2) / np.maximum(high - low, least) + 0.5
    return Shapes(np.where(known, np.clip(heights, 0, 1), np.nan), is_zero & ~known, is_bad)


def series_of(series: Series, rows: np.ndarray) -> Series:
    """The series of some rows, without marks."""
    low, high = (None if part is None else part[rows] for part in (series.low, series.high))
    return replace(series, values=series.values[rows], bad=series.bad[rows], low=low, high=high, marks=(), spans=None)


def last_values(series: Series, rows: np.ndarray) -> np.ndarray:
    """float64[rows]: the values in the last column; NaN if missing."""
    return series.values[rows, -1].astype(np.float64)


def last_texts(series: Series, rows: np.ndarray) -> list[str]:
    """The last values as text; `BAD` if a number was not finite, since the value covers only the finite numbers."""
    pairs = zip(last_values(series, rows).tolist(), series.bad[rows, -1].tolist(), strict=True)
    texts = [BAD if bad else number_text(value) if value == value else "" for value, bad in pairs]
    for i, text in span_texts(series.spans, rows, number_text):
        texts[i] = texts[i] if texts[i] == BAD else text
    return texts


def span_texts(
    spans: tuple[np.ndarray, np.ndarray] | None, rows: np.ndarray, write: Callable[[float], str]
) -> Iterator[tuple[int, str]]:
    """Pairs of an index into `rows` and a range "0.1–0.3" of several values, in two digits or, if needed, four."""
    if spans is None:
        return
    low, high = (part[rows] for part in spans)
    for i in np.flatnonzero(low < high).tolist():
        ends = low[i].item(), high[i].item()
        texts = [write(end) if isinstance(end, int) else write(float(f"{end:.2g}")) for end in ends]
        texts = texts if texts[0] != texts[1] else [write(end) for end in ends]
        dash = " to " if "-" in "".join(texts) else "–"
        yield i, dash.join(dict.fromkeys(texts))  # a dash beside a sign is hard to read


def marks_by_row(series: Sequence[Series]) -> dict[int, list[tuple[Series, FindingMark]]]:
    """The marks of each row, in the order of the series and their marks."""
    marks: dict[int, list[tuple[Series, FindingMark]]] = {}
    for source in series:
        for mark in source.marks:
            marks.setdefault(mark.row, []).append((source, mark))
    return marks


def marks_inside(table: TreeTable, series: Sequence[Series], rows: np.ndarray) -> list[str]:
    """The text "⚠3" for the number of findings below each row; "" for none."""
    marked = sorted([mark.row for source in series for mark in source.marks])
    if not marked:
        return [""] * len(rows)
    counts = np.searchsorted(marked, table.end[rows]) - np.searchsorted(marked, rows, side="right")
    return [f"⚠{count_text(n)}" if n else "" for n in counts.tolist()]


def mark_text(mark: FindingMark) -> str:
    """The text of a mark without its kind, which is shown separately."""
    return mark.text.removeprefix(f"{mark.kind}: ")


def times_text(series: Series) -> str:
    """A title for the last value and the sparkline of a row: "grads norm at step 99 and since step 0"."""
    title = series.title if len(series.title) <= _TITLE else f"{series.title[: _TITLE - 1]}…"
    return f"{title} at {series.steps_text(-1)} and since {series.steps_text(0)}"


WRITE: dict[str, Callable[[float], str]] = {"count": count_text, "bytes": bytes_text, "number": number_text}

IN_EVERY_LINE = ("key", "type", "kind", "shape", "dtype")  # columns that every line shows
_SIZES = ("elements", "zeros")  # counts that are dropped first, like sizes
_N_BARS = 8
_WORDS = re.compile(r"(?: [·-] [^·-]*|(?<=\]) [a-z ]+)$")  # of a type, which may be dropped: counts, "shape only"
_LABEL, _STATIC = 32, 500  # characters of a label in a narrow terminal, and of all static fields
_N_PATH = 12  # keys of a path in a badge
_N_INSIDE = 3
_NOTE_STYLES = {
    "error": terminal.RED,
    "cycle": terminal.RED,
    "hidden": terminal.YELLOW,
    "partial": terminal.YELLOW,
    "nonfinite": terminal.YELLOW,
    "differs": terminal.YELLOW,
    "warning": terminal.YELLOW,
}


class Part(NamedTuple):
    """A part of the end of a line."""

    style: str  # an ANSI sequence, or ""
    text: str
    brief: str = ""  # replaces the text if it does not fit
    fields: tuple[str, ...] = ()  # of which the text consists; those that do not fit are left out whole


class Cells(NamedTuple):
    """One column: texts of equal width, one for each shown row."""

    title: str
    width: int
    texts: list[str]
    is_extra: bool = False  # dropped before sizes if the width is limited
    is_label: bool = False  # may be cut
    is_size: bool = False  # dropped before other columns if the width is limited
    name: str = ""  # of the column
    styles: tuple[str, ...] = ()  # for each row, the color of its spec


@lru_cache(maxsize=256)
def type_text(facts: Facts) -> str:
    """ "dict", "float32[768,768]", "~float32[]", "int32[3] numpy", "float 0.1", "Param bfloat16[8]"."""
    if facts.kind == "none":
        return "None"
    value = f" {facts.text}" if is_value(facts) else ""
    if facts.shape is None:
        return facts.type + value
    aval = facts.aval or ("~" if facts.weak else "") + aval_text(facts.shape, facts.dtype, facts.axes)
    is_boxed = facts.module != ""  # the type is a wrapper, such as Param
    kind = KINDS[facts.kind]
    if facts.type not in (kind.implied_types or ()) and (is_boxed or kind.implied_types is not None):
        aval = f"{facts.type} {aval}"
    return (aval if kind.is_implied or facts.is_as_all else f"{aval} {facts.kind}") + value


def is_value(facts: Facts) -> bool:
    """Whether the text is a short value, which follows the type: "float 0.1"."""
    return facts.kind in ("scalar", "string") and 0 < len(facts.text) <= 24


def fact_parts(facts: Facts) -> list[Part]:
    """The end of a line: the text, the static fields, and the contents of an opaque leaf that JAX does not see."""
    parts = []
    if facts.text and not is_value(facts):
        parts.append(Part(terminal.DIM, facts.text))
    for prefix, pairs in (("", facts.static), ("inside: ", facts.inside)):
        if pairs:
            text = prefix + pairs_text(pairs)
            text = text if len(text) <= _STATIC else text[: _STATIC - 1] + "…"
            parts.append(Part(terminal.DIM, text, fields=(prefix, *(pairs_text([pair]) for pair in pairs))))
    return parts


def first_fields(fields: Sequence[str], width: int, dots: str) -> str:
    """The first fields that fit whole and the number of the others; "" if not even the first one fits."""
    for n in range(len(fields) - 2, 0, -1):
        text = f"{fields[0]}{', '.join(fields[1 : n + 1])}, {dots} {len(fields) - 1 - n} more"
        if display_width(text) <= width:
            return text
    return ""


def pairs_text(pairs: Sequence[tuple[str, str]]) -> str:
    """ "lr=0.1, ['w']=float32[2], … 3 more"."""
    return ", ".join(f"… {value}" if name == "…" else f"{name}={value}" for name, value in pairs)


def note_part(table: TreeTable, note: Note) -> Part:
    """A badge: "shared with ['wte']", "cycle to ['a'][0]", "error: ValueError: …"."""
    if note.row >= 0 and note.kind in ("shared", "cycle"):
        text = f"{'shared with' if note.kind == 'shared' else 'cycle to'} {path_text(table, note.row)}"
    else:
        text = f"error: {note.text}" if note.kind == "error" else note.text
    if note.details:
        inside = [f"{name} {contents}" for name, contents in note.details[:_N_INSIDE]]
        text += f": {', '.join(inside)}{', …' if len(note.details) > _N_INSIDE else ''}"
    return Part(_NOTE_STYLES.get(note.kind, terminal.CYAN), text, note.brief)


def path_text(table: TreeTable, row: int) -> str:
    """The key path of a row, or only its last keys."""
    keys = []
    while row > 0 and len(keys) < _N_PATH:
        key = table.key(row)
        keys.append(key.keystr or key.label.partition(" ×")[0])  # of a folded row: "[0…79]"
        row = int(table.parent[row])
    return ("…" if row > 0 else "" if keys else table.name) + "".join(reversed(keys))


def type_cells(table: TreeTable, rows: np.ndarray, glyphs: Glyphs) -> Cells:
    """The type of each row; see `type_text`."""
    codes: Sequence[int] = table.fact_codes[rows].tolist()
    texts = [""] * len(table.facts)
    for code in set(codes):
        texts[code] = glyphs.fit(type_text(table.facts[code]))
    if SCALARS in table.columns:
        texts = [texts[code] + scalar for code, scalar in zip(codes, scalar_texts(table, rows), strict=True)]
        codes = range(len(rows))
    return _left("", texts, codes)


def scalar_texts(table: TreeTable, rows: np.ndarray) -> list[str]:
    """What follows the type of an array of one number: " 0.25"."""
    scalars = table.columns.get(SCALARS)
    return [""] * len(rows) if scalars is None else [f" {text}" if text else "" for text in scalars.values[rows]]


def columns_of_cells(
    table: TreeTable, columns: Sequence[Column], rows: np.ndarray, glyphs: Glyphs, width: int | None = None
) -> list[Cells]:
    """The cells of the columns. Summed bytes are followed by their share, as a bar and in percent.

    Args:
      width: The width of a line; a label has at most a third of it.
    """
    longest = LABEL_LIMIT if width is None else max(_LABEL, width // 3)
    cells = []
    for column in columns:
        if column.format == "label":
            if column.name not in IN_EVERY_LINE:
                cells.append(_labels(column, rows, glyphs, longest))
        elif column.format == "histogram":
            cells.append(_charts(table, column, rows, glyphs))
        else:
            values = table.rolled(column)
            # NaN means no value. Zeros are hidden in integer sums, and shown in float columns.
            is_blank = column.rollup == "sum" and column.format != "number" and values.dtype.kind in "iu"
            values_shown = values[rows].tolist()
            known = {value: code for code, value in enumerate(dict.fromkeys(values_shown))}
            levels, codes = [*known], [known[value] for value in values_shown]
            cells.append(_numbers(column, levels, codes, rows, 0 if is_blank else None, glyphs))
            if column.format == "bytes" and column.rollup == "sum" and values[0] > 0:
                cells += [*_shares(levels, codes, float(values[0]), glyphs)]
    return cells


def series_cells(series: Sequence[Series], rows: np.ndarray, glyphs: Glyphs, n_characters: int) -> list[Cells]:
    """The last value and the sparkline of each row in the first series."""
    if not series:
        return []
    main, everything = series[0], range(len(rows))
    bad = ASCII_BAD if glyphs.dots.isascii() else UNICODE_BAD
    sparks = sparklines(main, rows, n_characters, bars=glyphs.heights[1:], bad=bad)
    title = glyphs.fit(cut(visible(main.title), _LABEL))
    return [
        _right(title, list(map(glyphs.fit, last_texts(main, rows))), everything, name=main.name),
        _left("log scale" * main.log, sparks, everything, name=main.name),
    ]


def _numbers(
    column: Column, levels: list[float], codes: list[int], rows: np.ndarray, hidden: int | None, glyphs: Glyphs
) -> Cells:
    write = WRITE[column.format]
    texts = ["" if level != level or level == hidden else write(level) for level in levels]
    if column.bad is not None:
        texts, codes = [*texts, BAD], np.where(column.bad[rows], len(texts), codes).tolist()
    if column.spans is not None:
        codes = codes.copy()
        for i, text in span_texts(column.spans, rows, write):
            if texts[codes[i]] != BAD:
                codes[i] = len(texts)
                texts.append(glyphs.fit(text))
    is_size = column.name in _SIZES or (column.name.endswith("bytes") and column.name != "device_bytes")
    is_size |= column.format == "count" and not any(level > 0 for level in levels)  # all zero
    return _right(glyphs.fit(column.title), texts, codes, name=column.name, is_size=is_size)


def _right(title: str, texts: list[str], codes: Sequence[int], **more: Any) -> Cells:
    own = display_width(title)
    width = max(own, max(map(len, texts)))
    texts = [text.rjust(width) for text in texts]
    return Cells(" " * (width - own) + title, width, [texts[code] for code in codes], **more)


def _left(title: str, texts: list[str], codes: Sequence[int], **more: Any) -> Cells:
    widths = [*map(display_width, (title, *texts))]
    width = max(widths)
    title, *texts = [text + " " * (width - own) for text, own in zip((title, *texts), widths, strict=True)]
    return Cells(title, width, [texts[code] for code in codes], **more)


def narrowed(cells: Cells, width: int, glyphs: Glyphs) -> Cells:
    """The same cells, shortened to at most `width` columns, or to fewer if whole words are dropped."""
    if width >= cells.width:
        return cells
    title, texts = cut(cells.title.rstrip(), width), {}
    for text in set(cells.texts):
        short = text.rstrip() if cells.is_label else _brief(text.rstrip(), width)
        texts[text] = cut(short, width, glyphs.dots)
    return _widened(cells, max(map(display_width, [title, *texts.values()])), title, [texts[t] for t in cells.texts])


def _widened(cells: Cells, width: int, title: str, texts: list[str]) -> Cells:
    padded = [_padded(text, width) for text in texts]
    return cells._replace(title=_padded(title, width), width=width, texts=padded)


def bare_width(types: Cells) -> int:
    """The columns that the types need without the words that may be dropped."""
    return max([display_width(_brief(text.rstrip(), 0)) for text in set(types.texts)], default=0)


def without_origins(cells: Cells, n_missing: int, glyphs: Glyphs) -> Cells:
    """The same cells, up to `n_missing` columns narrower: brackets show from where labels are inherited."""
    if not cells.is_label or not any((mark := glyphs.fit(INHERITED)) in text for text in cells.texts):
        return cells
    least = max(display_width(text.partition(mark)[0].rstrip()) for text in {*cells.texts, cells.title})
    return narrowed(cells, max(cells.width - n_missing, min(cells.width, least + len(mark))), glyphs)


def _brief(text: str, width: int) -> str:
    """A type without the last words if it does not fit: "Linear" for "Linear · 2 leaves"."""
    while display_width(text) > width and (words := _WORDS.search(text)):
        text = text[: words.start()]
    return text


def _shares(levels: list[float], codes: list[int], total: float, glyphs: Glyphs) -> tuple[Cells, Cells]:
    bars, n_steps = [], len(glyphs.eighths)
    for level in levels:
        n_whole, rest = divmod(round(min(1.0, max(0.0, level / total)) * _N_BARS * n_steps), n_steps)
        bars.append((glyphs.eighths[-1] * n_whole + glyphs.eighths[rest - 1 : rest]).ljust(_N_BARS))
    percents = [percent_text(level, total) for level in levels]
    bars = [bars[code] for code in codes]
    return Cells(" " * _N_BARS, _N_BARS, bars, True), _right("", percents, codes, is_extra=True)


def _labels(column: Column, rows: np.ndarray, glyphs: Glyphs, longest: int) -> Cells:
    codes = (rows if column.codes is None else column.codes[rows]).tolist()
    texts = [""] * len(column.levels)
    for code in set(codes):
        texts[code] = glyphs.fit(cut(str(column.levels[code]), longest))
    styles = _styles(column, codes) if INHERITED.strip() in column.help else ()
    return _left(glyphs.fit(column.title), texts, codes, is_label=True, styles=styles)


def _styles(column: Column, codes: list[int]) -> tuple[str, ...]:
    """The color of each row's spec, dim if inherited. The first two labels, "" and no spec, have no color."""
    levels = [str(level).partition(INHERITED) for level in column.levels]
    number: dict[str, int] = {}
    for i, (spec, _, origin) in enumerate(levels):
        if not origin:
            number.setdefault(spec, i)
    styles = [""] * len(levels)
    for i, (spec, _, origin) in enumerate(levels):
        if number.get(spec, 0) > 1:
            styles[i] = (terminal.DIM if origin else "") + terminal.HUES[(number[spec] - 2) % len(terminal.HUES)]
    return tuple([styles[code] for code in codes])


def bracketed(cells: Cells, glyphs: Glyphs) -> Cells:
    """The same cells, with a bracket before labels that are inherited from a row above."""
    if not cells.is_label or not any((mark := glyphs.fit(INHERITED)) in text for text in cells.texts):
        return cells
    pairs = zip(cells.texts, [*cells.texts[1:], ""], strict=True)
    signs = [(text, glyphs.bar[0] if text == below else glyphs.last[0]) for text, below in pairs]
    texts = [f"{sign} {text}" if mark in text else text for text, sign in signs]
    return _widened(cells, cells.width + 2, cells.title, texts)


def _charts(table: TreeTable, column: Column, rows: np.ndarray, glyphs: Glyphs) -> Cells:
    """Histograms as charts of at most eight bars, with the same range of bins in all rows."""
    if column.rollup in ("none", "given"):
        counts = np.asarray(column.levels)[rows if column.codes is None else column.codes[rows]]
    else:
        counts = table.rolled(replace(column, levels=np.asarray(column.levels, dtype=np.float64)))[rows]
    counts = np.nan_to_num(counts.astype(np.float64))
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
    title = glyphs.fit(column.title)
    width = max(display_width(title), n_bars)
    return Cells(_padded(title, width), width, [text.ljust(width) for text in texts])


def _padded(text: str, width: int) -> str:
    return text + " " * (width - display_width(text))
