"""coordax: fields and named arrays, each in one row with its dimensions and coordinates."""

from __future__ import annotations

from typing import Any

from treeviz.integrations import describes_from
from treeviz.tree.describers import Description
from treeviz.tree.keys import stored_attribute
from treeviz.tree.text import class_name


@describes_from("coordax", "Field")
def field(node: Any) -> Description:
    texts = []
    for name, axis in stored_attribute(node, "_axes").items():
        ticks = stored_attribute(axis, "ticks")
        ends = f" {ticks[0]} to {ticks[-1]}" if hasattr(ticks, "shape") and len(ticks) else ""
        texts.append(f"{name}: {class_name(type(axis))}{ends}")
    return Description("node", text=", ".join(texts), static=(), inline=True)


@describes_from("coordax.named_axes", "NamedArray")
def named_array(node: Any) -> Description:
    return Description("node", axes=[name or "" for name in stored_attribute(node, "_dims")], static=(), inline=True)
