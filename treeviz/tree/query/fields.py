"""The reserved field names of the search language, and what to write in place of an unknown one."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

ROW_FIELDS = ("key", "kind", "type", "dtype", "sharding", "shape", "is", "depth")
ALIASES = {"params": "elements", "parameters": "elements"}
# The columns of `analysis.stats.columns.value_statistics`, computed on request.
VALUE_STATISTICS = ("min", "max", "mean", "std", "rms", "zeros", "nan", "inf", "posinf", "neginf", "histogram")


def did_you_mean(name: str, known: Sequence[str], prefix: str = "") -> str:
    """ "Did you mean bytes?"; all that is known if nothing is near. Before each stands the prefix, as "is:"."""
    near = get_close_matches(name, known, n=1)
    if near:
        return f"Did you mean {prefix}{near[0]}?"
    return f"There are: {', '.join(prefix + each for each in known)}."
