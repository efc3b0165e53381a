"""The instrumented step: a jitted step that returns the same results, and measures the gradients computed inside."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from treeviz.steps.measure import MeasuredTree, Measurement, joined, joined_later, reduces_partially, source_of
from treeviz.steps.reduce import (
    NO_NUMBER,
    BatchSlice,
    Unreduced,
    as_words,
    barrier,
    bits_of,
    blocks,
    flat,
    padded,
    reduce_leaves,
    reduced_together,
    scaled_rows,
    spec_of,
)
from treeviz.steps.statistics import (
    LIGHT_OF_ACTIVATIONS,
    LOSSES,
    RESULT_KINDS,
    Axes,
    WhyNot,
    in_layers,
    is_beside,
    name_of_result,
    natural,
    nothing_against,
    openable,
    reported_axes,
    sibling_name,
    statistics_of_activations,
)
from treeviz.steps.tracing.activations import activation_rows, with_activations
from treeviz.steps.tracing.attribution import Attribution, attribute_gradients, named_arguments, paths_of, split
from treeviz.steps.tracing.dataflow import Domain, forward
from treeviz.steps.tracing.domains import Path, argument_order, drifting_arguments, frozen_arguments, structural_zeros
from treeviz.steps.tracing.jax_private import NotMeasured, Unread, seeing_gradients, traced_anew
from treeviz.steps.tracing.jitted import JitOptions
from treeviz.steps.tracing.optimizer_input import CLIPPED, OptimizerInputs
from treeviz.steps.tracing.param_sampling import ParamSampling, TracedParams
from treeviz.steps.tracing.primitives import (
    DEVICE_SUMS,
    RESHAPES,
    SAME_LEAF,
    Reaped,
    Sown,
    effects_in,
    shape_and_dtype,
    size_of,
    sow,
    sow_p,
)
from treeviz.steps.tracing.reap import (
    NO_ACTIVATIONS,
    Reducers,
    drop_unused_tags,
    measure_step_params,
    reap,
    trained_with,
)
from treeviz.steps.tracing.verify import PlainProgram
from treeviz.tree.keys import keystr
from treeviz.tree.layers import Stacked, stacked_axes
from treeviz.tree.runtime import full_searches_put_off, gc_paused
from treeviz.tree.text import printable

# Count NaN and infinities in the results of a step: in the loss, in other small results, and in small new parameters.

Count = Callable[[Sequence[jax.Array], Sequence[jax.Array | None]], Any]

MOST_ELEMENTS = 1 << 12  # of a result; less than 2**16, since two counts share a word
_MOST_PARAMS, _MOST_OTHERS, _MOST_LOSSES = 16, 64, 8  # results
_KEY = re.compile(r"(?:\['|\.)(\w[^'\]]*?)(?:'\])?$")  # the last key of a path, where it is a name
_NO_LOSS = re.compile(r"scale|weight|coef|rate|count", re.IGNORECASE)  # "loss_scale"

# A result that these make of a loss is the loss: a mean over devices or micro-batches, or a sum with earlier ones.
_LINEAR = SAME_LEAF | RESHAPES | DEVICE_SUMS | {"add", "add_any", "sub", "mul", "div", "neg", "reduce_sum", "slice"}
_LINEAR |= {"concatenate", "dynamic_slice", "dynamic_update_slice"}


def count_in_results(
    program: ClosedJaxpr,
    arguments: Sequence[Any],
    results: Sequence[Any],
    argument_paths: Sequence[Path],
    result_paths: Sequence[Path],
    shown_paths: Sequence[str],
    params: Mapping[int, str],
    count: Count | None = None,
) -> tuple[list[MeasuredTree], Any, tuple[MeasuredTree, jax.Array] | None]:
    """Count NaN and infinities in the small results of a traced program, and take the values of its losses.

    Returns the inspected results, as one tree for each kind; their words, as of `_words`, or what `count` computes; and
    the losses by their names, with the bits of their values, if any. `params`: paths by the number of the argument.
    """
    kinds, of_loss = _kinds(program, argument_paths, result_paths, params)
    found = {i: (kind, shown_paths[i] if at is None else params[at]) for i, (kind, at) in kinds.items()}
    chosen: dict[str, dict[int, str]] = {}
    for kind in RESULT_KINDS:
        smallest = sorted((i for i in found if found[i][0] == kind), key=lambda i: size_of(program.jaxpr.outvars[i]))
        most = _MOST_PARAMS if kind == "parameter" else _MOST_OTHERS
        chosen[kind] = {i: found[i][1] for i in sorted(smallest[:most])}
    trees = [_described(program, paths, kind) for kind, paths in chosen.items() if paths]
    places = [i for paths in chosen.values() for i in paths]
    if not places:
        return [], None, None
    values = [barrier(flat(results[i])) for i in places]
    old = [None if (at := kinds[i][1]) is None else _bits(barrier(flat(arguments[at]))) for i in places]
    names = _loss_names({i: shown_paths[i] for i in places if kinds[i][0] == "loss"}, program, of_loss)
    losses = [lax.convert_element_type(values[places.index(i)], np.float32) for i in names]
    followed = None
    if losses:
        source = _described(program, {i: names[i] for i in names}, "loss")._replace(name=LOSSES)
        followed = source, bits_of(lax.concatenate(losses, 0))[None]
    return trees, (count or _words)([_bits(x) for x in values], old), followed


def _loss_names(paths: Mapping[int, str], program: ClosedJaxpr, of_loss: Collection[int]) -> dict[int, str]:
    """The names of the losses to follow, scalars or stacked by a loop, by the number of the result: their last keys."""
    avals: Mapping[int, Any] = {i: program.jaxpr.outvars[i].aval for i in paths}
    is_real = {i: jnp.issubdtype(aval.dtype, jnp.floating) for i, aval in avals.items()}
    wanted = [i for i, a in avals.items() if is_real[i] and (a.size == 1 or (a.ndim == 1 and i in of_loss))]
    keys = {i: match[1] if (match := _KEY.search(paths[i])) else "loss" for i in wanted}
    keys = {i: key for i, key in keys.items() if not _NO_LOSS.search(key)}
    named: dict[int, str] = {}
    for i in sorted(keys, key=lambda i: avals[i].size)[:_MOST_LOSSES]:  # a scalar before what a loop stacks
        named[i] = printable(keys[i] if keys[i] not in named.values() else f"{keys[i]} {paths[i]}")
    return named


def _words(values: Sequence[jax.Array], old: Sequence[jax.Array | None]) -> jax.Array:
    """uint32[all results], from the bits of the values: 2**16 times the non-finite elements, plus the NaN.

    Of a new parameter, plus 2**31 if it differs from the old one, or may differ since elements are not finite. Values
    are stacked, since XLA compiles and runs each reduction separately. In `lax`, which traces in half the time.
    """
    words, order = [], []
    others = [x if before is None else before for x, before in zip(values, old, strict=True)]
    for dtype in dict.fromkeys(x.dtype for x in values):
        same_dtype = [i for i, x in enumerate(values) if x.dtype == dtype]
        for block in map(sorted, blocks(same_dtype, [values[i].size for i in same_dtype])):
            longest = max(values[i].size for i in block)
            new, before = (padded([xs[i] for i in block], longest) for xs in (values, others))
            infinity = np.array(np.inf, f"f{dtype.itemsize}").view(dtype)
            size = lax.bitwise_and(new, dtype.type(np.iinfo(dtype).max >> 1))
            n_nan = as_words(lax.gt(size, infinity))
            bad = lax.add(lax.shift_left(as_words(lax.ge(size, infinity)), np.uint32(16)), n_nan)
            n_bad, is_new = reduced_together([("sum", bad), ("max", as_words(lax.ne(new, before)))], (1,))
            words.append(lax.add(n_bad, lax.shift_left(is_new, np.uint32(31))))
            order += block
    together = lax.concatenate(words, 0) if len(words) > 1 else words[0]
    return together if order == sorted(order) else together[np.argsort(order)]


def _bits(x: jax.Array) -> jax.Array:
    """The bits as float32 or wider; a complex number becomes a real one that keeps NaN and infinities."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        bad = jnp.where(jnp.isnan(x), np.nan, np.inf).astype(x.real.dtype)
        x = jnp.where(jnp.isfinite(x), x.real - x.imag, bad)
    x = lax.convert_element_type(x, np.promote_types(x.dtype, np.float32) if x.dtype.itemsize > 2 else np.float32)
    return lax.bitcast_convert_type(x, np.uint32 if x.dtype.itemsize == 4 else np.uint64)


