"""Log the steps of a run to experiment loggers, from a background thread; the loggers that are supported."""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import re
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType, TracebackType
from typing import Any

import numpy as np

from treeviz.inspector.runs import SampledParams
from treeviz.steps.findings.find import Alarm
from treeviz.steps.findings.finding import SCALARS, Finding, Thresholds
from treeviz.steps.recording.history import History, Track
from treeviz.steps.recording.recorder import Recorder, Ticker, close_at_exit
from treeviz.steps.series import table_of_source
from treeviz.steps.statistics import kind_of, result_kind, sibling_name
from treeviz.tree.runtime import Lock
from treeviz.tree.series import FIRST_EXPONENT
from treeviz.tree.text import class_name, error_text, module_name

# Adapters of experiment loggers. No library is imported: the object that the user passes identifies it.


class Logger:
    """Logs the measurements of a step to a function of a step and its numbers, `{name: float}`."""

    every_s, takes_newest = 1.0, False  # the least time between deliveries; whether it keeps only the newest step

    def __init__(self, target: Any) -> None:
        self._target = target

    def log(self, step: int, numbers: Mapping[str, float], histograms: Mapping[str, np.ndarray], first: int) -> None:
        """Log numbers and histograms by name: the counts of values in [2**k, 2**(k + 1)), for k = `first`, …"""
        self._target(step, dict(numbers))

    def log_finding(self, finding: Finding) -> None:
        pass  # `on_finding` receives it

    def flush(self) -> None:
        """Flush the log, so that a crash does not lose it."""


def logger_of(target: Any) -> Logger:
    """Return the adapter of a logger; see `GradientInspector.log_to`."""
    is_module = isinstance(target, ModuleType)
    library = (target.__name__ if is_module else module_name(type(target))).partition(".")[0]
    if library in _LIBRARIES and (is_module or library != "mlflow" or hasattr(target, "info")):
        return _LIBRARIES[library](target)
    for method, logger in _WRITERS.items():
        if callable(getattr(target, method, None)):
            return logger(target)
    if callable(target):
        return Logger(target)
    known = "a run of W&B, trackio, Aim or MLflow, a TensorBoard writer, or a function of a step and its numbers"
    raise TypeError(f"log_to: {class_name(type(target))} is not a known logger. Pass {known}.")


class _TensorBoard(Logger):
    def log(self, step: int, numbers: Mapping[str, float], histograms: Mapping[str, np.ndarray], first: int) -> None:
        for name, value in numbers.items():
            if math.isfinite(value) or "/" not in name:  # tensorboardX warns once per non-finite value
                self._target.add_scalar(name, value, step)
        for name, counts in histograms.items():
            x = np.arange(first, first + len(counts)) + 0.5
            sums = {"num": int(counts.sum()), "sum": float(x @ counts), "sum_squares": float(x**2 @ counts)}
            buckets = {"bucket_limits": (x + 0.5).tolist(), "bucket_counts": counts.tolist()}
            ends = {"min": first, "max": first + len(counts)}
            self._target.add_histogram_raw(name, **ends, **sums, **buckets, global_step=step)

    def log_finding(self, finding: Finding) -> None:
        self._target.add_text("findings", str(finding), finding.first)

    def flush(self) -> None:
        self._target.flush()


class _FlaxTensorBoard(_TensorBoard):
    """The `SummaryWriter` of `flax.metrics.tensorboard`, which does not accept bin counts."""

    def log(self, step: int, numbers: Mapping[str, float], histograms: Mapping[str, np.ndarray], first: int) -> None:
        for name, value in numbers.items():
            self._target.scalar(name, value, step)

    def log_finding(self, finding: Finding) -> None:
        self._target.text("findings", str(finding), finding.first)


class _MetricWriter(_TensorBoard):
    """A `MetricWriter` of clu, which does not accept bin counts."""

    def log(self, step: int, numbers: Mapping[str, float], histograms: Mapping[str, np.ndarray], first: int) -> None:
        self._target.write_scalars(step, numbers)

    def log_finding(self, finding: Finding) -> None:
        self._target.write_texts(finding.first, {"findings": str(finding)})


