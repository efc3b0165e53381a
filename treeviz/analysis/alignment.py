"""Where the structure of one tree stands in another: the gradients of parameters, Adam's mu and nu in a train state.

Structures are compared by the key paths of leaves, written as a query sees them, so that `.kernel` of a module
and `['kernel']` of its state are the same key.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from treeviz.analysis.place_names import path_text
from treeviz.tree.table import TreeTable

MAX_PLACES = 12  # of one tree that are shown
_BOXES = ("node", "module", "variable")  # kinds of nodes that may hold one leaf where the other tree has the leaf
_EFFORT = 16  # rows that are looked at, for each row of the trees


class Place(NamedTuple):
    """A subtree that has the structure.

    Attributes:
      row: Its root.
      own: int[n_pairs], its leaves.
      leaves: int[n_pairs], the leaf of the searched structure that stands where each of `own` does.
    """

    row: int
    own: np.ndarray
    leaves: np.ndarray


class Search(NamedTuple):
    """What `find_structure` found.

    Attributes:
      places: Outermost first; none lies in another.
      n_more: How many there are beyond `MAX_PLACES`.
      almost: (row, why) of the subtree that came closest, if there is no place.
    """

    places: list[Place]
    n_more: int
    almost: tuple[int, str] | None


def find_structure(of: TreeTable, within: TreeTable, *, whole: bool = False) -> Search:
    """Find the subtrees of one tree that have the structure of another.

    A subtree has it if each of its leaves stands where the other has a leaf, and if arrays that meet have
    the same shape, whatever their dtype. Leaves may be missing, or be holes (None, `optax.MaskedNode`,
    anything empty, also in the place of a whole subtree). Where all leaves are there or are holes, one
    array of the same shape is enough: the factors of Adafactor have other shapes than the parameters.

    Linear: it looks at no more than 16 rows for each row of the two trees, and says so where that was not enough.

    Args:
      whole: Take no subtree in which leaves are missing.
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
        self._almost: tuple[int, int, str] = (0, -1, "")  # how many leaves fitted, row, why no more

    def run(self) -> Search:
        places: list[Place] = []
        n_more, covered = 0, 0
        for row in self._candidates():
            if row < covered:
                continue
            if self._effort <= 0:
                return Search(places, n_more, None if places else (0, "it is too large to be searched to the end"))
            place = self._look_at(row)
            if place is None:
                continue
            covered = self._ends[row]
            if len(places) < MAX_PLACES:
                places.append(place)
            else:
                n_more += 1
        _, row, why = self._almost
        return Search(places, n_more, None if places or row < 0 else (row, why))

    def _candidates(self) -> Iterator[int]:
        if not self._n_leaves:
            return iter(())
        n_leaves = np.array(self._n_leaves_in)
        if self._of_is_leaf[0]:
            return iter(np.flatnonzero(self._within.is_leaf).tolist())
        most = 2 * self._n_leaves  # those with more leaves than the structure are there to say why they do not have it
        return iter(np.flatnonzero(~self._within.is_leaf & (n_leaves >= 1) & (n_leaves <= most)).tolist())

    def _look_at(self, row: int) -> Place | None:
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
        return Place(row, own, leaves)

    def _same_rows(self, row: int) -> tuple[np.ndarray, np.ndarray, int] | None:
        """The pairs where not a key is different; the usual case, at once."""
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
        """The leaves below `root`, those that they meet, and how many are holes. None: one meets none."""
        row_at, n_codes, parents, codes = self._row_at, self._n_codes, self._parents, self._code_list
        is_leaf, n_leaves_in, ends, of_is_leaf = self._is_leaf, self._n_leaves_in, self._ends, self._of_is_leaf
        met = {root: 0}
        own, leaves, n_holes = [], [], 0
        row, end = root, ends[root]
        while row < end:
            meets = 0 if row == root else row_at.get(met.get(parents[row], -1) * n_codes + codes[row], -1)
            if meets < 0:
                if n_leaves_in[row]:
                    self._effort -= row - root
                    self._came_close(root, len(own), row, f"has no counterpart in {self._of.name}")
                    return None
                row = ends[row]
            elif is_leaf[row] or of_is_leaf[meets]:
                if n_leaves_in[row]:
                    pair = self._in_boxes(row, meets)
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
                n_holes += int(self._n_leaves_before[self._of_ends[meets]] - self._n_leaves_before[meets])
                row = ends[row]
            else:
                met[row] = meets
                row += 1
        self._effort -= end - root
        return np.array(own, np.intp), np.array(leaves, np.intp), n_holes

    def _in_boxes(self, row: int, meets: int) -> tuple[int, int] | None:
        """The two leaves, if one of them stands alone in a box that the other tree has not."""
        own, leaf = (
            _only_leaf(table, at, n)
            for table, at, n in (
                (self._within, row, self._n_leaves_in[row]),
                (self._of, meets, self._n_leaves_before[self._of_ends[meets]] - self._n_leaves_before[meets]),
            )
        )
        return None if own is None or leaf is None else (own, leaf)

    def _why_not(self, own: np.ndarray, leaves: np.ndarray, is_whole: bool) -> tuple[int, str] | None:
        """None where the shapes agree as they have to, else a leaf and what is wrong with it."""
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
        """How many arrays meet one of their shape, and which pairs are of different shapes."""
        codes = self._within.fact_codes[own].astype(np.int64) * len(self._of.facts) + self._of.fact_codes[leaves]
        kinds, inverse = np.unique(codes, return_inverse=True)
        facts = [(self._within.facts[k // len(self._of.facts)], self._of.facts[k % len(self._of.facts)]) for k in kinds]
        # numbers without a dimension are everywhere: a step, a rate
        weigh = () if self._of_is_leaf[0] else ((),)
        same = np.array([a.shape is not None and a.shape == b.shape and a.shape not in weigh for a, b in facts], bool)
        other = np.array([None not in (a.shape, b.shape) and a.shape != b.shape for a, b in facts], bool)
        return int(same[inverse].sum()), np.flatnonzero(other[inverse])

    def _came_close(self, root: int, n_fitting: int, row: int, why: str) -> None:
        if n_fitting > self._almost[0]:
            self._almost = (n_fitting, root, f"its leaf {path_text(self._within, row, root) or 'alone'} {why}")


def _segments(table: TreeTable, known: dict[object, int]) -> np.ndarray:
    """int64[n_rows]: a code of each row's key, the same wherever the key is, and different among siblings."""
    code_of = lambda segment: known.setdefault(segment, len(known))  # noqa: E731
    codes = np.array([code_of(key.segment) for key in table.keys], np.int64)[table.key_codes]
    indexed = np.flatnonzero(table.key_codes == 0)
    positions, inverse = np.unique(table.position[indexed], return_inverse=True)
    codes[indexed] = np.array([code_of(str(position)) for position in positions.tolist()], np.int64)[inverse]
    places = table.parent.astype(np.int64) * (len(known) + 1) + codes
    order = np.argsort(places, kind="stable")
    n_before: dict[int, int] = {}
    for i in (np.flatnonzero(np.diff(places[order]) == 0) + 1).tolist():  # siblings of the same name, in their order
        row = int(order[i])
        n_before[int(places[row])] = n = n_before.get(int(places[row]), 0) + 1
        codes[row] = code_of((int(codes[row]), n))
    return codes


def _only_leaf(table: TreeTable, row: int, n_leaves: int) -> int | None:
    """The row if it is a leaf, the leaf in it if it is a box of one leaf."""
    if table.is_leaf[row]:
        return row
    if n_leaves != 1 or table.facts[table.fact_codes[row]].kind not in _BOXES:
        return None
    return row + int(np.argmax(table.is_leaf[row : table.end[row]]))


def shape_text(shape: tuple[int, ...] | None) -> str:
    """ "(3,)", "(3, 4)", "()"; "" where there is none."""
    if shape is None:
        return ""
    return f"({shape[0]},)" if len(shape) == 1 else f"({', '.join(map(str, shape))})"