def _described(program: ClosedJaxpr, paths: Mapping[int, str], kind: str) -> MeasuredTree:
    avals: list[Any] = [program.jaxpr.outvars[i].aval for i in paths]
    return MeasuredTree(
        name_of_result(kind),
        tuple(map(printable, paths.values())),
        tuple([aval.size for aval in avals]),
        tuple([str(aval.dtype) for aval in avals]),
        (True,) * len(avals),
        tuple([",".join(map(str, aval.shape)) for aval in avals]),
    )


def _kinds(
    program: ClosedJaxpr, argument_paths: Sequence[Path], result_paths: Sequence[Path], params: Collection[int]
) -> tuple[dict[int, tuple[str, int | None]], set[int]]:
    """The kind of each result that may be inspected, and whose new value it is; and which are surely the loss."""
    arguments, results = program.jaxpr.invars, program.jaxpr.outvars
    places: dict[tuple, int] = {}
    for i, (path, v) in enumerate(zip(argument_paths, arguments, strict=True)):
        if len(path) > 1 or i in params:  # else only its shape could identify it
            places.setdefault((*map(str, path[1:]), shape_and_dtype(v)), i)
    is_of_loss = forward(program, _OfLoss(), [False] * len(arguments))
    unchanged = set(arguments)
    kinds: dict[int, tuple[str, int | None]] = {}
    for i, (path, v) in enumerate(zip(result_paths, results, strict=True)):
        if isinstance(v, Literal) or not _is_small(v.aval):
            continue
        keys = list(map(str, path))
        at = next((places[k] for n in range(len(keys) + 1) if (k := (*keys[n:], shape_and_dtype(v))) in places), None)
        if is_of_loss[i] or (at is None and "loss" in "".join(keys).lower()):
            kinds[i] = "loss", None
        elif at is None and v not in unchanged:
            kinds[i] = "other", None
        elif at is not None and at in params and _is_small(arguments[at].aval):
            kinds[i] = "parameter", at
    if "loss" not in {kind for kind, _ in kinds.values()}:  # then any scalar may be the loss
        others = [i for i, (kind, _) in kinds.items() if kind == "other"]
        kinds.update((i, ("scalar", None)) for i in others if size_of(results[i]) == 1)
    return kinds, {i for i in kinds if is_of_loss[i]}