class _Wandb(Logger):
    """A run of W&B. As with `wandb.watch`, the numbers are sent with the next row that the user logs.

    W&B drops a row whose step is before its newest. So the step is a separate metric, the x axis of the others, and the
    user's steps do not change. A row has one value per number, so only the newest step since the user's last row is
    logged.
    """

    every_s, takes_newest = 0.1, True
    _STEP = "treeviz step"

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        self._defined: set[str] = set()

    def log(self, step: int, numbers: Mapping[str, float], histograms: Mapping[str, np.ndarray], first: int) -> None:
        for section in dict.fromkeys(name.partition("/")[0] for name in (*numbers, *histograms)):
            if section not in self._defined:
                self._target.define_metric(self._STEP, hidden=True)
                for name in (section, f"{section}/*"):
                    self._target.define_metric(name, step_metric=self._STEP)
                self._defined.add(section)
        row = {**numbers, **_histograms("wandb", histograms, first), self._STEP: step}
        self._target.log(row, commit=False)

    def log_finding(self, finding: Finding) -> None:
        level = "ERROR" if finding.severity == "error" else "WARN"
        self._target.alert(f"{finding.kind} at step {finding.first}", f"{finding.sentence} {finding.advice}", level)


class _Trackio(Logger):
    def log(self, step: int, numbers: Mapping[str, float], histograms: Mapping[str, np.ndarray], first: int) -> None:
        self._target.log({**numbers, **_histograms("trackio", histograms, first)}, step=step)

    def log_finding(self, finding: Finding) -> None:
        levels = sys.modules["trackio"].AlertLevel
        level = levels.ERROR if finding.severity == "error" else levels.WARN
        self._target.alert(f"{finding.kind} at step {finding.first}", f"{finding.sentence} {finding.advice}", level)


class _Aim(Logger):
    def log(self, step: int, numbers: Mapping[str, float], histograms: Mapping[str, np.ndarray], first: int) -> None:
        for name, value in numbers.items():
            self._target.track(value, name=name, step=step)
        for name, counts in histograms.items():
            distribution = sys.modules["aim"].Distribution(hist=counts, bin_range=(first, first + len(counts)))
            self._target.track(distribution, name=name, step=step)

    def log_finding(self, finding: Finding) -> None:
        (self._target.log_error if finding.severity == "error" else self._target.log_warning)(str(finding))


class _MLflow(Logger):
    """MLflow's module, for the active run, or a run; names may contain only letters, digits and `_-. /`."""

    def log(self, step: int, numbers: Mapping[str, float], histograms: Mapping[str, np.ndarray], first: int) -> None:
        named = {re.sub(r"[^\w\-. /]", "_", name, flags=re.ASCII): value for name, value in numbers.items()}
        sys.modules["mlflow"].log_metrics(named, step=step, run_id=self._run_id)

    def log_finding(self, finding: Finding) -> None:
        client = sys.modules["mlflow"].MlflowClient()
        client.set_tag(self._run_id, f"finding at step {finding.first} {finding.kind}", str(finding)[:5000])

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        run = target.active_run() if isinstance(target, ModuleType) else target
        if run is None:
            raise TypeError("log_to: MLflow has no active run. Call mlflow.start_run() before.")
        self._run_id = run.info.run_id


def _histograms(library: str, histograms: Mapping[str, np.ndarray], first: int) -> dict[str, Any]:
    """The histograms as objects of a library that accepts the results of `np.histogram`."""
    make: Callable = sys.modules[library].Histogram
    edges = {name: np.arange(first, first + len(counts) + 1) for name, counts in histograms.items()}
    return {name: make(np_histogram=(counts, edges[name])) for name, counts in histograms.items()}


_LIBRARIES: dict[str, Callable[[Any], Logger]] = {"wandb": _Wandb, "trackio": _Trackio, "aim": _Aim, "mlflow": _MLflow}
_WRITERS: dict[str, Callable[[Any], Logger]] = {  # by a method name that is unique to each
    "add_histogram_raw": _TensorBoard,
    "write_scalars": _MetricWriter,
    "scalar": _FlaxTensorBoard,
}

# The new steps of a history, as numbers by name


@dataclass
class Step:
    """The measurements of a step by name, such as "grads norm/layers/0/w"; without a path, of the whole tree."""

    numbers: dict[str, float] = field(default_factory=dict)  # values by name
    histograms: dict[str, np.ndarray] = field(default_factory=dict)  # counts of each power of two by name


