"""Which argument of a step each gradient belongs to, and the name of the gradient."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from treeviz.steps.measure import MeasuredTree, paths_in, source_of
from treeviz.steps.statistics import Axes, in_layers, layer_by_layer, sibling_name
from treeviz.tree.keys import keystr
from treeviz.tree.tracers import Tracer

if TYPE_CHECKING:
    from treeviz.steps.tracing.primitives import Axis, Reaped, Sown


class Argument(NamedTuple):
    """An argument of the step, by the name of its parameter."""

    name: str
    tree: Any


class Attribution(NamedTuple):
    """A measured tree, and the argument that it is the gradient of.

    Attributes:
      source: Its leaves, and its name in the measurement.
      owner: A Python expression for what it is the gradient of: "state.params"; empty if unknown.
      axes: The leading axes of its packed rows.
      arguments: For each measured leaf, the number of the program argument that it belongs to; empty if unknown.
      forward: The paths of the leaves in the order in which the program uses the arguments; empty if unknown.
      layers: The axis of the layers of each leaf, where some are measured layer by layer.
      label: Which gradient it is, where the optimizer receives another: "of each example, before unscaling".
    """

    source: MeasuredTree
    owner: str
    axes: tuple[Axis, ...]
    arguments: tuple[int, ...] = ()
    forward: tuple[str, ...] = ()
    layers: Axes = ()
    label: str = ""

    def in_order(self, used: Sequence[int]) -> Attribution:
        """Set `forward`, from the numbers of the program's arguments in the order of their use."""
        paths = (path for path, has in zip(self.source.paths, self.source.has_number, strict=True) if has)
        path_of = dict(zip(self.arguments, paths, strict=False))
        return self._replace(forward=tuple(path_of[i] for i in used if i in path_of))

    def in_layers(self) -> Attribution:
        """With the entries that its packed rows have: layers in place of the arrays that hold them."""
        source = in_layers(self.source, self.layers)
        return self._replace(source=source, forward=layer_by_layer(self.forward, source), layers=())


class _Owner(NamedTuple):
    """What a gradient belongs to: a Python expression, and the number of the argument for each measured leaf."""

    expression: str
    arguments: tuple[int, ...]


def attribute_gradients(
    reaped: Sequence[Reaped], arguments: Sequence[Argument], *, match: bool = True, trained: Collection[Sown] = ()
) -> list[Attribution | None]:
    """Name what was reaped, and find what it is the gradient of.

    "grads" are those that train. Others, as of a term of the loss whose norm is a weight, are "grads (term)".

    A gradient belongs to the arguments that it was taken with respect to, which `reap` has followed through the
    program. Where it could not, the gradient belongs to the first subtree of an argument that has the same paths, sizes
    and dtypes.

    Args:
      arguments: The step's arguments; `Reaped.origins` counts their leaves, in order.
      match: Keep only the gradients of the loss with respect to arguments, if there are any. False: keep all.
      trained: The sown trees that are trained with; empty if unknown.

    Returns:
      The attribution of each of `reaped`; None if it is left out.
    """
    gradients = [r for r in reaped if r.gradient is None]
    owners = _owners(gradients, arguments)
    kept = set(_of_the_loss([r for r in gradients if r.sown.kind != "tap"], owners) if match else gradients)
    main = {r for r in kept if r.tagged in trained} or kept
    # The argument distinguishes gradients of several arguments: "grads of generator".
    expressions = {owner.expression if (owner := owners[r]) else None for r in main}
    n_named: dict[str, int] = {}
    named: dict[Reaped, Attribution] = {}
    for r in sorted(gradients, key=lambda r: r in kept - main):
        is_tap = r.sown.kind == "tap"
        if not is_tap and r not in kept:
            continue
        owner, name = owners[r] or _Owner("", ()), r.sown.source.name
        if r.sown.kind == "grads" and r in main:
            name = "grads"
        if not is_tap and owner.expression and len({*expressions, owner.expression}) > 1:
            name = f"{name} of {owner.expression}"
        n_named[name] = n_named.get(name, 0) + 1
        if n_named[name] > 1:
            name = f"{name} #{n_named[name]}"
        source = r.sown.source._replace(name=name)
        named[r] = Attribution(source, owner.expression, r.axes, owner.arguments, layers=r.sown.axes)
    named.update(_params_and_updates(reaped, named))
    return [named.get(r) for r in reaped]


def _params_and_updates(reaped: Sequence[Reaped], named: Mapping[Reaped, Attribution]) -> dict[Reaped, Attribution]:
    """The attributions of params and updates that were measured in a loop: those of their gradients, renamed.

    The gradients of several micro-batches have the same params and updates, of which only the first are kept.
    """
    taken = {attribution.source.name for attribution in named.values()}
    found: dict[Reaped, Attribution] = {}
    for r in reaped:
        if r.gradient is None:
            continue
        gradient = next((g for g in named if g.sown is r.gradient and g.origins == r.origins), None)
        if gradient is None:
            continue
        name = sibling_name(named[gradient].source.name, r.sown.kind)
        if name not in taken:
            taken.add(name)
            found[r] = named[gradient]._replace(source=r.sown.source._replace(name=name), axes=r.axes)
    return found


