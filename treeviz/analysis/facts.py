"""Columns of facts from the walk: type, shape, dtype, sharding, sizes, and the bytes that devices hold."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, pairwise, repeat
from operator import is_, mul
from typing import Any, NamedTuple

import numpy as np

from treeviz.tree.facts import INSERTION, KINDS, SCALARS, Column, Facts
from treeviz.tree.leaves import id_text
from treeviz.tree.table import TreeTable
from treeviz.tree.text import bytes_text, count_text, counted, guarded, number_text, percent_text


def fact_columns(table: TreeTable, mesh: str = "") -> tuple[Column, ...]:
    """The columns kind, type, shape, dtype, sharding, and axis if axes have names; rows omit the headline's `mesh`."""
    column, facts = table.fact_column, table.facts
    axes = [", ".join(filter(None, f.axes)) for f in facts]
    dtypes = [f"~{f.dtype}" if f.weak and f.dtype else f.dtype for f in facts]
    return (
        *([column("axis", axes, title="axes", help="The names of its axes")] if any(axes) else []),
        column("kind", [f.kind for f in facts]),
        column("type", [f.type for f in facts]),
        column("shape", [shape_text(f.shape) for f in facts]),
        column("dtype", dtypes, help="~ marks weak types"),
        column("sharding", [sharding_text(f, mesh) for f in facts]),
    )


_MOST_READ = 1_000  # scalars of a tree
_MOST_DICTS = 5_000  # whose order is read, at some 0.7 µs each


def scalar_column(table: TreeTable, nodes: Sequence[object]) -> tuple[Column, ...]:
    """The values of arrays of shape () in host memory that are ready: no transfer, no wait."""
    rows = is_number(table).nonzero()[0][:_MOST_READ].tolist()
    texts = {row: guarded(lambda row=row: host_scalar(nodes[row]), lambda _: "") for row in rows}
    return with_scalars(table, texts) if texts else ()


def is_number(table: TreeTable) -> np.ndarray:
    """bool[n_rows]: whether it is an array of shape ()."""
    is_one = [f.shape == () and f.elements == 1 and f.kind in ("array", "numpy") for f in table.facts]
    return np.array(is_one)[table.fact_codes] if True in is_one else np.zeros(len(table), bool)


def with_scalars(table: TreeTable, texts: Mapping[int, str]) -> tuple[Column, ...]:
    """The column of these values, and of those that the table has already."""
    known = table.columns.get(SCALARS)
    levels = [""] * len(table) if known is None else known.values.tolist()
    for row, text in texts.items():
        levels[row] = levels[row] or text
    distinct = {"": 0}
    codes = np.array([distinct.setdefault(level, len(distinct)) for level in levels])
    return (Column(SCALARS, "value", [*distinct], codes),) if len(distinct) > 1 else ()


def host_scalar(array: Any) -> str:
    """The text of the only element of an array; "" if that would need a transfer or a wait."""
    from treeviz.analysis.stats import host_view, lies_on_host

    if type(array) is not np.ndarray:
        if not (lies_on_host(array) and array.is_ready()):
            return ""
        array = host_view(array.addressable_shards[0].data)
    return str(array.item()) if array.dtype.kind in "biuc" else number_text(float(array))


def insertion_column(table: TreeTable, nodes: Sequence[object]) -> tuple[Column, ...]:
    """The place of each child of a dict in insertion order, for a page to sort by; none where that is JAX's order."""
    dicts = [row for row, node in enumerate(nodes) if type(node) is dict and len(node) > 1]
    if len(dicts) > _MOST_DICTS:
        return ()
    of_rows: list[Any] = [nodes[row] for row in dicts]
    are_plain = lambda keys: all(map(is_, map(type, keys), repeat(str)))  # noqa: E731 (other hashes may run user code)
    if not are_plain(chain.from_iterable(of_rows)):
        of_rows = [node if are_plain(node) else {} for node in of_rows]
    of_rows, places = [*map(tuple, of_rows)], [0]
    starts: dict[tuple[str, ...], int] = {}  # of each order in `places`; 0 for that of JAX
    for names in dict.fromkeys(of_rows):
        order = sorted(range(len(names)), key=names.__getitem__)
        starts[names] = 0 if order == [*range(len(names))] else len(places)
        places += order
    if not any(starts.values()):
        return ()
    start, values = np.zeros(len(table), int), np.full(len(table), np.nan)
    start[dicts] = [*map(starts.__getitem__, of_rows)]
    rows = start[table.parent[1:]].nonzero()[0] + 1
    values[rows] = np.array(places)[start[table.parent[rows]] + table.position[rows]]
    return (Column(INSERTION, "insertion order", values, format="count", help="The place in its dict"),)


