"""The arguments of a compiled step as a view: which donated buffers are reused, and what flattening costs."""

from __future__ import annotations

import re
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
from jax import tree_util

from treeviz.analysis.facts import common_mesh, fact_columns, headline, size_columns
from treeviz.steps.compiles.forecast import argument_names, out_tree, step_name
from treeviz.steps.tracing.jitted import (
    CannotWatch,
    JittedStep,
    LibraryMoved,
    arguments_read,
    dynamic_arguments,
    is_jitted,
    jit_options,
    jitted_step,
)
from treeviz.tree.describers import load_libraries
from treeviz.tree.facts import Column, Note
from treeviz.tree.leaves import describe_sharding
from treeviz.tree.table import TreeTable
from treeviz.tree.text import array_text, bytes_text, class_name, guarded
from treeviz.tree.walk import scan, walk
from treeviz.views.tree_view import TreeView

# What a compiled step does with the buffers of its arguments: read from the text of its program.

# HloModule jit_step, input_output_alias={ {1}: (0, {}, may-alias) }, entry_computation_layout={(f32[4]{0}, …)->…
_ALIAS = re.compile(r"\{(\d*)\}: \((\d+), \{\}, m\w+-alias\)")
_PARAMETERS = re.compile(r"entry_computation_layout=\{\((.*?)\)->")
_PARAMETER = re.compile(r"\b[a-z]\w*\[")


class Buffers(NamedTuple):
    """What becomes of the leaves of the arguments.

    Attributes:
      donated: Whether each was donated.
      read: Whether the program reads it; None if that is not known.
      reused: The path of the result that takes its buffer; "" for none; None if that is not known.
      why_not: Of those that were donated, are read, and are not reused.
    """

    donated: list[bool]
    read: list[bool | None]
    reused: list[str | None]
    why_not: list[str]


def read_buffers(
    step: Callable,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    result_name: Callable[[str], str] = "result{}".format,
) -> tuple[Any, Buffers]:
    """The treedef of the arguments that are not static, and what becomes of their leaves. Compiles the step.

    Args:
      result_name: Says what a result is called, given its key path.
    """
    traced: Any = step.trace(*args, **kwargs)  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")  # this says it by leaf
        lowered = traced.lower()
        compiled = lowered.compile()
    donated = [bool(leaf.donated) for leaf in tree_util.tree_leaves(lowered.args_info)]
    n, kept = len(donated), arguments_read(compiled)
    if len(traced.jaxpr.in_avals) != n:
        raise TypeError(
            "arguments: a leaf of the arguments has a hijax type, which is several buffers of the program, or none. "
            "Pass the arrays in it instead."
        )
    first_line = (guarded(compiled.as_text, lambda _: "") or "").partition("\n")[0]
    parameters = _parameters(first_line)
    n_tokens = parameters.count("token[")
    if kept is None and len(parameters) - n_tokens == n:
        kept = list(range(n))
    # What else precedes the arguments, in a release to come, is not guessed at.
    is_known = kept is not None and len(parameters) - n_tokens == len(kept)
    paths = [result_name(leaf.keystr) for leaf in walk(out_tree(traced)).leaves]
    reused: list[str | None] = ["" if is_known else None] * n
    for result, parameter in _ALIAS.findall(first_line) if is_known else ():
        out, leaf = int(result or 0) - n_tokens, int(parameter) - n_tokens
        if kept is not None and leaf >= 0 and out >= 0:
            reused[kept[leaf]] = paths[out] if out < len(paths) else "a result"
    read: list[bool | None] = [None if kept is None else i in set(kept) for i in range(n)]
    jaxpr = traced.jaxpr
    types = list(zip(paths, jaxpr.out_avals, _places(lambda: compiled.output_shardings, len(paths)), strict=False))
    why = [
        _why_not(aval, place, types, reused) if was_donated and is_read and not taken and is_known else ""
        for aval, place, was_donated, is_read, taken in zip(
            jaxpr.in_avals, _places(lambda: compiled.input_shardings, n), donated, read, reused, strict=True
        )
    ]
    return lowered.in_tree, Buffers(donated, read, reused, why)


