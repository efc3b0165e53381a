"""Find the operation that produced the first NaN or Inf of a step, and keep the inputs of steps for that."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import operator
import re
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, tree_util
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun
from jax.sharding import PartitionSpec

from treeviz.steps.statistics import StopTraining
from treeviz.steps.tracing import primitives
from treeviz.steps.tracing.backward_rules import (
    SourceLine,
    call_of_rule,
    frames_of,
    is_jax_jit,
    lines_of_backward_rules,
)
from treeviz.steps.tracing.dataflow import Domain, Followed, followed_inside
from treeviz.steps.tracing.reap import shard_map_like, varying_axes
from treeviz.tree.keys import keystr
from treeviz.tree.paths import paths_without_boxes
from treeviz.tree.runtime import Lock, is_installed
from treeviz.tree.text import error_text, visible
from treeviz.tree.tracers import Tracer

if TYPE_CHECKING:
    from treeviz.steps.tracing.watch import Watched

__all__ = ["CannotLocateNan", "NanOrigin", "locate_nan", "locate_nan_in"]


def locate_nan(function: Callable, *args: Any, **kwargs: Any) -> NanOrigin | None:
    """The operation, file and line of the first NaN or Inf of a step; None if all values are finite.

        @jax.jit
        def step(x):
            return jnp.mean(jnp.log(x))

        print(locate_nan(step, jnp.zeros(3)))    # forward: log at … gave 3 -Inf of 3, the first at [0], which …

    See `locate_nan_in` for costs, errors and options.
    """
    return locate_nan_in(function, args, kwargs)


def locate_nan_in(
    function: Callable,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    max_equations: int = 1_000_000,
    only_results: bool = False,
) -> NanOrigin | None:
    """Run a step equation by equation, and trace NaN and Inf in its results back to the operation that produced them.

    Each non-finite result is traced back to its origin: an argument with NaN that no mask replaces, or an operation
    with finite operands and a non-finite result. The earliest origin is reported, and an operation is
    preferred to the derivative of the same line. If an Inf later became NaN, the operation that produced the Inf is
    reported.

    Inf in constants (a mask) or in scalar arguments (the best loss so far) is ignored until it produces NaN; then that
    operation is reported. Inf that reaches no result is ignored. If all results are finite, the first NaN that does not
    come from a constant is reported, with `reaches_outputs` False.

    A loop runs as a whole first, and step by step if its results are not finite. A `shard_map` does too, and then
    operation by operation on its devices, with one compilation per kind of operation. A `cond` or `while_loop` that
    takes different paths on different devices is one operation. The cost is that of the step without fusion, twice
    if an origin is found. Debugging callbacks are skipped. With several processes, all must call it. Values can differ
    from those of the compiled step, which may keep float16 and bfloat16 at higher precision between operations.

    Args:
      function: A jitted step or the Python function inside it. Only arrays among its arguments are traced, so
        static arguments work.
      args, kwargs: Its arguments. They are not donated.
      max_equations: The largest number of equations to run, including those of each step of the loops that are entered.
      only_results: Ignore NaN that reaches no result of the step, even in an argument.

    Raises:
      CannotLocateNan: The step has more equations than the bound, or its arguments are deleted or tracers.
    """
    leaves, treedef = tree_util.tree_flatten_with_path((tuple(args), dict(kwargs or {})))
    texts = paths_without_boxes([keystr(path) for path, _ in leaves])
    names = [_name(function, path, text) for (path, _), text in zip(leaves, texts, strict=True)]
    traced = [i for i, (_, leaf) in enumerate(leaves) if isinstance(leaf, jax.Array | np.ndarray | np.generic)]
    for i in traced:
        _check(names[i], leaves[i][1])

    def step(*arrays):
        everything = [leaf for _, leaf in leaves]
        for i, array in zip(traced, arrays, strict=True):
            everything[i] = array
        args, kwargs = tree_util.tree_unflatten(treedef, everything)
        # An Equinox step may return functions.
        return [x for x in tree_util.tree_leaves(function(*args, **kwargs)) if isinstance(x, jax.Array | np.ndarray)]

    arrays = [leaves[i][1] for i in traced]
    with _debug_checks_off():
        taints, inexact = [Taint() for _ in arrays], [i for i, x in enumerate(arrays) if is_inexact(x) and x.size]
        for i, bits in zip(inexact, map(int, jax.device_get([bits_of(arrays[i]) for i in inexact])), strict=True):
            on_purpose = not arrays[i].ndim and not bits & NAN
            taints[i] = Taint(bits, Site(i - len(arrays), leaf=i) if bits and not on_purpose else None)
        n_bad, argument = sum(bool(taint.bits) for taint in taints), next((t for t in taints if t.bits & NAN), None)
        with lines_of_backward_rules():
            program = jax.make_jaxpr(step)(*arrays)
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            operands = [Value(x, taint) for x, taint in zip(arrays, taints, strict=True)]
            replay = Replay(max_equations)
            try:
                results = [t for t in replay.run(program, operands) if t.origin is not None]
                reported = min(results, key=_order, default=None)
            except CannotLocateNan:
                if argument is None or only_results:
                    raise
                reported = argument
            reaches_outputs = reported is not None
            reported = reported or (None if only_results else argument or replay.checks.first_nan)
            if reported is None or reported.origin is None:
                return None
            if reported.origin.eqn is None:
                i = reported.origin.leaf
                return input_origin(names[traced[i]], arrays[i], n_bad - 1, reported.became)
            origin, traced_names = reported.origin, [names[i] for i in traced]
            if is_backward(origin) or is_for_backward(origin):
                # The forward operation of the same line, if it failed too; its result may be unused, as of a loss.
                place = place_of(origin)[0]
                earlier = (s for s in replay.checks.began if s.order < origin.order and not is_backward(s))
                candidates = (s for s in earlier if not primitives.inner_jaxprs(s.eqn) and place_of(s)[0] == place)
                origin = next((s for s in candidates if not is_for_backward(s)), origin)
            origins: list[NanOrigin] = []

            def report(inputs, outputs, device):
                about = reported.became, inputs, outputs, reaches_outputs, device, traced_names
                origins.append(operation_origin(origin, *about))

            # Up to the origin once more, to report its operands, which the first run has freed.
            Replay(max_equations, origin.order, report, compiled=replay.compiled).run(program, operands)
            return origins[0] if origins else operation_origin(origin, reported.became, (), (), reaches_outputs)


def _order(taint: Taint) -> tuple[int, bool, int]:
    """By the order of its origin; on a tie, what became NaN first is the first."""
    assert taint.origin is not None
    return taint.origin.order, taint.became is None, taint.became.order if taint.became else 0


def _check(name: str, leaf: Any) -> None:
    if isinstance(leaf, Tracer):
        text = f"{name} is a tracer, which has no values. Call it outside jit, grad, vmap and scan."
        raise CannotLocateNan(f"locate_nan: {text}")
    if isinstance(leaf, jax.Array) and leaf.is_deleted():
        raise CannotLocateNan(
            f"locate_nan: {name} was deleted, likely donated to the step. "
            "Pass a copy made before the step: jax.tree.map(jnp.copy, ...)."
        )


def _name(function: Callable, path: Any, text: str) -> str:
    """The name of an argument leaf, "params['w']", from its path into `(args, kwargs)`, and that as text."""
    outer, first = path[:2]
    name = f"argument {first.idx}" if outer.idx == 0 else str(first.key)
    with contextlib.suppress(TypeError, ValueError):
        if outer.idx == 0:
            parameters = list(inspect.signature(function).parameters.values())
            position = min(first.idx, len(parameters) - 1)
            name = parameters[position].name
            if parameters[position].kind is inspect.Parameter.VAR_POSITIONAL:
                name += f"[{first.idx - position}]"
    return visible(name + text.removeprefix(keystr(path[:2])))


@contextlib.contextmanager
def _debug_checks_off() -> Iterator[None]:
    """Turn off JAX's debug checks and transfer guards in this thread, since the replay meets NaN."""
    with (
        jax.debug_nans(False),
        jax.debug_infs(False),
        jax.disable_jit(False),
        jax.check_tracer_leaks(False),  # type: ignore[attr-defined]
        jax.transfer_guard("allow"),
    ):
        yield


