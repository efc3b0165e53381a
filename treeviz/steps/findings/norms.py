"""Findings that follow from norms: too large, too small, too different."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from treeviz.steps.findings.finding import (
    FEWEST_LOOKS,
    RECENT,
    Finding,
    Rank,
    Searched,
    Thresholds,
    digits_text,
    factor_text,
    listed,
    pattern,
)
from treeviz.steps.recording.history import History, Timeline, occurs_in
from treeviz.steps.statistics import is_beside, kind_of, natural, result_kind, shape_of, sibling_name
from treeviz.tree.text import number_text

_FEWEST_LAYERS = 5  # whose gradients may be told to depend on the depth
_LOST = 1e-4  # of the gradient of another leaf, below which an update may be lost in the rounding of its parameter
_ALIKE = 30.0  # the factor between layers from which one differs
_LEAP = 3.0  # times their norm, by which no first updates move layers
_GAIN = 0.5  # of a layer: the root mean square of its weights times the root of how many are added; 1 with LeCun's
_OUTGROWN = 10.0  # such a gain, whatever it began with
_SETTLED = 0.1  # of the first gradients


def exploding(tree: Searched) -> Iterator[Finding]:
    """The norm of the whole tree has risen far above its earlier median, and stays there."""
    if not len(tree.levels):
        return
    timeline, root, name = tree.norm, tree.levels[:, 0], tree.name
    before = root[:-RECENT][root[:-RECENT] > 0]
    if not before.size:
        return
    usual, now = float(np.median(before)), float(np.min(root[-RECENT:]))
    if not now > tree.thresholds.exploding * usual:
        return
    first = int(timeline.first[np.flatnonzero(root <= tree.thresholds.exploding * usual)[-1] + 1])
    leaf = int(np.nanargmax(timeline.latest[-1]))
    yield Finding(
        "exploding", name, tree.path(leaf), leaf, first, int(timeline.until[-1]),
        (("norm", now), ("median before", usual)),
        f"The norm of {name} has stayed above {digits_text(now)} since step {first}, {factor_text(now / usual)}× its "
        f"median of {digits_text(usual)}; the largest part is {name}{tree.path(leaf)}.",
        "Try clipping by the global norm at a few times the usual norm, a lower learning rate or a longer warm-up; in "
        "recurrent and very deep models look at the initialisation and at missing normalisation.",
        (), now / usual / tree.thresholds.exploding,
        rank=Rank.TRAINING_ENDS, severity="error",
    )  # fmt: skip


def redundant(tree: Searched) -> Iterator[Finding]:
    """Leaves whose gradient is zero by mathematics: what is measured is rounding error."""
    leaves = np.flatnonzero(tree.redundant).tolist()
    if leaves:
        yield Finding(
            "redundant", tree.name, tree.path(leaves[0]), leaves[0], *tree.span, (("leaves", len(leaves)),),
            f"The gradient of {listed([tree.path(leaf) for leaf in leaves])} is rounding error of those beside it.",
            "Such a parameter has no effect, as the key bias of attention, a bias before a batch normalisation or a "
            "block of weights that the data do not feed: nothing is wrong, and it may be left out.",
            tuple(leaves),
            rank=Rank.INFORMATION, severity="info",
        )  # fmt: skip


def vanishing(tree: Searched) -> Iterator[Finding]:
    """Leaves whose gradients are tiny: less from layer to layer, or compared with those of the others."""
    typical, is_told = np.where(tree.redundant, np.nan, tree.typical), np.zeros(len(tree.typical), bool)
    falls = [leaves for leaves in _groups(tree, typical) if _trend(tree, typical[leaves]) > 0]
    if falls:
        leaves = max(falls, key=lambda leaves: typical[leaves[-1]] / typical[leaves[0]])
        low, high, n = leaves[0], leaves[-1], len(leaves) - 1
        factor = float(typical[high] / typical[low])
        everyone = sorted((leaf for leaves in falls for leaf in leaves), key=typical.__getitem__)
        is_told[everyone] = True
        yield Finding(
            "vanishing", tree.name, tree.path(low), low, *tree.span,
            (("factor", factor), ("largest", float(typical[high])), ("smallest", float(typical[low]))),
            f"{tree.name} vanish with depth: from {tree.path(high)} to {tree.path(low)} they fall "
            f"{factor_text(factor)} times, by about {digits_text(factor ** (1 / n), 2)} at each layer.",
            "Look at the initialisation, saturated activations (sigmoid, tanh) and missing residual connections or "
            "normalisation.",
            tuple(everyone), factor / tree.thresholds.imbalance,
            rank=Rank.LEAF_ENDS,
        )  # fmt: skip
    lost, still, largest = _lost_in_rounding(tree, np.where(is_told, np.nan, typical))
    for run in tree.runs(lost):
        leaf, unmoved = run[0], [tree.path(leaf) for leaf in run if still[leaf]]
        is_told[run] = True
        yield Finding(
            "vanishing", tree.name, tree.path(leaf), leaf, *tree.span,
            (("rms", float(typical[leaf])), ("largest", float(typical[largest]))),
            f"{tree.name}{tree.path(leaf)} is {digits_text(typical[leaf], 2)} on average, "
            f"{digits_text(typical[leaf] / typical[largest], 2)} of that of {tree.path(largest)}"
            f"{f'; {len(run) - 1} before it are as small' if len(run) > 1 else ''}: {listed(unmoved)} did not change.",
            "Look at the initialisation, saturated activations (sigmoid, tanh, softmax) and missing residual "
            "connections or normalisation after it; or at a mask of the optimizer.",
            tuple(run), float(_LOST * typical[largest] / np.min(typical[run])),
            rank=Rank.LEAF_ENDS,
        )  # fmt: skip
    is_tiny = _is_tiny(tree, typical) & ~is_told
    usual = float(np.median(typical[np.isfinite(typical)])) if is_tiny.any() else 0.0
    for run in tree.runs(is_tiny):
        leaf, others = run[0], len(run) - 1
        others = f"; so are {others} leaves before it" if others > 1 else "; so is the leaf before it" * others
        yield Finding(
            "vanishing", tree.name, tree.path(leaf), leaf, *tree.span,
            (("rms", float(typical[leaf])), ("median of leaves", usual)),
            f"{tree.name}{tree.path(leaf)} is {digits_text(typical[leaf], 2)} on average, "
            f"{digits_text(typical[leaf] / usual, 2)} of what the leaves usually have"
            f"{others}.",
            "Look at the initialisation, saturated activations (sigmoid, tanh, softmax) and missing residual "
            "connections or normalisation after it.",
            tuple(run), tree.thresholds.vanishing * usual / float(np.min(typical[run])),
            rank=Rank.LEAF_ENDS,
        )  # fmt: skip


def _lost_in_rounding(tree: Searched, typical: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Which leaves are that small beside others that an update of some was lost; which these are; and the largest.

    They may be most of the leaves, behind an activation that is nearly saturated.
    """
    still, none = unchanged(tree), np.zeros(len(typical), bool)
    moved = np.where(still, np.nan, typical)
    if not still.any() or not np.isfinite(moved).any():
        return none, none, 0
    largest = int(np.nanargmax(moved))
    with np.errstate(invalid="ignore"):
        small = typical < _LOST * typical[largest]
    lost = none.copy()
    for run in tree.runs(small):
        lost[run] = (small & still)[run].any()
    return lost, lost & still, largest


