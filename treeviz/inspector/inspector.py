"""`GradientInspector` records and shows the gradients of a run; its history as columns, and its `live` context."""

from __future__ import annotations

import atexit
import contextlib
import shutil
import sys
import warnings
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import numpy as np

from treeviz import integrations
from treeviz.inspector.panel import Inspector, LivePanel, checked_total
from treeviz.inspector.runs import Runs
from treeviz.inspector.views import finding_lines, whole_view
from treeviz.steps.findings.find import Alarm, check_kinds, findings
from treeviz.steps.findings.finding import SCALARS, Finding, Thresholds
from treeviz.steps.findings.nonfinite import with_origin
from treeviz.steps.nan_origin.locate import KeptInputs, locate_nan_in_kept
from treeviz.steps.recording.decode import Arrived, recordable
from treeviz.steps.recording.history import History, main_source
from treeviz.steps.recording.history_file import load, save
from treeviz.steps.recording.recorder import MOST_LATE, SOON, Recorder, flush_at_exit
from treeviz.steps.statistics import FINITE, FINITE_PARTS, LIGHT, StopTraining
from treeviz.steps.tracing.verify import Verification
from treeviz.steps.tracing.watch import Watched, watch
from treeviz.tree.files import mode_of
from treeviz.tree.frame import Frame, Labels, data_frame, records
from treeviz.tree.layers import Stacked
from treeviz.views.text.terminal import terminal_color
from treeviz.views.tree_view import TreeView
from treeviz.views.view import shell_of_notebook

if TYPE_CHECKING:
    from treeviz.inspector.run_log import RunLog
    from treeviz.inspector.served import Server
    from treeviz.steps.nan_origin.locate import NanOrigin
    from treeviz.steps.tracing.called import CalledSteps
    from treeviz.views.widget.widget import TreeWidget


# A history as records and columns


def to_frame(history: History, source: str) -> Frame:
    """Return the columns of steps, "path" and each statistic; for scalars, one column per name."""
    leaves, labels = [0], None
    if source == SCALARS and SCALARS not in history.sources:
        timelines = {name: history.scalars.values(name) for name in history.scalars.tracks}
        values = {name: timeline.latest[:, None] for name, timeline in timelines.items()}
    else:
        leaves = np.flatnonzero(history.sources[source].has_number).tolist()
        labels = [history.sources[source].paths[leaf] for leaf in leaves]
        statistics = history.statistics(source)
        if "nonfinite" in statistics and (history.values(source, "nonfinite").high > 0).any():
            statistics += tuple(FINITE + name for name in statistics if name in FINITE_PARTS)
        timelines = {statistic: history.values(source, statistic) for statistic in statistics}
        values = {name: (x.latest if x.total is None else x.total)[:, leaves] for name, x in timelines.items()}
    entries = sorted(
        {entry for timeline in timelines.values() for entry in timeline.spans},
        # What a call has once comes after its inner steps.
        key=lambda span: (span[0], span[2] < 0, span[2], span[1], span[3] < 0, span[3]),
    )
    spans, place = np.array(entries, np.int64).reshape(-1, 4), {entry: i for i, entry in enumerate(entries)}
    first, last, first_inner, inner = (np.repeat(part, len(leaves)) for part in spans.T)
    frame: dict[str, Any] = {"first_step": first, "step": last}
    if (inner >= 0).any():
        for name, column in (("first_inner", first_inner), ("inner", inner)):
            frame[name] = np.ma.array(column, mask=column < 0)
    if labels is not None:
        frame["path"] = Labels(np.tile(np.arange(len(leaves)), len(entries)), labels)
    for name, timeline in timelines.items():
        own = values[name]
        column = np.ma.array(np.zeros((len(entries), *own.shape[1:]), own.dtype), mask=True)
        column[[place[entry] for entry in timeline.spans]] = own
        frame[name] = column.reshape(-1, *own.shape[2:])
    return frame


