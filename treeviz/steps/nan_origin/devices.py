"""The body of a `shard_map`, run operation by operation on its devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from treeviz.steps.nan_origin.nonfinite import is_inexact
from treeviz.steps.tracing.reap_shard_map import shard_map_like, specs_of, varying_axes

Device = tuple[tuple[str, int], ...]  # (("data", 3), ("model", 0))


class Devices:
    """Runs parts of the body of a `shard_map`, collectives included.

    Outside, a value of the body has a further leading axis, over the devices on which it may differ.
    """

    def __init__(self, eqn: Any) -> None:
        self._eqn, self._params = eqn, eqn.params

    def enter(self, operands: Sequence[Any], avals: Sequence[Any]) -> list[Any]:
        """The operands of the `shard_map` as values of its body."""
        in_specs = tuple(specs_of(self._params, "in", self._eqn.invars))
        split = shard_map_like(self._params, _with_axis, in_specs, tuple(map(self._spec, avals)))
        return list(jax.jit(split)(*operands))

    def constant(self, value: Any, aval: Any) -> Any:
        """A constant or literal as a value of the body."""
        array = jnp.asarray(value, getattr(aval, "dtype", None))
        return jnp.broadcast_to(array, (int(np.prod(self._sizes(aval))), *array.shape))

    def on_each(self, function: Callable, in_avals: Sequence[Any], out_avals: Sequence[Any]) -> Callable:
        """A part of the body, `function`, as a function of values with the axis of devices."""

        def on_device(*operands):
            return _with_axis(*function(*(x[0] for x in operands)))

        in_specs, out_specs = (tuple(map(self._spec, avals)) for avals in (in_avals, out_avals))
        return shard_map_like(self._params, on_device, in_specs, out_specs)

    def key_of(self, eqn: Any) -> Any:
        """Equal for equations that compute the same from values of equal types."""
        key = (id(self._eqn), eqn.primitive, *(tuple(v.aval for v in vs) for vs in (eqn.invars, eqn.outvars)))
        try:
            key = (*key, frozenset(eqn.params.items()))
            hash(key)
        except TypeError:  # a parameter cannot be hashed
            return id(eqn)
        return key

    def first_bad(
        self, operands: Sequence[Any], in_avals: Sequence[Any], results: Sequence[Any], out_avals: Sequence[Any]
    ) -> tuple[Device, list[Any], list[Any]]:
        """The first device with a non-finite result, and the operands and results there.

        An operand that differs on devices on which no result does, as that of a sum over devices, keeps their axes.
        """
        device: Device = ()
        for x, aval in zip(results, out_avals, strict=True):
            if is_inexact(x) and x.size and x.is_fully_addressable:
                bad = jax.device_get(_has_nonfinite(x))
                if bad.any():
                    places = np.unravel_index(int(bad.argmax()), self._sizes(aval))
                    device = tuple(zip(varying_axes(self._params, aval), map(int, places), strict=True))
                    break
        ins, outs = (
            [self._on(device, x, aval) for x, aval in zip(xs, avals, strict=True)]
            for xs, avals in ((operands, in_avals), (results, out_avals))
        )
        return device, ins, outs

    def _on(self, device: Device, x: Any, aval: Any) -> Any:
        if not is_inexact(x) or not x.is_fully_addressable:
            return x
        place, axes = dict(device), varying_axes(self._params, aval)
        rows = np.arange(len(x)).reshape(self._sizes(aval))[tuple(place.get(axis, slice(None)) for axis in axes)]
        found: dict[int, np.ndarray] = {}
        for shard in x.addressable_shards:  # only what is looked at leaves the devices
            first = shard.index[0].start or 0
            here = [row for row in rows.ravel().tolist() if first <= row < first + len(shard.data) and row not in found]
            if here:
                data = jax.device_get(shard.data)
                found.update((row, data[row - first]) for row in here)
        return np.stack([found[row] for row in rows.ravel().tolist()]).reshape(*rows.shape, *x.shape[1:])

    def _sizes(self, aval: Any) -> tuple[int, ...]:
        return tuple(self._params["mesh"].shape[axis] for axis in varying_axes(self._params, aval))

    def _spec(self, aval: Any) -> PartitionSpec:
        return PartitionSpec(varying_axes(self._params, aval) or None)


def _with_axis(*xs):
    return tuple(x[None] for x in xs)


@jax.jit
def _has_nonfinite(x: jax.Array) -> jax.Array:
    return jnp.any(~jnp.isfinite(x), axis=tuple(range(1, x.ndim)))
