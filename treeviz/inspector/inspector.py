"""GradientInspector: records the gradients of a run, and shows them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from treeviz import integrations
from treeviz.inspector.panel import Inspector, LivePanel, checked_total
from treeviz.inspector.runs import Runs
from treeviz.inspector.views import finding_lines, whole_view
from treeviz.steps.findings.find import Alarm, check_kinds, findings
from treeviz.steps.findings.finding import SCALARS, Finding, Thresholds
from treeviz.steps.nan_origin.locate import KeptInputs, locate_nan_in_kept
from treeviz.steps.recording.decode import Arrived, recordable
from treeviz.steps.recording.history import History, Timeline, main_source
from treeviz.steps.recording.history_file import load, save
from treeviz.steps.recording.recorder import MOST_LATE, SOON, Recorder, tell_at_the_end
from treeviz.steps.statistics import LIGHT, StopTraining
from treeviz.steps.tracing.verify import Verification
from treeviz.steps.tracing.watch import Watched, watch
from treeviz.tree.files.entries import mode_of
from treeviz.tree.frame import Frame, Labels, data_frame, records
from treeviz.tree.layers import Stacked
from treeviz.views.tree_view import TreeView
from treeviz.views.view import shell_of_notebook

if TYPE_CHECKING:
    from treeviz.inspector.run_log import RunLog
    from treeviz.steps.nan_origin.locate import NanOrigin
    from treeviz.steps.tracing.called import CalledSteps
    from treeviz.views.widget.widget import TreeWidget


# The numbers of a run as columns, for data frames.


def to_records(history: History, source: str) -> list[dict[str, Any]]:
    """A dict for each leaf with numbers and each step that is kept; see `GradientInspector.to_records`."""
    return list(records(to_frame(history, source)))


def to_frame(history: History, source: str) -> Frame:
    """The same as columns: "first_step", "step", "path" and each statistic; of scalars, each of them by its name."""
    if source == SCALARS and SCALARS not in history.sources:
        lines = {name: history.scalars.values(name) for name in history.scalars.tracks}
        entries, columns = _joined({name: (line, line.latest[:, None]) for name, line in lines.items()})
        return _steps(entries, 1) | {name: values[:, 0] for name, values in columns.items()}
    what = history.sources[source]
    leaves = np.flatnonzero(what.has_number)
    lines = {statistic: history.values(source, statistic) for statistic in history.statistics(source)}
    entries, columns = _joined(
        {name: (of, (of.latest if of.total is None else of.total)[:, leaves]) for name, of in lines.items()}
    )
    paths = Labels(np.tile(np.arange(len(leaves)), len(entries)), [what.paths[leaf] for leaf in leaves])
    flat = {name: values.reshape(-1, *values.shape[2:]) for name, values in columns.items()}
    return _steps(entries, len(leaves)) | {"path": paths} | flat


def _steps(entries: Sequence[tuple[int, int]], n: int) -> dict[str, Any]:
    first, until = np.array(entries, np.int64).reshape(-1, 2).T
    return {"first_step": np.repeat(first, n), "step": np.repeat(until, n)}


def _joined(
    lines: dict[str, tuple[Timeline, np.ndarray]],
) -> tuple[list[tuple[int, int]], dict[str, np.ma.MaskedArray]]:
    """The first and the last step of each entry of any line, and the values of all lines there, [entries, …]."""
    steps = {
        name: list(zip(line.first.tolist(), line.until.tolist(), strict=True)) for name, (line, _) in lines.items()
    }
    entries = sorted({entry for of in steps.values() for entry in of})
    place = {entry: i for i, entry in enumerate(entries)}
    columns = {}
    for name, (_, values) in lines.items():
        columns[name] = np.ma.array(np.zeros((len(entries), *values.shape[1:]), values.dtype), mask=True)
        columns[name][[place[entry] for entry in steps[name]]] = values
    return entries, columns


# Follow a loop: show a widget when it begins, and complete the widget however it ends.


class Live:
    """The context manager that `inspector.live()` returns."""

    def __init__(self, inspector: Inspector, recorder: Recorder, total: int | None) -> None:
        self._inspector, self._recorder, self._total = inspector, recorder, checked_total(total)
        self._panel: LivePanel | None = None

    def __enter__(self) -> TreeWidget | None:
        """The widget, displayed. None outside a notebook."""
        if shell_of_notebook() is None:
            return None
        self._panel = LivePanel(self._inspector, self._recorder, total=self._total)
        widget = self._panel.begin()
        widget._ipython_display_()
        return widget

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        panel, self._panel = self._panel, None
        try:
            if kind is None:
                self._recorder.flush()
            else:
                with contextlib.suppress(Exception):  # the error of the loop is the one to report
                    self._recorder.flush()
        finally:
            if panel is not None:
                with contextlib.suppress(StopTraining):  # `flush` has raised it already
                    panel.finish("done" if kind is None else "stopped", "" if kind is None else kind.__name__)
                panel.detach()


class GradientInspector:
    """Inspect the gradients of a jitted step without changing it: per leaf, per step, and why they went wrong.

        inspector = tv.GradientInspector()
        update = inspector.watch(update)          # your own jitted step; nothing else changes
        for _ in range(10):
            params = update(params, x, y)
        inspector                                 # in a notebook; print(inspector) or .save("x.html") elsewhere

    Inside the step each gradient is reduced to a few numbers a leaf, which are copied to the host asynchronously and
    read some steps later; `flush` and every view read the rest. Norms are L2 norms of the finite values; NaN and
    infinities are counted separately, in small results of the step, too: its loss, new parameters, metrics. Several
    threads may train at once. A forked child, where JAX does not work, has what its parent had read, and measures none.

    Args:
      every: Inspect every n-th step. The other calls run the original step.
      heavy_every: In every n-th step also measure a histogram, counts of zeros, NaN and infinities, and the parameters
        and updates. 0: never.
      updates: For a watched step also measure the parameters and what the step adds to them, which gives their ratios.
        True: in every inspected step; False: never. None: in those of `heavy_every`; where that is 0, beside the 1st,
        5th, 50th, 100th, 150th, 200th, 250th, 500th, 1,000th … inspected step, and recorded once they hold a finding;
        where that cannot be, as of a loop, of members or with `exact=True`, a note says so.
      statistics: The statistics of the other inspected steps: `treeviz.LIGHT`, `FULL` or `HISTOGRAM`.
      name: The name of the tree in views.
      run: The name of the run, "lr 3e-4", in views, in its file and in `treeviz grads`; `reset` names the next one. A
        run that begins by itself is "lr 3e-4 #2"; see `watch`.
      max_bytes: Memory of the history, for a run of any length: recent steps exactly, older ones in time buckets.
      thresholds: The limits beyond which numbers become findings; see `treeviz.Thresholds`.
      on_finding: Called with each `Finding` once, and again if it ends and begins anew: by a watched step, by `record`,
        or by `flush` and the views. "nonfinite" comes at most 16 inspected steps after the bad one, since the loop may
        not get further ahead of the device; the other kinds are searched for as often as 2 % of the time allow.
      raise_on: Kinds of findings that stop the run: the same calls raise `StopTraining`. "nonfinite" is a gradient, a
        loss or a parameter, "result" any other result of the step, as a metric. Gradients of a dynamically scaled loss,
        which overflow now and then, stop it when they are lost in more than 16 inspected steps in a row.
      keep_inputs: Keep copies of the arguments of the newest watched steps, on their devices; after a "nonfinite" step
        keep those of that step only, so that `locate_nan` can run it again. True keeps 4; a step waits for room.
      members: For the gradients of a vmapped ensemble: "joined" is one row for all members, "each" one row a member.
      stacked: An array over which a watched step scans holds all layers of a model, and each layer has a row. Globs, as
        those of `treeviz.render`, name further such arrays; None: no layer has a row.

    Attributes:
      earlier_runs: The histories of the newest 4 runs before this one, the oldest first; see `watch`.

    Raises:
      ValueError: `members` is neither "joined" nor "each", or a kind in `raise_on` is not known.
    """

    def __init__(
        self,
        *,
        every: int = 1,
        heavy_every: int = 0,
        updates: bool | None = None,
        statistics: tuple[str, ...] = LIGHT,
        name: str = "params",
        run: str = "",
        max_bytes: int = 64_000_000,
        thresholds: Thresholds | None = None,
        on_finding: Callable[[Finding], None] | None = None,
        raise_on: str | Collection[str] = (),
        keep_inputs: bool | int = False,
        members: str = "joined",
        stacked: Stacked | None = (),
    ) -> None:
        if members not in ("joined", "each"):
            raise ValueError(f"members={members!r}: there are 'joined' and 'each'.")
        self.name = name
        self.thresholds = thresholds or Thresholds()
        self._statistics = statistics
        self._inputs = KeptInputs(4 if keep_inputs is True else int(keep_inputs)) if keep_inputs else None
        raise_on = check_kinds(raise_on, "raise_on")
        alarm = Alarm(self.thresholds, on_finding=on_finding, raise_on=raise_on) if raise_on or on_finding else None
        soon = SOON if self._inputs is None else min(max(self._inputs.most // 2, 1), SOON)
        self._recorder = Recorder(
            max_bytes,
            members=members,
            on_call=None if self._inputs is None else self._inputs.seen,
            alarm=alarm,
            at_once=0 if alarm is None and self._inputs is None else soon,
            most_late=None if alarm is None else MOST_LATE,
        )
        self._recorder.history.name = str(run)
        settings = {"every": every, "heavy_every": heavy_every, "statistics": statistics, "updates": updates}
        self._runs = Runs(self._recorder, self._inputs, self.thresholds, stacked=stacked, **settings)
        if alarm is not None:
            alarm.awaits = self._runs.sampled.explains
            tell_at_the_end(self._runs, self._recorder)
        self.earlier_runs = self._runs.earlier
        self._logs: list[RunLog] = []

    # Measuring

    def watch(self, step: Callable, *, exact: bool | str = False, gradients: str | None = None) -> Watched:
        """Return a step that computes what `step` does, and records the gradients that are computed inside it.

        The first inspected call traces and compiles the step once more. A cell may be run again: a step that is watched
        already is returned as it is, and one that is defined again after it was measured begins a new run, which the
        views show, and whose steps count from 0. In a run of several processes all must watch the step: where one does
        not, the others wait for it 10 s, and run the step unwatched.

        Args:
          step: A function that `jax.jit`, `equinox.filter_jit` or `flax.nnx.jit` has returned, compiled or not.
          exact: Always run the original step, and measure in a second run, at about twice the cost. A step with effects
            is refused. "auto": if a bit of the results differs, which four steps from the 16th on compare, and `notes`
            say.
          gradients: For a step that gets gradients from another jitted function, `apply(params, opt_state, grads)`: the
            name of that parameter, "grads". They are measured there, beside the parameters and updates.

        Raises:
          CannotWatch: The step cannot be watched; the message says why, and what to do instead.
        """
        integrations.load()  # registers the steps of Equinox and Flax
        return self._runs.watch(step, exact, gradients)

    def watching(self) -> AbstractContextManager[CalledSteps]:
        """A block in which every jitted function that takes gradients is watched when it is called, also by a library.

            with inspector.watching() as called:
                result = svi.run(key, 1000, x, y)     # or a Trainer's train(): no step need be at hand
            print(called)                             # which functions are watched, and why others are not

        Calls by this thread are seen, wherever and whenever the functions were jitted, or given to `jax.pmap` since jax
        0.8; and `lax.scan`, `map`, `fori_loop` and `while_loop` (its last step) that are called outside a jitted
        function, whose body is traced twice. Not seen are those that are compiled ahead of time (`.lower().compile()`),
        and a `lax.cond` outside: call by `jax.jit` what contains it. One warning says so, or that no step was found.
        Each function is looked at once, in its trace. Those without gradients then run as outside, but for one that is
        given what a watched step has returned, and parameters of the same structure: it is watched as by
        `watch(step, gradients=name)`. A step that `watch` was given is measured as what `watch` gave is. Nothing stays
        changed after the block, but the inspector
        keeps the steps of the newest block, with what they close over, for the next.
        """
        integrations.load()
        return self._runs.called.block()

    def record(self, measured: Any, step: int | None = None) -> None:
        """Record the result of `treeviz.measure` in a step. Returns at once; the numbers are read some steps later.

            grads = jax.grad(loss)(params, batch)
            inspector.record(tv.measure(grads=grads))

        Args:
          measured: A `Measurement`, or any tree that contains some, such as an optimizer state with those of
            `treeviz.inspect_gradients`. Those of a tree are copied, since the next step may donate its buffers.
          step: The number of the step; by default steps are counted on from the last one, from 0 or a loaded history.

        Raises:
          StopTraining: There is a finding of a kind in `raise_on`.
          ValueError: There is no measurement in `measured`.
        """
        step = self._runs.number_of_record(step)
        for measurement in recordable(measured):
            self._recorder.take(Arrived(measurement, step))

    def record_scalars(self, step: int | None = None, /, *, batch: Any = None, **scalars: Any) -> None:
        """Record numbers of the step that was called last, such as its loss. Returns at once, and waits for no device.

            inspector.record_scalars(loss=jnp.mean((x - y) ** 2), lr=3e-4, batch=[17, 4711])

        They stand above the heat map, in `findings` ("The loss jumped …; the batch was 17, 4711") and in the files and
        loggers of the run; `history.scalars` has them, each up to 64 names in up to 1 MB.

        Args:
          step: The number of the step. None: that of the newest call of a watched step, or of `record`; before any,
            calls are counted.
          batch: The ids of the examples, any shape of integers, or a text, such as file names. The first 4,096 are
            kept; of a long run those of the newest steps, and of the older ones where the first scalar is large.
          **scalars: Numbers, NumPy's or a device's arrays of one. An array [n], as of the losses of a `scan`, holds
            those of the last n steps.

        Raises:
          TypeError: A value is no real number, or traced inside a jitted function; a batch is neither ids nor text.
          ValueError: An array has several axes, or there are more than 64 names.
          StopTraining: There is a finding of a kind in `raise_on`.
        """
        self._runs.record_scalars(step, scalars, batch)

    def count_from(self, step: int) -> None:
        """Give the next call of each watched step this number, and the next `record` without a number.

            inspector.count_from(int(state.step))     # of a run that goes on from a checkpoint

        Raises:
          ValueError: It is negative, or not after all steps that were recorded; `reset` begins a new run.
        """
        newest = self._runs.newest_step
        if not newest < step:
            raise ValueError(
                f"count_from: step {step} is not after step {newest}, the newest. Call inspector.reset() before, which "
                "begins a new run."
            )
        self._runs.count_from(step)

    def reset(self, run: str = "") -> None:
        """Forget all that was measured, and count steps from 0. What is watched stays so.

            inspector.reset(run="lr 1e-3")

        Waits for the steps that are still running. The file of `keep` stays, and a new one follows the next run.

        Args:
          run: The name of the run that begins.
        """
        self._runs.begin(str(run))
        self.earlier_runs.clear()

    def verify(self, step: Callable, /, *args, **kwargs) -> Verification:
        """Check whether watching this step changes any bit of its results for these arguments, which are copied.

            print(inspector.verify(update, params, x, y))

        Runs the step with and without the measurement, up to five times each, on its own results where they have the
        structure of its arguments. Its effects, such as prints, happen each time.

        Raises:
          CannotWatch: The step cannot be watched.
        """
        if not isinstance(step, Watched):
            integrations.load()
            step = watch(step, lambda *_: None, statistics=self._statistics)
        return step.verify(*args, **kwargs)

    # What was measured

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
    def notes(self) -> list[str]:
        """What is not measured, and why; what is shown of runs and of trees that changed; damage of a loaded file."""
        return self._runs.notes

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
        return data_frame(to_frame(self.history, source or main_source(self.history)))

    def save(self, path: str | Path, *, width: str | None = None) -> Path:
        """Write the view (.html, .txt, .json, .svg, .png, .md, .mmd) or the history (.treeviz).

        Args:
          width: Of a picture on paper, as "84mm"; see `TreeView.save`.

        Returns:
          The path. `GradientInspector.load` reads the history. For other programs `to_pandas()` has it as a table:
          `inspector.to_pandas().to_parquet("run.parquet")`.

        Raises:
          LookupError: Nothing was measured yet.
          ValueError: Any other suffix.
        """
        if Path(path).suffix == ".treeviz":
            save(self.history, path)
            return Path(path)
        return self.render().save(path, width=width)

    # Following

    def explore(self, total: int | None = None) -> TreeWidget:
        """A widget that follows the run: it shows new steps while a loop, a thread or a callback records them.

            widget = inspector.explore(total=1000)   # display it, and train in the next cell

        It is updated at most 8 times a second, and updates use at most 2 % of the time. When no more steps come, or the
        cell has run, it shows the final view, the same as `render`. `widget.close()` ends it. Needs anywidget.

        Args:
          total: The number of steps of the run, for the progress bar.
        """
        return LivePanel(self, self._recorder, total=total).begin()

    def live(self, total: int | None = None) -> Live:
        """A context manager for a loop that displays the widget of `explore`, and completes it however the loop ends.

            with inspector.live(total=1000):
                for _ in range(1000):
                    params = update(params, x, y)

        Outside a notebook it shows nothing, and reads all measurements when the loop ends.

        Args:
          total: The number of steps of the run, for the progress bar. ValueError if it is no whole number.
        """
        return Live(self, self._recorder, total)

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

        log = RunLog(self._recorder, target, every=every, thresholds=self.thresholds, sampled=self._runs.sampled)
        self._logs.append(log)
        return log

    @classmethod
    def load(cls, path: str | Path, **options) -> GradientInspector:
        """An inspector with the history of a file that `save` or `keep` has written, to be shown or continued.

        Args:
          path: A .treeviz file. Watched steps, and those of `record`, are counted on from its
            newest step.
          **options: Those of `GradientInspector`; `max_bytes` is for trees that the file lacks.

        Raises:
          OSError: There is no such file, or it may not be read.
          ValueError: The file is no history, or damaged.
        """
        inspector = cls(**options)
        mode_of(Path(path))
        history = load(Path(path))
        history.name = inspector._recorder.history.name or history.name
        inspector._recorder.history = history
        inspector._runs.count_from(inspector._runs.newest_step + 1)
        return inspector

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

    def __reduce__(self):
        raise TypeError(
            "GradientInspector: it follows steps of this process, so it cannot be pickled or copied. "
            "inspector.save('run.treeviz') writes its history, GradientInspector.load('run.treeviz') reads it."
        )
