"""The outliers among the leaves, as lines of text below the tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from treeviz.tree.numbers import number_text
from treeviz.tree.safe_repr import visible
from treeviz.tree.series import FindingMark, Series
from treeviz.tree.table import TreeTable
from treeviz.views.text.sparklines import (
    ASCII_BAD,
    UNICODE_BAD,
    last_texts,
    last_values,
    mark_text,
    marks_by_row,
    sparklines,
    steps_text,
)
from treeviz.views.text.terminal import DIM, RED, RESET, YELLOW, Glyphs, cut, cut_inside, display_width, folded, n_alike

N_LINES = 10
_N_CHARACTERS = 16  # of a sparkline
_PATH = 40  # columns that a path gets before anything else
_REASON, _REASON_WANTS = 600, 40  # characters of a reason: the most; those that it gets before sparklines
_INDENT = "    "  # of a reason that has no room beside its leaf
_FAR = 10.0  # a value this many times above or below the median is far from it


class Outlier(NamedTuple):
    """A leaf that differs from the others, and why.

    Attributes:
      style: The ANSI sequence of the reason's colour.
    """

    row: int
    style: str
    reason: str


def outliers(table: TreeTable, series: Sequence[Series], n: int = N_LINES) -> list[Outlier]:
    """The `n` leaves to look at first, by the first series.

    Leaves with NaN or Inf come first, ordered by its first step; then those with findings; then the others, by the
    distance of their last value from the median of all leaves, on the scale of the series (linear or log).
    """
    main = series[0]
    measured = table.measured
    leaves = measured[(main.bad[measured] | ~np.isnan(main.values[measured])).any(axis=1)]
    found = {row: marks[0] for row, marks in marks_by_row(series).items()}
    is_bad = main.bad[leaves] | np.isinf(main.values[leaves])
    bad_since = np.where(is_bad.any(axis=1), is_bad.argmax(axis=1), is_bad.shape[1]).tolist()
    distances, ratios = _distances(last_values(main, leaves), main.log)
    rows = leaves.tolist()
    wrong = [row for row, (_, mark) in found.items() if mark.severity != "info"]
    places = {row: place for place, row in enumerate(wrong)}  # findings are sorted, the most severe first
    order = sorted(
        range(len(rows)),
        key=lambda i: (bad_since[i], places.get(rows[i], len(places)), -distances[i], rows[i]),
    )
    is_still = is_bad[:, -1].tolist()
    return [_reason(main, rows[i], bad_since[i], is_still[i], ratios[i], found.get(rows[i])) for i in order[:n]]


def outlier_lines(
    table: TreeTable, series: Sequence[Series], glyphs: Glyphs, *, width: int | None = None, color: bool = False
) -> list[str]:
    """The section "worst leaves": a title and a line for each outlier; empty without outliers."""
    found = outliers(table, series)
    if not found:
        return []
    main = series[0]
    rows = np.array([each.row for each in found])
    lasts = last_texts(main, rows)
    bad = ASCII_BAD if glyphs.dots.isascii() else UNICODE_BAD
    sparks = sparklines(main, rows, _N_CHARACTERS, bars=glyphs.heights[1:], bad=bad)
    last_width = max(map(len, lasts))
    width = 2**31 if width is None else width
    beside = last_width + _N_CHARACTERS + _REASON_WANTS
    paths = _paths(table, rows.tolist(), max(_PATH, width - beside - len("  " * 4)), glyphs)
    path_width = max(map(display_width, paths))
    if width < path_width + beside:
        sparks = [""] * len(found)  # the tree above shows them
    spans = f"{main.title}, steps {int(main.first_steps[0])} to {int(main.last_steps[-1])}"
    which = "worst leaves" if any(each.reason for each in found) else "leaves farthest from the median"
    lines = [cut(glyphs.fit(f"{which} by {visible(spans)}"), width, glyphs.dots)]
    for each, path, last, spark in zip(found, paths, lasts, sparks, strict=True):
        start = f"  {path}{' ' * (path_width - display_width(path))}  {last.rjust(last_width)}  "
        start += f"{spark}  " if spark else ""
        for before, said in _folded(start, glyphs.fit(visible(each.reason, _REASON)), width):
            said = cut(said, width - display_width(before), glyphs.dots)
            line = before + (f"{each.style}{said}{RESET}" if color and said else said)
            lines.append(line.rstrip() if said else cut(before.rstrip(), width, glyphs.dots))
    return [f"{DIM}{lines[0]}{RESET}", *lines[1:]] if color else lines


def _paths(table: TreeTable, rows: list[int], most: int, glyphs: Glyphs) -> list[str]:
    """The key paths, in `most` columns each: what all begin with goes first, then what two next to each other share."""
    texts = [glyphs.fit(visible(table[row].keystr) or table.name) for row in rows]
    if (missing := max(map(display_width, texts)) - most) > 0:
        shared = texts[0][: min(n_alike(texts[0], text) for text in texts)]
        start = min(max(shared.rfind("["), shared.rfind("."), 0), missing + len(glyphs.dots))
        texts = [glyphs.dots + text[start:] if start else text for text in texts]
    return [cut_inside(text, most, glyphs.dots, texts) for text in texts]


def _folded(start: str, reason: str, width: int) -> list[tuple[str, str]]:
    """The lines of a leaf: what each begins with, and what it says; below the leaf where it has no room beside it."""
    if display_width(start + reason) <= width:
        return [(start, reason)]
    return [(start, ""), *((_INDENT, line) for line in folded(reason, width - len(_INDENT), ""))]


def _distances(values: np.ndarray, is_log: bool) -> tuple[list[float], list[float]]:
    """The distance of each value from the median of the positive ones, and its ratio to that median."""
    known = np.isfinite(values) & (values > 0)
    if not known.any():
        return [0.0] * len(values), [1.0] * len(values)
    ratios = np.divide(values, np.median(values[known]), out=np.ones(len(values)), where=known)
    distances = np.abs(np.log10(ratios)) if is_log else np.abs(ratios - 1)
    is_zero = values == 0
    return np.where(is_zero, np.inf, distances).tolist(), np.where(is_zero, 0.0, ratios).tolist()


def _reason(
    main: Series, row: int, bad_since: int, is_still: bool, ratio: float, found: tuple[Series, FindingMark] | None
) -> Outlier:
    is_bad = bad_since < main.values.shape[1]
    if found is not None:
        series, mark = found
        style = RED if is_bad else DIM if mark.severity == "info" else YELLOW
        return Outlier(
            row, style, f"{mark.kind} at {steps_text(series, mark.column)}: {mark_text(mark).partition('. ')[0]}"
        )
    if is_bad:
        return Outlier(row, RED, f"not finite {'since' if is_still else 'at'} {steps_text(main, bad_since)}")
    if ratio == 0:
        return Outlier(row, YELLOW, "zero")
    if _FAR > ratio > 1 / _FAR:
        return Outlier(row, DIM, "")
    return Outlier(row, DIM, f"{number_text(float(f'{ratio:.2g}'))} × the median")
