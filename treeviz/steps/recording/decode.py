"""Read measurements from the device, many at a time, and decode them into the numbers of each step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from treeviz.analysis.stats import lies_on_host
from treeviz.steps.measure import Joined, MeasuredTree, Measurement, find_measurements
from treeviz.steps.statistics import (
    ACTIVATIONS,
    LOSSES,
    OF_FEATURES,
    STATISTICS,
    Parts,
    in_layers,
    kind_of,
    result_kind,
    unpack,
    unpack_activations,
)
from treeviz.steps.tracing.attribution import Attribution
from treeviz.tree.layers import MOST_LAYERS, MOST_SCANNED
from treeviz.tree.text import printable

Numbers = dict[str, dict[str, np.ndarray]]


class Arrived(NamedTuple):
    """A measurement that a step returned."""

    measurement: Measurement  # its arrays may still be computing
    step: int
    watches: Mapping[str, Attribution] = MappingProxyType({})  # by the names of the sources, if the step is watched
    suffix: str = ""  # appended to the names of the sources, to distinguish several steps

    @property
    def arrays(self) -> tuple[Any, ...]:
        return self.measurement.arrays

    @property
    def n_bytes(self) -> int:
        return sum(getattr(array, "nbytes", 0) for array in self.measurement.arrays)

    def is_ready(self) -> bool:
        return all(map(is_ready, self.measurement.arrays))


def is_ready(array: Any) -> bool:
    """Whether an array can be read without waiting."""
    return not hasattr(array, "is_ready") or array.is_ready()  # `jax.device_get` returns NumPy arrays


class ReadSteps(NamedTuple):
    steps: Sequence[int]  # a step is a call; the inner steps of a loop share its number
    inner: Sequence[int]  # the number of each inner step, from 0; -1 for what is measured once in a call
    suffix: str  # see `Arrived`
    sources: Sequence[MeasuredTree]
    numbers: Numbers  # by source and statistic; the first axis is the step
    # That steps returned: the step, the values by name, and the number of inner steps of the call.
    losses: Sequence[tuple[int, dict[str, np.ndarray], int]] = ()

    def part(self, first: int, until: int | None = None) -> ReadSteps:
        own, numbers = slice(first, until), self.numbers.items()
        parts = {name: {statistic: values[own] for statistic, values in rows.items()} for name, rows in numbers}
        return self._replace(steps=self.steps[own], inner=self.inner[own], numbers=parts)

    @property
    def bad(self) -> dict[str, np.ndarray]:
        """bool[steps] by source: whether it contains NaN or Inf, except for results that may ("other")."""
        known = {name: rows for name, rows in self.numbers.items() if "nonfinite" in rows}
        others = {name: rows["nonfinite"] for name, rows in known.items() if result_kind(name) != "other"}
        return {name: np.any(counts > 0, axis=1) for name, counts in others.items()}

    @property
    def bad_sources(self) -> set[str]:
        return {name for name, is_bad in self.bad.items() if is_bad.any()}

    @property
    def bad_steps(self) -> set[int]:
        return {self.steps[i] for is_bad in self.bad.values() for i in np.flatnonzero(is_bad).tolist()}


def axes_of(arrived: Arrived) -> dict[str, tuple[str, ...]]:
    """Return the kinds of the leading axes of each source: "step", "member", "device" or "layer".

    A tap in a scan over layers has their axis as "layer": gradients are taken once for all, so it is no axis of steps.
    In a measurement that the user returned from the step, the first leading axis is assumed to be that of a loop.
    """
    shapes, watches = arrived.measurement.shapes, arrived.watches
    axes = {
        name: tuple(axis.kind for axis in watches[name].axes)
        if name in watches
        else ("step", *("member",) * (len(shape) - 3))[: max(len(shape) - 2, 0)]
        for name, shape in shapes.items()
    }
    loops = {name: [n for n, kind in zip(shapes[name], axes[name], strict=False) if kind == "step"] for name in axes}
    of_gradients = [sizes for name, sizes in loops.items() if kind_of(name)]
    for name in watches.keys() & axes.keys() if of_gradients else ():
        if not kind_of(name):
            loop = loops[name]
            n_common = next(n for n in range(len(loop), -1, -1) if any(loop[:n] == sizes[:n] for sizes in of_gradients))
            steps = [i for i, kind in enumerate(axes[name]) if kind == "step"][n_common:]
            axes[name] = tuple("layer" if i in steps else kind for i, kind in enumerate(axes[name]))
    return axes


def n_inner_steps(arrived: Arrived) -> int:
    """Count the inner steps of a loop in a measurement; 1 without a loop."""
    shapes = arrived.measurement.shapes
    axes = {name: zip(kinds, shapes[name], strict=False) for name, kinds in axes_of(arrived).items()}
    return max(math.prod(n for kind, n in source_axes if kind == "step") for source_axes in axes.values())


def read(arrived: Sequence[Arrived], *, members: str = "joined") -> Iterator[ReadSteps]:
    """Return the numbers of all steps, and of each inner step of a loop. Waits for the device.

    Args:
      members: "joined": one value for all members of a `vmap`, e.g. the norm over all. "each": a leaf per member.
    """
    for _, group in groupby(arrived, key=_layout):
        batch = list(group)
        first = batch[0]
        axes = axes_of(first)
        packed, counts = stacked([item.measurement for item in batch])
        sources, numbers_by_source, fed = [], {}, dict[MeasuredTree, dict[str, np.ndarray]]()
        for source in first.measurement.sources:
            if source.name == LOSSES:
                continue
            statistics = first.measurement.statistics_of(source.name)
            if source.name.startswith(ACTIVATIONS):
                _feed(fed, source, unpack_activations(packed[source.name], statistics, source))
                continue
            numbers = unpack(packed[source.name], statistics)
            watch, kinds = first.watches.get(source.name), axes[source.name]
            parts = next((axis.parts for axis in (watch.axes if watch else ()) if axis.parts is not None), None)
            # In an ensemble each member has its own parameters; examples share them, and some may have no gradient.
            is_ensemble = {*kinds} & {"member", "device"} == {"member"} and watch and "of each" not in watch.label
            if members == "joined" and "norm" in numbers and is_ensemble:
                numbers["least"] = numbers["norm"]
            source, rows = _leaf_rows(source, numbers, ("batch", *kinds), members, parts)
            source = source._replace(name=printable(source.name + first.suffix))
            numbers_by_source[source.name] = rows
            sources.append(source)
        for source, numbers in fed.items():
            if known := {name: x for name, x in numbers.items() if (x >= 0).any()}:  # else of a branch not taken
                source = source._replace(name=printable(source.name + first.suffix))
                numbers_by_source[source.name] = known
                sources.append(source)
        if counts is not None and (counts := counts & 0x7FFFFFFF).any():  # none in healthy steps
            end = 0
            for source in first.measurement.results:
                start, end = end, end + len(source.paths)
                own = counts[:, None, start:end].astype(np.int64)
                if own.any():
                    source = source._replace(name=printable(source.name + first.suffix))
                    numbers_by_source[source.name] = {"nonfinite": own >> 16, "nan": own & 0xFFFF}
                    sources.append(source)
        for steps in _in_order(batch, sources, numbers_by_source):
            yield steps._replace(losses=_losses(batch, packed.pop(LOSSES))) if LOSSES in packed else steps


def _losses(batch: Sequence[Arrived], bits: np.ndarray) -> list[tuple[int, dict[str, np.ndarray], int]]:
    """The losses that these steps returned, of their values [batch, 1, all losses]: one of each call or inner step."""
    source = next(source for source in batch[0].measurement.sources if source.name == LOSSES)
    values, n_inner = bits[:, 0].view(np.float32).astype(np.float64), n_inner_steps(batch[0])
    ends = np.cumsum(source.sizes)
    places = {
        printable(name + batch[0].suffix): slice(end - size, end)
        for name, size, end in zip(source.paths, source.sizes, ends.tolist(), strict=True)
        if size == 1 or (n_inner > 1 and n_inner % size == 0)  # else of devices or of members
    }
    return [
        (arrived.step, {name: own[place] for name, place in places.items()}, n_inner)
        for arrived, own in zip(batch, values, strict=True)
    ]


def stacked(measurements: Sequence[Measurement]) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """Return the packed rows by source, and the counts of results, for measurements of one layout."""
    first = measurements[0]
    if isinstance(first, Joined):
        arrays = zip(*(measurement.arrays for measurement in measurements), strict=True)
        return first.layout.split(*map(_on_host, arrays))
    packed = {name: _on_host([measurement.packed[name] for measurement in measurements]) for name in first.packed}
    return packed, _on_host([measurement.counts for measurement in measurements]) if first.results else None


def counts_of(measurement: Measurement) -> np.ndarray:
    """The counts of results, which must have been measured."""
    if isinstance(measurement, Joined):
        return measurement.layout.split(*(_on_host([x])[0] for x in measurement.arrays))[1]
    return _on_host([measurement.counts])[0]


def _on_host(arrays: Sequence[Any]) -> np.ndarray:
    array, order = arrays[0], list[int]()
    if isinstance(array, jax.Array) and len(array.sharding.device_set) > 1 and lies_on_host(array):
        n, *other_sizes = array.sharding.shard_shape(array.shape) or (0,)
        starts = [shard.index[0].start or 0 for shard in array.addressable_shards if shard.index]
        if (
            len({*starts}) == len(starts) and (n * len(starts), *other_sizes) == array.shape
        ):  # along the first axis only
            order = sorted(range(len(starts)), key=starts.__getitem__)
    with jax.transfer_guard("allow"):
        # Takes half the time of `np.asarray`.
        if order and all(x.sharding == array.sharding for x in arrays):
            parts = [[x.addressable_shards[i].data for i in order] for x in arrays]
            return np.array([np.concatenate([np.asarray(part) for part in shards]) for shards in parts])
        return np.array([np.asarray(x) for x in arrays])  # takes a fifth of the time of `np.stack`


def recordable(measured: Any) -> list[Measurement]:
    """Return a measurement, or copies of those in a tree, such as an optimizer state that the next step may donate."""
    if isinstance(measured, Measurement):
        return [measured]
    measurements = find_measurements(measured)
    if not measurements:
        raise ValueError(
            f"record: this {type(measured).__name__} has no measurement. Pass the result of treeviz.measure(), or the "
            "state of an optimizer that contains treeviz.inspect_gradients()."
        )
    return copied(measurements)


def copied(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Copy measurements; join those with the same statistics into one."""
    packed = iter(_copy([list(measurement.packed.values()) for measurement in measurements]))
    by_statistics: dict[tuple[str, ...], tuple[dict, list[MeasuredTree]]] = {}
    for measurement in measurements:
        all_packed, sources = by_statistics.setdefault(measurement.statistics, ({}, []))
        all_packed.update(zip(measurement.packed, next(packed), strict=True))
        sources += measurement.sources
    return [Measurement(*packed_and_sources, statistics) for statistics, packed_and_sources in by_statistics.items()]


