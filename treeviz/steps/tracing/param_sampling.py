"""Measure the parameters and their updates in some calls of a step, outside of the step, while the loop goes on.

Gradients are measured in each step. A few steps suffice to show whether updates reach the parameters, and how far they
move them; so the step runs unchanged, and then the new parameters are compared with the old ones.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from treeviz.analysis.stats import CHUNK, as_float64, host_view, lies_on_host
from treeviz.steps.measure import Joined, Layout, Measurement, joined
from treeviz.steps.reduce import reduce_leaves
from treeviz.steps.statistics import (
    EXPONENT_ZERO,
    LIGHT,
    NO_NUMBER,
    RANGE_AT,
    USUAL,
    MeasuredTree,
    in_layers,
    n_words,
    shape_of,
    sibling_name,
    with_dtypes,
)
from treeviz.steps.tracing.attribution import Attribution
from treeviz.steps.tracing.domains import Path, match_new_params
from treeviz.steps.tracing.jitted import JitOptions
from treeviz.steps.tracing.primitives import shape_and_dtype
from treeviz.steps.tracing.reap import differences
from treeviz.steps.tracing.verify import bytes_for_copies, copies, in_thread, n_bytes_on_device, options_of_thread
from treeviz.tree.runtime import computed_once, full_searches_put_off
from treeviz.tree.text import error_text
from treeviz.tree.tracers import any_traced

# Statistics of arrays in host memory by NumPy, which compiles nothing: rows as `treeviz.steps.reduce` packs them.

_MOST = 1000  # of the magnitude of an exponent, so that two to its power is a float64


def whole(array: jax.Array) -> np.ndarray:
    """An array whose devices use host memory: a view of it, or if it is sharded a copy. Waits for it."""
    if len(array.sharding.device_set) == 1:
        return host_view(array)
    copy = np.empty(array.shape, array.dtype)
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            copy[shard.index] = host_view(shard.data)
    return copy


def reduce_on_host(leaves: Sequence[tuple[np.ndarray, ...] | None], axes: Sequence[int | None] = ()) -> np.ndarray:
    """uint32[rows, n_words(LIGHT)]: as `reduce_leaves`, of arrays, or of the first of two less the other."""
    layers: list[tuple[np.ndarray, ...] | None] = []
    for arrays, axis in zip(leaves, axes or (None,) * len(leaves), strict=True):
        is_whole = arrays is None or axis is None
        layers += [arrays] if is_whole else zip(*[np.moveaxis(x, axis, 0) for x in arrays], strict=True)
    rows = np.zeros((len(layers), n_words(LIGHT)), np.uint32)
    rows[:, 0] = NO_NUMBER
    with np.errstate(all="ignore"):
        parts = [_sums(*zip(*batch, strict=True)) for batch in _batches(layers)]
        if not parts:
            return rows
        entries, of_peaks, of_exponents, of_squares, n_bad = map(np.concatenate, zip(*parts, strict=True))
        starts = np.flatnonzero(np.diff(entries, prepend=-1))
        sizes = np.diff(starts, append=len(entries))
        peaks = np.maximum.reduceat(of_peaks, starts)
        exponents = _exponents(peaks)
        squares = np.ldexp(of_squares, 2 * (of_exponents - np.repeat(exponents, sizes)))
        floats = np.add.reduceat(squares, starts), np.ldexp(peaks, -exponents)
        first = (EXPONENT_ZERO + exponents).astype(np.uint32) | np.uint32(USUAL << RANGE_AT)
        bits = [x.astype(np.float32).view(np.uint32) for x in floats]
        rows[entries[starts]] = np.stack([first, *bits, np.add.reduceat(n_bad, starts)], axis=1)
    return rows


def _batches(layers: Sequence[tuple[np.ndarray, ...] | None]) -> Iterator[list[tuple[int, np.ndarray]]]:
    """Pieces of the layers, each with the number of its layer; of small pieces many at a time."""
    batch: list[tuple[int, np.ndarray]] = []
    n = 0
    for entry, arrays in enumerate(layers):
        flat = [x.reshape(-1) for x in arrays or ()]
        for start in range(0, flat[0].size if flat else 0, CHUNK):
            piece = _difference(*[x[start : start + CHUNK] for x in flat])
            if batch and n + piece.size > CHUNK:
                yield batch
                batch, n = [], 0
            batch.append((entry, piece))
            n += piece.size
    if batch:
        yield batch


def _difference(left: np.ndarray, *right: np.ndarray) -> np.ndarray:
    """With the rounding of the device: at least in float32."""
    for x in right:
        low = left.dtype.itemsize < 4
        left = left.astype(np.float32) - x.astype(np.float32) if low else left - x
    return as_float64(left) if left.dtype.kind == "c" else left


def _sums(entries: Sequence[int], pieces: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Of each piece: its entry, the largest magnitude, its exponent, the squares by it, and the non-finite."""
    sizes = np.array([piece.size for piece in pieces])
    starts = np.cumsum(sizes) - sizes
    values = np.abs(np.concatenate(pieces, dtype=np.float64))
    is_bad = ~np.isfinite(values)
    values[is_bad] = 0
    peaks = np.maximum.reduceat(values, starts)
    exponents = _exponents(peaks)
    values *= np.repeat(np.ldexp(1.0, -exponents), sizes)
    values *= values
    n_bad = np.add.reduceat(is_bad, starts, dtype=np.uint32)
    return np.array(entries), peaks, exponents, np.add.reduceat(values, starts), n_bad


