"""How experiment loggers take the numbers of a step. None is imported: each is known by the object that it is given."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from treeviz.steps.findings.finding import Finding
from treeviz.tree.safe_repr import class_name, module_name


class Logger(Protocol):
    """Takes what was measured in a step.

    Attributes:
      every_s: Seconds between two deliveries, at least.
      takes_newest: Whether of the steps of one delivery it keeps the newest only.
    """

    every_s: float
    takes_newest: bool

    def log(self, step: int, numbers: Mapping[str, float], histograms: Mapping[str, np.ndarray], first: int) -> None:
        """Log numbers and histograms by name: how many values are in [2**k, 2**(k + 1)), for k = `first`, …"""
        ...

    def tell(self, finding: Finding) -> None:
        """Log what went wrong."""
        ...

    def flush(self) -> None:
        """Write what was logged, so that a crash does not lose it."""
        ...


def logger_of(target: Any) -> Logger:
    """The logger that an object stands for; see `GradientInspector.log_to`.

    Raises:
      TypeError: The object is none that is known, and cannot be called.
    """
    is_module = isinstance(target, ModuleType)
    library = (target.__name__ if is_module else module_name(type(target))).partition(".")[0]
    if library in _LIBRARIES and (is_module or library != "mlflow" or hasattr(target, "info")):
        return _LIBRARIES[library](target)
    for method, logger in _WRITERS.items():
        if callable(getattr(target, method, None)):
            return logger(target)
    if callable(target):
        return _Function(target)
    known = "a run of W&B, trackio, Aim or MLflow, a TensorBoard writer, or a function of a step and its numbers"
    raise TypeError(f"log_to: {class_name(type(target))} is not known as a logger. Give {known}.")


class _Function:
    """A function of a step and its numbers, `{name: float}`."""

    every_s, takes_newest = 1.0, False

    def __init__(self, target: Any) -> None:
        self._target = target

    def log(self, step: int, numbers: Mapping[str, float], histograms: Mapping[str, np.ndarray], first: int) -> None:
        self._target(step, dict(numbers))

    def tell(self, finding: Finding) -> None:
        pass  # `on_finding` hears of it

    def flush(self) -> None:
        pass


class _TensorBoard(_Function):
    """The `SummaryWriter` of tensorboardX or of PyTorch."""

    def log(self, step: int, numbers: Mapping[str, float], histograms: Mapping[str, np.ndarray], first: int) -> None:
        for name, value in numbers.items():
            if math.isfinite(value) or "/" not in name:  # tensorboardX warns of each, which are as many as leaves
                self._target.add_scalar(name, value, step)
        for name, counts in histograms.items():
            exponents = np.arange(first, first + len(counts)) + 0.5
            self._target.add_histogram_raw(
                name,
                min=first,
                max=first + len(counts),
                num=int(counts.sum()),
                sum=float(exponents @ counts),
                sum_squares=float(exponents**2 @ counts),
                bucket_limits=(exponents + 0.5).tolist(),
                bucket_counts=counts.tolist(),
                global_step=step,
            )

    def tell(self, finding: Finding) -> None:
        self._target.add_text("findings", str(finding), finding.first)

    def flush(self) -> None:
        self._target.flush()


class _FlaxTensorBoard(_TensorBoard):
    """The `SummaryWriter` of `flax.metrics.tensorboard`, which takes no histogram that is counted already."""

    def log(self, step: int, numbers: Mapping[str, float], histograms: Mapping[str, np.ndarray], first: int) -> None:
        for name, value in numbers.items():
            self._target.scalar(name, value, step)

    def tell(self, finding: Finding) -> None:
        self._target.text("findings", str(finding), finding.first)


class _MetricWriter(_TensorBoard):
    """A `MetricWriter` of clu, which takes no histogram that is counted already."""

    def log(self, step: int, numbers: Mapping[str, float], histograms: Mapping[str, np.ndarray], first: int) -> None:
        self._target.write_scalars(step, numbers)

    def tell(self, finding: Finding) -> None:
        self._target.write_texts(finding.first, {"findings": str(finding)})


class _Wandb(_Function):
    """A run of W&B. As those of `wandb.watch`, the numbers go out with the next row that the user logs.

    W&B drops a row whose step is behind its newest. So the step is a metric of its own, which the others are drawn
    over, and the user's steps stay what they are. A row has one value of each number, so of the steps since the user's
    last row the newest is logged.
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
                self._target.define_metric(section, step_metric=self._STEP)
                self._target.define_metric(f"{section}/*", step_metric=self._STEP)
                self._defined.add(section)
        row = {**numbers, **_histograms("wandb", histograms, first), self._STEP: step}
        self._target.log(row, commit=False)

    def tell(self, finding: Finding) -> None:
        level = "ERROR" if finding.severity == "error" else "WARN"
        self._target.alert(f"{finding.kind} at step {finding.first}", f"{finding.sentence} {finding.advice}", level)


