"""`reap` runs a traced program, and returns its results and the measurements of its sown values, at any depth."""

from __future__ import annotations

import inspect
import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jax.sharding import PartitionSpec

from treeviz.steps.reduce import (
    TOGETHER,
    ActivationParts,
    BatchSlice,
    PerDevice,
    activation_parts,
    activation_rows,
    barrier,
    spec_of,
    type_of,
)
from treeviz.steps.statistics import MeasuredTree, Parts, WhyNot, nothing_against, shape_of, sibling_name, with_dtypes
from treeviz.steps.tracing.attribution import Attribution
from treeviz.steps.tracing.dataflow import Followed
from treeviz.steps.tracing.domains import AxesOf, Leaf, Path, layer_axes, match_new_params, scanned_in
from treeviz.steps.tracing.jax_private import NotMeasured, Unread
from treeviz.steps.tracing.optimizer_input import CLIPPED, OptimizerInputs, Received, factor
from treeviz.steps.tracing.primitives import (
    CALLS,
    COND,
    ELEMENTWISE,
    JITS,
    NO_GRADIENTS,
    REMATS,
    RESHAPES,
    SCAN,
    SCATTER_ADDS,
    SHARD_MAP,
    WHILE,
    Axis,
    Reaped,
    Sown,
    adds_copies,
    axes_in,
    bind,
    called_jaxpr,
    consts_of,
    context_of,
    holds_sown,
    inner_jaxprs,
    is_recomputed,
    joined_tags,
    last_uses,
    needed,
    open_jaxpr,
    programs,
    scan_parts,
    size_of,
    sow_p,
    sown_in,
    specs_of,
    sums_of_sown,
    while_parts,
)
from treeviz.tree.text import is_any

# The rule of `reap` for `shard_map`, which returns one row per device.


class Devices(NamedTuple):
    params: dict[str, Any]  # the parameters of its equation
    sizes: Mapping[str, int]  # the sizes of the mesh axes that are named inside
    # By the number of an origin: how the operand is divided among the devices, and its shape on each; None: unknown.
    operands: Sequence[tuple[PartitionSpec, tuple[int, ...]] | None]
    is_inner: bool = False  # the `shard_map` is inside another one, so that the operands outside of both are unknown

    @property
    def is_manual(self) -> bool:
        """Whether all axes of the mesh are manual. XLA would gather arrays that are reshaped along another axis."""
        return not self.is_inner and _manual_axes(self.params) == tuple(self.params["mesh"].axis_names)

    def shards(
        self, values: Sequence[Any], origins: Sequence[int | None], summed: Sequence[frozenset[str]] | None
    ) -> tuple[tuple[PartitionSpec, ...], WhyNot]:
        """How each value is divided among the devices, empty unless all are parts of arrays; and why not in layers."""
        specs: list[PartitionSpec | None] = []
        is_whole = not self.is_inner
        for i, (value, origin) in enumerate(zip(values, origins, strict=True)):
            differs = {*varying_axes(self.params, type_of(value))} - (summed[i] if summed else frozenset())
            spec, shape = (None if origin is None else self.operands[origin]) or (None, None)
            spec = spec if shape == value.shape else None  # else it is of a part, as in a loop over it, or of a batch
            spec = PartitionSpec() if spec is None and not differs else spec
            is_whole = is_whole and spec is not None and differs <= {*axes_in(spec)}
            specs.append(spec)

        def why_not(i: int, axis: int) -> str:
            spec = specs[i]
            is_known = spec is not None and (is_whole or not (axes_in(spec[axis : axis + 1]) or self.is_inner))
            return "" if is_known else "which device of the `shard_map` has which of them is not known"

        return tuple(spec for spec in specs if spec is not None) if is_whole else (), why_not

    def whole(self, source: MeasuredTree, shards: Sequence[PartitionSpec]) -> MeasuredTree:
        """A tree with the shapes that its arrays have outside."""
        left, sizes, shapes = iter(shards), list(source.sizes), list(source.shapes)
        for leaf, has in enumerate(source.has_number if shards else ()):
            spec, shape = next(left) if has else (), list(shape_of(source.shapes[leaf]))
            for dim, names in enumerate(spec):
                shape[dim] *= self._n(axes_in([names]))
            sizes[leaf] = math.prod(shape) if has else sizes[leaf]
            shapes[leaf] = ",".join(map(str, shape))
        return source._replace(sizes=tuple(sizes), shapes=tuple(shapes))

    def parts(self, reaped: Reaped, axes: Sequence[str]) -> Parts:
        """For each entry of a tree, its row and the devices that measure it, which are counted along these axes."""
        places = dict(zip(axes, np.indices([self.sizes[axis] for axis in axes]).reshape(len(axes), -1), strict=True))
        left, entries, row = iter(reaped.shards), [], 0
        source, layers = reaped.sown.source, reaped.sown.axes
        for leaf, has in enumerate(source.has_number):
            spec, axis = next(left) if has else (), layers[leaf] if layers else None
            of_layers = () if axis is None else axes_in(spec[axis : axis + 1])
            n_blocks = self._n(of_layers)  # of layers, each on other devices
            n = 1 if axis is None else shape_of(source.shapes[leaf])[axis] // n_blocks
            block, is_first = np.zeros_like(places[axes[0]]), np.ones_like(places[axes[0]], bool)
            for name in of_layers:
                block = block * self.sizes[name] + places[name]
            for name in set(axes) - set(axes_in(spec)):
                is_first &= places[name] == 0
            for k in range(n_blocks):
                devices = np.flatnonzero(is_first & (block == k)).tolist()
                entries += [(row + i, devices) for i in range(n)]
            row += n
        return Parts(entries)

    def _n(self, names: Sequence[str]) -> int:
        return math.prod(self.sizes[name] for name in names)


def reap_shard_map(run: Any, eqn: Any, operands: list[Any], origins: list[int | None]):
    """Run a `shard_map`; packed rows that may differ on the devices get a leading axis of devices."""
    p = eqn.params
    in_specs, inside = tuple(specs_of(p, "in", eqn.invars)), open_jaxpr(p["jaxpr"]).invars
    outer = {} if run.devices is None else run.devices.sizes
    shapes = [(spec, getattr(x.aval, "shape", ())) for spec, x in zip(in_specs, inside, strict=True)]
    devices = Devices(p, {**outer, **p["mesh"].shape}, shapes, bool(outer))
    function, reaped = run.on(devices).traced(p["jaxpr"], range(len(operands)))
    axes = _manual_axes(p)
    may_differ: list[bool] = []

    def with_device_axis(*operands):
        results, packed = function(*operands)
        may_differ[:] = [_may_differ(x, r, p, axes) for x, r in zip(packed, reaped, strict=True)]
        return tuple(results), tuple(x if isinstance(x, PerDevice) else x[None] for x in packed)

    out_specs = (tuple(specs_of(p, "out", eqn.outvars)), PartitionSpec(axes))
    results, packed = shard_map_like(p, with_device_axis, in_specs, out_specs)(*operands)
    found, rows = [], []
    for r, x, differ in zip(reaped, packed, may_differ, strict=True):
        r = r.within(Axis("device", None, devices.parts(r, axes) if r.shards else None)) if differ else r
        found.append(replace(r.outside(origins), summed_over=frozenset(), shards=()))
        rows.append(x if differ else x.replicated() if isinstance(x, PerDevice) else x[0])
    return results, found, rows


