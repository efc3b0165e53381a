"""Training steps with complex numbers, codebooks, distributions, averaged iterates, inner solvers and scaled losses."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from watched import started
from wild.published import Published, cross_entropy, dense, mlp, normal, published, regression, squared, trained


@published("https://github.com/lindermanlab/S5")
def s5_state_space_layers() -> Published:
    """Diagonal state spaces of complex numbers, run by an associative scan, with learning rates of their own."""
    n_states, width = 8, 6

    def layer(seed: int) -> dict:
        return {
            "Lambda_re": np.full(n_states, -0.5, np.float32),
            "Lambda_im": np.pi * np.arange(n_states, dtype=np.float32),
            "B": normal(2, n_states, width, seed=seed),
            "C": normal(2, width, n_states, seed=seed + 1),
            "D": normal(1, width, seed=seed + 2)[0],
            "log_step": np.linspace(-4, -2, n_states, dtype=np.float32),
            "gate": {"w": normal(width, width, seed=seed + 3), "b": np.zeros(width, np.float32)},
        }

    params = {
        "encoder": dense(3, width)[0],
        "layers_0": layer(10),
        "decoder": dense(width, 4)[0],
    }

    def joined(left, right):
        return left[0] * right[0], right[0] * left[1] + right[1]

    def of_one(p, u):
        eigenvalues, step = p["Lambda_re"] + 1j * p["Lambda_im"], jnp.exp(p["log_step"])
        decay = jnp.exp(eigenvalues * step)
        into = ((decay - 1) / eigenvalues)[:, None] * (p["B"][0] + 1j * p["B"][1])
        elements = jnp.broadcast_to(decay, (len(u), n_states)), u @ into.T
        _, states = lax.associative_scan(joined, elements)
        y = jax.nn.gelu(2 * (states @ (p["C"][0] + 1j * p["C"][1]).T).real + p["D"] * u)
        return u + y * jax.nn.sigmoid(y @ p["gate"]["w"] + p["gate"]["b"])

    def logits(params, x):
        x = x @ params["encoder"]["w"] + params["encoder"]["b"]
        x = of_one(params["layers_0"], x)
        return x.mean(0) @ params["decoder"]["w"] + params["decoder"]["b"]

    def loss(params, x, labels):
        return cross_entropy(jax.vmap(logits, (None, 0))(params, x), labels)

    def batch(step):
        labels = np.arange(8) % 4
        waves = np.sin(np.arange(4)[:, None] * np.array([0.3, 0.7, 1.1]) * (1 + labels[:, None, None]))
        return waves.astype(np.float32) + normal(8, 4, 3, seed=step) * 2, labels

    def is_of_state_space(path, _):
        return "ssm" if str(path[-1].key) in ("Lambda_re", "Lambda_im", "B", "log_step") else "rest"

    kinds = jax.tree_util.tree_map_with_path(is_of_state_space, params)
    return trained(
        loss, params, batch, optax.multi_transform({"ssm": optax.adam(1e-3), "rest": optax.adamw(4e-3)}, kinds)
    )


@published("https://github.com/google-deepmind/dm-haiku/blob/main/examples/vqvae_example.ipynb")
def haiku_codebook_with_a_straight_through_gradient() -> Published:
    """A VQ-VAE: the encoder gets the decoder's gradient, and the codebook moves towards what is encoded."""
    params = {"encoder": dense(12, 16, 4), "codebook": normal(8, 4, seed=5) * 3, "decoder": dense(4, 16, 12)}

    def loss(params, x):
        z = mlp(params["encoder"], x)
        away = jnp.sum((z[:, None] - params["codebook"]) ** 2, axis=-1)
        code = params["codebook"][jnp.argmin(away, axis=-1)]
        commitment = squared(z, lax.stop_gradient(code)) * 0.25 + squared(lax.stop_gradient(z), code)
        return squared(mlp(params["decoder"], z + lax.stop_gradient(code - z)), x) + commitment

    return trained(loss, params, lambda step: (normal(32, 12, seed=step) * 5,), optax.adam(3e-4))