@jax.jit
def _copy(packed):
    return jax.tree.map(jnp.copy, packed)


def _layout(arrived: Arrived) -> Any:
    """A key that is equal for measurements that can be read together."""
    measurement = arrived.measurement
    # By id: one program reuses the same objects, and comparing a thousand leaves takes time.
    if isinstance(measurement, Joined):
        return id(measurement.layout), id(arrived.watches), arrived.suffix
    shapes, sources = tuple(measurement.shapes.values()), tuple(map(id, measurement.sources))
    return sources, measurement.statistics, shapes, id(arrived.watches), arrived.suffix


def _leaf_rows(
    source: MeasuredTree, numbers: dict[str, np.ndarray], kinds: Sequence[str], members: str, parts: Parts | None
):
    """Reshape numbers with any leading axes to [batch, inner steps, leaves, …]; each layer is a leaf."""
    n_front, front = len(kinds), next(iter(numbers.values())).shape[: len(kinds)]
    layer_axes = [i for i, kind in enumerate(kinds) if kind == "layer"]
    step_axes = [i for i, kind in enumerate(kinds) if kind == "step"] + layer_axes
    member_axes = [i for i, kind in enumerate(kinds) if kind in ("member", "device")]
    n_members, n_steps, n_layers = (math.prod(front[i] for i in axes) for axes in (member_axes, step_axes, layer_axes))
    is_joined, rows = members == "joined" or parts is not None, {}
    for name, values in numbers.items():
        leaves = values.shape[n_front:]
        values = np.transpose(values, [0, *step_axes, *member_axes, *range(n_front, values.ndim)])
        if not n_members:  # an empty batch: zeros, as without a gradient
            values = np.zeros((front[0], n_steps, 1, *leaves), values.dtype)
        values = values.reshape(front[0], n_steps, max(n_members, 1), *leaves)
        if parts is not None:
            rows[name] = parts.joined(STATISTICS[name].join_members, values)
        else:
            rows[name] = _members_as_leaves(name, values, is_joined) if member_axes else values[:, :, 0]
    if member_axes and not is_joined:
        source = _leaf_per_member(source, max(n_members, 1))
    if not layer_axes:
        return source, rows
    is_joined = n_layers > MOST_SCANNED  # they are more likely time steps
    for name, values in rows.items():
        values = values.reshape(values.shape[0], -1, n_layers, *values.shape[2:])
        rows[name] = _members_as_leaves(name, values, is_joined)
    return source if is_joined else _leaf_per_member(source, n_layers), rows


