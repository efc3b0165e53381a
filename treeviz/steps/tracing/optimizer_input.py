"""Follow the gradients of a program to where the optimizer receives them.

The path leads from the sown values through sums over the axis of a batch or loop, and through products with scalars: a
scalar that the gradient depends on, such as a loss scale, or one computed from the gradient, such as its norm. Any
other number, such as the number of all tokens, may be the optimizer's own, such as a learning rate. What is done next
shows which: an optimizer begins where a gradient has several uses, as for two moments, or where it is not just scaled.
If neither is certain, nothing is said of what the optimizer receives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Jaxpr, Literal

from treeviz.steps.reduce import barrier
from treeviz.steps.tracing import primitives

# What an optimizer receives: gradients that are summed over examples or micro-batches, unscaled and clipped.

Scale = tuple  # (): 1; ("mul" or "div", scale, scalar); ("select", scalar, scales), where None is 0

SUMS = ("reduce_sum", "dot_general")
UNSCALED, CLIPPED = "unscaled", "clipped or scaled by its norm"


class Recomputation(NamedTuple):
    eqns: tuple[Any, ...]
    result: Any  # the variable to return
    outside: Mapping[Any, Any] = MappingProxyType({})  # of an inner jaxpr: the outer atom of each of its arguments

    @property
    def reads(self) -> set[Any]:
        made = {v for eqn in self.eqns for v in eqn.outvars}
        read = {x for eqn in self.eqns for x in eqn.invars if not isinstance(x, Literal)} - made
        return {outer for x in read if not isinstance(outer := self.outside.get(x, x), Literal)}

    def run(self, read: Callable[[Any], Any]) -> Any:
        values: dict[Any, Any] = {}
        for eqn in self.eqns:
            operands = [
                read(x) if isinstance(x, Literal) else values[x] if x in values else read(self.outside.get(x, x))
                for x in eqn.invars
            ]
            values.update(zip(eqn.outvars, primitives.bind(eqn, operands), strict=True))
        return values[self.result]


class ScaledGradient(NamedTuple):
    """A variable that is a gradient, or a sum of gradients, times scalars."""

    sown: primitives.Sown
    leaf: int  # the number of the value in its tree
    value: Any  # the variable that is scaled
    scale: Scale = ()
    axis: int | None = None  # the axis of the examples or micro-batches, which `over` names
    over: str = ""
    n: int = 1  # the number of summed examples or micro-batches
    transforms: tuple[str, ...] = ()
    is_whole: bool = True  # the scale is complete; a factor that it leaves out is the optimizer's

    def scaled(self, scale: Scale, is_whole: bool, transform: str = "") -> ScaledGradient:
        more = (transform,) if transform and transform not in self.transforms else ()
        return self._replace(scale=scale, is_whole=is_whole, transforms=self.transforms + more)

    def summed(self, value: Any, n: int) -> ScaledGradient:
        factor = _number(self.scale)
        how = "summed" if factor == 1 else "averaged" if factor and _is_near(factor * n, 1) else "weighted and summed"
        transforms = (*self.transforms, f"{how} over {self.over}")
        return self._replace(value=value, scale=(), axis=None, n=n, transforms=transforms, is_whole=True)


@dataclass(frozen=True, eq=False)
class Received:
    """What the optimizer receives for a sown tree."""

    values: tuple[Any, ...]  # the variable of each value, before it is scaled
    sums: tuple[Recomputation | None, ...]  # of each value, if it is a sum over an axis or over calls
    is_sown: bool  # the values are the sown values themselves
    scale: Scale  # the scale of all values
    transforms: tuple[str, ...]  # what was done to the gradients, in order

    @property
    def reads(self) -> set[Any]:
        of_sums = [x for made in self.sums if made is not None for x in made.reads]
        return {*self.values, *of_sums, *_scalars(self.scale)}

    def read(self, read: Callable[[Any], Any], copies: Mapping[Any, Any]) -> list[Any]:
        """The values. Sums are recomputed, as `tracing.reap` explains, from copies if there are any."""

        def copied(x: Any) -> Any:
            return barrier(read(x) if isinstance(x, Literal) or x not in copies else copies[x])

        return [read(v) if made is None else made.run(copied) for v, made in zip(self.values, self.sums, strict=True)]


def _scalars(scale: Scale) -> Iterator[Any]:
    for part in scale:
        if isinstance(part, tuple):
            yield from _scalars(part)
        elif part is not None and not isinstance(part, str | float):
            yield part


def factor(scale: Scale, read: Callable[[Any], Any]) -> Any:
    if not scale:
        return jnp.float32(1)
    kind, *operands = scale
    if kind == "select":
        which, scales = operands
        cases = [jnp.float32(0) if scale is None else factor(scale, read) for scale in scales]
        return lax.select_n(_scalar(read(which)), *cases)
    inner, by = factor(operands[0], read), operands[1]
    if isinstance(by, float):
        by = np.float32(by)
    else:  # of a complex number the magnitude; real numbers keep their sign
        by = _scalar(read(by))
        by = (lax.abs(by) if jnp.iscomplexobj(by) else by).astype(jnp.float32)
    return inner * by if kind == "mul" else inner / by


def _number(scale: Scale) -> float | None:
    """The scale, if it is a constant."""
    if not scale:
        return 1.0
    kind, inner, by = scale
    inner = None if kind == "select" else _number(inner)
    return None if inner is None or not by or not isinstance(by, float) else inner * by if kind == "mul" else inner / by


def _is_near(x: float, y: float) -> bool:
    return abs(x - y) < 1e-3 * abs(y)


def _scalar(x: Any) -> Any:
    return barrier(lax.stop_gradient(jnp.asarray(x))).reshape(())


# Loss scales that are Python numbers: constants that multiply a loss before it is differentiated.

_LEAST = 8.0


def _scales(atom: Any, made_by: Mapping[Any, Any]) -> set[float]:
    """The powers of two, 8 or larger, that multiply a loss in its last operations; others may be the optimizer's."""
    product, products = 1.0, set()
    while not isinstance(atom, Literal) and atom in made_by and atom.aval.shape == ():
        eqn = made_by[atom]
        name, operands = eqn.primitive.name, list(eqn.invars)
        if name == "mul" and isinstance(operands[0], Literal):
            operands.reverse()
        if name in ("mul", "div") and isinstance(operands[1], Literal) and operands[1].val:
            by = as_factor(operands[1])
            product = product * by if name == "mul" else product / by
            products.add(product)
        elif name not in primitives.SAME_LEAF:
            break
        atom = operands[0]
    return {x for x in products if x >= _LEAST and x.hex().startswith("0x1.0000000000000p")}


