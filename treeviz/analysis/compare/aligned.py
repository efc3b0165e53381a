"""The rows of two trees side by side: each with its counterpart, in one depth-first order."""

from __future__ import annotations

import re
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from jax.tree_util import DictKey, SequenceKey, keystr

from treeviz.tree.keys import stored_items
from treeviz.tree.level import is_treedef, one_level
from treeviz.tree.runtime import computed_once
from treeviz.tree.table import TreeTable, children_of
from treeviz.tree.text import (
    array_text,
    class_name,
    error_text,
    guarded,
    has_base,
    is_jaxpr,
    module_name,
    qualified_name,
    value_text,
)

# Where two static values differ inside: the fields of a dataclass, the items of a dict, the elements of a tuple.

_DEEPEST = 6  # attributes of attributes
_MOST = 2_000  # pairs that are compared
_MOST_TOLD = 10
_CLOSED = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)


class Part(NamedTuple):
    """What two values hold in one place.

    Attributes:
      name: The Python that leads to it, "static_fields['axis']"; "" is the value itself.
      key: The last key or attribute of it, or None.
    """

    name: str
    key: Any
    left: Any
    right: Any


def parts_that_differ(left: Any, right: Any, are_same: Callable[[Any, Any], bool]) -> list[Part]:
    """The first of the innermost parts that differ of two values that do; none if no part does.

    Runs no code of their classes but what `are_same` runs. Values that hold themselves are opened a few levels deep.
    """
    found, n_left = list[Part](), _MOST
    waiting = [(Part("", None, left, right), 0)]
    while waiting and n_left and len(found) < _MOST_TOLD:
        part, depth = waiting.pop()
        held = [_held(each) for each in part[2:]] if depth < _DEEPEST and type(part.left) is type(part.right) else []
        below = _pairs(part, *held) if held else []
        n_left -= min(n_left, len(below))
        unlike = [each for each in below[:n_left] if not are_same(each.left, each.right)]
        if unlike:
            waiting += [(each, depth + 1) for each in reversed(unlike)]
        elif depth:
            found.append(part)
    return found


def _held(each: Any) -> dict[Any, Any]:
    """What a value holds, by index, key or name of the attribute; nothing if it is too much."""
    cls = type(each)
    if is_jaxpr(cls):  # equal to itself alone, and read as a whole: the variables of each trace are new
        return {}
    if cls is list or cls is tuple:
        held = dict(enumerate(each[: _MOST + 1]))
    elif cls is dict:
        held = dict(each) if len(each) <= _MOST else {}
    else:
        held = {} if has_base(cls, *_CLOSED) else guarded(lambda: stored_items(each), lambda _: {})
    return held if len(held) <= _MOST else {}


def _pairs(part: Part, mine: dict[Any, Any], other: dict[Any, Any]) -> list[Part]:
    """What both hold in each place; nothing where the places are not the same."""
    if guarded(lambda: mine.keys() != other.keys(), lambda _: True):
        return []
    is_object = type(part.left) not in (list, tuple, dict)
    names = [f".{key}" if is_object else f"[{value_text(key, 40)}]" for key in mine]
    return [
        Part((part.name + name).removeprefix("."), key, value, other[key])
        for name, (key, value) in zip(names, mine.items(), strict=True)
    ]


# Compare two nodes one level deep, as `jax.tree.map` does: their types, keys, static data and number of children.

Finding = tuple[str, ...]  # the kind, what stands left and right, a hint
MAPPINGS = (dict, OrderedDict, defaultdict)


class Opened(NamedTuple):
    """A node, one level deep.

    Attributes:
      keys: JAX's keys of the children; for a list or tuple the numbers of their positions, for a mapping its own keys.
      aux: The auxiliary data of a registered class.
    """

    children: list
    keys: Any
    aux: Any = None


def _open_sequence(node: Any) -> Opened:
    return Opened(list(node), range(len(node)))


def _open_dict(node: dict) -> Opened:
    items = sorted(node.items(), key=itemgetter(0))
    return Opened([child for _, child in items], [key for key, _ in items])


def _open_default_dict(node: defaultdict) -> Opened:
    return _open_dict(node)._replace(aux=node.default_factory)


def _open_ordered_dict(node: OrderedDict) -> Opened:
    return Opened(list(node.values()), list(node))


def _open_none(_: None) -> Opened:
    return Opened([], range(0))


