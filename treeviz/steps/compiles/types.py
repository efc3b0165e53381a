"""The type of a tree for `jax.jit`, and how two types differ: the treedef, and each leaf's aval and sharding."""

from __future__ import annotations

import operator
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
from jax import api_util, tree_util

from treeviz.analysis.compare.aligned import MAPPINGS, Finding, compare_kinds, compare_lengths, compare_static
from treeviz.analysis.facts import shape_text
from treeviz.tree.keys import keystr, stored_items
from treeviz.tree.leaves import describe_sharding
from treeviz.tree.level import one_level
from treeviz.tree.text import array_text, class_name, guarded, has_base, is_any, value_text, visible

_abstract = getattr(api_util, "shaped_abstractify", None) or jax.typeof

_NUMBERS = (bool, int, float, complex)
_STATIC = "a static argument"
TWO_OBJECTS = "they print the same, but are two objects: create it once"


class LeafType(NamedTuple):
    """The properties of a leaf that a program is traced and compiled for."""

    aval: Any  # shape, dtype and weak type; None for a static leaf, which is not an array
    place: Any = None  # the sharding of a committed array
    value: tuple[type, str, Any] | None = None  # of a Python value: the class, the text, and the hash or id
    is_read: bool = False  # by the traced program; JAX compiles none for the place of one that it does not read

    @property
    def text(self) -> str:
        """The leaf as text: "float32[3]", "int 2", "str 'adam'"."""
        return self.value_text or array_text(self.aval) or str(self.aval)

    @property
    def value_text(self) -> str:
        """The Python value as text, "str 'adam'"; "" for an array."""
        return f"{class_name(self.value[0])} {self.value[1]}" if self.value else ""


class JitType(NamedTuple):
    """The type of a tree, as `jax.jit` compares it."""

    treedef: Any
    leaves: Sequence[LeafType]

    def children(self) -> list[JitType]:
        defs = self.treedef.children()
        pairs = zip(defs, accumulate(child.num_leaves for child in defs), strict=True)
        return [JitType(child, self.leaves[end - child.num_leaves : end]) for child, end in pairs]

    @property
    def text(self) -> str:
        """In words: "float32[3]", "dict · 4 leaves"."""
        data = self.treedef.node_data()
        if data is None:
            return self.leaves[0].text
        n = len(self.leaves)
        return "None" if data[0] is type(None) else f"{class_name(data[0])} · {n:,} {'leaf' if n == 1 else 'leaves'}"


def jit_type(tree: Any, static_numbers: bool = False) -> JitType:
    """The type of a tree. Reads no array values and keeps no array alive."""
    leaves, treedef = tree_util.tree_flatten(tree)
    return JitType(treedef, [leaf_type(leaf, static_numbers) for leaf in leaves])


def leaf_type(leaf: Any, static_numbers: bool = False) -> LeafType:
    aval = None if static_numbers and is_any(type(leaf), _NUMBERS) else guarded(lambda: _abstract(leaf), lambda _: None)
    if hasattr(leaf, "dtype") and aval is not None:
        return LeafType(aval, guarded(lambda: leaf.sharding, lambda _: None) if is_committed(leaf) else None)
    return LeafType(aval, None, (type(leaf), value_text(leaf, 60), guarded(lambda: hash(leaf), lambda _: id(leaf))))


def is_committed(leaf: Any) -> bool:
    """Whether a leaf is an array committed to its device, which the program must use."""
    return isinstance(leaf, jax.Array) and guarded(lambda: bool(leaf.committed), lambda _: False)


def compare_leaves(left: LeafType, right: LeafType) -> list[Finding]:
    """The reasons why a program that was traced for one leaf is traced again for the other."""
    a, b = left.aval, right.aval
    if a is None or b is None:
        values = [side.value for side in (left, right) if side.aval is None and side.value is not None]
        hint = _STATIC if any(value[0] in _NUMBERS for value in values) else ""
        return [] if a is b and left.value == right.value else [_static(left, right, hint)]
    if not all(hasattr(aval, "shape") and hasattr(aval, "dtype") for aval in (a, b)):  # a hijax type
        text = lambda x: guarded(lambda: array_text(x) or visible(str(x), 60), lambda _: class_name(type(x)))  # noqa: E731
        return [] if guarded(lambda: bool(a == b), lambda _: False) else [("dtype", text(a), text(b), "")]
    findings: list[Finding] = []
    if a.shape != b.shape:
        findings.append(("shape", shape_text(a.shape), shape_text(b.shape), ""))
    if a.dtype != b.dtype:
        findings.append(("dtype", str(a.dtype), str(b.dtype), ""))
    weak = [getattr(aval, "weak_type", False) for aval in (a, b)]
    if weak[0] != weak[1]:
        findings.append(("weak type", *("weakly typed" if is_weak else "not weakly typed" for is_weak in weak), ""))
    if not findings and str(a) != str(b):  # the sharding is part of the type
        findings.append(("sharding", str(a), str(b), ""))
    return findings


