"""What the numbers of a history mean: which gradients went wrong, since when, and what to try."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from treeviz.steps.findings import clipping, counts, norms, spikes
from treeviz.steps.findings.finding import Finding, Rank, Thresholds
from treeviz.steps.names import kind_of, sibling_name
from treeviz.steps.recording.history import History

Check = Callable[[History, str, Thresholds], Iterator[Finding]]

# For each kind, the function that yields the findings of one source; `findings` itself handles "nonfinite".
CHECKS: dict[str, Check] = {
    "exploding": norms.exploding,
    "dead": counts.dead,
    "frozen": counts.frozen,
    "vanishing": norms.vanishing,
    "imbalance": norms.imbalance,
    "spike": spikes.spikes,
    "ratio": norms.ratio,
    "underflow": counts.underflow,
    "clipping": clipping.clipping,
}


def check_kinds(kinds: str | Collection[str], where: str) -> frozenset[str]:
    """The kinds of findings as a set; a string is one kind.

    Args:
      where: The argument that they were given as, for the error.

    Raises:
      ValueError: A kind is not known.
    """
    kinds = frozenset([kinds] if isinstance(kinds, str) else kinds)
    known = ("nonfinite", *CHECKS)
    if not kinds <= set(known):
        unknown = ", ".join(sorted(repr(kind) for kind in kinds if kind not in known))
        raise ValueError(f"{where}: there is no kind of finding {unknown}; there are {', '.join(map(repr, known))}.")
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

    The order is that of `Rank`: numbers that are NaN or infinite, the earliest first; a whole tree that explodes,
    or whose gradients or updates are all zero; leaves that are dead, frozen or vanish, and numbers that underflow; what
    is unusual; and clipping, which is a choice. Of two with the same rank, the one that is further beyond its
    threshold comes first. Takes some milliseconds for a hundred leaves.

    Args:
      thresholds: The limits; `Thresholds()` by default.
      kinds: Search for these only; by default for all.
      forward: Paths of leaves in the order in which the model uses them, for all sources or by source name. By default
        the order of the leaves, with the numbers in their paths in numeric order.

    Raises:
      ValueError: A kind is not known.
    """
    thresholds = thresholds or Thresholds()
    kinds = None if kinds is None else check_kinds(kinds, "findings")
    found: list[Finding] = []
    for name in history.sources:
        if kinds is None or "nonfinite" in kinds:
            found.extend(
                counts.nonfinite(history, name, forward.get(name) if isinstance(forward, Mapping) else forward)
            )
    struck = {finding.source: finding.first for finding in found}
    found = [
        finding  # NaN in gradients spreads to parameters and updates
        for finding in found
        if kind_of(finding.source) not in ("params", "updates")
        or struck.get(sibling_name(finding.source, "grads"), finding.first + 1) > finding.first
    ]
    for kind, check in CHECKS.items():
        if kinds is None or kind in kinds:
            for name in history.sources:
                found.extend(check(history, name, thresholds))
    return sorted(found, key=_weight)


def _weight(finding: Finding) -> tuple[int, int, float, int]:
    """A sort key: less is worse. Ties keep the order of sources and leaves."""
    if finding.rank == Rank.NOT_FINITE:
        return 0, finding.first, 0.0, 0
    return finding.rank, 0, -finding.times, 0 if finding.leaf < 0 else 1
