"""The instrumented programs of a step, and which one inspects which call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from treeviz.steps.statistics import HISTOGRAM, check_statistics
from treeviz.steps.tracing.compare_once import CompareOnce
from treeviz.steps.tracing.compile_ahead import CompileAhead
from treeviz.steps.tracing.jit_options import jit_options
from treeviz.steps.tracing.jitted import JittedStep
from treeviz.steps.tracing.plain_program import PlainProgram
from treeviz.steps.tracing.verify import Verification
from treeviz.tree.layers import Stacked, stacked_axes

if TYPE_CHECKING:
    from treeviz.steps.tracing.attribution import Attribution

_GRADIENTS_ALONE = (
    "via='callback' sees gradients alone, not the parameters, their updates, or the results of the step: so 'frozen', "
    "'ratio', 'result', and a NaN that the loss or the optimizer makes are not found. via='output' finds them."
)

OnTraced = Callable[[Sequence["Attribution"], Sequence[str], set[str]], None]  # as in `twin.instrumented`


class RunsTwice(Exception):
    """A step cannot be measured in a second run, since it does more than return results."""


class Settings(NamedTuple):
    """The arguments of `watch`."""

    every: int
    heavy_every: int
    statistics: tuple[str, ...]
    via: str
    match: bool
    exact: bool | str
    updates: bool | None
    first: int
    stacked: Stacked | None

    def check(self) -> None:
        check_statistics(self.statistics)
        stacked_axes(self.stacked or ())
        if self.via not in ("output", "callback"):
            raise ValueError(f"via={self.via!r}: there are 'output' and 'callback'.")
        if self.every < 0 or self.heavy_every < 0 or not (self.every or self.heavy_every):
            raise ValueError(f"every={self.every}, heavy_every={self.heavy_every}: no step would be inspected.")
        if self.updates and self.via == "callback":
            raise ValueError("updates=True needs via='output': a callback sees gradients only.")
        if self.exact not in (True, False, "auto"):
            raise ValueError(f"exact={self.exact!r}: there are True, False and 'auto'.")
        if self.exact and self.via == "callback":
            raise ValueError(f"exact={self.exact!r} measures in a second run; via='callback' has no use in it.")

    def __str__(self) -> str:
        """The settings that must be equal in all processes."""
        return ", ".join(f"{name}={value}" for name, value in self._asdict().items() if name != "match")


class Twins:
    """The instrumented programs of a step, and which one inspects which call.

    Attributes:
      jitted: The step.
      is_exact: They measure in a second run, beside the step itself.
      comparison: With the step itself, made once; None if there is none to be made.
      ahead: Compiles the step itself while a twin is compiled; None if it is not to.
      settled: The program that inspects each further call, of which nothing else is to be done; None: `of` tells.
    """

    def __init__(
        self,
        jitted: JittedStep,
        settings: Settings,
        on_traced: OnTraced,
        on_callback: Callable,
        on_compared: Callable[[Verification | int], None],
    ) -> None:
        self.jitted, self._settings = jitted, settings
        self._on_traced, self._on_callback = on_traced, on_callback
        self._options = jit_options(jitted.jitted)
        self.is_exact = settings.exact is True
        is_compared = settings.via == "output" and not self.is_exact
        runs_plain = settings.every != 1 and settings.heavy_every != 1
        self._plain = PlainProgram() if is_compared and not runs_plain else None
        looks = self._looks = settings.updates is None and not settings.heavy_every
        self._light = self._of_run(settings.statistics, bool(settings.updates), looks)
        self._heavy = self._of_run(HISTOGRAM, settings.updates is not False) if settings.heavy_every else None
        if settings.via == "callback":
            on_traced((), (_GRADIENTS_ALONE,), set())
        self.settled: Callable | None = None
        self.comparison: CompareOnce | None = None
        self.ahead = CompileAhead(jitted.step) if runs_plain and jitted.is_plain and not self.is_exact else None
        if is_compared:
            used = [twin for twin, every in ((self._light, settings.every), (self._heavy, 1)) if twin and every]
            self.comparison = CompareOnce(jitted, self._options, used, self._plain, on_compared)

    def of(self, number: int) -> Callable | None:
        """The program that inspects this call, or None."""
        if self._heavy is not None and number % self._settings.heavy_every == 0:
            return self._heavy
        return self._light if self._settings.every and number % self._settings.every == 0 else None

    def settle(self) -> None:
        """Let one program inspect all further calls, if it can."""
        if self.comparison is not None and self.comparison.has_ended:
            self.comparison = None
        if self.comparison is None and self._heavy is None and not self.is_exact:
            self.settled = self._light

    def compared(self, twin: Callable) -> Callable:
        """The program, or what also compares this call of it with the step itself."""
        comparison = self.comparison
        if comparison is None or not comparison.is_due(twin):
            return twin
        return lambda *args, **kwargs: comparison.run(twin, args, kwargs)

    def _of_run(self, statistics: tuple[str, ...], updates: bool, looks: bool = False) -> Callable:
        if not self.is_exact:
            return self.make(statistics, updates=updates, looks=looks)
        return self.make(statistics, updates=updates, only_measure=self.jitted.is_plain, on_traced=self._on_second_run)

    def make(
        self,
        statistics: tuple[str, ...],
        *,
        updates: bool,
        only_measure: bool = False,
        on_traced: OnTraced | None = None,
        looks: bool = False,
    ) -> Callable:
        """A function with the arguments of the step that returns `(what the step returns, measurement)`."""
        # Imported here, since these modules use JAX's extension API, which `jax_private.why_not` checks.
        from treeviz.steps.tracing.twin import instrumented, instrumented_callback

        stacked = self._settings.stacked

        def make(function):
            if self._settings.via == "callback":
                return instrumented_callback(function, self._options, statistics, self._on_callback, stacked)
            return instrumented(
                function,
                self._options,
                statistics,
                match=self._settings.match,
                updates=updates,
                stacked=stacked,
                tidy_path=self.jitted.tidy_path,
                result_path=self.jitted.result_path,
                on_traced=on_traced or self._on_traced,
                donate=not self.is_exact,
                only_measure=only_measure,
                looks=looks,
                plain=self._plain,
            )

        return self.jitted.around(make)

    def _on_second_run(self, watches: Sequence[Attribution], notes: Sequence[str], effects: set[str]) -> None:
        from treeviz.steps.tracing.looks import not_looked_at
        from treeviz.steps.tracing.primitives import DEBUG_CALLBACKS

        text = f"exact=True runs the step twice, and with it {', '.join(sorted(effects))}"
        if effects - DEBUG_CALLBACKS:
            raise RunsTwice(f"{text}, whose effect would happen twice. Watch this step without exact=True")
        more = [not_looked_at("exact=True")] if self._looks else []
        self._on_traced(watches, [*notes, *([f"{text}."] if effects else []), *more], effects)