def _feed(
    fed: dict[MeasuredTree, dict[str, np.ndarray]], source: MeasuredTree, numbers: Mapping[str, np.ndarray]
) -> None:
    """Add the numbers of activations to the trees that they are the inputs and outputs of."""
    for feed in source.feeds:
        n_front, steps = len(feed.axes) + 1, [i for i, kind in enumerate(feed.axes, 1) if kind == "step"]
        rows, entries = np.array(feed.rows), np.array(feed.entries)
        common, own = steps[: feed.n_common], steps[feed.n_common :]
        layer = [] if feed.layer is None else [own[feed.layer]]
        others = [i for i in range(1, n_front) if i not in (*common, *layer)]
        sizes = next(iter(numbers.values())).shape
        n_common, n_others = (math.prod(sizes[i] for i in axes) for axes in (common, others))
        n, joined = np.array(source.sizes)[rows] * n_others, dict[str, np.ndarray]()
        for name, values in numbers.items():
            values = values.transpose([0, *common, *others, *layer, *range(n_front, values.ndim)])
            values = values.reshape(sizes[0], n_common, n_others, entries.shape[1], *values.shape[n_front:])
            joined[name] = STATISTICS[name].join_members(values.take(rows, axis=4), axis=2)
        joined["rms"] = joined.pop("norm") / np.sqrt(n)
        zeros, is_input = joined.pop("zeros"), kind_of(feed.tree.name) == "inputs"
        if is_input or "max_abs" in joined:  # light rows have those of features alone
            joined["zero_share"] = np.where(zeros < 0, np.nan, zeros / n)
        has_features = np.array([shape != "" for shape in feed.tree.shapes])[entries.T]
        into = fed.setdefault(feed.tree, {})
        for name, values in joined.items():
            statistic = STATISTICS[name]
            missing = -1 if statistic.is_count else np.nan
            if name in OF_FEATURES or (name == "zero_share" and is_input):  # the value may go into a product, too
                values = np.where(has_features[..., None] if statistic.n_bins else has_features, values, missing)
            shape = *values.shape[:2], *statistic.shape(len(feed.tree.paths))
            whole = into.setdefault(name, np.full(shape, missing, statistic.dtype))
            if whole.shape[:2] == values.shape[:2]:
                # Of a conditional the branches that are not taken have no numbers.
                np.fmax.at(whole, (slice(None), slice(None), entries.T), values)


