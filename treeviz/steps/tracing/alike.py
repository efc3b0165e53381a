"""Small values of one shape that a program computes alike, as the gradients of many biases: computed together.

What is computed for each of a thousand leaves is a thousand kernels, which XLA compiles and starts apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal

from treeviz.steps.reduce import TOGETHER
from treeviz.steps.tracing.primitives import ELEMENTWISE, RESHAPES, bind

FEWEST = 16  # values that are computed together
MOST_ELEMENTS = 1 << 12  # of a value: what it is computed of is copied once more

Chains = Sequence[Mapping[int, Any]]  # of each of several values, the equations that make it by their numbers


class Group(NamedTuple):
    """Values that are computed alike.

    Attributes:
      places: Which of the values.
      chain: The equations that make the first of them.
      value: The first of them.
      inputs: Of each value, what its equations read that they do not make, in the order of their use.
    """

    places: list[int]
    chain: Sequence[Any]
    value: Any
    inputs: list[list[Any]]


def alike(values: Sequence[Any], chains: Chains) -> list[Group]:
    """The groups of values that are computed together."""
    groups: dict[tuple, Group] = {}
    for place, (value, by_number) in enumerate(zip(values, chains, strict=False)):
        chain = [by_number[at] for at in sorted(by_number)]
        if chain and _is_small(value.aval) and all(map(_is_of_elements, chain)):
            inputs, form = _form(value, chain)
            if form is not None and all(_is_small(x.aval) for x in inputs):
                group = groups.setdefault(form, Group([], chain, value, []))
                group.places.append(place)
                group.inputs.append(inputs)
    return [group for group in groups.values() if len(group.places) >= FEWEST and not all(_is_shared(group))]


def run_together(group: Group, read: Callable[[Any], Any]) -> jax.Array:
    """[values, …]: the values, of copies of what they are computed of, so that XLA keeps the two runs apart."""
    shared = _is_shared(group)
    operands: list[jax.Array] = []
    for variables, is_shared in zip(zip(*group.inputs, strict=True), shared, strict=True):
        copies = lax.optimization_barrier([read(x) for x in (variables[:1] if is_shared else variables)])
        operands.append(copies[0] if is_shared else _stacked(copies))

    def run(*operands: jax.Array) -> jax.Array:
        made = dict(zip(group.inputs[0], operands, strict=True))
        for eqn in group.chain:
            results = bind(eqn, [x.val if isinstance(x, Literal) else made[x] for x in eqn.invars])
            made.update(zip(eqn.outvars, results, strict=True))
        return made[group.value]

    return jax.vmap(run, [None if is_shared else 0 for is_shared in shared])(*operands)


def _stacked(arrays: Sequence[jax.Array]) -> jax.Array:
    """[n, …]: XLA CPU makes one kernel of some at a time, which it compiles once for all that are as many."""
    n, first = len(arrays), arrays[0]
    arrays = [*arrays, *[arrays[-1]] * (-n % TOGETHER)]
    parts = [_joined(arrays[i : i + TOGETHER]) for i in range(0, len(arrays), TOGETHER)]
    x = lax.optimization_barrier(lax.concatenate(parts, 0))
    x = lax.slice_in_dim(lax.reshape(x, (len(parts), parts[0].size)), 0, TOGETHER * first.size, axis=1)
    return lax.slice_in_dim(lax.reshape(x, (len(arrays), *first.shape)), 0, n)


@jax.jit  # traced and lowered once
def _joined(arrays: Sequence[jax.Array]) -> jax.Array:
    """Flat, and a zero, for which XLA makes one small loop; else it would unroll a loop for each array."""
    x = lax.concatenate([lax.reshape(x, (x.size,)) for x in arrays], 0)
    return lax.pad(x, np.zeros((), x.dtype), [(0, 1, 0)])


def _is_shared(group: Group) -> list[bool]:
    """Of each input, whether it is the same for all values."""
    return [all(x is variables[0] for x in variables) for variables in zip(*group.inputs, strict=True)]


def _is_of_elements(eqn: Any) -> bool:
    return eqn.primitive.name in ELEMENTWISE or eqn.primitive.name in RESHAPES


def _is_small(aval: Any) -> bool:
    is_copied = aval.dtype in (np.bool_, np.uint8, np.uint16, np.uint32) or jnp.issubdtype(aval.dtype, jnp.floating)
    return is_copied and aval.dtype.itemsize <= 4 and aval.size <= MOST_ELEMENTS


def _form(value: Any, chain: Sequence[Any]) -> tuple[list[Any], tuple | None]:
    """What equations read that they do not make; and what they are, equal for all that compute alike, if that shows."""
    number: dict[Any, int] = {}
    inputs, form = [], []
    for eqn in chain:
        form += [eqn.primitive, *eqn.params.values()]
        for x in eqn.invars:
            if isinstance(x, Literal):
                form.append((x.aval, np.asarray(x.val).tobytes()))
                continue
            if x not in number:
                number[x] = len(number)
                inputs.append(x)
                form.append(x.aval)
            form.append(number[x])
        number.update((v, len(number) + i) for i, v in enumerate(eqn.outvars))
    try:
        hash(tuple(form))
    except TypeError:
        return inputs, None
    return inputs, (number[value], *form)
