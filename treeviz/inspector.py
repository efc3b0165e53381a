"""GradientInspector: the one thing that lives and remembers."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path

import jax

from treeviz.analysis.findings import Finding, Thresholds, findings
from treeviz.analysis.gradient_columns import gradient_columns
from treeviz.analysis.gradient_series import gradient_series, table_of_source
from treeviz.analysis.gradients import LIGHT, Measurement, Source
from treeviz.analysis.history import History
from treeviz.analysis.recorded import Arrived, axes_of, read
from treeviz.analysis.sizes import headline, size_columns
from treeviz.views.tree_view import TreeView
from treeviz.watching import StopTraining, Watched, watch

_BATCH = 32  # measurements that are read together
_MOST_WAITING = 256  # of which none is ready: the reader is too slow, and older ones are dropped


class GradientInspector:
    """See the gradients of a jitted step, which stays as it is: per leaf, per step, and why they went wrong.

        inspector = tv.GradientInspector()
        update = inspector.watch(update)          # your own jitted step; nothing else changes
        for _ in range(1000):
            params = update(params, x, y)
        inspector                                 # in a notebook; print(inspector) or .save("x.html") elsewhere

    Reading never waits for a step: numbers arrive some steps late, and all of them when somebody looks.

    Args:
      every: Inspect every n-th step. The others run the untouched step and cost nothing.
      heavy_every: Every n-th step also with a histogram and counts of zeros, NaN and infinities.
      statistics: What is measured in the other inspected steps: `treeviz.LIGHT`, `FULL` or `HISTOGRAM`.
      name: What the tree is called.
      max_bytes: For the history, whatever the length of the run: recent steps exactly, older ones in buckets.
      thresholds: From where on something is a finding.
      on_finding: Called with each `Finding` once, soon after it is there.
      raise_on: Kinds of findings that stop the run with `StopTraining`, e.g. {"nonfinite"}.
      members: Of a vmapped ensemble: "joined" into one row, or "each" in a row of its own.
    """

    def __init__(
        self,
        *,
        every: int = 1,
        heavy_every: int = 0,
        statistics: tuple[str, ...] = LIGHT,
        name: str = "params",
        max_bytes: int = 64_000_000,
        thresholds: Thresholds | None = None,
        on_finding: Callable[[Finding], None] | None = None,
        raise_on: Collection[str] = (),
        members: str = "joined",
    ) -> None:
        if members not in ("joined", "each"):
            raise ValueError(f"members={members!r}: there are 'joined' and 'each'.")
        self.name = name
        self.n_dropped = 0
        self._every, self._heavy_every, self._statistics = every, heavy_every, statistics
        self._max_bytes = max_bytes
        self._thresholds = thresholds or Thresholds()
        self._on_finding = on_finding
        self._raise_on = frozenset(raise_on)
        self._members = members
        self._history: History | None = None
        self._journal: Path | None = None
        self._waiting: deque[Arrived] = deque()
        self._lock = threading.RLock()
        self._steps = itertools.count()
        self._n_watched = 0
        self._told: set[tuple] = set()

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
            axes = axes_of(measurement)
            axes |= {name: tuple(axis.kind for axis in owned.axes) for name, owned in watched.watches.items()}
            self._take(Arrived(_renamed(measurement, suffix), number, {n + suffix: a for n, a in axes.items()}))

        watched = watch(
            step,
            record,
            every=self._every,
            heavy_every=self._heavy_every,
            statistics=self._statistics,
            via=via,
            exact=exact,
        )
        return watched

    def record(self, measurement: Measurement, step: int | None = None) -> None:
        """Take what `treeviz.measure` gave inside a step. Returns at once; the numbers are read some steps later.

        Raises:
          StopTraining: A finding of a kind in `raise_on`.
        """
        step = next(self._steps) if step is None else step
        self._take(Arrived(measurement, step, axes_of(measurement)))

    def _take(self, arrived: Arrived) -> None:
        for words in arrived.measurement.words.values():
            if isinstance(words, jax.Array):
                words.copy_to_host_async()
        with self._lock:
            self._waiting.append(arrived)
            if len(self._waiting) >= _MOST_WAITING and not self._waiting[0].is_ready():
                self._waiting.popleft()
                self.n_dropped += 1
            if len(self._waiting) >= (2 if self._raise_on else _BATCH):
                ready = list(itertools.takewhile(Arrived.is_ready, self._waiting))
                self._read(ready)

    def flush(self) -> None:
        """Read everything that has been measured; waits for the steps that still run."""
        with self._lock:
            self._read(list(self._waiting))

    def _read(self, arrived: list[Arrived]) -> None:
        for _ in arrived:
            self._waiting.popleft()
        for step, sources, numbers in read(arrived, members=self._members):
            self._history_of(sources).append(step, numbers)
        if arrived and (self._raise_on or self._on_finding):
            self._tell()

    def _history_of(self, sources: list[Source]) -> History:
        if self._history is None:
            # half of the memory is for sources that are seen later: another step, another tap
            self._history = History(sources, self._max_bytes // 2)
            if self._journal is not None:
                self._history.keep(self._journal)
        for source in sources:
            if source.name not in self._history.sources:
                room = self._max_bytes - self._history.max_bytes
                self._history.add_source(source, room // 2)
        return self._history

    def _tell(self) -> None:
        """Tell of new findings, and stop the run for those that are to stop it."""
        kinds = None if self._on_finding else sorted(self._raise_on)
        for finding in findings(self._history, thresholds=self._thresholds, kinds=kinds):  # type: ignore[arg-type]
            what = (finding.kind, finding.source, finding.path, finding.first)
            if what in self._told:
                continue
            self._told.add(what)
            if self._on_finding is not None:
                self._on_finding(finding)
            if finding.kind in self._raise_on:
                raise StopTraining(str(finding))

    # What comes out

    @property
    def history(self) -> History:
        """What was measured so far.

        Raises:
          LookupError: Nothing was.
        """
        self.flush()
        if self._history is None:
            raise LookupError("inspector: nothing was measured yet. Call the step that watch() gave, or record().")
        return self._history

    @property
    def findings(self) -> list[Finding]:
        """What is wrong, the worst first; see `treeviz.analysis.findings`."""
        return findings(self.history, thresholds=self._thresholds)

    def render(self, source: str | None = None) -> TreeView:
        """The tree of gradients: the newest numbers in columns, and the norm of every leaf and subtree over the steps.

        Args:
          source: Which tree, of `history.sources`; by default the first gradient.
        """
        history = self.history
        source = source or next(
            (name for name in history.sources if name.startswith("grads")), next(iter(history.sources))
        )
        table = table_of_source(history, source, self.name)
        step, numbers = history.last(source)
        numbers = {name: values for name, values in numbers.items() if name != "rms"}
        table = table.with_columns(*size_columns(table), *gradient_columns(table, {source: numbers}))
        found = findings(history, thresholds=self._thresholds)
        words = f"{len(found)} finding{'s' * (len(found) != 1)}"
        dropped = [f"{self.n_dropped} dropped"] if self.n_dropped else []
        table = table.with_headline(*headline(table), f"{len(history):,} steps", f"step {step:,}", words, *dropped)
        series = gradient_series(history, table, source, found)
        columns = [name for name in table.columns if name not in ("leaves", "bytes")]
        return TreeView(table, table.chosen(columns), series=series)

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
        self._journal = Path(path)
        if self._history is not None:
            self._history.keep(self._journal)

    @classmethod
    def load(cls, path: str | Path, **options) -> GradientInspector:
        """What `save` or `keep` wrote, to be looked at or to go on with.

        Raises:
          ValueError: It is no such file.
        """
        inspector = cls(**options)
        inspector._history = History.load(path)
        return inspector

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        if self._history is None and not self._waiting:
            return {"text/plain": repr(self)}
        return self.render()._repr_mimebundle_(include, exclude)

    def __repr__(self) -> str:
        """The worst leaves and what was found, for a terminal."""
        if self._history is None and not self._waiting:
            return "GradientInspector: nothing was measured yet"
        return repr(self.render())


def _renamed(measurement: Measurement, suffix: str) -> Measurement:
    if not suffix:
        return measurement
    words = {name + suffix: words for name, words in measurement.words.items()}
    sources = [source._replace(name=source.name + suffix) for source in measurement.sources]
    return Measurement(words, sources, measurement.statistics)
