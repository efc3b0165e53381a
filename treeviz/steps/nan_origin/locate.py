"""Replay a step, operation by operation, to find the one that produced the first NaN or Inf."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax import tree_util

from treeviz.steps.nan_origin.replay import NAN, CannotLocateNan, Replay, Site, Taint, Value, bits_of, is_inexact
from treeviz.steps.nan_origin.report import (
    NanOrigin,
    input_origin,
    is_backward,
    is_for_backward,
    operation_origin,
    place_of,
)
from treeviz.steps.statistics import StopTraining
from treeviz.steps.tracing.backward_rules import lines_of_backward_rules
from treeviz.steps.tracing.primitives import inner_jaxprs
from treeviz.tree.runtime import Lock
from treeviz.tree.text import error_text, visible
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


# Copies of the inputs of the newest steps, to run a bad step again.

Key = tuple[str, int]  # which step function, and the number of its call


class Inputs(NamedTuple):
    """The arguments of a call of a step.

    Attributes:
      step: The function.
      number: The number of the call.
      args, kwargs: Copies.
      steps: The numbers of its inner steps in the history, once they were read: several if the call is a loop.
      bad_steps: Those with NaN or Inf in gradients, loss or parameters.
    """

    step: Callable
    number: int
    args: tuple
    kwargs: dict[str, Any]
    steps: Sequence[int] = ()
    bad_steps: Sequence[int] = ()

    @property
    def numbers(self) -> str:
        """ "14", or "10 to 14"."""
        first, last = (self.steps[0], self.steps[-1]) if self.steps else (self.number, self.number)
        return str(first) if first == last else f"{first} to {last}"

    def has(self, step: int) -> bool:
        return step in (self.steps or (self.number,))

    @property
    def reported_step(self) -> int:
        """The first bad step, else the last: to that belong numbers that the call has once."""
        return [*self.bad_steps[:1], *self.steps[-1:], self.number][0]


class Step(Protocol):
    """A watched step; see `treeviz.steps.tracing.watch.Watched`."""

    @property
    def __wrapped__(self) -> Callable: ...

    def on_before_call(self, before: Callable[[int, Callable[[], tuple[tuple, dict]]], None] | None) -> None: ...


class KeptInputs:
    """Keeps the inputs of the newest steps. Once a step is known to be bad, its inputs alone are kept.

    Attributes:
      most: How many are kept.
      bad: The inputs of the first step with NaN or Inf in gradients, loss or parameters; None as long as there is none.
    """

    def __init__(self, most: int) -> None:
        self.bad: Inputs | None = None
        self.most = most
        self._kept: dict[Key, Inputs] = {}
        self._unread: set[Key] = set()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def newest_first(self) -> list[Inputs]:
        """The inputs of the bad step, or else those of the newest steps."""
        with self._lock:
            return list(reversed(self._kept.values())) if self.bad is None else [self.bad]

    def follow(self, step: Step, suffix: Callable[[], str], read: Callable[[], None]) -> None:
        """Keep the inputs of a step from now on, until that raises; `read` as in `keep`.

        Args:
          suffix: The name of the step function in the keys of its calls.
        """

        def before(number: int, copies: Callable[[], tuple[tuple, dict]]) -> None:
            try:
                self.keep((suffix(), number), lambda: Inputs(step.__wrapped__, number, *copies()), read)
            except StopTraining:
                raise
            except Exception as error:
                step.on_before_call(None)
                text = f"inspector: inputs are not kept any more, {error_text(error)}"
                warnings.warn(text, RuntimeWarning, stacklevel=4)

        step.on_before_call(before)

    def keep(self, key: Key, inputs: Callable[[], Inputs], read: Callable[[], None]) -> None:
        """Keep the inputs of a step that is about to run, in place of the oldest that was read.

        Args:
          inputs: Makes the copies; is not called when there is a bad step already.
          read: Called when there is no room: reads what was measured.
        """
        if self.bad is not None:
            return
        if len(self._unread) >= self.most:
            read()
        with self._lock:
            while len(self._kept) >= self.most:
                # A step that raised has no measurement, so its key stays unread.
                oldest = next((key for key in self._kept if key not in self._unread), next(iter(self._kept)))
                self._forget(oldest)
            if self.bad is None:
                self._kept[key] = inputs()
                self._unread.add(key)

    def seen(self, key: Key, steps: Sequence[int], bad_steps: Sequence[int]) -> None:
        """Record that the numbers of a call were read; see `Inputs`."""
        with self._lock:
            self._unread.discard(key)
            if key in self._kept:
                self._kept[key] = self._kept[key]._replace(steps=steps, bad_steps=bad_steps)
            if bad_steps and self.bad is None:
                self.bad = self._kept.get(key)
                self._kept.clear()
                self._unread.clear()

    def clear(self) -> None:
        """Keep none of the inputs until now."""
        with self._lock:
            self.bad = None
            self._kept.clear()
            self._unread.clear()

    def _forget(self, key: Key) -> None:
        del self._kept[key]
        self._unread.discard(key)


def locate_nan_in_kept(kept: KeptInputs | None, step: int | None = None) -> NanOrigin | None:
    """Run kept steps again, and report the origin of the first NaN or Inf; None if there is none.

    Args:
      kept: None: no inputs are kept.
      step: The number of a step, or of an inner one of a call that is a loop; NaN that reaches none of its results is
        reported, too. None: the step that is known to be bad; if there is none, the newest steps, one after the other,
        until one has finite inputs and a result that is not finite.

    Raises:
      LookupError: No inputs are kept, or not those of that step any more.
      CannotLocateNan: A step cannot be replayed.
    """
    if kept is None:
        raise LookupError(
            "locate_nan: no inputs were kept. Run again with GradientInspector(keep_inputs=True), or call "
            "treeviz.steps.nan_origin.locate.locate_nan(step, *args) with inputs that you have."
        )
    known = kept.newest_first
    chosen = [inputs for inputs in known if step is None or inputs.has(step)]
    if step is not None and not chosen:
        there = ", ".join(inputs.numbers for inputs in reversed(known)) or "none yet"
        raise LookupError(
            f"locate_nan: the inputs of step {step} are not kept. There are those of: {there}. Of the inspected steps "
            "the newest are kept, and after one with NaN or infinities only those of that step; GradientInspector("
            "keep_inputs=10) keeps ten."
        )
    found: NanOrigin | None = None
    for inputs in chosen:
        # A healthy step may compute a NaN that it does not use.
        only_results = step is None and kept.bad is None
        origin = locate_nan_in(inputs.step, inputs.args, inputs.kwargs, only_results=only_results)
        if origin is not None:
            found = replace(origin, step=inputs.reported_step)
        if found is not None and (origin is None or origin.direction != "input"):
            break  # a bad input may come from the step before
    return found
