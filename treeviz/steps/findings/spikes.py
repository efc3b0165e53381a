"""Findings that follow from sudden jumps of norms."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from treeviz.steps.findings.finding import Finding, Thresholds
from treeviz.steps.findings.searched import Searched, digits_text, factor_text
from treeviz.steps.names import kind_of, sibling_name

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
