"""The statistics of gradients and their packed format; names of measured trees, their leaves and layers.

The records of the statistics define the memory of each statistic in a history, how the members of an ensemble are
joined, and the columns with their roll-ups. To add a statistic, add its record to `STATISTICS` and compute its word in
`treeviz.steps.reduce`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import numpy as np

from treeviz.tree.facts import Facts, Rollup
from treeviz.tree.layers import (
    MOST_LAYERS,
    MOST_MEASURED,
    MOST_SCANNED,
    TOO_MANY,
    Stacked,
    index_text,
    stacked_axes,
    stacks_in,
)
from treeviz.tree.paths import table_of_paths
from treeviz.tree.series import N_BINS


@dataclass(frozen=True)
class Statistic:
    """A statistic of a leaf.

    Attributes:
      measured_in: The smallest of `LIGHT`, `FULL` and `HISTOGRAM` that contains it; "" if none does.
      scaled_by: The power of two that multiplies the packed float32: "range" combines those of the range of squares and
        of the leaf, "leaf" is that of the leaf; "" for counts and numbers without a unit.
      joined_by: How the values of the members of a `vmap` are joined: "norm" is the root of the sum of squares, "least"
        the least value of members with any non-zero leaf, "fewest" the least count, "common" what is in all lists.
    """

    name: str  # the key in `History` and in the arguments of `measure`
    measured_in: Literal["light", "full", "histogram", ""]
    share: int  # its share of the memory of a source's history, relative to the other statistics
    is_count: bool = False  # whether it is an int64 count, which is summed over time; otherwise it is float64
    scaled_by: Literal["range", "leaf", ""] = ""
    joined_by: Literal["norm", "max", "mean", "least", "fewest", "common", "sum"] = "sum"
    title: str = ""  # the title of its column; "" without a column
    rollup: Rollup = "sum"  # how its column combines the values of the leaves of a subtree
    help: str = ""  # the help text of its column
    counts_nonfinite: bool = False  # whether it counts NaN or infinities
    n_bins: int = 0  # the number of values per leaf; 0 for a single value

    @property
    def dtype(self) -> type:
        """int64 for counts, else float64."""
        return np.int64 if self.is_count else np.float64

    def shape(self, n_leaves: int) -> tuple[int, ...]:
        """(leaves,), or (leaves, bins)."""
        return (n_leaves, self.n_bins) if self.n_bins else (n_leaves,)

    def join_members(self, values: np.ndarray, axis: int) -> np.ndarray:
        """Join the values of all members of an ensemble into one; a count of -1 marks a leaf without numbers."""
        if self.joined_by == "norm":
            return np.sqrt(np.sum(np.square(values), axis=axis))
        if self.joined_by == "max":
            return np.max(values, axis=axis)
        if self.joined_by == "mean":
            return np.mean(values, axis=axis)
        if self.joined_by == "least":
            least = np.where((values > 0).any(axis=-1, keepdims=True), values, np.inf).min(axis=axis)
            return np.where(np.isinf(least), 0, least)
        if self.joined_by == "fewest":
            return np.min(values, axis=axis)
        if self.joined_by == "common":
            lists = np.moveaxis(values, axis, 0)
            is_common = (lists[0][..., None] == lists[..., None, :]).any(axis=-1).all(axis=0) & (lists[0] > 0)
            beyond = np.iinfo(lists.dtype).max
            found = np.sort(np.where(is_common, lists[0], beyond), axis=-1)
            return np.where(found == beyond, np.minimum(lists.max(axis=0), 0), found)
        return np.where((values < 0).all(axis=axis), -1, np.maximum(values, 0).sum(axis=axis))


def _count(name: str, measured_in, share: int, title: str, help: str, **options) -> Statistic:
    return Statistic(name, measured_in, share, True, title=title, help=f"how many numbers are {help}", **options)


# In the order of their words in a packed row, and of their columns.
STATISTICS = {
    statistic.name: statistic
    for statistic in (
        Statistic(
            "norm", "light", 24, scaled_by="range", joined_by="norm",
            title="norm", rollup="norm", help="the L2 norm; nothing where a number is not finite",
        ),
        Statistic(
            "max_abs", "light", 14, scaled_by="leaf", joined_by="max",
            title="max |x|", rollup="max", help="the largest magnitude; nothing where a number is not finite",
        ),
        _count("nonfinite", "light", 14, "NaN/Inf", "NaN or infinite", counts_nonfinite=True),
        Statistic("mean", "full", 6, scaled_by="range", joined_by="mean"),
        _count("zeros", "full", 6, "zeros", "zero"),
        _count("nan", "full", 4, "NaN", "NaN", counts_nonfinite=True),
        _count("posinf", "full", 4, "+Inf", "+Inf", counts_nonfinite=True),
        _count("neginf", "full", 4, "-Inf", "-Inf", counts_nonfinite=True),
        Statistic("histogram", "histogram", 18, is_count=True, n_bins=N_BINS),
        Statistic("least", "", 6, joined_by="least"),  # least norm among the members of an ensemble
        Statistic("cosine", "", 6, joined_by="mean"),  # with the gradients of the previous step, if given
        # Of activations
        Statistic("rms", "", 24, joined_by="norm", title="rms", rollup="max", help="the root mean square"),
        Statistic(
            "zero_share", "", 6, joined_by="mean", title="zeros", rollup="max", help="which part of the numbers is zero"
        ),
        Statistic(
            "dead", "", 6, True, joined_by="fewest", title="dead", help="how many features are zero in all examples"
        ),
        Statistic(
            "constant", "", 6, True, joined_by="fewest", title="constant",
            help="how many features are the same in all examples",
        ),
        Statistic("rows_read", "", 6, True, joined_by="max", title="rows read", help="how many rows are read"),
        Statistic("dead_at", "", 6, True, joined_by="common", n_bins=8),  # the first dead features, plus 1; then zeros
        Statistic("unread_at", "", 6, True, joined_by="common", n_bins=8),  # the first rows not read, likewise
    )
}  # fmt: skip
FINITE = "finite_"  # begins the name of a statistic of the finite values alone, in a leaf that has others, too
FINITE_PARTS = (*[statistic.name for statistic in STATISTICS.values() if statistic.scaled_by], "rms")
TOTAL_SHARES = 106  # of the statistics of gradients, which have the most

LIGHT = tuple(s.name for s in STATISTICS.values() if s.measured_in == "light")
"""Statistics that are cheap enough for every step: "norm", "max_abs" and "nonfinite", 16 bytes per leaf."""
FULL = (*LIGHT, *[s.name for s in STATISTICS.values() if s.measured_in == "full"])
"""`LIGHT` with "mean", "zeros", "nan", "posinf" and "neginf": 36 bytes per leaf, and a second pass over the values."""
HISTOGRAM = (*FULL, *[s.name for s in STATISTICS.values() if s.measured_in == "histogram"])
"""`FULL` with "histogram", the count of each power of two: 292 bytes per leaf, and some more passes."""


def check_statistics(statistics: Sequence[str]) -> tuple[str, ...]:
    """Return the statistics as a tuple. Those that skip NaN and infinities come with "nonfinite", the count of these.

    Raises:
      ValueError: `measure` does not know one of them.
    """
    unknown = [name for name in statistics if name not in HISTOGRAM]
    if unknown:
        raise ValueError(f"no statistic {', '.join(map(repr, unknown))}; there are {', '.join(HISTOGRAM)}.")
    is_counted = "nonfinite" in statistics or not set(FINITE_PARTS).intersection(statistics)
    return (*statistics,) if is_counted else (*statistics, "nonfinite")


def rms_of(norm: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Compute the root mean square from the norm: float64[..., leaves]."""
    return norm / np.sqrt(np.maximum(np.asarray(sizes, np.float64), 1))


