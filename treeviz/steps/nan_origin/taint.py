"""The non-finite values of a replay, and the equation where each began."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
from jax.extend.core import Jaxpr, Literal

from treeviz.steps.nan_origin.nonfinite import NAN, bits_of, bits_of_constant, is_inexact
from treeviz.steps.tracing.primitives import CASTS, KEEPS_SIGN_OF_INFINITY

_READ_AT_ONCE = 256  # equations whose checks are transferred together


class Within(NamedTuple):
    """The position of a jaxpr that is being run.

    Attributes:
      outer, eqn: The equation that holds the jaxpr, and the position of that; None for the program itself.
      iterations: Those of the enclosing loops, the outermost first: ("scan", 7).
    """

    jaxpr: Jaxpr
    outer: Within | None = None
    eqn: Any = None
    iterations: tuple[tuple[str, int], ...] = ()

    def inside(self, eqn: Any, jaxpr: Jaxpr, step: int | None = None) -> Within:
        more = () if step is None else ((eqn.primitive.name, step),)
        return Within(jaxpr, self, eqn, self.iterations + more)


class Site(NamedTuple):
    """One run of one equation; or an argument of the program, with the number of its leaf and an order below zero."""

    order: int
    eqn: Any = None
    within: Within | None = None
    leaf: int = -1


@dataclass(eq=False)
class Taint:
    """The non-finite numbers in a value, and where they began. Holds no array.

    Attributes:
      bits: `NAN`, `POSINF` and `NEGINF` of `nonfinite`, combined.
      origin: None if the value is finite, or infinite by a constant of the program.
      became: Where an infinity turned into NaN.
    """

    bits: int = 0
    origin: Site | None = None
    became: Site | None = None


_FINITE = Taint()


class Value(NamedTuple):
    array: Any
    taint: Taint = _FINITE


def taint_of_literal(literal: Literal) -> Taint:
    bits = bits_of_constant(literal.val)
    return Taint(bits) if bits else _FINITE


class _Check(NamedTuple):
    """A check whose result is still on the device.

    Attributes:
      operands: The taints of what the value was computed from.
      site: Where it was computed; None for a constant.
    """

    taint: Taint
    bits: jax.Array
    operands: list[Taint]
    site: Site | None


@dataclass
class Checks:
    """Checks values, and finds the origins of non-finite ones.

    Attributes:
      first_nan: The first value with a NaN that does not come from a constant, even if no result depends on it.
      began: Every site with finite operands and a non-finite result.
      constant_nans: The orders of the sites whose NaN came from a constant operand.
      waiting: Checks that are not read yet.
    """

    first_nan: Taint | None = None
    began: list[Site] = field(default_factory=list)
    constant_nans: set[int] = field(default_factory=set)
    waiting: list[_Check] = field(default_factory=list)

    def add(self, x: Any, operands: list[Taint], site: Site | None) -> Taint:
        """The taint of a value, filled in by the next `read`: one transfer is made for many checks.

        Args:
          operands: The taints of what it was computed from.
          site: Where it was computed; None for a constant.
        """
        if not is_inexact(x) or not x.size:
            return _FINITE
        taint = Taint()
        self.waiting.append(_Check(taint, bits_of(x), operands, site))
        if len(self.waiting) >= _READ_AT_ONCE:
            self.read()
        return taint

    def read(self) -> None:
        waiting, self.waiting = self.waiting, []
        for check, bits in zip(waiting, jax.device_get([check.bits for check in waiting]), strict=True):
            self.judge(check.taint, int(bits), check.operands, check.site)

    def judge(self, taint: Taint, bits: int, operands: Sequence[Taint], site: Site | None) -> None:
        """Set the taint of a result from its bits and the taints of the operands."""
        taint.bits = bits
        if not bits or site is None:
            return
        before = 0
        for operand in operands:
            before |= operand.bits
        name = site.eqn.primitive.name
        if bits & NAN and before & NAN:
            # A constant NaN in another dtype is still a constant.
            _inherit(taint, [t for t in operands if t.bits & NAN], None if name in CASTS else site)
            if taint.origin is site:  # some functions, as `jnp.var`, have a constant NaN that they seldom select
                self.constant_nans.add(site.order)
        elif bits & NAN:
            _inherit(taint, [t for t in operands if t.bits], site)
            if taint.origin is not site:
                taint.became = site
        elif not before or (name in KEEPS_SIGN_OF_INFINITY and not before & NAN and bits & ~before):
            taint.origin = site
        else:
            _inherit(taint, operands, None)
        if bits & NAN and taint.origin is not None and taint.origin.order not in self.constant_nans:
            self.first_nan = self.first_nan or taint
        if taint.origin is site:
            self.began.append(site)


def _inherit(taint: Taint, operands: Sequence[Taint], otherwise: Site | None) -> None:
    """Take the earliest origin among the operands; `otherwise` if none is known."""
    known = [t for t in operands if t.origin is not None]
    first = min(known, key=lambda t: t.origin.order, default=None)  # type: ignore[union-attr]
    taint.origin, taint.became = (otherwise, None) if first is None else (first.origin, first.became)