# Copies of the inputs of the newest steps, to run a bad step again.

Key = tuple[str, int]  # the step function, and the number of its call


class Inputs(NamedTuple):
    step: Callable
    number: int  # of the call
    args: tuple
    kwargs: dict[str, Any]


class KeptInputs:
    """Keeps the inputs of the newest steps; after a bad step, only the inputs of that step."""

    def __init__(self, most: int) -> None:
        self.bad: Inputs | None = None  # of the first step with NaN or Inf in gradients, loss or parameters
        self.origin: NanOrigin | None = None  # where it comes from, once it was located
        self.most = most  # calls whose inputs are kept
        self._kept: dict[Key, Inputs] = {}
        self._unread: set[Key] = set()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def newest_first(self) -> list[Inputs]:
        """The inputs of the bad step, or of the newest steps if there is none."""
        with self._lock:
            return list(reversed(self._kept.values())) if self.bad is None else [self.bad]

    def follow(self, step: Watched, suffix: Callable[[], str], read: Callable[[], None]) -> None:
        """Keep the inputs of a step, in whose keys is the suffix, until that raises; `read` as in `keep`."""

        def keep_before_call(number: int, copies: Callable[[], tuple[tuple, dict]]) -> None:
            try:
                self.keep((suffix(), number), lambda: Inputs(step.__wrapped__, number, *copies()), read)
            except StopTraining:
                raise
            except Exception as error:
                step.on_before_call(None)
                text = f"inspector: inputs are no longer kept: {error_text(error)}"
                warnings.warn(text, RuntimeWarning, stacklevel=4)

        step.on_before_call(keep_before_call)

    def keep(self, key: Key, inputs: Callable[[], Inputs], read: Callable[[], None]) -> None:
        """Keep the `inputs` of a step about to run, in place of the oldest that was read. `read` makes room."""
        if self.bad is not None:
            return
        if len(self._unread) >= self.most:
            read()
        with self._lock:
            while len(self._kept) >= self.most:
                # A step that raised has no measurement, so its key stays unread.
                oldest = next((key for key in self._kept if key not in self._unread), next(iter(self._kept)))
                del self._kept[oldest]
                self._unread.discard(oldest)
            if self.bad is None:
                self._kept[key] = inputs()
                self._unread.add(key)

    def seen(self, key: Key, is_bad: bool) -> None:
        """Record that the measurements of a call were read, and whether they have NaN or Inf."""
        with self._lock:
            self._unread.discard(key)
            if is_bad and self.bad is None:
                self.bad = self._kept.get(key)
                self._kept.clear()
                self._unread.clear()

    def clear(self) -> None:
        with self._lock:
            self.bad = self.origin = None
            self._kept.clear()
            self._unread.clear()


def locate_nan_in_kept(
    kept: KeptInputs | None, step: int | None = None, *, max_equations: int = 1_000_000
) -> NanOrigin | None:
    """Replay kept steps and return the origin of the first NaN or Inf; see `GradientInspector.locate_nan`.

    NaN that reaches no result of `step` is reported too. Without a step or a known bad one, replays the newest steps in
    turn, until one has finite inputs and a non-finite result.
    """
    if kept is None:
        raise LookupError(
            "locate_nan: no inputs were kept. Run again with GradientInspector(keep_inputs=True), or call "
            "treeviz.steps.nan_origin.locate.locate_nan(step, *args) with inputs that you have."
        )
    kept_inputs = kept.newest_first
    selected = [inputs for inputs in kept_inputs if step in (None, inputs.number)]
    if step is not None and not selected:
        steps = ", ".join(str(inputs.number) for inputs in reversed(kept_inputs)) or "none yet"
        raise LookupError(
            f"locate_nan: the inputs of step {step} are not kept, only those of: {steps}. The newest inspected steps "
            "are kept, and after one with NaN or Inf only that step; GradientInspector(keep_inputs=10) keeps ten."
        )
    if kept.bad is not None and kept.origin is not None:
        return kept.origin
    found: NanOrigin | None = None
    for inputs in selected:
        # A healthy step may compute a NaN that no result uses.
        only_results = step is None and kept.bad is None
        options = {"max_equations": max_equations, "only_results": only_results}
        origin = locate_nan_in(inputs.step, inputs.args, inputs.kwargs, **options)
        if origin is not None:
            found = replace(origin, step=inputs.number)
        if found is not None and (origin is None or origin.direction != "input"):
            break  # a bad input may come from the step before
    kept.origin = found if kept.bad is not None else None
    return found


# Run a traced program equation by equation, and find where every non-finite value began.

# The kinds of non-finite values in an array, as three bits that stay on the device until they are read.

NAN, POSINF, NEGINF = 1, 2, 4


def is_inexact(x: Any) -> bool:
    """Whether x has a dtype that can hold a NaN."""
    dtype = getattr(x, "dtype", None)
    return jnp.issubdtype(dtype if dtype is not None else type(x), jnp.inexact)


def with_bits(results: Sequence[Any]) -> tuple[Sequence[Any], jax.Array]:
    """The results, and uint8[n_results] with the bits of each result. Traceable."""
    results = [x if isinstance(x, jax.Array) else jnp.asarray(x) for x in results]  # a program may return a constant
    return results, jnp.stack([_bits(x) if is_inexact(x) and x.size else jnp.uint8(0) for x in results])


def _bits(x: jax.Array) -> jax.Array:
    """uint8[]: an integer, since `jax_debug_nans` and `jax_debug_infs` check only floats."""
    word = jnp.uint8(0)
    for part in (jnp.real(x), jnp.imag(x)) if jnp.issubdtype(x.dtype, jnp.complexfloating) else (x,):
        if part.dtype.itemsize < 2:  # some 8-bit floats have no infinities to compare with
            part = part.astype(jnp.float32)
        for bit, is_kind in ((NAN, jnp.isnan(part)), (POSINF, part == jnp.inf), (NEGINF, part == -jnp.inf)):
            word |= jnp.any(is_kind).astype(jnp.uint8) * jnp.uint8(bit)
    return word


_bits_on_device = jax.jit(_bits)


def bits_of(x: Any) -> Any:
    """The bits of an array or a constant. The host reads what is in its memory: for that nothing is compiled."""
    if not is_inexact(x):
        return 0
    if isinstance(x, jax.Array) and not (x.is_fully_addressable and {d.platform for d in x.devices()} == {"cpu"}):
        return _bits_on_device(x)
    value = np.asarray(x)
    value = value[~np.isfinite(value)]
    value = value.astype(np.complex128 if np.iscomplexobj(value) else np.float64)
    parts = np.array([value.real, value.imag])
    is_any = [x.any() for x in (np.isnan(parts), parts == np.inf, parts == -np.inf)]
    return sum(bit for bit, is_kind in zip((NAN, POSINF, NEGINF), is_any, strict=True) if is_kind)


# Counts and ranges of the elements of one operand or result.


