"""Other trees beside a tree: gradients, moments and averages in the row of the parameter that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from treeviz.analysis.alignment import find_structure, shape_text
from treeviz.analysis.place_names import field, place_text, titles
from treeviz.analysis.sizes import whole_numbers
from treeviz.tree.column import Column, Format
from treeviz.tree.table import Facts, Note, TreeTable
from treeviz.tree.walk import scan

HOLE = "—"
_N_TEXT = 40  # characters of what is no dtype
_N_TOLD_APART = 15  # labels of a subtree; the others are "…"
_N_LISTED = 3
_SAME = ("array", "numpy", "key", "ref")  # kinds of which it matters whether they are one object


class Beside(NamedTuple):
    """What other trees add to a table.

    Attributes:
      columns: Of each place where the structure was found "NAME.dtype" and "NAME.bytes", with statistics also
        "NAME.rms", "NAME.norm", "NAME.nonfinite" and "NAME.ratio". NAME is "grads", "opt_state.0.mu".
      shown: The names of those that are worth showing at first, one of each place as a rule.
      notes: About trees in which nothing was found, at the root.
    """

    columns: tuple[Column, ...]
    shown: tuple[str, ...]
    notes: dict[int, tuple[Note, ...]]


class _Found(NamedTuple):
    """One tree's leaves, by the leaves of the table that they stand beside."""

    other: TreeTable
    row: int  # of the other tree: where its structure was found
    rows: np.ndarray  # of the table
    facts: list[Facts]  # of the other tree's leaves
    things: list[Any]
    inside: np.ndarray  # bool[n_rows]: where the absence of a leaf is a hole


class _Named(NamedTuple):
    place: str  # "opt_state[0].mu"
    title: str  # the same, or its end
    field: str  # of a query