def open_registered(node: Any) -> Opened:
    pairs, data = one_level(node)
    return Opened([child for _, child in pairs], [path[0] for path, _ in pairs], data and data[1])


Opener = Callable[[Any], Opened]
_BUILTIN: dict[type, Opener] = {
    list: _open_sequence,
    tuple: _open_sequence,
    dict: _open_dict,
    defaultdict: _open_default_dict,
    OrderedDict: _open_ordered_dict,
    type(None): _open_none,
}


class Openers:
    """How to open a node, by its class; None for a leaf."""

    def __init__(self) -> None:
        self._of: dict[int, Opener | None] = {id(cls): opener for cls, opener in _BUILTIN.items()}
        self._classes: list[type] = []  # so that no id is used again: a metaclass may forbid hashing

    def is_leaf(self, cls: type) -> bool:
        """Whether objects of the class are known to be leaves."""
        return self._of.get(id(cls), cls) is None

    def __call__(self, node: Any) -> Opener | None:
        """Raises what the flatten function of a class raises that was not met before."""
        cls = type(node)
        if id(cls) not in self._of:
            self._of[id(cls)] = None if one_level(node)[1] is None else open_registered
            self._classes.append(cls)
        return self._of[id(cls)]


def key_text(node: Any, key: Any) -> str:
    """A key of an `Opened` node as `keystr` writes it."""
    cls = type(node)
    if cls is list or cls is tuple:
        key = SequenceKey(key)
    elif cls in MAPPINGS:
        key = DictKey(key)
    return guarded(lambda: keystr((key,)), lambda _: f"[{value_text(key)}]")


def what(node: Any, opened: Opened | None) -> str:
    """ "tuple of 2", "float32[3]", "None", "Linear": what stands in a place."""
    if opened is None:
        array = guarded(lambda: array_text(node), lambda _: None)
        if array is not None:
            return array
        return f"{class_name(type(node))} {value_text(node, 40)}" if type(node) in _PLAIN else class_name(type(node))
    if node is None:
        return "None"
    cls = type(node)
    return f"{class_name(cls)} of {len(opened.children)}" if cls in (list, tuple, *MAPPINGS) else class_name(cls)


_PLAIN = (bool, int, float, complex, str, bytes)


def compare_types(left: Any, right: Any, opened: Opened | None) -> Finding | None:
    """How a node differs in its class from what stands in its place; `opened` is the other one, or None for a leaf."""
    if type(left) is type(right):
        return None
    mine, other = what(left, Opened([], ())), what(right, opened)
    if left is None or right is None:
        return "none", mine if left is None else class_name(type(left)), other, ""
    if opened is None:
        return "leaf", f"a node: {class_name(type(left))}", f"a leaf: {other}", ""
    return compare_classes(type(left), type(right))


def compare_classes(left: type, right: type) -> Finding:
    """The names of two classes of nodes; with their modules, and what it may come from, if they are the same."""
    mine, other = class_name(left), class_name(right)
    if mine != other:
        return "type", mine, other, ""
    mine, other = f"{module_name(left)}.{mine}", f"{module_name(right)}.{other}"
    hint = "two classes of one name: its definition ran twice, as in a cell that was run again" if mine == other else ""
    return "type", mine, other, hint


def compare_level(left: Any, mine: Opened, right: Any, other: Opened) -> list[Finding]:
    """How two nodes of one class differ in their keys, their static data, and the number of children."""
    cls = type(left)
    if cls in (list, tuple):
        return [] if len(mine.children) == len(other.children) else [_lengths(mine, other)]
    if cls in MAPPINGS:
        return _compare_keys(mine, other) + compare_factories(mine.aux, other.aux)
    found: list[Finding] = []
    if mine.aux is not other.aux:
        found += compare_static(left, mine.aux, right, other.aux)
    if len(mine.children) != len(other.children):
        found.append(_lengths(mine, other))
    return found


def _lengths(mine: Opened, other: Opened) -> Finding:
    return (
        "length",
        *(f"{len(each.children)} {'child' if len(each.children) == 1 else 'children'}" for each in (mine, other)),
        "",
    )


def compare_factories(mine: Any, other: Any) -> list[Finding]:
    same = mine is other or guarded(lambda: bool(mine == other), lambda _: False)
    return [] if same else [("static", f"default_factory {value_text(mine, 40)}", value_text(other, 40), "")]


