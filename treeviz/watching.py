"""Watch a jitted step: the gradients that are made inside it come out measured, and the step stays as it is."""

from __future__ import annotations

import functools
import itertools
import types
import warnings
from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer

from treeviz.analysis.gradient_owners import Owned
from treeviz.analysis.gradients import HISTOGRAM, LIGHT, Measurement, check_statistics
from treeviz.analysis.recorder import StopTraining
from treeviz.integrations import jax_internals
from treeviz.integrations.instrument import instrumented, instrumented_callback
from treeviz.integrations.jitted_steps import CannotWatch, JittedStep, jitted_step
from treeviz.integrations.verification import Verification, compared

__all__ = ["CannotWatch", "StopTraining", "Watched", "tap", "watch"]

Record = Callable[[Measurement, int], None]

_n_watched = itertools.count()
_AGREE_WITHIN_S = 60.0


def watch(
    step: Callable,
    record: Record,
    *,
    every: int = 1,
    heavy_every: int = 0,
    statistics: tuple[str, ...] = LIGHT,
    via: str = "output",
    match: bool = True,
    exact: bool = False,
    updates: bool | None = None,
) -> Watched:
    """A step that does what `step` does, and tells `record` of the gradients made inside it.

    Nothing in the step changes. It is traced once more, each gradient is reduced to a few numbers where it is made,
    and these leave the device as one further output that only `record` gets. An inspected step runs that second
    program; the others run the step itself.

    The cosine of gradients with the last ones needs these kept, at the cost of their memory, so that the step has to
    hand them on: `tv.measure(grads=grads, last_grads=last)` in the step, and `inspector.record`.

    Args:
      step: What `jax.jit`, `equinox.filter_jit` or `flax.nnx.jit` gave, compiled before or not.
      record: Called after an inspected step with the `Measurement`, whose arrays may not be computed yet, and the
        number of the step. What it raises is warned of once, but `StopTraining` goes through.
      every: Inspect every n-th step; 0: only those of `heavy_every`.
      heavy_every: Every n-th step also with a histogram and counts: a third program.
      statistics: What is known of the other inspected steps.
      via: "output"; or "callback", which calls the host from inside the step. That reaches even what an output
        cannot, but is slow, changes bits, and keeps the program out of the persistent compilation cache.
      match: Only gradients of the step's own arguments, if there are any.
      exact: Run the untouched step always, and measure in a second run on the same arguments that gives nothing else.
        Costs a step more.
      updates: Measure also the parameters that the gradients belong to, and what the step adds to them, after rounding
        and whatever the optimizer: the results that are the parameters' new values are told by what they are made
        of. True: in every inspected step, which costs about as much again as the gradients; None: where there is a
        histogram; False: never. `Watched.notes` says what could not be measured.

    Raises:
      CannotWatch: The step cannot be watched; the message says why, and what to do instead.
    """
    if via not in ("output", "callback"):
        raise ValueError(f"via={via!r}: there are 'output' and 'callback'.")
    if every < 0 or heavy_every < 0 or not (every or heavy_every):
        raise ValueError(f"every={every}, heavy_every={heavy_every}: no step would be inspected.")
    if updates and via == "callback":
        raise ValueError("updates=True needs via='output': a callback sees gradients only.")
    if exact and via == "callback":
        raise ValueError("exact=True measures in a second run; via='callback' has no use in it.")
    reason = jax_internals.why_not()
    if reason:
        raise CannotWatch(step, f"{reason} (tried with jax 0.4.36 to 0.10.2)")
    return Watched(
        jitted_step(step), record, every, heavy_every, check_statistics(statistics), via, match, exact, updates
    )


