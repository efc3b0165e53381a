"""Which results of a step are the new values of its parameters: a parameter, and something added to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from treeviz.analysis.marked_jaxprs import inner_jaxprs, open_jaxpr
from treeviz.analysis.marks import mark_p

Path = tuple[Any, ...]  # JAX's keys


class Share(NamedTuple):
    """How much of an argument is in a value that is a sum.

    Attributes:
      factor: By which it is multiplied; 1 in `p - rate * g`.
      is_sure: False if the factor was taken to be near 1, or if it is so only where a condition holds.
    """

    factor: float
    is_sure: bool = True

    @property
    def is_most(self) -> bool:
        return 0.5 <= self.factor <= 1.5


Shares = dict[int, Share]  # by the number of the argument
_WHOLE = Share(1.0)
_AS_NEAR = 0.05  # to a factor of 1


def successors(
    program: ClosedJaxpr, arguments: Sequence[int], argument_paths: Sequence[Path], result_paths: Sequence[Path]
) -> list[int | None]:
    """For some arguments of a program, the number of the result that is their new value; None where none surely is.

    The new value of `p` is what is made of `p` by adding to it, as `p - rate * g` is, perhaps scaled by a factor near
    1 (weight decay), under a condition, or in another dtype on the way. A moment `b1 * m + (1 - b1) * g` is not, since
    no `p` is in it, and an average `d * a + (1 - d) * p` has too little of it. Where several results qualify, it is the
    one that no other argument qualifies for, or else the one at the argument's own place among the results. A result
    that is the sum of something else (a copy in float32) is taken if it is at that place.

    Args:
      argument_paths: Of every argument; the first key tells which one of the step's arguments it is.
      result_paths: Of every result.
    """
    shares = _shares_of_results(program, range(len(argument_paths)))
    avals = [(v.aval.shape, v.aval.dtype) for v in program.jaxpr.invars]
    results = [(v.aval.shape, getattr(v.aval, "dtype", None)) for v in program.jaxpr.outvars]
    found: list[int | None] = []
    for p in arguments:
        alike = [i for i, aval in enumerate(results) if aval == avals[p]]
        is_same = {i for i in alike if program.jaxpr.outvars[i] is program.jaxpr.invars[p]}
        sums = [i for i in alike if p in shares[i] and shares[i][p].is_most]
        sums = [i for i in sums if i not in is_same] or sums
        sure = [i for i in sums if shares[i][p].is_sure] or sums
        alone = [i for i in sure if not any(share.is_most for q, share in shares[i].items() if q != p)]
        candidates = alone or sure
        if candidates:  # an average that is quick to follow has less of it
            least = min(abs(shares[i][p].factor - 1) for i in candidates)
            candidates = [i for i in candidates if abs(shares[i][p].factor - 1) < least + _AS_NEAR]
        if not candidates:  # the new value of another argument, rounded
            others = [i for i in alike if any(share.is_most for share in shares[i].values())]
            candidates = [i for i in others if _has_place(argument_paths[p], result_paths[i])]
        if len(candidates) > 1:
            candidates = _nearest(argument_paths[p], candidates, result_paths)
        found.append(candidates[0] if len(candidates) == 1 else None)
    return [None if i is not None and found.count(i) > 1 else i for i in found]


def _nearest(path: Path, candidates: Sequence[int], result_paths: Sequence[Path]) -> list[int]:
    """The candidates whose path is most like an argument's: its end, then its beginning, then how little is before."""
    argument, *inner = map(str, path)

    def likeness(i: int) -> tuple:
        keys = [str(key) for key in result_paths[i]]
        n_same = next(
            (n for n in range(min(len(inner), len(keys))) if inner[-1 - n] != keys[-1 - n]), min(len(inner), len(keys))
        )
        before = keys[: len(keys) - n_same]
        return n_same, before[:1] == [argument], -len(before)

    likest = max(map(likeness, candidates))
    return [i for i in candidates if likeness(i) == likest]


def _has_place(argument: Path, result: Path) -> bool:
    """Whether a result is at the argument's place: `f(params, …)` gives `(params, …)`, or it gives just `params`."""
    return list(map(str, argument)) == list(map(str, result)) or (
        str(argument[0]) == "[0]" and list(map(str, argument[1:])) == list(map(str, result))
    )


# Their first operand, as it is
_SAME = (
    *("convert_element_type", "copy", "copy_p", "sharding_constraint", "reshard", "pvary", "pcast", "pbroadcast"),
    *("reduce_precision", "device_put", "mesh_cast"),
)
_CALLS = ("pjit", "jit", "closed_call", "core_closed_call", "core_call", "remat2", "checkpoint", "shard_map")
_CUSTOM = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_lin")


def _shares_of_results(program: Any, arguments: Sequence[int]) -> list[Shares]:
    start: list[Shares] = [{i: _WHOLE} for i in arguments]
    consts = program.consts if isinstance(program, ClosedJaxpr) else ()
    return _Follower().results(program, start, [None] * len(start), consts)


