"""Find the operation that produced the first NaN or Inf of a step, and keep the inputs of steps for that."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

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
from treeviz.tree.keys import keystr
from treeviz.tree.paths import paths_without_boxes
from treeviz.tree.runtime import Lock
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
            origin, traced_names = _forward_site(reported.origin, replay.checks.began), [names[i] for i in traced]
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


def _forward_site(origin: Site, began: Sequence[Site]) -> Site:
    """The forward operation of the same line if it failed too. Its result may be unused, as the loss often is."""
    if not (is_backward(origin) or is_for_backward(origin)):
        return origin
    place = place_of(origin)[0]
    earlier = (s for s in began if s.order < origin.order and not inner_jaxprs(s.eqn))
    candidates = (s for s in earlier if place_of(s)[0] == place and not is_backward(s))
    return next((s for s in candidates if not is_for_backward(s)), origin)


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
        """Keep the `inputs` of a step about to run, in place of the oldest one read; with no room, `read`."""
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
