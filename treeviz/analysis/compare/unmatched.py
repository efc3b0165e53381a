"""The rows of a tree without a counterpart in the other one, and which of them are in the same situation."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np

from treeviz.analysis.compare.aligned import NONE
from treeviz.tree.forks import computed_once
from treeviz.tree.table import TreeTable


class Unmatched:
    """The rows of one tree that the other lacks, or has another thing for.

    Args:
      rows: In their order.
      prints: int[n]: their fingerprints.
    """

    def __init__(self, table: TreeTable, rows: np.ndarray, prints: np.ndarray) -> None:
        self._table = table
        parents = table.parent[rows]
        order = np.argsort(parents, kind="stable")
        self._rows, self._prints, self._parents = rows[order], prints[order], parents[order]
        codes, positions = table.key_codes[self._rows], table.position[self._rows]
        self._names = np.where(codes == 0, ~positions.astype(np.int64), codes)  # of an index, one below zero
        self._of_row = np.full(len(table), NONE)
        self._of_row[self._rows] = np.arange(len(rows))
        self._kinds = self._kinds_of_nodes()

    def _kinds_of_nodes(self) -> np.ndarray:
        """Of each row a number: the same where the unmatched rows below have the same names and fingerprints."""
        kinds = np.full(len(self._table) + 1, NONE)  # the last is of no row
        starts = np.flatnonzero(np.diff(self._parents, prepend=-2))
        pairs, known = combined(self._names, self._prints), dict[bytes, int]()
        kinds[self._parents[starts]] = [
            known.setdefault(pairs[start:end].tobytes(), len(known))
            for start, end in pairwise([*starts.tolist(), len(pairs)])
        ]
        return kinds

    def below(self, parent: int) -> list[int]:
        start, end = np.searchsorted(self._parents, [parent, parent + 1])
        return self._rows[start:end].tolist()

    def nth_below(self, parents: np.ndarray, nth: np.ndarray) -> np.ndarray:
        return self._rows[np.searchsorted(self._parents, parents) + nth]

    def first_with(self, print_: int, n: int) -> list[int]:
        """The first rows that have a fingerprint."""
        rows, prints = self._by_print
        start, end = np.searchsorted(prints, [print_, print_ + 1])
        return rows[start : min(end, start + n)].tolist()

    @computed_once
    def _by_print(self) -> tuple[np.ndarray, np.ndarray]:
        order = np.lexsort((self._rows, self._prints))
        return self._rows[order], self._prints[order]

    def names(self) -> Counter[tuple[int, str]]:
        """How many have a fingerprint and a name."""
        counts: Counter[tuple[int, str]] = Counter()
        _, first, n = np.unique(combined(self._names, self._prints), return_index=True, return_counts=True)
        for i, count in zip(first.tolist(), n.tolist(), strict=True):
            name = int(self._names[i])
            counts[int(self._prints[i]), self._table.keys[name].segment if name > 0 else str(~name)] += count
        return counts

    def situations(self, rows: np.ndarray, above: np.ndarray, other: Unmatched) -> np.ndarray:
        """int[k]: a number for each of some of the rows: the same where all that is told of them is.

        Args:
          above: The counterparts of their parents.
        """
        at = self._of_row[rows]
        own = combined(self._names[at], self._prints[at])
        return combined(own, combined(self._kinds[self._parents[at]], other._kinds[above]))


def combined(one: np.ndarray, another: np.ndarray) -> np.ndarray:
    """A number for each pair: the same for equal ones."""
    a, b = (np.unique(each, return_inverse=True)[1].reshape(-1).astype(np.int64) for each in (one, another))
    return np.unique(a * (int(b.max(initial=0)) + 1) + b, return_inverse=True)[1].reshape(-1)
