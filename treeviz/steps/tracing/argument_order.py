"""The order in which a program first uses its arguments. For the parameters of a training step, that of the layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr

from treeviz.steps.tracing.dataflow import Domain, forward
from treeviz.steps.tracing.primitives import RESHAPES, SAME_LEAF
from treeviz.steps.tracing.sow import sow_p


def argument_order(program: ClosedJaxpr) -> list[int]:
    """The numbers of the program's arguments in the order of their first use; unused ones are left out.

    A change of dtype, shape, order or place does not count, since a step often casts all parameters first.
    """
    domain = _Argument()
    forward(program, domain, range(len(program.jaxpr.invars)))
    return list(domain.order)


class _Argument(Domain[int | None]):
    """What is known is the number of the argument that a value is, but for its dtype, shape, order or place."""

    def __init__(self) -> None:
        self.order: dict[int, None] = {}

    def unknown(self, atom: Any) -> None:
        return None

    def results(self, eqn: Any, operands: Sequence[int | None]) -> Sequence[int | None]:
        return operands if _moves(eqn) else ()

    def join(self, values: Sequence[int | None], atom: Any) -> int | None:
        """Of a loop, its first turn counts: in an epoch, the parameters of the later turns are new ones."""
        return values[0]

    def visit(self, eqn: Any, operands: Sequence[int | None]) -> None:
        if not _moves(eqn) and eqn.primitive.name not in self.enters:
            self.order.update((argument, None) for argument in operands if argument is not None)


def _moves(eqn: Any) -> bool:
    return eqn.primitive.name in SAME_LEAF or eqn.primitive.name in RESHAPES or eqn.primitive is sow_p
