"""Means and sums of gradients over several calls of a step, as the state of `optax.MultiSteps` holds them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from jax.extend.core import Jaxpr, Literal

from treeviz.steps.tracing.primitives import SAME_LEAF, open_jaxpr, programs
from treeviz.steps.tracing.received import Repeated


class Accumulated(NamedTuple):
    """What a conditional makes of a gradient and of those of the calls before.

    Attributes:
      gradient, before: Operands of the conditional.
      made: The new mean or sum.
      how: "averaged over the calls so far".
    """

    gradient: Any
    before: Any
    made: Repeated
    how: str


def accumulated(eqn: Any) -> Iterator[Accumulated]:
    """The means `before + (gradient - before) / n` and sums `gradient + before` in the branches of a conditional."""
    for branch, operands in programs(eqn, eqn.invars):
        jaxpr = open_jaxpr(branch)
        outside = dict(zip(jaxpr.invars, operands, strict=True))
        made_by = {v: inner for inner in jaxpr.eqns for v in inner.outvars}

        def root(atom: Any, made_by=made_by) -> Any:
            while not isinstance(atom, Literal) and atom in made_by and made_by[atom].primitive.name in SAME_LEAF:
                atom = made_by[atom].invars[0]
            return atom

        def step_of(atom: Any, name: str, made_by=made_by, root=root) -> list[Any]:
            inner = None if isinstance(atom, Literal) else made_by.get(atom)
            return [root(x) for x in inner.invars] if inner is not None and inner.primitive.name == name else []

        for inner in jaxpr.eqns:
            if inner.primitive.name != "add":
                continue
            for before, other in (inner.invars, inner.invars[::-1]):
                before = root(before)
                difference = [x for part in step_of(other, "div")[:1] for x in step_of(part, "sub")]
                is_mean = len(difference) == 2 and difference[1] is before
                gradient = difference[0] if is_mean else root(other)
                if not any(isinstance(x, Literal) or x not in outside for x in (before, gradient)):
                    made = _repeated(jaxpr, inner.outvars[0], outside)
                    how = f"{'averaged' if is_mean else 'summed'} over the calls so far"
                    yield Accumulated(outside[gradient], outside[before], made, how)


def _repeated(jaxpr: Jaxpr, result: Any, outside: dict[Any, Any]) -> Repeated:
    """The equations on which a result depends."""
    needed, eqns = {result}, []
    for eqn in reversed(jaxpr.eqns):
        if not needed.isdisjoint(eqn.outvars):
            needed.update(x for x in eqn.invars if not isinstance(x, Literal))
            eqns.append(eqn)
    return Repeated(tuple(reversed(eqns)), result, {v: x for v, x in outside.items() if v in needed})
