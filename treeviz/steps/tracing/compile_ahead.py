"""Compile the step itself in a thread while its watched twin is compiled: the steps in between will run it."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import jax

from treeviz.tree.tracers import any_traced


class CompileAhead:
    """Compiles a jitted step in a thread, for its next call with such arguments.

    It is traced in the thread of the user, as it would be at that call, and that call waits for the thread: which
    program runs a step never depends on which was ready first. Nothing is compiled ahead where the call would not find
    it, as before jax 0.10; where the thread would compile it otherwise, since the user's has options of its own; in a
    run of several processes; and on a GPU, where two compilations would disturb each other's choice of kernels.
    """

    def __init__(self, step: Any) -> None:
        self._step = step
        self._thread: threading.Thread | None = None
        self._has_begun = False

    def begin(self, args: tuple, kwargs: dict[str, Any]) -> None:
        """Begin, if it has not begun. An error is that of the call to come."""
        if self._has_begun:
            return
        self._has_begun = True
        disabled = jax.config.jax_disable_jit or jax.__version_info__ < (0, 10)  # type: ignore[attr-defined]
        if disabled or jax.process_count() > 1 or jax.default_backend() == "gpu":
            return
        if any_traced(jax.tree.leaves((args, kwargs))):
            return
        try:
            lowered = self._step.lower(*args, **kwargs)
        except Exception:
            return
        options = options_of_thread()

        def compile_() -> None:
            with contextlib.suppress(Exception):
                if options_of_thread() == options:
                    lowered.compile()

        # Python waits for this thread at its end: XLA must not be at work then.
        self._thread = threading.Thread(target=compile_, name="treeviz compilation")
        self._thread.start()

    def wait(self) -> None:
        """Wait for the program; later calls need no other."""
        self._has_begun = True
        if self._thread is not None:
            self._thread.join()


def options_of_thread() -> list[Any]:
    """The options of JAX as they are in this thread; without transfer guards, which no program depends on."""
    names = (name for name in jax.config.values if not name.startswith("jax_transfer_guard"))
    return [getattr(jax.config, name, None) for name in names]
