"""Pack a table's columns into the bytes that the front end reads.

The bytes, inflated: the length of the header (uint32), the header (JSON), then the buffers, each
padded to a multiple of 8. A buffer is an array of numbers in the smallest type that holds them; the
header says which is which. What follows from the depths, the keys and the rows' own values (parents, paths,
roll-ups) is not sent: the front end works it out in a few milliseconds.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os.path import commonprefix
from typing import Any

import numpy as np

from treeviz.tree.column import Column
from treeviz.tree.keys import Key
from treeviz.tree.rollup import rolled_up
from treeviz.tree.series import Histograms, Series
from treeviz.tree.table import Facts, TreeTable
from treeviz.views.cells import what_it_is
from treeviz.views.histogram_payload import pack_histograms
from treeviz.views.series_payload import pack_series
from treeviz.views.sparks import with_steps

FORMAT = 1
_TYPES = {"u1": 0, "u2": 1, "u4": 2, "i4": 3, "f4": 4, "f8": 5}
# What the front end is told of each of the facts; numbers are columns.
_FIELDS = ("what", "kind", "type", "is_leaf", "shape", "dtype", "weak", "module", "text", "static", "sharding")


def pack(
    table: TreeTable,
    columns: Sequence[Column],
    *,
    depth: int | None = None,
    values: Mapping[int, str] | None = None,
    series: Sequence[Series] = (),
    histograms: Sequence[Histograms] = (),
) -> bytes:
    """The table as the front end reads it: raw deflate, the same bytes for the same table.

    Args:
      columns: Shown at first, in this order. The table's other columns travel too, for the search and
        for the menu of columns.
      depth: How many levels are open at first; None: as many as fit.
      values: Pages of HTML that show the values of some rows, by row. They are run in a sandbox.
      series: How values of the rows went over time. The front end needs its modules for them.
      histograms: How the values inside the rows were distributed; shown where there are series.
    """
    buffers = _Buffers()
    series = with_steps(series)
    shown = {column.name for column in columns}
    everything = {column.name: column for column in (*columns, *table.columns.values())}
    header = {
        "format": FORMAT,
        "name": table.name,
        "headline": table.headline,
        "open": depth,
        "depth": buffers.add(table.depth),
        "key_codes": buffers.add(table.key_codes),
        "keys": [0, *map(_key, table.keys[1:])],
        "fact_codes": buffers.add(table.fact_codes),
        "facts": _facts(table.facts, buffers),
        "notes": {str(row): notes for row, notes in table.notes.items()},
        "columns": [
            {
                "name": column.name,
                "title": column.title,
                "format": column.format,
                "help": column.help,
                "shown": column.name in shown,
                **_values(table, column, buffers),
            }
            for column in everything.values()
        ],
        "values": _documents(values or {}),
        **(_over_time(series, histograms, buffers) if series else {}),
        "buffers": buffers.index,
    }
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-(4 + len(text)) % 8)
    deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
    parts = [deflate.compress(part) for part in (len(text).to_bytes(4, "little"), text, *buffers.chunks())]
    return b"".join((*parts, deflate.flush()))


def _over_time(series: Sequence[Series], histograms: Sequence[Histograms], buffers: _Buffers) -> dict[str, Any]:
    return {"series": pack_series(series, buffers.add), "histograms": pack_histograms(histograms, buffers.add)}


def _documents(documents: Mapping[int, str]) -> dict[str, Any]:
    """What they all begin with, scripts mostly, travels once."""
    before = commonprefix(list(documents.values()))  # noqa: RUF071 (characters are meant)
    return {"before": before, "rows": {str(row): html[len(before) :] for row, html in documents.items()}}


class _Buffers:
    """The arrays that travel: each once, however many columns share it."""

    def __init__(self) -> None:
        self.index: list[tuple[int, int]] = []  # of each: the number of its type, its length
        self._arrays: list[np.ndarray] = []
        self._known: dict[int, tuple[int, np.ndarray]] = {}  # the array is kept, so its id stays its own

    def add(self, array: np.ndarray) -> int:
        """The number of the buffer that holds `array`."""
        known = self._known.get(id(array))
        if known is None:
            narrow = np.ascontiguousarray(_narrow(array).ravel())
            known = self._known[id(array)] = (len(self.index), array)
            self._arrays.append(narrow)
            self.index.append((_TYPES[narrow.dtype.str[1:]], narrow.size))
        return known[0]

    def chunks(self) -> Iterable[bytes]:
        for array in self._arrays:
            yield array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
            yield bytes(-array.nbytes % 8)


def _narrow(array: np.ndarray) -> np.ndarray:
    """The same numbers in the smallest type that the front end has."""
    if array.dtype.kind == "b":
        return array.astype(np.uint8)
    if array.dtype.kind in "iu":
        low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
        for dtype in (np.uint8, np.uint16, np.uint32, np.int32):
            if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
                return array.astype(dtype)
        return array.astype(np.float64)
    wide = array.astype(np.float64)
    with np.errstate(all="ignore"):
        narrow = wide.astype(np.float32)
        sizes = np.abs(wide[np.isfinite(wide) & (wide != 0)])
        whole = bool(np.all(sizes == np.floor(sizes)))
    # Whole numbers are counts: exact, or not at all.
    limits = (1.0, 2.0**24) if whole else (2.0**-126, 3.4e38)
    fits = not sizes.size or (sizes.min() >= limits[0] and sizes.max() <= limits[1])
    return narrow if fits else wide


def _key(key: Key) -> str | list[str] | Key:
    """A key of a dict as its string, an attribute as a list of its name, any other key whole."""
    label, keystr, segment, steps = key
    if steps == (keystr,):
        if label == segment and keystr == f"['{label}']":
            return label
        if label == keystr and label == f".{segment}":
            return [segment]
    return key


def _facts(facts: Sequence[Facts], buffers: _Buffers) -> dict[str, Any]:
    """Each field as its different values, and a code for each of the facts."""
    fields = zip(*facts, strict=True) if facts else ((),) * len(Facts._fields)
    by_name: dict[str, Sequence[Any]] = dict(zip(Facts._fields, fields, strict=True))
    by_name["what"] = [what_it_is(each) for each in facts]
    return {name: _coded(by_name[name], buffers) for name in _FIELDS}


def _coded(values: Sequence[Any], buffers: _Buffers) -> list:
    levels = {value: code for code, value in enumerate(dict.fromkeys(values))}
    codes = np.fromiter(map(levels.__getitem__, values), np.int64, len(values))
    return [list(levels), buffers.add(codes)]


def _values(table: TreeTable, column: Column, buffers: _Buffers) -> dict[str, Any]:
    """Where the front end finds a column's values, and how it rolls them up."""
    codes = None if column.codes is None else buffers.add(column.codes)
    if column.format == "label":
        levels, level_codes = _coded([str(level) for level in column.levels], buffers)
        return {"labels": levels, "label_codes": level_codes, "codes": codes}
    if column.format == "histogram":
        return _histogram(table, column, buffers)
    levels = buffers.add(np.asarray(column.levels))
    return {"levels": levels, "codes": codes, "rollup": column.rollup, "blank": blank(column)}


def blank(column: Column) -> int | None:
    """The number that is left out: a sum of nothing says nothing, but a float column says which zeros were counted."""
    is_sum = column.rollup == "sum" and column.format in ("count", "bytes")
    return 0 if is_sum and np.asarray(column.levels).dtype.kind in "iu" else None


def _histogram(table: TreeTable, column: Column, buffers: _Buffers) -> dict[str, Any]:
    """Heights from 0 to 255 relative to the highest bin; what is not nothing has a height."""
    levels, codes = np.asarray(column.levels, dtype=np.float64), column.codes
    if column.rollup not in ("none", "given"):
        levels, codes = rolled_up(table, replace(column, levels=levels)), None
    levels = np.nan_to_num(levels, nan=0.0, posinf=0.0)
    highest = levels.max(axis=1, keepdims=True, initial=0)
    used = np.flatnonzero(levels.any(axis=0))
    heights = np.ceil(255 * np.divide(levels, highest, out=np.zeros_like(levels), where=highest > 0))
    return {
        "levels": buffers.add(heights.astype(np.uint8)),
        "codes": None if codes is None else buffers.add(codes),
        "n_bins": levels.shape[1],
        "used": [int(used[0]), int(used[-1]) + 1] if len(used) else [0, 0],
    }
