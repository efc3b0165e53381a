"""The steps that an inspector watches in each run, and the samples of their parameters and updates."""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from treeviz.inspector.views import tree_notes
from treeviz.steps.findings.find import findings
from treeviz.steps.findings.finding import Finding, Thresholds
from treeviz.steps.measure import Measurement
from treeviz.steps.nan_origin.locate import KeptInputs
from treeviz.steps.recording.decode import Arrived, ReadSteps, read
from treeviz.steps.recording.history import History, main_source
from treeviz.steps.recording.recorder import Recorder
from treeviz.steps.statistics import section_of
from treeviz.steps.tracing.called import CalledSteps
from treeviz.steps.tracing.watch import Watched, watch
from treeviz.tree.runtime import computed_once
from treeviz.tree.text import step_name

_KINDS = ("frozen", "ratio", "underflow")


class SampledParams:
    """Keeps sampled parameters and updates, and records them once they hold a finding: a healthy run shows none."""

    def __init__(self, record: Callable[[Arrived], None], thresholds: Thresholds) -> None:
        self._record, self._thresholds = record, thresholds
        self.clear()

    def clear(self) -> None:
        self._kept: dict[str, list[Arrived]] = {}  # by suffix
        self._searched: dict[str, int] = {}  # the number of searched samples, by suffix
        self._reported: set[str] = set()
        self._explained = (0, 0)  # the numbers of samples and steps

    def take(self, arrived: Arrived) -> None:
        """Add a sample, and search the samples before it."""
        self.search()
        if arrived.suffix in self._reported:
            self._record(arrived)
        else:
            self._kept.setdefault(arrived.suffix, []).append(arrived)

    def search(self, *, wait: bool = False) -> None:
        """Record the samples that hold a finding; with `wait`, also search those that are still being computed."""
        for suffix, samples in [*self._kept.items()]:
            if len(samples) == self._searched.get(suffix) or not (wait or all(sample.is_ready() for sample in samples)):
                continue
            self._searched[suffix] = len(samples)
            read_steps: list[ReadSteps] = []
            for sample in samples:
                with contextlib.suppress(RuntimeError):  # the step failed, or the parameters could not be read
                    read_steps += [*read([sample])]
            history = History(read_steps[0].sources if read_steps else [], 1 << 20)
            for steps in read_steps:
                if steps.sources == read_steps[0].sources:
                    history.extend(steps.steps, steps.numbers, steps.inner)
            if read_steps and findings(history, thresholds=self._thresholds, kinds=_KINDS):
                self._report(suffix)

    def explain(self, history: History) -> bool:
        """Record the samples that explain dead layers of a history. Returns whether there are any."""
        counts = sum(map(len, self._kept.values())), len(history)
        if counts == self._explained or not self._kept:
            return False
        norms = [track.latest() for (_, statistic), track in history.tracks.items() if statistic == "norm"]
        if not any(newest is not None and (newest[1] == 0).any() for newest in norms):
            return False
        self._explained = counts
        dead = findings(history, thresholds=self._thresholds, kinds="dead")
        return sum(map(self.explains, dead)) > 0

    def explains(self, finding: Finding) -> bool:
        """Record the samples that show which of several dead layers is the cause; returns whether there are any."""
        if finding.kind != "dead" or finding.severity == "info" or len(finding.leaves) < 2:
            return False
        name = section_of(finding.source)[0]
        explaining = [suffix for suffix in self._kept if name.endswith(suffix)]
        for suffix in explaining:
            self._report(suffix)
        return bool(explaining)

    def _report(self, suffix: str) -> None:
        self._reported.add(suffix)
        for sample in self._kept.pop(suffix):
            self._record(sample)


# The watched steps of each run, and the histories of earlier runs

MOST_EARLIER = 4


@dataclass
class _Step:
    """A step, identified by its definition: the module and the name of its function."""

    code: Any  # the function's code object: a rerun cell creates a new one, a factory that is called twice does not
    watched: weakref.ref[Watched]  # the newest watched step with this definition
    # Appended to the names of its trees: "", or " of update" if several steps are watched when it is first measured in
    # a run; None until then.
    suffix: str | None = None
    is_of_run: bool = True  # it was watched in this run
    is_measured: bool = False  # it was measured in this run


