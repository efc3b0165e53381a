"""The nodes of a tree by weak reference, so that the explorer keeps none of them alive."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import Any

from jax.tree_util import FlattenedIndexKey, GetAttrKey, SequenceKey

from treeviz.tree.key_paths import dict_key, follow, keys_to, occurrence, parse_key
from treeviz.tree.level import one_level
from treeviz.tree.safe_repr import guarded, mro
from treeviz.tree.table import TreeTable

# Compared by id, since metaclasses may override hash. These types hold no references, so strong references to them are
# safe.
_PLAIN = frozenset(map(id, (int, float, complex, bool, str, bytes, type(None), type(Ellipsis))))
_DICTS = frozenset(map(id, (dict, OrderedDict, defaultdict)))
_CONTAINERS = frozenset(map(id, (dict, list, tuple)))


class _Container:
    """The identity of a node that supports no weak reference, such as a dict, list or tuple."""

    __slots__ = ("id", "keys", "type")

    def __init__(self, node: Any) -> None:
        self.id = id(node)
        self.type = type(node)
        self.keys = tuple(dict.keys(node)) if id(type(node)) in _DICTS else ()

    @property
    def is_sequence(self) -> bool:
        return self.type is list or self.type is tuple

    @property
    def fields(self) -> tuple[str, ...] | None:
        """The fields of a named tuple; None for any other class."""
        if any(cls is tuple for cls in mro(self.type)):
            return guarded(lambda: self.type._fields, lambda _: None)
        return None

    @property
    def keys_in_order(self) -> list:
        """A dict's keys as JAX orders them; in insertion order where they cannot be sorted."""
        if self.type is OrderedDict:
            return list(self.keys)
        return guarded(lambda: sorted(self.keys), lambda _: list(self.keys))


