"""pandas: data frames, series and indices as leaves, of which nothing but metadata is read; data frames of views."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from treeviz.integrations import describes_from
from treeviz.tree.describers import Description
from treeviz.tree.frame import Frame, Labels
from treeviz.tree.text import visible

if TYPE_CHECKING:
    import pandas

_MAX_COLUMNS = 16


@describes_from("pandas", "DataFrame")
def data_frame(leaf: Any) -> Description:
    n_rows, n_columns = leaf.shape
    columns = [f"{visible(str(name), 40)} {dtype}" for name, dtype in islice(leaf.dtypes.items(), _MAX_COLUMNS)]
    more = [f"… {n_columns - len(columns):,} more"] if n_columns > len(columns) else []
    return Description(text=f"{n_rows:,} rows: {', '.join((*columns, *more))}", transparent=True)


@describes_from("pandas", "Series", "Index")
def series(leaf: Any) -> Description:
    return Description("tensor", shape=leaf.shape, dtype=str(leaf.dtype), bytes=leaf.nbytes)


def of_frame(frame: Frame) -> pandas.DataFrame:
    """The columns as a data frame. Texts that repeat are categories; counts that are lacking are <NA>, numbers NaN."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("to_pandas: pandas is not installed: pip install pandas") from error

    def series(column: np.ndarray | list[Any] | Labels) -> Any:
        if isinstance(column, Labels):
            codes: Any = column.codes  # an array, as pandas documents
            return pandas.Categorical.from_codes(codes, categories=pandas.Index(column.levels))
        if isinstance(column, list):
            return column
        values = list(column) if column.ndim > 1 else column
        if not isinstance(column, np.ma.MaskedArray) or column.ndim > 1 or not column.mask.any():
            return values
        if column.dtype.kind == "f":
            return column.filled(np.nan)
        return pandas.arrays.IntegerArray(np.ma.getdata(column), np.ma.getmaskarray(column))

    return pandas.DataFrame({name: series(column) for name, column in frame.items()})
