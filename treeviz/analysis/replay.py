"""Run a traced program equation by equation, and know of every value that is not finite where that began."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

from treeviz.analysis.nonfinite import NAN, bits_of, bits_of_constant, is_inexact, with_bits

_AT_ONCE = 256  # equations whose checks are read together

_INLINE = {
    *("jit", "pjit", "remat2", "checkpoint", "closed_call", "core_closed_call", "core_call"),
    *("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_lin"),
}
# What only moves values needs no check of its own.
_MOVES = {
    "reshape",
    "transpose",
    "broadcast_in_dim",
    "squeeze",
    "expand_dims",
    "rev",
    "copy",
    "copy_p",
    "stop_gradient",
}
# Where an infinity of a sign that no operand has must be new: exp(-Inf) is 0.
_KEEPS_SIGN = {
    *("exp", "exp2", "expm1", "log", "log1p", "sqrt", "add", "add_any", "max", "min", "convert_element_type"),
    *("reduce_sum", "reduce_max", "reduce_min", "cumsum", "cumlogsumexp"),
}


class CannotHunt(Exception):
    """A program that cannot be run equation by equation, or not within the bound."""


class Within(NamedTuple):
    """Where a jaxpr stands that is being run.

    Attributes:
      outer, eqn: The equation that holds it, and where that stands.
      iterations: Of the loops around it, the outermost first: ("scan", 7).
    """

    jaxpr: Jaxpr
    outer: Within | None = None
    eqn: Any = None
    iterations: tuple[tuple[str, int], ...] = ()

    def inside(self, eqn: Any, jaxpr: Jaxpr, step: int | None = None) -> Within:
        more = () if step is None else ((eqn.primitive.name, step),)
        return Within(jaxpr, self, eqn, self.iterations + more)


class Site(NamedTuple):
    """One run of one equation, or an argument of the program, which comes before all."""

    order: int
    eqn: Any = None
    within: Within | None = None
    leaf: int = -1


@dataclass(eq=False)
class Taint:
    """What is not finite in a value, and where that began. Holds no array.

    Attributes:
      origin: None where nothing is wrong: all is finite, or infinite by a constant.
      became: Where an infinity turned into NaN.
    """

    bits: int = 0
    origin: Site | None = None
    became: Site | None = None


_FINE = Taint()


class Value(NamedTuple):
    array: Any
    taint: Taint = _FINE


# (number, operands) of each step of a loop; is sent its results
_Steps = Generator[tuple[int, list[Value]], Any, None]


class _Arrived(Exception):
    """The equation that was looked for is reached."""


@dataclass
class Replay:
    """One run.

    Attributes:
      most: So many equations and steps of loops are run.
      stop_at: The order of a site.
      look: Called there with (operands, results).
      first_nan: The first value with a NaN in it, wherever it went; constants are left out.
      began: Every site that gave something that is not finite out of what is.
    """

    most: int
    stop_at: int = -1
    look: Callable[[Sequence[Any], Sequence[Any]], None] | None = None
    first_nan: Taint | None = None
    began: list[Site] = field(default_factory=list)
    constant_nans: set[int] = field(default_factory=set)  # orders of sites that let one in
    n: int = 0
    waiting: list[tuple[Taint, jax.Array, list[Taint], Site | None]] = field(default_factory=list)

    def run(self, program: ClosedJaxpr, operands: Sequence[Value]) -> list[Taint]:
        """What is not finite in the program's results; empty if it came to `stop_at`."""
        try:
            results = self.jaxpr(program.jaxpr, program.consts, operands, Within(program.jaxpr))
        except _Arrived:
            return []
        self.read()
        return [value.taint for value in results]

    def jaxpr(self, jaxpr: Jaxpr, consts: Sequence[Any], operands: Sequence[Value], within: Within) -> list[Value]:
        values: dict[Any, Value] = dict(zip(jaxpr.invars, operands, strict=True))
        values.update((v, Value(x, self.checked(x, [], None))) for v, x in zip(jaxpr.constvars, consts, strict=True))
        last_use = _last_use(jaxpr)

        def read(atom) -> Value:
            return Value(atom.val, _literal(atom)) if isinstance(atom, Literal) else values[atom]

        for n, eqn in enumerate(jaxpr.eqns):
            results = self.equation(eqn, [read(x) for x in eqn.invars], within)
            values.update(zip(eqn.outvars, results, strict=True))
            for variable in last_use.get(n, ()):
                values.pop(variable, None)
        return [read(x) for x in jaxpr.outvars]

    def site(self, eqn: Any, within: Within) -> Site:
        self.n += 1
        if self.n > self.most:
            raise CannotHunt(
                f"hunt: after {self.most:,} equations the step was not over. "
                "Pass a smaller step, or allow more: hunt_in(step, args, max_equations=...)."
            )
        return Site(self.n, eqn, within)

    def equation(self, eqn: Any, operands: list[Value], within: Within) -> list[Value]:
        name = eqn.primitive.name
        if name in _INLINE:
            return self.inline(eqn, operands, within)
        if name == "cond":
            index, *operands = operands
            branches = eqn.params["branches"]
            which = int(np.clip(int(jax.device_get(index.array)), 0, len(branches) - 1))
            return self.closed(branches[which], operands, within.inside(eqn, branches[which].jaxpr))
        site = self.site(eqn, within)
        if name in ("debug_callback", "debug_print"):  # has been seen, and gives nothing
            return []
        results = _bind(eqn, [x.array for x in operands])
        self.arrive(site, [x.array for x in operands], results)
        if name in _MOVES and len(results) == 1:
            return [Value(results[0], operands[0].taint)]
        taints = [x.taint for x in operands]
        values = [Value(x, self.checked(x, taints, site)) for x in results]
        if name in ("scan", "while"):
            self.read()
            if any(site in (v.taint.origin, v.taint.became) for v in values):
                self.loop(eqn, operands, values, within)
        return values

    def inline(self, eqn: Any, operands: list[Value], within: Within) -> list[Value]:
        inner = next(x for x in eqn.params.values() if isinstance(x, Jaxpr | ClosedJaxpr))
        if isinstance(inner, ClosedJaxpr):
            return self.closed(inner, operands, within.inside(eqn, inner.jaxpr))
        return self.jaxpr(inner, (), operands, within.inside(eqn, inner))

    def closed(self, closed: ClosedJaxpr, operands: list[Value], within: Within) -> list[Value]:
        return self.jaxpr(closed.jaxpr, closed.consts, operands, within)

    def arrive(self, site: Site, operands: Sequence[Any], results: Sequence[Any]) -> None:
        if site.order == self.stop_at:
            if self.look is not None:
                self.look(operands, results)
            raise _Arrived

    # What is not finite

    def checked(self, x: Any, operands: list[Taint], site: Site | None) -> Taint:
        """Knows after `read` what is not finite in x. No site: x is a constant."""
        if not is_inexact(x) or not x.size:
            return _FINE
        taint = Taint()
        self.waiting.append((taint, bits_of(x), operands, site))
        if len(self.waiting) >= _AT_ONCE:
            self.read()
        return taint

    def read(self) -> None:
        waiting, self.waiting = self.waiting, []
        for (taint, _, operands, site), bits in zip(waiting, jax.device_get([w[1] for w in waiting]), strict=True):
            self.judge(taint, int(bits), operands, site)

    def judge(self, taint: Taint, bits: int, operands: Sequence[Taint], site: Site | None) -> None:
        taint.bits = bits
        if not bits or site is None:
            return
        before = 0
        for operand in operands:
            before |= operand.bits
        if bits & NAN:
            if before & NAN:
                is_same = site.eqn.primitive.name == "convert_element_type"  # a constant in another dtype is one
                self.inherit(taint, [t for t in operands if t.bits & NAN], None if is_same else site)
                if taint.origin is site:  # `jnp.var` has a NaN at hand, and seldom uses it
                    self.constant_nans.add(site.order)
            else:
                self.inherit(taint, [t for t in operands if t.bits], site)
                if taint.origin is not site:
                    taint.became = site
            if taint.origin is not None and taint.origin.order not in self.constant_nans:
                self.first_nan = self.first_nan or taint
        elif not before or (site.eqn.primitive.name in _KEEPS_SIGN and not before & NAN and bits & ~before):
            taint.origin = site
        else:
            self.inherit(taint, operands, None)
        if taint.origin is site:
            self.began.append(site)

    @staticmethod
    def inherit(taint: Taint, operands: Sequence[Taint], otherwise: Site | None) -> None:
        """The earliest origin among the operands."""
        known = [t for t in operands if t.origin is not None]
        first = min(known, key=lambda t: t.origin.order, default=None)  # type: ignore[union-attr]
        taint.origin, taint.became = (otherwise, None) if first is None else (first.origin, first.became)

    # Loops: each has been run as a whole. A step is looked into where something is wrong after it, and not before.

    def loop(self, eqn: Any, operands: list[Value], results: list[Value], within: Within) -> None:
        """Replace the loop as the origin of what is wrong in its results by an equation inside it."""
        steps = _scan_steps(eqn, operands) if eqn.primitive.name == "scan" else _while_steps(eqn, operands)
        body: ClosedJaxpr = eqn.params["jaxpr" if eqn.primitive.name == "scan" else "body_jaxpr"]
        # One program for a step and its check, compiled once.
        run = jax.jit(lambda *xs: with_bits(jaxpr_as_fun(body)(*xs)))
        harmless = [0] * len(results)
        missing = {i for i, v in enumerate(results) if v.taint.bits}
        outs: list[Value] | None = None
        while missing:
            try:
                k, inputs = steps.send(outs)
            except StopIteration:
                return
            site = self.site(eqn, within)
            arrays, words = run(*(x.array for x in inputs))
            outs = [Value(x, Taint()) for x in arrays]
            bad = [int(word) for word in jax.device_get(words)]
            for i, value in enumerate(outs):
                if bad[i] & ~harmless[i]:
                    self.judge(value.taint, bad[i], [x.taint for x in inputs], site)
                else:
                    value.taint.bits = bad[i]
            if any(site in (v.taint.origin, v.taint.became) for v in outs):
                inner = self.closed(body, inputs, within.inside(eqn, body.jaxpr, k))
                self.arrive(site, [x.array for x in inputs], arrays)
                self.read()
                for i, value in enumerate(inner):
                    if value.taint.bits & NAN or not outs[i].taint.bits & NAN:
                        vars(outs[i].taint).update(vars(value.taint))
                        if value.taint.origin is None:
                            harmless[i] |= value.taint.bits
            for i in sorted(missing):
                whole, here = results[i].taint, outs[i].taint
                if here.bits and (here.bits & NAN or not whole.bits & NAN):
                    whole.origin, whole.became = here.origin, here.became
                    if here.origin is not None or not whole.bits & NAN:
                        missing.discard(i)