def _may_differ(packed: Any, reaped: Reaped, p: dict[str, Any], axes: Sequence[str]) -> bool:
    if reaped.shards:
        return any(map(axes_in, reaped.shards))
    if p.get("check_vma"):
        return any(varying_axes(p, type_of(x)) for x in jax.tree.leaves(packed))
    return not reaped.summed_over >= set(axes)


def varying_axes(p: dict[str, Any], aval: Any) -> tuple[str, ...]:
    """The axes of the mesh along which a value inside may differ, in the order of the mesh."""
    axes = _manual_axes(p)
    if not p.get("check_vma"):
        return axes
    varying = getattr(getattr(aval, "manual_axis_type", None), "varying", None)  # `aval.vma` until jax 0.9 or so
    varying = getattr(aval, "vma", axes) if varying is None else varying
    return tuple(name for name in axes if name in varying)


def _manual_axes(p: dict[str, Any]) -> tuple[str, ...]:
    """In the order of the mesh."""
    names = p["mesh"].axis_names
    manual = p.get("newly_manual_axes", p.get("manual_axes", {*names} - {*p.get("auto", ())}))
    return tuple(name for name in names if name in manual)


def shard_map_like(p: dict[str, Any], function: Callable, in_specs, out_specs) -> Callable:
    """A function on the devices of the `shard_map` with these parameters, and with its options."""
    if "check_vma" in p:
        options = {"check_vma": p["check_vma"], "axis_names": set(_manual_axes(p))}
        return jax.shard_map(function, mesh=p["mesh"], in_specs=in_specs, out_specs=out_specs, **options)
    from jax.experimental.shard_map import shard_map

    # JAX checked the replication when it traced the step. The check has a further effect on differentiation only.
    options = {"auto": p["auto"]} if "auto" in inspect.signature(shard_map).parameters else {}
    return shard_map(function, p["mesh"], in_specs, out_specs, check_rep=False, **options)


# Measure values that are sown under `vmap`: one entry for each member of the batch.

Batched = Sequence[Sequence[int | None]]  # for every `vmap`, the innermost first: the batch axis of each value, or None


def measure_members(
    measure: Callable[..., jax.Array], values: Sequence[Any], batched: Batched
) -> tuple[jax.Array, tuple[Axis, ...]]:
    """`measure` of every member of the batch, stacked; and the axes of the stack, the outermost `vmap` first."""
    if not batched:
        return measure(*values), ()
    sizes, _ = _sizes_and_shapes(values, batched)
    for axes in batched:
        measure = _stacked(measure, axes)
    return measure(*values), tuple([Axis("member", size) for size in sizes])


def _stacked(measure: Callable, axes: Sequence[int | None]) -> Callable:
    """`measure` under one `vmap`, if it batches any of the values."""

    def stacked(*values):
        moved = [jnp.moveaxis(x, axis, 0) if axis else x for x, axis in zip(values, axes, strict=True)]
        return jax.vmap(measure, tuple(None if axis is None else 0 for axis in axes))(*moved)

    return measure if set(axes) == {None} else stacked


def _sizes_and_shapes(values: Sequence[Any], batched: Batched) -> tuple[list[int], list[tuple[int, ...]]]:
    """The size of each `vmap` that batches a value, the outermost first; and the shape of one member of each value."""
    sizes, shapes = [], [x.shape for x in values]
    for axes in reversed(batched):
        sizes += [shape[a] for shape, a in zip(shapes, axes, strict=True) if a is not None][:1]
        shapes = [x if a is None else x[:a] + x[a + 1 :] for x, a in zip(shapes, axes, strict=True)]
    return sizes, shapes


# Gradients that a step discards, e.g. when each of several losses is differentiated with respect to all networks.

_GRADIENTS = ("grads", "cotangents")


def drop_unused_tags(program: ClosedJaxpr) -> ClosedJaxpr:
    """The program without the tags of gradients that it discards, so that XLA need not compute them.

    A tag is dropped only if its parameter has another gradient that is used: the user should learn of a parameter
    without one. The rows of dropped tags have no number.
    """
    n_sown = Counter(sown for sown, _ in sown_in(program))
    dead = {sown: places for sown, places in _unused(program.jaxpr).items() if n_sown[sown] == 1}
    return ClosedJaxpr(_rewritten(program.jaxpr, dead), program.consts) if dead else program


def trained_with(program: Any) -> set[Sown]:
    """The sown gradients that reach results of their size, as new parameters, and not only as norms or weights."""
    found: set[Sown] = set()
    jaxpr = open_jaxpr(program)
    _reaching({x for x in jaxpr.outvars if not isinstance(x, Literal)}, jaxpr, found)
    return found


def _reaching(used: set[Any], jaxpr: Jaxpr, found: set[Sown]) -> set[Any]:
    """Add the variables from which a way leads to these, on which no array is smaller."""
    for eqn in reversed(jaxpr.eqns):
        is_used = [v in used for v in eqn.outvars]
        if not any(is_used):
            continue
        if eqn.primitive is sow_p and eqn.params["sown"].kind in _GRADIENTS:
            n_used = sum(map(size_of, itertools.compress(eqn.outvars, is_used)))
            if 2 * n_used > sum(map(size_of, eqn.outvars)):  # a norm is as large as a leaf with one element
                found.add(eqn.params["sown"])
            used.update([x for x in itertools.compress(eqn.invars, is_used) if not isinstance(x, Literal)])
            continue
        if inside := programs(eqn, eqn.invars) if holds_sown(eqn) else []:
            repeats = eqn.primitive.name in (SCAN, WHILE)  # what one turn returns, the next may pass on
            for inner, operands in inside:
                inner = open_jaxpr(inner)
                wanted = zip(inner.outvars, is_used, strict=False)
                start = {v for v, is_it in wanted if (is_it or repeats) and not isinstance(v, Literal)}
                reached = _reaching(start, inner, found)
                places = zip(operands, inner.invars, strict=False)
                used.update([x for x, v in places if v in reached and not isinstance(x, Literal)])
            continue
        largest = max(map(size_of, itertools.compress(eqn.outvars, is_used)))
        used.update([x for x in eqn.invars if not isinstance(x, Literal) and size_of(x) <= largest])
    return used


