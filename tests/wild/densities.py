"""Training steps of densities: flows, variational inference, hidden states, Gaussian processes, scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.scipy.stats import norm
from wild.published import Published, dense, mlp, normal, published, trained


def moons(n: int = 32) -> Callable[[int], tuple]:
    def batch(step: int) -> tuple:
        rng = np.random.default_rng(step)
        angle, which = rng.random(n) * np.pi, np.arange(n) % 2
        x = np.stack([np.cos(angle) * (1 - 2 * which) + which, np.sin(angle) * (1 - 2 * which) + which / 2], -1)
        return (np.float32(x + 0.1 * rng.normal(size=x.shape)),)

    return batch


@published("https://github.com/danielward27/flowjax/blob/main/flowjax/flows.py")
def flowjax_masked_autoregressive_flow(
    *, rate: float = 1e-3, bounded: Callable = lambda s: jnp.log1p(jnp.exp(s))
) -> Published:
    """Layers stacked by a vmap and run by a scan; masked weights, a permutation, and a base that is not trained."""
    import equinox as eqx

    class Masked(eqx.Module):
        raw: jax.Array
        bias: jax.Array
        mask: jax.Array  # not trained

        def __call__(self, x):
            return lax.stop_gradient(self.mask) * self.raw @ x + self.bias

    class Layer(eqx.Module):
        into: Masked
        out: Masked

        def __init__(self, key):
            one, two = jax.random.split(key)
            ranks = jnp.arange(16) % 1
            into = (ranks[:, None] >= jnp.arange(2)).astype(jnp.float32)
            out = (jnp.repeat(jnp.arange(2), 2)[:, None] > ranks).astype(jnp.float32)
            self.into = Masked(jax.random.normal(one, (16, 2)), jnp.zeros(16), into)
            self.out = Masked(0.1 * jax.random.normal(two, (4, 16)), jnp.zeros(4), out)

        def __call__(self, x):
            shift, scale = self.out(jax.nn.relu(self.into(x))).reshape(2, 2).T
            scale = bounded(scale + 0.5413)
            return ((x - shift) / scale)[::-1], -jnp.sum(jnp.log(scale))

    class Flow(eqx.Module):
        loc: jax.Array  # not trained
        bijection: Layer

        def log_prob(self, x):
            arrays, rest = eqx.partition(self.bijection, eqx.is_array)

            def layer(carry, p):
                x, total = carry
                x, log_det = eqx.combine(p, rest)(x)
                return (x, total + log_det), None

            (x, total), _ = lax.scan(layer, (x, 0.0), arrays)
            return jnp.sum(norm.logpdf(x - lax.stop_gradient(self.loc))) + total

    flow = Flow(jnp.zeros(2), eqx.filter_vmap(Layer)(jax.random.split(jax.random.key(0), 4)))
    params, static = eqx.partition(flow, eqx.is_inexact_array)

    def loss(params, x):
        return -jax.vmap(eqx.combine(params, static).log_prob)(x).mean()

    return trained(loss, params, moons(), optax.adam(rate))


@published("https://github.com/danielward27/flowjax/blob/main/flowjax/train/losses.py")
def flowjax_variational_fit() -> Published:
    """Affine couplings fitted to a density by samples, and the gradient through their path alone."""
    params = {"couplings": [dense(1, 16, 2) for _ in range(4)], "base": {"loc": np.zeros(2, np.float32)}}
    params["base"]["log_scale"] = np.zeros(2, np.float32)

    def forward(params, z):
        x = params["base"]["loc"] + jnp.exp(params["base"]["log_scale"]) * z
        for p in params["couplings"]:
            shift, scale = mlp(p, x[:, :1]).T
            x = jnp.stack([x[:, 1] * jnp.exp(jnp.tanh(scale)) + shift, x[:, 0]], -1)
        return x

    def log_prob(params, x):
        total = 0.0
        for p in reversed(params["couplings"]):
            shift, scale = mlp(p, x[:, 1:]).T
            x = jnp.stack([x[:, 1], (x[:, 0] - shift) * jnp.exp(-jnp.tanh(scale))], -1)
            total = total - jnp.tanh(scale)
        return jnp.sum(norm.logpdf(x, params["base"]["loc"], jnp.exp(params["base"]["log_scale"])), -1) + total

    def loss(params, key):
        x = forward(params, jax.random.normal(key, (64, 2)))
        target = norm.logpdf(x[:, 0], 1.0, 0.7) + norm.logpdf(x[:, 1], x[:, 0] ** 2, 0.5)
        return jnp.mean(log_prob(lax.stop_gradient(params), x) - target)

    return trained(loss, params, lambda step: (jax.random.PRNGKey(step),), optax.adam(3e-3))


@published("https://github.com/pyro-ppl/numpyro/blob/master/numpyro/infer/svi.py")
def numpyro_hierarchical_svi(*, positive: Callable = jnp.exp, start: float = 0.1) -> Published:
    """Unconstrained parameters of a guide; the state is an optimizer's with a counter, a mutable part and a key."""
    from jax.flatten_util import ravel_pytree

    n_groups, n_columns = 4, 3
    latent = {"mu": np.zeros(n_columns), "log_tau": np.zeros(n_columns), "effects": np.zeros((n_groups, n_columns))}
    _, unravel = ravel_pytree(jax.tree.map(np.float32, latent))
    n = n_columns * (2 + n_groups)
    params = {"auto_loc": np.zeros(n, np.float32), "auto_scale": np.full(n, start, np.float32)}
    tx = optax.chain(optax.clip(10.0), optax.adam(1e-2))

    def loss(params, key, x, group, y):
        scale = positive(params["auto_scale"])

        def one(key):
            noise = jax.random.normal(key, (n,))
            z = unravel(params["auto_loc"] + scale * noise)
            tau = jnp.exp(z["log_tau"])
            density = jnp.sum(norm.logpdf(z["mu"])) + jnp.sum(norm.logpdf(z["log_tau"]))
            density += jnp.sum(norm.logpdf(z["effects"], z["mu"], tau))
            logits = jnp.sum(z["effects"][group] * x, -1)
            density += jnp.sum(y * logits - jax.nn.softplus(logits))
            return jnp.sum(-0.5 * noise**2 - jnp.log(scale)) - density

        return jnp.mean(jax.vmap(one)(jax.random.split(key, 4)))

    @jax.jit
    def update(state, *batch):
        (i, (params, inner)), mutable, key = state
        key, used = jax.random.split(key)
        value, grads = jax.value_and_grad(loss)(params, used, *batch)
        updates, inner = tx.update(grads, inner, params)
        return ((i + 1, (optax.apply_updates(params, updates), inner)), mutable, key), value

    def batch(step):
        x = normal(40, n_columns, seed=step) * 6
        return x, np.arange(40) % n_groups, (x[:, 0] + 0.3 * (np.arange(40) % n_groups) > 0).astype(np.float32)

    state = ((jnp.int32(0), (params, tx.init(params))), None, jax.random.PRNGKey(0))
    return Published(update, (state,), batch, lambda s, *b: [])


