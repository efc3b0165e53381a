"""Find the results of a step that are the new values of its parameters: a parameter plus something."""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import ClosedJaxpr

from treeviz.steps.tracing.dataflow import Domain, forward
from treeviz.steps.tracing.primitives import CALLS, COND, RESHAPES, SAME_LEAF, SHARD_MAP, shape_and_dtype
from treeviz.steps.tracing.sow import sow_p

Path = tuple[Any, ...]  # of JAX's keys


class Share(NamedTuple):
    """The share of an argument in a value that is a sum.

    Attributes:
      factor: The factor of the argument; 1 in `p - rate * g`.
      is_sure: False if the factor is assumed to be near 1, or is known only under a condition of the program.
    """

    factor: float
    is_sure: bool = True

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
    shares = _shares_of_results(program)
    avals, results = ([*map(shape_and_dtype, of)] for of in (program.jaxpr.invars, program.jaxpr.outvars))
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
            alike = [i for i, aval in enumerate(results) if aval == avals[p]]
            others = [i for i in alike if any(share.is_main for share in shares[i].values())]
            candidates = [i for i in others if _is_same_path(argument_paths[p], result_paths[i])]
        if len(candidates) > 1:
            candidates = _nearest(argument_paths[p], candidates, result_paths)
        found.append(candidates[0] if len(candidates) == 1 else None)
    n_found = Counter(found)
    return [None if n_found[i] > 1 else i for i in found]


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


def _shares_of_results(program: ClosedJaxpr) -> list[Shares]:
    arguments = [_Value({i: _WHOLE}) for i in range(len(program.jaxpr.invars))]
    return [value.shares for value in forward(program, _Sums(), arguments)]


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
        if name in _ARITHMETIC and None not in numbers:
            return [_Value(number=_ARITHMETIC[name](*numbers))]
        return [_Value(is_near_one=True)] if name == "sub" and numbers[0] == 1.0 else ()


def _shares_of_sum(name: str, operands: Sequence[_Value]) -> Shares:
    """The shares in the result of an arithmetic primitive."""
    shares, numbers, _ = zip(*operands, strict=True)
    if name in ("add", "add_any"):
        return _sum(shares[0], shares[1])
    if name == "sub":
        return _sum(shares[0], _scaled(shares[1], -1.0))
    if name == "neg":
        return _scaled(shares[0], -1.0)
    if name == "select_n":
        return _either(shares[1:])
    if name == "clamp":
        return shares[1]
    if name in ("max", "min"):
        return shares[0] if numbers[1] is not None else shares[1] if numbers[0] is not None else {}
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
    return {i: Share(s.factor * by, s.is_sure and is_sure) for i, s in shares.items()}


def _sum(left: Shares, right: Shares) -> Shares:
    if not left or not right:
        return left or right
    total = {**left}
    for i, share in right.items():
        both = total.get(i)
        total[i] = share if both is None else Share(both.factor + share.factor, both.is_sure and share.is_sure)
    return total


def _either(choices: Sequence[Shares]) -> Shares:
    """The shares in one of several values: the largest factors, which are sure if all values have nearly the same."""
    found: dict[int, Share] = {}
    for i in {i for choice in choices for i in choice}:
        shares = [choice.get(i, Share(0.0)) for choice in choices]
        largest = max(shares, key=lambda share: abs(share.factor))
        is_sure = all(share.is_sure and 0.5 <= share.factor / (largest.factor or 1) <= 2 for share in shares)
        found[i] = Share(largest.factor, is_sure)
    return found
