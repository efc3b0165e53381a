"""A column: one value for every row of a `TreeTable`, and how to show and roll it up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

Format = Literal["label", "count", "bytes", "number", "histogram"]
Rollup = Literal["sum", "max", "min", "any", "norm", "given", "none"]


@dataclass(frozen=True)
class Column:
    """One value for every row.

    A column is stored plain (`levels[row]`) or dictionary-coded (`levels[codes[row]]`). Columns that
    follow from the same facts share one `codes` array, so that it is packed and sent once.

    Attributes:
      name: The identifier by which a query, a view and a script know it: "bytes", "nan".
      title: What stands above it: "bytes", "NaN".
      levels: The values: numbers (NaN where a row has none), strings for the format "label",
        or float[n, bins] for "histogram".
      codes: int[n_rows] into `levels`, or None when `levels` has one entry per row.
      format: "label" text; "count" whole numbers; "bytes"; "number" floats; "histogram" a small bar chart.
      rollup: How a node's value follows from those of its subtree. "given": `levels` holds it already;
        "none": a node has no value.
      help: One sentence for a tooltip: the definition and the unit.
    """

    name: str
    title: str
    levels: np.ndarray | Sequence[str]
    codes: np.ndarray | None = None
    format: Format = "label"
    rollup: Rollup = "none"
    help: str = ""

    def __getitem__(self, row: int):
        """The row's own value, before any roll-up."""
        return self.levels[row if self.codes is None else self.codes[row]]

    @cached_property
    def values(self) -> np.ndarray:
        """[n_rows] (or [n_rows, bins]): every row's own value, before any roll-up."""
        levels = np.asarray(self.levels, dtype=object if self.format == "label" else None)
        return levels if self.codes is None else levels[self.codes]
