"""The identity primitive `sow`: it tags a tree in a traced program, so that `reap` can find it there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import PartitionSpec

from treeviz.steps.measure import MeasuredTree, source_of
from treeviz.steps.measured_tree import Axes, Parts


@dataclass(frozen=True, eq=False)
class Sown:
    """A sown tree, as known while tracing. Holds descriptions only, no tracer.

    Attributes:
      kind: "grads" of a differentiated function, "cotangents" of a `jax.vjp`, or "tap"; "params", "updates" and
        "received" for what is measured together with a gradient; "loss", which is not measured: it tells which results
        are the loss.
      source: The leaves. Its name is the kind, or the name that `tap` was given.
      axes: Of the layers of each leaf that holds some, as `reap` has found them.
    """

    kind: str
    source: MeasuredTree
    axes: Axes = ()


class Axis(NamedTuple):
    """A leading axis of the packed rows: one entry per inner step, `vmap` member or device."""

    kind: str  # "step", "member" or "device"
    size: int | None  # None: the size is that of the packed rows
    parts: Parts | None = None  # where the devices have parts of the arrays


@dataclass(frozen=True, eq=False)
class Reaped:
    """A sown tree, as known when the whole program has been run. Holds no tracer.

    Attributes:
      axes: The leading axes of its packed rows, the outermost first.
      origins: For each sown value, the number of the program argument of which it is the gradient; None if unknown.
      is_differentiated: The sown values are differentiated themselves, as in a penalty on the norm of a gradient.
      summed_over: The axes of a `shard_map` over which all values have been summed.
      shards: If the devices of a `shard_map` have parts of whole arrays, how each is divided; else empty.
      batched: For each `vmap`, the innermost first, the batch axis of each value that a sown value is the gradient of.
      changes_in_loop: The leaves that the values are the gradients of change inside a loop of the program.
      is_of_last_step: Of a while loop around it, whose number of steps is unknown, only the last step is measured.
      gradient: For what is measured together with a gradient, such as the updates in a loop, that gradient.
      tagged: The tree as the program sows it.
    """

    sown: Sown
    axes: tuple[Axis, ...]
    origins: tuple[int | None, ...]
    is_differentiated: bool = False
    summed_over: frozenset[str] = frozenset()
    shards: tuple[PartitionSpec, ...] = ()
    batched: tuple[tuple[int | None, ...], ...] = ()
    changes_in_loop: bool = False
    is_of_last_step: bool = False
    gradient: Sown | None = None
    tagged: Sown | None = None

    def within(self, axis: Axis) -> Reaped:
        return replace(self, axes=(axis, *self.axes))

    def outside(self, origins: Sequence[int | None]) -> Reaped:
        """The same outside of an equation with operands of these origins, by whose number it is known inside."""
        return replace(self, origins=tuple(None if o is None else origins[o] for o in self.origins))


def sow(kind: str, name: str, tree: Any, origins: Sequence[Any] = ()) -> Any:
    """Tag the numeric leaves of a tree in the program that is being traced, and return the tree.

    Args:
      origins: For each leaf, the value that it is the gradient of. `reap` follows it back to an argument.
    """
    leaves, treedef = jax.tree.flatten(tree)
    source = source_of(tree, name)
    if not any(source.has_number):
        return tree
    places = [i for i, has in enumerate(source.has_number) if has]
    operands = [leaves[i] for i in places] + [origins[i] for i in places if len(origins) == len(leaves)]
    values = sow_p.bind(*operands, sown=Sown(kind, source), n=len(places), batched=(), differentiated=False)
    for i, leaf in zip(places, values, strict=True):
        leaves[i] = leaf
    return jax.tree.unflatten(treedef, leaves)


# Operands: n values, then the value that each of them is the gradient of, if known. Results: the n values.
# `differentiated`: the values are a part of what is differentiated.
# `batched`: for every `vmap` around it, the innermost first, the batch axis of each operand (None: not batched).
sow_p = Primitive("treeviz_sow")
sow_p.multiple_results = True


@sow_p.def_impl
def _impl(*operands, n, **_):
    return list(operands[:n])


@sow_p.def_abstract_eval
def _abstract_eval(*avals, n, **_):
    return list(avals[:n])


def _jvp(primals, tangents, *, n, **params):
    return sow_p.bind(*primals, n=n, **{**params, "differentiated": True}), list(tangents[:n])


def _batch(operands, dims, *, n, batched, **params):
    return sow_p.bind(*operands, n=n, batched=(*batched, tuple(dims)), **params), list(dims[:n])


ad.primitive_jvps[sow_p] = _jvp
batching.primitive_batchers[sow_p] = _batch
# A program that is lowered without `reap` computes what it would without `sow`.
mlir.register_lowering(sow_p, lambda ctx, *operands, n, **_: list(operands[:n]))

# jax 0.4: every primitive needs a rule for the axes over which its results are replicated.
if not hasattr(jax, "shard_map"):
    from jax.experimental import shard_map

    shard_map.register_check(sow_p)(lambda mesh, *replicated, n, **_: list(replicated[:n]))  # type: ignore[attr-defined]
    shard_map.register_norewrite(sow_p)  # type: ignore[attr-defined]
