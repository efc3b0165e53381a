"""The arguments of a call that is traced: which of their leaves are traced, and what they are called."""

from __future__ import annotations

import inspect
from typing import Any

import jax

from treeviz.steps.measure import paths_in
from treeviz.steps.tracing.attribution import Argument
from treeviz.tree.tracers import Tracer


def split(args, kwargs):
    """The traced leaves of a call, and a function that replaces them. A value without any stays the same object."""
    flat: list[Any] = []
    whole: list[tuple[Any, Any]] = []
    for value in (*args, *kwargs.values()):
        leaves, treedef = jax.tree.flatten(value)
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tracer)]
        whole.append((value, None) if not places else (leaves, (treedef, places)))
        flat += [leaves[i] for i in places]

    def rebuild(traced):
        traced = iter(traced)
        values = []
        for value, how in whole:
            if how is not None:
                treedef, places = how
                leaves = list(value)
                for i in places:
                    leaves[i] = next(traced)
                value = jax.tree.unflatten(treedef, leaves)
            values.append(value)
        return values[: len(args)], dict(zip(kwargs, values[len(args) :], strict=True))

    return flat, rebuild


def paths_of(args, kwargs) -> list[tuple]:
    """The key paths of the leaves of `split`."""
    values = [
        *((jax.tree_util.SequenceKey(i), x) for i, x in enumerate(args)),
        *((jax.tree_util.GetAttrKey(name), x) for name, x in kwargs.items()),
    ]
    return [
        (key, *path)
        for key, value in values
        for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]
        if isinstance(leaf, Tracer)
    ]


def named_arguments(function, args, kwargs) -> list[Argument]:
    """The traced arguments by name; their leaves have the order of `split`."""
    try:
        parameters = [p.name for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_POSITIONAL]
    except (TypeError, ValueError):
        parameters = []
    names = [parameters[i] if i < len(parameters) else f"args[{i}]" for i in range(len(args))]
    found = []
    for name, value in zip((*names, *kwargs), (*args, *kwargs.values()), strict=True):
        leaves = jax.tree.leaves(value)
        is_traced = [isinstance(leaf, Tracer) for leaf in leaves]
        if leaves and all(is_traced):
            found.append(Argument(name, value))
        else:
            paths = paths_in(value) if any(is_traced) else ()
            found += [
                Argument(name + path, leaf)
                for path, leaf, traced in zip(paths, leaves, is_traced, strict=False)
                if traced
            ]
    return found
