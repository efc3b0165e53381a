"""The options with which `jax.jit` made a function, for another `jax.jit`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax import tree_util

from treeviz.steps.tracing.jax_private import OPTIONS, jit_info, kept_arguments
from treeviz.tree.safe_repr import guarded


class JitOptions(NamedTuple):
    """The options with which `jax.jit` was called."""

    keywords: dict[str, Any]  # for another `jax.jit`, without those of the outputs
    out_shardings: Any  # a tree prefix, or None if there was none
    donates: bool


def is_jitted(step: Any) -> bool:
    """Whether `jax.jit` returned this very object, not something around it."""
    return type(step) is _probe().type and jit_info(step) is not None


def jit_options(step: Any) -> JitOptions:
    """The options with which `jax.jit` made a jitted function."""
    info, without = jit_info(step), _probe().info
    options = {name: getattr(info, name) for name in OPTIONS}
    keywords: dict[str, Any] = {name: value for name, value in options.items() if value != getattr(without, name)}
    # These two options of `jax.jit` are deprecated, and a later release lacks the attributes.
    keywords.update((name, value) for name in ("device", "backend") if (value := getattr(info, name, None)) is not None)
    if info.compiler_options_kvs:
        keywords["compiler_options"] = dict(info.compiler_options_kvs)
    in_shardings = _shardings(info.in_shardings_treedef, info.in_shardings_leaves, info.in_layouts_leaves)
    if in_shardings is not None:
        keywords["in_shardings"] = in_shardings
    out_shardings = _shardings(info.out_shardings_treedef, info.out_shardings_leaves, info.out_layouts_leaves)
    return JitOptions(keywords, out_shardings, bool(info.donate_argnums or info.donate_argnames))


def dynamic_arguments(step: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[int], list[str]]:
    """The positions and the names of the arguments of a call that are not static, those by name sorted as in JAX."""
    options = jit_options(step).keywords
    static = {i % len(args) for i in options.get("static_argnums", ()) if -len(args) <= i < len(args)}
    names = options.get("static_argnames", ())
    return [i for i in range(len(args)) if i not in static], sorted(name for name in kwargs if name not in names)


def arguments_read(compiled: Any) -> list[int] | None:
    """The positions of the leaves that a compiled program reads; None if this release of JAX does not tell."""
    return guarded(lambda: kept_arguments(compiled), lambda _: None)


class _Probe(NamedTuple):
    """A jitted function without options."""

    type: type
    info: Any  # JAX's record of its options, all of which are those that `jax.jit` takes by itself
    unspecified: Any  # the marker of a sharding that was not given


@functools.cache
def _probe() -> _Probe:
    jitted = jax.jit(lambda: None)
    info = jit_info(jitted)
    return _Probe(type(jitted), info, info and info.in_shardings_leaves[0])


def _shardings(treedef, shardings, layouts):
    """The shardings of all arguments or results with their layouts; None if neither was given."""
    if all(_is_unspecified(s) for s in shardings) and all(x is None for x in layouts):
        return None
    leaves = [
        _with_layout(layout, None if _is_unspecified(s) else s) for s, layout in zip(shardings, layouts, strict=True)
    ]
    return tree_util.tree_unflatten(treedef, leaves)


def _is_unspecified(sharding: Any) -> bool:
    return sharding is _probe().unspecified


def _with_layout(layout, sharding):
    if layout is None:
        return sharding
    from jax.experimental import layout as layouts

    both = getattr(layouts, "Format", None) or layouts.Layout  # `Layout` until jax 0.6
    return both(layout, sharding)
