"""Find what goes into each parameter and what comes out of it, and tag both in the program of a step.

A parameter meets data in the operation that uses it: `dot_general` for a weight, `add` for a bias, `gather` for an
embedding. Its input is the other operand, its output the result. As the next layer's input is this layer's activation,
no nonlinearity and no library need be known. The cotangent of the output is an operand of the operation that computes
the parameter's gradient, which is found backwards from the gradient.
"""

from __future__ import annotations

import math
import operator
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from treeviz.steps.statistics import ACTIVATIONS, Fed, MeasuredTree, Whole, kind_of, sibling_name, wholes
from treeviz.steps.tracing.attribution import Attribution
from treeviz.steps.tracing.dataflow import Domain, Followed
from treeviz.steps.tracing.domains import Leaf
from treeviz.steps.tracing.payers import Place, gradient_payers
from treeviz.steps.tracing.primitives import (
    COND,
    RESHAPES,
    SAME_LEAF,
    SCATTER_ADDS,
    WHILE,
    Activation,
    Axis,
    Feed,
    Reaped,
    Sown,
    inner_jaxprs,
    joined_tags,
    open_jaxpr,
    shape_and_dtype,
    size_of,
    sow_p,
)

MOST_USES = 4  # of a parameter; a network that is unrolled in Python uses each once for every time step

Owners = frozenset[tuple[int, int]]  # numbers of arguments, each with how many scans have taken it apart
_NONE: Owners = frozenset()  # of a number
_TABLE: Owners = frozenset([(-1, 0)])  # of a constant array, which may be data or a mask
_PRODUCTS = frozenset(["dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general", "gather"])
_GRADIENTS = ("grads", "cotangents")
_BACKWARD = -1  # in place of an argument: computed from the cotangent of the loss
_MOVES = SAME_LEAF | RESHAPES


class _Origins(Leaf):
    """Knows which argument each differentiated value is, also in loops that train, and what the backward pass makes.

    Attributes:
      params: The argument that a variable is.
      gradients: The arguments that the values are gradients of, by the id of the equation that sows them.
    """

    enters = Domain.enters

    def __init__(self) -> None:
        self.params: dict[Any, int] = {}
        self.gradients: dict[int, Sequence[int | None]] = {}

    def join(self, values: Sequence[int | None], atom: Any) -> int | None:
        return _BACKWARD if _BACKWARD in values else values[0]

    def inside(self, eqn: Any, operands: Sequence[int | None]) -> Sequence[int | None]:
        """The cotangent of the loss is the number 1."""
        if "transpose" not in _transforms(eqn):
            return operands
        is_one = [isinstance(x, Literal) and np.ndim(x.val) == 0 and x.val == 1 for x in eqn.invars]
        return [_BACKWARD if one else known for one, known in zip(is_one, operands, strict=True)]

    def results(self, eqn: Any, operands: Sequence[int | None]) -> Sequence[int | None]:
        if eqn.primitive is sow_p:
            return operands if eqn.params["sown"].kind not in _GRADIENTS else ()
        # A move of a residual is no cotangent, in whichever pass it is.
        is_move = eqn.primitive.name in _MOVES and not isinstance(eqn.invars[0], Literal)
        if _BACKWARD in operands or ("transpose" in _transforms(eqn) and not is_move):
            return [_BACKWARD] * len(eqn.outvars)
        return super().results(eqn, operands)

    def visit(self, eqn: Any, operands: Sequence[int | None]) -> None:
        if eqn.primitive is sow_p and eqn.params["sown"].kind in _GRADIENTS:
            self.gradients[id(eqn)] = origins = operands[eqn.params["n"] :]
            params = zip(eqn.invars[eqn.params["n"] :], origins, strict=True)
            self.params.update((x, i) for x, i in params if i not in (None, _BACKWARD))


def _transforms(eqn: Any) -> list[str]:
    return [part.name for part in eqn.source_info.name_stack.stack if type(part).__name__ == "Transform"]


