"""Training steps of the examples of JAX, Flax and Optax."""

from __future__ import annotations

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

# JAX


@published("https://docs.jax.dev/en/latest/working-with-pytrees.html")
def jax_documentation_mlp() -> Published:
    def loss(params, x, y):
        return squared(mlp(params, x), y)

    @jax.jit
    def update(params, x, y):
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, jax.grad(loss)(params, x, y))

    return Published(update, (dense(1, 16, 16, 1),), regression(1), lambda *call: [jax.grad(loss)(*call)])


@published("https://github.com/jax-ml/jax/blob/main/examples/mnist_classifier.py")
def jax_mnist_classifier() -> Published:
    from jax.example_libraries import optimizers, stax

    init, predict = stax.serial(stax.Dense(16), stax.Relu, stax.Dense(16), stax.Relu, stax.Dense(4), stax.LogSoftmax)
    opt_init, opt_update, get_params = optimizers.momentum(0.001, mass=0.9)

    def loss(params, x, labels):
        return -jnp.mean(jnp.sum(predict(params, x.reshape(len(x), -1)) * jax.nn.one_hot(labels, 4), axis=1))

    @jax.jit
    def update(i, state, x, labels):
        return i + 1, opt_update(i, jax.grad(loss)(get_params(state), x, labels), state)

    state = started(opt_init, initialized(lambda key: init(key, (-1, 64))[1], jax.random.key(0)))
    return Published(update, (0, state), images(), lambda _, s, *b: [jax.grad(loss)(get_params(s), *b)])


@published("https://github.com/jax-ml/jax/blob/main/examples/mnist_vae.py")
def jax_mnist_vae() -> Published:
    params = {"encoder": dense(64, 16, 8), "decoder": dense(4, 16, 64)}

    def loss(params, x, _):
        x = x.reshape(len(x), -1)
        mean, log_std = jnp.split(mlp(params["encoder"], x), 2, axis=-1)
        z = mean + jnp.exp(log_std) * jax.random.normal(jax.random.key(1), mean.shape)
        kl = 0.5 * jnp.mean(jnp.sum(jnp.exp(2 * log_std) + mean**2 - 1 - 2 * log_std, axis=-1))
        return kl - jnp.mean(jnp.sum(jax.nn.log_sigmoid(mlp(params["decoder"], z)) * jax.nn.sigmoid(x), axis=-1))

    return trained(loss, params, images())


@published("https://github.com/jax-ml/jax/blob/main/examples/differentially_private_sgd.py")
def jax_differentially_private_sgd() -> Published:
    def loss(params, x, y):
        return jnp.mean((mlp(params, x[None]) - y[None]) ** 2)

    def clipped(params, x, y):
        grads = jax.grad(loss)(params, x, y)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        return jax.tree.map(lambda g: g / jnp.maximum(norm / 1.5, 1.0), grads)

    @jax.jit
    def update(params, key, x, y):
        key, noise = jax.random.split(key)
        grads = jax.tree.map(lambda g: g.mean(axis=0), jax.vmap(clipped, (None, 0, 0))(params, x, y))
        grads = jax.tree.map(lambda g: g + 0.01 * jax.random.normal(noise, g.shape), grads)
        return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), key

    def each(params, key, x, y):
        return [jax.vmap(jax.grad(loss), (None, 0, 0))(params, x, y)]

    return Published(update, (dense(8, 16, 1), jax.random.PRNGKey(0)), regression(8, n=16), each)


# Flax


@published("https://github.com/google/flax/tree/main/examples/mnist")
def flax_linen_mnist() -> Published:
    from flax import linen as nn
    from flax.training.train_state import TrainState

    class CNN(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.avg_pool(nn.relu(nn.Conv(4, (3, 3))(x)), (2, 2), strides=(2, 2))
            x = nn.avg_pool(nn.relu(nn.Conv(8, (3, 3))(x)), (2, 2), strides=(2, 2))
            return nn.Dense(4)(nn.relu(nn.Dense(16)(x.reshape((x.shape[0], -1)))))

    model = CNN()

    def loss(params, x, labels):
        logits = model.apply({"params": params}, x)
        return cross_entropy(logits, labels), logits

    @jax.jit
    def train_step(state, x, labels):
        (value, logits), grads = jax.value_and_grad(loss, has_aux=True)(state.params, x, labels)
        return state.apply_gradients(grads=grads), value, jnp.mean(jnp.argmax(logits, -1) == labels)

    params = initialized(model.init, jax.random.key(0), jnp.ones((1, 8, 8, 1)))["params"]
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.sgd(0.05, 0.9))
    return Published(train_step, (state,), images(), lambda s, *b: [jax.grad(loss, has_aux=True)(s.params, *b)[0]])