def _compare_keys(mine: Opened, other: Opened) -> list[Finding]:
    """The keys that only one of two mappings has are found where children are aligned; here, another order."""
    if mine.keys == other.keys or len(mine.keys) != len(other.keys) or set(mine.keys) != set(other.keys):
        return []
    return [("order", value_text(mine.keys, 60), value_text(other.keys, 60), "JAX sorts the keys of a dict alone")]


def compare_static(left: Any, mine: Any, right: Any, other: Any) -> list[Finding]:
    """How the auxiliary data of two nodes of one class differ: field by field, where fields hold it."""
    try:
        if not bool(mine != other):
            return []
        problem = ""
    except Exception as error:  # such as arrays, whose comparison has no truth value
        problem = f"comparing them raised {error_text(error)}, so JAX raises as well"
    fields = [(name, a, b) for name, a, b in _fields_in(left, mine, right) if not _same(a, b)]
    found = [finding for each in fields or [("", mine, other)] for finding in _told_of_field(left, *each, problem)]
    return found or [
        ("static", value_text(mine, 80), value_text(other, 80), problem or _unequal_to_itself(mine, other))
    ]


def _told_of_field(node: Any, name: str, a: Any, b: Any, problem: str) -> list[Finding]:
    """How a static field of a node differs, or the parts of it where its text does not tell; "" is all static data."""
    texts = [value_text(each, 60) for each in (a, b)]
    parts = parts_that_differ(a, b, _same) if texts[0] == texts[1] or any("…" in text for text in texts) else []
    own = stored_items(node) if parts else {}
    told = [
        (
            _attribute(own, part) or f"{name}{'.' * (name != '' and part.name[:1] != '[')}{part.name}",
            part.left,
            part.right,
        )
        for part in parts
    ]
    if not told and not name:
        return []
    return [
        ("static", f"{name} = {value_text(x, 60)}", value_text(y, 60), problem or _unequal_to_itself(x, y))
        for name, x, y in told or [(name, a, b)]
    ]


def _attribute(own: dict[str, Any], part: Part) -> str:
    """The attribute of a node that is a part of its static data; "" if there is none."""
    return part.key if type(part.key) is str and own.get(part.key, _same) is part.left else ""


def _fields_in(left: Any, aux: Any, right: Any) -> list[tuple[str, Any, Any]]:
    """(name, left, right) of the stored attributes that are part of the auxiliary data of the left node."""
    parts = {
        id(aux),
        *(map(id, aux) if type(aux) in (tuple, list) else map(id, aux.values()) if type(aux) is dict else ()),
    }
    for part in [*aux] if type(aux) is tuple else []:  # names and values, one level deeper
        if type(part) in (tuple, list):
            parts.update(map(id, part))
    others = stored_items(right)
    return [
        (name, value, others[name])
        for name, value in stored_items(left).items()
        if id(value) in parts and name in others
    ]


def _same(a: Any, b: Any) -> bool:
    """Whether two static values are equal; of arrays, whether all elements are. Never raises."""

    def compare() -> bool:
        same = a == b
        return bool(same.all()) and a.shape == b.shape if hasattr(same, "all") else bool(same)

    return a is b or (type(a) is type(b) and guarded(compare, lambda _: False))


def _unequal_to_itself(mine: Any, other: Any) -> str:
    alike = value_text(mine, 80) == value_text(other, 80)
    return "they look alike, but == says that they differ" if alike else ""


NONE = -1
_FEW_LEVELS = 16
_FIRST = 16  # siblings that are asked for at once; four times as many after those that are alike
_INDEX = re.compile(r"\[(0|[1-9][0-9]{0,8})\]")
_SEQUENCES, _MAPPINGS = set(map(id, (list, tuple))), set(map(id, MAPPINGS))  # a metaclass may override ==


class Side(NamedTuple):
    """A tree that is compared: its table, and the node or leaf of each row."""

    table: TreeTable
    nodes: list[Any]

    def cls(self, row: int) -> type:
        """The class of a node or leaf; in a bare treedef that of the node which the treedef stands for."""
        node = self.nodes[row]
        return node.node_data()[0] if self._is_bare(row) else type(node)

    def aux(self, row: int) -> Any:
        """The auxiliary data of a node of a registered class. Runs its flatten function."""
        node = self.nodes[row]
        return node.node_data()[1] if self._is_bare(row) else open_registered(node).aux

    def keys(self, row: int) -> list[Any]:
        """The keys of a mapping."""
        node = self.nodes[row]
        if not self._is_bare(row):
            return list(node)
        cls, aux = node.node_data()
        return list(aux[1] if cls is defaultdict else aux)

    def default_factory(self, row: int) -> Any:
        """That of a mapping; None if it has none."""
        node = self.nodes[row]
        if not self._is_bare(row):
            return getattr(node, "default_factory", None)
        cls, aux = node.node_data()
        return aux[0] if cls is defaultdict else None

    def _is_bare(self, row: int) -> bool:
        return is_treedef(self.nodes[row]) and not self.table.is_leaf[row]