class _Owned(Domain[Owners | None]):
    """Knows the parameters that a value is computed from, if from nothing else; None: it is data."""

    def __init__(self, params: Mapping[Any, int]) -> None:
        self.params = params

    def unknown(self, atom: Any) -> None:
        return None

    def constant(self, value: Any) -> Owners:
        return _TABLE if np.ndim(value) else _NONE

    def given(self, jaxpr: Jaxpr) -> dict[Any, Owners | None]:
        """A loop that trains changes its parameters: they are none that data was added to."""
        return {v: frozenset([(self.params[v], 0)]) for v in jaxpr.invars if v in self.params}

    def join(self, values: Sequence[Owners | None], atom: Any) -> Owners | None:
        known = [value for value in values if value is not None]
        return frozenset().union(*known) if len(known) == len(values) else None

    def entry(self, xs: Owners | None) -> Owners | None:
        return None if xs is None else frozenset([(i, depth + (i >= 0)) for i, depth in xs])

    def stacked(self, y: Owners | None) -> Owners | None:
        return None if y is None else frozenset([(i, max(depth - 1, 0)) for i, depth in y])

    def results(self, eqn: Any, operands: Sequence[Owners | None]) -> Sequence[Owners | None]:
        if eqn.primitive is sow_p:
            return operands if eqn.params["sown"].kind == "tap" else ()
        if inner_jaxprs(eqn) or _data_in(eqn, operands):
            return ()
        owners = frozenset().union(*[known for known in operands if known])
        if eqn.primitive.name.startswith(("reduce_", "arg")) and eqn.primitive.name != "reduce_precision":
            owners = _NONE  # as the norm of a weight
        return [owners] * len(eqn.outvars)


def _data_in(eqn: Any, operands: Sequence[Owners | None]) -> list[int]:
    """The numbers of the operands that are data. A constant is data if it cannot be the mask of a parameter."""
    largest = max([size_of(x) for x, known in zip(eqn.invars, operands, strict=True) if _is_owned(known)], default=0)

    def is_data(x: Any, known: Owners | None) -> bool:
        is_other = known == _TABLE and largest and (eqn.primitive.name in _PRODUCTS or size_of(x) > largest)
        return known is None or bool(is_other)

    first = eqn.primitive.name == "select_n"  # what selects among parameters, as in a `cond` under `vmap`, meets none
    return [i for i, pair in enumerate(zip(eqn.invars, operands, strict=True)) if i >= first and is_data(*pair)]


def _is_owned(known: Owners | None) -> bool:
    return known is not None and any(i >= 0 for i, _ in known)


class Tagged(NamedTuple):
    """A program with tags."""

    program: ClosedJaxpr
    n_uses: Mapping[Any, int]  # by the number of an argument, how often data meets it; and see `_Tags`


def with_activations(program: ClosedJaxpr, has_cotangents: bool) -> Tagged:
    """Tag the inputs and outputs of all parameters that gradients are taken of, and the indices of embeddings.

    Args:
      has_cotangents: Tag the cotangents of the outputs, too.
    """
    origins, n = _Origins(), len(program.jaxpr.invars)
    passes = Followed(origins, program, range(n)).to()
    for eqn, operands in passes.visits:
        origins.visit(eqn, operands)
    if not (numbers := {*origins.params.values()}):
        return Tagged(program, {})
    shapes = [shape_and_dtype(v)[0] or () for v in program.jaxpr.invars]
    tags = _Tags(shapes, gradient_payers(program, origins.gradients) if has_cotangents else {})
    arguments = [frozenset([(i, 0)]) if i in numbers else None for i in range(n)]
    jaxpr = tags.added(Followed(_Owned(origins.params), program, arguments).to(), passes)
    return Tagged(ClosedJaxpr(jaxpr, program.consts), tags.n_uses)


class _Use(NamedTuple):
    """An operation in which a parameter meets data."""

    number: int  # from 1
    primitive: str
    size: int  # of the output
    is_layer: bool


