"""Where an array lies, read off its sharding. Nothing here touches a value or starts a computation."""

from __future__ import annotations

from typing import Any

import jax

from treeviz.tree.quote import class_name, dimensions, guarded, value_text, visible
from treeviz.tree.table import Sharding


def describe_sharding(sharding: Any) -> Sharding | None:
    """What people ask of it, whatever array it is of; None if there is nothing to say."""
    return guarded(lambda: _describe(sharding), lambda _: None)


def of_array(place: Sharding | None, sharding: Any, shape: tuple[int, ...], committed: bool | None) -> Sharding | None:
    """The facts of a described sharding for one array."""
    if place is None:
        return None
    shard_shape = guarded(lambda: sharding.shard_shape(shape), lambda _: shape)
    return place._replace(shard_shape=dimensions(shard_shape), committed=committed)


def _describe(sharding: Any) -> Sharding | None:
    if isinstance(sharding, jax.sharding.NamedSharding):
        if sharding.mesh.empty:
            return None
        spec = value_text(sharding.spec).removeprefix("PartitionSpec").removeprefix("P")
        text = f"P{spec[:-2] + ')' if spec.endswith(',)') else spec}"
        axes = ", ".join(f"{visible(str(name))}={size}" for name, size in sharding.mesh.shape.items())
    else:
        text, axes = class_name(type(sharding)), ""
    devices = sorted(guarded(lambda: sharding.device_set, lambda _: ()), key=lambda device: device.id)
    if len(devices) == 1:
        where = text = f"{devices[0].platform}:{devices[0].id}"
    else:
        where = f"{len(devices)} × {devices[0].platform}" if devices else "an abstract mesh"
        where += f" ({axes})" if axes else ""
    return Sharding(
        text=visible(text),
        n_devices=len(devices),
        shard_shape=(),
        replicated=len(devices) > 1 and bool(sharding.is_fully_replicated),
        committed=None,
        addressable=not devices or bool(sharding.is_fully_addressable),
        devices=visible(where),
    )
