"""Pack series for the front end: one or two bytes for each cell, on a scale for each row.

A cell's code is 0 without a value and 1 for zero. A larger code encodes `start + (code - 2) * step`, which is the value
or, on a logarithmic scale, its decimal logarithm; `start` and `step` belong to the row. Codes are sent as differences
along the steps, which deflate better; `low` and `high` as their distance from the value's code, in units of
`BAND_STEP` 255ths of the scale: they are only drawn, so they need less precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from treeviz.tree.series import FindingMark, Series, thinned

MAX_COLUMNS = 512  # of a series: more than most screens show
FIRST_CELLS, OTHER_CELLS = 500_000, 200_000  # of the first series of a page; of all others
MIN_COLUMNS = 16  # for any number of rows
MAX_MARKS = 1_000  # of a page
_FINE_BELOW = 150_000  # cells: each takes two bytes
BAND_STEP = 12  # 255ths of a row's scale
_FIRST = 2  # the code of the least value


def pack_series(series: Sequence[Series], add: Callable[[np.ndarray], int]) -> list[dict[str, Any]]:
    """The header's entry for each series; `add` stores an array and returns the index of its buffer."""
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
        "marks": [_mark(mark) for mark in series.marks[:n_marks]],
        "n_marks": len(series.marks),
    }


def _mark(mark: FindingMark) -> list:
    return [int(mark.row), int(mark.column), mark.kind, mark.text.removeprefix(f"{mark.kind}: "), mark.severity]


def _place(values: np.ndarray, is_log: bool) -> np.ndarray:
    """The positions of the values on the scale; NaN for those that have none."""
    known = np.isfinite(values) & ((values > 0) | (not is_log))
    if is_log:
        return np.log10(values, out=np.full(values.shape, np.nan), where=known)
    return np.where(known, values, np.nan)


def _scale(places: Sequence[np.ndarray], n_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """float64[rows] each: start and step."""
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
    """uint8: the distance of two codes in units of the band step, rounded up; 0 where either is missing."""
    wide = high.astype(np.int32) - low
    return np.where((low > 0) & (wide > 0), -(-wide // _band_step(low.dtype)), 0).clip(0, 255).astype(np.uint8)
