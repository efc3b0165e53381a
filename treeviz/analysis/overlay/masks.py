"""Masks of bools and labels, as optax takes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from treeviz.analysis.compare.aligned import Side
from treeviz.analysis.compare.nodes import Finding, Openers
from treeviz.analysis.overlay.overlaid import Judged, Pairs
from treeviz.analysis.overlay.prefix import Aligned, Mismatch, align_prefix
from treeviz.tree.facts import Note
from treeviz.tree.numbers import bytes_text
from treeviz.tree.safe_repr import class_name, error_text, guarded, value_text
from treeviz.tree.table import TreeTable

_MOST_LABELS = 6


class Labels:
    """A label for each leaf, as of `optax.partition`; None has no leaf in them."""

    name = "labels"
    none_is_spec = False

    def __init__(self) -> None:
        self._is_module = False

    def align(self, prefix: Any, side: Side, is_leaf: Callable[[Any], bool]) -> Aligned:
        if callable(prefix):
            self._is_module = not guarded(lambda: Openers()(prefix) is None, lambda _: False)  # that is a tree
        if callable(prefix) and not self._is_module:
            try:
                prefix = prefix(side.nodes[0])
            except Exception as error:
                return Aligned(
                    [], [Mismatch(0, None, ("error", f"the function of the tree raised {error_text(error)}", "", ""))]
                )
        return align_prefix(prefix, side, is_leaf)

    def text(self, spec: Any) -> str:
        return spec if type(spec) is str else value_text(spec, 60)

    def wrong(self, spec: Any) -> Finding | None:
        is_hashable = guarded(lambda: hash(spec) is not None, lambda _: False)
        return None if is_hashable else ("spec", _text(spec), "a label that can be hashed", "")

    def judge(self, table: TreeTable, pairs: Pairs) -> Judged:
        texts = np.array([self.text(spec) for spec, _ in pairs.distinct], object)
        counts = Counter(texts[pairs.of].tolist() if len(texts) else ())
        told = [f"{label} {n:,}" for label, n in counts.most_common(_MOST_LABELS)]
        more = [f"{len(counts) - len(told):,} more labels"] if len(counts) > len(told) else []
        called = Note("warning", "optax.partition calls a module that can be called: give it lambda _: labels")
        notes: dict[int, tuple[Note, ...]] = {0: (called,)} if self._is_module else {}
        return Judged([], (), (", ".join([*told, *more]),) if told else (), notes)


class Mask(Labels):
    """True or False for each leaf, as of `optax.masked`."""

    name = "mask"

    def text(self, spec: Any) -> str:
        return super().text(bool(spec) if isinstance(spec, np.bool_) else spec)

    def wrong(self, spec: Any) -> Finding | None:
        if isinstance(spec, bool | np.bool_):
            return None
        hint = "Equinox asks it for each leaf: jax.tree.map(it, tree)" if callable(spec) else ""
        return "spec", _text(spec), "True or False", hint

    def judge(self, table: TreeTable, pairs: Pairs) -> Judged:
        n_bytes = [float(facts.bytes) if spec else 0.0 for spec, facts in pairs.distinct]
        is_true = np.array([bool(spec) for spec, _ in pairs.distinct] + [False])
        n, n_leaves = int(np.count_nonzero(is_true[pairs.of])), int(np.count_nonzero(table.is_leaf))
        total = float(np.array([*n_bytes, 0.0])[pairs.of].sum())
        column = pairs.column(
            table, n_bytes, "masked_bytes", "bytes of True", format="bytes", rollup="sum",
            help="Bytes of the arrays whose mask is True",
        )  # fmt: skip
        return Judged([], (column,), (f"{n:,} of {n_leaves:,} leaves are True, {bytes_text(total)}",), {})


def _text(spec: Any) -> str:
    return f"{class_name(type(spec))} {value_text(spec, 40)}"
