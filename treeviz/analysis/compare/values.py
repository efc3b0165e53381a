"""Compare the values of two arrays of one shape, part by part, where they lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from treeviz.analysis.compare.difference import OF_TRANSPOSE
from treeviz.analysis.compare.elements import Gap, Index, compare_elements, gap_of, index_in
from treeviz.analysis.stats.host import CHUNK, holds_numbers, host_view, lies_on_host, once
from treeviz.tree.numbers import number_text
from treeviz.tree.sharding import why_unreduced

_LARGE = 4 * CHUNK  # elements whose bits are compared at once: a call takes as long as it takes to read 50 kB


class CannotCompare(Exception):
    """Why the values of two arrays were not compared."""


def compare_arrays(left: Any, right: Any, *, rtol: float = 0.0, atol: float = 0.0) -> Gap:
    """Compare two arrays of one shape: of NumPy or JAX, or PRNG keys by their data.

    NaN equals NaN, and an infinity itself. Integers and bools are compared exactly, other values of one dtype bit by
    bit and then in float64. Arrays in host memory are read in place, a chunk at a time; an accelerator reduces its own.

    Raises:
      CannotCompare: One of them is deleted, traced, abstract, or partly in another process, or holds no numbers.
    """
    n_repeats = 1
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        (left, right), n_repeats = once(left, right)
    gap = Gap(int(np.prod(left.shape, dtype=np.int64)))
    if gap.n == 0:
        return gap
    same: list[np.ndarray] = []  # the blocks whose bits are
    for start, mine, other in _overlapping(parts_of(left), parts_of(right)):
        if isinstance(mine, np.ndarray) and isinstance(other, np.ndarray):
            for offset, a, b in _blocks(mine, other, _LARGE):
                if a.dtype == b.dtype and _same_bits(a, b):
                    same.append(a)
                    continue
                for inner, x, y in _blocks(a, b, CHUNK):
                    if compare_block(gap, x, y, _beyond(start, _beyond(offset, inner)), rtol, atol):
                        same.append(x)
        else:
            _compare_on_device(gap, mine, other, start, rtol, atol)
    if gap.n_outside or gap.n_nan:
        n_nan = sum(map(count_nan, same))
        gap.nan_left += n_nan
        gap.nan_right += n_nan
    gap.repeat(n_repeats)
    return gap


Part = tuple[Index, Any]  # where it starts, and a NumPy view or an array on one device


def parts_of(array: Any) -> list[Part]:
    origin = (0,) * len(array.shape)
    if isinstance(array, np.ma.MaskedArray):
        raise CannotCompare("it has a mask")
    if isinstance(array, np.ndarray | np.generic):
        array = np.asarray(array)
        if not holds_numbers(array.dtype):
            raise CannotCompare(f"dtype {array.dtype} holds no numbers")
        return [(origin, array)]
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        data = jax.random.key_data(array)
        return parts_of(data)
    if not array.sharding.is_fully_addressable:
        raise CannotCompare("a part of it lives in another process")
    if why := why_unreduced(array.sharding):
        raise CannotCompare(why)
    if len(array.sharding.device_set) == 1 or array.sharding.is_fully_replicated:
        parts = [(origin, array.addressable_data(0))]
    else:
        parts = [
            (tuple(cut.start or 0 for cut in each.index), each.data)
            for each in array.addressable_shards
            if each.replica_id == 0
        ]
    return [(start, host_view(data)) for start, data in parts] if lies_on_host(array) else parts


def _overlapping(left: list[Part], right: list[Part]) -> Iterator[tuple[Index, Any, Any]]:
    """Where a piece starts that both have, and the piece of each."""
    same = {(start, data.shape): data for start, data in right}
    for start, mine in left:
        other = same.get((start, mine.shape))
        if other is not None:
            yield start, mine, other
            continue
        for from_, data in right:
            low = np.maximum(start, from_)
            high = np.minimum(np.add(start, mine.shape), np.add(from_, data.shape))
            if (low < high).all():
                sizes = (high - low).tolist()
                yield tuple(low.tolist()), _cut(mine, low - start, sizes), _cut(data, low - from_, sizes)


def _cut(part: Any, starts: np.ndarray, sizes: list[int]) -> Any:
    if isinstance(part, np.ndarray):
        return part[tuple(slice(start, start + size) for start, size in zip(starts.tolist(), sizes, strict=True))]

    from treeviz.analysis.stats.device import undisturbed

    (device,) = part.sharding.device_set
    with undisturbed(), jax.default_device(device):
        return jax.lax.dynamic_slice(part, [np.int64(start) for start in starts], sizes)


def _blocks(left: np.ndarray, right: np.ndarray, most: int) -> Iterator[tuple[Index, np.ndarray, np.ndarray]]:
    """Blocks of so many elements at most, and where they start; contiguous ones are not copied."""
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


def compare_block(gap: Gap, a: np.ndarray, b: np.ndarray, start: Index, rtol: float, atol: float) -> bool:
    """Add how two blocks differ. Returns whether their bits are the same: then nothing is added, not even NaN."""
    if a.dtype == b.dtype and _same_bits(a, b):
        return True
    mine, other = a.reshape(-1), b.reshape(-1)
    (numbers,) = compare_elements(mine, other, rtol=rtol, atol=atol).of_each()
    found = gap_of(numbers, a.size, (mine.item(numbers.at), other.item(numbers.at)), a.shape)
    found.at, found.nan_at = (at and _beyond(start, at) for at in (found.at, found.nan_at))
    gap.take(found)
    return False


def count_nan(block: np.ndarray) -> int:
    if block.dtype.kind in "biu":
        return 0
    # By their bits: the numbers themselves take five to twenty times as long.
    if block.dtype in (np.float16, ml_dtypes.bfloat16):
        infinity = np.array(np.inf, block.dtype).view(np.uint16)
        return int(np.count_nonzero((np.ascontiguousarray(block).view(np.uint16) & 0x7FFF) > infinity))
    with np.errstate(invalid="ignore"):
        if block.dtype.itemsize == 1:
            of_byte = np.arange(256, dtype=np.uint8).view(block.dtype)
            return int(np.count_nonzero((of_byte != of_byte)[block.view(np.uint8)]))
        return int(np.count_nonzero(block != block))


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    if not (a.flags.c_contiguous and b.flags.c_contiguous and a.ndim):
        return a.dtype.kind in "biu" and np.array_equal(a, b)
    word = np.uint64 if a.nbytes % 8 == 0 else np.uint8
    return np.array_equal(a.reshape(-1).view(word), b.reshape(-1).view(word))


def is_transpose(left: Any, right: Any) -> bool:
    """Whether an array in host memory has the values of another one with its axes in reverse order."""
    try:
        views = [_whole_on_host(each) for each in (left, right)]
    except CannotCompare:
        return False
    if any(each is None for each in views) or views[0].T.shape != views[1].shape or not views[0].size:
        return False
    if not np.array_equal(views[0].T[0], views[1][0]):  # nearly always
        return False
    gap = compare_arrays(views[0].T, views[1])
    return not (gap.n_outside or gap.n_nan)


def _whole_on_host(array: Any) -> Any:
    """A view of an array; None if it lies in several parts, in a file or on an accelerator."""
    if not isinstance(array, np.ndarray | jax.Array):
        return None
    parts = parts_of(array)
    return parts[0][1] if len(parts) == 1 and isinstance(parts[0][1], np.ndarray) else None


def _beyond(start: Index, at: Index) -> Index:
    return tuple([first + i for first, i in zip(start, at, strict=True)])


def _compare_on_device(gap: Gap, a: Any, b: Any, start: Index, rtol: float, atol: float) -> None:
    """Reduce a pair on the device that holds the left one; only the numbers travel."""
    from treeviz.analysis.stats.device import fetch, has_float64, undisturbed

    holder = a if isinstance(a, jax.Array) else b
    (device,) = holder.sharding.device_set
    with undisturbed(), jax.default_device(device):
        a, b = jax.device_put(a, device), jax.device_put(b, device)
        numbers = _reduced(a, b, np.float64(rtol), np.float64(atol), wide=has_float64(device))
    n_outside, max_abs, where, max_rel, n_nan, nan_at, nan_left, nan_right, left, right = fetch(list(numbers))
    found = Gap(0, int(n_outside), float(max_abs), max_rel=float(max_rel), n_nan=int(n_nan))
    found.nan_left, found.nan_right = int(nan_left), int(nan_right)
    if found.n_outside:
        found.at, found.left, found.right = _beyond(start, index_in(a.shape, int(where))), left.item(), right.item()
    if found.n_nan:
        found.nan_at = _beyond(start, index_in(a.shape, int(nan_at)))
    gap.take(found)


def _reduce(a: jax.Array, b: jax.Array, rtol, atol, *, wide: bool) -> tuple[jax.Array, ...]:
    exact = all(jnp.issubdtype(x.dtype, jnp.integer) or x.dtype == bool for x in (a, b)) and a.dtype == b.dtype
    real = jnp.float64 if wide else jnp.float32
    compared = jnp.complex128 if any(jnp.iscomplexobj(x) for x in (a, b)) else real
    mine, other = a.astype(compared), b.astype(compared)
    nan_left, nan_right = jnp.isnan(mine), jnp.isnan(other)
    same = (a == b) if exact else (mine == other)
    distance = jnp.where(same, 0.0, jnp.abs(mine - other)).astype(real)
    distance = jnp.where(~same & (distance == 0), 1.0, distance) if exact else distance
    size = jnp.abs(other).astype(real)
    outside = ~same & ~(nan_left | nan_right) & ~(distance <= atol + rtol * size)
    where = jnp.argmax(jnp.where(outside, distance, -1.0).reshape(-1))
    lonely = nan_left != nan_right
    count = lambda mask: jnp.sum(mask, dtype=jnp.int64)  # noqa: E731
    relative = jnp.max(jnp.where(outside, distance / size, 0.0))
    max_abs = jnp.max(jnp.where(outside, distance, 0.0))
    nans = count(lonely), jnp.argmax(lonely.reshape(-1)), count(nan_left), count(nan_right)
    return count(outside), max_abs, where, relative, *nans, a.reshape(-1)[where], b.reshape(-1)[where]


_reduced = jax.jit(_reduce, static_argnames="wide")


def gap_details(gap: Gap, kind: str, names: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    """What is known of a gap for one of its findings, "value" or "NaN", as names and texts."""
    details: list[tuple[str, str]] = []
    if kind == "value":
        at = f" at {_index_text(gap.at)}" if gap.at else ""
        texts = _two_texts(gap.left, gap.right)
        details += [("max |Δ|", f"{number_text(gap.max_abs)}{at}")]
        details += [(f"there in the {name}", text) for name, text in zip(names, texts, strict=True)]
        details += [("max |Δ| ÷ |x|", number_text(gap.max_rel))]
        details += [("outside the tolerance", f"{gap.n_outside:,} of {gap.n:,}")]
    if kind == "NaN" or not gap.n_nan:
        counts = zip(names, (gap.nan_left, gap.nan_right), strict=True)
        details += [(f"NaN in the {name}", f"{n:,}") for name, n in counts]
    if kind == "NaN":
        details += [("NaN in one alone", f"{gap.n_nan:,}")]
    return tuple(details)


def _two_texts(left: Any, right: Any) -> list[str]:
    """Two values with as many digits as tell them apart."""
    texts = [number_text(x) if isinstance(x, float) else str(x) for x in (left, right)]
    for digits in (6, 9, 17):
        if texts[0] == texts[1] and isinstance(left, float):
            texts = [f"{x:.{digits}g}" for x in (left, right)]
    return texts


def gap_texts(gap: Gap) -> list[tuple[str, str, str, str]]:
    """The findings that a gap is: (kind, left, right, hint)."""
    found = []
    if gap.n_nan:
        where = f"the first at {_index_text(gap.nan_at)}" if gap.nan_at else ""
        found.append(("NaN", f"{gap.nan_left:,} NaN", f"{gap.nan_right:,} NaN", where))
    if gap.n_outside:
        left, right = _two_texts(gap.left, gap.right)
        more = f"; {OF_TRANSPOSE}" if gap.is_transpose else ""
        at = f"at {_index_text(gap.at)}; {gap.n_outside:,} of {gap.n:,} differ{more}" if gap.at else ""
        found.append(("value", left, right, at))
    return found


def _index_text(index: Index) -> str:
    return f"[{', '.join(map(str, index))}]"
