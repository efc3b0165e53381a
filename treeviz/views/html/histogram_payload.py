"""Pack histograms over time for the front end: a few bars for each row and step, relative to the highest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from treeviz.tree.series import Histograms

MAX_CELLS = 400_000  # of all histograms of a page
MAX_COLUMNS, MIN_COLUMNS = 200, 4
_LEVELS = 15  # of a bar, shown as a colour


def pack_histograms(histograms: Sequence[Histograms], add: Callable[[np.ndarray], int]) -> list[dict[str, Any]]:
    """The header's entry for each; `add` stores an array and returns the index of its buffer."""
    packed = []
    for each in histograms:
        counts = np.nan_to_num(np.asarray(each.counts, dtype=np.float64))
        n_rows, n_columns, _ = counts.shape
        used = np.flatnonzero(counts.any(axis=(0, 1)))
        if not len(used):
            continue
        bins = slice(int(used[0]), int(used[-1]) + 1)
        n_bins = bins.stop - bins.start
        most = min(MAX_COLUMNS, max(MIN_COLUMNS, MAX_CELLS // len(histograms) // (n_rows * n_bins)))
        width = -(-n_columns // most)
        starts = np.arange(0, n_columns, width)
        stops = np.append(starts[1:], n_columns)
        counts = np.add.reduceat(counts[:, :, bins], starts, axis=1)
        highest = counts.max(axis=2, keepdims=True)
        heights = np.ceil(_LEVELS * np.divide(counts, highest, out=np.zeros_like(counts), where=highest > 0))
        packed.append(
            {
                "title": each.title,
                "n": len(starts),
                "n_bins": n_bins,
                "levels": _LEVELS,
                "first": add(each.first_steps[starts]),
                "last": add(each.last_steps[stops - 1]),
                "edges": [float(each.edges[bins.start]), float(each.edges[bins.stop])],
                "heights": add(heights.astype(np.uint8)),
            }
        )
    return packed
