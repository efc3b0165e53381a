"""What a view says in fewer columns: leaves stand behind the type of a node, and counts of nothing in the headline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from treeviz.tree.column import Column
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
    triples = list(zip(*(values[nodes].tolist() for values in (table.fact_codes, n_children, n_leaves)), strict=True))
    distinct = {triple: code for code, triple in enumerate(dict.fromkeys(triples), start=len(table.facts))}
    codes = table.fact_codes.copy()
    codes[nodes] = list(map(distinct.__getitem__, triples))  # several times as fast as np.unique of rows
    facts = [
        table.facts[code]._replace(type=_counted(table.facts[code], children, leaves))
        for code, children, leaves in distinct
    ]
    return with_table(view, replace(table, facts=(*table.facts, *facts), fact_codes=codes), column.name)


def in_brief(view: View) -> View:
    """The view without the columns that other words replace."""
    return without_zeros(with_counts(view))


def without_zeros(view: View) -> View:
    """The view without the counts that are 0 in every row, which the headline tells: "no zeros".

    A row without a value, as of a leaf that was not read, keeps the column.
    """
    nothing = [column for column in view.columns if _is_zero(view.table, column)]
    if not nothing:
        return view
    words = [column.title.removeprefix("±") for column in nothing]
    words = [f"{title}: 0" if " " in title else f"no {title}" for title in words]
    words = [word for word in words if not any(word in part.split(", ") for part in view.table.headline)]
    table = view.table.with_headline(*view.table.headline, *([", ".join(words)] if words else []))
    return with_table(view, table, *(column.name for column in nothing))


def _is_zero(table: TreeTable, column: Column) -> bool:
    if column.format != "count" or (column.bad is not None and column.bad.any()):
        return False
    values = table.rolled(column)
    is_blank = column.rollup == "sum" and values.dtype.kind in "iu"  # zeros are not shown
    return not is_blank and not values.any()


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