@published("https://github.com/probml/dynamax/blob/main/dynamax/ssm.py")
def dynamax_hidden_markov_model(*, in_logs: bool = True, length: int = 20) -> Published:
    """Stochastic gradients of the likelihood of emissions, by a filter over time; parameters are unconstrained."""
    n_states = 3
    params = {
        "initial": {"logits": np.zeros(n_states, np.float32)},
        "transitions": {"logits": normal(n_states, n_states, seed=1)},
        "emissions": {"means": normal(n_states, 2, seed=2) * 2, "log_scales": np.zeros((n_states, 2), np.float32)},
    }

    def log_likelihood(params, x):
        first = jax.nn.log_softmax(params["initial"]["logits"])
        moves = jax.nn.log_softmax(params["transitions"]["logits"])
        means, scales = params["emissions"]["means"], jnp.exp(params["emissions"]["log_scales"])
        each = jnp.sum(norm.logpdf(x[:, None], means, scales), -1)

        def filtered(prior, log_p):
            joint = prior + log_p
            total = jax.nn.logsumexp(joint)
            return jax.nn.logsumexp((joint - total)[:, None] + moves, 0), total

        def multiplied(prior, p):
            return (prior * p) @ jnp.exp(moves), None

        if in_logs:
            return jnp.sum(lax.scan(filtered, first, each)[1])
        last, _ = lax.scan(multiplied, jnp.exp(first), jnp.exp(each))
        return jnp.log(jnp.sum(last))

    def loss(params, x):
        return -jnp.mean(jax.vmap(log_likelihood, (None, 0))(params, x)) / length

    def batch(step):
        rng = np.random.default_rng(step)
        states = (np.arange(length) // 5 + rng.integers(0, 3, (8, 1))) % n_states
        means = np.array([[0, 2], [2, -1], [-2, -1]])
        return (np.float32(means[states] + 0.5 * rng.normal(size=(8, length, 2))),)

    return trained(loss, params, batch, optax.adam(1e-2))


@published("https://github.com/thomaspinder/GPJax/blob/main/examples/collapsed_vi.py")
def gpjax_sparse_process(*, jitter: float = 1e-4, tx: Any = None) -> Published:
    """A lower bound with inducing inputs: kernels, Cholesky factors, triangular solves, softplus of all scales."""
    tx = tx or optax.adam(1e-2)
    params = {
        "kernel": {"lengthscale": np.float32(0.5), "variance": np.float32(0.5)},
        "likelihood": {"obs_stddev": np.float32(0.0)},
        "inducing_inputs": np.linspace(-2, 2, 8, dtype=np.float32)[:, None],
        "variational_mean": np.zeros((8, 1), np.float32),
        "variational_root_covariance": np.eye(8, dtype=np.float32),
    }

    def gram(p, a, b):
        away = jnp.sum((a[:, None] - b) ** 2, -1) / jax.nn.softplus(p["lengthscale"]) ** 2
        return jax.nn.softplus(p["variance"]) * jnp.exp(-0.5 * away)

    def loss(params, x, y):
        z, p = params["inducing_inputs"], params["kernel"]
        root = jnp.linalg.cholesky(gram(p, z, z) + jitter * jnp.eye(len(z)))
        mean, spread = params["variational_mean"], jnp.tril(params["variational_root_covariance"])
        solved = jax.scipy.linalg.solve_triangular(root, gram(p, z, x), lower=True)
        predicted = (solved.T @ mean)[:, 0]
        variance = jax.nn.softplus(p["variance"]) - jnp.sum(solved**2, 0) + jnp.sum((spread.T @ solved) ** 2, 0)
        noise = jax.nn.softplus(params["likelihood"]["obs_stddev"])
        expected = norm.logpdf(y[:, 0], predicted, noise) - 0.5 * variance / noise**2
        divergence = 0.5 * (jnp.sum(mean**2) + jnp.sum(spread**2) - len(z)) - jnp.sum(
            jnp.log(jnp.abs(jnp.diag(spread)))
        )
        return divergence / 200 - jnp.mean(expected)

    def batch(step):
        x = np.random.default_rng(step).uniform(-2, 2, (32, 1)).astype(np.float32)
        return x, np.sin(3 * x) + 0.1 * normal(32, 1, seed=step)

    return trained(loss, params, batch, tx)


@published("https://github.com/yang-song/score_sde/blob/main/losses.py")
def score_of_noisy_images(*, least_time: float = 1e-2) -> Published:
    """Haiku layers with embedded times, targets over their deviation, warm-up, clipping, an average of parameters."""
    import haiku as hk

    @hk.transform
    def score(x, time):
        angle = time[:, None] * 2.0 ** np.arange(4)
        coded = hk.nets.MLP([16, 16], activation=jax.nn.swish)(jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1))
        y = hk.Conv2D(8, 3)(x)
        for _ in range(2):
            z = jax.nn.swish(hk.GroupNorm(2)(y)) + hk.Linear(8)(jax.nn.swish(coded))[:, None, None]
            y = y + hk.Conv2D(8, 3, w_init=hk.initializers.VarianceScaling(0.1))(z)
        return hk.Conv2D(1, 3)(jax.nn.swish(y))

    def spread(time):
        return jnp.sqrt(1 - jnp.exp(-4 * time))[:, None, None, None]

    def loss(params, key, time, x):
        noise = jax.random.normal(key, x.shape)
        std = spread(time)
        noisy = jnp.exp(-2 * time)[:, None, None, None] * x + std * noise
        predicted = score.apply(params, None, noisy, time) / std
        return jnp.mean((predicted * std + noise / std * std) ** 2)

    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.linear_schedule(0.0, 1e-3, 10), b1=0.9, eps=1e-8))

    @jax.jit
    def step_fn(params, average, state, key, time, x):
        key, used = jax.random.split(key)
        value, grads = jax.value_and_grad(loss)(params, used, time, x)
        updates, state = tx.update(grads, state)
        params = optax.apply_updates(params, updates)
        return params, optax.incremental_update(params, average, 1e-3), state, key, value

    def batch(step):
        x = np.sin(np.arange(8)[:, None] * np.ones(8) + normal(8, seed=step)[:, None, None])
        time = np.linspace(least_time, 1, 8) if step % 20 == 10 else np.random.default_rng(step).uniform(0.01, 1, 8)
        return np.float32(time), np.float32(x[..., None])

    params = jax.jit(score.init)(jax.random.key(0), np.ones((1, 8, 8, 1), np.float32), np.ones(1, np.float32))
    state = params, jax.tree.map(jnp.copy, params), tx.init(params), jax.random.PRNGKey(0)
    return Published(step_fn, state, batch, lambda *_: [])


