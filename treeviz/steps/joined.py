"""A measurement that leaves the device as one array, since each costs some µs to return and to read.

Partial sums leave as two, of float64 and of words: a kernel that joins both takes longer to compile than all that is
measured, and to read two takes a µs more.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import tree_util

from treeviz.steps.few_numbers import MOST_NUMBERS, measured, n_numbers, number_of, numbers_as_they_are
from treeviz.steps.measure import Measurement
from treeviz.steps.measured_tree import MeasuredTree
from treeviz.steps.partial_sums import Rows, added_up, joined_arrays, partial_sums
from treeviz.steps.statistics import LIGHT
from treeviz.steps.unreduced import NOTHING, Divided, OnEach, Summed, Unreduced


class Layout(NamedTuple):
    """What the arrays are: partial sums, if any; the packed rows of sources; the counts of results, if not in the sums.

    The first array is the sums, float64[rows], if there are any; the other is of words, which begin with the magnitudes
    and counts of the rows, or in place of all partial sums with few numbers, as they are.

    Attributes:
      shapes: Of the packed rows of each source, then of the counts, if any.
      rows: Of the partial sums.
      entries: Of each source, the packed rows that are made of partial sums, in their order.
      has_words: Of each source, whether the words have its other packed rows.
    """

    sources: tuple[MeasuredTree, ...]
    statistics: tuple[str, ...]
    results: tuple[MeasuredTree, ...]
    shapes: tuple[tuple[int, ...], ...]
    rows: Rows = Rows()
    entries: tuple[tuple[int, ...], ...] = ()
    has_words: tuple[bool, ...] = ()

    def split(self, *arrays: Any) -> tuple[dict[str, Any], Any]:
        """The packed rows by name, and the counts or None, of arrays that may have more axes before the last."""
        *summed, words = arrays
        if not self.rows.n_rows:
            parts = _parts(words, self.shapes)
            packed = {source.name: part for source, part in zip(self.sources, parts, strict=False)}
            return packed, parts[-1] if self.results else None
        words = _on_host(words)
        if self.rows.are_numbers:
            n = n_numbers(self.rows)
            rows, counts = measured(words[..., :n], self.rows)
        else:
            n = 2 * sum(self.rows.n_rows)
            rows, counts = added_up(_on_host(summed[0]), words[..., :n], self.rows)
        own = [shape for shape, has in zip(self.shapes, self.has_words, strict=False) if has]
        return self._placed(rows, counts, words.shape[:-1], iter(_parts(words[..., n:], own)))

    def _placed(
        self, summed: np.ndarray | None, counts: np.ndarray | None, before: tuple[int, ...], others: Iterator[Any]
    ) -> tuple[dict[str, Any], Any]:
        """The packed rows of each source, of those of the leaves that are added up and of the others."""
        packed, at = {}, 0
        for source, shape, entries, has in zip(self.sources, self.shapes, self.entries, self.has_words, strict=False):
            mine = None if summed is None else summed[..., at : at + len(entries), :]
            packed[source.name] = _whole((*before, *shape), mine, entries, next(others) if has else NOTHING)
            at += len(entries)
        return packed, counts


class LayoutOnDevices(NamedTuple):
    """What the arrays are: for each source those of `OnEach`, or its packed rows; then the counts of results, if any.

    Attributes:
      shapes: Of the packed rows of each source.
      summed: Of each source, how its partial sums lie; None: it has packed rows alone.
      n_arrays: Of each source.
    """

    sources: tuple[MeasuredTree, ...]
    statistics: tuple[str, ...]
    results: tuple[MeasuredTree, ...]
    shapes: tuple[tuple[int, ...], ...]
    summed: tuple[Summed | None, ...]
    n_arrays: tuple[int, ...]

    def split(self, *arrays: Any) -> tuple[dict[str, Any], Any]:
        """As `Layout.split`, of all arrays, which may have a further axis before that of devices."""
        packed, left = {}, iter(arrays)
        for source, how, n in zip(self.sources, self.summed, self.n_arrays, strict=True):
            own = [*itertools.islice(left, n)]
            packed[source.name] = own[0] if how is None else _of_devices(how, *map(_on_host, own))
        return packed, next(left) if self.results else None


def _of_devices(how: Summed, sums: np.ndarray, words: np.ndarray, others: Any = NOTHING) -> np.ndarray:
    n = sum(how.rows.n_rows)
    before = (*sums.shape[:-1], sums.shape[-1] // n)
    found, _ = added_up(sums.reshape(*before, n), words.reshape(*before, 2 * n), how.rows)
    shape = *before, *how.shape
    packed = _whole(shape, found, how.entries, others if others is NOTHING else others.reshape(shape))
    return packed[..., 0, :, :] if how.is_alike else packed


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
    ends = list(itertools.accumulate(map(math.prod, shapes)))
    return [
        words[..., end - math.prod(shape) : end].reshape(*words.shape[:-1], *shape)
        for shape, end in zip(shapes, ends, strict=True)
    ]


@tree_util.register_pytree_node_class
class Joined(Measurement):
    """A measurement as the words of all its arrays, uint32[n], or as partial sums.

    Its arrays are made of these when they are asked for.
    """

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
    if any(isinstance(packed, OnEach) for packed in measurement.packed.values()):
        return _joined_on_devices(measurement)
    arrays, _ = measurement.tree_flatten()
    if len(arrays) == 1 or jax.device_count() > 1:
        return measurement
    layout = Layout(measurement.sources, measurement.statistics, measurement.results, tuple(x.shape for x in arrays))
    return Joined([joined_arrays([x.reshape(-1) for x in arrays])], layout)


def _joined_on_devices(measurement: Measurement) -> Joined:
    each = [measurement.packed[source.name] for source in measurement.sources]
    of_sources = [x.arrays if isinstance(x, OnEach) else (x,) for x in each]
    layout = LayoutOnDevices(
        measurement.sources,
        measurement.statistics,
        measurement.results,
        tuple(x.shape for x in each),
        tuple(x.how if isinstance(x, OnEach) else None for x in each),
        tuple(map(len, of_sources)),
    )
    counts = [measurement.counts] if measurement.results else []
    return Joined([*itertools.chain(*of_sources), *counts], layout)


def reduces_partially(statistics: tuple[str, ...]) -> bool:
    """Whether trees may be `Unreduced`, of these statistics, and on one device.

    Before jax 0.7.2 no operation without x64 may sum float64.
    """
    return statistics == LIGHT and jax.__version_info__ >= (0, 7, 2) and jax.default_backend() == "cpu"


def joined_later(measurement: Measurement) -> Measurement:
    """As `joined`, of a measurement with trees that are `Unreduced`; its counts are the results for `partial_sums`."""
    new, old = measurement.counts or ((), ())
    leaves: list[jax.Array] = []
    n_layers: list[int] = []
    arrays: list[jax.Array] = []
    of_sources: list[tuple[tuple[int, ...], tuple[int, ...], bool]] = []
    for packed in measurement.packed.values():
        each = packed.divided() if isinstance(packed, Unreduced) else Divided([], [], (), packed, packed.shape)
        leaves += each.leaves
        n_layers += each.n_layers
        arrays += [] if each.packed is None else [each.packed.reshape(-1)]
        of_sources.append((each.shape, each.entries, each.packed is not None))
    sums, words, rows = list[jax.Array](), list[jax.Array](), Rows()
    if (leaves or new) and number_of(leaves, new, old) <= MOST_NUMBERS:
        bits, rows = numbers_as_they_are(leaves, new, old, n_layers)
        words = [bits]
    elif leaves or new:
        sums, words, rows = partial_sums(leaves, new, old, n_layers)
    shapes, entries, has_words = zip(*of_sources, strict=True)
    layout = Layout(measurement.sources, LIGHT, measurement.results, shapes, rows, entries, has_words)
    return Joined([joined_arrays(each) for each in (sums, [*words, *arrays]) if each], layout)
