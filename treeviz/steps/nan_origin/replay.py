"""Run a traced program equation by equation, and find where every non-finite value began."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

from treeviz.steps.nan_origin.nonfinite import NAN, with_bits
from treeviz.steps.nan_origin.taint import Checks, Site, Taint, Value, Within, taint_of_literal
from treeviz.steps.tracing.primitives import (
    CALLS,
    COMPILED_ONLY,
    COND,
    DEBUG_CALLBACKS,
    IDENTITY,
    RESHAPES,
    SCAN,
    WHILE,
    bind,
    called_jaxpr,
    consts_of,
    last_uses,
    open_jaxpr,
    scan_parts,
    while_parts,
)


class CannotLocateNan(Exception):
    """The program cannot be run equation by equation, or has more equations than the bound."""


# Yields (number, operands) of each step of a loop; is sent the results of the step.
_Steps = Generator[tuple[int, list[Value]], Any, None]


class _Arrived(Exception):
    """The equation at `stop_at` is reached."""


@dataclass
class Replay:
    """One run of a program.

    Attributes:
      max_equations: The bound on equations and steps of loops.
      stop_at: The order of the site to stop at; -1: run to the end.
      on_arrival: Called at that site with (operands, results).
      checks: What is non-finite in the values, and where it began.
      n: The number of equations and steps so far.
    """

    max_equations: int
    stop_at: int = -1
    on_arrival: Callable[[Sequence[Any], Sequence[Any]], None] | None = None
    checks: Checks = field(default_factory=Checks)
    n: int = 0

    def run(self, program: ClosedJaxpr, operands: Sequence[Value]) -> list[Taint]:
        """The taints of the program's results; empty if it stopped at `stop_at`."""
        try:
            results = self.jaxpr(program.jaxpr, program.consts, operands, Within(program.jaxpr))
        except _Arrived:
            return []
        self.checks.read()
        return [value.taint for value in results]

    def jaxpr(self, jaxpr: Jaxpr, consts: Sequence[Any], operands: Sequence[Value], within: Within) -> list[Value]:
        values: dict[Any, Value] = dict(zip(jaxpr.invars, operands, strict=True))
        values.update((v, Value(x, self.checks.add(x, [], None))) for v, x in zip(jaxpr.constvars, consts, strict=True))
        freed_after = last_uses(jaxpr)

        def read(atom) -> Value:
            return Value(atom.val, taint_of_literal(atom)) if isinstance(atom, Literal) else values[atom]

        for n, eqn in enumerate(jaxpr.eqns):
            results = self.equation(eqn, [read(x) for x in eqn.invars], within)
            values.update(zip(eqn.outvars, results, strict=True))
            for variable in freed_after.get(n, ()):
                values.pop(variable, None)
        return [read(x) for x in jaxpr.outvars]

    def inner(self, jaxpr: Any, operands: Sequence[Value], within: Within, eqn: Any, step: int | None = None):
        """Run a jaxpr that `eqn` holds."""
        opened = open_jaxpr(jaxpr)
        return self.jaxpr(opened, consts_of(jaxpr), operands, within.inside(eqn, opened, step))

    def site(self, eqn: Any, within: Within) -> Site:
        self.n += 1
        if self.n > self.max_equations:
            raise CannotLocateNan(
                f"locate_nan: after {self.max_equations:,} equations the step was not over. "
                "Pass a smaller step, or allow more: locate_nan_in(step, args, max_equations=...)."
            )
        return Site(self.n, eqn, within)

    def equation(self, eqn: Any, operands: list[Value], within: Within) -> list[Value]:
        name = eqn.primitive.name
        if name in CALLS:
            return self.inner(called_jaxpr(eqn), operands, within, eqn)
        if name == COND:
            index, *operands = operands
            branches = eqn.params["branches"]
            taken = int(np.clip(int(jax.device_get(index.array)), 0, len(branches) - 1))
            return self.inner(branches[taken], operands, within, eqn)
        site = self.site(eqn, within)
        if name in DEBUG_CALLBACKS:  # the user's own run has called them already
            return []
        results = _run_equation(eqn, [x.array for x in operands])
        self.arrive(site, [x.array for x in operands], results)
        if name in IDENTITY or name in RESHAPES:  # they make nothing non-finite
            return [Value(x, operand.taint) for x, operand in zip(results, operands, strict=False)]
        taints = [x.taint for x in operands]
        values = [Value(x, self.checks.add(x, taints, site)) for x in results]
        if name in (SCAN, WHILE):
            self.checks.read()
            if any(site in (v.taint.origin, v.taint.became) for v in values):
                self.loop(eqn, operands, values, within)
        return values

    def arrive(self, site: Site, operands: Sequence[Any], results: Sequence[Any]) -> None:
        if site.order == self.stop_at:
            if self.on_arrival is not None:
                self.on_arrival(operands, results)
            raise _Arrived

    # Loops: `equation` runs each as a whole. If something non-finite begins in it, its steps are run one by one, and
    # the step in which it begins is run equation by equation.

    def loop(self, eqn: Any, operands: list[Value], results: list[Value], within: Within) -> None:
        """Find the origin of what is non-finite in a loop's results inside the loop, and set it in their taints."""
        if eqn.primitive.name == SCAN:
            body, steps = scan_parts(eqn, operands).body, _scan_steps(eqn, operands)
        else:
            body, steps = while_parts(eqn, operands).body, _while_steps(eqn, operands)
        # A step and its check are one program, compiled once.
        run = jax.jit(lambda *xs: with_bits(jaxpr_as_fun(body)(*xs)))
        from_constants = [0] * len(results)
        unexplained = {i for i, v in enumerate(results) if v.taint.bits}
        outputs: list[Value] | None = None
        while unexplained:
            try:
                k, inputs = steps.send(outputs)
            except StopIteration:
                return
            outputs = self.step(eqn, body, run, k, inputs, from_constants, within)
            for i in sorted(unexplained):
                whole, here = results[i].taint, outputs[i].taint
                if here.bits and (here.bits & NAN or not whole.bits & NAN):
                    whole.origin, whole.became = here.origin, here.became
                    if here.origin is not None or not whole.bits & NAN:
                        unexplained.discard(i)

    def step(
        self,
        eqn: Any,
        body: ClosedJaxpr,
        run: Callable,
        k: int,
        inputs: list[Value],
        from_constants: list[int],
        within: Within,
    ) -> list[Value]:
        """Run step k of a loop, and find the origin of what is non-finite in its results.

        Args:
          run: The compiled body; gives the results and their bits.
          from_constants: For each result, the bits that are known to come from constants of the body. Updated here.
        """
        site = self.site(eqn, within)
        arrays, all_bits = run(*(x.array for x in inputs))
        outputs = [Value(x, Taint()) for x in arrays]
        for i, bits in enumerate(map(int, jax.device_get(all_bits))):
            if bits & ~from_constants[i]:
                self.checks.judge(outputs[i].taint, bits, [x.taint for x in inputs], site)
            else:
                outputs[i].taint.bits = bits
        if any(site in (v.taint.origin, v.taint.became) for v in outputs):
            by_equation = self.inner(body, inputs, within, eqn, k)
            self.arrive(site, [x.array for x in inputs], arrays)
            self.checks.read()
            for i, value in enumerate(by_equation):
                if value.taint.bits & NAN or not outputs[i].taint.bits & NAN:
                    vars(outputs[i].taint).update(vars(value.taint))
                    if value.taint.origin is None:
                        from_constants[i] |= value.taint.bits
        return outputs


