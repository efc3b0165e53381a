"""A step that `equinox.filter_jit` made: the `jax.jit` inside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treeviz.integrations.jax_internals import is_jitted


def filter_jitted(step: Any) -> tuple[Any, Callable] | None:
    """What `jax.jit` gave inside a `filter_jit`, and how to make the same wrapper around another."""
    if type(step).__module__.partition(".")[0] != "equinox" or not is_jitted(getattr(step, "_cached", None)):
        return None

    def with_other(make: Callable[[Callable], Callable]) -> Any:
        other = object.__new__(type(step))  # a frozen dataclass
        for name, value in vars(step).items():
            object.__setattr__(other, name, value)
        object.__setattr__(other, "_cached", make(step._cached.__wrapped__))
        return other

    return step._cached, with_other
