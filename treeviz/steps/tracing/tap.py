"""`tap`: record a tree of numbers from any place in a watched step."""

from __future__ import annotations

from typing import Any

import jax

from treeviz.steps.measure import source_of
from treeviz.steps.names import name_of_tap
from treeviz.steps.tracing.jax_private import now_seeing
from treeviz.tree.safe_repr import printable


def tap(tree: Any, name: str, *, cotangent: bool = False) -> Any:
    """Record the numbers of a tree under `name`, wherever in a watched step it is computed.

        hidden = tv.tap(jax.nn.relu(x @ w), "hidden")

    Does nothing in a step that is not watched, or with a JAX release in which none can be.

    Args:
      tree: Any pytree; leaves other than real or complex arrays have a row without a number.
      name: The name of the tree in the measurement, next to "grads". One that begins with "grads", "params" or
        "updates" becomes "tap grads", since such trees belong to the step's gradients.
      cotangent: Record the gradient with respect to `tree` in the backward pass, instead of its values in the forward
        pass.

    Returns:
      `tree`, unchanged. In a watched step each leaf is reduced to a few numbers where it is computed, which costs one
      pass over its elements.
    """
    see = now_seeing()
    if see is None:
        return tree
    name = printable(name)
    name = name_of_tap(name)
    if not cotangent:
        return see("tap", tree, name=name)
    return _with_tapped_cotangent(tree, name)


def _with_tapped_cotangent(tree: Any, name: str) -> Any:
    leaves, treedef = jax.tree.flatten(tree)
    places = [i for i, has in enumerate(source_of(tree, name).has_number) if has]
    # `backward` runs later, and may hold no tracer.
    known = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if isinstance(leaf, jax.Array) else leaf for leaf in leaves]

    def tree_with(values, leaves):
        leaves = list(leaves)
        for i, value in zip(places, values, strict=True):
            leaves[i] = value
        return jax.tree.unflatten(treedef, leaves)

    @jax.custom_vjp
    def identity(values):
        return values

    def backward(_, cotangents):
        see = now_seeing()
        if see is not None:
            tapped = jax.tree.leaves(see("tap", tree_with(cotangents, known), name=name))
            cotangents = [tapped[i] for i in places]
        return (cotangents,)

    identity.defvjp(lambda values: (values, None), backward)
    return tree_with(identity([leaves[i] for i in places]), leaves)
