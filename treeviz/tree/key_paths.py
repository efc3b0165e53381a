"""Key paths of JAX keys: follow one to a node, find the keys of a child, parse a key from its text."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from itertools import chain, repeat
from typing import Any

import numpy as np
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey, tree_flatten_with_path

from treeviz.tree.level import child, one_level
from treeviz.tree.table import TreeTable


def follow(tree: Any, path: Iterable[Any], occurrences: Iterable[int] = ()) -> Any:
    """The node of `tree` at a key path, as `jax.tree_util.tree_flatten_with_path` gives it.

    Args:
      occurrences: For each key how many children with the same key to skip, since a custom node may repeat one.

    Raises:
      LookupError: There is no such node; the message says where the path ends.
    """
    node, done = tree, ""
    for key, occurrence in zip(path, chain(occurrences, repeat(0)), strict=False):
        try:
            node = _step(node, key, occurrence)
        except Exception as error:
            at = done or "the root"
            raise LookupError(f"at {at} a {type(node).__name__} has no {key}: {type(error).__name__}") from error
        done += str(key)
    return node


def occurrence(table: TreeTable, row: int) -> int:
    """How many siblings before a row have its key."""
    code, above = table.key_codes[row], int(table.parent[row])
    if code == 0:
        return 0
    same = [i for i, key in enumerate(table.keys) if key.keystr == table.keys[code].keystr]
    before = slice(above + 1, row)
    return int(np.count_nonzero((table.parent[before] == above) & np.isin(table.key_codes[before], same)))


def _step(node: Any, key: Any, occurrence: int) -> Any:
    if isinstance(key, DictKey) and isinstance(node, dict):
        return node[key.key]
    if isinstance(key, SequenceKey) and isinstance(node, list | tuple):
        return node[key.idx]
    if isinstance(key, FlattenedIndexKey):
        return child(node, key.key)
    # The keys of a registered class need not be attributes or items.
    same = [below for path, below in one_level(node)[0] if path and _is_same(path[0], key)]
    if same:
        return same[occurrence]
    if isinstance(key, GetAttrKey):
        return getattr(node, key.name)
    return node[key.key if isinstance(key, DictKey) else key.idx]


def _is_same(own: Any, key: Any) -> bool:
    """Compare keys; user-defined ones may not define equality, so their `str` is compared too."""
    return type(own) is type(key) and bool(own == key or str(own) == str(key))


def keys_to(node: Any, position: int, is_wanted: Callable[[Any], bool]) -> tuple:
    """The keys from a node to the child shown at `position`, through boxes that hold only that child."""
    pairs, _ = one_level(node)
    # Try the position first, since two children may be one object; hidden children shift positions.
    path, found = next(
        (pair for pair in (*pairs[position : position + 1], *pairs) if is_wanted(pair[1])), pairs[position]
    )
    first = keys = tuple(path)
    while not is_wanted(found):
        pairs, data = one_level(found)
        if data is None or len(pairs) != 1:
            return first
        path, found = pairs[0]
        keys += tuple(path)
    return keys


def dict_key(key: Any) -> Any:
    """The JAX key of a key of a dict."""
    # DictKey(None) is a TypeError with jaxlib 0.4.36, though JAX has such keys.
    return DictKey(key) if key is not None else tree_flatten_with_path({None: 0})[0][0][0][0]


def parse_key(keystr: str, *, otherwise: Any, int_key: Callable[[int], Any] = SequenceKey) -> Any:
    """The JAX key that `jax.tree_util.keystr` writes as `keystr`.

    Args:
      otherwise: What to return for the text of a user-defined key class.
      int_key: The class of the key in "[3]", which a list and a dict with integer keys share.
    """
    if keystr.startswith("."):
        return GetAttrKey(keystr[1:])
    try:
        if keystr.startswith("[<flat index "):
            return FlattenedIndexKey(int(keystr[len("[<flat index ") : -2]))
        value = ast.literal_eval(keystr)
    except (ValueError, SyntaxError):
        return otherwise
    if type(value) is not list or len(value) != 1:
        return otherwise
    return int_key(value[0]) if type(value[0]) is int else dict_key(value[0])
