"""Replay a step, operation by operation, to find the one that produced the first NaN or Inf."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import tree_util

from treeviz.steps.nan_origin.nonfinite import NAN, bits_of, is_inexact
from treeviz.steps.nan_origin.replay import CannotLocateNan, Replay
from treeviz.steps.nan_origin.report import (
    NanOrigin,
    input_origin,
    is_backward,
    is_for_backward,
    operation_origin,
    place_of,
)
from treeviz.steps.nan_origin.taint import Site, Taint, Value
from treeviz.steps.tracing.backward_rules import lines_of_backward_rules
from treeviz.steps.tracing.primitives import inner_jaxprs
from treeviz.tree.safe_repr import visible
from treeviz.tree.tracers import Tracer

__all__ = ["CannotLocateNan", "NanOrigin", "locate_nan", "locate_nan_in"]


def locate_nan(function: Callable, *args: Any, **kwargs: Any) -> NanOrigin | None:
    """Replay a step on these arguments, and name the operation, file and line of the first NaN or Inf; None if there
    is none.

        @jax.jit
        def step(x):
            return jnp.mean(jnp.log(x))

        print(locate_nan(step, jnp.zeros(3)))    # forward: log at … gave 3 -Inf of 3, the first at [0], which …

    Costs, errors and options: see `locate_nan_in`.
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
    """Run a step equation by equation, and trace NaN and Inf in its results back to the operation that made them.

    An argument with a NaN is reported at once. Otherwise each result with NaN or Inf is traced back to its origin: an
    operation with finite operands and a result that is not finite. Of several origins the earliest is reported, and an
    operation goes before the derivative of the same line. Where an Inf became NaN later, the operation that made the
    Inf is reported.

    Inf in constants (a mask) or in scalar arguments (the best loss so far) is ignored until it produces NaN; then that
    operation is reported. Inf that reaches no result is ignored. If all results are finite, the first NaN on the way
    that is no constant is reported, with `reaches_outputs` False.

    Loops run as a whole first, and step by step if their results are not finite; a `shard_map` likewise, and then
    operation by operation on its devices, with one compilation for each kind of operation. What devices do differently
    there, a `cond` or the steps of a `while_loop`, is one operation. The cost is that of the step without fusion, twice
    if something is found. Debugging callbacks are left out. In a run of several processes, all must call it. Numbers
    can differ from those of the compiled step, which may keep float16 and bfloat16 in more digits between operations.

    Args:
      function: A jitted step or the Python function inside it. Only arrays among its arguments are traced, so
        static arguments work.
      args, kwargs: Its arguments. They are not donated.
      max_equations: The bound on the number of equations, with those of each step of the loops that are entered.
      only_results: Ignore NaN that reaches no result of the step, even in an argument.

    Raises:
      CannotLocateNan: The step has more equations than the bound, or its arguments are deleted or tracers.
    """
    leaves, treedef = tree_util.tree_flatten_with_path((tuple(args), dict(kwargs or {})))
    names = [_name(function, path) for path, _ in leaves]
    traced = [i for i, (_, leaf) in enumerate(leaves) if isinstance(leaf, jax.Array | np.ndarray | np.generic)]
    for i in traced:
        _check(names[i], leaves[i][1])

    def step(*arrays):
        everything = [leaf for _, leaf in leaves]
        for i, array in zip(traced, arrays, strict=True):
            everything[i] = array
        args, kwargs = tree_util.tree_unflatten(treedef, everything)
        # an Equinox step may return functions
        return [x for x in tree_util.tree_leaves(function(*args, **kwargs)) if isinstance(x, jax.Array | np.ndarray)]

    arrays = [leaves[i][1] for i in traced]
    with _undisturbed():
        taints = _taints_of(arrays)
        bad = [i for i, taint in enumerate(taints) if taint.bits]
        first = next((i for i in bad if taints[i].bits & NAN), None)
        if first is not None and not only_results:
            return input_origin(names[traced[first]], arrays[first], len(bad) - 1)
        with lines_of_backward_rules():
            program = jax.make_jaxpr(step)(*arrays)
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            operands = [Value(x, taint) for x, taint in zip(arrays, taints, strict=True)]
            replay = Replay(max_equations)
            results = replay.run(program, operands)
            blamed = _worst(results)
            reaches_outputs = blamed is not None
            blamed = blamed or (None if only_results else replay.checks.first_nan)
            if blamed is None or blamed.origin is None:
                return None
            if blamed.origin.eqn is None:
                i = blamed.origin.leaf
                return input_origin(names[traced[i]], arrays[i], len(bad) - 1, blamed.became)
            origin = _forward_of(blamed.origin, replay.checks.began)
            of_program = [names[i] for i in traced]
            return _seen_again(program, operands, replay, origin, blamed.became, reaches_outputs, of_program)


