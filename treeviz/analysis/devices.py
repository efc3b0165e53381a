"""Devices: what the fullest of them holds of every subtree, in each of their memories, and host memory apart."""

from __future__ import annotations

import numpy as np

from treeviz.analysis.held import Held, held_in, on_each_device
from treeviz.analysis.memories import DEFAULT, HOST, NOWHERE, Memory, devices_alike, memories_of
from treeviz.analysis.sizes import is_cut, is_first
from treeviz.tree.column import Column
from treeviz.tree.numbers import bytes_text
from treeviz.tree.table import TreeTable

_MOST_NAMED = 64  # groups of devices in a list


def device_columns(table: TreeTable) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """The columns devices, device_bytes, spread, host_bytes, one for each other memory; and the same for the headline.

    The headline says for the whole tree: "on cpu:0", "32 B on each of 4 devices", "8 kB in host memory".
    """
    memories = memories_of(table)
    nowhere = memories.pop(NOWHERE)
    held = {name: held_in(table, memory) for name, memory in memories.items()}
    once = "each array once"
    columns = [_n_devices(table, memories[DEFAULT], held[DEFAULT]), _spread(table, held[DEFAULT])]
    for name, memory in memories.items():
        if name == DEFAULT:
            how = ("device_bytes", "bytes/device", f"Bytes on the fullest device; {once}")
        elif name == HOST:
            how = ("host_bytes", "host", f"Bytes in host memory; {once}")
        else:
            how = (f"{name}.bytes", name, f"Bytes in the memory {name} of the device with most of it; {once}")
        columns.append(_bytes_column(table, memory, held[name], *how))
    return tuple(columns), _headline(table, memories, held, nowhere)


def _n_devices(table: TreeTable, memory: Memory, held: Held) -> Column:
    how: dict = {"format": "count", "help": "Devices with a part of it"}
    if held.is_plain:
        levels = np.where(memory.group >= 0, held.n_devices, np.nan)
        return table.fact_column("devices", levels, rollup="max", **how)
    return Column("devices", "devices", held.n_devices, rollup="given", **how)


def _bytes_column(table: TreeTable, memory: Memory, held: Held, name: str, title: str, help: str) -> Column:
    if held.is_plain:  # sums are neither stored nor sent
        return table.fact_column(name, memory.bytes, title=title, format="bytes", rollup="sum", help=help)
    return Column(name, title, held.most, format="bytes", rollup="given", help=help)


def _spread(table: TreeTable, held: Held) -> Column:
    help = "Emptiest and fullest device"
    if not held.ends:
        return table.fact_column("spread", [""] * len(table.facts), help=help)
    texts, codes = {"": 0}, np.zeros(len(table), dtype=np.int64)
    for row, (emptiest, fullest) in held.ends.items():
        low, high = bytes_text(int(held.least[row])), bytes_text(int(held.most[row]))
        codes[row] = texts.setdefault(f"{low} on {emptiest}, {high} on {fullest}", len(texts))
    return Column("spread", "spread", [*texts], codes, help=help)


def _headline(table: TreeTable, memories: dict[str, Memory], held: dict[str, Held], nowhere: Memory) -> tuple[str, ...]:
    at_least = "≥ " if is_cut(table) else ""
    lines = []
    for name, memory in memories.items():
        most, least, n_devices = (float(values[0]) for values in held[name][:3])
        if not n_devices > 0:
            continue
        size = f"{at_least}{bytes_text(int(most))}"
        if name == HOST:
            lines.append(f"{size} in {HOST}")
            continue
        where = f" in {name}" if name else ""
        if least < most:
            emptiest, fullest = held[name].ends[0]
            lines.append(f"{size}{where} on the fullest of {n_devices:,.0f} devices, {fullest}")
            lines.append(f"{bytes_text(int(least))} on the emptiest, {emptiest}")
        elif n_devices > 1:
            lines.append(f"{size}{where} on each of {n_devices:,.0f} devices")
        else:
            (only,) = devices_alike(memory.groups)
            is_alone = len(memories) == 2 and not (memories[HOST].groups or nowhere.groups)
            lines.append(f"on {only.name}" if is_alone else f"{size}{where} on {only.name}")
    rest = int(nowhere.bytes[table.fact_codes][is_first(table)].sum()) if lines and nowhere.groups else 0
    if rest:
        lines.append(f"{at_least}{bytes_text(rest)} on no JAX device")
    is_on_device = any(memory.groups for name, memory in memories.items() if name != HOST)
    return tuple(lines) if is_on_device else ()


def bytes_by_device(table: TreeTable, row: int) -> list[tuple[str, str]]:
    """Pairs of devices and the bytes that each holds of a subtree, the fullest first; none where all hold the same."""
    if not table.columns["spread"][row]:
        return []
    pairs = []
    for name, memory in memories_of(table).items():
        totals = [] if name in (HOST, NOWHERE) else on_each_device(table, row, memory)
        if len({n_bytes for _, n_bytes in totals}) > 1:
            where = f" in {name}" if name else ""
            pairs += [(f"{devices.name}{where}", bytes_text(int(n_bytes))) for devices, n_bytes in totals[:_MOST_NAMED]]
            pairs += [("…", f"{len(totals) - _MOST_NAMED:,} more")] if len(totals) > _MOST_NAMED else []
    return pairs
