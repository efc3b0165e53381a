"""What the arguments of a call are called, and what a step calls with them."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax import tree_util

from treeviz.analysis.compare.aligned import MAPPINGS
from treeviz.analysis.compare.difference import Difference, Differences
from treeviz.steps.compiles.types import (
    JitType,
    LeafType,
    Part,
    compare_types,
    is_committed,
    jit_type,
    mapping_keys,
    same_structure,
)
from treeviz.steps.tracing.jitted import dynamic_arguments, is_jitted, is_partial
from treeviz.tree.describers import load_libraries
from treeviz.tree.text import class_name, guarded, has_base

_PLACEHOLDER = getattr(functools, "Placeholder", object())  # since Python 3.14


def called_inside(step: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, tuple, dict[str, Any]]:
    """What a bound method, a `functools.partial`, or what watches a step, calls, and with which arguments."""
    positional, named = tuple(args), dict(kwargs)
    while True:
        if isinstance(step, types.MethodType):
            step, positional = step.__func__, (step.__self__, *positional)
        elif is_partial(step) and not any(each is _PLACEHOLDER for each in step.args):
            step, positional, named = step.func, (*step.args, *positional), {**step.keywords, **named}
        elif type(step).__module__.startswith("treeviz."):
            step = step.step
        else:
            return step, positional, named


def step_name(step: Any) -> str:
    """The name of what a step calls; of what has none, the name of its class."""
    inside = called_inside(step, (), {})[0]
    return str(getattr(inside, "__name__", type(inside).__name__))


def argument_names(step: Callable, n_positional: int) -> list[str]:
    """The names of the first arguments of a call; `args[2]` where the function has none."""
    inside, bound, _ = called_inside(step, (), {})
    parameters: Mapping[str, Any] = guarded(lambda: inspect.signature(inside).parameters, lambda _: {})
    names = [
        name for name, each in parameters.items() if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ][len(bound) :]
    return [*names[:n_positional], *(f"args[{i}]" for i in range(len(names), n_positional))]


def named_arguments(step: Callable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, first those that were passed by position."""
    return {**dict(zip(argument_names(step, len(args)), args, strict=True)), **kwargs}


# Which part of a step's result is its new state: told by structure, or given.

_DEEPEST = 3  # levels of the result; further below, Adam's moments have the structure of the parameters


class Place(NamedTuple):
    """A part of the result.

    Attributes:
      keys: From the result to it.
    """

    keys: tuple[Any, ...]
    part: Part

    @property
    def text(self) -> str:
        """ "the result", "result[0]"."""
        return "".join(["result", *(f"[{key!r}]" for key in self.keys)]) if self.keys else "the result"

    def children(self) -> Iterator[Place]:
        for key, part in zip(_keys(self.part), self.part.children(), strict=True):
            yield Place((*self.keys, key), part)


def given_state(result: Part, out: Any) -> Place:
    """The part of the result that a key leads to, or a tuple of keys.

    Raises:
      ValueError: The result has no such part.
    """
    place = Place((), result)
    for key in out if isinstance(out, tuple) else (out,):
        below = {child.keys[-1]: child for child in place.children()}
        if key not in below:
            raise ValueError(
                f"forecast: out={out!r}: {place.text} is {place.part.text}, and has {[*below] or 'no parts'}."
            )
        place = below[key]
    return place


def find_state(state: Part, result: Part) -> Place | None:
    """The part of the result that is certainly the new state; None where there is none, or several.

    The first level of the result that has parts with the state's structure (and shape, of a single array), of which
    shapes single one out; if there is none, the first that has one part of its class, with about its keys, or of
    another class, with children of the same structure and shapes. What was None becomes a single array.
    """
    if not state.leaves and result.treedef.node_data() is None:
        return Place((), result)
    levels = [[Place((), result)]]
    while len(levels) < _DEEPEST:
        levels.append([child for place in levels[-1] for child in place.children()])
    is_array = state.treedef.node_data() is None
    for level in levels:
        found = [place for place in level if same_structure(place.part.treedef, state.treedef)]
        alike = [place for place in found if _shapes(place.part) == _shapes(state)]
        if is_array and len(level) > 1:  # every array has the structure of one
            found = alike
        if found:
            return _only(found) or _only(alike)
    return next(filter(None, (_only([place for place in level if _is_alike(place, state)]) for level in levels)), None)


def _only(found: list[Place]) -> Place | None:
    return found[0] if len(found) == 1 else None


def _shapes(part: Part) -> list[Any]:
    return [getattr(each.aval, "shape", each.aval) for each in part.leaves]


