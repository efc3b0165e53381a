"""Sparklines of text: the series of a row in a few characters; and texts about series."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from treeviz.tree.numbers import count_text, number_text
from treeviz.tree.series import FindingMark, Series, thinned
from treeviz.tree.table import TreeTable

UNICODE_BAD, ASCII_BAD = "×", "!"
BAD = "NaN/Inf"  # in place of a number
BARS = "▁▂▃▄▅▆▇█"
_TITLE = 80  # most characters


def sparklines(
    series: Series, rows: np.ndarray, n_characters: int, *, bars: str = BARS, bad: str = UNICODE_BAD
) -> list[str]:
    """At most `n_characters` characters for each row: bars, or `bad` where a value is NaN or Inf.

    The height of a bar is the greatest value in its steps, so that no spike is lost. Each row has its own scale,
    from the least to the greatest value shown. A nearly constant row is drawn in the middle.
    """
    shape = shapes_of(series, rows, n_characters)
    heights = np.where(np.isnan(shape.heights), 0.0, shape.heights * (len(bars) - 1)).round().astype(int)
    characters = np.array(list(bars), dtype=object)[heights]
    characters = np.where(np.isnan(shape.heights), " ", characters)
    characters = np.where(shape.is_zero, bars[0], characters)
    characters = np.where(shape.is_bad, bad, characters)
    return ["".join(line) for line in characters.tolist()]


class Shapes(NamedTuple):
    """The sparklines of some rows, independent of how they are drawn.

    Attributes:
      heights: float64[rows, columns]: from 0, the row's least value, to 1, its greatest; NaN without a value.
      is_zero: bool[rows, columns]: the value is zero on a logarithmic scale.
      is_bad: bool[rows, columns]: the value is NaN or Inf.
    """

    heights: np.ndarray
    is_zero: np.ndarray
    is_bad: np.ndarray


def shapes_of(series: Series, rows: np.ndarray, n_columns: int) -> Shapes:
    """The sparklines of `rows` in at most `n_columns` columns, each as high as the greatest value in its steps."""
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
    # The scale spans at least a tenth of a decade, or a tenth of the value, so that noise does not fill it.
    least = 0.1 if few.log else 0.1 * np.where(np.isfinite(high), np.abs(high), 1.0)
    with np.errstate(all="ignore"):
        heights = (shown - (low + high) / 2) / np.maximum(high - low, least) + 0.5
    return Shapes(np.where(known, np.clip(heights, 0, 1), np.nan), is_zero & ~known, is_bad)


def series_of(series: Series, rows: np.ndarray) -> Series:
    """The series of some rows only, without marks."""
    low, high = (None if part is None else part[rows] for part in (series.low, series.high))
    return replace(series, values=series.values[rows], bad=series.bad[rows], low=low, high=high, marks=(), spans=None)


def last_values(series: Series, rows: np.ndarray) -> np.ndarray:
    """float64[rows]: the values in the last column; NaN where there is none."""
    return series.values[rows, -1].astype(np.float64)


def last_texts(series: Series, rows: np.ndarray) -> list[str]:
    """The same as text. `BAD` where anything was not finite: the value then covers the finite numbers only."""
    pairs = zip(last_values(series, rows).tolist(), series.bad[rows, -1].tolist(), strict=True)
    texts = [BAD if bad else number_text(value) if value == value else "" for value, bad in pairs]
    for i, text in span_texts(series.spans, rows, number_text):
        texts[i] = texts[i] if texts[i] == BAD else text
    return texts


def span_texts(
    spans: tuple[np.ndarray, np.ndarray] | None, rows: np.ndarray, write: Callable[[float], str]
) -> Iterator[tuple[int, str]]:
    """Pairs of an index into `rows` and "0.1…0.3", where a row stands for several values: in two digits, or four."""
    if spans is None:
        return
    low, high = (part[rows] for part in spans)
    for i in np.flatnonzero(low < high).tolist():
        ends = low[i].item(), high[i].item()
        texts = [write(end) if isinstance(end, int) else write(float(f"{end:.2g}")) for end in ends]
        texts = texts if texts[0] != texts[1] else [write(end) for end in ends]
        yield i, "…".join(dict.fromkeys(texts))


def marks_by_row(series: Sequence[Series]) -> dict[int, list[tuple[Series, FindingMark]]]:
    """The marks of each row, in the order of the series and their marks."""
    found: dict[int, list[tuple[Series, FindingMark]]] = {}
    for each in series:
        for mark in each.marks:
            found.setdefault(mark.row, []).append((each, mark))
    return found


def marks_inside(table: TreeTable, series: Sequence[Series], rows: np.ndarray) -> list[str]:
    """The text "⚠3" of each row for the findings inside it, without its own; "" for none."""
    marked = np.sort([mark.row for each in series for mark in each.marks])
    counts = np.searchsorted(marked, table.end[rows]) - np.searchsorted(marked, rows, side="right")
    return [f"⚠{count_text(n)}" if n else "" for n in counts.tolist()]


def mark_text(mark: FindingMark) -> str:
    """The text of a mark without its kind, which is shown separately."""
    return mark.text.removeprefix(f"{mark.kind}: ")


def times_text(series: Series) -> str:
    """A title for the last value and the sparkline of a row: "grads norm at step 99 and since step 0"."""
    title = series.title if len(series.title) <= _TITLE else f"{series.title[: _TITLE - 1]}…"
    return f"{title} at {steps_text(series, -1)} and since {steps_text(series, 0)}"


def steps_text(series: Series, column: int) -> str:
    """ "step 12", "steps 10 to 19"."""
    first, last = int(series.first_steps[column]), int(series.last_steps[column])
    return f"step {first}" if first == last else f"steps {first} to {last}"