class Numbers(NamedTuple):
    """Shape, dtype, range and the counts of NaN and Inf of an array."""

    shape: tuple[int, ...]
    dtype: str
    least: float | None  # of the finite values, of magnitudes if complex; None if no value is finite
    greatest: float | None
    n_nan: int
    n_posinf: int
    n_neginf: int

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def nonfinite(self) -> str:
        """The counts as text, "3 -Inf and 1 NaN"; "" if all values are finite."""
        counts = ((self.n_nan, "NaN"), (self.n_posinf, "+Inf"), (self.n_neginf, "-Inf"))
        return " and ".join(f"{n:,} {kind}" for n, kind in counts if n)

    @property
    def range(self) -> str:
        text = "nothing finite"
        if self.least is not None and self.greatest is not None:
            text = f"[{self.least + 0.0:.4g}, {self.greatest + 0.0:.4g}]"
        return f"{text} with {self.nonfinite}" if self.nonfinite else text


def first_nonfinite(x: Any) -> tuple[int, ...]:
    """The index of the first NaN or Inf; empty for a scalar, or if other processes hold a part of x."""
    finite = _is_finite(x)
    return () if finite is None else tuple(map(int, np.unravel_index(int(finite.argmin()), finite.shape)))


def nonfinite_entries(x: Any) -> tuple[int, ...]:
    """The indices along the first axis, such as examples of a batch, with NaN or Inf; empty if unknown."""
    finite = _is_finite(x) if np.ndim(x) else None
    if finite is None:
        return ()
    return tuple(np.flatnonzero(~finite.all(axis=tuple(range(1, finite.ndim)))).tolist())


def _is_finite(x: Any) -> np.ndarray | None:
    if not getattr(x, "is_fully_addressable", True):
        return None
    return np.asarray(jax.device_get(jnp.isfinite(x.astype(jnp.float32) if x.dtype.itemsize < 2 else x)))


def numbers_of(x: Any) -> Numbers:
    x = jnp.asarray(x)
    least, greatest, *counts = [y.item() for y in jax.device_get(_numbers(x))] if x.size else (np.inf, -np.inf, 0, 0, 0)
    finite = least <= greatest
    return Numbers(x.shape, str(x.dtype), least if finite else None, greatest if finite else None, *map(int, counts))


@jax.jit
def _numbers(x: jax.Array):
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        real = jnp.where(jnp.isfinite(x), jnp.abs(x), jnp.where(jnp.isnan(x), jnp.nan, jnp.inf))
    else:
        real = x.astype(jnp.float32) if x.dtype.itemsize < 4 else x
    finite = jnp.isfinite(real)
    least, greatest = (
        reduce(real, where=finite, initial=start) for reduce, start in ((jnp.min, np.inf), (jnp.max, -np.inf))
    )
    return least, greatest, *(jnp.sum(is_kind) for is_kind in (jnp.isnan(real), real == np.inf, real == -np.inf))


# The body of a `shard_map`, run operation by operation on its devices.

Device = tuple[tuple[str, int], ...]  # (("data", 3), ("model", 0))


class Devices:
    """Runs parts of the body of a `shard_map`; outside, its values have a leading axis of devices that may differ."""

    def __init__(self, eqn: Any) -> None:
        self._eqn, self._params = eqn, eqn.params

    def enter(self, operands: Sequence[Any], avals: Sequence[Any]) -> list[Any]:
        """The operands of the `shard_map` as values of its body."""
        in_specs = tuple(primitives.specs_of(self._params, "in", self._eqn.invars))
        split = shard_map_like(self._params, _with_axis, in_specs, tuple(map(self._spec, avals)))
        return list(jax.jit(split)(*operands))

    def constant(self, value: Any, aval: Any) -> Any:
        """A constant or literal as a value of the body."""
        array = jnp.asarray(value, getattr(aval, "dtype", None))
        return jnp.broadcast_to(array, (int(np.prod(self._sizes(aval))), *array.shape))

    def per_device(self, function: Callable, in_avals: Sequence[Any], out_avals: Sequence[Any]) -> Callable:
        """Makes a part of the body, `function`, a function of values with the device axis."""

        def on_device(*operands):
            return _with_axis(*function(*(x[0] for x in operands)))

        in_specs, out_specs = (tuple(map(self._spec, avals)) for avals in (in_avals, out_avals))
        return shard_map_like(self._params, on_device, in_specs, out_specs)

    def key_of(self, eqn: Any) -> Any:
        """A key that is equal for equations with the same computation and types."""
        avals = (tuple(v.aval for v in variables) for variables in (eqn.invars, eqn.outvars))
        try:
            key = id(self._eqn), eqn.primitive, *avals, frozenset(eqn.params.items())
            hash(key)
        except TypeError:  # a parameter cannot be hashed
            return id(eqn)
        return key

    def first_bad(
        self, operands: Sequence[Any], in_avals: Sequence[Any], results: Sequence[Any], out_avals: Sequence[Any]
    ) -> tuple[Device, list[Any], list[Any]]:
        """The first device with a non-finite result, and the operands and results on it, or on all if those agree."""
        device: Device = ()
        for x, aval in zip(results, out_avals, strict=True):
            if is_inexact(x) and x.size and x.is_fully_addressable:
                bad = jax.device_get(_has_nonfinite(x))
                if bad.any():
                    position = np.unravel_index(int(bad.argmax()), self._sizes(aval))
                    device = tuple(zip(varying_axes(self._params, aval), map(int, position), strict=True))
                    break
        on_device = functools.partial(self._on, device)
        return device, [*map(on_device, operands, in_avals)], [*map(on_device, results, out_avals)]

    def _on(self, device: Device, x: Any, aval: Any) -> Any:
        if not is_inexact(x) or not x.is_fully_addressable:
            return x
        position, axes = dict(device), varying_axes(self._params, aval)
        rows = np.arange(len(x)).reshape(self._sizes(aval))[tuple(position.get(axis, slice(None)) for axis in axes)]
        by_row: dict[int, np.ndarray] = {}
        for shard in x.addressable_shards:  # only the shards that are needed leave the devices
            first = shard.index[0].start or 0
            here = ({*rows.ravel().tolist()} & {*range(first, first + len(shard.data))}) - by_row.keys()
            if here:
                data = jax.device_get(shard.data)
                by_row |= {row: data[row - first] for row in here}
        return np.stack([by_row[row] for row in rows.ravel().tolist()]).reshape(*rows.shape, *x.shape[1:])

    def _sizes(self, aval: Any) -> tuple[int, ...]:
        return tuple(self._params["mesh"].shape[axis] for axis in varying_axes(self._params, aval))

    def _spec(self, aval: Any) -> PartitionSpec:
        return PartitionSpec(varying_axes(self._params, aval) or None)


def _with_axis(*xs):
    return tuple(x[None] for x in xs)


@jax.jit
def _has_nonfinite(x: jax.Array) -> jax.Array:
    return jnp.any(~jnp.isfinite(x), axis=tuple(range(1, x.ndim)))


# Taints: the non-finite values of a replay, each with the equation that produced it.

_READ_AT_ONCE = 256  # equations whose checks are transferred together


class Within(NamedTuple):
    """The position of a jaxpr within the program."""

    jaxpr: Jaxpr
    outer: Within | None = None  # the position of the enclosing jaxpr; None for the program
    eqn: Any = None  # the equation there that holds this one
    iterations: tuple[tuple[str, int], ...] = ()  # of the enclosing loops, the outermost first: ("scan", 7)

    def inside(self, eqn: Any, jaxpr: Jaxpr, step: int | None = None) -> Within:
        iteration = () if step is None else ((eqn.primitive.name, step),)
        return Within(jaxpr, self, eqn, self.iterations + iteration)


