"""The numbers of one step as columns of the tree's table. Norms roll up exactly."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from treeviz.steps.names import kind_of, sibling_name, title_of
from treeviz.steps.recording.history import History
from treeviz.steps.statistics import STATISTICS, Statistic
from treeviz.tree.column import Column
from treeviz.tree.table import TreeTable


def gradient_columns(table: TreeTable, numbers: Mapping[str, Mapping[str, np.ndarray]]) -> list[Column]:
    """Columns "grads_norm", "grads_nonfinite", …, "updates_ratio" and "grads_ratio" (to "params").

    A row containing NaN or Inf has no norm and is `bad`: the measured norm covers finite values only.

    Args:
      table: The table of a tree with the measured leaves, e.g. of the parameters.
      numbers: The numbers of one step, as `numbers_of` returns them.

    Raises:
      ValueError: The number of leaves differs.
    """
    rows = table.measured
    columns: list[Column] = []
    norms: dict[str, Column] = {}
    for source, statistics in numbers.items():
        is_bad = _holds_bad(table, rows, statistics)
        for name, values in statistics.items():
            record = STATISTICS.get(name)
            if values.shape != (record.shape(rows.size) if record else (rows.size,)):
                raise ValueError(f"{source} has {values.shape[-1:]} leaves, but {table.name} has {rows.size}.")
            if record is None or not record.title:
                continue
            column = _column(table, rows, source, record, values, is_bad)
            columns.append(column)
            if name == "norm":
                norms[source] = column
    return columns + _ratios(table, norms)


def _column(
    table: TreeTable, rows: np.ndarray, source: str, record: Statistic, values: np.ndarray, is_bad: np.ndarray
) -> Column:
    title = f"{title_of(source)} {record.title}"
    name, help = f"{source}_{record.name}", f"{source}: {record.help}"
    if record.is_count:
        return Column(name, title, _spread(table, rows, np.maximum(values, 0), 0), None, "count", record.rollup, help)
    levels = _spread(table, rows, values, np.nan)
    if not is_bad.any():
        return Column(name, title, levels, None, "number", record.rollup, help)
    levels = np.where(is_bad, np.nan, table.roll(levels, record.rollup))
    return Column(name, title, levels, None, "number", "given", help, is_bad)


def _ratios(table: TreeTable, norms: Mapping[str, Column]) -> list[Column]:
    """The ratios of the norms of gradients and updates to those of their parameters."""
    columns = []
    for source, column in norms.items():
        of_params = norms.get(sibling_name(source, "params"))
        if kind_of(source) in ("grads", "updates") and of_params is not None:
            norm, params = table.rolled(column), table.rolled(of_params)
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = norm / np.where(params == 0, np.nan, params)
            either = [each.bad for each in (column, of_params) if each.bad is not None]
            is_bad = np.any(either, axis=0) if either else None
            help = f"{source} norm ÷ {sibling_name(source, 'params')} norm, of the whole subtree"
            title = f"{title_of(source)} ÷ params"
            columns.append(Column(f"{source}_ratio", title, ratio, None, "number", "given", help, is_bad))
    return columns


def ratio_columns(table: TreeTable, history: History, source: str = "grads") -> list[Column]:
    """The ratio columns of `gradient_columns` for a source and its updates, at the newest step with parameters."""
    params = sibling_name(source, "params")
    names = dict.fromkeys([source, sibling_name(source, "updates"), params])
    known = {name: history.last(name) for name in names if name in history.sources}
    alike = {
        name: {k: values for k, values in numbers.items() if k in ("norm", "nonfinite")}
        for name, (step, numbers) in known.items()
        if params in known and step == known[params][0] and history.sources[name].sizes == history.sources[params].sizes
    }
    return [column for column in gradient_columns(table, alike) if column.name.endswith("_ratio")]


def _holds_bad(table: TreeTable, rows: np.ndarray, statistics: Mapping[str, np.ndarray]) -> np.ndarray:
    """bool[n_rows]: whether the row or one below contains NaN or Inf."""
    is_bad = np.zeros(len(table), bool)
    for name, values in statistics.items():
        if name in STATISTICS and STATISTICS[name].counts_nonfinite:
            is_bad[rows] |= values > 0
    return table.roll(is_bad, "any")


def _spread(table: TreeTable, rows: np.ndarray, values: np.ndarray, nothing) -> np.ndarray:
    spread = np.full(len(table), nothing, values.dtype)
    spread[rows] = values
    return spread