# A packed row is uint32[n_words]. The first word encodes the power of two that multiplies the floats of the row;
# the others are the bits of float32 or uint32, one per statistic in the requested order.
NO_NUMBER = 0x80000000  # the first word of a leaf without real or complex numbers
NO_COUNT = 0xFFFFFFFF  # a count of activations without features
RANGE_AT, EXPONENT_ZERO = 16, 1 << 14  # bits 16 and 17: the range, bits 0 to 15: the exponent of float64 values

# Squares are summed in three ranges, so that none overflows or underflows float32: J. L. Blue, "A Portable
# Fortran Program to Find the Euclidean Norm of a Vector", ACM TOMS 4 (1978). A power of two changes no digit.
USUAL, HUGE = 1, 2  # tiny is 0
SHIFT = 80  # tiny numbers are squared as x * 2**80, huge ones as x * 2**-80


def n_words(statistics: Sequence[str]) -> int:
    """The length of a packed row."""
    return 1 + sum([STATISTICS[name].n_bins or 1 for name in statistics])


def unpack(packed: np.ndarray, statistics: Sequence[str], sizes: Sequence[int] | None = None) -> dict[str, np.ndarray]:
    """Read packed rows: each statistic of each leaf, with the leading axes of the rows.

        packed = np.asarray(measurement.packed["grads"])
        unpack(packed, measurement.statistics_of("grads"))["norm"]    # float64[leaves]

    Statistics ignore NaN and infinities; those are counted separately. A leaf without numbers has NaN for floats and
    -1 for counts. On the CPU, XLA flushes numbers below 1.2e-38 to zero: if a leaf has no larger ones, its norm is
    replaced by "max_abs", which is exact and a lower bound of the norm.

    Args:
      packed: uint32[..., leaves, words], as in `Measurement.packed`.
      statistics: The statistics in the rows, in order.
      sizes: The sizes of the leaves; adds "rms" to the result.

    Returns:
      "norm", "max_abs", "mean", "cosine", "rms": float64[..., leaves]; "nonfinite", "zeros", "nan", "posinf",
      "neginf": int64[..., leaves]; "histogram": int64[..., leaves, 64], bin i counts 2**(i-40) <= |x| < 2**(i-39).

    Raises:
      ValueError: The length of the rows does not match the statistics.
    """
    packed = np.ascontiguousarray(packed, np.uint32)
    if packed.shape[-1] != n_words(statistics):
        raise ValueError(
            f"unpack: rows of {packed.shape[-1]} words, but {n_words(statistics)} for {tuple(statistics)}."
        )
    first = packed[..., 0]
    is_empty = first == NO_NUMBER
    exponent = (first & 0xFFFF).astype(np.int64) - EXPONENT_ZERO
    exponents = {"leaf": exponent, "range": SHIFT * ((first >> RANGE_AT & 3).astype(np.int64) - USUAL) + exponent}
    numbers: dict[str, np.ndarray] = {}
    offset = 1
    for statistic in (STATISTICS[name] for name in statistics):
        bits = packed[..., offset : offset + statistic.n_bins] if statistic.n_bins else packed[..., offset]
        offset += statistic.n_bins or 1
        if statistic.is_count:
            is_missing = is_empty[..., None] if statistic.n_bins else is_empty
            numbers[statistic.name] = np.where(is_missing | (bits == NO_COUNT), -1, bits.astype(np.int64))
            continue
        value = np.ascontiguousarray(bits).view(np.float32).astype(np.float64)
        if statistic.name == "norm":
            value = np.sqrt(value)  # its word is the sum of squares
        if statistic.scaled_by:
            value = np.ldexp(value, exponents[statistic.scaled_by])
        numbers[statistic.name] = np.where(is_empty, np.nan, value)
    if {"norm", "max_abs"} <= numbers.keys():  # XLA may flush denormal squares to zero
        numbers["norm"] = np.maximum(numbers["norm"], numbers["max_abs"])
    if sizes is not None and "norm" in numbers:
        numbers["rms"] = rms_of(numbers["norm"], sizes)
    return numbers


