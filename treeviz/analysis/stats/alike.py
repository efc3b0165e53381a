"""What is true of all values of a tree: words in the headline, in place of columns that say the same in every row."""

from __future__ import annotations

import numpy as np

from treeviz.tree.numbers import number_text
from treeviz.tree.query.find import unread
from treeviz.tree.table import TreeTable

_ABSENT = {"nan": "no NaN", "inf": "no Inf", "zeros": "no zeros"}
_NUMBERS = ("min", "max", "mean", "std", "rms")


def alike(table: TreeTable) -> dict[str, str]:
    """What each column of value statistics says of every row, by the column's name: {"nan": "no NaN", "min": "min 0"}.

    Empty if a leaf with values was not read: nothing is said of what was not looked at.
    """
    if "nan" not in table.columns or unread(table).any():
        return {}
    words = {name: text for name, text in _ABSENT.items() if table.columns[name].values[0] == 0}
    least, greatest = (float(table.columns[name].values[0]) for name in ("min", "max"))
    is_known = least == 0 or not any(facts.dtype.startswith("complex") for facts in table.facts)  # else a magnitude
    if least == greatest and is_known and _sizes(table)[0] > 1:
        is_finite = {"nan", "inf"} <= words.keys()
        text = (
            f"all {'' if is_finite else 'other '}values are {number_text(least)}"
            if least or not is_finite
            else "all zeros"
        )
        return words | dict.fromkeys(("zeros", *_NUMBERS, "histogram"), text)
    return words | {name: f"{name} {number}" for name in _NUMBERS if (number := _same_in_all(table, name))}


def headline(words: dict[str, str]) -> list[str]:
    """The parts of the headline: ["no NaN, no Inf, all zeros"], ["no NaN, no Inf", "min 0, max 1 in every row"]."""
    numbers = [text for name, text in words.items() if text.startswith(f"{name} ")]
    others = dict.fromkeys(text for text in words.values() if text not in numbers)
    return [", ".join(others)] * bool(others) + [f"{', '.join(numbers)} in every row"] * bool(numbers)


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