class Watched:
    """What `watch` gives: called like the step, and with its attributes.

    Attributes:
      watches: What is measured, by the name in the measurement; known when the first step was traced.
      notes: What is not measured beside the gradients, and why.
      trouble: Why the step is not watched any more, or empty. The step itself goes on.
      before: Called before an inspected step with its number, and with what gives copies of its arguments.
    """

    def __init__(self, jitted: JittedStep, record, every, heavy_every, statistics, via, match, exact, updates) -> None:
        functools.update_wrapper(self, jitted.step, updated=())
        self.__wrapped__ = getattr(jitted.step, "__wrapped__", jitted.step)
        self.watches: dict[str, Owned] = {}
        self.notes: tuple[str, ...] = ()
        self.trouble = ""
        self.before: Callable[[int, Callable[[], tuple[tuple, dict]]], None] | None = None
        self._jitted = jitted
        self._step = jitted.step
        self._record = record
        self._every, self._heavy_every = every, heavy_every
        self._numbers = itertools.count()
        self._exact = exact
        self._running = 0
        self._unsaid = {"record"}
        self._agreed = None
        self._question = f"{next(_n_watched)}"
        self._settings = (
            f"every={every}, heavy_every={heavy_every}, statistics={statistics}, via={via}, exact={exact}, "
            f"updates={updates}"
        )
        self._statistics, self._updates = statistics, bool(updates)
        self._make = functools.partial(self._maker, via=via, match=match)
        only_measure = exact and jitted.is_plain
        make = functools.partial(self._make, only_measure=only_measure)
        self._light = jitted.around(make(statistics, updates=bool(updates)))
        self._heavy = jitted.around(make(HISTOGRAM, updates=updates is not False)) if heavy_every else None

    def _maker(self, statistics, *, via, match, only_measure, updates):
        """Makes what is like the step, but gives `(what the step gives, measurement)`."""
        jitted = self._jitted
        options = jax_internals.jit_options(jitted.jitted)

        def make(function):
            if via == "callback":
                return instrumented_callback(function, options, statistics, self._called_back)
            return instrumented(
                function,
                options,
                statistics,
                match=match,
                updates=updates,
                tidy_path=jitted.tidy_path,
                tell=self._tell,
                donate=not self._exact,
                only_measure=only_measure,
            )

        return make

    def __call__(self, /, *args, **kwargs):
        self._running = number = next(self._numbers)
        twin = self._twin_of(number)
        if twin is None:
            return self._step(*args, **kwargs)
        if self.before is not None:
            self.before(number, lambda: self._jitted.copied((args, kwargs), _fresh))
        if self._exact:
            return self._run_apart(twin, number, args, kwargs)
        try:
            out, measurement = twin(*args, **kwargs)
        except Exception as error:
            trouble = error
        else:
            if measurement is None:
                jax.effects_barrier()  # the callback is to know which step it is of
            else:
                self._deliver(measurement, number)
            return out
        return self._without(trouble, args, kwargs)

    def _run_apart(self, twin, number: int, args, kwargs):
        """The untouched step, after its twin has measured on the same arguments and left them as they are."""
        trouble = None
        try:
            # modules that a step changes in place are copied, arrays are not: the twin takes no buffer
            copies = (args, kwargs) if self._jitted.is_plain else self._jitted.copied((args, kwargs), lambda x: x)
            _, measurement = twin(*copies[0], **copies[1])
            self._deliver(measurement, number)
        except Exception as error:
            trouble = error
        out = self._step(*args, **kwargs)
        if trouble is not None:
            self._give_up(_said(trouble))
        return out

    def _twin_of(self, number: int):
        """The program that inspects this step, or None."""
        if self._heavy is not None and number % self._heavy_every == 0:
            twin = self._heavy
        elif self._every and number % self._every == 0:
            twin = self._light
        else:
            return None
        if self.trouble:
            return None
        if self._agreed is None:
            self._agreed = jax_internals.agreed(self._question, self._settings, _AGREE_WITHIN_S)
            if self._agreed:
                self._give_up(self._agreed + ". All processes must watch the same step in the same way")
        return None if self.trouble else twin

    def _deliver(self, measurement: Measurement, number: int) -> None:
        words = next(iter(measurement.words.values()))
        if isinstance(words, Tracer):
            return  # the step is a part of somebody's program, and is not run now
        self._called_back(measurement, number)

    def _called_back(self, measurement: Measurement, number: int | None = None) -> None:
        try:
            self._record(measurement, self._running if number is None else number)
        except StopTraining:
            raise
        except Exception as error:
            if "record" in self._unsaid:
                self._unsaid.discard("record")
                warnings.warn(f"watch: recording step {number} raised {_said(error)}", RuntimeWarning, stacklevel=3)

    def _without(self, trouble: Exception, args, kwargs):
        """The plain step, in the place of a twin that raised. What it raises too is the user's own."""
        leaves = jax.tree.leaves((args, kwargs))
        if any(isinstance(x, jax.Array) and not isinstance(x, Tracer) and x.is_deleted() for x in leaves):
            raise trouble  # it ran: an error of the step itself, which has taken its arguments
        out = self._step(*args, **kwargs)
        self._give_up(_said(trouble))
        return out

    def _give_up(self, why: str) -> None:
        self.trouble = f"{why}.\n{CannotWatch.instead(self._step)}"
        warnings.warn(f"watch: the step runs, but is not watched: {self.trouble}", RuntimeWarning, stacklevel=4)

    def _tell(self, watches, notes) -> None:
        self.watches = {**self.watches, **{w.source.name: w for w in watches}}
        self.notes = tuple(dict.fromkeys((*self.notes, *notes)))

    def verify(self, *args, **kwargs) -> Verification:
        """Run the step and its watched twin on copies of these arguments, and compare what they give byte for byte.

        A gradient that is measured is written to memory, where XLA may otherwise merge it with what uses it: then the
        last digit of a result can differ. `print` says which leaves do; `exact=True` rules it out.

        Raises:
          CannotWatch: The twin raised, and so the step is not watched.
        """
        twin = self._jitted.around(self._make(self._statistics, only_measure=False, updates=self._updates))
        theirs, ours = (self._jitted.copied((args, kwargs), _fresh) for _ in range(2))
        expected = self._step(*theirs[0], **theirs[1])
        try:
            got, _ = twin(*ours[0], **ours[1])
        except Exception as error:
            raise CannotWatch(self._step, _said(error)) from error
        if self._jitted.changes_arguments:
            expected, got = (expected, theirs), (got, ours)
        return compared(expected, got)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_step" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._step, name)

    def __get__(self, instance, owner=None):
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<watched {self._step!r}>"


def tap(tree: Any, name: str, *, cotangent: bool = False) -> Any:
    """The same tree; in a watched step, its numbers are recorded under `name`.

        hidden = tv.tap(jax.nn.relu(x @ w), "hidden")

    Outside a watched step this does nothing.

    Args:
      cotangent: Record what arrives at this place in the backward pass, not what passes it in the forward pass.
    """
    see = jax_internals.now_seeing()
    if see is None:
        return tree
    if not cotangent:
        return see("tap", tree, name=name)
    return _with_tapped_cotangent(tree, name)


def _with_tapped_cotangent(tree: Any, name: str) -> Any:
    leaves, treedef = jax.tree.flatten(tree)

    @jax.custom_vjp
    def identity(leaves):
        return leaves

    def backward(_, cotangents):
        see = jax_internals.now_seeing()
        if see is not None:
            cotangents = jax.tree.leaves(see("tap", jax.tree.unflatten(treedef, cotangents), name=name))
        return (list(cotangents),)

    identity.defvjp(lambda leaves: (leaves, None), backward)
    return jax.tree.unflatten(treedef, identity(leaves))


def _fresh(x: Any) -> Any:
    return x.copy() if isinstance(x, jax.Array) else x


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
