"""penzai: arrays with named axes in one row, and variables, which are leaves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from treeviz.integrations import array_facts, describes_from
from treeviz.tree.keys import stored_attribute
from treeviz.tree.looks import Look
from treeviz.tree.quote import value_text, visible


@describes_from("penzai.core.named_axes", "NamedArray", "NamedArrayView")
def named_array(node: Any) -> Look:
    return Look("node", text=f"axes={_axes(node)}", static=(), inline=True)


@describes_from("penzai.core.variables", "LabeledVariable")
def variable(leaf: Any) -> Look:
    label, value = (stored_attribute(leaf, name) for name in ("label", "_raw_value"))
    array = stored_attribute(value, "data_array")
    text = f"label={value_text(label)}"
    if array_facts(array):
        return Look("variable", text=f"{text} axes={_axes(value)}", **array_facts(array))
    facts = array_facts(value)
    return Look("variable", text=text if facts else f"{text} value={value_text(value)}", **facts)


@describes_from("penzai.core.variables", "LabeledVariableValue")
def variable_value(node: Any) -> Look:
    label, metadata = (stored_attribute(node, name) for name in ("label", "metadata"))
    static = [("metadata", metadata)] if metadata else []
    return Look("node", text=f"label={value_text(label)}", static=static, inline=True)


@describes_from("penzai.nn.layer", "Layer")
def layer(node: Any) -> Look:
    return Look("module")


def _axes(array: Any) -> str:
    """ "(·, batch, features)": the axes of the data, in their order; a dot has no name."""
    n_axes = len(stored_attribute(array, "data_array").shape)
    named = stored_attribute(array, "named_axes")  # the last axes, in order
    if isinstance(named, dict):
        return _tuple(["·"] * (n_axes - len(named)) + [_name(name) for name in named])
    places = {place: name for name, place in stored_attribute(array, "data_axis_for_name").items()}
    return _tuple(_name(places[i]) if i in places else "·" for i in range(n_axes))


def _name(name: Any) -> str:
    return visible(name, 40) if type(name) is str else value_text(name, 40)


def _tuple(names: Iterable[str]) -> str:
    return f"({', '.join(names)})"
