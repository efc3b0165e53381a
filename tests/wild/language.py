"""Training steps of language models: stacked and scanned layers, micro-batches, experts, adapters, preferences."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P
from watched import on_devices, started
from wild.published import Published, cross_entropy, normal, published, tokens, trained

N_WORDS, WIDTH = 11, 16


def normed(x: jax.Array, scale: jax.Array, axis: int = -1) -> jax.Array:
    return scale * (x - x.mean(axis, keepdims=True)) * lax.rsqrt(x.var(axis, keepdims=True) + 1e-5)


def attended(q: jax.Array, k: jax.Array, v: jax.Array, n_heads: int = 2) -> jax.Array:
    """Causal attention of float32[batch, length, width]."""
    q, k, v = (x.reshape(*x.shape[:-1], n_heads, -1) for x in (q, k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9).astype(jnp.float32)).astype(v.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(*q.shape[:2], -1)


def block(seed: int, width: int = WIDTH) -> dict:
    shapes = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 2 * width), "down": (2 * width, width)}
    made: dict = {name: normal(*shape, seed=seed + i) for i, (name, shape) in enumerate(shapes.items())}
    return {**made, "scale": np.ones(width, np.float32), "scale_mlp": np.ones(width, np.float32)}


def through(p: dict, x: jax.Array) -> jax.Array:
    x = x + attended(*jnp.split(normed(x, p["scale"]) @ p["qkv"], 3, -1)) @ p["out"]
    return x + jax.nn.gelu(normed(x, p["scale_mlp"]) @ p["up"]) @ p["down"]


def language_model(n_layers: int = 2, seed: int = 0) -> dict:
    return {
        "embed": normal(N_WORDS, WIDTH, seed=seed + 1) * 3,
        "layers": [block(seed + 10 * i) for i in range(1, n_layers + 1)],
        "head": normal(WIDTH, N_WORDS, seed=seed + 2),
    }


def log_probs_of(params: dict, words: jax.Array) -> jax.Array:
    x = params["embed"][words[:, :-1]]
    for p in params["layers"]:
        x = through(p, x)
    return jnp.take_along_axis(jax.nn.log_softmax(x @ params["head"]), words[:, 1:, None], 2)[..., 0]


@published("https://github.com/stanford-crfm/levanter/blob/main/src/levanter/trainer.py")
def levanter_stacked_blocks(
    *, tx=None, before_head=lambda x: x, n_micro_divided: int = 4, reduce=jnp.mean
) -> Published:
    """Blocks in one stack, folded with checkpoints; products in bfloat16; micro-batches; a z-loss; masked decay."""
    import equinox as eqx

    class Block(eqx.Module):
        ln_1: eqx.nn.LayerNorm
        c_attn: eqx.nn.Linear
        c_proj: eqx.nn.Linear
        ln_2: eqx.nn.LayerNorm
        c_fc: eqx.nn.Linear
        c_out: eqx.nn.Linear

        def __init__(self, key):
            keys = jax.random.split(key, 4)
            self.ln_1, self.ln_2 = eqx.nn.LayerNorm(WIDTH), eqx.nn.LayerNorm(WIDTH)
            self.c_attn = eqx.nn.Linear(WIDTH, 3 * WIDTH, key=keys[0])
            self.c_proj = eqx.nn.Linear(WIDTH, WIDTH, key=keys[1])
            self.c_fc = eqx.nn.Linear(WIDTH, 4 * WIDTH, key=keys[2])
            self.c_out = eqx.nn.Linear(4 * WIDTH, WIDTH, key=keys[3])

        def __call__(self, x):
            q, k, v = jnp.split(jax.vmap(self.c_attn)(jax.vmap(self.ln_1)(x)), 3, -1)
            x = x + jax.vmap(self.c_proj)(attended(q[None], k[None], v[None])[0])
            return x + jax.vmap(lambda x: self.c_out(jax.nn.gelu(self.c_fc(x))))(jax.vmap(self.ln_2)(x))

    class Transformer(eqx.Module):
        blocks: Block  # stacked
        ln_f: eqx.nn.LayerNorm

    class Model(eqx.Module):
        transformer: Transformer
        embeddings: dict

    keys = jax.random.split(jax.random.key(0), 3)
    stacked = eqx.filter_vmap(Block)(keys)
    embeddings = {"token": normal(N_WORDS, WIDTH, seed=1), "position": normal(8, WIDTH, seed=2)}
    model = Model(Transformer(stacked, eqx.nn.LayerNorm(WIDTH)), embeddings)
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def logits(params, words):
        model = eqx.combine(jax.tree.map(lambda p: p.astype(jnp.bfloat16), params), static)
        x = model.embeddings["token"][words] + model.embeddings["position"][: len(words)]
        arrays, rest = eqx.partition(model.transformer.blocks, eqx.is_array)
        x, _ = lax.scan(jax.checkpoint(lambda x, p: (eqx.combine(p, rest)(x), None)), x, arrays)
        x = before_head(jax.vmap(model.transformer.ln_f)(x))
        return (x @ model.embeddings["token"].T).astype(jnp.float32)

    def loss(params, words):
        out = jax.vmap(logits, (None, 0))(params, words[:, :-1])
        z = jax.nn.logsumexp(out, -1)
        return reduce(optax.softmax_cross_entropy_with_integer_labels(out, words[:, 1:]) + 1e-4 * z**2)

    def mask(params):
        return jax.tree.map(lambda p: p.ndim > 1, params)

    tx = tx or optax.chain(
        optax.clip_by_global_norm(4.0),
        optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 1e-3, 5, 200), weight_decay=0.1, mask=mask),
    )

    @jax.jit
    def train_step(params, opt_state, words):
        def micro(sums, words):
            return jax.tree.map(jnp.add, sums, jax.value_and_grad(loss)(params, words)), None

        start = jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)
        sums, _ = lax.scan(micro, start, words.reshape(4, -1, *words.shape[1:]))
        value, grads = jax.tree.map(lambda x: x / n_micro_divided, sums)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    return Published(train_step, (params, started(tx.init, params)), tokens(8), lambda *_: [])


@published("https://github.com/AI-Hypercomputer/maxtext/blob/main/src/MaxText/gradient_accumulation.py")
def maxtext_mean_over_tokens(*, tx=None, least: float = 1e-6, change=lambda params: params) -> Published:
    """A Linen scan over layers, stacked along axis 1; the gradients of sums, divided by the number of tokens."""
    from flax import linen as nn

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            q, k, v = jnp.split(nn.Dense(3 * WIDTH, use_bias=False, name="qkv")(nn.RMSNorm(name="pre")(x)), 3, -1)
            x = x + nn.Dense(WIDTH, use_bias=False, name="out")(attended(q, k, v))
            hidden = nn.relu(nn.Dense(2 * WIDTH, name="wi")(nn.RMSNorm(name="post")(x)))
            return x + nn.Dense(WIDTH, use_bias=False, name="wo")(hidden), None

    class Decoder(nn.Module):
        @nn.compact
        def __call__(self, words):
            x = nn.Embed(N_WORDS, WIDTH, name="token_embedder")(words)
            layers = nn.scan(
                nn.remat(Layer),
                variable_axes={"params": 1},
                split_rngs={"params": True},
                length=3,
                in_axes=nn.broadcast,
            )
            x, _ = layers(name="layers")(x, None)
            return nn.Dense(N_WORDS, use_bias=False, name="logits_dense")(nn.RMSNorm(name="decoder_norm")(x))

    model = Decoder()

    def loss(params, words, weights):
        out = model.apply(params, words[:, :-1])
        found = optax.softmax_cross_entropy_with_integer_labels(out, words[:, 1:]) * weights
        return found.sum(), {"total_loss": found.sum(), "total_weights": weights.sum(), "moe_lb_loss": 0.0}

    tx = tx or optax.chain(optax.clip_by_global_norm(4.0), optax.adamw(1e-3, b2=0.95))

    @jax.jit
    def train_step(params, opt_state, words, weights):
        def micro(sums, data):
            (_, aux), grads = jax.value_and_grad(loss, has_aux=True)(params, *data)
            return {
                **jax.tree.map(jnp.add, {k: sums[k] for k in aux}, aux),
                "grad": jax.tree.map(jnp.add, grads, sums["grad"]),
            }, aux

        start = {
            "total_loss": 0.0,
            "total_weights": 0.0,
            "moe_lb_loss": 0.0,
            "grad": jax.tree.map(jnp.zeros_like, params),
        }
        data = jax.tree.map(lambda x: jnp.swapaxes(x.reshape(-1, 4, *x.shape[1:]), 0, 1), (words, weights))
        sums, _ = lax.scan(micro, start, data)
        n = sums["total_weights"] + least
        grads = jax.tree.map(lambda g: g / n, sums["grad"])
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, sums["total_loss"] / n

    def batch(step):
        (words,) = tokens(8)(step)
        return words, (np.random.default_rng(step).random((8, words.shape[1] - 1)) < 0.8).astype(np.float32)

    params = change(jax.jit(model.init)(jax.random.key(0), jnp.ones((1, 6), jnp.int32)))
    return Published(train_step, (params, started(tx.init, params)), batch, lambda *_: [])


@published("https://github.com/AI-Hypercomputer/maxtext/blob/main/src/MaxText/layers/moe.py")
def maxtext_experts(*, tx=None, router_bias=0.0) -> Published:
    """Four experts of which a softmax router chooses two for each token, with a loss that balances them."""
    n_experts = 4

    def moe(seed: int) -> dict:
        return {
            "attention": {"qkv": normal(WIDTH, 3 * WIDTH, seed=seed), "out": normal(WIDTH, WIDTH, seed=seed + 1)},
            "gate": {"kernel": normal(WIDTH, n_experts, seed=seed + 2)},
            "experts": [
                {"wi_0": normal(WIDTH, 24, seed=seed + 3 + i), "wi_1": normal(WIDTH, 24, seed=seed + 13 + i),
                 "wo": normal(24, WIDTH, seed=seed + 23 + i)} for i in range(n_experts)
            ],
            "norms": {"pre": np.ones(WIDTH, np.float32), "post": np.ones(WIDTH, np.float32)},
        }  # fmt: skip

    params = {
        "embed": normal(N_WORDS, WIDTH, seed=1) * 3,
        "layers": [moe(100), moe(200)],
        "head": normal(WIDTH, N_WORDS),
    }

    def mixed(p, x):
        scores = x @ p["gate"]["kernel"] + router_bias
        top, chosen = lax.top_k(scores, 2)
        share = jnp.einsum("...k,...ke->...e", jax.nn.softmax(top), jax.nn.one_hot(chosen, n_experts))
        outs = jnp.stack([(jax.nn.silu(x @ e["wi_0"]) * (x @ e["wi_1"])) @ e["wo"] for e in p["experts"]], -2)
        used, meant = (share > 0).mean((0, 1)), jax.nn.softmax(scores).mean((0, 1))
        return jnp.einsum("...e,...ed->...d", share, outs), n_experts * jnp.sum(used * meant)

    def loss(params, words):
        x, balance = params["embed"][words[:, :-1]], 0.0
        for p in params["layers"]:
            q, k, v = jnp.split(normed(x, p["norms"]["pre"]) @ p["attention"]["qkv"], 3, -1)
            x = x + attended(q, k, v) @ p["attention"]["out"]
            more, uneven = mixed(p, normed(x, p["norms"]["post"]))
            x, balance = x + more, balance + uneven
        return cross_entropy(x @ params["head"], words[:, 1:]) + 0.01 * balance

    tx = tx or optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, b2=0.95))
    return trained(loss, params, tokens(8), tx)


@published("https://github.com/young-geng/EasyLM/blob/main/EasyLM/models/llama/llama_train.py")
def easylm_llama(*, rate: Any = None, is_trained=lambda path: True, norm_axis: int = -1) -> Published:
    """Rotary attention, RMS norms and gated units in bfloat16; key, loss and metrics go through the step."""
    n_heads = 2

    def layer(seed: int) -> dict:
        names = {"attention": ("wq", "wk", "wv", "wo"), "feed_forward": ("w1", "w2", "w3")}
        sizes = {"w1": (WIDTH, 32), "w2": (32, WIDTH), "w3": (WIDTH, 32)}
        made = {
            part: {
                name: {"kernel": normal(*sizes.get(name, (WIDTH, WIDTH)), seed=seed + hash_of(name))} for name in inner
            }
            for part, inner in names.items()
        }
        ones = {"kernel": np.ones(WIDTH, np.float32)}
        return {**made, "attention_norm": ones, "ffn_norm": dict(ones)}

    def hash_of(name: str) -> int:
        return sum(map(ord, name))

    params = {
        "transformer": {
            "wte": {"embedding": normal(N_WORDS, WIDTH, seed=1) * 3},
            "h": {str(i): layer(1000 * (i + 1)) for i in range(2)},
            "ln_f": {"kernel": np.ones(WIDTH, np.float32)},
        },
        "lm_head": {"kernel": normal(WIDTH, N_WORDS, seed=2)},
    }

    def rms(x, p):
        x = x.astype(jnp.float32)
        return (x * lax.rsqrt(jnp.mean(x**2, norm_axis, keepdims=True) + 1e-6)).astype(jnp.bfloat16) * p["kernel"]

    def turned(x):
        half = x.shape[-1] // 2
        angle = jnp.arange(x.shape[1])[:, None, None] / 100.0 ** (jnp.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), a * jnp.sin(angle) + b * jnp.cos(angle)], -1)

    def loss(params, words, key, valid):
        p = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
        x = p["transformer"]["wte"]["embedding"][words[:, :-1]]
        for layer in p["transformer"]["h"].values():
            a, f = ({k: v["kernel"] for k, v in layer[part].items()} for part in ("attention", "feed_forward"))
            y = rms(x, layer["attention_norm"])
            q, k = (turned((y @ a[name]).reshape(*y.shape[:2], n_heads, -1)).reshape(y.shape) for name in ("wq", "wk"))
            x = x + attended(q.astype(y.dtype), k.astype(y.dtype), y @ a["wv"]) @ a["wo"]
            y = rms(x, layer["ffn_norm"])
            x = x + (jax.nn.silu(y @ f["w1"]) * (y @ f["w3"])) @ f["w2"]
        logits = (rms(x, p["transformer"]["ln_f"]) @ p["lm_head"]["kernel"]).astype(jnp.float32)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), words[:, 1:, None], -1)[..., 0]
        right = jnp.where(valid > 0, jnp.argmax(logits, -1) == words[:, 1:], False)
        n = jnp.maximum(valid.sum(), 1e-10)
        return -(chosen * valid).sum() / n, right.sum() / n

    def labels(params):
        return jax.tree_util.tree_map_with_path(
            lambda path, _: "trained" if is_trained(jax.tree_util.keystr(path)) else "frozen", params
        )

    rate = rate or optax.warmup_cosine_decay_schedule(0.0, 1e-3, 5, 200)
    tx = optax.multi_transform(
        {"trained": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, b2=0.95, mu_dtype=jnp.bfloat16)),
         "frozen": optax.set_to_zero()}, labels,
    )  # fmt: skip

    @functools.partial(jax.jit, donate_argnums=0)
    def train_step(state, key, words, valid):
        key, used = jax.random.split(key)
        params, opt_state, step = state["params"], state["opt_state"], state["step"]
        (value, accuracy), grads = jax.value_and_grad(loss, has_aux=True)(params, words, used, valid)
        updates, opt_state = tx.update(grads, opt_state, params)
        norm = optax.global_norm(grads)
        state = {"params": optax.apply_updates(params, updates), "opt_state": opt_state, "step": step + 1}
        return state, key, {"loss": value, "accuracy": accuracy, "gradient_norm": norm}

    def batch(step):
        (words,) = tokens(8)(step)
        return words, (np.random.default_rng(step).random((8, words.shape[1] - 1)) < 0.9).astype(np.float32)

    state = {"params": jax.tree.map(jnp.asarray, params), "opt_state": started(tx.init, params), "step": jnp.int32(0)}
    return Published(train_step, (state, jax.random.PRNGKey(0)), batch, lambda *_: [])


@published("https://github.com/google/tunix/blob/main/tunix/sft/peft_trainer.py")
def tunix_adapters(*, filter_of: str = "LoRAParam", is_b_random: bool = False, scale_a: float = 1.0) -> Published:
    """Low-rank adapters of an NNX model, the only leaves with gradients; three batches are summed, then applied."""
    from flax import nnx

    class Decoder(nnx.Module):
        def __init__(self, rngs):
            self.embedder = nnx.Embed(N_WORDS, WIDTH, rngs=rngs)
            self.layers = nnx.List([Layer(rngs) for _ in range(2)])
            self.final_norm = nnx.RMSNorm(WIDTH, rngs=rngs)

        def __call__(self, words):
            x = self.embedder(words)
            for layer in self.layers:
                x = layer(x)
            return self.embedder.attend(self.final_norm(x))

    class Layer(nnx.Module):
        def __init__(self, rngs):
            self.norm = nnx.RMSNorm(WIDTH, rngs=rngs)
            for name, n in (("qkv", 3 * WIDTH), ("out", WIDTH)):
                setattr(self, name, nnx.LoRALinear(WIDTH, n, lora_rank=2, use_bias=False, rngs=rngs))

        def __call__(self, x):
            return x + self.out(attended(*jnp.split(self.qkv(self.norm(x)), 3, -1)))

    model = Decoder(nnx.Rngs(0))
    for layer in model.layers:
        for part in (layer.qkv, layer.out):
            part.lora.lora_a[...] = part.lora.lora_a[...] * scale_a
    graph, lora, rest = nnx.split(model, getattr(nnx, filter_of), ...)
    tx = optax.adamw(3e-3)

    def loss(lora, rest, words, mask):
        logits = nnx.merge(graph, lora, rest)(words[:, :-1])
        one_hot = jax.nn.one_hot(words[:, 1:], N_WORDS) * mask[..., None]
        return -jnp.sum(jax.nn.log_softmax(logits) * one_hot) / (mask.sum() + 1e-8)

    @jax.jit
    def train_step(lora, opt_state, summed, n, rest, words, mask):
        value, grads = jax.value_and_grad(loss)(lora, rest, words, mask)
        summed, n = jax.tree.map(jnp.add, summed, grads), n + 1

        def applied(lora, opt_state, summed, n):
            updates, opt_state = tx.update(jax.tree.map(lambda g: g / n, summed), opt_state, lora)
            return optax.apply_updates(lora, updates), opt_state, jax.tree.map(jnp.zeros_like, summed), 0 * n

        return *lax.cond(n == 3, applied, lambda *same: same, lora, opt_state, summed, n), rest, value

    def batch(step):
        (words,) = tokens(8)(step)
        return words, (np.random.default_rng(step).random((8, words.shape[1] - 1)) < 0.9).astype(np.float32)

    zeros = jax.tree.map(jnp.zeros_like, lora)
    return Published(train_step, (lora, tx.init(lora), zeros, jnp.float32(0), rest), batch, lambda *_: [])


@published("https://github.com/google/tunix/blob/main/tunix/sft/dpo/dpo_trainer.py")
def tunix_preferences(*, is_same: bool = False) -> Published:
    """Direct preferences: the policy's log-probabilities beside those of a reference, in chosen and rejected texts."""
    params, reference = language_model(), language_model()

    def loss(params, reference, chosen, rejected):
        reference = params if is_same else reference
        margins = [
            log_probs_of(params, words).sum(1) - log_probs_of(reference, words).sum(1) for words in (chosen, rejected)
        ]
        return -jnp.mean(jax.nn.log_sigmoid(0.1 * (margins[0] - margins[1])))

    tx = optax.adam(3e-4)

    @jax.jit
    def step(params, state, reference, chosen, rejected):
        value, grads = jax.value_and_grad(loss)(params, reference, chosen, rejected)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, reference, value

    def batch(step):
        rejected = np.random.default_rng((9, step)).integers(0, N_WORDS, (4, 7))
        return *tokens()(step), rejected

    def gradients(params, _, *rest):
        return [jax.grad(loss)(params, *rest)]

    return Published(step, (params, started(tx.init, params), reference), batch, gradients)


