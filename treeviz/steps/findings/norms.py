"""Findings from norms: exploding, vanishing, imbalanced, spiking or clipped gradients, and update ratios."""

from __future__ import annotations

import itertools
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
)
from treeviz.steps.recording.history import Timeline, occurs_in
from treeviz.steps.statistics import FINITE, is_beside, kind_of, result_kind, shape_of
from treeviz.tree.text import number_text

_FEWEST_LAYERS = 5  # for a trend over depth
_LOST_IN_ROUNDING = 1e-4  # relative to the largest leaf: below it, an update may be lost in rounding of its parameter
_SIMILAR = 30.0  # the largest factor between similar layers
_LEAP = 3.0  # relative to the parameters' norm: ordinary first updates stay below it
_GAIN = 0.5  # rms of a layer's weights times the root of its fan-in; 1 for LeCun's initialisation
_OUTGROWN = 10.0  # a gain that means an outgrown layer, whatever its first gain was
_FAR_TOO_LARGE = 0.3  # updates relative to all parameters, 300 times what is usual, if NaN follows
_FEWEST_ELEMENTS = 64  # of parameters that did not start at zero
_SETTLED = 0.1  # relative to the first gradients
_NO_UPDATE = 2.0**-24  # relative to the parameters, whose rounding in float32 it does not exceed
_SMALLEST_REGIME = 1e-6  # of updates, relative to the parameters, before they end
_RATE_JUMP = 2.0  # of updates relative to parameters: those of Adam change by a few percent in a step
JUMP = "jump"  # the factor of such a jump
_LOOK_AFTER = (
    "Look at the initialisation, saturated activations (sigmoid, tanh, softmax) and missing residual connections or "
    "normalisation after it"
)


def exploding(tree: Searched) -> Iterator[Finding]:
    """The norm of the whole tree rose far above its earlier median and stays there."""
    if not len(tree.levels):
        return
    root, limit = tree.levels[:, 0], tree.thresholds.exploding
    earlier = root[:-RECENT][root[:-RECENT] > 0]
    if not earlier.size:
        return
    usual, last = float(np.median(earlier)), float(np.min(root[-RECENT:]))
    if not last > limit * usual:
        return
    first = int(tree.norm.begins[np.flatnonzero(root <= limit * usual)[-1] + 1])
    leaf = int(np.nanargmax(tree.norm.latest[-1]))
    yield tree.finding(
        "exploding", leaf, (("norm", last), ("median before", usual)),
        f"The norm of {tree.name} has stayed above {digits_text(last)} since {tree.numbering.text(first)}, "
        f"{factor_text(last / usual)}× its median of {digits_text(usual)}; the largest part is {tree.text([leaf])}.",
        "Try clipping by the global norm at a few times the usual norm, a lower learning rate or a longer warm-up; in "
        "recurrent and very deep models look at the initialisation and at missing normalisation.",
        (), last / usual / limit, Rank.TRAINING_ENDS, severity="error", first=first,
    )  # fmt: skip


def redundant(tree: Searched) -> Iterator[Finding]:
    """Leaves whose gradient is mathematically zero: only rounding error is measured."""
    leaves = np.flatnonzero(tree.redundant).tolist()
    if leaves:
        yield tree.finding(
            "redundant", leaves[0], (("leaves", len(leaves)),),
            f"The gradient of {listed([*map(tree.path, leaves)])} is zero but for rounding errors.",
            "Such a parameter has no effect on the loss, like the key bias of attention, a bias before a batch "
            "normalisation, or weights whose input is zero. Nothing is wrong; you may leave it out.",
            leaves, rank=Rank.INFORMATION,
        )  # fmt: skip