def _is_small(aval: Any) -> bool:
    if any(spec_of(aval)):  # by explicit axes: these cannot be stacked
        return False
    return jnp.issubdtype(getattr(aval, "dtype", bool), jnp.inexact) and 0 < aval.size <= MOST_ELEMENTS


class _OfLoss(Domain[bool]):
    """Knows whether a value is the loss (what a differentiated function returns), or linear in it."""

    def unknown(self, atom: Any) -> bool:
        return False

    def given(self, jaxpr: Jaxpr) -> dict[Any, bool]:
        """The loss itself, which may be returned as it was before it is sown."""
        losses = [eqn for eqn in jaxpr.eqns if eqn.primitive is sow_p and eqn.params["sown"].kind == "loss"]
        return {v: True for eqn in losses for v in eqn.invars if not isinstance(v, Literal)}

    def results(self, eqn: Any, operands: Sequence[bool]) -> Sequence[bool]:
        is_linear = eqn.primitive is sow_p or eqn.primitive.name in _LINEAR
        return [is_linear and any(operands)] * len(eqn.outvars)

    def join(self, values: Sequence[bool], atom: Any) -> bool:
        return any(values)


def instrumented(
    function: Callable,
    options: JitOptions,
    statistics: tuple[str, ...],
    *,
    match: bool = True,
    updates: bool = False,
    stacked: Stacked | None = (),
    activations: bool = False,
    tidy_path: Callable[[str], str] = str,
    result_path: Callable[[str], str] = str,
    on_traced: Callable[[Sequence[Attribution], Sequence[str], set[str]], None] = lambda *_: None,
    donate: bool = True,
    only_measure: bool = False,
    samples_params: bool = False,
    plain: PlainProgram | None = None,
) -> Callable:
    """A jitted function that returns `(what the function returns, Measurement)`.

    Args: as of `watch.watch` and `JittedStep`, but `updates` is not None, and
      on_traced: Called whenever it is traced, with what is measured, notes on what is not, and the names of the step's
        primitives with effects.
      donate: Donate the arguments that the step donates.
      only_measure: Return `(None, Measurement)`, so that only what the gradients need is computed.
      samples_params: In some calls, also measure the parameters and their updates, outside of the step.
      plain: Keeps the program of the step whenever it is traced.
    """
    sampling = ParamSampling(options, lambda note: on_traced((), (note,), set())) if samples_params else None

    @functools.wraps(function)
    def instrumented_step(*args, **kwargs):
        call = function, args, kwargs, statistics, updates, _Layers(stacked, tidy_path), on_traced
        with full_searches_put_off():
            if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
                out, measurement = _measured_at_once(*call)
            else:
                out, measurement = _measured(*call, match, activations, tidy_path, result_path, sampling, plain)
        return (None if only_measure else out), measurement

    keywords = {k: v for k, v in options.keywords.items() if donate or not k.startswith("donate")}
    if options.out_shardings is not None and not only_measure:
        keywords["out_shardings"] = options.out_shardings, None
    jitted = jax.jit(instrumented_step, **keywords)
    return jitted if sampling is None else sampling.around(jitted)


