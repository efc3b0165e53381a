"""Forecast whether a step compiles again: argument names, the new state in the result, and tracing once."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax import tree_util
from jax.extend.core import Literal

from treeviz.analysis.compare.aligned import MAPPINGS
from treeviz.analysis.compare.difference import Difference, Differences
from treeviz.steps.compiles.types import (
    JitType,
    LeafType,
    compare_types,
    is_committed,
    jit_type,
    leaf_type,
    mapping_keys,
    same_structure,
)
from treeviz.steps.tracing.jitted import dynamic_arguments, is_jitted, is_of, is_partial
from treeviz.steps.tracing.primitives import JITS, called_jaxpr, needed, open_jaxpr
from treeviz.tree.describers import load_libraries
from treeviz.tree.keys import keystr
from treeviz.tree.text import class_name, guarded, has_base, is_any, step_name

_PLACEHOLDER = getattr(functools, "Placeholder", object())  # since Python 3.14


def called_inside(step: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, tuple, dict[str, Any]]:
    """The function and arguments that a bound method, a `functools.partial` or a watched step calls."""
    positional, named = tuple(args), dict(kwargs)
    while True:
        if isinstance(step, types.MethodType):
            step, positional = step.__func__, (step.__self__, *positional)
        elif is_partial(step) and not any(arg is _PLACEHOLDER for arg in step.args):
            step, positional, named = step.func, (*step.args, *positional), {**step.keywords, **named}
        elif is_of("treeviz", step):
            step = step.step
        else:
            return step, positional, named


def inner_name(step: Any) -> str:
    return step_name(called_inside(step, (), {})[0])


def argument_names(step: Callable, n_positional: int) -> list[str]:
    """The names of the positional arguments of a call; `args[2]` if the p has none."""
    function, bound, _ = called_inside(step, (), {})
    parameters: Mapping[str, Any] = guarded(lambda: inspect.signature(function).parameters, lambda _: {})
    all_names = [name for name, p in parameters.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = all_names[len(bound) :]
    return [*names[:n_positional], *(f"args[{i}]" for i in range(len(names), n_positional))]


def named_arguments(step: Callable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, positional ones first."""
    return {**dict(zip(argument_names(step, len(args)), args, strict=True)), **kwargs}


# The part of a step's result that is its new state: found by structure, or given.

_DEEPEST = 3  # levels of the result; further below, Adam's moments have the structure of the parameters


class ResultPart(NamedTuple):
    keys: tuple[Any, ...]  # the keys from the result to the part
    part: JitType

    @property
    def text(self) -> str:
        """Names the part: "the result", "result[0]"."""
        return "".join(["result", *(f"[{key!r}]" for key in self.keys)]) if self.keys else "the result"

    def children(self) -> Iterator[ResultPart]:
        for key, part in zip(_keys(self.part), self.part.children(), strict=True):
            yield ResultPart((*self.keys, key), part)


def given_state(result: JitType, out: Any) -> ResultPart:
    place = ResultPart((), result)
    for key in out if isinstance(out, tuple) else (out,):
        children = {child.keys[-1]: child for child in place.children()}
        if key not in children:
            text = f"{place.text} is {place.part.text}, and has {[*children] or 'no parts'}."
            raise ValueError(f"forecast: out={out!r}: {text}")
        place = children[key]
    return place


def find_state(state: JitType, result: JitType) -> ResultPart | None:
    """The part of the result that is certainly the new state; None if there is none or several.

    Searches the first level of the result with parts of the state's structure; shapes decide between several. Without
    such a level, takes a level's only part of the same class with similar keys, or of another class with children of
    the same structure and shapes. A state of None may become a single array.
    """
    if not state.leaves and result.treedef.node_data() is None:
        return ResultPart((), result)
    levels = [[ResultPart((), result)]]
    while len(levels) < _DEEPEST:
        levels.append([child for place in levels[-1] for child in place.children()])
    is_array = state.treedef.node_data() is None
    for level in levels:
        candidates = [place for place in level if same_structure(place.part.treedef, state.treedef)]
        same_shape = [place for place in candidates if _shapes(place.part) == _shapes(state)]
        if is_array and len(level) > 1:  # all arrays have the same structure
            candidates = same_shape
        if candidates:
            return _only(candidates) or _only(same_shape)
    similar = (_only([place for place in level if _is_similar(place, state)]) for level in levels)
    return next(filter(None, similar), None)


