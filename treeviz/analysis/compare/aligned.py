"""The rows of two trees side by side: each with its counterpart, in one depth-first order."""

from __future__ import annotations

import re
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from jax.tree_util import DictKey, SequenceKey

from treeviz.tree.keys import keystr, stored_items
from treeviz.tree.level import is_treedef, one_level
from treeviz.tree.runtime import computed_once
from treeviz.tree.table import TreeTable, children_of
from treeviz.tree.text import (
    array_text,
    class_name,
    error_text,
    guarded,
    has_base,
    is_any,
    is_jaxpr,
    module_name,
    qualified_name,
    value_text,
)

# Where two static values differ inside: in the fields of a dataclass, the items of a dict, the elements of a tuple

_DEEPEST = 6  # attributes of attributes
_MOST = 2_000  # compared pairs
_MOST_TOLD = 10
_CLOSED = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)


class Part(NamedTuple):
    """The values in one place of two values."""

    name: str  # the Python that gets there, "static_fields['axis']"; "" is the value itself
    key: Any  # the last key or attribute in it, or None
    left: Any
    right: Any


def parts_that_differ(left: Any, right: Any, are_same: Callable[[Any, Any], bool]) -> list[Part]:
    """The first innermost parts in which two different values differ; none if all parts are the same.

    Runs no code of their classes except `are_same`. Opens values that contain themselves a few levels deep.
    """
    differing, n_left = list[Part](), _MOST
    waiting = [(Part("", None, left, right), 0)]
    while waiting and n_left and len(differing) < _MOST_TOLD:
        part, depth = waiting.pop()
        is_open = depth < _DEEPEST and type(part.left) is type(part.right)
        below = _pairs(part, *map(_entries, part[2:])) if is_open else []
        n_left -= min(n_left, len(below))
        unlike = [pair for pair in below[:n_left] if not are_same(pair.left, pair.right)]
        if unlike:
            waiting += [(pair, depth + 1) for pair in reversed(unlike)]
        elif depth:
            differing.append(part)
    return differing


def _entries(value: Any) -> dict[Any, Any]:
    """The contents of a value, by index, key or attribute name; empty if there are too many."""
    cls = type(value)
    if is_jaxpr(cls):  # equal only to itself, and its variables are new in each trace
        return {}
    if cls is list or cls is tuple:
        entries = dict(enumerate(value[: _MOST + 1]))
    elif cls is dict:
        entries = dict(value) if len(value) <= _MOST else {}
    else:
        entries = {} if has_base(cls, *_CLOSED) else guarded(lambda: stored_items(value), lambda _: {})
    return entries if len(entries) <= _MOST else {}


def _pairs(part: Part, left: dict[Any, Any], right: dict[Any, Any]) -> list[Part]:
    """The pairs of contents; empty if the two have different keys."""
    if guarded(lambda: left.keys() != right.keys(), lambda _: True):
        return []
    is_object = not is_any(type(part.left), (list, tuple, dict))
    names = [f".{key}" if is_object else f"[{value_text(key, 40)}]" for key in left]
    return [
        Part((part.name + name).removeprefix("."), key, value, right[key])
        for name, (key, value) in zip(names, left.items(), strict=True)
    ]


# Compare two nodes one level deep, as `jax.tree.map` does: types, keys, static data and number of children

Finding = tuple[str, ...]  # the kind, the left and right texts, a hint
MAPPINGS = (dict, OrderedDict, defaultdict)


class Opened(NamedTuple):
    """One level of a node."""

    children: list
    keys: Any  # JAX's keys of the children; positions for a list or tuple, its own keys for a mapping
    aux: Any = None  # the auxiliary data of a registered class


def _open_dict(node: dict, aux: Any = None) -> Opened:
    items = sorted(node.items(), key=itemgetter(0))
    return Opened([child for _, child in items], [key for key, _ in items], aux)


def open_registered(node: Any) -> Opened:
    pairs, data = one_level(node)
    return Opened([child for _, child in pairs], [path[0] for path, _ in pairs], data and data[1])


Opener = Callable[[Any], Opened]
_BUILTIN: dict[type, Opener] = {
    **dict.fromkeys((list, tuple), lambda node: Opened(list(node), range(len(node)))),
    dict: _open_dict,
    defaultdict: lambda node: _open_dict(node, node.default_factory),
    OrderedDict: lambda node: Opened(list(node.values()), list(node)),
    type(None): lambda _: Opened([], range(0)),
}


