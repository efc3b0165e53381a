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
from treeviz.analysis.overlay.prefix import Aligned, Given
from treeviz.tree.collector import collector_paused
from treeviz.tree.column import INHERITED, Column
from treeviz.tree.facts import MASKED, Facts, Note, is_refused
from treeviz.tree.safe_repr import has_base
from treeviz.tree.table import TreeTable

_ARRAYS = ("array", "numpy", "stored", "scalar", "shape only", "tracer", "key", "ref", "float0", "deleted")
_PLAIN = (bool, int, str, type(None), jax.sharding.PartitionSpec, jax.sharding.Sharding)
_USUAL = set(map(id, (bool, int, str, type(None))))
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


@collector_paused()
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
        owner = _spread(table, given)
        for i in np.flatnonzero(np.array([finding is not None for finding in wrong], bool)[codes]).tolist():
            self._add(given[i].row, path_text(given[i].path), wrong[codes[i]] or ())
        is_right = np.array([finding is None for finding in wrong] + [False])
        spec_of_row = np.array([*codes, len(self._specs)])[owner]
        judged = self._use.judge(table, self._pairs(np.flatnonzero(table.is_leaf & is_right[spec_of_row]), spec_of_row))
        for row, finding in judged.findings:
            self._add(row, table[row].keystr, finding)
        self._tell_unused(given)
        notes: dict[int, tuple[Note, ...]] = {}
        for row, difference in self._found:
            text = str(difference) if difference.kind == "missing" else difference.note  # the row is that of its parent
            notes[row] = (*notes.get(row, ()), Note("warning", text, severity="error", sign=difference.kind))
        table = _apart(table, spec_of_row).with_columns(self._column(given, codes), *judged.columns)
        table = table.with_notes(notes).with_notes(self._notes).with_notes(judged.notes)
        self._found.sort(key=lambda each: each[0])
        differences = Differences(each for _, each in self._found)
        table = table.with_headline(_sum_of(differences), *judged.headline, *table.headline)
        return Overlaid(table, (self._use.name, *(column.name for column in judged.columns)), differences)

    def _add(self, row: int, path: str, finding: Finding) -> None:
        self._found.append((row, Difference(path, *finding, tree=1, names=("prefix", "tree"))))

    def _code(self, spec: Any) -> int:
        cls = id(type(spec))
        is_plain = cls in _USUAL or has_base(type(spec), *_PLAIN)
        key = (cls, spec if is_plain else id(spec))  # the prefix keeps them alive
        code = self._codes.setdefault(key, len(self._specs))
        if code == len(self._specs):
            self._specs.append(spec)
        return code

    def _pairs(self, rows: np.ndarray, spec_of_row: np.ndarray) -> Pairs:
        n_facts = len(self._table.facts)
        keys = spec_of_row[rows].astype(np.int64) * n_facts + self._table.fact_codes[rows]
        distinct, of = np.unique(keys, return_inverse=True)
        pairs = [(self._specs[key // n_facts], self._table.facts[key % n_facts]) for key in distinct.tolist()]
        return Pairs(rows, of.reshape(-1), pairs)

    def _tell_unused(self, given: list[Given]) -> None:
        n_before = np.concatenate([[0], np.cumsum(self._table.is_leaf)])
        rows = _rows(given)
        for i in np.flatnonzero(n_before[rows] == n_before[self._table.end[rows]]).tolist():
            text = f"the spec {self._use.text(given[i].spec)} is for no leaf"
            self._notes[given[i].row] = (Note("info", text),)

    def _column(self, given: list[Given], codes: list[int]) -> Column:
        texts, name = [self._use.text(spec) for spec in self._specs], self._use.name
        return spec_column(self._table, given, [texts[code] for code in codes], name, name, name)


def spec_column(
    table: TreeTable, given: Sequence[Given], texts: Sequence[str], name: str, title: str, what: str
) -> Column:
    """The spec of each row; below the row that it is given to, where it comes from.

    Args:
      texts: The specs of `given`.
      what: What they are: "in_axes".
    """
    levels: dict[str, int] = {"": 0, _NO_SPEC: 1}
    own = [levels.setdefault(spec, len(levels)) for spec in texts]
    owner, rows = _spread(table, given), _rows(given)
    below = np.zeros(len(given) + 1, np.int32)  # the last is of rows without a spec
    for i in np.flatnonzero(table.end[rows] - rows > 1).tolist():
        text = f"{texts[i]}{INHERITED}{path_text(given[i].path) or 'root'}"
        below[i] = levels.setdefault(text, len(levels))
    code_of_row = np.where(owner >= 0, below[owner], table.is_leaf).astype(np.int32)
    code_of_row[rows] = own
    help = f"The {what} of each leaf, and ← where it is inherited from"
    return Column(name, title, list(levels), code_of_row, help=help)


def _rows(given: Sequence[Given]) -> np.ndarray:
    return np.array([each.row for each in given], np.int64)


def _spread(table: TreeTable, given: Sequence[Given]) -> np.ndarray:
    """int[n_rows]: of each row, the spec that it is under; -1 for none."""
    rows = _rows(given)
    owner = np.full(len(table), -1)
    owner[rows] = np.arange(len(given))
    for i in np.flatnonzero(table.end[rows] - rows > 1).tolist():
        owner[rows[i] : table.end[rows[i]]] = i
    return owner


def array_shape(facts: Facts) -> tuple[int, ...] | None:
    """The shape of an array or number; None for another leaf, which no axis can be mapped or split of."""
    if facts.kind not in _ARRAYS or is_refused(facts):
        return None
    return () if facts.shape is None else facts.shape


def no_array(facts: Facts) -> str:
    """ "str, which is no array"."""
    if is_refused(facts):
        return f"{facts.type} of {facts.dtype}{' with a mask' if facts.text == MASKED else ''}, which JAX does not take"
    return f"{facts.type}, which is no array"


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