def _only(places: list[ResultPart]) -> ResultPart | None:
    return places[0] if len(places) == 1 else None


def _shapes(part: JitType) -> list[Any]:
    return [getattr(leaf.aval, "shape", leaf.aval) for leaf in part.leaves]


def _is_similar(place: ResultPart, state: JitType) -> bool:
    part = place.part
    a, b = part.treedef.node_data(), state.treedef.node_data()
    if a is None or b is None:
        return False
    children = part.treedef.children(), state.treedef.children()
    n, n_state = map(len, children)
    if a[0] is not b[0] and class_name(a[0]) != class_name(b[0]):
        # A tuple as the whole result may only replace a list.
        if (a[0] is tuple and not place.keys and b[0] is not list) or not state.leaves or n != n_state:
            return False
        if all(map(same_structure, *children)) and _shapes(part) == _shapes(state):
            return True
        # JAX sorts the keys of a dict, but not the fields of a class.
        return sorted(_child_shapes(part)) == sorted(_child_shapes(state))
    if is_any(a[0], MAPPINGS):
        keys, state_keys = {*_keys(part)}, {*_keys(state)}
        return 2 * len(keys & state_keys) >= len(keys | state_keys)
    if a[0] not in (list, tuple) or (n == n_state and any(map(same_structure, *children))):
        return True
    return bool(state.leaves) and _child_shapes(part) == _child_shapes(state)


def _child_shapes(part: JitType) -> list[str]:
    return [f"{child.treedef.num_leaves} {_shapes(child)}" for child in part.children()]


def _keys(part: JitType) -> list[Any]:
    """The keys, field names or positions of a node's children."""
    data = part.treedef.node_data()
    if data is None or not part.treedef.children():
        return []
    if is_any(data[0], MAPPINGS):
        return list(mapping_keys(data))
    n = len(part.treedef.children())
    names = list(getattr(data[0], "_fields", ())) if has_base(data[0], tuple) else []
    return names if len(names) == n else list(range(n))


# Tracing a step once: the types of its arguments and of its result.


class TracedStep(NamedTuple):
    arguments: dict[str, JitType]  # by name
    result: JitType


# (step, args, kwargs) -> None for a step of another library
Trace = Callable[[Any, tuple, dict[str, Any]], TracedStep | None]
_traces: list[Trace] = []


def traces(trace: Trace) -> Trace:
    _traces.append(trace)
    return trace


def trace_step(step: Any, args: tuple, kwargs: dict[str, Any]) -> TracedStep:
    """Trace a step or a function of arrays. For a bound method or a `functools.partial`, traces the function inside."""
    inside, all_args, all_kwargs = called_inside(step, args, kwargs)
    if not hasattr(inside, "lower"):
        inside, all_args, all_kwargs = jax.jit(step), args, kwargs
    traced = _traced(inside, all_args, all_kwargs)
    inner, n = [*traced.arguments], len(all_args)
    names = zip(named_arguments(step, args, kwargs), (*inner[n - len(args) : n], *kwargs), strict=True)
    return traced._replace(arguments={name: traced.arguments[inner] for name, inner in names})