class NewSteps:
    """Returns the new steps of a history; remembers how many it has returned."""

    def __init__(self) -> None:
        self._run = ""
        self._n_returned: dict[tuple[str, str], int] = {}
        self._paths: dict[str, list[tuple[int, str]]] = {}

    def take_new(self, history: History) -> dict[int, Step]:
        """Return the steps since the last call, by number; where steps were merged, the last of each bucket.

        Of a step with inner steps, such as micro-batches, these are the numbers of the last one, NaN if a value in any
        is not finite, and the sums of counts. Costs a float and a name per leaf, statistic and step.
        """
        if history.run != self._run:
            self._run, self._n_returned, self._paths = history.run, {}, {}
        steps: dict[int, Step] = {}
        norms: dict[tuple[str, int], np.ndarray] = {}
        for source in history.sources:
            if result_kind(source):
                continue
            counts: dict[int, np.ndarray] = {}
            for step, values in self._new(history.tracks, (source, "nonfinite")):
                counts[step] = counts.get(step, 0) + np.maximum(values, 0)
            for step, values in dict(self._new(history.tracks, (source, "norm"))).items():
                bad = counts.get(step, np.zeros(len(values), np.int64))
                norms[source, step] = values = np.where(bad > 0, np.nan, values)
                self._add_norms(steps, step, history, f"{source} norm", source, values)
                steps[step].numbers[f"{source} nonfinite"] = float(bad.sum())
            for statistic in ("rms", "dead"):  # of activations
                for step, values in dict(self._new(history.tracks, (source, statistic))).items():
                    numbers = steps.setdefault(step, Step()).numbers
                    leaves = [(leaf, path) for leaf, path in self._leaves(history, source) if values[leaf] >= 0]
                    numbers |= {f"{source} {statistic}/{path}": float(values[leaf]) for leaf, path in leaves}
            for step, values in dict(self._new(history.tracks, (source, "max_abs"))).items():
                numbers, is_bad = steps.setdefault(step, Step()).numbers, (counts.get(step, np.zeros(1)) > 0).any()
                numbers[f"{source} max_abs"] = np.nan if is_bad else float(np.nanmax(values, initial=-np.inf))
            for step, values in self._new(history.tracks, (source, "histogram")):
                histograms = steps.setdefault(step, Step()).histograms
                for leaf, path in self._leaves(history, source):
                    name = f"{source} log2/{path}"
                    histograms[name] = histograms.get(name, 0) + values[leaf]
        for (source, step), values in norms.items():
            params = norms.get((sibling_name(source, "params"), step))
            if kind_of(source) == "updates" and params is not None and params.shape == values.shape:
                with np.errstate(divide="ignore", invalid="ignore"):
                    self._add_norms(steps, step, history, f"{source} ratio", source, values, params)
        for name, track in history.scalars.tracks.items():
            for step, (value, code) in self._new({(SCALARS, name): track}, (SCALARS, name)):
                steps.setdefault(step, Step()).numbers[f"{SCALARS}/{name}"] = float(np.nan if code else value)
        return steps

    def _new(self, tracks: Mapping[tuple[str, str], Track], key: tuple[str, str]) -> Iterator[tuple[int, np.ndarray]]:
        n_new = tracks[key].n_steps - self._n_returned.get(key, 0) if key in tracks else 0
        if n_new:
            self._n_returned[key] = tracks[key].n_steps
            timeline = tracks[key].newest(n_new)
            values = timeline.latest if timeline.total is None else timeline.total
            yield from zip(timeline.until.tolist(), values, strict=True)

    def _add_norms(self, steps, step: int, history: History, name: str, source: str, values, params=None) -> None:
        leaves = self._leaves(history, source)
        numbers = steps.setdefault(step, Step()).numbers
        leaf_numbers = values if params is None else values / params
        numbers |= {f"{name}/{path}": float(leaf_numbers[leaf]) for leaf, path in leaves}
        measured = [leaf for leaf, _ in leaves]
        total = np.linalg.norm(values[measured])
        numbers[name] = float(total if params is None else total / np.linalg.norm(params[measured]))

    def _leaves(self, history: History, source: str) -> list[tuple[int, str]]:
        if source not in self._paths:
            table = table_of_source(history, source, source)
            paths = [table[row].path for row in table.measured.tolist()]
            has_number = history.sources[source].has_number
            self._paths[source] = [(i, path) for i, path in enumerate(paths) if has_number[i]]
        return self._paths[source]


SHARE = 0.05  # of wall time, for deliveries that may leave out steps
LAST_S = 2.0  # for the last delivery, which may also leave out steps
_logger = logging.getLogger("treeviz")


