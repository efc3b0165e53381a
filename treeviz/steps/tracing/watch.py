"""Watch a jitted step: it returns what it did before, and the gradients computed inside it are measured."""

from __future__ import annotations

import atexit
import functools
import itertools
import math
import threading
import time
import types
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from treeviz.steps.measure import Measurement
from treeviz.steps.statistics import HISTOGRAM, LIGHT, StopTraining, check_statistics
from treeviz.steps.tracing import jax_private
from treeviz.steps.tracing.jax_private import tested_with, why_not_measured
from treeviz.steps.tracing.jitted import (
    CannotWatch,
    JittedStep,
    LibraryMoved,
    function_of,
    jit_options,
    jitted_step,
    ran,
    receiving,
)
from treeviz.steps.tracing.verify import (
    Comparison,
    CompileAhead,
    PlainProgram,
    Verification,
    copy_array,
    verify,
)
from treeviz.tree.layers import Stacked, stacked_axes
from treeviz.tree.runtime import Lock, missing_names, warn_of_missing, why_missing
from treeviz.tree.text import error_text, printable_lines, step_name
from treeviz.tree.tracers import Tracer, any_traced

if TYPE_CHECKING:
    from treeviz.steps.tracing.attribution import Attribution


__all__ = ["CannotWatch", "Watched", "watch"]

jax_private.get_ready()

Record = Callable[[Measurement, int], None]
Before = Callable[[int, Callable[[], tuple[tuple, dict]]], None]
OnTraced = Callable[[Sequence["Attribution"], Sequence[str], set[str]], None]  # as in `instrumented.instrumented`


class RunsTwice(Exception):
    """A step cannot be measured in a second run, since it does more than return results."""


class Settings(NamedTuple):
    """The arguments of `watch`."""

    every: int
    heavy_every: int
    statistics: tuple[str, ...]
    match: bool
    exact: bool | str
    updates: bool | None
    first: int
    stacked: Stacked | None
    activations: bool = False

    def __str__(self) -> str:
        """The settings that must be equal in all processes."""
        return ", ".join(f"{name}={value}" for name, value in self._asdict().items() if name != "match")