def _measured(
    function,
    args,
    kwargs,
    statistics,
    updates,
    layers,
    on_traced,
    match,
    activations,
    tidy_path,
    result_path,
    sampling,
    plain,
):
    arguments = named_arguments(function, args, kwargs)
    leaves, rebuild = split(args, kwargs)
    out_tree, out_paths = None, ()

    def on_leaves(*leaves):
        nonlocal out_tree, out_paths
        args, kwargs = rebuild(leaves)
        out, out_tree = jax.tree_util.tree_flatten_with_path(function(*args, **kwargs))
        out_paths, out = zip(*out, strict=True) if out else ((), ())
        return out

    with seeing_gradients(sow):
        program = jax.make_jaxpr(on_leaves)(*leaves)
    if plain is not None:
        plain.traced(program, args, kwargs, out_tree)
    unread = Unread()
    lost = "Gradients that the step throws away are measured, too"
    program = unread.attempt(lost, program, drop_unused_tags, program)
    n_uses: Mapping[int, int] = {}
    if activations:
        program, n_uses = unread.attempt(NO_ACTIVATIONS, (program, {}), with_activations, program)
    reduce = functools.partial(_reduce, statistics)
    lost = "What the optimizer receives is not distinguished from the gradients"
    received = unread.attempt(lost, None, OptimizerInputs, program)
    scaled = functools.partial(scaled_rows, statistics=statistics)
    reducers = Reducers(reduce)
    if reduces_partially(statistics) and jax.device_count() == 1:
        reducers = Reducers(reduce, _reduce_deferred)
    elif reduces_partially(statistics) and jax.process_count() == 1:
        reducers = Reducers(reduce, None, lambda sown, values: _reduce_deferred(sown, values).per_device())
    left_out: set[str] = set()
    words = statistics_of_activations(statistics)
    beside = {"of_activations": words, "with_params": updates, "received": received, "scaled": scaled}
    # The collector would search the whole trace several times; and in this context, JAX has cached the types.
    with gc_paused(), traced_anew():
        out, found, packed = reap(
            program, leaves, reducers, _nothing, axes_of=layers.axes_of, left_out=left_out, unread=unread, **beside
        )
    pairs = [*zip(found, packed, strict=True)]
    rows = [pair for pair in pairs if pair[0].sown.activations]
    found = [r for r, _ in pairs if not r.sown.activations]
    packed = [packed_tree for r, packed_tree in pairs if not r.sown.activations]
    trained = unread.attempt("Which gradients train is not known", set(), trained_with, program)
    names = attribute_gradients(found, arguments, match=match, trained=trained)
    zeros = unread.attempt("Gradients that are zero by construction are not named", {}, structural_zeros, program)
    frozen = unread.attempt("Parameters that the step never changes are not known", (), frozen_arguments, program)
    drifting = unread.attempt("Parameters that devices change apart are not known", (), drifting_arguments, program)
    of_zeros = [zeros.get(r.tagged or r.sown, ()) for r in found]
    names = [name and _flagged(name, of, frozen, drifting) for name, of in zip(names, of_zeros, strict=True)]
    names, labels = (names, []) if received is None else _labelled(found, names, received, updates)
    of_last = [name.source.name for r, name in zip(found, names, strict=True) if name and r.is_of_last_step]
    notes = [
        f"{name}: in a while loop, only the last iteration is measured, since their number is unknown. "
        "lax.scan, or lax.fori_loop with constant bounds, measures every iteration."
        for name in of_last
        if not is_beside(name)  # which is measured with its gradients
    ]
    notes += [
        f"What jax.grad computes inside `{name}`, as the product with a Hessian that a solver takes, is not measured."
        for name in sorted(left_out)
    ]
    notes += [*labels, *layers.notes]
    paths = paths_of(args, kwargs)
    if updates:
        of_step = program, leaves, out, paths, out_paths, reduce, found, names
        lost = "Parameters and updates are not measured"
        measured, notes_of_params = unread.attempt(lost, ([], []), measure_step_params, *of_step)
        notes += notes_of_params
        names += [name for name, _ in measured]
        packed += [packed_tree for _, packed_tree in measured]
    order = unread.attempt("Findings do not know in which order the step uses the leaves", [], argument_order, program)
    names = [name and name.in_order(order, tidy_path) for name in names]
    shown = [result_path(keystr(path)) for path in out_paths]
    if sampling is not None:
        own = [(r, name) for r, name in zip(found, names, strict=False) if name and r.is_of_call]
        of_args = [name for r, name in own if name.arguments and not r.changes_in_loop]
        has_loops = any(r.changes_in_loop for r, _ in own)
        of_params, lost = (program, paths, out_paths, of_args, has_loops), "How far updates move is not measured"
        if params := unread.attempt(lost, None, TracedParams, *of_params):
            sampling.traced(params)
    params = {} if updates else _params(names)
    count = (lambda *bits: bits) if reducers.deferred else None
    of_results = program, leaves, out, paths, out_paths, shown, params, count
    counted = unread.attempt("NaN in results are not counted", ([], None, None), count_in_results, *of_results)
    names = [name and name.in_layers() for name in names]
    if activations:
        known = [name for name in names if name is not None]
        of_rows = rows, known, n_uses, words == LIGHT_OF_ACTIVATIONS
        more, notes_of_rows = unread.attempt(NO_ACTIVATIONS, ([], []), activation_rows, *of_rows)
        names += [name for name, _ in more]
        packed += [row for _, row in more]
        notes += notes_of_rows
    measurement = _measurement(zip(names, packed, strict=True), statistics, *counted)
    measurement = joined_later(measurement) if reducers.deferred else joined(measurement)
    on_traced([name for name in names if name is not None], [*notes, *unread.notes], effects_in(program))
    return jax.tree.unflatten(out_tree, out), measurement