class _Tags:
    def __init__(self, shapes: Sequence[tuple[int, ...]], gradient_of: Mapping[Place, int]) -> None:
        # Of an argument, how often data meets it; of an argument and a use, how many cotangents are found.
        self.n_uses = Counter[Any]()
        self._uses: dict[int, set[_Use]] = defaultdict(set)
        self.shapes = shapes  # of the arguments
        self._gradient_of = gradient_of

    def added(
        self,
        followed: Followed[Owners | None],
        passes: Followed[int | None],
        is_forward: bool = False,
        is_backward: bool = False,
        place: Place = (),
    ) -> Jaxpr:
        eqns, made = [], dict[Any, Any]()
        for eqn in followed.jaxpr.eqns:
            at, transforms = (*place, id(eqn)), _transforms(eqn)
            is_after = is_backward or "transpose" in transforms
            is_here = (is_forward or "jvp" in transforms) and not is_after
            inside = followed.inside.get(id(eqn))
            if inside and (not is_after or self._gradient_of):
                pairs = [*zip(inside, passes.inside[id(eqn)], strict=True)]
                eqn = _with_programs(eqn, self._inside(eqn, pairs, is_here, is_after, at))
            eqns.append(eqn)
            if is_here and not inside and eqn.primitive is not sow_p:
                eqns += self._of(eqn, [followed.read(x) for x in eqn.invars])
            elif is_after and not inside:
                made.update((v, eqn) for v in eqn.outvars)
                eqns += self._of_gradient(eqn, self._gradient_of.get(at), made, passes)
        is_same = len(eqns) == len(followed.jaxpr.eqns) and all(map(operator.is_, eqns, followed.jaxpr.eqns))
        return followed.jaxpr if is_same else followed.jaxpr.replace(eqns=_merged(eqns))

    def _inside(self, eqn: Any, programs: Sequence[Any], *args: Any) -> list[Jaxpr]:
        """The programs of an equation with tags. One branch of a conditional runs, so the others have the same uses."""
        found, before, most = [], dict(self.n_uses), Counter[Any]()
        for program in programs:
            if eqn.primitive.name == COND:
                self.n_uses = Counter(before)
            found.append(self.added(*program, *args))
            most |= self.n_uses
        self.n_uses = most
        return found

    def _of_gradient(self, eqn: Any, argument: int | None, made: Mapping[Any, Any], passes: Followed[int | None]):
        """The tag of the cotangent from which an equation computes the gradient of an argument, if that is sure."""
        found = {
            (use, x)
            for use in (self._uses[argument] if argument is not None else ())
            for x in _operands_of_gradient(eqn, use.primitive, made)
            if size_of(x) == use.size and passes.read(x) == _BACKWARD
        }
        if argument is None or len(found) != 1 or self.n_uses[argument] > MOST_USES:
            return []
        ((use, x),) = found
        self.n_uses[argument, use.number] += 1
        return [_tag(eqn, x, "cotangents", [(argument, use.number, use.is_layer)])]

    def _of(self, eqn: Any, operands: Sequence[Owners | None]) -> list[Any]:
        """The tags of an equation in which parameters meet data; empty if none does."""
        owned = [i for i, known in enumerate(operands) if _is_owned(known)]
        data = _data_in(eqn, operands) if owned else []
        if not data or inner_jaxprs(eqn):
            return []
        uses, owners = [], sorted({owner for i in owned for owner in operands[i] or () if owner[0] >= 0})
        for number, depth in owners:
            self.n_uses[number] += 1
            if self.n_uses[number] <= MOST_USES:
                use = _Use(self.n_uses[number], eqn.primitive.name, size_of(eqn.outvars[0]), depth > 0)
                self._uses[number].add(use)
                uses.append((number, use.number, use.is_layer))
        numeric = [i for i in data if _has_numbers(eqn.invars[i])]
        largest = max([math.prod(self.shapes[number][depth:]) for number, depth in owners])
        is_repeated = max([size_of(eqn.invars[i]) for i in owned]) > largest
        tags, features, n_rows = [], _features_of(eqn, is_repeated), None
        if eqn.primitive.name == "gather" and owned == [0]:
            axes = eqn.params["dimension_numbers"].start_index_map
            n_rows = eqn.invars[0].aval.shape[axes[0]] if len(axes) == 1 else None
        if n_rows is not None:
            tags.append(_tag(eqn, eqn.invars[1], "inputs", uses, n_rows=n_rows))
        elif numeric:
            at = max(numeric, key=lambda i: size_of(eqn.invars[i]))
            tags.append(_tag(eqn, eqn.invars[at], "inputs", uses, features.get(at)))
        if _has_numbers(eqn.outvars[0]) and type(eqn.outvars[0]).__name__ != "DropVar":
            tags.append(_tag(eqn, eqn.outvars[0], "outputs", uses))
        return tags if uses else []


def _operands_of_gradient(eqn: Any, primitive: str, made: Mapping[Any, Any]) -> Sequence[Any]:
    """The operands that may be the cotangent, if an equation computes the gradient of this primitive's operand."""
    name = eqn.primitive.name
    if primitive in ("add", "sub"):
        return eqn.invars if name == "reduce_sum" else ()
    if primitive == "gather":
        return eqn.invars[2:] if name in SCATTER_ADDS else ()
    if primitive == "mul" and name == "reduce_sum":
        eqn = made.get(eqn.invars[0], eqn)
    return eqn.invars if eqn.primitive.name == primitive else ()


