"""Flax: frozen dicts, boxes with axis names, Linen modules; NNX modules, Variables and states; and `nnx.jit` steps."""

from __future__ import annotations

import copy
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import jax
from jax.tree_util import DictKey, GetAttrKey

from treeviz.integrations import array_facts, describes_from
from treeviz.steps.compiles.forecast import argument_names, traces
from treeviz.steps.tracing.jitted import (
    CannotWatch,
    JittedStep,
    LibraryMoved,
    Make,
    around_wrapper,
    is_jitted,
    is_of,
    tidies,
    unwraps,
)
from treeviz.tree.describers import Description, by_key, by_wrapping_key
from treeviz.tree.keys import MISSING, stored_attribute, stored_attributes
from treeviz.tree.level import knows_child_keys
from treeviz.tree.opaque import arrays_inside
from treeviz.tree.runtime import PrivateName, why_missing
from treeviz.tree.text import class_attribute, class_name, guarded, has_base, is_any, is_function, mro, value_text

_NO_CONFIGURATION = ("parent", "name")
_PRIVATE = ("_pytree__", "_object__")
_HIDDEN = frozenset({"_pytree__state", "_object__state"})
_SETTINGS = ("hijax", "ref", "eager_sharding")  # of every Variable
_SHARDING = ("out_sharding", "sharding", "sharding_names")  # named differently by version
_PARTS = ("type", "value", "raw_value", "_trace_state")


# Before Flax 0.12 there is `VariableState`, and these are attributes of instances.
_ALL_STATIC = "an NNX module shows its children among its static fields too"
TO_WATCH = (PrivateName("flax.nnx:jit().jitted_fn", "the jax.jit inside nnx.jit is not found"),)
TO_DESCRIBE = (
    PrivateName(
        "flax.nnx:Module._pytree__nodes or flax.nnx:Object._object__nodes or flax.nnx:VariableState", _ALL_STATIC
    ),
    PrivateName("flax.nnx:Variable._var_metadata or flax.nnx:VariableState", "an nnx.Variable shows no metadata"),
    PrivateName("flax.nnx:FlatState._keys", "the values of an nnx.FlatState have no names"),
)
PRIVATE = (*TO_WATCH, *TO_DESCRIBE)


@describes_from("flax.core.frozen_dict", "FrozenDict")
def frozen_dict(node: Any) -> Description:
    return Description("dict", static=(), step=by_wrapping_key)


@describes_from("flax.core.meta", "AxisMetadata")
@describes_from("flax.linen.partitioning", "AxisMetadata")
def box(node: Any) -> Description:
    fields = vars(node) if hasattr(node, "__dict__") else {}
    names = fields.get("names", MISSING)
    text = "" if names is MISSING else f"names={value_text(names)}"
    static = [(name, value) for name, value in fields.items() if name not in ("names", "value") and value is not None]
    return Description("node", text=text, static=static, inline=True)


@describes_from("flax.linen", "Module")
def linen_module(leaf: Any) -> Description:
    names = [field.name for field in fields(leaf) if field.init and field.name not in _NO_CONFIGURATION]
    configuration = {name: stored_attribute(leaf, name) for name in names}
    is_bound = stored_attribute(leaf, "scope") not in (None, MISSING)
    return Description(
        text="a Linen module, bound to variables" if is_bound else "a Linen module: its arrays are what init() returns",
        static=[(name, value) for name, value in configuration.items() if value is not None],
        # The variables of a bound module are shown elsewhere; an array in a field is not.
        transparent=not arrays_inside(configuration).n_arrays,
    )


@describes_from("flax.nnx", "Object", "Pytree", "Module")
def nnx_module(node: Any) -> Description:
    attributes = object.__getattribute__(node, "__dict__")
    # Before Flax 0.12 modules are not pytrees; since then they are, unless they opt out.
    if not getattr(type(node), "_pytree__is_pytree", "_pytree__state" in attributes):
        return Description(text="an NNX object that is not a pytree: nnx.split gives its arrays", transparent=True)
    defaults = _defaults(type(node))
    static = [(name, value) for name, value in _static(attributes) if defaults.get(name, MISSING) is not value]
    return Description("module", static=static, hide=_HIDDEN)


@functools.lru_cache(maxsize=1024)
def _defaults(cls: type) -> dict[str, Any]:
    """The functions among the constructor's defaults; attributes that still hold them are not shown."""
    init = class_attribute(cls, "__init__")
    parameters = guarded(lambda: inspect.signature(init).parameters.values(), lambda _: ())
    return {parameter.name: parameter.default for parameter in parameters if is_function(type(parameter.default))}


