"""Flat names of arrays as a nested tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from treeviz.tree.stored import Stored

# Nodes beyond ten for each array. More would only serve to fill the memory: a name of 4 MB may have 2,000,000 parts.
MOST_NODES = 200_000
# What is appended to the name of a quantized array for that of its scale, by what writes such checkpoints.
_SCALES = ("_scale", "_scale_inv", ".scale", ".weight_scale", ".absmax", ".SCB", "_scales")


def nested(arrays: Mapping[str, Any]) -> Any:
    """Flat names as nested dicts: "a/b", or "a.b" if no name has a slash. Names that do not nest stay flat.

    Dicts whose keys are numbers from 0 on become lists.
    """
    separator = "/" if any("/" in name for name in arrays) else "."
    if sum(name.count(separator) for name in arrays) > MOST_NODES + 10 * len(arrays):
        return dict(arrays)
    root: dict[str, Any] = {}
    above: list[tuple[dict[str, Any], str]] = []  # the parent and key of each dict with a "0", parents first
    given = {id(array) for array in arrays.values() if type(array) is dict}
    keys: dict[str, str] = {}  # one object for all keys of a name
    for name, array in arrays.items():
        *steps, last = name.split(separator)
        node, parent, key = root, None, ""
        for step in steps:
            below = node.get(step)
            if below is None and step not in node:
                step = keys.setdefault(step, step)
                below = node[step] = {}
                if step == "0" and parent is not None:
                    above.append((parent, key))
            elif type(below) is not dict or id(below) in given:
                return dict(arrays)  # "a" is an array, and "a.b" exists
            node, parent, key = below, node, step
        if last in node:
            return dict(arrays)
        node[keys.setdefault(last, last)] = array
        if last == "0" and parent is not None:
            above.append((parent, key))
    for parent, key in reversed(above):
        parent[key] = _as_list(parent[key])
    return _as_list(root)


def with_scales(arrays: dict[str, Any]) -> dict[str, Any]:
    """The arrays; of a quantized one that has a scale beside it, its text says which."""
    if not any(type(array) is Stored and _is_quantized(name, array.dtype) for name, array in arrays.items()):
        return arrays
    return {name: _with_scale(name, array, arrays) for name, array in arrays.items()}


def _with_scale(name: str, array: Any, arrays: dict[str, Any]) -> Any:
    if type(array) is not Stored or array.text or not _is_quantized(name, array.dtype):
        return array
    above = name.rpartition(".")[0]
    beside = [f"{name}{ending}" for ending in _SCALES] + ([f"{above}.scales"] if name.endswith("qweight") else [])
    scales = [each.removeprefix(f"{above}.") for each in beside if each in arrays]
    return replace(array, text=f"scaled by {scales[0]}") if scales else array


def _is_quantized(name: str, dtype: np.dtype) -> bool:
    return (dtype.itemsize == 1 and dtype != np.bool_) or name.endswith("qweight")


def _as_list(node: dict[str, Any]) -> Any:
    numbers = [str(i) for i in range(len(node))]
    return [node[i] for i in numbers] if node and node.keys() == set(numbers) else node
