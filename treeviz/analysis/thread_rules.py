"""One rule for each operation that holds a program: how it is run so that what is measured inside comes out of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr

from treeviz.analysis.marked_jaxprs import inner_jaxprs, is_again, open_jaxpr
from treeviz.analysis.marks import Axis, Found
from treeviz.analysis.thread_shard_map import thread_shard_map


class CannotThread(Exception):
    """A mark lies inside an operation from which nothing can be led out."""


# Each has the run (of `thread_out`), the equation, its values, and which arguments these are; and gives the results,
# what was found, and what was measured there.


def _inline(run: Any, eqn, operands, origins):
    (inner, *_) = inner_jaxprs(eqn)
    consts = inner.consts if isinstance(inner, ClosedJaxpr) else ()
    return run.jaxpr(open_jaxpr(inner), consts, operands, origins)


def _jit(run: Any, eqn, operands, origins):
    p = eqn.params
    function, found = run.traced(p["jaxpr"], origins)
    operands = [_placed(x, where) for x, where in zip(operands, p["in_shardings"], strict=True)]
    function.__name__ = p["name"]
    results, words = jax.jit(function, inline=p["inline"])(*operands)
    return [_placed(x, where) for x, where in zip(results, p["out_shardings"], strict=True)], found, words


def _remat(run: Any, eqn, operands, origins):
    function, found = run.traced(eqn.params["jaxpr"], origins)
    before, run.again = run.again, run.again or is_again(eqn)
    try:
        jaxpr, constants = _without_constants(run, function, operands)
    finally:
        run.again = before
    # bound as it was: XLA is told what not to merge with the forward pass
    results = eqn.primitive.bind(*constants, *operands, **{**eqn.params, "jaxpr": jaxpr})
    return results[: len(eqn.outvars)], found, results[len(eqn.outvars) :]


def _scan(run: Any, eqn, operands, origins):
    p = eqn.params
    n_consts, n_carry, length = p["num_consts"], p["num_carry"], p["length"]
    consts, carry, xs = operands[:n_consts], operands[n_consts : n_consts + n_carry], operands[n_consts + n_carry :]
    function, found = run.traced(p["jaxpr"], range(len(operands)))

    def body(carry, x):
        results, words = function(*consts, *carry, *x)
        before, after = (dict(enumerate(values, n_consts)) for values in (carry, results[:n_carry]))
        found[:], beside = run.carried(found, before, after)
        return results[:n_carry], (results[n_carry:], [*words, *beside])

    carry, (ys, words) = lax.scan(body, carry, xs, length=length, reverse=p["reverse"], unroll=p["unroll"])
    return [*carry, *ys], [f.within(Axis("step", length)) for f in _outside(found, origins)], words


def _while_loop(run: Any, eqn, operands, origins):
    p = eqn.params
    n_cond, n_body = p["cond_nconsts"], p["body_nconsts"]
    cond_consts, body_consts, carry = (
        operands[:n_cond],
        operands[n_cond : n_cond + n_body],
        operands[n_cond + n_body :],
    )
    goes_on, found_in_condition = run.traced(p["cond_jaxpr"], origins[:n_cond] + origins[n_cond + n_body :])
    function, found = run.traced(p["body_jaxpr"], range(n_body + len(carry)))

    def body(carry):
        results, words = function(*body_consts, *carry)
        before, after = (dict(enumerate(values, n_body)) for values in (carry, results))
        found[:], beside = run.carried(found, before, after)
        return results, [*words, *beside]

    _, shapes = jax.eval_shape(body, carry)
    start = [run.nothing(shape) for shape in shapes]

    def condition(state):
        return goes_on(*cond_consts, *state[0])[0][0]

    results, words = lax.while_loop(condition, lambda state: body(state[0]), (list(carry), start))
    if found_in_condition:
        raise CannotThread("a gradient is made in the condition of a while loop")
    return results, _outside(found, origins[n_cond:]), words  # of the last step


def _cond(run: Any, eqn, operands, origins):
    index, *operands = operands
    branches = [run.traced(branch, origins[1:]) for branch in eqn.params["branches"]]
    shapes = [jax.eval_shape(function, *operands)[1] for function, _ in branches]

    def branch(which):
        function, _ = branches[which]

        def taken(*operands):
            results, words = function(*operands)
            return results, [words if k == which else [run.nothing(s) for s in shapes[k]] for k in range(len(shapes))]

        return taken

    results, words = lax.switch(index, [branch(which) for which in range(len(branches))], *operands)
    return results, [f for _, found in branches for f in found], [w for these in words for w in these]


def _outside(found: Sequence[Found], origins: Sequence[int | None]) -> list[Found]:
    """What was found inside a loop: `origins` are those of the loop's operands."""
    return [replace(f, origins=tuple(None if o is None else origins[o] for o in f.origins)) for f in found]


def _placed(x, sharding):
    """The value where an inner jit was told to have it."""
    return lax.with_sharding_constraint(x, sharding) if isinstance(sharding, jax.sharding.Sharding) else x


def _without_constants(run: Any, function: Callable, operands) -> tuple[Jaxpr, list[Any]]:
    """The function as a jaxpr whose first operands are its constants; and these. No mark is left in it."""
    program = jax.make_jaxpr(function)(*operands)
    n_consts, inner = len(program.consts), program.jaxpr

    def with_constants(*operands):
        return run.jaxpr(inner, operands[:n_consts], operands[n_consts:])[0]

    return jax.make_jaxpr(with_constants)(*program.consts, *operands).jaxpr, program.consts


RULES = {
    "jit": _jit,
    "pjit": _jit,
    "remat2": _remat,
    "checkpoint": _remat,
    "scan": _scan,
    "while": _while_loop,
    "cond": _cond,
    "shard_map": thread_shard_map,
    # Differentiation is over when a step is run, so that a rule for it has no use any more.
    "custom_jvp_call": _inline,
    "custom_vjp_call": _inline,
    "custom_vjp_call_jaxpr": _inline,
    "closed_call": _inline,
    "core_closed_call": _inline,
    "core_call": _inline,
    "custom_lin": _inline,
}