class InstrumentedPrograms:
    """The instrumented programs of a step, and which one inspects which call."""

    def __init__(
        self,
        jitted: JittedStep,
        settings: Settings,
        on_traced: OnTraced,
        on_compared: Callable[[Verification | int], None],
    ) -> None:
        self.jitted, self._settings, self._on_traced = jitted, settings, on_traced
        self._options = jit_options(jitted.jitted)
        self.is_exact = settings.exact is True  # the programs measure in a second run; the step itself runs, too
        runs_plain = settings.every != 1 and settings.heavy_every != 1
        self._plain = None if self.is_exact or runs_plain else PlainProgram()
        self._samples_params = settings.updates is None and not settings.heavy_every
        self._light = self.make(settings.statistics, bool(settings.updates), self._samples_params)
        self._heavy = self.make(HISTOGRAM, settings.updates is not False) if settings.heavy_every else None
        self.is_single = self._heavy is None and not self.is_exact  # one program inspects all calls
        self.fixed: Callable | None = None  # inspects all further calls before `fixed_until`; None: ask `of` each time
        self.fixed_until = math.inf
        self.comparison: Comparison | None = None  # with the step itself
        self.ahead = CompileAhead(jitted.step) if runs_plain and jitted.is_plain and not self.is_exact else None
        if not self.is_exact:
            used = [*([self._light] if settings.every else []), *([self._heavy] if self._heavy else [])]
            is_auto = settings.exact == "auto"
            self.comparison = Comparison(jitted, self._options, used, self._plain, on_compared, is_auto)

    def of(self, number: int) -> Callable | None:
        """The program that inspects this call, or what also compares it with the step itself; None if there is none."""
        settings, comparison = self._settings, self.comparison
        if self._heavy is not None and number % settings.heavy_every == 0:
            program = self._heavy
        elif settings.every and number % settings.every == 0:
            program = self._light
        else:
            return None
        if comparison is None:
            return program
        if comparison.has_ended:
            self.comparison = None
            return program
        return functools.partial(comparison.run, program) if comparison.is_due(program) else program

    def fix(self, program: Callable, number: int) -> None:
        """Let this program inspect the calls from this one on, until the next that is compared."""
        self.fixed = None
        if self.is_single and program is self._light:
            n = math.inf if self.comparison is None else self.comparison.skip(program)
            self.fixed, self.fixed_until = program, number + n * self._settings.every

    def make(
        self, statistics: tuple[str, ...], updates: bool, samples_params: bool = False, *, in_run: bool = True
    ) -> Callable:
        """A function with the arguments of the step that returns `(what the step returns, measurement)`."""
        is_apart = self.is_exact and in_run  # it measures in a second run
        # Imported here, since this module uses JAX's extension API, which `jax_private.why_not` checks.
        from treeviz.steps.tracing.instrumented import instrumented

        def make(function):
            return instrumented(
                function,
                self._options,
                statistics,
                match=self._settings.match,
                updates=updates,
                stacked=self._settings.stacked,
                activations=self._settings.activations,
                tidy_path=self.jitted.tidy_path,
                result_path=self.jitted.result_path,
                on_traced=self._on_second_run if is_apart else self._on_traced,
                donate=not self.is_exact,
                only_measure=is_apart and self.jitted.is_plain,
                samples_params=samples_params and not is_apart,
                plain=self._plain,
            )

        return self.jitted.around(make)

    def _on_second_run(self, watches: Sequence[Attribution], notes: Sequence[str], effects: set[str]) -> None:
        from treeviz.steps.tracing.instrumented import not_sampled
        from treeviz.steps.tracing.primitives import DEBUG_CALLBACKS

        text = f"exact=True runs the step twice, and with it {', '.join(sorted(effects))}"
        if effects - DEBUG_CALLBACKS:
            raise RunsTwice(f"{text}, whose effect would happen twice. Watch this step without exact=True")
        more = [not_sampled("exact=True")] if self._samples_params else []
        self._on_traced(watches, [*notes, *([f"{text}."] if effects else []), *more], effects)


def watch(
    step: Callable,
    record: Record,
    *,
    every: int = 1,
    heavy_every: int = 0,
    statistics: tuple[str, ...] = LIGHT,
    match: bool = True,
    exact: bool | str = False,
    updates: bool | None = None,
    first: int = 0,
    stacked: Stacked | None = (),
    gradients: str | None = None,
    activations: bool = False,
) -> Watched:
    """Wrap a jitted step so that `record` gets a measurement of the gradients computed inside it.

    The step itself is unchanged. It is traced once more, each gradient is reduced to a few numbers where it is
    computed, and these leave the device as one further output, which only `record` gets. An inspected step runs this
    second program; the others run the step itself, which a thread compiles beside it, since jax 0.10 and not on a GPU.

    XLA may round a result of the second program differently. So a few calls also run the step itself; see
    `verify.Comparison`. If the installed JAX, Equinox or Flax lacks a private name that this needs, the step runs
    unwatched, and one warning says what is lost.

    Args: as of `GradientInspector` and its `watch`, and
      record: Called after an inspected step with its `Measurement`, whose arrays may not be computed yet, and its
        number. An exception that it raises becomes a warning, once; `StopTraining` is passed on.
      match: Only gradients of the step's own arguments, if there are any.
      first: The number of the first step.
    """
    words = check_statistics(statistics)
    settings = Settings(every, heavy_every, words, match, exact, updates, first, stacked, activations)
    stacked_axes(stacked or ())
    if every < 0 or heavy_every < 0 or not (every or heavy_every):
        raise ValueError(f"every={every}, heavy_every={heavy_every}: no step would be inspected.")
    if exact not in (True, False, "auto"):
        raise ValueError(f"exact={exact!r}: use True, False or 'auto'.")
    why_not = jax_private.why_not()
    if why_not:
        return Watched(step, None, record, settings, f"{why_not} ({tested_with()})")
    try:
        jitted = jitted_step(step)
        return Watched(step, receiving(jitted, gradients) if gradients else jitted, record, settings)
    except LibraryMoved as error:
        return Watched(step, None, record, settings, str(error))
    except (ImportError, AttributeError) as error:  # a private name of JAX that is not in `PRIVATE`
        return Watched(step, None, record, settings, why_not_measured(error))


