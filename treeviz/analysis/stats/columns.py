"""Value statistics of every leaf and subtree: min, max, mean, spread, zeros, NaN, infinities and magnitudes.

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

from treeviz.analysis.stats.arrays import (
    BINS,
    FIRST_EXPONENT,
    SMALL,
    Pile,
    Summaries,
    as_float64,
    holds_numbers,
    host_view,
    join,
    lies_on_host,
    nothing,
    once,
    over_ranges,
    summary_of_array,
)
from treeviz.tree.describers import WHOLE, Budget, Stopwatch, array_inside
from treeviz.tree.facts import KINDS, Column, Facts, Format, Note
from treeviz.tree.layers import axis_of
from treeviz.tree.leaves import why_unreduced
from treeviz.tree.query.find import VALUE_STATISTICS, unread
from treeviz.tree.stored import Refused, Stored
from treeviz.tree.table import TreeTable
from treeviz.tree.text import class_name, counted, error_text, guarded, has_base, module_name, number_text, visible
from treeviz.tree.tracers import Tracer

# Read the values of leaves, each array where it is

NOT_READ = "not read: the statistics"  # the beginning of the reason
NOT_SCANNED, UNREADABLE = "not scanned: ", "could not be read: "  # likewise, of a limit and of an error
_CHECK_EVERY_S = 0.02


class Scan:
    """Reads leaves, each object once. `read` returns a leaf's number."""

    def __init__(self, max_elements: int, on_host: Callable[[jax.Array], bool], budget: Budget):
        self.reasons: dict[int, str] = {}  # why a leaf has no statistics, or a remark on how they were computed
        self.unread: set[int] = set()  # the leaves without statistics
        self.late = ""  # why arrays in host memory are no longer read
        self._budget, self._elapsed, self._check_at = budget, Stopwatch(), perf_counter()
        self._max_elements = max_elements
        self._on_host = on_host
        self._seen: dict[int | tuple[int, Any], int] = {}
        self._n_leaves = 0
        self._pile = Pile()
        self._large: list[tuple[int, Summaries]] = []
        self._launched: list[tuple[int, jax.Array, jax.Array, bool]] = []  # leaf or first layer, array, the bits, wide
        self._readers: dict[int, Callable[[int, Any], str | None] | None] = {}

    def read(self, leaf: Any, facts: Facts, layers: tuple[int, int] | None = None) -> int | None:
        """Read a leaf or the array in it, or each of its (axis, number of) layers; or start its reduction.

        Returns the number of the leaf or of its first layer; None for a leaf that is neither an array nor a number.
        """
        cls = type(leaf)
        if id(cls) not in self._readers:
            self._readers[id(cls)] = self._reader(cls)
        reader, array, why_not = self._readers[id(cls)], leaf, KINDS[facts.kind].no_values
        if reader is None and facts.is_leaf and facts.shape is not None:
            array = array_inside(leaf)
            reader = self._reader(type(array))
            why_not = KINDS["tensor"].no_values if facts.kind in ("variable", "opaque") else why_not
        if reader is None and not why_not:
            return None
        key = id(leaf) if layers is None else (id(leaf), layers)
        if key in self._seen:
            return self._seen[key]
        n = 1 if layers is None else layers[1]
        owner = self._seen[key] = self._n_leaves
        self._n_leaves += n
        self._check_time()
        try:
            if reader is None:
                reason = why_not
            elif layers is None:
                reason = reader(owner, array)
            else:
                reason = self._read_layers(owner, array, *layers)
        except Refused as error:
            reason = f"{NOT_SCANNED}{error}"
        except Exception as error:
            reason = _trouble(leaf, error)
        if reason:
            for number in range(owner, owner + n):
                self._give_up(number, reason)
        return owner

    def _read_layers(self, owner: int, leaf: Any, axis: int, n: int) -> str | None:
        if type(leaf) is Stored:
            leaf = np.asarray(leaf)
        reader = self._reader(type(leaf))
        for read in (self._read_jax_array, self._read_array):
            if reader == read and leaf.shape[axis : axis + 1] == (n,):
                return read(owner, leaf, axis)
        return f"no statistics: it has no {n:,} layers"

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
        self._pile.parts.clear()  # frees 300 bytes a leaf before the copies below
        self._large.clear()
        self._readers.clear()  # breaks a reference cycle with this scan
        numbers = np.arange(self._n_leaves)
        if np.array_equal(owners, numbers):
            return parts
        order = np.argsort(owners, kind="stable")
        start, stop = np.searchsorted(owners[order], numbers), np.searchsorted(owners[order], numbers, "right")
        return over_ranges(Summaries(parts.moments[:, order], parts.counts[order]), start, stop)

    def _give_up(self, owner: int, reason: str) -> None:
        self.reasons[owner] = reason
        self.unread.add(owner)

    def _reader(self, cls: type) -> Callable[[int, Any], str | None] | None:
        """The function that reads leaves of the class; it returns a reason if it cannot."""
        if has_base(cls, Tracer):
            return lambda owner, leaf: KINDS["tracer"].no_values
        if has_base(cls, jax.ShapeDtypeStruct):
            return lambda owner, leaf: KINDS["shape only"].no_values
        # In jax 0.4.36 the class of arrays is not a subclass of jax.Array.
        if has_base(cls, jax.Array) or (class_name(cls) == "ArrayImpl" and module_name(cls).startswith("jaxlib")):
            return self._read_jax_array
        if has_base(cls, np.ma.MaskedArray):
            return self._read_masked_array
        if has_base(cls, np.ndarray):
            return self._read_array
        if has_base(cls, np.generic):
            return lambda owner, scalar: self._read_array(owner, np.asarray(np.generic.__array__(scalar)))
        if cls is Stored:
            return self._read_stored
        for number in (int, float):  # bool is an int
            if has_base(cls, number):
                return lambda owner, leaf, number=number: self._pile.add(owner, number.__float__(leaf))
        if has_base(cls, complex):
            return lambda owner, leaf: self._pile.add(owner, complex.__abs__(leaf))
        return None

    def _read_masked_array(self, owner: int, array: np.ma.MaskedArray) -> str | None:
        self.reasons[owner] = "the mask is ignored: the statistics cover all its data"
        return self._read_array(owner, array)

    def _read_array(self, owner: int, array: np.ndarray, axis: int | None = None) -> str | None:
        """Read an array, or each of its layers along an axis."""
        if self.late:
            return self.late
        array = np.ndarray.view(array, np.ndarray)
        if axis is not None:
            for layer_owner, layer in enumerate(np.split(array, array.shape[axis], axis), owner):
                self._check_time()
                reason = self._read_array(layer_owner, layer)
                if reason:
                    return reason
            return None
        if not holds_numbers(array.dtype):
            if array.dtype == jax.dtypes.float0:
                return KINDS["float0"].no_values
            return f"no statistics: dtype {visible(str(array.dtype), 80)} holds no numbers"
        n_elements = once(array)[0][0].size
        if n_elements > self._max_elements:
            return f"{NOT_SCANNED}{n_elements:,} elements are more than {self._max_elements:,}"
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
        n_elements = stored.size
        if n_elements > self._max_elements:
            return f"{NOT_SCANNED}{n_elements:,} elements are more than {self._max_elements:,}"
        self._large.append((owner, nothing(1)))
        for chunk in stored.chunks():
            self._check_time()
            reason = self._read_array(owner, chunk)
            if reason:
                return reason
        return None

    def _read_jax_array(self, owner: int, array: jax.Array, axis: int | None = None) -> str | None:
        if array.is_deleted():
            return KINDS["deleted"].no_values
        if jnp.issubdtype(array.dtype, jax.dtypes.extended):
            return KINDS["key"].no_values
        sharding = array.sharding
        if not sharding.is_fully_addressable:
            return "no statistics: part of it is in another process"
        if why := why_unreduced(sharding):
            return why
        if len(sharding.device_set) == 1:
            shards = [(owner, array)]
        elif sharding.is_fully_replicated:
            shards = [(owner, array.addressable_data(0))]
        else:
            shards = [
                (owner + (0 if axis is None else part.index[axis].start or 0), part.data)
                for part in array.addressable_shards
                if part.replica_id == 0
            ]
        if array.size == 0 or self._on_host(array):
            if array.size > self._max_elements:
                return f"{NOT_SCANNED}{array.size:,} elements are more than {self._max_elements:,}"
            for first, shard in shards:
                reason = self._read_array(first, host_view(shard), axis)
                if reason:
                    return reason
            return None

        from treeviz.analysis.stats.arrays import MAX_ELEMENTS, launch

        if max(shard.size for _, shard in shards) > MAX_ELEMENTS:
            return f"{NOT_SCANNED}{array.size:,} elements are too many for one device"
        for first, shard in shards:
            self._launched.append((first, array, *launch(shard, axis)))
        return None

    def _fetch(self) -> None:
        if not self._launched:
            return

        from treeviz.analysis.stats.arrays import fetch, summary_of_bits

        try:
            every_bits = fetch([bits for _, _, bits, _ in self._launched])
        except Exception:  # one failed: fetch one at a time to find it
            every_bits = [None] * len(self._launched)
        for (owner, array, device_bits, wide), bits in zip(self._launched, every_bits, strict=True):
            try:
                bits = fetch([device_bits])[0] if bits is None else bits
                parts = [summary_of_bits(leaf_bits, wide) for leaf_bits in np.atleast_2d(bits)]
                self._large.extend(enumerate(parts, owner))
            except Exception as error:
                self._give_up(owner, _trouble(array, error))
        self._launched.clear()


