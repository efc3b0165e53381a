"""Search a history for findings, once or during a run: all checks, and the findings that follow from others."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from treeviz.steps.findings import activations, dead, nonfinite, norms
from treeviz.steps.findings.finding import SCALARS, Finding, Rank, Searched, Thresholds, digits_text
from treeviz.steps.findings.nonfinite import scalar_findings, with_batch
from treeviz.steps.recording.history import History
from treeviz.steps.statistics import ROLES, StopTraining, is_beside, kind_of, natural, result_kind, sibling_name

Check = Callable[[Searched], Iterator[Finding]]

# For each kind, the functions that yield the findings of one source.
CHECKS: dict[str, Sequence[Check]] = {
    "nonfinite": (nonfinite.nonfinite_results, activations.nonfinite),
    "exploding": (norms.exploding,),
    "result": (nonfinite.other_results,),
    "drift": (nonfinite.drifting,),
    "dead": (dead.dead, activations.dead),
    "frozen": (nonfinite.frozen_results,),
    "vanishing": (norms.vanishing,),
    "imbalance": (norms.imbalance,),
    "spike": (norms.spikes,),
    "ratio": (norms.ratio,),
    "underflow": (nonfinite.underflow,),
    "clipping": (norms.clipping,),
    "redundant": (norms.redundant,),
    "collapsed": (activations.collapsed,),
    "saturated": (activations.saturated,),
    "signal": (activations.signal,),
    "unread": (activations.unread,),
}
_CAUSES = ("nonfinite", "exploding")  # of other findings
_SOON = 25  # steps from a jump of the updates to what follows from it, or from zeros to NaN of one cause
_FEW = 5  # steps of one event


def check_kinds(kinds: str | Collection[str], where: str) -> frozenset[str]:
    """The kinds of findings as a set; a string is one kind. `where` is the name of the argument, for the error."""
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
    """The problems in a history, the worst first.

    Leaves that fail for one cause are one finding, with the leaf that the backward pass reaches first. Consequences of
    a NaN or an explosion are not reported again. In the results of a watched step, a non-finite loss or parameter is
    "nonfinite"; any other result is "result".

    Findings are sorted by `Rank`: first NaN and infinity, then a whole tree that explodes, leaps or is all zero, both
    the earliest first; then leaves that are dead, frozen, vanishing or underflowing; then the unusual; then clipping;
    then information. Within a rank, the finding furthest beyond its threshold comes first. Takes some milliseconds for
    a hundred leaves.

    Args:
      forward: Paths of leaves in the order in which the model uses them, for all sources or by source name. By default
        the order known from the watched step, or else the order of the paths, with numbers sorted numerically.
    """
    thresholds = thresholds or Thresholds()
    names = sorted(history.sources, key=lambda name: natural(name) if "#" in name else "")  # "grads #2" before "#10"
    forward = history.forward if forward is None else forward
    forward_of = forward if isinstance(forward, Mapping) else dict.fromkeys(names, forward)
    trees = [Searched(history, name, thresholds, forward_of.get(name)) for name in names]
    wanted = frozenset(CHECKS) if kinds is None else check_kinds(kinds, "findings")
    checks = [check for kind, checks in CHECKS.items() if kind in wanted or kind in _CAUSES for check in checks]
    all_findings = [finding for check in checks for tree in trees for finding in check(tree)]
    all_findings += scalar_findings(history, thresholds)
    causes = [item for item in all_findings if item.kind in _CAUSES or norms.JUMP in dict(item.numbers)]
    apart = {id(item): history.numbering(item.source, item.path).apart for item in all_findings}
    reported = [
        item
        for item in all_findings
        if item.kind in wanted and not any(_is_caused_by(item, cause, apart[id(cause)]) for cause in causes)
    ]
    without_gradient = [item for item in reported if item.kind == "dead" and kind_of(item.source) == "grads"]

    def is_named(item: Finding) -> bool:
        """Whether units are dead whose reader has no gradient either: that finding names them."""
        grads = sibling_name(item.source, "grads")
        is_of_inputs = item.kind == "dead" and kind_of(item.source) == "inputs"
        return is_of_inputs and any(
            grads == x.source and (item.leaf in x.leaves or not x.leaves) for x in without_gradient
        )

    reported = _joined_spikes([item for item in reported if not is_named(item)], apart)
    gradient_identities = {_identity(item, history) for item in reported if kind_of(item.source) == "grads"}
    found = []
    for item in sorted(reported, key=_sort_key):
        if kind_of(item.source) or _identity(item, history) not in gradient_identities:
            # The checks compare positions of steps.
            split = history.numbering(item.source, item.path).split
            (first, first_inner), (until, until_inner) = split(item.first), split(item.until)
            item = replace(item, first=first, until=until, first_inner=first_inner, until_inner=until_inner)
            found.append(with_batch(item, history))
    return found


def _identity(finding: Finding, history: History) -> tuple:
    """Equal for findings about gradients and about the same gradients in a tap, such as after clipping."""
    size = None if finding.source == SCALARS else sum(history.sources[finding.source].sizes)
    return finding.kind, finding.path, finding.first, size


def _is_caused_by(finding: Finding, cause: Finding, apart: int) -> bool:
    """Whether `cause`, whose steps are `apart`, explains the finding: NaN all that follows, others explain spikes."""
    if cause.kind == "ratio":  # a learning rate that jumped
        return finding.kind == "spike" and 0 <= finding.first - cause.first <= _SOON * apart
    if SCALARS in (finding.source, cause.source):  # a recorded loss is an effect, never a cause
        is_spread = cause.kind == "nonfinite" and cause.source != SCALARS and finding.kind != "spike"
        is_spread &= cause.severity != "info"
        return is_spread and cause.first <= finding.first
    if cause.kind == "exploding":
        return finding.kind == "spike" and finding.source == cause.source and finding.until >= cause.first
    grads = sibling_name(finding.source, "grads")
    if finding.kind == cause.kind == "nonfinite" and {kind_of(finding.source), kind_of(cause.source)} & {*ROLES}:
        return kind_of(finding.source) not in ROLES and cause.first <= finding.first  # the forward pass comes first
    if cause.severity == "info":  # steps that the optimizer skipped
        return finding.kind == "nonfinite" and is_beside(finding.source) and cause.source == grads
    if finding.kind == "dead" and finding.severity != "info" and cause.kind == "nonfinite":
        # NaN becomes zero in a where or a ReLU, and zeros divided by zeros become NaN.
        return cause.first - _SOON * apart <= finding.first and finding.until <= cause.until + _SOON * apart
    if finding.kind == "result" or (result_kind(finding.source) and not result_kind(cause.source)):
        return cause.first <= finding.first
    if finding.kind == "nonfinite" and result_kind(cause.source):
        # NaN in parameters spreads to everything after it; in a run that diverges, the loss overflows first.
        is_spread = result_kind(cause.source) == "parameter" or nonfinite.GROWN in dict(cause.numbers)
        return is_spread and cause.first < finding.first
    if finding.kind == "nonfinite":  # NaN in gradients spreads to parameters and updates, and from these to all later
        is_of_gradients = cause.source == grads and is_beside(finding.source)
        is_received = cause.source == sibling_name(grads, "received")
        return cause.first <= finding.first if is_of_gradients else is_received and cause.first < finding.first
    return sibling_name(cause.source, "grads") == grads and cause.first <= finding.first <= finding.until <= cause.until


def _joined_spikes(found: list[Finding], apart: Mapping[int, int]) -> list[Finding]:
    """The findings, with one spike for each event: that of gradients, which says what else jumped with it."""
    spikes = [item for item in found if item.kind == "spike"]
    spikes.sort(key=lambda item: (kind_of(item.source) != "grads", -item.times))
    mains: list[Finding] = []
    spans: list[tuple[int, int]] = []  # where others must begin to belong to it: with it, or within its few steps
    for item in spikes:
        distance, is_scalar = apart[id(item)], item.source == SCALARS
        same = (i for i, (first, until) in enumerate(spans) if first <= item.first <= until + distance)
        if (i := next(same, None)) is None:
            is_short = item.until - item.first <= _FEW * distance
            spans.append((item.first - distance, item.until if is_short else item.first))
            mains.append(item)
        else:
            value = digits_text(dict(item.numbers)["value" if is_scalar else "norm"])
            also = f"The {item.path if is_scalar else f'norm of {item.source}{item.path}'} jumped to {value}, too."
            mains[i] = replace(mains[i], sentence=f"{mains[i].sentence} {also}")
    return [item for item in found if item.kind != "spike"] + mains


def _sort_key(finding: Finding) -> tuple[int, int, float, int]:
    """A sort key, the worst first. Ties keep the order of sources and leaves."""
    if finding.rank <= Rank.TRAINING_ENDS:
        return finding.rank, finding.first, -finding.times, 0
    return finding.rank, 0, -finding.times, 0 if finding.leaf < 0 else 1


# Reporting findings during a run, and stopping the run.

_SHARE = 0.02  # the fraction of the time that a run spends on the search


class Alarm:
    """The `alarm` of a `Recorder`, which searches for findings after its reads; `raise_on` are kinds that stop the run.

    Searches at once on a flush and when a source has its first NaN or infinity outside skipped steps. Otherwise the
    search uses at most 2 % of the time.
    """

    def __init__(
        self,
        thresholds: Thresholds,
        *,
        on_finding: Callable[[Finding], None] | None = None,
        raise_on: Collection[str] = (),
    ) -> None:
        self._thresholds, self._on_finding, self._raise_on = thresholds, on_finding, frozenset(raise_on)
        # Whether the next read will complete a finding, which is not reported before.
        self.awaits: Callable[[Finding], bool] = lambda finding: False
        self.begin()

    def begin(self) -> None:
        self._reported_until: dict[tuple, int] = {}  # the last reported step, by what stays the same of a finding
        self._open_keys: set[tuple] = set()  # keys of the findings of the last search
        self._bad_sources: set[str] = set()
        self._skipped_sources: set[str] = set()  # sources whose NaN occurred only in skipped steps
        self._search_again = 0.0

    def postpone(self) -> None:
        """Make the next `was_read` search at once, after a read that must not raise."""
        self._search_again = 0.0

    def was_read(self, history: History, bad_sources: set[str], *, is_flush: bool) -> bool:
        """Report new findings; may raise `StopTraining`. Returns whether it searched and no finding is awaited."""
        is_worse = not bad_sources <= self._bad_sources
        is_due = is_flush or is_worse or time.monotonic() >= self._search_again
        is_complete = is_due and self._search(history)
        self._bad_sources = (self._bad_sources | bad_sources) - self._skipped_sources
        return is_complete

    def _search(self, history: History) -> bool:
        """Report new findings. Returns whether none is awaited."""
        started_s = time.monotonic()
        kinds = None if self._on_finding else sorted(self._raise_on)
        found = findings(history, thresholds=self._thresholds, kinds=kinds)
        self._skipped_sources = {finding.source for finding in found if _is_skipped_step(finding)}
        n_found, found = len(found), [finding for finding in found if not self.awaits(finding)]
        ended_s = time.monotonic()
        self._search_again = ended_s + (ended_s - started_s) / _SHARE
        open_before, self._open_keys = self._open_keys, set()
        for finding in sorted(found, key=lambda finding: finding.first if finding.kind == "spike" else -1):
            # The first step may move when steps are merged into buckets, and the worst of several leaves may change.
            # Skipped steps with NaN are a different finding than NaN that persists.
            places = {"nonfinite": finding.severity, "exploding": "", "imbalance": frozenset(finding.leaves)}
            key = finding.kind, finding.source, places.get(finding.kind, finding.path)
            reported_until = self._reported_until.get(key, finding.first - 1)
            is_same = key in open_before and finding.kind != "spike"  # each bad batch is a finding of its own
            is_reported = is_same or finding.first <= reported_until
            self._open_keys.add(key)
            self._reported_until[key] = max(finding.until, reported_until)
            if is_reported:
                continue
            if self._on_finding is not None:
                self._on_finding(finding)
            if finding.kind in self._raise_on and not _is_skipped_step(finding):
                raise StopTraining(str(finding))
        return len(found) == n_found


def _is_skipped_step(finding: Finding) -> bool:
    return finding.kind == "nonfinite" and finding.severity == "info"
