"""Random programs, of which `fed.py` runs as many as one likes."""

from __future__ import annotations

import jax
import pytest
from wild import fed


@pytest.mark.oldest_jax
@pytest.mark.parametrize("seed", [30, 125])
def test_what_is_measured_and_said_of_a_random_program_is_what_numpy_says(seed):
    if jax.device_count() != 8:
        pytest.skip("needs eight devices")
    assert fed.differences(seed)[2] == []
