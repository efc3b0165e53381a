"""The instrumented programs of a step, and which one inspects which call."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from treeviz.steps.statistics import HISTOGRAM, check_statistics
from treeviz.steps.tracing import jax_private
from treeviz.steps.tracing.jitted import JittedStep


class Settings(NamedTuple):
    """The arguments of `watch`."""

    every: int
    heavy_every: int
    statistics: tuple[str, ...]
    via: str
    match: bool
    exact: bool
    updates: bool | None
    first: int

    def check(self) -> None:
        check_statistics(self.statistics)
        if self.via not in ("output", "callback"):
            raise ValueError(f"via={self.via!r}: there are 'output' and 'callback'.")
        if self.every < 0 or self.heavy_every < 0 or not (self.every or self.heavy_every):
            raise ValueError(f"every={self.every}, heavy_every={self.heavy_every}: no step would be inspected.")
        if self.updates and self.via == "callback":
            raise ValueError("updates=True needs via='output': a callback sees gradients only.")
        if self.exact and self.via == "callback":
            raise ValueError("exact=True measures in a second run; via='callback' has no use in it.")

    def __str__(self) -> str:
        """The settings that must be equal in all processes."""
        return ", ".join(f"{name}={value}" for name, value in self._asdict().items() if name != "match")


class Twins:
    """The instrumented programs of a step, and which one inspects which call."""

    def __init__(self, jitted: JittedStep, settings: Settings, on_traced: Callable, on_callback: Callable) -> None:
        self._jitted, self._settings = jitted, settings
        self._on_traced, self._on_callback = on_traced, on_callback
        self._options = jax_private.jit_options(jitted.jitted)
        only_measure = settings.exact and jitted.is_plain
        self._light = self.make(settings.statistics, updates=bool(settings.updates), only_measure=only_measure)
        self._heavy = None
        if settings.heavy_every:
            self._heavy = self.make(HISTOGRAM, updates=settings.updates is not False, only_measure=only_measure)

    def of(self, number: int) -> Callable | None:
        """The program that inspects this call, or None."""
        if self._heavy is not None and number % self._settings.heavy_every == 0:
            return self._heavy
        return self._light if self._settings.every and number % self._settings.every == 0 else None

    def make(self, statistics: tuple[str, ...], *, updates: bool, only_measure: bool = False) -> Callable:
        """A function with the arguments of the step that returns `(what the step returns, measurement)`."""
        # Imported here, since these modules use JAX's extension API, which `jax_private.why_not` checks.
        from treeviz.steps.tracing.twin import instrumented, instrumented_callback

        def make(function):
            if self._settings.via == "callback":
                return instrumented_callback(function, self._options, statistics, self._on_callback)
            return instrumented(
                function,
                self._options,
                statistics,
                match=self._settings.match,
                updates=updates,
                tidy_path=self._jitted.tidy_path,
                on_traced=self._on_traced,
                donate=not self._settings.exact,
                only_measure=only_measure,
            )

        return self._jitted.around(make)
