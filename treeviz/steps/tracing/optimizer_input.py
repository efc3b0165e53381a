"""Follow the gradients of a program to where the optimizer receives them.

From the sown values, through sums over the axis of a batch or loop, and products with scalars: one that the gradient
was made with, as a loss scale, or one that is made of the gradient, as its norm. A product with any other number, such
as a learning rate, may be the optimizer's own, and ends the way.
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
from treeviz.steps.tracing.primitives import (
    CALLS,
    COND,
    RESHAPES,
    SAME_LEAF,
    SCAN,
    Reaped,
    Sown,
    bind,
    holds_sown,
    inner_jaxprs,
    is_scalar,
    needed,
    open_jaxpr,
    programs,
    scan_parts,
    size_of,
    sow_p,
)

# What an optimizer receives of a gradient: a sum over examples or micro-batches, unscaled and clipped.

Scale = tuple  # (): 1; ("mul" or "div", scale, scalar); ("select", scalar, scales), where None is 0

SUMS = ("reduce_sum", "dot_general")
UNSCALED, CLIPPED = "unscaled", "clipped or scaled by its norm"


class Recomputation(NamedTuple):
    """Equations that are computed once more.

    Attributes:
      result: The variable that is wanted.
      outside: For those of an inner jaxpr, what its operands are outside.
    """

    eqns: tuple[Any, ...]
    result: Any
    outside: Mapping[Any, Any] = MappingProxyType({})

    @property
    def reads(self) -> set[Any]:
        """The variables outside that are read."""
        made = {v for eqn in self.eqns for v in eqn.outvars}
        atoms = (x for eqn in self.eqns for x in eqn.invars if isinstance(x, Literal) or x not in made)
        found = (x if isinstance(x, Literal) else self.outside.get(x, x) for x in atoms)
        return {x for x in found if not isinstance(x, Literal)}

    def run(self, read: Callable[[Any], Any]) -> Any:
        values: dict[Any, Any] = {}
        for eqn in self.eqns:
            is_made = [not isinstance(x, Literal) and x in values for x in eqn.invars]
            operands = [
                values[x] if made else read(x if isinstance(x, Literal) else self.outside.get(x, x))
                for x, made in zip(eqn.invars, is_made, strict=True)
            ]
            values.update(zip(eqn.outvars, bind(eqn, operands), strict=True))
        return values[self.result]


class ScaledGradient(NamedTuple):
    """A variable that is a gradient, or a sum of it, times scalars.

    Attributes:
      leaf: The number of the value in its tree.
      value: The variable that is scaled.
      axis: Of the examples or micro-batches in it, which `over` names.
      n: How many were summed.
      is_whole: The scale is complete: what is left out is the optimizer's.
    """

    sown: Sown
    leaf: int
    value: Any
    scale: Scale = ()
    axis: int | None = None
    over: str = ""
    n: int = 1
    transforms: tuple[str, ...] = ()
    is_whole: bool = True

    def scaled(self, scale: Scale, is_whole: bool, transform: str = "") -> ScaledGradient:
        more = (transform,) if transform and transform not in self.transforms else ()
        return self._replace(scale=scale, is_whole=is_whole, transforms=self.transforms + more)

    def summed(self, value: Any, n: int) -> ScaledGradient:
        transforms = (*self.transforms, f"summed over {self.over}")
        return self._replace(value=value, scale=(), axis=None, n=n, transforms=transforms, is_whole=True)


@dataclass(frozen=True, eq=False)
class Received:
    """What is received of a sown tree.

    Attributes:
      values: The variable of each value, before it is scaled.
      sums: What makes them, where these are sums over an axis or over calls.
      is_sown: They are the sown values themselves.
      scale: Of all values.
      transforms: What was done, in order.
    """

    values: tuple[Any, ...]
    sums: tuple[Recomputation | None, ...]
    is_sown: bool
    scale: Scale
    transforms: tuple[str, ...]

    @property
    def reads(self) -> set[Any]:
        """The variables that are read for it."""
        of_sums = (x for made in self.sums if made is not None for x in made.reads)
        return {*self.values, *of_sums, *_scalars(self.scale)}

    def read(self, read: Callable[[Any], Any], copies: Mapping[Any, Any]) -> list[Any]:
        """The values. Sums are recomputed, as `tracing.recompute` explains, from copies if there are any.

        Args:
          copies: Of what is summed, by variable.
        """

        def copied(x: Any) -> Any:
            is_copied = not isinstance(x, Literal) and x in copies
            return barrier(copies[x] if is_copied else read(x))

        return [read(v) if made is None else made.run(copied) for v, made in zip(self.values, self.sums, strict=True)]


def _scalars(scale: Scale) -> Iterator[Any]:
    for part in scale:
        if isinstance(part, tuple):
            yield from _scalars(part)
        elif part is not None and not isinstance(part, str | float):
            yield part


def factor(scale: Scale, read: Callable[[Any], Any]) -> Any:
    """The number that a scale is: float32."""
    if not scale:
        return jnp.float32(1)
    kind, *operands = scale
    if kind == "select":
        which, scales = operands
        cases = [jnp.float32(0) if each is None else factor(each, read) for each in scales]
        return lax.select_n(_scalar(read(which)), *cases)
    inner, by = factor(operands[0], read), operands[1]
    by = np.float32(by) if isinstance(by, float) else _magnitude(_scalar(read(by)))
    return inner * by if kind == "mul" else inner / by


def _magnitude(x: Any) -> Any:
    """Of a complex number; others as they are."""
    return (lax.abs(x) if jnp.iscomplexobj(x) else x).astype(jnp.float32)


def _scalar(x: Any) -> Any:
    return barrier(lax.stop_gradient(jnp.asarray(x))).reshape(())


# Constants that a loss is multiplied with before it is differentiated: a loss scale that is a Python number.

_LEAST = 8.0


def _scales(loss: Any, made_by: Mapping[Any, Any]) -> set[float]:
    """The powers of two, 8 and more, that a loss is multiplied with in its last operations.

    A gradient that is divided by one is exactly that of the loss without it. Other numbers may be the optimizer's own,
    as the 0.1 that is 1 - b1 of Adam.

    Args:
      made_by: The equation of each variable of the jaxpr.
    """
    return {x for x in _products(loss, made_by) if x >= _LEAST and x.hex().startswith("0x1.0000000000000p")}


def _products(atom: Any, made_by: Mapping[Any, Any]) -> set[float]:
    """What a scalar is multiplied with by its last operation, by the last two, and so on."""
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
        elif name not in SAME_LEAF:
            break
        atom = operands[0]
    return products


def as_factor(number: Literal) -> float:
    """A constant as a factor of gradients: of those that are complex, as of their magnitudes."""
    return float(abs(number.val) if np.iscomplexobj(number.val) else number.val)


def is_step_of(sowing: Any, variable: Any, jaxpr: Jaxpr) -> bool:
    """Whether a parameter changes by a variable, which then is a gradient times a learning rate.

    Args:
      sowing: The equation that sows the gradients.
    """
    if sowing is None or sowing.primitive is not sow_p:
        return False
    params = {x for x in sowing.invars[sowing.params["n"] :] if not isinstance(x, Literal)}
    return any(
        any(x is variable for x in eqn.invars) and any(not isinstance(x, Literal) and x in params for x in eqn.invars)
        for eqn in jaxpr.eqns
        if eqn.primitive.name in ("add", "add_any", "sub")
    )


# Means and sums of gradients over several calls of a step, as the state of `optax.MultiSteps` holds them.


class Accumulated(NamedTuple):
    """What a conditional makes of a gradient and of those of the calls before.

    Attributes:
      gradient, before: Operands of the conditional.
      made: The new mean or sum.
      transform: "averaged over the calls so far".
    """

    gradient: Any
    before: Any
    made: Recomputation
    transform: str


def accumulated(eqn: Any) -> Iterator[Accumulated]:
    """The means `before + (gradient - before) / n` and sums `gradient + before` in the branches of a conditional."""
    for branch, operands in programs(eqn, eqn.invars):
        jaxpr = open_jaxpr(branch)
        outside = dict(zip(jaxpr.invars, operands, strict=True))
        known: dict[Any, Any] = {**outside}  # the operand that a variable is, or a difference, or what is divided
        for inner in jaxpr.eqns:
            name = inner.primitive.name
            values = [None if isinstance(x, Literal) else known.get(x) for x in inner.invars]
            if name in SAME_LEAF:
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
                    repeated = Recomputation(tuple(needed(jaxpr, [made]).values()), made, outside)
                    yield Accumulated(gradient, before, repeated, transform)


class OptimizerInputs:
    """What is received of the gradients of a program.

    Attributes:
      of: By the id of a jaxpr, what is received in it, by what was sown.
      unscaled: The trees that are unscaled later.
      scaled: Those whose loss is scaled by a number that is no constant.
      clipped: Those of which no more is done than to clip them, or to scale them by their norms.
      scales: Of each tree, the constants that its loss is multiplied with.
    """

    def __init__(self, jaxpr: Any) -> None:
        self.of: dict[int, dict[Sown, Received]] = {}
        self.unscaled: set[Sown] = set()
        self.scaled: set[Sown] = set()
        self.clipped: set[Sown] = set()
        self.scales: dict[Sown, set[float]] = {}
        _Level(open_jaxpr(jaxpr), self).follow()

    def label_of(self, reaped: Reaped) -> tuple[str, str]:
        """Which gradient a measured one is, where it is not that which the optimizer receives; and what becomes of it.

        "of each example, before unscaling" and "unscaled, summed over examples"; each may be empty.
        """
        text = next((", ".join(of[reaped.tagged].transforms) for of in self.of.values() if reaped.tagged in of), "")
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
        return ", ".join(parts), text


class _Level:
    """Follows gradients through one jaxpr."""

    def __init__(self, jaxpr: Jaxpr, plan: OptimizerInputs) -> None:
        self.jaxpr, self.plan = jaxpr, plan
        self.made_by = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
        self.form_of: dict[Any, ScaledGradient] = {}
        self.starts: dict[Sown, list[Any]] = {}  # the variables of the values here
        self.sown: set[Any] = set()  # those of them that are what is sown
        self.repeated: dict[Any, Recomputation] = {}  # sums that are made in other jaxprs
        self.sums: dict[Any, tuple[ScaledGradient, Any]] = {}  # of a gradient and another variable
        self.first: dict[Any, Any] = {}  # of the scalars that are computed alike, as once for each leaf
        self._computed: dict[tuple, Any] = {}
        self._depends: dict[tuple[Any, Sown], bool] = {}
        self.losses: list[Any] = []  # whose gradients come later, the last one's first

    def follow(self) -> None:
        for eqn in self.jaxpr.eqns:
            if eqn.primitive is sow_p:
                self._sow(eqn)
            elif holds_sown(eqn):
                for variable, form in self._from_inside(eqn):
                    self._start(variable, form)
            elif any(not isinstance(x, Literal) and x in self.form_of for x in eqn.invars):
                self._step(eqn)
            elif len(eqn.outvars) == 1 and is_scalar(eqn.outvars[0]) and not (eqn.effects or inner_jaxprs(eqn)):
                operands = [str(x.val) if isinstance(x, Literal) else self.first.get(x, x) for x in eqn.invars]
                key = (eqn.primitive.name, str(eqn.params), *operands)
                self.first[eqn.outvars[0]] = self._computed.setdefault(key, eqn.outvars[0])
        self._plan()

    def form(self, atom: Any) -> ScaledGradient | None:
        return None if isinstance(atom, Literal) else self.form_of.get(atom)

    def _start(self, variable: Any, form: ScaledGradient) -> None:
        self.form_of[variable] = form._replace(value=variable)
        if not form.transforms:
            self.sown.add(variable)
        self.starts.setdefault(form.sown, []).append(variable)

    def _sow(self, eqn: Any) -> None:
        sown, n = eqn.params["sown"], eqn.params["n"]
        if sown.kind == "loss":
            self.losses.append(eqn.invars[0])
        elif sown.kind == "grads" and self.losses:
            self.plan.scales[sown] = _scales(self.losses.pop(), self.made_by)
        batched = [dims for dims in eqn.params["batched"] if any(dim is not None for dim in dims[:n])]
        if sown.kind in ("tap", "loss") or len(batched) > 1:
            return
        axes = batched[0][:n] if batched and _is_per_example(batched[0], n) else (None,) * n
        if not batched or axes[0] is not None:
            for leaf, (variable, axis) in enumerate(zip(eqn.outvars, axes, strict=True)):
                self._start(variable, ScaledGradient(sown, leaf, variable, axis=axis, over="examples"))

    def _from_inside(self, eqn: Any) -> Iterator[tuple[Any, ScaledGradient]]:
        """The results of a call or a loop that are gradients made in it, or sums of them."""
        levels = [_Level(open_jaxpr(inner), self.plan) for inner in inner_jaxprs(eqn)]
        for level in levels:
            level.follow()
        is_scan, inner = eqn.primitive.name == SCAN, levels[0]
        if not is_scan and eqn.primitive.name not in CALLS:
            return
        jaxpr = inner.jaxpr
        scan = scan_parts(eqn, jaxpr.invars) if is_scan else None
        carry, n = (scan.carry, scan.length) if scan else ((), 1)
        params = [x for e in jaxpr.eqns if e.primitive is sow_p for x in e.invars[e.params["n"] :]]
        if scan and inner.reaches(params, {*carry, *scan.xs}):
            return  # each step of the loop is one of training
        for i, (inside, outside) in enumerate(zip(jaxpr.outvars, eqn.outvars, strict=True)):
            form = inner.form(inside)
            if i < len(carry):
                added, to = inner.sums.get(inside, (None, None)) if not isinstance(inside, Literal) else (None, None)
                if added is None or to is not carry[i] or added.axis is not None:
                    continue
                if not inner.reaches(inner.sown_from(added.sown), {to}):
                    yield outside, added._replace(over="micro-batches").summed(outside, n)
            elif form is not None and form.is_whole and (form.axis is None or not is_scan):
                form = form._replace(scale=())  # the result is scaled
                yield outside, form._replace(axis=0, over="micro-batches") if is_scan else form

    def _step(self, eqn: Any) -> None:
        """Follow an equation with a gradient among its operands."""
        name, (first, *rest) = eqn.primitive.name, eqn.invars
        form, out = self.form(first), eqn.outvars[0]
        if name in SAME_LEAF:
            found = ((v, self.form(x)) for v, x in zip(eqn.outvars, eqn.invars, strict=False))
            self.form_of.update((v, f) for v, f in found if f is not None)
        elif name == "integer_pow" and eqn.params["y"] == 1 and form is not None:
            self.form_of[out] = form
        elif name == "reduce_sum" and form is not None and tuple(eqn.params["axes"]) == (form.axis,):
            self.form_of[out] = form.summed(out, first.aval.shape[form.axis])
        elif name in ("add", "add_any"):
            for this, other in ((first, rest[0]), (rest[0], first)):
                gradient = self.form(this)
                if gradient is not None and self.form(other) is None and not isinstance(other, Literal):
                    self.sums[out] = gradient, other
        elif name in ("mul", "div"):
            self._product(name, out, first, rest[0])
        elif name == "select_n" or eqn.params.get("name") == "_where":  # of jnp.where: the cases in reverse
            self._selection(out, first, rest if name == "select_n" else rest[::-1])
        elif name == "dot_general":
            self._weighted_sum(eqn)
        elif name == COND:
            self._accumulated(eqn)
        elif (
            eqn.params.get("name") == "clip" and form is not None and form.is_whole and not form.transforms
        ):  # of jnp.clip
            self.plan.clipped.add(form.sown)

    def _accumulated(self, eqn: Any) -> None:
        """A mean or sum with what earlier calls have given, which is an argument."""
        for found in accumulated(eqn):
            form = self.form(found.gradient)
            if form is None or not form.is_whole or form.axis is not None or found.before not in self.jaxpr.invars:
                continue
            if not self.reaches(self.sown_from(form.sown), {found.before}):  # else it is a parameter
                transforms = (*form.transforms, found.transform)
                self.form_of[found.made.result] = form._replace(
                    value=found.made.result, scale=(), transforms=transforms
                )
                self.repeated[found.made.result] = found.made

    def _weighted_sum(self, eqn: Any) -> None:
        """A sum over examples, each times a number of its own, as of clipped ones."""
        for i, (x, contracted, batch) in enumerate(zip(eqn.invars, *eqn.params["dimension_numbers"], strict=True)):
            form, weights = self.form(x), eqn.invars[1 - i]
            is_over = form is not None and tuple(contracted) == (form.axis,) and not batch
            if is_over and form is not None and self.form(weights) is None and weights.aval.ndim == 1:
                self.form_of[eqn.outvars[0]] = self._weighted(form, weights).summed(eqn.outvars[0], 1)

    def _weighted(self, form: ScaledGradient, weights: Any) -> ScaledGradient:
        return form.scaled((), True, CLIPPED if self.depends(weights, form.sown) else "")

    def _product(self, name: str, out: Any, left: Any, right: Any) -> None:
        form, by = self.form(left), right
        if form is None and name == "mul":
            form, by = self.form(right), left
        if form is None or self.form(by) is not None:
            return
        scalar = self.scalar(by)
        if scalar is None:
            if form.axis is not None and self._is_along(by, form.axis):  # a number for each example
                self.form_of[out] = self._weighted(form._replace(value=out), by)
        else:
            transform = self._meaning(name, scalar, form, out)
            by = as_factor(scalar) if isinstance(scalar, Literal) else scalar
            if transform == "":
                form = form._replace(transforms=tuple(each.replace("summed", "averaged") for each in form.transforms))
            self.form_of[out] = form.scaled(
                (name, form.scale, by), form.is_whole and transform is not None, transform or ""
            )

    def _meaning(self, name: str, scalar: Any, form: ScaledGradient, out: Any) -> str | None:
        """What a product with a scalar does to a gradient; None if it may be the optimizer's."""
        if isinstance(scalar, Literal):
            by = as_factor(scalar) if name == "div" else 1 / (as_factor(scalar) or 1)
            if form.n > 1 and abs(by - form.n) < 1e-3 * form.n:
                return ""
            is_scale = by in self.plan.scales.get(form.sown, ())
            return UNSCALED if is_scale and not is_step_of(self.made_by.get(form.value), out, self.jaxpr) else None
        if self.depends(scalar, form.sown):
            return CLIPPED
        root, is_inverse = self._root(scalar)
        made_with = root is not None and self.reaches(self.sown_from(form.sown), {root})
        if not made_with or is_inverse != (name == "mul"):
            return None
        self.plan.scaled.add(form.sown)
        return UNSCALED

    def sown_from(self, sown: Sown) -> list[Any]:
        """The operands of what makes a tree here."""
        found = (self.made_by.get(v) for v in self.starts[sown])
        return [x for eqn in found if eqn is not None for x in eqn.invars]

    def _root(self, scalar: Any) -> tuple[Any, bool]:
        """The variable that a scalar is, or is the inverse of."""
        eqn = self.made_by.get(scalar)
        if eqn is not None and eqn.primitive.name == "div" and isinstance(eqn.invars[0], Literal):
            return self.scalar(eqn.invars[1]), True
        is_inverse = eqn is not None and eqn.primitive.name == "integer_pow" and eqn.params["y"] == -1
        return (self.scalar(eqn.invars[0]), True) if is_inverse and eqn is not None else (scalar, False)

    def _selection(self, out: Any, which: Any, cases: Sequence[Any]) -> None:
        """One of several scales of a gradient, or zero, by a condition that depends on it."""
        forms, condition = [self.form(x) for x in cases], self.scalar(which)
        known = [form for form in forms if form is not None]
        if condition is None and len(known) == 1 and known[0].is_whole and not known[0].transforms:
            made, start = (which, *(x for x, form in zip(cases, forms, strict=True) if form is None)), known[0].sown
            if all(self.reaches([x], {*self.starts[start]}) for x in made):  # of some elements, as of a row
                self.plan.clipped.add(start)
        is_zero = [form is not None or self._is_zero(x) for form, x in zip(forms, cases, strict=True)]
        one = {(form.sown, form.leaf, form.value, form.axis) for form in known}
        if condition is None or isinstance(condition, Literal) or len(one) != 1 or not all(is_zero):
            return
        if any(form.is_whole for form in known) and self.depends(condition, known[0].sown):
            scales = tuple(None if form is None else form.scale for form in forms)
            whole = next(form for form in known if form.is_whole)
            self.form_of[out] = whole.scaled(("select", condition, scales), True, CLIPPED)

    def _is_zero(self, atom: Any) -> bool:
        scalar = self.scalar(atom)
        return isinstance(scalar, Literal) and not np.any(scalar.val)

    def scalar(self, atom: Any) -> Any:
        """The scalar that an atom is, or has in all elements; None if it is none."""
        while not isinstance(atom, Literal):
            eqn = self.made_by.get(atom)
            if eqn is None or eqn.primitive.name not in SAME_LEAF | RESHAPES or size_of(eqn.invars[0]) != 1:
                break
            atom = eqn.invars[eqn.outvars.index(atom)]
        if not is_scalar(atom):
            return None
        return atom if isinstance(atom, Literal) else self.first.get(atom, atom)

    def _is_along(self, atom: Any, axis: int) -> bool:
        """Whether an atom varies along one axis alone."""
        eqn = None if isinstance(atom, Literal) else self.made_by.get(atom)
        if eqn is None or eqn.primitive.name != "broadcast_in_dim":
            return not is_scalar(atom) and size_of(atom) == getattr(atom.aval, "shape", ())[axis]
        shape = getattr(eqn.invars[0].aval, "shape", ())
        return [to for to, n in zip(eqn.params["broadcast_dimensions"], shape, strict=True) if n > 1] == [axis]

    def depends(self, atom: Any, sown: Sown) -> bool:
        """Whether a variable is made of a sown tree."""
        if (atom, sown) not in self._depends:
            self._depends[atom, sown] = self.reaches([atom], {*self.starts[sown]})
        return self._depends[atom, sown]

    def reaches(self, atoms: Sequence[Any], targets: set[Any]) -> bool:
        waiting, seen = [*atoms], set()
        while waiting:
            at = waiting.pop()
            if isinstance(at, Literal) or at in seen:
                continue
            if at in targets:
                return True
            seen.add(at)
            waiting += self.made_by[at].invars if at in self.made_by else ()
        return False

    def _plan(self) -> None:
        last: dict[Sown, dict[int, ScaledGradient]] = {}
        for form in self.form_of.values():
            if form.is_whole and form.axis is None:
                last.setdefault(form.sown, {})[form.leaf] = form
            if UNSCALED in form.transforms:
                self.plan.unscaled.add(form.sown)
        for sown, of_leaf in last.items():
            if all(form.transforms == (CLIPPED,) for form in of_leaf.values()):
                self.plan.clipped.add(sown)
            n = sum(sown.source.has_number)
            (scale, *others), transforms_of_leaves = (
                {form.scale for form in of_leaf.values()},
                {f.transforms for f in of_leaf.values()},
            )
            if (
                len(of_leaf) == n
                and not others
                and len(transforms_of_leaves) == 1
                and any(transforms := transforms_of_leaves.pop())
            ):
                values = tuple(of_leaf[leaf].value for leaf in range(n))
                is_sown = self.sown.issuperset(values)
                for inside in self.plan.of.values():  # what is received is the last
                    inside.pop(sown, None)
                sums = tuple(self._sum(v) for v in values)
                self.plan.of.setdefault(id(self.jaxpr), {})[sown] = Received(values, sums, is_sown, scale, transforms)

    def _sum(self, variable: Any) -> Recomputation | None:
        eqn = self.made_by.get(variable)
        is_sum = eqn is not None and eqn.primitive.name in SUMS
        return Recomputation((eqn,), variable) if is_sum else self.repeated.get(variable)


def _is_per_example(dims: Sequence[int | None], n: int) -> bool:
    """Whether a `vmap` batches n gradients, and not the parameters that follow."""
    return None not in dims[:n] and set(dims[n:]) == {None}
