"""Value statistics: least, greatest, mean, spread, zeros, NaN, infinities and magnitudes of every leaf and subtree.

Statistics ignore NaN and infinities; those are counted separately. Statistics of complex arrays are those of
the magnitudes |z|; a number with a NaN part counts as NaN. Counts are exact, and a denormal number does not count
as zero (XLA flushes denormals on the CPU, so `x == 0` finds more there). The rest is computed in float64, on a TPU in
float32; integers beyond 2**53 are rounded to float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import numpy as np

from treeviz.analysis.stats.host import (
    lies_on_host,
)
from treeviz.analysis.stats.scan import Scan
from treeviz.analysis.stats.summary import (
    BINS,
    FIRST_EXPONENT,
    Summaries,
    over_ranges,
)
from treeviz.tree.budget import WHOLE, Budget
from treeviz.tree.column import Column, Format
from treeviz.tree.layers import axis_of
from treeviz.tree.query.fields import VALUE_STATISTICS
from treeviz.tree.table import TreeTable


def value_statistics(
    table: TreeTable,
    nodes: Sequence[object],
    *,
    max_elements: int = 10**9,
    budget: Budget = WHOLE,
    _on_host: Callable[[jax.Array], bool] = lies_on_host,
) -> tuple[tuple[Column, ...], dict[int, str]]:
    """Statistics of the values of every leaf and every subtree.

    Each array is read in place: on the host in chunks without compiling, on an accelerator by one program per
    shape and dtype, a sharded array shard by shard; then all results are transferred at once. No host copy
    stays cached on an array, and arrays that are not fully addressable are not read. An array that occurs several
    times is read once and counts each time; a subtree that the walk skipped counts at its first occurrence. The layers
    of an array that is open into them are read one by one; the array has the union of their statistics.

    Costs about 4 ns an element on the host, 5 µs a small array.

    Args:
      table: As walked.
      nodes: The node or leaf of each of its rows.
      max_elements: A host array with more is not read.
      budget: Its `read_s` limits the time for arrays in host memory; those left over are not read.

    Returns:
      The columns `VALUE_STATISTICS`, NaN where there are no values; and the reasons of arrays without statistics,
      by row.
    """
    scan = Scan(max_elements, _on_host, budget)
    rows, owners, whole = [], [], []
    with np.errstate(all="ignore"):
        is_last = table.end == np.arange(1, len(table) + 1)
        chosen = np.flatnonzero(table.is_leaf | (is_last & ~table.is_layer))
        triples = zip(*(each.tolist() for each in (chosen, table.end[chosen], table.fact_codes[chosen])), strict=True)
        for row, end, code in triples:
            layers = (axis_of(table, row + 1), end - row - 1) if end > row + 1 else None
            owner = scan.read(nodes[row], table.facts[code], layers)
            if owner is None:
                continue
            whole.append((row, owner))
            rows += [row] if layers is None else range(row + 1, end)
            owners += [owner] if layers is None else range(owner, owner + end - row - 1)
        columns = _columns(table, rows, owners, scan)
        notes = {row: scan.reasons[owner] for row, owner in whole if owner in scan.reasons}
    return columns, notes


def _columns(table: TreeTable, rows_read: list[int], owners_read: list[int], scan: Scan) -> tuple[Column, ...]:
    """The columns, rolled up. Rows with the same leaves below them share a level."""
    leaves = scan.finish()
    has_values = [i for i, owner in enumerate(owners_read) if owner not in scan.unread]
    rows, owners = np.array(rows_read, np.intp)[has_values], np.array(owners_read, np.intp)[has_values]
    start, stop = np.searchsorted(rows, np.arange(len(table))), np.searchsorted(rows, table.end)
    stop = np.maximum(start, stop)
    n_ends = len(rows) + 1
    ranges, codes = np.unique(np.where(start == stop, 0, start * n_ends + stop), return_inverse=True)
    start, stop = ranges // n_ends, ranges % n_ends
    if not np.array_equal(owners, np.arange(len(leaves.counts))):
        leaves = Summaries(leaves.moments[:, owners], leaves.counts[owners])
    moments, counts = over_ranges(leaves, start, stop)
    del leaves  # as large as the counts
    mean, std, least, greatest = np.where(moments[0] > 0, moments[1:], np.nan)
    zeros, nan, posinf, neginf = np.where(stop > start, counts[:, :BINS].T.astype(np.float64), np.nan)
    histograms, is_empty = counts[:, BINS:], stop == start
    if is_empty.any():
        histograms = histograms.astype(np.float32 if histograms.max(initial=0) < 2**24 else np.float64)
        histograms[is_empty] = np.nan
    codes = codes.astype(np.int32)  # one array, so that it is packed once

    def column(name: str, title: str, levels: np.ndarray, help: str, format: Format = "number") -> Column:
        return Column(name, title, levels, codes, format, "given", help, first_bin=FIRST_EXPONENT)

    columns = (
        column("min", "min", least, "the least finite value; of complex arrays: magnitude"),
        column("max", "max", greatest, "the greatest finite value; of complex arrays: magnitude"),
        column("mean", "mean", mean, "the mean of the finite values; of complex arrays: of the magnitudes"),
        column("std", "std", std, "the standard deviation of the finite values (divided by n, as np.std)"),
        column("rms", "rms", np.hypot(mean, std), "the root of the mean square of the finite values"),
        column("zeros", "zeros", zeros, "how many values are zero; a denormal number is not", "count"),
        column("nan", "NaN", nan, "how many values are NaN", "count"),
        column("inf", "±Inf", posinf + neginf, "how many values are infinite", "count"),
        column("posinf", "+Inf", posinf, "how many values are +Inf", "count"),
        column("neginf", "-Inf", neginf, "how many values are -Inf", "count"),
        column(
            "histogram",
            "magnitudes",
            histograms,
            "log₂|x| of the finite values that are not 0",
            "histogram",
        ),
    )
    assert tuple(each.name for each in columns) == VALUE_STATISTICS
    return columns
