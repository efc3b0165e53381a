"""Where an array lies, read off its sharding. Nothing here touches a value or starts a computation."""

from __future__ import annotations

from typing import Any

import jax

from treeviz.tree.quote import class_name, dimensions, guarded, value_text, visible
from treeviz.tree.table import Sharding


def describe_sharding(sharding: Any, shape: tuple[int, ...], committed: bool | None) -> Sharding | None:
    """The facts that people ask for, or None if the sharding has none to give (an abstract mesh)."""
    return guarded(lambda: _describe(sharding, shape, committed), lambda _: None)


def _describe(sharding: Any, shape: tuple[int, ...], committed: bool | None) -> Sharding:
    if isinstance(sharding, jax.sharding.NamedSharding):
        text = value_text(sharding.spec).replace("PartitionSpec", "P")
        axes = ", ".join(f"{visible(str(name))}={size}" for name, size in sharding.mesh.shape.items())
    else:
        text, axes = class_name(type(sharding)), ""
    devices = sorted(guarded(lambda: sharding.device_set, lambda _: ()), key=lambda device: device.id)
    if len(devices) == 1:
        where = text = f"{devices[0].platform}:{devices[0].id}"
    else:
        where = f"{len(devices)} × {devices[0].platform}" if devices else "no devices yet"
        where += f" ({axes})" if axes else ""
    return Sharding(
        text=visible(text),
        n_devices=len(devices),
        shard_shape=dimensions(sharding.shard_shape(shape)),
        replicated=len(devices) > 1 and bool(sharding.is_fully_replicated),
        committed=committed,
        addressable=not devices or bool(sharding.is_fully_addressable),
        devices=visible(where),
    )
