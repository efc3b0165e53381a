"""Columns of other trees: gradients, moments and averages in the rows of their parameters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain, count
from typing import Any, NamedTuple

import numpy as np

from treeviz.analysis.compare.aligned import Side
from treeviz.analysis.facts import is_cut, shape_text, whole_numbers
from treeviz.analysis.overlay import holds_specs, lay_prefix
from treeviz.tree.describers import WHOLE, Budget
from treeviz.tree.facts import KINDS, Column, Facts, Format, Note
from treeviz.tree.table import TreeTable
from treeviz.tree.text import counted, visible
from treeviz.tree.walk import scan

# Labels of subtrees: the whole path, a short title above a column, and a field name of queries.

_N_KEYS = 8  # of a path: the last ones are enough
_N_TITLE, _N_LONGEST = 14, 32  # characters: the width of a page's column; the most
_FIELD = re.compile(r"[^a-z0-9_-]+")


def place_text(table: TreeTable, row: int) -> str:
    """ "opt_state[0].mu"."""
    return visible(table.name + path_text(table, row))


def path_text(table: TreeTable, row: int, root: int = 0) -> str:
    """The key path from `root` to `row`; of a long one the last eight keys."""
    n_keys = int(table.depth[row] - table.depth[root])
    return ("…" if n_keys > _N_KEYS else "") + _last_keys(table, row, min(n_keys, _N_KEYS))


def titles(places: Sequence[tuple[TreeTable, int]]) -> list[str]:
    """A distinct title for each subtree: its path, or the end of a long path: "mu", "…[0].mu"."""
    written: list[str | None] = [None] * len(places)
    taken = {place_text(table, row) for table, row in places}
    for i, (table, row) in enumerate(places):
        full = place_text(table, row)
        if len(full) <= _N_TITLE or row == 0:
            written[i] = full if len(full) <= _N_LONGEST else f"{full[: _N_LONGEST - 1]}…"
    for n_keys in range(1, _N_KEYS + 1):
        ends = [_last_keys(table, row, n_keys) for table, row in places]
        n_times = Counter(ends)
        for i, end in enumerate(ends):
            if written[i] is None and n_times[end] == 1:
                table, row = places[i]
                name = table.key(row).segment
                is_plain = n_keys == 1 and name.isidentifier() and len(name) <= _N_LONGEST and name not in taken
                written[i] = name if is_plain else f"…{end[-_N_LONGEST:]}"
    # Equal ends belong to different trees, or are deep in one.
    return [
        visible(f"{table.name[:_N_TITLE]}…{_last_keys(table, row, 1)[-_N_LONGEST:]}" if text is None else text)
        for text, (table, row) in zip(written, places, strict=True)
    ]


def field(table: TreeTable, row: int, taken: Collection[str]) -> str:
    """The subtree as a field name of queries: "opt_state.0.mu", with a number if that is in use."""
    name = _FIELD.sub(".", place_text(table, row).lower()).strip(".-")
    name = name if name[:1].isalpha() or name[:1] == "_" else f"_{name}"
    names = chain([name], (f"{name}_{n}" for n in count(2)))
    return next(unique for unique in names if not any(f"{used}.".startswith(f"{unique}.") for used in taken))


def _last_keys(table: TreeTable, row: int, n_keys: int) -> str:
    keys: list[str] = []
    while row > 0 and len(keys) < n_keys:
        keys.append(table.key(row).keystr)
        row = int(table.parent[row])
    return "".join(reversed(keys))


# Find the structure of one tree in another: of parameters in gradients, or in Adam's mu and nu.

MAX_MATCHES = 12  # of one tree that are shown
_EFFORT = 16  # visited rows per row of the trees


class Match(NamedTuple):
    """A subtree that has the structure."""

    row: int  # its root
    own: np.ndarray  # int[n_pairs]: its leaves
    leaves: np.ndarray  # int[n_pairs]: for each of `own` the leaf at the same path in the other tree


class Search(NamedTuple):
    """The result of `find_structure`."""

    matches: list[Match]  # in row order; none is inside another
    n_more: int  # matches beyond `MAX_MATCHES`
    almost: tuple[int, str] | None  # without a match: the row of the closest subtree, and why it does not match


def find_structure(reference: TreeTable, within: TreeTable, *, whole: bool = False) -> Search:
    """Find the subtrees of one tree that have the structure of another.

    A subtree matches if the other tree has a leaf at the path of each of its leaves, and if paired arrays have the same
    shape, whatever their dtype. Leaves may be missing, or be holes (None, `optax.MaskedNode`, any empty node, also in
    place of a whole subtree). If all leaves are present or holes, one array of the same shape is enough: the factors of
    Adafactor have other shapes than the parameters.

    Linear: visits at most 16 rows for each row of the two trees, else gives up and reports it in `almost`. `whole`
    ignores subtrees in which leaves are missing.
    """
    return _Search(reference, within, whole).run()


class _Search:
    def __init__(self, reference: TreeTable, within: TreeTable, whole: bool) -> None:
        self._reference, self._within, self._whole = reference, within, whole
        segments: dict[object, int] = {}
        self._reference_codes, self._codes = _segments(reference, segments), _segments(within, segments)
        self._n_codes = len(segments)
        places = reference.parent.astype(np.int64) * self._n_codes + self._reference_codes
        self._row_at = dict(zip(places[1:].tolist(), range(1, len(reference)), strict=True))
        n_before = [np.append(0, np.cumsum(table.is_leaf)) for table in (reference, within)]
        self._n_leaves_in_reference = (n_before[0][reference.end] - n_before[0][:-1]).tolist()
        self._n_leaves_in = (n_before[1][within.end] - n_before[1][:-1]).tolist()
        self._n_leaves = self._n_leaves_in_reference[0]
        self._reference_is_leaf, self._is_leaf = reference.is_leaf.tolist(), within.is_leaf.tolist()
        self._parents, self._ends, self._code_list = within.parent.tolist(), within.end.tolist(), self._codes.tolist()
        self._effort = _EFFORT * (len(reference) + len(within))
        self._almost: tuple[int, int, str] = (0, -1, "")  # number of matching leaves, row, reason

    def run(self) -> Search:
        matches: list[Match] = []
        n_more, covered = 0, 0
        for row in self._candidates().tolist():
            if row < covered:
                continue
            if self._effort <= 0:
                return Search(matches, n_more, None if matches else (0, "it is too large to search completely"))
            if (pairs := self._same_rows(row) or self._pairs(row)) is None:
                continue
            own, leaves, n_holes = pairs
            if why := self._why_not(own, leaves, len(leaves) + n_holes >= self._n_leaves):
                self._came_close(row, len(own), *why)
                continue
            covered = self._ends[row]
            n_more += len(matches) == MAX_MATCHES
            matches += [Match(row, own, leaves)] * (len(matches) < MAX_MATCHES)
        _, row, why = self._almost
        return Search(matches, n_more, None if matches or row < 0 else (row, why))

    def _candidates(self) -> np.ndarray:
        if self._reference_is_leaf[0]:
            return np.flatnonzero(self._within.is_leaf) if self._n_leaves else np.zeros(0, int)
        most = 2 * self._n_leaves  # larger subtrees cannot match; those up to twice as large give the reason
        n_leaves = np.array(self._n_leaves_in)
        return np.flatnonzero(~self._within.is_leaf & (n_leaves >= 1) & (n_leaves <= most))

    def _same_rows(self, row: int) -> tuple[np.ndarray, np.ndarray, int] | None:
        """The pairs if all keys are equal: the usual case, compared as arrays."""
        reference, within, end = self._reference, self._within, self._ends[row]
        if end - row != len(reference):
            return None
        same = (
            np.array_equal(self._codes[row + 1 : end], self._reference_codes[1:])
            and np.array_equal(within.depth[row:end] - within.depth[row], reference.depth)
            and np.array_equal(within.is_leaf[row:end], reference.is_leaf)
        )
        self._effort -= len(reference) // 8
        leaves = np.flatnonzero(reference.is_leaf)
        return (leaves + row, leaves, 0) if same else None

    def _pairs(self, root: int) -> tuple[np.ndarray, np.ndarray, int] | None:
        """The leaves below `root`, their counterparts, and the number of holes. None: a leaf has no counterpart."""
        row_at, n_codes, parents, codes = self._row_at, self._n_codes, self._parents, self._code_list
        is_leaf, n_leaves_in, ends = self._is_leaf, self._n_leaves_in, self._ends
        counterpart = {root: 0}
        own, leaves, n_holes = [], [], 0
        row, end = root, ends[root]
        while row < end:
            row_there = 0 if row == root else row_at.get(counterpart.get(parents[row], -1) * n_codes + codes[row], -1)
            if row_there < 0:
                if n_leaves_in[row]:
                    self._effort -= row - root
                    self._came_close(root, len(own), row, f"has no counterpart in {self._reference.name}")
                    return None
                row = ends[row]
            elif is_leaf[row] or self._reference_is_leaf[row_there]:
                if n_leaves_in[row]:
                    # One of them may be alone in a node (such as a Variable) that the other tree does not have.
                    leaf = _only_leaf(self._within, row, n_leaves_in[row])
                    leaf_there = _only_leaf(self._reference, row_there, self._n_leaves_in_reference[row_there])
                    if leaf is None or leaf_there is None:
                        self._effort -= row - root
                        self._came_close(root, len(own), row, "is a leaf in one of them, and a node in the other")
                        return None
                    own.append(leaf)
                    leaves.append(leaf_there)
                else:
                    n_holes += 1
                row = ends[row]
            elif not n_leaves_in[row]:
                n_holes += self._n_leaves_in_reference[row_there]
                row = ends[row]
            else:
                counterpart[row] = row_there
                row += 1
        self._effort -= end - root
        return np.array(own, np.intp), np.array(leaves, np.intp), n_holes

    def _why_not(self, own: np.ndarray, leaves: np.ndarray, is_whole: bool) -> tuple[int, str] | None:
        """None if the shapes match; else a leaf and the reason."""
        same, other = self._compare_shapes(own, leaves)
        if self._whole and not is_whole:
            return int(own[0]), "exists only there"
        if len(other) and (not same or not is_whole):
            row, leaf = self._within[int(own[other[0]])], self._reference[int(leaves[other[0]])]
            return row.number, f"has the shape {shape_text(row.shape)} and not {shape_text(leaf.shape)}"
        if not same and (not is_whole or self._reference_is_leaf[0]):
            return int(own[0]), "has no shape to distinguish it from other numbers"
        return None

    def _compare_shapes(self, own: np.ndarray, leaves: np.ndarray) -> tuple[int, np.ndarray]:
        """The number of pairs with equal shapes, and the indices of those with different ones."""
        within, reference, n = self._within, self._reference, len(self._reference.facts)
        codes = within.fact_codes[own].astype(np.int64) * n + reference.fact_codes[leaves]
        kinds, inverse = np.unique(codes, return_inverse=True)
        facts = [(within.facts[kind // n], reference.facts[kind % n]) for kind in kinds]
        # Scalars, such as a step or a learning rate, are no evidence of a match.
        weigh = () if self._reference_is_leaf[0] else ((),)
        same = np.array([a.shape is not None and a.shape == b.shape and a.shape not in weigh for a, b in facts], bool)
        other = np.array([None not in (a.shape, b.shape) and a.shape != b.shape for a, b in facts], bool)
        return int(same[inverse].sum()), np.flatnonzero(other[inverse])

    def _came_close(self, root: int, n_fitting: int, row: int, why: str) -> None:
        if n_fitting > self._almost[0]:
            self._almost = (n_fitting, root, f"its leaf {path_text(self._within, row, root) or 'alone'} {why}")


def _segments(table: TreeTable, known: dict[object, int]) -> np.ndarray:
    """int64[n_rows]: a code of each row's key, equal in all trees and distinct among siblings."""
    code_of = lambda segment: known.setdefault(segment, len(known))  # noqa: E731
    codes = np.array([code_of(key.segment) for key in table.keys], np.int64)[table.key_codes]
    indexed = np.flatnonzero(table.key_codes == 0)
    positions, inverse = np.unique(table.position[indexed], return_inverse=True)
    codes[indexed] = np.array([code_of(str(position)) for position in positions.tolist()], np.int64)[inverse]
    places = table.parent.astype(np.int64) * (len(known) + 1) + codes
    order = np.argsort(places, kind="stable")
    n_before: dict[int, int] = {}
    for i in (np.flatnonzero(np.diff(places[order]) == 0) + 1).tolist():  # siblings of the same name, in order
        row = int(order[i])
        n_before[int(places[row])] = n = n_before.get(int(places[row]), 0) + 1
        codes[row] = code_of((int(codes[row]), n))
    return codes