def unchanged(grads: Searched) -> np.ndarray:
    """bool[leaves]: whether a small parameter, which is looked at in each step, is what it was in the first one."""
    paths, found = grads.source.paths, np.zeros(len(grads.source.paths), bool)
    if not grads.n_steps or grads.n_steps != grads.span[1] - grads.span[0] + 1:
        return found  # others may have changed it
    for name, source in grads.history.sources.items():
        zeros = grads.history.values(name, "zeros").latest if result_kind(name) == "unchanged" else []
        for at in np.flatnonzero(zeros[-1]).tolist() if len(zeros) else []:
            # A parameter's path may begin with the name of an argument, that of a gradient end with a layer.
            of = source.paths[at]
            found |= [path == of if of in paths else of.endswith(path) or path.startswith(of) for path in paths]
    return found


def is_able_to_update(grads: Searched) -> np.ndarray:
    """bool[leaves]: whether a leaf has a gradient, but for the redundant and the weaker ones of those that vanish.

    Their updates may be lost in rounding, which is no finding of its own.
    """
    highest = grads.norm.high.max(axis=0)
    tiny = [leaf for found in vanishing(grads) for leaf in found.leaves]
    is_lost = grads.redundant | _lost_in_rounding(grads, grads.typical)[0]
    is_lost[tiny] |= highest[tiny] < np.median(highest)
    return (highest > 0) & ~is_lost


