"""Findings about activations: what goes into each parameter, and what comes out of it."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from treeviz.steps.findings.finding import (
    RECENT,
    Finding,
    Rank,
    Searched,
    digits_text,
    factor_text,
    listed_alike,
    pattern,
)
from treeviz.steps.findings.nonfinite import LOCATE, had_diverged
from treeviz.steps.recording.history import Timeline
from treeviz.steps.statistics import FORWARD_ROLES, kind_of, result_kind

Check = Callable[[Searched], Iterator[Finding]]
_FEWEST_LISTS = 3  # measured steps that list the first dead features
_FEWEST_COUNTS = 20  # the newest entries, if there are no such lists
_BY_CHANCE = 0.1  # of the features that are in all lists, how many may be so by chance
_DEEP = 4  # layers, the fewest whose activations have a trend
_ONE_WAY = 0.8  # of the layers, which a trend goes through
_BOUND = 1.001  # a saturated tanh returns 1; a sum of products exceeds it


def _of_inputs(statistic: str) -> Callable[[Check], Check]:
    """Make a function a check of the inputs of first uses, which gets the order in which the model uses the leaves."""

    def decorated(check: Check) -> Check:
        @functools.wraps(check)
        def of_inputs(tree: Searched) -> Iterator[Finding]:
            is_first = kind_of(tree.name) == "inputs" and "#" not in tree.name
            if is_first and tree.has(statistic) and tree.n_steps >= tree.thresholds.fewest_steps:
                yield from check(_with_order(tree))

        return of_inputs

    return decorated


def _with_order(tree: Searched) -> Searched:
    return replace(tree, forward=tree.forward or tree.history.forward.get(tree.sibling("grads").name))


def _in_order(tree: Searched, is_among: np.ndarray) -> list[int]:
    """The leaves among those, in the order in which the model uses them."""
    return sorted(np.flatnonzero(is_among).tolist(), key=lambda leaf: tree.positions[leaf])


def _read_units(tree: Searched) -> np.ndarray:
    """bool[leaves]: whether the leaf multiplies features that the model has computed.

    Features of the data may be zero or equal in all examples, as the border of an image is. Their readers are the first
    leaf in use and those with the same input, as the first layers of an actor and a critic.
    """
    has_units = tree.is_trained & (tree.values("dead").latest >= 0).any(axis=0)
    for first in _in_order(tree, np.array(tree.source.has_number) & (tree.positions >= 0))[:1]:
        has_units &= ~(tree.norm.latest == tree.norm.latest[:, [first]]).all(axis=0)
    return has_units


def _same_steps(timeline: Timeline, other: Timeline) -> np.ndarray:
    """The values of a timeline in the steps of another one."""
    return timeline.latest[np.minimum(np.searchsorted(timeline.ends, other.ends), len(timeline.n) - 1)]


def _counts_of_uses(tree: Searched, statistic: str) -> tuple[Timeline, np.ndarray]:
    """The steps in which features were counted, and int64[k, leaves]: the fewest of all uses; -1 if none are."""
    uses = [use.values(statistic) for use in tree.uses("inputs") if use.has(statistic)]
    most = np.iinfo(np.int64).max
    same = [_same_steps(use, uses[0]) for use in uses]
    fewest = np.min([np.where(counts < 0, most, counts) for counts in same], axis=0)
    return uses[0], np.where(fewest == most, -1, fewest)


@_of_inputs("dead")
def dead(tree: Searched) -> Iterator[Finding]:
    """Units that are zero in all examples, of layers most of whose units are."""
    timeline, counts = _counts_of_uses(tree, "dead")
    lists, found, is_over = tree.values("dead_at"), defaultdict[int, list[tuple[int, int]]](list), False
    n_constant = tree.values("constant").latest[-1:]
    for leaf in _in_order(tree, _read_units(tree) & (counts >= 0).any(axis=0)):
        n, units = tree.source.sizes[leaf], [numbers[numbers > 0].tolist() for numbers in lists.latest[:, leaf]]
        n_dead = _always_dead(counts[:, leaf], timeline, units, lists, n)
        if is_over and (n_constant[:, leaf] == n).any():
            continue  # behind a layer that passes on no example
        is_over |= n_dead == n
        if n_dead > n * tree.thresholds.dead_units + np.sqrt(n) or n_dead == n > 1:
            since = np.flatnonzero(np.append(-1, counts[:, leaf]) < n_dead)[-1]
            found[int(since)].append((leaf, n_dead))
    for start, of_leaves in sorted(found.items()):
        leaf, n_dead = max(of_leaves, key=lambda pair: pair[1] / tree.source.sizes[pair[0]])
        n, n_steps, first = tree.source.sizes[leaf], int(timeline.n[start:].sum()), int(timeline.begins[start])
        at = [number - 1 for number in lists.latest[-1, leaf].tolist() if number > 0] if len(lists.n) else []
        which = f" ({', '.join(map(str, at))}{', …' * (n_dead > len(at))})" * (0 < len(at) <= n_dead < n)
        others = [tree.path(other) for other, _ in of_leaves if other != leaf]
        also = f" So are most that {listed_alike(others)} read{'s' * (len(others) == 1)}." if others else ""
        since = f"since {timeline.numbering.text(first)}" if start else f"in all {n_steps} steps"
        yield tree.finding(
            "dead", leaf, (("units", n_dead), ("of", n), ("steps", n_steps)),
            f"{n_dead:,} of {n:,} units{which} that {tree.path(leaf)} reads are zero for every example {since}.{also}",
            f"They are the outputs of the layer {_before(tree, leaf)}. "
            + ("A learning rate that is too high kills ReLU units: lower it, or let it rise over the first steps. "
            if start else "Look at the initial weights and biases of that layer, and at masks. ")
            + "A leaky activation keeps them alive.",
            [leaf, *(other for other, _ in of_leaves if other != leaf)], n_dead / n / tree.thresholds.dead_units,
            Rank.LEAF_ENDS, first=first,
        )  # fmt: skip


def _before(tree: Searched, leaf: int) -> str:
    """Where the input of a leaf is made: after which other leaf."""
    others = _in_order(tree, np.array(tree.source.has_number) & (tree.positions < tree.positions[leaf]))
    return f"before it, after {tree.path(others[-1])}" if others else "before it"


def _always_dead(counts: np.ndarray, timeline: Timeline, units: list[list[int]], lists: Timeline, n: int) -> int:
    """How many of `n` units are zero in each of the last steps, at least.

    In a small batch many units are zero, others each time. So steps that list the first of them are compared: of units
    that are zero at random, more are in some lists than in all.
    """
    if len(units) < _FEWEST_LISTS:  # the counts alone, which vary if the units are zero at random
        latest = counts[-_FEWEST_COUNTS:]
        share = latest.mean() / n
        return int(latest.min()) if latest.var() <= n * share * (1 - share) / 4 else 0
    for k in range(_FEWEST_LISTS, len(units) + 1):
        end = min([numbers[-1] for numbers in units[-k:] if len(numbers) == lists.latest.shape[-1]], default=n)
        seen = Counter(number for numbers in units[-k:] for number in numbers if number <= end)
        same = sum(times == k for times in seen.values())
        others = [times / k for times in seen.values() if times < k]
        by_chance = sum(others) / len(others) if others else 0.0
        if len(others) * by_chance**k / (1 - by_chance**k) < _BY_CHANCE * same:
            least = int(counts[timeline.ends >= lists.begins[-k]].min())
            return least if same >= min(least, lists.latest.shape[-1]) else same
    return 0


@_of_inputs("constant")
def collapsed(tree: Searched) -> Iterator[Finding]:
    """Layers whose outputs are the same for all examples, though what they read is not."""
    timeline, constant = _counts_of_uses(tree, "constant")
    sizes = np.array(tree.source.sizes)
    is_constant = (constant == sizes) & (sizes > 1)
    varies = (constant >= 0) & (constant < sizes)
    if len(timeline.n) < _FEWEST_LISTS:
        return
    since = len(is_constant) - np.logical_and.accumulate(is_constant[::-1], axis=0).sum(axis=0)
    for leaf in _in_order(tree, _read_units(tree) & (len(is_constant) - since >= _FEWEST_LISTS)):
        start, earlier = int(since[leaf]), tree.positions < tree.positions[leaf]
        if not varies[start:, earlier].any(axis=1).all():
            continue  # a batch of one example, or a part of the model that reads no data
        if not tree.norm.latest[-1, leaf]:
            return  # all units are dead
        since_text = f"since {timeline.numbering.text(timeline.begins[start])}" if start else "in all inspected steps"
        yield tree.finding(
            "collapsed", leaf, (("features", int(sizes[leaf])), ("steps", int(timeline.n[start:].sum()))),
            f"All {sizes[leaf]:,} features that {tree.path(leaf)} reads are the same for all examples {since_text}. "
            "Earlier layers read different ones.",
            f"Look {_before(tree, leaf)} for a softmax, a normalization or a mean over the batch axis, and for units "
            "that are saturated.",
            [leaf], rank=Rank.LEAF_ENDS, first=int(timeline.begins[start]),
        )  # fmt: skip
        return  # later layers read what this one makes of it


@_of_inputs("max_abs")
def saturated(tree: Searched) -> Iterator[Finding]:
    """Units at the ends of tanh: none is beyond 1, and nearly all are close to it."""
    timeline, constant = tree.values("max_abs"), tree.values("constant").latest
    rms, largest = _same_steps(tree.norm, timeline), timeline.latest
    is_full = (rms > tree.thresholds.saturated) & (largest <= _BOUND) & (largest > 1 / _BOUND)
    is_constant = (2 * constant[-1:] >= tree.source.sizes).any(axis=0)  # as an input of ones
    leaves = _in_order(tree, _read_units(tree) & is_full[-RECENT:].all(axis=0) & ~is_constant)
    if not leaves or len(is_full) < _FEWEST_LISTS:
        return
    level, start = float(rms[-1, leaves[0]]), int(np.flatnonzero(np.append(False, is_full[:, leaves[0]]) == 0)[-1])
    yield tree.finding(
        "saturated", leaves[0], (("rms", level), ("leaves", len(leaves))),
        f"Nearly all units that {listed_alike([*map(tree.path, leaves)])} read{'s' * (len(leaves) == 1)} are at −1 or "
        f"1: their root mean square is {digits_text(level)}.",
        f"Where tanh is saturated, hardly any gradient passes. Use smaller weights {_before(tree, leaves[0])}, a lower "
        "learning rate, or a normalization in front of the activation.",
        leaves, level / tree.thresholds.saturated, Rank.UNUSUAL, first=int(timeline.begins[start]),
    )  # fmt: skip


@_of_inputs("dead")
def signal(tree: Searched) -> Iterator[Finding]:
    """Activations that grow or vanish from layer to layer."""
    levels = np.where(tree.norm.latest > 0, tree.norm.latest, np.nan)[-2 * RECENT :]
    groups: dict[str, list[int]] = defaultdict(list)
    for leaf in _in_order(tree, _read_units(tree) & np.isfinite(levels).any(axis=0)):
        groups[pattern(tree.path(leaf))].append(leaf)
    for leaves in groups.values():
        logs = np.log10(np.nanmedian(levels[:, leaves], axis=0))
        change, ups = logs[-1] - logs[0], np.sign(np.diff(logs))
        times = 10 ** abs(change)
        if len(leaves) < _DEEP or times < tree.thresholds.signal or (ups == np.sign(change)).mean() < _ONE_WAY:
            continue
        verb = "grow" if change > 0 else "vanish"
        first, last = (digits_text(10**x) for x in (logs[0], logs[-1]))
        yield tree.finding(
            "signal", leaves[-1], (("first", 10 ** logs[0]), ("last", 10 ** logs[-1]), ("layers", len(leaves))),
            f"Activations {verb} {factor_text(times)}-fold with depth: the input of {tree.path(leaves[0])} has a root "
            f"mean square of {first}, that of {tree.path(leaves[-1])} of {last}.",
            "Scale the initial weights by 1/sqrt(number of inputs) (twice that variance for ReLU), or add a "
            "normalization or a residual connection.",
            leaves[::-1], times / tree.thresholds.signal, Rank.UNUSUAL,
        )  # fmt: skip


@_of_inputs("rows_read")
def unread(tree: Searched) -> Iterator[Finding]:
    """Embeddings of which each step reads equally many rows, which may then be the same."""
    timeline, n_rows = tree.values("rows_read"), np.array(tree.source.sizes)
    read = timeline.latest
    is_steady = (read == read[-1:]).all(axis=0) & (read[-1] > 0) & (read[-1] < n_rows * (1 - tree.thresholds.unread))
    for leaf in _in_order(tree, is_steady & tree.is_trained) if len(timeline.n) >= RECENT else ():
        n, of = int(read[-1, leaf]), int(n_rows[leaf])
        lists = [{*rows.tolist()} - {0} for rows in tree.values("unread_at").latest[:, leaf]]
        always = sorted(set[int]().union(*lists[:1]).intersection(*lists))
        which = f" Not among them: {', '.join(f'{row - 1}' for row in always)}{', …' * (len(always) < of - n)}."
        yield tree.finding(
            "unread", leaf, (("rows", n), ("of", of), ("steps", int(timeline.n.sum()))),
            f"Each of {timeline.n.sum()} inspected steps reads {n:,} of {of:,} rows of {tree.path(leaf)}."
            + which * bool(always),
            "If these are the same rows, the others are never trained: the vocabulary is larger than that of the data, "
            "or there are more positions than are used.",
            [leaf], (of - n) / of / tree.thresholds.unread, Rank.INFORMATION,
        )  # fmt: skip


def nonfinite(tree: Searched) -> Iterator[Finding]:
    """The first activation in the forward pass that is NaN or infinite, in the step in which gradients or results are.

    Finite results may have masks of infinity in front of a softmax.
    """
    if kind_of(tree.name) != "inputs" or "#" in tree.name:
        return
    steps: list[int] = []  # the first with gradients, a loss or new parameters that are not finite
    for name in tree.history.sources:
        if kind_of(name) == "grads" or result_kind(name) in ("loss", "parameter"):
            counts = tree.history.values(name, "nonfinite")
            steps += counts.begins[(counts.high > 0).any(axis=1)].tolist()[:1]
    if (first := min(steps, default=None)) is None:
        return
    tree, grads, bad = _with_order(tree), tree.sibling("grads"), []
    for use in tree.uses(*FORWARD_ROLES):
        counts = use.values("nonfinite")
        is_bad, is_before = counts.high > 0, counts.ends < first
        is_new = is_bad[(counts.begins <= first) & ~is_before].any(axis=0) & ~is_bad[is_before].any(axis=0)
        number, role = use.name.partition("#")[2], kind_of(use.name)
        bad += [((number, int(tree.positions[leaf]), role), leaf, use) for leaf in np.flatnonzero(is_new).tolist()]
    if not bad:
        return
    (*_, role), leaf, use = min(bad, key=lambda item: item[0])
    counts, path, before, after, advice = use.values("nonfinite"), tree.path(leaf), "", "", ""
    n_leaves, until = len({leaf for _, leaf, _ in bad}), int(counts.ends[np.flatnonzero(counts.high[:, leaf])[-1]])
    numbers: tuple[tuple[str, float], ...] = (("leaves", n_leaves),)
    if grads.has("norm"):
        before, after, advice, more = had_diverged(grads, first)
        numbers += more
    if not advice and role == "outputs":
        advice = f"Look for values of {path} itself, or of the result, beyond the largest number of its dtype."
    elif not advice:
        where = f"Look {_before(tree, leaf)} for a division, a log, a square root or an exponential"
        advice = f"{where}, and at that step's batch."
    yield use.finding(
        "nonfinite", leaf, numbers,
        f"{before}The {role.removesuffix('s')} of {path} had non-finite values at {counts.numbering.text(first)}, and "
        f"nothing before it in the forward pass.{after}",
        f"{advice} {LOCATE}", [leaf], rank=Rank.NOT_FINITE, first=first, until=until,
    )  # fmt: skip