# Names of measured trees: "updates of generator" belong to the same step as "grads of generator".

FORWARD_ROLES = ("inputs", "outputs")
ROLES = (*FORWARD_ROLES, "cotangents")
"""The trees of what goes into each parameter, of what comes out of it, and of the gradient of the latter."""
_BESIDE = ("params", "updates", "received", *ROLES)  # measured together with gradients
_KINDS = ("grads", *_BESIDE)
RESULT_KINDS = ("loss", "scalar", "parameter", "other")
"""The kinds of a step's results; "scalar" stands for the loss if that is unknown."""


LOSSES = "losses of the step"
"""The source of a measurement with the values of the losses that the step returns, as bits of float32."""


ACTIVATIONS = "activations of the step"
"""What begins the names of the sources of a measurement with rows of activations, which `decode` makes `ROLES` of."""
OF_FEATURES = ("dead", "constant", "rows_read", "dead_at", "unread_at")
LIGHT_OF_ACTIVATIONS = ("squares", "nonzeros", "live")
"""The words of a light row of activations, which `unpack_activations` reads; others have a packed row of statistics."""
_HEAVY_OF_ACTIVATIONS = ("norm", "max_abs", "nonfinite", "zeros", *OF_FEATURES)


def statistics_of_activations(statistics: Sequence[str]) -> tuple[str, ...]:
    """What rows of activations hold in a measurement of these statistics of gradients."""
    return _HEAVY_OF_ACTIVATIONS if "histogram" in statistics else LIGHT_OF_ACTIVATIONS