def _static(attributes: dict[str, Any]) -> list[tuple[str, Any]]:
    is_child = attributes.get("_pytree__nodes") or attributes.get("_object__nodes") or {}
    names = [name for name in attributes if not name.startswith(_PRIVATE) and not is_child.get(name, False)]
    static = [(name, attributes[name]) for name in names]
    return sorted(static, key=lambda pair: pair[1] is None or callable(pair[1]))  # None and functions last


@describes_from("flax.nnx", "List")
def list_of_modules(node: Any) -> Description:
    # An element that is not data, such as a function, is static.
    static = [(f"[{name}]", value) for name, value in _static(vars(node)) if name != "_length"]
    return Description("list", static=static, hide=_HIDDEN, step=by_key)


@describes_from("flax.nnx", "Dict")
def dict_of_modules(node: Any) -> Description:
    return Description("dict", static=_static(vars(node)), hide=_HIDDEN)


@describes_from("flax.nnx", "Variable", "VariableState")
def nnx_variable(node: Any) -> Description:
    metadata, attributes = stored_attribute(node, "_var_metadata"), {}
    if type(metadata) is not dict:  # before Flax 0.12
        attributes = stored_attributes(node)
        metadata = {name: value for name, value in attributes.items() if name not in _PARTS}
    text, static = _text_and_static(metadata)
    if "raw_value" in attributes:  # not yet a pytree
        facts = array_facts(attributes["raw_value"])
        return Description("variable", text=text, static=static, **facts, transparent=True)
    kind = attributes.get("type")  # of a VariableState
    name = class_name(kind) if isinstance(kind, type) else ""
    # Since Flax 0.12, `.value` warns, and copies values that are not arrays.
    is_known = class_attribute(type(node), "get_raw_value") is not None
    step = (lambda _: ".get_raw_value()") if is_known else None
    return Description("node", type=name, text=text, static=static, step=step, inline=True)


def _text_and_static(metadata: dict[str, Any]) -> tuple[str, list[tuple[str, Any]]]:
    """The metadata shown as text, and the remaining metadata as static fields."""
    parts, static = [], []
    for name, value in metadata.items():
        if value is None or (type(value) is tuple and not value) or name in _SETTINGS:
            continue
        if name in _SHARDING:
            parts.append(f"sharding={value_text(value)}")
        elif name == "tag":
            parts.append(value_text(value))
        else:
            static.append((name, value))
    return " ".join(parts), static


@describes_from("flax.nnx.variablelib", "HijaxVariable")
def hijax_variable(leaf: Any) -> Description:
    kind, arrays = stored_attribute(leaf, "_var_type"), stored_attribute(leaf, "_leaves")
    name = class_name(kind) if isinstance(kind, type) else ""
    array = arrays[0] if type(arrays) is tuple and len(arrays) == 1 else None
    return Description("variable", type=name, **array_facts(array), transparent=True)


@describes_from("flax.nnx", "State")
def nnx_state(node: Any) -> Description:
    return Description("dict", static=(), step=by_wrapping_key)


@describes_from("flax.nnx", "FlatState")
def flat_state(node: Any) -> Description:
    keys = stored_attribute(node, "_keys")
    labels = ["/".join(map(str, path)) for path in keys] if is_any(type(keys), (tuple, list)) else None
    return Description("node", static=(), labels=labels)


@describes_from("flax.nnx", "GraphDef")
def graph_def(node: Any) -> Description:
    nodes, n_leaves = (stored_attribute(node, name) for name in ("nodes", "num_leaves"))
    if type(nodes) is not list:
        return Description("static", static=())
    static = guarded(lambda: [*_without_hash(node)], lambda _: [])
    return Description("static", text=f"{len(nodes):,} nodes, {value_text(n_leaves)} leaves", static=static)


def _without_hash(graphdef: Any) -> Iterator[tuple[str, Any]]:
    """The path in the model and the value of each static attribute that has no hash: `jit` refuses such a graphdef."""
    nodes, attributes = iter(graphdef.nodes), iter(graphdef.attributes)
    pending = [("", next(nodes).num_attributes)]  # the path of a node, and the number of its attributes still to come
    while pending:
        path, n = pending.pop()
        if n == 0:
            continue
        pending.append((path, n - 1))
        key, attribute = next(attributes)
        name = f"{path}{'.' * bool(path)}{key}" if isinstance(key, str) else f"{path}[{key!r}]"
        if hasattr(attribute, "value"):
            if guarded(lambda value=attribute.value: hash(value) is None, lambda _: True):
                yield name, attribute.value
        elif class_name(type(attribute)) == "NodeAttr":
            pending.append((name, getattr(next(nodes), "num_attributes", 0)))


