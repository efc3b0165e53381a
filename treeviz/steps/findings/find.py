"""What the numbers of a history mean: which gradients went wrong, since when, and what to try."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from treeviz.steps.findings import dead, norms
from treeviz.steps.findings import nonfinite as counts
from treeviz.steps.findings import nonfinite as results
from treeviz.steps.findings import norms as clipping
from treeviz.steps.findings import norms as spikes
from treeviz.steps.findings.finding import SCALARS, Finding, Rank, Searched, Thresholds
from treeviz.steps.findings.nonfinite import scalar_findings, with_batch
from treeviz.steps.recording.history import History
from treeviz.steps.statistics import StopTraining, is_beside, kind_of, natural, result_kind, sibling_name

Check = Callable[[Searched], Iterator[Finding]]

# For each kind, the function that yields the findings of one source.
CHECKS: dict[str, Check] = {
    "nonfinite": results.nonfinite_results,
    "exploding": norms.exploding,
    "result": results.other_results,
    "dead": dead.dead,
    "frozen": results.frozen_results,
    "vanishing": norms.vanishing,
    "imbalance": norms.imbalance,
    "spike": spikes.spikes,
    "ratio": norms.ratio,
    "underflow": counts.underflow,
    "clipping": clipping.clipping,
    "redundant": norms.redundant,
}
_CAUSES = ("nonfinite", "exploding")  # of other findings


def check_kinds(kinds: str | Collection[str], where: str) -> frozenset[str]:
    """The kinds of findings as a set; a string is one kind.

    Args:
      where: The argument that they were given as, for the error.

    Raises:
      ValueError: A kind is not known.
    """
    kinds = frozenset([kinds] if isinstance(kinds, str) else kinds)
    if not kinds <= CHECKS.keys():
        unknown = ", ".join(sorted(repr(kind) for kind in kinds if kind not in CHECKS))
        raise ValueError(f"{where}: there is no kind of finding {unknown}; there are {', '.join(map(repr, CHECKS))}.")
    return kinds


def findings(
    history: History,
    *,
    thresholds: Thresholds | None = None,
    kinds: str | Collection[str] | None = None,
    forward: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
) -> list[Finding]:
    """What is wrong in a history, the worst first.

        findings(inspector.history)[0].sentence

    Leaves that went wrong of one cause are one finding, with the leaf where the backward pass met it first; what a NaN
    or an explosion brings about is not told again. Of the results of a watched step, a loss or a parameter that is not
    finite is "nonfinite", any other is "result". The order is that of `Rank`: numbers that are NaN or infinite, the
    earliest first; a whole tree that explodes or leaps, or whose gradients or updates are all zero, likewise; leaves
    that are dead, frozen or vanish, and numbers that underflow; what is unusual; clipping, which is a choice; and what
    is no fault. Of two with the same rank, the one that is further beyond its threshold comes first. Takes some
    milliseconds for a hundred leaves.

    Args:
      thresholds: The limits; `Thresholds()` by default.
      kinds: Search for these only; by default for all.
      forward: Paths of leaves in the order in which the model uses them, for all sources or by source name. By default
        that which the history knows of a watched step, or else the order of the leaves, with the numbers in their paths
        in numeric order.

    Raises:
      ValueError: A kind is not known.
    """
    thresholds = thresholds or Thresholds()
    names = sorted(history.sources, key=lambda name: natural(name) if "#" in name else [])  # "grads #2" before "#10"
    forward = history.forward if forward is None else forward
    forward_of = forward if isinstance(forward, Mapping) else dict.fromkeys(names, forward)
    trees = [Searched(history, name, thresholds, forward_of.get(name)) for name in names]
    wanted = frozenset(CHECKS) if kinds is None else check_kinds(kinds, "findings")
    checks = [check for kind, check in CHECKS.items() if kind in wanted or kind in _CAUSES]
    found = [finding for check in checks for tree in trees for finding in check(tree)]
    found += scalar_findings(history, thresholds)
    causes = [finding for finding in found if finding.kind in _CAUSES]
    told = [x for x in found if x.kind in wanted and not any(_follows(x, cause) for cause in causes)]
    told = [with_batch(x, history) for x in told]
    of_gradients = {_what(x, history) for x in told if kind_of(x.source) == "grads"}
    return sorted((x for x in told if kind_of(x.source) or _what(x, history) not in of_gradients), key=_weight)


def _what(finding: Finding, history: History) -> tuple:
    """Equal for gradients and for the same that were tapped, such as after clipping."""
    size = None if finding.source == SCALARS else sum(history.sources[finding.source].sizes)
    return finding.kind, finding.path, finding.first, size


def _follows(finding: Finding, cause: Finding) -> bool:
    """Whether the cause brings the finding about: NaN that stay what comes after them, an explosion the jumps."""
    if SCALARS in (finding.source, cause.source):  # a loss is what comes out, never a cause
        is_spread = cause.kind == "nonfinite" and cause.source != SCALARS and finding.kind != "spike"
        is_spread &= cause.severity != "info"
        return is_spread and cause.first <= finding.first
    if cause.kind == "exploding":
        return finding.kind == "spike" and finding.source == cause.source and finding.until >= cause.first
    grads = sibling_name(finding.source, "grads")
    if cause.severity == "info":  # steps that were left out
        return finding.kind == "nonfinite" and is_beside(finding.source) and cause.source == grads
    if finding.kind == "result" or (result_kind(finding.source) and not result_kind(cause.source)):
        return cause.first <= finding.first
    if finding.kind == "nonfinite" and result_kind(cause.source):
        # NaN in parameters spread to all that comes after; where a run diverged, its loss is beyond all numbers first.
        is_spread = result_kind(cause.source) == "parameter" or counts.GROWN in dict(cause.numbers)
        return is_spread and cause.first < finding.first
    if finding.kind == "nonfinite":  # NaN in gradients spreads to parameters and updates
        is_spread = is_beside(finding.source) and cause.source == grads
        return is_spread and cause.first <= finding.first
    return sibling_name(cause.source, "grads") == grads and cause.first <= finding.first <= finding.until <= cause.until


def _weight(finding: Finding) -> tuple[int, int, float, int]:
    """A sort key: less is worse. Ties keep the order of sources and leaves."""
    if finding.rank <= Rank.TRAINING_ENDS:
        return finding.rank, finding.first, -finding.times, 0
    return finding.rank, 0, -finding.times, 0 if finding.leaf < 0 else 1


# Report findings while a run goes on, and end the run.

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
