"""What flattening the arguments of a step costs at each call: in all, and by class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

from jax import tree_util

from treeviz.tree.safe_repr import class_name, guarded
from treeviz.tree.table import TreeTable

_ROUNDS = 5
_MOST_NODES = 200  # of a class, that are measured
_MOST_DEEP = 200  # levels, beyond which JAX's own flatten is not called


class ClassCost(NamedTuple):
    """What JAX's flattening of the nodes of one class costs.

    Attributes:
      name: Of the class.
      n: How many nodes of it the arguments have.
      each_us: Microseconds for each, without what is inside.
    """

    name: str
    n: int
    each_us: float


class Flattening(NamedTuple):
    """What JAX does first at each call of a step. Measured here and now: the least of five times.

    Attributes:
      us: Microseconds for all arguments.
      as_list_us: For a list of the same leaves.
      classes: Those that somebody registered, by their share.
    """

    us: float
    as_list_us: float
    classes: tuple[ClassCost, ...]

    @property
    def text(self) -> str:
        """ "flattening takes 812 µs a call, 40 times as long as of a list of the leaves: Block 20 × 31 µs"."""
        parts = [f"{each.name} {each.n:,} × {each.each_us:.2g} µs" for each in self.classes[:3]]
        times = f", {self.us / self.as_list_us:.2g} times as long as of a list of the leaves" if parts else ""
        return f"flattening takes {self.us:.3g} µs a call{times}{': ' if parts else ''}{', '.join(parts)}"


def measure_flattening(table: TreeTable, nodes: Sequence[Any]) -> Flattening | None:
    """Time what flattens a tree; None if it cannot be flattened. Runs the flatten functions of its classes.

    Args:
      table, nodes: The tree as it was walked.
    """
    if table.depth.max() >= _MOST_DEEP or any(facts.kind in ("error", "cycle") for facts in table.facts):
        return None
    leaves = tree_util.tree_leaves(nodes[0])
    of_classes: dict[int, list[Any]] = {}
    for row, node in enumerate(nodes):
        if not table.is_leaf[row] and table[row].facts.module.partition(".")[0] not in ("", "jax", "jaxlib"):
            of_classes.setdefault(id(type(node)), []).append(node)
    flatten = getattr(getattr(tree_util, "default_registry", None), "flatten_one_level", None)
    costs = []
    for same in of_classes.values():
        if flatten is None:
            break
        some = same[:_MOST_NODES]
        seconds = guarded(lambda some=some, flatten=flatten: _of_nodes(flatten, some), lambda _: None)
        if seconds is not None:
            costs.append(ClassCost(class_name(type(same[0])), len(same), 1e6 * seconds / len(some)))
    costs.sort(key=lambda each: -each.n * each.each_us)
    whole, flat = (_least(lambda tree=tree: tree_util.tree_flatten(tree)) for tree in (nodes[0], leaves))
    return Flattening(1e6 * whole, 1e6 * flat, tuple(costs))


def _of_nodes(flatten: Callable[[Any], Any], nodes: Sequence[Any]) -> float:
    """Seconds that nodes take beyond tuples of their children: the call from Python is none of a step's."""
    tuples = [tuple(flatten(node)[0]) for node in nodes]
    of_nodes, of_tuples = (_least(lambda same=same: [*map(flatten, same)]) for same in (nodes, tuples))
    return max(of_nodes - of_tuples, 0.0)


def _least(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(_ROUNDS):
        began = perf_counter()
        call()
        times.append(perf_counter() - began)
    return min(times)
