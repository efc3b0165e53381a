"""Findings, their rank and thresholds, and `Searched`: one measured tree of a history, prepared for the checks."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from typing import Literal

import numpy as np

from treeviz.steps import statistics
from treeviz.steps.recording.history import History, Timeline
from treeviz.tree.facts import Facts
from treeviz.tree.layers import is_below, is_of_experts
from treeviz.tree.paths import paths_without_boxes, table_of_paths
from treeviz.tree.query import on_path
from treeviz.tree.runtime import computed_once
from treeviz.tree.series import InnerSteps
from treeviz.tree.text import number_text

SCALARS = "scalars"  # the source of findings about scalars that the user records


class Rank(IntEnum):
    """The order of findings: the worst has the lowest number."""

    NOT_FINITE = 0  # values became NaN or infinite
    TRAINING_ENDS = 1  # the whole tree explodes or learns nothing
    LEAF_ENDS = 2  # some leaves do
    UNUSUAL = 3
    CHOICE = 4  # a setting that may be intended
    INFORMATION = 5  # nothing is wrong


Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True)
class Finding:
    """A problem, or a possible problem, in a run.

        for finding in inspector.findings:
            print(finding.kind, finding.path, finding.first, finding.sentence)

    Attributes:
      kind: "nonfinite", "exploding", "result", "vanishing", "dead", "drift", "frozen", "spike", "imbalance", "ratio",
        "underflow", "clipping", "redundant"; of activations alone, "collapsed", "saturated", "signal", "unread".
      source: The name of the tree: "grads", "updates", "loss result"; "inputs" and "outputs" for activations; "scalars"
        for scalars from `record_scalars`.
      path: The key path of the leaf that is the cause or the worst; "" for the whole tree. For a scalar, its name.
      leaf: The index of that leaf in JAX's order; -1 for the whole tree.
      first, until: The first and the last step of the finding; a step is a call.
      numbers: The evidence, as (name, value) pairs.
      sentence: What happened.
      advice: What to try.
      leaves: The indices of all affected leaves, the cause or the worst first; may be empty.
      times: The factor by which the threshold is exceeded.
      rank: `findings` sorts by it.
      severity: "error", "warning", or "info" if nothing is wrong; views color the finding by it.
      first_inner, until_inner: The inner steps of `first` and `until`, such as micro-batches, counted from 0; None if
        the call has no loop, or the finding is about what it has once.
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
    severity: Severity = "warning"
    first_inner: int | None = None
    until_inner: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.sentence} {self.advice}"


