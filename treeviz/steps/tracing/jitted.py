"""Find the `jax.jit` inside a step of any library, and wrap the step around another one.

A library with a `jit` of its own has a function with `unwraps` in its file of `integrations`.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from treeviz.steps.tracing.jit_options import is_jitted
from treeviz.tree.safe_repr import printable_lines


class CannotWatch(Exception):
    """A step cannot be watched. The message says why, and which code works instead.

        inspector = tv.GradientInspector()
        try:
            update = inspector.watch(update)
        except tv.CannotWatch as error:
            print(error)

    `GradientInspector.watch` and `verify` raise it.
    """

    def __init__(self, step: Any, why: str, instead: str = "") -> None:
        super().__init__(printable_lines(f"watch: {why}.\n{instead or self.instead(step)}"))

    @staticmethod
    def instead(step: Any) -> str:
        """What to do where a step cannot be watched, as code."""
        name = getattr(step, "__name__", "step")
        return (
            f"Return the measurement from `{name}` yourself, that always works:\n"
            "    return ..., tv.measure(params=params, grads=grads)\n"
            f"and hand it on: inspector.record(measurement)."
        )


class LibraryMoved(Exception):
    """The library of a step has moved a private name. The message says which, and what is lost."""


def ran(error: Exception) -> bool:
    """Whether a program may have run, with its effects, before it raised; False where it had no room to."""
    is_of_run = isinstance(error, jax.errors.JaxRuntimeError | FloatingPointError)
    return is_of_run and not str(error).startswith("RESOURCE_EXHAUSTED")


Make = Callable[[Callable], Callable]  # the Python function -> a jitted one that returns `(out, measurement)`


def copy_leaves(tree: Any, copy_array: Callable[[Any], Any]) -> Any:
    """The tree with `copy_array` applied to every leaf."""
    return jax.tree.map(copy_array, tree)


class JittedStep(NamedTuple):
    """A step, and the function within it that `jax.jit` made.

    Attributes:
      step: The user's step.
      jitted: The function within it that `jax.jit` made.
      around: Wraps the step around what a `Make` makes instead of `jitted`. Returns a function with the step's
        arguments, which returns `(what the step returns, measurement)`.
      is_plain: `step` is `jitted`, without a wrapper that needs its results.
      copied: Copies arguments, given how an array is copied. A step on the copies leaves the originals unchanged.
      tidy_path: Shortens the path of a gradient to that of the user's parameter.
      result_path: Shortens the path of a result of `jitted` to that of a result of the step.
      changes_arguments: The step also returns by changing its arguments.
      receives: An argument holds its gradients.
      same_arguments: `jitted` takes the arguments of the step, in whatever form, each in its place and by its name.
      static_numbers: Whatever is no array is static for it, also a Python number.
    """

    step: Any
    jitted: Any
    around: Callable[[Make], Callable]
    is_plain: bool = False
    copied: Callable[[Any, Callable[[Any], Any]], Any] = copy_leaves
    tidy_path: Callable[[str], str] = str
    result_path: Callable[[str], str] = str
    changes_arguments: bool = False
    receives: bool = False
    same_arguments: bool = False
    static_numbers: bool = False


Unwrap = Callable[[Any], JittedStep | None]

_unwraps: dict[str, Unwrap] = {}  # by library


def unwraps(library: str) -> Callable[[Unwrap], Unwrap]:
    """Register how the steps of a library are taken apart; the function returns None for any other step.

    It raises `LibraryMoved` if this release of the library makes its steps in another way.
    """

    def register(unwrap: Unwrap) -> Unwrap:
        _unwraps[library] = unwrap
        return unwrap

    return register


_inside: dict[str, dict[str, Callable[[str], str]]] = {}  # by module


def tidies(module: str, **paths: Callable[[str], str]) -> None:
    """Register `tidy_path` and `result_path` for what a library itself gives to `jax.jit`, by the module of that."""
    _inside[module] = paths


def _module(function: Any) -> str:
    return getattr(function if isinstance(function, types.FunctionType) else type(function), "__module__", "")


def is_partial(step: Any) -> bool:
    """Whether a step is a `functools.partial`, or what Equinox makes of a bound method, which is like one."""
    return isinstance(step, functools.partial) or (is_of("equinox", step) and type(step).__name__ == "Partial")


def is_of(library: str, step: Any) -> bool:
    """Whether the type of a step is from a library; before jax 0.5 those of jaxlib have no module."""
    return str(getattr(type(step), "__module__", "")).partition(".")[0] == library


def jitted_step(step: Any) -> JittedStep:
    """Take a step apart.

    Raises:
      CannotWatch: There is no `jax.jit` in it.
      LibraryMoved: The release of its library is unknown.
    """
    if is_jitted(step):
        of = _module(step.__wrapped__)
        tidy: dict[str, Any] = next(
            (paths for module, paths in _inside.items() if f"{of}.".startswith(f"{module}.")), {}
        )
        return JittedStep(step, step, lambda make: make(step.__wrapped__), is_plain=True)._replace(**tidy)
    if isinstance(step, types.MethodType):
        inner = jitted_step(step.__func__)
        return inner._replace(step=step, around=lambda make: functools.partial(inner.around(make), step.__self__))
    if is_partial(step):
        inner = jitted_step(step.func)
        return inner._replace(
            step=step, around=lambda make: functools.partial(inner.around(make), *step.args, **step.keywords)
        )
    for unwrap in _unwraps.values():
        found = unwrap(step)
        if found is not None:
            return found
    if type(step).__name__ == "PmapFunction" or _is_pmapped(step):
        raise made_by_pmap(step, "jax.pmap", "jax.jit(jax.vmap")
    raise CannotWatch(step, _why_not_jitted(step))


def function_of(step: Any) -> Any:
    """The Python function of a step, with its signature: a bound method's own would include `self`."""
    return step if isinstance(step, types.MethodType) else getattr(step, "__wrapped__", step)


