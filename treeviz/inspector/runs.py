"""The steps that an inspector watches, run by run, and what was sampled of their parameters."""

from __future__ import annotations

import contextlib
import functools
import itertools
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from treeviz.inspector.views import tree_notes
from treeviz.steps.findings.find import findings
from treeviz.steps.findings.finding import Finding, Thresholds
from treeviz.steps.measure import Measurement
from treeviz.steps.nan_origin.locate import KeptInputs
from treeviz.steps.recording.decode import Arrived, ReadSteps, n_inner_steps, read
from treeviz.steps.recording.history import History, main_source
from treeviz.steps.recording.recorder import Recorder
from treeviz.steps.statistics import section_of
from treeviz.steps.tracing.attribution import Attribution
from treeviz.steps.tracing.called import CalledSteps
from treeviz.steps.tracing.watch import Watched, watch
from treeviz.tree.runtime import computed_once

_KINDS = ("frozen", "ratio", "underflow")


class SampledParams:
    """Keeps what was measured beside a step, some numbers a leaf, until it holds a finding; then it is recorded.

    So a healthy run has no rare numbers in its views, and takes no memory for them.

    Args:
      record: Puts a measurement into the history.
    """

    def __init__(self, record: Callable[[Arrived], None], thresholds: Thresholds) -> None:
        self._record, self._thresholds = record, thresholds
        self.clear()

    def clear(self) -> None:
        """Begin a run."""
        self._kept: dict[str, list[Arrived]] = {}  # by suffix
        self._searched: dict[str, int] = {}  # how many of them
        self._reported: set[str] = set()
        self._explained = (0, 0)  # how many samples and steps

    def take(self, arrived: Arrived) -> None:
        """Take in what was measured beside a step, and search what came before."""
        self.search()
        if arrived.suffix in self._reported:
            self._record(arrived)
        else:
            self._kept.setdefault(arrived.suffix, []).append(arrived)

    def search(self, *, wait: bool = False) -> None:
        """Record what holds a finding.

        Args:
          wait: Search also what is not computed yet.
        """
        for suffix, kept in [*self._kept.items()]:
            if len(kept) == self._searched.get(suffix) or not (wait or all(each.is_ready() for each in kept)):
                continue
            self._searched[suffix] = len(kept)
            if self._has_finding(kept):
                self._report(suffix)

    def explain(self, history: History) -> bool:
        """Record what explains the dead layers of a history. Returns whether there is such."""
        of = sum(map(len, self._kept.values())), len(history)
        if of == self._explained or not self._kept or not _has_zeros(history):
            return False
        self._explained = of
        dead = findings(history, thresholds=self._thresholds, kinds="dead")
        return sum(map(self.explains, dead)) > 0

    def explains(self, finding: Finding) -> bool:
        """Record what tells which of several dead layers is the cause: whether the biases of the others are zero.

        Returns whether something was recorded, so that the finding may be another one once that is read.
        """
        if finding.kind != "dead" or finding.severity == "info" or len(finding.leaves) < 2:
            return False
        name = section_of(finding.source)[0]
        explaining = [suffix for suffix in self._kept if name.endswith(suffix)]
        for suffix in explaining:
            self._report(suffix)
        return bool(explaining)

    def _report(self, suffix: str) -> None:
        self._reported.add(suffix)
        for each in self._kept.pop(suffix):
            self._record(each)

    def _has_finding(self, kept: list[Arrived]) -> bool:
        found = [steps for each in kept for steps in _read(each)]
        if not found:
            return False
        history = History(found[0].sources, 1 << 20)
        for each in found:
            if each.sources == found[0].sources:
                history.extend(each.steps, each.numbers)
        return bool(findings(history, thresholds=self._thresholds, kinds=_KINDS))


def _has_zeros(history: History) -> bool:
    """Whether the gradient of a leaf was zero when it was measured last."""
    norms = [track.latest() for (_, statistic), track in history.tracks.items() if statistic == "norm"]
    return any((found[1] == 0).any() for found in norms if found is not None)


def _read(arrived: Arrived) -> list[ReadSteps]:
    """Its numbers; none if the step failed, or the parameters could not be read."""
    try:
        return list(read([arrived]))
    except RuntimeError:
        return []


# The runs that an inspector follows: the steps that it watches in each, and the histories of those before.

MOST_EARLIER = 4


