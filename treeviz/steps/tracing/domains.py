"""Domains for `dataflow`: arguments in order of use, structural zeros, new parameters, scanned layers, equal leaves."""

from __future__ import annotations

import math
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from treeviz.steps.measure import MeasuredTree
from treeviz.steps.reduce import spec_of
from treeviz.steps.statistics import Axes, WhyNot
from treeviz.steps.tracing.dataflow import Domain, forward
from treeviz.steps.tracing.primitives import (
    CALLS,
    COND,
    DEVICE_SUMS,
    GATHERS,
    PMAP,
    RESHAPES,
    SAME_LEAF,
    SCAN,
    SCATTER_ADDS,
    SHARD_MAP,
    WHILE,
    Sown,
    axes_in,
    holds_sown,
    open_jaxpr,
    programs,
    scan_parts,
    shape_and_dtype,
    sow_p,
    specs_of,
)


def argument_order(program: ClosedJaxpr) -> list[int]:
    """The numbers of the program's arguments in the order of their first use, but for casts and moves."""
    domain = _Argument()
    forward(program, domain, range(len(program.jaxpr.invars)))
    return list(domain.order)


class Leaf(Domain[int | None]):
    """Knows the number of the argument that a value is the same leaf as."""

    enters = CALLS
    moves = SAME_LEAF

    def unknown(self, atom: Any) -> None:
        return None

    def results(self, eqn: Any, operands: Sequence[int | None]) -> Sequence[int | None]:
        return operands if eqn.primitive.name in self.moves or eqn.primitive is sow_p else ()


class _Argument(Leaf):
    """Knows the number of the argument that a value equals, except for dtype, shape, order or place."""

    enters = Domain.enters
    moves = SAME_LEAF | RESHAPES

    def __init__(self) -> None:
        self.order: dict[int, None] = {}

    def join(self, values: Sequence[int | None], atom: Any) -> int | None:
        """The first turn of a loop counts: in an epoch, later turns have new parameters."""
        return values[0]

    def visit(self, eqn: Any, operands: Sequence[int | None]) -> None:
        name = eqn.primitive.name
        if name not in self.moves and name not in self.enters and eqn.primitive is not sow_p:
            self.order.update([(argument, None) for argument in operands if argument is not None])


# Gradients that are zero for any arguments: the loss does not depend on their parameters.

Known = float | None  # the number that all elements of an array equal; None: they depend on the arguments

# Result i has the elements of operand i.
_SAME = SAME_LEAF | RESHAPES | GATHERS | {"ppermute", "all_to_all", "real", "reduce_max", "reduce_min", "slice"}
# Result i is zero where operand i is.
_KEEPS_ZERO = DEVICE_SUMS | {"abs", "cumsum", "reduce_scatter", "reduce_window_sum", "sign", "sqrt", "square", "tanh"}
# The result is zero where an operand is; where the other is not finite it is NaN, which is found before.
PRODUCTS = frozenset(["and", "conv_general_dilated", "dot_general", "mul"])
# The result has the elements of its operands, where all have the same; of `select_n`, of all but the first.
_JOINED = frozenset(["concatenate", "max", "min", "or", "pad", "select_n"])


def structural_zeros(program: ClosedJaxpr) -> dict[Sown, frozenset[int]]:
    """For each sown tree, the numbers of its values that are zero for any arguments.

    As of a parameter that the loss does not use, or only behind `stop_gradient`, a comparison or a rounding; or of a
    constant in both terms of a difference. Numbers that happen to be zero, as behind a ReLU, do not count.
    """
    domain = KnownNumber()
    eqns = program.jaxpr.eqns
    n = next((n for n in range(len(eqns), 0, -1) if holds_sown(eqns[n - 1])), 0)  # behind them is the optimizer
    forward(program, domain, [None] * len(program.jaxpr.invars), last=eqns[n] if n < len(eqns) else None)
    return {sown: places for sown, places in domain.zeros.items() if places}


