"""What a view says in fewer columns: the leaves of a node stand behind its type."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from treeviz.tree.facts import Facts
from treeviz.tree.kinds import KINDS
from treeviz.tree.numbers import count_text
from treeviz.tree.table import TreeTable
from treeviz.views.view import View

_IN_TYPE = "leaves"  # the column that a type takes in
_IS_COUNTED = ("list", "tuple")  # kinds of nodes that say how many children they have: their keys do not


def with_counts(view: View) -> View:
    """The view without its column of leaves, which stand behind the types of nodes: "list · 12 · 144 leaves".

    A single leaf is not counted: it stands below.
    """
    column = next((each for each in view.columns if each.name == _IN_TYPE), None)
    if column is None:
        return view
    table = view.table
    n_leaves = table.rolled(column).astype(np.int64)
    n_children = np.bincount(table.parent[1:], minlength=len(table))
    is_node = np.array([_is_plain_node(facts) for facts in table.facts])[table.fact_codes]
    nodes = np.flatnonzero(is_node & (n_leaves > 1))
    triples = np.stack([table.fact_codes[nodes], n_children[nodes], n_leaves[nodes]], axis=1)
    distinct, which = np.unique(triples, axis=0, return_inverse=True)
    facts = [
        table.facts[code]._replace(type=_counted(table.facts[code], children, leaves))
        for code, children, leaves in distinct.tolist()
    ]
    codes = table.fact_codes.copy()
    codes[nodes] = len(table.facts) + which.reshape(-1)
    return with_table(view, replace(table, facts=(*table.facts, *facts), fact_codes=codes), column.name)


def with_table(view: View, table: TreeTable, *without: str) -> View:
    """The view of another table with the same rows."""
    columns = [column for column in view.columns if column.name not in without]
    return View(table, columns, depth=view.depth, whole=view.whole, series=view.series, histograms=view.histograms)


def leaves_text(n: int) -> str:
    """ "1 leaf", "144 leaves"."""
    return f"{count_text(n)} {'leaf' if n == 1 else 'leaves'}"


def _is_plain_node(facts: Facts) -> bool:
    return KINDS[facts.kind].group == "node" and facts.shape is None


def _counted(facts: Facts, n_children: int, n_leaves: int) -> str:
    has_own_count = facts.kind in _IS_COUNTED and n_children != n_leaves
    return " · ".join([facts.type, *([count_text(n_children)] if has_own_count else []), leaves_text(n_leaves)])
