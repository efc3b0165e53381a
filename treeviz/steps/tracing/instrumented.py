"""The instrumented step: a jitted step that returns the same results, and measures the gradients computed inside."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from treeviz.analysis.stats import CHUNK, as_float64, host_view, lies_on_host
from treeviz.steps.measure import (
    Joined,
    Layout,
    MeasuredTree,
    Measurement,
    joined,
    joined_later,
    reduces_partially,
    source_of,
)
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
    EXPONENT_ZERO,
    LIGHT,
    LIGHT_OF_ACTIVATIONS,
    LOSSES,
    RANGE_AT,
    RESULT_KINDS,
    USUAL,
    Axes,
    WhyNot,
    in_layers,
    is_beside,
    n_words,
    name_of_result,
    natural,
    nothing_against,
    openable,
    reported_axes,
    shape_of,
    sibling_name,
    statistics_of_activations,
    with_dtypes,
)
from treeviz.steps.tracing import verify
from treeviz.steps.tracing.activations import activation_rows, with_activations
from treeviz.steps.tracing.attribution import Attribution, attribute_gradients, named_arguments, paths_of, split
from treeviz.steps.tracing.dataflow import Domain, forward
from treeviz.steps.tracing.domains import (
    Path,
    argument_order,
    drifting_arguments,
    frozen_arguments,
    match_new_params,
    structural_zeros,
)
from treeviz.steps.tracing.jax_private import NotMeasured, Unread, seeing_gradients, traced_anew
from treeviz.steps.tracing.jitted import JitOptions
from treeviz.steps.tracing.optimizer_input import CLIPPED, OptimizerInputs
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
    differences,
    drop_unused_tags,
    measure_step_params,
    reap,
    trained_with,
)
from treeviz.tree.keys import keystr
from treeviz.tree.layers import Stacked, stacked_axes
from treeviz.tree.runtime import computed_once, full_searches_put_off, gc_paused
from treeviz.tree.text import error_text, printable
from treeviz.tree.tracers import any_traced

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
    plain: verify.PlainProgram | None = None,
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
    n_uses: Mapping[Any, int] = {}
    words = statistics_of_activations(statistics)
    if activations:
        tagged = with_activations, program, words != LIGHT_OF_ACTIVATIONS
        program, n_uses = unread.attempt(NO_ACTIVATIONS, (program, {}), *tagged)

    def reduce(sown: Sown, values: Sequence[Any]) -> jax.Array:
        return reduce_leaves(_leaves(sown, values), statistics, sown.axes)

    lost = "What the optimizer receives is not distinguished from the gradients"
    received = unread.attempt(lost, None, OptimizerInputs, program)
    scaled = functools.partial(scaled_rows, statistics=statistics)
    reducers = Reducers(reduce)
    if reduces_partially(statistics) and jax.device_count() == 1:
        reducers = Reducers(reduce, _reduce_deferred)
    elif reduces_partially(statistics) and jax.process_count() == 1:
        reducers = Reducers(reduce, None, lambda sown, values: _reduce_deferred(sown, values).per_device())
    left_out: set[str] = set()
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


def _reduce_deferred(sown: Sown, values: Sequence[Any]) -> Unreduced:
    as_they_are = (type(None), BatchSlice)
    return Unreduced([x if isinstance(x, as_they_are) else jnp.asarray(x) for x in _leaves(sown, values)], sown.axes)


def _leaves(sown: Sown | Attribution, values: Sequence[Any]) -> list[Any]:
    """The values of its leaves; None for those without numbers."""
    left = iter(values)
    return [next(left) if has else None for has in sown.source.has_number]


def _nothing(packed) -> jax.Array:
    """Packed rows without a number, for a branch that was not taken or a loop without a step."""
    rows = np.zeros(packed.shape, np.uint32)
    rows[..., 0] = NO_NUMBER
    return jnp.asarray(rows)


# Measure the parameters and their updates in some calls of a step, outside of the step, while the loop goes on.
#
# Gradients are measured in each step. A few steps suffice to show whether updates reach the parameters, and how far
# they move them; so the step runs unchanged, and then the new parameters are compared with the old ones.

# Statistics of arrays in host memory by NumPy, which compiles nothing: rows as `treeviz.steps.reduce` packs them.

_MOST = 1000  # of the magnitude of an exponent, so that two to its power is a float64


def whole(array: jax.Array) -> np.ndarray:
    """An array whose devices use host memory: a view of it, or if it is sharded a copy. Waits for it."""
    if len(array.sharding.device_set) == 1:
        return host_view(array)
    copy = np.empty(array.shape, array.dtype)
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            copy[shard.index] = host_view(shard.data)
    return copy


def reduce_on_host(leaves: Sequence[tuple[np.ndarray, ...] | None], axes: Sequence[int | None] = ()) -> np.ndarray:
    """uint32[rows, n_words(LIGHT)]: as `reduce_leaves`, of arrays, or of the first of two less the other."""
    layers: list[tuple[np.ndarray, ...] | None] = []
    for arrays, axis in zip(leaves, axes or (None,) * len(leaves), strict=True):
        is_whole = arrays is None or axis is None
        layers += [arrays] if is_whole else zip(*[np.moveaxis(x, axis, 0) for x in arrays], strict=True)
    rows = np.zeros((len(layers), n_words(LIGHT)), np.uint32)
    rows[:, 0] = NO_NUMBER
    with np.errstate(all="ignore"):
        parts = [_sums(*zip(*batch, strict=True)) for batch in _batches(layers)]
        if not parts:
            return rows
        entries, of_peaks, of_exponents, of_squares, n_bad = map(np.concatenate, zip(*parts, strict=True))
        starts = np.flatnonzero(np.diff(entries, prepend=-1))
        sizes = np.diff(starts, append=len(entries))
        peaks = np.maximum.reduceat(of_peaks, starts)
        exponents = _exponents(peaks)
        squares = np.ldexp(of_squares, 2 * (of_exponents - np.repeat(exponents, sizes)))
        floats = np.add.reduceat(squares, starts), np.ldexp(peaks, -exponents)
        first = (EXPONENT_ZERO + exponents).astype(np.uint32) | np.uint32(USUAL << RANGE_AT)
        bits = [x.astype(np.float32).view(np.uint32) for x in floats]
        rows[entries[starts]] = np.stack([first, *bits, np.add.reduceat(n_bad, starts)], axis=1)
    return rows


def _batches(layers: Sequence[tuple[np.ndarray, ...] | None]) -> Iterator[list[tuple[int, np.ndarray]]]:
    """Pieces of the layers, each with the number of its layer; of small pieces many at a time."""
    batch: list[tuple[int, np.ndarray]] = []
    n = 0
    for entry, arrays in enumerate(layers):
        flat = [x.reshape(-1) for x in arrays or ()]
        for start in range(0, flat[0].size if flat else 0, CHUNK):
            piece = _difference(*[x[start : start + CHUNK] for x in flat])
            if batch and n + piece.size > CHUNK:
                yield batch
                batch, n = [], 0
            batch.append((entry, piece))
            n += piece.size
    if batch:
        yield batch


def _difference(left: np.ndarray, *right: np.ndarray) -> np.ndarray:
    """With the rounding of the device: at least in float32."""
    for x in right:
        low = left.dtype.itemsize < 4
        left = left.astype(np.float32) - x.astype(np.float32) if low else left - x
    return as_float64(left) if left.dtype.kind == "c" else left


def _sums(entries: Sequence[int], pieces: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Of each piece: its entry, the largest magnitude, its exponent, the squares by it, and the non-finite."""
    sizes = np.array([piece.size for piece in pieces])
    starts = np.cumsum(sizes) - sizes
    values = np.abs(np.concatenate(pieces, dtype=np.float64))
    is_bad = ~np.isfinite(values)
    values[is_bad] = 0
    peaks = np.maximum.reduceat(values, starts)
    exponents = _exponents(peaks)
    values *= np.repeat(np.ldexp(1.0, -exponents), sizes)
    values *= values
    n_bad = np.add.reduceat(is_bad, starts, dtype=np.uint32)
    return np.array(entries), peaks, exponents, np.add.reduceat(values, starts), n_bad


