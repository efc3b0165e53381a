"""The trees that are measured, by name; each is built in the process that measures it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

Leaf = Callable[..., Any]  # makes a leaf of a shape


class Tree(NamedTuple):
    """A tree to measure.

    Attributes:
      title: What it is called in the output.
      n_leaves: As JAX counts them.
      build: Makes it.
    """

    title: str
    n_leaves: int
    build: Callable[[], Any]


def abstract(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def jax_zeros(*shape: int) -> jax.Array:
    return jax.device_put(np.zeros(shape, np.float32))


def numpy_zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def unlike() -> Leaf:
    """NumPy arrays of which none is as wide as the six before it: in no tree of them do neighbors fold."""
    widths = itertools.cycle(range(1, 8))
    return lambda *shape: numpy_zeros(*shape[:-1], next(widths))


def mlp() -> Any:
    return [{"w": jax_zeros(784, 128), "b": jax_zeros(128)}, {"w": jax_zeros(128, 10), "b": jax_zeros(10)}]


def gpt2(leaf: Leaf) -> Any:
    """GPT-2 small: 148 leaves, 124.4 M parameters."""

    def dense(n_in: int, n_out: int) -> dict[str, Any]:
        return {"kernel": leaf(n_in, n_out), "bias": leaf(n_out)}

    def norm() -> dict[str, Any]:
        return {"scale": leaf(768), "bias": leaf(768)}

    def block() -> dict[str, Any]:
        attn = {"c_attn": dense(768, 3 * 768), "c_proj": dense(768, 768)}
        mlp = {"c_fc": dense(768, 4 * 768), "c_proj": dense(4 * 768, 768)}
        return {"ln_1": norm(), "attn": attn, "ln_2": norm(), "mlp": mlp}

    blocks = {str(layer): block() for layer in range(12)}
    return {"wte": {"embedding": leaf(50257, 768)}, "wpe": {"embedding": leaf(1024, 768)}, "h": blocks, "ln_f": norm()}


def real_gpt2() -> Any:
    rng = np.random.default_rng(0)
    return gpt2(lambda *shape: jax.device_put(0.02 * rng.standard_normal(shape, np.float32)))


def llama_70b() -> Any:
    """Llama-3-70B in bfloat16, shapes only: 723 leaves, 70.6 B parameters."""
    width, hidden, kv, vocabulary = 8192, 28672, 1024, 128256

    def linear(n_out: int, n_in: int = width) -> dict[str, Any]:
        return {"weight": abstract(n_out, n_in, dtype=jnp.bfloat16)}

    def norm() -> dict[str, Any]:
        return {"weight": abstract(width, dtype=jnp.bfloat16)}

    def layer() -> dict[str, Any]:
        attention = {"q_proj": linear(width), "k_proj": linear(kv), "v_proj": linear(kv), "o_proj": linear(width)}
        mlp = {"gate_proj": linear(hidden), "up_proj": linear(hidden), "down_proj": linear(width, hidden)}
        return {
            "input_layernorm": norm(),
            "self_attn": attention,
            "post_attention_layernorm": norm(),
            "mlp": mlp,
        }

    model = {"embed_tokens": linear(vocabulary), "layers": [layer() for _ in range(80)], "norm": norm()}
    return {"model": model, "lm_head": linear(vocabulary)}


class Block(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    norm_1: eqx.nn.LayerNorm
    norm_2: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, width: int, key: jax.Array):
        keys = jax.random.split(key, 3)
        self.attention = eqx.nn.MultiheadAttention(4, width, key=keys[0])
        self.norm_1, self.norm_2 = eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width)
        self.up = eqx.nn.Linear(width, 4 * width, key=keys[1])
        self.down = eqx.nn.Linear(4 * width, width, key=keys[2])


class Transformer(eqx.Module):
    embedding: eqx.nn.Embedding
    blocks: list[Block]
    norm: eqx.nn.LayerNorm
    activation: Callable = jax.nn.gelu

    def __init__(self, n_blocks: int, width: int, key: jax.Array):
        first, *keys = jax.random.split(key, n_blocks + 1)
        self.embedding = eqx.nn.Embedding(1000, width, key=first)
        self.blocks = [Block(width, key) for key in keys]
        self.norm = eqx.nn.LayerNorm(width)


def equinox_transformer() -> Any:
    return Transformer(10, 64, jax.random.key(0))


def adamw_state() -> Any:
    return jax.eval_shape(optax.adamw(1e-3).init, gpt2(abstract))


def layers(n_leaves: int, leaf: Leaf, width: int = 0) -> Any:
    """Layers of 20 leaves, six levels deep. The width of an abstract layer differs from that of the next ones."""

    def dense(n_in: int, n_out: int) -> dict[str, Any]:
        return {"kernel": leaf(n_in, n_out), "bias": leaf(n_out)}

    def layer(number: int) -> dict[str, Any]:
        n = width or 256 * (1 + number % 8)
        attention = {name: dense(n, n) for name in ("query", "key", "value", "out")}
        mlp = {"gate": dense(n, 4 * n), "up": dense(n, 4 * n), "down": dense(4 * n, n)}
        norms = {name: {"scale": leaf(n), "bias": leaf(n)} for name in ("norm_1", "norm_2")}
        return {"attention": attention, "mlp": mlp, "adapter": dense(n, 8), **norms}

    return {"params": {"layers": [layer(number) for number in range(n_leaves // 20)]}}


def deep(depth: int) -> Any:
    tree: Any = [1.0]
    for _ in range(depth):
        tree = [1.0, tree]
    return tree


TREES = {
    "mlp": Tree("an MLP, jax arrays", 4, mlp),
    "gpt2": Tree("GPT-2 small, 124 M float32 in jax arrays", 148, real_gpt2),
    "llama": Tree("Llama-3-70B, shape only", 723, llama_70b),
    "equinox": Tree("an Equinox transformer, jax arrays", 143, equinox_transformer),
    "adamw": Tree("adamw state of GPT-2, abstract", 297, adamw_state),
    "abstract-10k": Tree("10,000 leaves, shape only", 10_000, lambda: layers(10_000, abstract)),
    "jax-10k": Tree("10,000 jax arrays", 10_000, lambda: layers(10_000, jax_zeros, 4)),
    "numpy-100k": Tree("100,000 NumPy arrays", 100_000, lambda: layers(100_000, numpy_zeros, 4)),
    "numpy-1m": Tree("1,000,000 NumPy arrays", 1_000_000, lambda: layers(1_000_000, numpy_zeros, 1)),
    "depth-500": Tree("500 levels", 501, lambda: deep(500)),
    "depth-200k": Tree("200,000 levels", 200_001, lambda: deep(200_000)),
}
# The same in every version of the page: nothing of it folds.
UNLIKE = Tree("100,000 NumPy arrays, no neighbors alike", 100_000, lambda: layers(100_000, unlike(), 4))
