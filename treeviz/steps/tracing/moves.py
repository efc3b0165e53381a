"""What a traced step does with each of its arguments: which gradient moves it, at which rate, and what stops one."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal

from treeviz.steps.tracing.dataflow import Domain, forward
from treeviz.steps.tracing.domains import NOTHING, PRODUCTS, WHOLE, KnownNumber, Shares, SumsInLoops, Value
from treeviz.steps.tracing.primitives import CALLS, PMAP, RESHAPES, SAME_LEAF, Sown, called_jaxpr, open_jaxpr, sow_p

_OPTAX = f"{os.sep}optax{os.sep}"
_GRADIENTS = ("grads", "cotangents")
# What these multiply by is no learning rate: the weights of moments, or the size of the parameter.
_NORMALIZES = re.compile(r"scale_by_(?!learning_rate|schedule|\w*linesearch)|(tree_)?bias_correction$|ema$")
# Their derivative is zero or does not exist; that of whatever returns integers, too.
_STOPS = frozenset(["stop_gradient", "round", "floor", "ceil", "sign", "nextafter"])


class Rate(NamedTuple):
    """The known numbers that multiply a value on its way from a gradient."""

    factor: float = 1.0
    n: int = 0  # how many there are
    is_gradient: bool = False  # nothing but these numbers has been applied to the gradient
    is_optax: bool = False  # only numbers that Optax multiplies by are counted
    computed_from: int = 0  # one bit for each argument that the factor is computed from; -1: from gradients


class Move(NamedTuple):
    """What is known of a value."""

    value: Value = NOTHING  # the shares of arguments in it, or the number that all its elements are
    arguments: int = 0  # one bit for each argument that it is computed from, by other ways than a gradient
    gradients: int = 0  # one bit for each gradient that it is computed from, but for those known to be zero
    rate: Rate | None = None  # None if it is of no gradient, or of several at different rates
    made: int = 0  # the id of the equation that made a value of zeros
    unshared: int = 0  # of `arguments`, those of which something other than a share is in it

    @property
    def shares(self) -> Shares:
        return self.value.shares


class Moves(Domain[Move]):
    """Follows arguments and gradients to the results of a step."""

    enters = Domain.enters | {PMAP}

    def __init__(self, is_of_first_turn: bool = False) -> None:
        self.is_of_first_turn = is_of_first_turn
        self.origins: dict[int, int | None] = {}  # the argument of each gradient, by its bit; None if unknown
        self.zeros = 0  # the bits of the gradients that are zero for any arguments
        self.loss: Move | None = None  # None if no `jax.grad` or `value_and_grad` is called
        self.zero_updates: dict[int, Any] = {}  # by argument: the equation that made the zeros that are added to it
        self._eqns: dict[int, Any] = {}
        self._bits: dict[tuple[Sown, int], int] = {}
        self._sums, self._numbers = SumsInLoops(), KnownNumber()

    def unknown(self, atom: Any) -> Move:
        return Move()

    def constant(self, value: Any) -> Move | None:
        known = self._sums.constant(value)
        return None if known is None else Move(known)

    def join(self, values: Sequence[Move], atom: Any) -> Move:
        if any(move.gradients for move in values):  # zeros beside them are an update that is left out
            values = [move for move in values if move.value.number != 0]
        value = self._sums.join([move.value for move in values], atom)
        return Move(value) if value.number is not None else self._joined(values, value)

    def taken(self, index: Move) -> int | None:
        return None if index.value.number is None else int(index.value.number)

    def _joined(self, operands: Sequence[Move], value: Value) -> Move:
        arguments = gradients = unshared = 0
        for move in operands:
            arguments, gradients = arguments | move.arguments, gradients | move.gradients
            unshared |= move.unshared if value.shares else move.arguments
        rates = {move.rate for move in operands if move.gradients}
        rate = rates.pop() if len(rates) == 1 else None
        return Move(value, arguments, gradients, rate, unshared=unshared)

    def results(self, eqn: Any, operands: Sequence[Move]) -> Sequence[Move]:
        name, numbers = eqn.primitive.name, [move.value.number for move in operands]
        if eqn.primitive is sow_p:
            return self._sown(eqn, operands)
        if name in SAME_LEAF:
            return operands
        if name == "select_n" and numbers[0] is not None:
            return [operands[1 + int(numbers[0])]]
        if name in ("add", "add_any", "sub") and 0 in numbers and (name != "sub" or numbers[1] == 0):
            zero, other = operands[::-1] if numbers[1] == 0 else operands
            if zero.made:
                self.zero_updates.update([(p, self._eqns[zero.made]) for p in other.shares])
            return [other]
        if name in PRODUCTS and 0 in numbers:
            return [self._zero(eqn, operands)]
        known = self._numbers.results(eqn, numbers)
        values = self._sums.results(eqn, [move.value for move in operands])
        found = []
        for i in range(len(eqn.outvars)):
            if i < len(known) and known[i] is not None:
                found.append(Move(Value(number=known[i])) if known[i] else self._zero(eqn, operands))
            else:
                found.append(self._joined(operands, values[i] if i < len(values) else NOTHING))
        if len(found) == 1 and found[0].gradients:
            found[0] = found[0]._replace(rate=_rate(eqn, name, operands))
        return found

    def _zero(self, eqn: Any, operands: Sequence[Move]) -> Move:
        made = next((move.made for move in operands if move.made), 0) or id(eqn)
        self._eqns.setdefault(made, eqn)
        return Move(Value(number=0.0), made=made)

    def _sown(self, eqn: Any, operands: Sequence[Move]) -> Sequence[Move]:
        sown, n = eqn.params["sown"], eqn.params["n"]
        if sown.kind not in _GRADIENTS or eqn.params["differentiated"]:
            return operands[:n]
        bits = [self._bits.setdefault((sown, i), len(self._bits)) for i in range(n)]
        return [
            move if move.value.number == 0 else Move(gradients=1 << bit, rate=Rate(is_gradient=True))
            for bit, move in zip(bits, operands, strict=False)
        ]

    def visit(self, eqn: Any, operands: Sequence[Move]) -> None:
        if eqn.primitive is not sow_p or eqn.params["differentiated"]:
            return
        sown, n = eqn.params["sown"], eqn.params["n"]
        if sown.kind == "loss":
            self.loss = operands[0] if self.loss is None else self.join([self.loss, operands[0]], eqn.invars[0])
        for i in range(n if sown.kind in _GRADIENTS else 0):
            bit = self._bits[sown, i]
            mains = [p for p, share in operands[n + i].shares.items() if share.is_main] if len(operands) > n else []
            self.origins[bit] = mains[0] if len(mains) == 1 else None
            if operands[i].value.number == 0:
                self.zeros |= 1 << bit


def _rate(eqn: Any, name: str, operands: Sequence[Move]) -> Rate | None:
    """The rate of the one result of an equation with a gradient among its operands."""
    at = [i for i, move in enumerate(operands) if move.gradients]
    rate = operands[at[0]].rate
    if len(at) == 1 and rate is not None:
        others = [move for i, move in enumerate(operands) if i != at[0]]
        if name in RESHAPES or name == "neg":
            return rate._replace(factor=-rate.factor) if name == "neg" else rate
        is_sum = name in ("add", "add_any", "sub")
        if is_sum and (others[0].shares or others[0].value.number == 0):  # the parameter, its decay, or a moment
            return rate._replace(factor=-rate.factor) if name == "sub" and at == [1] else rate
        if others and (name == "mul" or (name == "div" and at == [0])):
            functions, number = optax_functions(eqn), others[0].value.number
            normalizes = any(map(_NORMALIZES.match, functions))
            if rate.is_optax and (normalizes or (number is not None and not functions)):
                return rate
            if normalizes or number is None:
                return Rate(computed_from=-1 if others[0].gradients else others[0].arguments)
            is_optax = bool(functions)
            if is_optax and not rate.is_optax:
                rate = Rate(is_gradient=rate.is_gradient, is_optax=True)
            factor = rate.factor * number if name == "mul" else rate.factor / number
            return rate._replace(factor=factor, n=rate.n + 1, computed_from=0)
    is_computed = name in ("mul", "div") or any(move.rate and move.rate.computed_from < 0 for move in operands)
    return Rate(computed_from=-int(is_computed))


def optax_functions(eqn: Any) -> list[str]:
    """The functions of Optax in which an equation was traced, the innermost first: "set_to_zero"."""
    traceback = eqn.source_info.traceback
    # Until jax 0.10, `frames` have no qualified names.
    codes = traceback.raw_frames()[0] if hasattr(traceback, "raw_frames") else ()
    return [code.co_qualname.partition(".<locals>")[0] for code in codes if _OPTAX in code.co_filename]


def bits_of(mask: int) -> Iterator[int]:
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1


# Where a derivative ends on the way from an argument to the loss.


class _Reach(NamedTuple):
    """What is known of a value: one bit for each argument with a derivative in it, and for each end of another one."""

    number: float | None = None
    arguments: int = 0
    ends: int = 0


class _Reaches(Domain[_Reach]):
    """Follows derivatives with respect to some arguments through the forward pass."""

    enters = Moves.enters

    def __init__(self) -> None:
        self.loss: list[_Reach] = []
        self.ends: list[tuple[int, Any]] = []  # the arguments whose derivatives end in an equation
        self._bits: dict[tuple[int, int], int] = {}  # of an end, by the arguments and the id of the equation
        self.calls: dict[int, Any] = {}  # the equation that calls the function in which one ends
        self._numbers = KnownNumber()

    def unknown(self, atom: Any) -> _Reach:
        return _Reach()

    def constant(self, value: Any) -> _Reach | None:
        number = self._numbers.constant(value)
        return None if number is None else _Reach(number)

    def join(self, values: Sequence[_Reach], atom: Any) -> _Reach:
        numbers = {reach.number for reach in values}
        return self._joined(values, numbers.pop() if len(numbers) == 1 else None)

    def _joined(self, operands: Sequence[_Reach], number: float | None) -> _Reach:
        arguments = ends = 0
        for reach in operands:
            arguments, ends = arguments | reach.arguments, ends | reach.ends
        return _Reach(number, arguments, ends)

    def results(self, eqn: Any, operands: Sequence[_Reach]) -> Sequence[_Reach]:
        if eqn.primitive is sow_p:
            return operands[: eqn.params["n"]]
        name = eqn.primitive.name
        known = self._numbers.results(eqn, [reach.number for reach in operands])
        joined = self._joined(operands, None)
        found = []
        for i, v in enumerate(eqn.outvars):
            number = known[i] if i < len(known) else None
            ends = (
                name in _STOPS or number is not None or not jnp.issubdtype(getattr(v.aval, "dtype", int), jnp.inexact)
            )
            reach = joined._replace(number=number)
            if ends and joined.arguments:
                bit = self._bits.setdefault((joined.arguments, id(eqn)), len(self.ends))
                self.ends += [(joined.arguments, eqn)] * (bit == len(self.ends))
                reach = _Reach(number, 0, joined.ends | 1 << bit)
            found.append(reach)
        return found

    def visit(self, eqn: Any, operands: Sequence[_Reach]) -> None:
        if eqn.primitive is sow_p and eqn.params["sown"].kind == "loss":
            self.loss.append(operands[0])
        if eqn.primitive.name in CALLS:
            self.calls.update((id(inner), eqn) for inner in open_jaxpr(called_jaxpr(eqn)).eqns)


def derivative_ends(program: ClosedJaxpr, arguments: Collection[int]) -> Mapping[int, list[list[Any]]]:
    """For each of these arguments, the equations that end its derivative on the way to the loss, and the calls around.

    Empty for an argument whose derivative reaches the loss, so that it is not known why its gradient is zero.
    """
    domain = _Reaches()
    n = len(program.jaxpr.invars)
    forward(program, domain, [_Reach(None, 1 << i if i in arguments else 0) for i in range(n)])
    found: dict[int, list[list[Any]]] = defaultdict(list)
    for reach in domain.loss:
        for bit in bits_of(reach.ends):
            mask, eqn = domain.ends[bit]
            chain = [eqn]
            while id(chain[-1]) in domain.calls:
                chain.append(domain.calls[id(chain[-1])])
            for i in bits_of(mask & ~reach.arguments):
                found[i].append(chain)
    return found


class Followed(NamedTuple):
    moves: Moves
    results: list[Move]


def follow(program: ClosedJaxpr, numbers: Mapping[int, float], is_of_first_turn: bool = False) -> Followed:
    """Follow a program in which gradients are sown, given the values of some scalar arguments, as of a count."""
    moves = Moves(is_of_first_turn)
    start = [
        Move(Value(number=numbers[i])) if i in numbers else Move(Value({i: WHOLE}), 1 << i)
        for i in range(len(program.jaxpr.invars))
    ]
    return Followed(moves, forward(program, moves, start))


def donated(program: ClosedJaxpr) -> frozenset[int]:
    """The numbers of the arguments that the jitted function inside donates."""
    places = {v: i for i, v in enumerate(program.jaxpr.invars)}
    return frozenset(
        places[x]
        for eqn in program.jaxpr.eqns
        for x, is_donated in zip(eqn.invars, eqn.params.get("donated_invars", ()), strict=False)
        if is_donated and not isinstance(x, Literal) and x in places
    )