def imbalance(tree: Searched) -> Iterator[Finding]:
    """Layers of one kind whose gradients grow towards the input, or of which one is far from the others."""
    typical = np.where(tree.redundant | _is_tiny(tree, tree.typical), np.nan, tree.typical)
    grow, differ = [], []  # how many times, to what, and the leaves, the worst first
    for leaves in _groups(tree, typical):
        values = typical[leaves]
        factors = np.maximum(values / np.median(values), np.median(values) / values)
        is_far = factors > tree.thresholds.imbalance
        if _trend(tree, values) < 0:
            worst = sorted(leaves, key=lambda leaf: -typical[leaf])
            grow.append((float(typical[worst[0]] / typical[worst[-1]]), f"that of {tree.path(worst[-1])}", worst))
        elif 0 < 4 * is_far.sum() < len(leaves) and np.ptp(np.log10(values[~is_far])) < np.log10(_ALIKE):
            worst = [leaf for _, leaf in sorted(zip(-factors, leaves, strict=True))][: is_far.sum()]
            differ.append((float(typical[worst[0]] / np.median(values)), "their median", worst))
    for found in filter(None, (grow, differ)):
        factor, other, worst = max(found, key=lambda each: max(each[0], 1 / each[0]))
        leaf = worst[0]
        everyone = [*worst, *(leaf for *_, leaves in found for leaf in leaves if leaf not in worst)]
        yield Finding(
            "imbalance", tree.name, tree.path(leaf), leaf, *tree.span,
            (("factor", factor), ("rms", float(typical[leaf])), ("leaves", len(everyone))),
            f"Among the leaves {tree.name}{pattern(tree.path(leaf))}, that of {tree.path(leaf)} is "
            f"{factor_text(factor)} times {other}.",
            "Gradients should be of one size in layers of one kind: look at the initialisation (Glorot, He), the "
            "scale of residual branches, and normalisation between them.",
            tuple(everyone), max(factor, 1 / factor) / tree.thresholds.imbalance,
        )  # fmt: skip


def _is_tiny(tree: Searched, typical: np.ndarray) -> np.ndarray:
    """bool[leaves]: whether the gradient is that small beside those of the others that it vanishes."""
    alive = np.isfinite(typical)
    if alive.sum() < 3:
        return np.zeros(len(typical), bool)
    with np.errstate(invalid="ignore"):
        return typical < tree.thresholds.vanishing * np.median(typical[alive])


def _groups(tree: Searched, typical: np.ndarray) -> list[list[int]]:
    """The leaves that differ only in the numbers of their layers, the first layer first."""
    groups: dict[tuple[str, int], list[int]] = {}
    for leaf in np.flatnonzero(np.isfinite(typical)).tolist():
        groups.setdefault((pattern(tree.path(leaf)), tree.source.sizes[leaf]), []).append(leaf)
    ordered = (sorted(leaves, key=lambda leaf: natural(tree.path(leaf))) for leaves in groups.values())
    return [leaves for leaves in ordered if len(leaves) >= _FEWEST_LAYERS]


def _trend(tree: Searched, values: np.ndarray) -> int:
    """1 if gradients grow from layer to layer by more than `imbalance` in all, -1 if they fall, 0 if neither.

    A jump is no trend: it lies between two parts of a model, as the actor and the critic.
    """
    logs = np.log10(values)
    if np.ptp(logs) < np.log10(tree.thresholds.imbalance) or np.abs(np.diff(logs)).max() > np.ptp(logs) / 2:
        return 0
    correlation = np.corrcoef(np.arange(len(logs)), logs)[0, 1]
    return int(np.sign(correlation)) if abs(correlation) > 0.9 else 0