def _parameters(first_line: str) -> list[str]:
    """["f32[", "token["]: how the types of the program's parameters begin."""
    found = _PARAMETERS.search(first_line)
    return _PARAMETER.findall(re.sub(r"\{[^{}]*\}|/\*.*?\*/", "", found[1])) if found else []


def _places(shardings: Callable[[], Any], n: int) -> list[Any]:
    """The shardings of arguments or results; None where this release of JAX does not tell."""
    found = guarded(lambda: tree_util.tree_leaves(shardings(), is_leaf=lambda x: x is None), lambda _: [])
    return found if len(found) == n else [None] * n


def _why_not(aval: Any, place: Any, results: Sequence[tuple[str, Any, Any]], reused: Sequence[str | None]) -> str:
    """Why no result took the buffer of a leaf."""
    alike = {path: its for path, other, its in results if (other.shape, other.dtype) == (aval.shape, aval.dtype)}
    what = array_text(aval) or str(aval)
    if not alike:
        same_shape = [f"{path} is {array_text(other)}" for path, other, _ in results if other.shape == aval.shape]
        return f"no result is {what}{f', {same_shape[0]}' if same_shape else ''}"
    free = [path for path in alike if path not in reused]
    if free:
        return f"{free[0]} is {what}, too, but {_lies(place, alike[free[0]])}"
    if len(alike) == 1:
        return f"the one result that is {what}, {next(iter(alike))}, takes another buffer"
    return f"the {len(alike):,} results that are {what} take other buffers"


def _lies(mine: Any, other: Any) -> str:
    """ "lies as P(), and this as P('d')"."""
    found = [each and describe_sharding(each) for each in (other, mine)]
    is_elsewhere = len({each and each.devices for each in found}) > 1
    texts = [each and (f"{each.text} on {each.devices}" if is_elsewhere else each.text) for each in found]
    if None in texts or texts[0] == texts[1]:
        return "lies, or is laid out, in another way"
    return f"lies as {texts[0]}, and this as {texts[1]}"


# What flattening the arguments of a step costs at each call: in all, and by class.

_ROUNDS = 5
_MOST_NODES = 200  # of a class, that are measured
_MOST_DEEP = 200  # levels, beyond which JAX's own flatten is not called


class ClassCost(NamedTuple):
    """What JAX's flattening of the nodes of one class costs.

    Attributes:
      name: Of the class.
      n: How many nodes of it the arguments have.
      each_us: Microseconds for each, without what is inside.
    """

    name: str
    n: int
    each_us: float


class Flattening(NamedTuple):
    """What JAX does first at each call of a step. Measured here and now: the least of five times.

    Attributes:
      us: Microseconds for all arguments.
      as_list_us: For a list of the same leaves.
      classes: Those that somebody registered, by their share.
    """

    us: float
    as_list_us: float
    classes: tuple[ClassCost, ...]

    @property
    def text(self) -> str:
        """ "flattening takes 812 µs a call, 40 times as long as of a list of the leaves: Block 20 × 31 µs"."""
        parts = [f"{each.name} {each.n:,} × {each.each_us:.2g} µs" for each in self.classes[:3]]
        times = f", {self.us / self.as_list_us:.2g} times as long as of a list of the leaves" if parts else ""
        return f"flattening takes {self.us:.3g} µs a call{times}{': ' if parts else ''}{', '.join(parts)}"


def measure_flattening(table: TreeTable, nodes: Sequence[Any]) -> Flattening | None:
    """Time what flattens a tree; None if it cannot be flattened. Runs the flatten functions of its classes.

    Args:
      table, nodes: The tree as it was walked.
    """
    if table.depth.max() >= _MOST_DEEP or any(facts.kind in ("error", "cycle") for facts in table.facts):
        return None
    leaves = tree_util.tree_leaves(nodes[0])
    of_classes: dict[int, list[Any]] = {}
    for row, node in enumerate(nodes):
        if not table.is_leaf[row] and table[row].facts.module.partition(".")[0] not in ("", "jax", "jaxlib"):
            of_classes.setdefault(id(type(node)), []).append(node)
    flatten = getattr(getattr(tree_util, "default_registry", None), "flatten_one_level", None)
    costs = []
    for same in of_classes.values():
        if flatten is None:
            break
        some = same[:_MOST_NODES]
        seconds = guarded(lambda some=some, flatten=flatten: _of_nodes(flatten, some), lambda _: None)
        if seconds is not None:
            costs.append(ClassCost(class_name(type(same[0])), len(same), 1e6 * seconds / len(some)))
    costs.sort(key=lambda each: -each.n * each.each_us)
    whole, flat = (_least(lambda tree=tree: tree_util.tree_flatten(tree)) for tree in (nodes[0], leaves))
    return Flattening(1e6 * whole, 1e6 * flat, tuple(costs))


