"""Two trees as one table: in brief, with a row that counts what is the same; and whole, with all rows of both."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from treeviz.analysis.compare.aligned import NONE, Aligned, Side, align
from treeviz.analysis.compare.difference import MEANINGS, Difference
from treeviz.analysis.compare.tree_diff import Found
from treeviz.analysis.compare.values import CannotCompare, Gaps, gap_details, pieces_of_both
from treeviz.analysis.facts import fact_columns, size_columns
from treeviz.tree.facts import Column, Facts, Note
from treeviz.tree.keys import Key
from treeviz.tree.runtime import computed_once
from treeviz.tree.series import Series
from treeviz.tree.table import TreeTable, roll, without_unused
from treeviz.tree.text import count_text

# What is said in each row of two trees in one table: notes, and columns of words and numbers.

_MOST_LAYERS = 4  # in a line of text
SAME = "same"  # in the column "diff", and the kind of rows that stand for others


class DifferenceNotes(Mapping[int, tuple[Note, ...]]):
    """A note for each difference, by row, written when it is asked for.

    Args:
      rows: The row of the table of each difference.
      details: All that is known of values, for a page, whose badge is the kind.
    """

    def __init__(self, found: Found, rows: Sequence[int], *, details: bool) -> None:
        self._found, self._details = found, details
        self._several, self._rows = found.n_trees > 1, rows
        self._written: dict[int, tuple[Note, ...]] = {}

    @computed_once
    def _of(self) -> dict[int, list[int]]:
        """The differences of each row."""
        of: dict[int, list[int]] = {}
        for i, row in enumerate(self._rows):
            of.setdefault(row, []).append(i)
        return of

    def __len__(self) -> int:
        return len({*self._rows})

    def __iter__(self) -> Iterator[int]:
        return iter(dict.fromkeys(self._rows))

    def __contains__(self, row: object) -> bool:
        return row in self._of

    def __getitem__(self, row: int) -> tuple[Note, ...]:
        if row not in self._written:
            self._written[row] = tuple(map(self._note, self._of[row]))
        return self._written[row]

    def _note(self, i: int) -> Note:
        difference = self._found.differences[i]
        text = difference.text if self._details else difference.note
        if self._several:
            text = f"tree {difference.tree}: {difference if difference.kind == 'extra' else text}"
        if not self._details:
            return Note("differs", text, brief="" if self._several else difference.brief)
        has_gap = difference.kind in ("value", "NaN") and not self._several
        gap = self._found.gaps.get(self._found.rows[i]) if has_gap else None
        more = gap_details(gap, difference.kind, difference.names) if gap is not None else ()
        more = (*more, ("to convert the first", difference.code)) if difference.code else more
        return Note("differs", text, details=more, severity=difference.kind, sign=difference.kind)


def difference_columns(
    found: Found, rows: Sequence[int], shown: np.ndarray, words: np.ndarray, *, details: bool
) -> list[Column]:
    """What differs, as words; what stands on both sides; and where values differ, by how much.

    Args:
      rows: The row of the table of each difference.
      shown: int[n]: the row of the table of each aligned row.
      words: What stands in a row without a difference: "same", or "".
      details: All that is known of each of several trees, and not the kinds alone.
    """
    n, differences = len(words), found.differences
    columns = [_kinds(found, rows, shown, words)]
    if found.n_trees > 1:
        about = "What differs from the first tree"
        of_tree = (lambda each: str(each) if each.kind == "extra" else each.text) if details else lambda each: each.kind
        for tree in sorted({each.tree for each in differences}):
            of = [(row, of_tree(each)) for row, each in zip(rows, differences, strict=True) if each.tree == tree]
            columns.append(_texts(f"tree{tree}", f"tree {tree}", of, n, about))
    elif differences:
        for side, name in zip(("left", "right"), Difference.names, strict=True):
            of = zip(rows, map(attrgetter(side), differences), strict=True)
            columns.append(_texts(side, name, of, n, "What stands there"))
    if found.layers:
        of = ((int(shown[at]), _layers_text(layers, details)) for at, layers in found.layers.items())
        columns.append(_texts("layers", "layers", of, n, "The layers that differ, of an array of all layers"))
    return [*columns, *_numbers(found, shown, n)] if found.gaps else columns


def _layers_text(layers: Sequence[int], details: bool) -> str:
    cut = layers if details or len(layers) <= _MOST_LAYERS else layers[:_MOST_LAYERS]
    return ", ".join(map(str, cut)) + (f" … {len(layers) - len(cut):,} more" if len(cut) < len(layers) else "")


def _numbers(found: Found, shown: np.ndarray, n: int) -> list[Column]:
    first, of = Difference.names
    delta, relative, count = np.full(n, np.nan), np.full(n, np.nan), np.full(n, np.nan)
    gaps = found.gaps.numbers()
    rows, is_outside = shown[gaps.rows], gaps.n_outside > 0
    count[rows] = gaps.n_outside + gaps.n_nan
    delta[rows[is_outside]], relative[rows[is_outside]] = gaps.max_abs[is_outside], gaps.max_rel[is_outside]
    return [
        Column("delta", "max |Δ|", delta, format="number", rollup="max", help=f"The greatest |{first} - {of}|"),
        Column(
            "relative", "max |Δ| ÷ |x|", relative, format="number", rollup="max",
            help=f"The greatest |{first} - {of}| ÷ |{of}|",
        ),
        Column("differ", "differ", count, format="count", rollup="sum", help="Elements outside of the tolerance"),
    ]  # fmt: skip


def _kinds(found: Found, rows: Sequence[int], shown: np.ndarray, words: np.ndarray) -> Column:
    """The kinds of differences of each row; of what one tree alone has, those above it."""

    def write() -> list[str]:
        texts, aligned = words.tolist(), found.aligned
        kinds = dict.fromkeys(zip(rows, found.kinds, strict=True))
        for row, text in _joined(kinds, ", ").items():
            texts[row] = text
        alone = np.flatnonzero((aligned.left == NONE) | (aligned.right == NONE))
        for row, above in zip(shown[alone].tolist(), shown[aligned.parent[alone]].tolist(), strict=True):
            texts[row] = texts[row] or texts[above]
        return texts

    return _label("diff", "diff", write, "What kind of difference, or none")


def _texts(name: str, title: str, texts: Iterable[tuple[int, str]], n: int, about: str) -> Column:
    def write() -> list[str]:
        every = [""] * n
        for row, text in _joined(texts, " · ").items():
            every[row] = text
        return every

    return _label(name, title, write, about)


def _joined(texts: Iterable[tuple[int, str]], by: str) -> dict[int, str]:
    """The texts of each row as one."""
    joined: dict[int, str] = {}
    for row, text in texts:
        before = joined.get(row)
        joined[row] = f"{before}{by}{text}" if before and text else before or text
    return joined


class _Late(Column):
    """A column of labels that are written when they are asked for: there may be 100,000."""

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


def _label(name: str, title: str, write: Callable[[], list[str]], about: str) -> Column:
    column = Column(name, title, (), help=about)
    del column.__dict__["levels"], column.__dict__["codes"]
    column.__dict__["_write"] = write
    object.__setattr__(column, "__class__", _Late)
    return column


# How far the leaves of several checkpoints have moved from the first of them.

_PLAIN = (bool, int, float, complex, str)  # compared by their text: NaN is NaN
_ABSENT = object()


class Drift(NamedTuple):
    """How far every row has moved.

    Attributes:
      series: The norm of the change relative to the norm in the first tree, and the norm of the change, in each of the
        other trees. A row whose first norm is zero has no relative one.
      from_zero: How far the leaves have moved at last, as a norm, whose first norm is zero, by row.
      n_moved: The number of leaves that differ in any of them.
      n_same: The number of leaves that were compared in all of them and never differ.
      n_left_out: The number of leaves that are missing, of another shape or not to be read in one of them.
    """

    series: tuple[Series, Series]
    from_zero: dict[int, float]
    n_moved: int
    n_same: int
    n_left_out: int


def drift(first: Side, others: Iterable[Side], steps: Sequence[int]) -> Drift:
    """Compare several trees with the first, leaf by leaf in float64; one of them is read at a time.

    Args:
      others: The other trees.
      steps: The step of each of them.
    """
    table = first.table
    shape = len(table), len(steps)
    changes, sizes = np.full(shape, np.nan), np.full(shape, np.nan)
    bad = np.zeros(shape, bool)
    leaves, n_more = [row.number for row in table.leaves], 0
    known, moved = np.zeros((2, len(leaves), len(steps)), bool)
    for i, other in enumerate(others):
        aligned = align(first, other)
        at = dict(zip(aligned.left.tolist(), aligned.right.tolist(), strict=True))
        n_more = max(n_more, int(other.table.is_leaf[aligned.right[aligned.left == NONE]].sum()))
        for n, row in enumerate(leaves):
            mine, theirs = first.nodes[row], _ABSENT if at.get(row, NONE) == NONE else other.nodes[at[row]]
            if table[row].shape is None:
                known[n, i] = type(mine) in _PLAIN and theirs is not _ABSENT
                moved[n, i] = known[n, i] and (type(theirs) is not type(mine) or repr(theirs) != repr(mine))
                continue
            changes[row, i], sizes[row, i], bad[row, i] = _squares(mine, theirs)
            known[n, i], moved[n, i] = not math.isnan(changes[row, i]), changes[row, i] > 0 or bad[row, i]
    is_whole, moved = known.all(axis=1), moved.any(axis=1)
    change, size = (np.sqrt(_summed(table, squares)) for squares in (changes, sizes))
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(size > 0, change / size, np.where(change == 0, 0.0, np.nan))
    at = np.array(steps, np.int64)
    bad = table.roll(bad, "any")
    relative, change = (np.minimum(each, np.finfo(np.float32).max).astype(np.float32) for each in (relative, change))
    series = (
        Series("drift", "change ÷ first", at, at, relative, bad, unit="ratio of L2 norms"),
        Series("change", "norm of the change", at, at, change, bad, unit="L2 norm"),
    )
    at_last = {row: float(change[row, -1]) for row in leaves}
    from_zero = {row: norm for row, norm in at_last.items() if norm > 0 and math.isnan(relative[row, -1])}
    return Drift(series, from_zero, int(moved.sum()), int((is_whole & ~moved).sum()), int((~is_whole).sum()) + n_more)


def _squares(mine: Any, theirs: Any) -> tuple[float, float, bool]:
    """The sums of squares of the change and of the first array, and whether a value is not finite; NaN if unknown."""
    if getattr(theirs, "shape", None) != mine.shape:
        return math.nan, math.nan, False
    change = size = 0.0
    is_bad = False
    try:
        for a, b in pieces_of_both(mine, theirs):
            wide = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
            a, b = a.astype(wide), b.astype(wide)
            finite = np.isfinite(a) & np.isfinite(b)
            if not finite.all():
                is_bad, a, b = True, a[finite], b[finite]
            change += float(np.vdot(b - a, b - a).real)
            size += float(np.vdot(a, a).real)
    except CannotCompare:
        return math.nan, math.nan, False
    return change, size, is_bad


def _summed(table: Any, squares: np.ndarray) -> np.ndarray:
    """The sums over subtrees; NaN where nothing is known."""
    sums = table.roll(np.where(np.isnan(squares), 0.0, squares), "sum")
    return np.where(table.roll(~np.isnan(squares), "any"), sums, np.nan)


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
