"""The names of JAX's primitives and their parameters, and how to read and bind their equations.

A primitive that no set names computes something new from its operands. To teach treeviz a new one, add its name to
the set that describes it; one that holds a jaxpr and is no plain call also needs a rule in `reap`. What only one rule
reads is in its file: arithmetic in `domains`, the options of a `shard_map` in `reap`.

A primitive whose name differs between releases (jax 0.4.36 to 0.12.0) is listed with each of its names.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import source_info_util
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import PartitionSpec

from treeviz.steps.measure import MeasuredTree, source_of
from treeviz.steps.statistics import ACTIVATIONS, Axes, Parts
from treeviz.steps.tracing.jax_private import current_trace

# Result i is operand i, bit for bit.
IDENTITY = frozenset(
    [
        *("copy", "copy_p", "device_put", "optimization_barrier", "stop_gradient"),
        *("sharding_constraint", "reshard", "mesh_cast"),
        *("pvary", "pcast", "pbroadcast"),  # over which axes of a `shard_map` the value varies
    ]
)
# Result i is operand i in another dtype or precision.
CASTS = frozenset(["convert_element_type", "reduce_precision"])
# The result has the elements of its one operand, in another shape or order.
RESHAPES = frozenset(["broadcast_in_dim", "expand_dims", "reshape", "rev", "squeeze", "transpose"])
# Result i is the same leaf as operand i, so that a gradient with respect to one is a gradient with respect to both.
SAME_LEAF = IDENTITY | CASTS

# The result is a sum over the devices of a `shard_map`; their axes are `params["axes"]`.
DEVICE_SUMS = frozenset(["psum", "psum2", "psum_invariant", "psum_p", "all_reduce"])
# Each device gets the parts of all: `params["all_gather_dimension"]` is longer if `params["tiled"]`, else new.
GATHERS = frozenset(["all_gather", "all_gather_invariant"])
# They add updates into an array by index, as the gradient of an embedding does.
SCATTER_ADDS = frozenset(["scatter-add"])
# Each element of the result comes from one of each operand. XLA merges these with what uses the result.
ELEMENTWISE = CASTS | frozenset(
    [
        *("abs", "add", "add_any", "copy", "div", "exp", "integer_pow", "log", "logistic", "max", "min", "mul", "neg"),
        *("one_minus_square", "rsqrt", "select_n", "sign", "sqrt", "square", "sub", "tanh"),
        *("and", "eq", "ge", "gt", "le", "lt", "ne", "not", "or"),
    ]
)
# Element-wise functions and sums that never give an infinity of one sign for an infinity of the other: exp(-Inf) is 0.
KEEPS_SIGN_OF_INFINITY = frozenset(
    [
        *("exp", "exp2", "expm1", "log", "log1p", "log2", "sqrt", "add", "add_any", "max", "min"),
        *("convert_element_type", "reduce_sum", "reduce_max", "reduce_min", "cumsum", "cumlogsumexp"),
    ]
)
# They call the host to show something, and have no results.
DEBUG_CALLBACKS = frozenset(["debug_callback", "debug_print"])
# They have a meaning inside a compiled program only.
COMPILED_ONLY = frozenset(["shard_map", "xla_pmap"])

# Calls: each runs one jaxpr, once, on all its operands, and gives its results.
JITS = frozenset(["jit", "pjit"])
REMATS = frozenset(["remat2", "checkpoint"])
# Those with a derivative rule, which a traced step does not need any more: it is differentiated already.
CUSTOM_DERIVATIVES = frozenset(["custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"])
CALLS = JITS | REMATS | CUSTOM_DERIVATIVES | {"eval_jaxpr", "closed_call", "core_closed_call", "core_call"}

COND, PMAP, SCAN, SHARD_MAP, WHILE = "cond", "xla_pmap", "scan", "shard_map", "while"


# Jaxprs inside an equation

# Each equation is asked several times, so most are distinguished by name; and no unions, which are slower.
_LISTS, _JAXPRS = (tuple, list), (Jaxpr, ClosedJaxpr)
_WITHOUT_JAXPR = ELEMENTWISE | RESHAPES | SAME_LEAF | {"dot_general", "reduce_max", "reduce_sum", "treeviz_sow"}


def inner_jaxprs(eqn: Any) -> list[Any]:
    """Every jaxpr, open or closed, among the parameters of an equation."""
    found: list[Any] = []
    if eqn.primitive.name in _WITHOUT_JAXPR:
        return found
    for value in eqn.params.values():
        if isinstance(value, _LISTS):
            found += [x for x in value if isinstance(x, _JAXPRS)]
        elif isinstance(value, _JAXPRS):
            found.append(value)
    return found


def equations(jaxpr: Any, around: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Every equation of a jaxpr and of those inside it, each with the equations around it, the outermost first."""
    for eqn in open_jaxpr(jaxpr).eqns:
        yield eqn, around
        for inner in inner_jaxprs(eqn):
            yield from equations(inner, (*around, eqn))


