"""`jax.example_libraries.optimizers`, also in `numpyro.optim`: the state by the names of the parameters."""

from __future__ import annotations

from typing import Any

from treeviz.integrations import describes_from
from treeviz.tree.describers import Description
from treeviz.tree.walk import walk


@describes_from("jax.example_libraries.optimizers", "OptimizerState")
def optimizer_state(node: Any) -> Description:
    labels = [row.path for row in walk(node.tree_def).leaves]  # "layers/0/w"; "" of a single parameter
    return Description("namedtuple", static=(), labels=labels if any(labels) else None, inline=True)