def as_factor(number: Literal) -> float:
    """A constant as a factor of gradients; the magnitude of a complex constant."""
    return float(abs(number.val) if np.iscomplexobj(number.val) else number.val)


def is_step_of(sowing: Any, variable: Any, jaxpr: Jaxpr) -> bool:
    """Whether a variable is added to a parameter of the equation that sows, as a gradient times a learning rate is."""
    if sowing is None or sowing.primitive is not primitives.sow_p:
        return False
    params = {x for x in sowing.invars[sowing.params["n"] :] if not isinstance(x, Literal)}
    sums = [eqn for eqn in jaxpr.eqns if eqn.primitive.name in ("add", "add_any", "sub")]
    operands = [{x for x in eqn.invars if not isinstance(x, Literal)} for eqn in sums]
    return any(variable in added and added & params for added in operands)


class _Uses:
    """What a jaxpr does with its arrays, but for uses that lead only to smaller results, such as a norm."""

    def __init__(self, program: Any) -> None:
        self.jaxpr = primitives.open_jaxpr(program)
        self.users: dict[Any, list[Any]] = {}
        used = {v for v in self.jaxpr.outvars if not isinstance(v, Literal)}
        for eqn in reversed(self.jaxpr.eqns):
            largest = max([primitives.size_of(v) for v in eqn.outvars if v in used], default=0)
            for x in {x for x in eqn.invars if not isinstance(x, Literal) and 0 < primitives.size_of(x) <= largest}:
                self.users.setdefault(x, []).append(eqn)
                used.add(x)

    def role(self, variable: Any) -> str:
        """What a gradient is used for.

        "optimizer": it has several uses, as for two moments, or one that does not just scale it; "step": it is added to
        an argument, as an update to its parameter; "rate": only scaled before that; "scaled", otherwise; "sum": it is
        added to something else, as to a momentum; "result": none of these; "unclear": it depends on a condition.
        """
        users = self.users.get(variable, ())
        if len(users) != 1:
            return "optimizer" if users else "result"
        (eqn,) = users
        name, at = eqn.primitive.name, [x is variable for x in eqn.invars]
        out = eqn.outvars[at.index(True) if name in primitives.SAME_LEAF else 0]
        if name in primitives.SAME_LEAF | {"neg", "select_n"} or eqn.params.get("name") == "_where":
            return self.role(out)
        if name in ("mul", "div") and sum(at) == 1:
            return "rate" if self.role(out) == "step" else "scaled"
        if name in ("add", "add_any", "sub"):
            return "step" if any(x in self.jaxpr.invars for x in eqn.invars if not isinstance(x, Literal)) else "sum"
        roles = set()
        for program, operands in primitives.programs(eqn, eqn.invars):
            uses = _Uses(program)
            roles |= {uses.role(v) for v, x in zip(uses.jaxpr.invars, operands, strict=True) if x is variable}
        roles = roles - {"result"} or roles  # a branch may leave it alone
        return (roles.pop() if len(roles) == 1 else "unclear") if roles else "optimizer"


