"""What an operation costs, and who pays: the leaf of the arguments that it reads, or whose gradient it computes.

An operation *reads a leaf* if an operand is this leaf, moved or cast, a slice of it, or computed from parameters alone.
It *computes a gradient* if its result becomes the gradient through moves and sums. All others, such as an activation
function or the product of queries and keys, belong to no leaf.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from treeviz.steps.reduce import spec_of
from treeviz.steps.tracing.dataflow import Domain, Followed
from treeviz.steps.tracing.primitives import (
    CALLS,
    CASTS,
    COND,
    DEVICE_SUMS,
    ELEMENTWISE,
    GATHERS,
    IDENTITY,
    RESHAPES,
    SAME_LEAF,
    SCAN,
    SHARD_MAP,
    axes_in,
    called_jaxpr,
    is_scalar,
    needed,
    open_jaxpr,
    programs,
    scan_parts,
    size_of,
    sow_p,
)

Spec = tuple[tuple[str, ...], ...]  # for each dimension, the axes of the mesh that divide it; () if none does
Place = tuple[int, ...]  # of an equation: the ids of the equations around it, the outermost first, and its own

_PARTS = frozenset(["slice", "dynamic_slice", "split"])
_MOVES = SAME_LEAF | RESHAPES | GATHERS | DEVICE_SUMS | _PARTS
# From a gradient back to the operations that compute it: a use of a leaf adds to what the other uses have given.
_SUMS = _MOVES | {"add_any", "add", "reduce_scatter", "psum_scatter", "pad", "concatenate"}


class Known(NamedTuple):
    leaf: int | None = None  # the argument that it is, or the only one from which it is computed
    is_gradient: bool = False  # it is the gradient of `leaf` instead
    is_after: bool = False  # it depends on a gradient
    last: tuple[int, int] = (-1, -1)  # the last parameter that was read on the way to it: when, and which argument
    spec: Spec = ()


_UNKNOWN = Known()


class Payers(Domain[Known]):
    """Knows from which leaf a value comes, and how it is divided over the devices of a mesh.

    Of several leaves that an operation reads, that of the least `rank` pays; a function of `params` is still the first.
    """

    def __init__(
        self,
        rank: Sequence[Any],
        params: Collection[int],
        gradient_of: Mapping[Place, int],
        avals: Sequence[Any],
        specs: Sequence[Spec],
    ) -> None:
        self._rank, self._params, self._specs = rank, params, specs
        self._shape_of = [getattr(aval, "shape", None) for aval in avals]
        self._gradient_of = {place[-1]: leaf for place, leaf in gradient_of.items()}
        self._when: dict[tuple[int, int], int] = {}
        self.origins: dict[int, list[int | None]] = {}  # by the id of an equation that sows gradients

    def unknown(self, atom: Any) -> Known:
        return _UNKNOWN

    def constant(self, value: Any) -> Known:
        return _UNKNOWN

    def join(self, values: Sequence[Known], atom: Any) -> Known:
        """Of a parameter, the first turn of a loop counts: in an epoch, later turns have new ones."""
        is_same = all(value.leaf == values[0].leaf for value in values)
        leaf = values[0].leaf if is_same or not self._params or values[0].leaf in self._params else None
        spec = values[0].spec if all(value.spec == values[0].spec for value in values) else ()
        is_after = any(value.is_after for value in values)
        return Known(leaf, all(v.is_gradient for v in values), is_after, max(v.last for v in values), spec)

    def entry(self, xs: Known) -> Known:
        return xs._replace(spec=xs.spec[1:])

    def stacked(self, y: Known) -> Known:
        return y._replace(leaf=y.leaf if y.is_gradient else None, spec=((), *y.spec) if y.spec else ())

    def payer(self, operands: Sequence[Known]) -> int | None:
        leaves = [value.leaf for value in operands if value.leaf is not None]
        return min(leaves, key=self._rank.__getitem__) if leaves else None

    def results(self, eqn: Any, operands: Sequence[Known]) -> Sequence[Known]:
        name = eqn.primitive.name
        if eqn.primitive is sow_p:
            return self._sown(eqn, operands)
        if name in IDENTITY or name in DEVICE_SUMS or name in CASTS:
            return [
                known._replace(spec=_given(v) or known.spec) for known, v in zip(operands, eqn.outvars, strict=False)
            ]
        if name in _MOVES:
            return [operands[0]._replace(spec=_result_spec(eqn, operands, v)) for v in eqn.outvars]
        payer, is_after = self.payer(operands), any(known.is_after for known in operands)
        leaf, last = None, max([known.last for known in operands], default=(-1, -1))
        if payer is not None:
            if payer in self._params:
                last = max(last, (self._when.setdefault((id(eqn), payer), len(self._when)), payer))
            read = [known for known, x in zip(operands, eqn.invars, strict=True) if not isinstance(x, Literal)]
            leaf = payer if not is_after and all(known.leaf in self._params for known in read) else None
        of_gradient = self._gradient_of.get(id(eqn))
        if of_gradient is not None and eqn.outvars[0].aval.shape == self._shape_of[of_gradient]:
            return [Known(leaf, False, is_after, last, self._specs[of_gradient])]
        return [Known(leaf, False, is_after, last, _result_spec(eqn, operands, v)) for v in eqn.outvars]

    def _sown(self, eqn: Any, operands: Sequence[Known]) -> Sequence[Known]:
        n, sown = eqn.params["n"], eqn.params["sown"]
        values, of = operands[:n], operands[n:]
        if sown.kind not in ("grads", "cotangents"):
            return values
        leaves = [known.leaf for known in of] if len(of) == n else [None] * n
        self.origins[id(eqn)] = leaves
        specs = [value.spec if leaf is None else self._specs[leaf] for value, leaf in zip(values, leaves, strict=True)]
        return [
            value._replace(leaf=leaf, is_gradient=leaf is not None, is_after=True, spec=spec)
            for value, leaf, spec in zip(values, leaves, specs, strict=True)
        ]


# How a value is divided over the devices of a mesh: as its type or a constraint says; else as its operands are.


def _given(v: Any) -> Spec:
    return spec_axes(spec_of(v.aval), len(v.aval.shape)) if any(spec_of(v.aval)) else ()


def spec_axes(spec: Any, n: int) -> Spec:
    """The axes of each of the `n` dimensions of a `PartitionSpec`; () if there are none."""
    axes = [axes_in((part,)) if isinstance(part, str | tuple) else () for part in spec]
    return (*axes, *[()] * (n - len(axes))) if any(axes) else ()


def _result_spec(eqn: Any, operands: Sequence[Known], out: Any) -> Spec:
    """How a result is divided, by simple rules; the compiler may decide otherwise."""
    name, p, shape = eqn.primitive.name, eqn.params, getattr(out.aval, "shape", ())
    if given := _given(out):
        return given
    if name == "sharding_constraint":
        spec = getattr(p.get("sharding"), "spec", None)
        return operands[0].spec if spec is None else spec_axes(spec, len(shape))
    if not any(known.spec for known in operands):
        return ()
    first, spec = eqn.invars[0], _padded(operands[0].spec, eqn.invars[0])
    if name == "dot_general":
        (left, right), (left_batch, right_batch) = p["dimension_numbers"]
        other = _padded(operands[1].spec, eqn.invars[1])
        free = [axes for i, axes in enumerate(spec) if i not in left and i not in left_batch]
        free += [axes for i, axes in enumerate(other) if i not in right and i not in right_batch]
        return _once([*[spec[i] or other[j] for i, j in zip(left_batch, right_batch, strict=True)], *free])
    if name == "conv_general_dilated":
        numbers = p["dimension_numbers"]
        dims: list[tuple[str, ...]] = [()] * len(shape)
        dims[numbers.out_spec[0]] = spec[numbers.lhs_spec[0]]
        dims[numbers.out_spec[1]] = _padded(operands[1].spec, eqn.invars[1])[numbers.rhs_spec[0]]
        return _once(dims)
    if name == "transpose":
        return tuple([spec[i] for i in p["permutation"]])
    if name == "broadcast_in_dim":
        places = dict(zip(p["broadcast_dimensions"], spec, strict=True))
        return tuple([places.get(i, ()) if size > 1 else () for i, size in enumerate(shape)])
    if name == "squeeze":
        return tuple([axes for i, axes in enumerate(spec) if i not in {d % len(spec) for d in p["dimensions"]}])
    if name.startswith(("reduce_", "arg")) and "axes" in p and len(shape) < len(spec):
        return tuple([axes for i, axes in enumerate(spec) if i not in p["axes"]])
    if name in ("reshape", "expand_dims"):
        return _reshaped(spec, first.aval.shape, shape)
    if name == "gather":  # of an embedding: the dimensions of the indices come first
        of_indices = _padded(operands[1].spec, eqn.invars[1])[:-1]
        return _once([*of_indices, *[()] * len(shape)][: len(shape)])
    dims = [()] * len(shape)
    for known, x in zip(operands, eqn.invars, strict=True):  # dimensions of the same size, from the first on
        sizes = getattr(x.aval, "shape", ())
        n_same = next((i for i, (a, b) in enumerate(zip(sizes, shape, strict=False)) if a != b), len(shape))
        for i, axes in enumerate(known.spec[: len(shape) if len(sizes) == len(shape) else n_same]):
            if sizes[i] == shape[i]:
                dims[i] = dims[i] or axes
    return _once(dims)


def _padded(spec: Spec, atom: Any) -> Spec:
    return (*spec, *[()] * (len(getattr(atom.aval, "shape", ())) - len(spec)))


def _once(dims: Sequence[tuple[str, ...]]) -> Spec:
    """Each axis of the mesh divides one dimension: the first."""
    used: set[str] = set()
    kept = []
    for axes in dims:
        kept.append(() if used & {*axes} else axes)
        used.update(axes)
    return tuple(kept) if used else ()


def _reshaped(spec: Spec, before: Sequence[int], after: Sequence[int]) -> Spec:
    """A divided dimension is the first of those that it is split into; of merged ones, the first counts."""
    found: list[tuple[str, ...]] = []
    i, done = 0, 1  # dimensions of `before`, and the elements of those that are done
    total = 1
    for size in after:
        while i < len(before) and (before[i] == 1 and size != 1):
            i += 1
        is_start = i < len(before) and total == done and size > 1
        found.append(spec[i] if is_start else ())
        total *= size
        while i < len(before) and done < total:
            done *= before[i]
            i += 1
    return tuple(found)


def spread_back(visits: Sequence[tuple[Any, Sequence[Known], Followed[Known]]]) -> dict[tuple[int, Any], Spec]:
    """How values without a division of their own, as masks, are divided: as what is computed from them, by jaxpr."""
    found: dict[tuple[int, Any], Spec] = {}
    made_in: dict[tuple[int, Any], tuple[int, Any]] = {}  # the same value in the jaxpr of a call

    def divide(inside: int, x: Any, spec: Spec) -> None:
        while found.setdefault((inside, x), spec) is spec and (inside, x) in made_in:
            inside, x = made_in[inside, x]

    for eqn, _, inside in visits:
        if eqn.primitive.name in CALLS:
            (inner,) = inside.inside[id(eqn)]
            pairs = zip(eqn.outvars, inner.jaxpr.outvars, strict=True)
            made_in.update({(id(inside), v): (id(inner), x) for v, x in pairs if not isinstance(x, Literal)})
    for eqn, operands, inside in reversed(visits):
        for v in eqn.outvars if is_fusible(eqn) else ():
            spec = inside.read(v).spec or found.get((id(inside), v), ())
            for x, known in zip(eqn.invars, operands, strict=True) if any(spec) else ():
                if not any(known.spec) and not isinstance(x, Literal) and x.aval.shape == v.aval.shape:
                    divide(id(inside), x, spec)
    return found


# Which equations compute the gradient of which argument: backwards from the gradients that are sown.


def gradient_payers(program: ClosedJaxpr, origins: Mapping[int, Sequence[int | None]]) -> dict[Place, int]:
    """For each equation that computes a gradient, the argument of which it is; `origins` as of `Payers`."""
    found: dict[Place, int] = {}
    _back(program, {}, origins, found, ())
    return found


def _back(
    program: Any, of: dict[Any, int], origins: Mapping[int, Sequence[int | None]], found: dict[Place, int], place: Place
) -> list[int | None]:
    """Go backwards through a jaxpr; `of`: variables that become gradients. Returns what its arguments become."""
    jaxpr = open_jaxpr(program)

    def pass_on(variables: Sequence[Any], leaves: Sequence[int | None]) -> None:
        for x, leaf in zip(variables, leaves, strict=False):
            if leaf is not None and not isinstance(x, Literal):
                of.setdefault(x, leaf)

    for eqn in reversed(jaxpr.eqns):
        name = eqn.primitive.name
        if eqn.primitive is sow_p:
            pass_on(eqn.invars, [of.get(v) for v in eqn.outvars])
            pass_on(eqn.invars, origins.get(id(eqn), ()))
            continue
        leaves = [of.get(v) for v in eqn.outvars]
        if name in Domain.enters:
            for inner, operands in programs(eqn, eqn.invars):
                outvars = open_jaxpr(inner).outvars
                if len(outvars) == len(leaves):  # not the condition of a while loop
                    pairs = zip(outvars, leaves, strict=True)
                    becomes = {v: leaf for v, leaf in pairs if leaf is not None and not isinstance(v, Literal)}
                    pass_on(operands, _back(inner, becomes, origins, found, (*place, id(eqn))))
        elif any(leaf is not None for leaf in leaves):
            leaf = next(leaf for leaf in leaves if leaf is not None)
            found[*place, id(eqn)] = leaf
            if name in IDENTITY or name in DEVICE_SUMS:
                pass_on(eqn.invars, leaves)
            elif name in _SUMS or (name == "reduce_sum" and size_of(eqn.invars[0]) == size_of(eqn.outvars[0])):
                size = size_of(eqn.outvars[0])
                pass_on([x for x in eqn.invars if name in _MOVES or size_of(x) == size], [leaf] * len(eqn.invars))
    return [of.get(v) for v in jaxpr.invars]


# When an equation runs, and how often


@dataclass
class Level:
    """A jaxpr of a program, as it runs."""

    phase: str = ""  # "forward", "backward" or "update": of all its equations; "": they are of several
    times: float = 1  # how often it runs, on all devices together
    turns: float = 1  # on one device
    loops: float = 1  # the part of that which is due to loops
    is_recomputed: bool = False  # it is the second run of a `jax.checkpoint`
    is_transposed: bool = False  # JAX names it as a part of a backward pass
    is_local: bool = False  # it is inside a `shard_map`: arrays have the size that they have on one device
    names: tuple[str, ...] = ()  # the name scopes around it
    place: Place = ()
    live: Collection[int] = ()
    is_fused: bool = False  # it is a call of element-wise operations, which XLA fuses like a single one
    # By the id of an equation: "forward" if a loss in it depends on it, else "backward" if a gradient does.
    phases: dict[int, str] = field(default_factory=dict)
    sources: dict[Any, tuple[Any, ...]] = field(default_factory=dict)


def scopes_of(eqn: Any, around: tuple[str, ...] = ()) -> tuple[tuple[str, ...], str]:
    """The `jax.named_scope`s of an equation and around it, each once; and its own with transformations, as text."""
    stack = eqn.source_info.name_stack
    own = [part.name for part in getattr(stack, "stack", ()) if type(part).__name__ == "Scope"]
    own = [name for name in own if name != "rematted_computation"]
    repeated = bool(own) and around[-len(own) :] == tuple(own)
    names = around if repeated else (*around, *own)
    return tuple([name for n, name in enumerate(names) if n == 0 or name != names[n - 1]]), str(stack)


class Levels:
    """The levels of a program that was followed."""

    def __init__(self, followed: Followed[Known]) -> None:
        self._levels: dict[int, Level] = {}
        # By the id of a jaxpr inside: the jaxpr and its equation that hold it, and its number among those there.
        self.within: dict[int, tuple[Followed[Known], Any, int]] = {}
        self.visits = [*self._visits(followed)]  # equations, with what is known of their operands, and their jaxpr

    def _visits(self, followed: Followed[Known]) -> Iterator[tuple[Any, list[Known], Followed[Known]]]:
        for eqn in followed.jaxpr.eqns:
            yield eqn, [followed.read(x) for x in eqn.invars], followed
            for n, inner in enumerate(followed.inside.get(id(eqn), ())):
                self.within[id(inner)] = followed, eqn, n
                yield from self._visits(inner)

    def of(self, followed: Followed[Known]) -> Level:
        level = self._levels.get(id(followed))
        if level is None:
            level = self._levels[id(followed)] = self._made(followed)
        return level

    def _made(self, followed: Followed[Known]) -> Level:
        jaxpr, level = followed.jaxpr, Level()
        if id(followed) in self.within:
            outer, eqn, n = self.within[id(followed)]
            around, name = self.of(outer), eqn.primitive.name
            names, text = scopes_of(eqn, around.names)
            level = Level(self.phase(eqn, (), outer), around.times, around.turns, around.loops)
            level.is_transposed = around.is_transposed or "transpose(" in text
            level.is_recomputed, level.is_local = around.is_recomputed, around.is_local
            level.names, level.place = names, (*around.place, id(eqn))
            level.is_fused = around.is_fused or is_fusible(eqn)
            level.is_recomputed |= "rematted_computation" in text
            if level.phase == "forward" and not around.phases and around.phase == "":
                level.phase = ""  # it may hold the gradient
            if name == SCAN:
                n_turns = scan_parts(eqn, eqn.invars).length
                level.times, level.turns = level.times * n_turns, level.turns * n_turns
                level.loops = around.loops * n_turns
            elif name == COND and n != dearest_branch(eqn):
                level.times = level.turns = 0
            elif name == SHARD_MAP:
                manual = eqn.params.get("manual_axes") or eqn.params["mesh"].axis_names
                auto = eqn.params.get("auto", ())
                level.times *= math.prod(
                    n for axis, n in eqn.params["mesh"].shape.items() if axis in manual and axis not in auto
                )
                level.is_local = True
        level.live = {id(e) for e in needed(jaxpr, jaxpr.outvars, lambda e: bool(e.effects)).values()}
        sowing = [eqn for eqn in jaxpr.eqns if eqn.primitive is sow_p]
        losses: list[Any] = []
        for eqn in sowing:  # a gradient belongs to the last loss before it, unless one between them does already
            kind, values = eqn.params["sown"].kind, eqn.invars[: eqn.params["n"]]
            if kind == "loss":
                losses.append(values)
            elif kind == "grads" and losses:
                for phase, of in (("forward", losses.pop()), ("backward", values)):
                    for e in needed(jaxpr, of).values():
                        level.phases.setdefault(id(e), phase)
        level.phase = "" if level.phases else level.phase
        level.sources = sources_in(jaxpr)
        return level

    def phase(self, eqn: Any, operands: Sequence[Known], inside: Followed[Known]) -> str:
        level = self.of(inside)
        if level.phase:
            return level.phase
        if id(eqn) in level.phases:
            return level.phases[id(eqn)]
        if level.phases or any(known.is_after for known in operands):
            return "update"
        return "backward" if "transpose(" in scopes_of(eqn)[1] else "forward"


@cache
def dearest_branch(eqn: Any) -> int:
    flops = [flops_in(branch) for branch, _ in programs(eqn, eqn.invars)]
    return flops.index(max(flops))


_FUSIBLE = (
    ELEMENTWISE
    | RESHAPES
    | IDENTITY
    | {
        *(
            "exp2",
            "expm1",
            "log1p",
            "sin",
            "cos",
            "erf",
            "pow",
            "floor",
            "round",
            "clamp",
            "is_finite",
            "iota",
            "erf_inv",
        ),
        *("bitcast_convert_type", "shift_right_logical", "shift_left", "xor", "rem", "reduce_precision", "logistic"),
    }
)
_FREE = (RESHAPES - {"rev", "transpose"}) | IDENTITY | {"iota"}
_CHEAP = CASTS | RESHAPES | IDENTITY | {"iota"}
_MOST_SOURCES = 8


def is_fusible(eqn: Any) -> bool:
    """Whether XLA fuses it with an element-wise operation: it is one, or calls nothing else, as `jnp.where` does."""
    name = eqn.primitive.name
    return name in _FUSIBLE or (name in CALLS and _holds_fusible(called_jaxpr(eqn)))


@cache
def _holds_fusible(program: Any) -> bool:
    return all(map(is_fusible, open_jaxpr(program).eqns))


def sources_in(jaxpr: Any) -> dict[Any, tuple[Any, ...]]:
    """For each variable that is never in memory, those from which it is computed wherever it is read.

    XLA fuses an element-wise operation with the one that reads its result, if that is element-wise or a reduction.
    """
    readers: dict[Any, list[bool]] = {}  # whether each that reads a variable may be fused with what computes it
    for eqn in jaxpr.eqns:
        may_fuse = is_fusible(eqn) or eqn.primitive.name.startswith("reduce_")
        for x in eqn.invars:
            if not isinstance(x, Literal):
                readers.setdefault(x, []).append(may_fuse)
    results, sources = {*(x for x in jaxpr.outvars if not isinstance(x, Literal))}, {}
    for eqn in jaxpr.eqns:
        if eqn.primitive is sow_p:
            pairs = zip(eqn.outvars, eqn.invars, strict=False)
            sources.update((v, real(sources, [x])) for v, x in pairs if not isinstance(x, Literal))
            continue
        for v, names, read in _ways(eqn) if is_fusible(eqn) else ():
            operands, fused = real(sources, read), readers.get(v, [])
            are_scalars, is_move = all(map(is_scalar, operands)), names <= _CHEAP
            is_free = names <= _FREE or (is_move and are_scalars)  # as zeros, which XLA also makes anew in a loop
            is_merged = all(fused) and (is_move or are_scalars or len(fused) <= 1)
            if v not in results and len(operands) <= _MOST_SOURCES and (is_free or is_merged):
                sources[v] = operands
    return sources


def _ways(eqn: Any) -> list[tuple[Any, AbstractSet[str], Sequence[Any]]]:
    """Each result of an equation, the primitives that compute it, and the operands that they read."""
    if eqn.primitive.name not in CALLS:
        return [(v, {eqn.primitive.name}, eqn.invars) for v in eqn.outvars]
    inner, ways = open_jaxpr(called_jaxpr(eqn)), []
    for v, result in zip(eqn.outvars, inner.outvars, strict=True):
        eqns = needed(inner, [result]).values()
        read = {result} if not isinstance(result, Literal) else set()
        read.update(x for e in eqns for x in e.invars if not isinstance(x, Literal))
        operands = [x for x, of in zip(eqn.invars, inner.invars, strict=True) if of in read]
        ways.append((v, {name for e in eqns for name in _names(e)}, operands))
    return ways


def _names(eqn: Any) -> set[str]:
    inner = open_jaxpr(called_jaxpr(eqn)).eqns if eqn.primitive.name in CALLS else ()
    return {name for e in inner for name in _names(e)} if inner else {eqn.primitive.name}


def real(sources: Mapping[Any, tuple[Any, ...]], variables: Sequence[Any]) -> tuple[Any, ...]:
    """The variables in memory that are read for these."""
    return tuple(dict.fromkeys(x for v in variables if not isinstance(v, Literal) for x in sources.get(v, (v,))))


# The floating-point operations of an equation, counted as XLA's `HloCostAnalysis` counts those of its instruction. A
# multiply-add is two; a product that only reads padding is none; functions such as `exp` count apart, as
# transcendentals. Source: https://github.com/openxla/xla/blob/main/xla/service/hlo_cost_analysis.cc


class Work(NamedTuple):
    """The operations of one equation, without those of programs inside it."""

    flops: float
    transcendentals: float = 0
    is_known: bool = True  # False: this primitive calls code that is no program of JAX


_NO_WORK = Work(0)
# The result has elements of the operands, or none that are computed.
_COMPUTES_NOTHING = (IDENTITY | RESHAPES | GATHERS) | {
    *("slice", "dynamic_slice", "dynamic_update_slice", "concatenate", "pad", "split", "select_and_gather_add"),
    *("iota", "real", "imag", "complex", "empty", "broadcast", "ppermute", "all_to_all"),
    *("axis_index", "random_wrap", "random_unwrap", "random_clone", "create_token", "scatter", "tie_in", "pbroadcast"),
    *("debug_callback", "debug_print", "treeviz_sow", "partition_id", "all_gather_reduced", "unreduced_psum", "name"),
    *("get", "ref_get", "swap", "empty2", "optimization_barrier", "split_replica"),
}
_TRANSCENDENTALS = frozenset(
    [
        *("exp", "exp2", "expm1", "log", "log1p", "sin", "cos", "tan", "tanh", "logistic", "erf", "erfc", "erf_inv"),
        *("rsqrt", "sqrt", "cbrt", "pow", "atan2", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"),
        *("lgamma", "digamma", "polygamma", "igamma", "igammac", "bessel_i0e", "bessel_i1e", "zeta"),
        "regularized_incomplete_beta",
    ]
)  # fmt: skip
_NEUTRAL = {"add": 0, "sub": 0, "mul": 1}  # JAX lowers no operation with this literal
_WITHIN = {"logistic": 3.0, "erf_inv": 37.0}  # what XLA makes of them has other operations, too
_REDUCTIONS = {
    "reduce_sum",
    "reduce_max",
    "reduce_min",
    "reduce_prod",
    "reduce_and",
    "reduce_or",
    "reduce_xor",
    "reduce",
}
_FOREIGN = {
    "pallas_call",
    "custom_call",
    "ffi_call",
    "pure_callback",
    "io_callback",
    "tpu_custom_call",
    "cuda_custom_call",
}


def _dot(eqn: Any) -> float:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    return 2.0 * size_of(eqn.outvars[0]) * math.prod(eqn.invars[0].aval.shape[axis] for axis in contracted)


def _convolution(eqn: Any) -> float:
    """2 for each product of an element of the input with one of the kernel; what is padded or dilated is no element."""
    p, numbers = eqn.params, eqn.params["dimension_numbers"]
    lhs, rhs, out = eqn.invars[0].aval.shape, eqn.invars[1].aval.shape, eqn.outvars[0].aval.shape
    axes = zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:], numbers.out_spec[2:], strict=True)
    n_valid = 1.0
    for i, (of_lhs, of_rhs, of_out) in enumerate(axes):
        kernel = np.arange(rhs[of_rhs]) * p["rhs_dilation"][i] - p["padding"][i][0]
        places = np.add.outer(np.arange(out[of_out]) * p["window_strides"][i], kernel)
        dilation = p["lhs_dilation"][i]
        is_element = (places % dilation == 0) & (places >= 0) & (places <= (lhs[of_lhs] - 1) * dilation)
        n_valid *= float(is_element.sum())
    n_features = rhs[numbers.rhs_spec[0]] * rhs[numbers.rhs_spec[1]]  # the second is of one group
    return 2.0 * n_valid * n_features * out[numbers.out_spec[0]]


def _gather(eqn: Any) -> float:
    """What decides, with `mode="fill"`, as of `jnp.take` and embeddings, which indices are within bounds."""
    if "FILL" not in str(eqn.params["mode"]):
        return 0.0
    n_indices, shape = size_of(eqn.invars[1]), eqn.invars[1].aval.shape
    return 4.0 * n_indices - n_indices / max(shape[-1], 1) + size_of(eqn.outvars[0])


def _window(eqn: Any) -> float:
    return size_of(eqn.outvars[0]) * max(math.prod(eqn.params["window_dimensions"]) - 1, 0)


def _power(eqn: Any) -> float:
    """By repeated squaring; 1 more for a division."""
    n = abs(eqn.params["y"])
    return size_of(eqn.outvars[0]) * (max(n.bit_length() - 1, 0) + max(n.bit_count() - 1, 0) + (eqn.params["y"] < 0))


def _sort(eqn: Any) -> float:
    n = eqn.invars[0].aval.shape[eqn.params["dimension"]] if eqn.invars[0].aval.shape else 1
    return size_of(eqn.invars[0]) * math.ceil(math.log2(max(n, 2)))


def _square_matrix(factor: float) -> Callable[[Any], float]:
    """`factor` n³ for each n × n matrix."""

    def flops(eqn: Any) -> float:
        *batch, m, n = eqn.invars[0].aval.shape
        return factor * math.prod(batch) * m * n * min(m, n)

    return flops


_RULES: dict[str, Callable[[Any], float]] = {
    "dot_general": _dot,
    "conv_general_dilated": _convolution,
    "gather": _gather,
    "integer_pow": _power,
    "sort": _sort,
    "top_k": lambda eqn: size_of(eqn.invars[0]) * math.ceil(math.log2(max(eqn.params["k"], 2))),
    **dict.fromkeys(("reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min"), _window),
    **{name: lambda eqn: size_of(eqn.outvars[0]) for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")},
    **{
        name: lambda eqn: size_of(eqn.invars[-1])
        for name in ("scatter-add", "scatter-mul", "scatter-min", "scatter-max")
    },
    **{name: lambda eqn: sum(map(size_of, eqn.invars)) for name in (*DEVICE_SUMS, "pmax", "pmin", "reduce_scatter")},
    **{name: lambda eqn: 9.0 * (size_of(eqn.invars[0]) - size_of(eqn.outvars[0])) for name in ("argmax", "argmin")},
    "cholesky": _square_matrix(1 / 3),
    "lu": _square_matrix(2 / 3),
    "geqrf": _square_matrix(4 / 3),
    "householder_product": _square_matrix(4 / 3),
    "eigh": _square_matrix(9),
    "svd": _square_matrix(12),
    "triangular_solve": lambda eqn: 1.0 * eqn.invars[0].aval.shape[-1] * size_of(eqn.invars[1]),
    "fft": lambda eqn: 5.0 * size_of(eqn.outvars[0]) * math.log2(max(math.prod(eqn.params["fft_lengths"]), 2)),
    "custom_linear_solve": lambda eqn: flops_in(eqn.params["jaxprs"].solve),
    # Of threefry2x32, on jax 0.12
    "random_bits": lambda eqn: 31.0 * size_of(eqn.outvars[0]),
    "random_split": lambda eqn: 28.0 * size_of(eqn.outvars[0]),
    "random_fold_in": lambda eqn: 37.0 * size_of(eqn.outvars[0]),
}


def work_of(eqn: Any) -> Work:
    """What one equation computes; nothing for one that only moves, and one operation per element by default."""
    name, neutral = eqn.primitive.name, _NEUTRAL.get(eqn.primitive.name)
    literals = [x.val for x in eqn.invars[name == "sub" :] if isinstance(x, Literal)]
    if name in _COMPUTES_NOTHING or (neutral is not None and neutral in literals):
        return _NO_WORK
    if name in _TRANSCENDENTALS:
        return Work(_WITHIN.get(name, 0) * size_of(eqn.outvars[0]), size_of(eqn.outvars[0]))
    if name in _REDUCTIONS:
        return Work(max(size_of(eqn.invars[0]) - size_of(eqn.outvars[0]), 0))
    if name in _RULES:
        return Work(float(_RULES[name](eqn)))
    if name in _FOREIGN:
        cost = eqn.params.get("cost_estimate")
        return Work(0, 0, False) if cost is None else Work(cost.flops, cost.transcendentals)
    return Work(sum(map(size_of, eqn.outvars)))


def flops_in(program: Any) -> float:
    """The FLOPs of a program on one device; of a while loop one turn, of a `cond` the branch with the most."""
    total = 0.0
    for eqn in open_jaxpr(program).eqns:
        inner = [flops_in(inner) for inner, _ in programs(eqn, eqn.invars)]
        times = scan_parts(eqn, eqn.invars).length if eqn.primitive.name == SCAN else 1
        total += times * (max(inner) if eqn.primitive.name == COND else sum(inner)) if inner else work_of(eqn).flops
    return total
