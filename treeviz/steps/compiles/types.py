"""What `jax.jit` knows of a tree: its treedef, and the type and the place of each leaf."""

from __future__ import annotations

import operator
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
from jax import api_util, tree_util

from treeviz.analysis.compare.aligned import MAPPINGS, Finding, compare_classes, compare_static
from treeviz.analysis.facts import shape_text
from treeviz.tree.keys import stored_items
from treeviz.tree.leaves import describe_sharding
from treeviz.tree.level import one_level
from treeviz.tree.text import array_text, class_name, guarded, has_base, value_text, visible

_abstract = getattr(api_util, "shaped_abstractify", None) or jax.typeof

_NUMBERS = (bool, int, float, complex)
_STATIC = "a static argument"
TWO_OBJECTS = "they look alike, but are two objects: create it once"


class LeafType(NamedTuple):
    """What a program is traced and compiled for, of one leaf.

    Attributes:
      aval: Its shape, dtype and weak type; None for what is no array, and so a static argument.
      place: The sharding of a committed array; None for any other.
      value: What tells a Python value apart: its class, its text, and its hash or identity; None for an array.
    """

    aval: Any
    place: Any = None
    value: tuple[type, str, Any] | None = None

    @property
    def text(self) -> str:
        """ "float32[3]", "int 2", "str 'adam'"."""
        return self.value_text or array_text(self.aval) or str(self.aval)

    @property
    def value_text(self) -> str:
        """ "str 'adam'"."""
        return f"{class_name(self.value[0])} {self.value[1]}" if self.value else ""


class JitType(NamedTuple):
    """What `jax.jit` knows of a tree."""

    treedef: Any
    leaves: Sequence[LeafType]


def jit_type(tree: Any, static_numbers: bool = False) -> JitType:
    """Reads no value of an array, and keeps none alive.

    Args:
      static_numbers: Also Python numbers are static arguments.
    """
    leaves, treedef = tree_util.tree_flatten(tree)
    return JitType(treedef, [leaf_type(leaf, static_numbers) for leaf in leaves])


def leaf_type(leaf: Any, static_numbers: bool = False) -> LeafType:
    aval = None if static_numbers and type(leaf) in _NUMBERS else guarded(lambda: _abstract(leaf), lambda _: None)
    if hasattr(leaf, "dtype") and aval is not None:
        return LeafType(aval, guarded(lambda: leaf.sharding, lambda _: None) if is_committed(leaf) else None)
    return LeafType(aval, None, (type(leaf), value_text(leaf, 60), guarded(lambda: hash(leaf), lambda _: id(leaf))))


def is_committed(leaf: Any) -> bool:
    """Whether a leaf is an array that lies where the user put it, so that a program has to follow."""
    return isinstance(leaf, jax.Array) and guarded(lambda: bool(leaf.committed), lambda _: False)


def compare_leaves(mine: LeafType, other: LeafType) -> list[Finding]:
    """Why a program that was traced for one leaf is traced again for the other."""
    a, b = mine.aval, other.aval
    if a is None or b is None:
        return (
            []
            if a is b and mine.value == other.value
            else [("static", mine.text, other.text, _twice_made(mine, other) or _static_number(mine, other))]
        )
    if not all(hasattr(each, "shape") and hasattr(each, "dtype") for each in (a, b)):  # of a hijax type
        is_same = guarded(lambda: bool(a == b), lambda _: False)
        return [] if is_same else [("dtype", _aval_text(a), _aval_text(b), "")]
    found: list[Finding] = []
    if a.shape != b.shape:
        found.append(("shape", shape_text(a.shape), shape_text(b.shape), ""))
    if a.dtype != b.dtype:
        found.append(("dtype", str(a.dtype), str(b.dtype), ""))
    weak = [getattr(each, "weak_type", False) for each in (a, b)]
    if weak[0] != weak[1]:
        found.append(("weak type", *("weakly typed" if each else "not weakly typed" for each in weak), ""))
    if not found and str(a) != str(b):  # a sharding that is part of the type
        found.append(("sharding", str(a), str(b), ""))
    return found


def _aval_text(aval: Any) -> str:
    return guarded(lambda: array_text(aval) or visible(str(aval), 60), lambda _: class_name(type(aval)))


def _twice_made(mine: LeafType, other: LeafType) -> str:
    is_alike = mine.value is not None and other.value is not None and mine.value[:2] == other.value[:2]
    return TWO_OBJECTS if is_alike else ""


def _static_number(*sides: LeafType) -> str:
    is_one = any(each.aval is None and each.value is not None and each.value[0] in _NUMBERS for each in sides)
    return _STATIC if is_one else ""


def compare_values(left: LeafType, right: LeafType) -> list[Finding]:
    """How two arguments differ that a program was traced for, other than in their types: their values are static."""
    if left.value == right.value:
        return []
    return [("static", left.text, right.text, _twice_made(left, right) or _STATIC)]


