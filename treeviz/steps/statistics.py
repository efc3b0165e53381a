"""The statistics of gradients: one record each, and the format in which they leave the device.

The records define the memory of each statistic in a history, how the members of an ensemble are joined, and the
columns with their roll-ups. To add a statistic, add its record to `STATISTICS` and compute its word
in `treeviz.steps.reduce`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from treeviz.analysis.stats.summary import N_BINS
from treeviz.tree.column import Rollup


@dataclass(frozen=True)
class Statistic:
    """A statistic of a leaf.

    Attributes:
      name: The key in `History` and in the arguments of `measure`.
      measured_in: The smallest of `LIGHT`, `FULL` and `HISTOGRAM` that contains it; "" if none does.
      share: Its part of the memory of a source's history, relative to the other statistics.
      is_count: Whether it is an int64 count, which is summed over time; otherwise it is float64.
      scaled_by: The power of two that multiplies the packed float32: "range" is that of the range of squares and of the
        leaf, "leaf" that of the leaf; "" for counts and for numbers without a unit.
      joined_by: How the values of the members of a `vmap` become one: "norm" is the root of the sum of squares,
        "least" that of the members that have any.
      title: The title of its column; "" if it has none.
      rollup: How its column combines the values of the leaves of a subtree.
      help: The help text of its column.
      counts_nonfinite: Whether it counts NaN or infinities.
      n_bins: How many numbers a leaf has; 0 for a single number.
    """

    name: str
    measured_in: Literal["light", "full", "histogram", ""]
    share: int
    is_count: bool = False
    scaled_by: Literal["range", "leaf", ""] = ""
    joined_by: Literal["norm", "max", "mean", "least", "sum"] = "sum"
    title: str = ""
    rollup: Rollup = "sum"
    help: str = ""
    counts_nonfinite: bool = False
    n_bins: int = 0

    @property
    def dtype(self) -> type:
        """int64 for counts, else float64."""
        return np.int64 if self.is_count else np.float64

    def shape(self, n_leaves: int) -> tuple[int, ...]:
        """(leaves,), or (leaves, bins)."""
        return (n_leaves, self.n_bins) if self.n_bins else (n_leaves,)

    def join_members(self, values: np.ndarray, axis: int) -> np.ndarray:
        """Join the values of all members of an ensemble into one; a count of -1 is a leaf without numbers."""
        if self.joined_by == "norm":
            return np.sqrt(np.sum(np.square(values), axis=axis))
        if self.joined_by == "max":
            return np.max(values, axis=axis)
        if self.joined_by == "mean":
            return np.mean(values, axis=axis)
        if self.joined_by == "least":
            least = np.where((values > 0).any(axis=-1, keepdims=True), values, np.inf).min(axis=axis)
            return np.where(np.isinf(least), 0, least)
        return np.where((values < 0).all(axis=axis), -1, np.maximum(values, 0).sum(axis=axis))


def _count(name: str, measured_in, share: int, title: str, help: str, **more) -> Statistic:
    return Statistic(name, measured_in, share, True, title=title, help=f"how many numbers are {help}", **more)


# In the order of their words in a packed row, and of their columns.
STATISTICS = {
    statistic.name: statistic
    for statistic in (
        Statistic(
            "norm", "light", 24, scaled_by="range", joined_by="norm",
            title="norm", rollup="norm", help="the L2 norm; nothing where a number is not finite",
        ),
        Statistic(
            "max_abs", "light", 14, scaled_by="leaf", joined_by="max",
            title="max |x|", rollup="max", help="the largest magnitude; nothing where a number is not finite",
        ),
        _count("nonfinite", "light", 14, "NaN/Inf", "NaN or infinite", counts_nonfinite=True),
        Statistic("mean", "full", 6, scaled_by="range", joined_by="mean"),
        _count("zeros", "full", 6, "zeros", "zero"),
        _count("nan", "full", 4, "NaN", "NaN", counts_nonfinite=True),
        _count("posinf", "full", 4, "+Inf", "+Inf", counts_nonfinite=True),
        _count("neginf", "full", 4, "-Inf", "-Inf", counts_nonfinite=True),
        Statistic("histogram", "histogram", 18, is_count=True, n_bins=N_BINS),
        Statistic("least", "", 6, joined_by="least"),  # norm in a member of an ensemble
        Statistic("cosine", "", 6, joined_by="mean"),  # with the gradients of the last step, where these are given
    )
}  # fmt: skip
TOTAL_SHARES = sum(statistic.share for statistic in STATISTICS.values())

LIGHT = tuple(s.name for s in STATISTICS.values() if s.measured_in == "light")
"""Statistics that are cheap enough for every step: "norm", "max_abs" and "nonfinite", 16 bytes a leaf."""
FULL = (*LIGHT, *(s.name for s in STATISTICS.values() if s.measured_in == "full"))
"""`LIGHT` with "mean", "zeros", "nan", "posinf" and "neginf": 36 bytes a leaf, and a second pass over the numbers."""
HISTOGRAM = (*FULL, *(s.name for s in STATISTICS.values() if s.measured_in == "histogram"))
"""`FULL` with "histogram", the count of each power of two: 292 bytes a leaf, and some more passes."""


def check_statistics(statistics: Sequence[str]) -> tuple[str, ...]:
    """The statistics as a tuple.

    Raises:
      ValueError: `measure` does not know one of them.
    """
    unknown = [name for name in statistics if name not in HISTOGRAM]
    if unknown:
        raise ValueError(f"no statistic {', '.join(map(repr, unknown))}; there are {', '.join(HISTOGRAM)}.")
    return tuple(statistics)


def rms_of(norm: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """The root mean square, which follows from the norm: float64[..., leaves]."""
    return norm / np.sqrt(np.maximum(np.asarray(sizes, np.float64), 1))


# A packed row is uint32[n_words]. The first word encodes the power of two that multiplies the floats of the row;
# the others are the bits of float32 or uint32, one for each statistic in the order asked for.
NO_NUMBER = 0x80000000  # the first word of a leaf that holds no real or complex number
RANGE_AT, EXPONENT_ZERO = 16, 1 << 14  # bits 16 and 17: the range, bits 0 to 15: the exponent of float64 values

# Squares are summed in three ranges, so that none is too large or too small for float32: J. L. Blue, "A Portable
# Fortran Program to Find the Euclidean Norm of a Vector", ACM TOMS 4 (1978). A power of two changes no digit.
TINY, USUAL, HUGE = 0, 1, 2
SHIFT = 80  # tiny numbers are squared as x * 2**80, huge ones as x * 2**-80


def n_words(statistics: Sequence[str]) -> int:
    """The length of a packed row."""
    return 1 + sum(STATISTICS[name].n_bins or 1 for name in statistics)


def unpack(packed: np.ndarray, statistics: Sequence[str], sizes: Sequence[int] | None = None) -> dict[str, np.ndarray]:
    """Read packed rows: each statistic of each leaf, with the leading axes of the rows.

        packed = np.asarray(measurement.packed["grads"])
        unpack(packed, measurement.statistics_of("grads"))["norm"]    # float64[leaves]

    Statistics ignore NaN and infinities; those are counted separately. A leaf without numbers has NaN for floats and
    -1 for counts. XLA takes numbers below 1.2e-38 for zero on the CPU: the norm of a leaf that has no larger ones is
    given as its "max_abs", which is exact and a lower bound of the norm.

    Args:
      packed: uint32[..., leaves, words], as `reduce_tree` and `Measurement.packed` have them.
      statistics: Which statistics the rows hold, in order.
      sizes: The sizes of the leaves; with them the result has "rms" too.

    Returns:
      "norm", "max_abs", "mean", "cosine", "rms": float64[..., leaves]; "nonfinite", "zeros", "nan", "posinf",
      "neginf": int64[..., leaves]; "histogram": int64[..., leaves, 64], bin i counts 2**(i-40) <= |x| < 2**(i-39).

    Raises:
      ValueError: The rows are longer or shorter than these statistics need.
    """
    packed = np.ascontiguousarray(packed, np.uint32)
    if packed.shape[-1] != n_words(statistics):
        raise ValueError(
            f"unpack: rows of {packed.shape[-1]} words, but {n_words(statistics)} for {tuple(statistics)}."
        )
    first = packed[..., 0]
    is_nothing = first == NO_NUMBER
    exponent = (first & 0xFFFF).astype(np.int64) - EXPONENT_ZERO
    exponents = {"leaf": exponent, "range": SHIFT * ((first >> RANGE_AT & 3).astype(np.int64) - USUAL) + exponent}
    numbers: dict[str, np.ndarray] = {}
    at = 1
    for statistic in (STATISTICS[name] for name in statistics):
        bits = packed[..., at : at + statistic.n_bins] if statistic.n_bins else packed[..., at]
        at += statistic.n_bins or 1
        if statistic.is_count:
            is_none = is_nothing[..., None] if statistic.n_bins else is_nothing
            numbers[statistic.name] = np.where(is_none, -1, bits.astype(np.int64))
            continue
        value = np.ascontiguousarray(bits).view(np.float32).astype(np.float64)
        if statistic.name == "norm":
            value = np.sqrt(value)  # its word is the sum of squares
        if statistic.scaled_by:
            value = np.ldexp(value, exponents[statistic.scaled_by])
        numbers[statistic.name] = np.where(is_nothing, np.nan, value)
    if {"norm", "max_abs"} <= numbers.keys():  # XLA may flush denormal squares to zero
        numbers["norm"] = np.maximum(numbers["norm"], numbers["max_abs"])
    if sizes is not None and "norm" in numbers:
        numbers["rms"] = rms_of(numbers["norm"], sizes)
    return numbers
