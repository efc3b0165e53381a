"""What tells whether subtrees are alike: a fingerprint of each, first values, and layers against a stack of them."""

from __future__ import annotations

from itertools import islice
from typing import Any

import jax
import numpy as np

from treeviz.analysis.compare.aligned import Side
from treeviz.analysis.stats.host import host_view, lies_on_host
from treeviz.tree.safe_repr import guarded
from treeviz.tree.table import TreeTable


def axes_of_stack(stack: TreeTable, row: int, table: TreeTable, layers: list[int]) -> list[int]:
    """Along which axes a subtree may be a stack of layers: it has their structure, and in each array one axis more."""
    n = len(layers)
    size = int(table.end[layers[0]]) - layers[0] if n > 1 else 0
    if int(stack.end[row]) - row != size or any(int(table.end[each]) - each != size for each in layers):
        return []
    axes: set[int] | None = None
    for i in range(size):
        facts = stack.facts[stack.fact_codes[row + i]]
        key = stack.key(row + i).segment if i else ""
        for each in layers:
            one = table.facts[table.fact_codes[each + i]]
            if (i and table.key(each + i).segment != key) or one.is_leaf != facts.is_leaf:
                return []
            if one.is_leaf:
                if one.shape is None or facts.shape is None or one.dtype != facts.dtype:
                    return []
                fitting = {*axes_of_layers(facts.shape, n, one.shape)}
                axes = fitting if axes is None else axes & fitting
    return sorted(axes or ())


def axes_of_layers(stack: tuple[int, ...], n: int, layer: tuple[int, ...]) -> list[int]:
    """Along which axes an array of a shape may be a stack of so many of another shape."""
    return [k for k in range(len(stack)) if stack[k] == n and stack[:k] + stack[k + 1 :] == layer]


def axis_of_stack(stack: Side, row: int, side: Side, layers: list[int]) -> int | None:
    """The axis along which a subtree is a stack of layers, the first of those that fit its values; None if it is none.

    Where values are not quickly read, shapes alone tell it.
    """
    axes = axes_of_stack(stack.table, row, side.table, layers)
    if len(axes) > 1:
        leaf = int(np.argmax(stack.table.is_leaf[row:]))
        whole, one = _on_host(stack.nodes[row + leaf]), _on_host(side.nodes[layers[0] + leaf])
        if whole is not None and one is not None:
            axes = [k for k in axes if guarded(lambda k=k: _has_layer(whole, k, one), lambda _: False)] or axes
    return axes[0] if axes else None


def _has_layer(whole: np.ndarray, axis: int, layer: np.ndarray) -> bool:
    return np.array_equal(np.take(whole, 0, axis), layer)


def _on_host(leaf: Any) -> np.ndarray | None:
    """A view of an array that is quickly read, or None."""
    if isinstance(leaf, jax.Array):
        is_near = lies_on_host(leaf) and len(leaf.sharding.device_set) == 1
        return guarded(lambda: host_view(leaf), lambda _: None) if is_near else None
    return leaf if type(leaf) is np.ndarray else None


def add_fingerprints(table: TreeTable, row: int, known: dict[Any, int], codes: dict[int, int]) -> None:
    """Add a code of each row of a subtree, its own key aside: equal for equal types, keys, shapes and dtypes.

    Args:
      known: The codes of all tables.
      codes: Those of this table, by row.
    """
    for at in range(int(table.end[row]) - 1, row - 1, -1):
        f = table.facts[table.fact_codes[at]]
        own = ((f.shape, f.dtype, "" if f.shape else f.type),) if f.is_leaf else (f.type,)
        below = [(table.key(child).segment, codes[child]) for child in table.children(at)]
        codes[at] = known.setdefault((*own, *below), len(known))


def first_values(side: Side, row: int) -> tuple[Any, ...]:
    """The first values of the first leaves of a subtree, as far as they are quickly read."""

    def of(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and lies_on_host(leaf) and len(leaf.sharding.device_set) == 1:
            leaf = host_view(leaf)
        return (
            leaf.flat[:8].tobytes() if type(leaf) is np.ndarray else leaf if type(leaf) in (int, float, str) else None
        )

    rows = islice(filter(side.table.is_leaf.__getitem__, range(row, int(side.table.end[row]))), 16)
    return tuple(guarded(lambda leaf=side.nodes[each]: of(leaf), lambda _: None) for each in rows)
