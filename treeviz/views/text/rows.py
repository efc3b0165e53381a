"""Choose the rows of a view: the first ones that fit, outliers, and one row for each run of identical siblings.

The row of a run (see `treeviz.tree.repeats`) has sums over its members in additive columns, otherwise ranges of values.
The rows inside it describe one member: sizes are those of one, values are ranges over all.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from treeviz.tree.facts import SCALARS, Column, Facts, Note
from treeviz.tree.keys import Key
from treeviz.tree.repeats import Repeats, blanks_text, fold, in_every_member, merged_facts, mirrors
from treeviz.tree.series import FindingMark, Series
from treeviz.tree.table import TreeTable, children_of
from treeviz.tree.text import bytes_text, count_text, number_text, visible
from treeviz.views.text import terminal
from treeviz.views.text.cells import (
    ASCII_BAD,
    IN_EVERY_LINE,
    UNICODE_BAD,
    last_texts,
    last_values,
    mark_text,
    marks_by_row,
    note_part,
    path_text,
    sparklines,
)
from treeviz.views.text.terminal import DIM, RED, RESET, YELLOW, Glyphs, cut, cut_inside, display_width, n_alike
from treeviz.views.view import View

# The rows to show if the number of lines or characters is limited

_FEW = 4  # children of a node, if not every node can show some
_GOOD_FILL = 0.9  # of the largest number of lines that a share fills


class Truncated(NamedTuple):
    """The rows that are shown, in the tree's order. A shown node shows all, the first few or none of its children,
    and those of them that are kept or lead to one that is.
    """

    rows: np.ndarray  # int[n_shown]
    n_left_out: np.ndarray  # int[n_shown]: the number of omitted children of each
    mirrors: Mapping[int, int]  # nodes that stay closed, each with the earlier node whose rows are the same


def truncate(
    table: TreeTable,
    max_rows: int | None = None,
    max_depth: int | None = None,
    *,
    weights: np.ndarray | None = None,
    kept: Iterable[int] = (),
    mirrors: Mapping[int, int] | None = None,
) -> Truncated:
    """The first rows of every subtree: level by level, the same number of children for every node.

    A level takes only a share of the remaining lines, so that deeper levels are shown, too. `max_rows` includes the
    line "… 12 more" of a node that shows some of its children.

    Args:
      weights: [n_rows]: of two nodes the heavier one opens first, if there is no room for both.
      kept: Rows that are shown before all others, the first ones if a third of the lines has no room for all.
      mirrors: Nodes to keep closed if there is no room for all rows; see `Truncated`.
    """
    rows = np.arange(len(table)) if max_depth is None else (table.depth <= max_depth).nonzero()[0]
    if len(rows) == len(table) and (max_rows is None or len(rows) <= max_rows):
        return Truncated(rows, np.zeros(len(rows), int), mirrors or {})
    n_children = np.bincount(table.parent[1:], minlength=len(table))
    if max_rows is not None and len(rows) > max_rows:
        paths = _paths(table, kept, max_rows // 3, max_depth)
        room, n_open = max_rows, n_children.copy()
        n_open[[*(mirrors or {})]] = 0
        while True:
            chosen = _Levels(table, n_open, room, max_depth, weights).choice()
            rows = np.union1d(chosen, paths)
            n_shown = np.bincount(table.parent[rows[1:]], minlength=len(table))
            excess = len(rows) + int(np.count_nonzero((n_shown > 0) & (n_shown < n_children))) - max_rows
            if excess <= 0 or room == 1:
                break
            room = max(1, room - excess)
    n_shown = np.bincount(table.parent[rows[1:]], minlength=len(table))
    return Truncated(rows, (n_children - n_shown)[rows], mirrors or {})


def _paths(table: TreeTable, kept: Iterable[int], most: int, max_depth: int | None) -> np.ndarray:
    """The rows to keep and the rows above them, at most `most`."""
    found: set[int] = set()
    for row in kept:
        if table.depth[row] > 10 * most:
            continue
        path = []
        while row > 0 and row not in found:
            path.append(row)
            row = int(table.parent[row])
        path = [row for row in path if max_depth is None or table.depth[row] <= max_depth]
        if len(found) + len(path) > most:
            break
        found.update(path)
    return np.array(sorted(found), dtype=int)


class _Levels(NamedTuple):
    table: TreeTable
    n_children: np.ndarray
    max_rows: int
    max_depth: int | None
    weights: np.ndarray | None = None

    def choice(self) -> np.ndarray:
        """The rows that fill the lines well and leave most of them to deep levels."""
        tries: list[tuple[int, np.ndarray]] = []
        for share in (0.5, 0.7, 0.85, 1.0):
            tries.append(self.fill(share))
            if tries[-1][0] >= _GOOD_FILL * self.max_rows:  # each takes seconds if there are 100,000 levels
                break
        most = max(n_lines for n_lines, _ in tries)
        return next(chosen for n_lines, chosen in tries if n_lines >= _GOOD_FILL * most)

    def fill(self, share: float) -> tuple[int, np.ndarray]:
        """The number of lines, and the rows, if each level takes at most this share of the remaining lines."""
        n_lines, depth = 1, 0
        level, chosen = np.array([0]), [np.array([0])]
        while len(level) and n_lines < self.max_rows and (self.max_depth is None or depth < self.max_depth):
            n_inside = self.n_children[level]
            room = self.max_rows - n_lines
            if bool(np.any(self.table.end[level] - level - 1 > n_inside)):  # the level below has children itself
                room = max(1, int(room * share))
            if self.weights is not None:
                level = level[(-self.weights[level]).argsort(kind="stable")]
                n_inside = self.n_children[level]
            n_each = _shared(n_inside, room)
            n_lines += int(n_each.sum() + np.count_nonzero((n_each > 0) & (n_each < n_inside)))
            children = self._first_children(level, n_each)
            chosen.append(children)
            level, depth = children[self.n_children[children] > 0], depth + 1
        return n_lines, np.sort(np.concatenate(chosen))

    def _first_children(self, nodes: np.ndarray, n_each: np.ndarray) -> np.ndarray:
        end, children = self.table.end, []
        for node, n in zip(nodes.tolist(), n_each.tolist(), strict=True):
            child = node + 1
            for _ in range(n):
                children.append(child)
                child = int(end[child])
        return np.array(children, dtype=int)


def _shared(n_inside: np.ndarray, room: int) -> np.ndarray:
    """The number of children that each node shows, in at most `room` lines together.

    Omitted children take one line, so a node with a single child above the limit shows it.
    """

    def n_lines(limit: int) -> int:
        return int(np.minimum(n_inside, limit + 1).sum())

    if n_inside.sum() <= room:
        return n_inside
    low, high = 0, int(n_inside.max())
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if n_lines(middle) <= room else (low, middle)
    if low < 2:  # some children of the first nodes are better than one of each
        n_each = np.zeros_like(n_inside)
        before = np.minimum(n_inside, _FEW + 1).cumsum()
        whole = before <= room
        n_each[whole] = np.where(n_inside[whole] > _FEW + 1, _FEW, n_inside[whole])
        if not whole[0]:
            n_each[0] = room - 1
        return n_each
    rest = room - n_lines(low)
    limits = np.full_like(n_inside, low)
    limits[(n_inside > low + 1).nonzero()[0][:rest]] += 1
    return np.where(n_inside > limits + 1, limits, n_inside)


def longest_within(budget: int, most: int, text_of: Callable[[int], str]) -> str:
    """The text of the most rows that has no more than `budget` characters, or that of one row if none has.

    Bisects the number of rows, 1 to `most`. More rows may be shorter, as when a column no longer fits: the text that
    is returned fits, but another might have held a few rows more.
    """
    best, low, high = text_of(1), 2, most
    while low <= high:
        n_rows = (low + high) // 2
        if len(candidate := text_of(n_rows)) <= budget:
            best, low = candidate, n_rows + 1
        else:
            high = n_rows - 1
    return best


# The outliers among the leaves, as lines of text below the tree

N_LINES = 10
_N_CHARACTERS = 16  # of a sparkline
_PATH = 40  # columns that a path gets before anything else
_REASON, _REASON_WANTS = 600, 40  # characters of a reason: the most; those that it gets before sparklines
_INDENT = "    "  # of a reason that has no room beside its leaf
_FAR_FROM_MEDIAN = 10.0  # a value this many times above or below the median is far from it
_FEW_FAR = 0.25  # of the leaves: more are the spread of this model


class Outlier(NamedTuple):
    """A leaf that differs from the others, and why."""

    row: int
    style: str  # the ANSI sequence of the reason's colour
    reason: str


def outliers(table: TreeTable, series: Sequence[Series]) -> list[Outlier]:
    """The leaves to look at first, by the first series: at most `N_LINES`, none if no leaf differs from the others.

    Leaves with NaN or Inf come first, ordered by its first step; then those with findings; then, if they are few, those
    whose last value is far from the median of all leaves, the farthest first, on the scale of the series.
    """
    main = series[0]
    measured = table.measured
    leaves = measured[(main.bad[measured] | ~np.isnan(main.values[measured])).any(axis=1)]
    found = {row: marks[0] for row, marks in marks_by_row(series).items()}
    is_bad = main.bad[leaves] | np.isinf(main.values[leaves])
    bad_since = np.where(is_bad.any(axis=1), is_bad.argmax(axis=1), is_bad.shape[1]).tolist()
    distances, ratios = _distances(last_values(main, leaves), main.log)
    rows = leaves.tolist()
    wrong = [row for row, (_, mark) in found.items() if mark.severity != "info"]
    places = {row: place for place, row in enumerate(wrong)}  # findings are sorted, the most severe first
    far = [i for i, ratio in enumerate(ratios) if not _FAR_FROM_MEDIAN > ratio > 1 / _FAR_FROM_MEDIAN]
    order = sorted(
        {*is_bad.any(axis=1).nonzero()[0].tolist(), *(i for i, row in enumerate(rows) if row in found)}
        | {*(far if len(far) <= _FEW_FAR * len(rows) else [])},
        key=lambda i: (bad_since[i], places.get(rows[i], len(places)), -distances[i], rows[i]),
    )
    is_still = is_bad[:, -1].tolist()
    return [_reason(main, rows[i], bad_since[i], is_still[i], ratios[i], found.get(rows[i])) for i in order[:N_LINES]]


def outlier_lines(
    table: TreeTable, series: Sequence[Series], glyphs: Glyphs, *, width: int | None = None, color: bool = False
) -> list[str]:
    """The section "worst leaves", or "leaves that stand out" if nothing is wrong; empty without outliers."""
    found = outliers(table, series)
    if not found:
        return []
    main = series[0]
    rows = np.array([each.row for each in found])
    lasts = last_texts(main, rows)
    bad = ASCII_BAD if glyphs.dots.isascii() else UNICODE_BAD
    sparks = sparklines(main, rows, _N_CHARACTERS, bars=glyphs.heights[1:], bad=bad)
    last_width = max(map(len, lasts))
    width = 2**31 if width is None else width
    beside = last_width + _N_CHARACTERS + _REASON_WANTS
    paths = _outlier_paths(table, rows.tolist(), max(_PATH, width - beside - len("  " * 4)), glyphs)
    path_width = max(map(display_width, paths))
    if width < path_width + beside:
        sparks = [""] * len(found)  # the tree above shows them
    spans = f"{main.title}, {main.inner.span_text(int(main.first_steps[0]), int(main.last_steps[-1]))}"
    which = "worst leaves" if any(each.style != DIM for each in found) else "leaves that stand out"
    lines = [cut(glyphs.fit(f"{which} by {visible(spans)}"), width, glyphs.dots)]
    for each, path, last, spark in zip(found, paths, lasts, sparks, strict=True):
        start = f"  {path}{' ' * (path_width - display_width(path))}  {last.rjust(last_width)}  "
        start += f"{spark}  " if spark else ""
        reason = glyphs.fit(visible(each.reason, _REASON))
        pieces = [(start, reason)]
        if display_width(start + reason) > width:
            pieces = [(start, ""), *((_INDENT, line) for line in terminal.folded(reason, width - len(_INDENT), ""))]
        for before, said in pieces:
            said = cut(said, width - display_width(before), glyphs.dots)
            line = before + (f"{each.style}{said}{RESET}" if color and said else said)
            lines.append(line.rstrip() if said else cut(before.rstrip(), width, glyphs.dots))
    return [f"{DIM}{lines[0]}{RESET}", *lines[1:]] if color else lines


def _outlier_paths(table: TreeTable, rows: list[int], most: int, glyphs: Glyphs) -> list[str]:
    """The key paths, in `most` columns each: what all begin with goes first, then what two next to each other share."""
    texts = [glyphs.fit(visible(table[row].keystr) or table.name) for row in rows]
    if (missing := max(map(display_width, texts)) - most) > 0:
        shared = texts[0][: min(n_alike(texts[0], text) for text in texts)]
        start = min(max(shared.rfind("["), shared.rfind("."), 0), missing + len(glyphs.dots))
        texts = [glyphs.dots + text[start:] if start else text for text in texts]
    return [cut_inside(text, most, glyphs.dots, texts) for text in texts]


def _distances(values: np.ndarray, is_log: bool) -> tuple[list[float], list[float]]:
    """The distance of each value from the median of the positive values, and its ratio to that median."""
    known = np.isfinite(values) & (values > 0)
    if not known.any():
        return [0.0] * len(values), [1.0] * len(values)
    ratios = np.divide(values, np.median(values[known]), out=np.ones(len(values)), where=known)
    distances = np.abs(np.log10(ratios)) if is_log else np.abs(ratios - 1)
    is_zero = values == 0
    return np.where(is_zero, np.inf, distances).tolist(), np.where(is_zero, 0.0, ratios).tolist()


def _reason(
    main: Series, row: int, bad_since: int, is_still: bool, ratio: float, found: tuple[Series, FindingMark] | None
) -> Outlier:
    is_bad = bad_since < main.values.shape[1]
    if found is not None:
        series, mark = found
        style = RED if is_bad else DIM if mark.severity == "info" else YELLOW
        return Outlier(
            row, style, f"{mark.kind} at {series.steps_text(mark.column)}: {mark_text(mark).partition('. ')[0]}"
        )
    if is_bad:
        return Outlier(row, RED, f"not finite {'since' if is_still else 'at'} {main.steps_text(bad_since)}")
    return Outlier(row, DIM, "zero" if ratio == 0 else f"{number_text(float(f'{ratio:.2g}'))} × the median")


# Which rows of a view are shown if there is no room for all, and which nodes are open at first.

N_OPEN = 25  # rows that are visible at first
_ERRORS = ("error", "cycle", "hidden", "warning")  # kinds of notes


def first_rows(view: View, max_rows: int | None, max_depth: int | None) -> Truncated:
    """The rows that are shown: those with a finding, an error or NaN, and the largest leaf, before all others."""
    table = view.table
    if max_rows is None or len(table) <= max_rows:
        return truncate(table, max_rows, max_depth)
    weights = _weights(view)
    leaves = table.measured
    largest = leaves[np.argmax(weights[leaves])].tolist() if len(leaves) else 0
    kept = [*wrong_rows(view), *nan_rows(view), *_noted(view, "differs"), largest]
    closed = mirrors(replace(table, notes={}))  # what is said of their rows, such as that they are shared, can wait
    return truncate(table, max_rows, max_depth, weights=weights, kept=kept, mirrors=closed)


def open_first(view: View, n_rows: int = N_OPEN) -> np.ndarray:
    """bool[n_rows of the table]: the nodes that are open at first.

    The root is. Then, as long as fewer than `n_rows` rows below it are visible, the closed node that holds the most
    bytes opens: of equal ones the first; in a tree without bytes the one with the most leaves; with a `view.depth`, all
    nodes above that depth, and no others. `tests/open_cases.json` has examples.
    """
    if view.depth is not None:
        return view.table.depth < view.depth
    is_open, ends, weights = np.zeros(len(view.table), bool), view.table.end.tolist(), _weights(view)
    heap, n_visible = [(0.0, 0)], 0
    while heap and n_visible < n_rows:
        _, node = heappop(heap)
        is_open[node] = True
        children = children_of(ends, node)
        n_visible += len(children)
        for child in children:
            if ends[child] > child + 1:
                heappush(heap, (-float(weights[child]), child))
    return is_open


def wrong_rows(view: View) -> list[int]:
    """The rows with a finding or an error, each once, worst first: findings in their order, then errors by row."""
    found = [mark.row for each in view.series for mark in each.marks if mark.severity != "info"]
    return list(dict.fromkeys([*found, *_noted(view, *_ERRORS)]))


def outlier_rows(view: View) -> list[int]:
    """The wrong rows, without those that say the same in every layer."""
    rows = wrong_rows(view)
    if not rows:
        return rows
    same = in_every_member(view.table, _noted(view, *_ERRORS)) - {
        mark.row for each in view.series for mark in each.marks
    }
    return [row for row in rows if row not in same]


def nan_rows(view: View) -> list[int]:
    """The rows with NaN or infinities, each once."""
    bad = [column.bad for column in view.columns if column.bad is not None]
    bad += [each.bad.any(axis=1) for each in view.series]
    bad += [column.values > 0 for column in view.columns if column.name.endswith(".nonfinite")]  # of another tree
    return list(
        dict.fromkeys([*_noted(view, "nonfinite"), *[row for each in bad for row in each.nonzero()[0].tolist()]])
    )


def _noted(view: View, *kinds: str) -> list[int]:
    return sorted([row for row, notes in view.table.notes.items() for note in notes if note.kind in kinds])


def sizes_of(view: View) -> Column | None:
    """The column of bytes."""
    columns = (*view.columns, *view.table.columns.values())
    return next((column for column in columns if column.format == "bytes" and column.rollup == "sum"), None)


def _weights(view: View) -> np.ndarray:
    """[n_rows]: the bytes of each subtree; the leaves, if there are none."""
    sizes = sizes_of(view)
    if sizes is not None and (weights := view.table.rolled(sizes))[0] > 0:
        return weights if weights.dtype.kind == "i" else np.nan_to_num(weights)
    return view.table.n_leaves


_MAGNITUDE = re.compile("(norm|rms)$")  # columns in which a value far from the others is named
_FAR = 10.0  # times the median, or a part of it
_OF_SEVERAL = {"shared": "shared", "cycle": "contains itself"}  # notes that name another row
_N_NOTES = 3  # of one row, about those for which it stands


def folded(view: View) -> View:
    """The view with one row for each run of similar siblings; the same view if there is none.

    Totals stay those of the whole tree. Costs some 0.1 µs a row, and the columns of the view.
    """
    texts = {"values": lambda: values_of(view), "labeled": lambda: labeled_rows(view)}
    repeats = fold(view.table, outlier_rows(view), nan_rows(view), **texts)
    if len(repeats.rows) == len(view.table):
        return view
    fewer = _Folded(view.table, repeats)
    columns = [fewer.column(column) for column in view.columns]
    sizes = sizes_of(view)
    further = [] if sizes is None or any(each is sizes for each in view.columns) else [fewer.column(sizes)]
    if SCALARS in view.table.columns:
        value = fewer.column(view.table.columns[SCALARS])
        further.append(replace(value, levels=["" if "," in level else level for level in value.levels]))
    table = fewer.compact(None if sizes is None else view.table.rolled(sizes), view, (*columns, *further))
    series = [fewer.series(each) for each in view.series]
    footer = blanks_text(repeats.n_blank)
    return View(table, columns, depth=view.depth, whole=view.whole, series=series, footer=footer)


def values_of(view: View) -> list[np.ndarray]:
    """What the columns of a view show of each row, to compare rows by; for `treeviz.tree.repeats.mirrors`."""
    each = np.arange(len(view.table))
    return [
        (each if column.codes is None else column.codes) if column.format == "label" else view.table.rolled(column)
        for column in view.columns
    ] + [series.values for series in view.series]


def labeled_rows(view: View) -> list[int]:
    """The rows of which a column of labels says something."""
    labels = [(c, np.array([str(level) != "" for level in c.levels])) for c in view.columns if c.format == "label"]
    has_label = np.zeros(len(view.table), bool)
    for column, is_said in labels:
        if column.name not in IN_EVERY_LINE:
            has_label |= is_said if column.codes is None else is_said[column.codes]
    return has_label.nonzero()[0].tolist()


def like_note(table: TreeTable, row: int, like: int) -> Note:
    """The note of a mirror, in place of its rows: "like mu" of a sibling, else "like .params"."""
    is_sibling = table.parent[row] == table.parent[like]
    return Note("info", f"like {table.key(like).label.removeprefix('.') if is_sibling else path_text(table, like)}")


class _Folded:
    """What the shown rows say in place of those for which they stand."""

    def __init__(self, table: TreeTable, repeats: Repeats) -> None:
        self._table, self._rows, self._place, self._runs = table, repeats.rows, repeats.place, repeats.runs
        self._mirrors = repeats.mirrors
        self._stands_for = np.bincount(self._place[~repeats.left_out])  # so many rows
        self._several = (self._stands_for > 1).nonzero()[0]
        of_several = ((self._stands_for[self._place] > 1) & ~repeats.left_out).nonzero()[0]
        self._order = of_several[self._place[of_several].argsort(kind="stable")]
        self._starts = self._stands_for[self._several].cumsum() - self._stands_for[self._several]
        self._heads = np.array([*self._runs], int)
        self._members = np.concatenate([[], *(run.rows for run in self._runs.values())]).astype(int)
        n_members = np.array([len(run.rows) for run in self._runs.values()], int)
        self._first_members = n_members.cumsum() - n_members
        self._parent = np.concatenate([[-1], self._place[table.parent[self._rows[1:]]]]).astype(np.int32)

    def compact(self, n_bytes: np.ndarray | None, view: View, columns: Sequence[Column]) -> TreeTable:
        """The table of the shown rows; `n_bytes` are those of each row of the whole table, rolled up."""
        table, rows = self._table, self._rows
        own = self._own(self._sums(table.n_leaves))
        keys, facts = [*table.keys], [*table.facts]
        key_codes, fact_codes = table.key_codes[rows], table.fact_codes[rows]
        added: dict[Key | Facts, int] = {}  # a row that repeats another one has its codes, too
        codes_of_several = table.fact_codes[self._order]
        for i in self._differ(codes_of_several).nonzero()[0].tolist():
            shown, start = self._several[i], self._starts[i]
            codes = dict.fromkeys(codes_of_several[start : start + self._stands_for[shown]].tolist())
            fact_codes[shown] = _code(facts, added, merged_facts([table.facts[code] for code in codes]))
        for shown, run in self._runs.items():
            row, each = rows[shown], facts[fact_codes[shown]]
            key_codes[shown] = _code(keys, added, Key(run.label, "", run.label, ()))
            if n_bytes is not None and n_bytes[row] > 0 and each.shape is None:
                each = each._replace(type=f"{each.type} · {bytes_text(n_bytes[row].item())} each")
            fact_codes[shown] = _code(facts, added, each._replace(leaves=int(own[shown])))
        return TreeTable(
            name=table.name,
            depth=table.depth[rows],
            parent=self._parent,
            end=rows.searchsorted(table.end[rows]).astype(np.int32),
            position=table.position[rows],
            key_codes=key_codes,
            keys=tuple(keys),
            fact_codes=fact_codes,
            facts=tuple(facts),
            notes=dict(self.notes(view)),
            columns={column.name: column for column in columns},
            headline=table.headline,
        )

    def _differ(self, codes: np.ndarray) -> np.ndarray:
        """bool[n_several]: whether the rows for which a row stands differ, by their codes in `_order`."""
        return np.maximum.reduceat(codes, self._starts) != np.minimum.reduceat(codes, self._starts)

    def column(self, column: Column) -> Column:
        if column.format == "label":
            return replace(column, levels=self._labels(column), codes=None)
        values = self._table.rolled(column)
        if column.format == "histogram":
            parts = np.array_split(values, 8, axis=1)  # copies of all of it at once would take 100 MB and more
            sums = [self._reduced(np.add, np.nan_to_num(part.astype(np.float64))).astype(np.float32) for part in parts]
            return replace(column, levels=np.concatenate(sums, axis=1), codes=None, rollup="given")
        is_sum = column.rollup == "sum"
        if is_sum and column.codes is not None and not self._differ(column.codes[self._order]).any():
            spans = None  # members of the same facts have the same sums of them
        else:
            spans = self._reduced(np.fmin, values), self._reduced(np.fmax, values)
        bad = None if column.bad is None else self._reduced(np.logical_or, column.bad)
        # The counts of nodes may be given, as those of zeros are, and be the sums of what is counted in them.
        if column.rollup == "given" and column.format in ("count", "bytes"):
            is_sum = values[0] == np.nansum(values[self._table.measured])
        levels, rollup = (self._own(self._sums(values)), "sum") if is_sum else (values[self._rows], "given")
        about = (column.name, column.title, levels, None, column.format, rollup, column.help)
        return Column(*about, bad, column.first_bin, spans)

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
                if note.kind in _OF_SEVERAL:  # in words, which are the same for all rows for which one stands
                    is_one = self._stands_for[shown] == 1
                    note = Note(note.kind, note_part(self._table, note).text if is_one else _OF_SEVERAL[note.kind])
                found[shown][note] += 1
        likenesses = [(i, like_note(self._table, int(self._rows[i]), like)) for i, like in self._mirrors.items()]
        for shown, note in [*self._hidden_findings(view), *self._outliers(view), *likenesses]:
            found[shown] = Counter({note: int(self._stands_for[shown])}) + found[shown]
        for shown, counts in found.items():
            n = int(self._stands_for[shown])
            counts = _joined(counts) if n > 1 else counts
            some = [
                note if times >= n else note._replace(text=f"{note.text} ({times:,} of {n:,})", brief="")
                for note, times in counts.most_common()
            ]
            yield shown, tuple(some if n == 1 else some[:_N_NOTES])

    def _hidden_findings(self, view: View) -> Iterator[tuple[int, Note]]:
        """The number of findings in each run, whose members they are in is not seen."""
        places = [int(self._place[m.row]) for each in view.series for m in each.marks if not self._is_shown(m.row)]
        if not places:
            return
        ends = self._rows.searchsorted(self._table.end[self._rows[self._heads]])
        counts = np.diff(np.sort(places).searchsorted(np.stack([self._heads, ends])), axis=0)[0]
        for head in counts.nonzero()[0].tolist():
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
        sums, members = values[self._rows], values[self._members]
        if sums.dtype.kind != "f":
            sums[self._heads] = np.add.reduceat(members, self._first_members)
            return sums
        totals = np.add.reduceat(np.where(members == members, members, 0), self._first_members)
        greatest = np.fmax.reduceat(members, self._first_members)  # NaN if no member has a value
        sums[self._heads] = np.where(greatest == greatest, totals, greatest)
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
        parts = np.split(self._order, self._starts)[1:]
        for shown, some in zip(self._several.tolist(), parts, strict=True):
            distinct = list(dict.fromkeys(str(column.levels[code]) for code in codes[some].tolist()))
            labels[shown] = ", ".join([*filter(None, distinct[:2]), *["…"] * (len(distinct) > 2)])
        return labels


def _code(known: list[Any], added: dict[Key | Facts, int], new: Key | Facts) -> int:
    """The index of a key or of facts in the list, to which they are added at the first time."""
    if new not in added:
        added[new] = len(known)
        known.append(new)
    return added[new]


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
    kinds = Counter(map(_kind, counts))
    for note, times in counts.items():
        found[note if kinds[_kind(note)] == 1 else Note(note.kind, f"{_kind(note)[1]}: differs")] += times
    return found


def _kind(note: Note) -> tuple[str, str]:
    return note.kind, note.text.partition(":")[0] if note.kind == "differs" else note.text