def _traced(step: Any, args: tuple, kwargs: dict[str, Any]) -> TracedStep:
    if not is_jitted(step):
        load_libraries()
        for trace in _traces:
            traced_by_library = trace(step, args, kwargs)
            if traced_by_library is not None:
                return traced_by_library
    trace = getattr(step, "trace", None)
    traced: Any = trace and trace(*args, **kwargs)
    if not hasattr(traced, "jaxpr"):
        raise TypeError(
            f"forecast: `{step_name(step)}` is jitted by a library other than JAX, which handles leaves differently. "
            "Pass a function of arrays, or the result of jax.jit."
        )
    arguments = {name: jit_type(value) for name, value in named_arguments(step, args, kwargs).items()}
    positions, keywords = dynamic_arguments(step, args, kwargs) if is_jitted(step) else (range(len(args)), kwargs)
    given = [*arguments]
    order = [*(given[i] for i in positions), *sorted(keywords)]
    result = JitType(out_tree(traced), [LeafType(aval) for aval in traced.jaxpr.out_avals])
    return TracedStep(_with_reads(arguments, order, traced.jaxpr), result)


def out_tree(traced: Any) -> Any:
    if hasattr(traced, "out_tree"):
        return traced.out_tree
    # Before jax 0.7 or so, only out_info has the structure; its leaves are OutInfo objects.
    return tree_util.tree_structure(traced.out_info, is_leaf=lambda x: type(x).__name__ == "OutInfo")


def _with_reads(arguments: dict[str, JitType], order: Sequence[str], jaxpr: Any) -> dict[str, JitType]:
    """The types of arguments, with what a program reads: it has an input for each array of those named in `order`."""
    n_leaves = sum(leaf.aval is not None for name in order for leaf in arguments[name].leaves)
    inputs, read = iter(jaxpr.jaxpr.invars), _read(jaxpr.jaxpr)
    if n_leaves != len(jaxpr.jaxpr.invars):
        return arguments
    with_reads = dict(arguments)
    for name in order:
        leaves = arguments[name].leaves
        types = [leaf if leaf.aval is None else leaf._replace(is_read=next(inputs) in read) for leaf in leaves]
        with_reads[name] = arguments[name]._replace(leaves=types)
    return with_reads


def _read(jaxpr: Any) -> set[Any]:
    """The variables that a program reads; JAX drops what leads to no result before it compiles."""
    read = [*jaxpr.outvars]
    for eqn in needed(jaxpr, jaxpr.outvars, lambda eqn: bool(eqn.effects)).values():
        if eqn.primitive.name in JITS:
            inner = open_jaxpr(called_jaxpr(eqn))
            inside = _read(inner)
            read += [x for x, v in zip(eqn.invars, inner.invars, strict=True) if v in inside]
        else:
            read += eqn.invars
    return {x for x in read if not isinstance(x, Literal)}


def trace_of_arrays(
    function: Callable, step: Callable, args: tuple, kwargs: Mapping[str, Any], is_array: Callable[[Any], bool]
) -> TracedStep:
    """Trace `function`, which the step calls, with its array arguments; all other leaves are static."""
    leaves, treedef = tree_util.tree_flatten((args, dict(kwargs)))
    arrays = [leaf for leaf in leaves if is_array(leaf)]
    results: list[Any] = []

    def call_with_arrays(arrays: Sequence[Any]) -> Any:
        remaining = iter(arrays)
        args, kwargs = treedef.unflatten([next(remaining) if is_array(leaf) else leaf for leaf in leaves])
        out_leaves, structure = tree_util.tree_flatten(function(*args, **kwargs))
        results[:] = structure, [None if is_array(leaf) else static_leaf(leaf) for leaf in out_leaves]
        return [leaf for leaf in out_leaves if is_array(leaf)]

    jaxpr = jax.make_jaxpr(call_with_arrays)(arrays)
    avals = iter(jaxpr.out_avals)
    result = JitType(results[0], [LeafType(next(avals)) if leaf is None else leaf for leaf in results[1]])
    arguments = {}
    for name, value in named_arguments(step, args, kwargs).items():
        argument_leaves, argument_def = tree_util.tree_flatten(value)
        leaf_types = [leaf_type(leaf) if is_array(leaf) else static_leaf(leaf) for leaf in argument_leaves]
        arguments[name] = JitType(argument_def, leaf_types)
    order = [*[*arguments][: len(args)], *sorted(kwargs)]
    return TracedStep(_with_reads(arguments, order, jaxpr), result)


