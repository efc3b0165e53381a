"""The structure of an Orbax checkpoint: the JSON of its `_METADATA`.

See `orbax/checkpoint/_src/metadata/tree.py` for the format.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from treeviz.tree.files.entries import check_size_of_json, parse_json

_SEQUENCE = 1  # the type of a key in a list
_MOST_LEVELS = 300


class _Form(NamedTuple):
    """How JSON writes several values.

    Attributes:
      type: What they are in Python.
      next: Matches what stands before each of them.
      before: What makes JSON of the rest of a text, after its last value.
    """

    type: type
    next: re.Pattern[str]
    before: str


_DICT = _Form(dict, re.compile(r'\s*[{,]\s*"[^"\\]*(?:\\.[^"\\]*)*"\s*:\s*'), '{"":{')
_LIST = _Form(list, re.compile(r"\s*[\[,]\s*(?=[^\]\s])"), '{"":[0')


class Entry(NamedTuple):
    """What the metadata tells of one leaf, or of one empty node."""

    keys: tuple[tuple[str, int], ...]  # the keys, and their types
    kind: str  # "jax.Array", "scalar", "None"

    @property
    def name(self) -> str:
        return ".".join(key for key, _ in self.keys)


def entries_of(text: bytes) -> Iterator[Entry]:
    """What the metadata tells of each leaf; the dicts that JSON makes of 100,000 would take 200 MB."""
    check_size_of_json(text)
    whole = text.decode("utf-8")
    del text
    known: dict[tuple[str, int], tuple[str, int]] = {}  # one object for all keys of a name
    for each in _values_of(whole, "tree_metadata", _DICT):
        keys = [(str(key["key"]), int(key["key_type"])) for key in each["key_metadata"]]
        if len(keys) > _MOST_LEVELS:
            raise ValueError(f"its tree has more than {_MOST_LEVELS} levels")
        kind = sys.intern(str(each["value_metadata"]["value_type"]))
        yield Entry(tuple([known.setdefault(key, key) for key in keys]), kind)


def random_keys_of(text: bytes) -> Iterator[tuple[str, str]]:
    """The names of the arrays that are the data of PRNG keys, and how these are made: of `array_metadatas`."""
    if b'"random_key_impl"' not in text:
        return
    check_size_of_json(text)
    for each in _values_of(text.decode("utf-8"), "array_metadatas", _LIST):
        about = each["array_metadata"]
        if kind := (about["ext_metadata"] or {}).get("random_key_impl"):
            yield str(about["param_name"]), str(kind)


def _values_of(text: str, name: str, form: _Form) -> Iterator[Any]:
    """The values of what alone stands under a name, or comes first there, one after the other."""
    found = re.compile(rf'\s*\{{\s*"{name}"\s*:\s*').match(text)
    if found is None:  # Orbax writes it first
        metadata = parse_json(text.encode(), None)
        if not isinstance(metadata, dict) or not isinstance(metadata.get(name), form.type):
            raise ValueError(f"it has no {name}")
        values = metadata[name]
        yield from values.values() if isinstance(values, dict) else values
        return
    decode, at, before = json.JSONDecoder().raw_decode, found.end(), '{"":'
    while (found := form.next.match(text, at)) is not None:
        value, at = decode(text, found.end())
        yield value
        before = form.before
    parse_json((before + text[at:]).encode(), None)


def built(leaves: dict[tuple[tuple[str, int], ...], Any]) -> Any:
    """The tree of these leaves, by their keys and the types of the keys."""
    if list(leaves) == [()]:
        return leaves[()]
    root: dict[Any, Any] = {}
    inner: list[tuple[dict[Any, Any], Any]] = []  # the parent and key of each dict below, parents first
    for keys, leaf in leaves.items():
        if not keys:
            raise ValueError("its metadata has a leaf above others")
        node = root
        for key in keys[:-1]:
            if key not in node:
                node[key] = _Node()
                inner.append((node, key))
            node = node[key]
            if type(node) is not _Node:
                raise ValueError("its metadata has a leaf above others")
        if keys[-1] in node:
            raise ValueError("its metadata has a leaf above others")
        node[keys[-1]] = leaf
    for parent, key in reversed(inner):
        parent[key] = _plain(parent[key])
    return _plain(root)


class _Node(dict):
    """A node whose keys are not yet those of the tree."""


def _plain(node: dict[Any, Any]) -> Any:
    """A list, if the keys are those of one."""
    if node and all(kind == _SEQUENCE for _, kind in node):
        by_index = {int(key): child for (key, _), child in node.items()}
        if by_index.keys() == set(range(len(node))):
            return [by_index[i] for i in range(len(node))]
    return {key: child for (key, _), child in node.items()}
