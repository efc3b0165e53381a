"""Follow values through a traced program: one engine, and a `Domain` for each question.

A domain says what is known of a value, and how an equation passes it on. The engine keeps what is known of each
variable, enters calls, branches, loops and `shard_map`, joins branches, and repeats the body of a loop until what is
carried stays the same. `structural_zeros` is a small domain to read first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Generic, TypeVar

from jax.extend.core import Jaxpr, Literal

from treeviz.steps.tracing.primitives import (
    CALLS,
    COND,
    SCAN,
    SHARD_MAP,
    WHILE,
    consts_of,
    open_jaxpr,
    programs,
    scan_parts,
    while_parts,
)

V = TypeVar("V")


class Domain(Generic[V]):
    """One question about the values of a program. What is known of each is a `V`, which is never changed in place."""

    # The primitives whose programs are followed; the results of all others are what `results` returns.
    enters: AbstractSet[str] = CALLS | {COND, SCAN, SHARD_MAP, WHILE}
    is_of_first_turn = False  # of a loop only that is followed

    def unknown(self, atom: Any) -> V:
        """Stands for a value of which nothing is known."""
        raise NotImplementedError

    def constant(self, value: Any) -> V | None:
        """What is known of a constant; None: nothing."""
        return None

    def results(self, eqn: Any, operands: Sequence[V]) -> Sequence[V]:
        """What is known of the results of an equation; nothing is known of missing ones."""
        raise NotImplementedError

    def inside(self, eqn: Any, operands: Sequence[V]) -> Sequence[V]:
        """What is known of the operands of an equation in the programs that it holds."""
        return operands

    def join(self, values: Sequence[V], atom: Any) -> V:
        """What is known of a value that is one of several. Joining the same values again must return the same."""
        return values[0] if all(value == values[0] for value in values[1:]) else self.unknown(atom)

    def entry(self, xs: V) -> V:
        """What is known of an entry of an array that a scan takes apart."""
        return xs

    def stacked(self, y: V) -> V:
        """What is known of the array in which a scan puts its results."""
        return y

    def taken(self, index: V) -> int | None:
        """Which branch of a conditional with this index is taken; None: any of them may be."""
        return None

    def given(self, jaxpr: Jaxpr) -> Mapping[Any, V]:
        """What is known of variables of a jaxpr, whatever makes them."""
        return {}

    def visit(self, eqn: Any, operands: Sequence[V]) -> None:
        """Called for each equation, in order. In a loop: once, with what is known of its operands in all turns."""


class Followed(Generic[V]):
    """One jaxpr, open or closed, followed equation by equation from what is known of its arguments."""

    def __init__(self, domain: Domain[V], program: Any, arguments: Sequence[V]) -> None:
        self.domain, self.jaxpr = domain, open_jaxpr(program)
        self.visits: list[tuple[Any, list[V]]] = []  # also of equations inside others, with what is known of operands
        self.inside: dict[int, list[Followed[V]]] = {}  # the programs in each equation, by its id
        self._given = domain.given(self.jaxpr)
        self._known: dict[Any, V | None] = dict(zip(self.jaxpr.invars, arguments, strict=True))
        self._known.update(zip(self.jaxpr.constvars, map(domain.constant, consts_of(program)), strict=False))
        self._known.update(self._given)

    def read(self, atom: Any) -> V:
        known = self.domain.constant(atom.val) if isinstance(atom, Literal) else self._known.get(atom)
        return self.domain.unknown(atom) if known is None else known

    def step(self, eqn: Any) -> None:
        operands = []
        for x in eqn.invars:  # as `read`, which would be called for each
            known = self.domain.constant(x.val) if isinstance(x, Literal) else self._known.get(x)
            operands.append(self.domain.unknown(x) if known is None else known)
        self.visits.append((eqn, operands))
        if eqn.primitive.name in self.domain.enters:
            results: Sequence[V]
            known_inside = self.domain.inside(eqn, operands)
            self.inside[id(eqn)], results = followed_inside(self.domain, eqn, known_inside)
            for program in self.inside[id(eqn)]:
                self.visits += program.visits
        else:
            results = self.domain.results(eqn, operands)
        self._known.update(zip(eqn.outvars, results, strict=False))
        if self._given:
            self._known.update(self._given)

    def to(self, last: Any = None) -> Followed[V]:
        """Follow all equations before this one; None: to the end."""
        for eqn in self.jaxpr.eqns:
            if eqn is last:
                break
            self.step(eqn)
        return self

    @property
    def results(self) -> list[V]:
        return [self.read(x) for x in self.jaxpr.outvars]


def followed_inside(domain: Domain[V], eqn: Any, operands: Sequence[V]) -> tuple[list[Followed[V]], list[V]]:
    """The programs that an equation of `domain.enters` holds, followed, a loop in all turns; and its results."""
    name = eqn.primitive.name
    if name == SCAN:
        parts = scan_parts(eqn, operands)
        xs = [domain.entry(x) for x in parts.xs]
        body, carry = _in_all_turns(domain, parts.body, parts.consts, parts.carry, xs)
        return ([body], [*carry, *map(domain.stacked, body.results[len(carry) :])])
    if name == WHILE:
        parts = while_parts(eqn, operands)
        body, carry = _in_all_turns(domain, parts.body, parts.body_consts, parts.carry, ())
        condition = Followed(domain, parts.condition, [*parts.cond_consts, *carry]).to()
        return [condition, body], carry
    found, taken = programs(eqn, operands), domain.taken(operands[0]) if name == COND else None
    found = found if taken is None else found[taken : taken + 1]
    inside = [Followed(domain, program, arguments).to() for program, arguments in found]
    if len(inside) == 1:
        return inside, inside[0].results
    of_branches = zip(eqn.outvars, *[branch.results for branch in inside], strict=True)
    return inside, [domain.join(values, v) for v, *values in of_branches]


def _in_all_turns(
    domain: Domain[V], program: Any, consts: Sequence[V], carry: Sequence[V], xs: Sequence[V]
) -> tuple[Followed[V], list[V]]:
    """The body of a loop, and what is known of its carry in all turns."""
    carried = open_jaxpr(program).invars[len(consts) : len(consts) + len(carry)]
    carry = list(carry)
    while True:
        body = Followed(domain, program, [*consts, *carry, *xs]).to()
        if domain.is_of_first_turn:
            return body, body.results[: len(carry)]
        after = [domain.join(pair, v) for v, *pair in zip(carried, carry, body.results, strict=False)]
        if after == carry:
            return body, carry
        carry = after


def forward(program: Any, domain: Domain[V], arguments: Sequence[V], last: Any = None) -> list[V]:
    """Follow a program up to the equation `last`, visit its equations, and return what is known of its results."""
    followed = Followed(domain, program, arguments).to(last)
    for eqn, operands in followed.visits:
        domain.visit(eqn, operands)
    return followed.results
