"""Measure trees of arrays within a jitted step, and read the numbers on the host."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from treeviz.steps import reduce
from treeviz.steps.statistics import (
    ACTIVATIONS,
    LIGHT,
    LOSSES,
    Axes,
    MeasuredTree,
    check_statistics,
    in_layers,
    kind_of,
    openable,
    reported_axes,
    statistics_of_activations,
    unpack,
)
from treeviz.tree.keys import keystr
from treeviz.tree.layers import Stacked, stacked_axes
from treeviz.tree.text import guarded, has_base, is_any, printable
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
      counts: How many each of these has, as `instrumented.count_in_results` packs it; None if there are none.
      sampled_params: Of a watched step, what was measured of its parameters beside it; it does not leave the step.
    """

    sampled_params: Measurement | None = None

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
        if name.startswith(ACTIVATIONS):
            return statistics_of_activations(self.statistics)
        if kind_of(name) == "received":
            return tuple(statistic for statistic in self.statistics if statistic in LIGHT)
        return (*self.statistics, "cosine") if name == "grads" and LAST in self.shapes else self.statistics

    def __repr__(self) -> str:
        contents = ", ".join(f"{source.name}: {len(source.paths)} leaves" for source in self.sources)
        return f"Measurement({contents}; {', '.join(self.statistics)})"


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
    packed = {name: reduce.reduce_leaves(_numeric(tree), statistics, axes[name]) for name, tree in trees.items()}
    if LAST in trees and "grads" in trees:
        if jax.tree.structure(trees["grads"]) != jax.tree.structure(trees[LAST]):
            raise ValueError("measure: last_grads has another structure than grads; start with a tree of zeros.")
        both = reduce.cosines(_numeric(trees["grads"]), _numeric(trees[LAST]), axes["grads"])
        packed["grads"] = jnp.concatenate([packed["grads"], both], axis=1)
    return Measurement(packed, [in_layers(source, axes[name]) for name, source in sources.items()], statistics)


def _axes(sources: Mapping[str, MeasuredTree], stacked: Stacked) -> dict[str, Axes]:
    """The axes of the layers that the user's globs name, by the name of the tree."""
    reported = {name: reported_axes(source, stacked) for name, source in sources.items()}
    for glob in stacked_axes(stacked):
        if all(glob in unused for _, unused in reported.values()):
            raise ValueError(f"measure: stacked={glob!r}: no array has such a key path and axis.")
    found = {name: openable(sources[name], axes) for name, (axes, _) in reported.items()}
    for note in (note for _, notes in found.values() for note in notes):
        raise ValueError(f"measure: {note}")
    return {name: axes for name, (axes, _) in found.items()}


def find_measurements(tree: Any) -> list[Measurement]:
    """The measurements in a pytree, e.g. in an optimizer's state, in JAX's order of leaves."""
    leaves = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, Measurement))
    return [leaf for leaf in leaves if isinstance(leaf, Measurement)]


def _numeric(tree: Any) -> list:
    return [leaf if _has_number(leaf) else None for leaf in jax.tree.leaves(tree)]


def source_of(tree: Any, name: str) -> MeasuredTree:
    """Names, sizes and dtypes of the leaves of a tree, as printable texts. Takes some µs a leaf; reads no value."""
    leaves = jax.tree.leaves(tree)
    # Not every leaf is an array.
    shapes = [guarded(lambda leaf=leaf: tuple(leaf.shape), lambda _: ()) for leaf in leaves]
    return MeasuredTree(
        printable(name),
        paths_in(tree),
        tuple([int(math.prod(shape)) for shape in shapes]),
        tuple([guarded(lambda leaf=leaf: printable(str(leaf.dtype)), lambda _: "") for leaf in leaves]),
        tuple([_has_number(leaf) for leaf in leaves]),
        tuple([",".join(map(str, shape)) for shape in shapes]),
    )


def paths_in(tree: Any) -> tuple[str, ...]:
    """The printable key paths of the leaves of a tree, in JAX's order."""
    if (plain := _plain_paths(tree)) is not None:
        return plain
    rows = list(walk(tree).leaves)
    if len(rows) == len(jax.tree.leaves(tree)):
        return tuple(row.keystr for row in rows)
    # The walk was cut short, or counts leaves differently from JAX.
    return tuple(keystr(path) for path, _ in tree_util.tree_flatten_with_path(tree)[0])


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
    if is_any(type(leaf), (float, complex)):
        return True
    is_array = has_base(type(leaf), np.ndarray, np.generic, jax.ShapeDtypeStruct)
    if not is_array and not guarded(lambda: isinstance(leaf, jax.Array), lambda _: False):
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
        if not source.name.startswith((LOSSES, ACTIVATIONS))
    }