class Site(NamedTuple):
    """One run of one equation; or an argument of the program, with the index of its leaf and a negative order."""

    order: int
    eqn: Any = None
    within: Within | None = None
    leaf: int = -1


@dataclass(eq=False)
class Taint:
    """The kinds of non-finite elements in a value, and their origin. Holds no array."""

    bits: int = 0  # `NAN`, `POSINF` and `NEGINF`, combined
    origin: Site | None = None  # what produced them; None if the value is finite, or infinite because of a constant
    became: Site | None = None  # where an infinity turned into NaN


_FINITE = Taint()


class Value(NamedTuple):
    array: Any
    taint: Taint = _FINITE


@dataclass
class Checks:
    """Checks values, and finds the origins of non-finite ones."""

    first_nan: Taint | None = None  # the first value with one that does not come from a constant, even if it is unused
    began: list[Site] = field(default_factory=list)  # every site with finite operands and a non-finite result
    constant_nans: set[int] = field(default_factory=set)  # the orders of sites whose NaN comes from a constant operand
    # Checks whose results are still on the devices: the bits, and the arguments of `judge` beside them.
    waiting: list[tuple[jax.Array, Taint, list[Taint], Site | None]] = field(default_factory=list)

    def add(self, x: Any, operands: list[Taint], site: Site | None) -> Taint:
        """The taint of a value, filled in by the next `read`; `site` is None for a constant."""
        if not is_inexact(x) or not x.size:
            return _FINITE
        taint = Taint()
        self.waiting.append((bits_of(x), taint, operands, site))
        if len(self.waiting) >= _READ_AT_ONCE:
            self.read()
        return taint

    def read(self) -> None:
        waiting, self.waiting = self.waiting, []
        all_bits = jax.device_get([bits for bits, *_ in waiting])
        for bits, (_, taint, operands, site) in zip(all_bits, waiting, strict=True):
            self.judge(taint, int(bits), operands, site)

    def judge(self, taint: Taint, bits: int, operands: Sequence[Taint], site: Site | None) -> None:
        """Set the taint of a result from its bits and the taints of the operands."""
        taint.bits = bits
        if not bits or site is None:
            return
        operand_bits = 0
        for operand in operands:
            operand_bits |= operand.bits
        name = site.eqn.primitive.name
        if bits & NAN and operand_bits & NAN:
            # A constant NaN in another dtype is still a constant.
            _inherit(taint, [t for t in operands if t.bits & NAN], None if name in primitives.CASTS else site)
            if taint.origin is site:  # some functions, such as `jnp.var`, have a constant NaN that they rarely select
                self.constant_nans.add(site.order)
        elif bits & NAN:
            _inherit(taint, [t for t in operands if t.bits], site)
            if taint.origin is not site:
                taint.became = site
        elif not operand_bits or (
            name in primitives.KEEPS_SIGN_OF_INFINITY and not operand_bits & NAN and bits & ~operand_bits
        ):
            taint.origin = site
        else:
            _inherit(taint, operands, None)
        if bits & NAN and taint.origin is not None and taint.origin.order not in self.constant_nans:
            self.first_nan = self.first_nan or taint
        if taint.origin is site:
            self.began.append(site)


def _inherit(taint: Taint, operands: Sequence[Taint], default: Site | None) -> None:
    """Use the earliest origin among the operands; `default` if none is known."""
    candidates = [t for t in operands if t.origin is not None]
    first = min(candidates, key=lambda t: t.origin.order, default=None)  # type: ignore[union-attr]
    taint.origin, taint.became = (default, None) if first is None else (first.origin, first.became)


class CannotLocateNan(Exception):
    """The program cannot be run equation by equation, or has more equations than the bound."""


# Yields (number, operands) of each step of a loop, and receives the results of the step.
_Steps = Generator[tuple[int, list[Value]], Any, None]


class _Arrived(Exception):
    """The replay reached the equation at `stop_at`."""


