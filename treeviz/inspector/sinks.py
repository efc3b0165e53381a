"""Where the numbers of a run go while they come: files and experiment loggers."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeviz.inspector.measured import Measured

if TYPE_CHECKING:
    from treeviz.inspector.run_log import RunLog


class Sinks(Measured):
    """Where the numbers of a run go while they come."""

    _logs: list[RunLog]

    def keep(self, path: str | Path) -> Path:
        """From now on write every step to a file, so that a crash loses no more than the steps of the last second.

        If the disk is full or the file is deleted, the run goes on with its numbers in memory: one warning is logged,
        the view says what the file lacks, and writing is tried again.

        Returns:
          The path of the file, which `GradientInspector.load` reads at any time. A file of another run stays as it is,
          and the path is a new one: "run-2.treeviz". An inspector that was loaded from a file continues it.

        Raises:
          OSError: The file cannot be written, e.g. since its folder is not there.
        """
        kept = self._recorder.keep(Path(path))
        if kept != Path(path):
            text = f"keep: {path} is not of this run, and stays as it is; this run is kept in {kept}. To continue what "
            warnings.warn(f"{text}is in a file, begin with GradientInspector.load({str(path)!r}).", stacklevel=2)
        return kept

    def log_to(self, target: Any, *, every: int | None = None) -> RunLog:
        """From now on tell an experiment logger what is measured, and of findings, from a thread of its own.

            with inspector.log_to(print):             # or tensorboardX.SummaryWriter("runs"), wandb.init(), …
                for _ in range(10):
                    params = update(params, x, y)

        Names are those of wandb.watch and TensorBoard, in sections: "grads norm/layers/0/w", "grads norm" of the whole,
        "grads max_abs", "grads nonfinite" (a count), "updates ratio/layers/0/w" (to params), and histograms
        "grads log2/…" in the steps that measure these. A norm is NaN where a number in it is not finite. A logger that
        raises costs one warning; it may be slow, and holds up no step.

        Args:
          target: A `SummaryWriter` of tensorboardX, PyTorch or Flax, a `MetricWriter` of clu, a run of W&B, trackio,
            Aim or MLflow (or the module), or a function `log(step: int, numbers: dict[str, float])`. W&B gets numbers
            as by `wandb.watch`, with your next `run.log`: those of the newest step, up to ten times a second.
          every: Log each n-th of the inspected steps by number. None: as many as 5 % of the time allow.

        Returns:
          What to close, or to use as a context manager, before the logger is closed: it logs the steps that are left.
          When the program ends, also by an error, it closes itself.

        Raises:
          TypeError: The target is none of these.
        """
        from treeviz.inspector.run_log import RunLog

        log = RunLog(self._recorder, target, every=every, thresholds=self.thresholds, looked=self._runs.looked)
        self._logs.append(log)
        return log