def dead_equations(jaxpr: Jaxpr, kept: Set[Any] = frozenset()) -> set[int]:
    """The numbers of equations that affect no results, sown values or kept variables, as those of an unused loss."""

    def is_kept(eqn: Any) -> bool:
        is_tag = eqn.primitive is sow_p and eqn.params["sown"].kind == "loss"
        return eqn.effects or (not is_tag and holds_sown(eqn))

    return {*range(len(jaxpr.eqns))} - needed(jaxpr, [*jaxpr.outvars, *kept], is_kept).keys()


def read_at_the_end(summed, again, received: Iterable[Received]) -> set[Any]:
    """The variables that are read after their last use in the jaxpr: sums, and the operands of recomputed equations."""
    needed = {v for sums in summed.values() for v, _ in sums}
    needed |= {v for what in received for v in what.reads}
    repeated = [eqn for chains in again.values() for chain in chains for eqn in chain.values()]
    return needed | {v for eqn in repeated for v in eqn.invars if not isinstance(v, Literal)}


def _unused(jaxpr: Jaxpr) -> dict[Sown, set[int]]:
    """The numbers of the sown gradients that are discarded; all results of a jaxpr inside count as used."""
    used = {x for x in jaxpr.outvars if not isinstance(x, Literal)}
    dead: dict[Sown, set[int]] = {}
    unused_of, trained = [], set()  # parameters with a gradient that is used
    for eqn in reversed(jaxpr.eqns):
        for inner in inner_jaxprs(eqn):
            dead.update(_unused(open_jaxpr(inner)))
        if eqn.primitive is sow_p and eqn.params["sown"].kind in _GRADIENTS:
            n, unused = eqn.params["n"], {i for i, v in enumerate(eqn.outvars) if v not in used}
            unused_of.append((eqn, unused))
            trained.update([x for i, x in enumerate(eqn.invars[n:]) if i not in unused and not isinstance(x, Literal)])
            used.update([x for i, x in enumerate(eqn.invars) if i not in unused and not isinstance(x, Literal)])
        elif eqn.effects or holds_sown(eqn) or not used.isdisjoint(eqn.outvars):
            used.update([x for x in eqn.invars if not isinstance(x, Literal)])
    for eqn, unused in unused_of:
        params = dict(enumerate(eqn.invars[eqn.params["n"] :]))
        away = {i for i in unused if i in params and not isinstance(params[i], Literal) and params[i] in trained}
        if away:
            dead[eqn.params["sown"]] = away
    return dead


def _rewritten(jaxpr: Jaxpr, dead: Mapping[Sown, set[int]]) -> Jaxpr:
    eqns, same = [], {}
    for eqn in jaxpr.eqns:
        if any(not isinstance(x, Literal) and x in same for x in eqn.invars):
            eqn = eqn.replace(invars=[x if isinstance(x, Literal) else same.get(x, x) for x in eqn.invars])
        if eqn.primitive is sow_p and eqn.params["sown"] in dead:
            places = dead[eqn.params["sown"]]
            same.update((eqn.outvars[i], eqn.invars[i]) for i in places)
            if len(places) < (n := eqn.params["n"]):
                sown, numbers = eqn.params["sown"], iter(range(n))
                kept = [i for i in range(len(eqn.invars)) if i % n not in places]
                has_number = tuple(has and next(numbers) not in places for has in sown.source.has_number)
                params = {
                    **eqn.params,
                    "n": n - len(places),
                    "sown": replace(sown, source=sown.source._replace(has_number=has_number)),
                    "batched": tuple(tuple(dims[i] for i in kept) for dims in eqn.params["batched"]),
                }
                outvars = [v for i, v in enumerate(eqn.outvars) if i not in places]
                eqns.append(eqn.replace(invars=[eqn.invars[i] for i in kept], outvars=outvars, params=params))
            continue
        if any(sown in dead for inner in inner_jaxprs(eqn) for sown, _ in sown_in(inner)):
            eqn = eqn.replace(params={name: _inside(value, dead) for name, value in eqn.params.items()})
        eqns.append(eqn)
    return jaxpr.replace(eqns=eqns)


def _inside(value: Any, dead: Mapping[Sown, set[int]]) -> Any:
    if is_any(type(value), (tuple, list)):
        return type(value)(_inside(part, dead) for part in value)
    if isinstance(value, ClosedJaxpr):
        return ClosedJaxpr(_rewritten(value.jaxpr, dead), value.consts)
    return _rewritten(value, dead) if isinstance(value, Jaxpr) else value


# The rules of `reap`: each runs a higher-order primitive, and returns what is reaped inside it.


class CannotReap(NotMeasured):
    """A value is sown inside a primitive from which it cannot be returned."""


# A rule gets the `reap.Run`, the equation, the values of its operands, and for each operand the number of the argument
# that it is the same leaf as, or None. It returns the results, what was reaped, and the packed rows.
# Only equations with a sown value inside come here; JAX binds all others as they are.


def _call(run: Any, eqn, operands, origins):
    inner = called_jaxpr(eqn)
    return run.jaxpr(open_jaxpr(inner), consts_of(inner), operands, origins)


def _jit(run: Any, eqn, operands, origins):
    p = eqn.params
    function, reaped = run.inside(is_call=True).traced(p["jaxpr"], origins)
    operands = [_with_sharding(x, sharding) for x, sharding in zip(operands, p["in_shardings"], strict=True)]
    function.__name__ = p["name"]
    results, packed = jax.jit(function, inline=p["inline"])(*operands)
    results = [_with_sharding(x, sharding) for x, sharding in zip(results, p["out_shardings"], strict=True)]
    return results, reaped, packed


def _with_sharding(x, sharding):
    return lax.with_sharding_constraint(x, sharding) if isinstance(sharding, jax.sharding.Sharding) else x


def _remat(run: Any, eqn, operands, origins):
    run = run.inside()
    run.in_recomputation |= is_recomputed(eqn)
    function, reaped = run.traced(eqn.params["jaxpr"], origins)
    program = jax.make_jaxpr(function)(*operands)
    n_consts, inner = len(program.consts), program.jaxpr

    def with_constants(*operands):  # remat takes an open jaxpr
        return run.jaxpr(inner, operands[:n_consts], operands[n_consts:], [None] * len(inner.invars))[0]

    jaxpr = jax.make_jaxpr(with_constants)(*program.consts, *operands).jaxpr
    # The same primitive with the same parameters, since these tell XLA what not to merge with the forward pass.
    results = eqn.primitive.bind(*program.consts, *operands, **{**eqn.params, "jaxpr": jaxpr})
    return results[: len(eqn.outvars)], reaped, results[len(eqn.outvars) :]


