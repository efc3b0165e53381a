"""Static data: values that a node keeps in the treedef, which no JAX transformation sees."""

from __future__ import annotations

import types
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from treeviz.tree.describers import describer_of
from treeviz.tree.facts import Note
from treeviz.tree.keys import MISSING, KeyTable, is_interned, stored_attribute, stored_attributes, stored_items
from treeviz.tree.level import Level, one_level
from treeviz.tree.opaque import arrays_in, hidden, static_text, step_to, stopped
from treeviz.tree.text import class_attribute, guarded, has_base, mro, value_text, visible

# Name the parts of a node's auxiliary data after the fields that hold them, by identity

DROPPED = " (dropped)"
_MAX_PARTS = 1000


class Fields(NamedTuple):
    """The fields of a dataclass or named tuple that no key of a child names."""

    names: tuple[str, ...]
    unnamed: tuple[int, ...]  # the positions of the children whose keys name no field
    all: frozenset[str]  # all fields of the class
    is_known: bool  # a file about a library describes the class: its fields are children or static


def static_of(node: Any, fields: Fields, values: Sequence[Any], children: Sequence[Any], aux: Any) -> list:
    """(name, value) of the fields in the auxiliary data, and of its other parts.

    Marks fields that are neither there nor children as dropped, and omits those for which this is uncertain.
    """
    unnamed = {id(children[i]): children[i] for i in fields.unnamed}
    unclaimed = {name: value for name, value in zip(fields.names, values, strict=True) if id(value) not in unnamed}
    parts = _parts(aux, unclaimed.values())
    parts = [(path, part) for path, part in parts if type(part) is not str or part not in fields.all]
    n_fields, n_parts = _counts(unclaimed.values()), _counts(part for _, part in parts)
    is_explained = n_parts.keys() <= n_fields.keys()
    if fields.is_known and not is_explained:
        return list(unclaimed.items())
    doubtful = [name for name, value in unclaimed.items() if 0 < n_parts.get(id(value), 0) < n_fields[id(value)]]
    lost = _lost(node, doubtful) if doubtful and is_explained and not unnamed else set(doubtful)
    classes = {id(type(child)): type(child) for child in unnamed.values()}.values()
    are_children_known = unnamed.keys() <= set(map(id, values)) and not any(map(is_interned, classes))
    static, named = [], set()
    for name, value in unclaimed.items():
        if id(value) in n_parts and name not in lost and (is_explained or not is_interned(type(value))):
            static.append((name, value))
            named.add(id(value))
        elif aux is None and value is None:  # the auxiliary data may be this value
            continue
        elif is_explained and are_children_known and (name not in doubtful or lost < set(doubtful)):
            static.append((name + DROPPED, value))
    others = [(path, part) for path, part in parts if id(part) not in named]
    return [*static, *(_of_aux(aux) if not named and others else others)]


def _of_aux(aux: Any) -> list[tuple[str, Any]]:
    """The public items of a mapping of names, as of simple_pytree and NetKet; else the auxiliary data as a whole."""
    if type(aux) is types.MappingProxyType and all(type(name) is str for name in aux):
        return [(name, value) for name, value in aux.items() if not name.startswith("_")]
    return [("aux", aux)]


def _counts(values: Iterable[Any]) -> dict[int, int]:
    """The number of occurrences of each object, by id. For a few fields, a `Counter` takes five times as long."""
    counts: dict[int, int] = {}
    for value in values:
        counts[id(value)] = counts.get(id(value), 0) + 1
    return counts


def _parts(aux: Any, values: Collection[Any]) -> list[tuple[str, Any]]:
    """("aux[0]", value) of the parts of auxiliary data: the items of a container, or the attributes of an object."""
    if aux is None:
        return []
    if any(value is aux for value in values):
        return [("aux", aux)]
    items = _items("aux", aux)
    if items is not None:
        return items
    parts: list[tuple[str, Any]] = []
    for name, value in stored_items(aux).items():
        inside = _items(f"aux.{name}", value)
        parts += [(f"aux.{name}", value)] if inside is None else inside
    return parts[:_MAX_PARTS] or [("aux", aux)]


def _items(prefix: str, container: Any) -> list[tuple[str, Any]] | None:
    if type(container) is tuple or type(container) is list:
        return [(f"{prefix}[{i}]", item) for i, item in enumerate(islice(container, _MAX_PARTS))]
    if type(container) is dict:
        items = islice(container.copy().items(), _MAX_PARTS)
        return [(f"{prefix}[{value_text(key, 40)}]", item) for key, item in items]
    return None


def _lost(node: Any, names: list[str]) -> set[str]:
    """The fields that are not in the auxiliary data, among fields that share one object which is.

    Flattens a copy of the node in which each of these fields holds an object of its own. All of them if that fails.
    """
    marks = {name: object() for name in names}

    def find_lost() -> set[str]:
        cls = type(node)
        if any("__del__" in base.__dict__ for base in mro(cls)):
            return set(names)
        twin = object.__new__(cls)
        for name, value in {**stored_items(node), **marks}.items():
            object.__setattr__(twin, name, value)
        data = one_level(twin)[1]
        parts = [part for _, part in _parts(data and data[1], ())]
        return {name for name in names if not any(part is marks[name] for part in parts)}

    return guarded(find_lost, lambda _: set(names))


