"""Static data: what a node keeps in the treedef, where no transformation sees it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from treeviz.tree.functions import is_function
from treeviz.tree.keys import MISSING, KeyTable, stored_attribute, stored_attributes
from treeviz.tree.level import Level
from treeviz.tree.opaque import arrays_inside
from treeviz.tree.quote import VALUE_LIMIT, function_name, guarded, mro, plain_repr, qualified_name, value_text, visible

_MAX_FIELDS = 64


Texts = tuple[tuple[str, str], ...]


class StaticFields:
    """Writes static fields down. What many nodes have in common is written once in a walk."""

    def __init__(self) -> None:
        self._fields: dict[int, list[str]] = {}  # by the id of the class
        self._names: dict[tuple, tuple[str, ...] | None] = {}  # by the id of the class and the keys of children
        self._texts: dict[tuple, Texts] = {}  # by names and the ids of values
        self._kept: list[Any] = []  # so that no id is used again

    def names(self, cls: type, level: Level, keys: KeyTable) -> tuple[str, ...] | None:
        """The fields of a dataclass that are not children, whatever library made it one.

        Always the same tuple for the same class and children. None: the class is no dataclass.
        """
        shape = (id(cls), *(level.keys or ()))
        if shape in self._names:
            return self._names[shape]
        fields = self._fields.get(id(cls))
        if fields is None:
            fields = self._fields[id(cls)] = _field_names(cls)
            self._kept.append(cls)
        children = {keys.keys[code].segment for code in level.keys or ()}
        names = self._names[shape] = tuple([name for name in fields if name not in children]) if fields else None
        return names

    def of_node(self, node: Any, aux: Any, names: tuple[str, ...] | None) -> Texts:
        """(name, value) of the static fields of a registered node.

        Of a class that is no dataclass what its flatten function returned as auxiliary data.
        """
        if names is None:
            nothing = aux is None or (type(aux) is tuple and not aux)
            return () if nothing else (("aux", static_text(aux)),)
        values = dict(zip(names, stored_values(node, names), strict=True))
        dropped = _dropped(values, aux)
        return self.of_pairs([(f"{name} (dropped)" if name in dropped else name, values[name]) for name in names])

    def of_pairs(self, pairs: Iterable[tuple[str, Any]]) -> Texts:
        """The pairs, bounded and printable."""
        pairs = list(pairs)[:_MAX_FIELDS]
        if not pairs:
            return ()
        look = (*map(str.__str__, [name for name, _ in pairs]), *sameness([value for _, value in pairs]))
        texts = self._texts.get(look)
        if texts is None:
            texts = self._texts[look] = tuple(
                (visible(name, 80), "(not set)" if value is MISSING else static_text(value)) for name, value in pairs
            )
            self._kept.append(pairs)
        return texts


def stored_values(node: Any, names: Collection[str]) -> list[Any]:
    stored = stored_attributes(node)
    return [stored[name] if name in stored else stored_attribute(node, name) for name in names]


def sameness(values: list[Any]) -> list[Any]:
    """What two lists of values have in common if the same texts are right for both.

    Two entries for each value: no class of somebody else is asked whether values are equal.
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
            add(value.hex())  # tells -0.0 from 0.0, and is the same for every NaN
        elif cls is tuple and len(value) < 8 and all(type(inner) is int for inner in value):
            add(cls)
            add(value)
        else:
            add(None)
            add(id(value))
    return same


def static_text(value: Any) -> str:
    """Like `value_text`; a class's own `repr` is used if it has one and no array hangs off the object."""
    cls = type(value)
    if value is None or cls is bool or cls is int or cls is str or cls is float or cls is tuple:
        return value_text(value)
    text = function_name(value) if is_function(cls) else value_text(value)
    if text != f"<{qualified_name(cls)}>" or arrays_inside(value):
        return text
    own_repr = next(base for base in mro(cls) if "__repr__" in base.__dict__)
    return text if own_repr is object else guarded(lambda: plain_repr(value, VALUE_LIMIT), lambda _: text)


def _field_names(cls: type) -> list[str]:
    for base in mro(cls):
        fields = base.__dict__.get("__dataclass_fields__")
        if type(fields) is dict:
            return [str(name) for name, field in fields.items() if field._field_type.name == "_FIELD"]
    return []


def _dropped(values: dict[str, Any], aux: Any) -> set[str]:
    """The `drop_fields` of `register_dataclass`: neither child nor metadata, lost when it is unflattened.

    JAX does not tell their names, but its aux is the tuple of the metadata themselves.
    """
    if type(aux) is not tuple or len(aux) >= len(values):
        return set()
    kept = {id(value) for value in aux}
    dropped = {name for name, value in values.items() if id(value) not in kept}
    return dropped if kept <= {id(value) for value in values.values()} else set()
