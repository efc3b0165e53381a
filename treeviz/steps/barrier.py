"""A barrier between a step and what is measured of it, so that measuring changes nothing of how the step is computed.

XLA must fuse nothing of the one into the other; and on several devices, where it is free to choose how results lie on
them, nothing that is measured may have a say.
"""

from __future__ import annotations

import warnings
from typing import Any

import jax
from jax import lax
from jax.custom_batching import custom_vmap

try:
    from jaxlib.mlir.dialects.stablehlo import CustomCallOp
except ImportError:
    CustomCallOp = None
try:  # used since jax 0.7
    from jaxlib.mlir.dialects.sdy import PropagationBarrierOp, PropagationDirection
except ImportError:
    PropagationBarrierOp = PropagationDirection = None

_unfused = lax.optimization_barrier
if jax.__version_info__ < (0, 5):  # it has no batching rule
    _unfused = custom_vmap(lax.optimization_barrier)

    @_unfused.def_vmap
    def _(_, in_batched, x):
        return _unfused(x), in_batched[0]


def barrier(tree: Any) -> Any:
    """The same arrays, for what is measured of them. Traceable, and works under every transformation."""
    tree = _unfused(tree)
    if jax.device_count() == 1:
        return tree
    if _forward_p is None:
        _warn()
        return tree
    return jax.tree.map(_forward_p.bind, tree)


def _forward() -> Any:
    """An identity, as a primitive: where a result lies does not depend on who uses it. None if JAX has moved."""
    try:
        from jax.extend.core import Primitive
        from jax.interpreters import ad, batching, mlir

        forward_p = Primitive("treeviz_forward")
        forward_p.def_impl(lambda x: x)
        forward_p.def_abstract_eval(lambda aval: aval)
        ad.primitive_jvps[forward_p] = lambda primals, tangents: (forward_p.bind(*primals), tangents[0])
        batching.primitive_batchers[forward_p] = lambda operands, dims: (forward_p.bind(*operands), dims[0])
        mlir.register_lowering(forward_p, _lowered)
        if not hasattr(jax, "shard_map"):  # jax 0.4: there must be a rule for axes over which a result is replicated
            from jax.experimental import shard_map

            shard_map.register_check(forward_p)(lambda mesh, replicated: replicated)  # type: ignore[attr-defined]
            shard_map.register_norewrite(forward_p)  # type: ignore[attr-defined]
    except (ImportError, AttributeError):
        return None
    return forward_p


def _lowered(ctx: Any, x: Any) -> list[Any]:
    """In a program of several devices, but for a `shard_map`, whose results lie as it says."""
    if getattr(ctx.module_context.axis_context, "num_devices", 1) == 1:
        return [x]
    if getattr(jax.config, "jax_use_shardy_partitioner", False):  # the default since jax 0.7
        if PropagationBarrierOp is not None and PropagationDirection is not None:
            return [PropagationBarrierOp(x, PropagationDirection.FORWARD).result]
    elif CustomCallOp is not None:
        return [CustomCallOp([x.type], [x], call_target_name="ShardBarrierFrom").result]
    _warn()
    return [x]


def _warn() -> None:
    warnings.warn(
        f"jax {jax.__version__} has no barrier for shardings that treeviz knows: on several devices, results of a step "
        "that is measured may lie elsewhere than without.", RuntimeWarning, stacklevel=3
    )  # fmt: skip


_forward_p = _forward()