class KnownNumber(Domain[Known]):
    def __init__(self) -> None:
        self.zeros: dict[Sown, frozenset[int]] = {}  # for each sown tree, the numbers of the values that are zero

    def unknown(self, atom: Any) -> Known:
        return None

    def constant(self, value: Any) -> Known:
        if isinstance(value, np.ndarray) and value.shape:
            number = _number(value)
            return None if number is None or not math.isfinite(number) else number
        if isinstance(value, jax.Array) or np.shape(value) or not jnp.issubdtype(np.asarray(value).dtype, np.number):
            return None
        value = complex(value)
        return value.real if math.isfinite(value.real) and not value.imag else None

    def results(self, eqn: Any, operands: Sequence[Known]) -> Sequence[Known]:
        if operands.count(None) == len(operands):
            return ()
        name = eqn.primitive.name
        if name in _SAME or eqn.primitive is sow_p:
            return operands
        if name in _KEEPS_ZERO or (name == "integer_pow" and eqn.params["y"] > 0):
            return [value if value == 0 else None for value in operands]
        if name in PRODUCTS and 0 in operands:
            return [0.0]
        if name in SCATTER_ADDS:
            return [operands[0] if operands[2] == 0 else None]
        if name in _JOINED:
            numbers = {*(operands[1:] if name == "select_n" else operands)}
            return [numbers.pop() if len(numbers) == 1 else None]
        first = operands[0]
        if first is None:
            return ()
        if name == "reduce_sum":
            return [first * eqn.invars[0].aval.size / max(eqn.outvars[0].aval.size, 1)]
        if name in ("split", "dynamic_slice", "gather") or (name == "div" and first == 0):
            return [first] * len(eqn.outvars)
        return [_calculated(eqn, operands)]

    def visit(self, eqn: Any, operands: Sequence[Known]) -> None:
        if eqn.primitive is sow_p:
            sown, n = eqn.params["sown"], eqn.params["n"]
            places = frozenset([i for i in range(n) if operands[i] == 0])
            self.zeros[sown] = self.zeros.get(sown, places) & places  # a jaxpr may be called more than once


# Find the results of a step that are the new values of its parameters: a parameter plus something.

Path = tuple[Any, ...]  # of JAX's keys


class Share(NamedTuple):
    """The share of an argument in a value that is a sum."""

    factor: float  # the factor of the argument; 1 in `p - rate * g`
    is_sure: bool = True  # False: the factor is assumed to be near 1, or known only under a condition of the program
    is_alone: bool = True  # nothing else is in the value, except zeros

    @property
    def is_main(self) -> bool:
        return 0.5 <= self.factor <= 1.5


Shares = Mapping[int, Share]  # by the number of the argument
WHOLE = Share(1.0)
_FACTOR_TOLERANCE = 0.05  # candidates whose factors are that close are equally good


