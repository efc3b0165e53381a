"""The measured numbers, step by step, in bounded memory."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from treeviz.steps.measure import MeasuredTree
from treeviz.steps.recording.decode import ReadSteps
from treeviz.steps.statistics import STATISTICS, TOTAL_SHARES, is_beside, kind_of, rms_of, section_of, sibling_name
from treeviz.tree.series import merged
from treeviz.tree.text import printable

# One statistic over time: the newest steps exactly, older ones in buckets, in bounded memory.

MOST_EXACT, MOST_BUCKETS = 1 << 16, 1 << 11
FEWEST_EXACT, FEWEST_BUCKETS = 8, 4


class Timeline(NamedTuple):
    """A statistic over time: k entries, each of one step or of a bucket of neighbours, in order.

    Attributes:
      first, until: int64[k]: the first and the last step of each entry; the same for one of a single step.
      n: int64[k]: how many steps were recorded in it.
      low, high, latest: [k, …]: the least, the greatest and the last value of each leaf in it. For a count the least
        is not kept, and low equals high.
      total: int64[k, …]: the sum, if the statistic is a count; else None.
    """

    first: np.ndarray
    until: np.ndarray
    n: np.ndarray
    low: np.ndarray
    high: np.ndarray
    latest: np.ndarray
    total: np.ndarray | None


class Track:
    """Values of one shape, appended step by step.

    When the exact rows are full, the oldest is folded into the newest bucket. When the buckets are full, every two
    neighbours become one, and each then holds twice as many steps. So an append takes constant time on average. An
    interrupt may end it anywhere: what has begun is completed by `settle`, which the next append calls.

    Args:
      shape: The shape of the values of one step: (leaves,), or (leaves, bins).
      dtype: int64 for counts, which are summed, or float64, whose least is kept.
      max_bytes: The memory of all arrays; there is always room for 8 steps and 4 buckets.
    """

    def __init__(self, shape: tuple[int, ...], dtype: type, max_bytes: int) -> None:
        self.shape, self.is_count = shape, dtype is np.int64
        n_bytes = 8 * int(np.prod(shape, dtype=np.int64))
        n_exact = min(max(max_bytes // 2 // (n_bytes + 8), FEWEST_EXACT), MOST_EXACT)
        n_buckets = min(max(max_bytes // 2 // (3 * n_bytes + 24), FEWEST_BUCKETS), MOST_BUCKETS) // 2 * 2
        # The system commits memory at the first write, so a short run takes little.
        self.exact_steps = np.empty(n_exact, np.int64)
        self.exact = np.empty((n_exact, *shape), dtype)
        self.oldest = self.n_exact = self.n_folded = 0
        self.buckets = np.empty((3, n_buckets, *shape), dtype)  # low (of a count: total), high, latest
        self.bucket_steps = np.empty((3, n_buckets), np.int64)  # first, until, n
        self.n_buckets = 0
        self.bucket_width = 1
        self._change: tuple[Callable[..., None], tuple] | None = None  # that has begun

    def __len__(self) -> int:
        """How many entries `timeline` has."""
        return self.n_buckets + self.n_exact

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in (self.exact_steps, self.exact, self.buckets, self.bucket_steps))

    def extend(self, steps: Sequence[int] | np.ndarray, values: np.ndarray) -> None:
        """Append the values of some steps: [steps, *shape]."""
        if self._change is not None:
            self.settle()
        size, n_done = len(self.exact_steps), 0
        while n_done < len(steps):
            if self.n_exact == size:
                self._fold()
            place = (self.oldest + self.n_exact) % size
            n = min(len(steps) - n_done, size - self.n_exact, size - place)
            self.exact[place : place + n] = values[n_done : n_done + n]
            self.exact_steps[place : place + n] = steps[n_done : n_done + n]
            self.n_exact += n  # only now the steps are there
            n_done += n

    def settle(self) -> None:
        """Complete a change that an interrupt has ended. Making a change twice is the same as once."""
        if self._change is not None:
            change, arguments = self._change
            change(self, *arguments)
            self._change = None

    def _make(self, change: Callable[..., None], *arguments: Any) -> None:
        self._change = change, arguments
        self.settle()

    def _fold(self) -> None:
        """Move the oldest exact row into a bucket."""
        at, n, total = self.n_buckets - 1, 1, None
        if at < 0 or self.bucket_steps[2, at] >= self.bucket_width:
            if self.n_buckets == self.bucket_steps.shape[1]:
                self._halve()
            at = self.n_buckets
        else:
            n = self.bucket_steps[2, at] + 1
            total = _add(self.buckets[0, at], self.exact[self.oldest]) if self.is_count else None
        self._make(Track._move, self.oldest, at, n, total, self.n_folded + 1)

    def _move(self, place: int, at: int, n: np.int64 | int, total: np.ndarray | None, n_folded: int) -> None:
        """Move an exact row into a bucket, as the n-th step in it; for a count, `total` is the sum then."""
        values, step, size = self.exact[place], self.exact_steps[place], len(self.exact_steps)
        if n == 1:
            self.buckets[:, at] = values
            self.bucket_steps[:, at] = step, step, 1
        else:
            low, high, latest = self.buckets[:, at]
            if total is None:
                np.fmin(low, values, out=low)
            else:
                low[...] = total
            np.fmax(high, values, out=high)
            latest[...] = values
            self.bucket_steps[1, at] = step
            self.bucket_steps[2, at] = n
        self.n_buckets = at + 1
        self.oldest, self.n_exact, self.n_folded = (place + 1) % size, size - 1, n_folded

    def _halve(self) -> None:
        groups = np.arange(0, self.n_buckets, 2)
        values, steps = _merged(self.buckets, self.bucket_steps, groups, self.is_count)
        self._make(Track._set_buckets, values, steps, 2 * self.bucket_width)

    def _set_buckets(self, values: np.ndarray, steps: np.ndarray, bucket_width: int) -> None:
        n = steps.shape[1]
        self.buckets[:, :n], self.bucket_steps[:, :n] = values, steps
        self.n_buckets, self.bucket_width = n, bucket_width

    def arrays(self) -> tuple[np.ndarray, ...]:
        """What `restore` takes."""
        order, k = self._order(), self.n_buckets
        return self.exact_steps[order], self.exact[order], self.bucket_steps[:, :k], self.buckets[:, :k]

    def restore(self, arrays: Sequence[np.ndarray], bucket_width: int) -> None:
        """Continue with saved arrays. If there is less room now, buckets are merged."""
        exact_steps, exact, bucket_steps, buckets = arrays
        n, k = len(exact_steps), bucket_steps.shape[1]
        if exact.shape != (n, *self.shape) or buckets.shape != (3, k, *self.shape):
            raise ValueError(f"arrays of {exact.shape} and {buckets.shape} do not belong to leaves of {self.shape}")
        while k > self.bucket_steps.shape[1]:  # its share of the memory was larger when the file was written
            buckets, bucket_steps = _merged(buckets, bucket_steps, np.arange(0, k, 2), self.is_count)
            k, bucket_width = bucket_steps.shape[1], bucket_width * 2
        self._set_buckets(buckets, bucket_steps, bucket_width)
        self.n_folded = int(bucket_steps[2].sum())
        self.extend(exact_steps, exact)

    def timeline(self, first: int | None = None, until: int | None = None, resolution: int | None = None) -> Timeline:
        """The steps from `first` to `until`, in at most `resolution` entries."""
        is_in, is_exact_in = np.ones(self.n_buckets, bool), np.ones(self.n_exact, bool)
        order = self._order()
        steps, exact_steps = self.bucket_steps[:, : self.n_buckets], self.exact_steps[order]
        if first is not None:
            is_in, is_exact_in = is_in & (steps[1] >= first), is_exact_in & (exact_steps >= first)
        if until is not None:
            is_in, is_exact_in = is_in & (steps[0] <= until), is_exact_in & (exact_steps <= until)
        return self._entries(np.flatnonzero(is_in), order[is_exact_in], resolution)

    @property
    def n_steps(self) -> int:
        """How many steps were appended."""
        return self.n_folded + self.n_exact

    def entry_steps(self) -> np.ndarray:
        """int64[3, k]: the first step, the last, and how many, of each entry of `timeline`."""
        exact_steps = self.exact_steps[self._order()]
        of_exact = np.stack([exact_steps, exact_steps, np.ones_like(exact_steps)])
        return np.concatenate([self.bucket_steps[:, : self.n_buckets], of_exact], axis=1)

    def newest(self, n: int) -> Timeline:
        """The last `n` steps; the first entry may hold earlier ones too. The cost depends on `n` only."""
        n_exact = min(n, self.n_exact)
        n_in_newest = np.cumsum(self.bucket_steps[2, : self.n_buckets][::-1])
        n_buckets = min(int(np.searchsorted(n_in_newest, n - n_exact)) + 1, self.n_buckets) if n > n_exact else 0
        return self._entries(np.arange(self.n_buckets - n_buckets, self.n_buckets), self._order(n_exact))

    def _order(self, n: int | None = None) -> np.ndarray:
        """The places of the newest exact rows."""
        n = self.n_exact if n is None else n
        return (self.oldest + np.arange(self.n_exact - n, self.n_exact)) % len(self.exact_steps)

    def _entries(self, buckets: np.ndarray, places: np.ndarray, resolution: int | None = None) -> Timeline:
        exact_steps = self.exact_steps[places]
        exact = np.broadcast_to(self.exact[places], (3, exact_steps.size, *self.shape))
        values = np.concatenate([self.buckets[:, buckets], exact], axis=1)
        steps = np.stack([exact_steps, exact_steps, np.ones_like(exact_steps)])
        steps = np.concatenate([self.bucket_steps[:, buckets], steps], axis=1)
        if resolution is not None and steps.shape[1] > max(resolution, 1):
            groups = np.linspace(0, steps.shape[1], max(resolution, 1), endpoint=False).astype(np.intp)
            values, steps = _merged(values, steps, groups, self.is_count)
        low, high, latest = values
        return Timeline(
            steps[0], steps[1], steps[2], high if self.is_count else low, high, latest, low if self.is_count else None
        )

    def latest(self) -> tuple[int, np.ndarray] | None:
        """The newest step and its values."""
        if not self.n_exact:
            return None
        place = (self.oldest + self.n_exact - 1) % len(self.exact_steps)
        return int(self.exact_steps[place]), self.exact[place].copy()


def _add(total: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The sum of counts; -1 is a leaf without numbers."""
    added = np.add(total, values)
    return np.maximum(added, -1, out=added)


