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
from treeviz.steps.statistics import Axes, WhyNot
from treeviz.steps.tracing.dataflow import Domain, forward
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
    """The numbers of the program's arguments in the order of their first use; unused ones are left out.

    A change of dtype, shape, order or place does not count, since a step often casts all parameters first.
    """
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
            self.order.update((argument, None) for argument in operands if argument is not None)


# Gradients that are zero for any arguments: the loss does not depend on their parameters.

Known = float | None  # the number that all elements of an array equal; None: they depend on the arguments

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


def structural_zeros(program: ClosedJaxpr) -> dict[Sown, frozenset[int]]:
    """For each sown tree, the numbers of its values that are zero for any arguments.

    JAX returns zeros as the gradient of a parameter that the loss does not use, or uses only behind `stop_gradient`, a
    comparison or a rounding. The gradients of a constant that is added to both terms of a difference cancel. Numbers
    that happen to be zero, as behind a ReLU, do not count.
    """
    domain = _Known()
    eqns = program.jaxpr.eqns
    n = next((n for n in range(len(eqns), 0, -1) if holds_sown(eqns[n - 1])), 0)  # behind them is the optimizer
    forward(program, domain, [None] * len(program.jaxpr.invars), last=eqns[n] if n < len(eqns) else None)
    return {sown: places for sown, places in domain.zeros.items() if places}


