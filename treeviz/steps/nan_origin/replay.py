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

from treeviz.steps.nan_origin.devices import Device, Devices
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
    SHARD_MAP,
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
      on_arrival: Called at that site with (operands, results, device): inside a `shard_map` those of one device.
      checks: What is non-finite in the values, and where it began.
      n: The number of equations and steps so far.
      devices: Of the `shard_map` whose body is being run.
      compiled: The operations that were compiled for those, for equations that are alike and for another run.
    """

    max_equations: int
    stop_at: int = -1
    on_arrival: Callable[[Sequence[Any], Sequence[Any], Device], None] | None = None
    checks: Checks = field(default_factory=Checks)
    n: int = 0
    devices: Devices | None = None
    compiled: dict[Any, Callable] = field(default_factory=dict)

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
        consts = [self.constant(x, v) for v, x in zip(jaxpr.constvars, consts, strict=True)]
        values.update((v, Value(x, self.checks.add(x, [], None))) for v, x in zip(jaxpr.constvars, consts, strict=True))
        freed_after = last_uses(jaxpr)

        def read(atom) -> Value:
            if isinstance(atom, Literal):
                return Value(self.constant(atom.val, atom), taint_of_literal(atom))
            return values[atom]

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
            taken = np.unique(np.clip(jax.device_get(index.array), 0, len(branches) - 1))
            if len(taken) == 1:  # devices may take different ones
                return self.inner(branches[int(taken[0])], operands, within, eqn)
            operands = [index, *operands]
        site = self.site(eqn, within)
        if name in DEBUG_CALLBACKS:  # the user's own run has called them already
            return []
        results = self.run_equation(eqn, [x.array for x in operands])
        self.arrive(site, [x.array for x in operands], eqn.invars, results, eqn.outvars)
        if name in IDENTITY or name in RESHAPES:  # they make nothing non-finite
            return [Value(x, operand.taint) for x, operand in zip(results, operands, strict=False)]
        taints = [x.taint for x in operands]
        values = [Value(x, self.checks.add(x, taints, site)) for x in results]
        if name in (SCAN, WHILE) or (name == SHARD_MAP and self.devices is None):
            self.checks.read()
            if any(site in (v.taint.origin, v.taint.became) for v in values):
                (self.shards if name == SHARD_MAP else self.loop)(eqn, operands, values, within)
        return values

    def arrive(self, site: Site, operands: Sequence[Any], invars, results: Sequence[Any], outvars) -> None:
        if site.order == self.stop_at:
            device: Device = ()
            if self.devices is not None:
                avals = [[v.aval for v in variables] for variables in (invars, outvars)]
                device, operands, results = self.devices.first_bad(operands, avals[0], results, avals[1])
            if self.on_arrival is not None:
                self.on_arrival(operands, results, device)
            raise _Arrived

    # Inside a `shard_map`, each operation is one of its own, and each value has a leading axis of devices.

    def constant(self, value: Any, atom: Any) -> Any:
        return value if self.devices is None else self.devices.constant(value, atom.aval)

    def on_devices(self, function: Callable, invars: Sequence[Any], outvars: Sequence[Any]) -> Callable:
        """The function; inside a `shard_map`, on each device."""
        if self.devices is None:
            return function
        return self.devices.on_each(function, [v.aval for v in invars], [v.aval for v in outvars])

    def run_equation(self, eqn: Any, operands: Sequence[Any]) -> list[Any]:
        """Apply an equation's primitive to arrays."""

        def run(*operands):
            with eqn.ctx.manager:
                return bind(eqn, operands)

        if self.devices is not None:
            key = self.devices.key_of(eqn)
            if key not in self.compiled:
                self.compiled[key] = jax.jit(self.on_devices(run, eqn.invars, eqn.outvars))
            return list(self.compiled[key](*operands))
        if eqn.primitive.name not in COMPILED_ONLY:
            with contextlib.suppress(NotImplementedError):  # e.g. for a collective
                return run(*operands)
        with eqn.ctx.manager:
            return jax.jit(run)(*operands)

    def shards(self, eqn: Any, operands: list[Value], results: list[Value], within: Within) -> None:
        """Find the origin of what is non-finite in the results of a `shard_map` inside it, and set it in their taints.

        Where this JAX cannot run a part of the body apart, the `shard_map` stays one operation.
        """
        body = called_jaxpr(eqn)
        self.devices = Devices(eqn)
        try:
            avals = [v.aval for v in open_jaxpr(body).invars]
            inside = self.devices.enter([x.array for x in operands], avals)
            taints = [x.taint for x in operands]
            found = self.inner(body, list(map(Value, inside, taints)), within, eqn)
            self.checks.read()
        except (_Arrived, CannotLocateNan):
            raise
        except Exception:
            return
        finally:
            self.devices = None
        for whole, here in zip(results, found, strict=True):
            if here.taint.bits and (here.taint.bits & NAN or not whole.taint.bits & NAN):
                vars(whole.taint).update(vars(here.taint))

    # Loops: `equation` runs each as a whole. If something non-finite begins in it, its steps are run one by one, and
    # the step in which it begins is run equation by equation.

    def loop(self, eqn: Any, operands: list[Value], results: list[Value], within: Within) -> None:
        """Find the origin of what is non-finite in a loop's results inside the loop, and set it in their taints."""
        if eqn.primitive.name == SCAN:
            body, steps = scan_parts(eqn, operands).body, self.scan_steps(eqn, operands)
        else:
            body, steps = while_parts(eqn, operands).body, self.while_steps(eqn, operands)
        # A step and its check are one program, compiled once.
        one_step = self.on_devices(jaxpr_as_fun(body), body.jaxpr.invars, body.jaxpr.outvars)
        run = jax.jit(lambda *xs: with_bits(one_step(*xs)))
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
            self.arrive(site, [x.array for x in inputs], body.jaxpr.invars, arrays, body.jaxpr.outvars)
            self.checks.read()
            for i, value in enumerate(by_equation):
                if value.taint.bits & NAN or not outputs[i].taint.bits & NAN:
                    vars(outputs[i].taint).update(vars(value.taint))
                    if value.taint.origin is None:
                        from_constants[i] |= value.taint.bits
        return outputs

    def scan_steps(self, eqn: Any, operands: list[Value]) -> _Steps:
        parts = scan_parts(eqn, operands)
        carry, length = parts.carry, parts.length
        axis = 0 if self.devices is None else 1
        entry = jax.jit(lambda xs, k: [lax.dynamic_index_in_dim(x, k, axis, keepdims=False) for x in xs])
        for k in range(length):
            place = length - 1 - k if parts.reverse else k
            x = entry([x.array for x in parts.xs], np.int32(place))
            # An entry has the taint of the whole array, although it may be finite; the step's own check decides.
            inputs = [*parts.consts, *carry, *map(Value, x, [v.taint for v in parts.xs])]
            outputs = yield place, inputs
            carry = outputs[: len(carry)]

    def while_steps(self, eqn: Any, operands: list[Value]) -> _Steps:
        """Ends early where the loop goes on on some devices, or for some members of a `vmap`, only."""
        parts = while_parts(eqn, operands)
        carry, k, condition = parts.carry, 0, parts.condition
        goes_on = self.on_devices(jaxpr_as_fun(condition), condition.jaxpr.invars, condition.jaxpr.outvars)
        goes_on = jax.jit(goes_on)
        while np.all(jax.device_get(goes_on(*(x.array for x in (*parts.cond_consts, *carry)))[0])):
            carry = yield k, [*parts.body_consts, *carry]
            k += 1
