"""Rules about values, which are read only on request."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from treeviz.analysis.checks.rule import Checked, Found, rule

_WHERE = "jnp.argwhere(~jnp.isfinite({at}))  # where"


@rule("T140", "warning", needs="values")
def not_finite(checked: Checked) -> Iterator[Found]:
    """A leaf has NaN or infinities; NaN is an error.

    One NaN in a parameter makes every later loss NaN. An infinity may be meant, as in a mask, or as the best loss so
    far.
    """
    noted = dict(checked.noted("nonfinite"))
    for row, (nan, inf, _), n in _leaves(checked):
        if nan or inf:
            parts = [f"{count:,} {word}" for word, count in (("NaN", nan), ("±Inf", inf)) if count]
            text = f"{' and '.join(parts)} among {n:,} values" if n > 1 else f"the value is {'NaN' if nan else '±Inf'}"
            fix = "" if checked.facts(row).kind == "variable" else _WHERE  # a variable is no array: jnp refuses it
            yield Found(row, text, fix, "error" if nan else None, noted.get(row))


@rule("T141", "info", needs="values")
def all_zero(checked: Checked) -> Iterator[Found]:
    """All values of an array of two elements or more are zero.

    New biases and moments are; kernels and gradients are not.
    """
    for row, (_, _, zeros), n in _leaves(checked):
        if n > 1 and zeros == n:
            yield Found(row, f"all of {n:,} values are zero")


def _leaves(checked: Checked) -> Iterator[tuple[int, tuple[int, int, int], int]]:
    """(row, (NaN, infinities, zeros), elements) of the leaves that were read."""
    table = checked.table
    counts = np.stack([table.columns[name].values for name in ("nan", "inf", "zeros")])
    for row in np.flatnonzero(table.is_leaf & ~np.isnan(counts[0])).tolist():
        nan, inf, zeros = counts[:, row].astype(np.int64).tolist()
        yield row, (nan, inf, zeros), checked.facts(row).elements
