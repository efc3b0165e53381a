"""PyTreeClass: models whose attributes are all children, and values that are frozen."""

from __future__ import annotations

from typing import Any

from treeviz.integrations import describes_from
from treeviz.tree.keys import stored_attribute
from treeviz.tree.looks import Look
from treeviz.tree.static import static_text


@describes_from("pytreeclass", "TreeClass")
def tree_class(node: Any) -> Look:
    return Look("module", static=())


@describes_from("pytreeclass._src.tree_mask", "_FrozenBase")
def frozen(node: Any) -> Look:
    return Look("static", type="frozen", text=f"#{static_text(stored_attribute(node, '__wrapped__'))}", static=())
