"""The facts of the walk as columns: type, shape, dtype, and the sharding of an array."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from treeviz.tree.facts import Column, Facts
from treeviz.tree.leaves import id_text
from treeviz.tree.table import TreeTable
from treeviz.tree.text import bytes_text, count_text, percent_text


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


# Sizes: leaves, elements and bytes of every subtree, and a headline for the tree.

_INEXACT = re.compile("b?float|bf|complex")


def size_columns(table: TreeTable) -> tuple[Column, ...]:
    """The columns elements, bytes and leaves, which roll up as sums; a shared leaf counts at each occurrence."""
    return (
        _sum_column(table, "elements", "count", "Elements of arrays, not of Python scalars"),
        _sum_column(table, "bytes", "bytes", "Bytes of arrays, 1 kB = 1000 B"),
        _sum_column(table, "leaves", "count", "Leaves, as JAX counts them"),
    )


def _sum_column(table: TreeTable, name: str, format, help: str) -> Column:
    levels = whole_numbers([getattr(facts, name) for facts in table.facts], len(table))
    return table.fact_column(name, levels, format=format, rollup="sum", help=help)


def whole_numbers(values: list[int], n_rows: int) -> np.ndarray:
    """The values as int64, or as float64 where their sum over the rows could overflow int64."""
    return np.array(values, dtype=np.int64 if max(values, default=0) * n_rows < 2**63 else np.float64)


def is_first(table: TreeTable) -> np.ndarray:
    """bool[n_rows]: False for later occurrences of a shared node, so that sums over the rest count each once."""
    first = np.ones(len(table), dtype=bool)
    for row, notes in table.notes.items():
        if any(note.kind == "shared" and note.row >= 0 for note in notes):
            first[row : table.end[row]] = False
    return first


def is_cut(table: TreeTable) -> bool:
    """Whether the budget left something out of the table."""
    return any(note.kind == "more" for notes in table.notes.values() for note in notes)


def headline(table: TreeTable) -> tuple[str, ...]:
    """Sum up a tree: "148 leaves", "124.4 M parameters, 373.3 M elements", "497.8 MB", "float32 100 %".

    Args:
      table: With its `size_columns`.
    """
    unique = is_first(table)
    at_least = "≥ " if is_cut(table) else ""

    def total(values: np.ndarray, one: str = "", several: str = "", write=count_text) -> str:
        everything = write(int(values.sum()))
        once = everything if unique.all() else write(int(values[unique].sum()))
        text = f"{at_least}{everything} {one if everything == '1' else several}".strip()
        return text if once == everything else f"{text} ({at_least}{once} unique)"

    leaves, elements, n_bytes = (table.columns[name].values for name in ("leaves", "elements", "bytes"))
    parts = [total(leaves, "leaf", "leaves")]
    if n_bytes.any():
        of_parameters = np.where(_are_parameters(table), elements, 0)
        counts = [total(of_parameters, "parameter", "parameters")] if of_parameters.any() else []
        if (of_parameters != elements).any():
            counts.append(total(elements, "element", "elements"))
        parts += [", ".join(counts)] if counts else []  # keys have bytes and no elements
        parts += [total(n_bytes, write=bytes_text), *([] if at_least else _dtypes(table))]
    return tuple(parts)


def _are_parameters(table: TreeTable) -> np.ndarray:
    """bool[n_rows]: the rows of what is called `params`, a child of the root or the tree itself, if all is inexact."""
    found = np.zeros(len(table), dtype=bool)
    is_named = np.array([key.segment == "params" for key in table.keys])[table.key_codes]
    named = np.flatnonzero(is_named & (table.depth == 1)).tolist()
    for row in named or ([0] if table.name == "params" else []):
        inside = slice(row, int(table.end[row]))
        facts = [table.facts[code] for code in set(table.fact_codes[inside].tolist())]
        found[inside] = all(_INEXACT.match(each.dtype) for each in facts if each.elements)
    return found


def _dtypes(table: TreeTable) -> list[str]:
    """The dtypes that hold most of the elements, with their share."""
    n_rows = np.bincount(table.fact_codes, minlength=len(table.facts))
    counts: Counter[str] = Counter()
    for facts, n in zip(table.facts, n_rows.tolist(), strict=True):
        if facts.dtype and facts.elements:
            counts[facts.dtype] += facts.elements * n
    whole = sum(counts.values())
    texts = [f"{dtype} {percent_text(n, whole)}" for dtype, n in counts.most_common(3)]
    return [", ".join(texts) + (", …" if len(counts) > 3 else "")] if texts else []


# The memories that hold a tree: how much of each array lies on which devices.

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


# What the devices hold of every subtree, in one of their memories. An array that occurs several times counts once.

_FEW, _LARGE = 8, 1000  # rows


class Held(NamedTuple):
    """What the devices hold of every subtree; NaN where they hold nothing of it.

    Attributes:
      most, least: float64[n_rows]: bytes on the fullest device, and on the emptiest of those that hold any of it.
      n_devices: float64[n_rows].
      ends: The names of the emptiest and the fullest device, for the rows where they differ.
      is_plain: They are sums over the rows, so that only those of the root are here.
    """

    most: np.ndarray
    least: np.ndarray
    n_devices: np.ndarray
    ends: dict[int, tuple[str, str]]
    is_plain: bool = False


_NOTHING = Held(np.zeros(1), np.zeros(1), np.zeros(1), {}, is_plain=True)


def held_in(table: TreeTable, memory: Memory) -> Held:
    if not memory.groups:
        return _NOTHING
    group, n_bytes = memory.group[table.fact_codes], memory.bytes[table.fact_codes]
    rows = np.flatnonzero(group >= 0)
    again, meeting = _repeats(table, rows)
    if len(memory.groups) == 1 and not len(again):
        total = n_bytes.sum(keepdims=True)
        return Held(total, total, np.array([n_devices(memory.groups[0])]), {}, is_plain=True)
    most, least, n_holding = np.full((3, len(table)), np.nan)
    most[rows] = least[rows] = n_bytes[rows]
    n_holding[rows] = np.array([n_devices(devices) for devices in memory.groups])[group[rows]]
    order = np.argsort(np.concatenate([rows, meeting]), kind="stable")
    group = np.concatenate([group[rows], group[again]])[order]
    n_bytes = np.concatenate([n_bytes[rows], -n_bytes[again]])[order]
    rows = np.concatenate([rows, meeting])[order]
    nodes = np.flatnonzero(table.end > np.arange(1, len(table) + 1))
    alike = devices_alike(memory.groups)
    low, high = _Extreme(len(nodes), least=True), _Extreme(len(nodes), least=False)
    n_of_nodes = np.zeros(len(nodes))
    for which, devices in enumerate(alike):
        is_member = np.zeros(len(memory.groups), dtype=bool)
        is_member[[*devices.groups]] = True
        mine = np.flatnonzero(is_member[group])
        above = _above(table, rows[mine])
        at = np.arange(len(nodes)) if above is None else np.searchsorted(nodes, above)
        before = np.concatenate([n_bytes[:1] * 0, np.cumsum(n_bytes[mine])])
        first, last = np.searchsorted(rows[mine], nodes[at]), np.searchsorted(rows[mine], table.end[nodes[at]])
        at, totals = at[last > first], (before[last] - before[first])[last > first]
        n_of_nodes[at] += devices.n
        low.update(at, totals, which, devices.n)
        high.update(at, totals, which, devices.n)
    holds = n_of_nodes > 0
    most[nodes[holds]], least[nodes[holds]] = high.values[holds], low.values[holds]
    n_holding[nodes[holds]] = n_of_nodes[holds]
    ends = {
        int(nodes[i]): (low.name(int(i), alike), high.name(int(i), alike))
        for i in np.flatnonzero(holds & (low.values < high.values))
    }
    return Held(most, least, n_holding, ends)


def on_each_device(table: TreeTable, row: int, memory: Memory) -> list[tuple[Alike, float]]:
    """How much of a subtree each device holds, the fullest first; devices that hold the same arrays together."""
    rows = np.arange(row, table.end[row])
    rows = rows[np.unique(first_rows(table)[rows], return_index=True)[1]]
    group = memory.group[table.fact_codes[rows]]
    n_bytes = memory.bytes[table.fact_codes[rows]]
    of_groups = [n_bytes[group == which].sum() for which in range(len(memory.groups))]
    is_there = np.isin(range(len(memory.groups)), group)
    totals = [
        (devices, float(sum(of_groups[which] for which in devices.groups)))
        for devices in devices_alike(memory.groups)
        if is_there[[*devices.groups]].any()
    ]
    return sorted(totals, key=lambda pair: -pair[1])


class _Extreme:
    """The least or greatest of the totals of devices for each node, and which devices have it."""

    def __init__(self, n: int, *, least: bool) -> None:
        self.values = np.full(n, np.inf if least else -np.inf)
        self._is_better = np.less if least else np.greater
        self._which, self._n = np.zeros((2, n), dtype=np.int64)

    def update(self, at: np.ndarray, totals: np.ndarray, which: int, n_devices: int) -> None:
        better = self._is_better(totals, self.values[at])
        self._n[at[totals == self.values[at]]] += n_devices
        at = at[better]
        self.values[at], self._which[at], self._n[at] = totals[better], which, n_devices

    def name(self, i: int, alike: Sequence[Alike]) -> str:
        first = alike[self._which[i]]
        more = int(self._n[i]) - first.n
        return f"{first.name} and {more:,} more" if more else first.name


def _above(table: TreeTable, rows: np.ndarray) -> np.ndarray | None:
    """The nodes above these rows; None if searching them costs more than looking at all nodes."""
    if len(rows) > _FEW or len(table) < _LARGE:
        return None
    found: set[int] = set()
    for row in rows.tolist():
        row = int(table.parent[row])
        while row >= 0 and row not in found:
            if len(found) > _FEW * _FEW:
                return None
            found.add(row)
            row = int(table.parent[row])
    return np.array(sorted(found), dtype=np.int64)


def first_rows(table: TreeTable) -> np.ndarray:
    """int[n_rows]: the first row of the object in each row."""
    ends, first = table.end.tolist(), list(range(len(table)))
    for row, notes in table.notes.items():
        for note in notes:
            if note.kind == "shared" and 0 <= note.row < row:
                n = min(ends[row] - row, ends[note.row] - note.row)
                first[row : row + n] = first[note.row : note.row + n]
    return np.array(first)


def _repeats(table: TreeTable, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows, among these, of arrays that occurred before, and for each the lowest node that has both occurrences.

    A total that is reduced there counts the array once in every subtree.
    """
    if not table.notes:
        return rows[:0], rows[:0]
    same = first_rows(table)[rows]
    order = np.argsort(same, kind="stable")
    rows, again = rows[order], np.flatnonzero(np.diff(same[order]) == 0)
    before, later = rows[again], rows[again + 1]
    meeting = table.parent[later].astype(np.int64)
    above = np.arange(len(meeting))
    while len(above := above[meeting[above] > before[above]]) > _FEW:
        meeting[above] = table.parent[meeting[above]]
    for i in above.tolist():  # in a deep tree, looking at all rows between the two is quicker than climbing
        between = slice(before[i] + 1, later[i] + 1)
        meeting[i] = table.parent[between][np.argmin(table.depth[between])]
    return later, meeting


# Devices: what the fullest of them holds of every subtree, in each of their memories, and host memory apart.

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