def _scan(run: Any, eqn, operands, origins):
    parts = scan_parts(eqn, operands)
    consts, length = parts.consts, parts.length
    function, reaped = run.in_body(origins).traced(parts.body, range(len(operands)))

    def step(carry, x):
        results, packed = function(*consts, *carry, *x)
        before, after = (dict(enumerate(values, len(consts))) for values in (carry, results[: len(carry)]))
        reaped[:], packed_params = run.in_loop(reaped, before, after)
        return results[: len(carry)], (results[len(carry) :], [*packed, *packed_params])

    options = {"length": length, "reverse": parts.reverse, "unroll": parts.unroll}
    carry, (ys, packed) = lax.scan(step, parts.carry, parts.xs, **options)
    return [*carry, *ys], [r.outside(origins).within(Axis("step", length)) for r in reaped], packed


def _while_loop(run: Any, eqn, operands, origins):
    parts, origins_of = while_parts(eqn, operands), while_parts(eqn, origins)
    carry = list(parts.carry)
    goes_on, reaped_in_condition = run.inside().traced(parts.condition, [*origins_of.cond_consts, *origins_of.carry])
    outside = [*origins_of.body_consts, *origins_of.carry]
    function, reaped = run.in_body(outside).traced(parts.body, range(len(outside)))

    def step(carry):
        results, packed = function(*parts.body_consts, *carry)
        before, after = (dict(enumerate(values, len(parts.body_consts))) for values in (carry, results))
        reaped[:], packed_params = run.in_loop(reaped, before, after)
        return results, [*packed, *packed_params]

    def condition(carry):
        return goes_on(*parts.cond_consts, *carry)[0][0]

    def step_of_members(state):
        (old, old_rows), goes_on = state, condition(state[0])
        new, rows = step(old)
        places = [_places_of_members(r, x.shape, goes_on.shape) for r, x in zip(reaped, rows, strict=True)]
        new = [_where(goes_on, range(goes_on.ndim), *values) for values in zip(new, old, strict=True)]
        return new, [_where(goes_on, *values) for values in zip(places, rows, old_rows, strict=True)]

    _, shapes = jax.eval_shape(step, carry)
    start = carry, [run.empty(shape) for shape in shapes]
    # Under `vmap` the condition is that of each member. The loop goes on as long as any does; the others stay.
    if jax.eval_shape(condition, carry).ndim:
        results, packed = lax.while_loop(lambda state: jnp.any(condition(state[0])), step_of_members, start)
    else:
        results, packed = lax.while_loop(lambda state: condition(state[0]), lambda state: step(state[0]), start)
    if reaped_in_condition:
        raise CannotReap("a gradient is made in the condition of a while loop")
    return results, [replace(r.outside(outside), is_of_last_step=True) for r in reaped], packed


def _places_of_members(reaped: Reaped, shape: Sequence[int], of_condition: Sequence[int]) -> Sequence[int] | None:
    """The axes of packed rows along which the members with a condition of this shape lie; None if unknown."""
    members = [i for i, axis in enumerate(reaped.axes) if axis.kind == "member"]
    found = itertools.combinations(members, len(of_condition))
    fitting = [places for places in found if [shape[i] for i in places] == list(of_condition)]
    return fitting[0] if len(fitting) == 1 else None if members else ()


def _where(goes_on, places: Sequence[int] | None, new, old):
    """The new values if the loop goes on along these axes, else the old ones; the old ones if the axes are None."""
    if places is None:
        return old
    if not places:
        return new
    shape = [n if i in places else 1 for i, n in enumerate(new.shape)]
    return jnp.where(goes_on.reshape(shape), new, old)


def _cond(run: Any, eqn, operands, origins):
    index, *operands = operands
    branches = [run.inside().traced(branch, origins[1:]) for branch in eqn.params["branches"]]
    shapes = [jax.eval_shape(function, *operands)[1] for function, _ in branches]

    def branch(taken):
        function, _ = branches[taken]

        def run_branch(*operands):
            """Return the packed rows of all branches, since their results must have the same structure."""
            results, packed = function(*operands)
            return results, [
                packed if k == taken else [run.empty(shape) for shape in shapes[k]] for k in range(len(branches))
            ]

        return run_branch

    results, packed = lax.switch(index, [branch(k) for k in range(len(branches))], *operands)
    return results, [r for _, reaped in branches for r in reaped], [w for of_branch in packed for w in of_branch]


RULES: dict[str, Callable] = {
    **dict.fromkeys(CALLS, _call),
    **dict.fromkeys(JITS, _jit),
    **dict.fromkeys(REMATS, _remat),
    SCAN: _scan,
    WHILE: _while_loop,
    COND: _cond,
    SHARD_MAP: reap_shard_map,
}

# Measure the parameters that a gradient belongs to and their updates, for a whole step or for one step of a loop.

_MAX_NAMED = 3  # leaves in a note; the others are counted

ReduceParams = Callable[[Sown, Sequence[Any]], jax.Array]


def measure_params(
    reduce: ReduceParams, reaped: Reaped, old: Sequence[Any], new: Sequence[Any] | None
) -> list[tuple[Reaped, jax.Array]]:
    """Measure the "params" of a gradient, and the "updates" if the new values are known; nothing of a slice."""
    source = reaped.sown.source
    shapes = [shape for shape, has in zip(source.shapes, source.has_number, strict=True) if has]
    if [",".join(map(str, shape)) for shape in _sizes_and_shapes(old, reaped.batched)[1]] != shapes:
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
    if any(a.shape != b.shape or spec_of(type_of(a)) != spec_of(type_of(b)) for a, b in zip(new, old, strict=True)):
        return None
    # The barrier keeps XLA from fusing the subtraction into what computes the new values, and so from changing these.
    pairs = [barrier((lax.stop_gradient(a), lax.stop_gradient(b))) for a, b in zip(new, old, strict=True)]
    return [lax.sub(*[x.astype(jnp.float32) if x.dtype.itemsize < 4 else x for x in pair]) for pair in pairs]


