"""Sizes: leaves, elements and bytes of every subtree, and a headline for the tree."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from treeviz.tree.column import Column
from treeviz.tree.numbers import bytes_text, count_text, percent_text
from treeviz.tree.table import TreeTable

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