def _only_leaf(table: TreeTable, row: int, n_leaves: int) -> int | None:
    """The row of a leaf; for a node that may wrap one leaf, the leaf inside."""
    if table.is_leaf[row]:
        return row
    if n_leaves != 1 or not KINDS[table.facts[table.fact_codes[row]].kind].may_box:
        return None
    return row + int(np.argmax(table.is_leaf[row : table.end[row]]))


HOLE = "—"
_N_TEXT = 40  # characters of a label other than a dtype
_N_DISTINCT = 15  # labels of a subtree; the others are "…"
_N_LISTED = 3


class OtherTreeColumns(NamedTuple):
    """The columns and notes that other trees add to a table.

    The columns of each matching subtree are "NAME.dtype" and "NAME.bytes", with statistics also "NAME.rms",
    "NAME.norm", "NAME.nonfinite" and "NAME.ratio". NAME is the subtree, such as "grads" or "opt_state.0.mu".
    "NAME.spec" is that of a tree that is a prefix of this one.
    """

    columns: tuple[Column, ...]
    shown: tuple[str, ...]  # the names of the columns to show at first, usually one for each subtree
    notes: dict[int, tuple[Note, ...]]  # at the root, about trees without a matching subtree
    headline: tuple[str, ...]  # with statistics: "NaN/Inf in 1 leaf of grads" of each subtree that has some


