"""haliax: named arrays, each in one row with the names of its axes."""

from __future__ import annotations

from typing import Any

from treeviz.integrations import describes_from
from treeviz.tree.describers import Description
from treeviz.tree.keys import stored_attribute


@describes_from("haliax", "NamedArray")
def named_array(node: Any) -> Description:
    return Description("node", axes=[axis.name for axis in stored_attribute(node, "axes")], static=(), inline=True)
