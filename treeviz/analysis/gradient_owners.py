"""Which argument of a step a gradient belongs to, and what it is called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from treeviz.analysis.gradients import Source, source_of
from treeviz.analysis.marks import Axis, Found


class Argument(NamedTuple):
    """An argument of the step, by the name of its parameter."""

    name: str
    tree: Any


class Owned(NamedTuple):
    """A measured tree, and what it is the gradient of.

    Attributes:
      source: Its leaves, under the name by which the measurement knows it.
      owner: Python for it: "state.params"; empty if nobody knows.
      axes: What stands in front of its words.
    """

    source: Source
    owner: str
    axes: tuple[Axis, ...]


def owned(found: Sequence[Found], arguments: Sequence[Argument], *, match: bool = True) -> list[Owned | None]:
    """Name what was found; None stands for what is not the gradient of any argument.

    A gradient belongs to the leaves that it was taken with respect to, followed through the program; where the way
    is lost, to the subtree of an argument with the same structure, shapes and dtypes. If none belongs anywhere,
    all are kept.

    Args:
      arguments: Their leaves, one argument after the other, are those that `Found.origins` counts.
    """
    places = [(argument.name, path) for argument in arguments for path in source_of(argument.tree, "").paths]
    owners = {f: _owner(f, places) for f in found}
    if None in owners.values():
        subtrees = _subtrees(arguments)
        owners = {f: subtrees.get(_signature(f.mark.source)) if o is None else o for f, o in owners.items()}
    kept = set(_kept([f for f in found if f.mark.kind != "tap"], owners) if match else found)
    of_several = len({owners[f] for f in kept}) > 1
    names: dict[str, int] = {}
    result: list[Owned | None] = []
    for f in found:
        if f.mark.kind != "tap" and f not in kept:
            result.append(None)
            continue
        name, owner = f.mark.source.name, owners[f] or ""
        if f.mark.kind != "tap" and of_several and owner:
            name = f"{name} of {owner}"
        names[name] = names.get(name, 0) + 1
        if names[name] > 1:
            name = f"{name} #{names[name]}"
        result.append(Owned(f.mark.source._replace(name=name), owner, f.axes))
    return result


def _kept(gradients: Sequence[Found], owners) -> Sequence[Found]:
    with_owner = [f for f in gradients if owners[f] is not None]
    # The cotangents of a bare `jax.vjp` may be what somebody's own derivative rule asks for.
    of_losses = [f for f in with_owner if f.mark.kind == "grads"]
    # What is differentiated itself is a term of the loss, as the penalty of a gradient's norm is.
    outer = [f for f in of_losses if not f.is_inner]
    return outer or of_losses or with_owner or gradients


def _owner(found: Found, places: Sequence[tuple[str, str]]) -> str | None:
    """The expression to whose leaves the values belong: "state.params"; None where the way is lost."""
    source = found.mark.source
    origins = [origin for origin in found.origins if origin is not None]
    if found.mark.kind == "tap" or not origins or len(origins) < len(found.origins):
        return None
    owners = set()
    paths = [path for path, has in zip(source.paths, source.has_number, strict=True) if has]
    for origin, path in zip(origins, paths, strict=True):
        name, place = places[origin]
        owners.add(name + (place.removesuffix(path) if place.endswith(path) else ""))
    return owners.pop() if len(owners) == 1 else ", ".join(sorted(owners))


def _signature(source: Source) -> tuple:
    return (source.paths, source.sizes, source.dtypes)


def _subtrees(arguments: Sequence[Argument]) -> dict[tuple, str]:
    """Every subtree with leaves, by the paths, sizes and dtypes of these."""
    found: dict[tuple, str] = {}
    queue = [(argument.name, argument.tree) for argument in arguments]
    for owner, tree in queue:  # grows while it is read
        found.setdefault(_signature(source_of(tree, "")), owner)
        is_root = _first_is_not_a_leaf()
        children = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_root)[0]
        if not (len(children) == 1 and children[0][1] is tree):
            queue += [(owner + jax.tree_util.keystr(path), child) for path, child in children]
    return found


def _first_is_not_a_leaf():
    """For `is_leaf`: looks one level deep."""
    asked = []
    return lambda _: bool(asked) or bool(asked.append(True))