def measure_step_params(
    program: ClosedJaxpr,
    arguments: Sequence[Any],
    results: Sequence[Any],
    argument_paths: Sequence[Path],
    result_paths: Sequence[Path],
    reduce: ReduceParams,
    reaped: Sequence[Reaped],
    attributions: Sequence[Attribution | None],
) -> tuple[list[tuple[Attribution, jax.Array]], list[str]]:
    """The "params" and "updates" of a step's gradients that `reap` has not measured in a loop; notes on the rest."""

    def parts_of(gradient: Reaped, attribution: Attribution) -> tuple[list[tuple[Reaped, jax.Array]], str]:
        """What can be measured for one gradient; and if the updates cannot, the reason."""
        if not attribution.arguments:
            return [], "it is unknown which argument of the step holds the parameters"
        if gradient.changes_in_loop:
            return [], "the parameters change in a loop whose steps cannot be distinguished"
        old = [arguments[i] for i in attribution.arguments]
        at = match_new_params(program, attribution.arguments, argument_paths, result_paths)
        new = [results[i] for i in at if i is not None]
        parts = measure_params(reduce, gradient, old, new if len(new) == len(old) else None)
        if len(parts) != 1:
            return parts, "" if parts else "the gradients are not of whole parameters"
        if len(new) == len(old):
            return parts, "the new parameters are sharded in another way than the old"
        owner = "" if "," in attribution.owner else attribution.owner
        paths = itertools.compress(attribution.source.paths, attribution.source.has_number)
        lost = [owner + path for path, i in zip(paths, at, strict=True) if i is None]
        more = f" and {len(lost) - _MAX_NAMED} more" if len(lost) > _MAX_NAMED else ""
        return parts, f"no result of the step is for sure the new {', '.join(lost[:_MAX_NAMED])}{more}"

    measured: list[tuple[Attribution, jax.Array]] = []
    notes: list[str] = []
    taken = {attribution.source.name for attribution in attributions if attribution is not None}
    for gradient, attribution in zip(reaped, attributions, strict=True):
        if attribution is None or not gradient.is_of_call:
            continue
        names = {kind: sibling_name(attribution.source.name, kind) for kind in ("params", "updates")}
        if names["params"] in taken:
            continue
        parts, why_not = parts_of(gradient, attribution)
        notes += [f"{names['updates']} are not measured: {why_not}"] if why_not else []
        for part, packed in parts:
            name = names[part.sown.kind]
            taken.add(name)
            measured.append((attribution._replace(source=part.sown.source._replace(name=name), axes=part.axes), packed))
    return measured, notes


_NO_LAYERS = "Layers of a scan are measured as one array"
NO_ACTIVATIONS = "What goes into some parameters, and comes out, is not measured"
_NOT_REPEATED = "Gradients are measured where they are made"

Reduce = Callable[[Sown, Sequence[Any]], Any]
Scaled = Callable[..., jax.Array]


class Reducers(NamedTuple):
    """Functions that measure the values of one sown tree."""

    eager: Reduce  # returns the packed rows
    deferred: Reduce | None = None  # the same outside of inner programs such as loops: returns a stand-in for the rows
    per_device: Reduce | None = None  # the same in a `shard_map` over all axes of its mesh


def reap(
    program: ClosedJaxpr,
    arguments: Sequence[Any],
    reducers: Reducers,
    empty: Callable[[Any], Any] = jnp.zeros_like,
    *,
    with_params: bool = False,
    axes_of: AxesOf = lambda source, scanned, why_not: scanned,
    received: OptimizerInputs | None = None,
    scaled: Scaled | None = None,
    left_out: set[str] | None = None,
    unread: Unread | None = None,
    of_activations: tuple[str, ...] = (),
) -> tuple[list[Any], list[Reaped], list[jax.Array]]:
    """Run `program` on `arguments`, and measure its sown values.

    Traceable: under `jit` the packed rows are further results of the program, which sows nothing any more.

    Args:
      empty: Makes the packed rows of a branch that was not taken, or of a while loop without a step, from packed rows
        or their shape.
      with_params: Also measure the parameters that a gradient inside a loop belongs to, and their updates, if the loop
        changes them.
      scaled: Computes the packed rows of scaled numbers from the packed rows of the numbers.
      left_out: Collects the names of higher-order primitives without a rule; values sown inside are not measured.

    Returns:
      The program's results; what was reaped; and the packed rows of each.
    """
    computed_once = {sown for sown, recomputed in sown_in(program) if not recomputed}
    measured = {  # gradients that are only clipped count if updates are measured
        jaxpr: {sown: what for sown, what in found.items() if with_params or what.transforms != (CLIPPED,)}
        for jaxpr, found in (received.received_by_jaxpr if received else {}).items()
    }
    left_out = set() if left_out is None else left_out
    options = with_params, axes_of, measured, scaled, left_out, unread or Unread(), of_activations
    run = Run(reducers, empty, computed_once, *options)
    results, reaped, packed = run.jaxpr(program.jaxpr, program.consts, arguments, range(len(arguments)))
    if all(r.sown.kind in NO_GRADIENTS for r in reaped):
        if run.left_out:
            inside = f"inside `{min(run.left_out)}`, a primitive from which treeviz can return nothing"
            raise CannotReap(f"a gradient is made {inside}")
        if run.unread.notes:
            raise CannotReap(" ".join(run.unread.notes).rstrip("."))
    return results, reaped, packed


