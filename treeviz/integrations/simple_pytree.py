"""simple_pytree: the static fields of a Pytree, which are in a mapping."""

from __future__ import annotations

from typing import Any

from treeviz.integrations import describes_from
from treeviz.tree.describers import Description
from treeviz.tree.keys import stored_attributes


@describes_from("simple_pytree", "Pytree")
def pytree(node: Any) -> Description:
    names = type(node)._pytree__static_fields
    return Description(
        static=[(name, value) for name, value in stored_attributes(node).items() if name in names and name[0] != "_"]
    )
