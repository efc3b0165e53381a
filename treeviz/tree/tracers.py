"""The class of JAX's tracers and whether anything is traced: undocumented, and their absence must break nothing."""

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
    """Whether JAX traces something in this thread, so that a tracer may be of use; True if that is not known."""
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
    """The state of a thread that is new, in which nothing is traced; None if this release has no such thing."""
    found: list[Any] = []

    def look() -> None:
        try:
            found.append(_trace_state())
        except (ImportError, TypeError):
            found.append(None)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found[0]