def match_new_params(
    program: ClosedJaxpr,
    arguments: Sequence[int],
    argument_paths: Sequence[Path],
    result_paths: Sequence[Path],
    shares: Sequence[Shares] | None = None,
) -> list[int | None]:
    """For each argument, the number of the result that is its new value; None if that is not certain.

    A result is a candidate for an argument `p` of its shape and dtype if it is `p` plus something, as `p - rate * g`.
    `p` may have a factor near 1 (weight decay), pass through another dtype, or be selected under a condition. A moment
    `b1 * m + (1 - b1) * g` is no candidate, since it contains no `p`; an average `d * a + (1 - d) * p` is none, since
    it contains too little of it.

    Among several candidates, take the one that matches no other argument, else the one at the same path. Without a
    candidate, take a result at the same path that is the sum of another argument and something: the parameter may be a
    rounded copy of a master copy in float32, from which its new value is computed.
    """
    shares = _shares_in_results(program, _Sums()) if shares is None else shares
    avals, results = ([*map(shape_and_dtype, variables)] for variables in (program.jaxpr.invars, program.jaxpr.outvars))
    sums: dict[int, list[int]] = defaultdict(list)  # by argument, the results that are it plus something
    for i, p, _ in _mains(program, shares):
        sums[p].append(i)
    found: list[int | None] = []
    for p in arguments:
        is_unchanged = {i for i in sums[p] if program.jaxpr.outvars[i] is program.jaxpr.invars[p]}
        candidates = _candidates(p, sums[p], is_unchanged, shares)
        if not candidates:
            same_aval = [i for i, aval in enumerate(results) if aval == avals[p]]
            others = [i for i in same_aval if any(share.is_main for share in shares[i].values())]
            keys = [*map(str, argument_paths[p])]  # `f(params, …)` returns `(params, …)`, or just `params`
            same = [keys, keys[1:]] if keys[0] == "[0]" else [keys]
            candidates = [i for i in others if [*map(str, result_paths[i])] in same]
        if len(candidates) > 1:
            candidates = _nearest(argument_paths[p], candidates, result_paths)
        found.append(candidates[0] if len(candidates) == 1 else None)
    n_found = Counter(found)
    return [None if n_found[i] > 1 else i for i in found]


def _shares_in_results(program: ClosedJaxpr, domain: _Sums) -> list[Shares]:
    everything = [Value({i: WHOLE}) for i in range(len(program.jaxpr.invars))]
    return [value.shares for value in forward(program, domain, everything)]


def _mains(program: ClosedJaxpr, shares: Sequence[Shares]) -> list[tuple[int, int, Share]]:
    """The results that are an argument of their shape and dtype plus something: number, argument's number and share."""
    avals, results = ([*map(shape_and_dtype, variables)] for variables in (program.jaxpr.invars, program.jaxpr.outvars))
    mains = [(i, p, share) for i, of_result in enumerate(shares) for p, share in of_result.items() if share.is_main]
    return [(i, p, share) for i, p, share in mains if avals[p] == results[i]]


def frozen_arguments(program: ClosedJaxpr) -> frozenset[int]:
    """The numbers of the arguments that a step returns as they are, or plus zero, and not plus anything else."""
    shares = _mains(program, _shares_in_results(program, _Sums()))
    changed = {p for _, p, share in shares if share != WHOLE}
    return frozenset([p for _, p, _ in shares if p not in changed])


def drifting_arguments(program: ClosedJaxpr) -> frozenset[int]:
    """The numbers of the arguments that drift apart on the devices, as `shard_map` allows it with `check_vma=False`."""
    drifting = forward(program, _Varying(), [frozenset()] * len(program.jaxpr.invars))
    if not any(drifting):
        return frozenset()
    return frozenset(p for i, p, _ in _mains(program, _shares_in_results(program, SumsInLoops())) if drifting[i])


class _Varying(Domain[frozenset[str]]):
    """Knows along which axes of a mesh a value differs inside a `shard_map`; results differ against their specs."""

    enters = CALLS | {COND, SCAN, WHILE}

    def unknown(self, atom: Any) -> frozenset[str]:
        return frozenset()

    def join(self, values: Sequence[frozenset[str]], atom: Any) -> frozenset[str]:
        return frozenset().union(*values)

    def results(self, eqn: Any, operands: Sequence[frozenset[str]]) -> Sequence[frozenset[str]]:
        name, p, axes = eqn.primitive.name, eqn.params, frozenset().union(*operands)
        if name == SHARD_MAP:
            if p.get("check_vma", p.get("check_rep")):
                return ()
            inside = forward(p["jaxpr"], self, [frozenset(axes_in(spec)) for spec in specs_of(p, "in", eqn.invars)])
            return [axes - {*axes_in(spec)} for axes, spec in zip(inside, specs_of(p, "out", eqn.outvars), strict=True)]
        named = p.get("axes", p.get("axis_name", ()))
        named = named if isinstance(named, tuple) else [named]
        if name in ("axis_index", "all_to_all", "reduce_scatter"):
            axes = axes.union(named)
        elif name in DEVICE_SUMS or name in GATHERS or name in ("pmax", "pmin"):
            axes = axes.difference(named)
        return [axes] * len(eqn.outvars)


