"""Notes of differences travel as patterns, and come back as they were."""

from __future__ import annotations

import json

import numpy as np

import treeviz
from treeviz.tree.facts import Note
from treeviz.tree.text import count_text, number_text
from treeviz.views.html.payload import pack_notes, pack_patterns


def layers(*, scale: float = 1.0) -> dict:
    random = np.random.default_rng(0)
    shapes = [(4, 4), (7,), (2, 3, 2)]
    tree = {f"layer{i}": [scale * random.normal(size=shape) for shape in shapes] for i in range(12)}
    return {**tree, "same": np.ones(3), "steps": 3 if scale == 1 else 4, "text": "a {0} b" if scale == 1 else '"1"'}


def differing() -> treeviz.TreeDiff:
    return treeviz.diff(layers(), layers(scale=1.5))


def texts_of(view: treeviz.TreeDiff, row: int, name: str) -> str:
    """The text of a cell, written from the table alone."""
    column = view.table.columns[name]
    value = column.values[row]
    return str(value) if column.format == "label" else (number_text if column.format == "number" else count_text)(value)


def test_the_notes_of_every_difference_come_back_from_their_patterns():
    view = differing()
    arrays: list[np.ndarray] = []
    add = lambda array: arrays.append(array) or len(arrays) - 1
    (codes, *patterns), bare = pack_patterns(view.table, view.table.columns.values(), add)
    assert len(patterns) == 3 and len(bare) == 36, "one for each number of axes; three differences stay whole"
    for code, (parts, *sent) in enumerate(patterns, 1):
        rows = np.flatnonzero(arrays[codes] == code).tolist()
        columns = [arrays[texts].astype(str).tolist() if isinstance(texts, int) else texts.split(" ") for texts in sent]
        assert all(len(column) == len(rows) for column in columns)
        for i, at in enumerate(rows):
            slots = [columns[slot][i] if isinstance(slot, int) else texts_of(view, at, slot) for slot in parts[1::2]]
            texts = [parts[0], *(text for pair in zip(slots, parts[2::2], strict=True) for text in pair)]
            assert [
                Note(kind, text, to, tuple(map(tuple, details)), *more)
                for kind, text, to, details, *more in json.loads("".join(texts))
            ] == list(view.table.notes[at])
    assert all(note.text == "" and note.kind == "differs" and note.sign for notes in bare.values() for note in notes)
    sent_notes = pack_notes(((at, bare.get(at, notes)) for at, notes in view.table.notes.items()), len(view.table), add)
    assert len(sent_notes) - 1 == 1 + len(view.table.notes) - len(bare), "those without texts are all alike"


def test_what_a_column_shows_is_not_sent_again():
    view = differing()
    (_, *patterns), _ = pack_patterns(view.table, view.table.columns.values(), lambda array: 0)
    for parts, *sent in patterns:
        assert {"left", "right", "delta"} <= {slot for slot in parts[1::2] if isinstance(slot, str)}
        assert sent and {*map(type, sent)} == {int}, "numbers: where it differs most, and no value"