def _static(left: LeafType, right: LeafType, hint: str) -> Finding:
    looks_same = left.value is not None and right.value is not None and left.value[:2] == right.value[:2]
    return "static", left.text, right.text, TWO_OBJECTS if looks_same else hint


def compare_values(left: LeafType, right: LeafType) -> list[Finding]:
    return [] if left.value == right.value else [_static(left, right, _STATIC)]


def compare_places(left: LeafType, right: LeafType) -> list[Finding]:
    """The reasons why a program that was compiled for one array is compiled again for the other."""
    return [] if left.place == right.place else [("sharding", _place_text(left.place), _place_text(right.place), "")]


def _place_text(sharding: Any) -> str:
    place = None if sharding is None else describe_sharding(sharding)
    if place is None:
        return "not committed" if sharding is None else "committed"
    return f"committed to {' · '.join(dict.fromkeys(filter(None, (place.text, place.devices, place.memory))))}"


# Comparing two trees as `jax.jit` does, if only one is available and the other is known by its type.

_BUILTIN = (*MAPPINGS, list, tuple, type(None))
CompareLeaves = Callable[[LeafType, LeafType], list[Finding]]
Found = list[tuple[str, Finding]]  # (key path as `keystr` writes it, difference)


def same_structure(left: Any, right: Any) -> bool:
    """Whether two treedefs are equal; False if comparing their static data raises."""
    if not guarded(lambda: bool(left == right), lambda _: False):
        return False
    # jaxlib <= 0.10.2: treedefs of two dataclasses with equal fields are equal, although `jit` traces for each class.
    pending = [] if guarded(lambda: hash(left) == hash(right), lambda _: False) else [(left, right)]
    while pending:
        pair = pending.pop()
        data = [treedef.node_data() for treedef in pair]
        if (data[0] and data[0][0]) is not (data[1] and data[1][0]):
            return False
        pending += zip(*(treedef.children() for treedef in pair), strict=True)
    return True


def compare_types(
    tree: Any, left: JitType, right: JitType, *, is_right: bool = False, leaves: CompareLeaves = compare_leaves
) -> Found:
    """Compare two types. Keys and fields get their names from `tree`, that of `left`, or of `right` if `is_right`."""
    found: Found = []
    stack: list[tuple[str, Any, JitType, JitType]] = [("", tree, left, right)]
    while stack:
        path, node, a, b = stack.pop()
        if same_structure(a.treedef, b.treedef):
            pairs = enumerate(zip(a.leaves, b.leaves, strict=True))
            differ = [(i, findings) for i, (x, y) in pairs if x != y and (findings := leaves(x, y))]
            paths = [keys for keys, _ in tree_util.tree_flatten_with_path(node)[0]] if differ else []
            found += [(path + keystr(paths[i]), finding) for i, findings in differ for finding in findings]
        else:
            found += [(path, finding) for finding in _compare_nodes(node, a, b, is_right)]
            children = list(_aligned_children(path, node, a, b, is_right))
            found += [(at, ("missing", x.text, "", "")) for at, _, x, y in children if x and not y]
            found += [(at, ("extra", "", y.text, "")) for at, _, x, y in children if y and not x]
            stack += [child for child in reversed(children) if child[2] and child[3]]  # type: ignore[misc]
    return found


def _compare_nodes(node: Any, left: JitType, right: JitType, is_right: bool) -> list[Finding]:
    a, b = left.treedef.node_data(), right.treedef.node_data()
    if a is None or b is None or a[0] is not b[0] or a[0] is type(None):
        return [compare_kinds(a and a[0], b and b[0], (left.text, right.text), a is None or b is None)]
    if a[0] is OrderedDict and list(a[1]) != list(b[1]) and set(a[1]) == set(b[1]):
        return [("order", value_text(list(a[1]), 60), value_text(list(b[1]), 60), "")]
    if _named_children(node, left, right, is_right):
        return []
    is_mapping = a[0] in MAPPINGS
    findings = [] if is_mapping else compare_lengths(*(len(part.treedef.children()) for part in (left, right)))
    if a[0] not in _BUILTIN and not has_base(a[0], tuple):
        findings += _compare_aux(node, a[1], b[1], is_right)
    return findings


