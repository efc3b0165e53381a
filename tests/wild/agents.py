"""Training steps of reinforcement learning: epochs in scans, several losses in one step, models of the world."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P
from watched import on_devices, started
from wild.published import Published, dense, mlp, normal, published, trained

N_SEEN, N_MOVES = 6, 2


def observed(n: int, step: int) -> np.ndarray:
    return normal(n, N_SEEN, seed=step) * np.sqrt(n).astype(np.float32)


@published("https://github.com/google/brax/blob/main/brax/training/agents/ppo/train.py")
def brax_ppo(*, tx=None, scale: Callable = lambda step: 1.0) -> Published:
    """Updates of minibatches in a scan, epochs in another, in a shard_map over devices; inputs are normalised."""
    params = {"policy": dense(N_SEEN, 32, 32, 2 * N_MOVES), "value": dense(N_SEEN, 32, 32, 1)}
    tx = tx or optax.chain(optax.clip_by_global_norm(1.0), optax.adam(3e-4))

    def distribution(params, x):
        loc, spread = jnp.split(mlp(params, x, jax.nn.swish), 2, -1)
        return loc, jax.nn.softplus(spread) + 0.001

    def log_prob(loc, spread, raw):
        of_normal = -0.5 * ((raw - loc) / spread) ** 2 - jnp.log(spread) - 0.5 * np.log(2 * np.pi)
        return jnp.sum(of_normal - 2 * (np.log(2) - raw - jax.nn.softplus(-2 * raw)), -1)

    def loss(params, normalizer, data, key):
        data = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), data)
        x = (data["seen"] - normalizer["mean"]) / normalizer["std"]
        (loc, spread), baseline = distribution(params["policy"], x[:-1]), mlp(params["value"], x, jax.nn.swish)[..., 0]
        deltas = data["reward"][:-1] + 0.97 * baseline[1:] - baseline[:-1]

        def backwards(total, delta):
            total = delta + 0.97 * 0.95 * total
            return total, total

        _, ahead = lax.scan(backwards, jnp.zeros_like(deltas[0]), deltas, reverse=True)
        aims = lax.stop_gradient(ahead + baseline[:-1])
        advantages = lax.stop_gradient(aims - baseline[:-1])
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        ratio = jnp.exp(log_prob(loc, spread, data["raw"][:-1]) - data["log_prob"][:-1])
        gain = jnp.minimum(ratio * advantages, jnp.clip(ratio, 0.7, 1.3) * advantages)
        sampled = loc + spread * jax.random.normal(key, loc.shape)
        entropy = jnp.mean(0.5 + jnp.log(spread) + 2 * (np.log(2) - sampled - jax.nn.softplus(-2 * sampled)))
        return -gain.mean() + 0.25 * jnp.mean((aims - baseline[:-1]) ** 2) - 1e-2 * entropy

    def minibatch(carry, data):
        state, params, normalizer, key = carry
        key, used = jax.random.split(key)
        value, grads = jax.value_and_grad(loss)(params, normalizer, data, used)
        updates, state = tx.update(lax.pmean(grads, "i"), state)
        return (state, optax.apply_updates(params, updates), normalizer, key), value

    def epoch(carry, _, data):
        *rest, key = carry
        key, shuffle = jax.random.split(key)
        order = jax.random.permutation(shuffle, 8)
        data = jax.tree.map(lambda x: x[order].reshape(2, 4, *x.shape[1:]), data)
        return lax.scan(minibatch, (*rest, key), data)

    def train(state, params, normalizer, key, data):
        key, used = jax.random.split(key)
        mean = lax.pmean(data["seen"].mean((0, 1)), "i")
        normalizer = {"mean": 0.9 * normalizer["mean"] + 0.1 * mean, "std": normalizer["std"]}
        carry = state, params, normalizer, jax.random.fold_in(used, lax.axis_index("i"))
        (state, params, normalizer, _), values = lax.scan(lambda c, x: epoch(c, x, data), carry, None, length=2)
        return state, params, normalizer, key, lax.pmean(values.mean(), "i")

    def batch(step):
        seen = observed(16 * 6, step).reshape(16, 6, N_SEEN) * np.float32(scale(step))
        raw = normal(16 * 6, N_MOVES, seed=50 + step).reshape(16, 6, N_MOVES) * 5
        reward, old = np.tanh(seen[..., 0] * raw[..., 0]), np.full((16, 6), -2.5, np.float32)
        return ({"seen": seen, "raw": raw, "reward": reward, "log_prob": old},)

    whole = on_devices(train, "i", (P(), P(), P(), P(), P("i")), P())
    start = {"mean": np.zeros(N_SEEN, np.float32), "std": np.ones(N_SEEN, np.float32)}
    return Published(
        jax.jit(whole), (started(tx.init, params), params, start, jax.random.PRNGKey(0)), batch, lambda *_: []
    )


@published("https://github.com/google/brax/blob/main/brax/training/agents/sac/train.py")
def brax_sac(*, log_of: Callable = lambda raw: 2 * (np.log(2) - raw - jax.nn.softplus(-2 * raw))) -> Published:
    """The losses of a temperature, two critics and a policy, each with an optimizer, and a target that follows."""
    params = {"policy": dense(N_SEEN, 32, 2 * N_MOVES), "alpha": np.float32(0)}
    params["q"] = {f"critic_{i}": dense(N_SEEN + N_MOVES, 32, 1 + i)[:1] + dense(32, 1) for i in range(2)}
    txs = {name: optax.adam(rate) for name, rate in (("alpha", 3e-4), ("q", 1e-3), ("policy", 1e-3))}

    def act(policy, x, key):
        loc, spread = jnp.split(mlp(policy, x), 2, -1)
        spread = jax.nn.softplus(spread) + 0.001
        noise = jax.random.normal(key, loc.shape)
        raw = loc + spread * noise
        log_prob = -0.5 * noise**2 - jnp.log(spread) - 0.5 * np.log(2 * np.pi) - log_of(raw)
        return jnp.tanh(raw), log_prob.sum(-1)

    def values(q, x, moves):
        return jnp.concatenate([mlp(critic, jnp.concatenate([x, moves], -1)) for critic in q.values()], -1)

    def alpha_loss(log_alpha, policy, data, key):
        _, log_prob = act(policy, data["seen"], key)
        return jnp.mean(jnp.exp(log_alpha) * lax.stop_gradient(-log_prob + 0.5 * N_MOVES))

    def critic_loss(q, policy, target, alpha, data, key):
        moves, log_prob = act(policy, data["following"], key)
        aims = data["reward"] + 0.99 * (values(target, data["following"], moves).min(-1) - alpha * log_prob)
        return 0.5 * jnp.mean((values(q, data["seen"], data["moves"]) - lax.stop_gradient(aims)[:, None]) ** 2)

    def actor_loss(policy, q, alpha, data, key):
        moves, log_prob = act(policy, data["seen"], key)
        return jnp.mean(alpha * log_prob - values(q, data["seen"], moves).min(-1))

    @jax.jit
    def sgd_step(state, data):
        key, *keys = jax.random.split(state["key"], 4)
        params, alpha = state["params"], jnp.exp(state["params"]["alpha"])
        found = {
            "alpha": jax.value_and_grad(alpha_loss)(params["alpha"], params["policy"], data, keys[0]),
            "q": jax.value_and_grad(critic_loss)(params["q"], params["policy"], state["target"], alpha, data, keys[1]),
            "policy": jax.value_and_grad(actor_loss)(params["policy"], params["q"], alpha, data, keys[2]),
        }
        new, states = {}, {}
        for name, (_, grads) in found.items():
            updates, states[name] = txs[name].update(grads, state["states"][name])
            new[name] = optax.apply_updates(params[name], updates)
        target = jax.tree.map(lambda old, new: old * 0.995 + new * 0.005, state["target"], new["q"])
        metrics = {f"{name}_loss": value for name, (value, _) in found.items()}
        return {"params": new, "states": states, "target": target, "key": key}, metrics | {"loss": found["q"][0]}

    def batch(step):
        x, moves = observed(32, step), np.tanh(normal(32, N_MOVES, seed=step) * 5)
        return ({"seen": x, "moves": moves, "reward": np.tanh(x[:, 0]), "following": observed(32, 99 + step)},)

    states = {name: tx.init(params[name]) for name, tx in txs.items()}
    target = jax.tree.map(np.copy, params["q"])
    state = {"params": params, "states": states, "target": target, "key": jax.random.PRNGKey(0)}
    return Published(sgd_step, (state,), batch, lambda *_: [])


@published("https://github.com/danijar/dreamerv3/blob/main/dreamerv3/rssm.py")
def dreamer_world_model(*, distance: Callable = lambda x: jnp.sqrt(jnp.sum(x**2, -1) + 1e-6)) -> Published:
    """Categorical states with straight-through gradients in a scan over time, balanced KL with free nats, symlog."""
    n_groups, n_classes, deter = 4, 4, 16
    stoch = n_groups * n_classes
    params = {
        "encoder": dense(N_SEEN, 16, 16),
        "core": {"gru": dense(stoch + N_MOVES + deter, 3 * deter)[0]},
        "prior": dense(deter, 16, stoch),
        "posterior": dense(deter + 16, 16, stoch),
        "decoder": dense(deter + stoch, 16, N_SEEN),
        "reward": dense(deter + stoch, 16, 1),
    }

    def symlog(x):
        return jnp.sign(x) * jnp.log1p(jnp.abs(x))

    def log_probs(p, x):
        logits = mlp(p, x, jax.nn.silu).reshape(*x.shape[:-1], n_groups, n_classes)
        return jnp.log(0.99 * jax.nn.softmax(logits) + 0.01 / n_classes)

    def sampled(key, log_p):
        one_hot = jax.nn.one_hot(jax.random.categorical(key, log_p), n_classes)
        p = jnp.exp(log_p)
        return (one_hot + p - lax.stop_gradient(p)).reshape(*log_p.shape[:-2], -1)

    def loss(params, key, seen, moves, rewards):
        coded = mlp(params["encoder"], symlog(seen), jax.nn.silu)

        def observe(carry, inputs):
            (h, z), (code, move, key) = carry, inputs
            gates = jnp.concatenate([z, move, h], -1) @ params["core"]["gru"]["w"] + params["core"]["gru"]["b"]
            reset, candidate, update = jnp.split(gates, 3, -1)
            update = jax.nn.sigmoid(update - 1)
            h = update * jnp.tanh(jax.nn.sigmoid(reset) * candidate) + (1 - update) * h
            prior, post = log_probs(params["prior"], h), log_probs(params["posterior"], jnp.concatenate([h, code], -1))
            z = sampled(key, post)
            return (h, z), (jnp.concatenate([h, z], -1), prior, post)

        start = jnp.zeros((len(seen), deter)), jnp.zeros((len(seen), stoch))
        swapped = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (coded, moves))
        _, (feature, prior, post) = lax.scan(observe, start, (*swapped, jax.random.split(key, seen.shape[1])))

        def kl(p, q):
            return jnp.maximum(jnp.sum(jnp.exp(p) * (p - q), (-2, -1)), 0.1).mean()

        balanced = 0.5 * kl(lax.stop_gradient(post), prior) + 0.1 * kl(post, lax.stop_gradient(prior))
        away = mlp(params["decoder"], feature, jax.nn.silu) - symlog(jnp.swapaxes(seen, 0, 1))
        reward = mlp(params["reward"], feature, jax.nn.silu)[..., 0]
        return balanced + distance(away).mean() + jnp.mean((reward - symlog(rewards.T)) ** 2)

    def batch(step):
        start = np.random.default_rng(step).normal(size=(8, 1, N_SEEN))
        seen = start + 0.1 * np.arange(6)[:, None] * np.ones(N_SEEN)
        moves = normal(8 * 6, N_MOVES, seed=step).reshape(8, 6, N_MOVES) * 5
        return jax.random.PRNGKey(step), seen.astype(np.float32), moves, np.float32(seen.mean(-1))

    tx = optax.chain(optax.adaptive_grad_clip(0.3), optax.scale_by_rms(), optax.trace(0.9), optax.scale(-3e-4))
    return trained(loss, params, batch, tx)


@published("https://github.com/google-deepmind/mctx/blob/main/examples/policy_improvement_demo.py")
def muzero_unrolled_model(*, tx=None) -> Published:
    """A representation, then five steps of a dynamics whose gradients are halved; values are of 11 bins."""
    n_bins, n_moves = 11, 3
    params = {
        "representation": dense(N_SEEN, 32, 16),
        "dynamics": dense(16 + n_moves, 32, 16),
        "reward": dense(16, 16, n_bins),
        "prediction": {"policy": dense(16, 16, n_moves), "value": dense(16, 16, n_bins)},
    }
    bins = np.linspace(-2, 2, n_bins, dtype=np.float32)

    def spread(x):
        near = jnp.clip(1 - jnp.abs(jnp.clip(x, -2, 2)[..., None] - bins) / (bins[1] - bins[0]), 0, 1)
        return near / near.sum(-1, keepdims=True)

    def halved(x):
        return 0.5 * x + lax.stop_gradient(0.5 * x)

    def crossed(logits, aims):
        return optax.softmax_cross_entropy(logits, aims).mean()

    def loss(params, seen, moves, rewards, values, policies):
        hidden = mlp(params["representation"], seen)
        total = 0.0
        for i in range(5):
            hidden = (hidden - hidden.min(-1, keepdims=True)) / (jnp.ptp(hidden, -1, keepdims=True) + 1e-5)
            total += crossed(mlp(params["prediction"]["value"], hidden), spread(values[:, i]))
            total += crossed(mlp(params["prediction"]["policy"], hidden), policies[:, i])
            hidden = halved(jnp.concatenate([hidden, jax.nn.one_hot(moves[:, i], n_moves)], -1))
            hidden = mlp(params["dynamics"], hidden)
            total += crossed(mlp(params["reward"], hidden), spread(rewards[:, i]))
        return total / 5 + 1e-4 * optax.global_norm(params) ** 2

    def batch(step):
        rng, x = np.random.default_rng(step), observed(32, step)
        moves = rng.integers(0, n_moves, (32, 5))
        rewards = np.tanh(x[:, :1] * (moves - 1)).astype(np.float32)
        policies = np.asarray(jax.nn.softmax(x[:, None, :n_moves] + np.zeros((5, 1), np.float32)))
        return x, moves, rewards, np.tanh(rewards.sum(1, keepdims=True) + np.zeros(5, np.float32)), policies

    return trained(loss, params, batch, tx or optax.adamw(1e-3, weight_decay=1e-4))


@published("https://github.com/ikostrikov/implicit_q_learning/blob/master/learner.py")
def implicit_q_learning(*, rate: float = 1e-3) -> Published:
    """Expectiles of values, a policy weighted by clipped exponentials of advantages, and two critics."""
    params = {"value": dense(N_SEEN, 64, 1), "policy": dense(N_SEEN, 64, N_MOVES)}
    params["critic"] = {name: dense(N_SEEN + N_MOVES, 64, 1) for name in ("q1", "q2")}
    tx = optax.adam(rate)

    def q_of(critic, x, moves):
        return [mlp(p, jnp.concatenate([x, moves], -1))[:, 0] for p in critic.values()]

    def value_loss(value, target, x, moves, *_):
        away = jnp.minimum(*q_of(target, x, moves)) - mlp(value, x)[:, 0]
        return jnp.mean(jnp.where(away > 0, 0.7, 0.3) * away**2)

    def policy_loss(policy, value, target, x, moves, *_):
        advantage = jnp.minimum(*q_of(target, x, moves)) - mlp(value, x)[:, 0]
        weight = jnp.minimum(jnp.exp(3 * advantage), 100.0)
        return jnp.mean(weight * jnp.sum((jnp.tanh(mlp(policy, x)) - moves) ** 2, -1))

    def critic_loss(critic, value, x, moves, rewards, following):
        aims = rewards + 0.99 * mlp(value, following)[:, 0]
        return sum(jnp.mean((q - aims) ** 2) for q in q_of(critic, x, moves))

    @jax.jit
    def update(params, target, states, *batch):
        new, after = {}, {}
        value, grads = {}, {}
        value["value"], grads["value"] = jax.value_and_grad(value_loss)(params["value"], target, *batch)
        for name, compute in (
            ("policy", lambda p: policy_loss(p, new["value"], target, *batch)),
            ("critic", lambda p: critic_loss(p, new["value"], *batch)),
        ):
            if not new:
                updates, after["value"] = tx.update(grads["value"], states["value"])
                new["value"] = optax.apply_updates(params["value"], updates)
            value[name], grads[name] = jax.value_and_grad(compute)(params[name])
            updates, after[name] = tx.update(grads[name], states[name])
            new[name] = optax.apply_updates(params[name], updates)
        target = optax.incremental_update(new["critic"], target, 0.005)
        return new, target, after, {"loss": value["critic"], **value}

    def batch(step):
        x, moves = observed(32, step), np.tanh(normal(32, N_MOVES, seed=step) * 5)
        return x, moves, np.tanh(x[:, 0]), observed(32, 99 + step)

    states = {name: tx.init(p) for name, p in params.items()}
    return Published(update, (params, jax.tree.map(np.copy, params["critic"]), states), batch, lambda *_: [])


@published("https://github.com/mttga/purejaxql/blob/main/purejaxql/pqn_gymnax.py")
def purejaxql_normalised_network() -> Published:
    """Q-learning without a target: a Linen network with layer norms, lambda returns in a scan, epochs in scans."""
    from flax import linen as nn
    from flax.training.train_state import TrainState

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.BatchNorm(use_running_average=False, use_bias=False, use_scale=False)(x)
            for _ in range(2):
                x = nn.relu(nn.LayerNorm()(nn.Dense(32, kernel_init=nn.initializers.he_normal())(x)))
            return nn.Dense(3)(x)

    class State(TrainState):
        batch_stats: dict
        n_updates: int = 0

    model = Network()

    def loss(params, stats, x, moves, aims):
        q, changed = model.apply({"params": params, "batch_stats": stats}, x, mutable=["batch_stats"])
        return 0.5 * jnp.mean((jnp.take_along_axis(q, moves[:, None], 1)[:, 0] - aims) ** 2), changed

    @jax.jit
    def update(state, key, seen, moves, rewards):
        variables = {"params": state.params, "batch_stats": state.batch_stats}
        q = model.apply(variables, seen, mutable=["batch_stats"])[0].max(-1)

        def aims_of(ahead, inputs):
            reward, following = inputs
            ahead = reward + 0.9 * (0.65 * ahead + 0.35 * following)
            return ahead, ahead

        _, aims = lax.scan(aims_of, q[-1], (rewards[:-1], q[1:]), reverse=True)
        data = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (seen[:-1], moves[:-1], aims))

        def epoch(carry, _):
            state, key = carry
            key, used = jax.random.split(key)
            order = jax.random.permutation(used, len(data[0]))
            parts = jax.tree.map(lambda x: x[order].reshape(2, -1, *x.shape[1:]), data)

            def minibatch(state, part):
                (value, changed), grads = jax.value_and_grad(loss, has_aux=True)(state.params, state.batch_stats, *part)
                return state.apply_gradients(grads=grads, **changed), value

            state, values = lax.scan(minibatch, state, parts)
            return (state, key), values

        (state, key), values = lax.scan(epoch, (state, key), None, length=2)
        return state.replace(n_updates=state.n_updates + 1), key, values.mean()

    def batch(step):
        seen = observed(5 * 8, step).reshape(5, 8, N_SEEN)
        moves = np.random.default_rng(step).integers(0, 3, (5, 8))
        return seen, moves, np.tanh(seen[..., 0] * (moves - 1)).astype(np.float32)

    variables = jax.jit(model.init)(jax.random.key(0), np.ones((1, N_SEEN), np.float32))
    tx = optax.chain(optax.clip_by_global_norm(10.0), optax.radam(1e-3))
    state = State.create(apply_fn=model.apply, tx=tx, **variables)
    return Published(update, (state, jax.random.PRNGKey(0)), batch, lambda *_: [])