def beside_columns(
    table: TreeTable,
    nodes: Sequence[object],
    trees: Mapping[str, Any],
    *,
    stats: bool = False,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Beside:
    """The leaves of every subtree of other trees that has the structure of this one, as columns.

    What has the structure is said in `find_structure`. If no subtree of a tree has it, and the tree as a whole
    has the structure of subtrees of this one (the gradients beside a whole train state), it stands beside them.
    No array is kept. Costs the walk of the other trees and about 1 µs a pair of leaves, with statistics
    what those cost.

    Args:
      table: As walked; with `stats` with its own value statistics, if there is to be a ratio.
      nodes: The node or leaf of each of its rows.
      trees: Other trees by name.
      stats: Read the values.
      is_leaf: As in `jax.tree.leaves`, for the other trees.
    """
    notes: list[Note] = []
    every = [
        found for name, tree in trees.items() for found in _find(table, *scan(tree, is_leaf=is_leaf, name=name), notes)
    ]
    columns: list[Column] = []
    shown: list[str] = []
    for found, title in zip(every, titles([(found.other, found.row) for found in every]), strict=True):
        taken = {*table.columns, *(column.name for column in columns)}
        named = _Named(place_text(found.other, found.row), title, field(found.other, found.row, taken))
        things = dict(zip(found.rows.tolist(), found.things, strict=True))
        same = [nodes[row] is thing for row, thing in things.items()]
        added = [_labels(table, found, named, same), _bytes(table, found, named)]
        first = [added[0].name]
        if stats:
            measured = _measured(table, found, named, things)
            added += measured
            first = [c.name for c in measured if c.name.endswith((".rms", ".nonfinite")) and _says(c)] or first
        columns += added
        shown += first
    return Beside(tuple(columns), tuple(shown), {0: tuple(notes)} if notes else {})


def _find(table: TreeTable, other: TreeTable, things: list[Any], notes: list[Note]) -> list[_Found]:
    search = find_structure(table, other)
    if search.n_more:
        notes.append(Note("info", f"{other.name}: {search.n_more} more subtrees have this structure"))
    if search.places:
        inside = np.ones(len(table), dtype=bool)
        return [_at(other, place.row, place.own, things, place.leaves, inside) for place in search.places]
    inverse = [] if other.is_leaf[0] else find_structure(other, table, whole=True).places
    if inverse:
        inside = np.zeros(len(table), dtype=bool)
        for place in inverse:
            inside[place.row : table.end[place.row]] = True
        rows, leaves = (np.concatenate([getattr(place, which) for place in inverse]) for which in ("own", "leaves"))
        return [_at(other, 0, leaves, things, rows, inside)]
    text = f"{other.name}: nothing in it has the structure of {table.name}"
    if search.almost is not None:
        row, why = search.almost
        text += f"; {place_text(other, row)} comes closest, but {why}"
    notes.append(Note("info", text))
    return []


def _at(
    other: TreeTable, row: int, leaves: np.ndarray, things: list[Any], rows: np.ndarray, inside: np.ndarray
) -> _Found:
    facts = [other.facts[code] for code in other.fact_codes[leaves].tolist()]
    return _Found(other, row, rows, facts, [things[leaf] for leaf in leaves.tolist()], inside)


# Columns


def _labels(table: TreeTable, found: _Found, named: _Named, same: list[bool]) -> Column:
    """What stands there: a dtype, a hole, another shape; of a node all that there is below it."""
    codes = np.full(len(table), -1, np.int64)
    main = [table.facts[code] for code in table.fact_codes[found.rows].tolist()]
    looks = zip(map(id, found.facts), map(id, main), same, strict=True)
    written: dict[tuple[int, int, bool], int] = {}
    labels: dict[str, int] = {HOLE: 0}
    codes[table.is_leaf & found.inside] = 0
    own_codes = []
    for i, look in enumerate(looks):
        code = written.get(look)
        if code is None:
            code = written[look] = labels.setdefault(_text(found.facts[i], main[i], same[i]), len(labels))
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
    if same and own.kind in _SAME:
        return "same array"
    what = f"{'~' if own.weak else ''}{own.dtype}" if own.dtype else own.text or own.type
    if own.kind == "deleted":
        what += " deleted"
    what = what if len(what) <= _N_TEXT else what[: _N_TEXT - 1] + "…"
    return what if own.shape is None or own.shape == main.shape else f"{what} {shape_text(own.shape)}"


def _with_nodes(table: TreeTable, labels: list[str], codes: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The levels and codes of all rows; -1 is a row without a label of its own."""
    counts = np.bincount(codes[codes >= 0], minlength=len(labels))
    common = np.argsort(-counts, kind="stable")[:_N_TOLD_APART]
    bit = np.full(len(labels) + 1, _N_TOLD_APART)
    bit[common] = np.arange(len(common))
    bit[-1] = -1
    bits = bit[codes]
    below = np.zeros(len(table), np.int64)
    for i in np.unique(bits[bits >= 0]).tolist():
        before = np.concatenate([[0], np.cumsum(bits == i)])
        below |= (before[table.end] > before[:-1]).astype(np.int64) << i
    sets, of_node = np.unique(below, return_inverse=True)
    told = [*(labels[i] for i in common), *("…",) * (_N_TOLD_APART + 1 - len(common))]
    texts = []
    for each in sets.tolist():
        members = [told[i] for i in range(_N_TOLD_APART + 1) if each >> i & 1]
        texts.append(", ".join([*members[:_N_LISTED], *(["…"] if len(members) > _N_LISTED else [])]))
    return [*labels, *texts], np.where(codes >= 0, codes, len(labels) + of_node).astype(np.int32)


def _bytes(table: TreeTable, found: _Found, named: _Named) -> Column:
    n_bytes = [facts.bytes for facts in found.facts]
    levels = np.zeros(len(table), whole_numbers(n_bytes, len(table)).dtype)
    levels[found.rows] = n_bytes
    title, help = f"{named.title} bytes", f"Bytes of the arrays in {named.place}"
    return Column(f"{named.field}.bytes", title, levels, None, "bytes", "sum", help)


def _measured(table: TreeTable, found: _Found, named: _Named, things: Mapping[int, Any]) -> list[Column]:
    """What can be said of the values. Beside a row stand those of its counterpart, also beside a node."""
    from treeviz.analysis.stats import value_statistics

    columns, _ = value_statistics(table, [things.get(row) for row in range(len(table))])
    by_name = {column.name: column for column in columns}
    codes = by_name["rms"].codes
    rms, zeros, nan, inf, histogram = (
        np.asarray(by_name[name].levels) for name in ("rms", "zeros", "nan", "inf", "histogram")
    )
    with np.errstate(all="ignore"):
        norm = rms * np.sqrt(histogram.sum(axis=1) + zeros)
    place = named.place

    def column(name: str, said: str, levels, help: str, format: Format = "number", codes=codes) -> Column:
        return Column(f"{named.field}.{name}", f"{named.title} {said}", levels, codes, format, "given", help)

    measured = [
        column("rms", "rms", rms, f"the root of the mean square of the finite values in {place}"),
        column("nonfinite", "NaN/Inf", nan + inf, f"how many values in {place} are NaN or infinite", "count"),
        column("norm", "norm", norm, f"the L2 norm of the finite values in {place}"),
    ]
    if "rms" in table.columns:
        with np.errstate(all="ignore"):
            ratio = measured[0].values / table.columns["rms"].values
        ratio[~np.isfinite(ratio)] = np.nan
        help = f"the rms of {place} by that of {table.name}"
        measured.append(column("ratio", f"/ {table.name}", ratio, help, codes=None))
    return measured


def _says(column: Column) -> bool:
    """Whether there is a number in it, or of a count one that is not zero."""
    values = np.asarray(column.levels, np.float64)
    return bool(np.any(values > 0 if column.format == "count" else ~np.isnan(values)))
