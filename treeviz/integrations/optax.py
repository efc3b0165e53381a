"""Optax: masked nodes; and gradients measured within the optimizer, their numbers kept in its state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from treeviz.integrations import describes_from
from treeviz.steps.statistics import LIGHT
from treeviz.tree.describers import Description

if TYPE_CHECKING:
    import optax

    from treeviz.steps.measure import Measurement


@describes_from("optax", "MaskedNode")
def masked_node(node: Any) -> Description:
    return Description("namedtuple", text="masked out", static=())


class InspectState(NamedTuple):
    """The state of `inspect_gradients`: the measurement of its newest update."""

    measurement: Measurement


def inspect_gradients(name: str = "grads", *, statistics: tuple[str, ...] = LIGHT) -> optax.GradientTransformation:
    """An optax transformation that measures the updates that pass through it, and returns them unchanged.

        optimizer = optax.chain(
            tv.inspect_gradients("grads"), optax.clip_by_global_norm(1.0), tv.inspect_gradients("clipped"),
            optax.adam(1e-3), tv.inspect_gradients("updates"),
        )
        params, opt_state = update(params, opt_state, batch)  # jitted as before
        inspector.record(opt_state)  # of tv.GradientInspector()

    The numbers are kept in the optimizer's state, a few uint32 per leaf, so no output is added to the step. The cost is
    one pass over the updates. Before the first update they are those of zero gradients.

    Args:
      name: The name of the measurement; give each place in a chain its own.
      statistics: `treeviz.LIGHT`, `FULL` or `HISTOGRAM`.

    Raises:
      ModuleNotFoundError: optax is not installed.
    """
    import jax.numpy as jnp
    import optax

    from treeviz.steps.measure import measure  # imported here, to describe a state without it

    def zeros_like(leaf: Any) -> Any:
        return jnp.zeros_like(leaf) if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.number) else leaf

    def init(params: Any) -> Any:
        return InspectState(measure(statistics=statistics, **{name: jax.tree.map(zeros_like, params)}))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del state, params
        return updates, InspectState(measure(statistics=statistics, **{name: updates}))

    return optax.GradientTransformation(init, update)