def _compare_aux(node: Any, left: Any, right: Any, is_right: bool) -> list[Finding]:
    """Compare static data field by field, with field names from the one node that is available."""
    stored = stored_items(node)
    n_of = Counter(map(id, stored.values()))
    names = {id(value): name for name, value in stored.items() if n_of[id(value)] == 1}
    a, b = _aux_values(left), _aux_values(right)
    pairs = list(zip(a, b, strict=True)) if len(a) == len(b) else []
    fields = {names[id(pair[is_right])]: pair for pair in pairs if id(pair[is_right]) in names}
    fields.update(_named_values(stored, left, right, is_right))
    stubs = (SimpleNamespace(**{name: pair[i] for name, pair in fields.items()}) for i in (0, 1))
    findings = compare_static(next(stubs), left, next(stubs), right)
    return [(kind, a, b, hint or TWO_OBJECTS * (a.partition(" = ")[2] == b)) for kind, a, b, hint in findings]


def _named_values(stored: dict[str, Any], left: Any, right: Any, is_right: bool) -> Iterator[tuple[str, tuple]]:
    """The fields of a node whose static data holds a tuple of names and a tuple of values."""
    own_aux, other_aux = (right, left) if is_right else (left, right)
    if type(own_aux) is not tuple or type(other_aux) is not tuple or len(own_aux) != len(other_aux):
        return
    for names in own_aux:
        if type(names) is not tuple or not names or not all(type(name) is str and name in stored for name in names):
            continue
        known = [stored[name] for name in names]
        for i, values in enumerate(own_aux):
            if type(values) is tuple and len(values) == len(known) and all(map(operator.is_, values, known)):
                yield from zip(names, zip(left[i], right[i], strict=False), strict=False)


def _aux_values(aux: Any) -> list[Any]:
    """The values in static data, and the items of lists and tuples among them."""
    if type(aux) is dict:
        return [*aux.values()]
    values = [*aux] if is_any(type(aux), (tuple, list)) else [aux]
    return [item for value in values for item in (value if is_any(type(value), (tuple, list)) else [value])] + values


def _named_children(node: Any, left: JitType, right: JitType, is_right: bool) -> tuple[Sequence[Any], ...]:
    """The names of both nodes' children, if their static data is a tuple of names, as in an NNX state."""
    names: list[Any] = []
    for part in (left, right):
        (cls, aux), n = part.treedef.node_data(), len(part.treedef.children())
        is_plain = not is_any(cls, _BUILTIN) and type(aux) is tuple and len(aux) == n
        if not is_plain or not all(type(name) is str for name in aux):
            return ()
        names.append(aux)
    own = [getattr(key, "key", None) for (key,), _ in one_level(node)[0]]
    return tuple(names) if own and own == [*names[is_right]] else ()


def _aligned_children(
    path: str, node: Any, left: JitType, right: JitType, is_right: bool
) -> Iterator[tuple[str, Any, JitType | None, JitType | None]]:
    """The pairs of children, matched by key; nothing if the nodes are of different kinds."""
    a, b = left.treedef.node_data(), right.treedef.node_data()
    if a is None or b is None or is_any(type(None), (a[0], b[0])):
        return
    is_mapping, are_sequences = (is_any(a[0], kind) and is_any(b[0], kind) for kind in (MAPPINGS, (list, tuple)))
    if a[0] is not b[0] and not is_mapping and not are_sequences:
        return
    node_part, other_part, data = (right, left, a) if is_right else (left, right, b)
    other_children: list[JitType | None] = list(other_part.children())
    named = () if is_mapping or a[0] is not b[0] else _named_children(node, left, right, is_right)
    keys = mapping_keys(data) if is_mapping else named[not is_right] if named else range(len(other_children))
    is_mapping |= bool(named)
    unmatched: dict[Any, Any] = dict(zip(keys, other_children, strict=True))
    for i, (((key,), child), part) in enumerate(zip(one_level(node)[0], node_part.children(), strict=True)):
        match = unmatched.pop(key.key if is_mapping else i, None)
        a, b = (match, part) if is_right else (part, match)
        yield path + keystr((key,)), child, a, b
    for key, part in unmatched.items():
        last = tree_util.DictKey(key) if is_mapping else tree_util.SequenceKey(key)
        a, b = (part, None) if is_right else (None, part)
        yield path + keystr((last,)), None, a, b


def mapping_keys(data: tuple[type, Any]) -> Sequence[Any]:
    """The keys of a mapping's treedef node, in the order of its children."""
    return data[1][1] if data[0] is defaultdict else data[1]
