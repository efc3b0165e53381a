"""What the arguments of a call are called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from treeviz.tree.safe_repr import guarded


def argument_names(step: Callable, n_positional: int) -> list[str]:
    """The names of the first arguments of a call; `args[2]` where the function has none."""
    parameters: Mapping[str, Any] = guarded(lambda: inspect.signature(step).parameters, lambda _: {})
    names = [
        name for name, each in parameters.items() if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    return [*names[:n_positional], *(f"args[{i}]" for i in range(len(names), n_positional))]


def named_arguments(step: Callable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, first those that were passed by position."""
    return {**dict(zip(argument_names(step, len(args)), args, strict=True)), **kwargs}
