"""The memories that hold a tree: how much of each array lies on which devices.

Arrays on the same devices in the same memory form a group. Devices that hold the same groups hold the same bytes and
are counted as one, so that a mesh of thousands costs as much as a single device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from treeviz.analysis.sizes import whole_numbers
from treeviz.tree.facts import Facts
from treeviz.tree.sharding import id_text
from treeviz.tree.table import TreeTable

# The names of memories beside those that JAX gives, which have no spaces.
DEFAULT = ""  # the memory that the devices use by default
HOST = "host memory"
NOWHERE = "no device"  # abstract, or an array of a library whose devices are not JAX's

# The platform and the ids. Of an abstract mesh, which may be as large as it likes, "" and the sizes of meshes that it
# covers: its own and those of all smaller ones, whose devices are taken to be among its own.
Devices = tuple[str, frozenset[int]]


class Alike(NamedTuple):
    """Devices that hold parts of the same arrays."""

    groups: tuple[int, ...]  # of arrays
    n: int
    name: str  # "cpu:0–3"; "" in an abstract mesh


class Memory(NamedTuple):
    """One kind of memory of the devices.

    Attributes:
      groups: The sets of devices that arrays lie on.
      group: int[n_facts]: which of them, or -1.
      bytes: number[n_facts]: how much of the array each of its devices holds.
    """

    groups: list[Devices]
    group: np.ndarray
    bytes: np.ndarray


def memories_of(table: TreeTable) -> dict[str, Memory]:
    """The memories that hold anything of the tree, and three that are always there; host memory last."""
    platforms = {facts.sharding.platform for facts in table.facts if facts.sharding is not None}
    groups: dict[str, dict[Devices, int]] = {}
    found: dict[str, list[tuple[int, int, int]]] = {}  # (code of the facts, group, bytes)
    sets: dict[tuple, Devices] = {}
    for code, facts in enumerate(table.facts):
        if facts.kind == "deleted" or not facts.is_leaf or not (facts.bytes or facts.sharding):
            continue
        where = facts.sharding
        devices, n_bytes = ("", frozenset((1,))), facts.bytes
        if where is None or len(where.shard_shape) != len(facts.shape or ()):
            name = HOST if where is None and facts.kind in ("numpy", "scalar") else NOWHERE
        elif not where.platform and platforms != {""}:  # its devices may be the same as others, or not
            name = NOWHERE
        elif where.platform == "cpu" and not platforms <= {"", "cpu"}:
            name, n_bytes = HOST, shard_bytes(facts) * where.n_devices
        else:
            name, n_bytes = where.memory, shard_bytes(facts)
            key = (where.platform, where.device_ids, where.n_devices)
            if key not in sets:
                sets[key] = (where.platform, frozenset(where.device_ids if where.platform else (where.n_devices,)))
            devices = sets[key]
        of_memory = groups.setdefault(name, {})
        found.setdefault(name, []).append((code, of_memory.setdefault(devices, len(of_memory)), n_bytes))
    memories = {}
    nothing = Memory([], np.full(len(table.facts), -1), np.zeros(len(table.facts), dtype=np.int64))
    for name in (DEFAULT, *sorted({*found} - {DEFAULT, HOST, NOWHERE}), HOST, NOWHERE):
        if name not in found:
            memories[name] = nothing
            continue
        group, n_bytes = nothing.group.copy(), [0] * len(table.facts)
        for code, which, size in found[name]:
            group[code], n_bytes[code] = which, size
        of_memory = [*groups[name]]
        sizes = {size for platform, ids in of_memory if not platform for size in ids}
        covered = [
            devices if devices[0] else ("", frozenset(s for s in sizes if s <= max(devices[1])))
            for devices in of_memory
        ]
        memories[name] = Memory(covered, group, whole_numbers(n_bytes, len(table)))
    return memories


def n_devices(devices: Devices) -> int:
    platform, ids = devices
    return len(ids) if platform else max(ids)


def shard_bytes(facts: Facts) -> int:
    """The bytes of the array on each of its devices."""
    shard_shape = () if facts.sharding is None else facts.sharding.shard_shape
    if shard_shape == facts.shape:
        return facts.bytes
    whole = part = 1
    for size, size_of_part in zip(facts.shape or (), shard_shape, strict=True):
        if not (isinstance(size, int) and isinstance(size_of_part, int)):
            return 0  # a symbolic dimension has no size yet
        whole, part = whole * size, part * size_of_part
    return facts.bytes * part // whole if whole else 0


def devices_alike(groups: Sequence[Devices]) -> list[Alike]:
    """The devices of all groups; those that are in the same groups together."""
    if len(groups) == 1:
        devices = sorted((groups[0][0], each) for each in groups[0][1])
        return [Alike((0,), n_devices(groups[0]), _name(devices, n_devices(groups[0])))]
    member_of: dict[tuple[str, int], list[int]] = {}
    for which, (platform, ids) in enumerate(groups):
        for each in ids:
            member_of.setdefault((platform, each), []).append(which)
    together: dict[tuple[int, ...], list[tuple[str, int]]] = {}
    for device, member in sorted(member_of.items()):
        together.setdefault(tuple(member), []).append(device)
    sizes = [0, *sorted(size for platform, size in member_of if not platform)]
    n_more = dict(zip(sizes[1:], np.diff(sizes).tolist(), strict=True))
    alike = []
    for which, devices in together.items():
        n = len(devices) if devices[0][0] else sum(n_more[size] for _, size in devices)
        alike.append(Alike(which, n, _name(devices, n)))
    return alike


def _name(devices: Sequence[tuple[str, int]], n: int) -> str:
    platform = devices[0][0]
    return f"{platform}:{id_text([each for _, each in devices])}" if platform else f"{n:,} of an abstract mesh"
