"""Trace a step of any library as a program in which its gradients are sown; and the leaves of its arguments there."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
from jax import tree_util

from treeviz.steps.compiles.forecast import called_inside, named_arguments
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
        function = inside.__wrapped__ if found else inside
        return SownStep(trees, *_of_arrays(function, args, kwargs, numbers=found is None))
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


def _of_arrays(
    function: Callable, args: Sequence[Any], kwargs: Mapping[str, Any], numbers: bool
) -> tuple[list[int | None], Any]:
    """Trace a function with its arrays, and maybe `numbers`, as arguments; all other leaves are static."""
    leaves, treedef = tree_util.tree_flatten((args, dict(kwargs)))
    is_traced = [
        (hasattr(x, "shape") and hasattr(x, "dtype")) or (numbers and isinstance(x, complex | float | int))
        for x in leaves
    ]

    def of_arrays(arrays: Sequence[Any]) -> Any:
        remaining = iter(arrays)
        args, kwargs = treedef.unflatten(
            [next(remaining) if its else x for x, its in zip(leaves, is_traced, strict=True)]
        )
        out = tree_util.tree_leaves(function(*args, **kwargs))
        return [x for x in out if isinstance(x, jax.Array)]

    arrays = [x for x, its in zip(leaves, is_traced, strict=True) if its]
    places = np.cumsum(is_traced) - 1
    return [int(i) if its else None for i, its in zip(places, is_traced, strict=True)], trace_sown(
        jax.jit(of_arrays), (arrays,), {}
    )


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