def shape_text(shape: tuple[int, ...] | None, axes: tuple[str, ...] = ()) -> str:
    """ "(3,)", "(3, 4)", "()", "(batch 3, 4)"; "" for None."""
    if shape is None:
        return ""
    if axes:
        return f"({', '.join(f'{name} {size}'.strip() for name, size in zip(axes, shape, strict=True))})"
    return f"({shape[0]},)" if len(shape) == 1 else f"({', '.join(map(str, shape))})"


def axis_text(axis: int, facts: Facts) -> str:
    """ "axis 1", or "axis 1 (seq)" if the axes of the array have names."""
    name = facts.axes[axis] if facts.axes else ""
    return f"axis {axis} ({name})" if name else f"axis {axis}"


def common_mesh(table: TreeTable) -> str:
    """The devices and axes that several arrays share, "cpu:0–7 (data=2, model=4)"; "" if not all share them."""
    places = [f.sharding.devices if f.sharding and f.sharding.n_devices > 1 else "" for f in table.facts]
    (place,) = distinct if len(distinct := {*places} - {""}) == 1 else ("",)
    if not place.endswith(")"):
        return ""
    has_mesh = np.array([text == place for text in places])[table.fact_codes]
    return place if has_mesh.sum() > 1 else ""


def mesh_text(mesh: str) -> str:
    """ "mesh 2×4 (data, model) on cpu:0–7", from the result of `common_mesh`."""
    devices, _, axes = mesh[:-1].partition(" (")
    pairs = [axis.rpartition("=") for axis in axes.split(", ")]
    return f"mesh {'×'.join(size for _, _, size in pairs)} ({', '.join(name for name, _, _ in pairs)}) on {devices}"


def sharding_text(facts: Facts, mesh: str = "") -> str:
    """ "P('data', None) · cpu:0–7 (data=8)", "replicated ×8"; "" for None."""
    sharding = facts.sharding
    if sharding is None:
        return ""
    text = f"replicated ×{sharding.n_devices}" if sharding.replicated else sharding.text
    notes = ["not committed"] if sharding.committed is False else []
    notes += [] if sharding.addressable else ["partly in another process"]
    notes += [sharding.memory] if sharding.memory else []
    notes += [] if len(sharding.shard_shape) == len(facts.shape or ()) else ["cannot be split evenly"]
    return " · ".join([text, *([sharding.devices] if sharding.devices not in (text, mesh) else []), *notes])


# Sizes: leaves, elements and bytes of every subtree, and a headline for the tree

_LONGEST_METADATA = 70  # characters of the headline
_INEXACT = re.compile("b?float|bf|complex")


def size_columns(table: TreeTable) -> tuple[Column, ...]:
    """The columns elements, bytes and leaves, which roll up as sums; a shared leaf counts at each occurrence."""
    columns = []
    for name, format, help in ("elements", "count", ""), ("bytes", "bytes", "Bytes of arrays"), ("leaves", "count", ""):
        levels = whole_numbers([getattr(facts, name) for facts in table.facts], len(table))
        columns.append(table.fact_column(name, levels, format=format, rollup="sum", help=help))
    return tuple(columns)


def whole_numbers(values: list[int], n_rows: int) -> np.ndarray:
    """The values as int64, or as float64 if their sum over the rows could overflow int64."""
    return np.array(values, dtype=np.int64 if max(values, default=0) * n_rows < 2**63 else np.float64)


def is_first(table: TreeTable) -> np.ndarray:
    """bool[n_rows]: False for repeats of a shared node, so that sums over the other rows count it once."""
    first = np.ones(len(table), dtype=bool)
    for row, notes in table.notes.items():
        if any(note.kind == "shared" and note.row >= 0 for note in notes):
            first[row : table.end[row]] = False
    return first


