"""Report findings while a run goes on, and end the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from treeviz.steps.findings.find import findings
from treeviz.steps.findings.finding import Finding, Thresholds
from treeviz.steps.recording.history import History
from treeviz.steps.stop import StopTraining

_SHARE = 0.02  # of the time, for the search for findings during a run


class Alarm:
    """Searches for findings when a recorder has read something: the `alarm` of a `Recorder`.

    It searches at once when a source has its first NaN or infinity, or one after others that are no fault, and at each
    flush; otherwise as often as 2 % of the time allows.

    Attributes:
      awaits: Whether more will be known of a finding at the next reading; then it is not told before.

    Args:
      thresholds: The limits beyond which numbers become findings.
      on_finding: Called with each finding once, and again if it ends and begins anew.
      raise_on: Kinds of findings that raise `StopTraining`.
    """

    def __init__(
        self,
        thresholds: Thresholds,
        *,
        on_finding: Callable[[Finding], None] | None = None,
        raise_on: Collection[str] = (),
    ) -> None:
        self._thresholds, self._on_finding, self._raise_on = thresholds, on_finding, frozenset(raise_on)
        self.awaits: Callable[[Finding], bool] = lambda finding: False
        self.begin()

    def begin(self) -> None:
        """Begin a run: nothing was told of it."""
        self._told: dict[tuple, int] = {}  # until which step, by what stays the same of a finding
        self._present: set[tuple] = set()  # in the last search
        self._bad_sources: set[str] = set()
        self._left_out: set[str] = set()  # the sources whose steps with NaN are no fault yet
        self._search_again = 0.0

    def postpone(self) -> None:
        """Let the next `was_read` search at once, after a read that may not raise."""
        self._search_again = 0.0

    def was_read(self, history: History, bad_sources: set[str], *, is_flush: bool) -> bool:
        """Report new findings. Returns whether it has searched for them, and told all.

        Args:
          bad_sources: The sources with NaN or infinity in the steps that were read.
          is_flush: Search at any cost.

        Raises:
          StopTraining: A new finding is of a kind in `raise_on`.
        """
        is_worse = not bad_sources <= self._bad_sources
        is_due = is_flush or is_worse or time.monotonic() >= self._search_again
        has_told = is_due and self._search(history)
        self._bad_sources = (self._bad_sources | bad_sources) - self._left_out
        return has_told

    def _search(self, history: History) -> bool:
        """Report new findings. Returns whether none is awaited."""
        before = time.monotonic()
        kinds = None if self._on_finding else sorted(self._raise_on)
        found = findings(history, thresholds=self._thresholds, kinds=kinds)
        self._left_out = {finding.source for finding in found if _is_left_out(finding)}
        n_found, found = len(found), [finding for finding in found if not self.awaits(finding)]
        now = time.monotonic()
        self._search_again = now + (now - before) / _SHARE
        present, self._present = self._present, set()
        for finding in sorted(found, key=lambda finding: finding.first if finding.kind == "spike" else -1):
            key = _key(finding)
            told_until = self._told.get(key, finding.first - 1)
            goes_on = key in present and finding.kind != "spike"  # each bad batch is a finding of its own
            is_told = goes_on or finding.first <= told_until
            self._present.add(key)
            self._told[key] = max(finding.until, told_until)
            if is_told:
                continue
            if self._on_finding is not None:
                self._on_finding(finding)
            if finding.kind in self._raise_on and not _is_left_out(finding):
                raise StopTraining(str(finding))
        return len(found) == n_found


def _is_left_out(finding: Finding) -> bool:
    return finding.kind == "nonfinite" and finding.severity == "info"


def _key(finding: Finding) -> tuple:
    """What stays the same of a finding while the run goes on.

    The first step does not: it moves when steps go into buckets. Nor does the leaf, where it is the worst of several.
    Steps with NaN that are left out are another finding than those with which a run ends.
    """
    where = {"nonfinite": finding.severity, "exploding": "", "imbalance": frozenset(finding.leaves)}.get(
        finding.kind, finding.path
    )
    return finding.kind, finding.source, where
