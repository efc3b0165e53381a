"""Which argument of a step each gradient belongs to, and the name of the gradient."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate, compress
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from treeviz.steps.measure import MeasuredTree, paths_in, source_of
from treeviz.steps.statistics import Axes, in_layers, layer_by_layer, sibling_name
from treeviz.tree.keys import keystr
from treeviz.tree.tracers import Tracer

if TYPE_CHECKING:
    from treeviz.steps.tracing.primitives import Axis, Reaped, Sown


Argument = tuple[str, Any]  # an argument of the step: the name of its parameter, and its value


class Attribution(NamedTuple):
    """A measured tree, and the argument that it is the gradient of."""

    source: MeasuredTree  # its leaves, and its name in the measurement
    owner: str  # a Python expression for what it is the gradient of: "state.params"; empty if unknown
    axes: tuple[Axis, ...]  # the leading axes of its packed rows
    arguments: tuple[int, ...] = ()  # for each measured leaf, the number of its program argument; empty if unknown
    forward: tuple[str, ...] = ()  # the paths of the leaves in the order of their use; empty if unknown
    layers: Axes = ()  # the axis of the layers of each leaf, where some are measured layer by layer
    label: str = ""  # which gradient it is, where the optimizer receives another: "of each example, before unscaling"

    def in_order(self, used: Sequence[int], tidy_path: Callable[[str], str]) -> Attribution:
        """Set `forward`, from the numbers of the program's arguments in the order of their use; and tidy all paths."""
        source = self.source._replace(paths=tuple(map(tidy_path, self.source.paths)))
        path_of = dict(zip(self.arguments, compress(source.paths, source.has_number), strict=False))
        return self._replace(source=source, forward=tuple([path_of[i] for i in used if i in path_of]))

    def in_layers(self) -> Attribution:
        """With the entries that its packed rows have: layers in place of the arrays that hold them."""
        source = in_layers(self.source, self.layers)
        return self._replace(source=source, forward=layer_by_layer(self.forward, source), layers=())


_Owner = tuple[str, tuple[int, ...]]  # a Python expression, and the number of the argument for each measured leaf


def attribute_gradients(
    reaped: Sequence[Reaped], arguments: Sequence[Argument], *, match: bool = True, trained: Collection[Sown] = ()
) -> list[Attribution | None]:
    """Name what was reaped, and find what it is the gradient of.

    "grads" are those that train. Others, as of a term of the loss whose norm is a weight, are "grads (term)".
    A gradient belongs to the arguments that it was taken with respect to, which `reap` has followed through the
    program. Where it could not, the gradient belongs to the first subtree of an argument that has the same paths, sizes
    and dtypes. With `match`, all but those of the loss with respect to arguments are left out, if there are any.
    """
    gradients = [r for r in reaped if r.gradient is None]
    leaves = [(name, path) for name, tree in arguments for path in paths_in(tree)]
    owners = {r: _by_origins(r, leaves) for r in gradients}
    if None in owners.values():
        subtrees = _subtrees(arguments)
        for r in [r for r, owner in owners.items() if owner is None]:
            source = r.sown.source
            is_a_number = source.paths == ("",) and source.sizes == (1,)  # as any other argument may be
            if not is_a_number and (found := subtrees.get(_signature(source))) is not None:
                expression, first = found
                owners[r] = expression, tuple(first + i for i, has in enumerate(source.has_number) if has)
    kept = gradients
    if match:  # keep those that the step is most likely trained with
        of_calls = [r for r in gradients if r.sown.kind != "tap"]
        of_calls = [r for r in of_calls if owners[r]] or of_calls
        # The cotangents of a bare `jax.vjp` may be an intermediate of a user's own derivative rule.
        of_functions = [r for r in of_calls if r.sown.kind == "grads"]
        # A gradient that is differentiated itself is a term of the loss, as in a penalty on its norm.
        kept = [r for r in of_functions if not r.is_differentiated] or of_functions or of_calls
    kept = {*kept}
    main = {r for r in kept if r.tagged in trained} or kept
    # The argument distinguishes gradients of several arguments: "grads of generator".
    expressions = {owner[0] if (owner := owners[r]) else None for r in main}
    n_named: dict[str, int] = {}
    named: dict[Reaped, Attribution] = {}
    for r in sorted(gradients, key=lambda r: r in kept - main):
        is_tap = r.sown.kind == "tap"
        if not is_tap and r not in kept:
            continue
        (expression, of_arguments), name = owners[r] or ("", ()), r.sown.source.name
        if r.sown.kind == "grads" and r in main:
            name = "grads"
        if not is_tap and expression and len({*expressions, expression}) > 1:
            name = f"{name} of {expression}"
        n_named[name] = n_named.get(name, 0) + 1
        if n_named[name] > 1:
            name = f"{name} #{n_named[name]}"
        source = r.sown.source._replace(name=name)
        named[r] = Attribution(source, expression, r.axes, of_arguments, layers=r.sown.axes)
    # The params and updates of several micro-batches are the same, so only the first are kept.
    taken = {attribution.source.name for attribution in named.values()}
    of_gradients = [*named.items()]
    for r in (r for r in reaped if r.gradient is not None):
        of_gradient = next((a for g, a in of_gradients if g.sown is r.gradient and g.origins == r.origins), None)
        name = sibling_name(of_gradient.source.name, r.sown.kind) if of_gradient else ""
        if of_gradient and name not in taken:
            taken.add(name)
            named[r] = of_gradient._replace(source=r.sown.source._replace(name=name), axes=r.axes)
    return [named.get(r) for r in reaped]


