"""Measurements as a device returns them, without a device."""

from __future__ import annotations

import numpy as np

from treeviz.steps.measure import MeasuredTree, Measurement

SOURCE = MeasuredTree("grads", ("['x']", "['y']"), (2, 2), ("float32",) * 2, (True,) * 2)
STATISTICS = ("norm", "nonfinite")


def packed_measurement(step: int, *, n_nonfinite: int = 0) -> Measurement:
    """The norms are `step + 1` and its square."""
    norms = np.array([step + 1, (step + 1) ** 2], np.float32)
    rows = np.zeros((2, 3), np.uint32)
    rows[:, 0] = 1 << 14 | 1 << 16  # no exponent, and the usual range: see `steps/statistics.py`
    rows[:, 1], rows[:, 2] = (norms**2).view(np.uint32), n_nonfinite
    return Measurement({"grads": rows}, [SOURCE], STATISTICS)
