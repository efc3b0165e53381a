"""Operations that are wrong or incomplete before jax 0.5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def concatenated(rows: Sequence[Any]) -> jax.Array:
    """The rows of uint32[k, n_words] arrays, which may be sharded over a part of a mesh."""
    if jax.__version_info__ >= (0, 5):
        return jnp.concatenate(rows)
    n, at, joined = sum(map(len, rows)), 0, np.uint32(0)
    for part in rows:  # `concatenate` would sum what the other part of the mesh repeats
        joined |= lax.pad(part, np.uint32(0), [(at, n - at - len(part), 0), (0, 0, 0)])
        at += len(part)
    return jnp.asarray(joined)
