"""The options with which `jax.jit` made a function, for another `jax.jit`."""

from __future__ import annotations

import functools
import inspect
import threading
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
from jax import tree_util

from treeviz.steps.measure import source_of
from treeviz.steps.statistics import name_of_tap
from treeviz.steps.tracing.jax_private import OPTIONS, jit_info, kept_arguments, now_seeing, seeing_gradients, why_not
from treeviz.tree.text import guarded, printable, printable_lines, step_name


class JitOptions(NamedTuple):
    keywords: dict[str, Any]  # for another `jax.jit`, without those of the outputs
    out_shardings: Any  # a tree prefix, or None if there was none
    donates: bool

    def jit(self, function: Callable) -> Any:
        outs = {} if self.out_shardings is None else {"out_shardings": self.out_shardings}
        return jax.jit(function, **self.keywords, **outs)


def is_jitted(step: Any) -> bool:
    """Whether `jax.jit` returned this very object, not something around it."""
    return type(step) is type(_jitted_without_options()) and jit_info(step) is not None


def jit_options(step: Any) -> JitOptions:
    info, without = jit_info(step), jit_info(_jitted_without_options())
    options = {name: getattr(info, name) for name in OPTIONS}
    keywords: dict[str, Any] = {name: value for name, value in options.items() if value != getattr(without, name)}
    # These two options of `jax.jit` are deprecated, and a later release lacks the attributes.
    keywords.update((name, value) for name in ("device", "backend") if (value := getattr(info, name, None)) is not None)
    if info.compiler_options_kvs:
        keywords["compiler_options"] = dict(info.compiler_options_kvs)
    in_shardings = _shardings(info.in_shardings_treedef, info.in_shardings_leaves, info.in_layouts_leaves)
    if in_shardings is not None:
        keywords["in_shardings"] = in_shardings
    out_shardings = _shardings(info.out_shardings_treedef, info.out_shardings_leaves, info.out_layouts_leaves)
    return JitOptions(keywords, out_shardings, bool(info.donate_argnums or info.donate_argnames))


def dynamic_arguments(step: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[int], list[str]]:
    """The positions and the names of the arguments of a call that are not static, those by name sorted as in JAX."""
    options = jit_options(step).keywords
    static = {i % len(args) for i in options.get("static_argnums", ()) if -len(args) <= i < len(args)}
    names = options.get("static_argnames", ())
    return [i for i in range(len(args)) if i not in static], sorted(name for name in kwargs if name not in names)


def arguments_read(compiled: Any) -> list[int] | None:
    """The positions of the leaves that a compiled program reads; None if this release of JAX does not tell."""
    return guarded(lambda: kept_arguments(compiled), lambda _: None)


