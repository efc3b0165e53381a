"""A tree of specs beside another one that it is a prefix of: a mask, labels, axes, in the rows that get them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from treeviz.analysis.compare.aligned import Side
from treeviz.analysis.compare.difference import Difference
from treeviz.analysis.compare.map_mismatch import path_text
from treeviz.analysis.overlay.overlaid import spec_column
from treeviz.analysis.overlay.prefix import align_prefix
from treeviz.tree.column import Column
from treeviz.tree.facts import Note
from treeviz.tree.safe_repr import has_base, value_text
from treeviz.tree.table import TreeTable

_MOST_TOLD = 3
_SPECS = (bool, np.bool_, int, str, jax.sharding.PartitionSpec, jax.sharding.Sharding)


class Laid(NamedTuple):
    """The column of a prefix; or a note that says why a tree is none."""

    columns: tuple[Column, ...] = ()
    notes: tuple[Note, ...] = ()


def holds_specs(table: TreeTable, nodes: Sequence[Any]) -> bool:
    """Whether the leaves of a tree are bools, axes, labels, shardings, and so no arrays."""
    leaves = np.flatnonzero(table.is_leaf).tolist()
    return bool(leaves) and all(has_base(type(nodes[row]), *_SPECS) for row in leaves)


def lay_prefix(prefix: Any, side: Side, other: TreeTable) -> Laid:
    """Lay a tree of specs over another, as `treeviz.overlay` does.

    None is a spec where the others are axes or shardings, and has no leaf beside bools and labels.

    Args:
      other: The table of the prefix.
    """
    types = {other.facts[code].type for code in set(other.fact_codes[other.is_leaf].tolist())}
    none_is_spec = not types & {"bool", "str"}
    aligned = align_prefix(prefix, side, lambda node: none_is_spec and node is None)
    if aligned.mismatches:
        told = [
            str(Difference(path_text(path), *finding, tree=1, names=(other.name, side.table.name)))
            for _, path, finding in aligned.mismatches
        ]
        more = [f"{len(told) - _MOST_TOLD:,} more"] if len(told) > _MOST_TOLD else []
        text = f"{other.name} has neither the structure of {side.table.name} nor is a prefix of it: "
        return Laid(notes=(Note("info", text + "; ".join([*told[:_MOST_TOLD], *more])),))
    texts = [spec if has_base(type(spec), str) else value_text(spec, 60) for _, spec, _ in aligned.given]
    return Laid((spec_column(side.table, aligned.given, texts, f"{other.name}.spec", other.name, other.name),))
