"""The nodes of a tree, held weakly: what the user lets go of is gone."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import Any

from jax.tree_util import GetAttrKey, SequenceKey

from treeviz.tree.follow import dict_key, key_as_said, keys_to
from treeviz.tree.level import one_level
from treeviz.tree.quote import guarded, mro
from treeviz.tree.table import TreeTable

# By their ids, since a metaclass may define the hash of a class. These hold nothing else, so they may be held.
_PLAIN = frozenset(map(id, (int, float, complex, bool, str, bytes, type(None), type(Ellipsis))))
_DICTS = frozenset(map(id, (dict, OrderedDict, defaultdict)))
_CONTAINERS = frozenset(map(id, (dict, list, tuple)))


class _Container:
    """Remembers a node that cannot be referred to weakly, dicts, lists and tuples above all: which one it was."""

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
        """Those of a named tuple."""
        if any(cls is tuple for cls in mro(self.type)):
            return guarded(lambda: self.type._fields, lambda _: None)
        return None

    @property
    def keys_in_order(self) -> list:
        """A dict's keys as JAX orders them, or in their own order where it could not."""
        if self.type is OrderedDict:
            return list(self.keys)
        return guarded(lambda: sorted(self.keys), lambda _: list(self.keys))


class HeldTree:
    """The node or leaf of each row of a table, none of which stays alive because of it.

    Modules and arrays are referred to weakly. A dict, list or tuple cannot be: it is looked for, by its identity, in
    what Python keeps track of. Where it is not found (a dict of NumPy arrays in a local variable) an equal one is
    made of the leaves that live.
    """

    def __init__(self, table: TreeTable, things: Sequence[Any], *, keep: bool = False) -> None:
        self._table = table
        self._kept = list(things) if keep else None
        self._refs = [] if keep else [_ref(thing) for thing in things]

    def peek(self, row: int) -> Any:
        """The node if that can be said at once; None: it is gone, or a container."""
        if self._kept is not None:
            return self._kept[row]
        ref = self._refs[row]
        return ref() if isinstance(ref, weakref.ref) else None if isinstance(ref, _Container) else ref[0]

    def is_plain(self, row: int) -> bool:
        """Whether it is a number, a text or the like, which stays what it is."""
        thing = self._kept[row] if self._kept is not None else None
        return id(type(thing)) in _PLAIN if self._kept is not None else isinstance(self._refs[row], tuple)

    def nodes(self, rows: Sequence[int]) -> list[Any]:
        """The very nodes of these rows.

        Raises:
          ReferenceError: One has been freed.
        """
        if self._kept is not None:
            return [self._kept[row] for row in rows]
        wanted = [row for row in rows if isinstance(self._refs[row], _Container)]
        found = self._look_for(wanted) if wanted else {}
        return [self._node(row, found) for row in rows]

    def path(self, row: int) -> tuple:
        """The keys that lead to the row, as JAX has them."""
        table, steps = self._table, []
        while row > 0:
            above = int(table.parent[row])
            steps.append(self._keys(above, row))
            row = above
        return tuple(key for step in reversed(steps) for key in step)

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
        return (key_as_said(self._table.key(row), position),)

    def _node(self, row: int, found: dict[int, Any]) -> Any:
        if row in found:
            return found[row]
        if not isinstance(self._refs[row], _Container):
            thing = self.peek(row)
            if thing is None and isinstance(self._refs[row], weakref.ref):
                raise ReferenceError(self._freed(row))
            return thing
        return self._rebuilt(row)

    def _freed(self, row: int) -> str:
        what = "array" if self._table[row].shape is not None else "object"
        return (
            f"explore: the {what} at {self._table[row].expression} has been freed: nothing else held it. "
            "explore(tree, keep=True) holds on to the tree."
        )

    def _look_for(self, rows: Sequence[int]) -> dict[int, Any]:
        """The containers among what Python keeps track of, or below what is found of the nodes above them."""
        above = {above for row in rows for above in self._to_root(row)}
        found = {row: node for row in above if (node := self.peek(row)) is not None}
        ids = {self._refs[row].id: row for row in above if isinstance(self._refs[row], _Container)}
        tracked = gc.get_objects()
        for objects in (tracked, None):
            # What holds nothing but numbers and NumPy arrays is not tracked, but what refers to it is.
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
        """From the lowest node above a row that was found."""
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
        """Whether an object with the right identity is still that node, and not a later one in its place."""
        record = self._refs[row]
        if type(node) is not record.type:
            return False
        try:
            children = {id(child): child for child in _children_of(node)}
        except Exception:
            return False
        known = self._children(row)
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

    def _children(self, row: int) -> list[int]:
        children, below, end = [], row + 1, int(self._table.end[row])
        while below < end:
            children.append(below)
            below = int(self._table.end[below])
        return children

    def _rebuilt(self, row: int) -> Any:
        """An equal node, of dicts, lists and tuples of what still lives."""
        made: dict[int, Any] = {}
        for below in range(int(self._table.end[row]) - 1, row - 1, -1):
            record = self._refs[below]
            if not isinstance(record, _Container):
                made[below] = self._node(below, {})
                continue
            children = [made[child] for child in self._children(below)]
            made[below] = _made_again(record, children)
            if made[below] is None:
                raise ReferenceError(self._freed(below))
        return made[row]


def _ref(thing: Any) -> Any:
    """How a thing is remembered: by itself in a tuple, weakly, or by what can be said of it."""
    if id(type(thing)) in _PLAIN:
        return (thing,)
    if id(type(thing)) in _CONTAINERS:
        return _Container(thing)
    try:
        return weakref.ref(thing)
    except Exception:
        return _Container(thing)


def _children_of(node: Any) -> list:
    """The children of a living node, in some order of their own for a dict."""
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
