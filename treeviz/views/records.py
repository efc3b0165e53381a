"""A view as plain Python values, for data frames."""

from __future__ import annotations

from typing import Any

import numpy as np

from treeviz.tree.frame import Frame, Labels
from treeviz.views.view import View

SIZES = ("elements", "bytes", "leaves")


def to_records(view: View) -> list[dict[str, Any]]:
    """A dict for each row, depth first; see `TreeView.to_records`."""
    table = view.table
    known = {column.name: column for column in (*view.columns, *table.columns.values())}
    columns = {name: known[name] for name in (*SIZES, *(column.name for column in view.columns)) if name in known}
    values = {name: _values(table, column) for name, column in columns.items()}
    records = []
    for row in table:
        facts = row.facts
        record: dict[str, Any] = {"path": row.keystr, "depth": row.depth, "leaf": row.is_leaf}
        record |= {"type": facts.type, "shape": facts.shape, "dtype": facts.dtype}
        records.append(record | {name: of[row.number] for name, of in values.items()})
    return records


def to_frame(view: View, series: str | None = None) -> Frame:
    """The columns of the records; or those of a series, see `TreeView.to_pandas`."""
    if series is None:
        rows = to_records(view)
        return {name: [row[name] for row in rows] for name in rows[0]}
    known = {each.name: each for each in view.series}
    if series not in known:
        raise LookupError(f"to_pandas: no series {series!r}; there are {', '.join(map(repr, known)) or 'none'}.")
    of = known[series]
    n_rows, n = of.values.shape
    low, high = (of.values if each is None else each for each in (of.low, of.high))
    return {
        "first_step": np.repeat(of.first_steps, n_rows),
        "step": np.repeat(of.last_steps, n_rows),
        "path": Labels(np.tile(np.arange(n_rows), n), [row.keystr for row in view.table]),
        **{name: part.T.ravel() for name, part in {"value": of.values, "low": low, "high": high}.items()},
        "nonfinite": of.bad.T.ravel(),
    }


def _values(table: Any, column: Any) -> list[Any]:
    if column.format == "label":
        levels = [str(level) for level in column.levels]
        return levels if column.codes is None else [levels[code] for code in column.codes.tolist()]
    values = table.rolled(column)
    if column.format in ("count", "bytes") and np.isfinite(values).all():
        values = values.astype(np.int64)
    return values.tolist()