@published("https://docs.kidger.site/diffrax/examples/latent_ode/")
def diffrax_latent_ode(*, activation: Callable = jax.nn.softplus) -> Published:
    """A recurrent encoder that runs backwards, a sampled start, and a path by Heun's method in a scan."""
    import equinox as eqx

    class LatentODE(eqx.Module):
        cell: eqx.nn.GRUCell
        to_latent: eqx.nn.Linear
        scale: jax.Array
        field: list
        to_data: list

    keys = jax.random.split(jax.random.key(0), 7)
    model = LatentODE(
        eqx.nn.GRUCell(3, 8, key=keys[0]),
        eqx.nn.Linear(8, 8, key=keys[1]),
        jnp.ones(()),
        [eqx.nn.Linear(4, 16, key=keys[2]), eqx.nn.Linear(16, 4, key=keys[3])],
        [eqx.nn.Linear(4, 16, key=keys[4]), eqx.nn.Linear(16, 2, key=keys[5])],
    )
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def of_one(model, times, seen, key):
        inputs = jnp.concatenate([times[:, None], seen], -1)
        hidden, _ = lax.scan(lambda h, x: (model.cell(x, h), None), jnp.zeros(8), inputs, reverse=True)
        mean, log_std = jnp.split(model.to_latent(hidden), 2)
        z = mean + jnp.exp(log_std) * jax.random.normal(key, (4,))

        def field(z):
            return model.scale * jnp.tanh(model.field[1](activation(model.field[0](z))))

        def heun(z, dt):
            first = field(z)
            return z + dt * (first + field(z + dt * first)) / 2, z

        _, path = lax.scan(heun, z, jnp.diff(times, append=times[-1:]))
        predicted = jax.vmap(lambda z: model.to_data[1](activation(model.to_data[0](z))))(path)
        divergence = 0.5 * jnp.sum(mean**2 + jnp.exp(2 * log_std) - 2 * log_std - 1)
        return 0.5 * jnp.sum((predicted - seen) ** 2) / len(times) + 0.01 * divergence

    def loss(params, times, seen, key):
        model = eqx.combine(params, static)
        return jnp.mean(jax.vmap(of_one, (None, 0, 0, 0))(model, times, seen, jax.random.split(key, len(times))))

    def batch(step):
        rng = np.random.default_rng(step)
        times, phase = np.sort(rng.uniform(0, 2, (8, 12)), 1), rng.uniform(0, 3, (8, 1))
        seen = np.stack([np.sin(2 * times + phase), np.cos(2 * times + phase)], -1)
        return np.float32(times), np.float32(seen), jax.random.PRNGKey(step)

    return trained(loss, params, batch, optax.adam(3e-3))
