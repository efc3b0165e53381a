"""The rule for `shard_map`: what is measured on every device comes out with one row for each."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.extend.core import Jaxpr, Literal
from jax.sharding import PartitionSpec

from treeviz.analysis.thread_out import Axis

SUMS = ("psum", "psum2", "psum_invariant", "psum_p", "all_reduce")
_SAME_VALUE = ("convert_element_type", "pvary", "pcast", "pbroadcast")


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


def after_sum(
    jaxpr: Jaxpr, variables: Sequence[Any], axis_sizes: Mapping[str, int]
) -> tuple[list[Any], frozenset[str]] | None:
    """Where gradients of a device's own share of the batch have become those of the whole: behind `psum` or `pmean`.

    Returns:
      The variables that hold the sums (or means), and the axes of the mesh that were summed over; None if one of
      `variables` is not summed in this jaxpr.
    """
    ends, summed = [], None
    for variable in variables:
        end, axes = _follow(jaxpr, variable, axis_sizes)
        if not axes:
            return None
        ends.append(end)
        summed = axes if summed is None else summed & axes
    return ends, summed or frozenset()


def _follow(jaxpr: Jaxpr, variable: Any, axis_sizes: Mapping[str, int]) -> tuple[Any, frozenset[str]]:
    axes: frozenset[str] = frozenset()
    end = at = variable
    while True:
        users = [(e, i) for e in jaxpr.eqns for i, x in enumerate(e.invars) if x is at]
        sums = [(e, i) for e, i in users if e.primitive.name in SUMS]
        if sums:
            eqn, place = sums[0]
            axes |= {axis for axis in eqn.params["axes"] if isinstance(axis, str)}
            end = at = eqn.outvars[place]
        elif len(users) == 1 and _keeps_or_divides(users[0][0], math.prod(axis_sizes.get(a, 1) for a in axes)):
            at = users[0][0].outvars[0]
            end = at if axes else end
        else:
            return end, axes


def _keeps_or_divides(eqn: Any, n: int) -> bool:
    """Another dtype; or division by the number of devices, which makes a mean of the sum."""
    if eqn.primitive.name in _SAME_VALUE:
        return True
    by = eqn.invars[-1]
    if eqn.primitive.name not in ("div", "mul") or not isinstance(by, Literal) or n == 1:
        return False
    return bool(np.all(np.isclose(np.float32(by.val), n if eqn.primitive.name == "div" else 1 / n)))