# A measurement that leaves the device as one array, since each costs some µs to return and to read.


class Layout(NamedTuple):
    """What the arrays are: partial sums, if any; the packed rows of sources; the counts of results, if not in the sums.

    The sums are float64[rows]. The words begin with the magnitudes and counts of their rows, or with the few numbers.
    """

    sources: tuple[MeasuredTree, ...]
    statistics: tuple[str, ...]
    results: tuple[MeasuredTree, ...]
    shapes: tuple[tuple[int, ...], ...]  # of the packed rows of each source, then of the counts, if any
    rows: reduce.Rows = reduce.Rows()  # of the partial sums
    entries: tuple[tuple[int, ...], ...] = ()  # of each source, the packed rows made of the sums, in their order
    has_words: tuple[bool, ...] = ()  # of each source, whether the words have its other packed rows

    def split(self, *arrays: Any) -> tuple[dict[str, Any], Any]:
        """The packed rows by name, and the counts or None, of arrays that may have more axes before the last."""
        *summed, words = arrays
        if not self.rows.n_rows:
            parts = _parts(words, self.shapes)
            packed = {source.name: part for source, part in zip(self.sources, parts, strict=False)}
            return packed, parts[-1] if self.results else None
        words = _on_host(words)
        if self.rows.are_numbers:
            n = sum(self.rows.n_rows) + sum(self.rows.of_old)
            rows, counts = reduce.measured(words[..., :n], self.rows)
        else:
            n = 2 * sum(self.rows.n_rows)
            rows, counts = reduce.added_up(_on_host(summed[0]), words[..., :n], self.rows)
        others = iter(_parts(words[..., n:], [*itertools.compress(self.shapes, self.has_words)]))
        packed, at = {}, 0
        for source, shape, entries, has in zip(self.sources, self.shapes, self.entries, self.has_words, strict=False):
            own_sums = None if rows is None else rows[..., at : at + len(entries), :]
            whole = *words.shape[:-1], *shape
            packed[source.name] = _whole(whole, own_sums, entries, next(others) if has else reduce.NOTHING)
            at += len(entries)
        return packed, counts


