"""The parameters that a gradient belongs to and what a step adds to them, measured as the gradient is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from treeviz.analysis.marks import Found, Mark
from treeviz.analysis.members import member_shapes, of_members


def params_beside(
    reduce: Callable[[Mark, Sequence[Any]], jax.Array], found: Found, old: Sequence[Any], new: Sequence[Any] | None
) -> list[tuple[Found, jax.Array]]:
    """What is measured of "params", and of "updates" if the new values are known: what was found, and the words.

    Nothing where the values are not those that the gradient was taken of, as where it is that of a slice.

    Args:
      old, new: The parameters before and after the step, one for each marked value.
    """
    shapes = [shape for shape, has in zip(found.mark.source.shapes, found.mark.source.has_number, strict=True) if has]
    if [",".join(map(str, shape)) for shape in member_shapes(old, found.batched)] != shapes:
        return []
    dtypes = iter([str(x.dtype) for x in old])
    source = found.mark.source
    source = source._replace(
        dtypes=tuple(
            next(dtypes) if has else dtype for dtype, has in zip(source.dtypes, source.has_number, strict=True)
        )
    )
    measured = []
    for kind, values in (("params", old), ("updates", None if new is None else _differences(new, old))):
        if values is not None:
            mark = Mark(kind, source._replace(name=kind))
            words, axes = of_members(lambda *values, mark=mark: reduce(mark, values), values, found.batched)
            measured.append((replace(found, mark=mark, axes=axes, of=found.mark), words))
    return measured


def _differences(new: Sequence[Any], old: Sequence[Any]) -> list[Any] | None:
    """`new - old`, in float32 at least: what the step has added, after rounding. None if they lie differently."""
    if any(a.shape != b.shape or _sharding(a) != _sharding(b) for a, b in zip(new, old, strict=True)):
        return None
    # behind a barrier, so that the new values are made as they are made without us
    pairs = [
        lax.optimization_barrier((lax.stop_gradient(a), lax.stop_gradient(b))) for a, b in zip(new, old, strict=True)
    ]
    return [_wide(a) - _wide(b) for a, b in pairs]


def _wide(x: Any) -> Any:
    return x.astype(jnp.float32) if jnp.dtype(x.dtype).itemsize < 4 else x


def _sharding(x: Any) -> Any:
    """As far as the type tells, in explicit meshes."""
    sharding = getattr(jax.typeof(x), "sharding", None) if hasattr(jax, "typeof") else None
    return tuple(getattr(sharding, "spec", ()))
