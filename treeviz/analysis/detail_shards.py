"""Which device holds which part of an array, as a grid. No value is touched."""

from __future__ import annotations

from typing import Any

from treeviz.tree.quote import guarded, visible

MOST_CELLS = 64
_MOST_NAMED = 4


def shard_section(array: Any) -> list[dict[str, Any]]:
    """A section with a cell for every different part of the array; none if it lies on one device.

    Cells stand as the parts lie: the last axis that is cut goes to the right, the others go down.
    """
    # A mutable reference, an abstract array or one in a box may have none; an abstract mesh has no devices.
    sharding = guarded(lambda: array.sharding, lambda _: None)
    if sharding is None or guarded(lambda: len(sharding.device_set), lambda _: 0) < 2:
        return []
    shape = array.shape
    parts: dict[tuple, list[Any]] = {}
    for device, index in sharding.devices_indices_map(tuple(shape)).items():
        bounds = tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))
        parts.setdefault(bounds, []).append(device)
    n_devices = sum(map(len, parts.values()))
    cuts = [len({bounds[axis] for bounds in parts}) for axis in range(len(shape))]
    cut = [axis for axis, n in enumerate(cuts) if n > 1]
    title = f"{_count(len(parts), 'part')} on {n_devices} devices"
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
    devices = sorted(devices, key=lambda device: device.id)
    ids = [str(device.id) for device in devices]
    if len(ids) > _MOST_NAMED:
        ids = [*ids[: _MOST_NAMED - 1], f"… {len(ids) - _MOST_NAMED + 1} more"]
    return visible(f"{devices[0].platform}:{','.join(ids)}")


def _range(bounds: tuple) -> str:
    return f"[{', '.join(f'{low}:{high}' for low, high in bounds)}]"