class Openers:
    """Opens nodes one level; None for leaves."""

    def __init__(self) -> None:
        self._of: dict[int, Opener | None] = {id(cls): opener for cls, opener in _BUILTIN.items()}
        self._classes: list[type] = []  # keeps classes alive, so that no id is reused; a metaclass may forbid hashing

    def is_leaf(self, cls: type) -> bool:
        """Whether objects of the class are known to be leaves."""
        return self._of.get(id(cls), cls) is None

    def __call__(self, node: Any) -> Opened | None:
        """Raises what the flatten function of the class raises."""
        cls = type(node)
        if id(cls) not in self._of:
            self._of[id(cls)] = None if one_level(node)[1] is None else open_registered
            self._classes.append(cls)
        opener = self._of[id(cls)]
        return None if opener is None else opener(node)


def key_text(node: Any, key: Any) -> str:
    """A key of an `Opened` node as `keystr` writes it."""
    cls = type(node)
    if cls is list or cls is tuple:
        key = SequenceKey(key)
    elif is_any(cls, MAPPINGS):
        key = DictKey(key)
    return keystr((key,))


def describe_value(node: Any, opened: Opened | None) -> str:
    """ "tuple of 2", "float32[3]", "None", "Linear": a description of a node or leaf."""
    cls, name = type(node), class_name(type(node))
    if opened is None:
        array = guarded(lambda: array_text(node), lambda _: None)
        return array or (f"{name} {value_text(node, 40)}" if is_any(cls, _PLAIN) else name)
    if node is None:
        return "None"
    return f"{name} of {len(opened.children)}" if is_any(cls, (list, tuple, *MAPPINGS)) else name


_PLAIN = (bool, int, float, complex, str, bytes)


def compare_types(left: Any, right: Any, opened: Opened | None) -> Finding | None:
    """How the class of a node differs from that of its counterpart, which `opened` holds, or None for a leaf."""
    if type(left) is type(right):
        return None
    left_text, right_text = describe_value(left, Opened([], ())), describe_value(right, opened)
    if left is None or right is None:
        return "none", left_text if left is None else class_name(type(left)), right_text, ""
    if opened is None:
        return "leaf", f"a node: {class_name(type(left))}", f"a leaf: {right_text}", ""
    return compare_classes(type(left), type(right))


def compare_kinds(left: Any, right: Any, texts: Sequence[str], is_leaf: bool) -> Finding:
    """How two different classes of nodes differ; `is_leaf` if one is a leaf."""
    if left is type(None) or right is type(None):
        return "none", *texts, ""
    if is_leaf:
        return "leaf", *texts, ""
    kind, *words, hint = compare_classes(left, right)
    return kind, *(words if hint else texts), hint


def compare_classes(left: type, right: type) -> Finding:
    """The names of two classes of nodes; if these are equal, with the modules and a likely cause."""
    left_name, right_name = class_name(left), class_name(right)
    if left_name != right_name:
        return "type", left_name, right_name, ""
    left_name, right_name = f"{module_name(left)}.{left_name}", f"{module_name(right)}.{right_name}"
    hint = "two classes with the same name: its definition ran twice, as in a notebook cell"
    return "type", left_name, right_name, hint * (left_name == right_name)


def compare_level(left: Any, left_opened: Opened, right: Any, right_opened: Opened) -> list[Finding]:
    """How two nodes of one class differ in keys, static data and number of children."""
    lengths = compare_lengths(len(left_opened.children), len(right_opened.children))
    if is_any(type(left), (list, tuple)):
        return lengths
    if is_any(type(left), MAPPINGS):
        return compare_mappings(left_opened, right_opened, "JAX sorts only the keys of a dict")
    is_same = left_opened.aux is right_opened.aux
    return ([] if is_same else compare_static(left, left_opened.aux, right, right_opened.aux)) + lengths


def compare_lengths(left: int, right: int) -> list[Finding]:
    texts = (f"{n} {'child' if n == 1 else 'children'}" for n in (left, right))
    return [] if left == right else [("length", *texts, "")]