def _candidates(p: int, sums: Sequence[int], is_unchanged: set[int], shares: Sequence[Shares]) -> list[int]:
    """The best of the results that are `p` plus something. A result that is `p` itself comes last."""
    sums = [i for i in sums if i not in is_unchanged] or sums
    sure = [i for i in sums if shares[i][p].is_sure] or sums
    of_no_other = [i for i in sure if not any(share.is_main for q, share in shares[i].items() if q != p)]
    candidates = of_no_other or sure
    if not candidates:
        return []
    # A moving average that follows quickly has a factor within the bounds, but farther from 1.
    least = min(abs(shares[i][p].factor - 1) for i in candidates)
    return [i for i in candidates if abs(shares[i][p].factor - 1) < least + _FACTOR_TOLERANCE]


def _nearest(path: Path, candidates: Sequence[int], result_paths: Sequence[Path]) -> list[int]:
    """The candidates with the most equal keys at the end; then the first key of the argument, and few other keys."""
    argument, *inner = map(str, path)

    def likeness(i: int) -> tuple:
        keys = [str(key) for key in result_paths[i]]
        n_common = min(len(inner), len(keys))
        n_same = next((n for n in range(n_common) if inner[-1 - n] != keys[-1 - n]), n_common)
        before = keys[: len(keys) - n_same]
        return n_same, before[:1] == [argument], -len(before)

    best = max(map(likeness, candidates))
    return [i for i in candidates if likeness(i) == best]


class Value(NamedTuple):
    shares: Shares = MappingProxyType({})  # of the arguments in it
    number: float | None = None  # the constant that all its elements are
    is_near_one: bool = False  # it is `1 - x`, as `1 - rate * decay` is, a factor that is assumed to be near 1


NOTHING = Value()


class _Sums(Domain[Value]):
    enters = CALLS | {COND, SHARD_MAP}

    def unknown(self, atom: Any) -> Value:
        return NOTHING

    def constant(self, value: Any) -> Value | None:
        number = _number(value)
        return None if number is None else Value(number=number)

    def join(self, values: Sequence[Value], atom: Any) -> Value:
        (first, *_), shares = values, _either([value.shares for value in values])
        return first._replace(shares=shares) if len({value[1:] for value in values}) == 1 else Value(shares)

    def results(self, eqn: Any, operands: Sequence[Value]) -> Sequence[Value]:
        name, shares = eqn.primitive.name, [value.shares for value in operands]
        if eqn.primitive is sow_p:  # a parameter may be tapped; a gradient contains no parameter
            return operands if eqn.params["sown"].kind == "tap" else ()
        if name in SAME_LEAF:
            return operands
        if any(shares):
            return [Value(_shares_of_sum(name, operands))]
        if name in RESHAPES:
            return operands[:1]
        numbers = [value.number for value in operands]
        if name == "mul" and 0 in numbers:
            return [Value(number=0.0)]
        number = _calculated(eqn, numbers)
        if number is not None:
            return [Value(number=number)]
        return [Value(is_near_one=True)] if name == "sub" and numbers[0] == 1.0 else ()


class SumsInLoops(_Sums):
    enters = _Sums.enters | {SCAN, WHILE}