class Aligned(NamedTuple):
    """The rows of both trees in one depth-first order.

    Attributes:
      left, right: int[n]: the row of each tree, or -1 where it has no counterpart.
      depth, parent, end: int32[n], as of a `TreeTable`.
    """

    left: np.ndarray
    right: np.ndarray
    depth: np.ndarray
    parent: np.ndarray
    end: np.ndarray


class _Alike:
    """Which subtrees have the same keys and the same facts in two tables.

    Rows are compared all at once with those that stand so many rows further in the other table, for a few such numbers.
    """

    _MOST = 16

    def __init__(self, left: TreeTable, right: TreeTable, ends: tuple[list[int], list[int]]) -> None:
        self._left, self._right, self._ends = left, right, ends
        code_of = {key: code for code, key in enumerate(left.keys)}
        self._key_codes = np.array([code_of.get(key, -1) for key in right.keys])[right.key_codes]
        self._counts: dict[int, list[int]] = {}  # by how much further: the alike rows before each row

    def is_subtree(self, mine: int, other: int) -> bool:
        """Whether all that is below two rows is alike, and they have the same facts."""
        further, end = other - mine, self._ends[0][mine]
        if self._ends[1][other] != end + further:
            return False
        if further not in self._counts:
            if len(self._counts) == self._MOST:
                return False
            self._counts[further] = self._count(further)
        counts = self._counts[further]
        return counts[end] - counts[mine] == end - mine

    def _count(self, further: int) -> list[int]:
        a, b = self._left, self._right
        rows = np.arange(max(0, -further), min(len(a), len(b) - further))
        others = rows + further
        alike = np.zeros(len(a) + 1, np.int64)
        alike[rows + 1] = (
            (a.depth[rows] == b.depth[others])
            & (a.key_codes[rows] == self._key_codes[others])
            & ((a.position[rows] == b.position[others]) | (a.key_codes[rows] != 0))
            & same_facts(a, b, rows, others)
        )
        return np.cumsum(alike).tolist()


class _Again:
    """Which subtrees of one tree are like that of the sibling before, its key aside: in keys, facts and classes."""

    _MOST = 8

    def __init__(self, side: Side, ends: list[int]) -> None:
        self._table, self._nodes, self._ends = side.table, side.nodes, ends
        self._codes = side.table.fact_codes.tolist()
        self._counts: dict[int, np.ndarray] = {}  # by how many rows each has: the rows before that are like the last

    def is_like(self, before: int, row: int) -> bool:
        """Whether a row is the next sibling of another, and like it."""
        size = row - before
        if self._ends[before] != row or self._ends[row] != row + size:
            return False
        if self._codes[before] != self._codes[row] or type(self._nodes[before]) is not type(self._nodes[row]):
            return False
        if size not in self._counts:
            if len(self._counts) == self._MOST:
                return False
            self._counts[size] = self._count(size)
        counts = self._counts[size]
        return bool(counts[row] - counts[before + 1] == size - 1)

    def n_like(self, row: int, size: int) -> int:
        """How many next siblings of a row of a size that `is_like` was asked for are each like the one before."""
        table, counts, n, n_tried = self._table, self._counts[size], 0, _FIRST
        while True:
            next_ = np.arange(row + (n + 1) * size, min(row + (n + n_tried) * size, len(table) - size) + 1, size)
            last, ends = next_ - size, table.end
            is_like = (
                (ends[last] == next_) & (ends[next_] == next_ + size) & (counts[next_] - counts[last + 1] == size - 1)
            )
            for each in (table.fact_codes, self._classes):
                is_like &= each[last] == each[next_]
            n_alike = len(is_like) if is_like.all() else int(is_like.argmin())
            n += n_alike
            if n_alike < n_tried:
                return n
            n_tried *= 4

    @computed_once
    def _classes(self) -> np.ndarray:
        return np.fromiter(map(id, map(type, self._nodes)), np.int64, len(self._nodes))

    def _count(self, size: int) -> np.ndarray:
        table, n = self._table, len(self._nodes)
        like = np.zeros(n + 1, np.int64)
        of = (table.depth, table.key_codes, table.fact_codes, self._classes)
        like[1 : n - size + 1] = np.logical_and.reduce([each[size:] == each[: n - size] for each in of]) & (
            (table.position[size:] == table.position[: n - size]) | (table.key_codes[size:] != 0)
        )
        return np.cumsum(like)