def compare_mappings(left: Opened, right: Opened, hint: str) -> list[Finding]:
    """Different orders of the same keys, and default factories. Other keys are found when the children are aligned."""
    findings, a, b = list[Finding](), left.aux, right.aux
    if left.keys != right.keys and len(left.keys) == len(right.keys) and set(left.keys) == set(right.keys):
        findings.append(("order", value_text(left.keys, 60), value_text(right.keys, 60), hint))
    if a is not b and not guarded(lambda: bool(a == b), lambda _: False):
        findings.append(("static", f"default_factory {value_text(a, 40)}", value_text(b, 40), ""))
    return findings


def compare_static(left: Any, left_aux: Any, right: Any, right_aux: Any) -> list[Finding]:
    """How the auxiliary data of two nodes of one class differ, by field where fields hold it."""
    try:
        if not bool(left_aux != right_aux):
            return []
        problem = ""
    except Exception as error:  # such as arrays, which have no truth value
        problem = f"comparing them raised {error_text(error)}, so JAX raises as well"
    fields = [(name, a, b) for name, a, b in _fields_in(left, left_aux, right) if not _same(a, b)]
    named = [it for field in fields or [("", left_aux, right_aux)] for it in _named_parts(left, *field)]
    findings = [("static", f"{name} = {value_text(a, 60)}", value_text(b, 60), a, b) for name, a, b in named]
    findings = findings or [("static", value_text(left_aux, 80), value_text(right_aux, 80), left_aux, right_aux)]
    same_text = "they print the same, but == returns False"
    return [(*it, problem or same_text * (value_text(a, 80) == value_text(b, 80))) for *it, a, b in findings]


def _named_parts(node: Any, name: str, a: Any, b: Any) -> list[tuple[str, Any, Any]]:
    """A static field, or its parts that differ if its text does not show it; the name "" is all static data."""
    texts = [value_text(value, 60) for value in (a, b)]
    parts = parts_that_differ(a, b, _same) if texts[0] == texts[1] or any("…" in text for text in texts) else []
    own, named = stored_items(node) if parts else {}, []
    for part in parts:
        is_attribute = type(part.key) is str and own.get(part.key, _same) is part.left
        step = "." * (name != "" and part.name[:1] != "[") + part.name
        named.append((part.key if is_attribute else name + step, part.left, part.right))
    return named or [(name, a, b)] * bool(name)


def _fields_in(left: Any, aux: Any, right: Any) -> list[tuple[str, Any, Any]]:
    """(name, left, right) for the stored attributes that are in the left node's auxiliary data."""
    inside = aux if is_any(type(aux), (tuple, list)) else aux.values() if type(aux) is dict else ()
    parts = {id(aux), *map(id, inside)}
    for part in aux if type(aux) is tuple else ():  # names and values, one level deeper
        if is_any(type(part), (tuple, list)):
            parts.update(map(id, part))
    own, others = stored_items(left), stored_items(right)
    return [(name, own[name], others[name]) for name in own if id(own[name]) in parts and name in others]


def _same(a: Any, b: Any) -> bool:
    """Whether two static values, or all elements of two arrays, are equal. Never raises."""

    def compare() -> bool:
        same = a == b
        return bool(same.all()) and a.shape == b.shape if hasattr(same, "all") else bool(same)

    return a is b or (type(a) is type(b) and guarded(compare, lambda _: False))


NONE = -1
_FEW_LEVELS = 16
_FIRST = 16  # siblings compared at a time; four times as many after those that are like the first
_INDEX = re.compile(r"\[(0|[1-9][0-9]{0,8})\]")
_SEQUENCES, _MAPPINGS = set(map(id, (list, tuple))), set(map(id, MAPPINGS))  # a metaclass may override ==


class Side(NamedTuple):
    """One of two compared trees: its table, and the node or leaf of each row."""

    table: TreeTable
    nodes: list[Any]

    def cls(self, row: int) -> type:
        """The class of a node or leaf; in a bare treedef, the class of the node that it describes."""
        node = self.nodes[row]
        return node.node_data()[0] if self._is_bare(row) else type(node)

    def opened(self, row: int) -> Opened:
        """The keys and default factory of a mapping, in its order, or the auxiliary data of another node."""
        node, cls = self.nodes[row], self.cls(row)
        is_mapping = is_any(cls, MAPPINGS)
        if not self._is_bare(row):
            factory = getattr(node, "default_factory", None)
            return Opened([], list(node), factory) if is_mapping else open_registered(node)
        aux = node.node_data()[1]
        if cls is defaultdict:
            return Opened([], list(aux[1]), aux[0])
        return Opened([], list(aux)) if is_mapping else Opened([], (), aux)

    def _is_bare(self, row: int) -> bool:
        return is_treedef(self.nodes[row]) and not self.table.is_leaf[row]