@dataclass
class Run:
    """One run of a program, with the arguments of `reap`. `RULES` use it to run the jaxprs inside."""

    reducers: Reducers  # for this jaxpr
    empty: Callable[[Any], Any]
    computed_once: set[Sown]  # the trees that are sown outside of recomputations, and measured only there
    with_params: bool
    axes_of: AxesOf
    received: Mapping[int, Mapping[Sown, Received]]  # by the id of the jaxpr, and by the sown tree
    scaled: Scaled | None
    left_out: set[str]
    unread: Unread
    of_activations: tuple[str, ...] = ()  # their statistics
    in_recomputation: bool = False  # this jaxpr is recomputed for a backward pass
    devices: Devices | None = None  # the devices of the `shard_map` around this jaxpr, if there is one

    def inside(self, *, is_call: bool = False) -> Run:
        """The same run, for the jaxpr of a loop, a call or another program."""
        reducers = Reducers(self.reducers.eager)
        if is_call:  # which returns the stand-ins of devices, as they are pytrees
            reducers = self.reducers if self.devices else reducers._replace(per_device=self.reducers.per_device)
        return replace(self, reducers=reducers)

    def on(self, devices: Devices) -> Run:
        reducers = Reducers(self.reducers.eager, self.reducers.per_device if devices.is_manual else None)
        return replace(self, reducers=reducers, devices=devices)

    def in_body(self, origins: Sequence[int | None]) -> Run:
        """The same run, for the body of a loop whose operands have these origins here."""
        run = self.inside()
        if self.devices is not None:
            operands = [None if o is None else self.devices.operands[o] for o in origins]
            run.devices = self.devices._replace(operands=operands)
        return run

    def jaxpr(self, jaxpr: Jaxpr, consts, arguments, origins):
        """Run one jaxpr, and return its results, what was reaped in it, and the packed rows of each."""
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        values.update(zip(jaxpr.invars, arguments, strict=True))
        origin = Followed(Leaf(), jaxpr, origins)
        reaped: list[Reaped] = []
        packed: list[jax.Array] = []
        parts: list[tuple[Sown, ActivationParts]] = []

        def read(atom):
            return atom.val if isinstance(atom, Literal) else values[atom]

        def origins_of(eqn):
            return [origin.read(x) for x in eqn.invars]

        attempt, sows = self.unread.attempt, any(eqn.primitive is sow_p for eqn in jaxpr.eqns)
        summed = {} if self.devices is None else sums_of_sown(jaxpr, self.devices.sizes)
        again = attempt(_NOT_REPEATED, {}, recomputed_equations, jaxpr)
        scanned = attempt(_NO_LAYERS, {}, scanned_in, jaxpr) if sows else {}
        is_read = self.devices is None and self.scaled is not None  # each device may receive something else
        received, copies = self.received.get(id(jaxpr), {}) if is_read else {}, {}
        kept = read_at_the_end(summed, again, received.values())
        without = dead_equations(jaxpr, kept)
        freed_after, add = last_uses(jaxpr, kept, without), adds_copies()
        for n, eqn in enumerate(jaxpr.eqns):
            origin.step(eqn)
            if n in without:
                continue
            operands = [read(x) for x in eqn.invars]
            if eqn.primitive is sow_p and (sown := eqn.params["sown"]).activations:
                with context_of(eqn):
                    # What is recomputed is not what the step computes.
                    (value,) = recompute_operands(again[n], eqn, read) if n in again else [barrier(operands[0])]
                    _, features, n_rows = sown.activations[0]
                    about = value, self.of_activations, features, n_rows
                    part = attempt(NO_ACTIVATIONS, None, activation_parts, *about)
                parts += [] if part is None else [(sown, part)]
                continue
            copied = add(eqn, operands) if eqn.primitive is not sow_p and self.rule(eqn) is None else None
            if copied is not None:
                results = copied
            elif n in summed:  # measured below, where the sums are known
                results = operands[: eqn.params["n"]]
            else:
                with context_of(eqn):
                    measured = (
                        recompute_operands(again[n], eqn, read, self.is_deferred(eqn)) if n in again else operands
                    )
                    if eqn.primitive is sow_p and eqn.params["sown"] in received:
                        copies.update(zip(eqn.outvars, measured, strict=False))
                    results, reaped_here, packed_here = self.equation(eqn, measured, origins_of(eqn), scanned)
                results = operands[: len(results)] if n in again else results
                reaped += reaped_here
                packed += packed_here
            values.update(zip(eqn.outvars, results, strict=True))
            for variable in freed_after.get(n, ()):
                values.pop(variable, None)
        for n, sums in summed.items():
            variables, axes = zip(*sums, strict=True)
            eqn, of_devices = jaxpr.eqns[n], [read(v) for v in variables]
            _, reaped_here, packed_here = self.measure(eqn, of_devices, origins_of(eqn), scanned, axes)
            reaped += [replace(r, summed_over=frozenset.intersection(*axes)) for r in reaped_here]
            packed += packed_here
        if parts:
            parts.sort(key=lambda part: -part[1].length)
            reaped.append(Reaped(joined_tags([sown for sown, _ in parts]), (), (None,)))
            packed.append(activation_rows([part for _, part in parts], self.of_activations))
        found = self.receive(received, reaped, packed, read, copies)
        reaped += [r for r, _ in found]
        packed += [rows for _, rows in found]
        return [read(x) for x in jaxpr.outvars], reaped, packed

    def receive(self, received: Mapping[Sown, Received], reaped, packed, read, copies):
        """Measure what the optimizer receives for the gradients that were reaped, of which there may be copies."""
        found = []
        for r, rows in zip(reaped, packed, strict=True):
            if r.gradient is not None or r.tagged not in received:
                continue
            what = received[r.tagged]
            sown = replace(r.sown, kind="received", source=r.sown.source._replace(name="received"))
            axes = r.axes
            if not what.is_sown:
                axes, rows = (), self.reducers.eager(sown, what.read(read, copies))
            assert self.scaled is not None
            scaled = self.scaled(rows, factor=factor(what.scale, read))
            found.append((replace(r, sown=sown, axes=axes, gradient=r.sown), scaled))
        return found

    def equation(self, eqn, operands, origins, scanned: Mapping[Any, int]):
        if eqn.primitive is sow_p:
            return self.measure(eqn, operands, origins, scanned)
        rule = self.rule(eqn)
        if rule is not None:
            try:
                return rule(self, eqn, operands, origins)
            except CannotReap:
                raise
            except Exception as error:
                self.unread.note(f"What jax.grad computes inside this `{eqn.primitive.name}` is not measured", error)
        return bind(eqn, operands), (), ()

    def traced(self, jaxpr: Any, origins):
        """A function from the jaxpr's operands to its results and packed rows; what is reaped, once it is traced."""
        reaped: list[Reaped] = []

        def function(*operands):
            results, reaped[:], packed = self.jaxpr(open_jaxpr(jaxpr), consts_of(jaxpr), operands, origins)
            return results, packed

        return function, reaped

    def rule(self, eqn) -> Callable | None:
        """How to run an equation in which something is sown; None for all others."""
        if not (jaxprs := inner_jaxprs(eqn)):
            return None
        recomputed = self.in_recomputation or is_recomputed(eqn)
        sown_inside = [pair for inner in jaxprs for pair in sown_in(inner, recomputed)]
        if all(recomputed and sown in self.computed_once for sown, recomputed in sown_inside):
            return None
        rule = RULES.get(eqn.primitive.name)
        if rule is None:
            self.left_out.add(eqn.primitive.name)
        return rule

    def measure(
        self, eqn, operands, origins, scanned: Mapping[Any, int], summed: Sequence[frozenset[str]] | None = None
    ):
        """The rule for `sow`. The parameters among the operands are not read.

        Args:
          summed: The axes of the mesh over which each value has been summed.
        """
        n, sown, batched = (eqn.params[name] for name in ("n", "sown", "batched"))
        values = operands[:n]
        if sown.kind == "loss" or (self.in_recomputation and sown in self.computed_once):
            return values, (), ()
        origins, shards, why_not = tuple(origins[n:]) or (None,) * n, (), nothing_against
        if self.devices is not None:
            shards, why_not = self.devices.shards(values, (None,) * n if batched else origins, summed)
            sown = replace(sown, source=self.devices.whole(sown.source, shards))
        sown = replace(sown, axes=layer_axes(eqn, sown.source, scanned, self.axes_of, why_not))
        reduce = (self.is_deferred(eqn) and self.reducers.deferred) or self.reducers.eager
        packed, axes = measure_members(lambda *values: reduce(sown, values), values, [b[:n] for b in batched])
        reaped = Reaped(
            sown,
            axes,
            origins=origins,
            shards=shards,
            is_differentiated=eqn.params["differentiated"],
            tagged=eqn.params["sown"],
            batched=tuple([b[n:] for b in batched]),
        )
        return values, [reaped], [packed]

    def is_deferred(self, eqn) -> bool:
        """Whether the values that an equation sows are measured after the whole program has run."""
        is_read = any(eqn.params["sown"] in received for received in self.received.values())
        return self.reducers.deferred is not None and not (eqn.params["batched"] or is_read)

    def in_loop(self, reaped: Sequence[Reaped], before: Mapping[int, Any], after: Mapping[int, Any]):
        """Mark gradients in a loop body whose parameters it changes from `before` to `after`, and measure both, too."""
        known, params, packed = [], [], []
        for r in reaped:
            origins = [origin for origin in r.origins if origin is not None]
            has_all = len(origins) == len(r.origins)
            changes = not has_all or any(origin in before for origin in origins)
            known.append(replace(r, changes_in_loop=r.changes_in_loop or (changes and r.gradient is None)))
            # Within a `shard_map` it is unknown which parameters the devices share.
            if not (self.with_params and r.is_of_call and has_all) or r.changes_in_loop or self.devices is not None:
                continue
            if all(origin in before for origin in origins):
                old, new = ([carry[origin] for origin in origins] for carry in (before, after))
                for part, packed_part in measure_params(self.reducers.eager, r, old, new):
                    params.append(part)
                    packed.append(packed_part)
        return known + params, packed