def unpack_activations(packed: np.ndarray, statistics: Sequence[str], source: MeasuredTree) -> dict[str, np.ndarray]:
    """As `unpack`, of rows of activations, light ones too. Those count a value that is not finite as one number.

    The squares of numbers beyond 1e19 are not finite in float32, and count as such.
    """
    if statistics != LIGHT_OF_ACTIVATIONS:
        return unpack(packed, statistics)
    is_empty = packed[..., 0] == NO_NUMBER
    squares, nonzeros, live = np.moveaxis(np.ascontiguousarray(packed).view(np.float32).astype(np.float64), -1, 0)
    n_features = np.array([int(shape or 0) for shape in source.shapes])
    is_bad, has_features = ~np.isfinite(squares), (n_features > 0) & np.isfinite(nonzeros) & ~is_empty
    return {
        "norm": np.sqrt(np.where(is_empty | is_bad, np.nan, squares)),
        "nonfinite": np.where(is_empty, -1, is_bad).astype(np.int64),
        "zeros": np.where(has_features, np.array(source.sizes) - nonzeros, -1).astype(np.int64),
        "dead": np.where(has_features, n_features - live, -1).astype(np.int64),
    }


def kind_of(name: str) -> str:
    """ "grads", "params", "updates" …, by the first word of a name; "" for a name that the user chose."""
    first = name.split(" ")[0]
    return first if first in _KINDS else ""


def is_beside(name: str) -> bool:
    """Whether a tree accompanies gradients: parameters, updates, or the gradients that the optimizer receives."""
    return kind_of(name) in _BESIDE


def name_of_tap(name: str) -> str:
    """The name of a tapped tree: "tap grads" if the user's name is reserved for gradients, parameters or results."""
    return f"tap {name}" if kind_of(name) or result_kind(name) else name


def name_of_result(kind: str) -> str:
    """The tree name of the results of a kind: "loss result"."""
    return f"{kind} result"


def result_kind(name: str) -> str:
    """The kind of results in a tree, one of `RESULT_KINDS`, or "unchanged"; "" for any other tree."""
    kind, _, rest = name.partition(" ")
    return kind if kind in (*RESULT_KINDS, "unchanged") and rest.split(" ")[0] == "result" else ""


