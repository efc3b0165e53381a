"""Equations that are added to a program as they are, for which JAX finds no shapes and types again.

That is what takes longest when a traced program is run in another trace. JAX does so itself, where it inlines programs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from jax.extend import source_info_util
from jax.extend.core import Literal

from treeviz.steps.tracing.jax_private import current_trace

_METHODS = {  # of what traces a program, with their parameters, since jax 0.8 or so
    "emit_eqn": ("self", "in_tracers", "out_avals", "primitive", "params", "effects", "source_info", "ctx"),
    "new_const": ("self", "c", "source_info", "aval"),
}

Add = Callable[[Any, Sequence[Any]], Sequence[Any] | None]


def adds_copies() -> Add:
    """A function that adds an equation to the program that is traced now, and returns its results; None if it cannot.

    It takes the equation, and its operands in this program.
    """
    trace = current_trace()
    if not _can_add(type(trace)):
        return lambda eqn, operands: None
    names = source_info_util.current_name_stack()

    def add(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
        if eqn.effects or _is_high(eqn):
            return None
        source, atoms = eqn.source_info.replace(name_stack=names + eqn.source_info.name_stack), []
        for atom, x in zip(eqn.invars, operands, strict=True):
            if isinstance(atom, Literal):
                x = trace.new_const(atom.val, source, atom.aval)
            elif getattr(x, "_trace", None) is not trace:
                return None
            atoms.append(x)
        types = [v.aval for v in eqn.outvars]
        return trace.emit_eqn(atoms, types, eqn.primitive, eqn.params, eqn.effects, source, eqn.ctx)

    return add


def _is_high(eqn: Any) -> bool:
    """Whether JAX lowers it to other primitives before it compiles it, for which it marks the program (jax 0.8)."""
    is_high = getattr(eqn.primitive, "is_high", None)
    return is_high is not None and bool(is_high(*(atom.aval for atom in eqn.invars), **eqn.params))


@cache
def _can_add(kind: type) -> bool:
    found = {name: getattr(kind, name, None) for name in _METHODS}
    return all(f is not None and tuple(inspect.signature(f).parameters) == _METHODS[name] for name, f in found.items())