def _exponents(peaks: np.ndarray) -> np.ndarray:
    return np.clip(np.frexp(peaks)[1], -_MOST, _MOST)


# Measure parameters and their updates outside of a step, without blocking the loop.


class _Part(NamedTuple):
    """A tree that is measured: the parameters at some places, or their updates."""

    source: MeasuredTree
    is_update: bool
    gradient: Attribution
    at: slice


class TracedParams:
    """The parameters of a traced step whose new values are known, and what measures both; if not, `why_not`."""

    def __init__(
        self,
        program: ClosedJaxpr,
        argument_paths: Sequence[Path],
        result_paths: Sequence[Path],
        gradients: Sequence[Attribution],
        has_loops: bool,
    ) -> None:
        self._avals = list(map(shape_and_dtype, program.jaxpr.invars))
        # Of the constants numbers are read; tracers and large arrays are not kept.
        numbers = [x if isinstance(x, float | int | np.generic) else None for x in program.consts]
        self._of = ClosedJaxpr(program.jaxpr, numbers), argument_paths, result_paths, gradients
        self.why_not = "they change in a loop inside the step" if has_loops else ""
        self.why_not_compiled = ""  # the program that measures them
        self._compiled: Callable[..., Measurement] | None = None
        self._thread: threading.Thread | None = None

    @computed_once
    def _trees(self) -> list[tuple[Attribution, tuple[int, ...]]]:
        """The gradients of which all new values are known, with the numbers of these."""
        program, argument_paths, result_paths, gradients = self._of
        found = []
        for gradient in gradients:
            at = match_new_params(program, gradient.arguments, argument_paths, result_paths)
            shapes = [self._avals[i][0] for i in gradient.arguments]
            source = gradient.source
            of_gradient = [shape_of(x) for x, has in zip(source.shapes, source.has_number, strict=True) if has]
            if None not in at and shapes == of_gradient:
                found.append((gradient, tuple([i for i in at if i is not None])))
            elif None not in at:
                self.why_not = "they belong to the members of an ensemble"
        self.why_not = "" if found else self.why_not
        del self._of  # the program
        return found

    @computed_once
    def _parts(self) -> list[_Part]:
        parts: dict[str, _Part] = {}
        first = 0
        for gradient, _ in self._trees:
            at = slice(first, first := first + len(gradient.arguments))
            avals = [jax.ShapeDtypeStruct(*self._avals[i]) for i in gradient.arguments]
            source = in_layers(with_dtypes(gradient.source, avals), gradient.layers)
            for kind in ("params", "updates"):
                name = sibling_name(source.name, kind)
                parts.setdefault(name, _Part(source._replace(name=name), kind == "updates", gradient, at))
        return [*parts.values()]

    @computed_once
    def _layout(self) -> Layout:
        sources = tuple([part.source for part in self._parts])
        return Layout(sources, LIGHT, (), tuple([(len(source.paths), n_words(LIGHT)) for source in sources]))

    def among(self, leaves: Sequence[Any]) -> list[jax.Array] | None:
        """The parameters among the arguments; None if these are not those of the trace."""
        if len(leaves) != len(self._avals):
            return None
        at = [i for gradient, _ in self._trees for i in gradient.arguments]
        # As the program gets them: the first parameters may be NumPy's, which the user may change.
        avals = [self._avals[i] for i in at]
        pairs = [(leaves[i], dtype) for i, (_, dtype) in zip(at, avals, strict=True)]
        found = [jnp.array(x, dtype) if isinstance(x, np.ndarray) else x for x, dtype in pairs]
        types = [(x.shape, x.dtype) if isinstance(x, jax.Array) else None for x in found]
        return found if found and types == avals else None

    def new_among(self, out: Any) -> list[jax.Array]:
        results = jax.tree.leaves(out)
        return [results[i] for _, at in self._trees for i in at]

    def on_host(self, old: Sequence[jax.Array], new: Sequence[jax.Array], on_lost: Callable[[], None]) -> Measurement:
        """Measure what is in host memory, or will be; `on_lost` if another function has been given it to keep."""

        def rows() -> np.ndarray:
            jax.block_until_ready((old, new))
            before, after = ([whole(x) for x in arrays] for arrays in (old, new))
            pairs = [*zip(after, before, strict=True)], [(x,) for x in before]
            of_parts = [(part.gradient, pairs[not part.is_update][part.at]) for part in self._parts]
            rows_of = (reduce_on_host(_leaves(gradient, own), gradient.layers) for gradient, own in of_parts)
            return np.concatenate([rows.reshape(-1) for rows in rows_of])

        return Joined([_InThread(rows, on_lost)], self._layout)

    def on_device(self, old: Sequence[jax.Array], new: Sequence[jax.Array]) -> Measurement | None:
        """Measure on the device; None while the program is being compiled."""
        if self._compiled is not None:
            try:
                return self._compiled(old, new)
            except (TypeError, ValueError):  # they are sharded in another way
                self._compiled = None
        self._compile(old, new)
        return None

    def _compile(self, old: Sequence[Any], new: Sequence[Any]) -> None:
        """Begin to compile the program for such arrays, which may have been donated."""
        if self._thread is not None and self._thread.is_alive():
            return
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), (old, new))
        options = verify.options_of_thread()

        def compile_() -> None:
            try:
                if verify.options_of_thread() == options:
                    self._compiled = jax.jit(self._measure).lower(*like).compile()
                else:
                    self.why_not_compiled = "JAX has options in the thread of the loop alone"
            except Exception as error:
                self.why_not_compiled = error_text(error)

        self._thread = verify.in_thread(compile_, "compilation")

    def _measure(self, old: Sequence[jax.Array], new: Sequence[jax.Array]) -> Measurement:
        packed, sources = {}, []
        for part in self._parts:
            values = differences(new[part.at], old[part.at]) if part.is_update else old[part.at]
            if values is not None:
                packed[part.source.name] = reduce_leaves(_leaves(part.gradient, values), LIGHT, part.gradient.layers)
                sources.append(part.source)
        return joined(Measurement(packed, sources))