def _is_pmapped(step: Any) -> bool:
    """Whether it is the Python function that jax.pmap returns since jax 0.8."""
    return getattr(getattr(step, "lower", None), "__qualname__", "").startswith("pmap.")


def made_by_pmap(step: Any, by: str, vmapped: str) -> CannotWatch:
    """The error that a function like `jax.pmap` made the step, with lines that convert it.

    Args:
      vmapped: The beginning of the call that computes the same by vmap.
    """
    return CannotWatch(
        step,
        f"the step is made by {by}; with jax 0.8 or later, its calls in `with inspector.watching():` are watched",
        "With vmap and arguments that are sharded over the devices it computes the same, and can be watched:\n"
        "    from jax.sharding import Mesh, NamedSharding, PartitionSpec\n"
        '    sharding = NamedSharding(Mesh(jax.devices(), "devices"), PartitionSpec("devices"))\n'
        f"    arguments = jax.device_put(arguments, sharding)  # those that {by} divides\n"
        f'    step = inspector.watch({vmapped}(function, axis_name="batch")))  # the function that {by} was given',
    )


def _why_not_jitted(step: Any) -> str:
    if type(step).__name__ in ("Compiled", "Lowered", "Traced"):  # of JAX, Equinox or Flax
        return "the step is compiled ahead of time, so it cannot be traced again; watch what it was lowered from"
    if not callable(step):
        return f"a step is a function, this is a {type(step).__name__}"
    return (
        f"`{getattr(step, '__name__', type(step).__name__)}` is not what jax.jit gave. Watch the jitted function "
        "itself, inspector.watch(jax.jit(step)), before anything else is put around it"
    )


def around_wrapper(with_other: Callable[[Make], Any], make: Make) -> Callable:
    """Call a library's wrapper around a twin; the measurement bypasses the wrapper.

    Args:
      with_other: Returns the wrapper with the result of a `Make` in place of its `jax.jit`.
    """
    bypass = threading.local()

    def make_without_measurement(function):
        twin = make(function)

        def without_measurement(*args, **kwargs):
            out, bypass.measurement = twin(*args, **kwargs)
            return out

        return without_measurement

    wrapper = with_other(make_without_measurement)

    def run(*args, **kwargs):
        bypass.measurement = None
        out = wrapper(*args, **kwargs)
        measurement, bypass.measurement = bypass.measurement, None
        return out, measurement

    return run
