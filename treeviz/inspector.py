"""GradientInspector: the one thing that lives and remembers."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeviz.analysis.findings import Finding, Thresholds, findings
from treeviz.analysis.gradients import LIGHT, Measurement
from treeviz.analysis.history import History
from treeviz.analysis.kept_inputs import KeptInputs, hunt_in_kept
from treeviz.analysis.recorded import Arrived, copied
from treeviz.analysis.recorder import Recorder
from treeviz.gradient_view import finding_lines, whole_view
from treeviz.integrations.optax_inspect import find_measurements
from treeviz.integrations.verification import Verification
from treeviz.views.tree_view import TreeView
from treeviz.watching import Watched, watch

if TYPE_CHECKING:
    from treeviz.analysis.hunt import Culprit
    from treeviz.live import Live
    from treeviz.views.widget import TreeWidget


class GradientInspector:
    """See the gradients of a jitted step, which stays as it is: per leaf, per step, and why they went wrong.

        inspector = tv.GradientInspector()
        update = inspector.watch(update)          # your own jitted step; nothing else changes
        for _ in range(1000):
            params = update(params, x, y)
        inspector                                 # in a notebook; print(inspector) or .save("x.html") elsewhere

    Reading never waits for a step: numbers arrive some steps late, and all of them when somebody looks. Several
    threads may train at once. A forked child sees what was read before, and measures nothing: JAX does not live there.

    Args:
      every: Inspect every n-th step. The others run the untouched step and cost nothing.
      heavy_every: Every n-th step also with a histogram, counts of zeros, NaN and infinities, and with the parameters
        and updates.
      updates: Of a watched step measure the parameters and what the step adds to them too, so that their ratios are
        known. True: in every inspected step; None: in those of `heavy_every`; False: never.
      statistics: What is measured in the other inspected steps: `treeviz.LIGHT`, `FULL` or `HISTOGRAM`.
      name: What the tree is called.
      max_bytes: For the history, whatever the length of the run: recent steps exactly, older ones in buckets.
      thresholds: From where on something is a finding.
      on_finding: Called with each `Finding` once, soon after it is there.
      raise_on: Kinds of findings that stop the run with `StopTraining`, e.g. {"nonfinite"}.
      keep_inputs: Keep copies of what the newest watched steps were called with, on their devices, until gradients are
        not finite, and then those of that step: `hunt` can run it again. True keeps 4, and a step waits until there
        is room.
      members: Of a vmapped ensemble: "joined" into one row, or "each" in a row of its own.
    """

    def __init__(
        self,
        *,
        every: int = 1,
        heavy_every: int = 0,
        updates: bool | None = None,
        statistics: tuple[str, ...] = LIGHT,
        name: str = "params",
        max_bytes: int = 64_000_000,
        thresholds: Thresholds | None = None,
        on_finding: Callable[[Finding], None] | None = None,
        raise_on: Collection[str] = (),
        keep_inputs: bool | int = False,
        members: str = "joined",
    ) -> None:
        if members not in ("joined", "each"):
            raise ValueError(f"members={members!r}: there are 'joined' and 'each'.")
        self.name = name
        self._every, self._heavy_every, self._statistics = every, heavy_every, statistics
        self._updates = updates
        self._inputs = KeptInputs(4 if keep_inputs is True else int(keep_inputs)) if keep_inputs else None
        self._recorder = Recorder(
            max_bytes,
            thresholds or Thresholds(),
            members=members,
            on_call=None if self._inputs is None else self._inputs.seen,
            on_finding=on_finding,
            raise_on=raise_on,
            at_once=bool(raise_on or keep_inputs),
        )
        self._steps = itertools.count()
        self._n_watched = 0
        self._watched: list[weakref.ref[Watched]] = []

    # What goes in

    def watch(self, step: Callable, *, via: str = "output", exact: bool = False) -> Watched:
        """A step that does what `step` does, and tells this inspector of the gradients made inside it.

        Args:
          step: What `jax.jit`, `equinox.filter_jit` or `flax.nnx.jit` gave, compiled before or not.
          via: "output", or "callback"; see `treeviz.watching.watch`.
          exact: Run the untouched step always, and measure in a second run: bit for bit the same, at twice the cost.

        Raises:
          CannotWatch: The step cannot be watched; the message says why, and what to do instead.
        """
        suffix = f" of {getattr(step, '__name__', 'step')}" if self._n_watched else ""
        self._n_watched += 1

        def record(measurement: Measurement, number: int) -> None:
            self._recorder.take(Arrived(measurement, number, watched.watches, suffix))

        watched = watch(
            step,
            record,
            every=self._every,
            heavy_every=self._heavy_every,
            statistics=self._statistics,
            via=via,
            exact=exact,
            updates=self._updates,
        )
        self._watched.append(weakref.ref(watched))
        if self._inputs is not None:
            self._inputs.follow(watched, suffix, self.flush)
        return watched

    def record(self, measured: Any, step: int | None = None) -> None:
        """Take what `treeviz.measure` gave inside a step. Returns at once; the numbers are read some steps later.

        Args:
          measured: A `Measurement`, or any tree with some in it, such as an optimizer's state with those of
            `treeviz.inspect_gradients`. Of a tree copies are taken, since the next step may be given its buffers.
          step: Its number; by default they are counted.

        Raises:
          StopTraining: A finding of a kind in `raise_on`.
        """
        step = next(self._steps) if step is None else step
        if isinstance(measured, Measurement):
            self._recorder.take(Arrived(measured, step))
            return
        measurements = find_measurements(measured)
        if not measurements:
            raise ValueError(
                f"record: there is no measurement in this {type(measured).__name__}. Give it what treeviz.measure() "
                "gave, or an optimizer's state that treeviz.inspect_gradients() has a place in."
            )
        for measurement in copied(measurements):
            self._recorder.take(Arrived(measurement, step))

    def flush(self) -> None:
        """Read everything that has been measured; waits for the steps that still run."""
        self._recorder.flush()

    def verify(self, step: Callable, /, *args, **kwargs) -> Verification:
        """Whether watching this step changes a single bit of what it gives for these arguments, which are copied.

            print(inspector.verify(update, params, x, y))

        Raises:
          CannotWatch: The step cannot be watched.
        """
        if not isinstance(step, Watched):
            step = watch(step, lambda *_: None, statistics=self._statistics)
        return step.verify(*args, **kwargs)

    # What comes out

    @property
    def history(self) -> History:
        """What was measured so far.

        Raises:
          LookupError: Nothing was.
        """
        self.flush()
        if self._recorder.history is None:
            raise LookupError("inspector: nothing was measured yet. Call the step that watch() gave, or record().")
        return self._recorder.history

    @property
    def n_dropped(self) -> int:
        """How many measurements were lost: the device was too far behind, or the next step took their buffers."""
        return self._recorder.n_dropped

    @property
    def findings(self) -> list[Finding]:
        """What is wrong, the worst first; see `treeviz.analysis.findings`."""
        return self._found_in(self.history)

    def _found_in(self, history: History) -> list[Finding]:
        return findings(history, thresholds=self._recorder.thresholds, forward=self._recorder.forward)

    def hunt(self, step: int | None = None) -> Culprit | None:
        """Run the first bad step again, operation by operation, and name the one that gave what is not finite, its
        file and line, and whether it was in the forward or the backward pass. None if no step was bad.

        Needs `GradientInspector(keep_inputs=True)`, and `every=1` to get the first one. See `treeviz.analysis.hunt`.

        Args:
          step: The number of the step, e.g. that whose loss was NaN; its inputs must be kept still. None: the first
            whose gradients were not finite, or, if there was none, the newest that gave something that is not.

        Raises:
          LookupError: No inputs were kept, or not those of this step.
          CannotHunt: The step cannot be run in this way.
        """
        self.flush()
        return hunt_in_kept(self._inputs, step)

    def render(self, source: str | None = None) -> TreeView:
        """The tree of gradients: the newest numbers in columns, and the norm of every leaf and subtree over the steps.

        Args:
          source: Which tree, of `history.sources`; by default the first gradient.
        """
        history = self.history
        return whole_view(history, self.name, self._found_in(history), source=source, n_dropped=self.n_dropped)

    def explore(self, total: int | None = None) -> TreeWidget:
        """A widget that follows the run: what is measured appears in it while a loop, thread or callback records.

            widget = inspector.explore(total=1000)   # display it, and train in the next cell

        It is told of new steps at most 8 times a second and for at most 2 % of the time, and when nothing comes any
        more, or the cell has run, it shows the whole picture, as `render` does. `widget.close()` ends it.

        Args:
          total: How many steps there will be, for the progress bar.
        """
        from treeviz.live_panel import LivePanel

        return LivePanel(self, self._recorder, total=total).begin()

    def live(self, total: int | None = None) -> Live:
        """The same around a loop, which may raise or be interrupted: the picture is whole then, too.

            with inspector.live(total=1000):
                for _ in range(1000):
                    params = update(params, x, y)

        Without a notebook it shows nothing, and reads what was measured when the loop has ended.
        """
        from treeviz.live import Live

        return Live(self, self._recorder, total)

    def save(self, path: str | Path) -> Path:
        """Write the view (.html, .txt, .json, .svg, .png), or the history itself (.treeviz), to a file.

        Returns:
          The path. `GradientInspector.load` reads a history.
        """
        path = Path(path)
        if path.suffix != ".treeviz":
            return self.render().save(path)
        self.history.save(path)
        return path

    def keep(self, path: str | Path) -> None:
        """From now on write what is read to a file at once, so that a crash loses no more than the unread steps."""
        self._recorder.keep(Path(path))

    @classmethod
    def load(cls, path: str | Path, **options) -> GradientInspector:
        """What `save` or `keep` wrote, to be looked at or to go on with.

        Raises:
          ValueError: It is no such file.
        """
        inspector = cls(**options)
        inspector._recorder.history = History.load(path)
        return inspector

    @property
    def _is_empty(self) -> bool:
        return self._recorder.history is None and not len(self._recorder)

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        if self._is_empty:
            return {"text/plain": repr(self)}
        bundle = self.render()._repr_mimebundle_(include, exclude)
        if "text/plain" in bundle:
            bundle["text/plain"] = "\n".join([bundle["text/plain"], *finding_lines(self.findings, self.notes)])
        return bundle

    def __repr__(self) -> str:
        """The worst leaves and what was found, for a terminal."""
        if self._is_empty:
            return "GradientInspector: nothing was measured yet"
        return "\n".join([repr(self.render()), *finding_lines(self.findings, self.notes)])

    @property
    def notes(self) -> list[str]:
        """What of the watched steps is not measured, and why."""
        watched = [step for reference in self._watched if (step := reference()) is not None]
        return list(dict.fromkeys(note for step in watched for note in step.notes))
