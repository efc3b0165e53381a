"""Read the values of leaves, each array in place."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from treeviz.analysis.stats.host import SMALL, Pile, as_float64, holds_numbers, host_view, once, summary_of_array
from treeviz.analysis.stats.summary import Summaries, join, nothing, over_ranges
from treeviz.tree.budget import Budget, Stopwatch
from treeviz.tree.describers import array_inside
from treeviz.tree.facts import Facts
from treeviz.tree.kinds import KINDS
from treeviz.tree.safe_repr import class_name, error_text, has_base, module_name, visible
from treeviz.tree.sharding import why_unreduced
from treeviz.tree.stored import Stored
from treeviz.tree.tracers import Tracer

NOT_READ = "not read: the statistics"  # the beginning of the reason
_CHECK_EVERY_S = 0.02


class Scan:
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
        self._seen: dict[int | tuple[int, Any], int] = {}
        self._n_leaves = 0
        self._pile = Pile()
        self._large: list[tuple[int, Summaries]] = []
        self._launched: list[tuple[int, jax.Array, jax.Array, bool]] = []  # leaf or first layer, array, the bits, wide
        self._readers: dict[int, Callable[[int, Any], str | None] | None] = {}

    def read(self, leaf: Any, facts: Facts, layers: tuple[int, int] | None = None) -> int | None:
        """Read a leaf or the array in it, or start its reduction.

        Args:
          facts: Those of its row.
          layers: Their axis and number, to read each of them.

        Returns:
          Its number, or that of its first layer; None if it is neither array nor number.
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
        owner = self._seen.get(key)
        if owner is not None:
            return owner
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
        except Exception as error:
            reason = _trouble(leaf, error)
        if reason:
            for each in range(owner, owner + n):
                self._give_up(each, reason)
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
        self._pile.parts.clear()  # 300 bytes a leaf, and each copy as much
        self._large.clear()
        self._readers.clear()  # which refer to this scan: a cycle
        every = np.arange(self._n_leaves)
        if np.array_equal(owners, every):
            return parts
        order = np.argsort(owners, kind="stable")
        start, stop = np.searchsorted(owners[order], every), np.searchsorted(owners[order], every, "right")
        return over_ranges(Summaries(parts.moments[:, order], parts.counts[order]), start, stop)

    def _give_up(self, owner: int, reason: str) -> None:
        self.reasons[owner] = reason
        self.unread.add(owner)

    def _reader(self, cls: type) -> Callable[[int, Any], str | None] | None:
        """The function that reads leaves of the class; it returns the reason if it cannot."""
        if has_base(cls, Tracer):
            return lambda owner, leaf: KINDS["tracer"].no_values
        if has_base(cls, jax.ShapeDtypeStruct):
            return lambda owner, leaf: KINDS["shape only"].no_values
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

    def _read_array(self, owner: int, array: np.ndarray, axis: int | None = None) -> str | None:
        """Read an array, or each of its layers along an axis."""
        if self.late:
            return self.late
        array = np.ndarray.view(array, np.ndarray)
        if axis is not None:
            for each, layer in enumerate(np.split(array, array.shape[axis], axis), owner):
                self._check_time()
                reason = self._read_array(each, layer)
                if reason:
                    return reason
            return None
        if not holds_numbers(array.dtype):
            if array.dtype == jax.dtypes.float0:
                return KINDS["float0"].no_values
            return f"no statistics: dtype {visible(str(array.dtype), 80)} holds no numbers"
        n_elements = once(array)[0][0].size
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
        n_elements = stored.size
        if n_elements > self._max_elements:
            return f"not scanned: {n_elements:,} elements are more than {self._max_elements:,}"
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
            return "no statistics: a part of it lives in another process"
        if why := why_unreduced(sharding):
            return why
        if len(sharding.device_set) == 1:
            shards = [(owner, array)]
        elif sharding.is_fully_replicated:
            shards = [(owner, array.addressable_data(0))]
        else:
            shards = [
                (owner + (0 if axis is None else each.index[axis].start or 0), each.data)
                for each in array.addressable_shards
                if each.replica_id == 0
            ]
        if array.size == 0 or self._on_host(array):
            if array.size > self._max_elements:
                return f"not scanned: {array.size:,} elements are more than {self._max_elements:,}"
            for first, shard in shards:
                reason = self._read_array(first, host_view(shard), axis)
                if reason:
                    return reason
            return None

        from treeviz.analysis.stats.device import MAX_ELEMENTS, launch

        if max(shard.size for _, shard in shards) > MAX_ELEMENTS:
            return f"not scanned: {array.size:,} elements are too many for one device"
        for first, shard in shards:
            self._launched.append((first, array, *launch(shard, axis)))
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
                parts = [summary_of_bits(each, wide) for each in np.atleast_2d(bits)]
                self._large.extend(enumerate(parts, owner))
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