def _labelled(found: Sequence[Reaped], names: Sequence[Attribution | None], plan: OptimizerInputs, updates: bool):
    """The names with their labels, and a note for each gradient that is transformed for the optimizer."""
    labelled, notes, known = [], [], {r.gradient for r in found if r.sown.kind == "received"}
    for r, name in zip(found, names, strict=True):
        if name is not None and r.is_of_call:
            label, transforms = plan.label_of(r)
            name = name._replace(label=label)
            if r.tagged in plan.unscaled & plan.scaled:
                flags = (True,) * len(name.source.paths)
                name = name._replace(source=name.source._replace(unscaled=flags))
            this = f"{name.source.name} is the gradient {label}" if label else ""
            received = sibling_name(name.source.name, "received")
            other = f"{received} is what the optimizer receives: {transforms}" if r.sown in known else ""
            if transforms == CLIPPED and not updates:
                other = "GradientInspector(updates=True) measures what the optimizer receives, too"
            notes += ["; ".join(filter(None, (this, other))) + "."] if label else []
        labelled.append(name)
    return labelled, notes


def _params(names: Sequence[Attribution | None]) -> dict[int, str]:
    """The path of each parameter, by the number of the argument that holds it."""
    known = [name for name in names if name is not None and name.arguments]
    has_several = len({name.owner for name in known}) > 1
    found: dict[int, str] = {}
    for name in known:
        paths, owner = itertools.compress(name.source.paths, name.source.has_number), name.owner * has_several
        found.update(zip(name.arguments, [owner + path for path in paths], strict=True))
    return found


