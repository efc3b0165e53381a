"""As many rows as fit into a number of characters."""

from __future__ import annotations

from collections.abc import Callable


def longest_within(budget: int, most: int, text_of: Callable[[int], str]) -> str:
    """The text of the most rows that has no more than `budget` characters, or that of one row if none has.

    Bisects the number of rows, 1 to `most`. More rows may be shorter, as when a column no longer fits: the text that
    is returned fits, but another might have held a few rows more.
    """
    best, low, high = text_of(1), 2, most
    while low <= high:
        n_rows = (low + high) // 2
        if len(candidate := text_of(n_rows)) <= budget:
            best, low = candidate, n_rows + 1
        else:
            high = n_rows - 1
    return best
