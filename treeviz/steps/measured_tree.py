"""What is measured of a tree: its leaves, and in place of an array that holds all layers of a model, each layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from treeviz.tree.facts import Facts
from treeviz.tree.from_paths import table_of_paths
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

Axes = tuple[int | None, ...]  # of the layers of each leaf; None: it is no stack
WhyNot = Callable[[int, int], str]  # why the layers along an axis of a leaf cannot be told apart; "" if they can


def nothing_against(leaf: int, axis: int) -> str:
    """The `WhyNot` by which all layers can be told apart."""
    return ""


class MeasuredTree(NamedTuple):
    """Names, sizes and dtypes of the leaves of a measured tree. Hashable; equal for trees of the same structure.

    Attributes:
      name: "grads", "params", "updates", or a name that the user chose.
      paths: The key path of each leaf in JAX's order, as `jax.tree_util.keystr` writes it (but right for namedtuples).
      sizes: The number of elements of each leaf.
      dtypes: "float32", "key<fry>"; "" for a leaf that is not an array.
      has_number: Whether the leaf is measured: a real or complex array with at least one element.
      shapes: "768,2304", "" for a scalar; an empty tuple where shapes are not known, as in files of older versions.
      stacks: For an entry that is a layer of an array, the shape of the whole array: "*12,768,768", where * is before
        the number of layers; "" for a leaf; an empty tuple if all are leaves.
      cut_off: Whether the step itself shows that the gradient is zero, whatever the numbers are; an empty tuple if it
        shows it of none.
      unscaled: Whether it is the gradient of a scaled loss, which the step divides by a scale that is no constant; an
        empty tuple if none is.
    """

    name: str
    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    dtypes: tuple[str, ...]
    has_number: tuple[bool, ...]
    shapes: tuple[str, ...] = ()
    stacks: tuple[str, ...] = ()
    cut_off: tuple[bool, ...] = ()
    unscaled: tuple[bool, ...] = ()


class Whole(NamedTuple):
    """A leaf as JAX has it.

    Attributes:
      first, n: Its first entry in the measured tree, and how many it has.
      axis: Of the layers; None: it is no stack.
    """

    path: str
    shape: tuple[int, ...] | None
    size: int
    first: int
    n: int = 1
    axis: int | None = None


class Parts:
    """Of which rows each entry of a tree is joined, where several devices have parts of its arrays.

    Args:
      entries: For each entry, its row on a device, and the devices that have different parts of it.
    """

    def __init__(self, entries: Sequence[tuple[int, Sequence[int]]]) -> None:
        self._n, self._groups = len(entries), []
        for n_devices in {len(devices) for _, devices in entries}:
            alike = [i for i, (_, devices) in enumerate(entries) if len(devices) == n_devices]
            rows = np.array([entries[i][0] for i in alike])[:, None]
            self._groups.append((alike, rows, np.array([entries[i][1] for i in alike])))

    def joined(self, join: Callable[..., np.ndarray], values: np.ndarray) -> np.ndarray:
        """[a, b, entries, …] of values[a, b, devices, rows, …]."""
        found = np.empty((*values.shape[:2], self._n, *values.shape[4:]), values.dtype)
        for entries, rows, devices in self._groups:
            found[:, :, entries] = join(values[:, :, devices, rows], axis=3)
        return found


def told_axes(source: MeasuredTree, stacked: Stacked) -> tuple[Axes, list[str]]:
    """The axis of each leaf that the user's globs match, and the globs that match none."""
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
    source: MeasuredTree, told: Axes, scanned: Axes = (), why_not: WhyNot = nothing_against
) -> tuple[Axes, list[str]]:
    """The axis of the layers of each leaf that can be opened, empty if none can; and why others are measured as one.

    Args:
      told: The axes that the user's globs name.
      scanned: Those of leaves over which the step scans; what is told comes first.
    """
    axes, notes, room = [], [], MOST_MEASURED
    seen = scanned or (None,) * len(told)
    for leaf, (axis, has, shape) in enumerate(zip(told, source.has_number, source.shapes, strict=True)):
        most, axis = (MOST_SCANNED, seen[leaf]) if axis is None else (MOST_LAYERS, axis)
        n = shape_of(shape)[axis] if has and axis is not None and axis < len(shape_of(shape)) else 0
        why = why_not(leaf, axis) if n and axis is not None else ""
        if n > min(most, room):
            is_long = f"{n:,} are more than {MOST_SCANNED:,}; stacked= with its path measures each"
            why = why or (is_long if n <= min(MOST_LAYERS, room) else TOO_MANY.format(n))
        is_open = n and not why
        room -= n if is_open else 0
        axes.append(axis if is_open else None)
        notes += [f"{source.paths[leaf]}: its layers are measured as one array: {why}."] if why else []
    return tuple(axes) if any(axis is not None for axis in axes) else (), notes


