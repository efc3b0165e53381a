"""Static data: what a node keeps in the treedef, where no transformation sees it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from treeviz.tree.functions import is_function
from treeviz.tree.keys import MISSING, stored_attribute
from treeviz.tree.opaque import arrays_inside
from treeviz.tree.quote import VALUE_LIMIT, function_name, guarded, mro, plain_repr, qualified_name, value_text, visible

_MAX_FIELDS = 64


Texts = tuple[tuple[str, str], ...]


class StaticFields:
    """Writes static fields down. What many nodes have in common is written once in a walk."""

    def __init__(self) -> None:
        self._names: dict[int, list[str]] = {}  # by the id of the class
        self._texts: dict[tuple, Texts] = {}  # by names and the ids of values
        self._kept: list[Any] = []  # so that no id is used again

    def of_node(self, node: Any, aux: Any, children: Collection[str]) -> Texts:
        """(name, value) of the static fields of a registered node.

        The fields of a dataclass that are not children, whatever library made it one; of any other
        class what its flatten function returned as auxiliary data.
        """
        cls = type(node)
        fields = self._names.get(id(cls))
        if fields is None:
            fields = self._names[id(cls)] = _field_names(cls)
            self._kept.append(cls)
        names = [name for name in fields if name not in children]
        if not names:
            nothing = aux is None or (type(aux) is tuple and not aux)
            return () if nothing or fields else (("aux", static_text(aux)),)
        stored = guarded(lambda: object.__getattribute__(node, "__dict__"), lambda _: None)
        stored = stored if type(stored) is dict else {}
        values = {name: stored[name] if name in stored else stored_attribute(node, name) for name in names}
        dropped = _dropped(values, aux)
        return self.of_pairs([(f"{name} (dropped)" if name in dropped else name, values[name]) for name in names])

    def of_pairs(self, pairs: Iterable[tuple[str, Any]]) -> Texts:
        """The pairs, bounded and printable."""
        pairs = list(pairs)[:_MAX_FIELDS]
        if not pairs:
            return ()
        look = tuple([(str.__str__(name), *_sameness(value)) for name, value in pairs])
        texts = self._texts.get(look)
        if texts is None:
            texts = self._texts[look] = tuple(
                (visible(name, 80), "(not set)" if value is MISSING else static_text(value)) for name, value in pairs
            )
            self._kept.append(pairs)
        return texts


def _sameness(value: Any) -> tuple[str, Any]:
    """What two values have in common if one text is right for both."""
    cls = type(value)
    if cls is int or cls is str:
        return cls.__name__, value
    if cls is tuple and len(value) < 8 and all(type(inner) is int for inner in value):
        return "shape", value
    return "id", id(value)


def static_text(value: Any) -> str:
    """Like `value_text`; a class's own `repr` is used if it has one and no array hangs off the object."""
    text = function_name(value) if is_function(type(value)) else value_text(value)
    if text != f"<{qualified_name(type(value))}>" or arrays_inside(value):
        return text
    own_repr = next(base for base in mro(type(value)) if "__repr__" in base.__dict__)
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