def _of_the_loss(gradients: Sequence[Reaped], owners: Mapping[Reaped, _Owner | None]) -> Sequence[Reaped]:
    """The gradients that the step is most likely trained with."""
    with_owner = [r for r in gradients if owners[r] is not None] or gradients
    # The cotangents of a bare `jax.vjp` may be an intermediate of a user's own derivative rule.
    of_functions = [r for r in with_owner if r.sown.kind == "grads"]
    # A gradient that is differentiated itself is a term of the loss, as in a penalty on its norm.
    outer = [r for r in of_functions if not r.is_differentiated]
    return outer or of_functions or with_owner


def _owners(gradients: Sequence[Reaped], arguments: Sequence[Argument]) -> dict[Reaped, _Owner | None]:
    leaves = [(argument.name, path) for argument in arguments for path in paths_in(argument.tree)]
    owners = {r: _by_origins(r, leaves) for r in gradients}
    if None in owners.values():
        subtrees = _subtrees(arguments)
        owners = {r: _by_signature(r.sown.source, subtrees) if owner is None else owner for r, owner in owners.items()}
    return owners


def _by_origins(gradient: Reaped, leaves: Sequence[tuple[str, str]]) -> _Owner | None:
    """The owner, from the arguments that the values were traced back to; None if one was not.

    Args:
      leaves: For each program argument, the name of the step's argument and the path in it.
    """
    source = gradient.sown.source
    origins = tuple(origin for origin in gradient.origins if origin is not None)
    if gradient.sown.kind == "tap" or not origins or len(origins) < len(gradient.origins):
        return None
    expressions = set()
    paths = [path for path, has in zip(source.paths, source.has_number, strict=True) if has]
    for origin, path in zip(origins, paths, strict=True):
        name, leaf_path = leaves[origin]
        expressions.add(name + (leaf_path.removesuffix(path) if leaf_path.endswith(path) else ""))
    return _Owner(", ".join(sorted(expressions)), origins)


def _by_signature(source: MeasuredTree, subtrees: Mapping[tuple, tuple[str, int]]) -> _Owner | None:
    is_a_number = source.paths == ("",) and source.sizes == (1,)  # as any other argument may be
    if is_a_number or _signature(source) not in subtrees:
        return None
    expression, first = subtrees[_signature(source)]
    return _Owner(expression, tuple(first + i for i, has in enumerate(source.has_number) if has))


def _signature(source: MeasuredTree) -> tuple:
    return (source.paths, source.sizes, source.dtypes)


def _subtrees(arguments: Sequence[Argument]) -> dict[tuple, tuple[str, int]]:
    """The first subtree with each signature: a Python expression, and the number of its first leaf."""
    found: dict[tuple, tuple[str, int]] = {}
    first, queue = 0, []
    for argument in arguments:
        queue.append((argument.name, argument.tree, first))
        first += len(jax.tree.leaves(argument.tree))
    for expression, tree, first in queue:  # the loop appends to the queue
        found.setdefault(_signature(source_of(tree, "")), (expression, first))
        children = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_all_but_the_first())[0]
        if not (len(children) == 1 and children[0][1] is tree):
            for path, child in children:
                queue.append((expression + keystr(path), child, first))
                first += len(jax.tree.leaves(child))
    return found


def _all_but_the_first():
    """An `is_leaf` that stops JAX one level below the root, for which it is called first."""
    asked = []
    return lambda _: bool(asked) or bool(asked.append(True))


# The arguments of a call that is traced: which of their leaves are traced, and what they are called.


def split(args, kwargs):
    """The traced leaves of a call, and a function that replaces them. A value without any stays the same object."""
    flat: list[Any] = []
    whole: list[tuple[Any, Any]] = []
    for value in (*args, *kwargs.values()):
        leaves, treedef = jax.tree.flatten(value)
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tracer)]
        whole.append((value, None) if not places else (leaves, (treedef, places)))
        flat += [leaves[i] for i in places]

    def rebuild(traced):
        traced = iter(traced)
        values = []
        for value, layout in whole:
            if layout is not None:
                treedef, places = layout
                leaves = list(value)
                for i in places:
                    leaves[i] = next(traced)
                value = jax.tree.unflatten(treedef, leaves)
            values.append(value)
        return values[: len(args)], dict(zip(kwargs, values[len(args) :], strict=True))

    return flat, rebuild


def paths_of(args, kwargs) -> list[tuple]:
    """The key paths of the leaves of `split`."""
    values = [
        *((jax.tree_util.SequenceKey(i), x) for i, x in enumerate(args)),
        *((jax.tree_util.GetAttrKey(name), x) for name, x in kwargs.items()),
    ]
    return [
        (key, *path)
        for key, value in values
        for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]
        if isinstance(leaf, Tracer)
    ]


def named_arguments(function, args, kwargs) -> list[Argument]:
    """The traced arguments by name; their leaves have the order of `split`."""
    try:
        parameters = [p.name for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_POSITIONAL]
    except (TypeError, ValueError):
        parameters = []
    names = [parameters[i] if i < len(parameters) else f"args[{i}]" for i in range(len(args))]
    found = []
    for name, value in zip((*names, *kwargs), (*args, *kwargs.values()), strict=True):
        leaves = jax.tree.leaves(value)
        is_traced = [isinstance(leaf, Tracer) for leaf in leaves]
        if leaves and all(is_traced):
            found.append(Argument(name, value))
        else:
            paths = paths_in(value) if any(is_traced) else ()
            found += [
                Argument(name + path, leaf)
                for path, leaf, traced in zip(paths, leaves, is_traced, strict=False)
                if traced
            ]
    return found
