"""Compare the results of a step with those of the instrumented step, byte by byte; and compile the step in a thread."""

from __future__ import annotations

import contextlib
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from treeviz.analysis.stats import lies_on_host
from treeviz.steps.measure import paths_in
from treeviz.steps.tracing.attribution import split
from treeviz.steps.tracing.jitted import CannotWatch, JitOptions, JittedStep
from treeviz.steps.tracing.primitives import COND, SCAN, SHARD_MAP, WHILE, equations, sow_p
from treeviz.tree.text import error_text
from treeviz.tree.tracers import Tracer, any_traced

_MOST_RUNS = 5
_ARRAYS = (jax.Array, np.ndarray)


@dataclass(frozen=True)
class Difference:
    """A leaf of a step's results that differs when the step is instrumented.

    Attributes:
      path: The key path of the leaf.
      n_different: How many of its elements differ in their bytes.
      size: How many elements it has.
      max_difference: The largest absolute difference; NaN where shapes or dtypes differ, or nothing is comparable.
    """

    path: str
    n_different: int
    size: int
    max_difference: float

    def __str__(self) -> str:
        return f"{self.path}: {self.n_different} of {self.size} elements differ, by {self.max_difference:.3g} at most"


@dataclass(frozen=True)
class Verification:
    """Whether a watched step returns the same bytes as the step itself. Truthy if so.

        if not inspector.verify(update, params, x, y):
            update = inspector.watch(update, exact=True)

    Attributes:
      n_leaves: How many leaves were compared.
      differences: The leaves that differ, in the first run in which any does.
      n_runs: How many runs were compared; with differences, the last of them is where they are.
      n_unsteady: How many leaves differ when the step itself is run twice.
    """

    n_leaves: int
    differences: tuple[Difference, ...]
    n_runs: int = 1
    n_unsteady: int = 0

    def __bool__(self) -> bool:
        return not self.differences

    def __str__(self) -> str:
        if not self.differences:
            return f"The same bytes in all {self.n_leaves} leaves" + f" of {self.n_runs} runs" * (self.n_runs > 1) + "."
        run = f" in run {self.n_runs}" * (self.n_runs > 1)
        headline = f"{len(self.differences)} of {self.n_leaves} leaves differ{run}:"
        return "\n".join([headline, *[f"  {d}" for d in self.differences], self.remedy])

    @property
    def remedy(self) -> str:
        if not self.n_unsteady:
            return "watch(step, exact=True) runs the untouched step, and measures in a second one."
        return (
            f"The step is not deterministic: run twice, unwatched, it differs in {self.n_unsteady} leaves. "
            "So watching may not be the cause, and exact=True does not help. On a GPU, the environment variable "
            "XLA_FLAGS=--xla_gpu_deterministic_ops=true does."
        )

    __repr__ = __str__


def verify(jitted: JittedStep, instrumented_step: Callable, args: tuple, kwargs: dict[str, Any]) -> Verification:
    """Compare a step with the instrumented step on copies of these arguments, and on those that follow from them."""
    found = Verification(0, ())
    for n_runs in range(1, _MOST_RUNS + 1):
        expected = _results(jitted, jitted.step, jitted.copied((args, kwargs), copy_array))
        ours = jitted.copied((args, kwargs), copy_array)
        try:
            out, _ = instrumented_step(*ours[0], **ours[1])
        except Exception as error:
            raise CannotWatch(jitted.step, error_text(error)) from error
        found = compare(expected, (out, ours) if jitted.changes_arguments else out)
        if not found:
            again = _results(jitted, jitted.step, jitted.copied((args, kwargs), copy_array))
            n_unsteady = len(compare(expected, again).differences)
            return replace(found, n_runs=n_runs, n_unsteady=n_unsteady)
        found = replace(found, n_runs=n_runs)
        following = _next_arguments(jitted, args, kwargs, expected)
        if following is None:
            break
        args, kwargs = following
    return found


def _results(jitted: JittedStep, step: Any, copies: Any) -> Any:
    """The results of the step for copies of its arguments; and the copies, if it changes them."""
    out = step(*copies[0], **copies[1])
    return (out, copies) if jitted.changes_arguments else out


