"""Run a traced program so that what is measured at its marks, however deep they lie, comes out beside its results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from treeviz.analysis.marks import Found, Mark, mark_p
from treeviz.analysis.members import of_members
from treeviz.analysis.params_beside import params_beside
from treeviz.analysis.thread_rules import RULES, CannotThread

Reduce = Callable[[Mark, Sequence[Any]], jax.Array]


def thread_out(
    program: ClosedJaxpr,
    arguments: Sequence[Any],
    reduce: Reduce,
    nothing: Callable[[Any], Any] = jnp.zeros_like,
    *,
    beside: bool = False,
) -> tuple[list[Any], list[Found], list[jax.Array]]:
    """Run `program` on `arguments`; give its results, what was found, and what was measured there.

    Traceable: under `jit` the measured values are further results of the same program, and the marks are gone.

    Args:
      reduce: Called at each mark, with the marked values; gives one array.
      nothing: What stands for an array of `reduce` where a branch was not taken, or a loop made no step.
      beside: In a loop that changes what a gradient belongs to, measure that too, and what is added to it.

    Raises:
      CannotThread: A mark lies inside an operation that we do not know.
    """
    run = _Run(reduce, nothing, {mark for mark, again in marks_in(program) if not again}, beside)
    return run.jaxpr(program.jaxpr, program.consts, arguments, range(len(arguments)))


class _Run:
    """One run of a program. The rules of `thread_rules` take it on into the programs inside."""

    def __init__(self, reduce: Reduce, nothing: Callable[[Any], Any], once: set[Mark], beside: bool) -> None:
        self.reduce = reduce
        self.nothing = nothing
        self.once = once  # found where nothing is computed again, so that they need not be found there too
        self.beside = beside
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
        words, axes = of_members(lambda *values: self.reduce(mark, values), operands[:n], [b[:n] for b in batched])
        found = Found(
            mark,
            axes,
            tuple(origins[n:]) or (None,) * n,
            eqn.params["inner"],
            batched=tuple(b[n:] for b in batched),
        )
        return operands[:n], [found], [words]

    def carried(self, found: Sequence[Found], before: Mapping[int, Any], after: Mapping[int, Any]):
        """What was found in the body of a loop, and with it the parameters that change there; and their words.

        Args:
          before, after: What is carried into a step of the loop and out of it, by the number of the operand.
        """
        known, parts, words = [], [], []
        for f in found:
            origins = [origin for origin in f.origins if origin is not None]
            is_known = len(origins) == len(f.origins)
            is_moving = not is_known or any(origin in before for origin in origins)
            known.append(replace(f, is_moving=f.is_moving or (is_moving and f.of is None)))
            can_be = self.beside and is_known and f.of is None and f.mark.kind != "tap" and not f.is_moving
            # within a `shard_map` nobody knows what the devices share
            if can_be and not self.axis_sizes and all(origin in before for origin in origins):
                old, new = ([x[origin] for origin in origins] for x in (before, after))
                for part, words_of_part in params_beside(self.reduce, f, old, new):
                    parts.append(part)
                    words.append(words_of_part)
        return known + parts, words


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


@contextmanager
def _place_of(eqn) -> Iterator[None]:
    """Equations that are bound again keep their names and lines."""
    names = source_info_util.current_name_stack() + eqn.source_info.name_stack
    with source_info_util.user_context(eqn.source_info.traceback, name_stack=names), eqn.ctx.manager:
        yield


def _bind(eqn, operands) -> Sequence[Any]:
    params = eqn.primitive.get_bind_params(eqn.params)
    # until jax 0.8 or so: the functions that are operands, and the parameters
    functions, params = params if isinstance(params, tuple) else ((), params)
    results = eqn.primitive.bind(*functions, *operands, **params)
    return results if eqn.primitive.multiple_results else [results]
