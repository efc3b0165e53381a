"""Compared trees as one table: the rows of both with notes and columns, and the drift of several checkpoints."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from treeviz.analysis.compare.aligned import NONE, Aligned, Side, align
from treeviz.analysis.compare.difference import MEANINGS, Difference
from treeviz.analysis.compare.tree_diff import Found
from treeviz.analysis.compare.values import Gaps, ValueDifference, gap_details, pieces_of_both
from treeviz.analysis.facts import fact_columns, size_columns
from treeviz.tree.facts import Column, Facts, Note
from treeviz.tree.keys import Key
from treeviz.tree.repeats import similar_facts
from treeviz.tree.runtime import computed_once
from treeviz.tree.series import Series
from treeviz.tree.table import TreeTable, roll, without_unused
from treeviz.tree.text import count_text, counted, is_any

# The notes and the columns of the rows of two trees

_MOST_LAYERS = 4  # in a line of text
_RANKS = {kind: rank for rank, kind in enumerate(MEANINGS)}
SAME = "same"  # in the column "diff", and the kind of rows that replace identical ones


class DifferenceNotes(Mapping[int, tuple[Note, ...]]):
    """The notes by table row: one for each difference, written at first use; with `details` those of a page."""

    def __init__(self, found: Found, rows: Sequence[int], *, details: bool) -> None:
        self._found, self._rows, self._details = found, rows, details
        self._has_several = found.n_trees > 1
        self._notes: dict[int, tuple[Note, ...]] = {}

    @computed_once
    def _by_row(self) -> dict[int, list[int]]:
        by_row: dict[int, list[int]] = {}
        for i, row in enumerate(self._rows):
            by_row.setdefault(row, []).append(i)
        return by_row

    def __len__(self) -> int:
        return len(self._by_row)

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_row)

    def __contains__(self, row: object) -> bool:
        return row in self._by_row

    def __getitem__(self, row: int) -> tuple[Note, ...]:
        if row not in self._notes:
            differences = sorted(self._by_row[row], key=lambda i: _RANKS[self._found.kinds[i]])
            self._notes[row] = tuple(map(self._note, differences))
        return self._notes[row]

    def _note(self, i: int) -> Note:
        difference = self._found.differences[i]
        text = difference.text if self._details else difference.note
        if self._has_several:
            text = f"tree {difference.tree}: {difference if difference.kind == 'extra' else text}"
        if not self._details:
            return Note("differs", text, brief="" if self._has_several else difference.brief)
        has_gap = difference.kind in ("value", "NaN") and not self._has_several
        gap = self._found.gaps.get(self._found.rows[i]) if has_gap else None
        details = gap_details(gap, difference.kind, difference.names) if gap is not None else ()
        details += (("to convert the first", difference.code),) if difference.code else ()
        return Note("differs", text, details=details, severity=difference.kind, sign=difference.kind)


def difference_columns(
    table: TreeTable, found: Found, rows: Sequence[int], shown: np.ndarray, words: np.ndarray, *, details: bool
) -> list[Column]:
    """The columns of differences: their kinds, both sides as text, and how far values differ.

    `rows` are the table rows of differences, `shown` those of aligned rows; `words` are the texts of rows without one.
    """
    n, differences = len(words), found.differences

    def texts(name: str, title: str, pairs: Iterable[tuple[int, str]], about: str) -> Column:
        return _lazy_column(name, title, lambda: _write(pairs, [""] * n, " · "), about)

    columns = [_kinds(found, rows, shown, words)]
    if found.n_trees > 1:
        about = "What differs from the first tree"
        text_of = (lambda it: str(it) if it.kind == "extra" else it.text) if details else lambda it: it.kind
        for tree in sorted({difference.tree for difference in differences}):
            own = [(row, text_of(it)) for row, it in zip(rows, differences, strict=True) if it.tree == tree]
            columns.append(texts(f"tree{tree}", f"tree {tree}", own, about))
    elif differences:
        for side, name in zip(("left", "right"), Difference.names, strict=True):
            columns.append(
                texts(side, name, zip(rows, map(attrgetter(side), differences), strict=True), "What stands there")
            )
    if found.layers:
        of_layers = []
        for row, layers in found.layers.items():
            most = len(layers) if details else _MOST_LAYERS
            more = f" … {len(layers) - most:,} more" if len(layers) > most else ""
            of_layers.append((int(shown[row]), ", ".join(map(str, layers[:most])) + more))
        columns.append(texts("layers", "layers", of_layers, "The layers that differ, of an array of all layers"))
    return [*columns, *_numbers(table, found, shown)] if found.gaps else columns


def _numbers(table: TreeTable, found: Found, shown: np.ndarray) -> list[Column]:
    first, second = Difference.names
    delta, relative, count = np.full((3, len(table)), np.nan)
    gaps = found.gaps.numbers()
    rows, is_outside = shown[gaps.rows], gaps.n_outside > 0
    count[rows] = gaps.n_outside + gaps.n_nan
    delta[rows[is_outside]], relative[rows[is_outside]] = gaps.max_abs[is_outside], gaps.max_rel[is_outside]
    is_nan = np.zeros(len(table), bool)
    is_nan[rows[gaps.n_nan > 0]] = True  # the greatest difference
    is_nan = table.roll(is_nan, "any") if is_nan.any() else None
    about, outside = (
        f"The greatest |{first} - {second}|",
        "Elements outside of the tolerance, in arrays of the same shape",
    )
    return [
        Column("delta", "max |Δ|", delta, None, "number", "max", about, is_nan),
        Column("relative", "max |Δ| ÷ |x|", relative, None, "number", "max", f"{about} ÷ |{second}|", is_nan),
        Column("differ", "differ", count, format="count", rollup="sum", help=outside),
    ]


def _kinds(found: Found, rows: Sequence[int], shown: np.ndarray, words: np.ndarray) -> Column:
    """The kinds of differences of each row; rows of only one tree inherit those of the parent."""

    def write() -> list[str]:
        aligned = found.aligned
        cells = _write(dict.fromkeys(zip(rows, found.kinds, strict=True)), words.tolist(), ", ")
        alone = np.flatnonzero((aligned.left == NONE) | (aligned.right == NONE))
        for row, parent in zip(shown[alone].tolist(), shown[aligned.parent[alone]].tolist(), strict=True):
            cells[row] = cells[row] or cells[parent]
        return cells

    return _lazy_column("diff", "diff", write, "What kind of difference, or none")


def _write(texts: Iterable[tuple[int, str]], cells: list[str], separator: str) -> list[str]:
    """The cells, with the texts of each row as one."""
    joined: dict[int, str] = {}
    for row, text in texts:
        cells[row] = joined[row] = separator.join(filter(None, (joined.get(row), text)))
    return cells


class _LazyColumn(Column):
    """A column of labels that are written at first use: there may be 100,000."""

    @computed_once
    def _coded(self) -> tuple[list[str], np.ndarray]:
        texts = self.__dict__["_write"]()
        codes = {text: code for code, text in enumerate(dict.fromkeys(texts))}
        return [*codes], np.fromiter(map(codes.__getitem__, texts), np.int32, len(texts))

    @computed_once
    def levels(self) -> list[str]:  # type: ignore[override]
        return self._coded[0]

    @computed_once
    def codes(self) -> np.ndarray:  # type: ignore[override]
        return self._coded[1]


def _lazy_column(name: str, title: str, write: Callable[[], list[str]], about: str) -> Column:
    column = Column(name, title, (), help=about)
    del column.__dict__["levels"], column.__dict__["codes"]
    column.__dict__["_write"] = write
    object.__setattr__(column, "__class__", _LazyColumn)
    return column


# How far the leaves of several checkpoints have moved from those of the first

_PLAIN = (bool, int, float, complex, str)  # compared by their text: NaN is NaN
_ABSENT = object()


class Drift(NamedTuple):
    """How far every row has moved, and the number of leaves of each fate."""

    series: tuple[Series, Series]  # the norm of the change in each other tree, relative to the first norm and absolute
    from_zero: dict[int, float]  # by row, the last norm of the change of leaves whose first norm is zero
    n_moved: int  # that differ in any tree
    n_same: int  # that were compared in all trees and never differ
    n_left_out: int  # that are missing, have another shape or cannot be read in some tree


def drift(first: Side, others: Iterable[Side], steps: Sequence[int]) -> Drift:
    """Compare several trees, of other steps, with the first, leaf by leaf in float64; reads them one at a time."""
    table = first.table
    changes, sizes = np.full((2, len(table), len(steps)), np.nan)
    nonfinite = np.zeros(changes.shape, bool)
    leaves, n_added = [row.number for row in table.leaves], 0
    known, moved = np.zeros((2, len(leaves), len(steps)), bool)
    for i, other in enumerate(others):
        aligned = align(first, other)
        right_of = dict(zip(aligned.left.tolist(), aligned.right.tolist(), strict=True))
        n_added = max(n_added, int(other.table.is_leaf[aligned.right[aligned.left == NONE]].sum()))
        for j, row in enumerate(leaves):
            a, b = first.nodes[row], _ABSENT if right_of.get(row, NONE) == NONE else other.nodes[right_of[row]]
            if table[row].shape is None:
                known[j, i] = is_any(type(a), _PLAIN) and b is not _ABSENT
                moved[j, i] = known[j, i] and (type(b) is not type(a) or repr(b) != repr(a))
                continue
            changes[row, i], sizes[row, i], nonfinite[row, i] = _sums_of_squares(a, b)
            known[j, i] = not math.isnan(changes[row, i])
            moved[j, i] = changes[row, i] > 0 or nonfinite[row, i]
    is_whole, moved = known.all(axis=1), moved.any(axis=1)
    change, size = (np.sqrt(table.roll(squares, "sum")) for squares in (changes, sizes))
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(size > 0, change / size, np.where(change == 0, 0.0, np.nan))
    steps_array = np.array(steps, np.int64)
    nonfinite = table.roll(nonfinite, "any")
    relative, change = (np.minimum(x, np.finfo(np.float32).max).astype(np.float32) for x in (relative, change))
    series = (
        Series("drift", "change ÷ first", steps_array, steps_array, relative, nonfinite, unit="ratio of L2 norms"),
        Series("change", "norm of the change", steps_array, steps_array, change, nonfinite, unit="L2 norm"),
    )
    last = {row: float(change[row, -1]) for row in leaves}
    from_zero = {row: norm for row, norm in last.items() if norm > 0 and math.isnan(relative[row, -1])}
    return Drift(series, from_zero, int(moved.sum()), int((is_whole & ~moved).sum()), int((~is_whole).sum()) + n_added)


def _sums_of_squares(left: Any, right: Any) -> tuple[float, float, bool]:
    """The sums of squares of the change and of the first array (NaN if unknown), and whether a value is non-finite."""
    if getattr(right, "shape", None) != left.shape:
        return math.nan, math.nan, False
    change = size = 0.0
    has_nonfinite = False
    try:
        for a, b in pieces_of_both(left, right):
            wide = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
            a, b = a.astype(wide), b.astype(wide)
            finite = np.isfinite(a) & np.isfinite(b)
            if not finite.all():
                has_nonfinite, a, b = True, a[finite], b[finite]
            change += float(np.vdot(b - a, b - a).real)
            size += float(np.vdot(a, a).real)
    except Exception:  # CannotCompare, or whatever a damaged file raises
        return math.nan, math.nan, False
    return change, size, has_nonfinite


# The tables of both trees

MOST_ROWS = 10_000  # of both trees: a page of more has no rows for identical leaves
_OF_VALUES = {"value", "NaN"}  # kinds
_SEVERAL = Key("…", "[…]", "*", ())  # the key of the one row for several identical siblings


class Merged(NamedTuple):
    """Two trees as one table."""

    whole: TreeTable  # all rows of both trees; the rows of `brief` if both have more than `MOST_ROWS`
    brief: TreeTable  # the rows that differ and those above; each run of identical siblings is one row
    rows: np.ndarray  # int[n]: the aligned row of each row of `whole`
    n_same: int  # identical leaves
    n_unknown: int  # places that were not compared further
    is_cut: bool  # whether `whole` has only the rows of `brief`


def merged(left: Side, right: Side, found: Found) -> Merged:
    """The tables of two trees, with a note for each difference. Takes time linear in the rows of both trees."""
    aligned = found.aligned
    differs = (aligned.left == NONE) | (aligned.right == NONE)  # subtrees of only one tree are shown whole
    differs[found.rows] = True
    kept = roll(aligned.depth, aligned.parent, aligned.end, differs, "any")
    kept[0] = True
    merging = _Merging(left, right, found, kept)
    is_small = len(kept) <= MOST_ROWS
    brief, rows = merging.table(is_whole=False)
    whole, rows = merging.table(is_whole=True) if is_small else (merging.annotated(brief, rows), rows)
    return Merged(whole, brief, rows, *merging.counts(), is_cut=not is_small)


def merged_with_all(first: Side, found: Sequence[Found]) -> Merged:
    """The tables of the first tree and others, with a column for each; what only another has is noted at the parent."""
    rows, unknown = [], {}
    for one in found:
        left = one.aligned.left
        own = (at if left[at] != NONE else one.aligned.parent[at] for at in one.rows)
        rows += [int(left[at]) for at in own]
        unknown.update({int(left[at]): why for at, why in one.not_compared.items()})
    rows_of_first = np.arange(len(first.table))
    aligned = Aligned(rows_of_first, rows_of_first, first.table.depth, first.table.parent, first.table.end)
    differences, kinds = ([*chain.from_iterable(lists)] for lists in zip(*[one[1:3] for one in found], strict=True))
    found_in_all = Found(aligned, differences, kinds, rows, Gaps({}, []), unknown, {}, n_trees=len(found))
    return merged(first, first, found_in_all)


def same_trees(found: Sequence[Found]) -> tuple[str, ...]:
    """ "tree 2 is the same", if others of several differ."""
    same = [f"{i}" for i, one in enumerate(found, 1) if not one.kinds and not one.not_compared]
    if not same or not any(one.kinds for one in found):
        return ()
    return (f"tree {same[0]} is the same" if len(same) == 1 else f"trees {', '.join(same)} are the same",)


def same_values(left: Side, found: Found) -> tuple[str, ...]:
    """ "same values under other names: 147 of 148 arrays; largest gap: ['h.3.w']" """
    rows, differ, sizes = {gap.row for gap in found.mapped}, set[int](), list[tuple[float, int]]()
    for row, _, gap, _ in found.mapped:
        differ |= {row} if gap is not None else set()
        sizes += [(math.inf if gap.n_nan else gap.max_abs, row)] if isinstance(gap, ValueDifference) else []
    n = len(rows) - len(differ)
    text = f"same values under other names: {n:,} of {counted(len(rows), 'array')}"
    text += f"; largest gap: {left.table[max(sizes)[1]].keystr}" if sizes else ""
    return (text,) if rows else ()


def headline(kinds: Sequence[tuple[str, int]], n_same: int, n_unknown: int, *, values: bool) -> tuple[str, ...]:
    """ "3 differences: 2 value, 1 shape", "145 leaves are the same"."""
    counts, n = ", ".join(f"{n:,} {kind}" for kind, n in kinds), sum(n for _, n in kinds)
    differences = f"{counted(n, 'difference')}: {counts}" if n else "no difference"
    exception = "" if values else " except values, which were not compared"
    same = f"{count_text(n_same)} {'leaf is' if n_same == 1 else 'leaves are'} the same{exception}"
    unknown = f"not compared further in {counted(n_unknown, 'place')}"
    return (differences, *[same] * bool(n_same), *[unknown] * bool(n_unknown))


def count_kinds(found: Sequence[Found]) -> list[tuple[str, int]]:
    """How many differences of each kind there are, in the order of `MEANINGS`."""
    counts = Counter(chain.from_iterable(one.kinds for one in found))
    return [(kind, counts[kind]) for kind in MEANINGS if kind in counts]


class _Merging:
    """Makes the tables: `kept` are the aligned rows that differ between both trees, or have such rows below."""

    def __init__(self, left: Side, right: Side, found: Found, kept: np.ndarray) -> None:
        self._left, self._right, self._found, self._kept = left.table, right.table, found, kept
        aligned = found.aligned
        self._facts: dict[Facts, int] = {}
        self._keys: dict[Key, int] = {}
        self._index_of: dict[int, int] = {}  # by the codes of index keys
        self._unknown = np.zeros(len(kept), bool)
        self._unknown[[*found.not_compared]] = True
        self._fact_codes, self._key_codes = self._codes()
        counts = [(facts.leaves, facts.elements, facts.bytes) for facts in self._facts]
        is_huge = max(map(max, counts)) * len(kept) >= 2**63  # shapes need no memory
        numbers = np.array(counts, object if is_huge else np.int64)
        # Totals of all rows before each: leaves, elements, bytes, places not compared
        self._sums = np.zeros((len(kept) + 1, 4), numbers.dtype)
        np.cumsum(np.column_stack([numbers[self._fact_codes], self._unknown]), axis=0, out=self._sums[1:])
        self._is_leaf = np.array([facts.is_leaf for facts in self._facts])[self._fact_codes]
        # A row that is not kept starts an identical subtree.
        self._is_top = np.append(True, kept[aligned.parent[1:]])

    def _codes(self) -> tuple[np.ndarray, np.ndarray]:
        """The codes of the facts and keys of each aligned row, taken from the first tree if it has the row."""
        aligned = self._found.aligned
        is_right = aligned.left == NONE
        row = np.where(is_right, aligned.right, aligned.left)
        facts, keys = np.empty(len(row), np.int64), np.empty(len(row), np.int64)
        for table, is_own in ((self._left, ~is_right), (self._right, is_right)):
            rows = row[is_own]
            # Notes report static fields that differ.
            without_static = (one._replace(static=()) if one.static else one for one in table.facts)
            new_codes = [self._facts.setdefault(one, len(self._facts)) for one in without_static]
            facts[is_own] = np.array(new_codes, np.int64)[table.fact_codes[rows]]
            codes, positions = table.key_codes[rows].astype(np.int64), table.position[rows]
            known = np.array([self._keys.setdefault(key, len(self._keys)) for key in table.keys])[codes]
            # An index becomes a key, since rows of the other tree may come before it.
            indexed = np.flatnonzero(codes == 0)
            distinct, first, index = np.unique(positions[indexed], return_index=True, return_inverse=True)
            firsts = [table.key(row) for row in rows[indexed[first]].tolist()]
            own = np.array([self._keys.setdefault(key, len(self._keys)) for key in firsts], np.int64)
            known[indexed] = own[index]
            self._index_of |= zip(own.tolist(), distinct.tolist(), strict=True)
            keys[is_own] = known
        all_facts, known, ways = [*self._facts], dict[tuple[int, Any], int](), self._ways()
        for at in np.flatnonzero(self._kept | self._unknown).tolist():
            code, way = int(facts[at]), ways.get(at) or (self._found.not_compared.get(at, ""),)
            if (code, way) not in known:
                known[code, way] = self._facts.setdefault(all_facts[code]._replace(differs=way), len(self._facts))
            facts[at] = known[code, way]
        return facts, keys

    def _ways(self) -> dict[int, tuple[Any, ...]]:
        """How each aligned row differs: the kinds of its differences, and both facts unless only values differ."""
        found, ways = self._found, dict[int, tuple[Any, ...]]()
        others: Iterable[tuple] = repeat((), len(found.kinds))
        if found.n_trees > 1:  # whose rows are not in the table
            others = ((one.tree, "" if one.kind in _OF_VALUES else one.right) for one in found.differences)
        for at, kind, other in zip(found.rows, found.kinds, others, strict=True):
            ways[at] = (*ways.get(at, ()), kind, *other)
        rows = np.array([at for at, way in ways.items() if not _OF_VALUES.issuperset(way)], np.int64)
        if not len(rows):
            return ways
        for side, side_rows in ((self._left, found.aligned.left[rows]), (self._right, found.aligned.right[rows])):
            known, similar = dict[Facts, int](), similar_facts(side.facts).tolist()  # also without their values
            similar_codes = np.array([known.setdefault(side.facts[code]._replace(text=""), code) for code in similar])
            codes = np.where(side_rows == NONE, NONE, similar_codes[side.fact_codes[side_rows]])
            for at, code in zip(rows.tolist(), codes.tolist(), strict=True):
                ways[at] += (code,)
        return ways

    def counts(self) -> tuple[int, int]:
        """The number of identical leaves, and of places that were not compared further."""
        is_same = self._is_leaf & ~self._kept & ~self._unknown
        return int(np.count_nonzero(is_same)), len(self._found.not_compared)

    def table(self, *, is_whole: bool) -> tuple[TreeTable, np.ndarray]:
        """A table, and the aligned row of each of its rows."""
        aligned, kept = self._found.aligned, self._kept
        codes: dict[int, tuple[int, int]] = {}  # of the key and facts of runs of identical siblings
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
        end = np.searchsorted(rows, aligned.end[rows]).astype(np.int32)
        order, positions = np.argsort(parent, kind="stable"), np.empty(len(parent), np.int32)
        positions[order] = np.arange(len(parent)) - np.searchsorted(parent[order], parent[order])
        # An index that is the position here as well needs no key.
        index_of = np.full(len(self._keys), -1)
        index_of[[*self._index_of]] = [*self._index_of.values()]
        is_index = index_of[key_codes] == positions
        is_index[0] = True
        table = TreeTable(
            name=self._left.name,
            depth=depth,
            parent=parent,
            end=end,
            position=positions,
            key_codes=np.where(is_index, 0, key_codes + 1).astype(np.int32),
            keys=(Key("[…]", "[…]", "*", ()), *self._keys),
            fact_codes=fact_codes.astype(np.int32),
            facts=tuple(self._facts),
        )
        sizes = [column for column in size_columns(table) if is_whole or column.name != "leaves"]
        table = without_unused(table).with_columns(*sizes)
        return self.annotated(table.with_columns(*fact_columns(table)), rows, details=is_whole), rows

    def annotated(self, table: TreeTable, rows: np.ndarray, *, details: bool = True) -> TreeTable:
        """The table with notes and columns; `details` for a page."""
        found, shown = self._found, np.full(len(self._kept), -1)
        shown[rows] = np.arange(len(rows))
        own = shown[found.rows].tolist()
        if "diff" not in table.columns or found.layers or found.n_trees > 1:
            words = np.where(self._kept[rows] | self._unknown[rows], "", SAME).astype(object)
            table = table.with_columns(*difference_columns(table, found, own, shown, words, details=details))
        return replace(table, notes=DifferenceNotes(found, own, details=details))

    def _runs(self) -> dict[int, tuple[int, int]]:
        """The first row of each run of identical siblings, with the codes of the key and facts that it gets."""
        tops = np.flatnonzero(~self._kept & self._is_top)
        ends, parents = self._found.aligned.end[tops], self._found.aligned.parent[tops]
        continues = (tops[1:] == ends[:-1]) & (parents[1:] == parents[:-1])
        starts = np.flatnonzero(np.append(True, ~continues)[: len(tops)])
        n = np.diff(np.append(starts, len(tops)))
        first, after = tops[starts], ends[starts + n - 1]
        totals_of_runs = np.column_stack([n, after == first + 1, self._sums[after] - self._sums[first]])
        several_code = self._keys.setdefault(_SEVERAL, len(self._keys)) if (n > 1).any() else 0
        keys, known = np.where(n > 1, several_code, self._key_codes[first]).tolist(), dict[tuple, int]()
        codes = {}
        for row, key, totals in zip(first.tolist(), keys, map(tuple, totals_of_runs.tolist()), strict=True):
            if totals not in known or totals[-1]:  # it may have a reason of its own for not being compared
                known[totals] = self._run_code(row, *totals)
            codes[row] = key, known[totals]
        return codes

    def _run_code(self, at: int, n: int, is_row: bool, leaves: int, elements: int, n_bytes: int, n_unknown: int) -> int:
        text = "the same" if n == 1 else f"{n:,} are the same"
        if n_unknown:
            reason = self._found.not_compared[at + int(np.argmax(self._unknown[at:]))]  # the first
            text += f", not compared further in {counted(n_unknown, 'place')}: {reason}"
            text = f"not compared: {reason}" if n == 1 and is_row else text
        facts = Facts(SAME, text, False, leaves, elements, n_bytes)
        return self._facts.setdefault(facts, len(self._facts))
