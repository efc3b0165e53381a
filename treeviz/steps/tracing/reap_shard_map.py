"""The rule of `reap` for `shard_map`: what the devices measure is returned with one row per device."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import PartitionSpec

from treeviz.steps.measured_tree import MeasuredTree, Parts, WhyNot, shape_of
from treeviz.steps.tracing.primitives import open_jaxpr
from treeviz.steps.tracing.sow import Axis, Reaped
from treeviz.steps.unreduced import OnEach


class Devices(NamedTuple):
    """The devices of a `shard_map`.

    Attributes:
      params: The parameters of its equation.
      sizes: Of the mesh axes that are named inside.
      operands: By the number of an origin, how the operand is divided among the devices, and its shape on each; None:
        unknown.
      is_inner: It is inside another one, so that it is not known what the operands are outside of both.
    """

    params: dict[str, Any]
    sizes: Mapping[str, int]
    operands: Sequence[tuple[PartitionSpec, tuple[int, ...]] | None]
    is_inner: bool = False

    @property
    def is_manual(self) -> bool:
        """Whether no axis of the mesh is left to XLA, which would gather what is reshaped."""
        return not self.is_inner and _manual_axes(self.params) >= {*self.params["mesh"].axis_names}

    def in_body(self, origins: Sequence[int | None]) -> Devices:
        """The same, for the body of a loop whose operands have these origins."""
        return self._replace(operands=[None if o is None else self.operands[o] for o in origins])

    def shards(
        self, values: Sequence[Any], origins: Sequence[int | None], summed: Sequence[frozenset[str]] | None
    ) -> tuple[tuple[PartitionSpec, ...], WhyNot]:
        """How each value is divided, if the devices have parts of whole arrays and nothing else; else nothing.

        Args:
          origins: Of which argument each value is the gradient.
          summed: The axes over which each value has been summed.

        Returns:
          This, and why the layers along an axis of a value cannot be told apart.
        """
        specs: list[PartitionSpec | None] = []
        is_whole = not self.is_inner
        for i, (value, origin) in enumerate(zip(values, origins, strict=True)):
            differs = {*varying_axes(self.params, _type_of(value))} - (summed[i] if summed else frozenset())
            spec, shape = (None if origin is None else self.operands[origin]) or (None, None)
            spec = spec if shape == value.shape else None  # else it is of a part, as in a loop over it, or of a batch
            spec = PartitionSpec() if spec is None and not differs else spec
            is_whole = is_whole and spec is not None and differs <= {*_named_in(spec)}
            specs.append(spec)

        def why_not(i: int, axis: int) -> str:
            spec = specs[i]
            is_known = spec is not None and (is_whole or not (_named_in(spec[axis : axis + 1]) or self.is_inner))
            return "" if is_known else "which device of the `shard_map` has which of them is not known"

        return tuple(spec for spec in specs if spec is not None) if is_whole else (), why_not

    def whole(self, source: MeasuredTree, shards: Sequence[PartitionSpec]) -> MeasuredTree:
        """A tree with the shapes that its arrays have outside."""
        left, sizes, shapes = iter(shards), list(source.sizes), list(source.shapes)
        for leaf, has in enumerate(source.has_number if shards else ()):
            spec, shape = next(left) if has else (), list(shape_of(source.shapes[leaf]))
            for dim, names in enumerate(spec):
                shape[dim] *= self._n(_named_in([names]))
            sizes[leaf] = math.prod(shape) if has else sizes[leaf]
            shapes[leaf] = ",".join(map(str, shape))
        return source._replace(sizes=tuple(sizes), shapes=tuple(shapes))

    def parts(self, reaped: Reaped, axes: Sequence[str]) -> Parts:
        """Which rows of which devices each entry of a tree has.

        Args:
          axes: Of the mesh, in the order in which the devices are counted.
        """
        places = dict(zip(axes, np.indices([self.sizes[axis] for axis in axes]).reshape(len(axes), -1), strict=True))
        left, entries, row = iter(reaped.shards), [], 0
        source, layers = reaped.sown.source, reaped.sown.axes
        for leaf, has in enumerate(source.has_number):
            spec, axis = next(left) if has else (), layers[leaf] if layers else None
            of_layers = () if axis is None else _named_in(spec[axis : axis + 1])
            n_blocks = self._n(of_layers)  # of layers, each on other devices
            n = 1 if axis is None else shape_of(source.shapes[leaf])[axis] // n_blocks
            block, is_first = np.zeros_like(places[axes[0]]), np.ones_like(places[axes[0]], bool)
            for name in of_layers:
                block = block * self.sizes[name] + places[name]
            for name in set(axes) - set(_named_in(spec)):
                is_first &= places[name] == 0
            for k in range(n_blocks):
                devices = np.flatnonzero(is_first & (block == k)).tolist()
                entries += [(row + i, devices) for i in range(n)]
            row += n
        return Parts(entries)

    def _n(self, names: Sequence[str]) -> int:
        return math.prod(self.sizes[name] for name in names)


def _named_in(spec: Iterable[Any]) -> tuple[str, ...]:
    """The mesh axes in a `PartitionSpec`, or in a part of it."""
    return tuple(name for each in spec for name in (each if isinstance(each, tuple) else (each,)) if name is not None)


def _type_of(x: Any) -> Any:
    return jax.typeof(x) if hasattr(jax, "typeof") else None  # jax < 0.6


def reap_shard_map(run: Any, eqn: Any, operands: list[Any], origins: list[int | None]):
    """Run a `shard_map` with the packed rows measured inside it as further results.

    Rows that are known to be equal on all devices are returned once; all others get a leading axis of devices.
    """
    p = eqn.params
    in_specs, inside = tuple(specs_of(p, "in", eqn.invars)), open_jaxpr(p["jaxpr"]).invars
    outer = {} if run.devices is None else run.devices.sizes
    shapes = [(spec, getattr(x.aval, "shape", ())) for spec, x in zip(in_specs, inside, strict=True)]
    devices = Devices(p, {**outer, **p["mesh"].shape}, shapes, bool(outer))
    function, reaped = run.traced(p["jaxpr"], range(len(operands)), devices)
    axes = tuple(name for name in p["mesh"].axis_names if name in _manual_axes(p))
    may_differ: list[bool] = []

    def with_device_axis(*operands):
        results, packed = function(*operands)
        may_differ[:] = [_may_differ(x, r, p, axes) for x, r in zip(packed, reaped, strict=True)]
        return tuple(results), tuple(x if isinstance(x, OnEach) else x[None] for x in packed)

    out_specs = (tuple(specs_of(p, "out", eqn.outvars)), PartitionSpec(axes))
    results, packed = shard_map_like(p, with_device_axis, in_specs, out_specs)(*operands)
    packed = [x if differ else _of_first(x) for x, differ in zip(packed, may_differ, strict=True)]
    found = []
    for r, differ in zip(reaped, may_differ, strict=True):
        r = r.within(Axis("device", None, devices.parts(r, axes) if r.shards else None)) if differ else r
        found.append(replace(r.outside(origins), summed_over=frozenset(), shards=()))
    return results, found, packed


def _of_first(packed: Any) -> Any:
    return packed.alike() if isinstance(packed, OnEach) else packed[0]


def _may_differ(packed: Any, reaped: Reaped, p: dict[str, Any], axes: Sequence[str]) -> bool:
    """Whether the devices may measure different rows."""
    if reaped.shards:
        return any(map(_named_in, reaped.shards))
    if p.get("check_vma"):
        return any(varying_axes(p, _type_of(x)) for x in jax.tree.leaves(packed))
    return not reaped.summed_over >= set(axes)


def varying_axes(p: dict[str, Any], aval: Any) -> tuple[str, ...]:
    """The axes of the mesh along which a value inside may differ, in the order of the mesh."""
    axes = tuple(name for name in p["mesh"].axis_names if name in _manual_axes(p))
    if not p.get("check_vma"):
        return axes
    varying = getattr(getattr(aval, "manual_axis_type", None), "varying", None)  # `aval.vma` until jax 0.9 or so
    varying = getattr(aval, "vma", axes) if varying is None else varying
    return tuple(name for name in axes if name in varying)


def _manual_axes(p: dict[str, Any]) -> frozenset[str]:
    for name in ("newly_manual_axes", "manual_axes"):
        if name in p:
            return frozenset(p[name])
    return frozenset(p["mesh"].axis_names) - frozenset(p.get("auto", ()))


def specs_of(p: dict[str, Any], which: str, values: Sequence[Any]) -> Sequence[Any]:
    """The `PartitionSpec` of each operand, "in", or result, "out"."""
    if f"{which}_specs" in p:
        return p[f"{which}_specs"]
    # jax 0.4 has a dict instead: the axes of the mesh by the number of the dimension
    return [
        PartitionSpec(*(names.get(i) for i in range(len(value.aval.shape))))
        for names, value in zip(p[f"{which}_names"], values, strict=True)
    ]


def shard_map_like(p: dict[str, Any], function: Callable, in_specs, out_specs) -> Callable:
    """A function on the devices of the `shard_map` with these parameters, and with its options."""
    if "check_vma" in p:
        options = {"check_vma": p["check_vma"], "axis_names": set(_manual_axes(p))}
        return jax.shard_map(function, mesh=p["mesh"], in_specs=in_specs, out_specs=out_specs, **options)
    from jax.experimental.shard_map import shard_map

    # JAX checked the replication when it traced the step. The check has a further effect on differentiation only.
    options = {"auto": p["auto"]} if "auto" in inspect.signature(shard_map).parameters else {}
    return shard_map(function, p["mesh"], in_specs, out_specs, check_rep=False, **options)
