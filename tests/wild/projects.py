"""Training steps of the examples of Equinox and Haiku, of other projects, and of papers."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from watched import started
from wild.published import (
    Published,
    cross_entropy,
    dense,
    images,
    initialized,
    mlp,
    normal,
    published,
    regression,
    squared,
    tokens,
    trained,
)


def of_equinox(make: Callable) -> tuple:
    """The arrays of a model and the rest of it."""
    import equinox as eqx

    shapes, static = eqx.partition(eqx.filter_eval_shape(make, jax.random.key(0)), lambda x: hasattr(x, "shape"))
    return initialized(lambda: shapes), static


@published("https://docs.kidger.site/equinox/examples/mnist/")
def equinox_mnist() -> Published:
    import equinox as eqx

    def make(key):
        layers = [eqx.nn.Conv2d(1, 3, 3, key=key), jax.nn.relu, jnp.ravel, eqx.nn.Linear(108, 4, key=key)]
        return eqx.nn.Sequential([eqx.nn.Lambda(f) if not isinstance(f, eqx.Module) else f for f in layers])

    params, static = of_equinox(make)

    def loss(params, x, labels):
        return cross_entropy(jax.vmap(eqx.combine(params, static))(x.transpose(0, 3, 1, 2)), labels)

    return trained(loss, params, images(), optax.adamw(3e-4))


@published("https://docs.kidger.site/equinox/examples/train_rnn/")
def equinox_rnn() -> Published:
    import equinox as eqx

    class RNN(eqx.Module):
        cell: eqx.nn.GRUCell
        linear: eqx.nn.Linear
        bias: jax.Array

        def __call__(self, x):
            hidden, _ = lax.scan(lambda h, x: (self.cell(x, h), None), jnp.zeros(8), x)
            return jax.nn.sigmoid(self.linear(hidden) + self.bias)

    def make(key):
        return RNN(eqx.nn.GRUCell(2, 8, key=key), eqx.nn.Linear(8, 1, use_bias=False, key=key), jnp.zeros(1))

    params, static = of_equinox(make)

    def loss(params, x, y):
        p = jax.vmap(eqx.combine(params, static))(x)
        return -jnp.mean(y * jnp.log(p) + (1 - y) * jnp.log(1 - p))

    def batch(step):
        y = np.arange(16, dtype=np.float32)[:, None] % 2
        angle = np.arange(8, dtype=np.float32) * (y - 0.5) + normal(16, 1, seed=step) * 4
        return np.stack([np.cos(angle), np.sin(angle)], axis=-1), y

    return trained(loss, params, batch, optax.adam(3e-3))


@published("https://docs.kidger.site/equinox/examples/deep_convolutional_gan/")
def equinox_gan() -> Published:
    generator, critic = dense(4, 16, 8), dense(8, 16, 1)
    tx = optax.adam(2e-4, b1=0.5)

    def critic_loss(critic, generator, noise, real):
        fake = mlp(generator, noise)
        return jnp.mean(jax.nn.softplus(-mlp(critic, real))) + jnp.mean(jax.nn.softplus(mlp(critic, fake)))

    def generator_loss(generator, critic, noise):
        return jnp.mean(jax.nn.softplus(-mlp(critic, mlp(generator, noise))))

    @jax.jit
    def step(critic, generator, critic_state, generator_state, noise, real):
        grads = jax.grad(critic_loss)(critic, generator, noise, real)
        updates, critic_state = tx.update(grads, critic_state)
        critic = optax.apply_updates(critic, updates)
        grads = jax.grad(generator_loss)(generator, critic, noise)
        updates, generator_state = tx.update(grads, generator_state)
        return critic, optax.apply_updates(generator, updates), critic_state, generator_state

    def apart(critic, generator, critic_state, generator_state, noise, real):
        moved = step(critic, generator, critic_state, generator_state, noise, real)[0]
        return [
            jax.grad(critic_loss)(critic, generator, noise, real),
            jax.grad(generator_loss)(generator, moved, noise),
        ]

    def batch(step):
        return normal(16, 4, seed=step) * 4, normal(16, 8, seed=100 + step) * 4 + 1

    return Published(
        step, (critic, generator, *started(lambda *p: [*map(tx.init, p)], critic, generator)), batch, apart
    )


@published("https://github.com/google-deepmind/dm-haiku/blob/main/examples/mnist.py")
def haiku_mnist() -> Published:
    import haiku as hk

    network = hk.without_apply_rng(hk.transform(lambda x: hk.Sequential([hk.Flatten(), hk.nets.MLP([16, 4])])(x)))
    tx = optax.adam(1e-3)

    def loss(params, x, labels):
        decay = 0.5 * sum(jnp.sum(jnp.square(p)) for p in jax.tree.leaves(params))
        return cross_entropy(network.apply(params, x), labels) + 1e-4 * decay

    @jax.jit
    def update(params, average, state, x, labels):
        updates, state = tx.update(jax.grad(loss)(params, x, labels), state)
        params = optax.apply_updates(params, updates)
        return params, optax.incremental_update(params, average, 0.001), state

    params = initialized(network.init, jax.random.key(0), images()(0)[0])
    state = params, params, started(tx.init, params)
    return Published(update, state, images(), lambda p, _, __, *b: [jax.grad(loss)(p, *b)])


@published("https://github.com/vwxyzjn/cleanrl/blob/master/cleanrl/td3_continuous_action_jax.py")
def cleanrl_critic() -> Published:
    critic = dense(10, 32, 1)
    tx = optax.adam(3e-4)

    def loss(critic, target, x, rewards, following):
        aim = lax.stop_gradient(rewards + 0.99 * mlp(target, following)[:, 0])
        return squared(mlp(critic, x)[:, 0], aim)

    @jax.jit
    def update(critic, target, state, *batch):
        updates, state = tx.update(jax.grad(loss)(critic, target, *batch), state)
        critic = optax.apply_updates(critic, updates)
        return critic, optax.incremental_update(critic, target, 0.005), state

    def batch(step):
        x = normal(32, 10, seed=step) * 5
        return x, np.tanh(x[:, 0]), normal(32, 10, seed=50 + step) * 5

    state = critic, critic, started(tx.init, critic)
    return Published(update, state, batch, lambda c, t, _, *b: [jax.grad(loss)(c, t, *b)])


@published("https://github.com/ikostrikov/jaxrl/tree/main/jaxrl/agents/sac")
def jaxrl_actor_with_a_temperature() -> Published:
    params = {"actor": dense(6, 16, 4), "temperature": np.zeros((), np.float32)}
    critic = dense(8, 16, 1)

    def loss(params, x, noise):
        mean, log_std = jnp.split(mlp(params["actor"], x), 2, axis=-1)
        action = jnp.tanh(mean + jnp.exp(jnp.clip(log_std, -5, 2)) * noise)
        log_prob = jnp.sum(-0.5 * noise**2 - log_std - jnp.log(1 - action**2 + 1e-6), axis=-1)
        q = mlp(critic, jnp.concatenate([x, action], axis=-1))[:, 0]
        temperature = jnp.exp(params["temperature"])
        entropy = temperature * lax.stop_gradient(-log_prob - 2.0).mean()
        return jnp.mean(lax.stop_gradient(temperature) * log_prob - q) + entropy

    return trained(
        loss, params, lambda step: (normal(32, 6, seed=step) * 5, normal(32, 2, seed=step) * 5), optax.adam(3e-4)
    )


@published("https://github.com/luchris429/purejaxrl/blob/main/purejaxrl/ppo.py")
def purejaxrl_epochs_in_a_scan() -> Published:
    tx = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(2.5e-4, eps=1e-5))

    def loss(params, x, y):
        return squared(mlp(params, x, jnp.tanh), y)

    @jax.jit
    def update(params, state, x, y):
        def minibatch(carry, batch):
            params, state = carry
            value, grads = jax.value_and_grad(loss)(params, *batch)
            updates, state = tx.update(grads, state)
            return (optax.apply_updates(params, updates), state), value

        return lax.scan(minibatch, (params, state), (x.reshape(4, -1, 8), y.reshape(4, -1, 1)))[0]

    def apart(params, state, x, y):
        for at in range(0, 24, 8):  # the last of four is measured last
            updates, state = tx.update(jax.grad(loss)(params, x[at : at + 8], y[at : at + 8]), state)
            params = optax.apply_updates(params, updates)
        return [jax.grad(loss)(params, x[24:], y[24:])]

    params = dense(8, 16, 1)
    return Published(update, (params, started(tx.init, params)), regression(8), apart)


@published("https://github.com/google-deepmind/jraph/blob/master/jraph/examples/zacharys_karate_club.py")
def jraph_graph_convolution() -> Published:
    senders, receivers = np.arange(24) % 12, (np.arange(24) * 5 + 1) % 12

    def loss(params, x, labels):
        for layer in params:
            x = jax.ops.segment_sum(mlp([layer], x)[senders], receivers, 12) / 2 + mlp([layer], x)
            x = x if layer is params[-1] else jax.nn.relu(x)
        return cross_entropy(x, labels)

    return trained(
        loss, dense(4, 8, 8, 2), lambda step: (normal(12, 4, seed=1) * 3, np.arange(12) % 2), optax.adam(1e-2)
    )


@published("https://docs.kidger.site/diffrax/examples/neural_ode/")
def diffrax_neural_ode() -> Published:
    def solve(params, y):
        def euler(y, _):
            return y + 0.1 * mlp(params, y, jax.nn.softplus), y

        return lax.scan(euler, y, None, length=8)[1]

    def loss(params, y, path):
        return squared(solve(params, y), path)

    def batch(step):
        y = normal(8, 2, seed=step) * 2
        angle = 0.1 * np.arange(8, dtype=np.float32)[:, None, None]
        return y, np.cos(angle) * y + np.sin(angle) * y[:, ::-1] * np.float32([1, -1])

    return trained(loss, dense(2, 8, 2), batch, optax.adabelief(3e-3))


@published("https://github.com/AI-Hypercomputer/maxtext")
def maxtext_layers_in_a_scan() -> Published:
    layers = {"w": np.stack([normal(16, 16, seed=i) for i in range(4)]), "scale": np.ones((4, 16), np.float32)}
    params = {"embed": normal(11, 16) * 3, "layers": layers, "out": normal(16, 11)}

    def loss(params, words):
        @jax.checkpoint
        def layer(x, layer):
            y = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * layer["scale"]
            return x + jax.nn.gelu(y @ layer["w"]), None

        x = lax.scan(layer, params["embed"][words[:, :-1]], params["layers"])[0]
        return cross_entropy(x @ params["out"], words[:, 1:])

    def apart(params, _, words):  # a row for each layer
        grads = jax.grad(loss)(params, words)
        return [{**grads, "layers": {name: list(stack) for name, stack in grads["layers"].items()}}]

    return trained(loss, params, tokens(), optax.adamw(1e-3))._replace(gradients=apart)


@published("https://github.com/karpathy/nanoGPT")
def nano_gpt() -> Published:
    block = {"norm": np.ones(16, np.float32), "qkv": normal(16, 48), "o": normal(16, 16), "mlp": dense(16, 32, 16)}
    params = {
        "embed": normal(11, 16),
        "place": normal(6, 16),
        "blocks": [block],
    }
    mask = np.tril(np.ones((6, 6), bool))

    def normed(x, scale):
        x = x - x.mean(-1, keepdims=True)
        return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * scale

    def loss(params, words):
        x = params["embed"][words[:, :-1]] + params["place"]
        for block in params["blocks"]:
            q, k, v = jnp.split(normed(x, block["norm"]) @ block["qkv"], 3, axis=-1)
            weights = jax.nn.softmax(jnp.where(mask, jnp.einsum("bik,bjk->bij", q, k) / 4, -1e30))
            x = x + jnp.einsum("bij,bjk->bik", weights, v) @ block["o"]
            x = x + mlp(block["mlp"], normed(x, block["norm"]), jax.nn.gelu)
        return cross_entropy(x @ params["embed"].T, words[:, 1:])  # the embedding is the head, too

    schedule = optax.warmup_cosine_decay_schedule(1e-4, 1e-3, 5, 40)
    return trained(loss, params, tokens(), optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, b2=0.95)))


@published("https://arxiv.org/abs/2106.09685")
def lora_fine_tuning() -> Published:
    frozen = dense(8, 16, 1)
    added = [{"down": normal(n, 2), "up": normal(2, m, seed=1) * 0.1} for n, m in ((8, 16), (16, 1))]

    def loss(added, x, y):
        layers = [{**old, "w": old["w"] + new["down"] @ new["up"]} for old, new in zip(frozen, added, strict=True)]
        return squared(mlp(layers, x), y)

    return trained(loss, added, regression(8), optax.adamw(1e-3))


@published("https://arxiv.org/abs/2006.11239")
def denoising_diffusion() -> Published:
    def loss(params, x, noise, time):
        kept = jnp.cos(time * 1.5)[:, None]
        noisy = kept * x + jnp.sqrt(1 - kept**2) * noise
        return squared(mlp(params, jnp.concatenate([noisy, time[:, None]], axis=1), jax.nn.silu), noise)

    def batch(step):
        rng = np.random.default_rng(step)
        return normal(16, 4, seed=step) * 4, normal(16, 4, seed=99 + step) * 4, rng.random(16, np.float32)

    return trained(loss, dense(5, 16, 4), batch, optax.adam(2e-4))


@published("https://github.com/e3nn/e3nn-jax/blob/main/examples/tetris_point.py")
def e3nn_tetris() -> Published:
    """Of the flat pieces: their pseudoscalars are zero by symmetry, and so are the gradients of what they go into."""
    pieces = np.array(
        [
            [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]],
            [[0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 0, 3]],
            [[0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 1, 0]],
            [[0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 1, 1]],
        ],
        np.float32,
    )
    layer = {"w[0,0] 8x0e,8x0e": normal(8, 8), "w[1,1] 8x1o,8x1o": normal(8, 8), "w[2,2] 8x1e,8x1e": normal(8, 8)}
    params = {
        "Layer_0": {"linear": {"w[0,0] 1x0e,8x0e": normal(1, 8), "w[1,1] 1x1o,8x1o": normal(1, 8)}},
        "Layer_1": {"linear": {**layer, "w[3,3] 8x0o,8x0o": normal(8, 8)}},
        "out": {"w[0,0] 16x0e,4x0e": normal(16, 4), "w[3,0] 8x0o,4x0e": normal(8, 4)},
    }

    def loss(params, places, labels):
        first, second, out = ([*(layer.get("linear") or layer).values()] for layer in params.values())
        away = places[:, None] - places[:, :, None]  # [piece, from, to, xyz]
        near = (jnp.abs(away).sum(-1, keepdims=True) == 1).astype(jnp.float32)
        scalars = jax.nn.silu(near.sum(2) @ first[0])
        vectors = jnp.einsum("pijx,pijo,oc->picx", away, near, first[1])
        turned = jnp.cross(vectors[:, None], away[..., None, :])  # pseudovectors
        turned = jnp.einsum("pijcx,pijo,cd->pidx", turned, near, second[2])
        vectors = jnp.einsum("picx,cd->pidx", vectors, second[1])
        odd = jnp.einsum("picx,picx->pic", vectors, turned) @ second[3]
        even = [jax.nn.silu(scalars @ second[0]), jnp.sum(turned**2 + vectors**2, -1)]
        return cross_entropy((jnp.concatenate(even, -1) @ out[0] + odd @ out[1]).sum(1), labels)

    return trained(loss, params, lambda step: (pieces, np.arange(4)), optax.adam(1e-2))