def _shares_of_sum(name: str, operands: Sequence[Value]) -> Shares:
    shares, numbers, _ = zip(*operands, strict=True)
    if name in ("add", "add_any", "sub"):
        right = _scaled(shares[1], -1.0) if name == "sub" else shares[1]
        return shares[0] if numbers[1] == 0 else right if numbers[0] == 0 else _sum(shares[0], right)
    if name == "neg":
        return _scaled(shares[0], -1.0)
    if name == "select_n":
        return _either(shares[1:])
    if name == "clamp":
        return _sum(shares[1], {})
    if name in ("max", "min"):
        return _sum(*shares) if numbers != (None, None) else {}
    if name == "mul" and not all(shares):
        this, other = (0, 1) if shares[0] else (1, 0)
        factor = numbers[other]
        if factor is not None:
            return _scaled(shares[this], factor)
        return _scaled(shares[this], 1.0, False) if operands[other].is_near_one else {}
    if name == "div" and numbers[1]:
        return _scaled(shares[0], 1 / numbers[1])
    return {}


# What an optimizer computes of its count and its hyperparameters, as in a schedule.
_ARITHMETIC: dict[str, Callable[..., float]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "neg", "eq", "ne", "lt", "le", "gt", "ge")},
    **{name: getattr(math, name) for name in ("exp", "log", "log1p", "expm1", "cos", "sin", "tanh", "sqrt", "floor")},
    **{"add_any": operator.add, "div": operator.truediv, "pow": operator.pow, "rem": math.fmod, "ceil": math.ceil},
    **{"max": max, "min": min, "abs": abs, "square": lambda x: x * x, "rsqrt": lambda x: 1 / math.sqrt(x)},
    "clamp": lambda least, x, most: min(max(x, least), most),
    "select_n": lambda which, *cases: cases[int(which)],
    "sign": lambda x: (x > 0) - (x < 0),
}  # fmt: skip


_MOST_COMPARED = 1 << 16  # elements of a constant


def _calculated(eqn: Any, numbers: Sequence[Known]) -> Known:
    name = eqn.primitive.name
    calculate = (lambda x: x ** eqn.params["y"]) if name == "integer_pow" else _ARITHMETIC.get(name)
    if calculate is None or None in numbers:
        return None
    try:
        number = float(calculate(*numbers))
    except (ArithmeticError, TypeError, ValueError):  # as of a logarithm of 0
        return None
    is_whole = jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.integer)
    return (float(int(number)) if is_whole else number) if math.isfinite(number) else None


def _number(x: Any) -> float | None:
    """The value of a constant whose elements are equal, as those of a mask that is False everywhere."""
    if isinstance(x, np.ndarray) and 1 < x.size <= _MOST_COMPARED and x.dtype.kind in "biuf" and (x == x.flat[0]).all():
        x = np.asarray(x).flat[0]
    if getattr(x, "size", 1) != 1 or not isinstance(x, float | int | np.ndarray | np.generic):
        return None
    try:
        return float(np.asarray(x).reshape(()))
    except (TypeError, ValueError):
        return None


def _scaled(shares: Shares, by: float, is_sure: bool = True) -> Shares:
    return {i: Share(s.factor * by, s.is_sure and is_sure, s.is_alone) for i, s in shares.items()}


def _sum(left: Shares, right: Shares) -> Shares:
    total = {i: share._replace(is_alone=False) for i, share in left.items()}
    for i, share in right.items():
        both = total.get(i, Share(0.0))
        total[i] = Share(both.factor + share.factor, both.is_sure and share.is_sure, False)
    return total


def _either(choices: Sequence[Shares]) -> Shares:
    """The shares in one of several values, which are sure if all have nearly the same factor.

    The first factor that is not 0 or 1 counts, rather one near 1: in a loop it stays that of the first turn.
    """
    found: dict[int, Share] = {}
    for i in {i for choice in choices for i in choice}:
        shares = [choice.get(i, Share(0.0)) for choice in choices]
        factor = max(shares, key=lambda share: (share.is_main, share.factor not in (0.0, 1.0))).factor
        is_sure = all(share.is_sure and 0.5 <= share.factor / (factor or 1) <= 2 for share in shares)
        found[i] = Share(factor, is_sure, all(share.is_alone and share.factor == factor for share in shares))
    return found


