"""Which argument of a program each value in it is the same leaf as."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend.core import Literal

from treeviz.steps.tracing.primitives import CALLS, SAME_LEAF, called_jaxpr, open_jaxpr
from treeviz.steps.tracing.sow import sow_p

_PASSES = SAME_LEAF | CALLS


def passes_leaves(eqn: Any) -> bool:
    """Whether results of an equation may be the same leaves as operands."""
    return eqn.primitive.name in _PASSES or eqn.primitive is sow_p


def origins_of_results(eqn: Any, origins: Sequence[int | None]) -> Sequence[int | None]:
    """For each result of an equation that `passes_leaves`, the number of the program argument that it is; or None."""
    if eqn.primitive.name not in CALLS:
        return origins
    inner = open_jaxpr(called_jaxpr(eqn))
    place = {v: i for i, v in enumerate(inner.invars)}
    places = [None if isinstance(v, Literal) else place.get(v) for v in inner.outvars]
    return [None if i is None else origins[i] for i in places]