def _worst(results: Sequence[Taint]) -> Taint | None:
    """The result to report: the one whose origin is earliest, and among those the first that became NaN."""

    def when(taint: Taint) -> tuple[int, bool, int]:
        assert taint.origin is not None
        return taint.origin.order, taint.became is None, taint.became.order if taint.became else 0

    return min((t for t in results if t.origin is not None), key=when, default=None)


def _forward_of(origin: Site, began: Sequence[Site]) -> Site:
    """The forward operation of the same line, if it failed too: its result may be unused, as a loss often is."""
    if not (is_backward(origin) or is_for_backward(origin)):
        return origin
    place = place_of(origin)[0]
    earlier = (s for s in began if s.order < origin.order and not inner_jaxprs(s.eqn))
    same = (s for s in earlier if place_of(s)[0] == place and not is_backward(s))
    return next((s for s in same if not is_for_backward(s)), origin)


def _seen_again(
    program, operands, before: Replay, origin: Site, became: Site | None, reaches_outputs: bool, names: Sequence[str]
) -> NanOrigin:
    """Run the program again up to the origin, and report its operands, which the first run has freed."""
    found: list[NanOrigin] = []

    def report(inputs, outputs, device):
        found.append(operation_origin(origin, became, inputs, outputs, reaches_outputs, device, names))

    Replay(before.max_equations, origin.order, report, compiled=before.compiled).run(program, operands)
    return found[0] if found else operation_origin(origin, became, (), (), reaches_outputs)


def _taints_of(arrays: Sequence[Any]) -> list[Taint]:
    inexact = [i for i, x in enumerate(arrays) if is_inexact(x) and x.size]
    taints = [Taint() for _ in arrays]
    for i, bits in zip(inexact, jax.device_get([bits_of(arrays[i]) for i in inexact]), strict=True):
        bits, on_purpose = int(bits), not arrays[i].ndim and not int(bits) & NAN
        taints[i] = Taint(bits, Site(i - len(arrays), leaf=i) if bits and not on_purpose else None)
    return taints


def _check(name: str, leaf: Any) -> None:
    if isinstance(leaf, Tracer):
        raise CannotLocateNan(
            f"locate_nan: {name} is a tracer, which has no values. Call it outside jit, grad, vmap and scan."
        )
    if isinstance(leaf, jax.Array) and leaf.is_deleted():
        raise CannotLocateNan(
            f"locate_nan: {name} was deleted, likely donated to the step. "
            "Pass a copy made before the step: jax.tree.map(jnp.copy, ...)."
        )


def _name(function: Callable, path: Any) -> str:
    """ "params['w']", from a path into `(args, kwargs)`."""
    which, first, *rest = path
    name = f"argument {first.idx}" if which.idx == 0 else str(first.key)
    with contextlib.suppress(TypeError, ValueError):
        if which.idx == 0:
            parameters = list(inspect.signature(function).parameters.values())
            place = min(first.idx, len(parameters) - 1)
            name = parameters[place].name
            if parameters[place].kind is inspect.Parameter.VAR_POSITIONAL:
                name += f"[{first.idx - place}]"
    return visible(name + tree_util.keystr(tuple(rest)))


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Turn off JAX's debugging options and transfer guards in this thread, since NaN is expected."""
    with (
        jax.debug_nans(False),
        jax.debug_infs(False),
        jax.disable_jit(False),
        jax.check_tracer_leaks(False),  # type: ignore[attr-defined]
        jax.transfer_guard("allow"),
    ):
        yield
