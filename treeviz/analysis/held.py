"""What the devices hold of every subtree, in one of their memories. An array that occurs several times counts once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from treeviz.analysis.memories import Alike, Memory, devices_alike, n_devices
from treeviz.tree.table import TreeTable

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
