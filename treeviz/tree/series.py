"""A series: a value for every row of a table at every step; how steps, and inner steps of a call, are numbered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

# Of histograms of magnitudes: bin i counts 2**(i-40) <= |x| < 2**(i-39); the ends are open.
N_BINS, FIRST_EXPONENT = 64, -40


class InnerSteps(NamedTuple):
    """How the steps of a run are numbered. A step is a call; the iterations of a loop inside it are its inner steps.

    A *position* is one number for both, for axes and comparisons: `step * n + inner`, and of what a call has once, that
    of its last inner step. Without loops, positions are steps.

    Attributes:
      n: The most inner steps of a call in the run; 1 without loops.
      noun: What an inner step is: "micro-batch", "inner step"; "" for values that each call has once.
    """

    n: int = 1
    noun: str = ""

    def position(self, step: Any, inner: Any = -1) -> Any:
        """The position of a step and an inner step, or of the whole step if `inner` is -1."""
        return step if self.n == 1 else step * self.n + np.where(np.less(inner, 0), self.n - 1, inner)

    def up_to(self, inner: np.ndarray) -> InnerSteps:
        """With at least as many inner steps as these, which count from 0."""
        n = int(inner.max(initial=-1)) + 1
        return self._replace(n=n) if n > self.n else self

    def split(self, position: int) -> tuple[int, int | None]:
        """The step and the inner step of a position; None for a whole step."""
        step, inner = divmod(int(position), self.n)
        return step, inner if self.noun else None

    def text(self, position: int) -> str:
        """ "step 12"; in a run with loops "call 9, micro-batch 6", or "call 9"."""
        step, inner = self.split(position)
        return f"{self.word} {step:,}" + (f", {self.noun} {inner:,}" if self.noun else "")

    def count_text(self, n: int) -> str:
        """ "12 steps", "96 micro-batches"."""
        noun = self.noun or self.word
        return f"{n:,} {noun}{'' if n == 1 else 'es' if noun.endswith('ch') else 's'}"

    def short_text(self, position: int) -> str:
        """ "12"; "9:6" for inner step 6 of call 9."""
        step, inner = self.split(position)
        return f"{step:,}:{inner:,}" if inner else f"{step:,}"

    def span_text(self, first: int, until: int, to: str = "to") -> str:
        """ "step 12", "steps 10 to 19"; in a run with loops "call 3, micro-batch 0 to call 9, micro-batch 6"."""
        if first == until:
            return self.text(first)
        if self.noun:
            return f"{self.text(first)} {to} {self.text(until)}"
        return f"{self.word}s {self.split(first)[0]:,} {to} {self.split(until)[0]:,}"

    @property
    def apart(self) -> int:
        """The distance of the positions of two steps, or inner steps, that follow each other."""
        return 1 if self.noun else self.n

    @property
    def word(self) -> str:
        """The word for a step: "call" in a run with loops."""
        return "step" if self.n == 1 else "call"


NO_INNER = InnerSteps()


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
      first_steps, last_steps: int64[n_columns]: the positions of the first and the last step that a column covers, see
        `InnerSteps`; equal for a single step.
      values: float32[n_rows, n_columns]: the last value in the column; NaN where there is none.
      low, high: The least and the greatest value in the column, or None if they equal `values`.
      bad: bool[n_rows, n_columns]: whether a value in the column, of the row or below it, was not finite.
      log: Show it on a logarithmic scale.
      marks: The findings, at their rows and steps.
      unit: The unit of the values, such as "L2 norm" or "ratio".
      spans: The least and the greatest last value, [n_rows] each, if a row stands for several.
      inner: How the steps are numbered.
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
    inner: InnerSteps = NO_INNER

    def steps_text(self, column: int) -> str:
        """ "step 12", "steps 10 to 19"."""
        return self.inner.span_text(int(self.first_steps[column]), int(self.last_steps[column]))


@dataclass(frozen=True)
class Histograms:
    """The distribution of values for every row and step, with nodes rolled up.

    Attributes:
      name, title, first_steps, last_steps, inner: As in `Series`.
      counts: [n_rows, n_columns, n_bins]: the number of values in each bin.
      edges: float[n_bins + 1]: the edges of the bins.
    """

    name: str
    title: str
    first_steps: np.ndarray
    last_steps: np.ndarray
    counts: np.ndarray
    edges: np.ndarray
    inner: InnerSteps = NO_INNER


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
    if values.dtype.kind == "f" and (has_gaps := np.isnan(last).any(axis=0)).any():
        with_gaps = values[:, has_gaps]
        places = np.where(np.isnan(with_gaps), -1, np.arange(len(with_gaps))[:, None])
        places = np.maximum.reduceat(places, starts, axis=0)
        known = np.take_along_axis(with_gaps, np.maximum(places, 0), axis=0)
        last[:, has_gaps] = np.where(places < 0, np.nan, known)
    return np.moveaxis(last, 0, axis)