class Aligned(NamedTuple):
    """The rows of both trees in one depth-first order."""

    left: np.ndarray  # int[n]: the row of each tree, or -1 without a counterpart
    right: np.ndarray
    depth: np.ndarray  # int32[n], as the next two, as in a `TreeTable`
    parent: np.ndarray
    end: np.ndarray


class _EqualRows:
    """Rows that equal those some rows further, in another table or in the same one, by the codes of keys, where 0 is an
    index; positions, which count beside an index; and others.
    """

    def __init__(self, left: Sequence[np.ndarray], right: Sequence[np.ndarray], most: int) -> None:
        self._both, self._most = (left, right), most
        self._counts: dict[int, np.ndarray] = {}

    def counts(self, further: int) -> np.ndarray | None:
        """How many of the rows before each one equal the row that is `further`; None for too many distances."""
        if further not in self._counts and len(self._counts) < self._most:
            n_left, n_right = (len(arrays[0]) for arrays in self._both)
            start = max(0, -further)
            end = max(start, min(n_left, n_right - further))
            key_codes, position, *others = (
                (a[start:end], b[start + further : end + further]) for a, b in zip(*self._both, strict=True)
            )
            like = np.zeros(n_left + 1, np.int64)
            like[start + 1 : end + 1] = np.logical_and.reduce([a == b for a, b in (key_codes, *others)]) & (
                (position[0] == position[1]) | (key_codes[0] != 0)
            )
            self._counts[further] = np.cumsum(like)
        return self._counts.get(further)