class RunLog:
    """Logs the steps of an inspector until it is closed, or the program ends; see `GradientInspector.log_to`."""

    def __init__(
        self,
        recorder: Recorder,
        target: Any,
        *,
        every: int | None,
        thresholds: Thresholds,
        sampled: SampledParams | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if every is not None and every < 1:
            raise ValueError(f"log_to: every={every!r}: pass a positive number of steps, or None.")
        self.n_logged = self.n_left_out = 0  # steps; the latter came too fast, or were refused
        self._recorder, self._logger, self._new_steps = recorder, logger_of(target), NewSteps()
        self._every, self._clock = every, clock
        self._history = recorder.history  # if a new run has begun, the end of this one is logged first
        self._findings: list[Finding] = []
        self._alarm = Alarm(thresholds, on_finding=self._findings.append)
        self._sampled = sampled
        if sampled is not None:
            self._alarm.awaits = sampled.explains
        self._cost_s: float | None = None  # of the newest step that was logged
        self._delivered, self._has_warned, self._is_closed = clock(), False, False
        self._process, self._delivering = os.getpid(), Lock()
        no_lock = contextlib.nullcontext()
        self._ticker = Ticker(self._tick, first_s=self._logger.every_s, lock=no_lock, name="treeviz log")
        self._ticker.start()
        atexit.register(close_at_exit, weakref.ref(self))

    def close(self) -> None:
        """Read and log the remaining steps; waits for running ones. Close it before its writer."""
        if os.getpid() != self._process or self._is_closed:
            return
        self._is_closed = True
        self._ticker.stop()
        with contextlib.suppress(Exception):  # a failed step, or StopTraining, has been reported
            self._recorder.flush()
            if self._sampled is not None and self._sampled.explain(self._recorder.history):
                self._recorder.flush()
        self._deliver(is_last=True)

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        left_out = f", {self.n_left_out:,} left out" if self.n_left_out else ""
        return f"RunLog({self.n_logged:,} steps logged{left_out})"

    def _tick(self) -> float:
        with contextlib.suppress(Exception):  # the loop's own reading reports it
            self._recorder.read_what_is_ready()
        began = self._clock()
        self._deliver(is_last=False)
        return max(self._logger.every_s, (self._clock() - began) / SHARE)

    def _deliver(self, *, is_last: bool) -> None:
        """Log the new steps. The logger is called without the recorder's lock, so it may be slow."""
        with self._delivering:
            with self._recorder.reading:
                histories = dict.fromkeys((self._history, self._recorder.history))
                new_steps = [*map(self._new_steps.take_new, histories)]
                if self._history is not self._recorder.history:
                    self._history = self._recorder.history
                    self._alarm.begin()
                if self._history:
                    self._alarm.was_read(self._history, set(), is_flush=is_last)
            try:
                for steps in new_steps:
                    self._log(steps, max(SHARE * (self._clock() - self._delivered), LAST_S if is_last else 0.0))
                while self._findings:
                    finding = self._findings.pop(0)
                    if finding.severity != "info":
                        self._logger.log_finding(finding)
                self._logger.flush()
            except Exception as error:  # no error of a logger may stop the run
                if not self._has_warned:
                    text = "log_to: %s; the run continues without the steps that it refused."
                    _logger.warning(text, error_text(error))
                self._has_warned = True
            self._delivered = self._clock()

    def _log(self, steps: dict[int, Step], budget_s: float) -> None:
        numbers = sorted(step for step in steps if self._every is None or step % self._every == 0)
        self.n_left_out += len(numbers)  # until they are logged
        if self._logger.takes_newest:
            numbers = numbers[-1:]
        if self._every is None and numbers:
            if self._cost_s is None:
                self._log_step(numbers.pop(0), steps)  # measures the cost of one
            n = min(len(numbers), max(1, int(budget_s / max(self._cost_s or 0.0, 1e-6))))
            numbers = [numbers[-1 - i * len(numbers) // n] for i in reversed(range(n))]
        for step in numbers:
            self._log_step(step, steps)

    def _log_step(self, step: int, steps: dict[int, Step]) -> None:
        began = self._clock()
        self._logger.log(step, steps[step].numbers, steps[step].histograms, FIRST_EXPONENT)
        self._cost_s = self._clock() - began
        self.n_left_out -= 1
        self.n_logged += 1
