"""Training steps of images, physics and graphs, and of Keras, NNX and Penzai."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from watched import started
from wild.published import Published, cross_entropy, dense, images, mlp, normal, published, regression, squared, trained


@published("https://keras.io/guides/writing_a_custom_training_loop_in_jax/")
def keras_stateless_loop(*, rate: Any = 1e-3, epsilon: float = 1e-3) -> Published:
    """Lists of variables: trained, not trained (of a batch normalisation and a seed), the optimizer's, and metrics'."""
    kernels = [normal(64, 16, seed=1), normal(16, 16, seed=2), normal(16, 4, seed=3)]
    trainable = [kernels[0], np.zeros(16, np.float32), np.ones(16, np.float32), np.zeros(16, np.float32)]
    trainable += [kernels[1], np.zeros(16, np.float32), kernels[2], np.zeros(4, np.float32)]
    others = [np.zeros(16, np.float32), np.ones(16, np.float32), np.array([0, 1], np.uint32)]

    def call(trainable, others, x):
        k0, b0, gamma, beta, k1, b1, k2, b2 = trainable
        mean, var, seed = others
        y = x.reshape(len(x), -1) @ k0 + b0
        batch_mean, batch_var = y.mean(0), y.var(0)
        y = jax.nn.relu(gamma * (y - batch_mean) * lax.rsqrt(batch_var + epsilon) + beta)
        kept = jax.random.bernoulli(jax.random.wrap_key_data(seed), 0.8, y.shape)
        y = jax.nn.relu(jnp.where(kept, y / 0.8, 0.0) @ k1 + b1)
        others = [0.99 * mean + 0.01 * batch_mean, 0.99 * var + 0.01 * batch_var, seed + jnp.array([0, 1], jnp.uint32)]
        return y @ k2 + b2, others

    def loss(trainable, others, x, labels):
        predicted, others = call(trainable, others, x)
        return cross_entropy(predicted, labels), (predicted, others)

    def applied(optimizer, grads, trainable):
        iterations, *moments = optimizer
        iterations = iterations + 1
        n, new, after = len(grads), [], []
        scale = jnp.sqrt(1 - 0.999**iterations) / (1 - 0.9**iterations)
        for m, v, g, p in zip(moments[:n], moments[n:], grads, trainable, strict=True):
            m, v = m + (g - m) * (1 - 0.9), v + (g**2 - v) * (1 - 0.999)
            new.append(p - rate * scale * m / (jnp.sqrt(v) + 1e-7))
            after.append((m, v))
        return new, [iterations, *(m for m, _ in after), *(v for _, v in after)]

    @jax.jit
    def train_step(state, x, labels):
        trainable, others, optimizer, metrics = state
        compute = jax.value_and_grad(loss, has_aux=True)
        (value, (predicted, others)), grads = compute(trainable, others, x, labels)
        trainable, optimizer = applied(optimizer, grads, trainable)
        right = jnp.sum(jnp.argmax(predicted, -1) == labels)
        return (trainable, others, optimizer, [metrics[0] + right, metrics[1] + len(x)]), value

    zeros = [np.zeros_like(p) for p in trainable * 2]
    state = trainable, others, [np.float32(0), *zeros], [np.float32(0), np.float32(0)]
    return Published(
        train_step, (state,), images(n=16), lambda s, *b: [jax.grad(loss, has_aux=True)(s[0], s[1], *b)[0]]
    )


@published("https://flax.readthedocs.io/en/latest/guides/performance.html")
def nnx_split_once(*, tx: Any = None, change: Callable = lambda model: None, before_head=lambda x: x) -> Published:
    """A convolutional network with batch norms and dropout; model, optimizer and metrics are split once, and merged."""
    from flax import nnx

    class CNN(nnx.Module):
        def __init__(self, rngs):
            self.conv1 = nnx.Conv(1, 8, (3, 3), rngs=rngs)
            self.batch_norm1 = nnx.BatchNorm(8, rngs=rngs)
            self.conv2 = nnx.Conv(8, 8, (3, 3), rngs=rngs)
            self.dropout = nnx.Dropout(0.1, rngs=rngs)
            self.linear1 = nnx.Linear(32, 16, rngs=rngs)
            self.linear2 = nnx.Linear(16, 4, rngs=rngs)

        def __call__(self, x):
            x = nnx.avg_pool(nnx.relu(self.batch_norm1(self.conv1(x))), (2, 2), strides=(2, 2))
            x = nnx.avg_pool(nnx.relu(self.conv2(x)), (2, 2), strides=(2, 2)).reshape(len(x), -1)
            return self.linear2(before_head(nnx.relu(self.linear1(self.dropout(x)))))

    model = CNN(nnx.Rngs(0))
    change(model)
    optimizer = nnx.Optimizer(model, tx or optax.adamw(3e-3), wrt=nnx.Param)
    graph, state = nnx.split((model, optimizer))

    def loss(model, x, labels):
        logits = model(x)
        return cross_entropy(logits, labels), logits

    @jax.jit
    def train_step(state, x, labels):
        model, optimizer = nnx.merge(graph, state)
        model.train()
        (value, _), grads = nnx.value_and_grad(loss, has_aux=True)(model, x, labels)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), value

    return Published(train_step, (state,), images(n=16), lambda *_: [])


@published("https://github.com/google-deepmind/penzai/blob/main/penzai/toolshed/basic_training.py")
def penzai_trainer(*, activation: Callable = jax.nn.relu) -> Published:
    """Named arrays; parameters come as a tuple of values and are bound to a model without them."""
    from penzai import pz
    from penzai.models import simple_mlp

    model = simple_mlp.MLP.from_config(jax.random.key(0), [8, 16, 16, 1], activation_fn=activation)
    unbound, variables = pz.unbind_params(model)
    params, tx = pz.freeze_params(variables), optax.adam(3e-3)

    def loss(params, x, y):
        model = pz.bind_variables(unbound, params)
        return squared(model(pz.nx.wrap(x).tag("batch", "features")).unwrap("batch", "features"), y)

    @jax.jit
    def step(params, state, x, y):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return Published(step, (params, tx.init(params)), regression(8), lambda p, _, *b: [jax.grad(loss)(p, *b)])


@published("https://github.com/google-research/big_vision/blob/main/big_vision/trainers/proj/image_text/siglip.py")
def big_vision_siglip(*, dtype: Any = np.float32, rate: float = 1e-3) -> Published:
    """A vision transformer with a scan over layers beside a text tower; a sigmoid for each pair, scale and bias."""
    width = 16

    def layer(seed):
        return {
            "MultiHeadDotProductAttention_0": {"qkv": normal(width, 3 * width, seed=seed),
                                               "out": normal(width, width, seed=seed + 1)},
            "MlpBlock_0": dense(width, 2 * width, width)[0] | {"out": normal(2 * width, width, seed=seed + 2)},
            "LayerNorm_0": {"scale": np.ones(width, np.float32), "bias": np.zeros(width, np.float32)},
        }  # fmt: skip

    def tower(seed):
        return jax.tree.map(lambda *x: np.stack(x), layer(seed), layer(seed + 10), layer(seed + 20))

    params = {
        "img": {"embedding": normal(16, width, seed=1), "pos": 0.1 * normal(4, width, seed=2), "encoder": tower(100)},
        "txt": {"Embed_0": normal(11, width, seed=3) * 3, "encoder": tower(200), "head": normal(width, width, seed=4)},
        "t": np.full(1, np.log(10), np.float32),
        "b": np.full(1, -3, np.float32),
    }
    params = jax.tree.map(lambda p: p.astype(dtype), params)

    def encoded(stack, x):
        def block(x, p):
            y = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)
            y = y * p["LayerNorm_0"]["scale"] + p["LayerNorm_0"]["bias"]
            q, k, v = jnp.split(y @ p["MultiHeadDotProductAttention_0"]["qkv"], 3, -1)
            weights = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k) / 4)
            x = x + jnp.einsum("bqk,bkd->bqd", weights, v) @ p["MultiHeadDotProductAttention_0"]["out"]
            return x + jax.nn.gelu(x @ p["MlpBlock_0"]["w"] + p["MlpBlock_0"]["b"]) @ p["MlpBlock_0"]["out"], None

        x = lax.scan(block, x, stack)[0].mean(1)
        return x / (jnp.linalg.norm(x, axis=-1, keepdims=True) + 1e-8)

    def loss(params, pictures, words):
        patches = pictures.reshape(-1, 2, 4, 2, 4).swapaxes(2, 3).reshape(-1, 4, 16).astype(dtype)
        img = encoded(params["img"]["encoder"], patches @ params["img"]["embedding"] + params["img"]["pos"])
        txt = encoded(params["txt"]["encoder"], params["txt"]["Embed_0"][words] @ params["txt"]["head"])
        logits = (img @ txt.T * jnp.exp(params["t"]) + params["b"]).astype(jnp.float32)
        return -jnp.mean(jnp.sum(jax.nn.log_sigmoid((2 * jnp.eye(len(img)) - 1) * logits), -1))

    tx = optax.chain(
        optax.clip_by_global_norm(10.0),
        optax.scale_by_adam(b2=0.95, mu_dtype=jnp.bfloat16),
        optax.add_decayed_weights(1e-4, lambda p: jax.tree.map(lambda x: x.ndim > 1, p)),
        optax.scale_by_learning_rate(optax.warmup_cosine_decay_schedule(0.0, rate, 5, 200)),
    )

    @functools.partial(jax.jit, donate_argnums=0)
    def update_fn(state, rng, batch):
        params, opt = state["params"], state["opt"]
        value, grads = jax.value_and_grad(loss)(params, batch["image"], batch["labels"])
        updates, opt = tx.update(grads, opt, params)
        params = optax.apply_updates(params, updates)
        norms = {"l2_grads": grads, "l2_params": params, "l2_updates": updates}
        return (
            {"params": params, "opt": opt},
            rng,
            {"loss": value} | jax.tree.map(optax.global_norm, norms, is_leaf=lambda x: x is not norms),
        )

    def batch(step):
        pictures, kinds = images(8)(step)
        return ({"image": pictures[..., 0], "labels": (kinds[:, None] + np.arange(4)) % 11},)

    state = {"params": jax.tree.map(jnp.asarray, params), "opt": started(tx.init, params)}
    return Published(update_fn, (state, jax.random.PRNGKey(0)), batch, lambda *_: [])


@published("https://github.com/google-deepmind/deepmind-research/blob/master/byol/byol_experiment.py")
def byol_online_and_target() -> Published:
    """Haiku networks with batch norms: an online one predicts a target that follows it; LARS with a mask."""
    import haiku as hk

    def network(x, is_training=True):
        normed = functools.partial(hk.BatchNorm, True, True, 0.9)
        x = jax.nn.relu(normed(name="bn_0")(hk.Conv2D(8, 3, with_bias=False)(x), is_training)).mean((1, 2))
        projected = hk.Linear(8, name="projector_1")(
            jax.nn.relu(normed(name="bn_1")(hk.Linear(16, name="projector_0")(x), is_training))
        )
        predicted = hk.Linear(8, name="predictor_1")(jax.nn.relu(hk.Linear(16, name="predictor_0")(projected)))
        return {
            "projection": projected,
            "prediction": predicted,
            "logits": hk.Linear(4, name="classifier")(lax.stop_gradient(x)),
        }

    forward = hk.without_apply_rng(hk.transform_with_state(network))

    def away(x, y):
        x, y = (v / jnp.sqrt(jnp.maximum(jnp.sum(v**2, -1, keepdims=True), 1e-6)) for v in (x, y))
        return jnp.sum((x - y) ** 2, -1)

    def loss(online, target, state, views, labels):
        out = []
        for x in views:
            found, state = forward.apply(online, state, x)
            out.append(found)
        aims = [lax.stop_gradient(forward.apply(target, state, x)[0]["projection"]) for x in views]
        value = jnp.mean(away(out[0]["prediction"], aims[1]) + away(out[1]["prediction"], aims[0]))
        return value + cross_entropy(out[0]["logits"], labels), state

    def is_matrix(params):
        return jax.tree.map(lambda p: p.ndim > 1, params)

    tx = optax.lars(0.2, 1.5e-6, is_matrix, 1e-3, trust_ratio_mask=is_matrix)

    @jax.jit
    def update(online, target, state, opt_state, step, *batch):
        (value, state), grads = jax.value_and_grad(loss, has_aux=True)(online, target, state, *batch)
        updates, opt_state = tx.update(grads, opt_state, online)
        online = optax.apply_updates(online, updates)
        tau = 1 - (1 - 0.99) * (jnp.cos(jnp.pi * step / 1000) + 1) / 2
        target = jax.tree.map(lambda t, o: tau * t + (1 - tau) * o, target, online)
        return online, target, state, opt_state, step + 1, value

    def batch(step):
        x, labels = images(n=16)(step)
        return (x + 0.1 * normal(*x.shape, seed=1 + step), x[:, :, ::-1]), labels

    online, state = jax.jit(forward.init)(jax.random.key(0), np.ones((1, 8, 8, 1), np.float32))
    target = jax.tree.map(jnp.copy, online)
    return Published(update, (online, target, state, tx.init(online), np.float32(0)), batch, lambda *_: [])


@published("https://github.com/google-research/google-research/blob/master/jaxnerf/train.py")
def jaxnerf_coarse_and_fine(*, density: Callable = jax.nn.softplus, density_bias: float = 0.0) -> Published:
    """Rays through two networks of encoded places, composed by transmittance; the fine samples follow the coarse."""
    n_coded = 3 * 2 * 4

    def network(seed):
        made = {"trunk": dense(n_coded, 32, 32, 32), "sigma": dense(32, 1)[0], "rgb": dense(32, 16, 3)}
        return jax.tree.map(lambda p: np.float32(p * (1 + 0.01 * seed)), made)

    params = {"coarse": network(0), "fine": network(1)}
    params = jax.tree_util.tree_map_with_path(
        lambda path, p: p + density_bias if "sigma" in jax.tree_util.keystr(path) and p.ndim == 1 else p, params
    )

    def coded(x):
        angles = x[..., None] * 2.0 ** np.arange(4)
        return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1).reshape(*x.shape[:-1], -1)

    def rendered(p, origins, directions, depths):
        x = origins[:, None] + directions[:, None] * depths[..., None]
        y = jax.nn.relu(mlp(p["trunk"], coded(x)))
        sigma = density(y @ p["sigma"]["w"] + p["sigma"]["b"])[..., 0]
        alpha = 1 - jnp.exp(-sigma * jnp.diff(depths, append=depths[:, -1:] + 0.3))
        through = jnp.cumprod(jnp.concatenate([jnp.ones_like(alpha[:, :1]), 1 - alpha[:, :-1] + 1e-10], -1), -1)
        weights = alpha * through
        return jnp.sum(weights[..., None] * jax.nn.sigmoid(mlp(p["rgb"], y)), 1), weights

    def loss(params, key, rays, pixels):
        depths = jnp.linspace(1.0, 3.0, 8) + 0.2 * jax.random.uniform(key, (len(pixels), 8))
        coarse, weights = rendered(params["coarse"], *rays, depths)
        sums = jnp.cumsum(lax.stop_gradient(weights) + 1e-2, -1)
        at = jnp.linspace(0.05, 0.95, 8) * sums[:, -1:]
        near = jax.vmap(jnp.interp)(at, sums, depths)
        fine, _ = rendered(params["fine"], *rays, jnp.sort(jnp.concatenate([depths, near], -1), -1))
        decay = sum(jnp.sum(p**2) for p in jax.tree.leaves(params)) / 4000
        return squared(fine, pixels) + 0.1 * squared(coarse, pixels) + 0.0 * decay

    def batch(step):
        rng = np.random.default_rng(step)
        origins = np.float32(rng.normal(size=(32, 3)) * 0.1)
        directions = np.float32(rng.normal(size=(32, 3)) * 0.2 + [0, 0, 1])
        return jax.random.PRNGKey(step), (origins, directions), 0.5 + 0.4 * np.sin(2 * directions)

    return trained(loss, params, batch, optax.adam(optax.exponential_decay(2e-3, 1000, 0.1)))


@published("https://github.com/PredictiveIntelligenceLab/jaxpi/blob/main/jaxpi/models.py")
def jaxpi_weighted_losses() -> Published:
    """Residuals of the heat equation by second derivatives, weights that balance the norms of three gradients."""
    params = {"fourier": normal(2, 8, seed=5) * 2, "network": dense(16, 32, 32, 1)}

    def u(params, t, x):
        angle = jnp.stack([t, x]) @ params["fourier"]
        return mlp(params["network"], jnp.concatenate([jnp.sin(angle), jnp.cos(angle)]), jnp.tanh)[0]

    def residual(params, t, x):
        return jax.grad(u, 1)(params, t, x) - 0.1 * jax.grad(jax.grad(u, 2), 2)(params, t, x)

    def losses(params, t, x):
        each = jax.vmap(u, (None, 0, 0))
        first = each(params, jnp.zeros_like(x), x) - jnp.sin(jnp.pi * x)
        edge = each(params, t, jnp.ones_like(t)) - each(params, t, -jnp.ones_like(t))
        inside = jax.vmap(residual, (None, 0, 0))(params, t, x)
        return {"ics": jnp.mean(first**2), "bcs": jnp.mean(edge**2), "res": jnp.mean(inside**2)}

    tx = optax.adam(optax.exponential_decay(1e-3, 2000, 0.9))

    @jax.jit
    def step(params, state, weights, t, x):
        grads = jax.jacrev(losses)(params, t, x)
        norms = {name: optax.global_norm(g) for name, g in grads.items()}
        total = sum(norms.values())
        weights = {name: 0.9 * w + 0.1 * total / (norms[name] + 1e-5 * total) for name, w in weights.items()}

        def weighted(params):
            return sum(lax.stop_gradient(weights[name]) * value for name, value in losses(params, t, x).items())

        value, grads = jax.value_and_grad(weighted)(params)
        updates, state = tx.update(grads, state)
        return optax.apply_updates(params, updates), state, weights, value

    def batch(step):
        rng = np.random.default_rng(step)
        return np.float32(rng.random(16)), np.float32(rng.uniform(-1, 1, 16))

    weights = {name: np.float32(1) for name in ("ics", "bcs", "res")}
    return Published(step, (params, tx.init(params), weights), batch, lambda *_: [])


@published("https://github.com/mir-group/nequip-jax")
def forces_of_a_potential(
    *, distance: Callable = lambda square: jnp.sqrt(jnp.where(square > 0, square, 1.0))
) -> Published:
    """Energies of atoms and forces, which are gradients inside the loss; messages along edges by segment sums."""
    params = {
        "species": normal(3, 8, seed=1) * 2,
        "layers": [{"radial": dense(6, 16, 8), "mix": dense(8, 8)[0]} for _ in range(2)],
        "readout": dense(8, 16, 1),
    }
    senders, receivers = np.nonzero(~np.eye(5, dtype=bool))

    def energy(params, places, species):
        away = places[senders] - places[receivers]
        length = distance(jnp.sum(away**2, -1))[:, None]
        waves = jnp.sin(np.arange(1, 7) * np.pi * length / 4) / length * jnp.where(length < 4, (1 - length / 4) ** 2, 0)
        x = params["species"][species]
        for p in params["layers"]:
            messages = mlp(p["radial"], waves, jax.nn.silu) * x[senders]
            x = x + jax.nn.silu(jax.ops.segment_sum(messages, receivers, 5) @ p["mix"]["w"] + p["mix"]["b"])
        return jnp.sum(mlp(params["readout"], x, jax.nn.silu))

    def loss(params, places, species, energies, forces):
        found, slopes = jax.vmap(jax.value_and_grad(energy, 1), (None, 0, 0))(params, places, species)
        return squared(found / 5, energies / 5) + 10 * squared(-slopes, forces)

    def batch(step):
        rng = np.random.default_rng(step)
        grid = np.array([[0, 0, 0], [1.5, 0, 0], [0, 1.5, 0], [0, 0, 1.5], [1.5, 1.5, 0]])
        places = np.float32(grid + 0.1 * rng.normal(size=(8, 5, 3)))
        return (
            places,
            rng.integers(0, 3, (8, 5)),
            np.float32(places.std((1, 2))),
            np.float32(0.1 * (places - places.mean(1, keepdims=True))),
        )

    tx = optax.chain(optax.clip_by_global_norm(10.0), optax.amsgrad(3e-3), optax.ema(0.99))
    return trained(loss, params, batch, tx)


@published("https://github.com/google/flax/tree/main/examples/ogbg_molpcba")
def flax_molecules(*, n_kinds: int = 6) -> Published:
    """Graphs that are padded to one size, in a Linen network of Jraph's kind; labels that are unknown are left out."""
    from flax import linen as nn

    n_nodes, n_edges, n_graphs = 20, 40, 5

    class GraphNetwork(nn.Module):
        @nn.compact
        def __call__(self, nodes, edges, senders, receivers, graph_of):
            x = nn.Embed(n_kinds, 12)(nodes)
            e = nn.Dense(12)(edges)
            for _ in range(2):
                e = nn.relu(nn.Dense(12)(jnp.concatenate([e, x[senders], x[receivers]], -1)))
                into = jax.ops.segment_sum(e, receivers, n_nodes)
                x = nn.LayerNorm()(x + nn.relu(nn.Dense(12)(jnp.concatenate([x, into], -1))))
            pooled = jax.ops.segment_sum(x, graph_of, n_graphs)
            pooled = pooled / jnp.maximum(jnp.bincount(graph_of, length=n_graphs), 1)[:, None]
            return nn.Dense(3)(pooled)

    model = GraphNetwork()

    def loss(params, graph, labels):
        logits = model.apply(params, *graph)
        mask = ~jnp.isnan(labels) & (jnp.arange(n_graphs) < n_graphs - 1)[:, None]
        labels = jnp.where(mask, labels, 0.0)
        each = jnp.maximum(logits, 0) - logits * labels + jnp.log1p(jnp.exp(-jnp.abs(logits)))
        return jnp.sum(jnp.where(mask, each, 0.0)) / mask.sum()

    def batch(step):
        rng = np.random.default_rng(step)
        graph_of = np.repeat(np.arange(n_graphs), 4)
        nodes = rng.integers(0, 6, n_nodes)
        senders = rng.integers(0, 4, n_edges) + 4 * (np.arange(n_edges) % n_graphs)
        receivers = rng.integers(0, 4, n_edges) + 4 * (np.arange(n_edges) % n_graphs)
        labels = (np.add.reduceat(nodes, np.arange(0, n_nodes, 4))[:, None] > [8, 10, 12]).astype(np.float32)
        labels[rng.random(labels.shape) < 0.2] = np.nan
        return (nodes, normal(n_edges, 4, seed=step) * 6, senders, receivers, graph_of), labels

    params = jax.jit(model.init)(jax.random.key(0), *batch(0)[0])
    return trained(loss, params, batch, optax.adam(3e-3))