@published("https://github.com/vwxyzjn/cleanrl/blob/master/cleanrl/c51_jax.py")
def cleanrl_c51() -> Published:
    """Q-learning of distributions over 11 returns, projected in a loop; one train state holds the target network."""
    n_atoms, n_actions, largest = 11, 3, 10.0
    atoms = np.linspace(-largest, largest, n_atoms, dtype=np.float32)
    params, tx = dense(6, 32, n_actions * n_atoms), optax.adam(2.5e-4, eps=0.01 / 32)

    def distributions(params, x):
        return jax.nn.softmax(mlp(params, x).reshape(len(x), n_actions, n_atoms))

    def loss(params, x, actions, aims):
        p = distributions(params, x)[jnp.arange(len(x)), actions]
        return -jnp.mean(jnp.sum(aims * jnp.log(jnp.clip(p, 1e-5, 1 - 1e-5)), axis=-1))

    def aims_of(target, rewards, following, ends):
        p = distributions(target, following)
        p = p[jnp.arange(len(p)), jnp.argmax(p @ atoms, axis=-1)]
        place = (jnp.clip(rewards[:, None] + 0.99 * atoms * (1 - ends[:, None]), -largest, largest) + largest) / 2
        low, high = jnp.floor(place), jnp.ceil(place)

        def projected(i, aims):
            aims = aims.at[i, low[i].astype(int)].add((high[i] + (low[i] == high[i]) - place[i]) * p[i])
            return aims.at[i, high[i].astype(int)].add((place[i] - low[i]) * p[i])

        return lax.fori_loop(0, len(p), projected, jnp.zeros_like(p))

    @jax.jit
    def update(state, x, actions, rewards, following, ends):
        aims = aims_of(state["target_params"], rewards, following, ends)
        value, grads = jax.value_and_grad(loss)(state["params"], x, actions, aims)
        updates, opt_state = tx.update(grads, state["opt_state"])
        params = optax.apply_updates(state["params"], updates)
        return {**state, "params": params, "opt_state": opt_state}, value

    def batch(step):
        x, actions = normal(32, 6, seed=step) * 5, np.random.default_rng(step).integers(0, n_actions, 32)
        return x, actions, np.tanh(x[:, 0]), normal(32, 6, seed=50 + step) * 5, (x[:, 1] > 1).astype(np.float32)

    def gradients(state, x, actions, *rest):
        return [jax.grad(loss)(state["params"], x, actions, aims_of(state["target_params"], *rest))]

    return Published(
        update, ({"params": params, "target_params": params, "opt_state": started(tx.init, params)},), batch, gradients
    )


@published("https://optax.readthedocs.io/en/latest/api/contrib.html#schedule-free")
def optax_schedule_free() -> Published:
    def loss(params, x, y):
        return squared(mlp(params, x), y)

    return trained(loss, dense(8, 16, 1), regression(8), optax.contrib.schedule_free_adamw(2e-3, warmup_steps=5))


