"""Structure that was rearranged, not changed: renamed, moved, inserted, or layers against one stack of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from difflib import SequenceMatcher
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from treeviz.analysis.compare.aligned import NONE, Side
from treeviz.analysis.compare.difference import Difference, Differences, Hint, with_hint
from treeviz.analysis.compare.fingerprints import add_fingerprints, first_values, is_stack_of
from treeviz.analysis.compare.flat_names import flat_hints
from treeviz.analysis.compare.leaf_map import STRUCTURAL, mapped_hints, words_of
from treeviz.analysis.compare.nodes import MAPPINGS
from treeviz.analysis.compare.tree_diff import Found
from treeviz.tree.collector import collector_paused
from treeviz.tree.keys import Key
from treeviz.tree.table import TreeTable

_MOST_CHILDREN = 500  # that are searched for one that was inserted, or has nearly the same name
_MOST_PLACES = 3  # that a hint names
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
    told = {*STRUCTURAL, "length"}.intersection(each.kind for each in found.differences)
    if not told:
        return found
    hints, flat, differences = _Hints(left, right, found, values), flat_hints(left, right, found), Differences()
    pairs = [(at, each) for at, each in zip(found.rows, found.differences, strict=True) if each.kind in told]
    said = {at: flat.get(at) or hints.of(at, each) for at, each in pairs if _is_free(each)}
    if not any(hint.code for hint in flat.values()) and any(_is_open(hint) for hint in said.values()):
        mapped = mapped_hints(left, right, found)
        has_code = any(hint.code for hint in mapped.values())
        for at, hint in mapped.items():
            code = hint.code if has_code else said.get(at, hint).code
            before = said.get(at, hint).text
            said[at] = Hint(hint.text if before.startswith(_BY_SHAPE) else before or hint.text, code)
    for at, each in zip(found.rows, found.differences, strict=True):
        hint = said.get(at)
        differences.append(with_hint(each, hint) if hint and hint.text and _is_free(each) else each)
    return found._replace(differences=differences)


def _is_free(each: Difference) -> bool:
    """Whether a difference has no hint yet."""
    return each.kind in ("missing", "extra") or not each.hint  # these have none, which need not be written to know it


def _is_open(hint: Hint) -> bool:
    """Whether it is not told how a difference came about."""
    return not hint.text or hint.text.startswith((_ELSEWHERE, _BY_SHAPE))


class _Alone(NamedTuple):
    """What is told of a row without a counterpart.

    Attributes:
      renamed: Which of the unmatched rows below the other parent it may be.
      more: What stands behind the code that renames it.
    """

    text: str
    renamed: int | None = None
    is_turned: bool = False
    more: str = ""


def _renaming(table: TreeTable, parent: int, keys: tuple[Key, Key], *, is_turned: bool, more: str) -> str:
    node, (old, new) = table[parent].expression, (each.keystr for each in keys)
    taken = f"{node}.pop({old[1:-1]})"
    return f"{node}{new} = {f'jnp.transpose({taken})' if is_turned else taken}{more}"


class _Hints:
    def __init__(self, one: Side, another: Side, found: Found, values: bool) -> None:
        self._sides, self._values = (one, another), values
        left, right = one.table, another.table
        self._left, self._right, self._aligned = left, right, found.aligned
        self._places = found.aligned.left.tolist(), found.aligned.right.tolist()
        self._ends = left.end.tolist(), right.end.tolist()
        self._known: dict[Any, int] = {}
        self._prints: tuple[dict[int, int], ...] = {}, {}
        self._parents = left.parent.tolist(), right.parent.tolist()
        self._fact_codes = left.fact_codes.tolist(), right.fact_codes.tolist()
        self._key_codes = left.key_codes.tolist(), right.key_codes.tolist()
        self._positions: list[list[int]] = []
        self._of_leaves: tuple[dict[int, int], ...] = {}, {}  # the fingerprints by the code of the facts
        self._n_leaves = [np.append(0, np.cumsum(table.is_leaf)).tolist() for table in (left, right)]  # before each row
        self._unmatched: list[dict[int, list[int]]] = []  # rows by fingerprint
        self._named: list[Counter[tuple[int, str]]] = []  # how many have a fingerprint and a name
        self._below: list[dict[int, list[int]]] = []  # the unmatched rows by parent
        self._kinds: list[dict[int, Any]] = [{}, {}]  # what is unmatched below a parent, as far as hints tell it apart
        self._siblings: dict[tuple[int, int], dict[int, list[int]]] = {}  # by side and parent: rows by fingerprint
        self._alone: dict[Any, _Alone] = {}  # what is told of a row without a counterpart, by all that it depends on
        self._matches: list[list[int]] = []  # of each row, its counterpart
        for side, table, own, other in (
            (0, left, self._aligned.left, self._aligned.right),
            (1, right, self._aligned.right, self._aligned.left),
        ):
            match = np.full(len(table), NONE)
            match[own[own != NONE]] = other[own != NONE]
            is_matched = match != NONE
            is_matched[self._rows_of(found, own)] = False
            rows: dict[int, list[int]] = defaultdict(list)
            below: dict[int, list[int]] = defaultdict(list)
            self._positions.append(table.position.tolist())
            unmatched = np.flatnonzero(~is_matched).tolist()
            for row in unmatched:
                rows[self._print(side, row)].append(row)
                below[self._parents[side][row]].append(row)
            named: Counter[tuple[int, str]] = Counter()
            counts = Counter((self._prints[side][row], self._name(side, row)) for row in unmatched)
            for (print_, name), n in counts.items():
                named[print_, self._segment(side, name)] += n
            self._named.append(named)
            self._unmatched.append(rows)
            self._below.append(below)
            self._matches.append(match.tolist())

    def _print(self, side: int, row: int) -> int:
        """The fingerprint of a subtree."""
        known = self._prints[side]
        if row not in known:
            code = self._fact_codes[side][row]
            of_leaves = self._of_leaves[side]
            if code in of_leaves:
                known[row] = of_leaves[code]
            else:
                table = (self._left, self._right)[side]
                add_fingerprints(table, row, self._known, known)
                if table.facts[code].is_leaf:
                    of_leaves[code] = known[row]
        return known[row]

    def _name(self, side: int, row: int) -> int:
        """The code of a row's key: that of the table, or of an index one below zero."""
        return self._key_codes[side][row] or ~self._positions[side][row]

    def _segment(self, side: int, name: int) -> str:
        return (self._left, self._right)[side].keys[name].segment if name > 0 else str(~name)

    def _rows_of(self, found: Found, own: np.ndarray) -> np.ndarray:
        """The rows of one tree whose counterpart is another thing."""
        told = [at for at, each in zip(found.rows, found.differences, strict=True) if each.kind in STRUCTURAL]
        rows = own[told]
        return rows[rows != NONE]

    def of(self, at: int, difference: Difference) -> Hint:
        mine, other = self._places[0][at], self._places[1][at]
        if difference.kind == "length":
            return Hint(self._inserted(mine, other))
        if mine != NONE and other != NONE:
            stacked = self._stacked(mine, other)
            if stacked:
                return stacked
        if mine > 0 and self._parents[0][mine] == mine - 1:  # all children of a dict may be layers
            stacked = self._stacked_dict(mine - 1)
            if stacked:
                return stacked
        hint = self._elsewhere(0, mine, other) if mine != NONE else None
        return hint or (self._elsewhere(1, other, mine) if other != NONE else None) or Hint()

    def _elsewhere(self, side: int, row: int, counterpart: int) -> Hint | None:
        """Where the other tree has the same subtree without a counterpart."""
        print_, parent = self._print(side, row), self._parents[side][row]
        if parent < 0:
            return None
        if counterpart != NONE:
            place = self._place(side, row, print_, counterpart)
            return Hint(place) if place else None
        above = self._matches[side][parent]
        key = side, self._name(side, row), print_, self._kind_of(side, parent), self._kind_of(1 - side, above)
        if key not in self._alone:
            self._alone[key] = self._told(side, row, parent, above)
        text, i, turned, more = self._alone[key]
        if side or i is None or type(self._sides[0].nodes[parent]) not in MAPPINGS:
            return Hint(text) if text else None
        renamed = self._below[1][above][i]
        keys = self._key(0, row), self._key(1, renamed)
        return Hint(text, partial(_renaming, self._left, parent, keys, is_turned=turned, more=more))

    def _kind_of(self, side: int, parent: int) -> int:
        """A number for the fingerprints and keys of the unmatched rows below one: the same where these are."""
        kinds = self._kinds[side]
        if parent not in kinds:
            below, prints = self._below[side].get(parent, ()), self._prints[side]
            kind = tuple([(prints[row], self._name(side, row)) for row in below])
            kinds[parent] = self._known.setdefault(kind, len(self._known))
        return kinds[parent]

    def _told(self, side: int, row: int, parent: int, above: int) -> _Alone:
        """What a row without a counterpart may be called in the other tree, or where it may stand there."""
        own = (self._left, self._right)[side]
        print_, n_leaves = self._prints[side][row], self._count(side, row)
        if not n_leaves:
            return _Alone("")
        renamed = self._renamed(side, row, parent, print_)
        facts = own.facts[self._fact_codes[side][row]]
        reverse = self._known.get(((facts.shape[::-1], facts.dtype, ""),)) if facts.shape else None
        is_turned = renamed is None and reverse not in (None, print_)
        renamed = self._renamed(side, row, parent, reverse) if is_turned else renamed
        if renamed is None or self._has_moved(side, row) or self._has_moved(1 - side, renamed):
            return _Alone(self._place(side, row, print_, NONE))
        i, old, new = self._below[1 - side][above].index(renamed), self._key(side, row), self._key(1 - side, renamed)
        turned = (", transposed", ", and transposed") if is_turned else ("", "")
        if n_leaves >= _LEAST_LEAVES or _are_alike(old.segment, new.segment):
            return _Alone(f"renamed {'to' if side == 0 else 'from'} {new.keystr}{turned[1]}?", i, is_turned)
        there = "other" if side == 0 else "first"
        text = f"{_BY_SHAPE} {new.keystr} in the {there}{turned[0]}: renamed?"
        return _Alone(text, i, is_turned, "  # by its shape alone")

    def _count(self, side: int, row: int) -> int:
        return self._n_leaves[side][self._ends[side][row]] - self._n_leaves[side][row]

    def _place(self, side: int, row: int, print_: int, counterpart: int) -> str:
        """The text for the one other place that has a fingerprint; "" if there is none."""
        places = self._unmatched[1 - side].get(print_, [])
        if len(places) > 2 or self._count(side, row) < _LEAST_LEAVES:  # of many alike, none is asked for what it is
            return ""
        places = [each for each in places if each != counterpart]
        if len(places) != 1:
            return ""
        other, there = (self._right, "other") if side == 0 else (self._left, "first")
        return f"{_ELSEWHERE} {other[places[0]].keystr} in the {there}"

    def _has_moved(self, side: int, row: int) -> bool:
        """Whether one of the same name stands elsewhere in the other tree, which then is no other name for it."""
        name = (self._print(side, row), self._key(side, row).segment)
        is_one = self._named[0][name] == self._named[1][name] == 1
        return is_one and words_of(name[1])[0] not in _OF_ALL and not name[1].isdecimal()

    def _renamed(self, side: int, row: int, parent: int, print_: Any) -> int | None:
        """The sibling in the other tree that has a fingerprint, and alone has it, or nearly the name of the row."""
        above = self._match_of(side, parent)
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
            for row in self._below[side].get(parent, ()):
                of[self._prints[side][row]].append(row)
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

    def _stacked_dict(self, row: int) -> Hint | None:
        """Whether all children of a node are layers, and the other tree has one stack of them there."""
        other, layers = self._match_of(0, row), self._left.children(row)
        if other == NONE or not is_stack_of(self._right, other, self._left, layers):
            return None
        n, node = len(layers), self._left[row].expression
        names = [self._left.key(each).segment for each in layers]
        start = names[0].rstrip("0123456789")
        is_numbered = set(names) == {f"{start}{i}" for i in range(n)} and type(self._sides[0].nodes[row]) in MAPPINGS
        in_order = f"*({node}[{start!r} + str(i)] for i in range({n}))"
        code = f"jax.tree.map(lambda *xs: jnp.stack(xs), {in_order})" if is_numbered else ""
        return Hint(f"{n} layers in the first, and one stack of {n} such layers in the other", code)

    def _key(self, side: int, row: int) -> Key:
        table, code = (self._left, self._right)[side], self._key_codes[side][row]
        return table.keys[code] if code else table.key(row)

    def _match_of(self, side: int, row: int) -> int:
        return self._matches[side][row]

    def _stacked(self, mine: int, other: int) -> Hint | None:
        """Whether one of the two is a list of layers, and the other one stack of them."""
        for side, (row, table), (one, stack) in (
            ("first", (mine, self._left), (other, self._right)),
            ("other", (other, self._right), (mine, self._left)),
        ):
            layers = table.children(row)
            if len(layers) > 1 and is_stack_of(stack, one, table, layers):
                there = "other" if side == "first" else "first"
                n, node = len(layers), self._left[mine].expression
                code = f"[jax.tree.map(lambda x: x[i], {node}) for i in range({n})]"
                return Hint(
                    f"{n} layers in the {side}, and one stack of {n} such layers in the {there}, as made by "
                    "jax.tree.map(lambda *xs: jnp.stack(xs), *layers)",
                    f"jax.tree.map(lambda *xs: jnp.stack(xs), *{node})" if side == "first" else code,
                )
        return None


def _end_alike(one: str, other: str) -> bool:
    return one.endswith(other) or other.endswith(one)


def _are_alike(one: str, another: str) -> bool:
    """Whether the names, and not the shapes alone, say that one may be for the other: "kernel" for "weight"."""
    first, other = ("".join(word for word in words_of(name) if word not in _OF_ALL) for name in (one, another))
    if first and other:
        return _end_alike(first, other) or first.startswith(other) or other.startswith(first)
    return words_of(one)[-1] == words_of(another)[-1]
