"""The releases of JAX and Python that treeviz is tested with, for `.ci/run` and for messages about other releases."""

from __future__ import annotations

import re

# The oldest supported one, one between, the last one for Python 3.11, and the one that .ci/constraints.txt pins.
TESTED_JAX = ("0.4.36", "0.6.2", "0.10.2", "0.12.0.1")
TESTED_PYTHON = ("3.11", "3.13")  # the newest with the newest JAX; 3.12 and 3.14 have not run .ci/run yet


def newer_than_tested(jax_version: str) -> bool:
    """Whether this release or pre-release of JAX is newer than all tested ones: True for "0.13.0rc1"."""
    return _numbers(jax_version) > _numbers(TESTED_JAX[-1])


def tested_range() -> str:
    """ "jax 0.4.36 to 0.12.0.1"."""
    return f"jax {TESTED_JAX[0]} to {TESTED_JAX[-1]}"


def _numbers(version: str) -> list[int]:
    """The numbers of the release without trailing zeros, since 0.13 is 0.13.0."""
    release = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(number) for number in release[0].split(".")] if release else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers
