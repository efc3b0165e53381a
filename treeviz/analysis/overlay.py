"""Prefixes, such as `in_axes`, shardings and masks, laid over a tree: the spec of each leaf, and what does not fit."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from treeviz.analysis.compare.aligned import (
    MAPPINGS,
    NONE,
    Finding,
    Opened,
    Openers,
    Side,
    compare_level,
    compare_types,
    describe_value,
)
from treeviz.analysis.compare.difference import MEANINGS, Difference, Differences
from treeviz.analysis.compare.map_mismatch import Path, path_text
from treeviz.analysis.facts import axis_text, shape_text
from treeviz.tree.facts import INHERITED, MASKED, Column, Facts, Note, is_refused
from treeviz.tree.runtime import gc_paused
from treeviz.tree.stored import Stored
from treeviz.tree.table import TreeTable, children_of
from treeviz.tree.text import (
    LABEL_LIMIT,
    aval_text,
    bytes_text,
    class_name,
    counted,
    error_text,
    guarded,
    has_base,
    is_any,
    value_text,
)

# Align the prefix with the tree: the subtree of each spec, and every mismatch.

_NOT_WALKED = ("error", "cycle", "more", "repeat")


class Given(NamedTuple):
    """A leaf of the prefix, and the row of the subtree that it applies to."""

    path: Path
    spec: Any
    row: int


class Mismatch(NamedTuple):
    """A place where the structures differ."""

    row: int  # of the tree
    path: Path  # in the prefix; in the tree for what only the tree has
    finding: Finding


class Aligned(NamedTuple):
    given: list[Given]
    mismatches: list[Mismatch]


_Pair = tuple[Path, Any, int, Any]  # a path and node of the prefix; a row and node of the tree


class _Walk:
    """Finds the subtree of each leaf of a prefix, as JAX broadcasts a prefix; linear in the nodes of the prefix.

    Does not descend below the rows of the tree, so it also ends for a prefix that contains itself. `is_leaf` tells
    whether a node of the prefix is a spec, such as None.
    """

    def __init__(self, side: Side, is_leaf: Callable[[Any], bool]) -> None:
        self._side, self._is_leaf = side, is_leaf
        table = side.table
        was_walked = np.array([facts.kind not in _NOT_WALKED for facts in table.facts], bool)
        # Lists, because reading single elements of an array takes ten times as long.
        self._was_walked, self._end = was_walked[table.fact_codes].tolist(), table.end.tolist()
        self._is_leaf_row = table.is_leaf.tolist()
        self._opener = Openers()
        self._given: list[Given] = []
        self._mismatches: list[Mismatch] = []

    def run(self, prefix: Any) -> Aligned:
        stack: list[_Pair] = [(None, prefix, 0, self._side.nodes[0])]
        while stack:
            path, spec, row, node = stack.pop()
            doing = "flattening"
            try:
                opened = None if self._is_leaf(spec) else self._opener(spec)
                doing = "comparing"
                below = None if opened is None else self._children(path, spec, opened, row, node)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a flatten function may raise anything, and so may == of a key
                self._add(row, path, ("error", f"{doing} raised {error_text(error)}", "", ""))
                continue
            if below is None:
                self._given.append(Given(path, spec, row))
            else:
                stack += reversed(below)
        return Aligned(self._given, self._mismatches)

    def _add(self, row: int, path: Path, finding: Finding) -> None:
        self._mismatches.append(Mismatch(row, path, finding))

    def _children(self, path: Path, spec: Any, opened: Opened, row: int, node: Any) -> list[_Pair]:
        """The children of a prefix node that have a counterpart in the tree, with its row."""
        if not self._was_walked[row]:
            return []
        is_box = node is not self._side.nodes[row]  # the row shows the leaf in the box
        rows, cls = [row] * is_box + children_of(self._end, row), type(spec)
        # Plain containers of the same keys: the common case, which needs no sorting
        is_same = cls is type(node) and len(rows) == len(opened.children)
        if is_same and (spec.keys() == node.keys() if cls is dict else is_any(cls, (list, tuple))):
            return self._below(path, spec, opened, rows, node)
        opened_node = None if self._side.table.is_leaf[row] and not is_box else self._opener(node)
        differs = compare_types(spec, node, opened_node)
        if differs is not None or opened_node is None:
            self._add(row, path, differs or ("leaf", describe_value(spec, opened), describe_value(node, None), ""))
            return []
        for finding in compare_level(spec, opened, node, opened_node):
            self._add(row, path, finding)
        rows = self._with_hidden(rows, opened_node.children)
        if not is_any(type(spec), MAPPINGS) or opened.keys == opened_node.keys:
            return self._below(path, spec, opened, rows, node)
        return self._by_key(path, spec, opened, row, rows, opened_node)

    def _with_hidden(self, rows: list[int], children: list) -> list[int]:
        """The row of each child; NONE for a child that the table hides, such as Flax's own state in each module."""
        if len(rows) == len(children):
            return rows
        waiting, found = iter([*rows, NONE]), []
        row = next(waiting)
        for child in children:
            node = None if row == NONE else self._side.nodes[row]  # of the child, or of what is in it, a box
            opened = None if row == NONE or child is node else self._opener(child)
            inside = [child] if opened is None else opened.children
            is_shown = row != NONE and len(inside) == 1 and inside[0] is node
            found.append(row if is_shown else NONE)
            row = next(waiting) if is_shown else row
        return found if row == NONE else rows

    def _below(self, path: Path, spec: Any, opened: Opened, rows: list[int], node: Any) -> list[_Pair]:
        """The children by position. Leaves are recorded immediately and not returned."""
        nodes, is_leaf, add, boxes = [], self._opener.is_leaf, self._given.append, list[Any]()
        for i, (key, child, row) in enumerate(zip(opened.keys, opened.children, rows, strict=False)):
            if row == NONE:
                continue
            if is_leaf(type(child)):
                add(Given((path, spec, key), child, row))
                continue
            if self._is_leaf_row[row]:
                boxes = boxes or self._opener(node).children  # type: ignore[union-attr]
            nodes.append(((path, spec, key), child, row, boxes[i] if self._is_leaf_row[row] else self._side.nodes[row]))
        return nodes

    def _by_key(
        self, path: Path, spec: Any, opened: Opened, row: int, rows: list[int], opened_node: Opened
    ) -> list[_Pair]:
        """Align the children of two mappings by key, and record the keys that only one of them has."""
        rest = dict(zip(opened_node.keys, rows, strict=False))
        nodes = dict(zip(opened_node.keys, opened_node.children, strict=True))
        specs = [*zip(opened.keys, opened.children, strict=True)]
        missing = [(key, child) for key, child in specs if key not in rest]
        shared = [(key, child) for key, child in specs if key in rest]
        aligned: list[_Pair] = [((path, spec, key), child, rest.pop(key), nodes[key]) for key, child in shared]
        is_name = lambda key: type(key) is str and len(key) <= LABEL_LIMIT  # noqa: E731 such are found in no time
        names = [*filter(is_name, rest)] if len(missing) * len(rest) <= _MOST_NEAR else []
        for key, child in missing:
            near = difflib.get_close_matches(key, names, n=1, cutoff=0.5) if is_name(key) else []
            hint = f"did you mean {value_text(near[0], 40)}?" if near else ""
            # A NamedSharding would print its mesh first.
            child = child.spec if has_base(type(child), jax.sharding.NamedSharding) else child
            self._add(row, (path, spec, key), ("missing", value_text(child, 40), "", hint))
        failed = lambda error: f"a node that raised {error_text(error)}"  # noqa: E731
        for key, below in rest.items():
            node = self._side.nodes[below]
            text = guarded(lambda node=node: describe_value(node, self._opener(node)), failed)
            self._add(below, (path, self._side.nodes[row], key), ("extra", "", text, ""))
        return aligned


