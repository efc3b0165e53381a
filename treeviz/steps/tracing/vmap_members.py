"""Measure what is sown under `vmap`: one entry for each member of the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from treeviz.steps.tracing.sow import Axis

Batched = Sequence[Sequence[int | None]]  # for every `vmap`, the innermost first: the batch axis of each value, or None


def measure_members(
    measure: Callable[..., jax.Array], values: Sequence[Any], batched: Batched
) -> tuple[jax.Array, tuple[Axis, ...]]:
    """Apply `measure` to every member of the batch.

    Returns:
      Its results, stacked; and the leading axes of the stack, the outermost `vmap` first.
    """
    batched = _with_batch(batched)
    if not batched:
        return measure(*values), ()
    for axes in batched:
        measure = _stacked(measure, axes)
    return measure(*values), tuple(Axis("member", size) for size in _sizes_and_shapes(values, batched)[0])


def member_shapes(values: Sequence[Any], batched: Batched) -> list[tuple[int, ...]]:
    """The shape of each value without its batch axes."""
    return _sizes_and_shapes(values, _with_batch(batched))[1]


def _with_batch(batched: Batched) -> Batched:
    """Without the `vmap`s that batch none of these values."""
    return [axes for axes in batched if any(axis is not None for axis in axes)]


def _stacked(measure: Callable, axes: Sequence[int | None]) -> Callable:
    """`measure` under one `vmap`."""

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
    """The batch size of each `vmap`, the outermost first; and the shape of one member of each value."""
    sizes = []
    values = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in values]
    for axes in reversed(batched):
        sizes.append(next(x.shape[a] for x, a in zip(values, axes, strict=True) if a is not None))
        shapes = [x.shape if a is None else x.shape[:a] + x.shape[a + 1 :] for x, a in zip(values, axes, strict=True)]
        values = [jax.ShapeDtypeStruct(shape, x.dtype) for shape, x in zip(shapes, values, strict=True)]
    return sizes, [x.shape for x in values]
