"""Replay a step to find the operation in which something stopped being finite."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import tree_util
from jax.core import Tracer

from treeviz.analysis.culprit import (
    Culprit,
    input_culprit,
    is_backward,
    is_for_backward,
    numbers_of,
    operation_culprit,
    place_of,
)
from treeviz.analysis.nonfinite import NAN, bits_of, is_inexact
from treeviz.analysis.replay import CannotHunt, Replay, Site, Taint, Value
from treeviz.tree.quote import visible

__all__ = ["CannotHunt", "Culprit", "hunt", "hunt_in"]


def hunt(function: Callable, *args: Any, **kwargs: Any) -> Culprit | None:
    """Name the operation, file and line where the first value that is not finite arose, in a step replayed on these
    arguments; None if there is none.

        print(hunt(update, params, x, y))

    See `hunt_in`.
    """
    return hunt_in(function, args, kwargs)


def hunt_in(
    function: Callable,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    max_equations: int = 1_000_000,
    only_results: bool = False,
) -> Culprit | None:
    """Run a step equation by equation, and see where what is not finite in its results began.

    An argument with a NaN is named at once. Otherwise each result that is not finite is followed back to where it
    began: an operation that gave NaN or Inf although what went into it was finite. What began earlier goes before what
    began later, and an operation before the derivative of the same line. An Inf that became NaN later is the one to
    blame. An Inf that reaches no result is nobody's fault; nor is one that is a constant of the program, as in a mask,
    or a scalar argument, as in a "best loss so far", until it makes a NaN, which is then blamed on the operation that
    makes it. If all results are finite, the first NaN on the way that is no constant is named, with `reaches_outputs`
    False.

    Loops are run as a whole first, and looked into, step by step, if they give something bad; what is `shard_map`ped
    is one operation. Costs as much as the step in operations that are not fused, twice if something is found. Host
    callbacks for debugging are left out; in a run of several processes, all must hunt. Numbers can differ from those
    of the compiled step, which may keep float16 and bfloat16 in more digits between operations.

    Args:
      function: A jitted step or the Python function inside it. Arguments that are no arrays are not traced, so static
        ones can stay what they are.
      args, kwargs: Its arguments. They are not donated.
      max_equations: Give up after so many, counting the steps of loops that are looked into.
      only_results: Say nothing of a NaN that reaches no result of the step, not even if an argument has it.

    Raises:
      CannotHunt: The step was not over within the bound, or its arguments are deleted or tracers.
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
        # an Equinox step gives functions, too
        return [x for x in tree_util.tree_leaves(function(*args, **kwargs)) if isinstance(x, jax.Array | np.ndarray)]

    arrays = [leaves[i][1] for i in traced]
    with _undisturbed():
        taints = _taints_of(arrays)
        bad = [i for i, taint in enumerate(taints) if taint.bits]
        first = next((i for i in bad if taints[i].bits & NAN), None)
        if first is not None and not only_results:
            return input_culprit(names[traced[first]], numbers_of(arrays[first]), len(bad) - 1)
        program = jax.make_jaxpr(step)(*arrays)
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            operands = [Value(x, taint) for x, taint in zip(arrays, taints, strict=True)]
            replay = Replay(max_equations)
            results = replay.run(program, operands)
            blamed = _worst(results)
            reaches_outputs = blamed is not None
            blamed = blamed or (None if only_results else replay.first_nan)
            if blamed is None or blamed.origin is None:
                return None
            if blamed.origin.eqn is None:
                i = blamed.origin.leaf
                return input_culprit(names[traced[i]], numbers_of(arrays[i]), len(bad) - 1, blamed.became)
            origin = _forward_of(blamed.origin, replay.began)
            return _seen_again(program, operands, max_equations, origin, blamed.became, reaches_outputs)


def _worst(results: Sequence[Taint]) -> Taint | None:
    """The result to be explained: what began first, and then what first became NaN."""

    def when(taint: Taint) -> tuple[int, bool, int]:
        assert taint.origin is not None
        return taint.origin.order, taint.became is None, taint.became.order if taint.became else 0

    return min((t for t in results if t.origin is not None), key=when, default=None)


def _forward_of(origin: Site, began: Sequence[Site]) -> Site:
    """What failed before the derivative of its line did, though its result may go nowhere: a loss is often dropped."""
    if not (is_backward(origin) or is_for_backward(origin)):
        return origin
    place = place_of(origin)[0]
    same = (s for s in began if s.order < origin.order and place_of(s)[0] == place and not is_backward(s))
    return next((s for s in same if not is_for_backward(s)), origin)


def _seen_again(program, operands, max_equations, origin: Site, became: Site | None, reaches_outputs: bool) -> Culprit:
    """Nothing was kept in the first run, so a second one goes as far as the culprit and looks at what it is given."""
    found: list[Culprit] = []

    def look(inputs, outputs):
        found.append(operation_culprit(origin, became, inputs, outputs, reaches_outputs))

    Replay(max_equations, origin.order, look).run(program, operands)
    return found[0] if found else operation_culprit(origin, became, (), (), reaches_outputs)


def _taints_of(arrays: Sequence[Any]) -> list[Taint]:
    inexact = [i for i, x in enumerate(arrays) if is_inexact(x) and x.size]
    taints = [Taint() for _ in arrays]
    for i, bits in zip(inexact, jax.device_get([bits_of(arrays[i]) for i in inexact]), strict=True):
        bits, on_purpose = int(bits), not arrays[i].ndim and not int(bits) & NAN
        taints[i] = Taint(bits, Site(i - len(arrays), leaf=i) if bits and not on_purpose else None)
    return taints


def _check(name: str, leaf: Any) -> None:
    if isinstance(leaf, Tracer):
        raise CannotHunt(f"hunt: {name} is a tracer, that has no values. Hunt outside jit, grad, vmap and scan.")
    if isinstance(leaf, jax.Array) and leaf.is_deleted():
        raise CannotHunt(
            f"hunt: {name} was deleted, likely donated to the step. "
            "Hunt on a copy made before the step: jax.tree.map(jnp.copy, ...)."
        )


def _name(function: Callable, path: Any) -> str:
    """ "params['w']", of a path into `(args, kwargs)`."""
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
    """No debugging option of JAX looks into this thread for a moment: NaN is what is looked for here."""
    with (
        jax.debug_nans(False),
        jax.debug_infs(False),
        jax.disable_jit(False),
        jax.check_tracer_leaks(False),  # type: ignore[attr-defined]
        jax.transfer_guard("allow"),
    ):
        yield