@published("https://github.com/google/tunix/blob/main/tunix/rl/grpo/grpo_learner.py")
def tunix_group_relative_policy(*, epsilon: float = 1e-4) -> Published:
    """Advantages relative to a group of four answers, clipped ratios, and the distance to a reference policy."""
    params, reference = language_model(), language_model()

    def loss(params, reference, words, mask, old, rewards):
        grouped = rewards.reshape(-1, 4)
        advantages = (grouped - grouped.mean(1, keepdims=True)) / (grouped.std(1, keepdims=True) + epsilon)
        logps, other = log_probs_of(params, words), log_probs_of(reference, words)
        ratio, advantages = jnp.exp(logps - old), advantages.reshape(-1, 1)
        gain = jnp.minimum(ratio * advantages, jnp.clip(ratio, 0.8, 1.2) * advantages)
        distance = jnp.exp(other - logps) - (other - logps) - 1
        return jnp.sum((0.08 * distance - gain) * mask) / jnp.maximum(mask.sum(), 1)

    def batch(step):
        rng = np.random.default_rng(step)
        words = rng.integers(0, N_WORDS, (8, 7))
        rewards = (words % 2).mean(1).astype(np.float32)
        return reference, words, np.ones((8, 6), np.float32), np.asarray(log_probs_of(reference, words)), rewards

    return trained(loss, params, batch, optax.chain(optax.clip_by_global_norm(4.0), optax.adamw(3e-4)))


