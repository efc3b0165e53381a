"""Statistics of arrays in host memory by NumPy, which compiles nothing: rows as `treeviz.steps.reduce` packs them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from treeviz.analysis.stats.host import CHUNK, as_float64, host_view
from treeviz.steps.statistics import EXPONENT_ZERO, LIGHT, NO_NUMBER, RANGE_AT, USUAL, n_words

_MOST = 1000  # of the magnitude of an exponent, so that two to its power is a float64


class _Sums(NamedTuple):
    """Of pieces of entries: which entry, the largest magnitude, its exponent, the squares by it, and the non-finite."""

    entries: np.ndarray
    peaks: np.ndarray
    exponents: np.ndarray
    squares: np.ndarray
    n_bad: np.ndarray


def whole(array: jax.Array) -> np.ndarray:
    """An array whose devices use host memory: a view of it, or if it is sharded a copy. Waits for it."""
    if len(array.sharding.device_set) == 1:
        return host_view(array)
    copy = np.empty(array.shape, array.dtype)
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            copy[shard.index] = host_view(shard.data)
    return copy


def reduce_on_host(leaves: Sequence[tuple[np.ndarray, ...] | None], axes: Sequence[int | None] = ()) -> np.ndarray:
    """uint32[rows, n_words(LIGHT)]: as `reduce_leaves`, of arrays, or of differences of two: the first less the other.

    Args:
      axes: Of the layers, for each leaf; None: it has none.
    """
    each = zip(leaves, axes or (None,) * len(leaves), strict=True)
    layers = [layer for arrays, axis in each for layer in _layers(arrays, axis)]
    rows = np.zeros((len(layers), n_words(LIGHT)), np.uint32)
    rows[:, 0] = NO_NUMBER
    with np.errstate(all="ignore"):
        parts = [_sums(entries, pieces) for entries, pieces in _together(_pieces(layers))]
        if parts:
            sums = _Sums(*map(np.concatenate, zip(*parts, strict=True)))
            rows[np.unique(sums.entries)] = _packed(sums)
    return rows


def _layers(arrays: tuple[np.ndarray, ...] | None, axis: int | None) -> Iterable[tuple[np.ndarray, ...] | None]:
    if arrays is None or axis is None:
        return [arrays]
    return zip(*(np.moveaxis(x, axis, 0) for x in arrays), strict=True)


def _pieces(layers: Sequence[tuple[np.ndarray, ...] | None]) -> Iterator[tuple[int, np.ndarray]]:
    for entry, arrays in enumerate(layers):
        flat = [x.reshape(-1) for x in arrays or ()]
        for start in range(0, flat[0].size if flat else 0, CHUNK):
            yield entry, _difference(*(x[start : start + CHUNK] for x in flat))


def _difference(left: np.ndarray, *right: np.ndarray) -> np.ndarray:
    """With the rounding of the device: at least in float32."""
    for x in right:
        low = left.dtype.itemsize < 4
        left = left.astype(np.float32) - x.astype(np.float32) if low else left - x
    return as_float64(left) if left.dtype.kind == "c" else left


def _together(pieces: Iterable[tuple[int, np.ndarray]]) -> Iterator[tuple[list[int], list[np.ndarray]]]:
    """Pieces of few numbers are many at a time."""
    entries: list[int] = []
    together: list[np.ndarray] = []
    n = 0
    for entry, piece in pieces:
        if n + piece.size > CHUNK and together:
            yield entries, together
            entries, together, n = [], [], 0
        entries.append(entry)
        together.append(piece)
        n += piece.size
    if together:
        yield entries, together


def _sums(entries: list[int], pieces: list[np.ndarray]) -> _Sums:
    sizes = np.array([piece.size for piece in pieces])
    starts = np.cumsum(sizes) - sizes
    values = np.abs(np.concatenate(pieces, dtype=np.float64))
    is_bad = ~np.isfinite(values)
    values[is_bad] = 0
    peaks = np.maximum.reduceat(values, starts)
    exponents = _exponents(peaks)
    values *= np.repeat(np.ldexp(1.0, -exponents), sizes)
    values *= values
    n_bad = np.add.reduceat(is_bad, starts, dtype=np.uint32)
    return _Sums(np.array(entries), peaks, exponents, np.add.reduceat(values, starts), n_bad)


def _exponents(peaks: np.ndarray) -> np.ndarray:
    return np.clip(np.frexp(peaks)[1], -_MOST, _MOST)


def _packed(sums: _Sums) -> np.ndarray:
    """The rows of the entries that there are."""
    starts = np.flatnonzero(np.diff(sums.entries, prepend=-1))
    sizes = np.diff(starts, append=len(sums.entries))
    peaks = np.maximum.reduceat(sums.peaks, starts)
    exponents = _exponents(peaks)
    squares = np.ldexp(sums.squares, 2 * (sums.exponents - np.repeat(exponents, sizes)))
    floats = np.add.reduceat(squares, starts), np.ldexp(peaks, -exponents)
    first = (EXPONENT_ZERO + exponents).astype(np.uint32) | np.uint32(USUAL << RANGE_AT)
    bits = (x.astype(np.float32).view(np.uint32) for x in floats)
    return np.stack([first, *bits, np.add.reduceat(sums.n_bad, starts)], axis=1)