# Means and sums of gradients over several calls of a step, as in the state of `optax.MultiSteps`.


def accumulated(eqn: Any) -> Iterator[tuple[Any, Any, Recomputation, str]]:
    """The means and sums of `gradient` and `before` in the branches of a conditional, each with how it is made."""
    for branch, operands in primitives.programs(eqn, eqn.invars):
        jaxpr = primitives.open_jaxpr(branch)
        outside = dict(zip(jaxpr.invars, operands, strict=True))
        known: dict[Any, Any] = {**outside}  # a variable -> the operand that it equals, or its "sub" or "div"
        for inner in jaxpr.eqns:
            name = inner.primitive.name
            values = [None if isinstance(x, Literal) else known.get(x) for x in inner.invars]
            if name in primitives.SAME_LEAF:
                known.update(zip(inner.outvars, values, strict=False))
            elif name in ("sub", "div"):
                known[inner.outvars[0]] = (name, *values)
            for before, other in (values, values[::-1]) if name == "add" else ():
                match other:
                    case "div", ("sub", gradient, start), _ if start is before:
                        transform = "averaged over the calls so far"
                    case gradient:
                        transform = "summed over the calls so far"
                if not any(x is None or isinstance(x, tuple | Literal) for x in (before, gradient)):
                    made = inner.outvars[0]
                    recomputed = Recomputation(tuple(primitives.needed(jaxpr, [made]).values()), made, outside)
                    yield gradient, before, recomputed, transform


class OptimizerInputs:
    """What the optimizer receives for each gradient of a program."""

    def __init__(self, jaxpr: Any) -> None:
        self.program = primitives.open_jaxpr(jaxpr)
        self.unclear: dict[primitives.Sown, tuple[str, ...]] = {}  # what is done before it is unknown what is received
        self.received_by_jaxpr: dict[int, dict[primitives.Sown, Received]] = {}  # by the id of the jaxpr
        self.unscaled: set[primitives.Sown] = set()  # later
        self.scaled: set[primitives.Sown] = set()  # trees whose loss is scaled by a variable, not by a constant
        self.clipped: set[primitives.Sown] = set()  # trees that are only clipped, or scaled by their norms
        self.scales: dict[primitives.Sown, set[float]] = {}  # the constants that multiply the loss of each tree
        _Level(self.program, self).follow()

    def label_of(self, reaped: primitives.Reaped) -> tuple[str, str]:
        """What is measured, "of each example, before unscaling", and what is done to it then; each may be empty."""
        sown = reaped.tagged or reaped.sown
        known = [trees[sown] for trees in self.received_by_jaxpr.values() if sown in trees]
        text = ", ".join(known[0].transforms if known else self.unclear.get(sown, ()))
        kinds, parts = {axis.kind for axis in reaped.axes if axis.parts is None}, []
        shares_params = all(set(dims) == {None} for dims in reaped.batched)
        if "member" in kinds and reaped.batched and shares_params:
            parts.append("of each example" if "over examples" in text else "of each member of a vmap")
        if "step" in kinds and None not in reaped.origins and not (reaped.changes_in_loop or reaped.is_of_last_step):
            parts.append("of each micro-batch" if "over micro-batches" in text else "of each step of a loop")
        if "over the calls" in text:
            parts.append("of each call")
        if "device" in kinds:
            parts.append("of each device")
        if reaped.tagged in self.unscaled:
            parts.append("before unscaling")
        if reaped.tagged in self.clipped:
            parts.append("before clipping or scaling by the norm")
        return ", ".join(parts), text if known else ""


