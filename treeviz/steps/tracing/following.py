"""Follow the gradients of a program to where the optimizer receives them.

From the sown values, through sums over the axis of a batch or loop, and products with scalars: one that the gradient
was made with, as a loss scale, or one that is made of the gradient, as its norm. A product with any other number, such
as a learning rate, may be the optimizer's own, and ends the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jax.extend.core import Jaxpr, Literal

from treeviz.steps.tracing.accumulated import accumulated
from treeviz.steps.tracing.loss_scales import as_factor, is_step_of, loss_scales
from treeviz.steps.tracing.primitives import (
    CALLS,
    COND,
    RESHAPES,
    SAME_LEAF,
    SCAN,
    inner_jaxprs,
    is_scalar,
    open_jaxpr,
    scan_parts,
    size_of,
)
from treeviz.steps.tracing.received import CLIPPED, SUMS, UNSCALED, Form, Received, Repeated
from treeviz.steps.tracing.sow import Reaped, Sown, sow_p
from treeviz.steps.tracing.sown import sown_in


class Plan:
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
        text = next((", ".join(of[reaped.tagged].how) for of in self.of.values() if reaped.tagged in of), "")
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

    def __init__(self, jaxpr: Jaxpr, plan: Plan) -> None:
        self.jaxpr, self.plan = jaxpr, plan
        self.made_by = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
        self.form_of: dict[Any, Form] = {}
        self.starts: dict[Sown, list[Any]] = {}  # the variables of the values here
        self.sown: set[Any] = set()  # those of them that are what is sown
        self.repeated: dict[Any, Repeated] = {}  # sums that are made in other jaxprs
        self.sums: dict[Any, tuple[Form, Any]] = {}  # of a gradient and another variable
        self.first: dict[Any, Any] = {}  # of the scalars that are computed alike, as once for each leaf
        self._computed: dict[tuple, Any] = {}
        self._depends: dict[tuple[Any, Sown], bool] = {}
        plan.scales.update(loss_scales(jaxpr, self.made_by))

    def follow(self) -> None:
        for eqn in self.jaxpr.eqns:
            if eqn.primitive is sow_p:
                self._sow(eqn)
            elif any(True for inner in inner_jaxprs(eqn) for _ in sown_in(inner)):
                for variable, form in self._from_inside(eqn):
                    self._start(variable, form)
            elif any(not isinstance(x, Literal) and x in self.form_of for x in eqn.invars):
                self._step(eqn)
            elif len(eqn.outvars) == 1 and is_scalar(eqn.outvars[0]) and not (eqn.effects or inner_jaxprs(eqn)):
                operands = [str(x.val) if isinstance(x, Literal) else self.first.get(x, x) for x in eqn.invars]
                key = (eqn.primitive.name, str(eqn.params), *operands)
                self.first[eqn.outvars[0]] = self._computed.setdefault(key, eqn.outvars[0])
        self._plan()

    def form(self, atom: Any) -> Form | None:
        return None if isinstance(atom, Literal) else self.form_of.get(atom)

    def _start(self, variable: Any, form: Form) -> None:
        self.form_of[variable] = form._replace(value=variable)
        if not form.how:
            self.sown.add(variable)
        self.starts.setdefault(form.sown, []).append(variable)

    def _sow(self, eqn: Any) -> None:
        sown, n = eqn.params["sown"], eqn.params["n"]
        batched = [dims for dims in eqn.params["batched"] if any(dim is not None for dim in dims[:n])]
        if sown.kind in ("tap", "loss") or len(batched) > 1:
            return
        axes = batched[0][:n] if batched and _is_per_example(batched[0], n) else (None,) * n
        if not batched or axes[0] is not None:
            for leaf, (variable, axis) in enumerate(zip(eqn.outvars, axes, strict=True)):
                self._start(variable, Form(sown, leaf, variable, axis=axis, over="examples"))

    def _from_inside(self, eqn: Any) -> Iterator[tuple[Any, Form]]:
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
        elif eqn.params.get("name") == "clip" and form is not None and form.is_whole and not form.how:  # of jnp.clip
            self.plan.clipped.add(form.sown)

    def _accumulated(self, eqn: Any) -> None:
        """A mean or sum with what earlier calls have given, which is an argument."""
        for found in accumulated(eqn):
            form = self.form(found.gradient)
            if form is None or not form.is_whole or form.axis is not None or found.before not in self.jaxpr.invars:
                continue
            if not self.reaches(self.sown_from(form.sown), {found.before}):  # else it is a parameter
                how = (*form.how, found.how)
                self.form_of[found.made.result] = form._replace(value=found.made.result, scale=(), how=how)
                self.repeated[found.made.result] = found.made

    def _weighted_sum(self, eqn: Any) -> None:
        """A sum over examples, each times a number of its own, as of clipped ones."""
        for i, (x, contracted, batch) in enumerate(zip(eqn.invars, *eqn.params["dimension_numbers"], strict=True)):
            form, weights = self.form(x), eqn.invars[1 - i]
            is_over = form is not None and tuple(contracted) == (form.axis,) and not batch
            if is_over and form is not None and self.form(weights) is None and weights.aval.ndim == 1:
                self.form_of[eqn.outvars[0]] = self._weighted(form, weights).summed(eqn.outvars[0], 1)

    def _weighted(self, form: Form, weights: Any) -> Form:
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
            how = self._meaning(name, scalar, form, out)
            by = as_factor(scalar) if isinstance(scalar, Literal) else scalar
            if how == "":
                form = form._replace(how=tuple(each.replace("summed", "averaged") for each in form.how))
            self.form_of[out] = form.scaled((name, form.scale, by), form.is_whole and how is not None, how or "")

    def _meaning(self, name: str, scalar: Any, form: Form, out: Any) -> str | None:
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
        if condition is None and len(known) == 1 and known[0].is_whole and not known[0].how:
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
        last: dict[Sown, dict[int, Form]] = {}
        for form in self.form_of.values():
            if form.is_whole and form.axis is None:
                last.setdefault(form.sown, {})[form.leaf] = form
            if UNSCALED in form.how:
                self.plan.unscaled.add(form.sown)
        for sown, of_leaf in last.items():
            if all(form.how == (CLIPPED,) for form in of_leaf.values()):
                self.plan.clipped.add(sown)
            n = sum(sown.source.has_number)
            (scale, *others), hows = {form.scale for form in of_leaf.values()}, {f.how for f in of_leaf.values()}
            if len(of_leaf) == n and not others and len(hows) == 1 and any(how := hows.pop()):
                values = tuple(of_leaf[leaf].value for leaf in range(n))
                is_sown = self.sown.issuperset(values)
                for inside in self.plan.of.values():  # what is received is the last
                    inside.pop(sown, None)
                sums = tuple(self._sum(v) for v in values)
                self.plan.of.setdefault(id(self.jaxpr), {})[sown] = Received(values, sums, is_sown, scale, how)

    def _sum(self, variable: Any) -> Repeated | None:
        eqn = self.made_by.get(variable)
        is_sum = eqn is not None and eqn.primitive.name in SUMS
        return Repeated((eqn,), variable) if is_sum else self.repeated.get(variable)


def _is_per_example(dims: Sequence[int | None], n: int) -> bool:
    """Whether a `vmap` batches n gradients, and not the parameters that follow."""
    return None not in dims[:n] and set(dims[n:]) == {None}
