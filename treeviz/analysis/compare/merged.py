"""Two trees as one table: what differs, row by row, and what is the same in between as one row with its counts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from treeviz.analysis.compare.aligned import NONE, Aligned, Side
from treeviz.analysis.compare.difference import MEANINGS, Difference, Differences
from treeviz.analysis.compare.tree_diff import Found
from treeviz.analysis.facts import fact_columns
from treeviz.analysis.sizes import size_columns
from treeviz.tree.column import Column
from treeviz.tree.facts import Facts, Note
from treeviz.tree.keys import Key
from treeviz.tree.numbers import count_text
from treeviz.tree.rollup import roll
from treeviz.tree.table import TreeTable

_SEVERAL = Key("…", "[…]", "*", ())  # of children that are the same


def merged_table(left: Side, right: Side, found: Found) -> TreeTable:
    """The rows that differ, with a note for each difference, and those above; what one tree alone has is whole.

    What is the same is counted in one row for each run of siblings. Linear in the rows of both trees.
    """
    aligned = found.aligned
    n = len(aligned.left)
    differs = np.zeros(n, bool)
    differs[found.rows] = True
    kept = roll(aligned.depth, aligned.parent, aligned.end, differs, "any")
    kept[0] = True
    kept |= (aligned.left == NONE) | (aligned.right == NONE)  # what one tree alone has is shown whole
    table = _Merging(left, right, found, kept).table()
    sizes = [column for column in size_columns(table) if column.name != "leaves"]  # those of what is shown mean nothing
    table = table.with_columns(*fact_columns(table), *sizes)
    return table.with_headline(*headline(found.differences, table))


def joined_table(first: Side, found: Sequence[Found]) -> TreeTable:
    """The rows of the first tree that differ from any of several others, with a column for each of these.

    What another tree alone has is told in the row of its parent.
    """
    rows, differences = [], Differences()
    for each in found:
        left = each.aligned.left
        own = [int(left[at]) if left[at] != NONE else int(left[each.aligned.parent[at]]) for at in each.rows]
        rows += own
        differences += each.differences
    every = np.arange(len(first.table))
    aligned = Aligned(every, every, first.table.depth, first.table.parent, first.table.end)
    return merged_table(first, first, Found(aligned, differences, rows, {}, {}))


def headline(differences: Sequence[Difference], table: TreeTable) -> tuple[str, ...]:
    """ "3 differences: 2 value, 1 shape", "145 leaves are the same"."""
    n_same = sum(table.facts[code].leaves for code in table.fact_codes.tolist() if table.facts[code].kind == "same")
    kinds = Counter(each.kind for each in differences)
    counts = ", ".join(
        f"{n:,} {kind}" for kind, n in sorted(kinds.items(), key=lambda item: [*MEANINGS].index(item[0]))
    )
    n = len(differences)
    what = f"{n:,} {'difference' if n == 1 else 'differences'}: {counts}" if n else "no difference"
    same = f"{count_text(n_same)} {'leaf is' if n_same == 1 else 'leaves are'} the same"
    return (what, same) if n_same else (what,)


class _Merging:
    """Makes the table: `kept` are the aligned rows that are shown."""

    def __init__(self, left: Side, right: Side, found: Found, kept: np.ndarray) -> None:
        self._left, self._right, self._found, self._kept = left.table, right.table, found, kept
        self._keys: dict[Key, int] = {Key("[…]", "[…]", "*", ()): 0}
        self._facts: dict[Facts, int] = {}
        self._rows: list[int] = []  # the aligned rows
        self._codes: list[tuple[int, int]] = []  # of their keys and facts
        self._trees = sorted({each.tree for each in found.differences})
        self._shown = np.full(len(kept), -1)  # the row of the table of each aligned row

    def table(self) -> TreeTable:
        aligned, kept = self._found.aligned, self._kept
        parents, ends = aligned.parent.tolist(), aligned.end.tolist()
        at = 0
        while at < len(parents):
            self._shown[at] = len(self._rows)
            self._rows.append(at)
            if kept[at]:
                self._codes.append((self._key(at), self._fact(self._own_facts(at))))
                at += 1
                continue
            siblings, after = [at], ends[at]
            while after < len(parents) and parents[after] == parents[at] and not kept[after]:
                siblings.append(after)
                after = ends[after]
            self._codes.append(self._same(siblings, after))
            at = after
        rows = np.array(self._rows)
        depth = aligned.depth[rows].astype(np.int32)
        parent = np.where(aligned.parent[rows] < 0, -1, self._shown[aligned.parent[rows]]).astype(np.int32)
        codes = np.array(self._codes, dtype=np.int32).reshape(-1, 2)
        table = TreeTable(
            name=self._left.name,
            depth=depth,
            parent=parent,
            end=_ends(depth),
            position=_positions(parent),
            key_codes=codes[:, 0],
            keys=tuple(self._keys),
            fact_codes=codes[:, 1],
            facts=tuple(self._facts),
            notes=self._notes(),
        )
        return table.with_columns(*self._columns())

    def _key(self, at: int) -> int:
        mine, other = int(self._found.aligned.left[at]), int(self._found.aligned.right[at])
        table, row = (self._right, other) if mine == NONE else (self._left, mine)
        key = table.key(row) if row else _SEVERAL
        return self._keys.setdefault(key, len(self._keys))

    def _fact(self, facts: Facts) -> int:
        return self._facts.setdefault(facts, len(self._facts))

    def _own_facts(self, at: int) -> Facts:
        mine, other = int(self._found.aligned.left[at]), int(self._found.aligned.right[at])
        table, row = (self._right, other) if mine == NONE else (self._left, mine)
        return table.facts[table.fact_codes[row]]._replace(static=())  # those that differ are told

    def _same(self, siblings: list[int], after: int) -> tuple[int, int]:
        """The codes of the key and the facts of siblings that are the same in both trees."""
        aligned = self._found.aligned
        inside = [self._left.facts[self._left.fact_codes[row]] for row in aligned.left[siblings[0] : after].tolist()]
        leaves, elements, n_bytes = (
            sum(part) for part in zip(*((f.leaves, f.elements, f.bytes) for f in inside), strict=True)
        )
        n = len(siblings)
        text = "the same" if n == 1 else f"{n:,} are the same"
        facts = Facts("same", text, False, leaves, elements, n_bytes)
        return (self._key(siblings[0]) if n == 1 else self._keys.setdefault(_SEVERAL, len(self._keys))), self._fact(
            facts
        )

    def _notes(self) -> dict[int, tuple[Note, ...]]:
        notes: dict[int, list[Note]] = defaultdict(list)
        for row, difference in zip(self._found.rows, self._found.differences, strict=True):
            text = difference.note
            if len(self._trees) > 1:
                text = f"tree {difference.tree}: {difference if difference.kind == 'extra' else text}"
            notes[int(self._shown[row])].append(Note("differs", text))
        return {row: tuple(each) for row, each in notes.items()}

    def _kinds(self, name: str, title: str, trees: list[int]) -> Column:
        kinds: list[dict[str, None]] = [{} for _ in self._rows]
        for row, difference in zip(self._found.rows, self._found.differences, strict=True):
            if difference.tree in trees:
                kinds[self._shown[row]][difference.kind] = None
        return Column(name, title, [", ".join(each) for each in kinds], help="What differs from the first tree")

    def _columns(self) -> list[Column]:
        """What differs, as words; and where values do, by how much."""
        n = len(self._rows)
        columns = [self._kinds("diff", "differs in", self._trees)]
        if len(self._trees) > 1:
            columns += [self._kinds(f"tree {tree}", f"tree {tree}", [tree]) for tree in self._trees]
        if not self._found.gaps:
            return columns
        delta, relative, count = np.full(n, np.nan), np.full(n, np.nan), np.full(n, np.nan)
        for at, gap in self._found.gaps.items():
            row = self._shown[at]
            count[row] = gap.n_outside + gap.n_nan
            if gap.n_outside:
                delta[row], relative[row] = gap.max_abs, gap.max_rel
        return [
            *columns,
            Column("delta", "max |Δ|", delta, format="number", rollup="max", help="The greatest |left - right|"),
            Column(
                "relative", "max |Δ| ÷ |x|", relative, format="number", rollup="max",
                help="The greatest |left - right| / |right|",
            ),
            Column("differ", "differ", count, format="count", rollup="sum", help="Elements outside of the tolerance"),
        ]  # fmt: skip


def _ends(depth: np.ndarray) -> np.ndarray:
    """int32[n]: where each subtree ends."""
    ends, open_rows = np.empty(len(depth), np.int32), []
    for row, level in enumerate([*depth.tolist(), -1]):
        while open_rows and open_rows[-1][1] >= level:
            ends[open_rows.pop()[0]] = row
        open_rows.append((row, level))
    return ends


def _positions(parent: np.ndarray) -> np.ndarray:
    """int32[n]: the index of each row among its siblings."""
    counts: Counter[int] = Counter()
    positions = []
    for each in parent.tolist():
        positions.append(counts[each])
        counts[each] += 1
    return np.array(positions, dtype=np.int32)
