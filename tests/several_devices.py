"""Devices for tests of sharded arrays, which skip themselves where there are too few, as on a machine with one GPU."""

from __future__ import annotations

import jax
import numpy as np
import pytest


def first_devices(n: int) -> np.ndarray:
    """So many devices, or the test is skipped."""
    devices = jax.devices()[:n]
    if len(devices) < n:
        pytest.skip(f"needs {n} devices")
    return np.array(devices)
