"""The reserved field names of the search language, which no user column may have."""

from __future__ import annotations

ROW_FIELDS = ("key", "kind", "type", "dtype", "sharding", "shape", "is", "depth")
ALIASES = {"params": "elements", "parameters": "elements"}
# The columns of `analysis.stats.columns.value_statistics`, computed on request.
VALUE_STATISTICS = ("min", "max", "mean", "std", "rms", "zeros", "nan", "inf", "posinf", "neginf", "histogram")
