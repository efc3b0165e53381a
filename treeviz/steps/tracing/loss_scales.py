"""Constants that a loss is multiplied with before it is differentiated: a loss scale that is a Python number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jax.extend.core import Jaxpr, Literal

from treeviz.steps.tracing.primitives import SAME_LEAF
from treeviz.steps.tracing.sow import Sown, sow_p

_LEAST = 8.0


def loss_scales(jaxpr: Jaxpr, made_by: Mapping[Any, Any]) -> dict[Sown, set[float]]:
    """By what was sown, the powers of two, 8 and more, that its loss is multiplied with in its last operations.

    A gradient that is divided by one is exactly that of the loss without it. Other numbers may be the optimizer's own,
    as the 0.1 that is 1 - b1 of Adam.

    Args:
      made_by: The equation of each variable of the jaxpr.
    """
    found: dict[Sown, set[float]] = {}
    losses: list[Any] = []  # whose gradients come later, the last one's first
    for eqn in jaxpr.eqns:
        if eqn.primitive is sow_p and eqn.params["sown"].kind == "loss":
            losses.append(eqn.invars[0])
        elif eqn.primitive is sow_p and eqn.params["sown"].kind == "grads" and losses:
            scales = _products(losses.pop(), made_by)
            found[eqn.params["sown"]] = {x for x in scales if x >= _LEAST and x.hex().startswith("0x1.0000000000000p")}
    return found


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
