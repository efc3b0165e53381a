"""Pack a view into the bytes that the front end reads.

The bytes, inflated: the length of the header (uint32), the header (JSON), then the buffers, each padded to a multiple
of 8 bytes. A buffer is an array of numbers in the smallest type that fits; the header refers to it by its index.
Parents, paths and roll-ups are not sent: the front end computes them in a few milliseconds.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os.path import commonprefix
from typing import Any

import numpy as np

from treeviz.tree.column import Column
from treeviz.tree.facts import Facts, Sharding
from treeviz.tree.keys import Key
from treeviz.tree.repeats import like_the_next
from treeviz.tree.safe_repr import aval_text
from treeviz.tree.table import TreeTable
from treeviz.views.html.bars import bars
from treeviz.views.html.histogram_payload import pack_histograms
from treeviz.views.html.note_payload import pack_notes, pack_patterns
from treeviz.views.html.series_payload import pack_series
from treeviz.views.html.shown import as_shown, as_shown_with_rms
from treeviz.views.text.cells import type_text
from treeviz.views.view import View

FORMAT = 5  # of what a page holds and how: page_loader.js names it, too
_SIGNS_OF_KEYS = re.compile(r"^\.|[][']")  # as in tree.js
_SMALL = 1 << 12  # bytes of arrays that are compared
_A_BLOCK = 1 << 10  # bytes
_ALIKE = 10_000  # characters: documents that begin with the same ones share more of treescope's scripts
_WHOLE = [(np.iinfo(dtype).min, np.iinfo(dtype).max, dtype) for dtype in (np.uint8, np.uint16, np.uint32, np.int32)]
_MOMENTS = ("mean", "std")
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
)


def pack(view: View) -> bytes:
    """The view as the front end reads it: raw deflate, deterministic.

    All columns of the table are sent, for the search and for the menu of columns; those of the view come first.
    """
    buffers = _Buffers()
    table = view.table
    shown = {column.name for column in view.columns_beside if not _is_blank(column)} - {"leaves"}  # beside the type
    further = [column for column in table.columns.values() if not _says_nothing(column)]
    columns = {column.name: column for column in (*view.columns, *further)}
    texts, bare = ([], {}) if view.diff is None else pack_patterns(table, columns.values(), buffers.add)
    notes = ((row, bare.get(row) or notes) for row, notes in table.notes.items())
    header = {
        "name": table.name,
        "headline": table.headline,
        "open": view.depth,
        "rows": [*map(buffers.add, (table.depth, table.key_codes, table.fact_codes, *_like_the_next(table)))],
        "keys": [0, *map(_key, table.keys[1:])],
        "facts": _facts(table.facts, buffers),
        "notes": pack_notes(notes, len(table), buffers.add),
        "table": _columns(table, columns, buffers, shown),
        **_values(view.values or {}),
        **(_over_time(view, buffers) if view.series else {}),
        **({"names": table.separator} if table.separator else {}),
        **({"diff": {**_difference(view.diff), "texts": texts}} if view.diff is not None else {}),
        "buffers": buffers.index,
    }
    # What is no character, half a surrogate, is written as its number.
    text = json.dumps(header, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode(
        errors="backslashreplace"
    )
    text += b" " * (-(4 + len(text)) % 8)
    deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
    packed = [deflate.compress(len(text).to_bytes(4, "little") + text), deflate.flush(zlib.Z_BLOCK)]
    for chunk in buffers.chunks():
        packed.append(deflate.compress(chunk))
        # Bytes of one kind are shorter in a code of their own, which a block begins.
        if len(chunk) >= _A_BLOCK:
            packed.append(deflate.flush(zlib.Z_BLOCK))
    return b"".join(packed) + deflate.flush()


def _over_time(view: View, buffers: _Buffers) -> dict[str, Any]:
    return {
        "series": pack_series(view.series, buffers.add),
        "histograms": pack_histograms(view.histograms, buffers.add),
        **({"scalars": pack_series(view.scalars, buffers.add)} if view.scalars else {}),
    }


def _difference(diff: Mapping[str, Any]) -> dict[str, Any]:
    """With the heights of bars in fifths, as those of columns are."""
    bars = {
        row: (first, *([-(-height // 5) for height in side] for side in sides))
        for row, (first, *sides) in diff["bars"].items()
    }
    return {**diff, "bars": bars}


def _values(values: Mapping[int, str | Mapping[str, Any]]) -> dict[str, Any]:
    documents = {row: each for row, each in values.items() if isinstance(each, str)}
    drawn = {row: each for row, each in values.items() if not isinstance(each, str)}
    return {**({"values": _documents(documents)} if documents else {}), **({"drawn": drawn} if drawn else {})}


def _documents(documents: Mapping[int, str]) -> dict[str, Any]:
    """The documents without what those that begin alike have in common (mostly scripts), which is sent once."""
    alike: dict[str, list[str]] = {}
    for html in documents.values():
        alike.setdefault(html[:_ALIKE], []).append(html)
    before = {start: commonprefix(group) for start, group in alike.items()}  # noqa: RUF071 (characters are meant)
    index = {start: i for i, start in enumerate(before)}
    rows = {row: (index[html[:_ALIKE]], html[len(before[html[:_ALIKE]]) :]) for row, html in documents.items()}
    return {"before": list(before.values()), "rows": rows}


def _says_nothing(column: Column) -> bool:
    """Whether all labels are empty, or those of types, which every row shows."""
    return column.format == "label" and (column.name == "type" or not any(column.levels))


class _Buffers:
    """The arrays to send; an array that several columns share is sent once, and so are small ones that are equal."""

    def __init__(self) -> None:
        self.index: list[tuple[int, int]] = []  # of each, the code of its type and its length
        self._arrays: list[np.ndarray] = []
        self._small: dict[tuple[str, bytes], int] = {}
        self._known: dict[int, tuple[int, np.ndarray]] = {}  # arrays are kept alive, so that no id is reused

    def add(self, array: np.ndarray) -> int:
        """The index of the buffer of `array`."""
        known = self._known.get(id(array))
        if known is None:
            narrow = _narrow(array).ravel()
            is_small = narrow.nbytes <= _SMALL
            content = (narrow.dtype.str, narrow.tobytes()) if is_small else (str(len(self.index)), b"")
            number = self._small.setdefault(content, len(self.index))
            known = self._known[id(array)] = (number, array)
            if number == len(self.index):
                self._arrays.append(narrow)
                self.index.append((_TYPES[narrow.dtype.str[1:]], narrow.size))
        return known[0]

    def chunks(self) -> Iterable[bytes]:
        for array in self._arrays:
            yield array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes() + bytes(-array.nbytes % 8)


def _narrow(array: np.ndarray) -> np.ndarray:
    """The same numbers in the smallest type of the front end."""
    if array.dtype.kind == "b" or array.dtype == np.uint8:
        return array.astype(np.uint8, copy=False)
    if array.dtype.kind in "iu":
        low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
        dtypes = (dtype for least, most, dtype in _WHOLE if least <= low and high <= most)
        return array.astype(next(dtypes, np.float64))
    wide = array.astype(np.float64)
    with np.errstate(all="ignore"):
        narrow = wide.astype(np.float32)
        sizes = np.abs(wide[np.isfinite(wide) & (wide != 0)])
        whole = bool(np.all(sizes == np.floor(sizes)))
    # Whole numbers are counts, which must stay exact: float32 has 24 bits.
    limits = (1.0, 2.0**24) if whole else (2.0**-126, 3.4e38)
    fits = not sizes.size or (sizes.min() >= limits[0] and sizes.max() <= limits[1])
    return narrow if fits else wide


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
    coded = {name: _coded(by_name[name], buffers) for name in _FIELDS}
    return {name: each if len(each[0]) > 1 or name in _COLUMNS else each[:1] for name, each in coded.items()}


def _what(facts: Facts) -> str | tuple[str, ...]:
    """`type_text`; of arrays what follows the dtype and the shape, and what precedes them."""
    what = type_text(facts)
    before, array, after = what.partition(aval_text(facts.shape or (), facts.dtype))
    return what if not array or facts.shape is None else (after, before) if before else (after,)


def _sharding(sharding: Sharding | None) -> tuple | None:
    """Not the ids of the devices, which may be thousands, and no shard's shape where it is the array's."""
    if sharding is None:
        return None
    sent = sharding._replace(shard_shape=sharding.shard_shape if sharding.n_devices > 1 else ())
    return sent[: Sharding._fields.index("platform")]


def _like_the_next(table: TreeTable) -> list[np.ndarray]:
    """Of each row whether its next sibling is alike; nothing where none is."""
    rows = like_the_next(table)
    return [np.isin(np.arange(len(table)), rows)] if len(rows) else []


def _coded(values: Sequence[Any], buffers: _Buffers) -> list:
    levels = {value: code for code, value in enumerate(dict.fromkeys(values))}
    codes = map(levels.__getitem__, values)
    return [list(levels), buffers.add(np.fromiter(codes, np.uint8 if len(levels) <= 256 else np.int64, len(values)))]


def _columns(table: TreeTable, columns: Mapping[str, Column], buffers: _Buffers, shown: set[str]) -> list[list]:
    follows = _is_hypotenuse(columns)
    numbers = {name: as_shown(np.asarray(each.levels)) for name, each in columns.items() if _is_short(each)}
    if follows:
        numbers["mean"], numbers["std"] = as_shown_with_rms(*(np.asarray(columns[name].levels) for name in _MOMENTS))
    sent: dict[str, list] = {}
    # The rms comes after the mean from which it follows.
    for name in sorted(columns, key="rms".__eq__):
        column = replace(columns[name], levels=numbers[name]) if name in numbers else columns[name]
        mean, std = (sent[each] for each in _MOMENTS) if follows and name == "rms" else ([], [])
        sent[name] = _column(table, column, buffers, name in shown, mean, std)
    return [sent[name] for name in columns]


def _is_short(column: Column) -> bool:
    """Whether the digits that are shown are enough: nothing is added up from the numbers."""
    return column.format == "number" and column.rollup in ("given", "max", "min")


def _is_hypotenuse(columns: Mapping[str, Column]) -> bool:
    """Whether the column of the rms follows from those of the mean and the standard deviation."""
    if not {"rms", *_MOMENTS} <= columns.keys():
        return False
    rms, mean, std = (columns[each] for each in ("rms", *_MOMENTS))
    if any(
        each.codes is not rms.codes or each.rollup != "given" or each.format != "number" for each in (rms, mean, std)
    ):
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
        facts = (getattr(facts, column.name) for facts in table.facts)
        if labels == ["" if fact is None else str(fact) for fact in facts]:
            return None
    return _coded(labels, buffers)


def _is_blank(column: Column) -> bool:
    """Whether no cell shows anything."""
    return hidden_value(column) == 0 and not np.asarray(column.levels).any()


def hidden_value(column: Column) -> int | None:
    """Zero if it is not shown, or None. Hide zeros in integer sums; float columns show them."""
    is_sum = column.rollup == "sum" and column.format in ("count", "bytes")
    return 0 if is_sum and np.asarray(column.levels).dtype.kind in "iu" else None
