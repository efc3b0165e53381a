"""A prefix beside the tree that it is for: which subtree gets which of its leaves, and every place where they part."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from treeviz.analysis.compare.aligned import NONE, Side
from treeviz.analysis.compare.map_mismatch import Path
from treeviz.analysis.compare.nodes import (
    MAPPINGS,
    Finding,
    Opened,
    Openers,
    compare_level,
    compare_types,
    what,
)
from treeviz.tree.safe_repr import error_text, guarded, has_base, value_text
from treeviz.tree.table import children_of

_NOT_WALKED = ("error", "cycle", "more", "repeat")


class Given(NamedTuple):
    """A leaf of the prefix, and the row of the subtree that gets it."""

    path: Path
    spec: Any
    row: int


class Mismatch(NamedTuple):
    """Where the structures part.

    Attributes:
      row: Of the tree: where the note stands.
      path: Of the prefix, or of the tree for what that alone has.
    """

    row: int
    path: Path
    finding: Finding


class Aligned(NamedTuple):
    given: list[Given]
    mismatches: list[Mismatch]


def align_prefix(prefix: Any, side: Side, is_leaf: Callable[[Any], bool]) -> Aligned:
    """Find the subtree of each leaf of the prefix, as JAX broadcasts a prefix; linear in the nodes of the prefix.

    It goes no deeper than the tree was walked, and ends therefore also for a prefix that contains itself.

    Args:
      is_leaf: Nodes of the prefix that are specs, such as None.
    """
    return _Walk(side, is_leaf).run(prefix)


_Pair = tuple[Path, Any, int, Any]  # a node of the prefix and its path; a row, and the node of the tree


class _Walk:
    def __init__(self, side: Side, is_leaf: Callable[[Any], bool]) -> None:
        self._side, self._is_leaf = side, is_leaf
        table = side.table
        was_walked = np.array([facts.kind not in _NOT_WALKED for facts in table.facts], bool)
        # Lists: an element of an array takes ten times as long.
        self._was_walked, self._end = was_walked[table.fact_codes].tolist(), table.end.tolist()
        self._is_leaf_row = table.is_leaf.tolist()
        self._opener = Openers()
        self._given: list[Given] = []
        self._mismatches: list[Mismatch] = []

    def run(self, prefix: Any) -> Aligned:
        stack: list[_Pair] = [(None, prefix, 0, self._side.nodes[0])]
        while stack:
            path, spec, row, node = stack.pop()
            try:
                opener = None if self._is_leaf(spec) else self._opener(spec)
                mine = None if opener is None else opener(spec)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a flatten function may raise anything
                self._add(row, path, ("error", f"flattening raised {error_text(error)}", "", ""))
                continue
            if mine is None:
                self._given.append(Given(path, spec, row))
            else:
                stack += reversed(self._children(path, spec, mine, row, node))
        return Aligned(self._given, self._mismatches)

    def _add(self, row: int, path: Path, finding: Finding) -> None:
        self._mismatches.append(Mismatch(row, path, finding))

    def _children(self, path: Path, spec: Any, mine: Opened, row: int, node: Any) -> list[_Pair]:
        """The children of a node of the prefix that have a counterpart in the tree, with its row."""
        if not self._was_walked[row]:
            return []
        is_box = node is not self._side.nodes[row]  # its leaf has the row
        rows = [row] * is_box + children_of(self._end, row)
        if _is_same_level(spec, node) and len(rows) == len(mine.children):
            return self._below(path, spec, mine, rows, node)
        opener = self._opener(node)
        other = None if opener is None or (self._side.table.is_leaf[row] and not is_box) else opener(node)
        differs = compare_types(spec, node, other)
        if differs is not None or other is None:
            self._add(row, path, differs or ("leaf", what(spec, mine), what(node, None), ""))
            return []
        for finding in compare_level(spec, mine, node, other):
            self._add(row, path, finding)
        rows = self._with_hidden(rows, other.children)
        if type(spec) not in MAPPINGS or mine.keys == other.keys:
            return self._below(path, spec, mine, rows, node)
        return self._by_key(path, spec, mine, row, Opened(rows, other.keys), other.children)

    def _with_hidden(self, rows: list[int], children: list) -> list[int]:
        """The row of each child; NONE for one that the table hides, as what Flax keeps in each module for itself."""
        if len(rows) == len(children):
            return rows
        waiting, found = iter([*rows, NONE]), []
        row = next(waiting)
        for child in children:
            is_shown = row != NONE and self._stands_in(child, self._side.nodes[row])
            found.append(row if is_shown else NONE)
            row = next(waiting) if is_shown else row
        return found if row == NONE else rows

    def _stands_in(self, child: Any, node: Any) -> bool:
        """Whether a child, or the box that it is, has the row of a node."""
        opener = self._opener(child)
        inside = [] if opener is None or child is node else opener(child).children
        return child is node or (len(inside) == 1 and inside[0] is node)

    def _below(self, path: Path, spec: Any, mine: Opened, rows: list[int], node: Any) -> list[_Pair]:
        """The children by position; those that are leaves are done with at once."""
        nodes, is_leaf, add, others = [], self._opener.is_leaf, self._given.append, None
        for i, (key, child, row) in enumerate(zip(mine.keys, mine.children, rows, strict=False)):
            if row == NONE:
                continue
            if is_leaf(type(child)):
                add(Given((path, spec, key), child, row))
                continue
            below = self._side.nodes[row]
            if self._is_leaf_row[row]:
                others = others or self._opener(node)(node).children  # type: ignore[misc]
                below = others[i]
            nodes.append(((path, spec, key), child, row, below))
        return nodes

    def _by_key(self, path: Path, spec: Any, mine: Opened, row: int, other: Opened, children: list) -> list[_Pair]:
        """The same for mappings of different keys: what one of them lacks is told, the others are aligned."""
        rows = dict(zip(other.keys, other.children, strict=False))
        nodes = dict(zip(other.keys, children, strict=True))
        node = self._side.nodes[row]
        aligned: list[_Pair] = []
        for key, child in zip(mine.keys, mine.children, strict=True):
            if key in rows:
                aligned.append(((path, spec, key), child, rows.pop(key), nodes[key]))
            else:
                near = _near(key, [name for name in other.keys if name not in mine.keys])
                self._add(row, (path, spec, key), ("missing", _spec_text(child), "", near))
        for key, below in rows.items():
            self._add(below, (path, node, key), ("extra", "", self._what(below), ""))
        return aligned

    def _what(self, row: int) -> str:
        node = self._side.nodes[row]

        def describe() -> str:
            opener = self._opener(node)
            return what(node, None if opener is None else opener(node))

        return guarded(describe, lambda error: f"a node that raised {error_text(error)}")


def _is_same_level(spec: Any, node: Any) -> bool:
    """Whether two plain dicts, lists or tuples have the same keys: the usual case, which needs no sorting."""
    cls = type(spec)
    if cls is not type(node):
        return False
    return spec.keys() == node.keys() if cls is dict else cls in (list, tuple) and len(spec) == len(node)


def _spec_text(spec: Any) -> str:
    """Of a sharding, which prints its mesh first, what it says of axes."""
    return value_text(spec.spec if has_base(type(spec), jax.sharding.NamedSharding) else spec, 40)


def _near(key: Any, others: list[Any]) -> str:
    """ "did you mean 'k2'?": the likeliest of the keys that have no spec."""
    names = {str(other): other for other in others if isinstance(other, str)}
    close = difflib.get_close_matches(key, names, n=1, cutoff=0.5) if isinstance(key, str) else []
    return f"did you mean {value_text(names[close[0]], 40)}?" if close else ""
