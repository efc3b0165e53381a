"""What was measured of the parameters beside a step, of which a history gets what a finding needs."""

from __future__ import annotations

from collections.abc import Callable

from treeviz.steps.findings.find import findings
from treeviz.steps.findings.finding import Finding, Thresholds
from treeviz.steps.names import section_of
from treeviz.steps.recording.decode import Arrived, ReadSteps, read
from treeviz.steps.recording.history import History

_KINDS = ("frozen", "ratio", "underflow")


class Looked:
    """Keeps what was measured beside a step, some numbers a leaf, until it holds a finding; then it is recorded.

    So a healthy run has no rare numbers in its views, and takes no memory for them.

    Args:
      record: Puts a measurement into the history.
    """

    def __init__(self, record: Callable[[Arrived], None], thresholds: Thresholds) -> None:
        self._record, self._thresholds = record, thresholds
        self.clear()

    def clear(self) -> None:
        """Begin a run."""
        self._kept: dict[str, list[Arrived]] = {}  # by suffix
        self._searched: dict[str, int] = {}  # how many of them
        self._told: set[str] = set()
        self._explained = (0, 0)  # how many looks and steps

    def take(self, arrived: Arrived) -> None:
        """Take in what was measured beside a step, and search what came before."""
        self.search()
        if arrived.suffix in self._told:
            self._record(arrived)
        else:
            self._kept.setdefault(arrived.suffix, []).append(arrived)

    def search(self, *, wait: bool = False) -> None:
        """Record what holds a finding.

        Args:
          wait: Search also what is not computed yet.
        """
        for suffix, kept in [*self._kept.items()]:
            if len(kept) == self._searched.get(suffix) or not (wait or all(each.is_ready() for each in kept)):
                continue
            self._searched[suffix] = len(kept)
            if self._has_finding(kept):
                self._tell(suffix)

    def explain(self, history: History) -> bool:
        """Record what explains the dead layers of a history. Returns whether there is such."""
        of = sum(map(len, self._kept.values())), len(history)
        if of == self._explained or not self._kept or not _has_zeros(history):
            return False
        self._explained = of
        dead = findings(history, thresholds=self._thresholds, kinds="dead")
        return sum(map(self.explains, dead)) > 0

    def explains(self, finding: Finding) -> bool:
        """Record what tells which of several dead layers is the cause: whether the biases of the others are zero.

        Returns whether something was recorded, so that the finding may be another one once that is read.
        """
        if finding.kind != "dead" or finding.severity == "info" or len(finding.leaves) < 2:
            return False
        name = section_of(finding.source)[0]
        explaining = [suffix for suffix in self._kept if name.endswith(suffix)]
        for suffix in explaining:
            self._tell(suffix)
        return bool(explaining)

    def _tell(self, suffix: str) -> None:
        self._told.add(suffix)
        for each in self._kept.pop(suffix):
            self._record(each)

    def _has_finding(self, kept: list[Arrived]) -> bool:
        found = [steps for each in kept for steps in _read(each)]
        if not found:
            return False
        history = History(found[0].sources, 1 << 20)
        for each in found:
            if each.sources == found[0].sources:
                history.extend(each.steps, each.numbers)
        return bool(findings(history, thresholds=self._thresholds, kinds=_KINDS))


def _has_zeros(history: History) -> bool:
    """Whether the gradient of a leaf was zero when it was measured last."""
    norms = [track.latest() for (_, statistic), track in history.tracks.items() if statistic == "norm"]
    return any((found[1] == 0).any() for found in norms if found is not None)


def _read(arrived: Arrived) -> list[ReadSteps]:
    """Its numbers; none if the step failed, or the parameters could not be read."""
    try:
        return list(read([arrived]))
    except RuntimeError:
        return []
