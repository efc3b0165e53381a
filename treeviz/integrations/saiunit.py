"""saiunit: quantities, each in one row with its unit."""

from __future__ import annotations

from typing import Any

from treeviz.integrations import describes_from
from treeviz.tree.describers import Description
from treeviz.tree.keys import stored_attribute


@describes_from("saiunit", "Quantity")
def quantity(node: Any) -> Description:
    return Description("node", text=str(stored_attribute(node, "_unit")), static=(), inline=True)
