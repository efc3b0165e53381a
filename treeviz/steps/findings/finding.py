"""Findings, their rank, and the thresholds beyond which numbers become findings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np

from treeviz.steps.measure import MeasuredTree
from treeviz.steps.recording.history import History, Timeline
from treeviz.steps.statistics import is_beside, layer_by_layer, natural, result_kind, rms_of, wholes
from treeviz.tree.runtime import computed_once
from treeviz.tree.text import number_text

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


# A measured tree that is searched for findings: its norms, its layers, and the order in which the model uses them.

RECENT = 5  # entries
FEWEST_LOOKS = 3  # steps, of what is not measured in each
_LAST_KEY = re.compile(r"(\['(?:[^'\\]|\\.)*'\]|\[[^\[\]]*\]|\.[^.\[\]]+)$")
_BLOCK = re.compile(r"(?<=\w)\[[0-9]+(,[0-9]+)+\]( .*)?(?='\]$)")  # of a weight: "w[4,4] 8x2o,8x2o"
_BOX = re.compile(r"\.(raw_)?value$")  # of a Variable of NNX, of a parameter of Linen with names of its axes
# Equinox' StateIndex, and the statistics of normalisations
_STATE = re.compile(r"index\.init\b|\b(running|moving)_(mean|var|variance)\b|\bbatch_stats\b")
_ROUNDING = 1e-2  # of the other leaves, and of those of its layer: both, since inputs may be large


@dataclass(frozen=True)
class Searched:
    """One measured tree of a history.

    Attributes:
      name: Of the tree: "grads".
      forward: The paths of its leaves in the order in which the model uses them; None: the order of their keys.
    """

    history: History
    name: str
    thresholds: Thresholds
    forward: Sequence[str] | None = None

    @property
    def is_gradient(self) -> bool:
        """Whether these may be gradients."""
        return not is_beside(self.name) and not result_kind(self.name)

    @property
    def source(self) -> MeasuredTree:
        return self.history.sources[self.name]

    @property
    def nouns(self) -> str:
        """What is measured, in the plural."""
        return "leaves and layers" if any(self.source.stacks) else "leaves"

    def path(self, leaf: int) -> str:
        return self.source.paths[leaf]

    @computed_once
    def norm(self) -> Timeline:
        return self.history.values(self.name, "norm")

    @computed_once
    def n_steps(self) -> int:
        return int(self.norm.n.sum())

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last step."""
        return int(self.norm.first[0]), int(self.norm.until[-1])

    @property
    def is_known_enough(self) -> bool:
        """Whether it was measured in `fewest_steps` steps, or in some that lie as far apart."""
        fewest = self.thresholds.fewest_steps
        is_spread = self.n_steps >= FEWEST_LOOKS and self.span[1] - self.span[0] >= fewest
        return self.n_steps >= fewest or is_spread

    @computed_once
    def is_trained(self) -> np.ndarray:
        """bool[leaves]: whether it has numbers, and is no state that is kept among the parameters."""
        is_state = [_STATE.search(path) is not None for path in self.source.paths]
        return np.array(self.source.has_number, bool) & ~np.array(is_state, bool)

    @computed_once
    def cut_off(self) -> np.ndarray:
        """bool[leaves]: whether the step itself shows that the gradient is zero."""
        return np.array(self.source.cut_off or (False,) * len(self.source.paths), bool)

    @computed_once
    def levels(self) -> np.ndarray:
        """float[k, 1 + leaves]: the norms over time, that of the whole tree first; k = 0 if there are too few steps."""
        if not self.is_gradient or self.n_steps < self.thresholds.fewest_steps or len(self.norm.n) < 2 * RECENT:
            return np.zeros((0, 1 + len(self.source.paths)))
        root = np.sqrt(np.nansum(self.norm.high**2, axis=1, keepdims=True))
        return np.concatenate([root, self.norm.high], axis=1)

    @computed_once
    def typical(self) -> np.ndarray:
        """float[leaves]: the median root mean square over time; NaN where too few are above zero."""
        typical = np.full(len(self.source.paths), np.nan)
        if len(self.levels):
            values = rms_of(np.where(self.levels[:, 1:] > 0, self.levels[:, 1:], np.nan), self.source.sizes)
            has = np.isfinite(values).sum(axis=0) >= 2 * RECENT
            typical[has] = np.nanmedian(values[:, has], axis=0)
        return typical

    @computed_once
    def redundant(self) -> np.ndarray:
        """bool[leaves]: whether the gradient is the rounding error of those of the same layer, and zero by mathematics.

        Where a layer gets no gradient, all its leaves are small; where a shift cancels, its bias alone is; and of a
        weight the blocks that the data do not feed.
        """
        typical, sizes = self.typical, self.source.sizes
        found = np.zeros(len(typical), bool)
        usual = np.median(typical[np.isfinite(typical)]) if np.isfinite(typical).any() else np.nan
        before: list[int] = []
        for layer in self.layers:
            for leaf in layer:
                larger = [other for other in layer if sizes[other] > sizes[leaf]]
                if len(layer) == 1:  # of a flat list: the leaf that is used before
                    larger = [other for other in before[-1:] if sizes[other] > sizes[leaf]]
                if larger:
                    least, most = sorted([typical[leaf] / usual, typical[leaf] / typical[larger].min()])
                    found[leaf] = least < self.thresholds.vanishing and most < _ROUNDING
            before = layer
        for blocks in self.blocks:
            found[blocks] |= typical[blocks] < self.thresholds.vanishing * np.nanmax(typical[blocks], initial=0.0)
        return found

    @computed_once
    def places(self) -> np.ndarray:
        """int[leaves]: the place of each leaf in the order in which the model uses them, as far as it is known."""
        paths, forward, has_stacks = self.source.paths, self.forward, any(self.source.stacks)
        if forward is None and not has_stacks:  # layer 2 comes before layer 10
            return np.argsort(sorted(range(len(paths)), key=lambda leaf: (natural(paths[leaf]), leaf)))
        if forward is None:
            forward = sorted((whole.path for whole in wholes(self.source)), key=natural)
        if has_stacks and not {*paths} >= {*forward}:  # a layer after the other, and one model of several
            forward = layer_by_layer(forward, self.source)
        places = {path: place for place, path in enumerate(forward)}
        return np.array([places.get(path, -1) for path in paths])

    @computed_once
    def keys(self) -> list[tuple[str, str, str]]:
        """The path of the parent of each leaf, its key, and its index where it is a layer of a stack."""
        stacks, found = self.source.stacks, []
        for leaf, path in enumerate(self.source.paths):
            index = _LAST_KEY.search(path) if stacks and stacks[leaf] else None
            path = _BOX.sub("", path[: index.start()] if index else path)
            last = _LAST_KEY.search(path)
            key = last[0] if last else path
            found.append((path.removesuffix(key), key, index[0] if index else ""))
        return found

    @computed_once
    def blocks(self) -> list[list[int]]:
        """The leaves that are blocks of one weight, by weight: those of "w[0,0] 8x0e,4x0e" and "w[1,1] 8x1o,4x1o"."""
        found: dict[tuple[str, str], list[int]] = {}
        for leaf, (parent, key, _) in enumerate(self.keys):
            if (name := _BLOCK.sub("", key)) != key:
                found.setdefault((parent, name), []).append(leaf)
        return [leaves for leaves in found.values() if len(leaves) > 1]

    def parts(self, struck: np.ndarray) -> np.ndarray:
        """bool[leaves]: which of the struck leaves are parts of a layer that learns, so that nothing is behind them.

        These are blocks of a weight of which others learn, and a leaf that is the only one struck in its layer, if what
        else learns there is more than its bias: a weight that is multiplied with zeros is the only one of its layer.
        """
        shapes, judged = self.source.shapes, self.is_trained & ~self.redundant & ~self.cut_off
        found = np.zeros(len(struck), bool)
        for blocks in self.blocks:
            found[blocks] = (judged & ~struck)[blocks].any()
        for layer in self.layers:
            leaves = [leaf for leaf in layer if judged[leaf] and not found[leaf]]
            hit = [leaf for leaf in leaves if struck[leaf]]
            if len(hit) == 1 and shapes:
                rank = min(_rank(shapes[hit[0]]), 2)
                found[hit] = any(_rank(shapes[leaf]) >= rank for leaf in leaves if leaf != hit[0])
        return found & struck

    @computed_once
    def layers(self) -> list[list[int]]:
        """The leaves of each layer, in the order in which the model uses the layers.

        A layer are the leaves of one parent whose last keys have the same numbers: {"w0": …, "b0": …, "w1": …} holds
        two of them.
        """
        what, groups = self.source, {}
        for leaf, (parent, key, index) in enumerate(self.keys):
            is_place = key[1:-1].isdecimal() and not index  # in a list
            numbers = () if is_place else tuple(re.findall(r"[0-9]+", _BLOCK.sub("", key) + index))
            groups.setdefault((parent, is_place, numbers), []).append(leaf)
        layers = []
        for (_, is_place, _), leaves in groups.items():
            ranks = {len(what.shapes[leaf].split(",")) if what.shapes else what.sizes[leaf] for leaf in leaves}
            if is_place and len(ranks) < len(leaves):  # a list of layers; (w, b) is one
                layers += [[leaf] for leaf in leaves]
            else:
                layers.append(sorted(leaves, key=lambda leaf: -what.sizes[leaf]))
        return sorted(layers, key=lambda layer: min(self.places[leaf] for leaf in layer))

    def runs(self, struck: np.ndarray) -> Iterator[list[int]]:
        """Split the struck leaves into those that the model uses one after the other.

        The leaf that the backward pass meets first is the first of its run. A layer of which only some leaves are
        struck ends a run: behind a layer that gives zeros only, weights have no gradient and biases have.
        """
        judged = self.is_trained & ~self.redundant & ~self.cut_off
        run: list[int] = []
        for layer in self.layers:
            leaves = [leaf for leaf in layer if judged[leaf]]
            hit = [leaf for leaf in leaves if struck[leaf]]
            if len(hit) == len(leaves):
                run = hit + run
            else:
                if run or hit:
                    yield run + hit
                run = []
        if run:
            yield run


def _rank(shape: str) -> int:
    return len(shape.split(",")) if shape else 0


def pattern(path: str) -> str:
    """The path with "*" for each number in it."""
    return re.sub(r"[0-9]+", "*", path)


def factor_text(factor: float) -> str:
    """Three digits of a factor: "15,100", "4.56", "5e21"."""
    return f"{float(f'{factor:.3g}'):,.0f}" if 1000 <= factor < 1e7 else digits_text(factor)


def digits_text(x: float, n: int = 3) -> str:
    """A number of `n` digits, as columns write it: "33000", "3.3e8"."""
    return number_text(float(f"{x:.{n}g}"))


def listed(paths: Sequence[str], most: int = 3) -> str:
    """The first paths, and how many more there are."""
    more = f" and {len(paths) - most} more" if len(paths) > most else ""
    return ", ".join(paths[:most]) + more


def and_others(leaves: Sequence[int]) -> str:
    """What follows the path of the first of these leaves: " and 2 other leaves"."""
    n = len(leaves) - 1
    return f" and {n} other lea{'ves' if n > 1 else 'f'}" if n else ""