def _exponents(peaks: np.ndarray) -> np.ndarray:
    return np.clip(np.frexp(peaks)[1], -_MOST, _MOST)


# Measure parameters and their updates outside of a step, without blocking the loop.


class _Part(NamedTuple):
    """A tree that is measured: the parameters at some places, or their updates."""

    source: MeasuredTree
    is_update: bool
    gradient: Attribution
    at: slice

    def leaves(self, values: Sequence[Any]) -> list[Any]:
        """The values of its leaves; None for those without numbers."""
        left = iter(values)
        return [next(left) if has else None for has in self.gradient.source.has_number]


class TracedParams:
    """The parameters of a traced step whose new values are known, and what measures both; if not, `why_not`."""

    def __init__(
        self,
        program: ClosedJaxpr,
        argument_paths: Sequence[Path],
        result_paths: Sequence[Path],
        gradients: Sequence[Attribution],
        has_loops: bool,
    ) -> None:
        self._avals = list(map(shape_and_dtype, program.jaxpr.invars))
        # Of the constants numbers are read; tracers and large arrays are not kept.
        numbers = [x if isinstance(x, float | int | np.generic) else None for x in program.consts]
        self._of = ClosedJaxpr(program.jaxpr, numbers), argument_paths, result_paths, gradients
        self.why_not = "they change in a loop inside the step" if has_loops else ""
        self.why_not_compiled = ""  # the program that measures them
        self._compiled: Callable[..., Measurement] | None = None
        self._thread: threading.Thread | None = None

    @computed_once
    def _trees(self) -> list[tuple[Attribution, tuple[int, ...]]]:
        """The gradients of which all new values are known, with the numbers of these."""
        program, argument_paths, result_paths, gradients = self._of
        found = []
        for gradient in gradients:
            at = match_new_params(program, gradient.arguments, argument_paths, result_paths)
            shapes = [self._avals[i][0] for i in gradient.arguments]
            source = gradient.source
            of_gradient = [shape_of(x) for x, has in zip(source.shapes, source.has_number, strict=True) if has]
            if None not in at and shapes == of_gradient:
                found.append((gradient, tuple([i for i in at if i is not None])))
            elif None not in at:
                self.why_not = "they belong to the members of an ensemble"
        self.why_not = "" if found else self.why_not
        del self._of  # the program
        return found

    @computed_once
    def _parts(self) -> list[_Part]:
        parts: dict[str, _Part] = {}
        first = 0
        for gradient, _ in self._trees:
            at = slice(first, first := first + len(gradient.arguments))
            avals = [jax.ShapeDtypeStruct(*self._avals[i]) for i in gradient.arguments]
            source = in_layers(with_dtypes(gradient.source, avals), gradient.layers)
            for kind in ("params", "updates"):
                name = sibling_name(source.name, kind)
                parts.setdefault(name, _Part(source._replace(name=name), kind == "updates", gradient, at))
        return [*parts.values()]

    @computed_once
    def _layout(self) -> Layout:
        sources = tuple([part.source for part in self._parts])
        return Layout(sources, LIGHT, (), tuple([(len(source.paths), n_words(LIGHT)) for source in sources]))

    def among(self, leaves: Sequence[Any]) -> list[jax.Array] | None:
        """The parameters among the arguments; None if these are not those of the trace."""
        if len(leaves) != len(self._avals):
            return None
        at = [i for gradient, _ in self._trees for i in gradient.arguments]
        # As the program gets them: the first parameters may be NumPy's, which the user may change.
        avals = [self._avals[i] for i in at]
        pairs = [(leaves[i], dtype) for i, (_, dtype) in zip(at, avals, strict=True)]
        found = [jnp.array(x, dtype) if isinstance(x, np.ndarray) else x for x, dtype in pairs]
        types = [(x.shape, x.dtype) if isinstance(x, jax.Array) else None for x in found]
        return found if found and types == avals else None

    def new_among(self, out: Any) -> list[jax.Array]:
        results = jax.tree.leaves(out)
        return [results[i] for _, at in self._trees for i in at]

    def on_host(self, old: Sequence[jax.Array], new: Sequence[jax.Array], on_lost: Callable[[], None]) -> Measurement:
        """Measure what is in host memory, or will be; `on_lost` if another function has been given it to keep."""

        def rows() -> np.ndarray:
            jax.block_until_ready((old, new))
            before, after = ([whole(x) for x in arrays] for arrays in (old, new))
            pairs = [*zip(after, before, strict=True)], [(x,) for x in before]
            of_parts = [(part.leaves(pairs[not part.is_update][part.at]), part.gradient.layers) for part in self._parts]
            return np.concatenate([reduce_on_host(*of_part).reshape(-1) for of_part in of_parts])

        return Joined([_InThread(rows, on_lost)], self._layout)

    def on_device(self, old: Sequence[jax.Array], new: Sequence[jax.Array]) -> Measurement | None:
        """Measure on the device; None while the program is being compiled."""
        if self._compiled is not None:
            try:
                return self._compiled(old, new)
            except (TypeError, ValueError):  # they are sharded in another way
                self._compiled = None
        self._compile(old, new)
        return None

    def _compile(self, old: Sequence[Any], new: Sequence[Any]) -> None:
        """Begin to compile the program for such arrays, which may have been donated."""
        if self._thread is not None and self._thread.is_alive():
            return
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), (old, new))
        options = options_of_thread()

        def compile_() -> None:
            try:
                if options_of_thread() == options:
                    self._compiled = jax.jit(self._measure).lower(*like).compile()
                else:
                    self.why_not_compiled = "JAX has options in the thread of the loop alone"
            except Exception as error:
                self.why_not_compiled = error_text(error)

        self._thread = in_thread(compile_, "compilation")

    def _measure(self, old: Sequence[jax.Array], new: Sequence[jax.Array]) -> Measurement:
        packed, sources = {}, []
        for part in self._parts:
            values = differences(new[part.at], old[part.at]) if part.is_update else old[part.at]
            if values is not None:
                packed[part.source.name] = reduce_leaves(part.leaves(values), LIGHT, part.gradient.layers)
                sources.append(part.source)
        return joined(Measurement(packed, sources))


