"""What is new in a history, and how often it may be told: for views that follow a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from treeviz.analysis.findings import Finding, Thresholds, findings
from treeviz.analysis.gradient_series import table_of_source
from treeviz.analysis.history import History
from treeviz.analysis.history_track import Series, Track

MOST_PER_S = 8
SHARE = 0.02  # of the time, for telling
MOST_COLUMNS = 16  # that are told at once
MOST_FINDINGS = 50
_FINDINGS_SHARE = 0.005  # of the time
_LARGEST = float(np.finfo(np.float32).max)


class Throttle:
    """When the next telling is due: at most so often, and so that all of them take no more than a share of the time.

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
        """Until the next is due."""
        return max(0.0, self._due - self._clock())

    def spent(self, cost_s: float, n_others: int = 0) -> None:
        """One was told, at this cost. The next waits until it is paid for, or what one usually costs.

        Args:
          n_others: How many others have to live of the same share.
        """
        self._cost_s = max(cost_s, (self._cost_s + cost_s) / 2)
        self._due = self._clock() + max(self._least_s, self._cost_s * (n_others + 1) / self._share)


class Columns(NamedTuple):
    """New columns of a series of all leaves, in order.

    Attributes:
      first, until, n: int64[k]: the first and the last step of each, and how many were recorded in it.
      latest, low, high: float32[k, leaves]: the last, the least and the greatest norm in it.
      bad: bool[k, leaves]: whether something was not finite.
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
        """Whether each is one step, so that least and greatest are the last."""
        return bool((self.n == 1).all())

    def buffers(self) -> list[bytes]:
        """The same as bytes: steps and counts as float64, norms as float32, and a bit for what is not finite."""
        norms = (self.latest,) if self.is_single else (self.latest, self.low, self.high)
        return [
            *(part.astype("<f8").tobytes() for part in (self.first, self.until, self.n)),
            np.packbits(self.bad, axis=1, bitorder="little").tobytes(),
            *(part.astype("<f4").tobytes() for part in norms),
        ]


class News:
    """The norms of a source that were not told yet. Asking costs what is new, however long the run."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._n_told = 0

    def skip(self, history: History) -> None:
        """All that is there was told in another way."""
        self._n_told = self._norms(history).n_steps

    def take(self, history: History, most: int = MOST_COLUMNS) -> Columns | None:
        """What is new, in at most so many columns; None: nothing."""
        track = self._norms(history)
        n = track.n_steps - self._n_told
        if n <= 0:
            return None
        steps = track.newest(n)
        self._n_told += n
        return joined(steps, self._bad(history, steps, n), most)

    def _norms(self, history: History) -> Track:
        return history.tracks[self.source, "norm"]

    def _bad(self, history: History, norms: Series, n: int) -> np.ndarray:
        """bool[k, leaves]: whether something was not finite at each of these."""
        track = history.tracks.get((self.source, "nonfinite"))
        bad = np.isinf(norms.high)
        if track is None:
            return bad
        counts = track.newest(n)
        if np.array_equal(counts.until, norms.until):
            return bad | (counts.high > 0)
        n_before = np.concatenate([np.zeros((1, bad.shape[1]), int), np.cumsum(counts.high > 0, axis=0)])
        start = np.searchsorted(counts.until, norms.first)
        stop = np.maximum(np.searchsorted(counts.first, norms.until, side="right"), start)
        return bad | (n_before[stop] > n_before[start])


class FindingNews:
    """What was found in a history, and whether it is something else than before.

    It is looked for at most once a second and for at most a small share of the time, or when somebody has reason to.

    Attributes:
      found: What was found when it was looked for last.
      marks: `[row, step, kind, text]` of those in the main source, the first of them.

    Args:
      name: Of the tree.
      clock, cpu_clock: In seconds; the second one counts what this thread does.
    """

    def __init__(self, name: str, *, clock: Callable[[], float], cpu_clock: Callable[[], float]) -> None:
        self.found: list[Finding] = []
        self.marks: list[list] = []
        self._name, self._cpu_clock = name, cpu_clock
        self._throttle = Throttle(most_per_s=1, share=_FINDINGS_SHARE, clock=clock)

    def look(
        self, history: History, thresholds: Thresholds, forward: Mapping[str, tuple[str, ...]], *, now: bool = False
    ) -> bool:
        """Look for findings if it is time to, or now. Whether there are others than before."""
        if not (now or self._throttle.is_due()):
            return False
        before, told = self._cpu_clock(), self.marks
        self.found = findings(history, thresholds=thresholds, forward=forward)
        self._throttle.spent(self._cpu_clock() - before)
        self.marks = self._marks(history)
        return self.marks != told

    def _marks(self, history: History) -> list[list]:
        source = main_source(history)
        leaves = [i for i, is_leaf in enumerate(table_of_source(history, source, self._name).is_leaf) if is_leaf]
        return [
            [leaves[f.leaf] if f.leaf >= 0 else 0, f.first, f.kind, f"{f.sentence} {f.advice}"[:1000]]
            for f in self.found
            if f.source == source
        ][:MOST_FINDINGS]


def joined(steps: Series, bad: np.ndarray, most: int) -> Columns:
    """Neighbours joined until there are at most so many columns."""
    groups = np.arange(0, len(steps.n), -(-len(steps.n) // most))
    ends = np.append(groups[1:], len(steps.n)) - 1
    return Columns(
        steps.first[groups],
        steps.until[ends],
        np.add.reduceat(steps.n, groups),
        _as_float32(_last_known(steps.latest, groups, ends)),
        _as_float32(np.fmin.reduceat(steps.low, groups, axis=0)),
        _as_float32(np.fmax.reduceat(steps.high, groups, axis=0)),
        np.logical_or.reduceat(bad, groups, axis=0),
    )


def _last_known(values: np.ndarray, groups: np.ndarray, ends: np.ndarray) -> np.ndarray:
    last = values[ends]
    for back in range(1, int(np.max(ends - groups)) + 1):
        last = np.where(np.isnan(last), values[np.maximum(ends - back, groups)], last)
    return last


def _as_float32(values: np.ndarray) -> np.ndarray:
    return np.clip(values, -_LARGEST, _LARGEST).astype(np.float32)


def main_source(history: History) -> str:
    """The tree to look at first: the first gradient."""
    return next((name for name in history.sources if name.startswith("grads")), next(iter(history.sources)))