# The widget around a loop


class Live:
    """The context manager of `inspector.live()`: shows a widget, and completes it however the loop ends."""

    def __init__(self, inspector: Inspector, recorder: Recorder, total: int | None) -> None:
        self._inspector, self._recorder, self._total = inspector, recorder, checked_total(total)
        self._panel: LivePanel | None = None

    def __enter__(self) -> TreeWidget | None:
        """Display the widget and return it; None outside a notebook."""
        if shell_of_notebook() is None:
            return None
        self._panel = LivePanel(self._inspector, self._recorder, total=self._total)
        widget = self._panel.begin()
        widget._ipython_display_()
        return widget

    def __exit__(self, error_type: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        panel, self._panel = self._panel, None
        try:
            if error_type is None:
                self._recorder.flush()
            else:
                with contextlib.suppress(Exception):  # the error of the loop is the one to report
                    self._recorder.flush()
        finally:
            if panel is not None:
                outcome = ("done", "") if error_type is None else ("stopped", error_type.__name__)
                with contextlib.suppress(StopTraining):  # `flush` has raised it already
                    panel.finish(*outcome)
                panel.detach()


class GradientInspector:
    """Inspect the gradients of a jitted step without changing it: per leaf, per step, and why they went wrong.

        inspector = tv.GradientInspector()
        update = inspector.watch(update)          # your own jitted step; nothing else changes
        for _ in range(10):
            params = update(params, x, y)
        inspector                                 # in a notebook; print(inspector) or .save("x.html") elsewhere

    Inside the step each gradient is reduced to a few numbers per leaf, which are copied to the host asynchronously and
    read some steps later; `flush` and every view read the rest. Norms are L2 norms of the finite values. Non-finite
    values are counted separately, also in the loss, the new parameters and small results such as metrics. Several
    threads may train at once. A forked process, where JAX does not work, keeps the history and measures nothing.

    Args:
      every: Inspect every n-th step. The other calls run the original step.
      heavy_every: In every n-th step also measure histograms, counts of zeros, NaNs and infinities, parameters and
        updates. 0: never.
      updates: Measure the parameters and updates of a watched step, and show their ratios. True: in every inspected
        step; False: never. None: in the steps of `heavy_every`; if that is 0, sample the 1st, 5th, 50th, 100th, 150th,
        200th, 250th, 500th, 1,000th … inspected step, and record the samples once they show a problem. A note says
        where sampling is not possible: in loops, for ensemble members and with `exact=True`.
      statistics: The statistics of the other inspected steps: `treeviz.LIGHT`, `FULL` or `HISTOGRAM`.
      name: The name of the tree in views.
      run: The name of the run, "lr 3e-4", in views, in its file and in `treeviz grads`; `reset` names the next one. A
        run that begins by itself is "lr 3e-4 #2"; see `watch`.
      max_bytes: Memory limit of the history, for a run of any length: recent steps are exact, older ones are merged
        into time buckets. At least 8 steps and 4 buckets are kept: 0.5 kB per leaf and tree, 12 kB with histograms.
        Each of `earlier_runs` takes as much as this one, and each scalar 1 MB.
      thresholds: The limits beyond which numbers become findings; see `treeviz.Thresholds`.
      on_finding: Called once with each `Finding`, and again if it ends and recurs: by a watched step, by `record`, or
        by `flush` and the views. "nonfinite" arrives at most 16 inspected steps after the bad one, since the loop is
        kept from running further ahead of the device. The search for other kinds uses at most 2 % of the time.
      raise_on: Kinds of findings that stop the run: the same calls raise `StopTraining`. "nonfinite" is a gradient, a
        loss or a parameter, "result" any other result of the step, such as a metric. Gradients of a dynamically scaled
        loss, which overflow now and then, stop it after more than 16 bad inspected steps in a row.
      keep_inputs: Keep copies of the arguments of the newest watched steps, on their devices; after a "nonfinite" step
        keep only those of that step, so that `locate_nan` can rerun it. True keeps 4; a step waits for room.
      members: For the gradients of a vmapped ensemble: "joined" is one row for all members, "each" one row per member.
      stacked: An array over which a watched step scans holds all layers of a model: each layer gets a row. Globs, as
        in `treeviz.render`, name further such arrays; None: layers get no rows.
      activations: Also measure what goes into each parameter and what comes out of it, in the first operation that
        combines it with data, as `history.values("inputs", "rms")` and "outputs"; and of the features that a product
        contracts, "zero_share", and how many are zero in all examples ("dead"). "nonfinite" is 1 if there are values
        that are NaN, infinite or beyond 1e19. In the steps of `heavy_every` it is their number, and there are
        "max_abs", the "zero_share" of outputs, the first dead features ("dead_at", counted from 1), how many are the
        same in all examples ("constant"), how many rows of an embedding are read ("rows_read"), and the first that are
        not ("unread_at"). These steps also measure "cotangents", the gradients of the outputs, where they are known.

    Attributes:
      earlier_runs: The histories of the last 4 runs before this one, oldest first; see `watch`.

    Raises:
      ValueError: `members` is neither "joined" nor "each", or `raise_on` has an unknown kind.
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
        activations: bool = False,
    ) -> None:
        if members not in ("joined", "each"):
            raise ValueError(f"members={members!r}: use 'joined' or 'each'.")
        self.thresholds = thresholds or Thresholds()
        self._of_programs = {"statistics": statistics, "activations": activations}
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
        self._recorder.history.name, self._recorder.history.tree = str(run), name
        settings = {"every": every, "heavy_every": heavy_every, "updates": updates, **self._of_programs}
        self._runs = Runs(self._recorder, self._inputs, self.thresholds, stacked=stacked, **settings)
        if alarm is not None:
            alarm.awaits = self._runs.sampled.explains
            flush_at_exit(self._runs, self._recorder)
        self.earlier_runs = self._runs.earlier
        self._logs: list[RunLog] = []

    # Measuring

    def watch(self, step: Callable, *, exact: bool | str = False, gradients: str | None = None) -> Watched:
        """Return a step that computes what `step` does, and records the gradients that are computed inside it.

        The first inspected call traces and compiles the step once more. Notebook cells may be rerun: a step that is
        already watched is returned unchanged, and one that is redefined after it was measured begins a new run, counted
        from step 0, which the views show. With several processes, all must watch the step: the first call waits 1 s for
        the others, then steps run unmeasured until all watch, and for good if one does not within 10 s.

        Args:
          step: A function returned by `jax.jit`, `equinox.filter_jit` or `flax.nnx.jit`, compiled or not.
          exact: True: always run the original step, and measure in a second execution, at about twice the cost; steps
            with effects are refused. "auto": only if measuring changes a bit of the results. Inspected steps 16 to
            19, 64, 256, 1,024 and so on are compared to find out, for "auto" also the first, and `notes` shows the
            outcome.
          gradients: For a step that gets gradients from another jitted function, `apply(params, opt_state, grads)`: the
            name of that parameter, "grads". They are measured there, together with the parameters and updates.

        Raises:
          CannotWatch: The step cannot be watched; the message explains why, and what to do instead.
        """
        integrations.load()  # registers the steps of Equinox and Flax
        return self._runs.watch(step, exact, gradients)

    def watching(self) -> AbstractContextManager[CalledSteps]:
        """Watch every jitted function that computes gradients and is called in this block, also by a library.

            with inspector.watching() as called:
                result = svi.run(key, 1000, x, y)     # or a Trainer's train(): you need not have the step
            print(called)                             # which functions are watched, and why others are not

        Covers calls by this thread, however early the functions were jitted, or passed to `jax.pmap` since jax 0.8; and
        `lax.scan`, `map`, `fori_loop` and `while_loop` (its last iteration) called outside a jitted function, whose
        body is then traced twice. Functions compiled ahead of time (`.lower().compile()`) and an outer `lax.cond` are
        not covered: wrap the caller in `jax.jit`. A warning reports these, or that no step was found.

        Each function is analyzed once, from its trace. Functions without gradients run unwatched, except one that
        receives a watched step's result and parameters of the same structure: it is watched as by
        `watch(step, gradients=name)`. A step that was passed to `watch` is measured like the one `watch` returned.
        After the block nothing stays changed, but the inspector keeps the steps of the last block, and what they close
        over, for the next one.
        """
        integrations.load()
        return self._runs.called.block()

    def record(self, measured: Any, step: int | None = None) -> None:
        """Record the result of `treeviz.measure` in a step. Returns at once; the numbers are read some steps later.

            grads = jax.grad(loss)(params, batch)
            inspector.record(tv.measure(grads=grads))

        Args:
          measured: A `Measurement`, or a tree that contains some, such as an optimizer state with those of
            `treeviz.inspect_gradients`. Measurements in a tree are copied, since the next step may donate its buffers.
          step: The number of the step; by default the next one, from 0 or after a loaded history.

        Raises:
          StopTraining: There is a finding of a kind in `raise_on`.
          ValueError: There is no measurement in `measured`.
        """
        step = self._runs.number_of_record(step)
        for measurement in recordable(measured):
            self._recorder.take(Arrived(measurement, step))

    def record_scalars(self, step: int | None = None, /, *, batch: Any = None, **scalars: Any) -> None:
        """Record numbers of the last called step, such as its loss. Returns at once, without waiting for the device.

            inspector.record_scalars(loss=jnp.mean((x - y) ** 2), lr=3e-4, batch=[17, 4711])

        They appear above the heat map, in `findings` ("The loss jumped …; the batch was 17, 4711"), and in the files
        and loggers of the run. `history.scalars` holds up to 64 names, 1 MB for each. A loss that a watched step
        returns is followed by itself; one of the same name that is recorded replaces it.

        Args:
          step: The number of the step. None: that of the newest call of a watched step or of `record`; before any,
            the calls of this function are counted.
          batch: The ids of the examples, as integers of any shape, or a text, such as file names. The first 4,096 are
            kept; in a long run, those of the newest steps and of older steps where the first scalar is large.
          **scalars: Numbers, or arrays with one element. An array [n] holds the values of the last n steps, or of the
            inner steps of a call that loops, such as the losses of a `scan`.

        Raises:
          TypeError: A value is not a real number, or is a tracer; a batch is neither ids nor text.
          ValueError: An array has several axes, or there are more than 64 names.
          StopTraining: There is a finding of a kind in `raise_on`.
        """
        self._runs.record_scalars(step, scalars, batch)

    def count_from(self, step: int) -> None:
        """Set the step number of the next call of each watched step, and of the next `record` without a number.

            inspector.count_from(int(state.step))     # when training resumes from a checkpoint

        Raises:
          ValueError: It is negative, or not after all steps that were recorded; `reset` begins a new run.
        """
        newest = self._runs.newest_step
        if not newest < step:
            text = f"count_from: step {step} is not after step {newest}, the newest."
            raise ValueError(f"{text} Call inspector.reset() before, which begins a new run.")
        self._runs.count_from(step)

    def reset(self, run: str = "") -> None:
        """Begin a new run: drop all measurements, and count steps from 0. Watched steps stay watched.

            inspector.reset(run="lr 1e-3")

        Waits for running steps. The file of `keep` stays, and the new run is written to a new one.

        Args:
          run: The name of the new run.
        """
        self._runs.begin(str(run))
        self.earlier_runs.clear()

    def verify(self, step: Callable, /, *args, **kwargs) -> Verification:
        """Check whether watching this step changes any bit of its results for these arguments (copied).

            print(inspector.verify(update, params, x, y))

        Runs the step with and without the measurement, up to five times each, feeding back its results if they have
        the structure of its arguments. Its effects, such as prints, happen each time.

        Raises:
          CannotWatch: The step cannot be watched.
        """
        if not isinstance(step, Watched):
            integrations.load()
            step = watch(step, lambda *_: None, **self._of_programs)
        return step.verify(*args, **kwargs)

    # Results

    def flush(self) -> None:
        """Read all measurements, and write them to the file of `keep`; waits for running steps.

        If the file could not be written before, it is tried again. Raises StopTraining as `record` does.
        """
        self._runs.flush()
        self._recorder.flush(retry=True)

    @property
    def name(self) -> str:
        """The name of the tree in views."""
        return self._recorder.history.tree

    @property
    def history(self) -> History:
        """All measurements so far. Waits for running steps.

        Raises:
          LookupError: Nothing was measured yet.
        """
        self._runs.flush()
        if not self._recorder.history:
            text = "inspector: nothing was measured yet. Call the step that watch() returned, or record()."
            raise LookupError(" ".join([text, *self.notes]))
        return self._recorder.history

    @property
    def notes(self) -> list[str]:
        """What is not measured, and why; which of several runs or trees is shown; damage in a loaded file."""
        return self._runs.notes

    @property
    def n_dropped(self) -> int:
        """The number of lost measurements: the step failed, the buffers were donated, or the device was too slow."""
        return self._recorder.n_dropped

    @property
    def findings(self) -> list[Finding]:
        """The problems in the history, the worst first; see `treeviz.steps.findings.find`.

        With `keep_inputs`, the finding about the first NaN or infinity includes the result of `locate_nan`.
        """
        return with_origin(findings(self.history, thresholds=self.thresholds), self._inputs)

    def locate_nan(self, step: int | None = None) -> NanOrigin | None:
        """Locate the operation that produced the first NaN or infinity, by rerunning its step.

        Runs the step operation by operation, which takes much longer than the compiled step. Needs
        `GradientInspector(keep_inputs=True)`, and `every=1` to inspect the first bad step.

        Args:
          step: The number of the step; its inputs must still be kept. None: the first step with a non-finite gradient,
            loss or parameter; if there was none, the newest step with any non-finite result.

        Returns:
          The operation, its file and line, and whether it was in the forward or the backward pass; None if no step
          was bad.

        Raises:
          LookupError: No inputs were kept, or not those of this step.
          CannotLocateNan: The step cannot be run operation by operation.
        """
        self._runs.flush()
        return locate_nan_in_kept(self._inputs, step)

    def render(self, source: str | None = None, *, run: int = 0) -> TreeView:
        """Return the tree of gradients: the newest numbers as columns, and every norm over the steps.

        Waits for running steps.

        Args:
          source: The tree to show, one of `history.sources`; by default the first gradient, in its newest form if its
            leaves have changed.
          run: 0 is this run, -1 the one before, in `earlier_runs`.

        Raises:
          LookupError: Nothing was measured yet, or the run is not kept.
          ValueError: There is no tree of this name.
        """
        if run:
            earlier = self.earlier_runs[run]
            return whole_view(earlier, self.name, findings(earlier, thresholds=self.thresholds), source=source)
        notes, keeps_inputs = [*self._recorder.lost, *self._runs.headline_notes(source)], self._inputs is not None
        return whole_view(self.history, self.name, self.findings, source=source, notes=notes, keeps_inputs=keeps_inputs)

    def to_records(self, source: str | None = None) -> list[dict[str, Any]]:
        """Return one dict per leaf and recorded step: "step", "path", and each statistic, such as "norm".

            pandas.DataFrame(inspector.to_records()).pivot(index="step", columns="path", values="norm")

        A step is a call. If it has a loop inside, there is a dict for each inner step, such as a micro-batch, with its
        number in "inner", from 0; `pivot(index=["step", "inner"], …)`. What a call has once is without "inner".

        Where older steps were merged, "first_step" is below "step", values are those of the last step, and counts are
        summed. "norm", "max_abs" and "mean" are NaN where a value of the leaf is NaN or infinite; a run that has such
        values also has "finite_norm" and so on, computed from the finite values only.

        Args:
          source: The tree, one of `history.sources`; by default the first gradient. "scalars": the numbers
            of `record_scalars`, one dict per step.

        Raises:
          LookupError: Nothing was measured yet.
        """
        return list(records(to_frame(self.history, source or main_source(self.history))))

    def to_pandas(self, source: str | None = None) -> Any:
        """Return `to_records` as a `pandas.DataFrame`; paths are categories, unmeasured values are NaN or <NA>.

        inspector.to_pandas().pivot(index="step", columns="path", values="norm").plot(logy=True)
        """
        return data_frame(to_frame(self.history, source or main_source(self.history)))

    def save(self, path: str | Path, *, width: str | None = None) -> Path:
        """Write the view (.html, .txt, .json, .svg, .png, .md, .mmd) or the history (.treeviz).

        Args:
          width: The width of a picture on paper, such as "84mm"; see `TreeView.save`.

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

    # Live views, files and loggers

    def explore(self, total: int | None = None) -> TreeWidget:
        """Return a widget that shows new steps while a loop, a thread or a callback records them.

            widget = inspector.explore(total=1000)   # display it, and train in the next cell

        It is updated at most 8 times a second, and updates use at most 2 % of the time. When steps stop arriving, or
        the cell has run, it shows the final view, the same as `render`. `widget.close()` ends it. Needs anywidget.

        Args:
          total: The number of steps of the run, for the progress bar.
        """
        return LivePanel(self, self._recorder, total=total).begin()

    def live(self, total: int | None = None) -> Live:
        """Return a context manager that shows the widget of `explore` during a loop, and completes it at any exit.

            with inspector.live(total=1000):
                for _ in range(1000):
                    params = update(params, x, y)

        Outside a notebook it shows nothing, and reads all measurements when the loop ends.

        Args:
          total: The number of steps of the run, for the progress bar. ValueError if it is not a whole number.
        """
        return Live(self, self._recorder, total)

    def keep(self, path: str | Path) -> Path:
        """Write every step to a file from now on, so that a crash loses at most the steps of the last second.

        If the disk is full or the file is deleted, the run continues with its numbers in memory: one warning is logged,
        the view shows what the file lacks, and writing is retried. `treeviz grads FILE --follow` shows it in a terminal
        while it is written.

        Returns:
          The path of the file, which `GradientInspector.load` can read at any time. A file of another run is not
          overwritten: the path is then a new one, "run-2.treeviz". An inspector loaded from a file continues that file.

        Raises:
          OSError: The file cannot be written, e.g. because its folder does not exist.
        """
        kept = self._recorder.keep(Path(path))
        if kept != Path(path):
            text = f"keep: {path} is not of this run and stays unchanged; this run is kept in {kept}. To continue what "
            warnings.warn(f"{text}is in a file, begin with GradientInspector.load({str(path)!r}).", stacklevel=2)
        return kept

    def serve(self, port: int | None = None) -> Server:
        """Serve this run to a browser on this machine, by a process of its own that follows the file of `keep`.

            server = inspector.serve()                # prints the address; open it, also over ssh -L
            server.close()                            # or it ends with this program

        Takes some seconds, until the process has started. It costs the training nothing but the writing of the file;
        without `keep` before, the run is kept in a temporary folder until the program ends. Needs `jax-treeviz[serve]`.

        Args:
          port: By default 8710, or the next free one.

        Raises:
          OSError: The server did not start; the message has its reason.
        """
        from treeviz.inspector.served import Server

        journal = self._recorder.history.journal
        if journal is not None:
            return Server(journal.path, port)
        folder = mkdtemp(prefix="treeviz-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return Server(self.keep(Path(folder) / "run.treeviz"), port)

    def log_to(self, target: Any, *, every: int | None = None) -> RunLog:
        """Log measurements and findings to an experiment logger from now on, in a background thread.

            with inspector.log_to(print):             # or tensorboardX.SummaryWriter("runs"), wandb.init(), …
                for _ in range(10):
                    params = update(params, x, y)

        Names follow wandb.watch and TensorBoard, in sections: "grads norm/layers/0/w", "grads norm" of the whole tree,
        "grads max_abs", "grads nonfinite" (a count), "updates ratio/layers/0/w" (to params), and histograms
        "grads log2/…" in the steps that measure them. Norms and "max_abs" are NaN if a value is not finite. The x axis
        is the step, which is a call: of one that loops, as over micro-batches, the numbers are those of its last inner
        step, NaN if a value in any is not finite, and counts are sums over all. If the logger raises, one warning is
        logged; a slow logger delays no step.

        Args:
          target: A `SummaryWriter` of tensorboardX, PyTorch or Flax, a `MetricWriter` of clu, a run of W&B, trackio,
            Aim or MLflow (or the module), or a function `log(step: int, numbers: dict[str, float])`. W&B receives
            the newest step with your next `run.log`, as from `wandb.watch`, at most ten times a second.
          every: Log the inspected steps whose number is a multiple of n. None: as many as 5 % of the time allows.

        Returns:
          A `RunLog`. Close it, or use it as a context manager, before the logger is closed: it logs the remaining
          steps. It closes itself when the program ends, also after an error.

        Raises:
          TypeError: The target is none of these.
        """
        from treeviz.inspector.run_log import RunLog

        log = RunLog(self._recorder, target, every=every, thresholds=self.thresholds, sampled=self._runs.sampled)
        self._logs.append(log)
        return log

    @classmethod
    def load(cls, path: str | Path, **options) -> GradientInspector:
        """Return an inspector with the history of a file written by `save` or `keep`, to show or to continue.

        Args:
          path: A .treeviz file. Watched steps, and those of `record`, continue after its newest
            step.
          **options: Those of `GradientInspector`; `max_bytes` applies to trees that the file lacks. Without `name` and
            `run` the names are those in the file.

        Raises:
          OSError: The file does not exist or cannot be opened.
          ValueError: The file is not a history, or is damaged.
        """
        inspector = cls(**options)
        mode_of(Path(path))
        history = load(Path(path))
        history.name = inspector._recorder.history.name or history.name
        history.tree = inspector.name if "name" in options or not history.tree else history.tree
        inspector._recorder.history = history
        inspector._runs.count_from(inspector._runs.newest_step + 1)
        return inspector

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        if self._recorder.is_empty:
            return {"text/plain": repr(self)}
        bundle = self.render()._repr_mimebundle_(include, exclude)
        if "text/plain" in bundle:
            color = shell_of_notebook() is None and terminal_color(sys.stdout)
            lines = finding_lines(self.findings, self.notes, color=color)
            bundle["text/plain"] = "\n".join([bundle["text/plain"], *lines])
        return bundle

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        if self._recorder.is_empty:
            return NotImplemented
        return self.render().__treescope_repr__(path, subtree_renderer)

    def __repr__(self) -> str:
        """The most important leaves and the findings, for a terminal."""
        if self._recorder.is_empty:
            return " ".join(["GradientInspector: nothing was measured yet", *(f"({note})" for note in self.notes)])
        lines = finding_lines(self.findings, self.notes, color=terminal_color(sys.stdout))
        return "\n".join([repr(self.render()), *lines])

    def __reduce__(self):
        raise TypeError(
            "GradientInspector: it is tied to this process, so it cannot be pickled or copied. "
            "inspector.save('run.treeviz') writes its history, GradientInspector.load('run.treeviz') reads it."
        )