@dataclass
class Replay:
    max_equations: int  # and loop steps, at the most
    stop_at: int = -1  # the order of the site to stop at; -1 to run to the end
    # Called at that site with (operands, results, device); inside a `shard_map`, those of one device.
    on_arrival: Callable[[Sequence[Any], Sequence[Any], Device], None] | None = None
    checks: Checks = field(default_factory=Checks)
    n: int = 0  # equations and loop steps so far
    devices: Devices | None = None  # of the `shard_map` whose body is being run
    compiled: dict[Any, Callable] = field(default_factory=dict)  # operations for these, reused by another run

    def run(self, program: ClosedJaxpr, operands: Sequence[Value]) -> list[Taint]:
        """The taints of the program's results; empty if it stopped at `stop_at`."""
        try:
            results = self.jaxpr(program.jaxpr, program.consts, operands, Within(program.jaxpr))
        except _Arrived:
            return []
        self.checks.read()
        return [value.taint for value in results]

    def jaxpr(self, jaxpr: Jaxpr, consts: Sequence[Any], operands: Sequence[Value], within: Within) -> list[Value]:
        values: dict[Any, Value] = dict(zip(jaxpr.invars, operands, strict=True))
        consts = [self.constant(x, v) for v, x in zip(jaxpr.constvars, consts, strict=True)]
        values.update((v, Value(x, self.checks.add(x, [], None))) for v, x in zip(jaxpr.constvars, consts, strict=True))
        freed_after = primitives.last_uses(jaxpr)

        def read(atom) -> Value:
            if isinstance(atom, Literal):
                return Value(self.constant(atom.val, atom), Taint(bits_of(atom.val)))
            return values[atom]

        for n, eqn in enumerate(jaxpr.eqns):
            results = self.equation(eqn, [read(x) for x in eqn.invars], within)
            values.update(zip(eqn.outvars, results, strict=True))
            for variable in freed_after.get(n, ()):
                values.pop(variable, None)
        return [read(x) for x in jaxpr.outvars]

    def inner(self, jaxpr: Any, operands: Sequence[Value], within: Within, eqn: Any, step: int | None = None):
        opened = primitives.open_jaxpr(jaxpr)
        return self.jaxpr(opened, primitives.consts_of(jaxpr), operands, within.inside(eqn, opened, step))

    def site(self, eqn: Any, within: Within) -> Site:
        self.n += 1
        if self.n > self.max_equations:
            raise CannotLocateNan(
                f"locate_nan: after {self.max_equations:,} equations the step was not over. "
                "Pass a smaller step, or allow more: locate_nan_in(step, args, max_equations=...)."
            )
        return Site(self.n, eqn, within)

    def equation(self, eqn: Any, operands: list[Value], within: Within) -> list[Value]:
        name = eqn.primitive.name
        if name in primitives.CALLS:
            return self.inner(primitives.called_jaxpr(eqn), operands, within, eqn)
        if name == primitives.COND:
            index, *operands = operands
            branches = eqn.params["branches"]
            taken = np.unique(np.clip(jax.device_get(index.array), 0, len(branches) - 1))
            if len(taken) == 1:  # devices may take different branches
                return self.inner(branches[int(taken[0])], operands, within, eqn)
            operands = [index, *operands]
        site = self.site(eqn, within)
        if name in primitives.DEBUG_CALLBACKS:  # the user's own run called them already
            return []
        results = self.run_equation(eqn, [x.array for x in operands])
        self.arrive(site, [x.array for x in operands], eqn.invars, results, eqn.outvars)
        if name in primitives.IDENTITY or name in primitives.RESHAPES:  # they produce no new values
            return [Value(x, operand.taint) for x, operand in zip(results, operands, strict=False)]
        taints = [x.taint for x in operands]
        values = [Value(x, self.checks.add(x, taints, site)) for x in results]
        if name in (primitives.SCAN, primitives.WHILE) or (name == primitives.SHARD_MAP and self.devices is None):
            self.checks.read()
            if any(site in (v.taint.origin, v.taint.became) for v in values):
                (self.shards if name == primitives.SHARD_MAP else self.loop)(eqn, operands, values, within)
        return values

    def arrive(self, site: Site, operands: Sequence[Any], invars, results: Sequence[Any], outvars) -> None:
        if site.order != self.stop_at:
            return
        device: Device = ()
        if self.devices is not None:
            avals = [[v.aval for v in variables] for variables in (invars, outvars)]
            device, operands, results = self.devices.first_bad(operands, avals[0], results, avals[1])
        if self.on_arrival is not None:
            self.on_arrival(operands, results, device)
        raise _Arrived

    # Inside a `shard_map`, each operation is compiled separately, and each value has a leading device axis.

    def constant(self, value: Any, atom: Any) -> Any:
        return value if self.devices is None else self.devices.constant(value, atom.aval)

    def on_devices(self, function: Callable, invars: Sequence[Any], outvars: Sequence[Any]) -> Callable:
        """The function; inside a `shard_map`, mapped over its devices."""
        if self.devices is None:
            return function
        return self.devices.per_device(function, [v.aval for v in invars], [v.aval for v in outvars])

    def run_equation(self, eqn: Any, operands: Sequence[Any]) -> list[Any]:
        def run(*operands):
            with eqn.ctx.manager:
                return primitives.bind(eqn, operands)

        if self.devices is not None:
            key = self.devices.key_of(eqn)
            if key not in self.compiled:
                self.compiled[key] = jax.jit(self.on_devices(run, eqn.invars, eqn.outvars))
            return list(self.compiled[key](*operands))
        if eqn.primitive.name not in primitives.COMPILED_ONLY:
            with contextlib.suppress(NotImplementedError):  # e.g. for a collective
                return run(*operands)
        with eqn.ctx.manager:
            return jax.jit(run)(*operands)

    def shards(self, eqn: Any, operands: list[Value], results: list[Value], within: Within) -> None:
        """As `loop`, inside a `shard_map`, which stays one operation if this JAX cannot run its parts."""
        body = primitives.called_jaxpr(eqn)
        self.devices = Devices(eqn)
        try:
            avals = [v.aval for v in primitives.open_jaxpr(body).invars]
            inside = self.devices.enter([x.array for x in operands], avals)
            entered = [Value(x, operand.taint) for x, operand in zip(inside, operands, strict=True)]
            inner_values = self.inner(body, entered, within, eqn)
            self.checks.read()
        except (_Arrived, CannotLocateNan):
            raise
        except Exception:
            return
        finally:
            self.devices = None
        for outer, inner in zip(results, inner_values, strict=True):
            if inner.taint.bits and (inner.taint.bits & NAN or not outer.taint.bits & NAN):
                vars(outer.taint).update(vars(inner.taint))

    # Loops: `equation` runs the whole loop. If a non-finite value begins in it, its steps run one by one, and the step
    # in which it begins runs equation by equation.

    def loop(self, eqn: Any, operands: list[Value], results: list[Value], within: Within) -> None:
        """Find the origins of non-finite results inside a loop, and set them in the results' taints."""
        if eqn.primitive.name == primitives.SCAN:
            body, steps = primitives.scan_parts(eqn, operands).body, self.scan_steps(eqn, operands)
        else:
            body, steps = primitives.while_parts(eqn, operands).body, self.while_steps(eqn, operands)
        # A step and its check are one program, compiled once.
        one_step = self.on_devices(jaxpr_as_fun(body), body.jaxpr.invars, body.jaxpr.outvars)
        run = jax.jit(lambda *xs: with_bits(one_step(*xs)))
        from_constants = [0] * len(results)
        unexplained = {i for i, v in enumerate(results) if v.taint.bits}
        outputs: list[Value] | None = None
        while unexplained:
            try:
                k, inputs = steps.send(outputs)
            except StopIteration:
                return
            outputs = self.step(eqn, body, run, k, inputs, from_constants, within)
            for i in sorted(unexplained):
                outer, inner = results[i].taint, outputs[i].taint
                if inner.bits and (inner.bits & NAN or not outer.bits & NAN):
                    outer.origin, outer.became = inner.origin, inner.became
                    if inner.origin is not None or not outer.bits & NAN:
                        unexplained.discard(i)

    def step(self, eqn: Any, body: ClosedJaxpr, run, k: int, inputs: list[Value], from_constants, within: Within):
        """Run step k of a loop by its compiled body, and find the origins of its non-finite results.

        Updates `from_constants`: for each result, the bits known to come from constants of the body.
        """
        site = self.site(eqn, within)
        arrays, all_bits = run(*(x.array for x in inputs))
        outputs = [Value(x, Taint()) for x in arrays]
        for i, bits in enumerate(map(int, jax.device_get(all_bits))):
            if bits & ~from_constants[i]:
                self.checks.judge(outputs[i].taint, bits, [x.taint for x in inputs], site)
            else:
                outputs[i].taint.bits = bits
        if any(site in (v.taint.origin, v.taint.became) for v in outputs):
            by_equation = self.inner(body, inputs, within, eqn, k)
            self.arrive(site, [x.array for x in inputs], body.jaxpr.invars, arrays, body.jaxpr.outvars)
            self.checks.read()
            for i, value in enumerate(by_equation):
                if value.taint.bits & NAN or not outputs[i].taint.bits & NAN:
                    vars(outputs[i].taint).update(vars(value.taint))
                    if value.taint.origin is None:
                        from_constants[i] |= value.taint.bits
        return outputs

    def scan_steps(self, eqn: Any, operands: list[Value]) -> _Steps:
        parts = primitives.scan_parts(eqn, operands)
        carry, length = parts.carry, parts.length
        axis = 0 if self.devices is None else 1
        entry = jax.jit(lambda xs, k: [lax.dynamic_index_in_dim(x, k, axis, keepdims=False) for x in xs])
        for k in range(length):
            index = length - 1 - k if parts.reverse else k
            x = entry([x.array for x in parts.xs], np.int32(index))
            # An entry has the taint of the whole array, although it may be finite; the step's own check decides.
            inputs = [*parts.consts, *carry, *map(Value, x, [v.taint for v in parts.xs])]
            outputs = yield index, inputs
            carry = outputs[: len(carry)]

    def while_steps(self, eqn: Any, operands: list[Value]) -> _Steps:
        """Ends early if the loop continues only on some devices or for some members of a `vmap`."""
        parts = primitives.while_parts(eqn, operands)
        carry, condition = parts.carry, parts.condition
        continues = self.on_devices(jaxpr_as_fun(condition), condition.jaxpr.invars, condition.jaxpr.outvars)
        continues = jax.jit(continues)
        for k in itertools.count():
            if not np.all(jax.device_get(continues(*(x.array for x in (*parts.cond_consts, *carry)))[0])):
                return
            carry = yield k, [*parts.body_consts, *carry]


# The report: the operation, its source line, the batch entries, a sentence and advice.

# The entries of the arguments, such as examples of a batch, that a value of the program belongs to.

# For each axis of a value, the arguments whose first axis it follows: index i depends on entry i of them. `OTHERS`
# among them: it also depends on unknown entries, as of a shuffled batch. Empty: all indices depend on the same entries.
Axes = tuple[frozenset[int], ...]

