"""Count NaN and infinities in the results of a step: in the loss, in other small results, and in small new parameters.

A loss can be NaN while all gradients are finite, and an optimizer can make a NaN of finite gradients. So results are
looked at in the same program, as far as that costs next to nothing: results of at most `MOST_ELEMENTS` numbers, and of
the new parameters the smallest, which are also compared with the old ones. What else a step is given and returns, as
the state of an optimizer, is not looked at, nor is what explicit axes of a mesh shard.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from treeviz.steps.barrier import barrier
from treeviz.steps.measure import MeasuredTree
from treeviz.steps.names import RESULT_KINDS, name_of_result
from treeviz.steps.partial_sums import flat
from treeviz.steps.reduce import blocks
from treeviz.steps.tracing.dataflow import Domain, forward
from treeviz.steps.tracing.new_params import Path
from treeviz.steps.tracing.primitives import DEVICE_SUMS, RESHAPES, SAME_LEAF, shape_and_dtype, size_of
from treeviz.steps.tracing.sow import sow_p
from treeviz.tree.safe_repr import printable

Count = Callable[[Sequence[jax.Array], Sequence[jax.Array | None]], Any]

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
    count: Count | None = None,
) -> tuple[list[MeasuredTree], Any]:
    """Count NaN and infinities in the small results of a traced program.

    Args:
      arguments, results: Their values, in the order of their paths.
      shown_paths: The paths of the results that the user knows.
      params: The paths of the parameters, by the numbers of the arguments that hold them.
      count: Takes the bits of the results, and those before, and gives what is returned in place of the words.

    Returns:
      The results that are looked at, as one tree for each kind; and uint32[of all of them]: how many numbers are not
      finite, times 2**16, plus how many of these are NaN; of a new parameter, plus 2**31 if it is not the old one,
      or may not be, where numbers are not finite.
    """
    kinds = _kinds(program, argument_paths, result_paths, params)
    found = {i: (kind, shown_paths[i] if at is None else params[at]) for i, (kind, at) in kinds.items()}
    chosen = {
        kind: _smallest(program, {i: p for i, (k, p) in found.items() if k == kind}, kind) for kind in RESULT_KINDS
    }
    trees = [_described(program, paths, kind) for kind, paths in chosen.items() if paths]
    places = [i for paths in chosen.values() for i in paths]
    if not places:
        return [], None
    values = [barrier(flat(results[i])) for i in places]
    old = [None if (at := kinds[i][1]) is None else _bits(barrier(flat(arguments[at]))) for i in places]
    return trees, (count or _words)([_bits(x) for x in values], old)


def _words(values: Sequence[jax.Array], old: Sequence[jax.Array | None]) -> jax.Array:
    """The word of each value, of bits of floats. They are stacked, since XLA compiles and runs each reduction apart.

    Written in `lax`, which traces in half the time.
    """
    words, order = [], []
    others = [x if before is None else before for x, before in zip(values, old, strict=True)]
    for dtype in dict.fromkeys(x.dtype for x in values):
        alike = [i for i, x in enumerate(values) if x.dtype == dtype]
        for block in map(sorted, blocks(alike, [values[i].size for i in alike])):
            new, before = (_stacked([xs[i] for i in block]) for xs in (values, others))
            infinity = np.array(np.inf, f"f{dtype.itemsize}").view(dtype)
            size = lax.bitwise_and(new, dtype.type(np.iinfo(dtype).max >> 1))
            bad = lax.add(lax.shift_left(_one(lax.ge(size, infinity)), np.uint32(16)), _one(lax.gt(size, infinity)))
            starts = np.uint32(0), np.uint32(0)
            n_bad, is_new = lax.reduce((bad, _one(lax.ne(new, before))), starts, _add_and_or, (1,))
            words.append(lax.add(n_bad, lax.shift_left(is_new, np.uint32(31))))
            order += block
    together = lax.concatenate(words, 0) if len(words) > 1 else words[0]
    return together if order == sorted(order) else together[np.argsort(order)]


def _add_and_or(left: tuple, right: tuple) -> tuple:
    return lax.add(left[0], right[0]), lax.bitwise_or(left[1], right[1])


def _one(mask: jax.Array) -> jax.Array:
    return lax.convert_element_type(mask, np.uint32)


def _bits(x: jax.Array) -> jax.Array:
    """The bits of at least float32, with the NaN and infinities of complex numbers."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        bad = jnp.where(jnp.isnan(x), np.nan, np.inf).astype(x.real.dtype)
        x = jnp.where(jnp.isfinite(x), x.real - x.imag, bad)
    x = lax.convert_element_type(x, np.promote_types(x.dtype, np.float32) if x.dtype.itemsize > 2 else np.float32)
    return lax.bitcast_convert_type(x, np.uint32 if x.dtype.itemsize == 4 else np.uint64)