class _Known(Domain[Known]):
    """Knows the number that all elements of an array equal.

    Attributes:
      zeros: For each sown tree, the numbers of the values that are zero.
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
        return [value if value == 0 else None for value in known]
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
    """What is known of an array that joins or selects from several."""
    return known[0] if len(set(known)) == 1 else None


# Find the results of a step that are the new values of its parameters: a parameter plus something.

Path = tuple[Any, ...]  # of JAX's keys


class Share(NamedTuple):
    """The share of an argument in a value that is a sum.

    Attributes:
      factor: The factor of the argument; 1 in `p - rate * g`.
      is_sure: False if the factor is assumed to be near 1, or is known only under a condition of the program.
      is_alone: Nothing else is in the value, except zeros.
    """

    factor: float
    is_sure: bool = True
    is_alone: bool = True

    @property
    def is_main(self) -> bool:
        return 0.5 <= self.factor <= 1.5


Shares = Mapping[int, Share]  # by the number of the argument
_WHOLE = Share(1.0)
_FACTOR_TOLERANCE = 0.05  # candidates whose factors are that close are equally good


def match_new_params(
    program: ClosedJaxpr, arguments: Sequence[int], argument_paths: Sequence[Path], result_paths: Sequence[Path]
) -> list[int | None]:
    """For each argument, the number of the result that is its new value; None if that is not certain.

    A result is a candidate for an argument `p` of its shape and dtype if it is `p` plus something, as `p - rate * g`.
    `p` may have a factor near 1 (weight decay), pass through another dtype, or be selected under a condition. A moment
    `b1 * m + (1 - b1) * g` is no candidate, since it contains no `p`; an average `d * a + (1 - d) * p` is none, since
    it contains too little of it.

    Among several candidates, take the one that matches no other argument, else the one at the same path. Without a
    candidate, take a result at the same path that is the sum of another argument and something: the parameter may be a
    rounded copy of a master copy in float32, from which its new value is computed.

    Args:
      arguments: The numbers of the program's arguments to match.
      argument_paths: The paths of all arguments of the program. The first key is that of the step's argument.
      result_paths: The paths of all results.
    """
    everything = [_Value({i: _WHOLE}) for i in range(len(program.jaxpr.invars))]
    shares = [value.shares for value in forward(program, _Sums(), everything)]
    avals, results = ([*map(shape_and_dtype, variables)] for variables in (program.jaxpr.invars, program.jaxpr.outvars))
    sums: dict[int, list[int]] = defaultdict(list)  # by argument, the results that are it plus something
    for i, of_result in enumerate(shares):
        for p, share in of_result.items():
            if share.is_main and avals[p] == results[i]:
                sums[p].append(i)
    found: list[int | None] = []
    for p in arguments:
        is_unchanged = {i for i in sums[p] if program.jaxpr.outvars[i] is program.jaxpr.invars[p]}
        candidates = _candidates(p, sums[p], is_unchanged, shares)
        if not candidates:
            same_aval = [i for i, aval in enumerate(results) if aval == avals[p]]
            others = [i for i in same_aval if any(share.is_main for share in shares[i].values())]
            candidates = [i for i in others if _is_same_path(argument_paths[p], result_paths[i])]
        if len(candidates) > 1:
            candidates = _nearest(argument_paths[p], candidates, result_paths)
        found.append(candidates[0] if len(candidates) == 1 else None)
    n_found = Counter(found)
    return [None if n_found[i] > 1 else i for i in found]


def frozen_arguments(program: ClosedJaxpr) -> frozenset[int]:
    """The numbers of the arguments that a step returns as they are, or plus zero, and not plus anything else."""
    everything = [_Value({i: _WHOLE}) for i in range(len(program.jaxpr.invars))]
    avals, frozen, changed = [*map(shape_and_dtype, program.jaxpr.invars)], set(), set()
    for v, value in zip(program.jaxpr.outvars, forward(program, _Sums(), everything), strict=True):
        for p, share in value.shares.items():
            if share.is_main and avals[p] == shape_and_dtype(v):
                (frozen if share == _WHOLE else changed).add(p)
    return frozenset(frozen - changed)


def drifting_arguments(program: ClosedJaxpr) -> frozenset[int]:
    """The numbers of the arguments to which each device adds values of its own, though they are to be equal on all.

    `shard_map` does not check that with `check_vma=False`, so that a forgotten `psum` of gradients is no error.
    """
    n = len(program.jaxpr.invars)
    drifting = forward(program, _Varying(), [frozenset()] * n)
    if not any(drifting):
        return frozenset()
    shares = (value.shares for value in forward(program, _SumsInLoops(), [_Value({i: _WHOLE}) for i in range(n)]))
    return frozenset(
        p
        for v, axes, of_result in zip(program.jaxpr.outvars, drifting, shares, strict=True)
        for p, share in of_result.items()
        if axes and share.is_main and shape_and_dtype(program.jaxpr.invars[p]) == shape_and_dtype(v)
    )


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
        named = frozenset(named if isinstance(named, tuple) else [named]) if _is_over_devices(name) else frozenset()
        is_split = name in ("axis_index", "all_to_all", "reduce_scatter")
        return [axes | named if is_split else axes - named] * len(eqn.outvars)


def _is_over_devices(name: str) -> bool:
    return name in DEVICE_SUMS | GATHERS or name in ("pmax", "pmin", "axis_index", "all_to_all", "reduce_scatter")


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
    """The candidates with the path most like the argument's.

    They are ranked by the number of equal keys at the end, then by whether the first key is that of the argument, then
    by the fewest other keys.
    """
    argument, *inner = map(str, path)

    def likeness(i: int) -> tuple:
        keys = [str(key) for key in result_paths[i]]
        n_common = min(len(inner), len(keys))
        n_same = next((n for n in range(n_common) if inner[-1 - n] != keys[-1 - n]), n_common)
        before = keys[: len(keys) - n_same]
        return n_same, before[:1] == [argument], -len(before)

    best = max(map(likeness, candidates))
    return [i for i in candidates if likeness(i) == best]


def _is_same_path(argument: Path, result: Path) -> bool:
    """Whether `f(params, …)` gives `(params, …)`, or just `params`."""
    keys, result_keys = list(map(str, argument)), list(map(str, result))
    return keys == result_keys or (keys[0] == "[0]" and keys[1:] == result_keys)


class _Value(NamedTuple):
    """What is known of a value.

    Attributes:
      shares: Of the arguments in it.
      number: The constant that all its elements are.
      is_near_one: It is `1 - x`, as `1 - rate * decay` is, a factor that is assumed to be near 1.
    """

    shares: Shares = MappingProxyType({})
    number: float | None = None
    is_near_one: bool = False


_NOTHING = _Value()


class _Sums(Domain[_Value]):
    """Sums of arguments, and scalar constants."""

    enters = CALLS | {COND, SHARD_MAP}

    def unknown(self, atom: Any) -> _Value:
        return _NOTHING

    def constant(self, value: Any) -> _Value | None:
        number = _number(value)
        return None if number is None else _Value(number=number)

    def join(self, values: Sequence[_Value], atom: Any) -> _Value:
        (first, *_), shares = values, _either([value.shares for value in values])
        return first._replace(shares=shares) if len({value[1:] for value in values}) == 1 else _Value(shares)

    def results(self, eqn: Any, operands: Sequence[_Value]) -> Sequence[_Value]:
        name, has_shares = eqn.primitive.name, any(value.shares for value in operands)
        if eqn.primitive is sow_p:  # a parameter may be tapped; a gradient contains no parameter
            return operands if eqn.params["sown"].kind == "tap" else ()
        if name in SAME_LEAF:
            return operands
        if has_shares:
            return [_Value(_shares_of_sum(name, operands))]
        if name in RESHAPES:
            return operands[:1]
        numbers = [value.number for value in operands]
        if name == "mul" and 0 in numbers:
            return [_Value(number=0.0)]
        if name in _ARITHMETIC and None not in numbers:
            return [_Value(number=_ARITHMETIC[name](*numbers))]
        return [_Value(is_near_one=True)] if name == "sub" and numbers[0] == 1.0 else ()


class _SumsInLoops(_Sums):
    enters = _Sums.enters | {SCAN, WHILE}


def _shares_of_sum(name: str, operands: Sequence[_Value]) -> Shares:
    """The shares in the result of an arithmetic primitive."""
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


_ARITHMETIC: dict[str, Callable[..., float]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "neg": operator.neg,
}


def _number(x: Any) -> float | None:
    """The value of a constant with one element."""
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
    """The shares in one of several values: the largest factors, which are sure if all values have nearly the same."""
    found: dict[int, Share] = {}
    for i in {i for choice in choices for i in choice}:
        shares = [choice.get(i, Share(0.0)) for choice in choices]
        largest = max(shares, key=lambda share: abs(share.factor))
        is_sure = all(share.is_sure and 0.5 <= share.factor / (largest.factor or 1) <= 2 for share in shares)
        found[i] = Share(largest.factor, is_sure, all(share.is_alone for share in shares))
    return found


# Which values of a program are scanned over: as parameters, they hold all layers of a model.


class AxesOf(Protocol):
    """Which leaves are measured layer by layer, and along which axis; empty if none is.

    Args:
      source: The tree.
      scanned: The axis along which the program scans over the parameter that each leaf belongs to; None: it does not.
    """

    def __call__(self, source: MeasuredTree, scanned: Axes, why_not: WhyNot, /) -> Axes: ...


# How weights are masked and normalized before a scan, and which operands are the weights. Sums are left out: positions
# that are added to what is scanned over time are no layers.
_MASKS = {"mul": slice(2), "div": slice(1), "select_n": slice(1, None)}


def scanned_in(jaxpr: Any) -> dict[Any, int]:
    """The variables of a jaxpr that a scan in it, at any depth, takes apart; and the axis along which it does."""
    return _scanned(open_jaxpr(jaxpr), {})


def _scanned(jaxpr: Any, found: dict[Any, int]) -> dict[Any, int]:
    def add(variable: Any, axis: int | None) -> None:
        if axis is not None and not isinstance(variable, Literal):
            found.setdefault(variable, axis)

    for eqn in reversed(jaxpr.eqns):  # the uses of a variable come after what makes it
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
        for inner, operands in programs(eqn, eqn.invars):
            inner = open_jaxpr(inner)
            results = zip(inner.outvars, eqn.outvars, strict=False) if name in CALLS or name == COND else ()
            known = {v: found[result] for v, result in results if result in found and not isinstance(v, Literal)}
            inside = _scanned(inner, known)
            # What a scan takes apart comes last, and has been added.
            for operand, variable in zip(operands, inner.invars, strict=False):
                add(operand, inside.get(variable))
    return found


def layer_axes(eqn: Any, source: MeasuredTree, scanned: Mapping[Any, int], axes_of: AxesOf, why_not: WhyNot) -> Axes:
    """The axis of the layers of each leaf of a sown tree; None for a leaf that holds none; empty if none does.

    Args:
      eqn: It sows the tree.
      source: The tree.
      scanned: As `scanned_in` gives it, of the jaxpr of the equation.
      axes_of: As `reap` takes it.
      why_not: Why layers cannot be distinguished, by the number of the sown value.
    """
    n = eqn.params["n"]
    batched = [axes[n:] for axes in reversed(eqn.params["batched"])]  # the outermost `vmap` first
    origins = eqn.invars[n:]
    found = iter([_axis(origin, scanned, [axes[i] for axes in batched]) for i, origin in enumerate(origins)])
    places = np.cumsum(source.has_number) - 1

    def why(leaf: int, axis: int) -> str:
        value = int(places[leaf])
        return _IS_SPLIT if _is_split(eqn.invars[value], axis) else why_not(value, axis)

    return axes_of(source, tuple(next(found, None) if has else None for has in source.has_number), why)


def _axis(origin: Any, scanned: Mapping[Any, int], batch_axes: Sequence[int | None]) -> int | None:
    """The axis that is scanned over, of a member of the batch."""
    axis = None if isinstance(origin, Literal) else scanned.get(origin)
    for batch in batch_axes:
        if axis is None or batch == axis:
            return None
        axis -= batch is not None and batch < axis
    return axis


_IS_SPLIT = "they are on several devices of an explicit mesh"


def _is_split(value: Any, axis: int) -> bool:
    """Whether the type shows that the layers are on several devices, as in explicit meshes."""
    spec = tuple(getattr(getattr(value.aval, "sharding", None), "spec", ()))
    return any(name is not None for name in spec[axis : axis + 1])
