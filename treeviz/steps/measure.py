"""Measure trees of arrays within a jitted step, and read the numbers on the host."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from treeviz.steps.cosine import cosines
from treeviz.steps.measured_tree import Axes, MeasuredTree, in_layers, openable, told_axes
from treeviz.steps.names import kind_of
from treeviz.steps.reduce import reduce_leaves
from treeviz.steps.statistics import LIGHT, check_statistics, unpack
from treeviz.tree.layers import Stacked, stacked_axes
from treeviz.tree.safe_repr import printable
from treeviz.tree.walk import walk

_HOLDS = {tree_util.SequenceKey: "idx", tree_util.DictKey: "key"}
_IS_PLAIN = re.compile(r"[ !#-&(-\[\]-~]{0,99}").fullmatch  # of printable characters that are none to escape
LAST = "last_grads"  # the name of the tree whose leaves are compared with those of "grads"


@tree_util.register_pytree_node_class
class Measurement:
    """The statistics of some trees as they leave a jitted step: a pytree whose leaves are uint32 arrays.

    Return it from the step like any other output, and give it to `GradientInspector.record`, or read it with
    `numbers_of`. `lax.scan` and `jax.vmap` add leading axes, one entry per inner step or member.

    Attributes:
      packed: For each measured tree, by name: uint32[..., leaves, words]; `treeviz.steps.statistics.unpack` reads it.
      sources: The measured trees, sorted by name.
      statistics: The requested statistics, in order; `statistics_of` has those of one tree.
      results: Of a watched step, the results whose NaN and infinities are counted, as one tree for each kind.
      counts: How many each of these has, as `treeviz.steps.tracing.results` packs it; None if there are none.
      beside: Of a watched step, what was measured of its parameters beside it; it does not leave the step.
    """

    beside: Measurement | None = None

    def __init__(
        self,
        packed: Mapping[str, Any],
        sources: Sequence[MeasuredTree],
        statistics: tuple[str, ...] = LIGHT,
        results: Sequence[MeasuredTree] = (),
        counts: Any = None,
    ) -> None:
        self.packed = dict(packed)
        self.sources = tuple(sources)
        self.statistics = tuple(statistics)
        self.results, self.counts = tuple(results), counts

    def tree_flatten(self):
        packed = tuple(self.packed[s.name] for s in self.sources)
        return (*packed, self.counts) if self.results else packed, (self.sources, self.statistics, self.results)

    @classmethod
    def tree_unflatten(cls, aux, children):
        sources, statistics, results = aux
        self = object.__new__(cls)
        self.packed = {source.name: child for source, child in zip(sources, children, strict=False)}
        self.counts = children[-1] if results else None
        self.sources, self.statistics, self.results = sources, statistics, results
        return self

    @property
    def arrays(self) -> tuple[Any, ...]:
        """All arrays, as they leave the step."""
        return self.tree_flatten()[0]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the packed rows, by name."""
        return {name: packed.shape for name, packed in self.packed.items()}

    def statistics_of(self, name: str) -> tuple[str, ...]:
        """The statistics in the packed rows of a tree, in order."""
        if kind_of(name) == "received":
            return tuple(statistic for statistic in self.statistics if statistic in LIGHT)
        return (*self.statistics, "cosine") if name == "grads" and LAST in self.shapes else self.statistics

    def __repr__(self) -> str:
        of = ", ".join(f"{source.name}: {len(source.paths)} leaves" for source in self.sources)
        return f"Measurement({of}; {', '.join(self.statistics)})"


def measure(*, statistics: tuple[str, ...] = LIGHT, stacked: Stacked = (), **trees: Any) -> Measurement:
    """Measure trees of arrays within a jitted step, and return the statistics from it.

        @jax.jit
        def update(params, x):
            grads = jax.grad(lambda w: jnp.sum((x * w) ** 2))(params)
            return params - 0.1 * grads, tv.measure(params=params, grads=grads)

        inspector, params = tv.GradientInspector(), jnp.ones(3)
        for _ in range(10):
            params, measurement = update(params, jnp.arange(3.0))
            inspector.record(measurement)

    Pure, and works under `jit`, `vmap`, `scan`, `grad` and `shard_map`. Changes no tree, and reads no array on
    the host. Costs one pass over the numbers with `LIGHT`, about two with `FULL` and six with `HISTOGRAM`, and
    16, 36 or 292 bytes of output for each leaf. Many devices compute with magnitudes below 1.2e-38 as with zero: the
    norm of a leaf that has no larger ones is then its largest magnitude.

    Args:
      statistics: `LIGHT` is cheap enough for every step; `FULL` adds mean, zeros, NaN and infinities; `HISTOGRAM` adds
        the count of each power of two.
      stacked: Globs of the key paths of arrays, or of nodes above them, that hold all layers of a model, each of which
        is measured: "layers/*", or {"layers/*": 1} where they lie along another axis than the first.
      **trees: Any pytrees, by name. With "params", "grads" and "updates" the inspector shows their ratios too; with
        "last_grads", the gradients of the step before, the cosine of each leaf of "grads" with them is measured.

    Returns:
      A `Measurement`.

    Raises:
      ValueError: A statistic is not known, "last_grads" has another structure than "grads", or a glob matches no array.
    """
    statistics = check_statistics(statistics)
    trees = {printable(name): tree for name, tree in sorted(trees.items())}
    sources = {name: source_of(tree, name) for name, tree in trees.items()}
    axes = _axes(sources, stacked)
    packed = {name: reduce_leaves(_numeric(tree), statistics, axes[name]) for name, tree in trees.items()}
    if LAST in trees and "grads" in trees:
        if jax.tree.structure(trees["grads"]) != jax.tree.structure(trees[LAST]):
            raise ValueError("measure: last_grads has another structure than grads; start with a tree of zeros.")
        both = cosines(_numeric(trees["grads"]), _numeric(trees[LAST]), axes["grads"])
        packed["grads"] = jnp.concatenate([packed["grads"], both], axis=1)
    return Measurement(packed, [in_layers(source, axes[name]) for name, source in sources.items()], statistics)