@published("https://github.com/google/flax/tree/main/examples/wmt")
def flax_translation(*, rate: float = 3e-3, softmax_axis: int = -1) -> Published:
    """An encoder and a decoder that share one embedding, padded sentences, smoothed labels, a rate by rsqrt."""
    from flax import linen as nn
    from flax.training.train_state import TrainState

    class Translator(nn.Module):
        @nn.compact
        def __call__(self, source, target):
            embed = nn.Embed(N_WORDS, WIDTH, embedding_init=nn.initializers.normal(1.0), name="shared_embedding")
            x, y = embed(source), embed(target)
            is_word = source > 0
            attention = functools.partial(nn.MultiHeadDotProductAttention, 2, use_bias=False, deterministic=True)
            x = x + attention(name="encoder_attention")(
                nn.LayerNorm()(x), mask=nn.make_attention_mask(is_word, is_word)
            )
            x = nn.LayerNorm(name="encoder_norm")(x + nn.Dense(WIDTH)(nn.relu(nn.Dense(32)(nn.LayerNorm()(x)))))
            causal = nn.combine_masks(nn.make_causal_mask(target), nn.make_attention_mask(target > 0, target > 0))
            y = y + attention(name="decoder_attention")(nn.LayerNorm()(y), mask=causal)
            across = nn.make_attention_mask(target > 0, is_word)
            y = y + attention(name="cross_attention")(nn.LayerNorm()(y), x, mask=across)
            y = nn.LayerNorm(name="decoder_norm")(y + nn.Dense(WIDTH)(nn.relu(nn.Dense(32)(nn.LayerNorm()(y)))))
            return embed.attend(y) / np.sqrt(WIDTH)

    model = Translator()

    def loss(params, source, target):
        before = jnp.pad(target, ((0, 0), (1, 0)))[:, :-1].at[:, 0].set(1)
        logits, weights = model.apply({"params": params}, source, before), (target > 0).astype(jnp.float32)
        soft = optax.smooth_labels(jax.nn.one_hot(target, N_WORDS), 0.1)
        return -jnp.sum(jnp.sum(soft * jax.nn.log_softmax(logits, softmax_axis), -1) * weights) / weights.sum()

    @jax.jit
    def train_step(state, source, target):
        value, grads = jax.value_and_grad(loss)(state.params, source, target)
        return state.apply_gradients(grads=grads), value

    def batch(step):
        rng = np.random.default_rng(step)
        source = rng.integers(2, N_WORDS, (8, 6))
        source[np.arange(6) >= rng.integers(3, 7, (8, 1))] = 0
        return source, np.where(source > 0, (source + 3) % (N_WORDS - 2) + 2, 0)

    def rate_at(step):
        return rate * jnp.minimum(1.0, (step + 1) / 10) / jnp.sqrt(jnp.maximum(step, 10) / 10)

    ones = jnp.ones((1, 6), jnp.int32)
    params = jax.jit(model.init)(jax.random.key(0), ones, ones)["params"]
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(rate_at, 0.9, 0.98, 1e-9))
    return Published(train_step, (state,), batch, lambda s, *b: [jax.grad(loss)(s.params, *b)])


