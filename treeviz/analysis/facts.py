"""The facts of the walk as columns: type, shape, dtype, and the sharding of an array."""

from __future__ import annotations

import numpy as np

from treeviz.tree.column import Column
from treeviz.tree.facts import Facts
from treeviz.tree.table import TreeTable


def fact_columns(table: TreeTable, mesh: str = "") -> tuple[Column, ...]:
    """The columns kind, type, shape, dtype and sharding.

    Args:
      mesh: What `common_mesh` gives, if the headline says it: then rows do not.
    """
    facts = table.facts
    return (
        table.fact_column("kind", [f.kind for f in facts]),
        table.fact_column("type", [f.type for f in facts]),
        table.fact_column("shape", [shape_text(f.shape) for f in facts]),
        table.fact_column("dtype", [_dtype(f) for f in facts], help="The dtype; ~ before it: weakly typed"),
        table.fact_column("sharding", [sharding_text(f, mesh) for f in facts], help="How it is spread over devices"),
    )


def shape_text(shape: tuple[int, ...] | None) -> str:
    """ "(3,)", "(3, 4)", "()"; "" for None."""
    if shape is None:
        return ""
    return f"({shape[0]},)" if len(shape) == 1 else f"({', '.join(map(str, shape))})"


def _dtype(facts: Facts) -> str:
    return f"~{facts.dtype}" if facts.weak and facts.dtype else facts.dtype


def common_mesh(table: TreeTable) -> str:
    """The devices and axes that several arrays share, "cpu:0–7 (data=2, model=4)"; "" if there are others."""
    places = [f.sharding.devices if f.sharding and f.sharding.n_devices > 1 else "" for f in table.facts]
    (place,) = distinct if len(distinct := {*places} - {""}) == 1 else ("",)
    if not place.endswith(")"):
        return ""
    is_there = np.array([each == place for each in places])[table.fact_codes]
    return place if is_there.sum() > 1 else ""


def mesh_text(mesh: str) -> str:
    """ "mesh 2×4 (data, model) on cpu:0–7" of what `common_mesh` gives."""
    where, _, axes = mesh[:-1].partition(" (")
    pairs = [axis.rpartition("=") for axis in axes.split(", ")]
    return f"mesh {'×'.join(size for _, _, size in pairs)} ({', '.join(name for name, _, _ in pairs)}) on {where}"


def sharding_text(facts: Facts, mesh: str = "") -> str:
    """ "P('data', None) · cpu:0–7 (data=8)", "replicated ×8"; "" for None."""
    where = facts.sharding
    if where is None:
        return ""
    text = f"replicated ×{where.n_devices}" if where.replicated else where.text
    notes = ["not committed"] if where.committed is False else []
    notes += [] if where.addressable else ["partly in another process"]
    notes += [where.memory] if where.memory else []
    notes += [] if len(where.shard_shape) == len(facts.shape or ()) else ["cannot be split evenly"]
    return " · ".join([text, *([where.devices] if where.devices not in (text, mesh) else []), *notes])