def trace_sown(jitted: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """JAX's `Traced` of a jitted function, with its gradients and losses sown; ValueError if this JAX hides them."""
    from treeviz.steps.tracing.primitives import sow  # of JAX's extension API

    if why := why_not():
        raise ValueError(why)
    with seeing_gradients(sow, "treeviz sown"):
        return jitted.trace(*args, **kwargs)


@functools.cache
def _jitted_without_options() -> Any:
    return jax.jit(lambda: None)


def _shardings(treedef, shardings, layouts_of):
    """The shardings of all arguments or results with their layouts; None if neither was given."""
    (unspecified,) = jit_info(_jitted_without_options()).in_shardings_leaves
    given = [None if s is unspecified else s for s in shardings]
    if given == [None] * len(given) == [*layouts_of]:
        return None
    from jax.experimental import layout as layouts

    both = getattr(layouts, "Format", None) or layouts.Layout  # `Layout` until jax 0.6
    pairs = zip(layouts_of, given, strict=True)
    return tree_util.tree_unflatten(treedef, [s if layout is None else both(layout, s) for layout, s in pairs])


# `tap`: record a tree of numbers from any place in a watched step.


def tap(tree: Any, name: str, *, cotangent: bool = False) -> Any:
    """Record the numbers of a tree under `name`, wherever in a watched step it is computed.

        hidden = tv.tap(jax.nn.relu(x @ w), "hidden")

    Does nothing in a step that is not watched, or with a JAX release in which none can be.

    Args:
      tree: Any pytree; leaves other than real or complex arrays have a row without a number.
      name: The name of the tree in the measurement, next to "grads". One that begins with "grads", "params" or
        "updates" becomes "tap grads", since such trees belong to the step's gradients.
      cotangent: Record the gradient with respect to `tree` in the backward pass, instead of its values in the forward
        pass.

    Returns:
      `tree`, unchanged. In a watched step each leaf is reduced to a few numbers where it is computed, which costs one
      pass over its elements.
    """
    see = now_seeing()
    if see is None:
        return tree
    name = name_of_tap(printable(name))
    if not cotangent:
        return see("tap", tree, name=name)
    leaves, treedef = jax.tree.flatten(tree)
    places = [i for i, has in enumerate(source_of(tree, name).has_number) if has]
    # `backward` runs later, and may hold no tracer.
    known = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if isinstance(leaf, jax.Array) else leaf for leaf in leaves]

    def tree_with(values, leaves):
        leaves = list(leaves)
        for i, value in zip(places, values, strict=True):
            leaves[i] = value
        return jax.tree.unflatten(treedef, leaves)

    @jax.custom_vjp
    def identity(values):
        return values

    def backward(_, cotangents):
        see = now_seeing()
        if see is not None:
            tapped = jax.tree.leaves(see("tap", tree_with(cotangents, known), name=name))
            cotangents = [tapped[i] for i in places]
        return (cotangents,)

    identity.defvjp(lambda values: (values, None), backward)
    return tree_with(identity([leaves[i] for i in places]), leaves)


# Find the `jax.jit` inside a step of any library, and wrap the step around another one.


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
            f"Return the measurement from `{name}` yourself, which always works:\n"
            "    return ..., tv.measure(params=params, grads=grads)\n"
            f"and pass it on: inspector.record(measurement)."
        )


class LibraryMoved(Exception):
    """The library of a step has moved a private name. The message says which, and what is lost."""


def ran(error: Exception) -> bool:
    """Whether a program may have run, with its effects, before it raised; False where it had no room to."""
    is_of_run = isinstance(error, jax.errors.JaxRuntimeError | FloatingPointError)
    return is_of_run and not str(error).startswith("RESOURCE_EXHAUSTED")


Make = Callable[[Callable], Callable]  # the Python function -> a jitted one that returns `(out, measurement)`


