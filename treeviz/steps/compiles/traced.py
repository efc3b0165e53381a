"""Trace a step of any library as a program in which its gradients are sown; and the leaves of its arguments there."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
from jax import tree_util

from treeviz.steps.compiles.forecast import argument_names, called_inside, named_arguments
from treeviz.steps.compiles.step_arguments import positions_of
from treeviz.steps.tracing.jitted import (
    CannotWatch,
    JittedStep,
    LibraryMoved,
    dynamic_arguments,
    is_jitted,
    jit_options,
    jitted_step,
    trace_sown,
)
from treeviz.tree.describers import load_libraries
from treeviz.tree.text import guarded
from treeviz.tree.walk import scan


class SownStep(NamedTuple):
    """A traced step. Nothing is compiled or run.

    Attributes:
      trees: The arguments by name.
      order: For each of their leaves, the number of the program's argument; None: it is static.
      traced: JAX's `Traced`: its `.jaxpr` is the program, in which gradients and losses are sown (see `sow`).
      shardings: The `in_shardings` of its `jax.jit` for each leaf; () if there are none.
    """

    trees: OrderedDict[str, Any]
    order: Sequence[int | None]
    traced: Any
    shardings: Sequence[Any] = ()


class _Traced(Exception):
    """Raised to leave a library's wrapper before the step runs."""


def sown_step(step: Callable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> SownStep:
    """Trace a step: a function, or what `jax.jit`, `equinox.filter_jit` or `nnx.jit` returned.

    Args:
      args, kwargs: Its arguments; may be trees of `jax.ShapeDtypeStruct`.
    """
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
    return SownStep(trees, *_in_wrapper(found, args, kwargs, leaves))


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


def _in_wrapper(
    step: JittedStep, args: Sequence[Any], kwargs: Mapping[str, Any], leaves: Sequence[Any]
) -> tuple[Sequence[int | None], Any]:
    """Trace the `jax.jit` inside a library's wrapper, with the arguments that the wrapper passes to it."""
    results: list[tuple[Sequence[int | None], Any]] = []

    def make(function: Callable) -> Callable:
        jitted = jax.jit(function, **jit_options(step.jitted).keywords)

        def trace(*args: Any, **kwargs: Any) -> NoReturn:
            positions, names = dynamic_arguments(jitted, args, kwargs)
            passed = tuple(args[i] for i in positions), {name: kwargs[name] for name in names}
            order = positions_of(leaves, tree_util.tree_leaves(passed))
            results.append((order, trace_sown(jitted, args, kwargs)))
            raise _Traced

        return trace

    with contextlib.suppress(_Traced):
        step.around(make)(*args, **kwargs)
    return results[0]
