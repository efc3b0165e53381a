"""What an optimizer receives of a gradient: a sum over examples or micro-batches, unscaled and clipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal

from treeviz.steps.tracing.primitives import bind

Scale = tuple  # (): 1; ("mul" or "div", scale, scalar); ("select", scalar, scales), where None is 0

SUMS = ("reduce_sum", "dot_general")
UNSCALED, CLIPPED = "unscaled", "clipped or scaled by its norm"


@dataclass(frozen=True, eq=False)
class Received:
    """What is received of a sown tree.

    Attributes:
      values: The variable of each value, before it is scaled.
      sums: The equations that make them, where these are sums over an axis.
      is_sown: They are the sown values themselves.
      scale: Of all values.
      how: What was done, in order.
    """

    values: tuple[Any, ...]
    sums: tuple[Any | None, ...]
    is_sown: bool
    scale: Scale
    how: tuple[str, ...]

    @property
    def reads(self) -> set[Any]:
        """The variables that are read for it."""
        of_sums = (x for eqn in self.sums if eqn is not None for x in eqn.invars if not isinstance(x, Literal))
        return {*self.values, *of_sums, *_scalars(self.scale)}

    def read(self, read: Callable[[Any], Any], copies: Mapping[Any, Any]) -> list[Any]:
        """The values. Sums are computed once more, as `treeviz.steps.tracing.repeats` explains, of copies if there are.

        Args:
          copies: Of what is summed, by variable.
        """

        def copied(x: Any) -> Any:
            is_copied = not isinstance(x, Literal) and x in copies
            return lax.optimization_barrier(copies[x] if is_copied else read(x))

        return [
            read(v) if eqn is None else bind(eqn, [copied(x) for x in eqn.invars])[0]
            for v, eqn in zip(self.values, self.sums, strict=True)
        ]


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
    by = np.float32(by) if isinstance(by, float) else _scalar(read(by)).astype(jnp.float32)
    return inner * by if kind == "mul" else inner / by


def _scalar(x: Any) -> Any:
    return lax.optimization_barrier(lax.stop_gradient(jnp.asarray(x))).reshape(())