@published("https://github.com/google/flax/tree/main/examples/sst2")
def flax_sentiment() -> Published:
    """Words in two directions through LSTMs, attended up to each length, with dropout; labels and lengths are given."""
    from flax import linen as nn

    class Classifier(nn.Module):
        @nn.compact
        def __call__(self, words, lengths):
            x = nn.Embed(N_WORDS, 8)(words)
            x = nn.Dropout(0.1, deterministic=False)(x)
            forward, backward = nn.RNN(nn.OptimizedLSTMCell(8)), nn.RNN(nn.OptimizedLSTMCell(8))
            x = nn.Bidirectional(forward, backward)(x, seq_lengths=lengths)
            scores = nn.Dense(1, use_bias=False)(jnp.tanh(nn.Dense(8, use_bias=False)(x)))[..., 0]
            is_word = jnp.arange(words.shape[1]) < lengths[:, None]
            weights = jax.nn.softmax(jnp.where(is_word, scores, -1e9))
            x = jnp.einsum("bt,btd->bd", weights, x)
            return nn.Dense(2)(jnp.tanh(nn.Dense(8)(x)))

    model = Classifier()

    def loss(params, step, words, lengths, labels):
        rngs = {"dropout": jax.random.fold_in(jax.random.key(1), step)}
        return cross_entropy(model.apply(params, words, lengths, rngs=rngs), labels)

    def batch(step):
        rng = np.random.default_rng(step)
        words = rng.integers(0, N_WORDS, (16, 8))
        return step, words, rng.integers(3, 9, 16), (words[:, 0] > 5).astype(int)

    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    params = jax.jit(model.init)(keys, np.ones((1, 8), int), np.full(1, 8))
    tx = optax.chain(optax.add_decayed_weights(3e-6), optax.sgd(0.1, momentum=0.9))
    return trained(loss, params, batch, tx)


