"""Measurements as they arrive from the device, read together: one row of numbers per step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from treeviz.analysis.gradient_owners import Owned
from treeviz.analysis.gradients import Measurement, Source, unpack

Numbers = dict[str, dict[str, np.ndarray]]


class Arrived(NamedTuple):
    """A measurement that a step gave.

    Attributes:
      measurement: Its arrays may not be computed yet.
      step: The number of the step.
      watches: What is known of the sources by their names, if a watched step gave it.
      suffix: What the names of the sources get, so that those of several steps differ.
    """

    measurement: Measurement
    step: int
    watches: Mapping[str, Owned] = MappingProxyType({})
    suffix: str = ""

    def is_ready(self) -> bool:
        """Whether it can be read without waiting."""
        return all(getattr(words, "is_ready", _yes)() for words in self.measurement.words.values())


def _yes() -> bool:
    return True  # of a NumPy array, which a callback gets


class Row(NamedTuple):
    """The numbers of one step, by source and statistic.

    Attributes:
      call: Which call of which step gave them: the suffix and number of what arrived. Inner steps share it.
    """

    step: int
    sources: list[Source]
    numbers: Numbers
    call: tuple[str, int]

    @property
    def bad_sources(self) -> set[str]:
        """Those with numbers that are not finite."""
        of = self.numbers.items()
        return {name for name, numbers in of if "nonfinite" in numbers and (numbers["nonfinite"] > 0).any()}


def axes_of(arrived: Arrived) -> dict[str, tuple[str, ...]]:
    """What stands in front of the words of each source: "step", "member" or "device" for each axis.

    Of a measurement that was returned by the step itself, the first is that of a loop.
    """
    axes = {}
    for name, words in arrived.measurement.words.items():
        if name in arrived.watches:
            axes[name] = tuple(axis.kind for axis in arrived.watches[name].axes)
        else:
            axes[name] = ("step", *("member",) * (words.ndim - 3))[: max(words.ndim - 2, 0)]
    return axes


def read(arrived: Sequence[Arrived], *, members: str = "joined") -> Iterator[Row]:
    """The numbers of every step, inner steps of a loop one by one. Waits for the device.

    A step that ran `k` inner steps counts as `k`: its i-th has the number `step * k + i`.

    Args:
      members: "joined": an ensemble's norms are joined into one of all members. "each": a leaf per member.
    """
    for _, group in groupby(arrived, key=_layout):
        alike = list(group)
        first = alike[0]
        axes = axes_of(first)
        sources, by_source = [], {}
        for source in first.measurement.sources:
            with jax.transfer_guard("allow"):
                stacked = np.stack([np.asarray(each.measurement.words[source.name]) for each in alike])
            numbers = unpack(stacked, first.measurement.statistics_of(source.name), source.sizes)
            numbers.pop("rms", None)
            source, rows = _leaf_rows(source, numbers, ("batch", *axes[source.name]), members)
            source = source._replace(name=source.name + first.suffix)
            by_source[source.name] = rows
            sources.append(source)
        yield from _step_by_step(alike, sources, by_source)


def copied(measurements: Sequence[Measurement]) -> list[Measurement]:
    """The same numbers in buffers of their own, those with the same statistics together as one measurement."""
    words = iter(_copy([list(each.words.values()) for each in measurements]))
    of_statistics: dict[tuple[str, ...], tuple[dict, list[Source]]] = {}
    for each in measurements:
        all_words, sources = of_statistics.setdefault(each.statistics, ({}, []))
        all_words.update(zip(each.words, next(words), strict=True))
        sources += each.sources
    return [Measurement(*both, statistics) for statistics, both in of_statistics.items()]


@jax.jit
def _copy(words):
    return jax.tree.map(jnp.copy, words)


def _layout(arrived: Arrived) -> Any:
    """The same for measurements that can be read together."""
    measurement = arrived.measurement
    shapes = tuple(words.shape for words in measurement.words.values())
    # sources of one program are the same objects, and to compare those of a thousand leaves takes time
    return tuple(map(id, measurement.sources)), measurement.statistics, shapes, id(arrived.watches), arrived.suffix


def _leaf_rows(source: Source, numbers: dict[str, np.ndarray], kinds: Sequence[str], members: str):
    """Numbers as [batch, inner steps, leaves, …], whatever axes stood in front of the leaves."""
    n_front = len(kinds)
    of_steps = [i for i, kind in enumerate(kinds) if kind == "step"]
    of_members = [i for i, kind in enumerate(kinds) if kind in ("member", "device")]
    rows = {}
    n_members = 1
    for name, values in numbers.items():
        shape = values.shape
        values = np.transpose(values, [0, *of_steps, *of_members, *range(n_front, values.ndim)])
        n_members = int(np.prod([shape[i] for i in of_members], dtype=np.int64))
        n_steps = int(np.prod([shape[i] for i in of_steps], dtype=np.int64))
        values = values.reshape(shape[0], n_steps, n_members, *shape[n_front:])
        if not of_members or (members == "joined"):
            rows[name] = _joined(name, values) if of_members else values[:, :, 0]
        else:
            values = np.moveaxis(values, 2, 3)  # leaf by leaf, its members side by side
            rows[name] = values.reshape(*values.shape[:2], -1, *values.shape[4:])
    if of_members and members == "each":
        source = _of_each_member(source, n_members)
    return source, rows


def _joined(name: str, values: np.ndarray) -> np.ndarray:
    """Over the members, the third axis."""
    if name == "norm":
        return np.sqrt(np.sum(np.square(values), axis=2))
    if name == "max_abs":
        return np.max(values, axis=2)
    if values.dtype.kind == "f":
        return np.mean(values, axis=2)
    nothing = (values < 0).all(axis=2)
    return np.where(nothing, -1, np.maximum(values, 0).sum(axis=2))


def _of_each_member(source: Source, n_members: int) -> Source:
    def repeated(values: Sequence) -> tuple:
        return tuple(value for value in values for _ in range(n_members))

    paths = tuple(f"{path}[{member}]" for path in source.paths for member in range(n_members))
    return source._replace(
        paths=paths,
        sizes=repeated(source.sizes),
        dtypes=repeated(source.dtypes),
        has_number=repeated(source.has_number),
        shapes=repeated(source.shapes),
    )


def _step_by_step(arrived: Sequence[Arrived], sources: list[Source], by_source: Numbers) -> Iterator[Row]:
    n_inner = {name: next(iter(numbers.values())).shape[1] for name, numbers in by_source.items()}
    most = max(n_inner.values())
    for batch, each in enumerate(arrived):
        for inner in range(most):
            numbers = {
                name: {statistic: values[batch, min(inner, n_inner[name] - 1)] for statistic, values in rows.items()}
                for name, rows in by_source.items()
                # what was measured once in a loop belongs to its last step
                if n_inner[name] == most or inner == most - 1
            }
            yield Row(each.step * most + inner, sources, numbers, (each.suffix, each.step))