def is_cut(table: TreeTable) -> bool:
    """Whether the budget cut anything from the table."""
    return "more" in [note.kind for notes in table.notes.values() for note in notes]


def headline(table: TreeTable) -> tuple[str, ...]:
    """The summary of a tree: "148 leaves", "124.4 M parameters", "373.3 M elements", "1.5 GB", "float32 100 %"."""
    n_rows, unique = _n_rows(table), is_first(table) if table.notes else None
    n_unique = n_rows if unique is None else _n_rows(table, unique)
    at_least = "≥ " if is_cut(table) else ""

    def total(values: Sequence[int], one="", several="", write=count_text, n=n_rows, n_once=n_unique) -> str:
        everything = write(sum(map(mul, values, n)))
        once = everything if n is n_once else write(sum(map(mul, values, n_once)))
        text = f"{at_least}{everything} {one if everything == '1' else several}".strip()
        return text if once == everything else f"{text} ({at_least}{once} unique)"

    leaves, elements, n_bytes = [[getattr(f, name) for f in table.facts] for name in ("leaves", "elements", "bytes")]
    parts = [total(leaves, "leaf", "leaves")]
    if sum(map(mul, n_bytes, n_rows)):
        inside, counts, n_inside = _parameters(table), [], [0] * len(n_rows)
        if inside is not None and sum(map(mul, elements, n_inside := _n_rows(table, inside))):
            n_once = n_inside if unique is None else _n_rows(table, inside & unique)
            counts = [total(elements, "parameter", "parameters", n=n_inside, n_once=n_once)]
        if of_class := _variables(table, n_rows):
            largest_first = sorted(of_class, key=lambda name: -sum(map(mul, of_class[name], n_rows)))
            counts = [f"{name} {total(of_class[name])}" for name in largest_first]
        elif sum(map(mul, elements, n_rows)) > sum(map(mul, elements, n_inside)):
            counts.append(total(elements, "element", "elements"))
        n_keys = [math.prod(facts.shape or ()) if facts.kind == "key" else 0 for facts in table.facts]
        if any(n_keys):  # they have bytes, but no elements
            counts.append(total(n_keys, "key", "keys"))
        parts += [*counts, total(n_bytes, write=bytes_text), *([] if at_least else _dtypes(table, n_rows))]
    return (*parts, *_metadata(table))


def _n_rows(table: TreeTable, rows: Any = slice(None)) -> list[int]:
    """How many of the rows have each of the facts."""
    return np.bincount(table.fact_codes[rows], minlength=len(table.facts)).tolist()


def _metadata(table: TreeTable) -> list[str]:
    """The first entries of what the file of the whole tree says of itself."""
    root = table.facts[table.fact_codes[0]]
    if root.kind not in ("dict", "list") or not root.static:
        return []
    texts = [f"{name}={value}" for name, value in root.static]
    n = sum(length <= _LONGEST_METADATA for length in accumulate(len(text) + 2 for text in texts))
    more = f"… {len(texts) - n} more of metadata" if n else f"metadata: {counted(len(texts), 'entry', 'entries')}"
    return [", ".join([*texts[:n], *([more] if n < len(texts) else [])])]


def _variables(table: TreeTable, n_rows: list[int]) -> dict[str, list[int]]:
    """The elements in each class of variables, such as NNX' Param, by facts, if all are in variables of several."""
    of_class: dict[str, list[int]] = {}
    for code, facts in enumerate(table.facts):
        if facts.elements and n_rows[code]:
            implied = KINDS[facts.kind].implied_types
            name = "" if implied is None or facts.type in implied else facts.type
            of_class.setdefault(name, [0] * len(table.facts))[code] = facts.elements
    return {} if "" in of_class or len(of_class) < 2 else of_class