def _has_numbers(atom: Any) -> bool:
    _, dtype = shape_and_dtype(atom)
    return (
        not isinstance(atom, Literal) and size_of(atom) > 0 and dtype is not None and jnp.issubdtype(dtype, jnp.inexact)
    )


def _features_of(eqn: Any, is_repeated: bool) -> dict[int, tuple[int, ...]]:
    """The axes of the features that are contracted, by the number of the operand.

    Args:
      is_repeated: The batch axes are examples, as of a `cond` under `vmap`, which selects parameters for each.
    """
    if eqn.primitive.name == "dot_general":
        contracted, batch = eqn.params["dimension_numbers"]
        return {i: (*(() if is_repeated else batch[i]), *contracted[i]) for i in (0, 1)}
    if eqn.primitive.name == "conv_general_dilated":
        return {0: (eqn.params["dimension_numbers"].lhs_spec[1],)}
    return {}


def _tag(eqn, value, role: str, uses: Sequence[tuple[int, int, bool]], features=None, n_rows: int | None = None) -> Any:
    shape, dtype = value.aval.shape, value.aval.dtype
    n_features = math.prod([shape[axis] for axis in features]) if features else 0
    of_value = (size_of(value),), (str(dtype),), (True,), (str(n_features or ""),)
    feeds = tuple([Feed(role, number, use, is_layer, n_rows or n_features) for number, use, is_layer in uses])
    activation = Activation(feeds, None if features is None else tuple(features), n_rows)
    sown = Sown(ACTIVATIONS, MeasuredTree(ACTIVATIONS, ("",), *of_value), activations=(activation,))
    params = {"sown": sown, "n": 1, "batched": (), "differentiated": False}
    return eqn.replace(primitive=sow_p, invars=[value], outvars=[], params=params, effects=eqn.effects & set())


def _merged(eqns: Sequence[Any]) -> list[Any]:
    """The equations, with one tag of what several measure: the output of a weight is the input of its bias."""
    joined: list[Any] = []
    places: dict[Any, list[int]] = defaultdict(list)
    for eqn in eqns:
        if eqn.primitive is not sow_p or not eqn.params["sown"].activations:
            joined.append(eqn)
            continue
        (new,) = eqn.params["sown"].activations
        own = places[eqn.invars[0]]
        for place in own:
            sown = joined[place].params["sown"]
            (old,) = sown.activations
            if old.n_rows == new.n_rows and (None in (old.features, new.features) or old.features == new.features):
                known = eqn.params["sown"] if old.features is None else sown
                both = known.activations[0]._replace(feeds=(*old.feeds, *new.feeds))
                params = {**joined[place].params, "sown": replace(known, activations=(both,))}
                joined[place] = joined[place].replace(params=params)
                break
        else:
            own.append(len(joined))
            joined.append(eqn)
    return joined


def _with_programs(eqn: Any, jaxprs: Sequence[Jaxpr]) -> Any:
    """The equation with other programs, which have the same arguments and results; the same with the same ones."""

    def replaced(old: Any, new: Jaxpr) -> Any:
        if new is open_jaxpr(old):
            return old
        return ClosedJaxpr(new, old.consts) if isinstance(old, ClosedJaxpr) else new

    if eqn.primitive.name == COND:
        new = tuple([replaced(*pair) for pair in zip(eqn.params["branches"], jaxprs, strict=True)])
        return eqn.replace(params={**eqn.params, "branches": new})
    old = eqn.params["body_jaxpr"] if eqn.primitive.name == WHILE else inner_jaxprs(eqn)[0]
    new = replaced(old, jaxprs[-1])
    params = {name: new if value is old else value for name, value in eqn.params.items()}
    return eqn if new is old else eqn.replace(params=params)


# Rows of activations, which lie apart for each nest of loops, and where the history has them.


class _Place(NamedTuple):
    """Where the gradient of a parameter is in the history."""

    gradient: Attribution
    whole: Whole


