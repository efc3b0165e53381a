"""View: a table and what to show of it. Every output is a function of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from treeviz.tree.column import Column
from treeviz.tree.series import Histograms, Series, with_steps
from treeviz.tree.table import TreeTable


@dataclass(frozen=True, eq=False, repr=False)
class View:
    """A table and what to show of it.

    Attributes:
      table: One row for each node.
      columns: The columns to show at first, in this order. The page offers the table's other columns, too.
      depth: How many levels are open at first; None: as many as fit.
      whole: Put all rows and columns into a page, whatever its size.
      values: What shows the values of some rows, by row number: HTML documents, which the page runs in a sandbox, or
        drawings of `treeviz.analysis.details.drawing`, which it draws itself.
      series: How values of the rows changed over the steps. A series without a step is left out.
      histograms: How the values inside the rows were distributed over the steps; shown only with series.
      scalars: Series of one row, which stand above the rows of a page with series.
      diff: What a page of differences between trees shows besides the rows; see `treeviz.differ`.
    """

    table: TreeTable
    columns: Sequence[Column] = ()
    _: KW_ONLY
    depth: int | None = None
    whole: bool = False
    values: Mapping[int, str | Mapping[str, Any]] | None = None
    series: Sequence[Series] = ()
    histograms: Sequence[Histograms] = ()
    scalars: Sequence[Series] = ()
    diff: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "series", tuple(with_steps(self.series)))
        object.__setattr__(self, "histograms", tuple(self.histograms))
        object.__setattr__(self, "scalars", tuple(with_steps(self.scalars)))

    @property
    def brief(self) -> View:
        """What texts, pictures and the static rows of a page show of it."""
        return self

    @property
    def part(self) -> str:
        """The part of the front end that its page needs besides the tree: "series", "diff", "values" or "drawn".

        "" for none. Findings are shown by what shows differences, which "drawn" includes.
        """
        if any(not isinstance(each, str) for each in (self.values or {}).values()):
            return "drawn"
        has_findings = any(note.severity for notes in self.table.notes.values() for note in notes)
        if self.series or self.diff is not None or has_findings:
            return "series" if self.series else "diff"
        columns = (*self.columns, *self.table.columns.values())
        has_values = any(
            column.format in ("number", "histogram") or column.name.endswith(("norm", "rms", ".dtype"))
            for column in columns
        )
        return "values" if has_values or self.values else ""

    @property
    def columns_beside(self) -> tuple[Column, ...]:
        """The columns, but that of the last values of the first series, which stand beside its sparklines."""
        source, _, statistic = self.series[0].name.rpartition(".") if self.series else ("", "", "")
        return tuple(column for column in self.columns if not source or column.name != f"{source}_{statistic}")

    @property
    def title(self) -> str:
        """The tree's name and headline in one line."""
        return " · ".join((self.table.name, *self.table.headline))
