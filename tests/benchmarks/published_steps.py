"""Small steps that others have published, of 0.04 to 0.5 ms, in which what watching adds is seen best.

Each takes, gives and differentiates what theirs does; the data are made up.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


class Step(NamedTuple):
    """A jitted function, its first arguments, which are its first results, too, and the others. Made once.

    Attributes:
      params: The parameters among the results.
    """

    update: Callable
    state: tuple
    batch: tuple
    params: Callable[[Any], Any] = lambda results: results[0]


N_DEVICES = 2  # of the sharded step


def normal(*shape: int, seed: int = 0) -> jax.Array:
    x = np.random.default_rng((seed, *shape)).normal(size=shape) / np.sqrt(shape[0])
    return jnp.asarray(x, jnp.float32)


def dense(*sizes: int) -> list[dict]:
    return [{"w": normal(n, m), "b": jnp.zeros(m)} for n, m in itertools.pairwise(sizes)]


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@cache
def haiku_mnist() -> Step:
    """https://github.com/google-deepmind/dm-haiku/blob/main/examples/mnist.py"""
    import haiku as hk

    network = hk.without_apply_rng(
        hk.transform(lambda x: hk.Sequential([hk.Flatten(), hk.nets.MLP([300, 100, 10])])(x / 255.0))
    )
    tx = optax.adam(1e-3)

    def loss(params, x, labels):
        decay = 0.5 * sum(jnp.sum(jnp.square(p)) for p in jax.tree.leaves(params))
        return cross_entropy(network.apply(params, x), labels) + 1e-4 * decay

    @jax.jit
    def update(params, average, state, x, labels):
        updates, state = tx.update(jax.grad(loss)(params, x, labels), state)
        params = optax.apply_updates(params, updates)
        return params, optax.incremental_update(params, average, 0.001), state

    x = 255 * normal(8, 28, 28, 1)
    params = jax.jit(network.init)(jax.random.key(0), x)
    return Step(update, (params, jax.tree.map(jnp.copy, params), tx.init(params)), (x, jnp.arange(8)))


@cache
def graph_convolution() -> Step:
    """https://github.com/google-deepmind/jraph/blob/master/jraph/examples/zacharys_karate_club.py"""
    n_nodes, n_edges = 34, 156
    senders, receivers = np.random.default_rng(0).integers(0, n_nodes, (2, n_edges))
    degree = np.bincount(receivers, minlength=n_nodes) + 1.0
    scale = jnp.asarray(1 / np.sqrt(degree)[:, None], jnp.float32)
    tx = optax.adam(1e-2)

    def loss(params, x, labels):
        for layer in params:
            x = (x @ layer["w"] + layer["b"]) * scale
            x = (jax.ops.segment_sum(x[senders], receivers, n_nodes) + x) * scale
            x = x if layer is params[-1] else jax.nn.relu(x)
        return cross_entropy(x, labels)

    @jax.jit
    def update(params, state, x, labels):
        updates, state = tx.update(jax.grad(loss)(params, x, labels), state)
        return optax.apply_updates(params, updates), state

    params = dense(n_nodes, 5, 2)
    return Step(update, (params, tx.init(params)), (jnp.eye(n_nodes), jnp.arange(n_nodes) % 2))


@cache
def stax_mnist() -> Step:
    """https://github.com/jax-ml/jax/blob/main/examples/mnist_classifier.py"""
    from jax.example_libraries import optimizers, stax

    init, predict = stax.serial(stax.Dense(32), stax.Relu, stax.Dense(32), stax.Relu, stax.Dense(10), stax.LogSoftmax)
    opt_init, opt_update, get_params = optimizers.momentum(0.001, mass=0.9)

    def loss(params, x, targets):
        return -jnp.mean(jnp.sum(predict(params, x) * targets, axis=1))

    @jax.jit
    def update(i, state, x, targets):
        return i + 1, opt_update(i, jax.grad(loss)(get_params(state), x, targets), state)

    state = opt_init(init(jax.random.key(0), (-1, 784))[1])
    batch = normal(32, 784), jax.nn.one_hot(jnp.arange(32) % 10, 10)
    return Step(update, (jnp.int32(0), state), batch, lambda results: get_params(results[1]))