class _Found(NamedTuple):
    """The leaves of a matching subtree, and the rows of the table that they belong to."""

    other: TreeTable
    row: int  # of the other tree: the root of the match
    rows: np.ndarray  # of the table
    facts: list[Facts]  # of the other tree's leaves
    nodes: list[Any]
    inside: np.ndarray  # bool[n_rows]: rows where a missing leaf is a hole
    title: str = ""  # the place, or its end
    field: str = ""  # of a query

    @property
    def place(self) -> str:
        """ "opt_state[0].mu"."""
        return place_text(self.other, self.row)


def other_tree_columns(
    table: TreeTable,
    nodes: Sequence[object],
    trees: Mapping[str, Any],
    *,
    stats: bool = False,
    is_leaf: Callable[[Any], bool] | None = None,
    budget: Budget = WHOLE,
) -> OtherTreeColumns:
    """Columns for every subtree of other trees that has the structure of this tree, as `find_structure` defines it.

    If no subtree of a tree matches, but the whole tree has the structure of subtrees of this one (gradients and a train
    state), its leaves are shown in their rows. A tree without arrays, such as a mask, may also be a prefix of this one:
    see `treeviz.overlay`. Costs the walk of the other trees, each within the budget, and about 1 µs a pair of leaves.
    """
    notes: list[Note] = []
    columns: list[Column] = []
    all_found: list[_Found] = []
    headline: list[str] = []
    for name, tree in trees.items():
        other, others = scan(tree, is_leaf=is_leaf, name=name, budget=budget)
        if holds_specs(other, others) and not find_structure(table, other).matches:
            laid = lay_prefix(tree, Side(table, list(nodes)), other)
            columns += [laid] if isinstance(laid, Column) else []
            notes += [laid] if isinstance(laid, Note) else []
        else:
            all_found += _find(table, other, others, notes)
    shown = [column.name for column in columns]
    for found, title in zip(all_found, titles([(found.other, found.row) for found in all_found]), strict=True):
        taken = {*table.columns, *(column.name for column in columns)}
        found = found._replace(title=title, field=field(found.other, found.row, taken))
        others = dict(zip(found.rows.tolist(), found.nodes, strict=True))
        same = [nodes[row] is node for row, node in others.items()]
        n_bytes = [facts.bytes for facts in found.facts]
        levels = np.zeros(len(table), whole_numbers(n_bytes, len(table)).dtype)
        levels[found.rows] = n_bytes
        sizes = (f"{title} bytes", levels, None, "bytes", "sum", f"Bytes of the arrays in {found.place}")
        added = [_labels(table, found, same), Column(f"{found.field}.bytes", *sizes)]
        shown_names = [added[0].name]
        if stats:
            n_notes = len(notes)
            rms, nonfinite, *_ = measured = _measured(table, found, others, budget, notes)
            added += measured
            counts = np.nan_to_num(nonfinite.values[table.is_leaf])
            if n := int(np.count_nonzero(counts)):
                at_least = "≥ " * (len(notes) > n_notes)
                headline.append(f"NaN/Inf in {at_least}{counted(n, 'leaf', 'leaves')} of {title}")
            has_numbers = (rms, ~np.isnan(rms.levels)), (nonfinite, np.asarray(nonfinite.levels) > 0)
            shown_names = [column.name for column, has_number in has_numbers if has_number.any()] or shown_names
        columns += added
        shown += shown_names
    return OtherTreeColumns(tuple(columns), tuple(shown), {0: tuple(notes)} if notes else {}, tuple(headline))