def _parameters(table: TreeTable) -> np.ndarray | None:
    """bool[n_rows]: the rows of a child of the root named `params`, or of a tree with that name, if all are inexact."""
    named = [code for code, key in enumerate(table.keys) if key.segment == "params"]
    rows = np.flatnonzero(np.isin(table.key_codes, named) & (table.depth == 1)).tolist() if named else []
    rows = rows or ([0] if table.name == "params" else [])
    if not rows:
        return None
    are_parameters = np.zeros(len(table), dtype=bool)
    for row in rows:
        inside = slice(row, int(table.end[row]))
        facts = [table.facts[code] for code in set(table.fact_codes[inside].tolist())]
        are_parameters[inside] = all(_INEXACT.match(f.dtype) for f in facts if f.elements)
    return are_parameters


def _dtypes(table: TreeTable, n_rows: list[int]) -> list[str]:
    """The dtypes that hold most of the elements, with their share."""
    counts = Counter[str]()
    for facts, n in zip(table.facts, n_rows, strict=True):
        if facts.dtype and facts.elements:
            counts[facts.dtype] += facts.elements * n
    texts = [f"{dtype} {percent_text(n, counts.total())}" for dtype, n in counts.most_common(3)]
    return [", ".join(texts) + (", …" if len(counts) > 3 else "")] if texts else []


# Memories: how many bytes of each array are on which devices

# JAX's names of memories have no spaces, so these cannot clash with them.
DEFAULT = ""  # the default memory of the devices
HOST = "host memory"
NOWHERE = "no device"  # abstract, or an array of a library with devices of its own

# The platform and the device ids. For an abstract mesh of any size: "", and the sizes of the meshes that it covers, its
# own and all smaller ones, whose devices are assumed to be among its own.
Devices = tuple[str, frozenset[int]]


class DeviceGroup(NamedTuple):
    """Devices that hold parts of the same arrays."""

    groups: tuple[int, ...]  # of arrays
    n: int
    name: str  # "cpu:0–3"; "" in an abstract mesh


class Memory(NamedTuple):
    """One kind of memory of the devices."""

    groups: list[Devices]  # the distinct sets of devices that arrays are on
    group: list[int]  # of each of the facts: the index of the array's set, or -1
    bytes: list[int]  # of each of the facts: the bytes of the array on each of its devices


def memories_of(table: TreeTable) -> dict[str, Memory]:
    """The memories that hold any array of the tree, and the three constant ones; host memory comes near the end."""
    platforms = {facts.sharding.platform for facts in table.facts if facts.sharding is not None}
    names = {DEFAULT, HOST, NOWHERE, *[facts.sharding.memory for facts in table.facts if facts.sharding is not None]}
    found = {name: Memory([], [-1] * len(table.facts), [0] * len(table.facts)) for name in names}
    sets: dict[tuple, Devices] = {}
    known: dict[tuple[str, Devices], int] = {}
    for code, facts in enumerate(table.facts):
        if facts.kind == "deleted" or not facts.is_leaf or not (facts.bytes or facts.sharding):
            continue
        sharding = None if facts.kind == "stored" else facts.sharding  # a file is on no device
        devices, n_bytes = ("", frozenset((1,))), facts.bytes
        if sharding is None or len(sharding.shard_shape) != len(facts.shape or ()):
            name = HOST if sharding is None and facts.kind in ("numpy", "scalar") else NOWHERE
        elif not sharding.platform and platforms != {""}:  # its devices may be the same as others, or not
            name = NOWHERE
        elif sharding.platform == "cpu" and not platforms <= {"", "cpu"}:
            name, n_bytes = HOST, shard_bytes(facts) * sharding.n_devices
        else:
            name, n_bytes = sharding.memory, shard_bytes(facts)
            key = (sharding.platform, sharding.device_ids, sharding.n_devices)
            if key not in sets:
                ids = sharding.device_ids if sharding.platform else (sharding.n_devices,)
                sets[key] = sharding.platform, frozenset(ids)
            devices = sets[key]
        memory = found[name]
        if (name, devices) not in known:
            known[name, devices] = len(memory.groups)
            memory.groups.append(devices)
        memory.group[code], memory.bytes[code] = known[name, devices], n_bytes
    for memory in found.values():
        sizes = {size for platform, ids in memory.groups if not platform for size in ids}
        for i, (platform, ids) in enumerate(memory.groups if sizes else ()):
            covered = frozenset(size for size in sizes if size <= max(ids))
            memory.groups[i] = platform, ids if platform else covered
    in_the_middle = sorted([name for name in names - {DEFAULT, HOST, NOWHERE} if found[name].groups])
    return {name: found[name] for name in (DEFAULT, *in_the_middle, HOST, NOWHERE)}


