"""The one data structure: a pytree as a table, one row per node in depth-first order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from treeviz.tree.column import Column
from treeviz.tree.keys import Key, index_key, python_expression


class Sharding(NamedTuple):
    """Where an array lies."""

    text: str  # "P('data', None)", "cpu:0"
    n_devices: int
    shard_shape: tuple[int, ...]
    replicated: bool  # every device holds all of it, and there is more than one
    committed: bool | None  # None: the question does not arise (an abstract array)
    addressable: bool  # False: a part lives in another process
    devices: str = ""  # "8 x cpu", for people


class Facts(NamedTuple):
    """What is known of a node or leaf. Rows that look alike share one.

    Every text in it is printable, bounded, and free of control characters.
    """

    kind: str  # one of `treeviz.tree.kinds.KINDS`
    type: str  # the class, as people say it: "dict", "Linear", "jax.Array"
    is_leaf: bool  # as JAX sees it
    leaves: int = 0  # what the row itself adds to the count of leaves
    parameters: int = 0  # ... of array elements
    bytes: int = 0
    shape: tuple[int, ...] | None = None
    dtype: str = ""  # "float32", "key<fry>"
    weak: bool = False  # weakly typed
    module: str = ""  # of the class
    text: str = ""  # a scalar's value, a function's name and line, a box's axis names
    static: tuple[tuple[str, str], ...] = ()  # names and values of static fields
    sharding: Sharding | None = None


class Note(NamedTuple):
    """Something worth a badge on one row."""

    kind: str  # one of `treeviz.tree.kinds.NOTES`: "shared", "cycle", "error", "more", "hides", "info"
    text: str  # a sentence for people
    row: int = -1  # the row that it speaks of, e.g. where a shared leaf was first seen
    details: tuple[tuple[str, str], ...] = ()  # lines below it: ("._w", "float32[3]")


@dataclass(frozen=True)
class TreeTable:
    """A pytree as a table: one row per node, depth first, in the order in which JAX flattens.

    A row is known by its number; a subtree is the contiguous range `row : end[row]`. The table holds
    descriptions only: no array and no node of the tree stays alive because of it.

    Attributes:
      name: What the root is called in key paths.
      depth, parent, end: int32[n_rows]. The root has depth 0 and parent -1.
      position: int32[n_rows], the row's place among its siblings.
      key_codes: int32[n_rows] into `keys`; `keys[0]` stands for "the sequence index `position`".
      fact_codes: int32[n_rows] into `facts`.
      notes: The few rows that have badges.
      columns: What analyses have added, by name.
      headline: Short texts that sum up the whole tree: "148 leaves", "497.8 MB".
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

    def __len__(self) -> int:
        return len(self.depth)

    def __getitem__(self, row: int) -> Row:
        return Row(self, range(len(self))[row])

    def __iter__(self) -> Iterator[Row]:
        return (Row(self, row) for row in range(len(self)))

    def __repr__(self) -> str:
        return f"TreeTable({' · '.join((self.name, f'{len(self)} rows', *self.headline))})"

    @cached_property
    def is_leaf(self) -> np.ndarray:
        """bool[n_rows]: the rows that JAX counts as leaves."""
        return np.array([facts.is_leaf for facts in self.facts], dtype=bool)[self.fact_codes]

    @property
    def leaves(self) -> Iterator[Row]:
        """The rows that JAX counts as leaves, in the order of `jax.tree.leaves`."""
        return (Row(self, int(row)) for row in np.flatnonzero(self.is_leaf))

    def with_columns(self, *columns: Column) -> TreeTable:
        """The same rows with more columns; one of the same name is replaced."""
        return replace(self, columns={**self.columns, **{c.name: c for c in columns}})

    def with_headline(self, *headline: str) -> TreeTable:
        return replace(self, headline=headline)

    def with_notes(self, notes: Mapping[int, tuple[Note, ...]]) -> TreeTable:
        """The same rows with more badges."""
        return replace(
            self, notes={**self.notes, **{row: (*self.notes.get(row, ()), *more) for row, more in notes.items()}}
        )

    def chosen(self, names: Iterable[str]) -> tuple[Column, ...]:
        """The columns of these names.

        Raises:
          ValueError: There is no such column.
        """
        names = tuple(names)
        unknown = [name for name in names if name not in self.columns]
        if unknown:
            hint = " Statistics are computed on request: render(tree, stats=True)." if "nan" not in self.columns else ""
            raise ValueError(f"no column {', '.join(map(repr, unknown))}; there are {', '.join(self.columns)}.{hint}")
        return tuple(self.columns[name] for name in names)

    def fact_column(self, name: str, levels, *, title: str = "", **how) -> Column:
        """A column that follows from the facts alone: `levels` has one entry per entry of `facts`."""
        return Column(name, title or name, levels, self.fact_codes, **how)

    def find(self, query: str) -> list[Row]:
        """The rows that match a query, in order; the language is that of the page's search box.

            table.find("layers/*/weight")            a glob on the end of the key path; ** for any number of keys
            table.find("attn dtype:bf16")            both: a word in the path, a dtype
            table.find("shape:*,768 | bytes:>1M")    either
            table.find("nan -key:bias")              has a NaN (after render(tree, stats=True)), and is no bias

        Each row has a `keystr` and an `expression` that can be pasted. See `treeviz.tree.find` for all of it.

        Raises:
          ValueError: The query cannot be read; the message says where.
        """
        from treeviz.tree.find import find

        return find(self, query)

    def key(self, row: int) -> Key:
        code = self.key_codes[row]
        return index_key(int(self.position[row])) if code == 0 else self.keys[code]

    def path(self, row: int) -> list[Key]:
        """The keys from the root to the row. Costs the row's depth."""
        keys = []
        while row > 0:
            keys.append(self.key(row))
            row = int(self.parent[row])
        return keys[::-1]


@dataclass(frozen=True)
class Row:
    """One node of the tree, seen through its table."""

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
        row = self.number + 1
        while row < self.end:
            yield Row(self.table, row)
            row = int(self.table.end[row])

    @property
    def label(self) -> str:
        """The last key of the path, for people: "kernel", ".mu", "[3]"; the tree's name at the root."""
        return self.table.name if self.number == 0 else self.table.key(self.number).label

    @property
    def keystr(self) -> str:
        """The key path as `jax.tree_util.keystr` writes it (and right for namedtuples)."""
        return "".join(key.keystr for key in self.table.path(self.number))

    @property
    def path(self) -> str:
        """The key path joined by slashes, as a query's globs see it: "layers/0/weight"."""
        return "/".join(key.segment for key in self.table.path(self.number))

    @property
    def expression(self) -> str:
        """Python that evaluates to this very node, given the tree under the table's name."""
        return python_expression(self.table.name, self.table.path(self.number))

    def __getitem__(self, column: str):
        """The row's value in a column, rolled up over its subtree."""
        from treeviz.tree.rollup import rolled_up

        return rolled_up(self.table, self.table.columns[column])[self.number]

    def __repr__(self) -> str:
        facts = self.facts
        shape = "" if facts.shape is None else str(list(facts.shape)).replace(" ", "")
        return f"Row({self.number}, {self.table.name}{self.keystr}: {facts.dtype}{shape or ' ' + facts.type})"
