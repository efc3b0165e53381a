"""The backends of the explorer, for a tree and for a diff: nodes by weak reference, and details of rows on request."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from jax.tree_util import FlattenedIndexKey, GetAttrKey, SequenceKey

from treeviz.analysis.details import (
    Budget,
    Part,
    Section,
    Window,
    buttons,
    detail_parts,
    has_values,
    plain_array,
    referrers_section,
    statistics,
    text,
    window,
)
from treeviz.analysis.facts import bytes_by_device
from treeviz.tree.facts import KINDS
from treeviz.tree.layers import part_of, row_for_jax
from treeviz.tree.level import one_level
from treeviz.tree.paths import dict_key, follow, keys_to, occurrence, parse_key
from treeviz.tree.table import TreeTable, matched_rows
from treeviz.tree.text import guarded, mro
from treeviz.views.tree_view import TreeView
from treeviz.views.widget.backend import Replaced

# The nodes of a tree by weak reference, so that the explorer keeps none of them alive.

# Compared by id, since metaclasses may override hash. These types hold no references, so strong references to them are
# safe.
_KEPT_TYPES = frozenset(map(id, (int, float, complex, bool, str, bytes, type(None), type(Ellipsis))))
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
        is_tuple = any(cls is tuple for cls in mro(self.type))
        return guarded(lambda: self.type._fields, lambda _: None) if is_tuple else None

    @property
    def keys_in_order(self) -> list:
        """A dict's keys as JAX orders them; in insertion order if they cannot be sorted."""
        in_order = list if self.type is OrderedDict else sorted
        return guarded(lambda: in_order(self.keys), lambda _: list(self.keys))

    def rebuilt(self, children: list) -> Any:
        """An equal node of these children; None if it cannot be made."""
        if self.is_sequence:
            return self.type(children)
        if self.type is dict and len(self.keys) == len(children):
            by_key = dict(zip(self.keys_in_order, children, strict=True))
            return {key: by_key[key] for key in self.keys}
        has_fields = self.fields is not None and len(self.fields) == len(children)
        return guarded(lambda: self.type(*children), lambda _: None) if has_fields else None


