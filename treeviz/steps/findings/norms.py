"""Findings that follow from norms: too large, too small, too different."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from treeviz.steps.findings.finding import Finding, Rank, Thresholds
from treeviz.steps.names import kind_of, sibling_name
from treeviz.steps.recording.history import History

_RECENT = 5  # entries


def levels(history: History, name: str, thresholds: Thresholds):
    """The norms over time as float[k, 1 + leaves], the whole tree first; None if there are too few steps."""
    if kind_of(name) in ("params", "updates"):
        return None
    timeline = history.values(name, "norm")
    if int(timeline.n.sum()) < thresholds.fewest_steps or len(timeline.n) < 2 * _RECENT:
        return None
    root = np.sqrt(np.nansum(timeline.high**2, axis=1, keepdims=True))
    return timeline, np.concatenate([root, timeline.high], axis=1)


def exploding(history: History, name: str, thresholds: Thresholds) -> Iterator[Finding]:
    """The norm of the whole tree has risen far above its earlier median, and stays there."""
    if (known := levels(history, name, thresholds)) is None:
        return
    timeline, norms = known
    root, paths = norms[:, 0], history.sources[name].paths
    before = root[:-_RECENT][root[:-_RECENT] > 0]
    if not before.size:
        return
    usual, now = float(np.median(before)), float(np.min(root[-_RECENT:]))
    if not now > thresholds.exploding * usual:
        return
    first = int(timeline.first[np.flatnonzero(root <= thresholds.exploding * usual)[-1] + 1])
    leaf = int(np.nanargmax(timeline.latest[-1]))
    yield Finding(
        "exploding", name, paths[leaf], leaf, first, int(timeline.until[-1]),
        (("norm", now), ("median before", usual)),
        f"The norm of {name} has stayed above {now:.3g} since, {now / usual:.3g} times its median of {usual:.3g}; "
        f"the largest part is {name}{paths[leaf]}.",
        "Try clipping by the global norm at a few times the usual norm, a lower learning rate or a longer warm-up; in "
        "recurrent and very deep models look at the initialisation and at missing normalisation.",
        (), now / usual / thresholds.exploding,
        rank=Rank.TRAINING_ENDS, severity="error",
    )  # fmt: skip


def _typical(history: History, name: str, thresholds: Thresholds):
    """Each leaf's median root mean square over time, NaN where it has none or is zero."""
    if (known := levels(history, name, thresholds)) is None:
        return None
    timeline, norms = known
    sizes = np.maximum(np.array(history.sources[name].sizes, float), 1)
    values = np.where(norms[:, 1:] > 0, norms[:, 1:], np.nan) / np.sqrt(sizes)
    with np.errstate(all="ignore"):
        typical = np.full(len(sizes), np.nan)
        has = np.isfinite(values).any(axis=0)
        typical[has] = np.nanmedian(values[:, has], axis=0)
    return timeline, typical


def vanishing(history: History, name: str, thresholds: Thresholds) -> Iterator[Finding]:
    """Leaves whose gradients are tiny compared with those of the others."""
    if (known := _typical(history, name, thresholds)) is None:
        return
    timeline, typical = known
    alive = np.isfinite(typical)
    if alive.sum() < 3:
        return
    usual = float(np.median(typical[alive]))
    paths = history.sources[name].paths
    for leaf in np.flatnonzero(alive & (np.nan_to_num(typical) < thresholds.vanishing * usual)):
        yield Finding(
            "vanishing", name, paths[leaf], int(leaf), int(timeline.first[0]), int(timeline.until[-1]),
            (("rms", float(typical[leaf])), ("median of leaves", usual)),
            f"{name}{paths[leaf]} is {typical[leaf]:.2g} on average, {typical[leaf] / usual:.1e} of what the leaves "
            f"usually have.",
            "Look at the initialisation, saturated activations (sigmoid, tanh, softmax) and missing residual "
            "connections or normalisation after it. Where it is rounding error alone, the parameter has no effect: a "
            "bias before a normalisation, the key bias of attention.",
            (), thresholds.vanishing * usual / float(typical[leaf]),
            rank=Rank.LEAF_ENDS,
        )  # fmt: skip


def imbalance(history: History, name: str, thresholds: Thresholds) -> Iterator[Finding]:
    """Layers of one kind whose gradients differ by orders of magnitude."""
    if (known := _typical(history, name, thresholds)) is None:
        return
    timeline, typical = known
    source = history.sources[name]
    groups: dict[tuple[str, int], list[int]] = {}
    for leaf, path in enumerate(source.paths):
        if np.isfinite(typical[leaf]):
            groups.setdefault((re.sub(r"[0-9]+", "*", path), source.sizes[leaf]), []).append(leaf)
    for (pattern, _), leaves in groups.items():
        if len(leaves) < 3:
            continue
        low, high = min(leaves, key=typical.__getitem__), max(leaves, key=typical.__getitem__)
        factor = float(typical[high] / typical[low])
        if factor > thresholds.imbalance:
            yield Finding(
                "imbalance", name, source.paths[high], high, int(timeline.first[0]), int(timeline.until[-1]),
                (("factor", factor), ("largest", float(typical[high])), ("smallest", float(typical[low]))),
                f"Among the {len(leaves)} leaves {name}{pattern}, that of {source.paths[high]} is {factor:.3g} times "
                f"that of {source.paths[low]}.",
                "Gradients should be of one size in layers of one kind: look at the initialisation (Glorot, He), the "
                "scale of residual branches, and normalisation between them.",
                tuple(leaves), factor / thresholds.imbalance,
            )  # fmt: skip


def ratio(history: History, name: str, thresholds: Thresholds) -> Iterator[Finding]:
    """Updates that are far too large or too small for their parameters."""
    if kind_of(name) != "updates":
        return
    of_params = sibling_name(name, "params")
    updates, ratios = history.values(name, "norm"), history.ratio(name, of_params)
    if ratios is None or ratios.n.sum() < thresholds.fewest_steps:
        return
    params = history.values(of_params, "norm")
    source = history.sources[of_params]
    with np.errstate(all="ignore"):
        root = np.sqrt(np.nansum(updates.latest**2, axis=1) / np.nansum(params.latest**2, axis=1))
        typical = [np.median(root), *np.median(ratios.latest, axis=0)]
    judged = [-1, *(leaf for leaf, size in enumerate(source.sizes) if size >= thresholds.ratio_size)]
    is_done = False
    for leaf in judged:
        value = float(typical[leaf + 1])
        if not np.isfinite(value) or value == 0 or thresholds.ratio_low <= value <= thresholds.ratio_high or is_done:
            continue
        is_done = leaf < 0  # a finding of the whole tree replaces those of its leaves
        path = "" if leaf < 0 else source.paths[leaf]
        is_high = value > thresholds.ratio_high
        yield Finding(
            "ratio", name, path, leaf, int(ratios.first[0]), int(ratios.until[-1]), (("ratio", value),),
            f"An update changes {of_params}{path} by {value:.1e} of its norm; about 1e-3 is usual.",
            "Lower the learning rate." if is_high else "Raise the learning rate, or look what makes the updates so "
            "small.", (), value / thresholds.ratio_high if is_high else thresholds.ratio_low / value,
        )  # fmt: skip
