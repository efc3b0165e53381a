"""Find the sown values in a jaxpr, and those that are summed afterwards."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from jax.extend.core import Jaxpr, Literal

from treeviz.steps.tracing.primitives import (
    DEVICE_SUMS,
    SAME_LEAF,
    inner_jaxprs,
    is_recomputed,
    open_jaxpr,
)
from treeviz.steps.tracing.sow import Sown, sow_p


def sown_in(jaxpr: Any, recomputed: bool = False) -> Iterator[tuple[Sown, bool]]:
    """Every sown tree in a jaxpr and in those inside it, and whether `jax.checkpoint` computes it a second time."""
    for eqn in open_jaxpr(jaxpr).eqns:
        if eqn.primitive is sow_p:
            yield eqn.params["sown"], recomputed
        for inner in inner_jaxprs(eqn):
            yield from sown_in(inner, recomputed or is_recomputed(eqn))


def holds_sown(eqn: Any) -> bool:
    """Whether an equation sows, or one in its jaxprs does."""
    if eqn.primitive is sow_p:
        return True
    inner_ones = inner_jaxprs(eqn)
    return bool(inner_ones) and any(True for inner in inner_ones for _ in sown_in(inner))


def sums_of_sown(jaxpr: Jaxpr, axis_sizes: Mapping[str, int]) -> dict[int, list[tuple[Any, frozenset[str]]]]:
    """The sown gradients of which some are then summed over the devices of a `shard_map`.

    Each device has the gradient of its share of the batch. The user wants the gradient of the whole batch, which is
    the result of the `psum` or `pmean` that follows.

    Args:
      axis_sizes: The sizes of the mesh axes that are named in this jaxpr.

    Returns:
      By the number of the equation that sows, for each value: the variable that holds the sum or mean, and the axes of
      the mesh that it is over; the value itself and none where it is not summed.
    """
    if not any(eqn.primitive.name in DEVICE_SUMS for eqn in jaxpr.eqns):
        return {}
    found = {}
    for n, eqn in enumerate(jaxpr.eqns):
        if eqn.primitive is sow_p and eqn.params["sown"].kind not in ("tap", "loss"):
            sums = [_sum_of(jaxpr, variable, axis_sizes) for variable in eqn.outvars]
            if any(axes for _, axes in sums):
                found[n] = sums
    return found


def _sum_of(jaxpr: Jaxpr, variable: Any, axis_sizes: Mapping[str, int]) -> tuple[Any, frozenset[str]]:
    """The last sum or mean over devices that a variable becomes, and over which axes; no axes if it becomes none."""
    axes: frozenset[str] = frozenset()
    end = at = variable
    while True:
        uses = [(eqn, i) for eqn in jaxpr.eqns for i, x in enumerate(eqn.invars) if x is at]
        sums = [(eqn, i) for eqn, i in uses if eqn.primitive.name in DEVICE_SUMS]
        if sums:
            eqn, place = sums[0]
            axes |= {axis for axis in eqn.params["axes"] if isinstance(axis, str)}
            end = at = eqn.outvars[place]
        elif len(uses) == 1 and uses[0][0].primitive.name in SAME_LEAF:
            eqn, place = uses[0]
            at = eqn.outvars[place]
            end = at if axes else end
        elif len(uses) == 1 and _divides(uses[0][0], math.prod(axis_sizes.get(axis, 1) for axis in axes)):
            end = at = uses[0][0].outvars[0]
        else:
            return end, axes


def _divides(eqn: Any, n: int) -> bool:
    """Whether an equation divides by the number of devices, and so makes a mean of a sum."""
    by = eqn.invars[-1]
    if eqn.primitive.name not in ("div", "mul") or not isinstance(by, Literal) or n == 1:
        return False
    return bool(np.all(np.isclose(np.float32(by.val), n if eqn.primitive.name == "div" else 1 / n)))
