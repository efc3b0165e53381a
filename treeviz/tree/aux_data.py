"""Name the parts of a node's auxiliary data after the fields that hold them, told by identity."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from treeviz.tree.attributes import is_interned, stored_items
from treeviz.tree.level import one_level
from treeviz.tree.safe_repr import guarded, mro, value_text

DROPPED = " (dropped)"
_MAX_PARTS = 1000


class Fields(NamedTuple):
    """The fields of a dataclass or named tuple that no key of a child names.

    Attributes:
      unnamed: The positions of the children whose keys name no field.
      all: All fields of the class.
      is_known: A file about a library describes the class: its fields are children or static.
    """

    names: tuple[str, ...]
    unnamed: tuple[int, ...]
    all: frozenset[str]
    is_known: bool


def static_of(node: Any, fields: Fields, values: Sequence[Any], children: Sequence[Any], aux: Any) -> list:
    """(name, value) of the fields in the auxiliary data, and of its other parts.

    Marks the fields that are neither there nor children as dropped, and leaves out those of which this is not certain.
    """
    unnamed = {id(children[i]): children[i] for i in fields.unnamed}
    left = {name: value for name, value in zip(fields.names, values, strict=True) if id(value) not in unnamed}
    parts = _parts(aux, left.values())
    parts = [(where, part) for where, part in parts if type(part) is not str or part not in fields.all]
    n_fields, n_parts = _counts(left.values()), _counts(part for _, part in parts)
    is_explained = n_parts.keys() <= n_fields.keys()
    if fields.is_known and not is_explained:
        return list(left.items())
    doubtful = [name for name, value in left.items() if 0 < n_parts.get(id(value), 0) < n_fields[id(value)]]
    lost = _lost(node, doubtful) if doubtful and is_explained and not unnamed else set(doubtful)
    classes = {id(type(child)): type(child) for child in unnamed.values()}.values()
    are_children_known = unnamed.keys() <= set(map(id, values)) and not any(map(is_interned, classes))
    static, named = [], set()
    for name, value in left.items():
        if id(value) in n_parts and name not in lost and (is_explained or not is_interned(type(value))):
            static.append((name, value))
            named.add(id(value))
        elif aux is None and value is None:  # the auxiliary data may be this value
            continue
        elif is_explained and are_children_known and (name not in doubtful or lost < set(doubtful)):
            static.append((name + DROPPED, value))
    others = [(where, part) for where, part in parts if id(part) not in named]
    return [*static, *([("aux", aux)] if not named and others else others)]


def _counts(values: Iterable[Any]) -> dict[int, int]:
    """How often each object occurs, by its id; a `Counter` takes five times as long for the few fields of a node."""
    counts: dict[int, int] = {}
    for value in values:
        counts[id(value)] = counts.get(id(value), 0) + 1
    return counts


def _parts(aux: Any, values: Collection[Any]) -> list[tuple[str, Any]]:
    """("aux[0]", value) of what is in auxiliary data: items of a container, or attributes of an object."""
    if aux is None:
        return []
    if any(value is aux for value in values):
        return [("aux", aux)]
    items = _items("aux", aux)
    if items is not None:
        return items
    parts: list[tuple[str, Any]] = []
    for name, value in stored_items(aux).items():
        where = f"aux.{name}"
        inside = _items(where, value)
        parts += [(where, value)] if inside is None else inside
    return parts[:_MAX_PARTS] or [("aux", aux)]


def _items(where: str, container: Any) -> list[tuple[str, Any]] | None:
    if type(container) is tuple or type(container) is list:
        return [(f"{where}[{i}]", item) for i, item in enumerate(islice(container, _MAX_PARTS))]
    if type(container) is dict:
        items = islice(container.copy().items(), _MAX_PARTS)
        return [(f"{where}[{value_text(key, 40)}]", item) for key, item in items]
    return None


def _lost(node: Any, names: list[str]) -> set[str]:
    """Which fields are not in the auxiliary data, of several that are one object of which some are.

    Flattens a copy of the node in which each of these fields holds an object of its own. All of them, if that fails.
    """
    marks = {name: object() for name in names}

    def look() -> set[str]:
        cls = type(node)
        if any("__del__" in base.__dict__ for base in mro(cls)):
            return set(names)
        twin = object.__new__(cls)
        for name, value in {**stored_items(node), **marks}.items():
            object.__setattr__(twin, name, value)
        data = one_level(twin)[1]
        parts = [part for _, part in _parts(data and data[1], ())]
        return {name for name in names if not any(part is marks[name] for part in parts)}

    return guarded(look, lambda _: set(names))
