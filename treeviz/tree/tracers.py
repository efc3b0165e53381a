"""JAX's tracer class, and whether JAX is tracing. Both are undocumented, so treeviz works without them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable
from typing import Any

try:
    from jax.core import Tracer as Tracer  # type: ignore[assignment]
except ImportError:

    class Tracer:  # type: ignore[no-redef]
        """Without `jax.core.Tracer` no object is recognised as a tracer."""


def any_traced(leaves: Iterable[Any]) -> bool:
    return any(isinstance(leaf, Tracer) for leaf in leaves)


def is_tracing() -> bool:
    """Whether JAX is tracing in this thread, so that tracers may be valid; True if unknown."""
    outside = _outside()
    return outside is None or _trace_state() != outside


def _trace_state() -> Any:
    try:
        from jax.extend.core import get_opaque_trace_state
    except ImportError:  # jax 0.4.36
        from jax.core import get_opaque_trace_state  # type: ignore[attr-defined,no-redef]
    return get_opaque_trace_state(convention="flax")


@functools.cache
def _outside() -> Any:
    """The trace state of a new thread, in which nothing is traced; None if this release has no such state."""
    states: list[Any] = []

    def read_state() -> None:
        try:
            states.append(_trace_state())
        except (ImportError, TypeError):
            states.append(None)

    thread = threading.Thread(target=read_state)
    thread.start()
    thread.join()
    return states[0]
