"""Watch what a step compiles, and log for each retrace and recompile which leaf caused it."""

from __future__ import annotations

import functools
import itertools
import logging
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
from jax import monitoring

from treeviz.analysis.compare.difference import Difference, Differences
from treeviz.steps.compiles.forecast import called_inside, named_arguments
from treeviz.steps.compiles.types import (
    CompareLeaves,
    JitType,
    compare_leaves,
    compare_places,
    compare_types,
    compare_values,
    jit_type,
)
from treeviz.steps.tracing.jitted import (
    JittedStep,
    dynamic_arguments,
    function_of,
    is_jitted,
    is_partial,
    jitted_step,
    unwraps,
)
from treeviz.steps.tracing.watch import Watched
from treeviz.tree.describers import load_libraries
from treeviz.tree.text import error_text, guarded, printable_lines, step_name, value_text

if TYPE_CHECKING:
    from treeviz.steps.compiles.step_arguments import StepArguments


# A call as `jax.jit` sees it, and the differences between two calls.


class Argument(NamedTuple):
    passed: str  # "by position" or "by keyword"
    type: JitType
    is_traced: bool = False  # whether its Python numbers are known to be traced, so that their values do not matter


class Call(NamedTuple):
    """A call as `jax.jit` sees it. Keeps no array alive."""

    arguments: dict[str, Argument]  # the arguments by name
    settings: dict[str, Any]  # JAX's options and abstract mesh in the calling thread


def describe_call(step: Callable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Call, dict[str, Any]]:
    named = named_arguments(step, args, kwargs)
    traced, static_numbers = guarded(lambda: _traced(step, args, kwargs), lambda _: (frozenset(), False))
    arguments = {}
    for i, (name, value) in enumerate(named.items()):
        passed, key = ("by position", i) if i < len(args) else ("by keyword", name)
        arguments[name] = Argument(passed, jit_type(value, static_numbers), key in traced)
    settings = {name: getattr(jax.config, name, None) for name in guarded(lambda: [*jax.config.values], lambda _: [])}
    if hasattr(jax.sharding, "get_abstract_mesh"):  # not in jax 0.4.36
        settings["the mesh"] = jax.sharding.get_abstract_mesh()
    return Call(arguments, settings), named