@published("https://github.com/google-research/t5x/blob/main/t5x/adafactor.py")
def t5x_adafactor(*, rate: Any = None, dtype: Any = np.float32) -> Published:
    """Factored second moments, a rate relative to each parameter's scale; biases of attention by distance."""
    params: dict = language_model() | {"relpos_bias": {"rel_embedding": np.zeros((2, 8), np.float32)}}
    params = jax.tree.map(lambda p: np.asarray(p).astype(dtype), params)

    def loss(params, words):
        x = params["embed"][words[:, :-1]]
        distance = jnp.arange(words.shape[1] - 1)
        distance = jnp.clip(distance[:, None] - distance, 0, 7)
        bias = params["relpos_bias"]["rel_embedding"][:, distance]
        for p in params["layers"]:
            q, k, v = (y.reshape(*y.shape[:2], 2, -1) for y in jnp.split(normed(x, p["scale"]) @ p["qkv"], 3, -1))
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(8) + bias
            scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
            x = x + jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(x.shape) @ p["out"]
            x = x + jax.nn.gelu(normed(x, p["scale_mlp"]) @ p["up"]) @ p["down"]
        return cross_entropy((x @ params["head"]).astype(jnp.float32), words[:, 1:])

    tx = optax.adafactor(rate or 1e-2, min_dim_size_to_factor=8, multiply_by_parameter_scale=True)
    return trained(loss, params, tokens(8), tx)


