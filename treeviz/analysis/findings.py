"""What the numbers of a history mean: which gradients went wrong, since when, and what to try."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from treeviz.analysis.history import History
from treeviz.analysis.source_names import beside, kind_of


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, or may be.

    Attributes:
      kind: "nonfinite", "exploding", "vanishing", "dead", "frozen", "spike", "imbalance", "ratio", "underflow",
        "clipping".
      source: Which tree: "grads", "updates".
      path: The key path of the leaf; "" is the whole tree.
      leaf: Its number among the leaves; -1 is the whole tree.
      first, until: The first and the last step of which this is said.
      numbers: What it rests on, by name.
      sentence: What happened, for people.
      advice: What to try.
      leaves: All leaves that it speaks of, e.g. those to which a NaN spread.
      times: How many times worse it is than what would just be worth a word.
    """

    kind: str
    source: str
    path: str
    leaf: int
    first: int
    until: int
    numbers: tuple[tuple[str, float], ...]
    sentence: str
    advice: str
    leaves: tuple[int, ...] = ()
    times: float = 1.0

    def __str__(self) -> str:
        return f"{self.kind}: {self.sentence} {self.advice}"


@dataclass(frozen=True)
class Thresholds:
    """From where on something is worth a word. The defaults leave ordinary runs in peace.

    Attributes:
      fewest_steps: Before so many steps nothing is said but of what is not finite.
      exploding: The norm stays so many times above its median until then. R. Pascanu, T. Mikolov and Y. Bengio ("On the
        difficulty of training recurrent neural networks", ICML 2013) clip at half to ten times the average norm: ten
        times that is no fluctuation.
      vanishing: The root mean square of a leaf's gradient is so small a part of the leaves' median. X. Glorot and
        Y. Bengio ("Understanding the difficulty of training deep feedforward neural networks", AISTATS 2010) want the
        variance of gradients to be the same in all layers; sparse embeddings and scales stay well above the default.
      imbalance: Leaves that differ only in the number of their layer have gradients that differ by such a factor.
      dead_after: A leaf whose gradient was not zero before is dead after so many steps of zeros, and ten times its
        longest pause.
      spike, spike_deviations: A norm is so many times the median of the steps before, and so many deviations above it,
        as log10 and by the median absolute deviation: P. J. Rousseeuw and C. Croux, "Alternatives to the Median
        Absolute Deviation", JASA 1993.
      ratio_low, ratio_high: The norm of the updates by that of the parameters, which A. Karpathy (CS231n, "Neural
        Networks Part 3", 2015) wants to be somewhere around 1e-3; two powers of ten are left on each side.
      ratio_size: Smaller leaves are not judged by their ratio: biases begin as zeros.
      underflow: So large a part of the numbers that are not zero is below the smallest normal number of the dtype.
        P. Micikevicius et al., "Mixed Precision Training", ICLR 2018, found 31 % of a network's activation gradients
        below what float16 can hold.
      clipping: Clipping changes the gradients in so large a part of the steps: a bound that always acts is a learning
        rate.
    """

    fewest_steps: int = 20
    exploding: float = 100.0
    vanishing: float = 1e-5
    imbalance: float = 1000.0
    dead_after: int = 50
    spike: float = 10.0
    spike_deviations: float = 8.0
    ratio_low: float = 1e-5
    ratio_high: float = 1e-1
    ratio_size: int = 1024
    underflow: float = 0.05
    clipping: float = 0.95


_WEIGHTS = {
    "exploding": 1,
    "dead": 2,
    "frozen": 2,
    "vanishing": 2,
    "underflow": 2,
    "spike": 3,
    "ratio": 3,
    "imbalance": 3,
    "clipping": 4,
}

Check = Callable[[History, str, Thresholds], Iterator[Finding]]


def findings(
    history: History,
    *,
    thresholds: Thresholds | None = None,
    kinds: Sequence[str] | None = None,
    forward: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
) -> list[Finding]:
    """What is wrong in a history, the worst first.

    First comes what is not finite, the earliest before all. Then what ends or stops the training of the whole tree: a
    norm that explodes, or gradients or updates that are all zero. Then leaves that are dead, frozen or vanish, and
    numbers that underflow; then what is unusual; and clipping, which is a choice. Of two that weigh the same, the one
    that is further beyond its threshold comes first.

    Args:
      thresholds: From where on something is worth a word; `Thresholds()` by default.
      kinds: Only these.
      forward: Paths of leaves in the order in which the model uses them, if it is known, for all sources or by their
        names. Otherwise it is taken to be that of the leaves, with the numbers in their paths in numeric order.
    """
    from treeviz.analysis import finding_checks, finding_clipping, finding_levels, finding_spikes

    thresholds = thresholds or Thresholds()
    found: list[Finding] = []
    for name in history.sources:
        if kinds is None or "nonfinite" in kinds:
            found.extend(
                finding_checks.nonfinite(history, name, forward.get(name) if isinstance(forward, Mapping) else forward)
            )
    struck = {finding.source: finding.first for finding in found}
    found = [
        finding  # parameters and updates are struck by their gradients
        for finding in found
        if kind_of(finding.source) not in ("params", "updates")
        or struck.get(beside(finding.source, "grads"), finding.first + 1) > finding.first
    ]
    checks: dict[str, Check] = {
        "exploding": finding_levels.exploding,
        "dead": finding_checks.dead,
        "frozen": finding_checks.frozen,
        "vanishing": finding_levels.vanishing,
        "imbalance": finding_levels.imbalance,
        "spike": finding_spikes.spikes,
        "ratio": finding_levels.ratio,
        "underflow": finding_checks.underflow,
        "clipping": finding_clipping.clipping,
    }
    for kind, check in checks.items():
        if kinds is None or kind in kinds:
            for name in history.sources:
                found.extend(check(history, name, thresholds))
    return sorted(found, key=_weight)


def _weight(finding: Finding) -> tuple[int, int, float, int]:
    """Less for what is worse. Sorting by it leaves the sources and the leaves in their order."""
    if finding.kind == "nonfinite":
        return 0, finding.first, 0.0, 0
    is_whole = finding.leaf < 0
    level = 1 if is_whole and finding.kind in ("dead", "frozen") else _WEIGHTS[finding.kind]
    return level, 0, -finding.times, 0 if is_whole else 1
