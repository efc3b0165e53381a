"""What is said in each row of two trees in one table: notes, and columns of words and numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

import numpy as np

from treeviz.analysis.compare.aligned import NONE
from treeviz.analysis.compare.difference import Difference
from treeviz.analysis.compare.tree_diff import Found
from treeviz.analysis.compare.values import gap_details
from treeviz.tree.column import Column
from treeviz.tree.facts import Note
from treeviz.tree.forks import computed_once

_MOST_LAYERS = 4  # in a line of text
SAME = "same"  # in the column "diff", and the kind of rows that stand for others


class DifferenceNotes(Mapping[int, tuple[Note, ...]]):
    """A note for each difference, by row, written when it is asked for.

    Args:
      rows: The row of the table of each difference.
      details: All that is known of values, for a page, whose badge is the kind.
    """

    def __init__(self, found: Found, rows: Sequence[int], *, details: bool) -> None:
        self._found, self._details = found, details
        self._several, self._rows = found.n_trees > 1, rows
        self._written: dict[int, tuple[Note, ...]] = {}

    @computed_once
    def _of(self) -> dict[int, list[int]]:
        """The differences of each row."""
        of: dict[int, list[int]] = {}
        for i, row in enumerate(self._rows):
            of.setdefault(row, []).append(i)
        return of

    def __len__(self) -> int:
        return len({*self._rows})

    def __iter__(self) -> Iterator[int]:
        return iter(dict.fromkeys(self._rows))

    def __contains__(self, row: object) -> bool:
        return row in self._of

    def __getitem__(self, row: int) -> tuple[Note, ...]:
        if row not in self._written:
            self._written[row] = tuple(map(self._note, self._of[row]))
        return self._written[row]

    def _note(self, i: int) -> Note:
        difference = self._found.differences[i]
        text = difference.text if self._details else difference.note
        if self._several:
            text = f"tree {difference.tree}: {difference if difference.kind == 'extra' else text}"
        if not self._details:
            return Note("differs", text, brief="" if self._several else difference.brief)
        has_gap = difference.kind in ("value", "NaN") and not self._several
        gap = self._found.gaps.get(self._found.rows[i]) if has_gap else None
        more = gap_details(gap, difference.kind, difference.names) if gap is not None else ()
        more = (*more, ("to convert the first", difference.code)) if difference.code else more
        return Note("differs", text, details=more, severity=difference.kind, sign=difference.kind)


def difference_columns(
    found: Found, rows: Sequence[int], shown: np.ndarray, words: np.ndarray, *, details: bool
) -> list[Column]:
    """What differs, as words; what stands on both sides; and where values differ, by how much.

    Args:
      rows: The row of the table of each difference.
      shown: int[n]: the row of the table of each aligned row.
      words: What stands in a row without a difference: "same", or "".
      details: All that is known of each of several trees, and not the kinds alone.
    """
    n, differences = len(words), found.differences
    columns = [_kinds(found, rows, shown, words)]
    if found.n_trees > 1:
        about = "What differs from the first tree"
        of_tree = (lambda each: str(each) if each.kind == "extra" else each.text) if details else lambda each: each.kind
        for tree in sorted({each.tree for each in differences}):
            of = [(row, of_tree(each)) for row, each in zip(rows, differences, strict=True) if each.tree == tree]
            columns.append(_texts(f"tree{tree}", f"tree {tree}", of, n, about))
    elif differences:
        for side, name in zip(("left", "right"), Difference.names, strict=True):
            of = zip(rows, map(attrgetter(side), differences), strict=True)
            columns.append(_texts(side, name, of, n, "What stands there"))
    if found.layers:
        of = ((int(shown[at]), _layers_text(layers, details)) for at, layers in found.layers.items())
        columns.append(_texts("layers", "layers", of, n, "The layers that differ, of an array of all layers"))
    return [*columns, *_numbers(found, shown, n)] if found.gaps else columns


def _layers_text(layers: Sequence[int], details: bool) -> str:
    cut = layers if details or len(layers) <= _MOST_LAYERS else layers[:_MOST_LAYERS]
    return ", ".join(map(str, cut)) + (f" … {len(layers) - len(cut):,} more" if len(cut) < len(layers) else "")


def _numbers(found: Found, shown: np.ndarray, n: int) -> list[Column]:
    first, of = Difference.names
    delta, relative, count = np.full(n, np.nan), np.full(n, np.nan), np.full(n, np.nan)
    gaps = found.gaps.numbers()
    rows, is_outside = shown[gaps.rows], gaps.n_outside > 0
    count[rows] = gaps.n_outside + gaps.n_nan
    delta[rows[is_outside]], relative[rows[is_outside]] = gaps.max_abs[is_outside], gaps.max_rel[is_outside]
    return [
        Column("delta", "max |Δ|", delta, format="number", rollup="max", help=f"The greatest |{first} - {of}|"),
        Column(
            "relative", "max |Δ| ÷ |x|", relative, format="number", rollup="max",
            help=f"The greatest |{first} - {of}| ÷ |{of}|",
        ),
        Column("differ", "differ", count, format="count", rollup="sum", help="Elements outside of the tolerance"),
    ]  # fmt: skip


def _kinds(found: Found, rows: Sequence[int], shown: np.ndarray, words: np.ndarray) -> Column:
    """The kinds of differences of each row; of what one tree alone has, those above it."""

    def write() -> list[str]:
        texts, aligned = words.tolist(), found.aligned
        kinds = dict.fromkeys(zip(rows, found.kinds, strict=True))
        for row, text in _joined(kinds, ", ").items():
            texts[row] = text
        alone = np.flatnonzero((aligned.left == NONE) | (aligned.right == NONE))
        for row, above in zip(shown[alone].tolist(), shown[aligned.parent[alone]].tolist(), strict=True):
            texts[row] = texts[row] or texts[above]
        return texts

    return _label("diff", "diff", write, "What kind of difference, or none")


def _texts(name: str, title: str, texts: Iterable[tuple[int, str]], n: int, about: str) -> Column:
    def write() -> list[str]:
        every = [""] * n
        for row, text in _joined(texts, " · ").items():
            every[row] = text
        return every

    return _label(name, title, write, about)


def _joined(texts: Iterable[tuple[int, str]], by: str) -> dict[int, str]:
    """The texts of each row as one."""
    joined: dict[int, str] = {}
    for row, text in texts:
        before = joined.get(row)
        joined[row] = f"{before}{by}{text}" if before and text else before or text
    return joined


class _Late(Column):
    """A column of labels that are written when they are asked for: there may be 100,000."""

    @computed_once
    def _coded(self) -> tuple[list[str], np.ndarray]:
        texts = self.__dict__["_write"]()
        codes = {text: code for code, text in enumerate(dict.fromkeys(texts))}
        return [*codes], np.fromiter(map(codes.__getitem__, texts), np.int32, len(texts))

    @computed_once
    def levels(self) -> list[str]:  # type: ignore[override]
        return self._coded[0]

    @computed_once
    def codes(self) -> np.ndarray:  # type: ignore[override]
        return self._coded[1]


def _label(name: str, title: str, write: Callable[[], list[str]], about: str) -> Column:
    column = Column(name, title, (), help=about)
    del column.__dict__["levels"], column.__dict__["codes"]
    column.__dict__["_write"] = write
    object.__setattr__(column, "__class__", _Late)
    return column
