"""The history of a run in bounded memory: statistics of leaves, scalars and batches, and trees that change."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from treeviz.steps.statistics import (
    FINITE,
    FINITE_PARTS,
    STATISTICS,
    TOTAL_SHARES,
    MeasuredTree,
    is_beside,
    kind_of,
    rms_of,
    section_of,
    sibling_name,
)
from treeviz.tree.series import NO_INNER, InnerSteps, merged
from treeviz.tree.text import printable

if TYPE_CHECKING:
    from treeviz.steps.recording.decode import ReadSteps

# One statistic over time: recent steps are exact, older ones are merged into buckets.

MOST_EXACT, MOST_BUCKETS = 1 << 16, 1 << 11
FEWEST_EXACT, FEWEST_BUCKETS = 8, 4


class Timeline(NamedTuple):
    """A statistic over time: k entries in order, each of one step or of a bucket of consecutive steps.

    A step is a call. Of a call with a loop inside, as over micro-batches, each iteration is an inner step with an entry
    of its own.

    Attributes:
      first, until: int64[k]: the first and the last step of each entry; equal for a single step.
      n: int64[k]: the number of steps recorded in each entry, inner steps counted each.
      low, high, latest: [k, …]: the least, the greatest and the last value of each leaf. Counts do not keep the least:
        low equals high.
      total: int64[k, …]: the sum, if the statistic is a count; else None.
      inner: int64[2, k]: the inner steps of `first` and `until`, counted from 0; -1 for what a call has once.
      numbering: How steps and inner steps are numbered and named.
    """

    first: np.ndarray
    until: np.ndarray
    n: np.ndarray
    low: np.ndarray
    high: np.ndarray
    latest: np.ndarray
    total: np.ndarray | None
    inner: np.ndarray
    numbering: InnerSteps = NO_INNER

    @property
    def begins(self) -> np.ndarray:
        """int64[k]: the positions of `first`; see `InnerSteps`."""
        return self.numbering.position(self.first, self.inner[0])

    @property
    def ends(self) -> np.ndarray:
        """int64[k]: the positions of `until`."""
        return self.numbering.position(self.until, self.inner[1])

    @property
    def spans(self) -> list[tuple[int, int, int, int]]:
        """Of each entry the first and the last step, and their inner steps."""
        return list(zip(self.first.tolist(), self.until.tolist(), *self.inner.tolist(), strict=True))

    def steps_text(self, entry: int) -> str:
        """ "step 12", "steps 10 to 19"; in a run with loops "call 9, micro-batch 6"."""
        return self.numbering.span_text(int(self.begins[entry]), int(self.ends[entry]))

    def map(self, function: Callable[[np.ndarray], np.ndarray]) -> Timeline:
        """Replace the values of each kind by what the function returns for them."""
        low, high, latest = function(self.low), function(self.high), function(self.latest)
        total = None if self.total is None else function(self.total)
        return self._replace(low=low, high=high, latest=latest, total=total)


class Track:
    """Values of one shape, appended step by step.

    When the exact rows are full, the oldest is folded into the newest bucket. When the buckets are full, neighbours are
    merged in pairs, and buckets hold twice as many steps from then on. So an append takes constant time on average. An
    interrupt may end an append anywhere; `settle`, which the next append calls, completes it.

    Args:
      shape: The shape of the values of one step: (leaves,), or (leaves, bins).
      dtype: int64 for counts, which are summed, or float64, which keeps the least value.
      max_bytes: The memory limit of all arrays; there is always room for 8 steps and 4 buckets.
    """

    def __init__(self, shape: tuple[int, ...], dtype: type, max_bytes: int) -> None:
        self.shape, self.is_count = shape, dtype is np.int64
        n_bytes = 8 * int(np.prod(shape, dtype=np.int64))
        n_exact = min(max(max_bytes // 2 // (n_bytes + 16), FEWEST_EXACT), MOST_EXACT)
        n_buckets = min(max(max_bytes // 2 // (3 * n_bytes + 40), FEWEST_BUCKETS), MOST_BUCKETS) // 2 * 2
        # The system commits memory at the first write, so a short run uses little.
        self.exact_steps = np.empty((2, n_exact), np.int64)  # step, its inner step or -1
        self.exact = np.empty((n_exact, *shape), dtype)
        self.oldest = self.n_exact = self.n_folded = 0
        self.buckets = np.empty((3, n_buckets, *shape), dtype)  # low (total for counts), high, latest
        self.bucket_steps = np.empty((5, n_buckets), np.int64)  # first, until, n, the inner steps of first and until
        self.n_buckets = 0
        self.bucket_width = 1
        self.has_inner = False  # whether it has inner steps
        self._change: tuple[Callable[..., None], tuple] | None = None  # one in progress

    def __len__(self) -> int:
        """The number of entries of `timeline`."""
        return self.n_buckets + self.n_exact

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (self.exact_steps, self.exact, self.buckets, self.bucket_steps))

    def extend(self, steps: Sequence[int] | np.ndarray, values: np.ndarray) -> None:
        """Append the values [steps, *shape] of some steps, or of the rows of `with_inner`."""
        self.settle()
        steps = with_inner(steps)
        self.has_inner = self.has_inner or bool((steps[1] >= 0).any())
        capacity, n_done = len(self.exact), 0
        while n_done < steps.shape[1]:
            if self.n_exact == capacity:
                self._fold()
            slot = (self.oldest + self.n_exact) % capacity
            n = min(steps.shape[1] - n_done, capacity - self.n_exact, capacity - slot)
            self.exact[slot : slot + n] = values[n_done : n_done + n]
            self.exact_steps[:, slot : slot + n] = steps[:, n_done : n_done + n]
            self.n_exact += n  # only now the steps count
            n_done += n

    def settle(self) -> None:
        """Complete a change that was interrupted. Changes are idempotent."""
        if self._change is not None:
            change, arguments = self._change
            change(self, *arguments)
            self._change = None

    def _fold(self) -> None:
        """Move the oldest exact row into a bucket."""
        bucket, n, total = self.n_buckets - 1, 1, None
        if bucket < 0 or self.bucket_steps[2, bucket] >= self.bucket_width:
            if self.n_buckets == self.bucket_steps.shape[1]:
                pairs = np.arange(0, self.n_buckets, 2)
                merged_pairs = _merged(self.buckets, self.bucket_steps, pairs, self.is_count)
                self._change = Track._set_buckets, (*merged_pairs, 2 * self.bucket_width)
                self.settle()
            bucket = self.n_buckets
        else:
            n = self.bucket_steps[2, bucket] + 1
            if self.is_count:  # -1 marks a leaf without numbers
                total = np.maximum(self.buckets[0, bucket] + self.exact[self.oldest], -1)
        self._change = Track._move, (self.oldest, bucket, n, total, self.n_folded + 1)
        self.settle()

    def _move(self, slot: int, bucket: int, n: np.int64 | int, total: np.ndarray | None, n_folded: int) -> None:
        """Move an exact row into a bucket, as its n-th step; for a count, `total` is the resulting sum."""
        values, (step, inner), capacity = self.exact[slot], self.exact_steps[:, slot], len(self.exact)
        if n == 1:
            self.buckets[:, bucket] = values
            self.bucket_steps[:, bucket] = step, step, 1, inner, inner
        else:
            low, high, latest = self.buckets[:, bucket]
            if total is None:
                np.fmin(low, values, out=low)
            else:
                low[...] = total
            np.fmax(high, values, out=high)
            latest[...] = values
            self.bucket_steps[1:3, bucket] = step, n
            self.bucket_steps[4, bucket] = inner
        self.n_buckets = bucket + 1
        self.oldest, self.n_exact, self.n_folded = (slot + 1) % capacity, capacity - 1, n_folded

    def _set_buckets(self, values: np.ndarray, steps: np.ndarray, bucket_width: int) -> None:
        n = steps.shape[1]
        self.buckets[:, :n], self.bucket_steps[:, :n] = values, steps
        self.n_buckets, self.bucket_width = n, bucket_width

    def arrays(self) -> tuple[np.ndarray, ...]:
        order, k = self._order(), self.n_buckets
        return self.exact_steps[:, order], self.exact[order], self.bucket_steps[:, :k], self.buckets[:, :k]

    def restore(self, arrays: Sequence[np.ndarray], bucket_width: int) -> None:
        """Continue with saved arrays; merge buckets if there is less room than before."""
        exact_steps, exact, bucket_steps, buckets = arrays
        (n_rows, n), (n_bucket_rows, k) = exact_steps.shape, bucket_steps.shape
        if exact.shape != (n, *self.shape) or buckets.shape != (3, k, *self.shape) or (n_rows, n_bucket_rows) != (2, 5):
            raise ValueError(f"arrays of {exact.shape} and {buckets.shape} do not belong to leaves of {self.shape}")
        if not (1 <= bucket_width < 1 << 53 and np.all((bucket_steps[2] >= 1) & (bucket_steps[2] <= bucket_width))):
            raise ValueError(f"its buckets of {bucket_width} steps hold others")
        while k > self.bucket_steps.shape[1]:  # its memory budget was larger when the file was written
            buckets, bucket_steps = _merged(buckets, bucket_steps, np.arange(0, k, 2), self.is_count)
            k, bucket_width = bucket_steps.shape[1], bucket_width * 2
        self._set_buckets(buckets, bucket_steps, bucket_width)
        self.n_folded, self.has_inner = int(bucket_steps[2].sum()), bool((bucket_steps[3:] >= 0).any())
        self.extend(exact_steps, exact)

    def timeline(
        self,
        first: int | None = None,
        until: int | None = None,
        resolution: int | None = None,
        inner: InnerSteps = NO_INNER,
    ) -> Timeline:
        """Return the steps from `first` to `until`, in at most `resolution` entries, numbered as in `inner`."""
        least, most = -np.inf if first is None else first, np.inf if until is None else until
        order, steps = self._order(), self.bucket_steps[:, : self.n_buckets]
        exact_steps, is_wanted = self.exact_steps[0, order], (steps[1] >= least) & (steps[0] <= most)
        slots = order[(exact_steps >= least) & (exact_steps <= most)]
        return self._entries(np.flatnonzero(is_wanted), slots, inner, resolution)

    @property
    def n_steps(self) -> int:
        return self.n_folded + self.n_exact

    def entry_steps(self, buckets: np.ndarray | None = None, slots: np.ndarray | None = None) -> np.ndarray:
        """int64[5, k]: of each entry of `timeline`, or of some, the steps, as in `bucket_steps`."""
        buckets = np.arange(self.n_buckets) if buckets is None else buckets
        steps, inner = self.exact_steps[:, self._order() if slots is None else slots]
        exact_entries = np.stack([steps, steps, np.ones_like(steps), inner, inner])
        return np.concatenate([self.bucket_steps[:, buckets], exact_entries], axis=1)

    def newest(self, n: int, inner: InnerSteps = NO_INNER) -> Timeline:
        """Return the last `n` steps; the first entry may hold earlier ones too. The cost depends only on `n`."""
        n_exact = min(n, self.n_exact)
        n_in_newest = np.cumsum(self.bucket_steps[2, : self.n_buckets][::-1])
        n_buckets = min(int(np.searchsorted(n_in_newest, n - n_exact)) + 1, self.n_buckets) if n > n_exact else 0
        return self._entries(np.arange(self.n_buckets - n_buckets, self.n_buckets), self._order(n_exact), inner)

    def _order(self, n: int | None = None) -> np.ndarray:
        """The slots of the newest exact rows."""
        n = self.n_exact if n is None else n
        return (self.oldest + np.arange(self.n_exact - n, self.n_exact)) % len(self.exact)

    def _entries(
        self, buckets: np.ndarray, slots: np.ndarray, inner: InnerSteps, resolution: int | None = None
    ) -> Timeline:
        exact = np.broadcast_to(self.exact[slots], (3, len(slots), *self.shape))
        values = np.concatenate([self.buckets[:, buckets], exact], axis=1)
        steps = self.entry_steps(buckets, slots)
        if resolution is not None and steps.shape[1] > max(resolution, 1):
            groups = np.linspace(0, steps.shape[1], max(resolution, 1), endpoint=False).astype(np.intp)
            values, steps = _merged(values, steps, groups, self.is_count)
        low, high, latest = values
        total, low = (low, high) if self.is_count else (None, low)
        numbering = inner if self.has_inner else inner._replace(noun="")
        return Timeline(steps[0], steps[1], steps[2], low, high, latest, total, steps[3:], numbering)

    def latest(self) -> tuple[int, np.ndarray] | None:
        if not self.n_exact:
            return None
        slot = self._order(1)[0]
        return int(self.exact_steps[0, slot]), self.exact[slot].copy()


def with_inner(steps: Sequence[int] | np.ndarray, inner: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
    """int64[2, k]: the steps, and their inner steps or -1; `steps` as they are if they have both."""
    rows = np.asarray(steps, np.int64)
    return rows if rows.ndim == 2 else np.stack([rows, np.full(len(rows), -1) if inner is None else inner])


def _merged(values: np.ndarray, steps: np.ndarray, groups: np.ndarray, is_count: bool):
    """Merge entries into non-empty groups that begin at `groups`."""
    ends = np.append(groups[1:], steps.shape[1]) - 1
    low, high, latest = merged(values[0], values[1], values[2], groups)
    if is_count:  # totals are stored in place of low
        low = np.maximum(np.add.reduceat(values[0], groups, axis=0), -1)
    merged_steps = steps[0][groups], steps[1][ends], np.add.reduceat(steps[2], groups), steps[3][groups], steps[4][ends]
    return np.stack([low, high, latest]), np.stack(merged_steps)


def occurs_in(counts: Timeline, entries: Timeline) -> np.ndarray:
    """bool[k, leaves]: whether a count was positive in each of `entries`, whose buckets may differ."""
    begins, ends = entries.begins, entries.ends
    if np.array_equal(counts.begins, begins) and np.array_equal(counts.ends, ends):
        return counts.high > 0
    n_before = np.concatenate([np.zeros((1, counts.high.shape[1]), np.int64), np.cumsum(counts.high > 0, axis=0)])
    start = np.searchsorted(counts.ends, begins)
    stop = np.maximum(np.searchsorted(counts.begins, ends, side="right"), start)
    return n_before[stop] > n_before[start]


# The user's scalars, such as the loss, and the batches of steps, in bounded memory

MOST_NAMES = 64
MOST_IDS = 4096  # kept per batch; for a text, characters
TRACK_BYTES = 1 << 20  # per scalar
_BATCHES_BYTES = 4_000_000
CODES = np.array([np.nan, np.nan, np.inf, -np.inf])  # by code; 0 is a finite number


class Batch(NamedTuple):
    ids: np.ndarray | str  # int64[n], the first 4,096 ids; or a text
    n: int  # the number of ids before the limit; 0 for a text
    weight: float  # the first scalar of its step. When memory is short, the neighbour with the larger weight is kept.

    @property
    def n_bytes(self) -> int:
        return 100 + (len(self.ids) if isinstance(self.ids, str) else self.ids.nbytes)


class ScalarRow(NamedTuple):
    """Scalars of the steps up to `step`: an array [n] holds the values of the last n steps, or of its inner steps."""

    step: int
    values: Mapping[str, np.ndarray]
    batch: Batch | None
    n_inner: int = 1  # the number of inner steps of this step; 1 without a loop

    def steps_of(self, n: int) -> np.ndarray:
        """int64[2, n]: the steps and inner steps of an array [n], as `with_inner` returns them."""
        if n == 1 or self.n_inner == 1:
            return with_inner(np.arange(self.step - n + 1, self.step + 1))
        if self.n_inner % n == 0:  # as of updates that each have several micro-batches
            return with_inner([self.step] * n, (np.arange(n) + 1) * (self.n_inner // n) - 1)
        end = (self.step + 1) * self.n_inner
        return with_inner(*np.divmod(np.arange(end - n, end), self.n_inner))


class Scalars:
    """Scalars by name over time: recent steps are exact, older ones are merged into buckets.

        loss = inspector.history.scalars.values("loss")
        loss.until, loss.latest                       # int64[k], float64[k]

    Attributes:
      tracks: For each name, [value, code]; a non-finite value is NaN with code 1 (NaN), 2 (inf) or 3 (-inf).
      batches: Batches by step. Above 4 MB, one of every two older neighbours is dropped, the one with the smaller loss.
      n_appended: The number of rows that were appended.
      inner: How the inner steps of the run are numbered.
    """

    def __init__(self) -> None:
        self.tracks: dict[str, Track] = {}
        self.inner = InnerSteps(noun="inner step")
        self.batches: dict[int, Batch] = {}
        self.n_appended = 0
        self._room = _BATCHES_BYTES

    def __bool__(self) -> bool:
        return bool(self.tracks)

    def extend(self, rows: Sequence[ScalarRow]) -> set[str]:
        """Add the scalars of some steps, name by name. Returns the names with non-finite values."""
        bad = set()
        by_name: dict[str, tuple[list[np.ndarray], list[np.ndarray]]] = {}
        for row in rows:
            for name, values in row.values.items():
                steps, parts = by_name.setdefault(name, ([], []))
                steps.append(row.steps_of(len(values)))
                parts.append(values)
            if row.batch is not None:
                self.add_batch(row.step, row.batch)
        for name, (steps, parts) in by_name.items():
            coded, placed = codes_of(np.concatenate(parts)), np.concatenate(steps, axis=1)
            self.inner = self.inner.up_to(placed[1])
            self.new_track(name).extend(placed, coded)
            if coded[:, 1].any():
                bad.add(name)
        self.n_appended += len(rows)
        return bad

    def new_track(self, name: str) -> Track:
        """Return the track of a name; an empty one if the name is new."""
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
            self._room = _BATCHES_BYTES - sum(kept.n_bytes for kept in self.batches.values())

    def values(self, name: str, *, resolution: int | None = None) -> Timeline:
        """Return a scalar over time: float64[k] least, greatest and last values. Only `latest` can be non-finite.

        Args:
          resolution: The most entries; neighbours are merged.

        Raises:
          KeyError: No scalar has this name.
        """
        return self.values_and_bad(name, resolution=resolution)[0]

    def values_and_bad(self, name: str, *, resolution: int | None = None) -> tuple[Timeline, np.ndarray]:
        """Return `values`, and bool[k]: whether an entry has a non-finite value."""
        timeline = self.tracks[name].timeline(resolution=resolution, inner=self.inner)
        values = timeline._replace(low=timeline.low[:, 0], high=timeline.high[:, 0], latest=number_of(timeline.latest))
        return values, timeline.high[:, 1] > 0

    def last(self) -> dict[str, tuple[int, float]]:
        """Return the newest step of each scalar, and its value there."""
        newest = ((name, track.latest()) for name, track in self.tracks.items())
        return {name: (pair[0], float(number_of(pair[1]))) for name, pair in newest if pair is not None}

    def fields(self) -> dict[str, Any]:
        """Everything except the arrays of the tracks, for a file."""
        return {
            "n_appended": self.n_appended,
            "tracks": [{"name": name, "bucket_width": track.bucket_width} for name, track in self.tracks.items()],
            "batches": [[step, *batch_fields(batch)] for step, batch in self.batches.items()],
        }

    def restore(self, fields: Mapping[str, Any]) -> list[tuple[Track, int]]:
        """Restore what `fields` returned. Returns the tracks, still empty, and the widths of their buckets."""
        self.n_appended = int(fields["n_appended"])
        for step, *batch in fields["batches"]:
            self.add_batch(int(step), batch_of(batch))
        tracks = itertools.islice(fields["tracks"], MOST_NAMES)
        return [(self.new_track(printable(str(track["name"]))), int(track["bucket_width"])) for track in tracks]


def codes_of(values: np.ndarray) -> np.ndarray:
    codes = np.isnan(values) + 2.0 * np.isposinf(values) + 3.0 * np.isneginf(values)
    return np.stack([np.where(codes > 0, np.nan, values), codes], axis=1)


def number_of(coded: np.ndarray) -> np.ndarray:
    """Return the numbers of values and codes [..., 2]."""
    return np.where(coded[..., 1] > 0, CODES[coded[..., 1].astype(int)], coded[..., 0])


def batch_fields(batch: Batch) -> list[Any]:
    return [batch.ids if isinstance(batch.ids, str) else batch.ids.tolist(), batch.n, batch.weight]


def batch_of(fields: Sequence[Any]) -> Batch:
    ids, n, weight = fields
    ids = printable(ids[:MOST_IDS]) if isinstance(ids, str) else np.array(ids[:MOST_IDS], np.int64).reshape(-1)
    return Batch(ids, int(n), float(weight))


Record = list[tuple[str, str, np.ndarray]]  # source, statistic, values [leaves] or [steps, leaves]


class History:
    """The statistics of every leaf over time: exact for recent steps, merged into buckets for older ones.

        history = inspector.history
        norms = history.values("grads", "norm")         # of all leaves, on the last axis
        norms.until, norms.latest                       # int64[k], float64[k, leaves]
        history.values("grads", "max_abs", leaf=3).high # float64[k], of one leaf
        history.sources["grads"].paths[3]               # the key path of that leaf

    A norm is NaN where values are not finite; these are counted as "nonfinite". An append takes constant time,
    whatever the length of the run. `max_bytes` are reserved at once, but used only as the history fills up; the newest
    8 steps and 4 buckets are kept even if a large tree needs more. Not thread-safe. The next append, or `finish`,
    completes an append that was interrupted.

    Attributes:
      sources: The measured trees, by name.
      forward: By source, the paths of its leaves in the order in which the step uses them, if known.
      tracks: One statistic over time, by the names of source and statistic.
      scalars: The scalars of `record_scalars`, and the batches of steps.
      inner: How the inner steps of the run are numbered; see `treeviz.tree.series.InnerSteps`.
      run: A random identifier of the run.
      name: The user's name of the run, or empty.
      tree: The name of the measured tree in views, or empty.
      journal: A `treeviz.steps.recording.history_file.Journal`, which writes each appended step to a file; or None.
      damage: What could not be read from the file of the history, or empty.

    Args:
      sources: The measured trees; see `treeviz.steps.measure.source_of`.
      max_bytes: The memory limit, which the sources share equally.
    """

    def __init__(self, sources: Sequence[MeasuredTree], max_bytes: int = 64_000_000) -> None:
        self.sources = {source.name: source for source in sources}
        self.forward: dict[str, tuple[str, ...]] = {}
        self.max_bytes = max_bytes
        self._budgets = {source.name: max_bytes // len(sources) for source in sources}
        self._unfinished: tuple[int, np.ndarray, list[tuple[Track, int, np.ndarray]]] | None = None
        self.tracks: dict[tuple[str, str], Track] = {}
        self.scalars = Scalars()
        self.n_appended = 0
        self.run = uuid.uuid4().hex  # so that a journal of another run is never read
        self.name = self.tree = ""
        self.journal: Any = None
        self.damage = ""

    def add_source(self, source: MeasuredTree, max_bytes: int) -> None:
        """Add a measured tree, with its own memory."""
        self._budgets[source.name] = max_bytes
        self.max_bytes = sum(self._budgets.values())
        self.sources[source.name] = source  # last, since an interrupt may come between

    def add_sources(self, sources: Sequence[MeasuredTree], max_bytes: int) -> None:
        """Add the new trees among `sources`, which share half of what is left of `max_bytes` equally.

        Equal shares let ratios reach as far back as norms, and half of the memory is left for later trees.
        """
        new = [source for source in sources if source.name not in self.sources]
        room = max_bytes - self.max_bytes
        for source in new:
            self.add_source(source, room // 2 // len(new))

    def append(self, step: int, numbers: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Add the numbers of a step: `{source: {statistic: value of each leaf}}`, as `numbers_of` returns them.

        A step may lack sources and statistics. "rms" is not stored where it follows from the norm.

        Raises:
          ValueError: An unknown source or statistic, or values of another shape.
        """
        rows = {name: {key: np.asarray(values)[None] for key, values in own.items()} for name, own in numbers.items()}
        self.extend([step], rows)

    def extend(
        self, steps: Sequence[int], numbers: Mapping[str, Mapping[str, np.ndarray]], inner: Sequence[int] | None = None
    ) -> None:
        """Add the numbers of several steps, which are the first axis of all values; see `append`.

        Args:
          inner: The inner step of each, or -1 for what is measured once in a call; None: all are.
        """
        self.finish()
        rows = with_inner(steps, inner)
        record: Record = []
        for name, statistics in numbers.items():
            if name not in self.sources:
                raise ValueError(f"history: no source {name!r}; there are {', '.join(map(repr, self.sources))}.")
            for statistic, values in statistics.items():
                if statistic == "rms" and "norm" in statistics:
                    continue
                shape, dtype = self.kind_of(name, statistic)
                values = np.asarray(values, dtype)
                if values.shape != (len(steps), *shape):
                    label = f"{name} {statistic} of step {steps[0]}"
                    raise ValueError(f"history: {label} is {values.shape[1:]}, not {shape}.")
                record.append((name, statistic, values))
        if self.journal is None:
            self.add(rows, record)
            return
        for i, (step, inner_step) in enumerate(rows.T.tolist()):
            self.add(rows[:, i : i + 1], [(name, statistic, values[i : i + 1]) for name, statistic, values in record])
            parts = [(name, statistic, values[i]) for name, statistic, values in record]
            self.journal.write(self, step, parts, inner_step)

    def append_scalars(self, rows: Sequence[ScalarRow]) -> set[str]:
        """Add scalars of steps, with or without other numbers. Returns the names with non-finite values."""
        if self.journal is None:
            return self.scalars.extend(rows)
        bad = set()
        for row in rows:
            bad |= self.scalars.extend([row])
            self.journal.write(self, row.step, row)
        return bad

    @property
    def n_records(self) -> int:
        """The number of steps and rows of scalars that were appended."""
        return self.n_appended + self.scalars.n_appended

    @property
    def inner(self) -> InnerSteps:
        return self.scalars.inner

    def add(self, steps: np.ndarray, record: Record) -> None:
        """Add the values of steps, as from `with_inner`, which `extend` has checked."""
        self.scalars.inner = self.inner.up_to(steps[1])
        parts = []
        for name, statistic, values in record:
            track = self.tracks.get((name, statistic))
            if track is None:
                track = self.new_track(name, statistic)
            parts.append((track, track.n_steps, values))
        self._unfinished = self.n_appended + steps.shape[1], steps, parts
        self.finish()

    def finish(self) -> None:
        """Complete an append that was interrupted."""
        if self._unfinished is None:
            return
        n_appended, steps, parts = self._unfinished
        for track, n_before, values in parts:
            track.settle()
            n_done = track.n_steps - n_before
            track.extend(steps[:, n_done:], values[n_done:])
        self.n_appended = n_appended
        self._unfinished = None

    def kind_of(self, name: str, statistic: str) -> tuple[tuple[int, ...], type]:
        """Return the shape and dtype of a statistic of one step."""
        record = STATISTICS.get(statistic)
        if record is None:
            raise ValueError(f"history: no statistic {statistic!r}; there are {', '.join(map(repr, STATISTICS))}.")
        return record.shape(len(self.sources[name].paths)), record.dtype

    def new_track(self, name: str, statistic: str) -> Track:
        budget = self._budgets[name] * STATISTICS[statistic].share // TOTAL_SHARES
        track = self.tracks[name, statistic] = Track(*self.kind_of(name, statistic), budget)
        return track

    @property
    def nbytes(self) -> int:
        """Bytes that the arrays reserve."""
        return sum(track.nbytes for track in self.tracks.values())

    def __len__(self) -> int:
        """The number of steps that were appended; of a call with a loop, its inner steps and the call count each."""
        return self.n_appended

    def __repr__(self) -> str:
        sources = ", ".join(f"{name}: {len(source.paths)} leaves" for name, source in self.sources.items())
        return f"History({self.n_appended} steps of {sources})"

    def numbering(self, source: str, scalar: str = "") -> InnerSteps:
        """How the steps of a source, or of a scalar of the source "scalars", are numbered."""
        own = (track for (name, _), track in self.tracks.items() if name == source)
        tracks = [*own] if source in self.sources else [self.scalars.tracks[scalar]]
        return self.inner if any(track.has_inner for track in tracks) else self.inner._replace(noun="")

    def statistics(self, source: str = "grads") -> tuple[str, ...]:
        """The statistics of a source that were recorded at least once."""
        return tuple(statistic for statistic in STATISTICS if (source, statistic) in self.tracks)

    def steps(self, source: str = "grads", statistic: str = "norm") -> np.ndarray:
        """int64[k]: the last step of each entry of `values`; the inner steps of a call share its number."""
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
        """Return a statistic over time, of one leaf or of all.

        Args:
          statistic: "norm", "max_abs", "mean" and "rms" are NaN where a value of the leaf is NaN or infinite; those of
            its finite values are "finite_norm", "finite_max_abs", "finite_mean" and "finite_rms".
          leaf: The index of a leaf in `sources[source].paths`; None for all leaves, as the last axis.
          first, until: The first and the last step to return.
          resolution: The most entries; neighbours are merged.
        """
        name = statistic.removeprefix(FINITE)
        stored = "norm" if name == "rms" and (source, "rms") not in self.tracks else name
        track = self.tracks.get((source, stored)) or Track(*self.kind_of(source, stored), 0)
        timeline = track.timeline(first, until, resolution, self.inner)
        if name != stored:
            timeline = timeline.map(lambda norm: rms_of(norm, self.sources[source].sizes))
        counts = self.tracks.get((source, "nonfinite"))
        if statistic in FINITE_PARTS and counts is not None:
            bad = occurs_in(counts.timeline(first, until, inner=self.inner), timeline)
            timeline = timeline.map(lambda values: np.where(bad, np.nan, values)) if bad.any() else timeline
        return timeline if leaf is None else timeline.map(lambda values: values[:, leaf])

    def last(self, source: str = "grads") -> tuple[int, dict[str, np.ndarray]]:
        """Return the newest step of a source, and its statistics as in `values`; (-1, {}) before the first step."""
        newest = {statistic: self.tracks[source, statistic].latest() for statistic in self.statistics(source)}
        known = {statistic: pair for statistic, pair in newest.items() if pair is not None}
        step = max((step for step, _ in known.values()), default=-1)
        numbers = {statistic: values for statistic, (at, values) in known.items() if at == step}
        if "norm" in numbers:
            numbers["rms"] = rms_of(numbers["norm"], self.sources[source].sizes)
        bad = numbers.get("nonfinite", np.zeros(1)) > 0
        if bad.any():
            finite = {FINITE + name: numbers[name] for name in FINITE_PARTS if name in numbers}
            numbers |= finite | {name: np.where(bad, np.nan, numbers[name]) for name in FINITE_PARTS if name in numbers}
        return step, numbers

    def worst(self, source: str = "grads", n: int = 10, statistic: str = "norm") -> list[int]:
        """Return the `n` worst leaves at the newest step: most non-finite values first, then largest norms."""
        _, numbers = self.last(source)
        if statistic not in numbers:
            return []
        magnitude = np.nan_to_num(numbers.get(FINITE + statistic, numbers[statistic]), nan=-np.inf, posinf=np.inf)
        bad = np.maximum(numbers.get("nonfinite", np.zeros(len(magnitude), np.int64)), 0)
        order = np.lexsort((np.arange(len(magnitude)), -magnitude, -bad))
        has_number = self.sources[source].has_number
        return [int(leaf) for leaf in order if has_number[leaf]][:n]

    def ratio(self, of: str, to: str, statistic: str = "norm", **options) -> Timeline | None:
        """Divide the norms of one source by those of another, leaf by leaf, e.g. "updates" by "params".

        Returns None unless both have the same leaves at the same steps. In buckets, `latest` is exact, and `low` and
        `high` are bounds.
        """
        if not self.has_ratio(of, to):
            return None
        numerator, denominator = (self.values(source, statistic, **options) for source in (of, to))
        with np.errstate(divide="ignore", invalid="ignore"):
            low, high = numerator.low / denominator.high, numerator.high / denominator.low
            return numerator._replace(low=low, high=high, latest=numerator.latest / denominator.latest)

    def has_ratio(self, of: str, to: str) -> bool:
        """Whether two sources have norms of the same leaves at the same steps. Copies no values."""
        if not {of, to} <= self.sources.keys() or self.sources[of].sizes != self.sources[to].sizes:
            return False
        numerator, denominator = (self.tracks.get((name, "norm")) for name in (of, to))
        if numerator is None or denominator is None:
            return numerator is denominator
        return np.array_equal(numerator.entry_steps()[[1, 2, 4]], denominator.entry_steps()[[1, 2, 4]])


