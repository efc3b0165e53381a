"""The `jax.jit` inside a step, whatever library made the step, and how to put another in its place."""

from __future__ import annotations

import functools
import sys
import threading
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from treeviz.integrations.jax_internals import is_jitted


class CannotWatch(Exception):
    """A step that cannot be watched: why, and what works instead."""

    def __init__(self, step: Any, why: str) -> None:
        super().__init__(f"watch: {why}.\n{self.instead(step)}")

    @staticmethod
    def instead(step: Any) -> str:
        name = getattr(step, "__name__", "step")
        return (
            f"Return the measurement from `{name}` yourself, that always works:\n"
            "    return ..., tv.measure(params=params, grads=grads)\n"
            f"and hand it on: inspector.record(measurement)."
        )


Make = Callable[[Callable], Callable]  # the Python function -> a jitted one that gives `(out, measurement)`


class JittedStep(NamedTuple):
    """A step, and the function within it that `jax.jit` made.

    Attributes:
      step: As the user has it.
      jitted: What `jax.jit` gave.
      around: Puts what a `Make` makes in the place of `jitted`; gives a function that is called like the step and gives
        `(what the step gives, measurement)`.
      copied: Takes arguments and gives others like them, so that a step on these leaves the first as they are.
      tidy_path: What people call a gradient's path.
      changes_arguments: The step's results are, in part, what it does to its arguments.
      is_plain: `step` is `jitted`, with nothing around it that needs its results.
    """

    step: Any
    jitted: Any
    around: Callable[[Make], Callable]
    copied: Callable[[Any, Callable[[Any], Any]], Any]
    is_plain: bool
    tidy_path: Callable[[str], str] = str
    changes_arguments: bool = False


def jitted_step(step: Any) -> JittedStep:
    """Look into a step.

    Raises:
      CannotWatch: There is no `jax.jit` to be found.
    """
    if is_jitted(step):
        return JittedStep(step, step, lambda make: make(step.__wrapped__), _copied, True)
    if isinstance(step, types.MethodType):
        inner = jitted_step(step.__func__)
        return inner._replace(step=step, around=lambda make: functools.partial(inner.around(make), step.__self__))
    if type(step) is functools.partial:
        inner = jitted_step(step.func)
        return inner._replace(
            step=step, around=lambda make: functools.partial(inner.around(make), *step.args, **step.keywords)
        )
    if "equinox" in sys.modules:
        from treeviz.integrations.equinox_step import filter_jitted

        found = filter_jitted(step)
        if found is not None:
            return JittedStep(step, found[0], functools.partial(_around, found[1]), _copied, False)
    if "flax" in sys.modules:
        from treeviz.integrations.flax_nnx_step import cloned, nnx_jitted, tidy_path

        found = nnx_jitted(step)
        if found is not None:
            return JittedStep(step, found[0], functools.partial(_around, found[1]), cloned, False, tidy_path, True)
    if isinstance(step, jax.stages.Compiled | jax.stages.Lowered):
        raise CannotWatch(
            step, "the step is compiled ahead of time, so it cannot be traced again; watch what it was lowered from"
        )
    if not callable(step):
        raise CannotWatch(step, f"a step is a function, this is a {type(step).__name__}")
    if type(step).__name__ == "PmapFunction":
        raise CannotWatch(step, "the step is made by jax.pmap; write it with jax.jit, or jax.shard_map inside jax.jit")
    raise CannotWatch(
        step,
        f"`{getattr(step, '__name__', type(step).__name__)}` is not what jax.jit gave. Watch the jitted function "
        "itself, inspector.watch(jax.jit(step)), before anything else is put around it",
    )


def _around(with_other: Callable[[Make], Any], make: Make) -> Callable:
    """Call a library's wrapper around a twin; the measurement, of which the wrapper does not know, goes past it."""
    past = threading.local()

    def make_without_measurement(function):
        twin = make(function)

        def without_measurement(*args, **kwargs):
            out, past.measurement = twin(*args, **kwargs)
            return out

        return without_measurement

    wrapper = with_other(make_without_measurement)

    def run(*args, **kwargs):
        past.measurement = None
        out = wrapper(*args, **kwargs)
        measurement, past.measurement = past.measurement, None
        return out, measurement

    return run


def _copied(tree: Any, copy_array: Callable[[Any], Any]) -> Any:
    return jax.tree.map(copy_array, tree)
