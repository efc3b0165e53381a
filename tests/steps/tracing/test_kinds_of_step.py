"""`watch` on the kinds of step that hold a loop: measured on every release, with the norms of gradients taken apart."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from watched import beside, same_bytes, true_norms, watch, with_numbers

pytestmark = pytest.mark.oldest_jax

WIDTH, N_LAYERS, N_BATCHES = 8, 3, 4
rng = np.random.default_rng(0)
params = {
    "layers": jnp.asarray(rng.normal(size=(N_LAYERS, WIDTH, WIDTH)) / 3, jnp.float32),
    "head": jnp.asarray(rng.normal(size=(WIDTH, 2)), jnp.float32),
}
x = jnp.asarray(rng.normal(size=(8, WIDTH)), jnp.float32)
batches = x.reshape(N_BATCHES, -1, WIDTH)


class Kind(NamedTuple):
    """A step, with the gradients that it takes.

    Attributes:
      step: `(params, x) -> new params`, or what else it returns.
      gradients: Those of a call with `params` and `x`, one tree for each row; computed without `jit`, loops apart.
    """

    step: Callable
    gradients: Callable
    params: dict = params


KINDS: dict[str, Callable[[], Kind]] = {}
OPTIMIZED = "layers in a scan", "an epoch in a scan", "an rnn of flax", "cond in scan", "scan in shard map"  # for bits


def kind(function: Callable) -> Callable:
    KINDS[function.__name__.replace("_", " ")] = function
    return function


def descend(params, grads):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def error(hidden, params):
    return ((hidden @ params["head"] - 1.0) ** 2).mean()


def layer(hidden, weights):
    return jnp.tanh(hidden @ weights)


def unrolled(params, x, layer=layer):
    """The loss without a loop."""
    for weights in params["layers"]:
        x = layer(x, weights)
    return error(x, params)


def scanned(params, x, layer=layer):
    return error(lax.scan(lambda h, w: (layer(h, w), None), x, params["layers"])[0], params)


def of_loss(loss: Callable, same: Callable = unrolled) -> Kind:
    """A step of gradient descent; its loss is also computed without a loop."""
    return Kind(lambda params, x: descend(params, jax.grad(loss)(params, x)), lambda: [jax.grad(same)(params, x)])


@kind
def layers_in_a_scan():
    return of_loss(scanned)


@kind
def layers_in_a_scan_with_remat():
    return of_loss(lambda params, x: scanned(params, x, jax.checkpoint(layer)))


@kind
def accumulation_in_a_scan():
    def step(params, x):
        def add(total, batch):
            return jax.tree.map(jnp.add, total, jax.grad(scanned)(params, batch)), None

        zeros = jax.tree.map(jnp.zeros_like, params)
        return descend(params, lax.scan(add, zeros, x.reshape(batches.shape))[0])

    return Kind(step, lambda: [jax.grad(unrolled)(params, batch) for batch in batches])


@kind
def an_epoch_in_a_scan():
    def step(params, x):
        def one(params, batch):
            value, grads = jax.value_and_grad(scanned)(params, batch)
            return descend(params, grads), value

        return lax.scan(one, params, x.reshape(batches.shape))

    def gradients():
        new, found = params, []
        for batch in batches:
            found.append(jax.grad(unrolled)(new, batch))
            new = descend(new, found[-1])
        return found

    return Kind(step, gradients)


@kind
def a_fori_loop():
    def loss(params, x):
        return error(lax.fori_loop(0, N_LAYERS, lambda i, h: layer(h, params["layers"][i]), x), params)

    return of_loss(loss)


@kind
def a_while_loop():
    def step(params, x):
        def one(state):
            return state[0] + 1, descend(state[1], jax.grad(unrolled)(state[1], x))

        return lax.while_loop(lambda state: state[0] < x.shape[0] // 4, one, (0, params))[1]

    def gradients():  # of the last of two steps
        return [jax.grad(unrolled)(descend(params, jax.grad(unrolled)(params, x)), x)]

    return Kind(step, gradients)


@kind
def an_rnn_of_flax():
    if importlib.util.find_spec("flax") is None:
        pytest.skip("needs flax")
    from flax import linen as nn

    model = nn.RNN(nn.SimpleCell(4))
    sequences = x.reshape(2, 4, WIDTH)
    of_rnn = with_numbers(jax.eval_shape(model.init, jax.random.key(0), sequences))

    def loss(of_rnn, x):
        return (model.apply(of_rnn, x.reshape(sequences.shape)) ** 2).mean()

    def by_hand(of_rnn):
        p, hidden, total = of_rnn["params"]["cell"], jnp.zeros((2, 4)), []
        for t in range(4):
            hidden = jnp.tanh(sequences[:, t] @ p["i"]["kernel"] + p["i"]["bias"][None] + hidden @ p["h"]["kernel"])
            total.append(hidden)
        return (jnp.stack(total) ** 2).mean()

    step = lambda of_rnn, x: descend(of_rnn, jax.grad(loss)(of_rnn, x))
    return Kind(step, lambda: [jax.jit(jax.grad(by_hand))(of_rnn)], of_rnn)


@kind
def cond_in_scan():
    def some(hidden, weights):
        return lax.cond(hidden.sum() > 0, layer, lambda h, w: h @ w, hidden, weights)

    def same(params, x):
        return unrolled(params, x, lambda h, w: layer(h, w) if h.sum() > 0 else h @ w)

    return of_loss(lambda params, x: scanned(params, x, some), same)


@kind
def scan_in_scan():
    def twice(hidden, weights):
        return lax.scan(lambda h, _: (layer(h, weights), None), hidden, None, length=2)[0]

    def same(params, x):
        return unrolled(params, x, lambda h, w: layer(layer(h, w), w))

    return of_loss(lambda params, x: scanned(params, x, twice), same)


@kind
def vmap_of_scan():
    def loss(params, x):
        return jax.vmap(scanned, (None, 0))(params, x.reshape(batches.shape)).mean()

    def same(params, x):
        return sum(unrolled(params, batch) for batch in batches) / N_BATCHES

    return of_loss(loss, same)


@kind
def scan_in_shard_map():
    shard_map = getattr(jax, "shard_map", None)
    if shard_map is None:
        from jax.experimental.shard_map import shard_map
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))

    def loss(params, x):
        local = shard_map(
            lambda params, x: lax.pmean(scanned(params, x), "data"), mesh=mesh, in_specs=(P(), P("data")), out_specs=P()
        )
        return local(params, x)

    return of_loss(loss)


@kind
def an_associative_scan():
    def loss(params, x):
        products = lax.associative_scan(jnp.matmul, params["layers"])
        return error(jnp.tanh(x @ products[-1]), params)

    def same(params, x):
        product = params["layers"][0]
        for weights in params["layers"][1:]:
            product = product @ weights
        return error(jnp.tanh(x @ product), params)

    return of_loss(loss, same)


@kind
def custom_vjp_in_scan():
    @jax.custom_vjp
    def activation(z):
        return jnp.tanh(z)

    def forward(z):
        out = jnp.tanh(z)
        return out, out

    def backward(out, g):
        return (g * (1 - out * out),)

    activation.defvjp(forward, backward)
    return of_loss(lambda params, x: scanned(params, x, lambda h, w: activation(h @ w)))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.optimized] * (name in OPTIMIZED)) for name in KINDS]
)
def test_a_step_with_a_loop_is_measured_and_keeps_its_bits(name, seen, monkeypatch):
    of = KINDS[name]()
    step = jax.jit(of.step)
    if name not in OPTIMIZED:  # the results of the plain step come from the program that measures
        beside(of.step, monkeypatch)
    watched = watch(step, seen)
    out = watched(of.params, x)
    assert watched.trouble == ""
    out, plain = (out, step(of.params, x)) if name in OPTIMIZED else out
    if not same_bytes(out, plain):  # XLA merges products of matrices with what uses them
        assert jax.__version_info__ < (0, 7)
        assert not watched.verify(of.params, x)  # and that is said
    true, norms = [true_norms(grads) for grads in of.gradients()], seen.norms("grads")
    sizes = [leaf.size for leaf in jax.tree.leaves(of.params)]
    if norms.shape[-1] != len(sizes):  # a row for each layer, of the arrays that are scanned over
        at = jax.tree.leaves({**of.params, "layers": True, "head": False}).index(True)
        of_layers = norms[..., at : at + N_LAYERS]
        whole = np.sqrt((of_layers**2).sum(-1, keepdims=True))
        norms = np.concatenate([norms[..., :at], whole, norms[..., at + N_LAYERS :]], -1)
    np.testing.assert_allclose(norms.reshape(-1, len(sizes)), true, rtol=2e-5)
