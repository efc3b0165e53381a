"""Run a traced program so that what is measured at its marks, however deep they lie, comes out beside its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import replace
from typing import Any

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
from treeviz.analysis.marks import Axis, Found, Mark, mark_p
from treeviz.analysis.thread_rules import RULES, CannotThread

Reduce = Callable[[Mark, Sequence[Any]], jax.Array]


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
    """One run of a program. The rules of `thread_rules` take it on into the programs inside."""

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
        rule = RULES.get(eqn.primitive.name)
        if rule is None:
            raise CannotThread(f"a gradient is made inside `{eqn.primitive.name}`, from which nothing can be led out")
        return rule

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
