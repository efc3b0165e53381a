"""Gradients that are zero whatever the arguments are: those of parameters on which the loss does not depend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from treeviz.steps.tracing.dataflow import Domain, forward
from treeviz.steps.tracing.primitives import DEVICE_SUMS, GATHERS, RESHAPES, SAME_LEAF, SCATTER_ADDS
from treeviz.steps.tracing.sow import Sown, sow_p
from treeviz.steps.tracing.sown import holds_sown

Known = float | None  # what all elements of an array are, for any arguments; None: they depend on these

# Result i has the elements of operand i.
_SAME = (
    SAME_LEAF | RESHAPES | GATHERS | frozenset(["ppermute", "all_to_all", "real", "reduce_max", "reduce_min", "slice"])
)
# Result i is zero where operand i is.
_KEEPS_ZERO = DEVICE_SUMS | frozenset(
    ["abs", "cumsum", "reduce_scatter", "reduce_window_sum", "sign", "sqrt", "square", "tanh"]
)
# The result is zero where an operand is; where the other is not finite it is NaN, which is found before.
_PRODUCTS = frozenset(["and", "conv_general_dilated", "dot_general", "mul"])
# The result has the elements of its operands, where all have the same.
_JOINED = frozenset(["concatenate", "max", "min", "or", "pad"])


def known_zeros(program: ClosedJaxpr) -> dict[Sown, frozenset[int]]:
    """The numbers of the sown values that are zero whatever the arguments are, by what was sown.

    JAX gives zeros as the gradient of what the loss does not use, or uses behind `stop_gradient`, a comparison or a
    rounding; a constant that is added to two terms of a difference has ones that cancel. Numbers that happen to be
    zero, as behind a ReLU, are not known.
    """
    domain = _Known()
    eqns = program.jaxpr.eqns
    n = next((n for n in range(len(eqns), 0, -1) if holds_sown(eqns[n - 1])), 0)  # behind them is the optimizer
    forward(program, domain, [None] * len(program.jaxpr.invars), last=eqns[n] if n < len(eqns) else None)
    return {sown: places for sown, places in domain.zeros.items() if places}


class _Known(Domain[Known]):
    """What is known is the number that all elements of an array are.

    Attributes:
      zeros: Of each tree that is sown, the numbers of the values that are zero.
    """

    def __init__(self) -> None:
        self.zeros: dict[Sown, frozenset[int]] = {}

    def unknown(self, atom: Any) -> Known:
        return None

    def constant(self, value: Any) -> Known:
        if isinstance(value, jax.Array) or np.shape(value) or not jnp.issubdtype(np.asarray(value).dtype, np.number):
            return None
        value = complex(value)
        return value.real if math.isfinite(value.real) and not value.imag else None

    def results(self, eqn: Any, operands: Sequence[Known]) -> Sequence[Known]:
        if all(known is None for known in operands):
            return ()
        is_same = eqn.primitive.name in _SAME or eqn.primitive is sow_p
        return operands if is_same else _computed(eqn.primitive.name, eqn, operands)

    def visit(self, eqn: Any, operands: Sequence[Known]) -> None:
        if eqn.primitive is sow_p:
            sown, n = eqn.params["sown"], eqn.params["n"]
            places = frozenset(i for i in range(n) if operands[i] == 0)
            self.zeros[sown] = self.zeros.get(sown, places) & places  # a jaxpr may be called more than once


def _computed(name: str, eqn: Any, known: Sequence[Known]) -> Sequence[Known]:
    first, second = known[0], known[1] if len(known) > 1 else None
    if name in _KEEPS_ZERO or (name == "integer_pow" and eqn.params["y"] > 0):
        return [each if each == 0 else None for each in known]
    if name == "split":
        return [first] * len(eqn.outvars)
    if name in _PRODUCTS and 0 in known:
        return [0.0]
    if name == "reduce_sum" and first is not None:
        return [first * eqn.invars[0].aval.size / max(eqn.outvars[0].aval.size, 1)]
    if name == "neg" and first is not None:
        return [-first]
    if name in ("dynamic_slice", "gather") or (name == "div" and first == 0):
        return [first]
    if name in SCATTER_ADDS:
        return [first if known[2] == 0 else None]
    if name == "select_n":
        return [_one(known[1:])]
    if name in _JOINED:
        return [_one(known)]
    if first is None or second is None:
        return ()
    if name in ("add", "add_any"):
        return [first + second]
    if name == "sub":
        return [first - second]
    return [first * second if name == "mul" else first / second if name == "div" and second else None]


def _one(known: Sequence[Known]) -> Known:
    """What an array is that is made of several, or is one of them."""
    return known[0] if len(set(known)) == 1 else None