def static_leaf(leaf: Any) -> LeafType:
    """The type of a leaf whose value is part of the program."""
    return leaf_type(leaf)._replace(aval=None, place=None)


# Whether the second call of a step traces or compiles again, known before the first.

_COMMITTED = "committed"
_MOST_PATHS = 5  # paths of leaves that become committed


class Forecast(Differences):
    """The parts of a step's state that change type between input and output; `print` shows the consequence.

    Attributes:
      retraces: Whether types or structure differ, so that the second call traces again. On several devices, arrays that
        become committed may also cause a retrace.
      recompiles: Whether the second call compiles again.
    """

    def __init__(self, differences: Iterable[Difference], name: str, states: str, others: Sequence[str] = ()) -> None:
        super().__init__(differences)
        self._name, self._states, self._others = name, states, others
        self.recompiles = bool(self)
        self.retraces = any(difference.right != _COMMITTED for difference in self)

    def __repr__(self) -> str:
        again = "traces and compiles" if self.retraces else "compiles"
        several = "` (" in self._states.partition(" and `")[2]
        if not self:
            keep, their = ("keep", "their types") if several else ("keeps", "its type")
            text = f"The second call of `{self._name}` does not trace again: {self._states} {keep} {their}."
            have = "has" if len(self._others) == 1 else "have"
            others = f" {' and '.join(self._others)} {have} no counterpart in the result: assumed not to change."
            return text + others * bool(self._others)
        what = "type" if self.retraces else "placement"
        why = f"because {self._states} {'change' if several else 'changes'} {what} between input and output"
        return f"The second call of `{self._name}` {again} again, {why}:\n{super().__repr__()}"

    __str__ = __repr__


def forecast(
    step: Callable, *args: Any, state_arg: int | str | Sequence[int | str] | None = None, out: Any = None, **kwargs: Any
) -> Forecast:
    """Forecast whether the second call of a step traces and compiles again, and which leaf of its state causes it.

        print(tv.forecast(update, params, x, y))
        assert not tv.forecast(update, params, x, y)

    A training loop passes the new state to the next call. If a leaf has changed its dtype or weak type, has become an
    array instead of None, or has become committed to a device, JAX compiles a second time. The step is traced once, and
    its first call reuses that trace. Nothing is compiled, run or unflattened. Arguments without a counterpart in the
    result are assumed not to change, and are named. Shardings that the compiler selects are unknown before it runs, and
    are not compared.

    Args:
      step: A function, the result of `jax.jit` or `equinox.filter_jit`, or a bound method or `functools.partial` of it.
      *args, **kwargs: The arguments of its first call; may be trees of `jax.ShapeDtypeStruct`.
      state_arg: The position or name of the state argument, or a tuple of several: `(0, 1)` for `params, opt_state`.
        Only these are compared. By default the first argument, and each other tree that the result has a new one of.
      out: The new state in the result: an index, a key or a field name; a tuple of them if it is nested; `()` for the
        whole result. For several states, one for each. By default found by structure.

    Returns:
      A list of `Difference`, from the state that goes in to the one that comes out; it is empty exactly if the second
      call neither traces nor compiles again. `print` shows a sentence.

    Raises:
      ValueError: There is no such argument, or it is not certain where in the result the new state stands.
      TypeError: JAX cannot trace the step, or another library jitted it; of `nnx.jit` it says which lines convert it.
        Other exceptions are the step's own.
    """
    names = named_arguments(step, args, kwargs)
    is_several = isinstance(state_arg, tuple | list)
    given = state_arg if is_several else [0 if state_arg is None else state_arg]
    state_names = [_name_of(arg, names, len(args)) for arg in given]  # type: ignore[union-attr]
    outs = list(out) if is_several and out is not None else [out] * len(state_names)
    if len(outs) != len(state_names):
        raise ValueError(f"forecast: {len(state_names)} states, but out={out!r} names {len(outs)}.")
    traced = trace_step(step, args, kwargs)
    places = [
        (name, _state_place(name, traced.arguments[name], traced.result, out_keys, is_several))
        for name, out_keys in zip(state_names, outs, strict=True)
    ]
    has_arrays = [name for name in names if any(leaf.aval is not None for leaf in traced.arguments[name].leaves)]
    others = [name for name in has_arrays if name not in state_names]
    for name in others if state_arg is None and out is None else ():
        state = traced.arguments[name]
        is_tree = state.treedef.node_data() is not None  # many arrays have one type
        new = find_state(state, traced.result) if is_tree else None
        if new is not None and len(new.keys) < 2 and new.keys not in [place.keys for _, place in places]:
            places.append((name, new))
    differences: list[Difference] = []
    place_texts: list[str] = []
    for name, place in places:
        state_type = traced.arguments[name]
        place_texts.append(f"`{name}` ({place.text})")
        for path, (kind, left, right, hint) in compare_types(names[name], state_type, place.part):
            differences.append(Difference(f"{name}{path}", kind, left, right, hint or _advice(kind, left)))
        differences += _newly_committed(name, names, traced)
    found = {name for name, _ in places}
    unknown = [f"`{name}`" for name in others if name not in found]
    return Forecast(differences, inner_name(step), " and ".join(place_texts), unknown)


