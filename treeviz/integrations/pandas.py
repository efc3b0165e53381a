"""pandas: data frames, series and indices as leaves. Only their metadata is read."""

from __future__ import annotations

from itertools import islice
from typing import Any

from treeviz.integrations import describes_from
from treeviz.tree.describers import Description
from treeviz.tree.text import visible

_MAX_COLUMNS = 16


@describes_from("pandas", "DataFrame")
def data_frame(leaf: Any) -> Description:
    n_rows, n_columns = leaf.shape
    columns = [f"{visible(str(name), 40)} {dtype}" for name, dtype in islice(leaf.dtypes.items(), _MAX_COLUMNS)]
    rest = [f"… {n_columns - len(columns):,} more"] if n_columns > len(columns) else []
    return Description(text=f"{n_rows:,} rows: {', '.join((*columns, *rest))}", transparent=True)


@describes_from("pandas", "Series", "Index")
def series(leaf: Any) -> Description:
    return Description("tensor", shape=leaf.shape, dtype=str(leaf.dtype), bytes=leaf.nbytes)