def sibling_name(name: str, kind: str) -> str:
    """Return the name of the tree of another kind in the same step: "params of critic" for "grads of critic".

    Micro-batches ("grads #2") and terms of a loss ("grads (term)") share one tree of parameters and one of updates. For
    a name that the user chose, it is the kind itself: the step is assumed to have one such tree.
    """
    own_kind = kind_of(name)
    return (
        kind + re.sub(r"( \([^()]*\))?( #\d+)?(?= of | since |$)", "", name.removeprefix(own_kind))
        if own_kind
        else kind
    )


def title_of(name: str) -> str:
    """The title of a tree's columns: "grads" for "grads of critic since step 9", since the headline names the rest."""
    name = section_of(name)[0]
    return name.split(" of ")[0].replace("puts", "").replace("cotangents", "cotangent") if kind_of(name) else name


def natural(text: str) -> str:
    """A sort key in which "layer 2" comes before "layer 10": the length of each number stands before it."""
    return re.sub(r"0*([0-9]+)", lambda match: f"\0{len(match[1]):06}{match[1]}", text)


def section_of(name: str) -> tuple[str, str]:
    """Split the name of a tree into tree and section: "grads" and " since step 12", or "grads" and ""."""
    section = re.search(r"( since step \d+( again)*)?$", name)
    assert section is not None
    return name[: section.start()], section.group()


# Stopping a run


class StopTraining(Exception):
    """A finding of a kind in `GradientInspector(raise_on=...)` ended the run. The message is the finding.

    It is the inspector's only exception that reaches the loop of a watched step; all others become warnings.

        inspector = tv.GradientInspector(raise_on={"nonfinite"})
        update = inspector.watch(update)
        try:
            for _ in range(100):
                params = update(params, x, y)
        except tv.StopTraining as stop:
            print(stop)  # which leaf, since which step, and what to try
    """


# The measured leaves of a tree: an array that stacks the layers of a model is measured layer by layer.

Axes = tuple[int | None, ...]  # the layer axis of each leaf; None if it is not a stack
WhyNot = Callable[[int, int], str]  # why the layers along an axis of a leaf cannot be separated; "" if they can


def nothing_against(leaf: int, axis: int) -> str:
    """The `WhyNot` for layers that can all be separated."""
    return ""


class MeasuredTree(NamedTuple):
    """Names, sizes and dtypes of the leaves of a measured tree. Hashable; equal for trees of the same structure.

    Attributes:
      paths: The key path of each leaf in JAX's order, like `jax.tree_util.keystr` but correct for namedtuples.
      shapes: "768,2304", "" for a scalar; empty if shapes are unknown, as in files of older versions.
      stacks: For a layer of an array, the shape of the whole array, with * before the number of layers: "*12,768,768";
        "" for a leaf; empty if all are leaves.
      cut_off: Whether the gradient is zero for all inputs, as the step's program shows; empty if none is.
      unscaled: Whether it is the gradient of a loss with a dynamic scale, by which the step divides it; empty if none
        is.
      frozen: Whether the step returns the parameter as it is for all inputs; empty if it does so with none.
      drifts: Whether devices change the parameter each by values of its own, though it is to be equal on all; empty if
        they do so with none.
      feeds: Of packed rows of activations, what they are; else empty.
    """

    name: str  # "grads", "params", "updates", or a name that the user chose
    paths: tuple[str, ...]
    sizes: tuple[int, ...]  # the number of elements of each leaf
    dtypes: tuple[str, ...]  # "float32", "key<fry>"; "" for a leaf that is not an array
    has_number: tuple[bool, ...]  # whether the leaf is measured: a real or complex array with at least one element
    shapes: tuple[str, ...] = ()
    stacks: tuple[str, ...] = ()
    cut_off: tuple[bool, ...] = ()
    unscaled: tuple[bool, ...] = ()
    frozen: tuple[bool, ...] = ()
    drifts: tuple[bool, ...] = ()
    feeds: tuple[Fed, ...] = ()


