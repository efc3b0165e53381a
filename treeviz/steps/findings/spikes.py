"""Findings that follow from sudden jumps of norms."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from treeviz.steps.findings.finding import Finding, Thresholds
from treeviz.steps.findings.norms import levels
from treeviz.steps.recording.history import History

_BEFORE = 50  # entries that a spike is compared with
_BLOCK = 25  # entries that are compared with the same earlier ones
_AT_ONCE = 1_000_000  # numbers that are sorted together


def spikes(history: History, name: str, thresholds: Thresholds) -> Iterator[Finding]:
    """Norms that jump above their own history: the largest jump of each leaf, or that of the whole tree instead."""
    if (known := levels(history, name, thresholds)) is None:
        return
    timeline, norms = known
    jumps = jumps_of(norms, thresholds)
    if not jumps.any():
        return
    paths = history.sources[name].paths
    struck = np.flatnonzero(jumps.any(axis=0))
    if struck[0] == 0:  # a spike of the whole tree replaces those of its leaves at the same steps
        is_covered = ~((jumps[:, struck] > 0) & (jumps[:, :1] == 0)).any(axis=0)
        is_covered[0] = False
        struck = struck[~is_covered]
    for column in struck:
        entries = np.flatnonzero(jumps[:, column])
        top = int(entries[np.argmax(jumps[entries, column])])
        leaf, step, jump = int(column) - 1, int(timeline.first[top]), float(jumps[top, column])
        path = paths[leaf] if leaf >= 0 else ""
        largest = int(np.nanargmax(norms[top, 1:]))
        where = "" if leaf >= 0 else f"; most of it is {name}{paths[largest]}"
        yield Finding(
            "spike", name, path, leaf, int(timeline.first[entries[0]]), int(timeline.until[entries[-1]]),
            (("norm", float(norms[top, column])), ("times", float(10**jump)), ("steps", len(entries))),
            f"The norm of {name}{path} jumped to {norms[top, column]:.3g} at step {step}, {10**jump:.3g} times its "
            f"median before{where}.",
            "Look at that step's batch; clipping by the global norm bounds what one batch can do. In Adam, a lower "
            "b2 or a larger eps helps where second moments are too old.",
            (largest,) if leaf < 0 else (),
            10**jump / thresholds.spike,
        )  # fmt: skip


def jumps_of(norms: np.ndarray, thresholds: Thresholds) -> np.ndarray:
    """float[k, columns]: for a spike, how far it is above the median of the norms before, in powers of ten; else 0.

    Entries are compared in blocks with those before the block, so that a new level is one spike.
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
    return jumps


def _middle(ordered: np.ndarray, n_known: np.ndarray) -> np.ndarray:
    """The median of the first `n_known` numbers along the last axis."""
    low, high = np.maximum(n_known - 1, 0) // 2, np.minimum(n_known // 2, ordered.shape[-1] - 1)
    low, high = (np.take_along_axis(ordered, place[..., None], axis=-1)[..., 0] for place in (low, high))
    return (low + high) / 2
