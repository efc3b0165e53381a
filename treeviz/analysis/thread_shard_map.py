"""The rule for `shard_map`: what is measured on every device comes out with one row for each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import PartitionSpec

from treeviz.analysis.marks import Axis


def thread_shard_map(run: Any, eqn: Any, operands: list[Any], origins: list[int | None]):
    """Run a `shard_map` with what is measured inside it as further results.

    Words that are the same on all devices come out once, the others with an axis of devices in front.
    """
    p = eqn.params
    function, found = run.within(p["mesh"].shape).traced(p["jaxpr"], origins)
    axes = tuple(name for name in p["mesh"].axis_names if name in _manual_axes(p))
    differs: list[bool] = []

    def with_device_axis(*operands):
        results, words = function(*operands)
        differs[:] = [_differs(x, f, p, axes) for x, f in zip(words, found, strict=True)]
        return tuple(results), tuple(x[None] for x in words)

    in_specs = tuple(_specs(p, "in", eqn.invars))
    out_specs = (tuple(_specs(p, "out", eqn.outvars)), PartitionSpec(axes))
    results, words = _shard_map(p, with_device_axis, in_specs, out_specs)(*operands)
    device = Axis("device", None)
    found = [f.within(device) if d else f for f, d in zip(found, differs, strict=True)]
    words = [x if d else x[0] for x, d in zip(words, differs, strict=True)]
    return results, [replace(f, summed_over=frozenset()) for f in found], words


def _differs(words: Any, found: Any, p: dict[str, Any], axes: Sequence[str]) -> bool:
    """Whether the devices may measure different numbers."""
    if p.get("check_vma"):
        aval = jax.typeof(words)
        varying = getattr(getattr(aval, "manual_axis_type", None), "varying", None)  # `aval.vma` until jax 0.9 or so
        return bool(getattr(aval, "vma", axes) if varying is None else varying)
    return not found.summed_over >= set(axes)


def _manual_axes(p: dict[str, Any]) -> frozenset[str]:
    for name in ("newly_manual_axes", "manual_axes"):
        if name in p:
            return frozenset(p[name])
    return frozenset(p["mesh"].axis_names) - frozenset(p.get("auto", ()))


def _specs(p: dict[str, Any], which: str, values: Sequence[Any]) -> Sequence[Any]:
    if f"{which}_specs" in p:
        return p[f"{which}_specs"]
    # jax 0.4: the axes of the mesh, by the dimension
    return [
        PartitionSpec(*(names.get(i) for i in range(len(value.aval.shape))))
        for names, value in zip(p[f"{which}_names"], values, strict=True)
    ]


def _shard_map(p: dict[str, Any], function: Callable, in_specs, out_specs) -> Callable:
    if "check_vma" in p:
        options = {"check_vma": p["check_vma"], "axis_names": set(_manual_axes(p))}
        return jax.shard_map(function, mesh=p["mesh"], in_specs=in_specs, out_specs=out_specs, **options)
    from jax.experimental.shard_map import shard_map

    # The check was made when the step was traced, and is of use for differentiation alone.
    options = {"auto": p["auto"]} if "auto" in inspect.signature(shard_map).parameters else {}
    return shard_map(function, p["mesh"], in_specs, out_specs, check_rep=False, **options)