def _leap(tree: Searched, moves: np.ndarray) -> Finding | None:
    """The first updates moved most parameters by several times their norm, so what they began with is lost."""
    of_params = sibling_name(tree.name, "params")
    params, sizes = tree.history.values(of_params, "norm"), np.array(tree.source.sizes)
    is_first = params.first - params.first[0] < tree.thresholds.fewest_steps
    norm = params.latest[is_first]
    moved = np.maximum(tree.norm.latest[is_first], norm - norm[0])
    at = moves & (norm[0] > 0)  # the others began at zero
    if sizes[at].sum() < tree.thresholds.ratio_size or not _is_no_jump(tree):
        return None
    times = np.sqrt(np.nansum(moved[:, at] ** 2, axis=1) / np.sum(norm[0, at] ** 2))
    leaps = at & (moved > _LEAP * norm[0]) & _is_lost(tree, norm[0], moved)
    found = (leaps @ sizes > sizes[at].sum() / 2) & (times > _LEAP)
    if not found.any():
        return None
    entry = np.argmax(found)
    first, until, ratio = int(params.first[0]), int(params.until[entry]), float(times[entry])
    when = f"in step {first}" if first == until else f"from step {first} to {until}"
    return Finding(
        "ratio", tree.name, "", -1, first, until, (("ratio", ratio),),
        f"The updates moved {of_params} by {digits_text(ratio)} times their norm {when}; 1e-3 in a step is usual.",
        "What the parameters began with is lost. Lower the learning rate, or let it rise over the first steps.",
        (), ratio / _LEAP,
        rank=Rank.TRAINING_ENDS,
    )  # fmt: skip


def _is_no_jump(updates: Searched) -> bool:
    """Whether gradients do not become small, as they do where a solver jumps to the optimum; and this is known."""
    name = sibling_name(updates.name, "grads")
    if name not in updates.history.sources:
        return True
    norm, fewest = updates.history.values(name, "norm"), updates.thresholds.fewest_steps
    since = norm.first - norm.first[0]
    root = np.sqrt(np.nansum(norm.high[since < fewest] ** 2, axis=1))
    falls = len(root) > 1 and root[1:].max() < root[0] and np.median(root[1:]) < _SETTLED * root[0]
    return bool(since[-1] >= fewest - 1 and not falls)


def _is_lost(tree: Searched, norm: np.ndarray, moved: np.ndarray) -> np.ndarray:
    """bool[looks, leaves]: whether a matrix had the size with which initialisations let numbers through, or outgrew it.

    What begins near zero, as embeddings, heads and solutions of linear problems do, is meant to be left behind.
    """
    shapes = [shape_of(shape) for shape in tree.source.shapes or ("",) * len(tree.source.sizes)]
    fans = [(math.prod(shape[:-1]), min(shape)) if len(shape) > 1 else (0, 0) for shape in shapes]
    n_in, fewest = np.array(fans).T / np.array(tree.source.sizes)
    return (norm * np.sqrt(n_in) >= _GAIN) | (moved * np.sqrt(fewest) >= _OUTGROWN)


def ratio(tree: Searched) -> Iterator[Finding]:
    """Updates that are far too large or too small for their parameters."""
    if kind_of(tree.name) != "updates":
        return
    of_params, thresholds = sibling_name(tree.name, "params"), tree.thresholds
    updates, ratios = tree.norm, tree.history.ratio(tree.name, of_params)
    if ratios is None:
        return
    params = tree.history.values(of_params, "norm")
    source = tree.history.sources[of_params]
    moves = updates.high.max(axis=0) > 0  # others are dead, frozen, or not to be trained
    if (leap := _leap(tree, moves)) is not None:
        yield leap
    if not tree.is_known_enough:
        return
    # Looked at now and then, what began at zero has just begun at first.
    rest = slice(int(tree.n_steps < thresholds.fewest_steps), None)
    changes, relative = updates.latest[rest], ratios.latest[rest]
    if len(relative) < FEWEST_LOOKS:
        return
    with np.errstate(all="ignore"):
        root = np.sqrt(np.nansum(changes**2, axis=1) / np.nansum(params.latest[rest][:, moves] ** 2, axis=1))
        typical = np.array([np.median(root), *np.median(relative, axis=0)])
        sizes = np.array([np.inf if moves.all() else np.dot(moves, source.sizes), *source.sizes])
        is_judged = np.isfinite(typical) & (typical > 0) & (sizes >= thresholds.ratio_size)
        # While it grows, as a learning rate does at first, it is not too low.
        ends = np.array_split(np.column_stack([root, relative]), 3)
        is_judged &= (typical > thresholds.ratio_high) | (np.median(ends[2], 0) < 2 * np.median(ends[0], 0))
        times = np.maximum(typical / thresholds.ratio_high, thresholds.ratio_low / typical)
    worst = [int(i) for i in np.argsort(-times, kind="stable") if is_judged[i] and times[i] > 1]
    for is_high in (True, False):
        leaves = [i - 1 for i in worst if (typical[i] > thresholds.ratio_high) == is_high]
        if 0 in worst:  # a finding of the whole tree replaces those of its leaves
            leaves = [-1] if -1 in leaves else []
        if not leaves:
            continue
        value, path = float(typical[leaves[0] + 1]), "" if leaves[0] < 0 else source.paths[leaves[0]]
        more = f" Of {len(leaves) - 1} more the ratio is too {'high' if is_high else 'low'}." if len(leaves) > 1 else ""
        path_moves = path or ("" if moves.all() else ", as far as it moves,")
        yield Finding(
            "ratio", tree.name, path, leaves[0], int(ratios.first[rest][0]), int(ratios.until[-1]), (("ratio", value),),
            f"An update changes {of_params}{path_moves} by {value:.1e} of its norm; about 1e-3 is usual.{more}",
            "Lower the learning rate." if is_high else "Raise the learning rate, or look what makes the updates so "
            "small.", tuple(leaf for leaf in leaves if leaf >= 0), float(times[leaves[0] + 1]),
        )  # fmt: skip


