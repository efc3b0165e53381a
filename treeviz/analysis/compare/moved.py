"""Elements of a list that stand in other places of the same list: layers moved by one, two that were swapped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np

from treeviz.analysis.compare.aligned import NONE, Side
from treeviz.analysis.compare.difference import Hint
from treeviz.analysis.compare.fingerprints import first_values
from treeviz.analysis.compare.tree_diff import Found
from treeviz.tree.table import children_of

TOLD = ("missing", "extra", "type", "none", "leaf", "static", "shape")  # kinds that a move may lead to
_MOST_ELEMENTS = 500  # of a list
_MOST_OF_ALL = 2_000  # elements that are looked at


def moved_hints(left: Side, right: Side, found: Found, values: bool) -> dict[int, Hint]:
    """For the first difference in each element that moved, by aligned row, where the element is now."""
    told = np.array([at for at, each in zip(found.rows, found.differences, strict=True) if each.kind in TOLD], int)
    marks, hints, n_left, end = _Marks((left, right), values), {}, _MOST_OF_ALL, 0
    for at in _lists(left, right, found, told):
        mine, other = int(found.aligned.left[at]), int(found.aligned.right[at])
        rows = left.table.children(mine), right.table.children(other)
        n_left -= len(rows[0])
        if at < end or len(rows[0]) != len(rows[1]) or len(rows[0]) > _MOST_ELEMENTS or n_left < 0:
            continue
        alike = marks.of(rows, marks.structure)
        if set(alike[0]).isdisjoint(alike[1]):
            continue
        for is_sure in (True, False):
            marked, like = marks.of(rows, marks.whole) if is_sure else alike
            places = _places(marked, like, marks.have_arrays(rows[0]), is_sure)
            if places:
                code = _code(places, left.table[mine].expression, type(left.nodes[mine]), len(rows[0]))
                hints |= _told(places, children_of(found.aligned.end, at), found, told, is_sure, code)
                end = int(found.aligned.end[at])  # what is in an element is compared with what is in another one
                break
    return hints


def _lists(left: Side, right: Side, found: Found, told: np.ndarray) -> Iterator[int]:
    """The aligned rows of the lists around differences."""
    above, lists = np.unique(found.aligned.parent[told]), set()
    while len(above) and above[-1] != NONE:
        above = above[above != NONE]
        rows = found.aligned.left[above], found.aligned.right[above]
        for at, *pair in zip(above.tolist(), *(each.tolist() for each in rows), strict=True):
            sides = zip((left.table, right.table), pair, strict=True)
            if NONE not in pair and all(t.end[row] > row + 1 and t.key_codes[row + 1] == 0 for t, row in sides):
                lists.add(at)  # the first child has an index
        above = np.unique(found.aligned.parent[above])
    yield from sorted(lists)


class _Marks:
    """What tells elements of both trees from each other."""

    def __init__(self, sides: tuple[Side, Side], values: bool) -> None:
        self._sides, self._values = sides, values
        self._keys = _common([side.table.keys for side in sides])
        self._facts = _common([side.table.facts for side in sides])
        self._of_arrays = np.array([bool(f.shape) for f in sides[0].table.facts])
        self._plain = _common([[(f.shape, f.dtype, f.shape or f.type) for f in side.table.facts] for side in sides])

    def of(self, rows: Any, mark: Any) -> list[list[Hashable]]:
        return [[mark(side, row) for row in of_side] for side, of_side in enumerate(rows)]

    def have_arrays(self, rows: list[int]) -> list[bool]:
        """Of elements of the first tree; others have their like in many places."""
        table = self._sides[0].table
        return [bool(self._of_arrays[table.fact_codes[row : table.end[row]]].any()) for row in rows]

    def whole(self, side: int, row: int) -> Hashable:
        return self.structure(side, row, self._facts), self._values and first_values(self._sides[side], row)

    def structure(self, side: int, row: int, codes: list[np.ndarray] | None = None) -> Hashable:
        table = self._sides[side].table
        rows = slice(row, int(table.end[row]))
        below = slice(row + 1, rows.stop)
        return (
            (codes or self._plain)[side][table.fact_codes[rows]].tobytes(),
            self._keys[side][table.key_codes[below]].tobytes(),
            (table.depth[rows] - table.depth[row]).tobytes(),
        )


def _common(of: list[Any]) -> list[np.ndarray]:
    """A number for each, the same for those that are equal."""
    known: dict[Hashable, int] = {}
    return [np.array([known.setdefault(each, len(known)) for each in side], np.int64) for side in of]


def _places(mine: list[Hashable], other: list[Hashable], have_arrays: list[bool], is_sure: bool) -> dict[int, int]:
    """Where elements went: all of them around by some places, or those that have their like in one other place."""
    n, differ = len(mine), [i for i, (a, b) in enumerate(zip(mine, other, strict=True)) if a != b]
    if not differ or not (is_sure or any(have_arrays[i] for i in differ)):
        return {}
    for k in sorted(range(1, n), key=lambda k: min(k, n - k)):
        if mine[0] == other[k] and mine == other[k:] + other[:k]:
            return {i: (i + k) % n for i in range(n)}
    n_mine, n_other = Counter(mine[i] for i in differ), Counter(other[i] for i in differ)
    at: dict[Hashable, list[int]] = {}
    for i in reversed(differ):
        at.setdefault(other[i], []).append(i)
    if n_mine == n_other:  # all are there, in another order
        return {i: at[mine[i]].pop() for i in differ}
    alone = (i for i in differ if have_arrays[i] and n_mine[mine[i]] == n_other[mine[i]] == 1)
    return {i: at[mine[i]][0] for i in alone}


def _told(
    places: dict[int, int], children: list[int], found: Found, told: np.ndarray, is_sure: bool, code: str
) -> dict[int, Hint]:
    come_from, hints = {to: i for i, to in places.items()}, {}
    for i, child in enumerate(children):
        n = int(np.searchsorted(told, child))
        if i in places and n < len(told) and told[n] < found.aligned.end[child]:
            at = int(told[n])
            is_own = at == child
            text = f"{'' if is_own else f'[{i}] '}moved to [{places[i]}]"
            if i in come_from:
                text += f", and [{come_from[i]}] to {'here' if is_own else f'[{i}]'}"
            hints[at], code = Hint(text + "?" * (not is_sure), code), ""
    return hints


def _code(places: dict[int, int], node: str, cls: type, n: int) -> str:
    """Python that puts all elements of a list into their places."""
    if (cls is not list and cls is not tuple) or sorted(places) != sorted(places.values()):
        return ""
    order = [*({i: i for i in range(n)} | {to: i for i, to in places.items()}).values()]
    at = order[0]
    if order == [*range(at, n), *range(at)]:
        return f"{node}[{at}:] + {node}[:{at}]"
    return f"type({node})({node}[i] for i in {order})"
