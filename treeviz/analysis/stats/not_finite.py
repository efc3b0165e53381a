"""What is said at once of values that are not finite, in every view: in the headline, and in the row of each leaf."""

from __future__ import annotations

import math

import numpy as np

from treeviz.analysis.stats.alike import alike, headline
from treeviz.tree.facts import Note
from treeviz.tree.table import TreeTable


def not_finite(
    table: TreeTable, *, is_whole: bool, others: bool = False
) -> tuple[list[str], dict[int, tuple[Note, ...]]]:
    """What the headline says ("NaN in 3 leaves", "no Inf, all zeros"), and of each leaf a note ("NaN: 3 of 12 values").

    Args:
      table: With its value statistics.
      is_whole: Whether every leaf was read; otherwise the headline says "at least".
      others: Whether other trees stand beside this one, so that a sentence says of which it is true.
    """
    words = alike(table) if is_whole else {}
    told = {name: text for name, text in words.items() if not others or name in ("nan", "inf")}
    rows = np.flatnonzero(table.is_leaf | table.is_layer)
    counts = [np.nan_to_num(table.columns[name].values[rows]).astype(np.int64) for name in ("nan", "inf")]
    parts: list[str] = []
    for word, each in zip(("NaN", "±Inf"), counts, strict=True):
        n = int(np.count_nonzero(each[table.is_leaf[rows]]))
        if n:
            parts.append(f"{word} in {'' if is_whole else '≥ '}{n:,} {'leaf' if n == 1 else 'leaves'}")
    parts += [part + f" in {table.name}" * others for part in headline(told)]
    bad = np.flatnonzero(counts[0] + counts[1])
    notes: dict[int, tuple[Note, ...]] = {
        row: (Note("nonfinite", _sentence(math.prod(table[row].shape or ()), n_nan, n_inf)),)
        for row, n_nan, n_inf in zip(*(each[bad].tolist() for each in (rows, *counts)), strict=True)
    }
    return parts, notes


def _sentence(n: int, n_nan: int, n_inf: int) -> str:
    """ "NaN: 3 of 12 values, ±Inf: 1 of 12 values"."""
    counts = [(word, count) for word, count in (("NaN", n_nan), ("±Inf", n_inf)) if count]
    return ", ".join(
        [f"{word}: {count:,} of {n:,} values" if n > 1 else f"the value is {word}" for word, count in counts]
    )
