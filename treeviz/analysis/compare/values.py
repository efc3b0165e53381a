"""Compare the values of arrays where they are, of one shape or in other layouts under other names."""

from __future__ import annotations

import io
import math
import weakref
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate, chain, permutations
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from treeviz.analysis.compare.difference import OF_TRANSPOSE
from treeviz.analysis.stats import (
    CHUNK,
    fetch,
    has_float64,
    holds_numbers,
    host_view,
    lies_on_host,
    once,
    part_of,
    undisturbed,
)
from treeviz.tree.facts import Facts
from treeviz.tree.leaves import why_unreduced
from treeviz.tree.stored import CHUNK as CHUNK_as_in_files
from treeviz.tree.stored import Refused, Stored
from treeviz.tree.text import array_bytes, error_text, number_text

# Compare the elements of flat arrays: one piece, or many at once

Index = tuple[int, ...]
_ONE = np.zeros(1, np.intp)
_COUNTS = ("n_outside", "n_nan", "nan_left", "nan_right")  # of elements


@dataclass
class ValueDifference:
    """How the values of two arrays differ."""

    n: int  # elements
    # Elements that are NaN in neither, with |left - right| > atol + rtol * |right|, or different and one is infinite
    n_outside: int = 0
    max_abs: float = 0.0  # the greatest |left - right|
    at: Index = ()  # its index
    left: Any = None  # the two values there
    right: Any = None
    max_rel: float = 0.0  # the greatest |left - right| / |right|
    n_nan: int = 0  # elements that are NaN in one of them alone
    nan_at: Index = ()  # the first of these
    nan_left: int = 0  # the number of NaN in each
    nan_right: int = 0
    is_transpose: bool = False  # the right array is the left one transposed

    def take(self, other: ValueDifference) -> None:
        """Merge the differences in another part of the arrays."""
        if other.n_outside and (not self.n_outside or other.max_abs > self.max_abs):
            self.max_abs, self.at, self.left, self.right = other.max_abs, other.at, other.left, other.right
        self.nan_at = self.nan_at if self.n_nan else other.nan_at
        self.max_rel = max(self.max_rel, other.max_rel)
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def repeat(self, n: int) -> None:
        """Multiply all counts, as if the arrays were repeated `n` times."""
        for name in ("n", *_COUNTS):
            setattr(self, name, getattr(self, name) * n)


class Elements(NamedTuple):
    """The numbers of a `ValueDifference` for each piece of flat arrays. Indices are within the piece."""

    n_outside: Any
    max_abs: Any
    at: Any
    max_rel: Any
    n_nan: Any
    nan_at: Any
    nan_left: Any
    nan_right: Any

    def of(self, i: int) -> list[Any]:
        return [numbers[i].item() for numbers in self]


def _value_difference(numbers: list[Any], n: int, values: Sequence[Any], shape: Index, start: Index) -> ValueDifference:
    """The gap of a piece of `n` elements that begins at `start`, by the `Elements` and values that differ most."""
    n_outside, max_abs, at, max_rel, n_nan, nan_at, nan_left, nan_right = numbers
    nan_index = _index_in(shape, nan_at, start) if n_nan else ()
    if not n_outside:
        return ValueDifference(n, n_nan=n_nan, nan_at=nan_index, nan_left=nan_left, nan_right=nan_right)
    index, (left, right), max_rel = _index_in(shape, at, start), values, max(0.0, max_rel)  # 0 in place of NaN
    greatest = n_outside, max_abs, index, left, right, max_rel
    return ValueDifference(n, *greatest, n_nan, nan_index, nan_left, nan_right)


def compare_elements(
    a: np.ndarray, b: np.ndarray, starts: np.ndarray = _ONE, rtol: float = 0.0, atol: float = 0.0
) -> Elements:
    """Compare flat arrays of one length in pieces that begin at `starts`; none is empty."""
    none = np.zeros(len(starts), np.int64)
    n_nan, nan_at, nan_left, nan_right = none, none, none, none
    n_outside, at, max_abs, max_rel = none, none, np.zeros(len(starts)), np.zeros(len(starts))
    with np.errstate(all="ignore"):  # a NaN of bfloat16 may signal
        if a.dtype.kind in "biu" and b.dtype.kind in "biu":
            distance, size, are_nan = _distance_of_integers(a, b), np.abs(b.astype(np.float64)), ()
        else:
            wide = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
            left, right = a.astype(wide), b.astype(wide)
            distance, size = np.where(left == right, 0.0, np.abs(left - right)), np.abs(right)
            are_nan = np.isnan(left), np.isnan(right)
        differ = distance != 0
        if are_nan:
            nan_left, nan_right = (_count(mask, starts) for mask in are_nan)
            if nan_left.any() or nan_right.any():
                differ &= ~(are_nan[0] | are_nan[1])
                alone = are_nan[0] != are_nan[1]
                n_nan, nan_at = _count(alone, starts), _first(alone, starts)
        outside = ~((distance <= atol + rtol * size) & (distance < np.inf)) & differ
        n_outside = _count(outside, starts)
        if n_outside.any():
            ranked = np.where(outside, distance, -1.0)
            max_abs = _greatest(ranked, starts)
            greatest = max_abs if len(starts) == 1 else np.repeat(max_abs, np.diff(starts, append=len(a)))
            at = _first((ranked == greatest) | np.isnan(ranked), starts)  # a NaN of infinite complex numbers is first
            max_rel = _greatest(np.divide(distance, size, out=np.zeros(len(a)), where=outside), starts)
    return Elements(n_outside, max_abs, at, max_rel, n_nan, nan_at, nan_left, nan_right)


def _count(mask: np.ndarray, starts: np.ndarray) -> np.ndarray:  # one piece in a tenth of the time
    several = len(starts) > 1
    return np.add.reduceat(mask, starts, dtype=np.int64) if several else np.array([np.count_nonzero(mask)])


