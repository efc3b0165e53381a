"""The cosine between successive gradients."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from treeviz.steps.barrier import barrier


@partial(jax.jit, static_argnums=2)
def cosines(
    leaves: list[jax.Array | None], others: list[jax.Array | None], axes: tuple[int | None, ...] = ()
) -> jax.Array:
    """uint32[rows, 1]: the bits of the cosine of two leaves, or of each of their layers; NaN if one is None or zero.

    Non-finite numbers count as zeros.

    Args:
      axes: Of the layers, for each leaf; None: it has none.
    """
    packed: list[jax.Array | np.ndarray] = [np.zeros((0, 1), np.float32)]
    for a, b, axis in zip(leaves, others, axes or (None,) * len(leaves), strict=True):
        if a is None or b is None:
            packed.append(np.full((1, 1), np.nan, np.float32))
        else:
            packed.append(_cosine(a, b)[None] if axis is None else jax.vmap(_cosine, axis)(a, b))
    return lax.bitcast_convert_type(jnp.concatenate(packed), jnp.uint32)


def _cosine(a: jax.Array, b: jax.Array) -> jax.Array:
    left, right = (_scaled_by_peak(barrier(lax.stop_gradient(jnp.asarray(x)))) for x in (a, b))
    dot = jnp.sum(jnp.stack([jnp.sum(x * y) for x, y in zip(left, right, strict=False)]))
    squares = [jnp.sum(jnp.stack([jnp.sum(x * x) for x in parts])) for parts in (left, right)]
    squares = squares[0] * squares[1]
    return jnp.where(squares > 0, dot / jnp.sqrt(jnp.where(squares > 0, squares, 1)), np.float32(np.nan))[None]


def _scaled_by_peak(x: jax.Array) -> list[jax.Array]:
    """The real part, and the imaginary one if there is one, as float32, divided by the largest magnitude."""
    parts = [x.real, x.imag] if jnp.issubdtype(x.dtype, jnp.complexfloating) else [x]
    parts = [jnp.where(jnp.isfinite(x), x if x.dtype == jnp.float64 else x.astype(jnp.float32), 0) for x in parts]
    peak = jnp.max(jnp.stack([jnp.max(jnp.abs(x)) for x in parts]))
    down, up = (np.array(2.0**shift, peak.dtype) for shift in (-100, 100))
    once = jnp.where(peak > up, down, jnp.where(peak < down, up, np.array(1, peak.dtype)))
    again = once * peak
    return [(x * once / jnp.where(again > 0, again, np.array(1, peak.dtype))).astype(jnp.float32) for x in parts]
