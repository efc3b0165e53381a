"""The arguments of a step: which donated buffers are reused, the cost of flattening; and a trace that knows them."""

from __future__ import annotations

import contextlib
import re
import timeit
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import tree_util

from treeviz.analysis.facts import common_mesh, fact_columns, headline, size_columns
from treeviz.steps.compiles.forecast import argument_names, called_inside, inner_name, named_arguments, out_tree
from treeviz.steps.tracing.jitted import (
    CannotWatch,
    JittedStep,
    LibraryMoved,
    arguments_read,
    dynamic_arguments,
    is_jitted,
    jit_options,
    jitted_step,
    trace_sown,
)
from treeviz.tree.describers import load_libraries
from treeviz.tree.facts import Column, Note
from treeviz.tree.leaves import describe_sharding
from treeviz.tree.table import TreeTable
from treeviz.tree.text import array_text, bytes_text, class_name, guarded
from treeviz.tree.walk import scan, walk
from treeviz.views.tree_view import TreeView

# The buffers of the arguments of a compiled step, read from the text of its program.

# HloModule jit_step, input_output_alias={ {1}: (0, {}, may-alias) }, entry_computation_layout={(f32[4]{0}, …)->…
_ALIAS = re.compile(r"\{(\d*)\}: \((\d+), \{\}, m\w+-alias\)")
_PARAMETERS = re.compile(r"entry_computation_layout=\{\((.*?)\)->")
_PARAMETER = re.compile(r"\b[a-z]\w*\[")


class Buffers(NamedTuple):
    donated: list[bool]  # whether the leaf was donated
    read: list[bool | None]  # whether the program reads it; None if unknown
    reused: list[str | None]  # the path of the result that reuses its buffer; "" for none; None if unknown
    why_not: list[str]  # why a leaf that was donated and read is not reused; else ""


def read_buffers(
    step: Callable,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    result_name: Callable[[str], str] = "result{}".format,
) -> tuple[Any, Buffers]:
    """The treedef of the non-static arguments, and the buffers of their leaves. Compiles the step."""
    traced: Any = step.trace(*args, **kwargs)  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")  # the view shows it by leaf
        lowered = traced.lower()
        compiled = lowered.compile()
    donated = [bool(leaf.donated) for leaf in tree_util.tree_leaves(lowered.args_info)]
    n, read_positions = len(donated), arguments_read(compiled)
    if len(traced.jaxpr.in_avals) != n:
        raise TypeError(
            "arguments: a leaf of the arguments has a hijax type, which is several buffers of the program, or none. "
            "Pass the arrays in it instead."
        )
    first_line = (guarded(compiled.as_text, lambda _: "") or "").partition("\n")[0]
    layout = re.sub(r"\{[^{}]*\}|/\*.*?\*/", "", "".join(_PARAMETERS.findall(first_line)[:1]))
    parameters = _PARAMETER.findall(layout)  # ["f32[", "token["]
    n_tokens = parameters.count("token[")
    if read_positions is None and len(parameters) - n_tokens == n:
        read_positions = list(range(n))
    # If a future release puts other parameters before the arguments, the reuse is unknown.
    is_known = read_positions is not None and len(parameters) - n_tokens == len(read_positions)
    paths = [result_name(leaf.keystr) for leaf in walk(out_tree(traced)).leaves]
    reused: list[str | None] = ["" if is_known else None] * n
    for result, parameter in _ALIAS.findall(first_line) if is_known else ():
        out, leaf = int(result or 0) - n_tokens, int(parameter) - n_tokens
        if read_positions is not None and leaf >= 0 and out >= 0:
            reused[read_positions[leaf]] = paths[out] if out < len(paths) else "a result"
    read: list[bool | None] = [None if read_positions is None else i in set(read_positions) for i in range(n)]
    jaxpr = traced.jaxpr
    results = list(zip(paths, jaxpr.out_avals, _places(lambda: compiled.output_shardings, len(paths)), strict=False))
    places = _places(lambda: compiled.input_shardings, n)
    is_in_vain = [is_known and donated[i] and read[i] and not reused[i] for i in range(n)]
    reasons = [
        _why_not(aval, place, results, reused) if vain else ""
        for aval, place, vain in zip(jaxpr.in_avals, places, is_in_vain, strict=True)
    ]
    return lowered.in_tree, Buffers(donated, read, reused, reasons)


