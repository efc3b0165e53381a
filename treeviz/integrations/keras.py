"""Keras 3: variables by path; models, layers and optimizers as their variables; and the steps of `model.fit`."""

from __future__ import annotations

import sys
import types
from typing import Any

from treeviz.integrations import array_facts, describes_from, opens
from treeviz.steps.tracing.jitted import tidies_of
from treeviz.tree.describers import Description
from treeviz.tree.keys import stored_attribute
from treeviz.tree.text import has_base


@describes_from("keras", "Variable")
def variable(leaf: Any) -> Description:
    array, path = stored_attribute(leaf, "_value"), stored_attribute(leaf, "_path")
    text = path if leaf.trainable else f"{path}, not trainable"
    facts = array_facts(array) or {"shape": leaf.shape, "dtype": str(leaf.dtype)}  # an array of another backend
    return Description("variable", text=text, transparent=True, **facts)


@describes_from("keras", "Layer", "Optimizer", "Metric")
def with_variables(leaf: Any) -> Description:
    variables = leaf.variables
    n_fixed = sum(not each.trainable for each in variables)
    text = f"{len(variables):,} variables" + (f", {n_fixed:,} not trainable" if n_fixed else "")
    static = [(each.path, stored_attribute(each, "_value")) for each in variables]
    return Description(text=f"{text}: see .variables", static=static, transparent=True)


@opens
def variables_of(tree: Any, name: str) -> tuple[Any, str] | None:
    """The list of the variables of a model or optimizer that is shown alone."""
    keras = sys.modules["keras"]
    is_known = has_base(type(tree), keras.Layer, keras.Optimizer)
    return (tree.variables, f"{name}.variables") if is_known else None


@tidies_of
def by_path(function: Any) -> dict[str, Any] | None:
    """The paths of trainable variables, in place of their positions, in the step of `model.fit`."""
    model: Any = function.__self__ if isinstance(function, types.MethodType) else None
    if not has_base(type(model), sys.modules["keras"].Model):
        return None
    paths = [each.path for each in model.trainable_variables]
    if len({*paths}) < len(paths):
        return None
    keystrs = {f"[{i}]": "".join(f"[{part!r}]" for part in path.split("/")) for i, path in enumerate(paths)}
    return {"tidy_path": lambda path: keystrs.get(path, path)}
