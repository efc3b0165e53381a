"""Run a traced program so that what is measured at its marks, however deep they lie, comes out beside its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import source_info_util
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from treeviz.analysis.marked_jaxprs import (
    inner_jaxprs,
    is_again,
    last_use,
    marks_in,
    open_jaxpr,
    passed_through,
    scattered,
    sums_of_marked,
)
from treeviz.analysis.marks import Mark, mark_p

Reduce = Callable[[Mark, Sequence[Any]], jax.Array]


class CannotThread(Exception):
    """A mark lies inside an operation from which nothing can be led out."""


class Axis(NamedTuple):
    """An axis that stands in front of the measured words: one entry per inner step, member or device."""

    kind: str  # "step", "member" or "device"
    size: int | None  # None: told by the words


@dataclass(frozen=True, eq=False)
class Found:
    """What is known of one mark when the program has been run. Holds no tracer.

    Attributes:
      axes: Outermost first.
      origins: For each marked value, the number of the program's argument of which it is the gradient; or None.
      is_inner: It was differentiated itself.
      summed_over: The axes of a `shard_map` over which the values have been summed.
    """

    mark: Mark
    axes: tuple[Axis, ...]
    origins: tuple[int | None, ...]
    is_inner: bool = False
    summed_over: frozenset[str] = frozenset()

    def within(self, axis: Axis) -> Found:
        return replace(self, axes=(axis, *self.axes))


def thread_out(
    program: ClosedJaxpr, arguments: Sequence[Any], reduce: Reduce, nothing: Callable[[Any], Any] = jnp.zeros_like
) -> tuple[list[Any], list[Found], list[jax.Array]]:
    """Run `program` on `arguments`; give its results, what was found, and what was measured there.

    Traceable: under `jit` the measured values are further results of the same program, and the marks are gone.

    Args:
      reduce: Called at each mark, with the marked values; gives one array.
      nothing: What stands for an array of `reduce` where a branch was not taken, or a loop made no step.

    Raises:
      CannotThread: A mark lies inside an operation that we do not know.
    """
    run = _Run(reduce, nothing, {mark for mark, again in marks_in(program) if not again})
    return run.jaxpr(program.jaxpr, program.consts, arguments, range(len(arguments)))


class _Run:
    """One run of a program. The rules below have the equation, its values, and which arguments these are."""

    def __init__(self, reduce: Reduce, nothing: Callable[[Any], Any], once: set[Mark]) -> None:
        self.reduce = reduce
        self.nothing = nothing
        self.once = once  # found where nothing is computed again, so that they need not be found there too
        self.again = False
        self.axis_sizes: Mapping[str, int] = {}

    def within(self, axis_sizes: Mapping[str, int]) -> _Run:
        """The same in a program in which these axes are named."""
        run = copy(self)
        run.axis_sizes = {**self.axis_sizes, **axis_sizes}
        return run

    def jaxpr(self, jaxpr: Jaxpr, consts, arguments, origins=()):
        values: dict[Any, Any] = {}
        origin: dict[Any, int | None] = dict(zip(jaxpr.invars, origins, strict=False))
        found: list[Found] = []
        words: list[jax.Array] = []

        def read(atom):
            return atom.val if isinstance(atom, Literal) else values[atom]

        values.update(zip(jaxpr.constvars, consts, strict=True))
        values.update(zip(jaxpr.invars, arguments, strict=True))
        sums = sums_of_marked(jaxpr, self.axis_sizes)
        apart = scattered(jaxpr)
        kept = {v for variables, _ in sums.values() for v in variables}
        kept |= {
            v for eqns in apart.values() for eqn in eqns.values() for v in eqn.invars if not isinstance(v, Literal)
        }
        last_uses = last_use(jaxpr, kept)
        for n, eqn in enumerate(jaxpr.eqns):
            operands = [read(x) for x in eqn.invars]
            where_from = [None if isinstance(x, Literal) else origin.get(x) for x in eqn.invars]
            if n in sums:
                results, found_here, words_here = operands[: eqn.params["n"]], (), ()
            else:
                with _place_of(eqn):
                    measured = list(operands)
                    for i, scatter in apart.get(n, {}).items():
                        (measured[i],) = _bind(scatter, lax.optimization_barrier([read(x) for x in scatter.invars]))
                    results, found_here, words_here = self.equation(eqn, measured, where_from)
                    results = operands[: len(results)] if n in apart else results
            values.update(zip(eqn.outvars, results, strict=True))
            found += found_here
            words += words_here
            if eqn.primitive.name in _SAME_LEAF:
                origin.update(zip(eqn.outvars, where_from, strict=False))
            elif eqn.primitive.name in ("pjit", "jit"):
                origin.update(passed_through(eqn, where_from))
            for variable in last_uses.get(n, ()):
                values.pop(variable, None)
        for n, (variables, axes) in sums.items():
            eqn = jaxpr.eqns[n]
            where_from = [None if isinstance(x, Literal) else origin.get(x) for x in eqn.invars]
            belongs_to = where_from[eqn.params["n"] :]
            _, found_here, words_here = self.mark(eqn, [*map(read, variables), *belongs_to], where_from)
            found += [replace(f, summed_over=axes) for f in found_here]
            words += words_here
        return [read(x) for x in jaxpr.outvars], found, words

    def equation(self, eqn, operands, origins):
        rule = self.rule(eqn)
        return (_bind(eqn, operands), (), ()) if rule is None else rule(self, eqn, operands, origins)

    def traced(self, jaxpr: Any, origins=()):
        """A function of the jaxpr's operands that gives results and words; and the list that it fills when traced."""
        found: list[Found] = []
        consts = jaxpr.consts if isinstance(jaxpr, ClosedJaxpr) else ()

        def function(*operands):
            results, found[:], words = self.jaxpr(open_jaxpr(jaxpr), consts, operands, origins)
            return results, words

        return function, found

    def rule(self, eqn) -> Callable | None:
        """How an equation with a mark inside is run; None for all others."""
        if eqn.primitive is mark_p:
            return _Run.mark
        again = self.again or is_again(eqn)
        marks = (found for inner in inner_jaxprs(eqn) for found in marks_in(inner, again))
        if all(again and mark in self.once for mark, again in marks):
            return None
        rule = _RULES.get(eqn.primitive.name)
        if rule is None:
            raise CannotThread(f"a gradient is made inside `{eqn.primitive.name}`, from which nothing can be led out")
        return rule

    # --- one rule for each operation that holds a program ---

    def mark(self, eqn, operands, origins):
        n = eqn.params["n"]
        mark: Mark = eqn.params["mark"]
        if self.again and mark in self.once:
            return operands[:n], (), ()
        batched = eqn.params["batched"]
        measure = lambda *values: self.reduce(mark, values)  # noqa: E731
        for axes in batched:
            measure = _over_members(measure, axes)
        sizes = _member_sizes(operands[:n], batched)
        found = Found(
            mark, tuple(Axis("member", size) for size in sizes), tuple(origins[n:]) or (None,) * n, eqn.params["inner"]
        )
        return operands[:n], [found], [measure(*operands[:n])]

    def inline(self, eqn, operands, origins):
        (inner, *_) = inner_jaxprs(eqn)
        consts = inner.consts if isinstance(inner, ClosedJaxpr) else ()
        return self.jaxpr(open_jaxpr(inner), consts, operands, origins)

    def jit(self, eqn, operands, origins):
        p = eqn.params
        function, found = self.traced(p["jaxpr"], origins)
        operands = [_placed(x, where) for x, where in zip(operands, p["in_shardings"], strict=True)]
        function.__name__ = p["name"]
        results, words = jax.jit(function, inline=p["inline"])(*operands)
        return [_placed(x, where) for x, where in zip(results, p["out_shardings"], strict=True)], found, words

    def remat(self, eqn, operands, origins):
        function, found = self.traced(eqn.params["jaxpr"], origins)
        before, self.again = self.again, self.again or is_again(eqn)
        try:
            jaxpr, constants = _without_constants(function, operands)
        finally:
            self.again = before
        # bound as it was: XLA is told what not to merge with the forward pass
        results = eqn.primitive.bind(*constants, *operands, **{**eqn.params, "jaxpr": jaxpr})
        return results[: len(eqn.outvars)], found, results[len(eqn.outvars) :]

    def scan(self, eqn, operands, origins):
        p = eqn.params
        n_consts, n_carry, length = p["num_consts"], p["num_carry"], p["length"]
        consts, carry, xs = operands[:n_consts], operands[n_consts : n_consts + n_carry], operands[n_consts + n_carry :]
        function, found = self.traced(p["jaxpr"], origins)

        def body(carry, x):
            results, words = function(*consts, *carry, *x)
            return results[:n_carry], (results[n_carry:], words)

        carry, (ys, words) = lax.scan(body, carry, xs, length=length, reverse=p["reverse"], unroll=p["unroll"])
        return [*carry, *ys], [f.within(Axis("step", length)) for f in found], words

    def while_loop(self, eqn, operands, origins):
        p = eqn.params
        n_cond, n_body = p["cond_nconsts"], p["body_nconsts"]
        cond_consts, body_consts, carry = (
            operands[:n_cond],
            operands[n_cond : n_cond + n_body],
            operands[n_cond + n_body :],
        )
        goes_on, found_in_condition = self.traced(p["cond_jaxpr"], origins[:n_cond] + origins[n_cond + n_body :])
        function, found = self.traced(p["body_jaxpr"], origins[n_cond:])
        _, shapes = jax.eval_shape(function, *body_consts, *carry)
        start = [self.nothing(shape) for shape in shapes]

        def condition(state):
            return goes_on(*cond_consts, *state[0])[0][0]

        def body(state):
            results, words = function(*body_consts, *state[0])
            return results, words

        results, words = lax.while_loop(condition, body, (list(carry), start))
        if found_in_condition:
            raise CannotThread("a gradient is made in the condition of a while loop")
        return results, found, words  # of the last step

    def cond(self, eqn, operands, origins):
        index, *operands = operands
        branches = [self.traced(branch, origins[1:]) for branch in eqn.params["branches"]]
        shapes = [jax.eval_shape(function, *operands)[1] for function, _ in branches]

        def branch(which):
            function, _ = branches[which]

            def run(*operands):
                results, words = function(*operands)
                return results, [
                    words if k == which else [self.nothing(s) for s in shapes[k]] for k in range(len(shapes))
                ]

            return run

        results, words = lax.switch(index, [branch(which) for which in range(len(branches))], *operands)
        return results, [f for _, found in branches for f in found], [w for these in words for w in these]

    def shard_map(self, eqn, operands, origins):
        from treeviz.analysis.thread_shard_map import thread_shard_map

        return thread_shard_map(self, eqn, operands, origins)


