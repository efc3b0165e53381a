"""Optax: what a mask took out of a state."""

from __future__ import annotations

from typing import Any

from treeviz.integrations import describes_from
from treeviz.tree.looks import Look


@describes_from("optax", "MaskedNode")
def masked_node(node: Any) -> Look:
    return Look("namedtuple", text="masked out", static=())