@published("https://github.com/google/flax/tree/main/examples/imagenet")
def flax_resnet_with_batch_normalisation() -> Published:
    from flax import linen as nn

    class ResNet(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Conv(6, (3, 3), use_bias=False)(x)
            y = nn.relu(nn.BatchNorm(use_running_average=False)(x))
            y = nn.Conv(6, (3, 3), use_bias=False)(y)
            x = x + nn.BatchNorm(use_running_average=False, scale_init=nn.initializers.constant(0.5))(y)
            return nn.Dense(4)(x.mean((1, 2)))

    model, tx = ResNet(), optax.sgd(0.05, momentum=0.9, nesterov=True)
    params, stats = (
        (variables := initialized(model.init, jax.random.key(0), jnp.ones((1, 8, 8, 1))))["params"],
        variables["batch_stats"],
    )

    def loss(params, stats, x, labels):
        logits, changed = model.apply({"params": params, "batch_stats": stats}, x, mutable=["batch_stats"])
        decay = 0.5e-4 * sum(jnp.sum(w**2) for w in jax.tree.leaves(params) if w.ndim > 1)
        return cross_entropy(logits, labels) + decay, changed["batch_stats"]

    @jax.jit
    def train_step(params, stats, state, x, labels):
        grads, stats = jax.grad(loss, has_aux=True)(params, stats, x, labels)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), stats, state

    def apart(params, stats, state, x, labels):
        return [jax.grad(loss, has_aux=True)(params, stats, x, labels)[0]]

    return Published(train_step, (params, stats, started(tx.init, params)), images(), apart)


@published("https://github.com/google/flax/tree/main/examples/lm1b")
def flax_language_model() -> Published:
    from flax import linen as nn

    class Decoder(nn.Module):
        @nn.compact
        def __call__(self, words):
            x = nn.Embed(11, 16)(words)
            mask = nn.make_causal_mask(words)
            x = x + nn.MultiHeadDotProductAttention(2, use_bias=False)(nn.LayerNorm()(x), mask=mask)
            return nn.Dense(11)(nn.gelu(nn.LayerNorm()(x)))

    model = Decoder()

    def loss(params, words):
        return cross_entropy(model.apply(params, words[:, :-1]), words[:, 1:])

    params = initialized(model.init, jax.random.key(0), jnp.ones((1, 6), jnp.int32))
    return trained(loss, params, tokens(), optax.adamw(1e-3, b2=0.98, weight_decay=0.1))


@published("https://github.com/google/flax/tree/main/examples/ppo")
def flax_ppo() -> Published:
    params = {"shared": dense(6, 16, 16), "policy": dense(16, 3), "value": dense(16, 1)}

    def loss(params, x, actions, old, advantages, returns):
        hidden = jax.nn.relu(mlp(params["shared"], x))
        log_probs = jax.nn.log_softmax(mlp(params["policy"], hidden))
        ratio = jnp.exp(jnp.take_along_axis(log_probs, actions[:, None], 1)[:, 0] - old)
        clipped = jnp.minimum(ratio * advantages, jnp.clip(ratio, 0.9, 1.1) * advantages)
        entropy = -jnp.mean(jnp.sum(jnp.exp(log_probs) * log_probs, axis=1))
        return squared(mlp(params["value"], hidden)[:, 0], returns) - jnp.mean(clipped) - 0.01 * entropy

    def batch(step):
        x = normal(32, 6, seed=step) * 5
        advantages = normal(32, seed=step)
        return (
            x,
            np.arange(32) % 3,
            np.full(32, -1.1, np.float32),
            (advantages - advantages.mean()) / advantages.std(),
            x[:, 0],
        )

    return trained(loss, params, batch, optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-3)))