def n_devices(devices: Devices) -> int:
    platform, ids = devices
    return len(ids) if platform else max(ids)


def shard_bytes(facts: Facts) -> int:
    """The bytes of the array on each of its devices."""
    shard_shape = () if facts.sharding is None else facts.sharding.shard_shape
    if shard_shape == facts.shape:
        return facts.bytes
    if not all(isinstance(size, int) for size in (*(facts.shape or ()), *shard_shape)):
        return 0  # a symbolic dimension has no size yet
    whole = math.prod(facts.shape or ())
    return facts.bytes * math.prod(shard_shape) // whole if whole else 0


def device_groups(groups: Sequence[Devices]) -> list[DeviceGroup]:
    """The devices of all groups; those that are in the same groups together."""
    member_of: dict[tuple[str, int], list[int]] = defaultdict(list)
    for which, (platform, ids) in enumerate(groups):
        for device in ids:
            member_of[platform, device].append(which)
    together: dict[tuple[int, ...], list[tuple[str, int]]] = defaultdict(list)
    for device, member in sorted(member_of.items()):
        together[tuple(member)].append(device)
    sizes = [0, *sorted([size for platform, size in member_of if not platform])]
    n_more = {size: size - before for before, size in pairwise(sizes)}
    device_groups = []
    for which, devices in together.items():
        platform, numbers = devices[0][0], [number for _, number in devices]
        n = len(devices) if platform else sum(n_more[size] for size in numbers)
        name = f"{platform}:{id_text(numbers)}" if platform else f"{n:,} of an abstract mesh"
        device_groups.append(DeviceGroup(which, n, name))
    return device_groups


# Bytes of every subtree on the devices, in one of their memories. An array that occurs several times counts once.

_FEW, _LARGE = 8, 1000  # rows


class Held(NamedTuple):
    """Bytes of every subtree on the devices; NaN where the devices hold none of it."""

    most: np.ndarray  # float64[n_rows]: on the fullest device
    least: np.ndarray  # float64[n_rows]: on the emptiest one that holds any of it
    n_devices: np.ndarray  # float64[n_rows]
    ends: dict[int, tuple[str, str]]  # the names of the emptiest and the fullest device, where they differ
    is_plain: bool = False  # the values are sums over the rows, so only those of the root are stored


_NOTHING = Held(np.zeros(1), np.zeros(1), np.zeros(1), {}, is_plain=True)


def held_in(table: TreeTable, memory: Memory) -> Held:
    if not memory.groups:
        return _NOTHING
    group = np.array(memory.group)[table.fact_codes]
    rows = (group >= 0).nonzero()[0]
    repeated, meeting = _repeats(table, rows)
    if len(memory.groups) == 1 and not len(repeated):
        total = np.array([sum(map(mul, memory.bytes, _n_rows(table)))], float)
        return Held(total, total, np.array([n_devices(memory.groups[0])]), {}, is_plain=True)
    n_bytes = whole_numbers(memory.bytes, len(table))[table.fact_codes]
    most, least, n_holding = np.full((3, len(table)), np.nan)
    most[rows] = least[rows] = n_bytes[rows]
    n_holding[rows] = np.array([n_devices(devices) for devices in memory.groups])[group[rows]]
    order = np.argsort(np.concatenate([rows, meeting]), kind="stable")
    group = np.concatenate([group[rows], group[repeated]])[order]
    n_bytes = np.concatenate([n_bytes[rows], -n_bytes[repeated]])[order]
    rows = np.concatenate([rows, meeting])[order]
    nodes = np.flatnonzero(table.end > np.arange(1, len(table) + 1))
    device_sets = device_groups(memory.groups)
    low, high = _Extreme(len(nodes), least=True), _Extreme(len(nodes), least=False)
    n_of_nodes = np.zeros(len(nodes))
    for which, devices in enumerate(device_sets):
        chosen = np.flatnonzero(np.isin(group, devices.groups))
        inner = rows[chosen]
        parents = _above(table, inner)
        positions = np.arange(len(nodes)) if parents is None else np.searchsorted(nodes, parents)
        before = np.concatenate([n_bytes[:1] * 0, np.cumsum(n_bytes[chosen])])
        first = np.searchsorted(inner, nodes[positions])
        last = np.searchsorted(inner, table.end[nodes[positions]])
        positions, totals = positions[last > first], (before[last] - before[first])[last > first]
        n_of_nodes[positions] += devices.n
        low.update(positions, totals, which, devices.n)
        high.update(positions, totals, which, devices.n)
    holds = n_of_nodes > 0
    most[nodes[holds]], least[nodes[holds]] = high.values[holds], low.values[holds]
    n_holding[nodes[holds]] = n_of_nodes[holds]
    ends = {
        int(nodes[i]): (low.name(int(i), device_sets), high.name(int(i), device_sets))
        for i in np.flatnonzero(holds & (low.values < high.values))
    }
    return Held(most, least, n_holding, ends)


