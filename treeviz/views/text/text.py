"""Write a view as aligned text, for terminals and .txt files: guides, columns that fit, details."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import NamedTuple

import numpy as np

from treeviz.tree.facts import INHERITED, KINDS, Column, Facts, Note
from treeviz.tree.series import Series
from treeviz.tree.table import TreeTable, same_rows
from treeviz.tree.text import bytes_text, count_text, visible
from treeviz.views.text import terminal
from treeviz.views.text.cells import (
    BAD,
    Cells,
    Part,
    bare_width,
    bracketed,
    columns_of_cells,
    fact_parts,
    first_fields,
    marks_inside,
    narrowed,
    note_part,
    path_text,
    series_cells,
    type_cells,
    without_origins,
)
from treeviz.views.text.rows import Truncated, first_rows, folded, longest_within, outlier_lines
from treeviz.views.text.terminal import BOLD, CYAN, DIM, RED, RESET, YELLOW, Glyphs, cut, cut_inside, display_width
from treeviz.views.view import View

# The guides of the tree ("│  └─ "), and the lines for omitted rows


class Guide(NamedTuple):
    """The start of a line."""

    prefix: str  # "│  └─ "
    shown: int  # an index into the shown rows: of the row, or for a line such as "… 12 more", of the node
    is_row: bool  # False for a line such as "… 12 more"


_new_guide = partial(tuple.__new__, Guide)  # faster than Guide(...), which runs for each line


def guides(table: TreeTable, left_out: LeftOut, n_levels: int, glyphs: Glyphs) -> Iterator[Guide]:
    """The starts of all lines, in order.

    Rows deeper than `n_levels` are not indented further; a number shows their depth.
    """
    rows, shows_some = left_out.rows, left_out.shows_some
    parents, row_ends = table.parent[rows], table.end[rows]
    is_last = row_ends == table.end[parents]
    if True in shows_some:
        has_more = np.zeros(len(table), dtype=bool)
        has_more[rows[shows_some]] = True
        is_last &= ~has_more[parents]
    is_last, ends, depths = is_last.tolist(), row_ends.tolist(), table.depth[rows].tolist()
    prefixes = [""] * (n_levels + 1)  # by level, the guide before a child's branch
    open_nodes: list[int] = []  # the open ancestors that show only some of their children

    def before(depth: int) -> str:
        return prefixes[depth - 1] if depth <= n_levels else f"{prefixes[n_levels]}{depth} "

    def more(node: int) -> Guide:
        return Guide(before(depths[node] + 1) + glyphs.last, node, False)

    for shown, row in enumerate(rows.tolist()):
        while open_nodes and ends[open_nodes[-1]] <= row:
            yield more(open_nodes.pop())
        depth = depths[shown]
        if depth:
            branch, bar = (glyphs.last, glyphs.blank) if is_last[shown] else (glyphs.branch, glyphs.bar)
            prefix = prefixes[depth - 1] if depth <= n_levels else before(depth)
            yield _new_guide((prefix + branch, shown, True))
            if depth <= n_levels:
                prefixes[depth] = prefix + bar
        else:
            yield Guide("", shown, True)
        if shows_some[shown]:
            open_nodes.append(shown)
    yield from map(more, reversed(open_nodes))


def key_labels(table: TreeTable, rows: np.ndarray, n_levels: int, glyphs: Glyphs) -> tuple[list[str], list[int]]:
    """The labels of the rows, and the display width of each with its guide."""
    codes, depths, positions = [column[rows].tolist() for column in (table.key_codes, table.depth, table.position)]
    labels = {code: glyphs.fit(table.keys[code].label or table.keys[code].keystr) for code in set(codes)}
    label_widths = {code: display_width(label) for code, label in labels.items()}
    shown = [labels[code] if code else f"[{position}]" for code, position in zip(codes, positions, strict=True)]
    shown[0] = glyphs.fit(visible(table.name))
    widths = [
        (label_widths[code] if code else len(label))
        + (3 * depth if depth <= n_levels else 3 * n_levels + 4 + len(str(depth)))
        for code, label, depth in zip(codes, shown, depths, strict=True)
    ]
    widths[0] = display_width(shown[0])
    return shown, widths


class LeftOut:
    """The texts for children that are not shown: "… 12 more (34 leaves, 1.2 MB)", "… 12 inside"."""

    def __init__(self, table: TreeTable, columns: Sequence[Column], truncated: Truncated, dots: str) -> None:
        self._table, self._truncated, self._dots = table, truncated, dots
        self.rows = truncated.rows
        # Of each shown row, whether it shows some but not all of its children: the next row is then a child.
        self.shows_some: list[bool] = [False] * len(self.rows)
        self.closed: list[int] = []  # indices into the shown rows: the nodes that show none of their children
        if not truncated.n_left_out.any():
            return
        is_parent = np.append(table.parent[self.rows[1:]] == self.rows[:-1], False)
        self.shows_some = ((truncated.n_left_out > 0) & is_parent).tolist()
        self.closed = ((truncated.n_left_out > 0) & ~is_parent).nonzero()[0].tolist()
        leaves = np.array([facts.leaves for facts in table.facts])[table.fact_codes]
        self._n_leaves = _not_shown(table, truncated.rows, leaves, table.n_leaves)
        self._stacks = set(table.parent[table.is_layer].tolist())
        sizes = next((c for c in columns if c.format == "bytes" and c.rollup == "sum"), None)
        self._n_bytes = None if sizes is None else _not_shown(table, truncated.rows, sizes.values, table.rolled(sizes))

    def inside(self, shown: int) -> str:
        """The badge of a node that shows no children; the columns of its line show their sizes."""
        mirrored = self._truncated.mirrors.get(int(self._truncated.rows[shown]))
        if mirrored is not None:
            return f"like {path_text(self._table, mirrored)}"
        return f"{self._dots} {count_text(self._truncated.n_left_out[shown])} inside"

    def text(self, shown: int) -> str:
        """The line for the other children of a node that shows some of them."""
        row = self._truncated.rows[shown]
        sizes = [] if row in self._stacks else [leaves_text(int(self._n_leaves[shown]))]
        if self._n_bytes is not None and self._n_bytes[shown] > 0:
            sizes.append(bytes_text(self._n_bytes[shown]))
        more = f"{self._dots} {count_text(self._truncated.n_left_out[shown])} more"
        return f"{more} ({', '.join(sizes)})" if sizes else more


def _not_shown(table: TreeTable, rows: np.ndarray, values: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """[n_shown]: the sum over those children of each shown row that are not shown, and everything below them."""
    missing = (sums - values)[rows]
    np.subtract.at(missing, rows.searchsorted(table.parent[rows[1:]]), sums[rows[1:]])
    return missing


# Fewer columns: the leaves follow the type of a node, and zero counts move to the headline

_IS_COUNTED = ("list", "tuple")  # kinds of nodes whose keys do not show the number of children


def in_brief(view: View, *, fold: bool = False) -> View:
    """The view without the columns that its types and headline replace; with `fold`, a row for each run of siblings.

    The headline reports counts that are 0 in every row: "no zeros". A column in which a row has no value, such as a
    leaf that was not read, is kept.
    """
    zeros = {column.name: column.title.removeprefix("±") for column in view.columns if _is_zero(view.table, column)}
    table, are_counted = view.table, "leaves" in [column.name for column in view.columns]
    if zeros:
        words = [f"{title}: 0" if " " in title else f"no {title}" for title in zeros.values()]
        words = [word for word in words if not any(word in part.split(", ") for part in table.headline)]
        table = table.with_headline(*table.headline, *([", ".join(words)] if words else []))
    if zeros or are_counted:
        columns = [column for column in view.columns if column.name != "leaves" and column.name not in zeros]
        options = {"depth": view.depth, "whole": view.whole, "series": view.series, "histograms": view.histograms}
        view = View(_with_counts(table) if are_counted else table, columns, **options)
    return folded(view) if fold else view


def _with_counts(table: TreeTable) -> TreeTable:
    """The table with the number of leaves after the type of each node that has several: "list · 12 · 144 leaves"."""
    n_leaves, n_children = table.n_leaves, np.bincount(table.parent[1:], minlength=len(table))
    is_node = np.array([KINDS[f.kind].group == "node" and f.shape is None for f in table.facts])[table.fact_codes]
    nodes = (is_node & (n_leaves > 1)).nonzero()[0]
    triples = list(zip(*[values[nodes].tolist() for values in (table.fact_codes, n_children, n_leaves)], strict=True))
    distinct = {triple: code for code, triple in enumerate(dict.fromkeys(triples), start=len(table.facts))}
    codes, counted = table.fact_codes.copy(), [*table.facts]
    codes[nodes] = list(map(distinct.__getitem__, triples))  # several times as fast as np.unique of rows
    for code, children, leaves in distinct:
        facts = table.facts[code]
        own_count = [count_text(children)] if facts.kind in _IS_COUNTED and children != leaves else []
        counted.append(Facts(facts.kind, " · ".join([facts.type, *own_count, leaves_text(leaves)]), *facts[2:]))
    return same_rows(table, facts=tuple(counted), fact_codes=codes)


def _is_zero(table: TreeTable, column: Column) -> bool:
    if column.format != "count" or (column.bad is not None and column.bad.any()):
        return False
    is_blank = column.rollup == "sum" and np.asarray(column.levels).dtype.kind in "iub"  # zeros are not shown
    return not is_blank and not table.rolled(column).any()


def leaves_text(n: int) -> str:
    """ "1 leaf", "144 leaves"."""
    return f"{count_text(n)} {'leaf' if n == 1 else 'leaves'}"


# The ends of the lines: badges, values, static fields; and the lines below the tree for badges that did not fit

GAP = "  "
SIGN = "!"  # marks a problem that does not fit into its line, and is reported below the tree
_LEAST = 6  # columns that remain of a cut part
_LONGEST = 500  # characters of a line below the tree
_MOST_IN_FULL, _WIDE_ENOUGH = 12, 40  # lines of badges below the tree; columns to wrap them


class Details:
    """The ends of the lines: badges, the number of omitted children, values, static fields."""

    def __init__(
        self, table: TreeTable, truncated: Truncated, left_out: LeftOut, series: Sequence[Series], glyphs: Glyphs
    ) -> None:
        self._glyphs = glyphs
        self._codes = table.fact_codes[truncated.rows].tolist()
        self._parts = {code: fact_parts(table.facts[code]) for code in set(self._codes)}
        self._badges: dict[int, list[Part]] = {}
        self.cut_badges: dict[Part, list[int]] = {}  # those that did not fit, with the indices of their rows
        for shown, part in _badges(table, truncated, left_out, series):
            self._badges.setdefault(shown, []).append(part)
        self.inside = max([display_width(left_out.inside(i)) for i in left_out.closed], default=-len(GAP))
        all_badges = [part for badges in self._badges.values() for part in badges]
        self.any_trouble = not {RED, YELLOW}.isdisjoint([part.style for part in all_badges])
        self.values = max([len(part.brief) for part in all_badges], default=0)
        texts = [*self._parts.values(), *[b + self._parts[self._codes[row]] for row, b in self._badges.items()]]
        self.width = max([sum([len(GAP) + len(part.text) for part in parts]) - len(GAP) for parts in texts], default=0)

    def texts(self, width: int, color: bool) -> list[str]:
        """The details of each shown row after a gap, or ""."""
        written = {code: self._write(parts, width, color) if parts else "" for code, parts in self._parts.items()}
        texts = [written[code] for code in self._codes]
        with_badges: dict[tuple, str] = {}
        for shown, badges in self._badges.items():
            key = (self._codes[shown], *badges)
            if key not in with_badges:
                with_badges[key] = self._write([*badges, *self._parts[key[0]]], width, color)
            texts[shown] = with_badges[key]
            for part in badges:
                if part.style != DIM and self._glyphs.fit(part.brief or part.text) not in texts[shown]:
                    self.cut_badges.setdefault(part, []).append(shown)
        return texts

    def _write(self, parts: list[Part], width: int, color: bool) -> str:
        texts = []
        for style, text, brief, fields in parts:
            gap = len(GAP) if texts else 0
            full = self._glyphs.fit(text)
            if display_width(full) > width - gap:
                brief = brief or first_fields([*map(self._glyphs.fit, fields)], width - gap, self._glyphs.dots)
                full = self._glyphs.fit(brief) if brief else full
            text = cut(full, width - gap, self._glyphs.dots)
            if not text or (text != full and width - gap < _LEAST):
                if style in (RED, YELLOW) and not texts and width > 0:
                    texts = [f"{style}{SIGN}{RESET}" if color else SIGN]
                break
            width -= gap + display_width(text)
            texts.append(f"{style}{text}{RESET}" if color and style else text)
        return GAP + GAP.join(texts) if texts else ""


def in_full(
    table: TreeTable, truncated: Truncated, cut_badges: dict[Part, list[int]], width: int, color: bool, glyphs: Glyphs
) -> list[str]:
    """The lines below the tree for badges that did not fit into their lines: one for each badge, with its first row."""
    lines: list[str] = []
    for i, ((style, text, *_), shown) in enumerate(cut_badges.items()):
        path = path_text(table, int(truncated.rows[shown[0]]))
        more = f" and {len(shown) - 1:,} more" if len(shown) > 1 else ""
        line = glyphs.fit(visible(f"{path}{more}: {text}", _LONGEST))
        pieces = terminal.folded(line, width, GAP) if width >= _WIDE_ENOUGH else []
        if len(lines) + len(pieces) >= _MOST_IN_FULL:
            return [*lines, f"{glyphs.dots} {len(cut_badges) - i:,} more"]
        pieces = [cut(piece, width, glyphs.dots) for piece in pieces]
        lines += [f"{style}{piece}{RESET}" for piece in pieces] if color and style else pieces
    return lines


def _badges(
    table: TreeTable, truncated: Truncated, left_out: LeftOut, series: Sequence[Series]
) -> Iterator[tuple[int, Part]]:
    """Pairs of an index into the shown rows and a badge."""
    parts: dict[Note, Part] = {}
    positions = {row: shown for shown, row in enumerate(truncated.rows.tolist())} if table.notes else {}
    for row, notes in table.notes.items():
        if row not in positions:
            continue
        repeated = "more" if table.facts[table.fact_codes[row]].kind == "more" else None  # its type shows the same text
        for note in notes:
            if note.kind != repeated:
                if note not in parts:
                    parts[note] = note_part(table, note)
                yield positions[row], parts[note]
    counts_inside = marks_inside(table, series, truncated.rows[left_out.closed]) if left_out.closed else []
    for shown, count in zip(left_out.closed, counts_inside, strict=True):
        if count:
            yield shown, Part(YELLOW, count)
        yield shown, Part(DIM, left_out.inside(shown))
    rows = [values.tolist() for values in (truncated.rows, table.end[truncated.rows], table.fact_codes[truncated.rows])]
    containers = {code for code, facts in enumerate(table.facts) if KINDS[facts.kind].is_container}
    for shown, (row, end, code) in enumerate(zip(*rows, strict=True)):
        if end == row + 1 and code in containers and row not in table.notes:
            yield shown, Part(DIM, "empty")


MAX_LEVELS = 40  # of indentation; deeper rows show their depth as a number
# With a limited width: the minimum widths of a key, a type and the details, and of a label after a long guide
_KEY, _TYPE, _DETAILS = 16, 12, 20
_LABEL = 10
_REQUESTED, _SHORT = 2, 28  # requested columns; the width of a shortened type next to them
_TRIM = 6  # how much a type is shortened so that the last column fits
_HEADLINE = 500  # characters of a part
_ERROR = "error: "  # the start of a part that says what is wrong
_TROUBLE, _TROUBLE_WANTS = 14, 30  # minimum and preferred width of details that report a problem; in between a fifth
_SHORTEST_LINE = 4  # characters, with the line break
_SPARKLINE = 12  # characters
_UNLIMITED_KEY = 60  # without a limit, a longer key shifts the rest of its line


def text(
    view: View,
    *,
    width: int | None = None,
    max_rows: int | None = None,
    color: bool = False,
    glyphs: Glyphs = terminal.UNICODE,
    fold: bool = False,
    budget: int | None = None,
) -> str:
    """The tree as text, one line per row: key, type, the view's columns, badges and static fields.

    The first line summarizes the tree. Columns that repeat the type, the shape or the dtype are left out. Each line
    shows the last value and a sparkline of the first series, whose outliers ("worst leaves") are listed below the tree.
    Rows deeper than `view.depth` are left out. Takes a few µs per row at any depth.

    Args:
      width: The maximum width of a line. None: no limit.
      max_rows: The maximum number of rows; see `first_rows`. None: all.
      color: Write ANSI colours; see `terminal_color`.
      glyphs: The characters to draw with; see `glyphs_of`.
      fold: Collapse identical siblings into one row; see `treeviz.views.text.rows`.
      budget: The maximum number of characters: as many rows as fit, at least the headline and the root.
    """
    brief = in_brief(view, fold=fold)
    if budget is None:
        return "\n".join(_drawn(view, brief, width, max_rows, color, glyphs))
    most = min(len(brief.table), max_rows or len(brief.table), 1 + budget // _SHORTEST_LINE)
    return longest_within(budget, most, lambda n: "\n".join(_drawn(view, brief, width, n, color, glyphs)))


def lines(view: View, width: int | None = None) -> Iterator[str]:
    """Iterate over the lines of `text`, which takes 60 MB for 100,000 leaves."""
    return _drawn(view, in_brief(view), width, None, False, terminal.UNICODE)


def _drawn(
    whole: View, view: View, width: int | None, max_rows: int | None, color: bool, glyphs: Glyphs
) -> Iterator[str]:
    """The lines of a brief view, with the outliers of the whole view."""
    head, rows, foot = drawn(view, first_rows(view, max_rows, view.depth), width, color, glyphs)
    yield from head
    for _, line in rows:
        yield line
    yield from foot()
    if view.series:
        yield from outlier_lines(whole.table, whole.series, glyphs, width=width, color=color)


class Drawn(NamedTuple):
    """The lines of a view."""

    head: list[str]  # the headline and the titles of the columns
    rows: Iterator[tuple[int, str]]  # each with its row; a line such as "… 12 more" has that of its node
    foot: Callable[[], Iterator[str]]  # after the rows: what did not fit into their lines


def drawn(
    view: View, truncated: Truncated, width: int | None, color: bool, glyphs: Glyphs, sparkline: int = _SPARKLINE
) -> Drawn:
    """The lines for some rows of a brief view, with sparklines of so many characters."""
    table = view.table
    n_levels = MAX_LEVELS
    labels, key_widths = key_labels(table, truncated.rows, n_levels, glyphs)
    left_out = LeftOut(table, view.columns, truncated, glyphs.dots)
    details = Details(table, truncated, left_out, view.series, glyphs)
    columns = columns_of_cells(table, view.columns_without_last_value, truncated.rows, glyphs, width)
    cells = [
        type_cells(table, truncated.rows, glyphs),
        *series_cells(view.series, truncated.rows, glyphs, sparkline),
        *[bracketed(cell, glyphs) for cell in columns if any(map(str.strip, cell.texts))],
    ]
    room = _room(width, max(key_widths), cells, details, glyphs)
    if max(key_widths) > room.key and width is not None:
        n_levels = min(MAX_LEVELS, max(1, (room.key - _LABEL) // len(glyphs.bar)))
        labels, key_widths = key_labels(table, truncated.rows, n_levels, glyphs)
    siblings = _siblings(table, truncated.rows) if max(key_widths) > room.key else []

    head = _headline(table, width, glyphs)
    if color:
        first_error = next((i for i, line in enumerate(head) if line.startswith(_ERROR)), len(head))
        styles = [BOLD if i == 0 else RED if first_error <= i else DIM for i in range(len(head))]
        head = [f"{style}{line}{RESET}" for style, line in zip(styles, head, strict=True)]
    if titles := GAP.join([" " * room.key, *[cell.title for cell in room.cells]]).rstrip():
        head.append(f"{DIM}{titles}{RESET}" if color else titles)
    numbers = truncated.rows.tolist()
    is_leaf = (table.is_leaf | table.is_layer)[truncated.rows].tolist() if color else [True] * len(numbers)

    def rows() -> Iterator[tuple[int, str]]:
        middles = _middles(room, is_leaf, color)
        endings = details.texts(room.details, color)
        for prefix, shown, is_row in guides(table, left_out, n_levels, glyphs):
            if not is_row:
                line = cut(prefix + left_out.text(shown), room.line, glyphs.dots)
                yield numbers[shown], f"{DIM}{line}{RESET}" if color else line
                continue
            label, blank = labels[shown], room.key - key_widths[shown]
            if blank < 0 and width is not None:
                others = [labels[sibling] for sibling in siblings[shown]]
                label_room = max(min(4, display_width(label)), room.key - len(prefix))
                prefix = prefix[max(0, len(prefix) - room.key + label_room) :]  # the end of a long guide
                label = cut_inside(label, room.key - len(prefix), glyphs.dots, others)
                blank = room.key - display_width(prefix + label)
            if color:
                prefix = f"{DIM}{prefix}{RESET}" if prefix else ""
                label = label if is_leaf[shown] else f"{BOLD}{label}{RESET}"
            ending = endings[shown]
            line = f"{prefix}{label}{' ' * blank}{next(middles)}{ending}"
            yield numbers[shown], line if ending else line.rstrip()

    def foot() -> Iterator[str]:
        if view.footer:
            yield f"{DIM}{view.footer}{RESET}" if color else cut(view.footer, room.line, glyphs.dots)
        yield from in_full(table, truncated, details.cut_badges, room.line, color, glyphs)

    return Drawn(head, rows(), foot)


def _headline(table: TreeTable, width: int | None, glyphs: Glyphs) -> list[str]:
    """The name and the headline of the tree, in as many lines as needed."""
    parts = [glyphs.fit(visible(part, _HEADLINE)) for part in (table.name, *table.headline)]
    lines = [glyphs.separator.join(parts)]
    if width is None or (display_width(lines[0]) <= width and not any(p.startswith(_ERROR) for p in parts[1:])):
        return lines
    lines = []
    for part in parts:
        longer = f"{lines[-1]}{glyphs.separator}{part}" if lines else part
        if lines and display_width(longer) <= width and not part.startswith(_ERROR):
            lines[-1] = longer
        else:
            lines.append(part)
    return [cut(piece, width, glyphs.dots) for line in lines for piece in terminal.wrapped(line, width, "")]


class _Room(NamedTuple):
    line: int
    key: int
    cells: list[Cells]
    details: int


def _room(width: int | None, key: int, cells: list[Cells], details: Details, glyphs: Glyphs) -> _Room:
    """Divide the width: names first, then types, then columns, then details.

    Columns are dropped before names are cut or indentation is reduced: first sizes, then the last of the least urgent
    columns. The requested column (the first one, or the series) stays: names that do not fit next to it and to short
    types get 45 % of the width, and the rest. No other column is dropped for a name that is cut anyway.
    """
    if width is None:
        return _Room(2**31, min(key, _UNLIMITED_KEY), cells, 2**31)

    def remaining(key: int) -> int:
        """The width that the cells leave for the details."""
        return width - key - sum([len(GAP) + cell.width for cell in cells]) - len(GAP)

    none = -len(GAP)
    sign = len(SIGN) if details.any_trouble else none
    wanted = min(details.width, _TROUBLE_WANTS if details.any_trouble else _DETAILS) if details.width else none
    trouble = min(details.width, _TROUBLE_WANTS, max(_TROUBLE, width // 5, details.values))
    needed = max(details.inside, trouble if details.any_trouble else none)
    if key <= max(_KEY, width * 45 // 100) and (rest := remaining(key)) >= max(wanted, needed, none):
        return _Room(width, key, cells, max(0, rest))  # everything fits
    type_ = min(cells[0].width, max(2 * _TYPE, width * 45 // 100))
    least = min(type_, _SHORT, bare_width(cells[0]))
    requested = [cell for cell in cells[1:] if not (cell.is_size or cell.is_extra)]
    are_numbers = True not in [cell.is_label for cell in requested]
    if are_numbers and len({cell.name for cell in requested}) == len(requested):  # no sparklines
        requested.sort(key=_urgency, reverse=True)
    kept = sum([len(GAP) + cell.width for cell in requested if cell.name == requested[0].name])
    widest = width - least - kept - needed - 2 * len(GAP)
    names = min(key, max(_KEY, width * 45 // 100, widest if key <= widest or not requested else 0))
    while remaining(names) < wanted and any(cell.is_extra for cell in cells):
        last = max(i for i, cell in enumerate(cells) if cell.is_extra)
        cells = cells[:last] + cells[last + 1 :]
    if remaining(names) < needed:
        cells = [narrowed(cells[0], type_, glyphs), *cells[1:]]
    for i, cell in enumerate(cells):
        if remaining(names) < wanted:
            cells[i] = without_origins(cell, wanted - remaining(names), glyphs)
    while len(cells) > 1 and remaining(names) < needed:
        sizes = [cell for cell in cells[1:] if cell.is_size]
        short = cells[0].width - needed + remaining(names)
        shortest = max(_TYPE, cells[0].width - _TRIM) if len(cells) == 2 else width
        if short >= (shortest if sizes or len(cells) > 1 + _REQUESTED else least):
            cells = [narrowed(cells[0], short, glyphs), *cells[1:]]
            break
        elements = [cell for cell in sizes if cell.name == "elements"]  # the shapes imply them
        last = [*cells, *(sizes if len(sizes) < len(cells) - 1 else []), *elements][-1]
        if last in requested and not last.is_label:
            numbers = [cell for cell in reversed(cells) if cell in requested and not cell.is_label]
            last = min(numbers, key=lambda cell: (cell.name == requested[0].name, _urgency(cell)))
        narrow = last.width - (needed - remaining(names))
        shorter = [narrowed(last, narrow, glyphs)] if last.is_label and narrow >= _TYPE else []
        if not shorter and requested and (last.is_label or last.name == requested[0].name):
            cells = [narrowed(cells[0], least, glyphs), *cells[1:]]
            if last.is_label and 0 < (over := sign - remaining(names)) <= last.width - _TYPE:
                cells[cells.index(last)] = narrowed(last, last.width - over, glyphs)
            if remaining(names) >= sign:  # lines below the tree contain the details that are cut
                needed = min(needed, remaining(names))
                break
        cells = [*(cell for cell in cells if cell is not last), *shorter]
    key = min(key, max(names, names + remaining(names) - needed), width)
    missing = needed - remaining(key)
    if missing > 0:
        cells = [narrowed(cells[0], max(_TYPE, cells[0].width - missing), glyphs), *cells[1:]]
    missing = none - remaining(key)
    if missing > 0:  # too narrow for anything but keys
        cells = [narrowed(cells[0], cells[0].width - missing, glyphs)] if cells[0].width - missing > 0 else []
    return _Room(width, key, cells, max(0, remaining(key)))


def _urgency(cell: Cells) -> int:
    """The importance of a column of statistics: first counts of non-finite values, then magnitudes."""
    return 2 if "NaN" in cell.title or "Inf" in cell.title else int("rms" in cell.title)


def _middles(room: _Room, is_leaf: list[bool], color: bool) -> Iterator[str]:
    """The text of each row between the key and the details: the type and the columns."""
    texts = [cell.texts for cell in room.cells]
    if color and texts:
        types = zip(texts[0], is_leaf, strict=True)
        texts[0] = [type_ if leaf else f"{CYAN}{type_}{RESET}" for type_, leaf in types]
        for i, cell in enumerate(room.cells[1:], 1):
            texts[i] = list(map(_colored, cell.texts, cell.styles or repeat("")))
    return map(GAP.join, zip([""] * len(is_leaf), *texts, strict=True))


def _colored(text: str, style: str) -> str:
    """A cell in its color; by default inherited text is dim, and NaN is red."""
    style = style or (DIM if INHERITED in text else "")
    return f"{style}{text}{RESET}" if style else text.replace(BAD, f"{RED}{BAD}{RESET}")


def _siblings(table: TreeTable, rows: np.ndarray) -> list[list[int]]:
    """The siblings before and after each row, or the row itself, as indices into the rows."""
    parents = table.parent[rows]
    order = parents.argsort(kind="stable")
    is_next = parents[order[1:]] == parents[order[:-1]]
    neighbors = np.stack([np.arange(len(rows))] * 2, axis=1)
    neighbors[order[1:][is_next], 0] = order[:-1][is_next]
    neighbors[order[:-1][is_next], 1] = order[1:][is_next]
    return neighbors.tolist()
