"""Arrow: tables of the rows of a view, and of a run, which Parquet keeps."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from treeviz.integrations import not_installed
from treeviz.steps.recording.exchange import SCALARS, Part, exchanged, history_from
from treeviz.steps.recording.history import History
from treeviz.tree.frame import Frame, Labels

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    raise not_installed(error, "arrow") from error

_HEADER = b"treeviz"
_TEXT = pa.dictionary(pa.int32(), pa.string())
_SCHEMA = pa.schema(
    [
        *((name, _TEXT) for name in ("source", "statistic")),
        *((name, pa.int64()) for name in ("first_step", "step", "n")),
        ("path", _TEXT),
        ("bin", pa.int64()),
        *((name, pa.float64()) for name in ("value", "low", "high")),
        ("total", pa.int64()),
        ("nonfinite", pa.bool_()),
    ]
)


def of_frame(frame: Frame) -> pa.Table:
    """The columns as a table. Texts that repeat are dictionaries, arrays are lists, what is lacking is null."""
    return pa.table({name: _array(column) for name, column in frame.items()})


def _array(column: np.ndarray | list[Any] | Labels) -> pa.Array:
    if isinstance(column, Labels):
        codes = pa.array(column.codes.astype(np.int32))
        return pa.DictionaryArray.from_arrays(codes, pa.array(list(column.levels), pa.string()))
    if isinstance(column, list):
        return pa.array(column)
    mask = np.ma.getmaskarray(column) if isinstance(column, np.ma.MaskedArray) else None
    values = np.ma.getdata(column)
    if values.ndim == 1:
        return pa.array(values, mask=mask)
    of_row = None if mask is None else pa.array(mask.reshape(len(mask), -1).any(axis=1))
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1], mask=of_row)


def to_parquet(history: History) -> bytes:
    """A run as Parquet: a row for each entry of a track, each leaf and, of histograms, each power of two.

    The columns are those of `treeviz.steps.recording.exchange` and "path" and "bin"; the header is in the metadata.
    """
    header, parts = exchanged(history)
    header["n_rows"] = [part.columns["value"].size for part in parts]
    schema = _SCHEMA.with_metadata({_HEADER: json.dumps(header)})
    data = BytesIO()
    with pq.ParquetWriter(data, schema, compression="zstd") as writer:
        for part in parts:
            paths = [""] if part.source == SCALARS else history.sources[part.source].paths
            writer.write_table(pa.table(_flat(part, paths), schema=schema))
    return data.getvalue()


def _flat(part: Part, paths: Sequence[str]) -> dict[str, pa.Array]:
    shape = part.columns["value"].reshape(part.steps.shape[1], len(paths), -1).shape
    n_rows = math.prod(shape)
    places = np.indices(shape).reshape(3, -1)
    counted = part.columns.get("total")
    columns: dict[str, Any] = {
        "source": _array(Labels(np.zeros(n_rows, int), [part.source])),
        "statistic": _array(Labels(np.zeros(n_rows, int), [part.statistic])),
        **dict(zip(("first_step", "step", "n"), map(pa.array, part.steps[:, places[0]]), strict=True)),
        "path": _array(Labels(places[1], list(paths))),
        "bin": pa.array(places[2], mask=np.full(n_rows, shape[2] == 1)),
    }
    for name in ("value", "low", "high"):
        values = part.columns.get(name)
        columns[name] = (
            pa.nulls(n_rows, pa.float64()) if values is None else pa.array(values.ravel().astype(np.float64))
        )
    columns["total"] = pa.nulls(n_rows, pa.int64()) if counted is None else pa.array(counted.ravel())
    bad = part.columns.get("nonfinite")
    columns["nonfinite"] = pa.nulls(n_rows, pa.bool_()) if bad is None else pa.array(bad)
    return columns


def from_parquet(path: Path) -> History:
    """The run in a file of `to_parquet`.

    Raises:
      ValueError, KeyError, TypeError: It holds no run, or other rows than those that were written.
    """
    table = pq.read_table(path)
    header = json.loads((table.schema.metadata or {})[_HEADER])
    at, parts = 0, []
    for n, n_rows in zip(header["n_entries"], header["n_rows"], strict=True):
        rows, at = table.slice(at, n_rows), at + n_rows
        every = max(n_rows // max(n, 1), 1)
        steps = np.stack([rows[name].to_numpy()[::every] for name in ("first_step", "step", "n")])
        known = (name for name in ("value", "low", "high", "total", "nonfinite") if not rows[name].null_count)
        parts.append((steps, {name: rows[name].to_numpy() for name in known}))
    return history_from(header, parts)
