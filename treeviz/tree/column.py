"""A column: one value for every row of a `TreeTable`, and how to show and roll it up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from treeviz.tree.forks import computed_once

Format = Literal["label", "count", "bytes", "number", "histogram"]
INHERITED = " ← "  # in a label: the value is that of a row above; views draw a bracket beside all that share it
Rollup = Literal["sum", "max", "min", "any", "norm", "given", "none"]


@dataclass(frozen=True)
class Column:
    """One value for every row.

    A column is stored plain (`levels[row]`) or dictionary-coded (`levels[codes[row]]`). Columns derived
    from the same facts share one `codes` array, so that it is packed and sent once.

        depths = np.array([row.depth for row in tv.walk(params)])
        depth = tv.Column("depth", "depth", depths, format="count", rollup="max", help="Levels of the subtree")
        tv.render(params, columns=["bytes", depth])

    Attributes:
      name: The identifier in queries, in `columns=` and in `TreeTable.columns`: "bytes", "nan".
      title: The heading: "bytes", "NaN".
      levels: The values: numbers (NaN where a row has none), strings for the format "label",
        or float[n, bins] for "histogram".
      codes: int[n_rows] into `levels`, or None when `levels` has one entry per row.
      format: "label" text; "count" whole numbers; "bytes"; "number" floats; "histogram" a small bar chart.
      rollup: How a node's value is computed from the values in its subtree. "given": `levels` has it already;
        "none": a node keeps its own value.
      help: One sentence for a tooltip: the definition and the unit.
      bad: bool[n_rows]: the rows whose value is NaN or infinite, where `levels` is NaN; otherwise NaN is no value.
      first_bin: What the first bin of a histogram is called on its axis; the others count on from it.
      spans: The least and the greatest value, [n_rows] each, where a row of a text or a picture stands for several.
    """

    name: str
    title: str
    levels: np.ndarray | Sequence[str]
    codes: np.ndarray | None = None
    format: Format = "label"
    rollup: Rollup = "none"
    help: str = ""
    bad: np.ndarray | None = None
    first_bin: int = 0
    spans: tuple[np.ndarray, np.ndarray] | None = None

    def __getitem__(self, row: int):
        """The row's own value, not rolled up."""
        return self.levels[row if self.codes is None else self.codes[row]]

    @computed_once
    def values(self) -> np.ndarray:
        """[n_rows] (or [n_rows, bins]): every row's own value, not rolled up."""
        levels = np.asarray(self.levels, dtype=object if self.format == "label" else None)
        return levels if self.codes is None else levels[self.codes]