def compare_places(left: LeafType, right: LeafType) -> list[Finding]:
    """Why a program that was compiled for one array is compiled again for the other."""
    a, b = left.place, right.place
    return [] if a == b else [("sharding", *(_place_text(each) for each in (a, b)), "")]


def _place_text(sharding: Any) -> str:
    place = None if sharding is None else describe_sharding(sharding)
    if place is None:
        return "not committed" if sharding is None else "committed"
    return f"committed to {' · '.join(dict.fromkeys(filter(None, (place.text, place.devices, place.memory))))}"


# How two trees differ for `jax.jit`: one that is there, and one of which only the treedef and its leaves are known.

_BUILTIN = (*MAPPINGS, list, tuple, type(None))
CompareLeaves = Callable[[LeafType, LeafType], list[Finding]]
Found = list[tuple[str, Finding]]  # key paths as `keystr` writes them, and what differs there


def same_structure(mine: Any, other: Any) -> bool:
    """Whether two treedefs are equal; not if comparing their static data raises."""
    if not guarded(lambda: bool(mine == other), lambda _: False):
        return False
    # Nodes of two dataclasses with equal fields are equal to jaxlib <= 0.10.2, which `jit` traces for each of them.
    return guarded(lambda: hash(mine) == hash(other), lambda _: False) or _have_same_classes(mine, other)


def _have_same_classes(mine: Any, other: Any) -> bool:
    waiting = [(mine, other)]
    while waiting:
        pair = waiting.pop()
        data = [each.node_data() for each in pair]
        if (data[0] and data[0][0]) is not (data[1] and data[1][0]):
            return False
        waiting += zip(*(each.children() for each in pair), strict=True)
    return True


class Part(NamedTuple):
    """A treedef, and the leaves of its tree."""

    treedef: Any
    leaves: Sequence[LeafType]

    def children(self) -> list[Part]:
        below = self.treedef.children()
        ends = list(accumulate(child.num_leaves for child in below))
        return [Part(child, self.leaves[end - child.num_leaves : end]) for child, end in zip(below, ends, strict=True)]

    @property
    def text(self) -> str:
        data = self.treedef.node_data()
        if data is None:
            return self.leaves[0].text
        n = len(self.leaves)
        return "None" if data[0] is type(None) else f"{class_name(data[0])} · {n:,} {'leaf' if n == 1 else 'leaves'}"


def compare_types(
    tree: Any, left: JitType, right: JitType, *, is_right: bool = False, leaves: CompareLeaves = compare_leaves
) -> Found:
    """Compare a tree with what was or will be in its place. Unflattens nothing.

    Args:
      tree: The tree of `left`, or of `right` if `is_right`: it gives the names of keys and fields.
    """
    found: Found = []
    stack: list[tuple[str, Any, Part, Part]] = [("", tree, Part(*left), Part(*right))]
    while stack:
        path, node, a, b = stack.pop()
        if same_structure(a.treedef, b.treedef):
            found += _compare_all_leaves(path, node, a, b, leaves)
        else:
            found += [(path, finding) for finding in _compare_nodes(node, a, b, is_right)]
            below = list(_aligned(path, node, a, b, is_right))
            found += [(where, ("missing", x.text, "", "")) for where, _, x, y in below if x and not y]
            found += [(where, ("extra", "", y.text, "")) for where, _, x, y in below if y and not x]
            stack += [each for each in reversed(below) if each[2] and each[3]]  # type: ignore[misc]
    return found


def _compare_all_leaves(path: str, tree: Any, left: Part, right: Part, compare: CompareLeaves) -> Found:
    pairs = enumerate(zip(left.leaves, right.leaves, strict=True))
    differ = [(i, findings) for i, (a, b) in pairs if a != b and (findings := compare(a, b))]
    if not differ:
        return []
    paths = [keys for keys, _ in tree_util.tree_flatten_with_path(tree)[0]]
    return [(path + tree_util.keystr(paths[i]), finding) for i, findings in differ for finding in findings]


def _compare_nodes(node: Any, left: Part, right: Part, is_right: bool) -> list[Finding]:
    a, b = left.treedef.node_data(), right.treedef.node_data()
    if type(None) in (a and a[0], b and b[0]):
        return [("none", left.text, right.text, "")]
    if a is None or b is None:
        return [("leaf", left.text, right.text, "")]
    if a[0] is not b[0]:
        kind, *classes, hint = compare_classes(a[0], b[0])
        return [(kind, *(classes if hint else (left.text, right.text)), hint)]
    if a[0] is OrderedDict and list(a[1]) != list(b[1]) and set(a[1]) == set(b[1]):
        return [("order", value_text(list(a[1]), 60), value_text(list(b[1]), 60), "")]
    if _named_children(node, left, right, is_right):
        return []
    found: list[Finding] = []
    n = [len(each.treedef.children()) for each in (left, right)]
    if n[0] != n[1] and a[0] not in MAPPINGS:
        found.append(("length", *(f"{k} {'child' if k == 1 else 'children'}" for k in n), ""))
    if a[0] not in _BUILTIN and not has_base(a[0], tuple):
        found += _compare_aux(node, a[1], b[1], is_right)
    return found


