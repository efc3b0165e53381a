"""Which entries of the arguments, such as examples of a batch, a value of the program belongs to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from treeviz.steps.nan_origin.taint import Within
from treeviz.steps.tracing.dataflow import Domain, Followed, followed_inside
from treeviz.steps.tracing.primitives import CALLS, COND, ELEMENTWISE, IDENTITY, SCAN, SHARD_MAP, WHILE

# For each axis of a value, the arguments of the program along whose first axis it lies: index i is of entry i.
# `OTHERS` among them: also of entries that are not known, as of a shuffled batch. Empty: all indices have the same.
Axes = tuple[frozenset[int], ...]

OTHERS = -1
_NONE: frozenset[int] = frozenset()
_OTHERS = frozenset([OTHERS])
_ALIKE = ELEMENTWISE | frozenset(
    [
        *("exp2", "expm1", "log1p", "logistic", "pow", "erf", "erf_inv", "erfc", "sin", "cos", "tan", "clamp", "rem"),
        *("sinh", "cosh", "asin", "acos", "atan", "atan2", "cbrt", "floor", "ceil", "round", "is_finite", "lgamma"),
    ]
)


def axes_of_results(eqn: Any, within: Within) -> Sequence[Axes]:
    """The axes of an equation's results."""
    followed = _followed(within, eqn)
    if eqn.primitive.name in _Entries.enters:
        return followed_inside(followed.domain, eqn, [followed.read(x) for x in eqn.invars]).results
    return followed.domain.results(eqn, [followed.read(x) for x in eqn.invars])


def _followed(within: Within, last: Any) -> Followed[Axes]:
    """The jaxpr around an equation, up to it, with what is known of the arguments of the program."""
    domain, jaxpr = _Entries(), within.jaxpr
    if within.outer is None:
        return Followed(domain, jaxpr, [_first_axis(i, v.aval) for i, v in enumerate(jaxpr.invars)]).to(last)
    if within.eqn.primitive.name == SHARD_MAP:  # an index on a device is not that of the whole array
        return Followed(domain, jaxpr, [_all(v) for v in jaxpr.invars]).to(last)
    outer = _followed(within.outer, within.eqn)
    inside = followed_inside(domain, within.eqn, [outer.read(x) for x in within.eqn.invars])
    return next(program for program in inside.programs if program.jaxpr is jaxpr)


def _first_axis(i: int, aval: Any) -> Axes:
    return (frozenset([i]), *(_OTHERS,) * (aval.ndim - 1)) if getattr(aval, "ndim", 0) else ()


def _all(atom: Any, axis: frozenset[int] = _OTHERS) -> Axes:
    return (axis,) * len(getattr(atom.aval, "shape", ()))


class _Entries(Domain[Axes]):
    """What is known is along which axes of a value the entries of arguments lie."""

    enters = CALLS | {COND, SCAN, WHILE}

    def unknown(self, atom: Any) -> Axes:
        return _all(atom)

    def constant(self, value: Any) -> Axes:
        return (_NONE,) * np.ndim(value)

    def entry(self, xs: Axes) -> Axes:
        return xs[1:]

    def stacked(self, y: Axes) -> Axes:
        return (_OTHERS, *y)

    def join(self, values: Sequence[Axes], atom: Any) -> Axes:
        return functools.reduce(_either, values)

    def results(self, eqn: Any, operands: Sequence[Axes]) -> list[Axes]:
        name = eqn.primitive.name
        unknown = [_all(v, _OTHERS if any(map(any, operands)) else _NONE) for v in eqn.outvars]
        if len(unknown) == 1 and name in _RULES:
            return [_RULES[name](eqn, operands)]
        if len(unknown) == 1 and name.startswith("reduce_") and "axes" in eqn.params:
            return [tuple(axis for i, axis in enumerate(operands[0]) if i not in eqn.params["axes"])]
        if name in IDENTITY:
            return list(operands[: len(unknown)])
        if name in ("slice", "dynamic_slice", "split"):  # an axis that is as long as before is whole
            shapes = [v.aval.shape for v in (eqn.invars[0], *eqn.outvars)]
            return [
                _where([m == n for m, n in zip(shapes[0], shape, strict=True)], operands[0]) for shape in shapes[1:]
            ]
        if name in _ALIKE:
            return [_joined([x for x in operands if len(x) == len(old)], old) for old in unknown]
        return unknown