OTHERS = -1
_NONE: frozenset[int] = frozenset()
_OTHERS = frozenset([OTHERS])
_SAME_AXES = primitives.ELEMENTWISE | frozenset(
    [
        *("exp2", "expm1", "log1p", "logistic", "pow", "erf", "erf_inv", "erfc", "sin", "cos", "tan", "clamp", "rem"),
        *("sinh", "cosh", "asin", "acos", "atan", "atan2", "cbrt", "floor", "ceil", "round", "is_finite", "lgamma"),
    ]
)


def axes_of_results(eqn: Any, within: Within) -> Sequence[Axes]:
    followed = _followed(within, eqn)
    if eqn.primitive.name in _Entries.enters:
        return followed_inside(followed.domain, eqn, [followed.read(x) for x in eqn.invars])[1]
    return followed.domain.results(eqn, [followed.read(x) for x in eqn.invars])


def _followed(within: Within, until: Any) -> Followed[Axes]:
    """The enclosing jaxpr followed up to an equation, with the axes of its values."""
    domain, jaxpr = _Entries(), within.jaxpr
    if within.outer is None:
        ranks = (getattr(v.aval, "ndim", 0) for v in jaxpr.invars)
        axes = [(frozenset([i]), *(_OTHERS,) * (rank - 1))[:rank] for i, rank in enumerate(ranks)]
        return Followed(domain, jaxpr, axes).to(until)
    if within.eqn.primitive.name == primitives.SHARD_MAP:  # an index on a device is not an index of the whole array
        return Followed(domain, jaxpr, [_uniform(v) for v in jaxpr.invars]).to(until)
    outer = _followed(within.outer, within.eqn)
    inner, _ = followed_inside(domain, within.eqn, [outer.read(x) for x in within.eqn.invars])
    return next(program for program in inner if program.jaxpr is jaxpr)


def _uniform(atom: Any, axis: frozenset[int] = _OTHERS) -> Axes:
    return (axis,) * len(getattr(atom.aval, "shape", ()))


class _Entries(Domain[Axes]):
    """Follows along which axes of a value the entries of arguments are."""

    enters = primitives.CALLS | {primitives.COND, primitives.SCAN, primitives.WHILE}

    def unknown(self, atom: Any) -> Axes:
        return _uniform(atom)

    def constant(self, value: Any) -> Axes:
        return (_NONE,) * np.ndim(value)

    def entry(self, xs: Axes) -> Axes:
        return xs[1:]

    def stacked(self, y: Axes) -> Axes:
        return (_OTHERS, *y)

    def join(self, values: Sequence[Axes], atom: Any) -> Axes:
        axes = values[0]
        for other in values[1:]:
            pairs = zip(axes, other, strict=True)
            axes = tuple(x | y if x == y or not (x and y) else (x & y) | _OTHERS for x, y in pairs)
        return axes

    def results(self, eqn: Any, operands: Sequence[Axes]) -> list[Axes]:
        name = eqn.primitive.name
        unknown = [_uniform(v, _OTHERS if any(map(any, operands)) else _NONE) for v in eqn.outvars]
        if len(unknown) == 1 and name in _RULES:
            return [_RULES[name](eqn, operands)]
        if len(unknown) == 1 and name.startswith("reduce_") and "axes" in eqn.params:
            return [tuple(axis for i, axis in enumerate(operands[0]) if i not in eqn.params["axes"])]
        if name in primitives.IDENTITY:
            return list(operands[: len(unknown)])
        if name in ("slice", "dynamic_slice", "split"):  # an axis of unchanged length is whole
            before, *shapes = (v.aval.shape for v in (eqn.invars[0], *eqn.outvars))
            return [_kept_axes(map(operator.eq, before, shape), operands[0]) for shape in shapes]
        if name not in _SAME_AXES:
            return unknown
        same_rank = ([x for x in operands if len(x) == len(old)] for old in unknown)
        joined = (tuple(_NONE.union(*axes) for axes in zip(*xs, strict=True)) for xs in same_rank)
        return [new or old for new, old in zip(joined, unknown, strict=True)]


# Rules: (equation, axes of its operands) -> axes of its result


def _broadcast(eqn: Any, operands: Sequence[Axes]) -> Axes:
    axes = [_NONE] * len(eqn.params["shape"])
    shape = eqn.invars[0].aval.shape
    for i, target in enumerate(eqn.params["broadcast_dimensions"]):
        axes[target] = operands[0][i] if shape[i] == eqn.params["shape"][target] else _NONE
    return tuple(axes)


def _kept_axes(kept: Iterable[bool], axes: Axes) -> Axes:
    return tuple(axis if keep or not axis else _OTHERS for keep, axis in zip(kept, axes, strict=True))


def _windows(eqn: Any, operands: Sequence[Axes]) -> Axes:
    """Keeps an axis whose windows have one element, such as the batch axis in pooling."""
    p = eqn.params
    lengths = zip(p["window_dimensions"], p["window_strides"], p["base_dilation"], p["padding"], strict=True)
    return _kept_axes([(*ones, *padding) == (1, 1, 1, 0, 0) for *ones, padding in lengths], operands[0])


def _reshape(eqn: Any, operands: Sequence[Axes]) -> Axes:
    """Keeps the leading axes whose sizes do not change."""
    shapes = [v.aval.shape for v in (eqn.invars[0], eqn.outvars[0])]
    kept = len([*itertools.takewhile(lambda sizes: sizes[0] == sizes[1], zip(*shapes, strict=False))])
    return (*operands[0][:kept], *(_OTHERS if any(operands[0]) else _NONE,) * (len(shapes[1]) - kept))


def _dot_general(eqn: Any, operands: Sequence[Axes]) -> Axes:
    contracting, batch = eqn.params["dimension_numbers"]
    left, right = operands
    result = [left[i] | right[j] for i, j in zip(*batch, strict=True)]
    for axes, contracted, shared in zip(operands, contracting, batch, strict=True):
        result += [axis for i, axis in enumerate(axes) if i not in (*contracted, *shared)]
    return tuple(result)


def _conv(eqn: Any, operands: Sequence[Axes]) -> Axes:
    numbers, axes = eqn.params["dimension_numbers"], [_OTHERS] * len(eqn.outvars[0].aval.shape)
    if eqn.params["batch_group_count"] == 1:
        axes[numbers.out_spec[0]] = operands[0][numbers.lhs_spec[0]]
    return tuple(axes)


def _gather(eqn: Any, operands: Sequence[Axes]) -> Axes:
    """The gathered rows, as of an embedding table, have the axes of their indices."""
    axes, offset_dims = [_OTHERS] * len(eqn.outvars[0].aval.shape), eqn.params["dimension_numbers"].offset_dims
    for i, axis in zip((i for i in range(len(axes)) if i not in offset_dims), operands[1][:-1], strict=True):
        axes[i] = axis or _OTHERS
    return tuple(axes)


_RULES: dict[str, Callable[[Any, Sequence[Axes]], Axes]] = {
    "broadcast_in_dim": _broadcast,
    "conv_general_dilated": _conv,
    "dot_general": _dot_general,
    "gather": _gather,
    **dict.fromkeys(("reduce_window_sum", "reduce_window_max", "reduce_window_min"), _windows),
    "reshape": _reshape,
    "squeeze": lambda eqn, xs: tuple(x for i, x in enumerate(xs[0]) if i not in eqn.params["dimensions"]),
    "transpose": lambda eqn, xs: tuple(xs[0][i] for i in eqn.params["permutation"]),
}

# Advice for an operation that produced NaN or Inf.

