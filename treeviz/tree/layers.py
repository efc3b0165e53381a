"""The layers of a stack as rows: an array that holds all layers of a model gets a child row for each of them.

JAX sees one leaf, so these rows do not count in sums. They show values: statistics, series, findings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from treeviz.tree.facts import Facts, Note
from treeviz.tree.keys import Key
from treeviz.tree.table import TreeTable

_EXPERTS = re.compile("expert", re.IGNORECASE)
LAYER = "layer"  # the kind of these rows
MOST_LAYERS = 1 << 16  # in an array; one with more is more likely an embedding table
MOST_SCANNED = 1 << 10  # in an array that no glob names; more are more likely time steps
MOST_MEASURED = 1 << 17  # in a measured tree

TOO_MANY = "{:,} are more than there is room for"

Stacked = (
    str | Sequence[str] | Mapping[str, int]
)  # globs of key paths, or a dict with the axis of the layers; default 0


class NoStack(ValueError):
    """A glob matches no array with layers."""

    def __init__(self, glob: str, axis: int, name: str) -> None:
        self.glob = glob
        super().__init__(
            f"stacked={glob!r}: no array of {name} with an axis {axis} has a key path that ends like this. "
            f"{name}.find({glob!r}) lists what does, and a glob may also name a node above the arrays."
        )


def stacked_axes(stacked: Stacked) -> dict[str, int]:
    """The axis of the layers for each glob.

    Raises:
      TypeError: The argument is not a glob, a list of globs or a dict.
    """
    globs = [stacked] if isinstance(stacked, str) else stacked
    axes = dict(globs) if isinstance(globs, Mapping) else dict.fromkeys(globs, 0)
    if not all(isinstance(glob, str) and isinstance(axis, int) for glob, axis in axes.items()):
        raise TypeError("stacked= takes globs of key paths, 'layers/*', or a dict of globs and axes, {'layers/*': 1}.")
    return axes


def stacks_in(table: TreeTable, stacked: Stacked) -> dict[int, int]:
    """The axis of the layers, by row, for each array with a key path, or an ancestor's, that matches a glob.

    Raises:
      NoStack: A glob matches no array with such an axis.
    """
    from treeviz.tree.query import on_path

    axes: dict[int, int] = {}
    for glob, axis in stacked_axes(stacked).items():
        found = np.flatnonzero(table.is_leaf & is_below(table, on_path(table, glob)))
        rows = [row for row in found.tolist() if _n_layers(table, row, axis)]
        if not rows:
            raise NoStack(glob, axis, table.name)
        axes.update(dict.fromkeys(rows, axis))
    return axes


def is_of_experts(path: str) -> bool:
    """Whether an array holds the experts of a layer, not layers: "['experts']['wi']"."""
    return _EXPERTS.search(path) is not None


def is_below(table: TreeTable, matched: np.ndarray) -> np.ndarray:
    """bool[n_rows]: whether a row is matched, or is below a matched row."""
    starts = np.zeros(len(table) + 1, np.int64)
    np.add.at(starts, np.flatnonzero(matched), 1)
    np.add.at(starts, table.end[matched], -1)
    return np.cumsum(starts)[:-1] > 0


def _n_layers(table: TreeTable, row: int, axis: int) -> int:
    shape = table.facts[table.fact_codes[row]].shape or ()
    return shape[axis] if 0 <= axis < len(shape) and isinstance(shape[axis], int) else 0


def open_stacks(
    table: TreeTable, axes: Mapping[int, int], *, max_rows: int = 2_000_000
) -> tuple[TreeTable, np.ndarray]:
    """Add a row for each layer below its array.

    Args:
      table: As walked, without columns.
      axes: The axis of the layers of each array, by row.
      max_rows: The most rows of the result.

    Returns:
      The table, and the former row of each of its rows; for a layer, that of its array.
    """
    if not axes:
        return table, np.arange(len(table))
    notes, counts, room = dict[int, tuple[Note, ...]](), np.zeros(len(table), np.int64), max_rows - len(table)
    for row, axis in axes.items():
        n = _n_layers(table, row, axis)
        if n > MOST_LAYERS or n > room:
            notes[row] = (Note("info", f"its layers are not shown: {TOO_MANY.format(n)}"),)
        else:
            counts[row] = n
            room -= n
    table = table.with_notes(notes)
    n_before = np.concatenate([[0], np.cumsum(counts)])
    source = np.repeat(np.arange(len(table)), 1 + counts)
    new_row = np.arange(len(table)) + n_before[:-1]  # by former row
    is_layer = np.ones(len(source), bool)
    is_layer[new_row] = False
    layers, arrays = np.flatnonzero(is_layer), source[is_layer]
    codes = _Codes(table, axes)
    parent, end, position = new_row[table.parent[source]], np.arange(1, len(source) + 1), table.position[source]
    parent[0], parent[layers] = -1, new_row[arrays]
    end[new_row] = table.end + n_before[table.end]
    position[layers] = layers - new_row[arrays] - 1
    key_codes, fact_codes = table.key_codes[source], table.fact_codes[source]
    key_codes[layers] = [codes.key(row, i) for row, i in zip(arrays.tolist(), position[layers].tolist(), strict=True)]
    fact_codes[layers] = [codes.fact(row) for row in arrays.tolist()]
    opened = replace(
        table,
        depth=(table.depth[source] + is_layer).astype(np.int32),
        parent=parent.astype(np.int32),
        end=end.astype(np.int32),
        position=position,
        key_codes=key_codes,
        keys=tuple(codes.keys),
        fact_codes=fact_codes,
        facts=tuple(codes.facts),
        notes={
            int(new_row[row]): tuple(n._replace(row=int(new_row[n.row])) if n.row >= 0 else n for n in notes)
            for row, notes in table.notes.items()
        },
        columns={},
    )
    return opened, source


class _Codes:
    """The codes of the keys and facts of layers."""

    def __init__(self, table: TreeTable, axes: Mapping[int, int]) -> None:
        self.keys, self.facts = list(table.keys), list(table.facts)
        self._table, self._axes = table, axes
        self._keys: dict[tuple[int, int], int] = {}
        self._facts: dict[tuple[int, int, bool], int] = {}

    def key(self, row: int, layer: int) -> int:
        axis = self._axes[row]
        if axis and (axis, layer) not in self._keys:
            self._keys[axis, layer] = len(self.keys)
            text = index_text(axis, layer)
            self.keys.append(Key(text, text, str(layer), (text,)))
        return self._keys[axis, layer] if axis else 0  # the index in a list or tuple

    def fact(self, row: int) -> int:
        code, axis = int(self._table.fact_codes[row]), self._axes[row]
        has_name = is_of_experts(self._table[row].keystr)  # so the word "layer" would be wrong
        if (code, axis, has_name) not in self._facts:
            self._facts[code, axis, has_name] = len(self.facts)
            array_facts = self.facts[code]
            shape = (array_facts.shape or ())[:axis] + (array_facts.shape or ())[axis + 1 :]
            own = Facts(LAYER, array_facts.type, False, shape=shape, dtype=array_facts.dtype, weak=array_facts.weak)
            self.facts.append(own._replace(is_as_all=has_name))
        return self._facts[code, axis, has_name]


def row_for_jax(table: TreeTable, row: int) -> int:
    """The row that JAX sees as a node or leaf: for a layer, the row of its array."""
    return int(table.parent[row]) if table.is_layer[row] else row


def part_of(table: TreeTable, row: int, node: Any) -> Any:
    """The part of a node or leaf that a row shows: a layer of its array, or all of it."""
    if not table.is_layer[row]:
        return node
    return node[(slice(None),) * axis_of(table, row) + (int(table.position[row]),)]


def index_text(axis: int, layer: int) -> str:
    """ "[3]", "[:, 3]"."""
    return f"[{':, ' * axis}{layer}]"


def axis_of(table: TreeTable, layer: int) -> int:
    """The axis of the array that a layer's row indexes."""
    return table.key(layer).label.count(":")
