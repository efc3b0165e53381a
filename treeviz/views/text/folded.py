"""A view whose repeats are folded: each run of alike siblings is one row; see `treeviz.tree.repeats` for the rule.

The row of a run has the sums of all its members in columns that add up, and everywhere else the range of their values.
The rows inside it describe one member: sizes are those of each, values the range over all.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from treeviz.tree.column import Column
from treeviz.tree.facts import Note
from treeviz.tree.keys import Key
from treeviz.tree.numbers import bytes_text, count_text, number_text
from treeviz.tree.repeats import Repeats, fold, merged_facts
from treeviz.tree.series import Series
from treeviz.tree.table import TreeTable
from treeviz.views.text.cells import note_part
from treeviz.views.text.first_rows import nan_rows, sizes_of, wrong_rows
from treeviz.views.view import View

_MAGNITUDE = re.compile("(norm|rms)$")  # columns in which a value far from the others is named
_FAR = 10.0  # times the median, or a part of it
_OF_SEVERAL = {"shared": "shared", "cycle": "contains itself"}  # notes that name another row
_N_NOTES = 3  # of one row, about those for which it stands


def folded(view: View) -> View:
    """The view with a row for each run of alike siblings; the same view if there is none.

    Totals stay those of the whole tree. Costs some 0.1 µs a row, and the columns of the view.
    """
    repeats = fold(view.table, wrong_rows(view), nan_rows(view))
    if not repeats.runs:
        return view
    fewer = _Folded(view.table, repeats)
    columns = [fewer.column(column) for column in view.columns]
    sizes = sizes_of(view)
    further = [] if sizes is None or any(each is sizes for each in view.columns) else [fewer.column(sizes)]
    table = replace(
        fewer.compact(None if sizes is None else view.table.rolled(sizes)),
        columns={column.name: column for column in (*columns, *further)},
        notes=dict(fewer.notes(view)),
    )
    series = [fewer.series(each) for each in view.series]
    return View(table, columns, depth=view.depth, whole=view.whole, series=series)


class _Folded:
    """What the shown rows say in place of those for which they stand."""

    def __init__(self, table: TreeTable, repeats: Repeats) -> None:
        self._table, self._rows, self._place, self._runs = table, repeats.rows, repeats.place, repeats.runs
        self._stands_for = np.bincount(self._place)  # so many rows
        self._several = np.flatnonzero(self._stands_for > 1)
        of_several = np.flatnonzero(self._stands_for[self._place] > 1)
        self._order = of_several[np.argsort(self._place[of_several], kind="stable")]
        self._starts = np.cumsum(self._stands_for[self._several]) - self._stands_for[self._several]
        self._heads = np.array([*self._runs], int)
        self._members = np.concatenate([run.rows for run in self._runs.values()])
        n_members = np.array([len(run.rows) for run in self._runs.values()])
        self._first_members = np.cumsum(n_members) - n_members
        self._parent = np.append(-1, self._place[table.parent[self._rows[1:]]]).astype(np.int32)

    def compact(self, n_bytes: np.ndarray | None) -> TreeTable:
        """The table of the shown rows, without columns and notes.

        Args:
          n_bytes: Of each row of the table, rolled up.
        """
        table, rows = self._table, self._rows
        leaves = table.roll(np.array([facts.leaves for facts in table.facts], np.int64)[table.fact_codes], "sum")
        own = self._own(self._sums(leaves))
        keys, facts = [*table.keys], [*table.facts]
        key_codes, fact_codes = table.key_codes[rows], table.fact_codes[rows]
        for shown, codes in self._differing_facts():
            fact_codes[shown] = len(facts)
            facts.append(merged_facts([table.facts[code] for code in codes]))
        for shown, run in self._runs.items():
            row, each = rows[shown], facts[fact_codes[shown]]
            key_codes[shown], fact_codes[shown] = len(keys), len(facts)
            keys.append(Key(run.label, "", run.label, ()))
            if n_bytes is not None and n_bytes[row] > 0 and each.shape is None:
                each = each._replace(type=f"{each.type} · {bytes_text(n_bytes[row].item())} each")
            facts.append(each._replace(leaves=int(own[shown])))
        return TreeTable(
            name=table.name,
            depth=table.depth[rows],
            parent=self._parent,
            end=np.searchsorted(rows, table.end[rows]).astype(np.int32),
            position=table.position[rows],
            key_codes=key_codes,
            keys=tuple(keys),
            fact_codes=fact_codes,
            facts=tuple(facts),
            headline=table.headline,
        )

    def _differing_facts(self) -> Iterator[tuple[int, list[int]]]:
        """The rows that stand for others of other facts, and the codes of all of these."""
        codes = self._table.fact_codes[self._order]
        differ = np.maximum.reduceat(codes, self._starts) != np.minimum.reduceat(codes, self._starts)
        for i in np.flatnonzero(differ).tolist():
            start = self._starts[i]
            shown = int(self._several[i])
            yield shown, list(dict.fromkeys(codes[start : start + self._stands_for[shown]].tolist()))

    def column(self, column: Column) -> Column:
        if column.format == "label":
            return replace(column, levels=self._labels(column), codes=None)
        values = self._table.rolled(column)
        if column.format == "histogram":
            parts = np.array_split(values, 8, axis=1)  # copies of all of it at once would take 100 MB and more
            sums = [self._reduced(np.add, np.nan_to_num(part.astype(np.float64))).astype(np.float32) for part in parts]
            return replace(column, levels=np.concatenate(sums, axis=1), codes=None, rollup="given")
        spans = self._reduced(np.fmin, values), self._reduced(np.fmax, values)
        bad = None if column.bad is None else self._reduced(np.logical_or, column.bad)
        if column.rollup == "sum" or self._adds_up(column, values):
            levels, rollup = self._own(self._sums(values)), "sum"
        else:
            levels, rollup = values[self._rows], "given"
        return replace(column, levels=levels, codes=None, rollup=rollup, bad=bad, spans=spans)

    def _adds_up(self, column: Column, values: np.ndarray) -> bool:
        """Whether the counts of nodes are given, as those of zeros are, and are the sums of what is counted in them."""
        is_count = column.rollup == "given" and column.format in ("count", "bytes")
        return is_count and values[0] == np.nansum(values[self._table.measured])

    def series(self, series: Series) -> Series:
        """The greatest value of all rows that a row stands for; findings of shown rows only."""
        low, high = (series.values if part is None else part for part in (series.low, series.high))
        last = series.values[:, -1]
        return replace(
            series,
            values=self._reduced(np.fmax, series.values),
            low=self._reduced(np.fmin, low),
            high=self._reduced(np.fmax, high),
            bad=self._reduced(np.logical_or, series.bad),
            marks=tuple(
                [mark._replace(row=int(self._place[mark.row])) for mark in series.marks if self._is_shown(mark.row)]
            ),
            spans=(self._reduced(np.fmin, last), self._reduced(np.fmax, last)),
        )

    def notes(self, view: View) -> Iterator[tuple[int, tuple[Note, ...]]]:
        """The notes of the shown rows: what is said of some for which a row stands, with their number."""
        found: defaultdict[int, Counter[Note]] = defaultdict(Counter)
        noted = np.fromiter(self._table.notes, np.int64, len(self._table.notes))
        for shown, notes in zip(self._place[noted].tolist(), self._table.notes.values(), strict=True):
            for note in notes:
                found[shown][note if note.kind not in _OF_SEVERAL else self._without_row(note, shown)] += 1
        for shown, note in [*self._hidden_findings(view), *self._outliers(view)]:
            found[shown] = Counter({note: int(self._stands_for[shown])}) + found[shown]
        for shown, counts in found.items():
            n = int(self._stands_for[shown])
            counts = _joined(counts) if n > 1 else counts
            some = [note if times >= n else _of(note, times, n) for note, times in counts.most_common()]
            yield shown, tuple(some if n == 1 else some[:_N_NOTES])

    def _without_row(self, note: Note, shown: int) -> Note:
        """The note about a row of the whole table in words, which are the same for all for which a row stands."""
        is_one = self._stands_for[shown] == 1
        return Note(note.kind, note_part(self._table, note).text if is_one else _OF_SEVERAL[note.kind])

    def _hidden_findings(self, view: View) -> Iterator[tuple[int, Note]]:
        """The number of findings in each run, whose members they are in is not seen."""
        places = [int(self._place[m.row]) for each in view.series for m in each.marks if not self._is_shown(m.row)]
        if not places:
            return
        ends = np.searchsorted(self._rows, self._table.end[self._rows[self._heads]])
        counts = np.diff(np.searchsorted(np.sort(places), np.stack([self._heads, ends])), axis=0)[0]
        for head in np.flatnonzero(counts).tolist():
            yield int(self._heads[head]), Note("nonfinite", f"⚠{count_text(int(counts[head]))}")

    def _outliers(self, view: View) -> Iterator[tuple[int, Note]]:
        """Of each run the member whose magnitude is farthest from the median, in the columns of norms and rms."""
        magnitudes = [(c.title, self._table.rolled(c)) for c in view.columns if _MAGNITUDE.search(c.name)]
        magnitudes += [(each.title, each.values[:, -1].astype(np.float64)) for each in view.series[:1] if each.log]
        far: dict[int, tuple[float, str]] = {}
        for title, values in magnitudes:
            low, high = (self._reduced(reduce, values)[self._heads] for reduce in (np.fmin, np.fmax))
            for shown in self._heads[(high >= _FAR * low) & (high > 0)].tolist():
                found = _farthest(values[self._runs[shown].rows])
                if found is not None and found[1] > far.get(shown, (0.0, ""))[0]:
                    i, distance, what = found
                    label = self._table[int(self._runs[shown].rows[i])].label
                    far[shown] = distance, f"{label} {title}: {what}"
        for shown, (_, text) in far.items():
            yield shown, Note("info", text)

    def _is_shown(self, row: int) -> bool:
        """Whether the row is shown for itself alone."""
        return self._stands_for[self._place[row]] == 1

    def _reduced(self, reduce: np.ufunc, values: np.ndarray) -> np.ndarray:
        """The values of the shown rows, and in place of those that stand for several what they reduce to."""
        reduced = values[self._rows]
        reduced[self._several] = reduce.reduceat(values[self._order], self._starts)
        return reduced

    def _sums(self, values: np.ndarray) -> np.ndarray:
        """What each shown row says of values that add up: a run the sum of its members, any other row its own."""
        sums = values[self._rows]
        sums[self._heads] = np.add.reduceat(values[self._members], self._first_members)
        return sums

    def _own(self, sums: np.ndarray) -> np.ndarray:
        """The values that roll up to these sums."""
        if sums.dtype.kind == "f":
            is_known = ~np.isnan(sums)
            own = np.where(is_known, sums, 0.0)
            np.subtract.at(own, self._parent[1:], own[1:].copy())
            return np.where(is_known, own, np.nan)
        own = sums.copy()
        np.subtract.at(own, self._parent[1:], sums[1:])
        return own

    def _labels(self, column: Column) -> list[str]:
        """The label of each shown row; two of those of the rows that it stands for."""
        codes = np.arange(len(self._table)) if column.codes is None else column.codes
        labels = [str(column.levels[code]) for code in codes[self._rows].tolist()]
        for shown, some in zip(self._several.tolist(), np.split(self._order, self._starts[1:]), strict=True):
            distinct = list(dict.fromkeys(str(column.levels[code]) for code in codes[some].tolist()))
            labels[shown] = ", ".join([*filter(None, distinct[:2]), *["…"] * (len(distinct) > 2)])
        return labels


def _farthest(values: np.ndarray) -> tuple[int, float, str] | None:
    """The index of the value that is farthest from the median, how far, and "12 × the median"; None if it is near."""
    known = np.isfinite(values)
    median = float(np.median(values[known])) if known.any() else 0.0
    if median <= 0:
        return None
    ratios = np.where(known, values / median, 1.0)
    with np.errstate(divide="ignore"):
        distances = np.abs(np.log(ratios))
    i = int(np.argmax(distances))
    if distances[i] < np.log(_FAR):
        return None
    return i, float(distances[i]), f"{number_text(float(f'{ratios[i]:.2g}'))} × the median" if ratios[i] else "0"


def _joined(counts: Counter[Note]) -> Counter[Note]:
    """The notes, with one of the differences between trees that are of a kind, as "value: 1 → 2" and "value: 3 → 4"."""
    found: Counter[Note] = Counter()
    kinds = Counter(_kind(note) for note in counts)
    for note, times in counts.items():
        found[note if kinds[_kind(note)] == 1 else Note(note.kind, f"{_kind(note)[1]}: differs")] += times
    return found


def _kind(note: Note) -> tuple[str, str]:
    return note.kind, note.text.partition(":")[0] if note.kind == "differs" else note.text


def _of(note: Note, times: int, n: int) -> Note:
    return note._replace(text=f"{note.text} ({times:,} of {n:,})", brief="")