def _trouble(leaf: Any, error: Exception) -> str:
    is_deleted = guarded(lambda: isinstance(leaf, jax.Array) and leaf.is_deleted(), lambda _: False)
    return "deleted while it was read" if is_deleted else f"{UNREADABLE}{error_text(error)}"


# Statistics that are the same in every row: words in the headline instead of columns

_ABSENT = {"nan": "no NaN", "inf": "no Inf", "zeros": "no zeros"}
_NUMBERS = ("min", "max", "mean", "std", "rms")


def uniform_statistics(table: TreeTable) -> dict[str, str]:
    """A text for each column of value statistics that is the same in every row: {"nan": "no NaN", "min": "min 0"}.

    "all finite" for no NaN and no Inf. Empty if a leaf with values was not read.
    """
    if "nan" not in table.columns or unread(table).any():
        return {}
    texts = {name: text for name, text in _ABSENT.items() if table.columns[name].values[0] == 0}
    is_finite = {"nan", "inf"} <= texts.keys()
    if is_finite:
        texts |= dict.fromkeys(("nan", "inf"), "all finite")
    least, greatest = (float(table.columns[name].values[0]) for name in ("min", "max"))
    is_known = least == 0 or not any(facts.dtype.startswith("complex") for facts in table.facts)  # complex: magnitudes
    if least == greatest and is_known and _sizes(table)[0] > 1:
        text = f"all {'' if is_finite else 'other '}values are {number_text(least)}"
        text = text if least or not is_finite else "all zeros"
        return texts | dict.fromkeys(("zeros", *_NUMBERS, "histogram"), text)
    has_count = ~np.isnan(table.columns["nan"].values) & (_sizes(table) > 0)
    for name in _NUMBERS:
        values = table.columns[name].values
        has_number = ~np.isnan(values)
        numbers = values[has_number]
        is_several = np.count_nonzero(has_number & table.is_leaf) > 1 and not (~has_number & has_count).any()
        if is_several and np.all(numbers == numbers[0]):
            texts[name] = f"{name} {number_text(numbers[0])}"
    return texts