def on_each_device(table: TreeTable, row: int, memory: Memory) -> list[tuple[DeviceGroup, float]]:
    """Bytes of a subtree on each device, the fullest first; devices that hold the same arrays are one entry."""
    rows = np.arange(row, table.end[row])
    rows = rows[np.unique(first_rows(table)[rows], return_index=True)[1]]
    group = np.array(memory.group)[table.fact_codes[rows]]
    n_bytes = whole_numbers(memory.bytes, len(table))[table.fact_codes[rows]]
    held = [(devices, np.isin(group, devices.groups)) for devices in device_groups(memory.groups)]
    totals = [(devices, float(n_bytes[is_own].sum())) for devices, is_own in held if is_own.any()]
    return sorted(totals, key=lambda pair: -pair[1])


class _Extreme:
    """The least or greatest total of any device for each node, and which devices have it."""

    def __init__(self, n: int, *, least: bool) -> None:
        self.values = np.full(n, np.inf if least else -np.inf)
        self._is_better = np.less if least else np.greater
        self._which, self._n = np.zeros((2, n), dtype=np.int64)

    def update(self, at: np.ndarray, totals: np.ndarray, which: int, n_devices: int) -> None:
        better = self._is_better(totals, self.values[at])
        self._n[at[totals == self.values[at]]] += n_devices
        at = at[better]
        self.values[at], self._which[at], self._n[at] = totals[better], which, n_devices

    def name(self, i: int, device_sets: Sequence[DeviceGroup]) -> str:
        first = device_sets[self._which[i]]
        rest = int(self._n[i]) - first.n
        return f"{first.name} and {rest:,} more" if rest else first.name


def _above(table: TreeTable, rows: np.ndarray) -> np.ndarray | None:
    """The ancestors of these rows; None if finding them costs more than visiting all nodes."""
    if len(rows) > _FEW or len(table) < _LARGE:
        return None
    nodes: set[int] = set()
    for row in rows.tolist():
        row = int(table.parent[row])
        while row >= 0 and row not in nodes:
            if len(nodes) > _FEW * _FEW:
                return None
            nodes.add(row)
            row = int(table.parent[row])
    return np.array(sorted(nodes), dtype=np.int64)


def first_rows(table: TreeTable) -> np.ndarray:
    """int[n_rows]: the first row that shows the same object."""
    ends, first = table.end.tolist(), list(range(len(table)))
    for row, notes in table.notes.items():
        for note in notes:
            if note.kind == "shared" and 0 <= note.row < row:
                n = min(ends[row] - row, ends[note.row] - note.row)
                first[row : row + n] = first[note.row : note.row + n]
    return np.array(first)