def _scan_steps(eqn: Any, operands: list[Value]) -> _Steps:
    p = eqn.params
    n_consts, n_carry = p["num_consts"], p["num_carry"]
    consts, carry, xs = operands[:n_consts], operands[n_consts : n_consts + n_carry], operands[n_consts + n_carry :]
    entry = jax.jit(lambda xs, k: [lax.dynamic_index_in_dim(x, k, 0, keepdims=False) for x in xs])
    for k in range(p["length"]):
        place = p["length"] - 1 - k if p["reverse"] else k
        x = entry([x.array for x in xs], np.int32(place))
        # An entry of a mask may be finite; that is for the step to find out.
        inputs = [*consts, *carry, *map(Value, x, [v.taint for v in xs])]
        outs = yield place, inputs
        carry = outs[:n_carry]


def _while_steps(eqn: Any, operands: list[Value]) -> _Steps:
    p = eqn.params
    n_cond, n_body = p["cond_nconsts"], p["body_nconsts"]
    cond_consts, body_consts = operands[:n_cond], operands[n_cond : n_cond + n_body]
    carry = operands[n_cond + n_body :]
    goes_on = jax.jit(jaxpr_as_fun(p["cond_jaxpr"]))
    k = 0
    while bool(jax.device_get(goes_on(*(x.array for x in (*cond_consts, *carry)))[0])):
        carry = yield k, [*body_consts, *carry]
        k += 1


def _literal(literal: Literal) -> Taint:
    bits = bits_of_constant(literal.val)
    return Taint(bits) if bits else _FINE


def _bind(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    params = eqn.primitive.get_bind_params(eqn.params)
    # until jax 0.8 or so: the functions that are operands, and the parameters
    functions, params = params if isinstance(params, tuple) else ((), params)

    def bind(*operands):
        results = eqn.primitive.bind(*functions, *operands, **params)
        return list(results) if eqn.primitive.multiple_results else [results]

    with eqn.ctx.manager:
        if eqn.primitive.name in ("shard_map", "xla_pmap"):
            return jax.jit(bind)(*operands)
        with contextlib.suppress(NotImplementedError):  # has no meaning outside a compiled program
            return bind(*operands)
        return jax.jit(bind)(*operands)


def _last_use(jaxpr: Jaxpr) -> dict[int, list[Any]]:
    last: dict[Any, int] = {}
    for n, eqn in enumerate(jaxpr.eqns):
        last.update((v, n) for v in (*eqn.invars, *eqn.outvars) if not isinstance(v, Literal))
    kept = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    used: dict[int, list[Any]] = {}
    for variable, n in last.items():
        if variable not in kept:
            used.setdefault(n, []).append(variable)
    return used
