"""The rules of `reap`: for each higher-order primitive, how to run it and return what is reaped inside."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Jaxpr

from treeviz.steps.tracing.primitives import (
    CALLS,
    COND,
    JITS,
    REMATS,
    SCAN,
    SHARD_MAP,
    WHILE,
    called_jaxpr,
    consts_of,
    is_recomputed,
    open_jaxpr,
    scan_parts,
    while_parts,
)
from treeviz.steps.tracing.reap_shard_map import reap_shard_map
from treeviz.steps.tracing.sow import Axis, Reaped
from treeviz.steps.tracing.unread import NotMeasured


class CannotReap(NotMeasured):
    """A value is sown inside a primitive from which it cannot be returned."""


# A rule gets the `reap.Run`, the equation, the values of its operands, and for each operand the number of the argument
# that it is the same leaf as, or None. It returns the results, what was reaped, and the packed rows.
# Only equations with a sown value inside come here; JAX binds all others as they are.


def _call(run: Any, eqn, operands, origins):
    inner = called_jaxpr(eqn)
    return run.jaxpr(open_jaxpr(inner), consts_of(inner), operands, origins)


def _jit(run: Any, eqn, operands, origins):
    p = eqn.params
    function, reaped = run.traced(p["jaxpr"], origins)
    operands = [_with_sharding(x, sharding) for x, sharding in zip(operands, p["in_shardings"], strict=True)]
    function.__name__ = p["name"]
    results, packed = jax.jit(function, inline=p["inline"])(*operands)
    results = [_with_sharding(x, sharding) for x, sharding in zip(results, p["out_shardings"], strict=True)]
    return results, reaped, packed


def _with_sharding(x, sharding):
    return lax.with_sharding_constraint(x, sharding) if isinstance(sharding, jax.sharding.Sharding) else x


def _remat(run: Any, eqn, operands, origins):
    if is_recomputed(eqn):
        run = run.recomputing()
    function, reaped = run.traced(eqn.params["jaxpr"], origins)
    jaxpr, constants = _without_constants(run, function, operands)
    # The same primitive with the same parameters, since these tell XLA what not to merge with the forward pass.
    results = eqn.primitive.bind(*constants, *operands, **{**eqn.params, "jaxpr": jaxpr})
    return results[: len(eqn.outvars)], reaped, results[len(eqn.outvars) :]


def _without_constants(run: Any, function: Callable, operands) -> tuple[Jaxpr, list[Any]]:
    """The function as a jaxpr that takes its constants first, since remat takes an open jaxpr; and the constants."""
    program = jax.make_jaxpr(function)(*operands)
    n_consts, inner = len(program.consts), program.jaxpr

    def with_constants(*operands):
        return run.jaxpr(inner, operands[:n_consts], operands[n_consts:])[0]

    return jax.make_jaxpr(with_constants)(*program.consts, *operands).jaxpr, program.consts


def _scan(run: Any, eqn, operands, origins):
    parts = scan_parts(eqn, operands)
    consts, length = parts.consts, parts.length
    function, reaped = run.in_body(origins).traced(parts.body, range(len(operands)))

    def step(carry, x):
        results, packed = function(*consts, *carry, *x)
        before, after = (dict(enumerate(values, len(consts))) for values in (carry, results[: len(carry)]))
        reaped[:], packed_params = run.in_loop(reaped, before, after)
        return results[: len(carry)], (results[len(carry) :], [*packed, *packed_params])

    options = {"length": length, "reverse": parts.reverse, "unroll": parts.unroll}
    carry, (ys, packed) = lax.scan(step, parts.carry, parts.xs, **options)
    return [*carry, *ys], [r.outside(origins).within(Axis("step", length)) for r in reaped], packed


def _while_loop(run: Any, eqn, operands, origins):
    parts, origins_of = while_parts(eqn, operands), while_parts(eqn, origins)
    carry = list(parts.carry)
    goes_on, reaped_in_condition = run.traced(parts.condition, [*origins_of.cond_consts, *origins_of.carry])
    outside = [*origins_of.body_consts, *origins_of.carry]
    function, reaped = run.in_body(outside).traced(parts.body, range(len(outside)))

    def step(carry):
        results, packed = function(*parts.body_consts, *carry)
        before, after = (dict(enumerate(values, len(parts.body_consts))) for values in (carry, results))
        reaped[:], packed_params = run.in_loop(reaped, before, after)
        return results, [*packed, *packed_params]

    def condition(carry):
        return goes_on(*parts.cond_consts, *carry)[0][0]

    def step_of_members(state):
        (old, old_rows), goes_on = state, condition(state[0])
        new, rows = step(old)
        places = [_places_of_members(r, x.shape, goes_on.shape) for r, x in zip(reaped, rows, strict=True)]
        new = [_where(goes_on, range(goes_on.ndim), *values) for values in zip(new, old, strict=True)]
        return new, [_where(goes_on, *values) for values in zip(places, rows, old_rows, strict=True)]

    _, shapes = jax.eval_shape(step, carry)
    start = carry, [run.empty(shape) for shape in shapes]
    # Under `vmap` the condition is that of each member. The loop goes on as long as any does; the others stay.
    if jax.eval_shape(condition, carry).ndim:
        results, packed = lax.while_loop(lambda state: jnp.any(condition(state[0])), step_of_members, start)
    else:
        results, packed = lax.while_loop(lambda state: condition(state[0]), lambda state: step(state[0]), start)
    if reaped_in_condition:
        raise CannotReap("a gradient is made in the condition of a while loop")
    return results, [replace(r.outside(outside), is_of_last_step=True) for r in reaped], packed


def _places_of_members(reaped: Reaped, shape: Sequence[int], of_condition: Sequence[int]) -> Sequence[int] | None:
    """The axes of packed rows along which the members lie whose condition has this shape; None if that is not known."""
    members = [i for i, axis in enumerate(reaped.axes) if axis.kind == "member"]
    found = itertools.combinations(members, len(of_condition))
    fitting = [places for places in found if [shape[i] for i in places] == list(of_condition)]
    return fitting[0] if len(fitting) == 1 else None if members else ()


def _where(goes_on, places: Sequence[int] | None, new, old):
    """The new values where the loop goes on along these axes, else the old ones; the old ones if these are None."""
    if places is None:
        return old
    if not places:
        return new
    shape = [n if i in places else 1 for i, n in enumerate(new.shape)]
    return jnp.where(goes_on.reshape(shape), new, old)


def _cond(run: Any, eqn, operands, origins):
    index, *operands = operands
    branches = [run.traced(branch, origins[1:]) for branch in eqn.params["branches"]]
    shapes = [jax.eval_shape(function, *operands)[1] for function, _ in branches]

    def branch(taken):
        function, _ = branches[taken]

        def run_branch(*operands):
            """Return the packed rows of all branches, since their results must have the same structure."""
            results, packed = function(*operands)
            return results, [
                packed if k == taken else [run.empty(shape) for shape in shapes[k]] for k in range(len(branches))
            ]

        return run_branch

    results, packed = lax.switch(index, [branch(k) for k in range(len(branches))], *operands)
    return results, [r for _, reaped in branches for r in reaped], [w for of_branch in packed for w in of_branch]


RULES: dict[str, Callable] = {
    **dict.fromkeys(CALLS, _call),
    **dict.fromkeys(JITS, _jit),
    **dict.fromkeys(REMATS, _remat),
    SCAN: _scan,
    WHILE: _while_loop,
    COND: _cond,
    SHARD_MAP: reap_shard_map,
}
