"""The model of `treeviz demo`: the train state of GPT-2 small, in plain JAX."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

N_VOCABULARY, N_CONTEXT, N_CHANNELS, N_BLOCKS = 50257, 1024, 768, 12


class TrainState(NamedTuple):
    params: Any
    opt_state: Any
    batch: dict[str, jax.Array]
    rng: jax.Array
    step: int


def train_state(seed: int = 0) -> TrainState:
    """124,439,808 float32 parameters, the state of AdamW, a batch, a PRNG key and a step.

    Allocates 1.5 GB in a few seconds. Without optax, the optimizer state consists of named tuples with optax's names.
    """
    rng = jax.random.key(seed)
    params = gpt2_params(rng)
    tokens = jax.random.randint(jax.random.fold_in(rng, 1), (8, N_CONTEXT), 0, N_VOCABULARY, jnp.int32)
    batch = {"tokens": tokens, "mask": jnp.ones(tokens.shape, jnp.bool_)}
    return TrainState(params, adamw_state(params), batch, rng, step=0)


def gpt2_params(rng: jax.Array) -> dict[str, Any]:
    """GPT-2 small: the shapes and the initialization of Radford et al. (2019), with the names of their code."""
    keys = iter(jax.random.split(rng, 2 + 4 * N_BLOCKS))
    n = N_CHANNELS

    def linear(n_in: int, n_out: int, std: float = 0.02) -> dict[str, jax.Array]:
        return {"w": std * jax.random.normal(next(keys), (n_in, n_out)), "b": jnp.zeros(n_out)}

    def norm() -> dict[str, jax.Array]:
        return {"g": jnp.ones(n), "b": jnp.zeros(n)}

    into_residual = 0.02 / (2 * N_BLOCKS) ** 0.5
    return {
        "wte": 0.02 * jax.random.normal(next(keys), (N_VOCABULARY, n)),
        "wpe": 0.01 * jax.random.normal(next(keys), (N_CONTEXT, n)),
        "h": [
            {
                "ln_1": norm(),
                "attn": {"c_attn": linear(n, 3 * n), "c_proj": linear(n, n, into_residual)},
                "ln_2": norm(),
                "mlp": {"c_fc": linear(n, 4 * n), "c_proj": linear(4 * n, n, into_residual)},
            }
            for _ in range(N_BLOCKS)
        ],
        "ln_f": norm(),
    }


def has_optax() -> bool:
    return "optax" in sys.modules or find_spec("optax") is not None


def adamw_state(params: Any) -> Any:
    """The result of `optax.adamw(schedule).init(params)`."""
    if has_optax():
        import optax

        return optax.adamw(optax.cosine_decay_schedule(6e-4, 100_000)).init(params)
    mu, nu = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
    count, step = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
    return (ScaleByAdamState(count, mu, nu), EmptyState(), ScaleByScheduleState(step))


class ScaleByAdamState(NamedTuple):
    count: Any
    mu: Any
    nu: Any


class EmptyState(NamedTuple):
    pass


class ScaleByScheduleState(NamedTuple):
    count: Any