class _Level:
    def __init__(self, jaxpr: Jaxpr, inputs: OptimizerInputs) -> None:
        self.jaxpr, self.inputs = jaxpr, inputs
        self.made_by = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
        self.gradient_of: dict[Any, ScaledGradient] = {}
        self.starts: dict[primitives.Sown, list[Any]] = {}  # the variables of each tree in this jaxpr
        self.sown: set[Any] = set()  # variables that are sown values themselves
        self.recomputed: dict[Any, Recomputation] = {}  # sums that are computed in inner jaxprs
        self.sums: dict[Any, tuple[ScaledGradient, Any]] = {}  # a gradient plus another variable
        self.first_equal: dict[Any, Any] = {}  # a scalar -> the first computed in the same way, as for each leaf
        self._computed: dict[tuple, Any] = {}
        self._depends: dict[tuple[Any, primitives.Sown], bool] = {}
        self._uses = _Uses(jaxpr)
        self.losses: list[Any] = []  # a stack: the gradient of the last loss comes first

    def follow(self) -> None:
        for eqn in self.jaxpr.eqns:
            if eqn.primitive is primitives.sow_p:
                self._sow(eqn)
            elif primitives.holds_sown(eqn):
                for variable, gradient in self._from_inside(eqn):
                    self._add(variable, gradient)
            elif any(not isinstance(x, Literal) and x in self.gradient_of for x in eqn.invars):
                self._step(eqn)
            elif eqn.effects or primitives.inner_jaxprs(eqn):
                continue
            elif len(eqn.outvars) == 1 and primitives.is_scalar(eqn.outvars[0]):
                operands = [str(x.val) if isinstance(x, Literal) else self.first_equal.get(x, x) for x in eqn.invars]
                key = (eqn.primitive.name, str(eqn.params), *operands)
                self.first_equal[eqn.outvars[0]] = self._computed.setdefault(key, eqn.outvars[0])
        self._collect()

    def gradient(self, atom: Any) -> ScaledGradient | None:
        return None if isinstance(atom, Literal) else self.gradient_of.get(atom)

    def _add(self, variable: Any, gradient: ScaledGradient) -> None:
        self.gradient_of[variable] = gradient._replace(value=variable)
        if not gradient.transforms:
            self.sown.add(variable)
        self.starts.setdefault(gradient.sown, []).append(variable)

    def _sow(self, eqn: Any) -> None:
        sown, n = eqn.params["sown"], eqn.params["n"]
        if sown.kind == "loss":
            self.losses.append(eqn.invars[0])
        elif sown.kind == "grads" and self.losses:
            self.inputs.scales[sown] = _scales(self.losses.pop(), self.made_by)
        batched = [dims for dims in eqn.params["batched"] if any(dim is not None for dim in dims[:n])]
        if sown.kind in primitives.NO_GRADIENTS or len(batched) > 1:
            return
        # A `vmap` that batches the gradients, but not their parameters, is over examples.
        is_per_example = bool(batched) and None not in batched[0][:n] and set(batched[0][n:]) == {None}
        axes = batched[0][:n] if is_per_example else (None,) * n
        if is_per_example or not batched:
            for leaf, (variable, axis) in enumerate(zip(eqn.outvars, axes, strict=True)):
                self._add(variable, ScaledGradient(sown, leaf, variable, axis=axis, over="examples"))

    def _from_inside(self, eqn: Any) -> Iterator[tuple[Any, ScaledGradient]]:
        """The results of a call or a loop that are gradients computed inside it, or sums of them."""
        levels = [_Level(primitives.open_jaxpr(inner), self.inputs) for inner in primitives.inner_jaxprs(eqn)]
        for level in levels:
            level.follow()
        is_scan, inner = eqn.primitive.name == primitives.SCAN, levels[0]
        if not is_scan and eqn.primitive.name not in primitives.CALLS:
            return
        jaxpr = inner.jaxpr
        scan = primitives.scan_parts(eqn, jaxpr.invars) if is_scan else None
        carry, n = (scan.carry, scan.length) if scan else ((), 1)
        params = [x for e in jaxpr.eqns if e.primitive is primitives.sow_p for x in e.invars[e.params["n"] :]]
        if scan and inner.reaches(params, {*carry, *scan.xs}):
            return  # each step of the loop is a training step
        for i, (inside, outside) in enumerate(zip(jaxpr.outvars, eqn.outvars, strict=True)):
            gradient = inner.gradient(inside)
            if i < len(carry):
                added, to = inner.sums.get(inside, (None, None)) if not isinstance(inside, Literal) else (None, None)
                if added is None or to is not carry[i] or added.axis is not None:
                    continue
                if not inner.reaches(inner.sown_from(added.sown), {to}):
                    yield outside, added._replace(over="micro-batches").summed(outside, n)
            elif gradient is not None and gradient.is_whole and (gradient.axis is None or not is_scan):
                gradient = gradient._replace(scale=())  # the result is scaled
                yield outside, gradient._replace(axis=0, over="micro-batches") if is_scan else gradient

    def _step(self, eqn: Any) -> None:
        """Follow an equation with a gradient among its operands."""
        name, (first, *rest) = eqn.primitive.name, eqn.invars
        gradient, out = self.gradient(first), eqn.outvars[0]
        if name in primitives.SAME_LEAF:
            operands = [(v, self.gradient(x)) for v, x in zip(eqn.outvars, eqn.invars, strict=False)]
            self.gradient_of.update((v, gradient) for v, gradient in operands if gradient is not None)
        elif name == "integer_pow" and eqn.params["y"] == 1 and gradient is not None:
            self.gradient_of[out] = gradient
        elif name == "reduce_sum" and gradient is not None and tuple(eqn.params["axes"]) == (gradient.axis,):
            self.gradient_of[out] = gradient.summed(out, first.aval.shape[gradient.axis])
        elif name in ("add", "add_any"):
            for operand, other in ((first, rest[0]), (rest[0], first)):
                summand = self.gradient(operand)
                if summand is not None and self.gradient(other) is None and not isinstance(other, Literal):
                    self.sums[out] = summand, other
                    is_of_calls = self.jaxpr is self.inputs.program and other in self.jaxpr.invars
                    if is_of_calls and not self.reaches(self.sown_from(summand.sown), {other}):  # else a parameter
                        self.inputs.unclear[summand.sown] = (*summand.transforms, "summed over the calls so far")
        elif name in ("mul", "div"):
            self._product(eqn, out, first, rest[0])
        elif name == "select_n" or eqn.params.get("name") == "_where":  # jnp.where has the cases in reverse
            self._selection(out, first, rest if name == "select_n" else rest[::-1])
        elif name == "dot_general":
            # A sum over examples that are weighted, e.g. clipped one by one.
            for i, (x, contracted, batch) in enumerate(zip(eqn.invars, *eqn.params["dimension_numbers"], strict=True)):
                gradient, weights = self.gradient(x), eqn.invars[1 - i]
                if gradient is None or tuple(contracted) != (gradient.axis,) or batch:
                    continue
                if self.gradient(weights) is None and weights.aval.ndim == 1:
                    clipped = CLIPPED if self.depends(weights, gradient.sown) else ""
                    self.gradient_of[out] = gradient.scaled((), True, clipped).summed(out, 1)
        elif name == primitives.COND:  # a mean or sum with the gradients of earlier calls, which are an argument
            for operand, before, made, transform in accumulated(eqn):
                gradient = self.gradient(operand)
                if gradient is None or not gradient.is_whole or gradient.axis is not None:
                    continue
                if before in self.jaxpr.invars and not self.reaches(self.sown_from(gradient.sown), {before}):
                    # Else it is a parameter.
                    transforms = (*gradient.transforms, transform)
                    out = made.result
                    self.gradient_of[out] = gradient._replace(value=out, scale=(), transforms=transforms)
                    self.recomputed[out] = made
        elif eqn.params.get("name") == "clip" and gradient and gradient.is_whole and not gradient.transforms:
            self.inputs.clipped.add(gradient.sown)  # by jnp.clip

    def _product(self, eqn: Any, out: Any, left: Any, right: Any) -> None:
        name, operand, gradient, by = eqn.primitive.name, left, self.gradient(left), right
        if gradient is None and name == "mul":
            operand, gradient, by = right, self.gradient(right), left
        if gradient is None or self.gradient(by) is not None:
            return
        scalar = self.scalar(by)
        if scalar is None:
            if gradient.axis is not None and self._is_along(by, gradient.axis):  # a number for each example
                clipped = CLIPPED if self.depends(by, gradient.sown) else ""
                self.gradient_of[out] = gradient._replace(value=out).scaled((), True, clipped)
        else:
            transform = self._transform_of(name, scalar, gradient, out)
            by = as_factor(scalar) if isinstance(scalar, Literal) else scalar
            if transform == "":
                averaged = tuple(made.replace("summed", "averaged") for made in gradient.transforms)
                gradient = gradient._replace(transforms=averaged)
            is_open = transform is None and gradient.transforms and gradient.transforms[-1] != CLIPPED
            if is_open and self._uses.users.get(operand) == [eqn]:
                roles = ("optimizer", "rate", "scaled", "sum") if name == "div" else ("optimizer",)
                text = f"{by:g}" if isinstance(by, float) else "a scalar"
                text = f"divided by {text}" if name == "div" else f"times {text}"
                transform = text if self._uses.role(out) in roles else None
            is_whole = gradient.is_whole and transform is not None
            self.gradient_of[out] = gradient.scaled((name, gradient.scale, by), is_whole, transform or "")

    def _transform_of(self, name: str, scalar: Any, gradient: ScaledGradient, out: Any) -> str | None:
        """What a product with a scalar does to a gradient; None if it may be the optimizer's own."""
        if isinstance(scalar, Literal):
            by = as_factor(scalar) if name == "div" else 1 / (as_factor(scalar) or 1)
            if gradient.n > 1 and _is_near(by, gradient.n):
                return ""
            is_scale = by in self.inputs.scales.get(gradient.sown, ())
            return UNSCALED if is_scale and not is_step_of(self.made_by.get(gradient.value), out, self.jaxpr) else None
        if self.depends(scalar, gradient.sown):
            return CLIPPED
        # The variable that the scalar equals, or is the inverse of.
        eqn, root, is_inverse = self.made_by.get(scalar), scalar, False
        if eqn is not None and eqn.primitive.name == "div" and isinstance(eqn.invars[0], Literal):
            root, is_inverse = self.scalar(eqn.invars[1]), True
        elif eqn is not None and eqn.primitive.name == "integer_pow" and eqn.params["y"] == -1:
            root, is_inverse = self.scalar(eqn.invars[0]), True
        made_with = root is not None and self.reaches(self.sown_from(gradient.sown), {root})
        if not made_with or is_inverse != (name == "mul"):
            return None
        self.inputs.scaled.add(gradient.sown)
        return UNSCALED

    def sown_from(self, sown: primitives.Sown) -> list[Any]:
        """The operands of the equations that compute a sown tree in this jaxpr."""
        makers = [self.made_by.get(v) for v in self.starts[sown]]
        return [x for eqn in makers if eqn is not None for x in eqn.invars]

    def _selection(self, out: Any, which: Any, cases: Sequence[Any]) -> None:
        """Follow a choice between scales of one gradient, by a condition that depends on it, or between it and zero."""
        gradients, condition = [self.gradient(x) for x in cases], self.scalar(which)
        scaled = [gradient for gradient in gradients if gradient is not None]
        others = [x for x, gradient in zip(cases, gradients, strict=True) if gradient is None]
        if condition is None and len(scaled) == 1 and scaled[0].is_whole and not scaled[0].transforms:
            starts = {*self.starts[scaled[0].sown]}
            if all(self.reaches([x], starts) for x in (which, *others)):  # clips some elements, e.g. rows
                self.inputs.clipped.add(scaled[0].sown)
        zeros = [isinstance(x, Literal) and not np.any(x.val) for x in map(self.scalar, others)]
        sources = {(gradient.sown, gradient.leaf, gradient.value, gradient.axis) for gradient in scaled}
        if condition is None or isinstance(condition, Literal) or len(sources) != 1 or not all(zeros):
            return
        whole = next((gradient for gradient in scaled if gradient.is_whole), None)
        clips = self.depends(condition, scaled[0].sown)
        if whole is not None and (clips or (whole.transforms and len(scaled) == 1)):
            scales = tuple(None if gradient is None else gradient.scale for gradient in gradients)
            self.gradient_of[out] = whole.scaled(("select", condition, scales), True, CLIPPED if clips else "")

    def scalar(self, atom: Any) -> Any:
        """The scalar that an atom is, or that all its elements equal; None if there is none."""
        while not isinstance(atom, Literal):
            eqn = self.made_by.get(atom)
            if eqn is None or eqn.primitive.name not in primitives.SAME_LEAF | primitives.RESHAPES:
                break
            if primitives.size_of(eqn.invars[0]) != 1:
                break
            atom = eqn.invars[eqn.outvars.index(atom)]
        if not primitives.is_scalar(atom):
            return None
        return atom if isinstance(atom, Literal) else self.first_equal.get(atom, atom)

    def _is_along(self, atom: Any, axis: int) -> bool:
        eqn = None if isinstance(atom, Literal) else self.made_by.get(atom)
        if eqn is None or eqn.primitive.name != "broadcast_in_dim":
            return not primitives.is_scalar(atom) and primitives.size_of(atom) == getattr(atom.aval, "shape", ())[axis]
        shape = getattr(eqn.invars[0].aval, "shape", ())
        return [to for to, n in zip(eqn.params["broadcast_dimensions"], shape, strict=True) if n > 1] == [axis]

    def depends(self, atom: Any, sown: primitives.Sown) -> bool:
        if (atom, sown) not in self._depends:
            self._depends[atom, sown] = self.reaches([atom], {*self.starts[sown]})
        return self._depends[atom, sown]

    def reaches(self, atoms: Sequence[Any], targets: set[Any]) -> bool:
        waiting, seen = [*atoms], set()
        while waiting:
            variable = waiting.pop()
            if isinstance(variable, Literal) or variable in seen:
                continue
            if variable in targets:
                return True
            seen.add(variable)
            waiting += self.made_by[variable].invars if variable in self.made_by else ()
        return False

    def _collect(self) -> None:
        by_tree: dict[primitives.Sown, dict[int, ScaledGradient]] = {}
        variables: dict[ScaledGradient, Any] = {}  # the first one: copies follow, and the optimizer's own
        for variable, gradient in self.gradient_of.items():
            if gradient.is_whole and gradient.axis is None:
                by_tree.setdefault(gradient.sown, {})[gradient.leaf] = gradient
                variables.setdefault(gradient, variable)
            if UNSCALED in gradient.transforms:
                self.inputs.unscaled.add(gradient.sown)
        for sown, by_leaf in by_tree.items():
            if all(gradient.transforms == (CLIPPED,) for gradient in by_leaf.values()):
                self.inputs.clipped.add(sown)
            n = sum(sown.source.has_number)
            (scale, transforms), *others = {(gradient.scale, gradient.transforms) for gradient in by_leaf.values()}
            if len(by_leaf) < n or others or not transforms:
                continue
            if any(self._uses.role(variables[by_leaf[leaf]]) in ("scaled", "unclear") for leaf in range(n)):
                self.inputs.unclear[sown] = transforms  # the user may scale it, or the optimizer
                continue
            values = tuple([by_leaf[leaf].value for leaf in range(n)])
            for inside in self.inputs.received_by_jaxpr.values():  # the outermost value is the one received
                inside.pop(sown, None)
            makers = [(v, self.made_by.get(v)) for v in values]
            sums = [
                Recomputation((eqn,), v) if eqn and eqn.primitive.name in SUMS else self.recomputed.get(v)
                for v, eqn in makers
            ]
            received = Received(values, tuple(sums), self.sown.issuperset(values), scale, transforms)
            self.inputs.received_by_jaxpr.setdefault(id(self.jaxpr), {})[sown] = received
