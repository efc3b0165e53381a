"""A bare `PyTreeDef` as a tree with a placeholder for every leaf."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import jax

from treeviz.tree.jax_later import jax_is_imported
from treeviz.tree.keys import Key, KeyTable, label_text
from treeviz.tree.level import Level, one_level
from treeviz.tree.safe_repr import guarded, has_base, visible

# (class, auxiliary data) -> JAX's keys of the children, or None for classes that it does not know.
ChildKeys = Callable[[type, Any], Sequence[Any] | None]
_child_keys: list[ChildKeys] = []


def knows_child_keys(function: ChildKeys) -> ChildKeys:
    """Register a function that tells JAX's keys of the children of a library's nodes in a bare treedef."""
    _child_keys.append(function)
    return function


def is_treedef(tree: Any) -> bool:
    return jax_is_imported() and type(tree) is jax.tree_util.PyTreeDef


def treedef_level(treedef: Any, keys: KeyTable) -> Level | None:
    """The children of a treedef, or None for a leaf."""
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
    found = _keys_of(cls, aux, n_children)
    codes = [_code(keys, key, i) for i, key in enumerate(islice(found, keys.room))]
    return codes + [0] * (n_children - len(codes))


def _keys_of(cls: type, aux: Any, n_children: int) -> Iterable[Any]:
    """JAX's keys of the children. Flat indices unless it is certain: a treedef has no keys of a registered class."""
    for of in (_named_tuple_keys, *_child_keys):
        found = guarded(lambda of=of: of(cls, aux), lambda _: None)
        if found is not None and len(found) == n_children:
            return found
    return map(jax.tree_util.FlattenedIndexKey, range(n_children))


def _named_tuple_keys(cls: type, aux: Any) -> Sequence[Any] | None:
    """The fields of a named tuple, unless it was registered by hand: then its children may be others."""
    if aux is not None or not has_base(cls, tuple) or not hasattr(cls, "_fields"):
        return None
    # The treedef does not say which, so a named tuple with something in every field is flattened.
    pairs, _ = one_level(tuple.__new__(cls, [object() for _ in cls._fields]))  # type: ignore[attr-defined]
    return [path[0] for path, _ in pairs]


def _code(keys: KeyTable, key: Any, position: int) -> int:
    if type(key) is jax.tree_util.DictKey:
        return keys.mapping([(key.key, None)])[0]
    if type(key) is jax.tree_util.GetAttrKey:
        name = visible(key.name)
        return keys.code(Key(f".{label_text(name)}", f".{name}", name, (f".{name}",)))
    return keys.code(Key(f"<{position}>", f"[<flat index {position}>]", str(position), (position,)))
