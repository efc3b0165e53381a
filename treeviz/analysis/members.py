"""What is measured under `vmap`: an entry for each member of the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from treeviz.analysis.marks import Axis

Batched = Sequence[Sequence[int | None]]  # for every `vmap`, innermost first, the axis of each value; None: it has none


def of_members(measure: Callable[..., jax.Array], values: Sequence[Any], batched: Batched):
    """What `measure` gives of each member, stacked; and the axes that stand in front of it."""
    batched = [axes for axes in batched if any(axis is not None for axis in axes)]
    for axes in batched:
        measure = _over_members(measure, axes)
    return measure(*values), tuple(Axis("member", size) for size in _sizes_and_shapes(values, batched)[0])


def member_shapes(values: Sequence[Any], batched: Batched) -> list[tuple[int, ...]]:
    """The shape of each value without the axes of the `vmap`s."""
    return _sizes_and_shapes(values, [axes for axes in batched if any(axis is not None for axis in axes)])[1]


def _over_members(measure: Callable, axes) -> Callable:
    """What `measure` gives for each entry of a `vmap`, stacked."""

    def stacked(*values):
        moved = [jnp.moveaxis(x, axis, 0) if axis else x for x, axis in zip(values, axes, strict=True)]
        in_axes = tuple(None if axis is None else 0 for axis in axes)
        try:
            return jax.vmap(measure, in_axes)(*moved)
        except NotImplementedError:  # jax 0.4.36 has no vmap of `lax.optimization_barrier`
            members = [x for x, axis in zip(moved, in_axes, strict=True) if axis == 0]

            def one(members):
                members = iter(members)
                return measure(*(x if axis is None else next(members) for x, axis in zip(moved, in_axes, strict=True)))

            return lax.map(one, members)

    return stacked


def _sizes_and_shapes(values: Sequence[Any], batched: Batched) -> tuple[list[int], list[tuple[int, ...]]]:
    """How many entries each `vmap` has, outermost first; and the shape of one entry of each value."""
    sizes = []
    values = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in values]
    for axes in reversed(batched):
        sizes.append(next(x.shape[a] for x, a in zip(values, axes, strict=True) if a is not None))
        shapes = [x.shape if a is None else x.shape[:a] + x.shape[a + 1 :] for x, a in zip(values, axes, strict=True)]
        values = [jax.ShapeDtypeStruct(shape, x.dtype) for shape, x in zip(shapes, values, strict=True)]
    return sizes, [x.shape for x in values]
