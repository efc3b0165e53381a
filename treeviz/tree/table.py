"""The one data structure: a pytree as a table, one row per node in depth-first order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any

import numpy as np

from treeviz.tree.facts import Column, Facts, Note, Rollup
from treeviz.tree.keys import Key, index_key, python_expression
from treeviz.tree.runtime import computed_once
from treeviz.tree.text import printable

# Roll up: the value of every subtree

REDUCE = {"max": np.fmax, "min": np.fmin, "any": np.logical_or, "sum": np.add, "norm": np.hypot}


def roll(depth: np.ndarray, parent: np.ndarray, end: np.ndarray, values: np.ndarray, rule: Rollup) -> np.ndarray:
    """Reduce values over the subtree of every node.

    Takes time linear in the rows; all rules but the sum of integers also take time for each level of depth.

    Args:
      depth, parent, end: int32[n_rows], as in `treeviz.TreeTable`.
      values: [n_rows], or [n_rows, k] for k columns at once: the rows' own values.
      rule: "sum"; "max", "min"; "any"; "norm", the root of the sum of squares. NaN means no value and is
        ignored; the result is NaN if no row of the subtree has a value. "none" and "given" return `values` itself.

    Returns:
      The shape of `values`; int64 for sums of integers, float64 for other sums and norms.
    """
    if rule in ("none", "given"):
        return values
    if rule == "sum" and values.dtype.kind in "iub":
        before = np.zeros((len(values) + 1, *values.shape[1:]), dtype=np.int64)
        values.cumsum(axis=0, out=before[1:])
        return before[end] - before[:-1]
    with np.errstate(all="ignore"):  # a sum may overflow to infinity
        if rule not in ("sum", "norm"):
            return _by_level(depth, parent, values, REDUCE[rule])
        missing = np.isnan(values)
        own = np.where(missing, 0.0, np.abs(values) if rule == "norm" else values).astype(np.float64, copy=False)
        rolled = _by_level(depth, parent, own, REDUCE[rule])
        if missing.any():
            rolled[~_by_level(depth, parent, ~missing, np.logical_or)] = np.nan
    return rolled


def _by_level(depth: np.ndarray, parent: np.ndarray, values: np.ndarray, reduce: np.ufunc) -> np.ndarray:
    """Reduce each row's value into its parent's, the deepest level first."""
    rolled = values.copy()
    by_depth = depth.argsort(kind="stable")
    levels = depth[by_depth].searchsorted(np.arange(1, int(depth.max(initial=0)) + 2))
    for start, stop in zip(levels[-2::-1], levels[:0:-1], strict=True):
        rows = by_depth[start:stop]
        parents = parent[rows]
        is_first = np.ones(len(rows), bool)
        is_first[1:] = parents[1:] != parents[:-1]
        first = is_first.nonzero()[0]
        heads = parents[first]
        rolled[heads] = reduce(rolled[heads], reduce.reduceat(rolled[rows], first))
    return rolled


def children_of(ends: Sequence[int] | np.ndarray, row: int) -> list[int]:
    """The rows of a node's children, from the ends of all subtrees; a list of ends is faster than an array."""
    children, child, end = [], row + 1, int(ends[row])
    while child < end:
        children.append(child)
        child = int(ends[child])
    return children


