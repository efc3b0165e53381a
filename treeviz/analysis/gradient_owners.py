"""Which argument of a step a gradient belongs to, and what it is called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from treeviz.analysis.gradients import Source, source_of
from treeviz.analysis.marks import Axis, Found
from treeviz.analysis.source_names import beside


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
      arguments: The numbers of the program's arguments that the measured leaves belong to; empty if nobody knows.
      forward: The paths of the leaves in the order in which the program uses these; empty if nobody knows.
    """

    source: Source
    owner: str
    axes: tuple[Axis, ...]
    arguments: tuple[int, ...] = ()
    forward: tuple[str, ...] = ()

    def in_order(self, used: Sequence[int]) -> Owned:
        """The same with `forward`, if the order in which the program uses its arguments is this."""
        paths = (path for path, has in zip(self.source.paths, self.source.has_number, strict=True) if has)
        path_of = dict(zip(self.arguments, paths, strict=False))
        return self._replace(forward=tuple(path_of[i] for i in used if i in path_of))


class _Place(NamedTuple):
    """Where in the arguments something lies: Python for it, and the numbers of its measured leaves."""

    owner: str
    arguments: tuple[int, ...]


def owned(found: Sequence[Found], arguments: Sequence[Argument], *, match: bool = True) -> list[Owned | None]:
    """Name what was found; None stands for what is not the gradient of any argument.

    A gradient belongs to the leaves that it was taken with respect to, followed through the program; where the way
    is lost, to the subtree of an argument with the same structure, shapes and dtypes. If none belongs anywhere,
    all are kept.

    Args:
      arguments: Their leaves, one argument after the other, are those that `Found.origins` counts.
    """
    leaves = [(argument.name, path) for argument in arguments for path in source_of(argument.tree, "").paths]
    gradients = [f for f in found if f.of is None]
    places = {f: _place(f, leaves) for f in gradients}
    if None in places.values():
        subtrees = _subtrees(arguments)
        places = {f: _like(f.mark.source, subtrees) if place is None else place for f, place in places.items()}
    kept = set(_kept([f for f in gradients if f.mark.kind != "tap"], places) if match else gradients)
    of_several = len({place and place.owner for f, place in places.items() if f in kept}) > 1
    names: dict[str, int] = {}
    named: dict[Found, Owned] = {}
    for f in gradients:
        if f.mark.kind != "tap" and f not in kept:
            continue
        name, (owner, of_arguments) = f.mark.source.name, places[f] or _Place("", ())
        if f.mark.kind != "tap" and of_several and owner:
            name = f"{name} of {owner}"
        names[name] = names.get(name, 0) + 1
        if names[name] > 1:
            name = f"{name} #{names[name]}"
        named[f] = Owned(f.mark.source._replace(name=name), owner, f.axes, of_arguments)
    taken = {name.source.name for name in named.values()}
    for f in found:
        if f.of is not None:
            of = next((g for g in named if g.mark is f.of and g.origins == f.origins), None)
            name = "" if of is None else beside(named[of].source.name, f.mark.kind)
            if of is not None and name not in taken:  # those of micro-batches are measured once
                taken.add(name)
                named[f] = named[of]._replace(source=f.mark.source._replace(name=name), axes=f.axes)
    return [named.get(f) for f in found]


def _kept(gradients: Sequence[Found], places) -> Sequence[Found]:
    with_owner = [f for f in gradients if places[f] is not None]
    # The cotangents of a bare `jax.vjp` may be what somebody's own derivative rule asks for.
    of_losses = [f for f in with_owner if f.mark.kind == "grads"]
    # What is differentiated itself is a term of the loss, as the penalty of a gradient's norm is.
    outer = [f for f in of_losses if not f.is_inner]
    return outer or of_losses or with_owner or gradients


def _place(found: Found, leaves: Sequence[tuple[str, str]]) -> _Place | None:
    """To which leaves the values belong; None where the way is lost."""
    source = found.mark.source
    origins = tuple(origin for origin in found.origins if origin is not None)
    if found.mark.kind == "tap" or not origins or len(origins) < len(found.origins):
        return None
    owners = set()
    paths = [path for path, has in zip(source.paths, source.has_number, strict=True) if has]
    for origin, path in zip(origins, paths, strict=True):
        name, place = leaves[origin]
        owners.add(name + (place.removesuffix(path) if place.endswith(path) else ""))
    return _Place(owners.pop() if len(owners) == 1 else ", ".join(sorted(owners)), origins)


def _signature(source: Source) -> tuple:
    return (source.paths, source.sizes, source.dtypes)


def _like(source: Source, subtrees: dict[tuple, tuple[str, int]]) -> _Place | None:
    """The subtree that looks as the gradient does."""
    if _signature(source) not in subtrees:
        return None
    owner, first = subtrees[_signature(source)]
    return _Place(owner, tuple(first + i for i, has in enumerate(source.has_number) if has))


def _subtrees(arguments: Sequence[Argument]) -> dict[tuple, tuple[str, int]]:
    """Every subtree with leaves, by the paths, sizes and dtypes of these; and the number of its first leaf."""
    found: dict[tuple, tuple[str, int]] = {}
    first, queue = 0, []
    for argument in arguments:
        queue.append((argument.name, argument.tree, first))
        first += len(jax.tree.leaves(argument.tree))
    for owner, tree, first in queue:  # grows while it is read
        found.setdefault(_signature(source_of(tree, "")), (owner, first))
        is_root = _first_is_not_a_leaf()
        children = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_root)[0]
        if not (len(children) == 1 and children[0][1] is tree):
            for path, child in children:
                queue.append((owner + jax.tree_util.keystr(path), child, first))
                first += len(jax.tree.leaves(child))
    return found


def _first_is_not_a_leaf():
    """For `is_leaf`: looks one level deep."""
    asked = []
    return lambda _: bool(asked) or bool(asked.append(True))
