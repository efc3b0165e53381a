"""Pack series for the front end: a byte or two for each cell, on a scale of each row's own.

A cell's code is 0 where there is no value, 1 for zero (or, on a logarithmic scale, nothing that has a logarithm),
and from 2 on it says `start + (code - 2) * step`, which is the value or its decimal logarithm; `start` and `step`
belong to the row. A code travels as its difference to the one before it in time, which deflates better. `low` and
`high` travel as their distance from the value's code, in units of `BAND_STEP` 255ths: they are drawn, and not read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from treeviz.tree.series import Mark, Series

MAX_COLUMNS = 512  # of a series: more than most screens have room for
FIRST_CELLS, OTHER_CELLS = 500_000, 200_000  # of the first series of a page, and of all others together
MIN_COLUMNS = 16  # however many rows there are
MAX_MARKS = 1_000  # of a page
_FINE_BELOW = 150_000  # cells: there is room for two bytes each
BAND_STEP = 12  # 255ths of a row's scale
_N_SAMPLED = 100_000  # cells, to find the range of the colours
_REACH = 1.5  # times the distance of the quartiles: Tukey, Exploratory Data Analysis, 1977
_FIRST = 2  # code of the least value


def pack_series(series: Sequence[Series], add: Callable[[np.ndarray], int]) -> list[dict[str, Any]]:
    """What the header says of each series; `add` takes an array and gives the number of its buffer."""
    if not series:
        return []
    shares = (
        [FIRST_CELLS, *[OTHER_CELLS // (len(series) - 1)] * (len(series) - 1)] if len(series) > 1 else [FIRST_CELLS]
    )
    fitting = [thinned(each, _n_columns(each, share)) for each, share in zip(series, shares, strict=True)]
    fine = sum(each.values.size for each in fitting) < _FINE_BELOW
    n_marks = MAX_MARKS // len(series)
    return [_packed(each, np.dtype("u2" if fine else "u1"), n_marks, add) for each in fitting]


def _n_columns(series: Series, n_cells: int) -> int:
    return min(MAX_COLUMNS, max(MIN_COLUMNS, n_cells // max(1, len(series.values))))


def thinned(series: Series, n_columns: int) -> Series:
    """The same series in at most `n_columns` columns, each of which sums up equally many that follow each other."""
    n = series.values.shape[1]
    if n <= n_columns:
        return series
    width = -(-n // n_columns)
    starts = np.arange(0, n, width)
    stops = np.append(starts[1:], n)
    low = series.values if series.low is None else series.low
    high = series.values if series.high is None else series.high
    values = series.values[:, stops - 1]
    for back in range(2, width + 1):  # the last one that there is
        earlier = series.values[:, np.maximum(stops - back, starts)]
        values = np.where(np.isnan(values), earlier, values)
    return replace(
        series,
        first_steps=series.first_steps[starts],
        last_steps=series.last_steps[stops - 1],
        values=values,
        low=np.fmin.reduceat(low, starts, axis=1),
        high=np.fmax.reduceat(high, starts, axis=1),
        bad=np.logical_or.reduceat(series.bad, starts, axis=1),
        marks=tuple(mark._replace(column=mark.column // width) for mark in series.marks),
    )


def _packed(series: Series, dtype: np.dtype, n_marks: int, add: Callable[[np.ndarray], int]) -> dict[str, Any]:
    shape = series.values.shape
    values = series.values.astype(np.float64)
    is_log = series.log and not bool(np.any(values < 0))
    low = values if series.low is None else series.low.astype(np.float64)
    high = values if series.high is None else series.high.astype(np.float64)
    places = [_place(each, is_log) for each in (low, values, high)]
    start, step = _scale(places, int(np.iinfo(dtype).max) - _FIRST)
    codes = [_codes(p, x, start, step, dtype) for p, x in zip(places, (low, values, high), strict=True)]
    return {
        "name": series.name,
        "title": series.title,
        "log": is_log,
        "n": shape[1],
        "fine": dtype.itemsize == 2,
        "band_step": _band_step(dtype),
        "first": add(series.first_steps),
        "last": add(series.last_steps),
        "start": add(start.astype(np.float32)),
        "step": add(step.astype(np.float32)),
        "codes": add(np.diff(codes[1], axis=1, prepend=dtype.type(0))),
        "low": None if series.low is None else add(_distance(codes[0], codes[1])),
        "high": None if series.high is None else add(_distance(codes[1], codes[2])),
        "bad": add(series.bad | np.isinf(series.values)),
        "range": [_range(values, True), _range(values, False)],
        "marks": [_mark(mark) for mark in series.marks[:n_marks]],
        "n_marks": len(series.marks),
    }


def _mark(mark: Mark) -> list:
    return [int(mark.row), int(mark.column), mark.kind, mark.text.removeprefix(f"{mark.kind}: ")]


def _place(values: np.ndarray, is_log: bool) -> np.ndarray:
    """Where the values lie on the scale; NaN for those that have no place on it."""
    known = np.isfinite(values) & ((values > 0) | (not is_log))
    if is_log:
        return np.log10(values, out=np.full(values.shape, np.nan), where=known)
    return np.where(known, values, np.nan)


def _scale(places: Sequence[np.ndarray], n_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Each row's start and step."""
    least = np.fmin.reduce([np.fmin.reduce(place, axis=1) for place in places])
    most = np.fmax.reduce([np.fmax.reduce(place, axis=1) for place in places])
    start = np.nan_to_num(least)
    return start, (np.nan_to_num(most) - start) / n_steps


def _codes(place: np.ndarray, values: np.ndarray, start: np.ndarray, step: np.ndarray, dtype: np.dtype) -> np.ndarray:
    start, step = start[:, None], np.where(step > 0, step, 1.0)[:, None]
    codes = np.rint((np.nan_to_num(place, nan=0.0) - start) / step) + _FIRST
    codes = np.where(np.isnan(place), np.where(values == 0, 1.0, 0.0), codes)
    return np.clip(codes, 0, np.iinfo(dtype).max).astype(dtype)


def _band_step(dtype: np.dtype) -> int:
    return BAND_STEP * (int(np.iinfo(dtype).max) // 255)


def _distance(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """uint8: how far it is from one to the other, where both are, rounded up."""
    wide = high.astype(np.int32) - low
    return np.where((low > 0) & (wide > 0), -(-wide // _band_step(low.dtype)), 0).clip(0, 255).astype(np.uint8)


def _range(values: np.ndarray, is_log: bool) -> list[float]:
    """From where to where the colours go: to the fences of a box plot, so that one leaf does not hide the others."""
    places = _place(values, is_log)
    places = places[~np.isnan(places)]
    places = places[:: 1 + len(places) // _N_SAMPLED]
    if not len(places):
        return [0.0, 1.0]
    least, low, high, most = (float(x) for x in np.quantile(places, [0.0, 0.25, 0.75, 1.0]))
    reach = _REACH * (high - low)
    low, high = max(least, low - reach), min(most, high + reach)
    return [low, high] if high - low > 1e-9 * max(abs(low), abs(high), 1e-30) else [low - 0.5, low + 0.5]