def _merged(values: np.ndarray, steps: np.ndarray, groups: np.ndarray, is_count: bool):
    """Merge entries into groups, which begin at `groups` and are not empty."""
    ends = np.append(groups[1:], steps.shape[1]) - 1
    low, high, latest = merged(values[0], values[1], values[2], groups)
    if is_count:  # totals are in the place of low
        low = np.maximum(np.add.reduceat(values[0], groups, axis=0), -1)
    return np.stack([low, high, latest]), np.stack(
        [steps[0][groups], steps[1][ends], np.add.reduceat(steps[2], groups)]
    )


def occurs_in(counts: Timeline, entries: Timeline) -> np.ndarray:
    """bool[k, leaves]: whether a count was above zero during each of `entries`, whose buckets may differ."""
    if np.array_equal(counts.first, entries.first) and np.array_equal(counts.until, entries.until):
        return counts.high > 0
    n_before = np.concatenate([np.zeros((1, counts.high.shape[1]), np.int64), np.cumsum(counts.high > 0, axis=0)])
    start = np.searchsorted(counts.until, entries.first)
    stop = np.maximum(np.searchsorted(counts.first, entries.until, side="right"), start)
    return n_before[stop] > n_before[start]


# The user's scalars of a run, such as the loss, and the batches of its steps, in bounded memory.