def _by_origins(gradient: Reaped, leaves: Sequence[tuple[str, str]]) -> _Owner | None:
    """The owner, from the arguments that the values were traced back to; None if one was not."""
    source = gradient.sown.source
    origins = tuple([origin for origin in gradient.origins if origin is not None])
    if gradient.sown.kind == "tap" or not origins or len(origins) < len(gradient.origins):
        return None
    expressions = set()
    for origin, path in zip(origins, compress(source.paths, source.has_number), strict=True):
        name, leaf_path = leaves[origin]
        expressions.add(name + (leaf_path.removesuffix(path) if leaf_path.endswith(path) else ""))
    return ", ".join(sorted(expressions)), origins


def _signature(source: MeasuredTree) -> tuple:
    return (source.paths, source.sizes, source.dtypes)


def _subtrees(arguments: Sequence[Argument]) -> dict[tuple, tuple[str, int]]:
    """The first subtree with each signature: a Python expression, and the number of its first leaf."""
    found: dict[tuple, tuple[str, int]] = {}
    sizes = [len(jax.tree.leaves(tree)) for _, tree in arguments]
    queue = [(*argument, first) for argument, first in zip(arguments, accumulate(sizes, initial=0), strict=False)]
    for expression, tree, first in queue:  # the loop appends to the queue
        found.setdefault(_signature(source_of(tree, "")), (expression, first))
        is_child = iter([False])  # stops JAX one level below the root, for which it asks first
        children = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda _, at=is_child: next(at, True))[0]
        if not (len(children) == 1 and children[0][1] is tree):
            for path, child in children:
                queue.append((expression + keystr(path), child, first))
                first += len(jax.tree.leaves(child))
    return found


# The arguments of a call that is traced: which of their leaves are traced, and what they are called.


def split(args, kwargs):
    """The traced leaves of a call, and a function that replaces them. A value without any stays the same object."""
    flat: list[Any] = []
    whole: list[tuple[Any, Any]] = []
    for value in (*args, *kwargs.values()):
        leaves, treedef = jax.tree.flatten(value)
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tracer)]
        whole.append((leaves, (treedef, places)) if places else (value, None))
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
    values = [
        *[(jax.tree_util.SequenceKey(i), x) for i, x in enumerate(args)],
        *[(jax.tree_util.GetAttrKey(name), x) for name, x in kwargs.items()],
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
            found.append((name, value))
        elif any(is_traced):
            traced = compress(zip(paths_in(value), leaves, strict=True), is_traced)
            found += [(name + path, leaf) for path, leaf in traced]
    return found