class Watched:
    """A watched step: called like the step, and with its attributes."""

    def __init__(
        self, step: Callable, jitted: JittedStep | None, record: Record, settings: Settings, trouble: str = ""
    ) -> None:
        functools.update_wrapper(self, step, updated=())
        self.__wrapped__ = function_of(step)
        self._name = f"`{step_name(step)}`"  # as it is said in a sentence
        self.watches: dict[str, Attribution] = {}  # what is measured, by name; known when the first step was traced
        self.notes: tuple[str, ...] = ()  # what is not measured besides the gradients, and why
        self.compared: Verification | None = None  # with the step itself: of the program that differs, if one does
        self.trouble = ""  # why the step is not watched any more; it still runs
        self._warned: set[str] = set()  # of what
        self._before: Before | None = None
        self._record, self.settings = record, settings
        self._period = math.gcd(settings.every, settings.heavy_every)  # calls of other numbers are not inspected
        self._consensus: ProcessConsensus | None = None
        self._has_effects = False
        self.count_from(settings.first)
        self.run(step, jitted)
        if trouble:
            self._give_up(trouble)
        else:
            self._consensus = ProcessConsensus(step, str(settings), self.newest)

    def count_from(self, first: int) -> None:
        self._numbers, self.newest = itertools.count(first), first - 1  # the number of the newest call

    def run(self, step: Callable, jitted: JittedStep | None) -> None:
        """Run this step from now on, and make the programs that inspect it."""
        self.step, self._jitted = step, jitted
        self._programs = None if jitted is None else self._programs_with(jitted, self.settings)
        self._run_plain = step
        if self._programs is not None and (ahead := self._programs.ahead) is not None:

            def first(*args: Any, **kwargs: Any) -> Any:
                ahead.wait()
                self._run_plain = step
                return step(*args, **kwargs)

            self._run_plain = first

    def on_before_call(self, before: Before | None) -> None:
        """Call this before an inspected step, with its number, and a function that returns copies of its arguments."""
        self._before = before
        if self._programs is not None:
            self._programs.fixed = None

    def __call__(self, /, *args, **kwargs):
        self.newest = number = next(self._numbers)
        if number % self._period:
            return self._run_plain(*args, **kwargs)
        programs = self._programs
        if programs is None or jax_private.now_seeing() is not None:  # within another watched step, which sees them
            return self._run_plain(*args, **kwargs)
        if (program := programs.fixed) is None or number >= programs.fixed_until:
            if (program := self._program_of(programs, number, args, kwargs)) is None:
                return self._run_plain(*args, **kwargs)
            if programs.is_exact:
                return self._run_apart(programs.jitted, program, number, args, kwargs)
        try:
            out, measurement = program(*args, **kwargs)
        except Exception as error:
            trouble = error
        else:
            self._take(measurement, number)
            return out
        return self._run_untouched(trouble, args, kwargs)

    def _program_of(self, programs: InstrumentedPrograms, number: int, args, kwargs) -> Callable | None:
        """The program that inspects this call, after the preparations for it; None: the step itself runs."""
        program = None if self.trouble else programs.of(number)
        if program is None:
            return None
        if (consensus := self._consensus) is not None:
            is_measured = consensus.measures(number)
            self._note(*[f"{self._name}: {note}" for note in consensus.notes])
            if why := consensus.why_not:
                self._give_up(f"{why}. All processes must watch it in the same way; one of them may save or show it")
            if not is_measured:
                return None
            self._consensus = None
        if programs.ahead is not None:
            programs.ahead.begin(args, kwargs)
            programs.ahead = None
        if self._before is not None and not any_traced(jax.tree.leaves((args, kwargs))):
            self._before(number, lambda: programs.jitted.copied((args, kwargs), copy_array))
        if self._before is None and self._consensus is None:
            programs.fix(program, number)
        return program

    def _run_apart(self, jitted: JittedStep, program, number: int, args, kwargs):
        """Run the untouched step, after a program has measured on the same arguments and left them as they are."""
        trouble = None
        try:
            # Modules that a step changes in place are copied, arrays are not: the program donates no buffer.
            copies = (args, kwargs) if jitted.is_plain else jitted.copied((args, kwargs), lambda x: x)
            _, measurement = program(*copies[0], **copies[1])
            self._take(measurement, number)
        except Exception as error:
            trouble = error
        out = self.step(*args, **kwargs)
        if trouble is not None:
            self._give_up(why_not_measured(trouble))
        return out

    def _run_untouched(self, trouble: Exception, args, kwargs):
        """Run the step itself, instead of a program that raised. If it raises too, the error is the user's own."""
        leaves = jax.tree.leaves((args, kwargs))
        took = any(isinstance(x, jax.Array) and not isinstance(x, Tracer) and x.is_deleted() for x in leaves)
        if took or (self._has_effects and ran(trouble)):
            raise trouble  # of the step itself, which must not run again
        out = self.step(*args, **kwargs)
        if any_traced(leaves):  # e.g. before jax 0.5 an instrumented program cannot be differentiated
            self._warn_inside()
        else:
            self._give_up(why_not_measured(trouble))
        return out

    def _programs_with(self, jitted: JittedStep, settings: Settings) -> InstrumentedPrograms:
        return InstrumentedPrograms(jitted, settings, self._on_traced, self._on_compared)

    def _take(self, measurement: Measurement, number: int) -> None:
        if isinstance(measurement.arrays[0], Tracer):
            return self._warn_inside()
        try:
            self._record(measurement, number)
        except StopTraining:
            raise
        except Exception as error:
            self._warn_once("record", f"recording step {number} raised {error_text(error)}")

    def _note(self, *notes: str) -> None:
        self.notes = tuple(dict.fromkeys((*self.notes, *notes)))

    def _warn_once(self, about: str, text: str, stacklevel: int = 4) -> None:
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(printable_lines(f"watch: {text}"), RuntimeWarning, stacklevel=stacklevel)

    def _warn_inside(self) -> None:
        self._warn_once(
            "inside",
            f"{self._name} is called inside another jitted or transformed function, which measurements cannot leave: "
            "nothing is measured in these calls. Watch the outer function instead, inspector.watch(jax.jit(outer)), "
            "which sees all gradients inside it; or return tv.measure(grads=grads) from it for inspector.record().",
            stacklevel=5,
        )

    def _give_up(self, why: str) -> None:
        self.trouble = f"{why}.\n{CannotWatch.instead(self.step)}"
        self.on_before_call(None)
        warnings.warn(f"watch: the step runs, but is not watched: {self.trouble}", RuntimeWarning, stacklevel=4)

    def _on_traced(self, watches, notes, effects) -> None:
        self.watches = {**self.watches, **{w.source.name: w for w in watches}}
        self._has_effects |= bool(effects)
        if effects and (programs := self._programs) is not None and programs.comparison is not None:
            programs.comparison.stop()
            if self.settings.exact:
                has = f"{', '.join(sorted(effects))} has an effect"
                notes = [*notes, f"{self._name} is not run twice, since {has}."]
        self._note(*notes)

    @property
    def changes_bits(self) -> bool:
        """Whether a comparison showed that measuring changes a bit of the step's results."""
        return self.compared is not None and not self.compared and not self.settings.exact

    def _on_compared(self, found: Verification | int) -> None:
        """Take the result of a comparison, or the size of copies that are too large, from any thread."""
        if isinstance(found, int):
            return self._note(
                f"{self._name}: whether measuring changes bits was not compared, since the copies would take "
                f"{found / 2**30:.2g} GiB of a device. inspector.verify() compares, before a run."
            )
        is_known = self.compared is not None and not self.compared
        self.compared = self.compared if is_known else found
        if found or is_known:
            return
        what_now = (
            "watch(step, exact=True) rules it out; an inspected step then takes about twice as long. A "
            "non-deterministic step differs, too: inspector.verify() checks that."
        )
        if self.settings.exact and self._jitted is not None:
            self._programs = self._programs_with(self._jitted, self.settings._replace(exact=True))
            what_now = "From now on the untouched step runs, and is measured in a second run."
        self._note(
            f"{self._name}: measuring changes bits. {len(found.differences)} of {found.n_leaves} results differ from "
            f"those of the unwatched step for the same arguments: {found.differences[0]}. {what_now}"
        )

    def wait_compared(self) -> None:
        if (programs := self._programs) is not None and programs.comparison is not None:
            programs.comparison.wait()

    def jitted_of(self, info: Any) -> JittedStep | None:
        """The step, if `info` is JAX's record of its options."""
        return self._jitted if self._jitted and jax_private.jit_info(self._jitted.jitted) is info else None

    def verify(self, *args, **kwargs) -> Verification:
        """Compare all bytes of what the step and the program that watches it return; see `GradientInspector.verify`."""
        if self._jitted is None or self._programs is None:
            raise CannotWatch(self.step, self.trouble.partition(".\n")[0])
        program = self._programs.make(self.settings.statistics, bool(self.settings.updates), in_run=False)
        return verify(self._jitted, program, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "step" not in self.__dict__:
            raise AttributeError(name)
        if name in ("lower", "trace") and not self.trouble:
            self._warn_once(
                "lower",
                f"{self._name}.{name} returns the plain step: nothing is measured when that is compiled and "
                "called. Call the watched step itself, whose first call compiles it.",
                stacklevel=3,
            )
        return getattr(self.step, name)

    def __get__(self, instance, owner=None):
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<watched {printable_lines(repr(self.step))}>"


# Agree among the processes of a distributed run, through JAX's coordinator, from which call on a step is measured.

GRACE_S = 1.0  # that the first call waits for the others, so that it is measured where all watch
JOIN_S = 10.0  # after the first call: how long to wait for all processes to watch, while the loop goes on
_ANSWER_S = 60.0  # for the threads of processes that watch the step
_LOOK_MS = 200  # how often a thread checks whether Python ends

_n_asked: Counter[str] = Counter()  # by the name of a step
_unmeasured: set[ProcessConsensus] = set()  # of steps without a measurement, of which the user does not know why


class ProcessConsensus:
    """Whether all processes of a distributed run watch a step with the same settings, and from which call on.

    A thread of each process asks the coordinator, not the devices, and answers for its process: a loop goes on
    unmeasured until all watch, and then waits only for their threads. So it cannot hang where a process never watches.
    """

    def __init__(self, step: Any, answer: str, newest: int) -> None:
        self.step_name = f"{getattr(step, '__module__', '')}.{getattr(step, '__qualname__', '')}"
        self._answer, self._newest = answer, newest
        self.why_not = ""  # the same in each process; empty if the step is measured, or if that is open
        self.notes: tuple[str, ...] = ()  # why the first calls were not measured, and from which one on others are
        self._lock, self._settled = Lock(), threading.Event()
        self._from: int | None = None  # what this process has proposed: no earlier call is left to be measured
        self.start = newest + 1
        self._called_at: float | None = None
        self.has_missed = False
        self._thread: threading.Thread | None = None
        self._begin()

    def measures(self, number: int) -> bool:
        """Whether the call of this number, which is about to run, is measured in all processes."""
        if self._called_at is None:
            missing = why_missing(missing_names(jax_private.TO_COMPARE_PROCESSES))
            if missing and jax.process_count() > 1:
                self.why_not = missing
            elif missing:
                warn_of_missing(jax_private.TO_COMPARE_PROCESSES, stacklevel=4)
            self._begin()
            self._called_at = time.monotonic()
            if self._thread is None:
                self._from = self.start
                self._settled.set()
            self._settled.wait(GRACE_S)
        with self._lock:
            is_open = self._from is None
            self._newest = max(self._newest, number) if is_open else self._newest
        if not is_open:
            self._settled.wait()
            is_measured = number >= self.start and not self.why_not
            if is_measured or self.why_not:
                _unmeasured.discard(self)
            if is_measured:
                if self.has_missed:
                    self.notes = (*self.notes, f"all processes watch it from step {number} on.")
                return True
        self.has_missed = True
        self.notes = ("not measured as long as not all processes watch it.",)
        return False

    def _begin(self) -> None:
        """Ask the other processes, if there are any by now."""
        state = jax_private.distributed_state()
        if state is None or self._thread is not None:
            return
        self._client, self._me, self._n_processes = state.client, state.process_id, state.num_processes
        self._question = f"treeviz/{self.step_name}/{_n_asked[self.step_name]}"
        _n_asked[self.step_name] += 1
        _unmeasured.add(self)
        self._thread = threading.Thread(target=self._settle, name="treeviz consensus")
        self._thread.start()

    def _settle(self) -> None:
        try:
            why, proposed = self._others_differ(), list[str]()
            if not why:
                with self._lock:
                    self._from = self._newest + 1
                self._tell(f"from/{self._me}", str(self._from))
                until = time.monotonic() + _ANSWER_S
                proposed = [self._asked(f"from/{i}", until) for i in range(self._n_processes)]
                silent = [i for i, options in enumerate(proposed) if not options]
                why = f"process {silent[0]} does not answer" if silent else ""
            decision = why or f"from {max(map(int, proposed))}"
            try:  # the first decision is that of all, so that none runs what another has given up
                self._tell("decision", decision)
            except Exception:
                others_decision = self._asked("decision", time.monotonic() + _ANSWER_S)
                decision = others_decision or why or "the processes cannot be compared"
            if decision.startswith("from "):
                self.start = int(decision.removeprefix("from "))
            else:
                self.why_not = decision
                if self._from is None:
                    self._tell(f"from/{self._me}", "0")  # so that one that watches later does not wait
        except Exception as error:
            cannot = f"the processes cannot be compared ({type(error).__name__}: {error})"
            self.why_not = self.why_not or cannot
        finally:
            with self._lock:
                self._from = self.start
            self._settled.set()

    def _others_differ(self) -> str:
        """Wait until all processes watch the step with the same settings, and return "", or why they do not."""
        self._tell(f"watched/{self._me}", self._answer)
        for process in range(self._n_processes):
            their_options = self._asked(f"watched/{process}", None)
            if not their_options and (self._called_at is None or time.monotonic() < self._called_at + JOIN_S):
                return f"process {process} had not watched this step when the coordinator was last asked"
            if not their_options:
                first = f"its first call in process {self._me}"
                return f"process {process} did not watch this step within {JOIN_S:g} s of {first}"
            if their_options != self._answer:
                return f"process {process} watches it with {their_options}, process {self._me} with {self._answer}"
        return ""

    def _tell(self, key: str, value: str) -> None:
        self._client.key_value_set(f"{self._question}/{key}", value)

    def _asked(self, key: str, until: float | None) -> str:
        """The answer of a process, or "" after this time; None: some time after the first call."""
        while True:
            try:
                return self._client.blocking_key_value_get(f"{self._question}/{key}", _LOOK_MS)
            except RuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):  # the coordinator has ended, or jax.distributed.shutdown()
                    return ""
            called_at = self._called_at
            end = until if until is not None else None if called_at is None else called_at + JOIN_S
            if (end is not None and time.monotonic() > end) or not threading.main_thread().is_alive():
                return ""


@atexit.register  # when the threads have ended
def _tell_what_is_unmeasured() -> None:
    """Warn of steps whose run has ended before it was known why nothing was measured of their calls."""
    for consensus in [x for x in _unmeasured if x.has_missed]:
        why = consensus.why_not or f"all processes watch it from step {consensus.start} on"
        name = consensus.step_name.rpartition(".")[2]
        warnings.warn(
            f"watch: no call of `{name}` was measured: {why}. All processes must watch it in the same way; one of them "
            "may save or show it.",
            RuntimeWarning,
            stacklevel=2,
        )