def _traced(step: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[frozenset[int | str], bool]:
    """The positions and names of the arguments that are not static; and whether all Python numbers are static."""
    n = len(args)
    step, args, kwargs = called_inside(step, args, kwargs)
    if not is_jitted(step):
        load_libraries()
        jitted = jitted_step(step)
        if not jitted.same_arguments:
            return frozenset(), jitted.static_numbers
        step = jitted.jitted
    positions, names = dynamic_arguments(step, args, kwargs)
    return frozenset([*(i + n - len(args) for i in positions), *names]), False


class CallDifference(NamedTuple):
    types: Differences  # structure, types, and positional or keyword passing
    values: Differences  # values of Python objects; only those of static arguments matter
    settings: Differences  # JAX's options
    places: Differences  # placement of arrays

    @property
    def size(self) -> tuple[int, int]:
        return len(self.types), len(self.values) + len(self.settings) + len(self.places)

    def why(self, is_traced: bool) -> Differences:
        """The first kind of difference for which the earlier program cannot be reused."""
        # On several devices, an array's placement is part of its type since jax 0.7 or so.
        reasons = self if is_traced else (self.places, self.settings)
        return next(filter(None, reasons), Differences())


def compare_calls(earlier: Call, call: Call, named: dict[str, Any]) -> CallDifference:
    """Compare two calls; `named` has the arguments of the later one."""
    kinds = compare_leaves, compare_values, compare_places
    types, values, places = (_compare(earlier, call, named, leaves) for leaves in kinds)
    pairs = [(name, earlier.settings.get(name), value) for name, value in call.settings.items()]
    settings = Differences(
        Difference(name, "setting", value_text(before, 60), value_text(after, 60))
        for name, before, after in pairs
        if guarded(lambda before=before, after=after: bool(before != after), lambda _: False)
    )
    return CallDifference(types, values, settings, places)


def _compare(earlier: Call, call: Call, named: dict[str, Any], leaves: CompareLeaves) -> Differences:
    differences = Differences()
    for name, argument in call.arguments.items():
        before = earlier.arguments.get(name)
        if before is None:
            differences.append(Difference(name, "extra", "", argument.type.text))
            continue
        if before.passed != argument.passed:
            differences.append(Difference(name, "argument", before.passed, argument.passed, "pass it in one way"))
        if leaves is compare_values and argument.is_traced:
            continue
        findings = compare_types(named[name], before.type, argument.type, is_right=True, leaves=leaves)
        differences += [Difference(f"{name}{path}", kind, *words) for path, (kind, *words) in findings]  # type: ignore[arg-type]
    for name in sorted(earlier.arguments.keys() - call.arguments.keys()):
        differences.append(Difference(name, "missing", earlier.arguments[name].type.text, ""))
    return differences


# Events of tracing and compiling in each thread, from `jax.monitoring`, which is public.

_MOST = 10_000  # events kept per thread


class _ThreadEvents(threading.local):
    """The events of this thread. JAX traces and compiles in the calling thread."""

    n = 0  # events so far

    def __init__(self) -> None:
        self.events: list[tuple[str, float]] = []  # the newest: "trace", "lower" or "compile", and the seconds


here = _ThreadEvents()
_KINDS = {
    "jaxpr_trace_duration": "trace",
    "jaxpr_to_mlir_module_duration": "lower",
    "backend_compile_duration": "compile",
}


def _on_event(event: str, duration_secs: float, **_: object) -> None:
    kind = _KINDS.get(event.rpartition("/")[2])
    if kind is not None:
        here.n += 1
        here.events.append((kind, duration_secs))
        if len(here.events) > _MOST:
            del here.events[: _MOST // 2]


def events_since(n: int) -> list[tuple[str, float]]:
    return here.events[max(0, len(here.events) - (here.n - n)) :]


@functools.cache
def listener_problem() -> str:
    """Register the listener, once per process: 1 µs per compilation. Returns why this JAX sends no events, or ""."""
    try:
        monitoring.register_event_duration_secs_listener(_on_event)
        n_before = here.n
        jax.jit(lambda: 0).lower()
        if {kind for kind, _ in events_since(n_before)} >= {"trace", "lower"}:
            return ""
    except Exception as error:
        return f"jax {jax.__version__} cannot be listened to: {type(error).__name__}"
    return f"jax {jax.__version__} does not tell jax.monitoring when it traces"


_logger = logging.getLogger("treeviz")
_MOST_CALLS = 16  # earlier calls that a new call is compared with
_MOST_KEPT = 1000  # compilations
_MOST_LINES = 20  # log lines of one step
_MOST_SHOWN = 5  # differences in a log line

_DEEPEST = 3  # levels of functions in closures, which may be recursive
_PLAIN_IDS = {id(cls) for cls in (bool, int, float, complex, str, bytes, type(None))}
_WHY_TEXTS = {
    "first": "the first time",
    "new function": "since the function is a new object, made by the same lines as one that was compiled for such "
    "arguments: jax.jit keeps programs by function, so make it once, outside the loop",
    "same": "though nothing in its arguments differs: after jax.clear_caches(), or in another context of JAX",
}


@dataclass(frozen=True)
class Compiled:
    """A call that traced or compiled."""

    step: str
    call: int  # its number, from 1
    # "first"; "retrace": traced and compiled again; "recompile": only compiled again, which JAX does not report; "new
    # function"; "same": nothing in the arguments differs.
    why: str
    differences: Differences  # from the most similar earlier call to this one
    seconds: float  # for tracing and compiling

    def __str__(self) -> str:
        done = "compiled again" if self.why == "recompile" else "traced and compiled again"
        done = "compiled" if self.why == "first" else done
        start = f"call {self.call} of `{self.step}` {done} in {self.seconds:.2g} s"
        if self.why in _WHY_TEXTS and not self.differences:
            return f"{start}, {_WHY_TEXTS[self.why]}"
        texts = {"missing": "gone: {0.left}", "extra": "added: {0.right}"}
        shown = [f"{x.path}: {texts.get(x.kind, '{0.text}').format(x)}" for x in self.differences[:_MOST_SHOWN]]
        n_more = len(self.differences) - _MOST_SHOWN
        return f"{start}: {'; '.join(shown)}{f'; … {n_more:,} more' if n_more > 0 else ''}"


class CompileLog(list[Compiled]):
    """The calls of a step that compiled; `print` shows one line per call."""

    def __repr__(self) -> str:
        return "\n".join(map(str, self)) or "nothing compiled"

    __str__ = __repr__


def watch_compiles(step: Callable) -> CompileWatch | Watched:
    """Wrap a jitted step so that it logs every retrace and recompile, with the leaf that caused it.

        update = tv.watch_compiles(update)
        params = update(params, x, y)
        print(update.compiles)  # call 1 of `update` compiled in 0.03 s, the first time

    A call that compiles again adds a log line, from the logger "treeviz", and an entry in `compiles`: the differences
    from the most similar earlier call in structure, static values, shapes, dtypes, weak types, positional or keyword
    passing, and placement. Arrays that became committed to a device, which `jax_explain_cache_misses` does not report,
    are included. A function that is created anew for each call is recognized by its code.

    `update.arguments(params, x, y)` shows for each leaf whether the program reuses its donated buffer, why not, and
    whether it reads the leaf; and which classes make flattening the arguments slow.

    A call that compiles nothing takes about 1 µs longer. Donation works as before, and `lower`, `trace`, `eval_shape`
    and `clear_cache` are those of the step. `inspector.watch` accepts the result; then the instrumented programs are
    watched too. Compilations are observed through `jax.monitoring`, whose listeners are global; those of other threads
    are not counted. Types of calls are kept, but no arrays.

    Args:
      step: The result of `jax.jit`, of a library's counterpart, or a bound method or `functools.partial` of one; or the
        result of `inspector.watch`, which is returned itself.

    Raises:
      TypeError: The step is not jitted. A function that Python runs op by op compiles many small programs.
    """
    if not isinstance(step, Watched) and not hasattr(called_inside(step, (), {})[0], "lower"):
        raise TypeError(f"watch_compiles: `{_name(step)}` is not jitted: tv.watch_compiles(jax.jit({_name(step)}))")
    problem = listener_problem()
    if problem:
        warnings.warn(f"watch_compiles: the step runs, but is not watched: {problem}", RuntimeWarning, stacklevel=2)
    if isinstance(step, CompileWatch):
        return step  # a notebook cell may run again
    if not isinstance(step, Watched):
        return CompileWatch(step)
    if not isinstance(step.step, CompileWatch):
        inside = CompileWatch(step.step)
        step.run(inside, None if step.trouble else jitted_step(inside))
    return step


def _name(step: Any) -> str:
    return step_name(step.func if is_partial(step) else step)


class CompileWatch:
    """A step whose compilations are watched. It is called like the step and has its attributes.

    Attributes:
      step: The step itself.
      compiles: The first 1,000 calls that compiled; `print` shows one line per call.
    """

    def __init__(self, step: Callable, parent: CompileWatch | None = None) -> None:
        original = step if parent is None else parent.step
        functools.update_wrapper(self, original, updated=())
        self.__wrapped__ = function_of(original)
        if is_partial(original):  # it has no name
            self.__name__ = _name(original)
        self.step, self._of = step, parent
        self.compiles = CompileLog() if parent is None else parent.compiles
        self._numbers = itertools.count(1) if parent is None else parent._numbers
        self._number = 0  # the number of the newest call
        self._calls: list[Call] = []  # the first call, and those that compiled

    def __call__(self, /, *args, **kwargs):
        n = here.n
        self._number = next(self._numbers)
        out = self.step(*args, **kwargs)
        if here.n != n or not self._calls:
            try:
                if (compiled := self._compiled(n, args, kwargs)) is not None:
                    self._report(compiled)
            except Exception as error:  # the step has run
                self._calls.append(Call({}, {}))
                _logger.warning("watch_compiles: cannot tell why `%s` compiled: %s", _name(self), error_text(error))
        return out

    def _report(self, compiled: Compiled) -> None:
        if len(self.compiles) < _MOST_KEPT:
            self.compiles.append(compiled)
        n_lines = sum(entry.why != "first" for entry in self.compiles)
        if compiled.why != "first" and n_lines <= _MOST_LINES:
            last = "; further ones are in step.compiles only" if n_lines == _MOST_LINES else ""
            _logger.warning("%s", printable_lines(f"{compiled}{last}"))

    def _compiled(self, n: int, args: tuple, kwargs: dict[str, Any]) -> Compiled | None:
        """The compilation of this call; None if nothing compiled, as in a first call of a compiled step."""
        events = events_since(n)
        traces = [seconds for kind, seconds in events if kind == "trace"]
        # Tracing the step includes tracing the functions inside it.
        seconds = max(traces, default=0.0) + sum(seconds for kind, seconds in events if kind != "trace")
        call, named = describe_call(self, args, kwargs)
        if not events:
            self._calls.append(call)
            return None
        why, differences = "first", Differences()
        if self._calls:
            gaps = [compare_calls(earlier, call, named) for earlier in reversed(self._calls)]
            differences = min(gaps, key=lambda gap: gap.size).why(bool(traces))
            why = "same" if not differences else "retrace" if traces else "recompile"
        elif not self.compiles and self._of is None and self._is_made_anew(call, named):
            why = "new function"
        self._calls = [*self._calls[1 - _MOST_CALLS :], call]
        name = _name(self) if self._of is None else f"{_name(self)}, inspected"
        return Compiled(name, self._number, why, differences, seconds)

    def _is_made_anew(self, call: Call, named: dict[str, Any]) -> bool:
        """Whether another function with the same code and similar closure was compiled for such a call."""
        function = getattr(self.step, "__wrapped__", None)
        if not isinstance(function, types.FunctionType):
            return False
        known, key = _calls_of.setdefault(function.__code__, []), _closure_key(function)
        others = (earlier for ref, earlier, other_key in known if ref() is not function and other_key == key)
        is_anew = any(not compare_calls(earlier, call, named).why(True) for earlier in others)
        known[:] = [*known[1 - _MOST_CALLS :], (weakref.ref(function), call, key)]
        return is_anew

    def arguments(self, *args: Any, **kwargs: Any) -> StepArguments:
        """Show which argument buffers the compiled step reuses, and the cost of flattening the arguments.

            view = tv.watch_compiles(update).arguments(params, x, y)
            print(view)
            view.in_vain        # {"params['b']": "no result is float32[4], result['b'] is bfloat16[4]"}
            view.never_read     # jax.jit drops these, so they are not donated either

        Compiles the step for these arguments, unless JAX has it in its cache, and does not run it. Deleted arrays are
        accepted, and for `jax.jit` also trees of `jax.ShapeDtypeStruct`. The reuse is read from the text of the
        program. For `equinox.filter_jit` and `flax.nnx.jit`, paths refer to the step's own arguments and results; for
        objects that `nnx.jit` changes in place, to the arguments. The cost of flattening is unknown for `nnx.jit`.

        Raises:
          TypeError: An unknown library jitted the step; or Equinox did and shapes were passed, which are static for it.
        """
        from treeviz.steps.compiles.step_arguments import step_arguments

        return step_arguments(self.step, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "step" not in self.__dict__:
            raise AttributeError(name)
        if name == "clear_cache":
            self._calls.clear()
        return getattr(self.step, name)

    def __get__(self, instance, owner=None):
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<{printable_lines(repr(self.step))}, whose compilations are watched>"


# Calls for which functions with the same code were compiled, such as a function created in each iteration of a loop.
_Known = list[tuple[weakref.ref, Call, tuple]]  # the function, the call, and the key of the closure
_calls_of: weakref.WeakKeyDictionary[types.CodeType, _Known] = weakref.WeakKeyDictionary()


def _closure_key(function: types.FunctionType, depth: int = _DEEPEST) -> tuple:
    """A key for the closure and defaults of a function: the functions, numbers and strings in them."""
    cells = [guarded(lambda cell=cell: cell.cell_contents, lambda _: None) for cell in function.__closure__ or ()]
    parts: list[Any] = []
    for value in (*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        if isinstance(value, types.FunctionType):  # its hash: the code object would keep its own weak key alive
            parts.append((hash(value.__code__), _closure_key(value, depth - 1) if depth else ()))
        else:
            parts.append((id(type(value)), value if id(type(value)) in _PLAIN_IDS else None))
    return tuple(parts)


@unwraps("treeviz")
def _unwrap(step: Any) -> JittedStep | None:
    """For `inspector.watch`: the programs that run in place of the step are watched too, in the same list."""
    if not isinstance(step, CompileWatch):
        return None
    inner = jitted_step(step.step)
    return inner._replace(step=step, around=lambda make: CompileWatch(inner.around(make), step))