_WHERE_ADVICE = (
    "A branch that jnp.where does not take is differentiated all the same, and 0 * Inf is NaN: make its argument safe "
    "first, e.g. jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1)), 0)."
)
_BY_PRIMITIVE = {
    "log": "Keep the argument above 0: jnp.log(x + eps), or for probabilities jax.nn.log_softmax.",
    "log1p": "Keep the argument above -1: jnp.log1p(jnp.maximum(x, -1 + eps)).",
    "sqrt": "Keep the argument at 0 or above: jnp.sqrt(jnp.maximum(x, 0)), and above 0 if it is differentiated.",
    "rsqrt": "Keep the argument above 0: jax.lax.rsqrt(x + eps).",
    "pow": "A fractional power of a negative base is NaN, a negative power of 0 is Inf: jnp.maximum(x, eps) ** p.",
    "acos": "Keep the argument within [-1, 1]: jnp.clip(x, -1 + eps, 1 - eps).",
    "asin": "Keep the argument within [-1, 1]: jnp.clip(x, -1 + eps, 1 - eps).",
    "atanh": "Keep the argument within (-1, 1): jnp.clip(x, -1 + eps, 1 - eps).",
    "acosh": "Keep the argument at 1 or above: jnp.maximum(x, 1).",
    "erf_inv": "Keep the argument within (-1, 1): jnp.clip(x, -1 + eps, 1 - eps).",
    "cholesky": "The matrix is not positive definite: add jitter to its diagonal, a + eps * jnp.eye(n).",
    "triangular_solve": "The matrix is singular: add jitter to its diagonal, a + eps * jnp.eye(n).",
    "eigh": "Equal eigenvalues have no derivative: add jitter to the diagonal.",
    "svd": "Equal singular values have no derivative: add jitter, or stop the gradient there.",
    "select_n": "A NaN constant was put there, by jnp.where or by a function that marks invalid arguments with NaN.",
    "integer_pow": "A negative power of 0 is infinite, and a large one too large: bound the base.",
}
_BY_PRIMITIVE["log2"] = _BY_PRIMITIVE["log"]
_WHOLE = ("shard_map", "cond", "xla_pmap", "pallas_call", "scan", "while", "custom_partitioning", "custom_linear_solve")
_GROWS = ("exp", "exp2", "expm1", "sinh", "cosh")
_SUMS = (
    *("dot_general", "conv_general_dilated", "reduce_sum", "cumsum", "mul", "add", "sub", "square", "integer_pow"),
    *("add_any", "convert_element_type", "reduce_prod", "scatter-add"),
)


def advice(name: str, direction: str, source: str, inputs: Sequence[Numbers], outputs: Sequence[Numbers]) -> str:
    """What to try, chosen by the primitive, its direction, source line, operands and results."""
    bad = next((x for x in outputs if x.nonfinite), None)
    infinite_inputs = any(x.n_posinf or x.n_neginf for x in inputs)
    if name in _WHOLE:
        return f"{name} ran as a whole: call locate_nan on the function inside it for more detail."
    if bad and bad.n_nan and infinite_inputs:
        return (
            "Intended infinities met: Inf - Inf and 0 * Inf are NaN. Has a row of a mask nothing but "
            "-Inf? Mask with a large finite number: jnp.finfo(x.dtype).min."
        )
    if direction == "backward":
        if "where" in source:
            return _WHERE_ADVICE
        if re.search(r"\ba(rc)?(cos|sin)\b", source):
            return (
                "The derivative of arccos and arcsin is infinite at -1 and 1: keep the argument between them, "
                "jnp.clip(x, -1 + 1e-6, 1 - 1e-6)."
            )
        if "sqrt" in source or "norm" in source:
            return (
                "The derivative of a square root, and so of a norm, is infinite at 0: jnp.sqrt(jnp.sum(x * x) + eps)."
            )
    if name in _GROWS and bad:
        limit = float(np.log(float(jnp.finfo(bad.dtype).max)))
        wider = ", or compute it in float32" * (jnp.finfo(bad.dtype).bits < 32)
        return (
            f"{name} of {bad.dtype} overflows above {limit:.4g}: subtract the maximum first (jax.nn.softmax, "
            f"jax.nn.logsumexp), or clip the argument{wider}."
        )
    if name in ("div", "rem"):
        if re.search(r"norm|\bstd\b|\bvar\b", source):
            return "The divisor is a norm or deviation of 0: write x / (norm + eps), or jnp.where(norm > 0, norm, 1)."
        return "Keep the divisor away from 0: x / (y + eps), or x / jnp.where(y == 0, 1, y)."
    if name in _BY_PRIMITIVE:
        extra = f" {_WHERE_ADVICE}" if "where" in source and name != "select_n" else ""
        return _BY_PRIMITIVE[name] + extra
    if name in _SUMS and bad and not bad.n_nan:
        largest = float(jnp.finfo(bad.dtype).max)
        return (
            f"The result is above {largest:.4g}, the largest {bad.dtype}: lower the learning rate or clip the "
            "gradients if values grew over the steps, or compute this in a wider dtype."
        )
    return "Bound the inputs of this line, and inspect how they became so large or small: jax.debug.print, treeviz.tap."


@dataclass(frozen=True)
class NanOrigin:
    """The operation that produced the first NaN or Inf of a step.

        origin = inspector.locate_nan()
        print(origin)                                   # a sentence, the source line, and advice
        origin.primitive, origin.file, origin.line      # "div", "model.py", 31

    Attributes:
      primitive: The name of the JAX primitive: "div". Empty if an argument of the step contains the NaN.
      direction: "forward", "backward", or "input".
      file, line, function, source: The source line: the innermost frame outside JAX.
      called_from: The innermost frame outside installed libraries, if different: "train.py:31 in update", or
        "Cell In[3], line 31 in update" in a notebook. For a backward rule, the frame that calls its function.
      iterations: The iterations of the enclosing loops, the outermost first: ("scan", 7).
      inputs, outputs: Shapes, dtypes and ranges of its floating-point operands and results.
      became: The operation in which an infinity became NaN: "sub at model.py:31 in loss".
      reaches_outputs: Whether the NaN or Inf reaches a result of the step.
      argument: The argument of the step, and the path of the leaf: "params['w']".
      text: What happened, in a sentence.
      advice: What to try.
      step: The number of the step in a run.
      device: Inside a `shard_map`, the first device with the NaN or Inf, along the axes of the mesh: ("data", 3).
        Inputs and outputs are those on it. Empty outside, and for values that are equal on all devices.
      index: The index of the first NaN or Inf in the result; empty for a scalar.
      examples: The entries of arguments, such as examples of the batch, that the value depends on: ("batch['x'][17]",).
        Empty if unknown, or if it also depends on others, as in a shuffled batch. For an argument with NaN or Inf, the
        entries that contain some, unless all do.
    """

    primitive: str
    direction: str
    file: str
    line: int
    function: str
    source: str
    called_from: str
    iterations: tuple[tuple[str, int], ...]
    inputs: tuple[Numbers, ...]
    outputs: tuple[Numbers, ...]
    became: str
    reaches_outputs: bool
    argument: str
    text: str
    advice: str
    step: int | None = None
    device: tuple[tuple[str, int], ...] = ()
    index: tuple[int, ...] = ()
    examples: tuple[str, ...] = ()

    def __str__(self) -> str:
        source = f"\n    {self.source}" if self.source else ""
        step = "" if self.step is None else f" That was in step {self.step:,}."
        return f"{self.text}{step}{source}\n{self.advice}"