def align(left: Side, right: Side) -> Aligned:
    """Align children by their keys, repeated ones in order; in containers of different kinds, by name or position.

    Nodes of unrelated types are not aligned. A leaf is aligned with the only leaf of a node; the row of that node is
    left out. Rows that only the second tree has follow the children of the first. Linear in the rows.
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
        a, b = left.table, right.table
        self._ends, self._names = (a.end.tolist(), b.end.tolist()), _names(a, b)
        code_of = {key: code for code, key in enumerate(a.keys)}
        key_codes = np.array([code_of.get(key, -1) for key in b.keys])[b.key_codes]
        self._alike = _EqualRows(
            (a.key_codes, a.position, a.depth, a.fact_codes), (key_codes, b.position, b.depth, _facts_as_in(a, b)), 16
        )
        self._codes = a.fact_codes.tolist(), b.fact_codes.tolist()
        self._is_leaf = left.table.is_leaf.tolist(), right.table.is_leaf.tolist()
        self._above, self._deep = left.table.parent.tolist(), left.table.depth.tolist()
        self._rows: tuple[list[int], list[int]] = [], []
        self._depths: list[int] = []
        self._parents: list[int] = []

    def run(self) -> Aligned:
        stack: list[tuple[int, int, int]] = [(0, 0, NONE)]  # left, right, the aligned row of the parent
        (lefts, rights), depths, parents = self._rows, self._depths, self._parents
        last: dict[int, int] = {}  # by the parent's aligned row: the aligned row of its previous child
        while stack:
            left, right, parent = stack.pop()
            if left != NONE != right:
                left, right = left + self._is_box(0, left, right), right + self._is_box(1, right, left)
            at = len(depths)
            if left != NONE != right and parent in last:  # whether both equal their previous siblings
                before = last[parent]
                if self._is_like(0, lefts[before], left) and self._is_like(1, rights[before], right):
                    last[parent] = self._repeat(before, left, right, parent, stack)
                    continue
            lefts.append(left)
            rights.append(right)
            parents.append(parent)
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
            if NONE in (left, right):
                stack += reversed(self._alone(left, right, at))
                continue
            if self._is_same(left, right):
                self._take(left, right, at, parent, stack)
                continue
            pairs = self._pairs(left, right)
            stack += reversed(self._alone(left, NONE, at) if pairs is None else [(*pair, at) for pair in pairs])
            last[parent] = at
        left_rows, right_rows = (np.array(rows, np.int64) for rows in self._rows)
        depth = np.array(depths, np.int32)
        return Aligned(left_rows, right_rows, depth, np.array(parents, np.int32), _ends(depth, parents))

    def _is_box(self, side: int, row: int, other: int) -> bool:
        """Whether a node has only one leaf and nothing else, and its counterpart is a leaf."""
        return (
            not self._is_leaf[side][row]
            and self._is_leaf[1 - side][other]
            and (self._ends[side][row] == row + 2 and self._is_leaf[side][row + 1])
        )

    def _is_same(self, left: int, right: int) -> bool:
        further, end = right - left, self._ends[0][left]
        counts = self._alike.counts(further) if self._ends[1][right] == end + further else None
        return counts is not None and counts.item(end) - counts.item(left) == end - left

    def _is_like(self, side: int, before: int, row: int) -> bool:
        """Whether a subtree equals that of its previous sibling."""
        size, ends, codes = row - before, self._ends[side], self._codes[side]
        if ends[before] != row or ends[row] != row + size or codes[before] != codes[row]:
            return False
        nodes = (self._left, self._right)[side].nodes
        counts = self._siblings[side].counts(size) if type(nodes[before]) is type(nodes[row]) else None
        return counts is not None and counts.item(row) - counts.item(before + 1) == size - 1

    def _n_like(self, side: int, row: int, size: int) -> int:
        """The number of next siblings that each equal the one before, of a size that `_is_like` was called with."""
        table, n, n_tried = (self._left, self._right)[side].table, 0, _FIRST
        counts: Any = self._siblings[side].counts(size)
        while True:
            next_ = np.arange(row + (n + 1) * size, min(row + (n + n_tried) * size, len(table) - size) + 1, size)
            last, ends = next_ - size, table.end
            is_like = (
                (ends[last] == next_) & (ends[next_] == next_ + size) & (counts[next_] - counts[last + 1] == size - 1)
            )
            for codes in (table.fact_codes, self._classes[side]):
                is_like &= codes[last] == codes[next_]
            n_more = len(is_like) if is_like.all() else int(is_like.argmin())
            n += n_more
            if n_more < n_tried:
                return n
            n_tried *= 4

    @computed_once
    def _classes(self) -> list[np.ndarray]:
        sides = self._left, self._right
        return [np.fromiter(map(id, map(type, side.nodes)), np.int64, len(side.nodes)) for side in sides]

    @computed_once
    def _siblings(self) -> list[_EqualRows]:
        tables = self._left.table, self._right.table
        arrays = [
            (t.key_codes, t.position, t.depth, t.fact_codes, classes)
            for t, classes in zip(tables, self._classes, strict=True)
        ]
        return [_EqualRows(own, own, 8) for own in arrays]

    def _repeat(self, first: int, left: int, right: int, parent: int, stack: list[tuple[int, int, int]]) -> int:
        """Align a pair and its next siblings like the previous pair; returns the aligned row of the last one."""
        at, n = len(self._depths), 1
        sizes = [own - rows[first] for own, rows in zip((left, right), self._rows, strict=True)]
        most = 1 + min(self._n_like(0, left, sizes[0]), self._n_like(1, right, sizes[1]))
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
        """Align all rows below a pair that is the same in both trees, and the next siblings that are the same."""
        ends, others = self._ends
        end, right_end = ends[left], others[right]
        while stack and stack[-1] == (end, right_end, parent) and self._is_same(end, right_end):
            end, right_end = ends[end], others[right_end]
            stack.pop()
        parent_of_left, further = self._above[left], at - left
        self._rows[0].extend(range(left + 1, end))
        self._rows[1].extend(range(right + 1, right_end))
        self._parents += [
            parent if above == parent_of_left else above + further for above in self._above[left + 1 : end]
        ]
        self._depths += self._deep[left + 1 : end]

    def _alone(self, left: int, right: int, at: int) -> list[tuple[int, int, int]]:
        if left == NONE:
            return [(NONE, row, at) for row in children_of(self._ends[1], right)]
        return [(row, NONE, at) for row in children_of(self._ends[0], left)]

    def _pairs(self, left: int, right: int) -> list[tuple[int, int]] | None:
        """The children of both nodes in pairs; None if they are not compared."""
        rows = [children_of(ends, row) for ends, row in zip(self._ends, (left, right), strict=True)]
        both: Any = [[names[row] for row in own] for names, own in zip(self._names, rows, strict=True)]
        if not are_of_one_kind(self._left, self._right, left, right):
            both = common_names(self._left, self._right, left, right)
        if both is None:
            return None
        if both[0] == both[1]:
            return list(zip(*rows, strict=True))
        waiting: dict[Any, list[int]] = defaultdict(list)
        for name, row in zip(both[1], rows[1], strict=True):
            waiting[name].append(row)
        pairs = [
            (row, waiting[name].pop(0) if waiting.get(name) else NONE)
            for name, row in zip(both[0], rows[0], strict=True)
        ]
        return pairs + [(NONE, row) for rows in waiting.values() for row in rows]


def _names(*tables: TreeTable) -> list[list[int]]:
    """A number for the key of each row, equal for equal `keystr`. Indices have negative numbers."""
    known: dict[str, int] = {}
    names = []
    for table in tables:
        numbers = [
            ~int(index[1]) if (index := _INDEX.fullmatch(key.keystr)) else known.setdefault(key.keystr, len(known))
            for key in table.keys
        ]
        names.append(np.where(table.key_codes == 0, ~table.position, np.array(numbers)[table.key_codes]).tolist())
    return names


def same_facts(left: TreeTable, right: TreeTable, left_rows: np.ndarray, right_rows: np.ndarray) -> np.ndarray:
    """bool[n]: whether pairs of rows have the same facts."""
    return left.fact_codes[left_rows] == _facts_as_in(left, right)[right_rows]


def _facts_as_in(left: TreeTable, right: TreeTable) -> np.ndarray:
    """The fact codes of the right table, as in the left one."""
    code_of = {facts: code for code, facts in enumerate(left.facts)}
    return np.array([code_of.get(facts, -1) for facts in right.facts])[right.fact_codes]


def is_builtin(table: TreeTable) -> np.ndarray:
    """bool[n]: whether rows are builtin dicts, lists or tuples, and not of another class with that name."""
    kinds = [facts.kind == facts.type and facts.kind in ("dict", "list", "tuple") for facts in table.facts]
    return np.array(kinds, bool)[table.fact_codes]


def is_comparable(left: Side, right: Side, left_row: int, right_row: int) -> bool:
    """Whether to compare the children of two nodes: of one kind, or with children of the same names."""
    return are_of_one_kind(left, right, left_row, right_row) or bool(common_names(left, right, left_row, right_row))


def are_of_one_kind(left: Side, right: Side, left_row: int, right_row: int) -> bool:
    """Whether two nodes are of one class or class name, or two sequences."""
    a, b = left.cls(left_row), right.cls(right_row)
    return a is b or (id(a) in _SEQUENCES and id(b) in _SEQUENCES) or qualified_name(a) == qualified_name(b)


def common_names(left: Side, right: Side, left_row: int, right_row: int) -> tuple[list[Any], list[Any]] | None:
    """The names of the children of two containers of different kinds: fields, keys or positions; None without any.

    A checkpoint has a dict for each named tuple, dataclass, module, list and tuple; its keys are the names of the
    fields, or digits. Without common names, the fields of a class are compared with a sequence by position.
    """
    both = (left, left_row), (right, right_row)
    rows = [side.table.children(row) for side, row in both]
    names = [[side.table.key(row).segment for row in own] for (side, _), own in zip(both, rows, strict=True)]
    ids = [id(side.cls(row)) for side, row in both]
    keystrs = [[side.table.key(row).keystr for row in own] for (side, _), own in zip(both, rows, strict=True)]
    # A dict, or a library's mapping, whose children have keys like those of a dict
    are_mappings = [
        cls in _MAPPINGS or (bool(keys) and all(key.startswith("['") for key in keys))
        for cls, keys in zip(ids, keystrs, strict=True)
    ]
    is_any_builtin = any(are_mappings) or not _SEQUENCES.isdisjoint(ids)
    n_common, n_least = len({*names[0]} & {*names[1]}), min(map(len, names))
    is_close = 0 < n_least <= 2 * n_common if is_any_builtin else sorted(names[0]) == sorted(names[1]) != []
    if all(are_mappings) or is_close:
        return names[0], names[1]
    if n_common or len(names[0]) != len(names[1]) or any(are_mappings) or not is_any_builtin:
        return None
    counts = [
        [np.count_nonzero(side.table.is_leaf[row : side.table.end[row]]) for row in own]
        for (side, _), own in zip(both, rows, strict=True)
    ]
    return ([*range(n_least)], [*range(n_least)]) if counts[0] == counts[1] else None


def _ends(depth: np.ndarray, parents: list[int]) -> np.ndarray:
    """int32[n]: the end of each subtree, for rows in depth-first order."""
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