def _is_alike(place: Place, state: Part) -> bool:
    part = place.part
    a, b = part.treedef.node_data(), state.treedef.node_data()
    if a is None or b is None:
        return False
    if a[0] is not b[0] and class_name(a[0]) != class_name(b[0]):
        return _has_other_class(place, state)
    mine, other = (dict(zip(_keys(each), each.treedef.children(), strict=True)) for each in (part, state))
    if a[0] in MAPPINGS:
        return 2 * len(mine.keys() & other.keys()) >= len(mine.keys() | other.keys())
    if a[0] not in (list, tuple):
        return True
    if len(mine) == len(other) and any(map(same_structure, mine.values(), other.values())):
        return True
    return bool(state.leaves) and _child_shapes(part) == _child_shapes(state)


def _has_other_class(place: Place, state: Part) -> bool:
    """Whether a part is the state in another class; a tuple that is the result may be several, and is a list alone."""
    mine, other = place.part.treedef, state.treedef
    if mine.node_data()[0] is tuple and not place.keys and other.node_data()[0] is not list:
        return False
    if not state.leaves or len(mine.children()) != len(other.children()):
        return False
    if all(map(same_structure, mine.children(), other.children())) and _shapes(place.part) == _shapes(state):
        return True
    # The keys of a dict are sorted, and fields are not.
    return sorted(_child_shapes(place.part)) == sorted(_child_shapes(state))


def _child_shapes(part: Part) -> list[str]:
    return [f"{child.treedef.num_leaves} {_shapes(child)}" for child in part.children()]


def _keys(part: Part) -> list[Any]:
    """What a user writes to get a child: a key, the name of a field, or its position."""
    data = part.treedef.node_data()
    if data is None or not part.treedef.children():
        return []
    if data[0] in MAPPINGS:
        return list(mapping_keys(data))
    n = len(part.treedef.children())
    names = list(getattr(data[0], "_fields", ())) if has_base(data[0], tuple) else []
    return names if len(names) == n else list(range(n))


# Trace a step once: the types that `jax.jit` knows of its arguments and of its result.


class TracedStep(NamedTuple):
    """A step as it was traced.

    Attributes:
      arguments: The types of its arguments, by name.
      result: Those of its result.
      reads_committed: Whether it reads an array that is committed, so that its results are, too.
    """

    arguments: dict[str, JitType]
    result: Part
    reads_committed: bool


# (step, args, kwargs) -> None for a step of another library
Trace = Callable[[Any, tuple, dict[str, Any]], TracedStep | None]
_traces: list[Trace] = []


def traces(trace: Trace) -> Trace:
    """Register how the steps of a library are traced."""
    _traces.append(trace)
    return trace


def trace_step(step: Any, args: tuple, kwargs: dict[str, Any]) -> TracedStep:
    """Trace a step, or a function of arrays; of a bound method or a `functools.partial`, what it calls.

    Raises:
      TypeError: JAX cannot trace it, or a library jitted it of which this is not known.
    """
    inside, all_args, all_kwargs = called_inside(step, args, kwargs)
    if not hasattr(inside, "lower"):
        inside, all_args, all_kwargs = jax.jit(step), args, kwargs
    traced = _traced(inside, all_args, all_kwargs)
    own, n = [*traced.arguments], len(all_args)
    names = zip(named_arguments(step, args, kwargs), (*own[n - len(args) : n], *kwargs), strict=True)
    return traced._replace(arguments={name: traced.arguments[inner] for name, inner in names})


def _traced(step: Any, args: tuple, kwargs: dict[str, Any]) -> TracedStep:
    if not is_jitted(step):
        load_libraries()
        for trace in _traces:
            found = trace(step, args, kwargs)
            if found is not None:
                return found
    trace = getattr(step, "trace", None)
    traced: Any = trace and trace(*args, **kwargs)
    if not hasattr(traced, "jaxpr"):
        name = getattr(step, "__name__", type(step).__name__)
        raise TypeError(
            f"forecast: `{name}` is jitted by another library than JAX, which treats leaves in its own way. "
            "Pass a function of arrays, or what jax.jit gave."
        )
    leaves = tree_util.tree_leaves((args, kwargs))
    if is_jitted(step):
        positions, names = dynamic_arguments(step, args, kwargs)
        leaves = tree_util.tree_leaves(([args[i] for i in positions], {name: kwargs[name] for name in names}))
    arguments = {name: jit_type(value) for name, value in named_arguments(step, args, kwargs).items()}
    result = Part(out_tree(traced), [LeafType(aval) for aval in traced.jaxpr.out_avals])
    return TracedStep(arguments, result, reads_committed(traced.jaxpr, leaves))


