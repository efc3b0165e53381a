"""Six models of one shape, as people write them: five layers of which one may be killed, then an output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from wild.published import dense, initialized, mlp, normal

N_IN = 8
X = np.ones((1, N_IN), np.float32)


class Model(NamedTuple):
    """A model.

    Attributes:
      params: Its parameters.
      apply: A function of parameters and float32[n, 8], with the result float32[n, 1].
      layer: What the paths of a layer's parameters contain, with a place for its number; "[{}]" in a stack of layers.
    """

    params: Any
    apply: Callable
    layer: str


def dictionary() -> Model:
    layers = dense(N_IN, 8, 8, 8, 8, 8, 1)
    return Model({f"l{i}": layer for i, layer in enumerate(layers)}, lambda p, x: mlp(list(p.values()), x), "['l{}']")


def linen() -> Model:
    from flax import linen as nn

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            for _ in range(5):
                x = nn.relu(nn.Dense(8)(x))
            return nn.Dense(1)(x)

    model = Network()
    return Model(initialized(model.init, jax.random.key(1), X), model.apply, "['Dense_{}']")


def nnx() -> Model:
    from flax import nnx

    class Network(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.layers = nnx.List([nnx.Linear(8, 8, rngs=rngs) for _ in range(5)])
            self.out = nnx.Linear(8, 1, rngs=rngs)

        def __call__(self, x):
            for layer in self.layers:
                x = nnx.relu(layer(x))
            return self.out(x)

    graph, shapes = nnx.split(nnx.eval_shape(lambda: Network(nnx.Rngs(1))))
    params = initialized(lambda: shapes)
    return Model(params, lambda params, x: nnx.merge(graph, params)(x), "['layers'][{}]")


def equinox() -> Model:
    import equinox as eqx

    shapes = eqx.filter_eval_shape(lambda key: eqx.nn.MLP(N_IN, 1, 8, 5, key=key), jax.random.key(1))
    shapes, static = eqx.partition(shapes, lambda x: hasattr(x, "shape"))
    return Model(initialized(lambda: shapes), lambda params, x: jax.vmap(eqx.combine(params, static))(x), ".layers[{}]")


def haiku() -> Model:
    import haiku as hk

    network = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([8] * 5 + [1])(x)))
    return Model(initialized(network.init, jax.random.key(1), X), network.apply, "['mlp/~/linear_{}']")


def scanned_transformer() -> Model:
    layers = [{name: normal(8, 8, seed=i) for name in ("qk", "v", "up", "down")} for i in range(5)]
    stacked = {name: 0.3 * np.stack([layer[name] for layer in layers]) for name in layers[0]}
    params = {"layers": {**stacked, "bias": np.zeros((5, 8), np.float32)}, "out": normal(8, 1)}

    def apply(params, x):
        def layer(x, layer):
            x = x + jax.nn.softmax(x @ layer["qk"] @ x.T / 3) @ x @ layer["v"]
            return x + jax.nn.relu(x @ layer["up"] + layer["bias"]) @ layer["down"], None

        return jax.lax.scan(layer, x, params["layers"])[0] @ params["out"]

    return Model(params, apply, "[{}]")


MODELS = {make.__name__: make for make in (dictionary, linen, nnx, equinox, haiku, scanned_transformer)}
