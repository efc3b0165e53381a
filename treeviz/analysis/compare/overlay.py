"""A prefix laid over a tree: the spec of each leaf, where it comes from, and what does not fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from treeviz.analysis.compare.aligned import Side
from treeviz.analysis.compare.difference import MEANINGS, Difference, Differences
from treeviz.analysis.compare.map_mismatch import path_text
from treeviz.analysis.compare.nodes import Finding
from treeviz.analysis.compare.prefix import Aligned, Given
from treeviz.tree.column import Column
from treeviz.tree.facts import Facts, Note
from treeviz.tree.safe_repr import has_base
from treeviz.tree.table import TreeTable

_ARRAYS = ("array", "numpy", "scalar", "abstract", "tracer", "key", "ref", "float0", "deleted")
_PLAIN = (bool, int, str, type(None), jax.sharding.PartitionSpec, jax.sharding.Sharding)
_NO_SPEC = "no spec"
_BROKEN = "JAX cannot flatten this"
_MOST = 1_000  # leaves of which each is told that its spec does not fit
_MOST_KEYS = 100_000  # in their paths, for a tree may be thousands of levels deep


class Pairs(NamedTuple):
    """The leaves that get a spec.

    Attributes:
      rows: int[k]: their rows.
      of: int[k]: of each of them, the index in `distinct`.
      distinct: The distinct pairs of a spec and the facts of a leaf.
    """

    rows: np.ndarray
    of: np.ndarray
    distinct: list[tuple[Any, Facts]]

    def findings(self, table: TreeTable, of_pairs: Sequence[Finding | None]) -> list[tuple[int, Finding]]:
        """Those of the distinct pairs, with each of their rows; of the first 1,000, and how many more there are."""
        leaves = np.flatnonzero(np.array([finding is not None for finding in of_pairs], bool)[self.of])
        n = min(_MOST, 1 + int(np.searchsorted(np.cumsum(table.depth[self.rows[leaves]]), _MOST_KEYS)))
        told: list[Any] = [(int(self.rows[i]), of_pairs[int(self.of[i])]) for i in leaves[:n].tolist()]
        if len(leaves) > n:
            told.append((int(self.rows[leaves[n]]), ("spec", f"{len(leaves) - n:,} more leaves do not fit", "", "")))
        return told

    def column(self, table: TreeTable, values: list[float], name: str, title: str, **how: Any) -> Column:
        """A column of a number for each distinct pair; NaN is none."""
        levels = np.array([*values, np.nan])
        codes = np.full(len(table), len(values), np.int32)
        codes[self.rows] = self.of
        return Column(name, title, levels, codes, **how)


class Judged(NamedTuple):
    """What a use of specs has to say of the leaves and their specs.

    Attributes:
      findings: What does not fit, with its row.
      columns: Shown beside that of the specs.
      headline: Sums it up.
      notes: Worth knowing, by row.
    """

    findings: list[tuple[int, Finding]]
    columns: tuple[Column, ...]
    headline: tuple[str, ...]
    notes: dict[int, tuple[Note, ...]]


class Use(Protocol):
    """What specs are for: `vmap`, shardings, masks …"""

    name: str
    none_is_spec: bool

    def align(self, prefix: Any, side: Side, is_leaf: Callable[[Any], bool]) -> Aligned:
        """The subtree of each spec: `align_prefix`, and what JAX asks of the prefix as a whole."""
        ...

    def text(self, spec: Any) -> str: ...

    def wrong(self, spec: Any) -> Finding | None:
        """Why this is no spec."""
        ...

    def judge(self, table: TreeTable, pairs: Pairs) -> Judged:
        """What the specs mean for the leaves; those with a spec that is `wrong` are not among them."""
        ...


class Overlaid(NamedTuple):
    table: TreeTable
    shown: tuple[str, ...]
    differences: Differences


def overlaid(prefix: Any, side: Side, use: Use, is_leaf: Callable[[Any], bool] | None) -> Overlaid:
    """Lay a prefix over a tree; see `treeviz.overlay`. Linear in the rows."""

    def is_spec(node: Any) -> bool:
        return (use.none_is_spec and node is None) or bool(is_leaf and is_leaf(node))

    return _Overlay(side.table, use, use.align(prefix, side, is_spec)).run()


class _Overlay:
    def __init__(self, table: TreeTable, use: Use, aligned: Aligned) -> None:
        self._table, self._use, self._aligned = table, use, aligned
        self._found: list[tuple[int, Difference]] = []
        self._notes: dict[int, tuple[Note, ...]] = {}
        self._specs: list[Any] = []  # the distinct ones
        self._codes: dict[Hashable, int] = {}

    def run(self) -> Overlaid:
        table, given = self._table, self._aligned.given
        for row, path, finding in self._aligned.mismatches:
            self._add(row, path_text(path), finding)
        for row, own in table.notes.items():
            if table[row].kind in ("error", "cycle") or any(note.text.startswith(_BROKEN) for note in own):
                self._add(row, table[row].keystr, ("error", _BROKEN, "", ""))
        codes = [self._code(each.spec) for each in given]
        wrong = [self._use.wrong(spec) for spec in self._specs]
        owner = np.full(len(table), -1)  # of each row, the leaf of the prefix that it is under
        for i, each in enumerate(given):
            owner[each.row : table.end[each.row]] = i
            finding = wrong[codes[i]]
            if finding is not None:
                self._add(each.row, path_text(each.path), finding)
        is_right = np.array([finding is None for finding in wrong] + [False])
        spec_of_row = np.array([*codes, len(self._specs)])[owner]
        judged = self._use.judge(table, self._pairs(np.flatnonzero(table.is_leaf & is_right[spec_of_row]), spec_of_row))
        for row, finding in judged.findings:
            self._add(row, table[row].keystr, finding)
        self._tell_unused(given)
        notes: dict[int, tuple[Note, ...]] = {}
        for row, difference in self._found:
            text = str(difference) if difference.kind == "missing" else difference.note  # the row is that of its parent
            notes[row] = (*notes.get(row, ()), Note("differs", text))
        table = _apart(table, spec_of_row).with_columns(self._spec_column(given, codes, owner), *judged.columns)
        table = table.with_notes(notes).with_notes(self._notes).with_notes(judged.notes)
        self._found.sort(key=lambda each: each[0])
        differences = Differences(each for _, each in self._found)
        table = table.with_headline(_sum_of(differences), *judged.headline, *table.headline)
        return Overlaid(table, (self._use.name, *(column.name for column in judged.columns)), differences)

    def _add(self, row: int, path: str, finding: Finding) -> None:
        self._found.append((row, Difference(path, *finding, tree=1, names=("prefix", "tree"))))

    def _code(self, spec: Any) -> int:
        is_plain = has_base(type(spec), *_PLAIN)
        key = (id(type(spec)), spec if is_plain else id(spec))  # the prefix keeps them alive
        if key not in self._codes:
            self._codes[key] = len(self._specs)
            self._specs.append(spec)
        return self._codes[key]

    def _pairs(self, rows: np.ndarray, spec_of_row: np.ndarray) -> Pairs:
        n_facts = len(self._table.facts)
        keys = spec_of_row[rows].astype(np.int64) * n_facts + self._table.fact_codes[rows]
        distinct, of = np.unique(keys, return_inverse=True)
        pairs = [(self._specs[key // n_facts], self._table.facts[key % n_facts]) for key in distinct.tolist()]
        return Pairs(rows, of.reshape(-1), pairs)

    def _tell_unused(self, given: list[Given]) -> None:
        n_before = np.concatenate([[0], np.cumsum(self._table.is_leaf)])
        for each in given:
            if n_before[each.row] == n_before[self._table.end[each.row]]:
                text = f"the spec {self._use.text(each.spec)} is for no leaf"
                self._notes[each.row] = (Note("info", text),)

    def _spec_column(self, given: list[Given], codes: list[int], owner: np.ndarray) -> Column:
        """The spec of each row; below the row that it is given to, where it comes from."""
        texts = [self._use.text(spec) for spec in self._specs]
        levels = ["", _NO_SPEC, *texts]
        code_of_row = np.where(self._table.is_leaf, 1, 0)
        for i, each in enumerate(given):
            end = int(self._table.end[each.row])
            code_of_row[each.row] = 2 + codes[i]
            if end - each.row > 1:
                code_of_row[each.row + 1 : end] = len(levels)
                levels.append(f"{texts[codes[i]]} ← {path_text(each.path) or 'root'}")
        help = f"The {self._use.name} of each leaf, and ← where it is inherited from"
        return Column(self._use.name, self._use.name, levels, code_of_row.astype(np.int32), help=help)


def array_shape(facts: Facts) -> tuple[int, ...] | None:
    """The shape of an array or number; None for another leaf, which no axis can be mapped or split of."""
    if facts.kind not in _ARRAYS or facts.text == "not a JAX dtype":
        return None
    return () if facts.shape is None else facts.shape


def _apart(table: TreeTable, spec_of_row: np.ndarray) -> TreeTable:
    """The same rows, of which those of other specs have other codes: so views do not fold them into one."""
    n_facts = len(table.facts)
    distinct, codes = np.unique(spec_of_row * n_facts + table.fact_codes, return_inverse=True)
    facts = tuple([table.facts[key % n_facts] for key in distinct.tolist()])
    return replace(table, facts=facts, fact_codes=codes.reshape(-1).astype(np.int32))


def _sum_of(differences: Differences) -> str:
    """ "2 mismatches: 1 missing, 1 size"."""
    kinds = Counter(each.kind for each in differences)
    counts = ", ".join(f"{kinds[kind]:,} {kind}" for kind in MEANINGS if kinds[kind])
    n = len(differences)
    return f"{n:,} {'mismatch' if n == 1 else 'mismatches'}: {counts}" if n else "no mismatch"