@cache
def stochastic_variational_inference() -> Step:
    """https://num.pyro.ai/en/stable/svi.html, with an `AutoNormal` guide of a logistic regression; by hand"""
    tx = optax.adam(1e-3)

    def loss(params, key, x, y):
        """The negative evidence lower bound: of a sample, less the log density of prior and data."""
        keys = jax.random.split(key, len(params["loc"]))
        z, log_density = {}, 0.0
        for name, one in zip(params["loc"], keys, strict=True):
            loc, scale = params["loc"][name], jax.nn.softplus(params["scale"][name])
            noise = jax.random.normal(one, loc.shape)
            z[name] = loc + scale * noise
            log_density += jnp.sum(-0.5 * z[name] ** 2 + 0.5 * noise**2 + jnp.log(scale))
        logits = x @ z["weights"] + z["bias"]
        return -log_density - jnp.sum(y * logits - jax.nn.softplus(logits))

    @jax.jit
    def update(params, state, key, x, y):
        key, one = jax.random.split(key)
        value, grads = jax.value_and_grad(loss)(params, one, x, y)
        updates, state = tx.update(grads, state)
        return optax.apply_updates(params, updates), state, key, value

    loc = {"weights": jnp.zeros(54), "bias": jnp.zeros(())}
    params = {"loc": loc, "scale": jax.tree.map(lambda x: x - 2, loc)}
    x = normal(500, 54)
    state = params, tx.init(params), jax.random.key(0)
    return Step(update, state, (x, (x[:, 0] > 0).astype(jnp.float32)))


@cache
def line_search() -> Step:
    """https://jaxopt.github.io/stable/_autosummary/jaxopt.GradientDescent.html: `update`, with backtracking; by hand"""

    def loss(params, x, labels):
        decay = 0.5e-3 * sum(jnp.sum(jnp.square(p)) for p in jax.tree.leaves(params))
        return cross_entropy(x @ params["w"] + params["b"], labels) + decay

    @jax.jit
    def update(params, velocity, t, stepsize, x, labels):
        value, grads = jax.value_and_grad(loss)(velocity, x, labels)
        square = sum(jnp.sum(g**2) for g in jax.tree.leaves(grads))

        def moved(size):
            return jax.tree.map(lambda p, g: p - size * g, velocity, grads)

        def is_too_long(size):
            return (loss(moved(size), x, labels) > value - 0.5 * size * square) & (size > 1e-6)

        stepsize = lax.while_loop(is_too_long, lambda size: size * 0.5, stepsize)
        following, t_next = moved(stepsize), 0.5 * (1 + jnp.sqrt(1 + 4 * t**2))
        velocity = jax.tree.map(lambda new, old: new + (t - 1) / t_next * (new - old), following, params)
        return following, velocity, t_next, jnp.minimum(stepsize * 2, 1.0), jnp.sqrt(square)

    params = {"w": jnp.zeros((64, 10)), "b": jnp.zeros(10)}
    return Step(
        update,
        (params, jax.tree.map(jnp.copy, params), jnp.float32(1), jnp.float32(1)),
        (8 * normal(200, 64), jnp.arange(200) % 10),
    )


@cache
def fully_sharded() -> Step:
    """https://docs.jax.dev/en/latest/notebooks/shard_map.html, its fully sharded data parallelism"""
    mesh = jax.make_mesh((N_DEVICES,), ("batch",))

    def loss(shards, x, y):
        params = jax.tree.map(lambda p: lax.all_gather(p, "batch", tiled=True), shards)
        for layer in params:
            x = jax.nn.relu(x @ layer["w"] + layer["b"])
        return lax.pmean(jnp.mean((x - y) ** 2), "batch")

    specs: Any = P("batch")
    whole = jax.shard_map(
        lambda shards, x, y: jax.tree.map(lambda p, g: p - 1e-2 * g, shards, jax.grad(loss)(shards, x, y)),
        mesh=mesh,
        in_specs=(specs, specs, specs),
        out_specs=specs,
    )
    put = NamedSharding(mesh, P("batch"))
    params = jax.device_put(dense(64, 128, 128, 64), put)
    return Step(
        jax.jit(lambda params, x, y: (whole(params, x, y),)),
        (params,),
        jax.device_put((normal(64, 64), normal(64, 64, seed=1)), put),
    )


PUBLISHED: dict[str, Callable[[], Step]] = {
    "Haiku's mnist": haiku_mnist,
    "a graph convolution": graph_convolution,
    "stax' mnist": stax_mnist,
    "SVI by hand": stochastic_variational_inference,
    "a line search": line_search,
    "FSDP": fully_sharded,
}
SHARDED = {"FSDP"}
