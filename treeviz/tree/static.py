"""Static data: values that a node keeps in the treedef, which no JAX transformation sees."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from treeviz.tree.aux_data import DROPPED, Fields, static_of
from treeviz.tree.describers import describer_of
from treeviz.tree.facts import Note
from treeviz.tree.inside import hidden, stopped
from treeviz.tree.keys import MISSING, KeyTable, stored_attribute, stored_attributes
from treeviz.tree.level import Level
from treeviz.tree.object_text import static_text
from treeviz.tree.opaque import arrays_in, step_to
from treeviz.tree.safe_repr import class_attribute, has_base, visible

LOST = "which JAX loses"  # in the note of an array in a field that `tree_flatten` drops
_MAX_FIELDS = 64
_MAX_OBJECTS = 2_000  # that are searched for arrays in the static data of one node


Texts = tuple[tuple[str, str], ...]


class StaticFields:
    """Writes static fields as text, once per walk for all nodes that share them."""

    def __init__(self) -> None:
        self._fields: dict[int, dict[str, None]] = {}  # by the id of the class
        self._shapes: dict[tuple, Fields] = {}  # by the id of the class and the keys of children
        self._texts: dict[tuple, tuple[Texts, Note | None]] = {}  # by names and the ids of values
        self._kept: list[Any] = []  # so that no id is reused
        self.notes: list[Note] = []  # of the node described last

    def fields(self, cls: type, level: Level, keys: KeyTable) -> Fields | None:
        """The fields of any library's dataclass, or of a named tuple, that no key of a child names.

        The same object for the same class and keys. None: the class has no fields.
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
            nothing = aux is None or (type(aux) is tuple and not aux)
            return () if nothing else self.of_pairs([("aux", aux)])
        values = stored_values(node, fields.names)
        return self.of_pairs(static_of(node, fields, values, level.children, level.aux))

    def of_pairs(self, pairs: Iterable[tuple[str, Any]], is_leaf: bool = False) -> Texts:
        """The pairs, bounded and printable; arrays in a node's are noted."""
        pairs = list(pairs)[:_MAX_FIELDS]
        if not pairs:
            return ()
        cache_key = (*map(str.__str__, [name for name, _ in pairs]), *sameness([value for _, value in pairs]))
        known = self._texts.get(cache_key)
        if known is None:
            texts = tuple(
                (visible(name, 80), "(not set)" if value is MISSING else static_text(value)) for name, value in pairs
            )
            known = self._texts[cache_key] = texts, static_note(pairs)
            self._kept.append(pairs)
        texts, note = known
        if note is not None and not is_leaf and note not in self.notes:
            self.notes.append(note)
        return texts


def static_note(pairs: Iterable[tuple[str, Any]], where: str = "static data") -> Note | None:
    """The arrays in named static values: they are constants of what is compiled, and change without JAX.

    Only if there are none, those in dropped fields.
    """
    pairs = list(pairs)
    found = arrays_in(((step_to(name), value) for name, value in pairs if not name.endswith(DROPPED)), _MAX_OBJECTS)
    if not found.n_arrays:
        lost = ((step_to(name.removesuffix(DROPPED)), value) for name, value in pairs if name.endswith(DROPPED))
        found = arrays_in(lost, _MAX_OBJECTS)
        text = f"{hidden(found)}, {LOST}: `tree_flatten` drops {'it' if found.n_arrays == 1 else 'them'}"
        return Note("hidden", text + stopped(found), details=found.details) if found.n_arrays else None
    they = "it changes" if found.n_arrays == 1 else "they change"
    text = f"{hidden(found)} in {where}: jit raises or compiles again when {they}"
    return Note("hidden", text + stopped(found), details=found.details)


def stored_values(node: Any, names: Collection[str]) -> list[Any]:
    stored = stored_attributes(node)
    return [stored[name] if name in stored else stored_attribute(node, name) for name in names]


def sameness(values: list[Any]) -> list[Any]:
    """A key that two lists of values share only if their texts are equal.

    Two entries for each value. User-defined classes are compared by identity, so none of their code runs.
    """
    same: list[Any] = []
    add = same.append
    for value in values:
        cls = type(value)
        if cls is int or cls is str:
            add(cls)
            add(value)
        elif cls is float:
            add(cls)
            add(value.hex())  # distinguishes -0.0 from 0.0, and is equal for all NaN
        elif cls is tuple and len(value) < 8 and all(type(inner) is int for inner in value):
            add(cls)
            add(value)
        else:
            add(None)
            add(id(value))
    return same


def _field_names(cls: type) -> list[str]:
    fields = class_attribute(cls, "__dataclass_fields__")
    if type(fields) is dict:
        return [str(name) for name, field in fields.items() if field._field_type.name == "_FIELD"]
    names = getattr(cls, "_fields", ()) if has_base(cls, tuple) else ()
    return [str(name) for name in names] if type(names) is tuple else []
