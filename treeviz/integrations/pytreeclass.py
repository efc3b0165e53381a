"""PyTreeClass: models whose attributes are all children, and frozen values."""

from __future__ import annotations

from typing import Any

from treeviz.integrations import describes_from
from treeviz.tree.describers import Description
from treeviz.tree.keys import stored_attribute
from treeviz.tree.opaque import static_text


@describes_from("pytreeclass", "TreeClass")
def tree_class(node: Any) -> Description:
    return Description("module", static=())


@describes_from("pytreeclass._src.tree_mask", "_FrozenBase")
def frozen(node: Any) -> Description:
    text = f"#{static_text(stored_attribute(node, '__wrapped__'))}"
    return Description("static", type="frozen", text=text, static=())
