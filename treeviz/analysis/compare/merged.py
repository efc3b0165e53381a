"""Two trees as one table: in brief, with a row that counts what is the same; and whole, with all rows of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from treeviz.analysis.compare.aligned import NONE, Aligned, Side
from treeviz.analysis.compare.difference import MEANINGS
from treeviz.analysis.compare.merged_columns import SAME, DifferenceNotes, difference_columns
from treeviz.analysis.compare.small_leaves import Gaps
from treeviz.analysis.compare.tree_diff import Found
from treeviz.analysis.facts import fact_columns
from treeviz.analysis.sizes import size_columns
from treeviz.tree.facts import Facts
from treeviz.tree.keys import Key
from treeviz.tree.numbers import count_text
from treeviz.tree.rollup import roll
from treeviz.tree.table import TreeTable, without_unused

MOST_ROWS = 10_000  # of both trees, up to which a page has those that are the same
_SEVERAL = Key("…", "[…]", "*", ())  # of children that are the same


class Merged(NamedTuple):
    """Two trees as one table.

    Attributes:
      whole: All rows of both trees; of more than `MOST_ROWS`, those of `brief`.
      brief: The rows that differ and those above; what is the same in between is one row for each run of siblings.
      rows: int[n]: the aligned row of each row of `whole`.
      n_same, n_unknown: The leaves that are the same, and those that were not compared further.
    """

    whole: TreeTable
    brief: TreeTable
    rows: np.ndarray
    n_same: int
    n_unknown: int


def merged(left: Side, right: Side, found: Found) -> Merged:
    """The tables of two trees, with a note for each difference. Linear in the rows of both trees."""
    aligned = found.aligned
    differs = np.zeros(len(aligned.left), bool)
    differs[found.rows] = True
    kept = roll(aligned.depth, aligned.parent, aligned.end, differs, "any")
    kept[0] = True
    kept |= (aligned.left == NONE) | (aligned.right == NONE)  # what one tree alone has is shown whole
    making = _Merging(left, right, found, kept)
    is_small = len(kept) <= MOST_ROWS
    brief, rows = making.table(is_whole=False)
    whole, rows = making.table(is_whole=True) if is_small else (making.annotated(brief, rows), rows)
    return Merged(whole, brief, rows, *making.counts())


def joined(first: Side, found: Sequence[Found]) -> Merged:
    """The same of the first tree and several others, with a column for each of these.

    What another tree alone has is told in the row of its parent.
    """
    rows, unknown = [], {}
    for each in found:
        left = each.aligned.left
        own = [int(left[at]) if left[at] != NONE else int(left[each.aligned.parent[at]]) for at in each.rows]
        rows += own
        unknown.update({int(left[at]): why for at, why in each.not_compared.items()})
    every = np.arange(len(first.table))
    aligned = Aligned(every, every, first.table.depth, first.table.parent, first.table.end)
    differences, kinds = ([*chain.from_iterable(of)] for of in zip(*[each[1:3] for each in found], strict=True))
    found_in_all = Found(aligned, differences, kinds, rows, Gaps({}, []), unknown, {}, n_trees=len(found))
    return merged(first, first, found_in_all)


def same_trees(found: Sequence[Found]) -> tuple[str, ...]:
    """ "tree 2 is the same": of several, some of which differ."""
    same = [f"{i}" for i, each in enumerate(found, 1) if not each.kinds and not each.not_compared]
    if not same or not any(each.kinds for each in found):
        return ()
    return (f"tree {same[0]} is the same" if len(same) == 1 else f"trees {', '.join(same)} are the same",)


def headline(kinds: Sequence[tuple[str, int]], n_same: int, n_unknown: int, *, values: bool) -> tuple[str, ...]:
    """ "3 differences: 2 value, 1 shape", "145 leaves are the same"; of what `kinds_of` gives."""
    counts = ", ".join(f"{n:,} {kind}" for kind, n in kinds)
    n = sum(n for _, n in kinds)
    what = f"{n:,} {'difference' if n == 1 else 'differences'}: {counts}" if n else "no difference"
    but = "" if values else " but for values, which were not compared"
    same = f"{count_text(n_same)} {'leaf is' if n_same == 1 else 'leaves are'} the same{but}"
    unknown = f"not compared further in {n_unknown:,} {'place' if n_unknown == 1 else 'places'}"
    return (what, *([same] if n_same else []), *([unknown] if n_unknown else []))


def kinds_of(found: Sequence[Found]) -> list[tuple[str, int]]:
    """The kinds of differences, in the order of `MEANINGS`, and how many there are of each."""
    counts = Counter(chain.from_iterable(each.kinds for each in found))
    return [(kind, counts[kind]) for kind in MEANINGS if kind in counts]


class _Merging:
    """Makes the tables: `kept` are the aligned rows that are not the same in both trees."""

    def __init__(self, left: Side, right: Side, found: Found, kept: np.ndarray) -> None:
        self._left, self._right, self._found, self._kept = left.table, right.table, found, kept
        aligned = found.aligned
        self._facts: dict[Facts, int] = {}
        self._keys: dict[Key, int] = {}
        self._fact_codes, self._key_codes = self._codes()
        counts = [(facts.leaves, facts.elements, facts.bytes) for facts in self._facts]
        is_huge = max(map(max, counts)) * len(kept) >= 2**63  # shapes need no memory
        numbers = np.array(counts, object if is_huge else np.int64)
        self._sums = np.zeros(
            (len(kept) + 1, 4), numbers.dtype
        )  # leaves, elements, bytes, not compared: of rows before
        self._unknown = np.zeros(len(kept), bool)
        self._unknown[[*found.not_compared]] = True
        np.cumsum(np.column_stack([numbers[self._fact_codes], self._unknown]), axis=0, out=self._sums[1:])
        self._is_leaf = np.array([each.is_leaf for each in self._facts])[self._fact_codes]
        self._is_top = np.append(True, kept[aligned.parent[1:]])  # of what is the same, the rows below what is not

    def _codes(self) -> tuple[np.ndarray, np.ndarray]:
        """The codes of the facts and the keys of each aligned row: those of the first tree, if it has the row."""
        aligned = self._found.aligned
        is_right = aligned.left == NONE
        row = np.where(is_right, aligned.right, aligned.left)
        facts, keys = np.empty(len(row), np.int64), np.empty(len(row), np.int64)
        for table, mine in ((self._left, ~is_right), (self._right, is_right)):
            rows = row[mine]
            without = (each._replace(static=()) if each.static else each for each in table.facts)
            own = [self._facts.setdefault(each, len(self._facts)) for each in without]
            facts[mine] = np.array(own, np.int64)[table.fact_codes[rows]]  # static fields that differ are told
            codes, positions = table.key_codes[rows].astype(np.int64), table.position[rows]
            # an index is a key of its own: other rows may stand before it
            of_index = {at: table.key(int(rows[i])) for at, i in _firsts(positions, codes == 0)}
            known = [self._keys.setdefault(each, len(self._keys)) for each in table.keys]
            indices = np.zeros(max(of_index, default=0) + 1, np.int64)
            for at, key in of_index.items():
                indices[at] = self._keys.setdefault(key, len(self._keys))
            keys[mine] = np.where(codes == 0, indices[np.where(codes == 0, positions, 0)], np.array(known)[codes])
        return facts, keys

    def counts(self) -> tuple[int, int]:
        """The leaves that are the same, and the places that were not compared further."""
        known = self._is_leaf & ~self._kept & ~self._unknown
        return int(np.count_nonzero(known)), len(self._found.not_compared)

    def table(self, *, is_whole: bool) -> tuple[TreeTable, np.ndarray]:
        """A table, and the aligned row of each of its rows."""
        aligned, kept = self._found.aligned, self._kept
        codes: dict[int, tuple[int, int]] = {}  # of the key and the facts of rows that stand for what is the same
        is_shown = np.ones(len(kept), bool)
        if not is_whole:
            codes, is_shown = self._runs(), kept.copy()
            is_shown[[*codes]] = True
        rows = np.flatnonzero(is_shown)
        shown = np.full(len(kept) + 1, -1)
        shown[rows] = np.arange(len(rows))
        key_codes, fact_codes = self._key_codes[rows], self._fact_codes[rows]
        for first, of_run in codes.items():
            key_codes[shown[first]], fact_codes[shown[first]] = of_run
        depth = aligned.depth[rows].astype(np.int32)
        parent = shown[aligned.parent[rows]].astype(np.int32)
        parent[0] = -1
        after = np.searchsorted(rows, aligned.end[rows]).astype(np.int32)
        table = TreeTable(
            name=self._left.name,
            depth=depth,
            parent=parent,
            end=after,
            position=_positions(parent),
            key_codes=np.append(0, key_codes[1:] + 1).astype(np.int32),
            keys=(Key("[…]", "[…]", "*", ()), *self._keys),
            fact_codes=fact_codes.astype(np.int32),
            facts=tuple(self._facts),
        )
        sizes = [column for column in size_columns(table) if is_whole or column.name != "leaves"]
        table = without_unused(table).with_columns(*sizes)
        return self.annotated(table.with_columns(*fact_columns(table)), rows, details=is_whole), rows

    def annotated(self, table: TreeTable, rows: np.ndarray, *, details: bool = True) -> TreeTable:
        """The table with notes and columns; with all details of each difference, for a page."""
        found, shown = self._found, np.full(len(self._kept), -1)
        shown[rows] = np.arange(len(rows))
        own = shown[found.rows].tolist()
        if "diff" not in table.columns or found.layers or found.n_trees > 1:
            words = np.where(self._kept[rows] | self._unknown[rows], "", SAME).astype(object)
            table = table.with_columns(*difference_columns(found, own, shown, words, details=details))
        return replace(table, notes=DifferenceNotes(found, own, details=details))

    def _runs(self) -> dict[int, tuple[int, int]]:
        """The first row of each run of siblings that are the same, with the codes of the key and facts that it gets."""
        tops = np.flatnonzero(~self._kept & self._is_top)
        ends, parents = self._found.aligned.end[tops], self._found.aligned.parent[tops]
        goes_on = (tops[1:] == ends[:-1]) & (parents[1:] == parents[:-1])
        starts = np.flatnonzero(np.append(True, ~goes_on)[: len(tops)])
        n = np.diff(np.append(starts, len(tops)))
        first, after = tops[starts], ends[starts + n - 1]
        runs = np.column_stack([n, after == first + 1, self._sums[after] - self._sums[first]])
        several = self._keys.setdefault(_SEVERAL, len(self._keys)) if (n > 1).any() else 0
        keys, known = np.where(n > 1, several, self._key_codes[first]).tolist(), dict[tuple, int]()
        codes = {}
        for at, key, run in zip(first.tolist(), keys, map(tuple, runs.tolist()), strict=True):
            if run not in known or run[-1]:  # what was not compared may say why
                known[run] = self._same(at, *run)
            codes[at] = key, known[run]
        return codes

    def _same(self, first: int, n: int, is_row: bool, leaves: int, elements: int, n_bytes: int, n_unknown: int) -> int:
        """The code of the facts of a run of `n` siblings."""
        text = "the same" if n == 1 else f"{n:,} are the same"
        if n_unknown and n == 1 and is_row:
            text = f"not compared: {self._found.not_compared[first]}"
        elif n_unknown:
            text += f", not compared further in {n_unknown:,} {'place' if n_unknown == 1 else 'places'}"
        facts = Facts(SAME, text, False, leaves, elements, n_bytes)
        return self._facts.setdefault(facts, len(self._facts))


def _firsts(values: np.ndarray, where: np.ndarray) -> list[tuple[int, int]]:
    """Each distinct value, and where it stands first."""
    at = np.flatnonzero(where)
    distinct, first = np.unique(values[at], return_index=True)
    return list(zip(distinct.tolist(), at[first].tolist(), strict=True))


def _positions(parent: np.ndarray) -> np.ndarray:
    """int32[n]: the index of each row among its siblings."""
    order = np.argsort(parent, kind="stable")
    among = np.empty(len(parent), np.int32)
    among[order] = np.arange(len(parent)) - np.searchsorted(parent[order], parent[order])
    return among