class Fed(NamedTuple):
    """Which entries of a tree in the history some packed rows of activations are.

    Attributes:
      tree: One of `ROLES`. Its sizes are the numbers of features, or of the rows of an embedding; 1 without any.
      rows: The numbers of the packed rows.
      entries: Of each row; several if a loop runs over the layers.
      axes: The kinds of the leading axes of the packed rows.
      n_common: The number of loops that are also around the gradients.
      layer: Which of the other loops is over the layers; None: none is.
    """

    tree: MeasuredTree
    rows: tuple[int, ...]
    entries: tuple[tuple[int, ...], ...]
    axes: tuple[str, ...]
    n_common: int
    layer: int | None


class Whole(NamedTuple):
    """A leaf of JAX's tree.

    Attributes:
      first, n: Its first entry in the measured tree, and its number of entries.
    """

    path: str
    shape: tuple[int, ...] | None
    size: int
    first: int
    n: int = 1
    axis: int | None = None  # the layer axis; None if it is not a stack


class Parts:
    """Joins each entry of a tree from the rows of several devices that hold parts of its arrays.

    Args:
      entries: For each entry, its row on a device, and the devices that hold different parts of it.
    """

    def __init__(self, entries: Sequence[tuple[int, Sequence[int]]]) -> None:
        self._n, self._groups = len(entries), []
        for n_devices in {len(devices) for _, devices in entries}:
            group = [i for i, (_, devices) in enumerate(entries) if len(devices) == n_devices]
            rows = np.array([entries[i][0] for i in group])[:, None]
            self._groups.append((group, rows, np.array([entries[i][1] for i in group])))

    def joined(self, join: Callable[..., np.ndarray], values: np.ndarray) -> np.ndarray:
        """Join values[a, b, devices, rows, …] to [a, b, entries, …]."""
        result = np.empty((*values.shape[:2], self._n, *values.shape[4:]), values.dtype)
        for entries, rows, devices in self._groups:
            result[:, :, entries] = join(values[:, :, devices, rows], axis=3)
        return result


def reported_axes(source: MeasuredTree, stacked: Stacked) -> tuple[Axes, list[str]]:
    """Return the layer axis of each leaf that the user's globs match, and the globs that match no leaf."""
    axes: list[int | None] = [None] * len(source.paths)
    if not stacked:
        return tuple(axes), []
    facts = [Facts("array", "", True, shape=shape_of(shape)) for shape in source.shapes]
    table = table_of_paths("", source.paths, facts)
    leaf_at = {row: leaf for leaf, row in enumerate(np.flatnonzero(table.is_leaf).tolist())}
    unused = []
    for glob, axis in stacked_axes(stacked).items():
        try:
            rows = stacks_in(table, {glob: axis})
        except ValueError:
            unused.append(glob)
            continue
        for row in rows:
            axes[leaf_at[row]] = axis
    return tuple(axes), unused


def openable(
    source: MeasuredTree, reported: Axes, scanned: Axes = (), why_not: WhyNot = nothing_against
) -> tuple[Axes, list[str]]:
    """Return the layer axis of each leaf that can be split into layers, and why other stacks cannot.

    Args:
      reported: The axes that the user's globs name; they take precedence.
      scanned: The axes of leaves over which the step scans.

    Returns:
      The axes, empty if no leaf can be split; and notes.
    """
    axes, notes, n_left = [], [], MOST_MEASURED
    scanned_axes = scanned or (None,) * len(reported)
    for leaf, (axis, is_measured, shape) in enumerate(zip(reported, source.has_number, source.shapes, strict=True)):
        most, axis = (MOST_SCANNED, scanned_axes[leaf]) if axis is None else (MOST_LAYERS, axis)
        n = shape_of(shape)[axis] if is_measured and axis is not None and axis < len(shape_of(shape)) else 0
        reason = why_not(leaf, axis) if n and axis is not None else ""
        if n > min(most, n_left):
            limit_note = f"{n:,} are more than {MOST_SCANNED:,}; stacked= with its path measures each"
            reason = reason or (limit_note if n <= min(MOST_LAYERS, n_left) else TOO_MANY.format(n))
        is_open = n and not reason
        n_left -= n if is_open else 0
        axes.append(axis if is_open else None)
        notes += [f"{source.paths[leaf]}: its layers are measured as one array: {reason}."] if reason else []
    return tuple(axes) if any(axis is not None for axis in axes) else (), notes


