"""Key paths of JAX's own keys: from a row to its path, and along a path to a node."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any

from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey, tree_flatten_with_path

from treeviz.tree.keys import Key
from treeviz.tree.level import child, one_level


def follow(tree: Any, path: Iterable[Any]) -> Any:
    """The node of `tree` at a key path, as `jax.tree_util.tree_flatten_with_path` gives it.

    Raises:
      LookupError: There is none.
    """
    node, done = tree, ""
    for key in path:
        try:
            node = _step(node, key)
        except Exception as error:
            at = done or "the root"
            raise LookupError(f"at {at} a {type(node).__name__} has no {key}: {type(error).__name__}") from error
        done += str(key)
    return node


def _step(node: Any, key: Any) -> Any:
    if isinstance(key, DictKey) and isinstance(node, dict):
        return node[key.key]
    if isinstance(key, SequenceKey) and isinstance(node, list | tuple):
        return node[key.idx]
    if isinstance(key, FlattenedIndexKey):
        return child(node, key.key)
    # What a class calls its children need not be how Python gets at them.
    for path, below in one_level(node)[0]:
        if path and _is_same(path[0], key):
            return below
    if isinstance(key, GetAttrKey):
        return getattr(node, key.name)
    return node[key.key if isinstance(key, DictKey) else key.idx]


def _is_same(own: Any, key: Any) -> bool:
    """A key of somebody's own class may have no notion of being equal: JAX writes its `str`."""
    return type(own) is type(key) and bool(own == key or str(own) == str(key))


def keys_to(node: Any, position: int, is_wanted: Callable[[Any], bool]) -> tuple:
    """The keys from a living node to what is shown as its child at `position`, through a box that holds it alone."""
    pairs, _ = one_level(node)
    # Two children may be one object; where some are not shown positions are others.
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
    """What JAX makes of a dict's key."""
    # DictKey(None) is a TypeError with jaxlib 0.4.36, though JAX has such keys.
    return DictKey(key) if key is not None else tree_flatten_with_path({None: 0})[0][0][0][0]


def key_as_said(key: Key, position: int) -> Any:
    """The key that a text speaks of, for a node that is not there any more."""
    text = key.keystr
    if text.startswith("."):
        return GetAttrKey(text[1:])
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return FlattenedIndexKey(position)
    return dict_key(value[0]) if isinstance(value, list) and len(value) == 1 else FlattenedIndexKey(position)


def key_written(keystr: str) -> Any:
    """The key that `jax.tree_util.keystr` writes like this, as far as it can be told; else the text itself."""
    if keystr.startswith("."):
        return GetAttrKey(keystr[1:])
    try:
        if keystr.startswith("[<flat index "):
            return FlattenedIndexKey(int(keystr[len("[<flat index ") : -2]))
        key = ast.literal_eval(keystr[1:-1])
    except (ValueError, SyntaxError):  # a key of somebody's own
        return keystr
    return SequenceKey(key) if type(key) is int else dict_key(key)