LOST = "which JAX loses"  # in the note of an array in a field that `tree_flatten` drops
_MAX_FIELDS = 64
_MAX_OBJECTS = 2_000  # searched for arrays in the static data of one node


Texts = tuple[tuple[str, str], ...]


class StaticFields:
    """Writes static fields as text, once per walk for nodes that share them."""

    def __init__(self) -> None:
        self._fields: dict[int, dict[str, None]] = {}  # by the id of the class
        self._shapes: dict[tuple, Fields] = {}  # by the id of the class and the keys of children
        self._texts: dict[tuple, tuple[Texts, Note | None]] = {}  # by names and the ids of values
        self._kept: list[Any] = []  # keeps the objects alive, so that no id is reused
        self.notes: list[Note] = []  # on the node described last

    def fields(self, cls: type, level: Level, keys: KeyTable) -> Fields | None:
        """The fields of a dataclass or named tuple that no key of a child names; None for a class without fields.

        Returns the same object for the same class and keys.
        """
        names = self._fields.get(id(cls))
        if names is None:
            names = self._fields[id(cls)] = dict.fromkeys(_field_names(cls))
            self._kept.append(cls)
        if not names:
            return None
        shape = (id(cls), *(level.keys or ()))
        fields = self._shapes.get(shape)
        if fields is None:
            segments = [keys.keys[code].segment for code in level.keys or ()]
            unnamed, named = tuple(i for i, segment in enumerate(segments) if segment not in names), set(segments)
            others = tuple(name for name in names if name not in named)
            fields = self._shapes[shape] = Fields(others, unnamed, frozenset(names), describer_of(cls) is not None)
        return fields

    def of_node(self, node: Any, level: Level, fields: Fields | None) -> Texts:
        """(name, value) of the static fields of a registered node.

        For a class without fields: the auxiliary data that its flatten function returned.
        """
        if fields is None:
            aux = level.aux
            is_empty = aux is None or (type(aux) is tuple and not aux)
            return () if is_empty else self.of_pairs(_of_aux(aux))
        values = stored_values(node, fields.names)
        return self.of_pairs(static_of(node, fields, values, level.children, level.aux))

    def of_pairs(self, pairs: Iterable[tuple[str, Any]], is_leaf: bool = False) -> Texts:
        """The pairs as bounded, printable text. Arrays in the static data of a node are noted."""
        pairs = list(pairs)[:_MAX_FIELDS]
        if not pairs:
            return ()
        same = sameness([value for _, value in pairs])
        cache_key = (*map(str.__str__, [name for name, _ in pairs]), *same)
        known = self._texts.get(cache_key)
        if known is None:
            texts = tuple(
                (visible(name, 80), "(not set)" if value is MISSING else static_text(value)) for name, value in pairs
            )
            known = self._texts[cache_key] = texts, static_note(pairs) if None in same[::2] else None
            self._kept.append(pairs)
        texts, note = known
        if note is not None and not is_leaf and note not in self.notes:
            self.notes.append(note)
        return texts


def static_note(pairs: Iterable[tuple[str, Any]], where: str = "static data") -> Note | None:
    """A note on arrays in static values: they are constants of compiled programs, and JAX does not see them change.

    If there are none, a note on arrays in dropped fields.
    """
    pairs = list(pairs)
    found = arrays_in(((step_to(name), value) for name, value in pairs if not name.endswith(DROPPED)), _MAX_OBJECTS)
    when = "it changes" if found.n_arrays == 1 else "they change"
    text = f"{hidden(found)} in {where}: jit raises or compiles again when {when}"
    if not found.n_arrays:
        lost = ((step_to(name.removesuffix(DROPPED)), value) for name, value in pairs if name.endswith(DROPPED))
        found = arrays_in(lost, _MAX_OBJECTS)
        text = f"{hidden(found)}, {LOST}: `tree_flatten` drops {'it' if found.n_arrays == 1 else 'them'}"
    return Note("hidden", text + stopped(found), details=found.details) if found.n_arrays else None


def stored_values(node: Any, names: Collection[str]) -> list[Any]:
    stored = stored_attributes(node)
    return [stored[name] if name in stored else stored_attribute(node, name) for name in names]


def sameness(values: list[Any]) -> list[Any]:
    """A key that two lists of values share only if their texts are equal.

    Two entries for each value. User-defined classes are compared by identity, so none of their code runs.
    """
    same: list[Any] = []
    for value in values:
        cls = type(value)
        if cls is int or cls is str or cls is bool or value is None:
            same += (cls, value)
        elif cls is float:
            same += (cls, value.hex())  # distinguishes -0.0 from 0.0, and is equal for all NaN
        elif cls is tuple and len(value) < 8 and all(type(inner) is int for inner in value):
            same += (cls, value)
        else:
            same += (None, id(value))
    return same


def _field_names(cls: type) -> list[str]:
    fields = class_attribute(cls, "__dataclass_fields__")
    if type(fields) is dict:
        return [str(name) for name, field in fields.items() if field._field_type.name == "_FIELD"]
    names = getattr(cls, "_fields", ()) if has_base(cls, tuple) else ()
    return [str(name) for name in names] if type(names) is tuple else []
