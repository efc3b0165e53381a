"""Sparklines of text: how a series of one row went, in a few signs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from treeviz.tree.numbers import count_text, number_text
from treeviz.tree.series import Mark, Series
from treeviz.tree.table import TreeTable
from treeviz.views.series_payload import thinned

UNICODE_BAD, ASCII_BAD = "×", "!"
BARS = "▁▂▃▄▅▆▇█"
_TITLE = 80  # most characters


def with_steps(series: Sequence[Series]) -> list[Series]:
    """Those that have something to show."""
    return [each for each in series if each.values.shape[1]]


def sparklines(
    series: Series, rows: np.ndarray, n_signs: int, *, bars: str = BARS, bad: str = UNICODE_BAD
) -> list[str]:
    """For each of the rows at most `n_signs` signs: a bar on the row's own scale, `bad` for what was not finite.

    A bar is as high as the greatest value in its steps, so that no spike is lost. The highest bar is the row's greatest
    value, the lowest the least of those that are shown; a row that hardly changes lies in the middle.
    """
    shape = shapes_of(series, rows, n_signs)
    heights = np.where(np.isnan(shape.heights), 0.0, shape.heights * (len(bars) - 1)).round().astype(int)
    signs = np.array(list(bars), dtype=object)[heights]
    signs = np.where(np.isnan(shape.heights), " ", signs)
    signs = np.where(shape.is_zero, bars[0], signs)
    signs = np.where(shape.is_bad, bad, signs)
    return ["".join(line) for line in signs.tolist()]


class Shapes(NamedTuple):
    """How the lines of some rows go.

    Attributes:
      heights: float64[rows, columns]: from 0, the row's least value, to 1, its greatest; NaN where there is none.
      is_zero: Where the value is zero, and zero has no place on the scale.
      is_bad: What was not finite.
    """

    heights: np.ndarray
    is_zero: np.ndarray
    is_bad: np.ndarray


def shapes_of(series: Series, rows: np.ndarray, n_columns: int) -> Shapes:
    """The rows in at most `n_columns` columns, of which each is as high as the greatest value in its steps."""
    few = thinned(series_of(series, rows), n_columns)
    values = (few.values if few.high is None else few.high).astype(np.float64)
    is_bad = few.bad | np.isinf(values)
    is_zero = values == 0
    known = np.isfinite(values) & ~is_bad
    if few.log:
        known &= values > 0
        values = np.log10(values, out=np.zeros(values.shape), where=known)
    shown = np.where(known, values, np.nan)
    low = np.fmin.reduce(shown, axis=1, initial=np.inf)[:, None]
    high = np.fmax.reduce(shown, axis=1, initial=-np.inf)[:, None]
    # A tenth of a decade, or a tenth of the value, is hardly a change.
    least = 0.1 if few.log else 0.1 * np.where(np.isfinite(high), np.abs(high), 1.0)
    with np.errstate(all="ignore"):
        heights = (shown - (low + high) / 2) / np.maximum(high - low, least) + 0.5
    return Shapes(np.where(known, np.clip(heights, 0, 1), np.nan), is_zero & ~known, is_bad)


def series_of(series: Series, rows: np.ndarray) -> Series:
    """The series of some rows only; the marks are left out."""
    low, high = (None if part is None else part[rows] for part in (series.low, series.high))
    return replace(series, values=series.values[rows], bad=series.bad[rows], low=low, high=high, marks=())


def last_values(series: Series, rows: np.ndarray) -> np.ndarray:
    """float64: each row's value in the last column, NaN where there is none."""
    return series.values[rows, -1].astype(np.float64)


def last_texts(series: Series, rows: np.ndarray) -> list[str]:
    """The same in words. What was not finite is called so whatever the value, which may be that of the rest."""
    pairs = zip(last_values(series, rows).tolist(), series.bad[rows, -1].tolist(), strict=True)
    return ["NaN/Inf" if bad else number_text(value) if value == value else "" for value, bad in pairs]


def marks_by_row(series: Sequence[Series]) -> dict[int, list[tuple[Series, Mark]]]:
    """What was found at each row, in the order in which it was."""
    found: dict[int, list[tuple[Series, Mark]]] = {}
    for each in series:
        for mark in each.marks:
            found.setdefault(mark.row, []).append((each, mark))
    return found


def marks_inside(table: TreeTable, series: Sequence[Series], rows: np.ndarray) -> list[str]:
    """Of each of the rows, "3 findings inside": those of its subtree, without its own; or "" if there is none."""
    marked = np.sort([mark.row for each in series for mark in each.marks])
    counts = np.searchsorted(marked, table.end[rows]) - np.searchsorted(marked, rows, side="right")
    return [f"{count_text(n)} finding{'s' * (n != 1)} inside" if n else "" for n in counts.tolist()]


def mark_text(mark: Mark) -> str:
    """What a mark says, without its kind, which stands beside it."""
    return mark.text.removeprefix(f"{mark.kind}: ")


def times_text(series: Series) -> str:
    """What the last value and the sparkline of a row are: "gradient norm at step 99 and since step 0"."""
    title = series.title if len(series.title) <= _TITLE else f"{series.title[: _TITLE - 1]}…"
    return f"{title} at {steps_text(series, -1)} and since {steps_text(series, 0)}"


def steps_text(series: Series, column: int) -> str:
    """ "step 12", "steps 10 to 19"."""
    first, last = int(series.first_steps[column]), int(series.last_steps[column])
    return f"step {first}" if first == last else f"steps {first} to {last}"