def _greatest(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    return np.maximum.reduceat(values, starts) if len(starts) > 1 else np.array([np.max(values)])


def _first(mask: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The index of the first True in each piece; arbitrary if there is none."""
    if len(starts) == 1:
        return np.array([np.argmax(mask)])
    hits = np.append(np.flatnonzero(mask), len(mask))
    return hits[np.searchsorted(hits, starts)] - starts


def _index_in(shape: Index, flat: int, start: Index) -> Index:
    """`np.unravel_index` for one index beyond `start`, in a tenth of the time."""
    index = []
    for size, first in zip(reversed(shape), reversed(start), strict=True):
        flat, i = divmod(flat, size)
        index.append(first + i)
    return tuple(reversed(index))


def _distance_of_integers(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """|a - b|, exact below 2**53 whatever the dtypes, and never 0 for different values."""
    kinds = {a.dtype.kind, b.dtype.kind}
    if kinds >= {"i", "u"}:
        return np.where(a != b, np.maximum(np.abs(a.astype(np.float64) - b.astype(np.float64)), 1.0), 0.0)
    left, right = (x.astype(np.uint64 if "u" in kinds else np.int64) for x in (a, b))
    return np.where(left > right, left - right, right - left).view(np.uint64).astype(np.float64)


_LARGE = 4 * CHUNK  # elements compared bitwise at a time: one call costs as much as reading 50 kB


class CannotCompare(Exception):
    """Why the values of two arrays were not compared."""


def compare_arrays(left: Any, right: Any, *, rtol: float = 0.0, atol: float = 0.0) -> ValueDifference:
    """Compare two arrays of one shape: NumPy or JAX arrays, arrays in files, or PRNG keys by their data.

    NaN equals NaN. An infinity and a PRNG key equal only themselves, whatever the tolerance. Integers and bools are
    compared without rounding, other values of one dtype bitwise and then in float64. Arrays in host memory are read in
    place, a chunk at a time; an accelerator reduces its own; if one is in a file, both are read in its order. Raises
    CannotCompare if one is deleted, traced, abstract, or partly in another process, or holds no numbers.
    """
    if Stored in (type(left), type(right)):
        return _compare_stored(left, right, rtol, atol)
    n_repeats = 1
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        (left, right), n_repeats = once(left, right)
    gap = ValueDifference(int(np.prod(left.shape, dtype=np.int64)))
    if gap.n == 0:
        return gap
    if jnp.issubdtype(left.dtype, jax.dtypes.extended):
        rtol = atol = 0.0
    same: list[np.ndarray] = []  # blocks with equal bits
    for start, left_piece, right_piece in _overlapping(parts_of(left), parts_of(right)):
        if isinstance(left_piece, np.ndarray) and isinstance(right_piece, np.ndarray):
            for offset, a, b in _blocks(left_piece, right_piece, _LARGE):
                if a.dtype == b.dtype and _same_bits(a, b):
                    same.append(a)
                    continue
                for inner, x, y in _blocks(a, b, CHUNK):
                    if compare_block(gap, x, y, _beyond(start, _beyond(offset, inner)), rtol, atol):
                        same.append(x)
        else:
            _compare_on_device(gap, left_piece, right_piece, start, rtol, atol)
    if gap.n_outside or gap.n_nan:
        n_nan = sum(map(count_nan, same))
        gap.nan_left += n_nan
        gap.nan_right += n_nan
    gap.repeat(n_repeats)
    return gap


_Shard = tuple[Index, Any]  # its start, and a NumPy view or an array on one device


def parts_of(array: Any) -> list[_Shard]:
    origin = (0,) * len(array.shape)
    if isinstance(array, np.ma.MaskedArray):
        raise CannotCompare("it has a mask")
    if isinstance(array, np.ndarray | np.generic):
        array = np.asarray(array)
        if not holds_numbers(array.dtype):
            raise CannotCompare(f"dtype {array.dtype} holds no numbers")
        return [(origin, array)]
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        return parts_of(jax.random.key_data(array))
    if not array.sharding.is_fully_addressable:
        raise CannotCompare("part of it is in another process")
    if why := why_unreduced(array.sharding):
        raise CannotCompare(why)
    if len(array.sharding.device_set) == 1 or array.sharding.is_fully_replicated:
        parts = [(origin, array.addressable_data(0))]
    else:
        shards = [shard for shard in array.addressable_shards if shard.replica_id == 0]
        parts = [(tuple(cut.start or 0 for cut in shard.index), shard.data) for shard in shards]
    return [(start, host_view(data)) for start, data in parts] if lies_on_host(array) else parts


def _overlapping(left: list[_Shard], right: list[_Shard]) -> Iterator[tuple[Index, Any, Any]]:
    """The start of each piece that both have, and the piece of each."""
    same = {(start, data.shape): data for start, data in right}
    for start, left_piece in left:
        right_piece = same.get((start, left_piece.shape))
        if right_piece is not None:
            yield start, left_piece, right_piece
            continue
        for right_start, data in right:
            low = np.maximum(start, right_start)
            high = np.minimum(np.add(start, left_piece.shape), np.add(right_start, data.shape))
            if (low < high).all():
                sizes = (high - low).tolist()
                cut = part_of(left_piece, low - start, sizes), part_of(data, low - right_start, sizes)
                yield tuple(low.tolist()), *cut


def _blocks(left: np.ndarray, right: np.ndarray, most: int) -> Iterator[tuple[Index, np.ndarray, np.ndarray]]:
    """Blocks of at most `most` elements, and their starts; contiguous ones are not copied."""
    shape, origin = left.shape, (0,) * left.ndim
    n_inner = left[:1].size if left.ndim else 1
    if left.size <= most:
        yield origin, left, right
    elif n_inner > most:
        for i in range(shape[0]):
            for offset, a, b in _blocks(left[i], right[i], most):
                yield (i, *offset), a[None], b[None]
    else:
        n_rows = most // n_inner
        for i in range(0, shape[0], n_rows):
            yield (i, *origin[1:]), left[i : i + n_rows], right[i : i + n_rows]


def compare_block(gap: ValueDifference, a: np.ndarray, b: np.ndarray, start: Index, rtol: float, atol: float) -> bool:
    """Add the differences of two blocks to `gap`, or return True if their bits are equal; then NaN is not counted."""
    if a.dtype == b.dtype and _same_bits(a, b):
        return True
    a, b, shape = a.reshape(-1), b.reshape(-1), a.shape
    numbers = compare_elements(a, b, rtol=rtol, atol=atol)
    values = [x.item(numbers.at[0]) for x in (a, b)]
    gap.take(_value_difference(numbers.of(0), a.size, values, shape, start))
    return False


def count_nan(block: np.ndarray) -> int:
    if block.dtype.kind in "biu":
        return 0
    # By their bits, since comparing the numbers takes five to twenty times as long.
    if block.dtype in (np.float16, ml_dtypes.bfloat16):
        infinity = np.array(np.inf, block.dtype).view(np.uint16)
        return int(np.count_nonzero((np.ascontiguousarray(block).view(np.uint16) & 0x7FFF) > infinity))
    with np.errstate(invalid="ignore"):
        if block.dtype.itemsize == 1:
            values_of_bytes = np.arange(256, dtype=np.uint8).view(block.dtype)
            return int(np.count_nonzero((values_of_bytes != values_of_bytes)[block.view(np.uint8)]))
        return int(np.count_nonzero(block != block))


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    if not (a.flags.c_contiguous and b.flags.c_contiguous and a.ndim):
        return a.dtype.kind in "biu" and np.array_equal(a, b)
    word = np.uint64 if a.nbytes % 8 == 0 else np.uint8
    return np.array_equal(a.reshape(-1).view(word), b.reshape(-1).view(word))


def is_transpose(left: Any, right: Any) -> bool:
    """Whether two arrays in host memory are equal, with the axes of one in reverse order."""
    if not all(isinstance(array, np.ndarray | jax.Array) for array in (left, right)):
        return False
    try:
        views: Any = [part for array in (left, right) for _, part in parts_of(array)]
    except CannotCompare:
        return False
    if len(views) != 2 or not all(isinstance(view, np.ndarray) for view in views):  # in parts, or on an accelerator
        return False
    turned, other = views[0].T, views[1]
    if turned.shape != other.shape or not other.size or not np.array_equal(turned[0], other[0]):  # nearly always
        return False
    gap = compare_arrays(turned, other)
    return not (gap.n_outside or gap.n_nan)


def _beyond(start: Index, at: Index) -> Index:
    return tuple([first + i for first, i in zip(start, at, strict=True)])


def _compare_on_device(gap: ValueDifference, a: Any, b: Any, start: Index, rtol: float, atol: float) -> None:
    """Reduce a pair on the left array's device; only the numbers are transferred."""
    holder = a if isinstance(a, jax.Array) else b
    (device,) = holder.sharding.device_set
    with undisturbed(), jax.default_device(device):
        a, b = jax.device_put(a, device), jax.device_put(b, device)
        numbers = _reduced(a, b, np.float64(rtol), np.float64(atol), wide=has_float64(device))
    *numbers, left, right = [number.item() for number in fetch(list(numbers))]
    gap.take(_value_difference(numbers, a.size, (left, right), a.shape, start))


@partial(jax.jit, static_argnames="wide")
def _reduced(a: jax.Array, b: jax.Array, rtol, atol, *, wide: bool) -> tuple[jax.Array, ...]:
    """The `Elements` of two arrays, and the two values that differ most."""
    exact = all(jnp.issubdtype(x.dtype, jnp.integer) or x.dtype == bool for x in (a, b)) and a.dtype == b.dtype
    real = jnp.float64 if wide else jnp.float32
    compared = jnp.complex128 if any(jnp.iscomplexobj(x) for x in (a, b)) else real
    left, right = a.astype(compared), b.astype(compared)
    nan_left, nan_right = jnp.isnan(left), jnp.isnan(right)
    same = (a == b) if exact else (left == right)
    distance = jnp.where(same, 0.0, jnp.abs(left - right)).astype(real)
    distance = jnp.where(~same & (distance == 0), 1.0, distance) if exact else distance
    size = jnp.abs(right).astype(real)
    outside = ~same & ~(nan_left | nan_right) & ~((distance <= atol + rtol * size) & (distance < jnp.inf))
    where = jnp.argmax(jnp.where(outside, distance, -1.0).reshape(-1))
    only_one = nan_left != nan_right
    count = lambda mask: jnp.sum(mask, dtype=jnp.int64)  # noqa: E731
    relative = jnp.max(jnp.where(outside, distance / size, 0.0))
    max_abs = jnp.max(jnp.where(outside, distance, 0.0))
    nans = count(only_one), jnp.argmax(only_one.reshape(-1)), count(nan_left), count(nan_right)
    return count(outside), max_abs, where, relative, *nans, a.reshape(-1)[where], b.reshape(-1)[where]


def gap_details(gap: ValueDifference, kind: str, names: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    """(name, text) of the details of a gap, for its finding "value" or "NaN"."""
    counts = zip(names, (gap.nan_left, gap.nan_right), strict=True)
    nan = [(f"NaN in the {name}", f"{n:,}") for name, n in counts]
    if kind == "NaN":
        return *nan, ("NaN in only one", f"{gap.n_nan:,}")
    at = f" at {_index_text(gap.at)}" if gap.at else ""
    return (
        ("max |Δ|", f"{number_text(gap.max_abs)}{at}"),
        *((f"there in the {name}", x) for name, x in zip(names, _two_texts(gap.left, gap.right), strict=True)),
        ("max |Δ| ÷ |x|", number_text(gap.max_rel)),
        ("outside the tolerance", f"{gap.n_outside:,} of {gap.n:,}"),
        *(nan if not gap.n_nan else ()),
    )


def _two_texts(left: Any, right: Any) -> list[str]:
    """Two values with enough digits to distinguish them."""
    texts = [number_text(x) if isinstance(x, float) else str(x) for x in (left, right)]
    for digits in (6, 9, 17):
        if texts[0] == texts[1] and isinstance(left, float):
            texts = [f"{x:.{digits}g}" for x in (left, right)]
    return texts


def gap_texts(gap: ValueDifference) -> list[tuple[str, str, str, str]]:
    """The findings of a gap: (kind, left, right, hint)."""
    found = []
    if gap.n_nan:
        where = f"the first at {_index_text(gap.nan_at)}" if gap.nan_at else ""
        found.append(("NaN", f"{gap.nan_left:,} NaN", f"{gap.nan_right:,} NaN", where))
    if gap.n_outside:
        left, right = _two_texts(gap.left, gap.right)
        transposed = f"; {OF_TRANSPOSE}" if gap.is_transpose else ""
        at = f"at {_index_text(gap.at)}; {gap.n_outside:,} of {gap.n:,} differ{transposed}" if gap.at else ""
        found.append(("value", left, right, at))
    return found


def _index_text(index: Index) -> str:
    return f"[{', '.join(map(str, index))}]"


# Compare small leaves of two trees in batches: one by one, NumPy calls would take some 50 µs each

_SMALL = 1 << 14  # bytes of an array
_MOST = 1 << 16  # elements compared at a time, with some 100 bytes for each
_NUMBERS = {cls.__name__: np.dtype(cls) for cls in (bool, int, float, complex)}


class Reading(NamedTuple):
    """How to read leaves with some facts. Leaves that are read in the same way are read in one batch."""

    kind: str  # "numpy", "array" or "scalar", from the facts
    dtype: str  # the name of the dtype, or of the type of a Python number


def reading_of(facts: Facts) -> Reading | None:
    """The way to read a leaf; None unless it is a small array of numbers in host memory or a plain Python number."""
    if facts.kind == "scalar":
        return Reading("scalar", facts.type) if facts.weak and facts.type in _NUMBERS else None
    where = facts.sharding
    is_near = where is not None and where.n_devices == 1 and where.platform == "cpu" and facts.kind == "array"
    if not (facts.elements > 0 and 0 < facts.bytes <= _SMALL):
        return None
    return Reading(facts.kind, facts.dtype) if is_near or (facts.kind, facts.type) == ("numpy", "np.ndarray") else None


def compare_small(
    left: Sequence[Any],
    right: Sequence[Any],
    shapes: Sequence[Index],
    shape_of_pair: np.ndarray,
    readings: tuple[Reading, Reading],
    rtol: float = 0.0,
    atol: float = 0.0,
) -> tuple[list[SmallPart], np.ndarray]:
    """Compare leaves in pairs of one shape; returns those that differ, and the indices of those that cannot be read.

    Copies the values, because a JAX array with a view cannot be donated.
    """
    sizes = np.array([*map(math.prod, shapes)], np.int64)[shape_of_pair]
    ends = [*(np.flatnonzero(np.diff(np.cumsum(sizes) // _MOST)) + 1).tolist(), len(sizes)]
    waiting = [*zip([0, *ends], ends, strict=False)]
    parts, unread = [], []
    while waiting:
        start, end = waiting.pop()
        cut, n = slice(start, end), int(sizes[start:end].sum())
        a, b = (_values(leaves[cut], reading, n) for leaves, reading in zip((left, right), readings, strict=True))
        if a is not None and b is not None:
            part = _compared(np.arange(start, end), a, b, sizes[cut], shapes, shape_of_pair[cut], rtol, atol)
            parts += [part] if part else []
        elif end - start > 1:
            middle = (start + end) // 2
            waiting += [(start, middle), (middle, end)]
        else:
            unread.append(start)
    return parts, np.array(unread, np.int64)


def _values(leaves: Sequence[Any], reading: Reading, n: int) -> np.ndarray | None:
    """The concatenated values of leaves; None if one is not what its facts say, or cannot be read."""
    try:
        if reading.kind == "scalar":
            dtype = _NUMBERS[reading.dtype]
            found = np.fromiter(leaves, dtype, n) if _are_all(leaves, type(dtype.type(0).item())) else None
        elif reading.kind == "numpy":
            found = np.concatenate(leaves, axis=None) if _are_all(leaves, np.ndarray) else None
        elif (dtype := leaves[0].dtype).isbuiltin == 1:  # has the buffer protocol
            copied = io.BytesIO()
            copied.writelines(leaves)  # one by one, so that each view is dropped while it is in the CPU's cache
            found = np.frombuffer(copied.getbuffer(), dtype)
        else:
            view = np.asarray if _leaves_no_copy(dtype) else host_view
            with jax.transfer_guard_device_to_host("allow"):
                found = np.concatenate([view(leaf).reshape(-1) for leaf in leaves])
    except Exception:  # an integer beyond int64, an array that was deleted in the meantime
        return None
    return found if found is not None and found.size == n and holds_numbers(found.dtype) else None


def _are_all(leaves: Sequence[Any], cls: type) -> bool:
    return {*map(id, map(type, leaves))} == {id(cls)}  # by id: a metaclass may override ==


@cache
def _leaves_no_copy(dtype: np.dtype) -> bool:
    """Whether `np.asarray` caches nothing on a JAX array of the dtype. It does in jax 0.4.36, and for int4."""
    array = jax.device_put(np.zeros(1, dtype), jax.local_devices(backend="cpu")[0])
    return weakref.ref(np.asarray(array))() is None


def _compared(
    rows: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    sizes: np.ndarray,
    shapes: Sequence[Index],
    shape_of_pair: np.ndarray,
    rtol: float,
    atol: float,
) -> SmallPart | None:
    """Compare pieces of flat arrays; None if none of them differ."""
    if a.dtype == b.dtype:
        bits = a.view(np.uint8) != b.view(np.uint8)
        if not bits.any():
            return None
        differs = np.logical_or.reduceat(bits, _starts(sizes) * a.itemsize)
        if not differs.all():
            a, b = (values[np.repeat(differs, sizes)] for values in (a, b))
            rows, sizes, shape_of_pair = rows[differs], sizes[differs], shape_of_pair[differs]
    starts = _starts(sizes)
    found = compare_elements(a, b, starts, rtol, atol)
    differ = np.flatnonzero((found.n_outside > 0) | (found.n_nan > 0))
    if not len(differ):
        return None
    found = Elements(*[numbers[differ] for numbers in found])
    where = starts[differ] + np.where(found.n_outside > 0, found.at, 0)
    rows, sizes, of_pair, starts = rows[differ], sizes[differ], shape_of_pair[differ], starts[differ]
    found, texts = found._replace(max_rel=np.fmax(found.max_rel, 0.0)), (a[where].tolist(), b[where].tolist())
    return SmallPart(rows, sizes, found, *texts, shapes, of_pair, _turned(a, b, starts, shapes, of_pair))


def _starts(sizes: np.ndarray) -> np.ndarray:
    return np.append(0, np.cumsum(sizes[:-1], dtype=np.intp))


def _turned(
    a: np.ndarray, b: np.ndarray, starts: np.ndarray, shapes: Sequence[Index], shape_of_pair: np.ndarray
) -> set[int]:
    """The indices of pieces in which the right array is the transposed left one."""
    steps = np.array([*map(_step, shapes)])[shape_of_pair]
    is_near = (steps >= 0) & (a[starts + np.maximum(steps, 0)] == b[starts + (steps > 0)])
    turned = set[int]()
    for i in np.flatnonzero(is_near).tolist():
        shape = shapes[shape_of_pair[i]]
        cut = slice(starts[i], starts[i] + math.prod(shape))
        if np.array_equal(a[cut].reshape(shape).T, b[cut].reshape(shape)):
            turned.add(i)
    return turned


def _step(shape: Index) -> int:
    """The distance between the first two elements of the last axis in a transpose; -1 if that has another shape."""
    if len(shape) < 2 or shape != shape[::-1]:
        return -1
    return math.prod(shape[1:]) if shape[0] > 1 else 0


class SmallPart(NamedTuple):
    """Leaves that differ: one number for each, as in `ValueDifference`, and the index of its shape in `shapes`."""

    rows: np.ndarray
    n: np.ndarray
    numbers: Elements
    left: list[Any]
    right: list[Any]
    shapes: Sequence[Index]
    shape_of_pair: np.ndarray
    turned: set[int]


class Gaps(Mapping[int, ValueDifference]):
    """The differences of leaves by row: numbers in arrays for small leaves, with a `ValueDifference` made on demand."""

    def __init__(self, own: dict[int, ValueDifference], parts: Sequence[SmallPart]) -> None:
        self._own, self._parts = own, parts
        self._ends = [*accumulate(len(part.rows) for part in parts)]
        rows = chain.from_iterable(part.rows.tolist() for part in parts)
        self._places = {row: i for i, row in enumerate(rows)}

    def __len__(self) -> int:
        return len(self._own) + len(self._places)

    def __iter__(self) -> Iterator[int]:
        yield from self._own
        yield from self._places

    def __getitem__(self, row: int) -> ValueDifference:
        if row not in self._places:
            return self._own[row]
        at = bisect(self._ends, self._places[row])
        part, i = self._parts[at], self._places[row] - self._ends[at]  # negative: counted from the part's end
        values, shape = (part.left[i], part.right[i]), part.shapes[part.shape_of_pair[i]]
        gap = _value_difference(part.numbers.of(i), int(part.n[i]), values, shape, (0,) * len(shape))
        gap.is_transpose = i + len(part.rows) in part.turned
        return gap

    def with_more(self, own: dict[int, ValueDifference]) -> Gaps:
        return Gaps(self._own | own, self._parts) if own else self

    def numbers(self) -> GapNumbers:
        numbers = [np.concatenate([[*self._own], *(part.rows for part in self._parts)]).astype(np.int64)]
        for name, dtype in zip(GapNumbers._fields[1:], (np.int64, np.int64, float, float), strict=True):
            of_own = np.array([getattr(gap, name) for gap in self._own.values()], dtype)
            numbers.append(np.concatenate([of_own, *(getattr(part.numbers, name) for part in self._parts)]))
        return GapNumbers(*numbers)


class GapNumbers(NamedTuple):
    """The numbers of each row with a gap, in no order; see `ValueDifference`."""

    rows: np.ndarray
    n_outside: np.ndarray
    n_nan: np.ndarray
    max_abs: np.ndarray
    max_rel: np.ndarray


# Compare two arrays, at least one of them in a file, piece by piece


def _compare_stored(left: Any, right: Any, rtol: float, atol: float) -> ValueDifference:
    gap = ValueDifference(int(np.prod(left.shape, dtype=np.int64)))
    order = _order(left, right)
    start = n_nan = 0
    for a, b in pieces_of_both(left, right):
        n_nan += count_nan(a) if compare_block(gap, a, b, (start,), rtol, atol) else 0
        start += len(a)
    places = (at and np.unravel_index(at[0], left.shape, order) for at in (gap.at, gap.nan_at))  # type: ignore[call-overload]
    gap.at, gap.nan_at = (tuple(map(int, place)) for place in places)
    gap.nan_left += n_nan
    gap.nan_right += n_nan
    return gap


def compare_stored_layers(
    left: Any, right: Any, axis: int, *, rtol: float = 0.0, atol: float = 0.0
) -> list[ValueDifference]:
    """The gaps of two arrays in each layer along an axis, without indices."""
    n, sizes = left.shape[axis], left.shape[axis + 1 :] if _order(left, right) == "C" else left.shape[:axis]
    gaps, start = [ValueDifference(0) for _ in range(n)], 0
    for a, b in pieces_of_both(left, right):
        if not compare_block(ValueDifference(0), a, b, (0,), rtol, atol):
            layers = np.arange(start, start + len(a)) // math.prod(sizes) % n
            by_layer = np.argsort(layers, kind="stable")
            found, starts = np.unique(layers[by_layer], return_index=True)
            for i, at in zip(found.tolist(), np.split(by_layer, starts[1:]), strict=True):
                compare_block(gaps[i], a[at], b[at], (0,), rtol, atol)
        start += len(a)
    return gaps


def pieces_of_both(left: Any, right: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The values of two arrays of one shape as flat pieces of equal lengths, in the order of a file; may raise
    `CannotCompare`.
    """
    order = _order(left, right)
    pieces, a, b = [pieces_of(array, order) for array in (left, right)], np.empty(0), np.empty(0)
    while True:
        a, b = (rest if len(rest) else next(more, None) for more, rest in zip(pieces, (a, b), strict=True))
        if a is None or b is None:
            return
        n = min(len(a), len(b))
        yield a[:n], b[:n]
        a, b = a[n:], b[n:]


def _order(left: Any, right: Any) -> str:
    return next((array.order for array in (left, right) if type(array) is Stored), "C")


def pieces_of(array: Any, order: str) -> Iterator[np.ndarray]:
    """The values as flat arrays, in the given order."""
    if type(array) is Stored:
        if not holds_numbers(array.dtype):
            raise CannotCompare(f"dtype {array.dtype} holds no numbers")
        if array.order == order:
            yield from array.chunks()
            return
        array = np.asarray(array)
    whole = np.atleast_1d(whole_array(array))
    if order == "F":
        whole = whole.T
    n_rows = max(1, CHUNK_as_in_files // max(1, whole[:1].nbytes))
    for i in range(0, len(whole), n_rows):
        yield whole[i : i + n_rows].reshape(-1)


def whole_array(array: Any) -> np.ndarray:
    """An array in memory as a NumPy array; a view if it is on the host in one part."""
    parts = [(start, part if isinstance(part, np.ndarray) else host_view(part)) for start, part in parts_of(array)]
    if len(parts) == 1:
        return parts[0][1]
    whole = np.empty(array.shape, parts[0][1].dtype)
    for start, part in parts:
        whole[tuple(slice(at, at + size) for at, size in zip(start, part.shape, strict=True))] = part
    return whole


# Arrays with the same values under other names: transposed, reshaped, stacked, joined, cast or permuted

_MOST_BYTES = 1 << 31  # of an array that is transposed, stacked or joined, which is read as a whole
_MOST_SORTED = 1 << 26  # elements
_MOST_AXES = 4
_FEW = 4  # rows that tell which layout fits
_FLOATS = [np.dtype(it) for it in (ml_dtypes.bfloat16, np.float16, np.float32, np.float64)]  # the narrowest first
FLOATS = {dtype.name: dtype for dtype in _FLOATS}
_ODD = np.uint64(0x9E3779B97F4A7C15)


class Part(NamedTuple):
    """An array, an array of all layers, or a number of layers that are one array each."""

    rows: tuple[int, ...]  # of the array, or of each layer
    axis: int | None = None  # of the layers in an array that holds them all


class Match(NamedTuple):
    """Parts of two trees that should have the same values; if one tree has several, they are joined in the other."""

    left: tuple[Part, ...]
    right: tuple[Part, ...]


class Gap(NamedTuple):
    """How an array of the left tree differs from its counterpart: not at all, or why that is unknown."""

    row: int
    other: int
    gap: ValueDifference | str | None
    text: str


class Values:
    """The values of the arrays of two trees; `digest` is equal for equal values in any order, and adds up for parts."""

    def __init__(self, nodes: tuple[Sequence[Any], Sequence[Any]], dtypes: set[np.dtype]) -> None:
        self._nodes, self._known = nodes, dict[tuple[int, int, int | None], np.ndarray | None]()
        self._parts = dict[Any, set[int]]()
        self._last: tuple[Any, Any] = None, None  # the last array of all layers that was read
        self._narrow = next((dtype for dtype in _FLOATS if dtype in dtypes), None)

    def node(self, side: int, row: int) -> Any:
        node = self._nodes[side][row]
        return node if hasattr(node, "dtype") else np.asarray(node)  # a number

    def digests(self, side: int, row: int, axis: int | None = None) -> np.ndarray | None:
        """uint64[n]: a digest of each layer along an axis, or of the array; None if it cannot be read."""
        key = side, row, axis
        if key not in self._known:
            try:
                node = self.node(side, row)
                if axis is not None:
                    digests = [self.digest(layer) for layer in np.moveaxis(in_memory(node), axis, 0)]
                else:
                    digests = [sum(map(self.digest, node.chunks() if type(node) is Stored else [whole_array(node)]))]
                self._known[key] = np.array([it % 2**64 for it in digests], np.uint64)
            except Exception:  # CannotCompare, or whatever a damaged file raises: comparing says so
                self._known[key] = None
        return self._known[key]

    def digest(self, values: np.ndarray) -> int:
        (values, _), n_repeats = once(values, values)
        total, flat = 0, values.reshape(-1)
        for start in range(0, len(flat), 1 << 20):
            x = flat[start : start + (1 << 20)]
            if x.dtype in _FLOATS and self._narrow is not None:
                with np.errstate(all="ignore"):
                    x = x.astype(self._narrow).astype(np.float64) + 0.0  # of both zeros
                x[x != x] = np.nan
            bits = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64).view(np.uint64) * _ODD
            bits = (bits ^ (bits >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
            total += int((bits ^ (bits >> np.uint64(29))).sum(dtype=np.uint64))
        return total * n_repeats % 2**64

    def varies(self, side: int, row: int) -> bool:
        """Whether an array has different values, so that another one with the same is no coincidence."""
        digest, array = self.digests(side, row), self.node(side, row)
        if digest is None or array_bytes(array) > _MOST_BYTES:
            return False
        return self.digest(in_memory(array).reshape(-1)[:1]) * array.size % 2**64 != int(digest[0])

    def likeness(self, left: int, right: int) -> float:
        """The share of values that two arrays of one size have in common, in any order."""
        try:
            if self.node(0, left).size > _MOST_SORTED:
                return 0.0
            nodes = self.node(0, left), self.node(1, right)
            a, b = (np.sort(in_memory(node).astype(np.float64), axis=None) for node in nodes)
        except Exception:
            return 0.0
        if not len(a):
            return 0.0
        n_same = len(a) - len(np.setdiff1d(a, b)) if len(np.unique(a)) == len(a) else np.count_nonzero(a == b)
        scale = 1e-3 * max(float(np.abs(a - a.mean()).mean()), 1e-30)
        return max(n_same, np.count_nonzero(np.abs(a - b) <= scale)) / len(a)

    # How pieces fit each other

    def compare(self, match: Match, rtol: float, atol: float) -> list[Gap]:
        """How each array of the left tree, or each of its layers, differs from its counterpart."""
        gaps, layout = list[Gap](), None
        n = max(self.n_layers(side, part) for side, parts in enumerate(match) for part in parts)
        for i in range(n):
            rows = [[part.rows[min(i, len(part.rows) - 1)] for part in parts] for parts in match]
            pairs = [(left, right) for left in rows[0] for right in rows[1]]  # one of the trees has one part
            try:
                pieces = [[self._piece(side, part, i) for part in parts] for side, parts in enumerate(match)]
                for side, (several, one) in enumerate((pieces, pieces[::-1])):
                    if len(several) > 1:
                        pieces[1 - side] = self._split(one[0], several)
                for pair, a, b in zip(pairs, *pieces, strict=True):
                    gap, layout, is_rounded = _compare_in_layouts(a, b, layout, rtol, atol)
                    texts = [f"layer {i} of a stack" * any(p.axis is not None for p in (*match.left, *match.right))]
                    texts += ["joined with others" * (len(pairs) > 1), layout.text]
                    texts += [f"{'the same ' * (gap is None)}after rounding to {narrower(a, b)}"] if is_rounded else []
                    gaps.append(Gap(pair[0], pair[1], gap, ", ".join(filter(None, texts))))
            except (CannotCompare, Refused) as why:
                gaps += [Gap(left, right, str(why), "") for left, right in pairs]
            except Exception as error:  # whatever a damaged file raises
                why_not = f"comparing them raised {error_text(error)}"
                gaps += [Gap(left, right, why_not, "") for left, right in pairs]
        return gaps

    def n_layers(self, side: int, part: Part) -> int:
        return len(part.rows) if part.axis is None else self.node(side, part.rows[0]).shape[part.axis]

    def _piece(self, side: int, part: Part, i: int) -> Any:
        """The i-th layer. An array in a file that is compared as it is stays there."""
        if part.axis is None:
            return self.node(side, part.rows[i if len(part.rows) > 1 else 0])
        if self._last[0] != (side, part.rows[0]):
            self._last = (side, part.rows[0]), in_memory(self.node(side, part.rows[0]))
        return np.moveaxis(self._last[1], part.axis, 0)[i]

    def _split(self, one: Any, several: Sequence[Any]) -> list[np.ndarray]:
        """The parts of an array in which several others were joined, in the order of these."""
        several = [*map(in_memory, several)]
        wanted, best = [self.digest(x) for x in several], (-1, list[np.ndarray]())
        for parts in _splits(in_memory(one), [x.size for x in several]):
            found = [self.digest(part) for part in parts]
            free = [i for i, digest in enumerate(found) if digest not in wanted]
            taken = [found.index(it) if it in found else free.pop(0) if free else -1 for it in wanted]
            fits = -1 not in taken and all(parts[k].size == x.size for k, x in zip(taken, several, strict=True))
            if fits and (n := len({*wanted} & {*found})) > best[0]:
                best = n, [parts[k] for k in taken]
        if best[0] < 0:
            raise CannotCompare("its parts were not found")
        return best[1]

    def has_parts(self, side: int, row: int, others: Sequence[int]) -> bool:
        """Whether one or more of several arrays are parts of an array of the other tree."""
        digests, key = [self.digests(1 - side, other) for other in others], (side, row, len(others))
        sizes = [math.prod(self.node(1 - side, other).shape) for other in others]
        if any(it is None for it in digests) or self.digests(side, row) is None:
            return False
        if (key, *sorted(sizes)) not in self._parts:
            splits = _splits(in_memory(self.node(side, row)), sizes)
            self._parts[key, *sorted(sizes)] = {self.digest(part) for parts in splits for part in parts}
        return any(int(it[0]) in self._parts[key, *sorted(sizes)] for it in digests)  # type: ignore[index]


def in_memory(array: Any) -> np.ndarray:
    """An array in memory or in a file as a NumPy array; a view where that is possible."""
    if array_bytes(array) > _MOST_BYTES:
        raise CannotCompare(f"it has more than {_MOST_BYTES >> 30} GiB in another layout")
    return np.asarray(array) if type(array) is Stored else whole_array(array)


def _splits(one: np.ndarray, sizes: Sequence[int]) -> Iterator[list[np.ndarray]]:
    """The ways to split an array into parts of some sizes, each with the sizes in any order."""
    n = len(sizes)
    for axis, size in enumerate(one.shape):
        per_index = one.size // size if size else 1
        if size == n:
            yield [*np.moveaxis(one, axis, 0)]
        if not any(it % per_index for it in sizes):
            lengths = tuple(it // per_index for it in sizes)
            for order in sorted({*permutations(lengths)}) if n < 5 else [lengths]:
                yield np.split(one, [*accumulate(order)][:-1], axis)
        for n_heads in range(2, size // n + 1) if len({*sizes}) == 1 and size % n == 0 else ():
            if size % (n * n_heads) == 0:  # the parts of each head side by side
                before, after = one.shape[:axis], one.shape[axis + 1 :]
                by_head = one.reshape(*before, n_heads, n, size // (n * n_heads), *after)
                yield [part.reshape(*before, size // n, *after) for part in np.moveaxis(by_head, axis + 1, 0)]


def _compare_in_layouts(
    a: Any, b: Any, layout: Layout | None, rtol: float, atol: float
) -> tuple[ValueDifference | None, Layout, bool]:
    """How two arrays differ in the layout that fits best, and whether after rounding."""
    if a.shape == b.shape:
        gap = compare_arrays(a, b, rtol=rtol, atol=atol)
        if not (gap.n_outside or gap.n_nan):
            return None, Layout(""), False
        if a.nbytes > _MOST_BYTES:
            return gap, Layout(""), False
    a, b = in_memory(a), in_memory(b)
    best, known = (-1.0, Layout("")), [] if layout is None else [layout]
    for candidate in (*known, *layouts(a.shape, b.shape)):
        is_permuted = candidate.order and a.shape == b.shape and a.ndim != len(candidate.order)
        if is_permuted and candidate not in known and not 0.2 < best[0] < 0.9:
            continue  # of a permutation, some rows stay in place
        # Of equal values, or of those that are close, in the first rows and the last ones
        ends = ([x[:_FEW], x[-_FEW:]] for x in map(np.atleast_1d, (candidate.of(a, b.shape), b)))
        x, y = (end.astype(complex if end.dtype.kind == "c" else float) for end in map(np.concatenate, ends))
        with np.errstate(all="ignore"):
            share = float(np.mean((x == y) | (np.abs(x - y) <= 1e-2 * np.abs(y)))) if x.size else 1.0
        if share > best[0]:
            best = share, candidate
        if share == 1:
            break
    if best[0] < 0:
        raise CannotCompare(f"{a.shape} has no layout in {b.shape}")
    a = best[1].of(a, b.shape)
    gap = compare_arrays(a, b, rtol=rtol, atol=atol)
    is_rounded = bool(gap.n_outside or gap.n_nan) and a.dtype != b.dtype and are_floats(a, b)
    if is_rounded:
        gap = compare_arrays(*rounded(a, b), rtol=rtol, atol=atol)
    return (gap if gap.n_outside or gap.n_nan else None), best[1], is_rounded


def narrower(a: Any, b: Any) -> np.dtype:
    return min(a.dtype, b.dtype, key=_FLOATS.index)


def are_floats(*arrays: Any) -> bool:
    return all(array.dtype in _FLOATS for array in arrays)


def rounded(a: Any, b: Any) -> list[np.ndarray]:
    """Two arrays of float dtypes, both rounded to the narrower one."""
    with np.errstate(all="ignore"):
        return [in_memory(x).astype(narrower(a, b)) for x in (a, b)]


class Layout(NamedTuple):
    """How an array becomes another one: reshaped, its axes reordered, and reshaped again."""

    text: str
    first: tuple[int, ...] = ()
    order: tuple[int, ...] = ()

    def of(self, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        array = array.reshape(self.first) if self.first and math.prod(self.first) == array.size else array
        return (array.transpose(self.order) if len(self.order) == array.ndim else array).reshape(shape)


def layouts(shape: tuple[int, ...], other: tuple[int, ...]) -> Iterator[Layout]:
    """The ways in which an array of one shape may be stored in another one, the most common first."""
    if _fits(shape, other):
        yield Layout("" if shape == other else "reshaped")
    for own, is_back in ((shape, False), (other, True)) if max(len(shape), len(other)) <= _MOST_AXES else ():
        for order in sorted(permutations(range(len(own))), reverse=True)[:-1]:
            moved = tuple(own[i] for i in order)
            if not is_back and _fits(moved, other):
                yield Layout("transposed", (), order)
            elif is_back and _fits(shape, moved) and moved != shape:
                yield Layout("transposed", moved, tuple(np.argsort(order).tolist()))
    for axis, size in enumerate(shape if shape == other and len(shape) < 3 else ()):
        for half in (half for half in range(2, size // 2 + 1) if size % (2 * half) == 0):
            for inner in ((2, half), (half, 2)):  # rotary embeddings: halves of a head, or pairs side by side
                first = (*shape[:axis], size // (2 * half), *inner, *shape[axis + 1 :])
                order = [*range(axis + 1), axis + 2, axis + 1, *range(axis + 3, len(first))]
                yield Layout(f"permuted for rotary embeddings, {2 * half} a head", first, tuple(order))


def _fits(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether one shape splits the axes of the other."""
    ends = [{*accumulate(sizes, int.__mul__)} for sizes in (shape, other)]
    return math.prod(shape) == math.prod(other) and (ends[0] <= ends[1] | {1} or ends[1] <= ends[0] | {1})
