"""What was measured, step by step, in bounded memory: whatever the length of the run."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence

import numpy as np

from treeviz.analysis.gradients import Source
from treeviz.analysis.history_track import Series, Track
from treeviz.analysis.stats_summary import N_BINS

# Each statistic's share of the memory of its source. "rms" follows from the norm.
SHARES = {
    "norm": 24,
    "max_abs": 14,
    "nonfinite": 14,
    "histogram": 18,
    "mean": 6,
    "zeros": 6,
    "cosine": 6,
    "nan": 4,
    "posinf": 4,
    "neginf": 4,
}
COUNTS = {"nonfinite", "zeros", "nan", "posinf", "neginf", "histogram"}


class History:
    """The statistics of every leaf over time: recent steps exactly, older ones as least, greatest and last per bucket.

    An append costs the same however long the run, and no memory beyond `max_bytes`, all of which is reserved at once
    and taken as it is filled. Trees of very many leaves keep some steps whatever `max_bytes`. One thread at a time.

    Args:
      sources: What is measured: see `source_of`.
      max_bytes: For everything; shared equally among the sources.
    """

    def __init__(self, sources: Sequence[Source], max_bytes: int = 64_000_000) -> None:
        self.sources = {source.name: source for source in sources}
        self.max_bytes = max_bytes
        self._budgets = {source.name: max_bytes // len(sources) for source in sources}
        self.tracks: dict[tuple[str, str], Track] = {}
        self.n_appended = 0
        self.run = uuid.uuid4().hex  # so that a journal of another run is never taken for this one's
        self._journal = None

    def add_source(self, source: Source, max_bytes: int) -> None:
        """One more tree that is measured, with memory of its own."""
        self.sources[source.name] = source
        self._budgets[source.name] = max_bytes
        self.max_bytes += max_bytes

    def append(self, step: int, numbers: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Add what was measured in a step: `{source: {statistic: value of each leaf}}`, as `numbers_of` gives it.

        Steps may lack sources and statistics; heavy ones are measured now and then. "rms" is not stored.

        Raises:
          ValueError: A source or statistic that is not known, or values of another shape.
        """
        record = []
        for name, statistics in numbers.items():
            if name not in self.sources:
                raise ValueError(f"history: no source {name!r}; there are {', '.join(map(repr, self.sources))}.")
            for statistic, values in statistics.items():
                if statistic == "rms":
                    continue
                shape, dtype = self.kind_of(name, statistic)
                values = np.asarray(values, dtype)
                if values.shape != shape:
                    raise ValueError(f"history: {name} {statistic} of step {step} is {values.shape}, not {shape}.")
                record.append((name, statistic, values))
        if self._journal is not None:
            self._journal.write(self, step, record)
        self.add(step, record)

    def add(self, step: int, record: list[tuple[str, str, np.ndarray]]) -> None:
        """Add to the tracks what `append` has checked."""
        for name, statistic, values in record:
            track = self.tracks.get((name, statistic))
            if track is None:
                track = self.new_track(name, statistic)
            track.append(step, values)
        self.n_appended += 1

    def kind_of(self, name: str, statistic: str) -> tuple[tuple[int, ...], type]:
        """The shape and dtype of what one step adds."""
        if statistic not in SHARES:
            raise ValueError(f"history: no statistic {statistic!r}; there are {', '.join(map(repr, SHARES))}.")
        n_leaves = len(self.sources[name].paths)
        shape = (n_leaves, N_BINS) if statistic == "histogram" else (n_leaves,)
        return shape, np.int64 if statistic in COUNTS else np.float64

    def new_track(self, name: str, statistic: str) -> Track:
        """An empty track, which takes its place among the others."""
        budget = self._budgets[name] * SHARES[statistic] // sum(SHARES.values())
        track = self.tracks[name, statistic] = Track(*self.kind_of(name, statistic), budget)
        return track

    @property
    def nbytes(self) -> int:
        """What the arrays reserve."""
        return sum(track.nbytes for track in self.tracks.values())

    def __len__(self) -> int:
        """How many steps were appended."""
        return self.n_appended

    def __repr__(self) -> str:
        sources = ", ".join(f"{name}: {len(source.paths)} leaves" for name, source in self.sources.items())
        return f"History({self.n_appended} steps of {sources})"

    def statistics(self, source: str = "grads") -> tuple[str, ...]:
        """Which statistics of a source were recorded at least once."""
        return tuple(statistic for statistic in SHARES if (source, statistic) in self.tracks)

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
    ) -> Series:
        """A statistic over time, of one leaf or of all.

        Args:
          leaf: The number of a leaf, in the order of `sources[source].paths`; None for all of them, as a last axis.
          first, until: The first and the last step that is wanted.
          resolution: The most entries that are wanted; neighbours are joined.
        """
        if statistic == "rms":
            sizes = np.maximum(np.array(self.sources[source].sizes, np.float64), 1)
            norm = self.values(source, "norm", first=first, until=until, resolution=resolution)
            low, high, latest = (x / np.sqrt(sizes) for x in (norm.low, norm.high, norm.latest))
            series = norm._replace(low=low, high=high, latest=latest)
        elif (source, statistic) in self.tracks:
            series = self.tracks[source, statistic].series(first, until, resolution)
        else:
            series = Track(*self.kind_of(source, statistic), 0).series()
        if leaf is None:
            return series
        low, high, latest = (x[:, leaf] for x in (series.low, series.high, series.latest))
        total = None if series.total is None else series.total[:, leaf]
        return series._replace(low=low, high=high, latest=latest, total=total)

    def last(self, source: str = "grads") -> tuple[int, dict[str, np.ndarray]]:
        """The newest step of a source, and what is known of each leaf then; -1 and nothing before the first."""
        newest = {statistic: self.tracks[source, statistic].latest() for statistic in self.statistics(source)}
        known = {statistic: pair for statistic, pair in newest.items() if pair is not None}
        step = max((step for step, _ in known.values()), default=-1)
        numbers = {statistic: values for statistic, (at, values) in known.items() if at == step}
        if "norm" in numbers:
            numbers["rms"] = numbers["norm"] / np.sqrt(np.maximum(np.array(self.sources[source].sizes, np.float64), 1))
        return step, numbers

    def worst(self, source: str = "grads", n: int = 10, statistic: str = "norm") -> list[int]:
        """The leaves to look at first: those with numbers that are not finite now, then the largest norms."""
        _, numbers = self.last(source)
        if statistic not in numbers:
            return []
        size = np.where(np.isnan(numbers[statistic]), -np.inf, numbers[statistic])
        bad = np.maximum(numbers.get("nonfinite", np.zeros(len(size), np.int64)), 0)
        order = np.lexsort((np.arange(len(size)), -size, -bad))
        has_number = self.sources[source].has_number
        return [int(leaf) for leaf in order if has_number[leaf]][:n]

    def ratio(self, of: str, to: str, **how) -> Series | None:
        """The norms of one source by those of another, leaf by leaf: "updates" to "params", "grads" to "params".

        None if they are not of the same leaves at the same steps. Within buckets the ratio of the last values is exact,
        and `low` and `high` are bounds.
        """
        if not self._match(of, to):
            return None
        top, bottom = self.values(of, "norm", **how), self.values(to, "norm", **how)
        if not np.array_equal(top.until, bottom.until) or not np.array_equal(top.n, bottom.n):
            return None
        with np.errstate(divide="ignore", invalid="ignore"):
            low, high, latest = top.low / bottom.high, top.high / bottom.low, top.latest / bottom.latest
        return top._replace(low=low, high=high, latest=latest)

    def _match(self, of: str, to: str) -> bool:
        a, b = self.sources.get(of), self.sources.get(to)
        return a is not None and b is not None and a.sizes == b.sizes

    def keep(self, path: str | os.PathLike) -> None:
        """From now on, write every step to a file as it is appended, so that a crash loses none.

        The file is `path`, together with `path.journal`, which is taken into it now and then and on `save(path)`.
        `load(path)` reads both.
        """
        from treeviz.analysis.history_file import Journal

        self.close()
        self._journal = Journal(self, path)

    def close(self) -> None:
        """Stop what `keep` began; the files stay."""
        if self._journal is not None:
            self._journal.close()
        self._journal = None

    def save(self, path: str | os.PathLike) -> None:
        """Write everything to one file: a zip of a JSON header and NumPy arrays; see `treeviz.analysis.history_file`.

        There is always either the old file or the new one, whole.
        """
        from treeviz.analysis.history_file import save

        save(self, path)
        if self._journal is not None:
            self._journal.saved(path)

    @classmethod
    def load(cls, path: str | os.PathLike) -> History:
        """What `save` or `keep` wrote.

        Raises:
          ValueError: It is no such file, or a newer one.
        """
        from treeviz.analysis.history_file import load

        return load(path)