class _InThread:
    """The words that a thread computes, as an array that is ready when it has."""

    def __init__(self, compute: Callable[[], np.ndarray], on_lost: Callable[[], None]) -> None:
        self._words: np.ndarray | None = None

        def run() -> None:
            try:
                self._words = compute()
            except Exception:
                on_lost()

        self._thread = verify.in_thread(run, "params")

    def is_ready(self) -> bool:
        return not self._thread.is_alive()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        self._thread.join()
        if self._words is None:
            raise RuntimeError("the arrays were deleted, or their step failed")
        return self._words

    @property
    def shape(self) -> tuple[int, ...]:
        return self.__array__().shape

    def __getitem__(self, at: Any) -> np.ndarray:
        return self.__array__()[at]


FIRST, N_EVEN = 50, 5  # at calls 50, 100 … 250, and then after twice as many
_EARLY = (1, 5)  # how far the first updates go; before all findings of zeros, which biases of zero explain


def next_sampled(call: int) -> int:
    """The next call of a step in which its parameters are measured, after this one, counted from 1."""
    if early := [n for n in _EARLY if call < n <= FIRST]:
        return early[0]
    part = call // FIRST + 1
    return FIRST * (part if part <= N_EVEN else N_EVEN << (-(-part // N_EVEN) - 1).bit_length())


def not_sampled(why: str) -> str:
    return (
        f"How far updates move the parameters is not measured: {why}. So 'frozen' covers only small parameters, "
        "'ratio' and 'underflow' none; GradientInspector(updates=True) measures all of them in each step."
    )


class ParamSampling:
    """Measures "params" and "updates" of a step outside of it. Where that is impossible, `report` gets a note."""

    def __init__(self, options: JitOptions, report: Callable[[str], None]) -> None:
        self._report = report
        static = [options.keywords.get(name) or () for name in ("static_argnums", "static_argnames")]
        self._donates, self._static = options.donates, frozenset(itertools.chain(*static))
        self._n_calls, self._next = 0, 1
        self._params: TracedParams | None = None
        self._in_first_call: tuple[tuple, dict[str, Any]] | None = None
        self._before_first: list[jax.Array] | None = None

    def traced(self, params: TracedParams) -> None:
        """Take what is known of the program that runs next."""
        self._params = params
        if self._in_first_call is not None:
            args, kwargs = self._in_first_call
            # These are the arguments, not what stands for them in the trace.
            with contextlib.suppress(Exception), jax.ensure_compile_time_eval():
                self._before_first = self._before(params, args, kwargs)

    def around(self, program: Callable) -> Callable:
        """The instrumented step, with `sampled_params` in some of its measurements."""

        def sampled(*args, **kwargs):
            self._n_calls = call = self._n_calls + 1
            if call < self._next:  # most calls
                return program(*args, **kwargs)
            self._next = next_sampled(call)
            params, before = self._params, None
            if params is not None:
                with contextlib.suppress(Exception):  # a sample is no reason for a step to fail
                    before = self._before(params, args, kwargs)
                out, measurement = program(*args, **kwargs)
            else:  # it is traced meanwhile: only then is known which arguments are parameters
                self._in_first_call = args, kwargs
                try:
                    with full_searches_put_off():
                        out, measurement = program(*args, **kwargs)
                    params, before = self._params, self._before_first
                finally:
                    self._in_first_call = self._before_first = None
            if before is not None and params is not None and params is self._params:
                with contextlib.suppress(Exception):
                    measurement.sampled_params = self._measured(params, before, out)
                if measurement.sampled_params is None and call < FIRST:  # the program is still being compiled
                    self._next = min(2 * call, self._next)
            return out, measurement

        return sampled

    def _before(self, params: TracedParams, args: tuple, kwargs: dict[str, Any]) -> list[jax.Array] | None:
        """The parameters that a call is given, or copies; None if they are not measured."""
        args = tuple(x for i, x in enumerate(args) if i not in self._static and i - len(args) not in self._static)
        leaves = jax.tree.leaves((args, {name: x for name, x in kwargs.items() if name not in self._static}))
        if any_traced(leaves):
            return None
        found, why_not = params.among(leaves), params.why_not
        if found and jax.process_count() > 1:
            why_not = "this is a run of several processes"
        elif found and self._donates:
            n_bytes = verify.n_bytes_on_device(found) * (2 if all(map(lies_on_host, found)) else 1)
            if n_bytes <= verify.bytes_for_copies():
                return verify.copies(found)
            why_not = f"copies of what the step donates would take {n_bytes / 2**30:.2g} GiB of a device"
        if why_not and self._n_calls > 1:  # one call is no run
            self._report(not_sampled(why_not))
        return None if why_not else found

    def _measured(self, params: TracedParams, old: list[jax.Array], out: Any) -> Measurement | None:
        new = params.new_among(out)
        if all(map(lies_on_host, (*old, *new))):
            return params.on_host(old, verify.copies(new) if self._donates else new, self._copy)
        if params.why_not_compiled:
            self._report(not_sampled(params.why_not_compiled))
        return params.on_device(old, new)

    def _copy(self) -> None:
        """From now on: another function of the loop donates what the step does not."""
        self._donates = True