class WeakTree:
    """The node or leaf of each row of a table, by weak reference, or with `keep` by a strong one.

    A dict, list or tuple supports no weak reference, so it is searched by id among the objects that the garbage
    collector tracks. If that fails (a dict of NumPy arrays in a local variable), an equal one is built from the leaves.
    """

    def __init__(self, table: TreeTable, nodes: Sequence[Any], *, keep: bool = False) -> None:
        self._table = table
        self._kept = list(nodes) if keep else None
        self._refs = [] if keep else [_ref(node) for node in nodes]

    def peek(self, row: int) -> Any:
        """The node, without a search; None if it was freed or is a container."""
        if self._kept is not None:
            return self._kept[row]
        return _node_of(self._refs[row])

    def is_plain(self, row: int) -> bool:
        """Whether the node is an immutable scalar: a number, a string, None, …"""
        return isinstance(self._refs[row], tuple) if self._kept is None else id(type(self._kept[row])) in _KEPT_TYPES

    def nodes(self, rows: Sequence[int]) -> list[Any]:
        """The nodes of these rows, the same objects that were walked; raises ReferenceError if one was freed."""
        if self._kept is not None:
            return [self._kept[row] for row in rows]
        wanted = [row for row in rows if isinstance(self._refs[row], _Container)]
        found = self._search(wanted) if wanted else {}
        return [self._node(row, found) for row in rows]

    def path(self, row: int) -> tuple:
        """JAX's key path of the row."""
        return tuple(key for key, _ in self._steps(row))

    def follow(self, tree: Any, row: int) -> Any:
        """The node at this row's path in another tree of the same structure."""
        keys, occurrences = zip(*self._steps(row), strict=True) if row else ((), ())
        return follow(tree, keys, occurrences)

    def _steps(self, row: int) -> list[tuple[Any, int]]:
        steps: list[tuple[Any, int]] = []
        while row > 0:
            parent = int(self._table.parent[row])
            first, *others = self._keys(parent, row)
            steps += [*((key, 0) for key in reversed(others)), (first, occurrence(self._table, row))]
            row = parent
        return steps[::-1]

    def _keys(self, parent: int, row: int) -> tuple:
        position = int(self._table.position[row])
        node = self.peek(parent)
        record = self._refs[parent] if self._kept is None else _Container(node)
        if isinstance(record, _Container) and len(self._table.key(row).steps) == 1:
            if record.is_sequence:
                return (SequenceKey(position),)
            if position < len(record.keys):
                return (dict_key(record.keys_in_order[position]),)
            if record.fields is not None:
                return (GetAttrKey(record.fields[position]),)
        if node is not None:
            try:
                return keys_to(node, position, lambda child: self._is_it(row, child))
            except Exception:  # the user's flatten function
                pass
        return (parse_key(self._table.key(row).keystr, otherwise=FlattenedIndexKey(position), int_key=dict_key),)

    def _node(self, row: int, found: dict[int, Any]) -> Any:
        if row in found or isinstance(self._refs[row], _Container):
            return found[row] if row in found else self._rebuild(row)
        node = self.peek(row)
        if node is None and isinstance(self._refs[row], weakref.ref):
            raise ReferenceError(self._freed(row))
        return node

    def _freed(self, row: int) -> str:
        noun = "array" if self._table[row].shape is not None else "object"
        return (
            f"explore: the {noun} at {self._table[row].expression} was freed: nothing else referenced it. "
            "explore(tree, keep=True) holds on to the tree."
        )

    def _search(self, rows: Sequence[int]) -> dict[int, Any]:
        """Find containers among the objects that the garbage collector tracks, or as children of nodes found there."""
        rows_above: set[int] = set()
        for row in rows:
            while row >= 0 and row not in rows_above:
                rows_above.add(row)
                row = int(self._table.parent[row])
        found = {row: node for row in rows_above if (node := self.peek(row)) is not None}
        ids = {self._refs[row].id: row for row in rows_above if isinstance(self._refs[row], _Container)}
        tracked = gc.get_objects()
        # A container of only numbers and NumPy arrays is not tracked, but objects that refer to it are.
        for objects in (lambda: tracked, lambda: gc.get_referents(*tracked)):
            for node in objects():
                row = ids.get(id(node))
                if row is not None and row not in found and self._is_node(row, node):
                    found[row] = node
            for row in sorted(rows):
                self._go_down(row, found)
            if found.keys() >= {*rows}:
                break
        return found

    def _go_down(self, row: int, found: dict[int, Any]) -> None:
        """Add to `found` the nodes between the row and its nearest ancestor in `found`."""
        descent = []
        while row >= 0 and row not in found:
            descent.append(row)
            row = int(self._table.parent[row])
        if row < 0:
            return
        node = found[row]
        for row_below in reversed(descent):
            children = guarded(lambda node=node: _children_of(node), lambda _: ())  # the user's flatten function
            node = next((child for child in children if self._is_it(row_below, child)), None)
            if node is None:  # the tree has changed
                return
            found[row_below] = node

    def _is_node(self, row: int, node: Any) -> bool:
        """Whether an object with the node's id is that node: Python may reuse the id of a freed object."""
        if type(node) is not self._refs[row].type:
            return False
        of_node = guarded(lambda: _children_of(node), lambda _: None)
        children, known = {id(child): child for child in of_node or ()}, self._table.children(row)
        refs = [self._refs[child] for child in known]
        ids = [ref.id if isinstance(ref, _Container) else id(_node_of(ref)) for ref in refs]
        is_any = not known or any(self._is_it(row, children.get(i)) for row, i in zip(known, ids, strict=True))
        return of_node is not None and is_any

    def _is_it(self, row: int, node: Any) -> bool:
        if self._kept is not None:
            return node is self._kept[row]
        ref = self._refs[row]
        if isinstance(ref, _Container):
            return id(node) == ref.id and type(node) is ref.type
        return node is _node_of(ref) and (node is not None or isinstance(ref, tuple))

    def _rebuild(self, row: int) -> Any:
        """An equal node: dicts, lists and tuples rebuilt from the leaves that are alive."""
        rebuilt: dict[int, Any] = {}
        for row_below in range(int(self._table.end[row]) - 1, row - 1, -1):
            record = self._refs[row_below]
            if not isinstance(record, _Container):
                rebuilt[row_below] = self._node(row_below, {})
                continue
            children = [rebuilt[child] for child in self._table.children(row_below)]
            rebuilt[row_below] = record.rebuilt(children)
            if rebuilt[row_below] is None:
                raise ReferenceError(self._freed(row_below))
        return rebuilt[row]


def _ref(node: Any) -> Any:
    """The reference to a node: the node in a tuple, a weak reference, or its identity."""
    if id(type(node)) in _KEPT_TYPES:
        return (node,)
    if id(type(node)) in _CONTAINERS:
        return _Container(node)
    try:
        return weakref.ref(node)
    except Exception:
        return _Container(node)


