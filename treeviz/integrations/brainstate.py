"""brainstate: states with their values, as leaves and as nodes; their mappings; and modules, which are no pytrees."""

from __future__ import annotations

from typing import Any

from treeviz.integrations import array_facts, describes_from
from treeviz.tree.describers import Description
from treeviz.tree.keys import stored_attribute
from treeviz.tree.text import class_name, value_text


@describes_from("brainstate", "State")
def state(leaf: Any) -> Description:
    value, tag = stored_attribute(leaf, "_value"), stored_attribute(leaf, "tag")
    facts, unit = array_facts(value), stored_attribute(value, "_unit")
    parts = [f"tag={value_text(tag)}"] if type(tag) is str else []
    if hasattr(unit, "dim"):  # a quantity of saiunit
        facts = array_facts(stored_attribute(value, "_mantissa"))
        parts.append(str(unit))
    return Description(
        "variable", text=" ".join(parts if facts else [*parts, value_text(value)]), transparent=True, **facts
    )


@describes_from("brainstate", "TreefyState")
def treefy_state(node: Any) -> Description:
    kind, tag = stored_attribute(node, "type"), stored_attribute(node, "tag")
    name = class_name(kind) if isinstance(kind, type) else ""
    text = f"tag={value_text(tag)}" if type(tag) is str else ""
    return Description("node", type=name, text=text, static=(), inline=True)


@describes_from("brainstate.util", "PrettyDict")
def mapping(node: Any) -> Description:
    return Description("dict", static=())


@describes_from("brainstate.graph", "Node")
def module(leaf: Any) -> Description:
    return Description(text="not a pytree: .states() returns its states", transparent=True)
