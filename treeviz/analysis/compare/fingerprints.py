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


def is_stack_of(stack: TreeTable, row: int, table: TreeTable, layers: list[int]) -> bool:
    """Whether a subtree has the structure of each layer, with their number as the first axis of every array."""
    n = len(layers)
    if n < 2:
        return False
    size = int(table.end[layers[0]]) - layers[0]
    if int(stack.end[row]) - row != size or any(int(table.end[each]) - each != size for each in layers):
        return False
    for i in range(size):
        facts = stack.facts[stack.fact_codes[row + i]]
        key = stack.key(row + i).segment if i else ""
        for each in layers:
            one = table.facts[table.fact_codes[each + i]]
            if (i and table.key(each + i).segment != key) or one.is_leaf != facts.is_leaf:
                return False
            if one.is_leaf and (one.shape is None or facts.shape != (n, *one.shape) or one.dtype != facts.dtype):
                return False
    return bool(stack.is_leaf[row : row + size].any())


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
