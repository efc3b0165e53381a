"""What an optimizer receives of a gradient: a sum over examples or micro-batches, unscaled and clipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal

from treeviz.steps.barrier import barrier
from treeviz.steps.tracing.primitives import bind
from treeviz.steps.tracing.sow import Sown

Scale = tuple  # (): 1; ("mul" or "div", scale, scalar); ("select", scalar, scales), where None is 0

SUMS = ("reduce_sum", "dot_general")
UNSCALED, CLIPPED = "unscaled", "clipped or scaled by its norm"


class Repeated(NamedTuple):
    """Equations that are computed once more.

    Attributes:
      result: The variable that is wanted.
      outside: For those of an inner jaxpr, what its operands are outside.
    """

    eqns: tuple[Any, ...]
    result: Any
    outside: Mapping[Any, Any] = MappingProxyType({})

    @property
    def reads(self) -> set[Any]:
        """The variables outside that are read."""
        made = {v for eqn in self.eqns for v in eqn.outvars}
        atoms = (x for eqn in self.eqns for x in eqn.invars if isinstance(x, Literal) or x not in made)
        found = (x if isinstance(x, Literal) else self.outside.get(x, x) for x in atoms)
        return {x for x in found if not isinstance(x, Literal)}

    def run(self, read: Callable[[Any], Any]) -> Any:
        values: dict[Any, Any] = {}
        for eqn in self.eqns:
            is_made = [not isinstance(x, Literal) and x in values for x in eqn.invars]
            operands = [
                values[x] if made else read(x if isinstance(x, Literal) else self.outside.get(x, x))
                for x, made in zip(eqn.invars, is_made, strict=True)
            ]
            values.update(zip(eqn.outvars, bind(eqn, operands), strict=True))
        return values[self.result]


class Form(NamedTuple):
    """A variable that is a gradient, or a sum of it, times scalars.

    Attributes:
      leaf: The number of the value in its tree.
      value: The variable that is scaled.
      axis: Of the examples or micro-batches in it, which `over` names.
      n: How many were summed.
      is_whole: The scale is complete: what is left out is the optimizer's.
    """

    sown: Sown
    leaf: int
    value: Any
    scale: Scale = ()
    axis: int | None = None
    over: str = ""
    n: int = 1
    how: tuple[str, ...] = ()
    is_whole: bool = True

    def scaled(self, scale: Scale, is_whole: bool, how: str = "") -> Form:
        more = (how,) if how and how not in self.how else ()
        return self._replace(scale=scale, is_whole=is_whole, how=self.how + more)

    def summed(self, value: Any, n: int) -> Form:
        how = (*self.how, f"summed over {self.over}")
        return self._replace(value=value, scale=(), axis=None, n=n, how=how, is_whole=True)


@dataclass(frozen=True, eq=False)
class Received:
    """What is received of a sown tree.

    Attributes:
      values: The variable of each value, before it is scaled.
      sums: What makes them, where these are sums over an axis or over calls.
      is_sown: They are the sown values themselves.
      scale: Of all values.
      how: What was done, in order.
    """

    values: tuple[Any, ...]
    sums: tuple[Repeated | None, ...]
    is_sown: bool
    scale: Scale
    how: tuple[str, ...]

    @property
    def reads(self) -> set[Any]:
        """The variables that are read for it."""
        of_sums = (x for made in self.sums if made is not None for x in made.reads)
        return {*self.values, *of_sums, *_scalars(self.scale)}

    def read(self, read: Callable[[Any], Any], copies: Mapping[Any, Any]) -> list[Any]:
        """The values. Sums are computed once more, as `treeviz.steps.tracing.repeats` explains, of copies if there are.

        Args:
          copies: Of what is summed, by variable.
        """

        def copied(x: Any) -> Any:
            is_copied = not isinstance(x, Literal) and x in copies
            return barrier(copies[x] if is_copied else read(x))

        return [read(v) if made is None else made.run(copied) for v, made in zip(self.values, self.sums, strict=True)]


def _scalars(scale: Scale) -> Iterator[Any]:
    for part in scale:
        if isinstance(part, tuple):
            yield from _scalars(part)
        elif part is not None and not isinstance(part, str | float):
            yield part


def factor(scale: Scale, read: Callable[[Any], Any]) -> Any:
    """The number that a scale is: float32."""
    if not scale:
        return jnp.float32(1)
    kind, *operands = scale
    if kind == "select":
        which, scales = operands
        cases = [jnp.float32(0) if each is None else factor(each, read) for each in scales]
        return lax.select_n(_scalar(read(which)), *cases)
    inner, by = factor(operands[0], read), operands[1]
    by = np.float32(by) if isinstance(by, float) else _magnitude(_scalar(read(by)))
    return inner * by if kind == "mul" else inner / by


def _magnitude(x: Any) -> Any:
    """Of a complex number; others as they are."""
    return (lax.abs(x) if jnp.iscomplexobj(x) else x).astype(jnp.float32)


def _scalar(x: Any) -> Any:
    return barrier(lax.stop_gradient(jnp.asarray(x))).reshape(())