def effects_in(program: ClosedJaxpr) -> set[str]:
    """The names of the primitives in a program that do more than return results, as `io_callback` does."""
    found = equations(program) if program.jaxpr.effects else ()
    return {eqn.primitive.name for eqn, _ in found if eqn.effects and not inner_jaxprs(eqn)}


def open_jaxpr(jaxpr: Any) -> Jaxpr:
    return jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr


def consts_of(jaxpr: Any) -> Sequence[Any]:
    return jaxpr.consts if isinstance(jaxpr, ClosedJaxpr) else ()


def called_jaxpr(eqn: Any) -> Any:
    """The jaxpr of one of `CALLS`, of a scan, or of a `shard_map`."""
    return inner_jaxprs(eqn)[0]


def programs(eqn: Any, operands: Sequence[Any]) -> list[tuple[Any, Sequence[Any]]]:
    """The jaxprs that an equation runs, each with what stands for its operands; none for an unknown primitive."""
    name = eqn.primitive.name
    if name == COND:
        return [(branch, operands[1:]) for branch in eqn.params["branches"]]
    if name == WHILE:
        parts = while_parts(eqn, operands)
        return [(parts.condition, [*parts.cond_consts, *parts.carry]), (parts.body, [*parts.body_consts, *parts.carry])]
    return [(called_jaxpr(eqn), operands)] if name in CALLS or name in (PMAP, SCAN, SHARD_MAP) else []


class ScanParts(NamedTuple):
    """A scan's body, which takes `(*consts, *carry, *x)`, its operands by their role, and its options."""

    body: ClosedJaxpr
    consts: Sequence[Any]
    carry: Sequence[Any]
    xs: Sequence[Any]
    length: int
    reverse: bool
    unroll: Any


def scan_parts(eqn: Any, operands: Sequence[Any]) -> ScanParts:
    p = eqn.params
    if "ft_in" in p:  # from jax 0.11 on: a flat tree of the consts, the carry and the xs
        n_consts, n_carry, _ = map(len, p["ft_in"].unpack())
    else:
        n_consts, n_carry = p["num_consts"], p["num_carry"]
    consts, carry = operands[:n_consts], operands[n_consts : n_consts + n_carry]
    xs = operands[n_consts + n_carry :]
    return ScanParts(p["jaxpr"], consts, carry, xs, p["length"], p["reverse"], p["unroll"])


class WhileParts(NamedTuple):
    """A while loop's jaxprs, which take `(*consts, *carry)`, and its operands by their role."""

    condition: ClosedJaxpr
    body: ClosedJaxpr
    cond_consts: Sequence[Any]
    body_consts: Sequence[Any]
    carry: Sequence[Any]


