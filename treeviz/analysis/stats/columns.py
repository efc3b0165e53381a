"""Value statistics: least, greatest, mean, spread, zeros, NaN, infinities and magnitudes of every leaf and subtree.

Statistics ignore NaN and infinities; those are counted separately. Statistics of complex arrays are those of
the magnitudes |z|; a number with a NaN part counts as NaN. Counts are exact, and a denormal number does not count
as zero (XLA flushes denormals on the CPU, so `x == 0` finds more there). The rest is computed in float64, on a TPU in
float32; integers beyond 2**53 are rounded to float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from treeviz.analysis.stats.host import (
    SMALL,
    Pile,
    as_float64,
    holds_numbers,
    host_view,
    lies_on_host,
    n_stored,
    summary_of_array,
)
from treeviz.analysis.stats.summary import (
    BINS,
    FIRST_EXPONENT,
    N_BINS,
    Summaries,
    join,
    nothing,
    over_ranges,
)
from treeviz.tree.budget import WHOLE, Budget, Stopwatch
from treeviz.tree.column import Column, Format
from treeviz.tree.files.entries import Stored
from treeviz.tree.kinds import KINDS
from treeviz.tree.query.fields import VALUE_STATISTICS
from treeviz.tree.safe_repr import class_name, error_text, has_base, module_name, visible
from treeviz.tree.table import TreeTable
from treeviz.tree.tracers import Tracer

NOT_READ = "not read: the statistics"  # the beginning of the reason
_CHECK_EVERY_S = 0.02


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
    times is read once and counts each time; a subtree that the walk skipped counts at its first occurrence.

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
    scan = _Scan(max_elements, _on_host, budget)
    rows, owners, notes = [], [], {}
    with np.errstate(all="ignore"):
        for row in np.flatnonzero(table.end == np.arange(1, len(table) + 1)).tolist():
            owner = scan.read(nodes[row], table.facts[table.fact_codes[row]].kind)
            if owner is not None:
                rows.append(row)
                owners.append(owner)
        summaries = scan.finish()
        reasons = [scan.reasons.get(owner, "") for owner in owners]
        notes = {row: reason for row, reason in zip(rows, reasons, strict=True) if reason}
        read = [i for i, owner in enumerate(owners) if owner not in scan.unread]
        columns = _columns(table, np.array(rows, np.intp)[read], summaries, np.array(owners, np.intp)[read])
    return columns, notes


class _Scan:
    """Reads leaves, each object once. `read` returns a leaf's number.

    Attributes:
      late: Why arrays in host memory are no longer read, or "".
      reasons: Why a leaf has no statistics, or how they were computed if that is unusual.
      unread: The leaves without statistics.
    """

    def __init__(self, max_elements: int, on_host: Callable[[jax.Array], bool], budget: Budget):
        self.reasons: dict[int, str] = {}
        self.unread: set[int] = set()
        self.late = ""
        self._budget, self._elapsed, self._check_at = budget, Stopwatch(), perf_counter()
        self._max_elements = max_elements
        self._on_host = on_host
        self._seen: dict[int, int | None] = {}
        self._n_leaves = 0
        self._pile = Pile()
        self._large: list[tuple[int, Summaries]] = []
        self._launched: list[tuple[int, jax.Array, jax.Array, bool]] = []  # leaf, array, its bits, wide
        self._readers: dict[int, Callable[[int, Any], str | None] | None] = {}

    def read(self, leaf: Any, kind: str) -> int | None:
        """Read a leaf, or start its reduction. Returns its number, or None if it is neither array nor number."""
        cls = type(leaf)
        if id(cls) not in self._readers:
            self._readers[id(cls)] = self._reader(cls)
        reader = self._readers[id(cls)]
        if reader is None and not KINDS[kind].no_values:
            return None
        owner = self._seen.get(id(leaf))
        if owner is not None:
            return owner
        owner = self._seen[id(leaf)] = self._n_leaves
        self._n_leaves += 1
        self._check_time()
        if reader is None:
            self._give_up(owner, KINDS[kind].no_values)
            return owner
        try:
            reason = reader(owner, leaf)
        except Exception as error:
            reason = _trouble(leaf, error)
        if reason:
            self._give_up(owner, reason)
        return owner

    def _check_time(self) -> None:
        if perf_counter() >= self._check_at:
            self._check_at = perf_counter() + _CHECK_EVERY_S
            if self._elapsed() > self._budget.read_s:
                self.late = f"{NOT_READ} take more than {self._budget.read_s:g} s{self._budget.hint}"

    def finish(self) -> Summaries:
        """Wait for the reductions. Returns the summary of every leaf, by number."""
        self._pile.flush()
        self._fetch()
        owners = np.array([*self._pile.owners, *(owner for owner, _ in self._large)], np.intp)
        parts = join([*self._pile.parts, *(part for _, part in self._large)] or [nothing(0)])
        order = np.argsort(owners, kind="stable")
        every = np.arange(self._n_leaves)
        start, stop = np.searchsorted(owners[order], every), np.searchsorted(owners[order], every, "right")
        return over_ranges(Summaries(parts.moments[:, order], parts.counts[order]), start, stop)

    def _give_up(self, owner: int, reason: str) -> None:
        self.reasons[owner] = reason
        self.unread.add(owner)

    def _reader(self, cls: type) -> Callable[[int, Any], str | None] | None:
        """The function that reads leaves of the class; it returns the reason if it cannot."""
        if has_base(cls, Tracer):
            return lambda owner, leaf: KINDS["tracer"].no_values
        # In jax 0.4.36 the class of arrays is no subclass of jax.Array.
        if has_base(cls, jax.Array) or (class_name(cls) == "ArrayImpl" and module_name(cls).startswith("jaxlib")):
            return self._read_jax_array
        if has_base(cls, np.ma.MaskedArray):
            return self._read_masked_array
        if has_base(cls, np.ndarray):
            return self._read_array
        if has_base(cls, np.generic):
            return self._read_numpy_scalar
        if cls is Stored:
            return self._read_stored
        for number in (int, float):  # bool is an int
            if has_base(cls, number):
                return lambda owner, leaf, number=number: self._pile.add(owner, number.__float__(leaf))
        if has_base(cls, complex):
            return lambda owner, leaf: self._pile.add(owner, complex.__abs__(leaf))
        return None

    def _read_numpy_scalar(self, owner: int, scalar: np.generic) -> str | None:
        return self._read_array(owner, np.asarray(np.generic.__array__(scalar)))

    def _read_masked_array(self, owner: int, array: np.ma.MaskedArray) -> str | None:
        self.reasons[owner] = "the mask is not looked at: these are the statistics of all its data"
        return self._read_array(owner, array)

    def _read_array(self, owner: int, array: np.ndarray) -> str | None:
        if self.late:
            return self.late
        array = np.ndarray.view(array, np.ndarray)
        if not holds_numbers(array.dtype):
            if array.dtype == jax.dtypes.float0:
                return KINDS["float0"].no_values
            return f"no statistics: dtype {visible(str(array.dtype), 80)} holds no numbers"
        n_elements = n_stored(array)
        if n_elements > self._max_elements:
            return f"not scanned: {n_elements:,} elements are more than {self._max_elements:,}"
        if array.size == 0:
            self._large.append((owner, nothing(1)))
        elif array.size > SMALL:
            self._large.append((owner, summary_of_array(array)))
        elif array.dtype.kind == "c":
            self._pile.add(owner, as_float64(array))
        else:
            self._pile.add(owner, array.reshape(-1))
        return None

    def _read_stored(self, owner: int, stored: Stored) -> str | None:
        n_elements = math.prod(stored.shape)
        if n_elements > self._max_elements:
            return f"not scanned: {n_elements:,} elements are more than {self._max_elements:,}"
        self._large.append((owner, nothing(1)))
        for chunk in stored.chunks():
            self._check_time()
            reason = self._read_array(owner, chunk)
            if reason:
                return reason
        return None

    def _read_jax_array(self, owner: int, array: jax.Array) -> str | None:
        if array.is_deleted():
            return KINDS["deleted"].no_values
        if jnp.issubdtype(array.dtype, jax.dtypes.extended):
            return KINDS["key"].no_values
        sharding = array.sharding
        if not sharding.is_fully_addressable:
            return "no statistics: a part of it lives in another process"
        if len(sharding.device_set) == 1:
            shards = [array]
        elif sharding.is_fully_replicated:
            shards = [array.addressable_data(0)]
        else:
            shards = [shard.data for shard in array.addressable_shards if shard.replica_id == 0]
        if array.size == 0 or self._on_host(array):
            if array.size > self._max_elements:
                return f"not scanned: {array.size:,} elements are more than {self._max_elements:,}"
            for shard in shards:
                reason = self._read_array(owner, host_view(shard))
                if reason:
                    return reason
            return None

        from treeviz.analysis.stats.device import MAX_ELEMENTS, launch

        if max(shard.size for shard in shards) > MAX_ELEMENTS:
            return f"not scanned: {array.size:,} elements are too many for one device"
        for shard in shards:
            self._launched.append((owner, array, *launch(shard)))
        return None

    def _fetch(self) -> None:
        if not self._launched:
            return

        from treeviz.analysis.stats.device import fetch, summary_of_bits

        try:
            every_bits = fetch([bits for _, _, bits, _ in self._launched])
        except Exception:  # one failed: fetch each alone to find it
            every_bits = [None] * len(self._launched)
        for (owner, array, device_bits, wide), bits in zip(self._launched, every_bits, strict=True):
            try:
                bits = fetch([device_bits])[0] if bits is None else bits
                self._large.append((owner, summary_of_bits(bits, wide)))
            except Exception as error:
                self._give_up(owner, _trouble(array, error))
        self._launched.clear()


def _trouble(leaf: Any, error: Exception) -> str:
    try:
        if isinstance(leaf, jax.Array) and leaf.is_deleted():
            return "deleted while it was read"
    except Exception:
        pass
    return f"could not be read: {error_text(error)}"


def _columns(table: TreeTable, rows: np.ndarray, leaves: Summaries, owners: np.ndarray) -> tuple[Column, ...]:
    """The columns, rolled up. Rows with the same leaves below them share a level."""
    start, stop = np.searchsorted(rows, np.arange(len(table))), np.searchsorted(rows, table.end)
    stop = np.maximum(start, stop)
    n_ends = len(rows) + 1
    ranges, codes = np.unique(np.where(start == stop, 0, start * n_ends + stop), return_inverse=True)
    start, stop = ranges // n_ends, ranges % n_ends
    if not np.array_equal(owners, np.arange(len(leaves.counts))):
        leaves = Summaries(leaves.moments[:, owners], leaves.counts[owners])
    moments, counts = over_ranges(leaves, start, stop)
    mean, std, least, greatest = np.where(moments[0] > 0, moments[1:], np.nan)
    zeros, nan, posinf, neginf = np.where(stop > start, counts[:, :BINS].T.astype(np.float64), np.nan)
    histograms, is_empty = counts[:, BINS:], stop == start
    if is_empty.any():
        histograms = histograms.astype(np.float32 if histograms.max(initial=0) < 2**24 else np.float64)
        histograms[is_empty] = np.nan
    codes = codes.astype(np.int32)  # one array, so that it is packed once

    def column(name: str, title: str, levels: np.ndarray, help: str, format: Format = "number") -> Column:
        return Column(name, title, levels, codes, format, "given", help)

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
            f"how often each power of two occurs among the finite, non-zero magnitudes, from 2**{FIRST_EXPONENT} "
            f"and below to 2**{FIRST_EXPONENT + N_BINS - 1} and above",
            "histogram",
        ),
    )
    assert tuple(each.name for each in columns) == VALUE_STATISTICS
    return columns