def out_tree(traced: Any) -> Any:
    """The treedef of the result of a step that was traced."""
    if hasattr(traced, "out_tree"):
        return traced.out_tree
    # Before jax 0.7 or so, only this tells the structure; it puts objects of this class into the user's nodes.
    return tree_util.tree_structure(traced.out_info, is_leaf=lambda x: type(x).__name__ == "OutInfo")


def reads_committed(jaxpr: Any, leaves: Sequence[Any]) -> bool:
    """Whether a program reads one of its arguments that is committed; no if it is not known which is which."""
    inputs = jaxpr.jaxpr.invars
    if len(leaves) != len(inputs):
        return False
    read = {id(var) for eqn in jaxpr.eqns for var in eqn.invars} | {id(var) for var in jaxpr.jaxpr.outvars}
    return any(is_committed(leaf) and id(var) in read for leaf, var in zip(leaves, inputs, strict=True))


def trace_of_arrays(
    function: Callable, step: Callable, args: tuple, kwargs: Mapping[str, Any], is_array: Callable[[Any], bool]
) -> TracedStep:
    """Trace a function of whose arguments only the arrays are traced; other leaves are static.

    Args:
      function: What the step calls.
    """
    leaves, treedef = tree_util.tree_flatten((args, dict(kwargs)))
    arrays = [leaf for leaf in leaves if is_array(leaf)]
    outs: list[Any] = []

    def of_arrays(arrays: Sequence[Any]) -> Any:
        each = iter(arrays)
        args, kwargs = treedef.unflatten([next(each) if is_array(leaf) else leaf for leaf in leaves])
        found, structure = tree_util.tree_flatten(function(*args, **kwargs))
        outs[:] = structure, [None if is_array(leaf) else static_leaf(leaf) for leaf in found]
        return [leaf for leaf in found if is_array(leaf)]

    jaxpr = jax.make_jaxpr(of_arrays)(arrays)
    avals = iter(jaxpr.out_avals)
    result = Part(outs[0], [LeafType(next(avals)) if leaf is None else leaf for leaf in outs[1]])
    arguments = {}
    for name, value in named_arguments(step, args, kwargs).items():
        mine, of_argument = tree_util.tree_flatten(value)
        arguments[name] = JitType(
            of_argument, [jit_leaf(leaf) if is_array(leaf) else static_leaf(leaf) for leaf in mine]
        )
    return TracedStep(arguments, result, reads_committed(jaxpr, arrays))


def jit_leaf(leaf: Any) -> LeafType:
    return jit_type([leaf]).leaves[0]


def static_leaf(leaf: Any) -> LeafType:
    """The type of a leaf whose value is part of the program."""
    return jit_type([leaf]).leaves[0]._replace(aval=None, place=None)


# Tell before the first step whether the second one traces or compiles again.

_COMMITTED = "committed"
_MOST_PATHS = 5  # of leaves that become committed


class Forecast(Differences):
    """What of a step's state comes out otherwise than it went in; `print` says what follows from that.

    Attributes:
      retraces: Whether types or structure differ, so that the second call traces again. Arrays on several devices may
        have it traced again, too, where they become committed.
      recompiles: Whether it compiles again.
    """

    def __init__(self, differences: Iterable[Difference], name: str, states: str) -> None:
        super().__init__(differences)
        self._name, self._states = name, states
        self.recompiles = bool(self)
        self.retraces = any(each.right != _COMMITTED for each in self)

    def __repr__(self) -> str:
        again = "traces and compiles" if self.retraces else "compiles"
        verb, it = ("come", "they") if "` (" in self._states.partition(" and `")[2] else ("comes", "it")
        if not self:
            return f"The second call of `{self._name}` does not trace again: {self._states} {verb} out as {it} went in."
        why = f"since {self._states} {verb} out otherwise than {it} went in"
        return f"The second call of `{self._name}` {again} again, {why}:\n{super().__repr__()}"

    __str__ = __repr__


