"""Four small models, as functions of a dict of parameters: what differs between them is what XLA makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


class Model(NamedTuple):
    params: dict
    apply: Callable
    x: np.ndarray
    y: np.ndarray


def _normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32) * (
        shape[0] ** -0.5 if len(shape) > 1 else 0.1
    )


def mlp() -> Model:
    params = {
        f"layer{i}": {"w": _normal(i, n, m), "b": _normal(9 + i, m)} for i, (n, m) in enumerate([(8, 32), (32, 4)])
    }

    def apply(params, x):
        x = jax.nn.relu(x @ params["layer0"]["w"] + params["layer0"]["b"][None])
        return x @ params["layer1"]["w"] + params["layer1"]["b"][None]

    return Model(params, apply, _normal(20, 16, 8) * 4, _normal(21, 16, 4))


def convolution() -> Model:
    params = {"first": _normal(0, 3, 3, 1, 8), "second": _normal(1, 3, 3, 8, 8), "out": _normal(2, 8, 4)}

    def apply(params, x):
        for name in ("first", "second"):
            x = lax.conv_general_dilated(x, params[name], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jax.nn.gelu(x)
        return jnp.mean(x, (1, 2)) @ params["out"]

    return Model(params, apply, _normal(3, 8, 8, 8, 1) * 3, _normal(4, 8, 4))


def _layer_norm(x, scale):
    x = x - jnp.mean(x, -1, keepdims=True)
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * scale[(None,) * (x.ndim - 1)]


def transformer() -> Model:
    params = {
        **{"embed": _normal(0, 11, 16), "norm": np.ones(16, np.float32), "qkv": _normal(2, 16, 48)},
        **{"up": _normal(12, 16, 32), "down": _normal(14, 32, 16), "out": _normal(9, 16, 4)},
    }

    def apply(params, tokens):
        x = params["embed"][tokens]
        q, k, v = jnp.split(_layer_norm(x, params["norm"]) @ params["qkv"], 3, axis=-1)
        weights = jax.nn.softmax(jnp.einsum("bik,bjk->bij", q, k) / 4)
        x = x + jnp.einsum("bij,bjk->bik", weights, v)
        x = x + jax.nn.gelu(_layer_norm(x, params["norm"]) @ params["up"]) @ params["down"]
        return jnp.mean(x, 1) @ params["out"]

    return Model(params, apply, np.random.default_rng(5).integers(0, 11, (4, 6), np.int32), _normal(6, 4, 4))


def residual() -> Model:
    """Layers in a scan, recomputed for the backward pass."""
    params = {
        "layers": {"w": np.stack([_normal(i, 16, 16) for i in range(4)]), "scale": np.ones((4, 16), np.float32)},
        "out": _normal(9, 16, 4),
    }

    def apply(params, x):
        @jax.checkpoint
        def layer(x, layer):
            return x + jnp.tanh(_layer_norm(x, layer["scale"]) @ layer["w"]), None

        return lax.scan(layer, x, params["layers"])[0] @ params["out"]

    return Model(params, apply, _normal(4, 8, 16) * 4, _normal(5, 8, 4))
