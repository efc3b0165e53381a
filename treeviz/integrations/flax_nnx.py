"""Flax NNX: modules with their attributes, Variables in one row with their kind, states and graph definitions."""

from __future__ import annotations

from typing import Any

from treeviz.integrations import array_facts, describes_from
from treeviz.tree.keys import stored_attribute
from treeviz.tree.looks import Look, by_key
from treeviz.tree.quote import class_name, mro, value_text

_PRIVATE = ("_pytree__", "_object__")
_HIDDEN = frozenset({"_pytree__state", "_object__state"})
_SETTINGS = ("hijax", "ref", "eager_sharding")  # of every Variable
_SHARDING = ("out_sharding", "sharding", "sharding_names")  # the versions do not agree
_PARTS = ("type", "value", "raw_value", "_trace_state")


@describes_from("flax.nnx", "Object", "Pytree", "Module")
def module(node: Any) -> Look:
    attributes = object.__getattribute__(node, "__dict__")
    # Before Flax 0.12 no module is a pytree, since then only those that say so are none.
    if not getattr(type(node), "_pytree__is_pytree", "_pytree__state" in attributes):
        return Look(text="an NNX object that is no pytree: nnx.split gives its arrays", transparent=True)
    return Look("module", static=_static(attributes), hide=_HIDDEN)


def _static(attributes: dict[str, Any]) -> list[tuple[str, Any]]:
    is_child = attributes.get("_pytree__nodes") or attributes.get("_object__nodes") or {}
    static = [
        (name, value)
        for name, value in attributes.items()
        if not name.startswith(_PRIVATE) and not is_child.get(name, False)
    ]
    static.sort(key=lambda pair: pair[1] is None or callable(pair[1]))  # what says most first
    return static


@describes_from("flax.nnx", "List")
def list_of_modules(node: Any) -> Look:
    # an element that is no data, such as a function, is static
    static = [(f"[{name}]", value) for name, value in _static(vars(node)) if name != "_length"]
    return Look("list", static=static, hide=_HIDDEN, step=by_key)


@describes_from("flax.nnx", "Dict")
def dict_of_modules(node: Any) -> Look:
    return Look("dict", static=_static(vars(node)), hide=_HIDDEN)


@describes_from("flax.nnx", "Variable", "VariableState")
def variable(node: Any) -> Look:
    metadata, attributes = stored_attribute(node, "_var_metadata"), {}
    if type(metadata) is not dict:  # before Flax 0.12
        attributes = object.__getattribute__(node, "__dict__")
        metadata = {name: value for name, value in attributes.items() if name not in _PARTS}
    text, static = _words(metadata)
    if "raw_value" in attributes:  # no pytree yet
        return Look("variable", text=text, static=static, **array_facts(attributes["raw_value"]), transparent=True)
    kind = attributes.get("type")  # of a VariableState
    name = class_name(kind) if isinstance(kind, type) else ""
    return Look("node", type=name, text=text, static=static, step=_raw_value(type(node)), inline=True)


def _words(metadata: dict[str, Any]) -> tuple[str, list[tuple[str, Any]]]:
    """What is said in the text, and the rest."""
    words, static = [], []
    for name, value in metadata.items():
        if value is None or (type(value) is tuple and not value) or name in _SETTINGS:
            continue
        if name in _SHARDING:
            words.append(f"sharding={value_text(value)}")
        elif name == "tag":
            words.append(value_text(value))
        else:
            static.append((name, value))
    return " ".join(words), static


def _raw_value(cls: type):
    # `.value` warns since Flax 0.12, and gives a copy of what is no array
    known = any("get_raw_value" in base.__dict__ for base in mro(cls))
    return (lambda _: ".get_raw_value()") if known else None


@describes_from("flax.nnx.variablelib", "HijaxVariable")
def hijax_variable(leaf: Any) -> Look:
    kind, arrays = stored_attribute(leaf, "_var_type"), stored_attribute(leaf, "_leaves")
    name = class_name(kind) if isinstance(kind, type) else ""
    array = arrays[0] if type(arrays) is tuple and len(arrays) == 1 else None
    return Look("variable", type=name, **array_facts(array), transparent=True)


@describes_from("flax.nnx", "State")
def state(node: Any) -> Look:
    return Look("dict", static=(), step=by_key)


@describes_from("flax.nnx", "FlatState")
def flat_state(node: Any) -> Look:
    return Look("node", static=(), labels=["/".join(map(str, path)) for path in stored_attribute(node, "_keys")])


@describes_from("flax.nnx", "GraphDef")
def graph_def(node: Any) -> Look:
    nodes, n_leaves = (stored_attribute(node, name) for name in ("nodes", "num_leaves"))
    if type(nodes) is not list:
        return Look("static", static=())
    return Look("static", text=f"{len(nodes):,} nodes, {value_text(n_leaves)} leaves", static=())
