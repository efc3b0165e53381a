"""The leaves to look at first, as lines of text: for people without a browser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from treeviz.tree.numbers import number_text
from treeviz.tree.quote import visible
from treeviz.tree.series import Mark, Series
from treeviz.tree.table import TreeTable
from treeviz.views.sparks import (
    ASCII_BAD,
    UNICODE_BAD,
    last_texts,
    last_values,
    mark_text,
    marks_by_row,
    sparklines,
    steps_text,
)
from treeviz.views.terminal import DIM, RED, RESET, YELLOW, Glyphs, cut, display_width

N_LINES = 10
_N_SIGNS = 16
_PATH = 44
_WHY, _WHY_WANTS = 400, 40
_FAR = 10.0  # times the median, or a part of it: worth a word


class Worst(NamedTuple):
    """A leaf, and why it is here."""

    row: int
    style: str
    why: str


def worst_leaves(table: TreeTable, series: Sequence[Series], n: int = N_LINES) -> list[Worst]:
    """The leaves that are not finite, the first ones first; those with findings; those furthest from the others.

    The distance is that of the last value of the first series to the median of all leaves, on its scale.
    """
    main = series[0]
    leaves = np.flatnonzero(table.is_leaf & (main.bad | ~np.isnan(main.values)).any(axis=1))
    found = {row: marks[0] for row, marks in marks_by_row(series).items()}
    is_bad = main.bad[leaves] | np.isinf(main.values[leaves])
    bad_since = np.where(is_bad.any(axis=1), is_bad.argmax(axis=1), is_bad.shape[1]).tolist()
    distances, ratios = _distances(last_values(main, leaves), main.log)
    rows = leaves.tolist()
    places = {row: place for place, row in enumerate(found)}  # the worst was found first
    order = sorted(
        range(len(rows)),
        key=lambda i: (bad_since[i], places.get(rows[i], len(places)), -distances[i], rows[i]),
    )
    return [_reason(main, rows[i], bad_since[i], ratios[i], found.get(rows[i])) for i in order[:n]]


def worst_text(
    table: TreeTable, series: Sequence[Series], glyphs: Glyphs, *, width: int | None = None, color: bool = False
) -> list[str]:
    """The lines of the section "worst leaves"."""
    worst = worst_leaves(table, series)
    if not worst:
        return []
    main = series[0]
    rows = np.array([each.row for each in worst])
    paths = [_path(table, row, glyphs) for row in rows.tolist()]
    lasts = last_texts(main, rows)
    bad = ASCII_BAD if glyphs.dots.isascii() else UNICODE_BAD
    sparks = sparklines(main, rows, _N_SIGNS, bars=glyphs.heights[1:], bad=bad)
    path_width, last_width = max(map(display_width, paths)), max(map(len, lasts))
    if width is not None and width < path_width + last_width + _N_SIGNS + _WHY_WANTS:
        sparks = [""] * len(worst)  # the tree above has them
    spans = f"{main.title}, steps {int(main.first_steps[0])} to {int(main.last_steps[-1])}"
    lines = [cut(glyphs.fit(f"worst leaves by {visible(spans)}"), width or 2**31, glyphs.dots)]
    for each, path, last, spark in zip(worst, paths, lasts, sparks, strict=True):
        start = f"  {path}{' ' * (path_width - display_width(path))}  {last.rjust(last_width)}  "
        start += f"{spark}  " if spark else ""
        room = 2**31 if width is None else width - display_width(start)
        why = cut(glyphs.fit(visible(each.why, _WHY)), max(0, room), glyphs.dots)
        line = cut(start + (f"{each.style}{why}{RESET}" if color and why else why), 2**31)
        lines.append(line.rstrip() if room > 0 else cut(start.rstrip(), width or 2**31, glyphs.dots))
    return [f"{DIM}{lines[0]}{RESET}", *lines[1:]] if color else lines


def _path(table: TreeTable, row: int, glyphs: Glyphs) -> str:
    text = glyphs.fit(visible(table[row].keystr)) or table.name
    return text if len(text) <= _PATH else glyphs.dots + text[len(text) - _PATH + 1 :]


def _distances(values: np.ndarray, is_log: bool) -> tuple[list[float], list[float]]:
    """How far each value is from the median, and how many times as large it is."""
    known = np.isfinite(values) & (values > 0)
    if not known.any():
        return [0.0] * len(values), [1.0] * len(values)
    ratios = np.divide(values, np.median(values[known]), out=np.ones(len(values)), where=known)
    distances = np.abs(np.log10(ratios)) if is_log else np.abs(ratios - 1)
    is_zero = values == 0
    return np.where(is_zero, np.inf, distances).tolist(), np.where(is_zero, 0.0, ratios).tolist()


def _reason(main: Series, row: int, bad_since: int, ratio: float, found: tuple[Series, Mark] | None) -> Worst:
    is_bad = bad_since < main.values.shape[1]
    if found is not None:
        series, mark = found
        return Worst(
            row, RED if is_bad else YELLOW, f"{mark.kind} at {steps_text(series, mark.column)}: {mark_text(mark)}"
        )
    if is_bad:
        return Worst(row, RED, f"not finite since {steps_text(main, bad_since)}")
    if ratio == 0:
        return Worst(row, YELLOW, "zero")
    if _FAR > ratio > 1 / _FAR:
        return Worst(row, DIM, "")
    return Worst(row, DIM, f"{number_text(float(f'{ratio:.2g}'))} x the median")