# Recompute measured values for the measurement alone, so that XLA compiles the step's own values as before.
#
# A measured value has one more use in the program, on which XLA's choices depend. XLA moves a reshape (also one made
# from a transposition or a product with a vector) behind the arithmetic that follows only if all its uses are
# arithmetic; it fuses a scatter-add, as in the gradient of an embedding, only with a single use. Then a product and a
# sum are rounded once or twice, and the last digit of a result differs. So the measurement recomputes what XLA merges
# with its uses, back to operations that XLA always computes apart: products of matrices, sums, convolutions, loops.

# Batch small values of one shape that the same equations compute, such as the gradients of many biases.

FEWEST = 16  # values that are computed together
MOST_ELEMENTS = 1 << 12  # of a value, since its inputs are copied

Chains = Sequence[Mapping[int, Any]]  # for each of several values: the equations that compute it, by number


class Group(NamedTuple):
    """Values that the same equations compute from different inputs."""

    places: list[int]  # of the values
    chain: Sequence[Any]  # the equations that compute the first value
    value: Any  # the first
    inputs: list[list[Any]]  # of the equations of each value, in the order of their use


def batchable(values: Sequence[Any], chains: Chains) -> list[Group]:
    """The groups of values that one batched computation can recompute."""
    groups: dict[tuple, Group] = {}
    for place, (value, by_number) in enumerate(zip(values, chains, strict=False)):
        chain = [by_number[at] for at in sorted(by_number)]
        is_small = bool(chain) and _is_small(value.aval)
        if is_small and all(e.primitive.name in ELEMENTWISE or e.primitive.name in RESHAPES for e in chain):
            inputs, form = _form(value, chain)
            if form is not None and all(_is_small(x.aval) for x in inputs):
                group = groups.setdefault(form, Group([], chain, value, []))
                group.places.append(place)
                group.inputs.append(inputs)
    return [group for group in groups.values() if len(group.places) >= FEWEST and not all(_is_shared(group))]


def run_together(group: Group, read: Callable[[Any], Any]) -> jax.Array:
    """[values, …]: the values, computed from copies of their inputs, so that XLA keeps the two runs apart."""
    shared = _is_shared(group)
    operands: list[jax.Array] = []
    for variables, is_shared in zip(zip(*group.inputs, strict=True), shared, strict=True):
        copies = lax.optimization_barrier([read(x) for x in (variables[:1] if is_shared else variables)])
        operands.append(copies[0] if is_shared else _stack(copies))

    def run(*operands: jax.Array) -> jax.Array:
        made = dict(zip(group.inputs[0], operands, strict=True))
        for eqn in group.chain:
            results = bind(eqn, [x.val if isinstance(x, Literal) else made[x] for x in eqn.invars])
            made.update(zip(eqn.outvars, results, strict=True))
        return made[group.value]

    return jax.vmap(run, [None if is_shared else 0 for is_shared in shared])(*operands)


def _stack(arrays: Sequence[jax.Array]) -> jax.Array:
    """[n, …]: joined in parts of equal length, for which XLA CPU compiles one kernel."""
    n, first = len(arrays), arrays[0]
    arrays = [*arrays, *[arrays[-1]] * (-n % TOGETHER)]
    parts = [_joined(arrays[i : i + TOGETHER]) for i in range(0, len(arrays), TOGETHER)]
    x = lax.optimization_barrier(lax.concatenate(parts, 0))
    x = lax.slice_in_dim(lax.reshape(x, (len(parts), parts[0].size)), 0, TOGETHER * first.size, axis=1)
    return lax.slice_in_dim(lax.reshape(x, (len(arrays), *first.shape)), 0, n)


@jax.jit  # traced and lowered once
def _joined(arrays: Sequence[jax.Array]) -> jax.Array:
    """Flat, with a zero appended: XLA then makes one small loop instead of unrolling one for each array."""
    x = lax.concatenate([lax.reshape(x, (x.size,)) for x in arrays], 0)
    return lax.pad(x, np.zeros((), x.dtype), [(0, 1, 0)])


def _is_shared(group: Group) -> list[bool]:
    """For each input, whether it is the same for all values."""
    return [all(x is variables[0] for x in variables) for variables in zip(*group.inputs, strict=True)]


def _is_small(aval: Any) -> bool:
    is_copied = aval.dtype in (np.bool_, np.uint8, np.uint16, np.uint32) or jnp.issubdtype(aval.dtype, jnp.floating)
    return is_copied and aval.dtype.itemsize <= 4 and aval.size <= MOST_ELEMENTS


def _form(value: Any, chain: Sequence[Any]) -> tuple[list[Any], tuple | None]:
    """The inputs of some equations; and a key, equal for equal computations; None if it cannot be hashed."""
    number: dict[Any, int] = {}
    inputs, form = [], []
    for eqn in chain:
        form += [eqn.primitive, *eqn.params.values()]
        for x in eqn.invars:
            if isinstance(x, Literal):
                form.append((x.aval, np.asarray(x.val).tobytes()))
                continue
            if x not in number:
                number[x] = len(number)
                inputs.append(x)
                form.append(x.aval)
            form.append(number[x])
        number.update((v, len(number) + i) for i, v in enumerate(eqn.outvars))
    try:
        hash(tuple(form))
    except TypeError:
        return inputs, None
    return inputs, (number[value], *form)