_RULES = {
    "jit": _Run.jit,
    "pjit": _Run.jit,
    "remat2": _Run.remat,
    "checkpoint": _Run.remat,
    "scan": _Run.scan,
    "while": _Run.while_loop,
    "cond": _Run.cond,
    "shard_map": _Run.shard_map,
    # Differentiation is over when a step is run, so that a rule for it has no use any more.
    "custom_jvp_call": _Run.inline,
    "custom_vjp_call": _Run.inline,
    "custom_vjp_call_jaxpr": _Run.inline,
    "closed_call": _Run.inline,
    "core_closed_call": _Run.inline,
    "core_call": _Run.inline,
    "custom_lin": _Run.inline,
}

# What gives the same leaf in another dtype or place: its gradient is that of the leaf.
_SAME_LEAF = (
    "convert_element_type",
    "copy",
    "copy_p",
    "sharding_constraint",
    "reshard",
    "pvary",
    "pcast",
    "pbroadcast",
)


def _place_of(eqn):
    """Equations that are bound again keep their names and lines."""
    stack = ExitStack()
    names = source_info_util.current_name_stack() + eqn.source_info.name_stack
    stack.enter_context(source_info_util.user_context(eqn.source_info.traceback, name_stack=names))
    stack.enter_context(eqn.ctx.manager)
    return stack


