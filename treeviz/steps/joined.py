"""A measurement that leaves the device as one array, since each array costs some µs to return and to read."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
from jax import lax, tree_util

from treeviz.steps.measure import Measurement
from treeviz.steps.measured_tree import MeasuredTree


class Layout(NamedTuple):
    """What the words are: the shapes of the packed rows of each source, then that of the counts of results, if any."""

    sources: tuple[MeasuredTree, ...]
    statistics: tuple[str, ...]
    results: tuple[MeasuredTree, ...]
    shapes: tuple[tuple[int, ...], ...]

    def split(self, words: Any) -> tuple[dict[str, Any], Any]:
        """The packed rows by name, and the counts or None, of words along a last axis."""
        parts, at = [], 0
        for shape in self.shapes:
            n = math.prod(shape)
            parts.append(words[..., at : at + n].reshape(*words.shape[:-1], *shape))
            at += n
        packed = {source.name: part for source, part in zip(self.sources, parts, strict=False)}
        return packed, parts[-1] if self.results else None


@tree_util.register_pytree_node_class
class Joined(Measurement):
    """A measurement as the words of all its arrays: uint32[n]. Its arrays are taken from them when asked for."""

    def __init__(self, words: Any, layout: Layout) -> None:
        self.words, self.layout = words, layout
        self.sources, self.statistics, self.results, _ = layout

    @property
    def packed(self) -> dict[str, Any]:
        return self.layout.split(self.words)[0]

    @property
    def counts(self) -> Any:
        return self.layout.split(self.words)[1]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {source.name: shape for source, shape in zip(self.sources, self.layout.shapes, strict=False)}

    def tree_flatten(self):
        return (self.words,), self.layout

    @classmethod
    def tree_unflatten(cls, aux, children):
        (words,) = children
        return cls(words, aux)


def joined(measurement: Measurement) -> Measurement:
    """Join the arrays in a traced program. Of several devices each may have some of them, so they stay apart there."""
    arrays, _ = measurement.tree_flatten()
    if len(arrays) == 1 or jax.device_count() > 1:
        return measurement
    layout = Layout(measurement.sources, measurement.statistics, measurement.results, tuple(x.shape for x in arrays))
    return Joined(lax.concatenate([x.reshape(-1) for x in arrays], 0), layout)
