"""Compare two nodes one level deep, as `jax.tree.map` does: their types, keys, static data and number of children."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple

from jax.tree_util import DictKey, SequenceKey, keystr

from treeviz.analysis.compare.inside import Part, parts_that_differ
from treeviz.tree.attributes import stored_items
from treeviz.tree.level import one_level
from treeviz.tree.safe_repr import array_text, class_name, error_text, guarded, module_name, value_text

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