class _Follower:
    """Follows sums through a program."""

    def results(self, program: Any, shares: Sequence[Shares], numbers: Sequence[float | None], consts=()):
        jaxpr = open_jaxpr(program)
        share_of: dict[Any, Shares] = {v: s for v, s in zip(jaxpr.invars, shares, strict=True) if s}
        number_of: dict[Any, float] = {v: x for v, x in zip(jaxpr.invars, numbers, strict=True) if x is not None}
        number_of.update((v, x) for v, c in zip(jaxpr.constvars, consts, strict=False) if (x := _number(c)) is not None)
        near_one: set[Any] = set()  # scalars that are 1 - x: (1 - rate * decay)

        for eqn in jaxpr.eqns:
            name = eqn.primitive.name
            known = [_number(x.val) if isinstance(x, Literal) else number_of.get(x) for x in eqn.invars]
            mine = [{} if isinstance(x, Literal) else share_of.get(x, {}) for x in eqn.invars]
            if not any(mine):
                self._follow_number(eqn, name, known, number_of, near_one)
                continue
            if eqn.primitive is mark_p:
                found: Sequence[Shares] = (
                    mine if eqn.params["mark"].kind == "tap" else ()
                )  # in a gradient there is none
            elif name == "optimization_barrier":
                found = mine
            elif name in _CALLS or name in _CUSTOM:
                (inner, *_) = inner_jaxprs(eqn)
                n = len(open_jaxpr(inner).invars)
                consts = inner.consts if isinstance(inner, ClosedJaxpr) else ()
                found = self.results(inner, mine[-n:], known[-n:], consts)
            elif name == "cond":
                branches = [self.results(b, mine[1:], known[1:], b.consts) for b in eqn.params["branches"]]
                found = [_either(of_result) for of_result in zip(*branches, strict=True)]
            else:
                found = [self._of_one(eqn, name, mine, known, near_one)]
            share_of.update((v, s) for v, s in zip(eqn.outvars, found, strict=False) if s)
        return [{} if isinstance(v, Literal) else share_of.get(v, {}) for v in jaxpr.outvars]

    def _of_one(self, eqn, name: str, mine: Sequence[Shares], known: Sequence[float | None], near_one) -> Shares:
        if name in _SAME:
            return mine[0]
        if name in ("add", "add_any"):
            return _sum(mine[0], mine[1])
        if name == "sub":
            return _sum(mine[0], _scaled(mine[1], -1.0))
        if name == "neg":
            return _scaled(mine[0], -1.0)
        if name == "select_n":
            return _either(mine[1:])
        if name == "clamp":
            return mine[1]
        if name in ("max", "min"):
            return mine[0] if known[1] is not None else mine[1] if known[0] is not None else {}
        if name == "mul":
            for this, other in ((0, 1), (1, 0)):
                if mine[this] and not mine[other]:
                    by = known[other]
                    if by is not None:
                        return _scaled(mine[this], by)
                    return _scaled(mine[this], 1.0, False) if eqn.invars[other] in near_one else {}
        if name == "div" and known[1]:
            return _scaled(mine[0], 1 / known[1])
        return {}

    def _follow_number(self, eqn, name: str, known, number_of: dict[Any, float], near_one: set[Any]) -> None:
        """What is one number everywhere."""
        out = eqn.outvars[0] if len(eqn.outvars) == 1 else None
        first = eqn.invars[0] if eqn.invars else None
        if name in (*_SAME, "broadcast_in_dim", "reshape", "squeeze"):
            if known[0] is not None:
                number_of[out] = known[0]
            elif not isinstance(first, Literal) and first in near_one:
                near_one.add(out)
        elif name == "sub" and known[0] == 1.0:
            near_one.add(out)
        elif name in ("add", "sub", "mul", "neg") and None not in known:
            number_of[out] = {
                "add": lambda a, b: a + b,
                "sub": lambda a, b: a - b,
                "mul": lambda a, b: a * b,
                "neg": lambda a: -a,
            }[name](*known)


def _number(x: Any) -> float | None:
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
    total = dict(left)
    for i, share in right.items():
        both = total.get(i)
        total[i] = share if both is None else Share(both.factor + share.factor, both.is_sure and share.is_sure)
    return total


def _either(choices: Sequence[Shares]) -> Shares:
    """Of a value that is one of several: the largest share, sure if it is the same in all."""
    found: Shares = {}
    for i in {i for choice in choices for i in choice}:
        shares = [choice.get(i, Share(0.0)) for choice in choices]
        largest = max(shares, key=lambda share: abs(share.factor))
        is_sure = all(share.is_sure and 0.5 <= share.factor / (largest.factor or 1) <= 2 for share in shares)
        found[i] = Share(largest.factor, is_sure)
    return found
