"""A series: a value for every row of a table at every one of many steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Mark(NamedTuple):
    """Something that was found at one row and step."""

    row: int
    column: int  # of the series
    kind: str  # "nonfinite", "exploding", …
    text: str  # a sentence for people


@dataclass(frozen=True)
class Series:
    """How a value of every row went over time: leaves x steps, rolled up for nodes.

    Attributes:
      name: The identifier: "grads.norm".
      title: What stands above it: "gradient norm".
      first_steps, last_steps: int64[n_columns]: the steps that a column of the series sums up; the same
        number twice where it is a single step.
      values: float32[n_rows, n_columns]: the last value in the column; NaN where there is none.
      low, high: The same for the least and the greatest value in the column, or None if they equal `values`.
      bad: bool[n_rows, n_columns]: whether something in the column, or below the row, was not finite.
      log: Whether it is to be shown on a logarithmic scale.
      marks: What was found, to be shown where it was.
      unit: Of the values: "L2 norm", "ratio".
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
    marks: tuple[Mark, ...] = ()
    unit: str = ""


@dataclass(frozen=True)
class Histograms:
    """How the values inside every row were distributed over time, rolled up for nodes.

    Attributes:
      name, title, first_steps, last_steps: As those of a `Series`.
      counts: [n_rows, n_columns, n_bins]: how many values fell into each bin; zeros where there are none.
      edges: float[n_bins + 1]: where the bins begin and end.
    """

    name: str
    title: str
    first_steps: np.ndarray
    last_steps: np.ndarray
    counts: np.ndarray
    edges: np.ndarray
