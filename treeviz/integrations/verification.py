"""Compare what a step gives with what its watched twin gives, byte for byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from treeviz.analysis.gradients import source_of


@dataclass(frozen=True)
class Difference:
    """A leaf of a step's results that its watched twin gives otherwise."""

    path: str
    n_different: int
    size: int
    max_difference: float  # NaN where there is none to take

    def __str__(self) -> str:
        return f"{self.path}: {self.n_different} of {self.size} elements differ, by {self.max_difference:.3g} at most"


@dataclass(frozen=True)
class Verification:
    """Whether a watched step gives the same bytes as the step. True in an `if` when it does.

    Attributes:
      n_leaves: How many leaves were compared.
      differences: Those that differ.
    """

    n_leaves: int
    differences: tuple[Difference, ...]

    def __bool__(self) -> bool:
        return not self.differences

    def __str__(self) -> str:
        if not self.differences:
            return f"The same bytes in all {self.n_leaves} leaves."
        lines = [f"{len(self.differences)} of {self.n_leaves} leaves differ:", *(f"  {d}" for d in self.differences)]
        return "\n".join([*lines, "watch(step, exact=True) runs the untouched step, and measures in a second one."])

    __repr__ = __str__


def compared(expected: Any, got: Any) -> Verification:
    """Compare two trees of one structure, the parts of them that are in this process."""
    leaves, others = jax.tree.leaves(expected), jax.tree.leaves(got)
    paths = source_of(expected, "").paths
    differences = [
        Difference(path or "result", *found)
        for path, a, b in zip(paths, leaves, others, strict=True)
        if (found := _difference(a, b)) is not None
    ]
    return Verification(len(leaves), tuple(differences))


def _difference(a: Any, b: Any) -> tuple[int, int, float] | None:
    n = size = 0
    largest = 0.0
    for left, right in zip(_parts(a), _parts(b), strict=True):
        if left.shape != right.shape or left.dtype != right.dtype:
            return max(left.size, 1), left.size, np.nan
        size += left.size
        if left.tobytes() == right.tobytes():
            continue
        width = left.dtype.itemsize
        bytes_ = [np.frombuffer(x.tobytes(), np.uint8).reshape(-1, width) for x in (left, right)]
        n += int((bytes_[0] != bytes_[1]).any(axis=1).sum())
        with np.errstate(all="ignore"):
            gap = np.abs(left.astype(np.complex128) - right.astype(np.complex128))
        largest = float(np.fmax(largest, np.nanmax(gap) if not np.isnan(gap).all() else np.nan))
    return (n, size, largest) if n else None


def _parts(x: Any) -> list[np.ndarray]:
    """What of an array is in this process, shard by shard."""
    if isinstance(x, jax.Array):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        return [np.array(shard.data) for shard in x.addressable_shards]
    return [np.asarray(x)] if isinstance(x, bool | int | float | complex | np.ndarray | np.generic) else []