def _either(a: Axes, b: Axes) -> Axes:
    """Of a value that is one or the other."""
    return tuple(x | y if x == y or not (x and y) else (x & y) | _OTHERS for x, y in zip(a, b, strict=True))


def _joined(operands: Sequence[Axes], unknown: Axes) -> Axes:
    return tuple(_NONE.union(*axes) for axes in zip(*operands, strict=True)) or unknown


# Of one operation: (equation, axes of its operands) -> axes of its result


def _broadcast(eqn: Any, operands: Sequence[Axes]) -> Axes:
    found = [_NONE] * len(eqn.params["shape"])
    shape = eqn.invars[0].aval.shape
    for i, to in enumerate(eqn.params["broadcast_dimensions"]):
        found[to] = operands[0][i] if shape[i] == eqn.params["shape"][to] else _NONE
    return tuple(found)


def _where(kept: Sequence[bool], axes: Axes) -> Axes:
    return tuple(axis if keep or not axis else _OTHERS for keep, axis in zip(kept, axes, strict=True))


def _windows(eqn: Any, operands: Sequence[Axes]) -> Axes:
    """An axis whose windows have one element is kept, as that of a batch in pooling."""
    p = eqn.params
    lengths = zip(p["window_dimensions"], p["window_strides"], p["base_dilation"], p["padding"], strict=True)
    return _where([(*ones, *padding) == (1, 1, 1, 0, 0) for *ones, padding in lengths], operands[0])


def _reshape(eqn: Any, operands: Sequence[Axes]) -> Axes:
    """Leading axes that keep their sizes are the same."""
    before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    found = [_OTHERS if any(operands[0]) else _NONE] * len(after)
    for i, (m, n) in enumerate(zip(before, after, strict=False)):
        if m != n:
            break
        found[i] = operands[0][i]
    return tuple(found)


def _dot_general(eqn: Any, operands: Sequence[Axes]) -> Axes:
    contracting, batch = eqn.params["dimension_numbers"]
    left, right = operands
    found = [left[i] | right[j] for i, j in zip(*batch, strict=True)]
    for axes, gone, shared in zip(operands, contracting, batch, strict=True):
        found += [axis for i, axis in enumerate(axes) if i not in (*gone, *shared)]
    return tuple(found)


def _conv(eqn: Any, operands: Sequence[Axes]) -> Axes:
    numbers, found = eqn.params["dimension_numbers"], [_OTHERS] * len(eqn.outvars[0].aval.shape)
    if eqn.params["batch_group_count"] == 1:
        found[numbers.out_spec[0]] = operands[0][numbers.lhs_spec[0]]
    return tuple(found)


def _gather(eqn: Any, operands: Sequence[Axes]) -> Axes:
    """The rows of a table, as of an embedding, lie where their indices do."""
    found, of_rows = [_OTHERS] * len(eqn.outvars[0].aval.shape), eqn.params["dimension_numbers"].offset_dims
    for i, axis in zip((i for i in range(len(found)) if i not in of_rows), operands[1][:-1], strict=True):
        found[i] = axis or _OTHERS
    return tuple(found)


_RULES: dict[str, Callable[[Any, Sequence[Axes]], Axes]] = {
    "broadcast_in_dim": _broadcast,
    "conv_general_dilated": _conv,
    "dot_general": _dot_general,
    "gather": _gather,
    **dict.fromkeys(("reduce_window_sum", "reduce_window_max", "reduce_window_min"), _windows),
    "reshape": _reshape,
    "squeeze": lambda eqn, xs: tuple(x for i, x in enumerate(xs[0]) if i not in eqn.params["dimensions"]),
    "transpose": lambda eqn, xs: tuple(xs[0][i] for i in eqn.params["permutation"]),
}