def _flagged(
    name: Attribution, zeros: Collection[int], frozen: Collection[int], drifting: Collection[int]
) -> Attribution:
    """The name, with flags for frozen and drifting arguments, and for `zeros`, counted among leaves with numbers."""
    places, n = [leaf for leaf, has in enumerate(name.source.has_number) if has], len(name.source.paths)
    of_flags = {"cut_off": {places[i] for i in zeros}}
    for flag, numbers in (("frozen", frozen), ("drifts", drifting)):
        of_flags[flag] = {leaf for leaf, i in zip(places, name.arguments, strict=False) if i in numbers}
    flags: dict[str, Any] = {f: tuple(leaf in leaves for leaf in range(n)) for f, leaves in of_flags.items() if leaves}
    return name._replace(source=name.source._replace(**flags))


class _Layers:
    """Decides which arrays are measured layer by layer: those that the program scans over or that the user names."""

    def __init__(self, stacked: Stacked | None, tidy_path: Callable[[str], str] = str) -> None:
        self._stacked, self._tidy_path = stacked, tidy_path
        self._unused = dict.fromkeys(stacked_axes(stacked or ()))
        self._closed: list[str] = []

    def axes_of(self, source: MeasuredTree, scanned: Axes, why_not: WhyNot = nothing_against) -> Axes:
        if self._stacked is None:
            return ()
        source = source._replace(paths=tuple(map(self._tidy_path, source.paths)))
        reported, unused = reported_axes(source, self._stacked)
        self._unused = {glob: None for glob in unused if glob in self._unused}
        axes, closed = openable(source, reported, scanned, why_not)
        self._closed += closed
        return axes

    @property
    def notes(self) -> list[str]:
        unused = "no array that is measured has such a key path and axis"
        return [*dict.fromkeys(self._closed), *[f"stacked={glob!r}: {unused}" for glob in self._unused]]


def _measured_at_once(function, args, kwargs, statistics, updates, layers, on_traced):
    """Measure without jit: every gradient has concrete values when it is computed."""
    names, packed = [], []

    def see(kind, tree, origins=None, name="grads"):
        name = name.partition(" (")[0] if kind == "grads" else name
        count = sum(n.source.name.split(" #")[0] == name for n in names)
        source = source_of(tree, f"{name} #{count + 1}" if count else name)
        if any(source.has_number) and kind != "loss":
            leaves, axes = jax.tree.leaves(tree), layers.axes_of(source, ())
            leaves = [leaf if has else None for leaf, has in zip(leaves, source.has_number, strict=True)]
            packed.append(reduce_leaves(leaves, statistics, axes))
            names.append(Attribution(in_layers(source, axes), "", ()))
        return tree

    with seeing_gradients(see):
        out = function(*args, **kwargs)
    on_traced(names, ["updates are not measured without jit"] if updates else [], set())
    return out, _measurement(zip(names, packed, strict=True), statistics)


def _measurement(named, statistics, results: Sequence[MeasuredTree] = (), counts=None, losses=None) -> Measurement:
    kept = [(name.source, packed) for name, packed in named if name is not None]
    kept.sort(key=lambda pair: natural(pair[0].name))
    if not kept:
        raise NotMeasured(
            "this step computes no gradient with jax.grad, jax.value_and_grad or jax.vjp. If an argument holds them, "
            "inspector.watch(step, gradients='the name of that argument') measures them"
        )
    kept += [losses] if losses else []
    return Measurement(
        {source.name: packed for source, packed in kept}, [source for source, _ in kept], statistics, results, counts
    )


def _reduce(statistics, sown: Sown, values: Sequence[Any]) -> jax.Array:
    return reduce_leaves(_leaves(sown, values), statistics, sown.axes)


def _reduce_deferred(sown: Sown, values: Sequence[Any]) -> Unreduced:
    as_they_are = (type(None), BatchSlice)
    return Unreduced([x if isinstance(x, as_they_are) else jnp.asarray(x) for x in _leaves(sown, values)], sown.axes)


def _leaves(sown: Sown, values: Sequence[Any]) -> list[Any]:
    left = iter(values)
    return [next(left) if has else None for has in sown.source.has_number]


def _nothing(packed) -> jax.Array:
    """Packed rows without a number, for a branch that was not taken or a loop without a step."""
    rows = np.zeros(packed.shape, np.uint32)
    rows[..., 0] = NO_NUMBER
    return jnp.asarray(rows)
