"""Measure `treeviz.cost` on a training step of the size of Llama 3 70B, on an abstract mesh of 512 devices.

    python tests/benchmarks/cost.py [scan|unroll]

Prints seconds, memory, and FLOPs beside 6 per parameter and token, plus attention, computed by hand.
"""

from __future__ import annotations

import resource
import sys
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import treeviz as tv


class Sizes(NamedTuple):
    n_layers: int = 80
    d: int = 8192
    n_heads: int = 64
    n_kv: int = 8
    d_ff: int = 28672
    vocabulary: int = 128256
    batch: int = 512
    length: int = 8192


def abstract_mesh(**axes: int) -> AbstractMesh:
    types = getattr(jax.sharding, "AxisType", None)
    try:
        options = {} if types is None else {"axis_types": (types.Auto,) * len(axes)}
        return AbstractMesh(tuple(axes.values()), tuple(axes), **options)
    except TypeError:  # until jax 0.4.38 or so
        return AbstractMesh(tuple(axes.items()))


def llama(sizes: Sizes, mesh: AbstractMesh, scanned: bool = True, remat: bool = True):
    """A training step of a transformer with grouped queries, RMS norms, gated linear units and Adam; its arguments."""
    n, d, heads, kv, ff, vocabulary, batch, length = sizes
    head = d // heads

    def array(spec, *shape, dtype="bfloat16"):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec(*spec)))

    def layer(*front):
        of = lambda spec, *shape: array((*[None] * len(front), *spec), *front, *shape)
        return {
            "wq": of(("fsdp", "tensor"), d, heads * head),
            "wk": of(("fsdp", "tensor"), d, kv * head),
            "wv": of(("fsdp", "tensor"), d, kv * head),
            "wo": of(("tensor", "fsdp"), heads * head, d),
            "gate": of(("fsdp", "tensor"), d, ff),
            "up": of(("fsdp", "tensor"), d, ff),
            "down": of(("tensor", "fsdp"), ff, d),
            "norm1": of((None,), d),
            "norm2": of((None,), d),
        }

    params = {
        "embed": array(("tensor", "fsdp"), vocabulary, d),
        "layers": layer(n) if scanned else [layer() for _ in range(n)],
        "norm": array((None,), d),
        "head": array(("fsdp", "tensor"), d, vocabulary),
    }

    def rms(x, scale):
        y = x.astype(jnp.float32)
        return (y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + 1e-5)).astype(x.dtype) * scale[None, None]

    def block(x, p):
        with jax.named_scope("attention"):
            y = rms(x, p["norm1"])
            q = (y @ p["wq"]).reshape(*y.shape[:2], kv, heads // kv, head)
            k = (y @ p["wk"]).reshape(*y.shape[:2], kv, head)
            v = (y @ p["wv"]).reshape(*y.shape[:2], kv, head)
            scores = jnp.einsum("bqkgh,bskh->bkgqs", q, k).astype(jnp.float32) / head**0.5
            scores = jnp.where(jnp.tri(y.shape[1], dtype=bool)[None, None, None], scores, -1e30)
            weights = jax.nn.softmax(scores).astype(x.dtype)
            x = x + jnp.einsum("bkgqs,bskh->bqkgh", weights, v).reshape(y.shape[0], y.shape[1], heads * head) @ p["wo"]
        with jax.named_scope("mlp"):
            y = rms(x, p["norm2"])
            return x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"], None

    def loss(params, tokens):
        x, body = params["embed"][tokens[:, :-1]], jax.checkpoint(block) if remat else block
        if scanned:
            x, _ = jax.lax.scan(body, x, params["layers"])
        else:
            for p in params["layers"]:
                x, _ = body(x, p)
        logits = (rms(x, params["norm"]) @ params["head"]).astype(jnp.float32)
        picked = jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)

    def step(params, mu, nu, tokens):
        value, grads = jax.value_and_grad(loss)(params, tokens)
        mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mu, grads)
        nu = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g.astype(jnp.float32) ** 2, nu, grads)
        new = jax.tree.map(lambda p, m, v: (p - 1e-4 * m / (jnp.sqrt(v) + 1e-8)).astype(p.dtype), params, mu, nu)
        return new, mu, nu, value

    mu, nu = (
        jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, "float32", sharding=x.sharding), params) for _ in range(2)
    )
    tokens = array((("data", "fsdp"), None), batch, length + 1, dtype="int32")
    return jax.jit(step, donate_argnums=(0, 1, 2)), (params, mu, nu, tokens)


def matmul_flops(sizes: Sizes) -> float:
    """By hand: 2 for each multiply-add of the products of matrices in the forward pass."""
    n, d, heads, kv, ff, vocabulary, batch, length = sizes
    head = d // heads
    per_layer = 2 * d * heads * head + 2 * d * kv * head + 3 * d * ff + 2 * length * heads * head
    return 2.0 * batch * length * (n * per_layer + d * vocabulary)


if __name__ == "__main__":
    scanned, sizes = (sys.argv[1:] or ["scan"])[0] == "scan", Sizes()
    mesh = abstract_mesh(data=8, fsdp=8, tensor=8)
    started = time.perf_counter()
    step, arguments = llama(sizes, mesh, scanned)
    view = tv.cost(step, *arguments, memory=80e9)
    print(f"{time.perf_counter() - started:.1f} s, {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")
    print(view.text(width=120, max_rows=40))
    by_hand = matmul_flops(sizes)
    print(f"forward: {view.totals['forward'] / by_hand:.4f} of the products of matrices by hand")
