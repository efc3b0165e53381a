"""Small models that are trained under watch, for the tests of findings."""

import jax
import jax.numpy as jnp
import numpy as np

import treeviz as tv
from treeviz.steps.findings.finding import Finding

N_STEPS = 40


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).normal(size=shape).astype(np.float32) / np.sqrt(shape[0])


def dense(i: int, n_in: int, n_out: int) -> dict:
    return {"b": normal(n_out, seed=i) * 0.1, "w": normal(n_in, n_out, seed=i)}


def apply(layer: dict, x: jax.Array) -> jax.Array:
    return x @ layer["w"] + layer["b"].reshape((1,) * (x.ndim - 1) + (-1,))


def stack(n: int, size: int = 8) -> dict:
    return {**{f"l{i}": dense(i, size, size) for i in range(n)}, "out": dense(n, size, 1)}


def mlp(activation):
    def loss(params, x, y):
        for i in range(len(params) - 1):
            x = activation(apply(params[f"l{i}"], x))
        return jnp.mean((apply(params["out"], x) - y) ** 2)

    return loss


def batch(step: int) -> tuple:
    x = normal(8, 8, seed=1000 + step) * 3
    return x, np.tanh(x[:, :1])


def watched(loss, params, batch=batch, n_steps: int = N_STEPS, rate: float = 1e-2, **how) -> tv.GradientInspector:
    """The inspector of a run of plain gradient descent."""
    inspector = tv.GradientInspector(**how)

    @jax.jit
    def update(params, *batch):
        grads = jax.grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - jnp.asarray(rate, p.dtype) * g, params, grads)

    step = inspector.watch(update)
    for i in range(n_steps):
        params = step(params, *batch(i))
    return inspector


def findings(*run, **how) -> list[Finding]:
    return watched(*run, **how).findings


def attention(params, x):
    x = x - x.mean(-1, keepdims=True)
    x = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    q, k, v = (apply(params[name], x) for name in "qkv")
    return x + apply(params["o"], jax.nn.softmax(q @ k.transpose(0, 2, 1)) @ v)
