"""A mark: an identity in the program that says "this tree is a gradient", to be found when the trace is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from treeviz.analysis.gradients import Source, source_of


@dataclass(frozen=True, eq=False)
class Mark:
    """What is known of a marked tree when it is traced. Holds descriptions only, no tracer.

    Attributes:
      kind: "grads" of a function that was differentiated, "cotangents" of a `jax.vjp`, or a "tap"; or the "params" and
        "updates" that were measured beside a gradient.
      source: The leaves; named after the kind, or as the tap says.
    """

    kind: str
    source: Source


class Axis(NamedTuple):
    """An axis that stands in front of the measured words: one entry per inner step, member or device."""

    kind: str  # "step", "member" or "device"
    size: int | None  # None: told by the words


@dataclass(frozen=True, eq=False)
class Found:
    """What is known of one mark when the program has been run. Holds no tracer.

    Attributes:
      axes: Outermost first.
      origins: For each marked value, the number of the program's argument of which it is the gradient; or None.
      is_inner: It was differentiated itself.
      summed_over: The axes of a `shard_map` over which the values have been summed.
      batched: Of the values that the marked ones belong to, as the mark has it.
      is_moving: What they belong to changes in a loop of the program.
      of: Of the parameters and updates that were measured in such a loop, the mark of their gradient.
    """

    mark: Mark
    axes: tuple[Axis, ...]
    origins: tuple[int | None, ...]
    is_inner: bool = False
    summed_over: frozenset[str] = frozenset()
    batched: tuple[tuple[int | None, ...], ...] = ()
    is_moving: bool = False
    of: Mark | None = None

    def within(self, axis: Axis) -> Found:
        return replace(self, axes=(axis, *self.axes))


def mark_tree(kind: str, name: str, tree: Any, origins: Sequence[Any] = ()) -> Any:
    """The same tree with its numbers marked.

    Args:
      origins: One value for each leaf: what it is the gradient of, so that its way into the program can be followed.
    """
    leaves, treedef = jax.tree.flatten(tree)
    source = source_of(tree, name)
    if not any(source.has_number):
        return tree
    places = [i for i, has in enumerate(source.has_number) if has]
    operands = [leaves[i] for i in places] + [origins[i] for i in places if len(origins) == len(leaves)]
    marked = mark_p.bind(*operands, mark=Mark(kind, source), n=len(places), batched=(), inner=False)
    for i, leaf in zip(places, marked, strict=True):
        leaves[i] = leaf
    return jax.tree.unflatten(treedef, leaves)


# Operands: n values, then what they belong to. Results: the n values.
# `inner`: it is a part of something that is differentiated.
# `batched`: for every `vmap` around it, innermost first, the axis of each operand (None: not batched).
mark_p = Primitive("treeviz_mark")
mark_p.multiple_results = True


@mark_p.def_impl
def _impl(*operands, n, **_):
    return list(operands[:n])


@mark_p.def_abstract_eval
def _abstract_eval(*avals, n, **_):
    return list(avals[:n])


def _jvp(primals, tangents, *, n, **params):
    return mark_p.bind(*primals, n=n, **{**params, "inner": True}), list(tangents[:n])


def _batch(operands, dims, *, n, batched, **params):
    return mark_p.bind(*operands, n=n, batched=(*batched, tuple(dims)), **params), list(dims[:n])


ad.primitive_jvps[mark_p] = _jvp
batching.primitive_batchers[mark_p] = _batch
# Whoever lowers a program before the marks are taken out gets the plain program.
mlir.register_lowering(mark_p, lambda ctx, *operands, n, **_: list(operands[:n]))

if not hasattr(jax, "shard_map"):  # jax 0.4: there, each primitive says on which axes its results are replicated
    from jax.experimental import shard_map

    shard_map.register_check(mark_p)(lambda mesh, *replicated, n, **_: list(replicated[:n]))  # type: ignore[attr-defined]
    shard_map.register_norewrite(mark_p)  # type: ignore[attr-defined]
