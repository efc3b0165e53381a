"""Counts and range of the numbers in one operand or result."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Numbers(NamedTuple):
    """Shape, dtype, range and the counts of NaN and Inf of an array.

    Attributes:
      least, greatest: The range of the finite values, of magnitudes if complex; None if no value is finite.
    """

    shape: tuple[int, ...]
    dtype: str
    least: float | None
    greatest: float | None
    n_nan: int
    n_posinf: int
    n_neginf: int

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def nonfinite(self) -> str:
        """ "3 -Inf and 1 NaN", or empty."""
        counts = ((self.n_nan, "NaN"), (self.n_posinf, "+Inf"), (self.n_neginf, "-Inf"))
        return " and ".join(f"{n:,} {what}" for n, what in counts if n)

    @property
    def range(self) -> str:
        text = (
            "nothing finite"
            if self.least is None or self.greatest is None
            else f"[{self.least + 0.0:.4g}, {self.greatest + 0.0:.4g}]"
        )
        return f"{text} with {self.nonfinite}" if self.nonfinite else text


def first_nonfinite(x: Any) -> tuple[int, ...]:
    """The index of the first NaN or Inf; empty for a scalar, and where other processes hold a part of x."""
    finite = _is_finite(x)
    return () if finite is None else tuple(map(int, np.unravel_index(int(finite.argmin()), finite.shape)))


def nonfinite_entries(x: Any) -> tuple[int, ...]:
    """The entries along the first axis with a NaN or Inf, as examples of a batch; empty if that is not known."""
    finite = _is_finite(x) if np.ndim(x) else None
    if finite is None:
        return ()
    return tuple(np.flatnonzero(~finite.all(axis=tuple(range(1, finite.ndim)))).tolist())


def _is_finite(x: Any) -> np.ndarray | None:
    if not getattr(x, "is_fully_addressable", True):
        return None
    return np.asarray(jax.device_get(jnp.isfinite(x.astype(jnp.float32) if x.dtype.itemsize < 2 else x)))


def numbers_of(x: Any) -> Numbers:
    x = jnp.asarray(x)
    least, greatest, *counts = [y.item() for y in jax.device_get(_numbers(x))] if x.size else (np.inf, -np.inf, 0, 0, 0)
    known = least <= greatest
    return Numbers(x.shape, str(x.dtype), least if known else None, greatest if known else None, *map(int, counts))


@jax.jit
def _numbers(x: jax.Array):
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        real = jnp.where(jnp.isfinite(x), jnp.abs(x), jnp.where(jnp.isnan(x), jnp.nan, jnp.inf))
    else:
        real = x.astype(jnp.float32) if x.dtype.itemsize < 4 else x
    finite = jnp.isfinite(real)
    least, greatest = (
        reduce(real, where=finite, initial=start) for reduce, start in ((jnp.min, np.inf), (jnp.max, -np.inf))
    )
    return least, greatest, *(jnp.sum(found) for found in (jnp.isnan(real), real == np.inf, real == -np.inf))
