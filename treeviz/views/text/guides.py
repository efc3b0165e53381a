"""The guides of the tree ("│  └─ "), and the lines for omitted rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from treeviz.tree.column import Column
from treeviz.tree.numbers import bytes_text, count_text
from treeviz.tree.safe_repr import visible
from treeviz.tree.table import TreeTable
from treeviz.views.text.terminal import Glyphs, display_width
from treeviz.views.text.truncate import Truncated


class Guide(NamedTuple):
    """The start of one line.

    Attributes:
      prefix: "│  └─ ".
      shown: An index into the shown rows: that of the row; for a line such as "… 12 more", that of the node.
      is_row: False for a line such as "… 12 more".
    """

    prefix: str
    shown: int
    is_row: bool


_new_guide = partial(tuple.__new__, Guide)  # faster than Guide(...): one for each line


def guides(table: TreeTable, truncated: Truncated, n_levels: int, glyphs: Glyphs) -> Iterator[Guide]:
    """The starts of all lines, in order.

    Rows deeper than `n_levels` are not indented further: a number shows their depth.
    """
    rows = truncated.rows
    parents = table.parent[rows]
    waits = _shows_some(truncated, parents)
    left_out = np.zeros(len(table), dtype=bool)
    left_out[rows[waits]] = True
    is_last = ((table.end[rows] == table.end[parents]) & ~left_out[parents]).tolist()
    ends, depths, waits = table.end[rows].tolist(), table.depth[rows].tolist(), waits.tolist()
    before = [""] * (n_levels + 1)  # of each level: the guide before a child's branch
    waiting: list[int] = []  # the open ancestors that show only some of their children
    for shown, row in enumerate(rows.tolist()):
        while waiting and ends[waiting[-1]] <= row:
            node = waiting.pop()
            yield Guide(_prefix(before, depths[node] + 1, n_levels) + glyphs.last, node, False)
        depth = depths[shown]
        if depth:
            branch, bar = (glyphs.last, glyphs.blank) if is_last[shown] else (glyphs.branch, glyphs.bar)
            above = before[depth - 1] if depth <= n_levels else _prefix(before, depth, n_levels)
            yield _new_guide((above + branch, shown, True))
            if depth <= n_levels:
                before[depth] = above + bar
        else:
            yield Guide("", shown, True)
        if waits[shown]:
            waiting.append(shown)
    while waiting:
        node = waiting.pop()
        yield Guide(_prefix(before, depths[node] + 1, n_levels) + glyphs.last, node, False)


def _prefix(before: list[str], depth: int, n_levels: int) -> str:
    return before[depth - 1] if depth <= n_levels else f"{before[n_levels]}{depth} "


def _shows_some(truncated: Truncated, parents: np.ndarray) -> np.ndarray:
    """bool[n_shown]: the nodes that show some, but not all of their children: the next row is a child."""
    some = truncated.n_left_out > 0
    some[:-1] &= parents[1:] == truncated.rows[:-1]
    some[-1] = False
    return some


def key_labels(table: TreeTable, rows: np.ndarray, n_levels: int, glyphs: Glyphs) -> tuple[list[str], list[int]]:
    """The labels of the rows, and the display width of each together with its guide."""
    codes, depths = table.key_codes[rows].tolist(), table.depth[rows].astype(np.int64)
    labels = {code: glyphs.fit(table.keys[code].label or table.keys[code].keystr) for code in set(codes)}
    label_widths = {code: display_width(label) for code, label in labels.items()}
    shown = [
        labels[code] if code else f"[{position}]"
        for code, position in zip(codes, table.position[rows].tolist(), strict=True)
    ]
    shown[0] = glyphs.fit(visible(table.name))
    own = [label_widths[code] if code else len(label) for code, label in zip(codes, shown, strict=True)]
    widths = np.array(own) + 3 * np.minimum(depths, n_levels + 1)
    deep = np.flatnonzero(depths > n_levels)
    widths[deep] += np.searchsorted(10 ** np.arange(1, 10), depths[deep], side="right") + 2
    widths[0] = display_width(shown[0])
    return shown, widths.tolist()


class LeftOut:
    """The texts for children that are not shown: "… 12 more (34 leaves, 1.2 MB)", "… 12 inside".

    Attributes:
      closed: Indices into the shown rows: the nodes that show none of their children.
    """

    def __init__(self, table: TreeTable, columns: Sequence[Column], truncated: Truncated, dots: str) -> None:
        self._truncated, self._dots = truncated, dots
        waits = _shows_some(truncated, table.parent[truncated.rows])
        self.closed = np.flatnonzero((truncated.n_left_out > 0) & ~waits)
        if not truncated.n_left_out.any():
            return
        leaves = np.array([facts.leaves for facts in table.facts])
        self._n_leaves = _not_shown(table, truncated.rows, leaves[table.fact_codes])
        self._stacks = set(table.parent[table.is_layer].tolist())
        sizes = next((c for c in columns if c.format == "bytes" and c.rollup == "sum"), None)
        self._n_bytes = None if sizes is None else _not_shown(table, truncated.rows, sizes.values)

    def inside(self, shown: int) -> str:
        """For a node that shows no child: a badge in its own line, whose columns show the sizes."""
        return f"{self._dots} {count_text(self._truncated.n_left_out[shown])} inside"

    def text(self, shown: int) -> str:
        """For a node that shows some of its children: a line of its own."""
        row = self._truncated.rows[shown]
        n_leaves = int(self._n_leaves[shown])
        sizes = [f"{count_text(n_leaves)} {'leaf' if n_leaves == 1 else 'leaves'}"] if row not in self._stacks else []
        if self._n_bytes is not None and self._n_bytes[shown] > 0:
            sizes.append(bytes_text(self._n_bytes[shown]))
        more = f"{self._dots} {count_text(self._truncated.n_left_out[shown])} more"
        return f"{more} ({', '.join(sizes)})" if sizes else more


def _not_shown(table: TreeTable, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """[n_shown]: the sum over the children of each shown row that are not shown, and all below them."""
    sums = table.roll(values, "sum")
    missing = (sums - values)[rows]
    np.subtract.at(missing, np.searchsorted(rows, table.parent[rows[1:]]), sums[rows[1:]])
    return missing