class Runs:
    """Watches steps for a recorder. A step that is redefined after it was measured begins a new run."""

    def __init__(self, recorder: Recorder, inputs: KeptInputs | None, thresholds: Thresholds, **settings: Any) -> None:
        self.earlier: list[History] = []  # of the last runs before this one
        self._recorder, self._inputs, self._settings = recorder, inputs, settings
        self._every = [n for n in (settings["every"], settings["heavy_every"]) if n]
        self.sampled = SampledParams(recorder.put, thresholds)  # those that are not recorded yet
        self._steps: dict[tuple, list[_Step]] = {}
        self.count_from(0)

    @computed_once
    def called(self) -> CalledSteps:
        return CalledSteps(self._watch, self)

    def count_from(self, first: int) -> None:
        """Number the next call of each step."""
        self.first, self._numbers, self._numbers_of_scalars = first, itertools.count(first), itertools.count(first)
        self._newest_record, self._last_given_step = first - 1, None
        for watched in self:
            watched.count_from(first)

    def number_of_record(self, step: int | None) -> int:
        """Return the step number of the measurement that is recorded next."""
        if step is not None:
            self._last_given_step = step
        elif self._last_given_step is not None:
            self._numbers, self._last_given_step = itertools.count(int(self._last_given_step) + 1), None
        self._newest_record = next(self._numbers) if step is None else step
        return self._newest_record

    def record_scalars(self, step: int | None, scalars: Mapping[str, Any], batch: Any) -> None:
        """Record scalars of a step; with None, of the last one that was called or recorded."""
        newest = max(self._newest_record, *(watched.newest for watched in self), self.first - 1)
        is_call = newest >= self.first and step in (None, newest)
        if step is None:
            step = newest if is_call else next(self._numbers_of_scalars)
        self._recorder.take_scalars(step, scalars, batch, is_call=is_call)

    def last_called(self, source: str, newest: int) -> int:
        """The number of the last called step, for a source whose last inspected step is `newest`."""
        watched, every = self._watched_of(source), self._every
        n_called = 0 if watched is None else watched.newest + 1
        n_inspected = n_called - min((n_called - 1) % n for n in every)
        return n_called - 1 if n_called and newest + 1 == n_inspected else newest

    def calls(self) -> Mapping[Watched, int]:
        return weakref.WeakKeyDictionary((watched, watched.newest) for watched in self)

    def first_called(self, source: str, first: int, before: Mapping[Watched, int]) -> int:
        """The number of the first step called after `before`; `first` is the source's first inspected step."""
        watched, every = self._watched_of(source), self._every
        called = first if watched is None else before.get(watched, self.first - 1) + 1
        is_of_calls = first - min(every, default=0) < called <= first and any(first % n == 0 for n in every)
        return called if is_of_calls else first

    def _watched_of(self, source: str) -> Watched | None:
        steps = [step for step in self._all() if step.is_measured and section_of(source)[0].endswith(step.suffix or "")]
        return max(steps, key=lambda step: len(step.suffix or "")).watched() if steps else None

    @property
    def newest_step(self) -> int:
        """The number of the newest recorded step; -1 before the first."""
        self.flush()
        history = self._recorder.history
        return max((history.last(source)[0] for source in history.sources), default=-1)

    def __iter__(self) -> Iterator[Watched]:
        for step in self._all():
            if (watched := step.watched()) is not None:
                yield watched

    def headline_notes(self, source: str | None) -> list[str]:
        """Notes for the headline of a view: which gradient is shown, and whether measuring changes bits."""
        self._recorder.flush()
        self._wait_compared()
        history = self._recorder.history
        tree = section_of(source or (main_source(history) if history else ""))[0]
        watched = ((step.suffix or "", step.watched()) for step in self._all())
        labels = {name + suffix: x.label for suffix, step in watched if step for name, x in step.watches.items()}
        changes = "measuring changes bits: exact=True does not" if any(step.changes_bits for step in self) else ""
        label = f"gradients {labels[tree]}" if labels.get(tree) else ""
        return [*filter(None, (label, changes))]

    @property
    def notes(self) -> list[str]:
        """What is not measured, and why; which of several runs or trees is shown; damage in a loaded file."""
        self._wait_compared()
        history = self._recorder.history
        notes, is_alone = list[str](), len([*self]) == 1
        for step in self:
            notes += [x if is_alone or x.startswith("`") else f"`{step_name(step)}`: {x}" for x in step.notes]
        if self.earlier:
            notes.append("A redefined step started this run; inspector.render(run=-1) shows the previous one.")
        return list(dict.fromkeys([*notes, *tree_notes(history), *filter(None, [history.damage])]))

    def flush(self) -> None:
        """Read all measurements; waits for running steps."""
        self.sampled.search(wait=True)
        self._recorder.flush()
        self._wait_compared()
        if self._recorder.history and self.sampled.explain(self._recorder.history):
            self._recorder.flush()

    def _wait_compared(self) -> None:
        for watched in self:
            watched.wait_compared()

    def _all(self) -> list[_Step]:
        return [step for steps in self._steps.values() for step in steps]

    def watch(self, step: Callable, exact: bool | str, gradients: str | None) -> Watched:
        """Watch the step; if it is already watched, return the same object."""
        for known in self:
            if step is known or (step is known.step and known.settings.exact == exact):
                return known
        return self._watch(step.step if isinstance(step, Watched) else step, exact=exact, gradients=gradients)

    def _watch(self, step: Callable, begins: bool = True, **options: Any) -> Watched:
        """Watch the step; with `begins`, a redefined step that was measured begins a run."""

        def record(measurement: Measurement, number: int) -> None:
            definition.is_measured = True
            suffix = self._suffix(definition) if definition.suffix is None else definition.suffix
            arrived = Arrived(measurement, number, watched.watches, suffix)
            self._recorder.take(arrived)
            if measurement.sampled_params is not None:
                self.sampled.take(arrived._replace(measurement=measurement.sampled_params))

        watched = watch(step, record, first=self.first, **options, **self._settings)
        definition = self._add(watched, begins)
        if self._inputs is not None:
            self._inputs.follow(watched, lambda: self._suffix(definition), self._recorder.flush)
        return watched

    def _add(self, watched: Watched, begins: bool) -> _Step:
        definition, code = _definition(watched.step)
        steps = self._steps.setdefault(definition, [])
        if begins and any(step.is_measured for step in steps):
            name = self._recorder.history.name  # "warm-up", then "warm-up #2", then "warm-up #3"
            base, _, number = name.rpartition(" #")
            is_numbered = base and number.isdecimal()
            name = f"{base} #{int(number) + 1}" if is_numbered else f"{name} #2" if name else ""
            self.earlier.append(self.begin(name))
            del self.earlier[:-MOST_EARLIER]
            watched.count_from(0)
        for step in steps:
            if not step.is_of_run or (begins and step.code is not code):
                step.code, step.watched, step.is_of_run = code, weakref.ref(watched), True
                return step
        steps.append(_Step(code, weakref.ref(watched)))
        return steps[-1]

    def _suffix(self, step: _Step) -> str:
        if step.suffix is None:
            name = getattr(step.watched(), "__name__", "step")
            taken = {step.suffix for step in self._all()}
            alone = [""] if len(list(self)) < 2 else []
            suffixes = (*alone, f" of {name}", *(f" of {name} {n}" for n in range(2, len(taken) + 2)))
            step.suffix = next(suffix for suffix in suffixes if suffix not in taken)
        return step.suffix

    def begin(self, name: str = "") -> History:
        """Begin a run, whose steps count from 0. Reads all steps of the previous run, and returns its history."""
        with contextlib.suppress(Exception):  # such as StopTraining, from a run that has ended
            self.flush()
        self.count_from(0)
        for step in self._all():
            step.is_of_run = step.is_measured = False
            step.suffix = None
        if self._inputs is not None:
            self._inputs.clear()
        self.sampled.clear()
        return self._recorder.begin(name)


def _definition(step: Any) -> tuple[tuple, Any]:
    """The module and the name of a step's function, and its code, which a rerun cell creates anew."""
    function, inner = step, step
    while inner is not None:
        function = inner
        inner = inner.func if isinstance(inner, functools.partial) else getattr(inner, "__wrapped__", None)
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", "")
    line = code.co_firstlineno if code is not None and "<lambda>" in name else None
    return (getattr(function, "__module__", ""), name, line), code