@dataclass
class _Step:
    """A step by its definition: the module and the name of its function.

    Attributes:
      suffix: Appended to the names of its trees: "", or " of update" if several steps are watched when it is measured
        first in a run; None until then.
      code: Of the function. A cell that is run again makes it anew, a factory that is called twice does not.
      watched: The newest with this definition.
      is_of_run: It was watched in this run.
      is_measured: It was measured in this run.
    """

    code: Any
    watched: weakref.ref[Watched]
    suffix: str | None = None
    is_of_run: bool = True
    is_measured: bool = False


class Runs:
    """Watches steps for a recorder. A step that is defined again after it was measured begins a new run.

    Attributes:
      earlier: The histories of the newest runs before this one.
      first: The number of a step's first call.
      sampled: What was measured beside the steps, and is not recorded yet.

    Args:
      **settings: Of `treeviz.steps.tracing.watch.watch`.
    """

    def __init__(self, recorder: Recorder, inputs: KeptInputs | None, thresholds: Thresholds, **settings: Any) -> None:
        self.earlier: list[History] = []
        self._recorder, self._inputs, self._settings = recorder, inputs, settings
        self.sampled = SampledParams(recorder.put, thresholds)
        self._steps: dict[tuple, list[_Step]] = {}
        self.count_from(0)

    @computed_once
    def called(self) -> CalledSteps:
        """The steps of the blocks of `watching`."""
        return CalledSteps(self._watch, self)

    def count_from(self, first: int) -> None:
        self.first, self._numbers, self._numbers_of_scalars = first, itertools.count(first), itertools.count(first)
        self._newest_record, self._given = first - 1, None
        for watched in self:
            watched.count_from(first)

    def number_of_record(self, step: int | None) -> int:
        """The number of a measurement, which is recorded next."""
        if step is not None:
            self._given = step
        elif self._given is not None:
            self._numbers, self._given = itertools.count(int(self._given) + 1), None
        self._newest_record = next(self._numbers) if step is None else step
        return self._newest_record

    def record_scalars(self, step: int | None, scalars: Mapping[str, Any], batch: Any) -> None:
        """Record scalars of a step; with None, of the one that was called or recorded last."""
        newest = max(self._newest_record, *(watched.newest for watched in self), self.first - 1)
        is_call = step is None and newest >= self.first
        if step is None:
            step = newest if is_call else next(self._numbers_of_scalars)
        self._recorder.take_scalars(step, scalars, batch, is_call=is_call)

    def last_called(self, source: str, newest: int) -> int:
        """The number of the last step that was called, of a source whose step `newest` is the last inspected one."""
        watched, every = self._watched_of(source), self._all_every()
        n_called = 0 if watched is None else watched.newest + 1
        n_inspected = n_called - min((n_called - 1) % n for n in every)
        # The steps of a loop inside have numbers of their own.
        return (newest + 1) // n_inspected * n_called - 1 if n_called and not (newest + 1) % n_inspected else newest

    def calls(self) -> Mapping[Watched, int]:
        """The number of the last call of each step."""
        return weakref.WeakKeyDictionary((watched, watched.newest) for watched in self)

    def first_called(self, source: str, first: int, before: Mapping[Watched, int]) -> int:
        """The number of the first step called after `before`; `first` is the first inspected one of that source."""
        watched, every = self._watched_of(source), self._all_every()
        called = first if watched is None else before.get(watched, self.first - 1) + 1
        # The steps of a loop inside have numbers of their own.
        is_of_calls = first - min(every, default=0) < called <= first and any(first % n == 0 for n in every)
        return called if is_of_calls else first

    def _watched_of(self, source: str) -> Watched | None:
        own = [of for of in self._all() if of.is_measured and section_of(source)[0].endswith(of.suffix or "")]
        return max(own, key=lambda of: len(of.suffix or "")).watched() if own else None

    def _all_every(self) -> list[int]:
        return [n for n in (self._settings["every"], self._settings["heavy_every"]) if n]

    @property
    def newest_step(self) -> int:
        """The number of the newest step that was recorded; -1 before the first."""
        self.flush()
        history = self._recorder.history
        return max((history.last(source)[0] for source in history.sources), default=-1)

    def __iter__(self) -> Iterator[Watched]:
        """The steps that are watched."""
        for step in self._all():
            watched = step.watched()
            if watched is not None:
                yield watched

    def headline_notes(self, source: str | None) -> list[str]:
        """For the headline of a view: which gradient is shown, and that measuring changes bits."""
        self._recorder.flush()
        history = self._recorder.history
        tree = section_of(source or (main_source(history) if history else ""))[0]
        labels = {name + (of.suffix or ""): w.label for of in self._all() for name, w in _watches(of).items()}
        changes = "measuring changes bits: exact=True does not" if any(step.changes_bits for step in self) else ""
        label = f"gradients {labels[tree]}" if labels.get(tree) else ""
        return [*filter(None, (label, changes))]

    @property
    def notes(self) -> list[str]:
        """What is not measured, and why; what is shown of runs and of trees that changed; damage of a loaded file."""
        history = self._recorder.history
        steps = [*self]
        notes = [
            note if len(steps) == 1 or note.startswith("`") else f"`{getattr(step, '__name__', 'step')}`: {note}"
            for step in steps
            for note in step.notes
        ]
        if self.earlier:
            notes.append("A step that was defined again began this run; inspector.render(run=-1) shows the one before.")
        return list(dict.fromkeys([*notes, *tree_notes(history), *filter(None, [history.damage])]))

    def flush(self) -> None:
        """Read all measurements; waits for the steps that are still running."""
        self.sampled.search(wait=True)
        self._recorder.flush()
        if self._recorder.history and self.sampled.explain(self._recorder.history):
            self._recorder.flush()

    def _all(self) -> list[_Step]:
        return [step for steps in self._steps.values() for step in steps]

    def watch(self, step: Callable, exact: bool | str, gradients: str | None) -> Watched:
        """The step, watched; if it is so already, the same object."""
        for known in self:
            if step is known or (step is known.step and known.settings.exact == exact):
                return known
        return self._watch(step.step if isinstance(step, Watched) else step, exact=exact, gradients=gradients)

    def _watch(self, step: Callable, begins: bool = True, **options: Any) -> Watched:
        """The step, watched; with `begins`, one that was measured and is defined again begins a run."""

        def record(measurement: Measurement, number: int) -> None:
            of.is_measured = True
            suffix = self._suffix(of) if of.suffix is None else of.suffix
            arrived = Arrived(measurement, number, watched.watches, suffix)
            self._recorder.take(arrived)
            if measurement.sampled_params is not None:
                n = n_inner_steps(arrived)
                self.sampled.take(arrived._replace(measurement=measurement.sampled_params, step=(number + 1) * n - 1))

        watched = watch(step, record, first=self.first, **options, **self._settings)
        of = self._add(watched, begins)
        if self._inputs is not None:
            self._inputs.follow(watched, lambda: self._suffix(of), self._recorder.flush)
        return watched

    def _add(self, watched: Watched, begins: bool) -> _Step:
        definition, code = _definition(watched.step)
        steps = self._steps.setdefault(definition, [])
        if begins and any(step.is_measured for step in steps):
            self.earlier.append(self.begin(_next(self._recorder.history.name)))
            del self.earlier[:-MOST_EARLIER]
            watched.count_from(0)
        for step in steps:
            if not step.is_of_run or (begins and step.code is not code):
                step.code, step.watched, step.is_of_run = code, weakref.ref(watched), True
                return step
        steps.append(_Step(code, weakref.ref(watched)))
        return steps[-1]

    def _suffix(self, of: _Step) -> str:
        if of.suffix is None:
            name = getattr(of.watched(), "__name__", "step")
            taken = {step.suffix for step in self._all()}
            alone = [""] if len(list(self)) < 2 else []
            suffixes = (*alone, f" of {name}", *(f" of {name} {n}" for n in range(2, len(taken) + 2)))
            of.suffix = next(suffix for suffix in suffixes if suffix not in taken)
        return of.suffix

    def begin(self, name: str = "") -> History:
        """Begin a run, whose steps count from 0. Returns the history before, once all its steps are read."""
        with contextlib.suppress(Exception):  # such as StopTraining, of a run that has ended
            self.flush()
        self.count_from(0)
        for step in self._all():
            step.is_of_run = step.is_measured = False
            step.suffix = None
        if self._inputs is not None:
            self._inputs.clear()
        self.sampled.clear()
        return self._recorder.begin(name)


def _next(name: str) -> str:
    """The name of a run that begins by itself: "warm-up #2", and "warm-up #3" after that."""
    of_first, _, number = name.rpartition(" #")
    is_later = of_first and number.isdecimal()
    return f"{of_first} #{int(number) + 1}" if is_later else f"{name} #2" if name else ""


def _watches(step: _Step) -> dict[str, Attribution]:
    watched = step.watched()
    return {} if watched is None else watched.watches


def _definition(step: Any) -> tuple[tuple, Any]:
    """The module and the name of a step's function, and its code, which a cell that is run again makes anew."""
    function = step
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, types.MethodType):
            function = function.__func__
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        else:
            break
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", "")
    line = code.co_firstlineno if code is not None and "<lambda>" in name else None
    return (getattr(function, "__module__", ""), name, line), code