# Findings that follow from sudden jumps of norms.

_BEFORE = 50  # entries that a spike is compared with
_NEAR = 8  # and the last of them, of which the same is asked: a trend is no spike
_BLOCK = 25  # entries that are compared with the same earlier ones
_AT_ONCE = 1_000_000  # numbers that are sorted together
_TOGETHER = 5  # entries between jumps of one event
_MOST_EVENTS = 4  # that are findings of their own
_BATCH = (
    "Look at that step's batch; clipping by the global norm bounds what one batch can do. In Adam, a lower b2 or a "
    "larger eps helps where second moments are too old."
)


def spikes(tree: Searched) -> Iterator[Finding]:
    """Norms that jump above their own history: what jumps together is one finding."""
    if not len(tree.levels):
        return
    jumps = jumps_of(np.where(np.insert(tree.redundant, 0, False), np.nan, tree.levels), tree.thresholds)
    entries = np.flatnonzero(jumps.any(axis=1))
    if not entries.size:
        return
    events = np.split(entries, np.flatnonzero(np.diff(entries) > _TOGETHER) + 1)
    for event in events if len(events) <= _MOST_EVENTS else [entries]:
        yield _spike(tree, jumps[event], event)


def _spike(tree: Searched, jumps: np.ndarray, event: np.ndarray) -> Finding:
    """The finding of the jumps [entries, 1 + leaves] at the entries of one event."""
    highest, name = jumps.max(axis=0), tree.name
    column = 0 if highest[0] else int(highest.argmax())
    top = int(event[jumps[:, column].argmax()])
    struck = [leaf for leaf in np.argsort(-highest[1:], kind="stable").tolist() if highest[leaf + 1]]
    norm, times, step = tree.levels[top, column], 10 ** float(highest[column]), int(tree.norm.first[top])
    path, n = tree.path(column - 1) if column else "", len(struck)
    if not struck:
        struck = [int(np.nanargmax(tree.levels[top, 1:]))]
        also = f"; most of it is {name}{tree.path(struck[0])}"
    elif column:
        also = f", and so did {n - 1} other lea{'ves' if n > 2 else 'f'}" if n > 1 else ""
    else:
        also = f"; {n} of {len(highest) - 1} {tree.nouns} jumped, {name}{tree.path(struck[0])} most: "
        also += f"{factor_text(10 ** highest[struck[0] + 1])}×"
    more = f" It jumped at {len(event)} steps in all." if len(event) > 1 else ""
    return Finding(
        "spike", name, path, column - 1, int(tree.norm.first[event[0]]), int(tree.norm.until[event[-1]]),
        (("norm", float(norm)), ("times", float(times)), ("steps", len(event)), ("leaves", n)),
        f"The norm of {name}{path} jumped to {digits_text(norm)} at step {step}, {factor_text(times)}× its median "
        f"before{also}.{more}",
        _update_before(tree, event) or _BATCH,
        tuple(struck), times / tree.thresholds.spike,
    )  # fmt: skip


