"""Watch what a step compiles: when a call traced or compiled again, say why, by leaf."""

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
    Part,
    compare_leaves,
    compare_places,
    compare_types,
    compare_values,
    jit_type,
)
from treeviz.steps.tracing.jitted import (
    JittedStep,
    Make,
    dynamic_arguments,
    function_of,
    is_jitted,
    is_partial,
    jitted_step,
    unwraps,
)
from treeviz.steps.tracing.watch import Watched
from treeviz.tree.describers import load_libraries
from treeviz.tree.text import error_text, guarded, printable_lines, value_text

if TYPE_CHECKING:
    from treeviz.steps.compiles.step_arguments import StepArguments


# What a call looks like to `jax.jit`, and how two calls differ.


class Argument(NamedTuple):
    """An argument of a call.

    Attributes:
      how: "by position" or "by keyword".
      is_traced: Whether it is known that the program takes its Python numbers, too, whatever their values.
    """

    how: str
    type: JitType
    is_traced: bool = False


class Call(NamedTuple):
    """What a call looks like to `jax.jit`; it keeps no array alive.

    Attributes:
      arguments: By name.
      settings: JAX's options in the thread that called, and its abstract mesh.
    """

    arguments: dict[str, Argument]
    settings: dict[str, Any]


def describe_call(step: Callable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Call, dict[str, Any]]:
    """A call, and its arguments by name."""
    named = named_arguments(step, args, kwargs)
    traced, static_numbers = guarded(lambda: _traced(step, args, kwargs), lambda _: (frozenset(), False))
    arguments = {
        name: Argument(
            "by position" if i < len(args) else "by keyword",
            jit_type(value, static_numbers),
            (i, name)[i >= len(args)] in traced,
        )
        for i, (name, value) in enumerate(named.items())
    }
    return Call(arguments, _settings()), named


