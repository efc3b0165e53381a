"""The buffers of a step that another library jitted: of what its wrapper passes on to the `jax.jit` inside."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import jax
from jax import tree_util

from treeviz.steps.compiles.program import Buffers, read_buffers
from treeviz.steps.tracing.jit_options import dynamic_arguments, jit_options
from treeviz.steps.tracing.jitted import JittedStep
from treeviz.tree.walk import walk


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
