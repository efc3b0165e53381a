"""Structure that was rearranged, not changed: renamed, moved, inserted, or layers against one stack of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from difflib import SequenceMatcher
from itertools import islice
from typing import Any

import jax
import numpy as np

from treeviz.analysis.compare.aligned import NONE, Side
from treeviz.analysis.compare.difference import Difference, Differences, Hint, with_hint
from treeviz.analysis.compare.flat_names import flat_hints
from treeviz.analysis.compare.leaf_map import STRUCTURAL, mapped_hints, words_of
from treeviz.analysis.compare.nodes import MAPPINGS
from treeviz.analysis.compare.tree_diff import Found
from treeviz.analysis.stats.host import host_view, lies_on_host
from treeviz.tree.collector import collector_paused
from treeviz.tree.keys import Key
from treeviz.tree.safe_repr import guarded
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
        self._n_leaves = [np.append(0, np.cumsum(table.is_leaf)).tolist() for table in (left, right)]  # before each row
        self._unmatched: list[dict[int, list[int]]] = []  # rows by fingerprint
        self._named: list[Counter[tuple[int, str]]] = []  # how many have a fingerprint and a name
        self._siblings: list[dict[tuple[int, int], list[int]]] = []  # the same by fingerprint and parent
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
            siblings: dict[tuple[int, int], list[int]] = defaultdict(list)
            named: Counter[tuple[int, str]] = Counter()
            for row in np.flatnonzero(~is_matched).tolist():
                print_ = self._print(side, row)
                rows[print_].append(row)
                siblings[print_, self._parents[side][row]].append(row)
                named[print_, table.key(row).segment] += 1
            self._named.append(named)
            self._unmatched.append(rows)
            self._siblings.append(siblings)
            self._matches.append(match.tolist())

    def _print(self, side: int, row: int) -> int:
        """The fingerprint of a subtree."""
        if row not in self._prints[side]:
            add_fingerprints((self._left, self._right)[side], row, self._known, self._prints[side])
        return self._prints[side][row]

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
        own, other = (self._left, self._right)[:: 1 if side == 0 else -1]
        n_leaves = self._n_leaves[side][self._ends[side][row]] - self._n_leaves[side][row]
        print_ = self._print(side, row)
        parent = self._parents[side][row]
        if not n_leaves or parent < 0:
            return None
        if counterpart == NONE:
            renamed = self._renamed(side, row, parent, print_)
            facts = own.facts[self._fact_codes[side][row]]
            reverse = self._known.get(((facts.shape[::-1], facts.dtype, ""),)) if facts.shape else None
            is_turned = renamed is None and reverse not in (None, print_)
            renamed = self._renamed(side, row, parent, reverse) if is_turned else renamed
            if renamed is not None and not self._has_moved(side, row) and not self._has_moved(1 - side, renamed):
                old, new, code = self._key(side, row), self._key(1 - side, renamed), ""
                to, is_told = new.keystr, n_leaves >= _LEAST_LEAVES or _are_alike(old.segment, new.segment)
                if side == 0:
                    code = self._renaming(row, renamed, is_turned=is_turned)
                    code += "  # by its shape alone" if code and not is_told else ""
                turned = (", transposed", ", and transposed") if is_turned else ("", "")
                if is_told:
                    return Hint(f"renamed {'to' if side == 0 else 'from'} {to}{turned[1]}?", code)
                return Hint(f"{_BY_SHAPE} {to} in the {'other' if side == 0 else 'first'}{turned[0]}: renamed?", code)
        places = self._unmatched[1 - side].get(print_, [])
        if len(places) > 2 or n_leaves < _LEAST_LEAVES:  # of many alike, none is asked whether it is the counterpart
            return None
        places = [each for each in places if each != counterpart]
        if len(places) != 1:
            return None
        there = "other" if side == 0 else "first"
        return Hint(f"{_ELSEWHERE} {other[places[0]].keystr} in the {there}")

    def _has_moved(self, side: int, row: int) -> bool:
        """Whether one of the same name stands elsewhere in the other tree, which then is no other name for it."""
        name = (self._print(side, row), self._key(side, row).segment)
        is_one = self._named[0][name] == self._named[1][name] == 1
        return is_one and words_of(name[1])[0] not in _OF_ALL and not name[1].isdecimal()

    def _renaming(self, row: int, renamed: int, *, is_turned: bool) -> str:
        parent = self._parents[0][row]
        if type(self._sides[0].nodes[parent]) not in MAPPINGS:
            return ""
        node, (old, new) = self._left[parent].expression, (self._key(0, row).keystr, self._key(1, renamed).keystr)
        taken = f"{node}.pop({old[1:-1]})"
        return f"{node}{new} = {f'jnp.transpose({taken})' if is_turned else taken}"

    def _renamed(self, side: int, row: int, parent: int, print_: Any) -> int | None:
        """The sibling in the other tree that has a fingerprint, and alone has it, or nearly the name of the row."""
        above = self._match_of(side, parent)
        rivals = self._siblings[side][self._print(side, row), parent]
        siblings = self._siblings[1 - side].get((print_, above), [])
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

    def _inserted(self, mine: int, other: int) -> str:
        """Which elements of a list are new or gone, unless they are the last ones."""
        rows = self._left.children(mine), self._right.children(other)
        if max(map(len, rows)) > _MOST_CHILDREN:
            return ""
        codes = [
            [(self._print(i, row), self._values and _first_values(side, row)) for row in of]
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


def _first_values(side: Side, row: int) -> tuple[Any, ...]:
    """The first values of the first leaves of a subtree, as far as they are quickly read."""

    def of(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and lies_on_host(leaf) and len(leaf.sharding.device_set) == 1:
            leaf = host_view(leaf)
        return (
            leaf.flat[:8].tobytes() if type(leaf) is np.ndarray else leaf if type(leaf) in (int, float, str) else None
        )

    rows = islice(filter(side.table.is_leaf.__getitem__, range(row, int(side.table.end[row]))), 16)
    return tuple(guarded(lambda leaf=side.nodes[each]: of(leaf), lambda _: None) for each in rows)


def is_stack_of(stack: TreeTable, row: int, table: TreeTable, layers: list[int]) -> bool:
    """Whether a subtree has the structure of each layer, with their number as the first axis of every array."""
    n = len(layers)
    if n < 2:
        return False
    size = int(table.end[layers[0]]) - layers[0]
    if int(stack.end[row]) - row != size or any(int(table.end[each]) - each != size for each in layers):
        return False
    for i in range(size):
        facts = stack.facts[stack.fact_codes[row + i]]
        key = stack.key(row + i).segment if i else ""
        for each in layers:
            one = table.facts[table.fact_codes[each + i]]
            if (i and table.key(each + i).segment != key) or one.is_leaf != facts.is_leaf:
                return False
            if one.is_leaf and (one.shape is None or facts.shape != (n, *one.shape) or one.dtype != facts.dtype):
                return False
    return bool(stack.is_leaf[row : row + size].any())


def add_fingerprints(table: TreeTable, row: int, known: dict[Any, int], codes: dict[int, int]) -> None:
    """Add a code of each row of a subtree, its own key aside: equal for equal types, keys, shapes and dtypes.

    Args:
      known: The codes of all tables.
      codes: Those of this table, by row.
    """
    for at in range(int(table.end[row]) - 1, row - 1, -1):
        f = table.facts[table.fact_codes[at]]
        own = ((f.shape, f.dtype, "" if f.shape else f.type),) if f.is_leaf else (f.type,)
        below = [(table.key(child).segment, codes[child]) for child in table.children(at)]
        codes[at] = known.setdefault((*own, *below), len(known))
