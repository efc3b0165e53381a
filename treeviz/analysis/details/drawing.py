"""The values of a window as plain data, for the page to draw where treescope cannot."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import numpy as np

from treeviz.analysis.details.sections import Window

SIGMAS = 3  # as in treescope: values further out are outliers, which would leave little color range for the rest

Drawing = dict[str, Any]


def drawing(part: Window, values: np.ndarray, caption: str, why: str) -> Drawing:
    """The data for assets/drawn/drawing.js, some 22 kB for 64 × 64 values, which float32 must represent."""
    # Exclude the padding in the last row of a long vector.
    n = min(values.size, part.sizes[part.axes[1]]) if part.axes[0] < 0 <= part.axes[1] else values.size
    numbers = values.ravel()[:n].astype("<f4")
    is_here = part.is_here.ravel()[:n]
    low, high = color_range(numbers[is_here], trim=values.dtype.kind == "f")
    return {
        "columns": values.shape[1],
        "cells": b64encode(numbers.tobytes()).decode(),
        "elsewhere": b64encode((~is_here).tobytes()).decode() if not is_here.all() else "",
        "range": [low, high],
        "axes": part.axes,
        "starts": part.starts,
        "caption": caption,
        "why": why,
    }


def color_range(values: np.ndarray, *, trim: bool) -> tuple[float, float]:
    """The values of the first and last color, from finite values only; symmetric around zero if some are negative.

    `trim` excludes values further than three standard deviations from the mean, or from zero.
    """
    finite = values[np.isfinite(values)].astype(np.float64)
    if not finite.size:
        return 0.0, 1.0
    least, most = float(finite.min()), float(finite.max())
    center = float(finite.mean()) if least >= 0 else 0.0
    radius = SIGMAS * float(np.sqrt(np.mean(np.square(finite - center)))) if trim else np.inf
    if least < 0:
        high = min(max(-least, most), radius)
        return -high, high
    low, high = max(least, center - radius), min(most, center + radius)
    if low == high:  # all are equal
        return 0.0, high or 1.0
    return low, high