_ARRAYS = ("array", "numpy", "stored", "scalar", "shape only", "tracer", "key", "ref", "float0", "deleted")
_OF_JAX = (jax.sharding.PartitionSpec, jax.sharding.Sharding)
_USUAL = set(map(id, (bool, int, str, type(None))))  # not their subclasses, whose == may raise
_NO_SPEC = "no spec"
_MOST_NEAR = 2_000  # pairs of names that are compared for similarity, at 50 µs each
_BROKEN = "JAX cannot flatten this"
_MOST = 1_000  # leaves with a finding of their own
_MOST_KEYS = 100_000  # in the paths of these leaves, since a tree may be thousands of levels deep


class Pairs(NamedTuple):
    """The leaves that get a spec."""

    rows: np.ndarray  # int[k]: the row of each leaf
    codes: np.ndarray  # int[k]: the index of each leaf in `distinct`
    distinct: list[tuple[Any, Facts]]  # the distinct pairs of a spec and the facts of a leaf

    def findings(self, table: TreeTable, finding_of_pair: Sequence[Finding | None]) -> list[tuple[int, Finding]]:
        """The findings of distinct pairs, by row, for the first 1,000 leaves; then one that counts the rest."""
        leaves = np.flatnonzero(np.array([finding is not None for finding in finding_of_pair], bool)[self.codes])
        n = min(_MOST, 1 + int(np.searchsorted(np.cumsum(table.depth[self.rows[leaves]]), _MOST_KEYS)))
        listed: list[Any] = [(int(self.rows[i]), finding_of_pair[int(self.codes[i])]) for i in leaves[:n].tolist()]
        if len(leaves) > n:
            listed.append((int(self.rows[leaves[n]]), ("spec", f"{len(leaves) - n:,} more leaves do not fit", "", "")))
        return listed

    def column(self, table: TreeTable, values: list[float], name: str, title: str, **options: Any) -> Column:
        """A column with a number for each distinct pair; NaN where there is none."""
        levels = np.array([*values, np.nan])
        codes = np.full(len(table), len(values), np.int32)
        codes[self.rows] = self.codes
        return Column(name, title, levels, codes, **options)