def _scan_steps(eqn: Any, operands: list[Value]) -> _Steps:
    parts = scan_parts(eqn, operands)
    carry, length = parts.carry, eqn.params["length"]
    entry = jax.jit(lambda xs, k: [lax.dynamic_index_in_dim(x, k, 0, keepdims=False) for x in xs])
    for k in range(length):
        place = length - 1 - k if eqn.params["reverse"] else k
        x = entry([x.array for x in parts.xs], np.int32(place))
        # An entry has the taint of the whole array, although it may be finite; the step's own check decides.
        inputs = [*parts.consts, *carry, *map(Value, x, [v.taint for v in parts.xs])]
        outputs = yield place, inputs
        carry = outputs[: len(carry)]


def _while_steps(eqn: Any, operands: list[Value]) -> _Steps:
    parts = while_parts(eqn, operands)
    carry, k = parts.carry, 0
    goes_on = jax.jit(jaxpr_as_fun(parts.condition))
    while bool(jax.device_get(goes_on(*(x.array for x in (*parts.cond_consts, *carry)))[0])):
        carry = yield k, [*parts.body_consts, *carry]
        k += 1


def _run_equation(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """Apply an equation's primitive to arrays."""
    with eqn.ctx.manager:
        if eqn.primitive.name not in COMPILED_ONLY:
            with contextlib.suppress(NotImplementedError):  # e.g. for a collective
                return bind(eqn, operands)
        return jax.jit(lambda *operands: bind(eqn, operands))(*operands)
