"""Sparklines of text: how a series of one row went, in a few signs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treeviz.tree.numbers import number_text
from treeviz.tree.series import Mark, Series
from treeviz.views.series_payload import thinned

UNICODE_BAD, ASCII_BAD = "×", "!"
BARS = "▁▂▃▄▅▆▇█"


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
    few = thinned(series_of(series, rows), n_signs)
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
        heights = ((shown - (low + high) / 2) / np.maximum(high - low, least) + 0.5) * (len(bars) - 1)
    heights = np.where(known, heights, 0.0).round().astype(int)
    signs = np.array(list(bars), dtype=object)[np.clip(heights, 0, len(bars) - 1)]
    signs = np.where(known, signs, " ")
    signs = np.where(is_zero & ~known, bars[0], signs)
    signs = np.where(is_bad, bad, signs)
    return ["".join(line) for line in signs.tolist()]


def series_of(series: Series, rows: np.ndarray) -> Series:
    """The series of some rows only; the marks are left out."""
    return Series(
        series.name,
        series.title,
        series.first_steps,
        series.last_steps,
        series.values[rows],
        series.bad[rows],
        None if series.low is None else series.low[rows],
        None if series.high is None else series.high[rows],
        series.log,
    )


def last_values(series: Series, rows: np.ndarray) -> np.ndarray:
    """float64: each row's value in the last column, NaN where there is none."""
    return series.values[rows, -1].astype(np.float64)


def last_texts(series: Series, rows: np.ndarray) -> list[str]:
    """The same in words. What was not finite is called so whatever the value, which may be that of the rest."""
    pairs = zip(last_values(series, rows).tolist(), series.bad[rows, -1].tolist(), strict=True)
    return ["NaN/Inf" if bad else number_text(value) if value == value else "" for value, bad in pairs]


def mark_text(mark: Mark) -> str:
    """What a mark says, without its kind, which stands beside it."""
    return mark.text.removeprefix(f"{mark.kind}: ")


def steps_text(series: Series, column: int) -> str:
    """ "step 12", "steps 10 to 19"."""
    first, last = int(series.first_steps[column]), int(series.last_steps[column])
    return f"step {first}" if first == last else f"steps {first} to {last}"
