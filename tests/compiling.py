"""How XLA compiles in the tests: in a third of the time, where a test asks what a program means, not for its bits."""

from __future__ import annotations

import os

import jax
import pytest

PLAIN = {}
if jax.__version_info__ < (0, 13):  # later releases may rename them
    PLAIN = {"xla_backend_optimization_level": "0", "xla_llvm_disable_expensive_passes": "True"}
if (0, 5) <= jax.__version_info__ < (0, 11):
    PLAIN |= {"xla_cpu_use_fusion_emitters": "False", "xla_cpu_parallel_codegen_split_count": "1"}


def precise(test):
    """Mark a test that compares sums with float64: jax before 0.5 adds less precisely where it compiles quickly."""
    return pytest.mark.optimized(test) if jax.__version_info__ < (0, 5) else test


# The same for XLA_FLAGS of a program that a test starts.
PLAIN_FLAGS = " ".join(f"--{name}={value.lower()}" for name, value in PLAIN.items())


def quick_environment() -> dict[str, str]:
    """That of this process, for a program that compiles as quickly."""
    return {**os.environ, "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {PLAIN_FLAGS}"}