class WeakTree:
    """The node or leaf of each row of a table, by weak reference.

    Modules and arrays support weak references. A dict, list or tuple does not: it is searched by its identity among the
    objects that the garbage collector tracks. If it is not found (a dict of NumPy arrays in a local variable), an equal
    one is built from the leaves that are alive.

    Args:
      nodes: The node or leaf of each row.
      keep: Keep strong references instead.
    """

    def __init__(self, table: TreeTable, nodes: Sequence[Any], *, keep: bool = False) -> None:
        self._table = table
        self._kept = list(nodes) if keep else None
        self._refs = [] if keep else [_ref(node) for node in nodes]

    def peek(self, row: int) -> Any:
        """The node, without a search; None if it has been freed or is a container."""
        if self._kept is not None:
            return self._kept[row]
        ref = self._refs[row]
        return ref() if isinstance(ref, weakref.ref) else None if isinstance(ref, _Container) else ref[0]

    def is_plain(self, row: int) -> bool:
        """Whether the node is an immutable scalar: a number, a string, None, …"""
        node = self._kept[row] if self._kept is not None else None
        return id(type(node)) in _PLAIN if self._kept is not None else isinstance(self._refs[row], tuple)

    def nodes(self, rows: Sequence[int]) -> list[Any]:
        """The nodes of these rows, the same objects that were walked.

        Raises:
          ReferenceError: One has been freed.
        """
        if self._kept is not None:
            return [self._kept[row] for row in rows]
        wanted = [row for row in rows if isinstance(self._refs[row], _Container)]
        found = self._search(wanted) if wanted else {}
        return [self._node(row, found) for row in rows]

    def path(self, row: int) -> tuple:
        """JAX's keys that lead to the row."""
        return tuple(key for key, _ in self._steps(row))

    def follow(self, tree: Any, row: int) -> Any:
        """The node of another tree of the same structure at the place of the row."""
        keys, occurrences = zip(*self._steps(row), strict=True) if row else ((), ())
        return follow(tree, keys, occurrences)

    def _steps(self, row: int) -> list[tuple[Any, int]]:
        """The keys from the root to the row, and how many siblings before it have that key."""
        steps: list[tuple[Any, int]] = []
        while row > 0:
            above = int(self._table.parent[row])
            first, *others = self._keys(above, row)
            steps += [*((key, 0) for key in reversed(others)), (first, occurrence(self._table, row))]
            row = above
        return steps[::-1]

    def _keys(self, above: int, row: int) -> tuple:
        position = int(self._table.position[row])
        node = self.peek(above)
        record = self._refs[above] if self._kept is None else _Container(node)
        if isinstance(record, _Container) and len(self._table.key(row).steps) == 1:
            if record.is_sequence:
                return (SequenceKey(position),)
            if position < len(record.keys):
                return (dict_key(record.keys_in_order[position]),)
            if record.fields is not None:
                return (GetAttrKey(record.fields[position]),)
        if node is not None:
            try:
                return keys_to(node, position, lambda below: self._is_it(row, below))
            except Exception:  # the user's flatten function
                pass
        return (parse_key(self._table.key(row).keystr, otherwise=FlattenedIndexKey(position), int_key=dict_key),)

    def _node(self, row: int, found: dict[int, Any]) -> Any:
        if row in found:
            return found[row]
        if not isinstance(self._refs[row], _Container):
            node = self.peek(row)
            if node is None and isinstance(self._refs[row], weakref.ref):
                raise ReferenceError(self._freed(row))
            return node
        return self._rebuilt(row)

    def _freed(self, row: int) -> str:
        what = "array" if self._table[row].shape is not None else "object"
        return (
            f"explore: the {what} at {self._table[row].expression} has been freed: nothing else held it. "
            "explore(tree, keep=True) holds on to the tree."
        )

    def _search(self, rows: Sequence[int]) -> dict[int, Any]:
        """Find containers among the objects that the garbage collector tracks, or below a parent that is found."""
        above = {above for row in rows for above in self._to_root(row)}
        found = {row: node for row in above if (node := self.peek(row)) is not None}
        ids = {self._refs[row].id: row for row in above if isinstance(self._refs[row], _Container)}
        tracked = gc.get_objects()
        for objects in (tracked, None):
            # A container of only numbers and NumPy arrays is not tracked, but objects that refer to it are.
            for node in gc.get_referents(*tracked) if objects is None else objects:
                row = ids.get(id(node))
                if row is not None and row not in found and self._is_node(row, node):
                    found[row] = node
            for row in sorted(rows):
                self._go_down(row, found)
            if all(row in found for row in rows):
                break
        return found

    def _to_root(self, row: int) -> list[int]:
        rows = [row]
        while (row := int(self._table.parent[row])) >= 0:
            rows.append(row)
        return rows

    def _go_down(self, row: int, found: dict[int, Any]) -> None:
        """Add to `found` the nodes from its nearest ancestor there down to the row."""
        way = []
        while row >= 0 and row not in found:
            way.append(row)
            row = int(self._table.parent[row])
        if row < 0:
            return
        node = found[row]
        for below in reversed(way):
            try:
                children = _children_of(node)
            except Exception:  # the user's flatten function
                return
            node = next((child for child in children if self._is_it(below, child)), None)
            if node is None:  # the tree has changed
                return
            found[below] = node

    def _is_node(self, row: int, node: Any) -> bool:
        """Whether an object with the id of a node is that node: the id of a freed one may have been reused."""
        record = self._refs[row]
        if type(node) is not record.type:
            return False
        try:
            children = {id(child): child for child in _children_of(node)}
        except Exception:
            return False
        known = self._table.children(row)
        return not known or any(self._is_it(row, children.get(self._id(row))) for row in known)

    def _id(self, row: int) -> int:
        ref = self._refs[row]
        return ref.id if isinstance(ref, _Container) else id(ref() if isinstance(ref, weakref.ref) else ref[0])

    def _is_it(self, row: int, node: Any) -> bool:
        if self._kept is not None:
            return node is self._kept[row]
        ref = self._refs[row]
        if isinstance(ref, _Container):
            return id(node) == ref.id and type(node) is ref.type
        return node is ref[0] if isinstance(ref, tuple) else node is not None and node is ref()

    def _rebuilt(self, row: int) -> Any:
        """An equal node: dicts, lists and tuples built from the leaves that are alive."""
        made: dict[int, Any] = {}
        for below in range(int(self._table.end[row]) - 1, row - 1, -1):
            record = self._refs[below]
            if not isinstance(record, _Container):
                made[below] = self._node(below, {})
                continue
            children = [made[child] for child in self._table.children(below)]
            made[below] = _made_again(record, children)
            if made[below] is None:
                raise ReferenceError(self._freed(below))
        return made[row]


def _ref(node: Any) -> Any:
    """How a node is remembered: as itself in a tuple, by weak reference, or by its identity."""
    if id(type(node)) in _PLAIN:
        return (node,)
    if id(type(node)) in _CONTAINERS:
        return _Container(node)
    try:
        return weakref.ref(node)
    except Exception:
        return _Container(node)


def _children_of(node: Any) -> list:
    """The children of a node; those of a dict in insertion order."""
    if id(type(node)) in _DICTS:
        return list(node.values())
    return list(node) if id(type(node)) in _CONTAINERS else [child for _, child in one_level(node)[0]]


def _made_again(record: _Container, children: list) -> Any:
    if record.is_sequence:
        return record.type(children)
    if record.type is dict and len(record.keys) == len(children):
        by_key = dict(zip(record.keys_in_order, children, strict=True))
        return {key: by_key[key] for key in record.keys}
    if record.fields is not None and len(record.fields) == len(children):
        return guarded(lambda: record.type(*children), lambda _: None)
    return None