class LayoutOnDevices(NamedTuple):
    """What the arrays are: for each source those of `PerDevice`, or its packed rows; then counts of results, if any."""

    sources: tuple[MeasuredTree, ...]
    statistics: tuple[str, ...]
    results: tuple[MeasuredTree, ...]
    shapes: tuple[tuple[int, ...], ...]  # of the packed rows of each source
    summed: tuple[reduce.Summed | None, ...]  # of each source, how its partial sums lie; None: it has packed rows alone
    n_arrays: tuple[int, ...]  # of each source

    def split(self, *arrays: Any) -> tuple[dict[str, Any], Any]:
        """As `Layout.split`, of all arrays, which may have a further axis before that of devices."""
        packed, left = {}, iter(arrays)
        for source, summed, n in zip(self.sources, self.summed, self.n_arrays, strict=True):
            own = [*itertools.islice(left, n)]
            if summed is None:
                packed[source.name] = own[0]
                continue
            sums, words, *others = map(_on_host, own)
            n_rows = sum(summed.rows.n_rows)
            before = (*sums.shape[:-1], sums.shape[-1] // n_rows)
            found, _ = reduce.added_up(sums.reshape(*before, n_rows), words.reshape(*before, 2 * n_rows), summed.rows)
            shape = *before, *summed.shape
            rows = _whole(shape, found, summed.entries, others[0].reshape(shape) if others else reduce.NOTHING)
            packed[source.name] = rows[..., 0, :, :] if summed.is_alike else rows
        return packed, next(left) if self.results else None


def _whole(shape: tuple[int, ...], summed: np.ndarray | None, entries: tuple[int, ...], others: Any) -> np.ndarray:
    """Packed rows of which some entries are made of partial sums."""
    packed = np.empty(shape, np.uint32)
    packed[:] = others
    if summed is not None and entries:
        packed[..., entries, :] = summed
    return packed


def _on_host(words: Any) -> np.ndarray:
    if isinstance(words, np.ndarray):
        return words
    with jax.transfer_guard("allow"):
        return np.asarray(words)


def _parts(words: Any, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    ends = itertools.accumulate(map(math.prod, shapes))
    parts = [words[..., end - math.prod(shape) : end] for shape, end in zip(shapes, ends, strict=True)]
    return [part.reshape(*words.shape[:-1], *shape) for part, shape in zip(parts, shapes, strict=True)]


@tree_util.register_pytree_node_class
class Joined(Measurement):
    """A measurement as the words of all its arrays, uint32[n], or as partial sums, of which they are made on demand."""

    arrays: tuple[Any, ...] = ()  # an attribute of each, since a property is felt in a short step

    def __init__(self, arrays: Sequence[Any], layout: Layout | LayoutOnDevices) -> None:
        self.arrays, self.layout = tuple(arrays), layout

    @property
    def sources(self) -> tuple[MeasuredTree, ...]:
        return self.layout.sources

    @property
    def statistics(self) -> tuple[str, ...]:
        return self.layout.statistics

    @property
    def results(self) -> tuple[MeasuredTree, ...]:
        return self.layout.results

    @property
    def packed(self) -> dict[str, Any]:
        return self.layout.split(*self.arrays)[0]

    @property
    def counts(self) -> Any:
        return self.layout.split(*self.arrays)[1]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {source.name: shape for source, shape in zip(self.sources, self.layout.shapes, strict=False)}

    def tree_flatten(self):
        return self.arrays, self.layout

    @classmethod
    def tree_unflatten(cls, aux, children):
        self = object.__new__(cls)
        self.arrays, self.layout = children, aux
        return self


def joined(measurement: Measurement) -> Measurement:
    """Join the arrays in a traced program. Of several devices each may have some of them, so they stay apart there."""
    arrays, (sources, statistics, results) = measurement.tree_flatten()
    packed = [measurement.packed[source.name] for source in sources]
    shapes = tuple(x.shape for x in arrays)
    if any(isinstance(x, reduce.PerDevice) for x in packed):
        of_sources = [x.arrays if isinstance(x, reduce.PerDevice) else (x,) for x in packed]
        summed = tuple(x.summed if isinstance(x, reduce.PerDevice) else None for x in packed)
        n_arrays = tuple(map(len, of_sources))
        layout = LayoutOnDevices(sources, statistics, results, shapes[: len(packed)], summed, n_arrays)
        return Joined([*itertools.chain(*of_sources), *arrays[len(packed) :]], layout)
    if len(arrays) == 1 or jax.device_count() > 1:
        return measurement
    return Joined([reduce.joined_arrays([x.reshape(-1) for x in arrays])], Layout(sources, statistics, results, shapes))


def reduces_partially(statistics: tuple[str, ...]) -> bool:
    """Whether trees may be `Unreduced`, of these statistics, and on one device."""
    return statistics == LIGHT and reduce.has_float64_sums() and jax.default_backend() == "cpu"


def joined_later(measurement: Measurement) -> Measurement:
    """As `joined`, of a measurement with trees that are `Unreduced`; its counts are the results for `partial_sums`."""
    new, old = measurement.counts or ((), ())
    divided = [
        packed.divided() if isinstance(packed, reduce.Unreduced) else reduce.Divided([], [], (), packed, packed.shape)
        for packed in measurement.packed.values()
    ]
    leaves = [leaf for tree in divided for leaf in tree.leaves]
    n_layers = [n for tree in divided for n in tree.n_layers]
    arrays = [tree.packed.reshape(-1) for tree in divided if tree.packed is not None]
    sums, words, rows = list[jax.Array](), list[jax.Array](), reduce.Rows()
    if leaves or new:
        n_numbers = sum([x.size for x in (*leaves, *new, *old) if x is not None])
        measure_leaves = reduce.numbers_as_they_are if n_numbers <= reduce.MOST_NUMBERS else reduce.partial_sums
        sums, words, rows = measure_leaves(leaves, new, old, n_layers)
    _, _, entries, packed, shapes = zip(*divided, strict=True)
    has_words = tuple([x is not None for x in packed])
    layout = Layout(measurement.sources, LIGHT, measurement.results, shapes, rows, entries, has_words)
    return Joined([reduce.joined_arrays(parts) for parts in (sums, [*words, *arrays]) if parts], layout)
