"""Hear, in each thread, when JAX traces and compiles: through `jax.monitoring`, which is public."""

from __future__ import annotations

import functools
import threading
from typing import NamedTuple

import jax
from jax import monitoring

_MOST = 10_000  # events that are kept of a thread


class Event(NamedTuple):
    """A part of a compilation.

    Attributes:
      kind: "trace", "lower" or "compile".
    """

    kind: str
    seconds: float


class _Here(threading.local):
    """The events of this thread. JAX traces and compiles in the thread that calls.

    Attributes:
      n: How many there were.
    """

    n = 0

    def __init__(self) -> None:
        self.events: list[Event] = []


here = _Here()
_KINDS = {
    "jaxpr_trace_duration": "trace",
    "jaxpr_to_mlir_module_duration": "lower",
    "backend_compile_duration": "compile",
}


def _hear(event: str, duration_secs: float, **_: object) -> None:
    kind = _KINDS.get(event.rpartition("/")[2])
    if kind is not None:
        here.n += 1
        here.events.append(Event(kind, duration_secs))
        if len(here.events) > _MOST:
            del here.events[: _MOST // 2]


def events_since(n: int) -> list[Event]:
    """The events of this thread since `here.n` was `n`."""
    return here.events[max(0, len(here.events) - (here.n - n)) :]


@functools.cache
def why_deaf() -> str:
    """Begin to listen, once in a process; a listener is global, and costs 1 µs for each compilation.

    Returns:
      Empty; or why nothing is heard: this release of JAX tells of tracing in another way.
    """
    try:
        monitoring.register_event_duration_secs_listener(_hear)
        before = here.n
        jax.jit(lambda: 0).lower()
        if {event.kind for event in events_since(before)} >= {"trace", "lower"}:
            return ""
    except Exception as error:
        return f"jax {jax.__version__} cannot be listened to: {type(error).__name__}"
    return f"jax {jax.__version__} does not tell jax.monitoring when it traces"
