"""Packed rows of numbers that are multiplied by a scalar."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from treeviz.steps.statistics import LIGHT, NO_NUMBER, STATISTICS


def scaled_rows(rows: jax.Array, statistics: tuple[str, ...], factor: jax.Array) -> jax.Array:
    """uint32[..., words] of those `statistics` that are in `LIGHT`, of the numbers times a factor.

    Args:
      factor: float32[]. If it is not finite, at least one of the numbers of a leaf is not.
    """
    fraction, exponent = jnp.frexp(jnp.abs(factor))
    is_finite = jnp.isfinite(factor)
    fraction, exponent = (jnp.where(is_finite, x, jnp.zeros_like(x)) for x in (fraction, exponent))
    first = rows[..., 0]
    words, at = [jnp.where(first == np.uint32(NO_NUMBER), first, first + exponent.astype(jnp.uint32))], 1
    for name in statistics:
        word, at = rows[..., at], at + (STATISTICS[name].n_bins or 1)
        if name == "nonfinite":
            words.append(jnp.where(is_finite, word, jnp.maximum(word, np.uint32(1))))
        elif name in LIGHT:
            by = fraction * fraction if name == "norm" else fraction  # the word of a norm is the sum of squares
            words.append(lax.bitcast_convert_type(lax.bitcast_convert_type(word, jnp.float32) * by, jnp.uint32))
    return jnp.stack(words, axis=-1)
