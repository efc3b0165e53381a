"""Loops that are called outside a jitted function, as `lax.scan` and its kin, as functions that can be jitted."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from treeviz.steps.tracing.replaced import original_of, replaced
from treeviz.tree.tracers import any_traced

# The parameters that are functions, the body first, and those that are trees of arrays, by the loop.
_PARAMETERS = {
    "scan": (("f",), ("init", "xs")),
    "map": (("f",), ("xs",)),
    "fori_loop": (("body_fun",), ("init_val",)),
    "while_loop": (("body_fun", "cond_fun"), ("init_val",)),
}

_here = threading.local()  # .loops: those that this thread is about to trace or run, the innermost last


class Loop(NamedTuple):
    """A call of a loop.

    Attributes:
      kind: "scan", "map", "fori_loop" or "while_loop".
      functions: Those of the user, the body first.
      rest: The other arguments, but for trees of arrays.
      trees: The arguments that are trees of arrays.
    """

    kind: str
    functions: tuple[Any, ...]
    rest: tuple[tuple[str, Any], ...]
    trees: tuple[Any, ...]

    @property
    def key(self) -> tuple | None:
        """Equal for all that run the same program; None if that cannot be told."""
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

    @property
    def kwargs(self) -> dict[str, Any]:
        return {}

    def jitted(self) -> Any:
        kind, functions, rest, _ = self
        (of_functions, of_trees), original = _PARAMETERS[kind], original_of(kind)

        def run(*trees, closed_over):
            given = map(_closing_over, functions, closed_over)
            of = dict(zip((*of_functions, *of_trees), (*given, *trees), strict=True))
            return original(**dict(rest), **of)

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
    """Ends a loop that has traced its body and is about to run it; not an `Exception`, which might be caught."""

    def __init__(self, run: Callable[[], tuple | None]) -> None:
        super().__init__("as a jitted function")
        self.run = run


def current() -> Loop | None:
    """The loop whose operation this thread is about to run, as far as no array is traced."""
    loop = (getattr(_here, "loops", None) or [None])[-1]
    leaves = [] if loop is None else jax.tree.leaves(loop.args)
    return None if any_traced(leaves) else loop


def seeing_loops() -> contextlib.AbstractContextManager:
    """Within this context `current` knows the loops that a thread calls as `jax.lax.scan` and the like."""
    return replaced(jax.lax, {kind: _seen(kind) for kind in _PARAMETERS})


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
            return original_of(kind)(*args, **kwargs)
        try:
            with _calling(loop):
                return original_of(kind)(*args, **kwargs)
        except AsJitted as found:
            run = found.run
        out = run()
        return original_of(kind)(*args, **kwargs) if out is None else out[0]

    # JAX leaves out frames of its own files where it says where the user has called something.
    code = call.__code__.replace(co_filename=inspect.unwrap(original).__code__.co_filename)
    function = types.FunctionType(code, call.__globals__, kind, None, call.__closure__)
    return functools.wraps(original)(function)


@contextlib.contextmanager
def _calling(loop: Loop) -> Iterator[None]:
    loops = _here.loops = getattr(_here, "loops", [])
    loops.append(loop)
    try:
        yield
    finally:
        loops.pop()


def _cells(body: Any) -> list[Any]:
    """What a function closes over; of a cell that is still empty, None."""
    found = []
    for cell in (getattr(body, "__closure__", None) or ()) if isinstance(body, types.FunctionType) else ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            found.append(None)
    return found


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