# Which values of a program are scanned over: as parameters, they hold all layers of a model.


class AxesOf(Protocol):
    """Which leaves are measured layer by layer, along which axis, of those that the program scans over; empty: none."""

    def __call__(self, source: MeasuredTree, scanned: Axes, why_not: WhyNot, /) -> Axes: ...


# How weights are masked and normalized before a scan, and which operands are the weights. Sums are left out: positions
# that are added to what is scanned over time are no layers.
_MASKS = {"mul": slice(2), "div": slice(1), "select_n": slice(1, None)}


def scanned_in(jaxpr: Any, known: Mapping[Any, int] = MappingProxyType({})) -> dict[Any, int]:
    """The variables of a jaxpr that a scan in it or later (`known`) takes apart; and the axis along which it does."""
    eqns: Any = open_jaxpr(jaxpr).eqns
    found = dict(known)

    def add(variable: Any, axis: int | None) -> None:
        if axis is not None and not isinstance(variable, Literal):
            found.setdefault(variable, axis)

    for eqn in reversed(eqns):  # the uses of a variable come after what makes it
        name = eqn.primitive.name
        if name in SAME_LEAF:
            for operand, result in zip(eqn.invars, eqn.outvars, strict=False):
                add(operand, found.get(result))
        elif name == "transpose" and eqn.outvars[0] in found:
            add(eqn.invars[0], eqn.params["permutation"][found[eqn.outvars[0]]])
        elif name in GATHERS and eqn.outvars[0] in found:
            axis, new = found[eqn.outvars[0]], None if eqn.params["tiled"] else eqn.params["all_gather_dimension"]
            add(eqn.invars[0], None if axis == new else axis - (new is not None and new < axis))
        elif name in _MASKS and eqn.outvars[0] in found:
            for operand in eqn.invars[_MASKS[name]]:
                if operand.aval.shape == eqn.outvars[0].aval.shape:
                    add(operand, found[eqn.outvars[0]])
        if name == SCAN:
            for x in scan_parts(eqn, eqn.invars).xs:
                add(x, 0)
        for inner, operands in programs(eqn, eqn.invars) if name != PMAP else ():  # whose arrays have an axis less
            inner = open_jaxpr(inner)
            results = zip(inner.outvars, eqn.outvars, strict=False) if name in CALLS or name == COND else ()
            known = {v: found[result] for v, result in results if result in found and not isinstance(v, Literal)}
            inside = scanned_in(inner, known)
            # What a scan takes apart comes last, and has been added.
            for operand, variable in zip(operands, inner.invars, strict=False):
                add(operand, inside.get(variable))
    return found


def layer_axes(eqn: Any, source: MeasuredTree, scanned: Mapping[Any, int], axes_of: AxesOf, why_not: WhyNot) -> Axes:
    """The axis of the layers of each leaf of a sown tree, or None; `why_not` gets the number of the sown value."""
    n = eqn.params["n"]
    found: list[int | None] = []
    for i, origin in enumerate(eqn.invars[n:], n):
        axis = None if isinstance(origin, Literal) else scanned.get(origin)
        for batch in (axes[i] for axes in reversed(eqn.params["batched"])):  # the outermost `vmap` first
            # Of a member of the batch.
            axis = None if axis is None or batch == axis else axis - (batch is not None and batch < axis)
        found.append(axis)
    places, left = np.cumsum(source.has_number) - 1, iter(found)

    def why(leaf: int, axis: int) -> str:
        value = int(places[leaf])
        is_split = any(spec_of(eqn.invars[value].aval)[axis : axis + 1])
        return "they are on several devices of an explicit mesh" if is_split else why_not(value, axis)

    return axes_of(source, tuple([next(left, None) if has else None for has in source.has_number]), why)
