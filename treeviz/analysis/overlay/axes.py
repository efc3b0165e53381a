"""The axes of `jax.vmap`: the spec of each argument or result, in range, and of one size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from treeviz.analysis.compare.aligned import Side
from treeviz.analysis.compare.nodes import Finding
from treeviz.analysis.overlay.overlaid import Judged, Pairs, array_shape, no_array
from treeviz.analysis.overlay.prefix import Aligned, Mismatch, align_prefix
from treeviz.tree.facts import Facts
from treeviz.tree.safe_repr import aval_text, class_name, value_text
from treeviz.tree.table import TreeTable


class InAxes:
    """`in_axes` over the tuple of arguments."""

    name = "in_axes"
    none_is_spec = True

    def align(self, prefix: Any, side: Side, is_leaf: Callable[[Any], bool]) -> Aligned:
        prefix = tuple(prefix) if type(prefix) is list else prefix  # as JAX does (jax#2367)
        is_known = prefix is None or type(prefix) in (int, tuple)
        aligned = align_prefix(prefix, side, is_leaf) if is_known else Aligned([], [])
        at_root = next((i for i, each in enumerate(aligned.mismatches) if each.path is None), None)
        if is_known and at_root is None:
            return aligned
        wrapped = align_prefix((prefix,), side, is_leaf)
        if wrapped.mismatches and at_root is not None:
            return aligned
        hint = "" if wrapped.mismatches else f"did you mean in_axes=({value_text(prefix, 60)},)?"
        finding = ("spec", f"a {class_name(type(prefix))}", "an int, None or a tuple of specs")
        if at_root is not None:
            finding = aligned.mismatches[at_root].finding[:-1]
        return Aligned(wrapped.given if hint else [], [Mismatch(0, None, (*finding, hint))])

    def text(self, spec: Any) -> str:
        return value_text(spec, 60)

    def wrong(self, spec: Any) -> Finding | None:
        if spec is None or type(spec) is int:
            return None
        return "spec", f"{class_name(type(spec))} {value_text(spec, 40)}", "an int or None", ""

    def judge(self, table: TreeTable, pairs: Pairs) -> Judged:
        answers = [_size(spec, facts) for spec, facts in pairs.distinct]
        sizes = np.array([size for size, _ in answers] + [np.nan])[pairs.of]
        findings = pairs.findings(table, [finding for _, finding in answers])
        is_mapped = np.array([spec is not None for spec, _ in pairs.distinct] + [False])[pairs.of]
        n_leaves, n_mapped = int(np.count_nonzero(table.is_leaf)), int(np.count_nonzero(is_mapped))
        if not n_mapped and len(pairs.rows) == n_leaves:
            what = "every spec is None" if n_leaves else "there is no leaf"
            findings.append((0, ("spec", what, "vmap maps at least one leaf", "")))
        odd, headline = _odd_sizes(table, pairs, sizes)
        column = pairs.column(
            table, [size for size, _ in answers], "axis_size", "size", format="count", help="Of the axis that is mapped"
        )
        mapped = f"{n_mapped:,} of {n_leaves:,} {'leaf' if n_leaves == 1 else 'leaves'} mapped"
        return Judged([*findings, *odd], (column,), (mapped, *headline), {})


class OutAxes(InAxes):
    """`out_axes` over the result of one example."""

    name = "out_axes"

    def align(self, prefix: Any, side: Side, is_leaf: Callable[[Any], bool]) -> Aligned:
        return align_prefix(prefix, side, is_leaf)

    def judge(self, table: TreeTable, pairs: Pairs) -> Judged:
        findings = pairs.findings(table, [_size(spec, facts, n_more=1)[1] for spec, facts in pairs.distinct])
        is_mapped = np.array([spec is not None for spec, _ in pairs.distinct] + [False])[pairs.of]
        n_leaves = int(np.count_nonzero(table.is_leaf))
        text = f"{int(np.count_nonzero(is_mapped)):,} of {n_leaves:,} {'leaf' if n_leaves == 1 else 'leaves'} mapped"
        return Judged(findings, (), (text,), {})


def _size(spec: int | None, facts: Facts, n_more: int = 0) -> tuple[float, Finding | None]:
    """The size of the axis of an array, or why it has none; of a result, that has `n_more` axes when it is mapped."""
    if spec is None:
        return np.nan, None
    shape = array_shape(facts)
    if shape is None:
        return np.nan, ("spec", value_text(spec, 20), no_array(facts), "")
    n = len(shape) + n_more
    if not -n <= spec < n:
        leaf = aval_text(shape, facts.dtype) if facts.dtype else facts.type
        return np.nan, (
            "axis",
            value_text(spec, 20),
            leaf,
            f"{'mapped, ' * n_more}it has {n} {'axis' if n == 1 else 'axes'}",
        )
    size = None if n_more else shape[spec]
    return (float(size) if isinstance(size, int) else np.nan), None  # a symbolic size is text


def _odd_sizes(table: TreeTable, pairs: Pairs, sizes: np.ndarray) -> tuple[list[tuple[int, Finding]], tuple[str, ...]]:
    """The leaves whose mapped axis has another size than most, or than the first if none are most."""
    mapped = np.flatnonzero(~np.isnan(sizes))
    counts = Counter(sizes[mapped].astype(np.int64).tolist())
    if not counts:
        return [], ()
    (most, n), *others = counts.most_common()
    if not others:
        return [], (f"size {most:,}",)
    example = table[int(pairs.rows[mapped[np.argmax(sizes[mapped] == most)]])].keystr or "the root"
    hint = f"{n:,} leaves have {most:,}, such as {example}" if n > 1 else f"{example} has {most:,}"
    of_pairs: list[Finding | None] = [None] * len(pairs.distinct)
    for i in mapped[sizes[mapped] != most].tolist():
        of = int(pairs.of[i])
        of_pairs[of] = "size", f"axis {pairs.distinct[of][0]} has {int(sizes[i]):,}", "", hint
    findings = pairs.findings(table, of_pairs)
    return findings, (f"sizes {', '.join(f'{size:,} ({n:,})' for size, n in counts.most_common(4))}",)
