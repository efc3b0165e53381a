"""Compare the results of a step with those of its watched twin, byte by byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from treeviz.steps.measure import source_of


@dataclass(frozen=True)
class Difference:
    """A leaf of a step's results that differs in its watched twin.

    Attributes:
      path: The key path of the leaf.
      n_different: How many of its elements differ in their bytes.
      size: How many elements it has.
      max_difference: The largest absolute difference; NaN where shapes or dtypes differ, or nothing is comparable.
    """

    path: str
    n_different: int
    size: int
    max_difference: float

    def __str__(self) -> str:
        return f"{self.path}: {self.n_different} of {self.size} elements differ, by {self.max_difference:.3g} at most"


@dataclass(frozen=True)
class Verification:
    """Whether a watched step returns the same bytes as the step itself. Truthy if so.

        if not inspector.verify(update, params, x, y):
            update = inspector.watch(update, exact=True)

    Attributes:
      n_leaves: How many leaves were compared.
      differences: The leaves that differ.
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


def compare(expected: Any, got: Any) -> Verification:
    """Compare two trees of the same structure; arrays by the shards of this process."""
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
    """Copies of the shards of an array that are in this process."""
    if isinstance(x, jax.Array):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        return [np.array(shard.data) for shard in x.addressable_shards]
    return [np.asarray(x)] if isinstance(x, bool | int | float | complex | np.ndarray | np.generic) else []
