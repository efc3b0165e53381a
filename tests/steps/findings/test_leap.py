"""First updates that move parameters by several times their norm: a fault of a layer, and what a small start is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import treeviz as tv

jax, jnp = pytest.importorskip("jax"), pytest.importorskip("jax.numpy")
optax = pytest.importorskip("optax")
N_STEPS = 30


class Run(NamedTuple):
    """What `trained` runs: parameters, the loss of the parameters and a batch, the update, and the batch of a step."""

    params: Any
    loss: Callable
    tx: Any
    batch: Callable[[int], tuple] = lambda step: ()


def normal(*shape: int, seed: int = 0, std: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=shape) * std).astype(np.float32)


def pairs(n: int) -> Callable[[int], tuple]:
    """Numbers below `n`, and those that follow them."""

    def batch(step):
        first = np.random.default_rng(step).integers(0, n, 64)
        return first, (first + 1) % n

    return batch


def examples(width: int) -> Callable[[int], tuple]:
    def batch(step):
        x = normal(32, width, seed=step)
        return x, np.sin(x[:, 0])

    return batch


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def embeddings():
    params = {"in": normal(800, 32, std=0.01), "out": np.zeros((800, 32), np.float32)}
    return Run(params, lambda p, a, b: cross_entropy(p["in"][a] @ p["out"].T, b), optax.adam(0.05), pairs(800))


def matrix_factors():
    wanted = normal(60, 5, seed=1) @ normal(5, 60, seed=2)
    params = {"u": normal(60, 20, seed=3, std=0.01), "v": normal(20, 60, seed=4, std=0.01)}
    return Run(params, lambda p: jnp.mean((p["u"] @ p["v"] - wanted) ** 2), optax.adam(0.03))


def small_head():
    x, labels = normal(32, 64, seed=1), np.arange(32) % 20
    return Run(normal(64, 20, std=1e-4), lambda w: cross_entropy(x @ w, labels), optax.adam(0.01))


def pixels():
    wanted = np.random.default_rng(1).uniform(size=(32, 32, 3)).astype(np.float32)
    return Run(normal(32, 32, 3, std=0.01), lambda image: jnp.mean((image - wanted) ** 2), optax.adam(0.05))


def table_of_values():
    wanted = normal(32, 32, seed=1)
    return Run(normal(32, 32, std=1e-3), lambda q, a, b: jnp.mean((q - wanted)[a, b] ** 2), optax.sgd(5.0), pairs(32))


def lora():
    x, w = normal(32, 64, seed=1), normal(64, 64, seed=2) / 8
    params = {"a": normal(64, 16, std=1e-3), "b": np.zeros((16, 64), np.float32)}
    return Run(params, lambda p: jnp.mean((x @ (p["a"] @ p["b"] - w)) ** 2), optax.adam(0.01))


def linear_regression():
    x = normal(64, 1500, seed=1)
    return Run(normal(1500, std=1e-3), lambda w: jnp.mean((x @ w - x[:, 0]) ** 2), optax.sgd(0.005))


def gauss_newton():
    """Solves its linear problem in the first step, from weights of a usual size."""
    wanted = 100 * normal(40, 40, seed=1)
    return Run(normal(40, 40) / 7, lambda w: jnp.sum((w - wanted) ** 2) + 1e-6 * jnp.sum(w**2), optax.sgd(0.4999))


def line_search():
    wanted, tx = 30 * normal(40, 40, seed=1), optax.lbfgs()
    stretch = np.linspace(1, 3, 40, dtype=np.float32)[:, None]
    return Run(normal(40, 40) / 7, lambda w: 0.5 * jnp.sum(stretch * (w - wanted) ** 2), tx)


def network(std: float, tx):
    """A perceptron of three layers whose weights have `std` times the size of an initialisation."""
    params = [normal(64, n, seed=n, std=std / 8) for n in (64, 64, 1)]

    def loss(params, x, y):
        hidden = jax.nn.relu(jax.nn.relu(x @ params[0]) @ params[1])
        return jnp.mean(((hidden @ params[2])[:, 0] - y) ** 2)

    return Run(params, loss, tx, examples(64))


def trained(run: Run) -> tv.GradientInspector:
    def step(params, state, *batch):
        value, grads = jax.value_and_grad(run.loss)(params, *batch)
        extra = {"value": value, "grad": grads, "value_fn": lambda p: run.loss(p, *batch)}
        updates, state = optax.with_extra_args_support(run.tx).update(grads, state, params, **extra)
        return optax.apply_updates(params, updates), state, value

    inspector = tv.GradientInspector()
    watched, params = inspector.watch(jax.jit(step)), jax.device_put(run.params)
    state = jax.jit(run.tx.init)(params)
    for number in range(N_STEPS):
        params, state, _ = watched(params, state, *run.batch(number))
    return inspector


SMALL_STARTS = [
    embeddings, matrix_factors, small_head, pixels, table_of_values, lora, linear_regression, gauss_newton, line_search
]  # fmt: skip


@pytest.mark.parametrize("healthy", SMALL_STARTS)
def test_what_begins_near_zero_or_is_solved_in_a_step_may_leave_its_first_values(healthy):
    assert [found.sentence for found in trained(healthy()).findings if found.severity != "info"] == []


@pytest.mark.parametrize(
    ("std", "tx"), [(1.0, optax.adam(1.0)), (0.01, optax.adam(10.0))], ids=["usual start", "small start, rate 10"]
)
def test_a_network_whose_first_updates_make_it_another_one_is_told(std, tx):
    first = trained(network(std, tx)).findings[0]
    assert (first.kind, first.path, first.first) == ("ratio", "", 0)
    assert dict(first.numbers)["ratio"] > 3


def test_a_network_with_a_usual_rate_is_not_said_to_leave_its_first_values():
    found = trained(network(1.0, optax.adam(1e-3))).findings
    assert [each.kind for each in found if each.severity != "info"] == []