def _traced(step: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[frozenset[int | str], bool]:
    """The positions and names of the arguments that `jax.jit` was not told are static; and whether all numbers are."""
    n = len(args)
    step, args, kwargs = called_inside(step, args, kwargs)
    if not is_jitted(step):
        load_libraries()
        found = jitted_step(step)
        if not found.same_arguments:
            return frozenset(), found.static_numbers
        step = found.jitted
    positions, names = dynamic_arguments(step, args, kwargs)
    return frozenset([*(i + n - len(args) for i in positions), *names]), False


def _settings() -> dict[str, Any]:
    settings = {name: getattr(jax.config, name, None) for name in guarded(lambda: [*jax.config.values], lambda _: [])}
    if hasattr(jax.sharding, "get_abstract_mesh"):  # not in jax 0.4.36
        settings["the mesh"] = jax.sharding.get_abstract_mesh()
    return settings


class Gap(NamedTuple):
    """How a call differs from an earlier one.

    Attributes:
      types: In structure, types, and how arguments are passed.
      values: In the values of Python objects, of which only static arguments matter.
      settings: In JAX's options.
      places: In where arrays lie.
    """

    types: Differences
    values: Differences
    settings: Differences
    places: Differences

    @property
    def size(self) -> tuple[int, int]:
        return len(self.types), len(self.values) + len(self.settings) + len(self.places)

    def why(self, is_traced: bool) -> Differences:
        """The first reason for which the earlier program does not do."""
        # On several devices, where an array lies is part of its type since jax 0.7 or so.
        reasons = self if is_traced else (self.places, self.settings)
        return next(filter(None, reasons), Differences())


def compare_calls(earlier: Call, call: Call, named: dict[str, Any]) -> Gap:
    """Compare two calls; `named` are the arguments of the later one."""
    types, values, places = (
        _compare(earlier, call, named, leaves) for leaves in (compare_leaves, compare_values, compare_places)
    )
    return Gap(types, values, _compare_settings(earlier, call), places)


def _compare(earlier: Call, call: Call, named: dict[str, Any], leaves: CompareLeaves) -> Differences:
    found = Differences()
    for name, argument in call.arguments.items():
        before = earlier.arguments.get(name)
        if before is None:
            found.append(Difference(name, "extra", "", Part(*argument.type).text))
            continue
        if before.how != argument.how:
            found.append(Difference(name, "argument", before.how, argument.how, "pass it in one way"))
        if leaves is compare_values and argument.is_traced:
            continue
        differ = compare_types(named[name], before.type, argument.type, is_right=True, leaves=leaves)
        found += [Difference(f"{name}{path}", kind, *words) for path, (kind, *words) in differ]  # type: ignore[arg-type]
    gone = earlier.arguments.keys() - call.arguments.keys()
    found += [Difference(name, "missing", Part(*earlier.arguments[name].type).text, "") for name in sorted(gone)]
    return found


def _compare_settings(earlier: Call, call: Call) -> Differences:
    a, b = earlier.settings, call.settings
    differ = [name for name in b if guarded(lambda name=name: bool(a.get(name) != b[name]), lambda _: False)]
    return Differences(
        Difference(name, "setting", value_text(a.get(name), 60), value_text(b[name], 60)) for name in differ
    )


# Hear, in each thread, when JAX traces and compiles: through `jax.monitoring`, which is public.

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


_logger = logging.getLogger("treeviz")
_MOST_CALLS = 16  # with which a new one is compared
_MOST_KEPT = 1000  # compilations
_MOST_LINES = 20  # in the log, of one step
_MOST_TOLD = 5  # differences in a line of the log

_DEEPEST = 3  # functions within functions, which may hold themselves
_PLAIN = {id(cls) for cls in (bool, int, float, complex, str, bytes, type(None))}
_ELSE = {
    "first": "the first time",
    "new function": "since the function is a new object, made by the same lines as one that was compiled for such "
    "arguments: jax.jit keeps programs by function, so make it once, outside the loop",
    "same": "though nothing in its arguments differs: after jax.clear_caches(), or in another context of JAX",
}


@dataclass(frozen=True)
class Compiled:
    """A call that traced or compiled.

    Attributes:
      call: The number of the call, from 1.
      why: "first"; "retrace": the function was traced again, and compiled; "recompile": only compiled again, where
        JAX itself says nothing; "new function"; "same": nothing in the arguments differs.
      differences: From the nearest earlier call to this one.
      seconds: That tracing and compiling took.
    """

    step: str
    call: int
    why: str
    differences: Differences
    seconds: float

    def __str__(self) -> str:
        done = "compiled again" if self.why == "recompile" else "traced and compiled again"
        start = (
            f"call {self.call} of `{self.step}` {'compiled' if self.why == 'first' else done} in {self.seconds:.2g} s"
        )
        if self.why in _ELSE and not self.differences:
            return f"{start}, {_ELSE[self.why]}"
        told = [f"{each.path}: {_text(each)}" for each in self.differences[:_MOST_TOLD]]
        n_more = len(self.differences) - _MOST_TOLD
        return f"{start}: {'; '.join(told)}{f'; … {n_more:,} more' if n_more > 0 else ''}"


def _text(each: Difference) -> str:
    if each.kind in ("missing", "extra"):
        return f"gone: {each.left}" if each.kind == "missing" else f"added: {each.right}"
    return each.text


class CompileLog(list[Compiled]):
    """The calls of a step that compiled; `print` shows a line for each."""

    def __repr__(self) -> str:
        return "\n".join(map(str, self)) or "nothing compiled"

    __str__ = __repr__


def watch_compiles(step: Callable) -> CompileWatch | Watched:
    """Wrap a jitted step so that it says why a call traced or compiled again, and which leaf is to blame.

        update = tv.watch_compiles(update)
        params = update(params, x, y)
        print(update.compiles)  # call 1 of `update` compiled in 0.03 s, the first time

    A call that compiles again is a line in the log, from the logger "treeviz", and an entry in `compiles`: the nearest
    earlier call, and what differs in structure, static values, shapes, dtypes, weak types, in how an argument is
    passed, or in where it lies: of an array that has become committed to a device, `jax_explain_cache_misses` says
    nothing. A function that is made anew for each call is recognized by its code.

    `update.arguments(params, x, y)` shows by leaf which donated buffers the program reuses, which are donated in vain
    and why, and what it never reads; and which classes make flattening the arguments slow.

    A call that compiles nothing takes about 1 µs longer. What the step donates is donated, `lower`, `trace`,
    `eval_shape` and `clear_cache` are the step's, and `inspector.watch` takes it: then the programs that measure are
    watched, too. It listens through `jax.monitoring`, whose listeners are global; compilations of other threads do not
    count. What it keeps of a call is its types, no arrays.

    Args:
      step: The result of `jax.jit`, or of a library's function like it, or a bound method or `functools.partial` of
        one; or the result of `inspector.watch`, which is returned itself.

    Raises:
      TypeError: The step is not jitted: what Python calls op by op compiles again and again for reasons of its own.
    """
    if not isinstance(step, Watched) and not hasattr(called_inside(step, (), {})[0], "lower"):
        raise TypeError(f"watch_compiles: `{_name(step)}` is not jitted: tv.watch_compiles(jax.jit({_name(step)}))")
    trouble = why_deaf()
    if trouble:
        warnings.warn(f"watch_compiles: the step runs, but is not watched: {trouble}", RuntimeWarning, stacklevel=2)
    if isinstance(step, CompileWatch):
        return step  # a cell may be run again
    if isinstance(step, Watched):
        if isinstance(step.step, CompileWatch):
            return step
        inside = CompileWatch(step.step)
        step.run(inside, None if step.trouble else jitted_step(inside))
        return step
    return CompileWatch(step)


def _name(step: Any) -> str:
    function = step.func if is_partial(step) else step
    return str(getattr(function, "__name__", type(function).__name__))


class CompileWatch:
    """A step whose compilations are watched: called like the step, and with its attributes.

    Attributes:
      step: The step itself.
      compiles: The calls that compiled, the first 1,000; `print` shows a line for each.
    """

    def __init__(self, step: Callable, of: CompileWatch | None = None) -> None:
        plain = step if of is None else of.step
        functools.update_wrapper(self, plain, updated=())
        self.__wrapped__ = function_of(plain)
        if is_partial(plain):  # it has no name
            self.__name__ = _name(plain)
        self.step, self._of = step, of
        self.compiles = CompileLog() if of is None else of.compiles
        self._numbers = itertools.count(1) if of is None else of._numbers
        self._number = 0  # of the newest call
        self._calls: list[Call] = []  # the first, and those that compiled

    def __call__(self, /, *args, **kwargs):
        n = here.n
        self._number = next(self._numbers)
        out = self.step(*args, **kwargs)
        if here.n != n or not self._calls:
            self._explain(n, args, kwargs)
        return out

    def _explain(self, n: int, args: tuple, kwargs: dict[str, Any]) -> None:
        """Say why this call compiled. What goes wrong here is told, and not raised: the step has run."""
        try:
            compiled = self._compiled(n, args, kwargs)
            if compiled is None:
                return
            if len(self.compiles) < _MOST_KEPT:
                self.compiles.append(compiled)
            n_lines = sum(each.why != "first" for each in self.compiles)
            if compiled.why != "first" and n_lines <= _MOST_LINES:
                last = "; further ones are in step.compiles only" if n_lines == _MOST_LINES else ""
                _logger.warning("%s", printable_lines(f"{compiled}{last}"))
        except Exception as error:
            self._calls.append(Call({}, {}))
            _logger.warning("watch_compiles: cannot tell why `%s` compiled: %s", _name(self), error_text(error))

    def _compiled(self, n: int, args: tuple, kwargs: dict[str, Any]) -> Compiled | None:
        """What this call compiled; None if nothing, as a first call for which the step was compiled before."""
        events = events_since(n)
        is_traced = any(event.kind == "trace" for event in events)
        # Functions within the step are traced within its own tracing.
        seconds = max((each.seconds for each in events if each.kind == "trace"), default=0.0)
        seconds += sum(each.seconds for each in events if each.kind != "trace")
        call, named = describe_call(self, args, kwargs)
        if not events:
            self._calls.append(call)
            return None
        why, differences = "first", Differences()
        if self._calls:
            gaps = [compare_calls(each, call, named) for each in reversed(self._calls)]
            differences = min(gaps, key=lambda gap: gap.size).why(is_traced)
            why = "retrace" if is_traced else "recompile"
            why = why if differences else "same"
        elif not self.compiles and self._of is None and self._is_made_anew(call, named):
            why = "new function"
        self._calls = [*self._calls[1 - _MOST_CALLS :], call]
        name = _name(self) if self._of is None else f"{_name(self)}, inspected"
        return Compiled(name, self._number, why, differences, seconds)

    def _is_made_anew(self, call: Call, named: dict[str, Any]) -> bool:
        """Whether another function with the same code, and the like around it, was compiled for such a call."""
        function = getattr(self.step, "__wrapped__", None)
        if not isinstance(function, types.FunctionType):
            return False
        others, around = _made_by.setdefault(function.__code__, []), _around(function)
        is_anew = any(
            ref() is not function and of == around and not compare_calls(other, call, named).why(True)
            for ref, other, of in others
        )
        others[:] = [*others[1 - _MOST_CALLS :], (weakref.ref(function), call, around)]
        return is_anew

    def arguments(self, *args: Any, **kwargs: Any) -> StepArguments:
        """Show what the compiled step does with each leaf of its arguments, and what flattening them costs.

            view = tv.watch_compiles(update).arguments(params, x, y)
            print(view)
            view.in_vain        # {"params['b']": "no result is float32[4], result['b'] is bfloat16[4]"}
            view.never_read     # jax.jit drops these, so they are not donated either

        Compiles the step for these arguments, if JAX has not kept that from a call, and does not run it: deleted arrays
        will do, and for `jax.jit` trees of `jax.ShapeDtypeStruct`. What is reused is read from the text of the program.
        Of a step of `equinox.filter_jit` or `flax.nnx.jit`, the paths are those in its own arguments and results, and
        of what `nnx.jit` changes in place, in the arguments; what flattening costs is not known of `nnx.jit`.

        Raises:
          TypeError: The step is jitted by a library of which it is not known what it passes on to `jax.jit`, or by
            Equinox, for which shapes are static.
        """
        from treeviz.steps.compiles.step_arguments import step_arguments

        return step_arguments(self.step, args, kwargs)

    def beside(self, program: Callable) -> CompileWatch:
        """Watch a program that runs in place of the step; what it compiles is in the same list."""
        return CompileWatch(program, self)

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


# The calls for which functions of the same code were compiled: a new function in each turn of a loop has the same code.
_made_by: weakref.WeakKeyDictionary[types.CodeType, list[tuple[weakref.ref, Call, tuple]]] = weakref.WeakKeyDictionary()


def _around(function: types.FunctionType, depth: int = _DEEPEST) -> tuple:
    """What tells functions of the same lines apart: the functions, numbers and names in their closures and defaults."""
    cells = [guarded(lambda cell=cell: cell.cell_contents, lambda _: None) for cell in function.__closure__ or ()]
    found: list[Any] = []
    for each in (*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        if isinstance(each, types.FunctionType):  # by its hash: the code itself would keep what it is a key of
            found.append((hash(each.__code__), _around(each, depth - 1) if depth else ()))
        else:
            found.append((id(type(each)), each if id(type(each)) in _PLAIN else None))
    return tuple(found)


@unwraps("treeviz")
def _unwrap(step: Any) -> JittedStep | None:
    """For `inspector.watch`: the programs that it runs in place of the step are watched, too."""
    if not isinstance(step, CompileWatch):
        return None
    inner = jitted_step(step.step)

    def around(make: Make) -> Callable:
        return step.beside(inner.around(make))

    return inner._replace(step=step, around=around)