@published("https://flax.readthedocs.io/en/latest/mnist_tutorial.html")
def flax_nnx_mnist() -> Published:
    from flax import nnx

    class CNN(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.conv = nnx.Conv(1, 4, (3, 3), rngs=rngs)
            self.linear = nnx.Linear(4 * 16, 4, rngs=rngs)

        def __call__(self, x):
            x = nnx.avg_pool(nnx.relu(self.conv(x)), (2, 2), strides=(2, 2))
            return self.linear(x.reshape(x.shape[0], -1))

    graph, params = nnx.split(nnx.eval_shape(lambda: CNN(nnx.Rngs(0))))
    params = initialized(lambda: params)

    def loss(params, x, labels):
        return cross_entropy(nnx.merge(graph, params)(x), labels)

    return trained(loss, params, images(), optax.adamw(0.005, 0.9))


# Optax


@published("https://optax.readthedocs.io/en/latest/_collections/examples/lookahead_mnist.html")
def optax_lookahead() -> Published:
    tx = optax.lookahead(optax.sgd(1e-2), sync_period=5, slow_step_size=0.5)

    def loss(params, x, y):
        return squared(mlp(params, x), y)

    @jax.jit
    def step(params, state, x, y):
        updates, state = tx.update(jax.grad(loss)(params.fast, x, y), state, params)
        return optax.apply_updates(params, updates), state

    params = optax.LookaheadParams.init_synced(dense(8, 16, 1))
    return Published(
        step, (params, started(tx.init, params)), regression(8), lambda p, _, *b: [jax.grad(loss)(p.fast, *b)]
    )


@published("https://optax.readthedocs.io/en/latest/_collections/examples/adversarial_training.html")
def optax_adversarial_training() -> Published:
    def loss(params, x, y):
        return squared(mlp(params, x), y)

    def attacked(params, x, y):
        return loss(params, lax.stop_gradient(x + 0.01 * jnp.sign(jax.grad(loss, 1)(params, x, y))), y)

    return trained(attacked, dense(8, 16, 1), regression(8))


@published("https://optax.readthedocs.io/en/latest/_collections/examples/gradient_accumulation.html")
def optax_gradient_accumulation() -> Published:
    def loss(params, x, y):
        return squared(mlp(params, x), y)

    return trained(loss, dense(8, 16, 1), regression(8), optax.MultiSteps(optax.adam(1e-3), 4))


@published("https://optax.readthedocs.io/en/latest/_collections/examples/meta_learning.html")
def optax_meta_learning() -> Published:
    def loss(params, x, y):
        return squared(mlp(params, x), y)

    def after_one_step(params, x, y):
        fast = jax.tree.map(lambda p, g: p - 0.01 * g, params, jax.grad(loss)(params, x[:16], y[:16]))
        return loss(fast, x[16:], y[16:])

    return trained(after_one_step, dense(8, 16, 1), regression(8))


@published("https://optax.readthedocs.io/en/latest/_collections/examples/lbfgs.html")
def optax_lbfgs_with_a_line_search() -> Published:
    tx, batch = optax.lbfgs(), regression(8)(0)

    def loss(params, x, y):
        return squared(mlp(params, x), y)

    @jax.jit
    def step(params, state, x, y):
        def value_fn(params):
            return loss(params, x, y)

        value, grad = optax.value_and_grad_from_state(value_fn)(params, state=state)
        updates, state = tx.update(grad, state, params, value=value, grad=grad, value_fn=value_fn)
        return optax.apply_updates(params, updates), state

    def of_the_line_search(*call):  # which keeps it for the next step
        return [jax.grad(loss)(step(*call)[0], *batch)]

    params = dense(8, 16, 1)
    return Published(step, (params, started(tx.init, params)), lambda _: batch, of_the_line_search)


@published("https://optax.readthedocs.io/en/latest/api/contrib.html")
def optax_muon() -> Published:
    def loss(params, x, y):
        return squared(mlp(params, x), y)

    return trained(loss, dense(8, 16, 16, 1), regression(8), optax.contrib.muon(1e-2))