def _node_of(ref: Any) -> Any:
    """The node of a reference; None if it was freed or is a container."""
    return ref() if isinstance(ref, weakref.ref) else ref[0] if isinstance(ref, tuple) else None


def _children_of(node: Any) -> list:
    """The children of a node; those of a dict in insertion order."""
    if id(type(node)) in _DICTS:
        return list(node.values())
    return list(node) if id(type(node)) in _CONTAINERS else [child for _, child in one_level(node)[0]]


MakeView = Callable[[Any, Mapping[str, Any]], tuple[TreeView, list[Any]]]

MOST_STORED = 2**40  # elements of a stored array that are read on request


class Explored:
    """The backend of a widget that shows a tree, which is referenced weakly unless `keep`. With `by_page` the page
    draws values itself, since its policy does not allow treescope's scripts.
    """

    def __init__(
        self, tree: Any, make_view: MakeView, *, trees: Mapping[str, Any], keep: bool = False, by_page: bool = False
    ) -> None:
        self._make_view = make_view
        self._keep, self._by_page = keep, by_page
        self.view, nodes = make_view(tree, trees)
        self._weak_tree = WeakTree(self.view.table, nodes, keep=keep)

    @property
    def tree(self) -> Any:
        return self.nodes([0])[0]

    def nodes(self, rows: Sequence[int]) -> list[Any]:
        """The nodes of these rows, or for a layer its slice of the stacked array; may raise ReferenceError."""
        return [part_of(self.view.table, row, x) for row, x in zip(rows, self._weak_tree.nodes(rows), strict=True)]

    def paths(self, rows: Sequence[int]) -> list[tuple]:
        """JAX's key paths; for a layer, the path of its array."""
        return [self._weak_tree.path(row_for_jax(self.view.table, row)) for row in rows]

    def where(self, tree: Any, rows: Sequence[int]) -> list[Any]:
        table = self.view.table
        return [part_of(table, row, self._weak_tree.follow(tree, row_for_jax(table, row))) for row in rows]

    def replace(self, tree: Any, trees: Mapping[str, Any]) -> Replaced:
        """Show another tree. Returns the rows that both trees share, and the leaves that differ."""
        before, weak_tree = self.view.table, self._weak_tree
        self.view, nodes = self._make_view(tree, trees)
        table = self.view.table

        def is_changed(row: int, row_after: int) -> bool:
            """Whether a leaf is another object or has other facts."""
            if not table.is_leaf[row_after] or before[row].facts != table[row_after].facts:
                return bool(table.is_leaf[row_after])
            node, node_before = nodes[row_after], weak_tree.peek(row)
            if node is node_before:
                return False
            return not weak_tree.is_plain(row) or type(node_before) is not type(node) or bool(node_before != node)

        replaced = _replaced(before, table, is_changed)
        self._weak_tree = WeakTree(table, nodes, keep=self._keep)
        return replaced

    def answer(
        self, operation: str, numbers: Sequence[int], is_cancelled: Callable[[], bool]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Answer a request of the page; `numbers` are the row, then the arguments of the operation."""
        if not numbers:
            return {"sections": []}, []
        row, budget = numbers[0], Budget(is_cancelled)
        kind, by_page = self.view.table[row].facts.kind, self._by_page
        # A list, tuple or dict needs no search: its only detail is its referrers.
        if operation == "detail" and KINDS[kind].is_self_evident:
            return {"sections": [*_device_section(self.view.table, row), *buttons(kind)]}, []
        try:
            (node,) = self._weak_tree.nodes([row])
        except ReferenceError as error:
            return {"sections": [text(str(error), "gone")]}, []
        parts: Iterable[Part] = ()  # none for operations of other backends
        match operation:
            case "detail":
                has_stats = "rms" in self.view.table.columns
                first = [lambda: _device_section(self.view.table, row), lambda: window_section(node, by_page=by_page)]
                parts = chain(first, detail_parts(node, kind, budget, stats=not has_stats), [lambda: buttons(kind)])
            case "slice":
                parts = [lambda: window_section(node, numbers[1:3], numbers[3:], by_page=by_page)]
            case "statistics":
                parts = [lambda: statistics(node, most_elements=MOST_STORED)]
            case "treescope":
                parts = [lambda: treescope_section(node)]
            case "referrers":
                parts = [lambda: referrers_section(node, budget)]
        return {"sections": budget.gather(parts)}, []

    def close(self) -> None:
        self._weak_tree = WeakTree(self.view.table, [])


def _device_section(table: TreeTable, row: int) -> list[Section]:
    """The bytes of a subtree on each device, if the devices differ."""
    pairs = bytes_by_device(table, row)
    return [{"kind": "pairs", "title": "bytes on each device", "pairs": pairs}] if pairs else []


def window_section(
    node: Any, axes: Sequence[int] = (), starts: Sequence[int] = (), *, by_page: bool = False
) -> list[Section]:
    """A picture of a part of an array, with the data that the page needs to request another part."""
    from treeviz.integrations.treescope import is_drawable

    if not has_values(node) or not is_drawable(node := plain_array(node)):
        return []
    return [drawn_section(window(node, axes, starts), node.shape, str(node.dtype), by_page=by_page)]


def treescope_section(node: Any) -> list[Section]:
    """An object as treescope shows it."""
    from treeviz.integrations.treescope import object_or_reason

    html, reason = object_or_reason(node)
    facts: Section = {"kind": "window", "shape": [], "axes": [], "starts": [], "sizes": [], "height": 240}
    if reason or not html:
        return [text(reason, "bad") if reason else text("There is more inside than fits into one answer.")]
    return [{**facts, "html": html}]


def drawn_section(part: Window, shape: Sequence[int], dtype: str, *, by_page: bool = False) -> Section:
    """A window of an array as a section."""
    from treeviz.integrations.treescope import window_picture

    facts = {"shape": list(shape), "axes": part.axes, "starts": part.starts, "sizes": part.sizes}
    return {"kind": "window", **facts, **window_picture(part, dtype, by_page=by_page)}


def _replaced(before: TreeTable, after: TreeTable, is_changed: Callable[[int, int], bool]) -> Replaced:
    rows = matched_rows(before, after)
    stayed = np.flatnonzero(rows >= 0)
    changed = sorted(int(rows[row]) for row in stayed if is_changed(int(row), int(rows[row])))
    n_stayed = int(np.sum(after.is_leaf[rows[stayed]] & before.is_leaf[stayed]))
    n_added, n_gone = int(after.is_leaf.sum()) - n_stayed, int(before.is_leaf.sum()) - n_stayed
    return Replaced(rows, np.array(changed, dtype=np.uint32), n_added, n_gone)


# The explorer of a diff: the leaves of all trees by weak reference, and their details on request.

_BEFORE = 8  # elements that a window shows before the largest difference


class Leaves:
    """The leaves of a tree by weak reference, with their rows in a diff's table, which ascend."""

    def __init__(self, rows: np.ndarray, nodes: Sequence[Any]) -> None:
        self._rows = rows
        try:
            self._held: list[Any] = [*map(weakref.ref, nodes)]
        except TypeError:  # a leaf that supports no weak reference
            self._held = [*map(_ref, nodes)]

    def __contains__(self, row: int) -> bool:
        return bool(self._held[self._at(row)])

    def __getitem__(self, row: int) -> Any:
        """The leaf of a row; ReferenceError if it was freed."""
        leaf = _node_of(*self._held[self._at(row)])
        if leaf is None:
            raise ReferenceError("it was freed: nothing else referenced it")
        return leaf

    def _at(self, row: int) -> slice:
        """The slice of `_held` for a row; empty if the row has no leaf."""
        return slice(*(int(np.searchsorted(self._rows, row, side)) for side in ("left", "right")))


class DiffView(TreeView):
    """A view of the differences between trees, with their leaves, for the explorer."""

    leaves: Sequence[Leaves]  # of each tree, in their order

    def place(self, row: int) -> tuple[int, ...]:
        """The index of the largest difference in the arrays of a row; () if there is none."""
        raise NotImplementedError


class ExploredDiff:
    """The backend of a widget that shows a diff."""

    def __init__(self, view: DiffView) -> None:
        self.view: TreeView = view
        self._diff = view

    @property
    def tree(self) -> Any:
        return self.view

    def nodes(self, rows: Sequence[int]) -> list[Any]:
        """The leaf of each row in the first tree that has it, or None; raises ReferenceError if one was freed."""
        return [next((leaves[row] for leaves in self._diff.leaves if row in leaves), None) for row in rows]

    def paths(self, rows: Sequence[int]) -> list[tuple]:
        """JAX's key paths."""
        return [tuple(self._keys_to(row)) for row in rows]

    def where(self, tree: Any, rows: Sequence[int]) -> list[Any]:
        return [follow(tree, path) for path in self.paths(rows)]

    def replace(self, tree: Any, trees: Mapping[str, Any]) -> Replaced:
        """Show another diff. Rows whose differences differ count as changed."""
        if not issubclass(type(tree), DiffView) or trees:
            raise TypeError("explore: this widget shows a diff: widget.tree = treeviz.diff(before, after)")
        before, table = self.view.table, tree.table
        self.view = self._diff = tree
        return _replaced(before, table, lambda row, row_after: before[row].notes != table[row_after].notes)

    def answer(
        self, operation: str, numbers: Sequence[int], is_cancelled: Callable[[], bool]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Answer "detail" of a row, or "slice" or "statistics" of a row, a tree, and arguments.

        The number after the last tree stands for the second tree minus the first.
        """
        parts: Iterable[Part] = ()
        budget = Budget(is_cancelled)
        match operation, *numbers:
            case "detail", row:
                parts = self._details(row, budget)
            case "slice", row, side, *axes_and_starts:
                parts = [lambda: self._window(row, side, axes_and_starts[:2], axes_and_starts[2:])]
            case "statistics", row, side:
                parts = [lambda: statistics(self._leaf(row, side), most_elements=MOST_STORED)]
        return {"sections": budget.gather(parts)}, []

    def close(self) -> None:
        """Nothing is held."""

    def _leaf(self, row: int, side: int) -> Any:
        return self._diff.leaves[side][row]

    def _keys_to(self, row: int) -> list[Any]:
        keys, table = [], self.view.table
        while row > 0:
            parent, index = table[int(table.parent[row])], FlattenedIndexKey(int(table.position[row]))
            int_key = dict_key if parent.kind == "dict" else SequenceKey
            keys.append(parse_key(table.key(row).keystr, otherwise=index, int_key=int_key))
            row = parent.number
        return keys[::-1]

    def _names(self) -> list[str]:
        n = len(self._diff.leaves)
        if n == 2 and self.view.diff:
            return [*self.view.diff["names"]]
        return ["first", *(f"tree {i}" for i in range(1, n))]

    def _details(self, row: int, budget: Budget) -> Iterator[Part]:
        sides = [side for side, leaves in enumerate(self._diff.leaves) if row in leaves]
        if self.view.table[row]["diff"] == "same":
            sides = sides[:1]
        elif sides == [0, 1]:
            yield lambda: self._window(row, 2)
        for side in sides:
            yield from self._side(row, side, budget)

    def _side(self, row: int, side: int, budget: Budget) -> Iterator[Part]:
        name = self._names()[side]
        try:
            leaf = self._leaf(row, side)
        except ReferenceError as error:
            freed = text(f"{name}: {error}", "gone")
            yield lambda: [freed]
            return
        if has_values(leaf):
            yield lambda: self._window(row, side)
            yield lambda: [_with_tree_argument(side, section) for section in statistics(leaf)]
        else:
            yield lambda: [text(f"{name}:")]
            yield from detail_parts(leaf, self.view.table[row].kind, budget, stats=False)

    def _window(self, row: int, side: int, axes: Sequence[int] = (), starts: Sequence[int] = ()) -> list[Section]:
        """A part of an array around the largest difference, unless the reader has selected another part."""
        names = self._names()
        starts = starts or tuple(max(0, i - _BEFORE) for i in self._diff.place(row))
        is_gap, title = side == len(names), [*names, f"{names[1]} - {names[0]}"][side]
        sections = self._gap(row, axes, starts) if is_gap else window_section(self._leaf(row, side), axes, starts)
        return [_with_tree_argument(side, {**section, "title": title}) for section in sections]

    def _gap(self, row: int, axes: Sequence[int], starts: Sequence[int]) -> list[Section]:
        from treeviz.integrations.treescope import is_drawable

        pair = [plain_array(self._leaf(row, side)) for side in (0, 1)]
        if not all(map(has_values, pair)) or not all(map(is_drawable, pair)) or pair[0].shape != pair[1].shape:
            return []
        first, second = (window(array, axes, starts) for array in pair)
        wide = np.complex128 if "c" in (first.values.dtype.kind, second.values.dtype.kind) else np.float64
        values = second.values.astype(wide) - first.values.astype(wide)
        difference = second._replace(values=values, is_here=first.is_here & second.is_here)
        return [drawn_section(difference, pair[0].shape, str(np.dtype(wide)))]


def _with_tree_argument(side: int, section: Section) -> Section:
    """The section with the tree's number in its own requests."""
    return {**section, "arguments": [side]} if section["kind"] in ("window", "button") else section