def _find(table: TreeTable, other: TreeTable, nodes: list[Any], notes: list[Note]) -> list[_Found]:
    search = find_structure(table, other)
    is_part = is_cut(table) or is_cut(other)
    if is_part:
        notes.append(Note("info", f"{other.name}: compared only where both trees were walked"))
    if search.n_more:
        notes.append(Note("info", f"{other.name}: {search.n_more} more subtrees have this structure"))
    if search.matches:
        inside = np.full(len(table), not is_part)  # a row that was not walked is not a hole
        return [_at(other, match.row, match.own, nodes, match.leaves, inside) for match in search.matches]
    inverse = [] if other.is_leaf[0] else find_structure(other, table, whole=True).matches
    if inverse:
        inside = np.zeros(len(table), dtype=bool)
        for match in inverse:
            inside[match.row : table.end[match.row]] = not is_part
        rows, leaves = (np.concatenate([getattr(match, which) for match in inverse]) for which in ("own", "leaves"))
        return [_at(other, 0, leaves, nodes, rows, inside)]
    if is_part:
        return []
    text = f"{other.name}: nothing in it has the structure of {table.name}"
    if search.almost is not None:
        row, why = search.almost
        text += f"; {place_text(other, row)} comes closest, but {why}"
    notes.append(Note("info", text))
    return []