def forecast(
    step: Callable,
    *args: Any,
    state_arg: int | str | Sequence[int | str] = 0,
    out: Any = None,
    **kwargs: Any,
) -> Forecast:
    """Tell whether the second call of a step traces and compiles again, and which leaf of its state is to blame.

        print(tv.forecast(update, params, x, y))
        assert not tv.forecast(update, params, x, y)

    A loop hands the new state to the next call. If a leaf then has another dtype or weak type, is an array where it
    was None, or has become committed to a device, JAX compiles a second time. The step is traced once, which its first
    call then need not do; nothing is compiled or run, and no node of the user's is unflattened. Other arguments are
    taken to stay as they are. Shardings that the compiler chooses are not known before it runs, and not compared.

    Args:
      step: A function, or what `jax.jit` or `equinox.filter_jit` gave, or a bound method or `functools.partial` of one.
      *args, **kwargs: The arguments of its first call; trees of `jax.ShapeDtypeStruct` will do.
      state_arg: Which argument is the state, by position or name. Several, as `(0, 1)` for `params, opt_state`:
        only what is named is compared.
      out: Where the new state stands in the result: an index, a key or the name of a field; a tuple of them for a
        nested one, and `()` if it is the result. For several states, one each. None: found by structure.

    Returns:
      A list of `Difference`, from the state that goes in to the one that comes out; it is empty exactly if the second
      call neither traces nor compiles again. `print` shows a sentence.

    Raises:
      ValueError: There is no such argument, or it is not certain where in the result the new state stands.
      TypeError: JAX cannot trace the step, or another library jitted it; of `nnx.jit` it says which lines convert it.
        Other exceptions are the step's own.
    """
    names = named_arguments(step, args, kwargs)
    several = isinstance(state_arg, tuple | list)
    chosen = [_name_of(each, names, len(args)) for each in (state_arg if several else [state_arg])]  # type: ignore[union-attr]
    outs = list(out) if several and out is not None else [out] * len(chosen)
    if len(outs) != len(chosen):
        raise ValueError(f"forecast: {len(chosen)} states, but out={out!r} names {len(outs)}.")
    traced = trace_step(step, args, kwargs)
    found: list[Difference] = []
    places: list[str] = []
    for name, where in zip(chosen, outs, strict=True):
        mine = traced.arguments[name]
        place = _place_of(name, Part(*mine), traced.result, where, several)
        places.append(f"`{name}` ({place.text})")
        differ = compare_types(names[name], mine, JitType(*place.part))
        found += [Difference(f"{name}{path}", *_with_advice(*finding)) for path, finding in differ]
        found += _become_committed(name, names, traced)
    return Forecast(found, step_name(step), " and ".join(places))


def _name_of(which: int | str, names: dict[str, Any], n_positional: int) -> str:
    if which in names:
        return str(which)
    if isinstance(which, int) and -n_positional <= which < n_positional:
        return list(names)[:n_positional][which]
    raise ValueError(f"forecast: state_arg={which!r}: the call has no such argument, but {', '.join(names) or 'none'}.")


def _place_of(name: str, state: Part, result: Part, out: Any, several: bool) -> Place:
    if out is not None:
        return given_state(result, out)
    place = find_state(state, result)
    if place is not None:
        return place
    below = [*Place((), result).children()]
    parts = [f"out={child.keys[0]!r} is {child.part.text}" for child in below[:10]]
    raise ValueError(
        f"forecast: where in the result is the new `{name}`, {state.text}? The result is {result.text}"
        + f": {'; '.join(['out=() is all of it', *parts])}. Pass out=…{' for each state' if several else ''}."
    )


def _with_advice(kind: str, left: str, right: str, hint: str) -> tuple[str, str, str, str]:
    if not hint:
        hint = {
            "static": "" if " = " in left else "what is no array is part of the program: make it one",
            "weak type": "return it with a dtype: .astype(old.dtype)"
            if left.startswith("not")
            else "start from an array with a dtype, as jnp.float32(0), not from a Python number",
            "dtype": "cast what the step returns: .astype(old.dtype)",
            "none": "start from what it becomes, as zeros" if left == "None" else "",
        }.get(kind, "")
    return kind, left, right, hint


def _become_committed(name: str, names: dict[str, Any], traced: TracedStep) -> list[Difference]:
    """What a program returns is committed to its device once any array that it reads is."""
    if not traced.reads_committed:
        return []
    mine = tree_util.tree_flatten_with_path(names[name])[0]
    paths = [
        tree_util.keystr(path)
        for (path, leaf), known in zip(mine, traced.arguments[name].leaves, strict=True)
        if known.aval is not None and not is_committed(leaf) and not isinstance(leaf, jax.ShapeDtypeStruct)
    ]
    by = next(key for key, value in names.items() if any(map(is_committed, tree_util.tree_leaves(value))))
    hint = f"since `{by}` has a committed array; commit these, too, with jax.device_put"
    if len(paths) > _MOST_PATHS:
        hint = f"{len(paths):,} of {len(mine):,} leaves, {hint}"
        paths = [""]
    return [Difference(name + path, "sharding", "not committed", _COMMITTED, hint) for path in paths]
