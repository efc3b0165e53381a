"""Every difference between two trees: structure, static data, shapes, dtypes, placement, values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import product
from operator import is_
from typing import Any, NamedTuple

import jax
import numpy as np

from treeviz.analysis.compare.aligned import (
    MAPPINGS,
    NONE,
    Aligned,
    Finding,
    Side,
    align,
    compare_kinds,
    compare_lengths,
    compare_mappings,
    compare_static,
    is_builtin,
    is_comparable,
    same_facts,
)
from treeviz.analysis.compare.difference import Difference, Differences, Unmade
from treeviz.analysis.compare.values import (
    FLOATS,
    CannotCompare,
    Gap,
    Gaps,
    Match,
    Reading,
    ValueDifference,
    are_floats,
    compare_arrays,
    compare_small,
    compare_stored_layers,
    gap_texts,
    is_transpose,
    narrower,
    reading_of,
    rounded,
)
from treeviz.analysis.compare.values import SmallPart as Part
from treeviz.analysis.facts import shape_text, sharding_text
from treeviz.analysis.stats import FIRST_EXPONENT, host_view, lies_on_host, undisturbed, value_statistics
from treeviz.tree.describers import array_inside
from treeviz.tree.facts import Facts
from treeviz.tree.keys import stored_items
from treeviz.tree.layers import Stacked, stacks_in
from treeviz.tree.runtime import gc_paused
from treeviz.tree.stored import Refused, Stored
from treeviz.tree.table import TreeTable
from treeviz.tree.text import array_text, class_attribute, error_text, guarded, has_base, is_any, value_text
from treeviz.tree.walk import scan

# Compare two leaves that are neither arrays nor numbers: texts, functions and objects of other classes

_DEEPEST = 4  # attributes of attributes
_MOST = 60  # attributes of an object; more would not be readable

Compare = Callable[[Any, Any], ValueDifference | str | None]


def compare_objects(left: Any, right: Any, are_functions: bool, compare: Compare) -> Finding | None:
    """How two leaves differ; None if they are equal. Objects of a class without its own `==` are compared by contents.

    `compare` returns how two arrays of one shape differ, why that is unknown, or None.
    """
    if _are_equal(left, right):
        return None
    hint, cls = "functions are compared by identity" if are_functions else "", type(left)
    if cls is type(right) and not are_functions and class_attribute(cls, "__eq__") is object.__eq__:
        if (difference := _difference_inside(left, right, "", compare, _DEEPEST)) == "":
            return None
        hint = difference or ""
    return "value", value_text(left, 60), value_text(right, 60), hint


def _are_equal(left: Any, right: Any) -> bool:
    return left is right or guarded(lambda: type(left) is type(right) and bool(left == right), lambda _: False)


def _contents(holder: Any) -> dict[str, Any]:
    """The contents of an object by the Python that gets them; empty if too many. Runs no code of its class."""
    if type(holder) is list or type(holder) is tuple:
        entries = {f"[{i}]": value for i, value in enumerate(holder[: _MOST + 1])}
    elif type(holder) is dict:
        entries = {f"[{value_text(key)}]": value for key, value in holder.items()} if len(holder) <= _MOST else {}
    else:
        entries = {f".{name}": value for name, value in guarded(lambda: stored_items(holder), lambda _: {}).items()}
    return entries if len(entries) <= _MOST else {}


def _difference_inside(left: Any, right: Any, prefix: str, compare: Compare, deepest: int) -> str | None:
    """The first difference between the contents of two objects; "" if they are equal, None if they are others."""
    left, right = _contents(left), _contents(right)
    texts = (_difference_text(left[name], right[name], prefix + name, compare, deepest) for name in left)
    return next(filter(None, texts), "") if left and left.keys() == right.keys() else None


def _difference_text(a: Any, b: Any, name: str, compare: Compare, deepest: int) -> str:
    """How parts of two objects differ: ".w: 1 → 2 (at [0]; 1 of 3 differ)"; "" if they are equal."""
    if guarded(lambda: all(isinstance(value, jax.Array | np.ndarray) for value in (a, b)), lambda _: False):
        texts = [array_text(value) or "" for value in (a, b)]
        gap = compare(a, b) if texts[0] == texts[1] else " → ".join(texts)
        if gap is None or isinstance(gap, str):
            return f"{name}: {gap}" if gap else ""
        (_, left, right, hint), *_ = gap_texts(gap)
        return f"{name}: {' → '.join(filter(None, (left, right)))}" + f" ({hint})" * bool(hint)
    if _are_equal(a, b):
        return ""
    inside = _difference_inside(a, b, name, compare, deepest - 1) if type(a) is type(b) and deepest else None
    return f"{name}: {value_text(a, 40)} → {value_text(b, 40)}" if inside is None else inside


# Differences between two leaves in facts, which are known without reading values

REVERSED = "the same axes in reverse order: a transpose?"
_WITHOUT_A_TYPE = ("shape only", "stored", "tracer", "deleted", "placeholder")  # may be an array of any type


def transposing(
    shape: tuple[int, ...], other: tuple[int, ...], among: Collection[tuple[int, ...]] = ()
) -> tuple[int, ...] | None:
    """The order of axes, `among` some, that transposes one shape to another; None if the shapes do not tell.

    Arrays of four and more axes are kernels of convolutions: the spatial axes are last in PyTorch and first in JAX
    libraries, with the two others in reverse order. Other arrays have all axes in reverse order.
    """
    n = len(shape)
    convolutions = ((*range(2, n), 1, 0), (n - 1, n - 2, *range(n - 2)))
    orders = among or (convolutions if n > 3 else [tuple(range(n))[::-1]])
    fitting = [order for order in orders if tuple(shape[i] for i in order) == other]
    return fitting[0] if len(fitting) == 1 else None


def transpose_code(array: str, order: tuple[int, ...], numpy: str = "jnp") -> str:
    is_reversed = order == tuple(range(len(order)))[::-1]
    return f"{numpy}.transpose({array}{'' if is_reversed else f', {order}'})"


def _moved_axis(shape: tuple[int, ...], other: tuple[int, ...]) -> str:
    """A hint with the code that moves the one axis that has another position; "" if the shapes do not tell which."""
    n = len(shape)
    if n != len(other) or n < 3 or sorted(shape) != sorted(other):
        return ""
    all_moves = ((i, k) for i, k in product(range(n), repeat=2) if abs(i - k) != 1 or i < k)  # of two, move the first
    rests = ((i, k, shape[:i] + shape[i + 1 :]) for i, k in all_moves)
    moves = [(i, k) for i, k, rest in rests if (*rest[:k], shape[i], *rest[k:]) == other]
    return f"one axis has moved: jnp.moveaxis(x, {moves[0][0]}, {moves[0][1]})?" if len(moves) == 1 else ""


class LeafCodes:
    """A code for all facts that `compare_facts` finds equal."""

    def __init__(self) -> None:
        self.facts: list[Facts] = []  # an example for each code
        self._codes: dict[tuple[Any, ...], int] = {}

    def of(self, facts: Iterable[Facts]) -> list[int]:
        codes = []
        for f in facts:
            of_array = f.shape, f.axes, f.dtype, f.weak, f.sharding
            key = f.kind, f.type, f.elements, f.bytes, *of_array, _of_box(f)
            codes.append(self._codes.setdefault(key, len(self.facts)))
            self.facts += [f] * (codes[-1] == len(self.facts))
        return codes


def compare_facts(left: Facts, right: Facts, are_equivalent: Callable[[], bool]) -> list[Finding]:
    """The differences in what is known without values. `are_equivalent` is called if the texts of shardings differ."""
    found: list[Finding] = []
    n_in_files = (left.kind, right.kind).count("stored")  # an array is restored wherever its target says
    if left.type != right.type and not {left.kind, right.kind} & {*_WITHOUT_A_TYPE}:
        found.append(("python type", left.type, right.type, ""))
    if None not in (left.shape, right.shape):
        if left.shape != right.shape:
            is_reversed = left.shape == right.shape[::-1]  # type: ignore[index]
            hint = REVERSED if is_reversed else _moved_axis(left.shape, right.shape)  # type: ignore[arg-type]
            found.append(("shape", *(shape_text(facts.shape, facts.axes) for facts in (left, right)), hint))
        if left.dtype != right.dtype:
            found.append(("dtype", left.dtype, right.dtype, ""))
        if left.weak != right.weak:
            texts = ["weakly typed" if facts.weak else "not weakly typed" for facts in (left, right)]
            found.append(("weak type", *texts, "jit compiles again for the other"))
    boxes = _of_box(left), _of_box(right)
    if left.type == right.type and boxes[0] != boxes[1] and None not in boxes:
        found.append(("static", *(text or "none" for text in boxes), ""))
    if (left.kind == "deleted") != (right.kind == "deleted"):
        texts = ["deleted or donated" if facts.kind == "deleted" else "alive" for facts in (left, right)]
        found.append(("deleted", *texts, ""))
    a, b = left.sharding, right.sharding
    if a is not None and b is not None:
        if a != b and n_in_files != 1:
            places = [(x.device_ids or x.devices, x.platform, x.memory) for x in (a, b)]
            if places[0] != places[1] or (a.text != b.text and not are_equivalent()):
                found.append(("sharding", sharding_text(left), sharding_text(right), ""))
            elif a.committed is not b.committed and None not in (a.committed, b.committed):
                texts = ["committed" if sharding.committed else "not committed" for sharding in (a, b)]
                found.append(("sharding", *texts, "jit compiles again for the other"))
    elif (known := a or b) is not None and not n_in_files:  # a checkpoint is restored as its target says
        kinds = (left.kind, right.kind) if b is None else (right.kind, left.kind)
        if kinds[1] == "shape only" and (kinds[0] == "shape only" or known.n_devices > 1):
            texts = [sharding_text(facts) or "none" for facts in (left, right)]
            found.append(("sharding", *texts, "a checkpoint is restored with the sharding of the target"))
    return found


def _of_box(facts: Facts) -> str | None:
    """What is shown of the box around an array in its row: a unit, names of axes, metadata; None without a box."""
    if not facts.module or facts.kind not in ("array", "numpy", "scalar", "shape only"):
        return None
    axes = f"axes ({', '.join(name or '·' for name in facts.axes)})" if facts.axes else ""
    text = "" if facts.kind == "scalar" else facts.text
    return ", ".join(filter(None, (axes, text, *("=".join(pair) for pair in facts.static))))


def shardings_are_equivalent(left: Any, right: Any) -> bool:
    """Whether two shardings place their arrays identically, whatever their types."""
    return guarded(lambda: bool(left.sharding.is_equivalent_to(right.sharding, len(left.shape))), lambda _: False)


# The magnitudes of both sides of leaves with different values, as two histograms on one scale

MOST = 64  # leaves
MOST_ELEMENTS = 4_000_000  # of all of them: 4 ns each

Bars = tuple[int, list[int], list[int]]  # the power of two of the first bin, and the heights, 0 to 255, of each side


def magnitudes(pairs: Iterable[tuple[int, Any, Any]]) -> dict[int, Bars]:
    """Histograms of the first pairs of arrays in host memory, by row; without pairs that hold no numbers."""
    arrays, rows, n_left = [], [], MOST_ELEMENTS
    for row, *pair in pairs:
        if len(rows) == MOST:
            break
        are_on_host = all(isinstance(x, np.ndarray) or (hasattr(x, "sharding") and lies_on_host(x)) for x in pair)
        size = sum(math.prod(array.shape) for array in pair)
        if are_on_host and size <= n_left:
            arrays += pair
            rows.append(row)
            n_left -= size
    if not rows:
        return {}
    table, nodes = scan(arrays)
    columns, _ = value_statistics(table, nodes)
    counts = np.nan_to_num(next(column.values for column in columns if column.name == "histogram")[1:])
    bars: dict[int, Bars] = {}
    for row, both in zip(rows, counts.reshape(len(rows), 2, -1), strict=True):
        if len(used := np.flatnonzero(both.any(axis=0))):
            first, end = int(used[0]), int(used[-1]) + 1
            bars[row] = first + FIRST_EXPONENT, *np.ceil(255 * both[:, first:end] / both.max()).astype(int).tolist()
    return bars


UNKNOWN = ("shape only", "tracer", "deleted", "ref", "placeholder", "float0", "tensor")  # kinds without values to read
RAISED = "comparing them raised "  # the beginning of a reason
_OF_CONTAINERS = ("type", "none", "leaf", "python type")
_MOST_CONTAINERS = 3  # kinds of containers that a difference names
_FEW = 1_000  # differences that are written immediately; unwritten ones keep both tables alive


class Found(NamedTuple):
    """The differences between two trees. Mappings are by aligned row."""

    aligned: Aligned
    differences: Sequence[Difference]  # in row order
    kinds: list[str]  # of each difference
    rows: list[int]  # the aligned row of each difference
    gaps: Gaps  # the differences in values
    not_compared: dict[int, str]  # why the values of a leaf were not compared
    bars: dict[int, Bars]  # the magnitudes of both sides if values differ; see `magnitudes`
    layers: Mapping[int, Sequence[int]] = {}  # that differ in an array of all layers
    n_trees: int = 1  # that were compared with the first
    tree: int = 1  # the position of the other tree among the arguments
    mapped: Sequence[Gap] = ()  # how arrays differ from those with other names in the other tree
    matches: Sequence[Match] = ()  # the arrays of `mapped`


def find_differences(
    left: Side, right: Side, *, bars: bool = False, tree: int = 1, values: bool = True, **tolerance: float
) -> Found:
    """Compare two walked trees; see `treeviz.diff`. The `tolerance` is `rtol` and `atol`."""
    return _Differ(left, right, values, tree, tolerance).run(bars)


class _Differ:
    def __init__(self, left: Side, right: Side, values: bool, tree: int, tolerance: dict[str, float]) -> None:
        self._left, self._right, self._tree = left, right, tree
        self._values, self._tolerance = values, tolerance
        self._found: list[tuple[int, Finding]] = []
        self._gaps: dict[int, ValueDifference] = {}
        self._parts: list[Part] = []  # the gaps of small leaves
        self._not_compared: dict[int, str] = {}
        self._met: dict[tuple[int, int], ValueDifference | str | None] = {}  # by the ids of two leaves
        self._leaf_codes, self._known = LeafCodes(), dict[tuple[int, int], list[Finding]]()
        codes = [np.array(self._leaf_codes.of(table.facts)) for table in (left.table, right.table)]
        self._codes = codes[0][left.table.fact_codes], codes[1][right.table.fact_codes]

    def run(self, bars: bool) -> Found:
        with gc_paused():
            aligned = align(self._left, self._right)
            rows = self._to_compare(aligned)
        a, b = self._left.table, self._right.table
        apart = (aligned.left == NONE) | (aligned.right == NONE)  # the children of these rows are not reported
        is_alone = apart.copy()
        for at, left_row, right_row in np.column_stack([rows, aligned.left[rows], aligned.right[rows]]).tolist():
            if a.is_leaf[left_row] and b.is_leaf[right_row]:
                self._compare_leaves(at, left_row, right_row)
            else:
                self._compare_nodes(at, left_row, right_row)
                apart[at] = not is_comparable(self._left, self._right, left_row, right_row)
        converted = self._name_containers_once(aligned, apart)
        is_leaf = [table.is_leaf[rows] & (rows != NONE) for table, rows in ((a, aligned.left), (b, aligned.right))]
        n_before = np.append(0, np.cumsum(is_leaf[0] | is_leaf[1]))
        is_empty = n_before[aligned.end] == n_before[:-1]  # a checkpoint leaves out containers without leaves
        self._alone = np.flatnonzero(is_alone & ~apart[aligned.parent] & ~(is_empty & converted))
        gaps, unknown = Gaps(self._gaps, self._parts), dict(sorted(self._not_compared.items()))
        drawn = magnitudes(self._pairs(aligned, np.sort(gaps.numbers().rows).tolist())) if bars else {}
        return Found(aligned, *self._written(aligned, gaps), gaps, unknown, drawn, tree=self._tree)

    def _name_containers_once(self, aligned: Aligned, apart: np.ndarray) -> np.ndarray:
        """Name the containers inside one of another kind in its difference. Returns bool[n]: the rows in such ones."""
        is_inside = np.zeros(len(aligned.left), bool)
        kept, inside, top, end = list[tuple[int, Finding]](), dict[int, Counter[str]](), 0, 0
        for at, finding in self._found:
            kind, sides = finding[0], ((self._left, aligned.left[at]), (self._right, aligned.right[at]))
            is_empty = aligned.end[at] == at + 1 and not any(side.table.is_leaf[row] for side, row in sides)
            is_container = kind in _OF_CONTAINERS and (is_empty or not apart[at])
            if is_container and at < end:
                texts = (text.partition(" · ") for text in finding[1:3])
                inside[top][" → ".join("leaf" if kind == "leaf" and not n else text for text, n, _ in texts)] += 1
                continue
            if is_container and kind == "type":
                top, end = len(kept), int(aligned.end[at])
                inside[top] = Counter()
                is_inside[at:end] = True
            kept.append((at, finding))
        for top, counts in inside.items():
            if counts:
                texts = [f"{n:,} {text}" for text, n in counts.most_common(_MOST_CONTAINERS)]
                texts += ["others"] * (len(counts) > len(texts))
                *words, hint = kept[top][1]
                kept[top] = kept[top][0], (*words, f"{hint}{'; ' * bool(hint)}also inside: {', '.join(texts)}")
        self._found = kept
        return is_inside

    @gc_paused()
    def _written(self, aligned: Aligned, gaps: Gaps) -> tuple[Sequence[Difference], list[str], list[int]]:
        """The differences in row order, with their kinds and rows."""
        numbers = gaps.numbers()
        both = np.column_stack([numbers.n_nan > 0, numbers.n_outside > 0])
        gap_index, is_value = np.nonzero(both)
        own = np.array([at for at, _ in self._found], np.int64)
        rows = np.concatenate([own, self._alone, numbers.rows[gap_index]])
        kinds = [finding[0] for _, finding in self._found]
        kinds += ["missing" if right == NONE else "extra" for right in aligned.right[self._alone].tolist()]
        kinds += [("NaN", "value")[i] for i in is_value.tolist()]
        order, found = np.argsort(rows, kind="stable").tolist(), self._found
        left, right = self._left.table, self._right.table
        left_keystr, right_keystr = left.keystrs(), right.keystrs()

        def write(i: int) -> tuple[str, str, str, str]:
            """path, left, right and hint. The path is in the first tree, or in the other one for what only that has."""
            at, kind = int(rows[i]), kinds[i]
            left_row, right_row = int(aligned.left[at]), int(aligned.right[at])
            path = right_keystr(right_row) if left_row == NONE else left_keystr(left_row)
            if kind == "missing":
                return path, subtree_text(left, left_row), "", ""
            if kind == "extra":
                return path, "", subtree_text(right, right_row), ""
            if i < len(found):
                return path, *found[i][1][1:]  # type: ignore[return-value]
            return path, *next(texts[1:] for texts in gap_texts(gaps[at]) if texts[0] == kind)  # type: ignore[return-value]

        made = Unmade([*map(kinds.__getitem__, order)], self._tree, write, order)
        differences = made if len(rows) > _FEW else [difference.written() for difference in made]
        return differences, made.kinds, rows[order].tolist()

    def _pairs(self, aligned: Aligned, rows: Sequence[int]) -> Iterator[tuple[int, Any, Any]]:
        for at in rows:
            left, right = self._left.nodes[aligned.left[at]], self._right.nodes[aligned.right[at]]
            yield at, _as_array(left), _as_array(right)

    def _to_compare(self, aligned: Aligned) -> np.ndarray:
        """The pairs that may differ beyond the values of small leaves, which are compared here."""
        a, b = self._left.table, self._right.table
        n_children = [np.bincount(np.maximum(table.parent, 0), minlength=len(table)) for table in (a, b)]
        self._is_read = np.zeros(len(aligned.left), bool)  # leaves whose values were compared
        self._boxes = dict[int, int]()  # the tree in which an aligned leaf is the only one of a node
        rows = np.flatnonzero((aligned.left != NONE) & (aligned.right != NONE))
        left_rows, right_rows = aligned.left[rows], aligned.right[rows]
        are_leaves = a.is_leaf[left_rows] & b.is_leaf[right_rows]
        is_done = (
            same_facts(a, b, left_rows, right_rows)
            & is_builtin(a)[left_rows]
            & (n_children[0][left_rows] == n_children[1][right_rows])
        )
        is_done[are_leaves] = self._compare_small(rows[are_leaves], left_rows[are_leaves], right_rows[are_leaves])
        for side, own, own_rows in ((0, aligned.left, left_rows), (1, aligned.right, right_rows)):
            is_boxed = (a, b)[side].parent[own_rows] != np.where(rows > 0, own[aligned.parent[rows]], NONE)
            self._boxes |= dict.fromkeys(rows[is_boxed].tolist(), side)
            is_done &= ~is_boxed
        return rows[~is_done]

    def _compare_small(self, rows: np.ndarray, left_rows: np.ndarray, right_rows: np.ndarray) -> np.ndarray:
        """Compare the values of small leaves. Returns bool[n]: whether a leaf needs no further comparison."""
        left = [*map(self._left.nodes.__getitem__, left_rows.tolist())]
        right = [*map(self._right.nodes.__getitem__, right_rows.tolist())]
        facts, codes = self._leaf_codes.facts, (self._codes[0][left_rows], self._codes[1][right_rows])
        # One array may be in two boxes.
        are_same = np.fromiter(map(is_, left, right), bool, len(rows)) & (codes[0] == codes[1])
        distinct, first, pair_of_row = np.unique(
            codes[0] * len(facts) + codes[1], return_index=True, return_inverse=True
        )
        are_quiet, reads = np.zeros(len(distinct), bool), dict[tuple[Reading, Reading] | None, list[int]]()
        for i, (pair, at) in enumerate(zip(distinct.tolist(), first.tolist(), strict=True)):
            key = divmod(pair, len(facts))
            a, b = facts[key[0]], facts[key[1]]
            are_alike = partial(shardings_are_equivalent, left[at], right[at])
            self._known[key] = [] if key[0] == key[1] else compare_facts(a, b, are_alike)
            are_quiet[i] = not self._known[key]
            # Leaves of one shape are read in a batch, unless they must be read one by one.
            is_batch = (
                self._values and a.shape == b.shape and (a.dtype == b.dtype or not {a.dtype, b.dtype} <= FLOATS.keys())
            )
            readings: Any = (reading_of(a), reading_of(b)) if is_batch else (None,)
            reads.setdefault(None if None in readings else readings, []).append(i)
        is_done = are_same | are_quiet[pair_of_row]
        for reading, pairs in reads.items():
            at = np.flatnonzero(np.isin(pair_of_row, pairs) & ~are_same)
            if reading is None or not len(at):
                is_done[at] &= not self._values
                continue
            shapes = [facts[distinct[i] // len(facts)].shape or () for i in pairs]
            one, another = ([*map(leaves.__getitem__, at.tolist())] for leaves in (left, right))
            which = np.searchsorted(pairs, pair_of_row[at])
            parts, unread = compare_small(one, another, shapes, which, reading, **self._tolerance)
            self._parts += [part._replace(rows=rows[at[part.rows]]) for part in parts]
            self._is_read[rows[at]] = True
            self._is_read[rows[at[unread]]] = is_done[at[unread]] = False
        return is_done

    def _add(self, at: int, finding: Finding) -> None:
        self._found.append((at, finding))

    def _facts(self, left_row: int, right_row: int) -> tuple[Facts, Facts]:
        left, right = self._left.table, self._right.table
        return left.facts[left.fact_codes[left_row]], right.facts[right.fact_codes[right_row]]

    def _compare_nodes(self, at: int, left_row: int, right_row: int) -> None:
        left, right = self._left.nodes[left_row], self._right.nodes[right_row]
        a, b = self._left.table, self._right.table
        if left is right:
            return
        facts = self._facts(left_row, right_row)
        for side, own in zip(("left", "right"), facts, strict=True):
            if own.kind in ("error", "cycle", "more", "repeat"):
                self._not_compared[at] = f"the {side} one is not walked: {own.kind}"
                return
        cls, other_cls = self._left.cls(left_row), self._right.cls(right_row)
        if cls is not other_cls:
            texts = subtree_text(a, left_row), subtree_text(b, right_row)
            is_leaf = bool(a.is_leaf[left_row] or b.is_leaf[right_row])
            self._add(at, compare_kinds(cls, other_cls, texts, is_leaf))
            return
        if all(own.static for own in facts) and facts[0].kind in ("dict", "list"):  # what files say of themselves
            for name in dict.fromkeys(name for own in facts for name, _ in own.static):
                one, other = (", ".join(text for known, text in own.static if known == name) for own in facts)
                # Checkpoints of other formats have no number of a step.
                if one != other and name != "saved" and (name != "step" or (one and other)):
                    self._add(at, ("metadata", f"{name} = {one or 'none'}", other or "none", ""))

        def compare() -> list[Finding]:
            one, other = self._left.opened(left_row), self._right.opened(right_row)
            if is_any(cls, MAPPINGS):
                return compare_mappings(one, other, "")
            return [] if one.aux is other.aux else compare_static(left, one.aux, right, other.aux)

        n_children = len(a.children(left_row)), len(b.children(right_row))
        found = [] if is_any(cls, MAPPINGS) else compare_lengths(*n_children)
        if not is_any(cls, (dict, list, tuple, type(None))):
            found += guarded(compare, lambda error: [("error", f"flattening raised {error_text(error)}", "", "")])
        self._found += [(at, finding) for finding in found]

    def _compare_leaves(self, at: int, left_row: int, right_row: int) -> None:
        left, right = self._left.nodes[left_row], self._right.nodes[right_row]
        if at in self._boxes:
            shown = [left_row, right_row]
            shown[self._boxes[at]] -= 1  # the node
            self._add(at, ("leaf", *map(subtree_text, (self._left.table, self._right.table), shown), ""))
        codes = int(self._codes[0][left_row]), int(self._codes[1][right_row])
        if left is right and codes[0] == codes[1]:
            return
        facts = self._facts(left_row, right_row)
        for finding in self._known[codes]:
            if finding[-1] == REVERSED and self._values and is_transpose(left, right):
                finding = (*finding[:-1], "the transpose, with the same values: jnp.transpose(x)")
            self._add(at, finding)
        if not self._values or (facts[0].shape != facts[1].shape and None not in (facts[0].shape, facts[1].shape)):
            return
        a, b = facts
        if self._is_read[at] or a.kind == b.kind == "placeholder":  # of two treedefs, which have no values
            return
        for facts in (a, b):
            if facts.kind in UNKNOWN:
                self._not_compared[at] = facts.kind
                return
        if a.kind == b.kind == "variable":
            left, right = (leaf if (array := array_inside(leaf)) is None else array for leaf in (left, right))
        is_key = a.dtype.startswith("key<") and a.dtype == b.dtype
        if is_key or (_is_array(left) and _is_array(right)):
            key = id(left), id(right)
            if key not in self._met:
                self._met[key] = self._gap(left, right)
            gap = self._met[key]
            if isinstance(gap, ValueDifference) and left.dtype != right.dtype and are_floats(left, right):
                rounded_gap = self._gap(left, right, rounded)
                if not isinstance(rounded_gap, str):
                    gap = rounded_gap
                    text = f"{'the same' if gap is None else 'compared'} after rounding to {narrower(left, right)}"
                    i = next(i for i in reversed(range(len(self._found))) if self._found[i][1][0] == "dtype")
                    self._found[i] = at, (*self._found[i][1][:-1], text)
        elif "scalar" in (a.kind, b.kind) and _is_number(left) and _is_number(right):
            left, right = _as_array(left), _as_array(right)
            gap = self._gap(left, right)  # not by id, which the next such array may have
        else:
            if finding := compare_objects(left, right, a.kind == b.kind == "function", self._gap):
                self._add(at, finding)
            return
        if isinstance(gap, str):
            self._not_compared[at] = gap
        elif gap is not None and is_key:
            self._add(at, ("value", "a PRNG key", "another PRNG key" if left.ndim == 0 else "other PRNG keys", ""))
        elif gap is not None:
            self._gaps[at] = gap
            gap.is_transpose = len(gap.at) > 1 and left.shape == left.shape[::-1] and is_transpose(left, right)

    def _gap(self, left: Any, right: Any, before: Callable | None = None) -> ValueDifference | str | None:
        try:
            left, right = before(left, right) if before else (left, right)
            gap = compare_arrays(left, right, **self._tolerance)
        except (CannotCompare, Refused) as why:
            return str(why)
        except Exception as error:
            return f"{RAISED}{error_text(error)}"
        return gap if gap.n_outside or gap.n_nan else None


def _is_array(leaf: Any) -> bool:
    return guarded(lambda: isinstance(leaf, jax.Array | np.ndarray | np.generic | Stored), lambda _: False)


def _is_number(leaf: Any) -> bool:
    return _is_array(leaf) or has_base(type(leaf), bool, int, float, complex)


def _as_array(number: Any) -> Any:
    return number if _is_array(number) else np.asarray(number)


def subtree_text(table: TreeTable, row: int) -> str:
    """ "float32[3,4]", "None", "dict · 9 leaves": a description of a subtree."""
    facts = table.facts[table.fact_codes[row]]
    if facts.shape is not None and facts.dtype:
        return f"{facts.dtype}[{','.join(map(str, facts.shape))}]"
    if facts.kind == "none":
        return "None"
    if facts.is_leaf:
        return f"{facts.type} {facts.text}".strip()
    n = int(np.count_nonzero(table.is_leaf[row : int(table.end[row])]))
    return f"{facts.type} · {n:,} {'leaf' if n == 1 else 'leaves'}"


# The layers that differ, in an array that holds all layers of a model

_MOST_NAMED = 6


def with_layers(left: Side, right: Side, found: Found, stacked: Stacked, **tolerance: float) -> Found:
    """The same differences; those of values in a stack name the layers: "layers 3, 5 of 12". May raise `NoStack`."""
    axes, differences, layers = stacks_in(left.table, stacked), Differences(), {}
    for at, difference in zip(found.rows, found.differences, strict=True):
        left_row, right_row = int(found.aligned.left[at]), int(found.aligned.right[at])
        if difference.kind in ("value", "NaN") and at in found.gaps and left_row in axes:
            if at not in layers:
                layers[at] = _layers(left.nodes[left_row], right.nodes[right_row], axes[left_row], tolerance)
            if layers[at]:
                place, *rest = difference.hint.split("; ")
                text = _text(layers[at], left.nodes[left_row].shape[axes[left_row]])
                difference = replace(difference, hint="; ".join([f"{place}, {text}", *rest]))
        differences.append(difference)
    return found._replace(differences=differences, layers=layers)


def _layers(left: Any, right: Any, axis: int, tolerance: dict[str, float]) -> list[int]:
    """The layers that differ; empty if they cannot be compared one by one."""
    try:
        if Stored in (type(left), type(right)):
            gaps = compare_stored_layers(left, right, axis, **tolerance)
        else:
            layers = [_layers_of(array, axis) for array in (left, right)]
            gaps = [compare_arrays(*pair, **tolerance) for pair in zip(*layers, strict=True)]
    except CannotCompare:
        return []
    return [i for i, gap in enumerate(gaps) if gap.n_outside or gap.n_nan]


def _text(differ: list[int], n: int) -> str:
    if len(differ) == n:
        return f"all {n} layers"
    more = f" and {len(differ) - _MOST_NAMED} more" if len(differ) > _MOST_NAMED else ""
    return f"layer{'s' * (len(differ) > 1)} {', '.join(map(str, differ[:_MOST_NAMED]))}{more} of {n}"


def _layers_of(array: Any, axis: int) -> Iterator[Any]:
    """The layers of an array; in host memory views, which need no copy."""
    if isinstance(array, jax.Array) and len(array.sharding.device_set) == 1 and lies_on_host(array):
        array = host_view(array)
    for i in range(array.shape[axis]):
        with undisturbed() if isinstance(array, jax.Array) else nullcontext():  # the index goes to the devices
            layer = array[(*(slice(None),) * axis, i)]
        yield layer
