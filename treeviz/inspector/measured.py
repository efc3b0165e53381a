"""What was measured of a run: its history, its findings, and its views."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeviz.inspector.exported import to_frame, to_records
from treeviz.inspector.run_files import outputs
from treeviz.inspector.runs import Runs
from treeviz.inspector.views import finding_lines, whole_view
from treeviz.steps.findings.find import findings
from treeviz.steps.findings.finding import Finding, Thresholds
from treeviz.steps.nan_origin.kept_inputs import KeptInputs, locate_nan_in_kept
from treeviz.steps.recording.history import History, main_source
from treeviz.steps.recording.history_file import save
from treeviz.steps.recording.recorder import Recorder
from treeviz.tree.frame import data_frame
from treeviz.views.save import write
from treeviz.views.tree_view import TreeView

if TYPE_CHECKING:
    from treeviz.steps.nan_origin.locate import NanOrigin


class Measured:
    """What was measured of a run: its history, its findings, and its views.

    Attributes:
      name: Of the tree in views.
      thresholds: The limits beyond which numbers become findings.
      earlier_runs: The histories of the newest 4 runs before this one.
    """

    name: str
    thresholds: Thresholds
    earlier_runs: list[History]
    _recorder: Recorder
    _runs: Runs
    _inputs: KeptInputs | None

    def flush(self) -> None:
        """Read all measurements; waits for the steps that are still running. Raises StopTraining as `record` does."""
        self._runs.flush()

    @property
    def history(self) -> History:
        """All that was measured so far. Waits for the steps that are still running.

        Raises:
          LookupError: Nothing was measured yet.
        """
        self.flush()
        if not self._recorder.history:
            text = "inspector: nothing was measured yet. Call the step that watch() gave, or record()."
            raise LookupError(" ".join([text, *self.notes]))
        return self._recorder.history

    @property
    def n_dropped(self) -> int:
        """Number of lost measurements: their step failed, their buffers were donated, or the device was too slow."""
        return self._recorder.n_dropped

    @property
    def findings(self) -> list[Finding]:
        """Problems found in the history, the worst first; see `treeviz.steps.findings.find`."""
        return findings(self.history, thresholds=self.thresholds)

    def locate_nan(self, step: int | None = None) -> NanOrigin | None:
        """Locate the operation that produced the first NaN or infinity, by running its step again.

        Runs the step operation by operation, which takes much longer than the compiled step. Needs
        `GradientInspector(keep_inputs=True)`, and `every=1` to inspect the first bad step.

        Args:
          step: The number of the step; its inputs must still be kept. None: the first step with a gradient, a loss or a
            parameter that is not finite, or if there was none the newest with any non-finite result.

        Returns:
          The operation, its file and line, and whether it was in the forward or the backward pass; None if no step
          was bad.

        Raises:
          LookupError: No inputs were kept, or not those of this step.
          CannotLocateNan: The step cannot be run operation by operation.
        """
        self.flush()
        return locate_nan_in_kept(self._inputs, step)

    def render(self, source: str | None = None, *, run: int = 0) -> TreeView:
        """The tree of gradients: the newest numbers as columns, and the norm of every leaf and subtree over the steps.

        Waits for the steps that are still running.

        Args:
          source: The tree to show, one of `history.sources`; by default the first gradient, as it was last if its
            leaves have changed.
          run: 0 is this run, -1 the one before, of `earlier_runs`.

        Raises:
          LookupError: Nothing was measured yet, or the run is not kept.
        """
        if run:
            earlier = self.earlier_runs[run]
            return whole_view(earlier, self.name, findings(earlier, thresholds=self.thresholds), source=source)
        lost, keeps_inputs = [*self._recorder.lost, *self._runs.remarks(source)], self._inputs is not None
        return whole_view(self.history, self.name, self.findings, source=source, lost=lost, keeps_inputs=keeps_inputs)

    def to_records(self, source: str | None = None) -> list[dict[str, Any]]:
        """A dict for each leaf and step that is kept: "step", "path", and each statistic, as "norm" and "nonfinite".

            pandas.DataFrame(inspector.to_records()).pivot(index="step", columns="path", values="norm")

        Where older steps were merged, "first_step" is below "step", a value is that of the last of them, and a count is
        their sum.

        Args:
          source: The tree, one of `history.sources`; by default the first gradient. "scalars": those of
            `record_scalars`, a dict for each step.

        Raises:
          LookupError: Nothing was measured yet.
        """
        return to_records(self.history, source or main_source(self.history))

    def to_pandas(self, source: str | None = None) -> Any:
        """The same as a `pandas.DataFrame`: paths are categories, what was not measured is NaN or <NA>.

        inspector.to_pandas().pivot(index="step", columns="path", values="norm").plot(logy=True)
        """
        return data_frame("pandas", to_frame(self.history, source or main_source(self.history)))

    def to_arrow(self, source: str | None = None) -> Any:
        """The same as a `pyarrow.Table`, which Polars and DuckDB take. Needs `pip install 'jax-treeviz[arrow]'`.

        inspector.to_arrow("grads").group_by("path").aggregate([("norm", "max")])
        """
        return data_frame("pyarrow", to_frame(self.history, source or main_source(self.history)))

    def save(self, path: str | Path, *, width: str | None = None) -> Path:
        """Write the view (.html, .txt, .json, .svg, .png, .md, .mmd) or the history (.treeviz, .jsonl, .parquet).

        Args:
          width: Of a picture on paper, as "84mm"; see `TreeView.save`.

        Returns:
          The path. `GradientInspector.load` reads the history. JSON Lines and Parquet are for other programs:
          `treeviz.steps.recording.exchange` documents them; Parquet needs `pip install 'jax-treeviz[arrow]'`.

        Raises:
          LookupError: Nothing was measured yet.
          ValueError: Any other suffix.
        """
        if Path(path).suffix == ".treeviz":
            save(self.history, path)
            return Path(path)
        exports = outputs(lambda: self.history)
        return write(Path(path), exports) if Path(path).suffix in exports else self.render().save(path, width=width)

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        if self._recorder.is_empty:
            return {"text/plain": repr(self)}
        bundle = self.render()._repr_mimebundle_(include, exclude)
        if "text/plain" in bundle:
            bundle["text/plain"] = "\n".join([bundle["text/plain"], *finding_lines(self.findings, self.notes)])
        return bundle

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        if self._recorder.is_empty:
            return NotImplemented
        return self.render().__treescope_repr__(path, subtree_renderer)

    def __repr__(self) -> str:
        """The leaves to look at first and the findings, for a terminal."""
        if self._recorder.is_empty:
            return " ".join(["GradientInspector: nothing was measured yet", *(f"({note})" for note in self.notes)])
        return "\n".join([repr(self.render()), *finding_lines(self.findings, self.notes)])

    @property
    def notes(self) -> list[str]:
        """What is not measured, and why; what is shown of runs and of trees that changed; damage of a loaded file."""
        return self._runs.notes