def _stacked(values: Sequence[jax.Array]) -> jax.Array:
    """[k, the longest]: each padded with zeros."""
    length = max(x.size for x in values)
    rows = [lax.pad(x, x.dtype.type(0), [(0, length - x.size, 0)]) for x in values]
    return lax.reshape(lax.concatenate(rows, 0), (len(rows), length))


def _smallest(program: ClosedJaxpr, paths: Mapping[int, str], kind: str) -> dict[int, str]:
    """The smallest of the results, with their paths, in order."""
    most = _MOST_PARAMS if kind == "parameter" else _MOST_OTHERS
    return {i: paths[i] for i in sorted(sorted(paths, key=lambda i: size_of(program.jaxpr.outvars[i]))[:most])}


def _described(program: ClosedJaxpr, paths: Mapping[int, str], kind: str) -> MeasuredTree:
    avals: list[Any] = [program.jaxpr.outvars[i].aval for i in paths]
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
            places.setdefault((*map(str, path[1:]), shape_and_dtype(v)), i)
    is_of_loss = forward(program, _OfLoss(), [False] * len(arguments))
    unchanged = set(arguments)
    kinds: dict[int, tuple[str, int | None]] = {}
    for i, (path, v) in enumerate(zip(result_paths, results, strict=True)):
        if isinstance(v, Literal) or not _is_small(v.aval):
            continue
        keys = list(map(str, path))
        at = next((places[k] for n in range(len(keys) + 1) if (k := (*keys[n:], shape_and_dtype(v))) in places), None)
        if is_of_loss[i] or (at is None and "loss" in "".join(keys).lower()):
            kinds[i] = "loss", None
        elif at is None and v not in unchanged:
            kinds[i] = "other", None
        elif at is not None and at in params and _is_small(arguments[at].aval):
            kinds[i] = "parameter", at
    if "loss" not in {kind for kind, _ in kinds.values()}:  # it was computed in another way
        others = [i for i, (kind, _) in kinds.items() if kind == "other"]
        kinds.update((i, ("scalar", None)) for i in others if size_of(results[i]) == 1)
    return kinds


def _is_small(aval: Any) -> bool:
    spec = getattr(getattr(aval, "sharding", None), "spec", ())
    if any(axis is not None for axis in spec):  # by explicit axes: these cannot be stacked
        return False
    return jnp.issubdtype(getattr(aval, "dtype", bool), jnp.inexact) and 0 < aval.size <= MOST_ELEMENTS


class _OfLoss(Domain[bool]):
    """What is known is whether a value is that of a differentiated function, or a sum with it."""

    def unknown(self, atom: Any) -> bool:
        return False

    def given(self, jaxpr: Jaxpr) -> dict[Any, bool]:
        """The loss itself, which may be returned as it was before it is sown."""
        losses = (eqn for eqn in jaxpr.eqns if eqn.primitive is sow_p and eqn.params["sown"].kind == "loss")
        return {v: True for eqn in losses for v in eqn.invars if not isinstance(v, Literal)}

    def results(self, eqn: Any, operands: Sequence[bool]) -> Sequence[bool]:
        is_linear = eqn.primitive is sow_p or eqn.primitive.name in _LINEAR
        return [is_linear and any(operands)] * len(eqn.outvars)

    def join(self, values: Sequence[bool], atom: Any) -> bool:
        return any(values)
