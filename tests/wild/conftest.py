"""What others have written runs as they run it."""

from __future__ import annotations

import jax
import pytest


@pytest.fixture(autouse=True)
def vectors_may_be_added_to_matrices():
    with jax.numpy_rank_promotion("allow"):
        yield
