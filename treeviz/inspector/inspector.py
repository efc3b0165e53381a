"""GradientInspector: records the gradients of a run, and shows them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeviz import integrations
from treeviz.inspector.run_files import load_run
from treeviz.inspector.runs import Runs
from treeviz.inspector.sinks import Sinks
from treeviz.steps.findings.alarm import Alarm
from treeviz.steps.findings.find import check_kinds
from treeviz.steps.findings.finding import Finding, Thresholds
from treeviz.steps.nan_origin.kept_inputs import KeptInputs
from treeviz.steps.recording.at_the_end import tell_at_the_end
from treeviz.steps.recording.decode import Arrived, recordable
from treeviz.steps.recording.pace import SOON
from treeviz.steps.recording.recorder import MOST_LATE, Recorder
from treeviz.steps.statistics import LIGHT
from treeviz.steps.tracing.verify import Verification
from treeviz.steps.tracing.watch import Watched, watch
from treeviz.tree.layers import Stacked

if TYPE_CHECKING:
    from treeviz.inspector.live import Live
    from treeviz.steps.tracing.called import CalledSteps
    from treeviz.views.widget.widget import TreeWidget


class GradientInspector(Sinks):
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
            alarm.awaits = self._runs.looked.explains
            tell_at_the_end(self._runs, self._recorder)
        self.earlier_runs = self._runs.earlier
        self._logs = []

    # Measuring

    def watch(
        self, step: Callable, *, via: str = "output", exact: bool | str = False, gradients: str | None = None
    ) -> Watched:
        """Return a step that computes what `step` does, and records the gradients that are computed inside it.

        The first inspected call traces and compiles the step once more. A cell may be run again: a step that is watched
        already is returned as it is, and one that is defined again after it was measured begins a new run, which the
        views show, and whose steps count from 0. In a run of several processes all must watch the step: where one does
        not, the others wait for it 10 s, and run the step unwatched.

        Args:
          step: A function that `jax.jit`, `equinox.filter_jit` or `flax.nnx.jit` has returned, compiled or not.
          via: How numbers leave the device: "output" or "callback"; see `treeviz.steps.tracing.watch.watch`.
          exact: Always run the original step, and measure in a second run, at about twice the cost. A step with effects
            is refused. "auto": if a bit of the results differs, which four steps from the 16th on compare, and `notes`
            say.
          gradients: For a step that gets gradients from another jitted function, `apply(params, opt_state, grads)`: the
            name of that parameter, "grads". They are measured there, beside the parameters and updates.

        Raises:
          CannotWatch: The step cannot be watched; the message says why, and what to do instead.
        """
        integrations.load()  # registers the steps of Equinox and Flax
        return self._runs.watch(step, via, exact, gradients)

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

    # Following

    def explore(self, total: int | None = None) -> TreeWidget:
        """A widget that follows the run: it shows new steps while a loop, a thread or a callback records them.

            widget = inspector.explore(total=1000)   # display it, and train in the next cell

        It is updated at most 8 times a second, and updates use at most 2 % of the time. When no more steps come, or the
        cell has run, it shows the final view, the same as `render`. `widget.close()` ends it. Needs anywidget.

        Args:
          total: The number of steps of the run, for the progress bar.
        """
        from treeviz.inspector.panel import LivePanel

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
        from treeviz.inspector.live import Live

        return Live(self, self._recorder, total)

    @classmethod
    def load(cls, path: str | Path, **options) -> GradientInspector:
        """An inspector with the history of a file that `save` or `keep` has written, to be shown or continued.

        Args:
          path: A .treeviz, .jsonl or .parquet file. Watched steps, and those of `record`, are counted on from its
            newest step.
          **options: Those of `GradientInspector`; `max_bytes` is for trees that the file lacks.

        Raises:
          OSError: There is no such file, or it may not be read.
          ValueError: The file is no history, or damaged.
        """
        inspector = cls(**options)
        history = load_run(Path(path))
        history.name = inspector._recorder.history.name or history.name
        inspector._recorder.history = history
        inspector._runs.count_from(inspector._runs.newest_step + 1)
        return inspector

    def __reduce__(self):
        raise TypeError(
            "GradientInspector: it follows steps of this process, so it cannot be pickled or copied. "
            "inspector.save('run.treeviz') writes its history, GradientInspector.load('run.treeviz') reads it."
        )
