"""Which non-finite values an array has, as three bits that stay on the device until they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

NAN, POSINF, NEGINF = 1, 2, 4


def is_inexact(x: Any) -> bool:
    """Whether x has a dtype that can hold a NaN."""
    dtype = getattr(x, "dtype", None)
    return jnp.issubdtype(dtype if dtype is not None else type(x), jnp.inexact)


def with_bits(results: Sequence[Any]) -> tuple[Sequence[Any], jax.Array]:
    """The results, and uint8[n_results]: the bits of each. Traceable."""
    bits = [_bits(x) if is_inexact(x) and x.size else jnp.uint8(0) for x in results]
    return results, jnp.stack(bits)


def _bits(x: jax.Array) -> jax.Array:
    """uint8[]: an integer, since `jax_debug_nans` and `jax_debug_infs` check floats only."""
    real = (jnp.real(x), jnp.imag(x)) if jnp.issubdtype(x.dtype, jnp.complexfloating) else (x,)
    word = jnp.uint8(0)
    for part in real:
        if part.dtype.itemsize < 2:  # some 8-bit floats have no infinities to compare with
            part = part.astype(jnp.float32)
        for bit, found in ((NAN, jnp.isnan(part)), (POSINF, part == jnp.inf), (NEGINF, part == -jnp.inf)):
            word |= jnp.any(found).astype(jnp.uint8) * jnp.uint8(bit)
    return word


bits_of = jax.jit(_bits)


def bits_of_constant(value: Any) -> int:
    """The bits of a constant, found on the host."""
    if not is_inexact(value):
        return 0
    value = np.asarray(value)
    value = value.astype(np.complex128 if np.iscomplexobj(value) else np.float64)
    parts = value.real, value.imag
    bits = NAN if any(np.isnan(x).any() for x in parts) else 0
    bits |= POSINF if any((x == np.inf).any() for x in parts) else 0
    return bits | (NEGINF if any((x == -np.inf).any() for x in parts) else 0)