def _repeats(table: TreeTable, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows of arrays that occurred before, and for each the lowest common ancestor with that occurrence.

    Subtracting the repeated bytes there counts the array once in every subtree.
    """
    if not table.notes:
        return rows[:0], rows[:0]
    same = first_rows(table)[rows]
    order = np.argsort(same, kind="stable")
    rows, repeated = rows[order], np.flatnonzero(np.diff(same[order]) == 0)
    before, later = rows[repeated], rows[repeated + 1]
    meeting = table.parent[later].astype(np.int64)
    unresolved = np.arange(len(meeting))
    while len(unresolved := unresolved[meeting[unresolved] > before[unresolved]]) > _FEW:
        meeting[unresolved] = table.parent[meeting[unresolved]]
    for i in unresolved.tolist():  # in a deep tree, reading all rows between the two is faster than climbing
        between = slice(before[i] + 1, later[i] + 1)
        meeting[i] = table.parent[between][np.argmin(table.depth[between])]
    return later, meeting


# Device columns: bytes on the fullest device for every subtree, in each device memory and in host memory

_MOST_NAMED = 64  # groups of devices in a list


def device_columns(table: TreeTable) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """The columns devices, device_bytes, spread, host_bytes and one for each other memory; and texts for the headline:
    "on cpu:0", "32 B on each of 4 devices", "8 kB in host memory".
    """
    memories = memories_of(table)
    nowhere = memories.pop(NOWHERE)
    held = {name: held_in(table, memory) for name, memory in memories.items()}
    columns = [_spread(table, held[DEFAULT])]
    of_constant = {
        DEFAULT: ("device_bytes", "bytes/device", "Bytes on the fullest device"),
        HOST: ("host_bytes", "host", "Bytes in host memory"),
    }
    for name, memory in memories.items():
        of_other = f"{name}.bytes", name, f"Bytes in the memory {name} of the fullest device"
        label, title, help = of_constant.get(name, of_other)
        if held[name].is_plain:  # the view sums the leaves, so totals are neither stored nor sent
            n_bytes = whole_numbers(memory.bytes, len(table))
            columns.append(table.fact_column(label, n_bytes, title=title, format="bytes", rollup="sum", help=help))
        else:
            columns.append(Column(label, title, held[name].most, None, "bytes", "given", help))
    of_all, group = held[DEFAULT].n_devices, memories[DEFAULT].group
    n_devices = Column("devices", "devices", of_all, None, "count", "given")
    if held[DEFAULT].is_plain:
        own = np.array([of_all[0] if index >= 0 else np.nan for index in group], float)
        n_devices = table.fact_column("devices", own, format="count", rollup="max")
    return (n_devices, *columns), _headline(table, memories, held, nowhere)


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
        most, least, n_devices = [float(values[0]) for values in held[name][:3]]
        if not n_devices > 0:
            continue
        size = f"{at_least}{bytes_text(int(most))}"
        if name == HOST:
            lines.append(f"{size} in {HOST}")
            continue
        in_memory = f" in {name}" if name else ""
        if least < most:
            emptiest, fullest = held[name].ends[0]
            lines.append(f"{size}{in_memory} on the fullest of {n_devices:,.0f} devices, {fullest}")
            lines.append(f"{bytes_text(int(least))} on the emptiest, {emptiest}")
        elif n_devices > 1:
            lines.append(f"{size}{in_memory} on each of {n_devices:,.0f} devices")
        else:
            (only,) = device_groups(memory.groups)
            is_alone = len(memories) == 2 and not (memories[HOST].groups or nowhere.groups)
            lines.append(f"on {only.name}" if is_alone else f"{size}{in_memory} on {only.name}")
    if lines and nowhere.groups and (elsewhere := sum(map(mul, nowhere.bytes, _n_rows(table, is_first(table))))):
        lines.append(f"{at_least}{bytes_text(elsewhere)} on no JAX device")
    on_devices = [name for name, memory in memories.items() if memory.groups and name != HOST]
    return tuple(lines) if on_devices else ()


def bytes_by_device(table: TreeTable, row: int) -> list[tuple[str, str]]:
    """(devices, bytes of a subtree on each of them), the fullest first; empty if all devices hold the same."""
    if not table.columns["spread"][row]:
        return []
    pairs = []
    for name, memory in memories_of(table).items():
        totals = [] if name in (HOST, NOWHERE) else on_each_device(table, row, memory)
        if len({n_bytes for _, n_bytes in totals}) > 1:
            in_memory = f" in {name}" if name else ""
            pairs += [(f"{devices.name}{in_memory}", bytes_text(int(n))) for devices, n in totals[:_MOST_NAMED]]
            pairs += [("…", f"{len(totals) - _MOST_NAMED:,} more")] if len(totals) > _MOST_NAMED else []
    return pairs