def headline(texts: dict[str, str]) -> list[str]:
    """The texts, joined for the headline: ["all finite", "min 0, max 1 in every row"]."""
    numbers = [text for name, text in texts.items() if text.startswith(f"{name} ")]
    others = dict.fromkeys(text for text in texts.values() if text not in numbers)
    return [", ".join(others)] * bool(others) + [f"{', '.join(numbers)} in every row"] * bool(numbers)


def _sizes(table: TreeTable) -> np.ndarray:
    return table.rolled(table.columns["elements"])


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
      max_elements: A host array with more is not read.
      budget: Its `read_s` limits the time for arrays in host memory; those left over are not read.

    Returns:
      The columns `VALUE_STATISTICS`, NaN where there are no values; and the reasons of arrays without statistics,
      by row.
    """
    scan = Scan(max_elements, _on_host, budget)
    rows, owners, arrays_read = [], [], []
    with np.errstate(all="ignore"):
        is_last = table.end == np.arange(1, len(table) + 1)
        chosen = np.flatnonzero(table.is_leaf | (is_last & ~table.is_layer))
        of_chosen = (values.tolist() for values in (chosen, table.end[chosen], table.fact_codes[chosen]))
        for row, end, code in zip(*of_chosen, strict=True):
            layers = (axis_of(table, row + 1), end - row - 1) if end > row + 1 else None
            owner = scan.read(nodes[row], table.facts[code], layers)
            if owner is None:
                continue
            arrays_read.append((row, owner))
            rows += [row] if layers is None else range(row + 1, end)
            owners += [owner] if layers is None else range(owner, owner + end - row - 1)
        columns = _columns(table, rows, owners, scan)
        notes = {row: scan.reasons[owner] for row, owner in arrays_read if owner in scan.reasons}
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
    del leaves  # frees as much memory as the counts take
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
        column("min", "min", least, "the smallest finite value; of complex arrays: magnitude"),
        column("max", "max", greatest, "the largest finite value; of complex arrays: magnitude"),
        column("mean", "mean", mean, "the mean of the finite values; of complex arrays: of the magnitudes"),
        column("std", "std", std, "the standard deviation of the finite values (divided by n, as np.std)"),
        column("rms", "rms", np.hypot(mean, std), "the root of the mean square of the finite values"),
        column("zeros", "zeros", zeros, "the number of zeros; denormal numbers do not count", "count"),
        column("nan", "NaN", nan, "the number of NaN values", "count"),
        column("inf", "±Inf", posinf + neginf, "the number of infinite values", "count"),
        column("posinf", "+Inf", posinf, "how many values are +Inf", "count"),
        column("neginf", "-Inf", neginf, "how many values are -Inf", "count"),
        column("histogram", "magnitudes", histograms, "log₂|x| of the finite values that are not 0", "histogram"),
    )
    assert tuple(column.name for column in columns) == VALUE_STATISTICS
    return columns


# Non-finite values, in the headline and in the row of each leaf


def not_finite(
    table: TreeTable, *, is_whole: bool, others: bool = False
) -> tuple[list[str], dict[int, tuple[Note, ...]]]:
    """Texts for the headline ("NaN in 3 leaves", "no Inf, all zeros"), and a note for each leaf ("NaN: 3 of 12").

    The headline says "≥" unless every leaf was read, and names the tree if others are shown next to it.
    """
    texts = uniform_statistics(table) if is_whole else {}
    in_headline = {name: text for name, text in texts.items() if not others or name in ("nan", "inf")}
    rows = np.flatnonzero(table.is_leaf | table.is_layer)
    counts = [np.nan_to_num(table.columns[name].values[rows]).astype(np.int64) for name in ("nan", "inf")]
    parts: list[str] = []
    for name, n_bad in zip(("NaN", "±Inf"), counts, strict=True):
        n = int(np.count_nonzero(n_bad[table.is_leaf[rows]]))
        if n:
            parts.append(f"{name} in {'' if is_whole else '≥ '}{counted(n, 'leaf', 'leaves')}")
    parts += [part + f" in {table.name}" * others for part in headline(in_headline)]
    bad = np.flatnonzero(counts[0] + counts[1])
    notes: dict[int, tuple[Note, ...]] = {
        row: (Note("nonfinite", _sentence(math.prod(table[row].shape or ()), n_nan, n_inf)),)
        for row, n_nan, n_inf in zip(*(values[bad].tolist() for values in (rows, *counts)), strict=True)
    }
    return parts, notes


def _sentence(n: int, n_nan: int, n_inf: int) -> str:
    """ "NaN: 3 of 12 values, ±Inf: 1 of 12 values"."""
    counts = {word: count for word, count in (("NaN", n_nan), ("±Inf", n_inf)) if count}
    if n == 1:
        return ", ".join(f"the value is {word}" for word in counts)
    return ", ".join(f"{word}: {count:,} of {n:,} values" for word, count in counts.items())
