"""Run a traced program equation by equation, and find where every non-finite value began."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun
from jax.sharding import PartitionSpec

from treeviz.steps.tracing.primitives import (
    CALLS,
    CASTS,
    COMPILED_ONLY,
    COND,
    DEBUG_CALLBACKS,
    IDENTITY,
    KEEPS_SIGN_OF_INFINITY,
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
    specs_of,
    while_parts,
)
from treeviz.steps.tracing.reap import shard_map_like, varying_axes

# The kinds of non-finite values in an array, as three bits that stay on the device until they are read.

NAN, POSINF, NEGINF = 1, 2, 4


def is_inexact(x: Any) -> bool:
    """Whether x has a dtype that can hold a NaN."""
    dtype = getattr(x, "dtype", None)
    return jnp.issubdtype(dtype if dtype is not None else type(x), jnp.inexact)


def with_bits(results: Sequence[Any]) -> tuple[Sequence[Any], jax.Array]:
    """The results, and uint8[n_results] with the bits of each result. Traceable."""
    results = [x if isinstance(x, jax.Array) else jnp.asarray(x) for x in results]  # a program may return a constant
    return results, jnp.stack([_bits(x) if is_inexact(x) and x.size else jnp.uint8(0) for x in results])


def _bits(x: jax.Array) -> jax.Array:
    """uint8[]: an integer, since `jax_debug_nans` and `jax_debug_infs` check only floats."""
    word = jnp.uint8(0)
    for part in (jnp.real(x), jnp.imag(x)) if jnp.issubdtype(x.dtype, jnp.complexfloating) else (x,):
        if part.dtype.itemsize < 2:  # some 8-bit floats have no infinities to compare with
            part = part.astype(jnp.float32)
        for bit, is_kind in ((NAN, jnp.isnan(part)), (POSINF, part == jnp.inf), (NEGINF, part == -jnp.inf)):
            word |= jnp.any(is_kind).astype(jnp.uint8) * jnp.uint8(bit)
    return word


_bits_on_device = jax.jit(_bits)


def bits_of(x: Any) -> Any:
    """The bits of an array or a constant. The host reads what is in its memory: for that nothing is compiled."""
    if not is_inexact(x):
        return 0
    if isinstance(x, jax.Array) and not (x.is_fully_addressable and {d.platform for d in x.devices()} == {"cpu"}):
        return _bits_on_device(x)
    value = np.asarray(x)
    value = value[~np.isfinite(value)]
    value = value.astype(np.complex128 if np.iscomplexobj(value) else np.float64)
    parts = np.array([value.real, value.imag])
    is_any = [x.any() for x in (np.isnan(parts), parts == np.inf, parts == -np.inf)]
    return sum(bit for bit, is_kind in zip((NAN, POSINF, NEGINF), is_any, strict=True) if is_kind)


# Counts and ranges of the elements of one operand or result.


class Numbers(NamedTuple):
    """Shape, dtype, range and the counts of NaN and Inf of an array."""

    shape: tuple[int, ...]
    dtype: str
    least: float | None  # of the finite values, of magnitudes if complex; None if no value is finite
    greatest: float | None
    n_nan: int
    n_posinf: int
    n_neginf: int

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def nonfinite(self) -> str:
        """The counts as text, "3 -Inf and 1 NaN"; "" if all values are finite."""
        counts = ((self.n_nan, "NaN"), (self.n_posinf, "+Inf"), (self.n_neginf, "-Inf"))
        return " and ".join(f"{n:,} {kind}" for n, kind in counts if n)

    @property
    def range(self) -> str:
        text = "nothing finite"
        if self.least is not None and self.greatest is not None:
            text = f"[{self.least + 0.0:.4g}, {self.greatest + 0.0:.4g}]"
        return f"{text} with {self.nonfinite}" if self.nonfinite else text


def first_nonfinite(x: Any) -> tuple[int, ...]:
    """The index of the first NaN or Inf; empty for a scalar, or if other processes hold a part of x."""
    finite = _is_finite(x)
    return () if finite is None else tuple(map(int, np.unravel_index(int(finite.argmin()), finite.shape)))


def nonfinite_entries(x: Any) -> tuple[int, ...]:
    """The indices along the first axis, such as examples of a batch, with NaN or Inf; empty if unknown."""
    finite = _is_finite(x) if np.ndim(x) else None
    if finite is None:
        return ()
    return tuple(np.flatnonzero(~finite.all(axis=tuple(range(1, finite.ndim)))).tolist())


def _is_finite(x: Any) -> np.ndarray | None:
    if not getattr(x, "is_fully_addressable", True):
        return None
    return np.asarray(jax.device_get(jnp.isfinite(x.astype(jnp.float32) if x.dtype.itemsize < 2 else x)))


def numbers_of(x: Any) -> Numbers:
    x = jnp.asarray(x)
    least, greatest, *counts = [y.item() for y in jax.device_get(_numbers(x))] if x.size else (np.inf, -np.inf, 0, 0, 0)
    finite = least <= greatest
    return Numbers(x.shape, str(x.dtype), least if finite else None, greatest if finite else None, *map(int, counts))


@jax.jit
def _numbers(x: jax.Array):
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        real = jnp.where(jnp.isfinite(x), jnp.abs(x), jnp.where(jnp.isnan(x), jnp.nan, jnp.inf))
    else:
        real = x.astype(jnp.float32) if x.dtype.itemsize < 4 else x
    finite = jnp.isfinite(real)
    least, greatest = (
        reduce(real, where=finite, initial=start) for reduce, start in ((jnp.min, np.inf), (jnp.max, -np.inf))
    )
    return least, greatest, *(jnp.sum(is_kind) for is_kind in (jnp.isnan(real), real == np.inf, real == -np.inf))


# The body of a `shard_map`, run operation by operation on its devices.

Device = tuple[tuple[str, int], ...]  # (("data", 3), ("model", 0))


class Devices:
    """Runs parts of the body of a `shard_map`; outside, its values have a leading axis of devices that may differ."""

    def __init__(self, eqn: Any) -> None:
        self._eqn, self._params = eqn, eqn.params

    def enter(self, operands: Sequence[Any], avals: Sequence[Any]) -> list[Any]:
        """The operands of the `shard_map` as values of its body."""
        in_specs = tuple(specs_of(self._params, "in", self._eqn.invars))
        split = shard_map_like(self._params, _with_axis, in_specs, tuple(map(self._spec, avals)))
        return list(jax.jit(split)(*operands))

    def constant(self, value: Any, aval: Any) -> Any:
        """A constant or literal as a value of the body."""
        array = jnp.asarray(value, getattr(aval, "dtype", None))
        return jnp.broadcast_to(array, (int(np.prod(self._sizes(aval))), *array.shape))

    def per_device(self, function: Callable, in_avals: Sequence[Any], out_avals: Sequence[Any]) -> Callable:
        """Makes a part of the body, `function`, a function of values with the device axis."""

        def on_device(*operands):
            return _with_axis(*function(*(x[0] for x in operands)))

        in_specs, out_specs = (tuple(map(self._spec, avals)) for avals in (in_avals, out_avals))
        return shard_map_like(self._params, on_device, in_specs, out_specs)

    def key_of(self, eqn: Any) -> Any:
        """A key that is equal for equations with the same computation and types."""
        avals = (tuple(v.aval for v in variables) for variables in (eqn.invars, eqn.outvars))
        try:
            key = id(self._eqn), eqn.primitive, *avals, frozenset(eqn.params.items())
            hash(key)
        except TypeError:  # a parameter cannot be hashed
            return id(eqn)
        return key

    def first_bad(
        self, operands: Sequence[Any], in_avals: Sequence[Any], results: Sequence[Any], out_avals: Sequence[Any]
    ) -> tuple[Device, list[Any], list[Any]]:
        """The first device with a non-finite result, and the operands and results on it, or on all if those agree."""
        device: Device = ()
        for x, aval in zip(results, out_avals, strict=True):
            if is_inexact(x) and x.size and x.is_fully_addressable:
                bad = jax.device_get(_has_nonfinite(x))
                if bad.any():
                    position = np.unravel_index(int(bad.argmax()), self._sizes(aval))
                    device = tuple(zip(varying_axes(self._params, aval), map(int, position), strict=True))
                    break
        on_device = functools.partial(self._on, device)
        return device, [*map(on_device, operands, in_avals)], [*map(on_device, results, out_avals)]

    def _on(self, device: Device, x: Any, aval: Any) -> Any:
        if not is_inexact(x) or not x.is_fully_addressable:
            return x
        position, axes = dict(device), varying_axes(self._params, aval)
        rows = np.arange(len(x)).reshape(self._sizes(aval))[tuple(position.get(axis, slice(None)) for axis in axes)]
        by_row: dict[int, np.ndarray] = {}
        for shard in x.addressable_shards:  # only the shards that are needed leave the devices
            first = shard.index[0].start or 0
            here = ({*rows.ravel().tolist()} & {*range(first, first + len(shard.data))}) - by_row.keys()
            if here:
                data = jax.device_get(shard.data)
                by_row |= {row: data[row - first] for row in here}
        return np.stack([by_row[row] for row in rows.ravel().tolist()]).reshape(*rows.shape, *x.shape[1:])

    def _sizes(self, aval: Any) -> tuple[int, ...]:
        return tuple(self._params["mesh"].shape[axis] for axis in varying_axes(self._params, aval))

    def _spec(self, aval: Any) -> PartitionSpec:
        return PartitionSpec(varying_axes(self._params, aval) or None)


def _with_axis(*xs):
    return tuple(x[None] for x in xs)


@jax.jit
def _has_nonfinite(x: jax.Array) -> jax.Array:
    return jnp.any(~jnp.isfinite(x), axis=tuple(range(1, x.ndim)))


# Taints: the non-finite values of a replay, each with the equation that produced it.

_READ_AT_ONCE = 256  # equations whose checks are transferred together


class Within(NamedTuple):
    """The position of a jaxpr within the program."""

    jaxpr: Jaxpr
    outer: Within | None = None  # the position of the enclosing jaxpr; None for the program
    eqn: Any = None  # the equation there that holds this one
    iterations: tuple[tuple[str, int], ...] = ()  # of the enclosing loops, the outermost first: ("scan", 7)

    def inside(self, eqn: Any, jaxpr: Jaxpr, step: int | None = None) -> Within:
        iteration = () if step is None else ((eqn.primitive.name, step),)
        return Within(jaxpr, self, eqn, self.iterations + iteration)


class Site(NamedTuple):
    """One run of one equation; or an argument of the program, with the index of its leaf and a negative order."""

    order: int
    eqn: Any = None
    within: Within | None = None
    leaf: int = -1


@dataclass(eq=False)
class Taint:
    """The kinds of non-finite elements in a value, and their origin. Holds no array."""

    bits: int = 0  # `NAN`, `POSINF` and `NEGINF`, combined
    origin: Site | None = None  # what produced them; None if the value is finite, or infinite because of a constant
    became: Site | None = None  # where an infinity turned into NaN


_FINITE = Taint()


class Value(NamedTuple):
    array: Any
    taint: Taint = _FINITE


@dataclass
class Checks:
    """Checks values, and finds the origins of non-finite ones."""

    first_nan: Taint | None = None  # the first value with one that does not come from a constant, even if it is unused
    began: list[Site] = field(default_factory=list)  # every site with finite operands and a non-finite result
    constant_nans: set[int] = field(default_factory=set)  # the orders of sites whose NaN comes from a constant operand
    # Checks whose results are still on the devices: the bits, and the arguments of `judge` beside them.
    waiting: list[tuple[jax.Array, Taint, list[Taint], Site | None]] = field(default_factory=list)

    def add(self, x: Any, operands: list[Taint], site: Site | None) -> Taint:
        """The taint of a value, filled in by the next `read`; `site` is None for a constant."""
        if not is_inexact(x) or not x.size:
            return _FINITE
        taint = Taint()
        self.waiting.append((bits_of(x), taint, operands, site))
        if len(self.waiting) >= _READ_AT_ONCE:
            self.read()
        return taint

    def read(self) -> None:
        waiting, self.waiting = self.waiting, []
        all_bits = jax.device_get([bits for bits, *_ in waiting])
        for bits, (_, taint, operands, site) in zip(all_bits, waiting, strict=True):
            self.judge(taint, int(bits), operands, site)

    def judge(self, taint: Taint, bits: int, operands: Sequence[Taint], site: Site | None) -> None:
        """Set the taint of a result from its bits and the taints of the operands."""
        taint.bits = bits
        if not bits or site is None:
            return
        operand_bits = 0
        for operand in operands:
            operand_bits |= operand.bits
        name = site.eqn.primitive.name
        if bits & NAN and operand_bits & NAN:
            # A constant NaN in another dtype is still a constant.
            _inherit(taint, [t for t in operands if t.bits & NAN], None if name in CASTS else site)
            if taint.origin is site:  # some functions, such as `jnp.var`, have a constant NaN that they rarely select
                self.constant_nans.add(site.order)
        elif bits & NAN:
            _inherit(taint, [t for t in operands if t.bits], site)
            if taint.origin is not site:
                taint.became = site
        elif not operand_bits or (name in KEEPS_SIGN_OF_INFINITY and not operand_bits & NAN and bits & ~operand_bits):
            taint.origin = site
        else:
            _inherit(taint, operands, None)
        if bits & NAN and taint.origin is not None and taint.origin.order not in self.constant_nans:
            self.first_nan = self.first_nan or taint
        if taint.origin is site:
            self.began.append(site)


def _inherit(taint: Taint, operands: Sequence[Taint], default: Site | None) -> None:
    """Use the earliest origin among the operands; `default` if none is known."""
    candidates = [t for t in operands if t.origin is not None]
    first = min(candidates, key=lambda t: t.origin.order, default=None)  # type: ignore[union-attr]
    taint.origin, taint.became = (default, None) if first is None else (first.origin, first.became)


class CannotLocateNan(Exception):
    """The program cannot be run equation by equation, or has more equations than the bound."""


# Yields (number, operands) of each step of a loop, and receives the results of the step.
_Steps = Generator[tuple[int, list[Value]], Any, None]


class _Arrived(Exception):
    """The replay reached the equation at `stop_at`."""


@dataclass
class Replay:
    max_equations: int  # and loop steps, at the most
    stop_at: int = -1  # the order of the site to stop at; -1 to run to the end
    # Called at that site with (operands, results, device); inside a `shard_map`, those of one device.
    on_arrival: Callable[[Sequence[Any], Sequence[Any], Device], None] | None = None
    checks: Checks = field(default_factory=Checks)
    n: int = 0  # equations and loop steps so far
    devices: Devices | None = None  # of the `shard_map` whose body is being run
    compiled: dict[Any, Callable] = field(default_factory=dict)  # operations for these, reused by another run

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
                return Value(self.constant(atom.val, atom), Taint(bits_of(atom.val)))
            return values[atom]

        for n, eqn in enumerate(jaxpr.eqns):
            results = self.equation(eqn, [read(x) for x in eqn.invars], within)
            values.update(zip(eqn.outvars, results, strict=True))
            for variable in freed_after.get(n, ()):
                values.pop(variable, None)
        return [read(x) for x in jaxpr.outvars]

    def inner(self, jaxpr: Any, operands: Sequence[Value], within: Within, eqn: Any, step: int | None = None):
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
            if len(taken) == 1:  # devices may take different branches
                return self.inner(branches[int(taken[0])], operands, within, eqn)
            operands = [index, *operands]
        site = self.site(eqn, within)
        if name in DEBUG_CALLBACKS:  # the user's own run called them already
            return []
        results = self.run_equation(eqn, [x.array for x in operands])
        self.arrive(site, [x.array for x in operands], eqn.invars, results, eqn.outvars)
        if name in IDENTITY or name in RESHAPES:  # they produce no new values
            return [Value(x, operand.taint) for x, operand in zip(results, operands, strict=False)]
        taints = [x.taint for x in operands]
        values = [Value(x, self.checks.add(x, taints, site)) for x in results]
        if name in (SCAN, WHILE) or (name == SHARD_MAP and self.devices is None):
            self.checks.read()
            if any(site in (v.taint.origin, v.taint.became) for v in values):
                (self.shards if name == SHARD_MAP else self.loop)(eqn, operands, values, within)
        return values

    def arrive(self, site: Site, operands: Sequence[Any], invars, results: Sequence[Any], outvars) -> None:
        if site.order != self.stop_at:
            return
        device: Device = ()
        if self.devices is not None:
            avals = [[v.aval for v in variables] for variables in (invars, outvars)]
            device, operands, results = self.devices.first_bad(operands, avals[0], results, avals[1])
        if self.on_arrival is not None:
            self.on_arrival(operands, results, device)
        raise _Arrived

    # Inside a `shard_map`, each operation is compiled separately, and each value has a leading device axis.

    def constant(self, value: Any, atom: Any) -> Any:
        return value if self.devices is None else self.devices.constant(value, atom.aval)

    def on_devices(self, function: Callable, invars: Sequence[Any], outvars: Sequence[Any]) -> Callable:
        """The function; inside a `shard_map`, mapped over its devices."""
        if self.devices is None:
            return function
        return self.devices.per_device(function, [v.aval for v in invars], [v.aval for v in outvars])

    def run_equation(self, eqn: Any, operands: Sequence[Any]) -> list[Any]:
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
        """As `loop`, inside a `shard_map`, which stays one operation if this JAX cannot run its parts."""
        body = called_jaxpr(eqn)
        self.devices = Devices(eqn)
        try:
            inside = self.devices.enter([x.array for x in operands], [v.aval for v in open_jaxpr(body).invars])
            entered = [Value(x, operand.taint) for x, operand in zip(inside, operands, strict=True)]
            inner_values = self.inner(body, entered, within, eqn)
            self.checks.read()
        except (_Arrived, CannotLocateNan):
            raise
        except Exception:
            return
        finally:
            self.devices = None
        for outer, inner in zip(results, inner_values, strict=True):
            if inner.taint.bits and (inner.taint.bits & NAN or not outer.taint.bits & NAN):
                vars(outer.taint).update(vars(inner.taint))

    # Loops: `equation` runs the whole loop. If a non-finite value begins in it, its steps run one by one, and the step
    # in which it begins runs equation by equation.

    def loop(self, eqn: Any, operands: list[Value], results: list[Value], within: Within) -> None:
        """Find the origins of non-finite results inside a loop, and set them in the results' taints."""
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
                outer, inner = results[i].taint, outputs[i].taint
                if inner.bits and (inner.bits & NAN or not outer.bits & NAN):
                    outer.origin, outer.became = inner.origin, inner.became
                    if inner.origin is not None or not outer.bits & NAN:
                        unexplained.discard(i)

    def step(self, eqn: Any, body: ClosedJaxpr, run, k: int, inputs: list[Value], from_constants, within: Within):
        """Run step k of a loop by its compiled body, and find the origins of its non-finite results.

        Updates `from_constants`: for each result, the bits known to come from constants of the body.
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
            index = length - 1 - k if parts.reverse else k
            x = entry([x.array for x in parts.xs], np.int32(index))
            # An entry has the taint of the whole array, although it may be finite; the step's own check decides.
            inputs = [*parts.consts, *carry, *map(Value, x, [v.taint for v in parts.xs])]
            outputs = yield index, inputs
            carry = outputs[: len(carry)]

    def while_steps(self, eqn: Any, operands: list[Value]) -> _Steps:
        """Ends early if the loop continues only on some devices or for some members of a `vmap`."""
        parts = while_parts(eqn, operands)
        carry, condition = parts.carry, parts.condition
        continues = self.on_devices(jaxpr_as_fun(condition), condition.jaxpr.invars, condition.jaxpr.outvars)
        continues = jax.jit(continues)
        for k in itertools.count():
            if not np.all(jax.device_get(continues(*(x.array for x in (*parts.cond_consts, *carry)))[0])):
                return
            carry = yield k, [*parts.body_consts, *carry]