def _can_open(shape: Sequence[int], axis: int) -> bool:
    return axis < len(shape) and 0 < shape[axis] <= MOST_LAYERS


def with_dtypes(source: MeasuredTree, values: Sequence[Any]) -> MeasuredTree:
    """The same tree with the dtypes of the values of its measured leaves."""
    dtypes = iter([str(x.dtype) for x in values])
    known = zip(source.has_number, source.dtypes, strict=True)
    return source._replace(dtypes=tuple(next(dtypes) if has else dtype for has, dtype in known))


def in_layers(source: MeasuredTree, axes: Axes) -> MeasuredTree:
    """The same tree with an entry for each layer of the leaves with an axis."""
    if not any(axis is not None for axis in axes):
        return source
    fields = []
    cut_off, unscaled = (flags or (False,) * len(axes) for flags in (source.cut_off, source.unscaled))
    for path, size, dtype, has_number, shape, *flags, axis in zip(*source[1:6], cut_off, unscaled, axes, strict=True):
        if axis is None:
            fields.append((path, size, dtype, has_number, shape, "", *flags))
            continue
        sizes = shape.split(",")
        n, whole = int(sizes.pop(axis)), ",".join(["*" * (i == axis) + each for i, each in enumerate(shape.split(","))])
        layer = size // n, dtype, has_number, ",".join(sizes), whole, *flags
        fields += [(f"{path}{index_text(axis, i)}", *layer) for i in range(n)]
    opened = type(source)(source.name, *zip(*fields, strict=True))
    opened = opened if source.cut_off else opened._replace(cut_off=())
    return opened if source.unscaled else opened._replace(unscaled=())


def wholes(source: MeasuredTree) -> Iterator[Whole]:
    """The leaves of a measured tree as JAX has them.

    Raises:
      ValueError: The entries of a stack do not belong together.
    """
    entry = 0
    while entry < len(source.paths):
        path, shape = source.paths[entry], shape_of(source.shapes[entry]) if source.shapes else None
        whole, n, axis = source.stacks[entry] if source.stacks else "", 1, None
        if whole:
            axis = [each[:1] for each in whole.split(",")].index("*")
            shape = shape_of(whole.replace("*", ""))
            n, index = shape[axis], index_text(axis, 0)
            if (
                not path.endswith(index)
                or source.stacks[entry : entry + n] != (whole,) * n
                or not _can_open(shape, axis)
            ):
                raise ValueError(f"{path} is no layer of an array of {whole}")
            path = path.removesuffix(index)
        size = source.sizes[entry] if axis is None else math.prod(shape or ())
        yield Whole(path, shape, size, entry, n, axis)
        entry += n


def shape_of(text: str) -> tuple[int, ...]:
    return tuple(map(int, filter(None, text.split(","))))


def layer_by_layer(paths: Sequence[str], source: MeasuredTree) -> tuple[str, ...]:
    """The paths of the entries in `source`, of leaves in the order of their use: stacks are used layer by layer.

    Args:
      paths: Of the leaves as JAX has them.
    """
    known = {whole.path: whole for whole in wholes(source)}
    used = (known[path] for path in paths if path in known)
    ordered: list[str] = []
    for n, alike in groupby(used, key=attrgetter("n")):
        together = list(alike)
        ordered += [source.paths[whole.first + i] for i in range(n) for whole in together]
    return tuple(ordered)