@published("https://github.com/google-deepmind/nanodo")
def nanodo_decoder() -> Published:
    """A decoder whose embedding is also the head, with the precision of its products in bfloat16, clipped."""
    width, n_heads, n_words = 16, 2, 13

    def block(seed: int) -> dict:
        shapes = {"query": (width, width), "key": (width, width), "value": (width, width), "out": (width, width)}
        made = {name: normal(*shape, seed=seed + i) for i, (name, shape) in enumerate(shapes.items())}
        mlp_ = {"up": normal(width, 4 * width, seed=seed + 5), "down": normal(4 * width, width, seed=seed + 6)}
        return {
            "attn": made,
            "mlp": mlp_,
            "scale_attn": np.ones(width, np.float32),
            "scale_mlp": np.ones(width, np.float32),
        }

    params = {
        "embed": normal(n_words, width, seed=1),
        "blocks": [block(10)],
        "scale": np.ones(width, np.float32),
    }
    params["places"] = normal(8, width, seed=2)

    def half(x):
        return x.astype(jnp.bfloat16)

    def normalised(x, scale):
        return scale * (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)

    def attended(p, x):
        q, k, v = ((half(x) @ half(p[name])).reshape(*x.shape[:-1], n_heads, -1) for name in ("query", "key", "value"))
        weights = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) / np.sqrt(width / n_heads)
        causal = jnp.tril(jnp.ones(weights.shape[-2:], bool))
        weights = half(jax.nn.softmax(jnp.where(causal, weights, -1e9)))
        return (jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape) @ half(p["out"])).astype(jnp.float32)

    def loss(params, words):
        x = params["embed"][words[:, :-1]] + params["places"][: words.shape[1] - 1]
        for p in params["blocks"]:
            x = x + attended(p["attn"], normalised(x, p["scale_attn"]))
            hidden = jax.nn.gelu(half(normalised(x, p["scale_mlp"])) @ half(p["mlp"]["up"]))
            x = x + (hidden @ half(p["mlp"]["down"])).astype(jnp.float32)
        return cross_entropy(normalised(x, params["scale"]) @ params["embed"].T, words[:, 1:])

    def batch(step):
        start = np.random.default_rng(step).integers(0, n_words, (4, 1))
        return ((start + 3 * np.arange(8)) % n_words,)

    rate = optax.warmup_cosine_decay_schedule(0.0, 2e-3, 5, 100)
    return trained(loss, params, batch, optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate)))


@published("https://arxiv.org/abs/1502.05477")
def natural_gradient_by_conjugate_gradients() -> Published:
    """As TRPO: products with the Fisher matrix, by derivatives of a gradient, inside a linear solver."""

    def log_probs(params, x):
        return jax.nn.log_softmax(mlp(params, x))

    def loss(params, x, actions, advantages):
        chosen = jnp.take_along_axis(log_probs(params, x), actions[:, None], 1)[:, 0]
        return -jnp.mean(jnp.exp(chosen - lax.stop_gradient(chosen)) * advantages)

    @jax.jit
    def step(params, x, actions, advantages):
        old = log_probs(params, x)

        def divergence(params):
            return jnp.mean(jnp.sum(jnp.exp(old) * (old - log_probs(params, x)), axis=1))

        def fisher(v):
            product = jax.jvp(jax.grad(divergence), (params,), (v,))[1]
            return jax.tree.map(lambda p, v: p + 0.1 * v, product, v)

        grads = jax.grad(loss)(params, x, actions, advantages)
        direction, _ = jax.scipy.sparse.linalg.cg(fisher, grads, maxiter=5)
        return jax.tree.map(lambda p, d: p - 0.05 * d, params, direction)

    def batch(step):
        x = normal(32, 6, seed=step) * 5
        return x, np.arange(32) % 3, normal(32, seed=step)

    return Published(step, (dense(6, 16, 3),), batch, lambda *call: [jax.grad(loss)(*call)])


@published("https://github.com/google/flax/tree/main/examples/imagenet")
def flax_dynamic_loss_scale_in_float16() -> Published:
    """Half precision: the scale of the loss grows until gradients overflow, and such a step is left out."""
    from flax.training.dynamic_scale import DynamicScale

    tx = optax.adam(1e-3)

    def loss(params, x, labels):
        half = jax.tree.map(lambda p: p.astype(jnp.float16), params)
        return cross_entropy(mlp(half, x.astype(jnp.float16)).astype(jnp.float32), labels)

    @jax.jit
    def step(params, state, dynamic, x, labels):
        dynamic, is_finite, _, grads = dynamic.value_and_grad(loss)(params, x, labels)
        updates, new = tx.update(grads, state, params)
        new = optax.apply_updates(params, updates), new
        params, state = jax.tree.map(lambda new, old: jnp.where(is_finite, new, old), new, (params, state))
        return params, state, dynamic

    def scaled(params, state, dynamic, *batch):
        return [jax.grad(lambda params: dynamic.scale * loss(params, *batch))(params)]

    params = dense(8, 16, 4)
    start = DynamicScale(growth_interval=3, scale=jnp.float32(2.0**16))
    return Published(
        step,
        (params, started(tx.init, params), start),
        lambda i: (normal(32, 8, seed=i) * 5, np.arange(32) % 4),
        scaled,
    )