@published("https://github.com/huggingface/transformers/blob/main/examples/flax/language-modeling/run_clm_flax.py")
def transformers_causal_model(*, is_reduced: bool = True) -> Published:
    """Data parallel: each device has a key and a part of the batch; gradients and metrics are averaged over devices."""
    tx = optax.adamw(optax.linear_schedule(1e-3, 1e-4, 200), b1=0.9, b2=0.98, weight_decay=0.01)
    params = language_model()

    def loss(params, key, words):
        kept = jax.random.bernoulli(key, 0.9, (*words.shape, 1))[:, :-1]
        x = jnp.where(kept, params["embed"][words[:, :-1]] / 0.9, 0.0)
        for p in params["layers"]:
            x = through(p, x)
        return cross_entropy(x @ params["head"], words[:, 1:])

    def reduced(x):
        return lax.pmean(x, "batch")

    def of_each(params, opt_state, key, words):
        key, used = jax.random.split(key)
        value, grads = jax.value_and_grad(loss)(params, jax.random.fold_in(used, lax.axis_index("batch")), words)
        grads = reduced(grads) if is_reduced else grads
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, key, reduced(value)

    whole = on_devices(of_each, "batch", (P(), P(), P(), P("batch")), P())
    return Published(
        jax.jit(whole), (params, started(tx.init, params), jax.random.PRNGKey(0)), tokens(8), lambda *_: []
    )
