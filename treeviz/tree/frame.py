"""A frame: columns of equal length by name, as records, or as the data frame that pandas makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np


class Labels(NamedTuple):
    """A column of texts with many repeats: `levels[code]` for each row."""

    codes: np.ndarray
    levels: Sequence[str]


Frame = Mapping[str, "np.ndarray | list[Any] | Labels"]
"""In a masked array, masked values are missing; an array with more axes holds an array for each row."""


def data_frame(frame: Frame) -> Any:
    """The columns as a data frame. Imports pandas.

    Raises:
      ImportError: pandas is not installed.
    """
    # Imported by name, since integrations are a layer above this module.
    return import_module("treeviz.integrations.pandas").of_frame(frame)


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
