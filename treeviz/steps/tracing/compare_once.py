"""Compare once, during a run, what a step and its watched twin return for the user's own arguments."""

from __future__ import annotations

import functools
import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax

from treeviz.steps.tracing.compile_ahead import options_of_thread
from treeviz.steps.tracing.jit_options import JitOptions
from treeviz.steps.tracing.jitted import JittedStep
from treeviz.steps.tracing.plain_program import PlainProgram, TracedOtherwise
from treeviz.steps.tracing.verify import Verification, compare, copy_array
from treeviz.tree.tracers import any_traced

AT_CALL = 16  # of a twin: by then the moments of an optimizer are warm, and short trials have ended
N_CALLS = 4  # that are compared, since the last digit of a number may differ in every second one
MOST_BYTES = 1 << 30  # on one device, for the copies that are compared

Compiled = Callable[..., Any]


class CompareOnce:
    """Compares each twin of a step with the step itself, at four calls whose arguments the user gave.

    Such a call computes the step a second time, from copies of the arguments that it donates; a thread reads what both
    return. A difference ends it. If the step itself was not compiled yet, another thread lowers and compiles it before,
    from the program that the twin was traced as, while the loop goes on.

    What is not compared: a step with effects, such as `io_callback` and `jax.debug.print`, which would happen twice; in
    a run of several processes; and where copies would not fit. An error of the comparison ends it silently.

    Args:
      plain: The step as its twins were traced; None: the loop also runs the step itself.
      tell: Gets the result, or the size of copies that are too large, in bytes; from any thread.
    """

    def __init__(
        self,
        jitted: JittedStep,
        options: JitOptions,
        twins: Sequence[Callable],
        plain: PlainProgram | None,
        tell: Callable[[Verification | int], None],
    ) -> None:
        self._jitted, self._options, self._tell = jitted, options, tell
        self._plain: Compiled | None = (lambda *args, **kwargs: jitted.step(*args, **kwargs)) if plain is None else None
        self._program = plain
        self._n_calls = {id(twin): 0 for twin in twins}  # of those that were not compared yet
        self._n_compared: Counter[int] = Counter()
        self._is_compiling = False

    def stop(self) -> None:
        self._n_calls, self._plain = {}, None
        if self._program is not None:
            self._program.drop()

    @property
    def has_ended(self) -> bool:
        return not self._n_calls

    def is_due(self, twin: Callable) -> bool:
        """Count a call of a twin; whether `run` shall call it."""
        n = self._n_calls.get(id(twin))
        if n is None:
            return False
        self._n_calls[id(twin)] = n = n + 1
        return n >= AT_CALL

    def run(self, twin: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call a twin, and compare what it returns. Its errors are raised, those of the comparison are not."""
        copies = self._tried(lambda: self._copies(args, kwargs))
        out, measurement = twin(*args, **kwargs)
        if copies is not None:
            self._n_compared[id(twin)] += 1
            if self._n_compared[id(twin)] >= N_CALLS:
                self._n_calls.pop(id(twin), None)
            self._tried(lambda: self._compare(copies, out, args, kwargs))
        return out, measurement

    def _tried(self, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except Exception:
            self.stop()

    def _copies(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
        """The arguments for the second run; None as long as it cannot be."""
        if self._plain is None and self._is_compiling:
            return None
        leaves = jax.tree.leaves((args, kwargs))
        disabled = jax.config.jax_disable_jit  # type: ignore[attr-defined]
        if disabled or jax.process_count() > 1 or any_traced(leaves):
            return None
        if not self._has_room(3 * _n_bytes(leaves)):  # of the arguments, and of both results
            return None
        if self._plain is None:
            self._compile(args, kwargs)
            return None
        if self._jitted.changes_arguments or self._options.donates:
            return self._jitted.copied((args, kwargs), copy_array)
        return args, kwargs

    def _has_room(self, n_bytes: int) -> bool:
        stats = jax.local_devices()[0].memory_stats() or {}
        free = stats.get("bytes_limit", math.inf) - stats.get("peak_bytes_in_use", 0)
        if n_bytes <= min(MOST_BYTES, free):
            return True
        self.stop()
        self._tell(n_bytes)
        return False

    def _compare(self, copies: Any, out: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        assert self._plain is not None
        if not self._has_room(2 * _n_bytes(jax.tree.leaves(out))):
            return
        expected = self._plain(*copies[0], **copies[1])
        got = out
        if self._jitted.changes_arguments:
            expected, got = (expected, copies), (out, (args, kwargs))
        got = self._jitted.copied(got, copy_array)  # since the next step may donate it

        def compare_() -> None:
            with jax.transfer_guard("allow"):
                found = compare(expected, got)
            if not found:
                self.stop()
            self._tell(found)

        self._start(compare_)
        if not self._n_calls:
            self.stop()

    def _compile(self, args: tuple, kwargs: dict[str, Any]) -> None:
        self._is_compiling, program, self._program = True, self._program, None
        lower: Any = None
        if program is not None:
            lower = program.lowering(self._options, *_inner_arguments(self._jitted, args, kwargs))
        if lower is None:
            lower = functools.partial(_same, _lowered(self._jitted, self._options, args, kwargs))
            program = None
        options = options_of_thread()

        def compile_() -> None:
            try:
                if program is not None and options_of_thread() != options:
                    raise TracedOtherwise
                lowered = lower()
            except Exception:
                if program is None:
                    raise
                self._is_compiling = False  # the next call lowers it in its own thread
                return
            self._plain = _calling(self._jitted, self._options, lowered.compile())

        self._start(compile_)

    def _start(self, work: Callable[[], None]) -> None:
        # Python waits for this thread at its end: XLA must not be at work then.
        threading.Thread(target=lambda: self._tried(work), name="treeviz comparison").start()


class _Escape(Exception):
    """Carries something out of the wrapper of a library."""

    def __init__(self, carried: Any) -> None:
        super().__init__("carried")
        self.carried = carried


def _inside(jitted: JittedStep, make: Callable, args: tuple, kwargs: dict[str, Any], copied=lambda x: x) -> Any:
    """What the function that `make` makes gives for the arguments of the jitted one."""

    def escaping(function):
        made = make(function)

        def escape(*args, **kwargs):
            raise _Escape(made(*args, **kwargs))

        return escape

    if jitted.changes_arguments:
        args, kwargs = jitted.copied((args, kwargs), copied)
    try:
        jitted.around(escaping)(*args, **kwargs)
    except _Escape as escape:
        return escape.carried
    raise RuntimeError("the step did not call its jitted function")


def _inner_arguments(jitted: JittedStep, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """The arguments that the jitted function gets for those of the step."""
    return _inside(jitted, lambda _: lambda *args, **kwargs: (args, kwargs), args, kwargs)


def _lowered(jitted: JittedStep, options: JitOptions, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The step, traced for these arguments."""

    def make(function):
        again = jitted.jitted
        if function is not again.__wrapped__:  # that of NNX must know its wrapper
            out = {} if options.out_shardings is None else {"out_shardings": options.out_shardings}
            again = jax.jit(function, **options.keywords, **out)
        return again.lower

    return _inside(jitted, make, args, kwargs, copy_array)


def _same(x: Any) -> Any:
    return x


def _calling(jitted: JittedStep, options: JitOptions, compiled: Any) -> Compiled:
    """The step with its compiled program in place of its jitted function."""
    static = {name: options.keywords.get(name) or () for name in ("static_argnums", "static_argnames")}

    def make(_):
        def call(*args, **kwargs):
            args = [x for i, x in enumerate(args) if i not in static["static_argnums"]]
            kwargs = {name: x for name, x in kwargs.items() if name not in static["static_argnames"]}
            return compiled(*args, **kwargs), None

        return call

    around = jitted.around(make)
    return lambda *args, **kwargs: around(*args, **kwargs)[0]


def _n_bytes(leaves: Sequence[Any]) -> int:
    """On one device."""
    arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in arrays)
