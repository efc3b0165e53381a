"""A series: a value for every row of a table at every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np


class FindingMark(NamedTuple):
    """A finding at one row and step."""

    row: int
    column: int  # of the series
    kind: str  # "nonfinite", "exploding", …
    text: str  # a sentence for the user
    severity: str = "warning"  # or "error", "info": selects the colour in views


@dataclass(frozen=True)
class Series:
    """A value for every row and step, with nodes rolled up.

    Attributes:
      name: The identifier: "grads.norm".
      title: The heading: "grads norm".
      first_steps, last_steps: int64[n_columns]: the first and last step that a column covers; equal for
        a single step.
      values: float32[n_rows, n_columns]: the last value in the column; NaN where there is none.
      low, high: The least and the greatest value in the column, or None if they equal `values`.
      bad: bool[n_rows, n_columns]: whether a value in the column, of the row or below it, was not finite.
      log: Show it on a logarithmic scale.
      marks: The findings, at their rows and steps.
      unit: The unit of the values, such as "L2 norm" or "ratio".
      spans: The least and the greatest last value, [n_rows] each, if a row stands for several.
    """

    name: str
    title: str
    first_steps: np.ndarray
    last_steps: np.ndarray
    values: np.ndarray
    bad: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    log: bool = True
    marks: tuple[FindingMark, ...] = ()
    unit: str = ""
    spans: tuple[np.ndarray, np.ndarray] | None = None


@dataclass(frozen=True)
class Histograms:
    """The distribution of values for every row and step, with nodes rolled up.

    Attributes:
      name, title, first_steps, last_steps: As in `Series`.
      counts: [n_rows, n_columns, n_bins]: the number of values in each bin.
      edges: float[n_bins + 1]: the edges of the bins.
    """

    name: str
    title: str
    first_steps: np.ndarray
    last_steps: np.ndarray
    counts: np.ndarray
    edges: np.ndarray


def with_steps(series: Sequence[Series]) -> list[Series]:
    """The series that have at least one step."""
    return [s for s in series if s.values.shape[1]]


def thinned(series: Series, n_columns: int) -> Series:
    """The same series in at most `n_columns` columns: equal numbers of consecutive columns are merged."""
    n = series.values.shape[1]
    if n <= n_columns:
        return series
    width = -(-n // n_columns)
    starts = np.arange(0, n, width)
    stops = np.append(starts[1:], n)
    low = series.values if series.low is None else series.low
    high = series.values if series.high is None else series.high
    low, high, values = merged(low, high, series.values, starts, axis=1)
    return replace(
        series,
        first_steps=series.first_steps[starts],
        last_steps=series.last_steps[stops - 1],
        values=values,
        low=low,
        high=high,
        bad=np.logical_or.reduceat(series.bad, starts, axis=1),
        marks=tuple(mark._replace(column=mark.column // width) for mark in series.marks),
    )


def merged(
    low: np.ndarray, high: np.ndarray, latest: np.ndarray, starts: np.ndarray, axis: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Merge neighbouring time buckets: the least, the greatest and the last value of each group, ignoring NaN.

    Args:
      low, high, latest: Of equal shapes, with time along `axis`.
      starts: int[k]: the start of each group. No group is empty.
    """
    low, high = np.fmin.reduceat(low, starts, axis=axis), np.fmax.reduceat(high, starts, axis=axis)
    return low, high, _last_known(latest, starts, axis)


def _last_known(values: np.ndarray, starts: np.ndarray, axis: int) -> np.ndarray:
    values = np.moveaxis(values, axis, 0)
    last = values[np.append(starts[1:], len(values)) - 1]
    has_gaps = np.isnan(last).any(axis=0) if values.dtype.kind == "f" else np.False_
    if has_gaps.any():
        with_gaps = values[:, has_gaps]
        places = np.where(np.isnan(with_gaps), -1, np.arange(len(with_gaps))[:, None])
        places = np.maximum.reduceat(places, starts, axis=0)
        known = np.take_along_axis(with_gaps, np.maximum(places, 0), axis=0)
        last[:, has_gaps] = np.where(places < 0, np.nan, known)
    return np.moveaxis(last, 0, axis)