class Judged(NamedTuple):
    """What a use of specs found about the leaves and their specs."""

    findings: list[tuple[int, Finding]]  # specs that do not fit, by row
    columns: tuple[Column, ...]  # next to the column of specs
    headline: tuple[str, ...]
    notes: dict[int, tuple[Note, ...]]  # other remarks, by row


class Use:
    """What specs are for: `vmap`, shardings, masks …"""

    name: str
    none_is_spec = True

    def align(self, prefix: Any, side: Side, is_leaf: Callable[[Any], bool]) -> Aligned:
        """Find the subtree of each spec, and what JAX requires of the prefix as a whole."""
        return _Walk(side, is_leaf).run(prefix)

    def text(self, spec: Any) -> str:
        return value_text(spec, 60)

    def wrong(self, spec: Any) -> Finding | None:
        """Why this is not a valid spec."""
        raise NotImplementedError

    def judge(self, table: TreeTable, pairs: Pairs) -> Judged:
        """What the specs mean for the leaves, without those whose spec is `wrong`."""
        raise NotImplementedError


class Misfits(NamedTuple):
    """The specs of a tree, and where they do not fit."""

    found: list[tuple[int, Difference]]  # by row
    given: list[Given]
    specs: list[Any]  # the distinct ones
    codes: list[int]  # the index in `specs` for each of `given`
    spec_of_row: np.ndarray  # int[n]: likewise, for each row; `len(specs)` without a spec
    judged: Judged

    @property
    def differences(self) -> Differences:
        return Differences(difference for _, difference in sorted(self.found, key=lambda pair: pair[0]))


