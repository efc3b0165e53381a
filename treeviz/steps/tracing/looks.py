"""Look at all parameters and their updates beside a step, now and then, while the loop goes on.

What is measured in each step are gradients. Whether an update reaches the parameters, and how far it moves them, shows
in a few steps as well; so these run as they do, and then the parameters are compared with those that were given.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from treeviz.analysis.stats.host import lies_on_host
from treeviz.steps.measure import Measurement
from treeviz.steps.measured_tree import shape_of
from treeviz.steps.tracing.attribution import Attribution
from treeviz.steps.tracing.beside import Beside
from treeviz.steps.tracing.jit_options import JitOptions
from treeviz.steps.tracing.new_params import Path, match_new_params
from treeviz.steps.tracing.primitives import shape_and_dtype
from treeviz.tree.collector import full_searches_put_off
from treeviz.tree.forks import computed_once
from treeviz.tree.tracers import any_traced

FIRST, N_EVEN = 50, 5  # at calls 50, 100 … 250, and then after twice as many
_EARLY = (1, 5)  # how far the first updates go; before all findings of zeros, which biases of zero explain
MOST_BYTES = 1 << 30  # on one device, of the copies of what the loop donates


def is_due(call: int) -> bool:
    """Whether to look in this call of a step, counted from 1."""
    part, rest = divmod(call, FIRST)
    is_even = not rest and (part <= N_EVEN or (part % N_EVEN == 0 and (part // N_EVEN).bit_count() == 1))
    return is_even or call in _EARLY


def next_due(call: int) -> int:
    """The next call in which to look, after this one."""
    regular = itertools.count((call // FIRST + 1) * FIRST, FIRST)
    early = (n for n in _EARLY if call < n <= FIRST)
    return next(n for n in itertools.chain(early, regular) if is_due(n))


def not_looked_at(why: str) -> str:
    """A note that the parameters of a step are not looked at."""
    return (
        f"How far updates move the parameters is not looked at: {why}. So 'frozen' is found of small parameters only, "
        "'ratio' and 'underflow' of none; GradientInspector(updates=True) measures all in each step."
    )


class Traced(NamedTuple):
    """A step as it was traced, and the gradients that belong to its arguments.

    Attributes:
      has_loops: There are others, of parameters that change in a loop inside the step.
    """

    program: ClosedJaxpr
    argument_paths: Sequence[Path]
    result_paths: Sequence[Path]
    gradients: Sequence[Attribution]
    has_loops: bool


class Looks:
    """Measures "params" and "updates" of a step beside it. Where that cannot be, as for tracers, it does nothing.

    Args:
      options: With which `jax.jit` made the step.
      tell: Gets a note where it does nothing.
    """

    def __init__(self, options: JitOptions, tell: Callable[[str], None]) -> None:
        self._tell = tell
        static = (options.keywords.get(name) or () for name in ("static_argnums", "static_argnames"))
        self._donates, self._static = options.donates, frozenset(itertools.chain(*static))
        self._n_calls, self._next = 0, 1
        self._traced: _Looked | None = None
        self._in_first_call: tuple[tuple, dict[str, Any]] | None = None
        self._before_first: list[jax.Array] | None = None

    def traced(self, traced: Traced) -> None:
        """Take what is known of the program that runs next."""
        self._traced = looked = _Looked(traced)
        if self._in_first_call is not None:
            args, kwargs = self._in_first_call
            with jax.ensure_compile_time_eval():  # these are the arguments, not what stands for them in the trace
                self._before_first = _tried(lambda: self._before(looked, args, kwargs))

    def around(self, twin: Callable) -> Callable:
        """The twin, whose measurements have others beside them now and then."""

        def looked(*args, **kwargs):
            self._n_calls = call = self._n_calls + 1
            if call < self._next:  # most calls
                return twin(*args, **kwargs)
            self._next = next_due(call)
            looked = self._traced
            if looked is None:
                out, measurement, before = self._first(twin, args, kwargs)
                looked = self._traced
            else:
                before = _tried(lambda: self._before(looked, args, kwargs))
                out, measurement = twin(*args, **kwargs)
            if before is not None and looked is not None and looked is self._traced:
                measurement.beside = _tried(lambda: self._beside(looked, before, out))
                if measurement.beside is None and call < FIRST:  # the program is still being compiled
                    self._next = min(2 * call, self._next)
            return out, measurement

        return looked

    def _first(self, twin: Callable, args: tuple, kwargs: dict[str, Any]):
        """Call the twin, which is traced meanwhile: only then is known which arguments are parameters."""
        self._in_first_call = args, kwargs
        try:
            with full_searches_put_off():
                out, measurement = twin(*args, **kwargs)
            return out, measurement, self._before_first
        finally:
            self._in_first_call = self._before_first = None

    def _leaves(self, args: tuple, kwargs: dict[str, Any]) -> list[Any]:
        args = tuple(x for i, x in enumerate(args) if i not in self._static and i - len(args) not in self._static)
        return jax.tree.leaves((args, {name: x for name, x in kwargs.items() if name not in self._static}))

    def _before(self, looked: _Looked, args: tuple, kwargs: dict[str, Any]) -> list[jax.Array] | None:
        leaves = self._leaves(args, kwargs)
        if any_traced(leaves):
            return None
        found, why_not = looked.params(leaves), looked.why_not
        if found and jax.process_count() > 1:
            why_not = "this is a run of several processes"
        elif found and self._donates:
            n_bytes = sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in found)
            n_bytes *= 2 if all(map(lies_on_host, found)) else 1
            if n_bytes <= MOST_BYTES:
                return _copies(found)
            why_not = f"copies of what the step donates would take {n_bytes / 2**30:.2g} GiB of a device"
        if why_not and self._n_calls > 1:  # one call is no run
            self._tell(not_looked_at(why_not))
        return None if why_not else found

    def _beside(self, looked: _Looked, old: list[jax.Array], out: Any) -> Measurement | None:
        new, beside = looked.new_params(out), looked.beside(old)
        if not all(map(lies_on_host, (*old, *new))):
            if beside.why_not:
                self._tell(not_looked_at(beside.why_not))
            return beside.on_device(old, new)
        return beside.on_host(old, _copies(new) if self._donates else new, self._on_lost)

    def _on_lost(self) -> None:
        """Copy from now on: another function of the loop donates what the step does not."""
        self._donates = True


class _Looked:
    """Which arguments of a traced step are parameters, and which results their new values."""

    def __init__(self, traced: Traced) -> None:
        self._avals = list(map(shape_and_dtype, traced.program.jaxpr.invars))
        # Of the constants numbers are read; tracers and large arrays are not kept.
        numbers = [x if isinstance(x, float | int | np.generic) else None for x in traced.program.consts]
        self._of = traced._replace(program=ClosedJaxpr(traced.program.jaxpr, numbers))
        self.why_not = "they change in a loop inside the step" if traced.has_loops else ""
        self._beside: Beside | None = None

    @computed_once
    def _trees(self) -> list[tuple[Attribution, tuple[int, ...]]]:
        """The gradients of which all new values are known, with the numbers of these."""
        program, argument_paths, result_paths, gradients, _ = self._of
        found = []
        for gradient in gradients:
            at = match_new_params(program, gradient.arguments, argument_paths, result_paths)
            shapes = [self._avals[i][0] for i in gradient.arguments]
            source = gradient.source
            of_gradient = [shape_of(x) for x, has in zip(source.shapes, source.has_number, strict=True) if has]
            if None not in at and shapes == of_gradient:
                found.append((gradient, tuple(i for i in at if i is not None)))
            elif None not in at:
                self.why_not = "they belong to the members of an ensemble"
        self.why_not = "" if found else self.why_not
        del self._of  # the program
        return found

    def params(self, leaves: Sequence[Any]) -> list[jax.Array] | None:
        """The parameters among the arguments; None if these are not those of the trace."""
        if len(leaves) != len(self._avals):
            return None
        at = [i for gradient, _ in self._trees for i in gradient.arguments]
        found = [_as_given(leaves[i], self._avals[i][1]) for i in at]
        is_same = all(
            isinstance(x, jax.Array) and (x.shape, x.dtype) == self._avals[i] for i, x in zip(at, found, strict=True)
        )
        return found if found and is_same else None

    def new_params(self, out: Any) -> list[jax.Array]:
        """The new values among the results."""
        results = jax.tree.leaves(out)
        return [results[i] for _, at in self._trees for i in at]

    def beside(self, params: Sequence[jax.Array]) -> Beside:
        """What measures the parameters, of which these are some."""
        self._beside = self._beside or Beside([gradient for gradient, _ in self._trees], params)
        return self._beside


def _as_given(leaf: Any, dtype: Any) -> Any:
    """A leaf as the program gets it: the first parameters may be NumPy's, which the user may change."""
    return jnp.array(leaf, dtype) if isinstance(leaf, np.ndarray) else leaf


def _copies(arrays: list[jax.Array]) -> list[jax.Array]:
    if jax.__version_info__ < (0, 10) or not all(map(lies_on_host, arrays)):
        return [x.copy() for x in arrays]
    with jax.transfer_guard_device_to_device("allow"):
        return jax.device_put(arrays, [x.sharding for x in arrays], may_alias=False)  # without a compilation


def _tried(function: Callable[[], Any]) -> Any:
    """What it returns; None if it raises: a look is no reason for a step to fail."""
    try:
        return function()
    except Exception:
        return None
