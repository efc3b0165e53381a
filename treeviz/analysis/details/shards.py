"""The devices of the parts of an array, as a grid. No value is read."""

from __future__ import annotations

from typing import Any

from treeviz.tree.safe_repr import guarded, visible
from treeviz.tree.sharding import describe_sharding, id_text, why_unreduced

MOST_CELLS = 64


def shard_section(array: Any) -> list[dict[str, Any]]:
    """A section with a cell for every distinct part of the array; none for a single device.

    Cells are laid out like the parts: the last partitioned axis from left to right, the others from top to bottom.
    """
    # A mutable reference, an abstract array or one in a box may have none; an abstract mesh has no devices.
    sharding = guarded(lambda: array.sharding, lambda _: None)
    if sharding is None or guarded(lambda: len(sharding.device_set), lambda _: 0) < 2:
        return []
    if why := why_unreduced(sharding):
        return [{"kind": "text", "text": why, "tone": "dim"}]
    shape = array.shape
    parts: dict[tuple, list[Any]] = {}
    for device, index in sharding.devices_indices_map(tuple(shape)).items():
        bounds = tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))
        parts.setdefault(bounds, []).append(device)
    n_devices = sum(map(len, parts.values()))
    cuts = [len({bounds[axis] for bounds in parts}) for axis in range(len(shape))]
    cut = [axis for axis, n in enumerate(cuts) if n > 1]
    title = f"{_count(len(parts), 'part')} on {n_devices} devices"
    where = describe_sharding(sharding)
    title += f" in {where.memory}" if where is not None and where.memory else ""
    if cut:
        title += f", cut along {', '.join(f'axis {axis} into {cuts[axis]}' for axis in cut)}"
    grid = {
        "kind": "grid",
        "title": title,
        "columns": cuts[cut[-1]] if cut else 1,
        "cells": [[_names(parts[bounds]), _range(bounds)] for bounds in sorted(parts)[:MOST_CELLS]],
        "n_more": max(len(parts) - MOST_CELLS, 0),
    }
    return [grid]


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'s' * (n != 1)}"


def _names(devices: list[Any]) -> str:
    return visible(f"{devices[0].platform}:{id_text(sorted(device.id for device in devices))}")


def _range(bounds: tuple) -> str:
    return f"[{', '.join(f'{low}:{high}' for low, high in bounds)}]"
