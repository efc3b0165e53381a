"""penzai: arrays with named axes, shown in one row; variables, which are leaves; structs and layers."""

from __future__ import annotations

import sys
from typing import Any

from jax.tree_util import GetAttrKey

from treeviz.integrations import array_facts, describes_from
from treeviz.tree.describers import Description
from treeviz.tree.keys import stored_attribute
from treeviz.tree.level import knows_child_keys
from treeviz.tree.text import has_base, value_text


@describes_from("penzai.core.named_axes", "NamedArray", "NamedArrayView")
def named_array(node: Any) -> Description:
    return Description("node", axes=_axes(node), static=(), inline=True)


@describes_from("penzai.core.variables", "LabeledVariable")
def variable(leaf: Any) -> Description:
    label, value = (stored_attribute(leaf, name) for name in ("label", "_raw_value"))
    array = stored_attribute(value, "data_array")
    text = f"label={value_text(label)}"
    if array_facts(array):
        return Description("variable", text=text, axes=_axes(value), **array_facts(array))
    facts = array_facts(value)
    return Description("variable", text=text if facts else f"{text} value={value_text(value)}", **facts)


@describes_from("penzai.core.variables", "LabeledVariableValue")
def variable_value(node: Any) -> Description:
    label, metadata = (stored_attribute(node, name) for name in ("label", "metadata"))
    static = [("metadata", metadata)] if metadata else []
    return Description("node", text=f"label={value_text(label)}", static=static, inline=True)


@knows_child_keys
def child_keys(cls: type, aux: Any) -> list[Any] | None:
    """The keys of the children of a penzai struct in a bare treedef."""
    structs = sys.modules.get("penzai.core.struct")
    is_struct = structs is not None and has_base(cls, structs.Struct)
    return [GetAttrKey(name) for name in aux.child_field_names] if is_struct else None


@describes_from("penzai.core.struct", "Struct")
def struct(node: Any) -> Description:
    return _struct(node, "node")


@describes_from("penzai.nn.layer", "Layer")
def layer(node: Any) -> Description:
    return _struct(node, "module")


def _struct(node: Any, kind: str) -> Description:
    # The treedef of a struct without fields has empty lists of names and values.
    return Description(kind, static=None if type(node).__dataclass_fields__ else ())


def _axes(array: Any) -> list[str]:
    """The names of the data's axes, in order; "" for an axis without a name."""
    n_axes = len(stored_attribute(array, "data_array").shape)
    named = stored_attribute(array, "named_axes")  # the last axes, in order
    is_plain = isinstance(named, dict)
    axes = {} if is_plain else stored_attribute(array, "data_axis_for_name")
    name_of_axis = dict(enumerate(named, n_axes - len(named))) if is_plain else {i: name for name, i in axes.items()}
    names = [name_of_axis.get(i, "") for i in range(n_axes)]
    return [name if type(name) is str else value_text(name, 40) for name in names]