def align(left: Side, right: Side) -> Aligned:
    """Align children by their keys, repeated ones in order; nodes of types that have nothing in common stay apart.

    What the second tree alone has stands after the children of the first. Linear in the rows.
    """
    a, b = left.table, right.table
    if a.keys == b.keys and all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in ("depth", "key_codes", "position")
    ):
        rows = np.arange(len(a))
        to_ask = (a.end - rows > 1) & ~(same_facts(a, b, rows, rows) & is_builtin(a)[rows])
        if all(is_comparable(left, right, row, row) for row in np.flatnonzero(to_ask).tolist()):
            return Aligned(rows, rows, a.depth, a.parent, a.end)
    return _Aligner(left, right).run()


class _Aligner:
    def __init__(self, left: Side, right: Side) -> None:
        self._left, self._right = left, right
        self._ends = left.table.end.tolist(), right.table.end.tolist()
        self._alike = _Alike(left.table, right.table, self._ends)
        self._again = _Again(left, self._ends[0]), _Again(right, self._ends[1])
        self._names = _names(left.table, right.table)
        self._above, self._deep = left.table.parent.tolist(), left.table.depth.tolist()
        self._rows: tuple[list[int], list[int]] = [], []
        self._depths: list[int] = []
        self._parents: list[int] = []

    def run(self) -> Aligned:
        stack: list[tuple[int, int, int]] = [(0, 0, NONE)]  # left, right, the aligned row of the parent
        (lefts, rights), depths, parents = self._rows, self._depths, self._parents
        last: dict[int, int] = {}  # by the aligned row of the parent: that of its child that was aligned before
        while stack:
            left, right, parent = stack.pop()
            at = len(depths)
            if left != NONE != right and parent in last and self._is_again(last[parent], left, right):
                last[parent] = self._repeat(last[parent], left, right, parent, stack)
                continue
            lefts.append(left)
            rights.append(right)
            parents.append(parent)
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
            if NONE in (left, right):
                stack += reversed(self._alone(left, right, at))
                continue
            if self._alike.is_subtree(left, right):
                self._take(left, right, at, parent, stack)
                continue
            if is_comparable(self._left, self._right, left, right):
                stack += reversed([(*pair, at) for pair in self._pairs(left, right)])
            else:
                stack += reversed(self._alone(left, NONE, at))
            last[parent] = at
        left_rows, right_rows = (np.array(rows, np.int64) for rows in self._rows)
        depth = np.array(depths, np.int32)
        return Aligned(left_rows, right_rows, depth, np.array(parents, np.int32), _ends(depth, parents))

    def _is_again(self, at: int, left: int, right: int) -> bool:
        """Whether the pair that was aligned from a row on was such a pair, too."""
        lefts, rights = self._rows
        return self._again[0].is_like(lefts[at], left) and self._again[1].is_like(rights[at], right)

    def _repeat(self, first: int, left: int, right: int, parent: int, stack: list[tuple[int, int, int]]) -> int:
        """Add a pair, and the next siblings, as the pair before was aligned; returns the row of the last."""
        at, n = len(self._depths), 1
        sizes = [own - rows[first] for own, rows in zip((left, right), self._rows, strict=True)]
        most = 1 + min(
            again.n_like(row, size) for again, row, size in zip(self._again, (left, right), sizes, strict=True)
        )
        while n < most and stack and stack[-1] == (left + n * sizes[0], right + n * sizes[1], parent):
            stack.pop()
            n += 1
        times = np.arange(1, n + 1)[:, None]
        for rows, size in zip(self._rows, sizes, strict=True):
            before = np.array(rows[first:])
            rows += np.where(before == NONE, NONE, before + times * size).ravel().tolist()
        above = np.array(self._parents[first:])
        self._parents += np.where(above == parent, parent, above + times * (at - first)).ravel().tolist()
        self._depths += self._depths[first:] * n
        return at + (n - 1) * (at - first)

    def _take(self, left: int, right: int, at: int, parent: int, stack: list[tuple[int, int, int]]) -> None:
        """Add what is below a pair of rows that is the same in both, and the next siblings that are the same."""
        ends, others = self._ends
        end, other = ends[left], others[right]
        while stack and stack[-1] == (end, other, parent) and self._alike.is_subtree(end, other):
            end, other = ends[end], others[other]
            stack.pop()
        own, further = self._above[left], at - left
        self._rows[0].extend(range(left + 1, end))
        self._rows[1].extend(range(right + 1, other))
        self._parents += [parent if above == own else above + further for above in self._above[left + 1 : end]]
        self._depths += self._deep[left + 1 : end]

    def _alone(self, left: int, right: int, at: int) -> list[tuple[int, int, int]]:
        """The children of a row without a counterpart."""
        if right == NONE:
            return [(row, NONE, at) for row in children_of(self._ends[0], left)]
        return [(NONE, row, at) for row in children_of(self._ends[1], right)]

    def _pairs(self, left: int, right: int) -> list[tuple[int, int]]:
        rows = [children_of(ends, row) for ends, row in zip(self._ends, (left, right), strict=True)]
        mine, theirs = ([names[row] for row in of] for names, of in zip(self._names, rows, strict=True))
        if mine == theirs:
            return list(zip(*rows, strict=True))
        waiting: dict[int, list[int]] = {}
        for name, row in zip(theirs, rows[1], strict=True):
            waiting.setdefault(name, []).append(row)
        pairs = []
        for name, row in zip(mine, rows[0], strict=True):
            same = waiting.get(name)
            pairs.append((row, same.pop(0) if same else NONE))
        return pairs + [(NONE, row) for rows in waiting.values() for row in rows]