def _bind(eqn, operands) -> Sequence[Any]:
    params = eqn.primitive.get_bind_params(eqn.params)
    # until jax 0.8 or so: the functions that are operands, and the parameters
    functions, params = params if isinstance(params, tuple) else ((), params)
    results = eqn.primitive.bind(*functions, *operands, **params)
    return results if eqn.primitive.multiple_results else [results]


def _placed(x, sharding):
    """The value where an inner jit was told to have it."""
    return lax.with_sharding_constraint(x, sharding) if isinstance(sharding, jax.sharding.Sharding) else x


def _over_members(measure: Callable, axes) -> Callable:
    """What `measure` gives for each entry of a `vmap`, stacked."""

    def stacked(*values):
        moved = [jnp.moveaxis(x, axis, 0) if axis else x for x, axis in zip(values, axes, strict=True)]
        in_axes = tuple(None if axis is None else 0 for axis in axes)
        try:
            return jax.vmap(measure, in_axes)(*moved)
        except NotImplementedError:  # jax 0.4.36 has no vmap of `lax.optimization_barrier`
            members = [x for x, axis in zip(moved, in_axes, strict=True) if axis == 0]

            def one(members):
                members = iter(members)
                return measure(*(x if axis is None else next(members) for x, axis in zip(moved, in_axes, strict=True)))

            return lax.map(one, members)

    return stacked


def _member_sizes(values, batched) -> list[int]:
    """How many entries each `vmap` has, outermost first."""
    sizes = []
    values = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in values]
    for axes in reversed(batched):
        sizes.append(next(x.shape[a] for x, a in zip(values, axes, strict=True) if a is not None))
        shapes = [x.shape if a is None else x.shape[:a] + x.shape[a + 1 :] for x, a in zip(values, axes, strict=True)]
        values = [jax.ShapeDtypeStruct(shape, x.dtype) for shape, x in zip(shapes, values, strict=True)]
    return sizes


def _without_constants(function: Callable, operands) -> tuple[Jaxpr, list[Any]]:
    """The function as a jaxpr whose first operands are its constants; and these."""
    program = jax.make_jaxpr(function)(*operands)
    n_consts, inner = len(program.consts), program.jaxpr

    def with_constants(*operands):
        return _Run(_never, _never, set()).jaxpr(inner, operands[:n_consts], operands[n_consts:])[0]

    return jax.make_jaxpr(with_constants)(*program.consts, *operands).jaxpr, program.consts


def _never(*_):
    raise AssertionError("the marks were taken out before")
