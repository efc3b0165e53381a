"""Arrow: tables of the rows of a view, and of a run."""

from __future__ import annotations

from typing import Any

import numpy as np

from treeviz.integrations import not_installed
from treeviz.tree.frame import Frame, Labels

try:
    import pyarrow as pa
except ImportError as error:
    raise not_installed(error, "arrow") from error


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
