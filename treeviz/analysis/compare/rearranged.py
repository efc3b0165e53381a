"""Structure that was rearranged, not changed: renamed, moved, inserted, or layers against one stack of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Set
from difflib import SequenceMatcher
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from treeviz.analysis.compare.aligned import NONE, Side
from treeviz.analysis.compare.difference import Difference, Differences, Hint, with_hint
from treeviz.analysis.compare.fingerprints import add_fingerprints, first_values
from treeviz.analysis.compare.flat_names import flat_hints
from treeviz.analysis.compare.leaf_facts import transpose_code, transposing
from treeviz.analysis.compare.leaf_map import STRUCTURAL, mapped_hints, words_of
from treeviz.analysis.compare.moved import TOLD, moved_hints
from treeviz.analysis.compare.nodes import MAPPINGS
from treeviz.analysis.compare.stacks import stacked, stacked_dict
from treeviz.analysis.compare.tree_diff import Found
from treeviz.analysis.compare.unmatched import Unmatched
from treeviz.tree.collector import collector_paused
from treeviz.tree.keys import Key
from treeviz.tree.table import TreeTable

_MOST_CHILDREN = 500  # that are searched for one that was inserted, or has nearly the same name
_MOST_PLACES = 3  # that a hint names
_ALONE = ("missing", "extra")
_ELSEWHERE = "the same structure stands at"
_BY_SHAPE = "has the shape of"
_OF_ALL = ("weight", "bias")  # the last words of many names, which tell nothing of what an array is for
_LEAST_LEAVES = 2  # of a subtree that is looked for elsewhere: a single leaf has its like in many places


@collector_paused()
def with_hints(left: Side, right: Side, found: Found, *, values: bool = True) -> Found:
    """The differences with what they may come from, where the structure of a subtree tells it.

    Args:
      values: The first values of arrays in host memory may tell which element of a list was inserted.
    """
    told = {*STRUCTURAL, "length"}.intersection(found.kinds)
    moved = moved_hints(left, right, found, values) if not set(TOLD).isdisjoint(found.kinds) else {}
    if not told:
        return _with(found, moved, moved) if moved else found
    hints = _Hints(left, right, found, values)
    pairs = [(at, each.kind) for at, each in zip(found.rows, found.differences, strict=True) if _is_told(each, told)]
    flat, said = flat_hints(left, right, found), hints.of_alone([at for at, kind in pairs if kind in _ALONE])
    said |= {at: hints.of_both(at, kind) for at, kind in pairs if kind not in _ALONE}
    said |= {at: hint for at, hint in flat.items() if at in said}
    if not any(hint.code for hint in flat.values()) and any(map(_is_open, {hint.text for hint in said.values()})):
        mapped = mapped_hints(left, right, found)
        has_code = any(hint.code for hint in mapped.values())
        for at, hint in mapped.items():
            code = hint.code if has_code else said.get(at, hint).code
            before = said.get(at, hint).text
            said[at] = Hint(hint.text if before.startswith(_BY_SHAPE) else before or hint.text, code)
    return _with(found, said | moved, moved)


def _with(found: Found, said: Mapping[int, Hint], moved: Container[int]) -> Found:
    """The differences with hints by aligned row; that an element moved says more than what is known of one leaf."""
    differences, waiting = Differences(), {*said}
    for at, each in zip(found.rows, found.differences, strict=True):
        hint = said.get(at)
        is_told = hint and hint.text and (each.kind in TOLD and at in waiting if at in moved else _is_free(each))
        differences.append(with_hint(each, hint) if is_told and hint else each)
        if is_told:
            waiting.discard(at)
    return found._replace(differences=differences)


def _is_free(each: Difference) -> bool:
    """Whether a difference has no hint yet."""
    return each.kind in _ALONE or not each.hint  # these have none, which need not be written to know it


def _is_told(each: Difference, kinds: Set[str]) -> bool:
    return each.kind in kinds and _is_free(each)


def _is_open(text: str) -> bool:
    """Whether a hint does not tell how a difference came about."""
    return not text or text.startswith((_ELSEWHERE, _BY_SHAPE))


class _Alone(NamedTuple):
    """What is told of a row without a counterpart.

    Attributes:
      nth: Which of the unmatched rows below the other parent it may be.
      more: What stands behind the code that renames it.
    """

    text: str
    nth: int | None = None
    is_turned: bool = False
    more: str = ""


def _renaming(tables: tuple[TreeTable, TreeTable], rows: tuple[int, int], is_turned: bool, more: str) -> str:
    """Python that renames a child of a dict in the first tree."""
    node = tables[0][int(tables[0].parent[rows[0]])].expression
    old, new = (table.key(row).keystr for table, row in zip(tables, rows, strict=True))
    taken = f"{node}.pop({old[1:-1]})"
    if is_turned:
        order = transposing(tables[0][rows[0]].shape or (), tables[1][rows[1]].shape or ())
        taken = transpose_code(taken, order) if order else ""
    return f"{node}{new} = {taken}{more}" if taken else ""


class _Hints:
    def __init__(self, one: Side, another: Side, found: Found, values: bool) -> None:
        self._sides, self._values = (one, another), values
        left, right = one.table, another.table
        self._left, self._right, self._aligned = left, right, found.aligned
        self._n_leaves = [np.append(0, np.cumsum(table.is_leaf)) for table in (left, right)]  # before each row
        self._known: dict[Any, int] = {}
        self._prints: tuple[dict[int, int], ...] = {}, {}  # of nodes, and what is below
        self._of_leaves: tuple[dict[int, int], ...] = {}, {}  # the fingerprints by the code of the facts
        self._siblings: dict[tuple[int, int], dict[int, list[int]]] = {}  # by side and parent: rows by fingerprint
        self._unmatched: list[Unmatched] = []
        self._matches: list[np.ndarray] = []  # of each row, its counterpart
        for side, (table, own, other) in enumerate(
            (
                (left, self._aligned.left, self._aligned.right),
                (right, self._aligned.right, self._aligned.left),
            )
        ):
            match = np.full(len(table), NONE)
            match[own[own != NONE]] = other[own != NONE]
            is_matched = match != NONE
            is_matched[self._rows_of(found, own)] = False
            rows = np.flatnonzero(~is_matched)
            self._unmatched.append(Unmatched(table, rows, self._prints_of(side, rows)))
            self._matches.append(match)
        self._named = [each.names() for each in self._unmatched]

    def _prints_of(self, side: int, rows: np.ndarray) -> np.ndarray:
        table = (self._left, self._right)[side]
        prints, is_leaf, codes = np.zeros(len(rows), np.int64), table.is_leaf[rows], table.fact_codes[rows]
        distinct, first, of = np.unique(codes[is_leaf], return_index=True, return_inverse=True)
        known = [self._print(side, row) for row in rows[is_leaf][first].tolist()]
        prints[is_leaf] = np.array(known, np.int64)[of.reshape(-1)] if len(distinct) else 0
        prints[~is_leaf] = [self._print(side, row) for row in rows[~is_leaf].tolist()]
        return prints

    def _print(self, side: int, row: int) -> int:
        """The fingerprint of a subtree."""
        known, of_leaves, table = self._prints[side], self._of_leaves[side], (self._left, self._right)[side]
        code = int(table.fact_codes[row])
        if code in of_leaves:
            return of_leaves[code]
        if row not in known:
            add_fingerprints(table, row, self._known, known)
            if table.facts[code].is_leaf:
                of_leaves[code] = known[row]
        return known[row]

    def _rows_of(self, found: Found, own: np.ndarray) -> np.ndarray:
        """The rows of one tree whose counterpart is another thing."""
        told = [at for at, each in zip(found.rows, found.differences, strict=True) if each.kind in STRUCTURAL]
        rows = own[told]
        return rows[rows != NONE]

    def of_both(self, at: int, kind: str) -> Hint:
        """Of two things in one place, of which one stands for the other."""
        mine, other = int(self._aligned.left[at]), int(self._aligned.right[at])
        if kind == "length":
            return Hint(self._inserted(mine, other))
        hint = stacked(self._sides, mine, other) or self._of_first_child(mine)
        return hint or Hint(self._elsewhere(0, mine, other) or self._elsewhere(1, other, mine))

    def of_alone(self, at: list[int]) -> dict[int, Hint]:
        """Of rows that one tree alone has, by aligned row: told once of all in the same situation."""
        hints = dict.fromkeys(at, Hint())
        for side, own in enumerate((self._aligned.left[at], self._aligned.right[at])):
            table, other = (self._left, self._right)[side], self._unmatched[1 - side]
            which = np.flatnonzero((own != NONE) & (table.parent[own] != NONE))
            rows, parents = own[which], table.parent[own[which]]
            above = self._matches[side][parents]
            alike = self._unmatched[side].situations(rows, above, other)
            _, first, of = np.unique(alike, return_index=True, return_inverse=True)
            told = [self._told(side, int(rows[i]), int(parents[i]), int(above[i])) for i in first.tolist()]
            of_each, places = of.reshape(-1).tolist(), [at[i] for i in which.tolist()]
            shared = [Hint(each.text) for each in told]
            hints.update(zip(places, map(shared.__getitem__, of_each), strict=True))
            if side == 0:
                self._add_renaming(hints, places, rows, above, [*map(told.__getitem__, of_each)])
        for i in np.flatnonzero(self._is_first_child(at)).tolist():
            stacked = self._of_first_child(int(self._aligned.left[at[i]]))
            hints[at[i]] = stacked or hints[at[i]]
        return hints

    def _add_renaming(
        self, hints: dict[int, Hint], at: list[int], rows: np.ndarray, above: np.ndarray, told: list[_Alone]
    ) -> None:
        """Add to the hints of rows that were renamed in a dict the code that does so."""
        nth = np.array([NONE if each.nth is None else each.nth for each in told], np.int64)
        renamed = np.flatnonzero(nth != NONE)
        new, tables = self._unmatched[1].nth_below(above[renamed], nth[renamed]), (self._left, self._right)
        pairs = zip(rows[renamed].tolist(), new.tolist(), strict=True)
        for i, parent, pair in zip(renamed.tolist(), self._left.parent[rows[renamed]].tolist(), pairs, strict=True):
            if type(self._sides[0].nodes[parent]) in MAPPINGS:
                text, _, is_turned, more = told[i]
                hints[at[i]] = Hint(text, partial(_renaming, tables, pair, is_turned, more))

    def _is_first_child(self, at: list[int]) -> np.ndarray:
        rows = self._aligned.left[at]
        return (rows > 0) & (self._left.parent[rows] == rows - 1)

    def _of_first_child(self, mine: int) -> Hint | None:
        """All children of a dict may be layers."""
        if mine <= 0 or self._left.parent[mine] != mine - 1:
            return None
        return stacked_dict(self._sides, mine - 1, int(self._matches[0][mine - 1]))

    def _elsewhere(self, side: int, row: int, counterpart: int) -> str:
        """Where the other tree has the same subtree without a counterpart."""
        if (self._left, self._right)[side].parent[row] < 0:
            return ""
        return self._place(side, row, self._print(side, row), counterpart)

    def _told(self, side: int, row: int, parent: int, above: int) -> _Alone:
        """What a row without a counterpart may be called in the other tree, or where it may stand there."""
        own = (self._left, self._right)[side]
        print_, n_leaves = self._print(side, row), self._count(side, row)
        if not n_leaves:
            return _Alone("")
        renamed = self._renamed(side, row, parent, print_)
        facts = own.facts[own.fact_codes[row]]
        reverse = self._known.get(((facts.shape[::-1], facts.dtype, ""),)) if facts.shape else None
        is_turned = renamed is None and reverse not in (None, print_)
        renamed = self._renamed(side, row, parent, reverse) if is_turned else renamed
        if renamed is None or self._has_moved(side, row) or self._has_moved(1 - side, renamed):
            return _Alone(self._place(side, row, print_, NONE))
        i, old, new = (
            self._unmatched[1 - side].below(above).index(renamed),
            self._key(side, row),
            self._key(1 - side, renamed),
        )
        turned = (", transposed", ", and transposed") if is_turned else ("", "")
        if n_leaves >= _LEAST_LEAVES or _are_alike(old.segment, new.segment):
            is_dict = type(self._sides[side].nodes[parent]) in MAPPINGS
            verb = "moved" if _are_indices(old, new) and not is_dict else "renamed"
            return _Alone(f"{verb} {'to' if side == 0 else 'from'} {new.keystr}{turned[1]}?", i, is_turned)
        there = "other" if side == 0 else "first"
        text = f"{_BY_SHAPE} {new.keystr} in the {there}{turned[0]}: renamed?"
        return _Alone(text, i, is_turned, "  # by its shape alone")

    def _count(self, side: int, row: int) -> int:
        before, end = self._n_leaves[side], (self._left, self._right)[side].end[row]
        return int(before[end] - before[row])

    def _place(self, side: int, row: int, print_: int, counterpart: int) -> str:
        """The text for the one other place that has a fingerprint; "" if there is none."""
        places = self._unmatched[1 - side].first_with(print_, 3)
        if len(places) > 2 or not self._is_special(side, row, print_):  # of many alike, none is asked for what it is
            return ""
        places = [each for each in places if each != counterpart]
        if len(places) != 1:
            return ""
        other, there = (self._right, "other") if side == 0 else (self._left, "first")
        return f"{_ELSEWHERE} {other[places[0]].keystr} in the {there}"

    def _is_special(self, side: int, row: int, print_: int) -> bool:
        """Whether its like elsewhere is no chance: several leaves, a node as no other one, or a leaf with its name."""
        if self._count(side, row) >= _LEAST_LEAVES or self._has_moved(side, row):
            return True
        is_node = not (self._left, self._right)[side].is_leaf[row]
        return is_node and all(len(each.first_with(print_, 2)) == 1 for each in self._unmatched)

    def _has_moved(self, side: int, row: int) -> bool:
        """Whether one of the same name stands elsewhere in the other tree, which then is no other name for it."""
        name = (self._print(side, row), self._key(side, row).segment)
        is_one = self._named[0][name] == self._named[1][name] == 1
        return is_one and words_of(name[1])[0] not in _OF_ALL and not name[1].isdecimal()

    def _renamed(self, side: int, row: int, parent: int, print_: Any) -> int | None:
        """The sibling in the other tree that has a fingerprint, and alone has it, or nearly the name of the row."""
        above = int(self._matches[side][parent])
        rivals = self._siblings_of(side, parent)[self._print(side, row)]
        siblings = self._siblings_of(1 - side, above).get(print_, [])
        if len(siblings) == len(rivals) == 1:
            return siblings[0]
        if max(len(siblings), len(rivals)) > _MOST_CHILDREN:
            return None
        own = self._key(side, row).segment
        near = [each for each in siblings if _end_alike(self._key(1 - side, each).segment, own)]
        if len(near) != 1:
            return None
        other = self._key(1 - side, near[0]).segment
        back = [each for each in rivals if _end_alike(self._key(side, each).segment, other)]
        return near[0] if len(back) == 1 else None

    def _siblings_of(self, side: int, parent: int) -> dict[int, list[int]]:
        """The unmatched rows below one, by fingerprint."""
        if (side, parent) not in self._siblings:
            of: dict[int, list[int]] = defaultdict(list)
            for row in self._unmatched[side].below(parent):
                of[self._print(side, row)].append(row)
            self._siblings[side, parent] = of
        return self._siblings[side, parent]

    def _inserted(self, mine: int, other: int) -> str:
        """Which elements of a list are new or gone, unless they are the last ones."""
        rows = self._left.children(mine), self._right.children(other)
        if max(map(len, rows)) > _MOST_CHILDREN:
            return ""
        codes = [
            [(self._print(i, row), self._values and first_values(side, row)) for row in of]
            for i, (side, of) in enumerate(zip(self._sides, rows, strict=True))
        ]
        n = min(map(len, codes))
        if codes[0][:n] == codes[1][:n]:
            return ""
        changes = [each for each in SequenceMatcher(None, *codes, autojunk=False).get_opcodes() if each[0] != "equal"]
        kinds = {kind for kind, *_ in changes}
        if len(changes) > _MOST_PLACES or kinds not in ({"insert"}, {"delete"}):
            return ""
        places = [(start, end) for _, *of_left, start, end in changes]
        if kinds == {"delete"}:
            places = [(start, end) for _, start, end, *of_right in changes]
        said = ", ".join(f"[{start}]" if end == start + 1 else f"[{start}:{end}]" for start, end in places)
        return f"{'inserted' if kinds == {'insert'} else 'removed'} at {said}?"

    def _key(self, side: int, row: int) -> Key:
        return (self._left, self._right)[side].key(row)


def _end_alike(one: str, other: str) -> bool:
    return one.endswith(other) or other.endswith(one)


def _are_alike(one: str, another: str) -> bool:
    """Whether the names, and not the shapes alone, say that one may be for the other: "kernel" for "weight"."""
    first, other = ("".join(word for word in words_of(name) if word not in _OF_ALL) for name in (one, another))
    if first and other:
        return _end_alike(first, other) or first.startswith(other) or other.startswith(first)
    return words_of(one)[-1] == words_of(another)[-1]


def _are_indices(*keys: Key) -> bool:
    return all(key.keystr == f"[{key.segment}]" for key in keys)