def _places(shardings: Callable[[], Any], n: int) -> list[Any]:
    """The shardings of arguments or results; None each if this release of JAX does not report them."""
    places = guarded(lambda: tree_util.tree_leaves(shardings(), is_leaf=lambda x: x is None), lambda _: [])
    return places if len(places) == n else [None] * n


def _why_not(aval: Any, place: Any, results: Sequence[tuple[str, Any, Any]], reused: Sequence[str | None]) -> str:
    same_shape = [(path, x, sharding) for path, x, sharding in results if x.shape == aval.shape]
    similar = {path: sharding for path, x, sharding in same_shape if x.dtype == aval.dtype}
    type_text = array_text(aval) or str(aval)
    if not similar:
        other = next((f", {path} is {array_text(x)}" for path, x, _ in same_shape), "")
        return f"no result is {type_text}{other}"
    free = [path for path in similar if path not in reused]
    if free:
        return f"{free[0]} is {type_text}, too, but {_placement_text(place, similar[free[0]])}"
    if len(similar) == 1:
        return f"the one result that is {type_text}, {next(iter(similar))}, takes another buffer"
    return f"the {len(similar):,} results that are {type_text} take other buffers"


def _placement_text(sharding: Any, result_sharding: Any) -> str:
    """The difference in sharding as text: "lies as P(), and this as P('d')"."""
    descriptions = [place and describe_sharding(place) for place in (result_sharding, sharding)]
    is_elsewhere = len({place and place.devices for place in descriptions}) > 1
    texts = [place and (f"{place.text} on {place.devices}" if is_elsewhere else place.text) for place in descriptions]
    if None in texts or texts[0] == texts[1]:
        return "is placed or laid out differently"
    return f"lies as {texts[0]}, and this as {texts[1]}"


# The cost of flattening the arguments at each call, in total and by class.

_ROUNDS = 5
_MOST_NODES = 200  # nodes of a class that are measured
_MOST_DEEP = 200  # levels; JAX's flatten is not called for deeper trees


class ClassCost(NamedTuple):
    name: str
    n: int  # nodes in the arguments
    each_us: float  # microseconds per node, without its children


class Flattening(NamedTuple):
    """The cost of flattening the arguments, which JAX does in each call; the fastest of five measurements."""

    us: float  # microseconds
    as_list_us: float  # of a list of the same leaves
    classes: tuple[ClassCost, ...]  # the registered ones, the most costly first

    @property
    def text(self) -> str:
        """ "flattening takes 812 µs a call, 40 times as long as of a list of the leaves: Block 20 × 31 µs"."""
        parts = [f"{cost.name} {cost.n:,} × {cost.each_us:.2g} µs" for cost in self.classes[:3]]
        times = f", {self.us / self.as_list_us:.2g} times as long as of a list of the leaves" if parts else ""
        return f"flattening takes {self.us:.3g} µs a call{times}{': ' if parts else ''}{', '.join(parts)}"


def measure_flattening(table: TreeTable, nodes: Sequence[Any]) -> Flattening | None:
    """Measure flattening of a walked tree, by the flatten functions of its classes; None if it cannot be flattened."""
    if table.depth.max() >= _MOST_DEEP or any(facts.kind in ("error", "cycle") for facts in table.facts):
        return None
    leaves = tree_util.tree_leaves(nodes[0])
    by_class: dict[int, list[Any]] = {}
    for row, node in enumerate(nodes):
        if not table.is_leaf[row] and table[row].facts.module.partition(".")[0] not in ("", "jax", "jaxlib"):
            by_class.setdefault(id(type(node)), []).append(node)
    flatten: Any = getattr(getattr(tree_util, "default_registry", None), "flatten_one_level", None)
    costs = []
    for group in by_class.values() if flatten else ():
        sample = group[:_MOST_NODES]
        # The call from Python is not part of a step, so that of tuples is subtracted.
        both = guarded(lambda sample=sample: (sample, [tuple(flatten(node)[0]) for node in sample]), lambda _: ())
        if both:
            own_s, tuples_s = (_least_seconds(lambda same=same: [*map(flatten, same)]) for same in both)
            seconds = max(own_s - tuples_s, 0.0)
            costs.append(ClassCost(class_name(type(group[0])), len(group), 1e6 * seconds / len(sample)))
    costs.sort(key=lambda cost: -cost.n * cost.each_us)
    whole, flat = (_least_seconds(lambda tree=tree: tree_util.tree_flatten(tree)) for tree in (nodes[0], leaves))
    return Flattening(1e6 * whole, 1e6 * flat, tuple(costs))


