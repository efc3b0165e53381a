"""What is new in a history since the last message, and how often to send: for views that follow a run."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from treeviz.steps.findings.find import findings
from treeviz.steps.findings.finding import Finding, Thresholds
from treeviz.steps.recording.history import History, main_source
from treeviz.steps.recording.track import Timeline, Track, occurs_in
from treeviz.steps.series import as_float32, is_of_step, scalar_series, table_of_source
from treeviz.tree.series import merged
from treeviz.views.html.series_payload import pack_series

MOST_PER_S = 8
SHARE = 0.02  # of the time, for updates
MOST_BUCKETS = 16  # of one message
MOST_FINDINGS = 50
_FINDINGS_SHARE = 0.005  # of the time, for the search for findings
MOST_CURVES, _MOST_POINTS = 6, 128  # scalars, as a page shows them; buckets of each
_CURVES_SHARE = 0.005


class Throttle:
    """When the next update is due: limits their rate, and the share of the time that they take.

    Args:
      clock: In seconds.
    """

    def __init__(
        self, most_per_s: float = MOST_PER_S, share: float = SHARE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._least_s, self._share, self._clock = 1 / most_per_s, share, clock
        self._due = -np.inf
        self._cost_s = 0.0

    def is_due(self) -> bool:
        return self._clock() >= self._due

    @property
    def wait_s(self) -> float:
        """Seconds until the next update is due."""
        return max(0.0, self._due - self._clock())

    def spent(self, cost_s: float, n_others: int = 0) -> None:
        """Record the cost of an update; the next is delayed so that updates use at most `share` of the time.

        The cost is the larger of this one and its running mean.

        Args:
          n_others: How many other throttles divide the same share.
        """
        self._cost_s = max(cost_s, (self._cost_s + cost_s) / 2)
        self._due = self._clock() + max(self._least_s, self._cost_s * (n_others + 1) / self._share)


class Buckets(NamedTuple):
    """Norms of all leaves in k consecutive time buckets.

    Attributes:
      first, until, n: int64[k]: the first and the last step of each bucket, and how many were recorded in it.
      latest, low, high: float32[k, leaves]: the last, the least and the greatest norm in it.
      bad: bool[k, leaves]: whether it has a NaN or an infinity.
    """

    first: np.ndarray
    until: np.ndarray
    n: np.ndarray
    latest: np.ndarray
    low: np.ndarray
    high: np.ndarray
    bad: np.ndarray

    @property
    def is_single(self) -> bool:
        """Whether each bucket holds one step, so that least, greatest and last are the same."""
        return bool((self.n == 1).all())

    def buffers(self) -> list[bytes]:
        """Little-endian bytes: first, until and n as float64; bad as one bit a leaf; then latest (and unless
        `is_single`, low and high) as float32."""
        norms = (self.latest,) if self.is_single else (self.latest, self.low, self.high)
        return [
            *(part.astype("<f8").tobytes() for part in (self.first, self.until, self.n)),
            np.packbits(self.bad, axis=1, bitorder="little").tobytes(),
            *(part.astype("<f4").tobytes() for part in norms),
        ]


class NormUpdates:
    """The norms of a source since the last message. The cost depends on the new steps only, not on the whole run."""

    def __init__(self, history: History, source: str) -> None:
        self.source, self._history = source, weakref.ref(history)
        self._n_sent = 0  # steps

    def is_of(self, history: History, source: str) -> bool:
        """Whether it is of this source in this very history; a new run has another one."""
        return self._history() is history and self.source == source

    def skip(self, history: History) -> None:
        """Skip the steps until now, which the page has already."""
        self._n_sent = self._norms(history).n_steps

    def take(self, history: History, most: int = MOST_BUCKETS) -> Buckets | None:
        """The new steps in at most `most` buckets; None: there are none."""
        track = self._norms(history)
        n = track.n_steps - self._n_sent
        if n <= 0:
            return None
        steps = track.newest(n)
        self._n_sent += n
        return joined(steps, self._bad(history, steps, n), most)

    def _norms(self, history: History) -> Track:
        return history.tracks[self.source, "norm"]

    def _bad(self, history: History, norms: Timeline, n: int) -> np.ndarray:
        """bool[k, leaves]: whether each entry has a NaN or an infinity."""
        track = history.tracks.get((self.source, "nonfinite"))
        bad = np.isinf(norms.high)
        if track is None:
            return bad
        return bad | occurs_in(track.newest(n), norms)


class FindingUpdates:
    """The findings in a history, and whether they have changed.

    They are searched at most once a second and for at most 0.5 % of the time, or at once on request.

    Attributes:
      found: The result of the last search.
      marks: `[row, step, kind, text, severity]` of those in the main source, at most 50.

    Args:
      name: The name of the tree.
      clock, cpu_clock: In seconds; the second one counts the CPU time of this thread.
    """

    def __init__(self, name: str, *, clock: Callable[[], float], cpu_clock: Callable[[], float]) -> None:
        self.found: list[Finding] = []
        self.marks: list[list] = []
        self._name, self._cpu_clock = name, cpu_clock
        self._throttle = Throttle(most_per_s=1, share=_FINDINGS_SHARE, clock=clock)

    def poll(self, history: History, thresholds: Thresholds, *, now: bool = False) -> bool:
        """Search for findings if that is due, or if `now`. Returns whether they differ from those before."""
        if not (now or self._throttle.is_due()):
            return False
        before, marks = self._cpu_clock(), self.marks
        self.found = findings(history, thresholds=thresholds)
        self._throttle.spent(self._cpu_clock() - before)
        self.marks = self._marks(history)
        return self.marks != marks

    def _marks(self, history: History) -> list[list]:
        source = main_source(history)
        leaves = table_of_source(history, source, self._name).measured.tolist()
        return [
            [
                0 if f.leaf < 0 or is_of_step(f) else leaves[f.leaf],
                f.first,
                f.kind,
                f"{f.sentence} {f.advice}"[:1000],
                f.severity,
            ]
            for f in self.found
            if f.source == source or is_of_step(f)
        ][:MOST_FINDINGS]


class CurveUpdates:
    """The curves of the first six scalars, whole, in at most 128 buckets each: some 3 kB for each curve.

    They are made when there are new values, at most once a second and for at most 0.5 % of the time.

    Args:
      clock, cpu_clock: In seconds; the second one counts the CPU time of this thread.
    """

    def __init__(self, *, clock: Callable[[], float], cpu_clock: Callable[[], float]) -> None:
        self._n_sent = 0  # rows of scalars
        self._cpu_clock = cpu_clock
        self._throttle = Throttle(most_per_s=1, share=_CURVES_SHARE, clock=clock)

    def skip(self, history: History) -> None:
        """Skip the values until now, which the page has already."""
        self._n_sent = history.scalars.n_appended

    def take(self, history: History, found: Sequence[Finding]) -> dict[str, list] | None:
        """The headers of the curves and their arrays, as `pack_series` makes them; None: nothing is new or due."""
        is_new = bool(history.scalars) and self._n_sent != history.scalars.n_appended
        if not is_new or not self._throttle.is_due():
            return None
        before, arrays = self._cpu_clock(), []
        self.skip(history)

        def add(array: np.ndarray) -> int:
            arrays.append((array * 1).ravel().tolist())
            return len(arrays) - 1

        packed = pack_series(scalar_series(history, found, _MOST_POINTS, MOST_CURVES), add)
        self._throttle.spent(self._cpu_clock() - before)
        return {"series": packed, "arrays": arrays}


def joined(steps: Timeline, bad: np.ndarray, most: int) -> Buckets:
    """Join neighbours until there are at most `most` buckets."""
    groups = np.arange(0, len(steps.n), -(-len(steps.n) // most))
    ends = np.append(groups[1:], len(steps.n)) - 1
    low, high, latest = merged(steps.low, steps.high, steps.latest, groups)
    return Buckets(
        steps.first[groups],
        steps.until[ends],
        np.add.reduceat(steps.n, groups),
        as_float32(latest),
        as_float32(low),
        as_float32(high),
        np.logical_or.reduceat(bad, groups, axis=0),
    )
