"""Columns of other trees: gradients, moments and averages in the row of their parameter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from treeviz.analysis.compare.aligned import Side
from treeviz.analysis.facts import shape_text
from treeviz.analysis.overlay.prefix_column import holds_specs, lay_prefix
from treeviz.analysis.side_by_side.labels import field, place_text, titles
from treeviz.analysis.side_by_side.structure import find_structure
from treeviz.analysis.sizes import is_cut, whole_numbers
from treeviz.tree.budget import WHOLE, Budget
from treeviz.tree.column import Column, Format
from treeviz.tree.facts import Facts, Note
from treeviz.tree.kinds import KINDS
from treeviz.tree.table import TreeTable
from treeviz.tree.walk import scan

HOLE = "—"
_N_TEXT = 40  # characters of a label other than a dtype
_N_DISTINCT = 15  # labels of a subtree; the others are "…"
_N_LISTED = 3


class OtherTreeColumns(NamedTuple):
    """The columns and notes that other trees add to a table.

    Attributes:
      columns: For each matching subtree "NAME.dtype" and "NAME.bytes", with statistics also "NAME.rms", "NAME.norm",
        "NAME.nonfinite" and "NAME.ratio". NAME is the subtree, such as "grads" or "opt_state.0.mu". "NAME.spec" of a
        tree that is a prefix of this one.
      shown: The names of the columns to show at first, usually one for each subtree.
      notes: At the root, about trees without a matching subtree.
      headline: "NaN/Inf in 1 leaf of grads" of each subtree that has some, with statistics.
    """

    columns: tuple[Column, ...]
    shown: tuple[str, ...]
    notes: dict[int, tuple[Note, ...]]
    headline: tuple[str, ...]


class _Found(NamedTuple):
    """The leaves of a matching subtree, and the rows of the table that they belong to."""

    other: TreeTable
    row: int  # of the other tree: the root of the match
    rows: np.ndarray  # of the table
    facts: list[Facts]  # of the other tree's leaves
    nodes: list[Any]
    inside: np.ndarray  # bool[n_rows]: rows where a missing leaf is a hole


class _Named(NamedTuple):
    place: str  # "opt_state[0].mu"
    title: str  # the same, or its end
    field: str  # of a query


def other_tree_columns(
    table: TreeTable,
    nodes: Sequence[object],
    trees: Mapping[str, Any],
    *,
    stats: bool = False,
    is_leaf: Callable[[Any], bool] | None = None,
    budget: Budget = WHOLE,
) -> OtherTreeColumns:
    """Columns for every subtree of other trees that has the structure of this tree.

    `find_structure` defines which subtrees match. If no subtree of a tree matches, but the whole tree has the structure
    of subtrees of this one (gradients and a train state), its leaves are shown in their rows. A tree without arrays,
    such as a mask, may also be a prefix of this one: see `treeviz.overlay`. No array is kept alive.
    Costs the walk of the other trees and about 1 µs a pair of leaves, with `stats` also `value_statistics`.

    Args:
      table: As walked. If it has value statistics, `stats` adds the ratio of root mean squares.
      nodes: The node or leaf of each of its rows.
      trees: Other trees by name.
      stats: Read the values.
      is_leaf: As in `jax.tree.leaves`, for the other trees.
      budget: Of each other tree; what it leaves out is noted at the root.
    """
    notes: list[Note] = []
    columns: list[Column] = []
    every: list[_Found] = []
    headline: list[str] = []
    for name, tree in trees.items():
        other, others = scan(tree, is_leaf=is_leaf, name=name, budget=budget)
        if holds_specs(other, others) and not find_structure(table, other).matches:
            laid = lay_prefix(tree, Side(table, list(nodes)), other)
            columns += laid.columns
            notes += laid.notes
        else:
            every += _find(table, other, others, notes)
    shown = [column.name for column in columns]
    for found, title in zip(every, titles([(found.other, found.row) for found in every]), strict=True):
        taken = {*table.columns, *(column.name for column in columns)}
        named = _Named(place_text(found.other, found.row), title, field(found.other, found.row, taken))
        others = dict(zip(found.rows.tolist(), found.nodes, strict=True))
        same = [nodes[row] is node for row, node in others.items()]
        added = [_labels(table, found, named, same), _bytes(table, found, named)]
        first = [added[0].name]
        if stats:
            n_notes = len(notes)
            measured = _measured(table, found, named, others, budget, notes)
            added += measured
            counts = next(c for c in measured if c.name.endswith(".nonfinite")).values[table.is_leaf]
            if n := int(np.count_nonzero(np.nan_to_num(counts))):
                least, leaves = "≥ " * (len(notes) > n_notes), "leaf" if n == 1 else "leaves"
                headline.append(f"NaN/Inf in {least}{n:,} {leaves} of {named.title}")
            first = [c.name for c in measured if c.name.endswith((".rms", ".nonfinite")) and _says(c)] or first
        columns += added
        shown += first
    return OtherTreeColumns(tuple(columns), tuple(shown), {0: tuple(notes)} if notes else {}, tuple(headline))


def _find(table: TreeTable, other: TreeTable, nodes: list[Any], notes: list[Note]) -> list[_Found]:
    search = find_structure(table, other)
    is_part = is_cut(table) or is_cut(other)
    if is_part:
        notes.append(Note("info", f"{other.name}: compared only where both trees were walked"))
    if search.n_more:
        notes.append(Note("info", f"{other.name}: {search.n_more} more subtrees have this structure"))
    if search.matches:
        inside = np.full(len(table), not is_part)  # what was not walked is no hole
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


# Columns


def _labels(table: TreeTable, found: _Found, named: _Named, same: list[bool]) -> Column:
    """The column of dtypes, holes and other shapes; a node's cell lists those of its leaves."""
    codes = np.full(len(table), -1, np.int64)
    main = [table.facts[code] for code in table.fact_codes[found.rows].tolist()]
    cache_keys = zip(map(id, found.facts), map(id, main), same, strict=True)
    written: dict[tuple[int, int, bool], int] = {}
    labels: dict[str, int] = {HOLE: 0}
    codes[table.is_leaf & found.inside] = 0
    own_codes = []
    for i, key in enumerate(cache_keys):
        code = written.get(key)
        if code is None:
            code = written[key] = labels.setdefault(_text(found.facts[i], main[i], same[i]), len(labels))
        own_codes.append(code)
    codes[found.rows] = own_codes
    levels, level_codes = _with_nodes(table, list(labels), codes)
    return Column(
        f"{named.field}.dtype",
        named.title,
        levels,
        level_codes,
        help=f"The dtype of {named.place} here, and its shape if that is another. {HOLE}: there is nothing",
    )


