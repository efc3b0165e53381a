"""What the walk found out, as columns: the type, the shape, the dtype, where an array lies."""

from __future__ import annotations

import numpy as np

from treeviz.analysis.sizes import whole_numbers
from treeviz.tree.column import Column
from treeviz.tree.table import Facts, TreeTable


def fact_columns(table: TreeTable) -> tuple[Column, ...]:
    """The columns kind, type, shape, dtype, sharding, devices and device_bytes."""
    facts = table.facts
    return (
        table.fact_column("kind", [f.kind for f in facts], help="What kind of node or leaf it is"),
        table.fact_column("type", [f.type for f in facts], help="The class"),
        table.fact_column("shape", ["" if f.shape is None else _tuple(f.shape) for f in facts], help="The shape"),
        table.fact_column("dtype", [_dtype(f) for f in facts], help="The dtype; ~ before it: weakly typed"),
        table.fact_column("sharding", [_sharding(f) for f in facts], help="How the array is spread over devices"),
        table.fact_column(
            "devices",
            np.array([np.nan if f.sharding is None else f.sharding.n_devices for f in facts]),
            format="count",
            rollup="max",
            help="The number of devices that hold a part of it",
        ),
        table.fact_column(
            "device_bytes",
            whole_numbers([_device_bytes(f) for f in facts], len(table)),
            title="bytes/device",
            format="bytes",
            rollup="sum",
            help="Bytes on each device that holds a part of it",
        ),
    )


def _tuple(shape: tuple[int, ...]) -> str:
    return f"({shape[0]},)" if len(shape) == 1 else f"({', '.join(map(str, shape))})"


def _dtype(facts: Facts) -> str:
    return f"~{facts.dtype}" if facts.weak and facts.dtype else facts.dtype


def _sharding(facts: Facts) -> str:
    where = facts.sharding
    if where is None:
        return ""
    notes = ["replicated"] if where.replicated else []
    notes += ["not committed"] if where.committed is False else []
    notes += [] if where.addressable else ["partly in another process"]
    return " · ".join([where.text, *([where.devices] if where.n_devices != 1 else []), *notes])


def _device_bytes(facts: Facts) -> int:
    where = facts.sharding
    if where is None or not facts.parameters:
        return facts.bytes
    n_elements = 1
    for size in where.shard_shape:
        n_elements *= size
    return facts.bytes * n_elements // facts.parameters