@dataclass(frozen=True)
class TreeTable:
    """A pytree as a table: one row per node, depth first, in the order in which JAX flattens.

    A row is identified by its number; a subtree is the contiguous range `row : end[row]`. The table keeps no array
    and no node of the tree alive.

        table = tv.walk(params)
        table[0]["bytes"]                                   # of the whole tree
        [row.keystr for row in table.leaves if row.dtype == "float32"]
        table.find("bytes:>1M")[:5]                         # rows; the language of the page's search box

    Attributes:
      name: The name of the root, in its row and in expressions.
      depth, parent, end: int32[n_rows]. The root has depth 0 and parent -1.
      position: int32[n_rows]: the index of the row among its siblings.
      key_codes: int32[n_rows] into `keys`; code 0 means the sequence index `position`.
      fact_codes: int32[n_rows] into `facts`.
      notes: The notes by row, shown as badges.
      columns: The columns by name: facts and sizes from `walk`, more from `render` on request.
      separator: Joins the keys of a path to the name of the array in the file: "."; "" if the tree is not from a file.
      headline: Short texts that summarize the whole tree: "148 leaves", "497.8 MB".
    """

    name: str
    depth: np.ndarray
    parent: np.ndarray
    end: np.ndarray
    position: np.ndarray
    key_codes: np.ndarray
    keys: tuple[Key, ...]
    fact_codes: np.ndarray
    facts: tuple[Facts, ...]
    notes: Mapping[int, tuple[Note, ...]] = field(default_factory=dict)
    columns: Mapping[str, Column] = field(default_factory=dict)
    headline: tuple[str, ...] = ()
    separator: str = ""
    _rolled: dict[str, tuple[Column, np.ndarray]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # These may come from an untrusted file, and terminals and messages show them.
        object.__setattr__(self, "name", printable(self.name))
        object.__setattr__(self, "headline", tuple(map(printable, self.headline)))

    def __len__(self) -> int:
        return len(self.depth)

    def __getitem__(self, row: int) -> Row:
        return Row(self, range(len(self))[row])

    def __iter__(self) -> Iterator[Row]:
        return (Row(self, row) for row in range(len(self)))

    def __repr__(self) -> str:
        return f"TreeTable({' · '.join((self.name, f'{len(self)} rows', *self.headline))})"

    @computed_once
    def is_leaf(self) -> np.ndarray:
        """bool[n_rows]: the rows that JAX counts as leaves."""
        return np.array([facts.is_leaf for facts in self.facts], dtype=bool)[self.fact_codes]

    @computed_once
    def is_layer(self) -> np.ndarray:
        """bool[n_rows]: the layers of stacks, each of which is one leaf."""
        return np.array([facts.kind == "layer" for facts in self.facts], dtype=bool)[self.fact_codes]

    @computed_once
    def n_leaves(self) -> np.ndarray:
        """int64[n_rows]: the leaves of each subtree, as JAX counts them."""
        return self.roll(np.array([facts.leaves for facts in self.facts], np.int64)[self.fact_codes], "sum")

    @computed_once
    def measured(self) -> np.ndarray:
        """int[k]: the rows with values of their own: each leaf, or its layers if it is opened into layers."""
        is_opened = np.zeros(len(self), bool)
        is_opened[self.parent[self.is_layer]] = True
        return (self.is_layer | (self.is_leaf & ~is_opened)).nonzero()[0]

    @property
    def leaves(self) -> Iterator[Row]:
        """The rows that JAX counts as leaves, in the order of `jax.tree.leaves`."""
        return (Row(self, int(row)) for row in self.is_leaf.nonzero()[0])

    def with_columns(self, *columns: Column) -> TreeTable:
        """The same rows with more columns, which replace those of the same name."""
        return same_rows(self, columns={**self.columns, **{c.name: c for c in columns}})

    def with_headline(self, *headline: str) -> TreeTable:
        """The same rows with another headline."""
        return same_rows(self, headline=tuple(map(printable, headline)))

    def with_notes(self, notes: Mapping[int, tuple[Note, ...]]) -> TreeTable:
        """The same rows with more badges."""
        joined = {row: (*self.notes.get(row, ()), *added) for row, added in notes.items()}
        return same_rows(self, notes={**self.notes, **joined})

    def chosen(self, names: Iterable[str]) -> tuple[Column, ...]:
        """The columns of these names.

        Raises:
          ValueError: There is no such column.
        """
        names = tuple(names)
        unknown = [name for name in names if name not in self.columns]
        if unknown:
            from treeviz.tree.query import did_you_mean

            hint = " Statistics are computed on request: stats=True, --stats." if "nan" not in self.columns else ""
            names = ", ".join(map(repr, unknown))
            raise ValueError(f"no column {names}. {did_you_mean(unknown[0], list(self.columns))}{hint}")
        return tuple([self.columns[name] for name in names])

    def fact_column(self, name: str, levels, *, title: str = "", **options) -> Column:
        """A column derived from `facts`: `levels` has one value for each."""
        column = object.__new__(Column)  # in a third of the time of `Column`
        column.__dict__.update(options, name=name, title=title or name, levels=levels, codes=self.fact_codes)
        return column

    def find(self, query: str) -> list[Row]:
        """The rows that match a query, in order; the language is that of the page's search box.

            table.find("layers/*/weight")            # a glob on the end of the key path; ** for any number of keys
            table.find("attn dtype:bf16")            # both: a word in the path, a dtype
            table.find("shape:*,768 | bytes:>1M")    # either
            table.find("nan -key:bias")              # has a NaN (after render(tree, stats=True)), not a bias

        Each row has a `keystr` and an `expression` that can be pasted. See `treeviz.tree.query` for the language.

        Raises:
          ValueError: The query is invalid; the message says where.
        """
        from treeviz.tree.query import find

        return find(self, query)

    def rolled(self, column: Column) -> np.ndarray:
        """[n_rows], or [n_rows, bins]: a column's value for every row, nodes included. Do not change it in place.

        Takes time linear in the rows; all rules but the sum of integers also take time for each level of depth. The
        result for a column of this table is cached.
        """
        known = self._rolled.get(column.name)
        if known is not None and known[0] is column:
            return known[1]
        values = column.values if column.format == "label" else self.roll(column.values, column.rollup)
        if self.columns.get(column.name) is column:
            self._rolled[column.name] = (column, values)
        return values

    def roll(self, values: np.ndarray, rule: Rollup) -> np.ndarray:
        """Reduce values over subtrees: [n_rows], or [n_rows, k] for k columns at once."""
        return roll(self.depth, self.parent, self.end, values, rule)

    def children(self, row: int) -> list[int]:
        """The rows of a node's children, in the order in which JAX flattens."""
        return children_of(self.end, row)

    def key(self, row: int) -> Key:
        """The key of a row in its parent, as in JAX: `DictKey('w')`."""
        code = self.key_codes[row]
        return index_key(int(self.position[row])) if code == 0 else self.keys[code]

    def path(self, row: int) -> list[Key]:
        """The keys from the root to the row. Takes time linear in the row's depth."""
        keys = []
        while row > 0:
            keys.append(self.key(row))
            row = int(self.parent[row])
        return keys[::-1]

    def keystrs(self) -> Callable[[int], str]:
        """A function that returns the `Row.keystr` of a row; fast for many rows, since it caches the paths of nodes."""
        parents, known = self.parent.tolist(), {0: ("", 0)}  # a path, and the number of its keys
        deepest = -1

        def keystr(row: int) -> str:
            nonlocal deepest
            below = []
            while row not in known:
                below.append(row)
                row = parents[row]
            path, n = known[row]
            for i in reversed(range(len(below))):
                row, n = below[i], n + 1
                path = path + self.key(row).keystr
                if n <= _MOST_CACHED and self.end[row] > row + 1:
                    known[row] = path, n
                elif i == 1:  # of deep nodes only the last one, since each path is longer than the one before
                    known.pop(deepest, None)
                    known[row], deepest = (path, n), row
            return path

        return keystr


_MOST_CACHED = 64  # keys in a path


def same_rows(table: TreeTable, **changes: Any) -> TreeTable:
    """The table with other columns, texts or facts of the same kinds; it keeps what was computed from its rows."""
    copy = object.__new__(TreeTable)  # in a tenth of the time of `dataclasses.replace`
    copy.__dict__.update(table.__dict__, **changes)
    return copy


@dataclass(frozen=True)
class Row:
    """One node or leaf of the table."""

    table: TreeTable
    number: int

    @property
    def facts(self) -> Facts:
        return self.table.facts[self.table.fact_codes[self.number]]

    @property
    def notes(self) -> tuple[Note, ...]:
        return self.table.notes.get(self.number, ())

    @property
    def is_leaf(self) -> bool:
        return self.facts.is_leaf

    @property
    def kind(self) -> str:
        return self.facts.kind

    @property
    def type(self) -> str:
        return self.facts.type

    @property
    def shape(self) -> tuple[int, ...] | None:
        return self.facts.shape

    @property
    def dtype(self) -> str:
        return self.facts.dtype

    @property
    def depth(self) -> int:
        return int(self.table.depth[self.number])

    @property
    def end(self) -> int:
        return int(self.table.end[self.number])

    @property
    def parent(self) -> Row | None:
        parent = int(self.table.parent[self.number])
        return None if parent < 0 else Row(self.table, parent)

    @property
    def children(self) -> Iterator[Row]:
        return (Row(self.table, row) for row in self.table.children(self.number))

    @property
    def label(self) -> str:
        """The last key of the path as text: "kernel", ".mu", "[3]"; the tree's name at the root."""
        return self.table.name if self.number == 0 else self.table.key(self.number).label

    @property
    def keystr(self) -> str:
        """The key path as `jax.tree_util.keystr` writes it, but correct for named tuples (jax#39297).

        Characters that cannot be printed are escaped, addresses of objects removed, and keys cut after 10,000
        characters.
        """
        return "".join(key.keystr for key in self.table.path(self.number))

    @property
    def path(self) -> str:
        """The key path joined by slashes, as globs match it: "layers/0/weight"."""
        return "/".join(key.segment for key in self.table.path(self.number))

    @property
    def stored_name(self) -> str:
        """The name of the array in its file: "model.layers.0.weight"; "" if the tree is not from a file."""
        table = self.table
        return table.separator and table.separator.join(key.segment for key in table.path(self.number))

    @property
    def expression(self) -> str:
        """Python that evaluates to this node if a variable with the table's name holds the tree."""
        is_dict = self.type in ("dict", "OrderedDict", "defaultdict") or self.kind == "opaque"
        return python_expression(self.table.name, self.table.path(self.number), is_dict=is_dict)

    def __getitem__(self, column: str):
        """The row's value in a column, reduced over its subtree."""
        return self.table.rolled(self.table.columns[column])[self.number]

    def __repr__(self) -> str:
        facts = self.facts
        shape = "" if facts.shape is None else str(list(facts.shape)).replace(" ", "")
        return f"Row({self.number}, {self.table.name}{self.keystr}: {facts.dtype}{shape or ' ' + facts.type})"


def without_unused(table: TreeTable) -> TreeTable:
    """The same rows without the keys and facts that no row uses."""
    uses_key, uses_fact = (
        np.bincount(codes, minlength=len(known)) > 0
        for codes, known in ((table.key_codes, table.keys), (table.fact_codes, table.facts))
    )
    uses_key[0] = True  # the index in a list
    return replace(
        table,
        key_codes=(uses_key.cumsum(dtype=np.int32) - 1)[table.key_codes],
        keys=tuple(compress(table.keys, uses_key.tolist())),
        fact_codes=(uses_fact.cumsum(dtype=np.int32) - 1)[table.fact_codes],
        facts=tuple(compress(table.facts, uses_fact.tolist())),
    )


def matched_rows(before: TreeTable, after: TreeTable) -> np.ndarray:
    """int[len(before)]: the row of `after` with the same key path, or -1, as in `assets/widget/transfer.js`."""
    pairs = ((before.depth, after.depth), (before.key_codes, after.key_codes))
    if all(np.array_equal(*pair) for pair in pairs) and before.keys == after.keys:
        return np.arange(len(before))
    rows = np.full(len(before), -1, dtype=np.int64)
    rows[0] = 0
    for row in range(len(before)):
        if rows[row] < 0 or before.end[row] == row + 1:
            continue
        by_keystr: dict[str, list[int]] = {}  # repeated keys are matched in order
        for below in after.children(int(rows[row])):
            by_keystr.setdefault(after.key(below).keystr, []).append(below)
        for below in before.children(row):
            if matches := by_keystr.get(before.key(below).keystr):
                rows[below] = matches.pop(0)
    return rows
