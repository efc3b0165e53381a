"""Gradients that are zero whatever the arguments are: those of parameters on which the loss does not depend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from treeviz.steps.tracing.primitives import (
    CALLS,
    COND,
    DEVICE_SUMS,
    GATHERS,
    RESHAPES,
    SAME_LEAF,
    SCAN,
    SCATTER_ADDS,
    SHARD_MAP,
    WHILE,
    called_jaxpr,
    open_jaxpr,
    programs,
    scan_parts,
    while_parts,
)
from treeviz.steps.tracing.sow import Sown, sow_p
from treeviz.steps.tracing.sown import holds_sown

_MOST_TURNS = 3  # of a loop, until nothing that is carried counts as known

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
    found: dict[Sown, frozenset[int]] = {}
    eqns = program.jaxpr.eqns
    n = next((n for n in range(len(eqns), 0, -1) if holds_sown(eqns[n - 1])), 0)  # behind them is the optimizer
    _follow(program, [None] * len(program.jaxpr.invars), found, n)
    return {sown: places for sown, places in found.items() if places}


def _follow(
    program: Any, operands: Sequence[Known], found: dict[Sown, frozenset[int]], n: int | None = None
) -> list[Known]:
    """What is known of the results of one jaxpr, or of its first n equations. Adds sown values of zero to `found`."""
    jaxpr: Jaxpr = open_jaxpr(program)
    values = {v: known for v, known in zip(jaxpr.invars, operands, strict=False) if known is not None}

    def read(x: Any) -> Known:
        return _literal(x.val) if isinstance(x, Literal) else values.get(x)

    for eqn in jaxpr.eqns[:n]:
        known = [read(x) for x in eqn.invars]
        if eqn.primitive is sow_p:
            sown, n = eqn.params["sown"], eqn.params["n"]
            places = frozenset(i for i in range(n) if known[i] == 0)
            found[sown] = found.get(sown, places) & places  # a jaxpr may be called more than once
        for v, result in zip(eqn.outvars, _results(eqn, known, found), strict=False):
            if result is not None:
                values[v] = result
    return [read(x) for x in jaxpr.outvars]


def _literal(value: Any) -> Known:
    if np.shape(value) or not jnp.issubdtype(np.asarray(value).dtype, np.number):
        return None
    value = complex(value)
    return value.real if math.isfinite(value.real) and not value.imag else None


def _results(eqn: Any, known: list[Known], found: dict[Sown, frozenset[int]]) -> Sequence[Known]:
    name = eqn.primitive.name
    if name in CALLS or name == SHARD_MAP:
        return _follow(called_jaxpr(eqn), known, found)
    if name == SCAN:
        parts = scan_parts(eqn, known)
        return _stable(parts.body, parts.consts, parts.carry, parts.xs, found)
    if name == WHILE:
        parts = while_parts(eqn, known)
        return _stable(parts.body, parts.body_consts, parts.carry, (), found)
    if name == COND:
        branches = [_follow(branch, operands, found) for branch, operands in programs(eqn, known)]
        return [_one(each) for each in zip(*branches, strict=True)]
    if all(each is None for each in known):
        return ()
    return known if name in _SAME or eqn.primitive is sow_p else _computed(name, eqn, known)


def _computed(name: str, eqn: Any, known: list[Known]) -> Sequence[Known]:
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
    """What several arrays are that are joined, or of which one is taken."""
    return known[0] if len(set(known)) == 1 else None


def _stable(
    body: Any, consts: Sequence[Known], carry: Sequence[Known], xs: Sequence[Known], found: dict[Sown, frozenset[int]]
) -> list[Known]:
    """The results of a loop: what is carried is known if it is the same at first and after each turn."""
    carry, n_turns = list(carry), 0
    while True:
        inside: dict[Sown, frozenset[int]] = {}
        results = _follow(body, [*consts, *carry, *xs], inside)
        n_turns += 1
        after = [_one(each) if n_turns < _MOST_TURNS else None for each in zip(carry, results, strict=False)]
        if after == carry:
            for sown, places in inside.items():
                found[sown] = found.get(sown, places) & places
            return [*carry, *results[len(carry) :]]
        carry = after