@knows_child_keys
def child_keys(cls: type, aux: Any) -> list[Any] | None:
    """The keys of the children of Flax's nodes in a bare treedef."""
    if "_flax_dataclass" in cls.__dict__:
        return [GetAttrKey(field.name) for field in fields(cls) if field.metadata.get("pytree_node", True)]
    if _is_from(cls, "flax.core", "FrozenDict") or _is_from(cls, "flax.nnx", "State"):
        return [DictKey(key) for key in aux]
    if _is_from(cls, "flax.nnx", "Module"):
        return [GetAttrKey(name) for name in aux[0]]
    return [GetAttrKey("value")] if _is_from(cls, "flax.nnx", "Variable") else None


def _is_from(cls: type, module: str, name: str) -> bool:
    base = getattr(sys.modules.get(module), name, None)
    return base is not None and has_base(cls, base)


@unwraps("flax")
def unwrap_nnx_jit(step: Any) -> JittedStep | None:
    """Unwrap a step from `flax.nnx.jit`."""
    if getattr(getattr(step, "__code__", None), "co_name", "") == "cache_args_wrapper":
        raise CannotWatch(
            step,
            "the step is made by nnx.cached_partial, which has bound its model",
            f"Watch the step that it was given:\n    nnx.cached_partial(inspector.watch({step.__name__}), model, ...)",
        )
    if not is_of("flax", step):
        return None
    jitted: Any = getattr(step, "jitted_fn", None)
    if not is_jitted(jitted):
        if type(step) is type(sys.modules["flax.nnx"].jit(unwrap_nnx_jit)):
            raise LibraryMoved(why_missing(TO_WATCH))
        return None

    def with_other(make: Make) -> Any:
        other = copy.copy(step)
        function = jitted.__wrapped__
        if hasattr(function, "ctxtag"):  # the traced function finds its wrapper by it
            function = copy.copy(function)
            function.ctxtag = other
        other.jitted_fn = make(function)
        return other

    around = functools.partial(around_wrapper, with_other)
    return JittedStep(
        step, jitted, around, False, _clone, _tidy_path, _result_path, changes_arguments=True, same_arguments=True
    )


@traces
def trace_nnx_jit(step: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Raise an error that shows the conversion of a step from `nnx.jit`, since it changes its arguments in place."""
    if not is_of("flax", step) or not is_jitted(getattr(step, "jitted_fn", None)):
        return
    names = argument_names(step.fun, len(args))
    bases_of = [[base.__module__ for base in mro(type(value))] for value in args]
    are_nnx = [any(module.startswith("flax.nnx") for module in bases) for bases in bases_of]
    modules = [name for name, is_nnx in zip(names, are_nnx, strict=True) if is_nnx] or names[:1]
    others = ", ".join(name for name in names if name not in modules)
    modules_text = f"({', '.join(modules)}{',' if len(modules) == 1 else ''})"
    raise TypeError(
        f"forecast: `{step.__name__}` is made by nnx.jit, and changes its arguments in place. "
        "Pass a function of their state:\n"
        f"    graphdef, state = nnx.split({modules_text})\n"
        f"    def of_state(state{', ' if others else ''}{others}):\n"
        f"        {modules_text} = nnx.merge(graphdef, state)\n"
        f"        out = {step.__name__}.__wrapped__({', '.join(names)})\n"
        f"        return nnx.split({modules_text})[1], out\n"
        f"    tv.forecast(of_state, state{', ' if others else ''}{others}, out=0)"
    )


def _tidy_path(path: str) -> str:
    """The path of a parameter in its model, without NNX's `states[i]` and the `value` of a Variable."""
    return re.sub(r"^((?:\[\d+\])?)\.states\[\d+\]", r"\1", path).removesuffix(".value")


def _result_path(path: str) -> str:
    """The path in the step's result, which `nnx.jit` returns in [2], after the changed arguments."""
    return path.removeprefix("[2]")


tidies("flax.nnx", tidy_path=_tidy_path, result_path=_result_path)


def _clone(tree: Any, copy_array: Callable[[Any], Any]) -> Any:
    """A copy of a tree that contains NNX modules; shared modules stay shared."""
    nnx = sys.modules["flax.nnx"]
    graph, state = nnx.split(tree)
    return nnx.merge(graph, jax.tree.map(copy_array, state))