def _axes(sources: Mapping[str, MeasuredTree], stacked: Stacked) -> dict[str, Axes]:
    """The axes of the layers that the user's globs name, by the name of the tree."""
    told = {name: told_axes(source, stacked) for name, source in sources.items()}
    for glob in stacked_axes(stacked):
        if all(glob in unused for _, unused in told.values()):
            raise ValueError(f"measure: stacked={glob!r}: no array has such a key path and axis.")
    found = {name: openable(sources[name], axes) for name, (axes, _) in told.items()}
    for note in (note for _, notes in found.values() for note in notes):
        raise ValueError(f"measure: {note}")
    return {name: axes for name, (axes, _) in found.items()}


def find_measurements(tree: Any) -> list[Measurement]:
    """The measurements in a pytree, e.g. in an optimizer's state, in JAX's order of leaves."""
    leaves = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, Measurement))
    return [leaf for leaf in leaves if isinstance(leaf, Measurement)]


def _numeric(tree: Any) -> list:
    return [leaf if _has_number(leaf) else None for leaf in jax.tree.leaves(tree)]


def reduce_tree(tree: Any, *, statistics: tuple[str, ...] = LIGHT) -> jax.Array:
    """uint32[leaves, words]: the packed statistics of each leaf, in JAX's order; `unpack` reads them.

    Pure, and traceable under every transformation. A leaf without numbers (integers, a key, an empty array) is marked.
    """
    statistics = check_statistics(statistics)
    return reduce_leaves(_numeric(tree), statistics)


def source_of(tree: Any, name: str) -> MeasuredTree:
    """Names, sizes and dtypes of the leaves of a tree. Takes some µs a leaf; reads no value.

    All texts are printable, since they are shown, and written to files that other people open.
    """
    leaves = jax.tree.leaves(tree)
    return MeasuredTree(
        printable(name),
        paths_in(tree),
        tuple(int(math.prod(getattr(leaf, "shape", ()))) for leaf in leaves),
        tuple(printable(str(getattr(leaf, "dtype", ""))) for leaf in leaves),
        tuple(_has_number(leaf) for leaf in leaves),
        tuple(",".join(map(str, getattr(leaf, "shape", ()))) for leaf in leaves),
    )


def paths_in(tree: Any) -> tuple[str, ...]:
    """The printable key paths of the leaves of a tree, in JAX's order."""
    if (plain := _plain_paths(tree)) is not None:
        return plain
    rows = list(walk(tree).leaves)
    if len(rows) == len(jax.tree.leaves(tree)):
        return tuple(printable(row.keystr) for row in rows)
    # The walk was cut short, or counts leaves differently from JAX.
    return tuple(printable(tree_util.keystr(path)) for path, _ in tree_util.tree_flatten_with_path(tree)[0])


def _plain_paths(tree: Any) -> tuple[str, ...] | None:
    """Those of nothing but lists, tuples and short plain keys, without a walk, which looks at each leaf; else None."""
    texts = []
    try:
        for path, _ in tree_util.tree_flatten_with_path(tree)[0]:
            keys = [getattr(key, _HOLDS.get(type(key), ""), None) for key in path]
            if not all(type(key) is int or (type(key) is str and _IS_PLAIN(key)) for key in keys):
                return None
            texts.append("".join([f"[{key!r}]" for key in keys]))
    except Exception:  # of a class of the user
        return None
    return tuple(texts)


def _has_number(leaf: Any) -> bool:
    if type(leaf) in (float, complex):
        return True
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct):
        return False
    return leaf.dtype != np.dtype(object) and jnp.issubdtype(leaf.dtype, jnp.inexact) and 0 not in leaf.shape


def numbers_of(measurement: Measurement) -> dict[str, dict[str, np.ndarray]]:
    """The numbers of a measurement: for each tree, by name, the result of `unpack`. Waits for the step.

    numbers_of(measurement)["grads"]["norm"]    # float64[leaves]
    """
    with jax.transfer_guard("allow"):
        packed = jax.device_get(measurement.packed)
    return {
        source.name: unpack(packed[source.name], measurement.statistics_of(source.name), source.sizes)
        for source in measurement.sources
    }
