"""The user's scalars of a run, such as the loss, and the batches of its steps, in bounded memory."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from treeviz.steps.recording.track import Timeline, Track
from treeviz.tree.safe_repr import printable

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