class _InThread:
    """The words that a thread computes, as an array that is ready when it has."""

    def __init__(self, compute: Callable[[], np.ndarray], on_lost: Callable[[], None]) -> None:
        self._words: np.ndarray | None = None

        def run() -> None:
            try:
                self._words = compute()
            except Exception:
                on_lost()

        self._thread = in_thread(run, "params")

    def is_ready(self) -> bool:
        return not self._thread.is_alive()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        self._thread.join()
        if self._words is None:
            raise RuntimeError("the arrays were deleted, or their step failed")
        return self._words

    @property
    def shape(self) -> tuple[int, ...]:
        return self.__array__().shape

    def __getitem__(self, at: Any) -> np.ndarray:
        return self.__array__()[at]


FIRST, N_EVEN = 50, 5  # at calls 50, 100 … 250, and then after twice as many
_EARLY = (1, 5)  # how far the first updates go; before all findings of zeros, which biases of zero explain


def next_sampled(call: int) -> int:
    """The next call of a step in which its parameters are measured, after this one, counted from 1."""
    if early := [n for n in _EARLY if call < n <= FIRST]:
        return early[0]
    part = call // FIRST + 1
    return FIRST * (part if part <= N_EVEN else N_EVEN << (-(-part // N_EVEN) - 1).bit_length())


def not_sampled(why: str) -> str:
    return (
        f"How far updates move the parameters is not measured: {why}. So 'frozen' covers only small parameters, "
        "'ratio' and 'underflow' none; GradientInspector(updates=True) measures all of them in each step."
    )


class ParamSampling:
    """Measures "params" and "updates" of a step outside of it. Where that is impossible, `report` gets a note."""

    def __init__(self, options: JitOptions, report: Callable[[str], None]) -> None:
        self._report = report
        static = [options.keywords.get(name) or () for name in ("static_argnums", "static_argnames")]
        self._donates, self._static = options.donates, frozenset(itertools.chain(*static))
        self._n_calls, self._next = 0, 1
        self._params: TracedParams | None = None
        self._in_first_call: tuple[tuple, dict[str, Any]] | None = None
        self._before_first: list[jax.Array] | None = None

    def traced(self, params: TracedParams) -> None:
        """Take what is known of the program that runs next."""
        self._params = params
        if self._in_first_call is not None:
            args, kwargs = self._in_first_call
            # These are the arguments, not what stands for them in the trace.
            with contextlib.suppress(Exception), jax.ensure_compile_time_eval():
                self._before_first = self._before(params, args, kwargs)

    def around(self, program: Callable) -> Callable:
        """The instrumented step, with `sampled_params` in some of its measurements."""

        def sampled(*args, **kwargs):
            self._n_calls = call = self._n_calls + 1
            if call < self._next:  # most calls
                return program(*args, **kwargs)
            self._next = next_sampled(call)
            params, before = self._params, None
            if params is not None:
                with contextlib.suppress(Exception):  # a sample is no reason for a step to fail
                    before = self._before(params, args, kwargs)
                out, measurement = program(*args, **kwargs)
            else:  # it is traced meanwhile: only then is known which arguments are parameters
                self._in_first_call = args, kwargs
                try:
                    with full_searches_put_off():
                        out, measurement = program(*args, **kwargs)
                    params, before = self._params, self._before_first
                finally:
                    self._in_first_call = self._before_first = None
            if before is not None and params is not None and params is self._params:
                with contextlib.suppress(Exception):
                    measurement.sampled_params = self._measured(params, before, out)
                if measurement.sampled_params is None and call < FIRST:  # the program is still being compiled
                    self._next = min(2 * call, self._next)
            return out, measurement

        return sampled

    def _before(self, params: TracedParams, args: tuple, kwargs: dict[str, Any]) -> list[jax.Array] | None:
        """The parameters that a call is given, or copies; None if they are not measured."""
        args = tuple(x for i, x in enumerate(args) if i not in self._static and i - len(args) not in self._static)
        leaves = jax.tree.leaves((args, {name: x for name, x in kwargs.items() if name not in self._static}))
        if any_traced(leaves):
            return None
        found, why_not = params.among(leaves), params.why_not
        if found and jax.process_count() > 1:
            why_not = "this is a run of several processes"
        elif found and self._donates:
            n_bytes = n_bytes_on_device(found) * (2 if all(map(lies_on_host, found)) else 1)
            if n_bytes <= bytes_for_copies():
                return copies(found)
            why_not = f"copies of what the step donates would take {n_bytes / 2**30:.2g} GiB of a device"
        if why_not and self._n_calls > 1:  # one call is no run
            self._report(not_sampled(why_not))
        return None if why_not else found

    def _measured(self, params: TracedParams, old: list[jax.Array], out: Any) -> Measurement | None:
        new = params.new_among(out)
        if all(map(lies_on_host, (*old, *new))):
            return params.on_host(old, copies(new) if self._donates else new, self._copy)
        if params.why_not_compiled:
            self._report(not_sampled(params.why_not_compiled))
        return params.on_device(old, new)

    def _copy(self) -> None:
        """From now on: another function of the loop donates what the step does not."""
        self._donates = True
