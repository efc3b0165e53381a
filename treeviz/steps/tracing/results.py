"""Count NaN and infinities in the results of a step: in the loss, in other small results, and in small new parameters.

A loss can be NaN while all gradients are finite, and an optimizer can make a NaN of finite gradients. So results are
looked at in the same program, as far as that costs next to nothing: results of at most `MOST_ELEMENTS` numbers, and of
the new parameters the smallest, which are also compared with the old ones. What else a step is given and returns, as
the state of an optimizer, is not looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal

from treeviz.steps.measure import MeasuredTree
from treeviz.steps.names import RESULT_KINDS, name_of_result
from treeviz.steps.reduce import barrier, blocks
from treeviz.steps.tracing.new_params import Path
from treeviz.steps.tracing.primitives import (
    DEVICE_SUMS,
    RESHAPES,
    SAME_LEAF,
    WHILE,
    inner_jaxprs,
    open_jaxpr,
    programs,
)
from treeviz.steps.tracing.sow import sow_p
from treeviz.tree.safe_repr import printable

MOST_ELEMENTS = 1 << 12  # of a result; less than 2**16, since two counts share a word
_MOST_PARAMS, _MOST_OTHERS = 16, 64  # results

# A result that these make of a loss is the loss: a mean over devices or micro-batches, or a sum with earlier ones.
_LINEAR = SAME_LEAF | RESHAPES | DEVICE_SUMS | {"add", "add_any", "sub", "mul", "div", "neg", "reduce_sum", "slice"}
_LINEAR |= {"concatenate", "dynamic_slice", "dynamic_update_slice"}


def count_in_results(
    program: ClosedJaxpr,
    arguments: Sequence[Any],
    results: Sequence[Any],
    argument_paths: Sequence[Path],
    result_paths: Sequence[Path],
    shown_paths: Sequence[str],
    params: Mapping[int, str],
) -> tuple[list[MeasuredTree], jax.Array | None]:
    """Count NaN and infinities in the small results of a traced program.

    Args:
      arguments, results: Their values, in the order of their paths.
      shown_paths: The paths of the results that the user knows.
      params: The paths of the parameters, by the numbers of the arguments that hold them.

    Returns:
      The results that are looked at, as one tree for each kind; and uint32[of all of them]: how many numbers are not
      finite, times 2**16, plus how many of these are NaN; of a new parameter, plus 2**31 if it is not the old one.
    """
    kinds = _kinds(program, argument_paths, result_paths, params)
    found = {i: (kind, shown_paths[i] if at is None else params[at]) for i, (kind, at) in kinds.items()}
    chosen = {
        kind: _smallest(program, {i: p for i, (k, p) in found.items() if k == kind}, kind) for kind in RESULT_KINDS
    }
    trees = [_described(program, paths, kind) for kind, paths in chosen.items() if paths]
    words = []
    for paths in chosen.values():
        if paths:
            old = [arguments[at] for at in (kinds[i][1] for i in paths) if at is not None]
            words.append(_words([results[i] for i in paths], old))
    return trees, jnp.concatenate(words) if words else None


def _words(values: Sequence[Any], old: Sequence[Any]) -> jax.Array:
    """The word of each value. They are stacked, since XLA CPU takes some microseconds for each reduction.

    Args:
      old: What the values may be equal to; empty if nothing.
    """
    values, old = ([_real(barrier(lax.stop_gradient(x))) for x in xs] for xs in (values, old))
    words, order = [], []
    for dtype in dict.fromkeys(x.dtype for x in values):
        alike = [i for i, x in enumerate(values) if x.dtype == dtype]
        for block in blocks(alike, [values[i].size for i in alike]):
            new = _stacked([values[i] for i in block])
            bad = jnp.where(jnp.isinf(new), np.uint32(1 << 16), np.uint32(0))
            bad = jnp.where(jnp.isnan(new), np.uint32(1 + (1 << 16)), bad)
            is_new = new != _stacked([old[i] for i in block]) if old else jnp.zeros(new.shape, bool)
            parts, starts = (bad, is_new.astype(np.uint32)), (np.uint32(0), np.uint32(0))
            n_bad, is_new = lax.reduce(parts, starts, lambda a, b: (a[0] + b[0], a[1] | b[1]), (1,))
            words.append(n_bad | is_new << np.uint32(31))
            order += block
    return jnp.concatenate(words)[np.argsort(order)]


def _real(x: Any) -> Any:
    """At least float32, with the NaN and infinities of complex numbers."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        bad = jnp.where(jnp.isnan(x), np.nan, np.inf).astype(x.real.dtype)
        x = jnp.where(jnp.isfinite(x), x.real - x.imag, bad)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _stacked(values: Sequence[Any]) -> Any:
    """[k, the longest]: each padded with zeros."""
    length = max(x.size for x in values)
    return jnp.stack([_padded(x, length) for x in values])


