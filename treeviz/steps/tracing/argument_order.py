"""The order in which a program first uses its arguments. For the parameters of a training step, that of the layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Literal

from treeviz.steps.tracing.primitives import CALLS, RESHAPES, SAME_LEAF, open_jaxpr, programs
from treeviz.steps.tracing.sow import sow_p


def argument_order(program: ClosedJaxpr) -> list[int]:
    """The numbers of the program's arguments in the order of their first use; unused ones are left out.

    A change of dtype, shape, order or place does not count, since a step often casts all parameters first.
    """
    order: dict[int, None] = {}
    _follow(program, range(len(program.jaxpr.invars)), order)
    return list(order)


def _follow(program: Any, arguments: Sequence[int | None], order: dict[int, None]) -> list[int | None]:
    """Add the uses in one jaxpr to `order`. Returns for each result the argument that it is, or None."""
    jaxpr = open_jaxpr(program)
    argument_of: dict[Any, int | None] = dict(zip(jaxpr.invars, arguments, strict=False))
    for eqn in jaxpr.eqns:
        operands = [None if isinstance(x, Literal) else argument_of.get(x) for x in eqn.invars]
        if all(argument is None for argument in operands):
            continue
        name = eqn.primitive.name
        if name in SAME_LEAF or name in RESHAPES or eqn.primitive is sow_p:
            argument_of.update(zip(eqn.outvars, operands, strict=False))
            continue
        inner = programs(eqn, operands)
        if not inner:
            order.update((argument, None) for argument in operands if argument is not None)
        for inner_program, inner_operands in inner:
            results = _follow(inner_program, inner_operands, order)
            if name in CALLS:
                argument_of.update(zip(eqn.outvars, results, strict=True))
    return [None if isinstance(v, Literal) else argument_of.get(v) for v in jaxpr.outvars]
