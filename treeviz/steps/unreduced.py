"""Trees whose leaves are measured when the whole program has been traced: together, and the same on each device."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, tree_util

from treeviz.steps.measured_tree import Axes
from treeviz.steps.partial_sums import Rows, is_partial, joined_arrays, packed_rows, partial_sums
from treeviz.steps.reduce import reduce_leaves
from treeviz.steps.statistics import LIGHT, NO_NUMBER, n_words

NOTHING = np.array([NO_NUMBER, 0, 0, 0], np.uint32)  # the packed row of a leaf without numbers


class OneOf(NamedTuple):
    """One of several leaves that are computed together, as one array [leaves, …]."""

    together: jax.Array
    place: int

    def alone(self) -> jax.Array:
        return lax.index_in_dim(self.together, self.place, keepdims=False)


class Unreduced(NamedTuple):
    """A tree that is measured together with others, when the whole program has been traced.

    Attributes:
      leaves: None for those without numbers.
      axes: Of the layers of each leaf, or empty.
    """

    leaves: Sequence[jax.Array | OneOf | None]
    axes: Axes

    def divided(self) -> Divided:
        axes = self.axes or (None,) * len(self.leaves)
        mine: dict[int, tuple[jax.Array, int, list[int]]] = {}  # with the number of leaves or layers, and their rows
        others: list[jax.Array | None] = []
        n_rows, pairs = 0, [*zip(self.leaves, axes, strict=True)]
        apart = {id(x.together) for x, axis in pairs if isinstance(x, OneOf) and axis is not None}
        for i, (x, axis) in enumerate(pairs):
            if isinstance(x, OneOf) and id(x.together) not in apart:
                mine.setdefault(-id(x.together), (x.together, len(x.together), []))[2].append(n_rows)
                x, n = None, 1
            else:
                x = x.alone() if isinstance(x, OneOf) else x
                n = 1 if x is None or axis is None else x.shape[axis]
                if x is not None and is_partial(x, axis):
                    mine[i], x = (x, n, [*range(n_rows, n_rows + n)]), None
            others.append(x)
            n_rows += n
        arrays, n_layers, rows = zip(*mine.values(), strict=True) if mine else ((), (), ())
        packed = None if all(x is None for x in others) else reduce_leaves(others, LIGHT, axes)
        return Divided([*arrays], [*n_layers], (*itertools.chain(*rows),), packed, (n_rows, n_words(LIGHT)))

    def on_each(self) -> Any:
        """Inside a `shard_map`: the partial sums of this device; the packed rows, if there are none."""
        mine, n_layers, entries, packed, shape = self.divided()
        if not mine:
            return packed
        sums, words, rows = partial_sums(mine, (), (), n_layers)
        arrays = [joined_arrays(sums), joined_arrays(words), *([] if packed is None else [packed])]
        return OnEach(tuple(arrays), Summed(rows, entries, shape))

    def reduced(self) -> jax.Array:
        """The packed rows, which are made in the program."""
        mine, n_layers, entries, packed, shape = self.divided()
        rows = [packed_rows(mine, n_layers)] if mine else []
        if len(entries) == shape[0]:
            return rows[0]
        rows.append(jnp.broadcast_to(NOTHING, shape) if packed is None else packed)
        at = np.arange(len(entries), len(entries) + shape[0], dtype=np.int32)
        at[[*entries]] = np.arange(len(entries))
        return lax.concatenate(rows, 0).at[at].get(mode="promise_in_bounds")


class Divided(NamedTuple):
    """A tree, of which some leaves are for `partial_sums`.

    Attributes:
      n_layers: Of each of them.
      entries: Their packed rows.
      packed: All packed rows with those of the other leaves, if there are any.
      shape: Of all packed rows.
    """

    leaves: list[jax.Array]
    n_layers: list[int]
    entries: tuple[int, ...]
    packed: jax.Array | None
    shape: tuple[int, ...]


class Summed(NamedTuple):
    """How the partial sums of a tree lie that each device of a `shard_map` makes.

    Attributes:
      entries: The packed rows that are made of them, in their order.
      shape: Of all packed rows of a device.
      is_alike: All devices have the same.
    """

    rows: Rows
    entries: tuple[int, ...]
    shape: tuple[int, ...]
    is_alike: bool = False


@tree_util.register_pytree_node_class
class OnEach(NamedTuple):
    """The partial sums of a tree that each device of a `shard_map` makes, which are added up on the host.

    A pytree of arrays. Outside, those of the devices follow one another along the first axis: of a further axis of
    devices XLA CPU would make a kernel.

    Attributes:
      arrays: float64[rows], uint32[…]; and the packed rows of the other leaves, if there are any.
    """

    arrays: tuple[Any, ...]
    how: Summed

    def alike(self) -> OnEach:
        """The same, where all devices have measured the same."""
        return OnEach(self.arrays, self.how._replace(is_alike=True))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the packed rows."""
        n_devices = self.arrays[0].size // sum(self.how.rows.n_rows)
        return self.how.shape if self.how.is_alike else (n_devices, *self.how.shape)

    def tree_flatten(self):
        return self.arrays, self.how

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(tuple(children), aux)
