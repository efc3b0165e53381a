"""Look at all parameters and their updates beside a step, now and then: in a program of its own, which is small.

What is measured in each step are gradients. Whether an update reaches the parameters, and how far it moves them, shows
in a few steps as well; so these run as they do, and then the parameters are compared with those that were given.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from treeviz.steps.joined import joined
from treeviz.steps.measure import Measurement
from treeviz.steps.measured_tree import in_layers, shape_of, with_dtypes
from treeviz.steps.names import sibling_name
from treeviz.steps.reduce import reduce_leaves
from treeviz.steps.statistics import LIGHT
from treeviz.steps.tracing.attribution import Attribution
from treeviz.steps.tracing.jit_options import JitOptions
from treeviz.steps.tracing.new_params import Path, match_new_params
from treeviz.steps.tracing.param_updates import differences
from treeviz.tree.forks import computed_once
from treeviz.tree.tracers import Tracer

FIRST, N_EVEN = 50, 5  # at calls 50, 100 … 250, and then after twice as many
MOST_BYTES = 1 << 30  # on one device, of the copies of parameters that a step donates

# It runs too rarely to be compiled well: in a fifth of the time. Later releases may rename these.
_QUICK = {"xla_backend_optimization_level": 0}
_QUICK |= {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
_copies = jax.jit(lambda leaves: [x.copy() for x in leaves])  # one call for all


def is_due(call: int) -> bool:
    """Whether to look in this call of a step, counted from 1."""
    part, rest = divmod(call, FIRST)
    return not rest and (part <= N_EVEN or (part % N_EVEN == 0 and (part // N_EVEN).bit_count() == 1))


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
        self._n_calls = 0
        self._traced: _Looked | None = None

    def traced(self, traced: Traced) -> None:
        """Take what is known of the program that runs next."""
        self._traced = _Looked(traced)

    def around(self, twin: Callable) -> Callable:
        """The twin, whose measurements have others beside them now and then."""

        def looked(*args, **kwargs):
            self._n_calls += 1
            if not is_due(self._n_calls):
                return twin(*args, **kwargs)
            looked = self._traced
            before = _tried(lambda: None if looked is None else self._before(looked, args, kwargs))
            out, measurement = twin(*args, **kwargs)
            if before is not None and looked is not None and looked is self._traced:
                measurement.beside = _tried(lambda: looked.measured(before, jax.tree.leaves(out)))
            return out, measurement

        return looked

    def _before(self, looked: _Looked, args: tuple, kwargs: dict[str, Any]) -> list[jax.Array] | None:
        args = tuple(x for i, x in enumerate(args) if i not in self._static and i - len(args) not in self._static)
        leaves = jax.tree.leaves((args, {name: x for name, x in kwargs.items() if name not in self._static}))
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            return None
        found, why_not = looked.params(leaves), looked.why_not
        if found and jax.process_count() > 1:
            why_not = "this is a run of several processes"
        elif found and self._donates:
            n_bytes = sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in found)
            if n_bytes <= MOST_BYTES:
                return _copies(found)
            why_not = f"copies of what the step donates would take {n_bytes / 2**30:.2g} GiB of a device"
        if why_not:
            self._tell(not_looked_at(why_not))
        return None if why_not else found


class _Looked:
    """Which arguments of a traced step are parameters, and which results their new values."""

    def __init__(self, traced: Traced) -> None:
        self._avals = [(v.aval.shape, getattr(v.aval, "dtype", None)) for v in traced.program.jaxpr.invars]
        # Of the constants numbers are read; tracers and large arrays are not kept.
        numbers = [x if isinstance(x, float | int | np.generic) else None for x in traced.program.consts]
        self._of = traced._replace(program=ClosedJaxpr(traced.program.jaxpr, numbers))
        self.why_not = "they change in a loop inside the step" if traced.has_loops else ""

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
        found = {i: leaves[i] for gradient, _ in self._trees for i in gradient.arguments}
        is_same = all(isinstance(x, jax.Array) and (x.shape, x.dtype) == self._avals[i] for i, x in found.items())
        return [leaves[i] for gradient, _ in self._trees for i in gradient.arguments] if found and is_same else None

    def measured(self, old: list[jax.Array], results: Sequence[Any]) -> Measurement:
        return self._measure(old, [results[i] for _, at in self._trees for i in at])

    @computed_once
    def _measure(self) -> Callable[[Sequence[jax.Array], Sequence[jax.Array]], Measurement]:
        is_known = (0, 5) <= jax.__version_info__ < (0, 11) and jax.default_backend() == "cpu"

        def measure(old, new):
            packed, sources, first = {}, [], 0
            for gradient, at in self._trees:
                mine, first = slice(first, first + len(at)), first + len(at)
                source = in_layers(with_dtypes(gradient.source, old[mine]), gradient.layers)
                for kind, values in (("params", old[mine]), ("updates", differences(new[mine], old[mine]))):
                    name = sibling_name(source.name, kind)
                    if values is not None and name not in packed:
                        left = iter(values)
                        leaves = [next(left) if has else None for has in gradient.source.has_number]
                        packed[name] = reduce_leaves(leaves, LIGHT, gradient.layers)
                        sources.append(source._replace(name=name))
            return joined(Measurement(packed, sources))

        return jax.jit(measure, compiler_options=_QUICK if is_known else None)


def _tried(function: Callable[[], Any]) -> Any:
    """What it returns; None if it raises: a look is no reason for a step to fail."""
    try:
        return function()
    except Exception:
        return None
