"""The rule of `reap` for `shard_map`: what the devices measure is returned with one row per device."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import PartitionSpec

from treeviz.steps.tracing.sow import Axis, Reaped


def reap_shard_map(run: Any, eqn: Any, operands: list[Any], origins: list[int | None]):
    """Run a `shard_map` with the packed rows measured inside it as further results.

    Rows that are known to be equal on all devices are returned once; all others get a leading axis of devices.
    """
    p = eqn.params
    function, reaped = run.with_axes(p["mesh"].shape).traced(p["jaxpr"], origins)
    axes = tuple(name for name in p["mesh"].axis_names if name in _manual_axes(p))
    may_differ: list[bool] = []

    def with_device_axis(*operands):
        results, packed = function(*operands)
        may_differ[:] = [_may_differ(x, r, p, axes) for x, r in zip(packed, reaped, strict=True)]
        return tuple(results), tuple(x[None] for x in packed)

    in_specs = tuple(specs_of(p, "in", eqn.invars))
    out_specs = (tuple(specs_of(p, "out", eqn.outvars)), PartitionSpec(axes))
    results, packed = shard_map_like(p, with_device_axis, in_specs, out_specs)(*operands)
    device = Axis("device", None)
    reaped = [r.within(device) if differ else r for r, differ in zip(reaped, may_differ, strict=True)]
    packed = [x if differ else x[0] for x, differ in zip(packed, may_differ, strict=True)]
    return results, [replace(r, summed_over=frozenset()) for r in reaped], packed


def _may_differ(packed: Any, reaped: Reaped, p: dict[str, Any], axes: Sequence[str]) -> bool:
    """Whether the devices may measure different rows."""
    if p.get("check_vma"):
        return bool(varying_axes(p, jax.typeof(packed)))
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
