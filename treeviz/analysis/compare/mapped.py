"""Compare arrays with the same values under other names: transposed, reshaped, stacked, joined, cast or permuted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, permutations
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from treeviz.analysis.compare.values import (
    CannotCompare,
    ValueDifference,
    compare_arrays,
    whole_array,
)
from treeviz.analysis.stats.arrays import once
from treeviz.tree.stored import Refused, Stored
from treeviz.tree.text import array_bytes, error_text

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
        share = _equal_share(candidate.of(a, b.shape), b)
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


def _equal_share(a: np.ndarray, b: np.ndarray) -> float:
    """The share of equal values, or of those that are close, in the first rows and the last ones."""
    ends = [np.concatenate([x[:_FEW], x[-_FEW:]]) for x in map(np.atleast_1d, (a, b))]
    x, y = (end.astype(complex if end.dtype.kind == "c" else float) for end in ends)
    with np.errstate(all="ignore"):
        return float(np.mean((x == y) | (np.abs(x - y) <= 1e-2 * np.abs(y)))) if x.size else 1.0


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
