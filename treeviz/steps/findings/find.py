"""What the numbers of a history mean: which gradients went wrong, since when, and what to try."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from treeviz.steps.findings import clipping, counts, dead, norms, results, spikes
from treeviz.steps.findings.finding import SCALARS, Finding, Rank, Thresholds
from treeviz.steps.findings.scalars import scalar_findings, with_batch
from treeviz.steps.findings.searched import Searched
from treeviz.steps.names import is_beside, kind_of, natural, result_kind, sibling_name
from treeviz.steps.recording.history import History

Check = Callable[[Searched], Iterator[Finding]]

# For each kind, the function that yields the findings of one source.
CHECKS: dict[str, Check] = {
    "nonfinite": results.nonfinite,
    "exploding": norms.exploding,
    "result": results.other_results,
    "dead": dead.dead,
    "frozen": results.frozen,
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
