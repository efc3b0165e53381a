"""Sizes: leaves, parameters and bytes of every subtree, and a headline for the tree."""

from __future__ import annotations

from collections import Counter

import numpy as np

from treeviz.tree.column import Column
from treeviz.tree.numbers import bytes_text, count_text, percent_text
from treeviz.tree.table import TreeTable


def size_columns(table: TreeTable) -> tuple[Column, ...]:
    """The columns parameters, bytes and leaves, which roll up as sums; a shared leaf counts at each occurrence."""
    return (
        _sum_column(table, "parameters", "count", "Elements of arrays; Python scalars are none"),
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
    """Sum up a tree: "148 leaves", "124.4 M parameters", "497.8 MB", "float32 100 %".

    Args:
      table: With its `size_columns`.
    """
    unique = is_first(table)
    at_least = "≥ " if is_cut(table) else ""

    def total(name: str, nouns: tuple[str, str]) -> str:
        values = table.columns[name].values
        write = bytes_text if name == "bytes" else count_text
        everything, once = (write(int(part.sum())) for part in (values, values[unique]))
        text = f"{at_least}{everything} {nouns[everything != '1']}".strip()
        return text if once == everything else f"{text} ({at_least}{once} unique)"

    parts = [total("leaves", ("leaf", "leaves"))]
    if table.columns["bytes"].values.any():
        parts += [total("parameters", ("parameter", "parameters")), total("bytes", ("", ""))]
        parts += [] if at_least else _dtypes(table)
    return tuple(parts)


def _dtypes(table: TreeTable) -> list[str]:
    """The dtypes that hold most of the parameters, with their share."""
    n_rows = np.bincount(table.fact_codes, minlength=len(table.facts))
    counts: Counter[str] = Counter()
    for facts, n in zip(table.facts, n_rows.tolist(), strict=True):
        if facts.dtype and facts.parameters:
            counts[facts.dtype] += facts.parameters * n
    whole = sum(counts.values())
    texts = [f"{dtype} {percent_text(n, whole)}" for dtype, n in counts.most_common(3)]
    return [", ".join(texts) + (", …" if len(counts) > 3 else "")] if texts else []