def _name_of(arg: int | str, names: dict[str, Any], n_positional: int) -> str:
    if arg in names:
        return str(arg)
    if isinstance(arg, int) and -n_positional <= arg < n_positional:
        return list(names)[:n_positional][arg]
    raise ValueError(f"forecast: state_arg={arg!r}: the call has no such argument, but {', '.join(names) or 'none'}.")


def _state_place(name: str, state: JitType, result: JitType, out: Any, is_several: bool) -> ResultPart:
    if out is not None:
        return given_state(result, out)
    place = find_state(state, result)
    if place is not None:
        return place
    children = [*ResultPart((), result).children()]
    parts = [f"out={child.keys[0]!r} is {child.part.text}" for child in children[:10]]
    raise ValueError(
        f"forecast: where in the result is the new `{name}`, {state.text}? The result is {result.text}"
        + f": {'; '.join(['out=() is all of it', *parts])}. Pass out=…{' for each state' if is_several else ''}."
    )


def _advice(kind: str, left: str) -> str:
    match kind:
        case "static":
            return "" if " = " in left else "a non-array is compiled into the program: make it an array"
        case "weak type" if left.startswith("not"):
            return "return it with a dtype: .astype(old.dtype)"
        case "weak type":
            return "start from an array with a dtype, as jnp.float32(0), not from a Python number"
        case "dtype":
            return "cast what the step returns: .astype(old.dtype)"
    return "start from what it becomes, as zeros" if kind == "none" and left == "None" else ""


def _newly_committed(name: str, names: dict[str, Any], traced: TracedStep) -> list[Difference]:
    """State leaves that become committed: a program that reads any committed array commits its results."""
    read = [(key, leaf.place) for key, value in traced.arguments.items() for leaf in value.leaves if leaf.is_read]
    committed_name = next((key for key, place in read if place is not None), None)
    if committed_name is None:
        return []
    leaves = tree_util.tree_flatten_with_path(names[name])[0]
    paths = [
        keystr(path)
        for (path, leaf), leaf_type in zip(leaves, traced.arguments[name].leaves, strict=True)
        if leaf_type.is_read and not is_committed(leaf) and not isinstance(leaf, jax.ShapeDtypeStruct)
    ]
    hint = f"since `{committed_name}` has a committed array; commit these, too, with jax.device_put"
    if len(paths) > _MOST_PATHS:
        hint = f"{len(paths):,} of {len(leaves):,} leaves, {hint}"
        paths = [""]
    return [Difference(name + path, "sharding", "not committed", _COMMITTED, hint) for path in paths]