class JittedStep(NamedTuple):
    """A step, and the function within it that `jax.jit` made."""

    step: Any  # the user's step
    jitted: Any  # the function within it that `jax.jit` made
    # Wraps the step around what a `Make` makes instead of `jitted`. That returns `(what the step does, measurement)`.
    around: Callable[[Make], Callable]
    is_plain: bool = False  # `step` is `jitted`, without a wrapper that needs its results
    # Copies arguments, given how an array is copied. A step on the copies leaves the originals unchanged.
    copied: Callable[[Any, Callable[[Any], Any]], Any] = lambda tree, copy_array: jax.tree.map(copy_array, tree)
    tidy_path: Callable[[str], str] = str  # shortens the path of a gradient to that of the user's parameter
    result_path: Callable[[str], str] = str  # shortens the path of a result of `jitted` to that of a result of the step
    changes_arguments: bool = False  # the step also returns by changing its arguments
    receives: bool = False  # an argument holds its gradients
    same_arguments: bool = False  # `jitted` takes those of the step, in whatever form, each by its place or name
    static_numbers: bool = False  # whatever is no array is static for it, also a Python number

    def inside(self, make: Callable[[Callable], Callable], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What the function that `make` makes returns for the arguments of `jitted`. The step does not run."""

        def escaping(function: Callable) -> Callable:
            made = make(function)

            def escape(*args: Any, **kwargs: Any) -> NoReturn:
                raise _Escape(made(*args, **kwargs))

            return escape

        try:
            self.around(escaping)(*args, **kwargs)
        except _Escape as escape:
            return escape.args[0]
        raise RuntimeError("the step did not call its jitted function")


class _Escape(Exception):
    """Carries its argument out of the wrapper of a library."""


Unwrap = Callable[[Any], JittedStep | None]

_unwraps: dict[str, Unwrap] = {}  # by library


def unwraps(library: str) -> Callable[[Unwrap], Unwrap]:
    """Register how a library's steps are taken apart (None for others); raises `LibraryMoved` if that has changed."""

    def register(unwrap: Unwrap) -> Unwrap:
        _unwraps[library] = unwrap
        return unwrap

    return register


Tidies = Callable[[Any], dict[str, Any] | None]
_inside: list[Tidies] = []


def tidies_of(find: Tidies) -> Tidies:
    """Register a function that returns `tidy_path` and `result_path` for what a library itself gives to `jax.jit`."""
    _inside.append(find)
    return find


def tidies(module: str, **paths: Callable[[str], str]) -> None:
    """Register them for all that is of a module."""

    def of_module(function: Any) -> dict[str, Any] | None:
        owner = function if isinstance(function, types.FunctionType) else type(function)
        return paths if f"{getattr(owner, '__module__', '')}.".startswith(f"{module}.") else None

    tidies_of(of_module)


def is_partial(step: Any) -> bool:
    """Whether a step is a `functools.partial`, or what Equinox makes of a bound method, which is like one."""
    return isinstance(step, functools.partial) or (is_of("equinox", step) and type(step).__name__ == "Partial")


def is_of(library: str, step: Any) -> bool:
    """Whether the type of a step is from a library; before jax 0.5 those of jaxlib have no module."""
    return str(getattr(type(step), "__module__", "")).partition(".")[0] == library


def jitted_step(step: Any) -> JittedStep:
    """Take a step apart. Raises `CannotWatch` if there is no `jax.jit` in it, or `LibraryMoved`."""
    if is_jitted(step):
        found = (guarded(lambda find=find: find(step.__wrapped__), lambda _: None) for find in _inside)
        tidy = next(filter(None, found), {})
        return JittedStep(step, step, lambda make: make(step.__wrapped__), is_plain=True)._replace(**tidy)
    if isinstance(step, types.MethodType) or is_partial(step):
        is_method = isinstance(step, types.MethodType)
        inner = jitted_step(step.__func__ if is_method else step.func)
        args, kwargs = ((step.__self__,), {}) if is_method else (step.args, step.keywords)
        return inner._replace(step=step, around=lambda make: functools.partial(inner.around(make), *args, **kwargs))
    for unwrap in _unwraps.values():
        found = unwrap(step)
        if found is not None:
            return found
    # `jax.pmap` returns a Python function since jax 0.8.
    is_pmapped = getattr(getattr(step, "lower", None), "__qualname__", "").startswith("pmap.")
    if is_pmapped or type(step).__name__ == "PmapFunction":
        raise made_by_pmap(step, "jax.pmap", "jax.jit(jax.vmap")
    if type(step).__name__ in ("Compiled", "Lowered", "Traced"):  # of JAX, Equinox or Flax
        why = "the step is compiled ahead of time, so it cannot be traced again; watch the function that was lowered"
    elif not callable(step):
        why = f"expected a jitted function, got {type(step).__name__}"
    else:
        why = (
            f"`{step_name(step)}` was not returned by jax.jit. Watch the jitted function "
            "itself, inspector.watch(jax.jit(step)), before wrapping it"
        )
    raise CannotWatch(step, why)


def function_of(step: Any) -> Any:
    """The Python function of a step, with its signature: a bound method's own would include `self`."""
    return step if isinstance(step, types.MethodType) else getattr(step, "__wrapped__", step)


def made_by_pmap(step: Any, by: str, vmapped: str) -> CannotWatch:
    """The error that a function like `jax.pmap` made the step, with lines that convert it to the call of `vmapped`."""
    return CannotWatch(
        step,
        f"the step is made by {by}; with jax 0.8 or later, its calls in `with inspector.watching():` are watched",
        "With vmap and arguments that are sharded over the devices it computes the same, and can be watched:\n"
        "    from jax.sharding import Mesh, NamedSharding, PartitionSpec\n"
        '    sharding = NamedSharding(Mesh(jax.devices(), "devices"), PartitionSpec("devices"))\n'
        f"    arguments = jax.device_put(arguments, sharding)  # those that {by} divides\n"
        f'    step = inspector.watch({vmapped}(function, axis_name="batch")))  # the function that {by} was given',
    )


def around_wrapper(with_other: Callable[[Make], Any], make: Make) -> Callable:
    """Call a library's wrapper with another `jax.jit` inside, by `with_other`; the measurement bypasses it."""
    bypass = threading.local()

    def make_without_measurement(function):
        instrumented_step = make(function)

        def without_measurement(*args, **kwargs):
            out, bypass.measurement = instrumented_step(*args, **kwargs)
            return out

        return without_measurement

    wrapper = with_other(make_without_measurement)

    def run(*args, **kwargs):
        bypass.measurement = None
        out = wrapper(*args, **kwargs)
        measurement, bypass.measurement = bypass.measurement, None
        return out, measurement

    return run


# A step that receives gradients as an argument, from another jitted function, and updates the parameters with them.


def receiving(step: JittedStep, name: str) -> JittedStep:
    """The same step; what its parameter `name` gets is measured as the gradients of its parameters."""
    names = inspect.signature(step.jitted).parameters
    if name not in names:
        raise CannotWatch(step.step, f"gradients={name!r}: the step has no such parameter; it has {', '.join(names)}")

    def sowing(function: Callable) -> Callable:
        @functools.wraps(function)
        def sown(*args, **kwargs):
            see = now_seeing()
            if see is None:
                return function(*args, **kwargs)
            call = inspect.signature(function).bind(*args, **kwargs)
            grads = call.arguments[name]
            params = like(grads, (value for other, value in call.arguments.items() if other != name))
            if params is None:
                raise ValueError(f"no argument holds parameters of the structure and the shapes of {name}")
            call.arguments[name] = see("grads", grads, params)
            return function(*call.args, **call.kwargs)

        return sown

    return step._replace(around=lambda make: step.around(lambda function: make(sowing(function))), receives=True)


def like(tree: Any, others: Iterable[Any]) -> Any:
    """The outermost subtree of some trees that has the structure and the shapes of a tree; None if there is none."""
    wanted, queue = _layout(tree), list(others)
    for other in queue:  # the loop appends to the queue
        if _layout(other) == wanted:
            return other
        children = jax.tree.leaves(other, is_leaf=lambda node, other=other: node is not other)
        queue += [child for child in children if child is not other]
    return None


def _layout(tree: Any) -> tuple:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [np.shape(leaf) if hasattr(leaf, "shape") else None for leaf in leaves]


def receives(function: Callable, args: tuple, kwargs: Mapping[str, Any], returned: Collection[int]) -> str | None:
    """The name of the parameter that gets gradients: arrays with the ids `returned`; None if there is none."""
    try:
        arguments = inspect.signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return None
    for name, value in arguments.items():
        arrays = [leaf for leaf in jax.tree.leaves(value) if isinstance(leaf, jax.Array)]
        others = (other for other_name, other in arguments.items() if other_name != name)
        if arrays and all(id(array) in returned for array in arrays) and like(value, others) is not None:
            return name
    return None
