"""Few numbers leave a program as they are, and NumPy measures them: a kernel is dearer to compile than they to read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import jax
import numpy as np

from treeviz.steps.barrier import barrier
from treeviz.steps.partial_sums import N_BITS, Rows, as_float32, copied_together, flat, rows_added_up
from treeviz.steps.reduce import INFINITY, as_real, bits_of

MOST_NUMBERS = 1 << 10  # of all arrays; to copy and to measure one takes some 10 ns, in every step


def number_of(*groups: Sequence[Any]) -> int:
    """How many numbers the arrays of these groups, some of which may be None, have together."""
    return sum(x.size for group in groups for x in group if x is not None)


def numbers_as_they_are(
    leaves: Sequence[jax.Array],
    new: Sequence[jax.Array],
    old: Sequence[jax.Array | None],
    n_layers: Sequence[int] = (),
) -> tuple[jax.Array, Rows]:
    """The bits of leaves, and of results and those before, whose bits are given: uint32[numbers]. Traceable.

    A barrier for each leaf keeps XLA from changing the program around it. Bits, so that `jax_debug_nans` does not check
    them.

    Args:
      n_layers: As `partial_sums` takes it.
    """
    n_layers = n_layers or (1,) * len(leaves)
    results = sorted(range(len(new)), key=lambda i: old[i] is None)
    before = [as_float32(x) for i in results if (x := old[i]) is not None]
    groups = [as_float32(new[i]) for i in results], [as_real(barrier(flat(x))) for x in leaves], before
    of_results, _, of_old = (tuple(x.size for x in group) for group in groups)
    of_leaves = tuple(chain(*((x.size // n,) * n for x, n in zip(groups[1], n_layers, strict=True))))
    rows = Rows(of_results, of_leaves, of_old, (), tuple(results), tuple(range(len(of_leaves))), are_numbers=True)
    return bits_of(copied_together([x for group in groups for x in group])), rows


def n_numbers(rows: Rows) -> int:
    return sum(rows.n_rows) + sum(rows.of_old)


def measured(bits: np.ndarray, rows: Rows) -> tuple[np.ndarray | None, np.ndarray | None]:
    """As `added_up`, of bits[..., numbers]."""
    n, n_results, n_old = sum(rows.n_rows), sum(rows.of_results), sum(rows.of_old)
    bits, before = bits[..., :n], bits[..., n:]
    size = bits & np.uint32(0x7FFFFFFF)
    is_bad = size >= INFINITY
    numbers = np.where(is_bad, np.float32(0), np.ascontiguousarray(bits).view(np.float32)).astype(np.float64)
    counts = is_bad.astype(np.uint32)
    counts[..., :n_results] += (size[..., :n_results] > INFINITY).astype(np.uint32) << np.uint32(N_BITS)
    counts[..., :n_old] += (bits[..., :n_old] != before).astype(np.uint32) << np.uint32(2 * N_BITS)
    size[is_bad] = 0
    return rows_added_up(np.square(numbers, out=numbers), size, counts, rows)