def _names(*tables: TreeTable) -> list[list[int]]:
    """A number for the key of each row: the same where `keystr` writes the same. That of an index is negative."""
    known: dict[str, int] = {}
    names = []
    for table in tables:
        indices = [_INDEX.fullmatch(key.keystr) for key in table.keys]
        of_key = [
            ~int(index[1]) if index else known.setdefault(key.keystr, len(known))
            for key, index in zip(table.keys, indices, strict=True)
        ]
        names.append(np.where(table.key_codes == 0, ~table.position, np.array(of_key)[table.key_codes]).tolist())
    return names


def same_facts(left: TreeTable, right: TreeTable, mine: np.ndarray, other: np.ndarray) -> np.ndarray:
    """bool[n]: whether rows have the same facts, of rows that both trees have."""
    code_of = {facts: code for code, facts in enumerate(left.facts)}
    codes = np.array([code_of.get(facts, -1) for facts in right.facts])
    return left.fact_codes[mine] == codes[right.fact_codes[other]]


def is_builtin(table: TreeTable) -> np.ndarray:
    """bool[n]: the rows of dicts, lists and tuples, and of no other class, not even one of their name."""
    kinds = [facts.kind == facts.type and facts.kind in ("dict", "list", "tuple") for facts in table.facts]
    return np.array(kinds, bool)[table.fact_codes]


def is_comparable(left: Side, right: Side, mine: int, other: int) -> bool:
    """Whether the children of two nodes are compared: of one class or of one name, two sequences, or two mappings."""
    a, b = left.cls(mine), right.cls(other)
    if a is b:
        return True
    if id(a) in _SEQUENCES and id(b) in _SEQUENCES:
        return True
    if _is_mapping(left, mine) and _is_mapping(right, other):
        return True
    return qualified_name(a) == qualified_name(b)


def _is_mapping(side: Side, row: int) -> bool:
    """Whether a node is a dict, or has children with keys as those of one: a mapping of a library."""
    table = side.table
    keys = [table.key(child).keystr for child in table.children(row)]
    return id(side.cls(row)) in _MAPPINGS or (bool(keys) and all(key.startswith("['") for key in keys))


def _ends(depth: np.ndarray, parents: list[int]) -> np.ndarray:
    """int32[n]: where each subtree ends, of rows in depth-first order."""
    if depth.max() <= _FEW_LEVELS:
        ends = np.full(len(depth), len(depth), np.int32)
        for level in range(int(depth.max()) + 1):
            rows = np.flatnonzero(depth <= level)
            own = np.flatnonzero(depth[rows[:-1]] == level)
            ends[rows[own]] = rows[own + 1]
        return ends
    sizes = [1] * len(parents)
    for row in range(len(parents) - 1, 0, -1):
        sizes[parents[row]] += sizes[row]
    return np.arange(len(parents), dtype=np.int32) + np.array(sizes, np.int32)
