"""What was measured in one step, as columns of the tree's table: norms roll up exactly."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from treeviz.analysis.history import History
from treeviz.analysis.source_names import beside, kind_of
from treeviz.tree.column import Column, Format, Rollup
from treeviz.tree.rollup import roll, rolled_up
from treeviz.tree.table import TreeTable

_OF_FLOATS: dict[str, tuple[str, Rollup, str]] = {
    "norm": ("norm", "norm", "the L2 norm; nothing where a number is not finite"),
    "max_abs": ("max |x|", "max", "the largest magnitude; nothing where a number is not finite"),
}
_OF_COUNTS = {
    "nonfinite": ("non-finite", "how many numbers are NaN or infinite"),
    "zeros": ("zeros", "how many numbers are zero"),
    "nan": ("NaN", "how many numbers are NaN"),
    "posinf": ("+Inf", "how many numbers are +Inf"),
    "neginf": ("-Inf", "how many numbers are -Inf"),
}


def gradient_columns(table: TreeTable, numbers: Mapping[str, Mapping[str, np.ndarray]]) -> list[Column]:
    """Columns "grads_norm", "grads_nonfinite", …, "updates_ratio" and "grads_ratio" (to "params").

    What was measured is the norm of the finite numbers. A row with others among its numbers has none: it would be taken
    for that of all of them, and for 0 where all are NaN.

    Args:
      table: Of a tree with the leaves that were measured, e.g. of the parameters.
      numbers: What `numbers_of` gives, of one step.

    Raises:
      ValueError: The tree has another number of leaves.
    """
    rows = np.flatnonzero(table.is_leaf)
    columns: list[Column] = []
    norms: dict[str, np.ndarray] = {}
    for source, statistics in numbers.items():
        is_bad = _holds_bad(table, rows, statistics)
        for name, values in statistics.items():
            if values.shape != (rows.size,):
                if name == "histogram" and values.shape[:1] == (rows.size,):
                    continue
                raise ValueError(f"{source} has {values.shape[-1:]} leaves, but {table.name} has {rows.size}.")
            if name in _OF_FLOATS:
                title, rollup, help = _OF_FLOATS[name]
                levels = _spread(table, rows, values, np.nan)
                if is_bad.any():
                    levels, rollup = np.where(is_bad, np.nan, roll(table, levels, rollup)), "given"
                how: tuple[Format, Rollup, str] = ("number", rollup, f"{source}: {help}")
            elif name in _OF_COUNTS:
                title, help = _OF_COUNTS[name]
                levels = _spread(table, rows, np.maximum(values, 0), 0)
                how = ("count", "sum", f"{source}: {help}")
            else:
                continue
            column = Column(f"{source}_{name}", f"{source} {title}", levels, None, *how)
            columns.append(column)
            if name == "norm":
                norms[source] = rolled_up(table, column)
    for source, norm in norms.items():
        params = norms.get(beside(source, "params"))
        if kind_of(source) in ("grads", "updates") and params is not None:
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = norm / np.where(params == 0, np.nan, params)
            help = f"the norm of {source} by that of {beside(source, 'params')}, of the whole subtree"
            columns.append(Column(f"{source}_ratio", f"{source} / params", ratio, None, "number", "given", help))
    return columns


def ratio_columns(table: TreeTable, history: History, source: str = "grads") -> list[Column]:
    """The ratios of `gradient_columns` beside a source, as far as they are known, of the newest step that has them."""
    params = beside(source, "params")
    names = dict.fromkeys([source, beside(source, "updates"), params])
    known = {name: history.last(name) for name in names if name in history.sources}
    alike = {
        name: {k: values for k, values in numbers.items() if k in ("norm", "nonfinite")}
        for name, (step, numbers) in known.items()
        if params in known and step == known[params][0] and history.sources[name].sizes == history.sources[params].sizes
    }
    return [column for column in gradient_columns(table, alike) if column.name.endswith("_ratio")]


def _holds_bad(table: TreeTable, rows: np.ndarray, statistics: Mapping[str, np.ndarray]) -> np.ndarray:
    """bool[n_rows]: whether something in the row or below is not finite."""
    is_bad = np.zeros(len(table), bool)
    for name in ("nonfinite", "nan", "posinf", "neginf"):
        if name in statistics:
            is_bad[rows] |= statistics[name] > 0
    return roll(table, is_bad, "any")


def _spread(table: TreeTable, rows: np.ndarray, values: np.ndarray, nothing) -> np.ndarray:
    spread = np.full(len(table), nothing, values.dtype)
    spread[rows] = values
    return spread