@dataclass(frozen=True)
class Thresholds:
    """The limits beyond which numbers become findings. With the defaults, ordinary runs have none.

        tv.GradientInspector(thresholds=tv.Thresholds(exploding=1000.0))

    Attributes:
      fewest_steps: The fewest steps for a finding; "nonfinite" needs one.
      exploding: The factor by which the norm stays above its earlier median. R. Pascanu, T. Mikolov and Y. Bengio ("On
        the difficulty of training recurrent neural networks", ICML 2013) clip at 0.5 to 10 times the average norm; the
        default is 10 times that.
      vanishing: The root mean square of a leaf's gradient, relative to the median of all leaves. X. Glorot and
        Y. Bengio ("Understanding the difficulty of training deep feedforward neural networks", AISTATS 2010) aim at
        equal variances of gradients in all layers; sparse embeddings and scales stay well above the default.
      imbalance: The factor between the gradients of leaves that differ only in their layer number: from the first to
        the last layer if they change gradually, otherwise between one layer and the median of the others.
      dead_after: The number of zero steps after which a leaf with earlier gradients is dead; at least ten times its
        longest pause.
      spike, spike_deviations: The factor of a norm to its trend over the last 50 steps and to its median over the last
        8, and the same distances in log10, in median absolute deviations from the trend: P. J. Rousseeuw and C. Croux,
        "Alternatives to the Median Absolute Deviation", JASA 1993.
      loss_spike: The same factor for a loss from `record_scalars`. If the loss may be negative, the factor minus 1 is
        relative to the median of its magnitudes.
      ratio_low, ratio_high: The limits of the norm of the updates divided by that of the parameters. A. Karpathy
        (CS231n, "Neural Networks Part 3", 2015) recommends about 1e-3; the defaults are a factor of 100 away.
      ratio_size: The fewest elements of a leaf whose ratio is checked, since biases start at zero.
      underflow: The fraction of the nonzero elements below the smallest normal number of the dtype. P. Micikevicius et
        al., "Mixed Precision Training", ICLR 2018, found 31 % of a network's activation gradients below the range of
        float16.
      clipping: The fraction of the steps in which clipping changes the gradients. A bound that is active in every step
        only rescales the learning rate.
      dead_units: The fraction of a layer's units that are zero for every example. Healthy ReLU networks have up to a
        half in narrow layers, so the square root of the number of units is added to it.
      saturated: The root mean square of activations between -1 and 1. Healthy tanh networks stay below 0.8.
      signal: The factor by which activations grow or vanish from the first to the last layer, if they do so from layer
        to layer. K. He et al. ("Delving Deep into Rectifiers", ICCV 2015) scale weights so that it is near 1.
      unread: The fraction of the rows of an embedding that are not read, if each step reads equally many.
      expected_frozen: Globs of key paths, `"layers/*/kernel"`, of leaves that are meant to stay as they are, or of
        nodes above them: these are not checked for gradients or updates of zero.
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
    dead_units: float = 0.5
    saturated: float = 0.95
    signal: float = 1000.0
    unread: float = 0.5
    expected_frozen: str | Sequence[str] = ()


# A measured tree, prepared for the checks: its norms, its layers, and the order in which the model uses them.

RECENT = 5  # entries
FEWEST_LOOKS = 3  # measured steps of a tree that is not measured in every step
_LAST_KEY = re.compile(r"(\['(?:[^'\\]|\\.)*'\]|\[[^\[\]]*\]|\.[^.\[\]]+)$")
_BLOCK = re.compile(r"(?<=\w)\[[0-9]+(,[0-9]+)+\]( .*)?(?='\]$)")  # of a weight: "w[4,4] 8x2o,8x2o"
# Equinox' StateIndex, and the statistics of normalisations
_STATE = re.compile(r"index\.init\b|\b(running|moving)_(mean|var|variance)\b|\bbatch_stats\b")
_MOST_NUMBERS = 5  # of layers that are not a range
_ROUNDING = 1e-2  # a fraction of the other leaves and of its layer: both, since inputs may be large


@dataclass(frozen=True)
class Order:
    """The paths and layers of a measured tree, in the order in which the model uses its leaves."""

    source: statistics.MeasuredTree
    forward: tuple[str, ...] | None

    @computed_once
    def paths(self) -> list[str]:
        """The path of each leaf, as the user writes it."""
        return paths_without_boxes(self.source.paths)

    @computed_once
    def positions(self) -> np.ndarray:
        """int[leaves]: the position of each leaf in the order in which the model uses them; -1 if unknown."""
        paths, forward, has_stacks = self.source.paths, self.forward, any(self.source.stacks)
        if forward is None and not has_stacks:  # layer 2 comes before layer 10
            return np.argsort(sorted(range(len(paths)), key=lambda leaf: statistics.natural(paths[leaf])))
        if forward is None:
            forward = sorted((whole.path for whole in statistics.wholes(self.source)), key=statistics.natural)
        if has_stacks and not {*paths} >= {*forward}:  # one layer after the other, also in one model of an ensemble
            forward = statistics.layer_by_layer(forward, self.source)
        position_of = {path: place for place, path in enumerate(forward)}
        return np.array([position_of.get(path, -1) for path in paths])

    def keys(self, leaf: int) -> tuple[str, str, str]:
        """The path of the parent of a leaf, its key, and its index if it is a layer of a stack."""
        stacks, path = self.source.stacks, self.paths[leaf]
        index = _LAST_KEY.search(path) if stacks and stacks[leaf] else None
        path = path[: index.start()] if index else path
        match = _LAST_KEY.search(path)
        key = match[0] if match else path
        return path.removesuffix(key), key, index[0] if index else ""

    @computed_once
    def blocks(self) -> list[list[int]]:
        """The leaves that are blocks of one weight, by weight: "w[0,0] 8x0e,4x0e" and "w[1,1] 8x1o,4x1o"."""
        blocks: dict[tuple[str, str], list[int]] = {}
        for leaf, (parent, key, _) in enumerate(map(self.keys, range(len(self.paths)))):
            if (name := _BLOCK.sub("", key)) != key:
                blocks.setdefault((parent, name), []).append(leaf)
        return [leaves for leaves in blocks.values() if len(leaves) > 1]

    @computed_once
    def layers(self) -> list[list[int]]:
        """The leaves of each layer, in the order of use: of one parent, with the same numbers in their last keys."""
        source, groups = self.source, {}
        for leaf, (parent, key, index) in enumerate(map(self.keys, range(len(self.paths)))):
            is_list_item = key[1:-1].isdecimal() and not index  # in a list
            numbers = () if is_list_item else tuple(re.findall(r"[0-9]+", _BLOCK.sub("", key) + index))
            groups.setdefault((parent, is_list_item, numbers), []).append(leaf)
        layers = []
        for (_, is_list_item, _), leaves in groups.items():
            ranks = {len(source.shapes[leaf].split(",")) if source.shapes else source.sizes[leaf] for leaf in leaves}
            if is_list_item and len(ranks) < len(leaves):  # a list of layers, unlike (w, b)
                layers += [[leaf] for leaf in leaves]
            else:
                layers.append(sorted(leaves, key=lambda leaf: -source.sizes[leaf]))
        return sorted(layers, key=lambda layer: min(self.positions[leaf] for leaf in layer))

    @computed_once
    def siblings_by_number(self) -> list[list[int]]:
        """Groups of leaves of one size whose paths differ only in numbers, by these numbers."""
        groups: dict[tuple[str, int], list[int]] = {}
        for leaf, path in enumerate(self.paths):
            groups.setdefault((pattern(path), self.source.sizes[leaf]), []).append(leaf)
        return [sorted(leaves, key=lambda leaf: statistics.natural(self.paths[leaf])) for leaves in groups.values()]


_order = lru_cache(maxsize=8)(Order)  # a run is searched again and again


@dataclass(frozen=True)
class Searched:
    """One measured tree of a history; `forward`: the order in which the model uses its paths, None: of the keys."""

    history: History
    name: str
    thresholds: Thresholds
    forward: Sequence[str] | None = None

    def finding(
        self, kind: str, leaf: int, numbers: Iterable[tuple[str, float]], sentence: str, advice: str,
        leaves: Iterable[int] = (), times: float = 1.0, rank: Rank = Rank.UNUSUAL, *,
        first: int | None = None, until: int | None = None, severity: Severity | None = None,
    ) -> Finding:  # fmt: skip
        """A finding about a leaf, or about the whole tree if that is -1; by default, in all its steps."""
        first, until = (self.span[0] if first is None else first), (self.span[1] if until is None else until)
        usual: dict[Rank, Severity] = {Rank.NOT_FINITE: "error", Rank.INFORMATION: "info"}
        return Finding(
            kind, self.name, "" if leaf < 0 else self.path(leaf), leaf, first, until, tuple(numbers), sentence, advice,
            tuple(leaves), times, rank, severity or usual.get(rank, "warning"),
        )  # fmt: skip

    def sibling(self, kind: str) -> Searched:
        """The tree of another kind in the same step, which may not be measured."""
        return replace(self, name=statistics.sibling_name(self.name, kind))

    def uses(self, *kinds: str) -> list[Searched]:
        """Trees of the inputs or outputs of the same parameters: of the first use, the second …"""
        grads, uses = self.sibling("grads").name, [replace(self, name=name) for name in self.history.sources]
        return [use for use in uses if statistics.kind_of(use.name) in kinds and use.sibling("grads").name == grads]

    def has(self, statistic: str) -> bool:
        return (self.name, statistic) in self.history.tracks

    def values(self, statistic: str) -> Timeline:
        return self.history.values(self.name, statistic)

    def text(self, leaves: Sequence[int]) -> str:
        """ "grads['w']", "grads['w'] and 2 other leaves"."""
        n = len(leaves) - 1
        return f"{self.name}{self.path(leaves[0])}" + (f" and {n} other lea{'ves' if n > 1 else 'f'}" if n else "")

    @property
    def is_gradient(self) -> bool:
        return not statistics.is_beside(self.name) and not statistics.result_kind(self.name)

    @property
    def source(self) -> statistics.MeasuredTree:
        return self.history.sources[self.name]

    @property
    def nouns(self) -> str:
        """The plural noun for the rows: "leaves", "leaves and layers"."""
        stacked = list(itertools.compress(self.paths, self.source.stacks))
        n_experts = sum(map(is_of_experts, stacked))
        names = ["layers"] * (n_experts < len(stacked)) + ["experts"] * (n_experts > 0)
        return " and ".join([", ".join(["leaves", *names[:-1]]), *names[-1:]])

    @computed_once
    def order(self) -> Order:
        return _order(self.source, None if self.forward is None else tuple(self.forward))

    paths = property(lambda self: self.order.paths)
    positions = property(lambda self: self.order.positions)
    blocks = property(lambda self: self.order.blocks)
    layers = property(lambda self: self.order.layers)

    def path(self, leaf: int) -> str:
        return self.paths[leaf]

    @computed_once
    def norm(self) -> Timeline:
        """Of activations: their root mean squares."""
        return self.values("finite_rms" if self.has("rms") else "finite_norm")

    @computed_once
    def n_steps(self) -> int:
        return int(self.norm.n.sum())

    @property
    def span(self) -> tuple[int, int]:
        return int(self.norm.begins[0]), int(self.norm.ends[-1])

    @property
    def numbering(self) -> InnerSteps:
        return self.norm.numbering

    @property
    def n_spanned(self) -> int:
        """The number of steps from the first to the last, also of those that were not inspected."""
        first, until = self.span
        return (until - first) // self.numbering.apart + 1

    @property
    def has_enough_steps(self) -> bool:
        """Whether at least `fewest_steps` steps were measured, or a few steps that span as many."""
        fewest = self.thresholds.fewest_steps
        is_spread = self.n_steps >= FEWEST_LOOKS and self.n_spanned > fewest
        return self.n_steps >= fewest or is_spread

    @computed_once
    def is_frozen(self) -> np.ndarray:
        """bool[leaves]: whether the traced step never changes the parameter, although it changes others."""
        source, none = self.history.sources.get(self.sibling("grads").name), (False,) * len(self.source.paths)
        flags = source.frozen if source and source.paths == self.source.paths else self.source.frozen
        return np.array(none if not flags or all(itertools.compress(flags, self.source.has_number)) else flags, bool)

    @computed_once
    def is_trained(self) -> np.ndarray:
        """bool[leaves]: whether the leaf is to be trained: it has values, and is neither frozen nor a state."""
        is_state = [_STATE.search(path) is not None for path in self.source.paths]
        is_trained = np.array(self.source.has_number, bool) & ~np.array(is_state, bool) & ~self.is_frozen
        if globs := self.thresholds.expected_frozen:
            table = table_of_paths("", self.source.paths, [Facts("array", "", True)] * len(is_trained))
            for glob in [globs] if isinstance(globs, str) else globs:
                is_trained &= ~is_below(table, on_path(table, glob))[table.is_leaf]
        return is_trained

    @computed_once
    def cut_off(self) -> np.ndarray:
        """bool[leaves]: whether the traced step proves that the gradient is zero."""
        return np.array(self.source.cut_off or (False,) * len(self.source.paths), bool)

    @computed_once
    def levels(self) -> np.ndarray:
        """float[k, 1 + leaves]: norms over time, column 0 for the whole tree; k = 0 if there are too few steps."""
        if not self.is_gradient or self.n_steps < self.thresholds.fewest_steps or len(self.norm.n) < 2 * RECENT:
            return np.zeros((0, 1 + len(self.source.paths)))
        root = np.sqrt(np.nansum(self.norm.high**2, axis=1, keepdims=True))
        return np.concatenate([root, self.norm.high], axis=1)

    @computed_once
    def typical(self) -> np.ndarray:
        """float[leaves]: the median root mean square over time; NaN if too few are above zero."""
        typical = np.full(len(self.source.paths), np.nan)
        if len(self.levels):
            values = statistics.rms_of(np.where(self.levels[:, 1:] > 0, self.levels[:, 1:], np.nan), self.source.sizes)
            has = np.isfinite(values).sum(axis=0) >= 2 * RECENT
            typical[has] = np.nanmedian(values[:, has], axis=0)
        return typical

    @computed_once
    def redundant(self) -> np.ndarray:
        """bool[leaves]: whether the gradient is mathematically zero, so that only rounding error is measured.

        Without a gradient, all leaves of a layer are small. If a shift cancels, only the bias is small; if the data
        never use a block of a weight, only that block is.
        """
        typical, sizes = self.typical, self.source.sizes
        is_redundant = np.zeros(len(typical), bool)
        if not np.isfinite(typical).any():
            return is_redundant
        usual = np.median(typical[np.isfinite(typical)])
        previous_layer: list[int] = []
        for layer in self.layers:
            for leaf in layer:
                larger = [other for other in layer if sizes[other] > sizes[leaf]]
                if len(layer) == 1:  # a flat list: compare with the previous leaf
                    larger = [other for other in previous_layer[-1:] if sizes[other] > sizes[leaf]]
                if larger:
                    least, most = sorted([typical[leaf] / usual, typical[leaf] / typical[larger].min()])
                    is_redundant[leaf] = least < self.thresholds.vanishing and most < _ROUNDING
            previous_layer = layer
        for blocks in self.blocks:
            largest = np.nanmax(typical[blocks], initial=0.0)
            is_redundant[blocks] |= typical[blocks] < self.thresholds.vanishing * largest
        return is_redundant

    def parts_of_learning_layers(self, affected: np.ndarray) -> np.ndarray:
        """bool[leaves]: which affected leaves are in layers that learn, without a dead layer after them.

        These are blocks of a weight whose other blocks learn, and the only affected leaf of a layer in which more than
        the bias learns: a layer's only weight may be affected since its input is zero.
        """
        shapes, is_part = self.source.shapes, np.zeros(len(affected), bool)
        if not affected.any():
            return is_part
        for blocks in self.blocks:
            is_part[blocks] = (self.is_judged & ~affected)[blocks].any()
        for layer in self.layers:
            leaves = [leaf for leaf in layer if self.is_judged[leaf] and not is_part[leaf]]
            affected_here = [leaf for leaf in leaves if affected[leaf]]
            if len(affected_here) == 1 and shapes:
                rank = min(len(statistics.shape_of(shapes[affected_here[0]])), 2)
                others = (statistics.shape_of(shapes[leaf]) for leaf in leaves if leaf != affected_here[0])
                is_part[affected_here] = any(len(shape) >= rank for shape in others)
        parts, is_part = is_part & affected, np.zeros(len(affected), bool)
        for run in self.runs(affected):
            is_part[run] = parts[run].all()
        return is_part

    @computed_once
    def is_judged(self) -> np.ndarray:
        """bool[leaves]: whether a missing gradient of the leaf would tell something about its layer."""
        return self.is_trained & ~self.redundant & ~self.cut_off

    def runs(self, affected: np.ndarray) -> Iterator[list[int]]:
        """Split the affected leaves into runs that the model uses one after the other.

        A run starts with the leaf that the backward pass reaches first. A layer that is only partly affected ends a
        run: after a layer that outputs only zeros, weights have no gradient but biases have one.
        """
        run: list[int] = []
        for layer in self.layers if affected.any() else ():
            leaves = [leaf for leaf in layer if self.is_judged[leaf]]
            affected_here = [leaf for leaf in leaves if affected[leaf]]
            if len(affected_here) == len(leaves):
                run = affected_here + run
            else:
                if run or affected_here:
                    yield run + affected_here
                run = []
        if run:
            yield run


def pattern(path: str) -> str:
    """The path with "*" for each number in it."""
    return re.sub(r"[0-9]+", "*", path)


def factor_text(factor: float) -> str:
    """A factor with three digits: "15,100", "4.56", "5e21"."""
    return f"{float(f'{factor:.3g}'):,.0f}" if 1000 <= factor < 1e7 else digits_text(factor)


def digits_text(x: float, n: int = 3) -> str:
    """A number with `n` digits, as columns show it: "33000", "3.3e8"."""
    return number_text(float(f"{x:.{n}g}"))


def listed(paths: Sequence[str], most: int = 3) -> str:
    """The first paths, then the number of others: "a, b, c and 2 more"."""
    rest = f" and {len(paths) - most} more" if len(paths) > most else ""
    return ", ".join(paths[:most]) + rest


def listed_alike(paths: Sequence[str], most: int = 5) -> str:
    """All paths, those that differ only in numbers as one: "['layers'][0…11]['w'] ×12, ['head']"."""
    by_pattern: dict[str, list[str]] = {}
    for path in paths:
        by_pattern.setdefault(pattern(path), []).append(path)
    return listed([_with_ranges(same) if len(same) > 1 else same[0] for same in by_pattern.values()], most)


def _with_ranges(paths: Sequence[str]) -> str:
    """Paths that differ only in numbers, as one: "['layers'][0…11]['w'] ×12", "['layers'][3, 5]['w'] ×2"."""
    columns = iter(zip(*(re.findall(r"[0-9]+", path) for path in paths), strict=True))

    def numbers_text(_: re.Match) -> str:
        numbers = sorted({*map(int, next(columns))})
        is_range = 1 + numbers[-1] - numbers[0] == len(numbers) > 2
        few = ", ".join(map(str, numbers)) if len(numbers) <= _MOST_NUMBERS else "*"
        return f"{numbers[0]}…{numbers[-1]}" if is_range else few

    return f"{re.sub('[0-9]+', numbers_text, paths[0])} ×{len(paths)}"
