"""The branches of the tree: what is drawn before each key, and where a line says what was left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from treeviz.tree.column import Column
from treeviz.tree.numbers import bytes_text, count_text
from treeviz.tree.quote import visible
from treeviz.tree.table import TreeTable
from treeviz.views.choice import Choice
from treeviz.views.terminal import Glyphs, display_width


class Branch(NamedTuple):
    """One line.

    Attributes:
      prefix: "│  └─ ".
      shown: Which of the rows that are shown; for a line about what was left out, the node that it was
        left out of.
      is_row: Or else such a line.
    """

    prefix: str
    shown: int
    is_row: bool


_new_branch = partial(tuple.__new__, Branch)


def branches(table: TreeTable, choice: Choice, n_levels: int, glyphs: Glyphs) -> Iterator[Branch]:
    """The lines, from the first to the last.

    Below `n_levels` levels nothing moves further to the right: a number says how deep the row is.
    """
    rows = choice.rows
    parents = table.parent[rows]
    waits = _shows_some(choice, parents)
    left_out = np.zeros(len(table), dtype=bool)
    left_out[rows[waits]] = True
    is_last = ((table.end[rows] == table.end[parents]) & ~left_out[parents]).tolist()
    ends, depths, waits = table.end[rows].tolist(), table.depth[rows].tolist(), waits.tolist()
    guides = [""] * (n_levels + 1)  # what stands before the branch of a node's children
    waiting: list[int] = []  # the nodes above that show some of their children
    for shown, row in enumerate(rows.tolist()):
        while waiting and ends[waiting[-1]] <= row:
            node = waiting.pop()
            yield Branch(_prefix(guides, depths[node] + 1, n_levels) + glyphs.last, node, False)
        depth = depths[shown]
        if depth:
            branch, guide = (glyphs.last, glyphs.blank) if is_last[shown] else (glyphs.branch, glyphs.bar)
            before = guides[depth - 1] if depth <= n_levels else _prefix(guides, depth, n_levels)
            yield _new_branch((before + branch, shown, True))
            if depth <= n_levels:
                guides[depth] = before + guide
        else:
            yield Branch("", shown, True)
        if waits[shown]:
            waiting.append(shown)
    while waiting:
        node = waiting.pop()
        yield Branch(_prefix(guides, depths[node] + 1, n_levels) + glyphs.last, node, False)


def _prefix(guides: list[str], depth: int, n_levels: int) -> str:
    return guides[depth - 1] if depth <= n_levels else f"{guides[n_levels]}{depth} "


def _shows_some(choice: Choice, parents: np.ndarray) -> np.ndarray:
    """bool[n_shown]: the nodes that show a part of their children. The next row is then the first of them."""
    some = choice.n_left_out > 0
    some[:-1] &= parents[1:] == choice.rows[:-1]
    some[-1] = False
    return some


def key_labels(table: TreeTable, rows: np.ndarray, n_levels: int, glyphs: Glyphs) -> tuple[list[str], list[int]]:
    """The rows' labels, and how many columns each takes together with its branch."""
    labels = [glyphs.fit(key.label or key.keystr) for key in table.keys]
    label_widths = np.array([display_width(label) for label in labels], dtype=np.int64)
    codes, depths = table.key_codes[rows], table.depth[rows].astype(np.int64)
    positions = table.position[rows]
    shown = [
        labels[code] if code else f"[{position}]"
        for code, position in zip(codes.tolist(), positions.tolist(), strict=True)
    ]
    shown[0] = glyphs.fit(visible(table.name))
    n_digits = np.searchsorted(10 ** np.arange(1, 10), positions, side="right") + 1
    widths = np.where(codes > 0, label_widths[codes], n_digits + 2) + 3 * np.minimum(depths, n_levels + 1)
    deep = np.flatnonzero(depths > n_levels)
    widths[deep] += np.searchsorted(10 ** np.arange(1, 10), depths[deep], side="right") + 2
    widths[0] = display_width(shown[0])
    return shown, widths.tolist()


class LeftOut:
    """Says what a node does not show: "… 12 more (34 leaves, 1.2 MB)", "… 12 inside".

    Attributes:
      closed: Which of the rows that are shown show none of their children.
    """

    def __init__(self, table: TreeTable, columns: Sequence[Column], choice: Choice, dots: str) -> None:
        self._choice, self._end, self._dots = choice, table.end, dots
        waits = _shows_some(choice, table.parent[choice.rows])
        self.closed = np.flatnonzero((choice.n_left_out > 0) & ~waits)
        if not choice.n_left_out.any():
            return
        self._start = np.arange(1, len(table) + 1)  # of each row, the first child that is not shown
        np.maximum.at(self._start, table.parent[choice.rows[1:]], table.end[choice.rows[1:]])
        self._n_leaves = _before(np.array([facts.leaves for facts in table.facts])[table.fact_codes])
        sizes = next((c for c in columns if c.format == "bytes" and c.rollup == "sum"), None)
        self._n_bytes = None if sizes is None else _before(sizes.values)

    def inside(self, shown: int) -> str:
        """Of a node that shows none; how much that is stands in its line."""
        return f"{self._dots} {count_text(self._choice.n_left_out[shown])} inside"

    def text(self, shown: int) -> str:
        """Of a node that shows some of its children."""
        row = self._choice.rows[shown]
        start, end = self._start[row], self._end[row]
        n_leaves = int(self._n_leaves[end] - self._n_leaves[start])
        sizes = [f"{count_text(n_leaves)} {'leaf' if n_leaves == 1 else 'leaves'}"]
        if self._n_bytes is not None and self._n_bytes[end] > self._n_bytes[start]:
            sizes.append(bytes_text(int(self._n_bytes[end] - self._n_bytes[start])))
        return f"{self._dots} {count_text(self._choice.n_left_out[shown])} more ({', '.join(sizes)})"


def _before(values: np.ndarray) -> np.ndarray:
    """The sum of all values before each row, and at the end of all."""
    return np.concatenate([[0], np.cumsum(values)])