def _members_as_leaves(name: str, values: np.ndarray, is_joined: bool) -> np.ndarray:
    """Values [batch, inner steps, members, leaves, …] with the members of a leaf side by side, or joined into one."""
    if is_joined:
        return STATISTICS[name].join_members(values, axis=2)
    values = np.moveaxis(values, 2, 3)
    return values.reshape(*values.shape[:2], -1, *values.shape[4:])


def _leaf_per_member(source: MeasuredTree, n_members: int) -> MeasuredTree:
    if not source.stacks and n_members <= MOST_LAYERS:
        shapes = tuple(f"{n_members},{shape}".removesuffix(",") for shape in source.shapes)
        with_member_axis = source._replace(sizes=tuple(n_members * size for size in source.sizes), shapes=shapes)
        return in_layers(with_member_axis, (0,) * len(shapes))

    repeated: Any = (tuple(value for value in values for _ in range(n_members)) for values in source[1:])
    source = MeasuredTree(source.name, *repeated)
    paths = tuple(f"{path}[{i % n_members}]" for i, path in enumerate(source.paths))
    return source._replace(paths=paths, stacks=())


def _in_order(arrived: Sequence[Arrived], sources: list[MeasuredTree], numbers: Numbers) -> Iterator[ReadSteps]:
    """Yield the steps of measurements [batch, inner steps, …]: of each source as many as it has in a call."""
    n_inner = {name: next(iter(rows.values())).shape[1] for name, rows in numbers.items()}
    calls, suffix, most = [measurement.step for measurement in arrived], arrived[0].suffix, max(n_inner.values())
    for n in sorted(set(n_inner.values()), reverse=True):
        # What a loop around another one has belongs to the last of its inner steps.
        inner = [-1] if n == 1 else [(i + 1) * most // n - 1 for i in range(n)]
        own_numbers = {
            name: {statistic: values.reshape(-1, *values.shape[2:]) for statistic, values in rows.items()}
            for name, rows in numbers.items()
            if n_inner[name] == n
        }
        own_sources = [source for source, name in zip(sources, numbers, strict=True) if name in own_numbers]
        yield ReadSteps([step for step in calls for _ in inner], inner * len(calls), suffix, own_sources, own_numbers)