def activation_rows(
    rows: Sequence[tuple[Reaped, Any]], names: Sequence[Attribution], n_uses: Mapping[Any, int], is_light: bool
) -> tuple[list[tuple[Attribution, Any]], list[str]]:
    """What was measured of activations, joined for each nest of loops, and notes on what is not.

    Args:
      names: Those of all other trees, with the entries that these have in the history.
      is_light: The rows that are read are not counted.
    """
    places: dict[int, _Place] = {}
    for name in names:
        if kind_of(name.source.name) == "grads":
            measured = [whole for whole in wholes(name.source) if name.source.has_number[whole.first]]
            for argument, whole in zip(name.arguments, measured, strict=False):
                places.setdefault(argument, _Place(name, whole))
    trees = _trees(places, [feed for reaped, _ in rows for feeds in _feeds(reaped.sown) for feed in feeds])
    by_axes: dict[tuple[Axis, ...], list[tuple[Reaped, Any]]] = defaultdict(list)
    for reaped, packed in rows:
        by_axes[reaped.axes].append((reaped, packed))
    found = []
    for axes, members in by_axes.items():
        sown, fed = joined_tags([reaped.sown for reaped, _ in members]), defaultdict[Any, list](list)
        for row, feeds in enumerate(_feeds(sown)):
            for feed in feeds:
                place = places.get(feed.argument)
                is_unclear = feed.role == "cotangents" and n_uses[feed.argument, feed.use] > 1
                if place is None or is_unclear or (is_light and sown.activations[row].n_rows):
                    continue
                loops, around = _loops(axes), _loops(place.gradient.axes)
                n_common = next(n for n in range(len(around), -1, -1) if loops[:n] == around[:n])
                n_layers, own = place.whole.n, loops[n_common:]
                layer = own.index(n_layers) if feed.is_layer and n_layers > 1 and n_layers in own else None
                if n_layers == 1 or layer is not None:
                    entries = tuple(range(place.whole.first, place.whole.first + n_layers))
                    fed[trees[_tree_of(place, feed)], n_common, layer].append((row, entries))
        kinds, of_trees = tuple([axis.kind for axis in axes]), []
        for (tree, n_common, layer), pairs in fed.items():
            numbers, entries = zip(*pairs, strict=True)
            of_trees.append(Fed(tree, numbers, entries, kinds, n_common, layer))
        source = sown.source._replace(name=f"{ACTIVATIONS} {len(found)}", feeds=tuple(of_trees))
        found.append((Attribution(source, "", axes), jnp.concatenate([packed for _, packed in members], axis=-2)))
    often = [f"{places[i].whole.path} ({n:,} times)" for i, n in n_uses.items() if n > MOST_USES and i in places]
    more = f" and {len(often) - 3} more" * (len(often) > 3)
    note = f"Only the first {MOST_USES} uses of a parameter have inputs and outputs: {', '.join(often[:3])}{more}."
    return found, [note] * bool(often)


def _feeds(sown: Sown) -> list[tuple[Feed, ...]]:
    """Of each row."""
    return [activation.feeds for activation in sown.activations]


def _loops(axes: Sequence[Axis]) -> list[int | None]:
    return [axis.size for axis in axes if axis.kind == "step"]


def _tree_of(place: _Place, feed: Feed) -> str:
    """ "inputs", or "inputs #2" of parameters that are used several times."""
    name = sibling_name(place.gradient.source.name, feed.role)
    return name.replace(feed.role, f"{feed.role} #{feed.use}", 1) if feed.use > 1 else name


def _trees(places: Mapping[int, _Place], feeds: Sequence[Feed]) -> dict[str, MeasuredTree]:
    """The trees in the history, by name: entries like those of the gradients, with the numbers of features as sizes."""
    trees: dict[str, tuple[MeasuredTree, dict[int, int]]] = {}
    for feed in feeds:
        if place := places.get(feed.argument):
            _, sizes = trees.setdefault(_tree_of(place, feed), (place.gradient.source, {}))
            sizes.update((place.whole.first + i, feed.n_features) for i in range(place.whole.n))
    found = {}
    for name, (source, sizes) in trees.items():
        shapes = [str(sizes.get(entry) or "") for entry in range(len(source.paths))]
        stacks = source.stacks and tuple(map(_stack, source.stacks, shapes))
        of_entries = [(sizes.get(entry) or 1, entry in sizes) for entry in range(len(source.paths))]
        n_features, has_number = zip(*of_entries, strict=True)
        found[name] = MeasuredTree(name, source.paths, n_features, source.dtypes, has_number, tuple(shapes), stacks)
    return found


def _stack(whole: str, features: str) -> str:
    """The shape of all layers, which lie along the same axis as those of the parameter."""
    before, _, layers = whole.partition("*")
    n = layers.partition(",")[0]
    return ",".join(["1"] * before.count(",") + [f"*{n}", *filter(None, [features])]) if layers else ""
