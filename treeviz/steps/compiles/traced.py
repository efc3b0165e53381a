"""Trace a step once: the types that `jax.jit` knows of its arguments and of its result.

A library with a `jit` of its own, which treats leaves in its own way, has a function with `traces` in its file of
`integrations`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax import tree_util

from treeviz.steps.compiles.arguments import called_inside, named_arguments
from treeviz.steps.compiles.compare import Part
from treeviz.steps.compiles.jit_type import JitType, LeafType, is_committed, jit_type
from treeviz.steps.tracing.jit_options import dynamic_arguments, is_jitted
from treeviz.tree.describers import load_libraries


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