_NEWEST = 16


def main_source(history: History) -> str:
    """The source to show first: gradients, preferably with updates and not rarely taken; the newest section."""
    grads = [name for name in history.sources if name.startswith("grads")]
    with_updates = [name for name in grads if sibling_name(name, "updates") in history.sources]
    candidates = with_updates or grads or [*history.sources]
    # Of the newest steps; the branch of a conditional has no numbers where it is not taken.
    tracks = [history.tracks.get((name, "nonfinite")) for name in candidates]
    n_known = [0 if t is None else int((t.newest(_NEWEST).latest >= 0).any(axis=1).sum()) for t in tracks]
    first = next(name for name, n in zip(candidates, n_known, strict=True) if 2 * n > max(n_known) or not max(n_known))
    tree, _ = section_of(first)
    return [name for name in history.sources if section_of(name)[0] == tree][-1]


def source_named(history: History, name: str | None) -> str:
    """Return the source with a name, by default the main source."""
    if name is not None and name not in history.sources:
        raise ValueError(f"there is no tree {name!r} in this run; there are {', '.join(map(repr, history.sources))}.")
    return main_source(history) if name is None else name


# A tree whose structure changes during a run gets another name, so that no step is lost: "grads since step 12".

MOST_SECTIONS = 16  # per tree


