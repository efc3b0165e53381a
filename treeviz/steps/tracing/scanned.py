"""Which values of a program are scanned over: as parameters, they hold all layers of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from jax.extend.core import Literal

from treeviz.steps.measure import MeasuredTree
from treeviz.steps.measured_tree import Axes, WhyNot
from treeviz.steps.tracing.primitives import CALLS, COND, GATHERS, SAME_LEAF, SCAN, open_jaxpr, programs, scan_parts


class AxesOf(Protocol):
    """Which leaves are measured layer by layer, and along which axis; empty if none is.

    Args:
      source: The tree.
      scanned: The axis along which the program scans over the parameter that each leaf belongs to; None: it does not.
    """

    def __call__(self, source: MeasuredTree, scanned: Axes, why_not: WhyNot, /) -> Axes: ...


def scanned_in(jaxpr: Any) -> dict[Any, int]:
    """The variables of a jaxpr that a scan in it, at any depth, takes apart; and the axis along which it does."""
    return _scanned(open_jaxpr(jaxpr), {})


def _scanned(jaxpr: Any, found: dict[Any, int]) -> dict[Any, int]:
    def add(variable: Any, axis: int | None) -> None:
        if axis is not None and not isinstance(variable, Literal):
            found.setdefault(variable, axis)

    for eqn in reversed(jaxpr.eqns):  # the uses of a variable come after what makes it
        name = eqn.primitive.name
        if name in SAME_LEAF:
            for operand, result in zip(eqn.invars, eqn.outvars, strict=False):
                add(operand, found.get(result))
        elif name == "transpose" and eqn.outvars[0] in found:
            add(eqn.invars[0], eqn.params["permutation"][found[eqn.outvars[0]]])
        elif name in GATHERS and eqn.outvars[0] in found:
            axis, new = found[eqn.outvars[0]], None if eqn.params["tiled"] else eqn.params["all_gather_dimension"]
            add(eqn.invars[0], None if axis == new else axis - (new is not None and new < axis))
        if name == SCAN:
            for x in scan_parts(eqn, eqn.invars).xs:
                add(x, 0)
        for inner, operands in programs(eqn, eqn.invars):
            inner = open_jaxpr(inner)
            results = zip(inner.outvars, eqn.outvars, strict=False) if name in CALLS or name == COND else ()
            known = {v: found[of] for v, of in results if of in found and not isinstance(v, Literal)}
            inside = _scanned(inner, known)
            # What a scan takes apart comes last, and has been added.
            for operand, variable in zip(operands, inner.invars, strict=False):
                add(operand, inside.get(variable))
    return found


def layer_axes(eqn: Any, source: MeasuredTree, scanned: Mapping[Any, int], axes_of: AxesOf, why_not: WhyNot) -> Axes:
    """The axis of the layers of each leaf of a sown tree; None for a leaf that holds none; empty if none does.

    Args:
      eqn: It sows the tree.
      source: The tree.
      scanned: As `scanned_in` gives it, of the jaxpr of the equation.
      axes_of: As `reap` takes it.
      why_not: Why layers cannot be told apart, by the number of the sown value.
    """
    n = eqn.params["n"]
    batched = [axes[n:] for axes in reversed(eqn.params["batched"])]  # the outermost `vmap` first
    origins = eqn.invars[n:]
    found = iter([_axis(origin, scanned, [axes[i] for axes in batched]) for i, origin in enumerate(origins)])
    places = np.cumsum(source.has_number) - 1

    def why(leaf: int, axis: int) -> str:
        value = int(places[leaf])
        return _IS_SPLIT if _is_split(eqn.invars[value], axis) else why_not(value, axis)

    return axes_of(source, tuple(next(found, None) if has else None for has in source.has_number), why)


def _axis(origin: Any, scanned: Mapping[Any, int], batch_axes: Sequence[int | None]) -> int | None:
    """The axis that is scanned over, of a member of the batch."""
    axis = None if isinstance(origin, Literal) else scanned.get(origin)
    for batch in batch_axes:
        if axis is None or batch == axis:
            return None
        axis -= batch is not None and batch < axis
    return axis


_IS_SPLIT = "they lie on several devices of an explicit mesh"


def _is_split(value: Any, axis: int) -> bool:
    """Whether the type says that the layers lie on several devices, as in explicit meshes."""
    spec = tuple(getattr(getattr(value.aval, "sharding", None), "spec", ()))
    return any(each is not None for each in spec[axis : axis + 1])