def input_origin(name: str, array: Any, n_others: int = 0, became: Site | None = None) -> NanOrigin:
    """Report an argument that contains NaN or Inf before the step begins."""
    numbers, index = numbers_of(array), first_nonfinite(array)
    text = f"Input {name} has {numbers.nonfinite} (of {numbers.size:,}) before the step begins"
    entries = nonfinite_entries(array) if len(index) > 1 else ()
    examples = tuple(f"{name}[{i}]" for i in entries if len(entries) < len(array))
    if index:
        text += f", the first at {list(index)}"
        rest = f" and {len(examples) - 3:,} more" if len(examples) > 3 else ""
        text += f", in {', '.join(examples[:3])}{rest} only" if examples else ""
    if n_others:
        text += f", and {n_others:,} more of its arguments are not finite"
    became_text = _operation(became)
    text += f"; {became_text} turned it into NaN" if became else ""
    advice = "Check the previous step, which returned it, or the data loading."
    return NanOrigin(
        "", "input", "", 0, "", "", "", (), (numbers,), (), became_text, True, name, f"{text}.", advice,
        index=index, examples=examples,
    )  # fmt: skip


def operation_origin(
    site: Site,
    became: Site | None,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    reaches_outputs: bool,
    device: tuple[tuple[str, int], ...] = (),
    names: Sequence[str] = (),
) -> NanOrigin:
    """Report an operation, without ranges if there are no inputs and outputs; `names` are those of the arguments."""
    assert site.within is not None
    name = site.eqn.primitive.name
    place, called_from = place_of(site)
    direction = "backward" if is_backward(site) or is_for_backward(site) else "forward"
    ins, outs = [[numbers_of(x) for x in xs if is_inexact(x)] for xs in (inputs, outputs)]
    text = f"In the {direction} pass, {name} at {place}"
    if called_from:
        text += f" (from {called_from})"
    iterations = [f"iteration {k} of {loop}" for loop, k in site.within.iterations]
    text += f", in {', '.join(iterations)}," if iterations else ""
    if device:
        text += f"{'' if iterations else ','} on the device at {', '.join(f'{axis}={k}' for axis, k in device)},"
    bad = next((x for x in outs if x.nonfinite), None)
    text += f" produced {bad.nonfinite} (of {bad.size:,})" if bad else " produced non-finite values"
    index, examples, relation = _first_nonfinite_entry(site, outputs, names)
    if index:
        text += f", the first at {list(index)}"
        text += f", {relation} {' and '.join(examples[:3])}" if examples else ""
        text += "," if ins else ""
    bad_index = _bad_index(site.eqn, inputs)
    if bad_index:
        text = f"{text.removesuffix(',')}: {bad_index}"
    elif ins:
        text += " from inputs in " + " and ".join(x.range for x in ins[:4]) + (" …" if len(ins) > 4 else "")
    became_text = _operation(became)
    text += f"; {became_text} turned it into NaN" if became else ""
    text += "" if reaches_outputs else "; it does not reach any result of the step"
    return NanOrigin(
        name, direction, *place, place.source, called_from, site.within.iterations, tuple(ins), tuple(outs),
        became_text, reaches_outputs, "", f"{text}.",
        _INDEX_ADVICE if bad_index else advice(name, direction, place.source, ins, outs),
        device=device, index=index, examples=examples if relation == _BELONGS else (),
    )  # fmt: skip


_INDEX_ADVICE = (
    "JAX reads NaN there. Check what computes the index, such as labels, ids or positions, and the size of the array."
)


def _bad_index(eqn: Any, inputs: Sequence[Any]) -> str:
    """Names the first index of a gather that is out of range; "" if there is none."""
    if eqn.primitive.name != "gather" or len(inputs) != 2:
        return ""
    shape, starts = inputs[0].shape, np.asarray(inputs[1])
    for column, axis in enumerate(eqn.params["dimension_numbers"].start_index_map):
        indices, n_valid = starts[..., column], shape[axis] - eqn.params["slice_sizes"][axis] + 1
        if (bad := indices[(indices < 0) | (indices >= n_valid)]).size:
            return f"index {bad.flat[0]} is out of range for axis {axis} of size {shape[axis]}"
    return ""


_BELONGS, _DEPENDS = "which belongs to", "which depends, among others, on"


def _first_nonfinite_entry(
    site: Site, outputs: Sequence[Any], names: Sequence[str]
) -> tuple[tuple[int, ...], tuple[str, ...], str]:
    """The index of the first non-finite result, the entries of arguments that it depends on, and the relation."""
    assert site.within is not None
    for n, x in enumerate(outputs):
        if not is_inexact(x) or not numbers_of(x).nonfinite:
            continue
        index = first_nonfinite(x)
        try:
            axes = axes_of_results(site.eqn, site.within)[n] if index else ()
        except Exception:  # the parameters of an operation differ in this JAX
            axes = ()
        known = next(((i, argument) for i, argument in zip(index, axes, strict=False) if argument - {OTHERS}), None)
        if known is None or len(axes) != len(index):
            return index, (), ""
        examples = tuple(f"{names[argument]}[{known[0]}]" for argument in sorted(known[1] - {OTHERS}))
        return index, examples, _DEPENDS if OTHERS in known[1] else _BELONGS
    return (), (), ""


def _operation(site: Site | None) -> str:
    if site is None:
        return ""
    backward = "the backward pass of " if is_backward(site) else ""
    return f"{backward}{site.eqn.primitive.name} at {place_of(site)[0]}"


# Source lines


def place_of(site: Site) -> tuple[SourceLine, str]:
    """The innermost frame outside JAX; and that outside all libraries, or that calls a backward rule, if it differs."""
    chain = [*_chain(site)]
    calls = next((frames_of(call) for eqn in chain if (call := call_of_rule(eqn)) is not None), [])
    # JAX caches the traces of its own jitted functions, with the frames of their first caller.
    jax_jits = [i for i, eqn in enumerate(chain) if i and is_jax_jit(eqn)]
    for eqn in chain[max(jax_jits, default=0) :]:
        frames = frames_of(eqn.source_info.traceback) + calls
        if frames:
            own_frame = next((f for f in calls or frames if not is_installed(f.file)), frames[0])
            return frames[0], str(own_frame) if own_frame != frames[0] else ""
    return SourceLine(), ""


def _chain(site: Site) -> Iterator[Any]:
    """The equation of a site, and those that hold it, the innermost first."""
    yield site.eqn
    within = site.within
    while within is not None and within.eqn is not None:
        yield within.eqn
        within = within.outer


# Forward or backward


def is_backward(site: Site) -> bool:
    return any(map(_is_transposed, _chain(site)))


def _is_transposed(eqn: Any) -> bool:
    return any(getattr(part, "name", "") == "transpose" for part in eqn.source_info.name_stack.stack)


def is_for_backward(site: Site) -> bool:
    """Whether only the backward pass uses the results: JAX computes factors of derivatives in the forward pass."""
    variables, within = site.eqn.outvars, site.within
    while within is not None:
        reached, used, is_used = {*variables}, set(), False
        for eqn in within.jaxpr.eqns:
            inputs = {v for v in eqn.invars if not isinstance(v, Literal) and v in reached}
            used |= inputs
            is_used |= bool(inputs) and _is_transposed(eqn)
            if inputs and not _is_transposed(eqn):
                reached.update(eqn.outvars)
        outvars = within.jaxpr.outvars
        positions = [i for i, v in enumerate(outvars) if not isinstance(v, Literal) and v in reached]
        if reached - used - {outvars[i] for i in positions}:
            return False  # another value is computed from it, even if unused
        if not positions:
            return is_used
        variables = [within.eqn.outvars[i] for i in positions] if within.eqn is not None else []
        within = within.outer
    return False
