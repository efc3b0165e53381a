"""Training steps as people have published them, rebuilt small: what each takes, gives and differentiates is theirs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from watched import started


class Published(NamedTuple):
    """A step of others.

    Attributes:
      step: The jitted function. Its results, the first or the only one, are the first arguments of the next call.
      state: The first arguments of the first call.
      batch: The other arguments of a step, by its number.
      gradients: The gradients of a call, taken apart: a list of trees.
    """

    step: Callable
    state: tuple
    batch: Callable[[int], tuple]
    gradients: Callable[..., list]


PUBLISHED: dict[str, tuple[str, Callable[[], Published]]] = {}  # by name: where it stands, and what makes it


def published(where: str) -> Callable:
    def register(make: Callable[[], Published]) -> Callable[[], Published]:
        PUBLISHED[make.__name__] = (where, make)
        return make

    return register


# What they share


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Numbers whose rows have the length 1, if there are two axes or more."""
    x = np.random.default_rng((seed, *shape)).normal(size=shape).astype(np.float32)
    return x / np.sqrt(shape[-2], dtype=np.float32) if len(shape) > 1 else x


def initialized(init: Callable, *arguments: Any) -> Any:
    """What `init` would give, of other numbers: by NumPy, since its program would be compiled for one call."""
    shapes, treedef = jax.tree_util.tree_flatten_with_path(jax.eval_shape(init, *arguments))

    def filled(path, shape, seed):
        if len(shape.shape) > 1:
            return normal(math.prod(shape.shape[:-1]), shape.shape[-1], seed=seed).reshape(shape.shape)
        return np.full(shape.shape, "scale" in path or "var" in path, shape.dtype)

    leaves = [filled(jax.tree_util.keystr(path), shape, seed) for seed, (path, shape) in enumerate(shapes)]
    return jax.device_put(jax.tree.unflatten(treedef, leaves))


def dense(*sizes: int) -> list[dict]:
    return [
        {"w": normal(n, m, seed=i), "b": np.zeros(m, np.float32)} for i, (n, m) in enumerate(itertools.pairwise(sizes))
    ]


def mlp(layers: list[dict], x: jax.Array, activation: Callable = jax.nn.relu) -> jax.Array:
    for layer in layers[:-1]:
        x = activation(x @ layer["w"] + layer["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]


def regression(n_in: int, n_out: int = 1, n: int = 32) -> Callable[[int], tuple]:
    def batch(step: int) -> tuple:
        x = normal(n, n_in, seed=100 + step) * np.sqrt(n).astype(np.float32)
        return x, np.tanh(x @ normal(n_in, n_out, seed=7))

    return batch


def images(n_classes: int = 4, n: int = 8, size: int = 8) -> Callable[[int], tuple]:
    def batch(step: int) -> tuple:
        labels = np.arange(n) % n_classes
        means = normal(n_classes, size, size, 1, seed=3) * 2
        return means[labels] + normal(n, size, size, 1, seed=100 + step) * size, labels

    return batch


def tokens(n: int = 4, length: int = 7, n_words: int = 11) -> Callable[[int], tuple]:
    def batch(step: int) -> tuple:
        start = np.random.default_rng(step).integers(0, n_words, (n, 1))
        return ((start + 3 * np.arange(length)) % n_words,)

    return batch


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def squared(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((x - y) ** 2)


def trained(loss: Callable, params: Any, batch: Callable, tx: Any = None) -> Published:
    """With `loss(params, *batch)` and an optimizer of Optax, as most are."""
    tx = optax.adam(1e-3) if tx is None else tx

    @jax.jit
    def step(params, state, *batch):
        value, grads = jax.value_and_grad(loss)(params, *batch)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return Published(step, (params, started(tx.init, params)), batch, lambda p, _, *batch: [jax.grad(loss)(p, *batch)])