def _at(
    other: TreeTable, row: int, leaves: np.ndarray, nodes: list[Any], rows: np.ndarray, inside: np.ndarray
) -> _Found:
    facts = [other.facts[code] for code in other.fact_codes[leaves].tolist()]
    return _Found(other, row, rows, facts, [nodes[leaf] for leaf in leaves.tolist()], inside)


def _labels(table: TreeTable, found: _Found, same: list[bool]) -> Column:
    """The column of dtypes, holes and other shapes; a node's cell lists those of its leaves."""
    codes = np.full(len(table), -1, np.int64)
    main = [table.facts[code] for code in table.fact_codes[found.rows].tolist()]
    written: dict[tuple[int, int, bool], int] = {}
    labels: dict[str, int] = {HOLE: 0}
    codes[table.is_leaf & found.inside] = 0
    own_codes = []
    for i, key in enumerate(zip(map(id, found.facts), map(id, main), same, strict=True)):
        if key not in written:
            written[key] = labels.setdefault(_text(found.facts[i], main[i], same[i]), len(labels))
        own_codes.append(written[key])
    codes[found.rows] = own_codes
    help = f"The dtype of {found.place} here, and its shape if that is another. {HOLE}: there is nothing"
    return Column(f"{found.field}.dtype", found.title, *_with_nodes(table, list(labels), codes), help=help)


