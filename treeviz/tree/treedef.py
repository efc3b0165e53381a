"""A bare `PyTreeDef` as a tree: the same nodes, with a placeholder for every leaf."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from typing import Any

from treeviz.tree.keys import Key, KeyTable
from treeviz.tree.level import Level


def treedef_level(treedef: Any, keys: KeyTable) -> Level | None:
    """The children of a treedef, or None where it stands for a leaf."""
    data = treedef.node_data()
    if data is None:
        return None
    children = treedef.children()
    return Level(children, _key_codes(data, len(children), keys), data)


def _key_codes(data: tuple[type, Any], n_children: int, keys: KeyTable) -> list[int] | None:
    cls, aux = data
    if cls in (list, tuple):
        return None
    if cls in (dict, OrderedDict):
        return keys.mapping([(key, None) for key in aux])
    if cls is defaultdict:
        return keys.mapping([(key, None) for key in aux[1]])
    names = list(getattr(cls, "_fields", ()))
    if dataclasses.is_dataclass(cls):
        names = [field.name for field in dataclasses.fields(cls) if not field.metadata.get("static")]
    if len(names) != n_children:
        # a treedef does not keep the keys of a registered class
        return [keys.code(Key(f"<{i}>", f"[<flat index {i}>]", str(i), (i,))) for i in range(n_children)]
    return [keys.code(Key(f".{name}", f".{name}", name, (f".{name}",))) for name in names]
