"""Search key paths: one key, a word across keys, a glob on the end of a path.

Parents precede their children, so the state of a path is known at its children.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from treeviz.tree.column import Column
from treeviz.tree.facts import Facts, Note
from treeviz.tree.keys import Key, index_key
from treeviz.tree.query.parse import glob_test, path_pattern


class Table(Protocol):
    """The part of `treeviz.TreeTable` that a search reads."""

    @property
    def name(self) -> str: ...
    @property
    def depth(self) -> np.ndarray: ...
    @property
    def end(self) -> np.ndarray: ...
    @property
    def position(self) -> np.ndarray: ...
    @property
    def key_codes(self) -> np.ndarray: ...
    @property
    def keys(self) -> tuple[Key, ...]: ...
    @property
    def fact_codes(self) -> np.ndarray: ...
    @property
    def facts(self) -> tuple[Facts, ...]: ...
    @property
    def notes(self) -> Mapping[int, tuple[Note, ...]]: ...
    @property
    def columns(self) -> Mapping[str, Column]: ...
    def rolled(self, column: Column) -> np.ndarray: ...
    def __len__(self) -> int: ...
    def __getitem__(self, row: int) -> Any: ...


def by_key(table: Table, test: Callable[[Key], bool], root: bool) -> np.ndarray:
    """Whether the row's own key passes; each distinct key is tested once."""
    rows = np.fromiter((test(key) for key in table.keys), dtype=bool, count=len(table.keys))[table.key_codes]
    indexed = np.flatnonzero(table.key_codes == 0)
    positions, inverse = np.unique(table.position[indexed], return_inverse=True)
    rows[indexed] = np.array([test(index_key(position)) for position in positions.tolist()], dtype=bool)[inverse]
    rows[0] = root
    return rows


def in_path(table: Table, word: str) -> np.ndarray:
    """The rows whose key path contains the word: in one key, or across keys as joined by keystr or slashes."""
    name = table.name.lower()

    def in_key(key: Key) -> bool:
        return word in key.label.lower() or word in key.keystr.lower() or word in key.segment.lower()

    found = by_key(table, in_key, word in name)
    if len(word) > 1 and not found[0]:
        _add_spanning(table, word, found)
    hits = np.flatnonzero(found).tolist()
    covered = 0
    for row in hits:
        if row >= covered:
            covered = int(table.end[row])
            found[row:covered] = True
    return found


def _add_spanning(table: Table, word: str, found: np.ndarray) -> None:
    """Mark the rows where the word starts in one key and ends in a later one."""
    n_kept = len(word) - 1
    keys = [(key.keystr.lower(), "/" + key.segment.lower()) for key in table.keys]
    tails = [(table.name.lower()[-n_kept:],) * 2]
    depths, codes, positions = table.depth.tolist(), table.key_codes.tolist(), table.position.tolist()
    ends, own = table.end.tolist(), found.tolist()
    row = 1
    while row < len(depths):
        if own[row]:
            row = ends[row]
            continue
        depth, code = depths[row], codes[row]
        keystr, segment = keys[code] if code else (f"[{positions[row]}]", f"/{positions[row]}")
        before = tails[depth - 1]
        keystr, segment = before[0] + keystr, before[1] + segment
        if word in keystr or word in segment:
            found[row] = True
            row = ends[row]
            continue
        row += 1
        if ends[row - 1] > row:
            del tails[depth:]
            tails.append((keystr[-n_kept:], segment[-n_kept:]))


def on_path(table: Table, glob: str) -> np.ndarray:
    """bool[n_rows]: the rows whose key path ends with a match of a glob, such as `layers/*/w`."""
    return _on_path(table, *path_pattern(glob.lower()))


def _on_path(table: Table, pattern: list[str], from_root: bool) -> np.ndarray:
    """The rows whose path ends with a match of the pattern, segment by segment.

    Bit i of a row's state: the first i segments of the pattern match a path that ends at that row.
    """
    tests = [(1 << i, glob_test(segment)) for i, segment in enumerate(pattern) if segment != "**"]
    stay = sum(1 << i for i, segment in enumerate(pattern) if segment == "**")
    start, accept = _closed(1, stay), 1 << len(pattern)
    again = 0 if from_root else start
    moves_of: dict[int, list[int]] = {}  # by key code, and by minus the position for an index
    states = [start]  # of the previous row and of its ancestors
    found = [bool(start & accept)]
    rows = zip(table.depth.tolist(), table.key_codes.tolist(), table.position.tolist(), strict=True)
    next(rows)
    for depth, code, position in rows:
        moves = moves_of.get(code or -position)
        if moves is None:
            text = table.keys[code].segment if code else str(position)
            moves = moves_of[code or -position] = [
                sum(bit for bit, test in tests if test(segment)) for segment in text.split("/")
            ]
        state = states[depth - 1]
        for move in moves:
            state = (state & move) << 1 | state & stay | again
            if stay:
                state = _closed(state, stay)
        found.append(state & accept != 0)
        del states[depth:]
        states.append(state)
    return np.array(found)


def _closed(state: int, stay: int) -> int:
    """The state that also skips every `**` it has reached."""
    while (more := state | (state & stay) << 1) != state:
        state = more
    return state