def _least_seconds(call: Callable[[], Any]) -> float:
    return min(timeit.repeat(call, number=1, repeat=_ROUNDS, timer=perf_counter))


# The buffers of a step that another library jitted: the arguments that its wrapper passes to the `jax.jit` inside.


def wrapped_buffers(
    inside: JittedStep, args: Sequence[Any], kwargs: Mapping[str, Any], leaves: Sequence[Any], paths: Sequence[str]
) -> tuple[list[int | None], Buffers]:
    """The position of each of the user's leaves among those passed on, None if absent; and the buffers of these."""

    def make(function: Callable) -> Callable:
        jitted = inside.jitted
        if function is not jitted.__wrapped__:  # the library uses a wrapper of its own
            jitted = jit_options(jitted).jit(function)

        def read(*args: Any, **kwargs: Any) -> tuple[list[int | None], Buffers]:
            positions, names = dynamic_arguments(jitted, args, kwargs)
            passed = tuple(args[i] for i in positions), {name: kwargs[name] for name in names}
            order = positions_of(leaves, tree_util.tree_leaves(passed))
            if any(i is None and isinstance(leaf, jax.ShapeDtypeStruct) for i, leaf in zip(order, leaves, strict=True)):
                text = "the library that jitted the step treats shapes as static data: pass arrays."
                raise TypeError(f"arguments: {text}")
            inner = [row.keystr for row in walk(passed).leaves] if inside.changes_arguments else []
            user_paths = {inner[i]: path for i, path in zip(order, paths, strict=True) if inner and i is not None}

            def name(path: str) -> str:
                # A wrapper that changes its arguments receives them first: positional in [0], keyword in [1].
                return user_paths.get(path, f"result{inside.result_path(path)}")

            return order, read_buffers(jitted, args, kwargs, name)[1]

        return read

    return inside.inside(make, args, kwargs)


def positions_of(leaves: Sequence[Any], passed: Sequence[Any]) -> list[int | None]:
    """The position of each leaf in `passed`, by identity; repeated leaves are matched in order."""
    by_id: dict[int, list[int]] = defaultdict(list)
    for i, leaf in reversed([*enumerate(passed)]):
        by_id[id(leaf)].append(i)
    found = (by_id.get(id(leaf), [None]) for leaf in leaves)
    return [places.pop() if len(places) > 1 else places[0] for places in found]


_COSTLY_US = 100  # flattening time from which there is a note
_CURE = (
    "register dataclasses with jax.tree_util.register_dataclass, which is flattened in C++, keep what does not change "
    "out of the arguments, or pass jax.tree.leaves(tree) and unflatten it in the step"
)


class StepArguments(TreeView):
    """The arguments of a compiled step, and the use of each leaf's buffer.

    Attributes:
      reused: For each donated leaf whose buffer is reused: its path -> the path of the result.
      in_vain: For each donated leaf that is read but not reused: its path -> the reason.
      never_read: Paths of leaves that the program does not read; JAX neither passes nor donates them.
      flattening: The cost at each call; None if the arguments cannot be flattened.
    """

    reused: dict[str, str]
    in_vain: dict[str, str]
    never_read: list[str]
    flattening: Flattening | None


