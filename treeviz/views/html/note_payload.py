"""Pack notes for the front end: those of differences that differ in numbers alone share a pattern."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from treeviz.tree.column import Column
from treeviz.tree.facts import Note
from treeviz.tree.table import TreeTable
from treeviz.views.text.cells import WRITE

_LEAST = 6  # notes that share a pattern
_MOST = 1_000  # rows whose notes are taken apart, which takes 50 microseconds each
_NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?")

Notes = tuple[Note, ...]


def pack_notes(notes: Iterable[tuple[int, Notes]], n_rows: int, add: Callable[[np.ndarray], int]) -> list:
    """The buffer with the code of each row's notes, 0 for none, and the notes by their codes from 1 on.

    Thousands of rows may have the same: that a part of each was left out.
    """
    codes: dict[Notes, int] = {}
    of_rows = np.zeros(n_rows, np.int64)
    for row, each in notes:
        of_rows[row] = codes.setdefault(tuple(each), len(codes) + 1)
    return [add(of_rows), *map(_sent, codes)] if codes else []


def _sent(notes: Notes) -> list:
    return [note[: 6 if note.severity else 4] for note in notes]


def pack_patterns(
    table: TreeTable, columns: Iterable[Column], add: Callable[[np.ndarray], int]
) -> tuple[list, dict[int, Notes]]:
    """The notes of differences by patterns; and what is sent of these rows as their notes, without texts.

    The first part is the buffer with the number of each row's pattern, 0 for none, and the patterns from 1 on. A
    pattern is the JSON of the notes of its rows in parts; what stands between two parts is the text of a row in a
    column, by the column's name, or is sent, by the index of a list of texts, one for each row.
    """
    rows = [row for row, notes in table.notes.items() if all(note.kind == "differs" for note in notes)][:_MOST]
    alike: dict[tuple[str, ...], list[tuple[int, list[str]]]] = {}
    for row in rows:
        text = json.dumps(_sent(table.notes[row]), separators=(",", ":"), ensure_ascii=False)
        alike.setdefault(tuple(_NUMBER.split(text)), []).append((row, _NUMBER.findall(text)))
    texts_of = [(column.name, _texts(table, column)) for column in columns]
    codes, patterns = np.zeros(len(table), np.int64), []
    for parts, members in alike.items():
        if len({tuple(numbers) for _, numbers in members}) >= _LEAST:
            members.sort()
            patterns.append(_pattern(parts, members, texts_of))
            codes[[row for row, _ in members]] = len(patterns)
    bare = {row: tuple([note._replace(text="", details=()) for note in table.notes[row]]) for row in rows if codes[row]}
    return ([add(codes), *patterns] if patterns else []), bare


def _pattern(
    parts: Sequence[str],
    members: Sequence[tuple[int, list[str]]],
    texts_of: Sequence[tuple[str, Callable[[int], str]]],
) -> list[Any]:
    rows, numbers = zip(*members, strict=True)
    known: dict[tuple[str, ...], str | int] = {}
    sent: list[str] = []
    pattern: list[str | int] = [parts[0]]
    for texts, after in zip(zip(*numbers, strict=True), parts[1:], strict=True):
        if len({*texts}) == 1:
            pattern[-1] += texts[0] + after
            continue
        if texts not in known:
            name = next((name for name, of in texts_of if all(map(str.__eq__, map(of, rows), texts))), None)
            known[texts] = len(sent) if name is None else name
            if name is None:
                sent.append(" ".join(texts))
        pattern += [known[texts], after]
    return [pattern, *sent]


def _texts(table: TreeTable, column: Column) -> Callable[[int], str]:
    """The text of a row in a column, as the front end writes it; "" where that may be another one."""
    if column.format == "label":
        return lambda row: str(column.levels[row if column.codes is None else column.codes[row]])
    if column.format not in WRITE or column.bad is not None:
        return lambda row: ""
    write, values = WRITE[column.format], table.rolled(column)
    return lambda row: write(values[row]) if np.isfinite(values[row]) else ""
