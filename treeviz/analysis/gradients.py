"""What is said of gradients, and of any tree of arrays: measured within a jitted step, read on the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from treeviz.analysis.gradient_bits import (
    EXPONENT_ZERO,
    FULL,
    HISTOGRAM,
    LIGHT,
    NO_NUMBER,
    RANGE_AT,
    SHIFT,
    USUAL,
    check_statistics,
    cosines,
    n_words,
    reduce_leaves,
)
from treeviz.analysis.stats_summary import N_BINS
from treeviz.tree.walk import walk

__all__ = [
    "FULL",
    "HISTOGRAM",
    "LIGHT",
    "Measurement",
    "Source",
    "measure",
    "numbers_of",
    "reduce_tree",
    "source_of",
    "unpack",
]

LAST = "last_grads"  # the name of the tree whose leaves are compared with those of "grads"


class Source(NamedTuple):
    """A tree whose leaves are measured. Hashable, and the same for the same structure.

    Attributes:
      name: "grads", "params", "updates", or what somebody called it.
      paths: The key path of each leaf, as `jax.tree_util.keystr` writes it (and right for namedtuples), in JAX's order.
      sizes: How many elements each has.
      dtypes: "float32", "key<fry>", or "" of what is no array.
      has_number: Whether it is measured: a real or complex array with at least one element.
      shapes: "768,2304", "" of a scalar; or nothing at all, where shapes are not known.
    """

    name: str
    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    dtypes: tuple[str, ...]
    has_number: tuple[bool, ...]
    shapes: tuple[str, ...] = ()


@tree_util.register_pytree_node_class
class Measurement:
    """The statistics of some trees as they leave a jitted step: a pytree whose leaves are uint32 arrays.

    Return it from the step like any other output. `lax.scan` and `jax.vmap` put axes in front, one entry per
    inner step or member.

    Attributes:
      words: Of each source, by name: uint32[..., leaves, words].
      sources: What was measured, in order of their names.
      statistics: Which statistics were asked for, in order; `statistics_of` tells which the words of a source hold.
    """

    def __init__(
        self,
        words: Mapping[str, Any],
        sources: Sequence[Source],
        statistics: tuple[str, ...] = LIGHT,
    ) -> None:
        self.words = dict(words)
        self.sources = tuple(sources)
        self.statistics = tuple(statistics)

    def tree_flatten(self):
        return tuple(self.words[s.name] for s in self.sources), (self.sources, self.statistics)

    @classmethod
    def tree_unflatten(cls, aux, children):
        sources, statistics = aux
        self = object.__new__(cls)
        self.words = {source.name: child for source, child in zip(sources, children, strict=True)}
        self.sources, self.statistics = sources, statistics
        return self

    def statistics_of(self, name: str) -> tuple[str, ...]:
        """Which statistics the words of a source hold, in order."""
        return (*self.statistics, "cosine") if name == "grads" and LAST in self.words else self.statistics

    def __repr__(self) -> str:
        of = ", ".join(f"{source.name}: {len(source.paths)} leaves" for source in self.sources)
        return f"Measurement({of}; {', '.join(self.statistics)})"


def measure(*, statistics: tuple[str, ...] = LIGHT, **trees: Any) -> Measurement:
    """Measure trees of arrays within a jitted step; return what this gives from the step.

        def update(params, opt_state, batch):
            grads = jax.grad(loss)(params, batch)
            updates, opt_state = optimizer.update(grads, opt_state, params)
            measurement = tv.measure(params=params, grads=grads, updates=updates)
            return optax.apply_updates(params, updates), opt_state, measurement

    Pure, and works under every transformation. The trees do not change, and nothing waits.

    Args:
      statistics: `LIGHT` costs little enough for every step; `FULL` adds mean, zeros, NaN and infinities;
        `HISTOGRAM` adds how often each power of two occurs.
      **trees: Any pytrees, by name. With "params", "grads" and "updates" their ratios are known too; with
        "last_grads", the gradients of the step before, so is the cosine of each leaf of "grads" with them.

    Raises:
      ValueError: A statistic that is not known, or "last_grads" of another structure than "grads".
    """
    statistics = check_statistics(statistics)
    sources = [source_of(tree, name) for name, tree in sorted(trees.items())]
    words = {name: reduce_tree(tree, statistics=statistics) for name, tree in trees.items()}
    if LAST in trees and "grads" in trees:
        if jax.tree.structure(trees["grads"]) != jax.tree.structure(trees[LAST]):
            raise ValueError("measure: last_grads has another structure than grads; start with a tree of zeros.")
        both = cosines(_numeric(trees["grads"]), _numeric(trees[LAST]))
        words["grads"] = jnp.concatenate([words["grads"], both], axis=1)
    return Measurement(words, sources, statistics)


def _numeric(tree: Any) -> list:
    return [leaf if _has_number(leaf) else None for leaf in jax.tree.leaves(tree)]


def reduce_tree(tree: Any, *, statistics: tuple[str, ...] = LIGHT) -> jax.Array:
    """uint32[n_leaves, n_words]: the statistics of each leaf, as bits, in JAX's order; `unpack` reads them.

    Pure and traceable everywhere. A leaf without numbers (an integer, a key, an empty array …) has a row that says so.
    """
    statistics = check_statistics(statistics)
    return reduce_leaves(_numeric(tree), statistics)


def source_of(tree: Any, name: str) -> Source:
    """What the leaves of a tree are called and what they hold. Costs some µs a leaf; looks at no value."""
    leaves = jax.tree.leaves(tree)
    return Source(
        name,
        _paths(tree, len(leaves)),
        tuple(int(np.prod(getattr(leaf, "shape", ()), dtype=object)) for leaf in leaves),
        tuple(str(getattr(leaf, "dtype", "")) for leaf in leaves),
        tuple(_has_number(leaf) for leaf in leaves),
        tuple(",".join(map(str, getattr(leaf, "shape", ()))) for leaf in leaves),
    )


def _paths(tree: Any, n_leaves: int) -> tuple[str, ...]:
    rows = list(walk(tree).leaves)
    if len(rows) == n_leaves:
        return tuple(row.keystr for row in rows)
    # cut or counted in another way: JAX's own paths are then the ones that surely belong to its leaves
    return tuple(tree_util.keystr(path) for path, _ in tree_util.tree_flatten_with_path(tree)[0])


def _has_number(leaf: Any) -> bool:
    if type(leaf) in (float, complex):
        return True
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct):
        return False
    return leaf.dtype != np.dtype(object) and jnp.issubdtype(leaf.dtype, jnp.inexact) and 0 not in leaf.shape


def unpack(words: np.ndarray, statistics: Sequence[str], sizes: Sequence[int] | None = None) -> dict[str, np.ndarray]:
    """Read what `reduce_tree` made: each statistic of each leaf, with the axes in front that the words have.

    Norm, maximum and mean are of the numbers that are finite, and "nonfinite" counts the others: a gradient with one
    NaN still has a size. A leaf without numbers has NaN for floats and -1 for counts.

    Args:
      words: uint32[..., n_leaves, n_words].
      sizes: The sizes of the leaves; with them there is also "rms".

    Returns:
      "norm", "max_abs", "mean", "rms": float64[..., n_leaves]; "nonfinite", "zeros", "nan", "posinf", "neginf":
      int64[..., n_leaves]; "histogram": int64[..., n_leaves, 64], bin i counts 2**(i-40) <= |x| < 2**(i-39).
    """
    words = np.ascontiguousarray(words, np.uint32)
    if words.shape[-1] != n_words(statistics):
        raise ValueError(f"unpack: rows of {words.shape[-1]} words, but {n_words(statistics)} for {tuple(statistics)}.")
    first = words[..., 0]
    is_nothing = first == NO_NUMBER
    exponent = (first & 0xFFFF).astype(np.int64) - EXPONENT_ZERO
    shift = SHIFT * ((first >> RANGE_AT & 3).astype(np.int64) - USUAL) + exponent
    numbers: dict[str, np.ndarray] = {}
    at = 1
    for name in statistics:
        if name == "histogram":
            numbers[name] = np.where(is_nothing[..., None], -1, words[..., at : at + N_BINS].astype(np.int64))
            at += N_BINS
            continue
        word = words[..., at]
        at += 1
        if name in ("norm", "max_abs", "mean", "cosine"):
            value = np.ascontiguousarray(word).view(np.float32).astype(np.float64)
            if name == "norm":
                value = np.ldexp(np.sqrt(value), shift)
            elif name != "cosine":
                value = np.ldexp(value, shift if name == "mean" else exponent)
            numbers[name] = np.where(is_nothing, np.nan, value)
        else:
            numbers[name] = np.where(is_nothing, -1, word.astype(np.int64))
    if {"norm", "max_abs"} <= numbers.keys():  # XLA may take denormal numbers for zeros, in the squares
        numbers["norm"] = np.maximum(numbers["norm"], numbers["max_abs"])
    if sizes is not None and "norm" in numbers:
        numbers["rms"] = numbers["norm"] / np.sqrt(np.maximum(np.asarray(sizes, np.float64), 1))
    return numbers


def numbers_of(measurement: Measurement) -> dict[str, dict[str, np.ndarray]]:
    """Read a measurement: what `unpack` gives, of each source. Waits for the step that it came from."""
    with jax.transfer_guard("allow"):
        words = jax.device_get(measurement.words)
    return {
        source.name: unpack(words[source.name], measurement.statistics_of(source.name), source.sizes)
        for source in measurement.sources
    }


def steps_of(numbers: Mapping[str, Mapping[str, np.ndarray]]) -> Iterator[dict[str, dict[str, np.ndarray]]]:
    """The numbers of each inner step of a loop, one by one: what `scan` stacked along the first axis."""
    n_steps = min(len(values) for statistics in numbers.values() for values in statistics.values())
    for i in range(n_steps):
        yield {name: {k: values[i] for k, values in statistics.items()} for name, statistics in numbers.items()}