class _Trackio(_Function):
    """trackio, or one of its runs."""

    def log(self, step: int, numbers: Mapping[str, float], histograms: Mapping[str, np.ndarray], first: int) -> None:
        self._target.log({**numbers, **_histograms("trackio", histograms, first)}, step=step)

    def tell(self, finding: Finding) -> None:
        levels = sys.modules["trackio"].AlertLevel
        level = levels.ERROR if finding.severity == "error" else levels.WARN
        self._target.alert(f"{finding.kind} at step {finding.first}", f"{finding.sentence} {finding.advice}", level)


class _Aim(_Function):
    """A `Run` of Aim."""

    def log(self, step: int, numbers: Mapping[str, float], histograms: Mapping[str, np.ndarray], first: int) -> None:
        for name, value in numbers.items():
            self._target.track(value, name=name, step=step)
        for name, counts in histograms.items():
            distribution = sys.modules["aim"].Distribution(hist=counts, bin_range=(first, first + len(counts)))
            self._target.track(distribution, name=name, step=step)

    def tell(self, finding: Finding) -> None:
        (self._target.log_error if finding.severity == "error" else self._target.log_warning)(str(finding))


class _MLflow(_Function):
    """MLflow's module, for the active run, or a run; its names have letters, digits and `_-. /` only."""

    def log(self, step: int, numbers: Mapping[str, float], histograms: Mapping[str, np.ndarray], first: int) -> None:
        named = {re.sub(r"[^\w\-. /]", "_", name, flags=re.ASCII): value for name, value in numbers.items()}
        sys.modules["mlflow"].log_metrics(named, step=step, run_id=self._run_id)

    def tell(self, finding: Finding) -> None:
        client = sys.modules["mlflow"].MlflowClient()
        client.set_tag(self._run_id, f"finding at step {finding.first} {finding.kind}", str(finding)[:5000])

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        run = target.active_run() if isinstance(target, ModuleType) else target
        if run is None:
            raise TypeError("log_to: MLflow has no active run. Call mlflow.start_run() before.")
        self._run_id = run.info.run_id


def _histograms(library: str, histograms: Mapping[str, np.ndarray], first: int) -> dict[str, Any]:
    """The histograms as objects of a library that takes them as NumPy returns them."""
    new: Callable = sys.modules[library].Histogram
    return {
        name: new(np_histogram=(counts, np.arange(first, first + len(counts) + 1)))
        for name, counts in histograms.items()
    }


_LIBRARIES: dict[str, Callable[[Any], Logger]] = {
    "wandb": _Wandb,
    "trackio": _Trackio,
    "aim": _Aim,
    "mlflow": _MLflow,
}
_WRITERS: dict[str, Callable[[Any], Logger]] = {  # by a method that has its name there only
    "add_histogram_raw": _TensorBoard,
    "write_scalars": _MetricWriter,
    "scalar": _FlaxTensorBoard,
}