def _compare_aux(node: Any, left: Any, right: Any, is_right: bool) -> list[Finding]:
    """Compare static data field by field, though only one of the nodes is there."""
    stored = stored_items(node)
    n_of = Counter(map(id, stored.values()))
    names = {id(value): name for name, value in stored.items() if n_of[id(value)] == 1}
    a, b = _values(left), _values(right)
    pairs = list(zip(a, b, strict=True)) if len(a) == len(b) else []
    fields = {names[id(pair[is_right])]: pair for pair in pairs if id(pair[is_right]) in names}
    fields.update(_beside_names(stored, left, right, is_right))
    stubs = (SimpleNamespace(**{name: pair[i] for name, pair in fields.items()}) for i in (0, 1))
    return [_with_hint(*finding) for finding in compare_static(next(stubs), left, next(stubs), right)]


def _beside_names(stored: dict[str, Any], left: Any, right: Any, is_right: bool) -> Iterator[tuple[str, tuple]]:
    """The fields of a node whose static data is a tuple of their names and, beside it, one of their values."""
    own, other = (right, left) if is_right else (left, right)
    if type(own) is not tuple or type(other) is not tuple or len(own) != len(other):
        return
    for names in own:
        if type(names) is not tuple or not names or not all(type(name) is str and name in stored for name in names):
            continue
        held = [stored[name] for name in names]
        for i, values in enumerate(own):
            if type(values) is tuple and len(values) == len(held) and all(map(operator.is_, values, held)):
                yield from zip(names, zip(left[i], right[i], strict=False), strict=False)


def _with_hint(kind: str, left: str, right: str, hint: str) -> Finding:
    return kind, left, right, hint or (TWO_OBJECTS if left.partition(" = ")[2] == right else "")


def _values(aux: Any) -> list[Any]:
    """The values in static data, one level deep, and of tuples in it, too."""
    if type(aux) is dict:
        return [*aux.values()]
    values = [*aux] if type(aux) in (tuple, list) else [aux]
    return [each for value in values for each in (value if type(value) in (tuple, list) else [value])] + values


def _named_children(node: Any, left: Part, right: Part, is_right: bool) -> tuple[Sequence[Any], ...]:
    """The names of the children of both nodes where their static data is a tuple of these, as in a state of NNX."""
    names: list[Any] = []
    for part in (left, right):
        (cls, aux), n = part.treedef.node_data(), len(part.treedef.children())
        if cls in _BUILTIN or type(aux) is not tuple or len(aux) != n or not all(type(name) is str for name in aux):
            return ()
        names.append(aux)
    own = [getattr(key, "key", None) for (key,), _ in one_level(node)[0]]
    return tuple(names) if own and own == [*names[is_right]] else ()


def _aligned(
    path: str, node: Any, left: Part, right: Part, is_right: bool
) -> Iterator[tuple[str, Any, Part | None, Part | None]]:
    """The children of both that are compared, by key; nothing where the nodes are something else."""
    a, b = left.treedef.node_data(), right.treedef.node_data()
    if a is None or b is None or type(None) in (a[0], b[0]):
        return
    is_mapping = a[0] in MAPPINGS and b[0] in MAPPINGS
    if a[0] is not b[0] and not is_mapping and not (a[0] in (list, tuple) and b[0] in (list, tuple)):
        return
    mine, other, data = (right, left, a) if is_right else (left, right, b)
    others: list[Part | None] = list(other.children())
    named = () if is_mapping or a[0] is not b[0] else _named_children(node, left, right, is_right)
    keys = mapping_keys(data) if is_mapping else named[not is_right] if named else range(len(others))
    is_mapping |= bool(named)
    theirs: dict[Any, Any] = dict(zip(keys, others, strict=True))
    for i, (((key,), child), part) in enumerate(zip(one_level(node)[0], mine.children(), strict=True)):
        found = theirs.pop(key.key if is_mapping else i, None)
        a, b = (found, part) if is_right else (part, found)
        yield path + tree_util.keystr((key,)), child, a, b
    for key, part in theirs.items():
        last = tree_util.DictKey(key) if is_mapping else tree_util.SequenceKey(key)
        a, b = (part, None) if is_right else (None, part)
        yield path + tree_util.keystr((last,)), None, a, b


def mapping_keys(data: tuple[type, Any]) -> Sequence[Any]:
    """The keys of a treedef's node, in the order of its children."""
    return data[1][1] if data[0] is defaultdict else data[1]
