"""Walk siblings that are alike all at once, column by column: most of a large tree are layers of one kind."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain, islice, takewhile
from operator import attrgetter, itemgetter, length_hint, methodcaller
from typing import Any, NamedTuple

import numpy as np

from treeviz.tree.describe import Describers, Handler
from treeviz.tree.level import BUILTIN_LEVELS
from treeviz.tree.table import children_of
from treeviz.tree.walk_frames import Frame

_FEWEST = 8  # siblings
_FIRST, _MOST = 8, 1 << 14  # siblings that are tried: four times as many after those that were all alike
_ROWS_FOR_A_MISS = 256  # a sibling that is not alike costs as much as some of these
_shape_of, _dtype_of = np.ndarray.shape.__get__, np.ndarray.dtype.__get__  # type: ignore[attr-defined]
_OF_JAX = attrgetter("aval"), attrgetter("committed"), methodcaller("is_deleted")


class Rows(NamedTuple):
    """The rows of a walk; see `TreeTable`."""

    nodes: list[Any]
    depths: list[int]
    parents: array
    ends: array
    positions: list[int]
    key_codes: list[int]
    fact_codes: list[int]
    first_rows: dict[int, int]  # by the id of an object with an identity


class _Part(NamedTuple):
    """A row of the subtree that siblings are compared with.

    Attributes:
      below: The offsets of its children.
      names: The keys of its children, of a dict.
    """

    node: Any
    handler: Handler
    below: Sequence[int]
    names: list[str] | None


class Alike:
    """Adds the rows of siblings that are like the one before.

    These are dicts with strings as keys, lists and tuples, of leaves whose classes JAX, NumPy or Python know, and hold
    no object that occurs twice.
    """

    def __init__(self, of: Describers, rows: Rows) -> None:
        self._of, self._rows = of, rows
        facts = of.facts
        self._plain = (facts.numpy, facts.array, facts.scalar, facts.abstract, facts.numpy_scalar, facts.string)
        self._n_missed = -_FEWEST

    def take(self, above: Frame, row: int, room: int) -> int:
        """Add the siblings behind a subtree, the last one of the rows, as far as they are like it.

        Args:
          above: The frame of their parent.
          room: How many rows may be added to those that are expected.

        Returns:
          How many were added.
        """
        n_waiting, n_tried, n_added = length_hint(above.waiting), _FIRST, 0
        if n_waiting < _FEWEST or self._n_missed * _ROWS_FOR_A_MISS > row:
            return 0
        node, following = self._rows.nodes[row], above.children[-n_waiting]
        if type(node) is not type(following) or (type(node) in BUILTIN_LEVELS and len(node) != len(following)):
            return 0
        size, parts = self._rows.ends[row] - row, list[_Part]()
        while n_waiting:
            first = len(above.children) - n_waiting
            n = min(n_tried, n_waiting, max(room - n_added, 0) // size)
            try:
                n_taken = self._take(parts, above, row, slice(first, first + n))
            except Exception:  # a dict that another thread changes, an array that cannot be described
                n_taken = 0
            n_waiting, n_added = n_waiting - n_taken, n_added + n_taken * (size - 1)
            if n_taken < n_tried:
                break
            n_tried = min(4 * n_tried, _MOST)
        self._n_missed += n_added < _FEWEST
        return n_added

    def _part(self, start: int, row: int) -> _Part | None:
        """A row of the subtree at another one; None if siblings with such a row are walked one by one."""
        node, below, names = self._rows.nodes[row], children_of(self._rows.ends, row), None
        handler = self._of.handler(node)
        if handler.level is None:
            is_known = handler.describer is None and handler.describe in self._plain
        else:
            is_known = handler.is_builtin and len(node or ()) == len(below)
        if below and is_known and not isinstance(node, list | tuple):
            is_known = type(node) is dict and _n_first(_classes(node), id(str)) == len(node)
            names = sorted(node) if is_known else None
        return _Part(node, handler, [child - start for child in below], names) if is_known else None

    def _columns(self, parts: list[_Part], row: int, siblings: list[Any]) -> list[list[Any]]:
        """What stands in each row of a subtree, in the first siblings that are like it.

        Args:
          parts: What is known of the subtree; more is added as far as siblings are like it, no further.
        """
        columns, n = {0: siblings}, len(siblings)
        for i in range(self._rows.ends[row] - row):
            part = parts[i] if i < len(parts) else self._part(row, row + i)
            if part is None or not n:
                return []
            parts += [part] if i == len(parts) else []
            node, _, below, names = part
            n = _n_first(_classes(columns[i][:n]), id(type(node)))
            if isinstance(node, list | tuple | dict):
                n = _n_first([*map(len, columns[i][:n])], len(node))
            if names is not None:
                n = _n_first(_classes(chain.from_iterable(columns[i][:n])), id(str)) // len(names)
            for offset, key in zip(below, names or range(len(below)), strict=True):
                columns[offset] = _items(columns[i][:n], key)
                n = len(columns[offset])
        return [columns[i][:n] for i in range(len(columns))]

    def _take(self, parts: list[_Part], above: Frame, row: int, which: slice) -> int:
        """Add the rows of siblings; returns of how many."""
        columns, rows, new = self._columns(parts, row, above.children[which]), self._rows, dict[int, int]()
        n, size, start, end = len(columns[0]) if columns else 0, len(columns), len(rows.nodes), rows.ends[row]
        nodes: list[Any] = [None] * (n * size)
        n_identities = 0
        for i, (part, column) in enumerate(zip(parts, columns, strict=True)):
            nodes[i::size] = column
            if part.below or (part.handler.level is None and part.handler.has_identity):
                new.update(zip(map(id, column), range(start + i, start + n * size, size), strict=True))
                n_identities += n
        if not n or len(new) < n_identities or not rows.first_rows.keys().isdisjoint(new):
            return 0
        codes = self._codes(parts, nodes, rows.fact_codes[row:end])  # which may raise, so nothing is added before
        further = np.arange(start - row, start - row + n * size, size, dtype=np.int32)[:, None]
        for own, of_tops in ((rows.parents, above.row), (rows.ends, None)):
            of_each = np.array(own[row:end], np.int32) + further
            if of_tops is not None:
                of_each[:, 0] = of_tops
            own.frombytes(of_each.tobytes())
        for own, of_tops in (
            (rows.key_codes, above.key_codes[which]),
            (rows.positions, range(which.start, which.stop)),
        ):
            of_each = own[row:end] * n
            of_each[::size] = of_tops[:n]
            own.extend(of_each)
        rows.depths.extend(rows.depths[row:end] * n)
        rows.fact_codes.extend(codes)
        rows.nodes.extend(nodes)
        rows.first_rows.update(new)
        next(islice(above.waiting, n - 1, None))
        return n

    def _codes(self, parts: list[_Part], nodes: list[Any], codes: list[int]) -> list[int]:
        """The codes of the facts of siblings, by those of the one before; new facts in the order of the rows."""
        size = len(parts)
        every, unlike = codes * (len(nodes) // size), []
        for i, part in enumerate(parts):
            if part.handler.level is None and not self._are_like(part, nodes[i::size]):
                unlike.append((i, part.handler.describe))
        for start in range(0, len(nodes) if unlike else 0, size):
            for i, describe in unlike:
                every[start + i] = describe(nodes[start + i])
        return every

    def _are_like(self, part: _Part, others: list[Any]) -> bool:
        """Whether leaves of its class have the facts of a leaf, where a look at all of them at once tells it."""
        leaf, describe, facts = part.node, part.handler.describe, self._of.facts
        if type(leaf) is np.ndarray:
            return {*map(_shape_of, others)} == {leaf.shape} and {*map(_dtype_of, others)} == {leaf.dtype}
        if describe == facts.array:
            shardings = [each.sharding for each in others]
            are_alike = all({*map(of, others)} == {of(leaf)} for of in _OF_JAX)
            are_alike = are_alike and {*_classes(shardings)} == {id(type(leaf.sharding))}
            return are_alike and shardings == [leaf.sharding] * len(shardings)
        return isinstance(leaf, int | float) and bool(leaf) and {*others} == {leaf}  # 0.0 equals -0.0


def _classes(objects: Iterable[Any]) -> list[int]:
    return [*map(id, map(type, objects))]  # by id: a metaclass may override ==


def _n_first(values: list[int], value: int) -> int:
    """How many of the first values are one number."""
    n = values.count(value)
    return n if n == len(values) else next(i for i, each in enumerate(values) if each != value)


def _items(column: list[Any], key: Any) -> list[Any]:
    """What dicts or lists have at a key, up to the first dict that has not."""
    get = itemgetter(key)
    try:
        return [*map(get, column)]
    except KeyError:
        return [*map(get, takewhile(lambda each: key in each, column))]
