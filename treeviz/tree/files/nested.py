"""Flat names of arrays as a nested tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Nodes beyond ten for each array. More would only serve to fill the memory: a name of 4 MB may have 2,000,000 parts.
MOST_NODES = 200_000


def nested(arrays: Mapping[str, Any]) -> Any:
    """Flat names as nested dicts: "a/b", or "a.b" if no name has a slash. Names that do not nest stay flat.

    Dicts whose keys are numbers from 0 on become lists.
    """
    separator = "/" if any("/" in name for name in arrays) else "."
    if sum(name.count(separator) for name in arrays) > MOST_NODES + 10 * len(arrays):
        return dict(arrays)
    root: dict[str, Any] = {}
    above: list[tuple[dict[str, Any], str]] = []  # the parent and key of every dict but the root, parents first
    dicts = {id(root)}
    for name, array in arrays.items():
        *steps, last = name.split(separator)
        node = root
        for step in steps:
            if step not in node:
                node[step] = {}
                dicts.add(id(node[step]))
                above.append((node, step))
            if id(node[step]) not in dicts:
                return dict(arrays)  # "a" is an array, and "a.b" exists
            node = node[step]
        if last in node:
            return dict(arrays)
        node[last] = array
    for parent, key in reversed(above):
        parent[key] = _as_list(parent[key])
    return _as_list(root)


def _as_list(node: dict[str, Any]) -> Any:
    numbers = [str(i) for i in range(len(node))]
    return [node[i] for i in numbers] if node and node.keys() == set(numbers) else node