def _text(own: Facts, main: Facts, same: bool) -> str:
    if same and KINDS[own.kind].has_identity:
        return "same array"
    text = f"{'~' if own.weak else ''}{own.dtype}" if own.dtype else own.text or own.type
    if own.kind == "deleted":
        text += " deleted"
    text = text if len(text) <= _N_TEXT else text[: _N_TEXT - 1] + "…"
    return text if own.shape is None or own.shape == main.shape else f"{text} {shape_text(own.shape)}"


def _with_nodes(table: TreeTable, labels: list[str], codes: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The levels and codes of all rows. In `codes` -1 is a row without a label of its own."""
    counts = np.bincount(codes[codes >= 0], minlength=len(labels))
    common = np.argsort(-counts, kind="stable")[:_N_DISTINCT]
    bit = np.full(len(labels) + 1, _N_DISTINCT)
    bit[common] = np.arange(len(common))
    bit[-1] = -1
    bits = bit[codes]
    below = np.zeros(len(table), np.int64)
    for i in np.unique(bits[bits >= 0]).tolist():
        before = np.concatenate([[0], np.cumsum(bits == i)])
        below |= (before[table.end] > before[:-1]).astype(np.int64) << i
    sets, set_of_row = np.unique(below, return_inverse=True)
    distinct = [*(labels[i] for i in common), *("…",) * (_N_DISTINCT + 1 - len(common))]
    texts = []
    for label_bits in sets.tolist():
        members = [distinct[i] for i in range(_N_DISTINCT + 1) if label_bits >> i & 1]
        texts.append(", ".join([*members[:_N_LISTED], *(["…"] if len(members) > _N_LISTED else [])]))
    return [*labels, *texts], np.where(codes >= 0, codes, len(labels) + set_of_row).astype(np.int32)


def _measured(
    table: TreeTable, found: _Found, others: Mapping[int, Any], budget: Budget, notes: list[Note]
) -> list[Column]:
    """The value statistics of each row's counterpart, for nodes too."""
    from treeviz.analysis.stats import NOT_READ, value_statistics

    columns, reasons = value_statistics(table, [others.get(row) for row in range(len(table))], budget=budget)
    place, not_read = found.place, [text for text in reasons.values() if text.startswith(NOT_READ)]
    notes += [Note("info", f"{place}: {len(not_read):,} leaves were {not_read[0]}")] if not_read else []
    by_name = {column.name: column for column in columns}
    codes = by_name["rms"].codes
    names = ("rms", "zeros", "nan", "inf", "histogram")
    rms, zeros, nan, inf, histogram = (np.asarray(by_name[name].levels) for name in names)
    with np.errstate(all="ignore"):
        norm = rms * np.sqrt(histogram.sum(axis=1, dtype=np.float64) + zeros)

    def column(name: str, suffix: str, levels, help: str, format: Format = "number", codes=codes) -> Column:
        return Column(f"{found.field}.{name}", f"{found.title} {suffix}", levels, codes, format, "given", help)

    measured = [
        column("rms", "rms", rms, f"the root of the mean square of the finite values in {place}"),
        column("nonfinite", "NaN/Inf", nan + inf, f"the number of values in {place} that are NaN or infinite", "count"),
        column("norm", "norm", norm, f"the L2 norm of the finite values in {place}"),
    ]
    if "rms" in table.columns:
        with np.errstate(all="ignore"):
            ratio = measured[0].values / table.columns["rms"].values
        ratio[~np.isfinite(ratio)] = np.nan
        help = f"{place} rms ÷ {table.name} rms"
        measured.append(column("ratio", f"÷ {table.name}", ratio, help, codes=None))
    return measured
