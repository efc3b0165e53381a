"""Every difference between two trees: structure, static data, shapes, dtypes, placement, values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import numpy as np

from treeviz.analysis.compare.aligned import NONE, Aligned, Side, align, is_builtin, is_comparable, same_facts
from treeviz.analysis.compare.difference import Difference, Differences
from treeviz.analysis.compare.elements import Gap, SmallPairs
from treeviz.analysis.compare.in_files import compare_stored
from treeviz.analysis.compare.leaf_facts import REVERSED, compare_facts, shardings_are_equivalent
from treeviz.analysis.compare.magnitudes import Bars, magnitudes
from treeviz.analysis.compare.nodes import (
    MAPPINGS,
    Finding,
    compare_classes,
    compare_factories,
    compare_static,
    open_registered,
)
from treeviz.analysis.compare.values import (
    CannotCompare,
    are_small,
    compare_arrays,
    gap_texts,
    is_transpose,
    small_view,
)
from treeviz.tree.facts import Facts
from treeviz.tree.safe_repr import error_text, guarded, has_base, value_text
from treeviz.tree.stored import Stored
from treeviz.tree.table import TreeTable

_BUILTIN = (*MAPPINGS, list, tuple, type(None))
_UNKNOWN = ("abstract", "tracer", "deleted", "ref", "placeholder", "float0", "tensor")  # kinds without values to read
_NUMBERS = frozenset(map(id, (bool, int, float, complex)))  # by id: a metaclass may override ==


class Found(NamedTuple):
    """What differs.

    Attributes:
      aligned: The rows of both trees, side by side.
      differences: In the order of the rows.
      rows: For each difference its aligned row.
      gaps: The differences of values, by aligned row.
      not_compared: Why the values of a leaf were not compared, by aligned row.
      bars: The magnitudes of both sides where values differ, by aligned row; see `magnitudes`.
      layers: Of arrays of all layers, the layers that differ, by aligned row.
    """

    aligned: Aligned
    differences: Differences
    rows: list[int]
    gaps: dict[int, Gap]
    not_compared: dict[int, str]
    bars: dict[int, Bars]
    layers: Mapping[int, Sequence[int]] = {}


def find_differences(
    left: Side,
    right: Side,
    *,
    values: bool = True,
    rtol: float = 0.0,
    atol: float = 0.0,
    tree: int = 1,
    bars: bool = False,
) -> Found:
    """Compare two trees that were walked; see `treeviz.diff`."""
    return _Differ(left, right, values, rtol, atol, tree).run(bars)


class _Differ:
    def __init__(self, left: Side, right: Side, values: bool, rtol: float, atol: float, tree: int) -> None:
        self._left, self._right, self._tree = left, right, tree
        self._values, self._rtol, self._atol = values, rtol, atol
        self._found: list[tuple[int, Finding]] = []
        self._gaps: dict[int, Gap] = {}
        self._not_compared: dict[int, str] = {}
        self._pairs: dict[int, tuple[Any, Any]] = {}  # arrays whose values differ
        self._known: dict[tuple[int, int], list[Finding]] = {}  # by the codes of the facts
        self._met: dict[tuple[int, int], Gap | str | None] = {}  # by the ids of two leaves of the trees
        self._small = SmallPairs(rtol, atol)
        self._are_small = are_small(left.table), are_small(right.table)
        self._codes = left.table.fact_codes.tolist(), right.table.fact_codes.tolist()

    def run(self, bars: bool) -> Found:
        aligned = align(self._left, self._right)
        a, b = self._left.table, self._right.table
        rows = list(zip(aligned.left.tolist(), aligned.right.tolist(), aligned.parent.tolist(), strict=True))
        apart = bytearray(len(rows))  # what is below a node that is not compared, or only in one of the trees
        for at in self._to_compare(aligned):
            mine, other, parent = rows[at]
            if mine == NONE or other == NONE:
                apart[at] = 1
                if parent < 0 or not apart[parent]:
                    side, row = (self._left, mine) if other == NONE else (self._right, other)
                    text = subtree_text(side.table, row)
                    self._add(at, ("missing", text, "", "") if other == NONE else ("extra", "", text, ""))
            elif a.is_leaf[mine] and b.is_leaf[other]:
                self._compare_leaves(at, mine, other)
            else:
                self._compare_nodes(at, mine, other)
                apart[at] = not is_comparable(self._left, self._right, mine, other)
        self._small.flush()
        for at, gap in self._small.gaps.items():
            mine, other, _ = rows[at]
            left, right = _as_plain_array(self._left.nodes[mine]), _as_plain_array(self._right.nodes[other])
            self._add_gap(at, left, right, gap)
        self._found.sort(key=itemgetter(0))
        paths = self._paths([rows[at][:2] for at, _ in self._found])
        differences = Differences(
            Difference(path, *finding, tree=self._tree) for path, (_, finding) in zip(paths, self._found, strict=True)
        )
        drawn: dict[int, Bars] = {}
        if bars:
            ats = sorted(self._pairs)
            found = magnitudes([self._pairs[at] for at in ats])
            drawn = {at: each for at, each in zip(ats, found, strict=True) if each is not None}
        unknown = dict(sorted(self._not_compared.items()))
        return Found(aligned, differences, [at for at, _ in self._found], self._gaps, unknown, drawn)

    def _to_compare(self, aligned: Aligned) -> list[int]:
        """The rows that may differ; not the leaves with the same facts, unless their values are to be compared."""
        a, b = self._left.table, self._right.table
        mine, other = aligned.left, aligned.right
        alike = (mine != NONE) & (other != NONE)
        alike[alike] = same_facts(a, b, mine[alike], other[alike])
        is_leaf = alike & a.is_leaf[mine]
        n_children = [np.bincount(np.maximum(table.parent, 0), minlength=len(table)) for table in (a, b)]
        is_node = alike & is_builtin(a)[mine] & (n_children[0][mine] == n_children[1][other])
        if self._values:
            is_leaf &= np.array([facts.kind in ("array", "numpy") for facts in a.facts])[a.fact_codes[mine]]
            rows = np.flatnonzero(is_leaf)
            small = self._are_small[0][a.fact_codes[mine[rows]]] & self._are_small[1][b.fact_codes[other[rows]]]
            is_leaf[rows] = [
                left is right or (is_small and self._take_small(at, left, right))
                for at, is_small, left, right in zip(
                    rows.tolist(),
                    small.tolist(),
                    map(self._left.nodes.__getitem__, mine[rows].tolist()),
                    map(self._right.nodes.__getitem__, other[rows].tolist()),
                    strict=True,
                )
            ]
        return np.flatnonzero(~is_leaf & ~is_node).tolist()

    def _take_small(self, at: int, left: Any, right: Any) -> bool:
        """Compare two small arrays, later unless their bits are the same; False if they cannot be read at once."""
        a, b = small_view(left), small_view(right)
        if a is None or b is None:
            return False
        if a.dtype != b.dtype or a.tobytes() != b.tobytes():
            self._small.add(at, a, b)
        return True

    def _paths(self, rows: list[tuple[int, int]]) -> list[str]:
        """The key paths in the first tree; of what the other alone has, in that one."""
        left, right = (table.keystrs() for table in (self._left.table, self._right.table))
        return [right(other) if mine == NONE else left(mine) for mine, other in rows]

    def _add(self, at: int, finding: Finding) -> None:
        self._found.append((at, finding))

    def _facts(self, mine: int, other: int) -> tuple[Facts, Facts]:
        codes = self._codes[0][mine], self._codes[1][other]
        return self._left.table.facts[codes[0]], self._right.table.facts[codes[1]]

    def _compare_nodes(self, at: int, mine: int, other: int) -> None:
        left, right = self._left.nodes[mine], self._right.nodes[other]
        a, b = self._left.table, self._right.table
        if left is right:
            return
        facts = self._facts(mine, other)
        for side, each in zip(("left", "right"), facts, strict=True):
            if each.kind in ("error", "cycle", "more", "repeat"):
                self._not_compared[at] = f"the {side} one is not walked: {each.kind}"
                return
        if type(left) is not type(right):
            texts = [subtree_text(table, row) for table, row in ((a, mine), (b, other))]
            if left is None or right is None:
                self._add(at, ("none", *texts, ""))
            elif a.is_leaf[mine] or b.is_leaf[other]:
                self._add(at, ("leaf", *texts, ""))
            else:
                kind, *words, hint = compare_classes(type(left), type(right))
                self._add(at, (kind, *(words if hint else texts), hint))
            return
        n = [len(a.children(mine)), len(b.children(other))]
        cls = type(left)
        if cls in MAPPINGS:
            if cls is not dict and n[0] == n[1] and list(left) != list(right) and set(left) == set(right):
                self._add(at, ("order", value_text(list(left), 60), value_text(list(right), 60), ""))
            for finding in compare_factories(*(getattr(each, "default_factory", None) for each in (left, right))):
                self._add(at, finding)
            return
        if n[0] != n[1]:
            self._add(at, ("length", *(f"{k} {'child' if k == 1 else 'children'}" for k in n), ""))
        if cls not in _BUILTIN and not has_base(cls, tuple):
            self._compare_aux(at, left, right)

    def _compare_aux(self, at: int, left: Any, right: Any) -> None:
        def compare() -> list[Finding]:
            mine, other = open_registered(left).aux, open_registered(right).aux
            return [] if mine is other else compare_static(left, mine, right, other)

        for finding in guarded(compare, lambda error: [("error", f"flattening raised {error_text(error)}", "", "")]):
            self._add(at, finding)

    def _compare_leaves(self, at: int, mine: int, other: int) -> None:
        left, right = self._left.nodes[mine], self._right.nodes[other]
        if left is right:
            return
        codes = self._codes[0][mine], self._codes[1][other]
        facts = self._facts(mine, other)
        found = self._known.get(codes)
        if found is None:
            found = self._known[codes] = compare_facts(*facts, lambda: shardings_are_equivalent(left, right))
        for finding in found:
            if finding[-1] == REVERSED and self._values and is_transpose(left, right):
                finding = (*finding[:-1], "the transpose, with the same values: jnp.transpose(x)")
            self._add(at, finding)
        if not self._values or (facts[0].shape != facts[1].shape and None not in (facts[0].shape, facts[1].shape)):
            return
        if not (self._are_small[0][codes[0]] and self._are_small[1][codes[1]] and self._take_small(at, left, right)):
            self._compare_values(at, left, right, *facts)

    def _compare_values(self, at: int, left: Any, right: Any, a: Facts, b: Facts) -> None:
        for each in (a, b):
            if each.kind in _UNKNOWN:
                self._not_compared[at] = each.kind
                return
        if a.dtype.startswith("key<") and a.dtype == b.dtype:
            self._compare_keys(at, left, right)
        elif _is_array(left) and _is_array(right):
            self._compare_arrays(at, left, right)
        elif "scalar" in (a.kind, b.kind) and _is_number(left) and _is_number(right):
            self._compare_numbers(at, left, right)
        elif not guarded(lambda: type(left) is type(right) and bool(left == right), lambda _: False):
            hint = "functions are compared by identity" if a.kind == b.kind == "function" else ""
            self._add(at, ("value", value_text(left, 60), value_text(right, 60), hint))

    def _compare_numbers(self, at: int, left: Any, right: Any) -> None:
        a, b = _as_array(left), _as_array(right)
        are_plain = id(type(left)) in _NUMBERS and id(type(right)) in _NUMBERS
        if are_plain and a.dtype.kind in "biufc" and b.dtype.kind in "biufc":  # not of 2**64 and more
            self._small.add(at, a, b)
        else:
            self._take(at, a, b, self._gap(a, b))  # not by id, which the next such array may have

    def _compare_keys(self, at: int, left: Any, right: Any) -> None:
        gap = self._gap(left, right)
        if isinstance(gap, str):
            self._not_compared[at] = gap
        elif gap is not None:
            self._add(at, ("value", "a PRNG key", "another PRNG key" if left.ndim == 0 else "other PRNG keys", ""))

    def _compare_arrays(self, at: int, left: Any, right: Any) -> None:
        key = id(left), id(right)
        if key not in self._met:
            self._met[key] = self._gap(left, right)
        self._take(at, left, right, self._met[key])

    def _take(self, at: int, left: Any, right: Any, gap: Gap | str | None) -> None:
        if isinstance(gap, str):
            self._not_compared[at] = gap
        elif gap is not None:
            self._add_gap(at, left, right, gap)

    def _add_gap(self, at: int, left: Any, right: Any, gap: Gap) -> None:
        self._gaps[at] = gap
        self._pairs[at] = left, right
        may_be = (
            gap.may_be_transpose and len(gap.at) > 1 and left.shape == left.shape[::-1] and is_transpose(left, right)
        )
        for finding in gap_texts(gap, "; the values of the transpose: jnp.transpose(x)" if may_be else ""):
            self._add(at, finding)

    def _gap(self, left: Any, right: Any) -> Gap | str | None:
        try:
            compare = compare_stored if Stored in (type(left), type(right)) else compare_arrays
            gap = compare(left, right, rtol=self._rtol, atol=self._atol)
        except CannotCompare as why:
            return str(why)
        except Exception as error:
            return f"comparing them raised {error_text(error)}"
        return gap if gap.n_outside or gap.n_nan else None


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | Stored)


def _is_number(leaf: Any) -> bool:
    return _is_array(leaf) or isinstance(leaf, bool | int | float | complex)


def _as_array(number: Any) -> Any:
    return number if _is_array(number) else np.asarray(number)


def _as_plain_array(leaf: Any) -> Any:
    return np.asarray(leaf) if id(type(leaf)) in _NUMBERS else leaf


def subtree_text(table: TreeTable, row: int) -> str:
    """ "float32[3,4]", "None", "dict · 9 leaves": what stands in a row and below."""
    facts = table.facts[table.fact_codes[row]]
    if facts.shape is not None and facts.dtype:
        return f"{facts.dtype}[{','.join(map(str, facts.shape))}]"
    if facts.kind == "none":
        return "None"
    if facts.is_leaf:
        return f"{facts.type} {facts.text}".strip()
    n = int(np.count_nonzero(table.is_leaf[row : int(table.end[row])]))
    return f"{facts.type} · {n:,} {'leaf' if n == 1 else 'leaves'}"
