"""What the measurement computes once more for itself, so that XLA treats the step's own values as it did before.

A measured value has one more use in the program. On that XLA's choices depend: a reshape, also one that it has made of
a transposition or of a product with a vector, moves behind the arithmetic that follows only if all its uses are
arithmetic; a scatter-add, as in the gradient of an embedding, is fused with a single use. Then a product and a sum are
rounded once or twice, and the last digit of a result differs. So the measurement repeats what XLA merges with uses,
back to what it computes apart in any case: products of matrices, sums, convolutions, loops.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import Jaxpr, Literal

from treeviz.steps.barrier import barrier
from treeviz.steps.tracing.alike import Chains, alike, run_together
from treeviz.steps.tracing.primitives import ELEMENTWISE, JITS, RESHAPES, SCATTER_ADDS, bind, called_jaxpr, open_jaxpr
from treeviz.steps.tracing.sow import sow_p
from treeviz.steps.unreduced import OneOf

_MOST = 32  # equations that are repeated for a value


def repeats(jaxpr: Jaxpr) -> dict[int, Chains]:
    """By the number of an equation that sows: the equations that the measurement repeats of each value."""
    sowing = {n: e for n, e in enumerate(jaxpr.eqns) if e.primitive is sow_p and e.params["sown"].kind != "loss"}
    made_by = {v: (n, eqn) for n, eqn in enumerate(jaxpr.eqns) for v in eqn.outvars} if sowing else {}
    found = {n: [_nearest(value, made_by) for value in e.invars[: e.params["n"]]] for n, e in sowing.items()}
    return {n: chains for n, chains in found.items() if any(chains)}


def _nearest(value: Any, made_by: dict[Any, tuple[int, Any]]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    values = deque([value])
    while values and len(found) < _MOST:
        at, eqn = _maker(values.popleft(), made_by)
        if at not in found and (_is_repeated(eqn) or (_is_transpose(eqn) and _is_merged(eqn.invars[0], made_by))):
            found[at] = eqn
            values.extend(() if _is_start(eqn) else eqn.invars)
    return found


def _maker(value: Any, made_by: dict[Any, tuple[int, Any]]) -> tuple[int, Any]:
    return (-1, None) if isinstance(value, Literal) else made_by.get(value, (-1, None))


def repeat(chains: Chains, sowing: Any, read: Callable[[Any], Any], together: bool = False) -> list[Any]:
    """The operands of an equation that sows, after what is repeated has been run again.

    Args:
      together: Small values of one shape that are computed alike may be computed together, and each be a `OneOf`.
    """
    joined: dict[int, OneOf] = {}
    for group in alike(sowing.invars, chains) if together else ():
        of_group = run_together(group, read)
        joined.update((n, OneOf(of_group, place)) for place, n in enumerate(group.places))
    again = {at: eqn for n, chain in enumerate(chains) if n not in joined for at, eqn in chain.items()}
    made: dict[Any, Any] = {}
    for eqn in (again[at] for at in sorted(again)):
        if _has_ones(eqn):
            made[eqn.outvars[0]] = _without_ones(eqn, [read(x) for x in eqn.invars])
            continue
        for x in eqn.invars:
            if not isinstance(x, Literal) and x not in made:
                made[x] = barrier(read(x))  # keeps XLA from merging the two runs
        results = bind(eqn, [read(x) if isinstance(x, Literal) else made[x] for x in eqn.invars])
        made.update(zip(eqn.outvars, results, strict=True))
    values = [made[x] if not isinstance(x, Literal) and x in made else read(x) for x in sowing.invars]
    return [joined.get(n, value) for n, value in enumerate(values)]


def _is_repeated(eqn: Any) -> bool:
    return eqn is not None and (_is_simple(eqn) or _is_of_ones(eqn) or _has_ones(eqn))


def _is_simple(eqn: Any) -> bool:
    name = eqn.primitive.name
    if name in JITS:
        return all(map(_is_simple, open_jaxpr(called_jaxpr(eqn)).eqns))
    is_reshape = name in RESHAPES and name != "rev" and not _is_transpose(eqn)
    return name in ELEMENTWISE or name in SCATTER_ADDS or is_reshape


def _is_start(eqn: Any) -> bool:
    """Whether what an equation reads is not repeated."""
    if eqn.primitive.name in JITS:
        return any(map(_is_start, open_jaxpr(called_jaxpr(eqn)).eqns))
    return eqn.primitive.name in SCATTER_ADDS or _has_ones(eqn)


def _is_transpose(eqn: Any) -> bool:
    """Whether elements move in memory. XLA merges such a transposition with the product of matrices before it."""
    if eqn is None or eqn.primitive.name != "transpose":
        return False
    moved = [axis for axis in eqn.params["permutation"] if eqn.invars[0].aval.shape[axis] != 1]
    return moved != sorted(moved)


def _is_merged(value: Any, made_by: dict[Any, tuple[int, Any]]) -> bool:
    """Whether XLA merges what makes a value with what uses it."""
    _, eqn = _maker(value, made_by)
    return eqn is not None and (eqn.primitive.name in ELEMENTWISE or _is_of_ones(eqn))


def _is_of_ones(eqn: Any) -> bool:
    """Whether a sum or product is over axes of size 1, of which XLA makes a reshape, or an element-wise product."""
    if eqn.primitive.name == "reduce_sum":
        return eqn.invars[0].aval.size == eqn.outvars[0].aval.size
    return eqn.primitive.name == "dot_general" and all(n == 1 for n in _contracted(eqn))


def _contracted(eqn: Any) -> list[int]:
    (axes, _), _ = eqn.params["dimension_numbers"]
    return [eqn.invars[0].aval.shape[axis] for axis in axes]


def _has_ones(eqn: Any) -> bool:
    """Whether XLA computes a sum without its axes of size 1, or a product with a vector, and reshapes the result."""
    if eqn.primitive.name not in ("reduce_sum", "dot_general") or _is_of_ones(eqn):
        return False
    if eqn.params.get("out_sharding") is not None or 1 not in eqn.outvars[0].aval.shape:
        return False
    if eqn.primitive.name == "reduce_sum":
        return eqn.outvars[0].aval.size == 1
    # Not a product of matrices, even if they have axes of size 1: it would be computed twice.
    return any(all(n == 1 for n in free) for free in map(_free, eqn.invars, *eqn.params["dimension_numbers"]))


def _free(x: Any, contracted: Sequence[int], batch: Sequence[int]) -> list[int]:
    return [n for axis, n in enumerate(x.aval.shape) if axis not in (*contracted, *batch)]


def _without_ones(eqn: Any, operands: Sequence[Any]) -> Any:
    """The sum or product as XLA will compute it, so that it computes one for both, and only the reshape is repeated."""
    p, n_batch = eqn.params, 0
    if eqn.primitive.name == "reduce_sum":
        x, (axes,) = _squeezed(operands[0], p["axes"])
        result = lax.reduce(x, np.zeros((), x.dtype), lax.add, axes)
    else:
        (left, of_left), (right, of_right) = map(_squeezed, operands, *p["dimension_numbers"])
        numbers, n_batch = ((of_left[0], of_right[0]), (of_left[1], of_right[1])), len(of_left[1])
        options = {name: p[name] for name in ("precision", "preferred_element_type")}
        result = lax.dot_general(left, right, numbers, **options)
    ones = [axis for axis, size in enumerate(eqn.outvars[0].aval.shape) if size == 1 and axis >= n_batch]
    return lax.expand_dims(lax.optimization_barrier(result), ones)


def _squeezed(x: Any, *used: Sequence[int]) -> tuple[Any, list[list[int]]]:
    """`x` without its axes of size 1 but those that are used, and the numbers that these have now."""
    ones = [axis for axis, size in enumerate(x.shape) if size == 1 and not any(axis in axes for axes in used)]
    return lax.squeeze(x, ones), [[axis - sum(one < axis for one in ones) for axis in axes] for axes in used]