def _text(own: Facts, main: Facts, same: bool) -> str:
    if same and KINDS[own.kind].has_identity:
        return "same array"
    what = f"{'~' if own.weak else ''}{own.dtype}" if own.dtype else own.text or own.type
    if own.kind == "deleted":
        what += " deleted"
    what = what if len(what) <= _N_TEXT else what[: _N_TEXT - 1] + "…"
    return what if own.shape is None or own.shape == main.shape else f"{what} {shape_text(own.shape)}"


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
    sets, of_node = np.unique(below, return_inverse=True)
    distinct = [*(labels[i] for i in common), *("…",) * (_N_DISTINCT + 1 - len(common))]
    texts = []
    for each in sets.tolist():
        members = [distinct[i] for i in range(_N_DISTINCT + 1) if each >> i & 1]
        texts.append(", ".join([*members[:_N_LISTED], *(["…"] if len(members) > _N_LISTED else [])]))
    return [*labels, *texts], np.where(codes >= 0, codes, len(labels) + of_node).astype(np.int32)


def _bytes(table: TreeTable, found: _Found, named: _Named) -> Column:
    n_bytes = [facts.bytes for facts in found.facts]
    levels = np.zeros(len(table), whole_numbers(n_bytes, len(table)).dtype)
    levels[found.rows] = n_bytes
    title, help = f"{named.title} bytes", f"Bytes of the arrays in {named.place}"
    return Column(f"{named.field}.bytes", title, levels, None, "bytes", "sum", help)


def _measured(
    table: TreeTable, found: _Found, named: _Named, others: Mapping[int, Any], budget: Budget, notes: list[Note]
) -> list[Column]:
    """The value statistics of each row's counterpart, for nodes too."""
    from treeviz.analysis.stats.columns import value_statistics
    from treeviz.analysis.stats.scan import NOT_READ

    columns, reasons = value_statistics(table, [others.get(row) for row in range(len(table))], budget=budget)
    not_read = [text for text in reasons.values() if text.startswith(NOT_READ)]
    if not_read:
        notes.append(Note("info", f"{named.place}: {len(not_read):,} leaves were {not_read[0]}"))
    by_name = {column.name: column for column in columns}
    codes = by_name["rms"].codes
    rms, zeros, nan, inf, histogram = (
        np.asarray(by_name[name].levels) for name in ("rms", "zeros", "nan", "inf", "histogram")
    )
    with np.errstate(all="ignore"):
        norm = rms * np.sqrt(histogram.sum(axis=1, dtype=np.float64) + zeros)
    place = named.place

    def column(name: str, suffix: str, levels, help: str, format: Format = "number", codes=codes) -> Column:
        return Column(f"{named.field}.{name}", f"{named.title} {suffix}", levels, codes, format, "given", help)

    measured = [
        column("rms", "rms", rms, f"the root of the mean square of the finite values in {place}"),
        column("nonfinite", "NaN/Inf", nan + inf, f"how many values in {place} are NaN or infinite", "count"),
        column("norm", "norm", norm, f"the L2 norm of the finite values in {place}"),
    ]
    if "rms" in table.columns:
        with np.errstate(all="ignore"):
            ratio = measured[0].values / table.columns["rms"].values
        ratio[~np.isfinite(ratio)] = np.nan
        help = f"{place} rms ÷ {table.name} rms"
        measured.append(column("ratio", f"÷ {table.name}", ratio, help, codes=None))
    return measured


def _says(column: Column) -> bool:
    """Whether the column has a number; for a count, one above zero."""
    values = np.asarray(column.levels, np.float64)
    return bool(np.any(values > 0 if column.format == "count" else ~np.isnan(values)))
