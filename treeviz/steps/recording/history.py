"""The measured numbers, step by step, in bounded memory."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from treeviz.steps.measure import MeasuredTree
from treeviz.steps.names import section_of, sibling_name
from treeviz.steps.recording.scalars import ScalarRow, Scalars
from treeviz.steps.recording.track import Timeline, Track
from treeviz.steps.statistics import STATISTICS, TOTAL_SHARES, rms_of

Record = list[tuple[str, str, np.ndarray]]  # source, statistic, its value of each leaf, or of each step and leaf


class Journal(Protocol):
    """Writes each step to a file when it is appended; see `treeviz.steps.recording.journal`."""

    path: Path

    def write(self, history: History, step: int, record: Record) -> None: ...

    def write_scalars(self, history: History, row: ScalarRow) -> None: ...

    def saved(self, history: History, path: Path) -> None: ...

    def catch_up(self, history: History, *, now: bool = False) -> None: ...

    def lacks(self, history: History) -> tuple[int, str]: ...

    def close(self) -> None: ...


class History:
    """The statistics of every leaf over time: recent steps exactly, older ones as least, greatest and last per bucket.

        history = inspector.history
        norms = history.values("grads", "norm")         # of all leaves, on the last axis
        norms.until, norms.latest                       # int64[k], float64[k, leaves]
        history.values("grads", "max_abs", leaf=3).high # float64[k], of one leaf
        history.sources["grads"].paths[3]               # the key path of that leaf

    Statistics ignore NaN and infinities; those are counted separately, as "nonfinite". An append takes constant time,
    whatever the length of the run. The memory for `max_bytes` is reserved at once and taken as it fills up; the newest
    8 steps and 4 buckets are kept even if the tree is so large that they need more. Not thread-safe. An append that
    an interrupt ends is completed by the next one, or by `finish`.

    Attributes:
      sources: The measured trees, by name.
      forward: For the name of a source, the paths of its leaves in the order in which the step uses them, if known.
      tracks: One statistic over time, by the names of source and statistic.
      scalars: Those of `record_scalars`, and the batches of steps.
      run: A random identifier of the run.
      name: What the user calls the run; or empty.
      journal: Writes each step to a file once it is appended, so that a crash loses none; or None.
      damage: What could not be read of the file that it was loaded from; or empty.

    Args:
      sources: What is measured: see `treeviz.steps.measure.source_of`.
      max_bytes: The memory, which the sources share equally.
    """

    def __init__(self, sources: Sequence[MeasuredTree], max_bytes: int = 64_000_000) -> None:
        self.sources = {source.name: source for source in sources}
        self.forward: dict[str, tuple[str, ...]] = {}
        self.max_bytes = max_bytes
        self._budgets = {source.name: max_bytes // len(sources) for source in sources}
        self._unfinished: tuple[int, Sequence[int], list[tuple[Track, int, np.ndarray]]] | None = None
        self.tracks: dict[tuple[str, str], Track] = {}
        self.scalars = Scalars()
        self.n_appended = 0
        self.run = uuid.uuid4().hex  # so that a journal of another run is never read
        self.name = ""
        self.journal: Journal | None = None
        self.damage = ""

    def add_source(self, source: MeasuredTree, max_bytes: int) -> None:
        """Add a measured tree, with memory of its own."""
        self._budgets[source.name] = max_bytes
        self.max_bytes = sum(self._budgets.values())
        self.sources[source.name] = source  # last, since an interrupt may come between

    def add_sources(self, sources: Sequence[MeasuredTree], max_bytes: int) -> None:
        """Add the measured trees that are not there, with equal parts of half the memory that is left of `max_bytes`.

        Ratios reach as far back as norms then, and there is memory for trees that are seen later.
        """
        new = [source for source in sources if source.name not in self.sources]
        room = max_bytes - self.max_bytes
        for source in new:
            self.add_source(source, room // 2 // len(new))

    def append(self, step: int, numbers: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Add the numbers of a step: `{source: {statistic: value of each leaf}}`, as `numbers_of` returns them.

        A step may lack sources and statistics. "rms" is not stored, since it follows from the norm.

        Raises:
          ValueError: An unknown source or statistic, or values of another shape.
        """
        of_one = {name: {s: np.asarray(values)[None] for s, values in of.items()} for name, of in numbers.items()}
        self.extend([step], of_one)

    def extend(self, steps: Sequence[int], numbers: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Add the numbers of some steps at once, which all values have along their first axis; see `append`."""
        self.finish()
        record: Record = []
        for name, statistics in numbers.items():
            if name not in self.sources:
                raise ValueError(f"history: no source {name!r}; there are {', '.join(map(repr, self.sources))}.")
            for statistic, values in statistics.items():
                if statistic == "rms":
                    continue
                shape, dtype = self.kind_of(name, statistic)
                values = np.asarray(values, dtype)
                if values.shape != (len(steps), *shape):
                    of = f"{name} {statistic} of step {steps[0]}"
                    raise ValueError(f"history: {of} is {values.shape[1:]}, not {shape}.")
                record.append((name, statistic, values))
        if self.journal is None:
            self.add(steps, record)
            return
        for i, step in enumerate(steps):
            self.add([step], [(name, statistic, values[i : i + 1]) for name, statistic, values in record])
            self.journal.write(self, step, [(name, statistic, values[i]) for name, statistic, values in record])

    def append_scalars(self, rows: Sequence[ScalarRow]) -> set[str]:
        """Add scalars, of steps with or without other numbers. Returns the names of those that are not finite."""
        if self.journal is None:
            return self.scalars.extend(rows)
        bad = set()
        for row in rows:
            bad |= self.scalars.extend([row])
            self.journal.write_scalars(self, row)
        return bad

    @property
    def n_records(self) -> int:
        """How many steps and rows of scalars were appended."""
        return self.n_appended + self.scalars.n_appended

    def add(self, steps: Sequence[int], record: Record) -> None:
        """Add values that `extend` has checked: those of all steps."""
        parts = []
        for name, statistic, values in record:
            track = self.tracks.get((name, statistic))
            if track is None:
                track = self.new_track(name, statistic)
            parts.append((track, track.n_folded + track.n_exact, values))
        self._unfinished = self.n_appended + len(steps), steps, parts
        self.finish()

    def finish(self) -> None:
        """Complete an append that an interrupt has ended."""
        if self._unfinished is None:
            return
        n_appended, steps, parts = self._unfinished
        for track, n_before, values in parts:
            track.settle()
            n_done = track.n_folded + track.n_exact - n_before
            track.extend(steps[n_done:], values[n_done:])
        self.n_appended = n_appended
        self._unfinished = None

    def kind_of(self, name: str, statistic: str) -> tuple[tuple[int, ...], type]:
        """The shape and dtype of a statistic of one step."""
        record = STATISTICS.get(statistic)
        if record is None:
            raise ValueError(f"history: no statistic {statistic!r}; there are {', '.join(map(repr, STATISTICS))}.")
        return record.shape(len(self.sources[name].paths)), record.dtype

    def new_track(self, name: str, statistic: str) -> Track:
        """Make an empty track."""
        budget = self._budgets[name] * STATISTICS[statistic].share // TOTAL_SHARES
        track = self.tracks[name, statistic] = Track(*self.kind_of(name, statistic), budget)
        return track

    @property
    def nbytes(self) -> int:
        """Bytes that the arrays reserve."""
        return sum(track.nbytes for track in self.tracks.values())

    def __len__(self) -> int:
        """How many steps were appended."""
        return self.n_appended

    def __repr__(self) -> str:
        sources = ", ".join(f"{name}: {len(source.paths)} leaves" for name, source in self.sources.items())
        return f"History({self.n_appended} steps of {sources})"

    def statistics(self, source: str = "grads") -> tuple[str, ...]:
        """Which statistics of a source were recorded at least once."""
        return tuple(statistic for statistic in STATISTICS if (source, statistic) in self.tracks)

    def steps(self, source: str = "grads", statistic: str = "norm") -> np.ndarray:
        """int64[k]: the last step of each entry of `values`."""
        return self.values(source, statistic).until

    def values(
        self,
        source: str = "grads",
        statistic: str = "norm",
        leaf: int | None = None,
        *,
        first: int | None = None,
        until: int | None = None,
        resolution: int | None = None,
    ) -> Timeline:
        """A statistic over time, of one leaf or of all.

        Args:
          leaf: The number of a leaf, in the order of `sources[source].paths`; None for all of them, as a last axis.
          first, until: The first and the last step that is wanted.
          resolution: The most entries; neighbours are merged.
        """
        if statistic == "rms":
            sizes = self.sources[source].sizes
            norm = self.values(source, "norm", first=first, until=until, resolution=resolution)
            low, high, latest = (rms_of(x, sizes) for x in (norm.low, norm.high, norm.latest))
            timeline = norm._replace(low=low, high=high, latest=latest)
        elif (source, statistic) in self.tracks:
            timeline = self.tracks[source, statistic].timeline(first, until, resolution)
        else:
            timeline = Track(*self.kind_of(source, statistic), 0).timeline()
        if leaf is None:
            return timeline
        low, high, latest = (x[:, leaf] for x in (timeline.low, timeline.high, timeline.latest))
        total = None if timeline.total is None else timeline.total[:, leaf]
        return timeline._replace(low=low, high=high, latest=latest, total=total)

    def last(self, source: str = "grads") -> tuple[int, dict[str, np.ndarray]]:
        """The newest step of a source, and its statistics of each leaf by name; (-1, {}) before the first step."""
        newest = {statistic: self.tracks[source, statistic].latest() for statistic in self.statistics(source)}
        known = {statistic: pair for statistic, pair in newest.items() if pair is not None}
        step = max((step for step, _ in known.values()), default=-1)
        numbers = {statistic: values for statistic, (at, values) in known.items() if at == step}
        if "norm" in numbers:
            numbers["rms"] = rms_of(numbers["norm"], self.sources[source].sizes)
        return step, numbers

    def worst(self, source: str = "grads", n: int = 10, statistic: str = "norm") -> list[int]:
        """The `n` worst leaves at the newest step: those with most NaN and Inf, then the largest norms."""
        _, numbers = self.last(source)
        if statistic not in numbers:
            return []
        size = np.where(np.isnan(numbers[statistic]), -np.inf, numbers[statistic])
        bad = np.maximum(numbers.get("nonfinite", np.zeros(len(size), np.int64)), 0)
        order = np.lexsort((np.arange(len(size)), -size, -bad))
        has_number = self.sources[source].has_number
        return [int(leaf) for leaf in order if has_number[leaf]][:n]

    def ratio(self, of: str, to: str, **how) -> Timeline | None:
        """The norms of one source divided by those of another, leaf by leaf, e.g. of "updates" by "params".

        None unless both have the same leaves at the same steps. In buckets, `latest` is exact, and `low` and `high` are
        bounds.
        """
        if not self.has_ratio(of, to):
            return None
        top, bottom = self.values(of, "norm", **how), self.values(to, "norm", **how)
        with np.errstate(divide="ignore", invalid="ignore"):
            low, high, latest = top.low / bottom.high, top.high / bottom.low, top.latest / bottom.latest
        return top._replace(low=low, high=high, latest=latest)

    def has_ratio(self, of: str, to: str) -> bool:
        """Whether the norms of two sources are of the same leaves at the same steps. Copies no values."""
        a, b = self.sources.get(of), self.sources.get(to)
        if a is None or b is None or a.sizes != b.sizes:
            return False
        top, bottom = self.tracks.get((of, "norm")), self.tracks.get((to, "norm"))
        if top is None or bottom is None:
            return top is bottom
        return np.array_equal(top.entry_steps()[1:], bottom.entry_steps()[1:])


def main_source(history: History) -> str:
    """The tree to show first: the first gradients, with updates if any have, else the first source.

    If it has changed, its newest section.
    """
    grads = [name for name in history.sources if name.startswith("grads")]
    with_updates = [name for name in grads if sibling_name(name, "updates") in history.sources]
    first = next(iter([*with_updates, *grads, *history.sources]))
    tree, _ = section_of(first)
    return [name for name in history.sources if section_of(name)[0] == tree][-1]