def while_parts(eqn: Any, operands: Sequence[Any]) -> WhileParts:
    n_cond, n_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    body_consts, carry = operands[n_cond : n_cond + n_body], operands[n_cond + n_body :]
    return WhileParts(eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"], operands[:n_cond], body_consts, carry)


def is_recomputed(eqn: Any) -> bool:
    """Whether an equation is the second run of a `jax.checkpoint`, made for the backward pass."""
    return bool(eqn.params.get("differentiated"))


def is_scalar(atom: Any) -> bool:
    return getattr(atom.aval, "shape", None) == ()


def shape_and_dtype(atom: Any) -> tuple[tuple[int, ...] | None, Any]:
    """None for what has none, as types of `jax.experimental.hijax`."""
    return getattr(atom.aval, "shape", None), getattr(atom.aval, "dtype", None)


def size_of(atom: Any) -> int:
    """The number of elements; 0 where there is none."""
    return getattr(atom.aval, "size", 0)


# Running a jaxpr equation by equation


def bind(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """Apply an equation's primitive to other operands. Returns a list, also for a single result."""
    params = eqn.primitive.get_bind_params(eqn.params)
    # until jax 0.8 or so: the functions that come before the operands, and the parameters
    functions, params = params if isinstance(params, tuple) else ((), params)
    results = eqn.primitive.bind(*functions, *operands, **params)
    return list(results) if eqn.primitive.multiple_results else [results]


@contextmanager
def context_of(eqn: Any) -> Iterator[None]:
    """A context in which new equations get the name stack, source line and JAX settings of an existing one."""
    names = source_info_util.current_name_stack() + eqn.source_info.name_stack
    with source_info_util.user_context(eqn.source_info.traceback, name_stack=names), eqn.ctx.manager:
        yield


def needed(jaxpr: Jaxpr, wanted: Iterable[Any], also: Callable[[Any], bool] = lambda eqn: False) -> dict[int, Any]:
    """The equations on which the wanted variables depend, and those for which `also` is true, by number, in order."""
    used, found = {x for x in wanted if not isinstance(x, Literal)}, {}
    for n in range(len(jaxpr.eqns) - 1, -1, -1):
        eqn = jaxpr.eqns[n]
        if not used.isdisjoint(eqn.outvars) or also(eqn):
            found[n] = eqn
            used.update([x for x in eqn.invars if not isinstance(x, Literal)])
    return dict(reversed(found.items()))


def last_uses(
    jaxpr: Jaxpr, kept: AbstractSet[Any] = frozenset(), without: AbstractSet[int] = frozenset()
) -> dict[int, list[Any]]:
    """By the number of an equation, the variables that are not needed after it; those `without` are not run."""
    last: dict[Any, int] = {}
    for n, eqn in enumerate(jaxpr.eqns):
        if n not in without:
            last.update([(v, n) for v in (*eqn.invars, *eqn.outvars) if not isinstance(v, Literal)])
    kept = kept | {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    used: dict[int, list[Any]] = defaultdict(list)
    for variable in last.keys() - kept:
        used[last[variable]].append(variable)
    return used


# The identity primitive `sow`: it tags a tree in a traced program, so that `reap` can find it there.


NO_GRADIENTS = ("tap", "loss", ACTIVATIONS)  # kinds of sown trees


class Feed(NamedTuple):
    """Which parameter a value goes into, or comes out of."""

    role: str  # of `ROLES`
    argument: int  # the number of the program's argument
    use: int  # from 1
    is_layer: bool  # of what a scan takes apart
    n_features: int


class Activation(NamedTuple):
    feeds: tuple[Feed, ...]
    features: tuple[int, ...] | None = None  # the axes that a product contracts
    n_rows: int | None = None  # of the embedding that the value is indices of


@dataclass(frozen=True, eq=False)
class Sown:
    """A sown tree, as known while tracing. Holds descriptions only, no tracer."""

    # "grads" of a differentiated function, "cotangents" of a `jax.vjp`, "tap" or `ACTIVATIONS`; "params", "updates" and
    # "received" for what is measured together with a gradient; "loss", which only tells which results are the loss.
    kind: str
    source: MeasuredTree  # named as the kind, or the name given to `tap`; "grads (loss)" of the function `loss`
    axes: Axes = ()  # of the layers of each leaf that holds some, as `reap` has found them
    activations: tuple[Activation, ...] = ()  # of each value


def joined_tags(tags: Sequence[Sown]) -> Sown:
    """Several values of activations as one tree."""
    columns: Any = zip(*[tag.source[1:6] for tag in tags], strict=True)
    source = MeasuredTree(ACTIVATIONS, *[tuple(itertools.chain(*column)) for column in columns])
    return Sown(ACTIVATIONS, source, activations=tuple([activation for tag in tags for activation in tag.activations]))


class Axis(NamedTuple):
    kind: str  # "step", "member" or "device"
    size: int | None  # None: the size is that of the packed rows
    parts: Parts | None = None  # where the devices have parts of the arrays


@dataclass(frozen=True, eq=False)
class Reaped:
    """A sown tree, as known when the whole program has been run. Holds no tracer."""

    sown: Sown
    axes: tuple[Axis, ...]  # the leading axes of its packed rows, the outermost first
    origins: tuple[int | None, ...]  # the number of the program argument that each value is the gradient of, if known
    is_differentiated: bool = False  # as in a penalty on the norm of a gradient
    summed_over: frozenset[str] = frozenset()  # the axes of a `shard_map` over which all values have been summed
    shards: tuple[PartitionSpec, ...] = ()  # how each array is divided, if the devices of a `shard_map` have its parts
    batched: tuple[tuple[int | None, ...], ...] = ()  # for each `vmap`, the innermost first: the batch axes of origins
    changes_in_loop: bool = False  # the leaves that the values are the gradients of change inside a loop of the program
    is_of_last_step: bool = False  # of a while loop, whose number of steps is unknown
    gradient: Sown | None = None  # with which this is measured, as an update in a loop
    tagged: Sown | None = None  # the tree as the program sows it

    @property
    def is_of_call(self) -> bool:
        """Whether these are the gradients of a call of `jax.grad`."""
        return self.gradient is None and self.sown.kind not in NO_GRADIENTS

    def within(self, axis: Axis) -> Reaped:
        return replace(self, axes=(axis, *self.axes))

    def outside(self, origins: Sequence[int | None]) -> Reaped:
        """The same outside of an equation with operands of these origins, by whose number it is known inside."""
        return replace(self, origins=tuple(None if o is None else origins[o] for o in self.origins))


def sow(kind: str, tree: Any, origins: Any = (), name: str = "grads") -> Any:
    """Tag the numeric leaves of a tree in the traced program, as gradients of `origins`, and return the tree."""
    leaves, treedef = jax.tree.flatten(tree)
    origins = jax.tree.leaves(origins)
    source = source_of(tree, name)
    if not any(source.has_number):
        return tree
    places = [i for i, has in enumerate(source.has_number) if has]
    operands = [leaves[i] for i in places] + [origins[i] for i in places if len(origins) == len(leaves)]
    values = sow_p.bind(*operands, sown=Sown(kind, source), n=len(places), batched=(), differentiated=False)
    for i, leaf in zip(places, values, strict=True):
        leaves[i] = leaf
    return jax.tree.unflatten(treedef, leaves)


# Operands: n values, then the value that each of them is the gradient of, if known. Results: the n values.
# `differentiated`: the values are a part of what is differentiated.
# `batched`: for every `vmap` around it, the innermost first, the batch axis of each operand (None: not batched).
sow_p = Primitive("treeviz_sow")
sow_p.multiple_results = True
sow_p.def_impl(lambda *operands, n, **_: list(operands[:n]))
sow_p.def_abstract_eval(lambda *avals, n, **_: list(avals[:n]))
ad.primitive_jvps[sow_p] = lambda primals, tangents, *, n, **params: (
    sow_p.bind(*primals, n=n, **{**params, "differentiated": True}),
    list(tangents[:n]),
)
batching.primitive_batchers[sow_p] = lambda operands, dims, *, n, batched, **params: (
    sow_p.bind(*operands, n=n, batched=(*batched, tuple(dims)), **params),
    list(dims[:n]),
)
# A program that is lowered without `reap` computes what it would without `sow`.
mlir.register_lowering(sow_p, lambda ctx, *operands, n, **_: list(operands[:n]))

# jax 0.4: every primitive needs a rule for the axes over which its results are replicated.
if not hasattr(jax, "shard_map"):
    from jax.experimental import shard_map

    shard_map.register_check(sow_p)(lambda mesh, *replicated, n, **_: list(replicated[:n]))  # type: ignore[attr-defined]
    shard_map.register_norewrite(sow_p)  # type: ignore[attr-defined]

# Add equations to a program unchanged, so that JAX need not infer their shapes and types again.

_METHODS = {  # of what traces a program, with their parameters, since jax 0.8 or so
    "emit_eqn": ("self", "in_tracers", "out_avals", "primitive", "params", "effects", "source_info", "ctx"),
    "new_const": ("self", "c", "source_info", "aval"),
}

Add = Callable[[Any, Sequence[Any]], Sequence[Any] | None]


def adds_copies() -> Add:
    """A function that adds an equation with operands to the current trace; it returns the results, or None."""
    trace = current_trace()
    if not _can_add(type(trace)):
        return lambda eqn, operands: None
    names = source_info_util.current_name_stack()

    def add(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
        # JAX lowers a high primitive to others before it compiles it, for which it marks the program (jax 0.8).
        is_high = getattr(eqn.primitive, "is_high", None)
        if eqn.effects or (is_high is not None and is_high(*[atom.aval for atom in eqn.invars], **eqn.params)):
            return None
        source, atoms = eqn.source_info.replace(name_stack=names + eqn.source_info.name_stack), []
        for atom, x in zip(eqn.invars, operands, strict=True):
            if isinstance(atom, Literal):
                x = trace.new_const(atom.val, source, atom.aval)
            elif getattr(x, "_trace", None) is not trace:
                return None
            atoms.append(x)
        types = [v.aval for v in eqn.outvars]
        return trace.emit_eqn(atoms, types, eqn.primitive, eqn.params, eqn.effects, source, eqn.ctx)

    return add


@cache
def _can_add(kind: type) -> bool:
    found = {name: getattr(kind, name, None) for name in _METHODS}
    return all(f is not None and tuple(inspect.signature(f).parameters) == _METHODS[name] for name, f in found.items())


# Find the sown values in a jaxpr, and those that are summed afterwards.


def sown_in(jaxpr: Any, recomputed: bool = False) -> Iterator[tuple[Sown, bool]]:
    """Every sown tree in a jaxpr and in those inside it, and whether `jax.checkpoint` computes it a second time."""
    for eqn, around in equations(jaxpr):
        if eqn.primitive is sow_p:
            yield eqn.params["sown"], recomputed or any(map(is_recomputed, around))


def holds_sown(eqn: Any) -> bool:
    """Whether an equation sows, or one in its jaxprs does."""
    inner_ones = inner_jaxprs(eqn)
    return eqn.primitive is sow_p or (bool(inner_ones) and any(True for inner in inner_ones for _ in sown_in(inner)))


def sums_of_sown(jaxpr: Jaxpr, axis_sizes: Mapping[str, int]) -> dict[int, list[tuple[Any, frozenset[str]]]]:
    """The sown gradients of which some are then summed over the devices of a `shard_map`, as of the whole batch.

    By the number of the equation that sows, for each value: the variable that holds the sum or mean, and the axes of
    the mesh that it is over; the value itself and none where it is not summed.
    """
    if not any(eqn.primitive.name in DEVICE_SUMS for eqn in jaxpr.eqns):
        return {}
    n_uses = Counter(x for eqn in jaxpr.eqns for x in eqn.invars if not isinstance(x, Literal))
    found: dict[int, list[tuple[Any, frozenset[str]]]] = {}
    at: dict[Any, tuple[int, int]] = {}  # by the variable that a sown value is now: the places of its sum in `found`
    for n, eqn in enumerate(jaxpr.eqns):
        name = eqn.primitive.name
        if eqn.primitive is sow_p and eqn.params["sown"].kind not in NO_GRADIENTS:
            found[n] = [(v, frozenset()) for v in eqn.outvars]
            at.update((v, (n, i)) for i, v in enumerate(eqn.outvars))
        for x, out in zip(eqn.invars, eqn.outvars, strict=False):
            if isinstance(x, Literal) or x not in at:
                continue
            place, i = at[x]
            end, axes = found[place][i]
            n_devices = math.prod(axis_sizes.get(axis, 1) for axis in axes)
            if name in DEVICE_SUMS:
                axes |= {axis for axis in eqn.params["axes"] if isinstance(axis, str)}
            elif n_uses[x] > 1:
                continue
            elif name not in SAME_LEAF:  # it may divide by the number of devices, and so make a mean of a sum
                by = eqn.invars[-1]
                if name not in ("div", "mul") or not isinstance(by, Literal) or n_devices == 1:
                    continue
                if not np.all(np.isclose(np.float32(by.val), n_devices if name == "div" else 1 / n_devices)):
                    continue
            found[place][i] = out if axes or name in DEVICE_SUMS else end, axes
            at[out] = at.pop(x)
    return {n: sums for n, sums in found.items() if any(axes for _, axes in sums)}


# The parameters of a `shard_map`.


def specs_of(p: dict[str, Any], which: str, values: Sequence[Any]) -> Sequence[Any]:
    """The `PartitionSpec` of each operand, "in", or result, "out"."""
    if f"{which}_specs" in p:
        return p[f"{which}_specs"]
    # jax 0.4 has a dict instead: the axes of the mesh by the number of the dimension
    return [
        PartitionSpec(*[names.get(i) for i in range(len(value.aval.shape))])
        for names, value in zip(p[f"{which}_names"], values, strict=True)
    ]


def axes_in(spec: Iterable[Any]) -> tuple[str, ...]:
    """The mesh axes in a `PartitionSpec`, or in a part of it."""
    return tuple(
        name for names in spec for name in (names if isinstance(names, tuple) else (names,)) if name is not None
    )