_MOST = 64  # equations that are recomputed for a value


def recomputed_equations(jaxpr: Jaxpr) -> dict[int, Chains]:
    """For the number of each equation that sows: the equations to recompute for each of its values."""
    sowing = {n: e for n, e in enumerate(jaxpr.eqns) if e.primitive is sow_p and e.params["sown"].kind != "loss"}
    made_by = {v: (n, eqn) for n, eqn in enumerate(jaxpr.eqns) for v in eqn.outvars} if sowing else {}
    found = {n: [_nearest(value, made_by) for value in e.invars[: e.params["n"]]] for n, e in sowing.items()}
    return {n: chains for n, chains in found.items() if any(chains)}


def _nearest(value: Any, made_by: dict[Any, tuple[int, Any]]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    values = deque([value])
    while values and len(found) < _MOST:
        at, eqn = _maker(values.popleft(), made_by)
        if eqn is None or at in found:
            continue
        is_repeated = _is_simple(eqn) or _is_of_ones(eqn) or _has_ones(eqn)
        if not is_repeated and _is_transpose(eqn):  # XLA merges it with its uses, if it does so with what is transposed
            _, before = _maker(eqn.invars[0], made_by)
            is_repeated = before is not None and (before.primitive.name in ELEMENTWISE or _is_of_ones(before))
        if is_repeated:
            found[at] = eqn
            values.extend(() if _is_start(eqn) else eqn.invars)
    return found


def _maker(value: Any, made_by: dict[Any, tuple[int, Any]]) -> tuple[int, Any]:
    return (-1, None) if isinstance(value, Literal) else made_by.get(value, (-1, None))


def recompute_operands(chains: Chains, sowing: Any, read: Callable[[Any], Any], together: bool = False) -> list[Any]:
    """Recompute the operands of an equation that sows; batchable values `together`, if each may be a `BatchSlice`."""
    joined: dict[int, BatchSlice] = {}
    for group in batchable(sowing.invars, chains) if together else ():
        of_group = run_together(group, read)
        joined.update((n, BatchSlice(of_group, place)) for place, n in enumerate(group.places))
    again = {at: eqn for n, chain in enumerate(chains) if n not in joined for at, eqn in chain.items()}
    made: dict[Any, Any] = {}
    for eqn in (again[at] for at in sorted(again)):
        if _has_ones(eqn):
            made[eqn.outvars[0]] = _without_ones(eqn, [read(x) for x in eqn.invars])
            continue
        for x in eqn.invars:
            if not isinstance(x, Literal) and x not in made:
                made[x] = barrier(read(x))  # keeps XLA from merging the two runs
        results = bind(eqn, [read(x) if isinstance(x, Literal) else made[x] for x in eqn.invars])
        made.update(zip(eqn.outvars, results, strict=True))
    values = [made[x] if not isinstance(x, Literal) and x in made else read(x) for x in sowing.invars]
    return [joined.get(n, value) for n, value in enumerate(values)]


def _is_simple(eqn: Any) -> bool:
    name = eqn.primitive.name
    if name in JITS:
        return all(map(_is_simple, open_jaxpr(called_jaxpr(eqn)).eqns))
    is_reshape = name in RESHAPES and name != "rev" and not _is_transpose(eqn)
    return name in ELEMENTWISE or name in SCATTER_ADDS or is_reshape


def _is_start(eqn: Any) -> bool:
    """Whether recomputation starts here: the operands of the equation are not recomputed."""
    if eqn.primitive.name in JITS:
        return any(map(_is_start, open_jaxpr(called_jaxpr(eqn)).eqns))
    return eqn.primitive.name in SCATTER_ADDS or _has_ones(eqn)


def _is_transpose(eqn: Any) -> bool:
    """Whether elements move in memory. XLA merges such a transposition with the product of matrices before it."""
    if eqn.primitive.name != "transpose":
        return False
    moved = [axis for axis in eqn.params["permutation"] if eqn.invars[0].aval.shape[axis] != 1]
    return moved != sorted(moved)


def _is_of_ones(eqn: Any) -> bool:
    """Whether a sum or product is over axes of size 1, so that XLA makes it a reshape or an element-wise product."""
    if eqn.primitive.name == "reduce_sum":
        return eqn.invars[0].aval.size == eqn.outvars[0].aval.size
    if eqn.primitive.name != "dot_general":
        return False
    (axes, _), _ = eqn.params["dimension_numbers"]
    return all(eqn.invars[0].aval.shape[axis] == 1 for axis in axes)


def _has_ones(eqn: Any) -> bool:
    """Whether XLA computes a sum without its axes of size 1, or a product with a vector, and reshapes the result."""
    if eqn.primitive.name not in ("reduce_sum", "dot_general") or _is_of_ones(eqn):
        return False
    if eqn.params.get("out_sharding") is not None or 1 not in eqn.outvars[0].aval.shape:
        return False
    if eqn.primitive.name == "reduce_sum":
        return eqn.outvars[0].aval.size == 1
    # Not a product of matrices, even if they have axes of size 1: it would be computed twice.
    operands = zip(eqn.invars, *eqn.params["dimension_numbers"], strict=True)
    return any(
        all(n == 1 or axis in (*contracted, *batch) for axis, n in enumerate(x.aval.shape))
        for x, contracted, batch in operands
    )


def _without_ones(eqn: Any, operands: Sequence[Any]) -> Any:
    """The sum or product as XLA will compute it, so that both runs share it, and only the reshape is recomputed."""
    p, n_batch = eqn.params, 0
    if eqn.primitive.name == "reduce_sum":
        x, (axes,) = _squeezed(operands[0], p["axes"])
        result = lax.reduce(x, np.zeros((), x.dtype), lax.add, axes)
    else:
        (left, of_left), (right, of_right) = map(_squeezed, operands, *p["dimension_numbers"])
        numbers, n_batch = ((of_left[0], of_right[0]), (of_left[1], of_right[1])), len(of_left[1])
        options = {name: p[name] for name in ("precision", "preferred_element_type")}
        result = lax.dot_general(left, right, numbers, **options)
    ones = [axis for axis, size in enumerate(eqn.outvars[0].aval.shape) if size == 1 and axis >= n_batch]
    return lax.expand_dims(lax.optimization_barrier(result), ones)


def _squeezed(x: Any, *used: Sequence[int]) -> tuple[Any, list[list[int]]]:
    """`x` without its unused axes of size 1, and the new numbers of the used axes."""
    ones = [axis for axis, size in enumerate(x.shape) if size == 1 and not any(axis in axes for axes in used)]
    return lax.squeeze(x, ones), [[axis - sum(one < axis for one in ones) for axis in axes] for axes in used]
