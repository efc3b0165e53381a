"""What a jaxpr tells: where its marks are, what becomes of the marked values, and when a value has had its last use."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from treeviz.analysis.marks import Mark, mark_p

_SUMS = ("psum", "psum2", "psum_invariant", "psum_p", "all_reduce")
_SAME_VALUE = ("convert_element_type", "pvary", "pcast", "pbroadcast")


def marks_in(jaxpr: Any, again: bool = False) -> Iterator[tuple[Mark, bool]]:
    """Every mark in a jaxpr and in those inside it, and whether it is computed again, for a backward pass."""
    for eqn in open_jaxpr(jaxpr).eqns:
        if eqn.primitive is mark_p:
            yield eqn.params["mark"], again
        for inner in inner_jaxprs(eqn):
            yield from marks_in(inner, again or is_again(eqn))


def is_again(eqn) -> bool:
    """What `jax.checkpoint` computes a second time."""
    return bool(eqn.params.get("differentiated"))


def inner_jaxprs(eqn) -> list[Any]:
    found = []
    for value in eqn.params.values():
        found += [x for x in (value if isinstance(value, tuple | list) else (value,)) if _is_jaxpr(x)]
    return found


def _is_jaxpr(x: Any) -> bool:
    return isinstance(x, Jaxpr | ClosedJaxpr)


def open_jaxpr(jaxpr: Any) -> Jaxpr:
    return jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr


def passed_through(eqn, where_from):
    """Which results of an inner jit are its operands."""
    inner = open_jaxpr(eqn.params["jaxpr"])
    place = {v: i for i, v in enumerate(inner.invars)}
    for out, inner_out in zip(eqn.outvars, inner.outvars, strict=True):
        if not isinstance(inner_out, Literal) and inner_out in place:
            yield out, where_from[place[inner_out]]


def sums_of_marked(jaxpr: Jaxpr, axis_sizes: Mapping[str, int]) -> dict[int, tuple[list[Any], frozenset[str]]]:
    """Of the marks whose values are then summed over the devices of a `shard_map`: the sums."""
    if not any(eqn.primitive.name in _SUMS for eqn in jaxpr.eqns):
        return {}
    marked = {
        n: eqn for n, eqn in enumerate(jaxpr.eqns) if eqn.primitive is mark_p and eqn.params["mark"].kind != "tap"
    }
    sums = {n: _after_sum(jaxpr, eqn.outvars, axis_sizes) for n, eqn in marked.items()}
    return {n: found for n, found in sums.items() if found is not None}


def scattered(jaxpr: Jaxpr) -> dict[int, dict[int, Any]]:
    """Of each mark, by its number: which of its values are sums by index, as the gradient of an embedding is.

    XLA adds what comes next right into such a sum, if nobody else uses it. So it is done a second time to be measured,
    or the last digit of what comes next would change.
    """
    made_by = {eqn.outvars[0]: eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scatter-add"}
    marks = {n: eqn for n, eqn in enumerate(jaxpr.eqns) if eqn.primitive is mark_p}
    scattered = {
        n: {
            i: made_by[x]
            for i, x in enumerate(eqn.invars[: eqn.params["n"]])
            if not isinstance(x, Literal) and x in made_by
        }
        for n, eqn in marks.items()
    }
    return {n: found for n, found in scattered.items() if found}


def last_use(jaxpr: Jaxpr, kept: set[Any]) -> dict[int, list[Any]]:
    last: dict[Any, int] = {}
    for n, eqn in enumerate(jaxpr.eqns):
        last.update((v, n) for v in eqn.invars if not isinstance(v, Literal))
    kept = kept | {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    used: dict[int, list[Any]] = {}
    for variable, n in last.items():
        if variable not in kept:
            used.setdefault(n, []).append(variable)
    return used


def _after_sum(
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
        sums = [(e, i) for e, i in users if e.primitive.name in _SUMS]
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
