"""What holds for the tree of every library: JAX's own flatten is the truth."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from test_samples import check_table

import treeviz
from treeviz import integrations
from treeviz.tree.table import Row, TreeTable
from treeviz.tree.walk import scan


def walk_and_compare(tree: Any) -> TreeTable:
    """The table of a tree called `t`: leaves, paths, order, counts are JAX's; expressions give the nodes."""
    integrations.load()
    table, nodes = scan(tree, name="t")
    check_table(table)
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    rows = np.flatnonzero(table.is_leaf)
    assert [table[row].keystr for row in rows] == [jax.tree_util.keystr(path) for path, _ in flat]
    assert all(nodes[row] is leaf for row, (_, leaf) in zip(rows, flat, strict=True))
    assert sum(table[row].facts.leaves for row in range(len(table))) == len(flat)
    for row, node in zip(table, nodes, strict=True):
        assert eval(row.expression, {"t": tree, "treeviz": treeviz}) is node, row.expression
    assert not any(note.kind == "error" for notes in table.notes.values() for note in notes)
    return treeviz.walk(tree, name="t")


def row_at(table: TreeTable, keystr: str) -> Row:
    """The only row with this key path."""
    (row,) = [row for row in table if row.keystr == keystr]
    return row


def outline(table: TreeTable) -> list[str]:
    """A line for each row: its label, kind and type, indented."""
    return [f"{'  ' * row.depth}{row.label} {row.kind} {row.type}" for row in table]


def text_of(tree: Any) -> str:
    """What the terminal shows, without the columns."""
    return treeviz.render(tree, name="t", columns=["kind"]).text()
