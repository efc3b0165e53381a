"""The parameters of a whole step, and what it adds to them: measured where they come in and where they go out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr

from treeviz.analysis.gradient_owners import Owned
from treeviz.analysis.marks import Found, Mark
from treeviz.analysis.params_beside import params_beside
from treeviz.analysis.source_names import beside
from treeviz.analysis.successors import Path, successors

_MOST_NAMED = 3


def step_changes(
    program: ClosedJaxpr,
    arguments: Sequence[Any],
    results: Sequence[Any],
    argument_paths: Sequence[Path],
    result_paths: Sequence[Path],
    reduce: Callable[[Mark, Sequence[Any]], jax.Array],
    found: Sequence[Found],
    names: Sequence[Owned | None],
) -> tuple[list[tuple[Owned, jax.Array]], list[str]]:
    """Measure the "params" and "updates" that belong to the gradients of a step, but for those that change in a loop.

    Args:
      found, names: The gradients, and what they are called; None of those that nobody asks for.

    Returns:
      What was measured, with its words; and of what was not, why.
    """
    measured: list[tuple[Owned, jax.Array]] = []
    notes: list[str] = []
    taken = {name.source.name for name in names if name is not None}
    for f, name in zip(found, names, strict=True):
        if name is None or f.of is not None or f.mark.kind == "tap":
            continue
        params, updates = (beside(name.source.name, kind) for kind in ("params", "updates"))
        if params in taken:
            continue
        parts, why_not = _of_gradient(program, arguments, results, argument_paths, result_paths, reduce, f, name)
        notes += [f"{updates} are not measured: {why_not}"] if why_not else []
        for part, words in parts:
            called = params if part.mark.kind == "params" else updates
            taken.add(called)
            measured.append((name._replace(source=part.mark.source._replace(name=called), axes=part.axes), words))
    return measured, notes


def _of_gradient(
    program, arguments, results, argument_paths, result_paths, reduce, found: Found, name: Owned
) -> tuple[list, str]:
    if not name.arguments:
        return [], "nobody knows which argument of the step holds the parameters"
    if found.is_moving:
        return [], "the parameters change in a loop whose steps cannot be told apart"
    old = [arguments[i] for i in name.arguments]
    where = successors(program, name.arguments, argument_paths, result_paths)
    new = [results[i] for i in where if i is not None]
    parts = params_beside(reduce, found, old, new if len(new) == len(old) else None)
    if not parts:
        return [], "the gradients are not of whole parameters"
    if len(parts) == 2:
        return parts, ""
    if len(new) == len(old):
        return parts, "the new parameters are sharded in another way than the old"
    owner = "" if "," in name.owner else name.owner
    paths = [path for path, has in zip(name.source.paths, name.source.has_number, strict=True) if has]
    lost = [owner + path for path, at in zip(paths, where, strict=True) if at is None]
    more = f" and {len(lost) - _MOST_NAMED} more" if len(lost) > _MOST_NAMED else ""
    of = ", ".join(lost[:_MOST_NAMED])
    return parts, f"no result of the step is for sure the new {of}{more}"