def _padded(x: Any, length: int) -> Any:
    return lax.pad(lax.reshape(x, (x.size,)), np.zeros((), x.dtype), [(0, length - x.size, 0)])


def _smallest(program: ClosedJaxpr, paths: Mapping[int, str], kind: str) -> dict[int, str]:
    """The smallest of the results, with their paths, in order."""
    most = _MOST_PARAMS if kind == "parameter" else _MOST_OTHERS
    return {i: paths[i] for i in sorted(sorted(paths, key=lambda i: program.jaxpr.outvars[i].aval.size)[:most])}


def _described(program: ClosedJaxpr, paths: Mapping[int, str], kind: str) -> MeasuredTree:
    avals = [program.jaxpr.outvars[i].aval for i in paths]
    return MeasuredTree(
        name_of_result(kind),
        tuple(map(printable, paths.values())),
        tuple(aval.size for aval in avals),
        tuple(str(aval.dtype) for aval in avals),
        (True,) * len(avals),
        tuple(",".join(map(str, aval.shape)) for aval in avals),
    )


def _kinds(
    program: ClosedJaxpr, argument_paths: Sequence[Path], result_paths: Sequence[Path], params: Collection[int]
) -> dict[int, tuple[str, int | None]]:
    """The kind of each result that may be looked at, and the number of the parameter whose new value it is."""
    arguments, results = program.jaxpr.invars, program.jaxpr.outvars
    places: dict[tuple, int] = {}
    for i, (path, v) in enumerate(zip(argument_paths, arguments, strict=True)):
        if len(path) > 1 or i in params:  # else it is known by its shape alone
            places.setdefault((*map(str, path[1:]), _aval(v)), i)
    is_of_loss = _of_loss(program, [False] * len(arguments))
    unchanged = set(arguments)
    kinds: dict[int, tuple[str, int | None]] = {}
    for i, (path, v) in enumerate(zip(result_paths, results, strict=True)):
        if isinstance(v, Literal) or not _is_small(v.aval):
            continue
        keys = list(map(str, path))
        at = next((places[k] for n in range(len(keys) + 1) if (k := (*keys[n:], _aval(v))) in places), None)
        if is_of_loss[i] or (at is None and "loss" in "".join(keys).lower()):
            kinds[i] = "loss", None
        elif at in params or (at is None and v not in unchanged):
            kinds[i] = "other" if at is None else "parameter", at
    if "loss" not in {kind for kind, _ in kinds.values()}:  # it was computed in another way
        others = [i for i, (kind, _) in kinds.items() if kind == "other"]
        kinds.update((i, ("scalar", None)) for i in others if results[i].aval.size == 1)
    return kinds


def _aval(v: Any) -> tuple:
    return v.aval.shape, getattr(v.aval, "dtype", None)


def _is_small(aval: Any) -> bool:
    return jnp.issubdtype(getattr(aval, "dtype", bool), jnp.inexact) and 0 < aval.size <= MOST_ELEMENTS


def _of_loss(program: Any, is_of_loss: Sequence[bool]) -> list[bool]:
    """Whether each result of a program is the value of a differentiated function, or a sum with it."""
    jaxpr = open_jaxpr(program)
    known = {v for v, is_of in zip(jaxpr.invars, is_of_loss, strict=True) if is_of}
    for eqn in jaxpr.eqns:
        if eqn.primitive is sow_p and eqn.params["sown"].kind == "loss":
            known.update(v for v in eqn.invars if not isinstance(v, Literal))  # which may be returned as it is
    for eqn in jaxpr.eqns:
        operands = [not isinstance(v, Literal) and v in known for v in eqn.invars]
        if eqn.primitive is sow_p or eqn.primitive.name in _LINEAR:
            found = [any(operands)] * len(eqn.outvars)
        elif eqn.primitive.name == WHILE:
            found = _of_loss(*programs(eqn, operands)[1])
        elif inner_jaxprs(eqn):
            of_programs = [_of_loss(*each) for each in programs(eqn, operands)]
            found = [any(of) for of in zip(*of_programs, strict=True)] or [False] * len(eqn.outvars)
        else:
            continue
        known.update(v for v, is_of in zip(eqn.outvars, found, strict=True) if is_of)
    return [not isinstance(v, Literal) and v in known for v in jaxpr.outvars]