def _of_nodes(flatten: Callable[[Any], Any], nodes: Sequence[Any]) -> float:
    """Seconds that nodes take beyond tuples of their children: the call from Python is none of a step's."""
    tuples = [tuple(flatten(node)[0]) for node in nodes]
    of_nodes, of_tuples = (_least(lambda same=same: [*map(flatten, same)]) for same in (nodes, tuples))
    return max(of_nodes - of_tuples, 0.0)


def _least(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(_ROUNDS):
        began = perf_counter()
        call()
        times.append(perf_counter() - began)
    return min(times)


# The buffers of a step that another library jitted: of what its wrapper passes on to the `jax.jit` inside.


class _Known(Exception):
    """Leaves the wrapper before the step runs."""


def wrapped_buffers(
    inside: JittedStep,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    leaves: Sequence[Any],
    paths: Sequence[str],
) -> tuple[list[int | None], Buffers]:
    """For each leaf of the user's its position among those that are passed on, if it is; and what becomes of these.

    Args:
      leaves, paths: The leaves of the arguments, which the wrapper passes on in trees of its own, and their paths.
    """
    found: list[tuple[list[int | None], Buffers]] = []

    def make(function: Callable) -> Callable:
        jitted = inside.jitted
        if function is not jitted.__wrapped__:  # it is tied to another wrapper
            options = jit_options(jitted)
            outs = {} if options.out_shardings is None else {"out_shardings": options.out_shardings}
            jitted = jax.jit(function, **options.keywords, **outs)

        def read(*args: Any, **kwargs: Any) -> NoReturn:
            positions, names = dynamic_arguments(jitted, args, kwargs)
            passed = tuple(args[i] for i in positions), {name: kwargs[name] for name in names}
            at = _positions(leaves, tree_util.tree_leaves(passed))
            if any(i is None and isinstance(leaf, jax.ShapeDtypeStruct) for i, leaf in zip(at, leaves, strict=True)):
                raise TypeError(
                    "arguments: the library that jitted the step takes shapes for static data: pass arrays."
                )
            inner = [row.keystr for row in walk(passed).leaves] if inside.changes_arguments else []
            user_paths = {inner[i]: path for i, path in zip(at, paths, strict=True) if inner and i is not None}

            def name(path: str) -> str:
                # A wrapper that changes its arguments gets them back first: [0] are those by position, [1] by name.
                return user_paths.get(path, f"result{inside.result_path(path)}")

            found.append((at, read_buffers(jitted, args, kwargs, name)[1]))
            raise _Known

        return read

    try:
        inside.around(make)(*args, **kwargs)
    except _Known:
        pass
    return found[0]


def _positions(leaves: Sequence[Any], passed: Sequence[Any]) -> list[int | None]:
    """The position of each leaf among others that are the same objects; of one that stands twice, in their order."""
    places: dict[int, list[int]] = defaultdict(list)
    for i, leaf in reversed([*enumerate(passed)]):
        places[id(leaf)].append(i)
    return [(at.pop() if len(at) > 1 else at[0]) if (at := places.get(id(leaf))) else None for leaf in leaves]


_DEAR_US = 100  # of flattening a call, from which on it is worth a note
_CURE = (
    "register dataclasses with jax.tree_util.register_dataclass, which is flattened in C++, keep what does not change "
    "out of the arguments, or pass jax.tree.leaves(tree) and unflatten it in the step"
)


class StepArguments(TreeView):
    """The arguments of a compiled step, and what becomes of the buffer of each leaf.

    Attributes:
      reused: By the path of each donated leaf that the program reuses, the path of the result in its buffer.
      in_vain: By the path of each donated leaf that it reads, but does not reuse, why not.
      never_read: The paths of leaves that the program does not read; JAX does not pass them on, nor donates them.
      flattening: What it costs at each call; None if the arguments cannot be flattened.
    """

    reused: dict[str, str]
    in_vain: dict[str, str]
    never_read: list[str]
    flattening: Flattening | None


def step_arguments(step: Callable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> StepArguments:
    """See `CompileWatch.arguments`."""
    is_plain = is_jitted(step)
    positions, names = dynamic_arguments(step, args, kwargs) if is_plain else (range(len(args)), kwargs)
    positional = argument_names(step, len(args))
    trees = OrderedDict((positional[i], args[i]) for i in positions)
    trees.update((name, kwargs[name]) for name in names)
    table, nodes = scan(trees, name="args")
    rows = np.flatnonzero(table.is_leaf)
    inside = None if is_plain else _inside(step)
    if inside is None:
        in_tree, buffers = read_buffers(step, args, kwargs)
        passed = (tuple(args[i] for i in positions), {name: kwargs[name] for name in names})
        if tree_util.tree_structure(passed) != in_tree:
            raise TypeError(
                f"arguments: it is not known which arguments of `{step_name(step)}` are static in this release of JAX."
            )
        at = [*range(len(rows))]
    else:
        leaves, paths = [nodes[row] for row in rows], [_path(table, row) for row in rows.tolist()]
        at, buffers = wrapped_buffers(inside, args, kwargs, leaves, paths)
    # The graph of an NNX module is not flattened as JAX does.
    flattening = measure_flattening(table, nodes) if inside is None or not inside.changes_arguments else None
    table = table.with_columns(*fact_columns(table, common_mesh(table)), *size_columns(table))
    return _view(table, [*zip(rows.tolist(), at, strict=True)], buffers, flattening)


def _inside(step: Callable) -> JittedStep:
    load_libraries()
    try:
        return jitted_step(step)
    except (CannotWatch, LibraryMoved) as error:
        raise TypeError(
            f"arguments: `{step_name(step)}` is not what jax.jit gave, and it is not known what its library passes on: "
            "pass the function to jax.jit itself."
        ) from error


def _view(
    table: TreeTable, rows: Sequence[tuple[int, int | None]], buffers: Buffers, flattening: Flattening | None
) -> StepArguments:
    texts, notes = [""] * len(table), {}
    reused, in_vain, never_read = {}, {}, []
    n_bytes = dict.fromkeys(("donated", "reused"), 0)
    for row, i in rows:
        if i is None:
            texts[row] = "static"
            continue
        path, size = _path(table, row), table[row].facts.bytes
        if buffers.read[i] is False:
            never_read.append(path)
            texts[row] = "never read, not donated" if buffers.donated[i] else "never read"
            continue
        n_bytes["donated"] += size * buffers.donated[i]
        if buffers.reused[i]:
            reused[path] = buffers.reused[i] or ""
            texts[row] = f"→ {reused[path]}"
            n_bytes["reused"] += size
        elif buffers.why_not[i]:
            in_vain[path], texts[row] = buffers.why_not[i], "donated in vain"
            notes[row] = (Note("warning", in_vain[path]),)
        elif buffers.donated[i]:
            texts[row] = "donated; not known if reused"
    column = Column("buffer", "buffer", texts, help="The result that reuses the donated buffer, or why there is none")
    if flattening is not None and flattening.us >= _DEAR_US and flattening.classes:
        notes[0] = (Note("info", f"flattening is dear: {_CURE}"),)
    table = table.with_columns(column).with_notes(notes)
    told = [f"{bytes_text(n_bytes['reused'])} of {bytes_text(n_bytes['donated'])} donated are reused"]
    told = told if n_bytes["donated"] else ["nothing is donated"]
    told += [f"{len(in_vain):,} donated in vain"] if in_vain else []
    told += [f"{len(never_read):,} never read"] if never_read else []
    told += [flattening.text] if flattening is not None else []
    view = StepArguments(table.with_headline(*told, *headline(table)), table.chosen(["buffer", "bytes"]))
    found = {"reused": reused, "in_vain": in_vain, "never_read": never_read, "flattening": flattening}
    for name, value in found.items():
        object.__setattr__(view, name, value)
    return view


def _path(table: TreeTable, row: int) -> str:
    """ "state['w']", as in the code of the step."""
    first, *rest = table.path(row)
    return first.segment + "".join(key.keystr for key in rest)
