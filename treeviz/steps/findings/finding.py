"""Findings, their rank, and the thresholds beyond which numbers become findings."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

SCALARS = "scalars"  # the source of findings about what the user records


class Rank(IntEnum):
    """The order of findings: the worst is least."""

    NOT_FINITE = 0  # numbers are lost
    TRAINING_ENDS = 1  # the whole tree explodes, or learns nothing
    LEAF_ENDS = 2  # the same for some leaves
    UNUSUAL = 3
    CHOICE = 4  # a setting that may be intended
    INFORMATION = 5  # nothing is wrong


@dataclass(frozen=True)
class Finding:
    """Something that is wrong in a run, or may be.

        for finding in inspector.findings:
            print(finding.kind, finding.path, finding.first, finding.sentence)

    Attributes:
      kind: "nonfinite", "exploding", "result", "vanishing", "dead", "frozen", "spike", "imbalance", "ratio",
        "underflow", "clipping", "redundant".
      source: Which tree: "grads", "updates", "loss result"; "scalars" for those of `record_scalars`.
      path: The key path of the leaf, where several are concerned the cause or the worst; "" is the whole tree. The name
        of a scalar.
      leaf: Its number among the leaves, in JAX's order; -1 is the whole tree.
      first, until: The first and the last step that it covers.
      numbers: The evidence, by name.
      sentence: What happened.
      advice: What to try.
      leaves: The leaves concerned, the cause or the worst first; may be empty.
      times: How far beyond its threshold it is, as a factor.
      rank: `findings` sorts by it.
      severity: "error", "warning", or "info" where nothing is wrong; views take the color of a finding from it.
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
    rank: Rank = Rank.UNUSUAL
    severity: Literal["error", "warning", "info"] = "warning"

    def __str__(self) -> str:
        return f"{self.kind}: {self.sentence} {self.advice}"


@dataclass(frozen=True)
class Thresholds:
    """The limits beyond which numbers become findings. With the defaults, ordinary runs have none.

        tv.GradientInspector(thresholds=tv.Thresholds(exploding=1000.0))

    Attributes:
      fewest_steps: The fewest steps for a finding; "nonfinite" needs one.
      exploding: The factor by which the norm stays above its earlier median. R. Pascanu, T. Mikolov and Y. Bengio ("On
        the difficulty of training recurrent neural networks", ICML 2013) clip at half to ten times the average norm;
        the default is ten times that.
      vanishing: The root mean square of a leaf's gradient, relative to the median of all leaves. X. Glorot and
        Y. Bengio ("Understanding the difficulty of training deep feedforward neural networks", AISTATS 2010) aim at
        equal variances of gradients in all layers; sparse embeddings and scales stay well above the default.
      imbalance: The factor between the gradients of leaves that differ only in the number of their layer: from the
        first to the last, if they fall or grow gradually, or between one and the median of the others.
      dead_after: The number of zero steps after which a leaf with earlier gradients is dead, at least ten times its
        longest pause.
      spike, spike_deviations: The factor of a norm to the medians of the 50 and of the 8 steps before, and its
        distance from the first one in log10, in median absolute deviations: P. J. Rousseeuw and C. Croux, "Alternatives
        to the Median Absolute Deviation", JASA 1993.
      loss_spike: The same factor for a loss of `record_scalars`; of one that may be negative, its excess over 1 is that
        over the median of magnitudes.
      ratio_low, ratio_high: The limits of the norm of the updates divided by that of the parameters. A. Karpathy
        (CS231n, "Neural Networks Part 3", 2015) recommends about 1e-3; the defaults are a factor of 100 away.
      ratio_size: The fewest elements of a leaf whose ratio is checked, since biases begin as zeros.
      underflow: The part of the nonzero numbers below the smallest normal number of the dtype. P. Micikevicius et al.,
        "Mixed Precision Training", ICLR 2018, found 31 % of a network's activation gradients below what float16 can
        hold.
      clipping: The part of the steps in which clipping changes the gradients. A bound that always acts only rescales
        the learning rate.
    """

    fewest_steps: int = 20
    exploding: float = 100.0
    vanishing: float = 1e-5
    imbalance: float = 1000.0
    dead_after: int = 50
    spike: float = 10.0
    spike_deviations: float = 8.0
    loss_spike: float = 1.5
    ratio_low: float = 1e-5
    ratio_high: float = 1e-1
    ratio_size: int = 1024
    underflow: float = 0.05
    clipping: float = 0.95
