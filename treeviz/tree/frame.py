"""A frame: columns of equal length by name, as records, or as the data frame that pandas makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pandas


class Labels(NamedTuple):
    """A column of texts with many repeats: `levels[code]` for each row."""

    codes: np.ndarray
    levels: Sequence[str]


Frame = Mapping[str, "np.ndarray | list[Any] | Labels"]
"""In a masked array, masked values are missing; an array with more axes holds an array for each row."""


def data_frame(frame: Frame) -> pandas.DataFrame:
    """The columns as a data frame. Texts that repeat are categories; counts that are lacking are <NA>, numbers NaN.

    Raises:
      ImportError: pandas is not installed.
    """
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


def records(frame: Frame) -> Iterator[dict[str, Any]]:
    """A dict for each row, without missing values."""
    columns = {
        name: [column.levels[code] for code in column.codes.tolist()]
        if isinstance(column, Labels)
        else column if isinstance(column, list) else column.tolist()
        for name, column in frame.items()
    }  # fmt: skip
    is_missing: dict[str, Any] = {}
    for name, column in frame.items():
        if isinstance(column, np.ma.MaskedArray) and column.mask.any():
            mask = np.array(column.mask)
            is_missing[name] = mask.reshape(len(mask), -1).any(axis=1).tolist()
    for i, row in enumerate(zip(*columns.values(), strict=True)):
        yield {
            name: value
            for name, value in zip(columns, row, strict=True)
            if name not in is_missing or not is_missing[name][i]
        }