@published("https://github.com/neuraloperator/neuraloperator")
def fourier_neural_operator() -> Published:
    """Weights that are complex multiply the lowest frequencies; residual layers of width 8 on a line of 16 places."""
    n_modes, width = 5, 8

    def spectral(seed):
        both = normal(2, width, width * n_modes, seed=seed).reshape(2, width, width, n_modes) / 8
        return np.complex64(both[0] + 1j * both[1])

    params = {"lift": dense(2, width)[0], "project": dense(width, 16, 1)}
    params["blocks"] = [{"spectral": spectral(i), "skip": dense(width, width)[0]} for i in range(3)]

    def of_one(params, a):
        x = jnp.stack([a, jnp.linspace(0, 1, len(a))], -1) @ params["lift"]["w"] + params["lift"]["b"]
        for p in params["blocks"]:
            modes = jnp.einsum("kc,cdk->kd", jnp.fft.rfft(x, axis=0)[:n_modes], p["spectral"])
            x = jax.nn.gelu(jnp.fft.irfft(modes, len(a), axis=0) + x @ p["skip"]["w"] + p["skip"]["b"])
        return mlp(params["project"], x, jax.nn.gelu)[:, 0]

    def loss(params, a, u):
        away = jax.vmap(of_one, (None, 0))(params, a) - u
        return jnp.mean(jnp.linalg.norm(away, axis=-1) / jnp.linalg.norm(u, axis=-1))

    tx = optax.adam(optax.cosine_decay_schedule(2e-3, 200))

    @jax.jit
    def step(params, state, a, u):
        value, grads = jax.value_and_grad(loss)(params, a, u)
        updates, state = tx.update(jax.tree.map(jnp.conj, grads), state, params)
        return optax.apply_updates(params, updates), state, value

    def batch(step):
        rng, places = np.random.default_rng(step), np.linspace(0, 2 * np.pi, 16, endpoint=False)
        phase, size = rng.uniform(0, 6, (16, 1)), rng.uniform(0.5, 1.5, (16, 1))
        return np.float32(size * np.sin(places + phase)), np.float32(size * np.cos(places + phase) + 0.5 * size)

    return Published(step, (params, tx.init(params)), batch, lambda *_: [])
