"""What is true of all values of a tree: words in the headline, in place of columns that say the same in every row."""

from __future__ import annotations

import numpy as np

from treeviz.tree.numbers import number_text
from treeviz.tree.query.find import unread
from treeviz.tree.table import TreeTable

_ABSENT = {"nan": "no NaN", "inf": "no Inf", "zeros": "no zeros"}
_NUMBERS = ("min", "max", "mean", "std", "rms")


def alike(table: TreeTable) -> dict[str, str]:
    """What each column of value statistics says of every row, by the column's name: {"nan": "no NaN", "min": "all 1"}.

    Empty if a leaf with values was not read: nothing is said of what was not looked at.
    """
    if "nan" not in table.columns or unread(table).any():
        return {}
    words = {name: text for name, text in _ABSENT.items() if table.columns[name].values[0] == 0}
    least, greatest = (float(table.columns[name].values[0]) for name in ("min", "max"))
    is_known = least == 0 or not any(facts.dtype.startswith("complex") for facts in table.facts)  # else a magnitude
    if {"nan", "inf"} <= words.keys() and least == greatest and is_known and _sizes(table)[0] > 1:
        text = f"all {number_text(least)}" if least else "all zeros"
        return words | dict.fromkeys(("zeros", *_NUMBERS, "histogram"), text)
    same = {name: number for name in _NUMBERS if (number := _same_in_all(table, name))}
    for name, number in same.items():
        names = [each for each in same if same[each] == number]
        words[name] = f"{' = '.join((*names, number))} everywhere"
    return words


def _same_in_all(table: TreeTable, name: str) -> str:
    """The number that a column has in every row, of two leaves at least; "" if there is none."""
    values = table.columns[name].values
    has_number = ~np.isnan(values)
    lacks_one = ~has_number & ~np.isnan(table.columns["nan"].values) & (_sizes(table) > 0)
    numbers = values[has_number]
    is_same = np.count_nonzero(has_number & table.is_leaf) > 1 and np.all(numbers == numbers[0]) and not lacks_one.any()
    return number_text(numbers[0]) if is_same else ""


def _sizes(table: TreeTable) -> np.ndarray:
    return table.rolled(table.columns["elements"])
