"""A step that receives gradients as an argument, from another jitted function, and updates the parameters with them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from treeviz.steps.tracing.jax_private import now_seeing
from treeviz.steps.tracing.jitted import CannotWatch, JittedStep


def receiving(step: JittedStep, name: str) -> JittedStep:
    """The same step; what its parameter `name` gets is measured as the gradients of its parameters.

    Raises:
      CannotWatch: It has no such parameter.
    """
    names = inspect.signature(step.jitted).parameters
    if name not in names:
        raise CannotWatch(step.step, f"gradients={name!r}: the step has no such parameter; it has {', '.join(names)}")
    around = step.around
    return step._replace(around=lambda make: around(lambda function: make(_sown(function, name))), receives=True)


def _sown(function: Callable, name: str) -> Callable:
    @functools.wraps(function)
    def sown(*args, **kwargs):
        see = now_seeing()
        if see is None:
            return function(*args, **kwargs)
        call = inspect.signature(function).bind(*args, **kwargs)
        grads = call.arguments[name]
        params = like(grads, (value for other, value in call.arguments.items() if other != name))
        if params is None:
            raise ValueError(f"no argument holds parameters of the structure and the shapes of {name}")
        call.arguments[name] = see("grads", grads, params)
        return function(*call.args, **call.kwargs)

    return sown


def like(tree: Any, others: Iterable[Any]) -> Any:
    """The outermost subtree of some trees that has the structure and the shapes of a tree; None if there is none."""
    wanted, queue = _layout(tree), list(others)
    for other in queue:  # the loop appends to the queue
        if _layout(other) == wanted:
            return other
        children = jax.tree.leaves(other, is_leaf=lambda node, other=other: node is not other)
        queue += [child for child in children if child is not other]
    return None


def _layout(tree: Any) -> tuple:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [np.shape(leaf) if hasattr(leaf, "shape") else None for leaf in leaves]


def receives(function: Callable, args: tuple, kwargs: Mapping[str, Any], returned: Collection[int]) -> str | None:
    """The name of the parameter that gets gradients; None if there is none.

    Args:
      returned: The ids of the arrays that steps with gradients have returned.
    """
    try:
        arguments = inspect.signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return None
    for name, value in arguments.items():
        arrays = [leaf for leaf in jax.tree.leaves(value) if isinstance(leaf, jax.Array)]
        others = (other for other_name, other in arguments.items() if other_name != name)
        if arrays and all(id(array) in returned for array in arrays) and like(value, others) is not None:
            return name
    return None
