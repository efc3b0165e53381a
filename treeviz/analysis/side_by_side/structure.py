"""Find the structure of one tree in another: of parameters in gradients, or in Adam's mu and nu.

Structures are compared by the segments of key paths, so that `.kernel` of a module and `['kernel']` of its state
are equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from treeviz.analysis.facts import shape_text
from treeviz.analysis.side_by_side.labels import path_text
from treeviz.tree.kinds import KINDS
from treeviz.tree.table import TreeTable

MAX_MATCHES = 12  # of one tree that are shown
_EFFORT = 16  # visited rows per row of the trees


class Match(NamedTuple):
    """A subtree that has the structure.

    Attributes:
      row: Its root.
      own: int[n_pairs], its leaves.
      leaves: int[n_pairs], for each of `own` the leaf at the same path in the other tree.
    """

    row: int
    own: np.ndarray
    leaves: np.ndarray


class Search(NamedTuple):
    """The result of `find_structure`.

    Attributes:
      matches: In row order; none is inside another.
      n_more: The number of matches beyond `MAX_MATCHES`.
      almost: Without a match: the row of the closest subtree, and why it does not match.
    """

    matches: list[Match]
    n_more: int
    almost: tuple[int, str] | None


def find_structure(of: TreeTable, within: TreeTable, *, whole: bool = False) -> Search:
    """Find the subtrees of one tree that have the structure of another.

    A subtree matches if the other tree has a leaf at the path of each of its leaves, and if paired arrays have the same
    shape, whatever their dtype. Leaves may be missing, or be holes (None, `optax.MaskedNode`, any empty node, also in
    place of a whole subtree). If all leaves are present or holes, one array of the same shape is enough: the factors of
    Adafactor have other shapes than the parameters.

    Linear: visits at most 16 rows for each row of the two trees, else gives up and reports it in `almost`.

    Args:
      whole: Ignore subtrees in which leaves are missing.
    """
    return _Search(of, within, whole).run()


class _Search:
    def __init__(self, of: TreeTable, within: TreeTable, whole: bool) -> None:
        self._of, self._within, self._whole = of, within, whole
        segments: dict[object, int] = {}
        codes = _segments(of, segments)
        self._codes = _segments(within, segments)
        self._n_codes = len(segments)
        places = of.parent.astype(np.int64) * self._n_codes + codes
        self._row_at = dict(zip(places[1:].tolist(), range(1, len(of)), strict=True))
        self._of_codes = codes
        self._n_leaves_before = np.concatenate([[0], np.cumsum(of.is_leaf)])
        self._n_leaves = int(self._n_leaves_before[-1])
        self._of_ends, self._of_is_leaf = of.end.tolist(), of.is_leaf.tolist()
        self._parents, self._ends = within.parent.tolist(), within.end.tolist()
        self._is_leaf, self._code_list = within.is_leaf.tolist(), self._codes.tolist()
        before = np.concatenate([[0], np.cumsum(within.is_leaf)])
        self._n_leaves_in: list[int] = (before[within.end] - before[:-1]).tolist()
        self._effort = _EFFORT * (len(of) + len(within))
        self._almost: tuple[int, int, str] = (0, -1, "")  # number of matching leaves, row, reason

    def run(self) -> Search:
        matches: list[Match] = []
        n_more, covered = 0, 0
        for row in self._candidates():
            if row < covered:
                continue
            if self._effort <= 0:
                return Search(matches, n_more, None if matches else (0, "it is too large to be searched to the end"))
            match = self._match_at(row)
            if match is None:
                continue
            covered = self._ends[row]
            if len(matches) < MAX_MATCHES:
                matches.append(match)
            else:
                n_more += 1
        _, row, why = self._almost
        return Search(matches, n_more, None if matches or row < 0 else (row, why))

    def _candidates(self) -> Iterator[int]:
        if not self._n_leaves:
            return iter(())
        n_leaves = np.array(self._n_leaves_in)
        if self._of_is_leaf[0]:
            return iter(np.flatnonzero(self._within.is_leaf).tolist())
        most = 2 * self._n_leaves  # those above `_n_leaves` only yield the reason of a mismatch
        return iter(np.flatnonzero(~self._within.is_leaf & (n_leaves >= 1) & (n_leaves <= most)).tolist())

    def _match_at(self, row: int) -> Match | None:
        pairs = self._same_rows(row)
        if pairs is None:
            pairs = self._pairs(row)
        if pairs is None:
            return None
        own, leaves, n_holes = pairs
        why = self._why_not(own, leaves, len(leaves) + n_holes >= self._n_leaves)
        if why:
            self._came_close(row, len(own), *why)
            return None
        return Match(row, own, leaves)

    def _same_rows(self, row: int) -> tuple[np.ndarray, np.ndarray, int] | None:
        """The pairs if all keys are equal: the usual case, compared as arrays."""
        of, within, end = self._of, self._within, self._ends[row]
        if end - row != len(of):
            return None
        same = (
            np.array_equal(self._codes[row + 1 : end], self._of_codes[1:])
            and np.array_equal(within.depth[row:end] - within.depth[row], of.depth)
            and np.array_equal(within.is_leaf[row:end], of.is_leaf)
        )
        self._effort -= len(of) // 8
        leaves = np.flatnonzero(of.is_leaf)
        return (leaves + row, leaves, 0) if same else None

    def _pairs(self, root: int) -> tuple[np.ndarray, np.ndarray, int] | None:
        """The leaves below `root`, their counterparts, and the number of holes. None: a leaf has no counterpart."""
        row_at, n_codes, parents, codes = self._row_at, self._n_codes, self._parents, self._code_list
        is_leaf, n_leaves_in, ends, of_is_leaf = self._is_leaf, self._n_leaves_in, self._ends, self._of_is_leaf
        other_of = {root: 0}
        own, leaves, n_holes = [], [], 0
        row, end = root, ends[root]
        while row < end:
            other = 0 if row == root else row_at.get(other_of.get(parents[row], -1) * n_codes + codes[row], -1)
            if other < 0:
                if n_leaves_in[row]:
                    self._effort -= row - root
                    self._came_close(root, len(own), row, f"has no counterpart in {self._of.name}")
                    return None
                row = ends[row]
            elif is_leaf[row] or of_is_leaf[other]:
                if n_leaves_in[row]:
                    pair = self._in_boxes(row, other)
                    if pair is None:
                        self._effort -= row - root
                        self._came_close(root, len(own), row, "is a leaf in one of them, and a node in the other")
                        return None
                    own.append(pair[0])
                    leaves.append(pair[1])
                else:
                    n_holes += 1
                row = ends[row]
            elif not n_leaves_in[row]:
                n_holes += int(self._n_leaves_before[self._of_ends[other]] - self._n_leaves_before[other])
                row = ends[row]
            else:
                other_of[row] = other
                row += 1
        self._effort -= end - root
        return np.array(own, np.intp), np.array(leaves, np.intp), n_holes

    def _in_boxes(self, row: int, other: int) -> tuple[int, int] | None:
        """The two leaves, if one of them is alone in a node (such as a Variable) that the other tree does not have."""
        own, leaf = (
            _only_leaf(table, at, n)
            for table, at, n in (
                (self._within, row, self._n_leaves_in[row]),
                (self._of, other, self._n_leaves_before[self._of_ends[other]] - self._n_leaves_before[other]),
            )
        )
        return None if own is None or leaf is None else (own, leaf)

    def _why_not(self, own: np.ndarray, leaves: np.ndarray, is_whole: bool) -> tuple[int, str] | None:
        """None if the shapes match; else a leaf and the reason."""
        same, other = self._compare_shapes(own, leaves)
        if self._whole and not is_whole:
            return int(own[0]), "is there, and others are not"
        if len(other) and (not same or not is_whole):
            row, leaf = int(own[other[0]]), int(leaves[other[0]])
            shapes = (shape_text(t.facts[t.fact_codes[r]].shape) for t, r in ((self._within, row), (self._of, leaf)))
            return row, f"has the shape {' and not '.join(shapes)}"
        if not same and (not is_whole or self._of_is_leaf[0]):
            return int(own[0]), "has no shape by which it could be told from any other number"
        return None

    def _compare_shapes(self, own: np.ndarray, leaves: np.ndarray) -> tuple[int, np.ndarray]:
        """The number of pairs with equal shapes, and the indices of those with different ones."""
        codes = self._within.fact_codes[own].astype(np.int64) * len(self._of.facts) + self._of.fact_codes[leaves]
        kinds, inverse = np.unique(codes, return_inverse=True)
        facts = [(self._within.facts[k // len(self._of.facts)], self._of.facts[k % len(self._of.facts)]) for k in kinds]
        # Scalars are no evidence: a step, a learning rate.
        weigh = () if self._of_is_leaf[0] else ((),)
        same = np.array([a.shape is not None and a.shape == b.shape and a.shape not in weigh for a, b in facts], bool)
        other = np.array([None not in (a.shape, b.shape) and a.shape != b.shape for a, b in facts], bool)
        return int(same[inverse].sum()), np.flatnonzero(other[inverse])

    def _came_close(self, root: int, n_fitting: int, row: int, why: str) -> None:
        if n_fitting > self._almost[0]:
            self._almost = (n_fitting, root, f"its leaf {path_text(self._within, row, root) or 'alone'} {why}")


def _segments(table: TreeTable, known: dict[object, int]) -> np.ndarray:
    """int64[n_rows]: a code of each row's key, equal in all trees and distinct among siblings."""
    code_of = lambda segment: known.setdefault(segment, len(known))  # noqa: E731
    codes = np.array([code_of(key.segment) for key in table.keys], np.int64)[table.key_codes]
    indexed = np.flatnonzero(table.key_codes == 0)
    positions, inverse = np.unique(table.position[indexed], return_inverse=True)
    codes[indexed] = np.array([code_of(str(position)) for position in positions.tolist()], np.int64)[inverse]
    places = table.parent.astype(np.int64) * (len(known) + 1) + codes
    order = np.argsort(places, kind="stable")
    n_before: dict[int, int] = {}
    for i in (np.flatnonzero(np.diff(places[order]) == 0) + 1).tolist():  # siblings of the same name, in order
        row = int(order[i])
        n_before[int(places[row])] = n = n_before.get(int(places[row]), 0) + 1
        codes[row] = code_of((int(codes[row]), n))
    return codes


def _only_leaf(table: TreeTable, row: int, n_leaves: int) -> int | None:
    """The row of a leaf; for a node that may wrap one leaf, the leaf inside."""
    if table.is_leaf[row]:
        return row
    if n_leaves != 1 or not KINDS[table.facts[table.fact_codes[row]].kind].may_box:
        return None
    return row + int(np.argmax(table.is_leaf[row : table.end[row]]))
