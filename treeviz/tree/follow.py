"""Key paths of JAX's own keys: from a row to its path, and along a path to a node."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any

from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

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
    if isinstance(key, DictKey):
        return node[key.key]
    if isinstance(key, SequenceKey):
        return node[key.idx]
    if isinstance(key, GetAttrKey):
        return getattr(node, key.name)
    if isinstance(key, FlattenedIndexKey):
        return child(node, key.key)
    return next(below for (own,), below in one_level(node)[0] if own == key)


def keys_to(node: Any, position: int, is_wanted: Callable[[Any], bool]) -> tuple:
    """The keys from a living node to what is shown as its child at `position`, through a box that holds it alone."""
    pairs, _ = one_level(node)
    path, found = next(((path, below) for path, below in pairs if is_wanted(below)), pairs[position])
    first = keys = tuple(path)
    while not is_wanted(found):
        pairs, data = one_level(found)
        if data is None or len(pairs) != 1:
            return first
        path, found = pairs[0]
        keys += tuple(path)
    return keys


def key_as_said(key: Key, position: int) -> Any:
    """The key that a text speaks of, for a node that is not there any more."""
    text = key.keystr
    if text.startswith("."):
        return GetAttrKey(text[1:])
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return FlattenedIndexKey(position)
    return DictKey(value[0]) if isinstance(value, list) and len(value) == 1 else FlattenedIndexKey(position)
