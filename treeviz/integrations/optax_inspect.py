"""Optax: gradients measured within the optimizer, their numbers kept in its state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from treeviz.analysis.gradients import LIGHT, Measurement, measure

if TYPE_CHECKING:
    import optax


class InspectState(NamedTuple):
    """What `inspect_gradients` keeps: some words for each leaf of what it saw last."""

    measurement: Measurement


def inspect_gradients(name: str = "grads", *, statistics: tuple[str, ...] = LIGHT) -> optax.GradientTransformation:
    """Measure what passes here in a chain of optax transformations, and change nothing.

        optimizer = optax.chain(
            tv.inspect_gradients("grads"), optax.clip_by_global_norm(1.0), tv.inspect_gradients("clipped"),
            optax.adam(1e-3), tv.inspect_gradients("updates"),
        )
        params, opt_state = update(params, opt_state, batch)  # jitted, as ever
        for measurement in find_measurements(opt_state): ...

    The numbers live in the optimizer's state, so no output is added to the step. Before the first update they are
    those of gradients that are all zero.

    Args:
      name: What the measurement is called; give each place in a chain its own.
      statistics: Of `treeviz.analysis.gradients`: `LIGHT`, `FULL` or `HISTOGRAM`.
    """
    import optax

    def init(params: Any) -> Any:
        return InspectState(measure(statistics=statistics, **{name: jax.tree.map(_zeros_like, params)}))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del state, params
        return updates, InspectState(measure(statistics=statistics, **{name: updates}))

    return optax.GradientTransformation(init, update)


def _zeros_like(leaf: Any) -> Any:
    import jax.numpy as jnp

    return jnp.zeros_like(leaf) if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.number) else leaf


def find_measurements(opt_state: Any) -> list[Measurement]:
    """The measurements in an optimizer's state, or in any other pytree, in the order of the chain."""
    leaves = jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, Measurement))
    return [leaf for leaf in leaves if isinstance(leaf, Measurement)]