@gc_paused()
def find_misfits(prefix: Any, side: Side, use: Use, is_leaf: Callable[[Any], bool] | None) -> Misfits:
    """Align a prefix with a tree; linear in the rows."""

    def is_spec(node: Any) -> bool:
        return (use.none_is_spec and node is None) or bool(is_leaf and is_leaf(node))

    def add(row: int, path: str, finding: Finding) -> None:
        found.append((row, Difference(path, *finding, tree=1, names=("prefix", "tree"))))

    table, (given, mismatches) = side.table, use.align(prefix, side, is_spec)
    found: list[tuple[int, Difference]] = []
    for row, path, finding in mismatches:
        add(row, path_text(path), finding)
    for row, own in table.notes.items():
        if table[row].kind in ("error", "cycle") or any(note.text.startswith(_BROKEN) for note in own):
            add(row, table[row].keystr, ("error", _BROKEN, "", ""))
    specs, codes = _distinct([leaf.spec for leaf in given])
    wrong = [use.wrong(spec) for spec in specs]
    other_use = _other_use(specs, use.name)
    for i in np.flatnonzero(np.array([finding is not None for finding in wrong], bool)[codes]).tolist():
        *finding, hint = wrong[codes[i]] or ()
        add(given[i].row, path_text(given[i].path), (*finding, hint or other_use))
    is_right = np.array([finding is None for finding in wrong] + [False])
    spec_of_row, n_facts = np.array([*codes, len(specs)])[_spread(table, given)], len(table.facts)
    rows = np.flatnonzero(table.is_leaf & is_right[spec_of_row])
    keys = spec_of_row[rows].astype(np.int64) * n_facts + table.fact_codes[rows]
    distinct, pair_codes = np.unique(keys, return_inverse=True)
    pairs = [(specs[key // n_facts], table.facts[key % n_facts]) for key in distinct.tolist()]
    judged = use.judge(table, Pairs(rows, pair_codes.reshape(-1), pairs))
    for row, finding in judged.findings:
        add(row, table[row].keystr, finding)
    return Misfits(found, given, specs, codes, spec_of_row, judged)


@gc_paused()
def overlaid(
    prefix: Any, side: Side, use: Use, is_leaf: Callable[[Any], bool] | None
) -> tuple[TreeTable, tuple[str, ...], Differences]:
    """The table, the names of columns to show and the differences of `treeviz.overlay`."""
    misfits, table = find_misfits(prefix, side, use, is_leaf), side.table
    found, given, specs, codes, spec_of_row, judged = misfits
    notes: dict[int, tuple[Note, ...]] = {}
    for row, difference in found:
        text = str(difference) if difference.kind == "missing" else difference.note  # the row is that of its parent
        notes[row] = (*notes.get(row, ()), Note("warning", text, severity="error", sign=_word(difference.kind)))
    n_before, texts = np.concatenate([[0], np.cumsum(table.is_leaf)]), [use.text(spec) for spec in specs]
    own_texts, spec_rows = [texts[code] for code in codes], _rows(given)
    unused = np.flatnonzero(n_before[spec_rows] == n_before[table.end[spec_rows]]).tolist()
    for_no_leaf = {given[i].row: (Note("info", f"the spec {own_texts[i]} is for no leaf"),) for i in unused}
    column = spec_column(table, given, own_texts, use.name, use.name)
    # Fact codes differ where the specs differ, so that views do not collapse those rows.
    n_facts = len(table.facts)
    distinct, fact_codes = np.unique(spec_of_row * n_facts + table.fact_codes, return_inverse=True)
    facts = tuple([table.facts[key % n_facts] for key in distinct.tolist()])
    table = replace(table, facts=facts, fact_codes=fact_codes.reshape(-1).astype(np.int32))
    table = table.with_columns(column, *judged.columns)
    table = table.with_notes(notes).with_notes(for_no_leaf).with_notes(judged.notes)
    differences = misfits.differences
    kinds = Counter(difference.kind for difference in differences)
    counts = ", ".join(f"{kinds[kind]:,} {_word(kind)}" for kind in MEANINGS if kinds[kind])
    total = f"{counted(len(differences), 'mismatch', 'mismatches')}: {counts}" if differences else "no mismatch"
    table = table.with_headline(total, *judged.headline, *table.headline)
    return table, (use.name, *(column.name for column in judged.columns)), differences


def _distinct(specs: Iterable[Any]) -> tuple[list[Any], list[int]]:
    """The distinct specs, and the index of each spec among them."""
    distinct: list[Any] = []
    known: dict[Hashable, int] = {}
    codes = []
    for spec in specs:
        cls = id(type(spec))
        is_plain = cls in _USUAL or has_base(type(spec), *_OF_JAX)
        # The prefix keeps the specs alive.
        codes.append(known.setdefault((cls, spec if is_plain else id(spec)), len(distinct)))
        distinct += [spec] * (codes[-1] == len(distinct))
    return distinct, codes


def spec_column(table: TreeTable, given: Sequence[Given], texts: Sequence[str], name: str, title: str) -> Column:
    """The spec of each row; below a row with a spec, where the spec is inherited from. `texts` are those of `given`."""
    levels: dict[str, int] = {"": 0, _NO_SPEC: 1}
    own = [levels.setdefault(spec, len(levels)) for spec in texts]
    owner, rows = _spread(table, given), _rows(given)
    below = np.zeros(len(given) + 1, np.int32)  # the last is for rows without a spec
    for i in np.flatnonzero(table.end[rows] - rows > 1).tolist():
        text = f"{texts[i]}{INHERITED}{path_text(given[i].path) or 'root'}"
        below[i] = levels.setdefault(text, len(levels))
    code_of_row = np.where(owner >= 0, below[owner], table.is_leaf).astype(np.int32)
    code_of_row[rows] = own
    help = f"The {title} of each leaf, and ← where it is inherited from"
    return Column(name, title, list(levels), code_of_row, help=help)


def _rows(given: Sequence[Given]) -> np.ndarray:
    return np.array([leaf.row for leaf in given], np.int64)


def _spread(table: TreeTable, given: Sequence[Given]) -> np.ndarray:
    """int[n_rows]: the index of the spec that applies to each row; -1 for none."""
    rows = _rows(given)
    owner = np.full(len(table), -1)
    owner[rows] = np.arange(len(given))
    for i in np.flatnonzero(table.end[rows] - rows > 1).tolist():
        owner[rows[i] : table.end[rows[i]]] = i
    return owner


def array_shape(facts: Facts) -> tuple[int, ...] | None:
    """The shape of an array or number; None for other leaves, which have no axis to map or split."""
    if facts.kind not in _ARRAYS or is_refused(facts):
        return None
    return () if facts.shape is None else facts.shape


def no_array(facts: Facts) -> str:
    """ "str, which is not an array"."""
    if is_refused(facts):
        mask = " with a mask" if facts.text == MASKED else ""
        return f"{facts.type} of {facts.dtype}{mask}, which JAX does not accept"
    return f"{facts.type}, which is not an array"


def _word(kind: str) -> str:
    """The kind of a mismatch, for a reader who looks at the tree and not at its prefix."""
    return {"missing": "not in the tree", "extra": "no spec"}.get(kind, kind)


# `jax.vmap`: each mapped axis must exist, and all must have one size.


def _other_use(specs: Iterable[Any], use: str) -> str:
    """ "did you mean use='mask'?": the only use that all specs are for, if it is not the one that was given."""
    of_class = {id(bool): "mask", id(str): "labels"}
    uses = {
        "shardings" if has_base(type(spec), *_OF_JAX) else of_class.get(id(type(spec)), use)
        for spec in specs
        if spec is not None
    }
    return f"did you mean use={next(iter(uses))!r}?" if len(uses) == 1 and use not in uses else ""


class InAxes(Use):
    """`in_axes` over the tuple of arguments."""

    name = "in_axes"

    def align(self, prefix: Any, side: Side, is_leaf: Callable[[Any], bool]) -> Aligned:
        prefix = tuple(prefix) if type(prefix) is list else prefix  # as JAX does (jax#2367)
        is_known = prefix is None or is_any(type(prefix), (int, tuple))
        aligned = super().align(prefix, side, is_leaf) if is_known else Aligned([], [])
        at_root = next((mismatch.finding for mismatch in aligned.mismatches if mismatch.path is None), None)
        if is_known and at_root is None:
            return aligned
        wrapped = super().align((prefix,), side, is_leaf)
        if wrapped.mismatches and at_root is not None:
            return aligned
        finding = at_root or ("spec", f"a {class_name(type(prefix))}", "an int, None or a tuple of specs", "")
        hint = _other_use([leaf.spec for leaf in wrapped.given], self.name)
        is_of_argument = not hint and all(path and path[0] for _, path, _ in wrapped.mismatches)  # parts do not fit
        hint = f"did you mean in_axes=({value_text(prefix, 60)},)?" if is_of_argument else hint
        alone = [Mismatch(0, None, (*finding[:-1], hint))]
        return Aligned(wrapped.given, alone + wrapped.mismatches) if is_of_argument else Aligned([], alone)

    def wrong(self, spec: Any) -> Finding | None:
        return None if spec is None or type(spec) is int else ("spec", _text(spec), "an int or None", "")

    def judge(self, table: TreeTable, pairs: Pairs) -> Judged:
        answers = [_size(spec, facts) for spec, facts in pairs.distinct]
        sizes = [size for size, _ in answers]
        findings = pairs.findings(table, [finding for _, finding in answers])
        is_none = all(spec is None for spec, _ in pairs.distinct)
        if is_none and len(pairs.rows) == np.count_nonzero(table.is_leaf):
            why = "every spec is None" if len(pairs.rows) else "there is no leaf"
            findings.append((0, ("spec", why, "vmap must map at least one leaf", "")))
        odd, headline = _odd_sizes(table, pairs, np.array([*sizes, np.nan])[pairs.codes])
        help = "The size of the mapped axis"
        column = pairs.column(table, sizes, "axis_size", "size", format="count", help=help)
        return Judged([*findings, *odd], (column,), (_mapped_text(table, pairs), *headline), {})


class OutAxes(InAxes):
    """`out_axes` over the result of one example."""

    name = "out_axes"
    align = Use.align

    def judge(self, table: TreeTable, pairs: Pairs) -> Judged:
        findings = pairs.findings(table, [_size(spec, facts, n_more=1)[1] for spec, facts in pairs.distinct])
        return Judged(findings, (), (_mapped_text(table, pairs),), {})


def _mapped_text(table: TreeTable, pairs: Pairs) -> str:
    is_mapped = np.array([spec is not None for spec, _ in pairs.distinct] + [False])[pairs.codes]
    n_leaves = int(np.count_nonzero(table.is_leaf))
    return f"{np.count_nonzero(is_mapped):,} of {counted(n_leaves, 'leaf', 'leaves')} mapped"


def _size(spec: int | None, facts: Facts, n_more: int = 0) -> tuple[float, Finding | None]:
    """The size of the mapped axis, or why there is none; a mapped result has `n_more` axes more than its example."""
    if spec is None:
        return np.nan, None
    shape = array_shape(facts)
    if shape is None:
        return np.nan, ("spec", value_text(spec, 20), no_array(facts), "")
    n = len(shape) + n_more
    if not -n <= spec < n:
        leaf = aval_text(shape, facts.dtype) if facts.dtype else facts.type
        has = f"{'mapped, ' * n_more}it has {counted(n, 'axis', 'axes')}"
        return np.nan, ("axis", value_text(spec, 20), leaf, has)
    size = None if n_more else shape[spec]
    return (float(size) if isinstance(size, int) else np.nan), None  # a symbolic size is text


def _odd_sizes(table: TreeTable, pairs: Pairs, sizes: np.ndarray) -> tuple[list[tuple[int, Finding]], tuple[str, ...]]:
    """The leaves whose mapped axis differs from the most common size, or from the first if none is most common."""
    mapped = np.flatnonzero(~np.isnan(sizes))
    counts = Counter(sizes[mapped].astype(np.int64).tolist())
    if not counts:
        return [], ()
    (most, n), *others = counts.most_common()
    if not others:
        return [], (f"size {most:,}",)
    example = table[int(pairs.rows[mapped[np.argmax(sizes[mapped] == most)]])].keystr or "the root"
    hint = f"{n:,} leaves have {most:,}, such as {example}" if n > 1 else f"{example} has {most:,}"
    finding_of_pair: list[Finding | None] = [None] * len(pairs.distinct)
    for i in mapped[sizes[mapped] != most].tolist():
        pair = int(pairs.codes[i])
        finding_of_pair[pair] = "size", f"{axis_text(*pairs.distinct[pair])} has {int(sizes[i]):,}", "", hint
    findings = pairs.findings(table, finding_of_pair)
    return findings, (f"sizes {', '.join(f'{size:,} ({n:,})' for size, n in counts.most_common(4))}",)


# Masks and labels of optax.

_MOST_LABELS = 6


class Labels(Use):
    """A label for each leaf, as in `optax.partition`; None is an empty subtree."""

    name = "labels"
    none_is_spec = False

    def __init__(self) -> None:
        self._is_module = False

    def align(self, prefix: Any, side: Side, is_leaf: Callable[[Any], bool]) -> Aligned:
        if callable(prefix):
            self._is_module = not guarded(lambda: Openers()(prefix) is None, lambda _: False)  # a callable pytree
        if callable(prefix) and not self._is_module:
            try:
                prefix = prefix(side.nodes[0])
            except Exception as error:
                text = f"the function of the tree raised {error_text(error)}"
                return Aligned([], [Mismatch(0, None, ("error", text, "", ""))])
        return super().align(prefix, side, is_leaf)

    def text(self, spec: Any) -> str:
        return spec if type(spec) is str else super().text(spec)

    def wrong(self, spec: Any) -> Finding | None:
        is_hashable = guarded(lambda: hash(spec) is not None, lambda _: False)
        return None if is_hashable else ("spec", _text(spec), "a hashable label", "")

    def judge(self, table: TreeTable, pairs: Pairs) -> Judged:
        texts = np.array([self.text(spec) for spec, _ in pairs.distinct], object)
        counts = Counter(texts[pairs.codes].tolist() if len(texts) else ())
        counted = [f"{label} {n:,}" for label, n in counts.most_common(_MOST_LABELS)]
        rest = [f"{len(counts) - len(counted):,} more labels"] if len(counts) > len(counted) else []
        called = Note("warning", "optax.partition calls a callable module: pass lambda _: labels")
        notes: dict[int, tuple[Note, ...]] = {0: (called,)} if self._is_module else {}
        return Judged([], (), (", ".join([*counted, *rest]),) if counted else (), notes)


class Mask(Labels):
    """True or False for each leaf, as in `optax.masked`."""

    name = "mask"

    def text(self, spec: Any) -> str:
        return super().text(bool(spec) if has_base(type(spec), np.bool_) else spec)

    def wrong(self, spec: Any) -> Finding | None:
        if has_base(type(spec), bool, np.bool_):
            return None
        hint = "Equinox calls it for each leaf: jax.tree.map(it, tree)" if callable(spec) else ""
        return "spec", _text(spec), "True or False", hint

    def judge(self, table: TreeTable, pairs: Pairs) -> Judged:
        n_bytes = [float(facts.bytes) if spec else 0.0 for spec, facts in pairs.distinct]
        is_true = np.array([bool(spec) for spec, _ in pairs.distinct] + [False])
        n, n_leaves = int(np.count_nonzero(is_true[pairs.codes])), int(np.count_nonzero(table.is_leaf))
        total = float(np.array([*n_bytes, 0.0])[pairs.codes].sum())
        column = pairs.column(
            table, n_bytes, "masked_bytes", "bytes of True", format="bytes", rollup="sum",
            help="Bytes of the arrays whose mask is True",
        )  # fmt: skip
        return Judged([], (column,), (f"{n:,} of {n_leaves:,} leaves are True, {bytes_text(total)}",), {})


def _text(spec: Any) -> str:
    return f"{class_name(type(spec))} {value_text(spec, 40)}"


# Planned shardings: whether each array divides, how many bytes each device holds, and what is replicated.

Spec = jax.sharding.PartitionSpec
_MOST_NOTES = 20  # on replicated leaves, largest first
_SMALL = 0.01  # of the bytes on a device; a smaller replicated leaf gets no note


class _Planned(NamedTuple):
    """How a sharding divides one array."""

    finding: Finding | None = None
    shard: tuple[int, ...] | None = None  # the shape of the part on one device; None if unknown
    n_parts: int = 1  # that differ
    mesh: Mapping[str, int] | None = None  # the sizes of the mesh axes, by name


def _spec_of(spec: Any) -> Any:
    """The spec; of an array in a checkpoint that with which it was saved, None if it was on one device."""
    if type(spec) is not Stored:
        return spec
    return Spec(*spec.saved.spec) if spec.saved is not None and spec.saved.mesh else None


class Shardings(Use):
    """`in_shardings`, `out_shardings`, or what `jax.device_put` takes."""

    name = "shardings"

    def __init__(self, mesh: Any = None) -> None:
        self._mesh = mesh

    def align(self, prefix: Any, side: Side, is_leaf: Callable[[Any], bool]) -> Aligned:
        return super().align(prefix, side, lambda node: has_base(type(node), Spec) or is_leaf(node))

    def text(self, spec: Any) -> str:
        spec = spec.spec if has_base(type(spec), jax.sharding.NamedSharding) else _spec_of(spec)
        if not has_base(type(spec), Spec):
            return super().text(spec)
        text = ", ".join(value_text(part, 40) for part in spec)
        return f"P({text})"

    def wrong(self, spec: Any) -> Finding | None:
        if spec is None or has_base(type(spec), *_OF_JAX, Stored):
            return None
        hint = f"did you mean P({spec!r})?" if type(spec) is str else ""
        return "spec", _text(spec), "a PartitionSpec, a Sharding or None", hint

    def judge(self, table: TreeTable, pairs: Pairs) -> Judged:
        planned = [self._plan(spec, facts) for spec, facts in pairs.distinct]
        n_bytes = [
            np.nan if plan.shard is None else float(facts.bytes // plan.n_parts)
            for plan, (_, facts) in zip(planned, pairs.distinct, strict=True)
        ]
        help = "Bytes on one device, by this plan"
        column = pairs.column(table, n_bytes, "planned_bytes", "bytes/device", format="bytes", rollup="sum", help=help)
        shards, help = (
            [*(shape_text(plan.shard) for plan in planned), ""],
            "The shape of the part of an array on one device",
        )
        columns = column, Column("shard", "shard", shards, column.codes, help=help)
        sizes = np.array([*n_bytes, np.nan])[pairs.codes]
        n_unknown = int(np.count_nonzero(table.is_leaf)) - int(np.count_nonzero(~np.isnan(sizes)))
        total = float(np.nansum(sizes))
        total_text = f"{bytes_text(total)} on each device"
        total_text += f", without {counted(n_unknown, 'leaf', 'leaves')}" if n_unknown else ""
        replicated, notes = _replicated(pairs, planned, n_bytes, total)
        meshes = {tuple(plan.mesh.items()) for plan in planned if plan.mesh is not None}
        mesh = [f"{len(meshes)} meshes"]
        if len(meshes) == 1:
            mesh = [f"mesh {', '.join(f'{name}={size}' for name, size in meshes.pop())}"]
        elif not meshes:
            mesh = ["without a mesh= the sizes are not checked"] * (self._mesh is None)
        headline = (*mesh, *([total_text] if total else []), *replicated)
        return Judged(pairs.findings(table, [plan.finding for plan in planned]), columns, headline, notes)

    def _plan(self, spec: Any, facts: Facts) -> _Planned:
        if (spec := _spec_of(spec)) is None:  # left to the compiler
            return _Planned()
        shape, text = array_shape(facts), self.text(spec)
        if shape is None:
            return _Planned(("spec", text, no_array(facts), ""))
        if not isinstance(spec, Spec | jax.sharding.NamedSharding):
            shard = guarded(lambda: tuple(spec.shard_shape(shape)), error_text)
            if isinstance(shard, str):
                return _Planned(("size", text, shape_text(shape), shard))
            shard_size = math.prod(shard)
            return _Planned(None, shard, math.prod(shape) // shard_size if shard_size else 1)
        mesh, spec = (self._mesh, spec) if isinstance(spec, Spec) else (spec.mesh, spec.spec)
        sizes = None if mesh is None else {name: int(size) for name, size in mesh.shape.items()}
        if len(spec) > len(shape):
            leaf = aval_text(shape, facts.dtype) if facts.dtype else facts.type
            return _Planned(("axis", text, leaf, f"it has {counted(len(shape), 'axis', 'axes')}"), mesh=sizes)
        shard, used = list(shape), []
        for axis, part in enumerate(
            spec
        ):  # is split over its mesh axes, if they exist, are not used twice, and divide it
            names = part if isinstance(part, tuple) else () if part is None or part is Spec.UNCONSTRAINED else (part,)
            for name in names:
                if sizes is not None and name not in sizes:
                    has = f"the mesh has {', '.join(map(value_text, sizes)) or 'none'}"
                    return _Planned(("axis", f"the mesh axis {value_text(name)}", "", has), mesh=sizes)
                if name in used:
                    return _Planned(("spec", text, "each axis of the mesh once", ""), mesh=sizes)
                used.append(name)
            n = math.prod(sizes[name] for name in names) if sizes is not None else 1
            if not isinstance(shape[axis], int):
                return _Planned(mesh=sizes)  # a symbolic size
            if shape[axis] % n:
                size, over = f"{axis_text(axis, facts)} has {shape[axis]:,}", " × ".join(map(value_text, names))
                return _Planned(("size", size, "", f"not divisible by {n} of {over}"), mesh=sizes)
            shard[axis] //= n
        if sizes is None or Spec.UNCONSTRAINED in spec:
            return _Planned(mesh=sizes)
        return _Planned(None, tuple(shard), math.prod(sizes[name] for name in used), sizes)


def _replicated(
    pairs: Pairs, planned: list[_Planned], n_bytes: list[float], total: float
) -> tuple[tuple[str, ...], dict[int, tuple[Note, ...]]]:
    """A headline with the bytes that every device holds, and notes on which mesh axes could split the large leaves."""
    n_devices = [math.prod((plan.mesh or {}).values()) for plan in planned]
    is_whole = [size > 0 and plan.n_parts == 1 for plan, size in zip(planned, n_bytes, strict=True)]
    is_replicated = np.array(is_whole, bool) & (np.array(n_devices) > 1)
    leaves = np.flatnonzero(is_replicated[pairs.codes])
    if not len(leaves):
        return (), {}
    sizes = np.array(n_bytes)[pairs.codes[leaves]]
    notes: dict[int, tuple[Note, ...]] = {}
    for i in np.argsort(-sizes, kind="stable")[:_MOST_NOTES].tolist():
        if sizes[i] >= _SMALL * total:
            plan, could = planned[int(pairs.codes[leaves[i]])], []
            for name, size in (plan.mesh or {}).items():
                axes = [
                    str(k) for k, length in enumerate(plan.shard or ()) if size > 1 and length and not length % size
                ]
                could += [f"{value_text(name)} could split axis {' or '.join(axes)}"] if axes else []
            why = ", ".join(could) or "no axis of the mesh divides it"
            text = f"the same {bytes_text(float(sizes[i]))} on every device: {why}"
            notes[int(pairs.rows[leaves[i]])] = (Note("info", text),)
    n_leaves = counted(len(leaves), "leaf", "leaves")
    return (f"{n_leaves} replicated: {bytes_text(float(sizes.sum()))} on each",), notes


# A tree of specs shown next to the tree that it is a prefix of: each spec is in the rows that it applies to.

_MOST_TOLD = 3
_SPECS = (bool, np.bool_, int, str, jax.sharding.PartitionSpec, jax.sharding.Sharding)


def holds_specs(table: TreeTable, nodes: Sequence[Any]) -> bool:
    """Whether all leaves are bools, axes, labels or shardings, and so not arrays."""
    leaves = np.flatnonzero(table.is_leaf).tolist()
    return bool(leaves) and all(has_base(type(nodes[row]), *_SPECS) for row in leaves)


def lay_prefix(prefix: Any, side: Side, other: TreeTable) -> Column | Note:
    """The column of a tree of specs, with the table `other`, in another tree; or a note why it is not a prefix of it.

    None is a spec among axes and shardings, and an empty subtree among bools and labels.
    """
    types = {other.facts[code].type for code in set(other.fact_codes[other.is_leaf].tolist())}
    none_is_spec = not types & {"bool", "str"}
    given, mismatches = _Walk(side, lambda node: none_is_spec and node is None).run(prefix)
    if not mismatches:
        texts = [spec if has_base(type(spec), str) else value_text(spec, 60) for _, spec, _ in given]
        return spec_column(side.table, given, texts, f"{other.name}.spec", other.name)
    names = other.name, side.table.name
    told = [
        str(Difference(path_text(path), *finding, tree=1, names=names)) for _, path, finding in mismatches[:_MOST_TOLD]
    ]
    told += [f"{len(mismatches) - _MOST_TOLD:,} more"] if len(mismatches) > _MOST_TOLD else []
    text = f"{other.name} has neither the structure of {side.table.name} nor is a prefix of it: "
    return Note("info", text + "; ".join(told))


USES: dict[str, Callable[[Any], Use]] = {
    "in_axes": lambda _: InAxes(),
    "out_axes": lambda _: OutAxes(),
    "shardings": Shardings,
    "mask": lambda _: Mask(),
    "labels": lambda _: Labels(),
}
