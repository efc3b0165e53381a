"""What is said in each row of two trees in one table: notes, and columns of words and numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from treeviz.analysis.compare.aligned import NONE
from treeviz.analysis.compare.tree_diff import Found
from treeviz.analysis.compare.values import gap_details
from treeviz.tree.column import Column
from treeviz.tree.facts import Note

_MOST_LAYERS = 4  # in a line of text
SAME = "same"  # in the column "diff", and the kind of rows that stand for others


def notes_of(found: Found, shown: np.ndarray, *, details: bool) -> dict[int, tuple[Note, ...]]:
    """A note for each difference, by row.

    Args:
      shown: int[n]: the row of the table of each aligned row.
      details: All that is known of values, for a page, whose badge is the kind.
    """
    notes: dict[int, list[Note]] = defaultdict(list)
    several = len({each.tree for each in found.differences}) > 1
    for at, difference in zip(found.rows, found.differences, strict=True):
        text = difference.text if details else difference.note
        if several:
            text = f"tree {difference.tree}: {difference if difference.kind == 'extra' else text}"
        note = Note("differs", text)
        if details:
            gap = found.gaps.get(at) if difference.kind in ("value", "NaN") and not several else None
            more = gap_details(gap, difference.kind, difference.names) if gap is not None else ()
            more = (*more, ("to convert the first", difference.code)) if difference.code else more
            note = note._replace(details=more, severity=difference.kind, sign=difference.kind)
        notes[int(shown[at])].append(note)
    return {row: tuple(each) for row, each in notes.items()}


def difference_columns(found: Found, shown: np.ndarray, words: np.ndarray, *, details: bool) -> list[Column]:
    """What differs, as words; what stands on both sides; and where values differ, by how much.

    Args:
      words: What stands in a row without a difference: "same", or "".
      details: All that is known of each of several trees, and not the kinds alone.
    """
    n = len(words)
    columns = [_kinds(found, shown, words)]
    trees = sorted({each.tree for each in found.differences})
    if len(trees) > 1:
        of_tree = (lambda each: str(each) if each.kind == "extra" else each.text) if details else lambda each: each.kind
        columns += [_texts(found, shown, n, f"tree{tree}", f"tree {tree}", trees=[tree], of=of_tree) for tree in trees]
    elif found.differences:
        names = found.differences[0].names
        columns += [
            _texts(found, shown, n, "left", names[0], of=lambda each: each.left),
            _texts(found, shown, n, "right", names[1], of=lambda each: each.right),
        ]
    if found.layers:
        texts = np.full(n, "", object)
        for at, layers in found.layers.items():
            more = len(layers) - _MOST_LAYERS
            cut = layers if details or more <= 0 else layers[:_MOST_LAYERS]
            texts[shown[at]] = ", ".join(map(str, cut)) + (f" … {more:,} more" if len(cut) < len(layers) else "")
        columns.append(_label("layers", "layers", texts, "The layers that differ, of an array of all layers"))
    if not found.gaps:
        return columns
    delta, relative, count = np.full(n, np.nan), np.full(n, np.nan), np.full(n, np.nan)
    for at, gap in found.gaps.items():
        row = shown[at]
        count[row] = gap.n_outside + gap.n_nan
        if gap.n_outside:
            delta[row], relative[row] = gap.max_abs, gap.max_rel
    return [
        *columns,
        Column("delta", "max |Δ|", delta, format="number", rollup="max", help="The greatest |left - right|"),
        Column(
            "relative", "max |Δ| ÷ |x|", relative, format="number", rollup="max",
            help="The greatest |left - right| / |right|",
        ),
        Column("differ", "differ", count, format="count", rollup="sum", help="Elements outside of the tolerance"),
    ]  # fmt: skip


def _kinds(found: Found, shown: np.ndarray, words: np.ndarray) -> Column:
    """The kinds of differences of each row; of what one tree alone has, those above it."""
    kinds: dict[int, dict[str, None]] = defaultdict(dict)
    for at, difference in zip(found.rows, found.differences, strict=True):
        kinds[int(shown[at])][difference.kind] = None
    texts, parent = words.copy(), found.aligned.parent
    for row, each in kinds.items():
        texts[row] = ", ".join(each)
    for at in np.flatnonzero((found.aligned.left == NONE) | (found.aligned.right == NONE)).tolist():
        texts[shown[at]] = texts[shown[at]] or texts[shown[parent[at]]]
    return _label("diff", "diff", texts, "The kinds of differences, or that there is none")


def _texts(found: Found, shown: np.ndarray, n: int, name: str, title: str, *, of, trees: Iterable[int] = ()) -> Column:
    texts: dict[int, list[str]] = defaultdict(list)
    for at, difference in zip(found.rows, found.differences, strict=True):
        if not trees or difference.tree in trees:
            texts[int(shown[at])].append(of(difference))
    every = np.full(n, "", object)
    for row, each in texts.items():
        every[row] = " · ".join(filter(None, each))
    return _label(name, title, every, "What stands there" if not trees else "What differs from the first tree")


def _label(name: str, title: str, texts: np.ndarray, about: str) -> Column:
    levels: dict[str, int] = {}
    codes = np.array([levels.setdefault(text, len(levels)) for text in texts.tolist()], np.int32)
    return Column(name, title, [*levels], codes, help=about)
