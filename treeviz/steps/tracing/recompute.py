"""Recompute measured values for the measurement alone, so that XLA compiles the step's own values as before.

A measured value has one more use in the program, on which XLA's choices depend. XLA moves a reshape (also one made from
a transposition or a product with a vector) behind the arithmetic that follows only if all its uses are arithmetic; it
fuses a scatter-add, as in the gradient of an embedding, only with a single use. Then a product and a sum are rounded
once or twice, and the last digit of a result differs. So the measurement recomputes what XLA merges with its uses, back
to operations that XLA always computes separately: products of matrices, sums, convolutions, loops.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Jaxpr, Literal

from treeviz.steps.reduce import TOGETHER, BatchSlice, barrier
from treeviz.steps.tracing.primitives import (
    ELEMENTWISE,
    JITS,
    RESHAPES,
    SCATTER_ADDS,
    bind,
    called_jaxpr,
    open_jaxpr,
    sow_p,
)

# Batch small values of one shape that the same equations compute, such as the gradients of many biases.

FEWEST = 16  # values that are computed together
MOST_ELEMENTS = 1 << 12  # of a value, since its inputs are copied

Chains = Sequence[Mapping[int, Any]]  # for each of several values: the equations that compute it, by number


class Group(NamedTuple):
    """Values that the same equations compute from different inputs."""

    places: list[int]  # of the values
    chain: Sequence[Any]  # the equations that compute the first value
    value: Any  # the first
    inputs: list[list[Any]]  # of the equations of each value, in the order of their use


def batchable(values: Sequence[Any], chains: Chains) -> list[Group]:
    """The groups of values that one batched computation can recompute."""
    groups: dict[tuple, Group] = {}
    for place, (value, by_number) in enumerate(zip(values, chains, strict=False)):
        chain = [by_number[at] for at in sorted(by_number)]
        is_small = bool(chain) and _is_small(value.aval)
        if is_small and all(e.primitive.name in ELEMENTWISE or e.primitive.name in RESHAPES for e in chain):
            inputs, form = _form(value, chain)
            if form is not None and all(_is_small(x.aval) for x in inputs):
                group = groups.setdefault(form, Group([], chain, value, []))
                group.places.append(place)
                group.inputs.append(inputs)
    return [group for group in groups.values() if len(group.places) >= FEWEST and not all(_is_shared(group))]


def run_together(group: Group, read: Callable[[Any], Any]) -> jax.Array:
    """[values, …]: the values, computed from copies of their inputs, so that XLA keeps the two runs apart."""
    shared = _is_shared(group)
    operands: list[jax.Array] = []
    for variables, is_shared in zip(zip(*group.inputs, strict=True), shared, strict=True):
        copies = lax.optimization_barrier([read(x) for x in (variables[:1] if is_shared else variables)])
        operands.append(copies[0] if is_shared else _stacked(copies))

    def run(*operands: jax.Array) -> jax.Array:
        made = dict(zip(group.inputs[0], operands, strict=True))
        for eqn in group.chain:
            results = bind(eqn, [x.val if isinstance(x, Literal) else made[x] for x in eqn.invars])
            made.update(zip(eqn.outvars, results, strict=True))
        return made[group.value]

    return jax.vmap(run, [None if is_shared else 0 for is_shared in shared])(*operands)


def _stacked(arrays: Sequence[jax.Array]) -> jax.Array:
    """[n, …]: joined in parts of equal length, for which XLA CPU compiles one kernel."""
    n, first = len(arrays), arrays[0]
    arrays = [*arrays, *[arrays[-1]] * (-n % TOGETHER)]
    parts = [_joined(arrays[i : i + TOGETHER]) for i in range(0, len(arrays), TOGETHER)]
    x = lax.optimization_barrier(lax.concatenate(parts, 0))
    x = lax.slice_in_dim(lax.reshape(x, (len(parts), parts[0].size)), 0, TOGETHER * first.size, axis=1)
    return lax.slice_in_dim(lax.reshape(x, (len(arrays), *first.shape)), 0, n)


@jax.jit  # traced and lowered once
def _joined(arrays: Sequence[jax.Array]) -> jax.Array:
    """Flat, with a zero appended: XLA then makes one small loop instead of unrolling one for each array."""
    x = lax.concatenate([lax.reshape(x, (x.size,)) for x in arrays], 0)
    return lax.pad(x, np.zeros((), x.dtype), [(0, 1, 0)])


def _is_shared(group: Group) -> list[bool]:
    """For each input, whether it is the same for all values."""
    return [all(x is variables[0] for x in variables) for variables in zip(*group.inputs, strict=True)]


def _is_small(aval: Any) -> bool:
    is_copied = aval.dtype in (np.bool_, np.uint8, np.uint16, np.uint32) or jnp.issubdtype(aval.dtype, jnp.floating)
    return is_copied and aval.dtype.itemsize <= 4 and aval.size <= MOST_ELEMENTS


def _form(value: Any, chain: Sequence[Any]) -> tuple[list[Any], tuple | None]:
    """The inputs of some equations; and a key, equal for equal computations; None if it cannot be hashed."""
    number: dict[Any, int] = {}
    inputs, form = [], []
    for eqn in chain:
        form += [eqn.primitive, *eqn.params.values()]
        for x in eqn.invars:
            if isinstance(x, Literal):
                form.append((x.aval, np.asarray(x.val).tobytes()))
                continue
            if x not in number:
                number[x] = len(number)
                inputs.append(x)
                form.append(x.aval)
            form.append(number[x])
        number.update((v, len(number) + i) for i, v in enumerate(eqn.outvars))
    try:
        hash(tuple(form))
    except TypeError:
        return inputs, None
    return inputs, (number[value], *form)


_MOST = 32  # equations that are recomputed for a value


def recomputed_equations(jaxpr: Jaxpr) -> dict[int, Chains]:
    """For the number of each equation that sows: the equations to recompute for each of its values."""
    sowing = {n: e for n, e in enumerate(jaxpr.eqns) if e.primitive is sow_p and e.params["sown"].kind != "loss"}
    made_by = {v: (n, eqn) for n, eqn in enumerate(jaxpr.eqns) for v in eqn.outvars} if sowing else {}
    found = {n: [_nearest(value, made_by) for value in e.invars[: e.params["n"]]] for n, e in sowing.items()}
    return {n: chains for n, chains in found.items() if any(chains)}


def _nearest(value: Any, made_by: dict[Any, tuple[int, Any]]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    values = deque([value])
    while values and len(found) < _MOST:
        at, eqn = _maker(values.popleft(), made_by)
        if eqn is None or at in found:
            continue
        is_repeated = _is_simple(eqn) or _is_of_ones(eqn) or _has_ones(eqn)
        if not is_repeated and _is_transpose(eqn):  # XLA merges it with its uses, if it does so with what is transposed
            _, before = _maker(eqn.invars[0], made_by)
            is_repeated = before is not None and (before.primitive.name in ELEMENTWISE or _is_of_ones(before))
        if is_repeated:
            found[at] = eqn
            values.extend(() if _is_start(eqn) else eqn.invars)
    return found


def _maker(value: Any, made_by: dict[Any, tuple[int, Any]]) -> tuple[int, Any]:
    return (-1, None) if isinstance(value, Literal) else made_by.get(value, (-1, None))


def recompute_operands(chains: Chains, sowing: Any, read: Callable[[Any], Any], together: bool = False) -> list[Any]:
    """Recompute the operands of an equation that sows; batchable values `together`, if each may be a `BatchSlice`."""
    joined: dict[int, BatchSlice] = {}
    for group in batchable(sowing.invars, chains) if together else ():
        of_group = run_together(group, read)
        joined.update((n, BatchSlice(of_group, place)) for place, n in enumerate(group.places))
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


def _is_simple(eqn: Any) -> bool:
    name = eqn.primitive.name
    if name in JITS:
        return all(map(_is_simple, open_jaxpr(called_jaxpr(eqn)).eqns))
    is_reshape = name in RESHAPES and name != "rev" and not _is_transpose(eqn)
    return name in ELEMENTWISE or name in SCATTER_ADDS or is_reshape


def _is_start(eqn: Any) -> bool:
    """Whether recomputation starts here: the operands of the equation are not recomputed."""
    if eqn.primitive.name in JITS:
        return any(map(_is_start, open_jaxpr(called_jaxpr(eqn)).eqns))
    return eqn.primitive.name in SCATTER_ADDS or _has_ones(eqn)


def _is_transpose(eqn: Any) -> bool:
    """Whether elements move in memory. XLA merges such a transposition with the product of matrices before it."""
    if eqn.primitive.name != "transpose":
        return False
    moved = [axis for axis in eqn.params["permutation"] if eqn.invars[0].aval.shape[axis] != 1]
    return moved != sorted(moved)


def _is_of_ones(eqn: Any) -> bool:
    """Whether a sum or product is over axes of size 1, so that XLA makes it a reshape or an element-wise product."""
    if eqn.primitive.name == "reduce_sum":
        return eqn.invars[0].aval.size == eqn.outvars[0].aval.size
    if eqn.primitive.name != "dot_general":
        return False
    (axes, _), _ = eqn.params["dimension_numbers"]
    return all(eqn.invars[0].aval.shape[axis] == 1 for axis in axes)


def _has_ones(eqn: Any) -> bool:
    """Whether XLA computes a sum without its axes of size 1, or a product with a vector, and reshapes the result."""
    if eqn.primitive.name not in ("reduce_sum", "dot_general") or _is_of_ones(eqn):
        return False
    if eqn.params.get("out_sharding") is not None or 1 not in eqn.outvars[0].aval.shape:
        return False
    if eqn.primitive.name == "reduce_sum":
        return eqn.outvars[0].aval.size == 1
    # Not a product of matrices, even if they have axes of size 1: it would be computed twice.
    operands = zip(eqn.invars, *eqn.params["dimension_numbers"], strict=True)
    return any(
        all(n == 1 or axis in (*contracted, *batch) for axis, n in enumerate(x.aval.shape))
        for x, contracted, batch in operands
    )


def _without_ones(eqn: Any, operands: Sequence[Any]) -> Any:
    """The sum or product as XLA will compute it, so that both runs share it, and only the reshape is recomputed."""
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
    """`x` without its unused axes of size 1, and the new numbers of the used axes."""
    ones = [axis for axis, size in enumerate(x.shape) if size == 1 and not any(axis in axes for axes in used)]
    return lax.squeeze(x, ones), [[axis - sum(one < axis for one in ones) for axis in axes] for axes in used]
