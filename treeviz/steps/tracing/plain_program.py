"""The step itself, lowered in any thread from the program that its watched twin was traced as."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from treeviz.steps.tracing.arguments import split
from treeviz.steps.tracing.jit_options import JitOptions
from treeviz.steps.tracing.primitives import COND, SCAN, SHARD_MAP, WHILE, inner_jaxprs, open_jaxpr
from treeviz.steps.tracing.sow import sow_p
from treeviz.tree.tracers import Tracer, any_traced

_LOOPS = (COND, SCAN, SHARD_MAP, WHILE)


class TracedOtherwise(Exception):
    """The program is that of other arguments, or not quite that of the step."""


class PlainProgram:
    """Keeps the newest program of a step until it is lowered: what is sown in it is lowered as the identity."""

    def __init__(self) -> None:
        self._is_wanted = True
        self._newest: tuple[ClosedJaxpr, Any, Any] | None = None

    def traced(self, program: ClosedJaxpr, args: tuple, kwargs: dict[str, Any], out_tree: Any) -> None:
        if self._is_wanted:
            self._newest = program, _signature(args, kwargs), out_tree

    def drop(self) -> None:
        self._is_wanted, self._newest = False, None

    def lowering(self, options: JitOptions, args: tuple, kwargs: dict[str, Any]) -> Callable[[], Any] | None:
        """A function that lowers the step for these arguments, of which it keeps no array; None if none was traced."""
        newest = self._newest
        self.drop()
        if newest is None:
            return None
        program, signature, out_tree = newest

        def step(*args, **kwargs):
            if _signature(args, kwargs) != signature or not _is_that_of_the_step(program):
                raise TracedOtherwise
            return jax.tree.unflatten(out_tree, jaxpr_as_fun(program)(*split(args, kwargs)[0]))

        out = {} if options.out_shardings is None else {"out_shardings": options.out_shardings}
        jitted = jax.jit(step, **options.keywords, **out)
        args, kwargs = jax.tree.map(_described, (args, kwargs))
        return lambda: jitted.lower(*args, **kwargs)


def _signature(args: tuple, kwargs: dict[str, Any]) -> Any:
    """The structure, types and static values of arguments that are traced."""
    leaves, treedef = jax.tree.flatten((args, kwargs))
    return treedef, [getattr(x, "aval", None) if isinstance(x, Tracer) else x for x in leaves]


def _is_that_of_the_step(program: ClosedJaxpr) -> bool:
    """Whether XLA is given what it would be without `sow`, but for identities.

    Where a loop is differentiated, it keeps what was sown for the backward pass, besides the value that it equals.
    """

    def is_plain(jaxpr: Any, is_in_loop: bool = False) -> bool:
        for equation in open_jaxpr(jaxpr).eqns:
            if is_in_loop and equation.primitive is sow_p and equation.params["differentiated"]:
                return False
            within = is_in_loop or equation.primitive.name in _LOOPS
            if not all(is_plain(inner, within) for inner in inner_jaxprs(equation)):
                return False
        return True

    return is_plain(program) and not any_traced(program.consts)


def _described(x: Any) -> Any:
    """An array without its values. One that lies where JAX puts arrays by default may be put there by it."""
    if not isinstance(x, jax.Array):
        return x
    is_anywhere = x.sharding.device_set == {jax.local_devices()[0]}
    sharding = {} if is_anywhere else {"sharding": x.sharding}
    return jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=getattr(x, "weak_type", False), **sharding)
