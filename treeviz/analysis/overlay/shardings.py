"""Shardings that are planned: does each leaf divide, what does a device hold, and what is on all of them?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from treeviz.analysis.compare.aligned import Side
from treeviz.analysis.compare.nodes import Finding
from treeviz.analysis.facts import shape_text
from treeviz.analysis.overlay.overlaid import Judged, Pairs, array_shape, no_array
from treeviz.analysis.overlay.prefix import Aligned, align_prefix
from treeviz.tree.column import Column
from treeviz.tree.facts import Facts, Note
from treeviz.tree.numbers import bytes_text
from treeviz.tree.safe_repr import aval_text, class_name, error_text, guarded, value_text
from treeviz.tree.table import TreeTable

Spec = jax.sharding.PartitionSpec
_MOST_NOTES = 20  # of replicated leaves, the largest
_SMALL = 0.01  # of what a device holds: a smaller replicated leaf has no note


class _Planned(NamedTuple):
    """What a sharding makes of one array.

    Attributes:
      shard: The shape of the part on a device; None if that is not known.
      n_parts: Into how many parts it is split.
      mesh: The sizes of the axes of the mesh, by name.
    """

    finding: Finding | None = None
    shard: tuple[int, ...] | None = None
    n_parts: int = 1
    mesh: Mapping[str, int] | None = None


class Shardings:
    """`in_shardings`, `out_shardings`, or what `jax.device_put` takes."""

    name = "shardings"
    none_is_spec = True

    def __init__(self, mesh: Any = None) -> None:
        self._mesh = mesh

    def align(self, prefix: Any, side: Side, is_leaf: Callable[[Any], bool]) -> Aligned:
        return align_prefix(prefix, side, lambda node: isinstance(node, Spec) or is_leaf(node))

    def text(self, spec: Any) -> str:
        spec = getattr(spec, "spec", spec)
        if not isinstance(spec, Spec):
            return value_text(spec, 60)
        text = ", ".join(value_text(part, 40) for part in spec)
        return f"P({text})"

    def wrong(self, spec: Any) -> Finding | None:
        if spec is None or isinstance(spec, Spec | jax.sharding.Sharding):
            return None
        wants = "a PartitionSpec, a Sharding or None"
        hint = f"did you mean P({spec!r})?" if type(spec) is str else ""
        return "spec", f"{class_name(type(spec))} {value_text(spec, 40)}", wants, hint

    def judge(self, table: TreeTable, pairs: Pairs) -> Judged:
        planned = [self._plan(spec, facts) for spec, facts in pairs.distinct]
        n_bytes = [_bytes_on_a_device(each, facts) for each, (_, facts) in zip(planned, pairs.distinct, strict=True)]
        shards = ["" if each.shard is None else shape_text(each.shard) for each in planned]
        codes = np.full(len(table), len(shards), np.int32)
        codes[pairs.rows] = pairs.of
        columns = (
            pairs.column(
                table, n_bytes, "planned_bytes", "bytes/device", format="bytes", rollup="sum",
                help="Bytes on one device, by this plan",
            ),
            Column("shard", "shard", [*shards, ""], codes, help="The shape of the part of an array on one device"),
        )  # fmt: skip
        sizes = np.array([*n_bytes, np.nan])[pairs.of]
        n_unknown = int(np.count_nonzero(table.is_leaf)) - int(np.count_nonzero(~np.isnan(sizes)))
        total = float(np.nansum(sizes))
        held = f"{bytes_text(total)} on each device"
        if n_unknown:
            held += f", without {n_unknown:,} {'leaf' if n_unknown == 1 else 'leaves'}"
        told, notes = _replicated(table, pairs, planned, n_bytes, total)
        headline = (*self._mesh_text(planned), *([held] if total else []), *told)
        return Judged(pairs.findings(table, [each.finding for each in planned]), columns, headline, notes)

    def _mesh_text(self, planned: list[_Planned]) -> tuple[str, ...]:
        meshes = {tuple(each.mesh.items()) for each in planned if each.mesh is not None}
        if len(meshes) > 1:
            return (f"{len(meshes)} meshes",)
        if not meshes:
            return () if self._mesh is not None else ("without a mesh= the sizes are not checked",)
        (mesh,) = meshes
        return (f"mesh {', '.join(f'{name}={size}' for name, size in mesh)}",)

    def _plan(self, spec: Any, facts: Facts) -> _Planned:
        if spec is None:  # left to the compiler
            return _Planned()
        shape, text = array_shape(facts), self.text(spec)
        if shape is None:
            return _Planned(("spec", text, no_array(facts), ""))
        if not isinstance(spec, Spec | jax.sharding.NamedSharding):
            return _of_another_sharding(spec, shape, text)
        mesh, spec = (self._mesh, spec) if isinstance(spec, Spec) else (spec.mesh, spec.spec)
        sizes = None if mesh is None else {name: int(size) for name, size in mesh.shape.items()}
        parts = tuple(spec)
        if len(parts) > len(shape):
            n = len(shape)
            leaf = aval_text(shape, facts.dtype) if facts.dtype else facts.type
            return _Planned(("axis", text, leaf, f"it has {n} {'axis' if n == 1 else 'axes'}"), mesh=sizes)
        return _split(shape, parts, text, sizes)


def _split(shape: tuple[int, ...], parts: tuple[Any, ...], text: str, sizes: Mapping[str, int] | None) -> _Planned:
    """Split each axis of an array over axes of the mesh, if they are there, free, and divide it."""
    shard, used = list(shape), []
    for axis, part in enumerate(parts):
        names = part if isinstance(part, tuple) else () if part is None or part is Spec.UNCONSTRAINED else (part,)
        for name in names:
            if sizes is not None and name not in sizes:
                has = f"the mesh has {', '.join(map(value_text, sizes)) or 'none'}"
                return _Planned(("axis", f"the mesh axis {value_text(name)}", "", has), mesh=sizes)
            if name in used:
                return _Planned(("spec", text, "each axis of the mesh once", ""), mesh=sizes)
            used.append(name)
        n = math.prod(sizes[name] for name in names) if sizes is not None else 1
        if not isinstance(shape[axis], int):
            return _Planned(mesh=sizes)  # a symbolic size
        if shape[axis] % n:
            over = " × ".join(map(value_text, names))
            finding = "size", f"axis {axis} has {shape[axis]:,}", "", f"not divisible by {n} of {over}"
            return _Planned(finding, mesh=sizes)
        shard[axis] //= n
    if sizes is None or Spec.UNCONSTRAINED in parts:
        return _Planned(mesh=sizes)
    return _Planned(None, tuple(shard), math.prod(sizes[name] for name in used), sizes)


def _of_another_sharding(sharding: Any, shape: tuple[int, ...], text: str) -> _Planned:
    shard = guarded(lambda: tuple(sharding.shard_shape(shape)), error_text)
    if isinstance(shard, str):
        return _Planned(("size", text, shape_text(shape), shard))
    n, of_shard = math.prod(shape), math.prod(shard)
    return _Planned(None, shard, n // of_shard if of_shard else 1)


def _bytes_on_a_device(planned: _Planned, facts: Facts) -> float:
    return float("nan") if planned.shard is None else float(facts.bytes // planned.n_parts)


def _replicated(
    table: TreeTable, pairs: Pairs, planned: list[_Planned], n_bytes: list[float], total: float
) -> tuple[tuple[str, ...], dict[int, tuple[Note, ...]]]:
    """How much of what a device holds is on every other one, too; and of the large leaves, what could split them."""

    def is_replicated(each: _Planned, size: float) -> bool:
        return size > 0 and each.n_parts == 1 and math.prod((each.mesh or {}).values()) > 1

    of_pairs = np.array([is_replicated(*each) for each in zip(planned, n_bytes, strict=True)], bool)
    leaves = np.flatnonzero(of_pairs[pairs.of])
    if not len(leaves):
        return (), {}
    sizes = np.array(n_bytes)[pairs.of[leaves]]
    notes: dict[int, tuple[Note, ...]] = {}
    for i in np.argsort(-sizes, kind="stable")[:_MOST_NOTES].tolist():
        if sizes[i] >= _SMALL * total:
            each = planned[int(pairs.of[leaves[i]])]
            text = f"the same {bytes_text(float(sizes[i]))} on every device: {_could_split(each)}"
            notes[int(pairs.rows[leaves[i]])] = (Note("info", text),)
    n = len(leaves)
    return (f"{n:,} {'leaf' if n == 1 else 'leaves'} replicated: {bytes_text(float(sizes.sum()))} on each",), notes


def _could_split(planned: _Planned) -> str:
    """ "'x' could split axis 0 or 1": the axes of the mesh that divide an axis of the array."""
    shape, could = planned.shard or (), []
    for name, size in (planned.mesh or {}).items():
        axes = [str(axis) for axis, length in enumerate(shape) if size > 1 and length and length % size == 0]
        if axes:
            could.append(f"{value_text(name)} could split axis {' or '.join(axes)}")
    return ", ".join(could) or "no axis of the mesh divides it"