def vanishing(tree: Searched) -> Iterator[Finding]:
    """Leaves whose gradients shrink from layer to layer, or are tiny compared with the others."""
    typical, is_reported = np.where(tree.redundant, np.nan, tree.typical), np.zeros(len(tree.typical), bool)
    falls = [leaves for leaves in _layer_series(tree, typical) if _trend(tree, typical[leaves]) > 0]
    if falls:
        leaves = max(falls, key=lambda leaves: typical[leaves[-1]] / typical[leaves[0]])
        low, high, n = leaves[0], leaves[-1], len(leaves) - 1
        factor = float(typical[high] / typical[low])
        all_leaves = sorted((leaf for leaves in falls for leaf in leaves), key=typical.__getitem__)
        is_reported[all_leaves] = True
        yield tree.finding(
            "vanishing", low,
            (("factor", factor), ("largest", float(typical[high])), ("smallest", float(typical[low]))),
            f"{tree.name} vanish with depth: from {tree.path(high)} to {tree.path(low)} they "
            f"shrink {factor_text(factor)}-fold, about {digits_text(factor ** (1 / n), 2)}-fold at each layer.",
            "Look at the initialisation, saturated activations (sigmoid, tanh) and missing residual connections or "
            "normalisation.",
            all_leaves, factor / tree.thresholds.imbalance, Rank.LEAF_ENDS,
        )  # fmt: skip
    is_lost, is_unchanged, largest = _lost_in_rounding(tree, np.where(is_reported, np.nan, typical))
    for run in tree.runs(is_lost):
        rms, unmoved = float(typical[run[0]]), [tree.path(leaf) for leaf in run if is_unchanged[leaf]]
        is_reported[run] = True
        yield tree.finding(
            "vanishing", run[0], (("rms", rms), ("largest", float(typical[largest]))),
            f"{tree.text(run[:1])} is {digits_text(rms, 2)} on average, {digits_text(rms / typical[largest], 2)} of "
            f"that of {tree.path(largest)}"
            f"{f'; {len(run) - 1} before it are as small' if len(run) > 1 else ''}: {listed(unmoved)} did not change.",
            f"{_LOOK_AFTER}; or at a mask of the optimizer.",
            run, float(_LOST_IN_ROUNDING * typical[largest] / np.min(typical[run])), Rank.LEAF_ENDS,
        )  # fmt: skip
    is_tiny = _is_vanishing(tree, typical) & ~is_reported
    usual = float(np.median(typical[np.isfinite(typical)])) if is_tiny.any() else 0.0
    for run in tree.runs(is_tiny):
        rms, others = float(typical[run[0]]), len(run) - 1
        others = f"; so are {others} leaves before it" if others > 1 else "; so is the leaf before it" * others
        yield tree.finding(
            "vanishing", run[0], (("rms", rms), ("median of leaves", usual)),
            f"{tree.text(run[:1])} is {digits_text(rms, 2)} on average, {digits_text(rms / usual, 2)} times the median "
            f"of all leaves{others}.",
            f"{_LOOK_AFTER}.",
            run, tree.thresholds.vanishing * usual / float(np.min(typical[run])), Rank.LEAF_ENDS,
        )  # fmt: skip