def _next_arguments(jitted: JittedStep, args: tuple, kwargs: dict[str, Any], results: Any) -> Any:
    """The arguments, replaced by results of the same structure, and none of them all zero; None if unchanged."""
    is_changed = False
    if jitted.changes_arguments:
        is_changed, (args, kwargs) = True, results[1]
    else:
        left = [part for part in _parts_of_tree(results, 2) if _has_array(part)]
        following = []
        for value in (*args, *kwargs.values()):
            found = next((part for part in left if _has_array(value) and _type_of(part) == _type_of(value)), None)
            left = left if found is None else [part for part in left if part is not found]
            is_changed |= found is not None
            following.append(value if found is None else found)
        args, kwargs = tuple(following[: len(args)]), dict(zip(kwargs, following[len(args) :], strict=True))

    def without_zeros(x: Any) -> Any:
        nonlocal is_changed
        is_here = isinstance(x, np.ndarray) or (isinstance(x, jax.Array) and x.is_fully_addressable)
        if (
            not is_here
            or not jnp.issubdtype(x.dtype, jnp.floating)
            or any(part.any() for part in _parts(x))
            or not x.size
        ):
            return copy_array(x)
        is_changed = True
        numbers = np.random.default_rng(0).uniform(5e-4, 1e-3, x.shape).astype(x.dtype)
        if not isinstance(x, jax.Array):
            return numbers
        with jax.transfer_guard_host_to_device("allow"):
            return jax.device_put(numbers, x.sharding)

    following = jitted.copied((args, kwargs), without_zeros)
    return following if is_changed else None


def _parts_of_tree(tree: Any, depth: int) -> Iterator[Any]:
    yield tree
    if depth and isinstance(tree, tuple | list | dict):
        for child in tree.values() if isinstance(tree, dict) else tree:
            yield from _parts_of_tree(child, depth - 1)


def _has_array(tree: Any) -> bool:
    """Whether there is an array of several elements. A loss is no learning rate, though both are scalars."""
    return any(isinstance(x, _ARRAYS) and x.size > 1 for x in jax.tree.leaves(tree))


def _type_of(tree: Any) -> tuple[Any, list[tuple[Any, Any]]]:
    leaves, treedef = jax.tree.flatten(tree)
    return treedef, [(getattr(x, "shape", None), getattr(x, "dtype", None)) for x in leaves]


def copies(arrays: list[jax.Array]) -> list[jax.Array]:
    if jax.__version_info__ < (0, 10) or not all(map(lies_on_host, arrays)):
        return [x.copy() for x in arrays]
    with jax.transfer_guard_device_to_device("allow"):  # where they lie, without a compilation for each shape
        return jax.device_put(arrays, [x.sharding for x in arrays], may_alias=False)


def copy_array(x: Any) -> Any:
    if isinstance(x, jax.Array):
        return copies([x])[0]
    return x.copy() if isinstance(x, np.ndarray) else x  # a loader may fill it anew


def compare(expected: Any, got: Any) -> Verification:
    """Compare two trees of the same structure; arrays by the shards of this process."""
    paths, leaves = paths_in(expected), zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True)
    found = ((path or "result", _difference(*pair)) for path, pair in zip(paths, leaves, strict=True))
    return Verification(len(paths), tuple(Difference(path, *values) for path, values in found if values is not None))


def _difference(a: Any, b: Any) -> tuple[int, int, float] | None:
    n = size = 0
    largest = 0.0
    for left, right in zip(_parts(a), _parts(b), strict=True):
        if left.shape != right.shape or left.dtype != right.dtype:
            return max(left.size, 1), left.size, np.nan
        size += left.size
        bytes_ = [x.reshape(-1).view(np.uint8).reshape(x.size, x.dtype.itemsize) for x in (left, right)]
        is_different = (bytes_[0] != bytes_[1]).any(axis=1)
        if not is_different.any():
            continue
        n += int(is_different.sum())
        with np.errstate(all="ignore"):
            gap = np.abs(left.astype(np.complex128) - right.astype(np.complex128))
        largest = float(np.fmax(largest, np.nanmax(gap) if not np.isnan(gap).all() else np.nan))
    return (n, size, largest) if n else None