def step_arguments(step: Callable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> StepArguments:
    is_plain = is_jitted(step)
    positions, names = dynamic_arguments(step, args, kwargs) if is_plain else (range(len(args)), kwargs)
    positional = argument_names(step, len(args))
    trees = OrderedDict((positional[i], args[i]) for i in positions)
    trees.update((name, kwargs[name]) for name in names)
    table, nodes = scan(trees, name="args")
    rows, inside = np.flatnonzero(table.is_leaf), None
    if not is_plain:
        load_libraries()
        try:
            inside = jitted_step(step)
        except (CannotWatch, LibraryMoved) as error:
            raise TypeError(
                f"arguments: `{inner_name(step)}` was not returned by jax.jit, and what its library passes on is "
                "unknown: pass the function to jax.jit itself."
            ) from error
    if inside is None:
        in_tree, buffers = read_buffers(step, args, kwargs)
        passed = (tuple(args[i] for i in positions), {name: kwargs[name] for name in names})
        if tree_util.tree_structure(passed) != in_tree:
            text = f"it is not known which arguments of `{inner_name(step)}` are static in this release of JAX."
            raise TypeError(f"arguments: {text}")
        order = [*range(len(rows))]
    else:
        leaves, paths = [nodes[row] for row in rows], [path_text(table, row) for row in rows.tolist()]
        order, buffers = wrapped_buffers(inside, args, kwargs, leaves, paths)
    # The graph of an NNX module is not flattened as JAX does.
    flattening = measure_flattening(table, nodes) if inside is None or not inside.changes_arguments else None
    table = table.with_columns(*fact_columns(table, common_mesh(table)), *size_columns(table))
    return _view(table, [*zip(rows.tolist(), order, strict=True)], buffers, flattening)


def _view(
    table: TreeTable, rows: Sequence[tuple[int, int | None]], buffers: Buffers, flattening: Flattening | None
) -> StepArguments:
    texts, notes = [""] * len(table), {}
    reused, in_vain, never_read = {}, {}, []
    n_donated = n_reused = 0  # bytes
    for row, i in rows:
        if i is None:
            texts[row] = "static"
            continue
        path, size = path_text(table, row), table[row].facts.bytes
        if buffers.read[i] is False:
            never_read.append(path)
            texts[row] = "never read, not donated" if buffers.donated[i] else "never read"
            continue
        n_donated += size * buffers.donated[i]
        if buffers.reused[i]:
            reused[path] = buffers.reused[i] or ""
            texts[row] = f"→ {reused[path]}"
            n_reused += size
        elif buffers.why_not[i]:
            in_vain[path], texts[row] = buffers.why_not[i], "donated, not reused"
            notes[row] = (Note("warning", in_vain[path]),)
        elif buffers.donated[i]:
            texts[row] = "donated; unknown if reused"
    column = Column("buffer", "buffer", texts, help="The result that reuses the donated buffer, or why there is none")
    if flattening is not None and flattening.us >= _COSTLY_US and flattening.classes:
        notes[0] = (Note("info", f"flattening is slow: {_CURE}"),)
    table = table.with_columns(column).with_notes(notes)
    table = table.with_headline(
        f"{bytes_text(n_reused)} of {bytes_text(n_donated)} donated are reused" if n_donated else "nothing is donated",
        *[f"{len(in_vain):,} donated, not reused"] * bool(in_vain),
        *[f"{len(never_read):,} never read"] * bool(never_read),
        *([flattening.text] if flattening is not None else []),
        *headline(table),
    )
    view = StepArguments(table, table.chosen(["buffer", "bytes"]))
    # The view is a frozen dataclass.
    vars(view).update(reused=reused, in_vain=in_vain, never_read=never_read, flattening=flattening)
    return view


def path_text(table: TreeTable, row: int) -> str:
    """The path of a row as code in the step: "state['w']"."""
    first, *rest = table.path(row)
    return first.segment + "".join(key.keystr for key in rest)


# Trace a step of any library as a program in which its gradients are sown; and the leaves of its arguments there.


class SownStep(NamedTuple):
    """A traced step. Nothing is compiled or run."""

    trees: OrderedDict[str, Any]  # the arguments by name
    order: Sequence[int | None]  # for each of their leaves, the number of the program's argument; None: it is static
    traced: Any  # JAX's `Traced`: its `.jaxpr` is the program, in which gradients and losses are sown (see `sow`)
    shardings: Sequence[Any] = ()  # the `in_shardings` of its `jax.jit` for each leaf; () if there are none


def sown_step(step: Callable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> SownStep:
    """Trace a step: a function, or what `jax.jit`, `equinox.filter_jit` or `nnx.jit` returned."""
    inside, args, kwargs = called_inside(step, tuple(args), dict(kwargs))
    trees = OrderedDict(named_arguments(inside, args, kwargs))
    if is_jitted(inside):
        positions, keywords = dynamic_arguments(inside, args, kwargs)
        names = [*trees]
        trees = OrderedDict((name, trees[name]) for name in [*(names[i] for i in positions), *keywords])
        shardings = guarded(lambda: _in_shardings(inside, tuple(args[i] for i in positions)), lambda _: [])
        order = range(len(tree_util.tree_leaves(trees)))
        return SownStep(trees, order, trace_sown(inside, args, kwargs), shardings)
    found = None
    load_libraries()
    with contextlib.suppress(CannotWatch, LibraryMoved):
        found = jitted_step(inside)
    if found is None or found.static_numbers:
        traced = trace_of_arrays(inside.__wrapped__ if found else inside, args, kwargs)
        number = {place: i for i, place in enumerate(traced.places)}
        return SownStep(trees, [number.get(place) for place in range(len(traced.leaves))], traced.traced)
    table, nodes = scan(trees)
    leaves = [nodes[row] for row in np.flatnonzero(table.is_leaf).tolist()]

    def make(function: Callable) -> Callable:
        jitted = jit_options(found.jitted).jit(function)

        def trace(*args: Any, **kwargs: Any) -> tuple[Sequence[int | None], Any]:
            positions, names = dynamic_arguments(jitted, args, kwargs)
            passed = tuple(args[i] for i in positions), {name: kwargs[name] for name in names}
            return positions_of(leaves, tree_util.tree_leaves(passed)), trace_sown(jitted, args, kwargs)

        return trace

    return SownStep(trees, *found.inside(make, args, kwargs))


def _in_shardings(jitted: Any, args: tuple) -> list[Any]:
    """The sharding for each leaf of the arguments; empty if `jax.jit` was given none."""
    prefix, found = jit_options(jitted).keywords.get("in_shardings"), list[Any]()

    def spread(sharding: Any, tree: Any) -> None:
        found.extend([sharding] * len(tree_util.tree_leaves(tree)))

    if prefix is not None:
        tree_util.tree_map(spread, prefix, args, is_leaf=lambda node: node is None)
    return found


class TracedArrays(NamedTuple):
    """A function, traced with the arrays among its arguments; all other leaves are static."""

    traced: Any  # JAX's `Traced`, as of a `SownStep`
    trees: OrderedDict[str, Any]  # the arguments, by name
    leaves: list[Any]  # of all arguments
    paths: list[tuple[Any, ...]]  # of the arrays; the first key is the position or name of the argument
    places: list[int]  # of the arrays, among all leaves
    result_paths: list[tuple[Any, ...]]  # of the arrays that it returns, and of those that it changes in its arguments


def trace_of_arrays(function: Callable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TracedArrays:
    """Trace a function with its gradients sown, whatever it calls and however it is jitted."""
    names = [*argument_names(function, len(args)), *kwargs]
    trees = OrderedDict(zip(names, (*args, *kwargs.values()), strict=True))
    firsts = [*map(tree_util.SequenceKey, range(len(args))), *map(tree_util.GetAttrKey, kwargs)]
    first_keys = dict(zip(names, firsts, strict=True))
    flat, treedef = tree_util.tree_flatten_with_path(trees)
    leaves = [leaf for _, leaf in flat]
    places = [i for i, leaf in enumerate(leaves) if _is_array(leaf)]
    paths = [(first_keys[flat[i][0][0].key], *flat[i][0][1:]) for i in places]
    result_paths: list[tuple[Any, ...]] = []

    def call(arrays: Sequence[Any]) -> list[Any]:
        filled = list(leaves)
        for i, x in zip(places, arrays, strict=True):
            filled[i] = x
        values = [*treedef.unflatten(filled).values()]
        out = function(*values[: len(args)], **dict(zip(kwargs, values[len(args) :], strict=True)))
        results = [(path, leaf) for path, leaf in tree_util.tree_flatten_with_path(out)[0] if _is_array(leaf)]
        before = {*map(id, arrays)}
        for key, value in zip(firsts, values, strict=True):
            after = [((key, *path), x) for path, x in tree_util.tree_flatten_with_path(value)[0] if _is_array(x)]
            if not before.issuperset([id(x) for _, x in after]):  # a step of NNX changes its arguments in place
                results += after
        result_paths[:] = [path for path, _ in results]
        return [leaf for _, leaf in results]

    traced = trace_sown(jax.jit(call), ([leaves[i] for i in places],), {})
    return TracedArrays(traced, trees, leaves, paths, places, result_paths)


def _is_array(x: Any) -> bool:
    if isinstance(x, np.ndarray) and x.dtype.kind not in "biufcV":  # such as text, which a plain function may take
        return False
    return hasattr(x, "shape") and hasattr(x, "dtype") and not isinstance(x, np.generic)
