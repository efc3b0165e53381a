"""The order in which a program uses its arguments: of a step that is that of the forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Literal

from treeviz.analysis.marked_jaxprs import inner_jaxprs, open_jaxpr
from treeviz.analysis.marks import mark_p
from treeviz.analysis.thread_rules import RULES

# They give the same numbers in another dtype, shape or place, before there is any use of them.
_MOVES = frozenset(
    [
        *("convert_element_type", "copy", "copy_p", "sharding_constraint", "reshard", "pvary", "pcast", "pbroadcast"),
        *("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "optimization_barrier", "device_put"),
        *("reduce_precision", "stop_gradient", mark_p.name),
    ]
)
_N_OPERANDS_BEFORE = {"cond": 1}  # those of the programs inside


def first_uses(program: ClosedJaxpr) -> list[int]:
    """The numbers of the program's arguments, the one that is used first before all; those without use left out."""
    order: dict[int, None] = {}
    _follow(program, range(len(program.jaxpr.invars)), order)
    return list(order)


def _follow(program: Any, arguments: Sequence[int | None], order: dict[int, None]) -> list[int | None]:
    """Which argument each result is, if it is one."""
    jaxpr = open_jaxpr(program)
    place: dict[Any, int | None] = dict(zip(jaxpr.invars, arguments, strict=False))
    for eqn in jaxpr.eqns:
        mine = [None if isinstance(x, Literal) else place.get(x) for x in eqn.invars]
        if all(argument is None for argument in mine):
            continue
        name = eqn.primitive.name
        if name in _MOVES:
            place.update(zip(eqn.outvars, mine, strict=False))
            continue
        if name not in RULES:
            order.update((argument, None) for argument in mine if argument is not None)
        elif name == "while":
            n_cond, n_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
            _follow(eqn.params["cond_jaxpr"], [*mine[:n_cond], *mine[n_cond + n_body :]], order)
            _follow(eqn.params["body_jaxpr"], mine[n_cond:], order)
        else:
            operands = mine[_N_OPERANDS_BEFORE.get(name, 0) :]
            results: list[int | None] = []
            inner = inner_jaxprs(eqn)
            for each in inner if name == "cond" else inner[:1]:
                results = _follow(each, operands, order)
            if name in ("pjit", "jit"):
                place.update(zip(eqn.outvars, results, strict=True))
    return [None if isinstance(v, Literal) else place.get(v) for v in jaxpr.outvars]