def _lost_in_rounding(tree: Searched, typical: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """The leaves so small that updates in their run were lost; those that did not change; and the largest leaf."""
    is_unchanged, is_lost = _unchanged(tree), np.zeros(len(typical), bool)
    moved = np.where(is_unchanged, np.nan, typical)
    if not is_unchanged.any() or not np.isfinite(moved).any():
        return is_lost, is_lost, 0
    largest = int(np.nanargmax(moved))
    with np.errstate(invalid="ignore"):
        is_small = typical < _LOST_IN_ROUNDING * typical[largest]
    for run in tree.runs(is_small):
        is_lost[run] = (is_small & is_unchanged)[run].any()
    return is_lost, is_lost & is_unchanged, largest


def _unchanged(grads: Searched) -> np.ndarray:
    """bool[leaves]: whether a small parameter, which is inspected in every step, still has its first value."""
    paths, is_same = grads.source.paths, np.zeros(len(grads.source.paths), bool)
    if not grads.n_steps or grads.n_steps != grads.n_spanned:
        return is_same  # steps that were not inspected may have changed it
    for name, source in grads.history.sources.items():
        zeros = grads.history.values(name, "zeros").latest if result_kind(name) == "unchanged" else []
        for leaf in np.flatnonzero(zeros[-1]).tolist() if len(zeros) else []:
            # A parameter's path may start with an argument name; a gradient's path may end with a layer.
            param = source.paths[leaf]
            is_same |= [p == param if param in paths else param.endswith(p) or p.startswith(param) for p in paths]
    return is_same


def is_able_to_update(grads: Searched) -> np.ndarray:
    """bool[leaves]: whether a leaf has a gradient, but for redundant ones and those whose updates round away."""
    highest = grads.norm.high.max(axis=0)
    tiny = [leaf for finding in vanishing(grads) for leaf in finding.leaves]
    is_lost = grads.redundant | _lost_in_rounding(grads, grads.typical)[0]
    is_lost[tiny] |= highest[tiny] < np.median(highest)
    return (highest > 0) & ~is_lost


def imbalance(tree: Searched) -> Iterator[Finding]:
    """Layers of one kind whose gradients grow towards the input, or one of which differs from the others."""
    typical = np.where(tree.redundant | _is_vanishing(tree, tree.typical), np.nan, tree.typical)
    growing, differing = [], []  # the factor, its reference, and the leaves, the worst first
    for leaves in _layer_series(tree, typical):
        values = typical[leaves]
        factors = np.maximum(values / np.median(values), np.median(values) / values)
        is_far = factors > tree.thresholds.imbalance
        if _trend(tree, values) < 0:
            worst = sorted(leaves, key=lambda leaf: -typical[leaf])
            growing.append((float(typical[worst[0]] / typical[worst[-1]]), tree.path(worst[-1]), worst))
        elif 0 < 4 * is_far.sum() < len(leaves) and np.ptp(np.log10(values[~is_far])) < np.log10(_SIMILAR):
            worst = [leaf for _, leaf in sorted(zip(-factors, leaves, strict=True))][: is_far.sum()]
            differing.append((float(typical[worst[0]] / np.median(values)), "the median of these layers", worst))
    for series in filter(None, (growing, differing)):
        factor, reference, worst = max(series, key=lambda item: max(item[0], 1 / item[0]))
        all_leaves = [*worst, *(leaf for *_, leaves in series for leaf in leaves if leaf not in worst)]
        yield tree.finding(
            "imbalance", worst[0],
            (("factor", factor), ("rms", float(typical[worst[0]])), ("leaves", len(all_leaves))),
            f"{tree.text(worst[:1])} is {factor_text(factor)} times as large as {reference}.",
            "Layers of one kind should have gradients of similar size: look at the initialisation (Glorot, He), the "
            "scale of residual branches, and normalisation between them.",
            all_leaves, max(factor, 1 / factor) / tree.thresholds.imbalance,
        )  # fmt: skip


def _is_vanishing(tree: Searched, typical: np.ndarray) -> np.ndarray:
    """bool[leaves]: whether the gradient is so small compared with the others that it vanishes."""
    alive = np.isfinite(typical)
    if alive.sum() < 3:
        return np.zeros(len(typical), bool)
    with np.errstate(invalid="ignore"):
        return typical < tree.thresholds.vanishing * np.median(typical[alive])


def _layer_series(tree: Searched, typical: np.ndarray) -> list[list[int]]:
    """Groups of leaves that differ only in their layer numbers, the first layer first."""
    is_known = np.isfinite(typical)
    known = ([leaf for leaf in leaves if is_known[leaf]] for leaves in tree.order.siblings_by_number)
    return [leaves for leaves in known if len(leaves) >= _FEWEST_LAYERS]


def _trend(tree: Searched, values: np.ndarray) -> int:
    """1 if gradients grow from the first to the last layer by more than `imbalance`, -1 if they fall, 0 if neither.

    A single jump is not a trend: it separates two parts of a model, such as the actor and the critic.
    """
    logs = np.log10(values)
    if np.ptp(logs) < np.log10(tree.thresholds.imbalance) or np.abs(np.diff(logs)).max() > np.ptp(logs) / 2:
        return 0
    correlation = np.corrcoef(np.arange(len(logs)), logs)[0, 1]
    return int(np.sign(correlation)) if abs(correlation) > 0.9 else 0


def _leap_finding(tree: Searched, moves: np.ndarray) -> Finding | None:
    """The first updates moved most parameters by several times their norm, so their initialisation is lost."""
    params, sizes = tree.sibling("params"), np.array(tree.source.sizes)
    is_first = _since(params.norm) < tree.thresholds.fewest_steps
    norm = params.norm.latest[is_first]
    distance = np.maximum(tree.norm.latest[is_first], norm - norm[0])
    is_nonzero = moves & (norm[0] > 0)  # the others start at zero
    if sizes[is_nonzero].sum() < tree.thresholds.ratio_size:
        return None
    grads, fewest_steps = tree.sibling("grads"), tree.thresholds.fewest_steps
    if grads.name in tree.history.sources:  # gradients fall if a solver jumps to the optimum
        since = _since(grads.norm)
        root = total_norm(grads.norm.high[since < fewest_steps])
        falls = len(root) > 1 and root[1:].max() < root[0] and np.median(root[1:]) < _SETTLED * root[0]
        if since[-1] < fewest_steps - 1 or falls:
            return None
    times = np.sqrt(np.nansum(distance[:, is_nonzero] ** 2, axis=1) / np.sum(norm[0, is_nonzero] ** 2))
    # Embeddings, heads and solutions of linear problems start near zero and are meant to leave it.
    shapes = [shape_of(shape) for shape in tree.source.shapes or ("",) * len(sizes)]
    n_in, fewest = np.array([(math.prod(s[:-1]), min(s)) if len(s) > 1 else (0, 0) for s in shapes]).T / sizes
    is_lost = (norm[0] * np.sqrt(n_in) >= _GAIN) | (distance * np.sqrt(fewest) >= _OUTGROWN)
    leaping = is_nonzero & (distance > _LEAP * norm[0]) & is_lost
    is_leap = (leaping @ sizes > sizes[is_nonzero].sum() / 2) & (times > _LEAP)
    if not is_leap.any():
        return None
    entry = np.argmax(is_leap)
    first, until, ratio = params.span[0], int(params.norm.ends[entry]), float(times[entry])
    return tree.finding(
        "ratio", -1, (("ratio", ratio),),
        f"The updates moved {params.name} by {digits_text(ratio)} times their norm in "
        f"{params.numbering.span_text(first, until)}; 1e-3 in a step is usual.",
        "What the parameters began with is lost. Lower the learning rate, or let it rise over the first steps.",
        (), ratio / _LEAP, Rank.TRAINING_ENDS, first=first, until=until,
    )  # fmt: skip


def _since(timeline: Timeline) -> np.ndarray:
    """int64[k]: the number of steps from the first one to each entry."""
    return (timeline.begins - timeline.begins[0]) // timeline.numbering.apart


def total_norm(norms: np.ndarray) -> np.ndarray:
    return np.sqrt(np.nansum(norms**2, axis=1))


def ratio(tree: Searched) -> Iterator[Finding]:
    """Updates that are far too large or too small for their parameters."""
    if kind_of(tree.name) != "updates":
        return
    params, thresholds = tree.sibling("params"), tree.thresholds
    ratios = tree.history.ratio(tree.name, params.name, "finite_norm")
    if ratios is None:
        return
    is_moving = tree.norm.high.max(axis=0) > 0  # the others are dead, frozen or not trained
    if (leap := _leap_finding(tree, is_moving)) is not None:
        yield leap
    if not tree.has_enough_steps:
        return
    yield from _rate_jumps(tree)
    # In sampled steps, parameters that start at zero are still tiny in the first sample.
    rest = slice(int(tree.n_steps < thresholds.fewest_steps), _entries_until_still(tree))
    root, relative = _total_ratio(tree)[rest], ratios.latest[rest]
    if len(relative) < FEWEST_LOOKS:
        return
    with np.errstate(all="ignore"):
        typical = np.array([np.median(root), *np.median(relative, axis=0)])
        sizes = params.source.sizes
        shapes = params.source.shapes
        is_whole = is_moving.all() and not (
            shapes and all("," not in shape for shape in shapes)
        )  # vectors may start at 0
        sizes = np.array([np.inf if is_whole else np.dot(is_moving, sizes), *sizes])
        is_judged = np.isfinite(typical) & (typical > 0) & (sizes >= thresholds.ratio_size)
        # A ratio that still grows, as in a warm-up, is not too low.
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
        value, n_more = float(typical[leaves[0] + 1]), len(leaves) - 1
        others = f" The ratio of {n_more} more is too {'high' if is_high else 'low'}." if n_more else ""
        where = " (of the leaves that move)" * (not is_moving.all()) if leaves[0] < 0 else tree.path(leaves[0])
        yield tree.finding(
            "ratio", leaves[0], (("ratio", value),),
            f"The updates are {digits_text(value, 2)} times the norm of {params.name}{where}; about 1e-3 is usual."
            f"{others}",
            "Lower the learning rate." if is_high else "Raise the learning rate, or look for what makes the updates "
            "so small.",
            (leaf for leaf in leaves if leaf >= 0), float(times[leaves[0] + 1]), first=int(ratios.begins[rest][0]),
        )  # fmt: skip


def _total_ratio(updates: Searched) -> np.ndarray:
    """float[entries]: the norm of all updates, relative to that of the parameters that ever move."""
    params = updates.sibling("params").norm.latest[:, updates.norm.high.max(axis=0) > 0]
    with np.errstate(all="ignore"):
        return np.sqrt(np.nansum(updates.norm.latest**2, axis=1) / np.nansum(params**2, axis=1))


def largest_updates(tree: Searched, before: int) -> tuple[int, float] | None:
    """The last step with the largest updates relative to the parameters, and their ratio; None if that is usual."""
    updates, params, grads = (tree.sibling(kind) for kind in ("updates", "params", "grads"))
    if not tree.history.has_ratio(updates.name, params.name):
        return None
    entries, latest = np.flatnonzero(updates.norm.ends < before), params.norm.latest
    if not len(entries):
        return None
    is_old = (latest[0] > 0) & (updates.norm.high[entries].max(axis=0) > 0)  # the others start at zero, or do not move
    if is_old @ np.array(updates.source.sizes) < _FEWEST_ELEMENTS:
        return None
    ratios = [float(np.divide(*(np.linalg.norm(x[i, is_old]) for x in (updates.norm.latest, latest)))) for i in entries]
    at = len(ratios) - 1 - int(np.argmax(ratios[: -_NEAR - 1 : -1]))
    step = int(updates.norm.begins[entries[at]])
    norm = grads.norm if grads.name in tree.history.sources else updates.norm
    root = total_norm(norm.high[norm.begins <= step])
    is_of_gradients = len(root) > 1 and root[-1] > _SIMILAR * np.median(root[:-1])
    return None if ratios[at] < _FAR_TOO_LARGE or is_of_gradients else (step, ratios[at])


def _entries_until_still(updates: Searched) -> int:
    """The number of entries until updates end for good although gradients do not, as after a schedule; or all."""
    grads, ends, fewest = updates.sibling("grads"), updates.norm.ends, updates.thresholds.fewest_steps
    if not updates.history.has_ratio(updates.name, updates.sibling("params").name):
        return len(ends)
    ratios, last = _total_ratio(updates), len(ends) - 1
    n = int(np.flatnonzero(np.append(np.inf, ratios) > _NO_UPDATE)[-1])
    is_long = n < last and (ends[-1] - updates.norm.begins[n]) // updates.numbering.apart >= fewest - 1
    if not n or not is_long or np.median(ratios[:n]) < _SMALLEST_REGIME:
        return len(ratios)
    if grads.has("norm"):
        is_alive = (grads.norm.high[grads.norm.begins >= updates.norm.begins[n]] > 0).any(axis=1)
        return n if is_alive.mean() > 0.5 else len(ratios)
    return n


def stopped(updates: Searched) -> Iterator[Finding]:
    """Updates that ended at some step, although gradients did not: a schedule that reached its end."""
    n = _entries_until_still(updates)
    if n == len(updates.norm.n):
        return
    first, n_still = int(updates.norm.begins[n]), int(updates.norm.n[n:].sum())
    yield updates.finding(
        "frozen", -1, (("steps", float(n_still)),),
        f"No update changed {updates.sibling('params').name} since {updates.numbering.text(first)}, though there is a "
        "gradient.",
        "Compare the length of the learning rate's schedule with that of the run.",
        (), ((updates.span[1] - first) // updates.numbering.apart + 1) / updates.thresholds.fewest_steps,
        Rank.TRAINING_ENDS, first=first,
    )  # fmt: skip


def _rate_jumps(updates: Searched) -> Iterator[Finding]:
    """The first jump of updates relative to parameters while gradients do not: a learning rate, or a lost state."""
    grads, deviations = updates.sibling("grads"), updates.thresholds.spike_deviations
    if updates.n_steps < updates.n_spanned or not grads.has("norm"):
        return
    ratios, roots = _total_ratio(updates), total_norm(grads.norm.high)
    thresholds = replace(updates.thresholds, spike=_RATE_JUMP, spike_deviations=deviations * 0.6)
    jumps = jumps_of(ratios[:, None], thresholds)[:, 0] if len(roots) == len(ratios) else np.zeros(0)
    for entry in np.flatnonzero(np.diff(jumps > 0, prepend=False) & (jumps > 0)).tolist():  # the first of each event
        before, later = slice(max(entry - _NEAR, 0), entry), ratios[entry + _NEAR : entry + 2 * _NEAR]
        # Gradients as large just before did not make the updates jump.
        is_of_gradient = roots[entry] > max(10 ** (jumps[entry] / 2) * np.median(roots[before]), roots[before].max())
        step, times = int(updates.norm.begins[entry]), 10 ** float(jumps[entry])
        # The first updates of Adam are as large as those after a lost state. Lookahead and SAM jump every few steps.
        if is_of_gradient or ratios[entry] <= times**0.5 * ratios[max(entry - _BEFORE, _NEAR) : entry].max(initial=0.0):
            continue
        is_lasting = not later.size or np.median(later) > ratios[entry] / times**0.5
        state = "" if is_lasting else "whether the optimizer's state was lost, as at a resume, and at "
        yield updates.finding(
            "ratio", -1, (("ratio", float(ratios[entry])), (JUMP, times)),
            f"The updates jumped to {factor_text(times)}× their median at {updates.numbering.text(step)}, while the "
            "gradients did not.",
            f"Look at {state}the learning rate and its schedule.",
            (), times / _RATE_JUMP, first=step, until=step,
        )  # fmt: skip
        return


# Sudden jumps of norms.

_BEFORE = 50  # entries that a spike is compared with
_NEAR = 8  # the last of them, compared separately: a trend is not a spike
_LAG = 10  # entries between two that show the trend
_BLOCK = 25  # entries that are compared with the same earlier entries
_AT_ONCE = 1_000_000  # numbers sorted in one call
_COLUMNS = 10_000  # that are compared in one call
_TOGETHER = 5  # entries between jumps of one event
_MOST_EVENTS = 4  # with a finding each


def spikes(tree: Searched) -> Iterator[Finding]:
    """Norms that jump above their own history; simultaneous jumps are one finding."""
    if not len(tree.levels):
        return
    jumps = jumps_of(np.where(np.insert(tree.redundant, 0, False), np.nan, tree.levels), tree.thresholds)
    for event in events_of(jumps.any(axis=1)):
        yield _spike(tree, jumps[event], event)


def events_of(is_jump: np.ndarray) -> list[np.ndarray]:
    """The entries that jump, by event; all in one if there are many events."""
    entries = np.flatnonzero(is_jump)
    events = np.split(entries, np.flatnonzero(np.diff(entries) > _TOGETHER) + 1)
    return [] if not entries.size else events if len(events) <= _MOST_EVENTS else [entries]


def _spike(tree: Searched, jumps: np.ndarray, event: np.ndarray) -> Finding:
    """The finding about one event, from its jumps [entries, 1 + leaves]."""
    highest, name = jumps.max(axis=0), tree.name
    column = 0 if highest[0] else int(highest.argmax())
    top = int(event[jumps[:, column].argmax()])
    affected = [leaf for leaf in np.argsort(-highest[1:], kind="stable").tolist() if highest[leaf + 1]]
    norm, times, when = tree.levels[top, column], 10 ** float(highest[column]), tree.norm.steps_text(top)
    path, n = tree.path(column - 1) if column else "", len(affected)
    if not affected:
        affected = [int(np.nanargmax(tree.levels[top, 1:]))]
        others = f"; most of it is {tree.text(affected)}"
    elif column:
        others = f", and so did {n - 1} other lea{'ves' if n > 2 else 'f'}" if n > 1 else ""
    else:
        others = f"; {n} of {len(highest) - 1} {tree.nouns} jumped, {tree.text(affected[:1])} most: "
        others += f"{factor_text(10 ** highest[affected[0] + 1])}×"
    rest = f" It jumped at {len(event)} steps in all." if len(event) > 1 else ""
    advice = "Look at that step's batch"
    if kind_of(name) != "grads":
        advice += "."
    elif tree.sibling("updates").name not in tree.history.sources:
        advice += ", and at the learning rate: GradientInspector(updates=True) shows whether updates jumped before the "
        advice += "gradients."
    else:
        advice += ". Clipping by the global norm limits the effect of one batch; with Adam, a lower b2 or a larger eps "
        advice += "may help, too."
    return tree.finding(
        "spike", column - 1,
        (("norm", float(norm)), ("times", float(times)), ("steps", len(event)), ("leaves", n)),
        f"The norm of {name}{path} jumped to {digits_text(norm)} at {when}, {factor_text(times)}× its median "
        f"before{others}.{rest}",
        advice, affected, times / tree.thresholds.spike,
        first=int(tree.norm.begins[event[0]]), until=int(tree.norm.ends[event[-1]]),
    )  # fmt: skip


def jumps_of(norms: np.ndarray, thresholds: Thresholds) -> np.ndarray:
    """float[k, columns]: for a spike, log10 of its factor to the median of the last norms before it; else 0.

    A block of entries is compared with the line through the entries before the block, from which the noise is known,
    too: a norm or a loss may fall by a few percent in each step. Each entry is also compared with the last ones before.
    """
    if (n := norms.shape[1]) > _COLUMNS:
        parts = (norms[:, start : start + _COLUMNS] for start in range(0, n, _COLUMNS))
        return np.concatenate([jumps_of(part, thresholds) for part in parts], axis=1)
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
    for start in range(0, len(starts), n_at_once):
        batch = starts[start : start + n_at_once]
        before = windows[batch]
        slope = np.nan_to_num(_median(before[..., _LAG:] - before[..., :-_LAG]))[..., None] / _LAG
        before = before - slope * np.arange(-_BEFORE, 0)
        middle = _median(before)[..., None]
        deviation = 1.4826 * _median(np.abs(before - middle))[..., None]
        jump = blocks[batch] - middle - slope * np.arange(_BLOCK)
        least = np.maximum(thresholds.spike_deviations * deviation, np.log10(thresholds.spike))
        with np.errstate(invalid="ignore"):
            is_spike = jump > least
        is_spike &= np.count_nonzero(~np.isnan(before), axis=2, keepdims=True) >= fewest
        block, column, place = np.nonzero(is_spike)
        entry, column, least = batch[block] + place, column, least[block, column, 0]
        recent = padded[entry[:, None] + np.arange(_BEFORE - _NEAR, _BEFORE), column[:, None]]
        jump = logs[entry, column] - _median(recent)
        with np.errstate(invalid="ignore"):
            jumps[entry, column] = np.where(jump > least, jump, 0)
    return jumps


def _median(values: np.ndarray) -> np.ndarray:
    """The median along the last axis without NaN; NaN if there is nothing else. Sorting is faster than NumPy's."""
    ordered, n_known = np.sort(values, axis=-1), np.count_nonzero(~np.isnan(values), axis=-1)
    low, high = np.maximum(n_known - 1, 0) // 2, np.minimum(n_known // 2, ordered.shape[-1] - 1)
    low, high = (np.take_along_axis(ordered, place[..., None], axis=-1)[..., 0] for place in (low, high))
    return (low + high) / 2


# Gradients that are clipped in nearly every step.

_SAME, _BOUND = 1e-4, 1e-3  # relative tolerances: of equal norms; of norms at the same bound
_NEARLY_ALL = 0.95  # of the changed norms
_STEADIER = 30.0  # the factor by which a norm at a bound varies less than before clipping


class _NormPairs(NamedTuple):
    """Norms of the same steps before and after a transformation of the gradients."""

    steps: np.ndarray  # int64[k]: their positions
    before: np.ndarray  # float64[k, leaves], without leaves that have no numbers
    after: np.ndarray
    largest: np.ndarray | None  # float64[k]: the largest magnitude after it; None if not measured


def clipping(tree: Searched) -> Iterator[Finding]:
    """Gradients that are clipped in nearly every step.

    If the gradients were measured before and after clipping, the two are compared. Otherwise gradients with the same
    norm in nearly every step are reported. The optimizer's input is checked only if no tap of it has such a finding.
    """
    sources, is_received = tree.history.sources, kind_of(tree.name) == "received"
    if not (tree.is_gradient or is_received) or not tree.has("norm"):
        return
    same = (name for name, source in sources.items() if is_received and sum(source.sizes) == sum(tree.source.sizes))
    taps = (tapped for name in same if (tapped := replace(tree, name=name)).is_gradient)
    if any(True for tapped in taps for _ in clipping(tapped)):
        return
    earlier = [replace(tree, name=name) for name in itertools.takewhile(lambda name: name != tree.name, sources)]
    grads, is_sum = tree.sibling("grads"), False
    if is_received:  # whether several gradients before, as of micro-batches, make one after
        n_before, n_after = (len(_exact_values(x, "norm")[0]) for x in (grads, tree))
        is_sum = n_after > 0 and n_before >= 2 * n_after
    for before in [grads] if is_received else reversed(earlier):
        compared = _norm_pairs(before, tree)
        if is_sum or before.source.unscaled:  # the bound applies to the sum, or to the unscaled gradients
            break
        if compared is not None:
            yield from _always_smaller_finding(compared, before.name, tree)
            return
    if not is_received or is_sum or any(grads.source.unscaled):
        yield from _constant_norm_finding(tree)


def _norm_pairs(before: Searched, after: Searched) -> _NormPairs | None:
    """The norms at common steps; None if the leaves differ, too few steps are common, or gradients grew."""
    a, b = before.source, after.source
    if is_beside(before.name) or (a.paths, a.sizes) != (b.paths, b.sizes):
        return None
    (steps, norms_a), (steps_b, norms_b) = (_exact_values(tree, "norm") for tree in (before, after))
    common, left, right = np.intersect1d(steps, steps_b, assume_unique=True, return_indices=True)
    has_number = np.array(a.has_number, bool)
    norms_a, norms_b = norms_a[left][:, has_number], norms_b[right][:, has_number]
    is_known = np.logical_and.reduce([np.isfinite(x).all(axis=1) & x.any(axis=1) for x in (norms_a, norms_b)])
    steps, norms_a, norms_b = common[is_known], norms_a[is_known], norms_b[is_known]
    if len(steps) < max(after.thresholds.fewest_steps, 1) or (norms_b > norms_a * (1 + _SAME)).any():
        return None
    measured_steps, largest = _exact_values(after, "max_abs")
    is_measured = bool(np.isin(steps, measured_steps).all())
    largest = largest[np.searchsorted(measured_steps, steps)][:, has_number].max(axis=1) if is_measured else None
    return _NormPairs(steps, norms_a, norms_b, largest)


def _exact_values(tree: Searched, statistic: str) -> tuple[np.ndarray, np.ndarray]:
    """The positions of steps with an entry of their own, each once, and the values of the leaves there."""
    timeline = tree.values(FINITE + statistic)
    steps, places = np.unique(timeline.ends[timeline.n == 1], return_index=True)
    return steps, timeline.latest[timeline.n == 1][places]


def _always_smaller_finding(compared: _NormPairs, before: str, tree: Searched) -> Iterator[Finding]:
    norms_before, norms_after = (np.linalg.norm(norms, axis=1) for norms in (compared.before, compared.after))
    is_less = compared.after < compared.before * (1 - _SAME)
    is_clipped = is_less.any(axis=1)
    part = float(is_clipped.mean())
    if part < tree.thresholds.clipping or not _is_clipped_at_bound(compared, norms_before, norms_after, is_less):
        return
    top, bottom = (float(np.median(norms[is_clipped])) for norms in (norms_before, norms_after))
    has_one_bound = _is_constant(norms_after[is_clipped], norms_before[is_clipped])
    subject = "what the optimizer receives" if kind_of(tree.name) == "received" else tree.name
    typical_top = digits_text(np.quantile(norms_before, 0.9), 2)
    goal = f" to about {typical_top}, which nine of ten steps stay below" if has_one_bound else ""
    # A normalisation also maps all larger gradients to one norm.
    is_sure = not (has_one_bound and is_clipped.all())
    method, prefix = ("Clipping", "Then") if is_sure else ("Clipping, or a normalisation,", "If it is clipping,")
    yield tree.finding(
        "clipping", -1, (("norm", bottom), ("norm before", top), ("part of steps", part)),
        f"{method} makes {subject} smaller than {before} in {part:.0%} of the steps: the norm is {number_text(top)} "
        f"before it and {number_text(bottom)} after it.",
        f"{prefix} the bound only rescales the learning rate: raise it{goal}, or lower the learning rate instead.",
        (), top / bottom, Rank.CHOICE, first=int(compared.steps[0]), until=int(compared.steps[-1]),
    )  # fmt: skip


def _is_clipped_at_bound(compared: _NormPairs, tops: np.ndarray, norms: np.ndarray, is_less: np.ndarray) -> bool:
    """Whether gradients were clipped at a bound, rather than scaled by a learning rate.

    Then the norm, the largest magnitude or a leaf's norm is constant when clipped; or leaves stay unchanged in some
    steps. Unchanged gradients must be the smaller ones: LARS scales by a parameter's norm, and by 1 if that is zero.
    """
    is_clipped = is_less.any(axis=1)
    before, is_kept = np.where(is_less, compared.before, 0), compared.after >= compared.before * (1 - 1e-6)
    is_kept &= (compared.after > 0) & is_less.any(axis=0)
    if (np.where(is_kept, compared.before, 0).max(axis=0) > before.max(axis=0)).any():
        return False
    bounded = [norms] if compared.largest is None else [norms, compared.largest]
    if any(_is_constant(values[is_clipped], tops[is_clipped]) for values in bounded):
        return True
    both = compared.after, compared.before
    medians = [np.ma.median(np.ma.array(x, mask=~is_less), axis=0).filled(np.nan) for x in both]
    return _is_constant(*((x / m)[is_less] for x, m in zip(both, medians, strict=True))) or bool(is_kept.any())


def _is_constant(values: np.ndarray, before: np.ndarray) -> bool:
    """Whether nearly all values are equal, although the values before clipping are not."""
    spread, spread_before = (_spread(x) for x in (values, before))
    return spread <= _BOUND and spread * _STEADIER <= spread_before


def _spread(values: np.ndarray) -> float:
    """The largest relative distance of nearly all values from their median."""
    middle = float(np.median(values))
    return float(np.quantile(np.abs(values - middle), _NEARLY_ALL)) / middle


def _constant_norm_finding(tree: Searched) -> Iterator[Finding]:
    is_exact = tree.norm.n == 1  # in a bucket, the norms of the leaves can come from different steps
    is_exact &= ~occurs_in(tree.values("nonfinite"), tree.norm).any(axis=1)
    norms = tree.norm.latest[is_exact]
    root = total_norm(norms)
    if root.size < max(tree.thresholds.fewest_steps, 1) or not (root > 0).all():
        return
    bound = float(np.median(root))
    is_same = np.abs(root - bound) <= _SAME * bound
    part, norms, root = float(np.mean(is_same)), norms[is_same], root[is_same]
    if part < tree.thresholds.clipping:
        return
    # If gradients hardly vary themselves, the learning rate is tiny, the loss is linear, or the loop drops the new
    # parameters. Clipping by the global norm fixes the norm of a single leaf, so its largest magnitude is used.
    norms = _exact_values(tree, "max_abs")[1] if len(tree.paths) == 1 else norms
    variation = float(np.nanmax(np.ptp(norms, axis=0), initial=0.0)) if len(norms) else 0.0
    if variation > _SAME * root[0] and variation >= _STEADIER * float(np.ptp(root)):
        yield tree.finding(
            "clipping", -1, (("norm", bound), ("part of steps", part)),
            f"The norm of {tree.name} was {number_text(bound)} in {part:.0%} of the steps: they are always clipped, "
            "or normalised.",
            "If it is clipping, the bound only rescales the learning rate: raise the bound to a few times the usual "
            "norm (measure the gradients before clipping), or lower the learning rate instead.",
            rank=Rank.CHOICE, first=int(tree.norm.begins[is_exact][0]),
        )  # fmt: skip