MOST_NAMES = 64
MOST_IDS = 4096  # of a batch that are kept; and characters of one that is text
TRACK_BYTES = 1 << 20  # of each scalar
_BATCHES_BYTES = 4_000_000
_CODES = np.array([np.nan, np.nan, np.inf, -np.inf])  # 1 is NaN; 0 is a finite number


class Batch(NamedTuple):
    """Which examples a step was given.

    Attributes:
      ids: int64[n], the first 4,096 of them; or a text.
      n: How many ids there were; 0 for a text.
      weight: The first scalar of its step: where there is no room for all, the larger of two neighbours stays.
    """

    ids: np.ndarray | str
    n: int
    weight: float

    @property
    def n_bytes(self) -> int:
        return 100 + (len(self.ids) if isinstance(self.ids, str) else self.ids.nbytes)


class ScalarRow(NamedTuple):
    """Scalars of the steps up to `step`: an array of n holds the values of the last n."""

    step: int
    values: Mapping[str, np.ndarray]
    batch: Batch | None


class Scalars:
    """Scalars by name over time, as a history keeps its statistics: recent steps exactly, older ones in buckets.

        loss = inspector.history.scalars.values("loss")
        loss.until, loss.latest                       # int64[k], float64[k]

    Attributes:
      tracks: For each name, [value, code]: of a number that is not finite, NaN and 1 (NaN), 2 (inf) or 3 (-inf).
      batches: By step. Where they take more than 4 MB, those of every second step go, but for those of large losses.
      n_appended: How many rows were appended.
    """

    def __init__(self) -> None:
        self.tracks: dict[str, Track] = {}
        self.batches: dict[int, Batch] = {}
        self.n_appended = 0
        self._room = _BATCHES_BYTES

    def __bool__(self) -> bool:
        return bool(self.tracks)

    def extend(self, rows: Sequence[ScalarRow]) -> set[str]:
        """Add the scalars of some steps, those of a name at once. Returns the names of those that are not finite."""
        bad = set()
        by_name: dict[str, tuple[list[int], list[np.ndarray]]] = {}
        for row in rows:
            for name, values in row.values.items():
                steps, parts = by_name.setdefault(name, ([], []))
                steps += range(row.step - len(values) + 1, row.step + 1)
                parts.append(values)
            if row.batch is not None:
                self.add_batch(row.step, row.batch)
        for name, (steps, parts) in by_name.items():
            coded = codes_of(np.concatenate(parts))
            self.new_track(name).extend(steps, coded)
            if coded[:, 1].any():
                bad.add(name)
        self.n_appended += len(rows)
        return bad

    def new_track(self, name: str) -> Track:
        """The track of a name; empty, if it is new."""
        if name not in self.tracks:
            self.tracks[name] = Track((2,), np.float64, TRACK_BYTES)
        return self.tracks[name]

    def add_batch(self, step: int, batch: Batch) -> None:
        self.batches[step] = batch
        self._room -= batch.n_bytes
        if self._room < 0:
            steps = list(self.batches)
            for pair in zip(steps[: len(steps) // 2 : 2], steps[1 : len(steps) // 2 : 2], strict=False):
                del self.batches[min(pair, key=lambda step: self.batches[step].weight)]
            self._room = _BATCHES_BYTES - sum(each.n_bytes for each in self.batches.values())

    def values(self, name: str, *, resolution: int | None = None) -> Timeline:
        """A scalar over time: float64[k] least, greatest and last values; of those that are not finite, the last only.

        Args:
          resolution: The most entries; neighbours are merged.

        Raises:
          KeyError: No scalar has this name.
        """
        return self.values_and_bad(name, resolution=resolution)[0]

    def values_and_bad(self, name: str, *, resolution: int | None = None) -> tuple[Timeline, np.ndarray]:
        """The same, and bool[k]: whether an entry has a number that is not finite."""
        line = self.tracks[name].timeline(resolution=resolution)
        values = line._replace(low=line.low[:, 0], high=line.high[:, 0], latest=number_of(line.latest))
        return values, line.high[:, 1] > 0

    def last(self) -> dict[str, tuple[int, float]]:
        """The newest step of each scalar, and its value there."""
        newest = {name: track.latest() for name, track in self.tracks.items()}
        return {name: (at[0], float(number_of(at[1]))) for name, at in newest.items() if at is not None}

    def fields(self) -> dict[str, Any]:
        """All but the arrays of the tracks, for a file."""
        return {
            "n_appended": self.n_appended,
            "tracks": [{"name": name, "bucket_width": track.bucket_width} for name, track in self.tracks.items()],
            "batches": [[step, *batch_fields(batch)] for step, batch in self.batches.items()],
        }

    def restore(self, fields: Mapping[str, Any]) -> list[tuple[Track, int]]:
        """Take over what `fields` gave. Returns the tracks, which are still empty, and the widths of their buckets."""
        self.n_appended = int(fields["n_appended"])
        for step, *batch in fields["batches"]:
            self.add_batch(int(step), batch_of(batch))
        tracks = itertools.islice(fields["tracks"], MOST_NAMES)
        return [(self.new_track(printable(str(of["name"]))), int(of["bucket_width"])) for of in tracks]


def codes_of(values: np.ndarray) -> np.ndarray:
    """float64[n, 2]: the value and the code of each number."""
    codes = np.isnan(values) + 2.0 * np.isposinf(values) + 3.0 * np.isneginf(values)
    return np.stack([np.where(codes > 0, np.nan, values), codes], axis=1)


def number_of(coded: np.ndarray) -> np.ndarray:
    """The numbers of [..., 2], of values and codes."""
    return np.where(coded[..., 1] > 0, _CODES[coded[..., 1].astype(int)], coded[..., 0])


def batch_fields(batch: Batch) -> list[Any]:
    return [batch.ids if isinstance(batch.ids, str) else batch.ids.tolist(), batch.n, batch.weight]


def batch_of(fields: Sequence[Any]) -> Batch:
    """The batch with these fields, of a file."""
    ids, n, weight = fields
    ids = printable(ids[:MOST_IDS]) if isinstance(ids, str) else np.array(ids[:MOST_IDS], np.int64).reshape(-1)
    return Batch(ids, int(n), float(weight))


Record = list[tuple[str, str, np.ndarray]]  # source, statistic, its value of each leaf, or of each step and leaf


class Journal(Protocol):
    """Writes each step to a file when it is appended; see `treeviz.steps.recording.history_file`."""

    path: Path

    def write(self, history: History, step: int, record: Record | ScalarRow) -> None: ...

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
            self.journal.write(self, row.step, row)
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


# A tree that changes during a run gets another name, so that no step is lost: "grads since step 12".

MOST_SECTIONS = 16  # of a tree


class Sections:
    """Tells which section of a history each measured tree belongs to, by its leaves.

    A tree whose structure comes back, as of two models that take turns, goes on in its earlier section.
    """

    def __init__(self) -> None:
        self._newest: dict[str, tuple[str, MeasuredTree]] = {}  # by the name of a tree: its last section, as it came
        self._unchanged: Sequence[MeasuredTree] | None = None

    def place(self, steps: ReadSteps, history: History) -> ReadSteps:
        """The steps, with the names of the trees in the history.

        Raises:
          ValueError: A tree has changed too often.
        """
        if steps.sources is self._unchanged or all(map(self._is_unchanged, steps.sources)):
            self._unchanged = steps.sources  # steps that were read together have the same list
            return steps
        sections: dict[str, str] = {}
        for source in sorted(steps.sources, key=_goes_with_gradients):
            wanted = self.of(source.name, history)
            if _goes_with_gradients(source):  # into their section, also where it comes later
                wanted = sections.get(sibling_name(source.name, "grads"), wanted)
            sections[source.name] = _section(source, wanted, steps.steps[0], history)
        self._newest.update({source.name: (sections[source.name], source) for source in steps.sources})
        if not any(sections.values()):
            return steps
        return steps._replace(
            sources=[source._replace(name=source.name + sections[source.name]) for source in steps.sources],
            numbers={name + sections[name]: numbers for name, numbers in steps.numbers.items()},
        )

    def of(self, name: str, history: History) -> str:
        """The section of the newest step of a tree; empty if it has not changed."""
        return self._newest[name][0] if name in self._newest else _known(name, history.sources)[-1]

    def _is_unchanged(self, source: MeasuredTree) -> bool:
        """Whether it is in no section, and the same objects came last."""
        section, last = self._newest.get(source.name, ("unknown", source))
        return not section and source.paths is last.paths and source.shapes is last.shapes


def _goes_with_gradients(source: MeasuredTree) -> bool:
    return is_beside(source.name)


def _known(name: str, sources: Collection[str]) -> list[str]:
    """The sections of a tree, the newest last."""
    return [section for each in sources for tree, section in [section_of(each)] if tree == name] or [""]


def _section(source: MeasuredTree, wanted: str, step: int, history: History) -> str:
    """The section with the structure of a tree: the wanted one, another one, or a new one."""
    if _fits(source, history.sources.get(source.name + wanted)):
        return wanted
    known = _known(source.name, history.sources)
    for section in reversed(known):
        if _fits(source, history.sources.get(source.name + section)):
            return section
    if len(known) >= MOST_SECTIONS:
        raise ValueError(f"{source.name} has had {len(known)} other structures before")
    section = f" since step {step}"
    while source.name + section in history.sources:  # the steps were counted from 0 again
        section += " again"
    return section


def _fits(new: MeasuredTree, old: MeasuredTree | None) -> bool:
    """Whether the leaves are the same. The sizes of an activation may differ from batch to batch."""
    if old is None or (old.paths is new.paths and old.shapes is new.shapes):
        return True
    if old.paths != new.paths or not kind_of(new.name):
        return old.paths == new.paths
    has_shapes = bool(old.shapes and new.shapes)  # files of older versions have none
    return old.sizes == new.sizes and old.dtypes == new.dtypes and not (has_shapes and old.shapes != new.shapes)
