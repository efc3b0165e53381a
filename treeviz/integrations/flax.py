"""Flax: frozen dicts, and arrays in boxes that name their axes (`Partitioned`, `LogicallyPartitioned`)."""

from __future__ import annotations

from typing import Any

from treeviz.integrations import describes_from
from treeviz.tree.keys import MISSING
from treeviz.tree.looks import Look, by_key
from treeviz.tree.quote import value_text


@describes_from("flax.core.frozen_dict", "FrozenDict")
def frozen_dict(node: Any) -> Look:
    return Look("dict", static=(), step=by_key)


@describes_from("flax.core.meta", "AxisMetadata")
@describes_from("flax.linen.partitioning", "AxisMetadata")
def box(node: Any) -> Look:
    fields = vars(node) if hasattr(node, "__dict__") else {}
    names = fields.get("names", MISSING)
    text = "" if names is MISSING else f"names={value_text(names)}"
    static = [(name, value) for name, value in fields.items() if name not in ("names", "value") and value is not None]
    return Look("node", text=text, static=static, inline=True)
