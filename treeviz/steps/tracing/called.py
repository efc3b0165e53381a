"""Watch the jitted functions that are called in a block, wherever they were defined, if they take gradients."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import threading
import types
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from treeviz.steps.statistics import StopTraining
from treeviz.steps.tracing import jax_private
from treeviz.steps.tracing.jitted import CannotWatch, ran, receives
from treeviz.steps.tracing.watch import Watched
from treeviz.tree.text import error_text, guarded, printable_lines
from treeviz.tree.tracers import any_traced

# Loops that are called outside a jitted function, as `lax.scan` and its kin, as functions that can be jitted.

# The parameters that are functions, the body first, and those that are trees of arrays, by the loop.
_PARAMETERS = {
    "scan": (("f",), ("init", "xs")),
    "map": (("f",), ("xs",)),
    "fori_loop": (("body_fun",), ("init_val",)),
    "while_loop": (("body_fun", "cond_fun"), ("init_val",)),
}

_here = threading.local()  # .loops: those that this thread is about to trace or run, the innermost last


class Loop(NamedTuple):
    kind: str  # "scan", "map", "fori_loop" or "while_loop"
    functions: tuple[Any, ...]  # of the user, the body first
    rest: tuple[tuple[str, Any], ...]  # the other arguments, but for trees of arrays
    trees: tuple[Any, ...]

    @property
    def key(self) -> tuple | None:
        """Equal for all that run the same program; None if that is unknown."""
        try:
            hash((self.functions, self.rest))
        except TypeError:
            return None
        return self.kind, self.functions, self.rest

    @property
    def name(self) -> str:
        return getattr(self.functions[0], "__qualname__", self.kind)

    @property
    def args(self) -> tuple:
        """The arguments of `jitted`: what the functions close over would else be constants of the program."""
        return *self.trees, [[x for x in jax.tree.leaves(_cells(f)) if _is_array(x)] for f in self.functions]

    kwargs = types.MappingProxyType({})

    def jitted(self) -> Any:
        kind, functions, rest, _ = self
        (of_functions, of_trees), original = _PARAMETERS[kind], jax_private.original_of(kind)

        def run(*trees, closed_over):
            given = map(_closing_over, functions, closed_over)
            arguments = dict(zip((*of_functions, *of_trees), (*given, *trees), strict=True))
            return original(**dict(rest), **arguments)

        if kind == "scan":

            def loop(carry, xs, closed_over):
                return run(carry, xs, closed_over=closed_over)
        elif kind == "map":

            def loop(xs, closed_over):
                return run(xs, closed_over=closed_over)
        else:

            def loop(carry, closed_over):
                return run(carry, closed_over=closed_over)

        body = functions[0]
        loop.__name__, loop.__qualname__ = getattr(body, "__name__", kind), self.name
        loop.__module__ = getattr(body, "__module__", loop.__module__)
        return jax.jit(loop)


class AsJitted(BaseException):
    """Ends a loop that has traced its body; its argument runs it as a jitted function. `except Exception` misses it."""


def current() -> Loop | None:
    """The loop whose operation this thread is about to run, as far as no array is traced."""
    loop = (getattr(_here, "loops", None) or [None])[-1]
    leaves = [] if loop is None else jax.tree.leaves(loop.args)
    return None if any_traced(leaves) else loop


@functools.cache
def _seen(kind: str) -> Callable:
    original = getattr(jax.lax, kind)
    signature, (of_functions, of_trees) = inspect.signature(original), _PARAMETERS[kind]

    def call(*args, **kwargs):
        try:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given = bound.arguments
            rest = tuple((name, x) for name, x in given.items() if name not in (*of_functions, *of_trees))
            functions, trees = (tuple(given[name] for name in names) for names in (of_functions, of_trees))
            loop = Loop(kind, functions, rest, trees)
        except (TypeError, KeyError):
            return jax_private.original_of(kind)(*args, **kwargs)
        loops = _here.loops = getattr(_here, "loops", [])
        loops.append(loop)
        try:
            return jax_private.original_of(kind)(*args, **kwargs)
        except AsJitted as found:
            (run,) = found.args
        finally:
            loops.pop()
        out = run()
        return jax_private.original_of(kind)(*args, **kwargs) if out is None else out[0]

    # JAX leaves out frames of its own files where it says where the user has called something.
    code = call.__code__.replace(co_filename=inspect.unwrap(original).__code__.co_filename)
    function = types.FunctionType(code, call.__globals__, kind, None, call.__closure__)
    return functools.wraps(original)(function)


def _cells(body: Any) -> list[Any]:
    """What a function closes over; of a cell that is still empty, None."""
    cells = (body.__closure__ or ()) if isinstance(body, types.FunctionType) else ()
    return [guarded(lambda cell=cell: cell.cell_contents, lambda _: None) for cell in cells]


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array) or (isinstance(x, np.ndarray) and x.ndim > 0 and x.dtype.kind in "biufc")


def _closing_over(body: Any, arrays: list[Any]) -> Any:
    """The function with these arrays in the place of those that it closes over."""
    if not arrays:
        return body
    left, cells = iter(arrays), []
    for cell, contents in zip(body.__closure__, _cells(body), strict=True):
        leaves, tree = jax.tree.flatten(contents)
        new = [next(left) if _is_array(x) else x for x in leaves]
        is_same = all(a is b for a, b in itertools.zip_longest(new, leaves))
        cells.append(cell if is_same else types.CellType(jax.tree.unflatten(tree, new)))
    function = types.FunctionType(body.__code__, body.__globals__, body.__name__, body.__defaults__, tuple(cells))
    function.__kwdefaults__ = body.__kwdefaults__
    return function


jax_private.get_ready()

MOST_STEPS = 16  # that are watched in a block
MOST_DECIDED = 1024
LOOP = (
    "called outside a jitted function, so what is inside was traced before; call what contains it by jax.jit, as in "
    "jax.jit(lambda x: jax.lax.cond(is_so, f, g, x))(x)"
)
ALREADY = "watched, but called as it was before; call what inspector.watch gave"
_FOLLOWED = 2  # calls of a step in a block, whose results may be gradients for another
_NO_PMAP = "" if jax.__version_info__ >= (0, 8) else ", of jax.pmap"
_OURS = str(Path(__file__).parents[2])


class JittedCall(NamedTuple):
    """A call of a function that `jax.jit` gave."""

    function: Callable  # of Python
    info: Any  # JAX's record of its options
    args: tuple
    kwargs: dict[str, Any]

    @property
    def key(self) -> tuple:
        """Equal for all that `jax.jit` gives for a function and options."""
        return (self.function, *(getattr(self.info, field) for field in jax_private.OPTION_FIELDS))

    @property
    def static(self) -> tuple:
        by_number = (self.args[i] for i in self.info.static_argnums if -len(self.args) <= i < len(self.args))
        return (*by_number, *(self.kwargs.get(name) for name in self.info.static_argnames))

    @property
    def name(self) -> str:
        name = getattr(_inner(self.function), "__qualname__", type(self.function).__name__)
        return "a function of jax.pmap" if self.is_pmapped else name

    @property
    def is_pmapped(self) -> bool:
        """Whether it runs for a function that `jax.pmap` gave."""
        return getattr(self.function, "__module__", "") == jax_private.PMAPPED

    def jitted(self) -> Any:
        return jax_private.jitted_again(self.function, self.info)

    @property
    def is_loop(self) -> bool:
        """Whether it is a `lax.scan` or the like that is called outside a jitted function: JAX has traced it before."""
        is_operation = getattr(self.function, "__module__", "") == jax_private.EAGER_OPERATIONS
        return is_operation and self.name in ("scan", "while", "cond")

    @property
    def is_of_user(self) -> bool:
        """Whether neither JAX nor treeviz has made it."""
        function = _inner(self.function)
        file = getattr(getattr(function, "__code__", None), "co_filename", "")
        module = str(getattr(function, "__module__", ""))
        is_of_jax = module.partition(".")[0] in ("jax", "jaxlib") and not self.is_pmapped
        return not (is_of_jax or file.startswith(_OURS))


def _inner(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def has_transposes(call: JittedCall) -> bool:
    """Whether its program, which JAX needs anyway to run it, has operations of a backward pass."""
    from treeviz.steps.tracing.primitives import equations  # of JAX's extension API

    program = call.jitted().trace(*call.args, **call.kwargs).jaxpr
    return any("Transform(name='transpose')" in repr(eqn.source_info.name_stack) for eqn, _ in equations(program))


class _GradientSeen(BaseException):
    """Ends a trace; not an `Exception`, which the traced function might catch."""


def takes_gradients(call: JittedCall | Loop) -> bool:
    """Whether `jax.grad`, `value_and_grad` or `vjp` is called inside. Traces it once more, up to the first gradient."""

    def see(kind, tree, origins=None, name="grads"):
        if kind != "loss" and jax.tree.leaves(tree):
            raise _GradientSeen
        return tree

    try:
        with jax_private.seeing_gradients(see, "treeviz called"):
            call.jitted().trace(*call.args, **call.kwargs)
    except _GradientSeen:
        return True
    return False


class _InBlock(Watched):
    """A watched step while its inspector watches what is called: a block does not see what it calls itself."""

    def __call__(self, /, *args, **kwargs):
        with jax_private.not_taking_calls():
            return super().__call__(*args, **kwargs)


@contextlib.contextmanager
def _in_block(steps: Sequence[Watched]) -> Iterator[None]:
    for step in steps:
        step.__class__ = _InBlock
    try:
        yield
    finally:
        for step in steps:
            step.__class__ = Watched


class CalledSteps:
    """The jitted functions that a thread calls in a block: those that take gradients are watched, the others just run.

    Args:
      watch: Watches what `jax.jit` gave. `begins`: whether this is the first step of a block; `gradients`: as `watch`.
    """

    def __init__(self, watch: Callable[..., Watched], known: Iterable[Watched]) -> None:
        self.watched: list[str] = []
        self.passed: dict[str, str] = {}  # why another function is not watched, by name
        self._watch, self._known = watch, known
        self._decided: dict[tuple, Watched | None] = {}  # by function, options and static arguments
        self._steps: dict[tuple, Watched] = {}  # by function and options
        self._quick: dict[int, tuple[Any, Callable, tuple, Watched | None]] = {}  # by the id of the options
        self._used: Counter[tuple] = Counter()  # how often, in this block
        self._returned: weakref.WeakValueDictionary[int, jax.Array] = weakref.WeakValueDictionary()  # by id
        self._mark = object()
        self._trouble, self._has_warned = jax_private.why_no_calls(), False

    @contextlib.contextmanager
    def block(self) -> Iterator[CalledSteps]:
        """The block. One warning, in all, says if nothing can be watched, no step was found or a loop was passed."""
        self._used, self._quick, before = Counter(), {}, set(self._steps)
        with contextlib.ExitStack() as stack:
            if not self._trouble:
                try:
                    stack.enter_context(jax_private.taking_calls(self._take, self._mark))
                    # `current` knows the loops that are called as `jax.lax.scan` and the like.
                    stack.enter_context(jax_private.replaced(jax.lax, {kind: _seen(kind) for kind in _PARAMETERS}))
                    stack.enter_context(_in_block([step for step in self._known if type(step) is Watched]))
                except Exception as error:  # such as another signature of a private function
                    self._trouble = error_text(error)
            if self._trouble:
                self._warn(f"the block runs, but what is called in it is not watched: {self._trouble}")
            yield self
        if not self._trouble and (not self._used or {LOOP, ALREADY} & {*self.passed.values()}):
            self._warn(f"{'not all gradients were seen' if self._used else 'no step was found'}. {self}")
        self._quick = {}
        if not self._used.keys() <= before:  # what other functions close over is let go
            self._steps = {key: step for key, step in self._steps.items() if key in self._used}
        self._decided = {call_key: step for call_key, step in self._decided.items() if call_key[0] in self._steps}

    def __str__(self) -> str:
        called = [f"{', '.join(self.watched)}: watched"] if self.watched else []
        for why in dict.fromkeys(self.passed.values()):
            called.append(f"{', '.join(name for name, its in self.passed.items() if its == why)}: {why}")
        return printable_lines(
            f"Jitted functions that this thread called: {'; '.join(called) or 'none'}. Not seen are those that were "
            f"compiled ahead of time (.lower().compile()){_NO_PMAP}, and of other threads."
        )

    def _take(self, function: Callable, info: Any, args: tuple, kwargs: dict[str, Any]) -> tuple | None:
        known = self._quick.get(id(info))
        if known is not None and known[0] is info and known[1] is function:
            key, watched = known[2:]
        else:
            call = JittedCall(function, info, args, kwargs)
            if not (call.is_of_user or call.is_loop):
                return None
            try:
                call_key = call.key, call.static
                watched = self._decided[call_key] if call_key in self._decided else self._decide(call, call_key)
            except Exception as error:  # of a trace, as the call itself is about to raise
                self.passed.setdefault(call.name, error_text(error))
                return None
            key = call_key[0]
            if not call_key[1] and len(self._quick) < MOST_DECIDED:
                self._quick[id(info)] = info, function, key, watched
        if watched is None:
            return None
        self._used[key] += 1
        out = watched(*args, **kwargs)
        if self._used[key] <= _FOLLOWED:  # what gets gradients is called soon
            self._returned.update((id(x), x) for x in jax.tree.leaves(out) if isinstance(x, jax.Array))
        return (out,)

    def _decide(self, call: JittedCall, call_key: tuple) -> Watched | None:
        """The call's function, watched; None if it is to run as it is."""
        gradients, why_not = None, ""
        known = next((step for step in self._known if step.jitted_of(call.info)), None)
        is_own = isinstance(known, _InBlock) and call_key[0] not in self._steps  # else that step may call it itself
        jitted = known.jitted_of(call.info) if known is not None and is_own else None
        if jitted is not None and not jitted.is_plain:
            why_not = ALREADY
        elif has_transposes(call):
            why_not = self._why_not(call)
        elif jitted is not None:
            why_not = "" if jitted.receives else "it takes no gradients"
        elif not (gradients := receives(call.function, call.args, call.kwargs, self._returned)):
            why_not = "it takes no gradients"
        if not why_not and (known is None or is_own) and call_key[0] not in self._steps:
            try:
                begins = not self._used
                self._steps[call_key[0]] = known or self._watch(call.jitted(), begins=begins, gradients=gradients)
                self.watched.append(call.name)
            except Exception as error:
                why_not = str(error) if isinstance(error, CannotWatch) else error_text(error)
        if why_not:
            self.passed.setdefault(call.name, why_not)
        if len(self._decided) >= MOST_DECIDED:
            del self._decided[next(iter(self._decided))]
        self._decided[call_key] = None if why_not else self._steps.get(call_key[0])
        return self._decided[call_key]

    def _watch_loop(self, loop: Loop, key: tuple) -> tuple | None:
        """Run a loop as a jitted function that is watched, and give its result, or None if that cannot be."""
        with jax_private.not_taking_calls():
            try:
                if key not in self._steps:
                    self._steps[key] = self._watch(loop.jitted(), begins=not self._used, gradients=None)
                    self.watched.append(loop.name)
                self._used[key] += 1
                return (self._steps[key](*loop.args),)
            except StopTraining:
                raise
            except Exception as error:  # such as that the body reads numbers of what it closes over
                if ran(error):
                    raise
                self.passed.setdefault(loop.name, error_text(error))
                return None

    def _why_not(self, call: JittedCall) -> str:
        """Why a function with derivatives is not watched; empty if it is to be."""
        if call.is_loop:
            loop = current()
            key = None if loop is None else loop.key
            if loop is None or key is None or not takes_gradients(loop):
                return LOOP
            if key in self._steps or len(self._steps) < MOST_STEPS:
                raise AsJitted(lambda: self._watch_loop(loop, key))
        if call.key not in self._steps and len(self._steps) >= MOST_STEPS:
            return f"more than {MOST_STEPS} functions; if they are one that is jitted at each call, jit it once"
        try:
            return "" if takes_gradients(call) else "its derivatives are not of jax.grad, value_and_grad or vjp"
        except Exception as error:
            return error_text(error)

    def _warn(self, text: str) -> None:
        if not self._has_warned:
            warnings.warn(f"watching: {text}", RuntimeWarning, stacklevel=5)
        self._has_warned = True
