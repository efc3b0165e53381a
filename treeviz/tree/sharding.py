"""Describe a sharding. No value is read and no computation starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from treeviz.tree.facts import DeviceIds, Sharding
from treeviz.tree.safe_repr import class_name, dimensions, guarded, value_text, visible

_MOST_RUNS = 4  # of ids in a text


def describe_sharding(sharding: Any) -> Sharding | None:
    """The facts of a sharding that do not depend on the array; None if there are none."""
    return guarded(lambda: _describe(sharding), lambda _: None)


def of_array(place: Sharding | None, sharding: Any, shape: tuple[int, ...], committed: bool | None) -> Sharding | None:
    """The facts of a described sharding for one array."""
    if place is None:
        return None
    shard_shape = guarded(lambda: sharding.shard_shape(shape), lambda _: ())
    return place._replace(shard_shape=dimensions(shard_shape), committed=committed)


def of_traced(aval: Any) -> Any:
    """The sharding of a traced value; None where the compiler decides, or the value is a shard."""
    sharding = guarded(lambda: aval.sharding, lambda _: None)
    types = _axis_types(sharding)
    return sharding if types and all(each == "Explicit" for each in types.values()) else None


def manual_axes(aval: Any) -> str:
    """The axes of a mesh over which `shard_map` has split a traced value: "x, y"."""
    sharding = guarded(lambda: aval.sharding, lambda _: None)
    return ", ".join(visible(name) for name, each in _axis_types(sharding).items() if each == "Manual")


def why_unreduced(sharding: Any) -> str:
    """Why an array has no values yet, if its parts are still to be summed over the devices; "" of any other."""
    names = guarded(lambda: sharding.spec.unreduced, lambda _: ())
    axes = ", ".join(sorted(visible(str(name)) for name in names))
    return f"unreduced over {axes}: each device has a part of every sum" if axes else ""


def _axis_types(sharding: Any) -> dict[str, str]:
    """The type of each axis of the mesh: Auto, Explicit or Manual. Before jax 0.5 there are none."""
    return guarded(
        lambda: {
            str(name): str(each.name)
            for name, each in zip(sharding.mesh.axis_names, sharding.mesh.axis_types, strict=True)
        },
        lambda _: {},
    )


def _describe(sharding: Any) -> Sharding | None:
    is_named = isinstance(sharding, jax.sharding.NamedSharding)
    devices = _devices(sharding)
    ids = DeviceIds(device.id for device in devices)
    platform = devices[0].platform if devices else ""
    n_devices, text, axes = len(devices), class_name(type(sharding)), ""
    if is_named:
        if sharding.mesh.empty:
            return None
        n_devices = sharding.mesh.size
        spec = value_text(sharding.spec).removeprefix("PartitionSpec").removeprefix("P")
        spec = spec.replace(", unreduced_kind=sum", "")  # the usual one, of which jax 0.12 tells
        text = f"P{spec[:-2] + ')' if spec.endswith(',)') else spec}"
        axes = ", ".join(f"{visible(str(name))}={size}" for name, size in sharding.mesh.shape.items())
    where = f"{platform}:{id_text(ids)}" if devices else "an abstract mesh"
    if len(devices) == 1:
        text = where
    elif axes:
        where += f" ({axes})"
    return Sharding(
        text=visible(text),
        n_devices=n_devices,
        shard_shape=(),
        replicated=n_devices > 1 and bool(sharding.is_fully_replicated),
        committed=None,
        addressable=not devices or bool(sharding.is_fully_addressable),
        devices=visible(where),
        memory=_memory(sharding, devices),
        platform=visible(platform),
        device_ids=ids,
    )


def id_text(ids: Sequence[int]) -> str:
    """ "0–7", "3", "0,2,4,6", "0–3,8,10,12,… 20 more": the ids in their order."""
    runs, at = [], 0
    while at < len(ids) and len(runs) < _MOST_RUNS:
        start = at
        while at + 1 < len(ids) and ids[at + 1] == ids[at] + 1:
            at += 1
        runs.append(str(ids[start]) if at == start else f"{ids[start]}–{ids[at]}")
        at += 1
    return ",".join(runs) + (f",… {len(ids) - at:,} more" if at < len(ids) else "")


def _devices(sharding: Any) -> list[Any]:
    """The devices in the order of the mesh, or else of their ids; none of an abstract mesh."""
    in_order = guarded(lambda: list(sharding.mesh.devices.flat), lambda _: None)
    if in_order is not None:
        return in_order
    return sorted(guarded(lambda: sharding.device_set, lambda _: ()), key=lambda device: device.id)


def _memory(sharding: Any, devices: list[Any]) -> str:
    """The kind of memory; "" for the one that the devices use by default."""
    kind = guarded(lambda: sharding.memory_kind, lambda _: None)
    default = guarded(lambda: _one_of_ours(devices).default_memory().kind, lambda _: "device")
    return "" if kind is None or kind == default else visible(str(kind), 40)


def _one_of_ours(devices: list[Any]) -> Any:
    """A device of this process, or one like those: before jax 0.5 the others do not tell their memories."""
    client = devices[0].client
    return next((each for each in devices if each.process_index == client.process_index()), client.local_devices()[0])
