"""The instrumented twin of a jitted step: it returns the same results, and measures the gradients computed inside."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from treeviz.steps.joined import joined, joined_later, reduces_partially
from treeviz.steps.measure import MeasuredTree, Measurement, source_of
from treeviz.steps.measured_tree import Axes, WhyNot, in_layers, nothing_against, openable, told_axes
from treeviz.steps.names import is_beside, natural, sibling_name
from treeviz.steps.reduce import NO_NUMBER, reduce_leaves
from treeviz.steps.scaled import scaled_rows
from treeviz.steps.tracing.argument_order import argument_order
from treeviz.steps.tracing.arguments import named_arguments, paths_of, split
from treeviz.steps.tracing.attribution import Attribution, attribute_gradients
from treeviz.steps.tracing.following import Plan
from treeviz.steps.tracing.jax_private import seeing_gradients, traced_anew
from treeviz.steps.tracing.jit_options import JitOptions
from treeviz.steps.tracing.known_zeros import known_zeros
from treeviz.steps.tracing.looks import Looks, Traced
from treeviz.steps.tracing.param_updates import measure_step_params
from treeviz.steps.tracing.plain_program import PlainProgram
from treeviz.steps.tracing.primitives import effects_in
from treeviz.steps.tracing.reap import Reducers, reap
from treeviz.steps.tracing.received import CLIPPED
from treeviz.steps.tracing.results import count_in_results
from treeviz.steps.tracing.sow import Reaped, Sown, sow
from treeviz.steps.tracing.unread import NotMeasured, Unread
from treeviz.steps.tracing.unused import without_unused
from treeviz.steps.unreduced import OneOf, Unreduced
from treeviz.tree.collector import collector_paused, full_searches_put_off
from treeviz.tree.layers import Stacked, stacked_axes


class NothingSeen(NotMeasured):
    """No gradient is computed in the step."""


def instrumented(
    function: Callable,
    options: JitOptions,
    statistics: tuple[str, ...],
    *,
    match: bool = True,
    updates: bool = False,
    stacked: Stacked | None = (),
    tidy_path: Callable[[str], str] = str,
    result_path: Callable[[str], str] = str,
    on_traced: Callable[[Sequence[Attribution], Sequence[str], set[str]], None] = lambda *_: None,
    donate: bool = True,
    only_measure: bool = False,
    looks: bool = False,
    plain: PlainProgram | None = None,
) -> Callable:
    """A jitted function that returns `(what the function returns, Measurement)`.

    Args:
      options: The options with which `jax.jit` made the step.
      match: Only gradients of the function's own arguments, if there are any.
      updates: Measure the parameters too, and what the step adds to them.
      stacked: Globs of further arrays that hold layers, beside those that the function scans over; None: none at all.
      tidy_path: Shortens the path of a gradient to that of the user's parameter.
      result_path: Shortens the path of a result to that in what the user's step returns.
      on_traced: Called whenever it is traced, with what is measured, notes on what is not, and the names of the step's
        primitives with effects.
      donate: Donate the arguments that the step donates.
      only_measure: Return `(None, Measurement)`, so that only what the gradients need is computed.
      looks: Now and then measure the parameters, too, and what the step adds to them, in a program beside it.
      plain: Gets the program of the step whenever it is traced.
    """
    looking = Looks(options, lambda note: on_traced((), (note,), set())) if looks else None

    @functools.wraps(function)
    def twin(*args, **kwargs):
        tidy, layers = (tidy_path, result_path), _Layers(stacked, tidy_path)
        with full_searches_put_off():
            out, measurement = _measured(
                function, args, kwargs, statistics, match, updates, layers, tidy, on_traced, looking, plain
            )
        return (None if only_measure else out), measurement

    out_shardings = None if options.out_shardings is None else (options.out_shardings, None)
    if only_measure:
        out_shardings = None
    jitted = _jit(twin, options, out_shardings, donate)
    return jitted if looking is None else looking.around(jitted)


def instrumented_callback(
    function: Callable,
    options: JitOptions,
    statistics: tuple[str, ...],
    record: Callable[[Measurement], None],
    stacked: Stacked | None = (),
) -> Callable:
    """A jitted function that returns `(what the function returns, None)`, and calls `record` at each gradient."""

    def see(kind, tree, origins=None, name="grads"):
        source = source_of(tree, name)
        if any(source.has_number) and kind != "loss":
            source, packed = _Layers(stacked).measured(tree, source, statistics)
            jax.debug.callback(lambda packed: record(Measurement({name: packed}, [source], statistics)), packed)
        return tree

    @functools.wraps(function)
    def twin(*args, **kwargs):
        with seeing_gradients(see):
            return function(*args, **kwargs), None

    return _jit(twin, options, None if options.out_shardings is None else (options.out_shardings, None), True)


def _jit(function, options: JitOptions, out_shardings, donate: bool):
    keywords = options.keywords
    if not donate:
        keywords = {k: v for k, v in keywords.items() if not k.startswith("donate")}
    if out_shardings is not None:
        keywords = {**keywords, "out_shardings": out_shardings}
    return jax.jit(function, **keywords)


def _measured(function, args, kwargs, statistics, match, updates, layers, tidy, on_traced, looking, plain):
    if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
        return _measured_at_once(function, args, kwargs, statistics, updates, layers, on_traced)
    arguments = named_arguments(function, args, kwargs)
    leaves, rebuild = split(args, kwargs)
    out_tree, out_paths = None, []

    def on_leaves(*leaves):
        nonlocal out_tree, out_paths
        args, kwargs = rebuild(leaves)
        out, out_tree = jax.tree_util.tree_flatten_with_path(function(*args, **kwargs))
        out_paths = [path for path, _ in out]
        return [leaf for _, leaf in out]

    with seeing_gradients(_sow):
        program = jax.make_jaxpr(on_leaves)(*leaves)
    if plain is not None:
        plain.traced(program, args, kwargs, out_tree)
    unread = Unread()
    program = unread.attempt("Gradients that the step throws away are measured, too", program, without_unused, program)
    reduce = functools.partial(_reduce, statistics)
    received = unread.attempt("What the optimizer receives is not told from the gradients", None, Plan, program)
    scaled = functools.partial(scaled_rows, statistics=statistics)
    is_partial = reduces_partially(statistics)
    later = _reduce_later if is_partial and jax.device_count() == 1 else None
    later_on_each = _reduce_later_on_each if jax.process_count() == 1 else None
    reducers = Reducers(reduce, later, Reducers(_reduce_on_each, later_on_each) if is_partial else None)
    left_out: set[str] = set()
    beside = {"with_params": updates, "received": received, "scaled": scaled, "left_out": left_out, "unread": unread}
    # The collector would go through the whole trace, several times; and JAX knows the types of equations again.
    with collector_paused(), traced_anew():
        out, found, packed = reap(program, leaves, reducers, _nothing, axes_of=layers.axes_of, **beside)
    names = attribute_gradients(found, arguments, match=match)
    zeros = unread.attempt("Gradients that are zero by construction are not named", {}, known_zeros, program)
    names = [name and _cut_off(name, zeros.get(r.tagged or r.sown, ())) for r, name in zip(found, names, strict=True)]
    names, labels = (names, []) if received is None else _labelled(found, names, received, updates)
    notes = [*_notes_of_loops(found, names), *_notes_of_left_out(left_out), *labels, *layers.notes]
    paths = paths_of(args, kwargs)
    if updates:
        of_step = program, leaves, out, paths, out_paths, reduce, found, names
        lost = "Parameters and updates are not measured"
        measured, notes_of_params = unread.attempt(lost, ([], []), measure_step_params, *of_step)
        notes += notes_of_params
        names += [name for name, _ in measured]
        packed += [packed_tree for _, packed_tree in measured]
    order = unread.attempt("Findings do not know in which order the step uses the leaves", [], argument_order, program)
    names = [_tidy(name and name.in_order(order), tidy[0]) for name in names]
    shown = [tidy[1](jax.tree_util.keystr(path)) for path in out_paths]
    if looking is not None:
        own = [(r, name) for r, name in zip(found, names, strict=False) if name and _is_of_call(r)]
        of_args = [name for r, name in own if name.arguments and not r.changes_in_loop]
        in_loop = any(r.changes_in_loop for r, _ in own)
        traced, lost = Traced(program, paths, out_paths, of_args, in_loop), "How far updates move is not measured"
        unread.attempt(lost, None, looking.traced, traced)
    params = {} if updates else _params(names)
    count = (lambda *bits: bits) if later else None
    of_results = program, leaves, out, paths, out_paths, shown, params, count
    counted = unread.attempt("NaN in results are not counted", ([], None), count_in_results, *of_results)
    names = [name and name.in_layers() for name in names]
    measurement = _measurement(zip(names, packed, strict=True), statistics, *counted)
    measurement = joined_later(measurement) if later else joined(measurement)
    on_traced([name for name in names if name is not None], [*notes, *unread.notes], effects_in(program))
    return jax.tree.unflatten(out_tree, out), measurement


def _is_of_call(r: Reaped) -> bool:
    """Whether these are the gradients of a call of `jax.grad`."""
    return r.gradient is None and r.sown.kind != "tap"


def _labelled(found: Sequence[Reaped], names: Sequence[Attribution | None], plan: Plan, updates: bool):
    """The names with their labels, and a note for each gradient that the optimizer receives otherwise."""
    labelled, notes, known = [], [], {r.gradient for r in found if r.sown.kind == "received"}
    for r, name in zip(found, names, strict=True):
        if name is not None and _is_of_call(r):
            label, how = plan.label_of(r)
            name = name._replace(label=label)
            if r.tagged in plan.unscaled & plan.scaled:
                flags = (True,) * len(name.source.paths)
                name = name._replace(source=name.source._replace(unscaled=flags))
            this = f"{name.source.name} is the gradient {label}" if label else ""
            received = sibling_name(name.source.name, "received")
            other = f"{received} is what the optimizer receives: {how}" if r.sown in known else ""
            if how == CLIPPED and not updates:
                other = "GradientInspector(updates=True) measures what the optimizer receives, too"
            notes += ["; ".join(filter(None, (this, other))) + "."] if label else []
        labelled.append(name)
    return labelled, notes


def _notes_of_loops(found: Sequence[Reaped], names: Sequence[Attribution | None]) -> list[str]:
    of_last = [name.source.name for r, name in zip(found, names, strict=True) if name and r.is_of_last_step]
    return [
        f"{name}: of a while loop, whose number of steps is not known beforehand, only the last step is measured. "
        "lax.scan, or lax.fori_loop with constant bounds, has the numbers of every step."
        for name in of_last
        if not is_beside(name)  # which is measured with its gradients
    ]


def _notes_of_left_out(primitives: Collection[str]) -> list[str]:
    return [
        f"What jax.grad computes inside `{name}`, as the product with a Hessian that a solver takes, is not measured."
        for name in sorted(primitives)
    ]


def _params(names: Sequence[Attribution | None]) -> dict[int, str]:
    """The path of each parameter, by the number of the argument that holds it."""
    known = [name for name in names if name is not None and name.arguments]
    has_several = len({name.owner for name in known}) > 1
    found: dict[int, str] = {}
    for name in known:
        paths = itertools.compress(name.source.paths, name.source.has_number)
        found.update(
            (i, (name.owner if has_several else "") + path) for i, path in zip(name.arguments, paths, strict=True)
        )
    return found


def _cut_off(name: Attribution, zeros: Collection[int]) -> Attribution:
    """The name of gradients of which these, counted among those with numbers, are known to be zero."""
    places = [leaf for leaf, has in enumerate(name.source.has_number) if has]
    cut_off = {places[i] for i in zeros}
    flags = tuple(leaf in cut_off for leaf in range(len(name.source.paths)))
    return name._replace(source=name.source._replace(cut_off=flags)) if zeros else name


def _tidy(name: Attribution | None, tidy_path: Callable[[str], str]) -> Attribution | None:
    if name is None or tidy_path is str:
        return name
    paths, forward = (tuple(map(tidy_path, paths)) for paths in (name.source.paths, name.forward))
    return name._replace(source=name.source._replace(paths=paths), forward=forward)


class _Layers:
    """Which arrays are measured layer by layer: those that the program scans over, and those that the user names."""

    def __init__(self, stacked: Stacked | None, tidy_path: Callable[[str], str] = str) -> None:
        self._stacked, self._tidy_path = stacked, tidy_path
        self._unused = dict.fromkeys(stacked_axes(stacked or ()))
        self._closed: list[str] = []

    def axes_of(self, source: MeasuredTree, scanned: Axes, why_not: WhyNot = nothing_against) -> Axes:
        if self._stacked is None:
            return ()
        source = source._replace(paths=tuple(map(self._tidy_path, source.paths)))
        told, unused = told_axes(source, self._stacked)
        self._unused = {glob: None for glob in unused if glob in self._unused}
        axes, closed = openable(source, told, scanned, why_not)
        self._closed += closed
        return axes

    def measured(self, tree: Any, source: MeasuredTree, statistics) -> tuple[MeasuredTree, jax.Array]:
        """A tree that is measured where it has its values; the layers are those that the user names."""
        pairs = [*zip(jax.tree.leaves(tree), source.has_number, strict=True)]
        axes = self.axes_of(source, ())
        packed = reduce_leaves([leaf if has else None for leaf, has in pairs], statistics, axes)
        return in_layers(source, axes), packed

    @property
    def notes(self) -> list[str]:
        unused = "no array that is measured has such a key path and axis"
        return [*dict.fromkeys(self._closed), *(f"stacked={glob!r}: {unused}" for glob in self._unused)]


def _sow(kind, tree, origins=None, name="grads"):
    return sow(kind, name, tree, [] if origins is None else jax.tree.leaves(origins))


def _measured_at_once(function, args, kwargs, statistics, updates, layers, on_traced):
    """Measure without jit, where every gradient has its values when it is computed."""
    names, packed = [], []

    def see(kind, tree, origins=None, name="grads"):
        count = sum(n.source.name.split(" #")[0] == name for n in names)
        source = source_of(tree, f"{name} #{count + 1}" if count else name)
        if any(source.has_number) and kind != "loss":
            source, packed_tree = layers.measured(tree, source, statistics)
            names.append(Attribution(source, "", ()))
            packed.append(packed_tree)
        return tree

    with seeing_gradients(see):
        out = function(*args, **kwargs)
    on_traced(names, ["updates are not measured without jit"] if updates else [], set())
    return out, _measurement(zip(names, packed, strict=True), statistics)


def _measurement(named, statistics, results: Sequence[MeasuredTree] = (), counts=None) -> Measurement:
    kept = [(name.source, packed) for name, packed in named if name is not None]
    kept.sort(key=lambda pair: natural(pair[0].name))
    if not kept:
        raise NothingSeen(
            "no gradient is made in this step by jax.grad, jax.value_and_grad or jax.vjp. If an argument holds them, "
            "inspector.watch(step, gradients='the name of that argument') measures them"
        )
    return Measurement(
        {source.name: packed for source, packed in kept}, [source for source, _ in kept], statistics, results, counts
    )


def _reduce(statistics, sown: Sown, values: Sequence[Any]) -> jax.Array:
    return reduce_leaves(_leaves(sown, values), statistics, sown.axes)


def _reduce_later(sown: Sown, values: Sequence[Any]) -> Unreduced:
    as_they_are = (type(None), OneOf)
    return Unreduced([x if isinstance(x, as_they_are) else jnp.asarray(x) for x in _leaves(sown, values)], sown.axes)


def _reduce_on_each(sown: Sown, values: Sequence[Any]) -> jax.Array:
    return _reduce_later(sown, values).reduced()


def _reduce_later_on_each(sown: Sown, values: Sequence[Any]) -> Any:
    return _reduce_later(sown, values).on_each()


def _leaves(sown: Sown, values: Sequence[Any]) -> list[Any]:
    left = iter(values)
    return [next(left) if has else None for has in sown.source.has_number]


def _nothing(packed) -> jax.Array:
    """Packed rows without a number, for a branch that was not taken or a loop without a step."""
    rows = np.zeros(packed.shape, np.uint32)
    rows[..., 0] = NO_NUMBER
    return jnp.asarray(rows)
