"""Measure the parameters that a gradient belongs to and their updates, for a whole step or for one step of a loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr

from treeviz.steps.barrier import barrier
from treeviz.steps.measured_tree import with_dtypes
from treeviz.steps.names import sibling_name
from treeviz.steps.tracing.attribution import Attribution
from treeviz.steps.tracing.new_params import Path, match_new_params
from treeviz.steps.tracing.sow import Reaped, Sown
from treeviz.steps.tracing.vmap_members import measure_members, member_shapes

_MAX_NAMED = 3  # leaves in a note; the others are counted

Reduce = Callable[[Sown, Sequence[Any]], jax.Array]


def measure_params(
    reduce: Reduce, reaped: Reaped, old: Sequence[Any], new: Sequence[Any] | None
) -> list[tuple[Reaped, jax.Array]]:
    """Measure the "params" that a gradient belongs to, and the "updates" if the new values are known.

    Args:
      old, new: The parameters before and after the step, one for each sown value.

    Returns:
      What was measured, with its packed rows. Empty if the shapes are not those of the gradient, e.g. of a slice.
    """
    source = reaped.sown.source
    shapes = [shape for shape, has in zip(source.shapes, source.has_number, strict=True) if has]
    if [",".join(map(str, shape)) for shape in member_shapes(old, reaped.batched)] != shapes:
        return []
    source = with_dtypes(source, old)
    measured = []
    for kind, values in (("params", old), ("updates", None if new is None else differences(new, old))):
        if values is not None:
            sown = replace(reaped.sown, kind=kind, source=source._replace(name=kind))
            packed, axes = measure_members(lambda *values, sown=sown: reduce(sown, values), values, reaped.batched)
            measured.append((replace(reaped, sown=sown, axes=axes, gradient=reaped.sown), packed))
    return measured


def differences(new: Sequence[Any], old: Sequence[Any]) -> list[Any] | None:
    """`new - old`, at least in float32: the update after rounding. None if shapes or shardings differ."""
    if any(a.shape != b.shape or _sharding(a) != _sharding(b) for a, b in zip(new, old, strict=True)):
        return None
    # The barrier keeps XLA from fusing the subtraction into what computes the new values, and so from changing these.
    pairs = [barrier((lax.stop_gradient(a), lax.stop_gradient(b))) for a, b in zip(new, old, strict=True)]
    return [_at_least_float32(a) - _at_least_float32(b) for a, b in pairs]


def _at_least_float32(x: Any) -> Any:
    return x.astype(jnp.float32) if jnp.dtype(x.dtype).itemsize < 4 else x


def _sharding(x: Any) -> Any:
    """The sharding in the type of a traced value. Only meshes with explicit axes have one."""
    sharding = getattr(jax.typeof(x), "sharding", None) if hasattr(jax, "typeof") else None
    return tuple(getattr(sharding, "spec", ()))


def measure_step_params(
    program: ClosedJaxpr,
    arguments: Sequence[Any],
    results: Sequence[Any],
    argument_paths: Sequence[Path],
    result_paths: Sequence[Path],
    reduce: Reduce,
    reaped: Sequence[Reaped],
    attributions: Sequence[Attribution | None],
) -> tuple[list[tuple[Attribution, jax.Array]], list[str]]:
    """Measure the "params" and "updates" of a step's gradients, except those that `reap` has measured in a loop.

    Args:
      reaped, attributions: The gradients. An attribution of None is that of a gradient that is not recorded.

    Returns:
      What was measured, with its packed rows; and notes for the user: what was not measured, and why.
    """
    step = _Step(program, arguments, results, argument_paths, result_paths)
    measured: list[tuple[Attribution, jax.Array]] = []
    notes: list[str] = []
    taken = {attribution.source.name for attribution in attributions if attribution is not None}
    for gradient, attribution in zip(reaped, attributions, strict=True):
        if attribution is None or gradient.gradient is not None or gradient.sown.kind == "tap":
            continue
        names = {kind: sibling_name(attribution.source.name, kind) for kind in ("params", "updates")}
        if names["params"] in taken:
            continue
        parts, why_not = _parts_of_gradient(step, reduce, gradient, attribution)
        notes += [f"{names['updates']} are not measured: {why_not}"] if why_not else []
        for part, packed in parts:
            name = names[part.sown.kind]
            taken.add(name)
            measured.append((attribution._replace(source=part.sown.source._replace(name=name), axes=part.axes), packed))
    return measured, notes


class _Step(NamedTuple):
    program: ClosedJaxpr
    arguments: Sequence[Any]
    results: Sequence[Any]
    argument_paths: Sequence[Path]
    result_paths: Sequence[Path]


def _parts_of_gradient(
    step: _Step, reduce: Reduce, gradient: Reaped, attribution: Attribution
) -> tuple[list[tuple[Reaped, jax.Array]], str]:
    """What can be measured for one gradient; and the reason if that does not include the updates."""
    if not attribution.arguments:
        return [], "it is unknown which argument of the step holds the parameters"
    if gradient.changes_in_loop:
        return [], "the parameters change in a loop whose steps cannot be told apart"
    old = [step.arguments[i] for i in attribution.arguments]
    at = match_new_params(step.program, attribution.arguments, step.argument_paths, step.result_paths)
    new = [step.results[i] for i in at if i is not None]
    parts = measure_params(reduce, gradient, old, new if len(new) == len(old) else None)
    if not parts:
        return [], "the gradients are not of whole parameters"
    if len(parts) == 2:
        return parts, ""
    if len(new) == len(old):
        return parts, "the new parameters are sharded in another way than the old"
    owner = "" if "," in attribution.owner else attribution.owner
    source = attribution.source
    paths = [path for path, has in zip(source.paths, source.has_number, strict=True) if has]
    lost = [owner + path for path, i in zip(paths, at, strict=True) if i is None]
    more = f" and {len(lost) - _MAX_NAMED} more" if len(lost) > _MAX_NAMED else ""
    return parts, f"no result of the step is for sure the new {', '.join(lost[:_MAX_NAMED])}{more}"
