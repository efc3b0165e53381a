"""Pack a view into the bytes that the front end reads.

The bytes, inflated: the length of the header (uint32), the header (JSON), then the buffers, each padded to a multiple
of 8 bytes. A buffer is an array of numbers in the smallest type that fits; the header refers to it by its index.
Parents, paths and roll-ups are not sent: the front end computes them in a few milliseconds.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from os.path import commonprefix
from typing import Any

import numpy as np

from treeviz.tree.facts import Column, Facts, Note, Sharding
from treeviz.tree.keys import Key
from treeviz.tree.repeats import blanks, differing, mirrors, similar_to_next
from treeviz.tree.series import FindingMark, Histograms, Series, thinned
from treeviz.tree.table import TreeTable
from treeviz.tree.text import aval_text
from treeviz.views.text.cells import WRITE, type_text
from treeviz.views.text.rows import labeled_rows, like_note, nan_rows, outlier_rows, values_of
from treeviz.views.view import View

# Pack histograms over time for the front end: a few bars for each row and step, relative to the highest.

MAX_CELLS = 400_000  # of all histograms of a page
MAX_HISTOGRAM_COLUMNS, MIN_HISTOGRAM_COLUMNS = 200, 4
_LEVELS = 15  # of a bar, shown as a colour


def pack_histograms(histograms: Sequence[Histograms], add: Callable[[np.ndarray], int]) -> list[dict[str, Any]]:
    """The header's entry for each; `add` stores an array and returns the index of its buffer."""
    packed = []
    for each in histograms:
        counts = np.nan_to_num(np.asarray(each.counts, dtype=np.float64))
        n_rows, n_columns, _ = counts.shape
        used = np.flatnonzero(counts.any(axis=(0, 1)))
        if not len(used):
            continue
        bins = slice(int(used[0]), int(used[-1]) + 1)
        n_bins = bins.stop - bins.start
        most = min(MAX_HISTOGRAM_COLUMNS, max(MIN_HISTOGRAM_COLUMNS, MAX_CELLS // len(histograms) // (n_rows * n_bins)))
        width = -(-n_columns // most)
        starts = np.arange(0, n_columns, width)
        stops = np.append(starts[1:], n_columns)
        counts = np.add.reduceat(counts[:, :, bins], starts, axis=1)
        highest = counts.max(axis=2, keepdims=True)
        heights = np.ceil(_LEVELS * np.divide(counts, highest, out=np.zeros_like(counts), where=highest > 0))
        packed.append(
            {
                "title": each.title,
                "n": len(starts),
                "n_bins": n_bins,
                "levels": _LEVELS,
                "first": add(each.first_steps[starts] // each.inner.n),
                "last": add(each.last_steps[stops - 1] // each.inner.n),
                "edges": [float(each.edges[bins.start]), float(each.edges[bins.stop])],
                "heights": add(heights.astype(np.uint8)),
            }
        )
    return packed


# Pack notes for the front end: those of differences that differ in numbers alone share a pattern.

_LEAST = 6  # notes that share a pattern
_MOST = 1_000  # rows whose notes are taken apart, which takes 50 microseconds each
_NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?")

Notes = tuple[Note, ...]


def pack_notes(notes: Iterable[tuple[int, Notes]], n_rows: int, add: Callable[[np.ndarray], int]) -> list:
    """The buffer with the code of each row's notes, 0 for none, and the notes by their codes from 1 on.

    Thousands of rows may have the same: that a part of each was left out.
    """
    codes: dict[Notes, int] = {}
    of_rows = np.zeros(n_rows, np.int64)
    for row, each in notes:
        of_rows[row] = codes.setdefault(tuple(each), len(codes) + 1)
    return [add(of_rows), *map(_sent, codes)] if codes else []


def _sent(notes: Notes) -> list:
    return [note[: 6 if note.severity else 4] for note in notes]


def pack_patterns(
    table: TreeTable, columns: Iterable[Column], add: Callable[[np.ndarray], int]
) -> tuple[list, dict[int, Notes]]:
    """The notes of differences by patterns; and what is sent of these rows as their notes, without texts.

    The first part is the buffer with the number of each row's pattern, 0 for none, and the patterns from 1 on. A
    pattern is the JSON of the notes of its rows in parts; what stands between two parts is the text of a row in a
    column, by the column's name, or is sent: by its index among lists, which are a text of all texts or a buffer of
    numbers.
    """
    rows = [row for row, notes in table.notes.items() if all(note.kind == "differs" for note in notes)][:_MOST]
    by_pattern: dict[tuple[str, ...], list[tuple[int, list[str]]]] = {}
    for row in rows:
        text = json.dumps(_sent(table.notes[row]), separators=(",", ":"), ensure_ascii=False)
        by_pattern.setdefault(tuple(_NUMBER.split(text)), []).append((row, _NUMBER.findall(text)))
    texts_of = [(column.name, _texts(table, column)) for column in columns]
    codes, patterns = np.zeros(len(table), np.int64), []
    for parts, members in by_pattern.items():
        if len({tuple(numbers) for _, numbers in members}) >= _LEAST:
            members.sort()
            patterns.append(_pattern(parts, members, texts_of, add))
            codes[[row for row, _ in members]] = len(patterns)
    bare = {row: tuple([note._replace(text="", details=()) for note in table.notes[row]]) for row in rows if codes[row]}
    return ([add(codes), *patterns] if patterns else []), bare


def _pattern(
    parts: Sequence[str],
    members: Sequence[tuple[int, list[str]]],
    texts_of: Sequence[tuple[str, Callable[[int], str]]],
    add: Callable[[np.ndarray], int],
) -> list[Any]:
    rows, numbers = zip(*members, strict=True)
    known: dict[tuple[str, ...], str | int] = {}
    sent: list[str | int] = []
    pattern: list[str | int] = [parts[0]]
    for texts, after in zip(zip(*numbers, strict=True), parts[1:], strict=True):
        if len({*texts}) == 1:
            pattern[-1] += texts[0] + after
            continue
        if texts not in known:
            name = next((name for name, of in texts_of if all(map(str.__eq__, map(of, rows), texts))), None)
            known[texts] = len(sent) if name is None else name
            if name is None:
                is_plain = all(text.isdecimal() and len(text) < 10 and text == str(int(text)) for text in texts)
                sent.append(add(np.array(texts, int)) if is_plain else " ".join(texts))
        pattern += [known[texts], after]
    return [pattern, *sent]


def _texts(table: TreeTable, column: Column) -> Callable[[int], str]:
    """The text of a row in a column, as the front end writes it; "" where that may be another one."""
    if column.format == "label":
        return lambda row: str(column.levels[row if column.codes is None else column.codes[row]])
    if column.format not in WRITE or column.bad is not None:
        return lambda row: ""
    write, values = WRITE[column.format], table.rolled(column)
    return lambda row: write(values[row]) if np.isfinite(values[row]) else ""


# Numbers as short as they are shown: four digits, of which the bits compress better than those that nobody sees.

_BITS = 15  # of a fraction: 2**-16 of a number is less than half of the fourth digit of 9.999
_WHOLE_DIGITS = 9999.5  # from here on all digits of whole numbers are shown


def as_shown(numbers: np.ndarray) -> np.ndarray:
    """float32 numbers near the given ones, with few bits, whose four digits are the same; others stay as they are."""
    exact = numbers.astype(np.float64)
    with np.errstate(all="ignore"):
        least_digit = _least_digits(exact)
        fractions, exponents = np.frexp(np.rint(exact / least_digit) * least_digit)
        short = np.ldexp(np.rint(np.ldexp(fractions, _BITS)), exponents - _BITS)
        is_same = _is_shown_alike(exact, short) & (short.astype(np.float32) == short)
        # Those of bfloat16, for example, are short as they are.
        is_short = np.ldexp(np.frexp(exact)[0], _BITS) % 1 == 0
    return np.where(is_same & ~is_short & (np.abs(exact) < _WHOLE_DIGITS), short, numbers)


def as_shown_with_rms(mean: np.ndarray, std: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`as_shown` of both, but where the rms that follows from them would be shown otherwise."""
    short_mean, short_std = as_shown(mean), as_shown(std)
    with np.errstate(all="ignore"):
        is_same = _is_shown_alike(np.hypot(mean, std), np.hypot(short_mean, short_std))
    return np.where(is_same, short_mean, mean), np.where(is_same, short_std, std)


def _least_digits(numbers: np.ndarray) -> np.ndarray:
    """What one in the fourth digit of each stands for."""
    return 10.0 ** (np.floor(np.log10(np.abs(numbers))) - 3)


def _is_shown_alike(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Whether both have the same four digits; not where these hang by a hair."""
    least_digit = _least_digits(one)
    digits = one / least_digit
    is_sure = np.abs(digits % 1 - 0.5) > 1e-6
    return is_sure & (np.rint(digits) == np.rint(other / least_digit))


# Pack series for the front end: one or two bytes for each cell, on a scale for each row.

MAX_COLUMNS = 512  # of a series: more than most screens show
FIRST_CELLS, OTHER_CELLS = 500_000, 200_000  # of the first series of a page; of all others
MIN_COLUMNS = 16  # for any number of rows
MAX_MARKS = 1_000  # of a page
_FINE_BELOW = 150_000  # cells: each takes two bytes
BAND_STEP = 12  # 255ths of a row's scale
_FIRST = 2  # the code of the least value
_MOST_CELLS = 1 << 18  # that are packed at once


def pack_series(series: Sequence[Series], add: Callable[[np.ndarray], int]) -> list[dict[str, Any]]:
    """The header's entry for each series; `add` stores an array and returns the index of its buffer."""
    if not series:
        return []
    fitting = []
    for i, each in enumerate(series):
        n_cells = OTHER_CELLS // (len(series) - 1) if i else FIRST_CELLS
        fitting.append(thinned(each, min(MAX_COLUMNS, max(MIN_COLUMNS, n_cells // max(1, len(each.values))))))
    fine = sum(each.values.size for each in fitting) < _FINE_BELOW
    n_marks = MAX_MARKS // len(series)
    return [_packed(each, np.dtype("u2" if fine else "u1"), n_marks, add) for each in fitting]


def _packed(series: Series, dtype: np.dtype, n_marks: int, add: Callable[[np.ndarray], int]) -> dict[str, Any]:
    n_rows, n = series.values.shape
    is_log = series.log and not bool(np.any(series.values < 0))
    at_once = max(1, _MOST_CELLS // max(1, n))
    parts = [_coded_rows(series, slice(i, i + at_once), dtype, is_log) for i in range(0, max(n_rows, 1), at_once)]
    start, step, low, codes, high = map(np.concatenate, zip(*parts, strict=True))
    return {
        "name": series.name,
        "title": series.title,
        "log": is_log,
        "n": n,
        "fine": dtype.itemsize == 2,
        "band_step": _band_step(dtype),
        "first": add(series.first_steps),
        "last": add(series.last_steps),
        "inner": series.inner,
        "start": add(start.astype(np.float32)),
        "step": add(step.astype(np.float32)),
        "codes": add(codes),
        "low": None if series.low is None else add(low),
        "high": None if series.high is None else add(high),
        "bad": add(series.bad | np.isinf(series.values)),
        "marks": [_mark(mark) for mark in series.marks[:n_marks]],
        "n_marks": len(series.marks),
    }


def _coded_rows(series: Series, rows: slice, dtype: np.dtype, is_log: bool) -> tuple[np.ndarray, ...]:
    """Of some rows the start and the step of their scales, and what is sent of the least, last and greatest values."""
    values = series.values[rows].astype(np.float64)
    low, high = (values if each is None else each[rows].astype(np.float64) for each in (series.low, series.high))
    places = [_place(each, is_log) for each in (low, values, high)]
    start = np.nan_to_num(np.fmin.reduce([np.fmin.reduce(place, axis=1) for place in places]))
    most = np.fmax.reduce([np.fmax.reduce(place, axis=1) for place in places])
    step = (np.nan_to_num(most) - start) / (int(np.iinfo(dtype).max) - _FIRST)
    below, codes, above = (_codes(p, x, start, step, dtype) for p, x in zip(places, (low, values, high), strict=True))
    sent = np.diff(codes, axis=1, prepend=dtype.type(0))
    return start, step, _distance(below, codes), sent, _distance(codes, above)


def _mark(mark: FindingMark) -> list:
    return [int(mark.row), int(mark.column), mark.kind, mark.text.removeprefix(f"{mark.kind}: "), mark.severity]


def _place(values: np.ndarray, is_log: bool) -> np.ndarray:
    """The positions of the values on the scale; NaN for those that have none."""
    known = np.isfinite(values) & ((values > 0) | (not is_log))
    return (
        np.log10(values, out=np.full(values.shape, np.nan), where=known) if is_log else np.where(known, values, np.nan)
    )


def _codes(place: np.ndarray, values: np.ndarray, start: np.ndarray, step: np.ndarray, dtype: np.dtype) -> np.ndarray:
    start, step = start[:, None], np.where(step > 0, step, 1.0)[:, None]
    codes = np.rint((np.nan_to_num(place, nan=0.0) - start) / step) + _FIRST
    codes = np.where(np.isnan(place), np.where(values == 0, 1.0, 0.0), codes)
    return np.clip(codes, 0, np.iinfo(dtype).max).astype(dtype)


def _band_step(dtype: np.dtype) -> int:
    return BAND_STEP * (int(np.iinfo(dtype).max) // 255)


def _distance(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """uint8: the distance of two codes in units of the band step, rounded up; 0 where either is missing."""
    wide = high.astype(np.int32) - low
    return np.where((low > 0) & (wide > 0), -(-wide // _band_step(low.dtype)), 0).clip(0, 255).astype(np.uint8)


# The bars of histograms that a page sends.

_HIGHEST = 51  # a fifth of a bar of the front end, which draws it 90 pixels high
_AT_ONCE = 1 << 14  # histograms


def bars(table: TreeTable, column: Column) -> tuple[np.ndarray, dict[str, Any]]:
    """uint8[n_bins, n_rows]: the heights of the bars in the bins that are used; and what the front end needs besides.

    A bar is 0 to `_HIGHEST` relative to the highest; one that is not empty has at least 1.
    """
    levels, codes = np.asarray(column.levels), column.codes
    if column.rollup not in ("none", "given"):
        levels, codes = table.rolled(replace(column, levels=levels.astype(np.float64))), None
    heights = np.empty(levels.shape, np.uint8)
    for first in range(0, len(levels), _AT_ONCE):  # not all at once: they are 64 times as many numbers as other columns
        counts = np.nan_to_num(levels[first : first + _AT_ONCE].astype(np.float64), nan=0.0, posinf=0.0)
        highest = counts.max(axis=1, keepdims=True, initial=0)
        share = np.divide(counts, highest, out=np.zeros_like(counts), where=highest > 0)
        heights[first : first + _AT_ONCE] = np.ceil(_HIGHEST * share)
    used = np.flatnonzero(heights.any(axis=0))
    bins = slice(int(used[0]), int(used[-1]) + 1) if len(used) else slice(0, 0)
    heights = heights[:, bins] if codes is None else heights[codes, bins]
    spec = {"n_bins": heights.shape[1], "first_bin": bins.start + column.first_bin}
    return np.ascontiguousarray(heights.T), spec


FORMAT = 7  # of what a page holds and how: page_loader.js names it, too
_SIGNS_OF_KEYS = re.compile(r"^\.|[][']")  # as in tree.js
_SMALL = 1 << 12  # bytes of arrays that are compared
_A_BLOCK = 1 << 10  # bytes
_ALIKE = 10_000  # characters: documents that begin with the same ones share more of treescope's scripts
_WHOLE = [(np.iinfo(dtype).min, np.iinfo(dtype).max, np.dtype(dtype)) for dtype in ("<u1", "<u2", "<u4", "<i4")]
_SHORT, _LONG = np.dtype("<f4"), np.dtype("<f8")
_MOMENTS = ("mean", "std")
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False)
_TYPES = {"u1": 0, "u2": 1, "u4": 2, "i4": 3, "f4": 4, "f8": 5}
_COLUMNS = ("kind", "shape", "dtype")  # facts whose labels are columns, too
# The facts to send; numbers are columns.
_FIELDS = (
    "what",
    "kind",
    "type",
    "is_leaf",
    "shape",
    "dtype",
    "weak",
    "module",
    "text",
    "static",
    "sharding",
    "inside",
    "sign",
)
# What a page draws before a name, by kind, and how: without a character, it draws a square.
_SIGNS = {
    "dict": "{}", "list": "[]", "tuple": "()", "namedtuple": "(.)", "none": "∅", "node": "◇", "module": " module",
    "static": "§", "closure": "λ warm", "array": "", "numpy": " dashed", "stored": " dashed", "scalar": "# green",
    "string": "“” green", "shape only": "▢ violet", "tracer": "~ violet", "key": "⌘ green", "float0": "0",
    "deleted": "✕ bad", "ref": "&", "hijax": "⬡", "function": "ƒ warm", "tensor": "▣", "variable": "◈ warm",
    "opaque": "? warm", "placeholder": "* violet", "layer": "▪", "error": "! bad", "cycle": "↻ bad", "repeat": "=",
    "same": "≡", "more": "…",
}  # fmt: skip


def pack(view: View) -> bytes:
    """The view as the front end reads it: raw deflate, deterministic.

    All columns of the table are sent, for the search and for the menu of columns; those of the view come first.
    """
    buffers = _Buffers()
    table = view.table
    shown = {column.name for column in view.columns_without_last_value if not _is_blank(column)}
    shown.discard("leaves")  # beside the type
    # No labels that are all empty, or those of types, which every row shows.
    further = [c for c in table.columns.values() if c.format != "label" or (c.name != "type" and any(c.levels))]
    columns = {column.name: column for column in (*view.columns, *further)}
    texts, bare = ([], {}) if view.diff is None else pack_patterns(table, columns.values(), buffers.add)
    outliers = outlier_rows(view), nan_rows(view)
    like = mirrors(table, lambda: values_of(view), lambda: [*outliers[0], *outliers[1]])
    none = blanks(table, lambda: labeled_rows(view))
    notes = {row: bare.get(row) or notes for row, notes in table.notes.items()}
    notes |= {row: (like_note(table, row, other),) for row, other in like.items()}
    is_alike = np.zeros(len(table), bool)  # whether the next sibling is similar
    is_alike[similar_to_next(table)] = True
    rows = (table.depth, table.key_codes, table.fact_codes, *([is_alike] if is_alike.any() else []))
    header = {
        "name": table.name,
        "headline": table.headline,
        "rows": [*map(buffers.add, rows)],
        "keys": [0, *map(_key, table.keys[1:])],
        "facts": _facts(table.facts, buffers),
        "table": _columns(table, columns, buffers, shown),
        **_values(view.values or {}),
    }
    if view.series:
        header["series"] = pack_series(view.series, buffers.add)
        header["histograms"] = pack_histograms(view.histograms, buffers.add)
        header |= {"scalars": pack_series(view.scalars, buffers.add)} if view.scalars else {}
    header |= {"open": view.depth} if view.depth is not None else {}
    header |= {"notes": packed} if (packed := pack_notes(notes.items(), len(table), buffers.add)) else {}
    header |= {"outliers": outliers} if any(outliers) else {}
    header |= {"mirrors": [*like]} if like else {}
    header |= {"blanks": buffers.add(none)} if len(none) else {}
    header |= {"names": table.separator} if table.separator else {}
    header |= {"diff": {**_difference(view.diff, buffers), "texts": texts}} if view.diff is not None else {}
    header["buffers"] = buffers.index
    # What is no character, half a surrogate, is written as its number.
    text = _ENCODER.encode(header).encode(errors="backslashreplace")
    text += b" " * (-(4 + len(text)) % 8)
    # A window just as long as the data gives the same bytes, in a third of the time for a small tree.
    window = min(15, max(9, (len(text) + sum(map(len, buffers.contents)) + 300).bit_length()))
    deflate = zlib.compressobj(6, zlib.DEFLATED, -window)
    packed = [deflate.compress(len(text).to_bytes(4, "little") + text), deflate.flush(zlib.Z_BLOCK)]
    small = b""
    for content in buffers.contents:
        small += content if len(content) < _A_BLOCK else b""
        if len(content) >= _A_BLOCK:
            # Bytes of one kind are shorter in a code of their own, which a block begins.
            packed += [deflate.compress(small), deflate.compress(content), deflate.flush(zlib.Z_BLOCK)]
            small = b""
    return b"".join([*packed, deflate.compress(small), deflate.flush()])


def _difference(diff: Mapping[str, Any], buffers: _Buffers) -> dict[str, Any]:
    """With the bars of both sides in fifths, as those of columns are, from the first bin that any row uses.

    The bars are sent as the buffer of the rows, the first bin, and the buffer of uint8[n_bins, 2, n_rows].
    """
    rows, bars = [*diff["bars"]], diff["bars"].values()
    first = min((start for start, *_ in bars), default=0)
    n_bins = max((start - first + len(left) for start, left, _ in bars), default=0)
    heights = np.zeros((n_bins, 2, len(rows)), np.uint8)
    for i, (start, *sides) in enumerate(bars):
        heights[start - first :][: len(sides[0]), :, i] = -(-np.transpose(sides) // 5)
    return {**diff, "bars": [buffers.add(np.array(rows, int)), first, buffers.add(heights)]}


def _values(values: Mapping[int, str | Mapping[str, Any]]) -> dict[str, Any]:
    documents = {row: each for row, each in values.items() if isinstance(each, str)}
    drawn = {row: each for row, each in values.items() if not isinstance(each, str)}
    return {**({"values": _documents(documents)} if documents else {}), **({"drawn": drawn} if drawn else {})}


def _documents(documents: Mapping[int, str]) -> dict[str, Any]:
    """The documents without the common start (mostly scripts) of similar ones, which is sent once."""
    by_start: dict[str, list[str]] = {}
    for html in documents.values():
        by_start.setdefault(html[:_ALIKE], []).append(html)
    before = {start: commonprefix(group) for start, group in by_start.items()}  # noqa: RUF071 (characters are meant)
    index = {start: i for i, start in enumerate(before)}
    rows = {row: (index[html[:_ALIKE]], html[len(before[html[:_ALIKE]]) :]) for row, html in documents.items()}
    return {"before": list(before.values()), "rows": rows}


class _Buffers:
    """The arrays to send; an array that several columns share is sent once, and so are small ones that are equal."""

    def __init__(self) -> None:
        self.index: list[tuple[int, int]] = []  # of each, the code of its type and its length
        self.contents: list[bytes] = []  # padded
        self.codes: list[tuple[list[int], int]] = []  # of `_coded`, and their buffers
        self._small: dict[tuple[str, bytes], int] = {}
        self._known: dict[int, tuple[int, np.ndarray]] = {}  # arrays are kept alive, so that no id is reused

    def add(self, array: np.ndarray) -> int:
        """The index of the buffer of `array`."""
        known = self._known.get(id(array))
        if known is None:
            narrow = _narrow(array)
            known = self._known[id(array)] = (self._add(narrow.dtype.str[1:], narrow.tobytes(), narrow.size), array)
        return known[0]

    def add_codes(self, codes: Sequence[int], n_levels: int) -> int:
        """The index of the buffer of codes from 0 on."""
        return self._add("u1", bytes(codes), len(codes)) if n_levels <= 256 else self.add(np.array(codes))

    def _add(self, dtype: str, content: bytes, size: int) -> int:
        number = len(self.index)
        if len(content) <= _SMALL:
            number = self._small.setdefault((dtype, content), number)
        if number == len(self.index):
            self.contents.append(content + bytes(-len(content) % 8))
            self.index.append((_TYPES[dtype], size))
        return number


def _narrow(array: np.ndarray) -> np.ndarray:
    """The same numbers in the smallest type of the front end."""
    kind = array.dtype.kind
    if kind == "b" or array.dtype == np.uint8:
        return array.astype(np.uint8, copy=False)
    if kind in "iu":
        # Python compares the few distinct facts of a table faster.
        ends = array.ravel().tolist() if array.size <= 64 else [array.min(), array.max()]
        low, high = min(ends, default=0), max(ends, default=0)
        return array.astype(next((dtype for least, most, dtype in _WHOLE if least <= low and high <= most), _LONG))
    if array.dtype == np.float32:
        return array.astype(_SHORT, copy=False)
    wide = array.astype(_LONG)
    sizes = np.abs(wide[np.isfinite(wide) & (wide != 0)])
    # Whole numbers are counts, which must stay exact: float32 has 24 bits.
    low, high = (1.0, 2.0**24) if (sizes == np.floor(sizes)).all() else (2.0**-126, 3.4e38)
    return wide.astype(_SHORT) if sizes.min(initial=high) >= low and sizes.max(initial=low) <= high else wide


def _key(key: Key) -> str | list:
    """A dict key as its string, another one as its label and what does not follow from that."""
    label, keystr, segment, steps = key
    if label == segment and keystr == f"['{label}']" and steps == (keystr,):
        return label
    said = [label, steps, keystr, segment]
    follows = [None, (label,), label, _SIGNS_OF_KEYS.sub("", label)]
    while len(said) > 1 and said[-1] == follows[len(said) - 1]:
        said.pop()
    return said


def _facts(facts: Sequence[Facts], buffers: _Buffers) -> dict[str, Any]:
    """For each field its distinct values, and the buffer with each fact's index into them, if there are several."""
    fields = zip(*facts, strict=True) if facts else ((),) * len(Facts._fields)
    by_name: dict[str, Sequence[Any]] = dict(zip(Facts._fields, fields, strict=True))
    by_name["what"] = [_what(each) for each in facts]
    by_name["sharding"] = [_sharding(each) for each in by_name["sharding"]]
    by_name["sign"] = [_SIGNS.get(each.kind, "·") for each in facts]
    fields = (*_FIELDS, *[name for name in ("axes", "differs") if any(by_name[name])])
    by_name["differs"] = differing(facts)
    coded, constant = dict[str, list](), None  # the buffer of what is the same for all
    for name in fields:
        if len(levels := dict.fromkeys(by_name[name])) > 1:
            coded[name] = _coded(by_name[name], buffers)
        elif name in _COLUMNS or any(levels):  # a fact that is not sent is empty
            constant = buffers.add_codes([0] * len(facts), 1) if constant is None else constant
            coded[name] = [[*levels], constant] if name in _COLUMNS else [[*levels]]
    return coded


@lru_cache(maxsize=256)
def _what(facts: Facts) -> str | tuple[str, ...]:
    """`type_text`; of arrays what follows the dtype and the shape, and what precedes them."""
    what = type_text(facts)
    if facts.shape is None:
        return what
    before, array, after = what.partition(aval_text(facts.shape, facts.dtype))
    return what if not array else (after, before) if before else (after,)


@lru_cache(1024)
def _sharding(sharding: Sharding | None) -> tuple | None:
    """What a search compares: the text, whether it is replicated; then the names and texts in the details of a row."""
    if sharding is None:
        return None
    n, text = sharding.n_devices, sharding.text
    says = [f"replicated ×{n}" if sharding.replicated else text]
    says += ["not committed"] * (sharding.committed is False) + ["partly in other processes"] * (
        not sharding.addressable
    )
    pairs = (
        ("sharding", ", ".join(says)),
        ("devices", "" if sharding.devices == text else sharding.devices or str(n)),
        ("shard shape", str(sharding.shard_shape) if n > 1 else ""),
        ("memory", sharding.memory),
    )
    return text, sharding.replicated, *[pair for pair in pairs if pair[1]]


def _coded(values: Sequence[Any], buffers: _Buffers, levels: Sequence[Any] = ()) -> list:
    """The levels, and the buffer with the index of each value: an earlier one, if each of its codes has one value here.

    Args:
      levels: Those of values that have an order.
    """
    known = {value: code for code, value in enumerate(dict.fromkeys(levels or values))}
    codes = [known[value] for value in values]
    for others, number in buffers.codes if len(codes) <= _SMALL and not levels else ():
        by_code = dict(zip(others, values, strict=False))
        if len(others) == len(codes) and len(by_code) <= 1.1 * len(known) and [*map(by_code.get, others)] == [*values]:
            return [[*by_code.values()], number]
    number = buffers.add_codes(codes, len(known))
    if not levels:  # codes in the order of their first values
        buffers.codes.append((codes, number))
    return [[*known], number]


def _columns(table: TreeTable, columns: Mapping[str, Column], buffers: _Buffers, shown: set[str]) -> list[list]:
    follows = _is_hypotenuse(columns)
    # The digits that are shown are enough where nothing is added up from the numbers.
    short = [c for c in columns.values() if c.format == "number" and c.rollup in ("given", "max", "min")]
    numbers = {column.name: as_shown(np.asarray(column.levels)) for column in short}
    if follows:
        numbers["mean"], numbers["std"] = as_shown_with_rms(*(np.asarray(columns[name].levels) for name in _MOMENTS))
    sent: dict[str, list] = {}
    # The rms comes after the mean from which it follows.
    for name in sorted(columns, key="rms".__eq__):
        column = replace(columns[name], levels=numbers[name]) if name in numbers else columns[name]
        mean, std = (sent[each] for each in _MOMENTS) if follows and name == "rms" else ([], [])
        sent[name] = _column(table, column, buffers, name in shown, mean, std)
    return [sent[name] for name in columns]


def _is_hypotenuse(columns: Mapping[str, Column]) -> bool:
    """Whether the column of the rms follows from those of the mean and the standard deviation."""
    if not {"rms", *_MOMENTS} <= columns.keys():
        return False
    rms, mean, std = moments = [columns[name] for name in ("rms", *_MOMENTS)]
    if any(c.codes is not rms.codes or c.rollup != "given" or c.format != "number" for c in moments):
        return False
    with np.errstate(all="ignore"):
        computed = np.hypot(np.asarray(mean.levels), np.asarray(std.levels))
    return np.array_equal(computed, np.asarray(rms.levels), equal_nan=True)


def _column(table: TreeTable, column: Column, buffers: _Buffers, is_shown: bool, mean: list, std: list) -> list:
    """What the front end needs of a column, in the order of its constructor; without what says nothing at the end.

    Args:
      mean, std: What it needs of these, for the rms; [] for other columns.
    """
    is_number = column.format not in ("label", "histogram")
    codes, more = column.codes, None
    if column.format == "label":
        levels: list | int | None = _labels(table, column, buffers)
        codes = codes if codes is table.fact_codes else None
    elif column.format == "histogram":
        numbers, more = bars(table, column)
        levels, codes = buffers.add(numbers), None
    elif mean:
        levels, codes, more = mean[2], None, std[2]
    else:
        numbers = np.asarray(column.levels)
        if column.rollup == "norm":
            numbers = np.abs(numbers)
        is_own = codes is not None and codes is not table.fact_codes
        if is_own and len(numbers) > 0.8 * len(codes):  # hardly any row shares its level
            numbers, codes = numbers[codes], None
        levels = buffers.add(numbers)
    said = [
        column.name,
        column.format,
        levels,
        mean[3] if mean else None if codes is None else buffers.add(codes),
        column.help,
        1 if is_shown else None,
        "" if column.title == column.name else column.title,
        column.rollup if is_number else None,
        hidden_value(column) if is_number else None,
        buffers.add(column.bad) if is_number and column.bad is not None else None,
        more,
    ]
    while said[-1] in (None, ""):
        said.pop()
    return said


def _labels(table: TreeTable, column: Column, buffers: _Buffers) -> list | None:
    """The distinct labels and the index of each; None where they are those of the facts with the column's name."""
    labels = [str(level) for level in column.levels]
    if column.codes is table.fact_codes and column.name in _COLUMNS:
        facts = [getattr(facts, column.name) for facts in table.facts]
        if labels == ["" if fact is None else str(fact) for fact in facts]:
            return None
    codes = None if column.codes is table.fact_codes else column.codes
    of_rows = labels if codes is None else [labels[code] for code in codes.tolist()]
    # The front end gives each spec of an overlay a hue by its place among the labels.
    return _coded(of_rows, buffers, labels if "←" in column.help else ())


def _is_blank(column: Column) -> bool:
    """Whether no cell shows anything."""
    if column.format == "label":
        return not any(column.levels)
    levels = np.asarray(column.levels)
    is_zero = hidden_value(column) == 0 and not levels.any()
    return is_zero or (column.bad is None and levels.dtype.kind == "f" and bool(np.isnan(levels).all()))


def hidden_value(column: Column) -> int | None:
    """Zero if it is not shown, or None. Hide zeros in integer sums; float columns show them."""
    is_sum = column.rollup == "sum" and column.format in ("count", "bytes")
    return 0 if is_sum and np.asarray(column.levels).dtype.kind in "iu" else None