def _parts(x: Any) -> list[np.ndarray]:
    """Copies of the shards of an array that are in this process."""
    if isinstance(x, jax.Array):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        with jax.transfer_guard_device_to_host("allow"):
            return [np.array(shard.data) for shard in x.addressable_shards]
    return [np.asarray(x)] if isinstance(x, bool | int | float | complex | np.ndarray | np.generic) else []


# Lower the step itself in any thread, from the traced program of the instrumented step.

_LOOPS = (COND, SCAN, SHARD_MAP, WHILE)


class PlainProgram:
    """Keeps the newest program of a step until it is lowered: what is sown in it is lowered as the identity."""

    def __init__(self) -> None:
        self._is_wanted = True
        self._newest: tuple[ClosedJaxpr, Any, Any] | None = None

    def traced(self, program: ClosedJaxpr, args: tuple, kwargs: dict[str, Any], out_tree: Any) -> None:
        if self._is_wanted:
            self._newest = program, _signature(args, kwargs), out_tree

    def drop(self) -> None:
        self._is_wanted, self._newest = False, None

    def lowering(self, options: JitOptions, args: tuple, kwargs: dict[str, Any]) -> Callable[[], Any] | None:
        """A function that lowers the step for these arguments, of which it keeps no array; None if none was traced."""
        newest = self._newest
        self.drop()
        if newest is None:
            return None
        program, signature, out_tree = newest

        def step(*args, **kwargs):
            tags = [(e.params, around) for e, around in equations(program) if e.primitive is sow_p]
            # A loop that is differentiated keeps a sown value for the backward pass, beside the value that it equals.
            is_kept = any(p["differentiated"] and any(o.primitive.name in _LOOPS for o in around) for p, around in tags)
            if _signature(args, kwargs) != signature or is_kept or any_traced(program.consts):
                raise ValueError("it was traced for other arguments, or is not exactly the program of the step")
            return jax.tree.unflatten(out_tree, jaxpr_as_fun(program)(*split(args, kwargs)[0]))

        jitted = options.jit(step)
        args, kwargs = jax.tree.map(_described, (args, kwargs))
        return lambda: jitted.lower(*args, **kwargs)


def _signature(args: tuple, kwargs: dict[str, Any]) -> Any:
    """The structure, types and static values of arguments that are traced."""
    leaves, treedef = jax.tree.flatten((args, kwargs))
    return treedef, [getattr(x, "aval", None) if isinstance(x, Tracer) else x for x in leaves]


def _described(x: Any) -> Any:
    """The shape, dtype and sharding of an array; an array on the default device has no sharding."""
    if not isinstance(x, jax.Array):
        return x
    is_anywhere = x.sharding.device_set == {jax.local_devices()[0]}
    sharding = {} if is_anywhere else {"sharding": x.sharding}
    return jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=getattr(x, "weak_type", False), **sharding)


# Compile the step itself in a thread while the instrumented step is compiled: steps that are not inspected run it.


class CompileAhead:
    """Compiles a jitted step in a thread, for its next call with such arguments.

    It is traced in the thread of the user, as it would be at that call, and that call waits for the thread: which
    program runs a step never depends on which was ready first. Nothing is compiled ahead where the call would not find
    it, as before jax 0.10; where the thread would compile it otherwise, since the user's has options of its own; in a
    run of several processes; and on a GPU, where two compilations would disturb each other's choice of kernels.
    """

    def __init__(self, step: Any) -> None:
        self._step = step
        self._thread: threading.Thread | None = None
        self._has_begun = False

    def begin(self, args: tuple, kwargs: dict[str, Any]) -> None:
        """Begin, if it has not begun. An error is that of the call to come."""
        if self._has_begun:
            return
        self._has_begun = True
        disabled = jax.config.jax_disable_jit or jax.__version_info__ < (0, 10)  # type: ignore[attr-defined]
        if disabled or jax.process_count() > 1 or jax.default_backend() == "gpu":
            return
        if any_traced(jax.tree.leaves((args, kwargs))):
            return
        try:
            lowered = self._step.lower(*args, **kwargs)
        except Exception:
            return
        options = options_of_thread()

        def compile_() -> None:
            with contextlib.suppress(Exception):
                if options_of_thread() == options:
                    lowered.compile()

        self._thread = in_thread(compile_, "compilation")

    def wait(self) -> None:
        """Wait for the program; later calls need no other."""
        self._has_begun = True
        if self._thread is not None:
            self._thread.join()