def _update_before(tree: Searched, event: np.ndarray) -> str:
    """What is known of the update in the step before the first jump, if it jumped itself; else nothing."""
    name, step = sibling_name(tree.name, "updates"), int(tree.norm.first[event[0]]) - 1
    if kind_of(tree.name) != "grads" or "norm" not in tree.history.statistics(name):
        return ""
    updates = tree.history.values(name, "norm")
    root = np.sqrt(np.nansum(updates.high**2, axis=1))
    at = np.flatnonzero((updates.first <= step) & (step <= updates.until))
    before = root[max(at[0] - _BEFORE, 0) : at[0]] if at.size else root[:0]
    if len(before) < tree.thresholds.fewest_steps or not (usual := np.median(before)):
        return ""
    times = root[at[0]] / usual
    if times <= tree.thresholds.spike:
        return ""
    return (
        f"The update before it, in step {step}, was {factor_text(float(times))}× its median, of a gradient that had "
        "not jumped: look at the learning rate and its schedule first, then at the batch."
    )


def jumps_of(norms: np.ndarray, thresholds: Thresholds) -> np.ndarray:
    """float[k, columns]: for a spike, how far it is above the median of the norms before, in powers of ten; else 0.

    Entries are compared in blocks with those before the block, and each with the last entries before it.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log10(norms)
    logs[~np.isfinite(logs)] = np.nan
    jumps = np.zeros_like(logs)
    fewest = max(thresholds.fewest_steps, 4)
    starts = np.arange(fewest, len(logs), _BLOCK)
    padded = np.concatenate([np.full((_BEFORE, logs.shape[1]), np.nan), logs, np.full((_BLOCK, logs.shape[1]), np.nan)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, _BEFORE, axis=0)  # [i]: those before i
    blocks = np.lib.stride_tricks.sliding_window_view(padded[_BEFORE:], _BLOCK, axis=0)  # [i]: i and those after it
    n_at_once = max(_AT_ONCE // (_BEFORE * logs.shape[1]), 1)
    for at in range(0, len(starts), n_at_once):
        some = starts[at : at + n_at_once]
        before = np.sort(windows[some], axis=2)  # NaN last
        n_known = np.count_nonzero(~np.isnan(before), axis=2)
        middle = _middle(before, n_known)
        deviation = 1.4826 * _middle(np.sort(np.abs(before - middle[..., None]), axis=2), n_known)
        jump = blocks[some] - middle[..., None]
        with np.errstate(invalid="ignore"):
            is_spike = (jump > np.log10(thresholds.spike)) & (jump > thresholds.spike_deviations * deviation[..., None])
        is_spike &= (n_known >= fewest)[..., None]
        block, column, place = np.nonzero(is_spike)
        jumps[some[block] + place, column] = jump[is_spike]
    entry, column = np.nonzero(jumps)
    near = np.sort(padded[entry[:, None] + np.arange(_BEFORE - _NEAR, _BEFORE), column[:, None]], axis=1)
    with np.errstate(invalid="ignore"):
        is_jump = logs[entry, column] - _middle(near, np.count_nonzero(~np.isnan(near), axis=1)) > np.log10(
            thresholds.spike
        )
    jumps[entry[~is_jump], column[~is_jump]] = 0
    return jumps


def _middle(ordered: np.ndarray, n_known: np.ndarray) -> np.ndarray:
    """The median of the first `n_known` numbers along the last axis."""
    low, high = np.maximum(n_known - 1, 0) // 2, np.minimum(n_known // 2, ordered.shape[-1] - 1)
    low, high = (np.take_along_axis(ordered, place[..., None], axis=-1)[..., 0] for place in (low, high))
    return (low + high) / 2


# Findings about gradients that are clipped in nearly every step.

_SAME, _BOUND = 1e-4, 1e-3  # relative tolerances: of equal norms; of norms at the same bound
_NEARLY_ALL = 0.95  # of the changed norms
_STEADIER = 30.0  # how many times less than what is clipped a norm at a bound moves; a tiny learning rate keeps both


class _Compared(NamedTuple):
    """Norms of the same steps before and after a transformation of the gradients.

    Attributes:
      steps: int64[k].
      before, after: float64[k, leaves], without leaves that have no numbers.
      largest: float64[k]: the largest magnitude after it; None if not measured.
    """

    steps: np.ndarray
    before: np.ndarray
    after: np.ndarray
    largest: np.ndarray | None


def clipping(tree: Searched) -> Iterator[Finding]:
    """Gradients that are clipped in nearly every step.

    If they were measured before and after clipping, the two are compared. Otherwise gradients with the same norm in
    nearly every step are reported. Of what the optimizer receives this is told where no tap of the same tells it.
    """
    history, name, thresholds = tree.history, tree.name, tree.thresholds
    is_received = kind_of(name) == "received"
    if not (tree.is_gradient or is_received) or "norm" not in history.statistics(name):
        return
    if is_received and any(True for tapped in _alike(tree) for _ in clipping(tapped)):
        return
    earlier = reversed(list(history.sources)[: list(history.sources).index(name)])
    for before in [sibling_name(name, "grads")] if is_received else earlier:
        compared = _compared(history, before, name, thresholds)
        if history.sources[before].unscaled:  # the bound is one of the unscaled gradients
            break
        if compared is not None:
            yield from _always_smaller(compared, before, name, thresholds)
            return
    if not is_received or any(history.sources[sibling_name(name, "grads")].unscaled):
        yield from _always_the_same(history, name, thresholds)


def _alike(received: Searched) -> Iterator[Searched]:
    """The gradients, and what was tapped, that may be of the parameters of what the optimizer receives."""
    for name, source in received.history.sources.items():
        other = replace(received, name=name)
        if other.is_gradient and sum(source.sizes) == sum(received.source.sizes):
            yield other


def _compared(history: History, before: str, after: str, thresholds: Thresholds) -> _Compared | None:
    """None if the sources differ in leaves or share too few steps, or if gradients grew from one to the other."""
    a, b = history.sources[before], history.sources[after]
    if is_beside(before) or (a.paths, a.sizes) != (b.paths, b.sizes):
        return None
    (steps, tops), (others, bottoms) = (_exact(history, name, "norm") for name in (before, after))
    common, left, right = np.intersect1d(steps, others, assume_unique=True, return_indices=True)
    has_number = np.array(a.has_number, bool)
    tops, bottoms = tops[left][:, has_number], bottoms[right][:, has_number]
    known = np.isfinite(tops).all(axis=1) & np.isfinite(bottoms).all(axis=1) & tops.any(axis=1) & bottoms.any(axis=1)
    steps, tops, bottoms = common[known], tops[known], bottoms[known]
    if len(steps) < max(thresholds.fewest_steps, 1) or (bottoms > tops * (1 + _SAME)).any():
        return None
    at, largest = _exact(history, after, "max_abs")
    is_measured = bool(np.isin(steps, at).all())
    largest = largest[np.searchsorted(at, steps)][:, has_number].max(axis=1) if is_measured else None
    return _Compared(steps, tops, bottoms, largest)


def _exact(history: History, name: str, statistic: str) -> tuple[np.ndarray, np.ndarray]:
    """The steps that are kept exactly, each once, and the values of the leaves at these steps."""
    timeline = history.values(name, statistic)
    steps, places = np.unique(timeline.until[timeline.n == 1], return_index=True)
    return steps, timeline.latest[timeline.n == 1][places]


def _always_smaller(compared: _Compared, before: str, name: str, thresholds: Thresholds) -> Iterator[Finding]:
    tops, bottoms = (np.linalg.norm(norms, axis=1) for norms in (compared.before, compared.after))
    is_less = compared.after < compared.before * (1 - _SAME)
    is_clipped = is_less.any(axis=1)
    part = float(is_clipped.mean())
    if part < thresholds.clipping or not _is_a_bound(compared, bottoms, is_less):
        return
    top, bottom = (float(np.median(norms[is_clipped])) for norms in (tops, bottoms))
    has_one_bound = _is_bound(bottoms[is_clipped], tops[is_clipped])
    what = "what the optimizer receives" if kind_of(name) == "received" else name
    most = digits_text(np.quantile(tops, 0.9), 2)
    where = f"to about {most}, which nine of ten steps stay below" if has_one_bound else ""
    # A normalisation does the same to all gradients that are larger than what it makes of them.
    is_sure = not (has_one_bound and is_clipped.all())
    how, then = ("Clipping", "Then") if is_sure else ("Clipping, or a normalisation,", "If it is clipping,")
    yield Finding(
        "clipping", name, "", -1, int(compared.steps[0]), int(compared.steps[-1]),
        (("norm", bottom), ("norm before", top), ("part of steps", part)),
        f"{how} makes {what} smaller than {before} in {part:.0%} of the steps: the norm is {number_text(top)} "
        f"before it and {number_text(bottom)} after it.",
        f"{then} the bound only rescales the learning rate: raise it{' ' * bool(where)}{where}, or lower the learning "
        "rate instead.",
        (), top / bottom,
        rank=Rank.CHOICE,
    )  # fmt: skip


def _is_a_bound(compared: _Compared, norms: np.ndarray, is_less: np.ndarray) -> bool:
    """Whether gradients were clipped at a bound, not scaled by a learning rate.

    A clipped norm, largest magnitude or norm of a leaf is constant; or leaves are unchanged in some steps. What is
    unchanged has been smaller: scales by the norm of a parameter, as LARS has them, are 1 where that is zero.
    """
    is_clipped = is_less.any(axis=1)
    tops = np.linalg.norm(compared.before, axis=1)
    before, stays = np.where(is_less, compared.before, 0), compared.after >= compared.before * (1 - 1e-6)
    stays &= (compared.after > 0) & is_less.any(axis=0)
    if (np.where(stays, compared.before, 0).max(axis=0) > before.max(axis=0)).any():
        return False
    if _is_bound(norms[is_clipped], tops[is_clipped]):
        return True
    if compared.largest is not None and _is_bound(compared.largest[is_clipped], tops[is_clipped]):
        return True
    relative = (_relative(x, is_less)[is_less] for x in (compared.after, compared.before))
    return _is_bound(*relative) or bool(stays.any())


def _relative(norms: np.ndarray, is_less: np.ndarray) -> np.ndarray:
    """The norms of each leaf beside their median where they are less."""
    return norms / np.ma.median(np.ma.array(norms, mask=~is_less), axis=0).filled(np.nan)


def _is_bound(values: np.ndarray, before: np.ndarray) -> bool:
    """Whether nearly all values are the same, though what they are made of is not."""
    spread, spread_before = (_spread(x, _NEARLY_ALL) for x in (values, before))
    return spread <= _BOUND and spread * _STEADIER <= spread_before


def _spread(values: np.ndarray, part: float) -> float:
    """How far this part of the values is from their median at most, beside it."""
    middle = float(np.median(values))
    return float(np.quantile(np.abs(values - middle), part)) / middle


def _always_the_same(history: History, name: str, thresholds: Thresholds) -> Iterator[Finding]:
    timeline: Timeline = history.values(name, "norm")
    is_exact = timeline.n == 1  # the norms of the leaves in a bucket can be of different steps
    is_exact &= ~occurs_in(history.values(name, "nonfinite"), timeline).any(axis=1)
    norms = timeline.latest[is_exact]
    root = np.sqrt(np.nansum(norms**2, axis=1))
    if root.size < max(thresholds.fewest_steps, 1) or not (root > 0).all():
        return
    bound = float(np.median(root))
    is_same = np.abs(root - bound) <= _SAME * bound
    part = float(np.mean(is_same))
    if part >= thresholds.clipping and _moves_inside(history, name, norms[is_same], root[is_same]):
        yield Finding(
            "clipping", name, "", -1, int(timeline.first[is_exact][0]), int(timeline.until[-1]),
            (("norm", bound), ("part of steps", part)),
            f"The norm of {name} was {number_text(bound)} in {part:.0%} of the steps: they are clipped always, "
            "or normalised.",
            "If it is clipping, the bound only rescales the learning rate: raise it to some times the usual norm "
            "before clipping (which a measurement placed before it shows), or lower the learning rate instead.",
            rank=Rank.CHOICE,
        )  # fmt: skip


def _moves_inside(history: History, name: str, norms: np.ndarray, root: np.ndarray) -> bool:
    """Whether gradients change, as far as the statistics show, and far more than their norm does.

    Others are nearly constant: the learning rate is tiny, the loss is linear, or the loop drops the new parameters.
    Under clipping by the global norm, the norms of several leaves vary, but that of a single leaf does not: there the
    largest magnitude decides.
    """
    if len(history.sources[name].paths) == 1:
        _, norms = _exact(history, name, "max_abs")
    moves = float(np.nanmax(np.ptp(norms, axis=0), initial=0.0))
    return moves > _SAME * root[0] and moves >= _STEADIER * float(np.ptp(root))
