"""Make a page small enough: the first rows of every subtree, and a placeholder that counts and adds up the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from treeviz.tree.column import Column
from treeviz.tree.facts import Facts, Note
from treeviz.tree.keys import Key
from treeviz.tree.rollup import REDUCE
from treeviz.tree.series import Series
from treeviz.tree.table import TreeTable
from treeviz.views.html.payload import pack
from treeviz.views.text.truncate import truncate
from treeviz.views.view import View

MAX_BYTES = 2_150_000  # its text is a fifth longer, the rows and the front end are 0.1 MB: a page has at most 3 MB
_MANY = 50_000  # distinct keys, or values of a column: an eighth of the rows is tried first, since all take a second


def pack_within(view: View, packed: bytes | None = None) -> bytes:
    """`pack(view)`, with as many rows as fit into `MAX_BYTES`; all of them in a view that is whole.

    Args:
      packed: `pack(view)`, if it is known.
    """
    table, n_all = view.table, len(view.table)
    n_distinct = max(len(each) for each in (table.keys, *(column.levels for column in table.columns.values())))
    n_rows = n_all if view.whole or packed is not None or n_distinct <= _MANY else n_all // 8
    packed = pack(with_first_rows(view, n_rows)) if packed is None else packed
    while len(packed) < 0.7 * MAX_BYTES and n_rows < n_all:
        n_rows = min(int(n_rows * 0.9 * MAX_BYTES / len(packed)), n_all)
        packed = pack(with_first_rows(view, n_rows))
    while len(packed) > MAX_BYTES and n_rows > 1 and not view.whole:
        n_rows = int(n_rows * min(0.8, 0.9 * MAX_BYTES / len(packed)))
        packed = pack(with_first_rows(view, n_rows))
    return packed


def with_first_rows(view: View, n_rows: int) -> View:
    """The view with about `n_rows` rows. Totals stay those of the whole tree."""
    if n_rows >= len(view.table):
        return view
    cut = _Cut(view.table, n_rows)
    columns = {column.name: cut.column(column) for column in (*view.columns, *view.table.columns.values())}
    # An inspector's views have no such keyword.
    table = cut.table("" if view.series else ": whole=True has all, however large")
    table = replace(table, columns={name: columns[name] for name in view.table.columns})
    return View(
        table,
        [columns[column.name] for column in view.columns],
        depth=view.depth,
        values={int(cut.new[row]): html for row, html in (view.values or {}).items() if cut.new[row] >= 0},
        series=[cut.series(each) for each in view.series],
        histograms=[replace(each, counts=cut.rows(each.counts, 0)) for each in view.histograms],
        diff=None if view.diff is None else cut.diff(view.diff),
    )


class _Cut:
    """The rows of a table that are kept, and after the last kept child of a node a placeholder for the others.

    Attributes:
      new: int[n_rows + 1]: the new number of each row; -1 if it is not kept.
    """

    def __init__(self, table: TreeTable, n_rows: int) -> None:
        self._table = table
        self._rows, n_left_out = truncate(table, max(n_rows, 1))
        self._nodes = self._rows[n_left_out > 0]
        self._n_left_out = n_left_out[n_left_out > 0].tolist()
        first = np.arange(1, len(table) + 1)  # of each row: the first row below it that is not kept
        np.maximum.at(first, table.parent[self._rows[1:]], table.end[self._rows[1:]])
        self._ranges = np.stack([first[self._nodes], table.end[self._nodes]], axis=1).ravel()
        place = np.concatenate([self._rows, table.end[self._nodes]])
        self._depth = np.concatenate([table.depth[self._rows], table.depth[self._nodes] + 1])
        # Where a subtree ends, the deepest placeholder comes first, and a row after all of them.
        self._order = np.lexsort((np.where(np.arange(len(place)) < len(self._rows), 1, -self._depth), place))
        self.new = np.full(len(table) + 1, -1)
        self.new[self._rows], self._places = np.split(np.argsort(self._order), [len(self._rows)])
        self._codes: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def table(self, hint: str) -> TreeTable:
        table, order = self._table, self._order
        parent = np.concatenate([self.new[table.parent[self._rows]], self.new[self._nodes]])[order]
        end = np.arange(1, len(order) + 1)
        for row in range(len(order) - 1, 0, -1):
            end[parent[row]] = max(end[parent[row]], end[row])
        by_parent = np.argsort(parent, kind="stable")
        position = np.empty(len(order), np.int32)
        position[by_parent] = np.arange(len(order)) - np.searchsorted(parent[by_parent], parent[by_parent])
        used, keys = np.unique(np.append(0, table.key_codes[self._rows]), return_inverse=True)
        keys = np.append(keys[1:], np.full(len(self._nodes), len(used)))[order]
        kept, facts = self._coded(table.fact_codes)
        texts = [f"{n:,} more" for n in self._n_left_out]
        notes = {int(self.new[row]): self._moved(at) for row, at in table.notes.items() if self.new[row] >= 0}
        for row, text in zip(self._places.tolist(), texts, strict=True):
            notes[row] = (Note("more", f"{text}, which did not fit into this page"),)
        n_missing = len(table) - len(self._rows)
        missing = f"{n_missing:,} of {len(table):,} rows are not in this page{hint}"
        return TreeTable(
            name=table.name,
            depth=self._depth[order].astype(np.int32),
            parent=parent.astype(np.int32),
            end=end.astype(np.int32),
            position=position,
            key_codes=keys.astype(np.int32),
            keys=(*(table.keys[code] for code in used.tolist()), Key("…", "", "…", ())),
            fact_codes=facts,
            facts=(*(table.facts[code] for code in kept.tolist()), *(Facts("more", "", False, text=t) for t in texts)),
            notes=dict(sorted(notes.items())),
            headline=(*table.headline, missing),
        )

    def column(self, column: Column) -> Column:
        if column.codes is None:
            used, codes = self._rows, None
        else:
            used, codes = self._coded(column.codes)
        if column.format == "label":
            levels = [*(column.levels[code] for code in used.tolist()), *[""] * len(self._nodes)]
            if codes is None:
                levels = [levels[i] for i in self._order.tolist()]
            return replace(column, levels=levels, codes=codes)
        levels = np.concatenate([np.asarray(column.levels)[used], self._left_out(column)])
        return replace(column, levels=levels[self._order] if codes is None else levels, codes=codes)

    def rows(self, values: np.ndarray, more: Any) -> np.ndarray:
        """The values of the rows that are kept; `more` for the placeholders, all or each."""
        every = np.broadcast_to(np.asarray(more, values.dtype), (len(self._nodes), *values.shape[1:]))
        return np.concatenate([values[self._rows], every])[self._order]

    def series(self, series: Series) -> Series:
        """A placeholder has no value, but what was bad or found behind it."""
        place = self.new.copy()
        for row, start, end in zip(self._places.tolist(), *self._ranges.reshape(-1, 2).T.tolist(), strict=True):
            place[start:end] = row
        bad = np.append(series.bad, series.bad[:1], axis=0)
        return replace(
            series,
            values=self.rows(series.values, np.nan),
            low=None if series.low is None else self.rows(series.low, np.nan),
            high=None if series.high is None else self.rows(series.high, np.nan),
            bad=self.rows(series.bad, np.logical_or.reduceat(bad, self._ranges)[::2]),
            marks=tuple([mark._replace(row=int(place[mark.row])) for mark in series.marks]),
        )

    def diff(self, diff: Mapping[str, Any]) -> dict[str, Any]:
        bars = {int(self.new[row]): bars for row, bars in diff["bars"].items() if self.new[row] >= 0}
        return {**diff, "open": None, "bars": bars}

    def _coded(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The old codes that are still in use, and the new code of each row. Every placeholder has one of its own."""
        if id(codes) not in self._codes:
            used, new = np.unique(codes[self._rows], return_inverse=True)
            new = np.append(new, len(used) + np.arange(len(self._nodes)))[self._order].astype(np.int32)
            self._codes[id(codes)] = used, new
        return self._codes[id(codes)]

    def _left_out(self, column: Column) -> np.ndarray:
        """What the rows behind each placeholder add to the column."""
        levels = np.asarray(column.levels)
        if column.format == "histogram":
            return np.zeros((len(self._nodes), *levels.shape[1:]), levels.dtype)
        if column.rollup in ("none", "given"):
            return np.full(len(self._nodes), np.nan)
        values = column.values
        if column.rollup in ("sum", "norm"):
            values = np.where(np.isnan(values), 0, values)
        with np.errstate(all="ignore"):
            return REDUCE[column.rollup].reduceat(np.append(values, values[:1]), self._ranges)[::2]

    def _moved(self, notes: tuple[Note, ...]) -> tuple[Note, ...]:
        return tuple([note._replace(row=int(self.new[note.row])) if note.row >= 0 else note for note in notes])
