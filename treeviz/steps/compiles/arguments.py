"""What the arguments of a call are called, and what a step calls with them."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from treeviz.steps.tracing.jitted import is_partial
from treeviz.tree.safe_repr import guarded

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