def with_dtypes(source: MeasuredTree, values: Sequence[Any]) -> MeasuredTree:
    """Return the tree with the dtypes of the values of its measured leaves."""
    dtypes = iter([str(value.dtype) for value in values])
    entries = zip(source.has_number, source.dtypes, strict=True)
    return source._replace(dtypes=tuple([next(dtypes) if is_measured else dtype for is_measured, dtype in entries]))


def in_layers(source: MeasuredTree, axes: Axes) -> MeasuredTree:
    """Return the tree with an entry per layer for each leaf with an axis."""
    if not any(axis is not None for axis in axes):
        return source
    fields = []
    known = [name for name in ("cut_off", "unscaled", "frozen", "drifts") if getattr(source, name)]
    all_flags = [*zip(*[getattr(source, name) for name in known], strict=True)] or [()] * len(axes)
    for path, size, dtype, has_number, shape, flags, axis in zip(*source[1:6], all_flags, axes, strict=True):
        if axis is None:
            fields.append((path, size, dtype, has_number, shape, "", *flags))
            continue
        sizes = shape.split(",")
        whole = ",".join(["*" * (i == axis) + dimension for i, dimension in enumerate(sizes)])
        n = int(sizes.pop(axis))
        layer = size // n, dtype, has_number, ",".join(sizes), whole, *flags
        fields += [(f"{path}{index_text(axis, i)}", *layer) for i in range(n)]
    columns = [*zip(*fields, strict=True)]
    return type(source)(source.name, *columns[:6], **dict(zip(known, columns[6:], strict=True)))


def wholes(source: MeasuredTree) -> Iterator[Whole]:
    """Yield the leaves of a measured tree as in JAX's tree.

    Raises:
      ValueError: The entries of a stack do not belong together.
    """
    entry = 0
    while entry < len(source.paths):
        path, shape = source.paths[entry], shape_of(source.shapes[entry]) if source.shapes else None
        whole, n, axis = source.stacks[entry] if source.stacks else "", 1, None
        if whole:
            axis = [dimension[:1] for dimension in whole.split(",")].index("*")
            shape = shape_of(whole.replace("*", ""))
            n, index = shape[axis], index_text(axis, 0)
            is_whole = 0 < n <= MOST_LAYERS and source.stacks[entry : entry + n] == (whole,) * n
            if not is_whole or not path.endswith(index):
                raise ValueError(f"{path} is no layer of an array of {whole}")
            path = path.removesuffix(index)
        size = source.sizes[entry] if axis is None else math.prod(shape or ())
        yield Whole(path, shape, size, entry, n, axis)
        entry += n


def shape_of(text: str) -> tuple[int, ...]:
    return tuple(map(int, filter(None, text.split(","))))


def layer_by_layer(paths: Sequence[str], source: MeasuredTree) -> tuple[str, ...]:
    """Return the paths of the entries in `source` in the order of use; stacks are used layer by layer.

    Args:
      paths: The paths of the leaves in JAX's tree, in the order of use.
    """
    leaves = {whole.path: whole for whole in wholes(source)}
    used = [leaves[path] for path in paths if path in leaves]
    ordered: list[str] = []
    for n, group in groupby(used, key=attrgetter("n")):
        stacks = list(group)
        ordered += [source.paths[whole.first + i] for i in range(n) for whole in stacks]
    return tuple(ordered)