class Sections:
    """Assigns each measured tree to a section of a history; a structure that recurs continues its earlier section."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[str, MeasuredTree]] = {}  # by tree: its last section and its last source
        self._unchanged: Sequence[MeasuredTree] | None = None

    def place(self, steps: ReadSteps, history: History) -> ReadSteps:
        """Return the steps, with the names of trees in the history. ValueError if a tree has changed too often."""
        known = ((source, *self._newest.get(source.name, ("unknown", source))) for source in steps.sources)
        if steps.sources is self._unchanged or all(
            not section and source.paths is last.paths and source.shapes is last.shapes
            for source, section, last in known
        ):
            self._unchanged = steps.sources  # steps that were read together have the same list
            return steps
        sections: dict[str, str] = {}
        for source in sorted(steps.sources, key=lambda source: is_beside(source.name)):
            wanted = self.of(source.name, history)
            if is_beside(source.name):  # use the section of the gradients, even if that is newer
                wanted = sections.get(sibling_name(source.name, "grads"), wanted)
            sections[source.name] = _section(source, wanted, steps.steps[0], history)
        self._newest |= {source.name: (sections[source.name], source) for source in steps.sources}
        if not any(sections.values()):
            return steps
        return steps._replace(
            sources=[source._replace(name=source.name + sections[source.name]) for source in steps.sources],
            numbers={name + sections[name]: numbers for name, numbers in steps.numbers.items()},
        )

    def of(self, name: str, history: History) -> str:
        """Return the section of a tree's newest step; empty if it has not changed."""
        return self._newest[name][0] if name in self._newest else _known_sections(name, history)[-1]


def _known_sections(name: str, history: History) -> list[str]:
    return [section for tree, section in map(section_of, history.sources) if tree == name] or [""]  # the newest last


def _section(source: MeasuredTree, wanted: str, step: int, history: History) -> str:
    """The section with the structure of a tree: the wanted one, another one, or a new one."""
    known = _known_sections(source.name, history)
    for section in (wanted, *reversed(known)):
        if _fits(source, history.sources.get(source.name + section)):
            return section
    if len(known) >= MOST_SECTIONS:
        raise ValueError(f"{source.name} has had {len(known)} other structures before")
    section = f" since step {step}"
    while source.name + section in history.sources:  # the step count restarted from 0
        section += " again"
    return section


def _fits(new: MeasuredTree, old: MeasuredTree | None) -> bool:
    """Whether the leaves are the same. Activations may change size from batch to batch."""
    if old is None or (old.paths is new.paths and old.shapes is new.shapes):
        return True
    if old.paths != new.paths or not kind_of(new.name):
        return old.paths == new.paths
    has_shapes = bool(old.shapes and new.shapes)  # files of older versions lack them
    return old.sizes == new.sizes and old.dtypes == new.dtypes and not (has_shapes and old.shapes != new.shapes)