def in_thread(work: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=work, name=f"treeviz {name}")
    thread.start()  # Python waits for it at its end: XLA must not be at work then
    return thread


def options_of_thread() -> list[Any]:
    """The options of JAX as they are in this thread; without transfer guards, which no program depends on."""
    names = (name for name in jax.config.values if not name.startswith("jax_transfer_guard"))
    return [getattr(jax.config, name, None) for name in names]


# Compare the step and the instrumented step during a run, on the user's own arguments.

AT_CALL = 16  # of an instrumented step: by then the optimizer's moments are warm, and short trials have ended
N_CALLS = 4  # that are then compared, since the last digit of a number may differ in every second one
GROWTH = 4  # then one call is compared at 64, 256, 1,024 …: some numbers differ only later in a run
MOST_BYTES = 1 << 30  # on one device, for copies of what the loop donates, or that are compared


def bytes_for_copies() -> float:
    """The bytes that copies may take on a device: at most 1 GiB, and only memory that was never in use."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return min(MOST_BYTES, stats.get("bytes_limit", math.inf) - stats.get("peak_bytes_in_use", 0))


class Comparison:
    """Compares each instrumented step with the step itself, in some of the user's calls.

    Such a call computes the step a second time, from copies of the arguments that it donates; a thread reads what both
    return. A difference ends it. If the step itself was not compiled yet, another thread lowers and compiles it from
    the traced program of the instrumented step (`plain`), while the loop goes on, and then compares that call.

    An error of the comparison ends it silently; `watch` says what is not compared. `tell` gets the result, or the size
    of copies that are too large, from any thread. If it `is_urgent`, the first call is compared, too.
    """

    def __init__(
        self,
        jitted: JittedStep,
        options: JitOptions,
        instrumented_steps: Sequence[Callable],
        plain: PlainProgram | None,
        tell: Callable[[Verification | int], None],
        is_urgent: bool = False,
    ) -> None:
        self._jitted, self._options, self._tell = jitted, options, tell
        self._plain: Callable | None = (lambda *args, **kwargs: jitted.step(*args, **kwargs)) if plain is None else None
        self._program = plain
        self._n_calls = {id(step): 0 for step in instrumented_steps}  # none any more, once it has ended
        self._due = dict.fromkeys(self._n_calls, 1 if is_urgent else AT_CALL)  # the next call that is compared
        self._n_compared: Counter[int] = Counter()  # from AT_CALL on
        self._is_compiling = False
        self._threads: list[threading.Thread] = []

    def stop(self) -> None:
        self._n_calls, self._plain = {}, None
        if self._program is not None:
            self._program.drop()

    @property
    def has_ended(self) -> bool:
        return not self._n_calls

    def is_due(self, instrumented_step: Callable) -> bool:
        """Count a call of an instrumented step; returns whether `run` shall call it."""
        step = id(instrumented_step)
        if step in self._n_calls:
            self._n_calls[step] += 1
        return step in self._n_calls and self._n_calls[step] >= self._due[step]

    def skip(self, instrumented_step: Callable) -> float:
        """Count the calls before the next that is compared, and return after how many calls that comes."""
        step = id(instrumented_step)
        if step not in self._n_calls:
            return math.inf
        n = max(self._due[step] - self._n_calls[step], 1)
        self._n_calls[step] += n - 1
        return n

    def wait(self) -> None:
        """Wait until the calls so far have been compared."""
        for thread in [*self._threads]:
            thread.join()

    def run(self, instrumented_step: Callable, /, *args: Any, **kwargs: Any) -> Any:
        """Call an instrumented step, and compare its results. Raises the errors of the step, not of the comparison."""
        copies = self._tried(lambda: self._copies(args, kwargs))
        out, measurement = instrumented_step(*args, **kwargs)
        if copies is not None and not self.has_ended:  # a step that was now traced may have effects
            self._schedule(id(instrumented_step))
            self._tried(lambda: self._compare(id(instrumented_step), copies, out, args, kwargs))
        return out, measurement

    def _schedule(self, step: int) -> None:
        n = self._n_calls.get(step, 0)
        if n < AT_CALL:
            self._due[step] = AT_CALL
            return
        self._n_compared[step] += 1
        self._due[step] = n + 1 if self._n_compared[step] < N_CALLS else AT_CALL
        while self._due[step] <= n:
            self._due[step] *= GROWTH

    def _tried(self, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except Exception:
            self.stop()

    def _copies(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
        """The arguments for the second run; None as long as it cannot be."""
        if self._plain is None and self._is_compiling:  # for a call that is compared when it is compiled
            return None
        leaves = jax.tree.leaves((args, kwargs))
        if jax.process_count() > 1:
            self.stop()
            return None
        disabled = jax.config.jax_disable_jit  # type: ignore[attr-defined]
        if disabled or any_traced(leaves):
            return None
        if not self._has_room(3 * n_bytes_on_device(leaves)):  # of the arguments, and of both results
            return None
        if self._plain is None or self._jitted.changes_arguments or self._options.donates:
            return self._jitted.copied((args, kwargs), copy_array)
        return args, kwargs

    def _has_room(self, n_bytes: int) -> bool:
        if n_bytes <= bytes_for_copies():
            return True
        self.stop()
        self._tell(n_bytes)
        return False

    def _compare(self, step: int, copies: Any, out: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        if not self._has_room(2 * n_bytes_on_device(jax.tree.leaves(out))):
            return
        changes = self._jitted.changes_arguments
        got = self._jitted.copied((out, (args, kwargs)) if changes else out, copy_array)  # the next step may donate it
        if self._plain is None:
            self._compile(*copies)
        compiling = [] if self._plain is not None else [*self._threads]
        expected = [] if compiling else [_results(self._jitted, self._plain, copies)]
        options = options_of_thread()

        def compare_() -> None:
            for thread in compiling:
                thread.join()
            if compiling and (self._plain is None or options_of_thread() != options):
                self._n_compared[step] -= 1  # this thread would run it otherwise: a later call is compared
                return
            with jax.transfer_guard("allow"):
                found = compare(expected.pop() if expected else _results(self._jitted, self._plain, copies), got)
            self._tell(found)
            if not found:
                self.stop()

        self._start(compare_)

    def _compile(self, args: tuple, kwargs: dict[str, Any]) -> None:
        self._is_compiling, program, self._program = True, self._program, None
        lower: Any = None
        if program is not None:
            if self._jitted.changes_arguments:
                args, kwargs = self._jitted.copied((args, kwargs), lambda x: x)
            inner = self._jitted.inside(lambda _: lambda *args, **kwargs: (args, kwargs), args, kwargs)
            lower = program.lowering(self._options, *inner)
        lowered = None if lower else _lowered(self._jitted, self._options, args, kwargs)
        options = options_of_thread()

        def compile_() -> None:
            nonlocal lowered
            if lower:
                try:
                    lowered = lower() if options_of_thread() == options else None
                except Exception:
                    lowered = None
            if lowered is None:
                self._is_compiling = False  # the next call lowers it in its own thread
            else:
                self._plain = _calling(self._jitted, self._options, lowered.compile())

        self._start(compile_)

    def _start(self, work: Callable[[], None]) -> None:
        running = [before for before in self._threads if before.is_alive()]
        self._threads = [*running, in_thread(lambda: self._tried(work), "comparison")]


def _lowered(jitted: JittedStep, options: JitOptions, args: tuple, kwargs: dict[str, Any]) -> Any:
    def make(function):
        again = jitted.jitted
        if function is not again.__wrapped__:  # that of NNX must know its wrapper
            again = options.jit(function)
        return again.lower

    if jitted.changes_arguments:
        args, kwargs = jitted.copied((args, kwargs), copy_array)
    return jitted.inside(make, args, kwargs)


def _calling(jitted: JittedStep, options: JitOptions, compiled: Any) -> Callable:
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


def n_bytes_on_device(leaves: Sequence[Any]) -> int:
    arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in arrays)
